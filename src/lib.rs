//! `mqtt-st-quic`: an MQTT broker whose instances join themselves into a mesh.
//!
//! Brokers speak MQTT 3.1, 3.1.1 and 5.0 to clients and QUIC (mutual TLS) to each other, a connection for control and one for the
//! messages. A spanning tree keeps the mesh free of loops; numbered, covered replication keeps it correct. `ARCHITECTURE.md` has the picture.
//!
//! The **core** knows no I/O, no clock and no runtime, and compiles with `--no-default-features`. The **shell** (feature `net`)
//! connects it to sockets.
//!
//! | module | duty | side |
//! |---|---|---|
//! | [`limits`] | every bound in one place | core |
//! | [`ids`] | the identities that travel between brokers | core |
//! | [`pace`] | how fast something may come: buckets of tokens | core |
//! | [`pressure`] | how much of the memory is taken, and what follows from it | core |
//! | [`log_rate`] | how often strangers may make us write to the log | core |
//! | [`metrics`] | what is counted, as plain atomics | core |
//! | [`config`] | typed configuration, defaults, errors with line and remedy | core |
//! | [`codec`] | bytes to MQTT control packets and back | core |
//! | [`topic`] | topic names, filters, the subscription trie | core |
//! | [`auth`] | who may come in, and what a client may say and hear | core |
//! | [`session`] | one client's state and its outbox | core |
//! | [`proxy`] | the PROXY protocol's header | core |
//! | [`websocket`] | the opening handshake and the frames of WebSocket | core |
//! | [`router`] | who gets a message: registry, subscriptions, retained | core |
//! | [`stp`] | the spanning tree as a pure state machine | core |
//! | [`link`] | whether one link lives, and what it costs | core |
//! | [`healing`] | how long a broker was without its way to the root | core |
//! | [`neighbours`] | whom to be linked with | core |
//! | [`frame`] | the mesh's wire format | core |
//! | [`shared`] | what every broker knows of every other: broker records, the topology document, registers | core |
//! | [`interest`] | what other brokers want, and who of them is behind which tree port | core |
//! | [`replication`] | lane rings, cursors, covers, OPEN and CLOSE | core |
//! | `memory` | watches how much memory is taken | shell |
//! | `resources` | what the system lets this process have: descriptors, memory | shell |
//! | `bell` | wakes tasks of one runtime from the thread of another | shell |
//! | `clock`, `task` | the one place that reads time, the one place that spawns | shell |
//! | `store` | durable sessions and retained messages on disk | shell |
//! | `crl` | certificate revocation lists, read | shell |
//! | `listener` | accepts clients: sockets, PROXY header, TLS, WebSocket, QUIC | shell |
//! | `connection` | one client: one task, read and write | shell |
//! | `bridge` | carries messages to foreign brokers and from them | shell |
//! | `backends` | asks databases about users | shell |
//! | `policies` | which policy holds at which listener, read from its files | shell |
//! | `mesh` | QUIC endpoint, admission, links; drives `stp` and `replication` | shell |
//! | `sys` | what the broker publishes of itself below `$SYS` | shell |
//! | `drain` | a broker leaves in order | shell |
//! | `admin` | health, metrics, REST | shell |
//! | `server` | starts the shell's modules in order, stops them in reverse | shell |
//! | `cli` | the programs | shell |

pub mod auth;
pub mod codec;
pub mod config;
pub mod frame;
pub mod healing;
pub mod ids;
pub mod interest;
pub mod limits;
pub mod link;
pub mod log_rate;
pub mod metrics;
pub mod neighbours;
pub mod pace;
pub mod pressure;
pub mod proxy;
pub mod replication;
pub mod router;
pub mod session;
pub mod shared;
pub mod stp;
pub mod topic;
pub mod websocket;

#[cfg(feature = "net")]
pub mod admin;
#[cfg(feature = "net")]
pub mod backends;
#[cfg(feature = "net")]
pub mod bell;
#[cfg(feature = "net")]
pub mod bridge;
#[cfg(feature = "net")]
pub mod cli;
#[cfg(feature = "net")]
pub mod clock;
#[cfg(feature = "net")]
pub mod connection;
#[cfg(feature = "net")]
pub mod crl;
#[cfg(feature = "net")]
pub mod drain;
#[cfg(feature = "net")]
pub mod listener;
#[cfg(feature = "net")]
pub mod memory;
#[cfg(feature = "net")]
pub mod mesh;
#[cfg(feature = "net")]
pub mod policies;
#[cfg(feature = "net")]
pub mod resources;
#[cfg(feature = "net")]
pub mod server;
#[cfg(feature = "net")]
pub mod store;
#[cfg(feature = "net")]
pub mod sys;
#[cfg(feature = "net")]
pub mod task;

//! The mesh's shell: a QUIC endpoint on a thread of its own, admission by certificate, links and their streams. It drives the state
//! machines of `stp` and `replication`; it decides nothing of the tree and nothing of messages.

pub mod identity;
pub mod pki;
pub mod tls;

mod cost;
mod credit;
mod detection;
mod incarnation;
mod rivals;

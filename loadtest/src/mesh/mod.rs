//! `loadtest mesh`: publishers and subscribers at every broker of a mesh, and an account of every flow between them, whatever
//! breaks meanwhile.
//!
//! A client lives as long as its run and outlasts its connections: it comes back, to its own broker or to the next, and does
//! what MQTT asks of it then. A publisher sends again what nobody has acknowledged, as duplicates under their old packet ids; a
//! subscriber knows which packet ids of QoS 2 it has taken. So it is known exactly what a broker has taken and owes.
//!
//! | module | duty |
//! |---|---|
//! | [`plan`] | who is where, and what is sent |
//! | [`run`] | a run under way, as whoever started it sees it |
//! | [`client`] | one client's life: connection after connection |
//! | [`publisher`], [`subscriber`] | what it does on a connection |
//! | [`books`], [`bits`] | what was sent, taken and delivered, message by message |
//! | [`account`] | what came of each flow: lost, duplicated, reordered, corrupted, the longest gap |
//! | [`command`], [`timetable`] | the command line's run, and what it breaks when |
//!
//! What is owed: what was published while the books were open and is acknowledged (QoS 1: PUBACK, QoS 2: PUBREC); at QoS 0 what
//! was sent. A message that was never acknowledged may come or not. At QoS 1 a second copy is excused where MQTT allows it: its
//! publisher has sent it twice, or its subscriber has come back and it is marked as a duplicate.

mod account;
mod bits;
mod books;
mod client;
pub(crate) mod command;
mod plan;
mod publisher;
mod run;
mod subscriber;
pub(crate) mod timetable;

pub use account::{Account, FlowAccount, PublisherAccount, SubscriberAccount, Totals};
pub use plan::{MeshPlan, Publishing, Subscribing};
pub use run::MeshRun;

//! Retained messages as all brokers hold them: the last writer wins, by [`Stamp`](crate::ids::Stamp), wherever the writes meet.
//!
//! A retained publish carries its stamp through the lanes; each broker keeps the newest of each topic, a deletion as a tombstone. So whatever the order in which
//! writes come, and however often, brokers that have seen the same hold the same. What lanes do not bring (a partition, a restart, a newcomer, a gap) is
//! found by comparing ([`index`]) and sent ([`sync`]).
//!
//! The messages themselves, who may say them and how long they live are `router`'s; streams are `mesh`'s.
//!
//! Invariants: of a topic nothing older ever takes the place of something newer; two ends that have finished an offer each way, and refused nothing, hold
//! the same; nothing is allocated by a peer's say-so.
//!
//! Specification: `ARCHITECTURE.md`, "Retained messages in the mesh".

mod index;
mod sync;

pub use index::{Index, UNSEEN, Written, key_of};
pub use sync::{RetainedCopies, RetainedSync, SyncError, Taken, Turn};

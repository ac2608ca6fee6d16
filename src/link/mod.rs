//! What is decided of one link, as values under virtual time: whether it lives, and what a way over it costs. The mesh's shell feeds in what
//! QUIC measured, the simulator what its links did. It is not the link itself: streams, credit and sockets are `mesh`'s.
//!
//! | file | decides |
//! |---|---|
//! | `detection` | whether the far side is alive, adapted to loss and round trip |
//! | `cost` | the link's part in the cost of a way to the root (802.1D-2004 17.19.20, PortPathCost) |
//!
//! Invariants: neither reads a clock, neither trusts a number that the peer could have made up to live longer than it does.
//!
//! Specification: `ARCHITECTURE.md`, "The mesh".

mod cost;
mod detection;

pub use cost::Cost;
pub use detection::{Death, Detection, Hellos, Path};

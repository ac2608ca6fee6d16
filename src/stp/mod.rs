//! The spanning tree.

mod bpdu;
mod event;

pub use bpdu::Bpdu;
pub use event::{ChangeCause, Input, Output, PeerError, Role, StpConfig};

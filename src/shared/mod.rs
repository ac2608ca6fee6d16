//! What every broker knows of every other: versioned maps, merged by rules that need no agreement: broker records and, drawn
//! from them, the topology document; [registers](register); retained messages; the [`Post`], by which one speaks to one other; and the document of a
//! [trace]. The tree never depends on anything here.

mod post;
mod records;
pub mod register;
pub mod retained;
mod stamp;
mod topology;
pub mod trace;

pub use post::{Carry, Mail, Post};
pub use records::{
    BrokerRecord, LastChange, LinkRecord, LinkRole, LinkState, Merge, RecordError, RecordHead, Records, Signature, SignedRecord,
};
pub use stamp::{ClockWord, StampClock};
pub use topology::{Topology, TopologyBroker, TopologyLink, way_costs};

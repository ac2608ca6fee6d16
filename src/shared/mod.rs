//! What every broker knows of every other: versioned maps, merged by rules that need no agreement. So far the broker records and, drawn
//! from them, the topology document. The tree never depends on anything here.

mod records;
mod topology;

pub use records::{
    BrokerRecord, LastChange, LinkRecord, LinkRole, LinkState, Merge, RecordError, RecordHead, Records, Signature, SignedRecord,
};
pub use topology::{Topology, TopologyBroker, TopologyLink};

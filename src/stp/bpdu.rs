//! What brokers tell each other about the tree.

use crate::ids::TreeId;

/// A bridge protocol data unit (802.1D-2004 9.3.3): what its sender can say of itself at that moment. Each replaces the one before.
///
/// Deviation: roles, flags and timers of 802.1D are absent. The receiver derives the role of a port from the two ends' vectors, the
/// OPEN marker in the lanes is the agreement, and a link that dies is noticed by its own detection, not by the age of a BPDU. The
/// sender is the authenticated peer of the link and therefore not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bpdu {
    /// Counts the BPDUs of one link generation in one direction, from 1. A receiver ignores what is not above the last.
    pub number: u64,
    /// The sender's tree; it only ever grows.
    pub tree: TreeId,
    /// The sender's cost to the root of `tree`, 0 at the root (802.1D-2004 17.5, the root path cost). `None`: the sender has no way to the
    /// root and offers none.
    pub distance: Option<u32>,
    /// Links between the sender and the root; meaningless without a distance.
    pub hops: u8,
    /// The highest epoch in which the sender, or somebody below it, heard of a root that is worse than theirs and did not follow it.
    /// The root of `tree` then opens the one after.
    pub epoch_held: Option<u64>,
    /// The sender, or somebody below it, knows a cheaper way that it may not take in this tree, and asks the root for the next epoch.
    pub request_epoch: bool,
}

impl Bpdu {
    /// The highest epoch that it names.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch_held.unwrap_or(0).max(self.tree.epoch)
    }
}

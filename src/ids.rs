//! The identities that travel between brokers. All are newtypes: an epoch never passes for an incarnation.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A broker for as long as its name stays: the first 64 bits of SHA-256 over mesh name and broker name. It stands in the URI SAN of
/// the broker's certificate and survives a renewal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(pub u64);

impl BrokerId {
    /// The identity of the broker `name` in the mesh `mesh`. The two are length-prefixed, so that no pair of names collides by shifting
    /// a letter from one to the other.
    #[must_use]
    pub fn derive(mesh: &str, name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update((mesh.len() as u64).to_be_bytes());
        hash.update(mesh.as_bytes());
        hash.update(name.as_bytes());
        let digest = hash.finalize();
        let mut first = [0_u8; 8];
        first.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
        Self(u64::from_be_bytes(first))
    }
}

/// A share group, wherever its members are: the first 64 bits of SHA-256 over share name and filter, which together name it (MQTT 5.0 section 4.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(pub u64);

impl ShareId {
    /// The group of `$share/SHARE/FILTER`.
    #[must_use]
    pub fn derive(share: &str, filter: &str) -> Self {
        Self(BrokerId::derive(share, filter).0)
    }
}

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for BrokerId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

impl Serialize for BrokerId {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BrokerId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// One life of a broker, in milliseconds since the Unix epoch: max(wall clock, last stored + 1, highest that any peer knows + 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// A broker's present log: 64 random bits, new whenever the broker lost its old log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogId(pub u64);

/// One of the ordered data streams of a link: `0..lanes` carry QoS 0, `lanes..2 * lanes` carry QoS 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaneId(pub u8);

impl LaneId {
    /// The lane's place in a table of all lanes.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What one broker sends on one lane out of one log: within it, sequences ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OriginLane {
    /// The broker to which the publishing client is connected.
    pub origin: BrokerId,
    /// Its log.
    pub log: LogId,
    /// The lane, chosen by the origin from the topic and kept by everybody else.
    pub lane: LaneId,
}

/// One application message in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId {
    /// Whence it comes.
    pub origin_lane: OriginLane,
    /// The origin's own position in that lane; ascending, with holes. 0 is before the first.
    pub sequence: u64,
}

/// One life of a link, as the tree and the replication see it: the peer and the generation of the authenticated pair. A link that comes
/// back is another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// The other end.
    pub peer: BrokerId,
    /// Counts the links that this process has had; never used twice.
    pub generation: u64,
}

/// Names one agreement between a child and its parent: whatever is opened or closed says which. Compared field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenNumber {
    /// Counts the child's agreements.
    pub count: u64,
    /// Who asked.
    pub child: BrokerId,
    /// The child's life.
    pub incarnation: Incarnation,
}

/// What an OPEN marker says to the tree: the agreement between child and parent (`stp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenMark {
    /// The tree in which the child asked.
    pub tree: TreeId,
    /// The agreement.
    pub number: OpenNumber,
}

/// When a retained message was published or deleted, for "the last writer wins" everywhere: greater is later. Hybrid logical time of the broker
/// at which it happened, and a number of the life of that broker: no two writes have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Milliseconds since the Unix epoch, shifted left by [`Self::COUNTER_BITS`], and a count of what happened in the same one.
    pub time: u64,
    /// Random bits of the life of the broker at which it was: one that has lost what it wrote last does not write under the same stamp again.
    pub writer: u64,
}

impl Stamp {
    /// Bits of [`Self::time`] that count within a millisecond.
    pub const COUNTER_BITS: u32 = 16;

    /// The milliseconds in it.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.time >> Self::COUNTER_BITS
    }
}

/// A root's claim (802.1D-2004 9.2.5, RootIdentifier, with an epoch before it): the tree id of `ARCHITECTURE.md`,
/// compared field by field. The higher epoch wins; within an epoch the better root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TreeId {
    /// Opened by a root; only ever grows.
    pub epoch: u64,
    /// The root's qualities.
    pub root: RootClaim,
}

/// What makes one broker a better root than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RootClaim {
    /// Configured; lower is better, as in 802.1D-2004 17.13.7 (Bridge Identifier Priority).
    pub priority: u16,
    /// What the broker can carry, as a power of two; higher is better.
    pub capacity: u8,
    /// Lower is better.
    pub id: BrokerId,
    /// The root's life: the newer one is better.
    pub incarnation: Incarnation,
}

impl RootClaim {
    fn key(&self) -> impl Ord {
        use std::cmp::Reverse;
        (Reverse(self.priority), self.capacity, Reverse(self.id), self.incarnation)
    }
}

/// Greater is better.
impl Ord for RootClaim {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for RootClaim {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Greater is newer or better.
impl Ord for TreeId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.epoch, &self.root).cmp(&(other.epoch, &other.root))
    }
}

impl PartialOrd for TreeId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_ids_do_not_shift_between_the_names() {
        assert_ne!(BrokerId::derive("ab", "c"), BrokerId::derive("a", "bc"));
        assert_eq!(BrokerId::derive("m", "a").to_string().parse(), Ok(BrokerId::derive("m", "a")));
    }

    #[test]
    fn better_roots_are_greater() {
        let base = RootClaim { priority: 32_768, capacity: 3, id: BrokerId(5), incarnation: Incarnation(1) };
        for better in [
            RootClaim { priority: 4_096, capacity: 0, id: BrokerId(9), ..base },
            RootClaim { capacity: 4, id: BrokerId(9), ..base },
            RootClaim { id: BrokerId(4), ..base },
            RootClaim { incarnation: Incarnation(2), ..base },
        ] {
            assert!(better > base, "{better:?}");
        }
        let old_best = TreeId { epoch: 1, root: RootClaim { priority: 0, ..base } };
        assert!(TreeId { epoch: 2, root: base } > old_best);
    }
}

//! Broker records: what each broker says of itself and of its links, flooded over control streams, kept by everybody.
//!
//! Only its broker writes a record. Of two with the same broker the one with the higher (incarnation, sequence) holds, so that the order
//! in which they arrive does not matter. A record that is not renewed expires. On the wire it is JSON: fields that a newer version adds
//! are skipped by an older one, and passed on as they came; a record of which an older version understands no more than the head
//! ([`RecordHead`], the same in all versions) is dropped by it, and is nobody's fault. Whoever merges a record has checked its broker's signature; here it is only
//! kept, so that the record is passed on with it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{BrokerId, Incarnation, LogId};
use crate::limits;

/// A broker writes a record a second on the long run.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// So far ahead of that may it be, with room for lives that follow one another quickly. Who writes more is not followed, lest one broker
/// make all others pass on what it says without end.
const RECORD_AHEAD_MAX: Duration = Duration::from_secs(30);

/// What one broker says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BrokerRecord {
    /// Whose record this is.
    pub id: BrokerId,
    /// In which life it was written.
    pub incarnation: Incarnation,
    /// Counts the records of one incarnation.
    pub sequence: u64,
    /// The broker's name.
    pub name: String,
    /// Where it can be dialled, as `host:port`; empty: where peers see it.
    pub addresses: Vec<String>,
    /// Version of the program.
    pub version: String,
    /// Claim to the root, lower is better (802.1D-2004 17.13.7).
    pub priority: u16,
    /// Claim to the root among equal priorities, as a power of two.
    pub capacity: u8,
    /// The root of its tree.
    pub root: BrokerId,
    /// The epoch of its tree; 0: of a version that does not tell.
    #[serde(default)]
    pub epoch: u64,
    /// How often its tree was another since it started.
    pub changes: u64,
    /// The last time that it was.
    pub last_change: LastChange,
    /// Its links, up and lately lost.
    pub links: Vec<LinkRecord>,
    /// How many links it keeps at once, if it chooses its neighbours by itself (`neighbours`); 0: it dials only whom it was told to.
    #[serde(default)]
    pub links_max: u16,
    /// The log that its messages of QoS 0 are numbered in: this life's own; none: of a version that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogId>,
}

/// Whose record one is and which: what every version reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct RecordHead {
    /// Whose record it is.
    pub id: BrokerId,
    /// In which life it was written.
    pub incarnation: Incarnation,
    /// Counts the records of one incarnation.
    pub sequence: u64,
}

impl RecordHead {
    /// Reads it off a record's wire form; keeps nothing else of that, however long it is.
    ///
    /// # Errors
    /// What is a record in no version.
    pub fn read(wire: &[u8]) -> Result<Self, RecordError> {
        Ok(serde_json::from_slice(wire)?)
    }

    fn version_key(&self) -> (Incarnation, u64) {
        (self.incarnation, self.sequence)
    }
}

/// The last change of a broker's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastChange {
    /// Milliseconds since the Unix epoch, by the clock of the broker that tells it.
    pub at: u64,
    /// Why, in words.
    pub cause: String,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The other end.
    pub peer: BrokerId,
    /// Its name.
    pub name: String,
    /// What the link is to the tree.
    pub role: LinkRole,
    /// Whether data flows.
    pub state: LinkState,
    /// What a way over it costs.
    pub cost: u32,
    /// Round trip, microseconds.
    pub rtt_us: u64,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Where this end sees the other: a broker dials from the address at which it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
}

/// What a link is to the tree at one end (802.1D-2004 17.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkRole {
    /// Leads to the root.
    Root,
    /// Leads away from it.
    Designated,
    /// Down.
    Disabled,
    /// Another way, not in use; or what only a newer version knows.
    #[serde(other)]
    Alternate,
}

impl LinkRole {
    /// The role as a word, the same as in the topology document.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Designated => "designated",
            Self::Alternate => "alternate",
            Self::Disabled => "disabled",
        }
    }
}

/// Whether a link carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Messages flow.
    Forwarding,
    /// Lost.
    Down,
    /// Up and held in reserve; or what only a newer version knows.
    #[serde(other)]
    Blocked,
}

impl LinkState {
    /// The state as a word, the same as in the topology document.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forwarding => "forwarding",
            Self::Blocked => "blocked",
            Self::Down => "down",
        }
    }
}

/// Why a record is refused.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, or not a record.
    #[error("broker record: {0}")]
    Json(#[from] serde_json::Error),
    /// Longer than any record, bytes.
    #[error("broker record of {0} bytes")]
    TooLong(usize),
    /// More than a broker can have.
    #[error("broker record of {id} with {what}")]
    Bounds {
        /// Whose.
        id: BrokerId,
        /// What is too large.
        what: &'static str,
    },
}

impl BrokerRecord {
    /// The wire form.
    ///
    /// # Errors
    /// None that a record of ours can cause; the serializer's are passed on.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// What is not a record, or is larger than one can be.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > limits::RECORD_BYTES_MAX {
            return Err(RecordError::TooLong(bytes.len()));
        }
        let record: Self = serde_json::from_slice(bytes)?;
        let long = |text: &String| text.len() > limits::RECORD_TEXT_BYTES_MAX;
        let what = if record.links.len() > limits::RECORD_LINKS_MAX {
            "too many links"
        } else if record.addresses.len() > limits::RECORD_ADDRESSES_MAX {
            "too many addresses"
        } else if [&record.name, &record.version, &record.last_change.cause]
            .into_iter()
            .chain(&record.addresses)
            .chain(record.links.iter().map(|link| &link.name))
            .any(long)
        {
            "too long a text"
        } else if record.links.iter().any(|link| !(0.0..=1.0).contains(&link.loss)) {
            "a loss that is no share"
        } else {
            return Ok(record);
        };
        Err(RecordError::Bounds { id: record.id, what })
    }

    /// Whose it is and which.
    #[must_use]
    pub fn head(&self) -> RecordHead {
        RecordHead { id: self.id, incarnation: self.incarnation, sequence: self.sequence }
    }
}

/// A signature by a broker, and its certificate: opaque here (`mesh::proof`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The certificate and those between it and the authority, as they travel.
    pub chain: Bytes,
    /// A signature scheme of TLS (RFC 8446 section 4.2.3).
    pub scheme: u16,
    /// The signature.
    pub bytes: Bytes,
}

/// A broker's word, its record or a delta of its register, as it came, to be passed on so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRecord {
    /// The word.
    pub wire: Bytes,
    /// By the broker whose word it is.
    pub signature: Signature,
}

impl SignedRecord {
    /// What it takes, with its certificate.
    fn bytes(&self) -> usize {
        self.wire.len() + self.signature.chain.len() + self.signature.bytes.len()
    }
}

/// What a record that arrived was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// News: to be passed on.
    New,
    /// Known already, or older than what is known.
    Known,
    /// Of this broker: its own word come back, another life of it, or another process with its name.
    OfOurselves,
    /// There is no room for it.
    Full,
    /// Its broker writes more than it may: not kept, not passed on.
    TooOften,
}

/// The records of all brokers but our own.
#[derive(Debug)]
pub struct Records {
    own: BrokerId,
    expire_after: Duration,
    records: BTreeMap<BrokerId, Held>,
    /// Of all wire forms.
    bytes: usize,
}

#[derive(Debug)]
struct Held {
    record: BrokerRecord,
    signed: SignedRecord,
    renewed: Instant,
    /// When the next would come if its broker had always kept to [`RECORD_INTERVAL`].
    in_step_at: Instant,
}

impl Records {
    /// No records yet; `own` is whose record is never taken from others.
    #[must_use]
    pub fn new(own: BrokerId, expire_after: Duration) -> Self {
        Self { own, expire_after, records: BTreeMap::new(), bytes: 0 }
    }

    /// What [`merge`](Self::merge) would say of the record: what is no news need not be checked.
    #[must_use]
    pub fn judge(&self, record: RecordHead, signed: &SignedRecord, now: Instant) -> Merge {
        if record.id == self.own {
            return Merge::OfOurselves;
        }
        let present = self.records.get(&record.id);
        if present.is_some_and(|held| held.record.head().version_key() >= record.version_key()) {
            return Merge::Known;
        }
        if present.is_some_and(|held| held.in_step_at.saturating_duration_since(now) > RECORD_AHEAD_MAX) {
            return Merge::TooOften;
        }
        let bytes = self.bytes - present.map_or(0, |held| held.signed.bytes()) + signed.bytes();
        if bytes > limits::RECORDS_BYTES_MAX || (present.is_none() && self.records.len() >= limits::BROKERS_MAX) {
            return Merge::Full;
        }
        Merge::New
    }

    /// Takes a record in, if it is news. Its signature has been checked; `signed` is the form in which it came.
    pub fn merge(&mut self, record: BrokerRecord, signed: SignedRecord, now: Instant) -> Merge {
        let merge = self.judge(record.head(), &signed, now);
        if merge == Merge::New {
            let present = self.records.get(&record.id);
            self.bytes = self.bytes - present.map_or(0, |held| held.signed.bytes()) + signed.bytes();
            let in_step_at = present.map_or(now, |held| held.in_step_at.max(now)) + RECORD_INTERVAL;
            self.records.insert(record.id, Held { record, signed, renewed: now, in_step_at });
        }
        merge
    }

    /// Forgets what was not renewed in time. Says whether anything went.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.records.len();
        self.records.retain(|_, held| now.saturating_duration_since(held.renewed) < self.expire_after);
        self.bytes = self.records.values().map(|held| held.signed.bytes()).sum();
        self.records.len() < before
    }

    /// All records as they came, to be passed on.
    pub fn signed(&self) -> impl Iterator<Item = &SignedRecord> {
        self.records.values().map(|held| &held.signed)
    }

    /// The record of `broker`, and as it came.
    #[must_use]
    pub fn of(&self, broker: BrokerId) -> Option<(&BrokerRecord, &SignedRecord)> {
        self.records.get(&broker).map(|held| (&held.record, &held.signed))
    }

    /// All records, by broker id.
    pub fn iter(&self) -> impl Iterator<Item = &BrokerRecord> {
        self.records.values().map(|held| &held.record)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn record(id: u64, sequence: u64) -> BrokerRecord {
        BrokerRecord {
            id: BrokerId(id),
            incarnation: Incarnation(1),
            sequence,
            name: format!("b{id}"),
            addresses: vec!["b.example:7883".to_owned()],
            version: "0.1.0".to_owned(),
            priority: 32_768,
            capacity: 3,
            root: BrokerId(1),
            epoch: 2,
            changes: 1,
            last_change: LastChange { at: 5, cause: "started".to_owned() },
            links: Vec::new(),
            links_max: 8,
            log: Some(LogId(u64::MAX)),
        }
    }

    fn merge(records: &mut Records, record: BrokerRecord, now: Instant) -> Merge {
        let signed = signed(record.encode().unwrap().into());
        records.merge(record, signed, now)
    }

    fn signed(wire: Bytes) -> SignedRecord {
        let signature = Signature { chain: Bytes::from_static(&[0; 600]), scheme: 0x0403, bytes: Bytes::from_static(&[0; 70]) };
        SignedRecord { wire, signature }
    }

    #[expect(clippy::disallowed_methods, reason = "any moment will do: the tests count from it")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn the_newest_holds_in_whatever_order() {
        let now = now();
        let mut newer_life = record(2, 1);
        newer_life.incarnation = Incarnation(2);
        let writes = [record(2, 1), record(2, 7), newer_life.clone()];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut records = Records::new(BrokerId(1), Duration::from_secs(60));
            for which in order {
                merge(&mut records, writes[which].clone(), now);
            }
            assert_eq!(records.iter().collect::<Vec<_>>(), [&newer_life]);
            let wires: Vec<_> = records.signed().map(|signed| &signed.wire).collect();
            assert_eq!(wires, [&newer_life.encode().unwrap()]);
            assert_eq!(merge(&mut records, newer_life.clone(), now), Merge::Known);
        }
    }

    #[test]
    fn a_record_of_ourselves_is_told_and_not_kept() {
        let mut records = Records::new(BrokerId(1), Duration::from_secs(60));
        assert_eq!(merge(&mut records, record(1, 1), now()), Merge::OfOurselves);
        assert_eq!(records.iter().count(), 0);
    }

    #[test]
    fn what_is_not_renewed_expires() {
        let start = now();
        let mut records = Records::new(BrokerId(1), Duration::from_secs(60));
        merge(&mut records, record(2, 1), start);
        merge(&mut records, record(3, 1), start);
        merge(&mut records, record(3, 2), start + Duration::from_secs(59));
        assert!(!records.expire(start + Duration::from_secs(59)));
        assert!(records.expire(start + Duration::from_secs(60)));
        assert_eq!(records.iter().map(|r| r.id.0).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn who_writes_without_end_is_not_followed() {
        let start = now();
        let mut records = Records::new(BrokerId(1), Duration::from_secs(60));
        let mut news = |sequences: std::ops::Range<u64>, at| {
            sequences
                .filter(|sequence| merge(&mut records, record(2, *sequence), start + Duration::from_secs(at)) == Merge::New)
                .count()
        };
        assert_eq!(news(0..1_000, 0), 31);
        assert_eq!(news(1_000..2_000, 10), 10);
        assert_eq!(news(2_000..2_030, 60), 30, "who was quiet is heard again");
    }

    #[test]
    fn all_records_together_are_bounded() {
        let start = now();
        let mut records = Records::new(BrokerId(1), Duration::from_secs(60));
        let wire = Bytes::from(vec![b' '; limits::RECORD_BYTES_MAX]);
        let room = (limits::RECORDS_BYTES_MAX / signed(wire.clone()).bytes()) as u64;
        let mut merge = |id, sequence, at| records.merge(record(id, sequence), signed(wire.clone()), at);
        let taken = (2..1_000).take_while(|id| merge(*id, 1, start) == Merge::New).count() as u64;
        assert_eq!(taken, room);
        assert_eq!(merge(2, 2, start), Merge::New, "in the place of its former one");
        assert_eq!(merge(999, 1, start), Merge::Full);
        assert!(records.expire(start + Duration::from_secs(60)));
        assert_eq!(records.merge(record(999, 1), signed(wire.clone()), start), Merge::New);
        let long = [&record(2, 1).encode().unwrap()[..], &wire[..]].concat();
        assert!(matches!(BrokerRecord::decode(&long), Err(RecordError::TooLong(_))));
    }

    #[test]
    fn the_wire_form_is_bounded_and_skips_what_it_does_not_know() {
        let good = record(2, 1);
        let text = String::from_utf8(good.encode().unwrap()).unwrap();
        let newer = text.replacen('{', "{\"of_a_newer_version\":[1],", 1);
        assert_eq!(BrokerRecord::decode(newer.as_bytes()).unwrap(), good);
        assert!(BrokerRecord::decode(b"{}").is_err() && RecordHead::read(b"{}").is_err());

        let link = LinkRecord {
            peer: BrokerId(9),
            name: String::new(),
            role: LinkRole::Root,
            state: LinkState::Forwarding,
            cost: 1,
            rtt_us: 1,
            loss: 0.0,
            address: Some("192.0.2.1:7883".parse().unwrap()),
        };
        let mut crowded = good.clone();
        crowded.links = vec![link.clone(); limits::RECORD_LINKS_MAX + 1];
        let mut wordy = good.clone();
        wordy.links = vec![LinkRecord { name: "x".repeat(limits::RECORD_TEXT_BYTES_MAX + 1), ..link.clone() }];
        let mut lossy = good.clone();
        lossy.links = vec![LinkRecord { loss: 1.5, ..link.clone() }];
        let mut everywhere = good.clone();
        everywhere.addresses = vec![String::new(); limits::RECORD_ADDRESSES_MAX + 1];
        for bad in [crowded, wordy, lossy, everywhere] {
            let wire = bad.encode().unwrap();
            assert!(matches!(BrokerRecord::decode(&wire), Err(RecordError::Bounds { .. })));
            assert_eq!(RecordHead::read(&wire).unwrap(), bad.head());
        }
        let known = BrokerRecord { links: vec![link], ..record(2, 1) };
        let text = String::from_utf8(known.encode().unwrap()).unwrap();
        let newer = text.replacen("\"forwarding\"", "\"learning\"", 1).replacen("\"root\",\"state", "\"backup\",\"state", 1);
        let read = BrokerRecord::decode(newer.as_bytes()).unwrap();
        assert_eq!((read.links[0].role, read.links[0].state), (LinkRole::Alternate, LinkState::Blocked), "{newer}");
        let unread = text.replacen("\"version\":", "\"version\":7,\"former\":", 1);
        assert!(BrokerRecord::decode(unread.as_bytes()).is_err());
        assert_eq!(RecordHead::read(unread.as_bytes()).unwrap(), known.head());
    }
}

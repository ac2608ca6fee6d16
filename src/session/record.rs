//! How durable sessions and retained messages are written down: one record for each thing that is known, or known to be gone.
//!
//! A record is a kind, a length and that many bytes; a kind that is not known is skipped by its length. Numbers are unsigned LEB128 in their shortest
//! form, texts and bytes have their length before them. Every length is held against the bytes that are there before anything is made of it. Decoding never
//! panics, and what it gives encodes to the same bytes again (fuzz target `record`).
//!
//! Nothing here knows files, or what records mean to each other: that is the store's. Times are milliseconds since the Unix epoch.

use std::time::Duration;

use super::change::{Order, Stage};
use super::subscriber::{SessionExpiry, SubscriptionOptions};
use crate::codec::{PacketId, QoS};
use crate::ids::Stamp;

/// Version of all this; a file says it once.
pub const RECORD_VERSION: u8 = 1;

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The end came too soon.
    #[error("{wanted} bytes are wanted and {left} are left")]
    Truncated {
        /// What a field takes.
        wanted: u64,
        /// What there is.
        left: usize,
    },
    /// More bytes than the fields take.
    #[error("{0} bytes too many")]
    TooLong(usize),
    /// A number is longer than it need be, or larger than there are.
    #[error("a number in no proper form")]
    Number,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8 from byte {0} on")]
    Utf8(usize),
    /// A field has a value that it cannot have.
    #[error("{0} is no value of its field")]
    Value(u64),
}

/// One record. Sessions are named by their numbers, messages by numbers of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Change`")]
pub enum Record<'a> {
    /// A session.
    Session { session: u64, client_id: &'a str, owner: &'a str, expiry: SessionExpiry, left_at_ms: Option<u64>, claim: u64 },
    /// It is over, with all that it held.
    Ended { session: u64 },
    /// One of its subscriptions.
    Subscribed { session: u64, filter: &'a str, options: SubscriptionOptions },
    /// That is gone.
    Unsubscribed { session: u64, filter: &'a str },
    /// An application message that others refer to.
    Message { message: u64, content: Content<'a>, expires_at_ms: Option<u64> },
    /// A message that is kept for a session's client. One that is released needs no message any more: it is 0.
    Entry { session: u64, order: Order, message: u64, qos: QoS, retain: bool, stage: Stage, subscription_ids: Vec<u32> },
    /// That is gone.
    Removed { session: u64, order: Order },
    /// A QoS 2 message of the client's that is not released.
    Received { session: u64, id: PacketId },
    /// It is.
    Completed { session: u64, id: PacketId },
    /// The session's will.
    Will { session: u64, content: Content<'a>, delay: Duration, message_expiry: Option<Duration> },
    /// That is gone.
    WillGone { session: u64 },
    /// A topic's retained message.
    Retained { topic: &'a str, message: u64 },
    /// That is gone, and that it was deleted need not be remembered.
    Forgotten { topic: &'a str },
    /// A topic's retained message in a mesh.
    Stamped { topic: &'a str, message: u64, stamp: Stamp },
    /// A topic's retained message was deleted.
    Deleted { topic: &'a str, stamp: Stamp },
    /// The broker's own log in one lane.
    Log { lane: u8, log: u64, born_ms: Option<u64>, reserved: u64, floor: u64 },
    /// That is gone, with all its blocks before this.
    LogGone { lane: u8 },
    /// A block of it.
    Logged { lane: u8, first: u64, last: u64, published_ms: u64, body: &'a [u8] },
    /// How far another broker's log is known.
    Cover { lane: u8, origin: u64, log: u64, cover: u64 },
    /// That is gone.
    CoverGone { lane: u8, origin: u64, log: u64 },
    /// Another broker is a member of the mesh.
    Member { broker: u64 },
    /// It is none any more.
    MemberGone { broker: u64 },
}

/// What a message consists of, its expiry apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// What the application sent.
    pub payload: &'a [u8],
    /// Forwarded properties, encoded.
    pub properties: &'a [u8],
    /// As published.
    pub qos: QoS,
    /// As published.
    pub retain: bool,
}

mod kind {
    pub(super) const SESSION: u8 = 1;
    pub(super) const ENDED: u8 = 2;
    pub(super) const SUBSCRIBED: u8 = 3;
    pub(super) const UNSUBSCRIBED: u8 = 4;
    pub(super) const MESSAGE: u8 = 5;
    pub(super) const ENTRY: u8 = 6;
    pub(super) const REMOVED: u8 = 7;
    pub(super) const RECEIVED: u8 = 8;
    pub(super) const COMPLETED: u8 = 9;
    pub(super) const WILL: u8 = 10;
    pub(super) const WILL_GONE: u8 = 11;
    pub(super) const RETAINED: u8 = 12;
    pub(super) const FORGOTTEN: u8 = 13;
    pub(super) const LOG: u8 = 14;
    pub(super) const LOG_GONE: u8 = 15;
    pub(super) const LOGGED: u8 = 16;
    pub(super) const COVER: u8 = 17;
    pub(super) const COVER_GONE: u8 = 18;
    pub(super) const STAMPED: u8 = 20;
    pub(super) const DELETED: u8 = 21;
    pub(super) const MEMBER: u8 = 22;
    pub(super) const MEMBER_GONE: u8 = 23;
}

/// Bits of a flag byte, above the two of QoS.
const RETAIN: u8 = 1 << 2;
const NO_LOCAL: u8 = 1 << 2;
const RETAIN_AS_PUBLISHED: u8 = 1 << 3;
const STAGE_SHIFT: u8 = 3;

impl Record<'_> {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind());
        // Most records are shorter than 128 bytes: one byte of length, put right afterwards where it is not.
        let at = out.len();
        out.push(0);
        self.encode_fields(out);
        let length = out.len() - at - 1;
        match u8::try_from(length) {
            Ok(length) if length < 0x80 => {
                if let Some(place) = out.get_mut(at) {
                    *place = length;
                }
            }
            _ => {
                let mut bytes = Vec::with_capacity(5);
                put_number(&mut bytes, length as u64);
                out.splice(at..=at, bytes);
            }
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Session { .. } => kind::SESSION,
            Self::Ended { .. } => kind::ENDED,
            Self::Subscribed { .. } => kind::SUBSCRIBED,
            Self::Unsubscribed { .. } => kind::UNSUBSCRIBED,
            Self::Message { .. } => kind::MESSAGE,
            Self::Entry { .. } => kind::ENTRY,
            Self::Removed { .. } => kind::REMOVED,
            Self::Received { .. } => kind::RECEIVED,
            Self::Completed { .. } => kind::COMPLETED,
            Self::Will { .. } => kind::WILL,
            Self::WillGone { .. } => kind::WILL_GONE,
            Self::Retained { .. } => kind::RETAINED,
            Self::Forgotten { .. } => kind::FORGOTTEN,
            Self::Log { .. } => kind::LOG,
            Self::LogGone { .. } => kind::LOG_GONE,
            Self::Logged { .. } => kind::LOGGED,
            Self::Cover { .. } => kind::COVER,
            Self::CoverGone { .. } => kind::COVER_GONE,
            Self::Stamped { .. } => kind::STAMPED,
            Self::Deleted { .. } => kind::DELETED,
            Self::Member { .. } => kind::MEMBER,
            Self::MemberGone { .. } => kind::MEMBER_GONE,
        }
    }

    fn encode_fields(&self, out: &mut Vec<u8>) {
        match self {
            Self::Session { session, client_id, owner, expiry, left_at_ms, claim } => {
                put_number(out, *session);
                put_bytes(out, client_id.as_bytes());
                put_bytes(out, owner.as_bytes());
                // 0 is for ever, else a second more than it is: a session that ends with its connection is not written down.
                put_number(
                    out,
                    match expiry {
                        SessionExpiry::Never => 0,
                        SessionExpiry::WithConnection => 1,
                        SessionExpiry::After(rest) => rest.as_secs().saturating_add(1),
                    },
                );
                put_optional(out, *left_at_ms);
                // Not in what earlier versions wrote, nor without a mesh.
                if *claim > 0 {
                    put_number(out, *claim);
                }
            }
            Self::Ended { session } | Self::WillGone { session } => put_number(out, *session),
            Self::Subscribed { session, filter, options } => {
                put_number(out, *session);
                let flags = flag(options.no_local, NO_LOCAL) | flag(options.retain_as_published, RETAIN_AS_PUBLISHED);
                out.push(options.qos as u8 | flags);
                put_number(out, options.subscription_id.map_or(0, u64::from));
                put_bytes(out, filter.as_bytes());
            }
            Self::Unsubscribed { session, filter } => {
                put_number(out, *session);
                put_bytes(out, filter.as_bytes());
            }
            Self::Message { message, content, expires_at_ms } => {
                put_number(out, *message);
                put_optional(out, *expires_at_ms);
                content.encode(out);
            }
            Self::Entry { session, order, message, qos, retain, stage, subscription_ids } => {
                put_number(out, *session);
                put_number(out, *order);
                put_number(out, *message);
                let (stage, serial) = match stage {
                    Stage::Queued => (0, None),
                    Stage::Published(serial) => (1, Some(*serial)),
                    Stage::Released(serial) => (2, Some(*serial)),
                };
                out.push(*qos as u8 | flag(*retain, RETAIN) | stage << STAGE_SHIFT);
                if let Some(serial) = serial {
                    put_number(out, serial);
                }
                subscription_ids.iter().for_each(|id| put_number(out, u64::from(*id)));
            }
            Self::Removed { session, order } => {
                put_number(out, *session);
                put_number(out, *order);
            }
            Self::Received { session, id } | Self::Completed { session, id } => {
                put_number(out, *session);
                put_number(out, u64::from(id.get()));
            }
            Self::Will { session, content, delay, message_expiry } => {
                put_number(out, *session);
                put_number(out, delay.as_secs());
                put_optional(out, message_expiry.map(|rest| rest.as_secs()));
                content.encode(out);
            }
            Self::Retained { topic, message } => {
                put_number(out, *message);
                put_bytes(out, topic.as_bytes());
            }
            Self::Forgotten { topic } => put_bytes(out, topic.as_bytes()),
            Self::Log { lane, log, born_ms, reserved, floor } => {
                out.push(*lane);
                put_number(out, *log);
                put_optional(out, *born_ms);
                put_number(out, *reserved);
                put_number(out, *floor);
            }
            Self::LogGone { lane } => out.push(*lane),
            Self::Logged { lane, first, last, published_ms, body } => {
                out.push(*lane);
                put_number(out, *first);
                put_number(out, *last);
                put_number(out, *published_ms);
                put_bytes(out, body);
            }
            Self::Cover { lane, origin, log, cover } => {
                out.push(*lane);
                put_number(out, *origin);
                put_number(out, *log);
                put_number(out, *cover);
            }
            Self::CoverGone { lane, origin, log } => {
                out.push(*lane);
                put_number(out, *origin);
                put_number(out, *log);
            }
            Self::Member { broker } | Self::MemberGone { broker } => put_number(out, *broker),
            Self::Stamped { topic, message, stamp } => {
                put_number(out, *message);
                put_stamp(out, *stamp);
                put_bytes(out, topic.as_bytes());
            }
            Self::Deleted { topic, stamp } => {
                put_stamp(out, *stamp);
                put_bytes(out, topic.as_bytes());
            }
        }
    }
}

impl Content<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.qos as u8 | flag(self.retain, RETAIN));
        put_bytes(out, self.topic.as_bytes());
        put_bytes(out, self.properties);
        put_bytes(out, self.payload);
    }
}

fn flag(is_set: bool, bit: u8) -> u8 {
    if is_set { bit } else { 0 }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = u8::try_from(number & 0x7F).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// 0 is none, else one more than it is.
fn put_optional(out: &mut Vec<u8>, number: Option<u64>) {
    put_number(out, number.map_or(0, |number| number.saturating_add(1)));
}

fn put_stamp(out: &mut Vec<u8>, stamp: Stamp) {
    put_number(out, stamp.time);
    put_number(out, stamp.writer);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes the first record off `input`. `Ok(None)` is a record of a kind that this version does not know; it is taken off as well.
///
/// # Errors
/// When the bytes are no record. Where its length is good, it is taken off all the same.
pub fn decode<'a>(input: &mut &'a [u8]) -> Result<Option<Record<'a>>, RecordError> {
    let mut reader = Reader { rest: input };
    let kind = reader.byte()?;
    let mut fields = Reader { rest: reader.bytes()? };
    *input = reader.rest;
    let Some(record) = fields.record(kind)? else { return Ok(None) };
    if fields.rest.is_empty() { Ok(Some(record)) } else { Err(RecordError::TooLong(fields.rest.len())) }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn record(&mut self, kind: u8) -> Result<Option<Record<'a>>, RecordError> {
        Ok(Some(match kind {
            kind::SESSION => Record::Session {
                session: self.number()?,
                client_id: self.text()?,
                owner: self.text()?,
                expiry: match self.number()? {
                    0 => SessionExpiry::Never,
                    1 => SessionExpiry::WithConnection,
                    more => SessionExpiry::After(seconds(more - 1)?),
                },
                left_at_ms: self.optional()?,
                claim: match self.rest.is_empty() {
                    true => 0,
                    false => Some(self.number()?).filter(|claim| *claim > 0).ok_or(RecordError::Value(0))?,
                },
            },
            kind::ENDED => Record::Ended { session: self.number()? },
            kind::SUBSCRIBED => {
                let session = self.number()?;
                let flags = self.byte()?;
                let subscription_id = match self.number()? {
                    0 => None,
                    id => Some(u32::try_from(id).map_err(|_| RecordError::Value(id))?),
                };
                let options = SubscriptionOptions {
                    qos: qos(flags, NO_LOCAL | RETAIN_AS_PUBLISHED)?,
                    no_local: flags & NO_LOCAL != 0,
                    retain_as_published: flags & RETAIN_AS_PUBLISHED != 0,
                    subscription_id,
                };
                Record::Subscribed { session, filter: self.text()?, options }
            }
            kind::UNSUBSCRIBED => Record::Unsubscribed { session: self.number()?, filter: self.text()? },
            kind::MESSAGE => {
                let (message, expires_at_ms) = (self.number()?, self.optional()?);
                Record::Message { message, content: self.content()?, expires_at_ms }
            }
            kind::ENTRY => self.entry()?,
            kind::REMOVED => Record::Removed { session: self.number()?, order: self.number()? },
            kind::RECEIVED => Record::Received { session: self.number()?, id: self.packet_id()? },
            kind::COMPLETED => Record::Completed { session: self.number()?, id: self.packet_id()? },
            kind::WILL => {
                let (session, delay) = (self.number()?, seconds(self.number()?)?);
                let message_expiry = self.optional()?.map(seconds).transpose()?;
                Record::Will { session, content: self.content()?, delay, message_expiry }
            }
            kind::WILL_GONE => Record::WillGone { session: self.number()? },
            kind::RETAINED => {
                let message = self.number()?;
                Record::Retained { topic: self.text()?, message }
            }
            kind::FORGOTTEN => Record::Forgotten { topic: self.text()? },
            kind::LOG => Record::Log {
                lane: self.byte()?,
                log: self.number()?,
                born_ms: self.optional()?,
                reserved: self.count()?,
                floor: self.count()?,
            },
            kind::LOG_GONE => Record::LogGone { lane: self.byte()? },
            kind::LOGGED => self.logged()?,
            kind::COVER => Record::Cover { lane: self.byte()?, origin: self.number()?, log: self.number()?, cover: self.count()? },
            kind::COVER_GONE => Record::CoverGone { lane: self.byte()?, origin: self.number()?, log: self.number()? },
            kind::MEMBER => Record::Member { broker: self.number()? },
            kind::MEMBER_GONE => Record::MemberGone { broker: self.number()? },
            kind::STAMPED => {
                let (message, stamp) = (self.number()?, self.stamp()?);
                Record::Stamped { topic: self.text()?, message, stamp }
            }
            kind::DELETED => {
                let stamp = self.stamp()?;
                Record::Deleted { topic: self.text()?, stamp }
            }
            _ => return Ok(None),
        }))
    }

    fn stamp(&mut self) -> Result<Stamp, RecordError> {
        Ok(Stamp { time: self.number()?, writer: self.number()? })
    }

    fn entry(&mut self) -> Result<Record<'a>, RecordError> {
        let (session, order, message) = (self.number()?, self.count()?, self.number()?);
        let flags = self.byte()?;
        let stage = match flags >> STAGE_SHIFT {
            0 => Stage::Queued,
            1 => Stage::Published(self.count()?),
            2 => Stage::Released(self.count()?),
            other => return Err(RecordError::Value(other.into())),
        };
        let mut subscription_ids = Vec::new();
        while !self.rest.is_empty() {
            let id = self.number()?;
            subscription_ids.push(u32::try_from(id).map_err(|_| RecordError::Value(id))?);
        }
        let qos = qos(flags, RETAIN | 3 << STAGE_SHIFT)?;
        Ok(Record::Entry { session, order, message, qos, retain: flags & RETAIN != 0, stage, subscription_ids })
    }

    fn logged(&mut self) -> Result<Record<'a>, RecordError> {
        let (lane, first, last) = (self.byte()?, self.count()?, self.count()?);
        if last < first {
            return Err(RecordError::Value(last));
        }
        Ok(Record::Logged { lane, first, last, published_ms: self.number()?, body: self.bytes()? })
    }

    fn content(&mut self) -> Result<Content<'a>, RecordError> {
        let flags = self.byte()?;
        let (topic, properties, payload) = (self.text()?, self.bytes()?, self.bytes()?);
        Ok(Content { topic, payload, properties, qos: qos(flags, RETAIN)?, retain: flags & RETAIN != 0 })
    }

    fn byte(&mut self) -> Result<u8, RecordError> {
        let (byte, rest) = self.rest.split_first().ok_or(RecordError::Truncated { wanted: 1, left: 0 })?;
        self.rest = rest;
        Ok(*byte)
    }

    fn number(&mut self) -> Result<u64, RecordError> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return Err(RecordError::Number);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RecordError::Number)
    }

    /// Something that is counted on from here: no broker comes near the end of its numbers.
    fn count(&mut self) -> Result<u64, RecordError> {
        let number = self.number()?;
        if number > u64::MAX / 2 { Err(RecordError::Value(number)) } else { Ok(number) }
    }

    fn optional(&mut self) -> Result<Option<u64>, RecordError> {
        Ok(self.number()?.checked_sub(1))
    }

    fn packet_id(&mut self) -> Result<PacketId, RecordError> {
        let number = self.number()?;
        u16::try_from(number).ok().and_then(PacketId::new).ok_or(RecordError::Value(number))
    }

    fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let wanted = self.number()?;
        let count = usize::try_from(wanted).unwrap_or(usize::MAX);
        let truncated = RecordError::Truncated { wanted, left: self.rest.len() };
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, RecordError> {
        std::str::from_utf8(self.bytes()?).map_err(|error| RecordError::Utf8(error.valid_up_to()))
    }
}

/// MQTT's intervals have four bytes.
fn seconds(number: u64) -> Result<Duration, RecordError> {
    u32::try_from(number).map(|number| Duration::from_secs(number.into())).map_err(|_| RecordError::Value(number))
}

/// The QoS in a flag byte that has no bits but these besides.
fn qos(flags: u8, others: u8) -> Result<QoS, RecordError> {
    let wrong = RecordError::Value(flags.into());
    if flags & !(others | 3) != 0 {
        return Err(wrong);
    }
    QoS::try_from(flags & 3).map_err(|_| wrong)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(&mut out);
        out
    }

    fn samples() -> Vec<Record<'static>> {
        let content = Content { topic: "a/b", payload: &[7; 300], properties: &[1, 2], qos: QoS::AtLeastOnce, retain: true };
        let options = SubscriptionOptions {
            qos: QoS::ExactlyOnce,
            no_local: true,
            retain_as_published: false,
            subscription_id: Some(268_435_455),
        };
        let id = PacketId::new(65_535).unwrap();
        let entry = |stage, subscription_ids| Record::Entry {
            session: 1,
            order: 1 << 40,
            message: 3,
            qos: QoS::ExactlyOnce,
            retain: true,
            stage,
            subscription_ids,
        };
        vec![
            Record::Session {
                session: u64::MAX,
                client_id: "ü",
                owner: "u0:bob",
                expiry: SessionExpiry::Never,
                left_at_ms: None,
                claim: 0,
            },
            Record::Session {
                session: 0,
                client_id: "",
                owner: "",
                expiry: SessionExpiry::After(Duration::from_secs(5)),
                left_at_ms: Some(1_800_000_000_000),
                claim: 0,
            },
            Record::Ended { session: 128 },
            Record::Subscribed { session: 5, filter: "$share/g/a/#", options },
            Record::Unsubscribed { session: 5, filter: "x" },
            Record::Message { message: 3, content, expires_at_ms: Some(0) },
            entry(Stage::Queued, vec![]),
            entry(Stage::Published(70_000), vec![1, u32::MAX]),
            entry(Stage::Released(0), vec![]),
            Record::Removed { session: 1, order: 0 },
            Record::Received { session: 1, id },
            Record::Completed { session: 1, id },
            Record::Will { session: 9, content, delay: Duration::from_secs(4_294_967_295), message_expiry: None },
            Record::WillGone { session: 9 },
            Record::Retained { topic: "t", message: 3 },
            Record::Forgotten { topic: "t" },
            Record::Log { lane: 7, log: u64::MAX, born_ms: Some(1_800_000_000_000), reserved: 1 << 50, floor: 0 },
            Record::Log { lane: 0, log: 0, born_ms: None, reserved: 1, floor: 1 << 60 },
            Record::LogGone { lane: 4 },
            Record::Logged { lane: 4, first: 256, last: 511, published_ms: 1_800_000_000_000, body: &[7; 200] },
            Record::Cover { lane: 4, origin: u64::MAX, log: 5, cover: 1 << 60 },
            Record::CoverGone { lane: 4, origin: 3, log: 2 },
            Record::Stamped { topic: "t", message: 3, stamp: Stamp { time: u64::MAX, writer: 1 } },
            Record::Deleted { topic: "t", stamp: Stamp { time: 1, writer: u64::MAX } },
            Record::Member { broker: u64::MAX },
            Record::MemberGone { broker: 0 },
        ]
    }

    #[test]
    fn every_record_reads_back_as_itself_and_no_part_of_it_is_one() {
        for record in samples() {
            let bytes = encoded(&record);
            let mut rest = &*bytes;
            assert_eq!(decode(&mut rest), Ok(Some(record.clone())));
            assert!(rest.is_empty());
            for length in 0..bytes.len() {
                assert!(decode(&mut &bytes[..length]).is_err(), "{length} bytes of {record:?}");
            }
        }
    }

    #[test]
    fn the_form_on_disk_does_not_change_by_accident() {
        let all: Vec<u8> = samples().iter().flat_map(encoded).collect();
        // Files that were written by a released version must be read by the next: a change here needs a new version.
        assert_eq!((all.len(), all.iter().fold(0_u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte))), (1_108, 564_680_250));
    }

    #[test]
    fn a_session_of_a_mesh_says_since_when_it_is_this_broker_s() {
        let head = |claim| {
            let expiry = SessionExpiry::Never;
            Record::Session { session: 1, client_id: "c", owner: "", expiry, left_at_ms: None, claim }
        };
        let (without, with) = (encoded(&head(0)), encoded(&head(5)));
        assert_eq!((without.len() + 1, decode(&mut &*with)), (with.len(), Ok(Some(head(5)))));
        assert_eq!(decode(&mut &*without), Ok(Some(head(0))), "as earlier versions wrote it");
        let mut none = with;
        *none.last_mut().unwrap() = 0;
        assert_eq!(decode(&mut &*none), Err(RecordError::Value(0)));
    }

    #[test]
    fn what_is_not_known_is_skipped_and_what_cannot_be_is_an_error() {
        let mut unknown = &[200, 2, 9, 9, kind::ENDED, 1, 5][..];
        assert_eq!(decode(&mut unknown), Ok(None));
        assert_eq!(decode(&mut unknown), Ok(Some(Record::Ended { session: 5 })));
        for (bytes, error) in [
            (&[][..], RecordError::Truncated { wanted: 1, left: 0 }),
            (&[kind::ENDED, 2, 5, 5], RecordError::TooLong(1)),
            (&[kind::ENDED, 2, 0x85, 0], RecordError::Number),
            (&[kind::ENDED, 10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], RecordError::Number),
            (&[kind::FORGOTTEN, 2, 1, 0xFF], RecordError::Utf8(0)),
            (&[kind::FORGOTTEN, 1, 5], RecordError::Truncated { wanted: 5, left: 0 }),
            (&[kind::RECEIVED, 2, 1, 0], RecordError::Value(0)),
            (&[kind::ENTRY, 4, 1, 1, 1, 3], RecordError::Value(3)),
            (&[kind::ENTRY, 4, 1, 1, 1, 0x18], RecordError::Value(3)),
            (&[kind::SUBSCRIBED, 4, 1, 0x10, 0, 0], RecordError::Value(0x10)),
            (&[kind::SESSION, 9, 1, 0, 0, 0x81, 0x80, 0x80, 0x80, 0x10, 0], RecordError::Value(1 << 32)),
            (&[kind::LOGGED, 5, 4, 3, 2, 0, 0], RecordError::Value(2)),
            (&[kind::WILL, 10, 1, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0, 0, 0], RecordError::Value(1 << 32)),
        ] {
            assert_eq!(decode(&mut &*bytes), Err(error), "{bytes:?}");
        }
        // The one behind a bad one is read.
        let mut rest = &[kind::FORGOTTEN, 2, 1, 0xFF, kind::ENDED, 1, 5][..];
        assert!(decode(&mut rest).is_err());
        assert_eq!(decode(&mut rest), Ok(Some(Record::Ended { session: 5 })));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_what_encodes_to_them(kind in 0_u8..26, bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut input = vec![kind, u8::try_from(bytes.len()).unwrap()];
            input.extend(&bytes);
            if let Ok(Some(record)) = decode(&mut &*input) {
                prop_assert_eq!(encoded(&record), input);
            }
        }
    }
}

//! What the broker of sessions and the one that has their replicas say to each other: bytes to words and back.
//!
//! The broker's *items* are one stream of numbered letters, in an order; what is too large for one letter is cut apart. The answers are letters by themselves.

use std::time::Duration;

use super::{left_to_number, number_to_left};
use crate::codec::{PacketId, QoS};
use crate::frame::{FrameError, Reader, put_block, put_varint};
use crate::ids::{BrokerId, LaneId, LogId, OriginLane};
use crate::replication::Covers;
use crate::router::handover::{put_covers, read_covers};
use crate::session::{Order, SessionExpiry, Stage};

/// The first byte of these letters; those of moves begin with smaller ones.
const FIRST: u8 = 64;
const ITEMS: u8 = FIRST;
const OVER: u8 = 65;
const ANSWER: u8 = 66;
const CUT: u8 = 67;
const WHOLE: u8 = 68;
const LOST: u8 = 69;
const UNKNOWN: u8 = 70;

const HEAD: u8 = 1;
const ROUND: u8 = 2;
const COPY: u8 = 3;
const COPIED: u8 = 4;
const GUARDED: u8 = 5;
const LANE: u8 = 6;
const PLACED: u8 = 7;
const PLACED_WHOLE: u8 = 8;
const STAGED: u8 = 9;
const REMOVED: u8 = 10;
const RECEIVED: u8 = 11;
const COMPLETED: u8 = 12;
const SESSION: u8 = 13;
const ENDED: u8 = 14;
const DEALT: u8 = 15;
const PART: u8 = 16;
const BEGIN: u8 = 17;
const COPY_PART: u8 = 18;
const LIFE: u8 = 19;
const WILL: u8 = 20;
const WILL_GONE: u8 = 21;

/// Whether a letter is one of these.
pub(in crate::router) fn is_replicas(body: &[u8]) -> bool {
    body.first().is_some_and(|kind| *kind >= FIRST)
}

/// A letter, of the stream with the given number.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Letter<'a> {
    // The broker's.
    /// Its letter of that number, which counts from 1. Of number 0: nothing is new, an answer is asked for.
    Items { number: u64, items: &'a [u8] },
    /// The stream is over, and all replicas of it.
    Over,
    // The other's.
    /// All letters up to the first number are known; up to the second the client may be sent what they say.
    Answer { known: u64, held: u64 },
    /// From these covers on it takes in itself what is published for the sessions of the round.
    Cut { round: u64, part: u64, parts: u64, covers: Covers },
    /// It has all that was copied in the round, and all that came since.
    Whole { round: u64 },
    /// The replica of this session could not be kept up.
    Lost { session: u64 },
    /// It does not know the stream.
    Unknown,
}

impl<'a> Letter<'a> {
    pub(super) fn encode(&self, stream: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let mut head = |kind: u8| {
            out.push(kind);
            out.extend_from_slice(&stream.to_be_bytes());
        };
        match self {
            Self::Items { number, items } => {
                head(ITEMS);
                put_varint(&mut out, *number);
                out.extend_from_slice(items);
            }
            Self::Over => head(OVER),
            Self::Answer { known, held } => {
                head(ANSWER);
                put_varint(&mut out, *known);
                put_varint(&mut out, *held);
            }
            Self::Cut { round, part, parts, covers } => {
                head(CUT);
                [round, part, parts].into_iter().for_each(|number| put_varint(&mut out, *number));
                put_covers(&mut out, covers);
            }
            Self::Whole { round } => {
                head(WHOLE);
                put_varint(&mut out, *round);
            }
            Self::Lost { session } => {
                head(LOST);
                put_varint(&mut out, *session);
            }
            Self::Unknown => head(UNKNOWN),
        }
        out
    }

    /// The letter, and the number of its stream.
    pub(super) fn decode(body: &'a [u8]) -> Result<(u64, Self), FrameError> {
        let mut reader = Reader::new(body);
        let (kind, stream) = (reader.byte("kind")?, reader.u64("stream")?);
        let letter = match kind {
            ITEMS => {
                let number = reader.varint("number")?;
                return Ok((stream, Self::Items { number, items: reader.rest() }));
            }
            OVER => Self::Over,
            ANSWER => Self::Answer { known: reader.varint("letter")?, held: reader.varint("letter")? },
            CUT => {
                let (round, part, parts) = (reader.varint("round")?, reader.varint("part")?, reader.varint("parts")?);
                Self::Cut { round, part, parts, covers: read_covers(&mut reader)? }
            }
            WHOLE => Self::Whole { round: reader.varint("round")? },
            LOST => Self::Lost { session: reader.varint("session")? },
            UNKNOWN => Self::Unknown,
            other => return Err(FrameError::Value { field: "letter", value: other.into() }),
        };
        reader.finish()?;
        Ok((stream, letter))
    }
}

/// What the broker says. Sessions go by its own numbers for them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// The stream begins.
    Begin,
    /// A session that is to be replicated, from now on or anew: its claim, and who it is.
    Head { session: u64, bytes: &'a [u8] },
    /// These were all of this round: where is the cut?
    Round { round: u64 },
    /// What is in a session.
    Copy { session: u64, bytes: &'a [u8] },
    /// That was all of the round; it is what the broker had delivered up to these covers.
    Copied { round: u64, covers: &'a [u8] },
    /// See [`crate::session::Change::Guarded`].
    Guarded { session: u64 },
    /// What follows is of that lane.
    Lane(OriginLane),
    /// A message was placed that comes by the lane.
    Placed { session: u64, order: Order, sequence: u64, qos: QoS, stage: Stage },
    /// A message was placed, this one.
    PlacedWhole { session: u64, order: Order, bytes: &'a [u8] },
    /// A message has come further.
    Staged { session: u64, order: Order, stage: Stage },
    /// A message is kept no more.
    Removed { session: u64, order: Order },
    /// A QoS 2 message of the client's has come.
    Received { session: u64, id: PacketId },
    /// It is released.
    Completed { session: u64, id: PacketId },
    /// The session's head is another. `left`: how long ago its client left; none where it is connected.
    Session { session: u64, claim: u64, expiry: SessionExpiry, left: Option<Duration> },
    /// The session is over, or replicated no more.
    Ended { session: u64 },
    /// Of the lane, of these ids what is for any of the sessions was said before.
    Dealt { first: u64, last: u64 },
    /// Goes before the bytes of the next item that has some, behind others like this; not of a head or a copy.
    Part { bytes: &'a [u8] },
    /// Goes before the bytes of the head, or the copy, of that session, behind others like this. Between them other items may come.
    CopyPart { session: u64, bytes: &'a [u8] },
    /// In which life the broker is.
    Life { incarnation: u64 },
    /// The session's client has brought a will, with that claim. `left` as of a session; whether it is on the broker's disk.
    Will { session: u64, claim: u64, left: Option<Duration>, is_durable: bool, bytes: &'a [u8] },
    /// The session has no will any more.
    WillGone { session: u64 },
}

impl<'a> Item<'a> {
    /// The session of which this says something that its replica is to know.
    pub(super) fn session(&self) -> Option<u64> {
        match self {
            Self::Copy { session, .. }
            | Self::Guarded { session }
            | Self::Placed { session, .. }
            | Self::PlacedWhole { session, .. }
            | Self::Staged { session, .. }
            | Self::Removed { session, .. }
            | Self::Received { session, .. }
            | Self::Completed { session, .. }
            | Self::Session { session, .. } => Some(*session),
            Self::Begin
            | Self::Head { .. }
            | Self::Round { .. }
            | Self::Copied { .. }
            | Self::Lane(_)
            | Self::Ended { .. }
            | Self::Dealt { .. }
            | Self::Part { .. }
            | Self::CopyPart { .. }
            | Self::Life { .. }
            | Self::Will { .. }
            | Self::WillGone { .. } => None,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut numbers = |kind: u8, numbers: &[u64]| {
            out.push(kind);
            numbers.iter().for_each(|number| put_varint(out, *number));
        };
        match self {
            Self::Begin => numbers(BEGIN, &[]),
            Self::Head { session, bytes } => {
                numbers(HEAD, &[*session]);
                put_block(out, bytes);
            }
            Self::Round { round } => numbers(ROUND, &[*round]),
            Self::Copy { session, bytes } => {
                numbers(COPY, &[*session]);
                put_block(out, bytes);
            }
            Self::Copied { round, covers } => {
                numbers(COPIED, &[*round]);
                put_block(out, covers);
            }
            Self::Guarded { session } => numbers(GUARDED, &[*session]),
            Self::Lane(OriginLane { origin, log, lane }) => {
                numbers(LANE, &[]);
                out.extend_from_slice(&origin.0.to_be_bytes());
                out.extend_from_slice(&log.0.to_be_bytes());
                out.push(lane.0);
            }
            Self::Placed { session, order, sequence, qos, stage } => {
                numbers(PLACED, &[*session, *order, *sequence, u64::from(*qos as u8)]);
                put_stage(out, *stage);
            }
            Self::PlacedWhole { session, order, bytes } => {
                numbers(PLACED_WHOLE, &[*session, *order]);
                put_block(out, bytes);
            }
            Self::Staged { session, order, stage } => {
                numbers(STAGED, &[*session, *order]);
                put_stage(out, *stage);
            }
            Self::Removed { session, order } => numbers(REMOVED, &[*session, *order]),
            Self::Received { session, id } => numbers(RECEIVED, &[*session, u64::from(id.get())]),
            Self::Completed { session, id } => numbers(COMPLETED, &[*session, u64::from(id.get())]),
            Self::Session { session, claim, expiry, left } => {
                // As in the records on disk: 0 is for ever.
                let expiry = match expiry {
                    SessionExpiry::Never => 0,
                    SessionExpiry::WithConnection => 1,
                    SessionExpiry::After(rest) => rest.as_secs().saturating_add(1),
                };
                numbers(SESSION, &[*session, *claim, expiry, left_to_number(*left)]);
            }
            Self::Ended { session } => numbers(ENDED, &[*session]),
            Self::Dealt { first, last } => numbers(DEALT, &[*first, *last]),
            Self::Part { bytes } => {
                numbers(PART, &[]);
                put_block(out, bytes);
            }
            Self::CopyPart { session, bytes } => {
                numbers(COPY_PART, &[*session]);
                put_block(out, bytes);
            }
            Self::Life { incarnation } => numbers(LIFE, &[*incarnation]),
            Self::Will { session, claim, left, is_durable, bytes } => {
                numbers(WILL, &[*session, *claim, left_to_number(*left), u64::from(*is_durable)]);
                put_block(out, bytes);
            }
            Self::WillGone { session } => numbers(WILL_GONE, &[*session]),
        }
    }

    /// The next item.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let kind = reader.byte("item")?;
        if kind == PART {
            return Ok(Self::Part { bytes: reader.block("part")? });
        }
        if kind == BEGIN {
            return Ok(Self::Begin);
        }
        if kind == LANE {
            let (origin, log) = (BrokerId(reader.u64("origin")?), LogId(reader.u64("log")?));
            return Ok(Self::Lane(OriginLane { origin, log, lane: LaneId(reader.byte("lane")?) }));
        }
        let first = reader.varint("session")?;
        Ok(match kind {
            HEAD => Self::Head { session: first, bytes: reader.block("head")? },
            ROUND => Self::Round { round: first },
            COPY => Self::Copy { session: first, bytes: reader.block("copy")? },
            COPY_PART => Self::CopyPart { session: first, bytes: reader.block("part")? },
            COPIED => Self::Copied { round: first, covers: reader.block("covers")? },
            GUARDED => Self::Guarded { session: first },
            PLACED => {
                let (order, sequence) = (reader.varint("order")?, reader.varint("sequence")?);
                let qos = match reader.varint("QoS")? {
                    1 => QoS::AtLeastOnce,
                    2 => QoS::ExactlyOnce,
                    value => return Err(FrameError::Value { field: "QoS", value }),
                };
                Self::Placed { session: first, order, sequence, qos, stage: read_stage(reader)? }
            }
            PLACED_WHOLE => Self::PlacedWhole { session: first, order: reader.varint("order")?, bytes: reader.block("message")? },
            STAGED => Self::Staged { session: first, order: reader.varint("order")?, stage: read_stage(reader)? },
            REMOVED => Self::Removed { session: first, order: reader.varint("order")? },
            RECEIVED => Self::Received { session: first, id: read_packet_id(reader)? },
            COMPLETED => Self::Completed { session: first, id: read_packet_id(reader)? },
            SESSION => {
                let claim = reader.varint("claim")?;
                let expiry = match reader.varint("expiry")? {
                    0 => SessionExpiry::Never,
                    more => SessionExpiry::from_interval_seconds(u32::try_from(more - 1).unwrap_or(u32::MAX)),
                };
                let left = number_to_left(reader.varint("time since it left, ms")?);
                Self::Session { session: first, claim, expiry, left }
            }
            ENDED => Self::Ended { session: first },
            LIFE => Self::Life { incarnation: first },
            WILL => {
                let (claim, left) = (reader.varint("claim")?, number_to_left(reader.varint("time since it left, ms")?));
                let is_durable = reader.varint_max(1, "on disk")? == 1;
                Self::Will { session: first, claim, left, is_durable, bytes: reader.block("will")? }
            }
            WILL_GONE => Self::WillGone { session: first },
            DEALT => Self::Dealt { first, last: reader.varint("id")? },
            other => return Err(FrameError::Value { field: "item", value: other.into() }),
        })
    }
}

fn put_stage(out: &mut Vec<u8>, stage: Stage) {
    let (kind, serial) = match stage {
        Stage::Queued => (0, 0),
        Stage::Published(serial) => (1, serial),
        Stage::Released(serial) => (2, serial),
    };
    out.push(kind);
    put_varint(out, serial);
}

fn read_stage(reader: &mut Reader<'_>) -> Result<Stage, FrameError> {
    let (kind, serial) = (reader.byte("stage")?, reader.varint("serial")?);
    match kind {
        0 => Ok(Stage::Queued),
        1 => Ok(Stage::Published(serial)),
        2 => Ok(Stage::Released(serial)),
        other => Err(FrameError::Value { field: "stage", value: other.into() }),
    }
}

fn read_packet_id(reader: &mut Reader<'_>) -> Result<PacketId, FrameError> {
    let value = reader.varint("packet identifier")?;
    let id = u16::try_from(value).ok().and_then(PacketId::new);
    id.ok_or(FrameError::Value { field: "packet identifier", value })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let (session, order, bytes) = (300, 1 << 40, b"some bytes".as_slice());
        let id = PacketId::MAX;
        let lane = OriginLane { origin: BrokerId(u64::MAX), log: LogId(1), lane: LaneId(5) };
        let head = |expiry| Item::Session { session, claim: u64::MAX, expiry, left: None };
        let items = [
            Item::Begin,
            Item::CopyPart { session, bytes },
            Item::Head { session, bytes },
            Item::Round { round: 7 },
            Item::Copy { session, bytes: b"" },
            Item::Part { bytes },
            Item::Copied { round: 7, covers: bytes },
            Item::Guarded { session },
            Item::Lane(lane),
            Item::Placed { session, order, sequence: u64::MAX, qos: QoS::ExactlyOnce, stage: Stage::Published(9) },
            Item::PlacedWhole { session, order, bytes },
            Item::Staged { session, order, stage: Stage::Released(9) },
            Item::Removed { session, order },
            Item::Received { session, id },
            Item::Completed { session, id },
            head(SessionExpiry::Never),
            head(SessionExpiry::WithConnection),
            head(SessionExpiry::After(Duration::from_secs(60))),
            Item::Ended { session },
            Item::Dealt { first: 0, last: 9 },
            Item::Life { incarnation: 1 << 60 },
            Item::Will { session, claim: 5, left: Some(Duration::from_millis(3)), is_durable: true, bytes },
            Item::WillGone { session },
        ];
        let mut said = Vec::new();
        items.iter().for_each(|item| item.encode(&mut said));
        let mut reader = Reader::new(&said);
        for item in &items {
            assert_eq!(Item::read(&mut reader).unwrap(), *item);
        }
        assert!(reader.is_empty());
        let letters = [
            Letter::Items { number: 9, items: &said },
            Letter::Over,
            Letter::Answer { known: 9, held: 8 },
            Letter::Cut { round: 1, part: 0, parts: 2, covers: Covers::new() },
            Letter::Whole { round: 1 },
            Letter::Lost { session },
            Letter::Unknown,
        ];
        for letter in letters {
            let bytes = letter.encode(3);
            assert_eq!(Letter::decode(&bytes).unwrap(), (3, letter));
            assert!(is_replicas(&bytes));
        }
    }

    #[test]
    fn what_is_cut_off_or_spoilt_is_no_item_and_harms_nobody() {
        let mut said = Vec::new();
        Item::Placed { session: 300, order: 1 << 40, sequence: 1 << 50, qos: QoS::AtLeastOnce, stage: Stage::Published(900) }
            .encode(&mut said);
        for length in 0..said.len() {
            assert!(Item::read(&mut Reader::new(&said[..length])).is_err(), "{length}");
        }
        for place in 0..said.len() {
            for value in 0..=u8::MAX {
                let mut spoilt = said.clone();
                spoilt[place] = value;
                let _ = Item::read(&mut Reader::new(&spoilt));
                let _ = Letter::decode(&spoilt);
            }
        }
    }
}

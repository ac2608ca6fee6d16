//! What two brokers say to each other of a session that goes from one to the other: bytes to words and back.

use crate::frame::{FrameError, Reader, put_block, put_varint};
use crate::ids::{BrokerId, LaneId, LogId, OriginLane};
use crate::replication::{Cover, Covers};

const ASK: u8 = 1;
const FETCH: u8 = 2;
const PAGE: u8 = 3;
const CUT: u8 = 4;
const DONE: u8 = 5;
const GONE: u8 = 6;
const RELEASE: u8 = 7;
const RELEASED: u8 = 8;
const NO: u8 = 9;
const CANCEL: u8 = 10;
const STATUS: u8 = 11;
const OUTCOME: u8 = 12;
const OFFER: u8 = 13;

/// Which part of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Who it is, and its subscriptions.
    Head,
    /// What is in it.
    Content,
}

/// Why the old broker does not do what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It has no such session.
    NotHere,
    /// It handed it over to that broker.
    MovedTo(BrokerId),
    /// Not yet.
    Wait,
    /// The move is over; the session is where it was.
    Cancelled,
    /// Its client was here later: it has claimed it with this stamp.
    Newer(u64),
    /// It has a replica of it, and that broker, which has the session, can be reached from here.
    ReplicaOf(BrokerId),
}

/// What the new broker has of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All of it, safely.
    Have,
    /// Nothing, and it will not have it by this move.
    HaveNot,
    /// That is not known yet.
    Wait,
    /// A newer session of its client, whatever that has of this one.
    Newer,
}

/// What two brokers say to each other of one move, which has a random number.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    // The new broker's.
    /// Its client has claimed the session with a stamp: who it is, please.
    Ask {
        stamp: u64,
        client_id: &'a str,
    },
    /// More pages, from this one on.
    Fetch {
        part: Part,
        first: u64,
    },
    /// A part of the covers from which on it takes in itself what is published: what is in it once the old one is as far, please.
    Cut {
        part: u64,
        parts: u64,
        covers: Covers,
    },
    /// It has everything.
    Done {
        stamp: u64,
        client_id: &'a str,
    },
    /// All members know what it wants.
    Release,
    /// It gives the move up.
    Cancel,
    /// Answers Status.
    Outcome(Outcome),
    // The old broker's.
    Page {
        part: Part,
        page: u64,
        pages: u64,
        bytes: &'a [u8],
    },
    No(Why),
    /// What has become of the move?
    Status {
        stamp: u64,
        client_id: &'a str,
    },
    /// Answers Done.
    Gone,
    /// Answers Release.
    Released,
    /// The session, which it has by the claim with this stamp, is to be had, without its client. The number names no move: who takes it begins one with another, who does not says No to this.
    Offer {
        stamp: u64,
        client_id: &'a str,
    },
}

impl<'a> Word<'a> {
    pub(super) fn encode(&self, id: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let head = |out: &mut Vec<u8>, kind: u8| {
            out.push(kind);
            out.extend_from_slice(&id.to_be_bytes());
        };
        let claim = |out: &mut Vec<u8>, stamp: u64, client_id: &str| {
            put_varint(out, stamp);
            out.extend_from_slice(client_id.as_bytes());
        };
        match self {
            Self::Ask { stamp, client_id } => {
                head(&mut out, ASK);
                claim(&mut out, *stamp, client_id);
            }
            Self::Fetch { part, first } => {
                head(&mut out, FETCH);
                out.push(part.byte());
                put_varint(&mut out, *first);
            }
            Self::Page { part, page, pages, bytes } => {
                head(&mut out, PAGE);
                out.push(part.byte());
                put_varint(&mut out, *page);
                put_varint(&mut out, *pages);
                out.extend_from_slice(bytes);
            }
            Self::Cut { part, parts, covers } => {
                head(&mut out, CUT);
                put_varint(&mut out, *part);
                put_varint(&mut out, *parts);
                put_covers(&mut out, covers);
            }
            Self::Done { stamp, client_id } => {
                head(&mut out, DONE);
                claim(&mut out, *stamp, client_id);
            }
            Self::Gone => head(&mut out, GONE),
            Self::Release => head(&mut out, RELEASE),
            Self::Released => head(&mut out, RELEASED),
            Self::No(why) => {
                head(&mut out, NO);
                let (kind, number) = match why {
                    Why::NotHere => (0, 0),
                    Why::MovedTo(broker) => (1, broker.0),
                    Why::Wait => (2, 0),
                    Why::Cancelled => (3, 0),
                    Why::Newer(stamp) => (4, *stamp),
                    Why::ReplicaOf(broker) => (5, broker.0),
                };
                out.push(kind);
                out.extend_from_slice(&number.to_be_bytes());
            }
            Self::Cancel => head(&mut out, CANCEL),
            Self::Status { stamp, client_id } => {
                head(&mut out, STATUS);
                claim(&mut out, *stamp, client_id);
            }
            Self::Offer { stamp, client_id } => {
                head(&mut out, OFFER);
                claim(&mut out, *stamp, client_id);
            }
            Self::Outcome(outcome) => {
                head(&mut out, OUTCOME);
                out.push(*outcome as u8);
            }
        }
        out
    }

    pub(super) fn decode(body: &'a [u8]) -> Result<(u64, Self), FrameError> {
        let mut reader = Reader::new(body);
        let kind = reader.byte("kind")?;
        let id = reader.u64("move")?;
        let word = match kind {
            ASK => {
                let (stamp, client_id) = read_claim(&mut reader)?;
                return Ok((id, Self::Ask { stamp, client_id }));
            }
            FETCH => Self::Fetch { part: Part::read(&mut reader)?, first: reader.varint("page")? },
            PAGE => {
                let part = Part::read(&mut reader)?;
                let (page, pages) = (reader.varint("page")?, reader.varint("pages")?);
                return Ok((id, Self::Page { part, page, pages, bytes: reader.rest() }));
            }
            CUT => {
                let (part, parts) = (reader.varint("part")?, reader.varint("parts")?);
                Self::Cut { part, parts, covers: read_covers(&mut reader)? }
            }
            DONE => {
                let (stamp, client_id) = read_claim(&mut reader)?;
                return Ok((id, Self::Done { stamp, client_id }));
            }
            GONE => Self::Gone,
            RELEASE => Self::Release,
            RELEASED => Self::Released,
            NO => {
                let (kind, number) = (reader.byte("reason")?, reader.u64("broker or stamp")?);
                Self::No(match kind {
                    0 => Why::NotHere,
                    1 => Why::MovedTo(BrokerId(number)),
                    2 => Why::Wait,
                    3 => Why::Cancelled,
                    4 => Why::Newer(number),
                    5 => Why::ReplicaOf(BrokerId(number)),
                    other => return Err(FrameError::Value { field: "reason", value: other.into() }),
                })
            }
            CANCEL => Self::Cancel,
            STATUS => {
                let (stamp, client_id) = read_claim(&mut reader)?;
                return Ok((id, Self::Status { stamp, client_id }));
            }
            OFFER => {
                let (stamp, client_id) = read_claim(&mut reader)?;
                return Ok((id, Self::Offer { stamp, client_id }));
            }
            OUTCOME => Self::Outcome(match reader.byte("outcome")? {
                0 => Outcome::Have,
                1 => Outcome::HaveNot,
                2 => Outcome::Wait,
                3 => Outcome::Newer,
                other => return Err(FrameError::Value { field: "outcome", value: other.into() }),
            }),
            other => return Err(FrameError::Value { field: "letter", value: other.into() }),
        };
        reader.finish()?;
        Ok((id, word))
    }
}

impl Part {
    fn byte(self) -> u8 {
        match self {
            Self::Head => 0,
            Self::Content => 1,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        match reader.byte("part")? {
            0 => Ok(Self::Head),
            1 => Ok(Self::Content),
            other => Err(FrameError::Value { field: "part", value: other.into() }),
        }
    }
}

fn read_claim<'a>(reader: &mut Reader<'a>) -> Result<(u64, &'a str), FrameError> {
    let stamp = reader.varint("stamp")?;
    Ok((stamp, std::str::from_utf8(reader.rest()).map_err(|_| FrameError::Text("client id"))?))
}

/// Covers and then something else.
pub(super) fn put_covers_before(out: &mut Vec<u8>, covers: &Covers) {
    let mut bytes = Vec::new();
    put_covers(&mut bytes, covers);
    put_block(out, &bytes);
}

/// Reads what [`put_covers_before`] wrote.
pub(super) fn read_covers_before(reader: &mut Reader<'_>) -> Result<Covers, FrameError> {
    let mut covers = Reader::new(reader.block("covers")?);
    read_covers(&mut covers)
}

pub(in crate::router) fn put_covers(out: &mut Vec<u8>, covers: &Covers) {
    for (OriginLane { origin, log, lane }, Cover { id, is_live }) in covers {
        out.extend_from_slice(&origin.0.to_be_bytes());
        out.extend_from_slice(&log.0.to_be_bytes());
        out.push(lane.0);
        out.push(u8::from(*is_live));
        put_varint(out, *id);
    }
}

pub(in crate::router) fn read_covers(reader: &mut Reader<'_>) -> Result<Covers, FrameError> {
    let mut covers = Covers::new();
    while !reader.is_empty() {
        let (origin, log) = (BrokerId(reader.u64("origin")?), LogId(reader.u64("log")?));
        let (lane, is_live) = (LaneId(reader.byte("lane")?), reader.varint_max(1, "kind of cover")? == 1);
        covers.insert(OriginLane { origin, log, lane }, Cover { id: reader.varint("cover")?, is_live });
    }
    Ok(covers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_word_reads_back() {
        let stream = |lane| OriginLane { origin: BrokerId(7), log: LogId(9), lane: LaneId(lane) };
        let cover = |id, is_live| Cover { id, is_live };
        let covers = || Covers::from([(stream(4), cover(1 << 40, true)), (stream(5), cover(3, false))]);
        let client_id = "client ü";
        for word in [
            Word::Ask { stamp: u64::MAX, client_id },
            Word::Fetch { part: Part::Head, first: 300 },
            Word::Page { part: Part::Content, page: 1, pages: 2, bytes: b"some" },
            Word::Cut { part: 0, parts: 1, covers: covers() },
            Word::Cut { part: 1, parts: 2, covers: Covers::new() },
            Word::Done { stamp: 5, client_id },
            Word::Gone,
            Word::Release,
            Word::Released,
            Word::No(Why::NotHere),
            Word::No(Why::MovedTo(BrokerId(3))),
            Word::No(Why::Wait),
            Word::No(Why::Cancelled),
            Word::No(Why::Newer(u64::MAX)),
            Word::No(Why::ReplicaOf(BrokerId(4))),
            Word::Cancel,
            Word::Status { stamp: 5, client_id: "" },
            Word::Offer { stamp: 5, client_id },
            Word::Outcome(Outcome::Have),
            Word::Outcome(Outcome::HaveNot),
            Word::Outcome(Outcome::Wait),
            Word::Outcome(Outcome::Newer),
        ] {
            assert_eq!(Word::decode(&word.encode(77)), Ok((77, word)));
        }
        let mut out = Vec::new();
        put_covers_before(&mut out, &covers());
        out.push(9);
        let mut reader = Reader::new(&out);
        assert_eq!((read_covers_before(&mut reader), reader.rest()), (Ok(covers()), &[9][..]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0..15_u8) {
            if let Some(front) = bytes.first_mut() {
                *front = kind;
            }
            let _ = Word::decode(&bytes);
        }
    }
}

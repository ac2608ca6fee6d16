//! What two brokers say to each other of a session that goes from one to the other: bytes to words and back.

use bytes::Bytes;

use crate::frame::{FrameError, Reader, put_varint};
use crate::ids::{BrokerId, LaneId, LogId, OriginLane};
use crate::replication::Covers;

const FREEZE: u8 = 1;
const PAGES: u8 = 2;
const PAGE: u8 = 3;
const REST: u8 = 4;
const DONE: u8 = 5;
const NONE: u8 = 6;
const RELEASE: u8 = 7;

/// Which part of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// What is in it.
    Session,
    /// What was published since.
    Rest,
}

/// What two brokers say to each other of one move, which has a random number.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    Freeze { client_id: &'a str },
    Pages { part: Part, first: u64 },
    Page { part: Part, page: u64, pages: u64, bytes: &'a [u8] },
    Rest { covers: Covers },
    Done,
    None { moved_to: Option<BrokerId> },
    Release,
}

impl<'a> Word<'a> {
    pub(super) fn encode(&self, id: u64) -> Bytes {
        let mut out = Vec::new();
        let head = |out: &mut Vec<u8>, kind: u8| {
            out.push(kind);
            out.extend_from_slice(&id.to_be_bytes());
        };
        match self {
            Self::Freeze { client_id } => {
                head(&mut out, FREEZE);
                out.extend_from_slice(client_id.as_bytes());
            }
            Self::Pages { part, first } => {
                head(&mut out, PAGES);
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
            Self::Rest { covers } => {
                head(&mut out, REST);
                put_covers(&mut out, covers);
            }
            Self::Done => head(&mut out, DONE),
            Self::None { moved_to } => {
                head(&mut out, NONE);
                out.extend_from_slice(&moved_to.map_or(0, |broker| broker.0).to_be_bytes());
            }
            Self::Release => head(&mut out, RELEASE),
        }
        out.into()
    }

    pub(super) fn decode(body: &'a [u8]) -> Result<(u64, Self), FrameError> {
        let mut reader = Reader::new(body);
        let kind = reader.byte("kind")?;
        let id = reader.u64("move")?;
        let word = match kind {
            FREEZE => {
                let client_id = std::str::from_utf8(reader.rest()).map_err(|_| FrameError::Text("client id"))?;
                return Ok((id, Self::Freeze { client_id }));
            }
            PAGES => Self::Pages { part: Part::read(&mut reader)?, first: reader.varint("page")? },
            PAGE => {
                let part = Part::read(&mut reader)?;
                let (page, pages) = (reader.varint("page")?, reader.varint("pages")?);
                return Ok((id, Self::Page { part, page, pages, bytes: reader.rest() }));
            }
            REST => Self::Rest { covers: read_covers(&mut reader)? },
            DONE => Self::Done,
            NONE => Self::None { moved_to: Some(BrokerId(reader.u64("broker")?)).filter(|broker| broker.0 > 0) },
            RELEASE => Self::Release,
            other => return Err(FrameError::Value { field: "letter", value: other.into() }),
        };
        reader.finish()?;
        Ok((id, word))
    }
}

impl Part {
    fn byte(self) -> u8 {
        match self {
            Self::Session => 0,
            Self::Rest => 1,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        match reader.byte("part")? {
            0 => Ok(Self::Session),
            1 => Ok(Self::Rest),
            other => Err(FrameError::Value { field: "part", value: other.into() }),
        }
    }
}

pub(super) fn put_covers(out: &mut Vec<u8>, covers: &Covers) {
    put_varint(out, covers.len() as u64);
    for (OriginLane { origin, log, lane }, cover) in covers {
        out.extend_from_slice(&origin.0.to_be_bytes());
        out.extend_from_slice(&log.0.to_be_bytes());
        out.push(lane.0);
        put_varint(out, *cover);
    }
}

pub(super) fn read_covers(reader: &mut Reader<'_>) -> Result<Covers, FrameError> {
    let mut covers = Covers::new();
    for _ in 0..reader.varint("covers")? {
        let (origin, log) = (BrokerId(reader.u64("origin")?), LogId(reader.u64("log")?));
        let stream = OriginLane { origin, log, lane: LaneId(reader.byte("lane")?) };
        covers.insert(stream, reader.varint("cover")?);
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
        let covers: Covers = [(stream(0), 1 << 40), (stream(1), 0)].into();
        for word in [
            Word::Freeze { client_id: "ü" },
            Word::Pages { part: Part::Rest, first: 300 },
            Word::Page { part: Part::Session, page: 1, pages: 2, bytes: b"bytes" },
            Word::Rest { covers },
            Word::Done,
            Word::None { moved_to: None },
            Word::None { moved_to: Some(BrokerId(5)) },
            Word::Release,
        ] {
            assert_eq!(Word::decode(&word.encode(77)), Ok((77, word)));
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_word_or_an_error(kind in 0_u8..9, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Word::decode(&[&[kind][..], &bytes[..]].concat());
        }
    }
}

//! The frames of a link's bulk streams: what is large and can wait. Retained messages: how two brokers find out in what they differ, and
//! what each lacks (`shared::retained` has the exchange). And letters, from one broker to one other, over as many links as that takes.
//!
//! A bulk stream is unidirectional, one each way. The messages of [`BulkFrame::Messages`] are encoded as in a lane's block; each has a stamp,
//! and one without a payload says that its topic was deleted.

use super::{FrameError, Reader, put_frame, put_varint};
use crate::ids::{BrokerId, Stamp};
use crate::limits::LETTER_BYTES_MAX;

const CLOCK: u8 = 1;
const SUMS: u8 = 2;
const LIST: u8 = 3;
const LISTED: u8 = 4;
const MESSAGES: u8 = 5;
const DONE: u8 = 6;
const LETTER: u8 = 7;

/// Buckets into which retained topics fall.
pub const BUCKET_COUNT: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 10;
/// Stamps in one LIST, at most.
pub const LIST_STAMPS_MAX: usize = 2_000;

/// A topic's name in comparisons: see `shared::retained`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicKey(pub u64);

impl TopicKey {
    /// The bucket that it falls into, below [`BUCKET_COUNT`].
    #[must_use]
    pub fn bucket(self) -> usize {
        // In range: ten bits.
        (self.0 >> (u64::BITS - BUCKET_BITS)) as usize
    }

    /// First and last key of a bucket.
    #[must_use]
    pub fn of_bucket(bucket: usize) -> (Self, Self) {
        let first = (bucket as u64) << (u64::BITS - BUCKET_BITS);
        (Self(first), Self(first | (u64::MAX >> BUCKET_BITS)))
    }
}

/// One frame of a bulk stream.
#[derive(Clone, Copy, Debug)]
pub enum BulkFrame<'a> {
    /// Mesh time at the sender.
    Clock {
        /// Since the Unix epoch.
        unix_ms: u64,
    },
    /// What the sender knows of retained topics, by bucket. Is answered by LISTs and LISTED; then come Messages and DONE.
    Sums {
        /// Whether it answers the receiver's own: nothing follows from it in turn.
        is_answer: bool,
        /// See [`Sums`].
        sums: Sums<'a>,
    },
    /// All that the sender knows from one key to another, within a bucket.
    List(List<'a>),
    /// No LIST follows.
    Listed,
    /// Messages that the receiver lacked by its LISTs: see [`super::lane::Messages`].
    Messages(&'a [u8]),
    /// Nor do messages.
    Done,
    /// What one broker says to one other.
    Letter(Letter<'a>),
    /// A frame of a newer version: to be skipped.
    Unknown,
}

/// A letter, or word of one that found no way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter<'a> {
    /// `from` could not be reached with a letter of `to`'s, and there is no body.
    pub is_bounce: bool,
    /// Whom it is to.
    pub to: BrokerId,
    /// Who wrote it.
    pub from: BrokerId,
    /// Over so many links more it may go.
    pub hops: u8,
    /// What it says, at most [`LETTER_BYTES_MAX`].
    pub body: &'a [u8],
}

/// The sums of all buckets.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    bytes: &'a [u8],
}

impl Sums<'_> {
    /// In the order of the buckets, [`BUCKET_COUNT`] of them.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.bytes.as_chunks().0.iter().map(|bytes| u64::from_be_bytes(*bytes))
    }
}

/// What is known of some keys.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// The first key that it speaks of.
    pub from: TopicKey,
    /// The last one, of the same bucket.
    pub to: TopicKey,
    bytes: &'a [u8],
}

impl List<'_> {
    /// In the order of the keys. What is between `from` and `to` and not here is not known to the sender.
    pub fn iter(&self) -> impl Iterator<Item = (TopicKey, Stamp)> {
        self.bytes.as_chunks::<STAMP_BYTES>().0.iter().filter_map(|bytes| stamp(bytes).ok())
    }
}

/// A key and its stamp.
const STAMP_BYTES: usize = 24;

fn stamp(bytes: &[u8; STAMP_BYTES]) -> Result<(TopicKey, Stamp), FrameError> {
    let mut reader = Reader::new(bytes);
    let key = TopicKey(reader.u64("key")?);
    Ok((key, Stamp { time: reader.u64("stamp")?, writer: reader.u64("stamp's writer")? }))
}

/// The frame at the front of `input` and its length; `None` where more bytes are needed.
///
/// # Errors
/// When it is none, or its body is longer than `body_bytes_max`. Messages are not looked at.
pub fn decode(input: &[u8], body_bytes_max: usize) -> Result<Option<(BulkFrame<'_>, usize)>, FrameError> {
    let Some((kind, body, length)) = super::split_frame(input, body_bytes_max)? else { return Ok(None) };
    let mut reader = Reader::new(body);
    let frame = match kind {
        CLOCK => BulkFrame::Clock { unix_ms: reader.u64("clock")? },
        SUMS => {
            let is_answer = reader.varint_max(1, "kind of sums")? == 1;
            BulkFrame::Sums { is_answer, sums: Sums { bytes: reader.bytes(BUCKET_COUNT * 8, "sums")? } }
        }
        LIST => list(&mut reader)?,
        LISTED => BulkFrame::Listed,
        MESSAGES => return Ok(Some((BulkFrame::Messages(body), length))),
        DONE => BulkFrame::Done,
        LETTER => {
            let is_bounce = reader.varint_max(1, "kind of letter")? == 1;
            let (to, from) = (BrokerId(reader.u64("receiver")?), BrokerId(reader.u64("writer")?));
            let (hops, body) = (reader.byte("hops")?, reader.rest());
            if body.len() > LETTER_BYTES_MAX {
                return Err(FrameError::Value { field: "letter", value: body.len() as u64 });
            }
            return Ok(Some((BulkFrame::Letter(Letter { is_bounce, to, from, hops, body }), length)));
        }
        _ => return Ok(Some((BulkFrame::Unknown, length))),
    };
    reader.finish()?;
    Ok(Some((frame, length)))
}

fn list<'a>(reader: &mut Reader<'a>) -> Result<BulkFrame<'a>, FrameError> {
    let (from, to) = (TopicKey(reader.u64("first key")?), TopicKey(reader.u64("last key")?));
    if from > to || from.bucket() != to.bucket() {
        return Err(FrameError::Value { field: "last key", value: to.0 });
    }
    let count = reader.varint_max(LIST_STAMPS_MAX as u64, "count of stamps")?;
    let bytes = reader.bytes(count as usize * STAMP_BYTES, "stamps")?;
    let list = List { from, to, bytes };
    let mut before = None;
    for (key, _) in list.iter() {
        if key < from || key > to || before.is_some_and(|before| before >= key) {
            return Err(FrameError::Value { field: "key", value: key.0 });
        }
        before = Some(key);
    }
    Ok(BulkFrame::List(list))
}

/// Appends a CLOCK.
pub fn put_clock(out: &mut Vec<u8>, unix_ms: u64) {
    put_frame(out, CLOCK, |out| out.extend_from_slice(&unix_ms.to_be_bytes()));
}

/// Appends a SUMS, of which there are [`BUCKET_COUNT`].
pub fn put_sums(out: &mut Vec<u8>, is_answer: bool, sums: &[u64]) {
    put_frame(out, SUMS, |out| {
        out.push(u8::from(is_answer));
        sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_be_bytes()));
    });
}

/// Appends a LIST of at most [`LIST_STAMPS_MAX`].
pub fn put_list(out: &mut Vec<u8>, (from, to): (TopicKey, TopicKey), stamps: &[(TopicKey, Stamp)]) {
    put_frame(out, LIST, |out| {
        out.extend_from_slice(&from.0.to_be_bytes());
        out.extend_from_slice(&to.0.to_be_bytes());
        put_varint(out, stamps.len() as u64);
        for (key, stamp) in stamps {
            out.extend_from_slice(&key.0.to_be_bytes());
            out.extend_from_slice(&stamp.time.to_be_bytes());
            out.extend_from_slice(&stamp.writer.to_be_bytes());
        }
    });
}

/// Appends a LISTED.
pub fn put_listed(out: &mut Vec<u8>) {
    put_frame(out, LISTED, |_| {});
}

/// Appends a MESSAGES whose body `write` appends.
pub fn put_messages(out: &mut Vec<u8>, body: &[u8]) {
    put_frame(out, MESSAGES, |out| out.extend_from_slice(body));
}

/// Appends a LETTER.
pub fn put_letter(out: &mut Vec<u8>, letter: &Letter<'_>) {
    put_frame(out, LETTER, |out| {
        out.push(u8::from(letter.is_bounce));
        out.extend_from_slice(&letter.to.0.to_be_bytes());
        out.extend_from_slice(&letter.from.0.to_be_bytes());
        out.push(letter.hops);
        out.extend_from_slice(letter.body);
    });
}

/// Appends a DONE.
pub fn put_done(out: &mut Vec<u8>) {
    put_frame(out, DONE, |_| {});
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn one(out: &[u8]) -> BulkFrame<'_> {
        let (frame, length) = decode(out, 70_000).unwrap().unwrap();
        assert_eq!(length, out.len());
        (0..length).for_each(|short| assert!(decode(&out[..short], 70_000).unwrap().is_none()));
        frame
    }

    fn encoded(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn frames_come_back() {
        assert!(matches!(one(&encoded(|out| put_clock(out, 7))), BulkFrame::Clock { unix_ms: 7 }));
        let sums: Vec<u64> = (0..BUCKET_COUNT as u64).collect();
        let bytes = encoded(|out| put_sums(out, true, &sums));
        let BulkFrame::Sums { is_answer: true, sums: read } = one(&bytes) else { panic!() };
        assert_eq!(read.iter().collect::<Vec<_>>(), sums);
        let bucket = TopicKey::of_bucket(1_023);
        assert_eq!((bucket.0.bucket(), bucket.1), (1_023, TopicKey(u64::MAX)));
        let stamps = [(bucket.0, Stamp { time: 5, writer: 6 }), (bucket.1, Stamp { time: 0, writer: 0 })];
        let bytes = encoded(|out| put_list(out, bucket, &stamps));
        let BulkFrame::List(list) = one(&bytes) else { panic!() };
        assert_eq!((list.from, list.to, list.iter().collect::<Vec<_>>()), (bucket.0, bucket.1, stamps.to_vec()));
        assert!(matches!(one(&encoded(put_listed)), BulkFrame::Listed));
        assert!(matches!(one(&encoded(put_done)), BulkFrame::Done));
        assert!(matches!(one(&encoded(|out| put_messages(out, b"x"))), BulkFrame::Messages(b"x")));
        for (is_bounce, body) in [(false, &b"text"[..]), (true, b"")] {
            let letter = Letter { is_bounce, to: BrokerId(u64::MAX), from: BrokerId(2), hops: 9, body };
            let bytes = encoded(|out| put_letter(out, &letter));
            let BulkFrame::Letter(read) = decode(&bytes, 70_000).unwrap().unwrap().0 else { panic!() };
            assert_eq!(read, letter);
        }
        let long = Letter { is_bounce: false, to: BrokerId(1), from: BrokerId(2), hops: 9, body: &[0; LETTER_BYTES_MAX + 1] };
        assert!(decode(&encoded(|out| put_letter(out, &long)), 70_000).is_err());
        assert!(matches!(one(&[99, 1, 0]), BulkFrame::Unknown));
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let stamp = Stamp { time: 1, writer: 1 };
        let key = TopicKey;
        let list = |range, stamps: &[_]| encoded(|out| put_list(out, range, stamps));
        for bytes in [
            list((key(5), key(4)), &[]),
            list((key(0), key(u64::MAX)), &[]),
            list((key(5), key(9)), &[(key(4), stamp)]),
            list((key(5), key(9)), &[(key(10), stamp)]),
            list((key(5), key(9)), &[(key(6), stamp), (key(6), stamp)]),
            list((key(0), key(9_999)), &(0..=LIST_STAMPS_MAX as u64).map(|n| (key(n), stamp)).collect::<Vec<_>>()),
        ] {
            assert!(decode(&bytes, 70_000).is_err());
        }
        assert!(decode(&[SUMS, 2, 0, 0], 70_000).is_err() && decode(&[DONE, 1, 0], 70_000).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(mut bytes in vec(any::<u8>(), 0..300), kind in 0..9_u8) {
            let _ = decode(&bytes, 1_000);
            if let Some(front) = bytes.first_mut() {
                *front = kind;
            }
            let _ = decode(&bytes, 1_000);
        }
    }
}

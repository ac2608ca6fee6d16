//! What a port's lane has been asked for, until its writer comes to it.
//!
//! An answer is encoded when there is room for it on the way, out of the ring, so that it costs no memory meanwhile: a question is a few bytes
//! and its answer may be many. Bounded by [`ANSWERS_MAX`] and [`ANSWER_BYTES_MAX`]; who gets no answer asks again.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;

use super::block::{Content, StreamKey, millis};
use super::lane::Lane;
use crate::frame::lane::{self, Entry, Messages};
use crate::limits::{ANSWER_BYTES_MAX, ANSWERS_MAX, BLOCK_BYTES, PULLED_PER_FRAME_MAX};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is in the ring.
    InRing,
    /// The origin no longer has it.
    Gone,
    /// A block's body with it alone, and its age `at` that moment, milliseconds.
    Here { body: Bytes, age_ms: u64, at: Instant },
}

/// Answers that are due.
#[derive(Debug, Default)]
pub(super) struct Answers {
    due: BTreeMap<(StreamKey, u64), Answer>,
    /// Of [`Answer::Here`].
    bytes: usize,
}

/// One frame of answers, but for the alias.
#[derive(Debug)]
pub(super) enum Frame {
    Payloads {
        age_ms: u64,
        first: u64,
        body: Vec<u8>,
    },
    Gone(Vec<u64>),
    /// What was due is no longer there.
    Nothing,
}

impl Answers {
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn add(&mut self, key: StreamKey, sequence: u64, answer: Answer) {
        let bytes = answer.bytes();
        if self.due.len() < ANSWERS_MAX && self.bytes + bytes <= ANSWER_BYTES_MAX {
            self.bytes += bytes;
            let before = self.due.insert((key, sequence), answer);
            self.bytes -= before.map_or(0, |before| before.bytes());
        }
    }

    /// The next frame, and whose.
    pub(super) fn next(&mut self, lane: &Lane, now: Instant) -> Option<(StreamKey, Frame)> {
        let ((key, first), answer) = self.due.pop_first()?;
        self.bytes -= answer.bytes();
        let frame = match answer {
            Answer::Here { body, age_ms, at } => {
                let age_ms = age_ms.saturating_add(millis(now.saturating_duration_since(at)));
                Frame::Payloads { age_ms, first, body: body.into() }
            }
            Answer::Gone => Frame::Gone(self.gone(key, first)),
            Answer::InRing => self.take_from_ring(lane, key, first, now),
        };
        Some((key, frame))
    }

    fn gone(&mut self, key: StreamKey, first: u64) -> Vec<u64> {
        let mut gone = vec![first];
        while gone.len() < PULLED_PER_FRAME_MAX
            && let Some(next) = self.due.first_entry().filter(|next| next.key().0 == key && *next.get() == Answer::Gone)
        {
            gone.push(next.remove_entry().0.1);
        }
        gone
    }

    /// What is due of the block that has `first`.
    fn take_from_ring(&mut self, lane: &Lane, key: StreamKey, first: u64, now: Instant) -> Frame {
        let block = lane.known_stream(&key).and_then(|stream| lane.block_of(&stream, first));
        let Some((block, Content::Messages(encoded))) = block.as_ref().map(|block| (block, &block.content)) else {
            return Frame::Nothing;
        };
        let (mut body, mut before, mut topic) = (Vec::new(), None, None);
        for (sequence, entry) in Messages::new(block.first, encoded).flatten() {
            let is_due = sequence == first || self.due.get(&(key, sequence)) == Some(&Answer::InRing);
            let Entry::Message(message) = entry else { continue };
            if !is_due || sequence < first {
                continue;
            }
            let delta = before.map_or(0, |(_, last)| sequence - last);
            lane::put_message(&mut body, delta, &message, topic == Some(message.topic));
            before = Some((before.map_or(sequence, |(begin, _)| begin), sequence));
            topic = Some(message.topic);
            self.due.remove(&(key, sequence));
            if body.len() >= BLOCK_BYTES {
                break;
            }
        }
        before.map_or(Frame::Nothing, |(first, _)| Frame::Payloads { age_ms: block.age_ms(now), first, body })
    }
}

impl Answer {
    fn bytes(&self) -> usize {
        match self {
            Self::InRing | Self::Gone => 0,
            Self::Here { body, .. } => body.len(),
        }
    }
}

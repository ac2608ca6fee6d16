//! The numbered letters of a stream on their way: put together of items, kept until the other broker knows them, sent again from the first that it does not know.

use std::collections::VecDeque;

use super::word::{Item, Letter};
use crate::ids::OriginLane;
use crate::limits::{REPLICA_LETTER_BYTES, REPLICA_QUEUE_BYTES_MAX, REPLICA_WINDOW_BYTES};

/// An item without bytes of its own, with the lane before it, takes no more.
const SMALL_BYTES: usize = 128;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    current: Vec<u8>,
    /// Of which what was put last into the current letter speaks.
    lane: Option<OriginLane>,
    /// Letters that are whole, from `first` on.
    letters: VecDeque<Vec<u8>>,
    /// How many are known to the other broker.
    known: u64,
    /// How many were sent.
    sent: u64,
    bytes: usize,
}

impl Outgoing {
    /// The number of the last letter that is whole.
    pub(super) fn last(&self) -> u64 {
        self.known + self.letters.len() as u64
    }

    pub(super) fn known(&self) -> u64 {
        self.known
    }

    /// More waits than should.
    pub(super) fn is_full(&self) -> bool {
        self.bytes + self.current.len() > REPLICA_QUEUE_BYTES_MAX
    }

    /// An item that is small.
    pub(super) fn put(&mut self, item: &Item<'_>) {
        self.make_room(SMALL_BYTES);
        item.encode(&mut self.current);
    }

    /// Likewise, which speaks of that lane.
    pub(super) fn put_of(&mut self, lane: OriginLane, item: &Item<'_>) {
        self.make_room(SMALL_BYTES);
        if self.lane != Some(lane) {
            self.lane = Some(lane);
            Item::Lane(lane).encode(&mut self.current);
        }
        item.encode(&mut self.current);
    }

    /// The item that `of` makes of bytes, which may be many.
    pub(super) fn put_long<'a>(&mut self, mut bytes: &'a [u8], of: impl FnOnce(&'a [u8]) -> Item<'a>) {
        const PART_BYTES: usize = REPLICA_LETTER_BYTES - SMALL_BYTES;
        while let Some((part, rest)) = bytes.split_at_checked(PART_BYTES) {
            self.make_room(REPLICA_LETTER_BYTES);
            Item::Part { bytes: part }.encode(&mut self.current);
            bytes = rest;
        }
        self.make_room(bytes.len() + SMALL_BYTES);
        of(bytes).encode(&mut self.current);
    }

    fn make_room(&mut self, bytes: usize) {
        if self.current.len() + bytes > REPLICA_LETTER_BYTES {
            self.seal();
        }
    }

    /// What was put so far is a letter.
    pub(super) fn seal(&mut self) {
        if !self.current.is_empty() {
            self.bytes += self.current.len();
            self.letters.push_back(std::mem::take(&mut self.current));
            self.lane = None;
        }
    }

    /// The other broker knows all letters up to this one. Whether that is news.
    pub(super) fn learn(&mut self, known: u64) -> bool {
        let before = self.known;
        while self.known < known {
            let Some(letter) = self.letters.pop_front() else { break };
            self.bytes -= letter.len();
            self.known += 1;
        }
        self.sent = self.sent.max(self.known);
        self.known > before
    }

    /// Begins again with the first that is not known.
    pub(super) fn repeat(&mut self) {
        self.sent = self.known;
    }

    /// Sends what may be on its way by now and was not sent. Whether there was anything.
    pub(super) fn send(&mut self, stream: u64, mut write: impl FnMut(&[u8])) -> bool {
        self.seal();
        let (before, mut on_its_way, mut number) = (self.sent, 0, self.known);
        for items in &self.letters {
            on_its_way += items.len();
            number += 1;
            if on_its_way > REPLICA_WINDOW_BYTES && number > self.known + 1 {
                break;
            }
            if number > self.sent {
                write(&Letter::Items { number, items }.encode(stream));
                self.sent = number;
            }
        }
        self.sent > before
    }
}

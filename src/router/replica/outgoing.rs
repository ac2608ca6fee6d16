//! The numbered letters of a stream on their way: put together of items, kept until the other broker knows them, sent again from the first that it does not know.
//!
//! Copies of sessions have a budget of their own, a part of the window: what is told, for which clients wait, is never behind more than that of them.

use std::collections::VecDeque;

use super::word::{Item, Letter};
use crate::ids::OriginLane;
use crate::limits::{REPLICA_COPIES_BYTES, REPLICA_LETTER_BYTES, REPLICA_QUEUE_BYTES_MAX, REPLICA_WINDOW_BYTES};

/// An item without bytes of its own, with the lane before it, takes no more.
pub(super) const SMALL_BYTES: usize = 128;
/// So many bytes of one that is cut apart go into one letter.
pub(super) const PART_BYTES: usize = REPLICA_LETTER_BYTES - SMALL_BYTES;

/// Items, put together to letters that have no number yet.
#[derive(Debug, Default)]
pub(super) struct Items {
    current: Vec<u8>,
    /// Of which what was put last into the current letter speaks.
    lane: Option<OriginLane>,
    whole: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Items {
    /// What they take, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.current.len()
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
        while let Some((part, rest)) = bytes.split_at_checked(PART_BYTES) {
            self.make_room(REPLICA_LETTER_BYTES);
            Item::Part { bytes: part }.encode(&mut self.current);
            bytes = rest;
        }
        self.make_room(bytes.len() + SMALL_BYTES);
        of(bytes).encode(&mut self.current);
    }

    /// All that was put there, behind what was put here.
    pub(super) fn put_all(&mut self, others: &mut Self) {
        self.seal();
        for items in others.take() {
            self.bytes += items.len();
            self.whole.push_back(items);
        }
    }

    fn make_room(&mut self, bytes: usize) {
        if self.current.len() + bytes > REPLICA_LETTER_BYTES {
            self.seal();
        }
    }

    fn seal(&mut self) {
        if !self.current.is_empty() {
            self.bytes += self.current.len();
            self.whole.push_back(std::mem::take(&mut self.current));
            self.lane = None;
        }
    }

    /// All letters; nothing is left.
    fn take(&mut self) -> VecDeque<Vec<u8>> {
        self.seal();
        self.bytes = 0;
        std::mem::take(&mut self.whole)
    }
}

#[derive(Debug)]
struct Sealed {
    items: Vec<u8>,
    is_copy: bool,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    words: Items,
    /// Letters that have a number, from the first that is not known.
    letters: VecDeque<Sealed>,
    /// How many are known to the other broker.
    known: u64,
    /// How many were sent.
    sent: u64,
    bytes: usize,
    /// Of these, what is of copies.
    copies_bytes: usize,
}

impl Outgoing {
    /// The number of the last letter that has one.
    pub(super) fn last(&self) -> u64 {
        self.known + self.letters.len() as u64
    }

    pub(super) fn known(&self) -> u64 {
        self.known
    }

    /// More waits than should, with `more` bytes that are to be put.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.bytes + self.words.bytes() + more > REPLICA_QUEUE_BYTES_MAX
    }

    /// What is told.
    pub(super) fn words(&mut self) -> &mut Items {
        &mut self.words
    }

    /// What was put so far has numbers.
    pub(super) fn seal(&mut self) {
        let words = self.words.take();
        words.into_iter().for_each(|items| self.number(items, false));
    }

    /// Whether copies may be put.
    pub(super) fn may_copy(&self) -> bool {
        self.copies_bytes < REPLICA_COPIES_BYTES
    }

    /// Whether wills may be put: nobody waits for them, so what is told is behind no more of them either.
    pub(super) fn may_tell_wills(&self) -> bool {
        self.bytes + self.words.bytes() < 2 * REPLICA_COPIES_BYTES
    }

    /// A letter of copies, behind all that was put so far.
    pub(super) fn put_copy(&mut self, items: Vec<u8>) {
        self.seal();
        if !items.is_empty() {
            self.number(items, true);
        }
    }

    /// What was told of a session while it was being copied, or had to wait for that.
    pub(super) fn put_behind(&mut self, items: &mut Items) {
        self.seal();
        items.take().into_iter().for_each(|items| self.number(items, true));
    }

    fn number(&mut self, items: Vec<u8>, is_copy: bool) {
        self.bytes += items.len();
        self.copies_bytes += if is_copy { items.len() } else { 0 };
        self.letters.push_back(Sealed { items, is_copy });
    }

    /// The other broker knows all letters up to this one. Whether that is news.
    pub(super) fn learn(&mut self, known: u64) -> bool {
        let before = self.known;
        while self.known < known {
            let Some(Sealed { items, is_copy }) = self.letters.pop_front() else { break };
            self.bytes -= items.len();
            self.copies_bytes -= if is_copy { items.len() } else { 0 };
            self.known += 1;
        }
        self.sent = self.sent.max(self.known);
        self.known > before
    }

    /// Nothing is on its way.
    pub(super) fn is_clear(&self) -> bool {
        self.sent <= self.known
    }

    /// Begins again with the first that is not known.
    pub(super) fn repeat(&mut self) {
        self.sent = self.known;
    }

    /// Sends what may be on its way by now and was not sent. Whether there was anything.
    pub(super) fn send(&mut self, stream: u64, mut write: impl FnMut(&[u8])) -> bool {
        self.seal();
        let (before, mut on_its_way, mut number) = (self.sent, 0, self.known);
        for Sealed { items, .. } in &self.letters {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(out: &mut Outgoing) -> Vec<u64> {
        let mut numbers = Vec::new();
        out.send(1, |letter| {
            if let Ok((1, Letter::Items { number, .. })) = Letter::decode(letter) {
                numbers.push(number);
            }
        });
        numbers
    }

    #[test]
    fn letters_are_sent_once_and_again_from_the_first_that_is_not_known() {
        let mut out = Outgoing::default();
        for session in 0..3 {
            out.words().put(&Item::Ended { session });
            out.seal();
        }
        assert_eq!((numbers(&mut out), numbers(&mut out)), (vec![1, 2, 3], vec![]));
        assert!(out.learn(1) && !out.learn(1));
        out.repeat();
        assert_eq!(numbers(&mut out), [2, 3]);
        // More than there are is none's word.
        assert!(out.learn(9));
        assert_eq!((out.known(), out.last(), out.bytes), (3, 3, 0));
    }

    #[test]
    fn no_more_is_on_its_way_than_the_window_takes_and_a_letter_of_any_size() {
        let mut out = Outgoing::default();
        let bytes = vec![0; 2 * REPLICA_WINDOW_BYTES];
        out.words().put_long(&bytes, |bytes| Item::PlacedWhole { session: 1, order: 1, bytes });
        let sent = numbers(&mut out).len();
        assert!(sent * REPLICA_LETTER_BYTES >= REPLICA_WINDOW_BYTES && (sent - 1) * PART_BYTES <= REPLICA_WINDOW_BYTES, "{sent}");
        assert!(out.learn(sent as u64) && !numbers(&mut out).is_empty());
    }

    #[test]
    fn what_is_told_is_behind_no_more_of_copies_than_their_budget() {
        let mut out = Outgoing::default();
        let mut copies = 0;
        while out.may_copy() {
            out.put_copy(vec![0; REPLICA_LETTER_BYTES]);
            copies += 1;
        }
        assert!(copies * REPLICA_LETTER_BYTES <= REPLICA_COPIES_BYTES + REPLICA_LETTER_BYTES);
        out.words().put(&Item::Ended { session: 1 });
        assert_eq!(numbers(&mut out), (1..=copies as u64 + 1).collect::<Vec<_>>(), "the word is on its way at once");
        assert!(out.learn(1) && out.may_copy());
    }
}

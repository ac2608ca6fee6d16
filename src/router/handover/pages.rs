//! What is too large for one letter, in pages: cut apart at the old broker, put together at the new one, which asks for them a few at a time.

use bytes::Bytes;

use crate::limits::{HANDOVER_BYTES_MAX, HANDOVER_PAGE_BYTES, HANDOVER_PAGES_AT_ONCE};

/// At least one page, so that there is a last one.
pub(super) fn in_pages(bytes: Vec<u8>) -> Vec<Bytes> {
    let bytes = Bytes::from(bytes);
    let starts = (0..bytes.len().max(1)).step_by(HANDOVER_PAGE_BYTES);
    starts.map(|start| bytes.slice(start..bytes.len().min(start + HANDOVER_PAGE_BYTES))).collect()
}

/// Pages as they come, in their order.
#[derive(Debug, Default)]
pub(super) struct Pages {
    bytes: Vec<u8>,
    count: u64,
    of: Option<u64>,
}

/// What became of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// It was there already, is none of these, or is not the next.
    Nothing,
    /// The next is on its way.
    Page,
    /// The next ones must be asked for, from this one on.
    LastAsked(u64),
    /// It was the last of all.
    All(Vec<u8>),
}

impl Pages {
    /// How many have come: the place of the next.
    pub(super) fn next(&self) -> u64 {
        self.count
    }

    /// Whether there are more than come without being asked for.
    pub(super) fn are_many(&self) -> bool {
        self.of.is_some_and(|of| of > HANDOVER_PAGES_AT_ONCE as u64)
    }

    /// Takes one of `of` pages.
    pub(super) fn take(&mut self, page: u64, of: u64, bytes: &[u8]) -> Took {
        let is_next = page == self.count && page < of && self.of.is_none_or(|known| known == of);
        if !is_next || self.bytes.len() + bytes.len() > HANDOVER_BYTES_MAX {
            return Took::Nothing;
        }
        self.of = Some(of);
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
        if self.count == of {
            return Took::All(std::mem::take(&mut self.bytes));
        }
        if self.count.is_multiple_of(HANDOVER_PAGES_AT_ONCE as u64) { Took::LastAsked(self.count) } else { Took::Page }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_put_together_whatever_comes_in_between() {
        let bytes: Vec<u8> = (0..10 * HANDOVER_PAGE_BYTES + 1).map(|n| (n % 251) as u8).collect();
        let all = in_pages(bytes.clone());
        assert_eq!((all.len(), in_pages(Vec::new()).len(), in_pages(vec![0; HANDOVER_PAGE_BYTES]).len()), (11, 1, 1));
        let (mut pages, mut asked) = (Pages::default(), Vec::new());
        for (number, page) in (0..).zip(&all) {
            assert_eq!(pages.take(number + 1, 11, page), Took::Nothing, "not the next");
            if number > 0 {
                assert_eq!(pages.take(number, 12, page), Took::Nothing, "of another whole");
            }
            match pages.take(number, 11, page) {
                Took::LastAsked(next) => asked.push(next),
                Took::All(whole) => assert!(whole == bytes && number == 10),
                took => assert_eq!(took, Took::Page),
            }
            // After the first its number of pages is known.
            assert_eq!(pages.take(number, 11, page), Took::Nothing, "it is there already");
        }
        assert_eq!(asked, [4, 8]);
        assert!(pages.are_many());
    }
}

//! How fast one client is read from: by the rates that are configured for it and for its listener, and by what memory is left.
//!
//! A client that has to wait is not read from; it notices nothing but that its socket fills. From one that need not wait no more is read than its
//! rates have room for, so that nothing has to be paid for long: neither by itself nor by those who share a rate with it. Without rates nothing is
//! counted, no clock read and no timer made.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::limits::{PACED_READ_BYTES_LEAST, PAUSE_MAX, PAUSE_TURN};
use crate::pace::Bucket;

/// The smallest PUBLISH: its header, a topic of one letter, nothing else.
const PUBLISH_BYTES_LEAST: u64 = 5;

/// How much may come a second; `None`: any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// PUBLISH packets.
    pub messages: Option<NonZeroU64>,
    /// Bytes.
    pub bytes: Option<NonZeroU64>,
}

/// What has come, against its rates.
#[derive(Debug)]
pub struct Meter {
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Meter {
    /// For one client; `None` if any rate is good.
    fn own(rates: Rates) -> Option<Self> {
        Self::with(rates, Bucket::new)
    }

    /// For many clients together; `None` if any rate is good.
    #[must_use]
    pub fn shared(rates: Rates) -> Option<Self> {
        Self::with(rates, |rate| Bucket::shared(rate, PAUSE_MAX))
    }

    fn with(Rates { messages, bytes }: Rates, bucket: impl Fn(NonZeroU64) -> Bucket) -> Option<Self> {
        (messages.is_some() || bytes.is_some()).then(|| Self { messages: messages.map(&bucket), bytes: bytes.map(&bucket) })
    }

    /// Bytes that may be read at `now`, of which the first `missing` end the packet that is coming.
    fn room(&self, missing: u64, now: Instant) -> u64 {
        let bytes = self.bytes.as_ref().map_or(u64::MAX, |bucket| bucket.tokens(now));
        let messages = self.messages.as_ref().map_or(u64::MAX, |bucket| bucket.tokens(now));
        bytes.min(messages.saturating_mul(PUBLISH_BYTES_LEAST).saturating_add(missing))
    }

    fn charge(&mut self, messages: u64, bytes: u64, now: Instant) -> Duration {
        let of = |bucket: &mut Option<Bucket>, tokens| bucket.as_mut().map_or(Duration::ZERO, |bucket| bucket.charge(tokens, now));
        of(&mut self.messages, messages).max(of(&mut self.bytes, bytes))
    }
}

/// All rates that one client is held to.
#[derive(Debug)]
pub(super) struct Pace {
    own: Option<Meter>,
    listener: Option<Arc<Mutex<Meter>>>,
}

impl Pace {
    /// None if there are no rates.
    pub(super) fn new(own: Rates, listener: Option<&Arc<Mutex<Meter>>>) -> Option<Box<Self>> {
        let own = Meter::own(own);
        (own.is_some() || listener.is_some()).then(|| Box::new(Self { own, listener: listener.cloned() }))
    }

    /// Bytes that may be read at `now`, of which the first `missing` end the packet that is coming.
    pub(super) fn room(&self, missing: usize, now: Instant) -> usize {
        let missing = missing as u64;
        let own = self.own.as_ref().map_or(u64::MAX, |meter| meter.room(missing, now));
        let all = self.listener.as_ref().map_or(u64::MAX, |meter| meter.lock().room(missing, now));
        usize::try_from(own.min(all)).unwrap_or(usize::MAX).max(PACED_READ_BYTES_LEAST)
    }

    /// So much came at `now`; says how long the client is not to be read from, [`PAUSE_MAX`] at most: what it owes then is not forgotten.
    pub(super) fn charge(&mut self, messages: u64, bytes: u64, now: Instant) -> Duration {
        let own = self.own.as_mut().map_or(Duration::ZERO, |meter| meter.charge(messages, bytes, now));
        let all = self.listener.as_ref().map_or(Duration::ZERO, |meter| meter.lock().charge(messages, bytes, now));
        let wait = own.max(all);
        if wait.is_zero() { wait } else { (wait + PAUSE_TURN).min(PAUSE_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn rates(messages: u64, bytes: u64) -> Rates {
        Rates { messages: NonZeroU64::new(messages), bytes: NonZeroU64::new(bytes) }
    }

    #[test]
    fn the_slowest_of_all_rates_counts() {
        let all = Meter::shared(rates(0, 1_000)).map(|meter| Arc::new(Mutex::new(meter)));
        let mut clients = [(); 2].map(|()| Pace::new(rates(10, 0), all.as_ref()).unwrap());
        let now = clock::now();
        let [one, other] = &mut clients;
        assert_eq!(one.charge(10, 500, now), Duration::ZERO);
        assert_eq!(one.charge(1, 0, now), Duration::from_millis(100) + PAUSE_TURN, "its own messages");
        assert_eq!(other.charge(1, 750, now), Duration::from_millis(250) + PAUSE_TURN, "the bytes of both");
    }

    #[test]
    fn no_more_is_read_than_there_is_room_for() {
        let (mut pace, now) = (Pace::new(rates(100, 0), None).unwrap(), clock::now());
        assert_eq!(pace.room(0, now), 500, "a hundred of the smallest messages");
        assert_eq!(pace.room(1_000, now), 1_500, "what comes already is one message, however large");
        pace.charge(100, 500, now);
        assert_eq!(pace.room(0, now), PACED_READ_BYTES_LEAST);
        let pace = Pace::new(rates(0, 1_000), None).unwrap();
        assert_eq!(pace.room(5_000, now), 1_000, "bytes are bytes");
    }

    #[test]
    fn a_pause_has_an_end_and_nobody_pays_for_others_for_long() {
        let all = Meter::shared(rates(100, 0)).map(|meter| Arc::new(Mutex::new(meter)));
        let [mut hog, mut other] = [(); 2].map(|()| Pace::new(Rates::default(), all.as_ref()).unwrap());
        let now = clock::now();
        assert_eq!(hog.charge(13_107, 65_535, now), PAUSE_MAX);
        assert_eq!(other.charge(0, 2, now), Duration::ZERO, "a PINGREQ is no message");
        assert_eq!(other.charge(1, 20, now + PAUSE_MAX + PAUSE_TURN), Duration::ZERO);
        let mut own = Pace::new(rates(1, 0), None).unwrap();
        assert_eq!(own.charge(13_107, 65_535, now), PAUSE_MAX);
        assert_eq!(own.charge(1, 20, now + PAUSE_MAX), PAUSE_MAX, "it owes the rest");
    }

    #[test]
    fn without_rates_there_is_nothing() {
        assert!(Pace::new(Rates::default(), None).is_none() && Meter::shared(Rates::default()).is_none());
    }
}

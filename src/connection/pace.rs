//! How fast one client is read from: by the rates that are configured for it and for its listener, and by what memory is left.
//!
//! A client that has to wait is not read from; it notices nothing but that its socket fills. Without rates nothing is counted, no clock
//! read and no timer made.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::pace::Bucket;

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
    /// None if any rate is good.
    #[must_use]
    pub fn new(rates: Rates) -> Option<Self> {
        let Rates { messages, bytes } = rates;
        (messages.is_some() || bytes.is_some()).then(|| Self { messages: messages.map(Bucket::new), bytes: bytes.map(Bucket::new) })
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
        let own = Meter::new(own);
        (own.is_some() || listener.is_some()).then(|| Box::new(Self { own, listener: listener.cloned() }))
    }

    /// So much came at `now`; says how long the client is not to be read from.
    pub(super) fn charge(&mut self, messages: u64, bytes: u64, now: Instant) -> Duration {
        let own = self.own.as_mut().map_or(Duration::ZERO, |meter| meter.charge(messages, bytes, now));
        let all = self.listener.as_ref().map_or(Duration::ZERO, |meter| meter.lock().charge(messages, bytes, now));
        own.max(all)
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
        let all = Meter::new(rates(0, 1_000)).map(|meter| Arc::new(Mutex::new(meter)));
        let mut clients = [(); 2].map(|()| Pace::new(rates(10, 0), all.as_ref()).unwrap());
        let now = clock::now();
        let [one, other] = &mut clients;
        assert_eq!(one.charge(10, 500, now), Duration::ZERO);
        assert_eq!(one.charge(1, 0, now), Duration::from_millis(100), "its own messages");
        assert_eq!(other.charge(1, 750, now), Duration::from_millis(250), "the bytes of both");
    }

    #[test]
    fn without_rates_there_is_nothing() {
        assert!(Pace::new(Rates::default(), None).is_none() && Meter::new(Rates::default()).is_none());
    }
}

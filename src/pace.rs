//! How fast something may come: a bucket of tokens, and how long to wait once it is empty.
//!
//! What has come has come: it is charged when it is there, and a bucket may owe. Whoever is told to wait reads nothing more until then, and no more
//! than there are tokens for, so that over time no more comes than the rate allows, and [`RATE_BURST`] of it at once. Who brings nothing waits for
//! nothing, whatever others owe. It reads no clock.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use crate::limits::RATE_BURST;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// See the module's page.
#[derive(Debug)]
pub struct Bucket {
    per_second: NonZeroU64,
    /// When everything that was charged has been paid for. A full bucket's lies [`RATE_BURST`] back.
    paid_at: Option<Instant>,
    /// It owes no more than what comes in this time; the rest is forgiven.
    debt_max: Duration,
}

impl Bucket {
    /// A full bucket that gains `per_second` tokens.
    #[must_use]
    pub fn new(per_second: NonZeroU64) -> Self {
        Self { per_second, paid_at: None, debt_max: Duration::MAX }
    }

    /// The same for many who share it: none of them waits longer than `debt_max` for what another took.
    #[must_use]
    pub fn shared(per_second: NonZeroU64, debt_max: Duration) -> Self {
        Self { debt_max, ..Self::new(per_second) }
    }

    /// The tokens that are there at `now`.
    #[must_use]
    pub fn tokens(&self, now: Instant) -> u64 {
        let nanos = now.saturating_duration_since(self.begin(now)).as_nanos();
        u64::try_from(nanos * u128::from(self.per_second.get()) / u128::from(NANOS_PER_SECOND)).unwrap_or(u64::MAX)
    }

    /// From when on tokens count that are there at `now`.
    fn begin(&self, now: Instant) -> Instant {
        let full_at = now.checked_sub(RATE_BURST).unwrap_or(now);
        self.paid_at.map_or(full_at, |at| at.max(full_at))
    }

    /// Takes `tokens` out at `now`. Says how long nothing more may come: zero as long as it does not owe any.
    pub fn charge(&mut self, tokens: u64, now: Instant) -> Duration {
        if tokens == 0 {
            return Duration::ZERO;
        }
        let cost = Duration::from_nanos(tokens.saturating_mul(NANOS_PER_SECOND) / self.per_second);
        let begin = self.begin(now);
        // Beyond what a clock can say nobody waits anyway.
        let paid_at = begin.checked_add(cost).unwrap_or(begin);
        let paid_at = now.checked_add(self.debt_max).map_or(paid_at, |latest| paid_at.min(latest));
        self.paid_at = Some(paid_at);
        paid_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do: the tests count from it")]
mod tests {
    use super::*;

    fn bucket(per_second: u64) -> Bucket {
        Bucket::new(NonZeroU64::new(per_second).unwrap())
    }

    #[test]
    fn a_burst_passes_and_the_rest_waits_its_turn() {
        let (mut bucket, start) = (bucket(100), Instant::now());
        assert_eq!(bucket.charge(100, start), Duration::ZERO);
        assert_eq!(bucket.charge(50, start), Duration::from_millis(500));
        assert_eq!(bucket.charge(0, start + Duration::from_millis(500)), Duration::ZERO);
        assert_eq!(bucket.charge(1, start + Duration::from_millis(500)), Duration::from_millis(10));
    }

    #[test]
    fn over_time_no_more_passes_than_the_rate_whatever_the_batches() {
        for (batch, rate) in [(1, 7), (3, 1_000), (50_000, 1_000), (65_536, 10_000_000)] {
            let (mut bucket, start) = (bucket(rate), Instant::now());
            let (mut now, mut passed) = (start, 0);
            while now - start < Duration::from_secs(100) {
                passed += batch;
                now += bucket.charge(batch, now).max(Duration::from_nanos(100));
            }
            let (least, most) = (100 * rate - batch, 102 * rate + 2 * batch);
            assert!((least..=most).contains(&passed), "{passed} of {rate}/s in batches of {batch}");
        }
    }

    #[test]
    fn an_idle_bucket_saves_up_no_more_than_its_burst() {
        let (mut bucket, start) = (bucket(10), Instant::now());
        assert_eq!(bucket.charge(1, start), Duration::ZERO);
        let later = start + Duration::from_secs(3_600);
        assert_eq!(bucket.charge(11, later), Duration::from_millis(100));
    }

    #[test]
    fn there_are_as_many_tokens_as_were_not_taken() {
        let (mut bucket, start) = (bucket(100), Instant::now());
        assert_eq!(bucket.tokens(start), 100);
        bucket.charge(30, start);
        assert_eq!(bucket.tokens(start), 70);
        bucket.charge(80, start);
        assert_eq!(bucket.tokens(start), 0);
        assert_eq!(bucket.tokens(start + Duration::from_millis(300)), 20);
        assert_eq!(bucket.tokens(start + Duration::from_secs(3_600)), 100);
    }

    #[test]
    fn who_brings_nothing_does_not_wait_for_what_others_owe() {
        let (mut bucket, start) = (bucket(1), Instant::now());
        assert!(bucket.charge(1_000, start) > Duration::from_secs(900));
        assert_eq!(bucket.charge(0, start), Duration::ZERO);
    }

    #[test]
    fn what_is_shared_owes_no_more_than_it_may() {
        let mut bucket = Bucket::shared(NonZeroU64::new(1).unwrap(), Duration::from_secs(5));
        let start = Instant::now();
        assert_eq!(bucket.charge(1_000, start), Duration::from_secs(5));
        assert_eq!(bucket.charge(1_000, start), Duration::from_secs(5));
        assert_eq!(bucket.charge(1, start + Duration::from_secs(6)), Duration::ZERO);
    }

    #[test]
    fn what_no_clock_can_say_is_not_waited_for() {
        let (mut bucket, now) = (bucket(1), Instant::now());
        for _ in 0..4 {
            bucket.charge(u64::MAX, now);
        }
    }
}

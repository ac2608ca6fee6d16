//! How fast something may come: a bucket of tokens, and how long to wait once it is empty.
//!
//! What has come has come: it is charged when it is there, however much it is, and a bucket may owe. Whoever is told to wait reads nothing more
//! until then, so that over time no more comes than the rate allows, and [`RATE_BURST`] of it at once. It reads no clock.

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
}

impl Bucket {
    /// A full bucket that gains `per_second` tokens.
    #[must_use]
    pub fn new(per_second: NonZeroU64) -> Self {
        Self { per_second, paid_at: None }
    }

    /// Takes `tokens` out at `now`. Says how long nothing more may come: zero as long as it does not owe any.
    pub fn charge(&mut self, tokens: u64, now: Instant) -> Duration {
        let cost = Duration::from_nanos(tokens.saturating_mul(NANOS_PER_SECOND) / self.per_second);
        let full_at = now.checked_sub(RATE_BURST).unwrap_or(now);
        let begin = self.paid_at.map_or(full_at, |at| at.max(full_at));
        // Beyond what a clock can say nobody waits anyway.
        let paid_at = begin.checked_add(cost).unwrap_or(begin);
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
    fn what_no_clock_can_say_is_not_waited_for() {
        let (mut bucket, now) = (bucket(1), Instant::now());
        for _ in 0..4 {
            bucket.charge(u64::MAX, now);
        }
    }
}

//! Limits to how fast things may be said, heard and done, so that one peer's unrest is not everybody's.
//!
//! [`Hold`] counts acts (802.1D-2004 17.19.44, txCount), [`EpochReach`] says how far ahead an epoch is believed.

use std::time::{Duration, Instant};

use crate::limits;

/// So many at once, and one more an interval.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Hold {
    interval: Duration,
    /// What those at once would have taken one by one, but for the last.
    ahead_max: Duration,
    /// When all that was done would have been, one an interval.
    paid_at: Option<Instant>,
}

impl Hold {
    pub(super) fn new(at_once: u32, interval: Duration) -> Self {
        Self { interval, ahead_max: interval * at_once.saturating_sub(1), paid_at: None }
    }

    /// So many at once, and as many again in each second.
    pub(super) fn per_second(count: u32) -> Self {
        Self::new(count, Duration::from_secs(1) / count.max(1))
    }

    /// When the next may be; `now`: at once.
    pub(super) fn free_at(&self, now: Instant) -> Instant {
        let ahead = self.paid_at.map_or(Duration::ZERO, |paid_at| paid_at.saturating_duration_since(now));
        now + ahead.saturating_sub(self.ahead_max)
    }

    /// One is done now.
    pub(super) fn count(&mut self, now: Instant) {
        self.paid_at = Some(self.paid_at.map_or(now, |paid_at| paid_at.max(now)) + self.interval);
    }
}

/// The highest epoch that is believed. It goes ahead of what was believed by at most [`limits::EPOCH_STEP_MAX`] an interval.
///
/// What is beyond waits for the next interval and costs nobody a link: whoever says it may have believed it a moment before we may. So
/// brokers that are led ahead stay within an interval of each other, and to use the epochs up takes longer than anybody waits.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct EpochReach {
    interval: Duration,
    began_at: Option<Instant>,
    epoch: u64,
}

impl EpochReach {
    pub(super) fn new(epoch: u64, interval: Duration) -> Self {
        Self { interval, began_at: None, epoch: epoch.saturating_add(limits::EPOCH_STEP_MAX) }
    }

    pub(super) fn believes(&self, epoch: u64) -> bool {
        epoch <= self.epoch
    }

    /// A new interval begins if one has passed. `believed` is the highest epoch that was; `waits`: something beyond is waiting.
    pub(super) fn advance(&mut self, believed: u64, waits: bool, now: Instant) {
        let began_at = *self.began_at.get_or_insert(now);
        if now.saturating_duration_since(began_at) < self.interval {
            return;
        }
        let base = if waits { self.epoch } else { believed };
        self.epoch = self.epoch.max(base.saturating_add(limits::EPOCH_STEP_MAX)).min(limits::EPOCH_MAX);
        self.began_at = Some(now);
    }

    /// When the next interval begins.
    pub(super) fn due(&self) -> Option<Instant> {
        self.began_at.map(|began_at| began_at + self.interval)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn so_many_at_once_and_then_one_an_interval() {
        let start = Instant::now();
        let mut hold = Hold::new(3, SECOND);
        let mut done_at = Vec::new();
        let mut now = start;
        for _ in 0..6 {
            now = hold.free_at(now);
            hold.count(now);
            done_at.push((now - start).as_secs());
        }
        assert_eq!(done_at, [0, 0, 0, 1, 2, 3]);
        let later = now + 60 * SECOND;
        for _ in 0..3 {
            assert_eq!(hold.free_at(later), later);
            hold.count(later);
        }
        assert_eq!(hold.free_at(later), later + SECOND, "a long rest saves up no more than those at once");
    }

    #[test]
    fn the_reach_takes_one_step_an_interval_however_far_the_words_are() {
        let start = Instant::now();
        let step = limits::EPOCH_STEP_MAX;
        let mut reach = EpochReach::new(1, SECOND);
        reach.advance(1, false, start);
        assert!(reach.believes(1 + step) && !reach.believes(2 + step));
        for later in 1..1_000_u32 {
            reach.advance(1 + step, false, start + SECOND * later / 1_000);
            assert!(!reach.believes(2 + step), "not within the interval");
        }
        reach.advance(1 + step, false, start + SECOND);
        assert!(reach.believes(1 + 2 * step) && !reach.believes(2 + 2 * step));
        reach.advance(1 + step, true, start + 2 * SECOND);
        assert!(reach.believes(1 + 3 * step) && !reach.believes(2 + 3 * step), "for what waits there");
        reach.advance(u64::MAX, true, start + 3 * SECOND);
        assert!(!reach.believes(limits::EPOCH_MAX + 1));
    }
}

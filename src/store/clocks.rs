//! The monotonic clock, by which the core counts, and the wall clock, by which times are written down, at one moment.

use std::time::{Duration, Instant};

use crate::clock;

/// 2025, since the Unix epoch: earlier than this program was written no clock stands that was ever set.
const WRITTEN_AT: Duration = Duration::from_secs(1_735_689_600);

/// See the module's page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    pub(super) now: Instant,
    /// Since the Unix epoch.
    pub(super) unix: Duration,
}

impl Clocks {
    /// At this moment.
    pub(super) fn read() -> Self {
        Self { now: clock::now(), unix: clock::unix_time() }
    }

    /// A moment in milliseconds since the Unix epoch.
    pub(super) fn unix_ms(&self, at: Instant) -> u64 {
        let unix = match at.checked_duration_since(self.now) {
            Some(ahead) => self.unix.saturating_add(ahead),
            None => self.unix.saturating_sub(self.now.saturating_duration_since(at)),
        };
        u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)
    }

    /// A moment before now that was written down; none if it is not before now, or longer ago than the monotonic clock can name.
    pub(super) fn past(&self, unix_ms: u64) -> Option<Instant> {
        let ago = self.unix.checked_sub(Duration::from_millis(unix_ms))?;
        self.now.checked_sub(ago)
    }

    /// The moment that was written down. One that the monotonic clock cannot name is now.
    pub(super) fn instant(&self, unix_ms: u64) -> Instant {
        let at = Duration::from_millis(unix_ms);
        let moment = match at.checked_sub(self.unix) {
            Some(ahead) => self.now.checked_add(ahead),
            None => self.now.checked_sub(self.unix.saturating_sub(at)),
        };
        moment.unwrap_or(self.now)
    }

    /// When something was published that was written down, not later than now. By a clock that had not been set yet it is not known, and no more than now: a
    /// board without a battery would else find its log decades old once its clock is right.
    pub(super) fn published(&self, unix_ms: u64) -> Instant {
        let was_set = |unix: Duration| unix >= WRITTEN_AT;
        if was_set(self.unix) && !was_set(Duration::from_millis(unix_ms)) { self.now } else { self.instant(unix_ms).min(self.now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_back_as_themselves() {
        let clocks = Clocks { now: clock::now(), unix: Duration::from_millis(1_800_000_000_000) };
        for (moment, unix_ms) in [
            (clocks.now, 1_800_000_000_000),
            (clocks.now + Duration::from_secs(60), 1_800_000_060_000),
            (clocks.now - Duration::from_millis(1), 1_799_999_999_999),
        ] {
            assert_eq!((clocks.unix_ms(moment), clocks.instant(unix_ms)), (unix_ms, moment));
        }
        assert!(clocks.instant(u64::MAX) > clocks.now);
        let second_ago = clocks.now - Duration::from_secs(1);
        assert_eq!([1_799_999_999_000, 1_800_000_000_001].map(|at| clocks.past(at)), [Some(second_ago), None]);
    }

    #[test]
    fn what_a_clock_showed_that_was_not_set_makes_nothing_old() {
        let now = clock::now();
        let (hour, start) = (Duration::from_secs(3_600), Duration::from_secs(3_700));
        let at_first = Clocks { now, unix: start };
        let written = at_first.unix_ms(now - hour);
        assert_eq!(at_first.published(written), now - hour, "it is not set yet: differences hold");
        let set = Clocks { now, unix: Duration::from_millis(1_800_000_000_000) };
        assert_eq!(set.published(written), now);
        assert_eq!(set.published(set.unix_ms(now - hour)), now - hour);
        assert_eq!(set.published(set.unix_ms(now + hour)), now, "the clock has gone back");
    }
}

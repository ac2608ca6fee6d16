//! How long what a lane brings was on its way here: a block ages there as it does in brokers, however long credit, a full path or a reader without a processor
//! let it wait.
//!
//! Two monotonic clocks have nothing in common but what both ends saw: the sender took in our OPEN after we had written it. In front of what it sends it says, each
//! [`SENT_EVERY`] at most, how long ago that was. What our clock is ahead of that word when something is read, less what it is ahead at the least, is the time for
//! which that has waited. As the blocks of a stream are read in their order, the word in front of a block bounds the time of all that follow.
//!
//! The least is that of the last minute or two, so that clocks may drift. What is not known is taken for what does no harm:
//!
//! | | QoS 0: what was there before a restart is not to come again | QoS 1 and 2: nobody is to be denied what was published since a start |
//! |---|---|---|
//! | when a block was written behind a word | at once: it may seem older by 20 ms | as late as there was no other word |
//! | what the first word of an agreement has waited | as long as our OPEN and it took together | nothing |

use std::time::{Duration, Instant};

/// Words follow each other at this distance at least.
pub(super) const SENT_EVERY: Duration = Duration::from_millis(20);

/// What is written before the next word, and two differences of whole milliseconds.
const DOUBT_MS: i64 = 22;
const _: () = assert!(DOUBT_MS as u128 == SENT_EVERY.as_millis() + 2);

/// The least counts for so long at least, and for twice that at most.
const LEAST_LIFE: Duration = Duration::from_secs(60);

/// Of one lane, from one agreement to the next.
#[derive(Debug)]
pub(super) struct Travel {
    /// Our clock is counted from here, in milliseconds.
    begin: Instant,
    /// What is read may have been on its way for so much less than it seems, milliseconds.
    doubt_ms: i64,
    /// The newest word, milliseconds.
    told_ms: Option<i64>,
    /// What our clock was ahead of a word at the least: since `turned_at`, and in the time before.
    least_ms: [i64; 2],
    turned_at: Instant,
}

impl Travel {
    /// Of a lane of QoS 1 and 2, if it is `reliable`.
    pub(super) fn new(reliable: bool, now: Instant) -> Self {
        let doubt_ms = if reliable { DOUBT_MS } else { 0 };
        Self { begin: now, doubt_ms, told_ms: None, least_ms: [i64::MAX; 2], turned_at: now }
    }

    /// Whether nothing was said yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.told_ms.is_none()
    }

    /// We wrote our OPEN at `at`: the far side cannot have taken it in before.
    pub(super) fn opened(&mut self, at: Instant) {
        self.has_been(self.clock_ms(at));
    }

    /// The far side says that what follows was written so long after it had taken in our OPEN.
    pub(super) fn told(&mut self, after_open_ms: u64, now: Instant) {
        let told_ms = i64::try_from(after_open_ms).unwrap_or(i64::MAX);
        let turned = now.saturating_duration_since(self.turned_at);
        if turned >= LEAST_LIFE {
            let before = if turned < 2 * LEAST_LIFE { self.least_ms[0] } else { i64::MAX };
            (self.least_ms, self.turned_at) = ([i64::MAX, before], now);
        }
        self.told_ms = Some(told_ms);
        self.has_been(self.clock_ms(now).saturating_sub(told_ms));
    }

    /// For how long what is read at `now` has been on its way, milliseconds.
    pub(super) fn waited_ms(&self, now: Instant) -> u64 {
        let Some(told_ms) = self.told_ms else { return 0 };
        let [since, before] = self.least_ms;
        let ahead_ms = self.clock_ms(now).saturating_sub(told_ms);
        let waited_ms = ahead_ms.saturating_sub(since.min(before)).saturating_sub(self.doubt_ms);
        u64::try_from(waited_ms).unwrap_or(0)
    }

    fn has_been(&mut self, ahead_ms: i64) {
        self.least_ms[0] = self.least_ms[0].min(ahead_ms);
    }

    fn clock_ms(&self, at: Instant) -> i64 {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        ms(at.saturating_duration_since(self.begin)) - ms(self.begin.saturating_duration_since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[expect(clippy::disallowed_methods, reason = "a test's time has to begin somewhere")]
    fn start() -> Instant {
        Instant::now()
    }

    /// What is read at these times, said to have been written at those, has waited so long, milliseconds.
    fn waits(travel: &mut Travel, begin: Instant, reads: &[(u32, u64)]) -> Vec<u64> {
        let read = |(at, told): &(u32, u64)| {
            travel.told(*told, begin + *at * MS);
            travel.waited_ms(begin + *at * MS)
        };
        reads.iter().map(read).collect()
    }

    #[test]
    fn what_is_read_later_than_the_quickest_has_waited_for_the_difference() {
        let begin = start();
        let mut travel = Travel::new(false, begin);
        assert_eq!(travel.waited_ms(begin + 500 * MS), 0, "of a far side that says nothing nothing is known");
        assert_eq!(waits(&mut travel, begin, &[(30, 0), (60, 20), (3_110, 60), (3_111, 2_990)]), [0, 10, 3_020, 91]);
        assert_eq!(travel.waited_ms(begin + 3_130 * MS), 110, "what follows without a word of its own has waited since that");
        assert_eq!(waits(&mut travel, begin, &[(3_500, 3_480)]), [0], "quicker than any before");
        assert_eq!(waits(&mut travel, begin, &[(3_530, 3_500)]), [10]);
    }

    #[test]
    fn an_open_that_was_read_at_once_is_the_measure_of_the_first_word() {
        let begin = start();
        let mut travel = Travel::new(false, begin + 2_000 * MS);
        travel.opened(begin);
        assert_eq!(waits(&mut travel, begin, &[(3_000, 0), (3_010, 2_990)]), [3_000, 20]);
    }

    #[test]
    fn of_qos_1_and_2_nothing_seems_older_than_it_is() {
        let begin = start();
        let mut travel = Travel::new(true, begin);
        assert_eq!(waits(&mut travel, begin, &[(30, 0), (3_110, 60)]), [0, 3_020 - 22]);
        let late = begin + 3_150 * MS;
        // Written as late as at 79 without a word, and read at once.
        assert!(travel.waited_ms(late) <= 3_150 - 79 - 30);
    }

    #[test]
    fn clocks_may_drift_and_lanes_may_rest() {
        let begin = start();
        // Ours is faster by a tenth of a per cent: a minute after another.
        let mut travel = Travel::new(false, begin);
        let minutes: Vec<_> = (0..600).map(|minute| (minute * 60_060, u64::from(minute) * 60_000)).collect();
        let waited = waits(&mut travel, begin, &minutes);
        assert!(waited.iter().all(|waited| *waited <= 180), "{waited:?}");
        // Slower.
        let mut travel = Travel::new(false, begin);
        let minutes: Vec<_> = (0..600).map(|minute| (minute * 59_940, u64::from(minute) * 60_000)).collect();
        assert!(waits(&mut travel, begin, &minutes).iter().all(|waited| *waited == 0));
        // After a night without a word the first is the measure.
        let mut travel = Travel::new(false, begin);
        assert_eq!(waits(&mut travel, begin, &[(0, 0), (36_036_000, 36_000_000), (36_036_500, 36_000_100)]), [0, 0, 400]);
    }

    #[test]
    fn whatever_a_far_side_says_does_no_harm() {
        let begin = start();
        let mut travel = Travel::new(false, begin);
        assert_eq!(waits(&mut travel, begin, &[(0, u64::MAX), (1, 0), (2, u64::MAX)])[2], 2);
        let waited = travel.waited_ms(begin + Duration::from_secs(u64::from(u32::MAX)));
        assert!(waited <= u64::from(u32::MAX) * 1_000, "{waited}");
    }
}

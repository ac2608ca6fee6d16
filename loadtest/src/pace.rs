//! An open loop: messages leave by a schedule that knows nothing of how the broker fares.
//!
//! Message `k` of a run is due at `start + k / rate` (during a ramp, in which the rate grows evenly from nothing, later) and
//! belongs to publisher `k mod publishers`. A message that leaves late,
//! because the broker or we were slow, still bears the time it was due: its latency includes the delay it would have caused a
//! real client (correction for coordinated omission).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Gate, Phase, Shared};
use crate::clock::{nanoseconds, now_ns};
use crate::spread::Random;
use crate::timer::Timer;

/// When each message of each publisher is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    start_ns: u64,
    interval_ns: f64,
    publishers: u64,
    ramp_ns: f64,
    /// Up to which part of its publisher's interval a message is put off.
    jitter: f64,
}

impl Schedule {
    /// `per_second` messages a second, `ramp` after `start_ns` and from then on, taken in turn by so many publishers.
    pub(crate) fn new(start_ns: u64, per_second: f64, publishers: u32, ramp: Duration) -> Self {
        let ramp_ns = nanoseconds(ramp) as f64;
        Self { start_ns, interval_ns: 1e9 / per_second, publishers: u64::from(publishers.max(1)), ramp_ns, jitter: 0.0 }
    }

    /// The same, but each message is put off by chance, by less than this part (0 to 1) of the time to its publisher's next.
    pub(crate) fn with_jitter(self, jitter: f64) -> Self {
        Self { jitter, ..self }
    }

    /// When message `sequence` of `publisher` is due.
    pub(crate) fn due_at_ns(&self, publisher: u32, sequence: u64) -> u64 {
        let k = sequence * self.publishers + u64::from(publisher);
        let due_at_ns = self.due_at_ns_of(k);
        if self.jitter == 0.0 {
            return due_at_ns;
        }
        let interval_ns = self.due_at_ns_of(k + self.publishers) - due_at_ns;
        due_at_ns + (Random::new(k ^ self.start_ns).share() * self.jitter * interval_ns as f64) as u64
    }

    /// When message `k` of the run is due.
    pub(crate) fn due_at_ns_of(&self, k: u64) -> u64 {
        let evenly_ns = k as f64 * self.interval_ns;
        // In a ramp of length R to one message an interval, t^2 / 2R intervals' worth has come after t.
        let after_ns =
            if evenly_ns < self.ramp_ns / 2.0 { (2.0 * self.ramp_ns * evenly_ns).sqrt() } else { evenly_ns + self.ramp_ns / 2.0 };
        self.start_ns + after_ns as u64
    }

    /// How many messages of the run are due at `now_ns`: exactly those whose [`Self::due_at_ns`] has come, or a publisher that
    /// is woken for one would find it not due yet, and sleep until its next.
    fn due_by(&self, now_ns: u64) -> u64 {
        let Some(elapsed_ns) = now_ns.checked_sub(self.start_ns) else {
            return 0;
        };
        let elapsed_ns = elapsed_ns as f64;
        let evenly_ns = if elapsed_ns < self.ramp_ns {
            elapsed_ns * elapsed_ns / (2.0 * self.ramp_ns)
        } else {
            elapsed_ns - self.ramp_ns / 2.0
        };
        let mut due = (evenly_ns / self.interval_ns) as u64;
        // There and back round differently, by a message or so.
        while self.due_at_ns_of(due) <= now_ns {
            due += 1;
        }
        while due > 0 && self.due_at_ns_of(due - 1) > now_ns {
            due -= 1;
        }
        due
    }
}

/// Wakes each publisher when its next message is due, until the run stops publishing.
///
/// # Errors
/// When the system gives no timer.
pub(crate) async fn wake_when_due(schedule: Schedule, gates: Arc<[Arc<Gate>]>, shared: Arc<Shared>) -> io::Result<()> {
    let timer = Timer::new()?;
    if schedule.jitter > 0.0 {
        return wake_each_when_due(schedule, &gates, &shared, &timer).await;
    }
    let mut next = 0;
    while shared.phase.now() == Phase::Publish {
        let due_at_ns = schedule.due_at_ns_of(next);
        match due_at_ns.checked_sub(now_ns()).filter(|&wait_ns| wait_ns > 0) {
            Some(wait_ns) => timer.sleep(Duration::from_nanos(wait_ns)).await?,
            None => tokio::task::yield_now().await,
        }
        let now_ns = now_ns();
        if due_at_ns >= shared.tally.measured_from_ns() {
            shared.tally.record_lateness(now_ns.saturating_sub(due_at_ns));
        }
        let due = schedule.due_by(now_ns).max(next + 1);
        let woken = (due - next).min(schedule.publishers);
        (next..next + woken).filter_map(|k| gates.get((k % schedule.publishers) as usize)).for_each(|gate| gate.wake());
        next = due;
    }
    Ok(())
}

/// With jitter publishers have no turns: whoever is due next is kept on a heap.
async fn wake_each_when_due(schedule: Schedule, gates: &[Arc<Gate>], shared: &Shared, timer: &Timer) -> io::Result<()> {
    let first = |publisher: u32| Reverse((schedule.due_at_ns(publisher, 0), publisher, 0));
    let mut due: BinaryHeap<_> = (0..gates.len() as u32).map(first).collect();
    while shared.phase.now() == Phase::Publish {
        let Some(&Reverse((due_at_ns, ..))) = due.peek() else { break };
        match due_at_ns.checked_sub(now_ns()).filter(|&wait_ns| wait_ns > 0) {
            Some(wait_ns) => timer.sleep(Duration::from_nanos(wait_ns)).await?,
            None => tokio::task::yield_now().await,
        }
        let now_ns = now_ns();
        if due_at_ns >= shared.tally.measured_from_ns() {
            shared.tally.record_lateness(now_ns.saturating_sub(due_at_ns));
        }
        while let Some(mut next) = due.peek_mut().filter(|next| next.0.0 <= now_ns) {
            let Reverse((_, publisher, sequence)) = *next;
            gates.get(publisher as usize).into_iter().for_each(|gate| gate.wake());
            *next = Reverse((schedule.due_at_ns(publisher, sequence + 1), publisher, sequence + 1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_take_turns_at_the_rate_of_the_run() {
        let schedule = Schedule::new(1_000_000, 1_000.0, 4, Duration::ZERO);
        assert_eq!(
            (schedule.due_at_ns(0, 0), schedule.due_at_ns(1, 0), schedule.due_at_ns(3, 0)),
            (1_000_000, 2_000_000, 4_000_000)
        );
        assert_eq!((schedule.due_at_ns(0, 1), schedule.due_at_ns(2, 10)), (5_000_000, 43_000_000));
    }

    #[test]
    fn what_is_due_agrees_with_when_it_is_due() {
        let rates = [0.5, 3.0, 1_000.0, 333_333.0, 2_000_000.0];
        for (per_second, ramp) in rates.into_iter().flat_map(|rate| [(rate, 0), (rate, 1), (rate, 50)]) {
            let schedule = Schedule::new(77, per_second, 1, Duration::from_secs(ramp));
            for k in (0..2_000).chain([999_999]) {
                let due_at_ns = schedule.due_at_ns(0, k);
                assert!(schedule.due_by(due_at_ns) > k, "{k} at {per_second}/s");
                assert!(schedule.due_by(due_at_ns - 1) <= k, "{k} at {per_second}/s");
            }
            assert_eq!(schedule.due_by(76), 0);
        }
    }

    #[test]
    fn jitter_puts_off_and_keeps_order_and_rate() {
        let even = Schedule::new(1_000, 1_000.0, 3, Duration::from_secs(1));
        let schedule = even.with_jitter(1.0);
        for publisher in 0..3 {
            let due: Vec<_> = (0..5_000).map(|sequence| schedule.due_at_ns(publisher, sequence)).collect();
            assert!(due.is_sorted());
            let late = due.iter().zip(0..).map(|(due, sequence)| due - even.due_at_ns(publisher, sequence));
            let mean_ns = late.skip(1_000).sum::<u64>() as f64 / 4_000.0;
            assert!((1.4e6..1.6e6).contains(&mean_ns), "half of 3 ms: {mean_ns}");
        }
    }

    #[test]
    fn a_ramp_reaches_the_rate_evenly() {
        let schedule = Schedule::new(0, 1_000.0, 1, Duration::from_secs(10));
        let sent: Vec<_> = [0, 1, 5, 10, 11, 20].map(|second| schedule.due_by(second * 1_000_000_000)).into();
        // The first is due at once; half of what there would have been without a ramp, then 1,000 a second.
        assert_eq!(sent, [1, 51, 1_251, 5_001, 6_001, 15_001]);
    }
}

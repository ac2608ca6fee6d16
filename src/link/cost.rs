//! What a link adds to a way over it (802.1D-2004 17.19.20, PortPathCost): the time that a packet and its answer are expected to take,
//! from the shortest round trip of a window and the loss of several, and never from our own queueing. Costs go in steps of two and change
//! at most once a window, and only when that time has left the present step by a margin: what merely trembles moves no tree.
//!
//! An operator may set a cost by hand. That is this end's part only: each end of a link has its own.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::detection::{Hellos, Path};
use crate::limits::LINK_COST_MAX;

/// A round trip is watched for this long before it changes a cost.
const WINDOW: Duration = Duration::from_secs(10);
/// Loss is that of so many windows together: a minute of hellos is a few hundred, which know it to some percent.
const LOSS_WINDOWS: usize = 6;
/// As if so many packets had come before and none been lost: a handful proves no loss.
const PACKETS_BEFORE: f64 = 50.0;
/// Beyond this a link is as good as cut.
const LOSS_MAX: f64 = 0.9;
/// One unit of cost. What is faster costs the same: within a site, whether a handshake met a busy moment must not form the tree.
const UNIT: Duration = Duration::from_millis(2);
/// How far beyond its step a link must be: a quarter.
const MARGIN: f64 = 1.25;
/// What a sender waits beyond a round trip before it sends anew what may be lost (RFC 9002 section 6.2.1, with the default max_ack_delay).
const PROBE_DELAY: Duration = Duration::from_millis(25);
/// Queues of our own have drained, and the smoothed round trip forgotten them, when lanes have been quiet for so long.
const QUIET: Duration = Duration::from_millis(500);

/// The cost of one link.
#[derive(Debug)]
pub struct Cost {
    cost: NonZeroU32,
    by_hand: bool,
    window_started: Instant,
    /// Shortest round trip of the present window, as far as it tells anything.
    shortest: Option<Duration>,
    /// Shortest of the last whole window that told.
    rtt: Duration,
    busy_at: Option<Instant>,
    /// What was sent and heard when the present window began.
    before: Counts,
    /// Of the last whole windows, the newest at `newest`.
    windows: [Counts; LOSS_WINDOWS],
    newest: usize,
}

/// What was sent and what was lost of it, each way.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    sent_lost: u64,
    hellos: Hellos,
}

impl Cost {
    /// A link that has just come up, with the round trip of its handshake; `by_hand` is what the operator says it costs.
    #[must_use]
    pub fn new(rtt: Duration, by_hand: Option<NonZeroU32>, now: Instant) -> Self {
        Self {
            cost: by_hand.unwrap_or_else(|| step(rtt)),
            by_hand: by_hand.is_some(),
            window_started: now,
            shortest: None,
            rtt,
            busy_at: None,
            before: Counts::default(),
            windows: [Counts::default(); LOSS_WINDOWS],
            newest: 0,
        }
    }

    /// What a way over the link costs.
    #[must_use]
    pub fn cost(&self) -> NonZeroU32 {
        self.cost
    }

    /// The round trip that the cost is drawn from.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.rtt
    }

    /// The loss that the cost is drawn from: the worse of the two directions' shares, over a minute.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let sum = |of: fn(&Counts) -> u64| self.windows.iter().map(of).sum::<u64>();
        let out = share(sum(|counts| counts.sent_lost), sum(|counts| counts.sent));
        let missed = sum(|counts| counts.hellos.missed);
        out.max(share(missed, missed + sum(|counts| counts.hellos.heard))).min(LOSS_MAX)
    }

    /// What was measured so far; `busy` while lanes move so much that the round trip may be of our own queues. Says whether a window ended.
    pub fn measure(&mut self, path: Path, hellos: Hellos, busy: bool, now: Instant) -> bool {
        if busy {
            self.busy_at = Some(now);
        }
        let is_quiet = self.busy_at.is_none_or(|at| now.saturating_duration_since(at) > QUIET);
        // A queue never made a way shorter.
        if is_quiet || path.rtt < self.rtt {
            self.shortest = Some(self.shortest.map_or(path.rtt, |shortest| shortest.min(path.rtt)));
        }
        if now.saturating_duration_since(self.window_started) < WINDOW {
            return false;
        }
        self.window_started = now;
        self.rtt = self.shortest.take().unwrap_or(self.rtt);
        let total = Counts { sent: path.sent, sent_lost: path.lost, hellos };
        self.newest = (self.newest + 1) % LOSS_WINDOWS;
        if let Some(window) = self.windows.get_mut(self.newest) {
            *window = total.since(self.before);
        }
        self.before = total;
        if !self.by_hand {
            let expected = expected(self.rtt, self.loss());
            let (dearer, cheaper) = (step(expected.div_f64(MARGIN)), step(expected.mul_f64(MARGIN)));
            self.cost = self.cost.clamp(dearer, cheaper);
        }
        true
    }
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            sent_lost: self.sent_lost.saturating_sub(before.sent_lost),
            hellos: Hellos {
                heard: self.hellos.heard.saturating_sub(before.hellos.heard),
                missed: self.hellos.missed.saturating_sub(before.hellos.missed),
            },
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn share(lost: u64, of: u64) -> f64 {
    lost as f64 / (of as f64 + PACKETS_BEFORE)
}

/// How long a packet and its answer take where each attempt succeeds only if neither is lost, and a failed one is noticed by a probe
/// time-out.
fn expected(rtt: Duration, loss: f64) -> Duration {
    let arrives = (1.0 - loss) * (1.0 - loss);
    rtt + (rtt + PROBE_DELAY).mul_f64(1.0 / arrives - 1.0)
}

/// The power of two at or above the time in units.
fn step(time: Duration) -> NonZeroU32 {
    let units = time.as_micros().div_ceil(UNIT.as_micros());
    let units = u32::try_from(units).unwrap_or(u32::MAX).min(LINK_COST_MAX).next_power_of_two();
    NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any moment will do: the tests count from it")]
    fn now() -> Instant {
        Instant::now()
    }

    fn micros(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// A link under virtual time: ten hellos a second each way, and what became of them.
    struct Bench {
        cost: Cost,
        at: Instant,
        path: Path,
        hellos: Hellos,
        rng: u64,
        /// Every cost there was.
        costs: Vec<u32>,
    }

    impl Bench {
        fn new(rtt: Duration, by_hand: Option<u32>) -> Self {
            let at = now();
            let cost = Cost::new(rtt, by_hand.and_then(NonZeroU32::new), at);
            let costs = vec![cost.cost().get()];
            Self { cost, at, path: Path { rtt, rtt_min: rtt, ..Path::default() }, hellos: Hellos::default(), rng: 1, costs }
        }

        fn is_lost(&mut self, loss: f64) -> u64 {
            self.rng = self.rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u64::from(((self.rng >> 33) as f64) < loss * f64::from(1_u32 << 31))
        }

        /// Costs that were seen on the way, without repetitions; the one at the beginning is the first.
        fn run(&mut self, seconds: u64, loss: f64, busy: bool, rtt: impl Fn(u64) -> Duration) -> Vec<u32> {
            let begin = self.costs.len() - 1;
            for n in 0..seconds * 10 {
                self.at += Duration::from_millis(100);
                self.path.rtt = rtt(n);
                self.path.sent += 1;
                self.path.lost += self.is_lost(loss);
                match self.is_lost(loss) {
                    0 => self.hellos.heard += 1,
                    missed => self.hellos.missed += missed,
                }
                self.cost.measure(self.path, self.hellos, busy, self.at);
                self.costs.push(self.cost.cost().get());
            }
            let mut seen = self.costs[begin..].to_vec();
            seen.dedup();
            seen
        }
    }

    #[test]
    fn costs_are_powers_of_two() {
        for (us, cost) in [(0, 1), (80, 1), (2_000, 1), (2_001, 2), (20_000, 16), (66_000, 64), (u64::MAX, LINK_COST_MAX)] {
            assert_eq!(step(micros(us)).get(), cost, "{us} us");
        }
    }

    #[test]
    fn it_changes_once_a_window_and_not_for_a_tremble() {
        let mut bench = Bench::new(micros(31_800), None);
        // Trembling about a step, with spikes from our own queues: no window ends with another cost.
        let tremble = |n: u64| micros(31_000 + (n % 10) * 300 + if n.is_multiple_of(7) { 90_000 } else { 0 });
        assert_eq!(bench.run(40, 0.0, false, tremble), [16]);
        // A real change is taken when a whole window has seen nothing else, once.
        assert_eq!(bench.run(40, 0.0, false, |_| micros(82_000)), [16, 64]);
        assert_eq!(bench.run(40, 0.0, false, |_| micros(900)), [64, 1]);
    }

    #[test]
    fn a_short_link_that_loses_packets_costs_more_than_a_longer_clean_one() {
        let mut lossy = Bench::new(micros(500), None);
        let mut clean = Bench::new(micros(3_000), None);
        let dearer = lossy.run(120, 0.2, false, |_| micros(500));
        assert!(dearer.is_sorted() && dearer.last() == Some(&8), "{dearer:?}");
        assert_eq!(clean.run(120, 0.0, false, |_| micros(3_000)), [2]);
        // Steady loss is a steady cost, hours long; what rests of it goes when it is over.
        for loss in [0.05, 0.2] {
            let mut bench = Bench::new(micros(500), None);
            bench.run(300, loss, false, |_| micros(500));
            assert_eq!(bench.run(3_600, loss, false, |_| micros(500)).len(), 1, "at {loss}");
        }
        let after = lossy.run(120, 0.0, false, |_| micros(500));
        assert!(after.is_sorted_by(|a, b| a > b) && after.last() == Some(&1), "{after:?}");
        // Some loss is part of every busy path.
        assert_eq!(Bench::new(micros(500), None).run(600, 0.01, false, |_| micros(500)), [1]);
        assert_eq!(Bench::new(micros(40_000), None).run(600, 0.02, false, |_| micros(40_000)), [32]);
    }

    #[test]
    fn a_few_lost_packets_are_no_loss() {
        let mut bench = Bench::new(micros(500), None);
        (bench.path.sent, bench.path.lost) = (10, 2);
        assert_eq!(bench.run(60, 0.0, false, |_| micros(500)), [1]);
    }

    #[test]
    fn our_own_queue_costs_nothing_however_long_it_stands() {
        let mut bench = Bench::new(micros(20_000), None);
        assert_eq!(bench.run(600, 0.0, true, |_| micros(400_000)), [16]);
        assert_eq!(bench.cost.rtt(), micros(20_000));
        // A shorter way is noticed all the same; a longer one once there is quiet.
        assert_eq!(bench.run(30, 0.0, true, |_| micros(1_000)), [16, 1]);
        assert_eq!(bench.run(30, 0.0, false, |_| micros(100_000)), [1, 64]);
    }

    #[test]
    fn what_is_set_by_hand_stays() {
        let mut bench = Bench::new(micros(500), Some(7));
        assert_eq!(bench.run(60, 0.3, false, |_| micros(300_000)), [7]);
        assert_eq!(bench.cost.rtt(), micros(300_000));
    }
}

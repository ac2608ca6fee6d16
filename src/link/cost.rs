//! What a link adds to a way over it (802.1D-2004 17.19.20, PortPathCost), from the shortest round trip of a window and never from our
//! own queueing. Costs go in steps of two and change at most once a window, and only when the round trip has left the present step by a
//! margin: what merely trembles moves no tree.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// A round trip is watched for this long before it changes a cost.
const WINDOW: Duration = Duration::from_secs(10);
/// One unit of cost. What is faster costs the same: within a site, whether a handshake met a busy moment must not form the tree.
const UNIT: Duration = Duration::from_millis(2);
/// How far beyond its step a round trip must be: a quarter.
const MARGIN: f64 = 1.25;

/// The cost of one link.
#[derive(Debug)]
pub struct Cost {
    cost: NonZeroU32,
    window_started: Instant,
    /// Shortest round trip of the present window.
    shortest: Duration,
    /// Shortest of the last whole window.
    rtt: Duration,
}

impl Cost {
    /// A link that has just come up, with the round trip of its handshake.
    #[must_use]
    pub fn new(rtt: Duration, now: Instant) -> Self {
        Self { cost: step(rtt), window_started: now, shortest: rtt, rtt }
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

    /// A round trip was measured. Says whether a window ended.
    pub fn measure(&mut self, rtt: Duration, now: Instant) -> bool {
        self.shortest = self.shortest.min(rtt);
        if now.saturating_duration_since(self.window_started) < WINDOW {
            return false;
        }
        self.rtt = self.shortest;
        (self.window_started, self.shortest) = (now, rtt);
        let dearer = step(self.rtt.div_f64(MARGIN));
        let cheaper = step(self.rtt.mul_f64(MARGIN));
        self.cost = self.cost.clamp(dearer.min(cheaper), cheaper.max(dearer));
        true
    }
}

/// The power of two at or above the round trip in units.
fn step(rtt: Duration) -> NonZeroU32 {
    let units = rtt.as_micros().div_ceil(UNIT.as_micros());
    let units = u32::try_from(units).unwrap_or(u32::MAX).min(1 << 20).next_power_of_two();
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

    #[test]
    fn costs_are_powers_of_two() {
        for (us, cost) in [(0, 1), (80, 1), (2_000, 1), (2_001, 2), (20_000, 16), (66_000, 64), (u64::MAX, 1 << 20)] {
            assert_eq!(step(micros(us)).get(), cost, "{us} us");
        }
    }

    #[test]
    fn it_changes_once_a_window_and_not_for_a_tremble() {
        let start = now();
        let mut cost = Cost::new(micros(31_800), start);
        let mut at = start;
        // Trembling about a step, with spikes from our own queues: no window ends with another cost.
        for n in 0..400_u64 {
            at += Duration::from_millis(100);
            cost.measure(micros(31_000 + (n % 10) * 300 + if n % 7 == 0 { 90_000 } else { 0 }), at);
            assert_eq!(cost.cost().get(), 16);
        }
        // A real change is taken when a whole window has seen nothing else, once.
        for (rtt, before, after) in [(micros(82_000), 16, 64), (micros(900), 64, 1)] {
            let mut seen = vec![before];
            for _ in 0..400 {
                at += Duration::from_millis(100);
                cost.measure(rtt, at);
                seen.push(cost.cost().get());
            }
            seen.dedup();
            assert_eq!(seen, [before, after]);
        }
    }
}

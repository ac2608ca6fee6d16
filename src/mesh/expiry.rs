//! When to warn that our own certificate expires: 30, 7 and 1 days before, once each, and once when it has. A decision as a value.
//!
//! A step that is longer than half the certificate's life does not count: whoever has certificates made for a day does not need to be told
//! each day that there is one left.

use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
/// Time left at which a warning is due; the longest first.
const STEPS: [Duration; 4] = [DAY.saturating_mul(30), DAY.saturating_mul(7), DAY, Duration::ZERO];

/// The warnings of one certificate.
#[derive(Debug)]
pub(super) struct Countdown {
    /// Steps not yet told; the next first.
    due: Vec<Duration>,
}

impl Countdown {
    /// For a certificate whose whole life is `life`.
    pub(super) fn new(life: Duration) -> Self {
        Self { due: STEPS.into_iter().filter(|step| *step <= life / 2).collect() }
    }

    /// Whether a warning is due with so much time left; zero: it has expired.
    pub(super) fn is_due(&mut self, left: Duration) -> bool {
        let due = self.due.len();
        self.due.retain(|step| left > *step);
        self.due.len() < due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_told_once_and_steps_that_were_slept_through_together() {
        let mut year = Countdown::new(DAY * 397);
        let told: Vec<u32> = (0..=60).rev().filter(|days| year.is_due(DAY * *days)).collect();
        assert_eq!(told, [30, 7, 1, 0]);
        let mut late = Countdown::new(DAY * 397);
        assert!(late.is_due(DAY * 5) && !late.is_due(DAY * 5) && late.is_due(DAY));
    }

    #[test]
    fn short_lives_are_not_warned_of_all_the_time() {
        let mut day = Countdown::new(DAY);
        assert!(!day.is_due(DAY) && !day.is_due(Duration::from_secs(1)) && day.is_due(Duration::ZERO));
    }
}

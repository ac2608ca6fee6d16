//! Two clients with one name: each throws the other out [MQTT-3.1.4-3], as fast as they connect again, for ever.
//!
//! Taking a session over now and then is free; who does it much oftener waits for its CONNACK, and so both wait for each other. It costs
//! nobody else anything, and no client is refused.

use std::time::Duration;

/// Takeovers that are free at once.
const FREE: u64 = 20;
/// One more is free after this time.
const REGAINED_MS: u64 = 1_000;
/// How long a client waits once they are used up.
const WAIT: Duration = Duration::from_millis(250);

/// How often one session was taken over lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rivalry {
    /// When all takeovers so far will have been forgotten, milliseconds of the router's clock.
    forgotten_at_ms: u64,
}

impl Rivalry {
    /// How long it takes from `now_ms` on until all is forgotten, milliseconds.
    pub(crate) fn left_ms(self, now_ms: u64) -> u64 {
        self.forgotten_at_ms.saturating_sub(now_ms)
    }

    /// As it was elsewhere, where so much was left of it.
    pub(crate) fn elsewhere(left_ms: u64, now_ms: u64) -> Self {
        Self { forgotten_at_ms: now_ms.saturating_add(left_ms.min(FREE * REGAINED_MS)) }
    }

    /// Once more, at `now_ms`. Says how long the new client is to wait.
    pub(crate) fn taken_over(&mut self, now_ms: u64) -> Duration {
        let most = now_ms.saturating_add(FREE * REGAINED_MS);
        let forgotten_at_ms = self.forgotten_at_ms.max(now_ms).saturating_add(REGAINED_MS);
        self.forgotten_at_ms = forgotten_at_ms.min(most);
        if forgotten_at_ms > most { WAIT } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_takeovers_at_a_time_make_wait() {
        let mut rivalry = Rivalry::default();
        let waits = |rivalry: &mut Rivalry, now_ms| (0..FREE).filter(|_| !rivalry.taken_over(now_ms).is_zero()).count();
        assert_eq!(waits(&mut rivalry, 5), 0);
        assert_eq!(rivalry.taken_over(5), WAIT);
        assert_eq!(rivalry.taken_over(5 + REGAINED_MS), Duration::ZERO, "one was forgotten");
        assert_eq!(rivalry.taken_over(5 + REGAINED_MS), WAIT);
        assert_eq!(waits(&mut rivalry, 5 + (FREE + 1) * REGAINED_MS), 0, "all were forgotten, however often it was");
    }
}

//! How much of the memory that the broker may have is taken, for those who must do something about it.
//!
//! One number, written by whoever measures (the shell), read by the router for each publish and by connections for each batch.
//! What is measured is the whole process, so that everything counts: queues, outboxes, retained messages, sessions, packets being read, TLS.
//!
//! | level | from | what happens |
//! |---|---|---|
//! | free | | nothing |
//! | tight | [`MEMORY_TIGHT_PERCENT`] | publishers of QoS 1 and 2 whose messages have to wait wait themselves; a slow subscriber's outbox takes less before QoS 0 is dropped |
//! | full | [`MEMORY_FULL_PERCENT`] | what would have to wait, be retained or make a new session is refused with 0x97 |

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::limits::{BRAKE_MAX, MEMORY_FULL_PERCENT, MEMORY_TIGHT_PERCENT};

/// See the module's page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is enough.
    #[default]
    Free,
    /// It will be gone if nobody slows down.
    Tight,
    /// It is gone.
    Full,
}

/// See the module's page. Without anybody who measures there is always enough.
#[derive(Debug, Default)]
pub struct Pressure {
    /// Hundredths of a percent of the limit that are taken.
    taken: AtomicU32,
}

const TIGHT: u32 = MEMORY_TIGHT_PERCENT * 100;
const FULL: u32 = MEMORY_FULL_PERCENT * 100;

impl Pressure {
    /// `used` bytes of `limit` are taken now.
    pub fn measured(&self, used: u64, limit: u64) {
        let taken = u128::from(used) * 10_000 / u128::from(limit.max(1));
        self.taken.store(u32::try_from(taken).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// What there is left.
    #[must_use]
    pub fn level(&self) -> Level {
        match self.taken.load(Ordering::Relaxed) {
            FULL.. => Level::Full,
            TIGHT.. => Level::Tight,
            _ => Level::Free,
        }
    }

    /// How long a publisher waits after a batch of which a message had to wait; none while there is enough. It grows with the square of what is
    /// taken beyond tight.
    #[must_use]
    pub fn brake(&self) -> Option<Duration> {
        let over = self.taken.load(Ordering::Relaxed).checked_sub(TIGHT)?.min(FULL - TIGHT);
        let part = f64::from(over) / f64::from(FULL - TIGHT);
        Some(BRAKE_MAX.mul_f64(part * part).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_begin_where_they_are_said_to() {
        let pressure = Pressure::default();
        assert_eq!((pressure.level(), pressure.brake()), (Level::Free, None));
        for (used, level) in [(0, Level::Free), (799, Level::Free), (800, Level::Tight), (949, Level::Tight), (950, Level::Full)] {
            pressure.measured(used, 1_000);
            assert_eq!(pressure.level(), level, "{used}");
        }
        pressure.measured(u64::MAX, 1);
        assert_eq!((pressure.level(), pressure.brake()), (Level::Full, Some(BRAKE_MAX)));
        pressure.measured(1, 0);
        assert_eq!(pressure.level(), Level::Full);
    }

    #[test]
    fn the_brake_is_pulled_ever_harder() {
        let pressure = Pressure::default();
        let mut last = Duration::ZERO;
        for used in 800..=950 {
            pressure.measured(used, 1_000);
            let brake = pressure.brake().expect("tight");
            assert!(brake >= last && brake <= BRAKE_MAX, "{used}");
            last = brake;
        }
        assert_eq!(last, BRAKE_MAX);
    }
}

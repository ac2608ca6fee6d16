//! The one place that reads time. Everything else is given `now`, so that the core runs under virtual time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Two clocks that are read within this time are read at one moment.
const CLOSE: Duration = Duration::from_micros(50);
/// More readings are not tried.
const READINGS: usize = 8;

/// The monotonic clock.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this module is the one that may")]
pub fn now() -> Instant {
    Instant::now()
}

/// Wall-clock time since the Unix epoch; zero if the clock stands before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this module is the one that may")]
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Both at one moment: the wall clock, and when that was by the monotonic one. A thread that loses its processor in between reads them again.
#[must_use]
pub fn both() -> (Duration, Instant) {
    let read = || {
        let before = now();
        let unix = unix_time();
        (now().saturating_duration_since(before), unix, before)
    };
    let readings = std::iter::repeat_with(read).take(READINGS);
    let mut best = read();
    for reading in readings {
        if best.0 <= CLOSE {
            break;
        }
        best = if reading.0 < best.0 { reading } else { best };
    }
    (best.1, best.2)
}

/// The monotonic clock as the system counts it, from a moment of its own choice.
#[must_use]
pub fn monotonic_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

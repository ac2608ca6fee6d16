//! The one place that reads time. Everything else is given `now`, so that the core runs under virtual time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// The monotonic clock as the system counts it, from a moment of its own choice.
#[must_use]
pub fn monotonic_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

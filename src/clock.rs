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

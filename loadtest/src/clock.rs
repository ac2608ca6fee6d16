//! The one place of `loadtest` that reads time: moments are nanoseconds since the Unix epoch, and never step back.
//!
//! A moment is the monotonic clock carried forward from one reading of the wall clock at start, so two `loadtest` processes on
//! one host (or on hosts with synchronised clocks) can subtract each other's moments.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Both clocks, read together once.
static ORIGIN: LazyLock<(Instant, u64)> = LazyLock::new(read_both);

#[expect(clippy::disallowed_methods, reason = "this module is the one that may")]
fn read_both() -> (Instant, u64) {
    (Instant::now(), nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// This moment, in nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> u64 {
    let (start, start_ns) = *ORIGIN;
    start_ns.saturating_add(nanoseconds(start.elapsed()))
}

/// A duration in whole nanoseconds, at most `u64::MAX` (584 years).
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Processor time this process has used, user and kernel together.
pub(crate) fn processor_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

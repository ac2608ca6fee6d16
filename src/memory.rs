//! Watches how much memory the broker takes and tells the router, which does something about it ([`crate::pressure`]).
//!
//! What is measured is the resident memory of the process: what the system would end it for. How often depends on how soon the limit could be reached:
//! once a second while it is far away.

use std::sync::Arc;
use std::time::Duration;

use crate::pressure::Level;
use crate::resources;
use crate::router::Router;

/// As fast as this many bytes a second nothing here grows: it would have to be copied from sockets.
const GROWTH_BYTES_PER_SECOND: u64 = 4 << 30;
/// Below this nothing is to be given back.
const NUDGED_FROM: u64 = 64 << 20;
/// More than any part of the allocator's that one thread keeps for itself.
const NUDGE_BYTES: usize = 2 << 20;
/// How often it is measured, at least and at most.
const INTERVALS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Measures for as long as it is polled; returns where memory cannot be measured.
pub async fn watch(router: Arc<Router>, limit: u64) {
    let mut before = Level::Free;
    while let Some(used) = resources::resident_bytes() {
        router.pressure().measured(used, limit);
        let level = router.pressure().level();
        if level != before {
            tell(level, used, limit);
            before = level;
        }
        if used > NUDGED_FROM {
            nudge_allocator();
        }
        tokio::time::sleep(interval(used, limit)).await;
    }
    tracing::warn!("the memory of this process cannot be measured: limits.memory_limit has no effect");
}

fn tell(level: Level, used: u64, limit: u64) {
    match level {
        Level::Free => tracing::info!(used, limit, "memory is free again"),
        Level::Tight => tracing::warn!(used, limit, "memory is tight: publishers of what has to wait are slowed"),
        Level::Full => tracing::error!(used, limit, "memory is full: nothing more is queued or retained, and nobody new let in"),
    }
}

/// The allocator gives memory back to the system only while somebody allocates, so a broker that has become idle would keep what it no longer
/// needs (measured: 320 MB for as long as nothing happened, 40 MB after this). Nothing is written to it, so it costs no page.
fn nudge_allocator() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(NUDGE_BYTES)));
}

fn interval(used: u64, limit: u64) -> Duration {
    let [least, most] = INTERVALS;
    let room = limit.saturating_sub(used);
    Duration::from_millis(room.saturating_mul(1_000) / GROWTH_BYTES_PER_SECOND).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_the_limit_the_more_often() {
        for (used, limit, ms) in [(0, 64 << 30, 1_000), (0, 1 << 30, 250), (900 << 20, 1 << 30, 30), (2 << 30, 1 << 30, 10)] {
            assert_eq!(interval(used, limit).as_millis(), ms, "{used} of {limit}");
        }
    }
}

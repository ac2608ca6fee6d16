//! Lines of the log that strangers cause: one a second of each kind, and how many were left out.
//!
//! Kinds are words of the program, so that there is only a handful of them. It reads no clock and writes no log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two lines of a kind.
const INTERVAL: Duration = Duration::from_secs(1);

/// See the module's page.
#[derive(Debug, Default)]
pub struct LogRate {
    kinds: Mutex<BTreeMap<&'static str, Said>>,
}

#[derive(Debug)]
struct Said {
    at: Instant,
    left_out: u64,
}

impl LogRate {
    /// Whether a line of `kind` is to be written at `now`, and how many of its kind were left out since the last one.
    pub fn permit(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock();
        let Some(said) = kinds.get_mut(kind) else {
            kinds.insert(kind, Said { at: now, left_out: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(said.at) < INTERVAL {
            said.left_out += 1;
            return None;
        }
        said.at = now;
        Some(std::mem::take(&mut said.left_out))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do: the tests count from it")]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_of_each_kind_says_how_many_were_left_out() {
        let (rate, start) = (LogRate::default(), Instant::now());
        assert_eq!(rate.permit("a", start), Some(0));
        for n in 0..10 {
            assert_eq!(rate.permit("a", start + Duration::from_millis(n)), None);
        }
        assert_eq!(rate.permit("b", start), Some(0));
        assert_eq!(rate.permit("a", start + INTERVAL), Some(10));
        assert_eq!(rate.permit("a", start + INTERVAL), None);
        assert_eq!(rate.permit("a", start + 3 * INTERVAL), Some(1));
    }
}

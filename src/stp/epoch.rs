//! When a new epoch is asked for, when the root opens it, and how long one that others opened may wait.
//!
//! Feasibility may forbid a cheaper way. A new epoch forgets every bound, so whoever sees such a way asks its parent, the parent its
//! own, and the root opens the next epoch. Everybody acts at most once an interval, on its own wish and its children's together, so a
//! mesh of any size brings the root few requests. A request that is lost with a link is made again while the wish lasts.

use std::time::{Duration, Instant};

/// This broker's part in asking for, or opening, the next epoch.
#[derive(Clone, Debug, Hash)]
pub(super) struct EpochRequests {
    interval: Duration,
    /// The last act forbids another before this.
    not_before: Option<Instant>,
    /// Since when a broker below has been waiting for us to pass its request on.
    asked_at: Option<Instant>,
    /// Since when this broker itself has known a cheaper way. It waits an interval, because while a tree forms such ways come and go.
    wishing_since: Option<Instant>,
}

impl EpochRequests {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, not_before: None, asked_at: None, wishing_since: None }
    }

    /// A request came from below.
    pub(super) fn received(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
    }

    /// Says whether this broker knows a cheaper way at this moment.
    pub(super) fn wish(&mut self, wishes: bool, now: Instant) {
        self.wishing_since = if wishes { self.wishing_since.or(Some(now)) } else { None };
    }

    /// The present epoch is another: what was asked for has come.
    pub(super) fn forget(&mut self) {
        self.asked_at = None;
        self.wishing_since = None;
    }

    /// When to act next.
    pub(super) fn due(&self) -> Option<Instant> {
        let wish_due = self.wishing_since.map(|since| since + self.interval);
        let due = [self.asked_at, wish_due].into_iter().flatten().min()?;
        Some(self.not_before.map_or(due, |not_before| due.max(not_before)))
    }

    /// Whether to act now; if so, the next act is an interval away.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            self.asked_at = None;
            self.not_before = Some(now + self.interval);
        }
        is_due
    }
}

/// How long a broker whose way is intact may leave a newer epoch with no better a root unfollowed.
///
/// The word usually comes down its own way soon: from the same root, or because the root was told and opens the epoch after. The limit
/// is for a parent whose link lives while it is dead itself.
#[derive(Clone, Debug, Hash)]
pub(super) struct Patience {
    limit: Duration,
    since: Option<Instant>,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: None }
    }

    /// Says whether there is something to wait with; returns whether to wait.
    pub(super) fn waits(&mut self, has_reason: bool, now: Instant) -> bool {
        self.since = if has_reason { self.since.or(Some(now)) } else { None };
        self.due().is_some_and(|due| now < due)
    }

    /// When it ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.limit)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    #[test]
    fn a_wish_waits_an_interval_and_a_request_does_not() {
        let start = Instant::now();
        let mut requests = EpochRequests::new(INTERVAL);
        assert_eq!(requests.due(), None);
        requests.wish(true, start);
        assert_eq!(requests.due(), Some(start + INTERVAL));
        assert!(!requests.take(start));
        requests.received(start + INTERVAL / 2);
        assert!(requests.take(start + INTERVAL / 2));
    }

    #[test]
    fn acts_are_an_interval_apart_while_the_wish_lasts() {
        let start = Instant::now();
        let mut requests = EpochRequests::new(INTERVAL);
        requests.received(start);
        assert!(requests.take(start));
        requests.received(start);
        requests.wish(true, start);
        assert!(!requests.take(start + INTERVAL / 2));
        assert!(requests.take(start + INTERVAL));
        assert_eq!(requests.due(), Some(start + 2 * INTERVAL), "the wish goes on");
        requests.wish(false, start + INTERVAL);
        assert_eq!(requests.due(), None);
    }

    #[test]
    fn a_new_epoch_serves_every_request() {
        let start = Instant::now();
        let mut requests = EpochRequests::new(INTERVAL);
        requests.received(start);
        requests.wish(true, start);
        requests.forget();
        assert_eq!(requests.due(), None);
    }
}

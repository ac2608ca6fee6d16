//! Sessions and retained messages as a restarted broker has read them.
//!
//! Before the first client is served. What has expired meanwhile is due at once, in the order of its time: a will before its session's end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Router;
use super::deadlines::Due;
use crate::ids::Stamp;
use crate::session::{RESTORED_EPOCH, RestoredSession, SessionExpiry, StoredMessage, SubscriberId};
use crate::topic;

impl Router {
    /// Takes in what was retained, and what was deleted. To be said after [`Router::share_retained`].
    pub fn restore_retained(
        &self,
        messages: impl IntoIterator<Item = (Arc<StoredMessage>, Option<Stamp>)>,
        deleted: impl IntoIterator<Item = (Box<str>, Stamp)>,
        now: Instant,
    ) {
        messages.into_iter().for_each(|(message, stamp)| self.retained.restore(message, stamp, now));
        deleted.into_iter().for_each(|(topic, stamp)| self.retained.restore_deleted(topic, stamp, now));
    }

    /// New sessions get numbers above `last`.
    pub fn number_sessions_from(&self, last: SubscriberId) {
        self.subscribers_made.fetch_max(last.0.saturating_add(1), Ordering::Relaxed);
        self.last_restored.store(last.0, Ordering::Relaxed);
    }

    /// Whether the session was there before this broker started.
    pub(super) fn is_restored(&self, session: SubscriberId) -> bool {
        session.0 <= self.last_restored.load(Ordering::Relaxed)
    }

    /// Takes in one session, which is away. Its expiry and its will's delay count from when it left, which is no later than `now`.
    pub fn restore_session(&self, restored: RestoredSession, now: Instant) {
        let Some(journal) = &self.journal else { return };
        let left_at = restored.head.left_at.unwrap_or(now);
        let subscriber = Arc::new(restored.into_subscriber(self.limits.outbound, journal, now));
        let mut state = subscriber.lock();
        let (expiry, claimed) = (state.expiry, state.claimed);
        let delay = state.will.as_ref().map(|will| will.delay);
        let filters: Vec<_> = state.subscriptions.iter().map(|(text, options)| (text.clone(), options.clone())).collect();
        for (text, _) in filters.iter().filter(|(text, _)| topic::parse_filter(text).is_ok()) {
            self.tell_filter(&mut state, text, true);
        }
        drop(state);
        self.insert_filters(&subscriber, filters.iter());
        if let Some(clock) = self.registers().and_then(|_| self.retained.clock()) {
            clock.restore(Stamp { time: claimed, writer: clock.writer() }, now);
            self.claim(&subscriber, claimed);
        }
        self.metrics.sessions.change(1);
        self.registry.insert(Arc::clone(&subscriber.client_id), Arc::clone(&subscriber));
        let later = |rest: Duration| left_at.checked_add(rest);
        if let Some(at) = delay.and_then(later) {
            self.add_deadline(at, Due::Will, &subscriber, RESTORED_EPOCH);
        }
        if let SessionExpiry::After(rest) = expiry
            && let Some(at) = later(rest)
        {
            self.add_deadline(at, Due::Expiry, &subscriber, RESTORED_EPOCH);
        }
    }
}

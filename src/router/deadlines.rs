//! What is to happen to a session at a time: its keep alive runs out, its will is due, it expires. One heap for all three; a session
//! that lives on leaves its entry behind, which is then recognised as void by its epoch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Weak;
use std::task::Waker;
use std::time::Instant;

use parking_lot::Mutex;

use crate::session::{Subscriber, SubscriberId};

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// One and a half times the keep alive since the client was heard last [MQTT-3.1.2-22].
    KeepAlive {
        /// Milliseconds of silence that are allowed.
        silence_ms: u64,
    },
    /// Will delay [MQTT-3.1.3-9].
    Will,
    /// Session expiry.
    Expiry,
}

#[derive(Debug)]
pub(super) struct Deadline {
    pub(super) at: Instant,
    pub(super) due: Due,
    pub(super) subscriber: Weak<Subscriber>,
    /// The connection that set it.
    pub(super) epoch: u64,
}

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Deadline {}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // A will that is due with the expiry goes first.
        (self.at, self.due).cmp(&(other.at, other.due))
    }
}

/// Below this many entries the heap is not looked through.
const PURGED_FROM: usize = 1_024;

#[derive(Debug, Default)]
struct Inner {
    heap: BinaryHeap<Reverse<Deadline>>,
    /// Entries at which void ones are thrown out: clients that come and go leave some behind each time.
    purge_at: usize,
    sleeper: Option<Waker>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    inner: Mutex<Inner>,
}

impl Deadlines {
    /// Adds one; wakes the sleeper if it is earlier than all others.
    pub(super) fn add(&self, deadline: Deadline) {
        let mut inner = self.inner.lock();
        let earlier = inner.heap.peek().is_none_or(|Reverse(first)| deadline.at < first.at);
        if inner.heap.len() >= inner.purge_at.max(PURGED_FROM) {
            inner.heap.retain(|Reverse(one)| one.subscriber.upgrade().is_some_and(|subscriber| subscriber.is_latest(one.epoch)));
            inner.purge_at = 2 * inner.heap.len();
        }
        inner.heap.push(Reverse(deadline));
        let sleeper = if earlier { inner.sleeper.take() } else { None };
        drop(inner);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// How many there are, void ones among them.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.inner.lock().heap.len()
    }

    /// When sessions end that are not void by their epoch.
    pub(super) fn expiries(&self) -> Vec<(SubscriberId, Instant)> {
        let inner = self.inner.lock();
        let expiries = inner.heap.iter().filter(|Reverse(one)| one.due == Due::Expiry);
        let found = expiries.filter_map(|Reverse(one)| {
            let subscriber = one.subscriber.upgrade().filter(|subscriber| subscriber.is_latest(one.epoch))?;
            Some((subscriber.id, one.at))
        });
        found.collect()
    }

    /// The next one that is due at `now`.
    pub(super) fn pop(&self, now: Instant) -> Option<Deadline> {
        let mut inner = self.inner.lock();
        if inner.heap.peek().is_none_or(|Reverse(first)| first.at > now) {
            return None;
        }
        inner.heap.pop().map(|Reverse(first)| first)
    }

    /// When the next one is due; `sleeper` is woken if that changes.
    pub(super) fn next(&self, sleeper: &Waker) -> Option<Instant> {
        let mut inner = self.inner.lock();
        inner.sleeper = Some(sleeper.clone());
        inner.heap.peek().map(|Reverse(first)| first.at)
    }
}

//! Wills of clients whose broker dies: this broker's side of them that is no stream's.
//!
//! Which wills there are is told to the broker that has the replicas ([`replica::wills`](super::replica)); what changes is noted here until then. A will that this one was to
//! publish, and that another broker has dealt with meanwhile, as its register says, is void: so those that were read from the disk wait until it is known what others say.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use super::{Batch, Router};
use crate::auth::{Access, Standing};
use crate::limits::ORPHAN_GRACE_DEFAULT;
use crate::session::{RESTORED_EPOCH, Subscriber, SubscriberId, Will};

/// Sessions whose wills are to be looked at.
pub(super) type Changed = HashMap<SubscriberId, Arc<Subscriber>, ahash::RandomState>;

/// See the module's page.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Another broker is told of them.
    is_followed: AtomicBool,
    changed: Mutex<Changed>,
    waker: AtomicWaker,
    /// How many the other broker is not known to know of.
    untold: AtomicUsize,
    grace_ms: AtomicU64,
    /// What others say of the wills that were read from the disk is not known yet.
    is_unsure: AtomicBool,
}

impl Default for Orphans {
    fn default() -> Self {
        let grace_ms = AtomicU64::new(millis(ORPHAN_GRACE_DEFAULT));
        Self {
            is_followed: AtomicBool::new(false),
            changed: Mutex::default(),
            waker: AtomicWaker::new(),
            untold: AtomicUsize::new(0),
            grace_ms,
            is_unsure: AtomicBool::new(false),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Orphans {
    /// From now on what changes is noted, or is not any more.
    pub(super) fn follow(&self, is_followed: bool) {
        let mut changed = self.changed.lock();
        self.is_followed.store(is_followed, Ordering::Release);
        self.untold.store(0, Ordering::Release);
        let before = std::mem::take(&mut *changed);
        drop(changed);
        // Not under the lock: the last of a session may go with it.
        drop(before);
    }

    /// The session has a will, or has none any more. Also under the session's lock.
    pub(super) fn note(&self, subscriber: &Arc<Subscriber>) {
        if !self.is_followed.load(Ordering::Acquire) {
            return;
        }
        let mut changed = self.changed.lock();
        let is_first = changed.is_empty();
        changed.entry(subscriber.id).or_insert_with(|| Arc::clone(subscriber));
        drop(changed);
        if is_first {
            self.waker.wake();
        }
    }

    /// What was noted since this was asked last.
    pub(super) fn take(&self) -> Changed {
        let mut changed = self.changed.lock();
        // Until it is said how many.
        self.untold.fetch_max(changed.len(), Ordering::AcqRel);
        std::mem::take(&mut *changed)
    }

    pub(super) fn set_untold(&self, untold: usize) {
        self.untold.store(untold, Ordering::Release);
    }

    /// Ready where something was noted; until then the task is woken when something is.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.changed.lock().is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// How long a will waits beyond its delay.
    pub(super) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms.load(Ordering::Relaxed))
    }

    pub(super) fn is_unsure(&self) -> bool {
        self.is_unsure.load(Ordering::Acquire)
    }

    pub(super) fn set_unsure(&self, is_unsure: bool) {
        self.is_unsure.store(is_unsure, Ordering::Release);
    }
}

impl Router {
    /// How long another broker's client may be away before its will is published here, when that broker cannot be reached, beyond the will's delay.
    pub fn set_orphan_grace(&self, grace: Duration) {
        self.orphans.grace_ms.store(millis(grace), Ordering::Relaxed);
    }

    /// Whether the broker that keeps wills of clients here is known to know of all that has become of them, if there is one.
    #[must_use]
    pub fn wills_are_told(&self) -> bool {
        self.orphans.changed.lock().is_empty() && self.orphans.untold.load(Ordering::Acquire) == 0
    }

    /// Whether the session's will is one of which others may know more than this broker does, which has read it from the disk.
    pub(super) fn is_will_in_doubt(&self, subscriber: &Subscriber, epoch: u64) -> bool {
        epoch == RESTORED_EPOCH && self.orphans.is_unsure() && subscriber.lock().will.is_some()
    }

    /// Another broker has dealt with the will that the client brought with the claim `stamp`: it is void here.
    pub(super) fn settle_will(&self, batch: &mut Batch, client_id: &str, stamp: u64) {
        let Some(subscriber) = self.session(client_id) else { return };
        let mut state = subscriber.lock();
        if state.ended || state.claimed != stamp || state.will.take().is_none() {
            return;
        }
        state.will_gone().into_iter().for_each(|change| batch.writes().push(change));
        drop(state);
        self.orphans.note(&subscriber);
        self.metrics.wills_settled.add(1);
    }

    /// Publishes the will of another broker's client. That one had looked whether the client may; if this broker knows more of it, that counts.
    pub(super) fn publish_orphaned(&self, batch: &mut Batch, client_id: &Arc<str>, owner: &str, will: Will, now: Instant) {
        let subscriber = Subscriber::new(self.next_subscriber_id(), Arc::clone(client_id), self.limits.outbound, None);
        let access = (!owner.is_empty()).then(|| {
            let owner = Access::of_owner(owner);
            match self.judge.get().map(|judge| judge.0(&owner)) {
                Some(Standing::Good(access) | Standing::PasswordChanged(access)) => access,
                // Whom this broker does not know, or not yet, the other did.
                _ => Arc::new(Access::new(owner.identity().clone(), owner.place().clone(), None)),
            }
        });
        subscriber.set_access(access);
        self.publish_will(batch, &subscriber, will, None, now);
    }
}

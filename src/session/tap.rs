//! What the replicas of sessions are to be told: the changes of these sessions, in the journal's order, once they are safe on the disk. So a replica never knows more than the
//! broker itself would know after a restart.
//!
//! The way back are numbers as well: [`Journal::reached`](super::Journal::reached), up to which all is safe on the disk and known to the replica, or held by it.
//!
//! A letter costs both brokers several wakes, whatever it says. So what nobody waits for is not told at once, but with the next that somebody waits for, or when whoever tells looks
//! anyway ([`LINGER`]): of QoS 1 the replica is a moment behind, which is what it may be.
//!
//! Closed, which it is unless there is a replica, it costs one look a commit. Its lock is a leaf.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use bytes::Bytes;
use parking_lot::Mutex;

use super::change::Change;
use super::logged::Logged;
use super::subscriber::SubscriberId;

/// So many changes wait to be told at most: beyond, the replica is not kept up.
const CHANGES_MAX: usize = 1 << 18;
/// So many are told at once, whoever waits.
const CHANGES_PRESSING: usize = 1 << 13;
/// How long what nobody waits for may stay untold, while there is something to tell all the time.
pub(crate) const LINGER: Duration = Duration::from_millis(20);

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Tap {
    is_open: AtomicBool,
    /// It is waited for what the replica says.
    is_awaited: AtomicBool,
    inner: Mutex<Tapped>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Tapped {
    /// They are on their way to the disk.
    taken: Vec<Change>,
    /// They are there.
    safe: Vec<Change>,
    /// The last change that is.
    number: u64,
    /// Sessions of which everything is told.
    copied: HashSet<SubscriberId, ahash::RandomState>,
    /// The last that was heard.
    heard: u64,
    /// All that was heard is known to the replica.
    is_idle: bool,
    /// It is to be told now.
    is_pressing: bool,
    /// That the source of the message is told which is placed next.
    has_source: bool,
    has_overflowed: bool,
}

/// What is to be told.
#[derive(Debug)]
pub struct Heard {
    /// In their order.
    pub changes: Vec<Change>,
    /// The last change of the journal that is safe; none where nothing has become safe.
    pub number: Option<u64>,
    /// Something was left out.
    pub has_overflowed: bool,
}

impl Tap {
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    pub(super) fn set_open(&self, is_open: bool, and: impl FnOnce()) {
        let mut inner = self.inner.lock();
        *inner = Tapped { is_idle: true, ..Tapped::default() };
        and();
        self.is_open.store(is_open, Ordering::Release);
        self.is_awaited.store(is_open, Ordering::Release);
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    /// Has no effect while it is closed.
    pub(super) fn set_awaited(&self, is_awaited: bool) {
        let _inner = self.inner.lock();
        self.is_awaited.store(is_awaited && self.is_open(), Ordering::Release);
    }

    /// The store has taken these.
    pub(super) fn take(&self, changes: &[Change]) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        for change in changes {
            let is_told = match change {
                Change::Session(..) | Change::Subscribed(..) | Change::Unsubscribed(..) | Change::Guarded(..) => true,
                Change::Copied(session, _) => {
                    inner.copied.insert(*session);
                    true
                }
                Change::Ended(session) => {
                    inner.copied.remove(session);
                    true
                }
                Change::Source(session, ..)
                | Change::Placed(session, ..)
                | Change::Staged(session, ..)
                | Change::Removed(session, _)
                | Change::Received(session, _)
                | Change::Completed(session, _) => inner.copied.contains(session),
                Change::Logged(_) | Change::Cover(..) => !inner.copied.is_empty(),
                _ => false,
            };
            // What share groups give comes to the replica by this way alone, and is nobody else's any more.
            inner.is_pressing |= is_told && !inner.has_source && matches!(change, Change::Placed(..));
            inner.has_source = matches!(change, Change::Source(..));
            match change {
                // What is in a block is told by the lanes, and is not to be kept in memory for this.
                Change::Logged(block) if is_told => inner.taken.push(Change::Logged(Logged { body: Bytes::new(), ..*block })),
                _ if is_told => inner.taken.push(change.clone()),
                _ => {}
            }
        }
        if inner.taken.len() + inner.safe.len() > CHANGES_MAX {
            (inner.taken, inner.safe) = Default::default();
            inner.has_overflowed = true;
        }
    }

    /// What it has taken is safe, up to change `number`. Where nobody need be told of anything that is confirmed by `confirm`; else says what was heard last: whether anybody waits for
    /// what came after it is to be looked at.
    pub(super) fn commit(&self, number: u64, confirm: impl FnOnce()) -> Option<u64> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.safe.append(&mut inner.taken);
        inner.number = number;
        if inner.is_idle && inner.safe.is_empty() && !inner.has_overflowed {
            confirm();
            return None;
        }
        inner.is_idle = false;
        let is_pressing = inner.is_pressing || inner.has_overflowed || inner.safe.len() >= CHANGES_PRESSING;
        let heard = inner.heard;
        drop(guard);
        if is_pressing {
            self.press();
        }
        Some(heard)
    }

    /// What is safe is to be told now.
    pub(super) fn press(&self) {
        self.inner.lock().is_pressing = true;
        self.waker.wake();
    }

    /// Likewise, if change `number` was not heard yet.
    pub(super) fn press_for(&self, number: u64) {
        if number > self.inner.lock().heard {
            self.press();
        }
    }

    pub(super) fn heard(&self) -> Heard {
        let mut inner = self.inner.lock();
        let number = Some(inner.number).filter(|_| !inner.is_idle);
        (inner.heard, inner.is_pressing) = (inner.number, false);
        Heard { changes: std::mem::take(&mut inner.safe), number, has_overflowed: inner.has_overflowed }
    }

    /// The replica knows of all that was heard up to `number`, and has its messages.
    pub(super) fn confirm(&self, number: u64, confirm: impl FnOnce()) {
        let mut inner = self.inner.lock();
        if !self.is_open() {
            return;
        }
        inner.is_idle |= inner.safe.is_empty() && inner.number == number;
        confirm();
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.inner.lock().is_pressing { Poll::Ready(()) } else { Poll::Pending }
    }
}

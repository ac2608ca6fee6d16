//! How a sleeping lane writer learns that there is something to write, without a lock and without a word to one that is awake.

use std::task::Waker;

use super::sync::{AtomicBool, AtomicWaker, Ordering, fence};

/// Where one task sleeps. The protocol: the sleeper [`arm`](Self::arm)s, looks once more whether there is work, and only then sleeps;
/// a waker makes work visible and then [`wake`](Self::wake)s. The fences put the two looks into one order, so that one of the two
/// sees the other.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    armed: AtomicBool,
    waker: AtomicWaker,
}

impl Sleeper {
    pub(super) fn arm(&self, waker: &Waker) {
        self.waker.register(waker);
        self.armed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The sleeper has found work after all.
    pub(super) fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
    }

    /// To be called after a `fence(SeqCst)` that follows the work; see [`wake_all`].
    fn wake_if_armed(&self) {
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    pub(super) fn wake(&self) {
        wake_all([self]);
    }
}

/// Wakes those who sleep; work made visible before is seen by those who do not.
pub(super) fn wake_all<'a>(sleepers: impl IntoIterator<Item = &'a Sleeper>) {
    fence(Ordering::SeqCst);
    sleepers.into_iter().for_each(Sleeper::wake_if_armed);
}

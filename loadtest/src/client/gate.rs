//! How a client is woken by others: a publisher by its subscribers' progress, everyone by a change of phase.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Waker;

use atomic_waker::AtomicWaker;

/// What a run asks of its clients, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Send as paced, receive.
    Publish,
    /// Send nothing new; finish what is under way; receive.
    Finish,
    /// Disconnect.
    Close,
}

/// The phase of a run, read by all its clients.
#[derive(Debug)]
pub(crate) struct PhaseSwitch(AtomicU8);

impl Default for PhaseSwitch {
    fn default() -> Self {
        Self(AtomicU8::new(Phase::Publish as u8))
    }
}

impl PhaseSwitch {
    pub(crate) fn now(&self) -> Phase {
        match self.0.load(Ordering::Acquire) {
            0 => Phase::Publish,
            1 => Phase::Finish,
            _ => Phase::Close,
        }
    }

    /// Moves on to `phase`; never back. The caller wakes the clients' gates afterwards.
    pub(crate) fn advance(&self, phase: Phase) {
        self.0.fetch_max(phase as u8, Ordering::AcqRel);
    }
}

/// A client's doorbell; for a publisher, also what its subscribers and the run tell it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    passed: AtomicU64,
    forgiven: AtomicBool,
    waker: AtomicWaker,
}

impl Gate {
    /// To be called by the client at the beginning of each poll, before it looks at anything others may change.
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// A subscriber has `count` more of this publisher's messages behind it: delivered, or overtaken and perhaps lost.
    pub(crate) fn pass(&self, count: u64) {
        self.passed.fetch_add(count, Ordering::Release);
        self.wake();
    }

    /// Messages that are behind subscribers, summed over these.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }

    /// Asks the publisher to wait no longer for what it has sent so far: it may be lost.
    pub(crate) fn forgive(&self) {
        self.forgiven.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether [`Self::forgive`] was called since the last time.
    pub(crate) fn take_forgiveness(&self) -> bool {
        self.forgiven.load(Ordering::Acquire) && self.forgiven.swap(false, Ordering::AcqRel)
    }
}

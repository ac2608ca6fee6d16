//! The acknowledgement gate: while a live cursor of a QoS 1 or 2 lane lags by half its ring, publishers wait for their
//! acknowledgements, and therefore, by Receive Maximum or by their window, publish no more. A dead link has no live cursor and slows
//! nobody.

use std::task::Waker;

use parking_lot::Mutex;

use super::sync::{AtomicBool, Ordering, fence};

/// Those who wait. A waiter is entered once however often it asks, so there are at most as many as connections.
#[derive(Debug, Default)]
pub(super) struct Gate {
    waiting: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Gate {
    /// Enters `waker`. The caller must look once more whether it still has to wait.
    pub(super) fn wait(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|entered| entered.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        self.waiting.store(true, Ordering::Release);
        drop(wakers);
        fence(Ordering::SeqCst);
    }

    /// A cursor went on or went away: wakes all, if `lagging` no longer holds.
    pub(super) fn progress(&self, lagging: impl FnOnce() -> bool) {
        fence(Ordering::SeqCst);
        if !self.waiting.load(Ordering::Relaxed) || lagging() {
            return;
        }
        let woken = {
            let mut wakers = self.wakers.lock();
            self.waiting.store(false, Ordering::Release);
            std::mem::take(&mut *wakers)
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

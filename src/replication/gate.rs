//! The acknowledgement gate: while a live cursor of a QoS 1 or 2 lane lags by half its ring, publishers wait for their
//! acknowledgements, and therefore, by Receive Maximum or by their window, publish no more. A dead link has no live cursor and slows
//! nobody. Each lane has such a gate besides, for the readers of links that bring more than another link takes
//! ([`super::PortLane::poll_others`]).

use std::collections::HashMap;
use std::task::Waker;

use super::sync::{AtomicBool, Mutex, Ordering, fence};

/// Those who wait. A waiter is entered once however often it asks.
#[derive(Debug, Default)]
pub(super) struct Gate {
    waiting: AtomicBool,
    waiters: Mutex<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    wakers: HashMap<u64, Waker, ahash::RandomState>,
    numbers: u64,
}

impl Gate {
    /// A number for one who may come to wait, and who [`leave`](Self::leave)s when it is gone.
    pub(super) fn number(&self) -> u64 {
        let mut waiters = self.waiters.lock();
        waiters.numbers += 1;
        waiters.numbers
    }

    /// Enters `waker` under the caller's `number`. The caller must look once more whether it still has to wait.
    pub(super) fn wait(&self, number: u64, waker: &Waker) {
        let mut waiters = self.waiters.lock();
        waiters.wakers.entry(number).and_modify(|entered| entered.clone_from(waker)).or_insert_with(|| waker.clone());
        self.waiting.store(true, Ordering::Release);
        drop(waiters);
        fence(Ordering::SeqCst);
    }

    /// Nobody waits under `number` any more.
    pub(super) fn leave(&self, number: u64) {
        self.waiters.lock().wakers.remove(&number);
    }

    /// A cursor went on or went away: wakes all, if `lagging` no longer holds.
    pub(super) fn progress(&self, lagging: impl FnOnce() -> bool) {
        fence(Ordering::SeqCst);
        if !self.waiting.load(Ordering::Relaxed) || lagging() {
            return;
        }
        let woken = {
            let mut waiters = self.waiters.lock();
            self.waiting.store(false, Ordering::Release);
            std::mem::take(&mut waiters.wakers)
        };
        woken.into_values().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(loom))]
    #[test]
    fn those_who_wait_are_woken_once_when_the_lag_is_over() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (gate, count) = (Gate::default(), Arc::new(Count(AtomicUsize::new(0))));
        let woken = || count.0.load(Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&count));
        let (number, gone) = (gate.number(), gate.number());
        gate.wait(number, &waker);
        gate.wait(number, &waker);
        gate.wait(gone, &waker);
        gate.leave(gone);
        gate.progress(|| true);
        assert_eq!(woken(), 0);
        gate.progress(|| false);
        assert_eq!(woken(), 1, "entered once, and nobody who is gone");
        gate.progress(|| panic!("nobody waits, nobody is asked"));
        assert_eq!(woken(), 1);
    }

    /// A publisher that waits while a cursor goes on: a wake-up that gets lost is a deadlock of the model.
    #[cfg(loom)]
    #[test]
    fn loom_no_wake_up_is_lost() {
        use std::sync::Arc;
        use std::task::Poll;

        use super::super::sync::AtomicU64;

        loom::model(|| {
            let shared = Arc::new((Gate::default(), AtomicU64::new(1)));
            let cursor = Arc::clone(&shared);
            let cursor = loom::thread::spawn(move || {
                let (gate, lag) = &*cursor;
                lag.store(0, Ordering::Release);
                gate.progress(|| lag.load(Ordering::Acquire) > 0);
            });
            let (gate, lag) = &*shared;
            let number = gate.number();
            loom::future::block_on(std::future::poll_fn(|context| {
                gate.wait(number, context.waker());
                if lag.load(Ordering::Acquire) > 0 { Poll::Pending } else { Poll::Ready(()) }
            }));
            cursor.join().unwrap();
        });
    }
}

//! A moment in which nothing is on its way between the rings and the sessions.
//!
//! What is delivered to sessions and what is in the rings are two things, and one comes after the other. Whoever does both holds the *shared* side from the
//! first to the last: a batch of publishes, a receiver, an answered pull. A session that leaves for another broker, or comes from one, takes
//! the *exclusive* side for a moment: then what it has been given and the covers say the same.
//!
//! Shared costs two uncontended atomics a batch. Nobody enters twice, or with a lock in hand that is taken inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// Batches of different threads seldom meet in one.
const SHARDS: usize = 16;

/// See the module's page.
#[derive(Debug, Default)]
pub struct Quiesce {
    shards: [Shard; SHARDS],
    /// Somebody has, or wants, the exclusive side.
    closed: AtomicBool,
    /// Held by who has it.
    exclusive: Mutex<()>,
    leaving: Mutex<()>,
    left: Condvar,
    next: AtomicUsize,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(AtomicUsize);

/// The shared side, until it is dropped.
#[derive(Debug)]
pub(super) struct Shared {
    quiesce: Arc<Quiesce>,
    shard: usize,
}

impl Quiesce {
    /// A shard for somebody who will often enter.
    pub(super) fn shard(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % SHARDS
    }

    fn count(&self, shard: usize) -> Option<&AtomicUsize> {
        self.shards.get(shard).map(|shard| &shard.0)
    }

    /// Takes the shared side; waits while somebody has the exclusive one.
    pub(super) fn enter(self: &Arc<Self>, shard: usize) -> Shared {
        loop {
            if let Some(count) = self.count(shard) {
                count.fetch_add(1, Ordering::SeqCst);
            }
            let shared = Shared { quiesce: Arc::clone(self), shard };
            if !self.closed.load(Ordering::SeqCst) {
                return shared;
            }
            drop(shared);
            drop(self.exclusive.lock());
        }
    }

    /// Does something while nobody has the shared side.
    pub fn exclusively<T>(&self, act: impl FnOnce() -> T) -> T {
        let _exclusive = self.exclusive.lock();
        let _closed = Closed::new(self);
        let mut leaving = self.leaving.lock();
        while self.shards.iter().any(|shard| shard.0.load(Ordering::SeqCst) > 0) {
            self.left.wait(&mut leaving);
        }
        drop(leaving);
        act()
    }
}

/// Whoever comes waits, until this is dropped: also where what was to be done has panicked.
struct Closed<'a>(&'a Quiesce);

impl<'a> Closed<'a> {
    fn new(quiesce: &'a Quiesce) -> Self {
        quiesce.closed.store(true, Ordering::SeqCst);
        Self(quiesce)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::SeqCst);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let was_last = self.quiesce.count(self.shard).is_some_and(|count| count.fetch_sub(1, Ordering::SeqCst) == 1);
        if was_last && self.quiesce.closed.load(Ordering::SeqCst) {
            // Who waits has looked before, or looks after this.
            drop(self.quiesce.leaving.lock());
            self.quiesce.left.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_inside_while_somebody_is_alone() {
        let quiesce = Arc::<Quiesce>::default();
        // Two numbers that are one to whoever looks from the exclusive side.
        let (first, second) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let shard = quiesce.shard();
                    for _ in 0..20_000 {
                        let _shared = quiesce.enter(shard);
                        first.fetch_add(1, Ordering::Relaxed);
                        second.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..500 {
                quiesce.exclusively(|| assert_eq!(first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)));
            }
        });
        assert_eq!(first.load(Ordering::Relaxed), 60_000);
    }
}

//! What the ring is made of: atomics and slots, or their look-alikes under loom.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub(super) use atomic_waker::AtomicWaker;
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use modelled::{AtomicWaker, Mutex, Slot, spin};
#[cfg(not(loom))]
pub(super) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use real::Slot;
#[cfg(not(loom))]
pub(super) use std::hint::spin_loop as spin;

#[cfg(not(loom))]
mod real {
    use std::sync::Arc;

    use arc_swap::{ArcSwapOption, Guard};

    /// A place for one shared value that is read and replaced without a lock.
    #[derive(Debug)]
    pub(crate) struct Slot<T>(ArcSwapOption<T>);

    impl<T> Default for Slot<T> {
        fn default() -> Self {
            Self(ArcSwapOption::empty())
        }
    }

    impl<T> Slot<T> {
        /// What is there, for a short look.
        pub(crate) fn load(&self) -> Guard<Option<Arc<T>>> {
            self.0.load()
        }

        /// What is there, to keep.
        pub(crate) fn load_full(&self) -> Option<Arc<T>> {
            self.0.load_full()
        }

        /// Puts `new` there if `current`, which a [`load`](Self::load) gave, still is.
        pub(crate) fn replace(&self, current: &Guard<Option<Arc<T>>>, new: Option<Arc<T>>) -> bool {
            let found = self.0.compare_and_swap(&**current, new);
            found.as_ref().map(Arc::as_ptr) == current.as_ref().map(Arc::as_ptr)
        }
    }
}

#[cfg(loom)]
mod modelled {
    use std::sync::{Arc, PoisonError};
    use std::task::Waker;

    pub(crate) fn spin() {
        loom::thread::yield_now();
    }

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct AtomicWaker(loom::future::AtomicWaker);

    impl AtomicWaker {
        pub(crate) fn register(&self, waker: &Waker) {
            self.0.register_by_ref(waker);
        }

        pub(crate) fn wake(&self) {
            self.0.wake();
        }
    }

    /// The same with a lock, each use of which is one step of the model.
    #[derive(Debug)]
    pub(crate) struct Slot<T>(Mutex<Option<Arc<T>>>);

    impl<T> Default for Slot<T> {
        fn default() -> Self {
            Self(Mutex::new(None))
        }
    }

    impl<T> Slot<T> {
        pub(crate) fn load(&self) -> Box<Option<Arc<T>>> {
            Box::new(self.load_full())
        }

        pub(crate) fn load_full(&self) -> Option<Arc<T>> {
            self.0.lock().clone()
        }

        pub(crate) fn replace(&self, current: &Option<Arc<T>>, new: Option<Arc<T>>) -> bool {
            let mut held = self.0.lock();
            let same = held.as_ref().map(Arc::as_ptr) == current.as_ref().map(Arc::as_ptr);
            if same {
                *held = new;
            }
            same
        }
    }
}

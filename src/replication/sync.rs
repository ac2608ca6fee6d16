//! What the ring is made of: atomics and slots, or their look-alikes under loom.

#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub(super) use atomic_waker::AtomicWaker;
#[cfg(loom)]
pub(super) use loom::future::AtomicWaker;
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use modelled::Slot;
#[cfg(not(loom))]
pub(super) use real::Slot;

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
    use std::sync::Arc;

    use loom::sync::Mutex;

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
            self.0.lock().ok().and_then(|held| held.clone())
        }

        pub(crate) fn replace(&self, current: &Option<Arc<T>>, new: Option<Arc<T>>) -> bool {
            let Ok(mut held) = self.0.lock() else { return false };
            let same = held.as_ref().map(Arc::as_ptr) == current.as_ref().map(Arc::as_ptr);
            if same {
                *held = new;
            }
            same
        }
    }
}

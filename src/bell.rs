//! Wakes tasks of this runtime from the thread of another one, many at once.
//!
//! A waker that is called on a foreign thread costs a runtime of several threads two sleepers: the one that is to run the task, which before it does so wakes
//! another to look for more work. And it costs the caller a lock and a system call for each task. So wakers are handed over in a list, and one byte in a pipe
//! brings the thread that waits for the runtime's sockets, as a client's bytes would; it calls them all.
//!
//! It is not a channel: what is handed over are wakers, which may come late or in vain. Invariant: a waker that was handed over is called, unless the runtime has ended.

use std::io;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::task;

/// See the module's page.
#[derive(Debug)]
pub struct Bell {
    handed_over: Mutex<Vec<Waker>>,
    /// Never full: there is a byte in it for each time that the list was empty, at most.
    rope: pipe::Sender,
}

impl Bell {
    /// A bell whose wakers are called on the present runtime.
    ///
    /// # Errors
    /// Where the system gives no pipe.
    pub fn hang() -> io::Result<Arc<Self>> {
        let (rope, clapper) = pipe::pipe()?;
        let bell = Arc::new(Self { handed_over: Mutex::default(), rope });
        task::spawn("bell", Arc::clone(&bell).answer(clapper));
        Ok(bell)
    }

    /// Has `wakers` called soon. To be called on any thread.
    pub fn ring(&self, wakers: impl IntoIterator<Item = Waker>) {
        let mut handed_over = self.handed_over.lock();
        let was_empty = handed_over.is_empty();
        handed_over.extend(wakers);
        // Else the byte is there by which these will be found.
        let is_first = was_empty && !handed_over.is_empty();
        drop(handed_over);
        if is_first && rustix::io::write(&self.rope, &[0]).is_err() {
            // Whatever is the matter with it, nobody may sleep for ever.
            self.wake_all(&mut Vec::new());
        }
    }

    async fn answer(self: Arc<Self>, mut clapper: pipe::Receiver) {
        let mut wakers = Vec::new();
        let mut bytes = [0; 64];
        // Before the list is looked at: what comes into the empty list from now on has a byte of its own.
        while clapper.read(&mut bytes).await.is_ok_and(|count| count > 0) {
            self.wake_all(&mut wakers);
        }
    }

    /// By way of `wakers`, which stays empty.
    fn wake_all(&self, wakers: &mut Vec<Waker>) {
        std::mem::swap(&mut *self.handed_over.lock(), wakers);
        wakers.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn every_waker_is_called_once_however_the_bell_is_rung() {
        const RINGS: usize = 2_000;
        for (name, mut builder) in [
            ("current-thread", tokio::runtime::Builder::new_current_thread()),
            ("multi-thread", tokio::runtime::Builder::new_multi_thread()),
        ] {
            let runtime = builder.enable_all().build().unwrap();
            let count = Arc::new(Count::default());
            runtime.block_on(async {
                let bell = Bell::hang().unwrap();
                let ringers: Vec<_> = (0..2)
                    .map(|_| {
                        let (bell, count) = (Arc::clone(&bell), Arc::clone(&count));
                        let ring = move || {
                            for ring in 0..RINGS {
                                bell.ring((0..ring % 3).map(|_| Waker::from(Arc::clone(&count))));
                            }
                        };
                        task::thread("ringer", ring).unwrap()
                    })
                    .collect();
                let due = 2 * (0..RINGS).map(|ring| ring % 3).sum::<usize>();
                let all_woken = async {
                    while count.0.load(Ordering::SeqCst) < due {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                let in_time = tokio::time::timeout(Duration::from_secs(30), all_woken).await;
                assert!(in_time.is_ok(), "{name}: {} of {due}", count.0.load(Ordering::SeqCst));
                ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
                assert_eq!(count.0.load(Ordering::SeqCst), due, "{name}");
            });
        }
    }
}

//! Letters: what one broker has to say to exactly one other, which it need not be linked with. They go from broker to broker, may be lost with a link
//! or for want of room, and come in no certain order; whoever writes one that matters writes it again until it is answered.
//!
//! This is the box between who writes and reads them and who carries them ([`Carry`]). It decides nothing, and is told of who cannot be reached at present.

use std::collections::VecDeque;
use std::sync::{OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::ids::BrokerId;
use crate::limits::POST_BYTES_MAX;

/// What a waiting letter takes beside its text.
const MAIL_OVERHEAD_BYTES: usize = 64;

/// What comes to this broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mail {
    /// Another broker has written.
    Letter {
        /// Who, by the word of all who carried it.
        from: BrokerId,
        /// What it says.
        body: Bytes,
    },
    /// A letter to that broker found no way: nobody who could bring it there is linked with it at present.
    Unreachable(BrokerId),
}

/// Whoever brings letters to other brokers.
pub trait Carry: Send + Sync {
    /// Takes a letter on its way. False where there is no way.
    fn carry(&self, to: BrokerId, body: &[u8]) -> bool;

    /// Since when there is no way to that broker; none where there is one.
    fn lost_since(&self, to: BrokerId) -> Option<Instant>;

    /// Everybody to whom there is a way.
    fn reached(&self) -> Vec<BrokerId>;
}

/// See the module's page.
#[derive(Default)]
pub struct Post {
    carrier: OnceLock<Weak<dyn Carry>>,
    received: Mutex<Received>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Received {
    mail: VecDeque<Mail>,
    bytes: usize,
}

impl Post {
    /// From now on letters go by this carrier. The first call counts.
    pub fn open(&self, carrier: Weak<dyn Carry>) {
        // There is one mesh a process; its start calls this once.
        let _ = self.carrier.set(carrier);
    }

    /// Sends a letter of at most [`LETTER_BYTES_MAX`](crate::limits::LETTER_BYTES_MAX); where there is no way, [`Mail`] says so.
    pub fn send(&self, to: BrokerId, body: &[u8]) {
        let carrier = self.carrier.get().and_then(Weak::upgrade);
        if !carrier.is_some_and(|carrier| carrier.carry(to, body)) {
            self.bounce(to);
        }
    }

    /// Since when no letter can be brought to that broker, by what is known here; none where one can, and where nobody brings letters.
    #[must_use]
    pub fn lost_since(&self, to: BrokerId) -> Option<Instant> {
        self.carrier.get().and_then(Weak::upgrade).and_then(|carrier| carrier.lost_since(to))
    }

    /// Everybody to whom letters can be brought.
    #[must_use]
    pub fn reached(&self) -> Vec<BrokerId> {
        self.carrier.get().and_then(Weak::upgrade).map(|carrier| carrier.reached()).unwrap_or_default()
    }

    /// A letter to this broker has come; where too many wait it is lost.
    pub fn deliver(&self, from: BrokerId, body: &[u8]) {
        self.put(Mail::Letter { from, body: Bytes::copy_from_slice(body) });
    }

    /// A letter to `to` found no way.
    pub fn bounce(&self, to: BrokerId) {
        self.put(Mail::Unreachable(to));
    }

    fn put(&self, mail: Mail) {
        let bytes = size(&mail);
        let mut received = self.received.lock();
        if received.bytes + bytes > POST_BYTES_MAX {
            return;
        }
        received.bytes += bytes;
        received.mail.push_back(mail);
        drop(received);
        self.waker.wake();
    }

    /// The next that has come, if there is one.
    pub fn receive(&self) -> Option<Mail> {
        self.receive_if(|_| true)
    }

    /// The next that has come, if there is one and `is_wanted` says so of it.
    pub fn receive_if(&self, is_wanted: impl FnOnce(&Mail) -> bool) -> Option<Mail> {
        let mut received = self.received.lock();
        if !received.mail.front().is_some_and(is_wanted) {
            return None;
        }
        let mail = received.mail.pop_front()?;
        received.bytes -= size(&mail);
        Some(mail)
    }

    /// Ready where something has come; until then the one task that reads is woken when something does.
    pub fn poll_received(&self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.received.lock().mail.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Post").field("received", &self.received).finish_non_exhaustive()
    }
}

fn size(mail: &Mail) -> usize {
    MAIL_OVERHEAD_BYTES
        + match mail {
            Mail::Letter { body, .. } => body.len(),
            Mail::Unreachable(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Brings everything back to who wrote it, but for one broker.
    struct Echo(Arc<Post>);

    impl Carry for Echo {
        fn carry(&self, to: BrokerId, body: &[u8]) -> bool {
            if to != BrokerId(9) {
                self.0.deliver(to, body);
            }
            to != BrokerId(9)
        }

        fn lost_since(&self, _: BrokerId) -> Option<Instant> {
            None
        }

        fn reached(&self) -> Vec<BrokerId> {
            vec![BrokerId(1)]
        }
    }

    #[test]
    fn what_finds_no_way_is_told_and_what_has_no_room_is_lost() {
        let post = Arc::<Post>::default();
        post.send(BrokerId(1), b"nobody carries yet");
        assert_eq!((post.receive(), post.receive()), (Some(Mail::Unreachable(BrokerId(1))), None));
        let echo: Arc<dyn Carry> = Arc::new(Echo(Arc::clone(&post)));
        post.open(Arc::downgrade(&echo));
        post.send(BrokerId(9), b"lost");
        post.send(BrokerId(1), b"hello");
        assert_eq!(post.reached(), [BrokerId(1)]);
        assert_eq!(post.receive(), Some(Mail::Unreachable(BrokerId(9))));
        assert_eq!(post.receive(), Some(Mail::Letter { from: BrokerId(1), body: Bytes::from_static(b"hello") }));
        let page = vec![0; POST_BYTES_MAX / 4];
        (0..8).for_each(|_| post.send(BrokerId(1), &page));
        assert_eq!(std::iter::from_fn(|| post.receive()).count(), 3);
        post.send(BrokerId(1), &page);
        assert!(post.receive().is_some(), "there is room again");
        drop(echo);
        post.send(BrokerId(1), b"the mesh is gone");
        assert_eq!(post.receive(), Some(Mail::Unreachable(BrokerId(1))));
    }
}

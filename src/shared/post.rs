//! Letters between two brokers that need not be linked: what one has to say to exactly one other. They go from broker to broker, may get lost with a link,
//! and are bounded; whoever writes one that matters writes it again until it is answered.
//!
//! This is the box between who writes and reads them and who carries them. It decides nothing.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::ids::BrokerId;
use crate::limits::POST_BYTES_MAX;

/// What one broker says to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Whom it is to, or who wrote it.
    pub peer: BrokerId,
    /// What it says.
    pub body: Bytes,
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Post {
    sent: Tray,
    received: Tray,
}

#[derive(Debug, Default)]
struct Tray {
    letters: Mutex<(VecDeque<Letter>, usize)>,
    waker: AtomicWaker,
}

impl Tray {
    fn put(&self, letter: Letter) {
        let mut letters = self.letters.lock();
        if letters.1 + letter.body.len() > POST_BYTES_MAX {
            return;
        }
        letters.1 += letter.body.len();
        letters.0.push_back(letter);
        drop(letters);
        self.waker.wake();
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Letter> {
        self.waker.register(context.waker());
        let mut letters = self.letters.lock();
        let Some(letter) = letters.0.pop_front() else { return Poll::Pending };
        letters.1 -= letter.body.len();
        Poll::Ready(letter)
    }
}

impl Post {
    /// Sends a letter; where too much waits already it is lost.
    pub fn send(&self, letter: Letter) {
        self.sent.put(letter);
    }

    /// The next letter to be carried away.
    pub fn poll_sent(&self, context: &mut Context<'_>) -> Poll<Letter> {
        self.sent.poll(context)
    }

    /// A letter to this broker has come; where too many wait it is lost.
    pub fn deliver(&self, letter: Letter) {
        self.received.put(letter);
    }

    /// There is no way to a broker at present: a letter with nothing in it tells so.
    pub fn bounce(&self, peer: BrokerId) {
        self.received.put(Letter { peer, body: Bytes::new() });
    }

    /// The next letter to this broker.
    pub fn poll_received(&self, context: &mut Context<'_>) -> Poll<Letter> {
        self.received.poll(context)
    }
}

//! Encoded bytes on their way to one client: appended by whoever publishes, drained by the client's own connection task.
//!
//! A narrow interface: append, take, close. Small messages are copied into one growing buffer, large payloads are shared; both
//! stand in one queue, so order holds. A producer that finds the owner asleep takes the waker away with it and wakes **after** it
//! has let go of the lock, at most once a batch. The owner looks, arms and returns `Pending` inside one critical section: no wake-up is lost.
//!
//! It is not a socket and knows no runtime: `std::task::Waker` is all it needs.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;

use super::aliases::Aliases;
use crate::codec::ReasonCode;
use crate::limits::{OUTBOX_BYTES_MAX, OUTBOX_BYTES_MAX_TIGHT, OUTBOX_COPIED_BYTES_MAX};
use crate::pressure::Level;

/// A run of bytes in the order of sending.
#[derive(Debug)]
pub enum Segment {
    /// Packets copied one behind the other.
    Copied(Vec<u8>),
    /// A payload, or packets, that other receivers share.
    Shared(Bytes),
}

impl Segment {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// What the owner took to write. Reused: its buffer is the next outbox buffer.
#[derive(Debug, Default)]
pub struct Drained {
    /// Written first.
    pub segments: VecDeque<Segment>,
    /// Written behind the segments.
    pub tail: Vec<u8>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Outbox {
    segments: VecDeque<Segment>,
    tail: Vec<u8>,
    /// In the segments, of both kinds.
    segment_bytes: usize,
    /// In the segments, shared payloads.
    shared_bytes: usize,
    /// The connection that drains it; none while that is at work: it will look again by itself.
    owner: Option<Waker>,
    /// The owner does not sleep, having drained everything, but its socket takes no more: new bytes need not wake it, the end of the connection does.
    is_blocked: bool,
    close: Option<ReasonCode>,
    /// Where the client takes topic aliases.
    aliases: Option<Box<Aliases>>,
}

impl Outbox {
    /// From here on topics may get up to `max` aliases.
    pub(super) fn allow_aliases(&mut self, max: u16) {
        self.aliases = (max > 0).then(|| Box::new(Aliases::new(max)));
    }

    /// The topic aliases of this connection, if the client takes any.
    pub(super) fn aliases(&mut self) -> Option<&mut Aliases> {
        self.aliases.as_deref_mut()
    }

    /// Bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segment_bytes + self.tail.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the bounds of `limits` for this much memory are reached.
    #[must_use]
    pub fn is_full(&self, memory: Level) -> bool {
        let bytes = self.len();
        match memory {
            Level::Free => bytes >= OUTBOX_BYTES_MAX || bytes - self.shared_bytes >= OUTBOX_COPIED_BYTES_MAX,
            Level::Tight | Level::Full => bytes >= OUTBOX_BYTES_MAX_TIGHT,
        }
    }

    /// The buffer that takes whole packets; append only.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Puts a shared payload behind everything appended so far.
    pub fn push_shared(&mut self, payload: Bytes) {
        self.shared_bytes += payload.len();
        self.push_packets(payload);
    }

    /// Puts whole packets, which other receivers share, behind everything appended so far. Small messages as they are, they count as copied.
    pub fn push_packets(&mut self, packets: Bytes) {
        if !self.tail.is_empty() {
            let head = std::mem::take(&mut self.tail);
            self.segment_bytes += head.len();
            self.segments.push_back(Segment::Copied(head));
        }
        self.segment_bytes += packets.len();
        self.segments.push_back(Segment::Shared(packets));
    }

    /// After an append: the waker of the sleeping owner, to be called once the lock is gone. `None` while the owner is at work.
    #[must_use = "an owner that is not woken sleeps for ever"]
    pub fn owner_to_wake(&mut self) -> Option<Waker> {
        if self.is_blocked { None } else { self.owner.take() }
    }

    /// Ends the connection once what waits is written, or at once if its socket takes no more. The first reason stays. Gives the
    /// owner's waker, like [`Outbox::owner_to_wake`].
    #[must_use = "an owner that is not woken sleeps for ever"]
    pub fn close(&mut self, reason: ReasonCode) -> Option<Waker> {
        self.close.get_or_insert(reason);
        self.owner.take()
    }

    /// Why the connection is to end, if it is.
    #[must_use]
    pub fn closing(&self) -> Option<ReasonCode> {
        self.close
    }

    /// Moves all that waits into `into`, whose emptied buffer takes its place. Says whether there was anything.
    ///
    /// `into` must have been written: what it holds is dropped.
    pub fn take(&mut self, into: &mut Drained) -> bool {
        into.segments.clear();
        into.tail.clear();
        if self.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.segments, &mut into.segments);
        std::mem::swap(&mut self.tail, &mut into.tail);
        self.segment_bytes = 0;
        self.shared_bytes = 0;
        true
    }

    /// The owner goes to sleep; the next append will find `waker`. Only when empty and not closing.
    pub fn arm(&mut self, waker: &Waker) {
        debug_assert!(self.is_empty() && self.close.is_none());
        (self.owner, self.is_blocked) = (Some(waker.clone()), false);
    }

    /// The owner waits for its socket; only [`Outbox::close`] will find `waker`.
    pub fn block(&mut self, waker: &Waker) {
        (self.owner, self.is_blocked) = (Some(waker.clone()), true);
    }

    /// Forgets everything: the connection is gone.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Gives back a buffer that a burst has left.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.tail.capacity() > 4 * 1024 {
            self.tail = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[test]
    fn copied_and_shared_bytes_keep_their_order() {
        let mut outbox = Outbox::default();
        outbox.tail().extend_from_slice(b"ab");
        outbox.push_shared(Bytes::from_static(b"CD"));
        outbox.push_shared(Bytes::from_static(b"EF"));
        outbox.tail().extend_from_slice(b"gh");
        assert_eq!(outbox.len(), 8);
        let mut drained = Drained::default();
        assert!(outbox.take(&mut drained));
        let mut all: Vec<u8> = drained.segments.iter().flat_map(|s| s.bytes().to_vec()).collect();
        all.extend(&drained.tail);
        assert_eq!(all, b"abCDEFgh");
        assert!(outbox.is_empty() && !outbox.take(&mut drained) && drained.tail.is_empty());
    }

    #[test]
    fn shared_payloads_have_a_wider_bound_than_copied_bytes() {
        let mut outbox = Outbox::default();
        outbox.push_shared(Bytes::from(vec![0; OUTBOX_BYTES_MAX - 1]));
        assert!(!outbox.is_full(Level::Free));
        outbox.tail().push(1);
        assert!(outbox.is_full(Level::Free));
        outbox.take(&mut Drained::default());
        assert!(!outbox.is_full(Level::Free));
        outbox.tail().resize(OUTBOX_COPIED_BYTES_MAX, 0);
        assert!(outbox.is_full(Level::Free));
        outbox.take(&mut Drained::default());
        outbox.push_packets(Bytes::from(vec![0; OUTBOX_COPIED_BYTES_MAX - 1]));
        outbox.push_shared(Bytes::from_static(b"large"));
        assert!(!outbox.is_full(Level::Free));
        outbox.push_packets(Bytes::from_static(b"1"));
        assert!(outbox.is_full(Level::Free), "packets of small messages count as if they were copied");
    }

    #[test]
    fn a_sleeping_owner_is_woken_once() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let mut outbox = Outbox::default();
        assert!(outbox.owner_to_wake().is_none(), "nobody sleeps yet");
        outbox.arm(&Waker::from(Arc::clone(&count)));
        for _ in 0..3 {
            outbox.tail().push(1);
            if let Some(waker) = outbox.owner_to_wake() {
                waker.wake();
            }
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_first_reason_to_close_stays() {
        let mut outbox = Outbox::default();
        outbox.block(Waker::noop());
        outbox.tail().push(1);
        assert!(outbox.owner_to_wake().is_none(), "bytes do not wake an owner whose socket is full");
        assert!(outbox.close(ReasonCode::SessionTakenOver).is_some());
        assert!(outbox.close(ReasonCode::ServerShuttingDown).is_none());
        assert_eq!(outbox.closing(), Some(ReasonCode::SessionTakenOver));
    }
}

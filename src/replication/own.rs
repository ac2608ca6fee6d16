//! A broker's own log of one lane, as far as it is on disk.
//!
//! What local clients publish at QoS 1 and 2 is written down with the batch that brought it ([`Change::Logged`]), so that a broker that was killed goes on in
//! its old log and gives its neighbours what they lack. Ids are positions in the ring, so none may be given out twice, also not those of blocks that others
//! have seen and the disk has not: positions are *reserved* in long runs, and nothing at a position that is not reserved on the disk is seen by others. A block
//! with a message of QoS 2 is seen by others only when it is safe itself, and where its publisher's session has a replica, when that knows the packet identifier: a publisher that
//! was not acknowledged sends again, and that is another id.
//!
//! Invariants: a restarted broker begins where the last reservation ended; the floor covers whatever is no longer kept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::block::{Block, Content, Stream};
use super::sync::{AtomicU64, Mutex, Ordering};
use crate::session::{Awaited, Change, Journal, LogHead, Reach, Ticket, Waiter};

/// Positions that are reserved at once. Half of them are left when the next are.
const RUN_POSITIONS: u64 = 1 << 16;

/// When others may see a block.
#[derive(Clone, Debug)]
pub(super) enum Safe {
    /// At once.
    Now,
    /// When this change of the journal is safe: its position is reserved with it.
    After(u64),
    /// When the batch that brought it is, as far as its ticket says.
    With(Arc<Ticket>),
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct OwnLog {
    journal: Arc<Journal>,
    /// What is below is reserved on the disk.
    safe: AtomicU64,
    /// What is below is reserved, or about to be.
    reserved: AtomicU64,
    head: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    head: LogHead,
    /// The change that said it last.
    number: u64,
}

impl OwnLog {
    /// The log of `head`, of which the ring begins at `head.reserved`.
    pub(super) fn new(journal: &Arc<Journal>, head: LogHead) -> Self {
        let written = Mutex::new(Written { head, number: 0 });
        let reserved = AtomicU64::new(head.reserved);
        let log = Self { journal: Arc::clone(journal), safe: AtomicU64::new(0), reserved, head: written };
        log.reserve(head.reserved);
        log
    }

    /// `position` of the ring was given out: so much ahead of it is to be reserved.
    pub(super) fn claimed(&self, position: u64) {
        if position + RUN_POSITIONS / 2 >= self.reserved.load(Ordering::Relaxed) {
            self.reserve(position);
        }
    }

    fn reserve(&self, position: u64) {
        let mut written = self.head.lock();
        let reserved = position + RUN_POSITIONS;
        if reserved < written.head.reserved + RUN_POSITIONS / 2 {
            return; // somebody else was quicker
        }
        written.head.reserved = reserved;
        written.number = self.journal.push(Change::Log(written.head));
        self.reserved.store(reserved, Ordering::Relaxed);
    }

    /// A neighbour knows `position`, which this broker has not given out: the disk has forgotten that it did. The next life begins beyond it.
    pub(super) fn skip_in_next_life(&self, position: u64) {
        let mut written = self.head.lock();
        if written.head.reserved <= position {
            written.head.reserved = position.saturating_add(RUN_POSITIONS);
            written.number = self.journal.push(Change::Log(written.head));
            self.reserved.store(written.head.reserved, Ordering::Relaxed);
        }
    }

    /// When a block at `position`, which is [`claimed`](Self::claimed), may be seen by others, apart from what is in it.
    pub(super) fn safe_at(&self, position: u64) -> Safe {
        if position < self.safe.load(Ordering::Acquire) {
            return Safe::Now;
        }
        let written = self.head.lock();
        if self.journal.committed() < written.number {
            return Safe::After(written.number);
        }
        self.safe.store(written.head.reserved, Ordering::Release);
        Safe::Now
    }

    /// Ids up to `floor` are gone. To be said now and then.
    pub(super) fn trimmed(&self, floor: u64) {
        let mut written = self.head.lock();
        if written.head.floor < floor {
            written.head.floor = floor;
            written.number = self.journal.push(Change::Log(written.head));
        }
    }

    pub(super) fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// The change that must be safe before `block` may be seen; none if it may.
    fn awaited(&self, block: &Block) -> Option<Awaited> {
        match &block.safe {
            Safe::Now => None,
            Safe::After(number) => {
                let awaited = Awaited { number: *number, reach: Reach::Disk };
                (!self.journal.has(awaited)).then_some(awaited)
            }
            Safe::With(ticket) => self.journal.awaited_at(ticket, Reach::Disk),
        }
    }
}

/// The blocks of the own log that a port's cursor has passed and that its far side must not see yet, in their order. The blocks of others overtake them: whoever
/// is in between does not wait for our disk. Bounded by what the journal lets wait, and by the time for which a replica is waited for.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    blocks: VecDeque<Arc<Block>>,
    waiter: Option<Waiter>,
}

impl Deferred {
    /// Keeps `block` if it is our own and must wait, or one of ours before it must. Says whether it did.
    pub(super) fn keeps(&mut self, log: &OwnLog, own: &Arc<Stream>, block: &Arc<Block>) -> bool {
        let is_own = Arc::ptr_eq(&block.stream, own);
        let keeps = is_own && (!self.blocks.is_empty() || log.awaited(block).is_some());
        if keeps {
            self.blocks.push_back(Arc::clone(block));
        }
        keeps
    }

    /// The ring has lost our own ids up to `floor`. If something is kept, and that is lost behind it, it is told behind it. Says whether something is kept.
    pub(super) fn loses(&mut self, floor: u64) -> bool {
        let Some(newest) = self.blocks.back() else { return false };
        if newest.last < floor {
            let Block { position, hops, age_ms, appended_at, .. } = **newest;
            let (stream, safe, content) = (Arc::clone(&newest.stream), Safe::Now, Content::Lost);
            let lost = Block { stream, position, first: floor, last: floor, hops, age_ms, appended_at, safe, content };
            self.blocks.push_back(Arc::new(lost));
        }
        true
    }

    /// The next block if it need not wait any longer.
    pub(super) fn next(&mut self, log: &OwnLog) -> Option<Arc<Block>> {
        self.blocks.front().filter(|block| log.awaited(block).is_none())?;
        self.blocks.pop_front()
    }

    /// Ready if there is a [`next`](Self::next); else the task is woken when there may be, or there is none at all.
    pub(super) fn poll(&mut self, log: &OwnLog, context: &mut Context<'_>) -> Poll<()> {
        let Some(block) = self.blocks.front() else { return Poll::Pending };
        while let Some(awaited) = log.awaited(block) {
            if self.waiter.get_or_insert_with(|| log.journal.waiter()).poll_for(awaited, context).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Nothing is sent any more: whoever opens again meets them in the ring.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.waiter = None;
    }
}

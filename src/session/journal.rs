//! The way of [`Change`]s from the sessions to the store, and the way back of how far they are safe.
//!
//! Two ways lead into one list, in whose order the store writes:
//!
//! * [`Journal::push`], under the lock of the session or of the retained messages: whatever depends on order.
//! * [`Writes`], the list of one batch, pushed as a whole when the batch ends: a message's placing in all its sessions and the identifier under which
//!   its publisher has sent it (QoS 2), a will's publication and that it is gone. Of these none may be safe without the others. They come later than
//!   what the sessions' owners say of them meanwhile; the store takes that in either order (see [`super::change`]).
//!
//! Every change has a number; [`Journal::committed`] is the last that is safe. What the store takes at once it makes safe at once: so a batch's list is
//! safe as a whole or not at all. An acknowledgement waits for the number of what it acknowledges ([`Waiter`]), and so do QoS 2 messages to a durable session:
//! a client must not know a packet identifier that a restarted broker does not.
//!
//! The list is bounded twice. Where the store is behind, [`shorten`] takes out what later changes have made void: at a batch's end, with no lock held. And from
//! [`BEHIND_BYTES`] on whoever makes changes waits: see [`Journal::is_behind`].
//!
//! It knows no file and no clock. Its locks are leaves: nothing else is locked under them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::change::{Change, Head, Order};
use super::logged::LogHead;
use super::subscriber::SubscriberId;
use super::tap::{Heard, Tap};
use crate::ids::{LaneId, OriginLane};

/// Size of the list at which it is shortened for the first time.
const SHORTENED_FROM_BYTES: usize = 16 * 1024 * 1024;
/// Size of the list from which on nobody should add to it.
const BEHIND_BYTES: usize = 64 * 1024 * 1024;
/// Covers that come alone wait so long for something that is acknowledged: nobody waits for them.
const COVERS_INTERVAL: Duration = Duration::from_secs(1);
/// What a change takes beside its message, topic or filter.
const CHANGE_OVERHEAD_BYTES: usize = 256;

/// The number of a batch's changes, known when the batch ends.
#[derive(Debug)]
pub struct Ticket {
    number: AtomicU64,
    /// With it an identifier was received of which a replica is to know before the message is seen.
    is_guarded: AtomicBool,
}

impl Default for Ticket {
    fn default() -> Self {
        Self { number: AtomicU64::new(u64::MAX), is_guarded: AtomicBool::new(false) }
    }
}

impl Ticket {
    /// The number, once the batch has ended.
    pub(super) fn number(&self) -> Option<u64> {
        Some(self.number.load(Ordering::Acquire)).filter(|number| *number != u64::MAX)
    }

    /// How far the batch must have come at least before anybody sees what is in it.
    fn reach(&self) -> Reach {
        if self.is_guarded.load(Ordering::Acquire) { Reach::Known } else { Reach::Disk }
    }
}

/// What one batch writes. Empty, it owns no memory.
#[derive(Debug, Default)]
pub struct Writes {
    changes: Vec<Change>,
    covers: Vec<(OriginLane, u64)>,
    ticket: Option<Arc<Ticket>>,
    number: u64,
    /// How far that must have come.
    reach: Reach,
    /// Of other batches, which have not ended.
    others: Vec<Arc<Ticket>>,
}

/// How far a change has come. Where there is no replica, all of it is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// It is safe on the disk.
    #[default]
    Disk,
    /// The session's replica knows of it as well.
    Known,
    /// And has the messages of which it speaks.
    Held,
}

/// A change that somebody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// Its number; 0: nothing is waited for.
    pub number: u64,
    /// How far it is to come.
    pub reach: Reach,
}

impl Writes {
    /// Puts a change into the batch's list.
    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// What the batch has given to sessions is all of an origin-lane up to `cover` that was not given before. Only the newest of each is written down, and
    /// nobody waits for it.
    pub fn cover(&mut self, stream: OriginLane, cover: u64) {
        self.covers.push((stream, cover));
    }

    /// What will tell the number of this batch's list.
    pub fn ticket(&mut self) -> Arc<Ticket> {
        Arc::clone(self.ticket.get_or_insert_default())
    }

    /// Whether it is this one that will.
    pub(super) fn is_ticket(&self, ticket: &Arc<Ticket>) -> bool {
        self.ticket.as_ref().is_some_and(|own| Arc::ptr_eq(own, ticket))
    }

    /// What the batch acknowledges is safe with the list of that ticket only.
    pub fn wait_for_batch(&mut self, ticket: &Arc<Ticket>) {
        match ticket.number() {
            Some(number) => self.wait_for(number),
            None => self.others.push(Arc::clone(ticket)),
        }
    }

    /// The batches that the batch's acknowledgements wait for and that have not ended yet. To be asked before [`Self::take_number`].
    pub fn take_others(&mut self) -> Vec<Arc<Ticket>> {
        let mut others = std::mem::take(&mut self.others);
        // Often it was this one itself.
        others.retain(|ticket| {
            ticket.number().is_none_or(|number| {
                self.wait_for(number);
                false
            })
        });
        others
    }

    /// The next batch begins. What another client's has left behind waits for itself.
    pub fn begin(&mut self) {
        (self.number, self.reach) = (0, Reach::Disk);
        self.others.clear();
    }

    /// What the batch acknowledges is safe with change `number` only.
    pub fn wait_for(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    /// The number that the batch's acknowledgements wait for, 0 if none; the next batch begins.
    pub fn take_number(&mut self) -> u64 {
        self.take_awaited().number
    }

    /// Likewise, with how far that is to come.
    pub fn take_awaited(&mut self) -> Awaited {
        Awaited { number: std::mem::take(&mut self.number), reach: std::mem::take(&mut self.reach) }
    }

    /// What the batch acknowledges waits for that.
    pub fn await_for(&mut self, awaited: Awaited) {
        self.wait_for(awaited.number);
        self.reach = self.reach.max(awaited.reach);
    }

    /// What the batch acknowledges is to be known to the session's replica first.
    pub(super) fn guard(&mut self) {
        self.reach = self.reach.max(Reach::Known);
    }

    /// Nor is anything of QoS 2 that it publishes seen by anybody before.
    pub(super) fn guard_batch(&mut self) {
        self.guard();
        self.ticket().is_guarded.store(true, Ordering::Release);
    }
}

impl Awaited {
    /// Who has waited for this has waited for `other`.
    #[must_use]
    pub fn includes(self, other: Self) -> bool {
        self.number >= other.number && self.reach >= other.reach
    }
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Journal {
    list: Mutex<List>,
    work: Condvar,
    /// Number of the last change.
    last: AtomicU64,
    state: ReadMostly,
    waiting: Mutex<Waiting>,
    waiters_made: AtomicU64,
    tap: Tap,
}

/// Who waits for a change, by its number and their own.
type Wakers = BTreeMap<(u64, u64), Waker>;

/// Apart by how far it is to come: a disk that writes does not wake those who wait for a replica.
#[derive(Debug, Default)]
struct Waiting {
    disk: Wakers,
    known: Wakers,
    held: Wakers,
}

impl Waiting {
    fn of(&mut self, reach: Reach) -> &mut Wakers {
        match reach {
            Reach::Disk => &mut self.disk,
            Reach::Known => &mut self.known,
            Reach::Held => &mut self.held,
        }
    }
}

/// Read by every batch, also of clients of which nothing is written down: on a cache line apart from what every change writes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ReadMostly {
    /// The store sleeps and there is something for it, or the list is long: [`Journal::kick`] has to look.
    to_look: AtomicBool,
    behind: AtomicBool,
    failing: AtomicBool,
    ended: AtomicBool,
    committed: AtomicU64,
    /// Up to which change replicas know of everything, and up to which they have the messages of which that speaks; nobody waits for it while the tap is closed.
    known: AtomicU64,
    held: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    changes: Vec<Change>,
    /// What speaks of the changes in the list and of those that were taken before.
    covers: HashMap<OriginLane, u64, ahash::RandomState>,
    /// What they take, bytes.
    bytes: usize,
    /// Size at which it is shortened.
    shorten_at: usize,
    /// Most of it is elsewhere, being shortened.
    is_out: bool,
    asleep: bool,
    stopped: bool,
}

impl Journal {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds one change, under the lock of what it is about. Returns its number. The batch's end is what wakes the store.
    pub fn push(&self, change: Change) -> u64 {
        let mut list = self.list.lock();
        list.bytes += cost(&change, list.changes.last());
        list.changes.push(change);
        self.added(&mut list, 1)
    }

    /// Adds all that a batch has written.
    pub fn append(&self, writes: &mut Writes) {
        if writes.changes.is_empty() {
            if !writes.covers.is_empty() {
                self.cover(&mut self.list.lock(), &mut writes.covers);
            }
            return;
        }
        let count = writes.changes.len() as u64;
        let mut before = None;
        let mut bytes = 0;
        for change in &writes.changes {
            bytes += cost(change, before);
            // It stands between those that share a message.
            before = if matches!(change, Change::Source(..)) { before } else { Some(change) };
        }
        let mut list = self.list.lock();
        list.bytes += bytes;
        list.changes.append(&mut writes.changes);
        if let Some(ticket) = writes.ticket.take() {
            // Before the number is seen by anybody: see `awaited`.
            ticket.number.store(self.last.load(Ordering::Relaxed) + count, Ordering::Release);
        }
        self.cover(&mut list, &mut writes.covers);
        let number = self.added(&mut list, count);
        drop(list);
        writes.wait_for(number);
    }

    /// With what they speak of in the list, or taken.
    fn cover(&self, list: &mut List, covers: &mut Vec<(OriginLane, u64)>) {
        if covers.is_empty() {
            return;
        }
        if list.asleep && list.covers.is_empty() {
            self.state.to_look.store(true, Ordering::Relaxed);
        }
        for (stream, cover) in covers.drain(..) {
            let known = list.covers.entry(stream).or_default();
            *known = cover.max(*known);
        }
    }

    /// Of `stream` nothing needs to be known any more.
    pub fn forget_cover(&self, stream: OriginLane) {
        let mut list = self.list.lock();
        list.covers.remove(&stream);
        let change = Change::CoverGone(stream);
        list.bytes += cost(&change, None);
        list.changes.push(change);
        self.added(&mut list, 1);
    }

    fn added(&self, list: &mut List, count: u64) -> u64 {
        if list.asleep || list.is_long() {
            self.state.to_look.store(true, Ordering::Relaxed);
        }
        if list.bytes >= BEHIND_BYTES {
            self.state.behind.store(true, Ordering::Relaxed);
        }
        // Only ever written under the list's lock.
        let number = self.last.load(Ordering::Relaxed) + count;
        self.last.store(number, Ordering::Release);
        number
    }

    /// At the end of a batch, with no lock held: wakes the store if it sleeps over something, and shortens the list if it is long.
    pub fn kick(&self) {
        if !self.state.to_look.load(Ordering::Relaxed) {
            return;
        }
        let mut list = self.list.lock();
        self.state.to_look.store(false, Ordering::Relaxed);
        if std::mem::take(&mut list.asleep) {
            self.work.notify_one();
        }
        if !list.is_long() {
            return;
        }
        // One worker does it; the others go on, behind what is out.
        list.is_out = true;
        let mut changes = std::mem::take(&mut list.changes);
        drop(list);
        let before = size(&changes);
        shorten(&mut changes);
        let after = size(&changes);
        let mut list = self.list.lock();
        changes.append(&mut list.changes);
        list.changes = changes;
        list.bytes = list.bytes.saturating_sub(before) + after;
        list.shorten_at = 2 * list.bytes;
        list.is_out = false;
        self.state.behind.store(list.bytes >= BEHIND_BYTES, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// There is more in the list than should be. Whoever is to be acknowledged for what adds to it is read from again when that is safe; what may be lost
    /// is.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.state.behind.load(Ordering::Relaxed)
    }

    /// Number of the last change.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Number up to which all is safe.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.state.committed.load(Ordering::Acquire)
    }

    /// Number up to which all is safe, and has come so far.
    #[must_use]
    pub fn reached(&self, reach: Reach) -> u64 {
        let committed = self.committed();
        let at_replica = match reach {
            Reach::Disk => return committed,
            Reach::Known => &self.state.known,
            Reach::Held => &self.state.held,
        };
        if self.tap.is_awaited() { committed.min(at_replica.load(Ordering::Acquire)) } else { committed }
    }

    /// Whether what is waited for has come.
    #[must_use]
    pub fn has(&self, awaited: Awaited) -> bool {
        self.reached(awaited.reach) >= awaited.number
    }

    /// From now on what happens to sessions is [heard](Self::heard), once it is safe, by whoever tells replicas of it, and [confirmed](Self::confirm).
    pub fn open_tap(&self) {
        let last = self.last();
        self.tap.set_open(true, || self.raise(last, last));
    }

    /// There is no replica any more: nobody waits for it.
    pub fn close_tap(&self) {
        self.tap.set_open(false, || {});
        self.wake();
    }

    /// Nobody waits for the replica until it is [resumed](Self::resume_tap), which is told of everything all the same.
    pub fn pause_tap(&self) {
        self.tap.set_awaited(false);
        self.wake();
    }

    /// What waits for the replica waits again.
    pub fn resume_tap(&self) {
        self.tap.set_awaited(true);
    }

    /// Whether there is a replica for which somebody may wait.
    #[must_use]
    pub fn is_replica_awaited(&self) -> bool {
        self.tap.is_awaited()
    }

    /// What has become safe and is to be told.
    pub fn heard(&self) -> Heard {
        self.tap.heard()
    }

    /// Ready where [`heard`](Self::heard) has something; until then the one task that tells is woken when there is.
    pub fn poll_heard(&self, context: &mut Context<'_>) -> Poll<()> {
        self.tap.poll(context)
    }

    /// Replicas know of all that was heard up to change `known`, and have the messages of which that speaks up to `held`.
    pub fn confirm(&self, known: u64, held: u64) {
        self.tap.confirm(held, || self.raise(known, held));
        self.wake();
    }

    /// Never back: what nobody need be told of may have come further already.
    fn raise(&self, known: u64, held: u64) {
        self.state.known.fetch_max(known.max(held), Ordering::AcqRel);
        self.state.held.fetch_max(held, Ordering::AcqRel);
    }

    /// Whether anybody waits for the replica, for change `number` or an earlier one.
    #[must_use]
    pub fn awaits_replica(&self, number: u64) -> bool {
        let mut waiting = self.waiting.lock();
        [Reach::Known, Reach::Held].into_iter().any(|reach| {
            let first = waiting.of(reach).first_key_value();
            first.is_some_and(|((first, _), _)| *first <= number)
        })
    }

    /// Likewise, for a change behind `heard`.
    fn awaits_replica_of(&self, heard: u64, number: u64) -> bool {
        let mut waiting = self.waiting.lock();
        let range = (heard.saturating_add(1), 0)..=(number, u64::MAX);
        heard < number
            && [Reach::Known, Reach::Held].into_iter().any(|reach| waiting.of(reach).range(range.clone()).next().is_some())
    }

    /// All for whom what they wait for has come.
    fn wake(&self) {
        let (mut waiting, mut ready) = (self.waiting.lock(), Vec::new());
        for reach in [Reach::Disk, Reach::Known, Reach::Held] {
            let wakers = waiting.of(reach);
            let rest = wakers.split_off(&(self.reached(reach).saturating_add(1), 0));
            ready.extend(std::mem::replace(wakers, rest).into_values());
        }
        drop(waiting);
        ready.into_iter().for_each(Waker::wake);
    }

    /// Nothing can be written at present: the disk is full, or worse.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.state.failing.load(Ordering::Acquire)
    }

    /// What one who has `ticket` must wait for; none: it has come as far as that, or as the ticket itself says.
    #[must_use]
    pub fn awaited_at(&self, ticket: &Ticket, reach: Reach) -> Option<Awaited> {
        // In this order: whoever does not see the ticket's number has not seen its changes counted either, so that it is one of those to come.
        let next = self.last() + 1;
        let (number, reach) = (ticket.number().unwrap_or(next), reach.max(ticket.reach()));
        let awaited = Awaited { number, reach };
        (!self.has(awaited)).then_some(awaited)
    }

    /// For the store: moves all there is into `into` and returns the number of its last change. Where there is nothing, waits so long. None: the journal
    /// has been [stopped](Self::stop), and everything was taken.
    pub fn take(&self, into: &mut Vec<Change>, patience: Duration) -> Option<u64> {
        let mut list = self.list.lock();
        // Whether there was something or not is seen below.
        if list.changes.is_empty() && list.covers.is_empty() && !list.stopped && !patience.is_zero() {
            self.sleep(&mut list, patience);
        }
        if list.changes.is_empty() && !list.covers.is_empty() && !list.stopped && !patience.is_zero() {
            self.sleep(&mut list, COVERS_INTERVAL);
        }
        while list.is_out {
            self.work.wait(&mut list);
        }
        if list.changes.is_empty() && list.covers.is_empty() && list.stopped {
            return None;
        }
        let before = into.len();
        into.append(&mut list.changes);
        into.extend(list.covers.drain().map(|(stream, cover)| Change::Cover(stream, cover)));
        (list.bytes, list.shorten_at) = (0, 0);
        self.state.behind.store(false, Ordering::Relaxed);
        let last = self.last.load(Ordering::Relaxed);
        drop(list);
        if self.tap.is_open() {
            self.tap.take(into.get(before..).unwrap_or_default());
        }
        Some(last)
    }

    fn sleep(&self, list: &mut MutexGuard<'_, List>, patience: Duration) {
        list.asleep = true;
        let _ = self.work.wait_for(list, patience);
        list.asleep = false;
    }

    /// For the store: everything up to `number` is safe.
    pub fn commit(&self, number: u64) {
        self.state.failing.store(self.state.ended.load(Ordering::Acquire), Ordering::Release);
        self.state.committed.store(number, Ordering::Release);
        if self.tap.is_open()
            && let Some(heard) = self.tap.commit(number, || self.raise(number, number))
            && self.awaits_replica_of(heard, number)
        {
            self.tap.press();
        }
        self.wake();
    }

    /// For the store: nothing can be written. All who wait are woken, for some of them need not wait any longer.
    pub fn fail(&self) {
        if !self.state.failing.swap(true, Ordering::AcqRel) {
            let Waiting { disk, known, held } = std::mem::take(&mut *self.waiting.lock());
            disk.into_values().chain(known.into_values()).chain(held.into_values()).for_each(Waker::wake);
        }
    }

    /// For the store: it is no more, and nothing will ever be written again.
    pub fn end(&self) {
        self.state.ended.store(true, Ordering::Release);
        self.fail();
    }

    /// Nothing more is to come: the store ends when it has written the rest.
    pub fn stop(&self) {
        self.list.lock().stopped = true;
        self.work.notify_one();
    }

    /// For one task that waits.
    #[must_use]
    pub fn waiter(self: &Arc<Self>) -> Waiter {
        Waiter { journal: Arc::clone(self), number: self.waiters_made.fetch_add(1, Ordering::Relaxed), entered: None }
    }
}

impl List {
    fn is_long(&self) -> bool {
        !self.is_out && self.bytes >= self.shorten_at.max(SHORTENED_FROM_BYTES)
    }
}

/// What a change takes in the list. A message that several sessions get stands there once for each, one after the other, and takes its room once.
fn cost(change: &Change, before: Option<&Change>) -> usize {
    let bytes = match change {
        Change::Placed(_, _, entry) => match before {
            Some(Change::Placed(_, _, other)) if Arc::ptr_eq(&entry.message, &other.message) => 0,
            _ => entry.message.bytes(),
        },
        Change::Retained(message, _) => message.bytes(),
        Change::Will(_, _, will) => will.message.bytes(),
        Change::Logged(block) => block.body.len(),
        Change::Subscribed(_, text, _) | Change::Unsubscribed(_, text) | Change::Forgotten(text, _) => text.len(),
        Change::Session(..)
        | Change::Ended(_)
        | Change::Staged(..)
        | Change::Removed(..)
        | Change::Received(..)
        | Change::Completed(..)
        | Change::WillGone(..)
        | Change::Source(..)
        | Change::Copied(..)
        | Change::Guarded(..)
        | Change::Log(..)
        | Change::LogGone(..)
        | Change::Cover(..)
        | Change::CoverGone(..)
        | Change::Member(_)
        | Change::MemberGone(_) => 0,
    };
    CHANGE_OVERHEAD_BYTES + bytes
}

fn size(changes: &[Change]) -> usize {
    let (mut before, mut bytes) = (None, 0);
    for change in changes {
        bytes += cost(change, before);
        before = if matches!(change, Change::Source(..)) { before } else { Some(change) };
    }
    bytes
}

/// One task that waits for a number. Dropped, it waits no more.
#[derive(Debug)]
pub struct Waiter {
    journal: Arc<Journal>,
    number: u64,
    entered: Option<Awaited>,
}

impl Waiter {
    /// Ready once everything up to change `number` is safe. Until then the task is woken when it is, or when the store begins to fail.
    pub fn poll(&mut self, number: u64, context: &mut Context<'_>) -> Poll<()> {
        self.poll_for(Awaited { number, reach: Reach::Disk }, context)
    }

    /// Likewise of what is to come as far as that says.
    pub fn poll_for(&mut self, awaited: Awaited, context: &mut Context<'_>) -> Poll<()> {
        if self.journal.has(awaited) {
            return Poll::Ready(());
        }
        let mut waiting = self.journal.waiting.lock();
        if let Some(before) = self.entered.replace(awaited).filter(|before| *before != awaited) {
            waiting.of(before.reach).remove(&(before.number, self.number));
        }
        waiting.of(awaited.reach).insert((awaited.number, self.number), context.waker().clone());
        drop(waiting);
        // The commit may have come between: it looks at those who wait after it has raised the number.
        if self.journal.has(awaited) {
            return Poll::Ready(());
        }
        if awaited.reach != Reach::Disk && self.journal.committed() >= awaited.number {
            self.journal.tap.press_for(awaited.number);
        }
        Poll::Pending
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(Awaited { number, reach }) = self.entered {
            self.journal.waiting.lock().of(reach).remove(&(number, self.number));
        }
    }
}

/// Takes out of a long list what later changes in it have made void: messages that were placed and removed, heads, wills and retained messages that were
/// replaced. What is left is bounded by what sessions and retained messages hold, and by what is on disk and has gone. A session's or log's first head stays where
/// it is, for it may be the session's beginning, and says what the last one said.
///
/// Each piece between copies for replicas by itself: what came before such a copy is in it, and what became of that later must be told.
fn shorten(changes: &mut Vec<Change>) {
    let (mut later, mut piece) = (Later::default(), Vec::new());
    let mut kept: Vec<Change> = Vec::new();
    for change in changes.drain(..).rev() {
        let is_copied = matches!(change, Change::Copied(..));
        if later.keeps(&change) {
            piece.push(change);
        }
        if is_copied {
            later.end(&mut piece, &mut kept);
        }
    }
    later.end(&mut piece, &mut kept);
    kept.reverse();
    *changes = kept;
}

type Set<T> = HashSet<T, ahash::RandomState>;

/// What stands behind the place in the list that is looked at.
#[derive(Debug, Default)]
struct Later {
    /// The last head of each session.
    heads: HashMap<SubscriberId, Head, ahash::RandomState>,
    ended: Set<SubscriberId>,
    filters: Set<(SubscriberId, Box<str>)>,
    /// Of each session the newest connection of which a will comes later, and the newest of which one goes.
    wills: HashMap<SubscriberId, u64, ahash::RandomState>,
    wills_gone: HashMap<SubscriberId, u64, ahash::RandomState>,
    topics: Set<Box<str>>,
    /// The last head of the own log in each lane.
    logs: HashMap<LaneId, LogHead, ahash::RandomState>,
    /// Lanes of which the log ends: what comes before is void.
    logs_gone: Set<LaneId>,
    /// Messages of which something is said later, and those of them that are removed.
    staged: Set<(SubscriberId, Order)>,
    removed: Set<(SubscriberId, Order)>,
    /// Messages that were placed in this list and removed from it.
    void: Set<(SubscriberId, Order)>,
}

impl Later {
    /// Looks at one change, from the last to the first. False: it is void.
    fn keeps(&mut self, change: &Change) -> bool {
        if change.session().is_some_and(|session| self.ended.contains(&session)) {
            return false;
        }
        match change {
            Change::Ended(session) => self.ended.insert(*session),
            Change::Session(session, head) => {
                self.heads.entry(*session).or_insert_with(|| head.clone());
                true
            }
            Change::Subscribed(session, filter, _) | Change::Unsubscribed(session, filter) => {
                self.filters.insert((*session, filter.clone()))
            }
            // Whatever the order in which they come: the newest will counts, and one that is gone takes older ones with it.
            Change::Will(session, epoch, _) => {
                let newest = self.wills.entry(*session).or_default();
                let is_newest = *newest < *epoch && self.wills_gone.get(session).is_none_or(|gone| gone < epoch);
                *newest = (*newest).max(*epoch);
                is_newest
            }
            Change::WillGone(session, epoch) => {
                let gone = self.wills_gone.entry(*session).or_default();
                let is_newest = *gone < *epoch && self.wills.get(session).is_none_or(|newest| newest <= epoch);
                *gone = (*gone).max(*epoch);
                is_newest
            }
            Change::Retained(message, _) => self.topics.insert(message.topic.clone()),
            Change::Forgotten(topic, _) => self.topics.insert(topic.clone()),
            Change::Staged(session, order, _) => self.staged.insert((*session, *order)),
            Change::Removed(session, order) => {
                self.staged.insert((*session, *order));
                self.removed.insert((*session, *order))
            }
            Change::Placed(session, order, _) => {
                let is_removed = self.removed.contains(&(*session, *order));
                if is_removed {
                    self.void.insert((*session, *order));
                }
                !is_removed
            }
            Change::Log(head) => {
                let keeps = !self.logs_gone.contains(&head.lane);
                if keeps {
                    self.logs.entry(head.lane).or_insert(*head);
                }
                keeps
            }
            Change::Logged(block) => !self.logs_gone.contains(&block.lane),
            Change::LogGone(lane) => self.logs_gone.insert(*lane),
            // Counted below; or bounded by what there is.
            Change::Received(..)
            | Change::Completed(..)
            | Change::Source(..)
            | Change::Copied(..)
            | Change::Guarded(..)
            | Change::Cover(..)
            | Change::CoverGone(_)
            | Change::Member(_)
            | Change::MemberGone(_) => true,
        }
    }

    /// The first change of the `piece`, whose last stands first in it, has been looked at: what is left of it goes to `kept`. What comes before knows nothing of it.
    fn end(&mut self, piece: &mut Vec<Change>, kept: &mut Vec<Change>) {
        piece.reverse();
        std::mem::take(self).cancel(piece);
        kept.extend(piece.drain(..).rev());
    }

    /// Takes out all heads of a session or log but the first, the removals of messages whose placing is void, and identifiers that were received and completed.
    fn cancel(&mut self, changes: &mut Vec<Change>) {
        changes.retain_mut(|change| match change {
            Change::Session(session, head) => self.heads.remove(session).is_some_and(|last| {
                *head = last;
                true
            }),
            Change::Log(head) => self.logs.remove(&head.lane).is_some_and(|last| {
                *head = last;
                true
            }),
            _ => true,
        });
        let mut open: HashMap<(SubscriberId, u16), i64, ahash::RandomState> = HashMap::default();
        for change in changes.iter() {
            match change {
                Change::Received(session, id) => *open.entry((*session, id.get())).or_default() += 1,
                Change::Completed(session, id) => *open.entry((*session, id.get())).or_default() -= 1,
                _ => {}
            }
        }
        // What is left of an identifier is one change, the last of its kind: the others cancel each other.
        changes.reverse();
        changes.retain(|change| {
            let left = match change {
                Change::Removed(session, order) => return !self.void.contains(&(*session, *order)),
                Change::Received(session, id) => (open.get_mut(&(*session, id.get())), 1),
                Change::Completed(session, id) => (open.get_mut(&(*session, id.get())), -1),
                _ => return true,
            };
            match left {
                (Some(count), step) if count.signum() == step => {
                    *count -= step;
                    true
                }
                _ => false,
            }
        });
        changes.reverse();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;
    use crate::session::{Entry, SessionExpiry, Stage, StoredMessage, Will};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ended(number: u64) -> Change {
        Change::Ended(SubscriberId(number))
    }

    #[test]
    fn a_batch_is_one_piece_and_its_ticket_knows_its_number() {
        let journal = Journal::new();
        let awaited = |ticket: &Ticket| journal.awaited_at(ticket, Reach::Disk).map(|awaited| awaited.number);
        let mut writes = Writes::default();
        let ticket = writes.ticket();
        writes.push(ended(1));
        assert_eq!(awaited(&ticket), Some(1), "one of those to come");
        assert_eq!(journal.push(ended(2)), 1);
        assert_eq!(awaited(&ticket), Some(2));
        writes.push(ended(3));
        journal.append(&mut writes);
        assert_eq!((writes.take_number(), writes.take_number()), (3, 0));
        assert_eq!(awaited(&ticket), Some(3));
        let mut taken = Vec::new();
        assert_eq!(journal.take(&mut taken, Duration::ZERO), Some(3));
        let order: Vec<_> = taken.iter().filter_map(Change::session).map(|session| session.0).collect();
        assert_eq!(order, [2, 1, 3]);
        journal.commit(3);
        assert_eq!(awaited(&ticket), None);
        journal.stop();
        assert_eq!(journal.take(&mut taken, Duration::from_secs(60)), None);
    }

    #[test]
    fn who_waits_is_woken_by_its_own_number_or_by_failure() {
        let (journal, count) = (Journal::new(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let woken = || count.0.load(Ordering::Relaxed);
        let (mut first, mut second, mut gone) = (journal.waiter(), journal.waiter(), journal.waiter());
        assert!(first.poll(1, &mut context).is_pending() && first.poll(2, &mut context).is_pending());
        assert!(second.poll(3, &mut context).is_pending() && gone.poll(1, &mut context).is_pending());
        drop(gone);
        journal.commit(1);
        assert_eq!(woken(), 0, "the first waits for another number by now, the last is gone");
        journal.commit(2);
        assert_eq!(woken(), 1);
        assert!(first.poll(2, &mut context).is_ready() && second.poll(3, &mut context).is_pending());
        journal.fail();
        assert!(journal.is_failing() && woken() == 2);
        assert!(second.poll(3, &mut context).is_pending());
        journal.fail();
        assert_eq!(woken(), 2, "told once");
        journal.commit(3);
        assert!(!journal.is_failing() && woken() == 3);
    }

    #[test]
    fn who_waits_for_the_replica_is_woken_by_what_that_says() {
        let (journal, count) = (Journal::new(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let woken = || count.0.load(Ordering::Relaxed);
        journal.open_tap();
        journal.push(Change::Copied(SubscriberId(1), 1));
        let (mut known, mut held) = (journal.waiter(), journal.waiter());
        assert!(known.poll_for(Awaited { number: 1, reach: Reach::Known }, &mut context).is_pending());
        assert!(held.poll_for(Awaited { number: 1, reach: Reach::Held }, &mut context).is_pending());
        journal.commit(journal.take(&mut Vec::new(), Duration::ZERO).unwrap());
        assert!(woken() == 0 && journal.awaits_replica(1) && !journal.awaits_replica(0), "the disk is not the replica");
        journal.confirm(journal.heard().number.unwrap(), 0);
        assert!(woken() == 1 && journal.awaits_replica(1));
        journal.close_tap();
        assert!(woken() == 2 && !journal.awaits_replica(1));
    }

    fn retained(topic: &str, payload: &bytes::Bytes) -> Change {
        let (topic, payload, properties) = (topic.into(), payload.clone(), bytes::Bytes::new());
        let qos = crate::codec::QoS::AtMostOnce;
        Change::Retained(Arc::new(StoredMessage { topic, payload, qos, retain: true, expires_at: None, properties }), None)
    }

    #[test]
    fn large_changes_make_a_list_long_and_it_is_shortened_where_nothing_is_locked() {
        let (journal, payload) = (Journal::new(), bytes::Bytes::from(vec![0; 256 * 1024]));
        for _ in 0..300 {
            journal.push(retained("t", &payload));
        }
        assert!(journal.is_behind());
        assert_eq!(journal.list.lock().changes.len(), 300, "whoever pushes holds locks");
        journal.kick();
        assert!(!journal.is_behind() && journal.list.lock().changes.len() == 1);
        for topic in 0..300 {
            journal.push(retained(&topic.to_string(), &payload));
        }
        journal.kick();
        assert!(journal.is_behind(), "nothing of it is void");
        let mut taken = Vec::new();
        assert_eq!((journal.take(&mut taken, Duration::ZERO), taken.len()), (Some(600), 301));
        assert!(!journal.is_behind());
    }

    #[test]
    fn a_session_that_begins_in_a_list_still_begins_when_it_is_shortened() {
        let id = SubscriberId(1);
        let head = |seconds| {
            let expiry = SessionExpiry::After(Duration::from_secs(seconds));
            Change::Session(id, Head { client_id: "c".into(), owner: Arc::default(), expiry, left_at: None, claim: 0 })
        };
        let mut changes =
            vec![head(1), Change::Unsubscribed(id, "a".into()), head(2), Change::Staged(id, 1, Stage::Queued), head(3)];
        shorten(&mut changes);
        assert_eq!(changes.len(), 3);
        let is_first =
            matches!(&changes[0], Change::Session(_, Head { expiry: SessionExpiry::After(rest), .. }) if rest.as_secs() == 3);
        assert!(is_first, "{changes:?}");
    }

    #[test]
    fn what_was_copied_for_a_replica_is_told_of_to_its_end() {
        let (id, other) = (SubscriberId(1), SubscriberId(2));
        let packet = crate::codec::PacketId::new(7).unwrap();
        let message = match retained("t", &bytes::Bytes::new()) {
            Change::Retained(message, _) => message,
            other => panic!("{other:?}"),
        };
        let placed = |session, order| {
            let (qos, message, stage) = (crate::codec::QoS::ExactlyOnce, Arc::clone(&message), Stage::Queued);
            Change::Placed(session, order, Entry { message, qos, retain: false, subscription_ids: None, stage })
        };
        let head = |claim| {
            let expiry = SessionExpiry::Never;
            Change::Session(id, Head { client_id: "c".into(), owner: Arc::default(), expiry, left_at: None, claim })
        };
        let (copied, released) = (Change::Copied(id, 1), Change::Staged(id, 1, Stage::Released(0)));
        let (received, completed) = (Change::Received(id, packet), Change::Completed(id, packet));
        let removed = Change::Removed(id, 1);
        for list in [
            vec![placed(id, 1), copied.clone(), removed.clone()],
            vec![received.clone(), copied.clone(), completed.clone()],
            vec![completed.clone(), copied.clone(), received.clone()],
            vec![head(1), copied.clone(), head(2)],
        ] {
            let mut changes = list.clone();
            shorten(&mut changes);
            assert_eq!(format!("{changes:?}"), format!("{list:?}"), "all of it is left");
        }
        // What is void between copies is void all the same.
        let mut changes = vec![
            placed(other, 1),
            placed(id, 1),
            Change::Removed(other, 1),
            copied.clone(),
            received.clone(),
            released,
            completed.clone(),
            removed.clone(),
            Change::Copied(other, 1),
            received,
            completed,
        ];
        shorten(&mut changes);
        assert_eq!(format!("{changes:?}"), format!("{:?}", [placed(id, 1), copied, removed, Change::Copied(other, 1)]));
    }

    #[test]
    fn of_wills_the_newest_counts_and_what_is_gone_stays_gone() {
        let id = SubscriberId(1);
        let message = match retained("w", &bytes::Bytes::new()) {
            Change::Retained(message, _) => (*message).clone(),
            other => panic!("{other:?}"),
        };
        let will = |epoch| {
            Change::Will(id, epoch, Arc::new(Will { message: message.clone(), message_expiry: None, delay: Duration::ZERO }))
        };
        let gone = |epoch| Change::WillGone(id, epoch);
        for (list, left) in [
            (vec![will(1), gone(1), will(2), gone(2)], vec![gone(2)]),
            (vec![gone(2), will(2)], vec![gone(2), will(2)]),
            (vec![will(3), will(2)], vec![will(3), will(2)]),
            (vec![gone(1), will(2), will(3)], vec![will(3)]),
        ] {
            let mut changes = list;
            shorten(&mut changes);
            assert_eq!(format!("{changes:?}"), format!("{left:?}"));
        }
    }

    #[test]
    fn what_the_replica_knows_never_goes_back() {
        let journal = Journal::new();
        let write = |change| {
            let number = journal.push(change);
            journal.commit(journal.take(&mut Vec::new(), Duration::ZERO).unwrap());
            number
        };
        journal.open_tap();
        let told = write(Change::Copied(SubscriberId(1), 1));
        assert_eq!((journal.heard().number, journal.reached(Reach::Known)), (Some(told), 0));
        journal.confirm(told, 0);
        assert_eq!((journal.reached(Reach::Known), journal.reached(Reach::Held)), (told, 0));
        journal.confirm(told, told);
        // Of this nobody need be told.
        let untold = write(retained("t", &bytes::Bytes::new()));
        assert_eq!(journal.reached(Reach::Held), untold);
        // Another letter, behind which nothing new was safe, is known.
        journal.confirm(told, told);
        assert_eq!([Reach::Disk, Reach::Known, Reach::Held].map(|reach| journal.reached(reach)), [untold; 3]);
    }

    #[test]
    fn what_nobody_waits_for_is_told_with_the_next_that_somebody_waits_for() {
        let (journal, count) = (Journal::new(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let write = |changes: Vec<Change>| {
            let number = changes.into_iter().map(|change| journal.push(change)).last().unwrap_or_default();
            journal.commit(journal.take(&mut Vec::new(), Duration::ZERO).unwrap());
            number
        };
        let session = SubscriberId(1);
        journal.open_tap();
        assert!(journal.poll_heard(&mut context).is_pending());
        write(vec![Change::Copied(session, 1), Change::Removed(session, 1)]);
        assert!(journal.poll_heard(&mut context).is_pending(), "nobody waits");
        // Before it is safe, and afterwards.
        for is_early in [true, false] {
            let mut waiter = journal.waiter();
            let next = Awaited { number: journal.last() + u64::from(is_early), reach: Reach::Known };
            if is_early {
                assert!(waiter.poll_for(next, &mut context).is_pending() && journal.poll_heard(&mut context).is_pending());
                write(vec![Change::Received(session, crate::codec::PacketId::MIN)]);
            } else {
                write(vec![Change::Completed(session, crate::codec::PacketId::MIN)]);
                let next = Awaited { number: journal.last(), ..next };
                assert!(journal.poll_heard(&mut context).is_pending() && waiter.poll_for(next, &mut context).is_pending());
            }
            assert!(journal.poll_heard(&mut context).is_ready(), "{is_early}");
            assert!(!journal.heard().changes.is_empty());
            assert!(journal.poll_heard(&mut context).is_pending(), "it is told");
            // Who waits for what is told already does not press once more.
            write(vec![Change::Removed(session, 2)]);
            assert!(journal.poll_heard(&mut context).is_pending(), "{is_early}");
        }
    }

    #[test]
    fn what_a_guarded_publisher_says_is_seen_by_nobody_before_its_replica_knows_the_identifier() {
        let (journal, mut writes) = (Journal::new(), Writes::default());
        journal.open_tap();
        let ticket = writes.ticket();
        writes.guard_batch();
        writes.push(Change::Copied(SubscriberId(1), 1));
        journal.append(&mut writes);
        let number = journal.last();
        let known = Awaited { number, reach: Reach::Known };
        assert_eq!((journal.awaited_at(&ticket, Reach::Disk), writes.take_awaited()), (Some(known), known));
        journal.commit(journal.take(&mut Vec::new(), Duration::ZERO).unwrap());
        assert_eq!(journal.awaited_at(&ticket, Reach::Disk), Some(known), "it is on the disk only");
        // The message itself need not be there: it goes there only now.
        journal.confirm(journal.heard().number.unwrap(), 0);
        assert_eq!(journal.awaited_at(&ticket, Reach::Disk), None);
        let held = Awaited { number, reach: Reach::Held };
        assert_eq!(journal.awaited_at(&ticket, Reach::Held), Some(held));
        journal.close_tap();
        assert_eq!(journal.awaited_at(&ticket, Reach::Held), None);
    }

    #[test]
    fn a_store_that_is_no_more_fails_for_good() {
        let journal = Journal::new();
        journal.end();
        journal.commit(1);
        assert!(journal.is_failing());
    }

    #[test]
    fn a_store_that_sleeps_is_woken_at_the_end_of_a_batch() {
        let journal = Journal::new();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let mut taken = Vec::new();
                while taken.len() < 2_000 {
                    journal.take(&mut taken, Duration::from_secs(60)).unwrap();
                }
            });
            for number in 0..1_000 {
                journal.push(ended(number));
                journal.push(ended(number));
                journal.kick();
            }
            taker.join().unwrap();
        });
    }
}

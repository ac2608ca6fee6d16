//! A session follows its client to another broker.
//!
//! The principle: **the session stays in the old broker's registry, and goes on queueing there, until the new one has all of it on its disk.** Every failure
//! ends in "the session is where it was": the CONNECT is refused with 0x88, and the client tries again. A new session is begun only where the old broker
//! cannot be reached. In the order of time:
//!
//! 1. The new broker's client claims the session with a stamp ([`claims`](super::claims)). The new broker *asks* the old one, which closes the client's connection with 0x8E, marks the
//!    session as leaving and tells who it is and what it is subscribed to. From now on nothing that it matches is left out of the mesh.
//! 2. The new broker makes a session that is *coming*: subscribed, away, in no registry, nothing of it on the disk; it queues what is delivered here from now
//!    on, each message with its id. In the same moment ([`Quiesce`](crate::replication::Quiesce)) it notes its covers, the *cut*, and tells the old one.
//! 3. When the old broker has delivered as much, it notes, in one moment again, what is in the session and its own covers, which are beyond the cut. It gives
//!    both away.
//! 4. The new broker waits until it has delivered as much as these covers say. Of what is in its own session it drops what is at or below them: it is in the
//!    other's. So each message is in exactly one of the two. All becomes one session and is written down in one piece.
//! 5. When that is safe it tells its claim, and *done* to the old broker, which ends its session. Of that the subscriptions stay as a ghost, so that
//!    nothing is left out of the mesh for want of them, until all members have taken in what the new broker's register says.
//!
//! Once something was given away the old broker does not resume the session before it knows what became of it: it asks for the *status*. A new broker that says that it has
//! not got it will not get it by this move any more. One that cannot be reached is waited for, but for a client that comes back: it is given what there is, and if
//! the other comes back with the same session, claims decide. Whoever asks while a session is on its way waits.
//!
//! Every question is repeated until it is answered; every answer may come twice, or late: words name their move by a random number.
//!
//! | file | duty |
//! |---|---|
//! | `leaving` | the old broker's side |
//! | `coming` | the new broker's side |
//! | `offers` | sessions that leave without their clients |
//! | `pages` | what is too large for one letter |
//! | `word` | what they say, as bytes |
//!
//! All of it is one task's ([`Router::drive_moves`], under one lock that nobody else takes): connections only leave their [`Fetch`] with it.
//!
//! Of share groups the session is a member at the old broker, the last to be chosen, until it is one at the new. What they gave it after step 3 is given to another member at
//! step 5, as if the old broker were picked once more.

mod coming;
mod leaving;
mod offers;
mod pages;
#[cfg(test)]
mod tests;
mod word;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use dashmap::DashMap;
use parking_lot::Mutex;

use self::coming::{Coming, Finished};
use self::leaving::{Ghost, Leaving};
use self::offers::Offers;
use self::word::Word;
pub(super) use self::word::{put_covers, read_covers};
use super::claims::Claimed;
use super::replica::{self, Promoted, Promotion, Replicas};
use super::{Arrival, Batch, Ingress, RouteCache, Router};
use crate::auth::Access;
use crate::ids::{BrokerId, ShareId};
use crate::limits::{HANDOVERS_MAX, HANDOVERS_WAITING_MAX};
use crate::replication::{Pick, PickList, Replication};
use crate::session::{News, RESTORED_EPOCH, StoredMessage, Subscriber};
use crate::shared::{Mail, Post};

/// A question that is not answered is repeated after this time.
const REPEAT: Duration = Duration::from_millis(250);
/// The other broker says nothing for so long: the move is given up.
const PATIENCE: Duration = Duration::from_secs(5);
/// There is no way to the other broker for so long: it cannot be reached, and its session is begun anew elsewhere.
const PATIENCE_UNREACHABLE: Duration = Duration::from_secs(3);
/// What a broker that can be reached claims is waited for so long, if it is not known yet, and so long at the start, if there are other members.
const PATIENCE_UNKNOWN: Duration = Duration::from_secs(3);
/// At the start where no others are known.
const PATIENCE_ALONE: Duration = Duration::from_secs(1);
/// At the start everything must have been known for so long: who is behind a neighbour is heard of a little later than that.
const KNOWN_LEAST: Duration = Duration::from_millis(100);
/// A client that is let in to begin anew must do so within this time.
const PASSED: Duration = Duration::from_secs(10);
/// A session of which nobody has said anything but that it be waited for is waited for so long.
const PATIENCE_HEAD: Duration = Duration::from_secs(10);
/// Letters that are read in one go.
const LETTERS_PER_TURN: usize = 64;
/// While something waits for what this broker itself has still to do it is looked for so often.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// While anything is on its way.
pub(super) const LOOK_INTERVAL_SLOW: Duration = Duration::from_millis(100);
/// Else.
const LOOK_INTERVAL_IDLE: Duration = Duration::from_secs(1);
/// Claims that are not believed are looked at again.
const DOUBTED_MAX: usize = 10_000;

/// What a CONNECT waits for before it can be served.
#[derive(Debug)]
pub struct Fetch(Arc<Waiting>);

/// Whether the client is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What there is of its session is here.
    Proceed,
    /// Its session could not be fetched, and is where it was: 0x88, or 0x03 before MQTT 5.
    Refused,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    verdict: Mutex<Option<Verdict>>,
    waker: AtomicWaker,
}

impl Waiting {
    /// The first word counts.
    fn say(&self, verdict: Verdict) {
        self.verdict.lock().get_or_insert(verdict);
        self.waker.wake();
    }

    fn is_answered(&self) -> bool {
        self.verdict.lock().is_some()
    }
}

impl Fetch {
    /// Ready when it is known.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Verdict> {
        self.0.waker.register(context.waker());
        match *self.0.verdict.lock() {
            Some(verdict) => Poll::Ready(verdict),
            None => Poll::Pending,
        }
    }
}

/// A client that wants its session.
#[derive(Debug)]
struct Request {
    client_id: Arc<str>,
    clean_start: bool,
    access: Option<Arc<Access>>,
    waiting: Arc<Waiting>,
    /// When it came, by mesh time.
    stamp: u64,
    since: Instant,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Handover {
    requests: Mutex<Vec<Request>>,
    waker: AtomicWaker,
    /// Whose sessions are coming.
    coming: Mutex<HashSet<Arc<str>, ahash::RandomState>>,
    /// Where clients' sessions went: others' claims may be on their way still.
    forwarded: DashMap<Arc<str>, (BrokerId, Instant), ahash::RandomState>,
    /// Of each client the CONNECT that waits: an older one is not served any more.
    newest: DashMap<Arc<str>, Weak<Waiting>, ahash::RandomState>,
    /// Who may begin anew in spite of this claim, since when.
    passed: DashMap<Arc<str>, (Option<Claimed>, Instant), ahash::RandomState>,
    /// Sessions that leave, or have left and draw messages still.
    leaving: AtomicUsize,
    /// Sessions that come.
    arriving: AtomicUsize,
    /// What replicas here are given.
    pub(super) news: Arc<News>,
    /// Sessions have replicas elsewhere.
    replicates: AtomicBool,
    /// When the machine turned last, by the router's clock, ms.
    turned_ms: AtomicU64,
    machine: Mutex<Machine>,
}

#[derive(Debug, Default)]
struct Machine {
    coming: HashMap<Arc<str>, Coming, ahash::RandomState>,
    leaving: HashMap<Arc<str>, Leaving, ahash::RandomState>,
    /// By the move's number: what came and is not yet settled with the old broker.
    finished: HashMap<u64, Finished, ahash::RandomState>,
    /// By the move's number: what went, as far as it still draws messages.
    ghosts: HashMap<u64, Ghost, ahash::RandomState>,
    /// They wait for their turn.
    queue: VecDeque<Request>,
    /// Claims that are not believed yet, and when they were looked at last.
    doubted: Vec<(Arc<str>, Claimed)>,
    doubted_at: Option<Instant>,
    /// They wait until it is known who has sessions.
    early: Vec<Request>,
    knowledge: Knowledge,
    offers: Offers,
    replicas: Replicas,
    swept_at: Option<Instant>,
    /// Since when wills that were read from the disk wait for what others say of them.
    in_doubt_since: Option<Instant>,
}

/// Whether it is known who has sessions.
#[derive(Debug, Default)]
struct Knowledge {
    is_whole: bool,
    /// When this broker began.
    begun: Option<Instant>,
    whole_since: Option<Instant>,
    /// Who can be reached, but what they claim is not known.
    unknown: HashMap<BrokerId, Instant>,
}

/// How the other end of a move was heard.
#[derive(Debug)]
struct Line {
    peer: BrokerId,
    /// Names the move.
    id: u64,
    asked_at: Instant,
    heard_at: Instant,
    /// A letter found no way to it, and none came from there since.
    bounced_at: Option<Instant>,
}

impl Line {
    fn new(peer: BrokerId, id: u64, now: Instant) -> Self {
        Self { peer, id, asked_at: now, heard_at: now, bounced_at: None }
    }

    fn heard(&mut self, now: Instant) {
        (self.heard_at, self.bounced_at) = (now, None);
    }

    fn is(&self, peer: BrokerId, id: u64) -> bool {
        (self.peer, self.id) == (peer, id)
    }

    fn is_unreachable(&self, turn: &Turn<'_>) -> bool {
        let is_lost = |since| turn.now.saturating_duration_since(since) >= PATIENCE_UNREACHABLE;
        self.bounced_at.is_some() && turn.post.lost_since(self.peer).is_some_and(is_lost)
    }

    fn is_silent(&self, patience: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.heard_at) >= patience
    }

    /// Whether it is time to ask once more; then it is counted as asked.
    fn asks_again(&mut self, after: Duration, now: Instant) -> bool {
        let is_due = now.saturating_duration_since(self.asked_at) >= after;
        if is_due {
            self.asked_at = now;
        }
        is_due
    }
}

/// What one turn of the machine works with.
pub(super) struct Turn<'a> {
    pub(super) router: &'a Router,
    pub(super) mesh: &'a Arc<Replication>,
    pub(super) post: &'a Post,
    pub(super) own: BrokerId,
    pub(super) batch: &'a mut Batch,
    pub(super) now: Instant,
}

impl Turn<'_> {
    fn write(&self, to: BrokerId, id: u64, word: &Word<'_>) {
        self.post.send(to, &word.encode(id));
    }

    /// What share groups gave to a session after it had been given away goes to another of their members, here or elsewhere, as if this broker were picked once more.
    fn share_anew(&mut self, messages: Vec<(ShareId, Arc<StoredMessage>)>) {
        if messages.is_empty() {
            return;
        }
        self.batch.enter(self.mesh);
        for (share, message) in messages {
            let mut list = PickList::default();
            list.push(Pick { share, broker: self.own });
            for picks in list.pages(true, 0) {
                let arrival = Arrival { picks, ..Arrival::default() };
                self.router.publish(self.batch, &mut RouteCache::default(), &message.borrow(), Ingress::Link(arrival), self.now);
            }
        }
    }

    /// Ends the client's session here unless its claim is newer than `theirs`. Whether it did. See [`Router::yield_session`].
    fn yield_session(&mut self, client_id: &Arc<str>, theirs: Claimed, is_given: bool) -> bool {
        let left_behind = self.router.yield_session(self.batch, client_id, theirs, is_given, self.now);
        let is_over = left_behind.is_some();
        self.share_anew(left_behind.unwrap_or_default());
        is_over
    }

    /// How long ago that was.
    pub(super) fn since(&self, at: Instant) -> Duration {
        self.now.saturating_duration_since(at)
    }

    /// Whether what was written by that change is on the disk, where there is one.
    pub(super) fn is_safe(&self, number: u64) -> bool {
        self.router.journal.as_ref().is_none_or(|journal| journal.committed() >= number)
    }

    /// Does something in a moment in which nothing is on its way between rings and sessions.
    pub(super) fn quietly<T>(&mut self, act: impl FnOnce(&Router, &Replication) -> T) -> T {
        // A batch of our own that has begun would be waited for without end.
        self.router.finish(self.batch, self.now);
        self.mesh.quiesce().exclusively(|| act(self.router, self.mesh))
    }
}

impl Router {
    /// From now on sessions are fetched from other brokers, and handed over to them, with letters by this post. The first call counts.
    pub fn join_post(&self, post: Arc<Post>) {
        // The server calls it once.
        let _ = self.post.set(post);
        self.claims.set_incomplete(true);
        self.orphans.set_unsure(true);
    }

    /// What a client's CONNECT is to wait for: another broker has its session, or asks for it. None where there is nothing to wait for.
    #[must_use]
    pub fn fetch_session(&self, client_id: &str, clean_start: bool, access: Option<Arc<Access>>, now: Instant) -> Option<Fetch> {
        if self.post.get().is_none() || client_id.is_empty() || !Self::is_claimed(access.as_deref()) {
            return None;
        }
        if let Some(earlier) = self.handover.newest.remove(client_id).and_then(|(_, earlier)| earlier.upgrade()) {
            earlier.say(Verdict::Refused);
        }
        let here = self.registry.get(client_id).map(|subscriber| Arc::clone(&subscriber));
        let is_elsewhere = || {
            let Some(newest) = self.newest_claim(client_id, now) else {
                return here.is_none() && self.handover.forwarded.contains_key(client_id);
            };
            let own = self.registers().map(|registers| registers.own_id());
            let claimed = here.as_ref().zip(own).map(|(subscriber, own)| (subscriber.lock().claimed, own));
            claimed.is_none_or(|claimed| claimed < newest)
        };
        let is_on_its_way =
            here.as_ref().is_some_and(|subscriber| subscriber.is_moving()) || self.handover.coming.lock().contains(client_id);
        let is_unsure = || self.claims.is_incomplete() && here.as_ref().is_none_or(|subscriber| !has_been_here(subscriber));
        if !is_on_its_way && (clean_start || !(is_elsewhere() || is_unsure())) {
            return None;
        }
        let waiting = Arc::<Waiting>::default();
        self.handover.newest.insert(Arc::from(client_id), Arc::downgrade(&waiting));
        let fetch = Fetch(Arc::clone(&waiting));
        let stamp = self.claim_stamp(client_id, 0, now);
        let request = Request { client_id: Arc::from(client_id), clean_start, access, waiting, stamp, since: now };
        self.handover.requests.lock().push(request);
        self.handover.waker.wake();
        Some(fetch)
    }

    /// Whether another broker has the session of a client that is about to begin one here: it has come to light since that was looked for.
    pub(super) fn is_elsewhere(&self, client_id: &str, access: Option<&Access>, now: Instant) -> bool {
        if self.post.get().is_none() || !Self::is_claimed(access) {
            return false;
        }
        let passed = self.handover.passed.remove(client_id).map(|(_, (claimed, _))| claimed);
        match self.newest_claim(client_id, now) {
            Some(newest) => passed.is_none_or(|passed| passed < Some(newest)),
            None => passed.is_none() && self.handover.went_to(client_id).is_some(),
        }
    }

    /// Sessions that leave for other brokers, and those that have left and of which not all members know it.
    #[must_use]
    pub fn leaving(&self) -> usize {
        self.handover.leaving.load(Ordering::Relaxed)
    }

    /// Sessions that come from other brokers, and clients of whom that is not known yet.
    #[must_use]
    pub fn coming(&self) -> usize {
        self.handover.arriving.load(Ordering::Relaxed) + self.handover.requests.lock().len()
    }

    /// Ready where clients wait for their sessions that [`drive_moves`](Self::drive_moves) has not looked at; until then the task is woken when there are some.
    pub fn poll_fetches(&self, context: &mut Context<'_>) -> Poll<()> {
        self.handover.waker.register(context.waker());
        if self.handover.requests.lock().is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// The client whose session another broker asks for in a letter: what it has sent here before it went there is to be heard first.
    #[must_use]
    pub fn client_asked_for(mail: &Mail) -> Option<&str> {
        let Mail::Letter { body, .. } = mail else { return None };
        match Word::decode(body) {
            Ok((_, Word::Ask { client_id, .. })) => Some(client_id),
            _ => None,
        }
    }

    /// Reads what has come by post, but for `first`, that was taken from there already; follows claims; serves clients that wait; repeats what was not answered, and gives up what is
    /// not answered at all. Says when to call at the latest. Finish the batch afterwards.
    pub fn drive_moves(&self, batch: &mut Batch, first: impl IntoIterator<Item = Mail>, now: Instant) -> Duration {
        let (Some(mesh), Some(post), Some(registers)) = (self.mesh(), self.post.get(), self.registers()) else {
            return LOOK_INTERVAL_IDLE;
        };
        self.handover.turned_ms.store(self.millis(now), Ordering::Relaxed);
        let mut guard = self.handover.machine.lock();
        let machine = &mut *guard;
        let mut turn = Turn { router: self, mesh, post, own: registers.own_id(), batch, now };
        first.into_iter().for_each(|mail| machine.read(&mut turn, &mail));
        for _ in 0..LETTERS_PER_TURN {
            // The client's old connection comes first: see `client_asked_for`.
            let Some(mail) = post.receive_if(|mail| Self::client_asked_for(mail).is_none_or(|client| !self.is_connected(client)))
            else {
                break;
            };
            machine.read(&mut turn, &mail);
        }
        machine.follow_claims(&mut turn);
        machine.learn(&turn);
        machine.settle_wills(&mut turn);
        let requests = std::mem::take(&mut *self.handover.requests.lock());
        requests.into_iter().for_each(|request| machine.serve(&mut turn, request));
        machine.serve_early(&mut turn);
        machine.serve_queue(&mut turn);
        machine.drive_coming(&mut turn);
        machine.drive_leaving(&mut turn);
        machine.drive_offers(&mut turn);
        machine.drive_ends(&mut turn);
        machine.tell_gone(&mut turn);
        machine.drive_replicas(&mut turn);
        machine.sweep(&turn);
        *self.handover.coming.lock() = machine.coming.keys().cloned().collect();
        self.handover.leaving.store(machine.leaving.len() + machine.ghosts.len(), Ordering::Relaxed);
        self.handover.arriving.store(machine.coming.len() + machine.queue.len() + machine.early.len(), Ordering::Relaxed);
        machine.interval().min(machine.replicas.interval().unwrap_or(LOOK_INTERVAL_IDLE))
    }

    /// From now on sessions that outlive their connections have a replica at another broker, where one is reached and this one has a disk.
    pub fn replicate_sessions(&self) {
        self.handover.replicates.store(true, Ordering::Release);
        self.handover.waker.wake();
    }

    /// For another task than that which calls [`drive_moves`](Self::drive_moves): if that stands still, or has ended, nobody waits for replicas any more. Says whether it is so.
    pub fn watch_replicas(&self, now: Instant) -> bool {
        let Some(journal) = self.journal.as_ref().filter(|journal| journal.is_replica_awaited()) else { return false };
        let turned_ms = self.handover.turned_ms.load(Ordering::Relaxed);
        let is_still = u128::from(self.millis(now).saturating_sub(turned_ms)) >= replica::SILENCE_MAX.as_millis();
        if is_still {
            // What clients are sent from now on nobody tells it.
            if let Some(registers) = self.registers() {
                registers.own().tell_replica(None);
            }
            journal.pause_tap();
        }
        is_still
    }

    /// Whether sessions have replicas, or are to have them.
    #[must_use]
    pub fn replicates(&self) -> bool {
        self.handover.replicates()
    }

    /// Ready where replicas, or who has them, are to be told something by [`drive_moves`](Self::drive_moves); until then the task is woken when they are.
    pub fn poll_replicas(&self, context: &mut Context<'_>) -> Poll<()> {
        let (news, wills) = (self.handover.news.poll(context), self.orphans.poll(context));
        if news.is_ready()
            || wills.is_ready()
            || self.journal.as_ref().is_some_and(|journal| journal.poll_heard(context).is_ready())
        {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Handover {
    /// Whether sessions are to have replicas elsewhere.
    pub(super) fn replicates(&self) -> bool {
        self.replicates.load(Ordering::Acquire)
    }

    /// The broker to which the client's session went not long ago.
    fn went_to(&self, client_id: &str) -> Option<BrokerId> {
        self.forwarded.get(client_id).map(|forwarded| forwarded.0)
    }
}

impl Machine {
    fn interval(&self) -> Duration {
        if !self.early.is_empty() {
            return LOOK_INTERVAL;
        }
        let is_moving = self.coming.values().any(Coming::waits_for_us) || self.leaving.values().any(Leaving::waits_for_us);
        if is_moving || self.ghosts.values().any(Ghost::waits_for_us) {
            return LOOK_INTERVAL;
        }
        let is_idle = self.offers.is_empty()
            && self.coming.is_empty()
            && self.leaving.is_empty()
            && self.finished.is_empty()
            && self.queue.is_empty();
        if is_idle { LOOK_INTERVAL_IDLE } else { LOOK_INTERVAL_SLOW }
    }

    fn read(&mut self, turn: &mut Turn<'_>, mail: &Mail) {
        let (from, body) = match mail {
            Mail::Letter { from, body } => (*from, body),
            Mail::Unreachable(peer) => return self.bounced(*peer, turn.now),
        };
        if replica::is_replicas(body) {
            return self.replicas.read(turn, from, body);
        }
        let (id, word) = match Word::decode(body) {
            Ok(read) => read,
            Err(error) => return tracing::debug!(%from, %error, "a letter is not understood"),
        };
        match word {
            Word::Ask { stamp, client_id } => self.asked(turn, (from, id), stamp, client_id),
            Word::Offer { stamp, client_id } => self.offered(turn, (from, id), stamp, client_id),
            Word::Fetch { part, first } => self.fetched(turn, (from, id), part, first),
            Word::Cut { part, parts, covers } => self.cut(turn, (from, id), (part, parts), covers),
            Word::Done { stamp, client_id } => self.done(turn, (from, id), stamp, client_id),
            Word::Release => self.released(turn, (from, id)),
            Word::Cancel => self.given_up(turn, (from, id)),
            Word::Outcome(outcome) => self.outcome(turn, (from, id), outcome),
            Word::Page { part, page, pages, bytes } => self.paged(turn, (from, id), part, (page, pages), bytes),
            Word::No(why) => self.denied(turn, (from, id), why),
            Word::Status { stamp, client_id } => self.status(turn, (from, id), stamp, client_id),
            Word::Gone => self.gone(turn, (from, id)),
            Word::Released => self.ended(from, id),
        }
    }

    fn bounced(&mut self, peer: BrokerId, now: Instant) {
        let coming = self.coming.values_mut().map(|coming| &mut coming.line);
        let leaving = self.leaving.values_mut().map(|leaving| &mut leaving.line);
        coming.chain(leaving).filter(|line| line.peer == peer).for_each(|line| line.bounced_at = line.bounced_at.or(Some(now)));
    }

    /// Finds out whether it is known who has sessions.
    fn learn(&mut self, turn: &Turn<'_>) {
        let claims = &turn.router.claims;
        let Knowledge { is_whole, begun, whole_since, unknown } = &mut self.knowledge;
        let age = turn.now.saturating_duration_since(*begun.get_or_insert(turn.now));
        let is_starting = age < PATIENCE_UNKNOWN;
        if !is_starting && *is_whole && !claims.is_incomplete() {
            return;
        }
        // Whoever joins from here on says so once more.
        claims.set_incomplete(false);
        let (members, reached) = (claims.members(), turn.post.reached());
        let is_unknown = |broker: &BrokerId| members.get(broker) != Some(&true);
        unknown.retain(|broker, _| is_unknown(broker) && reached.contains(broker));
        for broker in reached.iter().filter(|broker| is_unknown(broker)) {
            unknown.entry(*broker).or_insert(turn.now);
        }
        let waits_for = |since: &Instant| turn.now.saturating_duration_since(*since) < PATIENCE_UNKNOWN;
        let patience = if members.is_empty() { PATIENCE_ALONE } else { PATIENCE_UNKNOWN };
        let seems_whole = !unknown.values().any(waits_for) && (age >= patience || !reached.is_empty());
        let since = *whole_since.insert(whole_since.filter(|_| seems_whole).unwrap_or(turn.now));
        *is_whole = seems_whole && (!is_starting || turn.now.saturating_duration_since(since) >= KNOWN_LEAST);
        if !*is_whole || is_starting || members.values().any(|is_known| !is_known) {
            claims.set_incomplete(true);
        }
    }

    /// Wills with which other brokers have dealt are void here. Those that were read from the disk wait until all members are known to have said which, but not for ever.
    fn settle_wills(&mut self, turn: &mut Turn<'_>) {
        let (router, now) = (turn.router, turn.now);
        let is_known = router.orphans.is_unsure() && {
            let (members, since) = (router.claims.members(), *self.in_doubt_since.get_or_insert(now));
            let are_known = !members.is_empty() && members.values().all(|is_known| *is_known);
            are_known || turn.since(since) >= router.orphans.grace()
        };
        for (of, client_id, stamp) in router.claims.take_settled() {
            if of == turn.own {
                router.settle_will(turn.batch, &client_id, stamp);
            }
        }
        if is_known {
            router.orphans.set_unsure(false);
        }
    }

    /// Serves those who waited for that.
    fn serve_early(&mut self, turn: &mut Turn<'_>) {
        let is_late = |request: &Request| turn.now.saturating_duration_since(request.since) >= PATIENCE_UNKNOWN;
        if self.early.is_empty() || !(self.knowledge.is_whole || self.early.iter().any(is_late)) {
            return;
        }
        // Those that are not late wait once more.
        std::mem::take(&mut self.early).into_iter().for_each(|request| self.serve(turn, request));
    }

    /// Sessions that have taken the place of others, and are safe, are this broker's; the others' brokers are told when they are back.
    fn drive_replicas(&mut self, turn: &mut Turn<'_>) {
        for Promoted { client_id, stamp, of, waiting, .. } in self.replicas.drive(turn) {
            if let Some(log) = turn.router.log_rate.permit("session promoted", turn.now) {
                tracing::warn!(client = ?client_id, broker = %of, left_out = log, "a session goes on from its replica: its broker cannot be reached");
            }
            self.is_here(turn, &client_id, stamp, Line::new(of, rand::random(), turn.now));
            waiting.into_iter().for_each(|waiting| waiting.say(Verdict::Proceed));
        }
    }

    /// Forgets what need not be known any more.
    fn sweep(&mut self, turn: &Turn<'_>) {
        if self.swept_at.is_some_and(|at| turn.now.saturating_duration_since(at) < LOOK_INTERVAL_IDLE) {
            return;
        }
        self.swept_at = Some(turn.now);
        self.drive_ghosts(turn);
        let handover = &turn.router.handover;
        handover.newest.retain(|_, waiting| waiting.strong_count() > 0);
        handover.passed.retain(|_, (_, at)| turn.now.saturating_duration_since(*at) < PASSED);
    }

    /// A client wants its session.
    fn serve(&mut self, turn: &mut Turn<'_>, request: Request) {
        // It has gone, or has come once more.
        if Arc::strong_count(&request.waiting) == 1 || request.waiting.is_answered() {
            return;
        }
        let is_early = || {
            let here = turn.router.session(&request.client_id);
            let is_here = here.is_some_and(|subscriber| has_been_here(&subscriber));
            !is_here && turn.now.saturating_duration_since(request.since) < PATIENCE_UNKNOWN
        };
        if !self.knowledge.is_whole && !request.clean_start && is_early() {
            if self.early.len() < HANDOVERS_WAITING_MAX {
                return self.early.push(request);
            }
            return self.refuse(turn, &request.waiting);
        }
        if self.leaving.contains_key(&request.client_id) {
            return self.came_back(turn, request);
        }
        if let Some(coming) = self.coming.get_mut(&request.client_id) {
            if !request.clean_start || coming.is_installed() {
                return coming.waiting.push(request.waiting);
            }
            // The new session's claim ends what the old broker has.
            self.stop_coming(turn, &request.client_id, Verdict::Refused);
            return request.waiting.say(Verdict::Proceed);
        }
        if self.coming.len() >= HANDOVERS_MAX {
            if self.queue.len() < HANDOVERS_WAITING_MAX {
                return self.queue.push_back(request);
            }
            return self.refuse(turn, &request.waiting);
        }
        let (router, client_id) = (turn.router, Arc::clone(&request.client_id));
        let newest = router.newest_claim(&client_id, turn.now).filter(|_| !request.clean_start);
        if let Some(newest) = newest {
            turn.yield_session(&client_id, newest, false);
        }
        let is_here = router.registry.contains_key(&client_id);
        let peer = newest.map(|(_, peer)| peer).or_else(|| router.handover.went_to(&client_id));
        match peer.filter(|_| !request.clean_start && !is_here) {
            Some(_) if router.refuses_clients() => self.refuse(turn, &request.waiting),
            Some(peer) => self.begin_coming(turn, request, peer),
            None => request.waiting.say(Verdict::Proceed),
        }
    }

    fn serve_queue(&mut self, turn: &mut Turn<'_>) {
        while let Some(first) = self.queue.front() {
            let is_late = turn.now.saturating_duration_since(first.since) >= PATIENCE;
            if !is_late && self.coming.len() >= HANDOVERS_MAX {
                return;
            }
            let Some(request) = self.queue.pop_front() else { return };
            if is_late { self.refuse(turn, &request.waiting) } else { self.serve(turn, request) }
        }
    }

    fn refuse(&self, turn: &Turn<'_>, waiting: &Waiting) {
        turn.router.metrics.sessions_not_fetched.add(1);
        waiting.say(Verdict::Refused);
    }

    /// Others have claimed sessions.
    fn follow_claims(&mut self, turn: &mut Turn<'_>) {
        let mut heard = turn.router.claims.take_heard();
        if self.doubted_at.is_none_or(|at| turn.now.saturating_duration_since(at) >= LOOK_INTERVAL_IDLE) {
            self.doubted_at = Some(turn.now);
            heard.append(&mut self.doubted);
        }
        for (client_id, theirs) in heard {
            if theirs.1 == turn.own {
                self.replicas.follow_claim(turn, &client_id, theirs);
            } else if turn.router.is_believed(theirs, turn.now) {
                self.follow_claim(turn, &client_id, theirs);
            } else if self.doubted.len() < DOUBTED_MAX {
                // Mesh time may be further than we have heard yet.
                self.doubted.push((client_id, theirs));
            }
        }
    }

    fn follow_claim(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, theirs: Claimed) {
        self.replicas.follow_claim(turn, client_id, theirs);
        if let Some(leaving) = self.leaving.get(client_id).filter(|leaving| leaving.line.peer == theirs.1) {
            // Who tells the claim of the move has all of it; who tells a later one may have.
            match leaving.stamp().cmp(&theirs.0) {
                std::cmp::Ordering::Equal => return self.hand_over(turn, client_id),
                std::cmp::Ordering::Less if leaving.is_given() => return self.ask_status(turn, client_id),
                _ => {}
            }
        }
        if self.coming.get(client_id).is_some_and(|coming| (coming.stamp(), turn.own) < theirs && !coming.is_installed())
            && !self.claim_later(turn, client_id, theirs.0)
        {
            self.stop_coming(turn, client_id, Verdict::Refused);
        }
        let is_given = self.leaving.get(client_id).is_some_and(Leaving::is_given);
        if turn.yield_session(client_id, theirs, is_given) {
            self.forget_leaving(turn, client_id);
        }
    }
}

/// Whether the session's client was served here in this life of the broker: then nobody else is to be asked.
fn has_been_here(subscriber: &Subscriber) -> bool {
    subscriber.lock().epoch != RESTORED_EPOCH
}

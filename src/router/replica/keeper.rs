//! The side of the broker that has the replicas. See the [module's page](super).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::Entry as Slot;

use super::wills::KeptWills;
use super::word::{Item, Letter};
use super::{Head, Promoted, REPEAT, decode_copy, decode_entry, decode_head};
use crate::auth::Access;
use crate::codec::QoS;
use crate::frame::{FrameError, Reader};
use crate::ids::{BrokerId, MessageId, OriginLane};
use crate::limits::{HANDOVER_BYTES_MAX, REPLICA_WINDOW_BYTES, SESSIONS_MAX};
use crate::pressure::Level;
use crate::replication::{Covers, Replication};
use crate::router::Router;
use crate::router::claims::Claimed;
use crate::router::deadlines::Due;
use crate::router::handover::{LOOK_INTERVAL, LOOK_INTERVAL_SLOW, Turn, Waiting, read_covers};
use crate::session::{Emerging, MovedHead, Order, RESTORED_EPOCH, SessionExpiry, Shadow, Subscriber, SubscriptionOptions};
use crate::topic;

/// Covers in one letter.
const CUT_COVERS: usize = 1_000;
/// A broker that can be reached says something in this time, or has no replicas here any more.
const SILENCE_OWNER: Duration = Duration::from_secs(10);
/// A message without which others' clients wait is waited for so long while their broker goes on asking: then its replica is over, and nobody waits for it. Less than [`SILENCE_MAX`](super::SILENCE_MAX), after which
/// all of them would be.
const MISSING_MAX: Duration = Duration::from_secs(1);
/// What a letter that came before its turn takes beside its content, bytes.
const EARLY_OVERHEAD_BYTES: usize = 64;
/// Replicas that are looked through at a time.
const SWEEP_MAX: usize = 4_096;
/// A broker to which there is no way for so long cannot be reached.
const LOST_LEAST: Duration = Duration::from_secs(1);

/// What has become of a replica that is to take its session's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::router) enum Promotion {
    /// There is none, or it is not whole.
    NotHere,
    /// Not yet: its broker may be reached in a moment.
    Wait,
    /// That broker has it, and can be reached.
    Reached(BrokerId),
    /// The client has come to its broker later than to the one that asks: it was claimed then.
    Newer(u64),
    /// It is a session of this broker.
    Done,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    of: HashMap<BrokerId, Keeper>,
    clients: Clients,
    wills: KeptWills,
    /// They are not known to be safe.
    promoted: Vec<Promoted>,
}

/// Whose session a client's is, of those that have told of it: the newest claim counts. With its number there and its claim.
type Clients = HashMap<Arc<str>, (BrokerId, u64, u64), ahash::RandomState>;

fn note(router: &Router, now: Instant, clients: &mut Clients, client_id: &Arc<str>, (of, session, claim): (BrokerId, u64, u64)) {
    // One from far ahead would hide those of others.
    let claim = if router.is_believed((claim, of), now) { claim } else { 0 };
    let known = clients.entry(Arc::clone(client_id)).or_insert((of, session, claim));
    if known.0 == of || (known.2, known.0) < (claim, of) {
        *known = (of, session, claim);
    }
}

/// Of one other broker's sessions.
#[derive(Debug)]
struct Keeper {
    stream: u64,
    known: u64,
    held: u64,
    /// Letters that came before their turn, by their numbers.
    early: BTreeMap<u64, Vec<u8>>,
    early_bytes: usize,
    must_answer: bool,
    heard_at: Instant,
    /// What is to go before the bytes of the next item.
    parts: Vec<u8>,
    /// Of that session's head or copy, what has come so far.
    copy_parts: (u64, Vec<u8>),
    kept: BTreeMap<u64, Kept>,
    round: Option<Round>,
    /// Messages that have not arrived, without which letters are not held, in the order of these.
    waiting: VecDeque<Missing>,
    dealt: Dealt,
    swept_at: Instant,
    /// From which session on.
    swept: u64,
    /// What had arrived when it was begun with the first.
    arrived: Covers,
    /// It cannot be reached, so nothing is said of its sessions.
    is_lost: bool,
}

/// A message without which the letter of that number is not held.
#[derive(Debug)]
struct Missing {
    letter: u64,
    subscriber: Arc<Subscriber>,
    order: Order,
    since: Instant,
}

/// What the other broker has given to its sessions.
#[derive(Debug, Default)]
struct Dealt {
    covers: HashMap<OriginLane, u64, ahash::RandomState>,
    /// Of its own lanes, in which there are holes: from, to.
    ranges: HashMap<OriginLane, BTreeMap<u64, u64>, ahash::RandomState>,
}

impl Dealt {
    fn has(&self, id: &MessageId) -> bool {
        let in_range =
            |ranges: &BTreeMap<u64, u64>| ranges.range(..=id.sequence).next_back().is_some_and(|(_, last)| id.sequence <= *last);
        self.covers.get(&id.origin_lane).is_some_and(|cover| id.sequence <= *cover)
            || self.ranges.get(&id.origin_lane).is_some_and(in_range)
    }
}

/// One replica.
#[derive(Debug)]
struct Kept {
    subscriber: Arc<Subscriber>,
    head: MovedHead,
    claim: u64,
    /// Since when its client is not connected, as far as is known here.
    left_at: Option<Instant>,
    is_subscribed: bool,
    round: u64,
    /// Of what came up to these the copy says all.
    base: Option<Arc<Covers>>,
    is_guarded: bool,
}

#[derive(Debug)]
struct Round {
    number: u64,
    asked_at: Instant,
    stage: RoundStage,
}

#[derive(Debug)]
enum RoundStage {
    Cut(Vec<Covers>),
    CatchingUp(Arc<Covers>),
    Whole,
}

impl Kept {
    /// Whether the session has expired by now, whose broker was `lost` then: with it the client's connection.
    fn is_over(&self, lost: Instant, now: Instant) -> bool {
        let left_at = self.left_at.unwrap_or(lost);
        matches!(self.head.expiry, SessionExpiry::After(rest) if now.saturating_duration_since(left_at) >= rest)
    }

    /// What it wants by itself: of share groups a replica is no member, and at QoS 0 it is given nothing.
    fn filters(&self) -> impl Iterator<Item = &(Box<str>, SubscriptionOptions)> {
        self.head.subscriptions.iter().filter(is_replicas)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Shadow) -> T) -> Option<T> {
        self.subscriber.lock().shadow().map(act)
    }

    /// Drops what it need not hold any more. Whether it could not keep up.
    fn trim(&self, dealt: &Dealt) -> bool {
        let in_copy = |id: &MessageId| {
            let cover = self.base.as_ref().and_then(|covers| covers.get(&id.origin_lane));
            cover.is_some_and(|cover| id.sequence <= cover.id)
        };
        let trim = |shadow: &mut Shadow| {
            if shadow.has_unlisted() {
                shadow.trim(|id| in_copy(id) || dealt.has(id));
            }
            shadow.is_broken()
        };
        self.with(trim) != Some(false)
    }

    /// It is no more.
    fn end(self, turn: &mut Turn<'_>) {
        let mut state = self.subscriber.lock();
        state.moving = None;
        turn.router.end(&self.subscriber, state, turn.batch.writes());
    }
}

impl Keepers {
    pub(super) fn interval(&self) -> Option<Duration> {
        let waits_for_us =
            |keeper: &Keeper| keeper.round.as_ref().is_some_and(|round| matches!(round.stage, RoundStage::CatchingUp(_)));
        if !self.promoted.is_empty() || self.of.values().any(waits_for_us) {
            return Some(LOOK_INTERVAL);
        }
        (!self.of.is_empty() || !self.wills.is_empty()).then_some(LOOK_INTERVAL_SLOW)
    }

    /// A letter of items has come.
    pub(super) fn items(&mut self, turn: &mut Turn<'_>, (from, stream): (BrokerId, u64), number: u64, items: &[u8]) {
        let known = self.of.get(&from).map(|keeper| keeper.stream);
        if known.is_some_and(|known| known > stream) {
            return;
        }
        if known != Some(stream) {
            // Others' sessions are not what memory that is short is for.
            if number != 1 || turn.router.pressure.level() != Level::Free {
                return turn.post.send(from, &Letter::Unknown.encode(stream));
            }
            self.forget(turn, from);
            self.of.insert(from, Keeper::new(stream, turn.now));
        }
        let Some(keeper) = self.of.get_mut(&from) else { return };
        keeper.heard(turn.now);
        if number != keeper.known + 1 {
            return keeper.keep_early(number, items);
        }
        let mut read = keeper.take(turn, from, items, (&mut self.clients, &mut self.wills));
        while read.is_ok()
            && let Some(items) = keeper.take_early()
        {
            read = keeper.take(turn, from, &items, (&mut self.clients, &mut self.wills));
        }
        if let Err(error) = read {
            tracing::error!(broker = %from, %error, "what another broker says of its sessions is not understood");
            self.forget(turn, from);
            turn.post.send(from, &Letter::Unknown.encode(stream));
        }
    }

    /// A stream is over.
    pub(super) fn over(&mut self, turn: &mut Turn<'_>, (from, stream): (BrokerId, u64)) {
        if self.of.get(&from).is_some_and(|keeper| keeper.stream == stream) {
            self.forget(turn, from);
        }
        self.wills.over((from, stream));
    }

    fn forget(&mut self, turn: &mut Turn<'_>, of: BrokerId) {
        let Some(keeper) = self.of.remove(&of) else { return };
        self.wills.ended((of, keeper.stream), turn.now);
        self.clients.retain(|_, (broker, ..)| *broker != of);
        keeper.kept.into_values().for_each(|kept| kept.end(turn));
    }

    /// Another broker may have a session of the same client, with a replica here as well: that stays.
    fn forget_one(&mut self, turn: &mut Turn<'_>, (of, session): (BrokerId, u64)) {
        if let Some(keeper) = self.of.get_mut(&of) {
            keeper.end(turn, (of, session), &mut self.clients);
        }
    }

    pub(super) fn follow_claim(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, theirs: Claimed) {
        self.wills.follow_claim(turn, client_id, theirs);
        let Some((of, session, _)) = self.clients.get(client_id).copied() else { return };
        let kept = self.of.get(&of).and_then(|keeper| keeper.kept.get(&session));
        if of != theirs.1 && kept.is_some_and(|kept| (kept.claim, of) < theirs) {
            self.forget_one(turn, (of, session));
        }
    }

    pub(super) fn drive(&mut self, turn: &mut Turn<'_>) -> Vec<Promoted> {
        let is_full = turn.router.pressure.level() == Level::Full;
        let mut over = Vec::new();
        for (broker, keeper) in &mut self.of {
            keeper.answer(turn, *broker);
            keeper.drive_round(turn, *broker);
            if turn.since(keeper.swept_at) >= REPEAT {
                keeper.swept_at = turn.now;
                if is_full || keeper.sweep(turn, *broker) {
                    over.push(*broker);
                }
            }
        }
        over.into_iter().for_each(|broker| self.forget(turn, broker));
        self.expire(turn);
        self.wills.drive(turn);
        turn.router.metrics.sessions_shadowed.set(self.clients.len() as i64);
        let safe = |promoted: &mut Promoted| turn.is_safe(promoted.number);
        self.promoted.extract_if(.., safe).collect()
    }

    /// Sessions whose brokers have been away for longer than they outlive their connections are over.
    fn expire(&mut self, turn: &mut Turn<'_>) {
        let mut over = Vec::new();
        for (broker, keeper) in &self.of {
            let Some(lost) = turn.post.lost_since(*broker).filter(|_| keeper.swept_at == turn.now) else { continue };
            let is_over = |kept: &Kept| kept.is_over(lost, turn.now);
            over.extend(keeper.kept.iter().filter(|(_, kept)| is_over(kept)).map(|(session, _)| (*broker, *session)));
        }
        over.into_iter().for_each(|replica| self.forget_one(turn, replica));
    }

    /// Makes a session of this broker of a replica whose broker cannot be reached, for a client that came with the claim `stamp`: that session's claim is older, unless `is_here`.
    pub(super) fn promote(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, stamp: u64, is_here: bool) -> Promotion {
        let Some((of, session, _)) = self.clients.get(client_id).copied() else { return Promotion::NotHere };
        let Some(keeper) = self.of.get_mut(&of) else { return Promotion::NotHere };
        let (router, now) = (turn.router, turn.now);
        let lost = match turn.post.lost_since(of) {
            None => return Promotion::Reached(of),
            Some(since) if turn.since(since) < LOST_LEAST => return Promotion::Wait,
            Some(since) => since,
        };
        // By its last word its replicas are elsewhere: what is here may be old.
        if router.claims.replica_of(of) != Some(turn.own) {
            return Promotion::NotHere;
        }
        let newest = router.newest_claim(client_id, now);
        if newest.is_some_and(|(_, by)| by != of) {
            return Promotion::NotHere;
        }
        let Some(kept) = keeper.kept.get(&session) else { return Promotion::NotHere };
        let told = Some(kept.claim).filter(|stamp| router.is_believed((*stamp, of), now)).unwrap_or_default();
        let claimed = newest.map_or(0, |(stamp, _)| stamp).max(told);
        if stamp <= claimed {
            return Promotion::Newer(claimed);
        }
        kept.trim(&keeper.dealt);
        if kept.is_over(lost, now) || !kept.is_guarded || kept.with(|shadow| shadow.is_whole()) != Some(true) {
            return Promotion::NotHere;
        }
        let stamp = if is_here { stamp } else { (stamp - 1).max(claimed + 1) };
        let subscriber = Arc::clone(&kept.subscriber);
        let (expiry, left_at) = (kept.head.expiry, kept.left_at.unwrap_or(lost));
        // In one moment: nothing is half delivered, nor half on the way to the disk.
        let emerge = |router: &Router, _: &Replication| {
            let Slot::Vacant(vacant) = router.registry.entry(Arc::clone(client_id)) else { return None };
            subscriber.lock().subscribe_as(&kept.head);
            let emerged = Emerging { expiry: kept.head.expiry, was_connected: kept.left_at.is_none(), left_at, claim: stamp };
            let number = subscriber.emerge(emerged, router.journal.as_ref())?;
            let others: Vec<_> = kept.head.subscriptions.iter().filter(|subscription| !is_replicas(subscription)).collect();
            let mut state = subscriber.lock();
            others.iter().for_each(|(text, _)| router.tell_filter(&mut state, text, true));
            drop(state);
            router.insert_filters(&subscriber, others.into_iter());
            vacant.insert(Arc::clone(&subscriber));
            Some(number)
        };
        let Some(number) = turn.quietly(emerge) else { return Promotion::NotHere };
        keeper.kept.remove(&session);
        self.clients.remove(client_id);
        if let Some(journal) = &router.journal {
            journal.kick();
        }
        router.metrics.sessions.change(1);
        router.metrics.sessions_promoted.add(1);
        router.subscriptions_changed(0);
        if let SessionExpiry::After(rest) = expiry {
            router.add_deadline((left_at + rest).max(now), Due::Expiry, &subscriber, RESTORED_EPOCH);
        }
        self.promoted.push(Promoted { client_id: Arc::clone(client_id), stamp, of, number, waiting: Vec::new() });
        Promotion::Done
    }

    pub(super) fn await_promoted(&mut self, client_id: &str, mut waiting: Vec<Arc<Waiting>>) {
        if let Some(promoted) = self.promoted.iter_mut().find(|promoted| &*promoted.client_id == client_id) {
            promoted.waiting.append(&mut waiting);
        }
    }
}

/// Whether a replica of the session subscribes to this, too.
fn is_replicas((text, options): &&(Box<str>, SubscriptionOptions)) -> bool {
    options.qos != QoS::AtMostOnce && !topic::is_shared(text)
}

fn put_part(parts: &mut Vec<u8>, bytes: &[u8]) -> Result<(), FrameError> {
    if parts.len() + bytes.len() > HANDOVER_BYTES_MAX {
        return Err(FrameError::TooLong { bytes: parts.len() as u64, bytes_max: HANDOVER_BYTES_MAX });
    }
    parts.extend_from_slice(bytes);
    Ok(())
}

impl Keeper {
    fn new(stream: u64, now: Instant) -> Self {
        Self {
            stream,
            known: 0,
            held: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
            must_answer: false,
            heard_at: now,
            parts: Vec::new(),
            copy_parts: (0, Vec::new()),
            kept: BTreeMap::new(),
            swept: 0,
            arrived: Covers::new(),
            is_lost: false,
            round: None,
            waiting: VecDeque::new(),
            dealt: Dealt::default(),
            swept_at: now,
        }
    }

    /// It says something.
    fn heard(&mut self, now: Instant) {
        if now.saturating_duration_since(self.heard_at) >= MISSING_MAX {
            // There was no way between the two, so the messages could not come.
            self.waiting.iter_mut().for_each(|missing| missing.since = now);
        }
        (self.heard_at, self.must_answer) = (now, true);
    }

    /// A letter that is not the next: it need not be sent again, if there is room for it and it is none of those that are known.
    fn keep_early(&mut self, number: u64, items: &[u8]) {
        let bytes = self.early_bytes + early_bytes(items);
        if number > self.known && bytes <= REPLICA_WINDOW_BYTES && !self.early.contains_key(&number) {
            self.early.insert(number, items.to_vec());
            self.early_bytes = bytes;
        }
    }

    /// The next letter, if it has come.
    fn take_early(&mut self) -> Option<Vec<u8>> {
        let items = self.early.remove(&(self.known + 1))?;
        self.early_bytes -= early_bytes(&items);
        Some(items)
    }

    /// Takes in the next letter.
    fn take(
        &mut self,
        turn: &mut Turn<'_>,
        from: BrokerId,
        items: &[u8],
        kept: (&mut Clients, &mut KeptWills),
    ) -> Result<(), FrameError> {
        self.read(turn, from, items, kept)?;
        self.known += 1;
        Ok(())
    }

    fn read(
        &mut self,
        turn: &mut Turn<'_>,
        from: BrokerId,
        items: &[u8],
        (clients, wills): (&mut Clients, &mut KeptWills),
    ) -> Result<(), FrameError> {
        let (mut reader, mut lane, letter) = (Reader::new(items), None, self.known + 1);
        let mut lost = BTreeSet::new();
        while !reader.is_empty() {
            let item = Item::read(&mut reader)?;
            // It has gone, and the broker has not heard of that, or has forgotten it: it must not go on as if there were one.
            lost.extend(item.session().filter(|session| !self.kept.contains_key(session)));
            match item {
                Item::Begin => {}
                Item::Part { bytes } => put_part(&mut self.parts, bytes)?,
                Item::CopyPart { session, bytes } => put_part(self.copy_parts(session), bytes)?,
                Item::Head { session, bytes } => {
                    put_part(self.copy_parts(session), bytes)?;
                    let head = std::mem::take(self.copy_parts(session));
                    let head = decode_head(&head).ok_or(FrameError::Text("session"))?;
                    self.end(turn, (from, session), clients);
                    if self.kept.len() as i64 >= SESSIONS_MAX {
                        return Err(FrameError::Value { field: "number of sessions", value: self.kept.len() as u64 });
                    }
                    note(turn.router, turn.now, clients, &head.head.client_id, (from, session, head.claim));
                    self.kept.insert(session, keep(turn, head));
                }
                Item::Round { round } => self.begin_round(turn, from, round),
                Item::Copy { session, bytes } => {
                    put_part(self.copy_parts(session), bytes)?;
                    let copy = std::mem::take(self.copy_parts(session));
                    let copy = decode_copy(&copy, turn.now).ok_or(FrameError::Text("copy of a session"))?;
                    if let Some(kept) = self.kept.get(&session) {
                        kept.with(|shadow| shadow.copy(copy));
                    }
                }
                Item::Copied { round, covers } => {
                    let covers = Arc::new(read_covers(&mut Reader::new(&self.whole(covers)))?);
                    for kept in self.kept.values_mut().filter(|kept| kept.round == round) {
                        kept.base = Some(Arc::clone(&covers));
                    }
                    if let Some(known) = self.round.as_mut().filter(|known| known.number == round) {
                        known.stage = RoundStage::CatchingUp(covers);
                    }
                }
                Item::Guarded { session } => {
                    if let Some(kept) = self.kept.get_mut(&session) {
                        kept.is_guarded = true;
                        kept.with(|shadow| shadow.guard());
                    }
                }
                Item::Lane(stream) => lane = Some(stream),
                Item::Placed { session, order, sequence, qos, stage } => {
                    let origin_lane = lane.ok_or(FrameError::Truncated("lane"))?;
                    let id = MessageId { origin_lane, sequence };
                    if let Some(kept) = self.kept.get(&session) {
                        kept.with(|shadow| shadow.place(order, Some(id), qos, stage, None));
                    }
                    self.wait_for(session, order, letter, turn.now);
                }
                Item::PlacedWhole { session, order, bytes } => {
                    let entry = decode_entry(&self.whole(bytes), turn.now).ok_or(FrameError::Text("message"))?;
                    if let Some(kept) = self.kept.get(&session) {
                        kept.with(|shadow| shadow.place(order, None, entry.qos, entry.stage, Some(entry)));
                    }
                }
                Item::Staged { session, order, stage } => {
                    if let Some(kept) = self.kept.get(&session) {
                        kept.with(|shadow| shadow.stage(order, stage));
                    }
                    self.wait_for(session, order, letter, turn.now);
                }
                Item::Removed { session, order } => {
                    if let Some(kept) = self.kept.get(&session) {
                        kept.with(|shadow| shadow.remove(order));
                    }
                }
                Item::Received { session, id } => {
                    if let Some(kept) = self.kept.get(&session) {
                        kept.with(|shadow| shadow.receive(id));
                    }
                }
                Item::Completed { session, id } => {
                    if let Some(kept) = self.kept.get(&session) {
                        kept.with(|shadow| shadow.complete(id));
                    }
                }
                Item::Session { session, claim, expiry, left } => {
                    if let Some(kept) = self.kept.get_mut(&session) {
                        (kept.claim, kept.head.expiry) = (claim, expiry);
                        kept.left_at = left.map(|left| ago(turn.now, left));
                        note(turn.router, turn.now, clients, &kept.head.client_id, (from, session, claim));
                    }
                }
                Item::Ended { session } => self.end(turn, (from, session), clients),
                Item::Life { incarnation } => wills.begin((from, self.stream), incarnation),
                Item::Will { session, claim, left, is_durable, bytes } => {
                    let (bytes, left_at) = (self.whole(bytes), left.map(|left| ago(turn.now, left)));
                    wills.keep(turn, (from, self.stream), (session, claim), (left_at, is_durable), &bytes)?;
                }
                Item::WillGone { session } => wills.gone((from, self.stream), session),
                Item::Dealt { first, last } => {
                    let stream = lane.ok_or(FrameError::Truncated("lane"))?;
                    if first > 0 {
                        self.dealt.ranges.entry(stream).or_default().insert(first, last);
                    } else {
                        let cover = self.dealt.covers.entry(stream).or_default();
                        *cover = last.max(*cover);
                    }
                }
            }
        }
        lost.into_iter().for_each(|session| turn.post.send(from, &Letter::Lost { session }.encode(self.stream)));
        Ok(())
    }

    fn whole(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut whole = std::mem::take(&mut self.parts);
        whole.extend_from_slice(bytes);
        whole
    }

    /// What has come so far of that session's; of another's, which was left off, nothing is needed.
    fn copy_parts(&mut self, session: u64) -> &mut Vec<u8> {
        if self.copy_parts.0 != session {
            self.copy_parts = (session, Vec::new());
        }
        &mut self.copy_parts.1
    }

    fn end(&mut self, turn: &mut Turn<'_>, (of, session): (BrokerId, u64), clients: &mut Clients) {
        if self.copy_parts.0 == session {
            self.copy_parts.1 = Vec::new();
        }
        if let Some(kept) = self.kept.remove(&session) {
            if clients.get(&kept.head.client_id).is_some_and(|known| (known.0, known.1) == (of, session)) {
                clients.remove(&kept.head.client_id);
            }
            kept.end(turn);
        }
    }

    /// The client is not sent a QoS 2 message before it has arrived here, too. How far it has come is the replica's to say: that it is sent may have been told before its placing was.
    fn wait_for(&mut self, session: u64, order: Order, letter: u64, now: Instant) {
        let Some(kept) = self.kept.get(&session).filter(|kept| kept.is_guarded) else { return };
        if kept.with(|shadow| shadow.has(order)) == Some(false) {
            self.waiting.push_back(Missing { letter, subscriber: Arc::clone(&kept.subscriber), order, since: now });
        }
    }

    fn answer(&mut self, turn: &Turn<'_>, to: BrokerId) {
        while let Some(Missing { subscriber, order, since, .. }) = self.waiting.front() {
            // Not by our own clock: whose broker has died in the meantime was not sent it, and his session goes on from here.
            let is_late = self.heard_at.saturating_duration_since(*since) >= MISSING_MAX;
            let is_over = subscriber.lock().shadow().is_none_or(|shadow| {
                let has = shadow.has(*order);
                if !has && is_late {
                    // Its broker is told as of any that could not be kept up.
                    shadow.give_up();
                }
                has || is_late
            });
            if !is_over {
                break;
            }
            self.waiting.pop_front();
        }
        let held = self.waiting.front().map_or(self.known, |missing| missing.letter - 1);
        if std::mem::take(&mut self.must_answer) || held > self.held {
            self.held = held;
            turn.post.send(to, &Letter::Answer { known: self.known, held }.encode(self.stream));
        }
    }

    /// All sessions of the round are told of: from now on this broker takes in itself what is published for them.
    fn begin_round(&mut self, turn: &mut Turn<'_>, to: BrokerId, number: u64) {
        let new: Vec<&mut Kept> = self.kept.values_mut().filter(|kept| !kept.is_subscribed).collect();
        let subscribe = |router: &Router, mesh: &Replication| {
            for kept in new {
                (kept.is_subscribed, kept.round) = (true, number);
                kept.filters().for_each(|(text, _)| router.tell_filter_of(false, text, true));
                kept.subscriber.lock().subscriptions = kept.filters().cloned().collect();
                router.insert_filters(&kept.subscriber, kept.filters());
            }
            mesh.delivered()
        };
        let covers: Vec<_> = turn.quietly(subscribe).into_iter().collect();
        let mut cut: Vec<Covers> = covers.chunks(CUT_COVERS).map(|part| part.iter().copied().collect()).collect();
        if cut.is_empty() {
            cut.push(Covers::new());
        }
        let round = Round { number, asked_at: turn.now, stage: RoundStage::Cut(cut) };
        round.say(turn, (to, self.stream));
        self.round = Some(round);
    }

    fn drive_round(&mut self, turn: &Turn<'_>, to: BrokerId) {
        let Some(round) = &mut self.round else { return };
        if let RoundStage::CatchingUp(covers) = &round.stage
            && turn.mesh.has_delivered(covers)
        {
            round.stage = RoundStage::Whole;
            round.say(turn, (to, self.stream));
            round.asked_at = turn.now;
        }
        if turn.since(round.asked_at) < REPEAT {
            return;
        }
        round.asked_at = turn.now;
        let number = round.number;
        if matches!(round.stage, RoundStage::Whole) && !self.kept.values().any(|kept| kept.round == number && !kept.is_guarded) {
            self.round = None;
            return;
        }
        round.say(turn, (to, self.stream));
    }

    /// Whether the replicas are over.
    fn sweep(&mut self, turn: &Turn<'_>, of: BrokerId) -> bool {
        if self.swept == 0 && !self.dealt.ranges.is_empty() {
            self.arrived = turn.mesh.delivered();
        }
        let is_lost = turn.post.lost_since(of).is_some();
        if std::mem::replace(&mut self.is_lost, is_lost) != is_lost {
            for kept in self.kept.values() {
                kept.with(|shadow| shadow.set_alone(is_lost));
            }
        }
        // Of very many some at a time.
        let next = self.kept.range(self.swept..).take(SWEEP_MAX);
        let mut last = None;
        for (session, kept) in next {
            last = Some(*session);
            if kept.trim(&self.dealt) {
                turn.post.send(of, &Letter::Lost { session: *session }.encode(self.stream));
            }
        }
        self.swept = last.filter(|_| self.kept.len() > SWEEP_MAX).map_or(0, |last| last.saturating_add(1));
        // What had arrived by then was looked at in all.
        if self.swept == 0 && !self.dealt.ranges.is_empty() {
            let arrived = std::mem::take(&mut self.arrived);
            self.dealt.ranges.retain(|stream, ranges| {
                let cover = arrived.get(stream).map_or(0, |cover| cover.id);
                ranges.retain(|_, last| *last > cover);
                !ranges.is_empty()
            });
        }
        let is_member = turn.router.claims.members().contains_key(&of);
        (is_lost && !is_member) || (!is_lost && turn.since(self.heard_at) >= SILENCE_OWNER)
    }
}

impl Round {
    fn say(&self, turn: &Turn<'_>, (to, stream): (BrokerId, u64)) {
        let round = self.number;
        match &self.stage {
            RoundStage::Cut(cut) => {
                let parts = cut.len() as u64;
                for (part, covers) in (0..).zip(cut) {
                    turn.post.send(to, &Letter::Cut { round, part, parts, covers: covers.clone() }.encode(stream));
                }
            }
            RoundStage::CatchingUp(_) => {}
            RoundStage::Whole => turn.post.send(to, &Letter::Whole { round }.encode(stream)),
        }
    }
}

/// What it takes in all, or less.
fn early_bytes(items: &[u8]) -> usize {
    items.len() + EARLY_OVERHEAD_BYTES
}

/// The moment so long before `now`, or the first that this machine knows.
fn ago(now: Instant, time: Duration) -> Instant {
    now.checked_sub(time).unwrap_or(now)
}

/// The replica of a session, not subscribed yet. It may be given whatever the session's broker is given: what its client may see is that one's to say.
fn keep(turn: &Turn<'_>, Head { claim, left, head }: Head) -> Kept {
    let (router, left_at) = (turn.router, left.map(|left| ago(turn.now, left)));
    let subscriber =
        Arc::new(Subscriber::new(router.next_subscriber_id(), Arc::clone(&head.client_id), router.limits.outbound, None));
    let access = (!head.owner.is_empty()).then(|| {
        let owner = Access::of_owner(&head.owner);
        Arc::new(Access::new(owner.identity().clone(), owner.place().clone(), None))
    });
    subscriber.shade(access, router.limits.outbound, &router.handover.news);
    Kept { subscriber, head, claim, left_at, is_subscribed: false, round: 0, base: None, is_guarded: false }
}

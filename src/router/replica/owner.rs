//! The side of the broker that has the sessions. See the [module's page](super).

mod rounds;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::rounds::{Piece, Round};
use super::outgoing::{Items, Outgoing};
use super::wills::ToldWills;
use super::word::{Item, Letter};
use super::{REPEAT, SILENCE_MAX, encode_entry};
use crate::ids::{BrokerId, MessageId, OriginLane};
use crate::limits::REPLICA_CUT_PARTS_MAX;
use crate::pressure::Level;
use crate::replication::Covers;
use crate::router::handover::{LOOK_INTERVAL, LOOK_INTERVAL_SLOW, Turn};
use crate::session::{Change, Entry, Head, Journal, LINGER, Order, Reach, Subscriber, SubscriberId};

/// A session whose subscriptions have changed is replicated anew when they are left alone for so long.
const SETTLED: Duration = Duration::from_millis(50);
/// One that cannot be replicated at present is looked at again after this time; if it has failed, twice as long after each time that follows soon.
const LATER: Duration = Duration::from_secs(5);
const LATER_MOST: Duration = Duration::from_secs(300);
/// The other broker is asked whether it is there.
const PING: Duration = Duration::from_secs(1);
/// Who does not answer, while there is nothing that anybody waits for, is given up after this time.
const SILENCE_IDLE: Duration = Duration::from_secs(6);
/// A round that comes no further for so long is given up, and its sessions are copied later.
const ROUND_MAX: Duration = Duration::from_secs(15);
/// After so many of them, one after the other, the other broker is not the right one.
const ROUNDS_FAILED_MAX: u32 = 3;
/// What an entry takes in a copy beside its message, bytes, or less.
const ENTRY_BYTES: usize = 128;
/// There is no way to the other broker for so long: longer than the tree takes to find another.
const LOST_MAX: Duration = Duration::from_millis(300);
/// Who cannot be reached, or does not answer, is not waited for, and is given up after this time.
const PAUSED_MAX: Duration = Duration::from_secs(5);
/// It is waited for again when it has all that was told longer ago.
const CAUGHT_UP: Duration = Duration::from_secs(1);
/// After a failure nothing is tried for so long, and twice as long after each that follows soon.
const RETRY_LEAST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(30);
/// Who has had replicas of all sessions for so long has not failed soon.
const PROVEN: Duration = Duration::from_secs(60);
/// Where copying has taken longer than the first, and came to no end, it is tried again after this many times as long, and after the last at most.
const COPYING: Duration = Duration::from_secs(10);
const COPYING_TIMES: u32 = 4;
const RETRY_COPYING_MOST: Duration = Duration::from_secs(600);
/// For so long others are preferred to who has failed.
const FAILED: Duration = Duration::from_secs(300);

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Owner {
    peer: Option<Peer>,
    last_stream: u64,
    /// Counts the rounds of all streams: what the journal says of an earlier one is not of this.
    rounds: u64,
    /// Who failed of late, and when.
    failed: HashMap<BrokerId, Instant>,
    failures: u32,
    retry_at: Option<Instant>,
    /// When it was counted last what has no replica for want of a broker.
    counted_at: Option<Instant>,
}

/// The broker that has the replicas.
#[derive(Debug)]
struct Peer {
    broker: BrokerId,
    stream: u64,
    since: Instant,
    out: Outgoing,
    sessions: HashMap<SubscriberId, Followed, ahash::RandomState>,
    /// Those that are not guarded: of many sessions few are, and only these are looked at.
    unguarded: HashSet<SubscriberId, ahash::RandomState>,
    /// How many are guarded of late, and with which letter the other broker is told: before it knows that they have no replica yet.
    untold: VecDeque<(u64, usize)>,
    guarded: usize,
    round: Option<Round>,
    /// How many have failed, one after the other.
    rounds_failed: u32,
    /// What is to be put of the round, in its order, as far as there is room.
    copies: VecDeque<Piece>,
    wills: ToldWills,
    /// That is to be said when all of them are put: what is not dealt with in a session yet is told behind its copy.
    dealt: Items,
    /// Of what is not confirmed, in their order.
    marks: VecDeque<Mark>,
    held: u64,
    /// The change of the journal up to which all is, and up to which it is known.
    confirmed: u64,
    noted: u64,
    /// Whence the message is that is placed next.
    named: Option<(SubscriberId, Order, MessageId)>,
    /// Something was answered that is news, or nothing is waited for.
    progress_at: Instant,
    answered_at: Instant,
    /// Since when there is nothing without a replica.
    whole_at: Option<Instant>,
    /// Copying has come to an end once, whatever has to be copied anew since.
    is_copied: bool,
    /// Nothing was without a replica for [`PROVEN`], once.
    is_proven: bool,
    /// The register does not name it yet: it does when it holds all up to this change, and knows this stream.
    named_from: Option<u64>,
    /// Something was told in the last turn.
    is_talking: bool,
    asked_at: Instant,
    looked_at: Instant,
    /// Nobody waits for it since then, for it falls behind; it goes on being told everything.
    paused_at: Option<Instant>,
}

/// With this letter all is told up to that change of the journal.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    letter: u64,
    number: u64,
    since: Instant,
}

#[derive(Debug)]
struct Followed {
    subscriber: Arc<Subscriber>,
    stage: Stage,
    /// It is to be left alone until then.
    not_before: Instant,
    /// How often it has failed, and until when it was left alone for the last time.
    failed: (u32, Instant),
    /// Its copy is not put yet: what is told of it waits for that.
    behind: Option<Box<Items>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has no replica.
    Waiting,
    /// It is part of the round.
    Begun,
    /// The other broker has been sent all that was in it, in that round, and is told what happens to it.
    Copied(u64),
    /// It has said that it has all that, and the client sees nothing that it does not know.
    Guarded,
}

impl Owner {
    pub(super) fn interval(&self) -> Option<Duration> {
        let peer = self.peer.as_ref()?;
        Some(match peer.round {
            Some(_) => LOOK_INTERVAL,
            None if peer.is_talking => LINGER,
            None => LOOK_INTERVAL_SLOW,
        })
    }

    pub(super) fn drive(&mut self, turn: &mut Turn<'_>) {
        // Without one no session outlives the broker, and only wills are told of.
        let journal = turn.router.journal().map(Arc::clone);
        let journal = journal.as_deref();
        if self.peer.is_none() && !self.begin(turn, journal) {
            return;
        }
        let Some(peer) = &mut self.peer else { return };
        let heard = journal.map(Journal::heard);
        if heard.as_ref().is_some_and(|heard| heard.has_overflowed) || turn.router.pressure.level() == Level::Full {
            return self.give_up(turn, "it does not keep up");
        }
        let was_idle = peer.is_idle();
        let (changes, number) = heard.map_or_else(Default::default, |heard| (heard.changes, heard.number));
        peer.is_talking = !changes.is_empty();
        changes.into_iter().for_each(|change| peer.tell(turn, change));
        peer.out.seal();
        peer.count_untold();
        if let Some(number) = number {
            peer.mark(number, turn.now);
        }
        // Nobody waits for this.
        peer.drive_round(turn, journal, &mut self.rounds);
        peer.wills.tell(turn, &mut peer.out);
        peer.put_copies(turn);
        peer.out.seal();
        if was_idle && !peer.is_idle() {
            peer.progress_at = turn.now;
        }
        peer.send(turn);
        if let Some(journal) = journal {
            peer.confirm(journal);
        }
        let (broker, is_lost) = (peer.broker, turn.post.lost_since(peer.broker).is_some_and(|since| turn.since(since) >= LOST_MAX));
        let waiting_bytes = peer.waiting_bytes();
        if peer.round.as_ref().is_some_and(|round| turn.since(round.progress_at) >= ROUND_MAX) {
            peer.rounds_failed += 1;
            peer.fail_round(turn);
        } else if waiting_bytes > 0 && peer.out.is_full(waiting_bytes) {
            peer.fail_round(turn);
        }
        peer.pause_or_resume(turn, journal, is_lost);
        peer.name_when_due(turn, journal);
        let is_whole = peer.unguarded.is_empty() && peer.untold.is_empty();
        peer.whole_at = peer.whole_at.filter(|_| is_whole).or_else(|| is_whole.then_some(turn.now));
        peer.is_copied |= is_whole;
        peer.is_proven |= peer.whole_at.is_some_and(|at| turn.since(at) >= PROVEN);
        turn.router.orphans.set_untold(peer.untold_wills());
        match () {
            () if peer.paused_at.is_some_and(|since| turn.since(since) >= PAUSED_MAX) => self.give_up(turn, "it does not answer"),
            () if journal.is_some_and(|journal| peer.is_late(journal, turn.now)) => {
                self.give_up(turn, "it does not come as far as clients wait for")
            }
            () if peer.rounds_failed >= ROUNDS_FAILED_MAX => self.give_up(turn, "it does not come as far"),
            () if peer.out.is_full(0) => self.give_up(turn, "it does not keep up"),
            () if self.is_leaving(turn, broker) => self.give_up(turn, "it is drained"),
            () => {}
        }
    }

    /// Looks for a broker for the replicas. Whether there is one now.
    fn begin(&mut self, turn: &mut Turn<'_>, journal: Option<&Journal>) -> bool {
        if self.retry_at.is_some_and(|at| turn.now < at) || turn.router.pressure.level() == Level::Full {
            return false;
        }
        let Some(broker) = self.choose(turn) else {
            self.count_without(turn);
            return false;
        };
        let Some(clock) = turn.router.retained.clock() else { return false };
        // Of two streams the later counts.
        self.last_stream = clock.tick(turn.now).time.max(self.last_stream + 1);
        if let Some(journal) = journal {
            journal.open_tap();
        }
        let sessions = turn.router.registry.iter().map(|held| Arc::clone(held.value()));
        let waiting = |subscriber: Arc<Subscriber>| (subscriber.id, Followed::new(subscriber, turn.now));
        let sessions: HashMap<_, _, _> = sessions.filter(|subscriber| subscriber.lock().is_durable()).map(waiting).collect();
        turn.router.metrics.sessions_unreplicated.set(sessions.len() as i64);
        let unguarded = sessions.keys().copied().collect();
        let mut out = Outgoing::default();
        out.words().put(&Item::Begin);
        let life = turn.router.registers().and_then(|registers| registers.life_of(turn.own));
        out.words().put(&Item::Life { incarnation: life.map_or(0, |life| life.0) });
        self.peer = Some(Peer {
            broker,
            stream: self.last_stream,
            since: turn.now,
            out,
            sessions,
            unguarded,
            untold: VecDeque::new(),
            guarded: 0,
            round: None,
            rounds_failed: 0,
            copies: VecDeque::new(),
            wills: ToldWills::all(turn.router),
            dealt: Items::default(),
            marks: VecDeque::new(),
            held: 0,
            confirmed: 0,
            noted: 0,
            named: None,
            progress_at: turn.now,
            answered_at: turn.now,
            whole_at: None,
            is_copied: false,
            is_proven: false,
            named_from: Some(0),
            is_talking: false,
            asked_at: turn.now,
            looked_at: turn.now,
            paused_at: None,
        });
        true
    }

    /// The nearest, but rather none that is drained, and rather none that has failed, or the one that did so first; of those that are as near not all take the same.
    fn choose(&mut self, turn: &Turn<'_>) -> Option<BrokerId> {
        self.failed.retain(|_, at| turn.since(*at) < FAILED);
        let members = turn.router.claims.members();
        let reached = turn.post.reached().into_iter().filter(|broker| *broker != turn.own && members.contains_key(broker));
        let rank = |broker: &BrokerId| {
            let cost = turn.mesh.interest().cost(*broker).unwrap_or(u32::MAX);
            let (is_leaving, failed_at) = (turn.mesh.interest().is_leaving(*broker), self.failed.get(broker).copied());
            (is_leaving, failed_at, cost, (broker.0 ^ turn.own.0).wrapping_mul(0x9E37_79B9_7F4A_7C15))
        };
        reached.min_by_key(rank)
    }

    /// There is nobody who could have replicas. In a mesh that is worth knowing.
    fn count_without(&mut self, turn: &Turn<'_>) {
        if self.counted_at.is_some_and(|at| turn.since(at) < LATER) {
            return;
        }
        self.counted_at = Some(turn.now);
        let is_alone = turn.router.claims.members().is_empty();
        let sessions = || turn.router.registry.iter().filter(|held| held.lock().is_durable()).count();
        turn.router.metrics.sessions_unreplicated.set(if is_alone { 0 } else { sessions() as i64 });
    }

    /// Whether the replicas' broker is drained, and there is another.
    fn is_leaving(&mut self, turn: &Turn<'_>, broker: BrokerId) -> bool {
        let interest = turn.mesh.interest();
        interest.is_leaving(broker) && self.choose(turn).is_some_and(|other| !interest.is_leaving(other))
    }

    /// There is no replica from now on, and nobody waits for one.
    fn give_up(&mut self, turn: &mut Turn<'_>, why: &'static str) {
        let Some(peer) = self.peer.take() else { return };
        turn.post.send(peer.broker, &Letter::Over.encode(peer.stream));
        for followed in peer.sessions.values().filter(|followed| followed.stage != Stage::Waiting) {
            followed.subscriber.follow(&mut followed.subscriber.lock(), false);
        }
        turn.router.orphans.follow(false);
        turn.router.subscriptions_changed(0);
        if let Some(journal) = turn.router.journal() {
            journal.close_tap();
        }
        if let Some(registers) = turn.router.registers() {
            registers.own().tell_replica(None);
        }
        self.failures = if peer.is_proven { 1 } else { self.failures.saturating_add(1) };
        let wait = RETRY_LEAST.saturating_mul(1 << self.failures.min(10).saturating_sub(1)).min(RETRY_MOST);
        let copying = Some(turn.since(peer.since)).filter(|time| !peer.is_copied && *time >= COPYING).unwrap_or_default();
        self.retry_at = Some(turn.now + wait.max(copying.saturating_mul(COPYING_TIMES).min(RETRY_COPYING_MOST)));
        self.failed.insert(peer.broker, turn.now);
        let metrics = &turn.router.metrics;
        metrics.replicas_given_up.add(1);
        metrics.sessions_unreplicated.set(peer.sessions.len() as i64);
        if let Some(left_out) = turn.router.log_rate.permit("replica given up", turn.now) {
            tracing::warn!(broker = %peer.broker, why, left_out, "the replicas of sessions are given up; others are made");
        }
    }

    fn peer(&mut self, (from, stream): (BrokerId, u64)) -> Option<&mut Peer> {
        self.peer.as_mut().filter(|peer| (peer.broker, peer.stream) == (from, stream))
    }

    pub(super) fn answered(&mut self, line: (BrokerId, u64), (known, held): (u64, u64), now: Instant) {
        let Some(peer) = self.peer(line) else { return };
        peer.answered_at = now;
        let is_known = peer.out.learn(known);
        let is_held = held > peer.held && held <= peer.out.last();
        if is_held {
            peer.held = held;
        }
        if is_known || is_held {
            (peer.progress_at, peer.asked_at) = (now, now);
        } else if peer.is_idle() {
            peer.progress_at = now;
        }
    }

    pub(super) fn cut(&mut self, line: (BrokerId, u64), round: u64, (part, parts): (u64, u64), covers: Covers) {
        let Some(round) = self.peer(line).and_then(|peer| peer.round.as_mut()).filter(|it| it.number == round) else { return };
        let (Ok(part), Ok(parts)) = (usize::try_from(part), usize::try_from(parts)) else { return };
        if round.cut.is_empty() && parts <= REPLICA_CUT_PARTS_MAX {
            round.cut = vec![None; parts];
        }
        if let Some(place) = round.cut.get_mut(part) {
            *place = Some(covers);
        }
    }

    /// The other broker has all of the round.
    pub(super) fn whole(&mut self, turn: &Turn<'_>, line: (BrokerId, u64), number: u64) {
        let Some(peer) = self.peer(line) else { return };
        if peer.round.as_ref().is_none_or(|round| round.number != number || !round.is_put) {
            return;
        }
        (peer.round, peer.rounds_failed) = (None, 0);
        for followed in peer.unguarded.iter().filter_map(|session| peer.sessions.get(session)) {
            if followed.stage == Stage::Copied(number) {
                // What it says from here on waits; when the journal has come to this the other broker is told.
                followed.subscriber.lock().guard(number);
            }
        }
        if let Some(journal) = turn.router.journal() {
            journal.kick();
        }
    }

    /// The other broker has lost one.
    pub(super) fn lost(&mut self, turn: &Turn<'_>, line: (BrokerId, u64), session: u64) {
        if let Some(peer) = self.peer(line) {
            peer.put_aside(turn, SubscriberId(session));
        }
    }

    /// It does not know the stream; or has not heard of it yet.
    pub(super) fn unknown(&mut self, turn: &mut Turn<'_>, line: (BrokerId, u64)) {
        if self.peer(line).is_some_and(|peer| peer.out.known() > 0) {
            self.give_up(turn, "it was restarted");
        }
    }
}

impl Followed {
    fn new(subscriber: Arc<Subscriber>, not_before: Instant) -> Self {
        Self { subscriber, stage: Stage::Waiting, not_before, failed: (0, not_before), behind: None }
    }
}

impl Peer {
    /// All that was said is known.
    fn is_idle(&self) -> bool {
        self.held >= self.out.last()
    }

    /// Wills of which the other broker is not known to know how they stand; none where it is not there.
    fn untold_wills(&self) -> usize {
        if self.paused_at.is_some() { 0 } else { self.wills.due() + usize::from(self.out.known() < self.out.last()) }
    }

    fn is_silent(&self, now: Instant) -> bool {
        // Where nobody waits for it there is time.
        let patience = if self.is_idle() { SILENCE_IDLE } else { SILENCE_MAX };
        now.saturating_duration_since(self.progress_at) >= patience
    }

    /// What was told and is not held yet is no longer on its way than it may be.
    fn has_caught_up(&self, now: Instant) -> bool {
        self.marks.front().is_none_or(|mark| now.saturating_duration_since(mark.since) < CAUGHT_UP)
    }

    /// All hear who has the replicas.
    fn name(turn: &Turn<'_>, broker: Option<BrokerId>) {
        if let Some(registers) = turn.router.registers() {
            registers.own().tell_replica(broker);
        }
    }

    /// Who comes to another broker may go on with what this one has, from now on: its stream is known, so there is no older one.
    fn name_when_due(&mut self, turn: &Turn<'_>, journal: Option<&Journal>) {
        if self.paused_at.is_none()
            && self.out.known() > 0
            && self.named_from.is_some_and(|from| journal.is_none_or(|journal| journal.reached(Reach::Held) >= from))
        {
            self.named_from = None;
            Self::name(turn, Some(self.broker));
            turn.router.metrics.sessions_unreplicated.set(self.without() as i64);
        }
    }

    /// A link that is lost for a moment, or a broker that stands still, is no reason to copy all sessions anew.
    fn pause_or_resume(&mut self, turn: &Turn<'_>, journal: Option<&Journal>, is_lost: bool) {
        let is_unawaited = || journal.is_some_and(|journal| !journal.is_replica_awaited());
        match self.paused_at {
            // Whoever looks after this task has done so already, where that came late.
            None if is_lost || self.is_silent(turn.now) || is_unawaited() => {
                journal.into_iter().for_each(Journal::pause_tap);
                self.paused_at = Some(turn.now);
                // What clients are sent from now on it does not know: nobody may go on with what it has.
                Self::name(turn, None);
                self.named_from = Some(u64::MAX);
                turn.router.metrics.sessions_unreplicated.set(self.without() as i64);
                if let Some(left_out) = turn.router.log_rate.permit("replica paused", turn.now) {
                    tracing::warn!(broker = %self.broker, left_out, "the broker that has the replicas of sessions is not waited for at present");
                }
            }
            Some(since) if !is_lost && self.answered_at > since && self.has_caught_up(turn.now) => {
                (self.paused_at, self.progress_at) = (None, turn.now);
                journal.into_iter().for_each(Journal::resume_tap);
                // Clients may have been sent all that is told up to here, and it does not know of all that yet.
                self.named_from = Some(journal.map_or(0, Journal::last));
                turn.router.metrics.sessions_unreplicated.set(self.without() as i64);
            }
            _ => {}
        }
    }

    /// Somebody waits for something that was told so long ago, whatever else is confirmed meanwhile.
    fn is_late(&self, journal: &Journal, now: Instant) -> bool {
        let late = self.marks.partition_point(|mark| now.saturating_duration_since(mark.since) >= SILENCE_MAX);
        let newest = late.checked_sub(1).and_then(|last| self.marks.get(last));
        newest.is_some_and(|mark| journal.awaits_replica(mark.number))
    }

    /// All is told up to that change of the journal.
    fn mark(&mut self, number: u64, now: Instant) {
        let letter = self.out.last();
        // Also where nothing was said: it is known with what was said before.
        if self.marks.back().is_none_or(|last| (last.letter, last.number) != (letter, number)) {
            self.marks.push_back(Mark { letter, number, since: now });
        }
    }

    fn count_untold(&mut self) {
        let known = self.out.known();
        self.untold.retain(|(letter, _)| *letter > known);
        if self.guarded > 0 {
            self.untold.push_back((self.out.last(), std::mem::take(&mut self.guarded)));
        }
    }

    /// Sessions that have no replica at present from which they could go on.
    fn without(&self) -> usize {
        if self.paused_at.is_some() || self.named_from.is_some() {
            return self.sessions.len();
        }
        self.unguarded.len() + self.untold.iter().map(|(_, count)| count).sum::<usize>()
    }

    fn send(&mut self, turn: &Turn<'_>) {
        let interval = if self.is_idle() { PING } else { REPEAT };
        let is_due = turn.since(self.asked_at) >= interval;
        if is_due {
            self.out.repeat();
        }
        let was_clear = self.out.is_clear();
        let (post, broker) = (turn.post, self.broker);
        let has_sent = self.out.send(self.stream, |letter| post.send(broker, letter));
        if is_due && !has_sent {
            post.send(broker, &Letter::Items { number: 0, items: &[] }.encode(self.stream));
        }
        // Not with each letter: where there is always more to say what was lost would never be said again.
        if is_due || (has_sent && was_clear) {
            self.asked_at = turn.now;
        }
    }

    /// What waits for the other broker need not wait for what it knows.
    fn confirm(&mut self, journal: &Journal) {
        let (before, count) = (self.noted, self.marks.len());
        while let Some(Mark { number, .. }) = self.marks.front().filter(|mark| mark.letter <= self.held) {
            self.confirmed = *number;
            self.marks.pop_front();
        }
        // Held is never more than known.
        let known = self.marks.partition_point(|mark| mark.letter <= self.out.known());
        let known = known.checked_sub(1).and_then(|last| self.marks.get(last));
        self.noted = known.map_or(self.confirmed, |mark| mark.number).max(self.noted);
        // Also a number that was confirmed before: that nothing is on its way any more.
        if self.noted > before || self.marks.len() < count {
            journal.confirm(self.noted, self.confirmed);
        }
    }

    /// Its replica, if it has one, is none any more.
    fn restart(&mut self, turn: &Turn<'_>, session: SubscriberId, after: Duration) {
        let Some(followed) = self.sessions.get_mut(&session) else { return };
        followed.not_before = turn.now + after;
        if followed.stage == Stage::Waiting {
            return;
        }
        followed.stage = Stage::Waiting;
        self.unguarded.insert(session);
        followed.subscriber.follow(&mut followed.subscriber.lock(), false);
        turn.router.subscriptions_changed(0);
        followed.behind = None;
        self.leave_out(session);
    }

    /// Likewise; it has failed, or cannot be kept up.
    fn put_aside(&mut self, turn: &Turn<'_>, session: SubscriberId) {
        // Others are that word once more.
        let Some(followed) = self.sessions.get_mut(&session).filter(|it| it.stage != Stage::Waiting) else { return };
        let (times, until) = followed.failed;
        let times = if turn.since(until) >= PROVEN { 1 } else { times.saturating_add(1) };
        let after = LATER.saturating_mul(1 << times.min(10).saturating_sub(1)).min(LATER_MOST);
        followed.failed = (times, turn.now + after);
        self.restart(turn, session, after);
    }

    /// It is no part of the round any more, nor is anything told of it.
    fn leave_out(&mut self, session: SubscriberId) {
        if let Some(round) = &mut self.round {
            round.copies.remove(&session);
        }
        self.copies.retain(|piece| piece.session() != Some(session));
        self.out.words().put(&Item::Ended { session: session.0 });
    }

    /// Where what is told of a session goes; none where nothing is.
    fn told_of(&mut self, id: SubscriberId) -> Option<&mut Items> {
        let followed = self.sessions.get_mut(&id)?;
        match (followed.stage, &mut followed.behind) {
            (Stage::Waiting | Stage::Begun, _) => None,
            (Stage::Copied(_) | Stage::Guarded, Some(behind)) => Some(behind),
            (Stage::Copied(_) | Stage::Guarded, None) => Some(self.out.words()),
        }
    }

    /// Of a lane, some ids are dealt with.
    fn deal(&mut self, stream: OriginLane, item: &Item<'_>) {
        // What was told of a session that is being copied comes later, and is for the other broker not dealt with before.
        let items = if self.copies.is_empty() { self.out.words() } else { &mut self.dealt };
        items.put_of(stream, item);
    }

    fn tell(&mut self, turn: &Turn<'_>, change: Change) {
        match change {
            Change::Session(id, Head { claim, expiry, left_at, .. }) if self.sessions.contains_key(&id) => {
                if let Some(items) = self.told_of(id) {
                    let left = left_at.map(|left_at| turn.since(left_at));
                    items.put(&Item::Session { session: id.0, claim, expiry, left });
                }
            }
            Change::Session(id, head) => {
                let held = turn.router.registry.get(&head.client_id).map(|held| Arc::clone(&held));
                if let Some(subscriber) = held.filter(|subscriber| subscriber.id == id) {
                    let not_before = turn.now + SETTLED;
                    self.sessions.insert(id, Followed::new(subscriber, not_before));
                    self.unguarded.insert(id);
                }
            }
            Change::Subscribed(id, ..) | Change::Unsubscribed(id, _) => self.restart(turn, id, SETTLED),
            Change::Ended(id) => {
                self.unguarded.remove(&id);
                if self.sessions.remove(&id).is_some_and(|followed| followed.stage != Stage::Waiting) {
                    self.leave_out(id);
                }
            }
            Change::Copied(id, round) => self.copy(id, round),
            Change::Guarded(id, round) => {
                if let Some(followed) = self.sessions.get_mut(&id).filter(|followed| followed.stage == Stage::Copied(round)) {
                    followed.stage = Stage::Guarded;
                    self.unguarded.remove(&id);
                    self.guarded += 1;
                    self.out.words().put(&Item::Guarded { session: id.0 });
                }
            }
            Change::Source(id, order, source) => self.named = source.id().map(|source| (id, order, *source)),
            Change::Placed(id, order, entry) => self.place(turn, id, order, &entry),
            Change::Staged(id, order, stage) => self.tell_of(id, &Item::Staged { session: id.0, order, stage }),
            Change::Removed(id, order) => self.tell_of(id, &Item::Removed { session: id.0, order }),
            Change::Received(session, id) => self.tell_of(session, &Item::Received { session: session.0, id }),
            Change::Completed(session, id) => self.tell_of(session, &Item::Completed { session: session.0, id }),
            Change::Cover(stream, last) => self.deal(stream, &Item::Dealt { first: 0, last }),
            Change::Logged(block) => {
                if let Some(stream) = turn.mesh.own_stream(block.lane) {
                    self.deal(stream, &Item::Dealt { first: block.first, last: block.last });
                }
            }
            _ => {}
        }
    }

    fn tell_of(&mut self, id: SubscriberId, item: &Item<'_>) {
        if let Some(items) = self.told_of(id) {
            items.put(item);
        }
    }

    fn place(&mut self, turn: &Turn<'_>, id: SubscriberId, order: Order, entry: &Entry) {
        let source = self.named.take().filter(|(of, its, _)| (*of, *its) == (id, order)).map(|(_, _, source)| source);
        let Entry { qos, stage, .. } = *entry;
        let Some(items) = self.told_of(id) else { return };
        match source {
            Some(MessageId { origin_lane, sequence }) => {
                items.put_of(origin_lane, &Item::Placed { session: id.0, order, sequence, qos, stage });
            }
            None => {
                let bytes = encode_entry(entry, turn.now);
                items.put_long(&bytes, |bytes| Item::PlacedWhole { session: id.0, order, bytes });
            }
        }
    }
}

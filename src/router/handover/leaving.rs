//! The old broker's side of a move. See the [module's page](super).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::Entry as Slot;

use super::pages::in_pages;
use super::word::{Outcome, Part, Why, Word, put_covers_before};
use super::{Line, Machine, Promotion, REPEAT, Request, Turn, Verdict};
use crate::frame::put_varint;
use crate::ids::BrokerId;
use crate::limits::{HANDOVER_BYTES_MAX, HANDOVER_PAGE_BYTES, HANDOVER_PAGES_AT_ONCE, HANDOVERS_BYTES_MAX};
use crate::replication::{Covers, Replication};
use crate::router::connect::TakenOver;
use crate::router::deadlines::Due;
use crate::router::{Passing, Router};
use crate::session::{MovedContent, MovedHead, Moving, SessionExpiry, State, Subscriber};
use crate::topic;

/// The new broker says nothing for so long: the session stays.
const PATIENCE_LEAVING: Duration = Duration::from_secs(10);
/// Between two questions what became of what was given away.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// What a message in a session takes on the way beside its payload, about.
const ENTRY_BYTES: usize = 64;
/// Where a session went is remembered so long.
const FORWARDED: Duration = Duration::from_secs(60);

/// A session that leaves.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) line: Line,
    stamp: u64,
    subscriber: Arc<Subscriber>,
    stage: Stage,
    /// Its client has come back.
    waiting: Vec<Request>,
}

#[derive(Debug)]
enum Stage {
    /// Who it is has been said.
    Head { pages: Vec<Bytes> },
    /// From where on the new broker takes in what is published, as far as it has said.
    Cut { parts: Vec<Option<Covers>> },
    /// What is in it is on its way, and with it the right to go on with it, once all that it is made of is safe here with that change: what is not would be as if it had never
    /// been, were this broker killed, but for this session.
    Given { pages: Vec<Bytes>, number: u64, is_sent: bool },
}

/// What is left of a session that went: its subscriptions, until the new broker's are known everywhere.
#[derive(Debug)]
pub(super) struct Ghost {
    to: BrokerId,
    subscriber: Arc<Subscriber>,
    filters: Vec<Box<str>>,
    since: Instant,
    /// With which change it is safe that the session has ended here; none before its batch is.
    number: Option<u64>,
    /// The new broker has been told that.
    is_told: bool,
}

impl Leaving {
    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Whether this broker itself has to come further first.
    pub(super) fn waits_for_us(&self) -> bool {
        match &self.stage {
            Stage::Head { .. } => false,
            Stage::Cut { parts } => parts.iter().all(Option::is_some),
            Stage::Given { is_sent, .. } => !is_sent,
        }
    }

    pub(super) fn is_given(&self) -> bool {
        matches!(self.stage, Stage::Given { .. })
    }

    /// Whether the session is still what it was: it may have ended, or been begun anew.
    fn is_there(&self) -> bool {
        let state = self.subscriber.lock();
        !state.ended && matches!(state.moving, Some(Moving::Leaving { .. }))
    }
}

impl Machine {
    /// Another broker's client wants its session.
    pub(super) fn asked(&mut self, turn: &mut Turn<'_>, (to, id): (BrokerId, u64), stamp: u64, client_id: &str) {
        let client_id: Arc<str> = Arc::from(client_id);
        if let Some(coming) = self.coming.get(&client_id) {
            // Of two that ask each other the one whose client came first gives way.
            if !coming.gives_way_to((stamp, to), turn.own) {
                return turn.write(to, id, &Word::No(Why::Wait));
            }
            self.stop_coming(turn, &client_id, Verdict::Refused);
        }
        if let Some(leaving) = self.leaving.get_mut(&client_id) {
            if leaving.line.is(to, id) {
                leaving.line.heard(turn.now);
                return self.fetched(turn, (to, id), Part::Head, 0);
            }
            if leaving.line.peer != to {
                return turn.write(to, id, &Word::No(Why::Wait));
            }
            // It would not ask anew if it had it, or could still have it.
            self.stay(turn, &client_id);
        }
        match self.begin_leaving(turn, (to, id), stamp, &client_id) {
            Ok(leaving) => {
                self.leaving.insert(client_id, leaving);
                self.fetched(turn, (to, id), Part::Head, 0);
            }
            // Of a broker that cannot be reached it may have a replica: of that it makes a session first.
            Err(Why::NotHere) => {
                match self.replicas.promote(turn, &client_id, stamp, false) {
                    Promotion::Done | Promotion::Wait => return turn.write(to, id, &Word::No(Why::Wait)),
                    Promotion::Reached(of) => return turn.write(to, id, &Word::No(Why::ReplicaOf(of))),
                    Promotion::Newer(claimed) => return turn.write(to, id, &Word::No(Why::Newer(claimed))),
                    Promotion::NotHere => {}
                }
                let forwarded = turn.router.handover.went_to(&client_id).filter(|broker| *broker != to);
                let why = forwarded.map_or(Why::NotHere, Why::MovedTo);
                turn.write(to, id, &Word::No(why));
            }
            Err(why) => turn.write(to, id, &Word::No(why)),
        }
    }

    fn begin_leaving(
        &mut self,
        turn: &mut Turn<'_>,
        (to, id): (BrokerId, u64),
        stamp: u64,
        client_id: &Arc<str>,
    ) -> Result<Leaving, Why> {
        let (router, now) = (turn.router, turn.now);
        let Some(subscriber) = router.registry.get(client_id).map(|held| Arc::clone(&held)) else { return Err(Why::NotHere) };
        let is_passed = || router.passing(client_id) == Some(Passing::To(to));
        if !Router::is_claimed(subscriber.access().as_deref()) && !is_passed() {
            return Err(Why::NotHere);
        }
        let mut state = subscriber.lock();
        if state.ended || state.expiry == SessionExpiry::WithConnection {
            drop(state);
            // It ends with its connection, and that ends now: nothing of it can go on elsewhere.
            turn.yield_session(client_id, (stamp, to), false);
            return Err(Why::NotHere);
        }
        if (state.claimed, turn.own) > (stamp, to) {
            return Err(Why::Newer(state.claimed));
        }
        if state.outbound.owed().1 > HANDOVER_BYTES_MAX {
            tracing::warn!(client = ?client_id, "a session is too large for another broker: its client can have it here only");
            return Err(Why::Cancelled);
        }
        let left_ms = state.rivalry.left_ms(router.millis(now));
        let TakenOver { address, fired } = router.take_over(turn.batch, &mut state, true);
        let was_connected = subscriber.leave(&mut state, stamp, now);
        router.orphans.note(&subscriber);
        router.tell_presence(&state, was_connected);
        let mut head = MovedHead::of(&subscriber, &state);
        // Offered, it is away: what is left of its time is what goes along. Here it keeps its own, should it stay.
        if let (SessionExpiry::After(_), Some(left)) = (head.expiry, self.offers.time_left(client_id, now)) {
            head.expiry = SessionExpiry::After(left);
        }
        let (epoch, expiry, owed) = (state.epoch, state.expiry, bytes_of(&state));
        let delay = state.will.as_ref().map(|will| will.delay);
        drop(state);
        router.subscriptions_changed(0);
        if was_connected {
            if let SessionExpiry::After(rest) = expiry {
                router.add_deadline(now + rest, Due::Expiry, &subscriber, epoch);
            }
            if let Some(delay) = delay {
                router.add_deadline(now + delay, Due::Will, &subscriber, epoch);
            }
            router.tell_of_takeover(client_id, address.flatten(), None, now);
        }
        if let Some(fired) = fired {
            router.publish_will(turn.batch, &subscriber, fired.will, fired.gone, now);
        }
        let mut bytes = Vec::new();
        put_varint(&mut bytes, left_ms);
        bytes.push(u8::from(was_connected));
        put_varint(&mut bytes, owed as u64);
        head.encode(&mut bytes);
        let stage = Stage::Head { pages: in_pages(bytes) };
        Ok(Leaving { line: Line::new(to, id, now), stamp, subscriber, stage, waiting: Vec::new() })
    }

    fn leaving_of(&mut self, (to, id): (BrokerId, u64), now: Instant) -> Option<(&Arc<str>, &mut Leaving)> {
        let found = self.leaving.iter_mut().find(|(_, leaving)| leaving.line.is(to, id));
        found.map(|(client_id, leaving)| {
            leaving.line.heard(now);
            (client_id, leaving)
        })
    }

    /// The new broker wants pages.
    pub(super) fn fetched(&mut self, turn: &mut Turn<'_>, line: (BrokerId, u64), part: Part, first: u64) {
        let (to, id) = line;
        let Some((_, leaving)) = self.leaving_of(line, turn.now) else { return turn.write(to, id, &Word::No(Why::Cancelled)) };
        let pages = match (&leaving.stage, part) {
            (Stage::Head { pages }, Part::Head) | (Stage::Given { pages, is_sent: true, .. }, Part::Content) => pages,
            _ => return,
        };
        let count = pages.len() as u64;
        let skipped = usize::try_from(first).unwrap_or(usize::MAX);
        for (page, bytes) in (first..).zip(pages.iter().skip(skipped).take(HANDOVER_PAGES_AT_ONCE)) {
            turn.write(to, id, &Word::Page { part, page, pages: count, bytes });
        }
    }

    /// The new broker takes in what is published from here on.
    pub(super) fn cut(&mut self, turn: &mut Turn<'_>, line: (BrokerId, u64), (part, parts): (u64, u64), covers: Covers) {
        let (to, id) = line;
        let Some((client_id, leaving)) = self.leaving_of(line, turn.now) else {
            return turn.write(to, id, &Word::No(Why::Cancelled));
        };
        let client_id = Arc::clone(client_id);
        let (Ok(part), Ok(parts)) = (usize::try_from(part), usize::try_from(parts)) else { return };
        match &mut leaving.stage {
            Stage::Given { .. } => return self.fetched(turn, line, Part::Content, 0),
            Stage::Head { .. } if parts <= super::coming::CUT_PARTS_MAX => {
                leaving.stage = Stage::Cut { parts: vec![None; parts] };
            }
            Stage::Head { .. } | Stage::Cut { .. } => {}
        }
        if let Stage::Cut { parts: known } = &mut leaving.stage
            && known.len() == parts
            && let Some(place) = known.get_mut(part)
        {
            *place = Some(covers);
        }
        if self.is_full_for(&client_id) {
            return turn.write(to, id, &Word::No(Why::Wait));
        }
        self.give(turn, &client_id);
    }

    /// Whether so much has been given that this session is to wait until others are gone.
    fn is_full_for(&self, client_id: &Arc<str>) -> bool {
        let owed = self.leaving.get(client_id).map_or(0, |leaving| bytes_of(&leaving.subscriber.lock()));
        let given = |leaving: &Leaving| match &leaving.stage {
            Stage::Given { pages, .. } => pages.len() * HANDOVER_PAGE_BYTES,
            Stage::Head { .. } | Stage::Cut { .. } => 0,
        };
        // Small ones are too many to be counted, and do little.
        owed > HANDOVER_PAGE_BYTES && {
            let given: usize = self.leaving.values().map(given).sum();
            given > 0 && given + owed > HANDOVERS_BYTES_MAX
        }
    }

    /// Gives away what is in the session, once this broker has delivered what the new one is not to miss.
    fn give(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>) {
        let Some(leaving) = self.leaving.get(client_id) else { return };
        let Stage::Cut { parts } = &leaving.stage else { return };
        if !parts.iter().all(|part| part.as_ref().is_some_and(|covers| turn.mesh.has_delivered(covers))) {
            return;
        }
        if self.is_full_for(client_id) {
            return;
        }
        let Some(leaving) = self.leaving.get(client_id) else { return };
        let subscriber = Arc::clone(&leaving.subscriber);
        let look = |router: &Router, mesh: &Replication| {
            let mut state = subscriber.lock();
            let Some(Moving::Leaving { left_behind }) = &mut state.moving else { return None };
            // What share groups give it from now on does not go along.
            left_behind.clear();
            drop(state.take_given_by_groups());
            let last = router.journal.as_ref().map_or(0, |journal| journal.last());
            (!state.ended).then(|| (MovedContent::of(&state), mesh.delivered(), last))
        };
        let Some((content, covers, number)) = turn.quietly(look) else { return self.forget_leaving(turn, client_id) };
        let mut bytes = Vec::new();
        put_covers_before(&mut bytes, &covers);
        content.encode(turn.now, &mut bytes);
        if bytes.len() > HANDOVER_BYTES_MAX {
            return self.stay(turn, client_id);
        }
        if let Some(leaving) = self.leaving.get_mut(client_id) {
            leaving.stage = Stage::Given { pages: in_pages(bytes), number, is_sent: false };
            leaving.line.asked_at = turn.now;
        }
        self.send_given(turn, client_id);
    }

    /// Sends what is given once it is safe.
    fn send_given(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>) {
        let Some(Leaving { line, stage: Stage::Given { number, is_sent, .. }, .. }) = self.leaving.get_mut(client_id) else {
            return;
        };
        if *is_sent || !turn.is_safe(*number) {
            return;
        }
        *is_sent = true;
        let line = (line.peer, line.id);
        self.fetched(turn, line, Part::Content, 0);
    }

    /// The new broker has everything.
    pub(super) fn done(&mut self, turn: &mut Turn<'_>, (to, id): (BrokerId, u64), stamp: u64, client_id: &str) {
        let client_id = Arc::from(client_id);
        if self.leaving.get(&client_id).is_some_and(|leaving| leaving.line.is(to, id)) {
            self.hand_over(turn, &client_id);
        } else if !self.ghosts.contains_key(&id) {
            // This broker was restarted meanwhile, and has the session still.
            let is_older = |subscriber: &Subscriber| (subscriber.lock().claimed, turn.own) < (stamp, to);
            let here = turn.router.registry.get(&client_id).map(|held| Arc::clone(&held));
            if let Some(subscriber) = here.filter(|subscriber| is_older(subscriber) && !subscriber.is_moving()) {
                let mut state = subscriber.lock();
                let left_behind = state.take_given_by_groups();
                subscriber.leave(&mut state, stamp, turn.now);
                drop(state);
                turn.router.subscriptions_changed(0);
                self.end_copy(turn, &client_id, &subscriber, (to, id));
                turn.share_anew(left_behind);
            }
        }
        // It is told once that is safe.
        if self.ghosts.get(&id).is_none_or(|ghost| ghost.is_told) {
            turn.write(to, id, &Word::Gone);
        }
    }

    /// The session is another broker's now. Who waits for it here fetches it from there.
    pub(super) fn hand_over(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>) {
        let Some(Leaving { line, stamp, subscriber, waiting, .. }) = self.leaving.remove(client_id) else { return };
        self.end_copy(turn, client_id, &subscriber, (line.peer, line.id));
        for mut request in waiting {
            request.stamp = turn.router.claim_stamp(client_id, stamp, turn.now);
            if self.coming.contains_key(client_id) || request.clean_start {
                self.serve(turn, request);
            } else {
                self.begin_coming(turn, request, line.peer);
            }
        }
    }

    fn end_copy(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, subscriber: &Arc<Subscriber>, (to, id): (BrokerId, u64)) {
        let router = turn.router;
        let Slot::Occupied(occupied) = router.registry.entry(Arc::clone(client_id)) else { return };
        if occupied.get().id != subscriber.id {
            return;
        }
        let mut state = subscriber.lock();
        let left_behind = match &mut state.moving {
            Some(Moving::Leaving { left_behind }) => std::mem::take(&mut **left_behind),
            _ => Vec::new(),
        };
        // Its will is not published: it goes on.
        let ended = subscriber.end(&mut state, turn.batch.writes());
        router.orphans.note(subscriber);
        let (shared, filters): (Vec<_>, Vec<_>) = ended.subscriptions.keys().cloned().partition(|text| topic::is_shared(text));
        shared.iter().for_each(|text| router.tell_filter_of(false, text, false));
        drop(state);
        occupied.remove();
        router.forget_filters(subscriber.id, shared.iter().map(|text| &**text));
        turn.share_anew(left_behind);
        router.metrics.sessions.change(-1);
        router.handover.forwarded.insert(Arc::clone(client_id), (to, turn.now));
        let subscriber = Arc::clone(subscriber);
        self.ghosts.insert(id, Ghost { to, subscriber, filters, since: turn.now, number: None, is_told: false });
    }

    /// All members know what the new broker wants.
    pub(super) fn released(&mut self, turn: &mut Turn<'_>, (to, id): (BrokerId, u64)) {
        if let Some(ghost) = self.ghosts.remove(&id).filter(|ghost| ghost.to == to) {
            ghost.end(turn.router);
        }
        turn.write(to, id, &Word::Released);
    }

    /// The new broker gives it up.
    pub(super) fn given_up(&mut self, turn: &mut Turn<'_>, line: (BrokerId, u64)) {
        if let Some((client_id, _)) = self.leaving_of(line, turn.now) {
            let client_id = Arc::clone(client_id);
            self.stay(turn, &client_id);
        }
    }

    /// The new broker says what became of what was given to it.
    pub(super) fn outcome(&mut self, turn: &mut Turn<'_>, line: (BrokerId, u64), outcome: Outcome) {
        let Some((client_id, _)) = self.leaving_of(line, turn.now) else { return };
        let client_id = Arc::clone(client_id);
        match outcome {
            Outcome::Have => self.hand_over(turn, &client_id),
            Outcome::HaveNot => self.stay(turn, &client_id),
            Outcome::Wait => {}
            Outcome::Newer => {
                // That may be this one, gone on since; if not, what waits here is dropped.
                let owed = self.leaving.get(&client_id).map_or(0, |leaving| leaving.subscriber.lock().outbound.owed().0);
                turn.router.metrics.sessions_yielded.add(1);
                turn.router.metrics.dropped_yielded.add(owed as u64);
                turn.router.tell_of_yield(&client_id, None, owed, turn.now);
                self.hand_over(turn, &client_id);
            }
        }
    }

    /// The session stays here. Who waits for it is served.
    fn stay(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>) {
        let Some(leaving) = self.leaving.remove(client_id) else { return };
        let Leaving { line, subscriber, waiting, .. } = leaving;
        let mut state = subscriber.lock();
        if !state.ended {
            subscriber.stay(&mut state);
        }
        drop(state);
        turn.router.subscriptions_changed(0);
        turn.router.metrics.sessions_stayed.add(1);
        turn.write(line.peer, line.id, &Word::No(Why::Cancelled));
        // A claim that was heard meanwhile waited for the end of the move.
        if let Some(newest) = turn.router.newest_claim(client_id, turn.now) {
            turn.yield_session(client_id, newest, false);
        }
        waiting.into_iter().for_each(|request| self.serve(turn, request));
    }

    /// The session is over.
    pub(super) fn forget_leaving(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>) {
        let Some(Leaving { line, subscriber, stage, waiting, .. }) = self.leaving.remove(client_id) else { return };
        turn.write(line.peer, line.id, &Word::No(Why::Cancelled));
        if let (Stage::Given { .. }, Some(Moving::Leaving { left_behind })) = (stage, subscriber.lock().moving.take()) {
            turn.share_anew(*left_behind);
        }
        waiting.into_iter().for_each(|request| self.serve(turn, request));
    }

    /// The client of a session that leaves wants it here.
    pub(super) fn came_back(&mut self, turn: &mut Turn<'_>, request: Request) {
        let client_id = Arc::clone(&request.client_id);
        let Some(leaving) = self.leaving.get_mut(&client_id) else { return };
        let must_wait = leaving.is_given() && leaving.is_there() && !request.clean_start;
        let (to, id, stamp) = (leaving.line.peer, leaving.line.id, leaving.stamp);
        leaving.waiting.push(request);
        if !must_wait {
            // What was given away, or may be asked for, is not taken: the client's next claim is later.
            return self.stay(turn, &client_id);
        }
        leaving.line.asked_at = turn.now;
        turn.write(to, id, &Word::Status { stamp, client_id: &client_id });
    }

    /// The broker to which a session leaves has claimed it, later than when it asked.
    pub(super) fn ask_status(&mut self, turn: &Turn<'_>, client_id: &Arc<str>) {
        if let Some(leaving) = self.leaving.get_mut(client_id) {
            leaving.line.asked_at = turn.now;
            turn.write(leaving.line.peer, leaving.line.id, &Word::Status { stamp: leaving.stamp, client_id });
        }
    }

    pub(super) fn drive_leaving(&mut self, turn: &mut Turn<'_>) {
        let ready: Vec<_> =
            self.leaving.iter().filter(|(_, it)| it.waits_for_us()).map(|(client_id, _)| Arc::clone(client_id)).collect();
        for client_id in &ready {
            self.give(turn, client_id);
            self.send_given(turn, client_id);
        }
        let (mut over, mut staying) = (Vec::new(), Vec::new());
        for (client_id, leaving) in &mut self.leaving {
            if !leaving.is_there() {
                over.push(Arc::clone(client_id));
                continue;
            }
            let is_waited_for = !leaving.waiting.is_empty();
            if leaving.line.is_silent(PATIENCE_LEAVING, turn.now) || (is_waited_for && leaving.line.is_unreachable(turn)) {
                staying.push((Arc::clone(client_id), leaving.is_given()));
                continue;
            }
            let interval = if is_waited_for { REPEAT } else { STATUS_INTERVAL };
            if leaving.is_given() && leaving.line.asks_again(interval, turn.now) {
                turn.write(leaving.line.peer, leaving.line.id, &Word::Status { stamp: leaving.stamp, client_id });
            }
        }
        over.iter().for_each(|client_id| self.forget_leaving(turn, client_id));
        for (client_id, is_given) in staying {
            if is_given {
                tracing::warn!(client = ?client_id, "the broker to which a session went does not answer: it goes on here");
            }
            self.stay(turn, &client_id);
        }
    }

    /// Tells new brokers that their sessions have ended here, as far as that is safe. Whether something is not.
    pub(super) fn tell_gone(&mut self, turn: &mut Turn<'_>) {
        if self.ghosts.values().any(|ghost| ghost.number.is_none()) {
            turn.router.finish(turn.batch, turn.now);
        }
        let last = turn.router.journal.as_ref().map_or(0, |journal| journal.last());
        for (id, ghost) in self.ghosts.iter_mut().filter(|(_, ghost)| !ghost.is_told) {
            if turn.is_safe(*ghost.number.get_or_insert(last)) {
                ghost.is_told = true;
                turn.write(ghost.to, *id, &Word::Gone);
            }
        }
    }

    pub(super) fn drive_ghosts(&mut self, turn: &Turn<'_>) {
        let timeout = turn.router.registers().map(|registers| registers.member_timeout()).unwrap_or_default();
        let late: Vec<_> =
            self.ghosts.iter().filter(|(_, ghost)| turn.now.saturating_duration_since(ghost.since) >= timeout).collect();
        let late: Vec<_> = late.into_iter().map(|(id, _)| *id).collect();
        late.iter().filter_map(|id| self.ghosts.remove(id)).for_each(|ghost| ghost.end(turn.router));
        turn.router.handover.forwarded.retain(|_, (_, at)| turn.now.saturating_duration_since(*at) < FORWARDED);
    }
}

/// What a session takes on the way, more or less.
fn bytes_of(state: &State) -> usize {
    let (count, bytes) = state.outbound.owed();
    bytes + count * ENTRY_BYTES
}

impl Ghost {
    pub(super) fn waits_for_us(&self) -> bool {
        !self.is_told
    }

    fn end(self, router: &Router) {
        // Until now it led those here who had not heard of the newer one.
        if let Slot::Vacant(vacant) = router.registry.entry(Arc::clone(&self.subscriber.client_id)) {
            router.release(vacant.key());
        }
        self.filters.iter().for_each(|text| router.tell_filter_of(false, text, false));
        router.forget_filters(self.subscriber.id, self.filters.iter().map(|text| &**text));
    }
}

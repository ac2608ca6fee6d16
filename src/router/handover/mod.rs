//! A session follows its client to another broker.
//!
//! The new broker asks the one that has the session. That closes the client's connection there with 0x8E and *freezes* the session: in one moment
//! ([`Quiesce`](crate::replication::Quiesce)) it notes what is in it and how far it had been given what was published, the session's *covers*. It sends both. The
//! new broker waits until it has delivered as much itself, then installs the session, again in one moment: from there on it gets what is new here. What was
//! published between the two points the old one sends in a second part, out of its rings, once it has it. Then the client gets its CONNACK, with
//! Session Present; nothing was lost or doubled on the way.
//!
//! Until the new broker says that it has everything, the old one keeps the session, and takes it back if it hears no more. Until all members have
//! taken in what the new broker's register says, the old one's goes on to tell the filters. Every question is repeated until it is answered.
//!
//! If the old broker is dead or does not answer in time, the client gets a new session: no Session Present, a line in the log, a count.
//!
//! `Deviation:` of shared subscriptions the messages between the two points are the moving session's, even if others of its group got them.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::Entry as Slot;
use parking_lot::Mutex;

mod word;

use word::{Part, Word, put_covers, read_covers};

use super::deadlines::Due;
use super::{Batch, Router};
use crate::auth::Access;
use crate::codec::{QoS, ReasonCode};
use crate::frame::{Reader, put_block};
use crate::ids::BrokerId;
use crate::limits::{HANDOVER_BYTES_MAX, HANDOVER_PAGE_BYTES, HANDOVER_PAGES_AT_ONCE};
use crate::replication::{Covers, Replication};
use crate::session::{
    Delivery, Entry, Message, Moved, Parting, RESTORED_EPOCH, SessionExpiry, Subscriber, SubscriptionOptions, decode_entries,
    encode_entries,
};
use crate::shared::{Letter, Post};
use crate::topic;

/// A question that is not answered is repeated after this time.
const REPEAT: Duration = Duration::from_millis(250);
/// The other broker says nothing for so long: it is given up.
const PATIENCE: Duration = Duration::from_secs(5);
/// There is no way to the other broker for so long: likewise.
const PATIENCE_UNREACHABLE: Duration = Duration::from_secs(1);
/// The old broker waits longer: its client should not have two sessions.
const PATIENCE_LEAVING: Duration = Duration::from_secs(15);
/// What the old broker has delivered and the new one has not is waited for so long.
const CATCH_UP: Duration = Duration::from_secs(3);
/// Where a session went is remembered so long.
const FORWARDED: Duration = Duration::from_secs(60);
/// A session that went on meanwhile is followed so often.
const HOPS_MAX: usize = 4;
/// So many sessions are on their way at once.
const MOVES_MAX: usize = 1_024;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Handover {
    moves: Mutex<Moves>,
}

#[derive(Debug, Default)]
struct Moves {
    /// By client id.
    coming: HashMap<Arc<str>, Coming, ahash::RandomState>,
    /// By the move's number.
    leaving: HashMap<u64, Leaving, ahash::RandomState>,
    /// Where clients' sessions went.
    forwarded: HashMap<Arc<str>, (BrokerId, Instant), ahash::RandomState>,
    /// The other broker is told when all members know what ours wants.
    releases: Vec<(BrokerId, u64, u64)>,
}

/// A session that is fetched.
#[derive(Debug)]
struct Coming {
    id: u64,
    from: BrokerId,
    access: Option<Arc<Access>>,
    stage: Stage,
    /// Pages of the part that is being fetched.
    pages: Vec<Bytes>,
    pages_bytes: usize,
    asked_at: Instant,
    heard_at: Instant,
    /// Since then there is no way to the other broker.
    bounced_at: Option<Instant>,
    /// From so many brokers it was sent on to the next.
    hops: usize,
    wakers: Vec<Waker>,
}

#[derive(Debug)]
enum Stage {
    Session,
    /// Until this broker has delivered as much as the old one had.
    CatchingUp {
        moved: Moved,
        covers: Covers,
        since: Instant,
    },
    Rest {
        subscriber: Arc<Subscriber>,
        carried: usize,
        covers: Covers,
    },
}

/// A session that is being handed over.
#[derive(Debug)]
struct Leaving {
    subscriber: Arc<Subscriber>,
    to: BrokerId,
    covers: Covers,
    session: Vec<Bytes>,
    /// Up to where the new broker wants the rest, until it is made.
    rest_to: Option<Covers>,
    rest: Option<Vec<Bytes>>,
    /// What is still told once the session is gone.
    filters: Vec<Box<str>>,
    heard_at: Instant,
    /// The new broker has everything; only the filters are still told.
    done: bool,
}

impl Router {
    /// From now on sessions are fetched from other brokers, and handed over to them, with letters by this post. The first call counts.
    pub fn join_post(&self, post: Arc<Post>) {
        // The server calls it once.
        let _ = self.post.set(post);
    }

    /// Begins to fetch a client's session if another broker has it. False if there is nothing to wait for; else wait with
    /// [`poll_fetched`](Self::poll_fetched) before [`connect`](Self::connect).
    pub fn fetch_session(&self, client_id: &str, clean_start: bool, access: Option<Arc<Access>>, now: Instant) -> bool {
        if self.post.get().is_none() || client_id.is_empty() {
            return false;
        }
        let mut moves = self.handover.moves.lock();
        if moves.is_moving(client_id) {
            return true;
        }
        if clean_start || self.registry.contains_key(client_id) || moves.coming.len() >= MOVES_MAX {
            return false;
        }
        let Some((_, from)) = self.newest_claim(client_id) else { return false };
        let coming = Coming {
            id: rand::random(),
            from,
            access,
            stage: Stage::Session,
            pages: Vec::new(),
            pages_bytes: 0,
            asked_at: now,
            heard_at: now,
            bounced_at: None,
            hops: 0,
            wakers: Vec::new(),
        };
        self.write(from, coming.id, &Word::Freeze { client_id });
        moves.coming.insert(Arc::from(client_id), coming);
        true
    }

    /// Ready when nothing of the client's session is on its way any more.
    pub fn poll_fetched(&self, client_id: &str, context: &mut Context<'_>) -> Poll<()> {
        let mut moves = self.handover.moves.lock();
        if let Some(coming) = moves.coming.get_mut(client_id) {
            coming.wakers.push(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Whether [`Self::drive_moves`] has something to do soon.
    #[must_use]
    pub fn has_moves(&self) -> bool {
        let moves = self.handover.moves.lock();
        !moves.coming.is_empty() || moves.leaving.values().any(|leaving| !leaving.done)
    }

    fn write(&self, to: BrokerId, id: u64, word: &Word<'_>) {
        if let Some(post) = self.post.get() {
            post.send(Letter { peer: to, body: word.encode(id) });
        }
    }

    /// The client whose session another broker asks for in a letter: what it has sent here before it went there is to be heard first.
    #[must_use]
    pub fn client_asked_for(letter: &Letter) -> Option<&str> {
        match Word::decode(&letter.body) {
            Ok((_, Word::Freeze { client_id })) => Some(client_id),
            _ => None,
        }
    }

    /// Another broker has written. Finish the batch afterwards.
    pub fn read_letter(&self, batch: &mut Batch, letter: &Letter, now: Instant) {
        let Some(mesh) = self.mesh().cloned() else { return };
        let from = letter.peer;
        if letter.body.is_empty() {
            return self.handover.moves.lock().bounced(from, now);
        }
        let (id, word) = match Word::decode(&letter.body) {
            Ok(read) => read,
            Err(error) => return tracing::debug!(%from, %error, "a letter is not understood"),
        };
        match word {
            Word::Freeze { client_id } => self.freeze(batch, &mesh, from, id, client_id, now),
            Word::Pages { part, first } => self.send_pages(from, id, part, first, now),
            Word::Page { part, page, pages, bytes } => self.take_page(batch, &mesh, (from, id), part, (page, pages), bytes, now),
            Word::Rest { covers } => self.rest_wanted(from, id, covers, now),
            Word::Done => self.gone(batch, from, id, now),
            Word::None { moved_to } => self.not_there(from, id, moved_to, now),
            Word::Release => self.released(from, id),
        }
    }

    // ---- the old broker ----

    fn freeze(&self, batch: &mut Batch, mesh: &Replication, to: BrokerId, id: u64, client_id: &str, now: Instant) {
        if self.handover.moves.lock().leaving.contains_key(&id) {
            return self.send_pages(to, id, Part::Session, 0, now);
        }
        let frozen = mesh
            .quiesce()
            .exclusively(|| self.take_out(batch, client_id).map(|(subscriber, moved)| (subscriber, moved, mesh.delivered())));
        let Some((subscriber, moved, covers)) = frozen else {
            let moves = self.handover.moves.lock();
            let moved_to = moves.forwarded.get(client_id).map(|(broker, _)| *broker).filter(|broker| *broker != to);
            drop(moves);
            return self.write(to, id, &Word::None { moved_to });
        };
        let mut bytes = Vec::new();
        put_covers(&mut bytes, &covers);
        let mut head = Vec::new();
        put_block(&mut head, &bytes);
        head.extend(moved.encode(now));
        let leaving = Leaving {
            subscriber,
            to,
            covers,
            session: in_pages(head),
            rest_to: None,
            rest: None,
            filters: Vec::new(),
            heard_at: now,
            done: false,
        };
        self.handover.moves.lock().leaving.insert(id, leaving);
        self.send_pages(to, id, Part::Session, 0, now);
    }

    /// Takes a session that outlives its connection out of the registry; it is given nothing any more, but stays subscribed. One that ends with its connection
    /// ends.
    fn take_out(&self, batch: &mut Batch, client_id: &str) -> Option<(Arc<Subscriber>, Moved)> {
        let Slot::Occupied(occupied) = self.registry.entry(Arc::from(client_id)) else { return None };
        let subscriber = Arc::clone(occupied.get());
        let mut state = subscriber.lock();
        if state.connected.is_some() {
            batch.wake_later(state.close(ReasonCode::SessionTakenOver));
            // As at any takeover: the will goes out when that connection is gone, unless it is cancelled by the session's going on.
            if let Some(will) = state.will.take_if(|will| will.delay.is_zero()) {
                let (epoch, gone) = (state.epoch, state.will_gone());
                state.parting = Some(Box::new(Parting { epoch, will: *will, gone }));
            }
        }
        if state.expiry == SessionExpiry::WithConnection {
            self.end(&subscriber, state, batch.writes());
            occupied.remove();
            self.release(&subscriber.client_id);
            self.metrics.sessions.change(-1);
            return None;
        }
        state.ended = true;
        let moved = Moved::of(&subscriber, &state);
        drop(state);
        occupied.remove();
        self.metrics.sessions.change(-1);
        Some((subscriber, moved))
    }

    fn send_pages(&self, to: BrokerId, id: u64, part: Part, first: u64, now: Instant) {
        let mut moves = self.handover.moves.lock();
        let Some(leaving) = moves.leaving.get_mut(&id).filter(|leaving| leaving.to == to) else {
            drop(moves);
            return self.write(to, id, &Word::None { moved_to: None });
        };
        leaving.heard_at = now;
        let pages = match part {
            Part::Session => &leaving.session,
            Part::Rest => match &leaving.rest {
                Some(rest) => rest,
                None => return,
            },
        };
        let from = usize::try_from(first).unwrap_or(usize::MAX);
        let count = pages.len() as u64;
        let some: Vec<_> = (first..).zip(pages.iter().skip(from).take(HANDOVER_PAGES_AT_ONCE).cloned()).collect();
        drop(moves);
        for (page, bytes) in some {
            self.write(to, id, &Word::Page { part, page, pages: count, bytes: &bytes });
        }
    }

    fn rest_wanted(&self, to: BrokerId, id: u64, covers: Covers, now: Instant) {
        let mut moves = self.handover.moves.lock();
        let Some(leaving) = moves.leaving.get_mut(&id).filter(|leaving| leaving.to == to) else {
            drop(moves);
            return self.write(to, id, &Word::None { moved_to: None });
        };
        leaving.heard_at = now;
        if leaving.rest.is_some() {
            drop(moves);
            return self.send_pages(to, id, Part::Rest, 0, now);
        }
        leaving.rest_to.get_or_insert(covers);
    }

    /// Everything that was published behind a frozen session's covers and that it wants, up to `to`.
    fn rest_of(&self, mesh: &Replication, subscriber: &Subscriber, from: &Covers, to: &Covers, now: Instant) -> Vec<Entry> {
        let filters: Vec<(Box<str>, SubscriptionOptions)> =
            subscriber.lock().subscriptions.iter().map(|(filter, options)| (filter.clone(), options.clone())).collect();
        let mut entries = Vec::new();
        let missing = mesh.between(from, to, |message| {
            let matching: Vec<_> = filters
                .iter()
                .filter(|(text, _)| topic::parse_filter(text).is_ok_and(|filter| topic::matches(filter.levels, message.topic)))
                .map(|(_, options)| options)
                .collect();
            let Some(granted) = matching.iter().map(|options| options.qos).max() else { return };
            let qos = message.qos.min(granted);
            if qos == QoS::AtMostOnce || !subscriber.may_receive(message.topic) {
                return;
            }
            let ids: Vec<u32> = matching.iter().filter_map(|options| options.subscription_id).collect();
            let retain = message.retain && matching.iter().any(|options| options.retain_as_published);
            let expires_at = message.expiry_seconds.map(|seconds| now + Duration::from_secs(u64::from(seconds)));
            let (topic, payload, properties) = (message.topic, message.payload, message.properties);
            let stored = Message { topic, payload, properties, qos: message.qos, retain: message.retain, expires_at }.to_stored();
            entries.push(Entry::queued(Arc::new(stored), &Delivery { qos, retain, subscription_ids: &ids }));
        });
        if missing > 0 {
            tracing::debug!(client = ?subscriber.client_id, missing, "of some messages only the topic is here");
        }
        entries
    }

    /// The new broker has everything.
    fn gone(&self, batch: &mut Batch, to: BrokerId, id: u64, now: Instant) {
        let mut moves = self.handover.moves.lock();
        let Some(leaving) = moves.leaving.get_mut(&id).filter(|leaving| leaving.to == to && !leaving.done) else { return };
        (leaving.done, leaving.heard_at) = (true, now);
        leaving.session = Vec::new();
        let subscriber = Arc::clone(&leaving.subscriber);
        moves.forwarded.insert(Arc::clone(&subscriber.client_id), (to, now));
        drop(moves);
        self.metrics.sessions_handed_over.add(1);
        // Routes leave it out from now on; its filters are still told.
        let state = subscriber.lock();
        let filters: Vec<_> = state.subscriptions.keys().cloned().collect();
        if let Some(registers) = self.registers() {
            filters.iter().for_each(|filter| registers.own().add_filter(filter));
        }
        self.end(&subscriber, state, batch.writes());
        if let Some(leaving) = self.handover.moves.lock().leaving.get_mut(&id) {
            leaving.rest = None;
            leaving.filters = filters;
        }
        self.release_claim(&subscriber);
    }

    /// Unless the client has come back meanwhile.
    fn release_claim(&self, subscriber: &Subscriber) {
        if let Slot::Vacant(vacant) = self.registry.entry(Arc::clone(&subscriber.client_id)) {
            self.release(vacant.key());
        }
    }

    /// All members know what the new broker wants.
    fn released(&self, to: BrokerId, id: u64) {
        let mut moves = self.handover.moves.lock();
        if moves.leaving.get(&id).is_some_and(|leaving| leaving.to == to && leaving.done)
            && let Some(leaving) = moves.leaving.remove(&id)
        {
            drop(moves);
            self.forget_filters(&leaving);
        }
    }

    fn forget_filters(&self, leaving: &Leaving) {
        if let Some(registers) = self.registers() {
            leaving.filters.iter().for_each(|filter| registers.own().remove_filter(filter));
        }
    }

    /// The new broker was not heard of any more: the session goes on here, away.
    fn take_back(&self, batch: &mut Batch, mesh: &Replication, leaving: &Leaving, now: Instant) {
        let Leaving { subscriber, covers, .. } = leaving;
        // Its last word may have been lost: then its claim says that it has the session.
        let claimed = subscriber.lock().claimed;
        let is_elsewhere = self.newest_claim(&subscriber.client_id).is_some_and(|(stamp, _)| stamp > claimed);
        let is_back = !is_elsewhere
            && mesh.quiesce().exclusively(|| {
                let Slot::Vacant(vacant) = self.registry.entry(Arc::clone(&subscriber.client_id)) else { return false };
                let rest = self.rest_of(mesh, subscriber, covers, &mesh.delivered(), now);
                let mut state = subscriber.lock();
                state.ended = false;
                state.disconnect(None, now);
                state.put_behind(rest, batch.writes());
                drop(state);
                vacant.insert(Arc::clone(subscriber));
                true
            });
        if is_back {
            self.metrics.sessions.change(1);
        } else {
            let state = subscriber.lock();
            self.end(subscriber, state, batch.writes());
            self.release_claim(subscriber);
        }
    }

    // ---- the new broker ----

    #[expect(clippy::too_many_arguments, reason = "the fields of one word, and what every word is read with")]
    fn take_page(
        &self,
        batch: &mut Batch,
        mesh: &Replication,
        (from, id): (BrokerId, u64),
        part: Part,
        (page, pages): (u64, u64),
        bytes: &[u8],
        now: Instant,
    ) {
        let mut moves = self.handover.moves.lock();
        let Some((client_id, coming)) = moves.coming.iter_mut().find(|(_, coming)| coming.id == id && coming.from == from) else {
            return;
        };
        let is_expected = matches!((&coming.stage, part), (Stage::Session, Part::Session) | (Stage::Rest { .. }, Part::Rest));
        if !is_expected
            || page != coming.pages.len() as u64
            || page >= pages
            || coming.pages_bytes + bytes.len() > HANDOVER_BYTES_MAX
        {
            return;
        }
        coming.pages.push(Bytes::copy_from_slice(bytes));
        coming.pages_bytes += bytes.len();
        (coming.heard_at, coming.asked_at, coming.bounced_at) = (now, now, None);
        let next = page + 1;
        if next < pages {
            if next.is_multiple_of(HANDOVER_PAGES_AT_ONCE as u64) {
                self.write(from, id, &Word::Pages { part, first: next });
            }
            return;
        }
        let client_id = Arc::clone(client_id);
        let all = coming.pages.concat();
        (coming.pages, coming.pages_bytes) = (Vec::new(), 0);
        drop(moves);
        match part {
            Part::Session => self.session_came(&client_id, &all, now),
            Part::Rest => self.rest_came(batch, &client_id, &all, now),
        }
        self.drive_coming(batch, mesh, now);
    }

    fn session_came(&self, client_id: &Arc<str>, bytes: &[u8], now: Instant) {
        let read = || -> Option<(Covers, Moved)> {
            let mut reader = Reader::new(bytes);
            let covers = read_covers(&mut Reader::new(reader.block("covers").ok()?)).ok()?;
            Some((covers, Moved::decode(reader.rest(), now).ok()?))
        };
        let mut moves = self.handover.moves.lock();
        let Some(coming) = moves.coming.get_mut(client_id) else { return };
        match read().filter(|(_, moved)| moved.client_id == *client_id && is_owner(&moved.owner, coming.access.as_deref())) {
            Some((covers, moved)) => coming.stage = Stage::CatchingUp { moved, covers, since: now },
            None => {
                // Another user's, or nothing that is understood: the client's session begins anew, and the old one is over.
                let (from, id) = (coming.from, coming.id);
                moves.over(client_id);
                drop(moves);
                self.write(from, id, &Word::Done);
                self.write(from, id, &Word::Release);
            }
        }
    }

    /// Goes on with what waits for this broker itself.
    fn drive_coming(&self, batch: &mut Batch, mesh: &Replication, now: Instant) {
        let ready: Vec<Arc<str>> = {
            let moves = self.handover.moves.lock();
            let is_ready = |coming: &Coming| match &coming.stage {
                Stage::CatchingUp { covers, since, .. } => {
                    mesh.has_delivered(covers) || now.saturating_duration_since(*since) >= CATCH_UP
                }
                _ => false,
            };
            moves.coming.iter().filter(|(_, coming)| is_ready(coming)).map(|(client_id, _)| Arc::clone(client_id)).collect()
        };
        ready.iter().for_each(|client_id| self.install(batch, mesh, client_id, now));
    }

    fn install(&self, batch: &mut Batch, mesh: &Replication, client_id: &Arc<str>, now: Instant) {
        let mut moves = self.handover.moves.lock();
        let Some(coming) = moves.coming.get_mut(client_id) else { return };
        let Stage::CatchingUp { moved, .. } = std::mem::replace(&mut coming.stage, Stage::Session) else { return };
        let (from, id, access) = (coming.from, coming.id, coming.access.clone());
        drop(moves);
        let (carried, expiry) = (moved.entries.len(), moved.expiry);
        let filters = moved.subscriptions.clone();
        let number = self.next_subscriber_id();
        let journal = self.journal.as_ref();
        let subscriber = Arc::new(moved.into_subscriber(number, self.limits.outbound, journal, access, batch.writes(), now));
        let covers = mesh.quiesce().exclusively(|| {
            let Slot::Vacant(vacant) = self.registry.entry(Arc::clone(client_id)) else { return None };
            subscriber.lock().claimed = self.claim(client_id, now);
            self.subscribe_all(&subscriber, filters);
            if let SessionExpiry::After(rest) = expiry {
                self.add_deadline(now + rest, Due::Expiry, &subscriber, RESTORED_EPOCH);
            }
            vacant.insert(Arc::clone(&subscriber));
            Some(mesh.delivered())
        });
        let mut moves = self.handover.moves.lock();
        let Some(covers) = covers else {
            // It has begun anew here meanwhile.
            moves.over(client_id);
            drop(moves);
            let state = subscriber.lock();
            self.end(&subscriber, state, batch.writes());
            self.write(from, id, &Word::Done);
            return self.write(from, id, &Word::Release);
        };
        self.metrics.sessions.change(1);
        moves.forwarded.remove(client_id);
        if let Some(coming) = moves.coming.get_mut(client_id) {
            coming.stage = Stage::Rest { subscriber, carried, covers: covers.clone() };
            (coming.asked_at, coming.heard_at) = (now, now);
        }
        drop(moves);
        self.write(from, id, &Word::Rest { covers });
    }

    fn rest_came(&self, batch: &mut Batch, client_id: &Arc<str>, bytes: &[u8], now: Instant) {
        let entries = decode_entries(bytes, now).unwrap_or_default();
        let mut moves = self.handover.moves.lock();
        let Some(coming) = moves.coming.get(client_id) else { return };
        let Stage::Rest { subscriber, carried, .. } = &coming.stage else { return };
        let (subscriber, carried, from, id) = (Arc::clone(subscriber), *carried, coming.from, coming.id);
        subscriber.lock().carry(subscriber.id, carried, entries, batch.writes());
        if let Some(registers) = self.registers() {
            moves.releases.push((from, id, registers.own().ask_echo()));
        }
        moves.over(client_id);
        drop(moves);
        self.metrics.sessions_fetched.add(1);
        self.write(from, id, &Word::Done);
    }

    fn not_there(&self, from: BrokerId, id: u64, moved_to: Option<BrokerId>, now: Instant) {
        let own = self.registers().map(|registers| registers.own_id());
        let mut moves = self.handover.moves.lock();
        let Some((client_id, coming)) = moves.coming.iter_mut().find(|(_, coming)| coming.id == id && coming.from == from) else {
            return;
        };
        let client_id = Arc::clone(client_id);
        match (&coming.stage, moved_to.filter(|broker| Some(*broker) != own)) {
            (Stage::Session, Some(other)) if coming.pages.is_empty() && coming.hops < HOPS_MAX => {
                coming.hops += 1;
                (coming.from, coming.asked_at, coming.heard_at) = (other, now, now);
                drop(moves);
                self.write(other, id, &Word::Freeze { client_id: &client_id });
            }
            (Stage::Session, None) => moves.over(&client_id),
            _ => {
                moves.over(&client_id);
                self.metrics.sessions_not_fetched.add(1);
            }
        }
    }

    /// Repeats what was not answered, gives up what is not answered at all. To be called some times a second while there are [moves](Self::has_moves). Finish
    /// the batch afterwards.
    pub fn drive_moves(&self, batch: &mut Batch, now: Instant) {
        let Some(mesh) = self.mesh().cloned() else { return };
        self.drive_coming(batch, &mesh, now);
        self.repeat_questions(now);
        self.make_rests(&mesh, now);
        self.drive_releases();
        let member_timeout = self.registers().map(|registers| registers.member_timeout()).unwrap_or_default();
        let mut moves = self.handover.moves.lock();
        let patience = |leaving: &Leaving| if leaving.done { member_timeout } else { PATIENCE_LEAVING };
        let late = |leaving: &Leaving| now.saturating_duration_since(leaving.heard_at) >= patience(leaving);
        let ids: Vec<_> = moves.leaving.iter().filter(|(_, leaving)| late(leaving)).map(|(id, _)| *id).collect();
        let given_up: Vec<_> = ids.into_iter().filter_map(|id| moves.leaving.remove(&id)).collect();
        moves.forwarded.retain(|_, (_, at)| now.saturating_duration_since(*at) < FORWARDED);
        drop(moves);
        for leaving in given_up {
            if leaving.done {
                self.forget_filters(&leaving);
            } else {
                self.take_back(batch, &mesh, &leaving, now);
            }
        }
    }

    fn repeat_questions(&self, now: Instant) {
        let mut moves = self.handover.moves.lock();
        let mut given_up = Vec::new();
        for (client_id, coming) in &mut moves.coming {
            if matches!(coming.stage, Stage::CatchingUp { .. }) {
                coming.heard_at = now;
                continue;
            }
            let is_unreachable = coming.bounced_at.is_some_and(|at| now.saturating_duration_since(at) >= PATIENCE_UNREACHABLE);
            if is_unreachable || now.saturating_duration_since(coming.heard_at) >= PATIENCE {
                given_up.push(Arc::clone(client_id));
                continue;
            }
            if now.saturating_duration_since(coming.asked_at) < REPEAT {
                continue;
            }
            coming.asked_at = now;
            let first = coming.pages.len() as u64;
            let word = match &coming.stage {
                Stage::Session if first == 0 => Word::Freeze { client_id },
                Stage::Rest { covers, .. } if first == 0 => Word::Rest { covers: covers.clone() },
                Stage::Rest { .. } => Word::Pages { part: Part::Rest, first },
                _ => Word::Pages { part: Part::Session, first },
            };
            self.write(coming.from, coming.id, &word);
        }
        for client_id in given_up {
            let is_whole = moves.coming.get(&client_id).is_some_and(|coming| matches!(coming.stage, Stage::Rest { .. }));
            moves.over(&client_id);
            self.metrics.sessions_not_fetched.add(1);
            tracing::warn!(client = ?client_id, session_present = is_whole, "the broker that has a session does not answer");
        }
    }

    /// Frozen sessions get what was published since, once this broker has delivered as much as the new one had.
    fn make_rests(&self, mesh: &Replication, now: Instant) {
        let due: Vec<_> = {
            let moves = self.handover.moves.lock();
            let wants = moves.leaving.iter().filter(|(_, leaving)| leaving.rest.is_none() && !leaving.done);
            let due = wants.filter_map(|(id, leaving)| {
                let to = leaving.rest_to.clone().filter(|to| mesh.has_delivered(to))?;
                Some((*id, leaving.to, Arc::clone(&leaving.subscriber), leaving.covers.clone(), to))
            });
            due.collect()
        };
        for (id, broker, subscriber, from, to) in due {
            let entries = self.rest_of(mesh, &subscriber, &from, &to, now);
            let mut bytes = Vec::new();
            encode_entries(&entries, now, &mut bytes);
            if let Some(leaving) = self.handover.moves.lock().leaving.get_mut(&id) {
                leaving.rest = Some(in_pages(bytes));
            }
            self.send_pages(broker, id, Part::Rest, 0, now);
        }
    }

    /// Tells old brokers that all members know what this one wants.
    fn drive_releases(&self) {
        let Some(registers) = self.registers() else { return };
        let mut moves = self.handover.moves.lock();
        let releases = std::mem::take(&mut moves.releases);
        drop(moves);
        let (ripe, unripe): (Vec<_>, Vec<_>) = releases.into_iter().partition(|(_, _, asked)| {
            registers.own().told(*asked).is_some_and(|version| registers.is_echoed_by(|_| true, version))
        });
        ripe.into_iter().for_each(|(to, id, _)| self.write(to, id, &Word::Release));
        self.handover.moves.lock().releases.extend(unripe);
    }
}

impl Moves {
    fn is_moving(&self, client_id: &str) -> bool {
        self.coming.contains_key(client_id)
    }

    /// There is no way to a broker.
    fn bounced(&mut self, from: BrokerId, now: Instant) {
        let asked = self.coming.values_mut().filter(|coming| coming.from == from);
        asked.for_each(|coming| coming.bounced_at = coming.bounced_at.or(Some(now)));
    }

    /// Nothing of the client's session is on its way any more.
    fn over(&mut self, client_id: &str) {
        if let Some(coming) = self.coming.remove(client_id) {
            coming.wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// Whether a session is the client's: where nobody says who clients are, each is as good as another.
fn is_owner(owner: &str, access: Option<&Access>) -> bool {
    match access {
        Some(access) => Access::of_owner(owner).identity().is_same_user(access.identity()),
        None => owner.is_empty(),
    }
}

/// At least one page, so that there is a last one.
fn in_pages(bytes: Vec<u8>) -> Vec<Bytes> {
    let bytes = Bytes::from(bytes);
    let mut pages: Vec<_> = (0..bytes.len())
        .step_by(HANDOVER_PAGE_BYTES)
        .map(|start| bytes.slice(start..bytes.len().min(start + HANDOVER_PAGE_BYTES)))
        .collect();
    if pages.is_empty() {
        pages.push(bytes);
    }
    pages
}

//! The new broker's side of a move. See the [module's page](super).

use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::Entry as Slot;

use super::pages::{Pages, Took};
use super::word::{Outcome, Part, Why, Word, read_covers_before};
use super::{Line, Machine, PATIENCE, PATIENCE_HEAD, Promotion, REPEAT, Request, Turn, Verdict, Waiting};
use crate::auth::Access;
use crate::frame::Reader;
use crate::ids::{BrokerId, MessageId};
use crate::limits::{HANDOVER_PAGES_AT_ONCE, HANDOVERS_BYTES_MAX, HANDOVERS_LARGE_MAX};
use crate::pressure::Level;
use crate::replication::{Covers, Replication};
use crate::router::Router;
use crate::router::claims::Claimed;
use crate::router::deadlines::Due;
use crate::session::{MovedContent, MovedHead, RESTORED_EPOCH, Rivalry, SessionExpiry, Subscriber, SubscriptionOptions};
use crate::topic;

/// Covers in one letter.
const CUT_COVERS: usize = 1_000;
/// Letters with covers.
pub(super) const CUT_PARTS_MAX: usize = 256;
/// What the old broker has delivered and this one has not is waited for so long.
const CATCH_UP: Duration = Duration::from_secs(8);
/// From broker to broker a session is followed so often.
const HOPS_MAX: usize = 4;
/// A claim that comes to light so soon after a client came was made before it came.
const JUST_COME: Duration = Duration::from_millis(500);
/// Between two words of that.
const END_REPEAT: Duration = Duration::from_secs(1);

/// A session that comes.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) line: Line,
    stamp: u64,
    access: Option<Arc<Access>>,
    /// It comes without its client: nobody waits for it.
    is_offered: bool,
    stage: Stage,
    pub(super) waiting: Vec<Arc<Waiting>>,
    hops: usize,
    since: Instant,
    /// It has many pages, and its turn.
    is_large: bool,
    /// What is in it, bytes.
    owed: usize,
    /// Of this broker, which could not be reached, the one with its replicas was asked.
    lost: Option<BrokerId>,
}

#[derive(Debug)]
enum Stage {
    /// Who it is has been asked.
    Head(Pages),
    /// It is subscribed here; what is in it is waited for.
    Content { draft: Draft, cut: Vec<Covers>, pages: Pages },
    /// All of it is here; this broker is to deliver as much as the old one had.
    CatchingUp { draft: Draft, content: MovedContent, covers: Covers, since: Instant },
    /// It is a session of this broker, which is safe with that change.
    Installed { number: u64 },
}

/// A session in no registry.
#[derive(Debug)]
struct Draft {
    subscriber: Arc<Subscriber>,
    rivalry: Rivalry,
    was_connected: bool,
}

/// A session that came, of which the old broker has still to be told.
#[derive(Debug)]
pub(super) struct Finished {
    client_id: Arc<str>,
    stamp: u64,
    line: Line,
    since: Instant,
    /// The old broker knows that it is here.
    is_gone: bool,
    /// What others are to have taken in of this broker's register.
    echo: u64,
}

impl Coming {
    fn new(line: Line, stamp: u64, since: Instant) -> Self {
        Self {
            line,
            stamp,
            access: None,
            is_offered: false,
            stage: Stage::Head(Pages::default()),
            waiting: Vec::new(),
            hops: 0,
            since,
            is_large: false,
            owed: 0,
            lost: None,
        }
    }

    /// One that the other broker offers.
    pub(super) fn offered(from: BrokerId, stamp: u64, now: Instant) -> Self {
        Self { is_offered: true, ..Self::new(Line::new(from, rand::random(), now), stamp, now) }
    }

    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    pub(super) fn gives_way_to(&self, theirs: Claimed, own: BrokerId) -> bool {
        matches!(self.stage, Stage::Head(_)) && self.line.peer == theirs.1 && (self.stamp, own) < theirs
    }

    /// A client wants it still, or it comes without one.
    fn is_waited_for(&self) -> bool {
        self.is_offered || self.has_client()
    }

    fn has_client(&self) -> bool {
        self.waiting.iter().any(|waiting| Arc::strong_count(waiting) > 1 && !waiting.is_answered())
    }

    pub(super) fn is_offered(&self) -> bool {
        self.is_offered
    }

    pub(super) fn is_installed(&self) -> bool {
        matches!(self.stage, Stage::Installed { .. })
    }

    /// Whether this broker itself has to come further first.
    pub(super) fn waits_for_us(&self) -> bool {
        matches!(self.stage, Stage::CatchingUp { .. } | Stage::Installed { .. })
    }

    fn pages(&self) -> Option<&Pages> {
        match &self.stage {
            Stage::Head(pages) | Stage::Content { pages, .. } => Some(pages),
            Stage::CatchingUp { .. } | Stage::Installed { .. } => None,
        }
    }

    /// It is one of the few of which many pages are asked for.
    fn is_large(&self) -> bool {
        self.is_large && self.pages().is_some()
    }

    /// It is to be one of these before more is asked for.
    fn waits_for_turn(&self) -> bool {
        let has_first = |pages: &Pages| pages.are_many() && pages.next() >= HANDOVER_PAGES_AT_ONCE as u64;
        !self.is_large && self.pages().is_some_and(has_first)
    }
}

impl Machine {
    pub(super) fn begin_coming(&mut self, turn: &mut Turn<'_>, request: Request, peer: BrokerId) {
        let Request { client_id, access, waiting, stamp, since, .. } = request;
        let line = Line::new(peer, rand::random(), turn.now);
        let coming = Coming { access, waiting: vec![waiting], ..Coming::new(line, stamp, since) };
        turn.write(peer, coming.line.id, &Word::Ask { stamp, client_id: &client_id });
        self.coming.insert(client_id, coming);
    }

    fn coming_of(&mut self, (from, id): (BrokerId, u64), now: Instant) -> Option<(&Arc<str>, &mut Coming)> {
        let found = self.coming.iter_mut().find(|(_, coming)| coming.line.is(from, id));
        found.map(|(client_id, coming)| {
            coming.line.heard(now);
            (client_id, coming)
        })
    }

    /// The old broker sends a page.
    pub(super) fn paged(&mut self, turn: &mut Turn<'_>, line: (BrokerId, u64), part: Part, (page, of): (u64, u64), bytes: &[u8]) {
        let is_full = turn.router.pressure.level() == Level::Full;
        let large = self.coming.values().filter(|coming| coming.is_large()).count();
        let Some((client_id, coming)) = self.coming_of(line, turn.now) else { return };
        let client_id = Arc::clone(client_id);
        let pages = match (&mut coming.stage, part) {
            (Stage::Head(pages), Part::Head) | (Stage::Content { pages, .. }, Part::Content) => pages,
            _ => return,
        };
        if is_full {
            return self.stop_coming(turn, &client_id, Verdict::Refused);
        }
        match pages.take(page, of, bytes) {
            Took::Nothing => {}
            Took::Page => coming.line.asked_at = turn.now,
            Took::LastAsked(first) => {
                coming.line.asked_at = turn.now;
                coming.is_large |= large < HANDOVERS_LARGE_MAX;
                if coming.is_large {
                    turn.write(line.0, line.1, &Word::Fetch { part, first });
                }
            }
            Took::All(bytes) => match part {
                Part::Head => self.head_came(turn, &client_id, &bytes),
                Part::Content => self.content_came(turn, &client_id, &bytes),
            },
        }
    }

    fn head_came(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, bytes: &[u8]) {
        let read = || {
            let mut reader = Reader::new(bytes);
            let (left_ms, was_connected) = (reader.varint("rivalry").ok()?, reader.byte("connection").ok()? == 1);
            let owed = usize::try_from(reader.varint("bytes").ok()?).ok()?;
            let head = MovedHead::decode(reader.rest()).ok()?;
            let is_it = head.client_id == *client_id && head.expiry != SessionExpiry::WithConnection;
            is_it.then_some((left_ms, was_connected, owed, head))
        };
        let Some((left_ms, was_connected, owed, head)) = read() else {
            tracing::error!(client = ?client_id, "what another broker says of a session is not understood");
            return self.stop_coming(turn, client_id, Verdict::Refused);
        };
        let Some(coming) = self.coming.get(client_id) else { return };
        let access = match coming.is_offered {
            true => turn.router.judge_owner(client_id, &head.owner),
            false => Ok(coming.access.clone()),
        };
        let Ok(access) = access else { return self.stop_coming(turn, client_id, Verdict::Refused) };
        if !is_owner(&head.owner, access.as_deref()) {
            // Another user's, as here: the client's begins anew, and its claim ends the other.
            return self.stop_coming(turn, client_id, Verdict::Proceed);
        }
        let others: usize = self.coming.values().map(|coming| coming.owed).sum();
        if let Some(coming) = self.coming.get_mut(client_id) {
            if others > 0 && others + owed > HANDOVERS_BYTES_MAX {
                // It is asked for anew in a moment.
                coming.stage = Stage::Head(Pages::default());
                return;
            }
            coming.owed = owed;
        }
        let (router, now) = (turn.router, turn.now);
        let number = router.next_subscriber_id();
        let subscriber = Arc::new(Subscriber::new(number, Arc::clone(client_id), router.limits.outbound, None));
        subscriber.set_access(access);
        subscriber.come(&head);
        // Of share groups it is no member before it is a session of this broker: a message for one goes to one member only.
        let covers = turn.quietly(|router, mesh| {
            let filters = || head.subscriptions.iter().filter(|(text, _)| !topic::is_shared(text));
            filters().for_each(|(text, _)| router.tell_filter_of(false, text, true));
            router.insert_filters(&subscriber, filters());
            mesh.delivered()
        });
        let rivalry = Rivalry::elsewhere(left_ms, router.millis(now));
        let covers: Vec<_> = covers.into_iter().collect();
        let mut cut: Vec<Covers> = covers.chunks(CUT_COVERS).map(|part| part.iter().copied().collect()).collect();
        if cut.is_empty() {
            cut.push(Covers::new());
        }
        let draft = Draft { subscriber, rivalry, was_connected };
        let Some(coming) = self.coming.get_mut(client_id) else { return };
        if cut.len() > CUT_PARTS_MAX {
            coming.stage = Stage::Content { draft, cut: Vec::new(), pages: Pages::default() };
            return self.stop_coming(turn, client_id, Verdict::Refused);
        }
        coming.line.asked_at = now;
        coming.ask(turn, client_id, Some(&cut));
        coming.stage = Stage::Content { draft, cut, pages: Pages::default() };
    }

    fn content_came(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, bytes: &[u8]) {
        let read = || {
            let mut reader = Reader::new(bytes);
            let covers = read_covers_before(&mut reader).ok()?;
            Some((covers, MovedContent::decode(reader.rest(), turn.now).ok()?))
        };
        let Some((covers, content)) = read() else {
            tracing::error!(client = ?client_id, "what is in another broker's session is not understood");
            return self.stop_coming(turn, client_id, Verdict::Refused);
        };
        let Some(coming) = self.coming.get_mut(client_id) else { return };
        let since = turn.now;
        coming.stage = match std::mem::replace(&mut coming.stage, Stage::Head(Pages::default())) {
            Stage::Content { draft, .. } => Stage::CatchingUp { draft, content, covers, since },
            other => other,
        };
        self.install(turn, client_id);
    }

    /// Makes a session of this broker of it, once this broker has delivered as much as the old one had.
    fn install(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>) {
        let (router, now) = (turn.router, turn.now);
        let Some(coming) = self.coming.get_mut(client_id) else { return };
        let Stage::CatchingUp { covers, .. } = &coming.stage else { return };
        // A look that costs nobody anything; it may say so a moment too early.
        if !turn.mesh.has_delivered(covers) || router.journal.as_ref().is_some_and(|journal| journal.is_behind()) {
            return;
        }
        let stamp = coming.stamp;
        // What comes without its client gives way to whoever had it later than the old broker.
        let (own, is_offered) = (turn.own, coming.is_offered);
        if router.newest_claim(client_id, now).is_some_and(|newest| newest > (stamp, own) || (is_offered && newest.0 >= stamp)) {
            return self.stop_coming(turn, client_id, Verdict::Refused);
        }
        let Stage::CatchingUp { draft, content, covers, since } =
            std::mem::replace(&mut coming.stage, Stage::Head(Pages::default()))
        else {
            return;
        };
        let Draft { subscriber, rivalry, was_connected } = draft;
        // In one moment: nothing that the old one gave is half delivered here, nor half on the way to the disk.
        let settle = |router: &Router, mesh: &Replication| {
            if !mesh.has_delivered(&covers) {
                return Err((Some(content), covers));
            }
            let Slot::Vacant(vacant) = router.registry.entry(Arc::clone(client_id)) else { return Err((None, covers)) };
            let is_in_it = |id: &MessageId| covers.get(&id.origin_lane).is_some_and(|cover| id.sequence <= cover.id);
            let number = subscriber.settle(content, is_in_it, stamp, router.journal.as_ref(), now);
            let mut state = subscriber.lock();
            (state.rivalry, state.taken_elsewhere) = (rivalry, was_connected);
            let expiry = state.expiry;
            let subscriptions = state.subscriptions.iter().filter(|(text, _)| topic::is_shared(text));
            let shared: Vec<_> = subscriptions.map(|(text, options)| (text.clone(), options.clone())).collect();
            shared.iter().for_each(|(text, _)| router.tell_filter(&mut state, text, true));
            drop(state);
            if !shared.is_empty() {
                router.insert_filters(&subscriber, shared.iter());
            }
            vacant.insert(Arc::clone(&subscriber));
            Ok((number, expiry))
        };
        let (number, expiry) = match turn.quietly(settle) {
            Ok(settled) => settled,
            Err((content, covers)) => {
                let draft = Draft { subscriber, rivalry, was_connected };
                let has_begun_anew = content.is_none();
                coming.stage = Stage::CatchingUp { draft, content: content.unwrap_or_default(), covers, since };
                if has_begun_anew {
                    self.stop_coming(turn, client_id, Verdict::Proceed);
                }
                return;
            }
        };
        coming.stage = Stage::Installed { number };
        if let Some(journal) = &router.journal {
            journal.kick();
        }
        router.metrics.sessions.change(1);
        router.subscriptions_changed(0);
        if let SessionExpiry::After(rest) = expiry {
            router.add_deadline(now + rest, Due::Expiry, &subscriber, RESTORED_EPOCH);
        }
        self.finish(turn, client_id);
    }

    /// Once it is safe the client is served, and everybody is told.
    fn finish(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>) {
        let router = turn.router;
        let Some(Coming { stage: Stage::Installed { number }, .. }) = self.coming.get(client_id) else { return };
        if router.journal.as_ref().is_some_and(|journal| journal.committed() < *number) {
            return;
        }
        let Some(Coming { line, stamp, is_offered, waiting, .. }) = self.coming.remove(client_id) else { return };
        router.metrics.sessions_fetched.add(1);
        self.is_here(turn, client_id, stamp, line);
        if is_offered && let Some(subscriber) = router.session(client_id) {
            router.judge_newcomer(turn.batch, &subscriber, turn.now);
        }
        waiting.into_iter().for_each(|waiting| waiting.say(Verdict::Proceed));
    }

    /// A session is here, safely: everybody is told, first who had it.
    pub(super) fn is_here(&mut self, turn: &Turn<'_>, client_id: &Arc<str>, stamp: u64, mut line: Line) {
        let router = turn.router;
        router.handover.forwarded.remove(client_id);
        // Unless it has ended meanwhile, or has been claimed anew.
        if let Some(subscriber) = router.registry.get(client_id).filter(|subscriber| subscriber.lock().claimed == stamp) {
            router.claim(&subscriber, stamp);
        }
        turn.write(line.peer, line.id, &Word::Done { stamp, client_id });
        line.asked_at = turn.now;
        let echo = router.registers().map(|registers| registers.own().ask_echo()).unwrap_or_default();
        let client_id = Arc::clone(client_id);
        self.finished.insert(line.id, Finished { client_id, stamp, line, since: turn.now, is_gone: false, echo });
    }

    /// The move is given up, and the old broker told so.
    pub(super) fn stop_coming(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, verdict: Verdict) {
        let Some(mut coming) = self.coming.remove(client_id) else { return };
        turn.write(coming.line.peer, coming.line.id, &Word::Cancel);
        coming.end_draft(turn);
        let waiting = coming.waiting;
        for waiting in waiting {
            match verdict {
                Verdict::Refused => self.refuse(turn, &waiting),
                Verdict::Proceed => {
                    let newest = turn.router.newest_claim(client_id, turn.now);
                    turn.router.handover.passed.insert(Arc::clone(client_id), (newest, turn.now));
                    waiting.say(verdict);
                }
            }
        }
    }

    /// Another claim is later than that of the client who waits here: it was known to us too late, by clocks that differ a little, if it is made while the client has just come.
    /// Then it claims anew. Whether it did.
    pub(super) fn claim_later(&mut self, turn: &Turn<'_>, client_id: &Arc<str>, stamp: u64) -> bool {
        let Some(coming) = self.coming.get_mut(client_id) else { return false };
        let is_just_come = turn.now.saturating_duration_since(coming.since) < JUST_COME;
        if !is_just_come
            || !coming.has_client()
            || !matches!(coming.stage, Stage::Head(_))
            || !turn.router.is_believed((stamp, coming.line.peer), turn.now)
        {
            return false;
        }
        coming.stamp = turn.router.claim_stamp(client_id, stamp, turn.now);
        true
    }

    /// The old broker does not do what it was asked.
    pub(super) fn denied(&mut self, turn: &mut Turn<'_>, line: (BrokerId, u64), why: Why) {
        let own = turn.own;
        let Some((client_id, coming)) = self.coming_of(line, turn.now) else { return self.declined(line, why, turn.now) };
        let client_id = Arc::clone(client_id);
        let (is_head, may_follow, lost) = (matches!(coming.stage, Stage::Head(_)), coming.hops < HOPS_MAX, coming.lost);
        // All of it is here: no more is wanted of the old broker.
        if why == Why::Wait || coming.waits_for_us() {
            return;
        }
        // The broker that has the session is back, and has taken its replica back, or is about to.
        let returned = coming.lost.filter(|lost| is_head && *lost != line.0 && turn.post.lost_since(*lost).is_none());
        // By what the other claims it is there, but this broker knows better.
        let went_to = turn.router.handover.went_to(&client_id).filter(|to| is_head && may_follow && ![own, line.0].contains(to));
        // There it was asked for in vain: whoever has no replica knows no better place.
        let went_to = went_to.filter(|to| lost != Some(*to));
        match why {
            Why::MovedTo(other) if is_head && lost == Some(other) && returned.is_none() => {
                self.begin_anew(turn, &client_id);
            }
            // Who can be reached from there, but not from here, has it: the client should try elsewhere.
            Why::ReplicaOf(other) if lost == Some(other) && returned.is_none() => {
                self.stop_coming(turn, &client_id, Verdict::Refused);
            }
            Why::MovedTo(other) | Why::ReplicaOf(other) if is_head && other != own && may_follow => {
                coming.follow(turn, &client_id, other);
            }
            Why::Newer(stamp) if self.claim_later(turn, &client_id, stamp) => {
                let Some(coming) = self.coming.get(&client_id) else { return };
                turn.write(line.0, line.1, &Word::Ask { stamp: coming.stamp, client_id: &client_id });
            }
            Why::NotHere if returned.or(went_to).is_some() => {
                let (Some(coming), Some(other)) = (self.coming.get_mut(&client_id), returned.or(went_to)) else { return };
                coming.follow(turn, &client_id, other);
            }
            Why::NotHere if is_head && lost.is_some() => self.begin_anew(turn, &client_id),
            Why::NotHere if is_head => self.stop_coming(turn, &client_id, Verdict::Proceed),
            _ => self.stop_coming(turn, &client_id, Verdict::Refused),
        }
    }

    /// The old broker asks what became of what it gave.
    pub(super) fn status(&mut self, turn: &mut Turn<'_>, (from, id): (BrokerId, u64), stamp: u64, client_id: &str) {
        let client_id: Arc<str> = Arc::from(client_id);
        let router = turn.router;
        let coming = self.coming.get_mut(&client_id).filter(|coming| coming.line.is(from, id));
        let outcome = if let Some(coming) = coming {
            coming.line.heard(turn.now);
            Outcome::Wait
        } else if self.finished.contains_key(&id) {
            Outcome::Have
        } else {
            // This broker was restarted, or the session has gone on already.
            let claimed = router.registry.get(&client_id).map(|subscriber| (subscriber.lock().claimed, turn.own));
            let newest = claimed.max(router.newest_claim(&client_id, turn.now).filter(|(_, by)| *by != from));
            match newest {
                Some(newest) if newest == (stamp, turn.own) => Outcome::Have,
                Some((newest, _)) if newest > stamp => Outcome::Newer,
                _ => Outcome::HaveNot,
            }
        };
        turn.write(from, id, &Word::Outcome(outcome));
    }

    /// No client is let in any more: what has not come yet stays where it is.
    fn stop_all_coming(&mut self, turn: &mut Turn<'_>) {
        let coming = self.coming.iter().filter(|(_, coming)| !coming.waits_for_us());
        for client_id in coming.map(|(client_id, _)| Arc::clone(client_id)).collect::<Vec<_>>() {
            self.stop_coming(turn, &client_id, Verdict::Refused);
        }
    }

    pub(super) fn drive_coming(&mut self, turn: &mut Turn<'_>) {
        if turn.router.refuses_clients() {
            self.stop_all_coming(turn);
        }
        let waits: Vec<_> =
            self.coming.iter().filter(|(_, it)| it.waits_for_us()).map(|(client_id, _)| Arc::clone(client_id)).collect();
        for client_id in waits {
            self.install(turn, &client_id);
            self.finish(turn, &client_id);
        }
        let (mut given_up, mut lost) = (Vec::new(), Vec::new());
        let mut large = self.coming.values().filter(|coming| coming.is_large()).count();
        for (client_id, coming) in &mut self.coming {
            match &coming.stage {
                Stage::Installed { .. } => continue,
                Stage::CatchingUp { since, .. } => {
                    if turn.now.saturating_duration_since(*since) >= CATCH_UP {
                        given_up.push((Arc::clone(client_id), Verdict::Refused));
                    }
                    continue;
                }
                Stage::Head(_) => {
                    // Nothing has been taken of it yet.
                    let is_late = turn.now.saturating_duration_since(coming.since) >= PATIENCE_HEAD;
                    if is_late || !coming.is_waited_for() {
                        given_up.push((Arc::clone(client_id), Verdict::Refused));
                        continue;
                    }
                }
                Stage::Content { .. } => {}
            }
            if coming.line.is_unreachable(turn) {
                // Only for its client a session is begun anew, or goes on from a replica.
                if coming.waiting.is_empty() {
                    given_up.push((Arc::clone(client_id), Verdict::Refused));
                } else {
                    lost.push(Arc::clone(client_id));
                }
            } else if coming.line.is_silent(PATIENCE, turn.now) {
                given_up.push((Arc::clone(client_id), Verdict::Refused));
            } else if coming.line.asks_again(REPEAT, turn.now) {
                if coming.waits_for_turn() && large < HANDOVERS_LARGE_MAX {
                    (coming.is_large, large) = (true, large + 1);
                }
                if coming.waits_for_turn() { coming.line.heard(turn.now) } else { coming.ask(turn, client_id, None) }
            }
        }
        lost.into_iter().for_each(|client_id| given_up.extend(self.ask_replica(turn, client_id)));
        for (client_id, verdict) in given_up {
            if verdict == Verdict::Proceed {
                self.begin_anew(turn, &client_id);
            } else {
                self.stop_coming(turn, &client_id, verdict);
            }
        }
    }

    /// The broker that has the session cannot be reached, and there is no replica.
    fn begin_anew(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>) {
        turn.router.metrics.sessions_unreachable.add(1);
        tracing::warn!(client = ?client_id, "the broker that has a session cannot be reached: it begins anew");
        self.stop_coming(turn, client_id, Verdict::Proceed);
    }

    /// The broker that has the session cannot be reached: perhaps there is a replica. If not, the session begins anew.
    fn ask_replica(&mut self, turn: &mut Turn<'_>, client_id: Arc<str>) -> Option<(Arc<str>, Verdict)> {
        let coming = self.coming.get_mut(&client_id)?;
        let peer = coming.line.peer;
        match coming.lost {
            // It was back for a moment, and is lost once more.
            Some(lost) if lost == peer => return Some((client_id, Verdict::Refused)),
            Some(_) => return Some((client_id, Verdict::Proceed)),
            None => {}
        }
        let Some(replica) = turn.router.claims.replica_of(peer) else { return Some((client_id, Verdict::Proceed)) };
        coming.lost = Some(peer);
        if replica != turn.own {
            coming.end_draft(turn);
            coming.follow(turn, &client_id, replica);
            return None;
        }
        match self.replicas.promote(turn, &client_id, coming.stamp, true) {
            Promotion::Done => {}
            // It comes once more, with a later claim.
            Promotion::Newer(_) => return Some((client_id, Verdict::Refused)),
            Promotion::Wait | Promotion::Reached(_) => return Some((client_id, Verdict::Refused)),
            Promotion::NotHere => return Some((client_id, Verdict::Proceed)),
        }
        let mut coming = self.coming.remove(&client_id)?;
        coming.end_draft(turn);
        self.replicas.await_promoted(&client_id, coming.waiting);
        None
    }

    /// The old broker's session is over.
    pub(super) fn gone(&mut self, turn: &Turn<'_>, (from, id): (BrokerId, u64)) {
        if let Some(finished) = self.finished.get_mut(&id).filter(|finished| finished.line.peer == from) {
            finished.is_gone = true;
            finished.line.heard(turn.now);
        }
    }

    /// And all that was left of it.
    pub(super) fn ended(&mut self, from: BrokerId, id: u64) {
        if self.finished.get(&id).is_some_and(|finished| finished.line.peer == from) {
            self.finished.remove(&id);
        }
    }

    /// Tells old brokers that sessions are here, and then that all members know what these want.
    pub(super) fn drive_ends(&mut self, turn: &mut Turn<'_>) {
        let Some(registers) = turn.router.registers() else { return };
        // Of many moves only few are looked up.
        let (mut known, mut unknown) = (0, u64::MAX);
        let mut is_known = |asked| {
            let Some(version) = registers.own().told(asked) else { return false };
            if version > known && version < unknown {
                let bound = if registers.is_echoed_by(None, version) { &mut known } else { &mut unknown };
                *bound = version;
            }
            version <= known
        };
        let now = turn.now;
        // The old broker may be down for as long as it is a member: then it is told when it is back.
        let timeout = registers.member_timeout();
        self.finished.retain(|_, finished| now.saturating_duration_since(finished.since) < timeout);
        let mut reached = None;
        for finished in self.finished.values_mut() {
            let Finished { client_id, stamp, line, is_gone, echo, .. } = finished;
            if !line.asks_again(if *is_gone { REPEAT } else { END_REPEAT }, now)
                || !reached.get_or_insert_with(|| turn.post.reached()).contains(&line.peer)
            {
                continue;
            }
            if !*is_gone {
                turn.write(line.peer, line.id, &Word::Done { stamp: *stamp, client_id });
            } else if is_known(*echo) {
                turn.write(line.peer, line.id, &Word::Release);
            }
        }
    }
}

impl Coming {
    /// What there is of it here is no more.
    fn end_draft(&mut self, turn: &mut Turn<'_>) {
        let stage = std::mem::replace(&mut self.stage, Stage::Head(Pages::default()));
        if let Stage::Content { draft, .. } | Stage::CatchingUp { draft, .. } = stage {
            let mut state = draft.subscriber.lock();
            state.subscriptions.retain(|text, _| !topic::is_shared(text));
            turn.router.end(&draft.subscriber, state, turn.batch.writes());
        }
    }

    /// It is at another broker: that is asked.
    fn follow(&mut self, turn: &Turn<'_>, client_id: &str, other: BrokerId) {
        self.hops += 1;
        self.line = Line::new(other, self.line.id, turn.now);
        self.stage = Stage::Head(Pages::default());
        turn.write(other, self.line.id, &Word::Ask { stamp: self.stamp, client_id });
    }

    /// Asks for what is missing; for what is in the session by the `cut`, which is not the stage's yet.
    fn ask(&self, turn: &Turn<'_>, client_id: &str, cut: Option<&[Covers]>) {
        let (peer, id) = (self.line.peer, self.line.id);
        let cut = cut.or(match &self.stage {
            Stage::Content { cut, pages, .. } if pages.next() == 0 => Some(cut),
            _ => None,
        });
        if let Some(cut) = cut {
            let parts = cut.len() as u64;
            for (part, covers) in (0..).zip(cut) {
                turn.write(peer, id, &Word::Cut { part, parts, covers: covers.clone() });
            }
            return;
        }
        match &self.stage {
            Stage::Head(pages) if pages.next() == 0 => {
                turn.write(peer, id, &Word::Ask { stamp: self.stamp, client_id });
            }
            Stage::Head(pages) => turn.write(peer, id, &Word::Fetch { part: Part::Head, first: pages.next() }),
            Stage::Content { pages, .. } => turn.write(peer, id, &Word::Fetch { part: Part::Content, first: pages.next() }),
            Stage::CatchingUp { .. } | Stage::Installed { .. } => {}
        }
    }
}

impl Router {
    /// Puts a session's subscriptions into the trie.
    pub(in crate::router) fn insert_filters<'a>(
        &self,
        subscriber: &Arc<Subscriber>,
        filters: impl Iterator<Item = &'a (Box<str>, SubscriptionOptions)>,
    ) {
        let mut subscriptions = self.subscriptions.write();
        let (mut added, mut shared) = (0, 0);
        for (text, options) in filters {
            // They were checked when they were subscribed; another version of this program may be stricter.
            let Ok(filter) = topic::parse_filter(text) else { continue };
            subscriptions.insert(filter.levels, filter.share, subscriber, options.clone());
            added += 1;
            shared += i64::from(filter.share.is_some());
        }
        drop(subscriptions);
        self.metrics.shared_subscriptions.change(shared);
        self.subscriptions_changed(added);
    }
}

/// Whether a session is the client's: where nobody says who clients are, each is as good as another.
fn is_owner(owner: &str, access: Option<&Access>) -> bool {
    match access {
        Some(access) => Access::of_owner(owner).identity().is_same_user(access.identity()),
        None => owner.is_empty(),
    }
}

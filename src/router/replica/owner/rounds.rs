//! Sessions that are copied together, and what is put of them as far as there is room. See the [module's page](super::super).
//!
//! A round: heads, the other broker's cut, copies, `Copied`. None of it holds up what is told of others. What is told of a session from its copy on goes behind that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{ENTRY_BYTES, LATER, Peer, SETTLED, Stage};
use crate::limits::{
    HANDOVER_BYTES_MAX, REPLICA_LETTER_BYTES, REPLICA_ROUND_BYTES_MAX, REPLICA_ROUND_HEADS_BYTES_MAX, REPLICA_ROUND_MESSAGES_MAX,
    REPLICA_ROUND_SESSIONS_MAX,
};
use crate::replication::{Covers, Replication};
use crate::router::Router;
use crate::router::handover::{Turn, put_covers};
use crate::router::replica::outgoing::{PART_BYTES, SMALL_BYTES};
use crate::router::replica::word::Item;
use crate::router::replica::{encode_copy, encode_head, left_of};
use crate::session::{Copy, Journal, SessionExpiry, State, Subscriber, SubscriberId};

/// Part of a round that may be large.
#[derive(Debug)]
pub(super) enum Piece {
    Head(SubscriberId, Vec<u8>),
    Round(u64),
    Copy(SubscriberId, Copied),
    /// Of a head, or of a copy, what is left to be put.
    Rest {
        session: SubscriberId,
        of_copy: Option<Standing>,
        bytes: Vec<u8>,
        at: usize,
    },
}

/// Sessions that are copied together.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u64,
    /// When it came further.
    pub(super) progress_at: Instant,
    /// From where on the other broker takes in itself what is published, as far as it has said.
    pub(super) cut: Vec<Option<Covers>>,
    /// What was in each, until the journal has come as far.
    pub(super) copies: HashMap<SubscriberId, Copied, ahash::RandomState>,
    /// What this broker had delivered by then.
    covers: Option<Covers>,
    /// All of it is put.
    pub(super) is_put: bool,
}

/// A session, in one moment.
#[derive(Debug)]
pub(super) struct Copied {
    copy: Copy,
    standing: Standing,
}

/// What may have changed of a session's head since that was told, when the round began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    claim: u64,
    expiry: SessionExpiry,
    left: Option<Duration>,
}

impl Copied {
    fn of(state: &State, now: Instant) -> Self {
        let standing = Standing { claim: state.claimed, expiry: state.expiry, left: left_of(state, now) };
        Self { copy: Copy::of(state), standing }
    }
}

impl Piece {
    pub(super) fn session(&self) -> Option<SubscriberId> {
        match self {
            Self::Head(session, _) | Self::Copy(session, _) | Self::Rest { session, .. } => Some(*session),
            Self::Round(_) => None,
        }
    }

    /// Waits for its turn, bytes, or less.
    fn bytes(&self) -> usize {
        match self {
            Self::Head(_, bytes) => bytes.len(),
            Self::Rest { bytes, at, .. } => bytes.len() - at,
            // Its messages are shared with the session.
            Self::Round(_) | Self::Copy(..) => 0,
        }
    }
}

impl Peer {
    /// The round comes no further: its sessions are copied later. What others wait for goes on.
    pub(super) fn fail_round(&mut self, turn: &Turn<'_>) {
        let Some(round) = self.round.take() else { return };
        let is_in_it = |stage: Stage| stage == Stage::Begun || stage == Stage::Copied(round.number);
        let is_failed = |id: &&SubscriberId| self.sessions.get(*id).is_some_and(|followed| is_in_it(followed.stage));
        let failed: Vec<SubscriberId> = self.unguarded.iter().filter(is_failed).copied().collect();
        failed.into_iter().for_each(|id| self.put_aside(turn, id));
        self.copies.clear();
        self.out.words().put_all(&mut self.dealt);
    }

    /// What is not put yet, bytes.
    pub(super) fn waiting_bytes(&self) -> usize {
        let behind = |piece: &Piece| {
            let followed = piece.session().and_then(|session| self.sessions.get(&session));
            followed.and_then(|followed| followed.behind.as_ref()).map_or(0, |behind| behind.bytes())
        };
        self.dealt.bytes() + self.copies.iter().map(|piece| piece.bytes() + behind(piece)).sum::<usize>()
    }

    /// The journal has come to where the session was copied.
    pub(super) fn copy(&mut self, id: SubscriberId, number: u64) {
        let Some(round) = self.round.as_mut().filter(|round| round.number == number) else { return };
        let (Some(copied), Some(followed)) = (round.copies.remove(&id), self.sessions.get_mut(&id)) else { return };
        (followed.stage, followed.behind) = (Stage::Copied(number), Some(Box::default()));
        self.copies.push_back(Piece::Copy(id, copied));
    }

    /// Puts what there is room for of the round's heads and copies, and when that was all of it, says so.
    pub(super) fn put_copies(&mut self, turn: &Turn<'_>) {
        let (mut letter, mut is_further) = (Vec::new(), false);
        while self.out.may_copy()
            && let Some(piece) = self.copies.pop_front()
        {
            is_further = true;
            let (session, of_copy, bytes, at) = match piece {
                Piece::Round(round) => {
                    Item::Round { round }.encode(&mut letter);
                    continue;
                }
                Piece::Head(session, bytes) => (session, None, bytes, 0),
                Piece::Copy(session, Copied { copy, standing }) => {
                    let bytes = encode_copy(&copy, turn.now);
                    if bytes.len() > HANDOVER_BYTES_MAX {
                        self.put_aside(turn, session);
                        continue;
                    }
                    (session, Some(standing), bytes, 0)
                }
                Piece::Rest { session, of_copy, bytes, at } => (session, of_copy, bytes, at),
            };
            let rest = bytes.get(at..).unwrap_or_default();
            if letter.len() + rest.len().min(PART_BYTES) + SMALL_BYTES > REPLICA_LETTER_BYTES {
                self.out.put_copy(std::mem::take(&mut letter));
            }
            let id = session.0;
            if let Some((part, _)) = rest.split_at_checked(PART_BYTES) {
                Item::CopyPart { session: id, bytes: part }.encode(&mut letter);
                self.copies.push_front(Piece::Rest { session, of_copy, bytes, at: at + PART_BYTES });
                self.out.put_copy(std::mem::take(&mut letter));
                continue;
            }
            let Some(Standing { claim, expiry, left }) = of_copy else {
                Item::Head { session: id, bytes: rest }.encode(&mut letter);
                continue;
            };
            Item::Copy { session: id, bytes: rest }.encode(&mut letter);
            Item::Session { session: id, claim, expiry, left }.encode(&mut letter);
            // From here on what is told of it is told at once.
            if let Some(mut behind) = self.sessions.get_mut(&session).and_then(|followed| followed.behind.take()) {
                self.out.put_copy(std::mem::take(&mut letter));
                self.out.put_behind(&mut behind);
            }
        }
        self.out.put_copy(letter);
        let Some(round) = self.round.as_mut() else { return };
        if is_further {
            round.progress_at = turn.now;
        }
        if !self.copies.is_empty() {
            return;
        }
        self.out.words().put_all(&mut self.dealt);
        if let Some(covers) = round.covers.as_ref().filter(|_| round.copies.is_empty() && !round.is_put) {
            let (mut bytes, number) = (Vec::new(), round.number);
            put_covers(&mut bytes, covers);
            round.is_put = true;
            self.out.words().put_long(&bytes, |covers| Item::Copied { round: number, covers });
        }
    }

    pub(super) fn drive_round(&mut self, turn: &mut Turn<'_>, journal: Option<&Journal>, rounds: &mut u64) {
        let Some(round) = &self.round else {
            // Of many sessions.
            if turn.since(self.looked_at) >= SETTLED {
                self.looked_at = turn.now;
                self.begin_round(turn, rounds);
                turn.router.metrics.sessions_unreplicated.set(self.without() as i64);
            }
            return;
        };
        let number = round.number;
        let has_cut = !round.cut.is_empty() && round.cut.iter().all(Option::is_some);
        if round.covers.is_some() || !has_cut || !round.cut.iter().flatten().all(|covers| turn.mesh.has_delivered(covers)) {
            return;
        }
        let unguarded = self.unguarded.iter().filter_map(|id| self.sessions.get(id));
        let begun = unguarded.filter(|followed| followed.stage == Stage::Begun);
        let begun: Vec<Arc<Subscriber>> = begun.map(|followed| Arc::clone(&followed.subscriber)).collect();
        let now = turn.now;
        let look = |_: &Router, mesh: &Replication| {
            let copy_of = |subscriber: &Arc<Subscriber>| {
                let state = subscriber.lock();
                // Under the session's lock: whatever is said of it later comes behind.
                (!state.ended).then(|| {
                    state.copied(number);
                    (subscriber.id, Copied::of(&state, now))
                })
            };
            (begun.iter().filter_map(copy_of).collect(), mesh.delivered())
        };
        let (copies, covers) = turn.quietly(look);
        journal.into_iter().for_each(Journal::kick);
        if let Some(round) = &mut self.round {
            (round.copies, round.covers, round.progress_at) = (copies, Some(covers), turn.now);
        }
    }

    fn begin_round(&mut self, turn: &Turn<'_>, rounds: &mut u64) {
        let (mut bytes, mut messages, mut heads_bytes, mut count) = (0, 0, 0, 0);
        for id in &self.unguarded {
            if count == REPLICA_ROUND_SESSIONS_MAX {
                break;
            }
            let Some(followed) = self.sessions.get_mut(id) else { continue };
            if followed.stage != Stage::Waiting || followed.not_before > turn.now {
                continue;
            }
            let subscriber = &followed.subscriber;
            let is_claimed = Router::is_claimed(subscriber.access().as_deref());
            let mut state = subscriber.lock();
            let (owed, owed_bytes) = state.outbound.owed();
            let is_too_much = bytes + owed_bytes > REPLICA_ROUND_BYTES_MAX
                || messages + owed > REPLICA_ROUND_MESSAGES_MAX
                || heads_bytes + state.subscriptions_bytes > REPLICA_ROUND_HEADS_BYTES_MAX;
            // One that is larger has a round for itself.
            if count > 0 && is_too_much {
                continue;
            }
            let is_too_large = owed_bytes + owed * ENTRY_BYTES > HANDOVER_BYTES_MAX;
            if is_too_large || !is_claimed || !subscriber.follow(&mut state, true) {
                followed.not_before = turn.now + LATER;
                continue;
            }
            let head = encode_head(subscriber, &state, left_of(&state, turn.now));
            heads_bytes += state.subscriptions_bytes;
            drop(state);
            (bytes, messages, count) = (bytes + owed_bytes, messages + owed, count + 1);
            followed.stage = Stage::Begun;
            self.copies.push_back(Piece::Head(subscriber.id, head));
        }
        if count == 0 {
            return;
        }
        // From here on it is known whence the messages are.
        turn.router.subscriptions_changed(0);
        *rounds += 1;
        let (number, progress_at) = (*rounds, turn.now);
        self.copies.push_back(Piece::Round(number));
        let (cut, copies) = (Vec::new(), HashMap::default());
        self.round = Some(Round { number, progress_at, cut, copies, covers: None, is_put: false });
    }
}

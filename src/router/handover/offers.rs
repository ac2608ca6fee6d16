//! Sessions whose clients are away leave a broker that is to be empty: it *offers* them to others, in turn. Who takes one asks for it as if its client had come there, and
//! all goes as in any move; who does not, says so, and it is offered to the next. Who says nothing, as an older version does, or has no room is offered nothing for a while.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::coming::Coming;
use super::word::{Why, Word};
use super::{LOOK_INTERVAL_IDLE, Machine, Turn};
use crate::ids::BrokerId;
use crate::limits::{HANDOVERS_MAX, OFFERS_MAX, SESSIONS_MAX};
use crate::pressure::Level;
use crate::router::Passing;
use crate::router::drain::Away;

/// Who has not asked for what it was offered within this time does not take it.
const OFFERED: Duration = Duration::from_secs(2);
/// Then it is offered nothing for so long; and for so long who has no room.
const PAUSE_SILENT: Duration = Duration::from_secs(5);
const PAUSE_FULL: Duration = Duration::from_secs(1);
/// So many may come without their clients at once: those that clients wait for have the rest.
const OFFERED_MAX: usize = HANDOVERS_MAX / 4;

/// What is offered.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// They wait for their turn.
    queue: VecDeque<Away>,
    /// They are not answered yet.
    open: HashMap<Arc<str>, Open, ahash::RandomState>,
    /// To whom nothing is offered until then.
    paused: HashMap<BrokerId, Instant, ahash::RandomState>,
    /// When there was looked for more.
    looked_at: Option<Instant>,
    /// So often.
    scans: usize,
    /// So many were made since then, and scans before.
    made: usize,
}

/// An offer that is not answered.
#[derive(Debug)]
struct Open {
    to: BrokerId,
    id: u64,
    since: Instant,
    /// When the session ends, unless its client comes.
    expires_at: Option<Instant>,
}

impl Offers {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.open.is_empty()
    }

    /// What is left of the time of a session that was offered.
    pub(super) fn time_left(&self, client_id: &str, now: Instant) -> Option<Duration> {
        let expires_at = self.open.get(client_id)?.expires_at?;
        Some(expires_at.saturating_duration_since(now))
    }
}

impl Machine {
    /// Offers sessions to others, if this broker is to have none.
    pub(super) fn drive_offers(&mut self, turn: &mut Turn<'_>) {
        if !turn.router.gives_sessions_away() {
            if self.offers.looked_at.is_some() {
                self.offers = Offers::default();
            }
            return;
        }
        let mut others = turn.router.takers();
        let (leaving, offers, router, now) = (&self.leaving, &mut self.offers, turn.router, turn.now);
        let Offers { open, paused, .. } = offers;
        open.retain(|client_id, open| {
            // Who leaves has been asked for; who is gone has left, or was given up.
            let is_open = !leaving.contains_key(client_id) && router.registry.contains_key(client_id);
            let is_silent = now.saturating_duration_since(open.since) >= OFFERED;
            if is_open && is_silent {
                paused.insert(open.to, now + PAUSE_SILENT);
            }
            is_open && !is_silent
        });
        paused.retain(|_, until| *until > now);
        others.retain(|broker| !paused.contains_key(broker));
        let is_due = offers.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_INTERVAL_IDLE);
        if offers.queue.is_empty() && is_due {
            offers.looked_at = Some(now);
            // What one does not take is another's turn the next time.
            (offers.made, offers.scans) = (offers.scans, offers.scans.wrapping_add(1));
            let is_new = |away: &Away| !offers.open.contains_key(&away.client_id);
            offers.queue = router.away().into_iter().filter(is_new).collect();
        }
        while offers.open.len() + leaving.len() < OFFERS_MAX {
            let Some(next) = others.get(offers.made % others.len().max(1)) else { return };
            let Some(away) = offers.queue.pop_front() else { return };
            let to = away.to.unwrap_or(*next);
            if !others.contains(&to) {
                continue;
            }
            offers.made += 1;
            let Some(subscriber) = router.session(&away.client_id) else { continue };
            let state = subscriber.lock();
            if state.connected.is_some() || state.ended {
                continue;
            }
            let stamp = state.claimed;
            drop(state);
            let open = Open { to, id: rand::random(), since: now, expires_at: away.expires_at };
            turn.write(open.to, open.id, &Word::Offer { stamp, client_id: &away.client_id });
            offers.open.insert(away.client_id, open);
        }
    }

    /// Another broker does not do what it was asked, which was no move: then it does not take what it was offered.
    pub(super) fn declined(&mut self, (from, id): (BrokerId, u64), why: Why, now: Instant) {
        let Offers { open, paused, .. } = &mut self.offers;
        let count = open.len();
        open.retain(|_, open| (open.to, open.id) != (from, id));
        if open.len() < count && why == Why::Wait {
            paused.insert(from, now + PAUSE_FULL);
        }
    }

    /// Another broker is to be empty, and offers a session.
    pub(super) fn offered(&mut self, turn: &Turn<'_>, (from, id): (BrokerId, u64), stamp: u64, client_id: &str) {
        let (router, client_id) = (turn.router, Arc::from(client_id));
        let is_known = self.coming.contains_key(&client_id) || router.registry.contains_key(&client_id);
        let has_room = self.coming.len() < HANDOVERS_MAX
            && self.coming.values().filter(|coming| coming.is_offered()).count() < OFFERED_MAX
            && router.metrics.sessions.value() < SESSIONS_MAX
            && router.pressure.level() == Level::Free;
        // An offer that is late is of a session which has gone on since. Those of bridges are claimed by nobody.
        let is_theirs = match router.passing(&client_id) {
            Some(passing) => passing == Passing::From(from),
            None => router.newest_claim(&client_id, turn.now) == Some((stamp, from)),
        };
        if !has_room || router.refuses_clients() {
            return turn.write(from, id, &Word::No(Why::Wait));
        }
        if is_known || !is_theirs {
            return turn.write(from, id, &Word::No(Why::Cancelled));
        }
        // No client has come: this counts as little later than what it follows as can be, so that whoever its client comes to meanwhile has the later claim.
        let stamp = stamp.saturating_add(1);
        let coming = Coming::offered(from, stamp, turn.now);
        turn.write(from, coming.line.id, &Word::Ask { stamp, client_id: &client_id });
        self.coming.insert(client_id, coming);
    }
}

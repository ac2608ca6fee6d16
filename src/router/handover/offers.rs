//! Sessions whose clients are away leave a broker that is to be empty: it *offers* them to others, in turn. Who takes one asks for it as if its client had come there, and
//! all goes as in any move; who does not, says nothing, and after a while it is offered to the next.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::coming::Coming;
use super::word::Word;
use super::{LOOK_INTERVAL_IDLE, Machine, Turn};
use crate::ids::BrokerId;
use crate::limits::{HANDOVERS_MAX, OFFERS_MAX, SESSIONS_MAX};
use crate::pressure::Level;
use crate::router::drain::Away;
use crate::session::SessionExpiry;

/// Who has not asked for what it was offered within this time does not take it.
const OFFERED: Duration = Duration::from_secs(2);

/// What is offered.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// They wait for their turn.
    queue: VecDeque<Away>,
    /// They are not answered yet, since when.
    open: HashMap<Arc<str>, Instant, ahash::RandomState>,
    /// When there was looked for more.
    looked_at: Option<Instant>,
    /// So many were made.
    made: usize,
}

impl Offers {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.open.is_empty()
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
        let others = turn.post.reached();
        let (leaving, offers, router, now) = (&self.leaving, &mut self.offers, turn.router, turn.now);
        // Who leaves has been asked for; who is gone has left, or was given up.
        offers.open.retain(|client_id, since| {
            !leaving.contains_key(client_id)
                && router.registry.contains_key(client_id)
                && now.saturating_duration_since(*since) < OFFERED
        });
        let is_due = offers.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_INTERVAL_IDLE);
        if offers.queue.is_empty() && is_due {
            offers.looked_at = Some(now);
            let is_new = |away: &Away| !offers.open.contains_key(&away.client_id);
            offers.queue = router.away().into_iter().filter(is_new).collect();
        }
        while offers.open.len() + leaving.len() < OFFERS_MAX {
            let (Some(to), Some(away)) = (others.get(offers.made % others.len().max(1)), offers.queue.pop_front()) else { return };
            offers.made += 1;
            let Some(subscriber) = router.session(&away.client_id) else { continue };
            let mut state = subscriber.lock();
            if state.connected.is_some() || state.ended {
                continue;
            }
            // What is left of its time is what goes along; what ends it here is a deadline that is not touched.
            if let (SessionExpiry::After(_), Some(at)) = (state.expiry, away.expires_at) {
                state.expiry = SessionExpiry::After(at.saturating_duration_since(now));
            }
            let stamp = state.claimed;
            drop(state);
            turn.write(*to, rand::random(), &Word::Offer { stamp, client_id: &away.client_id });
            offers.open.insert(away.client_id, now);
        }
    }

    /// Another broker is to be empty, and offers a session.
    pub(super) fn offered(&mut self, turn: &Turn<'_>, from: BrokerId, stamp: u64, client_id: &str) {
        let (router, client_id) = (turn.router, Arc::from(client_id));
        let is_known = self.coming.contains_key(&client_id) || router.registry.contains_key(&client_id);
        let has_room = self.coming.len() < HANDOVERS_MAX
            && router.metrics.sessions.value() < SESSIONS_MAX
            && router.pressure.level() == Level::Free;
        // An offer that is late is of a session which has gone on since.
        let is_theirs = router.newest_claim(&client_id, turn.now) == Some((stamp, from));
        if is_known || !has_room || !is_theirs || router.refuses_clients() {
            return;
        }
        let stamp = router.claim_stamp(&client_id, stamp, turn.now);
        let coming = Coming::offered(from, stamp, turn.now);
        turn.write(from, coming.line.id, &Word::Ask { stamp, client_id: &client_id });
        self.coming.insert(client_id, coming);
    }
}

//! One client id in the whole mesh: whose session a client's is.
//!
//! Each CONNECT makes the session this broker's by a *claim* in its register, with a stamp of mesh time that is later than any that is known of
//! that client. The newest claim holds; of two equal ones that of the broker with the greater id. A broker that hears of a newer claim than its own to a
//! session gives that up: its connection is closed with 0x8E, its will goes out as at any takeover, and what waited in it is gone. So also after a
//! partition one session is left. A session that a restarted broker has read has the oldest claim of all: its client may have gone on elsewhere.
//!
//! Claims of others are taken in under the registers' lock, so only noted there; [`Router::yield_sessions`] follows them.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use dashmap::Entry;
use parking_lot::Mutex;

use super::{Batch, Router};
use crate::codec::ReasonCode;
use crate::ids::BrokerId;
use crate::session::Parting;
use crate::shared::register::{Change, Claim, Follow, Key, Value};

/// Claims of others that are to be looked at.
#[derive(Debug, Default)]
pub(super) struct Rumours {
    heard: Mutex<Vec<Rumour>>,
    waker: AtomicWaker,
}

#[derive(Debug)]
struct Rumour {
    client_id: Arc<str>,
    by: BrokerId,
    stamp: u64,
}

impl Follow for Rumours {
    fn joined(&self, _: BrokerId) {}

    fn known(&self, _: BrokerId) {}

    fn changed(&self, by: BrokerId, changes: &[Change]) {
        let claims = changes.iter().filter_map(|change| match change {
            (Key::Session(client_id), Some(Value::Claim(Claim { stamp }))) => {
                Some(Rumour { client_id: Arc::clone(client_id), by, stamp: *stamp })
            }
            _ => None,
        });
        let mut heard = self.heard.lock();
        heard.extend(claims);
        let is_empty = heard.is_empty();
        drop(heard);
        if !is_empty {
            self.waker.wake();
        }
    }

    fn left(&self, _: BrokerId) {}
}

impl Router {
    /// This broker claims the client's session; to be called under its entry in the registry. Gives the claim's stamp; 0 without a mesh.
    pub(super) fn claim(&self, client_id: &Arc<str>, now: Instant) -> u64 {
        let Some((registers, clock)) = self.registers().zip(self.retained.clock()) else { return 0 };
        // Clocks differ: what is known is older, whatever they say.
        let newest = self.newest_claim(client_id).map_or(0, |(stamp, _)| stamp.saturating_add(1));
        let stamp = clock.tick(now).time.max(newest);
        registers.own().claim(client_id, Claim { stamp });
        stamp
    }

    /// The newest claim of another broker to the client's session: its stamp, and whose it is.
    pub(super) fn newest_claim(&self, client_id: &str) -> Option<(u64, BrokerId)> {
        let claims = self.registers()?.look_up(&Key::Session(Arc::from(client_id)));
        let stamped = claims.into_iter().filter_map(|(by, value)| match value {
            Value::Claim(claim) => Some((claim.stamp, by)),
            _ => None,
        });
        stamped.max()
    }

    /// The client has no session here any more.
    pub(super) fn release(&self, client_id: &Arc<str>) {
        if let Some(registers) = self.registers() {
            registers.own().release(client_id);
        }
    }

    /// Ready where claims of others are to be looked at with [`yield_sessions`](Self::yield_sessions); until then the task is woken when there are some.
    pub fn poll_claims(&self, context: &mut Context<'_>) -> Poll<()> {
        self.rumours.waker.register(context.waker());
        if self.rumours.heard.lock().is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Gives up the sessions to which other brokers have newer claims. Finish the batch afterwards.
    pub fn yield_sessions(&self, batch: &mut Batch, now: Instant) {
        let Some(own) = self.registers().map(|registers| registers.own_id()) else { return };
        let heard = std::mem::take(&mut *self.rumours.heard.lock());
        for Rumour { client_id, by, stamp } in heard {
            self.yield_session(batch, client_id, (stamp, by), own, now);
        }
    }

    fn yield_session(&self, batch: &mut Batch, client_id: Arc<str>, theirs: (u64, BrokerId), own: BrokerId, now: Instant) {
        let Entry::Occupied(occupied) = self.registry.entry(client_id) else { return };
        let subscriber = Arc::clone(occupied.get());
        let mut state = subscriber.lock();
        if (state.claimed, own) >= theirs {
            return;
        }
        let taken_from = state.connected.map(|_| state.address);
        if taken_from.is_some() {
            batch.wake_later(state.close(ReasonCode::SessionTakenOver));
        }
        let gone = state.will.as_ref().and_then(|_| state.will_gone());
        let parting = state.will.take().map(|will| Parting { epoch: state.epoch, will: *will, gone });
        // Its client may have said good-bye on the old connection, unheard as yet: that is asked before the will goes out.
        let fired = match taken_from {
            Some(_) => parting.and_then(|parting| state.parting.replace(Box::new(parting))).map(|earlier| *earlier),
            None => parting,
        };
        self.end(&subscriber, state, batch.writes());
        occupied.remove();
        self.release(&subscriber.client_id);
        self.metrics.sessions.change(-1);
        self.metrics.sessions_yielded.add(1);
        if let Some(Parting { will, gone, .. }) = fired {
            self.publish_will(batch, &subscriber, will, gone, now);
        }
        if let Some(before) = taken_from {
            self.tell_of_takeover(&subscriber.client_id, before, None, now);
        }
    }
}

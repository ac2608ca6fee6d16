//! A broker that is to be empty, as far as the router has to do with it: nobody new is let in, who is connected is sent elsewhere, and sessions whose clients are away go to
//! other brokers ([`handover`](super::handover) moves them). In which order, and how fast, is not decided here.
//!
//! A session with a will that waits for its delay is left where it is until that is over: a move knows no wills, and the will would be lost. Those of bridges are the
//! broker's own and are not counted; each goes where whoever decides on its bridge says ([`Passing`]), and to nobody else.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::{Batch, Router};
use crate::auth::{Access, Identity, Standing};
use crate::codec::ReasonCode;
use crate::ids::BrokerId;
use crate::limits::HANDOVER_BYTES_MAX;
use crate::session::{SessionExpiry, Subscriber};

/// Says what a client may do now that came in under an earlier policy, or at another broker.
pub type Judge = Box<dyn Fn(&Access) -> Standing + Send + Sync>;

/// What is asked of the router.
#[derive(Debug, Default)]
pub(super) struct Drain {
    refuses_clients: AtomicBool,
    gives_sessions_away: AtomicBool,
    /// By the client ids of bridges.
    passing: Mutex<HashMap<Arc<str>, Passing>>,
}

/// Where a bridge's session goes, when its broker is to leave, or comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// It is that broker's turn to serve the bridge.
    To(BrokerId),
    /// It is this broker's, after that one.
    From(BrokerId),
}

/// What a broker that is drained still has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Clients that are connected.
    pub clients: u64,
    /// Sessions, those of connected clients among them.
    pub sessions: u64,
}

/// A session that another broker may have.
#[derive(Clone, Debug)]
pub(super) struct Away {
    pub(super) client_id: Arc<str>,
    /// When it ends, unless its client comes.
    pub(super) expires_at: Option<Instant>,
    /// The only one that may have it; none: whoever takes it.
    pub(super) to: Option<BrokerId>,
}

impl Router {
    /// Whether clients are refused from now on, to use another server.
    pub fn refuse_clients(&self, refuses: bool) {
        self.drain.refuses_clients.store(refuses, Ordering::Release);
    }

    /// See [`Router::refuse_clients`].
    #[must_use]
    pub fn refuses_clients(&self) -> bool {
        self.drain.refuses_clients.load(Ordering::Acquire)
    }

    /// Whether sessions whose clients are away are offered to other brokers from now on.
    pub fn give_sessions_away(&self, gives: bool) {
        self.drain.gives_sessions_away.store(gives, Ordering::Release);
    }

    /// Says to other brokers that this one is to leave, or no longer is; and asks them how far they have dealt with what was published here.
    pub fn set_leaving(&self, is_leaving: bool) {
        if let Some(mesh) = self.mesh() {
            mesh.set_leaving(is_leaving);
        }
        self.tell_leaving(is_leaving, false);
    }

    /// Says to other brokers that of this one, which is to leave, nothing is left: should it go nobody need wait for it; or that something has come.
    pub fn set_empty(&self, is_empty: bool) {
        self.tell_leaving(true, is_empty);
    }

    fn tell_leaving(&self, is_leaving: bool, is_empty: bool) {
        if let Some(registers) = self.registers() {
            registers.own().tell_leaving(is_leaving, is_empty);
        }
    }

    /// Other brokers that can be reached and do not say that they are to leave themselves.
    #[must_use]
    pub fn takers(&self) -> Vec<BrokerId> {
        let mut reached = self.post.get().map(|post| post.reached()).unwrap_or_default();
        if let Some(mesh) = self.mesh() {
            reached.retain(|broker| !mesh.interest().is_leaving(*broker));
        }
        reached
    }

    /// Other brokers that have not dealt with all that was published here, as far as they have said.
    #[must_use]
    pub fn behind(&self) -> Vec<BrokerId> {
        self.mesh().map(|mesh| mesh.behind()).unwrap_or_default()
    }

    /// Says where the session of a bridge goes or comes from, from now on.
    pub fn pass_bridge(&self, client_id: &str, passing: Option<Passing>) {
        let mut all = self.drain.passing.lock();
        match passing {
            Some(passing) => drop(all.insert(Arc::from(client_id), passing)),
            None => drop(all.remove(client_id)),
        }
    }

    /// See [`Router::pass_bridge`].
    pub(super) fn passing(&self, client_id: &str) -> Option<Passing> {
        self.drain.passing.lock().get(client_id).copied()
    }

    pub(super) fn gives_sessions_away(&self) -> bool {
        self.drain.gives_sessions_away.load(Ordering::Acquire)
    }

    /// From now on it says what those may do whose sessions come without them. The first call counts.
    pub fn judge_by(&self, judge: Judge) {
        // The server calls it once.
        let _ = self.judge.set(Judged(judge));
    }

    /// What the owner of a session that comes without its client may do, as [`Access::owner`] told; an error where he is no user here, and where that cannot be told: nothing would be queued for
    /// him until he comes. Nobody where nobody says who clients are.
    pub(super) fn judge_owner(&self, client_id: &str, owner: &str) -> Result<Option<Arc<Access>>, Gone> {
        let access = Access::of_owner(owner);
        // Those of bridges are their brokers' own: one comes under its own name, where it is waited for.
        let is_waited_for = matches!(self.passing(client_id), Some(Passing::From(_)));
        let is_bridges = match access.identity() {
            Identity::Bridge { client_id: of } if **of == *client_id => true,
            Identity::Bridge { .. } => return Err(Gone),
            _ => false,
        };
        if is_bridges != is_waited_for {
            return Err(Gone);
        }
        let Some(judge) = self.judge.get() else { return Ok((!owner.is_empty()).then(|| Arc::new(access))) };
        match judge.0(&access) {
            Standing::Good(access) | Standing::PasswordChanged(access) => Ok(Some(access)),
            Standing::Same => Ok(Some(Arc::new(access))),
            Standing::Unsure(_) | Standing::Gone(_) => Err(Gone),
        }
    }

    /// Judges a session once more that came without its client: rules may have changed while it came.
    pub(super) fn judge_newcomer(&self, batch: &mut Batch, subscriber: &Arc<Subscriber>, now: Instant) {
        if let Some(judge) = self.judge.get() {
            self.judge_one(batch, subscriber, &judge.0, now);
        }
    }

    /// What there is still, but for bridges.
    #[must_use]
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for entry in self.registry.iter().filter(|entry| Self::is_claimed(entry.access().as_deref())) {
            census.sessions += 1;
            census.clients += u64::from(entry.lock().connected.is_some());
        }
        census
    }

    /// Sessions that have a connection which is not about to end, but for bridges.
    #[must_use]
    pub fn connected(&self) -> Vec<Arc<Subscriber>> {
        let is_connected = |subscriber: &Subscriber| {
            let state = subscriber.lock();
            state.connected.is_some() && state.outbox.closing().is_none()
        };
        let all = self.registry.iter().filter(|entry| Self::is_claimed(entry.access().as_deref()) && is_connected(entry));
        all.map(|entry| Arc::clone(entry.value())).collect()
    }

    /// Tells a client to use another server, and ends its connection once what waits is written. Whether it had one.
    pub fn send_away(&self, batch: &mut Batch, subscriber: &Subscriber) -> bool {
        let mut state = subscriber.lock();
        let is_connected = state.connected.is_some() && state.outbox.closing().is_none();
        if is_connected {
            let owner = state.close(ReasonCode::UseAnotherServer);
            drop(state);
            batch.wake_later(owner);
        }
        is_connected
    }

    /// Sessions that could go to another broker now.
    pub(super) fn away(&self) -> Vec<Away> {
        let expiries: HashMap<_, _> = self.deadlines.expiries().into_iter().collect();
        let may_go = |subscriber: &Subscriber| {
            let state = subscriber.lock();
            let is_away = state.connected.is_none() && !state.ended && state.moving.is_none();
            let is_kept = state.expiry != SessionExpiry::WithConnection && state.outbound.owed().1 <= HANDOVER_BYTES_MAX;
            is_away && is_kept && state.will.is_none() && state.parting.is_none()
        };
        let passing = self.drain.passing.lock().clone();
        let goes_to = |client_id: &str, subscriber: &Subscriber| match passing.get(client_id) {
            _ if Self::is_claimed(subscriber.access().as_deref()) => Some(None),
            Some(Passing::To(broker)) => Some(Some(*broker)),
            Some(Passing::From(_)) | None => None,
        };
        let all = self.registry.iter().filter_map(|entry| {
            let to = goes_to(entry.key(), &entry).filter(|_| may_go(&entry))?;
            Some(Away { client_id: Arc::clone(entry.key()), expires_at: expiries.get(&entry.id).copied(), to })
        });
        all.collect()
    }
}

/// A user who is not here.
#[derive(Debug)]
pub(super) struct Gone;

/// A [`Judge`] in the router.
pub(super) struct Judged(pub(super) Judge);

impl std::fmt::Debug for Judged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Judge")
    }
}

//! One client id in the whole mesh: whose session a client's is.
//!
//! Each CONNECT makes the session this broker's by a *claim* in its register, with a stamp of mesh time that is later than any that is known of
//! that client. The newest claim holds; of two equal ones that of the broker with the greater id. A broker that hears of a newer claim than its own to a
//! session which is not on its way there gives that up: its connection is closed with 0x8E, its will goes out as at any takeover, and what waited in it is dropped and
//! counted. So also after a partition one session is left.
//!
//! Sessions of bridges are no part of this: brokers that have the same bridge have a session each, and agree among each other who serves it.
//!
//! Claims of others are taken in under the registers' lock, so only noted there, in an index of their own ([`Claims`]): whoever looks up a client takes no lock under
//! which anything is worked out. [`Router::drive_moves`] follows what was noted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use dashmap::{DashMap, Entry};
use parking_lot::Mutex;

use super::connect::TakenOver;
use super::{Batch, Router};
use crate::auth::{Access, Identity};
use crate::ids::{BrokerId, ShareId, Stamp};
use crate::limits::RIVALS_MAX;
use crate::session::{RESTORED_EPOCH, Rivalry, StoredMessage, Subscriber};
use crate::shared::register::{Change, Claim, Follow, Key, Value};

/// A claim: its stamp, and whose it is. The greater one holds.
pub(super) type Claimed = (u64, BrokerId);

/// What others claim.
#[derive(Debug, Default)]
pub(super) struct Claims {
    known: DashMap<Arc<str>, Vec<Claimed>, ahash::RandomState>,
    /// Where others have the replicas of their sessions.
    replicas: Mutex<HashMap<BrokerId, BrokerId, ahash::RandomState>>,
    /// Wills with which others have dealt: whose client's, in the place of that broker; the claims, and who says so.
    settled: DashMap<(BrokerId, Arc<str>), Vec<Claimed>, ahash::RandomState>,
    /// Of these what is to be looked at.
    heard_settled: Mutex<Vec<(BrokerId, Arc<str>, u64)>>,
    /// What is to be looked at.
    heard: Mutex<Vec<(Arc<str>, Claimed)>>,
    /// All members, and whether what they claim is known.
    members: Mutex<HashMap<BrokerId, bool, ahash::RandomState>>,
    /// Of some it may not be: a CONNECT is to be looked at by [`Router::drive_moves`], which sees to that this is true no longer than need be.
    is_incomplete: AtomicBool,
    waker: AtomicWaker,
}

impl Claims {
    fn note(&self, client_id: &Arc<str>, by: BrokerId, stamp: Option<u64>) {
        let mut known = self.known.entry(Arc::clone(client_id)).or_default();
        known.retain(|(_, other)| *other != by);
        known.extend(stamp.map(|stamp| (stamp, by)));
        let is_empty = known.is_empty();
        drop(known);
        if is_empty {
            self.known.remove_if(client_id, |_, known| known.is_empty());
        }
    }

    fn forget(&self, by: BrokerId) {
        self.replicas.lock().remove(&by);
        self.settled.retain(|_, settled| {
            settled.retain(|(_, other)| *other != by);
            !settled.is_empty()
        });
        self.known.retain(|_, known| {
            known.retain(|(_, other)| *other != by);
            !known.is_empty()
        });
    }

    /// Who has the replicas of that broker's sessions, by its last word.
    pub(super) fn replica_of(&self, broker: BrokerId) -> Option<BrokerId> {
        self.replicas.lock().get(&broker).copied()
    }

    /// What has become of a will of that broker's client is told by another.
    fn note_will(&self, of: BrokerId, client_id: &Arc<str>, (stamp, by): (Option<u64>, BrokerId)) {
        let key = (of, Arc::clone(client_id));
        let mut settled = self.settled.entry(key.clone()).or_default();
        settled.retain(|(_, other)| *other != by);
        settled.extend(stamp.map(|stamp| (stamp, by)));
        let is_empty = settled.is_empty();
        drop(settled);
        if is_empty {
            self.settled.remove_if(&key, |_, settled| settled.is_empty());
        }
        if let Some(stamp) = stamp {
            self.heard_settled.lock().push((of, key.1, stamp));
            self.waker.wake();
        }
    }

    /// Whether another has dealt with the will that the broker's client brought with that claim, or with a later one.
    pub(super) fn is_will_settled(&self, of: BrokerId, client_id: &Arc<str>, claim: u64) -> bool {
        let settled = self.settled.get(&(of, Arc::clone(client_id)));
        settled.is_some_and(|settled| settled.iter().any(|(stamp, _)| *stamp >= claim))
    }

    /// Wills of which that was heard since this was asked last: whose, and their claims.
    pub(super) fn take_settled(&self) -> Vec<(BrokerId, Arc<str>, u64)> {
        std::mem::take(&mut *self.heard_settled.lock())
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Acquire)
    }

    pub(super) fn set_incomplete(&self, is_incomplete: bool) {
        self.is_incomplete.store(is_incomplete, Ordering::Release);
    }

    /// All members, and whether what they claim is known.
    pub(super) fn members(&self) -> HashMap<BrokerId, bool, ahash::RandomState> {
        self.members.lock().clone()
    }

    /// What was heard since this was asked last.
    pub(super) fn take_heard(&self) -> Vec<(Arc<str>, Claimed)> {
        std::mem::take(&mut *self.heard.lock())
    }
}

impl Follow for Claims {
    /// Comes as well where what was known of the member is void.
    fn joined(&self, by: BrokerId) {
        self.members.lock().insert(by, false);
        self.set_incomplete(true);
        self.forget(by);
    }

    fn known(&self, by: BrokerId) {
        self.members.lock().insert(by, true);
    }

    fn changed(&self, by: BrokerId, changes: &[Change]) {
        let mut claims = Vec::new();
        for (key, value) in changes {
            if *key == Key::Replica {
                let replica = if let Some(Value::Replica(broker)) = value { Some(*broker) } else { None };
                let mut replicas = self.replicas.lock();
                replicas.remove(&by);
                replicas.extend(replica.map(|replica| (by, replica)));
            }
            let stamp = if let Some(Value::Claim(Claim { stamp })) = value { Some(*stamp) } else { None };
            if let Key::Will(of, client_id) = key {
                self.note_will(*of, client_id, (stamp, by));
            }
            let Key::Session(client_id) = key else { continue };
            self.note(client_id, by, stamp);
            claims.extend(stamp.map(|stamp| (Arc::clone(client_id), (stamp, by))));
        }
        if !claims.is_empty() {
            self.heard.lock().append(&mut claims);
            self.waker.wake();
        }
    }

    fn left(&self, by: BrokerId) {
        self.members.lock().remove(&by);
        self.forget(by);
    }
}

/// How often clients were taken over of late whose sessions have ended here since they came at another broker: who fights over a name from two brokers is
/// slowed as from one. By a hash of the name: of two clients that have the same the one may be slowed for the other.
#[derive(Debug, Default)]
pub(super) struct Rivals(DashMap<u64, Rivalry, ahash::RandomState>);

impl Rivals {
    fn note(&self, rival: u64, rivalry: Rivalry, now_ms: u64) {
        if self.0.len() >= RIVALS_MAX {
            self.0.retain(|_, rivalry| rivalry.left_ms(now_ms) > 0);
        }
        if self.0.len() < RIVALS_MAX {
            self.0.insert(rival, rivalry);
        }
    }

    /// What was noted, as far as it is not forgotten.
    pub(super) fn take(&self, rival: u64, now_ms: u64) -> Option<Rivalry> {
        self.0.remove(&rival).map(|(_, rivalry)| rivalry).filter(|rivalry| rivalry.left_ms(now_ms) > 0)
    }
}

impl Router {
    /// Under which a client is one of the [`Rivals`].
    pub(super) fn rival(&self, client_id: &str) -> u64 {
        self.registry.hasher().hash_one(client_id)
    }

    /// Whether sessions of this kind are the mesh's: those of bridges are their brokers' own, of which several may have one with the same client id.
    pub(super) fn is_claimed(access: Option<&Access>) -> bool {
        !access.is_some_and(|access| matches!(access.identity(), Identity::Bridge { .. }))
    }

    /// The stamp with which this broker claims a client's session now: later than all that are known, and than `above`. 0 without a mesh.
    pub(super) fn claim_stamp(&self, client_id: &str, above: u64, now: Instant) -> u64 {
        let Some(clock) = self.registers().and_then(|_| self.retained.clock()) else { return 0 };
        // Clocks differ: what is known is older, whatever they say.
        let newest = self.newest_claim(client_id, now).map_or(0, |(stamp, _)| stamp);
        clock.tick(now).time.max(newest.max(above).saturating_add(1))
    }

    /// Tells the mesh that the client's session is here.
    pub(super) fn claim(&self, subscriber: &Subscriber, stamp: u64) {
        if let Some(registers) = self.registers().filter(|_| Self::is_claimed(subscriber.access().as_deref())) {
            registers.own().claim(&subscriber.client_id, Claim { stamp });
            // Of another broker's session there may be a replica here, or a will of its client.
            if self.metrics.sessions_shadowed.value() > 0 || self.metrics.wills_kept.value() > 0 {
                self.claims.heard.lock().push((Arc::clone(&subscriber.client_id), (stamp, registers.own_id())));
                self.claims.waker.wake();
            }
        }
    }

    /// The client has no session here any more.
    pub(super) fn release(&self, client_id: &Arc<str>) {
        if let Some(registers) = self.registers() {
            registers.own().release(client_id);
        }
    }

    /// The newest claim of another broker to the client's session, of those that can be believed.
    pub(super) fn newest_claim(&self, client_id: &str, now: Instant) -> Option<Claimed> {
        self.registers()?;
        let known = self.claims.known.get(client_id)?;
        known.iter().copied().filter(|claimed| self.is_believed(*claimed, now)).max()
    }

    /// Whether a claim's stamp is one that a broker can have given: one from far ahead would win against all that is claimed later.
    pub(super) fn is_believed(&self, (time, by): Claimed, now: Instant) -> bool {
        self.retained.clock().is_some_and(|clock| clock.accepts(Stamp { time, writer: by.0 }, now))
    }

    /// Ready where claims of others are to be looked at by [`drive_moves`](Self::drive_moves); until then the task is woken when there are some.
    pub fn poll_claims(&self, context: &mut Context<'_>) -> Poll<()> {
        self.claims.waker.register(context.waker());
        let is_empty = self.claims.heard.lock().is_empty() && self.claims.heard_settled.lock().is_empty();
        if is_empty { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Ends the client's session here unless its claim is newer than `theirs`; what share groups gave it that is for others then, if it did. Is it one that went elsewhere (`is_given`), or comes from the disk and was not resumed since, its will
    /// is not published: its client has come, if not here.
    pub(super) fn yield_session(
        &self,
        batch: &mut Batch,
        client_id: &Arc<str>,
        theirs: Claimed,
        is_given: bool,
        now: Instant,
    ) -> Option<Vec<(ShareId, Arc<StoredMessage>)>> {
        let own = self.registers()?.own_id();
        let Entry::Occupied(occupied) = self.registry.entry(Arc::clone(client_id)) else { return None };
        let subscriber = Arc::clone(occupied.get());
        let mut state = subscriber.lock();
        if (state.claimed, own) >= theirs || !Self::is_claimed(subscriber.access().as_deref()) {
            return None;
        }
        if is_given || state.epoch == RESTORED_EPOCH {
            let gone = state.will.as_ref().and_then(|_| state.will_gone());
            state.will = None;
            gone.into_iter().for_each(|change| batch.writes().push(change));
        }
        let TakenOver { address, fired } = self.take_over(batch, &mut state, false);
        self.orphans.note(&subscriber);
        if address.is_some() {
            let mut rivalry = state.rivalry;
            // Who waits is the client that comes here next.
            let _ = rivalry.taken_over(self.millis(now));
            self.rivals.note(self.rival(client_id), rivalry, self.millis(now));
        }
        let (owed, _) = state.outbound.owed();
        let left_behind = if is_given { Vec::new() } else { state.take_given_by_groups() };
        self.end(&subscriber, state, batch.writes());
        occupied.remove();
        self.release(client_id);
        self.metrics.sessions.change(-1);
        self.metrics.sessions_yielded.add(1);
        self.metrics.dropped_yielded.add(owed as u64);
        if let Some(fired) = fired {
            self.publish_will(batch, &subscriber, fired.will, fired.gone, now);
        }
        if owed > 0 || address.is_some() {
            self.tell_of_yield(client_id, address.flatten(), owed, now);
        }
        Some(left_behind)
    }
}

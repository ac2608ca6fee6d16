//! Sessions come and go: connect, take over, resume, disconnect, expire, and the will on all of these ways as one state machine:
//! armed with CONNECT, then fired, cancelled by DISCONNECT, or delayed and cancelled by a resume (MQTT 5.0 section 3.1.2.5).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dashmap::Entry;
use parking_lot::MutexGuard;

use super::deadlines::{Deadline, Due};
use super::publish::Ingress;
use super::retained::Writer;
use super::route::RouteCache;
use super::{Batch, Router, is_system};
use crate::auth::{Access, Backend, Identity, Standing};
use crate::codec::ReasonCode;
use crate::limits::SESSIONS_MAX;
use crate::pressure::Level;
use crate::session::{Change, Connected, Parting, SessionExpiry, State, StoredMessage, Subscriber, SubscriberId, Will, Writes};
use crate::topic;

/// A keep alive that is not over is not looked at again sooner than this.
const KEEP_ALIVE_RECHECK: Duration = Duration::from_millis(50);

/// What is due of a session that is on its way to another broker, or of one whose user's rights are not known yet, is put off by this time.
pub(super) const RECHECK: Duration = Duration::from_secs(1);

/// Letters of a client identifier that stand in the log.
const CLIENT_ID_SHOWN: usize = 64;

/// Why a client gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    /// There are as many as may be, or as memory allows: CONNACK 0x97, or 0x03 before MQTT 5.
    TooMany,
    /// Its session is on its way to another broker, which may have it by now, or has come to light at one since it was looked for: 0x88, or 0x03. It tries again.
    OnItsWay,
}

/// What a connection leaves that was taken over.
pub(super) struct TakenOver {
    /// There was one, and where its client was.
    pub(super) address: Option<Option<SocketAddr>>,
    /// What is to be published now.
    pub(super) fired: Option<Parting>,
}

/// What a CONNECT asks of the router.
#[derive(Debug)]
pub struct ConnectRequest<'a> {
    /// The client's name: its own, or one made by [`Router::assign_client_id`].
    pub client_id: &'a str,
    /// Clean Start, or Clean Session of 3.1.1.
    pub clean_start: bool,
    /// How long the session is to outlive the connection.
    pub expiry: SessionExpiry,
    /// Silence after which the client is lost: one and a half times the keep alive [MQTT-3.1.2-22].
    pub silence_max: Option<Duration>,
    /// Published if the client is lost.
    pub will: Option<Will>,
    /// What the connection can take.
    pub connected: Connected,
    /// Where the client is, if it is in a network.
    pub address: Option<SocketAddr>,
    /// Who the client is, and what it may do. None: everything.
    pub access: Option<Arc<Access>>,
}

/// A client's connection as the router knows it. Whoever holds it must end it with [`Router::disconnect`].
#[derive(Debug)]
pub struct Connection {
    /// The session.
    pub subscriber: Arc<Subscriber>,
    /// Which of its connections this is.
    pub epoch: u64,
    /// How long the client is to wait for its CONNACK: it fights over its name with another.
    pub wait: Duration,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// DISCONNECT with reason 0x00: the will is cancelled [MQTT-3.14.4-3].
    Normal,
    /// Everything else: the will goes out.
    Lost,
}

impl Router {
    /// A client id for a client that has none [MQTT-3.1.3-6]: 128 random bits, so that nobody else has it or guesses it.
    #[must_use]
    pub fn assign_client_id() -> String {
        format!("auto-{:032x}", rand::random::<u128>())
    }

    /// Opens a session for a client, takes over from its older connection, resumes what is to be resumed [MQTT-3.1.4-3, 3.1.2-4 to 6].
    /// `Deviation:` a session is its user's: under another user's name it is not resumed but begun anew.
    ///
    /// `connack` makes the CONNACK, told whether a session was present; it is the first thing in the new outbox.
    ///
    /// # Errors
    /// See [`NoSession`].
    pub fn connect(
        &self,
        batch: &mut Batch,
        request: ConnectRequest<'_>,
        connack: impl Fn(bool) -> Vec<u8>,
        now: Instant,
    ) -> Result<Connection, NoSession> {
        let ConnectRequest { client_id, clean_start, expiry, silence_max, will, connected, address, access } = request;
        let (mut fired, mut taken_from, mut left) = (None, None, None);
        let has_will = will.is_some();
        let begin = |writes: &mut Writes, will, above| {
            let subscriber = self.new_subscriber(client_id, expiry);
            subscriber.set_access(access.clone());
            let mut state = subscriber.lock();
            state.claimed = self.claim_stamp(client_id, above, now);
            let epoch = subscriber.connect(&mut state, writes, connected, expiry, will, &connack(false));
            state.address = address;
            self.claim(&subscriber, state.claimed);
            drop(state);
            (subscriber, epoch)
        };
        let connection = match self.registry.entry(Arc::from(client_id)) {
            Entry::Vacant(vacant) => {
                if !clean_start && self.is_elsewhere(client_id, access.as_deref(), now) {
                    return Err(NoSession::OnItsWay);
                }
                // The count is not exact under concurrent connects; the bound need not be.
                // Whoever has a session gets in even without memory: what waits for it is what takes the memory.
                if self.metrics.sessions.value() >= SESSIONS_MAX || self.pressure.level() == Level::Full {
                    return Err(NoSession::TooMany);
                }
                let (subscriber, epoch) = begin(batch.writes(), will, 0);
                self.metrics.sessions.change(1);
                vacant.insert(Arc::clone(&subscriber));
                let wait = self.rivals.take(self.rival(client_id), self.millis(now)).map_or(Duration::ZERO, |mut rivalry| {
                    let wait = rivalry.taken_over(self.millis(now));
                    subscriber.lock().rivalry = rivalry;
                    wait
                });
                Connection { subscriber, epoch, wait }
            }
            Entry::Occupied(mut occupied) => {
                let old = Arc::clone(occupied.get());
                let mut state = old.lock();
                left = state.will.is_some().then(|| Arc::clone(&old));
                // What another broker has of it may be older, or newer, than what is here.
                if state.moving.is_some() && !clean_start {
                    return Err(NoSession::OnItsWay);
                }
                let mut rivalry = state.rivalry;
                let mut wait = Duration::ZERO;
                // A session that ends with its connection ends when that connection is closed: here, or already.
                let ended = state.expiry == SessionExpiry::WithConnection;
                let is_same_user = is_same_user(&old, access.as_deref());
                let resumed = !clean_start && !ended && is_same_user;
                if state.connected.is_some() || std::mem::take(&mut state.taken_elsewhere) {
                    wait = rivalry.taken_over(self.millis(now));
                }
                let taken = self.take_over(batch, &mut state, resumed);
                taken_from = taken.address;
                fired = taken.fired.map(|parting| (Arc::clone(&old), parting));
                // One whose delay is not over is cancelled [MQTT-3.1.3-9].
                if state.will.take().is_some() {
                    state.will_gone().into_iter().for_each(|change| batch.writes().push(change));
                }
                if resumed {
                    state.rivalry = rivalry;
                    state.claimed = self.claim_stamp(client_id, state.claims_above, now);
                    self.renew_access(&old, access.clone());
                    let was_connected = state.connected.is_some();
                    let epoch = old.connect(&mut state, batch.writes(), connected, expiry, will, &connack(true));
                    self.tell_presence(&state, was_connected);
                    state.address = address;
                    self.claim(&old, state.claimed);
                    drop(state);
                    Connection { subscriber: old, epoch, wait }
                } else {
                    let above = state.claims_above;
                    self.end(&old, state, batch.writes());
                    let (subscriber, epoch) = begin(batch.writes(), will, above);
                    subscriber.lock().rivalry = rivalry;
                    occupied.insert(Arc::clone(&subscriber));
                    Connection { subscriber, epoch, wait }
                }
            }
        };
        if let Some((subscriber, Parting { will, gone, .. })) = fired {
            self.publish_will(batch, &subscriber, will, gone, now);
        }
        left.iter().chain(has_will.then_some(&connection.subscriber)).for_each(|subscriber| self.orphans.note(subscriber));
        if let Some(before) = taken_from {
            self.tell_of_takeover(client_id, before, address, now);
        }
        connection.subscriber.heard(self.millis(now));
        if let Some(silence) = silence_max {
            let silence_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
            self.add_deadline(now + silence, Due::KeepAlive { silence_ms }, &connection.subscriber, connection.epoch);
        }
        Ok(connection)
    }

    /// The session of a client, if there is one.
    #[must_use]
    pub fn session(&self, client_id: &str) -> Option<Arc<Subscriber>> {
        self.registry.get(client_id).map(|subscriber| Arc::clone(&subscriber))
    }

    /// The session's connection, if it has one, is told that another has taken over, and its will fired, unless it is one with a delay and the session `goes_on`: that stays. A
    /// will that waits for its delay is fired at once when its session ends [MQTT-3.1.2-8].
    pub(super) fn take_over(&self, batch: &mut Batch, state: &mut State, goes_on: bool) -> TakenOver {
        let address = state.connected.map(|_| state.address);
        if address.is_some() {
            batch.wake_later(state.close(ReasonCode::SessionTakenOver));
        }
        let gone = state.will.as_ref().and_then(|_| state.will_gone());
        let will = state.will.take_if(|will| !goes_on || will.delay.is_zero());
        let parting = will.map(|will| Parting { epoch: state.epoch, will: *will, gone });
        let fired = match parting {
            // Its client may have said good-bye on it, unheard as yet: that connection is asked before its will goes out.
            Some(parting) if address.is_some() => state.parting.replace(Box::new(parting)).map(|earlier| *earlier),
            parting => parting,
        };
        TakenOver { address, fired }
    }

    /// Whether the client has a connection at present.
    #[must_use]
    pub fn is_connected(&self, client_id: &str) -> bool {
        self.registry.get(client_id).is_some_and(|subscriber| subscriber.lock().connected.is_some())
    }

    /// Likewise, of those whose sessions go on elsewhere.
    pub(super) fn tell_of_yield(&self, client: &str, before: Option<SocketAddr>, dropped: usize, now: Instant) {
        if let Some(left_out) = self.log_rate.permit("session elsewhere", now) {
            let client: String = client.chars().take(CLIENT_ID_SHOWN).collect();
            let before = before.map(tracing::field::display);
            tracing::info!(
                ?client,
                before,
                dropped,
                left_out,
                "the client has a newer session at another broker; what waited is dropped"
            );
        }
    }

    /// One line a second, however many do it: who fights over a name must be found by people.
    pub(super) fn tell_of_takeover(&self, client: &str, before: Option<SocketAddr>, by: Option<SocketAddr>, now: Instant) {
        if let Some(left_out) = self.log_rate.permit("takeover", now) {
            let client: String = client.chars().take(CLIENT_ID_SHOWN).collect();
            let (before, by) = (before.map(tracing::field::display), by.map(tracing::field::display));
            tracing::info!(?client, before, by, left_out, "session taken over");
        }
    }

    pub(super) fn next_subscriber_id(&self) -> SubscriberId {
        SubscriberId(self.subscribers_made.fetch_add(1, Ordering::Relaxed))
    }

    fn new_subscriber(&self, client_id: &str, expiry: SessionExpiry) -> Arc<Subscriber> {
        let id = self.next_subscriber_id();
        // Nothing is written of a session that ends with its connection.
        let journal = self.journal.as_ref().filter(|_| expiry != SessionExpiry::WithConnection);
        Arc::new(Subscriber::new(id, Arc::from(client_id), self.limits.outbound, journal))
    }

    /// The connection is gone. Nothing happens if the session has a newer one already, but that the older one's will goes out.
    ///
    /// `expiry` is what DISCONNECT may have changed (MQTT 5.0 section 3.14.2.2.2).
    pub fn disconnect(
        &self,
        batch: &mut Batch,
        connection: &Connection,
        farewell: Farewell,
        expiry: Option<SessionExpiry>,
        now: Instant,
    ) {
        let subscriber = &connection.subscriber;
        let mut state = subscriber.lock();
        if state.epoch != connection.epoch || state.ended || state.connected.is_none() {
            let parting = state.parting.take_if(|parting| parting.epoch == connection.epoch);
            drop(state);
            match (parting.map(|parting| *parting), farewell) {
                (Some(Parting { will, gone, .. }), Farewell::Lost) => self.publish_will(batch, subscriber, will, gone, now),
                (parting, _) => parting.and_then(|parting| parting.gone).into_iter().for_each(|change| batch.writes().push(change)),
            }
            return;
        }
        state.disconnect(expiry, now);
        self.tell_presence(&state, true);
        let expiry = state.expiry;
        let had_will = state.will.is_some();
        let gone = state.will.as_ref().and_then(|_| state.will_gone());
        if farewell == Farewell::Normal && state.will.take().is_some() {
            gone.iter().for_each(|change| batch.writes().push(change.clone()));
        }
        let ends_now = expiry == SessionExpiry::WithConnection;
        let fired = state.will.take_if(|will| ends_now || will.delay.is_zero());
        let delay = state.will.as_ref().map(|will| will.delay);
        drop(state);
        if let Some(delay) = delay {
            self.add_deadline(now + delay, Due::Will, subscriber, connection.epoch);
        }
        match expiry {
            SessionExpiry::WithConnection => {
                self.remove_if(subscriber, connection.epoch, batch.writes());
            }
            SessionExpiry::After(rest) => self.add_deadline(now + rest, Due::Expiry, subscriber, connection.epoch),
            SessionExpiry::Never => {}
        }
        if let Some(will) = fired {
            self.publish_will(batch, subscriber, *will, gone, now);
        }
        if had_will {
            self.orphans.note(subscriber);
        }
    }

    /// Does all that is due at `now`: keep alives, delayed wills, expired sessions. Finish the batch afterwards.
    pub fn expire(&self, batch: &mut Batch, now: Instant) {
        while let Some(Deadline { due, subscriber, epoch, .. }) = self.deadlines.pop(now) {
            let Some(subscriber) = subscriber.upgrade() else { continue };
            // What becomes of it is not decided here: it stays, and then all is done, or it goes. And as long as nobody knows what its user may do, its will waits.
            let may_wait = matches!(due, Due::Will | Due::Expiry);
            // Nor as long as another broker may have published it.
            let is_in_doubt = || self.is_will_in_doubt(&subscriber, epoch);
            if may_wait && (subscriber.is_moving() || has_awaited_will(&subscriber) || is_in_doubt()) {
                self.add_deadline(now + RECHECK, due, &subscriber, epoch);
                continue;
            }
            match due {
                Due::KeepAlive { silence_ms } => self.check_keep_alive(batch, &subscriber, epoch, silence_ms, now),
                Due::Will => {
                    let mut state = subscriber.lock();
                    let will = if state.epoch == epoch && state.connected.is_none() { state.will.take() } else { None };
                    let gone = state.will_gone();
                    drop(state);
                    if let Some(will) = will {
                        self.publish_will(batch, &subscriber, *will, gone, now);
                        self.orphans.note(&subscriber);
                    }
                }
                Due::Expiry => {
                    let was_there = subscriber.is_latest(epoch);
                    if let Some(will) = self.remove_if(&subscriber, epoch, batch.writes()) {
                        self.publish_will(batch, &subscriber, will, None, now);
                    }
                    self.metrics.sessions_expired.add(u64::from(was_there && !subscriber.is_latest(epoch)));
                }
            }
        }
        self.retained.sweep_expired(now);
        self.retained.sweep_tombstones(now);
    }

    fn check_keep_alive(&self, batch: &mut Batch, subscriber: &Arc<Subscriber>, epoch: u64, silence_ms: u64, now: Instant) {
        let silent_ms = self.millis(now).saturating_sub(subscriber.heard_at_ms.load(Ordering::Relaxed));
        let mut state = subscriber.lock();
        if state.epoch != epoch || state.connected.is_none() {
            return;
        }
        // A client that is not read from while the mesh lags, or the disk does, is not to blame for its silence.
        let waits_for_us = state.is_unread || self.mesh().is_some_and(|mesh| mesh.lagging());
        if silent_ms >= silence_ms && !waits_for_us {
            let owner = state.close(ReasonCode::KeepAliveTimeout);
            drop(state);
            batch.wake_later(owner);
        } else {
            drop(state);
            let rest = Duration::from_millis(silence_ms.saturating_sub(silent_ms)).max(KEEP_ALIVE_RECHECK);
            self.add_deadline(now + rest, Due::KeepAlive { silence_ms }, subscriber, epoch);
        }
    }

    /// Closes every connection, MQTT 5 clients being told `reason`. For the orderly stop.
    pub fn close_all(&self, batch: &mut Batch, reason: ReasonCode) {
        for entry in &self.registry {
            let mut state = entry.value().lock();
            if state.connected.is_some() {
                let owner = state.close(reason);
                drop(state);
                batch.wake_later(owner);
            }
        }
    }

    /// Judges every session by rules that have changed: rights are renewed, connections of users who are gone or have another password are
    /// closed, and the sessions of those who are gone end. What is retained of clients that may no longer say it is forgotten.
    pub fn judge_anew(&self, batch: &mut Batch, judge: impl Fn(&Access) -> Standing, now: Instant) {
        let subscribers: Vec<Arc<Subscriber>> = self.registry.iter().map(|entry| Arc::clone(entry.value())).collect();
        for subscriber in subscribers {
            self.judge_one(batch, &subscriber, &judge, now);
        }
        let may_say = |writer: &Writer, topic: &str| match judge(&writer.access) {
            Standing::Same => true,
            // That a user is no longer here, or nobody knows, takes nothing back of what he had a right to say.
            Standing::Good(access) | Standing::Unsure(access) | Standing::PasswordChanged(access) | Standing::Gone(access) => {
                access.is_awaited() || access.may_publish(&writer.client_id, topic)
            }
        };
        let revoked = self.retained.revoke(may_say, now);
        if revoked > 0 {
            tracing::info!(revoked, "retained messages are forgotten: who published them may no longer do that");
        }
    }

    /// [`Router::judge_anew`] for a single session: one that was let in by the old rules while they changed.
    pub fn judge_one(&self, batch: &mut Batch, subscriber: &Arc<Subscriber>, judge: impl Fn(&Access) -> Standing, now: Instant) {
        let (standing, mut state) = loop {
            let Some(access) = subscriber.access() else { return };
            let standing = judge(&access);
            if matches!(standing, Standing::Same) {
                return;
            }
            let state = subscriber.lock();
            // Who has come in meanwhile has shown who it is anew: that is judged, not what was before.
            if subscriber.access().is_some_and(|now| Arc::ptr_eq(&now, &access)) {
                break (standing, state);
            }
        };
        let must_close = !matches!(standing, Standing::Good(_) | Standing::Unsure(_) | Standing::Same);
        let is_gone = matches!(standing, Standing::Gone(_));
        let renewed = match standing {
            Standing::Same => return,
            Standing::Good(access) | Standing::Unsure(access) | Standing::PasswordChanged(access) => access,
            Standing::Gone(access) => Arc::new(access.shut_out()),
        };
        self.renew_access(subscriber, Some(renewed));
        if state.will.is_some() {
            self.orphans.note(subscriber);
        }
        if !must_close {
            return;
        }
        if is_gone {
            state.expiry = SessionExpiry::WithConnection;
        }
        let epoch = state.epoch;
        let is_connected = state.connected.is_some();
        if is_connected {
            batch.wake_later(state.close(ReasonCode::NotAuthorized));
        }
        drop(state);
        if is_gone
            && !is_connected
            && let Some(will) = self.remove_if(subscriber, epoch, batch.writes())
        {
            self.publish_will(batch, subscriber, will, None, now);
        }
    }

    /// Routes in which the client's old rights stand are void, unless the new ones are the same.
    pub(super) fn renew_access(&self, subscriber: &Subscriber, access: Option<Arc<Access>>) {
        let old = subscriber.access();
        let is_same = match (&old, &access) {
            (Some(old), Some(new)) => old.grants_same(new),
            // Of whom nobody has said anything may do everything.
            (one, other) => !one.iter().chain(other).any(|access| access.has_rules()),
        };
        subscriber.set_access(access);
        if !is_same {
            self.subscriptions_changed(0);
        }
    }

    /// Ends a session whose connection `epoch` was its last. Gives back a will that was still waiting.
    fn remove_if(&self, subscriber: &Arc<Subscriber>, epoch: u64, writes: &mut Writes) -> Option<Will> {
        let Entry::Occupied(occupied) = self.registry.entry(Arc::clone(&subscriber.client_id)) else { return None };
        if occupied.get().id != subscriber.id {
            return None;
        }
        let mut state = subscriber.lock();
        if state.epoch != epoch || state.connected.is_some() {
            return None;
        }
        let will = state.will.take().map(|will| *will);
        if will.is_some() {
            self.orphans.note(subscriber);
        }
        self.end(subscriber, state, writes);
        occupied.remove();
        self.release(&subscriber.client_id);
        self.metrics.sessions.change(-1);
        will
    }

    /// The session is over. The state's lock is released before the trie's is taken.
    pub(super) fn end(&self, subscriber: &Arc<Subscriber>, mut state: MutexGuard<'_, State>, writes: &mut Writes) {
        let was_connected = state.connected.is_some();
        let ended = subscriber.end(&mut state, writes);
        ended.subscriptions.keys().for_each(|text| self.tell_filter_of(was_connected, text, false));
        drop(state);
        self.forget_state(&subscriber.client_id);
        self.forget_filters(subscriber.id, ended.subscriptions.keys().map(|text| &**text));
    }

    /// Takes a session's subscriptions out of the trie.
    pub(super) fn forget_filters<'a>(&self, subscriber: SubscriberId, filters: impl ExactSizeIterator<Item = &'a str>) {
        if filters.len() == 0 {
            return;
        }
        let mut subscriptions = self.subscriptions.write();
        let (mut removed, mut shared) = (0, 0);
        for text in filters {
            // They were checked when they were subscribed.
            let Ok(filter) = topic::parse_filter(text) else { continue };
            let was_there = i64::from(subscriptions.remove(filter.levels, filter.share, subscriber));
            removed += was_there;
            shared += was_there * i64::from(filter.share.is_some());
        }
        drop(subscriptions);
        self.metrics.shared_subscriptions.change(-shared);
        self.subscriptions_changed(-removed);
    }

    /// Publishes a will, and writes down in the same batch that it is `gone`. It goes out if its client may publish to its topic by now; if not,
    /// there is nobody left to be told.
    pub(super) fn publish_will(&self, batch: &mut Batch, subscriber: &Subscriber, will: Will, gone: Option<Change>, now: Instant) {
        if !subscriber.may_publish(&will.message.topic) {
            self.metrics.publishes_denied.add(1);
            gone.into_iter().for_each(|change| batch.writes().push(change));
            return;
        }
        let message = StoredMessage { expires_at: will.message_expiry.map(|rest| now + rest), ..will.message };
        if is_system(&message.topic) {
            // What a bridge says of itself is this broker's to show, and nobody else's.
            self.publish_state(batch, subscriber, &message.payload, message.retain, now);
        } else {
            self.publish(batch, &mut RouteCache::default(), &message.borrow(), Ingress::Will(subscriber), now);
        }
        gone.into_iter().for_each(|change| batch.writes().push(change));
    }

    pub(super) fn add_deadline(&self, at: Instant, due: Due, subscriber: &Arc<Subscriber>, epoch: u64) {
        self.deadlines.add(Deadline { at, due, subscriber: Arc::downgrade(subscriber), epoch });
    }
}

/// Where nobody says who clients are, each is as good as another.
fn is_same_user(old: &Subscriber, access: Option<&Access>) -> bool {
    match (old.access(), access) {
        (Some(old), Some(new)) => old.identity().is_same_user(new.identity()),
        (old, new) => old.is_none() && new.is_none(),
    }
}

/// Whether it has a will of which nobody knows yet whether its user may publish it.
fn has_awaited_will(subscriber: &Subscriber) -> bool {
    // Of others nobody can be asked before the client comes and shows what it has.
    let can_be_asked = |access: &Access| matches!(access.identity(), Identity::Vouched { by: Backend::Sql, .. });
    subscriber.access().is_some_and(|access| access.is_awaited() && can_be_asked(&access)) && subscriber.lock().will.is_some()
}

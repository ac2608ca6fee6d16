//! One message to everybody who wants it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::Router;
use super::gather::{Gathered, is_plain};
use super::picks::Offer;
use super::retained::Writer;
use super::route::{Elsewhere, Route, RouteCache, Target};
use super::share::{Chooser, EVERYBODY, SharedTargets, WHO_IS_HERE};
use super::system::is_system;
use crate::codec::{PacketId, QoS, ReasonCode};
use crate::ids::{BrokerId, MessageId, OriginLane, ShareId, Stamp};
use crate::pressure::Level;
use crate::replication::{Followed, LocalBatch, MeshMessage, Pick, PickList, Picks, Published, Replication, UNDECIDED};
use crate::session::{
    Delivery, Message, Outcome, Pumped, RESTORED_EPOCH, Run, Source, Subscriber, Variants, Writes, remaining_seconds,
};

/// Whence a message comes.
#[derive(Clone, Copy, Debug)]
pub enum Ingress<'a> {
    /// A client of this broker.
    Session(&'a Subscriber),
    /// This broker itself, for a client that is gone: its will.
    Will(&'a Subscriber),
    /// A link of the mesh; it is not sent back there.
    Link(Arrival<'a>),
    /// The same, for a message that was published while this broker was down: only sessions that it had then get it, and share groups for which it was picked.
    LinkAfterAbsence(Arrival<'a>),
    /// This broker itself, to its own clients: what is below `$SYS`.
    System,
}

/// What a link brings with a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival<'a> {
    /// If it is retained, when it was published.
    pub stamp: Option<Stamp>,
    /// Which broker gives it to which share group.
    pub picks: Picks<'a>,
    /// Its place in the log of the broker at which it was published; none of what this broker says to itself.
    pub id: Option<MessageId>,
}

/// What became of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// Handed to whoever wants it.
    Done,
    /// Nobody's subscription matches: not here, and there is no mesh.
    Unmatched,
    /// Sent to nobody: the store of retained messages is full.
    NotRetained,
    /// Sent to nobody: it would have to wait for somebody, and memory is full.
    NoMemory,
    /// Sent to nobody: the client may not publish to this topic.
    NotAllowed,
}

impl Routed {
    /// What PUBACK or PUBREC says.
    #[must_use]
    pub fn reason(self) -> ReasonCode {
        match self {
            Self::Done => ReasonCode::Success,
            Self::Unmatched => ReasonCode::NoMatchingSubscribers,
            Self::NotRetained | Self::NoMemory => ReasonCode::QuotaExceeded,
            Self::NotAllowed => ReasonCode::NotAuthorized,
        }
    }
}

/// What one read batch has touched. Belongs to a worker and is used again: in steady state nothing is allocated.
#[derive(Debug, Default)]
pub struct Batch {
    variants: Variants,
    writes: Writes,
    owners: Vec<Waker>,
    mesh: LocalBatch,
    /// Of the present message: which other brokers give it to a share group.
    pub(super) picks: PickList,
    /// Of QoS 0, what nobody here has been given yet.
    pub(super) gathered: Option<Gathered>,
    pub(super) run: Run,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    received: u64,
    received_bytes: u64,
    sent: u64,
    sent_bytes: u64,
    queued: u64,
    slow: u64,
    full: u64,
    too_large: u64,
    expired: u64,
    denied: u64,
}

impl Counts {
    /// What became of a message with a payload of `bytes`.
    fn add(&mut self, outcome: Outcome, bytes: usize) {
        match outcome {
            Outcome::Sent => {
                self.sent += 1;
                self.sent_bytes += bytes as u64;
            }
            Outcome::DroppedSlow => self.slow += 1,
            Outcome::DroppedFull => self.full += 1,
            Outcome::DroppedTooLarge => self.too_large += 1,
            Outcome::Queued => self.queued += 1,
            Outcome::QueuedInstead(dropped) => {
                self.queued += 1;
                self.full += u64::from(dropped);
            }
            Outcome::Staged | Outcome::Away => {}
        }
    }
}

impl Batch {
    /// The next message.
    pub(super) fn begin(&mut self, memory: Level) {
        self.variants.begin();
        self.variants.memory = memory;
        self.variants.source = None;
        self.variants.is_late = false;
        self.picks.clear();
    }

    /// Keeps a sleeping owner's waker until the batch is finished.
    pub(super) fn wake_later(&mut self, owner: Option<Waker>) {
        self.owners.extend(owner);
    }

    /// What other brokers must have dealt with before the batch is acknowledged: ids of this broker's log with their lanes. The next batch begins.
    #[must_use]
    pub fn take_published(&mut self) -> Published {
        self.mesh.take_published()
    }

    /// Whether a message of the batch so far had to wait for somebody.
    pub(super) fn has_queued(&self) -> bool {
        self.counts.queued > 0
    }

    pub(super) fn variants(&mut self) -> (&mut Variants, &mut Writes) {
        (&mut self.variants, &mut self.writes)
    }

    /// Messages are about to be published in it for which nobody else has entered: see [`LocalBatch::enter`].
    pub(super) fn enter(&mut self, mesh: &Replication) {
        self.mesh.enter(mesh);
    }

    /// What the batch writes of durable sessions and retained messages.
    pub fn writes(&mut self) -> &mut Writes {
        &mut self.writes
    }

    /// A client has published so many messages, with payloads of `bytes` together.
    pub fn count_received(&mut self, messages: usize, bytes: usize) {
        self.counts.received += messages as u64;
        self.counts.received_bytes += bytes as u64;
    }

    pub(super) fn count(&mut self, outcome: Outcome, bytes: usize) {
        self.counts.add(outcome, bytes);
    }

    /// A run was sent to somebody, or dropped.
    pub(super) fn count_run(&mut self, is_sent: bool, run: &Run) {
        let messages = run.len() as u64;
        if is_sent {
            self.counts.sent += messages;
            self.counts.sent_bytes += run.payload_bytes() as u64;
        } else {
            self.counts.slow += messages;
        }
    }

    pub(super) fn count_pumped(&mut self, pumped: Pumped) {
        self.counts.sent += pumped.sent;
        self.counts.sent_bytes += pumped.sent_bytes;
        self.counts.denied += pumped.denied;
        self.counts.expired += pumped.expired;
        self.counts.too_large += pumped.too_large;
    }
}

impl Router {
    /// Sends `message` to all who subscribed to its topic, retains it if it says so, and puts it into the mesh unless it comes from
    /// there.
    pub fn publish(
        &self,
        batch: &mut Batch,
        routes: &mut RouteCache,
        message: &Message<'_>,
        ingress: Ingress<'_>,
        now: Instant,
    ) -> Routed {
        let (publisher, writer) = match ingress {
            Ingress::Session(subscriber) => (Some(subscriber), Some(subscriber)),
            Ingress::Will(subscriber) => (None, Some(subscriber)),
            Ingress::Link(_) | Ingress::LinkAfterAbsence(_) | Ingress::System => (None, None),
        };
        let is_ours = matches!(ingress, Ingress::Session(_) | Ingress::Will(_));
        if let Some(mesh) = self.mesh().filter(|_| is_ours && message.qos != QoS::AtMostOnce) {
            batch.mesh.enter(mesh);
        }
        let route = if is_plain(message, &ingress) {
            match self.gather(batch, routes, message, publisher, now) {
                Ok(routed) => return routed,
                Err(route) => route,
            }
        } else {
            self.deliver_gathered(batch, now);
            self.route(routes, message.topic, publisher)
        };
        if !route.may_publish {
            self.metrics.publishes_denied.add(1);
            return Routed::NotAllowed;
        }
        let arrival = if let Ingress::Link(arrival) | Ingress::LinkAfterAbsence(arrival) = ingress { Some(arrival) } else { None };
        let picks = arrival.map_or(Picks::NONE, |arrival| arrival.picks);
        let memory = self.pressure.level();
        batch.begin(memory);
        let followed = (route.follows(message.qos) && is_ours).then(Followed::default);
        batch.variants.source = match arrival.and_then(|arrival| arrival.id) {
            Some(id) if route.follows(message.qos) => Some(Source::Link(id)),
            _ => followed.clone().map(Source::Own),
        };
        let mut stamp = None;
        if message.retain && !picks.only {
            match self.retained_for(message.topic).stamp(arrival.and_then(|arrival| arrival.stamp), now) {
                // A client's message that cannot be retained is refused as a whole; one that comes over a link was acknowledged elsewhere.
                Ok(given) if !self.retain(batch, message, writer, given, now) => {
                    self.metrics.dropped_retained_full.add(1);
                    if publisher.is_some() {
                        return Routed::NotRetained;
                    }
                    stamp = given;
                }
                Ok(given) => stamp = given,
                // It reaches who is there, like any other, and is not retained. Counted there.
                Err(_) => {}
            }
        }
        // One that comes over a link was acknowledged elsewhere: it is dropped for those for whom it would have to wait.
        let may_refuse = message.qos != QoS::AtMostOnce && publisher.is_some();
        let goes_elsewhere = |group| self.mesh().is_some_and(|mesh| route.goes_elsewhere(group, message.topic, mesh.interest()));
        if memory == Level::Full && may_refuse && route.would_queue(message.qos, memory, goes_elsewhere) {
            self.metrics.refused_memory.add(1);
            return Routed::NoMemory;
        }
        // None gets it who was not there when it was published; of QoS 0 is none to whom it is owed.
        let is_late = matches!(ingress, Ingress::LinkAfterAbsence(_));
        batch.variants.is_late = is_late;
        let is_owed = |target: &Target| {
            target.qos != QoS::AtMostOnce && (self.is_restored(target.subscriber.id) || target.subscriber.is_owed())
        };
        for target in route.targets.iter().filter(|_| !picks.only) {
            if target.no_local && publisher.is_some_and(|publisher| publisher.id == target.subscriber.id) {
                continue;
            }
            if is_late && !is_owed(target) {
                continue;
            }
            let outcome = batch.deliver(target, message, now, true);
            batch.counts.add(outcome, message.payload.len());
        }
        // A replica has what everybody gets; what share groups give is copied for it.
        batch.variants.source = None;
        let offer = Offer { route: &route, message, publisher, now };
        let Some(mesh) = self.mesh().filter(|_| is_ours || !picks.is_empty()) else {
            // What comes over a link is for the groups that were picked for this broker, and for no others.
            if arrival.is_none() {
                for group in &route.shared {
                    batch.deliver_to_one(group, message, now);
                }
            }
            return if route.is_empty() { Routed::Unmatched } else { Routed::Done };
        };
        if !is_ours {
            self.share_picked(batch, &offer, picks, mesh);
            batch.publish_picks(mesh, message, picks.round + 1, now);
            return Routed::Done;
        }
        self.publish_abroad(batch, &offer, (stamp, followed), mesh)
    }

    /// What a client of this broker has published goes to share groups, and to other brokers.
    pub(super) fn publish_abroad(
        &self,
        batch: &mut Batch,
        offer: &Offer<'_>,
        (stamp, followed): (Option<Stamp>, Option<Followed>),
        mesh: &Replication,
    ) -> Routed {
        let Offer { route, message, now, .. } = *offer;
        let elsewhere = route.elsewhere(message.topic, message.qos, mesh.interest());
        let is_undecided = elsewhere.is_blind && message.qos != QoS::AtMostOnce;
        if elsewhere.has_shares || is_undecided {
            self.share_out(batch, offer, is_undecided, mesh);
        } else {
            for group in &route.shared {
                batch.deliver_to_one(group, message, now);
            }
        }
        // Who subscribes later wants what is retained; of the rest, what nobody wants does not leave this broker.
        if message.retain || elsewhere.is_wanted {
            let picks = batch.picks.pages(false, 0).next().unwrap_or_default();
            batch.mesh.push_followed(mesh, &mesh_message(message, stamp, picks, now), followed);
            batch.picks.drop_page();
        } else if route.is_empty() && batch.picks.is_empty() {
            return Routed::Unmatched;
        }
        batch.publish_picks(mesh, message, 0, now);
        Routed::Done
    }

    /// From here to the end of the batch nobody is alone with the sessions: see [`LocalBatch::enter`]. No session is locked.
    pub fn enter(&self, batch: &mut Batch) {
        if let Some(mesh) = self.mesh() {
            batch.mesh.enter(mesh);
        }
    }

    /// How long the publisher of the batch is not to be read from, if it has made somebody's queue longer and memory is short.
    pub fn brake(&self, batch: &mut Batch, now: Instant) -> Option<Duration> {
        self.deliver_gathered(batch, now);
        if batch.has_queued() { self.pressure.brake() } else { None }
    }

    pub(super) fn route(&self, routes: &mut RouteCache, topic: &str, publisher: Option<&Subscriber>) -> Arc<Route> {
        let generation = self.generation.load(Ordering::Acquire);
        routes.route(topic, generation, || {
            let chooser = Chooser { strategy: self.limits.shared, publisher, hasher: self.registry.hasher() };
            Route::find(&self.subscriptions.read(), topic, &chooser)
        })
    }

    /// Whether a QoS 1 or 2 message of a client must be refused, for it would have to be on disk before it is acknowledged and nothing can be written. A repeat of
    /// one that was taken is not.
    pub fn must_refuse(
        &self,
        routes: &mut RouteCache,
        topic: &str,
        qos: QoS,
        retain: bool,
        publisher: &Subscriber,
        id: PacketId,
    ) -> bool {
        if !self.journal.as_ref().is_some_and(|journal| journal.is_failing()) {
            return false;
        }
        let state = publisher.lock();
        let (is_taken, is_durable) = (state.inbound.is_open(id), state.is_durable());
        drop(state);
        let must_refuse = match qos {
            QoS::AtMostOnce => false,
            QoS::ExactlyOnce if is_taken => false,
            QoS::ExactlyOnce if is_durable => true,
            QoS::AtLeastOnce | QoS::ExactlyOnce => {
                let route = self.route(routes, topic, Some(publisher));
                let is_logged = |mesh: &Arc<Replication>| {
                    mesh.is_durable() && route.elsewhere(topic, qos, mesh.interest()) != Elsewhere::default()
                };
                retain || route.would_write() || self.mesh().is_some_and(is_logged)
            }
        };
        self.metrics.refused_store.add(u64::from(must_refuse));
        must_refuse
    }

    /// Ends a batch: what it published goes to the lane rings, what it wrote to the journal, then the owners of touched outboxes are woken.
    pub fn finish(&self, batch: &mut Batch, now: Instant) {
        self.finish_asleep(batch, now);
        batch.owners.drain(..).for_each(Waker::wake);
    }

    /// Likewise, but nobody is woken yet.
    fn finish_asleep(&self, batch: &mut Batch, now: Instant) {
        self.deliver_gathered(batch, now);
        if let Some(mesh) = self.mesh() {
            mesh.publish(&mut batch.mesh, &mut batch.writes, now);
        }
        if let Some(journal) = &self.journal {
            journal.append(&mut batch.writes);
        }
        // Not before: whoever is exclusive then writes down what goes by what this batch did.
        batch.mesh.leave();
        if let Some(journal) = &self.journal {
            journal.kick();
        }
        let counts = std::mem::take(&mut batch.counts);
        self.metrics.messages_received.add(counts.received);
        self.metrics.payload_bytes_received.add(counts.received_bytes);
        self.metrics.messages_sent.add(counts.sent);
        self.metrics.payload_bytes_sent.add(counts.sent_bytes);
        self.metrics.dropped_qos0.add(counts.slow);
        self.metrics.dropped_queue_full.add(counts.full);
        self.metrics.dropped_too_large.add(counts.too_large);
        self.metrics.dropped_expired.add(counts.expired);
        self.metrics.dropped_denied.add(counts.denied);
    }

    /// [MQTT-3.3.1-5, -6, -7]: an empty payload deletes. False if there is no room for one more.
    fn retain(
        &self,
        batch: &mut Batch,
        message: &Message<'_>,
        writer: Option<&Subscriber>,
        stamp: Option<Stamp>,
        now: Instant,
    ) -> bool {
        let store = self.retained_for(message.topic);
        let written = match () {
            () if message.payload.is_empty() => Some(store.remove(message.topic, stamp, now)),
            // As where the store is full: the old message is no longer what was published last.
            () if batch.variants.memory == Level::Full || (message.qos == QoS::AtMostOnce && store.is_behind()) => {
                match stamp.filter(|_| writer.is_none()) {
                    Some(stamp) => store.outdate(message.topic, stamp, now),
                    None => store.forget(message.topic),
                }
                None
            }
            () => {
                let stored = batch.variants.stored(message);
                let by = writer.and_then(writer_of);
                let has_rules = by.is_some();
                let written = match writer {
                    Some(_) => store.set(Arc::clone(&stored), stamp, by),
                    None => store.follow(Arc::clone(&stored), stamp, now),
                }
                .ok();
                // The rules may have changed since the route was found, and what was retained by then has been looked at already.
                if has_rules && writer.is_some_and(|writer| !writer.may_publish(message.topic)) {
                    store.take_back(&stored, now);
                }
                written
            }
        };
        let is_retained = written.is_some();
        written.into_iter().flatten().for_each(|number| batch.writes.wait_for(number));
        is_retained
    }
}

/// As a client published it.
fn as_published<'a>(message: &MeshMessage<'a>, now: Instant) -> Message<'a> {
    Message {
        topic: message.topic,
        payload: message.payload,
        qos: message.qos,
        retain: message.retain,
        expires_at: message.expiry_seconds.map(|seconds| now + Duration::from_secs(u64::from(seconds))),
        properties: message.properties,
    }
}

/// As the mesh carries it.
fn mesh_message<'a>(message: &Message<'a>, stamp: Option<Stamp>, picks: Picks<'a>, now: Instant) -> MeshMessage<'a> {
    MeshMessage {
        topic: message.topic,
        payload: message.payload,
        qos: message.qos,
        retain: message.retain,
        expiry_seconds: message.expires_at.map(|at| remaining_seconds(at, now)),
        properties: message.properties,
        stamp,
        picks,
    }
}

/// Who retains something; none if there are no rules about what it may say.
fn writer_of(publisher: &Subscriber) -> Option<Writer> {
    let access = publisher.access().filter(|access| access.has_rules())?;
    Some(Writer { client_id: Arc::clone(&publisher.client_id), access: access.left_behind() })
}

impl Batch {
    /// A message goes to one member of a group: in turn to one that is connected and has room, then to one that keeps its session. Whether one
    /// took it.
    pub(super) fn deliver_to_one(&mut self, group: &SharedTargets, message: &Message<'_>, now: Instant) -> bool {
        let turn = group.next_turn();
        let is_here = self.offer(group, turn, message, now, WHO_IS_HERE);
        let given = is_here.or_else(|_| self.offer(group, turn, message, now, EVERYBODY));
        if let Err(outcome) = given {
            self.counts.add(outcome, message.payload.len());
        }
        given.is_ok()
    }

    /// Offers a message to the members of a group, beginning with the one whose `turn` it is, until one takes it. If none does: what became of it at the last that
    /// might have.
    pub(super) fn offer(
        &mut self,
        group: &SharedTargets,
        turn: usize,
        message: &Message<'_>,
        now: Instant,
        even_if_away: bool,
    ) -> Result<(), Outcome> {
        let mut last = Outcome::Away;
        // One that leaves for another broker comes last.
        let staying = group.rotation(turn).filter(|member| !member.subscriber.is_moving());
        let leaving = group.rotation(turn).filter(|member| even_if_away && member.subscriber.is_moving());
        for member in staying.chain(leaving) {
            let outcome = self.deliver(member, message, now, even_if_away);
            if matches!(outcome, Outcome::Sent | Outcome::Staged | Outcome::Queued | Outcome::QueuedInstead(_)) {
                self.counts.add(outcome, message.payload.len());
                if member.subscriber.is_moving() || member.subscriber.is_latest(RESTORED_EPOCH) {
                    member.subscriber.lock().leave_behind(group.id, self.variants.stored(message));
                }
                return Ok(());
            }
            if outcome != Outcome::Away {
                last = outcome;
            }
        }
        Err(last)
    }

    /// Puts the message into the mesh once more for those that are picked and do not get it otherwise.
    fn publish_picks(&mut self, mesh: &Replication, message: &Message<'_>, round: u8, now: Instant) {
        for picks in self.picks.pages(true, round) {
            self.mesh.push(mesh, &mesh_message(message, None, picks, now));
        }
    }

    /// Puts messages of one topic and QoS, without RETAIN and for nobody in particular, into the mesh.
    pub(super) fn publish_run<'a>(&mut self, mesh: &Replication, messages: impl Iterator<Item = Message<'a>>, now: Instant) {
        self.mesh.push_all(mesh, messages.map(|message| mesh_message(&message, None, Picks::NONE, now)));
    }

    /// One copy to one receiver; `Away` if it is not connected and `even_if_away` is not said, or nothing is kept for it.
    pub(super) fn deliver(&mut self, target: &Target, message: &Message<'_>, now: Instant, even_if_away: bool) -> Outcome {
        let mut state = target.subscriber.lock();
        let qos = message.qos.min(target.qos);
        let delivery = Delivery {
            qos,
            retain: message.retain && target.retain_as_published,
            // What went out at QoS 1 just before a crash was not written down yet.
            dup: self.variants.is_late && qos == QoS::AtLeastOnce && state.is_cut_off,
            subscription_ids: target.subscription_ids.as_deref().unwrap_or_default(),
        };
        if state.connected.is_none() && !even_if_away {
            return Outcome::Away;
        }
        let (outcome, owner) = state.deliver(&mut self.variants, &mut self.writes, message, &delivery, now);
        drop(state);
        self.owners.extend(owner);
        outcome
    }
}

/// Deliveries of one link reader: messages of the mesh to local clients.
#[derive(Debug)]
pub struct LinkDelivery {
    router: Arc<Router>,
    batch: Batch,
    routes: RouteCache,
}

impl LinkDelivery {
    /// A reader's own state.
    #[must_use]
    pub fn new(router: Arc<Router>) -> Self {
        Self { router, batch: Batch::default(), routes: RouteCache::of_link() }
    }

    /// Hands one message to the local subscribers. What a peer says below `$SYS` is not of this broker.
    pub fn deliver(&mut self, message: &MeshMessage<'_>, id: MessageId, now: Instant) {
        self.publish(message, Ingress::Link(Arrival { stamp: message.stamp, picks: message.picks, id: Some(id) }), now);
    }

    /// Hands one message that was published while this broker was down to those to whom it is owed.
    pub fn catch_up(&mut self, message: &MeshMessage<'_>, id: MessageId, now: Instant) {
        let arrival = Arrival { stamp: message.stamp, picks: message.picks, id: Some(id) };
        self.publish(message, Ingress::LinkAfterAbsence(arrival), now);
    }

    /// What was handed on so far is all of `stream` up to `cover`.
    pub fn covered(&mut self, stream: OriginLane, cover: u64) {
        if self.router.journal.is_some() {
            self.batch.writes.cover(stream, cover);
        }
    }

    fn publish(&mut self, message: &MeshMessage<'_>, ingress: Ingress<'_>, now: Instant) {
        if is_system(message.topic) {
            return;
        }
        let message = as_published(message, now);
        self.router.publish(&mut self.batch, &mut self.routes, &message, ingress, now);
    }

    /// Picks again for a message of this broker's own what was picked for `broker`: see [`Deliver::pick_again`](crate::replication::Deliver::pick_again).
    pub fn pick_again(&mut self, message: &MeshMessage<'_>, broker: BrokerId, may_be_same: bool, now: Instant) -> usize {
        let picks = message.picks;
        let (router, batch) = (&self.router, &mut self.batch);
        let Some(mesh) = router.mesh() else { return 0 };
        let message = as_published(message, now);
        let route = router.route(&mut self.routes, message.topic, None);
        batch.begin(router.pressure.level());
        let offer = Offer { route: &route, message: &message, publisher: None, now };
        let placed = router.share_again(batch, &offer, picks, (broker, may_be_same), mesh);
        batch.publish_picks(mesh, &message, 0, now);
        placed
    }

    /// Picks for a message of this broker's own for groups that were not known: see [`Deliver::share_late`](crate::replication::Deliver::share_late).
    pub fn share_late(&mut self, message: &MeshMessage<'_>, is_new: &mut dyn FnMut(ShareId) -> bool, now: Instant) {
        let picks = message.picks;
        let (router, batch) = (&self.router, &mut self.batch);
        let Some(mesh) = router.mesh() else { return };
        let message = as_published(message, now);
        let route = router.route(&mut self.routes, message.topic, None);
        batch.begin(router.pressure.level());
        router.share_late(batch, &Offer { route: &route, message: &message, publisher: None, now }, picks, is_new, mesh);
        batch.publish_picks(mesh, &message, 0, now);
    }

    /// Says in this broker's log that all before is decided: see [`Deliver::decided`](crate::replication::Deliver::decided).
    pub fn decided(&mut self, topic: &str, now: Instant) {
        let Some(mesh) = self.router.mesh() else { return };
        let batch = &mut self.batch;
        batch.begin(self.router.pressure.level());
        batch.picks.push(Pick { share: UNDECIDED, broker: mesh.interest().own_id() });
        let message = Message { topic, payload: b"", qos: QoS::AtLeastOnce, retain: false, expires_at: None, properties: &[] };
        batch.publish_picks(mesh, &message, 0, now);
    }

    /// Whether a message of this topic, with these picks, would be for somebody here, or this broker has to find who takes it.
    pub fn wants(&mut self, topic: &str, picks: Picks<'_>) -> bool {
        if is_system(topic) {
            return false;
        }
        let is_picked = || self.router.mesh().is_some_and(|mesh| picks.name(mesh.interest().own_id()));
        is_picked() || (!picks.only && !self.router.route(&mut self.routes, topic, None).targets.is_empty())
    }

    /// Ends the batch.
    pub fn flush(&mut self, now: Instant) {
        self.router.finish(&mut self.batch, now);
    }

    /// Likewise, but gives the owners of touched outboxes, who are to be woken.
    #[must_use = "owners that are not woken sleep for ever"]
    pub fn flush_asleep(&mut self, now: Instant) -> std::vec::Drain<'_, Waker> {
        self.router.finish_asleep(&mut self.batch, now);
        self.batch.owners.drain(..)
    }
}

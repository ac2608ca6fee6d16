//! A subscriber: acknowledges, checks and books what arrives.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::num::NonZeroU16;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

use super::Shared;
use super::connection::{Connection, ConnectionPlan};
use super::fault::Fault;
use super::gate::{Gate, Phase};
use crate::clock::now_ns;
use crate::ledger::{Arrival, Flow};
use crate::payload::{self, PayloadFault};
use crate::tally::{Latencies, Tally};
use crate::wire::{
    Frame, PacketKind, Publish, QoS, Version, WireFault, acknowledgement, publish, suback, subscribe, write_acknowledgement,
};

/// Nothing more is read while so many bytes of acknowledgements wait for a broker that does not read them.
const QUEUED_BYTES_MAX: usize = 1024 * 1024;

/// Publishers one subscriber can tell apart; messages of others count as foreign.
const FLOWS_MAX: usize = 1_000_000;

/// Whose messages a flow holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub(crate) run: u32,
    pub(crate) publisher: u32,
}

/// What a subscriber listens to.
#[derive(Clone, Debug)]
pub(crate) struct SubscriberPlan {
    /// Its number in the run.
    pub(crate) index: u32,
    pub(crate) filter: String,
    pub(crate) qos: QoS,
    /// The one publisher expected, if it is one of this run; its topic is then the filter.
    pub(crate) publisher: Option<u32>,
}

/// See the module.
pub(crate) struct Subscriber {
    connection: Connection,
    inbox: Inbox,
    /// The subscriber's own doorbell.
    gate: Arc<Gate>,
    /// The doorbell of the publisher it listens to.
    publisher: Option<Arc<Gate>>,
    shared: Arc<Shared>,
}

impl Subscriber {
    /// Connects, subscribes and waits for the broker's consent.
    ///
    /// # Errors
    /// When the broker refuses, lowers the quality of service, or fails.
    pub(crate) async fn open(
        connection: &ConnectionPlan,
        plan: SubscriberPlan,
        gate: Arc<Gate>,
        publisher: Option<Arc<Gate>>,
        shared: Arc<Shared>,
    ) -> Result<Self, Fault> {
        let timeout = connection.timeout;
        let mut connection = Connection::open(connection).await?;
        subscribe(connection.version(), [plan.filter.as_str()], plan.qos, connection.out()).map_err(Fault::Unwritable)?;
        let inbox = Inbox::new(plan, shared.run, connection.version());
        let mut subscriber = Self { connection, inbox, gate, publisher, shared };
        let granted = poll_fn(|cx| match subscriber.poll(cx) {
            Poll::Pending if subscriber.inbox.subscribed => Poll::Ready(Ok(())),
            other => other,
        });
        tokio::time::timeout(timeout, granted).await.unwrap_or(Err(Fault::NoAnswer(timeout)))?;
        Ok(subscriber)
    }

    /// Receives until the run closes, then disconnects.
    ///
    /// # Errors
    /// When the connection or the broker fails.
    pub(crate) async fn run(&mut self) -> Result<(), Fault> {
        poll_fn(|cx| self.poll(cx)).await?;
        self.connection.close().await
    }

    /// Its number in the run, and the ledgers of all it has heard.
    pub(crate) fn into_flows(self) -> (u32, Vec<(FlowKey, Flow)>) {
        (self.inbox.plan.index, self.inbox.flows.list)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.gate.register(cx.waker());
        self.connection.keep_alive(cx, false)?;
        loop {
            let backed_up = self.connection.queued_bytes() >= QUEUED_BYTES_MAX;
            let read = if backed_up { Poll::Pending } else { self.read(cx)? };
            let flushed = self.connection.poll_flush(cx)?;
            if self.shared.phase.now() == Phase::Close {
                return Poll::Ready(Ok(()));
            }
            let waiting = if backed_up { flushed.is_pending() } else { read.is_pending() };
            if waiting {
                return Poll::Pending;
            }
        }
    }

    /// Takes one batch from the socket, and books it.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let mut batch = Batch::new(&self.shared.tally, self.inbox.plan.index);
        let read = self.connection.poll_frames(cx, |frame, out| self.inbox.take(frame, out, &mut batch));
        batch.book(self.publisher.as_deref());
        read
    }
}

/// Everything about what arrives that needs no socket.
struct Inbox {
    plan: SubscriberPlan,
    run: u32,
    version: Version,
    subscribed: bool,
    flows: Flows,
    /// QoS 2: packet ids that have been received and not yet released.
    unreleased: PacketIds,
}

impl Inbox {
    fn new(plan: SubscriberPlan, run: u32, version: Version) -> Self {
        let mut flows = Flows::default();
        if let Some(publisher) = plan.publisher {
            flows.expect(FlowKey { run, publisher });
        }
        Self { plan, run, version, subscribed: false, flows, unreleased: PacketIds::default() }
    }

    #[inline]
    fn take(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>, batch: &mut Batch<'_>) -> Result<(), Fault> {
        match frame.kind {
            PacketKind::Publish => {
                let publish = publish(frame, self.version)?;
                if self.acknowledge(&publish, out) {
                    self.deliver(&publish, batch)?;
                }
            }
            PacketKind::PubRel => {
                let (id, _) = acknowledgement(frame, self.version)?;
                self.unreleased.remove(id);
                write_acknowledgement(PacketKind::PubComp, id, out);
            }
            PacketKind::SubAck if !self.subscribed => self.granted(frame)?,
            unexpected => return Err(WireFault::Unexpected(unexpected).into()),
        }
        Ok(())
    }

    fn granted(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        let granted = suback(frame, self.version, 1)?
            .map_err(|reason| Fault::SubscriptionRefused { filter: self.plan.filter.clone(), reason })?;
        if granted < self.plan.qos {
            return Err(Fault::QosLowered { asked: self.plan.qos, granted });
        }
        self.subscribed = true;
        Ok(())
    }

    /// Queues the answer a PUBLISH asks for; false if it is the repetition of one that is not released yet.
    #[inline]
    fn acknowledge(&mut self, publish: &Publish<'_>, out: &mut Vec<u8>) -> bool {
        match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(id)) => write_acknowledgement(PacketKind::PubAck, id, out),
            (QoS::ExactlyOnce, Some(id)) => {
                write_acknowledgement(PacketKind::PubRec, id, out);
                return self.unreleased.insert(id);
            }
            _ => {}
        }
        true
    }

    #[inline]
    fn deliver(&mut self, publish: &Publish<'_>, batch: &mut Batch<'_>) -> Result<(), Fault> {
        let stamp = payload::read(publish.payload);
        let Some(publisher) = self.plan.publisher else {
            match stamp {
                Ok(stamp) => {
                    let key = FlowKey { run: stamp.run, publisher: stamp.publisher };
                    match self.flows.of(key, stamp.sequence) {
                        Some(flow) => batch.arrived(flow.book(stamp.sequence), stamp.due_at_ns),
                        None => batch.foreign += 1,
                    }
                }
                Err(PayloadFault::Foreign) => batch.foreign += 1,
                Err(PayloadFault::Corrupted) => batch.corrupted += 1,
            }
            return Ok(());
        };
        if publish.qos != self.plan.qos {
            return Err(Fault::QosChanged { asked: self.plan.qos, delivered: publish.qos });
        }
        // The topic holds the run's number, so whatever else arrives on it, or under another, has been mangled.
        let expected = FlowKey { run: self.run, publisher };
        match stamp {
            Ok(stamp) if (stamp.run, stamp.publisher) == (self.run, publisher) && publish.topic == self.plan.filter.as_bytes() => {
                if let Some(flow) = self.flows.of(expected, stamp.sequence) {
                    batch.arrived(flow.book(stamp.sequence), stamp.due_at_ns);
                }
            }
            _ => batch.corrupted += 1,
        }
        Ok(())
    }
}

/// The ledgers of one subscriber, by publisher. Messages of one publisher mostly come in runs, so the last ledger is tried
/// first.
#[derive(Default)]
struct Flows {
    list: Vec<(FlowKey, Flow)>,
    places: HashMap<FlowKey, usize>,
    last: usize,
}

impl Flows {
    /// A flow from its first message on.
    fn expect(&mut self, key: FlowKey) {
        self.places.insert(key, self.list.len());
        self.list.push((key, Flow::default()));
    }

    /// The flow of `key`, joined at `sequence` if it is new; `None` when there are too many.
    #[inline]
    fn of(&mut self, key: FlowKey, sequence: u64) -> Option<&mut Flow> {
        if self.list.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = self.place(key, sequence)?;
        }
        self.list.get_mut(self.last).map(|(_, flow)| flow)
    }

    #[cold]
    fn place(&mut self, key: FlowKey, sequence: u64) -> Option<usize> {
        let places = self.places.len();
        match self.places.entry(key) {
            Entry::Occupied(place) => Some(*place.get()),
            Entry::Vacant(_) if places >= FLOWS_MAX => None,
            Entry::Vacant(vacant) => {
                self.list.push((key, Flow::joined_at(sequence)));
                Some(*vacant.insert(places))
            }
        }
    }
}

/// A set of packet ids: one bit each, and no memory until the first is in it.
#[derive(Default)]
pub(crate) struct PacketIds(Vec<u64>);

impl PacketIds {
    /// False if it was there.
    pub(crate) fn insert(&mut self, id: NonZeroU16) -> bool {
        self.0.resize(usize::from(u16::MAX) / 64 + 1, 0);
        let (place, bit) = Self::place(id);
        self.0.get_mut(place).is_some_and(|word| {
            let absent = *word & bit == 0;
            *word |= bit;
            absent
        })
    }

    pub(crate) fn remove(&mut self, id: NonZeroU16) {
        let (place, bit) = Self::place(id);
        if let Some(word) = self.0.get_mut(place) {
            *word &= !bit;
        }
    }

    fn place(id: NonZeroU16) -> (usize, u64) {
        (usize::from(id.get()) / 64, 1 << (id.get() % 64))
    }
}

/// What one read brought, booked at its end.
struct Batch<'a> {
    tally: &'a Tally,
    subscriber: u32,
    /// When the messages that came last were due, and how many of them there were: those sent in one write are due together,
    /// and so are measured together.
    due: (u64, u64),
    measuring: Option<Measuring<'a>>,
    advanced: u64,
    delivered: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    foreign: u64,
}

/// How long the messages of a batch took.
struct Measuring<'a> {
    /// When the batch was read.
    now_ns: u64,
    /// Messages due earlier are not measured.
    from_ns: u64,
    latencies: MutexGuard<'a, Latencies>,
}

impl<'a> Batch<'a> {
    fn new(tally: &'a Tally, subscriber: u32) -> Self {
        let (due, advanced, delivered, duplicated, reordered, corrupted, foreign) = Default::default();
        Self { tally, subscriber, due, measuring: None, advanced, delivered, duplicated, reordered, corrupted, foreign }
    }

    #[inline]
    fn arrived(&mut self, arrival: Arrival, due_at_ns: u64) {
        match arrival {
            Arrival::Forward { advanced } => self.advanced += advanced,
            Arrival::Late => self.reordered += 1,
            Arrival::Duplicate => {
                self.duplicated += 1;
                return;
            }
        }
        self.delivered += 1;
        if due_at_ns != self.due.0 {
            self.measure();
            self.due = (due_at_ns, 0);
        }
        self.due.1 += 1;
    }

    /// Records the latency of the messages that came last.
    fn measure(&mut self) {
        let (due_at_ns, messages) = self.due;
        if messages == 0 {
            return;
        }
        let (tally, subscriber) = (self.tally, self.subscriber);
        let measuring = self.measuring.get_or_insert_with(|| Measuring {
            now_ns: now_ns(),
            from_ns: tally.measured_from_ns(),
            latencies: tally.latencies_of(subscriber),
        });
        if due_at_ns >= measuring.from_ns {
            measuring.latencies.saturating_record_n(measuring.now_ns.saturating_sub(due_at_ns), messages);
        }
    }

    fn book(mut self, publisher: Option<&Gate>) {
        self.measure();
        self.tally.delivered.add(self.delivered);
        self.tally.duplicated.add(self.duplicated);
        self.tally.reordered.add(self.reordered);
        self.tally.corrupted.add(self.corrupted);
        self.tally.foreign.add(self.foreign);
        if let Some(publisher) = publisher.filter(|_| self.advanced > 0) {
            publisher.pass(self.advanced);
        }
    }
}

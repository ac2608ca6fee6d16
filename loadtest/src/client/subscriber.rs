//! A subscriber: acknowledges, checks and books what arrives.

use std::future::poll_fn;
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Shared;
use super::batch::Batch;
use super::connection::{Connection, ConnectionPlan};
use super::fault::Fault;
use super::flows::{FlowKey, Flows};
use super::gate::{Gate, Phase};
use crate::ledger::Flow;
use crate::payload::{self, PayloadFault};
use crate::spread::Topics;
use crate::wire::{
    Frame, PacketKind, Publish, QoS, Version, WireFault, acknowledgement, publish, suback, subscribe, write_acknowledgement,
};

/// Nothing more is read while so many bytes of acknowledgements wait for a broker that does not read them.
const QUEUED_BYTES_MAX: usize = 1024 * 1024;

/// What a subscriber listens to.
#[derive(Clone, Debug)]
pub(crate) struct SubscriberPlan {
    /// Its number in the run.
    pub(crate) index: u32,
    pub(crate) filter: String,
    pub(crate) qos: QoS,
    pub(crate) hears: Hears,
}

/// Whom a subscriber listens to.
#[derive(Clone, Debug)]
pub(crate) enum Hears {
    /// Whoever publishes what its filter matches, of any run.
    Anyone,
    /// These publishers of its own run, and nobody else.
    Ours { publishers: Range<u32>, topics: Topics },
}

/// See the module.
pub(crate) struct Subscriber {
    connection: Connection,
    inbox: Inbox,
    /// The subscriber's own doorbell.
    gate: Arc<Gate>,
    /// The doorbells of all publishers of the run.
    publishers: Arc<[Arc<Gate>]>,
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
        publishers: Arc<[Arc<Gate>]>,
        shared: Arc<Shared>,
    ) -> Result<Self, Fault> {
        let timeout = connection.timeout;
        let mut connection = Connection::open(connection).await?;
        subscribe(connection.version(), [plan.filter.as_str()], plan.qos, connection.out()).map_err(Fault::Unwritable)?;
        let inbox = Inbox::new(plan, shared.run, connection.version());
        let mut subscriber = Self { connection, inbox, gate, publishers, shared };
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
        (self.inbox.plan.index, self.inbox.flows.into_list())
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
        let mut batch = Batch::new(&self.shared.tally, self.inbox.plan.index, &self.publishers);
        let read = self.connection.poll_frames(cx, |frame, out| self.inbox.take(frame, out, &mut batch));
        batch.book();
        read
    }
}

/// Everything about what arrives that needs no socket.
struct Inbox {
    plan: SubscriberPlan,
    version: Version,
    subscribed: bool,
    flows: Flows,
    last: Heard,
    /// QoS 2: packet ids that have been received and not yet released.
    unreleased: PacketIds,
}

impl Inbox {
    fn new(plan: SubscriberPlan, run: u32, version: Version) -> Self {
        let expected = match &plan.hears {
            Hears::Anyone => 0..0,
            Hears::Ours { publishers, topics } => topics.flows(publishers.clone()),
        };
        // Of nobody, and under no topic.
        let last = Heard { key: FlowKey { run: !run, flow: 0 }, publisher: 0, topic: vec![0] };
        let flows = Flows::new(run, expected);
        Self { plan, version, subscribed: false, flows, last, unreleased: PacketIds::default() }
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
        let Hears::Ours { topics, .. } = &self.plan.hears else {
            match stamp {
                Ok(stamp) => match self.flows.of(FlowKey { run: stamp.run, flow: stamp.flow }, stamp.sequence) {
                    Some(flow) => batch.arrived(flow.book(stamp.sequence), stamp.due_at_ns, None),
                    None => batch.foreign += 1,
                },
                Err(PayloadFault::Foreign) => batch.foreign += 1,
                Err(PayloadFault::Corrupted) => batch.corrupted += 1,
            }
            return Ok(());
        };
        if publish.qos != self.plan.qos {
            return Err(Fault::QosChanged { asked: self.plan.qos, delivered: publish.qos });
        }
        // The topic holds the run's number, so whatever else arrives on it, or under another, has been mangled.
        let Ok(stamp) = stamp else {
            batch.corrupted += 1;
            return Ok(());
        };
        let key = FlowKey { run: stamp.run, flow: stamp.flow };
        if key != self.last.key || !payload::are_same(publish.topic, &self.last.topic) {
            if !self.flows.expects(key) || topics.flow_at(publish.topic) != Some(stamp.flow) {
                batch.corrupted += 1;
                return Ok(());
            }
            (self.last.key, self.last.publisher) = (key, topics.publisher(stamp.flow));
            self.last.topic.clear();
            self.last.topic.extend_from_slice(publish.topic);
        }
        if let Some(flow) = self.flows.of(key, stamp.sequence) {
            batch.arrived(flow.book(stamp.sequence), stamp.due_at_ns, Some(self.last.publisher));
        }
        Ok(())
    }
}

/// A flow whose message was right: the next most likely is of the same.
struct Heard {
    key: FlowKey,
    publisher: u32,
    topic: Vec<u8>,
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

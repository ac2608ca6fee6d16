//! One link: an admitted pair of connections, its tasks, and what they share.
//!
//! | task | duty |
//! |---|---|
//! | link | control stream both ways, hellos, detection, accepting lanes; ends the link |
//! | lane writer | `lanes::write` |
//! | lane readers | `lanes::accept` |
//! | bulk writer, bulk reader | `bulk` |
//!
//! Whatever goes wrong in any of them ends the link, once, with a reason ([`Link::fail`]); the driver is told by [`Event::Down`]. The tasks
//! wait for the driver's queue; the driver waits for none of them.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use quinn::{Connection, ConnectionStats, FrameStats, SendStream};
use tokio::sync::{Notify, mpsc};
use tokio::time::MissedTickBehavior;
use tracing::{Instrument, debug, info};

use super::bulk::{self, Bulk};
use super::control::{ControlQueue, ControlReader};
use super::credit::{Credit, Reports};
use super::driver::{OwnedProbe, RegisterWord};
use super::error::LinkError;
use super::handshake::{Candidate, Local, Peer, refuse};
use super::post::PostOffice;
use super::{DeliverFactory, endpoint, lanes};
use crate::clock;
use crate::frame::control::{ControlFrame, Seal};
use crate::frame::trace::TraceId;
use crate::ids::{LaneId, OpenMark, OpenNumber, PortId, TreeId};
use crate::interest::Told;
use crate::link::{Cost, Detection, Path};
use crate::replication::{Port, Replication};
use crate::shared::Signature;
use crate::shared::register::{DeltaMode, End, Have, Page, Want};
use crate::shared::retained::RetainedCopies;
use crate::shared::trace::Answered;
use crate::stp::Bpdu;
use crate::task;

/// Looks at a link's life per hello.
const TICKS_PER_HELLO: u32 = 4;
/// A living peer that has consumed nothing of what is on its way for this many detection times, and for [`STALL_MIN`], is wedged.
///
/// Not one detection time: that would end links on which a burst of loss holds up all lanes at once.
const STALL_DETECTION_TIMES: u32 = 4;
const STALL_MIN: Duration = Duration::from_secs(2);
/// Lanes that have more on their way, or bring more from one look to the next, may be what makes a round trip long.
const BUSY_BYTES: u64 = 16 * 1024;

/// What a link tells the driver.
#[derive(Debug)]
pub(super) enum Event {
    Certificate { port: PortId, slot: u16, chain: Bytes },
    Claim { port: PortId, tree: TreeId, seal: OwnedSeal },
    Bpdu { port: PortId, bpdu: Bpdu },
    OpenReceived { port: PortId, open: OpenMark },
    CloseReceived { port: PortId, number: OpenNumber },
    LanesClosed { port: PortId, number: OpenNumber },
    Record { port: PortId, wire: Bytes, seal: OwnedSeal },
    Register { port: PortId, word: RegisterWord },
    Behind { port: PortId, members: Told },
    Trace { port: PortId, probe: OwnedProbe },
    Traced { port: PortId, id: TraceId, answer: Answered },
    Measured { port: PortId, measured: Measured },
    Down { port: PortId, error: LinkError },
}

/// A [`Seal`] as it came, with nothing checked.
#[derive(Debug)]
pub(super) struct OwnedSeal {
    pub(super) slot: u16,
    scheme: u16,
    signature: Bytes,
}

impl OwnedSeal {
    fn new(seal: &Seal<'_>) -> Self {
        Self { slot: seal.slot, scheme: seal.scheme, signature: Bytes::copy_from_slice(seal.signature) }
    }

    /// With the certificate of its slot.
    pub(super) fn signature(&self, chain: &Bytes) -> Signature {
        Signature { chain: chain.clone(), scheme: self.scheme, bytes: self.signature.clone() }
    }
}

/// What a link was found to be like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) cost: NonZeroU32,
    /// Shortest round trip of the last window.
    pub(super) rtt: Duration,
    /// Share of packets lost lately.
    pub(super) loss: f64,
}

/// How a link is at present.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    /// How long the peer may be silent.
    pub(super) detection_time: Duration,
    /// Share of packets lost among the last few.
    pub(super) loss: f64,
    /// By how much the peer's hellos come out of their rhythm, on average.
    pub(super) hello_jitter: Duration,
}

impl From<&Detection> for Health {
    fn from(detection: &Detection) -> Self {
        Self { detection_time: detection.detection_time(), loss: detection.loss(), hello_jitter: detection.hello_jitter() }
    }
}

/// What of this broker a link brings to its peer, and the peer's to.
pub(super) struct LocalSide {
    pub(super) deliver: DeliverFactory,
    pub(super) retained: Arc<dyn RetainedCopies>,
    pub(super) replication: Arc<Replication>,
    pub(super) post: Arc<PostOffice>,
}

/// What a link's tasks and the driver share.
pub(super) struct Link {
    pub(super) id: PortId,
    pub(super) peer: Peer,
    pub(super) we_dialled: bool,
    /// Carries the control stream and the hellos.
    pub(super) control: Connection,
    /// Carries the lanes.
    pub(super) lanes: Connection,
    pub(super) port: Arc<Port>,
    pub(super) deliver: DeliverFactory,
    pub(super) retained: Arc<dyn RetainedCopies>,
    pub(super) replication: Arc<Replication>,
    pub(super) post: Arc<PostOffice>,
    pub(super) bulk: Bulk,
    health: Mutex<Health>,
    credit: Mutex<Credit>,
    credit_freed: Notify,
    /// CLOSEs wait that need no credit.
    closing: Notify,
    reports: Mutex<Reports>,
    /// A report has become more urgent.
    report_due: Notify,
    queue: ControlQueue,
    failure: Mutex<Option<LinkError>>,
    events: mpsc::Sender<Event>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("id", &self.id).field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Makes `candidate` a link and starts its tasks.
pub(super) fn start(
    candidate: Candidate,
    id: PortId,
    port: Arc<Port>,
    local: &Local,
    LocalSide { deliver, retained, replication, post }: LocalSide,
    events: mpsc::Sender<Event>,
) -> (Arc<Link>, Measured) {
    let now = clock::now();
    let Candidate { control, lanes, peer, we_dialled, writer, reader } = candidate;
    let lane_count = port.lanes().len();
    // And the bulk.
    endpoint::carry_lanes(&lanes, lane_count + 1);
    let tick = (local.hello.min(peer.hello) / TICKS_PER_HELLO).max(Duration::from_millis(1));
    let detection = Detection::new(local.hello, peer.hello, tick, now);
    let path = path(&[control.stats(), lanes.stats()]);
    let by_hand = local.costs.get(&peer.name).copied();
    let cost = Cost::new(if path.rtt_min.is_zero() { path.rtt } else { path.rtt_min }, by_hand, now);
    let measured = Measured { cost: cost.cost(), rtt: cost.rtt(), loss: 0.0 };
    let link = Arc::new(Link {
        id,
        peer,
        we_dialled,
        control,
        lanes,
        port,
        deliver,
        retained,
        replication,
        post,
        bulk: Bulk::new(id.generation),
        health: Mutex::new(Health::from(&detection)),
        credit: Mutex::new(Credit::new(lane_count, now)),
        credit_freed: Notify::new(),
        closing: Notify::new(),
        reports: Mutex::new(Reports::new(lane_count + 1)),
        report_due: Notify::new(),
        queue: ControlQueue::default(),
        failure: Mutex::new(None),
        events,
    });
    if !we_dialled {
        // The dialler waits for this word.
        link.send(&ControlFrame::Settled { incarnation: local.life.lock().incarnation() });
    }
    let span = tracing::info_span!("link", peer = %link.peer.name);
    task::spawn("lane writer", end_with(Arc::clone(&link), write_lanes).instrument(span.clone()));
    task::spawn("bulk writer", end_with(Arc::clone(&link), write_bulk).instrument(span.clone()));
    let address = link.peer.address;
    let watch = Watch { detection, cost, tick, hello: local.hello, address, received_bytes: 0 };
    task::spawn("link", run(Arc::clone(&link), writer, reader, watch).instrument(span));
    (link, measured)
}

async fn write_lanes(link: Arc<Link>) -> Result<(), LinkError> {
    lanes::write(&link).await
}

async fn write_bulk(link: Arc<Link>) -> Result<(), LinkError> {
    bulk::write(&link).await
}

async fn end_with<F: Future<Output = Result<(), LinkError>>>(link: Arc<Link>, body: impl FnOnce(Arc<Link>) -> F) {
    // The link's end ends even a task that waits for something else.
    tokio::select! {
        ended = body(Arc::clone(&link)) => if let Err(error) = ended { link.fail(error) },
        error = link.lost() => link.fail(error),
    }
}

/// The link's own task: ends when the link ends.
async fn run(link: Arc<Link>, writer: SendStream, reader: ControlReader, watch: Watch) {
    let ended = tokio::select! {
        ended = write_control(&link, writer) => ended,
        ended = read_control(&link, reader, watch) => ended,
        ended = lanes::accept(&link) => ended,
        error = link.lost() => Err(error),
    };
    if let Err(error) = ended {
        link.fail(error);
    }
    link.bulk.end(&link);
    let error = link.failure.lock().take().unwrap_or(LinkError::Stream("the link ended"));
    link.tell(Event::Down { port: link.id, error }).await;
}

impl Link {
    /// Ends the link; the first reason counts, and the peer is told it.
    pub(super) fn fail(&self, error: LinkError) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            refuse(&[&self.control, &self.lanes], &error);
            *failure = Some(error);
        }
    }

    /// Queues a frame for the control stream.
    pub(super) fn send(&self, frame: &ControlFrame<'_>) {
        if let Err(error) = self.queue.push(frame) {
            self.fail(error);
        }
    }

    /// Tells the driver; if it is gone, so is everything.
    pub(super) async fn tell(&self, event: Event) {
        let _ = self.events.send(event).await;
    }

    /// How the link was when it was last looked at.
    pub(super) fn health(&self) -> Health {
        *self.health.lock()
    }

    /// Waits until a connection has ended: losing either loses the link.
    async fn lost(&self) -> LinkError {
        tokio::select! {
            error = self.control.closed() => error.into(),
            error = self.lanes.closed() => error.into(),
        }
    }

    /// What QUIC counts: of control, of the lanes.
    pub(super) fn stats(&self) -> [ConnectionStats; 2] {
        [self.control.stats(), self.lanes.stats()]
    }

    /// QUIC frames received on the link so far: signs of life.
    pub(super) fn frames(&self) -> u64 {
        path(&self.stats()).frames
    }

    /// Waits until lanes may write, and says how many bytes.
    pub(super) async fn credit(&self) -> usize {
        loop {
            let available = self.credit.lock().available();
            if available > 0 {
                return available;
            }
            self.credit_freed.notified().await;
        }
    }

    /// Closes all lanes, those as well that wait for credit.
    pub(super) fn close_lanes(&self, number: &OpenNumber) {
        self.port.close(number);
        self.closing.notify_one();
    }

    /// Waits until lanes have been told to close.
    pub(super) async fn closing(&self) {
        self.closing.notified().await;
    }

    /// A lane is about to write so much.
    pub(super) fn writes(&self, lane: LaneId, bytes: usize) {
        self.credit.lock().writes(lane, bytes, clock::now());
    }

    /// A lane has consumed so much of what the peer wrote.
    pub(super) fn consumed(&self, lane: LaneId, bytes: usize) {
        if self.reports.lock().consumed(lane, bytes) {
            self.report_due.notify_one();
        }
    }

    /// Under which number the bulk's consumption is reported: the one after the last lane.
    pub(super) fn bulk_lane(&self) -> LaneId {
        LaneId(u8::try_from(self.port.lanes().len()).unwrap_or(u8::MAX))
    }

    fn credited(&self, lane: LaneId, consumed: u64) -> Result<(), LinkError> {
        if lane == self.bulk_lane() {
            return Ok(self.bulk.credited(lane, consumed)?);
        }
        let rtt_min = self.lanes.min_rtt();
        self.credit.lock().consumed(lane, consumed, rtt_min, clock::now())?;
        self.credit_freed.notify_one();
        Ok(())
    }
}

/// Writes what is queued, and reports what lanes have consumed.
async fn write_control(link: &Link, mut writer: SendStream) -> Result<(), LinkError> {
    let mut report_at: Option<tokio::time::Instant> = None;
    loop {
        let report = async {
            match report_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = link.queue.filled() => {}
            () = report => {
                report_at = None;
                link.reports.lock().take().for_each(|(lane, consumed)| link.send(&ControlFrame::Credit { lane, consumed }));
            }
            () = link.report_due.notified() => {
                let due = link.reports.lock().urgency().delay().map(|delay| tokio::time::Instant::from_std(clock::now() + delay));
                report_at = report_at.into_iter().chain(due).min();
            }
        }
        let mut frames: Vec<Bytes> = link.queue.take();
        writer.write_all_chunks(&mut frames).await?;
    }
}

/// What decides whether a link lives, and what it costs.
struct Watch {
    detection: Detection,
    cost: Cost,
    tick: Duration,
    hello: Duration,
    /// Where the peer was seen last.
    address: SocketAddr,
    /// UDP bytes that the lanes had brought when it was last looked at.
    received_bytes: u64,
}

async fn read_control(link: &Link, mut reader: ControlReader, mut watch: Watch) -> Result<(), LinkError> {
    let mut ticks = tokio::time::interval(watch.tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut hellos = tokio::time::interval(watch.hello);
    hellos.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        while let Some(frame) = reader.buffered()? {
            match frame {
                ControlFrame::Bpdu(bpdu) => link.tell(Event::Bpdu { port: link.id, bpdu }).await,
                ControlFrame::Hello { number, echo } => watch.detection.hear(number, echo, clock::now()),
                ControlFrame::Credit { lane, consumed } => link.credited(lane, consumed)?,
                ControlFrame::Certificate { slot, chain } => {
                    link.tell(Event::Certificate { port: link.id, slot, chain: Bytes::copy_from_slice(chain) }).await;
                }
                ControlFrame::Claim { tree, seal } => {
                    link.tell(Event::Claim { port: link.id, tree, seal: OwnedSeal::new(&seal) }).await;
                }
                ControlFrame::Record { seal, record: bytes } => {
                    let wire = Bytes::copy_from_slice(bytes);
                    link.tell(Event::Record { port: link.id, wire, seal: OwnedSeal::new(&seal) }).await;
                }
                ControlFrame::RegisterDelta { copy, seal, delta } => {
                    let mode = if copy { DeltaMode::Copy } else { DeltaMode::Next };
                    let word = RegisterWord::Delta { mode, wire: Bytes::copy_from_slice(delta), seal: OwnedSeal::new(&seal) };
                    link.tell(Event::Register { port: link.id, word }).await;
                }
                ControlFrame::RegisterHave { list } => {
                    let word = RegisterWord::Have(Have::decode_all(list)?);
                    link.tell(Event::Register { port: link.id, word }).await;
                }
                ControlFrame::RegisterWant { owner, incarnation, after, bytes, behind } => {
                    let behind = Want::decode_behind(behind)?;
                    let word = RegisterWord::Want(Want { owner, incarnation, after, behind, bytes });
                    link.tell(Event::Register { port: link.id, word }).await;
                }
                ControlFrame::RegisterEnd { owner, incarnation, version, page, entries } => {
                    let entries = Page::decode_entries(entries)?;
                    let page = page.map(|last| Page { last, entries });
                    let word = RegisterWord::End(End { owner, incarnation, version, page });
                    link.tell(Event::Register { port: link.id, word }).await;
                }
                ControlFrame::Behind { members } => {
                    let members = members.map(|members| members.iter().collect());
                    link.tell(Event::Behind { port: link.id, members }).await;
                }
                ControlFrame::Trace(probe) => {
                    link.tell(Event::Trace { port: link.id, probe: OwnedProbe::from(&probe) }).await;
                }
                ControlFrame::Traced(answer) => {
                    let event = Event::Traced { port: link.id, id: answer.id, answer: Answered::from(&answer) };
                    link.tell(event).await;
                }
                ControlFrame::Unknown => {}
                ControlFrame::Greeting(_) | ControlFrame::Known { .. } | ControlFrame::Settled { .. } => {
                    return Err(LinkError::Unexpected("a word of the handshake after it"));
                }
            }
        }
        tokio::select! {
            filled = reader.fill() => filled?,
            datagram = link.control.read_datagram() => {
                if let Some((ControlFrame::Hello { number, echo }, _)) = ControlFrame::decode(&datagram?)? {
                    watch.detection.hear(number, echo, clock::now());
                }
            }
            _ = hellos.tick() => say_hello(link, &mut watch.detection),
            _ = ticks.tick() => look(link, &mut watch).await?,
        }
    }
}

fn say_hello(link: &Link, detection: &mut Detection) {
    let (number, echo) = detection.say();
    let hello = ControlFrame::Hello { number, echo };
    let mut datagram = Vec::new();
    hello.encode(&mut datagram);
    if link.control.send_datagram(datagram.into()).is_err() {
        link.send(&hello);
    }
}

async fn look(link: &Link, watch: &mut Watch) -> Result<(), LinkError> {
    let now = clock::now();
    let stats = link.stats();
    let path = path(&stats);
    watch.detection.tick(now, path)?;
    let health = Health::from(&watch.detection);
    *link.health.lock() = health;
    let (stalled, outstanding) = {
        let credit = link.credit.lock();
        (credit.stalled(now), credit.outstanding())
    };
    if stalled > STALL_MIN.max(health.detection_time * STALL_DETECTION_TIMES) {
        return Err(LinkError::Stalled(stalled));
    }
    let address = link.control.remote_address();
    if address != watch.address {
        info!(from = %watch.address, to = %address, "the peer's address has changed");
        watch.address = address;
    }
    let [_, lanes] = stats;
    let received_bytes = lanes.udp_rx.bytes;
    let is_busy = outstanding > BUSY_BYTES || received_bytes - watch.received_bytes > BUSY_BYTES;
    watch.received_bytes = received_bytes;
    if watch.cost.measure(path, watch.detection.hellos(), is_busy, now) {
        let measured = Measured { cost: watch.cost.cost(), rtt: watch.cost.rtt(), loss: watch.cost.loss() };
        let Health { detection_time, hello_jitter, .. } = health;
        debug!(?measured, jitter_us = hello_jitter.as_micros(), detection_ms = detection_time.as_millis(), "measured");
        link.tell(Event::Measured { port: link.id, measured }).await;
    }
    Ok(())
}

/// The path as control finds it, which waits for no lane. But whatever comes is a sign of life: that hellos do not get through while lanes do
/// shows in the echo; that lanes do not while hellos do, in what is consumed of them, and if nothing is on its way there, to QUIC (`endpoint`).
fn path([control, lanes]: &[ConnectionStats; 2]) -> Path {
    Path {
        rtt: control.path.rtt,
        rtt_min: control.path.min_rtt,
        frames: frames(&control.frame_rx) + frames(&lanes.frame_rx),
        sent: control.path.sent_packets,
        lost: control.path.lost_packets,
    }
}

/// All that a living peer sends: QUIC counts them once a packet has proved to be the peer's, while its counters of datagrams have what
/// anybody may send.
fn frames(received: &FrameStats) -> u64 {
    received.acks
        + received.datagram
        + received.stream
        + received.ping
        + received.max_data
        + received.max_stream_data
        + received.path_challenge
        + received.path_response
        + received.immediate_ack
        + received.new_connection_id
}

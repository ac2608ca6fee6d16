//! The control plane's one task: it owns the spanning tree, the table of links and the records, and does what the tree asks for.
//!
//! Everything comes to it through two bounded queues (links, candidates) and a timer; it waits for nothing else, so that whoever waits for
//! it is served. It decides nothing of the tree: `stp` does. It moves no messages: the lanes' tasks do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until};
use tracing::{debug, info, warn};

use super::complaints::Complaints;
use super::connect::Proposal;
use super::error::LinkError;
use super::handshake::{Candidate, Local, refuse};
use super::incarnation::IncarnationError;
use super::link::{self, Event, Link, Measured};
use super::rivals::{self, Contender, Verdict};
use super::{DeliverFactory, Stop};
use crate::clock;
use crate::frame::control::ControlFrame;
use crate::ids::{BrokerId, PortId, RootClaim};
use crate::limits::RECORD_LINKS_MAX;
use crate::replication::Replication;
use crate::shared::{BrokerRecord, LastChange, LinkRecord, LinkRole, LinkState, Merge, Records, Topology};
use crate::stp::{Input, Output, Role, Stp, StpConfig};
use crate::task;

/// A broker tells of its changes once a second on the long run.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// After a quiet time it may be so far ahead: the first changes of a failover, and those that follow from them, need not wait.
const RECORD_AHEAD: Duration = Duration::from_secs(7);
/// What changes together is told together.
const RECORD_DELAY: Duration = Duration::from_millis(50);
/// A broker tells of itself at least this often.
const RECORD_REFRESH: Duration = Duration::from_secs(60);
/// Who was not heard of for three refreshes is forgotten; so are lost links.
const RECORD_LIFE: Duration = Duration::from_secs(200);
/// A link that carries nothing may still be about to, for this long.
const SPARE_AGE: Duration = Duration::from_secs(2);
/// How often what is old is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Events that wait for the driver; the links' tasks wait beyond that.
pub(super) const EVENTS_MAX: usize = 1_024;
/// A round trip is told anew when it has changed by more than a quarter: what trembles does not flood the mesh.
const RTT_NEWS: f64 = 1.25;

/// What the driver shares with whoever asks: the records, and the links.
#[derive(Debug)]
pub(super) struct Book {
    own: RwLock<BrokerRecord>,
    records: RwLock<Records>,
    pub(super) links: ArcSwap<Vec<Arc<Link>>>,
}

impl Book {
    /// The topology as this broker knows it.
    pub(super) fn topology(&self, mesh: &str) -> Topology {
        Topology::draw(mesh, &self.own.read(), self.records.read().iter())
    }
}

/// What a driver begins with.
pub(super) struct Settings {
    pub(super) local: Arc<Local>,
    pub(super) replication: Arc<Replication>,
    pub(super) deliver: DeliverFactory,
    pub(super) links_max: usize,
    pub(super) tree: StpConfig,
    /// Addresses to tell others.
    pub(super) addresses: Vec<String>,
}

/// One link as the driver sees it.
struct Entry {
    link: Arc<Link>,
    measured: Measured,
    /// As last told in the record.
    told_rtt: Duration,
    role: Role,
    forwarding: bool,
    up_since: Instant,
}

/// A link that was lost.
struct Lost {
    record: LinkRecord,
    at: Instant,
}

pub(super) struct Driver {
    settings: Settings,
    stp: Stp,
    outputs: Vec<Output>,
    links: BTreeMap<BrokerId, Entry>,
    lost: BTreeMap<BrokerId, Lost>,
    generation: u64,
    book: Arc<Book>,
    /// Since when our own record is no longer what was told.
    untold_since: Option<Instant>,
    told_at: Instant,
    /// When it would be told next if it had always kept to [`RECORD_INTERVAL`].
    in_step_at: Instant,
    /// The tree as it was last logged and counted.
    last_change: LastChange,
    events: mpsc::Sender<Event>,
    /// Candidates whose rival has been probed come back here.
    probed: mpsc::Sender<Probed>,
    fatal: Option<IncarnationError>,
    complaints: Complaints,
}

/// A candidate whose rival had a detection time to show that it lives.
struct Probed {
    proposal: Proposal,
    rival: PortId,
    /// What the rival had received when the probe began.
    datagrams: u64,
}

/// Where the driver's input comes from.
pub(super) struct Inputs {
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) proposals: mpsc::Receiver<Proposal>,
    pub(super) stop: watch::Receiver<Stop>,
    probed: mpsc::Receiver<Probed>,
}

impl Driver {
    pub(super) fn new(settings: Settings, proposals: mpsc::Receiver<Proposal>, stop: watch::Receiver<Stop>) -> (Self, Inputs) {
        let (events, events_out) = mpsc::channel(EVENTS_MAX);
        let (probed, probed_out) = mpsc::channel(EVENTS_MAX);
        let stp = Stp::new(settings.tree);
        let last_change = change_now(stp.changes().1.as_str());
        let own = own_record(&settings, &stp, &last_change, Vec::new(), 1);
        let records = Records::new(own.id, RECORD_LIFE);
        let book = Book { own: RwLock::new(own), records: RwLock::new(records), links: ArcSwap::default() };
        let driver = Self {
            settings,
            stp,
            outputs: Vec::new(),
            links: BTreeMap::new(),
            lost: BTreeMap::new(),
            generation: 0,
            book: Arc::new(book),
            untold_since: None,
            told_at: clock::now(),
            in_step_at: clock::now(),
            last_change,
            events,
            probed,
            fatal: None,
            complaints: Complaints::default(),
        };
        (driver, Inputs { events: events_out, proposals, stop, probed: probed_out })
    }

    pub(super) fn book(&self) -> Arc<Book> {
        Arc::clone(&self.book)
    }

    /// Runs until told to stop, or until this broker learns that it may not go on.
    pub(super) async fn run(mut self, mut inputs: Inputs) -> (Stop, Option<IncarnationError>) {
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            let tree_due = self.stp.poll_timeout();
            let record_due = self.record_due();
            let due = tree_due.map_or(record_due, |tree| tree.min(record_due));
            tokio::select! {
                biased;
                _ = inputs.stop.changed() => break,
                // What one peer can send without end comes last.
                () = sleep_until(due.into()) => self.timers(),
                Some(proposal) = inputs.proposals.recv() => self.judge(proposal),
                Some(probed) = inputs.probed.recv() => self.judge_probed(probed),
                _ = sweep.tick() => self.sweep(),
                Some(event) = inputs.events.recv() => self.event(event),
            }
            if self.fatal.is_some() {
                break;
            }
        }
        let stop = if self.fatal.is_some() { Stop::Graceful } else { *inputs.stop.borrow() };
        if stop == Stop::Graceful {
            self.links.values().for_each(|entry| entry.link.fail(LinkError::Shutdown));
        }
        (stop, self.fatal)
    }

    fn timers(&mut self) {
        let now = clock::now();
        if self.stp.poll_timeout().is_some_and(|due| due <= now) {
            self.tree(Input::Timeout);
        }
        if self.record_due() <= now {
            self.tell_record();
        }
    }

    fn sweep(&mut self) {
        let now = clock::now();
        self.fatal = self.settings.local.life.lock().cloned();
        self.settings.replication.trim(now);
        self.book.records.write().expire(now);
        let before = self.lost.len();
        self.lost.retain(|_, lost| now.saturating_duration_since(lost.at) < RECORD_LIFE);
        if self.lost.len() < before {
            self.changed();
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Bpdu { port, bpdu } => self.tree(Input::Bpdu { port, bpdu }),
            Event::OpenReceived { port, open } => self.tree(Input::OpenReceived { port, open }),
            Event::CloseReceived { port, number } => self.tree(Input::CloseReceived { port, number }),
            Event::LanesClosed { port, number } => self.tree(Input::LanesClosed { port, number }),
            Event::Record { port, record, wire } => self.record(port, *record, wire),
            Event::Measured { port, measured } => self.measured(port, measured),
            Event::Down { port, error } => self.down(port, &error),
        }
    }

    fn entry(&mut self, port: PortId) -> Option<&mut Entry> {
        self.links.get_mut(&port.peer).filter(|entry| entry.link.id == port)
    }

    // ---- links ----

    fn judge(&mut self, proposal: Proposal) {
        let own = self.settings.local.identity.id;
        let Candidate { peer, we_dialled, .. } = &proposal.candidate;
        self.settings.local.roster.met(peer.id, peer.incarnation);
        let newcomer = Contender::new(own, peer.id, peer.incarnation, *we_dialled);
        let present = self.links.get(&peer.id).map(|entry| &entry.link);
        let contender = present.map(|link| Contender::new(own, peer.id, link.peer.incarnation, link.we_dialled));
        match rivals::judge(contender, newcomer) {
            Verdict::Admit => self.admit(proposal),
            Verdict::Stale => reject(proposal, LinkError::Stale),
            Verdict::Probe => {
                let Some(rival) = present.cloned() else { return };
                let probed = self.probed.clone();
                let datagrams = rival.datagrams();
                task::spawn("probe", async move {
                    sleep(rival.detection_time()).await;
                    let _ = probed.send(Probed { proposal, rival: rival.id, datagrams }).await;
                });
            }
        }
    }

    fn judge_probed(&mut self, Probed { proposal, rival, datagrams }: Probed) {
        let peer = proposal.candidate.peer.id;
        match self.entry(rival) {
            Some(entry) if entry.link.datagrams() > datagrams => reject(proposal, LinkError::Linked(peer)),
            // It was silent: the newcomer takes its place.
            Some(_) => self.admit(proposal),
            None => self.judge(proposal),
        }
    }

    fn admit(&mut self, Proposal { candidate, answer }: Proposal) {
        let peer = candidate.peer.clone();
        if let Some(entry) = self.links.get(&peer.id) {
            let port = entry.link.id;
            entry.link.fail(LinkError::Superseded);
            self.down(port, &LinkError::Superseded);
        } else if self.links.len() >= self.settings.links_max {
            let links_max = self.settings.links_max;
            let error = || LinkError::TooManyLinks(links_max);
            let Some(spare) = self.spare_for(peer.id) else { return reject(Proposal { candidate, answer }, error()) };
            self.on_link(spare, |link| link.fail(error()));
            self.down(spare, &error());
        }
        self.settle_life();
        self.generation += 1;
        let id = PortId { peer: peer.id, generation: self.generation };
        let port = self.settings.replication.add_port(id);
        let (deliver, events) = (Arc::clone(&self.settings.deliver), self.events.clone());
        let (link, measured) = link::start(candidate, id, port, &self.settings.local, deliver, events);
        info!(peer = %peer.name, address = %peer.address, dialled = link.we_dialled, "link up");
        let entry =
            Entry { link, measured, told_rtt: measured.rtt, role: Role::Disabled, forwarding: false, up_since: clock::now() };
        self.links.insert(peer.id, entry);
        self.lost.remove(&peer.id);
        self.settings.local.roster.set_linked(peer.id, true);
        self.publish_links();
        let _ = answer.send(Ok(measured.rtt));
        self.introduce(id);
        self.tree(Input::LinkUp { port: id, cost: measured.cost, rtt: measured.rtt });
        self.changed();
    }

    /// A link that may be given up for a broker that nothing else leads to: it carries nothing, and not because it has just come up.
    fn spare_for(&self, newcomer: BrokerId) -> Option<PortId> {
        let is_reached = self.book.topology("").brokers.iter().any(|broker| broker.id == newcomer);
        let now = clock::now();
        let is_spare = |entry: &&Entry| !entry.forwarding && now.saturating_duration_since(entry.up_since) > SPARE_AGE;
        let spare = || self.links.values().filter(is_spare).max_by_key(|entry| entry.measured.cost);
        if is_reached { None } else { spare().map(|entry| entry.link.id) }
    }

    /// Handshakes may have raised our incarnation until now: the tree must not know another one.
    fn settle_life(&mut self) {
        let incarnation = self.settings.local.life.lock().settle();
        if self.links.is_empty() && self.settings.tree.claim.incarnation != incarnation && self.generation == 0 {
            self.settings.tree.claim = RootClaim { incarnation, ..self.settings.tree.claim };
            self.stp = Stp::new(self.settings.tree);
        }
    }

    /// Tells a new neighbour of everybody.
    fn introduce(&mut self, port: PortId) {
        let Some(link) = self.entry(port).map(|entry| Arc::clone(&entry.link)) else { return };
        send_record(&link, &self.book.own.read());
        self.book.records.read().wires().for_each(|wire| link.send(&ControlFrame::Record(wire)));
    }

    fn down(&mut self, port: PortId, error: &LinkError) {
        let Some(entry) = self.links.remove(&port.peer) else { return };
        if entry.link.id != port {
            self.links.insert(port.peer, entry);
            return;
        }
        let lived = clock::now().saturating_duration_since(entry.up_since);
        if error.is_ordinary() {
            info!(peer = %entry.link.peer.name, reason = %error, lived_ms = lived.as_millis(), "link down");
        } else {
            warn!(peer = %entry.link.peer.name, reason = %error, lived_ms = lived.as_millis(), "link down");
        }
        let mut record = link_record(&entry);
        (record.role, record.state) = (LinkRole::Disabled, LinkState::Down);
        self.lost.insert(port.peer, Lost { record, at: clock::now() });
        self.settings.local.roster.set_linked(port.peer, false);
        self.publish_links();
        // The connection is closed, so that its lanes' tasks write nothing more: the tree may open lanes elsewhere.
        self.tree(Input::LinkDown { port });
        self.changed();
    }

    fn measured(&mut self, port: PortId, measured: Measured) {
        let Some(entry) = self.entry(port) else { return };
        let news = measured.cost != entry.measured.cost
            || measured.rtt > entry.told_rtt.mul_f64(RTT_NEWS)
            || entry.told_rtt > measured.rtt.mul_f64(RTT_NEWS)
            || told_loss(measured.loss) != told_loss(entry.measured.loss);
        entry.measured = measured;
        if news {
            entry.told_rtt = measured.rtt;
            self.changed();
        }
        self.tree(Input::Cost { port, cost: measured.cost, rtt: measured.rtt });
    }

    fn publish_links(&self) {
        self.book.links.store(Arc::new(self.links.values().map(|entry| Arc::clone(&entry.link)).collect()));
    }

    // ---- the tree ----

    fn tree(&mut self, input: Input) {
        let now = clock::now();
        let mut outputs = std::mem::take(&mut self.outputs);
        self.stp.handle(input, now, &mut outputs);
        for output in outputs.drain(..) {
            self.output(output, now);
        }
        self.outputs = outputs;
    }

    fn output(&mut self, output: Output, now: Instant) {
        match output {
            Output::SendBpdu { port, bpdu } => {
                debug!(?port, ?bpdu, "send");
                self.on_link(port, |link| link.send(&ControlFrame::Bpdu(bpdu)));
            }
            Output::OpenLanes { port, open } => self.on_link(port, |link| link.port.open(&open, now)),
            Output::AnswerOpen { port, open } => self.on_link(port, |link| link.port.answer(&open, now)),
            Output::CloseLanes { port, number } => self.on_link(port, |link| link.port.close(&number)),
            Output::Refuse { port, error } => self.on_link(port, |link| link.fail(error.into())),
            Output::TreeChanged { tree, is_root, cause } => {
                let root = self.name_of(tree.root.id);
                info!(epoch = tree.epoch, %root, is_root, cause = cause.as_str(), "tree changed");
                self.last_change = change_now(cause.as_str());
                self.changed();
            }
            Output::PortState { port, role, forwarding } => {
                if let Some(entry) = self.entry(port) {
                    (entry.role, entry.forwarding) = (role, forwarding);
                    info!(peer = %entry.link.peer.name, ?role, forwarding, "tree port");
                    self.changed();
                }
            }
        }
    }

    fn on_link(&mut self, port: PortId, act: impl FnOnce(&Link)) {
        if let Some(entry) = self.entry(port) {
            act(&entry.link);
        }
    }

    fn name_of(&self, broker: BrokerId) -> String {
        let local = &self.settings.local;
        if broker == local.identity.id {
            return local.name.clone();
        }
        let linked = self.links.get(&broker).map(|entry| entry.link.peer.name.clone());
        let named = || self.book.records.read().iter().find(|record| record.id == broker).map(|record| record.name.clone());
        linked.or_else(named).unwrap_or_else(|| broker.to_string())
    }

    // ---- records ----

    fn record(&mut self, from: PortId, record: BrokerRecord, wire: Bytes) {
        let (id, incarnation) = (record.id, record.incarnation);
        let merged = self.book.records.write().merge(record, wire.clone(), clock::now());
        match merged {
            Merge::New => {
                let others = self.links.values().filter(|entry| entry.link.id != from);
                others.for_each(|entry| entry.link.send(&ControlFrame::Record(&wire)));
            }
            Merge::OfOurselves => {
                // A former life's record may go round. A later life than ours is somebody else's, or a word that anybody can write: what
                // stops us is a peer that has met it.
                let own = self.settings.local.life.lock().incarnation();
                if incarnation > own && self.complaints.is_news("ourselves", "later life", clock::now()) {
                    warn!(incarnation = incarnation.0, own = own.0, "a record tells of a later life of this broker");
                }
            }
            Merge::Known => {}
            Merge::Full => debug!(%id, "no room for a broker's record"),
            Merge::TooOften => debug!(%id, "a broker writes too many records"),
        }
    }

    /// Something that our record tells is no longer so.
    fn changed(&mut self) {
        self.untold_since.get_or_insert_with(clock::now);
    }

    /// When our record is to be told next. A change waits a moment for those that come with it.
    fn record_due(&self) -> Instant {
        let Some(since) = self.untold_since else { return self.told_at + RECORD_REFRESH };
        let due = since + RECORD_DELAY;
        self.in_step_at.checked_sub(RECORD_AHEAD).map_or(due, |earliest| due.max(earliest))
    }

    fn tell_record(&mut self) {
        let (now, sequence) = (clock::now(), self.book.own.read().sequence + 1);
        let lost = self.lost.values().map(|lost| lost.record.clone());
        let links: Vec<_> = self.links.values().map(link_record).chain(lost).take(RECORD_LINKS_MAX).collect();
        let record = own_record(&self.settings, &self.stp, &self.last_change, links, sequence);
        self.links.values().for_each(|entry| send_record(&entry.link, &record));
        *self.book.own.write() = record;
        (self.untold_since, self.told_at) = (None, now);
        self.in_step_at = self.in_step_at.max(now) + RECORD_INTERVAL;
    }
}

fn reject(Proposal { candidate, answer }: Proposal, error: LinkError) {
    refuse(&candidate.connection, &error);
    let _ = answer.send(Err(error));
}

fn send_record(link: &Link, record: &BrokerRecord) {
    match record.encode() {
        Ok(encoded) => link.send(&ControlFrame::Record(&encoded)),
        Err(error) => warn!(%error, "a record cannot be written"),
    }
}

fn change_now(cause: &str) -> LastChange {
    let at = u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX);
    LastChange { at, cause: cause.to_owned() }
}

fn own_record(settings: &Settings, stp: &Stp, last_change: &LastChange, links: Vec<LinkRecord>, sequence: u64) -> BrokerRecord {
    let claim = settings.tree.claim;
    BrokerRecord {
        id: claim.id,
        incarnation: claim.incarnation,
        sequence,
        name: settings.local.name.clone(),
        addresses: settings.addresses.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        priority: claim.priority,
        capacity: claim.capacity,
        root: stp.tree().root.id,
        changes: stp.changes().0,
        last_change: last_change.clone(),
        links,
    }
}

fn link_record(entry: &Entry) -> LinkRecord {
    let role = match entry.role {
        Role::Root => LinkRole::Root,
        Role::Designated => LinkRole::Designated,
        Role::Alternate => LinkRole::Alternate,
        Role::Disabled => LinkRole::Disabled,
    };
    LinkRecord {
        peer: entry.link.id.peer,
        name: entry.link.peer.name.clone(),
        role,
        state: if entry.forwarding { LinkState::Forwarding } else { LinkState::Blocked },
        cost: entry.measured.cost.get(),
        rtt_us: u64::try_from(entry.told_rtt.as_micros()).unwrap_or(u64::MAX),
        loss: told_loss(entry.measured.loss),
    }
}

/// In whole percent: no more is known of 32 packets.
fn told_loss(loss: f64) -> f64 {
    (loss * 100.0).round() / 100.0
}

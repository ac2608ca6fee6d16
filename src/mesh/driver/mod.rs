//! The control plane's one task: it owns the spanning tree, the table of links and the records, and does what the tree asks for.
//!
//! Everything comes to it through two bounded queues (links, candidates) and a timer; it waits for nothing else, so that whoever waits for
//! it is served. It decides nothing of the tree: `stp` does. It moves no messages: the lanes' tasks do.

mod admission;
mod claims;
mod dealt;
mod interest;
mod links;
pub(super) mod recorder;
mod records;
mod registers;
mod sight;
mod trace;
mod tree;
mod words;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::RwLock;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep_until;

use crate::clock;
use crate::ids::{BrokerId, PortId, TreeId};
use crate::interest::Neighbourhood;
use crate::mesh::complaints::Complaints;
use crate::mesh::connect::Proposal;
use crate::mesh::error::LinkError;
use crate::mesh::events::Events;
use crate::mesh::expiry::Countdown;
use crate::mesh::handshake::Local;
use crate::mesh::incarnation::IncarnationError;
use crate::mesh::link::{Event, Link, Measured};
use crate::mesh::metrics::MeshMetrics;
use crate::mesh::post::PostOffice;
use crate::mesh::{DeliverFactory, Place, Refusals, Status, Stop};
use crate::replication::{Deliver, Replication};
use crate::shared::register::Registers;
use crate::shared::retained::RetainedCopies;
use crate::shared::trace::Subscribed;
use crate::shared::{BrokerRecord, LastChange, LinkRecord, Records, Topology};
use crate::stp::{Input, Output, Role, Stp, StpConfig};
use recorder::Recorder;
use records::{change_now, own_record};
use sight::{Sight, place_of};
use trace::Traces;
use words::{Claim, Words};

pub(in crate::mesh) use registers::RegisterWord;
pub(in crate::mesh) use trace::{OwnedProbe, TraceCall};
pub(in crate::mesh) use words::WordError;

/// A broker tells of its changes once a second on the long run.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// After a quiet time it may be so far ahead: the first changes of a failover, and those that follow from them, need not wait.
const RECORD_AHEAD: Duration = Duration::from_secs(7);
/// What changes together is told together.
const RECORD_DELAY: Duration = Duration::from_millis(50);
/// Where others are linked differently, letters go other ways after this time: records come many at once.
const WAYS_DELAY: Duration = Duration::from_millis(50);
/// A broker tells of itself at least this often.
const RECORD_REFRESH: Duration = Duration::from_secs(60);
/// Who was not heard of for three refreshes is forgotten; so are lost links.
pub(in crate::mesh) const RECORD_LIFE: Duration = Duration::from_secs(200);
/// How often what is old is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Events that wait for the driver; the links' tasks wait beyond that.
pub(in crate::mesh) const EVENTS_MAX: usize = 1_024;
/// A round trip is told anew when it has changed by more than a quarter: what trembles does not flood the mesh.
const RTT_NEWS: f64 = 1.25;

/// What the driver shares with whoever asks: the records, and the links.
#[derive(Debug)]
pub(in crate::mesh) struct Book {
    own: RwLock<BrokerRecord>,
    pub(in crate::mesh) records: Arc<RwLock<Records>>,
    place: RwLock<Place>,
    pub(in crate::mesh) links: ArcSwap<Vec<Arc<Link>>>,
    pub(in crate::mesh) refusals: Refusals,
    pub(in crate::mesh) events: Events,
    pub(in crate::mesh) metrics: Arc<MeshMetrics>,
}

impl Book {
    /// The topology as this broker knows it.
    pub(in crate::mesh) fn topology(&self, mesh: &str) -> Topology {
        Topology::draw(mesh, &self.own.read(), self.records.read().iter())
    }

    /// Looks at our own record and at those of others.
    pub(in crate::mesh) fn look<T>(&self, look: impl FnOnce(&BrokerRecord, &Records) -> T) -> T {
        look(&self.own.read(), &self.records.read())
    }

    /// This broker as it was last told.
    pub(in crate::mesh) fn status(&self, mesh: &str) -> Status {
        let brokers = self.topology(mesh).brokers.len();
        let (healings, healing_last) = self.metrics.healing();
        let own = self.own.read();
        Status {
            mesh: mesh.to_owned(),
            place: self.place.read().clone(),
            links: own.links.clone(),
            brokers,
            changes: own.changes,
            changes_by_cause: self.metrics.tree_changes(),
            last_change: own.last_change.clone(),
            healings,
            healing_last,
        }
    }
}

/// What a driver begins with.
pub(in crate::mesh) struct Settings {
    pub(in crate::mesh) local: Arc<Local>,
    pub(in crate::mesh) replication: Arc<Replication>,
    pub(in crate::mesh) registers: Arc<Registers>,
    pub(in crate::mesh) office: Arc<PostOffice>,
    pub(in crate::mesh) deliver: DeliverFactory,
    pub(in crate::mesh) retained: Arc<dyn RetainedCopies>,
    pub(in crate::mesh) subscribed: Arc<dyn Subscribed>,
    pub(in crate::mesh) links_max: usize,
    pub(in crate::mesh) tree: StpConfig,
    pub(in crate::mesh) recorder: Option<Recorder>,
    /// Addresses to tell others.
    pub(in crate::mesh) addresses: Vec<String>,
    /// How long subscribers wait for what was left out on the way here.
    pub(in crate::mesh) pull_timeout: Duration,
}

/// One link as the driver sees it.
struct Entry {
    link: Arc<Link>,
    measured: Measured,
    /// As last told in the record.
    told_rtt: Duration,
    role: Role,
    forwarding: bool,
    /// Role and state as last logged.
    shown: Option<(Role, bool)>,
    /// When the certificate that the peer has shown expires, since the Unix epoch.
    expires: Duration,
    /// The tree that the peer last spoke of.
    heard: Option<TreeId>,
    words: Words,
    up_since: Instant,
}

/// A link that was lost.
struct Lost {
    record: LinkRecord,
    at: Instant,
}

pub(in crate::mesh) struct Driver {
    settings: Settings,
    stp: Stp,
    /// Writes down what the tree is told.
    recorder: Option<Recorder>,
    outputs: Vec<Output>,
    links: BTreeMap<BrokerId, Entry>,
    lost: BTreeMap<BrokerId, Lost>,
    generation: u64,
    /// Of our tree, to be passed on with what we say of it.
    tree_claim: Option<Arc<Claim>>,
    book: Arc<Book>,
    /// Since when our own record is no longer what was told.
    untold_since: Option<Instant>,
    told_at: Instant,
    /// When it would be told next if it had always kept to [`RECORD_INTERVAL`].
    in_step_at: Instant,
    /// The last change of the tree or of our parent.
    last_change: LastChange,
    sight: Sight,
    events: mpsc::Sender<Event>,
    /// Candidates whose rival has been probed come back here.
    probed: mpsc::Sender<Probed>,
    fatal: Option<IncarnationError>,
    complaints: Complaints,
    /// To the end of our own certificate.
    countdown: Countdown,
    neighbourhood: Neighbourhood,
    traces: Traces,
    /// When neighbours are told of changes in it.
    tell_behind_at: Option<Instant>,
    /// When it is worked out anew by which links letters go.
    ways_due: Option<Instant>,
    /// When those who ask are told how far this broker has dealt with their logs.
    tell_dealt_at: Option<Instant>,
    /// When more is picked again of what was too much for once.
    pick_more_at: Option<Instant>,
    /// Members that do not say how far they have dealt with messages: said once of each.
    mute: Vec<BrokerId>,
    /// For what was waited for in vain.
    deliver: Box<dyn Deliver + Send>,
}

/// A candidate whose rival had a detection time to show that it lives.
struct Probed {
    proposal: Proposal,
    rival: PortId,
    /// What the rival had received when the probe began.
    frames: u64,
}

/// Where the driver's input comes from.
pub(in crate::mesh) struct Inputs {
    pub(in crate::mesh) events: mpsc::Receiver<Event>,
    pub(in crate::mesh) proposals: mpsc::Receiver<Proposal>,
    pub(in crate::mesh) stop: watch::Receiver<Stop>,
    /// Notified when the credentials are others.
    pub(in crate::mesh) reloaded: Arc<Notify>,
    calls: mpsc::Receiver<TraceCall>,
    probed: mpsc::Receiver<Probed>,
}

impl Driver {
    pub(in crate::mesh) fn new(
        mut settings: Settings,
        proposals: mpsc::Receiver<Proposal>,
        calls: mpsc::Receiver<TraceCall>,
        stop: watch::Receiver<Stop>,
    ) -> (Self, Inputs) {
        let (events, events_out) = mpsc::channel(EVENTS_MAX);
        let (probed, probed_out) = mpsc::channel(EVENTS_MAX);
        let stp = Stp::new(settings.tree);
        let last_change = change_now(stp.changes().1.as_str());
        let own = own_record(&settings, &stp, &last_change, Vec::new(), 1);
        let place = place_of(&stp, settings.local.name.clone(), None);
        let book = Book {
            own: RwLock::new(own),
            records: Arc::clone(&settings.local.records),
            place: RwLock::new(place),
            links: ArcSwap::default(),
            refusals: Refusals::default(),
            events: Events::default(),
            metrics: Arc::clone(&settings.local.metrics),
        };
        let sight = Sight::new(&stp);
        let countdown = Countdown::new(settings.local.credentials.load().validity().life());
        let (own_id, deliver) = (settings.local.identity.id, (settings.deliver)());
        let driver = Self {
            recorder: settings.recorder.take(),
            settings,
            stp,
            outputs: Vec::new(),
            links: BTreeMap::new(),
            lost: BTreeMap::new(),
            generation: 0,
            tree_claim: None,
            book: Arc::new(book),
            untold_since: None,
            told_at: clock::now(),
            in_step_at: clock::now(),
            last_change,
            sight,
            events,
            probed,
            fatal: None,
            complaints: Complaints::default(),
            countdown,
            neighbourhood: Neighbourhood::new(own_id),
            traces: Traces::new(clock::now()),
            tell_behind_at: None,
            tell_dealt_at: None,
            pick_more_at: None,
            mute: Vec::new(),
            ways_due: None,
            deliver,
        };
        (driver, Inputs { events: events_out, proposals, stop, reloaded: Arc::default(), calls, probed: probed_out })
    }

    pub(in crate::mesh) fn book(&self) -> Arc<Book> {
        Arc::clone(&self.book)
    }

    /// Runs until told to stop, or until this broker learns that it may not go on.
    pub(in crate::mesh) async fn run(mut self, mut inputs: Inputs) -> (Stop, Option<IncarnationError>) {
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            let tree_due = self.stp.poll_timeout();
            let record_due = self.record_due();
            let register_due = self.register_due(clock::now());
            let timers = [tree_due, register_due, self.tell_behind_at, self.tell_dealt_at, self.pick_more_at, self.ways_due];
            let due = timers.into_iter().flatten().fold(record_due, Instant::min);
            let registers = Arc::clone(&self.settings.registers);
            // What cannot be told yet, before the first link, is known already.
            let waits_for_news = register_due.is_none() && !registers.own().has_news();
            tokio::select! {
                biased;
                _ = inputs.stop.changed() => break,
                // What one peer can send without end comes last.
                () = sleep_until(due.into()) => self.timers(),
                () = inputs.reloaded.notified() => self.readmit(),
                // When it is told is worked out anew.
                () = poll_fn(|context| registers.own().poll_news(context)), if waits_for_news => {}
                Some(proposal) = inputs.proposals.recv() => self.judge(proposal),
                Some(probed) = inputs.probed.recv() => self.judge_probed(probed),
                _ = sweep.tick() => self.sweep(),
                Some(call) = inputs.calls.recv() => self.trace_from_here(call),
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
        if self.register_due(now).is_some_and(|due| due <= now) {
            self.tell_register();
        }
        self.tell_behind(now);
        self.tell_dealt(now);
        if self.pick_more_at.is_some_and(|due| due <= now) {
            self.pick_more(now);
        }
        if self.ways_due.is_some_and(|due| due <= now) {
            self.find_ways();
        }
    }

    fn sweep(&mut self) {
        let now = clock::now();
        self.fatal = self.settings.local.life.lock().cloned();
        self.expire_certificates();
        self.prove_waiting();
        self.register_tick();
        self.tell_costs();
        self.dealt_tick(now);
        self.settings.replication.trim(now);
        self.settings.replication.repeat_pulls(self.settings.pull_timeout, now, &mut *self.deliver);
        self.book.records.write().expire(now);
        let before = self.lost.len();
        self.lost.retain(|_, lost| now.saturating_duration_since(lost.at) < RECORD_LIFE);
        if self.lost.len() < before {
            self.changed();
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Certificate { port, slot, chain } => self.certificate(port, slot, &chain),
            Event::Claim { port, tree, seal } => self.claim(port, tree, &seal),
            Event::Bpdu { port, bpdu } => self.bpdu(port, bpdu),
            Event::OpenReceived { port, open } => self.tree(Input::OpenReceived { port, open }),
            Event::CloseReceived { port, number } => self.tree(Input::CloseReceived { port, number }),
            Event::LanesClosed { port, number } => self.tree(Input::LanesClosed { port, number }),
            Event::Record { port, wire, seal } => self.record(port, wire, &seal),
            Event::Register { port, word } => self.register(port, word),
            Event::Behind { port, members } => self.behind(port, members),
            Event::Trace { port, probe } => self.trace(port, &probe),
            Event::Traced { port, id, answer } => self.traced(port, id, answer),
            Event::Measured { port, measured } => self.measured(port, measured),
            Event::Down { port, error } => self.down(port, &error),
        }
    }

    fn entry(&mut self, port: PortId) -> Option<&mut Entry> {
        self.links.get_mut(&port.peer).filter(|entry| entry.link.id == port)
    }
}

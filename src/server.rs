//! One broker: starts the shell's modules in order, stops them in reverse.
//!
//! Order of the start: addresses for clients, mesh, admin, then listeners and timer. What can fail because of the operator (a port in use, a certificate) fails
//! before the first client is served.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin::{self, AdminError, Pending, Readiness, View};
use crate::backends::{self, BackendError, Backends, OnChange};
use crate::bell::Bell;
use crate::bridge::{Bridges, Reachable};
use crate::codec::{QoS, ReasonCode};
use crate::config::{Bind, Config, Listener, Mesh, Protocol, PublishAck, QueueDrop, ReplayLogFull, ReplicationMode, SubscribeAck};
use crate::connection::{self, Logins, Meter, Rates, Terms};
use crate::drain::{Drain, DrainRequest, DrainStatus, Others};
use crate::ids::{BrokerId, LogId, MessageId, OriginLane, ShareId};
use crate::interest::{Echoes, Interest, Mode, Rules};
use crate::limits;
use crate::listener::{self, ConnectionLimits, Door, Handshakes, ListenError};
use crate::mesh::tls::{Credentials, TlsError};
use crate::mesh::{self, DeliverFactory, MeshConfig, MeshError, MeshHandle, Watcher};
use crate::metrics::{Metrics, Sample};
use crate::policies::{CurrentPolicy, Policies, PolicyError, ReservedIds};
use crate::replication::{Counters, Deliver, MeshMessage, Picks, Replication, ReplicationConfig};
use crate::router::{self, Batch, LinkDelivery, MeshCounts, RetainedStore, Router, RouterLimits};
use crate::session::{Awaited, Change, Journal, OutboundLimits, Reach, RestoredLog};
use crate::shared::register::{self, Follow, Registers};
use crate::shared::retained::RetainedCopies;
use crate::shared::trace::{Subscribed, Trace, TraceError, TraceRequest};
use crate::shared::{Mail, Post, StampClock, Topology};
use crate::store::{self, Restored, Store, StoreError};
use crate::{clock, memory, resources, sys, task, topic};

/// Connections get this long to write what waits when the broker stops.
const CLIENTS_GRACE: Duration = Duration::from_millis(2_500);
/// So long after it the broker that keeps the wills of clients here knows which were published, or may publish them once more.
const WILLS_GRACE: Duration = Duration::from_millis(3_000);
/// So long after the beginning of the stop the mesh has been left, or is not waited for.
const MESH_GRACE: Duration = Duration::from_millis(3_500);
/// And so has the store, which then has taken all that was acknowledged, and perhaps not all that was not. Below the 5 s within which a stop is over.
const STORE_GRACE: Duration = Duration::from_millis(4_500);
/// Between two looks whether wills are told.
const TELL_INTERVAL: Duration = Duration::from_millis(2);
/// Between two looks whether the store has ended.
const STORE_END_INTERVAL: Duration = Duration::from_millis(2);
/// Retained messages and ring blocks that have expired are freed at least this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Letters about sessions that are read in one go.
const LETTERS_AT_ONCE: usize = 64;

/// A broker that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Durable sessions.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An MQTT address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// The certificates of `[mesh]`.
    #[error(transparent)]
    Credentials(#[from] TlsError),
    /// The files of `[auth]` and of listeners.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The tables of `[auth]`.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The HTTP interface.
    #[error(transparent)]
    Admin(#[from] AdminError),
}

/// Keys of the configuration that a reload applies; `log.filter` is the program's to apply.
const RELOADED: [&str; 11] = [
    "auth.acl_file",
    "auth.allow_anonymous",
    "auth.password_file",
    "bridge",
    "log.filter",
    "mesh.cafile",
    "mesh.certfile",
    "mesh.crlfile",
    "mesh.discovery",
    "mesh.keyfile",
    "mesh.peers",
];

/// A configuration that a running broker cannot take; it goes on as it was.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The certificates of `[mesh]`.
    #[error(transparent)]
    Credentials(#[from] TlsError),
    /// The mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// The files of `[auth]` and of listeners.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The keys of tokens.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The certificates of listeners.
    #[error(transparent)]
    Certificates(#[from] listener::TlsError),
}

/// Where a broker can be reached; what `--ready-file` holds.
#[derive(Clone, Debug, Serialize)]
pub struct Addresses {
    /// The listeners for clients, in the order of the configuration.
    pub mqtt: Vec<Bind>,
    /// The mesh's UDP socket.
    pub mesh: Option<SocketAddr>,
    /// `[admin]`.
    pub admin: Option<SocketAddr>,
    /// `[health]`.
    pub health: Option<SocketAddr>,
}

/// A running broker. Dropping it ends it without a good-bye, as a crash would.
#[derive(Debug)]
pub struct Server {
    parts: Arc<Parts>,
    /// What it was started with.
    config: Config,
    /// The same, with what reloads have replaced since.
    listeners_in_force: Mutex<Vec<Listener>>,
    addresses: Addresses,
    policies: Arc<Policies>,
    doors: Vec<Arc<Door>>,
    stop: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    timer: JoinHandle<()>,
    memory: Option<JoinHandle<()>>,
    sys: Vec<JoinHandle<()>>,
    _admin: admin::Handle,
}

/// What can be looked at while it runs.
#[derive(Debug)]
struct Parts {
    router: Arc<Router>,
    mesh: Option<MeshHandle>,
    store: Option<Store>,
    bridges: Arc<Bridges>,
    drain: Arc<Drain>,
    backends: Option<backends::Handle>,
    listeners: usize,
    /// Bytes; none where it is not known.
    memory_limit: Option<u64>,
}

impl Server {
    /// Starts a broker on the current runtime. `credentials` are shown in the mesh; without them the files of `[mesh]` are read.
    ///
    /// # Errors
    /// See [`StartError`]: nothing is left running then.
    pub fn start(config: &Config, credentials: Option<Credentials>) -> Result<Self, StartError> {
        let limits = RouterLimits {
            outbound: OutboundLimits {
                inflight_max: config.limits.max_inflight_messages,
                inflight_bytes_max: config.limits.max_inflight_bytes,
                // More than memory holds either way.
                queued_messages_max: u32::try_from(config.limits.max_queued_messages).unwrap_or(u32::MAX),
                queued_bytes_max: config.limits.max_queued_bytes,
                drop_oldest: config.limits.queue_drop == QueueDrop::Oldest,
                queue_qos0: config.limits.queue_qos0_messages,
            },
            shared: config.shared_subscription_strategy,
        };
        let opened_backends = backends::Opened::open(&config.auth)?;
        let policies = Arc::new(Policies::load(config, opened_backends.accounts())?);
        let logins = Arc::new(Logins::default());
        let opened = match config.persistence.enabled {
            true => Some(store::Opened::open(&config.data_dir, config.persistence.sync)?),
            false => None,
        };
        let journal = opened.is_some().then(Journal::new);
        let router = Arc::new(Router::new(limits, Arc::new(Metrics::default()), journal.clone(), clock::now()));
        if let Some(mesh) = &config.mesh {
            let (unix, now) = clock::both();
            router.share_retained(StampClock::new(rand::random(), unix, now), mesh.tombstone_age);
        }
        // Before sessions are restored: what these want is told with the first word to the mesh.
        let registers = config.mesh.as_ref().map(|mesh| {
            let own = BrokerId::derive(&mesh.name, &config.name);
            Registers::new(own, mesh.member_timeout, limits::REGISTER_FILTERS_MAX)
        });
        registers.iter().for_each(|registers| router.join_registers(Arc::clone(registers)));
        let post = Arc::<Post>::default();
        let (store, log) = match (opened, journal) {
            (Some(opened), Some(journal)) => {
                let (store, log) = restore(&router, &policies, opened.start(journal)?);
                (Some(store), log)
            }
            _ => (None, RestoredLog::default()),
        };
        let bound: Vec<_> = config
            .listeners
            .iter()
            .enumerate()
            .map(|(index, one)| listener::Listener::open(index, one))
            .collect::<Result<_, _>>()?;
        let mqtt = bound.iter().map(|bound| bound.address().clone()).collect();
        let doors = bound.iter().map(listener::Listener::door).collect();
        let knows_others = !log.members.is_empty();
        let mesh = match config.mesh.as_ref().zip(registers) {
            Some((mesh, registers)) => Some(start_mesh(config, mesh, credentials, &router, (registers, &post), log)?),
            None => {
                forget_log(&router, &log);
                None
            }
        };
        let memory_limit = memory_limit(config);
        let reachable = mesh.as_ref().map(|mesh| {
            let watcher = mesh.watcher();
            Arc::new(move || watcher.reachable()) as Reachable
        });
        let bridges = Arc::new(Bridges::start(config, &router, reachable, knows_others));
        router.judge_by({
            let policies = Arc::clone(&policies);
            Box::new(move |access| policies.judge(access))
        });
        let around = Surroundings {
            router: Arc::clone(&router),
            watcher: mesh.as_ref().map(MeshHandle::watcher),
            bridges: Arc::clone(&bridges),
        };
        let drain = Arc::new(Drain::new(Arc::clone(&router), Box::new(around), clock::now()));
        let backends = opened_backends.start(judge_named(&router, &policies))?;
        let asked = backends.as_ref().map(|handle| handle.backends().clone());
        let listeners = bound.len();
        let parts = Arc::new(Parts { router: Arc::clone(&router), mesh, store, bridges, drain, backends, listeners, memory_limit });
        let admin = admin::start(config, Arc::clone(&parts) as Arc<dyn View>)?;

        let (stop, stopped) = watch::channel(false);
        let clients = resources::clients_max();
        let handshakes = Handshakes::default();
        let listeners = bound
            .into_iter()
            .zip(&config.listeners)
            .zip(policies.all())
            .map(|((bound, one), policy)| {
                let connections = ConnectionLimits {
                    here: one.max_connections.unwrap_or(usize::MAX),
                    everywhere: config.limits.max_connections.min(clients),
                    rate: one.max_connection_rate.or(config.limits.max_connection_rate),
                    handshakes: handshakes.clone(),
                };
                let terms = Arc::new(terms(
                    config,
                    one,
                    Arc::clone(policy),
                    (Arc::clone(&logins), asked.clone()),
                    Arc::clone(policies.reserved()),
                ));
                task::spawn("listener", bound.run(Arc::clone(&router), terms, connections, stopped.clone()))
            })
            .collect();
        let memory = memory_limit.map(|limit| task::spawn("memory", memory::watch(Arc::clone(&router), limit)));
        let mut sys = Vec::new();
        if let Some(mesh) = &parts.mesh {
            sys.push(task::spawn("moves", move_sessions(Arc::clone(&router), post)));
            sys.push(task::spawn("sys", sys::run(Arc::clone(&router), mesh.watcher())));
        }
        if config.sys_interval > 0 {
            let interval = Duration::from_secs(config.sys_interval.into());
            sys.push(task::spawn("sys broker", sys::run_broker(Arc::clone(&router), interval)));
        }
        let timer = task::spawn("timer", run_timer(router));
        let addresses =
            Addresses { mqtt, mesh: parts.mesh.as_ref().map(MeshHandle::local_addr), admin: admin.admin(), health: admin.health() };
        Ok(Self {
            parts,
            config: config.clone(),
            listeners_in_force: Mutex::new(config.listeners.clone()),
            addresses,
            policies,
            doors,
            stop,
            listeners,
            timer,
            memory,
            sys,
            _admin: admin,
        })
    }

    /// Takes over what a running broker can take over: the certificates, keys and lists of `[mesh]` and of listeners, the users and rules of `[auth]` and of
    /// listeners, read anew even where their names are the same, bridges, and how peers are found. No client and no link is lost by it, but for links
    /// whose peers are no longer admitted and clients whose certificate is no longer good or whose user is gone or has another password. Returns the keys, dotted, that have changed
    /// and need a restart.
    ///
    /// # Errors
    /// See [`ReloadError`]: nothing has changed then.
    pub fn reload(&self, config: &Config) -> Result<Vec<String>, ReloadError> {
        let mut in_force = self.listeners_in_force.lock();
        let mut running = Config { listeners: in_force.clone(), ..self.config.clone() };
        let is_configured = take_over(&mut running.listeners, &config.listeners);
        let renewals: Vec<_> = (self.doors.iter().zip(&running.listeners).zip(&is_configured))
            .map(|((door, one), is_configured)| is_configured.then(|| door.read_anew(one)).transpose())
            .collect::<Result<_, _>>()?;
        let policies = self.policies.read_anew(config, &running.listeners, &is_configured)?;
        let keys = self.parts.backends.as_ref().map(backends::Handle::read_anew).transpose()?;
        if let (Some(handle), Some(new)) = (&self.parts.mesh, &config.mesh) {
            handle.reload(Credentials::load(new)?)?;
            handle.reconfigure(new.peers.clone(), new.discovery.clone());
        }
        for (door, renewal) in self.doors.iter().zip(renewals) {
            renewal.into_iter().for_each(|renewal| door.renew(renewal));
        }
        self.policies.replace(policies);
        if let (Some(backends), Some(keys)) = (&self.parts.backends, keys) {
            backends.renew(keys);
        }
        let bridged = Config { bridges: config.bridges.clone(), ..self.config.clone() };
        self.policies.set_bridges(&bridged);
        self.parts.bridges.reload(bridged);
        in_force.clone_from(&running.listeners);
        let (mut batch, now) = (Batch::default(), clock::now());
        self.parts.router.judge_anew(&mut batch, |access| self.policies.judge(access), now);
        self.parts.router.finish(&mut batch, now);
        let changes = running.changes(config).into_iter();
        Ok(changes.filter(|key| !RELOADED.contains(&key.as_str())).collect())
    }

    /// Where it can be reached.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The mesh as this broker knows it; none without a mesh.
    #[must_use]
    pub fn topology(&self) -> Option<Topology> {
        self.parts.topology()
    }

    /// Waits until the broker cannot go on: only when its mesh finds another living under its name. For ever otherwise.
    pub async fn failed(&self) -> Arc<MeshError> {
        match &self.parts.mesh {
            Some(mesh) => match mesh.ended().await {
                Err(error) => error,
                Ok(()) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }

    /// Waits until the broker is drained, if it is to end then; for ever otherwise.
    pub async fn drained(&self) {
        self.parts.drain.ended().await;
    }

    /// Stops in order: no new clients, the present ones are told and get a moment to take what waits, then the mesh is left.
    pub async fn shutdown(mut self) {
        let begun = clock::now();
        self.parts.drain.stop();
        // The listeners hold the receivers; if all are gone there is nothing to stop.
        let _ = self.stop.send(true);
        let deadline = tokio::time::Instant::from_std(begun + CLIENTS_GRACE);
        self.parts.bridges.stop(deadline).await;
        let mut batch = Batch::default();
        let reason = match self.config.server_reference {
            Some(_) => ReasonCode::UseAnotherServer,
            None => ReasonCode::ServerShuttingDown,
        };
        self.parts.router.close_all(&mut batch, reason);
        self.parts.router.finish(&mut batch, clock::now());
        for mut listener in std::mem::take(&mut self.listeners) {
            if tokio::time::timeout_at(deadline, &mut listener).await.is_err() {
                tracing::warn!("some clients did not take their last bytes in time");
                listener.abort();
            }
        }
        self.tell_replicas(begun + CLIENTS_GRACE).await;
        self.tell_wills(begun + WILLS_GRACE).await;
        if let Some(mesh) = &self.parts.mesh
            && tokio::time::timeout_at((begun + MESH_GRACE).into(), mesh.shutdown()).await.is_err()
        {
            tracing::warn!("the mesh was not left in time: neighbours find out by themselves");
        }
        self.stop_store(begun + STORE_GRACE).await;
    }

    /// What became of sessions to the last is told their replicas, as far as these can be reached until then: the clients may go on with them.
    async fn tell_replicas(&self, deadline: Instant) {
        let Some(journal) = self.parts.router.journal().filter(|journal| journal.is_replica_awaited()) else { return };
        let mut waiter = journal.waiter();
        let told = Awaited { number: journal.last(), reach: Reach::Known };
        let told = poll_fn(|cx| waiter.poll_for(told, cx));
        // Who cannot be reached is not waited for long: nobody's replica is there, then.
        let _ = tokio::time::timeout_at(deadline.into(), told).await;
    }

    /// Waits until it is known elsewhere which wills are published.
    async fn tell_wills(&self, deadline: Instant) {
        while !self.parts.router.wills_are_told() && clock::now() < deadline {
            tokio::time::sleep(TELL_INTERVAL).await;
        }
    }

    /// Waits for the store's end, but not for ever.
    async fn stop_store(&self, deadline: Instant) {
        let Some(store) = &self.parts.store else { return };
        store.stop();
        while !store.has_ended() {
            if clock::now() >= deadline {
                tracing::error!("the disk does not take the last changes of sessions and retained messages");
                return;
            }
            tokio::time::sleep(STORE_END_INTERVAL).await;
        }
    }

    /// Ends without a word to anybody, as a process that is killed. Its addresses are free when this returns.
    pub async fn abort(mut self) {
        self.end_tasks();
        if let Some(mesh) = &self.parts.mesh {
            mesh.abort().await;
        }
        for listener in std::mem::take(&mut self.listeners) {
            // That it was cancelled is what was wanted.
            let _ = listener.await;
        }
        self.stop_store(clock::now() + STORE_GRACE).await;
    }

    fn end_tasks(&self) {
        self.listeners.iter().for_each(JoinHandle::abort);
        self.timer.abort();
        self.memory.iter().for_each(JoinHandle::abort);
        self.sys.iter().for_each(JoinHandle::abort);
        self.parts.bridges.abort();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_tasks();
    }
}

/// What is around a broker that leaves.
struct Surroundings {
    router: Arc<Router>,
    watcher: Option<Watcher>,
    bridges: Arc<Bridges>,
}

impl Others for Surroundings {
    fn takers(&self) -> usize {
        self.router.takers().len()
    }

    fn behind(&self) -> Vec<String> {
        let name = |broker: BrokerId| self.watcher.as_ref().map_or_else(|| broker.to_string(), |watcher| watcher.name_of(broker));
        self.router.behind().into_iter().map(name).collect()
    }

    fn leave_bridges(&self, leaves: bool) {
        self.bridges.set_leaving(leaves);
    }

    fn serves_bridges(&self) -> bool {
        self.bridges.is_serving()
    }
}

impl View for Parts {
    fn readiness(&self) -> Readiness {
        let peers = self.mesh.as_ref().map_or(0, |mesh| mesh.links().len());
        let failing = self.backends.as_ref().map(backends::Handle::failing).unwrap_or_default();
        Readiness { ready: self.drain.is_serving(), listeners: self.listeners, peers, auth_failing: failing }
    }

    fn drain_status(&self) -> DrainStatus {
        self.drain.status()
    }

    fn drain(&self, request: Option<DrainRequest>) -> DrainStatus {
        match request {
            Some(request) => self.drain.begin(request),
            None => self.drain.cancel(),
        }
    }

    fn topology(&self) -> Option<Topology> {
        self.mesh.as_ref().map(MeshHandle::topology)
    }

    fn trace(&self, asked: TraceRequest) -> Pending<'_, Result<Trace, TraceError>> {
        Box::pin(async move {
            let mesh = self.mesh.as_ref().ok_or(TraceError::NoMesh)?;
            let qos = QoS::try_from(asked.qos).map_err(|_| TraceError::QoS(asked.qos))?;
            check_traced(&asked.topic).map_err(TraceError::Topic)?;
            mesh.trace(&asked.topic, qos, asked.retain).await
        })
    }

    fn samples(&self) -> Vec<Sample> {
        let mut samples = self.router.metrics().samples();
        let retained = self.router.retained();
        samples.push(Sample::gauge("retained_messages", "Retained messages", retained.count() as f64));
        samples.push(Sample::gauge("retained_bytes", "Memory of retained messages", retained.bytes() as f64));
        samples.extend(retained_samples(retained));
        if let Some(used) = resources::resident_bytes() {
            samples.push(Sample::gauge("resident_bytes", "Memory that the process takes", used as f64));
        }
        if let Some(limit) = self.memory_limit {
            samples.push(Sample::gauge("memory_limit_bytes", "Memory that the process may take", limit as f64));
        }
        if let Some(store) = &self.store {
            samples.extend(store.samples());
        }
        if let Some(replication) = self.router.mesh() {
            samples.extend(replication_samples(replication));
        }
        if let Some(mesh) = &self.mesh {
            samples.extend(mesh.samples());
        }
        samples.extend(self.bridges.samples());
        samples.extend(self.backends.iter().flat_map(backends::Handle::samples));
        samples
    }
}

/// Whether a client could publish to `topic`, and it is short enough to be traced; why not.
fn check_traced(topic: &str) -> Result<(), String> {
    topic::check_name(topic).map_err(|error| error.to_string())?;
    if topic.len() > limits::TRACE_TOPIC_BYTES_MAX {
        return Err(format!("the topic has {} bytes, at most {} can be traced", topic.len(), limits::TRACE_TOPIC_BYTES_MAX));
    }
    if topic.contains('\0') || router::is_system(topic) {
        return Err("no client may publish there".to_owned());
    }
    Ok(())
}

/// Each listener takes over what is said now of the one at its address. Of one that is said nothing any more, what was in force before holds on. Says of each
/// whether it is still configured.
fn take_over(listeners: &mut [Listener], new: &[Listener]) -> Vec<bool> {
    let mut new: Vec<&Listener> = new.iter().collect();
    let take = |listener: &mut Listener| {
        let is_udp = |listener: &Listener| listener.protocol == Protocol::Quic;
        let same = |new: &&Listener| new.bind == listener.bind && is_udp(new) == is_udp(listener);
        // Several may be bound to any free port: they are told apart by their order.
        let Some(place) = new.iter().position(same) else { return false };
        let new = new.remove(place);
        listener.take_auth_of(new);
        listener.take_certificates_of(new);
        true
    };
    listeners.iter_mut().map(take).collect()
}

/// Takes in what was read, before the first client is served.
fn restore(router: &Router, policies: &Policies, (store, restored): (Store, Restored)) -> (Store, RestoredLog) {
    let now = clock::now();
    router.number_sessions_from(restored.last_session);
    router.restore_retained(restored.retained, restored.deleted, now);
    restored.sessions.into_iter().for_each(|session| router.restore_session(session, now));
    // Users may have gone, and rules have changed, while the broker was down.
    let mut batch = Batch::default();
    router.judge_anew(&mut batch, |access| policies.judge(access), now);
    router.finish(&mut batch, now);
    (store, restored.log)
}

/// What becomes of the sessions of users of whom a backend has said something new.
fn judge_named(router: &Arc<Router>, policies: &Arc<Policies>) -> OnChange {
    let (router, policies) = (Arc::clone(router), Arc::clone(policies));
    Arc::new(move |names| {
        let (mut batch, now) = (Batch::default(), clock::now());
        router.judge_anew(&mut batch, |access| policies.judge_named(names, access), now);
        router.finish(&mut batch, now);
    })
}

/// A broker that is in no mesh any more needs nothing of what it knew of one.
fn forget_log(router: &Router, log: &RestoredLog) {
    let Some(journal) = router.journal() else { return };
    for head in &log.heads {
        journal.push(Change::LogGone(head.lane));
    }
    log.covers.iter().for_each(|(stream, _)| journal.forget_cover(*stream));
    for member in &log.members {
        journal.push(Change::MemberGone(*member));
    }
    journal.kick();
}

/// In a mesh.
fn retained_samples(retained: &RetainedStore) -> Vec<Sample> {
    let Some(MeshCounts { taken, older, refused, tombstones_dropped }) = retained.mesh_counts() else { return Vec::new() };
    let counters = [
        ("retained_taken", "Retained messages and deletions taken from neighbours otherwise than live", taken),
        ("retained_older", "Retained messages that were older than what was there", older),
        ("retained_refused_stamps", "Retained messages refused for a stamp that is further ahead than clocks can be", refused),
        ("retained_tombstones_dropped", "Deletions forgotten before tombstone_age, for want of room", tombstones_dropped),
    ];
    let tombstones = retained.tombstones() as f64;
    let gauge = Sample::gauge("retained_tombstones", "Deletions of retained messages that are remembered", tombstones);
    counters.into_iter().map(|(name, help, counter)| Sample::counter(name, help, counter.value())).chain([gauge]).collect()
}

fn replication_samples(replication: &Replication) -> Vec<Sample> {
    let Counters {
        messages_published,
        messages_received,
        messages_duplicate,
        messages_outlived,
        blocks_sent,
        bytes_sent,
        gaps_received,
        gaps_sent,
        blocks_filled,
        fills_refused,
        laps,
        blocks_hop_limited,
        blocks_aged,
        blocks_closed,
        messages_expired,
        stubs_sent,
        messages_left_out,
        pulls_sent,
        payloads_received,
        payloads_lost,
        picks_again,
        picks_abandoned,
        picks_lost,
        own_ids_foreseen,
        covers_adopted,
    } = replication.counters();
    let counters = [
        ("mesh_messages_published", "Messages of local clients put into the lane rings", messages_published),
        ("mesh_messages_received", "New messages that came over links", messages_received),
        ("mesh_messages_duplicate", "Messages that came over links and were known already", messages_duplicate),
        ("mesh_messages_outlived", "QoS 0 messages of an earlier life of their broker, dropped", messages_outlived),
        ("mesh_blocks_sent", "Blocks handed to lane writers", blocks_sent),
        ("mesh_sent_bytes", "Bytes handed to lane writers", bytes_sent),
        ("mesh_gaps_received", "Ranges of QoS 1 and 2 messages lost to this broker", gaps_received),
        (
            "mesh_blocks_filled",
            "Blocks fetched from others for a neighbour that lacked them, as the log had lost them",
            blocks_filled,
        ),
        ("mesh_fills_refused", "Answers to such questions that spoke of what this broker has itself", fills_refused),
        ("mesh_gaps_sent", "Ranges of QoS 1 and 2 messages that a neighbour could not be given", gaps_sent),
        ("mesh_laps", "Times that a ring overtook a slow link at QoS 0", laps),
        ("mesh_blocks_hop_limited", "Blocks that had come too many links", blocks_hop_limited),
        ("mesh_blocks_aged", "Blocks that were too old to be sent", blocks_aged),
        ("mesh_blocks_closed", "Blocks dropped between a CLOSE and the next OPEN", blocks_closed),
        ("mesh_messages_expired", "Messages that expired on their way", messages_expired),
        ("mesh_stubs_sent", "Stubs sent in place of QoS 1 and 2 messages that nobody in that direction wants", stubs_sent),
        ("mesh_messages_left_out", "QoS 0 messages not sent where nobody in that direction wants them", messages_left_out),
        ("mesh_pulls_sent", "Messages asked for of neighbours, where only a stub had come", pulls_sent),
        ("mesh_payloads_received", "Messages that came because they were asked for", payloads_received),
        ("mesh_payloads_lost", "QoS 1 and 2 messages that were asked for and that nobody had", payloads_lost),
        (
            "mesh_picks_again",
            "Messages of share groups that were picked again, for the broker picked did not deal with them",
            picks_again,
        ),
        ("mesh_picks_abandoned", "Those of QoS 2 among them", picks_abandoned),
        ("mesh_picks_lost", "Messages of share groups picked for a broker that has left, and that nobody else takes", picks_lost),
        ("mesh_own_ids_foreseen", "Lanes opened by who knows more of this broker's log than its disk", own_ids_foreseen),
        ("mesh_covers_adopted", "Covers taken over from a neighbour when this broker was new", covers_adopted),
    ];
    let mut samples: Vec<Sample> =
        counters.into_iter().map(|(name, help, counter)| Sample::counter(name, help, counter.value())).collect();
    samples.push(Sample::gauge("mesh_ring_bytes", "Bytes in the lane rings", replication.ring_bytes() as f64));
    let interest = replication.interest();
    let (members, known) = interest.members();
    samples.push(Sample::gauge("mesh_interest_members", "Other members of the mesh", members as f64));
    samples.push(Sample::gauge("mesh_interest_unknown", "Those of which it is not known what they want", (members - known) as f64));
    samples.push(Sample::gauge("mesh_interest_filters", "Topic filters of other members", interest.filters() as f64));
    if let Some(echoes) = interest.echoes() {
        let help = "SUBACKs that were sent though not every broker was known to know of the subscription";
        samples.push(Sample::counter("mesh_subacks_early", help, echoes.missed.value()));
    }
    samples
}

fn start_mesh(
    config: &Config,
    mesh: &Mesh,
    credentials: Option<Credentials>,
    router: &Arc<Router>,
    (registers, post): (Arc<Registers>, &Arc<Post>),
    log: RestoredLog,
) -> Result<MeshHandle, StartError> {
    let credentials = credentials.map_or_else(|| Credentials::load(mesh), Ok)?;
    let own = BrokerId::derive(&mesh.name, &config.name);
    let topics = mesh.topics.iter().map(|one| (one.filter.as_str().into(), mode(one.replication)));
    let interest = Arc::new(Interest::new(own, Rules::new(mode(mesh.replication), topics)));
    let now = clock::now();
    if let Some(journal) = router.journal() {
        registers.follow(Arc::new(Roster(Arc::clone(journal))));
        // Nothing is known of what they want, and they may come back with durable sessions.
        log.members.iter().for_each(|member| registers.met(*member, now));
    }
    registers.follow(Arc::clone(&interest) as Arc<dyn Follow>);
    if mesh.subscribe_ack == SubscribeAck::Mesh {
        interest.await_echoes(Echoes::new(Arc::clone(&registers)));
    }
    let terms = ReplicationConfig {
        origin: own,
        log: LogId(rand::random()),
        lanes_per_class: mesh.lanes,
        ring_blocks: limits::RING_BLOCKS,
        ring_bytes: mesh.replay_log_bytes,
        ring_age: mesh.replay_log_age,
        slows_publishers: mesh.replay_log_full == ReplayLogFull::Slow,
        hop_max: mesh.hop_max,
        message_bytes_max: limits::MQTT_REMAINING_LENGTH_MAX as usize,
    };
    let replication = match router.journal() {
        Some(journal) => Replication::durable(terms, interest, journal, log, now),
        None => Replication::with_interest(terms, interest, now),
    };
    let deliver: DeliverFactory = {
        let router = Arc::clone(router);
        // Without it clients are woken one by one, which only costs more.
        let bell = Bell::hang().ok();
        Arc::new(move || {
            Box::new(FromMesh { delivery: LinkDelivery::new(Arc::clone(&router)), bell: bell.clone(), now: None })
                as Box<dyn Deliver + Send>
        })
    };
    let setup = MeshConfig { name: config.name.clone(), data_dir: config.data_dir.clone(), mesh: mesh.clone(), credentials };
    let (retained, subscribed) = (Arc::clone(router) as Arc<dyn RetainedCopies>, Arc::clone(router) as Arc<dyn Subscribed>);
    registers.own().tell_log(replication.own_log());
    if mesh.publish_ack == PublishAck::Mesh {
        replication.acknowledge_in_mesh();
        registers.own().ask_dealt(true, true);
    }
    // What comes over the first link may have to be given on.
    router.join_mesh(Arc::clone(&replication));
    router.join_post(Arc::clone(post));
    router.set_orphan_grace(mesh.orphan_grace);
    if mesh.session_replicas > 0 {
        router.replicate_sessions();
    }
    let handle = mesh::start(setup, replication, registers, Arc::clone(post), deliver, retained, subscribed)?;
    Ok(handle)
}

fn mode(mode: ReplicationMode) -> Mode {
    match mode {
        ReplicationMode::Interest => Mode::Interest,
        ReplicationMode::Full => Mode::Full,
    }
}

/// Writes down who the members of the mesh are: after a restart one who is still away is a member, of whom nothing is known.
struct Roster(Arc<Journal>);

impl Roster {
    fn say(&self, change: Change) {
        self.0.push(change);
        self.0.kick();
    }
}

impl Follow for Roster {
    fn joined(&self, member: BrokerId) {
        self.say(Change::Member(member));
    }

    fn known(&self, _: BrokerId) {}

    fn changed(&self, _: BrokerId, _: &[register::Change]) {}

    fn left(&self, member: BrokerId) {
        self.say(Change::MemberGone(member));
    }
}

/// Gives the core's deliveries the time, and wakes the clients.
struct FromMesh {
    delivery: LinkDelivery,
    /// Of the clients' runtime.
    bell: Option<Arc<Bell>>,
    /// When the first message since the last flush came: all that one read of a lane brings came then, and the clock is not asked for each.
    now: Option<Instant>,
}

impl Deliver for FromMesh {
    fn deliver(&mut self, message: &MeshMessage<'_>, id: MessageId) {
        let now = *self.now.get_or_insert_with(clock::now);
        self.delivery.deliver(message, id, now);
    }

    fn catch_up(&mut self, message: &MeshMessage<'_>, id: MessageId) {
        let now = *self.now.get_or_insert_with(clock::now);
        self.delivery.catch_up(message, id, now);
    }

    fn wants(&mut self, topic: &str, picks: Picks<'_>) -> bool {
        self.delivery.wants(topic, picks)
    }

    fn pick_again(&mut self, message: &MeshMessage<'_>, broker: BrokerId, may_be_same: bool) -> usize {
        self.delivery.pick_again(message, broker, may_be_same, clock::now())
    }

    fn share_late(&mut self, message: &MeshMessage<'_>, is_new: &mut dyn FnMut(ShareId) -> bool) {
        self.delivery.share_late(message, is_new, clock::now());
    }

    fn decided(&mut self, topic: &str) {
        self.delivery.decided(topic, clock::now());
    }

    fn covered(&mut self, stream: OriginLane, cover: u64) {
        self.delivery.covered(stream, cover);
    }

    fn flush(&mut self) {
        self.now = None;
        match &self.bell {
            Some(bell) => bell.ring(self.delivery.flush_asleep(clock::now())),
            None => self.delivery.flush(clock::now()),
        }
    }
}

/// What the whole broker may take, bytes, and whose word that is.
fn memory_limit(config: &Config) -> Option<u64> {
    let configured = config.limits.memory_limit.map(|limit| (limit as u64, "limits.memory_limit"));
    let (limit, from) = configured.or_else(|| resources::memory().map(|memory| (memory.limit, memory.from)))?;
    tracing::info!(limit_bytes = limit, from, "memory");
    Some(limit)
}

fn terms(
    config: &Config,
    listener: &Listener,
    policy: CurrentPolicy,
    (logins, backends): (Arc<Logins>, Option<Backends>),
    reserved: ReservedIds,
) -> Terms {
    Terms {
        policy,
        logins,
        backends,
        packet_bytes_max: listener.max_packet_size.unwrap_or(config.limits.max_packet_size),
        inflight_max: config.limits.max_inflight_messages,
        keep_alive_max_seconds: config.limits.max_keepalive,
        rates: Rates {
            messages: listener.max_message_rate.or(config.limits.max_message_rate),
            bytes: listener.max_byte_rate.or(config.limits.max_byte_rate),
        },
        meter: Meter::shared(Rates { messages: listener.total_message_rate, bytes: listener.total_byte_rate })
            .map(|meter| Arc::new(Mutex::new(meter))),
        topic_alias_max: config.limits.max_topic_alias,
        topic_alias_broker_max: config.limits.max_topic_alias_broker,
        response_information: config.response_information.clone(),
        server_reference: config.server_reference.clone(),
        reserved,
    }
}

/// Does what is due, when it is due: keep alives, wills, expired sessions and messages.
async fn run_timer(router: Arc<Router>) {
    let mut batch = Batch::default();
    loop {
        let (unix, now) = clock::both();
        if let Some(stamps) = router.retained().clock() {
            stamps.set(unix, now);
        }
        router.expire(&mut batch, now);
        router.finish(&mut batch, now);
        if router.watch_replicas(now) {
            tracing::error!("what moves sessions stands still: replicas are not waited for");
        }
        sleep_until_due(&router, now + SWEEP_INTERVAL).await;
    }
}

/// Fetches sessions from other brokers, hands them over to these, and gives up those that others claim.
async fn move_sessions(router: Arc<Router>, post: Arc<Post>) {
    let mut batch = Batch::default();
    let mut pause = Duration::ZERO;
    loop {
        let news = poll_fn(|cx| match post.poll_received(cx).is_ready() || router.poll_claims(cx).is_ready() {
            true => Poll::Ready(()),
            false if router.poll_replicas(cx).is_ready() => Poll::Ready(()),
            false => router.poll_fetches(cx),
        });
        // That the time is over is as good as news.
        let _ = tokio::time::timeout(pause, news).await;
        // All clients whose sessions are asked for are waited for at once.
        let mail: Vec<Mail> = std::iter::from_fn(|| post.receive()).take(LETTERS_AT_ONCE).collect();
        let clients: Vec<&str> = mail.iter().filter_map(Router::client_asked_for).collect();
        connection::await_predecessors(&clients, &router).await;
        let now = clock::now();
        pause = router.drive_moves(&mut batch, mail, now);
        router.finish(&mut batch, now);
    }
}

/// Until the next deadline, however often an earlier one comes up, or `latest`.
async fn sleep_until_due(router: &Router, latest: Instant) {
    let mut sleep = std::pin::pin!(tokio::time::sleep_until(latest.into()));
    poll_fn(|cx| {
        let due = router.next_deadline(cx.waker()).map_or(latest, |due| due.min(latest));
        if sleep.deadline().into_std() != due {
            sleep.as_mut().reset(due.into());
        }
        sleep.as_mut().poll(cx)
    })
    .await;
}

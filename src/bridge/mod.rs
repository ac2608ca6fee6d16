//! Bridges to foreign brokers: plain MQTT 3.1.1 or 5 to a broker that is no part of the mesh, by Mosquitto's rules.
//!
//! A bridge is a session here and a session there, and between them a relay that renames topics. What waits while either side is away, what is
//! in flight, QoS 2 and what of it is on disk is each session's own business; so an outage or the end of a process on either side loses and doubles
//! nothing of QoS 1 and 2 but what MQTT itself allows. Nothing of the hot path knows of bridges.
//!
//! | file | duty |
//! |---|---|
//! | `election` | which broker of a mesh serves a bridge |
//! | `topics` | what crosses, and what it is called on the other side |
//! | `local` | the session here, over a pipe |
//! | `remote` | the way to the foreign broker, CONNECT and CONNACK |
//! | `tls` | whom it trusts, what it shows |
//! | `relay` | packets across |
//! | `status` | what is counted |
//!
//! Not here: what a bridge may be told, which is `config`'s.
//!
//! Specification: mosquitto.conf(5), "Configuring Bridges"; `README.md`, "Bridges".

mod election;
mod local;
mod relay;
mod remote;
mod status;
mod tls;
mod topics;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::election::{Election, Other, Turn};
use self::local::{Joined, Local, LocalError, Room};
use self::relay::{End, Foreign, Relay};
use self::remote::{DialError, Introduction, Remote, WillTaken};
use self::status::Status;
use self::topics::Topics;
use crate::codec::{PacketId, ProtocolVersion, QoS, ReasonCode};
use crate::config::{self, Config, HostPort};
use crate::ids::BrokerId;
use crate::metrics::Sample;
use crate::router::{Batch, Passing, Router};
use crate::shared::register::{BridgeClaim, Key, Registers, Value};
use crate::{clock, task};

/// After the first failure.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// A connection that lasted so long has succeeded: the next wait is the first again.
const SUCCESS: Duration = Duration::from_secs(10);

/// What a bridge needs to end, at most, when it is told something else.
const RELOAD_PATIENCE: Duration = Duration::from_secs(5);
/// So long the others wait for the session of a bridge whose broker leaves; then one of them begins without it.
const PASS_PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at whose turn it is.
const ELECTION_INTERVAL: Duration = Duration::from_millis(250);
/// Whoever closes the connection so often in a row when it is told that a bridge comes does not understand that.
const CLOSED_PRIVATE_MAX: u32 = 3;
/// For the release of what is in flight at a foreign broker: 256 KiB each way.
const RELEASE_PATIENCE: Duration = Duration::from_secs(120);
/// A packet with a longer topic may need longer lengths.
const GROWTH_OF_LENGTHS: usize = 3;

/// Why there is no bridge at present.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("it has no address")]
    NoAddress,
    #[error("{host}: {error}")]
    Dial { host: String, error: DialError },
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error("{0}")]
    Ended(#[from] End),
    #[error("the foreign broker takes no QoS {0}; lower the QoS of `topic`")]
    QoS(u8),
}

/// Whom this broker reaches in its mesh, itself among them.
pub type Reachable = Arc<dyn Fn() -> BTreeSet<BrokerId> + Send + Sync>;

/// All bridges of this broker.
pub struct Bridges {
    router: Arc<Router>,
    reachable: Option<Reachable>,
    /// By their names.
    running: Mutex<BTreeMap<String, Running>>,
    /// Held for as long as a reload takes: the next one begins with what the last has made.
    reloading: tokio::sync::Mutex<()>,
    is_stopped: AtomicBool,
    is_leaving: Arc<AtomicBool>,
}

impl fmt::Debug for Bridges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridges").field("running", &self.running).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Running {
    config: config::Bridge,
    remote_client_id: String,
    turn: Arc<watch::Sender<Turn>>,
    status: Arc<Status>,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    /// Waits for the end, but no longer than until `deadline`.
    async fn end(self, deadline: tokio::time::Instant) {
        for mut task in self.tasks {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

impl Bridges {
    /// Starts what `config` names, on the current runtime. In a mesh each is served by one of the brokers that `reachable` names and that have it.
    ///
    /// `knows_others`: the disk knows of other members.
    #[must_use]
    pub fn start(config: &Config, router: &Arc<Router>, reachable: Option<Reachable>, knows_others: bool) -> Self {
        let this = Self {
            router: Arc::clone(router),
            reachable,
            running: Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
            is_stopped: AtomicBool::new(false),
            is_leaving: Arc::default(),
        };
        this.begin(config, knows_others);
        this
    }

    /// Takes over, in its own time, what `config` says of bridges. Those that it does not name any more end, with their sessions here; those of which it says something else end and
    /// begin anew, with what waits for them; the others do not notice.
    pub fn reload(self: &Arc<Self>, config: Config) {
        let this = Arc::clone(self);
        task::spawn("bridges reload", async move {
            let _one_at_a_time = this.reloading.lock().await;
            let ended = this.end_changed(&config);
            let deadline = tokio::time::Instant::from_std(clock::now() + RELOAD_PATIENCE);
            for (name, running) in ended {
                let remote_client_id = running.remote_client_id.clone();
                running.end(deadline).await;
                this.router.release_state(&remote_client_id);
                if let Some(registers) = this.router.registers().filter(|_| !config.bridges.iter().any(|one| one.name == name)) {
                    registers.own().withdraw_bridge(&name);
                }
            }
            // What was there before may serve others' bridges by now.
            this.begin(&config, true);
        });
    }

    /// Tells those to end of which `config` says nothing, or something else.
    fn end_changed(&self, config: &Config) -> Vec<(String, Running)> {
        let mut running = self.running.lock();
        let is_same = |name: &str, running: &Running| config.bridges.iter().any(|one| one.name == name && *one == running.config);
        let changed: Vec<String> =
            running.iter().filter(|(name, running)| !is_same(name, running)).map(|(name, _)| name.clone()).collect();
        let ended: Vec<_> = changed.into_iter().filter_map(|name| running.remove_entry(&name)).collect();
        drop(running);
        for (name, running) in &ended {
            let new = config.bridges.iter().find(|one| one.name == *name);
            let keeps_session = new.is_some_and(|new| new.local_client_id() == running.config.local_client_id());
            tracing::info!(bridge = name, is_removed = new.is_none(), "the bridge ends: its configuration is another");
            running.turn.send_replace(if keeps_session { Turn::Stop } else { Turn::Remove });
        }
        ended
    }

    /// Starts those that do not run.
    fn begin(&self, config: &Config, knows_others: bool) {
        let mut running = self.running.lock();
        if self.is_stopped.load(Ordering::Relaxed) {
            return;
        }
        for one in &config.bridges {
            if running.contains_key(&one.name) {
                continue;
            }
            let bridge = Bridge::new(config, one, Arc::clone(&self.router));
            let mesh = self.reachable.as_ref().zip(self.router.registers());
            let mut tasks = Vec::new();
            let (turn, turns) = watch::channel(if mesh.is_some() { Turn::Wait } else { Turn::Serve });
            let turn = Arc::new(turn);
            let (status, remote_client_id) = (Arc::clone(&bridge.status), bridge.remote_client_id.clone());
            let sender = Arc::clone(&turn);
            if let Some((reachable, registers)) = mesh {
                let claim = BridgeClaim { priority: one.priority, since_ms: 0, has_session: bridge.local.is_there() };
                let election = Election::new(registers.own_id(), claim, one.takeover_after, knows_others);
                let candidate = Candidate {
                    name: one.name.clone(),
                    election,
                    registers: Arc::clone(registers),
                    reachable: Arc::clone(reachable),
                    doubt: Arc::clone(&bridge.doubt),
                    is_leaving: Arc::clone(&self.is_leaving),
                    router: Arc::clone(&self.router),
                    local: Arc::clone(&bridge.local),
                    status: Arc::clone(&bridge.status),
                    // What is clean ends with its connection.
                    may_pass: !one.cleansession,
                    left_at: None,
                    is_heir: false,
                };
                tasks.push(task::spawn("bridge election", candidate.run(turn)));
            }
            tasks.push(task::spawn("bridge", bridge.run(turns)));
            running.insert(one.name.clone(), Running { config: one.clone(), remote_client_id, turn: sender, status, tasks });
        }
    }

    /// Whether this broker is to leave its mesh: other brokers are to serve the bridges, and nothing comes in by them here any more.
    pub fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::Relaxed);
    }

    /// Whether one is served here still, or its session is to go to who serves it next.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.running.lock().values().any(|one| one.status.is_serving() || one.status.is_passing())
    }

    /// What is counted.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        self.running.lock().values().flat_map(|one| one.status.samples()).collect()
    }

    /// Ends all connections; each session here waits for the next start.
    pub async fn stop(&self, deadline: tokio::time::Instant) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let all = std::mem::take(&mut *self.running.lock());
        all.values().for_each(|one| {
            one.turn.send_replace(Turn::Stop);
        });
        for running in all.into_values() {
            running.end(deadline).await;
        }
    }

    /// Ends them without a word, as a process that is killed.
    pub fn abort(&self) {
        self.running.lock().values().flat_map(|one| &one.tasks).for_each(JoinHandle::abort);
    }
}

/// This broker among those that could serve a bridge.
struct Candidate {
    name: String,
    election: Election,
    registers: Arc<Registers>,
    reachable: Reachable,
    doubt: Arc<Doubt>,
    is_leaving: Arc<AtomicBool>,
    router: Arc<Router>,
    local: Arc<Local>,
    status: Arc<Status>,
    may_pass: bool,
    /// Since when this broker is to leave; until it serves again, if that was called off.
    left_at: Option<Instant>,
    /// The session may come from a broker that leaves.
    is_heir: bool,
}

/// Whether another broker may speak to the foreign one as this bridge.
#[derive(Debug, Default)]
struct Doubt {
    /// It may have done so before this one began.
    has_been: AtomicBool,
    /// It may do so now: it is out of reach.
    is_now: AtomicBool,
}

impl Candidate {
    /// Says whose turn it is, until the bridge is stopped.
    async fn run(mut self, turn: Arc<watch::Sender<Turn>>) {
        let mut told = None;
        while !turn.borrow().is_last() {
            let reachable = (self.reachable)();
            let others = self.others(&reachable);
            let is_alone = reachable.len() <= 1;
            let unix_ms = u64::try_from(clock::unix_time().as_millis()).unwrap_or(u64::MAX);
            let now = clock::now();
            self.note_session(now);
            let decided = match self.is_leaving.load(Ordering::Relaxed) {
                true => self.resign(&others, now),
                // Its move was not called off in time: it is waited for.
                false if self.local.is_moving() => Turn::Wait,
                false => self.election.decide(&others, is_alone, unix_ms, now),
            };
            self.pass(&others);
            self.doubt.is_now.store(others.iter().any(|other| !other.is_reachable), Ordering::Relaxed);
            if std::mem::take(&mut self.election.is_in_doubt) {
                self.doubt.has_been.store(true, Ordering::Relaxed);
            }
            if told != Some(self.election.claim) {
                self.registers.own().tell_bridge(&self.name, self.election.claim);
                told = Some(self.election.claim);
            }
            turn.send_if_modified(|turn| {
                let is_other = *turn != decided && !turn.is_last();
                if is_other {
                    tracing::debug!(bridge = self.name, turn = ?decided, "whose turn it is to serve the bridge");
                    *turn = decided;
                }
                is_other
            });
            tokio::time::sleep(ELECTION_INTERVAL).await;
        }
        self.local.pass(None);
    }

    /// Sees whether the session has come here, or has gone, since this was asked last.
    fn note_session(&mut self, now: Instant) {
        let is_there = self.local.is_there() && !self.local.is_moving();
        let claim = &mut self.election.claim;
        if self.is_leaving.load(Ordering::Relaxed) {
            self.left_at.get_or_insert(now);
        } else if claim.since_ms > 0 {
            self.left_at = None;
        } else if self.left_at.is_some() {
            claim.has_session = is_there;
        }
        if std::mem::take(&mut self.is_heir) && is_there {
            claim.has_session = true;
        }
    }

    fn resign(&mut self, others: &[Other], now: Instant) -> Turn {
        let is_late = self.left_at.is_some_and(|at| now.saturating_duration_since(at) >= PASS_PATIENCE) && !self.local.is_moving();
        if is_late && self.status.is_passing() {
            tracing::warn!(
                bridge = self.name,
                "no other broker has taken the bridge's session: what waits for the bridge stays here"
            );
        }
        self.election.resign(others, is_late || !self.may_pass)
    }

    /// Says where the session goes to, or comes from.
    fn pass(&mut self, others: &[Other]) {
        let takers = self.router.takers();
        let stays = |broker: BrokerId| takers.contains(&broker);
        let passing = match self.is_leaving.load(Ordering::Relaxed) {
            true => Election::heir(others, stays).filter(|_| self.election.claim.has_session).map(Passing::To),
            false if self.local.is_there() => None,
            false => self.election.testator(others, stays).map(Passing::From),
        };
        self.status.set_passing(matches!(passing, Some(Passing::To(_))));
        self.is_heir = matches!(passing, Some(Passing::From(_)));
        self.local.pass(passing);
    }

    fn others(&self, reachable: &BTreeSet<BrokerId>) -> Vec<Other> {
        let said = self.registers.look_up(&Key::Bridge(self.name.as_str().into())).into_iter();
        said.filter_map(|(id, value)| match value {
            Value::Bridge(claim) => Some(Other { id, claim, is_reachable: reachable.contains(&id) }),
            _ => None,
        })
        .collect()
    }
}

/// One bridge.
#[derive(Debug)]
struct Bridge {
    config: config::Bridge,
    remote_client_id: String,
    /// On the foreign side.
    notification_topic: Option<String>,
    packet_bytes_max: u32,
    topics: Topics,
    local: Arc<Local>,
    router: Arc<Router>,
    status: Arc<Status>,
    /// Whether other brokers could take back what comes in.
    marks: bool,
    doubt: Arc<Doubt>,
    /// What of a will the foreign broker takes, as far as is known.
    will: Mutex<WillTaken>,
    /// So often in a row it closed the connection when it was told that a bridge comes.
    closed_private: AtomicU32,
    /// The foreign broker does not understand that a bridge comes.
    refuses_private: AtomicBool,
    /// Which address is tried first.
    address: AtomicUsize,
}

impl Bridge {
    fn new(config: &Config, one: &config::Bridge, router: Arc<Router>) -> Self {
        let place = config.mesh.as_ref().map_or(&config.name, |mesh| &mesh.name);
        let remote_client_id = one.remote_clientid.clone().unwrap_or_else(|| format!("{place}.{}", one.name));
        router.reserve_state(&remote_client_id);
        let state = || one.notification_topic.clone().unwrap_or_else(|| state_topic(&remote_client_id));
        Self {
            notification_topic: (one.notifications && !one.notifications_local_only).then(state),
            remote_client_id,
            packet_bytes_max: one.max_packet_size.unwrap_or(config.limits.max_packet_size),
            topics: Topics::new(&one.topics),
            local: Arc::new(Local::new(
                Arc::clone(&router),
                one.local_client_id(),
                config.limits.max_inflight_messages,
                one.cleansession,
            )),
            router,
            status: Arc::new(Status::new(&one.name)),
            marks: config.mesh.is_some()
                && one.topics.iter().any(|line| line.direction.goes_out())
                && one.topics.iter().any(|line| line.direction.comes_in()),
            doubt: Arc::default(),
            will: Mutex::default(),
            closed_private: AtomicU32::new(0),
            refuses_private: AtomicBool::new(false),
            address: AtomicUsize::new(0),
            config: one.clone(),
        }
    }

    /// Does what it is the bridge's turn to do, until it is stopped.
    async fn run(self, mut turns: watch::Receiver<Turn>) {
        self.show_state(false);
        loop {
            let turn = *turns.borrow_and_update();
            self.status.set_serving(turn == Turn::Serve);
            match turn {
                Turn::Stop => return,
                Turn::Remove => {
                    let dropped = self.local.end();
                    return tracing::info!(bridge = self.config.name, dropped, "the bridge is removed, and its session with it");
                }
                Turn::Wait => {}
                Turn::Yield => self.local.forget(&self.config.name, &self.status),
                Turn::Gather => {
                    if let Err(error) = self.local.prepare(&self.topics).await {
                        tracing::warn!(bridge = self.config.name, %error, "nothing is gathered for the bridge");
                    }
                }
                Turn::Serve => {
                    self.keep_connected(&mut turns).await;
                    continue;
                }
            }
            // A sender that is gone is a stop, too.
            if turns.changed().await.is_err() {
                return;
            }
        }
    }

    /// Connects again and again, for as long as it is this broker's turn.
    async fn keep_connected(&self, turns: &mut watch::Receiver<Turn>) {
        let bridge = &self.config.name;
        let (mut failures, mut last) = (0, String::new());
        loop {
            let began_at = clock::now();
            let trouble = match self.attempt(turns).await {
                Ok(End::Told) => return,
                Ok(end) => Trouble::Ended(end),
                Err(trouble) => trouble,
            };
            self.status.failures.add(1);
            failures = if clock::now().saturating_duration_since(began_at) >= SUCCESS { 0 } else { failures + 1 };
            let reason = trouble.to_string();
            if reason == last {
                tracing::debug!(bridge, reason, "the bridge is not connected");
            } else {
                tracing::warn!(bridge, reason, "the bridge is not connected");
                last = reason;
            }
            tokio::select! {
                () = tokio::time::sleep(wait(failures, self.config.restart_timeout)) => {}
                () = is_over(turns) => return,
            }
        }
    }

    /// Connects, and carries messages for as long as it lasts.
    async fn attempt(&self, turns: &mut watch::Receiver<Turn>) -> Result<End, Trouble> {
        if self.doubt.has_been.load(Ordering::Relaxed) {
            self.local.part().await?;
            self.doubt.has_been.store(false, Ordering::Relaxed);
        }
        // The session here waits before the foreign broker is there.
        self.local.prepare(&self.topics).await?;
        let Some(mut remote) = self.reach_for(turns).await? else { return Ok(End::Told) };
        if remote.session_present && !self.local.is_met() && self.topics.local().iter().any(|one| one.qos == QoS::ExactlyOnce) {
            match self.release(remote, turns.clone()).await? {
                End::Released => {
                    tracing::info!(
                        bridge = self.config.name,
                        "what another may have had in flight is released at the foreign broker"
                    );
                    self.local.meet().await?;
                }
                end => return Ok(end),
            }
            let Some(again) = self.reach_for(turns).await? else { return Ok(End::Told) };
            remote = again;
        }
        self.local.meet().await?;
        let version = remote.version;
        let end = self.serve(remote, turns.clone()).await?;
        // Before MQTT 5 nobody is told why.
        let is_driven_away = match end {
            End::RemoteSaid(reason) => reason == ReasonCode::SessionTakenOver,
            End::RemoteClosed | End::Remote(_) => version != ProtocolVersion::V5 && self.doubt.is_now.load(Ordering::Relaxed),
            _ => false,
        };
        if is_driven_away {
            self.local.part().await?;
        }
        Ok(end)
    }

    async fn reach_for(&self, turns: &mut watch::Receiver<Turn>) -> Result<Option<Remote>, Trouble> {
        tokio::select! {
            remote = self.reach() => remote.map(Some),
            () = is_over(turns) => Ok(None),
        }
    }

    /// Has the foreign session forget what another has in flight there. The connection is of no use after that.
    async fn release(&self, remote: Remote, mut turns: watch::Receiver<Turn>) -> Result<End, Trouble> {
        let foreign = self.foreign(&remote, PacketId::MAX);
        let mut relay = Relay::releasing(&self.topics, &self.status, foreign)?;
        let (nobody, _other_end) = tokio::io::duplex(1);
        let told = Box::pin(async move { is_over(&mut turns).await });
        let ended = tokio::time::timeout(RELEASE_PATIENCE, relay.run(nobody, remote.stream, remote.rest, told)).await;
        Ok(ended.unwrap_or(End::Silent))
    }

    fn foreign(&self, remote: &Remote, spare_id: PacketId) -> Foreign<'_> {
        Foreign {
            mark: if self.marks { &self.remote_client_id } else { "" },
            version: remote.version,
            packet_bytes_max: self.packet_bytes_max,
            retain: self.config.outgoing_retain && remote.takes_retained,
            keep_alive: remote.keep_alive,
            spare_id,
            has_subscriptions: remote.version != ProtocolVersion::V5 && remote.session_present && self.status.is_subscribed(),
        }
    }

    /// The first foreign broker that lets the bridge in.
    async fn reach(&self) -> Result<Remote, Trouble> {
        let count = self.config.addresses.len();
        let first = if self.config.round_robin { self.address.load(Ordering::Relaxed) } else { 0 };
        let mut trouble = Trouble::NoAddress;
        let in_turn = self.config.addresses.iter().enumerate().cycle().skip(first).take(count);
        for (index, address) in in_turn {
            match self.dial(address).await {
                Ok(remote) => {
                    self.address.store(index, Ordering::Relaxed);
                    return Ok(remote);
                }
                Err(error) => trouble = Trouble::Dial { host: address.to_string(), error },
            }
        }
        Err(trouble)
    }

    async fn dial(&self, address: &HostPort) -> Result<Remote, DialError> {
        let introduce = |is_private| Introduction {
            bridge: &self.config,
            client_id: &self.remote_client_id,
            notification_topic: self.notification_topic.as_deref(),
            packet_bytes_max: self.packet_bytes_max,
            is_private,
            will: *self.will.lock(),
        };
        let is_private = Introduction::knows_private(&self.config) && !self.refuses_private.load(Ordering::Relaxed);
        let mut dialled = introduce(is_private).dial(address).await;
        if is_private {
            let (is_refused, is_closed) = match &dialled {
                Err(DialError::Refused(reason)) => (*reason == ReasonCode::UnsupportedProtocolVersion, false),
                Err(DialError::Closed) => (false, true),
                _ => (false, false),
            };
            // Whoever closes may just have been starting.
            let closed = if is_closed { self.closed_private.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
            self.closed_private.store(closed.min(CLOSED_PRIVATE_MAX), Ordering::Relaxed);
            if is_refused || closed >= CLOSED_PRIVATE_MAX {
                dialled = introduce(false).dial(address).await;
                self.refuses_private.store(is_refused && dialled.is_ok(), Ordering::Relaxed);
            }
        }
        // A will that is more than it takes is refused with all of CONNECT [MQTT-3.2.2-12], [MQTT-3.2.2-13]: the next one is less.
        match &dialled {
            Err(DialError::Refused(ReasonCode::QoSNotSupported)) => self.will.lock().qos = QoS::AtMostOnce,
            Err(DialError::Refused(ReasonCode::RetainNotSupported)) => self.will.lock().is_there = false,
            _ => {}
        }
        dialled
    }

    async fn serve(&self, remote: Remote, mut turns: watch::Receiver<Turn>) -> Result<End, Trouble> {
        let too_high = self.topics.local().iter().map(|one| one.qos).max().filter(|qos| *qos > remote.qos_max);
        if let Some(qos) = too_high {
            return Err(Trouble::QoS(qos as u8));
        }
        let growth = u32::try_from(self.topics.growth_outward() + GROWTH_OF_LENGTHS).unwrap_or(u32::MAX);
        let room = Room {
            receive_maximum: remote.receive_maximum,
            packet_bytes_max: remote.packet_bytes_max.saturating_sub(growth).max(1),
        };
        let Joined { client, pipe, first } = self.local.join(&self.topics, room, !remote.session_present).await?;
        let spare_id = client.subscriber().lock().outbound.spare_id();
        let foreign = self.foreign(&remote, spare_id);
        let mut relay = Relay::new(&self.topics, &self.status, foreign, self.config.attempt_unsubscribe)?;
        relay.to_local = first;
        if let Some(topic) = self.notification_topic.as_deref().filter(|_| remote.takes_retained) {
            relay.notify(topic)?;
        }
        self.connected(&remote);
        let told = Box::pin(async move { is_over(&mut turns).await });
        let (end, ()) = tokio::join!(relay.run(pipe, remote.stream, remote.rest, told), client.serve());
        self.status.set_connected(false);
        self.show_state(false);
        Ok(end)
    }

    fn connected(&self, remote: &Remote) {
        let bridge = &self.config.name;
        self.status.connects.add(1);
        self.status.set_connected(true);
        self.show_state(true);
        tracing::info!(bridge, version = %remote.version, session_present = remote.session_present, "the bridge is connected");
        if !remote.is_no_echo && self.topics.have_both() {
            tracing::warn!(
                bridge,
                "the foreign broker gives back what `both` topics send to it, so that it is seen twice here; if it speaks MQTT 5, set \
                 protocol_version = \"mqttv50\""
            );
        }
    }

    /// Tells local clients.
    fn show_state(&self, is_connected: bool) {
        if !self.config.notifications {
            return;
        }
        let (mut batch, now) = (Batch::default(), clock::now());
        let state: &[u8] = if is_connected { b"1" } else { b"0" };
        self.router.publish_system(&mut batch, &state_topic(&self.remote_client_id), state, true, now);
        self.router.finish(&mut batch, now);
    }
}

/// Ready when it is this broker's turn no more.
async fn is_over(turns: &mut watch::Receiver<Turn>) {
    // A sender that is gone is a stop, too.
    let _ = turns.wait_for(|turn| *turn != Turn::Serve).await;
}

/// As Mosquitto has it.
fn state_topic(remote_client_id: &str) -> String {
    format!("$SYS/broker/connection/{remote_client_id}/state")
}

/// Twice as long each time, and never quite the same for all.
fn wait(failures: u32, most: Duration) -> Duration {
    let longest = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(most);
    longest.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_longest() {
        for (failures, longest) in [(0, 1), (1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (4_000_000_000, 30)] {
            let wait = wait(failures, Duration::from_secs(30)).as_secs_f64();
            assert!(wait >= f64::from(longest) / 2.0 && wait <= f64::from(longest), "{failures}: {wait}");
        }
    }
}

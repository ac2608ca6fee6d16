//! The mesh's shell: a QUIC endpoint on a thread of its own, admission by certificate, links and their streams. It drives the state
//! machines of `stp` and `replication`; it decides nothing of the tree and nothing of messages.
//!
//! | file | duty |
//! |---|---|
//! | `identity`, `pki`, `crl`, `tls` | certificates: who is who, making them, taking them back, trusting them |
//! | `endpoint`, `gate` | the UDP socket and QUIC's settings; the credentials of each handshake |
//! | `discovery` | where other brokers may be, and whom to dial |
//! | `connect`, `handshake`, `pairing`, `rivals`, `roster` | from an address to a candidate, from a candidate to the one link of a pair |
//! | `link`, `control`, `lanes` | a link's tasks: control stream, lanes |
//! | `congestion` | QUIC's congestion controllers, with a floor |
//! | `bulk` | retained messages that lanes do not bring, and letters, beside the lanes |
//! | `post` | by which links letters go |
//! | `credit` | how much may be on its way: a decision as a value under virtual time |
//! | `proof` | what brokers say of themselves, signed and checked |
//! | `incarnation`, `capacity` | what this broker says of itself |
//! | `expiry` | when to warn of our own certificate |
//! | `counters` | what was not taken from peers, counted |
//! | `metrics`, `events`, `status` | what it counts and tells of itself |
//! | `trace` | which way a message would take, as the brokers on it answer |
//! | `driver` | the one task that owns the tree, the links and the records |
//!
//! Everything runs on one thread, a runtime of its own: small paced packets cost a multi-thread runtime several times the wake-ups
//! (quinn#1433), and a busy client side does not delay a hello. Invariants: one link a pair of brokers; nothing is allocated by a peer's
//! say-so; what a peer says that cannot be ends its own link at most; what it says of others is believed only as far as they have signed it.
//!
//! Specification: `ARCHITECTURE.md`, "The mesh".

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::RwLock;
use tokio::sync::{Notify, mpsc, watch};
use tracing::{error, warn};

use crate::config;
use crate::ids::{BrokerId, RootClaim};
use crate::limits;
use crate::replication::{Deliver, Replication};
use crate::shared::register::Registers;
use crate::shared::retained::RetainedCopies;
use crate::shared::trace::Subscribed;
use crate::shared::{Post, Records, Topology};
use crate::stp::StpConfig;
use crate::{clock, task};

mod bulk;
mod capacity;
mod complaints;
mod congestion;
mod connect;
mod control;
mod counters;
mod credit;
mod discovery;
mod driver;
mod endpoint;
mod error;
mod events;
mod expiry;
mod gate;
mod handshake;
pub mod identity;
mod incarnation;
mod lanes;
mod link;
mod metrics;
mod pairing;
pub mod pki;
mod post;
mod proof;
mod rivals;
mod roster;
mod status;
#[cfg(test)]
mod tests;
pub mod tls;
mod trace;

pub use counters::Refusals;
pub use error::LinkError;
pub use incarnation::IncarnationError;
pub use status::{Place, Status, Watcher};

use complaints::Complaints;
use connect::Connector;
use discovery::{Surroundings, Ways};
use driver::recorder::Recorder;
use driver::{Book, Driver, Settings, TraceCall};
use gate::Gate;
use handshake::Local;
use identity::{Identity, IdentityError};
use incarnation::Life;
use pairing::Pairing;
use post::PostOffice;
use proof::Keyring;
use roster::Roster;
use tls::{Credentials, SharedCredentials};

/// Makes, for each lane that a link brings in, what hands its messages to local subscribers.
pub type DeliverFactory = Arc<dyn Fn() -> Box<dyn Deliver + Send> + Send + Sync>;

/// The root opens a new epoch for a cheaper way at most this often.
const EPOCH_INTERVAL: Duration = Duration::from_secs(1);
/// A shutdown waits so long for its last packets.
const GOODBYE: Duration = Duration::from_millis(300);
/// Candidates that wait to be judged.
const PROPOSALS_MAX: usize = 64;

/// What a mesh needs.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// The broker's name.
    pub name: String,
    /// Where its incarnation is stored.
    pub data_dir: PathBuf,
    /// The operator's table. Its files are not read here: `credentials` is what they hold.
    pub mesh: config::Mesh,
    /// What this broker shows and whom it trusts.
    pub credentials: Credentials,
}

impl MeshConfig {
    /// Who this broker is in its mesh: by its names, and by its certificate all the same.
    ///
    /// # Errors
    /// Names that no broker or mesh may have; a certificate of another broker or mesh.
    pub fn identity(&self) -> Result<Identity, MeshError> {
        let identity = Identity::derive(&self.mesh.name, &self.name)?;
        let certified = self.credentials.identity();
        if *certified != identity {
            return Err(MeshError::OtherCertificate {
                certified: certified.id,
                certified_mesh: certified.mesh.clone(),
                name: self.name.clone(),
                mesh: self.mesh.name.clone(),
                id: identity.id,
            });
        }
        Ok(identity)
    }
}

/// Why the mesh does not start, or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// `mesh.listen`.
    #[error("mesh.listen = {address}: {source}")]
    Bind {
        /// As configured.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// `name` or `mesh.name`.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate is not this broker's.
    #[error(
        "mesh.certfile is of broker {certified} of mesh {certified_mesh:?}; name = {name:?} in mesh.name = {mesh:?} is broker {id}: \
         make it with `certs broker --mesh {mesh} --name {name}`"
    )]
    OtherCertificate {
        /// The certificate's.
        certified: BrokerId,
        /// The certificate's.
        certified_mesh: String,
        /// The configuration's.
        name: String,
        /// The configuration's.
        mesh: String,
        /// The configuration's.
        id: BrokerId,
    },
    /// A reload that would make another broker of this one.
    #[error(
        "mesh.certfile is now of broker {certified} of mesh {certified_mesh:?}, this is broker {id} of mesh {mesh:?}: restart to change that"
    )]
    ChangedIdentity {
        /// The new certificate's.
        certified: BrokerId,
        /// The new certificate's.
        certified_mesh: String,
        /// Ours.
        id: BrokerId,
        /// Ours.
        mesh: String,
    },
    /// `mesh.record_stp`.
    #[error("mesh.record_stp = {path}: cannot write there: {source}", path = path.display())]
    Record {
        /// As configured.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The incarnation.
    #[error(transparent)]
    Incarnation(#[from] IncarnationError),
    /// The system gives no thread or no runtime.
    #[error("the mesh's thread: {0}")]
    Thread(std::io::Error),
}

/// How the mesh ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It goes on.
    No,
    /// Peers are told.
    Graceful,
    /// Peers are left to find out.
    Abrupt,
}

/// One link, for metrics: both its connections together, where nothing else is said.
#[derive(Clone, Debug)]
pub struct LinkSummary {
    /// The peer's name.
    pub peer: String,
    /// Smoothed round trip of control.
    pub rtt: Duration,
    /// UDP bytes sent.
    pub bytes_sent: u64,
    /// UDP bytes received.
    pub bytes_received: u64,
    /// QUIC packets sent.
    pub packets_sent: u64,
    /// QUIC packets lost.
    pub packets_lost: u64,
    /// Share of packets lost among the last few, in the worse direction.
    pub loss: f64,
    /// By how much the peer's hellos come out of their rhythm, on average.
    pub hello_jitter: Duration,
    /// How long the peer may be silent before it counts as dead.
    pub detection_time: Duration,
    /// Largest UDP payload in bytes that the path is known to carry, by what the lanes found.
    pub mtu_bytes: u16,
    /// How often the path was found to carry less than before.
    pub black_holes: u64,
    /// Where the peer is seen at present.
    pub address: SocketAddr,
}

/// A running mesh. Dropped, it ends as by [`MeshHandle::abort`].
#[derive(Debug)]
pub struct MeshHandle {
    mesh: String,
    address: SocketAddr,
    book: Arc<Book>,
    gate: Gate,
    credentials: SharedCredentials,
    /// Tells the driver that the credentials are others.
    reloaded: Arc<Notify>,
    ways: watch::Sender<Ways>,
    calls: mpsc::Sender<TraceCall>,
    stop: watch::Sender<Stop>,
    ended: watch::Receiver<Option<Result<(), Arc<MeshError>>>>,
}

/// Binds the socket and joins the mesh in the background.
///
/// # Errors
/// What is wrong with the configuration, the certificates, the address or the data directory.
pub fn start(
    config: MeshConfig,
    replication: Arc<Replication>,
    registers: Arc<Registers>,
    post: Arc<Post>,
    deliver: DeliverFactory,
    retained: Arc<dyn RetainedCopies>,
    subscribed: Arc<dyn Subscribed>,
) -> Result<MeshHandle, MeshError> {
    let identity = config.identity()?;
    complain_of(&config.credentials);
    let listen = config.mesh.listen;
    let bind_error = |source| MeshError::Bind { address: listen, source };
    let socket = endpoint::bind(listen).map_err(bind_error)?;
    let address = socket.local_addr().map_err(bind_error)?;
    let life = Life::begin(&config.data_dir, clock::unix_time())?;
    let claim = RootClaim {
        priority: config.mesh.priority,
        capacity: config.mesh.capacity.unwrap_or_else(capacity::measure),
        id: identity.id,
        incarnation: life.incarnation(),
    };
    let (id, credentials) = (identity.id, Arc::new(ArcSwap::from_pointee(config.credentials)));
    let ways = Ways { peers: config.mesh.peers.clone(), discovery: config.mesh.discovery.clone() };
    let local = Arc::new(Local {
        identity,
        name: config.name,
        instance: rand::random(),
        lanes: config.mesh.lanes,
        hello: config.mesh.hello_time,
        costs: config.mesh.costs.iter().filter_map(|(peer, cost)| Some((peer.clone(), NonZeroU32::new(*cost)?))).collect(),
        life: parking_lot::Mutex::new(life),
        roster: Roster::new(claim.id, config.mesh.max_links, ways.chooses()),
        metrics: Arc::default(),
        keyring: Keyring::new(Arc::clone(&credentials)),
        credentials,
        records: Arc::new(RwLock::new(Records::new(id, driver::RECORD_LIFE))),
    });
    let tree = StpConfig { claim, hop_max: config.mesh.hop_max, hello: config.mesh.hello_time, epoch_interval: EPOCH_INTERVAL };
    let record = |path: &PathBuf| {
        Recorder::start(path, &tree, clock::now()).map_err(|source| MeshError::Record { path: path.clone(), source })
    };
    let recorder = config.mesh.record_stp.as_ref().map(record).transpose()?;
    let settings = Settings {
        local: Arc::clone(&local),
        deliver,
        retained,
        subscribed,
        links_max: config.mesh.max_links,
        tree,
        recorder,
        addresses: config.mesh.advertise.iter().map(ToString::to_string).collect(),
        pull_timeout: config.mesh.pull_timeout,
        replication: Arc::clone(&replication),
        registers,
        office: PostOffice::open(id, post, clock::now()),
    };
    let (proposals, proposals_out) = mpsc::channel(PROPOSALS_MAX);
    let (stop, stop_out) = watch::channel(Stop::No);
    let (ways, ways_out) = watch::channel(ways);
    let (ended_in, ended) = watch::channel(None);
    let (calls, calls_out) = mpsc::channel(limits::TRACES_OWN_MAX);
    let (driver, inputs) = Driver::new(settings, proposals_out, calls_out, stop_out);
    let (book, reloaded) = (driver.book(), Arc::clone(&inputs.reloaded));
    let (mesh, credentials) = (config.mesh.name.clone(), Arc::clone(&local.credentials));
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let body = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(ready.send(Err(MeshError::Thread(error)))),
        };
        let context = runtime.enter();
        let gate = match endpoint::open(socket, &local.credentials, config.mesh.congestion, config.mesh.mtu) {
            Ok(gate) => gate,
            Err(source) => return drop(ready.send(Err(MeshError::Bind { address: listen, source }))),
        };
        drop(context);
        let _ = ready.send(Ok(gate.clone()));
        let connector =
            Connector { endpoint: gate, local, pairing: Arc::<Pairing>::default(), proposals, complaints: Complaints::default() };
        let ended = runtime.block_on(run(connector, ways_out, address, driver, inputs));
        // What the tasks hold goes without being run once more: an abrupt end sends no goodbye. A name service that does not answer holds up
        // nothing.
        runtime.shutdown_background();
        let _ = ended_in.send(Some(ended.map_err(Arc::new)));
    };
    task::thread("mesh", body).map_err(MeshError::Thread)?;
    let gate = is_ready.recv().unwrap_or_else(|_| Err(MeshError::Thread(std::io::Error::other("it ended at once"))))?;
    Ok(MeshHandle { mesh, address, book, gate, credentials, reloaded, ways, calls, stop, ended })
}

/// Says what is wrong with credentials that are used all the same.
fn complain_of(credentials: &Credentials) {
    let now = clock::unix_time();
    if let Some(objection) = credentials.objection(now) {
        error!(%objection, "peers will refuse this broker's certificate");
    }
    for warning in credentials.list_warnings(now) {
        warn!("mesh.crlfile: {warning}");
    }
}

async fn run(
    connector: Connector,
    ways: watch::Receiver<Ways>,
    listen: SocketAddr,
    driver: Driver,
    inputs: driver::Inputs,
) -> Result<(), MeshError> {
    let (gate, connector) = (connector.endpoint.clone(), Arc::new(connector));
    task::spawn("accept", connect::accept(Arc::clone(&connector)));
    let around = Surroundings { connector, book: driver.book(), listen };
    let discovery = task::spawn("discovery", discovery::run(around, ways));
    let (stop, fatal) = driver.run(inputs).await;
    discovery.abort();
    if stop == Stop::Graceful {
        // Who misses the word finds out by its detection.
        gate.close(&LinkError::Shutdown, GOODBYE).await;
    }
    match fatal {
        Some(fatal) => {
            error!(error = %fatal, "the mesh stops");
            Err(fatal.into())
        }
        None => Ok(()),
    }
}

impl MeshHandle {
    /// The UDP address that is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Shows and trusts `credentials` from the next handshake on, in both directions. Links whose peers are no longer admitted are closed.
    ///
    /// # Errors
    /// [`MeshError::OtherCertificate`] where they are of another broker; nothing has changed then.
    pub fn reload(&self, credentials: Credentials) -> Result<(), MeshError> {
        let (present, new) = (self.credentials.load().identity().clone(), credentials.identity());
        if *new != present {
            return Err(MeshError::ChangedIdentity {
                certified: new.id,
                certified_mesh: new.mesh.clone(),
                id: present.id,
                mesh: present.mesh,
            });
        }
        complain_of(&credentials);
        self.credentials.store(Arc::new(credentials));
        self.gate.renew();
        self.reloaded.notify_one();
        Ok(())
    }

    /// Until when this broker's certificate is good, since the Unix epoch.
    #[must_use]
    pub fn certificate_expires(&self) -> Duration {
        self.credentials.load().validity().not_after
    }

    /// The mesh as this broker knows it.
    #[must_use]
    pub fn topology(&self) -> Topology {
        self.book.topology(&self.mesh)
    }

    /// Tells whoever shows the mesh of its news.
    #[must_use]
    pub fn watcher(&self) -> Watcher {
        Watcher::new(self.mesh.clone(), Arc::clone(&self.book))
    }

    /// The links that are up.
    #[must_use]
    pub fn links(&self) -> Vec<LinkSummary> {
        let links = self.book.links.load();
        let summary = |link: &Arc<link::Link>| {
            let ([control, lanes], health) = (link.stats(), link.health());
            LinkSummary {
                peer: link.peer.name.clone(),
                rtt: control.path.rtt,
                bytes_sent: control.udp_tx.bytes + lanes.udp_tx.bytes,
                bytes_received: control.udp_rx.bytes + lanes.udp_rx.bytes,
                packets_sent: control.path.sent_packets + lanes.path.sent_packets,
                packets_lost: control.path.lost_packets + lanes.path.lost_packets,
                loss: health.loss,
                hello_jitter: health.hello_jitter,
                detection_time: health.detection_time,
                mtu_bytes: lanes.path.current_mtu,
                black_holes: control.path.black_holes_detected + lanes.path.black_holes_detected,
                address: link.control.remote_address(),
            }
        };
        links.iter().map(summary).collect()
    }

    /// From now on peers are found in these ways. Whom only other ways had found is not dialled again; links that are there stay until
    /// they end.
    pub fn reconfigure(&self, peers: Vec<config::HostPort>, discovery: Vec<config::Discovery>) {
        let ways = Ways { peers, discovery };
        self.ways.send_if_modified(|present| {
            let changed = *present != ways;
            *present = ways;
            changed
        });
    }

    /// Words of peers that were not taken.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.book.refusals
    }

    /// Waits until the mesh has ended. `Err`: it could not go on, because another process lives as this broker.
    ///
    /// # Errors
    /// Why it could not go on.
    pub async fn ended(&self) -> Result<(), Arc<MeshError>> {
        match self.ended.clone().wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Ok(())),
            Err(_) => Ok(()),
        }
    }

    /// Leaves the mesh: peers are told, so that they notice at once.
    pub async fn shutdown(&self) {
        self.stop.send_replace(Stop::Graceful);
        let _ = self.ended().await;
    }

    /// Stops without a word, as a process that is killed.
    pub async fn abort(&self) {
        self.stop.send_replace(Stop::Abrupt);
        let _ = self.ended().await;
    }
}

impl Drop for MeshHandle {
    fn drop(&mut self) {
        self.stop.send_if_modified(|stop| {
            let running = *stop == Stop::No;
            if running {
                *stop = Stop::Abrupt;
            }
            running
        });
    }
}

//! Finding other brokers: the configured ways propose where one may be, one dialler tries, `neighbours` says who is worth a link. Nobody is
//! admitted for having been found: certificates do that ([`super::handshake`]).
//!
//! | file | way |
//! |---|---|
//! | `fixed` | `static`: each of `mesh.peers` is one broker |
//! | `dns` | every address of a name in `mesh.peers` is a broker of its own; SRV records |
//! | `mdns` | brokers on the same network announce themselves |
//! | `gossip` | what broker records tell: who is there, and where |
//! | `targets`, `dialler` | what is known of each place; who is dialled when |
//!
//! Invariants: exactly the configured ways are used; a way that is slow, down or lying adds or keeps targets at most, within bounds, and
//! ends no link; everything runs on the mesh's own thread, so that clients never wait for a name service.
//!
//! Specification: `ARCHITECTURE.md`, "Finding each other".

mod dialler;
mod dns;
mod fixed;
mod gossip;
mod mdns;
mod targets;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::connect::Connector;
use super::driver::Book;
use crate::config::{Discovery, HostPort};
use crate::ids::BrokerId;
use crate::task::TaskSet;

pub(super) use gossip::learn;

/// Addresses of one broker, or of one name, that are tried.
const ADDRESSES_MAX: usize = 64;
/// Words of the ways that wait for the dialler; the ways wait beyond that.
const FOUND_MAX: usize = 64;

/// How peers are found, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ways {
    pub(super) peers: Vec<HostPort>,
    pub(super) discovery: Vec<Discovery>,
}

impl Ways {
    fn has(&self, way: Discovery) -> bool {
        self.discovery.contains(&way)
    }

    /// Whether brokers may be found that the operator did not name, so that this broker has to choose.
    pub(super) fn chooses(&self) -> bool {
        self.discovery.iter().any(|way| *way != Discovery::Static)
    }
}

/// Where a broker may be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Address(SocketAddr),
    /// Looked up by the system whenever it is dialled.
    Name(HostPort),
}

impl Place {
    fn of(peer: &HostPort) -> Self {
        peer.host.parse().map_or_else(|_| Self::Name(peer.clone()), |ip| Self::Address(SocketAddr::new(ip, peer.port)))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// One broker to be found: at a place, whoever lives there, or by its id at any of several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    At(Place),
    Broker(BrokerId),
}

/// Who says so.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Static,
    Dns(HostPort),
    Mdns,
    Gossip,
}

/// All that a source knows at present, in place of what it said before.
#[derive(Debug)]
struct Found {
    source: Source,
    targets: Vec<(Target, Vec<Place>)>,
}

/// What discovery needs of the mesh.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) connector: Arc<Connector>,
    pub(super) book: Arc<Book>,
    /// As bound.
    pub(super) listen: SocketAddr,
}

impl Surroundings {
    /// Whether our socket can send there.
    fn can_dial(&self, address: SocketAddr) -> bool {
        let ip = address.ip();
        let is_one = !ip.is_unspecified() && !ip.is_multicast() && address.port() != 0;
        is_one && (self.listen.is_ipv6() || address.is_ipv4())
    }

    /// With whom there is a link at that address.
    fn linked_at(&self, address: SocketAddr) -> Option<BrokerId> {
        let links = self.book.links.load();
        links.iter().find(|link| canonical(link.peer.address) == canonical(address)).map(|link| link.peer.id)
    }
}

/// IPv4 as such, whatever socket it was seen by.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Finds and dials until it is dropped, as `ways` says at each time.
pub(super) async fn run(around: Surroundings, mut ways: watch::Receiver<Ways>) {
    let mut dialler = dialler::Dialler::new(around.clone());
    loop {
        let now = ways.borrow_and_update().clone();
        let (found, found_out) = mpsc::channel(FOUND_MAX);
        let _sources = start(&around, &now, &found);
        dialler.begin(now);
        tokio::select! {
            () = dialler.run(found_out) => {}
            changed = ways.changed() => if changed.is_err() { return std::future::pending().await },
        }
    }
}

/// Starts the ways that look for themselves; they end with what is returned.
fn start(around: &Surroundings, ways: &Ways, found: &mpsc::Sender<Found>) -> TaskSet {
    let mut sources = TaskSet::default();
    for name in fixed::names(ways) {
        sources.spawn(dns::follow(around.clone(), name, found.clone()));
    }
    if ways.has(Discovery::Mdns) {
        sources.spawn(mdns::run(around.clone(), found.clone()));
    }
    sources
}

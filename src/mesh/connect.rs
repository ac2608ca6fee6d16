//! Ways to a link: accepting who dials us, dialling whom the configuration names. What comes of either is proposed to the driver.
//!
//! Discovery only proposes; admission is by certificate. With `static`, an entry of `mesh.peers` is one broker: its addresses are tried in
//! their order until one answers. With `dns`, every address of a host name is a broker of its own, looked up again and again. A target is
//! redialled for ever, with a jittered exponential back-off; eagerly for a while after a link was lost.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quinn::Incoming;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::complaints::Complaints;
use super::error::LinkError;
use super::gate::Gate;
use super::handshake::{self, Candidate, HANDSHAKE_TIMEOUT, Local};
use crate::clock;
use crate::config::{Discovery, HostPort};
use crate::ids::BrokerId;
use crate::limits::NEWCOMER_TIME;
use crate::task;

/// Handshakes with diallers at once; whoever comes beyond that is to come again.
const HANDSHAKES_MAX: usize = 64;
/// Of these from one address (IPv6: one /64): who has no certificate shall not keep all others out.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 16;
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// An address may be silent for this long.
const PATIENCE: Duration = Duration::from_secs(3);
// A broker that comes back must not found a mesh of its own while its neighbours are about to reach it.
const _: () = assert!(NEWCOMER_TIME.as_secs() > BACKOFF_MAX.as_secs() + PATIENCE.as_secs() + HANDSHAKE_TIMEOUT.as_secs());
/// A link that was lost is redialled eagerly for this long: it may be a partition, which heals.
const EAGER_FOR: Duration = Duration::from_secs(60);
const EAGER_BACKOFF_MAX: Duration = Duration::from_millis(200);
const EAGER_PATIENCE_MIN: Duration = Duration::from_millis(600);
/// Round trips of the lost link that an eager attempt is given.
const EAGER_PATIENCE_RTTS: u32 = 6;
/// A link that lived shorter than this did not mend anything: the back-off goes on.
const LIVED: Duration = Duration::from_secs(2);
/// How often a name is looked up again.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(2);
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses that one name may have.
const ADDRESSES_MAX: usize = 64;

/// A candidate for the driver to judge.
#[derive(Debug)]
pub(super) struct Proposal {
    pub(super) candidate: Candidate,
    /// The round trip of the link that it became, or why it became none.
    pub(super) answer: oneshot::Sender<Result<Duration, LinkError>>,
}

/// What connecting needs.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) endpoint: Gate,
    pub(super) local: Arc<Local>,
    pub(super) proposals: mpsc::Sender<Proposal>,
    pub(super) links_max: usize,
    pub(super) complaints: Complaints,
}

/// Accepts connections until the endpoint closes.
pub(super) async fn accept(connector: Arc<Connector>) {
    let guests = Arc::new(Guests::default());
    while let Some(incoming) = connector.endpoint.accept().await {
        // Half the places are kept for those who have shown that their address is theirs (RFC 9000 section 8.1.2).
        if guests.total() >= HANDSHAKES_MAX / 2 && incoming.may_retry() {
            let _ = incoming.retry();
            continue;
        }
        let Some(place) = guests.seat(incoming.remote_address().ip()) else {
            // Its first packet is sent again, when there may be room.
            incoming.ignore();
            continue;
        };
        let connector = Arc::clone(&connector);
        task::spawn("handshake", async move {
            let _place = place;
            let address = incoming.remote_address();
            if let Err(error) = connector.welcome(incoming).await {
                connector.local.metrics.refused(&error);
                connector.complain("refused", &address.ip().to_string(), &address.to_string(), &error);
            }
        });
    }
}

/// Who is in a handshake with us, by address.
#[derive(Debug, Default)]
struct Guests(Mutex<BTreeMap<IpAddr, usize>>);

impl Guests {
    fn total(&self) -> usize {
        self.0.lock().values().sum()
    }

    /// A place for one more, until it is dropped.
    fn seat(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = match address {
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
            IpAddr::V4(_) => address,
        };
        let mut seated = self.0.lock();
        let (total, here) = (seated.values().sum::<usize>(), seated.get(&address).copied().unwrap_or(0));
        if total >= HANDSHAKES_MAX || here >= HANDSHAKES_PER_ADDRESS_MAX {
            return None;
        }
        seated.insert(address, here + 1);
        Some(Place { guests: Arc::clone(self), address })
    }
}

/// One of the places.
#[derive(Debug)]
struct Place {
    guests: Arc<Guests>,
    address: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seated = self.guests.0.lock();
        if let Some(here) = seated.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                seated.remove(&self.address);
            }
        }
    }
}

/// Dials `peers`, each in a task of its own, as `discovery` says.
pub(super) fn dial(connector: &Arc<Connector>, peers: &[HostPort], discovery: &[Discovery]) {
    for peer in peers {
        let is_name = peer.host.parse::<IpAddr>().is_err();
        if is_name && discovery.contains(&Discovery::Dns) {
            task::spawn("follow name", follow(Arc::clone(connector), peer.clone()));
        } else if !discovery.is_empty() {
            task::spawn("keep peer", keep(Arc::clone(connector), Target::Peer(peer.clone())));
        }
    }
}

/// One broker to be linked with.
#[derive(Clone, Debug)]
enum Target {
    Peer(HostPort),
    Address(SocketAddr),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Peer(peer) => peer.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Keeps a target of its own at every address of a name.
async fn follow(connector: Arc<Connector>, name: HostPort) {
    let mut kept: BTreeMap<SocketAddr, JoinHandle<()>> = BTreeMap::new();
    loop {
        match resolve(&name).await {
            Ok(addresses) => {
                kept.retain(|address, keeping| {
                    addresses.contains(address) || {
                        debug!(%name, %address, "no longer an address of this name");
                        keeping.abort();
                        false
                    }
                });
                for address in addresses {
                    kept.entry(address)
                        .or_insert_with(|| task::spawn("keep peer", keep(Arc::clone(&connector), Target::Address(address))));
                }
            }
            Err(error) => connector.complain_text("cannot look up", &name.to_string(), &error),
        }
        tokio::time::sleep(jitter(LOOK_UP_INTERVAL)).await;
    }
}

/// Dials until linked, and again once that link is gone.
async fn keep(connector: Arc<Connector>, target: Target) {
    let mut backoff = BACKOFF_MIN;
    let mut lost: Option<(Instant, Duration)> = None;
    loop {
        let eager = lost.filter(|(at, _)| clock::now().saturating_duration_since(*at) < EAGER_FOR);
        let patience = eager.map_or(PATIENCE, |(_, rtt)| EAGER_PATIENCE_MIN.max(rtt * EAGER_PATIENCE_RTTS));
        if let Some(Attempt { peer, rtt, began }) = connector.attempt(&target, patience).await {
            connector.local.roster.unlinked(peer).await;
            let now = clock::now();
            lost = Some((now, rtt));
            if now.saturating_duration_since(began) > LIVED {
                backoff = BACKOFF_MIN;
            }
        }
        tokio::time::sleep(jitter(backoff)).await;
        backoff = (backoff * 2).min(if eager.is_some() { EAGER_BACKOFF_MAX } else { BACKOFF_MAX });
    }
}

/// The broker that a target turned out to be, and that we are linked with.
struct Attempt {
    peer: BrokerId,
    rtt: Duration,
    began: Instant,
}

impl Connector {
    async fn attempt(&self, target: &Target, patience: Duration) -> Option<Attempt> {
        if self.local.roster.links() >= self.links_max {
            return None;
        }
        let addresses = match target {
            Target::Address(address) => vec![*address],
            Target::Peer(peer) => match resolve(peer).await {
                Ok(addresses) => addresses,
                Err(error) => {
                    self.complain_text("cannot look up", &target.to_string(), &error);
                    return None;
                }
            },
        };
        let began = clock::now();
        for address in addresses {
            match self.dial(address, patience).await {
                Ok((peer, rtt)) => return Some(Attempt { peer, rtt, began }),
                Err(LinkError::Linked(peer)) => return Some(Attempt { peer, rtt: Duration::ZERO, began }),
                Err(error) => {
                    self.local.metrics.dial_failed(&error);
                    self.complain("no link", &target.to_string(), &address.to_string(), &error);
                }
            }
        }
        None
    }

    async fn dial(&self, address: SocketAddr, patience: Duration) -> Result<(BrokerId, Duration), LinkError> {
        let connecting = self.endpoint.connect(address).map_err(|_| LinkError::Stream("the address cannot be dialled"))?;
        let connection = tokio::time::timeout(patience, connecting).await.map_err(|_| LinkError::Timeout(patience))??;
        self.propose(handshake::dial(&self.local, connection).await?).await
    }

    async fn welcome(&self, incoming: Incoming) -> Result<(), LinkError> {
        let connecting = incoming.accept()?;
        let connection =
            tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await.map_err(|_| LinkError::Timeout(HANDSHAKE_TIMEOUT))??;
        self.propose(handshake::accept(&self.local, connection).await?).await.map(|_| ())
    }

    async fn propose(&self, candidate: Candidate) -> Result<(BrokerId, Duration), LinkError> {
        let peer = candidate.peer.id;
        let (answer, judged) = oneshot::channel();
        self.proposals.send(Proposal { candidate, answer }).await.map_err(|_| LinkError::Shutdown)?;
        Ok((peer, judged.await.map_err(|_| LinkError::Shutdown)??))
    }

    fn complain(&self, what: &str, whom: &str, address: &str, error: &LinkError) {
        if error.is_ordinary() {
            debug!(address, %error, "{what}");
        } else if self.complaints.is_news(whom, &error.to_string(), clock::now()) {
            warn!(address, %error, "{what}");
        }
    }

    fn complain_text(&self, what: &str, whom: &str, error: &str) {
        if self.complaints.is_news(whom, error, clock::now()) {
            warn!(peer = whom, error, "{what}");
        }
    }
}

/// The addresses of a peer, without repetition.
async fn resolve(peer: &HostPort) -> Result<Vec<SocketAddr>, String> {
    let found = tokio::time::timeout(LOOK_UP_TIMEOUT, tokio::net::lookup_host((peer.host.as_str(), peer.port))).await;
    let found = found.map_err(|_| "the name service does not answer".to_owned())?.map_err(|error| error.to_string())?;
    let mut addresses = Vec::new();
    for address in found.take(ADDRESSES_MAX) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// Somewhere in the second half of `longest`, so that brokers that lost each other do not meet in step.
fn jitter(longest: Duration) -> Duration {
    longest.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_all_places() {
        let guests = Arc::new(Guests::default());
        let seat = |network: usize, host: usize| {
            let address = std::net::Ipv6Addr::from((network as u128) << 64 | host as u128);
            guests.seat(address.into())
        };
        let mut places: Vec<_> = (0..100).filter_map(|host| seat(1, host)).collect();
        assert_eq!(places.len(), HANDSHAKES_PER_ADDRESS_MAX);
        places.pop();
        places.extend(seat(1, 0));
        assert_eq!(guests.total(), HANDSHAKES_PER_ADDRESS_MAX);
        places.extend((2..100).filter_map(|network| seat(network, 0)));
        assert_eq!((places.len(), guests.total()), (HANDSHAKES_MAX, HANDSHAKES_MAX));
        places.clear();
        assert!(guests.0.lock().is_empty());
    }
}

//! Ways to a link: accepting who dials us, dialling an address that discovery found. What comes of either is proposed to the driver.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::Incoming;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use super::complaints::Complaints;
use super::error::LinkError;
use super::gate::Gate;
use super::handshake::{self, Candidate, HANDSHAKE_TIMEOUT, Local};
use super::pairing::{Pairing, half_of};
use super::tls::Half;
use crate::clock;
use crate::ids::BrokerId;
use crate::task;

/// Handshakes with diallers at once; whoever comes beyond that is to come again.
const HANDSHAKES_MAX: usize = 64;
/// Of these from one address (IPv6: one /64): who has no certificate shall not keep all others out.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 16;

/// A candidate for the driver to judge.
#[derive(Debug)]
pub(super) struct Proposal {
    pub(super) candidate: Candidate,
    /// That it became a link, or why it became none.
    pub(super) answer: oneshot::Sender<Result<(), LinkError>>,
}

/// What connecting needs.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) endpoint: Gate,
    pub(super) local: Arc<Local>,
    pub(super) pairing: Arc<Pairing>,
    pub(super) proposals: mpsc::Sender<Proposal>,
    pub(super) complaints: Complaints,
}

/// Accepts connections until the endpoint closes.
pub(super) async fn accept(connector: Arc<Connector>) {
    let guests = Arc::new(Guests::default());
    while let Some(incoming) = connector.endpoint.accept().await {
        // Who has a place comes with both connections of a link: did the second wait for one, all places could go to those who wait for theirs.
        let place = if connector.pairing.meets(incoming.remote_address()) {
            None
        } else if guests.total() >= HANDSHAKES_MAX / 2 && incoming.may_retry() {
            // Half the places are kept for those who have shown that their address is theirs (RFC 9000 section 8.1.2).
            let _ = incoming.retry();
            continue;
        } else if let Some(place) = guests.seat(incoming.remote_address().ip()) {
            Some(place)
        } else {
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

impl Connector {
    /// Dials an address; says who was there, if anybody showed who he is, and why there is no link, if there is none.
    pub(super) async fn dial(&self, address: SocketAddr, patience: Duration) -> (Option<BrokerId>, Result<(), LinkError>) {
        let mut met = None;
        let ended = self.dial_and_meet(address, patience, &mut met).await;
        if let Err(error) = &ended {
            self.local.metrics.dial_failed(error);
        }
        (met, ended)
    }

    async fn dial_and_meet(&self, address: SocketAddr, patience: Duration, met: &mut Option<BrokerId>) -> Result<(), LinkError> {
        let connecting =
            self.endpoint.connect(address, Half::Control).map_err(|_| LinkError::Stream("the address cannot be dialled"))?;
        let connection = tokio::time::timeout(patience, connecting).await.map_err(|_| LinkError::Timeout(patience))??;
        *met = handshake::certified(&connection, &self.local.identity).ok();
        self.propose(handshake::dial(&self.local, &self.endpoint, connection).await?).await
    }

    async fn welcome(&self, incoming: Incoming) -> Result<(), LinkError> {
        let connecting = incoming.accept()?;
        let connection =
            tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await.map_err(|_| LinkError::Timeout(HANDSHAKE_TIMEOUT))??;
        match half_of(&connection) {
            Half::Control => self.propose(handshake::accept(&self.local, &self.pairing, connection).await?).await,
            Half::Lanes => self.pairing.join(connection).await,
        }
    }

    async fn propose(&self, candidate: Candidate) -> Result<(), LinkError> {
        let (answer, judged) = oneshot::channel();
        self.proposals.send(Proposal { candidate, answer }).await.map_err(|_| LinkError::Shutdown)?;
        judged.await.map_err(|_| LinkError::Shutdown)?
    }

    pub(super) fn complain(&self, what: &str, whom: &str, address: &str, error: &LinkError) {
        // Where brokers choose, that they have better neighbours is ordinary.
        if error.is_ordinary() || (error.is_full() && self.local.roster.neighbours.lock().chooses()) {
            debug!(address, %error, "{what}");
        } else if self.complaints.is_news(whom, &error.to_string(), clock::now()) {
            warn!(address, %error, "{what}");
        }
    }

    pub(super) fn complain_text(&self, what: &str, whom: &str, error: &str) {
        if self.complaints.is_news(whom, error, clock::now()) {
            warn!(peer = whom, error, "{what}");
        }
    }
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

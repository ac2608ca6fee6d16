//! `gossip`: what broker records tell of who is there, how they are linked, and where they can be dialled: where they advertise themselves, or
//! else where their neighbours see them. Whatever way found a broker, the records say whether it is reached already.
//!
//! Records are flooded and signed by whom they are of; still, what they say is only worth an attempt. An address on loopback says something only to who
//! is on the same machine.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Found, Place, Source, Surroundings, Target};
use crate::ids::BrokerId;
use crate::limits::BROKERS_MAX;
use crate::mesh::driver::Book;
use crate::neighbours::{Map, Neighbours, Word};
use crate::shared::{BrokerRecord, LinkState};

/// A broker of which nobody tells any more is still dialled for so long: it may be the far side of a partition.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// Places of one broker.
const PLACES_MAX: usize = 8;

/// Tells `neighbours` what the records say now.
pub(in crate::mesh) fn learn(book: &Book, neighbours: &mut Neighbours) {
    let words = book.look(|own, others| others.iter().chain([own]).map(word).collect::<Vec<_>>());
    neighbours.learn(Arc::new(Map::draw(&words)));
}

fn word(record: &BrokerRecord) -> Word {
    let up = record.links.iter().filter(|link| link.state != LinkState::Down);
    let links = up.map(|link| (link.peer, Duration::from_micros(link.rtt_us))).collect();
    Word { id: record.id, links_max: usize::from(record.links_max), links }
}

/// Where brokers are, as far as anybody ever told.
#[derive(Debug, Default)]
pub(super) struct Gossip {
    known: BTreeMap<BrokerId, Known>,
}

#[derive(Debug)]
struct Known {
    places: Vec<Place>,
    told_at: Instant,
}

impl Gossip {
    /// Reads the records.
    pub(super) fn read(&mut self, around: &Surroundings, now: Instant) {
        let told = around.book.look(|own, others| places(around, own, &others.iter().collect::<Vec<_>>()));
        self.known.retain(|_, known| now.saturating_duration_since(known.told_at) < REMEMBERED);
        for (id, places) in told {
            if self.known.len() < BROKERS_MAX || self.known.contains_key(&id) {
                self.known.insert(id, Known { places, told_at: now });
            }
        }
    }

    /// Who lives at an address, as far as is told.
    pub(super) fn residents(&self) -> BTreeMap<&Place, BrokerId> {
        self.known.iter().flat_map(|(id, known)| known.places.iter().map(|place| (place, *id))).collect()
    }

    /// Everybody as a target.
    pub(super) fn found(&self) -> Found {
        let targets = self.known.iter().map(|(id, known)| (Target::Broker(*id), known.places.clone()));
        Found { source: Source::Gossip, targets: targets.collect() }
    }
}

/// The places of all others of whom `own` and `others` tell.
fn places(around: &Surroundings, own: &BrokerRecord, others: &[&BrokerRecord]) -> BTreeMap<BrokerId, Vec<Place>> {
    let mut found: BTreeMap<BrokerId, Vec<Place>> = BTreeMap::new();
    let mut add = |id: BrokerId, place: Place| {
        let places = found.entry(id).or_default();
        if id != own.id && places.len() < PLACES_MAX && !places.contains(&place) {
            places.push(place);
        }
    };
    for record in others {
        let advertised = record.addresses.iter().filter_map(|text| text.parse().ok()).map(|peer| Place::of(&peer));
        advertised
            .filter(|place| !matches!(place, Place::Address(at) if !around.can_dial(*at)))
            .for_each(|place| add(record.id, place));
    }
    // Only who is on this machine speaks of the same loopback as we do.
    let is_here = |teller: BrokerId| {
        let seen = own.links.iter().find(|link| link.peer == teller).and_then(|link| link.address);
        teller == own.id || seen.is_some_and(|address| address.ip().to_canonical().is_loopback())
    };
    for record in [own].into_iter().chain(others.iter().copied()) {
        for link in &record.links {
            let Some(seen) = link.address else { continue };
            let address = SocketAddr::new(seen.ip().to_canonical(), seen.port());
            let speaks = match address.ip() {
                IpAddr::V6(ip) if ip.is_unicast_link_local() => false,
                ip => !ip.is_loopback() || is_here(record.id),
            };
            if speaks && around.can_dial(address) && advertises_nothing(others, link.peer) {
                add(link.peer, Place::Address(address));
            }
        }
    }
    found.retain(|id, places| *id != own.id && !places.is_empty());
    found
}

fn advertises_nothing(others: &[&BrokerRecord], id: BrokerId) -> bool {
    others.iter().find(|record| record.id == id).is_none_or(|record| record.addresses.is_empty())
}

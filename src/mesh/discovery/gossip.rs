//! `gossip`: what broker records tell of who is there, how they are linked, and where they can be dialled: where they advertise themselves, or
//! else where their neighbours see them. Whatever way found a broker, the records say whether it is reached already.
//!
//! There is a broker if it has signed a record that was verified; that others name it is not enough. One word of each neighbour counts about
//! where a broker is, so that nobody fills its places alone.
//!
//! Records are flooded and signed by whom they are of; still, what they say is only worth an attempt. An address on loopback says something only to who
//! is on the same machine.

use std::collections::{BTreeMap, BTreeSet};
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
        let can_dial = |address| around.can_dial(address);
        let told = around.book.look(|own, others| places(can_dial, own, &others.iter().collect::<Vec<_>>()));
        self.note(told, now);
    }

    /// Of those of whom nobody tells any more, the longest untold make room.
    fn note(&mut self, told: BTreeMap<BrokerId, Vec<Place>>, now: Instant) {
        self.known.retain(|_, known| now.saturating_duration_since(known.told_at) < REMEMBERED);
        self.known.extend(told.into_iter().map(|(id, places)| (id, Known { places, told_at: now })));
        let surplus = self.known.len().saturating_sub(BROKERS_MAX);
        if surplus > 0 {
            let mut by_age: Vec<_> = self.known.iter().map(|(id, known)| (known.told_at, *id)).collect();
            by_age.sort_unstable();
            by_age.into_iter().take(surplus).for_each(|(_, id)| drop(self.known.remove(&id)));
        }
    }

    /// Everybody as a target.
    pub(super) fn found(&self) -> Found {
        let targets = self.known.iter().map(|(id, known)| (Target::Broker(*id), known.places.clone()));
        Found { source: Source::Gossip, targets: targets.collect() }
    }
}

/// The places of all whose records `others` are.
fn places(can_dial: impl Fn(SocketAddr) -> bool, own: &BrokerRecord, others: &[&BrokerRecord]) -> BTreeMap<BrokerId, Vec<Place>> {
    let mut found: BTreeMap<BrokerId, Vec<Place>> = others.iter().map(|record| (record.id, Vec::new())).collect();
    let mut add = |id: BrokerId, place: Place| match found.get_mut(&id) {
        Some(places) if places.len() < PLACES_MAX && !places.contains(&place) => places.push(place),
        _ => {}
    };
    let silent: BTreeSet<_> = others.iter().filter(|record| record.addresses.is_empty()).map(|record| record.id).collect();
    for record in others {
        let advertised = record.addresses.iter().filter_map(|text| text.parse().ok()).map(|peer| Place::of(&peer));
        advertised.filter(|place| !matches!(place, Place::Address(at) if !can_dial(*at))).for_each(|place| add(record.id, place));
    }
    // Only who is on this machine speaks of the same loopback as we do.
    let is_here = |teller: BrokerId| {
        let seen = own.links.iter().find(|link| link.peer == teller).and_then(|link| link.address);
        teller == own.id || seen.is_some_and(|address| address.ip().to_canonical().is_loopback())
    };
    for record in [own].into_iter().chain(others.iter().copied()) {
        let mut told = BTreeSet::new();
        for link in record.links.iter().filter(|link| silent.contains(&link.peer)) {
            let Some(seen) = link.address else { continue };
            let address = SocketAddr::new(seen.ip().to_canonical(), seen.port());
            let speaks = match address.ip() {
                IpAddr::V6(ip) if ip.is_unicast_link_local() => false,
                ip => !ip.is_loopback() || is_here(record.id),
            };
            if speaks && can_dial(address) && told.insert(link.peer) {
                add(link.peer, Place::Address(address));
            }
        }
    }
    found.retain(|id, places| *id != own.id && !places.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::ids::Incarnation;
    use crate::shared::{LastChange, LinkRecord, LinkRole};

    fn link(peer: u64, host: u8, port: u16, state: LinkState) -> LinkRecord {
        let address = Some(([192, 0, 2, host], port).into());
        LinkRecord {
            peer: BrokerId(peer),
            name: String::new(),
            role: LinkRole::Disabled,
            state,
            cost: 1,
            rtt_us: 1,
            loss: 0.0,
            address,
        }
    }

    fn record(id: u64, links: Vec<LinkRecord>) -> BrokerRecord {
        BrokerRecord {
            id: BrokerId(id),
            incarnation: Incarnation(1),
            sequence: 1,
            name: String::new(),
            addresses: Vec::new(),
            version: String::new(),
            priority: 0,
            capacity: 0,
            root: BrokerId(1),
            epoch: 0,
            changes: 0,
            last_change: LastChange { at: 0, cause: String::new() },
            links,
            links_max: 8,
            log: None,
        }
    }

    fn place(host: u8, port: u16) -> Place {
        Place::Address(([192, 0, 2, host], port).into())
    }

    #[test]
    fn nobody_speaks_for_brokers_that_never_spoke_or_alone_for_one_that_did() {
        let own = record(1, vec![]);
        let mut claims: Vec<_> = (1_000..1_256).map(|peer| link(peer, 66, 1, LinkState::Down)).collect();
        claims.extend((1..=100).map(|port| link(3, 66, port, LinkState::Down)));
        let (liar, victim) = (record(2, claims), record(3, vec![]));
        let honest = record(4, vec![link(3, 3, 7883, LinkState::Blocked)]);
        let told = places(|_| true, &own, &[&liar, &victim, &honest]);
        assert_eq!(told, BTreeMap::from([(BrokerId(3), vec![place(66, 1), place(3, 7883)])]));
        // Who says itself where it is needs nobody else to say so.
        let victim = BrokerRecord { addresses: vec!["192.0.2.9:7".to_owned()], ..victim };
        let told = places(|_| true, &own, &[&liar, &victim, &honest]);
        assert_eq!(told, BTreeMap::from([(BrokerId(3), vec![place(9, 7)])]));
    }

    #[test]
    fn who_was_not_told_of_for_longest_makes_room() {
        let (mut gossip, now) = (Gossip::default(), clock::now());
        let told = |ids: std::ops::Range<u64>| ids.map(|id| (BrokerId(id), vec![place(1, 1)])).collect();
        gossip.note(told(0..10), now);
        gossip.note(told(10..BROKERS_MAX as u64), now + Duration::from_secs(1));
        gossip.note(told(10_000..10_004), now + Duration::from_secs(2));
        let known = |id| gossip.known.contains_key(&BrokerId(id));
        assert!(gossip.known.len() == BROKERS_MAX && known(10_000) && known(10_003) && known(10) && !known(3) && known(4));
    }
}

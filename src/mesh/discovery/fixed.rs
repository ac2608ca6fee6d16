//! `static`: each of `mesh.peers` is one broker, at one of its addresses. With `dns`, names are followed instead; with `gossip` alone they are
//! where it begins.

use super::{Found, Place, Source, Target, Ways};
use crate::config::{Discovery, HostPort};

/// The peers that are dialled as they stand.
pub(super) fn found(ways: &Ways) -> Found {
    let dials = ways.has(Discovery::Static) || ways.has(Discovery::Gossip) || ways.has(Discovery::Dns);
    let peers = ways.peers.iter().filter(|_| dials).map(Place::of).filter(|place| !(ways.has(Discovery::Dns) && is_name(place)));
    Found { source: Source::Static, targets: peers.map(|place| (Target::At(place.clone()), vec![place])).collect() }
}

/// The names that stand for many brokers.
pub(super) fn names(ways: &Ways) -> Vec<HostPort> {
    let names = ways.peers.iter().filter(|peer| ways.has(Discovery::Dns) && is_name(&Place::of(peer)));
    names.cloned().collect()
}

fn is_name(place: &Place) -> bool {
    matches!(place, Place::Name(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_configured_ways_take_the_peers() {
        let peers = ["192.0.2.1:1", "a.example:2", "_mqtt-st._udp.b.example"].map(|peer| peer.parse().unwrap()).to_vec();
        let said = |discovery: &[Discovery]| {
            let ways = Ways { peers: peers.clone(), discovery: discovery.to_vec() };
            let dialled = found(&ways).targets.len();
            (dialled, names(&ways).len(), ways.chooses())
        };
        assert_eq!(said(&[]), (0, 0, false));
        assert_eq!(said(&[Discovery::Mdns]), (0, 0, true));
        assert_eq!(said(&[Discovery::Static]), (3, 0, false));
        assert_eq!(said(&[Discovery::Static, Discovery::Dns]), (1, 2, true));
        assert_eq!(said(&[Discovery::Dns]), (1, 2, true));
        assert_eq!(said(&[Discovery::Gossip]), (3, 0, true));
    }
}

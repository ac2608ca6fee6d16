//! What must hold at every instant, and what must hold at rest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use mqtt_st_quic::stp::{Role, Stp};

use super::{Counts, Notice, World};

/// At every instant: no broker hangs below itself, and whoever holds an agreement as a child holds it with its parent. A cycle can only
/// appear through the broker that changed last.
pub fn no_cycle(world: &World, changed: usize) {
    let broker = &world.brokers[changed];
    for (&port, view) in &broker.ports {
        let as_child = view.open.is_some_and(|number| number.child == broker.claim.id);
        assert!(!as_child || broker.stp.as_ref().and_then(Stp::root_port) == Some(port), "broker {changed} is a child at {port:?}");
    }
    let mut at = changed;
    for _ in 0..world.brokers.len() {
        let Some(parent) = world.parent(at) else { return };
        if world.brokers[parent].lie.is_some() {
            return;
        }
        at = parent;
        assert_ne!(at, changed, "broker {changed} hangs below itself");
    }
}

/// At rest, of every part of the mesh whose brokers can reach each other: one tree, its best broker the root, everybody at the least
/// cost, and data flowing along exactly that tree.
pub fn at_rest(world: &World) {
    for members in components(world) {
        let root = members.iter().copied().max_by_key(|&broker| world.brokers[broker].claim).expect("a component has members");
        let least = least_costs(world, root);
        for &broker in &members {
            let stp = stp(world, broker);
            assert_eq!(stp.tree(), self::stp(world, root).tree(), "broker {broker} is in another tree");
            assert_eq!(stp.tree().root, world.brokers[root].claim);
            assert_eq!(stp.distance(), least[broker], "broker {broker} is not at the least cost");
            assert_eq!(stp.is_root(), broker == root);
            ports_at_rest(world, broker);
        }
    }
}

/// Among those whose way to the root does not lead over an impostor: parents lead to the root that they name, and no better broker that
/// they reach over honest ones is left out.
pub fn honest(world: &World) {
    for members in components(world) {
        let honest = members.iter().copied().filter(|&broker| world.brokers[broker].lie.is_none());
        for broker in honest {
            let mut way = vec![broker];
            let mut at = broker;
            while let Some(parent) = world.parent(at).filter(|&parent| world.brokers[parent].lie.is_none()) {
                assert!(!way.contains(&parent), "{way:?} is a cycle");
                way.push(parent);
                at = parent;
            }
            let is_misled = world.parent(at).is_some();
            let named = stp(world, at).tree().root;
            assert!(is_misled || !stp(world, at).is_root() || named == world.brokers[at].claim, "{at} is no root");
            assert!(is_misled || named >= world.brokers[broker].claim, "broker {broker} is better than its root");
        }
    }
}

/// At rest, a message that is published anywhere comes once to every broker that can be reached, over as many links as there are others.
pub fn messages(world: &mut World, events_max: u64) {
    for members in components(world) {
        for publisher in [members[0], members[members.len() / 2], members[members.len() - 1]] {
            let before = world.counts;
            let message = world.publish(publisher);
            world.run(events_max);
            let of = |counts: Counts| (counts.detections, counts.moves, counts.trees);
            if world.settings.notice == Notice::Watched && of(world.counts) != of(before) {
                // A false alarm, or a cost that was measured anew: that was no rest.
                continue;
            }
            for &broker in &members {
                assert!(world.brokers[broker].seen.contains(&message), "broker {broker} lacks what {publisher} published");
            }
            assert_eq!(world.counts.duplicates, before.duplicates, "a message came twice");
            assert_eq!(world.counts.messages - before.messages, members.len() as u64 - 1);
        }
    }
}

/// While nothing happens, nothing changes: no move, no other tree, no BPDU.
pub fn stays_at_rest(world: &mut World, during: Duration) {
    let before = world.counts;
    world.run_until(world.elapsed() + during);
    if world.counts.detections == before.detections {
        let of = |counts: Counts| (counts.trees, counts.moves, counts.bpdus, counts.opens);
        assert_eq!(of(world.counts), of(before), "something changed while nothing happened");
    }
    world.run(u64::MAX / 2);
}

/// The Root port and the parent's Designated port hold the same agreement; nothing else forwards.
fn ports_at_rest(world: &World, broker: usize) {
    let stp = stp(world, broker);
    assert_eq!(stp.root_port().is_some(), !stp.is_root());
    for (port, role, forwarding) in stp.ports() {
        let view = &world.brokers[broker].ports[&port];
        assert_eq!(view.state, (role, forwarding), "the shell was not told");
        let peer = world.peer(broker, port).expect("at rest every port is a link");
        let far_port = world.other_end(broker, port);
        let far = &world.brokers[peer].ports[&far_port];
        assert_eq!(view.open, far.open, "two ends of one link differ");
        assert_eq!(forwarding, view.open.is_some());
        match role {
            Role::Root => assert_eq!((far.state, forwarding), ((Role::Designated, true), true)),
            Role::Designated => assert_eq!(forwarding, far.state.0 == Role::Root),
            Role::Alternate => assert_eq!((far.state, forwarding), ((Role::Designated, false), false)),
            Role::Disabled => panic!("a port that is up is disabled"),
        }
    }
}

/// The live brokers, by who reaches whom over links that are up.
pub fn components(world: &World) -> Vec<Vec<usize>> {
    let mut seen: Vec<bool> = world.brokers.iter().map(|broker| broker.stp.is_none()).collect();
    let mut components = Vec::new();
    for first in 0..seen.len() {
        if std::mem::replace(&mut seen[first], true) {
            continue;
        }
        let mut members = vec![first];
        let mut next = 0;
        while let Some(&broker) = members.get(next) {
            next += 1;
            for (neighbour, _) in neighbours(world, broker) {
                if !std::mem::replace(&mut seen[neighbour], true) {
                    members.push(neighbour);
                }
            }
        }
        components.push(members);
    }
    components
}

/// Dijkstra, with the cost that a broker itself sees on its way up.
fn least_costs(world: &World, root: usize) -> Vec<Option<u32>> {
    let mut least = vec![None; world.brokers.len()];
    let mut open = BinaryHeap::from([Reverse((0, root))]);
    while let Some(Reverse((distance, broker))) = open.pop() {
        if least[broker].is_some() {
            continue;
        }
        least[broker] = Some(distance);
        open.extend(neighbours(world, broker).map(|(neighbour, cost)| Reverse((distance + cost, neighbour))));
    }
    least
}

/// Over each link of the broker that is up: the other end, and what the other end counts for it.
fn neighbours(world: &World, broker: usize) -> impl Iterator<Item = (usize, u32)> {
    world.links_of[broker]
        .iter()
        .map(|&link| &world.links[link])
        .filter(|link| link.generation.is_some() && link.is_up == [true, true])
        .map(move |link| {
            let far = usize::from(link.ends[0] == broker);
            (link.ends[far], link.costs[far])
        })
}

fn stp(world: &World, broker: usize) -> &Stp {
    world.brokers[broker].stp.as_ref().expect("components have live brokers")
}

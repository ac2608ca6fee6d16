//! The topology document (`/api/v1/topology`): the whole mesh as any one broker knows it.
//!
//! It is a pure function of the broker records, its own among them, and sorted: once the records have gone round, every broker of a
//! component draws the same document. Brokers that no chain of live links reaches are left out; a link that one end has lost stays in it
//! as `down` for as long as that end remembers it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::records::{BrokerRecord, LastChange, LinkRecord, LinkRole, LinkState};
use crate::ids::{BrokerId, Incarnation};

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// The mesh's name.
    pub mesh: String,
    /// The name of the tree's root.
    pub root: String,
    /// The tree's epoch, as the root tells it.
    #[serde(default)]
    pub epoch: u64,
    /// Every broker that can be reached, by name.
    pub brokers: Vec<TopologyBroker>,
    /// Every link of theirs, by the names of its ends.
    pub links: Vec<TopologyLink>,
    /// How often the tree changed, as the root counts.
    pub changes: u64,
    /// The last time that it did, as the root tells it.
    pub last_change: LastChange,
}

/// One broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyBroker {
    /// Its name.
    pub name: String,
    /// Its identity, for as long as it keeps the name.
    pub id: BrokerId,
    /// Its present life.
    pub incarnation: Incarnation,
    /// Its claim to the root, lower is better.
    pub priority: u16,
    /// What it can carry, as a power of two.
    pub capacity: u8,
    /// The version of its program.
    pub version: String,
    /// The name of the broker above it; none at the root, and where the records do not yet lead to it.
    #[serde(default)]
    pub parent: Option<String>,
    /// Links on its way to the root; none where there is no way yet.
    #[serde(default)]
    pub hops: Option<u32>,
    /// What that way costs.
    #[serde(default)]
    pub distance: Option<u32>,
}

/// One link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopologyLink {
    /// The end whose name comes first.
    pub a: String,
    /// The other.
    pub b: String,
    /// Whether both ends let messages through.
    pub state: LinkState,
    /// What it is at `a`.
    pub role_a: LinkRole,
    /// What it is at `b`.
    pub role_b: LinkRole,
    /// The higher of the costs at its ends.
    pub cost: u32,
    /// The shorter of the round trips measured at its ends, microseconds.
    pub rtt_us: u64,
    /// The higher of the losses measured at its ends, 0 to 1.
    pub loss: f64,
}

impl Topology {
    /// Draws the document as the broker of `own` sees it.
    #[must_use]
    pub fn draw<'a>(mesh: &str, own: &'a BrokerRecord, others: impl IntoIterator<Item = &'a BrokerRecord>) -> Self {
        let mut records: BTreeMap<BrokerId, &BrokerRecord> = others.into_iter().map(|record| (record.id, record)).collect();
        records.insert(own.id, own);
        let names = names(&records);
        let reached = reach(own.id, &records);
        records.retain(|id, _| reached.contains(id));

        let teller = records.get(&own.root).copied().unwrap_or(own);
        let mut brokers: Vec<_> = records.values().map(|record| TopologyBroker::of(record, own.root, &records, &names)).collect();
        brokers.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Self {
            mesh: mesh.to_owned(),
            root: names.get(&own.root).map_or_else(|| own.root.to_string(), |name| (*name).to_owned()),
            epoch: teller.epoch,
            brokers,
            links: links(&records, &names),
            changes: teller.changes,
            last_change: teller.last_change.clone(),
        }
    }
}

impl TopologyBroker {
    fn of(
        record: &BrokerRecord,
        root: BrokerId,
        records: &BTreeMap<BrokerId, &BrokerRecord>,
        names: &BTreeMap<BrokerId, &str>,
    ) -> Self {
        let way = way(record, root, records);
        let parent = above(record).filter(|_| way.is_some_and(|(hops, _)| hops > 0));
        Self {
            name: record.name.clone(),
            id: record.id,
            incarnation: record.incarnation,
            priority: record.priority,
            capacity: record.capacity,
            version: record.version.clone(),
            parent: parent.and_then(|link| names.get(&link.peer)).map(|name| (*name).to_owned()),
            hops: way.map(|(hops, _)| hops),
            distance: way.map(|(_, distance)| distance),
        }
    }
}

/// The link that leads to the root.
fn above(record: &BrokerRecord) -> Option<&LinkRecord> {
    record.links.iter().find(|link| link.role == LinkRole::Root && link.state != LinkState::Down)
}

/// Links and cost from a broker up to the root. Records that were written at different moments may lead in a circle, or nowhere.
fn way(from: &BrokerRecord, root: BrokerId, records: &BTreeMap<BrokerId, &BrokerRecord>) -> Option<(u32, u32)> {
    let (mut at, mut hops, mut distance) = (from, 0_u32, 0_u32);
    while at.id != root {
        let link = above(at)?;
        (hops, distance) = (hops + 1, distance.saturating_add(link.cost));
        at = records.get(&link.peer).filter(|_| hops as usize <= records.len())?;
    }
    Some((hops, distance))
}

/// Everybody to whom a chain of links leads that are up at both ends.
fn reach(from: BrokerId, records: &BTreeMap<BrokerId, &BrokerRecord>) -> BTreeSet<BrokerId> {
    let up = |id: BrokerId| records.get(&id).into_iter().flat_map(|r| &r.links).filter(|link| link.state != LinkState::Down);
    let mut reached = BTreeSet::from([from]);
    let mut ahead = vec![from];
    while let Some(here) = ahead.pop() {
        for link in up(here) {
            if up(link.peer).any(|back| back.peer == here) && reached.insert(link.peer) {
                ahead.push(link.peer);
            }
        }
    }
    reached
}

/// What the way costs along the tree from the broker of `own` to every other to which records lead: the sum over its links, each by the higher word of its ends.
#[must_use]
pub fn way_costs<'a>(own: &'a BrokerRecord, others: impl IntoIterator<Item = &'a BrokerRecord>) -> BTreeMap<BrokerId, u32> {
    let mut records: BTreeMap<BrokerId, &BrokerRecord> = others.into_iter().map(|record| (record.id, record)).collect();
    records.insert(own.id, own);
    let tree = |id: BrokerId| {
        let links = records.get(&id).into_iter().flat_map(|record| &record.links);
        links.filter(|link| link.state == LinkState::Forwarding)
    };
    let mut costs = BTreeMap::from([(own.id, 0)]);
    let mut ahead = vec![(own.id, 0_u32)];
    while let Some((here, so_far)) = ahead.pop() {
        for link in tree(here) {
            let Some(back) = tree(link.peer).find(|back| back.peer == here).filter(|_| !costs.contains_key(&link.peer)) else {
                continue;
            };
            let cost = so_far.saturating_add(link.cost.max(back.cost));
            costs.insert(link.peer, cost);
            ahead.push((link.peer, cost));
        }
    }
    costs.remove(&own.id);
    costs
}

/// The names of all who are spoken of: a neighbour has one before its record has come.
fn names<'a>(records: &BTreeMap<BrokerId, &'a BrokerRecord>) -> BTreeMap<BrokerId, &'a str> {
    let of_links = records.values().flat_map(|record| &record.links).map(|link| (link.peer, link.name.as_str()));
    of_links.chain(records.values().map(|record| (record.id, record.name.as_str()))).collect()
}

fn links(records: &BTreeMap<BrokerId, &BrokerRecord>, names: &BTreeMap<BrokerId, &str>) -> Vec<TopologyLink> {
    let mut pairs: BTreeMap<(BrokerId, BrokerId), [Option<&LinkRecord>; 2]> = BTreeMap::new();
    for record in records.values() {
        for link in &record.links {
            let low = record.id <= link.peer;
            let [first, second] = pairs.entry(if low { (record.id, link.peer) } else { (link.peer, record.id) }).or_default();
            *if low { first } else { second } = Some(link);
        }
    }
    let mut drawn: Vec<_> = pairs.into_iter().filter_map(|((low, high), ends)| draw_link(names, [low, high], ends)).collect();
    drawn.sort_by(|x, y| (&x.a, &x.b).cmp(&(&y.a, &y.b)));
    drawn
}

fn draw_link(names: &BTreeMap<BrokerId, &str>, ids: [BrokerId; 2], ends: [Option<&LinkRecord>; 2]) -> Option<TopologyLink> {
    let [low_name, high_name] = ids.map(|id| names.get(&id).copied().unwrap_or_default());
    let told = || ends.into_iter().flatten();
    let state = match ends.map(|end| end.map(|link| link.state)) {
        [Some(LinkState::Forwarding), Some(LinkState::Forwarding)] => LinkState::Forwarding,
        [Some(one), Some(other)] if one != LinkState::Down && other != LinkState::Down => LinkState::Blocked,
        _ => LinkState::Down,
    };
    let role = |end: Option<&LinkRecord>| match (state, end) {
        (LinkState::Down, _) | (_, None) => LinkRole::Disabled,
        (_, Some(link)) => link.role,
    };
    let [low, high] = ends;
    let in_order = low_name <= high_name;
    let (a, role_a, b, role_b) =
        if in_order { (low_name, role(low), high_name, role(high)) } else { (high_name, role(high), low_name, role(low)) };
    Some(TopologyLink {
        a: a.to_owned(),
        b: b.to_owned(),
        state,
        role_a,
        role_b,
        cost: told().map(|link| link.cost).max()?,
        rtt_us: told().map(|link| link.rtt_us).min()?,
        loss: told().map(|link| link.loss).fold(0.0, f64::max),
    })
}

#[cfg(test)]
mod tests {
    use super::super::records::tests::record;
    use super::*;

    fn linked(id: u64, sequence: u64, links: &[(u64, LinkRole, LinkState, u64)]) -> BrokerRecord {
        let links = links.iter().map(|&(peer, role, state, rtt_us)| LinkRecord {
            peer: BrokerId(peer),
            name: format!("b{peer}"),
            role,
            state,
            cost: u32::try_from(rtt_us).unwrap(),
            rtt_us,
            loss: 0.0,
            address: None,
        });
        BrokerRecord { links: links.collect(), changes: id * 10, ..record(id, sequence) }
    }

    use LinkRole::{Alternate, Designated, Disabled, Root};
    use LinkState::{Blocked, Down, Forwarding};

    #[test]
    fn every_broker_of_a_component_draws_the_same() {
        let all = [
            linked(1, 1, &[(2, Designated, Forwarding, 5), (3, Designated, Forwarding, 7), (9, Disabled, Down, 1)]),
            linked(2, 1, &[(1, Root, Forwarding, 6), (3, Designated, Forwarding, 9)]),
            linked(3, 1, &[(2, Alternate, Blocked, 8), (1, Root, Forwarding, 7)]),
            // Gone: its record lingers and still speaks of a live link.
            linked(9, 1, &[(1, Root, Forwarding, 1)]),
        ];
        let drawn: Vec<_> = (0..3).map(|own| Topology::draw("m", &all[own], all.iter().filter(|r| r.id != all[own].id))).collect();
        assert_eq!(drawn[0], drawn[1]);
        assert_eq!(drawn[0], drawn[2]);
        let document = &drawn[0];
        assert_eq!((document.root.as_str(), document.changes), ("b1", 10));
        let brokers: Vec<_> = document.brokers.iter().map(|b| (b.name.as_str(), b.parent.as_deref(), b.hops, b.distance)).collect();
        let below_b1 = Some("b1");
        assert_eq!(
            brokers,
            [("b1", None, Some(0), Some(0)), ("b2", below_b1, Some(1), Some(6)), ("b3", below_b1, Some(1), Some(7))]
        );
        let links: Vec<_> =
            document.links.iter().map(|l| (l.a.as_str(), l.b.as_str(), l.state, l.role_a, l.role_b, l.cost, l.rtt_us)).collect();
        assert_eq!(
            links,
            [
                ("b1", "b2", Forwarding, Designated, Root, 6, 5),
                ("b1", "b3", Forwarding, Designated, Root, 7, 7),
                ("b1", "b9", Down, Disabled, Disabled, 1, 1),
                ("b2", "b3", Blocked, Designated, Alternate, 9, 8),
            ]
        );
    }

    #[test]
    fn a_way_costs_what_its_tree_links_cost() {
        let all = [
            linked(1, 1, &[(2, Designated, Forwarding, 5), (3, Alternate, Blocked, 1), (4, Designated, Forwarding, 1)]),
            linked(2, 1, &[(1, Root, Forwarding, 6), (3, Designated, Forwarding, 9)]),
            linked(3, 1, &[(2, Root, Forwarding, 8), (1, Alternate, Blocked, 1)]),
            linked(4, 1, &[(1, Disabled, Down, 1)]),
        ];
        let costs = |own: usize| way_costs(&all[own], all.iter().filter(|record| record.id != all[own].id));
        assert_eq!(costs(0), [(BrokerId(2), 6), (BrokerId(3), 15)].into());
        assert_eq!(costs(2), [(BrokerId(1), 15), (BrokerId(2), 9)].into());
        assert!(costs(3).is_empty());
    }

    #[test]
    fn the_root_has_a_name_before_its_record_has_come() {
        let own = linked(2, 1, &[(1, Root, Forwarding, 5)]);
        assert_eq!(Topology::draw("m", &own, []).root, "b1");
    }

    #[test]
    fn records_of_different_moments_give_no_way() {
        let all = [
            linked(2, 1, &[(3, Root, Forwarding, 5), (4, Designated, Forwarding, 5)]),
            linked(3, 1, &[(2, Root, Forwarding, 5)]),
            linked(4, 1, &[(2, Root, Forwarding, 5)]),
        ];
        let document = Topology::draw("m", &all[0], &all[1..]);
        assert!(document.brokers.iter().all(|b| (&b.parent, b.hops, b.distance) == (&None, None, None)), "{document:?}");
    }

    #[test]
    fn alone_it_is_its_own_root() {
        let own = BrokerRecord { root: BrokerId(4), ..record(4, 1) };
        let document = Topology::draw("m", &own, []);
        assert_eq!((document.root.as_str(), document.brokers.len(), document.links.len()), ("b4", 1, 0));
    }
}

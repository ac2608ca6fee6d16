//! Letters on their way: which link leads to whom, and what is done with a letter that a link brings.
//!
//! The driver works the ways out whenever links are others ([`PostOffice::follow`]): the fewest links, over such as both ends tell of, our own by our own
//! knowledge. A letter is queued on the bulk stream of the first link of its way (`bulk`), before whatever else is said there. What has no way, or would go
//! back where it came from, is dropped, and who wrote it is told; so nothing goes round. Letters are signed by nobody, as messages are: an admitted
//! broker that carries them is believed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tracing::debug;

use super::link::Link;
use crate::frame::bulk::Letter;
use crate::ids::BrokerId;
use crate::limits::LETTER_BYTES_MAX;
use crate::shared::{BrokerRecord, Carry, LinkState, Post};

/// A letter goes over at most so many links.
const HOPS_MAX: u8 = 64;

/// Since when there is no way to a broker is remembered so long.
const LOST_KNOWN: Duration = Duration::from_secs(3_600);

#[derive(Default)]
struct Ways {
    /// Of each broker that can be reached the link that leads there.
    links: HashMap<BrokerId, Weak<Link>, ahash::RandomState>,
    /// Of those that could, when the last way was lost.
    lost: HashMap<BrokerId, Instant, ahash::RandomState>,
}

/// See the module's page.
pub(super) struct PostOffice {
    own: BrokerId,
    post: Arc<Post>,
    ways: ArcSwap<Ways>,
    /// Before that there was no way to anybody.
    since: Instant,
}

impl PostOffice {
    /// Opens the post of this broker, with no way to anybody.
    pub(super) fn open(own: BrokerId, post: Arc<Post>, now: Instant) -> Arc<Self> {
        let office = Arc::new(Self { own, post, ways: ArcSwap::default(), since: now });
        let carrier: Arc<dyn Carry> = Arc::clone(&office) as _;
        office.post.open(Arc::downgrade(&carrier));
        office
    }

    /// Links are others: our own are `links`, those of others stand in their `records`.
    pub(super) fn follow<'a>(&self, links: &[Arc<Link>], records: impl Iterator<Item = &'a BrokerRecord>, now: Instant) {
        let next = find_ways(self.own, links.iter().map(|link| link.id.peer), records);
        let links: HashMap<BrokerId, &Arc<Link>> = links.iter().map(|link| (link.id.peer, link)).collect();
        let link_to = |peer| links.get(&peer).map(|link| Arc::downgrade(link));
        let links: HashMap<_, _, _> = next.into_iter().filter_map(|(broker, first)| Some((broker, link_to(first)?))).collect();
        let before = self.ways.load();
        let mut lost = before.lost.clone();
        lost.extend(before.links.keys().map(|broker| (*broker, now)));
        lost.retain(|broker, at| !links.contains_key(broker) && now.saturating_duration_since(*at) < LOST_KNOWN);
        self.ways.store(Arc::new(Ways { links, lost }));
    }

    fn way_to(&self, to: BrokerId) -> Option<Arc<Link>> {
        self.ways.load().links.get(&to).and_then(Weak::upgrade)
    }

    /// A link has brought a letter.
    pub(super) fn relay(&self, came_by: &Link, letter: &Letter<'_>) {
        if letter.to == self.own {
            return match letter.is_bounce {
                true => self.post.bounce(letter.from),
                false => self.post.deliver(letter.from, letter.body),
            };
        }
        let way = self.way_to(letter.to).filter(|link| link.id.peer != came_by.id.peer);
        match (way, letter.hops.checked_sub(1)) {
            (Some(link), Some(hops)) => link.bulk.post(&Letter { hops, ..*letter }),
            _ if letter.is_bounce => debug!(to = %letter.to, "no way for word of a lost letter"),
            _ => {
                debug!(from = %letter.from, to = %letter.to, "no way for a letter");
                let word = Letter { is_bounce: true, to: letter.from, from: letter.to, hops: HOPS_MAX, body: &[] };
                // Back where it came from, if no other way is known.
                match self.way_to(letter.from) {
                    Some(link) => link.bulk.post(&word),
                    None => came_by.bulk.post(&word),
                }
            }
        }
    }
}

impl Carry for PostOffice {
    fn carry(&self, to: BrokerId, body: &[u8]) -> bool {
        if body.len() > LETTER_BYTES_MAX {
            tracing::error!(%to, bytes = body.len(), "a letter is too long");
            return true;
        }
        let Some(link) = self.way_to(to) else { return false };
        link.bulk.post(&Letter { is_bounce: false, to, from: self.own, hops: HOPS_MAX, body });
        true
    }

    fn lost_since(&self, to: BrokerId) -> Option<Instant> {
        let ways = self.ways.load();
        let has_way = ways.links.contains_key(&to);
        (!has_way).then(|| ways.lost.get(&to).copied().unwrap_or(self.since))
    }

    fn reached(&self) -> Vec<BrokerId> {
        self.ways.load().links.keys().copied().collect()
    }
}

/// Of each broker that can be reached the neighbour behind which it is, on a way of the fewest links.
fn find_ways<'a>(
    own: BrokerId,
    neighbours: impl Iterator<Item = BrokerId>,
    records: impl Iterator<Item = &'a BrokerRecord>,
) -> HashMap<BrokerId, BrokerId> {
    let mut told: HashMap<BrokerId, HashSet<BrokerId>> = HashMap::new();
    for record in records {
        let peers = record.links.iter().filter(|link| link.state != LinkState::Down).map(|link| link.peer);
        told.insert(record.id, peers.collect());
    }
    let mut ways: HashMap<BrokerId, BrokerId> = neighbours.map(|peer| (peer, peer)).collect();
    let mut queue: VecDeque<BrokerId> = ways.keys().copied().collect();
    while let Some(broker) = queue.pop_front() {
        let Some(first) = ways.get(&broker).copied() else { continue };
        for next in told.get(&broker).into_iter().flatten() {
            let is_known_there = || told.get(next).is_some_and(|peers| peers.contains(&broker));
            if *next != own && !ways.contains_key(next) && is_known_there() {
                ways.insert(*next, first);
                queue.push_back(*next);
            }
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;
    use crate::shared::{LastChange, LinkRecord, LinkRole};

    fn record(id: u64, peers: &[(u64, LinkState)]) -> BrokerRecord {
        let link = |(peer, state): &(u64, LinkState)| LinkRecord {
            peer: BrokerId(*peer),
            name: String::new(),
            role: LinkRole::Alternate,
            state: *state,
            cost: 1,
            rtt_us: 1,
            loss: 0.0,
            address: None,
        };
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
            epoch: 1,
            changes: 0,
            last_change: LastChange { at: 0, cause: String::new() },
            links: peers.iter().map(link).collect(),
            links_max: 0,
            log: None,
        }
    }

    #[test]
    fn the_way_is_the_shortest_over_links_of_which_both_ends_tell() {
        use LinkState::{Blocked, Down, Forwarding};
        // 1 - 2 - 3 - 4, and 1 - 5; 4 and 5 were linked. 6 tells of a link to 2 that 2 does not know. 3 is ours in its own record only.
        let records = [
            record(2, &[(1, Forwarding), (3, Blocked)]),
            record(3, &[(2, Forwarding), (4, Forwarding), (1, Forwarding)]),
            record(4, &[(3, Forwarding), (5, Down)]),
            record(5, &[(1, Forwarding), (4, Forwarding)]),
            record(6, &[(2, Forwarding)]),
        ];
        let ways = find_ways(BrokerId(1), [BrokerId(2), BrokerId(5)].into_iter(), records.iter());
        let mut ways: Vec<_> = ways.into_iter().map(|(to, first)| (to.0, first.0)).collect();
        ways.sort_unstable();
        assert_eq!(ways, [(2, 2), (3, 2), (4, 2), (5, 5)]);
        assert!(find_ways(BrokerId(1), std::iter::empty(), records.iter()).is_empty());
    }
}

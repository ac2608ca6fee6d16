//! The graph of links as broker records tell it, and what a broker reads off it: whom a chain of links reaches, which brokers no single
//! link cuts off from it, and who stands beside it on the rings.
//!
//! A **ring** is an order of all brokers that choose their neighbours, by a hash of their ids: so it has nothing to do with where they are,
//! and everybody who knows the same brokers draws the same ring. Brokers that are gone are stepped over.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::BrokerId;

/// More rings add nothing to a graph that two hold together.
const RINGS_MAX: usize = 4;
/// So many links has a broker for each ring; a ring takes two of them.
const LINKS_PER_RING: usize = 4;

/// What one broker tells of its links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Whose word it is.
    pub id: BrokerId,
    /// Links that it keeps at once if it chooses its neighbours; 0: it does not choose, and has no place on the rings.
    pub links_max: usize,
    /// Its links that are up, and their round trips.
    pub links: Vec<(BrokerId, Duration)>,
}

/// The graph.
#[derive(Debug, Default)]
pub struct Map {
    /// Ascending.
    ids: Vec<BrokerId>,
    nodes: Vec<Node>,
    /// Places in `ids`, in the order of each ring.
    rings: Vec<Vec<usize>>,
}

#[derive(Debug, Default)]
struct Node {
    links_max: usize,
    links: Vec<(usize, Duration)>,
}

/// For each broker of a [`Map`] the block it belongs to: brokers of one block stay connected whichever single link fails.
#[derive(Debug)]
pub(super) struct Blocks<'a> {
    map: &'a Map,
    own: BrokerId,
    own_block: usize,
    /// [`UNREACHED`], or a number.
    blocks: Vec<usize>,
    /// Neighbours that the map does not know.
    strangers: Vec<BrokerId>,
}

const UNREACHED: usize = usize::MAX;

impl Map {
    /// Draws the map: of those whose words are known, and of the links that both ends tell of. That somebody claims a link with one who does not
    /// speak, who may not even exist, leads nowhere.
    #[must_use]
    pub fn draw(words: &[Word]) -> Self {
        let told: BTreeMap<BrokerId, &Word> = words.iter().map(|word| (word.id, word)).collect();
        let ids: Vec<_> = told.keys().copied().collect();
        let mut nodes: Vec<Node> = ids.iter().map(|_| Node::default()).collect();
        for word in told.values() {
            let Ok(here) = ids.binary_search(&word.id) else { continue };
            if let Some(node) = nodes.get_mut(here) {
                node.links_max = word.links_max;
            }
            for (peer, rtt) in &word.links {
                let answered = told.get(peer).is_some_and(|other| other.links.iter().any(|(back, _)| *back == word.id));
                let Ok(there) = ids.binary_search(peer) else { continue };
                if !answered || there == here {
                    continue;
                }
                for (from, to) in [(here, there), (there, here)] {
                    let links = nodes.get_mut(from).map(|node| &mut node.links);
                    if let Some(links) = links.filter(|links| links.iter().all(|(known, _)| *known != to)) {
                        links.push((to, *rtt));
                    }
                }
            }
        }
        let rings = (0..RINGS_MAX).map(|ring| {
            let places = 0..ids.len();
            let mut order: Vec<_> =
                places.filter(|place| nodes.get(*place).is_some_and(|node| rings_of(node.links_max) > ring)).collect();
            order.sort_by_key(|place| ids.get(*place).map(|id| (position(*id, ring), *id)));
            order
        });
        let rings = rings.collect();
        Self { ids, nodes, rings }
    }

    fn place(&self, id: BrokerId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    fn node(&self, id: BrokerId) -> Option<&Node> {
        self.nodes.get(self.place(id)?)
    }

    /// The neighbours of `id` and the round trips of its links.
    pub(super) fn links(&self, id: BrokerId) -> impl Iterator<Item = (BrokerId, Duration)> {
        let links = self.node(id).into_iter().flat_map(|node| &node.links);
        links.filter_map(|(place, rtt)| Some((*self.ids.get(*place)?, *rtt)))
    }

    /// How many links `id` may have, if it chooses them.
    pub(super) fn links_max(&self, id: BrokerId) -> usize {
        self.node(id).map_or(0, |node| node.links_max)
    }

    /// How many links `id` has.
    pub(super) fn degree(&self, id: BrokerId) -> usize {
        self.node(id).map_or(0, |node| node.links.len())
    }

    /// The blocks as `own` sees them, with `links` as its own.
    pub(super) fn blocks<'a>(&'a self, own: BrokerId, links: &[BrokerId]) -> Blocks<'a> {
        let own_place = self.place(own).unwrap_or(self.ids.len());
        let own_links: Vec<_> = links.iter().filter_map(|id| self.place(*id)).collect();
        let strangers = links.iter().filter(|id| self.place(**id).is_none()).copied().collect();
        let mut search = Search::new(self, own_place, &own_links);
        search.run();
        let own_block = search.blocks.get(own_place).copied().unwrap_or(UNREACHED);
        Blocks { map: self, own, own_block, blocks: search.blocks, strangers }
    }

    /// The two who stand beside `own` on each ring that it has a place on, stepping over those whom `blocks` does not reach.
    pub(super) fn ring_neighbours(&self, own: BrokerId, links_max: usize, blocks: &Blocks<'_>) -> Vec<BrokerId> {
        let mut found = Vec::new();
        for (ring, order) in self.rings.iter().enumerate().take(rings_of(links_max)) {
            let place = (position(own, ring), own);
            let after = order.partition_point(|other| self.ids.get(*other).map(|id| (position(*id, ring), *id)) <= Some(place));
            let id_at = |at: usize| order.get(at).and_then(|place| self.ids.get(*place)).copied();
            let is_there = |id: &BrokerId| *id != own && blocks.of(*id).is_some();
            let onward = (after..order.len()).chain(0..after).filter_map(id_at).find(is_there);
            let back = (0..after).rev().chain((after..order.len()).rev()).filter_map(id_at).find(is_there);
            found.extend(onward);
            found.extend(back);
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Rings on which a broker with so many links has a place: half its links at most, but one ring if it has more than two. With two the mesh
/// is one ring in whatever order it came about; sorting it would take hundreds of changes.
fn rings_of(links_max: usize) -> usize {
    if links_max < 3 { 0 } else { (links_max / LINKS_PER_RING).clamp(1, RINGS_MAX) }
}

/// Where `id` stands on a ring.
pub(super) fn position(id: BrokerId, ring: usize) -> u64 {
    mix(id.0 ^ mix(ring as u64))
}

/// The finalizer of SplitMix64: every bit of the result depends on every bit of `word`.
pub(super) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Blocks<'_> {
    /// The block of `id`; `None`: no chain of links leads there.
    pub(super) fn of(&self, id: BrokerId) -> Option<usize> {
        if id == self.own {
            return Some(self.own_block);
        }
        match self.map.place(id) {
            Some(place) => self.blocks.get(place).copied().filter(|block| *block != UNREACHED),
            // A leaf that only we know of: a block of its own, with a number that no other has.
            None => self.strangers.iter().position(|stranger| *stranger == id).map(|at| UNREACHED - 1 - at),
        }
    }

    /// Whether no single link's end cuts `id` off.
    pub(super) fn is_safe(&self, id: BrokerId) -> bool {
        self.of(id) == Some(self.own_block)
    }

    /// Everybody in the map whom a chain of links reaches, oneself excepted.
    pub(super) fn reached(&self) -> impl Iterator<Item = BrokerId> {
        let of_map = self.map.ids.iter().zip(&self.blocks).filter(|(id, block)| **block != UNREACHED && **id != self.own);
        of_map.map(|(id, _)| *id).chain(self.strangers.iter().copied())
    }
}

/// A depth-first search for bridges (Tarjan 1974), without recursion: a chain of a thousand brokers must not need a thousand frames.
struct Search<'a> {
    map: &'a Map,
    own: usize,
    own_links: &'a [usize],
    /// When each was found; 0: not yet.
    found: Vec<usize>,
    /// The earliest found that it leads back to.
    low: Vec<usize>,
    blocks: Vec<usize>,
    block_count: usize,
    /// Found, and in no block yet.
    open: Vec<usize>,
}

/// One broker on the way from the root of the search.
struct Step {
    here: usize,
    parent: usize,
    next: usize,
}

impl<'a> Search<'a> {
    fn new(map: &'a Map, own: usize, own_links: &'a [usize]) -> Self {
        let size = map.ids.len() + 1;
        let blocks = vec![UNREACHED; size];
        Self { map, own, own_links, found: vec![0; size], low: vec![0; size], blocks, block_count: 0, open: Vec::new() }
    }

    /// The `at`th neighbour: the inner `None` is a link that the map tells of and that we know better.
    fn neighbour(&self, here: usize, at: usize) -> Option<Option<usize>> {
        if here == self.own {
            return self.own_links.get(at).map(|place| Some(*place));
        }
        let links = &self.map.nodes.get(here)?.links;
        match links.get(at) {
            Some((place, _)) => Some(Some(*place).filter(|place| *place != self.own)),
            None if at == links.len() => Some(Some(self.own).filter(|_| self.own_links.contains(&here))),
            None => None,
        }
    }

    fn get(of: &[usize], at: usize) -> usize {
        of.get(at).copied().unwrap_or_default()
    }

    fn lower(&mut self, at: usize, to: usize) {
        if let Some(low) = self.low.get_mut(at) {
            *low = to.min(*low);
        }
    }

    fn run(&mut self) {
        let mut count = 0;
        let mut way: Vec<Step> = Vec::new();
        let mut enter = Some((self.own, UNREACHED));
        loop {
            if let Some((here, parent)) = enter.take() {
                count += 1;
                for of in [&mut self.found, &mut self.low] {
                    if let Some(of) = of.get_mut(here) {
                        *of = count;
                    }
                }
                self.open.push(here);
                way.push(Step { here, parent, next: 0 });
            }
            let Some(step) = way.last_mut() else { return };
            let (here, parent, at) = (step.here, step.parent, step.next);
            step.next += 1;
            match self.neighbour(here, at) {
                Some(Some(there)) if there != parent => match Self::get(&self.found, there) {
                    0 => enter = Some((there, here)),
                    earlier => self.lower(here, earlier),
                },
                Some(_) => {}
                None => {
                    way.pop();
                    self.leave(here, parent);
                }
            }
        }
    }

    /// All beyond `here` has been seen: if nothing of it leads back above `here`, it is a block.
    fn leave(&mut self, here: usize, parent: usize) {
        let low = Self::get(&self.low, here);
        if low < Self::get(&self.found, here) {
            return self.lower(parent, low);
        }
        while let Some(member) = self.open.pop() {
            if let Some(block) = self.blocks.get_mut(member) {
                *block = self.block_count;
            }
            if member == here {
                break;
            }
        }
        self.block_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(1);

    fn id(n: u64) -> BrokerId {
        BrokerId(n)
    }

    fn map(edges: &[(u64, u64)]) -> Map {
        let mut links: BTreeMap<u64, Vec<(BrokerId, Duration)>> = BTreeMap::new();
        for &(a, b) in edges {
            links.entry(a).or_default().push((id(b), RTT));
            links.entry(b).or_default().push((id(a), RTT));
        }
        Map::draw(&links.into_iter().map(|(n, links)| Word { id: id(n), links_max: 4, links }).collect::<Vec<_>>())
    }

    #[test]
    fn blocks_are_what_no_single_link_cuts() {
        // Two triangles and a link between them; 9 and 10 are elsewhere.
        let map = map(&[(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 6), (6, 4), (9, 10)]);
        let blocks = map.blocks(id(1), &[id(2), id(3)]);
        assert!([1, 2, 3].iter().all(|n| blocks.is_safe(id(*n))));
        assert!([4, 5, 6].iter().all(|n| !blocks.is_safe(id(*n)) && blocks.of(id(*n)) == blocks.of(id(4))));
        assert_eq!((blocks.of(id(9)), blocks.of(id(77))), (None, None));
        assert_eq!(blocks.reached().map(|id| id.0).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        // Our own links are as we say: a second way across makes all of it one block, none at all leaves us alone.
        assert!(map.blocks(id(1), &[id(2), id(3), id(5)]).is_safe(id(6)));
        assert_eq!(map.blocks(id(1), &[]).reached().count(), 0);
        let blocks = map.blocks(id(1), &[id(2)]);
        assert_eq!(blocks.of(id(4)).map(|block| Some(block) == blocks.of(id(3))), Some(false));
        // A neighbour of whom nobody tells is reached, and hangs on one link.
        let blocks = map.blocks(id(1), &[id(2), id(3), id(50)]);
        assert!(blocks.of(id(50)).is_some() && !blocks.is_safe(id(50)));
        // Nor need the map know ourselves.
        assert!(map.blocks(id(40), &[id(1), id(2)]).is_safe(id(3)));
    }

    #[test]
    fn a_link_needs_both_words() {
        let word = |n, peers: &[u64]| Word { id: id(n), links_max: 2, links: peers.iter().map(|peer| (id(*peer), RTT)).collect() };
        let map = Map::draw(&[word(1, &[2, 3, 1]), word(2, &[]), word(4, &[4])]);
        assert_eq!(map.links(id(1)).count(), 0);
        assert_eq!((map.degree(id(3)), map.degree(id(2)), map.links_max(id(3))), (0, 0, 0));
        // Who is only claimed as a neighbour is not reached, unless the link is our own.
        assert_eq!(map.blocks(id(2), &[id(1)]).of(id(3)), None);
        assert!(map.blocks(id(2), &[id(1), id(3)]).of(id(3)).is_some());
    }

    #[test]
    fn both_neighbours_on_a_ring_agree() {
        let edges: Vec<_> = (1..40).map(|n| (0, n)).collect();
        let map = map(&edges);
        let of = |n: u64| {
            let links: Vec<_> = if n == 0 { (1..40).map(id).collect() } else { vec![id(0)] };
            map.ring_neighbours(id(n), 4, &map.blocks(id(n), &links))
        };
        for n in 0..40 {
            let beside = of(n);
            assert_eq!(beside.len(), 2);
            assert!(beside.iter().all(|other| of(other.0).contains(&id(n))), "{n}");
        }
        // Who is not reached is stepped over.
        let near_end = of(0)[0];
        let links: Vec<_> = (1..40).map(id).filter(|other| *other != near_end).collect();
        let beside = map.ring_neighbours(id(0), 4, &map.blocks(id(0), &links));
        assert!(beside.len() == 2 && !beside.contains(&near_end));
    }
}

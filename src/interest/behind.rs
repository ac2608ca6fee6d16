//! Who is behind whom: what the tree ports are told of each other.
//!
//! Each side of a tree link tells the other whom it reaches without it: itself, and whoever is behind its other tree ports. In a tree that
//! settles, whatever was told before.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{BrokerId, PortId};

/// What one side tells the other; `None`: it does not know.
pub type Told = Option<Vec<BrokerId>>;

/// A broker's links, and what was told and heard on them.
#[derive(Debug)]
pub struct Neighbourhood {
    own: BrokerId,
    links: BTreeMap<PortId, Neighbour>,
}

#[derive(Debug, Default)]
struct Neighbour {
    /// Whether messages go over the link.
    is_open: bool,
    /// What the far side said last, since it opened.
    heard: Option<BTreeSet<BrokerId>>,
    /// What it was told last; the outer `None`: nothing since it opened.
    told: Option<Option<BTreeSet<BrokerId>>>,
}

impl Neighbourhood {
    /// Without links.
    #[must_use]
    pub fn new(own: BrokerId) -> Self {
        Self { own, links: BTreeMap::new() }
    }

    /// The link has become a tree link, or is none any more. Whether that is news. What was heard while it was one counts no more once it is
    /// none: the next opening is one of both sides, and brings new word, which may be here before we have opened.
    pub fn set_open(&mut self, port: PortId, is_open: bool) -> bool {
        let neighbour = self.links.entry(port).or_default();
        if neighbour.is_open == is_open {
            return false;
        }
        neighbour.is_open = is_open;
        neighbour.told = None;
        if !is_open {
            neighbour.heard = None;
        }
        true
    }

    /// The far side says who is behind it.
    pub fn hear(&mut self, port: PortId, members: Option<impl IntoIterator<Item = BrokerId>>) {
        self.links.entry(port).or_default().heard = members.map(|members| members.into_iter().collect());
    }

    /// The link is gone.
    pub fn remove(&mut self, port: PortId) {
        self.links.remove(&port);
    }

    /// Whom messages reach; `None` where a neighbour does not know.
    #[must_use]
    pub fn reachable(&self) -> Option<BTreeSet<BrokerId>> {
        let mut all = BTreeSet::new();
        for neighbour in self.links.values().filter(|neighbour| neighbour.is_open) {
            all.extend(neighbour.heard.as_ref()?);
        }
        Some(all)
    }

    /// What has to be told, and to whom.
    pub fn tell(&mut self) -> Vec<(PortId, Told)> {
        let open: Vec<PortId> = self.links.iter().filter(|(_, neighbour)| neighbour.is_open).map(|(port, _)| *port).collect();
        let mut news = Vec::new();
        for port in open {
            let others = self.links.iter().filter(|(other, neighbour)| **other != port && neighbour.is_open);
            let behind =
                others.map(|(_, neighbour)| neighbour.heard.as_ref()).try_fold(BTreeSet::from([self.own]), |mut all, heard| {
                    all.extend(heard?);
                    Some(all)
                });
            if let Some(neighbour) = self.links.get_mut(&port).filter(|neighbour| neighbour.told.as_ref() != Some(&behind)) {
                news.push((port, behind.as_ref().map(|members| members.iter().copied().collect())));
                neighbour.told = Some(behind);
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(peer: u64) -> PortId {
        PortId { peer: BrokerId(peer), generation: 1 }
    }

    fn ids(ids: &[u64]) -> Told {
        Some(ids.iter().map(|id| BrokerId(*id)).collect())
    }

    #[test]
    fn a_port_is_told_of_all_others() {
        let mut links = Neighbourhood::new(BrokerId(1));
        links.set_open(port(2), true);
        assert_eq!(links.tell(), [(port(2), ids(&[1]))]);
        assert_eq!(links.tell(), []);
        links.set_open(port(3), true);
        assert_eq!(links.tell(), [(port(2), None), (port(3), None)], "nothing is known of the other");
        assert_eq!(links.reachable(), None);
        links.hear(port(3), ids(&[3, 4]));
        assert_eq!(links.tell(), [(port(2), ids(&[1, 3, 4]))]);
        links.hear(port(2), ids(&[2]));
        assert_eq!(links.tell(), [(port(3), ids(&[1, 2]))]);
        links.hear(port(9), ids(&[9]));
        assert_eq!(links.tell(), [], "no tree link");
        assert_eq!(links.reachable(), Some([2, 3, 4].map(BrokerId).into()));
        links.set_open(port(3), false);
        assert_eq!(links.tell(), [(port(2), ids(&[1]))]);
        links.set_open(port(3), true);
        assert_eq!(
            links.tell(),
            [(port(2), None), (port(3), ids(&[1, 2]))],
            "who opens is told again, and what it said before is void"
        );
        links.hear(port(3), ids(&[3]));
        assert_eq!(links.tell(), [(port(2), ids(&[1, 3]))]);
        links.set_open(port(3), false);
        links.hear(port(3), ids(&[3, 5]));
        links.set_open(port(3), true);
        assert_eq!(links.tell(), [(port(2), ids(&[1, 3, 5])), (port(3), ids(&[1, 2]))], "its word was here first");
        links.remove(port(3));
        assert_eq!(links.tell(), [(port(2), ids(&[1]))]);
    }

    /// Whatever was told while the tree was another one, in the end everybody is behind exactly one port of everybody else.
    #[test]
    fn in_a_tree_it_settles() {
        let parents = [0, 0, 1, 1, 2, 0, 5];
        let mut all: Vec<Neighbourhood> = (0..7).map(|id| Neighbourhood::new(BrokerId(id))).collect();
        let flow = |all: &mut Vec<Neighbourhood>| {
            for _ in 0..50 {
                for from in 0..7 {
                    for (to, members) in all[from as usize].tell() {
                        all[to.peer.0 as usize].hear(port(from), members);
                    }
                }
            }
        };
        let open = |all: &mut Vec<Neighbourhood>, a: u64, b: u64, is_open| {
            all[a as usize].set_open(port(b), is_open);
            all[b as usize].set_open(port(a), is_open);
        };
        // A chain first.
        (1..7).for_each(|id| open(&mut all, id - 1, id, true));
        flow(&mut all);
        (1..7).for_each(|id| open(&mut all, id - 1, id, false));
        (1..7).for_each(|id| open(&mut all, parents[id as usize], id, true));
        flow(&mut all);
        for (id, links) in all.iter().enumerate() {
            let open = links.links.values().filter(|neighbour| neighbour.is_open);
            let mut behind: Vec<_> = open.flat_map(|neighbour| neighbour.heard.clone().unwrap()).map(|id| id.0 as usize).collect();
            behind.sort_unstable();
            assert_eq!(behind, (0..7).filter(|other| *other != id).collect::<Vec<_>>(), "behind the ports of {id}");
        }
    }
}

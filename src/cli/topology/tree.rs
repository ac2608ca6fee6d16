//! The tree within a [`Topology`], in the order in which it is drawn.

use std::collections::BTreeSet;

use crate::shared::{LinkState, Topology, TopologyBroker, TopologyLink};

/// A topology as the tree that its forwarding links make, and what is beside it.
pub(super) struct Tree<'a> {
    /// The root, and below it whatever forwarding links lead to: a broker, then all that is below it, then its next sibling.
    pub(super) nodes: Vec<Node<'a>>,
    /// Links that are in no branch.
    pub(super) others: Vec<&'a TopologyLink>,
    /// Brokers to which no forwarding link leads: none, once the mesh is quiet.
    pub(super) apart: Vec<&'a TopologyBroker>,
}

/// One broker in the tree.
pub(super) struct Node<'a> {
    pub(super) broker: &'a TopologyBroker,
    /// The root's is 0.
    pub(super) depth: usize,
    /// The place in [`Tree::nodes`] of the broker above, and the link to it.
    pub(super) above: Option<(usize, &'a TopologyLink)>,
}

impl<'a> Tree<'a> {
    pub(super) fn of(topology: &'a Topology) -> Self {
        let mut nodes: Vec<Node<'a>> = Vec::with_capacity(topology.brokers.len());
        let mut seen = BTreeSet::new();
        let root = topology.brokers.iter().find(|broker| broker.name == topology.root);
        // Siblings are pushed last first, so that they are popped in the document's order.
        let mut ahead: Vec<_> = root.map(|root| (root, 0, None)).into_iter().collect();
        while let Some((broker, depth, above)) = ahead.pop() {
            if !seen.insert(broker.name.as_str()) {
                continue;
            }
            let place = nodes.len();
            nodes.push(Node { broker, depth, above });
            for link in topology.links.iter().rev().filter(|link| link.state == LinkState::Forwarding) {
                let child = other_end(link, &broker.name).and_then(|name| topology.brokers.iter().find(|other| other.name == name));
                ahead.extend(child.map(|child| (child, depth + 1, Some((place, link)))));
            }
        }
        let is_branch =
            |link: &TopologyLink| nodes.iter().any(|node| node.above.is_some_and(|(_, above)| std::ptr::eq(above, link)));
        Self {
            others: topology.links.iter().filter(|link| !is_branch(link)).collect(),
            apart: topology.brokers.iter().filter(|broker| !seen.contains(broker.name.as_str())).collect(),
            nodes,
        }
    }
}

fn other_end<'a>(link: &'a TopologyLink, name: &str) -> Option<&'a str> {
    match (link.a == name, link.b == name) {
        (true, false) => Some(&link.b),
        (false, true) => Some(&link.a),
        _ => None,
    }
}

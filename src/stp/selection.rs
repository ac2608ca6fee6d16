//! The place of this broker in the tree, and who may be its parent (802.1D-2004 17.28 Port Role Selection). Pure: what is decided
//! depends on the place, what the neighbours offer, and nothing else.
//!
//! Deviation: 802.1D takes the best vector there is (17.6). Here a vector of this broker's own tree is taken only if it is *feasible*
//! (DUAL; RFC 8966 section 3.5.1), so that no broker ever hangs below itself. Among ways of equal cost the present parent stays, where
//! 802.1D prefers the lower identifier: a move costs an OPEN and gains nothing.

use std::cmp::Reverse;

use super::event::{ChangeCause, StpConfig};
use crate::ids::{BrokerId, PortId, RootClaim, TreeId};

/// A way to the root of a tree, as a neighbour offers it (802.1D-2004 17.5, port priority vector).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) port: PortId,
    pub(super) tree: TreeId,
    /// The neighbour's own distance.
    pub(super) distance: u32,
    /// With the cost of the link (802.1D-2004 17.5, root path priority vector).
    pub(super) total: u32,
    /// The neighbour's own.
    pub(super) hops: u8,
}

/// How this broker reaches the root of its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// It is the root.
    Root,
    /// Through its parent.
    Parent { port: PortId, distance: u32, hops: u8 },
    /// Not at all: whoever could take it there is too far away from the root.
    None,
}

/// Where a broker is in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) tree: TreeId,
    pub(super) way: Way,
    /// The least (distance, own id) that this broker has had in `tree`: a parent in the same tree must be below it. A root had 0.
    bound: (u32, BrokerId),
}

/// What to do about the offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Stay,
    /// Hang below this neighbour, or go on doing so.
    Follow(Offer, ChangeCause),
    /// Open the next epoch.
    Claim(ChangeCause),
    /// Be without a way.
    Detach,
}

/// Whether a root is no better than this broker's own claim. A former life of this broker is none to follow, whatever it claimed.
fn is_worse(root: &RootClaim, own: &RootClaim) -> bool {
    root <= own || root.id == own.id
}

impl Place {
    /// A root's place in its own tree.
    pub(super) fn root(tree: TreeId) -> Self {
        Self { tree, way: Way::Root, bound: (0, tree.root.id) }
    }

    pub(super) fn root_port(&self) -> Option<PortId> {
        match self.way {
            Way::Parent { port, .. } => Some(port),
            Way::Root | Way::None => None,
        }
    }

    pub(super) fn distance(&self) -> Option<u32> {
        match self.way {
            Way::Root => Some(0),
            Way::Parent { distance, .. } => Some(distance),
            Way::None => None,
        }
    }

    pub(super) fn hops(&self) -> u8 {
        match self.way {
            Way::Parent { hops, .. } => hops,
            Way::Root | Way::None => 0,
        }
    }

    /// What the offers ask for; one that names an older tree is void. `epoch_held` is what brokers below this one hold back.
    pub(super) fn decide(&self, config: &StpConfig, offers: impl Iterator<Item = Offer>, epoch_held: Option<u64>) -> Decision {
        let mut best: Option<Offer> = None;
        let (mut is_near, mut is_far, mut keeps_parent) = (false, false, false);
        for offer in offers.filter(|offer| offer.tree >= self.tree) {
            if offer.hops >= config.hop_max {
                is_far = true;
                continue;
            }
            is_near = true;
            if self.is_allowed(&offer) {
                keeps_parent |= self.is_parent(&offer);
                if best.is_none_or(|best| self.rank(&offer) > self.rank(&best)) {
                    best = Some(offer);
                }
            }
        }
        match best {
            Some(offer) if self.is_worse_root(config, &offer) => Decision::Claim(ChangeCause::WorseRoot),
            Some(offer) if offer.tree > self.tree => Decision::Follow(offer, ChangeCause::BetterTree),
            Some(offer) if keeps_parent => Decision::Follow(offer, ChangeCause::CheaperWay),
            Some(offer) if self.way == Way::None => Decision::Follow(offer, ChangeCause::InReach),
            Some(offer) => Decision::Follow(offer, ChangeCause::ParentLost),
            None if self.way == Way::Root && epoch_held > Some(self.tree.epoch) => Decision::Claim(ChangeCause::WorseRoot),
            None if self.way == Way::Root => Decision::Stay,
            None if is_far && !is_near => Decision::Detach,
            None => Decision::Claim(ChangeCause::ParentLost),
        }
    }

    /// Hangs this broker, `own`, below the neighbour.
    pub(super) fn follow(&mut self, offer: &Offer, own: BrokerId) {
        let reached = (offer.total, own);
        self.bound = if offer.tree > self.tree { reached } else { self.bound.min(reached) };
        self.tree = offer.tree;
        self.way = Way::Parent { port: offer.port, distance: offer.total, hops: offer.hops.saturating_add(1) };
    }

    /// Leaves this broker without a way. The bound stays: whoever hangs below it may not become its parent unawares.
    pub(super) fn detach(&mut self) {
        self.way = Way::None;
    }

    /// Whether the offer is a cheaper way in the same tree that only a new epoch would allow.
    pub(super) fn is_cheaper_but_infeasible(&self, offer: &Offer, hop_max: u8) -> bool {
        offer.tree == self.tree
            && offer.hops < hop_max
            && !self.is_allowed(offer)
            && matches!(self.way, Way::Parent { distance, .. } if offer.total < distance)
    }

    /// Whether the offer is of a newer epoch with no better a root: worth following only if the present way fails.
    pub(super) fn can_wait(&self, offer: &Offer) -> bool {
        offer.tree > self.tree && offer.tree.root <= self.tree.root
    }

    /// Whether the offer is of a newer epoch whose root is no better than this broker would be.
    pub(super) fn is_worse_root(&self, config: &StpConfig, offer: &Offer) -> bool {
        offer.tree > self.tree && is_worse(&offer.tree.root, &config.claim)
    }

    /// Whether the present way is intact: the parent still offers it.
    pub(super) fn is_intact(&self, config: &StpConfig, mut offers: impl Iterator<Item = Offer>) -> bool {
        offers.any(|offer| self.is_parent(&offer) && offer.tree == self.tree && offer.hops < config.hop_max)
    }

    /// Feasibility: a greater tree, the present parent, or a neighbour that is nearer to the root than this broker has ever been.
    fn is_allowed(&self, offer: &Offer) -> bool {
        offer.tree > self.tree || self.is_parent(offer) || self.way != Way::Root && (offer.distance, offer.port.peer) < self.bound
    }

    fn is_parent(&self, offer: &Offer) -> bool {
        self.root_port() == Some(offer.port)
    }

    fn rank(&self, offer: &Offer) -> impl Ord + use<> {
        (offer.tree, Reverse(offer.total), self.is_parent(offer), Reverse(offer.port.peer))
    }
}

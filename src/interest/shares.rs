//! The share groups of other members: at which brokers a group that a topic matches has members, and how far these brokers are.
//!
//! A share group's filter makes nothing wanted: a message goes to the one broker that is picked for the group (`router`).

use std::collections::{BTreeMap, BTreeSet};

use super::Known;
use super::members::Place;
use crate::ids::{BrokerId, ShareId};
use crate::shared::register::ShareMembers;

/// How far a broker is of which only that it is reached is known.
const FAR: u32 = u32::MAX;

/// A share group that has members at other brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which.
    pub id: ShareId,
    /// At least one.
    pub brokers: Vec<ShareBroker>,
}

/// A broker at which a share group has members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareBroker {
    /// Which.
    pub id: BrokerId,
    /// How many.
    pub members: ShareMembers,
    /// What the way to it costs; none where messages do not reach it at present.
    pub cost: Option<u32>,
}

/// Whom messages reach, and at what cost.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// None: that is not known, and then it is everybody.
    pub(super) members: Option<BTreeSet<BrokerId>>,
    pub(super) costs: BTreeMap<BrokerId, u32>,
}

impl Reach {
    pub(super) fn cost(&self, broker: BrokerId) -> Option<u32> {
        let is_reached = self.members.as_ref().is_none_or(|members| members.contains(&broker));
        is_reached.then(|| self.costs.get(&broker).copied().unwrap_or(FAR))
    }
}

/// A group at a member's place.
pub(super) type ShareKey = (ShareId, Place);

impl Known {
    /// The groups of other members that `topic` matches, in the order of their names.
    pub(super) fn shares_of(&self, topic: &str) -> Vec<Share> {
        let mut found: BTreeMap<ShareId, Vec<ShareBroker>> = BTreeMap::new();
        self.shares.for_each_match(topic, |(share, place), members| {
            let Some(member) = self.member(*place) else { return };
            let broker = ShareBroker { id: member.id, members: *members, cost: self.reach.cost(member.id) };
            found.entry(*share).or_default().push(broker);
        });
        let share = |(id, mut brokers): (ShareId, Vec<ShareBroker>)| {
            brokers.sort_by_key(|broker| broker.id);
            Share { id, brokers }
        };
        found.into_iter().map(share).collect()
    }
}

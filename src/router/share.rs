//! Which member of a share group gets a message (MQTT 5.0 section 4.8.2 leaves it to the server).
//!
//! Turns are counted by the group, so they are fair whoever publishes and however often routes are made anew.
//!
//! A route belongs to one publisher and one topic, and is made anew with every subscription: so what shall be the same for all messages of one
//! publisher, of one topic, or for all, is only the order in which a route has its members. Each member is ranked by a hash of itself and of what it is
//! to be chosen by (rendezvous hashing): a member that comes or goes moves no message from one of the others to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::route::{Group, Target};
use crate::config::SharedStrategy;
use crate::ids::ShareId;
use crate::session::Subscriber;
use crate::shared::register::ShareMembers;

/// A message is offered to members that are connected.
pub(super) const WHO_IS_HERE: bool = false;
/// Also to those that are away and keep their sessions.
pub(super) const EVERYBODY: bool = true;

/// So many members, none of them connected.
pub(super) fn all_away(members: usize) -> ShareMembers {
    ShareMembers { connected: 0, away: u32::try_from(members).unwrap_or(u32::MAX) }
}

/// How a publisher's messages choose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chooser<'a> {
    pub(super) strategy: SharedStrategy,
    /// None for what does not come from a client of this broker.
    pub(super) publisher: Option<&'a Subscriber>,
    /// The same for all publishers.
    pub(super) hasher: &'a ahash::RandomState,
}

/// The members of one share group; each message goes to one of them.
#[derive(Debug)]
pub(super) struct SharedTargets {
    pub(super) id: ShareId,
    pub(super) members: Vec<Target>,
    turns: Turns,
}

/// With whom a message begins.
#[derive(Debug)]
enum Turns {
    /// With each in turn.
    InTurn(Arc<AtomicUsize>),
    /// With any.
    Random,
    /// With the first.
    First,
}

impl SharedTargets {
    /// The group of one route.
    pub(super) fn new(group: &Group, mut members: Vec<Target>, topic: &str, chooser: &Chooser<'_>) -> Self {
        let rank = |by: u64| {
            let hasher = chooser.hasher;
            move |member: &Target| hasher.hash_one((&group.share, &group.filter, &member.subscriber.client_id, by))
        };
        match chooser.strategy {
            SharedStrategy::RoundRobin | SharedStrategy::Random => members.sort_by_key(|member| member.subscriber.id),
            SharedStrategy::Sticky => members.sort_by_cached_key(rank(0)),
            SharedStrategy::HashClientid => {
                members.sort_by_cached_key(rank(chooser.hasher.hash_one(chooser.publisher.map(|one| &one.client_id))))
            }
            SharedStrategy::HashTopic => members.sort_by_cached_key(rank(chooser.hasher.hash_one(topic))),
        }
        let turns = match chooser.strategy {
            SharedStrategy::RoundRobin => Turns::InTurn(Arc::clone(&group.turns)),
            SharedStrategy::Random => Turns::Random,
            SharedStrategy::Sticky | SharedStrategy::HashClientid | SharedStrategy::HashTopic => Turns::First,
        };
        Self { id: group.id, members, turns }
    }

    /// Whose turn it is.
    pub(super) fn next_turn(&self) -> usize {
        match &self.turns {
            Turns::InTurn(next) => next.fetch_add(1, Ordering::Relaxed),
            Turns::Random => rand::random::<u32>() as usize,
            Turns::First => 0,
        }
    }

    /// The members, beginning with the one whose `turn` it is.
    pub(super) fn rotation(&self, turn: usize) -> impl Iterator<Item = &Target> {
        let start = turn % self.members.len().max(1);
        self.members.iter().cycle().skip(start).take(self.members.len())
    }
}

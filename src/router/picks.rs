//! Share groups with members at several brokers: to which broker a message goes.
//!
//! The broker of the publishing client picks for each group that the topic matches: itself if it has a member that is connected and takes the message;
//! else of those that are reached and have connected members the nearest, by the number of members; else whoever has members that are away, of
//! these too by their number, those that are reached first. It says so in the message ([`Picks`]), and whoever is picked, and nobody else,
//! gives the message to one of its members of the group. If none of them takes it, because they are gone or full, it picks another broker, and publishes the message
//! once more for that pick alone, in the batch in which it says that it has dealt with the message.
//!
//! Invariant: a group gets a message once, as often as a message of a lane comes to a broker: whatever is picked, the picked broker alone delivers.

use std::time::Instant;

use super::publish::Batch;
use super::route::Route;
use super::share::SharedTargets;
use super::{Router, share};
use crate::codec::QoS;
use crate::config::SharedStrategy;
use crate::ids::{BrokerId, ShareId};
use crate::interest::{Share, ShareBroker};
use crate::limits::{PICK_ROUNDS_MAX, PICKED_BYTES_MAX, PICKS_MAX};
use crate::replication::{Pick, Picks, Replication, UNDECIDED};
use crate::session::{Message, Subscriber};

/// What a page of picks and what belongs to a message take besides its payload.
const PAGE_BYTES: usize = 4 * 1024;

/// A message as its share groups are asked.
pub(super) struct Offer<'a> {
    pub(super) route: &'a Route,
    pub(super) message: &'a Message<'a>,
    /// None for what does not come from a client of this broker.
    pub(super) publisher: Option<&'a Subscriber>,
    pub(super) now: Instant,
}

impl Router {
    /// Gives a message of this broker to one member of each group, here or elsewhere: who is picked elsewhere stands in the batch's picks then. If it `is_undecided`,
    /// because somebody's groups are not known, so does that, and which groups were given it here.
    pub(super) fn share_out(&self, batch: &mut Batch, offer: &Offer<'_>, is_undecided: bool, mesh: &Replication) {
        let elsewhere = offer.route.shares(offer.message.topic, mesh.interest());
        let own = mesh.interest().own_id();
        let seed = self.seed(offer);
        let mut given = Vec::new();
        let mut is_given = |share: ShareId| given.extend(is_undecided.then_some(share));
        for group in &offer.route.shared {
            let Some(share) = elsewhere.iter().find(|share| share.id == group.id) else {
                if batch.deliver_to_one(group, offer.message, offer.now) {
                    is_given(group.id);
                }
                continue;
            };
            let turn = group.next_turn();
            if batch.offer(group, turn, offer.message, offer.now, share::WHO_IS_HERE).is_ok() {
                is_given(group.id);
                continue;
            }
            let here = ShareBroker { id: own, members: share::all_away(group.members.len()), cost: Some(0) };
            let picked = self.pick(share, Some(here), offer, &[], seed).filter(|broker| *broker != own);
            if picked.is_none() && batch.offer(group, turn, offer.message, offer.now, share::EVERYBODY).is_ok() {
                is_given(group.id);
                continue;
            }
            self.picked(batch, offer, share.id, picked.or_else(|| self.pick(share, None, offer, &[], seed)), &[]);
        }
        for share in elsewhere.iter().filter(|share| !offer.route.shared.iter().any(|group| group.id == share.id)) {
            self.picked(batch, offer, share.id, self.pick(share, None, offer, &[], seed), &[]);
        }
        // In one page, or not at all: what is not named counts as not served.
        if is_undecided && batch.picks.len() + given.len() < PICKS_MAX {
            given.into_iter().chain([UNDECIDED]).for_each(|share| batch.picks.push(Pick { share, broker: own }));
        }
    }

    /// Picks for a message of this broker's own, that was published with `picks`, for those groups that were not known then and that `is_new` says have not
    /// been given it.
    pub(super) fn share_late(
        &self,
        batch: &mut Batch,
        offer: &Offer<'_>,
        picks: Picks<'_>,
        is_new: &mut dyn FnMut(ShareId) -> bool,
        mesh: &Replication,
    ) {
        let seed = self.seed(offer);
        let own = mesh.interest().own_id();
        let elsewhere = offer.route.shares(offer.message.topic, mesh.interest());
        let mut last = None;
        // Its members have come here since, with their sessions. That it was given them is in the log as if it had been picked.
        let has_come = |group: &SharedTargets| group.members.iter().any(|member| member.subscriber.is_owed());
        for group in offer.route.shared.iter().filter(|group| !elsewhere.iter().any(|share| share.id == group.id)) {
            if has_come(group) && !picks.has(group.id) && is_new(group.id) && batch.deliver_to_one(group, offer.message, offer.now)
            {
                self.picked(batch, offer, group.id, Some(own), &[]);
                if batch.picks.len() % PICKS_MAX == PICKS_MAX - 1 {
                    batch.picks.push(Pick { share: UNDECIDED, broker: own });
                }
                last = Some(own);
            }
        }
        for share in elsewhere.iter() {
            if picks.has(share.id) || !is_new(share.id) {
                continue;
            }
            let Some(broker) = self.pick(share, None, offer, &[], seed) else {
                self.metrics.dropped_unshared.add(1);
                continue;
            };
            self.picked(batch, offer, share.id, Some(broker), &[]);
            // In each page, so that a later life sees what was picked late.
            if batch.picks.len() % PICKS_MAX == PICKS_MAX - 1 {
                batch.picks.push(Pick { share: UNDECIDED, broker });
            }
            last = Some(broker);
        }
        if let Some(broker) = last.filter(|_| !batch.picks.len().is_multiple_of(PICKS_MAX)) {
            batch.picks.push(Pick { share: UNDECIDED, broker });
        }
    }

    /// Gives a message that came over a link to one member of each group for which this broker was picked. For those of which nobody here takes it, another
    /// broker is picked, none that was tried before: it stands in the batch's picks then.
    pub(super) fn share_picked(&self, batch: &mut Batch, offer: &Offer<'_>, picks: Picks<'_>, mesh: &Replication) {
        let interest = mesh.interest();
        let own = interest.own_id();
        for pick in picks.chosen().filter(|pick| pick.broker == own && pick.share != UNDECIDED) {
            let group = offer.route.shared.iter().find(|group| group.id == pick.share);
            let is_taken = group.is_some_and(|group| {
                let turn = group.next_turn();
                let mut offer_to = |who| batch.offer(group, turn, offer.message, offer.now, who).is_ok();
                offer_to(share::WHO_IS_HERE) || offer_to(share::EVERYBODY)
            });
            if is_taken {
                continue;
            }
            self.metrics.shares_repicked.add(1);
            let elsewhere = offer.route.shares(offer.message.topic, interest);
            let share = elsewhere.iter().find(|share| share.id == pick.share).filter(|_| picks.round < PICK_ROUNDS_MAX);
            let tried: Vec<_> = std::iter::once(own).chain(picks.tried(pick.share)).collect();
            let other = share.and_then(|share| self.pick(share, None, offer, &tried, self.seed(offer)));
            self.picked(batch, offer, pick.share, other, &tried);
        }
    }

    /// A message of this broker's own was picked for `broker`, which does not deal with it: each group's copy goes to a member here or at another broker, or, if it
    /// `may_be_same`, there as well. For how many groups somebody gets it; who is picked elsewhere stands in the batch's picks then.
    pub(super) fn share_again(
        &self,
        batch: &mut Batch,
        offer: &Offer<'_>,
        picks: Picks<'_>,
        (broker, may_be_same): (BrokerId, bool),
        mesh: &Replication,
    ) -> usize {
        let elsewhere = offer.route.shares(offer.message.topic, mesh.interest());
        let mut placed = 0;
        for pick in picks.chosen().filter(|pick| pick.broker == broker && pick.share != UNDECIDED) {
            if let Some(group) = offer.route.shared.iter().find(|group| group.id == pick.share) {
                let turn = group.next_turn();
                let mut offer_to = |who| batch.offer(group, turn, offer.message, offer.now, who).is_ok();
                if offer_to(share::WHO_IS_HERE) || offer_to(share::EVERYBODY) {
                    placed += 1;
                    continue;
                }
            }
            let tried: Vec<_> = Some(broker).filter(|_| !may_be_same).into_iter().collect();
            let share = elsewhere.iter().find(|share| share.id == pick.share);
            if let Some(other) = share.and_then(|share| self.pick(share, None, offer, &tried, self.seed(offer))) {
                self.picked(batch, offer, pick.share, Some(other), &tried);
                placed += 1;
            }
        }
        placed
    }

    fn picked(&self, batch: &mut Batch, offer: &Offer<'_>, share: ShareId, broker: Option<BrokerId>, tried: &[BrokerId]) {
        // Each page of picks goes with a copy of the message.
        let pages = batch.picks.len() / PICKS_MAX;
        let has_room = pages * (offer.message.payload.len() + PAGE_BYTES) < PICKED_BYTES_MAX;
        match broker.filter(|_| has_room) {
            Some(broker) => {
                self.metrics.shares_picked.add(1);
                batch.picks.push_after(Pick { share, broker }, tried.iter().copied());
            }
            None => self.metrics.dropped_unshared.add(1),
        }
    }

    /// What the choice between brokers that are as good as each other goes by: the same for messages that are to go to the same.
    fn seed(&self, offer: &Offer<'_>) -> u64 {
        let hasher = self.registry.hasher();
        match self.limits.shared {
            SharedStrategy::RoundRobin | SharedStrategy::Random => rand::random(),
            SharedStrategy::Sticky => 0,
            SharedStrategy::HashClientid => hasher.hash_one(offer.publisher.map(|one| &one.client_id)),
            SharedStrategy::HashTopic => hasher.hash_one(offer.message.topic),
        }
    }

    /// Who gets it, and was not `tried`; `here` is this broker where none of its members is connected. At QoS 0 nothing waits for who is away.
    fn pick(&self, share: &Share, here: Option<ShareBroker>, offer: &Offer<'_>, tried: &[BrokerId], seed: u64) -> Option<BrokerId> {
        let of = |hash: BrokerId| self.registry.hasher().hash_one((seed, share.id, hash));
        let waits = offer.message.qos != QoS::AtMostOnce;
        let may = |broker: &ShareBroker| (waits || broker.members.connected > 0) && !tried.contains(&broker.id);
        pick(share.brokers.iter().copied().chain(here).filter(may), of)
    }
}

/// The best of them. Of those that are as good as each other one by its weight and `hash` (weighted rendezvous hashing): a broker that comes or goes
/// moves no message from one of the others to another.
fn pick(brokers: impl Iterator<Item = ShareBroker> + Clone, hash: impl Fn(BrokerId) -> u64) -> Option<BrokerId> {
    let nearest = brokers.clone().filter(|broker| broker.members.connected > 0).filter_map(|broker| broker.cost).min();
    let any_reached = brokers.clone().any(|broker| broker.cost.is_some());
    let weight = |broker: &ShareBroker| match nearest {
        Some(cost) if broker.cost == Some(cost) => broker.members.connected,
        Some(_) => 0,
        None if any_reached && broker.cost.is_none() => 0,
        None => broker.members.away.saturating_add(broker.members.connected),
    };
    let score = |broker: &ShareBroker, weight: u32| {
        // 53 bits, of which none makes zero or one.
        let unit = ((hash(broker.id) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -unit.ln() / f64::from(weight)
    };
    let scored = brokers.filter_map(|broker| {
        let weight = weight(&broker);
        (weight > 0).then(|| (score(&broker, weight), broker.id))
    });
    scored.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, broker)| broker)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::shared::register::ShareMembers;

    fn broker(id: u64, connected: u32, away: u32, cost: Option<u32>) -> ShareBroker {
        ShareBroker { id: BrokerId(id), members: ShareMembers { connected, away }, cost }
    }

    /// How often each is picked.
    fn picked(brokers: &[ShareBroker]) -> BTreeMap<u64, usize> {
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let mut counts = BTreeMap::new();
        for n in 0..1_000_u64 {
            let one = pick(brokers.iter().copied(), |broker| hasher.hash_one((n, broker)));
            one.into_iter().for_each(|one| *counts.entry(one.0).or_default() += 1);
        }
        counts
    }

    #[test]
    fn the_nearest_with_connected_members_come_first_by_the_number_of_these() {
        let counts = picked(&[
            broker(1, 1, 9, Some(4)),
            broker(2, 3, 0, Some(4)),
            broker(3, 9, 0, Some(5)),
            broker(4, 9, 9, None),
            broker(5, 0, 9, Some(1)),
        ]);
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert!((200..300).contains(&counts[&1]), "{counts:?}");
    }

    #[test]
    fn who_is_away_comes_where_nobody_is_connected_and_who_is_not_reached_last() {
        let mut brokers = vec![broker(1, 0, 1, Some(4)), broker(2, 0, 1, Some(9)), broker(3, 5, 0, None), broker(4, 0, 0, Some(1))];
        let counts = picked(&brokers);
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert!((400..600).contains(&counts[&1]), "{counts:?}");
        brokers.drain(..2);
        brokers.pop();
        assert_eq!(picked(&brokers).keys().copied().collect::<Vec<_>>(), [3]);
        assert!(picked(&[]).is_empty());
    }

    #[test]
    fn who_comes_or_goes_moves_nothing_between_the_others() {
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let brokers: Vec<_> = (1..=4).map(|id| broker(id, id as u32, 0, Some(1))).collect();
        for n in 0..1_000_u64 {
            let of = |brokers: &[ShareBroker]| pick(brokers.iter().copied(), |broker| hasher.hash_one((n, broker)));
            let (all, fewer) = (of(&brokers), of(&brokers[..3]));
            assert!(all == fewer || all == Some(BrokerId(4)), "{n}");
        }
    }
}

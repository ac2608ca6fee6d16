//! Who gets a topic: worked out once from the trie, kept by each publisher until a subscription changes.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;

use super::share::{Chooser, SharedTargets};
use crate::codec::QoS;
use crate::ids::ShareId;
use crate::interest::{Interest, Share, ShareBroker};
use crate::pressure::Level;
use crate::session::{Subscriber, SubscriberId, SubscriptionOptions};
use crate::shared::trace::Audience;
use crate::topic::SubscriptionTrie;

/// What one client's connection may remember: a topic costs its length and [`ROUTE_BYTES`], a receiver [`TARGET_BYTES`].
const CACHE_BYTES_CLIENT: usize = 512 * 1024;
/// What one lane reader of a link may remember: it meets the topics of the whole mesh.
const CACHE_BYTES_LINK: usize = 16 * 1024 * 1024;
/// See [`CACHE_BYTES_CLIENT`].
const ROUTE_BYTES: usize = 200;
/// See [`CACHE_BYTES_CLIENT`].
const TARGET_BYTES: usize = size_of::<Target>();

/// Key of a subscription in the trie: a session may hold the same filter plainly and in groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SubscriptionKey {
    subscriber: SubscriberId,
    share: Option<Arc<str>>,
}

/// A subscription as the trie keeps it.
#[derive(Debug)]
struct Subscription {
    subscriber: Arc<Subscriber>,
    options: SubscriptionOptions,
    /// Share name and filter together name a group (MQTT 5.0 section 4.8.2).
    group: Option<Group>,
}

/// See [`Subscription::group`]. Named by share and filter.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) id: ShareId,
    pub(super) share: Arc<str>,
    pub(super) filter: Arc<str>,
    /// Counts the messages that were given to its members in turn, whoever publishes them. All members have the same.
    pub(super) turns: Arc<AtomicUsize>,
}

impl Group {
    fn name(&self) -> (&str, &str) {
        (&self.share, &self.filter)
    }
}

/// Share and filter.
type GroupName = (Arc<str>, Arc<str>);

/// All subscriptions, and the groups that the shared ones make.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    trie: SubscriptionTrie<SubscriptionKey, Subscription>,
    /// Each group with the number of its members. Those of one filter may be very many, so nobody looks through them.
    groups: HashMap<GroupName, (Group, usize), ahash::RandomState>,
}

impl Subscriptions {
    /// Subscribes to the filter (checked, `levels` without its share name), in place of what the subscriber had there before.
    pub(super) fn insert(&mut self, levels: &str, share: Option<&str>, subscriber: &Arc<Subscriber>, options: SubscriptionOptions) {
        let group = share.map(|share| self.join(share, levels));
        let key = SubscriptionKey { subscriber: subscriber.id, share: group.as_ref().map(|group| Arc::clone(&group.share)) };
        let replaced = self.trie.insert(levels, key, Subscription { subscriber: Arc::clone(subscriber), options, group });
        self.leave(replaced);
    }

    /// Takes a subscription away. Whether there was one.
    pub(super) fn remove(&mut self, levels: &str, share: Option<&str>, subscriber: SubscriberId) -> bool {
        let removed = self.trie.remove(levels, &SubscriptionKey { subscriber, share: share.map(Arc::from) });
        let existed = removed.is_some();
        self.leave(removed);
        existed
    }

    /// The group of this name with one member more. All its members have one count of turns.
    fn join(&mut self, share: &str, filter: &str) -> Group {
        let (share, filter): (Arc<str>, Arc<str>) = (Arc::from(share), Arc::from(filter));
        let id = || ShareId::derive(&share, &filter);
        let new = || (Group { id: id(), share: Arc::clone(&share), filter: Arc::clone(&filter), turns: Arc::default() }, 0);
        let (group, members) = self.groups.entry((Arc::clone(&share), Arc::clone(&filter))).or_insert_with(new);
        *members += 1;
        group.clone()
    }

    /// The last member takes its group along.
    fn leave(&mut self, subscription: Option<Subscription>) {
        let Some(Group { share, filter, .. }) = subscription.and_then(|subscription| subscription.group) else { return };
        if let Entry::Occupied(mut occupied) = self.groups.entry((share, filter)) {
            occupied.get_mut().1 -= 1;
            if occupied.get().1 == 0 {
                occupied.remove();
            }
        }
    }

    /// Whose subscriptions match `topic`, counted without a look at their sessions.
    pub(super) fn audience(&self, topic: &str) -> Audience {
        let mut groups: HashSet<(&str, &str), ahash::RandomState> = HashSet::default();
        let mut audience = Audience::default();
        self.trie.for_each_match(topic, |_, subscription| {
            if !subscription.subscriber.may_receive(topic) {
                return;
            }
            match &subscription.group {
                None => audience.subscriptions += 1,
                Some(group) => {
                    audience.group_members += 1;
                    groups.insert(group.name());
                }
            }
        });
        Audience { groups: groups.len() as u64, ..audience }
    }

    /// How many there are, and how many groups.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.trie.len(), self.groups.len())
    }
}

/// One receiver of a topic.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) subscriber: Arc<Subscriber>,
    /// The highest granted by the matching subscriptions [MQTT-3.3.4-2].
    pub(super) qos: QoS,
    /// True only if every matching subscription says so.
    pub(super) no_local: bool,
    /// True if any matching subscription says so.
    pub(super) retain_as_published: bool,
    /// Of all matching subscriptions [MQTT-3.3.4-3, -4]; None, the usual case, owns nothing.
    pub(super) subscription_ids: Option<Box<[u32]>>,
}

/// Everybody who gets a topic. A client whose subscriptions overlap gets one copy; one that may not receive the topic gets none.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// Whether the publisher whose memory this is in may publish to the topic. If not, nobody is looked for.
    pub(super) may_publish: bool,
    pub(super) targets: Vec<Target>,
    pub(super) shared: Vec<SharedTargets>,
    /// One of the targets is on its way from or to another broker, or has a replica there, which wants the topic for it. Of messages at QoS 0 such a session keeps no account.
    is_followed: bool,
    /// What is [`Elsewhere`], a bit each, and above these the generation of other brokers' interest under which this was found.
    elsewhere: AtomicU64,
    /// The share groups with members elsewhere, likewise, once somebody has asked.
    shares: ArcSwapOption<(u64, Vec<Share>)>,
}

/// See [`Route::shares`].
pub(super) struct Shares(Arc<(u64, Vec<Share>)>);

impl Shares {
    /// In the order of their names.
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Share> {
        self.0.1.iter()
    }
}

/// What other brokers want of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Elsewhere {
    /// Somebody wants it, apart from share groups.
    pub(super) is_wanted: bool,
    /// A share group that it matches has members there.
    pub(super) has_shares: bool,
    /// Somebody's share groups are not known.
    pub(super) is_blind: bool,
}

impl Route {
    /// Looks `topic` up for a client, or for the broker itself. Rights are asked here and not again until the generation changes.
    pub(super) fn find(subscriptions: &Subscriptions, topic: &str, chooser: &Chooser<'_>) -> Self {
        if chooser.publisher.is_some_and(|publisher| !publisher.may_publish(topic)) {
            return Self::default();
        }
        let mut found: Vec<(&Arc<Subscriber>, &SubscriptionOptions)> = Vec::new();
        let mut groups: HashMap<(&str, &str), (&Group, Vec<Target>), ahash::RandomState> = HashMap::default();
        subscriptions.trie.for_each_match(topic, |_, subscription| match &subscription.group {
            None => found.push((&subscription.subscriber, &subscription.options)),
            Some(group) if subscription.subscriber.may_receive(topic) => {
                groups
                    .entry(group.name())
                    .or_insert_with(|| (group, Vec::new()))
                    .1
                    .push(Target::new(&subscription.subscriber, &[&subscription.options]));
            }
            Some(_) => {}
        });
        found.sort_by_key(|(subscriber, _)| subscriber.id);
        let targets: Vec<Target> = found
            .chunk_by(|(a, _), (b, _)| a.id == b.id)
            .filter(|same| same.first().is_some_and(|(subscriber, _)| subscriber.may_receive(topic)))
            .filter_map(|same| {
                let options: Vec<&SubscriptionOptions> = same.iter().map(|(_, options)| *options).collect();
                same.first().map(|(subscriber, _)| Target::new(subscriber, &options))
            })
            .collect();
        let shared = groups.into_values().map(|(group, members)| SharedTargets::new(group, members, topic, chooser)).collect();
        let is_followed = targets.iter().any(|target| target.qos != QoS::AtMostOnce && target.subscriber.is_followed());
        Self { may_publish: true, targets, shared, is_followed, ..Self::default() }
    }

    /// Whether nobody here gets the topic.
    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.shared.is_empty()
    }

    /// Whether the place of a message of this QoS in the log matters.
    pub(super) fn follows(&self, qos: QoS) -> bool {
        self.is_followed && qos != QoS::AtMostOnce
    }

    /// What other brokers want of messages of this QoS to the topic, which is the route's. Looked up once, until the interest of others changes.
    pub(super) fn elsewhere(&self, topic: &str, qos: QoS, interest: &Interest) -> Elsewhere {
        // Before what it speaks of: what is found is no older than what it is remembered under.
        let generation = interest.generation();
        let remembered = self.elsewhere.load(Ordering::Relaxed);
        if remembered >> 3 == generation {
            let [is_wanted, has_shares, is_blind] = [1, 2, 4].map(|bit| remembered & bit == bit);
            return Elsewhere { is_wanted: self.follows(qos) || is_wanted, has_shares, is_blind };
        }
        let is_wanted = interest.is_wanted_elsewhere(topic);
        let has_shares = interest.has_shares() && self.shares(topic, interest).iter().len() > 0;
        let is_blind = interest.is_blind();
        let found = u64::from(is_wanted) | u64::from(has_shares) << 1 | u64::from(is_blind) << 2;
        self.elsewhere.store((generation << 3) | found, Ordering::Relaxed);
        Elsewhere { is_wanted: self.follows(qos) || is_wanted, has_shares, is_blind }
    }

    /// The share groups of the topic, which is the route's, with members elsewhere. Likewise.
    pub(super) fn shares(&self, topic: &str, interest: &Interest) -> Shares {
        let generation = interest.generation();
        if let Some(shares) = self.shares.load_full().filter(|shares| shares.0 == generation) {
            return Shares(shares);
        }
        let shares = Arc::new((generation, interest.shares(topic)));
        self.shares.store(Some(Arc::clone(&shares)));
        Shares(shares)
    }

    /// Whether a group of the topic, which is the route's, has connected members at another broker that is reached. Likewise.
    pub(super) fn goes_elsewhere(&self, group: ShareId, topic: &str, interest: &Interest) -> bool {
        let is_there = |broker: &ShareBroker| broker.members.connected > 0 && broker.cost.is_some();
        self.shares(topic, interest).iter().any(|share| share.id == group && share.brokers.iter().any(is_there))
    }

    /// Whether a message of QoS 1 or 2 would have to be kept on disk for somebody.
    pub(super) fn would_write(&self) -> bool {
        let mut targets = self.targets.iter().chain(self.shared.iter().flat_map(|group| &group.members));
        targets.any(|target| target.qos != QoS::AtMostOnce && target.subscriber.lock().is_durable())
    }

    /// Whether a message would have to wait in somebody's queue here. `goes_elsewhere`: a group has a member at another broker who takes it.
    pub(super) fn would_queue(&self, qos: QoS, memory: Level, goes_elsewhere: impl Fn(ShareId) -> bool) -> bool {
        let waits = |target: &Target| target.subscriber.lock().would_queue(qos.min(target.qos), memory);
        let group_waits = |group: &SharedTargets| group.members.iter().all(waits) && !goes_elsewhere(group.id);
        self.targets.iter().any(waits) || self.shared.iter().any(group_waits)
    }

    fn len(&self) -> usize {
        self.targets.len() + self.shared.iter().map(|group| group.members.len()).sum::<usize>()
    }
}

impl Target {
    fn new(subscriber: &Arc<Subscriber>, options: &[&SubscriptionOptions]) -> Self {
        let ids: Box<[u32]> = options.iter().filter_map(|o| o.subscription_id).collect();
        Self {
            subscriber: Arc::clone(subscriber),
            qos: options.iter().map(|o| o.qos).max().unwrap_or(QoS::AtMostOnce),
            no_local: options.iter().all(|o| o.no_local),
            retain_as_published: options.iter().any(|o| o.retain_as_published),
            subscription_ids: (!ids.is_empty()).then_some(ids),
        }
    }
}

/// One publisher's memory of routes, void as a whole when any subscription changes. Empty, it owns no memory: most clients publish nothing.
#[derive(Debug)]
pub struct RouteCache {
    bytes_max: usize,
    remembered: Option<Box<Remembered>>,
}

#[derive(Debug, Default)]
struct Remembered {
    generation: u64,
    bytes: usize,
    routes: HashMap<Box<str>, Arc<Route>, ahash::RandomState>,
}

impl Default for RouteCache {
    fn default() -> Self {
        Self { bytes_max: CACHE_BYTES_CLIENT, remembered: None }
    }
}

impl RouteCache {
    /// The memory of a lane reader.
    pub(super) fn of_link() -> Self {
        Self { bytes_max: CACHE_BYTES_LINK, remembered: None }
    }

    /// The route of `topic` under `generation`, from memory or by `find`.
    pub(super) fn route(&mut self, topic: &str, generation: u64, find: impl FnOnce() -> Route) -> Arc<Route> {
        let Remembered { generation: since, bytes, routes } = &mut **self.remembered.get_or_insert_default();
        if *since != generation || *bytes > self.bytes_max {
            routes.clear();
            *bytes = 0;
            *since = generation;
        }
        if let Some(route) = routes.get(topic) {
            return Arc::clone(route);
        }
        let route = Arc::new(find());
        *bytes += ROUTE_BYTES + topic.len() + route.len() * TARGET_BYTES;
        routes.insert(topic.into(), Arc::clone(&route));
        route
    }
}

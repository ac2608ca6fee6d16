//! Who gets a topic: worked out once from the trie, kept by each publisher until a subscription changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::codec::QoS;
use crate::session::{Subscriber, SubscriberId, SubscriptionOptions};
use crate::topic::SubscriptionTrie;

/// Topics of which one connection remembers the route.
const CACHED_ROUTES_MAX: usize = 1_024;
/// Receivers in all routes that one connection remembers: a cache is not to grow with topics times subscribers.
const CACHED_TARGETS_MAX: usize = 100_000;

/// Key of a subscription in the trie: a session may hold the same filter plainly and in groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SubscriptionKey {
    pub(super) subscriber: SubscriberId,
    pub(super) share: Option<Arc<str>>,
}

/// A subscription as the trie keeps it.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) subscriber: Arc<Subscriber>,
    pub(super) options: SubscriptionOptions,
    /// Share name and filter together name a group (MQTT 5.0 section 4.8.2).
    pub(super) group: Option<Group>,
}

/// See [`Subscription::group`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Group {
    pub(super) share: Arc<str>,
    pub(super) filter: Arc<str>,
}

pub(super) type Subscriptions = SubscriptionTrie<SubscriptionKey, Subscription>;

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

/// The members of one share group; each message goes to one of them.
#[derive(Debug)]
pub(super) struct SharedTargets {
    pub(super) members: Vec<Target>,
    next: AtomicUsize,
}

impl SharedTargets {
    /// The members in turn, each publish beginning with the next one.
    pub(super) fn rotation(&self) -> impl Iterator<Item = &Target> {
        let start = self.next.fetch_add(1, Ordering::Relaxed) % self.members.len().max(1);
        self.members.iter().cycle().skip(start).take(self.members.len())
    }
}

/// Everybody who gets a topic. A client whose subscriptions overlap gets one copy.
#[derive(Debug, Default)]
pub(super) struct Route {
    pub(super) targets: Vec<Target>,
    pub(super) shared: Vec<SharedTargets>,
}

impl Route {
    /// Looks `topic` up.
    pub(super) fn find(subscriptions: &Subscriptions, topic: &str) -> Self {
        let mut found: Vec<(&Arc<Subscriber>, &SubscriptionOptions)> = Vec::new();
        let mut groups: HashMap<&Group, Vec<Target>, ahash::RandomState> = HashMap::default();
        subscriptions.for_each_match(topic, |_, subscription| match &subscription.group {
            None => found.push((&subscription.subscriber, &subscription.options)),
            Some(group) => {
                groups.entry(group).or_default().push(Target::new(&subscription.subscriber, &[&subscription.options]));
            }
        });
        found.sort_by_key(|(subscriber, _)| subscriber.id);
        let targets = found
            .chunk_by(|(a, _), (b, _)| a.id == b.id)
            .filter_map(|same| {
                let options: Vec<&SubscriptionOptions> = same.iter().map(|(_, options)| *options).collect();
                same.first().map(|(subscriber, _)| Target::new(subscriber, &options))
            })
            .collect();
        let shared = groups
            .into_values()
            .map(|mut members| {
                members.sort_by_key(|member| member.subscriber.id);
                SharedTargets { members, next: AtomicUsize::new(0) }
            })
            .collect();
        Self { targets, shared }
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

/// One publisher's memory of routes, void as a whole when any subscription changes. Empty, it owns no memory.
#[derive(Debug, Default)]
pub struct RouteCache {
    generation: u64,
    targets: usize,
    routes: HashMap<Box<str>, Arc<Route>, ahash::RandomState>,
}

impl RouteCache {
    /// The route of `topic` under `generation`, from memory or by `find`.
    pub(super) fn route(&mut self, topic: &str, generation: u64, find: impl FnOnce() -> Route) -> Arc<Route> {
        if self.generation != generation || self.routes.len() >= CACHED_ROUTES_MAX || self.targets >= CACHED_TARGETS_MAX {
            self.routes.clear();
            self.targets = 0;
            self.generation = generation;
        }
        if let Some(route) = self.routes.get(topic) {
            return Arc::clone(route);
        }
        let route = Arc::new(find());
        self.targets += route.len();
        self.routes.insert(topic.into(), Arc::clone(&route));
        route
    }
}

//! What other brokers want: the filters of each member of the mesh, and who of them is behind which tree port.
//!
//! Two questions are answered. Whether a member other than this broker wants a topic at all: what nobody wants does not enter the mesh
//! ([`Interest::is_wanted_elsewhere`]). And whether somebody behind a tree port does: who is there gets the message, else a stub
//! ([`Verdicts`]). A wrong answer to the second costs a pull or a few bytes, never a message, so who is behind a port ([`Behind`]) may be told
//! late and needs no confirmation. A third is asked for share groups: at which brokers they have members ([`Interest::shares`]). Whatever is not known is taken as wanted: a member whose filters are not known wants everything, and so
//! does a port of which nothing is known.
//!
//! It is not: where the filters come from (they are told in registers, by `mesh`), nor what a local client wants (`router`).
//!
//! Invariant: [`Interest::generation`] grows with every change; what was worked out under another is void. What share groups have no part in, by themselves or by who
//! is reached, is void only if [`Interest::filters_generation`] has grown.
//!
//! Specification: `ARCHITECTURE.md`, "Interest".

mod behind;
mod dealt;
mod echoes;
mod members;
mod rules;
mod shares;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockWriteGuard};

pub use behind::{Neighbourhood, Told};
pub use dealt::{Asked, Standing};
pub use echoes::{EchoWait, Echoes};
pub use rules::{Mode, Rules};
pub use shares::{Share, ShareBroker};
pub use verdicts::{Behind, Draw, Verdicts};

use crate::ids::{BrokerId, ShareId};
use crate::limits::BROKERS_MAX;
use crate::shared::register::{Change, Follow, Key, ShareMembers, Value};
use crate::topic::{self, SubscriptionTrie};
use dealt::Said;
use members::{MemberSet, Place};
use shares::{Reach, ShareKey};

/// A filter that wants everything.
const EVERYTHING: &str = "#";

/// The interest of all members of the mesh but this broker.
#[derive(Debug)]
pub struct Interest {
    own: BrokerId,
    rules: Rules,
    generation: AtomicU64,
    filters_generation: AtomicU64,
    knowings: AtomicU64,
    known: RwLock<Known>,
    echoes: OnceLock<Arc<Echoes>>,
}

/// What is known of the members.
#[derive(Debug, Default)]
struct Known {
    /// Under each filter the places of the members that have it.
    trie: SubscriptionTrie<Place, ()>,
    /// The same of share groups.
    shares: SubscriptionTrie<ShareKey, ShareMembers>,
    reach: Reach,
    places: HashMap<BrokerId, Place, ahash::RandomState>,
    /// At their places; a place of nobody is used again.
    members: Vec<Option<Member>>,
    /// How many of them want everything.
    wanting_all: usize,
    /// How many of them have not told their filters.
    unknown: usize,
}

#[derive(Debug)]
struct Member {
    id: BrokerId,
    /// Its filters are all that it wants.
    is_known: bool,
    /// It said so: its filters were too many to be told.
    wants_all: bool,
    /// Those of no share group.
    filters: HashSet<Box<str>, ahash::RandomState>,
    /// Its share groups with their filters.
    shares: HashSet<(ShareId, Box<str>), ahash::RandomState>,
    /// What it says of logs.
    said: Said,
}

impl Member {
    /// Of whatever topic, as far as is known.
    fn wants_everything(&self) -> bool {
        !self.is_known || self.wants_all
    }
}

/// Who wants a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    /// It goes everywhere.
    ByRule,
    /// These.
    By(MemberSet),
}

impl Interest {
    /// Nobody is known.
    #[must_use]
    pub fn new(own: BrokerId, rules: Rules) -> Self {
        Self {
            own,
            rules,
            generation: AtomicU64::new(1),
            filters_generation: AtomicU64::new(1),
            knowings: AtomicU64::new(0),
            known: RwLock::default(),
            echoes: OnceLock::new(),
        }
    }

    /// Grows with every change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Grows where what others want has changed, apart from share groups.
    #[must_use]
    pub fn filters_generation(&self) -> u64 {
        self.filters_generation.load(Ordering::Acquire)
    }

    /// Grows where a member's filters and share groups have become known, or where nobody need know them any more.
    #[must_use]
    pub fn knowings(&self) -> u64 {
        self.knowings.load(Ordering::Acquire)
    }

    /// Whether there are members, or may be, whose share groups are not known.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        let known = self.known.read();
        known.unknown > 0 || known.places.is_empty()
    }

    /// This broker.
    #[must_use]
    pub fn own_id(&self) -> BrokerId {
        self.own
    }

    /// The share groups that `topic` matches and that have members elsewhere.
    #[must_use]
    pub fn shares(&self, topic: &str) -> Vec<Share> {
        let known = self.known.read();
        if known.shares.is_empty() { Vec::new() } else { known.shares_of(topic) }
    }

    /// Whether share groups have members elsewhere.
    #[must_use]
    pub fn has_shares(&self) -> bool {
        !self.known.read().shares.is_empty()
    }

    /// Whom messages reach from now on; `None`: nobody knows, and then it is everybody.
    pub fn set_reachable(&self, members: Option<BTreeSet<BrokerId>>) {
        let mut all = self.change();
        if all.known.reach.members != members {
            all.known.reach.members = members;
            all.has_changed = true;
        }
    }

    /// What the way to a broker costs; none where messages do not reach it at present.
    #[must_use]
    pub fn cost(&self, broker: BrokerId) -> Option<u32> {
        self.known.read().reach.cost(broker)
    }

    /// What the ways to other brokers cost.
    pub fn set_costs(&self, costs: BTreeMap<BrokerId, u32>) {
        let mut all = self.change();
        if all.known.reach.costs != costs {
            all.known.reach.costs = costs;
            all.has_changed = true;
        }
    }

    /// Whether another member wants `topic`, apart from share groups. While none is known it is taken to be wanted: others may be there, and have not been met.
    #[must_use]
    pub fn is_wanted_elsewhere(&self, topic: &str) -> bool {
        if self.rules.mode(topic) == Mode::Full {
            return true;
        }
        let known = self.known.read();
        if known.wanting_all > 0 || known.places.is_empty() {
            return true;
        }
        let mut is_wanted = false;
        known.trie.for_each_match(topic, |_, ()| is_wanted = true);
        is_wanted
    }

    /// Whether and why a message of `topic` goes to `members`, as a lane would judge it that remembers nothing.
    fn draw(&self, topic: &str, members: Option<&[BrokerId]>) -> Draw {
        if self.rules.mode(topic) == Mode::Full {
            return Draw::Rule;
        }
        let (Some(members), known) = (members, self.known.read()) else { return Draw::Unknown };
        let others = members.iter().filter(|member| **member != self.own);
        let places: Option<Vec<Place>> = others.map(|member| known.places.get(member).copied()).collect();
        let Some(places) = places else { return Draw::Unknown };
        let found = || places.iter().filter_map(|place| known.member(*place));
        if found().any(|member| !member.is_known) {
            return Draw::Unknown;
        }
        let mut is_wanted = found().any(|member| member.wants_all || member.filters.contains(EVERYTHING));
        known.trie.for_each_match(topic, |place, ()| is_wanted |= places.contains(place));
        if is_wanted {
            return Draw::Wanted;
        }
        let mut is_shared = false;
        known.shares.for_each_match(topic, |(_, place), _| is_shared |= places.contains(place));
        if is_shared { Draw::Shared } else { Draw::Nobody }
    }

    /// From now on clients wait until other members know what they subscribe to. The first call counts.
    pub fn await_echoes(&self, echoes: Arc<Echoes>) {
        // The server calls this once.
        let _ = self.echoes.set(echoes);
    }

    /// What clients wait for that subscribe, if they do.
    #[must_use]
    pub fn echoes(&self) -> Option<&Arc<Echoes>> {
        self.echoes.get()
    }

    /// To change what is known.
    #[must_use]
    pub fn change(&self) -> Changes<'_> {
        Changes { interest: self, known: self.known.write(), has_changed: false, filters_have_changed: false }
    }

    /// Members that are known, and of how many of them the filters.
    #[must_use]
    pub fn members(&self) -> (usize, usize) {
        let known = self.known.read();
        (known.places.len(), known.places.len() - known.unknown)
    }

    /// Filters of all members together.
    #[must_use]
    pub fn filters(&self) -> usize {
        self.known.read().trie.len()
    }

    fn wanted(&self, topic: &str) -> Wanted {
        if self.rules.mode(topic) == Mode::Full {
            return Wanted::ByRule;
        }
        let mut members = MemberSet::default();
        self.known.read().trie.for_each_match(topic, |place, ()| members.insert(*place));
        Wanted::By(members)
    }

    /// The places of `members`. `None` where one of them wants everything, as far as is known.
    fn places(&self, members: &[BrokerId]) -> Option<MemberSet> {
        if self.rules.is_full() {
            return None;
        }
        let known = self.known.read();
        let mut places = MemberSet::default();
        for member in members.iter().filter(|member| **member != self.own) {
            let place = *known.places.get(member)?;
            let found = known.member(place)?;
            if found.wants_everything() || found.filters.contains(EVERYTHING) {
                return None;
            }
            places.insert(place);
        }
        Some(places)
    }
}

impl Known {
    fn member(&self, place: Place) -> Option<&Member> {
        self.members.get(usize::from(place)).and_then(Option::as_ref)
    }

    /// The member with its place, new if it is not known. `None` where there are as many as a mesh may have.
    fn member_or_new(&mut self, id: BrokerId) -> Option<(Place, &mut Member)> {
        let place = match self.places.get(&id) {
            Some(place) => *place,
            None => {
                let free = self.members.iter().position(Option::is_none).unwrap_or(self.members.len());
                let place = Place::try_from(free).ok().filter(|place| usize::from(*place) < BROKERS_MAX)?;
                if free == self.members.len() {
                    self.members.push(None);
                }
                self.places.insert(id, place);
                self.unknown += 1;
                self.wanting_all += 1;
                place
            }
        };
        let new = || Member {
            id,
            is_known: false,
            wants_all: false,
            filters: HashSet::default(),
            shares: HashSet::default(),
            said: Said::default(),
        };
        let member = self.members.get_mut(usize::from(place))?.get_or_insert_with(new);
        Some((place, member))
    }

    /// The member's filters are known or not, and it wants everything or not. Whether that is new.
    fn set(&mut self, id: BrokerId, is_known: bool, wants_all: bool) -> bool {
        let Some((_, member)) = self.member_or_new(id) else { return false };
        let before = (member.is_known, member.wants_all);
        (member.is_known, member.wants_all) = (is_known, wants_all);
        let (did, does) = (!before.0 || before.1, member.wants_everything());
        self.unknown = self.unknown + usize::from(!is_known) - usize::from(!before.0);
        self.wanting_all = self.wanting_all + usize::from(does) - usize::from(did);
        before != (is_known, wants_all)
    }

    /// Whether the member's filters are known, and whether it said that it wants everything.
    fn state(&self, id: BrokerId) -> Option<(bool, bool)> {
        let place = *self.places.get(&id)?;
        self.member(place).map(|member| (member.is_known, member.wants_all))
    }
}

/// Changes that become visible together. Readers wait meanwhile.
#[derive(Debug)]
pub struct Changes<'a> {
    interest: &'a Interest,
    known: RwLockWriteGuard<'a, Known>,
    has_changed: bool,
    /// That it has is not only of share groups.
    filters_have_changed: bool,
}

impl Changes<'_> {
    /// There is such a member, and nothing is known of what it wants.
    pub fn join(&mut self, member: BrokerId) {
        if member == self.interest.own {
            return;
        }
        let is_new = self.known.state(member).is_none();
        self.drop_filters(member);
        self.filters_have_changed |= self.known.set(member, false, false) || is_new;
    }

    /// From now on the filters that the member was given and is given are all that it wants.
    pub fn know(&mut self, member: BrokerId) {
        if let Some((_, wants_all)) = self.known.state(member) {
            let is_news = self.known.set(member, true, wants_all);
            self.interest.knowings.fetch_add(u64::from(is_news), Ordering::AcqRel);
            self.filters_have_changed |= is_news;
        }
    }

    /// The member says that it wants everything, or no longer.
    pub fn want_all(&mut self, member: BrokerId, wants_all: bool) {
        if let Some((is_known, _)) = self.known.state(member) {
            self.filters_have_changed |= self.known.set(member, is_known, wants_all);
        }
    }

    /// The member has one more filter, of no share group.
    pub fn insert(&mut self, member: BrokerId, levels: &str) {
        let Some(place) = self.known.places.get(&member).copied() else { return };
        let known = &mut *self.known;
        let Some(found) = known.members.get_mut(usize::from(place)).and_then(Option::as_mut) else { return };
        if found.filters.insert(levels.into()) {
            known.trie.insert(levels, place, ());
            self.filters_have_changed = true;
        }
    }

    /// The member has given up one that it was given.
    pub fn remove(&mut self, member: BrokerId, levels: &str) {
        let Some(place) = self.known.places.get(&member).copied() else { return };
        let known = &mut *self.known;
        let Some(found) = known.members.get_mut(usize::from(place)).and_then(Option::as_mut) else { return };
        if found.filters.remove(levels) {
            known.trie.remove(levels, &place);
            self.filters_have_changed = true;
        }
    }

    /// The member has so many members of a share group with this filter (`levels`); none: no longer any.
    pub fn share(&mut self, member: BrokerId, share: &str, levels: &str, members: Option<ShareMembers>) {
        let Some(place) = self.known.places.get(&member).copied() else { return };
        let known = &mut *self.known;
        let Some(found) = known.members.get_mut(usize::from(place)).and_then(Option::as_mut) else { return };
        let key = (ShareId::derive(share, levels), place);
        self.has_changed = true;
        match members {
            Some(members) => {
                found.shares.insert((key.0, levels.into()));
                known.shares.insert(levels, key, members);
            }
            None => {
                found.shares.remove(&(key.0, Box::from(levels)));
                known.shares.remove(levels, &key);
            }
        }
    }

    /// It is no member any more.
    pub fn leave(&mut self, member: BrokerId) {
        if self.known.state(member).is_none() {
            return;
        }
        self.drop_filters(member);
        self.known.set(member, true, false);
        if let Some(place) = self.known.places.remove(&member)
            && let Some(left) = self.known.members.get_mut(usize::from(place))
        {
            *left = None;
        }
        self.interest.knowings.fetch_add(1, Ordering::AcqRel);
        self.filters_have_changed = true;
    }

    fn drop_filters(&mut self, member: BrokerId) {
        let Some(place) = self.known.places.get(&member).copied() else { return };
        let known = &mut *self.known;
        let Some(found) = known.members.get_mut(usize::from(place)).and_then(Option::as_mut) else { return };
        found.said = Said::default();
        for levels in &std::mem::take(&mut found.filters) {
            known.trie.remove(levels, &place);
        }
        for (share, levels) in &std::mem::take(&mut found.shares) {
            known.shares.remove(levels, &(*share, place));
            self.has_changed = true;
        }
    }
}

impl Follow for Interest {
    fn joined(&self, member: BrokerId) {
        self.change().join(member);
    }

    fn known(&self, member: BrokerId) {
        self.change().know(member);
    }

    fn changed(&self, member: BrokerId, changes: &[Change]) {
        let mut all = self.change();
        // What it has told of other logs is of its own log's former life, if that is another.
        for (key, value) in changes.iter().filter(|(key, _)| *key == Key::Log) {
            all.tell(member, key, value.as_ref());
        }
        for (key, value) in changes {
            match key {
                Key::Everything => all.want_all(member, value.is_some()),
                Key::Filter(text) => {
                    // A filter that this broker cannot read matches nothing that it could be asked for.
                    let Ok(filter) = topic::parse_filter(text) else { continue };
                    match (filter.share, value) {
                        (Some(share), Some(Value::Members(members))) => all.share(member, share, filter.levels, Some(*members)),
                        // It does not say how many.
                        (Some(share), Some(_)) => {
                            all.share(member, share, filter.levels, Some(ShareMembers { connected: 1, away: 0 }))
                        }
                        (Some(share), None) => all.share(member, share, filter.levels, None),
                        (None, Some(_)) => all.insert(member, filter.levels),
                        (None, None) => all.remove(member, filter.levels),
                    }
                }
                Key::AskDealt | Key::Dealt(_) | Key::Leaving => all.tell(member, key, value.as_ref()),
                Key::Session(_) | Key::Replica | Key::Will(..) | Key::Log | Key::Echo(_) | Key::Bridge(_) | Key::Unknown(..) => {}
            }
        }
    }

    fn left(&self, member: BrokerId) {
        self.change().leave(member);
    }
}

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        // Under the lock: who sees the new generation works it out anew from what is new.
        if self.filters_have_changed {
            self.interest.filters_generation.fetch_add(1, Ordering::AcqRel);
        }
        if self.has_changed || self.filters_have_changed {
            self.interest.generation.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::shared::register::{Registers, Value};

    const OWN: BrokerId = BrokerId(1);
    const A: BrokerId = BrokerId(2);
    const B: BrokerId = BrokerId(3);

    #[expect(clippy::disallowed_methods, reason = "time starts somewhere")]
    fn start() -> Instant {
        Instant::now()
    }

    fn interest() -> Interest {
        Interest::new(OWN, Rules::new(Mode::Interest, []))
    }

    /// Members whose filters are known, and have none.
    fn interest_of(members: &[BrokerId]) -> Interest {
        let interest = interest();
        for member in members {
            interest.change().join(*member);
            interest.change().know(*member);
        }
        interest
    }

    #[test]
    fn what_is_not_known_is_wanted() {
        let interest = interest();
        assert!(interest.is_wanted_elsewhere("t"), "nobody is known");
        interest.joined(A);
        assert!(interest.is_wanted_elsewhere("t"), "what A wants is not known");
        interest.known(A);
        assert!(!interest.is_wanted_elsewhere("t"));
        interest.joined(B);
        assert!(interest.is_wanted_elsewhere("t"));
        assert_eq!(interest.members(), (2, 1));
        interest.left(B);
        assert!(!interest.is_wanted_elsewhere("t"));
        interest.joined(A);
        assert!(interest.is_wanted_elsewhere("t"), "A has another life");
        interest.joined(OWN);
        assert_eq!(interest.members(), (1, 0), "this broker is none of the others");
    }

    /// As after a restart: of those who are away nothing but that they are members.
    #[test]
    fn who_was_a_member_and_was_not_met_wants_everything_until_it_leaves() {
        let timeout = Duration::from_secs(900);
        let registers = Registers::new(OWN, timeout, 100);
        let interest = Arc::new(interest());
        let now = start();
        registers.met(B, now);
        registers.follow(Arc::clone(&interest) as Arc<dyn Follow>);
        registers.met(A, now + timeout / 2);
        interest.known(A);
        assert!(interest.is_wanted_elsewhere("t"));
        assert_eq!(registers.tick(now + timeout - Duration::from_secs(1), &mut Vec::new()), []);
        assert!(interest.is_wanted_elsewhere("t"));
        assert_eq!(registers.tick(now + timeout, &mut Vec::new()), [(B, 0)]);
        assert_eq!((interest.members(), interest.is_wanted_elsewhere("t")), ((1, 1), false));
    }

    #[test]
    fn a_share_group_wants_nothing_and_is_where_its_members_are() {
        let interest = interest_of(&[A, B]);
        let filters = interest.filters_generation();
        let change = |member, connected, away| {
            let members = (connected + away > 0).then_some(Value::Members(ShareMembers { connected, away }));
            interest.changed(member, &[(Key::Filter("$share/group/a/+".into()), members)]);
        };
        change(A, 1, 2);
        change(B, 3, 0);
        change(B, 4, 0);
        assert_eq!((interest.is_wanted_elsewhere("a/b"), interest.filters()), (false, 0));
        assert!(interest.shares("a").is_empty() && interest.has_shares());
        let found = || {
            let shares = interest.shares("a/b");
            let brokers = shares.into_iter().flat_map(|share| {
                assert_eq!(share.id, ShareId::derive("group", "a/+"));
                share.brokers
            });
            brokers.map(|broker| (broker.id, broker.members.connected, broker.members.away, broker.cost)).collect::<Vec<_>>()
        };
        assert_eq!(found(), [(A, 1, 2, Some(u32::MAX)), (B, 4, 0, Some(u32::MAX))], "nothing is known of ways");
        interest.set_reachable(Some([B].into()));
        interest.set_costs([(A, 7), (B, 8)].into());
        assert_eq!(found(), [(A, 1, 2, None), (B, 4, 0, Some(8))]);
        assert_eq!(interest.filters_generation(), filters);
        let generation = interest.generation();
        interest.set_costs([(A, 7), (B, 8)].into());
        interest.set_reachable(Some([B].into()));
        assert_eq!(interest.generation(), generation);
        change(B, 0, 0);
        assert_eq!(found(), [(A, 1, 2, None)]);
        interest.joined(A);
        assert!(found().is_empty() && !interest.has_shares() && interest.filters_generation() > filters);
    }

    #[test]
    fn a_filter_counts_until_it_is_gone() {
        let interest = interest_of(&[A, B]);
        let is_wanted = || interest.is_wanted_elsewhere("a/b");
        let change = |member, filter: &str, is_there: bool| {
            interest.changed(member, &[(Key::Filter(filter.into()), is_there.then_some(Value::Present))]);
        };
        change(A, "a/+", true);
        change(B, "a/b", true);
        change(BrokerId(7), "a/b", true);
        assert_eq!((is_wanted(), interest.filters()), (true, 2));
        change(B, "a/b", false);
        assert_eq!((is_wanted(), interest.filters()), (true, 1));
        change(A, "a/+", false);
        change(A, "a/+", false);
        assert_eq!((is_wanted(), interest.filters()), (false, 0));
        change(A, "x", true);
        interest.joined(A);
        interest.known(A);
        assert_eq!((interest.is_wanted_elsewhere("x"), interest.filters()), (false, 0), "that was another life");
    }

    #[test]
    fn who_has_too_many_filters_wants_everything() {
        let interest = interest_of(&[A, B]);
        interest.changed(A, &[(Key::Everything, Some(Value::Present))]);
        assert!(interest.is_wanted_elsewhere("$x") && interest.places(&[A]).is_none() && interest.places(&[B]).is_some());
        interest.joined(A);
        interest.known(A);
        assert!(!interest.is_wanted_elsewhere("$x"));
        interest.changed(A, &[(Key::Everything, Some(Value::Present))]);
        interest.changed(A, &[(Key::Everything, None)]);
        assert!(!interest.is_wanted_elsewhere("$x"));
        interest.changed(A, &[(Key::Everything, Some(Value::Present))]);
        interest.left(A);
        assert!(!interest.is_wanted_elsewhere("$x"));
    }

    #[test]
    fn the_generation_grows_with_changes_and_with_nothing_else() {
        let interest = interest();
        let mut last = interest.generation();
        let mut has_grown = || {
            let now = interest.generation();
            std::mem::replace(&mut last, now) != now
        };
        interest.joined(A);
        assert!(has_grown());
        interest.known(A);
        assert!(has_grown());
        interest.known(A);
        interest.joined(OWN);
        interest.left(B);
        interest.change().remove(A, "x");
        assert!(!has_grown());
        interest.change().insert(A, "x");
        assert!(has_grown());
        interest.change().insert(A, "x");
        assert!(!has_grown(), "the same filter once more");
        interest.left(A);
        assert!(has_grown());
    }

    #[test]
    fn places_are_used_again() {
        let interest = interest_of(&[A, B]);
        interest.change().insert(A, "a");
        interest.change().insert(B, "b");
        interest.left(A);
        let c = BrokerId(9);
        interest.joined(c);
        interest.known(c);
        interest.change().insert(c, "c");
        assert_eq!(interest.known.read().members.len(), 2);
        assert_eq!(interest.wanted("c"), Wanted::By(interest.places(&[c]).unwrap()));
        assert_eq!(interest.wanted("a"), Wanted::By(MemberSet::default()));
        (0..BROKERS_MAX as u64 + 9).for_each(|id| interest.joined(BrokerId(100 + id)));
        assert_eq!(interest.members().0, BROKERS_MAX);
    }

    #[test]
    fn a_rule_that_says_full_wants_it() {
        let interest = Interest::new(OWN, Rules::new(Mode::Interest, [("a/#".into(), Mode::Full)]));
        interest.joined(A);
        interest.known(A);
        assert!(interest.is_wanted_elsewhere("a/b") && !interest.is_wanted_elsewhere("b"));
        assert_eq!(interest.wanted("a"), Wanted::ByRule);
    }
}

//! Whom to be linked with: whom to dial, whom to let in, and which link to give up for it, when a broker may keep `max_links` links.
//!
//! Pure and under virtual time; it opens nothing and reads no clock. It knows the graph from broker records ([`Map`]), its own links as the
//! driver tells them, and whom it could dial. It decides nothing of the tree.
//!
//! **The rule.** A mesh of no more than `max_links` others is fully linked; whoever was not heard of for the life of a record is not counted. In a larger one up to half of a broker's links go to those who
//! stand beside it on *rings*, orders of all brokers by a hash of their ids: one ring holds everybody together, and twice, for two different
//! ways lead along it; its links are as good as random, so that the mesh is shallow. The other half goes to the nearest by round trip. Both ends
//! of a link find by the same rule what it is worth:
//!
//! | worth | the newcomer | what is given up for it |
//! |---|---|---|
//! | [`Worth::Joins`] | nothing leads to it yet | any link without which its far end is still reached, rather one that carries nothing |
//! | [`Worth::Ring`] | stands beside us on a ring | no ring link; only a link without which, with the newcomer, its far end is still reached |
//! | [`Worth::Mends`] | a single link's end would cut it off from us | the same, and its far end stays on two ways |
//! | [`Worth::Told`] | the operator named it | the same, and nothing that carries messages |
//! | [`Worth::Near`] | is clearly nearer ([`NEARER`]) | the same: the farthest |
//!
//! Invariants: never more links than `max_links`; what carries messages is not given up for a shorter way; what is given up leads, as
//! far as is known, to nobody who is then not reached. Records may lag, and two brokers may give up at the same time: whoever is cut off by
//! it is missed from the records' reach at once, and [`Worth::Joins`].
//!
//! Specification: `ARCHITECTURE.md`, "Finding each other".

mod map;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use map::{Blocks, mix, position};
pub use map::{Map, Word};

use crate::ids::BrokerId;
use crate::limits::BROKERS_MAX;

/// A newcomer's round trip is this part of the one that it replaces, at most, and shorter by [`NEARER_BY`]: what trembles moves no links.
pub const NEARER: f64 = 0.7;
/// See [`NEARER`]. What is within this is near.
pub const NEARER_BY: Duration = Duration::from_millis(1);
/// A link that carries nothing may still be about to, for this long.
const SPARE_AGE: Duration = Duration::from_secs(2);
/// A link is not measured against nearer ones before it is so old.
const NEAR_AGE: Duration = Duration::from_secs(10);
/// Links are given up for nearer ones at most this often.
const IMPROVE_INTERVAL: Duration = Duration::from_secs(5);
/// How often somebody is dialled only to learn how far away he is, at first and in the end.
const EXPLORE_INTERVAL_MIN: Duration = Duration::from_secs(2);
const EXPLORE_INTERVAL_MAX: Duration = Duration::from_secs(300);
/// Whoever refused us, or did not answer, is left alone for so long, at first and in the end.
const AVOID_MIN: Duration = Duration::from_secs(2);
const AVOID_MAX: Duration = Duration::from_secs(300);
/// The longest for whoever is missed, or has room: what stood in the way may be gone.
const AVOID_MISSED_MAX: Duration = Duration::from_secs(8);
/// What a single link holds may be about to be mended by a ring.
const MEND_PATIENCE: Duration = Duration::from_secs(5);
/// Of those whom nobody reaches so many at random are dialled at once by the whole mesh, besides what is dialled by those beside whom they
/// would stand on the first ring.
const UNREACHED_AT_RANDOM: f64 = 4.0;
/// Dialled at once to fill free places.
const FILL_AT_ONCE: usize = 2;

/// What does not change.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This broker.
    pub own: BrokerId,
    /// Links that it keeps at once.
    pub links_max: usize,
    /// Whether it chooses its neighbours; if not, it dials those whom the operator named, and lets in others while there is room.
    pub chooses: bool,
    /// For what is left to chance.
    pub seed: u64,
}

/// What a newcomer is worth to us, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth {
    /// Nothing leads to it yet.
    Joins,
    /// It stands beside us on a ring.
    Ring,
    /// The end of a single link would part us.
    Mends,
    /// The operator named it.
    Told,
    /// It is nearer than one of ours.
    Near,
}

/// What is to become of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is room.
    Admit,
    /// This link is given up for it.
    InPlaceOf(BrokerId),
    /// It stays out.
    Refuse,
}

/// One link of ours.
#[derive(Clone, Copy, Debug)]
struct Link {
    rtt: Duration,
    since: Instant,
    /// Messages flow over it.
    carries: bool,
}

/// For how long somebody is left alone.
#[derive(Clone, Copy, Debug)]
struct Avoided {
    since: Instant,
    wait: Duration,
    next: Duration,
}

/// The state of the decision.
#[derive(Debug)]
pub struct Neighbours {
    settings: Settings,
    map: Arc<Map>,
    links: BTreeMap<BrokerId, Link>,
    told: BTreeSet<BrokerId>,
    /// Round trips of all whom we have met.
    rtts: BTreeMap<BrokerId, Duration>,
    avoided: BTreeMap<BrokerId, Avoided>,
    improved_at: Option<Instant>,
    explore_at: Option<Instant>,
    explore_interval: Duration,
    /// Since when somebody hangs on a single link.
    single_since: Option<Instant>,
    random: u64,
}

impl Neighbours {
    /// No links, nobody known.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            map: Arc::default(),
            links: BTreeMap::new(),
            told: BTreeSet::new(),
            rtts: BTreeMap::new(),
            avoided: BTreeMap::new(),
            improved_at: None,
            explore_at: None,
            explore_interval: EXPLORE_INTERVAL_MIN,
            single_since: None,
            random: mix(settings.seed),
        }
    }

    /// What the records say now.
    pub fn learn(&mut self, map: Arc<Map>) {
        self.map = map;
    }

    /// Whom the operator named, as far as their ids are known; whether this broker chooses others besides.
    pub fn tell(&mut self, told: BTreeSet<BrokerId>, chooses: bool) {
        self.told = told;
        self.settings.chooses = chooses;
    }

    /// A link is up, and measured.
    pub fn link_up(&mut self, peer: BrokerId, rtt: Duration, now: Instant) {
        self.measured(peer, rtt);
        self.links.insert(peer, Link { rtt, since: now, carries: false });
        self.avoided.remove(&peer);
        // Its neighbours may be near.
        self.explore_interval = EXPLORE_INTERVAL_MIN;
    }

    /// A link is down.
    pub fn link_down(&mut self, peer: BrokerId) {
        self.links.remove(&peer);
        self.explore_interval = EXPLORE_INTERVAL_MIN;
    }

    /// Whether messages flow over the link with `peer`.
    pub fn set_carries(&mut self, peer: BrokerId, carries: bool) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.carries = carries;
        }
    }

    /// How far away `peer` was found to be at last.
    #[must_use]
    pub fn rtt(&self, peer: BrokerId) -> Option<Duration> {
        self.rtts.get(&peer).copied()
    }

    /// How many links there may be.
    #[must_use]
    pub fn links_max(&self) -> usize {
        self.settings.links_max
    }

    /// Whether this broker chooses its neighbours.
    #[must_use]
    pub fn chooses(&self) -> bool {
        self.settings.chooses
    }

    /// How far away `peer` was found to be.
    pub fn measured(&mut self, peer: BrokerId, rtt: Duration) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.rtt = rtt;
        }
        if self.rtts.len() < BROKERS_MAX || self.rtts.contains_key(&peer) {
            self.rtts.insert(peer, rtt);
        }
    }

    /// `peer` refused us, or could not be reached.
    pub fn in_vain(&mut self, peer: BrokerId, now: Instant) {
        if self.avoided.len() >= BROKERS_MAX && !self.avoided.contains_key(&peer) {
            self.avoided.retain(|_, avoided| now < avoided.since + avoided.wait);
        }
        let wait = self.avoided.get(&peer).map_or(AVOID_MIN, |avoided| avoided.next);
        let next = (wait * 2).min(AVOID_MAX);
        let wait = wait.mul_f64(0.5 + self.chance());
        self.avoided.insert(peer, Avoided { since: now, wait, next });
    }

    /// What is to become of `newcomer`, who has shown who it is and how far away.
    #[must_use]
    pub fn judge(&self, newcomer: BrokerId, rtt: Duration, now: Instant) -> Verdict {
        if self.links.len() < self.settings.links_max || self.links.contains_key(&newcomer) {
            return Verdict::Admit;
        }
        let links: Vec<_> = self.links.keys().copied().collect();
        let blocks = self.map.blocks(self.settings.own, &links);
        let beside = self.beside(&blocks);
        let given_up = self.worths(newcomer, &blocks, &beside).find_map(|worth| self.given_up(newcomer, rtt, worth, &beside, now));
        given_up.map_or(Verdict::Refuse, Verdict::InPlaceOf)
    }

    /// What `newcomer` may be worth: the most that applies, and whether it is near besides.
    fn worths(&self, newcomer: BrokerId, blocks: &Blocks<'_>, beside: &[BrokerId]) -> impl Iterator<Item = Worth> {
        let worths = if blocks.of(newcomer).is_none() {
            [Some(Worth::Joins), None]
        } else if !self.settings.chooses {
            [None, None]
        } else if beside.contains(&newcomer) {
            [Some(Worth::Ring), None]
        } else if !blocks.is_safe(newcomer) {
            [Some(Worth::Mends), Some(Worth::Near)]
        } else if self.told.contains(&newcomer) {
            [Some(Worth::Told), Some(Worth::Near)]
        } else {
            [Some(Worth::Near), None]
        };
        worths.into_iter().flatten()
    }

    fn beside(&self, blocks: &Blocks<'_>) -> Vec<BrokerId> {
        if self.settings.chooses {
            self.map.ring_neighbours(self.settings.own, self.settings.links_max, blocks)
        } else {
            Vec::new()
        }
    }

    /// The link that is given up for a newcomer of this worth.
    fn given_up(&self, newcomer: BrokerId, rtt: Duration, worth: Worth, beside: &[BrokerId], now: Instant) -> Option<BrokerId> {
        if worth == Worth::Near && self.improved_at.is_some_and(|at| now.saturating_duration_since(at) < IMPROVE_INTERVAL) {
            return None;
        }
        let mut spare: Vec<_> =
            self.links.iter().filter(|(peer, link)| self.is_spare(**peer, link, rtt, worth, beside, now)).collect();
        // What carries nothing first, what was asked for last, far before near.
        spare.sort_by_key(|(peer, link)| {
            (link.carries, beside.contains(peer), self.told.contains(peer), std::cmp::Reverse(link.rtt))
        });
        spare.into_iter().map(|(peer, _)| *peer).find(|peer| {
            let joined = Some(newcomer).filter(|_| worth != Worth::Joins);
            let links: Vec<_> = self.links.keys().copied().filter(|other| other != peer).chain(joined).collect();
            let blocks = self.map.blocks(self.settings.own, &links);
            if worth <= Worth::Ring { blocks.of(*peer).is_some() } else { blocks.is_safe(*peer) }
        })
    }

    fn is_spare(&self, peer: BrokerId, link: &Link, rtt: Duration, worth: Worth, beside: &[BrokerId], now: Instant) -> bool {
        let old = now.saturating_duration_since(link.since);
        match worth {
            Worth::Joins => old > SPARE_AGE,
            Worth::Ring | Worth::Mends => old > SPARE_AGE && !beside.contains(&peer),
            Worth::Told => old > SPARE_AGE && !beside.contains(&peer) && !self.told.contains(&peer) && !link.carries,
            Worth::Near => self.is_replaceable(peer, link, beside, now) && is_nearer(rtt, link.rtt),
        }
    }

    fn is_replaceable(&self, peer: BrokerId, link: &Link, beside: &[BrokerId], now: Instant) -> bool {
        let old = now.saturating_duration_since(link.since) > NEAR_AGE;
        old && !link.carries && !beside.contains(&peer) && !self.told.contains(&peer)
    }

    /// A link was given up for a newcomer: shorter ways wait a moment.
    pub fn gave_up(&mut self, now: Instant) {
        self.improved_at = Some(now);
    }

    /// Whom to dial now, of those who are `dialable`. `gone` are those of them of whom nothing was heard for so long that they do not count as part
    /// of the mesh. To be asked about once a second, and when something has changed.
    pub fn choose(&mut self, dialable: &BTreeSet<BrokerId>, gone: &BTreeSet<BrokerId>, now: Instant) -> Vec<BrokerId> {
        let Settings { own, links_max, chooses, .. } = self.settings;
        let map = Arc::clone(&self.map);
        let links: Vec<_> = self.links.keys().copied().collect();
        let blocks = map.blocks(own, &links);
        let reached: BTreeSet<_> = blocks.reached().collect();
        let open = |id: &&BrokerId| **id != own && !self.links.contains_key(*id);
        if !chooses {
            let room = links.len() < links_max;
            let told = self.told.iter().filter(|id| dialable.contains(*id)).filter(open);
            return told.filter(|id| room || !reached.contains(*id)).copied().collect();
        }
        let missed = dialable.iter().filter(|id| **id != own && !reached.contains(id) && !gone.contains(id)).count();
        let is_small = reached.len() + missed <= links_max;
        let beside = self.beside(&blocks);
        let has_room = |id: &BrokerId| map.degree(*id) < map.links_max(*id);
        let ready = |longest: Duration| -> BTreeSet<BrokerId> {
            dialable.iter().filter(open).filter(|id| !self.is_avoided(**id, longest, now)).copied().collect()
        };
        let (missed, ready) = (ready(AVOID_MISSED_MAX), ready(AVOID_MAX * 2));
        let of = |ready| Candidates { map: &map, blocks: &blocks, beside: &beside, ready };
        let (missed, others) = (of(&missed), of(&ready));
        let counted: Vec<_> =
            dialable.iter().filter(open).filter(|id| reached.contains(id) || !gone.contains(id)).copied().collect();
        let mut dial = self.unreached(&missed, &reached);
        if is_small {
            dial.extend(counted);
            dial.sort_unstable();
            dial.dedup();
            return dial;
        }
        dial.extend(beside.iter().filter(|id| missed.ready.contains(id)));
        dial.extend(self.mending(&missed, now));
        dial.extend(self.told.iter().filter(|id| missed.ready.contains(id) && has_room(id)));
        if links.len() < links_max {
            let filling = self.filling(&missed);
            // Nobody has room: somebody may make some for one who is nearer.
            if filling.is_empty() {
                dial.extend(self.nearest(&others, Duration::MAX));
            }
            dial.extend(filling);
        } else {
            dial.extend(self.improving(&others, now));
        }
        dial.extend(self.exploring(&others, now));
        dial.sort_unstable();
        dial.dedup();
        dial
    }

    fn is_avoided(&self, id: BrokerId, longest: Duration, now: Instant) -> bool {
        self.avoided.get(&id).is_some_and(|avoided| now < avoided.since + avoided.wait.min(longest))
    }

    /// Of those whom nothing leads to: who would stand beside us, a few more, and, while we are alone, whom the operator named.
    fn unreached(&mut self, candidates: &Candidates<'_>, reached: &BTreeSet<BrokerId>) -> Vec<BrokerId> {
        let mut missing: Vec<_> = candidates.ready.difference(reached).copied().collect();
        if missing.is_empty() {
            return missing;
        }
        let own = position(self.settings.own, 0);
        let onward = |id: &BrokerId| position(*id, 0).wrapping_sub(own);
        missing.sort_by_key(onward);
        // Who is missed is dialled by those beside whom it would stand, lest all make room for it at once, and by few others.
        let next = reached.iter().map(onward).min().unwrap_or(u64::MAX);
        let last = reached.iter().map(onward).max().unwrap_or(0);
        let mut dial: Vec<_> = missing.first().filter(|id| onward(id) < next).copied().into_iter().collect();
        dial.extend(missing.last().filter(|id| onward(id) > last));
        if reached.is_empty() {
            dial.extend(missing.iter().filter(|id| self.told.contains(id)));
        }
        if self.chance() * ((reached.len() + 1) as f64) < UNREACHED_AT_RANDOM {
            dial.extend(self.pick(&missing));
        }
        dial
    }

    /// One on the far side of a link that nothing but itself holds.
    fn mending(&mut self, candidates: &Candidates<'_>, now: Instant) -> Option<BrokerId> {
        let Candidates { blocks, ready, .. } = candidates;
        if blocks.reached().all(|id| blocks.is_safe(id)) {
            self.single_since = None;
            return None;
        }
        let since = *self.single_since.get_or_insert(now);
        if now.saturating_duration_since(since) < MEND_PATIENCE {
            return None;
        }
        let beyond: Vec<_> = blocks.reached().filter(|id| !blocks.is_safe(*id) && ready.contains(id)).collect();
        self.pick(&beyond)
    }

    /// The nearest who have room, as far as we know how near anybody is; else any.
    fn filling(&mut self, candidates: &Candidates<'_>) -> Vec<BrokerId> {
        let has_room = |id: &BrokerId| candidates.map.degree(*id) < candidates.map.links_max(*id);
        let mut near: Vec<_> = self.estimates(candidates).into_iter().filter(|(id, _)| has_room(id)).collect();
        near.sort_by_key(|(_, rtt)| *rtt);
        let mut dial: Vec<_> = near.into_iter().map(|(id, _)| id).take(FILL_AT_ONCE).collect();
        if dial.len() < FILL_AT_ONCE {
            let any: Vec<_> =
                candidates.ready.iter().filter(|id| has_room(id) && candidates.blocks.of(**id).is_some()).copied().collect();
            dial.extend(self.pick(&any));
        }
        dial
    }

    /// Somebody nearer than our farthest whom that would suit as well.
    fn improving(&mut self, candidates: &Candidates<'_>, now: Instant) -> Option<BrokerId> {
        let soon = self.improved_at.is_some_and(|at| now.saturating_duration_since(at) < IMPROVE_INTERVAL);
        let farthest = self.farthest(candidates.beside, now).filter(|_| !soon)?;
        self.nearest(candidates, farthest)
    }

    fn farthest(&self, beside: &[BrokerId], now: Instant) -> Option<Duration> {
        let replaceable = self.links.iter().filter(|(peer, link)| self.is_replaceable(**peer, link, beside, now));
        replaceable.map(|(_, link)| link.rtt).max()
    }

    /// The nearest, if clearly nearer than `than`, who has room or has a farther link.
    fn nearest(&self, candidates: &Candidates<'_>, than: Duration) -> Option<BrokerId> {
        let Candidates { map, .. } = candidates;
        let suits = |id: BrokerId, rtt| {
            map.degree(id) < map.links_max(id) || (map.links_max(id) > 0 && map.links(id).any(|(_, theirs)| is_nearer(rtt, theirs)))
        };
        let mut near: Vec<_> = self.estimates(candidates).into_iter().filter(|(_, rtt)| is_nearer(*rtt, than)).collect();
        near.sort_by_key(|(_, rtt)| *rtt);
        near.into_iter().find(|(id, rtt)| suits(*id, *rtt)).map(|(id, _)| id)
    }

    /// How far those are of whom anything is known: measured, or by way of a neighbour, which is no less than it takes.
    fn estimates(&self, candidates: &Candidates<'_>) -> BTreeMap<BrokerId, Duration> {
        let is_candidate = |id: &BrokerId| candidates.ready.contains(id) && candidates.blocks.of(*id).is_some();
        let mut found: BTreeMap<_, Duration> = BTreeMap::new();
        for (peer, link) in &self.links {
            for (id, rtt) in candidates.map.links(*peer).filter(|(id, _)| is_candidate(id)) {
                let by_way = link.rtt + rtt;
                found.entry(id).and_modify(|least| *least = by_way.min(*least)).or_insert(by_way);
            }
        }
        found.extend(self.rtts.iter().filter(|(id, _)| is_candidate(id)).map(|(id, rtt)| (*id, *rtt)));
        found
    }

    /// Somebody whose distance nobody knows, now and then, while there is something to gain.
    fn exploring(&mut self, candidates: &Candidates<'_>, now: Instant) -> Option<BrokerId> {
        if self.explore_at.is_some_and(|at| now < at + self.explore_interval) {
            return None;
        }
        self.farthest(candidates.beside, now).filter(|farthest| *farthest > NEARER_BY)?;
        let unknown: Vec<_> = candidates
            .ready
            .iter()
            .filter(|id| !self.rtts.contains_key(id) && candidates.blocks.of(**id).is_some() && candidates.map.links_max(**id) > 0)
            .copied()
            .collect();
        self.explore_at = Some(now);
        self.explore_interval = self.explore_interval.mul_f64(1.5).min(EXPLORE_INTERVAL_MAX);
        self.pick(&unknown)
    }

    fn pick(&mut self, of: &[BrokerId]) -> Option<BrokerId> {
        self.random = mix(self.random);
        let at = self.random.checked_rem(of.len() as u64)?;
        of.get(usize::try_from(at).unwrap_or_default()).copied()
    }

    /// From 0 to 1.
    fn chance(&mut self) -> f64 {
        self.random = mix(self.random);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Among whom is chosen.
struct Candidates<'a> {
    map: &'a Map,
    blocks: &'a Blocks<'a>,
    beside: &'a [BrokerId],
    ready: &'a BTreeSet<BrokerId>,
}

fn is_nearer(newcomer: Duration, present: Duration) -> bool {
    newcomer < present.mul_f64(NEARER) && present.saturating_sub(newcomer) >= NEARER_BY
}

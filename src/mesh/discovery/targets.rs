//! The table of targets: who is thought to be where, who said so, whom it turned out to be, and when it is to be dialled again.
//!
//! A target that is not reached is dialled for ever, with a jittered exponential back-off; eagerly for a while after a link with it was lost:
//! that may be a partition, which heals.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{Found, Place, Source, Target};
use crate::ids::BrokerId;
use crate::limits::{BROKERS_MAX, NEWCOMER_TIME};
use crate::mesh::handshake::HANDSHAKE_TIMEOUT;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// An address may be silent for this long.
const PATIENCE: Duration = Duration::from_secs(3);
// A broker that comes back must not found a mesh of its own while its neighbours are about to reach it.
const _: () = assert!(NEWCOMER_TIME.as_secs() > BACKOFF_MAX.as_secs() + PATIENCE.as_secs() + HANDSHAKE_TIMEOUT.as_secs());
/// A link that was lost is redialled eagerly for this long.
const EAGER_FOR: Duration = Duration::from_secs(60);
const EAGER_BACKOFF_MAX: Duration = Duration::from_millis(200);
const EAGER_PATIENCE_MIN: Duration = Duration::from_millis(600);
/// Round trips of the lost link that an eager attempt is given.
const EAGER_PATIENCE_RTTS: u32 = 6;
/// A link that lived shorter than this did not mend anything: the back-off goes on.
const LIVED: Duration = Duration::from_secs(2);
/// Whom we took for ourselves may be another by now.
const OURSELVES_FOR: Duration = Duration::from_secs(60);
/// Targets at once.
const TARGETS_MAX: usize = 2 * BROKERS_MAX;
/// Dialled at once.
const DIALS_MAX: usize = 64;

/// What is known of one target.
#[derive(Debug)]
struct Kept {
    /// By source, so that a source can take back what it said.
    places: BTreeMap<Source, Vec<Place>>,
    /// Who it is: told, or met there, and when.
    id: Option<BrokerId>,
    met_at: Instant,
    backoff: Duration,
    due: Instant,
    is_dialled: bool,
    /// Since when there is a link with it.
    linked_since: Option<Instant>,
    lost_at: Option<Instant>,
}

/// One attempt to be made.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) target: Target,
    pub(super) places: Vec<Place>,
    pub(super) patience: Duration,
}

/// The table.
#[derive(Debug)]
pub(super) struct Targets {
    own: BrokerId,
    kept: BTreeMap<Target, Kept>,
}

impl Targets {
    pub(super) fn new(own: BrokerId) -> Self {
        Self { own, kept: BTreeMap::new() }
    }

    /// Forgets what sources said that are not asked any more.
    pub(super) fn retain_sources(&mut self, is_asked: impl Fn(&Source) -> bool) {
        self.kept.values_mut().for_each(|kept| kept.places.retain(|source, _| is_asked(source)));
        self.kept.retain(|_, kept| !kept.places.is_empty());
    }

    /// A source says what it knows, in place of what it said before.
    pub(super) fn hear(&mut self, Found { source, targets }: Found, now: Instant) {
        let mut said: BTreeMap<Target, Vec<Place>> = targets.into_iter().collect();
        self.kept.retain(|target, kept| {
            match said.remove(target) {
                Some(places) => drop(kept.places.insert(source.clone(), places)),
                None => drop(kept.places.remove(&source)),
            }
            !kept.places.is_empty()
        });
        for (target, places) in said {
            if self.kept.len() >= TARGETS_MAX {
                break;
            }
            let id = if let Target::Broker(id) = target { Some(id) } else { None };
            let kept = Kept {
                places: BTreeMap::from([(source.clone(), places)]),
                id,
                met_at: now,
                backoff: BACKOFF_MIN,
                due: now,
                is_dialled: false,
                linked_since: None,
                lost_at: None,
            };
            self.kept.insert(target, kept);
        }
    }

    /// Who is thought to live where nobody was met yet.
    pub(super) fn suppose(&mut self, residents: &BTreeMap<&Place, BrokerId>, now: Instant) {
        for (target, kept) in &mut self.kept {
            let Target::At(place) = target else { continue };
            if kept.id.is_none() {
                (kept.id, kept.met_at) = (residents.get(place).copied(), now);
            }
        }
    }

    /// Everybody who could be dialled, by id; whom the operator named.
    pub(super) fn known(&self) -> (BTreeSet<BrokerId>, BTreeSet<BrokerId>) {
        let dialable = self.kept.values().filter_map(|kept| kept.id).collect();
        let named = self.kept.values().filter(|kept| kept.places.contains_key(&Source::Static));
        (dialable, named.filter_map(|kept| kept.id).collect())
    }

    /// With whom there are links now.
    pub(super) fn note_links(&mut self, linked: &BTreeSet<BrokerId>, now: Instant) {
        for kept in self.kept.values_mut() {
            let is_linked = kept.id.is_some_and(|id| linked.contains(&id));
            match kept.linked_since {
                None if is_linked => (kept.linked_since, kept.lost_at) = (Some(now), None),
                Some(since) if !is_linked => {
                    if now.saturating_duration_since(since) > LIVED {
                        kept.backoff = BACKOFF_MIN;
                    }
                    (kept.linked_since, kept.lost_at) = (None, Some(now));
                    kept.due = now + jitter(kept.backoff);
                }
                _ => {}
            }
        }
    }

    /// What is to be dialled now: where nobody was met, and who is `wanted`. `rtt` is how far away somebody was.
    pub(super) fn due(
        &mut self,
        wanted: &BTreeSet<BrokerId>,
        rtt: impl Fn(BrokerId) -> Option<Duration>,
        now: Instant,
    ) -> Vec<Attempt> {
        let dialled = self.kept.values().filter(|kept| kept.is_dialled);
        let mut busy: BTreeSet<_> = dialled.clone().filter_map(|kept| kept.id).collect();
        let room = DIALS_MAX.saturating_sub(dialled.count());
        let own = self.own;
        let mut attempts = Vec::new();
        for (target, kept) in self.kept.iter_mut().filter(|(_, kept)| !kept.is_dialled && kept.due <= now) {
            let wants = match kept.id {
                None => true,
                Some(id) if id == own => now.saturating_duration_since(kept.met_at) > OURSELVES_FOR,
                Some(id) => kept.linked_since.is_none() && wanted.contains(&id) && !busy.contains(&id),
            };
            if !wants || attempts.len() >= room {
                continue;
            }
            busy.extend(kept.id);
            kept.is_dialled = true;
            let eager_rtt =
                kept.lost_at.filter(|at| now.saturating_duration_since(*at) < EAGER_FOR).map(|_| kept.id.and_then(&rtt));
            let patience = eager_rtt.map_or(PATIENCE, |rtt| EAGER_PATIENCE_MIN.max(rtt.unwrap_or_default() * EAGER_PATIENCE_RTTS));
            let mut places = Vec::new();
            for place in kept.places.values().flatten() {
                if !places.contains(place) {
                    places.push(place.clone());
                }
            }
            attempts.push(Attempt { target: target.clone(), places, patience });
        }
        attempts
    }

    /// An attempt is over; `met` is who was there, whatever came of it.
    pub(super) fn attempted(&mut self, target: &Target, met: Option<BrokerId>, now: Instant) {
        let Some(kept) = self.kept.get_mut(target) else { return };
        kept.is_dialled = false;
        if let (Some(met), Target::At(_)) = (met, target) {
            (kept.id, kept.met_at) = (Some(met), now);
        }
        kept.due = now + jitter(kept.backoff);
        let is_eager = kept.lost_at.is_some_and(|at| now.saturating_duration_since(at) < EAGER_FOR);
        kept.backoff = (kept.backoff * 2).min(if is_eager { EAGER_BACKOFF_MAX } else { BACKOFF_MAX });
    }

    /// When something may be due next, after `now`.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.kept
            .values()
            .filter(|kept| !kept.is_dialled && kept.linked_since.is_none())
            .map(|kept| kept.due)
            .filter(|due| *due > now)
            .min()
    }
}

/// Somewhere in the second half of `longest`, so that brokers that lost each other do not meet in step.
fn jitter(longest: Duration) -> Duration {
    longest.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const OWN: BrokerId = BrokerId(1);

    fn at(port: u16) -> (Target, Vec<Place>) {
        let place = Place::Address(([192, 0, 2, 1], port).into());
        (Target::At(place.clone()), vec![place])
    }

    fn found(source: Source, ports: &[u16]) -> Found {
        Found { source, targets: ports.iter().map(|port| at(*port)).collect() }
    }

    fn dialled(targets: &mut Targets, wanted: &[u64], now: Instant) -> Vec<Target> {
        let wanted = wanted.iter().map(|id| BrokerId(*id)).collect();
        targets.due(&wanted, |_| None, now).into_iter().map(|attempt| attempt.target).collect()
    }

    #[test]
    fn a_source_takes_back_only_what_itself_said() {
        let (mut targets, now) = (Targets::new(OWN), clock::now());
        let name = Source::Dns("a.example".parse().unwrap());
        targets.hear(found(Source::Static, &[1, 2]), now);
        targets.hear(found(name.clone(), &[2, 3]), now);
        targets.hear(found(name.clone(), &[4]), now);
        assert_eq!(dialled(&mut targets, &[], now), [at(1).0, at(2).0, at(4).0]);
        targets.retain_sources(|source| *source == name);
        assert_eq!(targets.kept.len(), 1);
    }

    #[test]
    fn who_was_met_is_dialled_if_wanted_and_once_whatever_it_is_called() {
        let (mut targets, now) = (Targets::new(OWN), clock::now());
        targets.hear(found(Source::Static, &[1, 2]), now);
        assert_eq!(dialled(&mut targets, &[], now).len(), 2);
        assert!(dialled(&mut targets, &[], now).is_empty(), "being dialled");
        targets.attempted(&at(1).0, Some(BrokerId(7)), now);
        targets.attempted(&at(2).0, Some(OWN), now);
        let gossip = |id, port| Found { source: Source::Gossip, targets: vec![(Target::Broker(BrokerId(id)), at(port).1)] };
        targets.hear(gossip(7, 9), now);
        let later = now + BACKOFF_MAX;
        assert!(dialled(&mut targets, &[8], later).is_empty());
        assert_eq!(dialled(&mut targets, &[7], later).len(), 1, "it has two entries");
        targets.note_links(&BTreeSet::from([BrokerId(7)]), later);
        targets.attempted(&at(1).0, Some(BrokerId(7)), later);
        assert!(dialled(&mut targets, &[7], later + BACKOFF_MAX).is_empty(), "linked");
        // What was ourselves may be another one by now.
        assert_eq!(dialled(&mut targets, &[], later + OURSELVES_FOR), [at(2).0]);
        assert_eq!(targets.known().1, BTreeSet::from([OWN, BrokerId(7)]));
    }

    #[test]
    fn the_back_off_grows_and_a_lost_link_is_redialled_eagerly() {
        let (mut targets, mut now) = (Targets::new(OWN), clock::now());
        targets.hear(found(Source::Static, &[1]), now);
        let target = at(1).0;
        let fail = |targets: &mut Targets, now: &mut Instant| {
            *now = targets.next_due(*now - Duration::from_nanos(1)).unwrap();
            let attempt = targets.due(&BTreeSet::from([BrokerId(7)]), |_| None, *now).pop().unwrap();
            targets.attempted(&target, Some(BrokerId(7)), *now);
            (targets.next_due(*now).unwrap() - *now, attempt.patience)
        };
        let waits: Vec<_> = (0..12).map(|_| fail(&mut targets, &mut now)).collect();
        assert!(waits[0].0 <= BACKOFF_MIN && waits[11].0 > BACKOFF_MAX / 3 && waits[11].1 == PATIENCE, "{waits:?}");
        targets.note_links(&BTreeSet::from([BrokerId(7)]), now);
        now += LIVED * 2;
        targets.note_links(&BTreeSet::new(), now);
        let waits: Vec<_> = (0..12).map(|_| fail(&mut targets, &mut now)).collect();
        assert!(waits.iter().all(|(wait, patience)| *wait <= EAGER_BACKOFF_MAX && *patience == EAGER_PATIENCE_MIN), "{waits:?}");
    }

    #[test]
    fn there_are_never_more_than_can_be_held() {
        let (mut targets, now) = (Targets::new(OWN), clock::now());
        let ports: Vec<_> = (1..=u16::MAX).collect();
        targets.hear(found(Source::Mdns, &ports), now);
        assert_eq!(targets.kept.len(), TARGETS_MAX);
        assert_eq!(dialled(&mut targets, &[], now).len(), DIALS_MAX);
    }
}

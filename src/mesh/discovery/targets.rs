//! The table of targets: who is thought to be where, who said so, whom it turned out to be, and when it is to be dialled again.
//!
//! A target that is not reached is dialled for ever, with a jittered exponential back-off; eagerly for a while after a link with it was lost:
//! that may be a partition, which heals.
//!
//! Only a certificate says who lives at an address: what records tell of addresses keeps nobody from being dialled at one that was configured.
//! Somebody of whom only mDNS tells, which anybody may send, is dialled in a few places of their own and counts for nothing, until a
//! certificate or a record has shown that there is such a broker.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Found, Place, Source, Target, canonical};
use crate::ids::BrokerId;
use crate::limits::{BROKERS_MAX, NEWCOMER_TIME};
use crate::mesh::driver::RECORD_LIFE;
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
/// Whoever was met at an address may live elsewhere by now, and another there.
const RESIDES_FOR: Duration = Duration::from_secs(60);
/// Targets at once.
const TARGETS_MAX: usize = 2 * BROKERS_MAX;
/// Dialled at once.
const DIALS_MAX: usize = 64;
/// Of these, those who may not be there at all.
const RUMOURS_MAX: usize = 16;
/// Places of one attempt; the next goes on with those that follow.
const PLACES_AT_ONCE: usize = 4;

/// What is known of one target.
#[derive(Debug)]
struct Kept {
    /// By source, so that a source can take back what it said.
    places: BTreeMap<Source, Vec<Place>>,
    /// Who it is: told, or met there, and when.
    id: Option<BrokerId>,
    met_at: Instant,
    /// When somebody of that id was met or told of last.
    heard_at: Option<Instant>,
    /// The place where the next attempt begins.
    next_place: usize,
    backoff: Duration,
    due: Instant,
    is_dialled: bool,
    /// Since when there is a link with it.
    linked_since: Option<Instant>,
    lost_at: Option<Instant>,
}

impl Kept {
    /// Whether it is only said that there is such a broker.
    fn is_rumour(&self, target: &Target) -> bool {
        matches!(target, Target::Broker(_)) && self.heard_at.is_none()
    }

    /// The places of one attempt, without repetition.
    fn next_places(&mut self) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        for place in self.places.values().flatten() {
            if !places.contains(place) {
                places.push(place.clone());
            }
        }
        if places.len() > PLACES_AT_ONCE {
            let begin = self.next_place % places.len();
            places.rotate_left(begin);
            places.truncate(PLACES_AT_ONCE);
            self.next_place = begin + PLACES_AT_ONCE;
        }
        places
    }
}

/// Who could be dialled.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) dialable: BTreeSet<BrokerId>,
    /// Of these, whom the operator named.
    pub(super) named: BTreeSet<BrokerId>,
    /// Of these, who was neither met nor told of within the life of a record.
    pub(super) gone: BTreeSet<BrokerId>,
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
                heard_at: None,
                next_place: 0,
                backoff: BACKOFF_MIN,
                due: now,
                is_dialled: false,
                linked_since: None,
                lost_at: None,
            };
            self.kept.insert(target, kept);
        }
    }

    /// Of whom there are records now.
    pub(super) fn note_records(&mut self, told: &BTreeSet<BrokerId>, now: Instant) {
        let told_of = self.kept.values_mut().filter(|kept| kept.id.is_some_and(|id| told.contains(&id)));
        told_of.for_each(|kept| kept.heard_at = Some(now));
    }

    /// Everybody who could be dialled, by id.
    pub(super) fn known(&self, now: Instant) -> Known {
        let mut known = Known::default();
        let mut present = BTreeSet::new();
        for kept in self.kept.values() {
            let (Some(id), Some(heard_at)) = (kept.id, kept.heard_at) else { continue };
            known.dialable.insert(id);
            if kept.places.contains_key(&Source::Static) {
                known.named.insert(id);
            }
            if now.saturating_duration_since(heard_at) < RECORD_LIFE {
                present.insert(id);
            }
        }
        known.gone = known.dialable.difference(&present).copied().collect();
        known
    }

    /// With whom there are links now, and where they are: whoever is linked from an address is met there.
    pub(super) fn note_links(&mut self, linked: &BTreeMap<BrokerId, SocketAddr>, now: Instant) {
        let residents: BTreeMap<_, _> = linked.iter().map(|(id, address)| (canonical(*address), *id)).collect();
        for (target, kept) in &mut self.kept {
            if let Target::At(Place::Address(address)) = target
                && let Some(id) = residents.get(&canonical(*address))
            {
                (kept.id, kept.met_at) = (Some(*id), now);
            }
            let is_linked = kept.id.is_some_and(|id| linked.contains_key(&id));
            if is_linked {
                kept.heard_at = Some(now);
            }
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
        let dialled = self.kept.iter().filter(|(_, kept)| kept.is_dialled);
        let mut busy: BTreeSet<_> = dialled.clone().filter_map(|(_, kept)| kept.id).collect();
        let mut rumours = RUMOURS_MAX.saturating_sub(dialled.clone().filter(|(target, kept)| kept.is_rumour(target)).count());
        let room = DIALS_MAX.saturating_sub(dialled.count());
        let own = self.own;
        let mut attempts = Vec::new();
        let mut due: Vec<_> = self.kept.iter_mut().filter(|(_, kept)| !kept.is_dialled && kept.due <= now).collect();
        // First who was not tried yet, then who has waited longest, so that everybody has a turn.
        due.sort_by_key(|(_, kept)| (kept.backoff > BACKOFF_MIN, kept.due));
        for (target, kept) in due {
            let is_stale = matches!(target, Target::At(_)) && now.saturating_duration_since(kept.met_at) > RESIDES_FOR;
            let is_rumour = kept.is_rumour(target);
            let wants = match kept.id {
                None => true,
                // Somebody else may be there by now.
                Some(_) if is_stale => true,
                Some(id) if id == own || busy.contains(&id) || kept.linked_since.is_some() => false,
                Some(_) if is_rumour => rumours > 0,
                Some(id) => wanted.contains(&id),
            };
            if !wants || attempts.len() >= room {
                continue;
            }
            rumours -= usize::from(is_rumour);
            busy.extend(kept.id);
            kept.is_dialled = true;
            let eager_rtt =
                kept.lost_at.filter(|at| now.saturating_duration_since(*at) < EAGER_FOR).map(|_| kept.id.and_then(&rtt));
            let patience = eager_rtt.map_or(PATIENCE, |rtt| EAGER_PATIENCE_MIN.max(rtt.unwrap_or_default() * EAGER_PATIENCE_RTTS));
            attempts.push(Attempt { target: target.clone(), places: kept.next_places(), patience });
        }
        attempts
    }

    /// An attempt is over; `met` is who was there, whatever came of it. Says whom it was about, if there is such a broker.
    pub(super) fn attempted(&mut self, target: &Target, met: Option<BrokerId>, now: Instant) -> Option<BrokerId> {
        let kept = self.kept.get_mut(target)?;
        kept.is_dialled = false;
        match (target, met) {
            (Target::At(_), Some(met)) => (kept.id, kept.met_at, kept.heard_at) = (Some(met), now, Some(now)),
            (Target::Broker(id), Some(met)) if *id == met => kept.heard_at = Some(now),
            _ => {}
        }
        kept.due = now + jitter(kept.backoff);
        let is_eager = kept.lost_at.is_some_and(|at| now.saturating_duration_since(at) < EAGER_FOR);
        kept.backoff = (kept.backoff * 2).min(if is_eager { EAGER_BACKOFF_MAX } else { BACKOFF_MAX });
        match target {
            Target::At(_) => met,
            Target::Broker(id) => kept.heard_at.map(|_| *id),
        }
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

    fn found_by(source: Source, brokers: impl IntoIterator<Item = (u64, u16)>) -> Found {
        let targets = brokers.into_iter().map(|(id, port)| (Target::Broker(BrokerId(id)), at(port).1));
        Found { source, targets: targets.collect() }
    }

    fn linked(id: u64, port: u16) -> BTreeMap<BrokerId, SocketAddr> {
        BTreeMap::from([(BrokerId(id), ([192, 0, 2, 1], port).into())])
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
        targets.hear(found_by(Source::Gossip, [(7, 9)]), now);
        targets.note_records(&BTreeSet::from([BrokerId(7)]), now);
        let later = now + BACKOFF_MAX;
        assert!(dialled(&mut targets, &[8], later).is_empty());
        assert_eq!(dialled(&mut targets, &[7], later).len(), 1, "it has two entries");
        targets.note_links(&linked(7, 1), later);
        targets.attempted(&at(1).0, Some(BrokerId(7)), later);
        assert!(dialled(&mut targets, &[7], later + BACKOFF_MAX).is_empty(), "linked");
        // What was ourselves may be another one by now; who is linked from there is not.
        targets.note_links(&linked(7, 1), later + RESIDES_FOR);
        assert_eq!(dialled(&mut targets, &[], later + RESIDES_FOR), [at(2).0]);
        assert_eq!(targets.known(later).named, BTreeSet::from([OWN, BrokerId(7)]));
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
        targets.note_links(&linked(7, 1), now);
        now += LIVED * 2;
        targets.note_links(&BTreeMap::new(), now);
        let waits: Vec<_> = (0..12).map(|_| fail(&mut targets, &mut now)).collect();
        assert!(waits.iter().all(|(wait, patience)| *wait <= EAGER_BACKOFF_MAX && *patience == EAGER_PATIENCE_MIN), "{waits:?}");
    }

    #[test]
    fn what_others_say_of_an_address_keeps_it_from_no_dial() {
        let (mut targets, now) = (Targets::new(OWN), clock::now());
        targets.hear(found(Source::Static, &[1, 2]), now);
        // Somebody who is linked from elsewhere says that it lives there.
        targets.hear(found_by(Source::Gossip, [(7, 1)]), now);
        targets.note_records(&BTreeSet::from([BrokerId(7)]), now);
        targets.note_links(&linked(7, 99), now);
        assert_eq!(dialled(&mut targets, &[], now), [at(1).0, at(2).0]);
        assert!(targets.known(now).named.is_empty());
        // It did live at the other, and was dialled there, but has moved: somebody else may be there in a minute.
        targets.attempted(&at(2).0, Some(BrokerId(7)), now);
        let mut later = now + RESIDES_FOR;
        targets.note_links(&linked(7, 99), later);
        assert!(dialled(&mut targets, &[], later).is_empty());
        later += Duration::from_nanos(1);
        assert_eq!(dialled(&mut targets, &[], later), [at(2).0]);
        targets.attempted(&at(2).0, None, later);
        assert_eq!(dialled(&mut targets, &[], later + BACKOFF_MAX), [at(2).0], "for as long as nobody was met");
    }

    #[test]
    fn rumours_count_for_nothing_and_leave_places_to_others() {
        let (mut targets, now) = (Targets::new(OWN), clock::now());
        targets.hear(found_by(Source::Mdns, (0..512).map(|n| (1_000 + n, 1))), now);
        let first = dialled(&mut targets, &[], now);
        assert_eq!(first.len(), RUMOURS_MAX);
        assert!(targets.known(now).dialable.is_empty());
        for target in &first {
            assert_eq!(targets.attempted(target, None, now), None, "nobody to be avoided");
        }
        // Newcomers come first, and all have their turn.
        let mut later = now + BACKOFF_MAX;
        targets.hear(found_by(Source::Mdns, (0..513).map(|n| (1_000 + n, 1))), later);
        let mut tried: BTreeSet<_> = first.into_iter().collect();
        while tried.len() < 513 {
            let round = dialled(&mut targets, &[], later);
            assert!(round.iter().any(|target| !tried.contains(target)), "{} tried", tried.len());
            for target in &round {
                targets.attempted(target, None, later);
            }
            tried.extend(round);
            later += BACKOFF_MAX;
        }
        // Who was met, or told of by a record, is somebody.
        targets.attempted(&Target::Broker(BrokerId(1_000)), Some(BrokerId(1_000)), later);
        targets.note_records(&BTreeSet::from([BrokerId(1_001)]), later);
        let known = targets.known(later);
        assert_eq!((known.dialable.len(), known.gone.len()), (2, 0));
        let known = targets.known(later + RECORD_LIFE);
        assert_eq!((known.dialable.len(), known.gone.len()), (2, 2));
    }

    #[test]
    fn an_attempt_has_few_places_and_the_next_goes_on() {
        let (mut targets, mut now) = (Targets::new(OWN), clock::now());
        let target = Target::Broker(BrokerId(7));
        let places: Vec<_> = (1..=10).map(|port| at(port).1).collect();
        targets.hear(Found { source: Source::Gossip, targets: vec![(target.clone(), places.concat())] }, now);
        targets.note_records(&BTreeSet::from([BrokerId(7)]), now);
        let mut tried = Vec::new();
        for _ in 0..3 {
            let attempt = targets.due(&BTreeSet::from([BrokerId(7)]), |_| None, now).pop().unwrap();
            assert_eq!(attempt.places.len(), PLACES_AT_ONCE);
            tried.extend(attempt.places);
            // Another was met there: it was about this one all the same.
            assert_eq!(targets.attempted(&target, Some(BrokerId(8)), now), Some(BrokerId(7)));
            now += BACKOFF_MAX;
        }
        assert!(places.concat().iter().all(|place| tried.contains(place)));
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

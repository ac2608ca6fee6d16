//! Which broker of a mesh serves a bridge that several have: one of those that reach each other.
//!
//! Each tells the others in its register that it has the bridge, and whether it serves it. Who serves it goes on, whoever comes; where nobody does,
//! it is who still has the bridge's session, then the lowest priority, then the lowest id. Who served it and is gone is waited for: its session is on its
//! disk; so is whoever may serve it where this broker reaches nobody at all. Meanwhile the next one gathers what is published, so that it does not begin with nothing.
//!
//! Who leaves serves it no more, and its session, with what is in flight, goes to the next one before that begins: nothing is missed, and nothing comes twice.
//!
//! Pure: what the others say and whom this broker reaches goes in with the time.
//!
//! Invariant: among brokers that reach each other and have told each other, one serves. Those that do not reach each other, as in a partition, may
//! serve a bridge both; when they meet again, the one that has served for longer goes on. Who begins though another may have served since it did
//! is in doubt of what it has in flight.

use std::time::{Duration, Instant};

use crate::ids::BrokerId;
use crate::shared::register::BridgeClaim;

/// That nobody serves the bridge must be so for this long: who was just started, here or there, is heard first. Who reaches nobody at all waits as
/// long as for one that is missed: there may be one that serves it.
const SETTLE: Duration = Duration::from_secs(3);

/// What this broker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing; a session that is there waits.
    Wait,
    /// Another serves the bridge: a session here is of the past, and would keep what the other has carried already.
    Yield,
    /// Let messages wait in the session, but do not connect.
    Gather,
    /// Connect.
    Serve,
    /// The broker stops, or the bridge is told something else: the session here waits.
    Stop,
    /// There is to be no such bridge any more.
    Remove,
}

impl Turn {
    /// Whether nothing comes after it.
    pub(super) fn is_last(self) -> bool {
        matches!(self, Self::Stop | Self::Remove)
    }
}

/// Another broker with the bridge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other {
    pub(super) id: BrokerId,
    pub(super) claim: BridgeClaim,
    pub(super) is_reachable: bool,
}

impl Other {
    fn serves(&self) -> bool {
        self.claim.since_ms > 0
    }
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Election {
    own: BrokerId,
    takeover_after: Duration,
    /// Whether there may be others of which nothing was heard in this life.
    knows_others: bool,
    /// What others are told.
    pub(super) claim: BridgeClaim,
    /// Since when nobody serves it because who did cannot be reached.
    orphaned_at: Option<Instant>,
    /// Since when nobody serves it, and nobody is missed.
    vacant_at: Option<Instant>,
    /// Reached nobody then.
    was_alone: bool,
    /// It began to serve though another may have served meanwhile: what is in flight is in doubt.
    pub(super) is_in_doubt: bool,
}

impl Election {
    pub(super) fn new(own: BrokerId, claim: BridgeClaim, takeover_after: Duration, knows_others: bool) -> Self {
        Self { own, takeover_after, knows_others, claim, orphaned_at: None, vacant_at: None, was_alone: false, is_in_doubt: false }
    }

    /// What is to be done now; `is_alone`: no other broker is reached at all. `unix_ms` is the time by the clock, milliseconds.
    pub(super) fn decide(&mut self, others: &[Other], is_alone: bool, unix_ms: u64, now: Instant) -> Turn {
        // Whoever is reached from now on has yet to be heard.
        if self.was_alone && !is_alone {
            self.vacant_at = None;
        }
        self.was_alone = is_alone;
        let turn = self.turn(others, now);
        match turn {
            Turn::Serve if self.claim.since_ms == 0 => {
                self.claim.since_ms = unix_ms.max(1);
                self.claim.has_session = true;
                self.is_in_doubt = self.orphaned_at.is_some() || (is_alone && self.knows_others);
            }
            Turn::Yield => {
                self.claim.since_ms = 0;
                self.claim.has_session = false;
            }
            _ => {}
        }
        turn
    }

    /// This broker is to leave: another is to serve the bridge, and begins once it has the session, or this one says that it has none to give (`is_over`).
    pub(super) fn resign(&mut self, others: &[Other], is_over: bool) -> Turn {
        self.claim.since_ms = 0;
        self.claim.has_session &= !is_over && !others.iter().any(|other| other.is_reachable && other.claim.has_session);
        (self.orphaned_at, self.vacant_at) = (None, None);
        Turn::Wait
    }

    /// Who is to have the session of this broker, which leaves, of those who stay.
    pub(super) fn heir(others: &[Other], stays: impl Fn(BrokerId) -> bool) -> Option<BrokerId> {
        let heirs = others.iter().filter(|other| other.is_reachable && stays(other.id));
        heirs.min_by_key(|other| (other.claim.priority, other.id)).map(|other| other.id)
    }

    /// Of whom this broker may have the session, before it serves: who had it, and leaves.
    pub(super) fn testator(&self, others: &[Other], stays: impl Fn(BrokerId) -> bool) -> Option<BrokerId> {
        let is_served = self.claim.since_ms > 0 || others.iter().any(|other| other.is_reachable && other.serves());
        let leaves = |other: &&Other| other.is_reachable && other.claim.has_session && !stays(other.id);
        others.iter().filter(|_| !is_served).find(leaves).map(|other| other.id)
    }

    fn turn(&mut self, others: &[Other], now: Instant) -> Turn {
        let reachable = || others.iter().filter(|other| other.is_reachable);
        let (own, since_ms) = (self.own, self.claim.since_ms);
        let is_before = |other: &Other| (other.claim.since_ms, other.id) < (since_ms, own);
        if reachable().any(|other| other.serves() && (since_ms == 0 || is_before(other))) {
            (self.orphaned_at, self.vacant_at) = (None, None);
            return Turn::Yield;
        }
        if since_ms > 0 {
            return Turn::Serve;
        }
        let rank = |claim: &BridgeClaim, id: BrokerId| (!claim.has_session, claim.priority, id);
        let is_next = reachable().all(|other| rank(&self.claim, own) < rank(&other.claim, other.id));
        let is_orphaned = others.iter().any(|other| !other.is_reachable && other.serves());
        let waited = |since: Instant| now.saturating_duration_since(since);
        if !is_orphaned {
            self.orphaned_at = None;
            let vacant_at = *self.vacant_at.get_or_insert(now);
            let patience = if self.was_alone { self.takeover_after.max(SETTLE) } else { SETTLE };
            return if is_next && waited(vacant_at) >= patience { Turn::Serve } else { Turn::Wait };
        }
        self.vacant_at = None;
        let orphaned_at = *self.orphaned_at.get_or_insert(now);
        match is_next {
            true if waited(orphaned_at) >= self.takeover_after => Turn::Serve,
            true => Turn::Gather,
            false => Turn::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const PATIENCE: Duration = Duration::from_secs(30);

    struct One {
        election: Election,
        turn: Turn,
    }

    /// Brokers with the bridge, their ids from 1 on; `reach` says who reaches whom.
    struct Mesh {
        brokers: Vec<One>,
        start: Instant,
        now_s: u64,
    }

    impl Mesh {
        fn new(priorities: &[u16]) -> Self {
            let start = clock::now();
            let one = |(index, priority): (usize, &u16)| {
                let claim = BridgeClaim { priority: *priority, ..BridgeClaim::default() };
                One { election: Election::new(BrokerId(index as u64 + 1), claim, PATIENCE, false), turn: Turn::Wait }
            };
            Self { brokers: priorities.iter().enumerate().map(one).collect(), start, now_s: 0 }
        }

        fn now(&self) -> Instant {
            self.start + Duration::from_secs(self.now_s)
        }

        fn restart(&mut self, index: usize) {
            let BridgeClaim { priority, has_session, .. } = self.brokers[index].election.claim;
            let claim = BridgeClaim { priority, since_ms: 0, has_session };
            self.brokers[index] =
                One { election: Election::new(BrokerId(index as u64 + 1), claim, PATIENCE, true), turn: Turn::Wait };
        }

        /// Lets `seconds` go by; brokers of different parts do not reach each other, and who is in none is down.
        fn pass(&mut self, seconds: u64, parts: &[&[usize]]) -> Vec<Turn> {
            for _ in 0..seconds {
                self.now_s += 1;
                let claims: Vec<_> = self.brokers.iter().map(|one| one.election.claim).collect();
                for part in parts {
                    for index in *part {
                        let others: Vec<_> = (0..claims.len())
                            .filter(|other| other != index)
                            .map(|other| Other {
                                id: BrokerId(other as u64 + 1),
                                claim: claims[other],
                                is_reachable: part.contains(&other),
                            })
                            .collect();
                        let now = self.now();
                        let one = &mut self.brokers[*index];
                        one.turn = one.election.decide(&others, part.len() == 1, 1_000 * self.now_s, now);
                    }
                }
            }
            self.brokers.iter().map(|one| one.turn).collect()
        }
    }

    use Turn::{Gather, Serve, Wait, Yield};

    #[test]
    fn the_lowest_begins_and_whoever_serves_goes_on() {
        let mut mesh = Mesh::new(&[100, 50, 100]);
        assert_eq!(mesh.pass(1, &[&[0, 1, 2]]), [Wait, Wait, Wait]);
        assert_eq!(mesh.pass(4, &[&[0, 1, 2]]), [Yield, Serve, Yield]);
        // A better one that comes later changes nothing.
        let mut mesh = Mesh::new(&[100, 50, 200]);
        assert_eq!(mesh.pass(6, &[&[0, 2]]), [Serve, Wait, Yield]);
        mesh.restart(1);
        assert_eq!(mesh.pass(6, &[&[0, 1, 2]]), [Serve, Yield, Yield]);
    }

    #[test]
    fn who_starts_cut_off_takes_nothing_from_whoever_serves() {
        let mut mesh = Mesh::new(&[50, 100]);
        mesh.pass(6, &[&[0, 1]]);
        mesh.pass(40, &[&[1]]);
        mesh.restart(0);
        // Of its first life it knows nothing but that there are others.
        let claims = |mesh: &mut Mesh, seconds: u64| {
            mesh.now_s += seconds;
            let now = mesh.now();
            mesh.brokers[0].election.decide(&[], true, 1, now)
        };
        assert_eq!((claims(&mut mesh, 0), claims(&mut mesh, 29)), (Wait, Wait));
        // Whom it reaches then is heard first, however long it was alone.
        let now = mesh.now() + PATIENCE;
        assert_eq!(mesh.brokers[0].election.decide(&[], false, 1, now), Wait);
        assert_eq!(mesh.pass(40, &[&[0, 1]]), [Yield, Serve]);
        // Alone for long it serves, but what it once had in flight is in doubt.
        mesh.restart(0);
        assert_eq!((claims(&mut mesh, 0), claims(&mut mesh, 31)), (Wait, Serve));
        assert!(mesh.brokers[0].election.is_in_doubt);
    }

    #[test]
    fn who_comes_back_in_time_goes_on_and_who_comes_later_yields() {
        let mut mesh = Mesh::new(&[100, 50, 100]);
        mesh.pass(6, &[&[0, 1, 2]]);
        assert_eq!(mesh.pass(20, &[&[0, 2]]), [Gather, Serve, Wait]);
        mesh.restart(1);
        assert_eq!(mesh.pass(6, &[&[0, 1, 2]]), [Yield, Serve, Yield]);

        assert_eq!(mesh.pass(40, &[&[0, 2]]), [Serve, Serve, Yield]);
        mesh.restart(1);
        assert_eq!(mesh.pass(6, &[&[0, 1, 2]]), [Serve, Yield, Yield]);
        // Whoever still has the session of the last that served comes before a better one.
        mesh.restart(0);
        assert_eq!(mesh.pass(6, &[&[0, 1, 2]]), [Serve, Yield, Yield]);
    }

    #[test]
    fn of_who_was_just_started_it_is_not_known_at_once_what_it_has() {
        let mut mesh = Mesh::new(&[100, 50]);
        mesh.pass(6, &[&[0, 1]]);
        assert_eq!(mesh.pass(6, &[&[0]]), [Gather, Serve]);
        mesh.restart(1);
        // For a moment its new life has said nothing of the bridge.
        let now = mesh.now();
        assert_eq!(mesh.brokers[0].election.decide(&[], false, 1, now), Wait);
        assert_eq!(mesh.pass(6, &[&[0, 1]]), [Yield, Serve]);
    }

    #[test]
    fn who_leaves_is_followed_once_its_session_is_there_or_is_not_to_be_had() {
        let mut mesh = Mesh::new(&[50, 100, 200]);
        assert_eq!(mesh.pass(6, &[&[0, 1, 2]]), [Serve, Yield, Yield]);
        let of = |id: u64, claim: BridgeClaim| Other { id: BrokerId(id), claim, is_reachable: true };
        let claims = |mesh: &Mesh| mesh.brokers.iter().map(|one| one.election.claim).collect::<Vec<_>>();
        let others = |mesh: &Mesh, own: usize| {
            let others = (1..).zip(claims(mesh)).filter(|(id, _)| *id != own as u64 + 1);
            others.map(|(id, claim)| of(id, claim)).collect::<Vec<_>>()
        };
        let stays = |broker: BrokerId| broker != BrokerId(1);
        assert_eq!(Election::heir(&others(&mesh, 0), stays), Some(BrokerId(2)));
        assert_eq!(Election::heir(&others(&mesh, 0), |_| false), None);
        assert_eq!(mesh.brokers[1].election.testator(&others(&mesh, 1), stays), None, "it serves");
        let those = others(&mesh, 0);
        assert_eq!(mesh.brokers[0].election.resign(&those, false), Wait);
        assert_eq!(mesh.brokers[1].election.testator(&others(&mesh, 1), stays), Some(BrokerId(1)));
        assert_eq!(mesh.brokers[1].election.testator(&others(&mesh, 1), |_| true), None, "it stays");
        let mut those = others(&mesh, 1);
        those[1].claim.since_ms = 1;
        assert_eq!(mesh.brokers[1].election.testator(&those, stays), None, "another serves");
        // The session comes, and the first has none any more.
        let later = |mesh: &mut Mesh, seconds: u64, index: usize| {
            mesh.now_s += seconds;
            let (others, now, unix_ms) = (others(mesh, index), mesh.now(), 1_000 * mesh.now_s);
            mesh.brokers[index].election.decide(&others, false, unix_ms, now)
        };
        assert_eq!((later(&mut mesh, 1, 1), later(&mut mesh, 9, 1)), (Wait, Wait), "it is waited for");
        mesh.brokers[1].election.claim.has_session = true;
        assert_eq!(later(&mut mesh, 0, 2), Wait, "it has not");
        let those = others(&mesh, 0);
        assert_eq!(mesh.brokers[0].election.resign(&those, false), Wait);
        assert!(!mesh.brokers[0].election.claim.has_session);
        assert_eq!(later(&mut mesh, 1, 1), Serve);
        // It cannot be had.
        let those = others(&mesh, 1);
        assert_eq!(mesh.brokers[1].election.resign(&those, true), Wait);
        assert!(!mesh.brokers[1].election.claim.has_session);
        assert!(!mesh.brokers[1].election.is_in_doubt);
    }

    #[test]
    fn parts_serve_both_and_one_of_them_when_they_meet() {
        let mut mesh = Mesh::new(&[100, 100, 100]);
        mesh.pass(6, &[&[0, 1, 2]]);
        assert_eq!(mesh.pass(25, &[&[0], &[1, 2]]), [Serve, Gather, Wait]);
        assert_eq!(mesh.pass(10, &[&[0], &[1, 2]]), [Serve, Serve, Yield]);
        assert_eq!(mesh.pass(2, &[&[0, 1, 2]]), [Serve, Yield, Yield]);
    }
}

//! What other members say of logs: which is theirs, who asks how far others have dealt with it, and how far they have dealt with ours.

use std::collections::BTreeMap;

use super::{Changes, Interest, Known, Member};
use crate::ids::{BrokerId, LaneId, LogId};
use crate::shared::register::{Key, Value};

/// Sequences in lanes of logs.
type Dealt = BTreeMap<(LogId, LaneId), u64>;

/// What one member says.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Its own log.
    log: Option<LogId>,
    /// Others are to tell how far they have dealt with that, and whether clients wait for it.
    asks: Option<bool>,
    /// It is drained; and whether it is empty.
    leaving: Option<bool>,
    /// How far it has dealt with our logs.
    dealt: Dealt,
    /// The same as of its log before this one.
    before: Option<(LogId, Dealt)>,
}

/// A member asks how far others have dealt with its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Who.
    pub origin: BrokerId,
    /// Its log.
    pub log: LogId,
    /// Clients wait for the answer, of all members. Else only those answer for whom something was picked, and they take their time.
    pub is_urgent: bool,
}

/// How it stands with a broker to which messages of share groups were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Messages reach it, as far as is known.
    pub is_reached: bool,
    /// Its log, if it is known.
    pub log: Option<LogId>,
}

impl Changes<'_> {
    /// A member says something of logs.
    pub(super) fn tell(&mut self, member: BrokerId, key: &Key, value: Option<&Value>) {
        let own = self.interest.own;
        let Some(place) = self.known.places.get(&member).copied() else { return };
        let Some(Member { said, .. }) = self.known.members.get_mut(usize::from(place)).and_then(Option::as_mut) else { return };
        match (key, value) {
            (Key::Log, Some(Value::Log(log))) => {
                if let Some(old) = said.log.replace(*log).filter(|old| old != log) {
                    said.before = Some((old, std::mem::take(&mut said.dealt)));
                }
            }
            (Key::AskDealt, value) => said.asks = value.map(|value| *value == Value::Urgent),
            (Key::Leaving, value) => said.leaving = value.map(|value| *value == Value::Empty),
            (Key::Dealt(stream), Some(Value::Dealt(sequence))) if stream.origin == own => {
                said.dealt.insert((stream.log, stream.lane), *sequence);
            }
            (Key::Dealt(stream), None) if stream.origin == own => drop(said.dealt.remove(&(stream.log, stream.lane))),
            _ => {}
        }
    }
}

impl Member {
    fn is_mute(&self) -> bool {
        self.is_known && self.said.log.is_none()
    }

    /// As far as is known.
    fn wants_something(&self) -> bool {
        self.wants_everything() || !self.filters.is_empty() || !self.shares.is_empty()
    }
}

impl Known {
    fn all(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().flatten()
    }

    fn said(&self, member: BrokerId) -> Option<&Said> {
        self.member(*self.places.get(&member)?).map(|member| &member.said)
    }
}

impl Interest {
    /// Who asks how far this broker has dealt with their logs.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        let known = self.known.read();
        let asks = |member: &Member| Some(Asked { origin: member.id, log: member.said.log?, is_urgent: member.said.asks? });
        known.all().filter_map(asks).collect()
    }

    /// How far `member` has dealt with a lane of this broker's log; 0 where it has not said.
    #[must_use]
    pub fn dealt_by(&self, member: BrokerId, log: LogId, lane: LaneId) -> u64 {
        let known = self.known.read();
        known.said(member).and_then(|said| said.dealt.get(&(log, lane)).copied()).unwrap_or(0)
    }

    /// The same as the broker had said while its own log was `of`.
    #[must_use]
    pub fn dealt_while(&self, member: BrokerId, of: LogId, log: LogId, lane: LaneId) -> u64 {
        let known = self.known.read();
        let Some(said) = known.said(member) else { return 0 };
        let dealt = match &said.before {
            _ if said.log == Some(of) => Some(&said.dealt),
            Some((before, dealt)) if *before == of => Some(dealt),
            _ => None,
        };
        dealt.and_then(|dealt| dealt.get(&(log, lane)).copied()).unwrap_or(0)
    }

    /// How far all members have dealt with a lane of this broker's log; without members, all the way. Who is known and has told of no log is of a version that
    /// never will, and is not waited for; nor is who was drained, empty, and is gone.
    #[must_use]
    pub fn dealt_by_all(&self, log: LogId, lane: LaneId) -> u64 {
        let known = self.known.read();
        let has_left = |member: &Member| {
            member.said.leaving == Some(true) && !member.wants_something() && known.reach.cost(member.id).is_none()
        };
        let waited_for = known.all().filter(|member| !member.is_mute() && !has_left(member));
        waited_for.map(|member| member.said.dealt.get(&(log, lane)).copied().unwrap_or(0)).min().unwrap_or(u64::MAX)
    }

    /// Members that have not dealt, as far as they have said, with all of this broker's log, which has come so far in its lanes. Whoever cannot be reached and is known to want
    /// nothing is not among them, nor who is never waited for ([`mute`](Self::mute)).
    #[must_use]
    pub fn behind(&self, log: LogId, lanes: &[(LaneId, u64)]) -> Vec<BrokerId> {
        let known = self.known.read();
        let is_behind = |member: &&Member| {
            let is_missed = known.reach.cost(member.id).is_some() || member.wants_something();
            let is_short = |(lane, last): &(LaneId, u64)| member.said.dealt.get(&(log, *lane)).copied().unwrap_or(0) < *last;
            !member.is_mute() && is_missed && lanes.iter().any(is_short)
        };
        known.all().filter(is_behind).map(|member| member.id).collect()
    }

    /// Whether a member says that it is drained.
    #[must_use]
    pub fn is_leaving(&self, member: BrokerId) -> bool {
        self.known.read().said(member).is_some_and(|said| said.leaving.is_some())
    }

    /// Members for whom [`dealt_by_all`](Self::dealt_by_all) does not wait.
    #[must_use]
    pub fn mute(&self) -> Vec<BrokerId> {
        let known = self.known.read();
        known.all().filter(|member| member.is_mute()).map(|member| member.id).collect()
    }

    /// Whether nobody brings this log who is not asked for it: its broker is no member any more, or has another one, and messages reach all members.
    #[must_use]
    pub fn is_past(&self, origin: BrokerId, log: LogId) -> bool {
        let known = self.known.read();
        let knows_all = known.unknown == 0 && known.all().next().is_some();
        let reaches_all = known.reach.members.is_some() && known.all().all(|member| known.reach.cost(member.id).is_some());
        knows_all && reaches_all && known.said(origin).is_none_or(|said| said.log.is_some_and(|its| its != log))
    }

    /// How it stands with a member; none if it is none.
    #[must_use]
    pub fn standing(&self, member: BrokerId) -> Option<Standing> {
        let known = self.known.read();
        let log = known.said(member)?.log;
        Some(Standing { is_reached: known.reach.cost(member).is_some(), log })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::OriginLane;
    use crate::interest::{Mode, Rules};
    use crate::shared::register::Follow;

    #[test]
    fn what_a_member_says_of_logs_holds_until_it_says_something_else_or_has_left() {
        let (own, a, b) = (BrokerId(1), BrokerId(2), BrokerId(3));
        let interest = Interest::new(own, Rules::new(Mode::Interest, []));
        let (log, lane) = (LogId(7), LaneId(5));
        let dealt = |origin| Key::Dealt(OriginLane { origin, log, lane });
        assert_eq!((interest.dealt_by_all(log, lane), interest.standing(a)), (u64::MAX, None));
        interest.joined(a);
        interest.joined(b);
        let generation = interest.generation();
        interest.changed(a, &[(Key::Log, Some(Value::Log(LogId(8)))), (Key::AskDealt, Some(Value::Urgent))]);
        interest.changed(a, &[(dealt(own), Some(Value::Dealt(9))), (dealt(b), Some(Value::Dealt(99)))]);
        let asked = |is_urgent| [Asked { origin: a, log: LogId(8), is_urgent }];
        assert_eq!(interest.asked(), asked(true));
        interest.changed(a, &[(Key::AskDealt, Some(Value::Present))]);
        assert_eq!(interest.asked(), asked(false));
        assert_eq!((interest.dealt_by(a, log, lane), interest.dealt_by(a, LogId(1), lane)), (9, 0));
        assert_eq!(interest.dealt_by_all(log, lane), 0, "the other has said nothing");
        interest.changed(b, &[(dealt(own), Some(Value::Dealt(4)))]);
        assert_eq!(interest.dealt_by_all(log, lane), 4);
        interest.known(b);
        assert_eq!((interest.dealt_by_all(log, lane), interest.mute()), (9, vec![b]), "it tells of no log");
        interest.changed(b, &[(Key::Log, Some(Value::Log(LogId(5))))]);
        assert_eq!((interest.dealt_by_all(log, lane), interest.mute()), (4, vec![]));
        interest.set_reachable(Some([b].into()));
        assert_eq!(interest.standing(a), Some(Standing { is_reached: false, log: Some(LogId(8)) }));
        interest.left(b);
        assert_eq!(interest.dealt_by_all(log, lane), 9);
        interest.changed(a, &[(dealt(own), None), (Key::Log, Some(Value::Log(LogId(88))))]);
        assert_eq!([8, 88, 6].map(|of| interest.dealt_while(a, LogId(of), log, lane)), [9, 0, 0]);
        interest.changed(a, &[(Key::AskDealt, None), (dealt(own), None)]);
        assert_eq!((interest.asked(), interest.dealt_by_all(log, lane)), (vec![], 0));
        assert!(interest.generation() > generation, "somebody has left");
    }

    #[test]
    fn who_has_not_dealt_with_a_log_is_named_unless_it_is_away_and_wants_nothing() {
        let (own, a, b) = (BrokerId(1), BrokerId(2), BrokerId(3));
        let interest = Interest::new(own, Rules::new(Mode::Interest, []));
        let (log, lane) = (LogId(7), LaneId(5));
        let dealt = Key::Dealt(OriginLane { origin: own, log, lane });
        let behind = |last| interest.behind(log, &[(lane, last)]);
        assert_eq!(behind(9), [], "nobody is known");
        for member in [a, b] {
            interest.joined(member);
            interest.changed(member, &[(Key::Log, Some(Value::Log(LogId(8)))), (dealt.clone(), Some(Value::Dealt(4)))]);
        }
        interest.set_reachable(Some([a].into()));
        interest.set_costs([(a, 1)].into());
        assert_eq!((behind(4), behind(5)), (vec![], vec![a, b]), "what the one that is away wants is not known");
        interest.known(a);
        interest.known(b);
        assert_eq!(behind(5), [a], "the other wants nothing");
        let filter = Key::Filter("t".into());
        interest.changed(b, &[(filter.clone(), Some(Value::Present))]);
        assert_eq!(behind(5), [a, b]);
        interest.changed(b, &[(filter, None), (Key::Filter("$share/g/t".into()), Some(Value::Present))]);
        assert_eq!(behind(5), [a, b], "of a share group");
        interest.changed(a, &[(dealt, Some(Value::Dealt(5)))]);
        assert_eq!(behind(5), [b]);
        interest.left(b);
        assert_eq!(behind(5), []);
        assert!(!interest.is_leaving(a));
        interest.changed(a, &[(Key::Leaving, Some(Value::Present))]);
        assert!(interest.is_leaving(a) && !interest.is_leaving(b));
        interest.changed(a, &[(Key::Leaving, None)]);
        assert!(!interest.is_leaving(a));
    }

    #[test]
    fn who_was_drained_and_is_gone_is_not_waited_for() {
        let (own, a, b) = (BrokerId(1), BrokerId(2), BrokerId(3));
        let interest = Interest::new(own, Rules::new(Mode::Interest, []));
        let (log, lane) = (LogId(7), LaneId(5));
        let dealt = Key::Dealt(OriginLane { origin: own, log, lane });
        for (member, sequence) in [(a, 4), (b, 9)] {
            interest.joined(member);
            interest.changed(member, &[(Key::Log, Some(Value::Log(LogId(8)))), (dealt.clone(), Some(Value::Dealt(sequence)))]);
            interest.known(member);
        }
        interest.set_costs([(a, 1), (b, 1)].into());
        let stable = || interest.dealt_by_all(log, lane);
        for (value, is_there, expected) in
            [(Some(Value::Present), false, 4), (Some(Value::Empty), true, 4), (Some(Value::Empty), false, 9), (None, false, 4)]
        {
            interest.changed(a, &[(Key::Leaving, value.clone())]);
            let reached = if is_there { [(a, 1), (b, 1)].into() } else { [(b, 1)].into() };
            interest.set_reachable(Some(if is_there { [a, b].into() } else { [b].into() }));
            interest.set_costs(reached);
            assert_eq!((stable(), interest.is_leaving(a)), (expected, value.is_some()), "{value:?} {is_there}");
        }
        // It was in a hurry, or somebody has come to it since.
        interest.changed(a, &[(Key::Leaving, Some(Value::Empty)), (Key::Filter("t".into()), Some(Value::Present))]);
        assert_eq!(stable(), 4);
    }
}

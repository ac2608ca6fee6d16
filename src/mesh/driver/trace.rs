//! Traces: which way a message would take, asked of the brokers on it.
//!
//! A probe goes over every link of the tree, as messages do, also where the message would not go, and says how the message would have come. Each broker
//! answers to where the probe came from, then follows it on. Who passes a neighbour's answer on adds what only it can know: that the
//! neighbour had the probe from it, and how long it took. So a hop's time is that of a probe and its answer, through both brokers' control.
//!
//! Invariants: a broker follows a trace once, however often its probe comes, so one that goes round dies; a peer makes it send no more than one probe a
//! link and one answer; what is remembered is bounded, and an answer is passed on only to a trace that was followed over the link on which it comes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::words::Budget;
use super::{Driver, Entry};
use crate::clock;
use crate::codec::QoS;
use crate::frame::control::ControlFrame;
use crate::frame::trace::{Answer, Arrival, PortWord, Ports, Probe, TraceId, Why};
use crate::ids::{BrokerId, PortId};
use crate::interest::Draw;
use crate::limits::{TRACES_MAX, TRACES_OWN_MAX};
use crate::shared::trace::Answered;

/// So long answers to a trace are passed on.
const TRACE_LIFE: Duration = Duration::from_secs(5);
/// Traces that may be asked for here: half of what each link takes.
const OWN_AT_ONCE: u32 = 8;
const OWN_INTERVAL: Duration = Duration::from_millis(500);

/// Asks the driver for a trace.
#[derive(Debug)]
pub(in crate::mesh) struct TraceCall {
    pub(in crate::mesh) topic: Box<str>,
    pub(in crate::mesh) qos: QoS,
    pub(in crate::mesh) retain: bool,
    /// Told whether the message would leave this broker. Dropped: too much is asked.
    pub(in crate::mesh) begun: oneshot::Sender<bool>,
    /// Where the answers go; this broker's own is the first.
    pub(in crate::mesh) answers: mpsc::Sender<Answered>,
}

/// A [`Probe`] as it came.
#[derive(Debug)]
pub(in crate::mesh) struct OwnedProbe {
    id: TraceId,
    hops: u8,
    qos: QoS,
    retain: bool,
    arrival: Arrival,
    topic: Box<str>,
}

impl From<&Probe<'_>> for OwnedProbe {
    fn from(probe: &Probe<'_>) -> Self {
        let &Probe { id, hops, qos, retain, arrival, topic } = probe;
        Self { id, hops, qos, retain, arrival, topic: topic.into() }
    }
}

/// The traces that this broker follows.
#[derive(Debug)]
pub(super) struct Traces {
    /// Keys are the choice of others.
    followed: HashMap<TraceId, Followed, ahash::RandomState>,
    own: Budget,
}

#[derive(Debug)]
struct Followed {
    whence: Whence,
    since: Instant,
    /// When it left over which link.
    left: Vec<(PortId, Instant)>,
}

/// Where answers go.
#[derive(Clone, Debug)]
enum Whence {
    /// To the neighbour from which the probe came.
    Port(PortId),
    /// To who asked at this broker.
    Caller(mpsc::Sender<Answered>),
}

impl Traces {
    pub(super) fn new(now: Instant) -> Self {
        Self { followed: HashMap::default(), own: Budget::new(OWN_AT_ONCE, OWN_INTERVAL, now) }
    }

    /// Whether one more may begin here.
    fn may_begin(&mut self, now: Instant) -> bool {
        self.forget(now);
        let is_own = |followed: &&Followed| matches!(&followed.whence, Whence::Caller(answers) if !answers.is_closed());
        self.followed.values().filter(is_own).count() < TRACES_OWN_MAX && self.own.take(now)
    }

    /// A probe of the trace has come.
    fn follow(&mut self, id: TraceId, whence: Whence, now: Instant) -> Following {
        self.forget(now);
        if self.followed.contains_key(&id) {
            return Following::Already;
        }
        if self.followed.len() >= TRACES_MAX {
            return Following::TooMany;
        }
        self.followed.insert(id, Followed { whence, since: now, left: Vec::new() });
        Following::New
    }

    /// Its probe goes on over a link.
    fn leaves(&mut self, id: TraceId, port: PortId, now: Instant) {
        if let Some(followed) = self.followed.get_mut(&id) {
            followed.left.push((port, now));
        }
    }

    /// An answer has come over a link. Where it goes, and how long ago the probe left there; none if none did.
    fn answered(&self, id: TraceId, port: PortId, now: Instant) -> Option<(Whence, Duration)> {
        let followed = self.followed.get(&id)?;
        let (_, left_at) = followed.left.iter().find(|(left, _)| *left == port)?;
        Some((followed.whence.clone(), now.saturating_duration_since(*left_at)))
    }

    fn forget(&mut self, now: Instant) {
        self.followed.retain(|_, followed| now.saturating_duration_since(followed.since) < TRACE_LIFE);
    }
}

/// See [`Traces::follow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Following {
    New,
    Already,
    TooMany,
}

impl Driver {
    /// An operator asks at this broker.
    pub(super) fn trace_from_here(&mut self, call: TraceCall) {
        let now = clock::now();
        let id = TraceId { origin: self.own_id(), number: rand::random() };
        let whence = Whence::Caller(call.answers);
        if !self.traces.may_begin(now) || self.traces.follow(id, whence.clone(), now) != Following::New {
            return;
        }
        let interest = self.settings.replication.interest();
        let leaves = call.retain || interest.is_wanted_elsewhere(&call.topic) || !interest.shares(&call.topic).is_empty();
        // Who has gone is not told.
        let _ = call.begun.send(leaves);
        let TraceCall { qos, retain, topic, .. } = call;
        self.answer_and_follow(&whence, &OwnedProbe { id, hops: 0, qos, retain, arrival: Arrival::Whole, topic }, leaves);
    }

    /// A probe has come over a link.
    pub(super) fn trace(&mut self, from: PortId, probe: &OwnedProbe) {
        let now = clock::now();
        let Some(entry) = self.entry(from) else { return };
        let whence = Whence::Port(from);
        let following = match entry.words.probes.take(now) {
            true => self.traces.follow(probe.id, whence.clone(), now),
            false => Following::TooMany,
        };
        match following {
            Following::New => self.answer_and_follow(&whence, probe, true),
            Following::Already => {}
            Following::TooMany => self.book.refusals.traces_throttled.add(1),
        }
    }

    /// An answer has come over a link.
    pub(super) fn traced(&mut self, from: PortId, id: TraceId, answer: Answered) {
        let now = clock::now();
        let Some((whence, since)) = self.traces.answered(id, from, now) else { return };
        let Some(entry) = self.entry(from) else { return };
        if !entry.words.answers.take(now) {
            return self.book.refusals.traces_throttled.add(1);
        }
        let (own, is_neighbour) = (self.own_id(), answer.broker() == from.peer);
        if answer.broker() == own || !is_neighbour && answer.via() == own {
            return;
        }
        self.pass_on(&whence, id, &if is_neighbour { answer.heard_by(own, since) } else { answer });
    }

    /// `leaves`: the message goes to other brokers at all.
    fn answer_and_follow(&mut self, whence: &Whence, probe: &OwnedProbe, leaves: bool) {
        let from = match whence {
            Whence::Port(port) => Some(*port),
            Whence::Caller(_) => None,
        };
        let mut ports: Vec<(PortId, PortWord)> = Vec::new();
        for entry in self.links.values().filter(|entry| Some(entry.link.id) != from) {
            let rtt_us = u64::try_from(entry.measured.rtt.as_micros()).unwrap_or(u64::MAX);
            ports.push((entry.link.id, PortWord { peer: entry.link.id.peer, why: self.why(entry, probe), rtt_us }));
        }
        // Of too many links those of the tree are told first.
        ports.sort_by_key(|(_, word)| !word.why.is_way());
        let (own, mut buffer) = (self.own_id(), Vec::new());
        let answer = Answer {
            id: probe.id,
            broker: own,
            via: from.map_or(own, |from| from.peer),
            round_trip_us: 0,
            arrival: probe.arrival,
            audience: self.settings.subscribed.audience(&probe.topic),
            ports: Ports::new(ports.iter().map(|(_, word)| *word), &mut buffer),
        };
        self.pass_on(whence, probe.id, &Answered::from(&answer));
        let &OwnedProbe { id, hops, qos, retain, ref topic, .. } = probe;
        for (port, word) in ports.into_iter().filter(|(_, word)| word.why.is_way()) {
            let arrival = if leaves { probe.arrival.over(word.why, qos) } else { Arrival::Nothing };
            let probe = Probe { id, hops: hops.saturating_add(1), qos, retain, arrival, topic };
            self.traces.leaves(id, port, clock::now());
            self.on_link(port, |link| link.send(&ControlFrame::Trace(probe)));
        }
    }

    /// Whether and why a message goes over a link.
    fn why(&self, entry: &Entry, probe: &OwnedProbe) -> Why {
        if !entry.forwarding {
            return Why::Reserve;
        }
        if probe.hops >= self.settings.tree.hop_max {
            return Why::HopMax;
        }
        match entry.link.port.draw(self.settings.replication.interest(), &probe.topic) {
            Draw::Rule => Why::Rule,
            Draw::Wanted => Why::Wanted,
            _ if probe.retain => Why::Retained,
            Draw::Unknown => Why::Unknown,
            Draw::Shared => Why::Shared,
            Draw::Nobody => Why::Unwanted,
        }
    }

    fn pass_on(&mut self, whence: &Whence, id: TraceId, answer: &Answered) {
        match whence {
            Whence::Port(port) => {
                let mut buffer = Vec::new();
                self.on_link(*port, |link| link.send(&ControlFrame::Traced(answer.to_frame(id, &mut buffer))));
            }
            // Who has gone, or has more answers than there can be brokers, is not told.
            Whence::Caller(answers) => drop(answers.try_send(answer.clone())),
        }
    }

    fn own_id(&self) -> BrokerId {
        self.settings.local.identity.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> TraceId {
        TraceId { origin: BrokerId(1), number }
    }

    fn port(peer: u64) -> PortId {
        PortId { peer: BrokerId(peer), generation: 1 }
    }

    #[test]
    fn a_trace_is_followed_once_and_answered_to_where_it_came_from() {
        let start = clock::now();
        let mut traces = Traces::new(start);
        assert_eq!(traces.follow(id(1), Whence::Port(port(2)), start), Following::New);
        assert_eq!(traces.follow(id(1), Whence::Port(port(3)), start), Following::Already);
        traces.leaves(id(1), port(4), start);
        let later = start + Duration::from_millis(3);
        let answered = |traces: &Traces, from| traces.answered(id(1), from, later);
        assert!(matches!(answered(&traces, port(4)), Some((Whence::Port(to), since)) if to == port(2) && since == later - start));
        assert!(answered(&traces, port(3)).is_none(), "it was not asked");
        assert!(answered(&traces, PortId { generation: 2, ..port(4) }).is_none(), "another life of the link");
        assert_eq!(traces.follow(id(2), Whence::Port(port(2)), start + TRACE_LIFE), Following::New);
        assert!(answered(&traces, port(4)).is_none(), "it is forgotten");
    }

    #[test]
    fn what_is_followed_and_what_is_asked_here_is_bounded() {
        let start = clock::now();
        let mut traces = Traces::new(start);
        let mut callers = Vec::new();
        let mut call = |traces: &mut Traces, number, at| {
            let (answers, heard) = mpsc::channel(1);
            let begins = traces.may_begin(at);
            if begins {
                assert_eq!(traces.follow(id(number), Whence::Caller(answers), at), Following::New);
                callers.push(heard);
            }
            begins
        };
        let begun = (0..20).filter(|number| call(&mut traces, *number, start)).count();
        assert_eq!(begun, TRACES_OWN_MAX, "nobody has gone");
        let later = start + TRACE_LIFE;
        assert!(call(&mut traces, 20, later), "those are over");
        callers.clear();
        let taken = (21..).take_while(|number| {
            traces.may_begin(later) && traces.follow(id(*number), Whence::Port(port(1)), later) == Following::New
        });
        assert_eq!(taken.count(), OWN_AT_ONCE as usize - 1);
        let followed = (100..).take_while(|number| traces.follow(id(*number), Whence::Port(port(1)), later) == Following::New);
        assert_eq!(followed.count(), TRACES_MAX - OWN_AT_ONCE as usize);
        assert_eq!(traces.follow(id(99), Whence::Port(port(1)), later), Following::TooMany);
    }
}

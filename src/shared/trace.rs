//! The document of a trace (`/api/v1/trace`): the way that a message would take through the mesh, as the brokers on it say.
//!
//! Each broker speaks for itself, so the document is as true as its brokers are. It is not: how the answers come together (`mesh`), nor how it is
//! drawn (`cli`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::codec::QoS;
use crate::frame::trace::{Answer, PortWord, Ports, TraceId};
pub use crate::frame::trace::{Arrival, Audience, Why};
use crate::ids::BrokerId;

/// Says who of this broker's clients would get a message.
pub trait Subscribed: Send + Sync {
    /// Whose subscriptions match `topic`.
    fn audience(&self, topic: &str) -> Audience;
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// The message's topic.
    pub topic: String,
    /// Its QoS.
    #[serde(default)]
    pub qos: u8,
    /// Whether it is retained.
    #[serde(default)]
    pub retain: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TraceError {
    /// Nothing to trace in.
    #[error("this broker has no [mesh]")]
    NoMesh,
    /// No topic name, or one that no client may publish to.
    #[error("{0}; a trace needs the name of one topic, as a client would publish to it")]
    Topic(String),
    /// No QoS.
    #[error("qos = {0}: 0, 1 or 2 are known")]
    QoS(u8),
    /// As many as may be are under way.
    #[error("other traces are under way at this broker; ask again in a moment")]
    Busy,
}

/// The document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The mesh's name.
    pub mesh: String,
    /// The message's topic.
    pub topic: String,
    /// Its QoS.
    pub qos: u8,
    /// Whether it is retained.
    pub retain: bool,
    /// The broker at which it would be published.
    pub origin: String,
    /// Whether it would leave that broker: if nobody else wants it, it does not, not even as stubs.
    pub leaves: bool,
    /// Who has answered: the origin, then each below the one from which it had the probe.
    pub brokers: Vec<TraceBroker>,
    /// Who is known and has not answered in time.
    pub silent: Vec<SilentBroker>,
}

/// One broker on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceBroker {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: BrokerId,
    /// The broker before it on the way; none at the origin.
    pub via: Option<String>,
    /// From the probe's leaving `via` to the answer's being there, microseconds.
    pub round_trip_us: Option<u64>,
    /// The shortest round trip of that link lately, microseconds.
    pub link_rtt_us: Option<u64>,
    /// How the message comes.
    pub arrival: Arrival,
    /// Who gets it.
    #[serde(flatten)]
    pub audience: Audience,
    /// Its other links.
    pub ports: Vec<TracePort>,
}

/// One link of a broker on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracePort {
    /// The other end.
    pub peer: String,
    /// Its identity.
    pub id: BrokerId,
    /// Whether and why the message goes there.
    pub why: Why,
    /// Shortest round trip lately, microseconds.
    pub rtt_us: u64,
}

/// A broker that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentBroker {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: BrokerId,
}

/// One broker's answer, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    broker: BrokerId,
    via: BrokerId,
    round_trip_us: u64,
    arrival: Arrival,
    audience: Audience,
    ports: Vec<PortWord>,
}

impl Answered {
    /// Who answers.
    #[must_use]
    pub fn broker(&self) -> BrokerId {
        self.broker
    }

    /// From whom it had the probe.
    #[must_use]
    pub fn via(&self) -> BrokerId {
        self.via
    }

    /// The same with what only `via`, from which `self.broker` had the probe, can say.
    #[must_use]
    pub fn heard_by(self, via: BrokerId, round_trip: Duration) -> Self {
        let round_trip_us = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        Self { via, round_trip_us, ..self }
    }

    /// As it travels; `buffer` is where its ports are kept.
    pub fn to_frame<'a>(&self, id: TraceId, buffer: &'a mut Vec<u8>) -> Answer<'a> {
        let &Self { broker, via, round_trip_us, arrival, audience, .. } = self;
        Answer { id, broker, via, round_trip_us, arrival, audience, ports: Ports::new(self.ports.iter().copied(), buffer) }
    }
}

impl From<&Answer<'_>> for Answered {
    fn from(answer: &Answer<'_>) -> Self {
        let &Answer { broker, via, round_trip_us, arrival, audience, ports, .. } = answer;
        Self { broker, via, round_trip_us, arrival, audience, ports: ports.iter().collect() }
    }
}

/// What a broker knows of the mesh in which it traces.
#[derive(Clone, Debug)]
pub struct TraceGround {
    /// The mesh's name.
    pub mesh: String,
    /// This broker.
    pub origin: BrokerId,
    /// Names, of whomever it has one.
    pub names: BTreeMap<BrokerId, String>,
    /// Who should answer.
    pub expected: BTreeSet<BrokerId>,
    /// Whether another broker wants the topic, or it is retained.
    pub leaves: bool,
}

impl Trace {
    /// Puts the answers together. Of two by one broker the first counts.
    #[must_use]
    pub fn of(ground: &TraceGround, topic: &str, qos: QoS, retain: bool, answers: &[Answered]) -> Self {
        let name = |id: BrokerId| ground.names.get(&id).cloned().unwrap_or_else(|| id.to_string());
        let mut by_broker: BTreeMap<BrokerId, &Answered> = BTreeMap::new();
        for answer in answers {
            by_broker.entry(answer.broker).or_insert(answer);
        }
        let silent = ground.expected.iter().filter(|id| !by_broker.contains_key(*id));
        let mut silent: Vec<_> = silent.map(|id| SilentBroker { name: name(*id), id: *id }).collect();
        silent.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        let link_rtt_us = |answer: &Answered| {
            let ports = &by_broker.get(&answer.via)?.ports;
            ports.iter().find(|port| port.peer == answer.broker).map(|port| port.rtt_us)
        };
        let brokers = in_order(ground.origin, &by_broker, name).into_iter().map(|answer| {
            let is_below = answer.broker != ground.origin;
            TraceBroker {
                name: name(answer.broker),
                id: answer.broker,
                via: is_below.then(|| name(answer.via)),
                round_trip_us: is_below.then_some(answer.round_trip_us),
                link_rtt_us: link_rtt_us(answer).filter(|_| is_below),
                arrival: answer.arrival,
                audience: answer.audience,
                ports: answer.ports.iter().map(|port| TracePort::of(port, name)).collect(),
            }
        });
        let brokers = brokers.collect();
        let (mesh, origin, topic) = (ground.mesh.clone(), name(ground.origin), topic.to_owned());
        Self { mesh, topic, qos: qos as u8, retain, origin, leaves: ground.leaves, brokers, silent }
    }
}

impl TracePort {
    fn of(port: &PortWord, name: impl Fn(BrokerId) -> String) -> Self {
        Self { peer: name(port.peer), id: port.peer, why: port.why, rtt_us: port.rtt_us }
    }
}

/// The origin, then each after the one from which it had the probe; last those for which no such one has answered.
fn in_order<'a>(
    origin: BrokerId,
    answers: &BTreeMap<BrokerId, &'a Answered>,
    name: impl Fn(BrokerId) -> String,
) -> Vec<&'a Answered> {
    let mut below: BTreeMap<BrokerId, Vec<&'a Answered>> = BTreeMap::new();
    for answer in answers.values().filter(|answer| answer.broker != origin) {
        below.entry(answer.via).or_default().push(answer);
    }
    // Popped from the end.
    below.values_mut().for_each(|siblings| siblings.sort_by_key(|answer| std::cmp::Reverse((name(answer.broker), answer.broker))));
    let mut order = Vec::with_capacity(answers.len());
    let mut seen = BTreeSet::new();
    let mut ahead: Vec<&'a Answered> = answers.get(&origin).copied().into_iter().collect();
    let mut rest = answers.values();
    while let Some(answer) = ahead.pop().or_else(|| rest.next().copied()) {
        if seen.insert(answer.broker) {
            order.push(answer);
            ahead.extend(below.get(&answer.broker).into_iter().flatten());
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(broker: u64, via: u64, ports: &[u64]) -> Answered {
        let port = |peer: &u64| PortWord { peer: BrokerId(*peer), why: Why::Wanted, rtt_us: 10 * peer };
        Answered {
            broker: BrokerId(broker),
            via: BrokerId(via),
            round_trip_us: broker,
            arrival: Arrival::Whole,
            audience: Audience::default(),
            ports: ports.iter().map(port).collect(),
        }
    }

    fn drawn(expected: &[u64], answers: &[Answered]) -> Trace {
        let ground = TraceGround {
            mesh: "m".to_owned(),
            origin: BrokerId(5),
            names: (1..8).map(|id| (BrokerId(id), format!("b{id}"))).collect(),
            expected: expected.iter().map(|id| BrokerId(*id)).collect(),
            leaves: true,
        };
        Trace::of(&ground, "t", QoS::AtLeastOnce, false, answers)
    }

    #[test]
    fn brokers_stand_below_the_one_before_them_and_the_silent_are_named() {
        // 5 - 2 - {1, 7}, 5 - 3.
        let answers = [answer(7, 2, &[]), answer(3, 5, &[]), answer(1, 2, &[9]), answer(5, 5, &[2, 3]), answer(2, 5, &[1, 7])];
        let trace = drawn(&[1, 2, 3, 4, 5, 7, 9], &answers);
        let order: Vec<_> =
            trace.brokers.iter().map(|b| (b.name.as_str(), b.via.as_deref(), b.round_trip_us, b.link_rtt_us)).collect();
        assert_eq!(
            order,
            [
                ("b5", None, None, None),
                ("b2", Some("b5"), Some(2), Some(20)),
                ("b1", Some("b2"), Some(1), Some(10)),
                ("b7", Some("b2"), Some(7), Some(70)),
                ("b3", Some("b5"), Some(3), Some(30)),
            ]
        );
        let silent: Vec<_> = trace.silent.iter().map(|broker| broker.name.as_str()).collect();
        assert_eq!(silent, ["0000000000000009", "b4"]);
        let text = serde_json::to_string(&trace).unwrap();
        assert_eq!(serde_json::from_str::<Trace>(&text).unwrap(), trace);
    }

    /// Whatever peers say: ways that lead in a circle or begin nowhere, and answers that come twice.
    #[test]
    fn every_answer_is_drawn_once() {
        let answers =
            [answer(1, 2, &[]), answer(2, 1, &[]), answer(5, 5, &[]), answer(5, 1, &[]), answer(3, 9, &[]), answer(3, 5, &[])];
        let trace = drawn(&[], &answers);
        let mut order: Vec<_> = trace.brokers.iter().map(|broker| broker.id.0).collect();
        assert_eq!(order.remove(0), 5);
        order.sort_unstable();
        assert_eq!(order, [1, 2, 3]);
        assert_eq!(drawn(&[5], &[]).brokers, []);
    }
}

//! The two frames of a trace: a probe that goes the way that a message would go, and the answers that come back along it.
//!
//! What a probe does at a broker is said by `mesh`. An answer is that broker's own word and not signed: it shows an operator something and decides
//! nothing.

use serde::{Deserialize, Serialize};

use super::{FrameError, Reader, lane, put_block, put_varint};
use crate::codec::QoS;
use crate::ids::BrokerId;
use crate::limits::{TRACE_PORTS_MAX, TRACE_TOPIC_BYTES_MAX};

const QOS_BITS: u8 = 0b0000_0011;
const RETAIN: u8 = 0b0000_0100;
const ARRIVAL_SHIFT: u8 = 3;
const FLAG_BITS: u8 = 0b0001_1111;

/// Which trace: the broker at which it begins, and a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId {
    /// Where the message would be published.
    pub origin: BrokerId,
    /// Random.
    pub number: u64,
}

/// How a message comes to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// It was published there, or comes whole.
    Whole,
    /// Its id and topic, without what it carries; who wants it after all asks for it.
    Stub,
    /// Not at all.
    Nothing,
}

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe<'a> {
    /// Of which trace.
    pub id: TraceId,
    /// Links that it has come over.
    pub hops: u8,
    /// Of the message that is asked about.
    pub qos: QoS,
    /// Likewise.
    pub retain: bool,
    /// How that message would come to the receiver.
    pub arrival: Arrival,
    /// Of the message; at most [`TRACE_TOPIC_BYTES_MAX`].
    pub topic: &'a str,
}

/// Why a message goes over a link, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Somebody there has a subscription for it.
    Wanted,
    /// It is retained, and goes everywhere.
    Retained,
    /// The operator has it so: `replication = "full"`.
    Rule,
    /// It is not known who is there, or what they want.
    Unknown,
    /// Nobody there wants it: a stub goes, and at QoS 0 nothing.
    Unwanted,
    /// The link is not in the tree.
    Reserve,
    /// It has come over as many links as it may.
    HopMax,
    /// A share group has members there: it goes if the origin picks one of them.
    Shared,
}

/// What a broker says of one of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortWord {
    /// The other end.
    pub peer: BrokerId,
    /// Whether and why a message goes there.
    pub why: Why,
    /// The link's shortest round trip lately, microseconds.
    pub rtt_us: u64,
}

/// What clients of one broker have subscribed that matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audience {
    /// Subscriptions that are not shared, of those who may receive it.
    pub subscriptions: u64,
    /// Share groups.
    pub groups: u64,
    /// Their members, together.
    pub group_members: u64,
}

/// One broker's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// To which trace.
    pub id: TraceId,
    /// Who answers.
    pub broker: BrokerId,
    /// From whom it had the probe. That one says so, not the one who answers.
    pub via: BrokerId,
    /// From the probe's leaving `via` to the answer's being there, microseconds. Likewise.
    pub round_trip_us: u64,
    /// How the message would have come.
    pub arrival: Arrival,
    /// Who gets it there.
    pub audience: Audience,
    /// Its links, without the one on which the probe came.
    pub ports: Ports<'a>,
}

/// The links of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports<'a> {
    bytes: &'a [u8],
}

impl Arrival {
    const ALL: [Self; 3] = [Self::Whole, Self::Stub, Self::Nothing];

    fn read(value: u8) -> Result<Self, FrameError> {
        let found = Self::ALL.into_iter().find(|arrival| *arrival as u8 == value);
        found.ok_or(FrameError::Value { field: "arrival", value: u64::from(value) })
    }

    /// How a message that came like this would come over a port.
    #[must_use]
    pub fn over(self, why: Why, qos: QoS) -> Self {
        match why {
            Why::Wanted | Why::Retained | Why::Rule | Why::Unknown | Why::Shared => self,
            Why::Unwanted if self == Self::Whole && qos != QoS::AtMostOnce => Self::Stub,
            Why::Unwanted if qos != QoS::AtMostOnce => self,
            Why::Unwanted | Why::Reserve | Why::HopMax => Self::Nothing,
        }
    }
}

impl Why {
    const ALL: [Self; 8] =
        [Self::Wanted, Self::Retained, Self::Rule, Self::Unknown, Self::Unwanted, Self::Reserve, Self::HopMax, Self::Shared];

    fn read(value: u8) -> Result<Self, FrameError> {
        let found = Self::ALL.into_iter().find(|why| *why as u8 == value);
        found.ok_or(FrameError::Value { field: "reason of a port", value: u64::from(value) })
    }

    /// Whether messages go over the link at all, so that a probe does.
    #[must_use]
    pub fn is_way(self) -> bool {
        !matches!(self, Self::Reserve | Self::HopMax)
    }
}

impl TraceId {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.origin.0.to_be_bytes());
        out.extend_from_slice(&self.number.to_be_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self { origin: BrokerId(reader.u64("origin")?), number: reader.u64("number of a trace")? })
    }
}

impl<'a> Probe<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        let retain = if self.retain { RETAIN } else { 0 };
        out.extend_from_slice(&[self.hops, self.qos as u8 | retain | (self.arrival as u8) << ARRIVAL_SHIFT]);
        put_block(out, self.topic.as_bytes());
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let (id, hops, flags) = (TraceId::decode(reader)?, reader.byte("hops")?, reader.byte("flags of a probe")?);
        let qos = QoS::try_from(flags & QOS_BITS).ok().filter(|_| flags & !FLAG_BITS == 0);
        let qos = qos.ok_or(FrameError::Value { field: "flags of a probe", value: u64::from(flags) })?;
        let topic = lane::topic_name(reader)?;
        if topic.len() > TRACE_TOPIC_BYTES_MAX {
            return Err(FrameError::Value { field: "topic length", value: topic.len() as u64 });
        }
        Ok(Self { id, hops, qos, retain: flags & RETAIN != 0, arrival: Arrival::read(flags >> ARRIVAL_SHIFT)?, topic })
    }
}

impl<'a> Answer<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        out.extend_from_slice(&self.broker.0.to_be_bytes());
        out.extend_from_slice(&self.via.0.to_be_bytes());
        put_varint(out, self.round_trip_us);
        out.push(self.arrival as u8);
        let Audience { subscriptions, groups, group_members } = self.audience;
        [subscriptions, groups, group_members].into_iter().for_each(|count| put_varint(out, count));
        out.extend_from_slice(self.ports.bytes);
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let id = TraceId::decode(reader)?;
        let (broker, via) = (BrokerId(reader.u64("broker id")?), BrokerId(reader.u64("broker id")?));
        let (round_trip_us, arrival) = (reader.varint("round trip")?, Arrival::read(reader.byte("arrival")?)?);
        let mut count = |field| reader.varint(field);
        let audience = Audience {
            subscriptions: count("subscriptions")?,
            groups: count("groups")?,
            group_members: count("members of groups")?,
        };
        let bytes = reader.rest();
        let mut ports = 0;
        while !reader.is_empty() {
            Ports::read(reader)?;
            ports += 1;
            if ports > TRACE_PORTS_MAX {
                return Err(FrameError::Value { field: "number of ports", value: ports as u64 });
            }
        }
        Ok(Self { id, broker, via, round_trip_us, arrival, audience, ports: Ports { bytes } })
    }
}

impl<'a> Ports<'a> {
    /// These, at most [`TRACE_PORTS_MAX`]; `buffer` is where they are kept.
    pub fn new(ports: impl IntoIterator<Item = PortWord>, buffer: &'a mut Vec<u8>) -> Self {
        buffer.clear();
        for PortWord { peer, why, rtt_us } in ports.into_iter().take(TRACE_PORTS_MAX) {
            buffer.extend_from_slice(&peer.0.to_be_bytes());
            buffer.push(why as u8);
            put_varint(buffer, rtt_us);
        }
        Self { bytes: buffer }
    }

    #[cfg(test)]
    pub(super) fn of_bytes(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Front to back.
    pub fn iter(&self) -> impl Iterator<Item = PortWord> {
        let mut reader = Reader::new(self.bytes);
        // Read once before, or written by us: none fails.
        std::iter::from_fn(move || Self::read(&mut reader).ok())
    }

    fn read(reader: &mut Reader<'_>) -> Result<PortWord, FrameError> {
        Ok(PortWord {
            peer: BrokerId(reader.u64("broker id")?),
            why: Why::read(reader.byte("reason of a port")?)?,
            rtt_us: reader.varint("round trip")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_of_ports_is_read_and_no_more_than_may_be() {
        let port = |peer: u64| PortWord { peer: BrokerId(peer), why: Why::ALL[peer as usize % Why::ALL.len()], rtt_us: peer << 40 };
        let ports: Vec<_> = (0..TRACE_PORTS_MAX as u64).map(port).collect();
        let mut buffer = Vec::new();
        assert!(Ports::new(ports.iter().copied(), &mut buffer).iter().eq(ports.iter().copied()));
        assert_eq!(Ports::new((0..1_000).map(port), &mut buffer).iter().count(), TRACE_PORTS_MAX);
        let id = TraceId { origin: BrokerId(1), number: 2 };
        let mut wire = Vec::new();
        let (arrival, audience) = (Arrival::Stub, Audience::default());
        let ports = Ports::new(ports, &mut buffer);
        Answer { id, broker: BrokerId(3), via: BrokerId(4), round_trip_us: 5, arrival, audience, ports }.encode(&mut wire);
        assert!(Answer::decode(&mut Reader::new(&wire)).is_ok());
        wire.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert!(matches!(Answer::decode(&mut Reader::new(&wire)), Err(FrameError::Value { field: "number of ports", .. })));
    }

    #[test]
    fn a_probe_of_anything_else_is_refused() {
        let id = TraceId { origin: BrokerId(1), number: 2 };
        let long = "x".repeat(TRACE_TOPIC_BYTES_MAX + 1);
        let probe = Probe { id, hops: 0, qos: QoS::ExactlyOnce, retain: true, arrival: Arrival::Nothing, topic: &long };
        let mut wire = Vec::new();
        probe.encode(&mut wire);
        assert!(Probe::decode(&mut Reader::new(&wire)).is_err(), "too long");
        for (topic, is_good) in [("a/b", true), (&long[1..], true), ("", false), ("a/+", false), ("#", false), ("a\0", false)] {
            wire.clear();
            Probe { topic, ..probe }.encode(&mut wire);
            assert_eq!(Probe::decode(&mut Reader::new(&wire)).is_ok(), is_good, "{topic:?}");
        }
        wire.clear();
        Probe { topic: "a", ..probe }.encode(&mut wire);
        let flags = 8 + 8 + 1;
        for bad in [0b0000_0011, 0b0001_1000, 0b0010_0000, 0b1000_0000] {
            wire[flags] = bad;
            assert!(Probe::decode(&mut Reader::new(&wire)).is_err(), "flags {bad:b}");
        }
    }

    #[test]
    fn what_comes_over_a_port_follows_from_what_came() {
        use Arrival::{Nothing, Stub, Whole};
        for (came, why, qos, goes) in [
            (Whole, Why::Wanted, QoS::AtMostOnce, Whole),
            (Whole, Why::Unwanted, QoS::AtMostOnce, Nothing),
            (Whole, Why::Unwanted, QoS::AtLeastOnce, Stub),
            (Stub, Why::Wanted, QoS::AtLeastOnce, Stub),
            (Stub, Why::Unwanted, QoS::ExactlyOnce, Stub),
            (Nothing, Why::Unwanted, QoS::AtLeastOnce, Nothing),
            (Nothing, Why::Unknown, QoS::AtLeastOnce, Nothing),
            (Whole, Why::Reserve, QoS::AtLeastOnce, Nothing),
            (Whole, Why::HopMax, QoS::AtLeastOnce, Nothing),
        ] {
            assert_eq!(came.over(why, qos), goes, "{came:?} {why:?} {qos:?}");
        }
    }
}

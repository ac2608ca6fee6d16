//! A run: messages of QoS 0 from one publisher to one topic that follow one another, encoded together and given to each receiver at once.
//!
//! One by one, each message costs every receiver its lock and a look at its state; a run costs that once. It holds copies, and no longer than the
//! read batch that brought it lasts. Receivers to whom a message is more than its packet (subscription identifiers, topic aliases, a queue that is not empty) take it message by
//! message. Invariant: what a receiver is sent is the same either way, to the byte.
//!
//! Packets that came one behind the other and differ in their payload only are kept as they came: to clients of the same version they go without having been
//! taken apart. Where a run is long and has several receivers they share one copy.

use std::time::Instant;

use bytes::Bytes;

use super::message::{Message, remaining_seconds};
use crate::codec::{self, Alike, Measured, ProtocolVersion, PublishHead, QoS};
use crate::limits::SHARE_PAYLOAD_BYTES;

/// What a run may come to, about, in bytes as they are sent: of a batch that is larger receivers need not wait for the end.
const RUN_BYTES_MAX: usize = 16 * 1024;
/// What a packet has besides topic, properties and payload, at most: header, remaining length, topic length, property length, expiry.
const PACKET_BYTES: usize = 16;
/// Receivers from which on it is worth while to make a copy that they share.
const SHARE_RECEIVERS: usize = 4;

/// See the module's page.
#[derive(Debug, Default)]
pub struct Run {
    topic: String,
    /// Of each message its packet's head, if it is kept as it came, its properties and its payload, one behind the other.
    bytes: Vec<u8>,
    parts: Vec<Part>,
    payload_bytes: usize,
    /// Who is about to be given it.
    receivers: usize,
    whole: Whole,
    /// Before MQTT 5, and in it.
    packets: [Packets; 2],
}

/// What is kept as it came, packet by packet.
#[derive(Debug, Default)]
struct Whole {
    /// How many messages, from the first on.
    messages: usize,
    /// In which place of a run's `packets` they belong.
    place: usize,
    /// The largest of them, bytes.
    largest_bytes: usize,
}

/// One message.
#[derive(Debug)]
struct Part {
    /// Of the packet's head, in front of the properties.
    head_len: usize,
    properties_len: usize,
    payload_len: usize,
    expires_at: Option<Instant>,
}

impl Part {
    /// Whether both have the same packet but for the payload's bytes.
    fn has_head_of(&self, other: &Self) -> bool {
        let is_bare = |part: &Self| part.properties_len == 0 && part.expires_at.is_none();
        self.payload_len == other.payload_len && is_bare(self) && is_bare(other)
    }

    fn len(&self) -> usize {
        self.head_len + self.properties_len + self.payload_len
    }
}

/// All messages of a run as one kind of client is sent them, made when they are asked for first.
#[derive(Debug, Default)]
struct Packets {
    /// Of how many messages.
    made: usize,
    bytes: Vec<u8>,
    /// The largest of them, bytes.
    largest_bytes: usize,
    /// The same, for all receivers together.
    shared: Option<Bytes>,
}

/// All packets of a run, one behind the other.
#[derive(Debug)]
pub(super) enum Encoded<'a> {
    /// To be copied.
    Copied(&'a [u8]),
    /// To be shared.
    Shared(Bytes),
}

/// In which place of a run's `packets` the packets of this version are.
fn place(version: ProtocolVersion) -> usize {
    usize::from(version == ProtocolVersion::V5)
}

impl Run {
    /// Forgets the last run.
    pub fn begin(&mut self, topic: &str) {
        self.topic.clear();
        self.topic.push_str(topic);
        self.bytes.clear();
        self.parts.clear();
        (self.payload_bytes, self.receivers, self.whole) = (0, 0, Whole::default());
        for packets in &mut self.packets {
            packets.forget();
        }
    }

    /// Whether `message` is to the same topic, and there is room for it.
    #[must_use]
    pub fn takes(&self, message: &Message<'_>) -> bool {
        let bytes = self.bytes.len() + message.bytes() + self.parts.len() * (self.topic.len() + PACKET_BYTES);
        message.topic == self.topic && bytes <= RUN_BYTES_MAX
    }

    /// Adds a message of its topic.
    pub fn push(&mut self, message: &Message<'_>) {
        let Message { payload, properties, expires_at, .. } = *message;
        self.bytes.extend_from_slice(properties);
        self.bytes.extend_from_slice(payload);
        self.payload_bytes += payload.len();
        self.parts.push(Part { head_len: 0, properties_len: properties.len(), payload_len: payload.len(), expires_at });
    }

    /// Adds what follows the first of `packets`, of `first_bytes` bytes, which is the message that was added last, as far as it is like that one and there is room for it.
    /// Gives the bytes of what was added.
    pub fn push_alike(&mut self, alike: &Alike<'_>, packets: &[u8], first_bytes: usize) -> usize {
        let room = RUN_BYTES_MAX.saturating_sub(self.bytes.len());
        let next = |at: usize| {
            let Measured { bytes, payload_bytes } = alike.measure(packets.get(at..)?)?;
            (payload_bytes < SHARE_PAYLOAD_BYTES && at + bytes <= room).then_some((bytes, payload_bytes))
        };
        let Some(mut found) = next(first_bytes) else { return 0 };
        let Some(first) = self.parts.pop() else { return 0 };
        // It is kept as it came, too.
        self.bytes.truncate(self.bytes.len() - first.len());
        self.packets.iter_mut().for_each(Packets::forget);
        let place = place(alike.version());
        let is_whole = self.parts.is_empty() || (self.whole.messages >= self.parts.len() && self.whole.place == place);
        let add = |run: &mut Self, bytes: usize, payload_len: usize| {
            run.parts.push(Part { head_len: bytes - payload_len, properties_len: 0, payload_len, expires_at: None });
            run.whole.largest_bytes = run.whole.largest_bytes.max(bytes);
        };
        add(self, first_bytes, first.payload_len);
        let mut at = first_bytes;
        loop {
            let (bytes, payload_len) = found;
            add(self, bytes, payload_len);
            self.payload_bytes += payload_len;
            at += bytes;
            match next(at) {
                Some(another) => found = another,
                None => break,
            }
        }
        self.bytes.extend_from_slice(packets.get(..at).unwrap_or_default());
        if is_whole {
            (self.whole.messages, self.whole.place) = (self.parts.len(), place);
        }
        at - first_bytes
    }

    /// So many are about to be given it.
    pub fn receivers(&mut self, count: usize) {
        self.receivers = count;
    }

    /// How many messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Of all payloads together.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Their topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Each, in the order in which they came.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let mut rest = self.bytes.as_slice();
        self.parts.iter().map(move |part| {
            let (_, behind) = rest.split_at_checked(part.head_len).unwrap_or_default();
            let (properties, behind) = behind.split_at_checked(part.properties_len).unwrap_or_default();
            let (payload, behind) = behind.split_at_checked(part.payload_len).unwrap_or_default();
            rest = behind;
            let expires_at = part.expires_at;
            Message { topic: &self.topic, payload, qos: QoS::AtMostOnce, retain: false, expires_at, properties }
        })
    }

    /// The packets for clients of this version. None: one of them cannot be one, or is larger than `packet_bytes_max`.
    pub(super) fn packets(&mut self, version: ProtocolVersion, packet_bytes_max: usize, now: Instant) -> Option<Encoded<'_>> {
        let place = place(version);
        let is_whole = self.whole.messages == self.parts.len() && self.whole.place == place;
        if !is_whole && self.packets.get(place)?.made != self.parts.len() {
            let mut packets = std::mem::take(self.packets.get_mut(place)?);
            let is_made = packets.make(self, version, now);
            *self.packets.get_mut(place)? = packets;
            if !is_made {
                return None;
            }
        }
        let packets = self.packets.get_mut(place)?;
        let (bytes, largest_bytes) =
            if is_whole { (&self.bytes, self.whole.largest_bytes) } else { (&packets.bytes, packets.largest_bytes) };
        if largest_bytes > packet_bytes_max {
            return None;
        }
        if self.receivers < SHARE_RECEIVERS || bytes.len() < SHARE_PAYLOAD_BYTES {
            return Some(Encoded::Copied(bytes));
        }
        Some(Encoded::Shared(packets.shared.get_or_insert_with(|| Bytes::copy_from_slice(bytes)).clone()))
    }
}

impl Packets {
    fn forget(&mut self) {
        (self.made, self.largest_bytes) = (0, 0);
        self.bytes.clear();
        self.shared = None;
    }

    /// Whether all can be sent.
    fn make(&mut self, run: &Run, version: ProtocolVersion, now: Instant) -> bool {
        self.forget();
        let mut before: Option<(&Part, std::ops::Range<usize>)> = None;
        for (part, message) in run.parts.iter().zip(run.messages()) {
            let start = self.bytes.len();
            match before.take().filter(|(other, _)| part.has_head_of(other)) {
                Some((_, head)) => self.bytes.extend_from_within(head),
                None => {
                    let head = PublishHead {
                        dup: false,
                        qos: QoS::AtMostOnce,
                        retain: false,
                        topic: message.topic,
                        packet_id: None,
                        message_expiry_seconds: message.expires_at.map(|at| remaining_seconds(at, now)),
                        subscription_ids: &[],
                        properties: message.properties,
                        payload_len: message.payload.len(),
                        topic_alias: None,
                    };
                    if codec::encode_publish_head(&mut self.bytes, version, &head).is_err() {
                        return false;
                    }
                }
            }
            before = Some((part, start..self.bytes.len()));
            self.bytes.extend_from_slice(message.payload);
            self.largest_bytes = self.largest_bytes.max(self.bytes.len() - start);
        }
        self.made = run.parts.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::codec::Packet;

    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_run_is_sent_as_its_messages_one_behind_the_other() {
        let now = now();
        let content_type = [0x03, 0, 1, b'x'];
        let message = |payload, properties, expires_at| Message {
            topic: "a/b",
            payload,
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at,
            properties,
        };
        let messages = [
            message(b"1".as_slice(), [].as_slice(), None),
            message(b"2", &[], None),
            message(b"three", &[], None),
            message(b"", &content_type, None),
            message(b"fiver", &[], Some(now + Duration::from_secs(9))),
            message(b"sixth", &[], None),
            message(b"seven", &[], None),
        ];
        let mut run = Run::default();
        run.begin("x");
        run.push(&message(b"of another run", &[], None));
        run.begin("a/b");
        for message in &messages {
            assert!(run.takes(message));
            run.push(message);
        }
        assert_eq!((run.len(), run.payload_bytes()), (7, 22));
        assert!(run.messages().zip(&messages).all(|(got, gave)| format!("{got:?}") == format!("{gave:?}")));
        for version in [ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5] {
            let packets = encoded(&mut run, version, now);
            let (mut at, mut largest) = (0, 0);
            for message in &messages {
                let (packet, length) = codec::decode(&packets[at..], version, 1_000).unwrap().unwrap();
                let Packet::Publish(publish) = packet else { panic!("{packet:?}") };
                assert_eq!((publish.topic, publish.payload, publish.qos), ("a/b", message.payload, QoS::AtMostOnce));
                assert!(!publish.retain && !publish.dup);
                let is_v5 = version == ProtocolVersion::V5;
                let expiry = publish.properties.message_expiry_seconds;
                assert_eq!(expiry.is_some(), is_v5 && message.expires_at.is_some());
                assert_eq!(publish.properties.is_forwardable_empty(), !is_v5 || message.properties.is_empty());
                (at, largest) = (at + length, largest.max(length));
            }
            assert_eq!(at, packets.len());
            assert!(run.packets(version, largest, now).is_some() && run.packets(version, largest - 1, now).is_none());
        }
    }

    /// Copied or shared.
    fn encoded(run: &mut Run, version: ProtocolVersion, now: Instant) -> Vec<u8> {
        match run.packets(version, usize::MAX, now).unwrap() {
            Encoded::Copied(bytes) => bytes.to_vec(),
            Encoded::Shared(bytes) => bytes.to_vec(),
        }
    }

    /// What a client of this version sends.
    fn packet(version: ProtocolVersion, payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        let publish = codec::Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "t",
            packet_id: None,
            properties: codec::PublishProperties::default(),
            payload,
        };
        codec::encode(&mut packet, version, &Packet::Publish(publish)).unwrap();
        packet
    }

    #[test]
    fn what_is_kept_as_it_came_is_what_would_have_been_made_of_it() {
        let now = now();
        let message =
            |payload| Message { topic: "t", payload, qos: QoS::AtMostOnce, retain: false, expires_at: None, properties: &[] };
        let payloads: Vec<Vec<u8>> = (0..200_usize).map(|number| vec![number as u8; number * 7 % 300]).collect();
        for version in [ProtocolVersion::V3_1_1, ProtocolVersion::V5] {
            for alone in [0, 1, 3] {
                let (mut run, mut one_by_one) = (Run::default(), Run::default());
                run.begin("t");
                one_by_one.begin("t");
                let (first, rest) = payloads.split_at(alone);
                first.iter().for_each(|payload| run.push(&message(payload)));
                let mut done = alone;
                let mut rest = rest;
                // As a connection does: one is looked at, those behind it are not, and another is looked at when there is room no more or something came in between.
                while let Some(payload) = rest.first().filter(|payload| run.takes(&message(payload))) {
                    run.push(&message(payload));
                    let packets: Vec<Vec<u8>> = rest.iter().take(9).map(|payload| packet(version, payload)).collect();
                    let (Packet::Publish(publish), length) = codec::decode(&packets[0], version, 1_000).unwrap().unwrap() else {
                        panic!()
                    };
                    let alike = Alike::to(&packets[0], &publish, version, 1_000).unwrap();
                    let bytes = run.push_alike(&alike, &packets.concat(), length);
                    let added = run.len() - done;
                    assert_eq!(bytes, packets[1..added].concat().len());
                    (done, rest) = (done + added, &rest[added..]);
                }
                payloads[..done].iter().for_each(|payload| one_by_one.push(&message(payload)));
                assert!(done > 20 && run.bytes.len() <= RUN_BYTES_MAX + 320, "{done}");
                assert_eq!((run.len(), run.payload_bytes()), (one_by_one.len(), one_by_one.payload_bytes()));
                assert!(run.messages().zip(one_by_one.messages()).all(|(a, b)| format!("{a:?}") == format!("{b:?}")));
                for receivers in [1, SHARE_RECEIVERS] {
                    run.receivers(receivers);
                    for to in [ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5] {
                        assert!(encoded(&mut run, to, now) == encoded(&mut one_by_one, to, now), "{version} to {to}");
                        let largest = 300 + 5 + usize::from(to == ProtocolVersion::V5);
                        assert!(run.packets(to, largest, now).is_some());
                        let is_shared = matches!(run.packets(to, largest, now), Some(Encoded::Shared(_)));
                        assert_eq!(is_shared, receivers == SHARE_RECEIVERS);
                    }
                }
            }
        }
    }

    #[test]
    fn what_came_behind_is_in_the_packets_too() {
        let message =
            |payload| Message { topic: "t", payload, qos: QoS::AtMostOnce, retain: false, expires_at: None, properties: &[] };
        let (mut run, now) = (Run::default(), now());
        run.begin("t");
        run.push(&message(b"1"));
        let one = encoded(&mut run, ProtocolVersion::V5, now).len();
        run.push(&message(b"2"));
        assert_eq!(encoded(&mut run, ProtocolVersion::V5, now).len(), 2 * one);
        let packets = packet(ProtocolVersion::V5, b"2").repeat(400);
        let (Packet::Publish(publish), length) = codec::decode(&packets, ProtocolVersion::V5, 99).unwrap().unwrap() else {
            panic!()
        };
        let alike = Alike::to(&packets[..length], &publish, ProtocolVersion::V5, 99).unwrap();
        run.receivers(SHARE_RECEIVERS);
        for _ in 0..2 {
            let before = run.len();
            run.push_alike(&alike, &packets[..200 * length], length);
            assert_eq!((run.len(), encoded(&mut run, ProtocolVersion::V5, now).len()), (before + 199, run.len() * one));
        }
    }

    #[test]
    fn a_run_has_one_topic_and_an_end() {
        let payload = [0; 1_000];
        let message =
            |topic| Message { topic, payload: &payload, qos: QoS::AtMostOnce, retain: false, expires_at: None, properties: &[] };
        let mut run = Run::default();
        run.begin("t");
        assert!(run.is_empty() && run.takes(&message("t")) && !run.takes(&message("u")));
        while run.takes(&message("t")) {
            run.push(&message("t"));
        }
        assert_eq!(run.len(), 16);
    }
}

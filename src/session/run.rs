//! A run: messages of QoS 0 from one publisher to one topic that follow one another, encoded together and given to each receiver at once.
//!
//! One by one, each message costs every receiver its lock and a look at its state; a run costs that once. It holds copies, and no longer than the
//! read batch that brought it lasts. Receivers to whom a message is more than its packet (subscription identifiers, topic aliases, a queue that is not empty) take it message by
//! message. Invariant: what a receiver is sent is the same either way, to the byte.

use std::time::Instant;

use super::message::{Message, remaining_seconds};
use crate::codec::{self, ProtocolVersion, PublishHead, QoS};

/// What a run may come to, about, in bytes as they are sent: of a batch that is larger receivers need not wait for the end.
const RUN_BYTES_MAX: usize = 16 * 1024;
/// What a packet has besides topic, properties and payload, at most: header, remaining length, topic length, property length, expiry.
const PACKET_BYTES: usize = 16;

/// See the module's page.
#[derive(Debug, Default)]
pub struct Run {
    topic: String,
    /// Properties and payload of each, one behind the other.
    bytes: Vec<u8>,
    parts: Vec<Part>,
    payload_bytes: usize,
    /// Before MQTT 5, and in it.
    packets: [Packets; 2],
}

/// One message.
#[derive(Debug)]
struct Part {
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
}

/// All messages of a run as one kind of client is sent them.
#[derive(Debug, Default)]
pub(super) struct Packets {
    /// Of how many messages.
    made: usize,
    pub(super) bytes: Vec<u8>,
    /// The largest of them, bytes.
    pub(super) largest_bytes: usize,
}

impl Run {
    /// Forgets the last run.
    pub fn begin(&mut self, topic: &str) {
        self.topic.clear();
        self.topic.push_str(topic);
        self.bytes.clear();
        self.parts.clear();
        self.payload_bytes = 0;
        for packets in &mut self.packets {
            packets.made = 0;
            packets.bytes.clear();
            packets.largest_bytes = 0;
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
        self.parts.push(Part { properties_len: properties.len(), payload_len: payload.len(), expires_at });
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

    /// Each, in the order in which they came.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let mut rest = self.bytes.as_slice();
        self.parts.iter().map(move |part| {
            let (properties, behind) = rest.split_at_checked(part.properties_len).unwrap_or_default();
            let (payload, behind) = behind.split_at_checked(part.payload_len).unwrap_or_default();
            rest = behind;
            let expires_at = part.expires_at;
            Message { topic: &self.topic, payload, qos: QoS::AtMostOnce, retain: false, expires_at, properties }
        })
    }

    /// The packets for clients of this version, made when they are asked for first. None: one of them cannot be one.
    pub(super) fn packets(&mut self, version: ProtocolVersion, now: Instant) -> Option<&Packets> {
        let place = usize::from(version == ProtocolVersion::V5);
        if self.packets.get(place)?.made == self.parts.len() {
            return self.packets.get(place);
        }
        let mut packets = std::mem::take(self.packets.get_mut(place)?);
        let is_made = packets.make(self, version, now);
        let kept = self.packets.get_mut(place)?;
        *kept = packets;
        is_made.then_some(kept)
    }
}

impl Packets {
    /// Whether all can be sent.
    fn make(&mut self, run: &Run, version: ProtocolVersion, now: Instant) -> bool {
        self.bytes.clear();
        self.largest_bytes = 0;
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
            let packets = run.packets(version, now).unwrap();
            let (mut at, mut largest) = (0, 0);
            for message in &messages {
                let (packet, length) = codec::decode(&packets.bytes[at..], version, 1_000).unwrap().unwrap();
                let Packet::Publish(publish) = packet else { panic!("{packet:?}") };
                assert_eq!((publish.topic, publish.payload, publish.qos), ("a/b", message.payload, QoS::AtMostOnce));
                assert!(!publish.retain && !publish.dup);
                let is_v5 = version == ProtocolVersion::V5;
                let expiry = publish.properties.message_expiry_seconds;
                assert_eq!(expiry.is_some(), is_v5 && message.expires_at.is_some());
                assert_eq!(publish.properties.is_forwardable_empty(), !is_v5 || message.properties.is_empty());
                (at, largest) = (at + length, largest.max(length));
            }
            assert_eq!((at, largest), (packets.bytes.len(), packets.largest_bytes));
        }
    }

    #[test]
    fn what_came_behind_is_in_the_packets_too() {
        let message =
            |payload| Message { topic: "t", payload, qos: QoS::AtMostOnce, retain: false, expires_at: None, properties: &[] };
        let (mut run, now) = (Run::default(), now());
        run.begin("t");
        run.push(&message(b"1"));
        let one = run.packets(ProtocolVersion::V5, now).unwrap().bytes.len();
        run.push(&message(b"2"));
        assert_eq!(run.packets(ProtocolVersion::V5, now).unwrap().bytes.len(), 2 * one);
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

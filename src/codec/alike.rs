//! PUBLISH packets that differ from one that was decoded in their payload only: what stands behind their heads is found without decoding them.
//!
//! Who publishes much publishes often to one topic, and many packets come with one read. Of QoS 0, without RETAIN and properties, all that a receiver needs to know of
//! the second is where its payload begins and ends, for all else was looked at in the first.
//!
//! Invariant: a packet that is measured here decodes, and to what the first did, but for its payload.

use super::{PacketType, ProtocolVersion, Publish, QoS, wire::varint};

/// See the module's page.
#[derive(Clone, Copy, Debug)]
pub struct Alike<'a> {
    /// What follows the remaining length in all of them: topic with its length, and in version 5 that there are no properties.
    front: &'a [u8],
    version: ProtocolVersion,
    packet_bytes_max: u32,
}

/// Where one of them ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of the whole packet.
    pub bytes: usize,
    /// Bytes of its payload, which stands at its end.
    pub payload_bytes: usize,
}

impl<'a> Alike<'a> {
    /// Those that are like `packet`, which was decoded to `publish`. None: there is more in it than topic and payload.
    #[must_use]
    #[inline]
    pub fn to(packet: &'a [u8], publish: &Publish<'a>, version: ProtocolVersion, packet_bytes_max: u32) -> Option<Self> {
        if publish.qos != QoS::AtMostOnce || publish.retain || publish.topic.is_empty() {
            return None;
        }
        let (_, length_bytes) = varint(packet.get(1..)?).ok()??;
        let front = packet.get(1 + length_bytes..packet.len().checked_sub(publish.payload.len())?)?;
        // The length of the topic, the topic, and in version 5 one byte: no properties.
        let properties_bytes = usize::from(version == ProtocolVersion::V5);
        (front.len() == 2 + publish.topic.len() + properties_bytes).then_some(Self { front, version, packet_bytes_max })
    }

    /// Of which version they are.
    #[must_use]
    pub fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// Measures the packet at the front of `input`. None: it is not like them, or has not all come.
    #[must_use]
    #[inline]
    pub fn measure(&self, input: &[u8]) -> Option<Measured> {
        let (first, rest) = input.split_first()?;
        if *first != PacketType::Publish.first_byte() {
            return None;
        }
        let (remaining, length_bytes) = varint(rest).ok()??;
        let remaining = remaining as usize;
        let bytes = 1 + length_bytes + remaining;
        let behind = rest.get(length_bytes..)?;
        let is_like = bytes <= self.packet_bytes_max as usize && behind.len() >= remaining && behind.starts_with(self.front);
        let payload_bytes = remaining.checked_sub(self.front.len())?;
        is_like.then_some(Measured { bytes, payload_bytes })
    }
}

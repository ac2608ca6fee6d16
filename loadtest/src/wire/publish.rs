//! The hot path: PUBLISH out, PUBLISH in, and the four acknowledgements both ways, with no allocation for any of them.

use std::num::NonZeroU16;

use super::frame::{Frame, PacketKind, WireFault, push_variable_integer, variable_integer};
use super::{QoS, Version};
use crate::payload::{self, Stamp};

/// Writes the PUBLISH packets of one topic and quality of service.
pub(crate) struct PublishWriter {
    first_byte: u8,
    /// The topic behind its length.
    topic: Vec<u8>,
    /// Everything before the packet id for a payload of so many bytes: mostly the next is as long.
    head: Vec<u8>,
    head_of: Option<usize>,
    packet_id_bytes: usize,
    /// The empty property list of MQTT 5.
    properties: &'static [u8],
}

impl PublishWriter {
    /// `topic` is at most 65,535 bytes and the whole packet within the protocol's 256 MiB: the arguments' parser sees to that.
    pub(crate) fn new(version: Version, qos: QoS, topic: &str) -> Self {
        let mut length_and_topic = u16::try_from(topic.len()).unwrap_or(u16::MAX).to_be_bytes().to_vec();
        length_and_topic.extend_from_slice(topic.as_bytes());
        Self {
            first_byte: PacketKind::Publish.first_byte() | qos.number() << 1,
            topic: length_and_topic,
            head: Vec::new(),
            head_of: None,
            packet_id_bytes: if qos == QoS::AtMostOnce { 0 } else { 2 },
            properties: match version {
                Version::V3_1_1 => &[],
                Version::V5 => &[0],
            },
        }
    }

    /// Appends one packet; `packet_id` is there for QoS 1 and 2 and absent for QoS 0.
    #[inline]
    pub(crate) fn write(&mut self, packet_id: Option<NonZeroU16>, stamp: &Stamp, payload_bytes: usize, out: &mut Vec<u8>) {
        if self.head_of != Some(payload_bytes) {
            let remaining_bytes = self.remaining_bytes(payload_bytes);
            self.head.clear();
            self.head.push(self.first_byte);
            push_variable_integer(&mut self.head, remaining_bytes);
            self.head.extend_from_slice(&self.topic);
            self.head_of = Some(payload_bytes);
        }
        out.extend_from_slice(&self.head);
        if let Some(id) = packet_id {
            out.extend_from_slice(&id.get().to_be_bytes());
        }
        out.extend_from_slice(self.properties);
        payload::write(stamp, payload_bytes, out);
    }

    /// The length of a packet with such a payload, in bytes.
    pub(crate) fn packet_bytes(&self, payload_bytes: usize) -> usize {
        let mut length = Vec::new();
        push_variable_integer(&mut length, self.remaining_bytes(payload_bytes));
        1 + length.len() + self.remaining_bytes(payload_bytes)
    }

    #[inline]
    fn remaining_bytes(&self, payload_bytes: usize) -> usize {
        self.topic.len() + self.packet_id_bytes + self.properties.len() + payload_bytes
    }
}

/// A PUBLISH that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Publish<'a> {
    pub(crate) topic: &'a [u8],
    /// There for QoS 1 and 2.
    pub(crate) packet_id: Option<NonZeroU16>,
    pub(crate) qos: QoS,
    pub(crate) payload: &'a [u8],
}

/// Reads a PUBLISH frame.
///
/// # Errors
/// When it is malformed.
#[inline]
pub(crate) fn publish<'a>(frame: &Frame<'a>, version: Version) -> Result<Publish<'a>, WireFault> {
    read_publish(frame, version).ok_or(WireFault::Malformed(PacketKind::Publish))
}

#[inline]
fn read_publish<'a>(frame: &Frame<'a>, version: Version) -> Option<Publish<'a>> {
    let qos = QoS::from_number(frame.first_byte >> 1 & 3)?;
    let (topic_bytes, rest) = frame.body.split_first_chunk()?;
    let (topic, mut rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*topic_bytes)))?;
    let mut packet_id = None;
    if qos != QoS::AtMostOnce {
        let (id, after) = rest.split_first_chunk()?;
        packet_id = Some(NonZeroU16::new(u16::from_be_bytes(*id))?);
        rest = after;
    }
    if version == Version::V5 {
        let (properties_bytes, after) = variable_integer(rest).ok()??;
        rest = after.get(properties_bytes..)?;
    }
    Some(Publish { topic, packet_id, qos, payload: rest })
}

/// Reads a PUBACK, PUBREC, PUBREL or PUBCOMP: the packet id, and the reason code (0 where there is none).
///
/// # Errors
/// When it is malformed.
pub(crate) fn acknowledgement(frame: &Frame<'_>, version: Version) -> Result<(NonZeroU16, u8), WireFault> {
    let read = match (frame.body, version) {
        (&[high, low], _) => Some(([high, low], 0)),
        (&[high, low, reason, ..], Version::V5) => Some(([high, low], reason)),
        _ => None,
    };
    read.and_then(|(id, reason)| Some((NonZeroU16::new(u16::from_be_bytes(id))?, reason))).ok_or(WireFault::Malformed(frame.kind))
}

/// Appends a PUBACK, PUBREC, PUBREL or PUBCOMP: the short form, which is right in every version.
pub(crate) fn write_acknowledgement(kind: PacketKind, packet_id: NonZeroU16, out: &mut Vec<u8>) {
    let [high, low] = packet_id.get().to_be_bytes();
    out.extend_from_slice(&[kind.first_byte(), 2, high, low]);
}

#[cfg(test)]
mod tests {
    use super::super::split;
    use super::*;

    const STAMP: Stamp = Stamp { run: 1, flow: 2, sequence: 3, due_at_ns: 4 };

    fn id(number: u16) -> Option<NonZeroU16> {
        NonZeroU16::new(number)
    }

    #[test]
    fn what_is_written_is_read() {
        for version in [Version::V3_1_1, Version::V5] {
            for (qos, packet_id) in [(QoS::AtMostOnce, None), (QoS::AtLeastOnce, id(1)), (QoS::ExactlyOnce, id(65_535))] {
                for payload_bytes in [32, 100, 127, 20_000, 3_000_000] {
                    let mut writer = PublishWriter::new(version, qos, "a/b");
                    let mut out = Vec::new();
                    writer.write(packet_id, &STAMP, payload_bytes, &mut out);
                    assert_eq!(out.len(), writer.packet_bytes(payload_bytes));
                    let (frame, rest) = split(&out).unwrap().unwrap();
                    assert!(rest.is_empty());
                    let read = publish(&frame, version).unwrap();
                    assert_eq!((read.topic, read.packet_id, read.qos), (&b"a/b"[..], packet_id, qos));
                    assert_eq!(payload::read(read.payload), Ok(STAMP));
                }
            }
        }
    }

    /// A codec that is not ours reads the same.
    #[test]
    fn mqttbytes_reads_what_we_write() {
        let mut out = Vec::new();
        PublishWriter::new(Version::V3_1_1, QoS::AtLeastOnce, "a/b").write(id(258), &STAMP, 40, &mut out);
        let read = mqttbytes::v4::read(&mut bytes::BytesMut::from(&out[..]), 1000).unwrap();
        let mqttbytes::v4::Packet::Publish(read) = read else { panic!("{read:?}") };
        assert_eq!((read.topic.as_str(), read.pkid, read.qos as u8, read.dup, read.retain), ("a/b", 258, 1, false, false));
        assert_eq!(payload::read(&read.payload), Ok(STAMP));
    }

    #[test]
    fn properties_of_a_version_5_publish_are_skipped() {
        let packet = [0x30, 9, 0, 1, b't', 3, 0x23, 0, 1, b'h', b'i'];
        let (frame, _) = split(&packet).unwrap().unwrap();
        assert_eq!(publish(&frame, Version::V5).unwrap().payload, b"hi");
    }

    #[test]
    fn malformed_packets_are_refused() {
        let table: &[(&[u8], Version)] = &[
            (&[0x30, 1, 0], Version::V3_1_1),                             // no topic length
            (&[0x30, 3, 0, 9, b't'], Version::V3_1_1),                    // topic longer than the packet
            (&[0x36, 5, 0, 1, b't', 0, 1], Version::V3_1_1),              // QoS 3
            (&[0x32, 5, 0, 1, b't', 0, 0], Version::V3_1_1),              // packet id 0
            (&[0x32, 4, 0, 1, b't', 0], Version::V3_1_1),                 // packet id cut off
            (&[0x30, 3, 0, 1, b't'], Version::V5),                        // no property length
            (&[0x30, 4, 0, 1, b't', 5], Version::V5),                     // properties longer than the packet
            (&[0x30, 8, 0, 1, b't', 255, 255, 255, 255, 1], Version::V5), // property length over four bytes
        ];
        for (bytes, version) in table {
            let (frame, _) = split(bytes).unwrap().unwrap();
            assert_eq!(publish(&frame, *version), Err(WireFault::Malformed(PacketKind::Publish)), "{bytes:?}");
        }
    }

    #[test]
    fn acknowledgements_short_long_and_malformed() {
        let read = |bytes: &[u8], version| {
            let (frame, _) = split(bytes).unwrap().unwrap();
            acknowledgement(&frame, version).map(|(id, reason)| (id.get(), reason)).ok()
        };
        for version in [Version::V3_1_1, Version::V5] {
            assert_eq!(read(&[0x40, 2, 1, 2], version), Some((258, 0)));
            assert_eq!(read(&[0x40, 2, 0, 0], version), None, "packet id 0");
            assert_eq!(read(&[0x40, 1, 0], version), None);
        }
        assert_eq!(read(&[0x40, 3, 1, 2, 0x97], Version::V5), Some((258, 0x97)));
        assert_eq!(read(&[0x40, 4, 1, 2, 0x10, 0], Version::V5), Some((258, 0x10)));
        assert_eq!(read(&[0x40, 3, 1, 2, 0x97], Version::V3_1_1), None, "no reason codes in 3.1.1");
        let mut out = Vec::new();
        write_acknowledgement(PacketKind::PubRel, NonZeroU16::new(258).unwrap(), &mut out);
        assert_eq!(out, [0x62, 2, 1, 2]);
    }
}

//! Any bytes in any version: decoding does not panic, keeps to its frame, and what it accepts has one meaning: it encodes, and decodes to the
//! same packet; behind another it decodes to the same, and what is measured by its likeness to that is it. The first byte chooses the version, the rest is what a connection brings.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt_st_quic::codec::{Alike, Packet, ProtocolVersion, Publish, decode, decode_behind, decode_connect, encode, frame_length};

const PACKET_BYTES_MAX: u32 = 64 * 1024;

fuzz_target!(|input: &[u8]| {
    let Some((selector, mut rest)) = input.split_first() else { return };
    let version = match selector % 3 {
        0 => ProtocolVersion::V3_1,
        1 => ProtocolVersion::V3_1_1,
        _ => ProtocolVersion::V5,
    };
    if let Ok(Some((connect, length))) = decode_connect(rest, PACKET_BYTES_MAX) {
        assert_eq!(decode(rest, version, PACKET_BYTES_MAX), Ok(Some((Packet::Connect(Box::new(connect)), length))));
    }
    // The PUBLISH before, and its bytes.
    let mut before: Option<(Publish<'_>, &[u8])> = None;
    loop {
        let decoded = decode(rest, version, PACKET_BYTES_MAX);
        if let Some((publish, frame)) = before {
            assert_eq!(decode_behind(publish.topic, rest, version, PACKET_BYTES_MAX), decoded);
            let alike = Alike::to(frame, &publish, version, PACKET_BYTES_MAX);
            if let Some(measured) = alike.and_then(|alike| alike.measure(rest)) {
                let payload = &rest[measured.bytes - measured.payload_bytes..measured.bytes];
                assert_eq!(decoded, Ok(Some((Packet::Publish(Publish { payload, ..publish }), measured.bytes))));
            }
        }
        let Ok(Some((packet, length))) = decoded else { break };
        let frame = &rest[..length];
        assert_eq!(frame_length(frame), Ok(Some(length)));
        assert_eq!(decode(&frame[..length - 1], version, PACKET_BYTES_MAX), Ok(None));
        let mut again = Vec::new();
        encode(&mut again, version, &packet).expect("what was decoded can be encoded");
        assert_eq!(decode(&again, version, u32::MAX), Ok(Some((packet.clone(), again.len()))));
        if let Packet::Publish(publish) = packet {
            before = Some((publish, frame));
        }
        rest = &rest[length..];
    }
});

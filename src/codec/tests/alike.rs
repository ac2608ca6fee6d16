//! What is found by its likeness to a packet before is what decoding finds.

use super::*;

/// Packets, some of which differ from others in their payload only.
fn packets(version: ProtocolVersion) -> Vec<Vec<u8>> {
    let end = if version == ProtocolVersion::V5 { "00" } else { "" };
    let plain = |first: &str, topic: &str, payload: &str| bytes(&format!("{first} ( s'{topic}' {end} '{payload}' )"));
    let long = "x".repeat(300);
    let mut packets = vec![
        plain("30", "a/b", "1"),
        plain("30", "a/b", ""),
        plain("30", "a/b", &long),
        plain("31", "a/b", "1"),
        plain("30", "a/c", "1"),
        plain("30", "a/bc", "1"),
        plain("30", "a", "/b"),
        plain("30", "é", "1"),
        bytes(&format!("32 ( s'a/b' 0001 {end} '1' )")),
        bytes(&format!("34 ( s'a/b' 0002 {end} '1' )")),
        bytes("c0 00"),
        // Refused: a length that is not in its shortest form, and a wildcard.
        bytes("30 8700 s'a/b' 00 '1'"),
        plain("30", "a/#", "1"),
    ];
    if version == ProtocolVersion::V5 {
        packets.extend([
            bytes("30 ( s'a/b' ( 01 00 ) '1' )"),
            bytes("30 ( s'a/b' ( 23 0001 ) '1' )"),
            bytes("30 ( s'' ( 23 0001 ) '1' )"),
        ]);
    }
    packets
}

#[test]
fn what_is_like_a_packet_decodes_to_the_same_but_for_its_payload() {
    const MAX: u32 = 200;
    let mut found = 0;
    for version in ALL.iter().copied() {
        let packets = packets(version);
        for (first, second) in packets.iter().flat_map(|first| packets.iter().map(move |second| (first, second))) {
            let Ok(Some((Packet::Publish(publish), _))) = decode(first, version, u32::MAX) else { continue };
            let decoded = decode(second, version, MAX);
            assert_eq!(decode_behind(publish.topic, second, version, MAX), decoded, "{version}: {second:02x?}");
            let is_plain = |publish: &Publish<'_>| {
                publish.qos == QoS::AtMostOnce && !publish.retain && publish.properties == PublishProperties::default()
            };
            let Some(alike) = Alike::to(first, &publish, version, MAX) else {
                assert!(!is_plain(&publish), "{version}: {first:02x?}");
                continue;
            };
            assert!(is_plain(&publish) && alike.version() == version);
            let is_alike =
                matches!(&decoded, Ok(Some((Packet::Publish(second), _))) if is_plain(second) && second.topic == publish.topic);
            // Behind it is something else, as a rule.
            let measured = alike.measure(&[second.as_slice(), &[0x30, 1]].concat());
            assert_eq!(measured.is_some(), is_alike, "{version}: {first:02x?}, {second:02x?}");
            let Some(Measured { bytes, payload_bytes }) = measured else { continue };
            let (head, payload) = second.split_at(bytes - payload_bytes);
            assert_eq!(decoded, Ok(Some((Packet::Publish(Publish { payload, ..publish }), second.len()))));
            assert!(head.len() + payload.len() == second.len());
            for cut in 0..second.len() {
                assert_eq!(alike.measure(&second[..cut]), None, "it has not all come");
            }
            found += 1;
        }
    }
    // Of each version the first two beside each other, and those that have one topic with themselves.
    assert!(found > 3 * 4, "{found}");
}

#[test]
fn a_topic_that_was_there_before_is_not_taken_for_another() {
    for version in ALL {
        for second in packets(*version) {
            for before in ["", "a", "a/b", "a/c", "a/bc", "é", "a/b/c"] {
                assert_eq!(
                    decode_behind(before, &second, *version, 200),
                    decode(&second, *version, 200),
                    "{before:?}: {second:02x?}"
                );
            }
        }
    }
}

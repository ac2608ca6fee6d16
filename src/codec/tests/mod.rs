//! The codec against the specification (`vectors`, `packets`), against a foreign codec (`differential`), against itself (`identity`, `alike`) and
//! against garbage (`mutation`).

mod alike;
mod differential;
mod identity;
mod mutation;
mod packets;
mod vectors;

use super::*;

const V3_1: &[ProtocolVersion] = &[ProtocolVersion::V3_1];
const V3_1_1: &[ProtocolVersion] = &[ProtocolVersion::V3_1_1];
const V3: &[ProtocolVersion] = &[ProtocolVersion::V3_1, ProtocolVersion::V3_1_1];
const V5: &[ProtocolVersion] = &[ProtocolVersion::V5];
const SINCE_3_1_1: &[ProtocolVersion] = &[ProtocolVersion::V3_1_1, ProtocolVersion::V5];
const ALL: &[ProtocolVersion] = &[ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5];

/// Bytes from a notation that is as near to the specification's tables as a line can be: hexadecimal digits, `'text'` for its characters,
/// `s'text'` for a string with its length of two bytes, `( ... )` for a section with its Variable Byte Integer length in front.
fn bytes(notation: &str) -> Vec<u8> {
    let mut sections = vec![Vec::new()];
    let mut rest = notation.trim_start();
    while let Some(first) = rest.chars().next() {
        let out: &mut Vec<u8> = sections.last_mut().expect("more ) than (");
        match first {
            '(' => {
                sections.push(Vec::new());
                rest = &rest[1..];
            }
            ')' => {
                let section = sections.pop().expect("more ) than (");
                let out = sections.last_mut().expect("more ) than (");
                let mut length = section.len();
                while length > 0x7f {
                    out.push(length as u8 | 0x80);
                    length >>= 7;
                }
                out.push(length as u8);
                out.extend(section);
                rest = &rest[1..];
            }
            's' | '\'' => {
                let (_, quoted) = rest.split_once('\'').expect("an opening quote");
                let (text, after) = quoted.split_once('\'').expect("a closing quote");
                if first == 's' {
                    out.extend(u16::try_from(text.len()).expect("a short string").to_be_bytes());
                }
                out.extend(text.as_bytes());
                rest = after;
            }
            _ => {
                out.push(u8::from_str_radix(&rest[..2], 16).unwrap_or_else(|error| panic!("{rest:?}: {error}")));
                rest = &rest[2..];
            }
        }
        rest = rest.trim_start();
    }
    assert_eq!(sections.len(), 1, "more ( than ) in {notation}");
    sections.remove(0)
}

/// Decodes all of `input`.
fn decode_whole(version: ProtocolVersion, input: &[u8]) -> Result<Packet<'_>, DecodeError> {
    let (packet, length) = decode(input, version, u32::MAX)?.unwrap_or_else(|| panic!("{version}: {input:02x?} is not whole"));
    assert_eq!(length, input.len());
    Ok(packet)
}

fn encoded(version: ProtocolVersion, packet: &Packet<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, version, packet).unwrap_or_else(|error| panic!("{version}: {packet:?}: {error}"));
    out
}

fn packet_id(value: u16) -> PacketId {
    PacketId::new(value).expect("not 0")
}

#[test]
fn the_notation_of_these_tests() {
    assert_eq!(bytes("10 0203 ( s'ab' ( 'c' ) )"), [0x10, 2, 3, 6, 0, 2, b'a', b'b', 1, b'c']);
    assert_eq!(bytes(&format!("( {} )", "00".repeat(200)))[..3], [0xc8, 0x01, 0]);
}

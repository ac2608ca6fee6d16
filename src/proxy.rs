//! The PROXY protocol, versions 1 and 2: the header with which a proxy says for whom it speaks, from bytes to [`Header`].
//!
//! It reads no socket: [`decode`] says how many bytes certainly still belong to the header, so that whoever reads never takes a byte of
//! what follows it. Whom to believe is not decided here.
//!
//! Specification: "The PROXY protocol, versions 1 & 2" (haproxy.org, `doc/proxy-protocol.txt`, 2020/03/05).
//!
//! Deviation: a header of version 2 may have 536 bytes in all, the size that section 2 has every receiver take; longer ones are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Longest header of version 2 that is taken, bytes.
pub const HEADER_BYTES_MAX: usize = 536;
/// Longest header of version 1 (section 2.1).
const TEXT_BYTES_MAX: usize = 107;
/// The shortest: `PROXY UNKNOWN` and its end.
const TEXT_BYTES_MIN: usize = 15;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const HEAD_BYTES: usize = 16;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// In text.
    V1,
    /// In binary.
    V2,
}

/// What a proxy says of its client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Where the client is. `None`: the proxy speaks for itself (LOCAL), or does not know, or has it from a unix socket.
    pub source: Option<SocketAddr>,
    /// The common name in the client's certificate, which the proxy has verified.
    pub common_name: Option<String>,
}

/// How far a header is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// At least so many bytes of it are still to come, one or more.
    More(usize),
    /// It is whole, and takes so many bytes.
    Whole(Header, usize),
}

/// Why bytes are no header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// Anything else: a client that came without the proxy, or a proxy that sends no header or the other version.
    #[error("no PROXY header of this version: is the proxy set to send it (HAProxy: `send-proxy`, `send-proxy-v2`)?")]
    Signature,
    /// Longer than the protocol has it, or than we take.
    #[error("a PROXY header of {0} bytes is too long")]
    TooLong(usize),
    /// Not as the specification has it.
    #[error("a malformed PROXY header: {0}")]
    Malformed(&'static str),
    /// Carried by something that is no stream, or unknown.
    #[error("a PROXY header of an address family or command that is not served: {0:#04x}")]
    Unsupported(u8),
}

/// Reads a header of `version` at the beginning of `bytes`.
///
/// # Errors
/// See [`ProxyError`]; as early as it can be seen.
pub fn decode(bytes: &[u8], version: Version) -> Result<Progress, ProxyError> {
    match version {
        Version::V1 => decode_text(bytes),
        Version::V2 => decode_binary(bytes),
    }
}

fn begins_alike(bytes: &[u8], expected: &[u8]) -> bool {
    bytes.iter().zip(expected).all(|(a, b)| a == b)
}

fn decode_text(bytes: &[u8]) -> Result<Progress, ProxyError> {
    if !begins_alike(bytes, b"PROXY ") {
        return Err(ProxyError::Signature);
    }
    let whole = bytes.iter().take(TEXT_BYTES_MAX).position(|byte| *byte == b'\n').map(|at| at + 1);
    let Some((line, length)) = whole.and_then(|length| Some((bytes.get(..length)?, length))) else {
        let ends = usize::from(bytes.last() != Some(&b'\r'));
        return match bytes.len() {
            length if length < TEXT_BYTES_MIN => Ok(Progress::More(TEXT_BYTES_MIN - length)),
            length if length + ends >= TEXT_BYTES_MAX => Err(ProxyError::TooLong(length)),
            _ => Ok(Progress::More(1 + ends)),
        };
    };
    let line = line.strip_suffix(b"\r\n").ok_or(ProxyError::Malformed("its line does not end in CR and LF"))?;
    let line = std::str::from_utf8(line).map_err(|_| ProxyError::Malformed("it is not text"))?;
    let mut words = line.split(' ').skip(1);
    let source = match words.next() {
        Some("UNKNOWN") => return Ok(Progress::Whole(Header::default(), length)),
        Some("TCP4") => text_source::<Ipv4Addr>(words)?,
        Some("TCP6") => text_source::<Ipv6Addr>(words)?,
        _ => return Err(ProxyError::Malformed("it has none of TCP4, TCP6 and UNKNOWN")),
    };
    Ok(Progress::Whole(Header { source: Some(source), common_name: None }, length))
}

/// Source address, destination address, source port, destination port.
fn text_source<'a, A: FromStr + Into<IpAddr>>(mut words: impl Iterator<Item = &'a str>) -> Result<SocketAddr, ProxyError> {
    let mut address = || words.next().and_then(|word| word.parse::<A>().ok()).ok_or(ProxyError::Malformed("a bad address"));
    let (source, _) = (address()?, address()?);
    let mut port = || {
        let word = words.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
        word.and_then(|word| word.parse::<u16>().ok()).ok_or(ProxyError::Malformed("a bad port"))
    };
    let (port, _) = (port()?, port()?);
    match words.next() {
        None => Ok(SocketAddr::new(source.into(), port)),
        Some(_) => Err(ProxyError::Malformed("more than two addresses and two ports")),
    }
}

fn decode_binary(bytes: &[u8]) -> Result<Progress, ProxyError> {
    if !begins_alike(bytes, SIGNATURE) {
        return Err(ProxyError::Signature);
    }
    let Some(&[command, family, high, low]) = bytes.get(SIGNATURE.len()..HEAD_BYTES) else {
        return Ok(Progress::More(HEAD_BYTES - bytes.len().min(HEAD_BYTES - 1)));
    };
    let length = HEAD_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if command >> 4 != 2 {
        return Err(ProxyError::Malformed("its version is not 2"));
    }
    if length > HEADER_BYTES_MAX {
        return Err(ProxyError::TooLong(length));
    }
    let Some(header) = bytes.get(..length) else { return Ok(Progress::More(length - bytes.len())) };
    let body = header.get(HEAD_BYTES..).unwrap_or_default();
    let read = match command & 0x0F {
        // LOCAL: a health check of the proxy itself. What it says of addresses is to be ignored.
        0 => Header::default(),
        1 => decode_body(header, family, body)?,
        _ => return Err(ProxyError::Unsupported(command)),
    };
    Ok(Progress::Whole(read, length))
}

fn decode_body(header: &[u8], family: u8, body: &[u8]) -> Result<Header, ProxyError> {
    const SHORT: ProxyError = ProxyError::Malformed("its addresses are cut off");
    let (source, rest) = match family {
        0x00 => return Ok(Header::default()),
        0x11 => {
            let (addresses, rest) = body.split_first_chunk::<12>().ok_or(SHORT)?;
            let [a, b, c, d, _, _, _, _, high, low, ..] = *addresses;
            (Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low]))), rest)
        }
        0x21 => {
            let (addresses, rest) = body.split_first_chunk::<36>().ok_or(SHORT)?;
            let (source, ports) = addresses.split_first_chunk::<16>().ok_or(SHORT)?;
            let port = ports.get(16..18).and_then(|port| port.try_into().ok()).ok_or(SHORT)?;
            (Some(SocketAddr::new(Ipv6Addr::from(*source).into(), u16::from_be_bytes(port))), rest)
        }
        0x31 => (None, body.split_at_checked(216).ok_or(SHORT)?.1),
        other => return Err(ProxyError::Unsupported(other)),
    };
    let mut common_name = None;
    let mut fields = Fields { rest };
    while let Some((kind, value)) = fields.next()? {
        match kind {
            // The fields reach to the end of the header.
            0x03 => check_sum(header, header.len() - fields.rest.len() - value.len(), value)?,
            0x20 => common_name = verified_name(value)?,
            _ => {}
        }
    }
    Ok(Header { source, common_name })
}

/// Type, length, value (section 2.2).
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u8, &'a [u8])>, ProxyError> {
        const SHORT: ProxyError = ProxyError::Malformed("a field is cut off");
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (&[kind, high, low], rest) = self.rest.split_first_chunk().ok_or(SHORT)?;
        let (value, rest) = rest.split_at_checked(u16::from_be_bytes([high, low]).into()).ok_or(SHORT)?;
        self.rest = rest;
        Ok(Some((kind, value)))
    }
}

/// `PP2_TYPE_CRC32C` (section 2.2.3): of the whole header, with zeros in place of the sum, which begins `at` some place of it.
fn check_sum(header: &[u8], at: usize, value: &[u8]) -> Result<(), ProxyError> {
    const WRONG: ProxyError = ProxyError::Malformed("its checksum is wrong");
    let said = u32::from_be_bytes(value.try_into().map_err(|_| WRONG)?);
    let field = at..at + value.len();
    let zeroed = header.iter().enumerate().map(|(place, byte)| if field.contains(&place) { 0 } else { *byte });
    if crc32c(zeroed) == said { Ok(()) } else { Err(WRONG) }
}

/// RFC 3720, appendix B.4. Bit by bit: once a connection, over some hundred bytes.
fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    const REVERSED_POLYNOMIAL: u32 = 0x82F6_3B78;
    let sum = bytes.fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (REVERSED_POLYNOMIAL & (sum & 1).wrapping_neg()))
    });
    !sum
}

/// `PP2_TYPE_SSL` (section 2.2.6): the common name, if the client has shown a certificate, now or in the session that it resumes, and the
/// proxy has found it good.
fn verified_name(value: &[u8]) -> Result<Option<String>, ProxyError> {
    const CLIENT_SSL: u8 = 0x01;
    const CERTIFICATE_SHOWN: u8 = 0x02 | 0x04;
    let (&[client, verify @ ..], rest) = value.split_first_chunk::<5>().ok_or(ProxyError::Malformed("a field is cut off"))?;
    let is_verified = client & CLIENT_SSL != 0 && client & CERTIFICATE_SHOWN != 0 && verify == [0; 4];
    let mut name = None;
    let mut fields = Fields { rest };
    while let Some((kind, value)) = fields.next()? {
        if kind == 0x22 {
            let text = std::str::from_utf8(value).ok().filter(|text| !text.contains(char::is_control));
            name = Some(text.ok_or(ProxyError::Malformed("a common name that no user name can be"))?.to_owned());
        }
    }
    Ok(name.filter(|name| is_verified && !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of version 2.
    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        [SIGNATURE, &[0x20 | command, family][..], &u16::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    fn field(kind: u8, value: &[u8]) -> Vec<u8> {
        [&[kind][..], &u16::try_from(value.len()).unwrap().to_be_bytes(), value].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 9, 127, 0, 0, 1, 0x30, 0x39, 0x07, 0x5B];

    fn whole(bytes: &[u8], version: Version) -> Header {
        // Byte by byte as it is asked for, and never past its end.
        let mut taken = 0;
        let header = loop {
            match decode(&bytes[..taken], version).unwrap() {
                Progress::More(more) => {
                    assert!(more > 0 && taken + more <= bytes.len(), "{more} more after {taken} of {}", bytes.len());
                    taken += more;
                }
                Progress::Whole(header, length) => {
                    assert_eq!(length, bytes.len());
                    break header;
                }
            }
        };
        let followed = [bytes, b"\x10\x00"].concat();
        assert_eq!(decode(&followed, version), Ok(Progress::Whole(header.clone(), bytes.len())));
        header
    }

    #[test]
    fn text_says_where_the_client_is() {
        for (text, source) in [
            ("PROXY TCP4 192.0.2.9 127.0.0.1 12345 1883\r\n", Some("192.0.2.9:12345")),
            ("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", Some("255.255.255.255:65535")),
            ("PROXY TCP6 2001:db8::1 ::1 1 2\r\n", Some("[2001:db8::1]:1")),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN ffff::ffff ffff::ffff 65535 65535\r\n", None),
        ] {
            let header = whole(text.as_bytes(), Version::V1);
            assert_eq!(header, Header { source: source.map(|source| source.parse().unwrap()), common_name: None }, "{text}");
        }
    }

    #[test]
    fn text_that_is_none_is_refused() {
        for text in [
            "\x10\x0c\0\x04MQTT",
            "GET / HTTP/1.1\r\n",
            "PROXY\r\n",
            "PROXY  TCP4 1.1.1.1 1.1.1.1 1 1\r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 1 65536\r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n",
            "PROXY TCP4 ::1 ::1 1 1\r\n",
            "PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n",
            "PROXY UDP4 1.1.1.1 1.1.1.1 1 1\r\n",
        ] {
            assert!(decode(text.as_bytes(), Version::V1).is_err(), "{text}");
        }
        let endless = format!("PROXY UNKNOWN {}", "x".repeat(200));
        assert!(matches!(decode(&endless.as_bytes()[..106], Version::V1), Err(ProxyError::TooLong(106))));
        assert!(matches!(decode(endless.as_bytes(), Version::V1), Err(ProxyError::TooLong(_))));
    }

    #[test]
    fn binary_says_where_the_client_is_and_what_its_certificate_names() {
        let v6: Vec<u8> = [&Ipv6Addr::LOCALHOST.octets()[..], &[0; 16], &[0, 1, 0, 2]].concat();
        for (bytes, source) in [
            (binary(1, 0x11, &V4), Some("192.0.2.9:12345")),
            (binary(1, 0x21, &v6), Some("[::1]:1")),
            (binary(0, 0x11, &V4), None),
            (binary(0, 0, b""), None),
            (binary(1, 0, b"anything"), None),
            (binary(1, 0x31, &[0; 216]), None),
            (binary(1, 0x11, &[&V4[..], &field(4, b"padding"), &field(0xEA, b"of a cloud")].concat()), Some("192.0.2.9:12345")),
        ] {
            let header = whole(&bytes, Version::V2);
            assert_eq!(header, Header { source: source.map(|source| source.parse().unwrap()), common_name: None }, "{bytes:02x?}");
        }
        for (client, verify, name) in
            [(7, 0, Some("c-1")), (3, 0, Some("c-1")), (5, 0, Some("c-1")), (1, 0, None), (6, 0, None), (7, 1, None)]
        {
            let ssl = [&[client][..], &u32::to_be_bytes(verify), &field(0x21, b"TLSv1.3"), &field(0x22, b"c-1")].concat();
            let header = whole(&binary(1, 0x11, &[&V4[..], &field(0x20, &ssl)].concat()), Version::V2);
            assert_eq!(header.common_name.as_deref(), name, "{client} {verify}");
        }
    }

    #[test]
    fn a_checksum_must_be_right() {
        assert_eq!(crc32c(b"123456789".iter().copied()), 0xE306_9283);
        let mut bytes = binary(1, 0x11, &[&V4[..], &field(3, &[0; 4]), &field(4, b"x")].concat());
        let sum = crc32c(bytes.iter().copied());
        let place = HEAD_BYTES + V4.len() + 3;
        bytes[place..place + 4].copy_from_slice(&sum.to_be_bytes());
        whole(&bytes, Version::V2);
        bytes[HEAD_BYTES] ^= 1;
        assert_eq!(decode(&bytes, Version::V2), Err(ProxyError::Malformed("its checksum is wrong")));
    }

    #[test]
    fn binary_that_is_none_is_refused() {
        let mut old = binary(1, 0x11, &V4);
        old[12] = 0x11;
        for bytes in [
            old,
            b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n".to_vec(),
            b"\x10\x0c\0\x04MQTT".to_vec(),
            binary(2, 0x11, &V4),
            binary(1, 0x12, &V4),
            binary(1, 0x11, &V4[..11]),
            binary(1, 0x21, &V4),
            binary(1, 0x11, &[&V4[..], &[4]].concat()),
            binary(1, 0x11, &[&V4[..], &[4, 0, 2, 0]].concat()),
            binary(1, 0x11, &[&V4[..], &field(0x20, &[7, 0, 0])].concat()),
            binary(1, 0x11, &[&V4[..], &field(0x20, &[&[7, 0, 0, 0, 0][..], &field(0x22, &[0xFF])].concat())].concat()),
            binary(1, 0x11, &vec![0; HEADER_BYTES_MAX]),
        ] {
            assert!(decode(&bytes, Version::V2).is_err(), "{bytes:02x?}");
        }
        assert_eq!(decode(&binary(1, 0, &[0; 521]), Version::V2), Err(ProxyError::TooLong(537)));
        whole(&binary(1, 0, &[0; 520]), Version::V2);
    }
}

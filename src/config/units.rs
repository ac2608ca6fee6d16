//! How single values are written in a configuration: durations, byte sizes, addresses, numbers within bounds.
//!
//! Everything here is a `serde` function, so that whatever is wrong with a value is reported at its place in the file.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::{MESH_PORT, MQTT_PORT};
use crate::limits;

/// A host name or IP address and a port, not yet resolved. Written `host:port`, `192.0.2.1:port` or `[2001:db8::1]:port`; without a
/// port, the mesh's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Port: UDP in the mesh, TCP for a bridge.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') { write!(f, "[{}]:{}", self.host, self.port) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, MESH_PORT)
    }
}

impl HostPort {
    /// Without a port it is `port_default`.
    fn parse(text: &str, port_default: u16) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a host and port; write for example \"mec-2.example:{port_default}\" or \"[2001:db8::1]:{port_default}\""
            )
        };
        let (host, port) = if let Some((host, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(wrong)?) })
        } else {
            match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        if host.is_empty() || host.contains(|letter: char| letter.is_whitespace() || letter == '/') {
            return Err(wrong());
        }
        let port = port.map_or(Ok(port_default), |port| port.parse().map_err(|_| wrong()))?;
        if port == 0 {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl Serialize for HostPort {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// An address on which to listen: an IP address and a port.
pub(super) mod socket_addr {
    use std::net::SocketAddr;

    use super::{Deserialize, Deserializer, Error, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &SocketAddr, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|_| {
            D::Error::custom(format!("`{text}` is not an IP address and port; write for example \"0.0.0.0:1883\" or \"[::]:1883\""))
        })
    }
}

/// See [`socket_addr`].
pub(super) mod optional_socket_addr {
    use std::net::SocketAddr;

    use super::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &Option<SocketAddr>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
        super::socket_addr::deserialize(from).map(Some)
    }
}

/// A length of time: a number and one of `ms`, `s`, `m`, `h`, `d`.
pub(super) mod duration {
    use super::{Deserialize, Deserializer, Duration, Error, Serializer, duration_text};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&duration_text(*value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        super::parse_duration(&text).map_err(D::Error::custom)
    }
}

const DURATION_UNITS_MS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A length of time as the configuration has it: `100ms`, `5s`, `10m`.
///
/// # Errors
/// What is none, and how to write one.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    duration_of(text).ok_or_else(|| format!("`{text}` is not a length of time; write for example \"100ms\", \"5s\" or \"10m\""))
}

fn duration_of(text: &str) -> Option<Duration> {
    let (number, unit) = split_number(text)?;
    let (_, factor) = DURATION_UNITS_MS.into_iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(factor).map(Duration::from_millis)
}

fn duration_text(value: Duration) -> String {
    let ms = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
    let whole = DURATION_UNITS_MS.into_iter().find(|(_, factor)| ms > 0 && ms.is_multiple_of(*factor));
    whole.map_or_else(|| format!("{ms}ms"), |(unit, factor)| format!("{}{unit}", ms / factor))
}

/// A number of bytes: an integer, or a number and one of `B`, `KiB`, `MiB`, `GiB`, `kB`, `MB`, `GB`.
pub(super) mod bytes {
    use super::{Bytes, Deserializer, Error, Serializer, bytes_text};

    pub(crate) fn serialize<N: TryInto<u64> + Copy, S: Serializer>(value: &N, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&bytes_text((*value).try_into().unwrap_or(u64::MAX)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        let number = from.deserialize_any(Bytes)?;
        usize::try_from(number).ok().filter(|number| *number > 0).ok_or_else(|| D::Error::custom("must be at least one byte"))
    }
}

const BYTE_UNITS: [(&str, u64); 7] =
    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000), ("B", 1)];

fn bytes_of(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text)?;
    let (_, factor) = BYTE_UNITS.into_iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(factor)
}

fn bytes_text(value: u64) -> String {
    let binary = BYTE_UNITS.into_iter().take(3).find(|(_, factor)| value > 0 && value.is_multiple_of(*factor));
    binary.map_or_else(|| format!("{value}B"), |(unit, factor)| format!("{}{unit}", value / factor))
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, for example 1048576 or \"1MiB\"")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        u64::try_from(value).map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(value), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        bytes_of(text).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}

/// Digits and what follows them; spaces between are let pass.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (digits, unit) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, unit.trim_start()))
}

/// A number from `least` to `most`.
struct Between {
    least: i64,
    most: i64,
}

impl Visitor<'_> for Between {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from {} to {}", self.least, self.most)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<i64, E> {
        let within = (self.least..=self.most).contains(&value);
        if within { Ok(value) } else { Err(E::invalid_value(serde::de::Unexpected::Signed(value), &self)) }
    }
}

/// `least` to `most` must be numbers that `N` has.
fn between<'de, D: Deserializer<'de>, N: TryFrom<i64>>(from: D, least: i64, most: i64) -> Result<N, D::Error> {
    let number = from.deserialize_i64(Between { least, most })?;
    N::try_from(number).map_err(|_| D::Error::invalid_value(serde::de::Unexpected::Signed(number), &Between { least, most }))
}

/// More than any machine has of anything that is counted.
const COUNT_MAX: i64 = 1 << 31;

pub(super) fn count<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    between(from, 1, COUNT_MAX)
}

pub(super) fn optional_count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    count(from).map(Some)
}

/// How often a second; at least once.
pub(super) fn optional_rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NonZeroU64>, D::Error> {
    between(from, 1, COUNT_MAX).map(NonZeroU64::new)
}

/// Bytes a second, written like any number of bytes.
pub(super) mod byte_rate {
    use std::num::NonZeroU64;

    use super::{Deserializer, Serializer, bytes};

    pub(crate) fn serialize<S: Serializer>(value: &Option<NonZeroU64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => bytes::serialize(&value.get(), to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NonZeroU64>, D::Error> {
        bytes::deserialize(from).map(|bytes| NonZeroU64::new(bytes as u64))
    }
}

/// Bytes of memory, enough to be a broker with.
pub(super) mod memory_limit {
    use super::{Deserializer, Error, Serializer, bytes, limits};

    pub(crate) fn serialize<S: Serializer>(value: &Option<usize>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => bytes::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
        let number = bytes::deserialize(from)?;
        let least = limits::MEMORY_LIMIT_LEAST;
        if number < least {
            return Err(D::Error::custom(format!("{number} bytes are too few for a broker; it must be at least {least}")));
        }
        Ok(Some(number))
    }
}

pub(super) fn inflight<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    between(from, 1, u16::MAX.into())
}

pub(super) fn keepalive<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    between(from, 1, u16::MAX.into()).map(Some)
}

/// Where foreign brokers are: without a port, that of MQTT.
pub(super) fn foreign_hosts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HostPort>, D::Error> {
    let all = Vec::<String>::deserialize(from)?;
    all.iter().map(|text| HostPort::parse(text, MQTT_PORT).map_err(D::Error::custom)).collect()
}

/// As Mosquitto has it: from 5.
pub(super) fn bridge_keepalive<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    between(from, 5, u16::MAX.into())
}

pub(super) fn sys_interval<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    between(from, 0, u16::MAX.into())
}

pub(super) fn topic_aliases<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    between(from, 0, limits::TOPIC_ALIAS_MAX.into())
}

pub(super) fn links<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    between(from, 1, limits::BROKERS_MAX as i64)
}

pub(super) fn hops<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    between(from, 1, limits::HOP_MAX.into())
}

pub(super) fn session_replicas<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    between(from, 0, limits::SESSION_REPLICAS_MAX.into())
}

pub(super) fn mtu<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    between(from, limits::MTU_LEAST.into(), limits::MTU_MAX.into())
}

pub(super) fn lanes<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    between(from, 1, limits::LANES_MAX.into())
}

/// Bytes of a whole MQTT packet: at least what any CONNECT needs, at most what MQTT can say.
pub(super) fn packet_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let number = from.deserialize_any(Bytes)?;
    let most = limits::PACKET_BYTES_MAX;
    let within = (limits::PACKET_BYTES_MAX_LEAST.into()..=most.into()).contains(&number);
    u32::try_from(number).ok().filter(|_| within).ok_or_else(|| {
        D::Error::custom(format!(
            "{number} is out of range; it must be from {} to {most} bytes, the largest packet that MQTT has",
            limits::PACKET_BYTES_MAX_LEAST
        ))
    })
}

pub(super) fn optional_packet_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    packet_bytes(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_read_back() {
        for ms in [0, 1, 999, 1_000, 1_500, 60_000, 3_600_000, 86_400_000, 90_000] {
            let duration = Duration::from_millis(ms);
            assert_eq!(duration_of(&duration_text(duration)), Some(duration));
        }
        for bytes in [0, 1, 1_000, 1_024, 1_536, 1 << 20, 3 << 30, u64::MAX] {
            assert_eq!(bytes_of(&bytes_text(bytes)), Some(bytes));
        }
    }

    #[test]
    fn malformed_numbers_are_none() {
        for text in ["", "5", "ms", "-1s", "1.5s", "1x", "99999999999999999999s", "999999999999999999d", " 1s", "1s "] {
            assert_eq!(duration_of(text), None, "{text}");
        }
        for text in ["", "5", "MiB", "-1B", "1TiB", "99999999999999999999B", "99999999999GiB"] {
            assert_eq!(bytes_of(text), None, "{text}");
        }
    }

    #[test]
    fn hosts_and_ports() {
        for (text, host, port) in
            [("a", "a", 7883), ("a:1", "a", 1), ("1.2.3.4:5", "1.2.3.4", 5), ("[::1]", "::1", 7883), ("[fe80::1]:9", "fe80::1", 9)]
        {
            let parsed: HostPort = text.parse().expect(text);
            assert_eq!((parsed.host.as_str(), parsed.port), (host, port));
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
        for text in ["", ":1", "a:", "a:x", "a:0", "a:65536", "a b:1", "::1", "[::1", "[::1]x", "[a]:1", "http://a:1"] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }
}

//! What a `[[listener]]` may say beside its limits: where it is bound, what is spoken there, its certificates, the proxies in front of it; and
//! what must hold between these.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

use super::Listener;

/// What a path to a unix socket begins with.
const UNIX: &str = "unix:";

/// Where a listener is bound. Written `192.0.2.1:1883`, `[::]:1883` or `unix:/run/mqtt.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// Address and port; port 0 is any free one.
    Address(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl Bind {
    /// The address, if it is one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Bind {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some("") => Err(format!("`{text}` lacks the path of the socket; write for example \"unix:/run/mqtt-st-quic.sock\"")),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Address).map_err(|_| {
                format!(
                    "`{text}` is not an IP address and port; write for example \"0.0.0.0:1883\" or \"[::]:1883\", or the path of a unix \
                     socket, \"unix:/run/mqtt-st-quic.sock\""
                )
            }),
        }
    }
}

impl Serialize for Bind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bind {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What a [`Listener`] speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// MQTT over TCP or a unix socket; with [`Listener::tls`] over TLS.
    #[default]
    Mqtt,
    /// MQTT over WebSocket (MQTT 5.0 section 6); with [`Listener::tls`] secure WebSocket.
    WebSockets,
    /// MQTT over QUIC, ALPN `mqtt`, one bidirectional stream a connection.
    Quic,
}

/// The header with which a proxy says for whom it speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    /// None: a header is a protocol error.
    #[default]
    Off,
    /// The header in text.
    V1,
    /// The header in binary, which can tell the name in a client's certificate.
    V2,
}

/// Certificates of a listener. PEM files; all are read again on SIGHUP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The broker's certificate, and those between it and the authority. Never `None` in a loaded configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certfile: Option<PathBuf>,
    /// The private key of [`Tls::certfile`]. Never `None` in a loaded configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyfile: Option<PathBuf>,
    /// The authorities that sign clients' certificates. `None`: clients are not asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cafile: Option<PathBuf>,
    /// Revocation lists of these authorities. `None`: nothing is revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crlfile: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    pub require_certificate: bool,
    /// Whether the common name in a client's certificate is its user name.
    pub use_identity_as_username: bool,
    /// Whether the whole subject of a client's certificate (RFC 4514) is its user name.
    pub use_subject_as_username: bool,
}

/// An address, or all those that begin with the same bits. Written `192.0.2.1`, `10.0.0.0/8` or `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Whether `address` is in it. An IPv4 address that came in IPv6 clothes is itself.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| {
            let shift = width - u32::from(self.prefix_bits).min(width);
            a.checked_shr(shift) == b.checked_shr(shift)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), u32::BITS),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), u128::BITS),
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix_bits == whole { self.address.fmt(f) } else { write!(f, "{}/{}", self.address, self.prefix_bits) }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an address nor a network; write for example \"192.0.2.1\" or \"10.0.0.0/8\"");
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let whole: u8 = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = prefix.map_or(Ok(whole), |prefix| prefix.parse().map_err(|_| wrong()))?;
        if prefix_bits > whole { Err(wrong()) } else { Ok(Self { address: address.to_canonical(), prefix_bits }) }
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// The first rule that one of `listeners` breaks: the key, dotted, and what is wrong with it.
pub(super) fn check(listeners: &[Listener]) -> Result<(), (String, String)> {
    for (index, listener) in listeners.iter().enumerate() {
        let broken = twin(listener, listeners.get(..index).unwrap_or_default()).map(|problem| ("bind", problem));
        let broken = broken.or_else(|| check_one(listener).err());
        if let Some((key, problem)) = broken {
            return Err((format!("listener.{index}.{key}"), problem));
        }
    }
    Ok(())
}

/// TCP and UDP have ports of their own.
fn twin(listener: &Listener, before: &[Listener]) -> Option<String> {
    let is_udp = |listener: &Listener| listener.protocol == Protocol::Quic;
    let any_port = listener.bind.address().is_some_and(|address| address.port() == 0);
    let same = |other: &&Listener| other.bind == listener.bind && is_udp(other) == is_udp(listener);
    let twin = before.iter().position(|other| !any_port && same(&other))?;
    Some(format!("{} is the address of listener {twin} already; each needs its own", listener.bind))
}

fn check_one(listener: &Listener) -> Result<(), (&'static str, String)> {
    check_tls(listener)?;
    check_proxy(listener)?;
    let is_websocket = listener.protocol == Protocol::WebSockets;
    let broken = match listener {
        Listener { protocol: Protocol::Quic, bind: Bind::Unix(_), .. } => {
            ("protocol", "QUIC is spoken over UDP; bind it to an address, for example \"0.0.0.0:14567\"".to_owned())
        }
        Listener { websockets_path: Some(_), .. } if !is_websocket => {
            ("websockets_path", "only `protocol = \"websockets\"` has paths; take it away".to_owned())
        }
        Listener { websockets_path: Some(path), .. } if !path.starts_with('/') || path.contains(['?', '#', ' ']) => {
            ("websockets_path", format!("`{path}` is no path; write for example \"/mqtt\""))
        }
        Listener { websockets_origin, .. } if !websockets_origin.is_empty() && !is_websocket => {
            ("websockets_origin", "only `protocol = \"websockets\"` has origins; take it away".to_owned())
        }
        _ => return Ok(()),
    };
    Err(broken)
}

fn check_tls(listener: &Listener) -> Result<(), (&'static str, String)> {
    let Some(tls) = &listener.tls else {
        return match listener.protocol {
            Protocol::Quic => Err(("tls", "is missing; QUIC needs tls = { certfile = \"..\", keyfile = \"..\" }".to_owned())),
            _ => Ok(()),
        };
    };
    for (key, file) in [("tls.certfile", &tls.certfile), ("tls.keyfile", &tls.keyfile)] {
        if file.is_none() {
            return Err((
                key,
                "is missing; TLS needs the broker's certificate (certfile) and its private key (keyfile)".to_owned(),
            ));
        }
    }
    let no_cafile = "needs tls.cafile, the authorities that sign clients' certificates".to_owned();
    let needs_certificates = [
        ("tls.crlfile", tls.crlfile.is_some()),
        ("tls.require_certificate", tls.require_certificate),
        ("tls.use_identity_as_username", tls.use_identity_as_username),
        ("tls.use_subject_as_username", tls.use_subject_as_username),
    ];
    if let Some((key, _)) = needs_certificates.into_iter().find(|(_, is_set)| *is_set && tls.cafile.is_none()) {
        return Err((key, no_cafile));
    }
    if tls.use_identity_as_username && tls.use_subject_as_username {
        return Err((
            "tls.use_subject_as_username",
            "a client has one user name: choose this or use_identity_as_username".to_owned(),
        ));
    }
    if listener.proxy_identity_as_username && (tls.use_identity_as_username || tls.use_subject_as_username) {
        return Err((
            "proxy_identity_as_username",
            "the user name is already taken from the certificate of this listener".to_owned(),
        ));
    }
    Ok(())
}

fn check_proxy(listener: &Listener) -> Result<(), (&'static str, String)> {
    let is_on = listener.proxy_protocol != ProxyProtocol::Off;
    let is_unix = listener.bind.address().is_none();
    let broken = if is_on && listener.protocol == Protocol::Quic {
        ("proxy_protocol", "the PROXY protocol runs over TCP; QUIC has none")
    } else if is_on && !is_unix && listener.trusted_proxies.is_empty() {
        (
            "proxy_protocol",
            "needs trusted_proxies, the addresses of the proxies; all others are refused: trusted_proxies = [\"127.0.0.1\"]",
        )
    } else if !is_on && !listener.trusted_proxies.is_empty() {
        ("trusted_proxies", "has no effect without proxy_protocol = \"v1\" or \"v2\"; set that, or take this away")
    } else if is_unix && !listener.trusted_proxies.is_empty() {
        ("trusted_proxies", "a unix socket has no addresses: whoever may open it is trusted; take this away")
    } else if listener.proxy_identity_as_username && listener.proxy_protocol != ProxyProtocol::V2 {
        ("proxy_identity_as_username", "only proxy_protocol = \"v2\" tells the name in a client's certificate")
    } else {
        return Ok(());
    };
    Err((broken.0, broken.1.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_read_back() {
        for text in ["127.0.0.1:0", "[::]:1883", "unix:/run/a b.sock", "unix:relative"] {
            assert_eq!(text.parse::<Bind>().expect(text).to_string(), text);
        }
        for text in ["", "1883", "localhost:1883", "unix:", "/run/x"] {
            assert!(text.parse::<Bind>().is_err(), "{text}");
        }
    }

    #[test]
    fn networks_hold_what_begins_with_their_bits() {
        for (network, address, holds) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/33", "2001:db8:ffff::1", false),
            ("::/0", "::1", true),
            ("192.0.2.128/25", "192.0.2.127", false),
        ] {
            let parsed: Network = network.parse().expect(network);
            assert_eq!(parsed.to_string(), network);
            assert_eq!(parsed.contains(address.parse().expect(address)), holds, "{network} {address}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/-1", "a/8", "10.0.0.0/8/8"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}

//! Who is at the other end of a connection, as far as it is known before its CONNECT: what the listener, a proxy and TLS say.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The other end of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where the client is: as a trusted proxy says, or as the connection itself.
    pub address: Address,
    /// The proxy through which it came.
    pub proxy: Option<IpAddr>,
    /// What carries its bytes to us.
    pub transport: Transport,
    /// The user name that its certificate gives it, where the listener takes it from there. It is proven: no password is asked for.
    pub identity: Option<Arc<str>>,
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// In a network. An IPv4 address is never in IPv6 clothes.
    Ip(SocketAddr),
    /// On this machine, at a unix socket.
    Unix,
    /// In this process: a bridge.
    Bridge,
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }
}

impl Address {
    /// The IP address and port, if there are any.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Unix | Self::Bridge => None,
        }
    }

    /// The IP address, if there is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(address) => Some(address.ip()),
            Self::Unix | Self::Bridge => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
            Self::Bridge => f.write_str("bridge"),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        self.proxy.map_or(Ok(()), |proxy| write!(f, " through {proxy}"))
    }
}

/// What carries a client's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP or a unix socket.
    Plain,
    /// TLS over these.
    Tls,
    /// WebSocket.
    WebSocket,
    /// WebSocket over TLS.
    SecureWebSocket,
    /// A stream of QUIC.
    Quic,
}

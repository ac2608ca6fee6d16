//! Why a client could not go on. Each message is whole by itself: no cause hides behind it.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustls::CertificateError;
use thiserror::Error;

use super::websocket::WebSocketFault;
use crate::wire::{QoS, WireFault};

/// Why a client could not go on, and which.
#[derive(Debug, Error)]
#[error("{client} at {broker}: {fault}")]
pub(crate) struct ClientFault {
    /// "publisher 3"
    pub(crate) client: String,
    /// Host and port.
    pub(crate) broker: String,
    pub(crate) fault: Fault,
}

/// Why a client could not go on.
#[derive(Debug, Error)]
pub(crate) enum Fault {
    #[error("cannot connect: {0}{hint}", hint = connect_hint(.0))]
    Connect(io::Error),
    #[error("the TLS handshake failed: {0}{hint}", hint = tls_hint(.0))]
    Tls(io::Error),
    #[error(transparent)]
    WebSocket(#[from] WebSocketFault),
    #[error("no answer within {0:?} (--timeout)")]
    NoAnswer(Duration),
    #[error("the connection failed: {0}")]
    Connection(io::Error),
    #[error("the broker closed the connection")]
    Closed,
    #[error("the broker ended the connection with reason code {0:#04x}")]
    Disconnected(u8),
    #[error("the broker refused the connection: {0}")]
    Refused(String),
    #[error("the broker refused the subscription to {filter:?}: {reason}")]
    SubscriptionRefused { filter: String, reason: String },
    #[error("the broker granted QoS {granted} where QoS {asked} was asked for")]
    QosLowered { asked: QoS, granted: QoS },
    #[error("the broker delivered at QoS {delivered} what was published and subscribed at QoS {asked}")]
    QosChanged { asked: QoS, delivered: QoS },
    #[error("the broker takes packets of at most {packet_bytes_max} bytes and these have {packet_bytes}; lower --payload-bytes")]
    PacketTooLarge { packet_bytes: usize, packet_bytes_max: u32 },
    #[error("the broker acknowledged packet id {0}, which it owes no such acknowledgement")]
    UnknownAcknowledgement(u16),
    #[error("the broker owes an answer and has sent nothing for {0:?} (--timeout)")]
    Silent(Duration),
    #[error("the broker has read nothing of what was sent for {0:?} (--timeout)")]
    Deaf(Duration),
    #[error(transparent)]
    Wire(#[from] WireFault),
    #[error("mqttbytes cannot write the packet: {0:?}")]
    Unwritable(mqttbytes::Error),
}

/// What an operator can do about it, where that is not plain.
fn connect_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "; is a broker listening there?",
        io::ErrorKind::AddrNotAvailable => {
            "; all local ports to that address may be taken: more --broker or --bind addresses, or a wider \
             net.ipv4.ip_local_port_range"
        }
        _ if [Errno::MFILE, Errno::NFILE].iter().any(|no| error.raw_os_error() == Some(no.raw_os_error())) => {
            "; raise the limit of open files (ulimit -n, fs.file-max)"
        }
        _ => "",
    }
}

fn tls_hint(error: &io::Error) -> &'static str {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "; name the authority that has signed it with --cafile"
        }
        Some(rustls::Error::InvalidMessage(_)) => "; is that a port for TLS?",
        _ => "",
    }
}

impl From<io::Error> for Fault {
    /// A connection that a broker closes while we still send looks reset, or like a broken pipe: the same thing.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Connection(error),
        }
    }
}

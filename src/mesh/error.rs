//! Why a link ends or never begins, and what the far side is told of it: each error maps itself to the application error code of
//! CONNECTION_CLOSE (RFC 9000 section 19.19). Words that come from a peer are escaped before they reach a log.

use std::time::Duration;

use quinn::{ConnectionError, ReadError, VarInt, WriteError};

use super::credit::CreditError;
use super::driver::WordError;
use super::identity::IdentityError;
use super::incarnation::IncarnationError;
use super::proof::ProofError;
use super::tls::Objection;
use crate::frame::FrameError;
use crate::ids::BrokerId;
use crate::link::Death;
use crate::replication::LaneError;
use crate::shared::RecordError;
use crate::shared::register::RegisterError;
use crate::shared::retained::SyncError;
use crate::stp::PeerError;

/// Why a link ends or never begins.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// QUIC or TLS, or the peer closed it.
    #[error("{}", describe(.0))]
    Connection(#[from] ConnectionError),
    /// A stream that carries the link ended.
    #[error("a stream of the link ended: {0}")]
    Stream(&'static str),
    /// Nobody answered in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The peer's certificate names no broker.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// The peer's certificate admits it no more, or never did.
    #[error("the peer is not admitted: {0}")]
    Certificate(#[from] Objection),
    /// The peer's certificate is of another mesh.
    #[error("the peer's certificate is of mesh {theirs:?}, this is {ours:?}")]
    OtherMesh {
        /// In its certificate.
        theirs: String,
        /// In ours.
        ours: String,
    },
    /// The peer calls itself something else than its certificate does.
    #[error("the peer calls itself {name:?}, its certificate is of broker {certified}")]
    OtherBroker {
        /// What it says.
        name: String,
        /// What its certificate says.
        certified: BrokerId,
    },
    /// No protocol version in common.
    #[error(
        "the peer speaks versions {min} to {max}, this broker {} to {}",
        crate::frame::control::VERSION_MIN,
        crate::frame::control::VERSION
    )]
    Version {
        /// Its oldest.
        min: u8,
        /// Its newest.
        max: u8,
    },
    /// `mesh.lanes` differs.
    #[error("the peer has mesh.lanes = {theirs}, this broker {ours}: it must be the same in the whole mesh")]
    Lanes {
        /// Its.
        theirs: u8,
        /// Ours.
        ours: u8,
    },
    /// We dialled ourselves.
    #[error("this address is this broker itself")]
    Oneself,
    /// Another process with our certificate.
    #[error("another process uses this broker's name and certificate")]
    Clone,
    /// Our own life cannot be settled.
    #[error("{0}")]
    Incarnation(#[from] IncarnationError),
    /// There is a link with this broker already, and it is alive.
    #[error("there is a living link with this broker already")]
    Linked(BrokerId),
    /// A later life, or a connection that both ends prefer, takes its place.
    #[error("another connection with the same broker takes its place")]
    Superseded,
    /// An earlier life of the peer.
    #[error("the connection is of an earlier life of the peer")]
    Stale,
    /// A broker that needs a link more has taken the place of this one.
    #[error("given up for a link that is needed more")]
    GivenUp,
    /// `mesh.max_links` is reached.
    #[error("mesh.max_links = {0} is reached")]
    TooManyLinks(usize),
    /// A frame that is none.
    #[error("control stream: {0}")]
    Frame(#[from] FrameError),
    /// A frame where it has no place.
    #[error("control stream: {0}")]
    Unexpected(&'static str),
    /// A broker record that is none.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// What should be of a register and is not.
    #[error("{0}")]
    Register(#[from] RegisterError),
    /// A lane that breaks its rules.
    #[error("lane: {0}")]
    Lane(#[from] LaneError),
    /// A bulk stream that breaks its rules.
    #[error("bulk: {0}")]
    Bulk(#[from] SyncError),
    /// A lane stream that names a lane which is not there or not free.
    #[error("a stream for lane {0}, which the link does not have or has already")]
    LaneStream(u8),
    /// Credit that cannot be.
    #[error("{0}")]
    Credit(#[from] CreditError),
    /// What no honest broker says of the tree.
    #[error("tree: {0}")]
    Tree(#[from] PeerError),
    /// What no honest broker says of others.
    #[error("{0}")]
    Word(#[from] WordError),
    /// What no honest broker passes on.
    #[error("{0}")]
    Proof(#[from] ProofError),
    /// It said lately what no honest broker says.
    #[error("broker {0} said lately what no honest broker says: it is not heard for some seconds")]
    Shunned(BrokerId),
    /// The peer lives no more, or does not hear us.
    #[error("dead: {0}")]
    Dead(#[from] Death),
    /// The peer lives and consumes nothing.
    #[error("the peer has consumed nothing of its lanes for {} ms", .0.as_millis())]
    Stalled(Duration),
    /// The control stream does not drain.
    #[error("the control stream does not drain: {0} bytes wait")]
    Backlog(usize),
    /// A connection for lanes that is no link's.
    #[error("a connection for the lanes of a link is refused: {0}")]
    Unpaired(&'static str),
    /// This broker stops.
    #[error("this broker stops")]
    Shutdown,
}

impl LinkError {
    /// What the peer is told.
    pub(super) fn code(&self) -> CloseCode {
        match self {
            // The link's other connection, which is closed with this one.
            Self::Connection(error) if !is_closed(error) => CloseCode::HalfLost,
            Self::Shutdown | Self::Connection(_) | Self::Stream(_) => CloseCode::Shutdown,
            Self::Unpaired(_) => CloseCode::Unpaired,
            Self::Timeout(_) => CloseCode::Timeout,
            Self::Identity(_) | Self::OtherMesh { .. } | Self::OtherBroker { .. } => CloseCode::Identity,
            Self::Certificate(_) => CloseCode::Certificate,
            Self::Version { .. } | Self::Lanes { .. } => CloseCode::Incompatible,
            Self::Oneself | Self::Clone | Self::Incarnation(_) => CloseCode::Oneself,
            Self::Linked(_) | Self::Superseded | Self::Stale => CloseCode::Rival,
            Self::TooManyLinks(_) | Self::GivenUp => CloseCode::TooManyLinks,
            Self::Frame(_)
            | Self::Unexpected(_)
            | Self::Record(_)
            | Self::Register(_)
            | Self::Lane(_)
            | Self::Bulk(_)
            | Self::LaneStream(_)
            | Self::Credit(_) => CloseCode::Malformed,
            Self::Tree(_) | Self::Word(_) => CloseCode::Tree,
            Self::Proof(_) => CloseCode::Forged,
            Self::Shunned(_) => CloseCode::Shunned,
            Self::Dead(_) => CloseCode::Dead,
            Self::Stalled(_) | Self::Backlog(_) => CloseCode::Stalled,
        }
    }

    /// The reason as a word, by which links that end and peers that are refused are counted.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Connection(error) => connection_reason(error),
            Self::Stream(_) => "stream",
            Self::Timeout(_) => "no_answer",
            Self::Identity(_) | Self::OtherBroker { .. } => "identity",
            Self::Certificate(_) => "certificate",
            Self::OtherMesh { .. } => "other_mesh",
            Self::Version { .. } | Self::Lanes { .. } => "incompatible",
            Self::Oneself => "oneself",
            Self::Clone => "clone",
            Self::Incarnation(_) => "incarnation",
            Self::Linked(_) => "linked",
            Self::Superseded => "superseded",
            Self::Stale => "stale",
            Self::TooManyLinks(_) => "too_many_links",
            Self::GivenUp => "given_up",
            Self::Frame(_) | Self::Unexpected(_) | Self::LaneStream(_) => "malformed",
            Self::Record(_) => "record",
            Self::Register(_) => "register",
            Self::Lane(_) => "lane",
            Self::Bulk(_) => "bulk",
            Self::Credit(_) => "credit",
            Self::Tree(_) => "tree",
            Self::Word(_) => "word",
            Self::Proof(_) => "forged",
            Self::Shunned(_) => "shunned",
            Self::Dead(Death::Silent(_)) => "silent",
            Self::Dead(Death::Deaf(_)) => "deaf",
            Self::Stalled(_) => "stalled",
            Self::Backlog(_) => "backlog",
            Self::Unpaired(_) => "unpaired",
            Self::Shutdown => "shutdown",
        }
    }

    /// For how long the peer had been silent, deaf or wedged, if that is why the link ends.
    pub(super) fn silence(&self) -> Option<Duration> {
        match self {
            Self::Dead(Death::Silent(time) | Death::Deaf(time)) | Self::Stalled(time) => Some(*time),
            _ => None,
        }
    }

    /// Whether the peer said, or passed on, what no honest broker does.
    pub(super) fn is_lie(&self) -> bool {
        matches!(self, Self::Tree(_) | Self::Word(_) | Self::Proof(_))
    }

    /// Whether one of the ends had no place for the link.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::TooManyLinks(_) | Self::GivenUp => true,
            Self::Connection(ConnectionError::ApplicationClosed(close)) => close.error_code == CloseCode::TooManyLinks.number(),
            _ => false,
        }
    }

    /// Whether it belongs to the ordinary life of a mesh, and is no news to an operator.
    pub(super) fn is_ordinary(&self) -> bool {
        match self {
            Self::Oneself | Self::Linked(_) | Self::Superseded | Self::GivenUp | Self::Shutdown => true,
            Self::Connection(ConnectionError::ApplicationClosed(close)) => {
                [CloseCode::Rival, CloseCode::Oneself, CloseCode::Shutdown].iter().any(|code| close.error_code == code.number())
            }
            _ => false,
        }
    }
}

impl From<ReadError> for LinkError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ConnectionLost(error) => Self::Connection(error),
            _ => Self::Stream("the peer gave it up"),
        }
    }
}

impl From<WriteError> for LinkError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::ConnectionLost(error) => Self::Connection(error),
            _ => Self::Stream("the peer refuses it"),
        }
    }
}

/// Application error codes of CONNECTION_CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseCode {
    Shutdown = 0,
    Timeout = 1,
    Identity = 2,
    Incompatible = 3,
    Oneself = 4,
    Rival = 5,
    TooManyLinks = 6,
    Malformed = 7,
    Tree = 8,
    Dead = 9,
    Stalled = 10,
    Certificate = 11,
    Forged = 12,
    Shunned = 13,
    HalfLost = 14,
    Unpaired = 15,
}

impl CloseCode {
    pub(super) fn number(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }
}

/// Whether one of the ends has closed the connection.
fn is_closed(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed)
}

/// See [`LinkError::reason`].
fn connection_reason(error: &ConnectionError) -> &'static str {
    match error {
        ConnectionError::ApplicationClosed(close) if close.error_code == CloseCode::Shutdown.number() => "peer_stops",
        ConnectionError::ApplicationClosed(close) if close.error_code == CloseCode::Rival.number() => "rival",
        ConnectionError::ApplicationClosed(close) if close.error_code == CloseCode::Oneself.number() => "oneself",
        ConnectionError::ApplicationClosed(close) if close.error_code == CloseCode::TooManyLinks.number() => "too_many_links",
        ConnectionError::ApplicationClosed(close) if close.error_code == CloseCode::Certificate.number() => "own_certificate",
        ConnectionError::ApplicationClosed(close) if close.error_code == CloseCode::HalfLost.number() => "half_lost",
        ConnectionError::ApplicationClosed(_) => "closed_by_peer",
        ConnectionError::ConnectionClosed(close) if alert(u64::from(close.error_code), "").is_some() => "own_certificate",
        ConnectionError::TransportError(error) if alert(u64::from(error.code), "").is_some() => "certificate",
        ConnectionError::TimedOut => "no_answer",
        ConnectionError::LocallyClosed => "shutdown",
        _ => "quic",
    }
}

/// A connection error in words, with what came from the peer escaped and the commonest TLS alerts (RFC 8446 section 6) spelt out: whose
/// certificate it is about depends on who sent the alert.
pub(super) fn describe(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason);
            format!("closed by the peer: {} (code {})", reason.escape_debug(), close.error_code)
        }
        ConnectionError::ConnectionClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason);
            match alert(u64::from(close.error_code), "our") {
                Some(why) => format!("refused by the peer: {why}"),
                None => format!("aborted by the peer: {} ({})", reason.escape_debug(), close.error_code),
            }
        }
        ConnectionError::TransportError(error) => match alert(u64::from(error.code), "the peer's") {
            Some(why) => format!("{why} ({})", error.reason.escape_debug()),
            None => format!("{} ({})", error.reason.escape_debug(), error.code),
        },
        ConnectionError::TimedOut => "no answer".to_owned(),
        other => other.to_string(),
    }
}

/// RFC 9001 section 4.8: an alert is the error code 0x100 + its number. `whose` certificate is at fault.
fn alert(code: u64, whose: &str) -> Option<String> {
    let what = match code.checked_sub(0x100)? {
        42 | 46 => "cannot be accepted",
        44 => "is revoked",
        45 => "is expired or not yet valid",
        48 => "is of an authority that is not trusted",
        51 => "is not signed by the authority that it names",
        116 => "is required and was not shown",
        120 => return Some("the ends have no protocol in common: not both are brokers of a mesh".to_owned()),
        _ => return None,
    };
    Some(format!("{whose} certificate {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_peer_are_escaped() {
        let close = quinn::ApplicationClose { error_code: CloseCode::Rival.number(), reason: "a\nb\u{1b}[31m".into() };
        let said = LinkError::from(ConnectionError::ApplicationClosed(close));
        assert_eq!(said.to_string(), "closed by the peer: a\\nb\\u{1b}[31m (code 5)");
        assert!(said.is_ordinary());
        assert_eq!(said.reason(), "rival");
    }

    #[test]
    fn alerts_are_spelt_out() {
        assert_eq!(alert(0x100 + 45, "our").as_deref(), Some("our certificate is expired or not yet valid"));
        assert_eq!((alert(0x0a, "our"), alert(0x100 + 255, "our")), (None, None));
    }
}

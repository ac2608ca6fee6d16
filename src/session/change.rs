//! What happens to durable sessions and retained messages, as values: the core makes them, the store writes them down.
//!
//! Nothing here knows a file. A change names its session by [`SubscriberId`], which is never given out twice, also not after a restart, and a
//! message in it by the order in which it was placed. So what comes late, for a session that is over or a message that is gone, is recognised
//! and does nothing. What of this is written when, and in which order, is [`super::journal`]'s.
//!
//! Times are those of the core's clock; the store turns them into wall-clock time, so that they survive a restart.

use std::sync::Arc;
use std::time::Instant;

use super::logged::{LogHead, Logged};
use super::message::{StoredMessage, Will};
use super::moved::Source;
use super::subscriber::{SessionExpiry, SubscriberId, SubscriptionOptions};
use crate::codec::{PacketId, QoS};
use crate::ids::{BrokerId, LaneId, OriginLane, Stamp};

/// The place of a message in its session: counts up with each that is kept for the client.
pub type Order = u64;

/// How far a kept message has come (MQTT 5.0 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has no packet identifier yet.
    Queued,
    /// PUBLISH sent or about to be, PUBACK or PUBREC awaited. How many identifiers were given out before: tells the identifier.
    Published(u64),
    /// PUBREC received, PUBCOMP awaited.
    Released(u64),
}

/// A message that is kept for one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Shared by all sessions in which it waits.
    pub message: Arc<StoredMessage>,
    /// As it is sent.
    pub qos: QoS,
    /// The RETAIN flag as it is sent.
    pub retain: bool,
    /// Of the matching subscriptions.
    pub subscription_ids: Option<Arc<[u32]>>,
    /// How far it has come.
    pub stage: Stage,
}

/// The session itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The client's own name.
    pub client_id: Arc<str>,
    /// Whose it is, as [`crate::auth::Access::owner`] says; empty: nobody has said.
    pub owner: Arc<str>,
    /// How long it outlives its connection.
    pub expiry: SessionExpiry,
    /// When its last connection ended; none while it is connected.
    pub left_at: Option<Instant>,
    /// In a mesh: since when it is this broker's ([`Stamp::time`]); 0 without one.
    pub claim: u64,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Change {
    /// A session began, or its head is another.
    Session(SubscriberId, Head),
    /// A session is over, and all that it held.
    Ended(SubscriberId),
    /// A subscription was made or changed.
    Subscribed(SubscriberId, Box<str>, SubscriptionOptions),
    /// A subscription is gone.
    Unsubscribed(SubscriberId, Box<str>),
    /// A message is kept for the client.
    Placed(SubscriberId, Order, Entry),
    /// A kept message has come further.
    Staged(SubscriberId, Order, Stage),
    /// A message is no longer kept: acknowledged, expired, or it cannot be sent.
    Removed(SubscriberId, Order),
    /// A QoS 2 message of the client's has come, and is not released yet.
    Received(SubscriberId, PacketId),
    /// The client has released it.
    Completed(SubscriberId, PacketId),
    /// Connection number so and so of the session has brought a will.
    Will(SubscriberId, u64, Arc<Will>),
    /// The will of that connection is gone: published, or cancelled.
    WillGone(SubscriberId, u64),
    /// Whence the message of that order is, of which the next change says that it is placed. Of sessions with a replica only, and for that: the store writes
    /// none of these three down.
    Source(SubscriberId, Order, Source),
    /// All that is in the session by now was copied for its replica, for the time of that number.
    Copied(SubscriberId, u64),
    /// What the session's client is to see only when it is safe waits from here on also until the replica knows of it that was copied then.
    Guarded(SubscriberId, u64),
    /// A topic's retained message, and in a mesh when it was published.
    Retained(Arc<StoredMessage>, Option<Stamp>),
    /// A topic retains nothing any more. With a stamp: it was deleted then, which is to be remembered.
    Forgotten(Box<str>, Option<Stamp>),
    /// The broker's own log in a lane has begun, or its head is another. Of one log heads come in their order.
    Log(LogHead),
    /// The lane's log is over, and all that it held.
    LogGone(LaneId),
    /// Local clients have published these. Comes after the log's head.
    Logged(Logged),
    /// Of an origin-lane of another broker all ids up to this one are dealt with: what the sessions got of them is in this list before it, or was in one
    /// before. The highest counts.
    Cover(OriginLane, u64),
    /// Of an origin-lane nothing needs to be known any more.
    CoverGone(OriginLane),
    /// Another broker is a member of the mesh.
    Member(BrokerId),
    /// It is none any more.
    MemberGone(BrokerId),
}

impl Change {
    /// The session that it is about; none for what is retained and for the mesh's logs.
    #[must_use]
    pub fn session(&self) -> Option<SubscriberId> {
        match self {
            Self::Session(session, _)
            | Self::Ended(session)
            | Self::Subscribed(session, ..)
            | Self::Unsubscribed(session, _)
            | Self::Placed(session, ..)
            | Self::Staged(session, ..)
            | Self::Removed(session, _)
            | Self::Received(session, _)
            | Self::Completed(session, _)
            | Self::Will(session, ..)
            | Self::WillGone(session, _)
            | Self::Source(session, ..)
            | Self::Copied(session, _)
            | Self::Guarded(session, _) => Some(*session),
            Self::Retained(..)
            | Self::Forgotten(..)
            | Self::Log(_)
            | Self::LogGone(_)
            | Self::Logged(_)
            | Self::Cover(..)
            | Self::CoverGone(_)
            | Self::Member(_)
            | Self::MemberGone(_) => None,
        }
    }
}

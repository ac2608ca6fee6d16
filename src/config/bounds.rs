//! `[limits]`: what every client, and all of them together, may take.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::units;
use crate::limits;

/// Bounds for every client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of memory that the whole broker may take. `None`: a part of what the machine and the control groups allow, see
    /// [`limits::MEMORY_PERCENT_DEFAULT`].
    #[serde(skip_serializing_if = "Option::is_none", with = "units::memory_limit")]
    pub memory_limit: Option<usize>,
    /// QoS 1 and 2 messages on their way to one client.
    #[serde(deserialize_with = "units::inflight")]
    pub max_inflight_messages: u16,
    /// Bytes of them; one message of any size always may go.
    #[serde(with = "units::bytes")]
    pub max_inflight_bytes: usize,
    /// Messages that wait for one session.
    #[serde(deserialize_with = "units::count")]
    pub max_queued_messages: usize,
    /// Bytes that wait for one session.
    #[serde(with = "units::bytes")]
    pub max_queued_bytes: usize,
    /// What is dropped when a session's queue is full.
    pub queue_drop: QueueDrop,
    /// Whether QoS 0 messages wait as well for a client that is away and whose session is kept.
    pub queue_qos0_messages: bool,
    /// Largest packet in bytes that is accepted.
    #[serde(serialize_with = "units::bytes::serialize", deserialize_with = "units::packet_bytes")]
    pub max_packet_size: u32,
    /// Clients at once, over all listeners.
    #[serde(deserialize_with = "units::count")]
    pub max_connections: usize,
    /// Longest keep alive in seconds; an MQTT 5 client that asks for more, or for none, is told this one. `None`: as each client asks.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::keepalive")]
    pub max_keepalive: Option<u16>,
    /// Topic aliases that a client may set on one connection; 0: none.
    #[serde(deserialize_with = "units::topic_aliases")]
    pub max_topic_alias: u16,
    /// Topic aliases that the broker sets on one connection, if the client takes as many; 0: none.
    #[serde(deserialize_with = "units::topic_aliases")]
    pub max_topic_alias_broker: u16,
    /// Messages a second from each client. `None`: as they come.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::optional_rate")]
    pub max_message_rate: Option<NonZeroU64>,
    /// Bytes a second from each client. `None`: as they come.
    #[serde(skip_serializing_if = "Option::is_none", with = "units::byte_rate")]
    pub max_byte_rate: Option<NonZeroU64>,
    /// Connections a second that each listener accepts. `None`: as they come.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::optional_rate")]
    pub max_connection_rate: Option<NonZeroU64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_limit: None,
            max_inflight_messages: limits::INFLIGHT_MESSAGES_DEFAULT,
            max_inflight_bytes: limits::INFLIGHT_BYTES_DEFAULT,
            max_queued_messages: limits::QUEUED_MESSAGES_DEFAULT,
            max_queued_bytes: limits::QUEUED_BYTES_DEFAULT,
            queue_drop: QueueDrop::default(),
            queue_qos0_messages: false,
            max_packet_size: limits::PACKET_BYTES_MAX_DEFAULT,
            max_connections: limits::CONNECTIONS_DEFAULT,
            max_keepalive: None,
            max_topic_alias: limits::TOPIC_ALIAS_DEFAULT,
            max_topic_alias_broker: limits::TOPIC_ALIAS_BROKER_DEFAULT,
            max_message_rate: None,
            max_byte_rate: None,
            max_connection_rate: None,
        }
    }
}

/// Which end of a full queue gives way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueDrop {
    /// The message that comes is not queued.
    #[default]
    Newest,
    /// What has waited longest makes room for it.
    Oldest,
}

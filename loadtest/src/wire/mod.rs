//! MQTT as a load client needs it: frames split without copying, PUBLISH and its acknowledgements by our own code (they are
//! the hot path), CONNECT, SUBSCRIBE and their answers by `mqttbytes`, a codec that shares nothing with the broker's.
//!
//! Not a full codec: what a client of this program never receives is an error here.

mod control;
mod frame;
mod publish;

pub use control::Login;
pub(crate) use control::{ConnAck, Session, connack, connect, disconnect_reason, suback, subscribe};
pub(crate) use frame::{Frame, PacketKind, WireFault, push_variable_integer, split};
pub(crate) use publish::{Publish, PublishWriter, acknowledgement, publish, write_acknowledgement};

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The PINGREQ packet, both versions.
pub(crate) const PINGREQ: [u8; 2] = [0xc0, 0];

/// The normal DISCONNECT packet, both versions.
pub(crate) const DISCONNECT: [u8; 2] = [0xe0, 0];

/// The protocol version a run speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Version {
    /// MQTT 3.1.1.
    #[value(name = "3.1.1")]
    #[serde(rename = "3.1.1")]
    V3_1_1,
    /// MQTT 5.0.
    #[value(name = "5")]
    #[serde(rename = "5")]
    V5,
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V3_1_1 => "3.1.1",
            Self::V5 => "5",
        })
    }
}

/// How often a message may arrive: the quality of service of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum QoS {
    /// At most once.
    #[value(name = "0")]
    AtMostOnce,
    /// At least once.
    #[value(name = "1")]
    AtLeastOnce,
    /// Exactly once.
    #[value(name = "2")]
    ExactlyOnce,
}

impl From<QoS> for u8 {
    fn from(qos: QoS) -> Self {
        qos as Self
    }
}

impl TryFrom<u8> for QoS {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        Self::from_number(number).ok_or_else(|| format!("{number} is no quality of service"))
    }
}

impl QoS {
    /// The number of the specification.
    pub(crate) fn number(self) -> u8 {
        self.into()
    }

    fn from_number(number: u8) -> Option<Self> {
        [Self::AtMostOnce, Self::AtLeastOnce, Self::ExactlyOnce].get(usize::from(number)).copied()
    }
}

impl fmt::Display for QoS {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(formatter)
    }
}

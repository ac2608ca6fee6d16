//! One MQTT client each: a publisher or a subscriber, as a single poll function over a buffered socket.
//!
//! A client reads as many packets as one read brings, answers and sends all it may, and writes everything in one write: that,
//! not the language, is what makes thousands of clients cheap.

mod batch;
mod connection;
mod fault;
mod flows;
mod gate;
mod in_flight;
mod liveness;
mod publisher;
mod stream;
mod subscriber;
mod tls;
mod transport;
mod websocket;

pub(crate) use connection::{Connection, ConnectionPlan};
pub(crate) use fault::{ClientFault, Fault};
pub(crate) use flows::FlowKey;
pub(crate) use gate::{Gate, Phase, PhaseSwitch};
pub(crate) use in_flight::InFlight;
pub(crate) use publisher::{Pace, Publisher, PublisherPlan};
pub use stream::Endpoint;
pub(crate) use subscriber::{Hears, PacketIds, Subscriber, SubscriberPlan};
pub(crate) use tls::{Tls, Trust};
pub(crate) use websocket::WebSocketFault;

use crate::tally::Tally;

/// What all clients of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The run's random number, in every stamp.
    pub(crate) run: u32,
    pub(crate) phase: PhaseSwitch,
    pub(crate) tally: Tally,
}

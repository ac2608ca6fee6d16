//! `loadtest mesh`

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::{PAYLOAD_BYTES_MAX, duration, positive_duration, rate, topic_name};
use super::{BrokerAddress, Output, Transport};
use crate::mesh::timetable::Fault;
use crate::payload::STAMP_BYTES;
use crate::wire::{QoS, Version};

const MESH_HELP: &str = "\
Metrics of --fail-on: lost, lost_qos0, lost_qos1, lost_qos2 (acknowledged and not delivered; at QoS 0 sent and not delivered), duplicated,
reordered, corrupted, foreign, refused, unacknowledged, sessions_lost, gap (the longest time between two messages of a publisher at a
subscriber).

Brokers must keep what waits for clients that are away: allow for the rate times the longest fault (max_queued_messages).";

/// `loadtest mesh`
#[derive(Debug, Args)]
#[command(after_help = MESH_HELP)]
pub(crate) struct Mesh {
    /// Host and port, or mqtts://, ws:// or wss://HOST, of a broker; repeat it for each broker of the mesh.
    #[arg(long = "broker", value_name = "HOST[:PORT]", required = true)]
    pub(crate) brokers: Vec<BrokerAddress>,
    #[command(flatten)]
    pub(crate) transport: Transport,
    /// Protocol version.
    #[arg(long = "mqtt", value_name = "VERSION", value_enum, default_value = "5")]
    pub(crate) version: Version,
    /// Quality of service of the publishers: at every broker --publishers of each.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "0,1,2")]
    pub(crate) qos: Vec<QoS>,
    /// Publishers of each quality of service at every broker.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) publishers: u32,
    /// Subscribers at every broker; each hears all publishers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) subscribers: u32,
    /// Messages a second of all publishers of one broker together [default: as many as the window allows].
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Messages of each publisher; without it the run ends by time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) count: Option<u64>,
    /// How long to publish [default: 10s, or until --count is reached].
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) duration: Option<Duration>,
    /// Messages of a publisher that are not acknowledged, at most.
    #[arg(long, value_name = "N", default_value = "100")]
    pub(crate) window: NonZeroU16,
    /// Payload of a message, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(STAMP_BYTES as i64..=PAYLOAD_BYTES_MAX))]
    pub(crate) payload_bytes: u32,
    /// Sessions end with their connections, so that what comes while a subscriber is away is lost to it.
    #[arg(long)]
    pub(crate) clean: bool,
    /// A client whose broker is away goes to the next one and not back to its own.
    #[arg(long)]
    pub(crate) roam: bool,
    /// What to do to the mesh and when, from the moment at which everybody hears everybody: '5s kill -9 1234'. Repeatable.
    #[arg(long = "fault", value_name = "TIME COMMAND")]
    pub(crate) faults: Vec<Fault>,
    /// A file with such lines; empty ones and those that begin with # are ignored.
    #[arg(long = "timetable", value_name = "FILE")]
    pub(crate) timetable: Option<PathBuf>,
    #[arg(long, requires = "password")]
    pub(crate) username: Option<String>,
    #[arg(long, env = "LOADTEST_PASSWORD", hide_env_values = true, requires = "username")]
    pub(crate) password: Option<String>,
    /// How long a broker may owe an answer before a client connects anew.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub(crate) timeout: Duration,
    /// How long it may take until everybody hears everybody.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_duration)]
    pub(crate) join: Duration,
    /// How long nothing may arrive at the end before what is missing counts as lost.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) drain: Duration,
    /// Topics are PREFIX/RUN/PUBLISHER.
    #[arg(long, default_value = "loadtest", value_parser = topic_name)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

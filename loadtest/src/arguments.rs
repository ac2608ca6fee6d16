//! The command line. What is impossible is refused here, by name, so that everything after can rely on it.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::mesh::timetable::Fault;
use crate::payload::STAMP_BYTES;
use crate::threshold::Threshold;
use crate::wire::{QoS, Version};

/// The largest payload, in bytes: what the protocol's 256 MiB packet leaves beside any topic.
const PAYLOAD_BYTES_MAX: i64 = 268_000_000;

const TOPIC_BYTES_MAX: usize = 65_000;

const EXAMPLES: &str = "\
Examples:
  loadtest pair --pairs 10 --qos 1                            how much a broker carries
  loadtest latency --rate 10000 --fail-on 'lost>0,p99>5ms'    how long messages take, and whether that will do
  loadtest pair --subscribers 100 --broker a --subscribe-at b from one broker of a mesh to another
  loadtest sub --qos 1 & loadtest pub --qos 1 --count 1000    ends on different hosts
  loadtest mesh --broker a --broker b --fault '5s ssh b reboot' --fail-on 'lost_qos1>0,lost_qos2>0,duplicated>0,reordered>0'";

const MESH_HELP: &str = "\
Metrics of --fail-on: lost, lost_qos0, lost_qos1, lost_qos2 (acknowledged and not delivered; at QoS 0 sent and not delivered), duplicated,
reordered, corrupted, foreign, refused, unacknowledged, sessions_lost, gap (the longest time between two messages of a publisher at a
subscriber).

Brokers must keep what waits for clients that are away: allow for the rate times the longest fault (max_queued_messages).";

/// A load generator with a ledger for any MQTT broker.
///
/// Every message bears a stamp, so that lost, duplicated, reordered and corrupted ones are told apart, and latency is measured
/// from the moment a message was due. stdout is the report, stderr is progress and errors. Exit code 0: good; 1: a broker
/// failed, or a --fail-on condition holds; 2: wrong usage; 130: interrupted.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version, max_term_width = 110, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Load(LoadCommand),
    /// Publishers and subscribers at every broker of a mesh, and an account of every flow, whatever breaks meanwhile.
    Mesh(Mesh),
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoadCommand {
    /// Publish only; with QoS 1 and 2 the latency is the time to the broker's acknowledgement.
    Pub(Pub),
    /// Subscribe only, to what `loadtest pub` sends from elsewhere.
    Sub(Sub),
    /// Publishers and their subscribers, end to end: throughput by a window, or a fixed rate.
    Pair(Pair),
    /// One publisher and one subscriber at a fixed rate: how long messages take.
    Latency(Latency),
}

/// Which brokers, and how to speak to them.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Host and port; repeat it to spread the clients over several brokers.
    #[arg(long = "broker", value_name = "HOST[:PORT]", default_value = "127.0.0.1:1883")]
    pub(crate) brokers: Vec<BrokerAddress>,
    /// Protocol version.
    #[arg(long = "mqtt", value_name = "VERSION", value_enum, default_value = "3.1.1")]
    pub(crate) version: Version,
    /// Quality of service, of publishing and subscribing.
    #[arg(long, value_enum, default_value = "0")]
    pub(crate) qos: QoS,
    #[arg(long, requires = "password")]
    pub(crate) username: Option<String>,
    #[arg(long, env = "LOADTEST_PASSWORD", hide_env_values = true, requires = "username")]
    pub(crate) password: Option<String>,
    /// How long a broker may owe an answer before it is given up.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub(crate) timeout: Duration,
    /// Connections that are opened at the same time.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connecting: u32,
    /// Threads that carry the clients.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
}

/// What becomes of the results.
#[derive(Debug, Args)]
pub(crate) struct Output {
    /// Write the report as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Exit with 1 if any of these holds, such as 'lost>0,p99>10ms'.
    ///
    /// Metrics: lost, duplicated, reordered, corrupted, foreign, refused, unacknowledged, stalls, sent_rate, delivered_rate
    /// (messages a second), min, mean, p50, p90, p99, p999, p9999, max (latency, with a unit). Operators: > >= < <= =. What
    /// was not measured fails.
    #[arg(long, value_name = "CONDITIONS", value_delimiter = ',')]
    pub(crate) fail_on: Vec<Threshold>,
    /// No progress on stderr.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// What is sent, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Payload of a message, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(STAMP_BYTES as i64..=PAYLOAD_BYTES_MAX))]
    pub(crate) payload_bytes: u32,
    /// Messages under way per publisher: not yet acknowledged (QoS 1, 2); without --rate also not yet at every subscriber.
    #[arg(long, value_name = "N", default_value = "100")]
    pub(crate) window: NonZeroU16,
    /// Messages of each publisher; without it the run ends by time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// How long to measure [default: 10s, or until --count is reached].
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) duration: Option<Duration>,
    /// How long to send before measuring [default: 1s, or nothing with --count].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) warm_up: Option<Duration>,
    /// How long nothing may arrive at the end before what is missing counts as lost.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    pub(crate) drain: Duration,
}

/// `loadtest pub`
#[derive(Debug, Args)]
pub(crate) struct Pub {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) load: Load,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Publishers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) publishers: u32,
    /// Topic; %i becomes the publisher's number.
    #[arg(long, default_value = "loadtest/%i", value_parser = topic_name)]
    pub(crate) topic: String,
    /// Messages a second of all publishers together (open loop) [default: as many as the window allows].
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(crate) rate: Option<f64>,
}

/// `loadtest sub`
#[derive(Debug, Args)]
pub(crate) struct Sub {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Subscribers, all of them with the same filter.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) subscribers: u32,
    /// Topic filter.
    #[arg(long, default_value = "loadtest/#", value_parser = topic)]
    pub(crate) filter: String,
    /// Messages of all subscribers together, after which to end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// How long to listen [default: until --count is reached or Ctrl-C].
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) duration: Option<Duration>,
}

/// Where the subscribers of `pair` and `latency` are, and what they share with their publishers.
#[derive(Debug, Args)]
pub(crate) struct EndToEnd {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) load: Load,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Brokers of the subscribers [default: each pair goes from one --broker to the next].
    #[arg(long = "subscribe-at", value_name = "HOST[:PORT]")]
    pub(crate) subscribe_at: Vec<BrokerAddress>,
    /// Subscribers of each publisher.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) subscribers: u32,
    /// Topics are PREFIX/RUN/PUBLISHER.
    #[arg(long, default_value = "loadtest", value_parser = topic_name)]
    pub(crate) prefix: String,
    /// How long subscriptions may take to reach every broker before the first message is sent.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(crate) settle: Duration,
}

/// `loadtest pair`
#[derive(Debug, Args)]
pub(crate) struct Pair {
    #[command(flatten)]
    pub(crate) end_to_end: EndToEnd,
    /// Publishers, each with subscribers of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) pairs: u32,
    /// Messages a second of all publishers together (open loop) [default: as many as the window allows].
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(crate) rate: Option<f64>,
}

/// `loadtest latency`
#[derive(Debug, Args)]
pub(crate) struct Latency {
    #[command(flatten)]
    pub(crate) end_to_end: EndToEnd,
    /// Messages a second (open loop).
    #[arg(long, value_name = "PER_SECOND", default_value = "1000", value_parser = rate)]
    pub(crate) rate: f64,
}

/// `loadtest mesh`
#[derive(Debug, Args)]
#[command(after_help = MESH_HELP)]
pub(crate) struct Mesh {
    /// Host and port of a broker; repeat it for each broker of the mesh.
    #[arg(long = "broker", value_name = "HOST[:PORT]", required = true)]
    pub(crate) brokers: Vec<BrokerAddress>,
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

impl LoadCommand {
    pub(crate) fn output(&self) -> &Output {
        match self {
            Self::Pub(command) => &command.output,
            Self::Sub(command) => &command.output,
            Self::Pair(command) => &command.end_to_end.output,
            Self::Latency(command) => &command.end_to_end.output,
        }
    }
}

/// Host and port as the resolver takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerAddress(pub(crate) String);

impl FromStr for BrokerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.strip_prefix("mqtt://").unwrap_or(text);
        if let Ok(ip) = address.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Self(std::net::SocketAddr::new(ip, 1883).to_string()));
        }
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "1883"));
        match port.parse::<u16>() {
            Ok(port) if port > 0 && !host.is_empty() && !host.contains('/') => Ok(Self(format!("{host}:{port}"))),
            _ => Err("expected HOST, HOST:PORT, or [IPV6]:PORT with a port from 1 to 65535".to_owned()),
        }
    }
}

/// "10s", "1.5s", "500ms", "20us", "2m"
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds_a_unit = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err("expected a number and a unit: us, ms, s or m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    Duration::try_from_secs_f64(number * seconds_a_unit).map_err(|cause| cause.to_string())
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| if duration.is_zero() { Err("must be more than 0".to_owned()) } else { Ok(duration) })
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (1e-3..=1e8).contains(&rate) => Ok(rate),
        _ => Err("expected messages a second, from 0.001 to 100000000".to_owned()),
    }
}

/// What is right for names and filters alike; the broker judges the rest.
fn topic(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a topic has at least one character".to_owned()),
        long if long.len() > TOPIC_BYTES_MAX => Err(format!("a topic here has at most {TOPIC_BYTES_MAX} bytes")),
        nul if nul.contains('\0') => Err("a topic holds no U+0000".to_owned()),
        right => Ok(right.to_owned()),
    }
}

fn topic_name(text: &str) -> Result<String, String> {
    topic(text).and_then(|topic| {
        if topic.contains(['+', '#']) { Err("a topic to publish to holds no wildcard".to_owned()) } else { Ok(topic) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn broker_addresses() {
        let table = [
            ("localhost", Some("localhost:1883")),
            ("broker.example:2883", Some("broker.example:2883")),
            ("mqtt://10.0.0.1", Some("10.0.0.1:1883")),
            ("::1", Some("[::1]:1883")),
            ("[::1]", Some("[::1]:1883")),
            ("[::1]:7", Some("[::1]:7")),
            ("host:0", None),
            ("host:65536", None),
            (":1883", None),
            ("http://host:80", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse::<BrokerAddress>().ok().map(|address| address.0).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn durations() {
        let table = [
            ("10s", Some(10_000_000)),
            ("1.5s", Some(1_500_000)),
            ("500ms", Some(500_000)),
            ("20us", Some(20)),
            ("2m", Some(120_000_000)),
        ];
        for (text, expected_us) in table {
            assert_eq!(duration(text).ok(), expected_us.map(Duration::from_micros), "{text}");
        }
        for text in ["", "10", "s", "-1s", "10h", "nans", "1e300s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn impossible_requests_are_refused_by_name() {
        let table: &[(&[&str], &str)] = &[
            (&["pub", "--payload-bytes", "31"], "--payload-bytes"),
            (&["pub", "--topic", "a/#"], "--topic"),
            (&["pub", "--rate", "0"], "--rate"),
            (&["pair", "--window", "0"], "--window"),
            (&["pair", "--qos", "3"], "--qos"),
            (&["sub", "--filter", ""], "--filter"),
            (&["latency", "--mqtt", "4"], "--mqtt"),
            (&["mesh"], "--broker"),
            (&["mesh", "--broker", "a", "--qos", "0,3"], "--qos"),
            (&["mesh", "--broker", "a", "--fault", "kill -9 1"], "--fault"),
            (&["mesh", "--broker", "a", "--fault", "5s "], "--fault"),
            (&["latency", "--username", "u"], "--password"),
            (&["latency", "--fail-on", "lost>0,p42>1ms"], "--fail-on"),
        ];
        for (arguments, named) in table {
            let error = Arguments::try_parse_from([&["loadtest"], *arguments].concat()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{arguments:?}");
            assert!(error.to_string().contains(named), "{arguments:?}: {error}");
        }
    }
}

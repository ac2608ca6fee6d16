//! The command line. What is impossible is refused here, by name, so that everything after can rely on it.

mod mesh;
mod transport;
mod values;

use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use thiserror::Error;

pub(crate) use self::mesh::Mesh;
pub(crate) use self::transport::{BrokerAddress, Transport};
pub(crate) use self::values::duration;
use self::values::{part, positive_duration, rate, sizes, topic, topic_name};
use crate::spread::{Popularity, Sizes};
use crate::threshold::Threshold;
use crate::wire::{QoS, Version};

const EXAMPLES: &str = "\
Examples:
  loadtest pair --pairs 10 --qos 1                            how much a broker carries
  loadtest latency --rate 10000 --fail-on 'lost>0,p99>5ms'    how long messages take, and whether that will do
  loadtest fanout --subscribers 100 --broker a --subscribe-at b from one broker of a mesh to another
  loadtest connect --connections 10000 --pid 1234             what idle connections cost the broker of that process
  loadtest report ours.json theirs.json -o page.html          tables and plots of runs that were given --json
  loadtest sub --qos 1 & loadtest pub --qos 1 --count 1000    ends on different hosts
  loadtest mesh --broker a --broker b --fault '5s ssh b reboot' --fail-on 'lost_qos1>0,lost_qos2>0,duplicated>0,reordered>0'";

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

/// Arguments that are right by themselves and impossible together.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Load(LoadCommand),
    /// Publishers and subscribers at every broker of a mesh, and an account of every flow, whatever breaks meanwhile.
    Mesh(Mesh),
    /// A page of HTML with tables and plots from the --json of one or more runs.
    Report(Page),
    /// Certificates for many clients and a broker, and the authority that has signed them, to test with.
    Keys(Keys),
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoadCommand {
    /// Publish only; with QoS 1 and 2 the latency is the time to the broker's acknowledgement.
    Pub(Pub),
    /// Subscribe only, to what `loadtest pub` sends from elsewhere.
    Sub(Sub),
    /// Publishers and their subscribers, end to end: throughput by a window, or a fixed rate.
    Pair(Pair),
    /// One publisher and many subscribers, all of whom get every message.
    Fanout(Fanout),
    /// Many publishers, and one subscriber that gets every message.
    Fanin(Fanin),
    /// Connections that do nothing: how fast they are accepted, how long each takes, what they cost.
    Connect(Connect),
    /// One publisher and one subscriber at a fixed rate: how long messages take.
    Latency(Latency),
}

/// Which brokers, and how to speak to them.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Host and port, or mqtts://, ws:// or wss://HOST; repeat it to spread the clients over several brokers.
    #[arg(long = "broker", value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    pub(crate) brokers: Vec<BrokerAddress>,
    #[command(flatten)]
    pub(crate) transport: Transport,
    /// Local address to connect from; several are taken in turn, and each has ports of its own.
    #[arg(long, value_name = "IP")]
    pub(crate) bind: Vec<IpAddr>,
    /// Protocol version.
    #[arg(long = "mqtt", value_name = "VERSION", value_enum, default_value = "3.1.1")]
    pub(crate) version: Version,
    /// Quality of service, of publishing and subscribing.
    #[arg(long, value_enum, default_value = "0")]
    pub(crate) qos: QoS,
    /// User name; %i becomes a client's number.
    #[arg(long, requires = "password")]
    pub(crate) username: Option<String>,
    /// Password; %i becomes a client's number.
    #[arg(long, env = "LOADTEST_PASSWORD", hide_env_values = true, requires = "username")]
    pub(crate) password: Option<String>,
    /// Ask brokers to keep the clients' sessions. They are ended after the run, unless --client-id is given.
    #[arg(long)]
    pub(crate) persistent: bool,
    /// What client ids begin with; p, s or c and a number follow [default: lt and a random number].
    #[arg(long, value_name = "PREFIX")]
    pub(crate) client_id: Option<String>,
    /// Keep alive to ask for, in seconds; 0: none.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) keep_alive: u16,
    /// How long a broker may owe an answer before it is given up.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    pub(crate) timeout: Duration,
    /// Connections that are opened at the same time.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connecting: u32,
    /// Process of a broker on this host, whose use of processors and memory is told (Linux); repeatable.
    #[arg(long = "pid", value_name = "PID")]
    pub(crate) pids: Vec<u32>,
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
    /// Metrics: connected, failed, dropped, connect_rate (of connect; a second), lost, duplicated, reordered, corrupted, foreign, refused, unacknowledged, stalls, sent_rate, delivered_rate
    /// (messages a second), broker_us (--pid: processor time of the brokers a message, microseconds), broker_bytes (--pid: the
    /// most memory they had), min, mean, p50, p90, p99, p999, p9999, max (latency, with a unit). Operators: > >= < <= =. What
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
    /// Payload of a message, in bytes: a number, a range (64-1024) or a list (64,256,1024), each as often, or a mean and
    /// a deviation (100~5) [default: 64; fanout
    /// and fanin: 40].
    #[arg(long, value_name = "SIZES", value_parser = sizes)]
    pub(crate) payload_bytes: Option<Sizes>,
    /// Messages under way per publisher: not yet acknowledged (QoS 1, 2); without --rate also not yet at every subscriber
    /// [default: 100; fanin: 20; fanout: 1000 to one subscriber, 200 to 10, 100 to 100, 50 to more].
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<NonZeroU16>,
    /// Messages a second of all publishers together (open loop) [default: as many as the window allows; latency: 1000].
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Begin with nothing and reach --rate evenly in this time.
    #[arg(long, value_name = "TIME", requires = "rate", value_parser = positive_duration)]
    pub(crate) ramp: Option<Duration>,
    /// Put each message off by chance, by up to this part of the time to its publisher's next (0 to 1).
    #[arg(long, value_name = "PART", default_value = "0", value_parser = part)]
    pub(crate) jitter: f64,
    /// Topics of each publisher.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) topics: NonZeroU32,
    /// Which of its topics a publisher takes for a message: uniform, or zipf:EXPONENT (the first most often).
    #[arg(long, value_name = "POPULARITY", default_value = "uniform")]
    pub(crate) popularity: Popularity,
    /// Messages of each publisher; without it the run ends by time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// How long to measure [default: 10s, or until --count is reached].
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) duration: Option<Duration>,
    /// How long to send before measuring [default: --ramp and 1s, or nothing with --count].
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
    /// Topic; %i becomes the publisher's number. With --topics it is followed by a slash and the topic's number.
    #[arg(long, default_value = "loadtest/%i", value_parser = topic_name)]
    pub(crate) topic: String,
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

/// `loadtest connect`
#[derive(Debug, Args)]
pub(crate) struct Connect {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Connections.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: u32,
    /// Connections to open a second [default: as many as --connecting allows].
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Begin with nothing and reach --rate evenly in this time.
    #[arg(long, value_name = "TIME", requires = "rate", value_parser = positive_duration)]
    pub(crate) ramp: Option<Duration>,
    /// How long to keep all of them.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) hold: Duration,
}

/// Where the subscribers are, where there are publishers too, and what they share with these.
#[derive(Debug, Args)]
pub(crate) struct EndToEnd {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) load: Load,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Brokers of the subscribers [default: messages go from one --broker to the next].
    #[arg(long = "subscribe-at", value_name = "HOST[:PORT]")]
    pub(crate) subscribe_at: Vec<BrokerAddress>,
    /// Topics are PREFIX/RUN/PUBLISHER; with --topics these are followed by a slash and the topic's number.
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
    /// Subscribers of each publisher.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) subscribers: u32,
}

/// `loadtest fanout`
#[derive(Debug, Args)]
pub(crate) struct Fanout {
    #[command(flatten)]
    pub(crate) end_to_end: EndToEnd,
    /// Subscribers.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) subscribers: u32,
}

/// `loadtest fanin`
#[derive(Debug, Args)]
pub(crate) struct Fanin {
    #[command(flatten)]
    pub(crate) end_to_end: EndToEnd,
    /// Publishers.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) publishers: u32,
}

/// `loadtest latency`
#[derive(Debug, Args)]
pub(crate) struct Latency {
    #[command(flatten)]
    pub(crate) end_to_end: EndToEnd,
    /// Subscribers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) subscribers: u32,
}

/// `loadtest report`
#[derive(Debug, Args)]
pub(crate) struct Page {
    /// What runs have written with --json; each is called by its file's name.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Where to write the page [default: stdout].
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Show all of them together, too, as a run of this name: what several machines have done at the same time.
    #[arg(long, value_name = "NAME")]
    pub(crate) together: Option<String>,
    /// The page's title.
    #[arg(long, default_value = "Load test")]
    pub(crate) title: String,
}

/// `loadtest keys`
#[derive(Debug, Args)]
pub(crate) struct Keys {
    /// Where to write ca.pem, server.pem, client-0.pem and so on, and the keys to them.
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
    /// Clients.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Name or address of the broker; repeatable.
    #[arg(long = "host", value_name = "HOST", default_values = ["localhost", "127.0.0.1", "::1"])]
    pub(crate) hosts: Vec<String>,
}

impl LoadCommand {
    pub(crate) fn output(&self) -> &Output {
        match self {
            Self::Pub(command) => &command.output,
            Self::Sub(command) => &command.output,
            Self::Pair(command) => &command.end_to_end.output,
            Self::Connect(command) => &command.output,
            Self::Fanout(command) => &command.end_to_end.output,
            Self::Fanin(command) => &command.end_to_end.output,
            Self::Latency(command) => &command.end_to_end.output,
        }
    }
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
    fn impossible_requests_are_refused_by_name() {
        let table: &[(&[&str], &str)] = &[
            (&["pub", "--payload-bytes", "31"], "--payload-bytes"),
            (&["pub", "--topic", "a/#"], "--topic"),
            (&["pub", "--payload-bytes", "40,268000001"], "--payload-bytes"),
            (&["pub", "--rate", "0"], "--rate"),
            (&["pub", "--ramp", "5s"], "--rate"),
            (&["pub", "--rate", "5", "--jitter", "1.1"], "--jitter"),
            (&["pair", "--topics", "0"], "--topics"),
            (&["fanin", "--popularity", "pareto"], "--popularity"),
            (&["fanout", "--subscribers", "0"], "--subscribers"),
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

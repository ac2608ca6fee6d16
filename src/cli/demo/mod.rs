//! `demo`: the main job with nothing to set up. Brokers in one process, real sockets, real QUIC; a message from each to each; the root
//! crashes, the tree heals, the root comes back.

mod client;
mod fleet;
mod report;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use tokio::sync::mpsc;

use super::{log, signals::Signals};
use crate::clock;
use crate::codec::PacketId;
use crate::config::Log;
use client::{Arrival, Client};
use fleet::Fleet;
use report::Report;

/// How long it serves where nobody sits before it.
const SECONDS_DEFAULT: u64 = 30;
/// Every message of a round has arrived by then, or is lost.
const ROUND_TIMEOUT: Duration = Duration::from_secs(3);
/// A second copy of a message would have arrived by then.
const QUIET_TIME: Duration = Duration::from_millis(50);
/// Arrivals that may wait to be counted.
const ARRIVALS_MAX: usize = 1_024;
const TOPICS: &str = "demo/#";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// How many brokers
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=32))]
    brokers: u16,
    /// The first broker's MQTT port; the others' follow. Without it: 1883, and free ports where those are taken
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    base_port: Option<u16>,
    /// Stop after so long. Without it: on Ctrl-C, or after 30 s where stdout is no terminal
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Log what the brokers do; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// One message from each broker to each.
struct Round {
    /// Deliveries that there should be.
    expected: usize,
    /// Those that there were: by broker of origin, then by arrival.
    deliveries: Vec<Delivery>,
}

struct Delivery {
    from: String,
    to: String,
    took: Duration,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let filter = match arguments.verbose {
        0 => "error",
        1 => "info",
        _ => "debug",
    };
    let _ = log::start(&Log { filter: filter.to_owned(), ..Log::default() })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let began = clock::now();
        // Before the start: a signal that comes during it is not lost, and leaves nothing behind.
        let mut signals = Signals::new().context("cannot catch signals")?;
        let mut stage = Stage::open(arguments)?;
        let result = tokio::select! {
            result = stage.play(began) => result,
            _ = signals.stop() => Ok(Ending::Interrupted),
        };
        let code = match &result {
            Ok(Ending::Played) => stage.serve(arguments, began, &mut signals).await.map(|()| ExitCode::SUCCESS),
            Ok(Ending::Interrupted) => Ok(ExitCode::from(130)),
            Err(_) => Ok(ExitCode::FAILURE),
        };
        stage.fleet.shutdown().await;
        result.and(code)
    })
}

enum Ending {
    /// All was shown.
    Played,
    /// Ctrl-C before that.
    Interrupted,
}

/// The brokers, a client at each, and what the clients received.
struct Stage {
    fleet: Fleet,
    /// By the broker's place.
    clients: Vec<Option<Client>>,
    arrivals: mpsc::Receiver<Arrival>,
    arrived: mpsc::Sender<Arrival>,
    rounds: u16,
    report: Report,
}

impl Stage {
    fn open(arguments: &Arguments) -> anyhow::Result<Self> {
        let report = if arguments.json { Report::Json } else { Report::Text };
        let fleet = Fleet::start(arguments.brokers, arguments.base_port)?;
        report.started(fleet.configs())?;
        let (arrived, arrivals) = mpsc::channel(ARRIVALS_MAX);
        let clients = fleet.configs().map(|_| None).collect();
        Ok(Self { fleet, clients, arrivals, arrived, rounds: 0, report })
    }

    async fn play(&mut self, began: Instant) -> anyhow::Result<Ending> {
        let topology = self.fleet.settle().await?;
        self.report.tree("one tree", &topology, clock::now() - began)?;
        self.deliver().await?;

        let root = self.fleet.place_of(&topology.root).context("the root is none of our brokers")?;
        self.fleet.crash(root).await;
        if let Some(client) = self.clients.get_mut(root) {
            *client = None;
        }
        let crashed = clock::now();
        self.report.crashed(&topology.root)?;
        let healed = self.fleet.settle().await?;
        self.report.tree("healed", &healed, clock::now() - crashed)?;
        self.deliver().await?;

        let returned = clock::now();
        self.fleet.launch(root)?;
        self.report.returned(&topology.root)?;
        let whole = self.fleet.settle().await?;
        self.report.tree("one tree again", &whole, clock::now() - returned)?;
        self.deliver().await?;
        Ok(Ending::Played)
    }

    /// Lets a client at each running broker publish one message, and checks that each arrives at each, once.
    async fn deliver(&mut self) -> anyhow::Result<()> {
        self.connect().await?;
        self.rounds += 1;
        let packet_id = PacketId::new(self.rounds).context("too many rounds")?;
        let names: Vec<String> = self.fleet.configs().map(|config| config.name.clone()).collect();
        let running: Vec<usize> = self.fleet.running().collect();
        let mut sent = Vec::new();
        for (place, client) in self.clients.iter().enumerate() {
            let (Some(client), Some(name)) = (client, names.get(place)) else { continue };
            let payload = format!("{name}, round {}", self.rounds);
            let when = clock::now();
            client.publish(packet_id, &format!("demo/{name}"), &payload).await?;
            sent.push((name, payload, when));
        }
        let expected = running.len() * running.len();
        let mut round = Round { expected, deliveries: Vec::with_capacity(expected) };
        let mut missing: Vec<(usize, &str)> =
            running.iter().flat_map(|at| sent.iter().map(|(_, payload, _)| (*at, payload.as_str()))).collect();
        let deadline = tokio::time::Instant::from_std(clock::now() + ROUND_TIMEOUT);
        loop {
            let until = if missing.is_empty() { tokio::time::Instant::from_std(clock::now() + QUIET_TIME) } else { deadline };
            let Ok(Some(arrival)) = tokio::time::timeout_at(until, self.arrivals.recv()).await else { break };
            let to = names.get(arrival.at).map_or("", String::as_str);
            let wanted = missing.iter().position(|(at, payload)| *at == arrival.at && *payload == arrival.payload);
            let place = wanted.with_context(|| format!("`{}` arrived at {to} twice, or late", arrival.payload))?;
            let (_, payload) = missing.swap_remove(place);
            let (from, when) =
                sent.iter().find(|(_, sent, _)| sent == payload).map(|(from, _, when)| (*from, *when)).context("never sent")?;
            round.deliveries.push(Delivery { from: from.clone(), to: to.to_owned(), took: arrival.when - when });
        }
        if let Some((at, payload)) = missing.first() {
            let to = names.get(*at).map_or("", String::as_str);
            anyhow::bail!("{} of {expected} messages are lost; the first: `{payload}` did not arrive at {to}", missing.len());
        }
        round.deliveries.sort_by(|one, other| one.from.cmp(&other.from));
        self.report.delivered(&round)
    }

    async fn connect(&mut self) -> anyhow::Result<()> {
        let addresses: Vec<_> =
            self.fleet.configs().map(|config| config.listeners.first().and_then(|listener| listener.bind.address())).collect();
        for place in self.fleet.running() {
            if let (Some(slot @ None), Some(Some(address))) = (self.clients.get_mut(place), addresses.get(place)) {
                *slot = Some(Client::connect(*address, place, TOPICS, self.arrived.clone()).await?);
            }
        }
        Ok(())
    }

    /// Until Ctrl-C or the end of the time that was given, whichever comes first.
    async fn serve(&self, arguments: &Arguments, began: Instant, signals: &mut Signals) -> anyhow::Result<()> {
        let seconds = arguments.seconds.or_else(|| (!stdout().is_terminal()).then_some(SECONDS_DEFAULT));
        let rest = seconds.map(|seconds| Duration::from_secs(seconds).saturating_sub(clock::now() - began));
        self.report.serving(self.fleet.configs(), rest)?;
        let time_is_up = async {
            match rest {
                Some(rest) => tokio::time::sleep(rest).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = time_is_up => {}
            _ = signals.stop() => {}
        }
        Ok(())
    }
}

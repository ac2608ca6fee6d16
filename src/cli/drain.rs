//! `drain`: empties a running broker and shows how far it is. The broker does it by itself: this command may be ended, and given again.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::ask::Where;
use super::output::print;
use super::settings::Settings;
use crate::clock;
use crate::config::parse_duration;
use crate::drain::{DrainRequest, DrainState, DrainStatus};

const PATH: &str = "/api/v1/drain";
/// Between two questions.
const ASK_INTERVAL: Duration = Duration::from_millis(200);
/// An empty broker that is to end has ended by then.
const END_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The broker's configuration, which says where its admin interface and its token are
    #[arg(short, long, value_name = "FILE", conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// Clients that are sent away a second
    #[arg(long, value_name = "N/s", value_parser = parse_rate, default_value = "100/s")]
    rate: NonZeroU32,
    /// How long clients are let in after /readyz has begun to say no: until load balancers have noticed
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "3s")]
    notice: Duration,
    /// Leave the broker running when it is empty
    #[arg(long)]
    stay: bool,
    /// Call it off: the broker serves again
    #[arg(long, conflicts_with_all = ["rate", "notice", "stay"])]
    cancel: bool,
    /// Fail when nothing has gone for so long, and something is left
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
    patience: Duration,
    /// The document of /api/v1/drain, as it was last
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Where,
}

fn parse_rate(text: &str) -> Result<NonZeroU32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    number.parse().map_err(|error| format!("{error}: clients a second, as in 100/s"))
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let broker = match &arguments.config {
        Some(file) => Where::of(&Settings::default().load(Some(file))?),
        // Where a broker without a configuration has it.
        None => arguments.broker.with_token(Path::new("data").join("admin.token")),
    };
    if arguments.cancel {
        let status: DrainStatus = broker.take_back(PATH)?;
        show(&status, arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let notice_ms = u32::try_from(arguments.notice.as_millis()).unwrap_or(u32::MAX);
    let request = DrainRequest { rate: arguments.rate, notice_ms, ends: !arguments.stay };
    let first = broker.ask(PATH, Some(&request))?;
    let last = follow(&broker, first, arguments.patience)?;
    show(&last, arguments.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Until nothing is left, and the broker has ended if it is to.
fn follow(broker: &Where, first: DrainStatus, patience: Duration) -> anyhow::Result<DrainStatus> {
    let (mut last, mut told_at) = (first, None::<Instant>);
    let mut progress_at = clock::now();
    loop {
        let now = clock::now();
        if told_at.is_none_or(|at| now.saturating_duration_since(at) >= Duration::from_secs(1)) {
            told_at = Some(now);
            // Who does not look misses nothing.
            let _ = writeln!(io::stderr(), "{}", in_words(&last));
        }
        if last.state == DrainState::Empty && !last.ends {
            return Ok(last);
        }
        std::thread::sleep(ASK_INTERVAL);
        let status: DrainStatus = match broker.ask(PATH, None::<&()>) {
            Ok(status) => status,
            // It has ended.
            Err(_) if last.ends && last.clients == 0 && last.sessions == 0 => {
                return Ok(DrainStatus { state: DrainState::Stopping, ..last });
            }
            Err(error) => return Err(error.context("the broker was not empty yet")),
        };
        anyhow::ensure!(status.state != DrainState::Serving, "it was called off: the broker serves again");
        if (status.state, status.clients, status.sessions) != (last.state, last.clients, last.sessions) {
            progress_at = now;
        }
        last = status;
        let patience = if last.state == DrainState::Empty { END_PATIENCE } else { patience };
        anyhow::ensure!(clock::now().saturating_duration_since(progress_at) < patience, "{}", stuck(&last));
    }
}

fn in_words(status: &DrainStatus) -> String {
    let DrainStatus { clients, sessions, sent_away, seconds, .. } = status;
    let what = match status.state {
        DrainState::Serving => "serving",
        DrainState::Waiting => "not ready any more; waiting for balancers to notice",
        DrainState::Sending => "sending clients to other brokers",
        DrainState::Giving => "giving sessions to other brokers",
        DrainState::Empty => "empty",
        DrainState::Stopping => "empty, and ended",
    };
    format!("{seconds:.1} s: {what}; {clients} clients and {sessions} sessions here, {sent_away} clients sent away")
}

fn stuck(status: &DrainStatus) -> String {
    let DrainStatus { clients, sessions, others, .. } = status;
    let why = match (status.state, others) {
        (DrainState::Empty, _) => "it does not end",
        (_, 0) => "no other broker can be reached",
        _ => "no other broker takes them, or they wait for a will's delay",
    };
    format!(
        "{clients} clients and {sessions} sessions are left: {why}. The broker takes no clients and goes on trying; what it has is on its disk. \
         `drain --cancel` calls it off"
    )
}

fn show(status: &DrainStatus, json: bool) -> anyhow::Result<()> {
    print(&if json { serde_json::to_string_pretty(status)? } else { in_words(status) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_clients_a_second() {
        for (text, rate) in [("100/s", Some(100)), ("7", Some(7)), ("0", None), ("x", None), ("5/m", None), ("-1/s", None)] {
            assert_eq!(parse_rate(text).ok().map(NonZeroU32::get), rate, "{text}");
        }
    }
}

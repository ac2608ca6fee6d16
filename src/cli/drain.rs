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
        let is_over = matches!(last.state, DrainState::Empty | DrainState::Stopping);
        let patience = if is_over { END_PATIENCE } else { patience };
        let is_late = clock::now().saturating_duration_since(progress_at) >= patience;
        let status: DrainStatus = match broker.ask(PATH, None::<&()>) {
            Ok(status) => status,
            Err(error) if is_refused(&error) && last.ends && is_over => {
                return Ok(DrainStatus { state: DrainState::Stopping, ..last });
            }
            Err(error) if is_refused(&error) => return Err(error.context("the broker has ended before it was empty")),
            // It has much to do, or is just ending.
            Err(_) if !is_late => continue,
            Err(error) => return Err(error.context("the broker was not empty yet")),
        };
        anyhow::ensure!(status.state != DrainState::Serving, "it was called off: the broker serves again");
        if is_further(&status, &last) {
            progress_at = now;
        } else {
            anyhow::ensure!(!is_late, "{}", stuck(&status));
        }
        last = status;
    }
}

fn is_further(status: &DrainStatus, last: &DrainStatus) -> bool {
    let of = |status: &DrainStatus| (status.state, status.clients, status.sessions, status.waiting_for.clone());
    of(status) != of(last)
}

/// Nobody listens there any more: the process has ended.
fn is_refused(error: &anyhow::Error) -> bool {
    let is_it = |error: &ureq::Error| matches!(error, ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused);
    error.chain().filter_map(|cause| cause.downcast_ref()).any(is_it)
}

fn in_words(status: &DrainStatus) -> String {
    let DrainStatus { clients, sessions, sent_away, seconds, others, waiting_for, .. } = status;
    let what = match (status.state, others) {
        (DrainState::Serving, _) => "serving",
        (DrainState::Waiting, 0) => "not ready any more; serving, as no other broker is there to which clients could go",
        (DrainState::Waiting, _) => "not ready any more; waiting for balancers to notice",
        (DrainState::Sending, _) => "sending clients to other brokers",
        (DrainState::Giving, _) => "giving sessions to other brokers",
        (DrainState::Settling, _) => "waiting until others have what was published here",
        (DrainState::Empty, _) => "empty",
        (DrainState::Stopping, _) => "empty, and ended",
    };
    let for_whom = if waiting_for.is_empty() { String::new() } else { format!(" ({})", waiting_for.join(", ")) };
    format!("{seconds:.1} s: {what}{for_whom}; {clients} clients and {sessions} sessions here, {sent_away} clients sent away")
}

fn stuck(status: &DrainStatus) -> String {
    let DrainStatus { clients, sessions, others, waiting_for, .. } = status;
    let why = match (status.state, others) {
        (DrainState::Empty | DrainState::Stopping, _) => "it does not end".to_owned(),
        (DrainState::Waiting, 0) => {
            "no other broker can be reached that takes clients: it still serves, though it says that it is not ready".to_owned()
        }
        (DrainState::Settling, _) if !waiting_for.is_empty() => {
            format!("{} may not have what was published here, and cannot have it from anybody else", waiting_for.join(", "))
        }
        (DrainState::Settling, _) => "others do not know yet where sessions went, or a bridge does not end".to_owned(),
        _ => "no other broker takes them, or they wait for a will's delay".to_owned(),
    };
    format!(
        "{clients} clients and {sessions} sessions are left: {why}. The broker goes on trying, and ends when it can; `drain --cancel` calls it off, and whoever stops \
         it leaves what is left on its disk, if it has one"
    )
}

fn show(status: &DrainStatus, json: bool) -> anyhow::Result<()> {
    print(&if json { serde_json::to_string_pretty(status)? } else { in_words(status) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_manifest_for_kubernetes_says_is_understood() {
        let manifest = include_str!("../../deploy/kubernetes/statefulset.yaml");
        let line = manifest.lines().find_map(|line| line.trim().strip_prefix("command: ")).unwrap();
        let words: Vec<String> = serde_json::from_str(line).unwrap();
        #[derive(clap::Parser)]
        struct Alone {
            #[command(flatten)]
            arguments: Arguments,
        }
        assert_eq!(words[..2], ["mqtt-st-quic", "drain"]);
        let Alone { arguments } = clap::Parser::try_parse_from(&words[1..]).unwrap_or_else(|error| panic!("{error}"));
        assert!(arguments.stay && arguments.config.is_some() && arguments.patience < Duration::from_secs(300));
    }

    #[test]
    fn rates_are_clients_a_second() {
        for (text, rate) in [("100/s", Some(100)), ("7", Some(7)), ("0", None), ("x", None), ("5/m", None), ("-1/s", None)] {
            assert_eq!(parse_rate(text).ok().map(NonZeroU32::get), rate, "{text}");
        }
    }

    #[test]
    fn what_is_waited_for_is_said() {
        let of = |state, others, waiting_for: &[&str]| DrainStatus {
            state,
            clients: 0,
            sessions: 1,
            sent_away: 2,
            others,
            waiting_for: waiting_for.iter().map(|name| (*name).to_owned()).collect(),
            ends: true,
            seconds: 1.0,
        };
        for (status, expected) in [
            (of(DrainState::Waiting, 0, &[]), "no other broker can be reached"),
            (of(DrainState::Giving, 1, &[]), "no other broker takes them"),
            (of(DrainState::Settling, 1, &["b", "c"]), "b, c may not have what was published here"),
            (of(DrainState::Empty, 1, &[]), "it does not end"),
        ] {
            assert!(stuck(&status).contains(expected), "{}", stuck(&status));
        }
        let last = of(DrainState::Settling, 1, &["b", "c"]);
        assert!(is_further(&of(DrainState::Settling, 1, &["c"]), &last) && !is_further(&last.clone(), &last));
        let io = |kind: io::ErrorKind| anyhow::Error::from(ureq::Error::Io(kind.into())).context("no broker answers");
        assert!(is_refused(&io(io::ErrorKind::ConnectionRefused)) && !is_refused(&io(io::ErrorKind::TimedOut)));
    }
}

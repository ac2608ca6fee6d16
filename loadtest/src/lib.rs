//! `loadtest`: a load generator with a ledger for any MQTT broker. A library as well, so that tests can start [`mesh`] runs and break things
//! meanwhile; the program is [`main`].
//!
//! | module | duty |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`plan`] | who does what: every client of a run |
//! | [`run`] | opens the clients, follows the course, collects what everyone has to say |
//! | [`connect`] | a run that only connects |
//! | [`course`] | warm up, measure, finish: decided from counts and moments alone |
//! | [`client`] | one publisher or subscriber over one socket |
//! | [`wire`] | MQTT packets, out and in |
//! | [`payload`] | the stamp and filler of a message |
//! | [`spread`] | how messages are spread over topics and payload sizes |
//! | [`ledger`] | lost, duplicated, reordered: one flow's books |
//! | [`mesh`] | clients that outlive their connections, at every broker of a mesh; an account of each flow |
//! | [`pace`], [`timer`] | the open loop's schedule, and waking for it |
//! | [`tally`], [`watch`], [`series`], [`usage`] | what all clients have counted, over time, and what brokers' processes have used |
//! | [`report`], [`threshold`], [`progress`] | the results, the conditions on them, the bar |
//! | [`html`], [`merge`] | a page from the reports of runs, and several of these as one |
//! | [`keys`] | certificates for many clients |
//! | [`clock`] | the one place that reads time |

mod arguments;
mod client;
mod clock;
mod connect;
mod course;
mod html;
mod keys;
mod ledger;
mod merge;
pub mod mesh;
mod pace;
mod payload;
mod plan;
mod progress;
mod report;
mod run;
mod series;
mod spread;
mod tally;
mod threshold;
mod timer;
mod usage;
mod watch;
mod wire;

use std::fs;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::arguments::{Arguments, Command, Output, Usage};
pub use crate::client::Endpoint;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::Report;
pub use crate::wire::{Login, QoS, Version};

/// Of a broker that dies, every client complains; the first few say it all.
const FAULTS_TOLD: usize = 5;

/// Open files besides the clients' sockets.
#[cfg(unix)]
const FILES_SPARE: u64 = 24;

/// What a shell expects of a program that was interrupted.
const EXIT_INTERRUPTED: u8 = 130;

/// The program: does what its arguments say.
pub fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Load(command) => Plan::new(&command).and_then(|plan| load(&plan, command.output())),
        Command::Mesh(command) => observe(&command),
        Command::Report(page) => {
            html::write(&page.files, &page.title, page.together.as_deref(), page.output.as_deref()).map(|()| ExitCode::SUCCESS)
        }
        Command::Keys(keys) => keys::write(&keys.directory, keys.count, &keys.hosts).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        if let Some(usage) = error.downcast_ref::<Usage>() {
            Arguments::command().error(ErrorKind::ValueValidation, usage).exit();
        }
        complain(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

/// A load: runs, reports and judges.
fn load(plan: &Plan, output: &Output) -> Result<ExitCode> {
    allow_sockets(plan.connections().count())?;
    let runtime = runtime(plan.threads)?;
    let mut progress = Progress::new(output.quiet);
    let outcome = runtime.block_on(async {
        match &plan.idle {
            Some(idle) => connect::run(plan, idle, &mut progress).await,
            None => run::run(plan, &mut progress).await,
        }
    });
    // A name that is still being looked up is not worth waiting for.
    runtime.shutdown_background();
    conclude(&Report::new(plan, outcome?), output)
}

/// A mesh: the same.
fn observe(command: &arguments::Mesh) -> Result<ExitCode> {
    let clients = command.publishers as usize * command.qos.len() + command.subscribers as usize;
    allow_sockets(clients * command.brokers.len())?;
    let mut progress = Progress::new(command.output.quiet);
    let report = runtime(1)?.block_on(mesh::command::run(command, &mut progress))?;
    conclude(&report, &command.output)
}

/// Writes the report, and tells how it went.
fn conclude(report: &Report, output: &Output) -> Result<ExitCode> {
    if let Some(path) = &output.json {
        let json = serde_json::to_vec_pretty(report)?;
        fs::write(path, json).with_context(|| format!("cannot write --json {}", path.display()))?;
    }
    write!(stdout(), "{report}").context("cannot write the report to stdout")?;
    let failures: Vec<_> = output.fail_on.iter().filter_map(|threshold| threshold.failure(report)).collect();
    report.faults.iter().take(FAULTS_TOLD).for_each(|fault| complain(fault));
    if let Some(untold) = report.faults.len().checked_sub(FAULTS_TOLD).filter(|&untold| untold > 0) {
        complain(&format!("and {untold} more clients (--json lists them)"));
    }
    failures.iter().for_each(|failure| complain(&format!("--fail-on {failure}")));
    Ok(if report.interrupted {
        ExitCode::from(EXIT_INTERRUPTED)
    } else if report.faults.is_empty() && failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One thread needs no work stealing, and is cheaper without.
fn runtime(threads: u16) -> Result<tokio::runtime::Runtime> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(usize::from(threads)).enable_all().build().context("cannot start the runtime")
}

/// A client is a socket: takes all that the system allows.
///
/// # Errors
/// When that cannot be enough.
fn allow_sockets(clients: usize) -> Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        ensure!(
            (clients as u64).saturating_add(FILES_SPARE) <= allowed,
            "{clients} clients need as many open files, and the system allows this process {allowed} (ulimit -n)"
        );
    }
    Ok(())
}

fn complain(error: &str) {
    // Where stderr is closed there is nobody left to tell.
    let _ = writeln!(stderr(), "loadtest: {error}");
}

//! `loadtest mesh` from the command line: the run's course, and the timetable of what breaks.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use super::account::Account;
use super::plan::{MeshPlan, Publishing, Subscribing};
use super::run::MeshRun;
use super::timetable::Timetable;
use crate::arguments::{Mesh, Usage};
use crate::clock::now_ns;
use crate::progress::{Extent, Progress};
use crate::report::Report;
use crate::tally::Snapshot;
use crate::wire::Login;

/// How often the course is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long is published unless something is said.
const DURATION: Duration = Duration::from_secs(10);

/// How often the account is made up for the progress.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl Mesh {
    fn plan(&self) -> Result<MeshPlan> {
        let count = self.brokers.len();
        if self.transport.has_own_certificates() {
            return Err(Usage("the clients of a mesh share a certificate: no %i in --cert and --key".to_owned()).into());
        }
        let brokers = self.transport.endpoints(&self.brokers)?;
        let at = |home: usize| if self.roam { (home..home + count).map(|place| place % count).collect() } else { vec![home] };
        let publishers = (0..count).flat_map(|home| self.qos.iter().map(move |&qos| (home, qos)));
        let publishers = publishers.flat_map(|one| std::iter::repeat_n(one, self.publishers as usize));
        let subscribers = (0..count).flat_map(|home| std::iter::repeat_n(home, self.subscribers as usize));
        let of_one_broker = self.qos.len() * self.publishers as usize;
        let login = self.username.as_ref().zip(self.password.as_ref());
        Ok(MeshPlan {
            publishers: publishers.map(|(home, qos)| Publishing { at: at(home), qos }).collect(),
            subscribers: subscribers.map(|home| Subscribing { at: at(home), hears: None }).collect(),
            version: self.version,
            login: login.map(|(username, password)| Login { username: username.clone(), password: password.clone() }),
            rate: self.rate.map(|rate| rate / of_one_broker.max(1) as f64),
            count: self.count,
            window: self.window,
            payload_bytes: self.payload_bytes,
            keeps_sessions: !self.clean,
            timeout: self.timeout,
            prefix: self.prefix.clone(),
            brokers,
        })
    }
}

/// Runs to the end, or until it is interrupted.
///
/// # Errors
/// When the timetable cannot be read or carried out, or not everybody hears everybody.
pub(crate) async fn run(command: &Mesh, progress: &mut Progress) -> Result<Report> {
    let text = match &command.timetable {
        Some(path) => fs::read_to_string(path).with_context(|| format!("cannot read --timetable {}", path.display()))?,
        None => String::new(),
    };
    let mut timetable = Timetable::new(&command.faults, &text).context("--timetable")?;
    let plan = command.plan()?;
    let run = MeshRun::start(plan.clone()).context("cannot start the clients")?;
    let interrupted = tokio::select! {
        done = follow(command, &run, &mut timetable, progress) => {
            done?;
            false
        }
        interrupted = tokio::signal::ctrl_c() => interrupted.is_ok(),
    };
    progress.end();
    Ok(Report::of_mesh(&plan, run.finish(), interrupted))
}

async fn follow(command: &Mesh, run: &MeshRun, timetable: &mut Timetable, progress: &mut Progress) -> Result<()> {
    progress.opening(command.brokers.len());
    let joining_since_ns = now_ns();
    while !run.is_joined() {
        ensure!(since(joining_since_ns) < command.join, "{}", unheard(&run.account(), command.join));
        sleep(LOOK_EVERY).await;
    }
    run.open_books();
    let duration = command.duration.or(if command.count.is_some() { None } else { Some(DURATION) });
    let sent = command.count.map(|count| count * command.brokers.len() as u64 * u64::from(command.publishers));
    progress.running(duration.map_or(Extent::Sent(sent.unwrap_or_default() * command.qos.len() as u64), Extent::Time));
    let begun_ns = now_ns();
    let mut told = Duration::ZERO;
    while !run.is_sent() && duration.is_none_or(|duration| since(begun_ns) < duration) {
        let elapsed = since(begun_ns);
        timetable.proceed(elapsed)?.into_iter().for_each(|what| run.note(what));
        if elapsed >= told + TELL_EVERY {
            told = elapsed;
            progress.update(elapsed, &snapshot(&run.account()));
        }
        sleep(LOOK_EVERY).await;
    }
    run.stop_publishing();
    let stopped_ns = now_ns();
    while !(run.is_settled() && run.has_heard_the_last()) && run.quiet_for().min(since(stopped_ns)) < command.drain {
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

fn since(then_ns: u64) -> Duration {
    Duration::from_nanos(now_ns().saturating_sub(then_ns))
}

/// What there is of the counts that progress is told by.
fn snapshot(account: &Account) -> Snapshot {
    let mut snapshot = Snapshot { at_ns: now_ns(), ..Snapshot::default() };
    for publisher in &account.publishers {
        snapshot.sent += publisher.sent;
        snapshot.acknowledged += publisher.taken;
    }
    for flow in &account.flows {
        snapshot.delivered += flow.delivered;
        snapshot.duplicated += flow.duplicated;
        snapshot.reordered += flow.reordered;
        snapshot.corrupted += flow.corrupted;
    }
    snapshot
}

/// Who does not hear whom, and why that may be.
fn unheard(account: &Account, within: Duration) -> String {
    let silent = account.flows.iter().filter(|flow| flow.delivered == 0);
    let pairs = silent.filter_map(|flow| {
        let from = &account.publishers.get(flow.publisher)?.at;
        let to = &account.subscribers.get(flow.subscriber)?.at;
        Some(format!("{to} hears nothing of {from} at QoS {}", flow.qos))
    });
    let troubles = account.troubles.iter().map(|(_, trouble)| trouble.clone());
    let told: Vec<_> = account.violations.iter().cloned().chain(troubles).take(3).chain(pairs.take(5)).collect();
    format!("after {within:?} (--join) not everybody hears everybody: {}", told.join("; "))
}

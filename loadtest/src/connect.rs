//! `loadtest connect`: how fast connections are accepted, how long each takes, and what so many of them cost while they idle.
//!
//! With a rate a connection's latency counts from the moment it was due, and nothing but `--timeout` bounds how many are
//! being opened; without one `--connecting` of them are, always. A connection that fails is counted, and the others go on.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::{ClientFault, Connection, ConnectionPlan, Fault, Gate, Phase, PhaseSwitch, Shared};
use crate::clock::{nanoseconds, now_ns};
use crate::pace::Schedule;
use crate::plan::{Idle, Plan};
use crate::progress::Progress;
use crate::run::{LOOK_EVERY, Outcome};
use crate::tally::{Snapshot, Tally};
use crate::timer::Timer;
use crate::watch::Watch;
use crate::wire::{Frame, WireFault};

/// Faults kept by their words.
const FAULTS_KEPT: usize = 100;

/// What came of the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Connections {
    pub(crate) asked: u64,
    /// That never came about.
    pub(crate) failed: u64,
    /// That ended before they should.
    pub(crate) dropped: u64,
    /// How long they were kept after the last had been opened.
    pub(crate) held: Duration,
}

/// Carries out `plan`.
///
/// # Errors
/// When there is no timer, or no process where one was to be watched.
pub(crate) async fn run(plan: &Plan, idle: &Idle, progress: &mut Progress) -> Result<Outcome> {
    let shared = Arc::new(Shared { run: plan.run, phase: PhaseSwitch::default(), tally: Tally::new(plan.threads.into())? });
    let (mut watch, begun) = Watch::begin(&plan.pids, &shared.tally)?;
    shared.tally.measure_from(begun.at_ns);
    progress.running(plan.extent());
    let mut crowd = Crowd {
        plan,
        idle,
        schedule: plan.rate.map(|rate| Schedule::new(begun.at_ns, rate, 1, plan.ramp)),
        shared: shared.clone(),
        gates: Vec::new(),
        clients: JoinSet::new(),
        count: Connections { asked: idle.connections.len() as u64, ..Connections::default() },
        faults: Vec::new(),
        interrupted: false,
    };
    let opened_at = crowd.open_and_hold(&mut watch, progress, &begun).await?;
    let (total, _) = watch.look(&shared.tally);
    crowd.close().await?;
    progress.end();
    crowd.count.held = Duration::from_nanos(opened_at.map_or(0, |opened| total.at_ns.saturating_sub(opened.at_ns)));
    Ok(Outcome {
        measured: Some((begun, opened_at.unwrap_or(total))),
        latencies: shared.tally.latencies()?,
        lateness: shared.tally.lateness(),
        connections: Some(crowd.count),
        series: watch.spans(),
        broker_bytes_max: watch.broker_bytes_max(),
        faults: crowd.told(),
        interrupted: crowd.interrupted,
        ..Outcome::nothing(total)?
    })
}

/// All clients of the run.
struct Crowd<'a> {
    plan: &'a Plan,
    idle: &'a Idle,
    schedule: Option<Schedule>,
    shared: Arc<Shared>,
    /// One for each client that was begun.
    gates: Vec<Arc<Gate>>,
    clients: JoinSet<Ended>,
    count: Connections,
    faults: Vec<String>,
    interrupted: bool,
}

/// How a client ended.
struct Ended {
    opened: bool,
    fault: Option<ClientFault>,
}

impl Crowd<'_> {
    /// The counts when the last connection had been opened or had failed; none if it never came to that.
    async fn open_and_hold(&mut self, watch: &mut Watch, progress: &mut Progress, begun: &Snapshot) -> Result<Option<Snapshot>> {
        let timer = Timer::new().context("the pacer has no timer")?;
        let (opened, mut openings) = unbounded_channel();
        let mut settled = 0;
        let mut opened_at = None;
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wait = self.begin_due(settled, &opened);
            tokio::select! {
                Some(()) = openings.recv() => settled += 1,
                Some(ended) = self.clients.join_next() => {
                    let Ended { opened, fault } = ended.context("a client's task broke down")?;
                    settled += u64::from(!opened);
                    *if opened { &mut self.count.dropped } else { &mut self.count.failed } += 1;
                    fault.into_iter().for_each(|fault| self.fail(fault.to_string()));
                }
                slept = timer.sleep(wait.unwrap_or_default()), if wait.is_some() => slept.context("the pacer has no timer")?,
                interrupted = tokio::signal::ctrl_c() => {
                    self.interrupted = interrupted.is_ok();
                    return Ok(opened_at);
                }
                _ = look.tick() => {
                    let (now, gone) = watch.look(&self.shared.tally);
                    progress.update(Duration::from_nanos(now.at_ns.saturating_sub(begun.at_ns)), &now);
                    if let Some(gone) = gone {
                        self.fail(gone.to_string());
                        return Ok(opened_at);
                    }
                    let since = opened_at.map(|opened: Snapshot| now.at_ns.saturating_sub(opened.at_ns));
                    if since.is_some_and(|since| since >= nanoseconds(self.idle.hold)) {
                        return Ok(opened_at);
                    }
                }
            }
            if settled == self.count.asked && opened_at.is_none() {
                let now = watch.look(&self.shared.tally).0;
                if now.connected == 0 {
                    // Nobody idles.
                    return Ok(None);
                }
                opened_at = Some(now);
            }
        }
    }

    /// Begins all connections that may be begun now; how long until the next, where a schedule knows.
    fn begin_due(&mut self, settled: u64, opened: &UnboundedSender<()>) -> Option<Duration> {
        while let Some(connection) = self.idle.connections.get(self.gates.len()) {
            let (begun, now_ns) = (self.gates.len() as u64, now_ns());
            let due_at_ns = self.schedule.map_or(now_ns, |schedule| schedule.due_at_ns_of(begun));
            if let Some(wait_ns) = due_at_ns.checked_sub(now_ns).filter(|&wait_ns| wait_ns > 0) {
                return Some(Duration::from_nanos(wait_ns));
            }
            if self.schedule.is_none() && begun - settled >= self.plan.connecting as u64 {
                return None;
            }
            if self.schedule.is_some() {
                self.shared.tally.record_lateness(now_ns - due_at_ns);
            }
            let gate = Arc::new(Gate::default());
            self.gates.push(gate.clone());
            let (connection, shared, opened) = (connection.clone(), self.shared.clone(), opened.clone());
            self.clients.spawn(live(connection, begun as u32, due_at_ns, gate, shared, opened));
        }
        None
    }

    async fn close(&mut self) -> Result<()> {
        self.shared.phase.advance(Phase::Close);
        self.gates.iter().for_each(|gate| gate.wake());
        while let Some(ended) = self.clients.join_next().await {
            let Ended { opened, fault } = ended.context("a client's task broke down")?;
            if let Some(fault) = fault {
                *if opened { &mut self.count.dropped } else { &mut self.count.failed } += 1;
                self.fail(fault.to_string());
            }
        }
        Ok(())
    }

    fn fail(&mut self, fault: String) {
        if self.faults.len() < FAULTS_KEPT {
            self.faults.push(fault);
        }
    }

    fn told(&mut self) -> Vec<String> {
        let mut told = std::mem::take(&mut self.faults);
        let untold = (self.count.failed + self.count.dropped).saturating_sub(told.len() as u64);
        if untold > 0 {
            told.push(format!("and {untold} more connections failed or were dropped"));
        }
        told
    }
}

/// One client: connects, stays, and says good-bye when the run closes.
async fn live(
    plan: ConnectionPlan,
    index: u32,
    due_at_ns: u64,
    gate: Arc<Gate>,
    shared: Arc<Shared>,
    opened: UnboundedSender<()>,
) -> Ended {
    let named = |fault| ClientFault { client: format!("client {index}"), broker: plan.broker.to_string(), fault };
    let closed = poll_fn(|cx| {
        gate.register(cx.waker());
        if shared.phase.now() == Phase::Close { Poll::Ready(()) } else { Poll::Pending }
    });
    let connection = tokio::select! {
        connection = Connection::open(&plan) => connection,
        () = closed => return Ended { opened: false, fault: None },
    };
    let mut connection = match connection {
        Ok(connection) => connection,
        Err(fault) => return Ended { opened: false, fault: Some(named(fault)) },
    };
    shared.tally.connected.add(1);
    shared.tally.latencies_of(index).record(now_ns().saturating_sub(due_at_ns), 1);
    // Nobody listens any more where the run is over.
    let _ = opened.send(());
    let mut stayed = poll_fn(|cx| stay(&mut connection, &gate, &shared, cx)).await;
    if stayed.is_ok() {
        stayed = connection.close().await;
    }
    Ended { opened: true, fault: stayed.err().map(named) }
}

fn stay(connection: &mut Connection, gate: &Gate, shared: &Shared, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
    gate.register(cx.waker());
    if shared.phase.now() == Phase::Close {
        return Poll::Ready(Ok(()));
    }
    connection.keep_alive(cx, false)?;
    let unasked = |frame: &Frame<'_>, _: &mut Vec<u8>| Err(WireFault::Unexpected(frame.kind).into());
    while connection.poll_frames(cx, unasked)?.is_ready() {}
    let _ = connection.poll_flush(cx)?;
    Poll::Pending
}

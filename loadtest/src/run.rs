//! One run: opens all clients, lets the publishers go, follows the course, and collects what everyone has to say.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::client::{
    ClientFault, Connection, ConnectionPlan, Fault, FlowKey, Gate, Pace, Phase, PhaseSwitch, Publisher, Shared, Subscriber,
};
use crate::clock::nanoseconds;
use crate::connect::Connections;
use crate::course::{Course, Step};
use crate::ledger::Flow;
use crate::pace::{Schedule, wake_when_due};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::series::Span;
use crate::tally::{Latencies, Snapshot, Tally};
use crate::watch::Watch;
use crate::wire::Session;

/// How often the course is looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What came of a run.
pub(crate) struct Outcome {
    /// Between these counts the run was measured.
    pub(crate) measured: Option<(Snapshot, Snapshot)>,
    /// The counts at the very end.
    pub(crate) total: Snapshot,
    pub(crate) latencies: Latencies,
    /// How late the pacer woke.
    pub(crate) lateness: Latencies,
    /// Messages sent, by flow.
    pub(crate) sent: Vec<u64>,
    /// Messages that brokers had yet to acknowledge at the end.
    pub(crate) unacknowledged: u64,
    /// By subscriber and flow.
    pub(crate) flows: Vec<(u32, FlowKey, Flow)>,
    pub(crate) stalls: u64,
    /// Of a run that only connects.
    pub(crate) connections: Option<Connections>,
    pub(crate) series: Vec<Span>,
    /// The most memory the brokers' processes had.
    pub(crate) broker_bytes_max: u64,
    /// What went wrong, in order.
    pub(crate) faults: Vec<String>,
    pub(crate) interrupted: bool,
}

impl Outcome {
    /// Nothing has come of anything yet, but for these counts.
    ///
    /// # Errors
    /// As for [`Tally::new`].
    pub(crate) fn nothing(total: Snapshot) -> Result<Self> {
        let none = Tally::new(1)?;
        Ok(Self {
            measured: None,
            total,
            latencies: none.latencies()?,
            lateness: none.lateness(),
            sent: Vec::new(),
            unacknowledged: 0,
            flows: Vec::new(),
            stalls: 0,
            connections: None,
            series: Vec::new(),
            broker_bytes_max: 0,
            faults: Vec::new(),
            interrupted: false,
        })
    }
}

/// Carries out `plan`.
///
/// # Errors
/// When a client cannot be opened. What goes wrong later is in the outcome, beside what was counted until then.
pub(crate) async fn run(plan: &Plan, progress: &mut Progress) -> Result<Outcome> {
    let shared = Arc::new(Shared { run: plan.run, phase: PhaseSwitch::default(), tally: Tally::new(plan.threads.into())? });
    let gates: Arc<[_]> = plan.publishers.iter().map(|_| Arc::new(Gate::default())).collect();
    let doorbells: Vec<_> = plan.subscribers.iter().map(|_| Arc::new(Gate::default())).collect();

    progress.opening(plan.subscribers.len() + plan.publishers.len());
    let subscribers = open(
        plan.connecting,
        progress,
        plan.subscribers.iter().map(|(connection, subscriber)| {
            let gates = gates.clone();
            let doorbell = doorbells.get(subscriber.index as usize).cloned().unwrap_or_default();
            let (name, connection, shared) =
                (Name::new("subscriber", subscriber.index, connection), connection.clone(), shared.clone());
            let subscriber = subscriber.clone();
            async move {
                let opened = Subscriber::open(&connection, subscriber, doorbell, gates, shared).await;
                opened.map_err(|fault| name.fault(fault)).map(|subscriber| (name, subscriber))
            }
        }),
    )
    .await?;
    sleep(plan.settle).await;
    let connections = open(
        plan.connecting,
        progress,
        plan.publishers.iter().map(|(connection, publisher)| {
            let (name, connection) = (Name::new("publisher", publisher.index, connection), connection.clone());
            async move { Connection::open(&connection).await.map_err(|fault| name.fault(fault)) }
        }),
    )
    .await?;

    let (watch, begun) = Watch::begin(&plan.pids, &shared.tally)?;
    let warm_up = if plan.publishers.is_empty() { Duration::ZERO } else { plan.course.warm_up };
    shared.tally.measure_from(begun.at_ns + nanoseconds(warm_up));
    let schedule =
        plan.rate.map(|rate| Schedule::new(begun.at_ns, rate, plan.publishers.len() as u32, plan.ramp).with_jitter(plan.jitter));

    let mut clients = JoinSet::new();
    for (name, subscriber) in subscribers {
        clients.spawn(serve_subscriber(name, subscriber));
    }
    for (((at, publisher), connection), gate) in plan.publishers.iter().zip(connections).zip(gates.iter()) {
        let name = Name::new("publisher", publisher.index, at);
        let pace = schedule.map_or_else(|| plan.closed_loop(), Pace::Open);
        let publisher = Publisher::new(connection, publisher.clone(), pace, gate.clone(), shared.clone());
        clients.spawn(serve_publisher(publisher.map_err(|fault| name.fault(fault))?, name));
    }
    let mut pacer = JoinSet::new();
    if let Some(schedule) = schedule {
        pacer.spawn(wake_when_due(schedule, gates.clone(), shared.clone()));
    }
    progress.running(plan.extent());
    let kept: Vec<_> = if plan.forgets { plan.connections().cloned().collect() } else { Vec::new() };
    let run =
        Run { course: Course::new(plan.course, begun), watch, shared, gates, doorbells, faults: Vec::new(), interrupted: false };
    let mut outcome = run.follow(clients, pacer, progress, plan.flows()).await?;
    if outcome.faults.is_empty() {
        outcome.faults.extend(forget(kept, plan.connecting).await.err().map(|fault| format!("{fault:#}")));
    }
    Ok(outcome)
}

/// Ends the sessions that these connections have left at brokers.
async fn forget(kept: Vec<ConnectionPlan>, at_a_time: usize) -> Result<()> {
    let quiet = Progress::new(true);
    let clients = kept.into_iter().map(|plan| async move {
        let plan = ConnectionPlan { session: Session::Clean, ..plan };
        let ended = async { Connection::open(&plan).await?.close().await };
        ended.await.map_err(|fault| ClientFault {
            client: format!("the kept session {}", plan.client_id),
            broker: plan.broker.to_string(),
            fault,
        })
    });
    open(at_a_time, &quiet, clients).await.map(drop)
}

/// Opens clients, so many at a time; in their order.
async fn open<T: Send + 'static>(
    at_a_time: usize,
    progress: &Progress,
    clients: impl Iterator<Item = impl Future<Output = Result<T, ClientFault>> + Send + 'static>,
) -> Result<Vec<T>> {
    let mut waiting = clients.enumerate();
    let mut opening = JoinSet::new();
    let mut opened = Vec::new();
    loop {
        while opening.len() < at_a_time {
            let Some((place, client)) = waiting.next() else { break };
            opening.spawn(async move { client.await.map(|client| (place, client)) });
        }
        let Some(client) = opening.join_next().await else { break };
        opened.push(client??);
        progress.opened();
    }
    opened.sort_unstable_by_key(|&(place, _)| place);
    Ok(opened.into_iter().map(|(_, client)| client).collect())
}

/// Who a client is, for error messages.
struct Name {
    client: String,
    broker: String,
}

impl Name {
    fn new(role: &str, index: u32, connection: &ConnectionPlan) -> Self {
        Self { client: format!("{role} {index}"), broker: connection.broker.to_string() }
    }

    fn fault(&self, fault: Fault) -> ClientFault {
        ClientFault { client: self.client.clone(), broker: self.broker.clone(), fault }
    }
}

/// What a client leaves behind.
struct Ended {
    fault: Option<ClientFault>,
    legacy: Legacy,
}

enum Legacy {
    Publisher { first_flow: u32, sent: Vec<u64>, unacknowledged: u64 },
    Subscriber { index: u32, flows: Vec<(FlowKey, Flow)> },
}

async fn serve_publisher(mut publisher: Publisher, name: Name) -> Ended {
    let fault = publisher.run().await.err().map(|fault| name.fault(fault));
    let (first_flow, sent) = publisher.sent();
    Ended { fault, legacy: Legacy::Publisher { first_flow, sent, unacknowledged: publisher.unacknowledged() as u64 } }
}

async fn serve_subscriber(name: Name, mut subscriber: Subscriber) -> Ended {
    let fault = subscriber.run().await.err().map(|fault| name.fault(fault));
    let (index, flows) = subscriber.into_flows();
    Ended { fault, legacy: Legacy::Subscriber { index, flows } }
}

/// A run whose clients are under way.
struct Run {
    course: Course,
    watch: Watch,
    shared: Arc<Shared>,
    /// Of the publishers.
    gates: Arc<[Arc<Gate>]>,
    /// Of the subscribers.
    doorbells: Vec<Arc<Gate>>,
    faults: Vec<String>,
    interrupted: bool,
}

impl Run {
    /// Follows the course until every client has ended. No wait in here is without an end: clients bound their own, and the
    /// course bounds the run.
    async fn follow(
        mut self,
        mut clients: JoinSet<Ended>,
        mut pacer: JoinSet<io::Result<()>>,
        progress: &mut Progress,
        flows_sent: usize,
    ) -> Result<Outcome> {
        let mut sent = vec![0; flows_sent];
        let mut unacknowledged = 0;
        let mut flows = Vec::new();
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);

        loop {
            let closing = self.shared.phase.now() == Phase::Close;
            tokio::select! {
                ended = clients.join_next() => {
                    let Some(ended) = ended else { break };
                    let Ended { fault, legacy } = ended.context("a client's task broke down")?;
                    match legacy {
                        Legacy::Publisher { first_flow, sent: by_topic, unacknowledged: owed } => {
                            let flows = sent.iter_mut().skip(first_flow as usize);
                            flows.zip(by_topic).for_each(|(sent, messages)| *sent = messages);
                            unacknowledged += owed;
                        }
                        Legacy::Subscriber { index, flows: heard } => {
                            flows.extend(heard.into_iter().map(|(key, flow)| (index, key, flow)));
                        }
                    }
                    fault.into_iter().for_each(|fault| self.fail(fault.to_string()));
                }
                Some(ended) = pacer.join_next() => {
                    ended.context("the pacer's task broke down")?.context("the pacer has no timer")?;
                }
                interrupted = tokio::signal::ctrl_c(), if !closing => {
                    self.interrupted = interrupted.is_ok();
                    self.advance(Phase::Close);
                }
                _ = look.tick(), if !closing => {
                    let now = self.look();
                    progress.update(self.course.elapsed(&now), &now);
                    let step = self.course.look(now);
                    self.take(step);
                }
            }
        }
        let total = self.shared.tally.snapshot();
        progress.end();
        flows.sort_unstable_by_key(|&(subscriber, key, _)| (subscriber, key));
        Ok(Outcome {
            measured: self.course.measured(),
            total,
            latencies: self.shared.tally.latencies()?,
            lateness: self.shared.tally.lateness(),
            sent,
            unacknowledged,
            flows,
            stalls: self.course.stalls(),
            connections: None,
            series: self.watch.spans(),
            broker_bytes_max: self.watch.broker_bytes_max(),
            faults: self.faults,
            interrupted: self.interrupted,
        })
    }

    /// The counts of this moment. A process that is gone is a fault, once.
    fn look(&mut self) -> Snapshot {
        let (now, gone) = self.watch.look(&self.shared.tally);
        gone.into_iter().for_each(|gone| self.fail(gone.to_string()));
        now
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Go => {}
            Step::Forgive => self.gates.iter().for_each(|gate| gate.forgive()),
            Step::Finish => self.advance(Phase::Finish),
            Step::Close => self.advance(Phase::Close),
            Step::Fail(fault) => self.fail(fault.to_string()),
        }
    }

    fn fail(&mut self, fault: String) {
        self.faults.push(fault);
        self.advance(Phase::Close);
    }

    fn advance(&mut self, phase: Phase) {
        let (now, _) = self.watch.look(&self.shared.tally);
        self.course.stop(now);
        self.shared.phase.advance(phase);
        self.gates.iter().chain(&self.doorbells).for_each(|gate| gate.wake());
    }
}

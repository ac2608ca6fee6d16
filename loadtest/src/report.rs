//! What a run has found, for people and for programs.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::{FlowKey, Hears};
use crate::connect::Connections;
use crate::ledger::Flow;
use crate::mesh::{Account, FlowAccount, MeshPlan, PublisherAccount};
use crate::plan::Plan;
use crate::run::Outcome;
use crate::series::Span;
use crate::spread::Sizes;
use crate::tally::{Latencies, Snapshot};
use crate::wire::{QoS, Version};

/// Flows listed by themselves, the worst first.
const FLOWS_LISTED: usize = 20;

/// From this share of a processor on each of its threads, loadtest itself is the limit.
const BUSY_SHARE: f64 = 0.9;

/// From this median lateness on, in microseconds, loadtest could not keep its schedule.
const LATE_US: f64 = 1_000.0;

/// The report of a run. Rates and latencies are of the measured time, the ledger is of the whole run.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) mqtt: Option<Version>,
    pub(crate) qos: Option<QoS>,
    pub(crate) publishers: usize,
    pub(crate) subscribers: usize,
    /// On average.
    pub(crate) payload_bytes: Option<f64>,
    /// As asked for.
    pub(crate) payload_sizes: Option<String>,
    /// Of each publisher.
    pub(crate) topics: u32,
    /// Messages under way per publisher, at most.
    pub(crate) window: u16,
    /// Messages a second asked for; none in a closed loop.
    pub(crate) rate: Option<f64>,
    pub(crate) measured_seconds: Option<f64>,
    pub(crate) sent_per_second: Option<f64>,
    pub(crate) delivered_per_second: Option<f64>,
    /// Messages that one read of a subscriber's socket brought, on average: the batch in which brokers and system delivered.
    pub(crate) messages_per_read: Option<f64>,
    /// End to end, or to the acknowledgement where nobody subscribes.
    pub(crate) latency_us: Option<Quantiles>,
    /// How late loadtest was by its own fault, where there is a rate.
    pub(crate) lateness_us: Option<Quantiles>,
    /// Processor time of loadtest for a message sent or delivered.
    pub(crate) loadtest_us_per_message: Option<f64>,
    /// Processors loadtest kept busy.
    pub(crate) loadtest_processors: Option<f64>,
    /// Whether loadtest, rather than a broker, bounded the result.
    pub(crate) loadtest_was_the_limit: bool,
    /// Of `connect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<ConnectionsReport>,
    /// What the brokers' processes used, where they were watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) broker: Option<BrokerReport>,
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    pub(crate) unacknowledged: u64,
    pub(crate) refused: u64,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) foreign: u64,
    /// How often a closed loop stood still for a second, waiting for lost messages.
    pub(crate) stalls: u64,
    /// The flows that are not perfect, the worst first.
    pub(crate) imperfect_flows: Vec<FlowReport>,
    pub(crate) faults: Vec<String>,
    pub(crate) interrupted: bool,
    /// Percentiles, and the latency in microseconds that these stay below: closer to each other the higher they are.
    pub(crate) latency_curve: Vec<(f64, f64)>,
    /// The run over time.
    pub(crate) series: Vec<Span>,
    /// What came of each flow; only of `mesh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mesh: Option<Account>,
}

/// What came of connections that do nothing.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectionsReport {
    pub(crate) asked: u64,
    pub(crate) opened: u64,
    /// That never came about.
    pub(crate) failed: u64,
    /// That ended before they should.
    pub(crate) dropped: u64,
    pub(crate) opened_per_second: Option<f64>,
    /// How long they idled.
    pub(crate) held_seconds: f64,
    /// What the brokers' memory grew by for each.
    pub(crate) broker_bytes_each: Option<f64>,
    /// Processors that the brokers kept busy while they idled.
    pub(crate) broker_processors_idle: Option<f64>,
}

impl ConnectionsReport {
    fn new(connections: &Connections, measured: Option<&(Snapshot, Snapshot)>, total: &Snapshot, rates: Option<&Rates>) -> Self {
        let Connections { asked, failed, dropped, held } = *connections;
        let used = |from: &Snapshot, to: &Snapshot| from.broker.zip(to.broker);
        let grown = measured.and_then(|(start, _)| used(start, total));
        let idled = measured.and_then(|(_, opened)| used(opened, total)).filter(|_| !held.is_zero());
        let opened = total.connected;
        Self {
            asked,
            opened,
            failed,
            dropped,
            opened_per_second: rates.map(|rates| rates.connected),
            held_seconds: held.as_secs_f64(),
            broker_bytes_each: grown
                .filter(|_| opened > 0)
                .map(|(from, to)| (to.resident_bytes as f64 - from.resident_bytes as f64) / opened as f64),
            broker_processors_idle: idled
                .map(|(from, to)| to.processor_time.saturating_sub(from.processor_time).as_secs_f64() / held.as_secs_f64()),
        }
    }
}

/// What the brokers' processes used together.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BrokerReport {
    /// Processors they kept busy while it was measured.
    pub(crate) processors: Option<f64>,
    /// Processor time for a message delivered (or, where nobody subscribes, sent; or a connection opened).
    pub(crate) us_per_message: Option<f64>,
    /// Resident memory when measuring began, the most there was, and at the end.
    pub(crate) bytes_at_start: Option<u64>,
    pub(crate) bytes_max: u64,
    pub(crate) bytes_at_end: Option<u64>,
}

/// One flow that is not perfect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FlowReport {
    pub(crate) publisher: u32,
    /// Of the publisher's topics.
    pub(crate) topic: u32,
    pub(crate) subscriber: u32,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
}

/// A distribution, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Quantiles {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) p9999: f64,
    pub(crate) max: f64,
}

impl Quantiles {
    /// `None` when nothing was recorded.
    fn of(latencies: &Latencies) -> Option<Self> {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let quantile = |quantile| us(latencies.value_at_quantile(quantile));
        (!latencies.is_empty()).then(|| Self {
            count: latencies.len(),
            min: us(latencies.min()),
            mean: latencies.mean() / 1e3,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            p9999: quantile(0.9999),
            max: us(latencies.max()),
        })
    }
}

impl Report {
    /// The report of `plan`'s `outcome`.
    pub(crate) fn new(plan: &Plan, outcome: Outcome) -> Self {
        let Outcome { measured, total, latencies, lateness, sent, unacknowledged, flows, stalls, .. } = outcome;
        let Outcome { connections, series, broker_bytes_max, faults, interrupted, .. } = outcome;
        let flows = flow_reports(plan, &sent, flows);
        let rates = measured.and_then(|(start, end)| Rates::between(&start, &end));
        let lateness_us = Quantiles::of(&lateness);
        let busy = rates.as_ref().is_some_and(|rates| rates.processors >= BUSY_SHARE * f64::from(plan.threads));
        let late = lateness_us.as_ref().is_some_and(|lateness| lateness.p50 >= LATE_US);
        Self {
            command: plan.command.to_owned(),
            mqtt: Some(plan.version),
            qos: Some(plan.qos),
            publishers: plan.publishers.len(),
            subscribers: plan.subscribers.len(),
            payload_bytes: plan.sizes.as_ref().map(Sizes::mean),
            payload_sizes: plan.sizes.as_ref().map(Sizes::to_string),
            topics: plan.topics,
            window: plan.window,
            rate: plan.rate,
            measured_seconds: rates.as_ref().map(|rates| rates.seconds),
            sent_per_second: rates.as_ref().map(|rates| rates.sent),
            delivered_per_second: rates.as_ref().map(|rates| rates.delivered),
            messages_per_read: rates.as_ref().and_then(|rates| rates.messages_per_read),
            latency_us: Quantiles::of(&latencies),
            lateness_us,
            loadtest_us_per_message: rates.as_ref().and_then(|rates| rates.us_per_message),
            loadtest_processors: rates.as_ref().map(|rates| rates.processors),
            loadtest_was_the_limit: busy || late,
            connections: connections
                .map(|connections| ConnectionsReport::new(&connections, measured.as_ref(), &total, rates.as_ref())),
            broker: broker_report(measured.as_ref(), rates.as_ref(), broker_bytes_max),
            sent: total.sent,
            acknowledged: total.acknowledged,
            unacknowledged,
            refused: total.refused,
            delivered: total.delivered,
            lost: flows.iter().map(|flow| flow.lost).sum(),
            duplicated: total.duplicated,
            reordered: total.reordered,
            corrupted: total.corrupted,
            foreign: total.foreign,
            stalls,
            imperfect_flows: imperfect(flows),
            faults,
            interrupted,
            latency_curve: curve(&latencies),
            series,
            mesh: None,
        }
    }

    /// The report of a mesh's `account`.
    pub(crate) fn of_mesh(plan: &MeshPlan, account: Account, interrupted: bool) -> Self {
        let sum = |count: fn(&PublisherAccount) -> u64| account.publishers.iter().map(count).sum();
        let total = |count: fn(&FlowAccount) -> u64| account.flows.iter().map(count).sum();
        Self {
            command: "mesh".to_owned(),
            mqtt: Some(plan.version),
            publishers: plan.publishers.len(),
            subscribers: plan.subscribers.len(),
            payload_bytes: Some(plan.payload_bytes.into()),
            payload_sizes: Some(plan.payload_bytes.to_string()),
            topics: 1,
            window: plan.window.get(),
            rate: plan.rate.map(|rate| rate * plan.publishers.len() as f64),
            sent: sum(|publisher| publisher.sent),
            acknowledged: sum(|publisher| publisher.taken),
            unacknowledged: sum(|publisher| publisher.unacknowledged),
            refused: sum(|publisher| publisher.refused),
            delivered: total(|flow| flow.delivered),
            lost: total(|flow| flow.lost),
            duplicated: total(|flow| flow.duplicated),
            reordered: total(|flow| flow.reordered),
            corrupted: total(|flow| flow.corrupted),
            foreign: account.foreign(),
            faults: account.violations.clone(),
            interrupted,
            mesh: Some(account),
            ..Self::default()
        }
    }
}

impl Report {
    /// What loadtest and the brokers used for each `unit`.
    fn write_processors(&self, out: &mut Formatter<'_>, unit: &str) -> fmt::Result {
        if let (Some(us_per_message), Some(processors)) = (self.loadtest_us_per_message, self.loadtest_processors) {
            writeln!(out, "loadtest    {us_per_message:.3} us of processor a {unit}, {:.0} % of one", processors * 100.0)?;
        }
        if let Some(BrokerReport { processors, us_per_message, bytes_at_start, bytes_max, bytes_at_end }) = &self.broker {
            let told = |value: Option<f64>, digits| value.map_or("?".to_owned(), |value| format!("{value:.digits$}"));
            let mebibytes = |bytes: Option<u64>| told(bytes.map(|bytes| bytes as f64 / 1048576.0), 1);
            writeln!(
                out,
                "broker      {} us of processor a {unit}, {} % of one; memory {} MiB, at most {}, then {}",
                told(*us_per_message, 3),
                told(processors.map(|processors| processors * 100.0), 0),
                mebibytes(*bytes_at_start),
                mebibytes(Some(*bytes_max)),
                mebibytes(*bytes_at_end),
            )?;
        }
        if self.loadtest_was_the_limit {
            writeln!(out, "            loadtest was the limit here, not the broker (--threads, or more processes)")?;
        }
        Ok(())
    }
}

fn write_connections(out: &mut Formatter<'_>, connections: &ConnectionsReport, seconds: Option<f64>) -> fmt::Result {
    let ConnectionsReport { asked, opened, failed, dropped, opened_per_second, held_seconds, .. } = connections;
    let (seconds, rate) = (seconds.unwrap_or_default(), opened_per_second.unwrap_or_default());
    writeln!(out, "connected   {opened} of {asked} in {seconds:.2} s: {rate:.0}/s; failed {failed}, dropped {dropped}")?;
    write!(out, "idle        {held_seconds:.1} s")?;
    if let Some(bytes) = connections.broker_bytes_each {
        write!(out, ", {bytes:.0} bytes of the broker each")?;
    }
    if let Some(processors) = connections.broker_processors_idle {
        write!(out, ", {:.1} % of a processor for all", processors * 100.0)?;
    }
    writeln!(out)
}

/// What was counted in a time, by the second.
struct Rates {
    seconds: f64,
    connected: f64,
    sent: f64,
    delivered: f64,
    messages_per_read: Option<f64>,
    /// Processor time is shared out among so many.
    messages: f64,
    us_per_message: Option<f64>,
    processors: f64,
}

impl Rates {
    /// `None` for no time at all.
    fn between(start: &Snapshot, end: &Snapshot) -> Option<Self> {
        let seconds = Duration::from_nanos(end.at_ns.checked_sub(start.at_ns).filter(|&elapsed| elapsed > 0)?).as_secs_f64();
        let (sent, delivered) = ((end.sent - start.sent) as f64, (end.delivered - start.delivered) as f64);
        let reads = (end.reads - start.reads) as f64;
        let busy_seconds = end.processor_time.saturating_sub(start.processor_time).as_secs_f64();
        let connected = (end.connected - start.connected) as f64;
        let messages = [delivered, sent, connected].into_iter().find(|&count| count > 0.0).unwrap_or_default();
        Some(Self {
            seconds,
            connected: connected / seconds,
            sent: sent / seconds,
            delivered: delivered / seconds,
            messages_per_read: (reads > 0.0).then(|| delivered / reads),
            messages,
            us_per_message: (messages > 0.0).then(|| busy_seconds * 1e6 / messages),
            processors: busy_seconds / seconds,
        })
    }
}

/// `None` where no process was watched.
fn broker_report(measured: Option<&(Snapshot, Snapshot)>, rates: Option<&Rates>, bytes_max: u64) -> Option<BrokerReport> {
    let (start, end) = measured?;
    let used = start.broker.zip(end.broker).map(|(start, end)| end.processor_time.saturating_sub(start.processor_time));
    let busy_seconds = used.map(|used| used.as_secs_f64());
    (start.broker.or(end.broker)).map(|_| BrokerReport {
        processors: busy_seconds.zip(rates).map(|(busy, rates)| busy / rates.seconds),
        us_per_message: busy_seconds
            .zip(rates.filter(|rates| rates.messages > 0.0))
            .map(|(busy, rates)| busy * 1e6 / rates.messages),
        bytes_at_start: start.broker.map(|usage| usage.resident_bytes),
        bytes_max,
        bytes_at_end: end.broker.map(|usage| usage.resident_bytes),
    })
}

/// Five points for each halving of what lies above.
fn curve(latencies: &Latencies) -> Vec<(f64, f64)> {
    if latencies.is_empty() {
        return Vec::new();
    }
    let points = latencies.iter_quantiles(5).map(|point| (point.quantile_iterated_to(), point.value_iterated_to()));
    points.map(|(quantile, nanoseconds)| ((quantile * 1e8).round() / 1e6, nanoseconds as f64 / 1e3)).collect()
}

/// All flows: those that carried messages, and those that should have.
fn flow_reports(plan: &Plan, sent: &[u64], flows: Vec<(u32, FlowKey, Flow)>) -> Vec<FlowReport> {
    let hears_ours = |subscriber: u32| {
        plan.subscribers.get(subscriber as usize).is_some_and(|(_, plan)| matches!(plan.hears, Hears::Ours { .. }))
    };
    let topics = plan.topics.max(1);
    let report = |(subscriber, key, flow): (u32, FlowKey, Flow)| {
        // Of our own publishers we know how much they sent; of others only what is missing in between.
        let ours = sent.get(key.flow as usize).filter(|_| hears_ours(subscriber));
        FlowReport {
            publisher: key.flow / topics,
            topic: key.flow % topics,
            subscriber,
            delivered: flow.delivered,
            lost: ours.map_or(flow.missing(), |&sent| flow.missing_of(sent)),
            duplicated: flow.duplicated,
            reordered: flow.reordered,
        }
    };
    flows.into_iter().map(report).collect()
}

fn imperfect(mut flows: Vec<FlowReport>) -> Vec<FlowReport> {
    flows.retain(|flow| flow.lost + flow.duplicated + flow.reordered > 0);
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.lost + flow.duplicated + flow.reordered));
    flows.truncate(FLOWS_LISTED);
    flows
}

impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "loadtest {}", self.command)?;
        if let (Some(version), Some(qos)) = (self.mqtt, self.qos) {
            write!(out, "  MQTT {version}  QoS {qos}")?;
        }
        match &self.connections {
            Some(connections) => write!(out, "  {} connections", connections.asked)?,
            None => write!(out, "  {} publishers  {} subscribers", self.publishers, self.subscribers)?,
        }
        if let Some(payload_sizes) = &self.payload_sizes {
            write!(out, "  {payload_sizes} B  window {}", self.window)?;
        }
        if self.topics > 1 {
            write!(out, "  {} topics each", self.topics)?;
        }
        match self.rate {
            Some(rate) => writeln!(out, "  {rate}/s asked for")?,
            None => writeln!(out)?,
        }
        if let Some(account) = &self.mesh {
            return write!(out, "{account}");
        }
        if let Some(connections) = &self.connections {
            write_connections(out, connections, self.measured_seconds)?;
            write_quantiles(out, "latency", self.latency_us.as_ref())?;
            write_quantiles(out, "lateness", self.lateness_us.as_ref())?;
            return self.write_processors(out, "connection");
        }
        match (self.measured_seconds, self.sent_per_second, self.delivered_per_second) {
            (Some(seconds), Some(sent), Some(delivered)) => {
                write!(out, "measured    {seconds:.2} s: sent {sent:.0}/s, delivered {delivered:.0}/s")?;
                match self.messages_per_read {
                    Some(messages) => writeln!(out, ", {messages:.1} a read")?,
                    None => writeln!(out)?,
                }
            }
            _ => writeln!(out, "measured    nothing: the run ended before measuring began")?,
        }
        write_quantiles(out, "latency", self.latency_us.as_ref())?;
        write_quantiles(out, "lateness", self.lateness_us.as_ref())?;
        self.write_processors(out, "message")?;
        writeln!(
            out,
            "messages    sent {}, acknowledged {}, unacknowledged {}, refused {}, delivered {}",
            self.sent, self.acknowledged, self.unacknowledged, self.refused, self.delivered
        )?;
        writeln!(
            out,
            "ledger      lost {}, duplicated {}, reordered {}, corrupted {}, foreign {}, stalls {}",
            self.lost, self.duplicated, self.reordered, self.corrupted, self.foreign, self.stalls
        )?;
        for flow in &self.imperfect_flows {
            writeln!(
                out,
                "            publisher {}{} to subscriber {}: delivered {}, lost {}, duplicated {}, reordered {}",
                flow.publisher,
                if self.topics > 1 { format!(", topic {},", flow.topic) } else { String::new() },
                flow.subscriber,
                flow.delivered,
                flow.lost,
                flow.duplicated,
                flow.reordered
            )?;
        }
        Ok(())
    }
}

fn write_quantiles(out: &mut Formatter<'_>, name: &str, quantiles: Option<&Quantiles>) -> fmt::Result {
    let Some(Quantiles { min, mean, p50, p90, p99, p999, p9999, max, .. }) = quantiles else {
        return Ok(());
    };
    writeln!(
        out,
        "{name:<11} min {min:.1}  mean {mean:.1}  p50 {p50:.1}  p90 {p90:.1}  p99 {p99:.1}  p99.9 {p999:.1}  p99.99 {p9999:.1}  \
         max {max:.1} us"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    fn pair_plan() -> Plan {
        let arguments = Arguments::try_parse_from(["loadtest", "pair", "--pairs", "2"]).unwrap();
        let Command::Load(command) = arguments.command else { panic!("a load") };
        Plan::new(&command).unwrap()
    }

    fn flow(sequences: &[u64]) -> Flow {
        let mut flow = Flow::default();
        for &sequence in sequences {
            flow.book(sequence);
        }
        flow
    }

    fn outcome(plan: &Plan) -> Outcome {
        let histogram = || Latencies::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        let mut latencies = histogram();
        (1..=100).for_each(|us| latencies.record(us * 1_000).unwrap());
        let key = |flow| FlowKey { run: plan.run, flow };
        let second = |seconds: u64| Snapshot {
            at_ns: seconds * 1_000_000_000,
            sent: seconds * 10,
            delivered: seconds * 8,
            reads: seconds * 2,
            ..Snapshot::default()
        };
        Outcome {
            measured: Some((second(1), second(3))),
            total: second(4),
            latencies,
            lateness: histogram(),
            sent: vec![5, 4],
            unacknowledged: 1,
            flows: vec![(0, key(0), flow(&[0, 2, 1, 1])), (1, key(1), flow(&[0, 1, 2, 3]))],
            stalls: 0,
            connections: None,
            series: Vec::new(),
            broker_bytes_max: 0,
            faults: Vec::new(),
            interrupted: false,
        }
    }

    #[test]
    fn rates_quantiles_and_losses_at_the_end_of_a_flow() {
        let plan = pair_plan();
        let report = Report::new(&plan, outcome(&plan));
        assert_eq!(
            (report.sent_per_second, report.delivered_per_second, report.measured_seconds),
            (Some(10.0), Some(8.0), Some(2.0))
        );
        assert_eq!(report.messages_per_read, Some(4.0));
        assert!(report.to_string().contains("delivered 8/s, 4.0 a read"), "{report}");
        let expected = FlowReport { publisher: 0, topic: 0, subscriber: 0, delivered: 3, lost: 2, duplicated: 1, reordered: 1 };
        assert_eq!((report.lost, report.imperfect_flows), (2, vec![expected]), "3 and 4 were sent and never came");
        let latency = report.latency_us.unwrap();
        assert_eq!((latency.count, latency.p50.round(), latency.p99.round()), (100, 50.0, 99.0));
        assert_eq!(report.lateness_us, None);
    }

    #[test]
    fn loadtest_says_when_it_was_the_limit() {
        let plan = pair_plan();
        let mut busy = outcome(&plan);
        if let Some((_, end)) = &mut busy.measured {
            end.processor_time = Duration::from_millis(1_900);
        }
        let report = Report::new(&plan, busy);
        assert!(report.loadtest_was_the_limit && report.to_string().contains("was the limit"));
        let mut late = outcome(&plan);
        late.lateness.record(1_500_000).unwrap();
        assert!(Report::new(&plan, late).loadtest_was_the_limit);
        assert!(!Report::new(&plan, outcome(&plan)).loadtest_was_the_limit);
    }

    #[test]
    fn a_run_that_measured_nothing_says_so() {
        let plan = pair_plan();
        let report = Report::new(&plan, Outcome { measured: None, ..outcome(&plan) });
        assert_eq!(report.delivered_per_second, None);
        assert!(report.to_string().contains("measured    nothing"));
    }
}

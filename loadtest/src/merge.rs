//! The reports of several `loadtest` processes, on several machines perhaps, as one.
//!
//! Counts and rates add up. Percentiles do not: they are read from the sum of all latency curves, exact at the points of these
//! and even in between. What happened when is told by each report alone, for their clocks began when they did.

use crate::report::{ConnectionsReport, Quantiles, Report};

/// Flows that are not perfect, kept of all reports.
const FLOWS_KEPT: usize = 20;

/// All of them together; `None` of nothing. Faults are told with the names of their reports.
pub(crate) fn merged(reports: &[(&str, &Report)]) -> Option<Report> {
    let (_, first) = reports.first()?;
    let parts = || reports.iter().map(|(_, report)| *report);
    let sum = |count: fn(&Report) -> u64| parts().map(count).sum();
    let add = |value: fn(&Report) -> Option<f64>| parts().filter_map(value).reduce(|sum, value| sum + value);
    let (latency_us, latency_curve) = latencies(&parts().collect::<Vec<_>>());
    let mut imperfect_flows: Vec<_> = parts().flat_map(|report| report.imperfect_flows.iter().cloned()).collect();
    imperfect_flows.sort_by_key(|flow| std::cmp::Reverse(flow.lost + flow.duplicated + flow.reordered));
    imperfect_flows.truncate(FLOWS_KEPT);
    let faults = reports.iter().flat_map(|(name, report)| report.faults.iter().map(move |fault| format!("{name}: {fault}")));
    Some(Report {
        command: if parts().all(|report| report.command == first.command) { first.command.clone() } else { "several".to_owned() },
        mqtt: first.mqtt.filter(|_| parts().all(|report| report.mqtt == first.mqtt)),
        qos: first.qos.filter(|_| parts().all(|report| report.qos == first.qos)),
        publishers: parts().map(|report| report.publishers).sum(),
        subscribers: parts().map(|report| report.subscribers).sum(),
        payload_sizes: first.payload_sizes.clone().filter(|_| parts().all(|report| report.payload_sizes == first.payload_sizes)),
        payload_bytes: first.payload_bytes.filter(|_| parts().all(|report| report.payload_bytes == first.payload_bytes)),
        topics: first.topics,
        window: if parts().all(|report| report.window == first.window) { first.window } else { 0 },
        rate: add(|report| report.rate),
        measured_seconds: parts().filter_map(|report| report.measured_seconds).reduce(f64::max),
        sent_per_second: add(|report| report.sent_per_second),
        delivered_per_second: add(|report| report.delivered_per_second),
        latency_us,
        latency_curve,
        loadtest_processors: add(|report| report.loadtest_processors),
        loadtest_was_the_limit: parts().any(|report| report.loadtest_was_the_limit),
        connections: connections(&parts().filter_map(|report| report.connections.as_ref()).collect::<Vec<_>>()),
        sent: sum(|report| report.sent),
        acknowledged: sum(|report| report.acknowledged),
        unacknowledged: sum(|report| report.unacknowledged),
        refused: sum(|report| report.refused),
        delivered: sum(|report| report.delivered),
        lost: sum(|report| report.lost),
        duplicated: sum(|report| report.duplicated),
        reordered: sum(|report| report.reordered),
        corrupted: sum(|report| report.corrupted),
        foreign: sum(|report| report.foreign),
        stalls: sum(|report| report.stalls),
        imperfect_flows,
        faults: faults.collect(),
        interrupted: parts().any(|report| report.interrupted),
        ..Report::default()
    })
}

fn connections(parts: &[&ConnectionsReport]) -> Option<ConnectionsReport> {
    let sum = |count: fn(&ConnectionsReport) -> u64| parts.iter().map(|part| count(part)).sum();
    (!parts.is_empty()).then(|| ConnectionsReport {
        asked: sum(|part| part.asked),
        opened: sum(|part| part.opened),
        failed: sum(|part| part.failed),
        dropped: sum(|part| part.dropped),
        opened_per_second: parts.iter().filter_map(|part| part.opened_per_second).reduce(|sum, rate| sum + rate),
        held_seconds: parts.iter().map(|part| part.held_seconds).fold(f64::INFINITY, f64::min),
        ..ConnectionsReport::default()
    })
}

/// A distribution that was reported: how much of it lies below a value.
struct Part<'a> {
    count: f64,
    curve: &'a [(f64, f64)],
}

impl Part<'_> {
    /// The share of what is at most `us`, even between the points of the curve.
    fn share_up_to(&self, us: f64) -> f64 {
        let after = self.curve.partition_point(|&(_, value)| value <= us);
        let share = |point: Option<&(f64, f64)>| point.map(|&(percentile, value)| (percentile / 100.0, value));
        match (share(after.checked_sub(1).and_then(|before| self.curve.get(before))), share(self.curve.get(after))) {
            (None, _) => 0.0,
            (Some((below, _)), None) => below,
            (Some((below, from)), Some((above, to))) => below + (above - below) * (us - from) / (to - from),
        }
    }
}

/// The quantiles and the curve of all.
fn latencies(reports: &[&Report]) -> (Option<Quantiles>, Vec<(f64, f64)>) {
    let told: Vec<_> = reports.iter().filter_map(|report| Some((report.latency_us.as_ref()?, &report.latency_curve))).collect();
    let parts: Vec<_> = told
        .iter()
        .filter(|(_, curve)| !curve.is_empty())
        .map(|(quantiles, curve)| Part { count: quantiles.count as f64, curve })
        .collect();
    let count: f64 = parts.iter().map(|part| part.count).sum();
    if count == 0.0 {
        return (None, Vec::new());
    }
    let mut values: Vec<_> = parts.iter().flat_map(|part| part.curve.iter().map(|&(_, us)| us)).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.dedup();
    let share = |us: f64| parts.iter().map(|part| part.count * part.share_up_to(us)).sum::<f64>() / count;
    let curve: Vec<_> = values.into_iter().map(|us| (share(us) * 100.0, us)).collect();
    let whole = Part { count, curve: &curve };
    let least = |value: fn(&Quantiles) -> f64| told.iter().map(|(quantiles, _)| value(quantiles)).fold(f64::INFINITY, f64::min);
    let quantiles = Quantiles {
        count: count as u64,
        min: least(|quantiles| quantiles.min),
        mean: told.iter().map(|(quantiles, _)| quantiles.mean * quantiles.count as f64).sum::<f64>() / count,
        p50: whole.value_at(50.0),
        p90: whole.value_at(90.0),
        p99: whole.value_at(99.0),
        p999: whole.value_at(99.9),
        p9999: whole.value_at(99.99),
        max: told.iter().map(|(quantiles, _)| quantiles.max).fold(0.0, f64::max),
    };
    (Some(quantiles), curve)
}

impl Part<'_> {
    /// The value that this percentile of all stays below, even between the points of the curve.
    fn value_at(&self, percentile: f64) -> f64 {
        let after = self.curve.partition_point(|&(below, _)| below < percentile);
        match (after.checked_sub(1).and_then(|before| self.curve.get(before)), self.curve.get(after)) {
            (Some(&(below, from)), Some(&(above, to))) => from + (to - from) * (percentile - below) / (above - below),
            (_, Some(&(_, value))) | (Some(&(_, value)), None) => value,
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One whose latencies are spread evenly between two values.
    fn report(count: u64, from: f64, to: f64) -> Report {
        let latency_curve =
            (0..=100).map(|percent| (f64::from(percent), from + (to - from) * f64::from(percent) / 100.0)).collect();
        let mean = (from + to) / 2.0;
        Report {
            command: "pub".to_owned(),
            sent: count,
            lost: 1,
            sent_per_second: Some(10.0),
            latency_us: Some(Quantiles { count, min: from, mean, max: to, ..Quantiles::default() }),
            latency_curve,
            faults: vec!["gone".to_owned()],
            ..Report::default()
        }
    }

    #[test]
    fn counts_add_up_and_percentiles_are_those_of_all() {
        // A quarter between 0 and 100, the rest between 100 and 200.
        let (few, many) = (report(100, 0.0, 100.0), report(300, 100.0, 200.0));
        let all = merged(&[("a", &few), ("b", &many)]).unwrap();
        assert_eq!((all.sent, all.lost, all.sent_per_second, all.command.as_str()), (400, 2, Some(20.0), "pub"));
        assert_eq!(all.faults, ["a: gone", "b: gone"]);
        let latency = all.latency_us.unwrap();
        assert_eq!((latency.count, latency.min, latency.max, latency.mean), (400, 0.0, 200.0, 125.0));
        for (value, expected) in [(latency.p50, 133.33), (latency.p90, 186.67), (latency.p99, 198.67)] {
            assert!((value - expected).abs() < 0.1, "{value} is not {expected}");
        }
        assert!(all.latency_curve.windows(2).all(|two| two[0].0 <= two[1].0 && two[0].1 < two[1].1));
    }

    #[test]
    fn one_alone_stays_what_it_was_and_none_is_none() {
        let one = report(100, 5.0, 10.0);
        let all = merged(&[("a", &one)]).unwrap();
        assert_eq!((all.latency_us.unwrap().p50.round(), all.latency_curve.len()), (8.0, 101));
        assert!(merged(&[]).is_none());
        assert_eq!(merged(&[("a", &Report::default())]).unwrap().latency_us, None);
    }
}

//! Conditions on a report that make a run fail: `lost>0`, `p99>10ms`.

use std::fmt;
use std::str::FromStr;

use crate::arguments;
use crate::report::Report;
use crate::wire::QoS;

/// One condition.
#[derive(Clone, Debug)]
pub(crate) struct Threshold {
    metric: &'static Metric,
    comparison: Comparison,
    /// In the metric's unit.
    bound: f64,
    text: String,
}

/// What can be compared.
#[derive(Debug)]
struct Metric {
    name: &'static str,
    /// Times are given with a unit, and compared in microseconds.
    is_time: bool,
    value: fn(&Report) -> Option<f64>,
}

impl Metric {
    const fn count(name: &'static str, value: fn(&Report) -> Option<f64>) -> Self {
        Self { name, is_time: false, value }
    }

    const fn time(name: &'static str, value: fn(&Report) -> Option<f64>) -> Self {
        Self { name, is_time: true, value }
    }
}

static METRICS: [Metric; 29] = [
    Metric::count("lost", |report| Some(report.lost as f64)),
    Metric::count("duplicated", |report| Some(report.duplicated as f64)),
    Metric::count("reordered", |report| Some(report.reordered as f64)),
    Metric::count("corrupted", |report| Some(report.corrupted as f64)),
    Metric::count("foreign", |report| Some(report.foreign as f64)),
    Metric::count("refused", |report| Some(report.refused as f64)),
    Metric::count("unacknowledged", |report| Some(report.unacknowledged as f64)),
    Metric::count("stalls", |report| Some(report.stalls as f64)),
    Metric::count("sent_rate", |report| report.sent_per_second),
    Metric::count("delivered_rate", |report| report.delivered_per_second),
    Metric::count("connected", |report| Some(report.connections.as_ref()?.opened as f64)),
    Metric::count("failed", |report| Some(report.connections.as_ref()?.failed as f64)),
    Metric::count("dropped", |report| Some(report.connections.as_ref()?.dropped as f64)),
    Metric::count("connect_rate", |report| report.connections.as_ref()?.opened_per_second),
    Metric::count("broker_us", |report| report.broker.as_ref()?.us_per_message),
    Metric::count("broker_bytes", |report| Some(report.broker.as_ref()?.bytes_max as f64)),
    Metric::count("lost_qos0", |report| Some(report.mesh.as_ref()?.totals(QoS::AtMostOnce).lost as f64)),
    Metric::count("lost_qos1", |report| Some(report.mesh.as_ref()?.totals(QoS::AtLeastOnce).lost as f64)),
    Metric::count("lost_qos2", |report| Some(report.mesh.as_ref()?.totals(QoS::ExactlyOnce).lost as f64)),
    Metric::count("sessions_lost", |report| Some(report.mesh.as_ref()?.sessions_lost() as f64)),
    Metric::time("gap", |report| {
        report.mesh.as_ref().map(|mesh| mesh.flows.iter().fold(0.0, |gap, flow| flow.gap_ms.max(gap)) * 1e3)
    }),
    Metric::time("min", |report| Some(report.latency_us.as_ref()?.min)),
    Metric::time("mean", |report| Some(report.latency_us.as_ref()?.mean)),
    Metric::time("p50", |report| Some(report.latency_us.as_ref()?.p50)),
    Metric::time("p90", |report| Some(report.latency_us.as_ref()?.p90)),
    Metric::time("p99", |report| Some(report.latency_us.as_ref()?.p99)),
    Metric::time("p999", |report| Some(report.latency_us.as_ref()?.p999)),
    Metric::time("p9999", |report| Some(report.latency_us.as_ref()?.p9999)),
    Metric::time("max", |report| Some(report.latency_us.as_ref()?.max)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    More,
    AtLeast,
    Less,
    AtMost,
    Equal,
}

/// Longer operators first, so that `>=` is not read as `>`.
const COMPARISONS: [(&str, Comparison); 5] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    (">", Comparison::More),
    ("<", Comparison::Less),
    ("=", Comparison::Equal),
];

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, comparison, bound) = COMPARISONS
            .iter()
            .find_map(|&(sign, comparison)| text.split_once(sign).map(|(name, bound)| (name.trim(), comparison, bound.trim())))
            .ok_or("expected METRIC, one of > >= < <= =, and a number")?;
        let metric = METRICS.iter().find(|metric| metric.name == name).ok_or_else(|| {
            let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
            format!("{name:?} is no metric; there are {}", names.join(", "))
        })?;
        let bound = if metric.is_time {
            arguments::duration(bound)?.as_secs_f64() * 1e6
        } else {
            bound.parse().map_err(|_| format!("{bound:?} is not a number"))?
        };
        Ok(Self { metric, comparison, bound, text: text.trim().to_owned() })
    }
}

impl Threshold {
    /// Why the run fails by this condition, if it does.
    pub(crate) fn failure(&self, report: &Report) -> Option<String> {
        let Some(value) = (self.metric.value)(report) else {
            return Some(format!("{self}: that was not measured"));
        };
        let holds = match self.comparison {
            Comparison::More => value > self.bound,
            Comparison::AtLeast => value >= self.bound,
            Comparison::Less => value < self.bound,
            Comparison::AtMost => value <= self.bound,
            Comparison::Equal => value == self.bound,
        };
        holds.then(|| format!("{self}: it was {value}{}", if self.metric.is_time { " us" } else { "" }))
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Quantiles;

    fn fails(condition: &str, report: &Report) -> bool {
        condition.parse::<Threshold>().unwrap().failure(report).is_some()
    }

    #[test]
    fn conditions_hold_or_not() {
        let quantiles = Quantiles { p50: 200.0, p99: 9_000.0, ..Quantiles::default() };
        let report = Report { lost: 3, delivered_per_second: Some(500.0), latency_us: Some(quantiles), ..Report::default() };
        for condition in ["lost>0", "lost >= 3", "lost=3", "p50>150us", "p99>=9ms", "delivered_rate<1000", "duplicated<=0"] {
            assert!(fails(condition, &report), "{condition}");
        }
        for condition in ["lost>3", "lost<3", "lost=2", "p50>1s", "p99>9ms", "delivered_rate<500", "duplicated>0"] {
            assert!(!fails(condition, &report), "{condition}");
        }
    }

    #[test]
    fn what_was_not_measured_fails() {
        let report = Report::default();
        for condition in ["p99>1s", "max<1us", "sent_rate<1", "delivered_rate>1"] {
            let failure = condition.parse::<Threshold>().unwrap().failure(&report).unwrap();
            assert!(failure.contains(condition) && failure.contains("not measured"), "{failure}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for condition in ["", "lost", ">3", "lost>", "lost>x", "p99>10", "lost>1ms", "loss>0"] {
            assert!(condition.parse::<Threshold>().is_err(), "{condition}");
        }
    }
}

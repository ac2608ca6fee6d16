//! A run over time: what was counted in each of a bounded number of equal spans, however long the run is.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::nanoseconds;
use crate::tally::{Recent, Snapshot};

/// The shortest span.
const SPAN: Duration = Duration::from_millis(100);

/// Spans kept; when there are more, each two become one.
const SPANS_MAX: usize = 120;

/// See the module.
#[derive(Debug)]
pub(crate) struct Series {
    begun: Snapshot,
    span_ns: u64,
    /// The counts at the end of each span, and the latencies in it.
    points: Vec<(Snapshot, Recent)>,
}

/// One span of a run. Rates are a second, times since the publishers were let go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Span {
    /// When it ended.
    pub(crate) seconds: f64,
    pub(crate) connected_per_second: f64,
    pub(crate) sent_per_second: f64,
    pub(crate) acknowledged_per_second: f64,
    pub(crate) delivered_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_mean_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_max_us: Option<f64>,
    /// Processors kept busy.
    pub(crate) loadtest_processors: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) broker_processors: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) broker_bytes: Option<u64>,
}

impl Series {
    /// `begun`: the counts when the run begins.
    pub(crate) fn new(begun: Snapshot) -> Self {
        Self { begun, span_ns: nanoseconds(SPAN), points: Vec::new() }
    }

    /// Whether the present span is over.
    pub(crate) fn is_due(&self, at_ns: u64) -> bool {
        at_ns.saturating_sub(self.last().at_ns) >= self.span_ns
    }

    /// Ends the present span with these counts.
    pub(crate) fn push(&mut self, now: Snapshot, recent: Recent) {
        self.points.push((now, recent));
        if self.points.len() > SPANS_MAX {
            self.span_ns *= 2;
            let mut merged = Vec::with_capacity(SPANS_MAX);
            for pair in self.points.chunks(2) {
                let recent = pair.iter().fold(Recent::default(), |sum, (_, recent)| sum.and(recent));
                merged.extend(pair.last().map(|(end, _)| (*end, recent)));
            }
            self.points = merged;
        }
    }

    fn last(&self) -> &Snapshot {
        self.points.last().map_or(&self.begun, |(end, _)| end)
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let starts = std::iter::once(&self.begun).chain(self.points.iter().map(|(end, _)| end));
        starts.zip(&self.points).map(|(start, (end, recent))| self.span(start, end, recent)).collect()
    }

    fn span(&self, start: &Snapshot, end: &Snapshot, recent: &Recent) -> Span {
        let seconds = end.at_ns.saturating_sub(start.at_ns).max(1) as f64 / 1e9;
        let rate = |count: fn(&Snapshot) -> u64| rounded(count(end).saturating_sub(count(start)) as f64 / seconds, 10.0);
        let busy = |before: Duration, after: Duration| rounded(after.saturating_sub(before).as_secs_f64() / seconds, 1e3);
        let us = |nanoseconds: f64| rounded(nanoseconds / 1e3, 10.0);
        Span {
            seconds: rounded(end.at_ns.saturating_sub(self.begun.at_ns) as f64 / 1e9, 1e3),
            connected_per_second: rate(|counts| counts.connected),
            sent_per_second: rate(|counts| counts.sent),
            acknowledged_per_second: rate(|counts| counts.acknowledged),
            delivered_per_second: rate(|counts| counts.delivered),
            latency_mean_us: recent.mean_ns().map(us),
            latency_max_us: recent.mean_ns().map(|_| us(recent.max_ns as f64)),
            loadtest_processors: busy(start.processor_time, end.processor_time),
            broker_processors: start.broker.zip(end.broker).map(|(start, end)| busy(start.processor_time, end.processor_time)),
            broker_bytes: end.broker.map(|usage| usage.resident_bytes),
        }
    }
}

/// To so many parts of one: a report is read, too.
fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Usage;

    fn at(milliseconds: u64) -> Snapshot {
        Snapshot {
            at_ns: milliseconds * 1_000_000,
            sent: milliseconds * 2,
            delivered: milliseconds,
            broker: Some(Usage { processor_time: Duration::from_millis(milliseconds / 2), resident_bytes: milliseconds }),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_span_has_rates_and_latencies_of_its_own() {
        let mut series = Series::new(at(1_000));
        assert!(!series.is_due(1_099_000_000) && series.is_due(1_100_000_000));
        series.push(at(1_100), Recent { count: 2, sum_ns: 3_000, max_ns: 2_000 });
        series.push(at(1_200), Recent::default());
        let spans = series.spans();
        let expected = Span {
            seconds: 0.1,
            sent_per_second: 2_000.0,
            delivered_per_second: 1_000.0,
            latency_mean_us: Some(1.5),
            latency_max_us: Some(2.0),
            broker_processors: Some(0.5),
            broker_bytes: Some(1_100),
            ..Span::default()
        };
        assert_eq!(spans[0], expected);
        assert_eq!((spans[1].seconds, spans[1].latency_mean_us), (0.2, None));
    }

    #[test]
    fn a_long_run_has_no_more_spans_than_a_short_one() {
        let mut series = Series::new(at(0));
        let mut now = 0;
        while now < 3_600_000 {
            now += 20;
            if series.is_due(now * 1_000_000) {
                series.push(at(now), Recent { count: 1, sum_ns: now, max_ns: now });
            }
        }
        let spans = series.spans();
        assert!((SPANS_MAX / 2..=SPANS_MAX).contains(&spans.len()), "{}", spans.len());
        assert!(spans.iter().all(|span| span.delivered_per_second == 1_000.0), "{spans:?}");
        assert!(spans.windows(2).all(|two| two[0].latency_max_us < two[1].latency_max_us));
    }
}

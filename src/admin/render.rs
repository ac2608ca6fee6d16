//! [`Sample`]s in the OpenMetrics text format.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::metrics::{Sample, Value};

/// The media type of what [`metrics`] writes.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What stands before every name.
const PREFIX: &str = "mqtt_st_quic";

/// `samples` as text.
pub(super) fn metrics(samples: Vec<Sample>) -> Result<String, Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Samples(samples)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Samples(Vec<Sample>);

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for family in self.0.chunk_by(|one, next| one.name == next.name) {
            let Some(first) = family.first() else { continue };
            let kind = match first.value {
                Value::Counter(_) => MetricType::Counter,
                Value::Gauge(_) => MetricType::Gauge,
                Value::Histogram(_) => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(first.name, first.help, None, kind)?;
            for sample in family {
                encode_value(sample.value, metric.encode_family(&sample.labels)?)?;
            }
        }
        Ok(())
    }
}

fn encode_value(value: Value, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
    match value {
        Value::Counter(value) => ConstCounter::new(value).encode(encoder),
        Value::Gauge(value) => ConstGauge::new(value).encode(encoder),
        Value::Histogram(times) => {
            encoder.encode_histogram::<NoLabelSet>(times.sum_seconds(), times.count(), &times.buckets(), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::Histogram;

    #[test]
    fn times_become_a_histogram_up_to_infinity() {
        let mut times = Histogram::default();
        times.observe(Duration::from_millis(250));
        let text = metrics(vec![Sample::histogram("healing_seconds", "How long", times).with("reason", "x")]).unwrap();
        for line in [
            "# TYPE mqtt_st_quic_healing_seconds histogram",
            "mqtt_st_quic_healing_seconds_count{reason=\"x\"} 1",
            "mqtt_st_quic_healing_seconds_bucket{le=\"0.2\",reason=\"x\"} 0",
            "mqtt_st_quic_healing_seconds_bucket{le=\"0.3\",reason=\"x\"} 1",
            "mqtt_st_quic_healing_seconds_bucket{le=\"+Inf\",reason=\"x\"} 1",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn samples_become_openmetrics() {
        let samples = vec![
            Sample::gauge("links", "Links that are up", 2.0),
            Sample::counter("dropped", "Messages dropped", 3).with("reason", "full"),
            Sample::counter("dropped", "Messages dropped", 4).with("reason", "a \"quoted\"\nreason"),
        ];
        let expected = "# HELP mqtt_st_quic_links Links that are up\n# TYPE mqtt_st_quic_links gauge\nmqtt_st_quic_links 2.0\n\
                        # HELP mqtt_st_quic_dropped Messages dropped\n# TYPE mqtt_st_quic_dropped counter\n\
                        mqtt_st_quic_dropped_total{reason=\"full\"} 3\n\
                        mqtt_st_quic_dropped_total{reason=\"a \\\"quoted\\\"\\nreason\"} 4\n# EOF\n";
        assert_eq!(metrics(samples), Ok(expected.to_owned()));
    }
}

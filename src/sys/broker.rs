//! `$SYS/broker`: this broker's clients and traffic, with the names and units of Mosquitto (mosquitto(8), "Broker status"), so that dashboards made
//! for it show this broker as well. `README.md`, "Broker status", lists the topics.
//!
//! What Mosquitto has and this broker has not (its heap) is not there. *Messages* are control packets of any type, as there; *publish messages* are
//! messages. Retained messages are those of clients: what the broker retains below `$SYS` itself is not counted.
//!
//! A load is what a counter grows by in a minute, averaged over the last 1, 5 or 15 minutes with older growth weighing exponentially less.

use std::time::Instant;

use super::Topics;
use crate::metrics::Metrics;

/// Where a load is averaged over, minutes.
const MINUTES: [u8; 3] = [1, 5, 15];
/// Of how many counters there are loads.
const LOADS: usize = 9;

/// See the module's page.
#[derive(Debug)]
pub(super) struct Broker {
    started_at: Instant,
    /// When the counters below were read.
    looked_at: Instant,
    counters: [u64; LOADS],
    /// A minute, of each counter over each of [`MINUTES`].
    loads: [[f64; MINUTES.len()]; LOADS],
    clients_max: i64,
}

/// The counters that have a load, by the name that the load has.
fn counters(metrics: &Metrics) -> [(&'static str, u64); LOADS] {
    [
        ("messages/received", metrics.packets_received.value()),
        ("messages/sent", packets_sent(metrics)),
        ("publish/received", metrics.messages_received.value()),
        ("publish/sent", metrics.messages_sent.value()),
        ("publish/dropped", dropped(metrics)),
        ("bytes/received", metrics.bytes_received.value()),
        ("bytes/sent", metrics.bytes_sent.value()),
        ("sockets", metrics.connections_accepted.value()),
        ("connections", metrics.connects.value()),
    ]
}

fn packets_sent(metrics: &Metrics) -> u64 {
    metrics.answers_sent.value() + metrics.messages_sent.value()
}

fn dropped(metrics: &Metrics) -> u64 {
    let reasons = [&metrics.dropped_qos0, &metrics.dropped_queue_full, &metrics.dropped_too_large, &metrics.dropped_expired];
    reasons.iter().map(|reason| reason.value()).sum()
}

impl Broker {
    /// A broker that begins `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self { started_at: now, looked_at: now, counters: [0; LOADS], loads: [[0.0; MINUTES.len()]; LOADS], clients_max: 0 }
    }

    /// Every topic with its value. `retained_count` and `retained_bytes` are what clients retain.
    pub(super) fn topics(&mut self, metrics: &Metrics, retained_count: usize, retained_bytes: usize, now: Instant) -> Topics {
        let mut topics = Topics::new();
        let mut show = |topic: &str, value: String| topics.insert(format!("$SYS/broker/{topic}"), value);
        show("version", concat!(env!("CARGO_PKG_NAME"), " version ", env!("CARGO_PKG_VERSION")).to_owned());
        show("uptime", format!("{} seconds", now.saturating_duration_since(self.started_at).as_secs()));

        let (sessions, connected) = (metrics.sessions.value(), metrics.clients.value());
        let disconnected = (sessions - connected).max(0);
        self.clients_max = self.clients_max.max(connected);
        show("clients/total", sessions.to_string());
        show("clients/connected", connected.to_string());
        show("clients/active", connected.to_string());
        show("clients/disconnected", disconnected.to_string());
        show("clients/inactive", disconnected.to_string());
        show("clients/maximum", self.clients_max.to_string());
        show("clients/expired", metrics.sessions_expired.value().to_string());
        show("subscriptions/count", metrics.subscriptions.value().to_string());
        show("shared_subscriptions/count", metrics.shared_subscriptions.value().to_string());

        show("messages/received", metrics.packets_received.value().to_string());
        show("messages/sent", packets_sent(metrics).to_string());
        show("publish/messages/received", metrics.messages_received.value().to_string());
        show("publish/messages/sent", metrics.messages_sent.value().to_string());
        show("publish/messages/dropped", dropped(metrics).to_string());
        show("publish/bytes/received", metrics.payload_bytes_received.value().to_string());
        show("publish/bytes/sent", metrics.payload_bytes_sent.value().to_string());
        show("bytes/received", metrics.bytes_received.value().to_string());
        show("bytes/sent", metrics.bytes_sent.value().to_string());

        show("retained messages/count", retained_count.to_string());
        show("store/messages/count", retained_count.to_string());
        show("store/messages/bytes", retained_bytes.to_string());
        show("messages/stored", retained_count.to_string());

        let counters = counters(metrics);
        self.look(counters.map(|(_, value)| value), now);
        for ((name, _), loads) in counters.iter().zip(&self.loads) {
            for (minutes, load) in MINUTES.iter().zip(loads) {
                show(&format!("load/{name}/{minutes}min"), format!("{load:.2}"));
            }
        }
        topics
    }

    /// The counters have grown to this.
    fn look(&mut self, counters: [u64; LOADS], now: Instant) {
        let seconds = now.saturating_duration_since(self.looked_at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        for ((loads, before), after) in self.loads.iter_mut().zip(self.counters).zip(counters) {
            let a_minute = after.saturating_sub(before) as f64 * 60.0 / seconds;
            for (load, minutes) in loads.iter_mut().zip(MINUTES) {
                let kept = (-seconds / (60.0 * f64::from(minutes))).exp();
                *load = a_minute + kept * (*load - a_minute);
            }
        }
        (self.counters, self.looked_at) = (counters, now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_steady_counter_has_its_rate_as_load_and_an_idle_one_fades() {
        let (metrics, start) = (Metrics::default(), crate::clock::now());
        let mut broker = Broker::new(start);
        let mut load = |seconds: u64, minutes: u8| {
            let topics = broker.topics(&metrics, 0, 0, start + Duration::from_secs(seconds));
            topics[&format!("$SYS/broker/load/sockets/{minutes}min")].parse::<f64>().unwrap()
        };
        for tens in 1..=600 {
            metrics.connections_accepted.add(20);
            load(10 * tens, 1);
        }
        for minutes in MINUTES {
            assert!((load(6_000, minutes) - 120.0).abs() < 1.0, "two a second are 120 a minute");
        }
        let after_a_minute = load(6_060, 1);
        assert!((after_a_minute - 120.0 / std::f64::consts::E).abs() < 1.0, "{after_a_minute}");
        assert!(load(6_060, 15) > 100.0);
    }

    #[test]
    fn clients_that_are_away_are_told_from_those_that_are_there() {
        let (metrics, start) = (Metrics::default(), crate::clock::now());
        let mut broker = Broker::new(start);
        let mut clients = |sessions: i64, connected: i64| {
            metrics.sessions.change(sessions);
            metrics.clients.change(connected);
            let topics = broker.topics(&metrics, 7, 700, start + Duration::from_secs(61));
            ["total", "connected", "disconnected", "maximum"].map(|name| topics[&format!("$SYS/broker/clients/{name}")].clone())
        };
        assert_eq!(clients(3, 2), ["3", "2", "1", "2"]);
        assert_eq!(clients(0, -2), ["3", "0", "3", "2"]);
        let topics = broker.topics(&metrics, 7, 700, start + Duration::from_secs(61));
        assert_eq!(
            (topics["$SYS/broker/uptime"].as_str(), topics["$SYS/broker/retained messages/count"].as_str()),
            ("61 seconds", "7")
        );
    }
}

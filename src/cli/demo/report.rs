//! What the demo says: text for people, or one JSON object a line.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;

use super::super::output::print;
use super::super::topology::as_text;
use super::Round;
use crate::config::Config;
use crate::shared::Topology;

/// How the demo speaks.
#[derive(Clone, Copy)]
pub(super) enum Report {
    /// To people.
    Text,
    /// To programs.
    Json,
}

impl Report {
    fn say(self, text: impl FnOnce() -> String, json: impl FnOnce() -> serde_json::Value) -> anyhow::Result<()> {
        print(&match self {
            Self::Text => text(),
            Self::Json => json().to_string(),
        })
    }

    pub(super) fn started<'a>(self, brokers: impl Iterator<Item = &'a Config>) -> anyhow::Result<()> {
        let rows: Vec<_> = brokers
            .map(|config| {
                let mqtt = config.listeners.first().map(|listener| listener.bind.to_string()).unwrap_or_default();
                let mesh = config.mesh.as_ref().map(|mesh| mesh.listen.to_string()).unwrap_or_default();
                let admin = config.admin.bind.map(|admin| format!("http://{admin}")).unwrap_or_default();
                (&config.name, mqtt, mesh, admin)
            })
            .collect();
        let text = || {
            let mut text =
                format!("{} brokers in this process, joined by QUIC with certificates of an authority in memory:", rows.len());
            for (name, mqtt, mesh, admin) in &rows {
                let _ = write!(text, "\n  {name}  mqtt {mqtt}  mesh {mesh}/udp  admin {admin}");
            }
            text
        };
        self.say(text, || {
            let brokers =
                rows.iter().map(|(name, mqtt, mesh, admin)| json!({ "name": name, "mqtt": mqtt, "mesh": mesh, "admin": admin }));
            json!({ "event": "started", "brokers": brokers.collect::<Vec<_>>() })
        })
    }

    pub(super) fn tree(self, what: &str, topology: &Topology, took: Duration) -> anyhow::Result<()> {
        let text = || format!("\n{what} after {:.2} s:\n{}", took.as_secs_f64(), indented(&as_text(topology)));
        self.say(text, || json!({ "event": "tree", "what": what, "seconds": took.as_secs_f64(), "topology": topology }))
    }

    pub(super) fn delivered(self, round: &Round) -> anyhow::Result<()> {
        let text = || {
            let mut text =
                format!("  a message from each broker: {} of {} deliveries, each once", round.deliveries.len(), round.expected);
            for chunk in round.deliveries.chunk_by(|one, next| one.from == next.from) {
                let arrivals: Vec<_> =
                    chunk.iter().map(|one| format!("{} {:.1} ms", one.to, one.took.as_secs_f64() * 1e3)).collect();
                let from = chunk.first().map(|one| one.from.as_str()).unwrap_or_default();
                let _ = write!(text, "\n    {from} -> {}", arrivals.join(", "));
            }
            text
        };
        self.say(text, || {
            let deliveries =
                round.deliveries.iter().map(|one| json!({ "from": one.from, "to": one.to, "seconds": one.took.as_secs_f64() }));
            json!({ "event": "delivered", "expected": round.expected, "deliveries": deliveries.collect::<Vec<_>>() })
        })
    }

    pub(super) fn crashed(self, name: &str) -> anyhow::Result<()> {
        self.say(|| format!("\n{name}, the root, is ended as by a crash"), || json!({ "event": "crashed", "broker": name }))
    }

    pub(super) fn returned(self, name: &str) -> anyhow::Result<()> {
        self.say(|| format!("\n{name} is back"), || json!({ "event": "returned", "broker": name }))
    }

    pub(super) fn serving<'a>(self, mut brokers: impl Iterator<Item = &'a Config>, rest: Option<Duration>) -> anyhow::Result<()> {
        let mut port = || {
            brokers
                .next()
                .and_then(|config| config.listeners.first())
                .and_then(|listener| listener.bind.address())
                .map_or(0, |bind| bind.port())
        };
        let (first, second) = (port(), port());
        let text = || {
            let until = match rest {
                Some(Duration::ZERO) => return "\nAll good.".to_owned(),
                Some(rest) => format!("for {:.1} s", rest.as_secs_f64()),
                None => "until Ctrl-C".to_owned(),
            };
            format!(
                "\nAll good; serving {until}. Try:\n  mosquitto_sub -p {first} -t 'test/#' -v &\n  mosquitto_pub -p {second} -t test/hello -m world"
            )
        };
        self.say(text, || json!({ "event": "serving", "seconds": rest.map(|rest| rest.as_secs_f64()) }))
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

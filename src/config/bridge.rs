//! What a `[[bridge]]` may say: to which foreign broker, which topics, and how; and what must hold between these.
//!
//! Names and the grammar of `topic` are Mosquitto's (mosquitto.conf(5), "Configuring Bridges"), without the `bridge_` that this table says already.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

use super::{HostPort, units};
use crate::{limits, topic};

/// A foreign broker, and what goes to it and comes from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bridge {
    /// The bridge's name: the same at every broker of a mesh that may serve it. Never empty in a loaded configuration.
    pub name: String,
    /// Where the foreign broker is; more than one: the same in several places. Never empty in a loaded configuration.
    #[serde(deserialize_with = "units::foreign_hosts")]
    pub addresses: Vec<HostPort>,
    /// Whether the next address is tried when one fails and then kept, or the first is gone back to.
    pub round_robin: bool,
    /// What crosses the bridge. Never empty in a loaded configuration.
    #[serde(rename = "topic")]
    pub topics: Vec<BridgeTopic>,
    /// What is spoken to the foreign broker.
    pub protocol_version: BridgeVersion,
    /// Whether it is told, by a bit that Mosquitto knows, that a bridge comes, so that it does not give back what came from us. Only before MQTT 5,
    /// and where it is refused, without.
    pub try_private: bool,
    /// The client id at the foreign broker. `None`: the mesh's name, or without one this broker's, then a dot and the bridge's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_clientid: Option<String>,
    /// The user name at the foreign broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_username: Option<String>,
    /// The password at the foreign broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_password: Option<String>,
    /// The file whose first line is that, in place of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_password_file: Option<PathBuf>,
    /// The client id of the bridge's session here; in a mesh, followed by a dot and this broker's name. `None`: `bridge-` and the name. No client is
    /// let in with either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_clientid: Option<String>,
    /// Whether what waits on either side is forgotten when the connection ends.
    pub cleansession: bool,
    /// Seconds of silence after which the foreign broker is asked whether it is there.
    #[serde(deserialize_with = "units::bridge_keepalive")]
    pub keepalive_interval: u16,
    /// The longest wait between two attempts; the first is a second.
    #[serde(with = "units::duration")]
    pub restart_timeout: Duration,
    /// Whether it is told on both sides, by a retained `1` or `0`, that the bridge is connected.
    pub notifications: bool,
    /// Whether on this side only.
    pub notifications_local_only: bool,
    /// Where it is told on the foreign side. `None`: `$SYS/broker/connection/`, the remote client id, `/state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notification_topic: Option<String>,
    /// Largest packet in bytes that is sent to the foreign broker or taken from it. `None`: what it takes, and [`super::Limits::max_packet_size`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::optional_packet_bytes")]
    pub max_packet_size: Option<u32>,
    /// Whether retained messages are sent as such.
    pub outgoing_retain: bool,
    /// Whether subscriptions of `out` topics that an earlier configuration may have made there are taken back.
    pub attempt_unsubscribe: bool,
    /// TLS; `None`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<BridgeTls>,
    /// Of the brokers of a mesh with this bridge the one with the lowest serves it, where none does yet.
    pub priority: u16,
    /// How long another broker waits for the one that served the bridge before it serves it itself.
    #[serde(with = "units::duration")]
    pub takeover_after: Duration,
}

impl Default for Bridge {
    fn default() -> Self {
        Self {
            name: String::new(),
            addresses: Vec::new(),
            round_robin: false,
            topics: Vec::new(),
            protocol_version: BridgeVersion::default(),
            try_private: true,
            remote_clientid: None,
            remote_username: None,
            remote_password: None,
            remote_password_file: None,
            local_clientid: None,
            cleansession: false,
            keepalive_interval: 60,
            restart_timeout: Duration::from_secs(30),
            notifications: true,
            notifications_local_only: false,
            notification_topic: None,
            max_packet_size: None,
            outgoing_retain: true,
            attempt_unsubscribe: true,
            tls: None,
            priority: 100,
            takeover_after: Duration::from_secs(30),
        }
    }
}

impl Bridge {
    /// The client id of the bridge's session at every broker that may serve it: each has one of its own, or has it from the one that served before.
    #[must_use]
    pub fn local_client_id(&self) -> String {
        self.local_clientid.clone().unwrap_or_else(|| format!("bridge-{}", self.name))
    }
}

/// What a bridge speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BridgeVersion {
    /// MQTT 3.1.1.
    MqttV311,
    /// MQTT 5.0.
    #[default]
    MqttV50,
}

/// How the foreign broker is known, and this one to it. PEM files, read at each attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BridgeTls {
    /// The authorities that sign the foreign broker's certificate. Never `None` in a loaded configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cafile: Option<PathBuf>,
    /// The certificate that is shown. `None`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certfile: Option<PathBuf>,
    /// The private key of [`BridgeTls::certfile`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyfile: Option<PathBuf>,
    /// Whether the certificate may name another host than the one that was dialled.
    pub insecure: bool,
}

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeDirection {
    /// To the foreign broker.
    Out,
    /// From it.
    In,
    /// Both ways.
    Both,
}

impl BridgeDirection {
    /// Whether messages go to the foreign broker.
    #[must_use]
    pub fn goes_out(self) -> bool {
        self != Self::In
    }

    /// Whether messages come from it.
    #[must_use]
    pub fn comes_in(self) -> bool {
        self != Self::Out
    }
}

/// Topics that cross a bridge. Written `PATTERN [out|in|both [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]`, where `""` is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeTopic {
    /// What both filters end with; empty: the prefixes are topics themselves.
    pub pattern: String,
    /// Which way.
    pub direction: BridgeDirection,
    /// The highest QoS with which messages cross: 0, 1 or 2.
    pub qos: u8,
    /// What topics here begin with, and not there.
    pub local_prefix: String,
    /// What topics there begin with, and not here.
    pub remote_prefix: String,
}

impl BridgeTopic {
    /// The topics here, as a filter.
    #[must_use]
    pub fn local(&self) -> String {
        format!("{}{}", self.local_prefix, self.pattern)
    }

    /// The topics there, as a filter.
    #[must_use]
    pub fn remote(&self) -> String {
        format!("{}{}", self.remote_prefix, self.pattern)
    }

    fn check(&self) -> Result<(), String> {
        for prefix in [&self.local_prefix, &self.remote_prefix] {
            if prefix.contains(['+', '#']) {
                return Err(format!("`{prefix}` is no prefix: it has a wildcard"));
            }
        }
        for filter in [self.local(), self.remote()] {
            match topic::parse_filter(&filter) {
                Ok(parsed) if parsed.share.is_some() => return Err(format!("`{filter}` is a shared subscription")),
                Ok(_) => {}
                Err(error) => return Err(format!("`{filter}`: {error}")),
            }
        }
        Ok(())
    }
}

impl FromStr for BridgeTopic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "`{text}` {what}; write PATTERN [out|in|both [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]], for example \"sensors/# out 1\", with \"\\\"\\\"\" for nothing"
            )
        };
        let mut words = text.split_ascii_whitespace().map(|word| if word == "\"\"" { "" } else { word });
        let pattern = words.next().ok_or_else(|| wrong("has no pattern"))?.to_owned();
        let direction = match words.next() {
            None | Some("out") => BridgeDirection::Out,
            Some("in") => BridgeDirection::In,
            Some("both") => BridgeDirection::Both,
            Some(_) => return Err(wrong("has none of out, in and both behind the pattern")),
        };
        let qos = match words.next() {
            None => 0,
            Some(word) => word.parse().ok().filter(|qos| *qos <= 2).ok_or_else(|| wrong("has no QoS of 0, 1 or 2"))?,
        };
        let mut prefix = || words.next().unwrap_or_default().to_owned();
        let (local_prefix, remote_prefix) = (prefix(), prefix());
        if words.next().is_some() {
            return Err(wrong("has too many words"));
        }
        let topic = Self { pattern, direction, qos, local_prefix, remote_prefix };
        topic.check().map(|()| topic)
    }
}

impl fmt::Display for BridgeTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |text: &str| if text.is_empty() { "\"\"".to_owned() } else { text.to_owned() };
        let direction = match self.direction {
            BridgeDirection::Out => "out",
            BridgeDirection::In => "in",
            BridgeDirection::Both => "both",
        };
        let (pattern, local, remote) = (word(&self.pattern), word(&self.local_prefix), word(&self.remote_prefix));
        write!(f, "{pattern} {direction} {} {local} {remote}", self.qos)
    }
}

impl Serialize for BridgeTopic {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BridgeTopic {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// The first rule that one of `bridges` breaks: the key, dotted, and what is wrong with it.
pub(super) fn check(
    bridges: &[Bridge],
    check_name: impl Fn(&str, &str) -> Result<(), (String, String)>,
) -> Result<(), (String, String)> {
    for (index, bridge) in bridges.iter().enumerate() {
        check_name(&format!("bridge.{index}.name"), &bridge.name)?;
        let before = bridges.get(..index).unwrap_or_default();
        check_one(bridge, before).map_err(|(key, problem)| (format!("bridge.{index}.{key}"), problem))?;
    }
    Ok(())
}

fn check_one(bridge: &Bridge, before: &[Bridge]) -> Result<(), (&'static str, String)> {
    let broken = |key, problem: &str| Err((key, problem.to_owned()));
    if before.iter().any(|other| other.name == bridge.name) {
        return Err(("name", format!("there is another bridge `{}`", bridge.name)));
    }
    let local = bridge.local_client_id();
    if before.iter().any(|other| other.local_client_id() == local) {
        return Err(("local_clientid", format!("another bridge has `{local}`")));
    }
    if bridge.addresses.is_empty() {
        return broken("addresses", "is missing; write for example [\"broker.example:1883\"]");
    }
    if bridge.topics.is_empty() {
        return broken("topic", "is missing: nothing would cross; write for example [\"sensors/# out 1\"]");
    }
    if bridge.topics.len() > limits::FILTERS_PER_PACKET_MAX {
        return Err(("topic", format!("{} are too many; there may be {}", bridge.topics.len(), limits::FILTERS_PER_PACKET_MAX)));
    }
    for (key, text) in [("local_clientid", &bridge.local_clientid), ("remote_clientid", &bridge.remote_clientid)] {
        if text
            .as_ref()
            .is_some_and(|text| text.is_empty() || text.len() > usize::from(u16::MAX) || text.contains(char::is_control))
        {
            return broken(key, "is no client id: it is empty, or too long, or has control characters");
        }
    }
    if bridge.notifications
        && let Some(id) = &bridge.remote_clientid
        && let Err(error) = topic::check_name(&format!("$SYS/broker/connection/{id}/state"))
    {
        return Err((
            "remote_clientid",
            format!("its topic of notifications cannot be: {error}; choose another, or set notifications = false"),
        ));
    }
    let is_same = |other: &&Bridge| {
        other.remote_clientid == bridge.remote_clientid && other.addresses.iter().any(|address| bridge.addresses.contains(address))
    };
    if bridge.remote_clientid.is_some()
        && let Some(other) = before.iter().find(is_same)
    {
        let problem = format!(
            "bridge `{}` has the same, and an address in common: they would drive each other away; choose another",
            other.name
        );
        return Err(("remote_clientid", problem));
    }
    if bridge.remote_password.is_some() && bridge.remote_password_file.is_some() {
        return broken("remote_password_file", "there is remote_password, too; one password is enough");
    }
    let has_password = bridge.remote_password.is_some() || bridge.remote_password_file.is_some();
    if has_password && bridge.remote_username.is_none() {
        return broken("remote_username", "is missing; a password needs a user name");
    }
    if let Some(name) = &bridge.notification_topic
        && let Err(error) = topic::check_name(name)
    {
        return Err(("notification_topic", format!("`{name}`: {error}")));
    }
    if let Some(tls) = &bridge.tls {
        if tls.cafile.is_none() {
            return broken("tls.cafile", "is missing; it says which certificates of the foreign broker are believed");
        }
        if tls.certfile.is_some() != tls.keyfile.is_some() {
            return broken("tls.keyfile", "goes with tls.certfile, and without it is of no use");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_have_mosquittos_grammar_and_read_back() {
        for (text, pattern, direction, qos, local, remote) in [
            ("a/#", "a/#", BridgeDirection::Out, 0, "a/#", "a/#"),
            ("# in 2", "#", BridgeDirection::In, 2, "#", "#"),
            ("+/x both 1 \"\" site1/", "+/x", BridgeDirection::Both, 1, "+/x", "site1/+/x"),
            ("# both 0 here/ \"\"", "#", BridgeDirection::Both, 0, "here/#", "#"),
            ("\"\" in 1 mine/t theirs/t", "", BridgeDirection::In, 1, "mine/t", "theirs/t"),
        ] {
            let topic: BridgeTopic = text.parse().unwrap();
            assert_eq!((topic.pattern.as_str(), topic.direction, topic.qos), (pattern, direction, qos), "{text}");
            assert_eq!((topic.local(), topic.remote()), (local.to_owned(), remote.to_owned()), "{text}");
            assert_eq!(topic.to_string().parse(), Ok(topic), "{text}");
        }
        for text in
            ["", " ", "a inout", "a out 3", "a out x", "a out 1 b c d", "a/#/b", "# out 0 a+ b", "\"\" out 0", "$share/g/a in"]
        {
            assert!(text.parse::<BridgeTopic>().is_err(), "{text}");
        }
    }
}

//! From text to a [`Config`]: the file, then the environment and the flags over it, then the rules between keys.
//!
//! The file is read twice: once by itself, so that every error in it has its line and column, and once as a plain table over which the
//! overrides are laid, each of which has been tried by itself before.

use std::net::SocketAddr;
use std::ops::Range;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::error::{ConfigError, Place, suggestion};
use super::{Auth, Config, Listener, rules};

/// What environment variables for us begin with. What follows is a key's path in capitals, joined by `__`.
pub const ENVIRONMENT_PREFIX: &str = "MQTT_ST_QUIC__";

/// Everything of which a configuration is made, later ones over earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Sources<'a> {
    /// The file's name, for errors, and its text.
    pub file: Option<(&'a str, &'a str)>,
    /// Single keys, from the environment and from flags.
    pub overrides: Vec<Override>,
    /// Listeners on top of those configured. One on a loopback address lets anonymous clients in.
    pub listeners: Vec<SocketAddr>,
    /// The broker's name if nobody gave one.
    pub default_name: &'a str,
}

/// One key, set from outside the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The variable or flag, as the user wrote it.
    pub origin: String,
    /// The key's path; a listener's table is named by its index.
    pub path: Vec<String>,
    /// The value; a list is separated by commas.
    pub value: String,
}

impl Override {
    /// The overrides among environment variables: `MQTT_ST_QUIC__LISTENER__0__BIND=127.0.0.1:1884`. Ordered by their names, so that
    /// `LISTENER__1` comes after `LISTENER__0`.
    pub fn from_environment(variables: impl Iterator<Item = (String, String)>) -> Vec<Self> {
        let mut found: Vec<Self> = variables
            .filter_map(|(origin, value)| {
                let path = origin.strip_prefix(ENVIRONMENT_PREFIX)?.split("__").map(str::to_ascii_lowercase).collect();
                Some(Self { origin, path, value })
            })
            .collect();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    /// What a flag says about the key `path`, dotted.
    #[must_use]
    pub fn from_flag(flag: &str, path: &str, value: String) -> Self {
        Self { origin: flag.to_owned(), path: path.split('.').map(str::to_owned).collect(), value }
    }
}

impl Sources<'_> {
    /// The configuration that these sources make.
    ///
    /// # Errors
    /// See [`ConfigError`]: the first thing that is wrong, with its place.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let document = self.file.map(|(name, text)| Document::parse(name, text)).transpose()?;
        let mut config = self.merge(document.as_ref())?;
        // Where somebody has said who may come in, that holds for these, too.
        let is_unsaid = config.auth == Auth::default();
        config.listeners.extend(self.listeners.iter().map(|bind| Listener {
            bind: (*bind).into(),
            allow_anonymous: is_unsaid.then_some(bind.ip().is_loopback()),
            ..Listener::default()
        }));
        if config.listeners.is_empty() {
            config.listeners.push(Listener { allow_anonymous: is_unsaid.then_some(true), ..Listener::default() });
        }
        if config.name.is_empty() {
            self.default_name.clone_into(&mut config.name);
        }
        rules::check(&config).map_err(|(key, problem)| self.rule_broken(document.as_ref(), key, problem))?;
        Ok(config)
    }

    fn merge(&self, document: Option<&Document<'_>>) -> Result<Config, ConfigError> {
        let config = document.map(Document::config).transpose()?.unwrap_or_default();
        if self.overrides.is_empty() {
            return Ok(config);
        }
        let mut table = document.map(Document::table).transpose()?.unwrap_or_default();
        let mut last = None;
        for one in &self.overrides {
            let value = one.typed()?;
            set(&mut table, &one.path, value).map_err(|problem| one.error(problem))?;
            last = Some(one);
        }
        // Each part is good by itself; should the whole not be, then the last one to change it is as good a culprit as any.
        table.try_into().or_else(|error: toml::de::Error| last.map_or(Ok(config), |one| Err(one.error(error.message().to_owned()))))
    }

    fn rule_broken(&self, document: Option<&Document<'_>>, key: String, problem: String) -> ConfigError {
        let origin = self.overrides.iter().rev().find(|one| one.path.join(".") == key).map(|one| one.origin.clone());
        let place = origin.or_else(|| document.and_then(|document| document.place_of(&key)).map(|place| place.to_string()));
        ConfigError::Rule { place: place.unwrap_or_default(), key, problem }
    }
}

impl Override {
    /// The value as the type that its key takes: text where that is good, else a number or truth value, else a list.
    fn typed(&self) -> Result<Value, ConfigError> {
        let text = Value::String(self.value.clone());
        let Err(mut shown) = self.try_value(&text) else { return Ok(text) };
        let plain = self.value.parse().map(Value::Integer).or_else(|_| self.value.parse().map(Value::Boolean)).ok();
        let list = shown.ends_with("expected a sequence").then(|| {
            let parts = self.value.split(',').map(str::trim).filter(|part| !part.is_empty());
            Value::Array(parts.map(|part| Value::String(part.to_owned())).collect())
        });
        for candidate in [list, plain].into_iter().flatten() {
            match self.try_value(&candidate) {
                Ok(()) => return Ok(candidate),
                // "invalid type" only says that this is not the form that the key takes.
                Err(problem) if !problem.starts_with("invalid type") => shown = problem,
                Err(_) => {}
            }
        }
        Err(self.error(shown))
    }

    fn try_value(&self, value: &Value) -> Result<(), String> {
        let path: Vec<String> = self.path.iter().map(|part| if is_index(part) { "0".to_owned() } else { part.clone() }).collect();
        try_value(&path, value)
    }

    fn error(&self, problem: String) -> ConfigError {
        let remedy = suggestion(&problem);
        ConfigError::Override { origin: self.origin.clone(), value: self.value.clone(), problem, remedy }
    }
}

/// Whether the key takes `value`, all others at their defaults. In `path` a list's table is the first of its kind.
pub(super) fn try_value(path: &[String], value: &Value) -> Result<(), String> {
    let mut table = Table::new();
    set(&mut table, path, value.clone())?;
    Config::deserialize(table).map(drop).map_err(|error| error.message().to_owned())
}

fn is_index(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Sets the key at `path`, making the tables and the next array element on the way.
fn set(table: &mut Table, path: &[String], value: Value) -> Result<(), String> {
    match path {
        [] => Err("names no key".to_owned()),
        [key] => {
            table.insert(key.clone(), value);
            Ok(())
        }
        [key, index, rest @ ..] if is_index(index) => {
            let elements = table.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
            let elements = elements.as_array_mut().ok_or_else(|| format!("`{key}` is no list of tables"))?;
            let index: usize = index.parse().map_err(|_| format!("`{index}` is no index"))?;
            if index == elements.len() {
                elements.push(Value::Table(Table::new()));
            }
            let count = elements.len();
            let element =
                elements.get_mut(index).ok_or_else(|| format!("there are {count} `{key}` tables; the next is number {count}"))?;
            set(element.as_table_mut().ok_or_else(|| format!("`{key}.{index}` is no table"))?, rest, value)
        }
        [key, rest @ ..] => {
            let inner = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            set(inner.as_table_mut().ok_or_else(|| format!("`{key}` is no table"))?, rest, value)
        }
    }
}

/// A configuration file that is TOML, with the place of everything in it.
struct Document<'a> {
    name: &'a str,
    text: &'a str,
    tree: Spanned<DeTable<'a>>,
}

impl<'a> Document<'a> {
    fn parse(name: &'a str, text: &'a str) -> Result<Self, ConfigError> {
        let tree = DeTable::parse(text).map_err(|error| {
            let place = Place::new(name, text, &error.span().unwrap_or_default());
            let remedy = looks_like_mosquitto(text).then(|| {
                format!("this looks like a mosquitto.conf; run `mqtt-st-quic config import {name}`, which writes it anew for this broker")
            });
            ConfigError::File { place: place.into(), key: String::new(), problem: error.message().replace('\n', "; "), remedy }
        })?;
        Ok(Self { name, text, tree })
    }

    fn config(&self) -> Result<Config, ConfigError> {
        toml::de::Deserializer::parse(self.text).and_then(Config::deserialize).map_err(|error| self.error(&error))
    }

    fn table(&self) -> Result<Table, ConfigError> {
        self.text.parse().map_err(|error| self.error(&error))
    }

    fn error(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or_default();
        let problem = error.message().replace('\n', "; ");
        let key = key_at(self.tree.get_ref(), &span).unwrap_or_default();
        ConfigError::File { place: Place::new(self.name, self.text, &span).into(), key, remedy: suggestion(&problem), problem }
    }

    /// Where `key`, dotted, stands, or the nearest table around it.
    fn place_of(&self, key: &str) -> Option<Place> {
        let mut table = self.tree.get_ref();
        let mut parts = key.split('.').peekable();
        let mut found = None;
        while let Some(part) = parts.next() {
            let Some((name, value)) = table.iter().find(|(name, _)| name.get_ref() == part) else { break };
            let mut value = value;
            found = Some(name.span());
            if let (DeValue::Array(elements), Some(index)) =
                (value.get_ref(), parts.peek().and_then(|part| part.parse::<usize>().ok()))
            {
                parts.next();
                let Some(element) = elements.get(index) else { break };
                value = element;
                found = Some(value.span());
            }
            let Some(inner) = value.get_ref().as_table() else { break };
            table = inner;
        }
        found.map(|span| Place::new(self.name, self.text, &span))
    }
}

/// The dotted key whose name or value holds `span`.
fn key_at(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    table.iter().find_map(|(name, value)| {
        let below = match value.get_ref() {
            DeValue::Table(inner) => key_at(inner, span),
            DeValue::Array(elements) => {
                let inner = elements.iter().enumerate().filter_map(|(index, element)| Some((index, element.get_ref().as_table()?)));
                inner.into_iter().find_map(|(index, element)| Some(format!("{index}.{}", key_at(element, span)?)))
            }
            _ => None,
        };
        let name_text = name.get_ref();
        below.map(|below| format!("{name_text}.{below}")).or_else(|| {
            let is_value = !value.get_ref().is_table() && holds(value.span());
            (is_value || holds(name.span())).then(|| name_text.to_string())
        })
    })
}

/// Whether the first thing said is a word and a value with no `=` between: Mosquitto's way.
fn looks_like_mosquitto(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let words = first.and_then(|line| line.split_once(' '));
    words.is_some_and(|(word, rest)| {
        word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') && !rest.trim_start().starts_with('=')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Discovery, HostPort, Mesh};

    const MESH: &str = "[mesh]\nname = \"m\"\ncafile = \"ca\"\ncertfile = \"c\"\nkeyfile = \"k\"\n";

    fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let overrides = Override::from_environment(variables);
        Sources { file: Some(("b.toml", text)), overrides, listeners: Vec::new(), default_name: "host" }.load()
    }

    fn port(listener: &Listener) -> u16 {
        listener.bind.address().expect("an address").port()
    }

    fn refused(text: &str, variables: &[(&str, &str)]) -> String {
        load(text, variables).expect_err(text).to_string()
    }

    #[test]
    fn nothing_at_all_is_a_broker_on_loopback() {
        let config = Sources { default_name: "host", ..Sources::default() }.load().expect("the defaults");
        let anonymous = Listener { allow_anonymous: Some(true), ..Listener::default() };
        assert_eq!(config, Config { name: "host".to_owned(), listeners: vec![anonymous], ..Config::default() });
    }

    #[test]
    fn listeners_from_flags_come_on_top_and_only_loopback_is_anonymous() {
        let sources = Sources {
            file: Some(("b.toml", "[[listener]]\nbind = \"127.0.0.1:1\"\n")),
            listeners: vec!["127.0.0.1:2".parse().expect("address"), "0.0.0.0:3".parse().expect("address")],
            default_name: "host",
            ..Sources::default()
        };
        let config = sources.load().expect("good");
        let seen: Vec<_> = config.listeners.iter().map(|one| (port(one), one.allow_anonymous)).collect();
        assert_eq!(seen, [(1, None), (2, Some(true)), (3, Some(false))]);
    }

    #[test]
    fn every_value_has_its_form() {
        let text = format!(
            "name = \"mec-1\"\n[limits]\nmax_packet_size = \"1MiB\"\nmax_queued_bytes = 70\n{MESH}hello_time = \"2s\"\n\
             discovery = [\"dns\"]\npeers = [\"a.example:1\", \"[::1]:2\", \"192.0.2.1\"]\nreplay_log_bytes = \"16 MB\"\n"
        );
        let config = load(&text, &[]).expect("good");
        assert_eq!((config.limits.max_packet_size, config.limits.max_queued_bytes), (1 << 20, 70));
        let mesh = config.mesh.expect("a mesh");
        assert_eq!(mesh.hello_time, std::time::Duration::from_secs(2));
        assert_eq!(mesh.replay_log_bytes, 16_000_000);
        assert_eq!(mesh.discovery, [Discovery::Dns]);
        let peers = [("a.example", 1), ("::1", 2), ("192.0.2.1", 7883)];
        assert_eq!(mesh.peers, peers.map(|(host, port)| HostPort { host: host.to_owned(), port }));
    }

    #[test]
    fn what_is_shown_reads_back_as_itself() {
        let text = format!(
            "name = \"x\"\n[health]\n[[listener]]\nmax_connections = 7\nmax_packet_size = 1000\n{MESH}capacity = 3\nadvertise = [\"h:5\"]\n"
        );
        let config = load(&text, &[]).expect("good");
        let shown = toml::to_string(&config).expect("serializable");
        assert_eq!(load(&shown, &[]), Ok(config), "{shown}");
    }

    #[test]
    fn every_error_has_its_place_its_key_and_its_remedy() {
        for (text, expected) in [
            ("name = 5", "b.toml:1:8: name: invalid type: integer `5`, expected a string\n  1 | name = 5\n    |        ^"),
            ("\n[mesh]\nlisen = \"\"", "b.toml:3:1: mesh.lisen: unknown field `lisen`, expected one of "),
            ("[mesh]\nlisen = \"\"", "; did you mean `listen`?"),
            ("[mesh]\nlanes = 17", "b.toml:2:9: mesh.lanes: invalid value: integer `17`, expected a number from 1 to 16"),
            ("[mesh]\nhop_max = 0", "b.toml:2:11: mesh.hop_max: invalid value: integer `0`, expected a number from 1 to 255"),
            ("[mesh]\nhello_time = \"5\"", "mesh.hello_time: `5` is not a length of time; write for example \"100ms\""),
            ("[mesh]\npeers = [\"a:0\"]", "b.toml:2:9: mesh.peers: `a:0` is not a host and port"),
            ("[mesh]\npeers = [\"::1\"]", "`::1` is not a host and port"),
            (
                "[mesh]\ndiscovery = [\"foo\"]",
                "mesh.discovery: unknown variant `foo`, expected one of `static`, `dns`, `mdns`, `gossip`",
            ),
            ("[mesh]\nreplication = \"none\"", "mesh.replication: unknown variant `none`, expected `interest` or `full`"),
            (
                "[[listener]]\n[[listener]]\nbind = \"localhost:1883\"",
                "b.toml:3:8: listener.1.bind: `localhost:1883` is not an IP address",
            ),
            (
                "[limits]\nmax_packet_size = \"1GiB\"",
                "limits.max_packet_size: 1073741824 is out of range; it must be from 128 to 268435460",
            ),
            (
                "[limits]\nmax_queued_bytes = -1",
                "invalid value: integer `-1`, expected a number of bytes, for example 1048576 or \"1MiB\"",
            ),
            ("[limits]\nmax_connections = 0", "limits.max_connections: invalid value: integer `0`, expected a number from 1 to"),
            ("name = \"a\"\nname = \"b\"", "b.toml:2:1: duplicate key"),
            ("name = \"a", "b.toml:1:"),
            ("name = \"a b\"", "b.toml:1:1: name: `a b` may hold letters, digits"),
            ("[mesh]", "b.toml:1:2: mesh.name: is missing"),
            ("[mesh]\nname = \"m\"\ncafile = \"f\"", "b.toml:1:2: mesh.certfile: is missing; `mqtt-st-quic certs ca`"),
            ("[admin]\nbind = \"0.0.0.0:9883\"", "b.toml:2:1: admin.bind: 0.0.0.0:9883 is not a loopback address"),
            ("[[listener]]\n[[listener]]", "b.toml:2:1: listener.1.bind: 127.0.0.1:1883 is the address of listener 0 already"),
            ("[[listener]]\nbind = \"unix:\"", "b.toml:2:8: listener.0.bind: `unix:` lacks the path of the socket"),
            ("[[listener]]\nprotocol = \"quic\"", "b.toml:1:1: listener.0.tls: is missing; QUIC needs tls = {"),
            (
                "[[listener]]\nprotocol = \"quic\"\nbind = \"unix:/x\"\ntls = { certfile = \"c\", keyfile = \"k\" }",
                "b.toml:2:1: listener.0.protocol: QUIC is spoken over UDP",
            ),
            ("[[listener]]\nprotocol = \"websocket\"", "listener.0.protocol: unknown variant `websocket`, expected one of"),
            ("[[listener]]\nprotocol = \"websocket\"", "; did you mean `websockets`?"),
            ("[[listener]]\ntls = { certfile = \"c\" }", "b.toml:2:1: listener.0.tls.keyfile: is missing; TLS needs"),
            ("[[listener]]\n[listener.tls]\nkeyfil = \"c\"", "b.toml:3:1: listener.0.tls.keyfil: unknown field `keyfil`"),
            (
                "[[listener]]\ntls = { certfile = \"c\", keyfile = \"k\", require_certificate = true }",
                "b.toml:2:40: listener.0.tls.require_certificate: needs tls.cafile",
            ),
            (
                "[[listener]]\ntls = { certfile = \"c\", keyfile = \"k\", cafile = \"a\", use_identity_as_username = true, use_subject_as_username = true }",
                "listener.0.tls.use_subject_as_username: a client has one user name",
            ),
            ("[[listener]]\nproxy_protocol = \"v2\"", "b.toml:2:1: listener.0.proxy_protocol: needs trusted_proxies"),
            ("[[listener]]\ntrusted_proxies = [\"::1\"]", "b.toml:2:1: listener.0.trusted_proxies: has no effect without"),
            ("[[listener]]\ntrusted_proxies = [\"a\"]", "listener.0.trusted_proxies: `a` is neither an address nor a network"),
            (
                "[[listener]]\nproxy_protocol = \"v1\"\ntrusted_proxies = [\"::1\"]\nproxy_identity_as_username = true",
                "b.toml:4:1: listener.0.proxy_identity_as_username: only proxy_protocol = \"v2\"",
            ),
            (
                "[[listener]]\nwebsockets_path = \"/mqtt\"",
                "b.toml:2:1: listener.0.websockets_path: only `protocol = \"websockets\"`",
            ),
            (
                "[[listener]]\nprotocol = \"websockets\"\nwebsockets_path = \"mqtt\"",
                "b.toml:3:1: listener.0.websockets_path: `mqtt` is no path; write for example \"/mqtt\"",
            ),
            ("[[bridge]]", "b.toml:1:1: bridge.0.name: is missing"),
            ("[[bridge]]\nname = \"b\"", "b.toml:1:1: bridge.0.addresses: is missing; write for example"),
            (
                "[[bridge]]\nname = \"b\"\naddresses = [\"a:0\"]",
                "b.toml:3:13: bridge.0.addresses: `a:0` is not a host and port; write for example \"mec-2.example:1883\"",
            ),
            ("[[bridge]]\nname = \"b\"\naddresses = [\"a\"]", "b.toml:1:1: bridge.0.topic: is missing: nothing would cross"),
            ("[[bridge]]\ntopic = [\"a/# sideways\"]", "b.toml:2:9: bridge.0.topic: `a/# sideways` has none of out, in and both"),
            ("[[bridge]]\ntopic = [\"a out 0 x/+/ y/\"]", "b.toml:2:9: bridge.0.topic: `x/+/` is no prefix: it has a wildcard"),
            (
                "[[bridge]]\nkeepalive_interval = 4",
                "bridge.0.keepalive_interval: invalid value: integer `4`, expected a number from 5 to 65535",
            ),
            (
                "[[bridge]]\nprotocol_version = \"mqttv31\"",
                "bridge.0.protocol_version: unknown variant `mqttv31`, expected `mqttv311` or `mqttv50`",
            ),
            (
                "[[bridge]]\nname = \"b\"\naddresses = [\"a\"]\ntopic = [\"a\"]\nremote_password = \"x\"",
                "bridge.0.remote_username: is missing; a password needs a user name",
            ),
            (
                "[[bridge]]\nname = \"b\"\naddresses = [\"a\"]\ntopic = [\"a\"]\n[[bridge]]\nname = \"b\"",
                "bridge.1.name: there is another bridge `b`",
            ),
            (
                "[[bridge]]\nname = \"b\"\naddresses = [\"a\"]\ntopic = [\"a\"]\nremote_clientid = \"a+\"",
                "b.toml:5:1: bridge.0.remote_clientid: its topic of notifications cannot be: ",
            ),
            (
                "[[bridge]]\nname = \"b\"\naddresses = [\"a\"]\ntopic = [\"a\"]\nremote_clientid = \"x\"\n\
                 [[bridge]]\nname = \"c\"\naddresses = [\"d\", \"a\"]\ntopic = [\"a\"]\nremote_clientid = \"x\"",
                "b.toml:10:1: bridge.1.remote_clientid: bridge `b` has the same, and an address in common",
            ),
            (
                "[[bridge]]\nname = \"b\"\naddresses = [\"a\"]\ntopic = [\"a\"]\ntls = { certfile = \"c\" }",
                "bridge.0.tls.cafile: is missing",
            ),
            ("# x\nlistener 1883\nallow_anonymous true", "; this looks like a mosquitto.conf"),
        ] {
            let shown = refused(text, &[]);
            assert!(shown.contains(expected), "{text}\n   gives {shown}\nexpected {expected}");
        }
        let shown = refused(&format!("{MESH}replay_log_bytes = \"1MiB\"\n"), &[]);
        assert!(shown.contains("b.toml:6:1: mesh.replay_log_bytes: 1048576 bytes are too few"), "{shown}");
        let large = "[[bridge]]\nname = \"b\"\naddresses = [\"a\"]\ntopic = [\"a\"]\nmax_packet_size = \"100MiB\"\n";
        let shown = refused(&format!("{MESH}{large}"), &[]);
        assert!(shown.contains("mesh.replay_log_bytes: 268435456 bytes are too few"), "{shown}");
        let shown = refused(&format!("{MESH}hello_time = \"1ms\"\n"), &[]);
        assert!(shown.contains("b.toml:6:1: mesh.hello_time: 1ms is out of range"), "{shown}");
        let shown = refused(&format!("{MESH}discovery = [\"mdns\"]\npeers = [\"a\"]\n"), &[]);
        assert!(shown.contains("b.toml:7:1: mesh.peers: `a:7883` would never be dialled"), "{shown}");
        let shown = refused(&format!("{MESH}discovery = [\"static\"]\npeers = [\"_mqtt-st._udp.a\"]\n"), &[]);
        assert!(shown.contains("b.toml:7:1: mesh.peers: `_mqtt-st._udp.a` is the name of SRV records"), "{shown}");
        for (costs, expected) in [
            ("{ b = 0 }", "b.toml:6:11: mesh.costs.b: 0 is out of range; it must be from 1 to 1048576"),
            ("{ b = 1048577 }", "mesh.costs.b: 1048577 is out of range"),
            ("{ b = -1 }", "invalid value: integer `-1`"),
            ("{ host = 1 }", "mesh.costs.host: `host` is this broker itself"),
            ("{ \"a b\" = 1 }", "`a b` may hold letters, digits"),
        ] {
            let shown = refused(&format!("{MESH}costs = {costs}\n"), &[]);
            assert!(shown.contains(expected), "{costs}: {shown}");
        }
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let variables = [
            ("MQTT_ST_QUIC__NAME", "17"),
            ("MQTT_ST_QUIC__LISTENER__0__BIND", "127.0.0.1:5"),
            ("MQTT_ST_QUIC__LISTENER__1__ALLOW_ANONYMOUS", "true"),
            ("MQTT_ST_QUIC__MESH__PEERS", "a:1, b:2"),
            ("MQTT_ST_QUIC__MESH__LANES", "2"),
            ("MQTT_ST_QUIC__MESH__COSTS__MEC-2", "10"),
            ("MQTT_ST_QUIC__MESH__DISCOVERY", "static"),
            ("MQTT_ST_QUIC__LIMITS__MAX_QUEUED_BYTES", "5MiB"),
            ("MQTT_ST_QUIC_SERVICE_HOST", "what Kubernetes sets"),
        ];
        let text = format!("name = \"file\"\n[[listener]]\nbind = \"127.0.0.1:1\"\nmax_connections = 9\n{MESH}");
        let config = load(&text, &variables).expect("good");
        assert_eq!(config.name, "17");
        let listeners: Vec<_> = config.listeners.iter().map(|one| (port(one), one.allow_anonymous, one.max_connections)).collect();
        assert_eq!(listeners, [(5, None, Some(9)), (1883, Some(true), None)]);
        assert_eq!(config.limits.max_queued_bytes, 5 << 20);
        let Mesh { peers, lanes, discovery, name, costs, .. } = config.mesh.expect("a mesh");
        assert_eq!(costs.into_iter().collect::<Vec<_>>(), [("mec-2".to_owned(), 10)]);
        assert_eq!((peers.len(), lanes, discovery, name.as_str()), (2, 2, vec![Discovery::Static], "m"));
    }

    #[test]
    fn errors_of_the_environment_name_the_variable() {
        for (variable, value, expected) in [
            (
                "MQTT_ST_QUIC__MESH__LANES",
                "99",
                "MQTT_ST_QUIC__MESH__LANES = \"99\": invalid value: integer `99`, expected a number from 1 to 16",
            ),
            (
                "MQTT_ST_QUIC__MESH__LANES",
                "x",
                "MQTT_ST_QUIC__MESH__LANES = \"x\": invalid type: string \"x\", expected a number from 1 to 16",
            ),
            ("MQTT_ST_QUIC__MESH__LANE", "1", "unknown field `lane`"),
            ("MQTT_ST_QUIC__MESH__LANE", "1", "did you mean `lanes`?"),
            ("MQTT_ST_QUIC__MESH", "1", "MQTT_ST_QUIC__MESH = \"1\": invalid type"),
            ("MQTT_ST_QUIC__MESH__DISCOVERY", "static,foo", "unknown variant `foo`"),
            ("MQTT_ST_QUIC__LISTENER__2__BIND", "127.0.0.1:1", "there are 0 `listener` tables; the next is number 0"),
            ("MQTT_ST_QUIC__LISTENER__0", "x", "names no key"),
            ("MQTT_ST_QUIC__", "x", "unknown field ``"),
            ("MQTT_ST_QUIC__ADMIN__BIND", "0.0.0.0:1", "MQTT_ST_QUIC__ADMIN__BIND: admin.bind: 0.0.0.0:1 is not a loopback"),
        ] {
            let shown = refused("", &[(variable, value)]);
            assert!(shown.contains(expected), "{variable}={value}\n   gives {shown}\nexpected {expected}");
        }
    }
}

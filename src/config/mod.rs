//! Typed configuration: what an operator may say, what it means when nothing is said.
//!
//! * [`Config`] and its tables are plain data. Their `Default` is the documented default of every key.
//! * Reading files and the environment is the shell's (`cli`): this module is handed text and gives a [`Config`] or an error that names
//!   the place and the remedy.
//! * Keys carry Mosquitto's names where Mosquitto has the thing. A key that has no effect does not exist; an unknown key is an error.
//!
//! Specification: `README.md`, "Configuration"; `deploy/broker.toml` has every key with its default, and a test holds it to them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits;

mod auth;
mod bounds;
mod bridge;
mod changes;
mod error;
mod import;
mod listener;
mod load;
mod rules;
mod units;

pub use auth::{Asking, Auth, AuthBackend, AuthHttp, AuthJwt, AuthSql, HttpFormat, WithoutRules, is_this_machine};
pub use bounds::{Limits, QueueDrop};
pub use bridge::{Bridge, BridgeDirection, BridgeTls, BridgeTopic, BridgeVersion};
pub use error::{ConfigError, Place};
pub use import::{Files, ImportError, Imported, Remark, import};
pub use listener::{Bind, Network, Protocol, ProxyProtocol, Tls};
pub use load::{ENVIRONMENT_PREFIX, Override, Sources};
pub use units::{HostPort, parse_duration};

/// The port of MQTT over TCP.
pub const MQTT_PORT: u16 = 1883;
/// The UDP port of the mesh.
pub const MESH_PORT: u16 = 7883;
/// The port of [`Admin`].
pub const ADMIN_PORT: u16 = 9883;
/// The port of [`Health`].
pub const HEALTH_PORT: u16 = 9884;

/// Everything that one broker is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The broker's name, unique in its mesh. Empty until the shell has put the host name there.
    pub name: String,
    /// The one directory in which the broker writes.
    pub data_dir: PathBuf,
    /// Seconds between two looks at what `$SYS/broker` shows; 0: nothing is shown there.
    #[serde(deserialize_with = "units::sys_interval")]
    pub sys_interval: u16,
    /// Which member of a shared subscription gets a message.
    pub shared_subscription_strategy: SharedStrategy,
    /// What an MQTT 5 client that asks for Response Information is told, `%c` being its client id (MQTT 5.0 section 3.2.2.3.15). `None`: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_information: Option<String>,
    /// Where MQTT 5 clients are sent when this broker stops (MQTT 5.0 section 4.11): HOST:PORT, several with spaces between. `None`: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_reference: Option<String>,
    /// Where clients connect; never empty in a loaded configuration.
    #[serde(rename = "listener")]
    pub listeners: Vec<Listener>,
    /// The mesh; `None`: nothing listens, dials or announces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// Foreign brokers, and what goes to them and comes from them.
    #[serde(rename = "bridge")]
    pub bridges: Vec<Bridge>,
    /// Who may come in and what clients may do, where a listener says nothing else.
    pub auth: Auth,
    /// What outlives a restart.
    pub persistence: Persistence,
    /// Bounds for every client.
    pub limits: Limits,
    /// Probes and metrics that may be open to the network; `None`: not opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// The operator's HTTP interface.
    pub admin: Admin,
    /// What is logged, and how.
    pub log: Log,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: String::new(),
            data_dir: PathBuf::from("data"),
            sys_interval: 10,
            shared_subscription_strategy: SharedStrategy::default(),
            response_information: None,
            server_reference: None,
            listeners: Vec::new(),
            mesh: None,
            bridges: Vec::new(),
            auth: Auth::default(),
            persistence: Persistence::default(),
            limits: Limits::default(),
            health: None,
            admin: Admin::default(),
            log: Log::default(),
        }
    }
}

impl Config {
    /// What holds at a listener: what it says itself, and for the rest [`Config::auth`].
    #[must_use]
    pub fn auth_of(&self, listener: &Listener) -> Auth {
        Auth {
            allow_anonymous: listener.allow_anonymous.unwrap_or(self.auth.allow_anonymous),
            password_file: listener.password_file.clone().or_else(|| self.auth.password_file.clone()),
            acl_file: listener.acl_file.clone().or_else(|| self.auth.acl_file.clone()),
            backends: listener.backends.clone().unwrap_or_else(|| self.auth.backends.clone()),
            ..self.auth.clone()
        }
    }

    /// The file with the admin token.
    #[must_use]
    pub fn admin_token_file(&self) -> PathBuf {
        self.admin.token_file.clone().unwrap_or_else(|| self.data_dir.join("admin.token"))
    }
}

/// Which member of a shared subscription gets a message (MQTT 5.0 section 4.8.2 leaves it to the server): in each case one that is connected and
/// takes it, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedStrategy {
    /// In turn, each publisher's messages by themselves.
    #[default]
    RoundRobin,
    /// Any.
    Random,
    /// Always the same one, as long as it is there.
    Sticky,
    /// The same one for all messages of one publisher. Publishers of other brokers of the mesh count as one.
    HashClientid,
    /// The same one for all messages of one topic.
    HashTopic,
}

/// One address at which clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listener {
    /// Where.
    pub bind: Bind,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Certificates; `None`: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// The header with which proxies begin. Whoever sends none is refused, and so is whoever is not trusted.
    pub proxy_protocol: ProxyProtocol,
    /// The proxies that are believed. Never empty where [`Listener::proxy_protocol`] is on, but for unix sockets.
    pub trusted_proxies: Vec<Network>,
    /// Whether the common name of the certificate that the proxy has seen is the client's user name (`PP2_SUBTYPE_SSL_CN`).
    pub proxy_identity_as_username: bool,
    /// The path at which WebSockets are opened. `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub websockets_path: Option<String>,
    /// Web pages that may open WebSockets, by their `Origin`. Empty: all, and programs that are no browsers in any case.
    pub websockets_origin: Vec<String>,
    /// Whether a client without a user name may connect here, in place of [`Auth::allow_anonymous`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_anonymous: Option<bool>,
    /// In place of [`Auth::password_file`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// In place of [`Auth::acl_file`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl_file: Option<PathBuf>,
    /// In place of [`Auth::backends`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<AuthBackend>>,
    /// Clients at this address at once, on top of [`Limits::max_connections`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::optional_count")]
    pub max_connections: Option<usize>,
    /// Largest packet in bytes that is accepted here, in place of [`Limits::max_packet_size`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::optional_packet_bytes")]
    pub max_packet_size: Option<u32>,
    /// Messages a second from each client here, in place of [`Limits::max_message_rate`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::optional_rate")]
    pub max_message_rate: Option<NonZeroU64>,
    /// Bytes a second from each client here, in place of [`Limits::max_byte_rate`].
    #[serde(skip_serializing_if = "Option::is_none", with = "units::byte_rate")]
    pub max_byte_rate: Option<NonZeroU64>,
    /// Connections a second that are accepted here, in place of [`Limits::max_connection_rate`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::optional_rate")]
    pub max_connection_rate: Option<NonZeroU64>,
    /// Messages a second from all clients here together.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "units::optional_rate")]
    pub total_message_rate: Option<NonZeroU64>,
    /// Bytes a second from all clients here together.
    #[serde(skip_serializing_if = "Option::is_none", with = "units::byte_rate")]
    pub total_byte_rate: Option<NonZeroU64>,
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), MQTT_PORT).into(),
            protocol: Protocol::Mqtt,
            tls: None,
            proxy_protocol: ProxyProtocol::Off,
            trusted_proxies: Vec::new(),
            proxy_identity_as_username: false,
            websockets_path: None,
            websockets_origin: Vec::new(),
            allow_anonymous: None,
            password_file: None,
            acl_file: None,
            backends: None,
            max_connections: None,
            max_packet_size: None,
            max_message_rate: None,
            max_byte_rate: None,
            max_connection_rate: None,
            total_message_rate: None,
            total_byte_rate: None,
        }
    }
}

impl Listener {
    /// Takes over the files that another has its certificates in, and what their names are good for. Whether TLS is spoken stays as it is.
    pub fn take_certificates_of(&mut self, other: &Self) {
        if let (Some(tls), Some(other)) = (&mut self.tls, &other.tls) {
            tls.clone_from(other);
        }
    }

    /// Takes over what another says of who may come in and what clients may do.
    pub fn take_auth_of(&mut self, other: &Self) {
        self.allow_anonymous = other.allow_anonymous;
        self.password_file.clone_from(&other.password_file);
        self.acl_file.clone_from(&other.acl_file);
    }
}

/// How this broker joins others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mesh {
    /// The mesh's name; a peer whose certificate names another stays out. Never empty in a loaded configuration.
    pub name: String,
    /// The UDP address on which peers are awaited; port 0 is any free one.
    #[serde(with = "units::socket_addr")]
    pub listen: SocketAddr,
    /// Where others are told to find this broker. Empty: they know only the address that they see.
    pub advertise: Vec<HostPort>,
    /// Brokers to dial.
    pub peers: Vec<HostPort>,
    /// How peers are found; exactly these ways are used. None: this broker dials nobody, and is found only by who knows its address.
    pub discovery: Vec<Discovery>,
    /// PEM file of the CA that signs the mesh's brokers. `None` only where the certificates come from memory (`demo`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cafile: Option<PathBuf>,
    /// PEM file of this broker's certificate. See [`Mesh::cafile`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certfile: Option<PathBuf>,
    /// PEM file of this broker's private key. See [`Mesh::cafile`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyfile: Option<PathBuf>,
    /// PEM file of revocation lists, one an authority: peers whose certificates are on them stay out. `None`: nothing is revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crlfile: Option<PathBuf>,
    /// Which messages cross the mesh.
    pub replication: ReplicationMode,
    /// When a SUBACK is sent.
    pub subscribe_ack: SubscribeAck,
    /// When PUBACK and PUBREC are sent.
    pub publish_ack: PublishAck,
    /// How many other brokers have a replica of each session of this one that outlives its connection, with persistence only, and know the wills of its clients.
    #[serde(deserialize_with = "units::session_replicas")]
    pub session_replicas: u8,
    /// How long the will of a client whose broker cannot be reached waits, beyond its delay, for the client to come to another broker.
    #[serde(with = "units::duration")]
    pub orphan_grace: Duration,
    /// Lower is likelier to become the root (802.1D-2004 17.13.7).
    pub priority: u16,
    /// What this broker can carry, as a power of two; more is likelier to become the root among equal priorities. `None`: measured from
    /// the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u8>,
    /// What a way over the link with a peer, by its name, costs in place of what is measured (802.1D-2004 17.19.20, PortPathCost).
    /// This end's part only: the peer has its own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub costs: BTreeMap<String, u32>,
    /// A link that is silent for this long says hello.
    #[serde(with = "units::duration")]
    pub hello_time: Duration,
    /// How much a link puts on its way.
    pub congestion: Congestion,
    /// The largest UDP payload in bytes that is tried on a path, and taken; what the path carries is found.
    #[serde(deserialize_with = "units::mtu")]
    pub mtu: u16,
    /// Links that this broker keeps at once.
    #[serde(deserialize_with = "units::links")]
    pub max_links: usize,
    /// A broker that was not heard of for so long is no member of the mesh any more: until then what it has told counts.
    #[serde(with = "units::duration")]
    pub member_timeout: Duration,
    /// The longest way through the mesh, in links.
    #[serde(deserialize_with = "units::hops")]
    pub hop_max: u8,
    /// Where everything that the tree is told is recorded, to be replayed by the simulator. `None`: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_stp: Option<PathBuf>,
    /// Ordered streams per QoS class on each link; the same in the whole mesh.
    #[serde(deserialize_with = "units::lanes")]
    pub lanes: u8,
    /// Bytes of QoS 1 and 2 messages, and as many of QoS 0, that are kept for links which lag or come back.
    #[serde(with = "units::bytes")]
    pub replay_log_bytes: usize,
    /// Nothing older is kept for them.
    #[serde(with = "units::duration")]
    pub replay_log_age: Duration,
    /// What becomes of QoS 1 and 2 where a living link lags by half of that.
    pub replay_log_full: ReplayLogFull,
    /// How long it is remembered that a retained message was deleted: who is away for longer may bring it back.
    #[serde(with = "units::duration")]
    pub tombstone_age: Duration,
    /// How long subscribers wait for a message that was left out on the way here and is wanted after all.
    #[serde(with = "units::duration")]
    pub pull_timeout: Duration,
    /// In place of [`Mesh::replication`], for some topics: the first that matches counts.
    #[serde(rename = "topic")]
    pub topics: Vec<MeshTopic>,
}

/// How messages of some topics cross the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshTopic {
    /// Of the topics; a topic filter of MQTT without a share name.
    pub filter: String,
    /// How.
    pub replication: ReplicationMode,
}

impl Default for Mesh {
    fn default() -> Self {
        Self {
            name: String::new(),
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), MESH_PORT),
            advertise: Vec::new(),
            peers: Vec::new(),
            discovery: vec![Discovery::Static, Discovery::Mdns, Discovery::Dns, Discovery::Gossip],
            cafile: None,
            certfile: None,
            keyfile: None,
            crlfile: None,
            replication: ReplicationMode::default(),
            subscribe_ack: SubscribeAck::default(),
            publish_ack: PublishAck::default(),
            session_replicas: 1,
            orphan_grace: limits::ORPHAN_GRACE_DEFAULT,
            priority: 32_768,
            capacity: None,
            costs: BTreeMap::new(),
            hello_time: Duration::from_millis(100),
            congestion: Congestion::default(),
            mtu: limits::MTU_DEFAULT,
            max_links: limits::LINKS_MAX_DEFAULT,
            member_timeout: limits::MEMBER_TIMEOUT_DEFAULT,
            hop_max: limits::HOP_MAX,
            record_stp: None,
            lanes: limits::LANES_DEFAULT,
            replay_log_bytes: limits::RING_BYTES_DEFAULT,
            replay_log_age: limits::RING_AGE_DEFAULT,
            replay_log_full: ReplayLogFull::default(),
            tombstone_age: limits::TOMBSTONE_AGE_DEFAULT,
            pull_timeout: limits::PULL_TIMEOUT_DEFAULT,
            topics: Vec::new(),
        }
    }
}

/// What becomes of QoS 1 and 2 where a living link lags by half of what is kept for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayLogFull {
    /// Publishers wait for their acknowledgements.
    #[default]
    Slow,
    /// Nobody waits: the oldest messages go, counted.
    Drop,
}

/// A way to find peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discovery {
    /// Each of [`Mesh::peers`] is one broker: of the addresses to which its name resolves, the first that answers.
    Static,
    /// Every address to which a name in [`Mesh::peers`] resolves is a broker of its own, looked up again and again: the way of a
    /// Kubernetes headless service. A name that begins with `_` has SRV records (RFC 2782), which name hosts and ports.
    Dns,
    /// Brokers of the same mesh on the same network announce themselves (RFC 6762, RFC 6763) and are dialled.
    Mdns,
    /// Brokers of which linked brokers tell are dialled; [`Mesh::peers`] are where it begins.
    Gossip,
}

/// Which messages cross the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplicationMode {
    /// A message goes to the brokers that have a subscription for it, and to all if it is retained.
    #[default]
    Interest,
    /// Every message goes to every broker.
    Full,
}

/// When a SUBACK is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubscribeAck {
    /// When this broker knows of the subscription.
    #[default]
    Local,
    /// When all brokers that can be reached know of it.
    Mesh,
}

/// When the acknowledgement of a client's message of QoS 1 or 2 is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublishAck {
    /// When this broker has it, on its disk where there is one.
    #[default]
    Local,
    /// When all members of the mesh have given it to those who are to get it there, on their disks where there are such.
    Mesh,
}

/// How much a link puts on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// Until packets are lost (RFC 9438).
    #[default]
    Cubic,
    /// As much as the path was found to carry in a round trip, whatever it loses (draft-cardwell-iccrg-bbr-congestion-control-00).
    Bbr,
}

/// What outlives a restart: sessions that outlive their connection, with what waits in them, and retained messages. Nothing is ever written for
/// any other session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Persistence {
    /// Whether anything does.
    pub enabled: bool,
    /// When what is acknowledged is on the disk.
    pub sync: SyncMode,
}

impl Default for Persistence {
    fn default() -> Self {
        Self { enabled: true, sync: SyncMode::Batch }
    }
}

/// When what is acknowledged is on the disk. In the system's memory it is in any case: a process that is killed loses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// Before it is acknowledged; what comes at the same time goes together.
    #[default]
    Batch,
    /// A second later: a machine that loses its power loses so much.
    Interval,
    /// When the system sees fit.
    Os,
}

/// `/healthz`, `/readyz` and `/metrics`, and nothing else: safe to open to probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Address and port; port 0 is any free one.
    #[serde(with = "units::socket_addr")]
    pub bind: SocketAddr,
}

impl Default for Health {
    fn default() -> Self {
        Self { bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), HEALTH_PORT) }
    }
}

/// The operator's HTTP interface. Loopback only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address and port; port 0 is any free one. `None`: loopback and [`ADMIN_PORT`], and no error if that port is taken.
    #[serde(skip_serializing_if = "Option::is_none", with = "units::optional_socket_addr")]
    pub bind: Option<SocketAddr>,
    /// The file with the token. `None`: `admin.token` in [`Config::data_dir`], made at the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

/// What is logged to stderr, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A `tracing` filter: `info`, or `info,mqtt_st_quic::stp=debug`.
    pub filter: String,
    /// How a line looks.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { filter: "info".to_owned(), format: LogFormat::Text }
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../deploy/broker.toml");

    fn load(text: &str) -> Config {
        Sources { file: Some(("deploy/broker.toml", text)), default_name: "host", ..Sources::default() }
            .load()
            .expect("the sample is good")
    }

    /// The sample with its keys uncommented; those that are explained as an example only where asked for.
    fn uncommented(with_examples: bool) -> String {
        let mut text = String::new();
        let (mut is_example, mut is_after_key) = (false, false);
        for line in SAMPLE.lines() {
            let key =
                line.strip_prefix('#').filter(|key| key.starts_with(|first: char| first.is_ascii_lowercase() || first == '['));
            let Some(key) = key else {
                is_example = (is_example && !is_after_key) || line.contains("(Example");
                is_after_key = false;
                continue;
            };
            is_after_key = true;
            if with_examples || !is_example {
                text = text + key + "\n";
            }
        }
        text
    }

    #[test]
    fn the_sample_as_it_is_means_nothing_at_all() {
        assert_eq!(load(SAMPLE), Sources { default_name: "host", ..Sources::default() }.load().expect("the defaults"));
    }

    #[test]
    fn the_sample_has_every_default() {
        let text = uncommented(false);
        let shown: Config = toml::from_str(&text).expect("the sample is good");
        let tables = Config {
            listeners: vec![Listener::default()],
            mesh: Some(Mesh::default()),
            bridges: vec![Bridge::default()],
            health: Some(Health::default()),
            auth: Auth {
                sql: Some(AuthSql::default()),
                http: Some(AuthHttp::default()),
                jwt: Some(AuthJwt::default()),
                ..Auth::default()
            },
            admin: Admin { bind: Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ADMIN_PORT)), token_file: None },
            ..Config::default()
        };
        assert_eq!(shown, tables);
        // Equal is not enough, for a key that is left out has its default too.
        let keys = |text: &str| {
            let pairs = text.lines().filter_map(|line| line.split_once(" = "));
            pairs.filter(|(_, value)| !matches!(*value, "\"\"" | "[]")).map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
        };
        let (mut said, mut known) = (keys(&text), keys(&toml::to_string(&tables).expect("serializable")));
        said.sort();
        known.sort();
        assert_eq!(said, known);
    }

    #[test]
    fn the_sample_has_every_key() {
        let everything = load(&uncommented(true));
        let mesh = everything.mesh.expect("a mesh");
        assert!(
            mesh.capacity.is_some()
                && mesh.cafile.is_some()
                && mesh.certfile.is_some()
                && mesh.keyfile.is_some()
                && mesh.crlfile.is_some()
        );
        assert!(!mesh.costs.is_empty());
        assert!(!mesh.name.is_empty() && !mesh.peers.is_empty() && !mesh.advertise.is_empty());
        let listener = everything.listeners.first().expect("a listener");
        assert!(listener.max_connections.is_some() && listener.max_packet_size.is_some());
        let tls = listener.tls.as_ref().expect("TLS");
        assert!(tls.certfile.is_some() && tls.keyfile.is_some() && tls.cafile.is_some() && tls.crlfile.is_some());
        let second = everything.listeners.get(1).expect("a second listener");
        assert!(second.websockets_path.is_some() && !second.websockets_origin.is_empty());
        assert!(listener.max_message_rate.is_some() && listener.max_byte_rate.is_some() && listener.max_connection_rate.is_some());
        assert!(listener.total_message_rate.is_some() && listener.total_byte_rate.is_some());
        let limits = &everything.limits;
        assert!(limits.max_message_rate.is_some() && limits.max_byte_rate.is_some() && limits.max_connection_rate.is_some());
        assert!(limits.max_keepalive.is_some() && limits.memory_limit.is_some() && everything.admin.token_file.is_some());
        assert!(listener.allow_anonymous.is_some() && listener.password_file.is_some() && listener.acl_file.is_some());
        assert!(listener.backends.is_some());
        assert!(everything.auth.password_file.is_some() && everything.auth.acl_file.is_some());
        let sql = everything.auth.sql.expect("a database");
        assert!(sql.dsn_file.is_some() && sql.user_query.is_some() && sql.acl_query.is_some() && sql.superuser_query.is_some());
        let http = everything.auth.http.expect("a service");
        assert!(http.user_url.is_some() && http.superuser_url.is_some() && http.acl_url.is_some() && http.cafile.is_some());
        assert!(http.token_file.is_some());
        let jwt = everything.auth.jwt.expect("tokens");
        assert!(jwt.key_file.is_some() && jwt.secret_file.is_some() && jwt.issuer.is_some() && jwt.audience.is_some());
        let bridge = everything.bridges.first().expect("a bridge");
        assert!(bridge.remote_clientid.is_some() && bridge.remote_username.is_some() && bridge.local_clientid.is_some());
        assert!(bridge.remote_password_file.is_some() && bridge.notification_topic.is_some() && bridge.max_packet_size.is_some());
        let tls = bridge.tls.as_ref().expect("TLS");
        assert!(tls.cafile.is_some() && tls.certfile.is_some() && tls.keyfile.is_some());
        assert_ne!(everything.name, "host");
    }

    #[test]
    fn the_kubernetes_configuration_is_good_in_a_pod() {
        let overrides = Override::from_environment(
            [("NAME", "mqtt-st-quic-0"), ("MESH__CERTFILE", "/certs/c.pem"), ("MESH__KEYFILE", "/certs/c.key")]
                .map(|(name, value)| (format!("{ENVIRONMENT_PREFIX}{name}"), value.to_owned()))
                .into_iter(),
        );
        let text = include_str!("../../deploy/kubernetes/broker.toml");
        let manifest = include_str!("../../deploy/kubernetes/statefulset.yaml");
        for one in &overrides {
            assert!(manifest.contains(&format!("- name: {}\n", one.origin)), "{}", one.origin);
        }
        let sources = Sources { file: Some(("broker.toml", text)), overrides, default_name: "host", ..Sources::default() };
        assert_eq!(sources.load().expect("good").name, "mqtt-st-quic-0");
    }
}

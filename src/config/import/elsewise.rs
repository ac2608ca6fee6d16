//! The variables of Mosquitto that have no key here: those that say what is so here in any case, and those whose wish cannot be had.

use super::lines::Line;
use super::{Import, ImportError, Scope};

/// What becomes of such a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Elsewise {
    /// Not needed.
    Needless(&'static str),
    /// Not to be had.
    Missing(&'static str),
    /// A truth value that is this one here.
    Always(bool, &'static str),
    /// A number of which 0 is as here.
    Zero(&'static str),
    /// Not to be had, and clients would come in without it that it kept out, at whichever listener.
    Refused(&'static str),
}

/// Where it may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Anywhere, or below a `listener`.
    Broker,
    /// Below a `connection`.
    Connection,
    /// Below a plug-in.
    Plugin,
}

use Elsewise::{Always, Missing, Needless, Refused, Zero};
use Place::{Broker, Connection, Plugin};

const CIPHERS: &str =
    "which ciphers are used is the TLS library's business: those of TLS 1.3, and of TLS 1.2 those with forward secrecy";
const LAZY: &str = "a bridge connects when the broker starts, and stays connected";
const SESSIONS: &str = "a bridge has one session there and one here, both kept or both clean";

/// Each variable with its place and what becomes of it.
pub(super) const ELSEWISE: &[(&str, Place, Elsewise)] = &[
    ("allow_duplicate_messages", Broker, Needless("a client gets one copy of a message, however many of its subscriptions match")),
    ("allow_zero_length_clientid", Broker, Always(true, "a client without an id is given one, as MQTT has it")),
    ("auth_plugin_deny_special_chars", Plugin, Always(true, "names with wildcards fill no pattern, whatever is set")),
    ("auto_id_prefix", Broker, Missing("ids that the broker gives have a form of their own")),
    ("autosave_interval", Broker, Needless("every change is written as it comes; persistence.sync says when it is on the disk")),
    ("autosave_on_changes", Broker, Needless("every change is written as it comes; persistence.sync says when it is on the disk")),
    ("check_retain_source", Broker, Always(true, "a retained message whose publisher has lost the right to it goes")),
    ("ciphers", Broker, Missing(CIPHERS)),
    ("ciphers_tls1.3", Broker, Missing(CIPHERS)),
    (
        "clientid_prefixes",
        Broker,
        Refused(
            "keeps clients out, and here any client id may be used; see that users are asked for (password_file), then take the line away",
        ),
    ),
    ("connection_messages", Broker, Always(false, "the log has no line for each client; /metrics and $SYS count them")),
    ("dhparamfile", Broker, Missing("key exchange is by elliptic curves only")),
    ("disable_client_cert_date_checks", Broker, Always(false, "a certificate that has expired is not good")),
    ("enable_control_api", Broker, Always(false, "there is no $CONTROL")),
    ("http_dir", Broker, Missing("no files are served")),
    ("listener_auto_id_prefix", Broker, Missing("ids that the broker gives have a form of their own")),
    ("log_facility", Broker, Missing("the log goes to stderr")),
    ("log_timestamp", Broker, Always(true, "each line of the log has its time")),
    ("log_timestamp_format", Broker, Missing("times in the log are RFC 3339")),
    ("message_size_limit", Broker, Zero("only whole packets are bounded: limits.max_packet_size; who sends more is closed")),
    ("packet_buffer_size", Broker, Needless("buffers grow with what is in them")),
    ("persistence_file", Broker, Needless("data_dir has files of its own")),
    (
        "persistent_client_expiration",
        Broker,
        Missing("sessions of MQTT 3.1 and 3.1.1 are kept until their clients end them; MQTT 5 clients say for how long"),
    ),
    ("pid_file", Broker, Missing("no pid file is written; systemd and containers need none")),
    ("psk_file", Broker, Missing("there is no TLS by pre-shared key")),
    ("retain_available", Broker, Always(true, "retained messages are supported")),
    (
        "retain_expiry_interval",
        Broker,
        Missing("retained messages expire if their publishers say so (MQTT 5 Message Expiry Interval)"),
    ),
    ("retry_interval", Broker, Needless("messages are repeated when a client comes back, and at no other time [MQTT-4.4.0-1]")),
    ("set_tcp_nodelay", Broker, Always(true, "TCP_NODELAY is always set: what belongs together is written at once")),
    ("tls_engine_kpass_sha1", Broker, Missing("keys in engines are not read")),
    ("upgrade_outgoing_qos", Broker, Always(false, "the QoS of a message is never raised")),
    ("user", Broker, Missing("the broker runs as whoever starts it; start it as that user (systemd: User=)")),
    ("websockets_headers_size", Broker, Needless("the request that opens a WebSocket may have 16 KiB")),
    ("websockets_log_level", Broker, Missing("set log.filter instead")),
    ("bridge_alpn", Connection, Missing("a bridge offers no application protocol in TLS")),
    ("bridge_bind_address", Connection, Missing("the system chooses the address from which a bridge connects")),
    ("bridge_ciphers", Connection, Missing(CIPHERS)),
    ("bridge_ciphers_tls1.3", Connection, Missing(CIPHERS)),
    ("bridge_max_topic_alias", Connection, Missing("a bridge uses no topic aliases")),
    ("bridge_receive_maximum", Connection, Missing("a bridge takes as many messages at once as limits.max_inflight_messages says")),
    ("bridge_reload_type", Connection, Needless("a bridge whose table has changed connects anew at once")),
    ("bridge_require_ocsp", Connection, Always(false, "whether the foreign broker's certificate is revoked is not asked for")),
    ("bridge_session_expiry_interval", Connection, Missing("the session there is kept for ever, or with cleansession not at all")),
    ("bridge_tcp_keepalive", Connection, Missing("keepalive_interval notices a dead connection")),
    ("bridge_tcp_user_timeout", Connection, Missing("keepalive_interval notices a dead connection")),
    ("idle_timeout", Connection, Missing(LAZY)),
    ("threshold", Connection, Missing(LAZY)),
    (
        "local_username",
        Connection,
        Missing("the bridge's session here is the broker's own: no rules judge it, and what crosses is what its `topic` lines say"),
    ),
    ("local_password", Connection, Missing("the bridge's session here is the broker's own: it needs no password")),
    ("local_cleansession", Connection, Missing(SESSIONS)),
];

/// The variables that have a meaning here, for who has mistyped one.
pub(super) const KNOWN: &[&str] = &[
    "accept_protocol_versions",
    "acl_file",
    "address",
    "addresses",
    "allow_anonymous",
    "auth_plugin",
    "bind_address",
    "bind_interface",
    "bridge_attempt_unsubscribe",
    "bridge_cafile",
    "bridge_capath",
    "bridge_certfile",
    "bridge_identity",
    "bridge_insecure",
    "bridge_keyfile",
    "bridge_max_packet_size",
    "bridge_outgoing_retain",
    "bridge_protocol_version",
    "bridge_psk",
    "bridge_tls_use_os_certs",
    "bridge_tls_version",
    "cafile",
    "capath",
    "certfile",
    "cleansession",
    "clientid",
    "connection",
    "crlfile",
    "enable_proxy_protocol",
    "global_max_clients",
    "global_max_connections",
    "global_plugin",
    "include_dir",
    "keepalive_interval",
    "keyfile",
    "listener",
    "listener_allow_anonymous",
    "local_clientid",
    "log_dest",
    "log_type",
    "max_connections",
    "max_inflight_bytes",
    "max_inflight_messages",
    "max_keepalive",
    "max_packet_size",
    "max_qos",
    "max_queued_bytes",
    "max_queued_messages",
    "max_topic_alias",
    "max_topic_alias_broker",
    "memory_limit",
    "mount_point",
    "notification_topic",
    "notifications",
    "notifications_local_only",
    "password",
    "password_file",
    "per_listener_settings",
    "persistence",
    "persistence_location",
    "plugin",
    "plugin_load",
    "plugin_use",
    "port",
    "protocol",
    "proxy_protocol_v2_require_tls",
    "psk_hint",
    "queue_qos0_messages",
    "remote_clientid",
    "remote_password",
    "remote_username",
    "require_certificate",
    "restart_timeout",
    "retained_persistence",
    "round_robin",
    "socket_domain",
    "start_type",
    "sys_interval",
    "tls_engine",
    "tls_keyform",
    "tls_version",
    "topic",
    "try_private",
    "use_identity_as_username",
    "use_subject_as_username",
    "use_username_as_clientid",
    "username",
    "websockets_origin",
];

impl Import<'_> {
    /// Lines that have no key here.
    pub(super) fn elsewise(&mut self, line: &Line, scope: &Scope) -> Result<bool, ImportError> {
        let Some((_, place, what)) = ELSEWISE.iter().find(|(key, ..)| *key == line.key) else { return Ok(false) };
        match place {
            Connection if scope.connection.is_none() => return Err(line.wrong(super::bridges::NO_CONNECTION)),
            Plugin if !scope.has_plugin => return Err(line.wrong("stands before any plug-in; move it below its auth_plugin")),
            _ => {}
        }
        match what {
            Needless(reason) => self.note(line, reason),
            Missing(reason) => self.leave_out(line, reason),
            Always(here, reason) if line.boolean()? == *here => self.note(line, reason),
            Always(_, reason) => self.leave_out(line, reason),
            Zero(reason) if line.integer()? > 0 => self.leave_out(line, reason),
            Zero(_) => self.note(line, "0 is no bound, as here"),
            Refused(reason) => return Err(line.wrong(reason)),
        }
        Ok(true)
    }
}

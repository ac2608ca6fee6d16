//! What the lines of a `connection` come to.

use toml::{Table, Value};

use super::lines::{Line, excerpt};
use super::text::Section;
use super::{Import, ImportError, Scope, TABLES_MAX};
use crate::config::BridgeTopic;

/// Of a line that needs one.
pub(super) const NO_CONNECTION: &str = "stands before any `connection`; move it below the one that it is about";
/// As long as names may be here, bytes.
const NAME_BYTES_MAX: usize = 63;
/// Where Debian and its like keep the authorities that the system trusts.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A bridge.
#[derive(Debug)]
pub(super) struct Connection {
    line: Line,
    section: Section,
    topics: Vec<Value>,
    tls: Table,
    /// Why it is left out as a whole.
    shut: Option<(Line, &'static str)>,
}

impl Import<'_> {
    /// Lines that are about a bridge.
    pub(super) fn of_connection(&mut self, line: &Line, scope: &mut Scope) -> Result<bool, ImportError> {
        if line.key == "connection" {
            if self.connections.len() >= TABLES_MAX {
                return Err(line.wrong(&format!("there are more than {TABLES_MAX} connections")));
            }
            let connection = self.begin_connection(line)?;
            self.connections.push(connection);
            scope.connection = Some(self.connections.len() - 1);
            return Ok(true);
        }
        let Some(setting) = Setting::of(&line.key) else { return Ok(false) };
        let Some(index) = scope.connection else { return Err(line.wrong(NO_CONNECTION)) };
        let mut remarks = Vec::new();
        if let Some(connection) = self.connections.get_mut(index) {
            connection.take(line, setting, &mut remarks)?;
        }
        for (is_left_out, reason) in remarks {
            self.say(&line.origin, &line.key, &reason, is_left_out);
        }
        Ok(true)
    }

    fn begin_connection(&mut self, line: &Line) -> Result<Connection, ImportError> {
        let said = line.word()?;
        let good = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        let mut name: String = said.chars().map(|letter| if good(letter) { letter } else { '-' }).take(NAME_BYTES_MAX).collect();
        if name.starts_with(['-', '.']) {
            name.replace_range(..1, "_");
        }
        if name != said {
            let reason = format!(
                "its name here is `{name}`, for names have letters, digits, `-`, `_` and `.` only; unless remote_clientid is set, its client id there has it, too"
            );
            self.note(line, &reason);
        }
        let mut section = Section::at(Some(&line.origin));
        section.set("name", name.into(), &line.origin);
        // What nobody has said is Mosquitto's word for what is spoken, not ours: the foreign broker may know nothing else.
        section.set("protocol_version", "mqttv311".into(), &line.origin);
        Ok(Connection { line: line.clone(), section, topics: Vec::new(), tls: Table::new(), shut: None })
    }

    /// The `[[bridge]]` tables.
    pub(super) fn bridge_tables(&mut self) -> Result<Vec<Section>, ImportError> {
        let mut tables = Vec::new();
        for mut connection in std::mem::take(&mut self.connections) {
            if let Some((line, reason)) = &connection.shut {
                self.leave_out(line, reason);
                let reason = format!("the whole bridge, because of {}", line.origin);
                self.leave_out(&connection.line, &reason);
                continue;
            }
            if !connection.topics.is_empty() {
                connection.section.set("topic", connection.topics.into(), &connection.line.origin);
            }
            if connection.tls.contains_key("cafile") {
                connection.section.set("tls", connection.tls.into(), &connection.line.origin);
            } else if !connection.tls.is_empty() {
                // Mosquitto speaks TLS only where it knows whom to believe.
                self.note(&connection.line, "it has no bridge_cafile: TLS is not spoken, and bridge_certfile, bridge_keyfile and bridge_insecure have no effect");
            }
            tables.push(connection.section);
        }
        Ok(tables)
    }
}

/// What a variable of a connection is here.
#[derive(Clone, Copy, Debug)]
enum Setting {
    Addresses,
    Topic,
    Version,
    StartType,
    RestartTimeout,
    TlsVersion,
    MaxPacketSize,
    CaPath,
    SystemAuthorities,
    PreSharedKey,
    Boolean(&'static str),
    Integer(&'static str),
    Text(&'static str),
    /// Of `tls`.
    TlsText(&'static str),
    TlsBoolean(&'static str),
}

impl Setting {
    fn of(key: &str) -> Option<Self> {
        let setting = match key {
            "address" | "addresses" => Self::Addresses,
            "topic" => Self::Topic,
            "bridge_protocol_version" => Self::Version,
            "start_type" => Self::StartType,
            "restart_timeout" => Self::RestartTimeout,
            "bridge_tls_version" => Self::TlsVersion,
            "bridge_max_packet_size" => Self::MaxPacketSize,
            "bridge_capath" => Self::CaPath,
            "bridge_tls_use_os_certs" => Self::SystemAuthorities,
            "bridge_identity" | "bridge_psk" => Self::PreSharedKey,
            "bridge_attempt_unsubscribe" => Self::Boolean("attempt_unsubscribe"),
            "bridge_outgoing_retain" => Self::Boolean("outgoing_retain"),
            "cleansession" => Self::Boolean("cleansession"),
            "notifications" => Self::Boolean("notifications"),
            "notifications_local_only" => Self::Boolean("notifications_local_only"),
            "round_robin" => Self::Boolean("round_robin"),
            "try_private" => Self::Boolean("try_private"),
            "keepalive_interval" => Self::Integer("keepalive_interval"),
            "local_clientid" => Self::Text("local_clientid"),
            "notification_topic" => Self::Text("notification_topic"),
            "remote_clientid" | "clientid" => Self::Text("remote_clientid"),
            "remote_username" | "username" => Self::Text("remote_username"),
            "remote_password" | "password" => Self::Text("remote_password"),
            "bridge_cafile" => Self::TlsText("cafile"),
            "bridge_certfile" => Self::TlsText("certfile"),
            "bridge_keyfile" => Self::TlsText("keyfile"),
            "bridge_insecure" => Self::TlsBoolean("insecure"),
            _ => return None,
        };
        Some(setting)
    }
}

impl Connection {
    fn take(&mut self, line: &Line, setting: Setting, remarks: &mut Vec<(bool, String)>) -> Result<(), ImportError> {
        let path = |key: &str| format!("bridge.0.{key}");
        let mut left_out = |reason: &str| remarks.push((true, reason.to_owned()));
        match setting {
            Setting::Boolean(key) => line.put(&mut self.section, &path(key), line.boolean()?.into())?,
            Setting::Integer(key) => line.put(&mut self.section, &path(key), line.integer()?.into())?,
            Setting::Text(key) => {
                line.put(&mut self.section, &path(key), line.text()?.into())?;
                if key == "remote_password" {
                    remarks.push((false, "better in a file of its own, named by remote_password_file".to_owned()));
                }
            }
            Setting::TlsText(key) => {
                self.tls.insert(key.to_owned(), line.text()?.into());
            }
            Setting::TlsBoolean(key) => {
                self.tls.insert(key.to_owned(), line.boolean()?.into());
            }
            Setting::Addresses => line.put(&mut self.section, &path("addresses"), addresses(line)?)?,
            Setting::Topic => match topic(line)? {
                Some(topic) => self.topics.push(topic.to_string().into()),
                None => left_out("topics with a space in them cannot be written in `topic`"),
            },
            Setting::Version => match line.word()? {
                version @ ("mqttv311" | "mqttv50") => line.put(&mut self.section, &path("protocol_version"), version.into())?,
                "mqttv31" => left_out("MQTT 3.1 is not spoken by bridges; MQTT 3.1.1 is"),
                _ => return Err(line.wrong("is none of mqttv31, mqttv311 and mqttv50")),
            },
            Setting::StartType => match line.word()? {
                "automatic" => {}
                "lazy" | "once" => left_out("a bridge connects when the broker starts, and again whenever the connection is lost"),
                _ => return Err(line.wrong("is none of automatic, lazy and once")),
            },
            Setting::RestartTimeout => {
                let seconds = restart_timeout(line)?;
                line.put(&mut self.section, &path("restart_timeout"), format!("{seconds}s").into())?;
            }
            Setting::TlsVersion => match line.text()? {
                "tlsv1.2" | "tlsv1.3" => remarks.push((false, "TLS 1.2 and 1.3 are spoken, the newest that both know".to_owned())),
                "tlsv1.1" => left_out("TLS 1.2 and 1.3 are spoken"),
                _ => return Err(line.wrong("is none of tlsv1.1, tlsv1.2 and tlsv1.3")),
            },
            Setting::MaxPacketSize => {
                if line.integer()? > 0 {
                    line.put(&mut self.section, &path("max_packet_size"), line.integer()?.into())?;
                }
            }
            Setting::CaPath => {
                line.text()?;
                let reason =
                    "directories of authorities are not read; write their certificates into one file, and name it as bridge_cafile";
                self.shut = Some((line.clone(), reason));
            }
            Setting::SystemAuthorities => {
                if line.boolean()? {
                    self.tls.insert("cafile".to_owned(), SYSTEM_AUTHORITIES.into());
                    remarks.push((false, format!("{SYSTEM_AUTHORITIES} is believed; see that it is there")));
                }
            }
            Setting::PreSharedKey => {
                line.text()?;
                self.shut = Some((line.clone(), "there is no TLS by pre-shared key here; use certificates"));
            }
        }
        Ok(())
    }
}

/// `HOST[:PORT] ...`, of IPv6 addresses as Mosquitto writes them: the port stands behind the last colon.
fn addresses(line: &Line) -> Result<Value, ImportError> {
    let words = line.words().take_while(|word| !word.starts_with('#'));
    let written = words.map(|word| match word.rsplit_once(':') {
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        _ => word.to_owned(),
    });
    let all: Vec<Value> = written.map(Value::from).collect();
    if all.is_empty() { Err(line.wrong("has no address; write HOST:PORT")) } else { Ok(all.into()) }
}

/// None of one that cannot be written here.
fn topic(line: &Line) -> Result<Option<BridgeTopic>, ImportError> {
    line.text()?;
    let mut words = line.words();
    let pattern = words.next().unwrap_or_default();
    if pattern.starts_with('"') && pattern != "\"\"" {
        return Ok(None);
    }
    let mut text = pattern.to_owned();
    for word in words.take_while(|word| !word.starts_with('#')) {
        let is_direction = ["in", "out", "both"].iter().any(|direction| word.eq_ignore_ascii_case(direction));
        text.push(' ');
        text.push_str(&if is_direction { word.to_ascii_lowercase() } else { word.to_owned() });
    }
    text.parse().map(Some).map_err(|problem: String| line.wrong(&problem))
}

/// The longest wait: the second number, or the only one.
fn restart_timeout(line: &Line) -> Result<i64, ImportError> {
    line.text()?;
    let numbers: Option<Vec<i64>> = line.words().take(2).map(|word| word.parse().ok()).collect();
    match numbers.as_deref() {
        Some([only]) => Ok((*only).clamp(1, 3_600)),
        Some([base, cap]) if cap >= base => Ok((*cap).clamp(1, 7_200)),
        Some([..]) => Err(line.wrong("its second number, the longest wait, is below the first")),
        None => Err(line.wrong(&format!("`{}` is no number of seconds", excerpt(line.text()?)))),
    }
}

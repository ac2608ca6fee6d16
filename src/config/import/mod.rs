//! From Mosquitto's configuration to ours: each line of a `mosquitto.conf` is translated, or named with its place and the reason.
//!
//! | file | duty |
//! |---|---|
//! | `lines` | files, lines and their values, within bounds |
//! | `listeners` | what a listener's lines come to |
//! | `bridges` | what a connection's lines come to |
//! | `plugins` | plug-ins that ask a database |
//! | `elsewise` | the keys that have no key here, and why |
//! | `text` | the tables, as they are written |
//!
//! Invariants:
//! * **What is left out never lets anybody in, or at a topic, whom the file kept out.** A listener whose protection cannot be had here (pre-shared keys, a mount point, client ids that
//!   are user names) is left out whole; where a plug-in decided who may do what, nobody comes in until somebody has said who may; what kept clients out everywhere stops the import.
//! * What is given is a configuration that [`Sources::load`](super::Sources::load) takes. Of what nobody has said our defaults hold, but for what crosses a network: a listener
//!   and a bridge do what Mosquitto's do.
//! * No file, no clock: [`Files`] are the caller's.
//!
//! Specification: mosquitto.conf(5) of 2.0, and the keys that 2.1 has added.

mod bridges;
mod elsewise;
mod lines;
mod listeners;
mod plugins;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use toml::Value;

use self::bridges::Connection;
use self::lines::{Line, Origin};
use self::listeners::{Listener, Security};
use self::text::Section;
use super::error::suggestion;
use super::{ConfigError, Sources};

/// Files that one `include_dir` may have.
const FILES_MAX: usize = 1_000;
/// Listeners, and connections, in all files.
const TABLES_MAX: usize = 1_000;
/// "No limit" of messages: more than any machine holds.
const MESSAGES_UNLIMITED: i64 = 1 << 31;
/// "No limit" of bytes, likewise.
const BYTES_UNLIMITED: i64 = 1 << 40;
/// "No limit" of messages in flight: as many as there are packet identifiers.
const INFLIGHT_UNLIMITED: i64 = 65_535;

/// The files that a `mosquitto.conf` is made of.
pub trait Files {
    /// The whole file.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn read(&self, path: &Path) -> Result<Vec<u8>, String>;

    /// Everything in a directory.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>, String>;

    /// Whether both are names of one file.
    fn is_same(&self, a: &Path, b: &Path) -> bool;
}

/// Why nothing was imported.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImportError {
    /// A file that cannot be read.
    #[error("{from}cannot read {}: {problem}", .path.display())]
    Read {
        /// The line that names it; empty for the first file.
        from: String,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A line that Mosquitto would not take either, or whose value our key cannot take.
    #[error("{place}: {problem}")]
    Line {
        /// File and line.
        place: String,
        /// What is wrong, and what to do.
        problem: String,
    },
}

/// What a `mosquitto.conf` comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The configuration, as TOML.
    pub toml: String,
    /// The lines of which there is something to say, in their order.
    pub remarks: Vec<Remark>,
    /// Lines that say something, in all files.
    pub lines: usize,
}

impl Imported {
    /// Lines that could not be carried over.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.remarks.iter().filter(|remark| remark.is_left_out).count()
    }
}

/// What there is to say of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    origin: Origin,
    key: String,
    reason: String,
    /// Whether what it asked for is not to be had: else it is so here in any case, or only said otherwise.
    pub is_left_out: bool,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_left_out { "left out" } else { "note" };
        write!(f, "{}: {}: {what}: {}", self.origin, self.key, self.reason)
    }
}

/// Imports the file `main` and what it includes.
///
/// # Errors
/// See [`ImportError`]: the first thing that is wrong.
pub fn import(main: &Path, files: &dyn Files) -> Result<Imported, ImportError> {
    let mut import = Import::new(files);
    import.file(main, None)?;
    import.finish(main)
}

/// What the lines of one file refer to.
#[derive(Clone, Copy, Debug, Default)]
struct Scope {
    /// 0: the default listener.
    listener: usize,
    connection: Option<usize>,
    has_plugin: bool,
    is_included: bool,
}

struct Import<'a> {
    files: &'a dyn Files,
    main: PathBuf,
    lines: usize,
    remarks: Vec<Remark>,
    /// Of the whole file.
    top: Section,
    limits: Section,
    persistence: Section,
    log_types: BTreeSet<LogType>,
    log_dest_none: Option<Origin>,
    log_type_origin: Option<Origin>,
    per_listener: bool,
    security: Security,
    /// `[auth.sql]`.
    sql: Section,
    /// `[auth.http]`.
    http: Section,
    /// `[auth.jwt]`.
    jwt: Section,
    /// The first plug-in of all listeners.
    plugin_of_all: Option<Line>,
    /// The first is the default one, of what is said before any `listener`.
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
}

/// What is logged, from the least on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LogType {
    Error,
    Warning,
    Information,
    Debug,
}

impl<'a> Import<'a> {
    fn new(files: &'a dyn Files) -> Self {
        Self {
            files,
            main: PathBuf::new(),
            lines: 0,
            remarks: Vec::new(),
            top: Section::default(),
            limits: Section::default(),
            persistence: Section::default(),
            log_types: BTreeSet::new(),
            log_dest_none: None,
            log_type_origin: None,
            per_listener: false,
            security: Security::default(),
            sql: Section::default(),
            http: Section::default(),
            jwt: Section::default(),
            plugin_of_all: None,
            listeners: vec![Listener::default()],
            connections: Vec::new(),
        }
    }

    fn file(&mut self, path: &Path, from: Option<&Line>) -> Result<(), ImportError> {
        let read = |problem| {
            let from = from.map(|line| format!("{}: ", line.origin)).unwrap_or_default();
            ImportError::Read { from, path: path.to_owned(), problem }
        };
        let bytes = self.files.read(path).map_err(read)?;
        if from.is_none() {
            path.clone_into(&mut self.main);
        }
        let name: Arc<str> = path.display().to_string().into();
        let mut scope = Scope { is_included: from.is_some(), ..Scope::default() };
        for line in lines::parse(&name, &bytes) {
            let line = line?;
            self.lines += 1;
            self.line(&line, &mut scope)?;
        }
        Ok(())
    }

    fn line(&mut self, line: &Line, scope: &mut Scope) -> Result<(), ImportError> {
        let is_taken = self.global(line, scope)?
            || self.of_listener(line, scope)?
            || self.of_security(line, scope)?
            || self.of_connection(line, scope)?
            || self.elsewise(line, scope)?;
        if is_taken { Ok(()) } else { Err(line.wrong(&unknown(&line.key))) }
    }

    /// Says that a line is not carried over.
    fn leave_out(&mut self, line: &Line, reason: &str) {
        self.say(&line.origin, &line.key, reason, true);
    }

    /// Says something of a line that is carried over, or need not be.
    fn note(&mut self, line: &Line, reason: &str) {
        self.say(&line.origin, &line.key, reason, false);
    }

    fn say(&mut self, origin: &Origin, key: &str, reason: &str, is_left_out: bool) {
        self.remarks.push(Remark { origin: origin.clone(), key: key.to_owned(), reason: reason.to_owned(), is_left_out });
    }

    /// Lines that are about the whole broker, and have a key here.
    fn global(&mut self, line: &Line, scope: &mut Scope) -> Result<bool, ImportError> {
        match line.key.as_str() {
            "include_dir" => self.include(line, scope)?,
            "per_listener_settings" => {
                let is_said = self.security.is_said() || self.listeners.iter().any(|listener| listener.security.is_said());
                self.per_listener |= line.boolean()?;
                if self.per_listener && is_said {
                    return Err(line.wrong("must stand above all settings of users, rules and plug-ins; move it to the top"));
                }
            }
            "persistence" | "retained_persistence" => {
                let is_on = line.boolean()?;
                line.put(&mut self.persistence, "persistence.enabled", Value::Boolean(is_on))?;
                if is_on && line.key == "persistence" {
                    self.note(line, "what is in mosquitto.db is not taken over: sessions and retained messages begin anew");
                }
            }
            "persistence_location" => line.put(&mut self.top, "data_dir", line.text()?.into())?,
            "max_inflight_bytes" => self.limit(line, Some(BYTES_UNLIMITED))?,
            "max_inflight_messages" => self.limit(line, Some(INFLIGHT_UNLIMITED))?,
            "max_keepalive" | "max_packet_size" | "memory_limit" => self.limit(line, None)?,
            "max_queued_bytes" => self.limit(line, Some(BYTES_UNLIMITED))?,
            "max_queued_messages" => self.limit(line, Some(MESSAGES_UNLIMITED))?,
            "global_max_connections" | "global_max_clients" => {
                if line.integer()? > 0 {
                    line.put(&mut self.limits, "limits.max_connections", line.integer()?.into())?;
                }
            }
            "queue_qos0_messages" => {
                line.put(&mut self.limits, "limits.queue_qos0_messages", line.boolean()?.into())?;
            }
            "sys_interval" => line.put(&mut self.top, "sys_interval", line.integer()?.into())?,
            "log_dest" => self.log_dest(line)?,
            "log_type" => self.log_type(line)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A bound of `[limits]` by the same name; none there is `unlimited` here, or nothing where ours is that by itself.
    fn limit(&mut self, line: &Line, unlimited: Option<i64>) -> Result<(), ImportError> {
        let key = format!("limits.{}", line.key);
        match (line.integer()?, unlimited) {
            (1.., _) => line.put(&mut self.limits, &key, line.integer()?.into()),
            (_, Some(unlimited)) => {
                self.note(line, "there is always a bound here; this is a very large one, and limits.memory_limit holds beside it");
                line.put(&mut self.limits, &key, unlimited.into())
            }
            (_, None) => {
                let reason = format!("the default of limits.{} holds; deploy/broker.toml has it", line.key);
                self.note(line, &reason);
                Ok(())
            }
        }
    }

    fn include(&mut self, line: &Line, scope: &Scope) -> Result<(), ImportError> {
        if scope.is_included {
            return Err(line.wrong("stands in a file that is itself included; only the main file may have one"));
        }
        let dir = PathBuf::from(line.text()?);
        let read = |problem| ImportError::Read { from: format!("{}: ", line.origin), path: dir.clone(), problem };
        let mut names = self.files.list(&dir).map_err(read)?;
        names.retain(|path| path.to_string_lossy().ends_with(".conf") && path.file_stem().is_some());
        if names.len() > FILES_MAX {
            return Err(line.wrong(&format!("has {} files that end with .conf; {FILES_MAX} may be", names.len())));
        }
        names.sort_by_cached_key(|path| order(path));
        for path in names {
            if self.files.is_same(&path, &self.main) {
                return Err(line.wrong("has the main file in it, which would include itself; move either"));
            }
            self.file(&path, Some(line))?;
        }
        Ok(())
    }

    fn log_dest(&mut self, line: &Line) -> Result<(), ImportError> {
        // Of `none` and others what is said last counts.
        self.log_dest_none = None;
        match line.word()? {
            "stderr" => self.note(line, "the log goes to stderr in any case"),
            "none" => self.log_dest_none = Some(line.origin.clone()),
            "stdout" | "syslog" | "topic" | "file" | "dlt" | "android" => self
                .leave_out(line, "the log goes to stderr; a service manager or a shell takes it from there (systemd: the journal)"),
            _ => return Err(line.wrong("is none of stderr, stdout, syslog, topic, file, dlt and none")),
        }
        Ok(())
    }

    fn log_type(&mut self, line: &Line) -> Result<(), ImportError> {
        let of_all = [LogType::Error, LogType::Warning, LogType::Information, LogType::Debug];
        match line.word()? {
            "error" => self.log_types.extend([LogType::Error]),
            "warning" => self.log_types.extend([LogType::Warning]),
            "notice" | "information" => self.log_types.extend([LogType::Information]),
            "debug" => self.log_types.extend([LogType::Debug]),
            "all" => self.log_types.extend(of_all),
            "none" => self.log_types.clear(),
            "subscribe" | "unsubscribe" | "websockets" | "internal" => {
                self.leave_out(line, "the log has no such lines; log.filter takes levels, and modules with levels");
                return Ok(());
            }
            _ => {
                return Err(line.wrong(
                    "is none of error, warning, notice, information, debug, subscribe, unsubscribe, websockets, all and none",
                ));
            }
        }
        self.log_type_origin = Some(line.origin.clone());
        Ok(())
    }

    fn log(&self) -> Section {
        let mut log = Section::default();
        let level = match self.log_types.last() {
            None => "off",
            Some(LogType::Error) => "error",
            Some(LogType::Warning) => "warn",
            Some(LogType::Information) => "info",
            Some(LogType::Debug) => "debug",
        };
        if let Some(origin) = &self.log_dest_none {
            log.set("filter", "off".into(), origin);
        } else if let Some(origin) = &self.log_type_origin {
            log.set("filter", level.into(), origin);
        }
        log
    }

    /// Makes the tables, and tries whether they are good together.
    fn finish(mut self, main: &Path) -> Result<Imported, ImportError> {
        let log = self.log();
        let auth = self.auth()?;
        let listeners = self.listener_tables(main, &auth)?;
        let bridges = self.bridge_tables()?;
        let mut toml = format!(
            "# Imported from {}. `mqtt-st-quic config check` says whether a broker can start with it.\n",
            main.display().to_string().escape_debug()
        );
        self.top.write("", &mut toml);
        for listener in &listeners {
            listener.write("[[listener]]", &mut toml);
        }
        for (head, section) in [
            ("[auth]", &auth),
            ("[auth.sql]", &self.sql),
            ("[auth.http]", &self.http),
            ("[auth.jwt]", &self.jwt),
            ("[persistence]", &self.persistence),
            ("[limits]", &self.limits),
            ("[log]", &log),
        ] {
            if !section.is_empty() {
                section.write(head, &mut toml);
            }
        }
        for bridge in &bridges {
            bridge.write("[[bridge]]", &mut toml);
        }
        let tables = Tables { import: &self, auth: &auth, log: &log, listeners: &listeners, bridges: &bridges };
        let name = main.display().to_string();
        Sources { file: Some((&name, &toml)), default_name: "host", ..Sources::default() }
            .load()
            .map_err(|error| tables.explain(&name, &error))?;
        Ok(Imported { toml, remarks: self.remarks, lines: self.lines })
    }
}

/// Whence each key came.
struct Tables<'a, 'b> {
    import: &'a Import<'b>,
    auth: &'a Section,
    log: &'a Section,
    listeners: &'a [Section],
    bridges: &'a [Section],
}

impl Tables<'_, '_> {
    /// What is wrong, at the line that said it.
    fn explain(&self, name: &str, error: &ConfigError) -> ImportError {
        let (key, problem) = match error {
            ConfigError::Rule { key, problem, .. } => (key.clone(), problem.clone()),
            // Each value has been tried by itself.
            other => (String::new(), other.to_string()),
        };
        let origin = self.origin_of(&key);
        let place = origin.map_or_else(|| name.to_owned(), ToString::to_string);
        ImportError::Line { place, problem: if key.is_empty() { problem } else { format!("{key}: {problem}") } }
    }

    fn origin_of(&self, key: &str) -> Option<&Origin> {
        let mut parts = key.split('.');
        let (table, next) = (parts.next()?, parts.next());
        let index = || next.and_then(|index| index.parse::<usize>().ok());
        match table {
            "listener" => self.listeners.get(index()?)?.origin_of(parts.next().unwrap_or_default()),
            "bridge" => self.bridges.get(index()?)?.origin_of(parts.next().unwrap_or_default()),
            "auth" if next == Some("sql") => self.import.sql.origin_of(parts.next().unwrap_or_default()),
            "auth" if next == Some("http") => self.import.http.origin_of(parts.next().unwrap_or_default()),
            "auth" if next == Some("jwt") => self.import.jwt.origin_of(parts.next().unwrap_or_default()),
            "auth" => self.auth.origin_of(next?),
            "limits" => self.import.limits.origin_of(next?),
            "persistence" => self.import.persistence.origin_of(next?),
            "log" => self.log.origin_of(next?),
            top => self.import.top.origin_of(top),
        }
    }
}

/// Mosquitto's: letters without regard to their case first, then the upper one before the lower.
fn order(path: &Path) -> Vec<(u8, u8)> {
    path.to_string_lossy().bytes().map(|byte| (byte.to_ascii_uppercase(), byte)).collect()
}

fn unknown(key: &str) -> String {
    let known = elsewise::KNOWN.iter().chain(elsewise::ELSEWISE.iter().map(|(key, ..)| key));
    let message = known.fold(format!("unknown field `{}`", lines::excerpt(key)), |message, known| format!("{message} `{known}`"));
    let remedy = suggestion(&message).unwrap_or_else(|| "see mosquitto.conf(5); take the line away, or mend it".to_owned());
    format!("is no variable of Mosquitto's; {remedy}")
}

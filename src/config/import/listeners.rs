//! What the lines of a listener come to, and who may do what there.

use std::net::IpAddr;
use std::path::Path;

use toml::{Table, Value};

use super::lines::{Line, Origin};
use super::plugins;
use super::text::Section;
use super::{Import, ImportError, Scope, TABLES_MAX};
use crate::config::MQTT_PORT;
use crate::limits::TOPIC_ALIAS_MAX;

/// Of user names from certificates.
const CLOSED_TO_CERTIFICATES: &str = "without the plug-in who shows a certificate would be let do everything";

/// A listener, or what is said before any.
#[derive(Debug)]
pub(super) struct Listener {
    /// The line that begins it, or the first that is about the default one.
    origin: Option<Line>,
    port: u16,
    host: Option<String>,
    domain: Option<(Domain, Line)>,
    /// Whether port or address were said.
    is_placed: bool,
    /// Bound to the interface `lo`, whatever address was said.
    is_on_loopback: bool,
    /// What has a key of its own here.
    section: Section,
    tls: TlsLines,
    proxy: Option<(i64, Line)>,
    proxy_requires_tls: Option<Line>,
    username_as_clientid: Option<Line>,
    pub(super) security: Security,
    /// Why it is left out as a whole; see [`Listener::shut`].
    shut: Option<(Line, &'static str)>,
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            origin: None,
            port: MQTT_PORT,
            host: None,
            domain: None,
            is_placed: false,
            is_on_loopback: false,
            section: Section::default(),
            tls: TlsLines::default(),
            proxy: None,
            proxy_requires_tls: None,
            username_as_clientid: None,
            security: Security::default(),
            shut: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Domain {
    V4,
    V6,
}

#[derive(Debug, Default)]
struct TlsLines {
    certfile: Option<Line>,
    keyfile: Option<Line>,
    cafile: Option<Line>,
    capath: Option<Line>,
    crlfile: Option<Line>,
    require_certificate: Option<Line>,
    by_identity: Option<Line>,
    by_subject: Option<Line>,
}

/// Who comes in, and what he may do: of all listeners, or of one.
#[derive(Debug, Default)]
pub(super) struct Security {
    allow_anonymous: Option<Line>,
    password_file: Option<Line>,
    acl_file: Option<Line>,
    /// Plug-ins and their options.
    plugins: Vec<Line>,
}

impl Security {
    pub(super) fn is_said(&self) -> bool {
        self.allow_anonymous.is_some() || self.password_file.is_some() || self.acl_file.is_some() || !self.plugins.is_empty()
    }
}

impl Import<'_> {
    /// Lines that are about a listener.
    pub(super) fn of_listener(&mut self, line: &Line, scope: &mut Scope) -> Result<bool, ImportError> {
        match line.key.as_str() {
            "listener" => {
                self.begin_listener(line, scope)?;
                return Ok(true);
            }
            "max_topic_alias" | "max_topic_alias_broker" => {
                self.topic_aliases(line)?;
                return Ok(true);
            }
            "max_qos" | "maximum_qos" => {
                if line.between(0, 2)? < 2 {
                    self.leave_out(line, "clients may use every QoS here");
                }
                return Ok(true);
            }
            "accept_protocol_versions" => {
                let versions = line.text()?;
                if !["3", "4", "5"].iter().all(|version| versions.contains(version)) {
                    self.leave_out(line, "clients may speak MQTT 3.1, 3.1.1 and 5.0 here");
                }
                return Ok(true);
            }
            "tls_version" => {
                match line.text()? {
                    "tlsv1.2" => self.note(line, "TLS 1.2 and 1.3 are spoken in any case"),
                    "tlsv1.3" | "tlsv1.1" => self.leave_out(line, "TLS 1.2 and 1.3 are spoken, whatever is set"),
                    _ => return Err(line.wrong("is none of tlsv1.1, tlsv1.2 and tlsv1.3")),
                }
                return Ok(true);
            }
            "port" | "bind_address" if scope.listener > 0 => {
                return Err(line.wrong(
                    "is about the default listener, and stands below another one; write it, with what else is about that, above the first `listener`",
                ));
            }
            _ => {}
        }
        let is_taken = self.listener(scope)?.line(line)?;
        if is_taken {
            self.listener(scope)?.origin.get_or_insert_with(|| line.clone());
        }
        Ok(is_taken)
    }

    fn listener(&mut self, scope: &Scope) -> Result<&mut Listener, ImportError> {
        // Scopes name only listeners that there are.
        let place = self.main.display().to_string();
        let missing = || ImportError::Line { place, problem: "has no listener".to_owned() };
        self.listeners.get_mut(scope.listener).ok_or_else(missing)
    }

    fn begin_listener(&mut self, line: &Line, scope: &mut Scope) -> Result<(), ImportError> {
        if self.listeners.len() > TABLES_MAX {
            return Err(line.wrong(&format!("there are more than {TABLES_MAX} listeners")));
        }
        let port = line.between(0, 65_535)?;
        let host = line.words().nth(1).filter(|word| !word.starts_with('#')).map(str::to_owned);
        if port == 0 && host.is_none() {
            return Err(line.wrong("has port 0, and so needs the path of a unix socket"));
        }
        let origin = Some(line.clone());
        let port = u16::try_from(port).unwrap_or_default();
        self.listeners.push(Listener { origin, port, host, is_placed: true, ..Listener::default() });
        scope.listener = self.listeners.len() - 1;
        Ok(())
    }

    /// One bound for all listeners.
    fn topic_aliases(&mut self, line: &Line) -> Result<(), ImportError> {
        let most = line.between(0, 65_535)?;
        let value = Value::Integer(most.min(TOPIC_ALIAS_MAX.into()));
        if most > TOPIC_ALIAS_MAX.into() {
            self.note(line, "at most 4096 may be had here");
        }
        match self.limits.value(&line.key) {
            Some((known, _)) if *known != value => {
                let reason = format!("there is one bound for all listeners, limits.{}, and another one was said above", line.key);
                self.leave_out(line, &reason);
                Ok(())
            }
            _ => line.put(&mut self.limits, &format!("limits.{}", line.key), value),
        }
    }

    /// Lines that say who comes in and what he may do.
    pub(super) fn of_security(&mut self, line: &Line, scope: &mut Scope) -> Result<bool, ImportError> {
        let (key, at) = (line.key.as_str(), *scope);
        let is_option = key.starts_with("auth_opt_") || key.starts_with("plugin_opt_");
        match key {
            "allow_anonymous" | "listener_allow_anonymous" => {
                line.boolean()?;
                // Mosquitto 2.1's word for one listener.
                let is_of_one = key == "listener_allow_anonymous";
                let security = if is_of_one { &mut self.listener(&at)?.security } else { self.security(&at)? };
                security.allow_anonymous = Some(line.clone());
            }
            "password_file" => {
                line.text()?;
                self.security(&at)?.password_file = Some(line.clone());
            }
            "acl_file" => {
                line.text()?;
                self.security(&at)?.acl_file = Some(line.clone());
            }
            "global_plugin" => {
                line.text()?;
                self.security.plugins.push(line.clone());
                scope.has_plugin = true;
            }
            "plugin" | "auth_plugin" | "plugin_load" | "plugin_use" => {
                line.text()?;
                self.security(&at)?.plugins.push(line.clone());
                scope.has_plugin = true;
            }
            _ if is_option => {
                line.text()?;
                if !scope.has_plugin {
                    return Err(line.wrong("stands before any plug-in; move it below its auth_plugin"));
                }
                self.security(&at)?.plugins.push(line.clone());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn security(&mut self, scope: &Scope) -> Result<&mut Security, ImportError> {
        if self.per_listener { Ok(&mut self.listener(scope)?.security) } else { Ok(&mut self.security) }
    }

    /// `[auth]`.
    pub(super) fn auth(&mut self) -> Result<Section, ImportError> {
        let mut security = std::mem::take(&mut self.security);
        let (mut section, mut why) = (Section::default(), "a password_file or an acl_file stands beside it".to_owned());
        if !security.plugins.is_empty() && security.password_file.is_none() && security.acl_file.is_none() {
            match plugins::translate(&security.plugins)? {
                Ok(translated) => {
                    for (line, is_left_out, reason) in &translated.remarks {
                        self.say(&line.origin, &line.key, reason, *is_left_out);
                    }
                    (section, self.sql) = (translated.auth, translated.sql);
                    (self.http, self.jwt) = (translated.http, translated.jwt);
                    // What anonymous clients did was judged by the plug-in, too; here nothing would judge it.
                    let mut plugins = std::mem::take(&mut security.plugins).into_iter();
                    if let Some(line) = security.allow_anonymous.take()
                        && line.boolean()?
                    {
                        let reason = "the plug-in judged anonymous clients, too, and here they would be free to do everything; \
                                      say in an acl_file what they may do before you let them in";
                        self.leave_out(&line, reason);
                    }
                    if let Some(plugin) = plugins.next() {
                        section.set("allow_anonymous", false.into(), &plugin.origin);
                    }
                }
                Err(reason) => why = reason,
            }
        }
        self.plugin_of_all = security.plugins.first().cloned();
        let rights = self.rights(&security, "auth", &why)?;
        section.extend(&rights);
        Ok(section)
    }

    /// What a table says of who comes in. Where a plug-in decided, nobody does.
    fn rights(&mut self, security: &Security, table: &str, why: &str) -> Result<Section, ImportError> {
        let mut section = Section::default();
        let of_all = self.plugin_of_all.clone().filter(|_| security.is_said());
        if let Some(plugin) = security.plugins.first().cloned().or(of_all) {
            for line in &security.plugins {
                let reason = format!(
                    "the plug-in is not carried over, for {why}; until you say in [auth] who may come in and do what, nobody comes in"
                );
                self.leave_out(line, &reason);
            }
            for line in security.password_file.iter().chain(&security.acl_file).chain(&security.allow_anonymous) {
                let is_closed = line.key.contains("anonymous") && !line.boolean()?;
                if !is_closed {
                    let reason = format!("without the plug-in of {} it would let clients do more than before", plugin.origin);
                    self.leave_out(line, &reason);
                }
            }
            section.set("allow_anonymous", false.into(), &plugin.origin);
            return Ok(section);
        }
        if let Some(line) = &security.allow_anonymous {
            section.set("allow_anonymous", line.boolean()?.into(), &line.origin);
        }
        for line in security.password_file.iter().chain(&security.acl_file) {
            line.put(&mut section, &format!("{table}.{}", line.key), line.text()?.into())?;
        }
        Ok(section)
    }

    /// The `[[listener]]` tables.
    pub(super) fn listener_tables(&mut self, main: &Path, auth: &Section) -> Result<Vec<Section>, ImportError> {
        let mut all = std::mem::take(&mut self.listeners);
        // Mosquitto, too, opens the default one only where it is said, or where there is no other.
        let has_others = all.len() > 1;
        if has_others && all.first().is_some_and(|first| first.origin.is_none()) {
            let default = all.remove(0);
            if default.security.is_said() {
                let lines =
                    default.security.plugins.iter().chain(&default.security.password_file).chain(&default.security.acl_file);
                let lines: Vec<&Line> = lines.chain(&default.security.allow_anonymous).collect();
                for line in lines {
                    self.leave_out(line, "it is about the default listener, which is not opened; write it below a `listener`");
                }
            }
        }
        let is_local = !all.iter().any(|listener| listener.is_placed);
        let lets_all_in = is_local && auth.value("allow_anonymous").is_none();
        let mut tables = Vec::new();
        for listener in all {
            if let Some((line, reason)) = &listener.shut(auth, is_local)? {
                self.leave_out(line, reason);
                if let Some(first) = listener.origin.as_ref().filter(|first| first.origin != line.origin) {
                    let reason = format!("the whole listener, because of {}", line.origin);
                    self.leave_out(first, &reason);
                }
                continue;
            }
            tables.push(self.listener_table(&listener, is_local, lets_all_in)?);
        }
        if tables.is_empty() {
            let problem =
                "no listener is left that could be carried over: see mosquitto.conf(5), `listener`, for what protects one here \
                           (certificates, users), and give it that"
                    .to_owned();
            let why = self.remarks.last().map(|remark| format!("{remark}; ")).unwrap_or_default();
            return Err(ImportError::Line { place: main.display().to_string(), problem: format!("{why}{problem}") });
        }
        Ok(tables)
    }

    fn listener_table(&mut self, listener: &Listener, is_local: bool, lets_all_in: bool) -> Result<Section, ImportError> {
        let origin = listener.origin.as_ref().map(|line| &line.origin);
        let mut table = Section::at(origin);
        let nowhere = Origin { file: "".into(), line: 0 };
        let at = origin.unwrap_or(&nowhere);
        table.set("bind", self.bind(listener, is_local)?.into(), at);
        table.extend(&listener.section);
        if let Some(tls) = self.tls(listener)? {
            table.set("tls", tls.into(), at);
        }
        if let Some((version, line)) = &listener.proxy {
            let is_unix = listener.port == 0;
            table.set("proxy_protocol", format!("v{version}").into(), &line.origin);
            if !is_unix {
                table.set("trusted_proxies", vec!["0.0.0.0/0", "::/0"].into(), &line.origin);
                self.note(line, "Mosquitto believes every proxy, and so does this; name yours in trusted_proxies");
            }
            match &listener.tls.by_identity {
                Some(by_identity) if self.is_closed(listener) => self.leave_out(by_identity, CLOSED_TO_CERTIFICATES),
                Some(_) if *version == 2 => table.set("proxy_identity_as_username", true.into(), &line.origin),
                Some(by_identity) if listener.tls.certfile.is_none() => {
                    self.note(by_identity, "has no effect: a PROXY header of version 1 says nothing of certificates");
                }
                _ => {}
            }
            if let Some(by_subject) = listener.tls.by_subject.as_ref().filter(|_| *version == 2) {
                return Err(by_subject.wrong("cannot be had with enable_proxy_protocol 2; use_identity_as_username can"));
            }
        }
        if let Some(line) = &listener.proxy_requires_tls {
            self.note(line, "has no effect without enable_proxy_protocol 2");
        }
        let rights = self.rights(&listener.security, "listener.0", "it is of one listener")?;
        table.extend(&rights);
        // With nothing said Mosquitto lets anonymous clients of this machine in.
        if lets_all_in && rights.value("allow_anonymous").is_none() {
            table.set("allow_anonymous", true.into(), at);
        }
        Ok(table)
    }

    /// Whether a plug-in that is not carried over decided who comes in there.
    fn is_closed(&self, listener: &Listener) -> bool {
        self.plugin_of_all.is_some() || !listener.security.plugins.is_empty()
    }

    fn bind(&self, listener: &Listener, is_local: bool) -> Result<String, ImportError> {
        let port = listener.port;
        let Some(line) = &listener.origin else { return Ok(format!("127.0.0.1:{port}")) };
        match (&listener.host, &listener.domain) {
            (Some(path), _) if port == 0 => Ok(format!("unix:{path}")),
            _ if listener.is_on_loopback => Ok(format!("127.0.0.1:{port}")),
            (Some(host), _) if host == "localhost" => Ok(format!("127.0.0.1:{port}")),
            (Some(host), _) => match host.parse::<IpAddr>() {
                Ok(IpAddr::V4(address)) => Ok(format!("{address}:{port}")),
                Ok(IpAddr::V6(address)) => Ok(format!("[{address}]:{port}")),
                Err(_) => Err(line.wrong(&format!(
                    "its address `{}` is a name; listeners are bound to IP addresses here: write that",
                    super::lines::excerpt(host)
                ))),
            },
            (None, _) if is_local => Ok(format!("127.0.0.1:{port}")),
            (None, Some((Domain::V4, _))) => Ok(format!("0.0.0.0:{port}")),
            (None, _) => Ok(format!("[::]:{port}")),
        }
    }

    fn tls(&mut self, listener: &Listener) -> Result<Option<Table>, ImportError> {
        let lines = &listener.tls;
        let by_name = lines.by_identity.as_ref().or(lines.by_subject.as_ref());
        let (certfile, keyfile) = match (&lines.certfile, &lines.keyfile) {
            (Some(certfile), Some(keyfile)) => (certfile, keyfile),
            (Some(one), None) | (None, Some(one)) => return Err(one.wrong("TLS needs certfile and keyfile; write both, or none")),
            (None, None) => {
                if let Some(line) = lines.cafile.as_ref().or(lines.capath.as_ref()) {
                    return Err(line.wrong("is of no use without certfile and keyfile; write these, too, or take it away"));
                }
                let is_required = lines.requires()?;
                if let Some(line) = by_name.filter(|_| is_required && listener.proxy.is_none()) {
                    return Err(line.wrong("needs certfile and keyfile; write these, too, or take it away"));
                }
                let without_proxy = by_name.into_iter().chain(&lines.require_certificate).filter(|_| listener.proxy.is_none());
                for line in without_proxy.chain(&lines.crlfile) {
                    self.note(line, "has no effect: the listener has no certificates");
                }
                return Ok(None);
            }
        };
        let mut tls = Table::new();
        tls.insert("certfile".to_owned(), certfile.text()?.into());
        tls.insert("keyfile".to_owned(), keyfile.text()?.into());
        if !lines.requires()? {
            for line in lines.cafile.iter().chain(&lines.capath).chain(&lines.crlfile) {
                self.note(line, "not needed: clients are not asked for certificates without require_certificate");
            }
            return Ok(Some(tls));
        }
        tls.insert("require_certificate".to_owned(), true.into());
        for line in lines.cafile.iter().chain(&lines.crlfile) {
            tls.insert(line.key.clone(), line.text()?.into());
        }
        if let Some(line) = by_name {
            if self.is_closed(listener) {
                self.leave_out(line, CLOSED_TO_CERTIFICATES);
            } else {
                tls.insert(line.key.clone(), true.into());
            }
        }
        Ok(Some(tls))
    }
}

impl Listener {
    /// Why it is left out as a whole: something kept clients out that is not to be had here. `auth` is of all listeners.
    fn shut(&self, auth: &Section, is_local: bool) -> Result<Option<(Line, &'static str)>, ImportError> {
        let because = |line: &Line, reason| Ok(Some((line.clone(), reason)));
        if let Some(shut) = &self.shut {
            return Ok(Some(shut.clone()));
        }
        if let Some(line) = &self.username_as_clientid {
            return because(
                line,
                "client ids stay what clients say, so that one could be any other's: ask for users (password_file), write %u for %c in acl_file, and take the line away",
            );
        }
        if let Some(line) = self.proxy_requires_tls.as_ref().filter(|_| matches!(self.proxy, Some((2, _)))) {
            return because(
                line,
                "whether a client came by TLS is not looked at here: see that the proxy takes no others, and take the line away",
            );
        }
        if let Some((Domain::V6, line)) = self.domain.as_ref().filter(|_| self.host.is_none() && !is_local && !self.is_on_loopback)
        {
            return because(line, "IPv4 clients would come in, too: bind it to an IPv6 address of this machine");
        }
        let (tls, requires) = (&self.tls, self.tls.requires()?);
        if tls.certfile.is_none() {
            let says = |key: &str| auth.value(key).map(|(value, _)| value.as_bool() != Some(false));
            let own = self.security.allow_anonymous.as_ref().map(Line::boolean).transpose()?;
            let lets_anonymous = own.or_else(|| says("allow_anonymous")).unwrap_or(is_local);
            let lets_others = lets_anonymous || self.security.password_file.is_some() || says("password_file").is_some();
            return match &tls.require_certificate {
                Some(line) if requires && self.proxy.is_some() && lets_others => because(
                    line,
                    "clients without a certificate would come in, too: see that the proxy takes none (HAProxy: `verify required`), and take the line away",
                ),
                _ => Ok(None),
            };
        }
        if let Some(line) = tls.by_identity.as_ref().or(tls.by_subject.as_ref()).filter(|_| !requires) {
            return because(
                line,
                "lets nobody in without require_certificate: write `require_certificate true`, too, or take it away",
            );
        }
        match &tls.capath {
            Some(line) if requires && tls.cafile.is_none() => because(
                line,
                "directories of authorities are not read; write their certificates into one file, and name it as cafile",
            ),
            _ => Ok(None),
        }
    }

    /// Lines that are about this listener only, and have a meaning here.
    fn line(&mut self, line: &Line) -> Result<bool, ImportError> {
        match line.key.as_str() {
            "port" => {
                self.port = u16::try_from(line.between(1, 65_535)?).unwrap_or_default();
                self.is_placed = true;
            }
            "bind_address" => {
                self.host = Some(line.word()?.to_owned());
                self.is_placed = true;
            }
            "bind_interface" if line.word()? == "lo" => self.is_on_loopback = true,
            "bind_interface" => {
                self.shut =
                    Some((line.clone(), "listeners are bound to addresses here, not to interfaces: write the interface's address"));
            }
            "protocol" => match line.word()? {
                protocol @ ("mqtt" | "websockets") => line.put(&mut self.section, "listener.0.protocol", protocol.into())?,
                "http_api" => {
                    self.shut = Some((line.clone(), "the HTTP interface is [admin]; its paths are others"));
                }
                _ => return Err(line.wrong("is none of mqtt, websockets and http_api")),
            },
            "max_connections" => {
                if line.integer()? > 0 {
                    line.put(&mut self.section, "listener.0.max_connections", line.integer()?.into())?;
                }
            }
            "mount_point" => {
                line.text()?;
                self.shut =
                    Some((line.clone(), "there are no mount points here, and without one its clients would see all topics"));
            }
            "socket_domain" => {
                let domain = match line.word()? {
                    "ipv4" => Domain::V4,
                    "ipv6" => Domain::V6,
                    _ => return Err(line.wrong("is neither ipv4 nor ipv6")),
                };
                self.domain = Some((domain, line.clone()));
            }
            "websockets_origin" => {
                let mut all =
                    self.section.value("websockets_origin").and_then(|(value, _)| value.as_array().cloned()).unwrap_or_default();
                all.push(line.text()?.into());
                line.put(&mut self.section, "listener.0.websockets_origin", all.into())?;
            }
            "enable_proxy_protocol" => self.proxy = Some((line.between(1, 2)?, line.clone())),
            "psk_hint" => {
                self.shut = Some((
                    line.clone(),
                    "there is no TLS by pre-shared key here; give the listener certificates, or bind it to loopback",
                ));
            }
            "tls_engine" => self.shut = Some((line.clone(), "keys in engines are not read; write the key in a PEM file")),
            "tls_keyform" if line.word()? == "pem" => {}
            "tls_keyform" => self.shut = Some((line.clone(), "keys in engines are not read; write the key in a PEM file")),
            "proxy_protocol_v2_require_tls" => self.proxy_requires_tls = line.boolean()?.then(|| line.clone()),
            "use_username_as_clientid" => self.username_as_clientid = line.boolean()?.then(|| line.clone()),
            _ => return self.tls.line(line),
        }
        Ok(true)
    }
}

impl TlsLines {
    /// Whether there is nobody without a certificate.
    fn requires(&self) -> Result<bool, ImportError> {
        self.require_certificate.as_ref().map_or(Ok(false), Line::boolean)
    }

    fn line(&mut self, line: &Line) -> Result<bool, ImportError> {
        let place = match line.key.as_str() {
            "certfile" => &mut self.certfile,
            "keyfile" => &mut self.keyfile,
            "cafile" => &mut self.cafile,
            "crlfile" => &mut self.crlfile,
            "capath" => &mut self.capath,
            "require_certificate" => &mut self.require_certificate,
            "use_identity_as_username" => &mut self.by_identity,
            "use_subject_as_username" => &mut self.by_subject,
            _ => return Ok(false),
        };
        match line.key.as_str() {
            "require_certificate" => {
                line.boolean()?;
                *place = Some(line.clone());
            }
            "use_identity_as_username" | "use_subject_as_username" => *place = line.boolean()?.then(|| line.clone()),
            _ => {
                line.text()?;
                *place = Some(line.clone());
            }
        }
        Ok(true)
    }
}

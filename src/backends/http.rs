//! Users and rules of a service that is asked over HTTP (`[auth.http]`).
//!
//! It is asked by POST, as mosquitto-go-auth asks: whether there is such a user with such a password, whether he may do everything; and, unlike there, what he
//! may do, all at once. A status says what is meant: 2xx yes, 400, 401, 403 and 422 no, 404 and 410 that it does not know the user.
//!
//! Invariants:
//! - Whatever else is answered is an error, and no answer: a page of a proxy, a redirection, a status of 500. An error is never a yes.
//! - A password goes to the service and into no log.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use ureq::Agent;
use ureq::http::HeaderValue;
use ureq::http::header::AUTHORIZATION;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};

use super::rows::Rows;
use super::{BackendError, Failure, PING_MAX};
use crate::auth::{Account, Granted, Known, Shown};
use crate::clock;
use crate::config::{AuthHttp, HttpFormat, WithoutRules};

/// The longest answer, bytes.
const ANSWER_BYTES_MAX: u64 = 256 * 1_024;

/// See the module's page.
pub(super) struct Service {
    agent: Agent,
    settings: AuthHttp,
    /// What shows it who asks: the value of a header.
    authorization: Option<HeaderValue>,
}

/// What was answered.
#[derive(Debug, PartialEq)]
enum Said {
    Yes { is_superuser: Option<bool>, acl: Option<Value> },
    No,
    Unknown,
}

impl Service {
    /// Reads the certificates that `settings` name.
    pub(super) fn new(settings: AuthHttp) -> Result<Self, BackendError> {
        // Nobody else has said by what it is to be encrypted.
        let crypto = rustls::crypto::ring::default_provider();
        let mut tls = TlsConfig::builder().unversioned_rustls_crypto_provider(Arc::new(crypto));
        if let Some(path) = &settings.cafile {
            tls = tls.root_certs(RootCerts::from(authorities(path)?));
        }
        let config = Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None).tls_config(tls.build());
        let authorization = settings.token_file.as_deref().map(read_token).transpose()?;
        Ok(Self { agent: config.build().into(), settings, authorization })
    }

    /// Whether it can be asked: whatever it answers, but for what a proxy says in its place.
    pub(super) fn ping(&self) -> Result<(), Failure> {
        let url = self.settings.user_url.as_deref().unwrap_or_default();
        let mut request = self.agent.get(url).config().timeout_global(Some(self.settings.timeout.min(PING_MAX))).build();
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let response = request.call().map_err(|error| Failure::Away(error.to_string()))?;
        match response.status().as_u16() {
            status @ 502..=504 => Err(Failure::Away(format!("status {status}"))),
            _ => Ok(()),
        }
    }

    /// Asks about a user and what he has shown.
    pub(super) fn look_up(&self, name: &str, shown: &Arc<Shown>) -> Result<Known, Failure> {
        let end = clock::now() + self.settings.timeout;
        let AuthHttp { user_url, superuser_url, acl_url, .. } = &self.settings;
        let user = [("username", name), ("password", &shown.password), ("clientid", &shown.client_id)];
        let (mut is_superuser, mut acl) = match self.ask("user_url", user_url.as_deref(), &user, end)? {
            Said::Yes { is_superuser, acl } => (is_superuser == Some(true), acl),
            Said::No => return Ok(Known::Refused),
            Said::Unknown => return Ok(Known::Nobody),
        };
        if let (Some(_), false) = (superuser_url, is_superuser) {
            is_superuser = match self.ask("superuser_url", superuser_url.as_deref(), &[("username", name)], end)? {
                Said::Yes { is_superuser, acl: None } => is_superuser.unwrap_or(true),
                Said::Yes { .. } => return Err(Failure::Refused("superuser_url: an answer with rules".to_owned())),
                Said::No | Said::Unknown => false,
            };
        }
        if let (Some(_), None, false) = (acl_url, &acl, is_superuser) {
            let user = [("username", name), ("clientid", &*shown.client_id)];
            acl = match self.ask("acl_url", acl_url.as_deref(), &user, end)? {
                Said::Yes { acl: Some(acl), .. } => Some(acl),
                Said::Yes { acl: None, .. } => return Err(Failure::Refused("acl_url: the answer has no rules".to_owned())),
                // What nobody grants is denied.
                Said::No | Said::Unknown => Some(Value::Array(Vec::new())),
            };
        }
        let granted = match acl {
            _ if is_superuser => Granted::All,
            Some(acl) => {
                let rows = Rows::of_json(&acl).map_err(Failure::Refused)?;
                Granted::Rules(Arc::new(rows.rules("auth.http", name)))
            }
            None => match self.settings.without_rules {
                WithoutRules::Deny => Granted::AsFile,
                WithoutRules::Allow => Granted::AsListener,
            },
        };
        Ok(Known::Somebody(Arc::new(Account::showing(Arc::clone(shown), granted))))
    }

    fn ask(&self, key: &str, url: Option<&str>, fields: &[(&str, &str)], end: Instant) -> Result<Said, Failure> {
        let left = end.saturating_duration_since(clock::now()).max(Duration::from_millis(1));
        let mut request = self.agent.post(url.unwrap_or_default()).config().timeout_global(Some(left)).build();
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let sent = match self.settings.format {
            HttpFormat::Json => {
                let body = fields.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
                request.send_json(Value::Object(body.collect()))
            }
            HttpFormat::Form => request.send_form(fields.iter().copied()),
        };
        let mut response = sent.map_err(|error| failure(key, &error))?;
        match response.status().as_u16() {
            200..=299 => {}
            400 | 401 | 403 | 422 => return Ok(Said::No),
            404 | 410 => return Ok(Said::Unknown),
            status @ 502..=504 => return Err(Failure::Doubtful(format!("{key}: status {status}"))),
            status => {
                return Err(Failure::Refused(format!("{key}: an answer with status {status}, which says neither yes nor no")));
            }
        }
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(|error| failure(key, &error))?;
        parse(&text).ok_or_else(|| Failure::Refused(format!("{key}: an answer that is not understood")))
    }
}

fn failure(key: &str, error: &ureq::Error) -> Failure {
    match error {
        ureq::Error::BodyExceedsLimit(_) => Failure::Refused(format!("{key}: {error}")),
        error => Failure::Doubtful(format!("{key}: {error}")),
    }
}

/// What the body of an answer says whose status is a yes.
fn parse(text: &str) -> Option<Said> {
    let yes = Said::Yes { is_superuser: None, acl: None };
    match text.trim() {
        "" => return Some(yes),
        word if word.eq_ignore_ascii_case("ok") || word == "allow" => return Some(yes),
        "deny" => return Some(Said::No),
        _ => {}
    }
    match serde_json::from_str(text).ok()? {
        Value::Object(object) => of_object(object),
        acl @ Value::Array(_) => Some(Said::Yes { is_superuser: None, acl: Some(acl) }),
        _ => None,
    }
}

/// One that says nothing of what is known here is no answer: what it means is known to whoever wrote it alone.
fn of_object(mut object: Map<String, Value>) -> Option<Said> {
    let ok = object.keys().find(|key| key.eq_ignore_ascii_case("ok")).cloned();
    let is_ok = ok.and_then(|key| object.remove(&key)).map(|value| value.as_bool());
    match is_ok {
        Some(Some(false)) => return Some(Said::No),
        Some(None) => return None,
        Some(Some(true)) | None => {}
    }
    let is_superuser = match object.remove("superuser") {
        Some(value) => Some(value.as_bool()?),
        None => None,
    };
    let acl = match object.remove("acl") {
        None if ["pub", "sub", "all"].iter().any(|kind| object.contains_key(*kind)) => Some(Value::Object(object)),
        acl => acl,
    };
    (is_ok.is_some() || is_superuser.is_some() || acl.is_some()).then_some(Said::Yes { is_superuser, acl })
}

/// The first line of a file, as the service is shown it.
fn read_token(path: &Path) -> Result<HeaderValue, BackendError> {
    let key = "auth.http.token_file";
    let text = super::read_secret(key, path)?;
    let token = text.lines().next().unwrap_or_default().trim();
    let value = if token.is_empty() { None } else { HeaderValue::from_str(&format!("Bearer {token}")).ok() };
    let mut value = value.ok_or_else(|| {
        let problem = "the first line is no token; write visible letters of ASCII".to_owned();
        BackendError::Bad { key, path: path.to_owned(), problem }
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn authorities(path: &Path) -> Result<Vec<Certificate<'static>>, BackendError> {
    let key = "auth.http.cafile";
    let text = std::fs::read(path).map_err(|source| BackendError::Unreadable { key, path: path.to_owned(), source })?;
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    let all: Vec<_> = ureq::tls::parse_pem(&text).filter_map(certificate).collect();
    if all.is_empty() {
        let problem = "there is no certificate in it; write those of the authorities in PEM".to_owned();
        return Err(BackendError::Bad { key, path: path.to_owned(), problem });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_understood_is_an_answer() {
        let yes = |is_superuser, acl: Option<&str>| {
            Some(Said::Yes { is_superuser, acl: acl.map(|acl| serde_json::from_str(acl).unwrap()) })
        };
        for (text, expected) in [
            ("", yes(None, None)),
            (" OK\n", yes(None, None)),
            ("allow", yes(None, None)),
            ("deny", Some(Said::No)),
            (r#"{"ok": true, "error": ""}"#, yes(None, None)),
            (r#"{"Ok": true}"#, yes(None, None)),
            (r#"{"ok": false, "error": "wrong"}"#, Some(Said::No)),
            (r#"{"Ok": false}"#, Some(Said::No)),
            (r#"{"superuser": true}"#, yes(Some(true), None)),
            (r#"{"superuser": false}"#, yes(Some(false), None)),
            (r#"{"acl": {"pub": ["a"]}}"#, yes(None, Some(r#"{"pub": ["a"]}"#))),
            (r#"{"sub": ["a"]}"#, yes(None, Some(r#"{"sub": ["a"]}"#))),
            ("[]", yes(None, Some("[]"))),
            ("{}", None),
            (r#"{"result": "deny"}"#, None),
            (r#"{"allow": false}"#, None),
            (r#"{"error": "wrong password"}"#, None),
            (r#"{"ok": "true"}"#, None),
            (r#"{"superuser": 1}"#, None),
            ("<html>log in</html>", None),
            ("true", None),
            ("{", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}

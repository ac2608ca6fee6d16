//! `[auth]`: who may come in and what clients may do, and who is asked about it.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Config, units};

/// Who may come in and what clients may do; each listener may say otherwise for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// Whether a client without a user name may connect. Off as in Mosquitto; with no configuration at all, on.
    pub allow_anonymous: bool,
    /// File of user names and hashed passwords. `None`: nobody is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// File of rules who may publish and receive what. `None`: whoever is in may do everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl_file: Option<PathBuf>,
    /// Who is asked about a user, in this order: the first that decides wins. Empty: see [`Auth::backends_in_force`].
    pub backends: Vec<AuthBackend>,
    /// Users and rules in a database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sql: Option<AuthSql>,
    /// Users and rules of a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<AuthHttp>,
    /// Users that show signed tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<AuthJwt>,
}

/// Who can be asked about a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthBackend {
    /// [`Auth::password_file`].
    File,
    /// [`Auth::sql`].
    Sql,
    /// [`Auth::http`].
    Http,
    /// [`Auth::jwt`].
    Jwt,
    /// Certificates of clients, at listeners that take their user names from there.
    Certificate,
}

/// `[auth.sql]`: queries get the user name as a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSql {
    /// The file whose first line is the database's URL, with the password in it: `postgres://`, `mysql://` or `sqlite://`. Never `None` in a loaded configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dsn_file: Option<PathBuf>,
    /// Gives the password's hash of a user, or no row. Never `None` in a loaded configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_query: Option<String>,
    /// Gives topic filters of a user and what may be done with them. `None`: what the access file says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl_query: Option<String>,
    /// Gives a number above 0, or true, for a user who may do everything. `None`: nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub superuser_query: Option<String>,
    /// So old at most is what is known of a user who is here or comes.
    #[serde(with = "units::duration")]
    pub cache_ttl: Duration,
    /// And so old at most of one who comes while the database is away.
    #[serde(with = "units::duration")]
    pub cache_grace: Duration,
    /// Users of whom it is asked at once, each by a connection; one more is for signs of life.
    #[serde(deserialize_with = "units::count")]
    pub pool_size: usize,
    /// After this long a user's queries have failed.
    #[serde(with = "units::duration")]
    pub timeout: Duration,
}

impl Default for AuthSql {
    fn default() -> Self {
        Self {
            dsn_file: None,
            user_query: None,
            acl_query: None,
            superuser_query: None,
            cache_ttl: Duration::from_secs(60),
            cache_grace: Duration::from_secs(3_600),
            pool_size: 4,
            timeout: Duration::from_secs(5),
        }
    }
}

/// What is said of each backend that is asked: how often, and how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// So old at most is what is known of a user who is here or comes.
    pub cache_ttl: Duration,
    /// And so old at most of one who comes while it is away.
    pub cache_grace: Duration,
    /// Users of whom it is asked at once.
    pub pool_size: usize,
    /// After this long a user's questions have failed.
    pub timeout: Duration,
}

/// What a user may do of whom neither a backend nor an access file says that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutRules {
    /// Nothing: who forgets the rules opens nothing.
    #[default]
    Deny,
    /// Everything.
    Allow,
}

/// `[auth.http]`: a service that is asked by POST.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthHttp {
    /// Is asked whether there is such a user with such a password. Never `None` in a loaded configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_url: Option<String>,
    /// Is asked whether a user may do everything. `None`: nobody may, if `user_url` has not said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub superuser_url: Option<String>,
    /// Is asked for the rules of a user. `None`: what `user_url` has said, or the access file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl_url: Option<String>,
    /// In which form it is asked.
    pub format: HttpFormat,
    /// What a user may do of whom nobody says that.
    pub without_rules: WithoutRules,
    /// A file with what shows the service who asks it (`Authorization: Bearer`). `None`: nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Whether passwords may go to a service on another machine without TLS.
    pub plain_http: bool,
    /// Authorities of the service's certificate. Never `None` where it is asked over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cafile: Option<PathBuf>,
    /// So old at most is what is known of a user who is here or comes.
    #[serde(with = "units::duration")]
    pub cache_ttl: Duration,
    /// And so old at most of one who comes while the service is away.
    #[serde(with = "units::duration")]
    pub cache_grace: Duration,
    /// Users of whom it is asked at once.
    #[serde(deserialize_with = "units::count")]
    pub pool_size: usize,
    /// After this long a user's questions have failed.
    #[serde(with = "units::duration")]
    pub timeout: Duration,
}

/// In which form a service is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HttpFormat {
    /// An object in JSON.
    #[default]
    Json,
    /// As a browser sends what was filled in.
    Form,
}

impl Default for AuthHttp {
    fn default() -> Self {
        Self {
            user_url: None,
            superuser_url: None,
            acl_url: None,
            format: HttpFormat::Json,
            without_rules: WithoutRules::Deny,
            token_file: None,
            plain_http: false,
            cafile: None,
            cache_ttl: Duration::from_secs(60),
            cache_grace: Duration::from_secs(3_600),
            pool_size: 8,
            timeout: Duration::from_secs(5),
        }
    }
}

/// `[auth.jwt]`: signed tokens in the place of passwords.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthJwt {
    /// Public keys, in PEM or as a set in JSON. `None`: there is a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The file whose first line is the secret of HS256. `None`: there are keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// Whether the token stands in the place of the user name, not of the password.
    pub in_user_name: bool,
    /// The claim that has the user's name.
    pub user_claim: String,
    /// The claim that has the user's rules. A token without it, or where this is empty: what the access file says.
    pub acl_claim: String,
    /// What a user may do of whom neither a token nor the access file says that.
    pub without_rules: WithoutRules,
    /// Who must have issued a token. `None`: anybody with the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// For whom a token must be. `None`: it must not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

impl Default for AuthJwt {
    fn default() -> Self {
        Self {
            key_file: None,
            secret_file: None,
            in_user_name: false,
            user_claim: "sub".to_owned(),
            acl_claim: "acl".to_owned(),
            without_rules: WithoutRules::Deny,
            issuer: None,
            audience: None,
        }
    }
}

impl Auth {
    /// Who is asked about a user. Where nobody has said: the file, then the other tables that are there. Certificates last, and not where there is a database, which
    /// could say what their users may do.
    #[must_use]
    pub fn backends_in_force(&self) -> Vec<AuthBackend> {
        if !self.backends.is_empty() {
            return self.backends.clone();
        }
        let tables = [
            (self.jwt.is_some(), AuthBackend::Jwt),
            (self.sql.is_some(), AuthBackend::Sql),
            (self.http.is_some(), AuthBackend::Http),
        ];
        let mut backends: Vec<AuthBackend> =
            tables.into_iter().filter(|(is_there, _)| *is_there).map(|(_, backend)| backend).collect();
        if self.sql.is_none() {
            backends.push(AuthBackend::Certificate);
        }
        backends.insert(0, AuthBackend::File);
        backends
    }
}

const CACHE_TTLS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(8);
const POOL_SIZE_MAX: usize = 64;

pub(super) fn check(config: &Config) -> Result<(), (String, String)> {
    let auth = &config.auth;
    check_backends("auth.backends", auth)?;
    let mut in_force = auth.backends_in_force();
    for (index, listener) in config.listeners.iter().enumerate() {
        let here = config.auth_of(listener);
        if listener.backends.is_some() {
            check_backends(&format!("listener.{index}.backends"), &here)?;
        }
        let asked = here.backends_in_force();
        if listener.password_file.is_some() && !asked.contains(&AuthBackend::File) {
            return Err((format!("listener.{index}.password_file"), NOT_ASKED.replace("WHO", "file")));
        }
        in_force.extend(asked);
    }
    if auth.password_file.is_some() && !in_force.contains(&AuthBackend::File) {
        return Err(("auth.password_file".to_owned(), NOT_ASKED.replace("WHO", "file")));
    }
    for (name, backend, is_there) in tables(auth) {
        if is_there && !in_force.contains(&backend) {
            return Err((format!("auth.{name}"), NOT_ASKED.replace("WHO", name)));
        }
    }
    auth.sql.as_ref().map_or(Ok(()), check_sql)?;
    auth.http.as_ref().map_or(Ok(()), check_http)?;
    auth.jwt.as_ref().map_or(Ok(()), check_jwt)
}

const NOT_ASKED: &str = "is there, and no `backends` names \"WHO\"; add it there, or leave this out";

/// Those that have a table of their own.
fn tables(auth: &Auth) -> [(&'static str, AuthBackend, bool); 3] {
    [
        ("sql", AuthBackend::Sql, auth.sql.is_some()),
        ("http", AuthBackend::Http, auth.http.is_some()),
        ("jwt", AuthBackend::Jwt, auth.jwt.is_some()),
    ]
}

/// Whether all that is named is there, and in an order that can be. `key`: where it is named.
fn check_backends(key: &str, auth: &Auth) -> Result<(), (String, String)> {
    let wrong = |problem: String| Err((key.to_owned(), problem));
    for (index, backend) in auth.backends.iter().enumerate() {
        if auth.backends.iter().take(index).any(|before| before == backend) {
            return wrong("one is named twice; leave the second out".to_owned());
        }
        if let Some((name, ..)) = tables(auth).iter().find(|(_, of_table, is_there)| of_table == backend && !is_there) {
            return wrong(format!("\"{name}\" is named, and there is no [auth.{name}]; add it, or leave \"{name}\" out"));
        }
    }
    let in_force = auth.backends_in_force();
    let place = |backend| in_force.iter().position(|one| *one == backend);
    let is_before_tokens = |other| place(other).is_some_and(|at| place(AuthBackend::Jwt).is_some_and(|tokens| at < tokens));
    if auth.jwt.as_ref().is_some_and(|jwt| jwt.in_user_name)
        && (is_before_tokens(AuthBackend::Sql) || is_before_tokens(AuthBackend::Http))
    {
        let problem = "would show tokens that stand in the place of the user name to \"sql\" or \"http\"; put \"jwt\" before them";
        return wrong(problem.to_owned());
    }
    Ok(())
}

/// What those that are asked have in common.
fn check_asking(table: &str, Asking { cache_ttl, cache_grace, pool_size, timeout }: Asking) -> Result<(), (String, String)> {
    let wrong = |key: &str, problem: String| Err((format!("auth.{table}.{key}"), problem));
    if !CACHE_TTLS.contains(&cache_ttl) {
        return wrong("cache_ttl", format!("{cache_ttl:?} is out of range; it must be from 1s to 1d"));
    }
    if cache_grace < cache_ttl {
        return wrong("cache_grace", format!("{cache_grace:?} is less than cache_ttl, {cache_ttl:?}; make it as long at least"));
    }
    if !TIMEOUTS.contains(&timeout) {
        return wrong("timeout", format!("{timeout:?} is out of range; it must be from 100ms to 8s"));
    }
    if pool_size > POOL_SIZE_MAX {
        return wrong("pool_size", format!("{pool_size} is too large; at most {POOL_SIZE_MAX} at once"));
    }
    Ok(())
}

fn check_http(http: &AuthHttp) -> Result<(), (String, String)> {
    let wrong = |key: &str, problem: &str| Err((format!("auth.http.{key}"), problem.to_owned()));
    if http.user_url.is_none() {
        return wrong("user_url", "is missing; write for example \"https://auth.example/mqtt/user\"");
    }
    for (key, url) in [("user_url", &http.user_url), ("superuser_url", &http.superuser_url), ("acl_url", &http.acl_url)] {
        let Some(url) = url else { continue };
        let (is_over_tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return wrong(key, "is no URL of a service; write https://HOST/PATH or http://HOST/PATH"),
        };
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if host.is_empty() || host.contains('@') || url.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
            return wrong(
                key,
                "has no host, or something that does not belong into it; write https://HOST/PATH without a user name",
            );
        }
        if !is_over_tls && !http.plain_http && !is_this_machine(host_of(host)) {
            return wrong(
                key,
                "would send passwords to another machine in the clear, and believe whoever answers there; write https://, or plain_http = true if nobody \
                 else is on the way",
            );
        }
        if is_over_tls && http.cafile.is_none() {
            return wrong(
                "cafile",
                "is missing; name the certificates of the service's authority, or of public ones, often /etc/ssl/certs/ca-certificates.crt",
            );
        }
    }
    check_asking("http", http.asking())
}

/// Without the port and the brackets of an address.
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Whether what goes there leaves this machine by no network.
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn check_jwt(jwt: &AuthJwt) -> Result<(), (String, String)> {
    let wrong = |key: &str, problem: &str| Err((format!("auth.jwt.{key}"), problem.to_owned()));
    if jwt.key_file.is_none() && jwt.secret_file.is_none() {
        return wrong("key_file", "is missing; name a file with the public keys of whoever signs tokens, or a secret_file");
    }
    if jwt.user_claim.is_empty() {
        return wrong("user_claim", "is empty; name a claim of the tokens");
    }
    Ok(())
}

fn check_sql(sql: &AuthSql) -> Result<(), (String, String)> {
    let wrong = |key: &str, problem: String| Err((format!("auth.sql.{key}"), problem));
    if sql.dsn_file.is_none() {
        return wrong(
            "dsn_file",
            "is missing; name a file with one line, for example `postgres://mqtt:PASSWORD@db.example/mqtt`".to_owned(),
        );
    }
    if sql.user_query.is_none() {
        let problem = "is missing; write for example \"SELECT password_hash FROM users WHERE username = $1\" ($1 for PostgreSQL, ? for others)";
        return wrong("user_query", problem.to_owned());
    }
    for (key, query) in [("user_query", &sql.user_query), ("acl_query", &sql.acl_query), ("superuser_query", &sql.superuser_query)]
    {
        let Some(query) = query else { continue };
        if query.contains("%s") || query.contains("%d") || query.contains("%u") || query.contains("%c") {
            let problem = "names are never put into a query's text; write $1 (PostgreSQL) or ? (MySQL, SQLite), without quotes, for the user name";
            return wrong(key, problem.to_owned());
        }
        let most = if key == "acl_query" { 2 } else { 1 };
        match parameters(query) {
            0 => {
                let problem = "has no parameter for the user name; write $1 (PostgreSQL) or ? (MySQL, SQLite), without quotes";
                return wrong(key, problem.to_owned());
            }
            count if count > most => return wrong(key, format!("has {count} parameters; it gets {most}")),
            _ => {}
        }
    }
    check_asking("sql", sql.asking())
}

impl AuthHttp {
    /// See [`Asking`].
    #[must_use]
    pub fn asking(&self) -> Asking {
        let Self { cache_ttl, cache_grace, pool_size, timeout, .. } = *self;
        Asking { cache_ttl, cache_grace, pool_size, timeout }
    }
}

impl AuthSql {
    /// See [`Asking`].
    #[must_use]
    pub fn asking(&self) -> Asking {
        let Self { cache_ttl, cache_grace, pool_size, timeout, .. } = *self;
        Asking { cache_ttl, cache_grace, pool_size, timeout }
    }

    /// Whether [`AuthSql::acl_query`] is to be asked for each kind of access by itself: it has a second parameter.
    #[must_use]
    pub fn asks_for_access(&self) -> bool {
        self.acl_query.as_deref().is_some_and(|query| parameters(query) > 1)
    }
}

/// How many parameters a query has: the highest of `$1`, `$2`, or the number of `?`, outside of quotes.
fn parameters(query: &str) -> usize {
    let (mut count, mut highest, mut quote) = (0, 0, None);
    let mut letters = query.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"' | '`') => quote = Some(letter),
            (None, '?') => count += 1,
            (None, '$') => highest = highest.max(letters.peek().and_then(|digit| digit.to_digit(10)).unwrap_or(0) as usize),
            _ => {}
        }
    }
    highest.max(count)
}

#[cfg(test)]
mod tests {
    use super::super::Listener;
    use super::*;

    #[test]
    fn parameters_are_counted_where_they_are_some() {
        for (query, expected) in [
            ("SELECT a FROM b WHERE c = $1", 1),
            ("SELECT a FROM b WHERE c = $1 AND d >= $2 OR c = $1", 2),
            ("SELECT a FROM b WHERE c = ? AND d & ? > 0", 2),
            ("SELECT '?', \"$2\", `?` FROM b WHERE c = 'it''s ?' OR d = ?", 1),
            ("SELECT 1", 0),
        ] {
            assert_eq!(parameters(query), expected, "{query}");
        }
    }

    #[test]
    fn each_listener_may_ask_others_and_what_nobody_asks_is_named() {
        use AuthBackend::{Certificate, File, Http, Jwt, Sql};
        let http = AuthHttp { user_url: Some("http://localhost/user".to_owned()), ..AuthHttp::default() };
        let jwt = |in_user_name| AuthJwt { secret_file: Some("secret".into()), in_user_name, ..AuthJwt::default() };
        let auth = |backends: &[AuthBackend], in_user_name| Auth {
            backends: backends.to_vec(),
            http: Some(http.clone()),
            jwt: Some(jwt(in_user_name)),
            ..Auth::default()
        };
        let listener = |backends: Option<&[AuthBackend]>, has_file: bool| Listener {
            backends: backends.map(<[_]>::to_vec),
            password_file: has_file.then(|| "passwd".into()),
            ..Listener::default()
        };
        for (auth, listeners, key) in [
            (auth(&[], false), vec![listener(Some(&[File]), true), listener(None, false)], None),
            (auth(&[File], false), vec![listener(Some(&[Http, Jwt]), false)], None),
            (auth(&[File], false), vec![listener(Some(&[Jwt]), false)], Some("auth.http")),
            (auth(&[], false), vec![listener(Some(&[Jwt]), true)], Some("listener.0.password_file")),
            (auth(&[], false), vec![listener(None, true), listener(Some(&[Sql]), false)], Some("listener.1.backends")),
            (auth(&[], false), vec![listener(Some(&[Http, Http]), false)], Some("listener.0.backends")),
            (auth(&[], true), vec![listener(Some(&[Http, Jwt]), false)], Some("listener.0.backends")),
            (auth(&[Http, Jwt], true), vec![], Some("auth.backends")),
        ] {
            let found = check(&Config { auth, listeners, ..Config::default() }).err();
            assert_eq!(found.as_ref().map(|(key, _)| key.as_str()), key, "{found:?}");
        }
        // A certificate is as good beside tokens and a service, which cannot be asked by a name alone, as beside a file.
        assert_eq!(auth(&[], false).backends_in_force(), [File, Jwt, Http, Certificate]);
        assert_eq!(Auth { sql: Some(AuthSql::default()), ..auth(&[], false) }.backends_in_force(), [File, Jwt, Sql, Http]);
    }

    #[test]
    fn what_does_not_go_together_is_named() {
        let sql = |change: fn(&mut AuthSql)| {
            let query = Some("SELECT hash FROM users WHERE name = ?".to_owned());
            let mut sql = AuthSql { dsn_file: Some("dsn".into()), user_query: query, ..AuthSql::default() };
            change(&mut sql);
            Some(sql)
        };
        let all = |backends: &[AuthBackend], sql| {
            check(&Config { auth: Auth { backends: backends.to_vec(), sql, ..Auth::default() }, ..Config::default() })
        };
        use AuthBackend::{Certificate, File, Sql};
        for (backends, sql, key) in [
            (&[][..], None, None),
            (&[], sql(|_| {}), None),
            (&[Sql, File, Certificate], sql(|_| {}), None),
            (&[Sql], None, Some("auth.backends")),
            (&[File, File], None, Some("auth.backends")),
            (&[File], sql(|_| {}), Some("auth.sql")),
            (&[], sql(|sql| sql.dsn_file = None), Some("auth.sql.dsn_file")),
            (&[], sql(|sql| sql.user_query = None), Some("auth.sql.user_query")),
            (&[], sql(|sql| sql.user_query = Some("SELECT 1".to_owned())), Some("auth.sql.user_query")),
            (&[], sql(|sql| sql.acl_query = Some("SELECT a FROM b WHERE c = '%s'".to_owned())), Some("auth.sql.acl_query")),
            (&[], sql(|sql| sql.superuser_query = Some("SELECT ? = ?".to_owned())), Some("auth.sql.superuser_query")),
            (&[], sql(|sql| sql.cache_ttl = Duration::from_millis(999)), Some("auth.sql.cache_ttl")),
            (&[], sql(|sql| sql.cache_grace = Duration::from_secs(59)), Some("auth.sql.cache_grace")),
            (&[], sql(|sql| sql.timeout = Duration::ZERO), Some("auth.sql.timeout")),
            (&[], sql(|sql| sql.pool_size = 65), Some("auth.sql.pool_size")),
        ] {
            let found = all(backends, sql).err();
            assert_eq!(found.as_ref().map(|(key, _)| key.as_str()), key, "{found:?}");
        }
    }
}

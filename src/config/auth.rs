//! `[auth]`: who may come in and what clients may do, and who is asked about it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

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
}

/// Who can be asked about a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthBackend {
    /// [`Auth::password_file`].
    File,
    /// [`Auth::sql`].
    Sql,
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
    /// Connections to the database at most.
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

impl Auth {
    /// Who is asked about a user. Where nobody has said: the file, then the other tables that are there. Certificates last, and only where nobody else than a
    /// file could say what their users may do.
    #[must_use]
    pub fn backends_in_force(&self) -> Vec<AuthBackend> {
        if !self.backends.is_empty() {
            return self.backends.clone();
        }
        match self.sql {
            Some(_) => vec![AuthBackend::File, AuthBackend::Sql],
            None => vec![AuthBackend::Certificate, AuthBackend::File],
        }
    }
}

const CACHE_TTLS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(8);
const POOL_SIZE_MAX: usize = 64;

pub(super) fn check(auth: &Auth) -> Result<(), (String, String)> {
    for (index, backend) in auth.backends.iter().enumerate() {
        let problem = match backend {
            AuthBackend::Sql if auth.sql.is_none() => "\"sql\" is named, and there is no [auth.sql]; add it, or leave \"sql\" out",
            _ if auth.backends.iter().take(index).any(|before| before == backend) => "one is named twice; leave the second out",
            _ => continue,
        };
        return Err(("auth.backends".to_owned(), problem.to_owned()));
    }
    if auth.password_file.is_some() && !auth.backends_in_force().contains(&AuthBackend::File) {
        let problem = "is there, and auth.backends does not name \"file\"; add it there, or leave the file out";
        return Err(("auth.password_file".to_owned(), problem.to_owned()));
    }
    if let Some(sql) = &auth.sql {
        if !auth.backends_in_force().contains(&AuthBackend::Sql) {
            let problem = "is there, and auth.backends does not name \"sql\"; add it there, or remove the table";
            return Err(("auth.sql".to_owned(), problem.to_owned()));
        }
        check_sql(sql)?;
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
    if !CACHE_TTLS.contains(&sql.cache_ttl) {
        return wrong("cache_ttl", format!("{:?} is out of range; it must be from 1s to 1d", sql.cache_ttl));
    }
    if sql.cache_grace < sql.cache_ttl {
        return wrong(
            "cache_grace",
            format!("{:?} is less than cache_ttl, {:?}; make it as long at least", sql.cache_grace, sql.cache_ttl),
        );
    }
    if !TIMEOUTS.contains(&sql.timeout) {
        return wrong("timeout", format!("{:?} is out of range; it must be from 100ms to 60s", sql.timeout));
    }
    if sql.pool_size > POOL_SIZE_MAX {
        return wrong("pool_size", format!("{} is too large; at most {POOL_SIZE_MAX} connections", sql.pool_size));
    }
    Ok(())
}

impl AuthSql {
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
    fn what_does_not_go_together_is_named() {
        let sql = |change: fn(&mut AuthSql)| {
            let query = Some("SELECT hash FROM users WHERE name = ?".to_owned());
            let mut sql = AuthSql { dsn_file: Some("dsn".into()), user_query: query, ..AuthSql::default() };
            change(&mut sql);
            Some(sql)
        };
        let all = |backends: &[AuthBackend], sql| check(&Auth { backends: backends.to_vec(), sql, ..Auth::default() });
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

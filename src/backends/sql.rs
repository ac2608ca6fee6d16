//! Users and rules in a database (`[auth.sql]`): PostgreSQL, MySQL, MariaDB, SQLite.
//!
//! A user's name is only ever a parameter of a query. What comes back is bounded: so many rows, so many bytes.
//!
//! Invariants:
//! - What is not understood grants nothing: a row of rules that is none is left out, an unusable hash is no password.
//! - No error of a query, and no error of the database, is an answer.

use std::path::Path;
use std::str::FromStr;

use futures_util::TryStreamExt;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, ConnectOptions, Connection, Row};

use super::{BackendError, Failure};
use crate::auth::{Account, Granted, MAY_READ, MAY_SUBSCRIBE, MAY_WRITE, Record, Rules};
use crate::config::AuthSql;

/// Rows of rules that a user may have.
const ROWS_MAX: usize = 1_000;
/// Bytes of topic filters in them.
const ROWS_BYTES_MAX: usize = 64 * 1_024;
/// The longest hash that is looked at, bytes.
const HASH_BYTES_MAX: usize = 1_024;
/// What URLs of databases begin with.
const SCHEMES: [&str; 4] = ["postgres", "postgresql", "mysql", "sqlite"];

/// Where the database is. `Debug` shows nothing of it: there may be a password in it.
pub(super) struct Source(AnyConnectOptions);

/// See the module's page.
pub(super) struct Database {
    pool: AnyPool,
    queries: AuthSql,
}

impl Source {
    /// Reads the file that `auth.sql.dsn_file` names.
    pub(super) fn read(path: &Path) -> Result<Self, BackendError> {
        let key = "auth.sql.dsn_file";
        let text = super::read_secret(key, path)?;
        let wrong = |problem: String| BackendError::Bad { key, path: path.to_owned(), problem };
        let url = text.lines().next().unwrap_or_default().trim();
        let scheme = url.split(':').next().unwrap_or_default();
        if !SCHEMES.contains(&scheme) {
            let problem = "the first line is no URL of a database; write postgres://USER:PASSWORD@HOST/NAME, mysql://USER:PASSWORD@HOST/NAME or \
                           sqlite:///PATH";
            return Err(wrong(problem.to_owned()));
        }
        let options = AnyConnectOptions::from_str(url).map_err(|error| wrong(error.to_string()))?;
        // Queries would stand in the log, where they say nothing that an operator does not know.
        Ok(Self(options.disable_statement_logging()))
    }
}

impl Database {
    /// Connects when it is first asked. Called on a runtime.
    pub(super) fn new(source: Source, queries: AuthSql) -> Self {
        sqlx::any::install_default_drivers();
        let pool = u32::try_from(queries.pool_size).unwrap_or(1);
        let pool = AnyPoolOptions::new().max_connections(pool).acquire_timeout(queries.timeout).connect_lazy_with(source.0);
        Self { pool, queries }
    }

    /// Whether it can be asked.
    pub(super) async fn ping(&self) -> Result<(), Failure> {
        let mut connection = self.pool.acquire().await.map_err(away)?;
        connection.ping().await.map_err(away)
    }

    /// Asks about a user.
    pub(super) async fn look_up(&self, name: &str) -> Result<Option<Account>, Failure> {
        let mut connection = self.pool.acquire().await.map_err(away)?;
        let connection: &mut AnyConnection = &mut connection;
        let AuthSql { user_query, acl_query, superuser_query, .. } = &self.queries;
        let Some(user_query) = user_query else { return Ok(None) };
        let Some(row) = first(connection, "user_query", user_query, name).await? else { return Ok(None) };
        let hash = text(&row, 0).map_err(|error| refused("user_query", &error))?;
        let record = hash.and_then(|hash| record(name, &hash));
        let is_superuser = match superuser_query {
            Some(query) => match first(connection, "superuser_query", query, name).await? {
                Some(row) => is_true(&row).map_err(|error| refused("superuser_query", &error))?,
                None => false,
            },
            None => false,
        };
        let granted = match acl_query {
            _ if is_superuser => Granted::All,
            Some(query) => Granted::Rules(self.rules(connection, query, name).await?.into()),
            None => Granted::AsListener,
        };
        Ok(Some(Account::new(record, granted)))
    }

    async fn rules(&self, connection: &mut AnyConnection, query: &str, name: &str) -> Result<Rules, Failure> {
        let mut rows = Rows::default();
        if self.queries.asks_for_access() {
            for access in [MAY_READ, MAY_WRITE, MAY_SUBSCRIBE] {
                let query = sqlx::query(AssertSqlSafe(query)).persistent(false).bind(name.to_owned()).bind(access);
                let mut found = query.fetch(&mut *connection);
                while let Some(row) = found.try_next().await.map_err(|error| failure("acl_query", error))? {
                    rows.add(text(&row, 0).map_err(|error| refused("acl_query", &error))?, access)?;
                }
            }
        } else {
            let mut found = sqlx::query(AssertSqlSafe(query)).persistent(false).bind(name.to_owned()).fetch(&mut *connection);
            while let Some(row) = found.try_next().await.map_err(|error| failure("acl_query", error))? {
                let topic = text(&row, 0).map_err(|error| refused("acl_query", &error))?;
                let access = row.try_get::<Option<i64>, _>(1).map_err(|error| refused("acl_query", &error))?;
                rows.add(topic, access.unwrap_or(0))?;
            }
        }
        let (rules, left_out) = Rules::of_rows(rows.all.iter().map(|(filter, access)| (filter.as_str(), *access)));
        if let Some(problem) = left_out {
            tracing::warn!(user = ?super::excerpt(name), %problem, "auth.sql.acl_query: a row is no rule, and grants nothing");
        }
        Ok(rules)
    }
}

/// Rules of a user, as they come.
#[derive(Default)]
struct Rows {
    all: Vec<(String, i64)>,
    bytes: usize,
}

impl Rows {
    fn add(&mut self, topic: Option<String>, access: i64) -> Result<(), Failure> {
        let Some(topic) = topic else { return Ok(()) };
        self.bytes += topic.len();
        if self.all.len() >= ROWS_MAX || self.bytes > ROWS_BYTES_MAX {
            let problem = format!(
                "acl_query: a user has more than {ROWS_MAX} rows or {ROWS_BYTES_MAX} bytes of topic filters; join some of them"
            );
            return Err(Failure::Refused(problem));
        }
        self.all.push((topic, access));
        Ok(())
    }
}

async fn first(connection: &mut AnyConnection, key: &str, query: &str, name: &str) -> Result<Option<AnyRow>, Failure> {
    let query = sqlx::query(AssertSqlSafe(query)).persistent(false).bind(name.to_owned());
    query.fetch(connection).try_next().await.map_err(|error| failure(key, error))
}

/// Text in a column, whatever the database calls its kind; none: NULL.
fn text(row: &AnyRow, column: usize) -> Result<Option<String>, sqlx::Error> {
    row.try_get::<Option<String>, _>(column).or_else(|error| {
        let bytes = row.try_get::<Option<Vec<u8>>, _>(column).map_err(|_| error)?;
        bytes.map(|bytes| String::from_utf8(bytes).map_err(|error| sqlx::Error::Decode(error.into()))).transpose()
    })
}

fn is_true(row: &AnyRow) -> Result<bool, sqlx::Error> {
    match row.try_get::<Option<i64>, _>(0) {
        Ok(number) => Ok(number.is_some_and(|number| number > 0)),
        Err(error) => row.try_get::<Option<bool>, _>(0).map(|truth| truth == Some(true)).map_err(|_| error),
    }
}

/// None: with that nobody can log in.
fn record(name: &str, hash: &str) -> Option<Record> {
    let hash = hash.trim();
    let parsed = if hash.len() > HASH_BYTES_MAX {
        Err("it is too long".to_owned())
    } else {
        Record::parse(hash).map_err(|why| why.to_string())
    };
    match parsed {
        Ok(record) => Some(record),
        Err(why) => {
            tracing::warn!(user = ?super::excerpt(name), why, "auth.sql.user_query: the hash of a user is not usable, he cannot log in");
            None
        }
    }
}

/// Nothing can be asked: it is the connection that failed.
fn away(error: sqlx::Error) -> Failure {
    Failure::Away(error.to_string())
}

/// What an answer is not that nobody understands.
fn refused(key: &str, error: &sqlx::Error) -> Failure {
    Failure::Refused(format!("{key}: {error}"))
}

fn failure(key: &str, error: sqlx::Error) -> Failure {
    let sqlx::Error::Database(of_database) = &error else {
        return match error {
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => away(error),
            _ => refused(key, &error),
        };
    };
    // The server goes down, or has no room (SQL:2016 part 2, 24.1, and PostgreSQL's own class 57).
    let is_away =
        of_database.code().is_some_and(|code| ["08", "53", "57"].iter().any(|class| code.len() == 5 && code.starts_with(class)));
    if is_away { away(error) } else { refused(key, &error) }
}

//! Users and rules in a database (`[auth.sql]`): PostgreSQL, MySQL, MariaDB, SQLite.
//!
//! A user's name is only ever a parameter of a query. What comes back is bounded: so many rows, so many bytes.
//!
//! Invariants:
//! - What is not understood grants nothing: a row of rules that is none is left out, an unusable hash is no password.
//! - No error of a query, and no error of the database, is an answer. Nor does what one user's query has come to say that the database is away: a connection that
//!   cannot be had says so.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::TryStreamExt;
use parking_lot::Mutex;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyConnection, AnyPool, AssertSqlSafe, ConnectOptions, Connection, Row};
use tokio::time::timeout_at;

use super::rows::Rows;
use super::{BackendError, Failure, PING_MAX};
use crate::auth::{Account, Granted, MAY_READ, MAY_SUBSCRIBE, MAY_WRITE, Record, Rules};
use crate::clock;
use crate::config::{AuthSql, is_this_machine};

/// The longest hash that is looked at, bytes.
const HASH_BYTES_MAX: usize = 1_024;
/// What URLs of databases begin with.
const SCHEMES: [&str; 4] = ["postgres", "postgresql", "mysql", "sqlite"];

/// See the module's page.
pub(super) struct Database {
    dsn_file: PathBuf,
    place: ArcSwap<Place>,
    /// With the place that it is of. Belongs to the runtime on which it was first asked.
    pool: Mutex<Option<(Arc<Place>, AnyPool)>>,
    queries: AuthSql,
}

/// Where the database is, as its file says.
pub(super) struct Place {
    url: String,
    /// There may be a password in it.
    options: AnyConnectOptions,
}

impl Database {
    /// Reads the file that `auth.sql.dsn_file` names. It connects when it is first asked.
    pub(super) fn new(dsn_file: &Path, queries: AuthSql) -> Result<Self, BackendError> {
        let place = ArcSwap::from_pointee(read_place(dsn_file)?);
        Ok(Self { dsn_file: dsn_file.to_owned(), place, pool: Mutex::default(), queries })
    }

    /// Reads the file anew; it is put in force by [`Database::replace`].
    pub(super) fn read_anew(&self) -> Result<Place, BackendError> {
        read_place(&self.dsn_file)
    }

    /// From now on the database is asked there, by connections of their own.
    pub(super) fn replace(&self, place: Place) {
        if self.place.load().url != place.url {
            self.place.store(Arc::new(place));
        }
    }

    /// Called on a runtime.
    fn pool(&self) -> AnyPool {
        let place = self.place.load_full();
        let mut kept = self.pool.lock();
        if let Some((of, pool)) = &*kept
            && Arc::ptr_eq(of, &place)
        {
            return pool.clone();
        }
        sqlx::any::install_default_drivers();
        let size = u32::try_from(self.queries.pool_size).unwrap_or(1);
        // One is for signs of life: questions may have all others.
        let pool = AnyPoolOptions::new().max_connections(size.saturating_add(1)).acquire_timeout(self.queries.timeout);
        let pool = pool.connect_lazy_with(place.options.clone());
        *kept = Some((place, pool.clone()));
        pool
    }

    /// Whether it can be asked.
    pub(super) async fn ping(&self) -> Result<(), Failure> {
        let patience = self.queries.timeout.min(PING_MAX);
        let end = clock::now() + patience;
        let late = || Failure::Away(format!("no sign of life within {patience:?}"));
        let mut connection = timeout_at(end.into(), self.pool().acquire()).await.map_err(|_| late())?.map_err(away)?;
        let found = timeout_at(end.into(), connection.ping()).await.map_or_else(|_| Err(late()), |found| found.map_err(away));
        give_back(connection, found.is_ok());
        found
    }

    fn late(&self) -> Failure {
        Failure::Doubtful(format!("no answer within {:?}", self.queries.timeout))
    }

    /// Asks about a user, within the time-out, a connection included.
    pub(super) async fn look_up(&self, name: &str) -> Result<Option<Account>, Failure> {
        let end = clock::now() + self.queries.timeout;
        let mut connection = self.pool().acquire().await.map_err(|error| match error {
            // Others are slow, and hold all of them.
            sqlx::Error::PoolTimedOut => self.late(),
            error => away(error),
        })?;
        let asking = timeout_at(end.into(), self.ask(&mut connection, name));
        let found = asking.await.unwrap_or_else(|_| Err(self.late()));
        give_back(connection, found.is_ok());
        found
    }

    async fn ask(&self, connection: &mut AnyConnection, name: &str) -> Result<Option<Account>, Failure> {
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
                    add(&mut rows, text(&row, 0).map_err(|error| refused("acl_query", &error))?, access)?;
                }
            }
        } else {
            let mut found = sqlx::query(AssertSqlSafe(query)).persistent(false).bind(name.to_owned()).fetch(&mut *connection);
            while let Some(row) = found.try_next().await.map_err(|error| failure("acl_query", error))? {
                let topic = text(&row, 0).map_err(|error| refused("acl_query", &error))?;
                let access = row.try_get::<Option<i64>, _>(1).map_err(|error| refused("acl_query", &error))?;
                add(&mut rows, topic, access.unwrap_or(0))?;
            }
        }
        Ok(rows.rules("auth.sql.acl_query", name))
    }
}

fn read_place(dsn_file: &Path) -> Result<Place, BackendError> {
    let key = "auth.sql.dsn_file";
    let text = super::read_secret(key, dsn_file)?;
    let wrong = |problem: String| BackendError::Bad { key, path: dsn_file.to_owned(), problem };
    let url = text.lines().next().unwrap_or_default().trim();
    let scheme = url.split(':').next().unwrap_or_default();
    if !SCHEMES.contains(&scheme) {
        let problem = "the first line is no URL of a database; write postgres://USER:PASSWORD@HOST/NAME, mysql://USER:PASSWORD@HOST/NAME or \
                       sqlite:///PATH";
        return Err(wrong(problem.to_owned()));
    }
    if scheme != "sqlite" && !is_near(url) && !says_of_tls(url) {
        let problem = "the database is on another machine, and the URL does not say whether the way there is to be protected; add \
                       ?sslmode=verify-full (PostgreSQL) or ?ssl-mode=VERIFY_IDENTITY (MySQL, MariaDB), with &sslrootcert=FILE or &ssl-ca=FILE \
                       for an authority of your own; ?sslmode=disable or ?ssl-mode=DISABLED if nobody else is on it";
        return Err(wrong(problem.to_owned()));
    }
    let options = AnyConnectOptions::from_str(url).map_err(|error| wrong(error.to_string()))?;
    // Queries would stand in the log, where they say nothing that an operator does not know.
    Ok(Place { url: url.to_owned(), options: options.disable_statement_logging() })
}

/// One on which something has failed is closed: it may hang, and the pool would wait for it.
fn give_back(mut connection: PoolConnection<Any>, is_good: bool) {
    if !is_good {
        connection.close_on_drop();
    }
}

/// Whether the database is on this machine. A socket is named by its path.
fn is_near(url: &str) -> bool {
    let authority = url.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?']).next().unwrap_or_default());
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_path = |text: &str| text.starts_with('/') || text.to_ascii_lowercase().starts_with("%2f");
    let is_near = |host: &str| host.is_empty() || is_path(host) || is_this_machine(host);
    is_near(host) && parameters(url).filter(|(key, _)| ["host", "hostaddr"].contains(key)).all(|(_, host)| is_near(host))
}

fn says_of_tls(url: &str) -> bool {
    parameters(url).any(|(key, _)| key == "sslmode" || key == "ssl-mode")
}

fn parameters(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').filter_map(|one| one.split_once('='))
}

fn add(rows: &mut Rows, topic: Option<String>, access: i64) -> Result<(), Failure> {
    let Some(topic) = topic else { return Ok(()) };
    rows.add(topic, access).map_err(|problem| Failure::Refused(format!("acl_query: {problem}")))
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

/// What a query has failed of. One user's may be stopped, may be too big or cost its connection while those of all others are answered.
fn failure(key: &str, error: sqlx::Error) -> Failure {
    let is_doubtful = match &error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| is_doubtful(&code)),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        _ => false,
    };
    if is_doubtful { Failure::Doubtful(format!("{key}: {error}")) } else { refused(key, &error) }
}

/// Whether it may be that the server goes down, or has no room (SQL:2016 part 2, 24.1, and PostgreSQL's own classes 53 and 57).
fn is_doubtful(state: &str) -> bool {
    state.len() == 5 && ["08", "53", "57"].iter().any(|class| state.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_users_query_has_come_to_makes_nobody_away() {
        let broken = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        for (error, is_doubtful) in [
            (sqlx::Error::Io(broken()), true),
            (sqlx::Error::Tls(Box::new(broken())), true),
            (sqlx::Error::Protocol("half a row".to_owned()), true),
            (sqlx::Error::WorkerCrashed, true),
            (sqlx::Error::ColumnNotFound("hash".to_owned()), false),
        ] {
            let found = failure("user_query", error);
            assert_eq!(matches!(&found, Failure::Doubtful(why) if why.starts_with("user_query: ")), is_doubtful, "{found:?}");
            assert_eq!(matches!(found, Failure::Refused(_)), !is_doubtful, "{found:?}");
        }
        // A statement that is stopped, no memory for it, a server that goes down; a table that is not there, a word of MySQL's that is none of these.
        let states = ["57014", "53200", "57P01", "42P01", "HY000", "571"].map(is_doubtful);
        assert_eq!(states, [true, true, true, false, false, false]);
    }

    #[test]
    fn a_url_over_the_network_says_how_it_is_protected() {
        for (url, expected) in [
            ("postgres://u:p@localhost/d", true),
            ("postgres://u:p@127.0.0.1:5432/d", true),
            ("mysql://u:p@[::1]:3306/d", true),
            ("postgres://u:p@%2Frun%2Fpostgresql/d", true),
            ("postgres:///d?host=/run/postgresql", true),
            ("mysql://u@localhost/d?socket=/run/mysqld.sock", true),
            ("postgres://u:p@db.example/d", false),
            ("postgres://u:localhost@db.example/d", false),
            ("postgres://u:p@192.0.2.1:5432/d?application_name=a", false),
            ("postgres://u:p@localhost/d?host=db.example", false),
            ("postgres://u:p@localhost/d?hostaddr=192.0.2.1", false),
            ("postgres://localhost.example/d", false),
            ("mysql://db.example/d?ssl-mode=VERIFY_IDENTITY", true),
            ("postgres://db.example/d?sslmode=disable", true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("dsn");
            std::fs::write(&path, format!("{url}\n")).unwrap();
            sqlx::any::install_default_drivers();
            let found = Database::new(&path, AuthSql::default());
            assert_eq!(found.is_ok(), expected, "{url}");
            if let Err(error) = found {
                assert!(error.to_string().contains("verify-full") && !error.to_string().contains("u:p"), "{error}");
            }
        }
    }
}

//! Asks backends outside of this broker about users: databases. One thread of its own with a runtime of its own, so that no query runs where clients are served.
//!
//! What is heard is kept by `auth`'s [`Accounts`], which also says for how long it counts. Of users with sessions here the backend is asked again in time, and
//! whoever has started this is told when something has changed.
//!
//! Invariants:
//! - An error is never an answer: who is not remembered waits outside while a backend is away.
//! - Of one user it is asked once at a time, of [`REQUESTS_MAX`] users at most; what is more is told so at once.
//! - While a backend is away it is asked for a sign of life, once in [`PROBE_INTERVAL`], and nothing else. That it is away is said by a connection that cannot be had or a sign of
//!   life that does not come: not by what was asked of one user.

#![cfg_attr(
    not(feature = "auth-sql"),
    allow(dead_code, unused_imports, unused_variables, reason = "without a backend to ask there is nothing to do")
)]

#[cfg(feature = "auth-sql")]
mod sql;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::auth::{Account, Accounts, Backend, Known, Remembered};
use crate::config::Auth;
use crate::log_rate::LogRate;
use crate::metrics::{Counter, Sample};
use crate::{clock, task};

/// Users of whom it is asked at once.
const REQUESTS_MAX: usize = 1_000;
/// Between two looks whether a backend that is away has come back.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks of whom it is to be asked again, at most; where little time is left for it, the eighth part of that.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Names that are longer are nobody's, bytes.
const NAME_BYTES_MAX: usize = 1_024;

/// A backend that cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A file that is not there, or that the broker's user may not read.
    #[error("{key}: cannot read {}: {source}; make the file, let the broker's user read it, or name another", path.display())]
    Unreadable {
        /// Which key names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file with something in it that is not understood.
    #[error("{key}: {}: {problem}", path.display())]
    Bad {
        /// Which key names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do. Without what stands there: it is a secret.
        problem: String,
    },
    /// It is not in this program.
    #[error("{key}: this program was built without it; build it with the feature `{feature}`")]
    Missing {
        /// The table.
        key: &'static str,
        /// The cargo feature.
        feature: &'static str,
    },
    /// The system gives no thread.
    #[error("cannot start the thread that asks databases: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why a backend has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// It cannot be reached.
    Away(String),
    /// What was asked of this user has taken too long: whether the backend is away is to be found out.
    Late,
    /// It does not take what it is asked, or gives what is not understood.
    Refused(String),
}

/// What is known of a user who is at the door.
#[derive(Clone, Debug)]
pub enum Answer {
    /// There is such a user; the name is to be kept as long as the session.
    Somebody {
        /// As it is kept.
        name: Arc<str>,
        /// What the backend says of the user.
        account: Arc<Account>,
        /// Whether the backend was asked just now.
        is_new: bool,
    },
    /// There is no such user.
    Nobody,
    /// The backend cannot be asked.
    Away,
    /// Too much is asked of it.
    Busy,
}

/// Called when what is known of users with sessions has changed, with their names.
pub type OnChange = Box<dyn Fn(&HashSet<Arc<str>>) + Send>;

/// The backends of a configuration, not yet asked.
pub struct Opened {
    accounts: Arc<[Arc<Accounts>]>,
    #[cfg(feature = "auth-sql")]
    sql: Option<(sql::Source, crate::config::AuthSql)>,
}

/// See the module's page. Clones ask the same backends.
#[derive(Clone, Debug)]
pub struct Backends(Arc<Desk>);

#[derive(Debug)]
struct Desk {
    accounts: Arc<[Arc<Accounts>]>,
    requests: mpsc::Sender<Request>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_away: AtomicBool,
    is_failing: AtomicBool,
    asked: Counter,
    failed: Counter,
}

/// Ends the thread when it is dropped.
#[derive(Debug)]
pub struct Handle {
    backends: Backends,
    _stop: watch::Sender<()>,
}

#[derive(Debug)]
struct Request {
    name: String,
    answer: oneshot::Sender<Answer>,
}

impl Opened {
    /// Reads what `auth` names.
    ///
    /// # Errors
    /// See [`BackendError`].
    pub fn open(auth: &Auth) -> Result<Self, BackendError> {
        #[cfg(not(feature = "auth-sql"))]
        if auth.sql.is_some() {
            return Err(BackendError::Missing { key: "auth.sql", feature: "auth-sql" });
        }
        let accounts = auth.sql.iter().map(|sql| Arc::new(Accounts::new(Backend::Sql, sql.cache_ttl, sql.cache_grace)));
        let accounts = accounts.collect();
        #[cfg(feature = "auth-sql")]
        let sql = match auth.sql.as_ref().and_then(|sql| Some((sql.dsn_file.as_ref()?, sql))) {
            Some((dsn_file, sql)) => Some((sql::Source::read(dsn_file)?, sql.clone())),
            None => None,
        };
        Ok(Self {
            accounts,
            #[cfg(feature = "auth-sql")]
            sql,
        })
    }

    /// What is known of users.
    #[must_use]
    pub fn accounts(&self) -> &Arc<[Arc<Accounts>]> {
        &self.accounts
    }

    /// Starts to ask. None if there is nothing to ask.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(self, on_change: OnChange) -> Result<Option<Handle>, BackendError> {
        #[cfg(not(feature = "auth-sql"))]
        {
            drop(on_change);
            Ok(None)
        }
        #[cfg(feature = "auth-sql")]
        {
            let Some((source, settings)) = self.sql else { return Ok(None) };
            let Some(accounts) = self.accounts.first().cloned() else { return Ok(None) };
            let (requests, requests_out) = mpsc::channel(REQUESTS_MAX);
            let (stop, stopped) = watch::channel(());
            let state = Arc::<State>::default();
            let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
            let body = {
                let state = Arc::clone(&state);
                move || {
                    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                        Ok(runtime) => runtime,
                        Err(error) => return drop(ready.send(Err(error))),
                    };
                    let _ = ready.send(Ok(()));
                    runtime.block_on(async {
                        let (life, pool, timeout) = (settings.cache_ttl, settings.pool_size, settings.timeout);
                        let database = Arc::new(sql::Database::new(source, settings));
                        Clerk::new(database, accounts, state, pool, timeout, on_change).run(life, requests_out, stopped).await;
                    });
                    runtime.shutdown_background();
                }
            };
            task::thread("backends", body)?;
            is_ready.recv().unwrap_or_else(|_| Err(std::io::Error::other("it ended at once")))?;
            let backends = Backends(Arc::new(Desk { accounts: self.accounts, requests, state }));
            Ok(Some(Handle { backends, _stop: stop }))
        }
    }
}

impl Handle {
    /// To ask by.
    #[must_use]
    pub fn backends(&self) -> &Backends {
        &self.backends
    }

    /// Those that cannot be asked now, or do not answer what they are asked.
    #[must_use]
    pub fn failing(&self) -> Vec<&'static str> {
        let desk = &self.backends.0;
        let is_failing = desk.state.is_failing.load(Ordering::Relaxed) || desk.requests.is_closed();
        desk.accounts.iter().filter(|_| is_failing).map(|accounts| accounts.by().name()).collect()
    }

    /// What is counted.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let Desk { accounts, state, .. } = &*self.backends.0;
        let is_up = !state.is_failing.load(Ordering::Relaxed);
        let known = accounts.iter().map(|accounts| accounts.count()).sum::<usize>();
        vec![
            Sample::gauge("auth_sql_up", "Whether the database of [auth.sql] answers", f64::from(u8::from(is_up))),
            Sample::gauge("auth_sql_users", "Users of the database that are remembered", known as f64),
            Sample::counter("auth_sql_asked", "Times that the database was asked about a user", state.asked.value()),
            Sample::counter("auth_sql_failed", "Times that it did not answer that", state.failed.value()),
        ]
    }
}

impl Backends {
    /// What is known of a user of that backend. `anew`: it is asked, whatever is known.
    pub async fn look_up(&self, by: Backend, name: &str, anew: bool) -> Answer {
        let Some(accounts) = self.0.accounts.iter().find(|accounts| accounts.by() == by) else { return Answer::Nobody };
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            return Answer::Nobody;
        }
        let remembered = accounts.recall(name, clock::now());
        if self.0.state.is_away.load(Ordering::Relaxed) {
            return remembered.map_or(Answer::Away, |remembered| answer(remembered, false));
        }
        if let Some(remembered) = remembered.filter(|remembered| remembered.is_fresh && !anew) {
            return answer(remembered, false);
        }
        let (asked, answered) = oneshot::channel();
        match self.0.requests.try_send(Request { name: name.to_owned(), answer: asked }) {
            Ok(()) => answered.await.unwrap_or(Answer::Away),
            Err(_) => Answer::Busy,
        }
    }
}

fn answer(remembered: Remembered, is_new: bool) -> Answer {
    match remembered.known {
        Known::Somebody(account) => Answer::Somebody { name: remembered.name, account, is_new },
        Known::Nobody => Answer::Nobody,
        Known::Awaited => Answer::Away,
    }
}

/// What has been heard.
#[cfg(feature = "auth-sql")]
enum Heard {
    OfUser {
        name: Arc<str>,
        found: Result<Option<Account>, Failure>,
        is_refresh: bool,
    },
    /// Of a sign of life.
    Ping(Result<(), Failure>),
}

/// Asks one backend.
#[cfg(feature = "auth-sql")]
struct Clerk {
    database: Arc<sql::Database>,
    accounts: Arc<Accounts>,
    state: Arc<State>,
    timeout: Duration,
    on_change: OnChange,
    /// As many are asked at once.
    permits: Arc<Semaphore>,
    tasks: task::TaskSet,
    heard: (mpsc::Sender<Heard>, mpsc::Receiver<Heard>),
    /// Of whom it is asked now, and who waits for that.
    waiting: HashMap<Arc<str>, Vec<oneshot::Sender<Answer>>, ahash::RandomState>,
    /// Of whom it is to be asked again.
    due: VecDeque<Arc<str>>,
    refreshing: usize,
    refreshing_max: usize,
    probed: Option<Instant>,
    changed: HashSet<Arc<str>>,
    log: LogRate,
}

#[cfg(feature = "auth-sql")]
impl Clerk {
    fn new(
        database: Arc<sql::Database>,
        accounts: Arc<Accounts>,
        state: Arc<State>,
        pool: usize,
        timeout: Duration,
        on_change: OnChange,
    ) -> Self {
        Self {
            database,
            accounts,
            state,
            timeout,
            on_change,
            permits: Arc::new(Semaphore::new(pool)),
            tasks: task::TaskSet::default(),
            heard: mpsc::channel(REQUESTS_MAX),
            waiting: HashMap::default(),
            due: VecDeque::new(),
            refreshing: 0,
            // Who is at the door is not to wait for those who are in.
            refreshing_max: pool.div_ceil(2),
            probed: None,
            changed: HashSet::new(),
            log: LogRate::default(),
        }
    }

    async fn run(mut self, life: Duration, mut requests: mpsc::Receiver<Request>, mut stopped: watch::Receiver<()>) {
        let mut look = tokio::time::interval((life / 8).min(LOOK_INTERVAL_MAX));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // An operator is to see at the start, and not with the first client, that it cannot be asked.
        self.probe(clock::now());
        loop {
            tokio::select! {
                _ = stopped.changed() => return,
                Some(heard) = self.heard.1.recv() => self.hear(heard),
                Some(request) = requests.recv() => self.take(request),
                _ = look.tick() => self.look(),
                () = self.tasks.ended() => {}
            }
            self.refresh();
        }
    }

    /// Somebody is at the door.
    fn take(&mut self, Request { name, answer: asked }: Request) {
        if let Some(waiting) = self.waiting.get_mut(name.as_str()) {
            waiting.push(asked);
            return;
        }
        if self.waiting.len() >= REQUESTS_MAX {
            // Whoever asked may be gone.
            let _ = asked.send(Answer::Busy);
            return;
        }
        let name: Arc<str> = name.into();
        self.waiting.insert(Arc::clone(&name), vec![asked]);
        self.ask(name, false);
    }

    fn ask(&mut self, name: Arc<str>, is_refresh: bool) {
        let (database, permits, state) = (Arc::clone(&self.database), Arc::clone(&self.permits), Arc::clone(&self.state));
        let heard = self.heard.0.clone();
        self.tasks.spawn(async move {
            let Ok(_permit) = permits.acquire().await else { return };
            let found = if state.is_away.load(Ordering::Relaxed) {
                Err(Failure::Away("it was away already".to_owned()))
            } else {
                state.asked.add(1);
                database.look_up(&name).await
            };
            // The clerk outlives its tasks.
            let _ = heard.send(Heard::OfUser { name, found, is_refresh }).await;
        });
    }

    fn hear(&mut self, heard: Heard) {
        let (name, found, is_refresh) = match heard {
            Heard::Ping(Ok(())) => {
                if self.state.is_away.swap(false, Ordering::Relaxed) {
                    tracing::info!("auth.sql: the database answers again");
                    self.state.is_failing.store(false, Ordering::Relaxed);
                }
                return;
            }
            Heard::Ping(Err(failure)) => {
                if !self.state.is_away.load(Ordering::Relaxed) {
                    self.fail(&failure, clock::now());
                }
                return;
            }
            Heard::OfUser { name, found, is_refresh } => (name, found, is_refresh),
        };
        self.refreshing -= usize::from(is_refresh);
        let now = clock::now();
        let waiting = self.waiting.remove(&name).unwrap_or_default();
        let answer = match found {
            Ok(account) => {
                self.state.is_failing.store(false, Ordering::Relaxed);
                let (remembered, has_changed) = self.accounts.learn(&name, account, now);
                if has_changed {
                    self.changed.insert(Arc::clone(&remembered.name));
                }
                answer(remembered, true)
            }
            Err(failure) => {
                self.fail(&failure, now);
                self.accounts.recall(&name, now).map_or(Answer::Away, |remembered| answer(remembered, false))
            }
        };
        for asked in waiting {
            // Whoever asked may be gone.
            let _ = asked.send(answer.clone());
        }
    }

    fn fail(&mut self, failure: &Failure, now: Instant) {
        self.state.failed.add(1);
        self.state.is_failing.store(true, Ordering::Relaxed);
        match failure {
            Failure::Away(problem) => {
                if !self.state.is_away.swap(true, Ordering::Relaxed) {
                    tracing::error!(problem, "auth.sql: the database cannot be asked; who is not remembered does not get in");
                }
            }
            Failure::Late => {
                if let Some(left_out) = self.log.permit("late", now) {
                    tracing::error!(timeout = ?self.timeout, left_out, "auth.sql: what was asked of a user took too long");
                }
                self.probe(now);
            }
            Failure::Refused(problem) => {
                if let Some(left_out) = self.log.permit("refused", now) {
                    tracing::error!(problem, left_out, "auth.sql: the database does not answer what it is asked");
                }
            }
        }
    }

    /// Now and then.
    fn look(&mut self) {
        let now = clock::now();
        if !self.changed.is_empty() {
            (self.on_change)(&std::mem::take(&mut self.changed));
        }
        if self.state.is_away.load(Ordering::Relaxed) {
            self.probe(now);
            return;
        }
        if self.due.is_empty() {
            self.due = self.accounts.due(now).into();
        }
    }

    /// Asks for a sign of life, if that was not done just now.
    fn probe(&mut self, now: Instant) {
        if self.probed.is_some_and(|at| now.saturating_duration_since(at) < PROBE_INTERVAL) {
            return;
        }
        self.probed = Some(now);
        let (database, heard) = (Arc::clone(&self.database), self.heard.0.clone());
        self.tasks.spawn(async move {
            // See above.
            let _ = heard.send(Heard::Ping(database.ping().await)).await;
        });
    }

    /// Asks again of those of whom it is time, some at once.
    fn refresh(&mut self) {
        while self.refreshing < self.refreshing_max
            && !self.state.is_away.load(Ordering::Relaxed)
            && let Some(name) = self.due.pop_front()
        {
            if self.waiting.contains_key(&name) {
                continue;
            }
            self.waiting.insert(Arc::clone(&name), Vec::new());
            self.refreshing += 1;
            self.ask(name, true);
        }
    }
}

/// What stands in a file that only the broker's user should read.
#[cfg(feature = "auth-sql")]
fn read_secret(key: &'static str, path: &Path) -> Result<String, BackendError> {
    let text = std::fs::read_to_string(path).map_err(|source| BackendError::Unreadable { key, path: path.to_owned(), source })?;
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(path) {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o004 != 0 {
            tracing::warn!(file = %path.display(), "everybody on this machine can read the password in it; chmod 0640 it");
        }
    }
    Ok(text)
}

/// Enough of a name to find it, too little to flood a log.
#[cfg(feature = "auth-sql")]
fn excerpt(name: &str) -> String {
    name.chars().take(64).collect()
}

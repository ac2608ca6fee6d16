//! Asks backends outside of this broker about users: a database, a service over HTTP. One thread of its own with a runtime of its own, so that no query runs
//! where clients are served. Tokens, which ask nobody, are looked at here as well.
//!
//! What is heard is kept by `auth`'s [`Accounts`], which also says for how long it counts. Of users with sessions here the backend is asked again in time, and
//! whoever has started this is told when something has changed.
//!
//! Invariants:
//! - An error is never an answer: who is not remembered waits outside while a backend is away.
//! - Of one user it is asked once at a time, of [`REQUESTS_MAX`] users at most; what is more is told so at once.
//! - While a backend is away it is asked for a sign of life, once in [`PROBE_INTERVAL`], and nothing else. That it is away is said by a connection that cannot be had or a sign of
//!   life that does not come: not by what was asked of one user.

mod http;
mod jwt;
mod rows;
#[cfg(feature = "auth-sql")]
mod sql;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::auth::{Account, Accounts, Backend, Known, Remembered, Shown, user_of};
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
    #[error("cannot start the thread that asks backends: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why a backend has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// It cannot be reached.
    Away(String),
    /// What was asked of this user has failed, as it does where the backend is away: whether it is, is to be found out.
    Doubtful(String),
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
    /// There is, and shows something else.
    Refused,
    /// The backend cannot be asked.
    Away,
    /// Too much is asked of it.
    Busy,
}

/// Called when what is known of users with sessions has changed, with their keys.
pub type OnChange = Arc<dyn Fn(&HashSet<Arc<str>>) + Send + Sync>;

/// The backends of a configuration, not yet asked.
pub struct Opened {
    accounts: Arc<[Arc<Accounts>]>,
    plans: Vec<Plan>,
    tokens: Option<Arc<jwt::Tokens>>,
}

/// One that is to be asked.
struct Plan {
    source: Source,
    accounts: Arc<Accounts>,
    terms: Terms,
}

/// How one is asked.
#[derive(Clone, Copy, Debug)]
struct Terms {
    life: Duration,
    pool_size: usize,
}

/// Who is asked.
enum Source {
    #[cfg(feature = "auth-sql")]
    Sql(Box<sql::Database>),
    Http(Arc<http::Service>),
}

/// See the module's page. Clones ask the same backends.
#[derive(Clone, Debug)]
pub struct Backends(Arc<Desk>);

#[derive(Debug)]
struct Desk {
    windows: Vec<Window>,
    tokens: Option<Arc<jwt::Tokens>>,
}

/// Where one backend is asked.
#[derive(Debug)]
struct Window {
    accounts: Arc<Accounts>,
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

/// Keys that have been read anew, and are not yet in force.
pub struct Renewal(Option<Vec<jwt::Key>>);

#[derive(Debug)]
struct Request {
    /// See [`Accounts`].
    name: String,
    shown: Option<Arc<Shown>>,
    answer: oneshot::Sender<Answer>,
}

impl Opened {
    /// Reads what `auth` names.
    ///
    /// # Errors
    /// See [`BackendError`].
    pub fn open(auth: &Auth) -> Result<Self, BackendError> {
        let (mut accounts, mut plans) = (Vec::new(), Vec::new());
        #[cfg(not(feature = "auth-sql"))]
        if auth.sql.is_some() {
            return Err(BackendError::Missing { key: "auth.sql", feature: "auth-sql" });
        }
        #[cfg(feature = "auth-sql")]
        if let Some((dsn_file, sql)) = auth.sql.as_ref().and_then(|sql| Some((sql.dsn_file.as_ref()?, sql))) {
            let kept = Arc::new(Accounts::new(Backend::Sql, sql.cache_ttl, sql.cache_grace));
            accounts.push(Arc::clone(&kept));
            let terms = Terms { life: sql.cache_ttl, pool_size: sql.pool_size };
            let source = Source::Sql(Box::new(sql::Database::new(dsn_file, sql.clone())?));
            plans.push(Plan { source, accounts: kept, terms });
        }
        if let Some(http) = &auth.http {
            let kept = Arc::new(Accounts::new(Backend::Http, http.cache_ttl, http.cache_grace));
            accounts.push(Arc::clone(&kept));
            let terms = Terms { life: http.cache_ttl, pool_size: http.pool_size };
            plans.push(Plan { source: Source::Http(Arc::new(http::Service::new(http.clone())?)), accounts: kept, terms });
        }
        let tokens = match &auth.jwt {
            Some(jwt) => {
                let kept = Arc::new(Accounts::new(Backend::Jwt, Duration::MAX, Duration::ZERO));
                accounts.push(Arc::clone(&kept));
                Some(Arc::new(jwt::Tokens::new(jwt.clone(), kept)?))
            }
            None => None,
        };
        Ok(Self { accounts: accounts.into(), plans, tokens })
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
        if self.accounts.is_empty() {
            return Ok(None);
        }
        let tokens = self.accounts.iter().find(|accounts| accounts.by() == Backend::Jwt).cloned();
        let (mut windows, mut clerks) = (Vec::new(), Vec::new());
        for Plan { source, accounts, terms } in self.plans {
            let (requests, requests_out) = mpsc::channel(REQUESTS_MAX);
            let state = Arc::<State>::default();
            windows.push(Window { accounts: Arc::clone(&accounts), requests, state: Arc::clone(&state) });
            clerks.push((source, accounts, state, terms, requests_out));
        }
        let (stop, mut stopped) = watch::channel(());
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            runtime.block_on(async {
                let mut tasks = task::TaskSet::default();
                for (source, accounts, state, terms, requests) in clerks {
                    let clerk = Clerk::new(source, accounts, state, terms, Arc::clone(&on_change));
                    tasks.spawn(clerk.run(requests));
                }
                if let Some(accounts) = tokens {
                    tasks.spawn(watch_tokens(accounts, on_change));
                }
                loop {
                    tokio::select! {
                        _ = stopped.changed() => return,
                        () = tasks.ended() => {}
                    }
                }
            });
            runtime.shutdown_background();
        };
        task::thread("backends", body)?;
        is_ready.recv().unwrap_or_else(|_| Err(std::io::Error::other("it ended at once")))?;
        let backends = Backends(Arc::new(Desk { windows, tokens: self.tokens }));
        Ok(Some(Handle { backends, _stop: stop }))
    }
}

impl Source {
    /// Whether it can be asked.
    async fn ping(&self) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "auth-sql")]
            Self::Sql(database) => database.ping().await,
            Self::Http(service) => {
                let service = Arc::clone(service);
                task::blocking(move || service.ping()).await.unwrap_or_else(|| Err(Failure::Away("it was not asked".to_owned())))
            }
        }
    }

    /// Asks about a user by name, and what he has shown.
    async fn look_up(&self, name: &str, shown: Option<&Arc<Shown>>) -> Result<Known, Failure> {
        match self {
            #[cfg(feature = "auth-sql")]
            Self::Sql(database) => database.look_up(name).await.map(Known::from),
            Self::Http(service) => {
                let (service, name, shown) = (Arc::clone(service), user_of(name).to_owned(), shown.cloned());
                let Some(shown) = shown else { return Ok(Known::Nobody) };
                let asked = task::blocking(move || service.look_up(&name, &shown)).await;
                asked.unwrap_or_else(|| Err(Failure::Doubtful("it was not asked".to_owned())))
            }
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
        let is_failing = |window: &&Window| window.state.is_failing.load(Ordering::Relaxed) || window.requests.is_closed();
        self.backends.0.windows.iter().filter(is_failing).map(|window| window.accounts.by().name()).collect()
    }

    /// What is counted.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let samples = self.backends.0.windows.iter().flat_map(|Window { accounts, state, .. }| {
            let is_up = !state.is_failing.load(Ordering::Relaxed);
            [
                Sample::gauge("auth_up", "Whether a backend of [auth] answers", f64::from(u8::from(is_up))),
                Sample::gauge("auth_users", "Users of a backend that are remembered", accounts.count() as f64),
                Sample::counter("auth_asked", "Times that a backend was asked about a user", state.asked.value()),
                Sample::counter("auth_failed", "Times that it did not answer that", state.failed.value()),
            ]
            .map(|sample| sample.with("backend", accounts.by().name()))
        });
        let mut samples: Vec<Sample> = samples.collect();
        samples.sort_by_key(|sample| sample.name);
        samples
    }

    /// Reads the keys of tokens anew.
    ///
    /// # Errors
    /// See [`BackendError`]: nothing has changed then.
    pub fn read_anew(&self) -> Result<Renewal, BackendError> {
        Ok(Renewal(self.backends.0.tokens.as_ref().map(|tokens| tokens.read_anew()).transpose()?))
    }

    /// What comes in from now on is judged by these. Who is in stays until its token expires.
    pub fn renew(&self, Renewal(keys): Renewal) {
        if let (Some(tokens), Some(keys)) = (&self.backends.0.tokens, keys) {
            tokens.replace(keys);
        }
    }
}

impl Backends {
    /// What is known of a user of that backend. `anew`: it is asked, whatever is known.
    pub async fn look_up(&self, by: Backend, name: &str, anew: bool) -> Answer {
        if !is_name(name) {
            return Answer::Nobody;
        }
        self.ask(by, name, None, anew).await
    }

    /// What that backend says of a user who has shown a password, which only it can look at.
    pub async fn show(&self, by: Backend, name: &str, client_id: &str, password: &str) -> Answer {
        if !is_name(name) {
            return Answer::Nobody;
        }
        let key = key_of(name, &[client_id, password]);
        self.ask(by, &key, Some(Arc::new(Shown { client_id: client_id.into(), password: password.into() })), false).await
    }

    /// Looks at a token of a client that calls itself `name`.
    #[must_use]
    pub fn read_token(&self, name: &str, token: &str) -> Answer {
        self.0.tokens.as_ref().map_or(Answer::Nobody, |tokens| tokens.read(name, token))
    }

    async fn ask(&self, by: Backend, name: &str, shown: Option<Arc<Shown>>, anew: bool) -> Answer {
        let Some(window) = self.0.windows.iter().find(|window| window.accounts.by() == by) else { return Answer::Nobody };
        let remembered = window.accounts.recall(name, clock::now());
        if window.state.is_away.load(Ordering::Relaxed) {
            return remembered.map_or(Answer::Away, |remembered| answer(remembered, false));
        }
        if let Some(remembered) = remembered.filter(|remembered| remembered.is_fresh && !anew) {
            return answer(remembered, false);
        }
        let (asked, answered) = oneshot::channel();
        match window.requests.try_send(Request { name: name.to_owned(), shown, answer: asked }) {
            Ok(()) => answered.await.unwrap_or(Answer::Away),
            Err(_) => Answer::Busy,
        }
    }
}

/// Whether that can be a user's name.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control)
}

/// See [`Accounts`]: of a user who has shown that. Digests of two processes tell each other nothing.
fn key_of(name: &str, shown: &[&str]) -> String {
    static SALT: LazyLock<[u8; 32]> = LazyLock::new(rand::random);
    let hash = shown.iter().fold(Sha256::new().chain_update(*SALT), |hash, part| {
        hash.chain_update((part.len() as u64).to_be_bytes()).chain_update(part)
    });
    format!("{name}\0{}", STANDARD_NO_PAD.encode(hash.finalize()))
}

/// Tells whose tokens have expired.
async fn watch_tokens(accounts: Arc<Accounts>, on_change: OnChange) {
    let mut look = tokio::time::interval(LOOK_INTERVAL_MAX);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let over = accounts.lapse(clock::now());
        if !over.is_empty() {
            on_change(&over);
        }
    }
}

fn answer(remembered: Remembered, is_new: bool) -> Answer {
    match remembered.known {
        Known::Somebody(account) => Answer::Somebody { name: remembered.name, account, is_new },
        Known::Nobody => Answer::Nobody,
        Known::Refused => Answer::Refused,
        Known::Awaited => Answer::Away,
    }
}

/// What has been heard.
enum Heard {
    OfUser {
        name: Arc<str>,
        found: Result<Known, Failure>,
        is_refresh: bool,
    },
    /// Of a sign of life.
    Ping(Result<(), Failure>),
}

/// Asks one backend.
struct Clerk {
    source: Arc<Source>,
    accounts: Arc<Accounts>,
    state: Arc<State>,
    terms: Terms,
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
    probed: Option<Instant>,
    changed: HashSet<Arc<str>>,
    log: LogRate,
}

impl Clerk {
    fn new(source: Source, accounts: Arc<Accounts>, state: Arc<State>, terms: Terms, on_change: OnChange) -> Self {
        Self {
            source: Arc::new(source),
            accounts,
            state,
            terms,
            on_change,
            permits: Arc::new(Semaphore::new(terms.pool_size)),
            tasks: task::TaskSet::default(),
            heard: mpsc::channel(REQUESTS_MAX),
            waiting: HashMap::default(),
            due: VecDeque::new(),
            refreshing: 0,
            probed: None,
            changed: HashSet::new(),
            log: LogRate::default(),
        }
    }

    async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut look = tokio::time::interval((self.terms.life / 8).min(LOOK_INTERVAL_MAX));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // An operator is to see at the start, and not with the first client, that it cannot be asked.
        self.probe(clock::now());
        loop {
            tokio::select! {
                Some(heard) = self.heard.1.recv() => self.hear(heard),
                Some(request) = requests.recv() => self.take(request),
                _ = look.tick() => self.look(),
                () = self.tasks.ended() => {}
            }
            self.refresh();
        }
    }

    /// Somebody is at the door.
    fn take(&mut self, Request { name, shown, answer: asked }: Request) {
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
        self.ask(name, shown, false);
    }

    fn ask(&mut self, name: Arc<str>, shown: Option<Arc<Shown>>, is_refresh: bool) {
        let (source, permits, state) = (Arc::clone(&self.source), Arc::clone(&self.permits), Arc::clone(&self.state));
        let heard = self.heard.0.clone();
        self.tasks.spawn(async move {
            let Ok(_permit) = permits.acquire().await else { return };
            let found = if state.is_away.load(Ordering::Relaxed) {
                Err(Failure::Away("it was away already".to_owned()))
            } else {
                state.asked.add(1);
                source.look_up(&name, shown.as_ref()).await
            };
            // The clerk outlives its tasks.
            let _ = heard.send(Heard::OfUser { name, found, is_refresh }).await;
        });
    }

    fn hear(&mut self, heard: Heard) {
        let (name, found, is_refresh) = match heard {
            Heard::Ping(Ok(())) => {
                if self.state.is_away.swap(false, Ordering::Relaxed) {
                    tracing::info!(backend = self.accounts.by().name(), "it answers again");
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
            Ok(known) => {
                // Of a service that is being changed, or of what stands before it, 404 is heard as well: that ends nobody's session.
                let known = match known {
                    Known::Nobody if is_refresh && self.accounts.by() == Backend::Http => Known::Refused,
                    known => known,
                };
                self.state.is_failing.store(false, Ordering::Relaxed);
                let (remembered, has_changed) = self.accounts.learn(&name, known, now);
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
        let backend = self.accounts.by().name();
        match failure {
            Failure::Away(problem) => {
                if !self.state.is_away.swap(true, Ordering::Relaxed) {
                    tracing::error!(backend, problem, "it cannot be asked; who is not remembered does not get in");
                }
            }
            Failure::Doubtful(problem) => {
                if let Some(left_out) = self.log.permit("doubtful", now) {
                    tracing::error!(backend, problem, left_out, "what was asked of a user has failed");
                }
                self.probe(now);
            }
            Failure::Refused(problem) => {
                if let Some(left_out) = self.log.permit("refused", now) {
                    tracing::error!(backend, problem, left_out, "it does not answer what it is asked");
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
        let (source, heard) = (Arc::clone(&self.source), self.heard.0.clone());
        self.tasks.spawn(async move {
            // See above.
            let _ = heard.send(Heard::Ping(source.ping().await)).await;
        });
    }

    /// Asks again of those of whom it is time, some at once: who is at the door is not to wait for those who are in.
    fn refresh(&mut self) {
        while self.refreshing < self.terms.pool_size.div_ceil(2)
            && !self.state.is_away.load(Ordering::Relaxed)
            && let Some(name) = self.due.pop_front()
        {
            if self.waiting.contains_key(&name) {
                continue;
            }
            let shown = match self.accounts.follow(&name).1 {
                Known::Somebody(account) => account.shown().cloned(),
                _ => None,
            };
            // With what is no longer good nobody is asked for.
            if shown.is_none() && self.accounts.by() != Backend::Sql {
                continue;
            }
            self.waiting.insert(Arc::clone(&name), Vec::new());
            self.refreshing += 1;
            self.ask(name, shown, true);
        }
    }
}

/// What stands in a file that only the broker's user should read.
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
fn excerpt(name: &str) -> String {
    name.chars().take(64).collect()
}

//! Asks backends outside of this broker about users: a database, a service over HTTP. One thread of its own with a runtime of its own, so that no query runs
//! where clients are served. Tokens, which ask nobody, are looked at here as well.
//!
//! What is heard is kept by `auth`'s [`Accounts`], which also says for how long it counts. Of users with sessions here the backend is asked again in time, and
//! whoever has started this is told when something has changed. How one backend is asked, and how often, is `clerk`'s; what it is asked, `sql`'s and `http`'s.
//!
//! Invariant: an error is never an answer. Who is not remembered waits outside while a backend is away.

mod clerk;
mod http;
mod jwt;
mod rows;
#[cfg(feature = "auth-sql")]
mod sql;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot, watch};

use self::clerk::{AT_DOOR_MAX, Ask, Clerk, News, Request, State, Terms, answer};
use crate::auth::{Account, Accounts, Backend, Known, Shown, user_of};
use crate::config::{Asking, Auth};
use crate::metrics::Sample;
use crate::{clock, task};

/// Between two looks whose tokens have expired.
const TOKENS_INTERVAL: Duration = Duration::from_secs(1);
/// A sign of life that takes longer is none: whoever is at the door waits for it, behind a question that took its whole time-out.
const PING_MAX: Duration = Duration::from_secs(3);
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
    source: Arc<Source>,
    accounts: Arc<Accounts>,
    terms: Terms,
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
    news: Arc<News>,
}

/// Where one backend is asked.
struct Window {
    accounts: Arc<Accounts>,
    requests: mpsc::Sender<Request>,
    state: Arc<State>,
    #[cfg(feature = "auth-sql")]
    source: Arc<Source>,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("by", &self.accounts.by()).field("state", &self.state).finish_non_exhaustive()
    }
}

/// Ends the thread when it is dropped.
#[derive(Debug)]
pub struct Handle {
    backends: Backends,
    _stop: watch::Sender<()>,
}

/// What has been read anew, and is not yet in force.
pub struct Renewal {
    keys: Option<Vec<jwt::Key>>,
    #[cfg(feature = "auth-sql")]
    place: Option<sql::Place>,
}

/// What comes of asking about a user.
#[must_use]
pub enum Inquiry<'a> {
    /// It is known already, or cannot be asked.
    Known(Answer),
    /// It is to be asked.
    Open(Question<'a>),
}

/// See [`Inquiry`].
pub struct Question<'a> {
    window: &'a Window,
    name: String,
    shown: Option<Arc<Shown>>,
    is_anew: bool,
}

impl Question<'_> {
    /// Waits for the answer.
    pub async fn ask(self) -> Answer {
        let (answer, answered) = oneshot::channel();
        let Self { window, name, shown, is_anew } = self;
        match window.requests.try_send(Request { name, shown, is_anew, since: clock::now(), answer }) {
            Ok(()) => answered.await.unwrap_or(Answer::Away),
            Err(_) => Answer::Busy,
        }
    }
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
            let kept = Arc::new(accounts_of(Backend::Sql, sql.asking()));
            accounts.push(Arc::clone(&kept));
            let source = Arc::new(Source::Sql(Box::new(sql::Database::new(dsn_file, sql.clone())?)));
            plans.push(Plan { source, accounts: kept, terms: Terms::new(sql.asking()) });
        }
        if let Some(http) = &auth.http {
            let kept = Arc::new(accounts_of(Backend::Http, http.asking()));
            accounts.push(Arc::clone(&kept));
            let source = Arc::new(Source::Http(Arc::new(http::Service::new(http.clone())?)));
            plans.push(Plan { source, accounts: kept, terms: Terms::new(http.asking()) });
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
        let (mut windows, mut clerks, news) = (Vec::new(), Vec::new(), Arc::<News>::default());
        for Plan { source, accounts, terms } in self.plans {
            let (requests, requests_out) = mpsc::channel(AT_DOOR_MAX);
            let state = Arc::new(State::new(terms));
            let clerk = Clerk::new(Arc::clone(&source), Arc::clone(&accounts), Arc::clone(&state), terms, Arc::clone(&news));
            clerks.push((clerk, requests_out));
            windows.push(Window {
                accounts,
                requests,
                state,
                #[cfg(feature = "auth-sql")]
                source,
            });
        }
        let (stop, mut stopped) = watch::channel(());
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let news_here = Arc::clone(&news);
        let body = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            runtime.block_on(async {
                let mut tasks = task::TaskSet::default();
                for (clerk, requests) in clerks {
                    tasks.spawn(clerk.run(requests));
                }
                if let Some(accounts) = tokens {
                    tasks.spawn(watch_tokens(accounts, Arc::clone(&news_here)));
                }
                tasks.spawn(news_here.tell(on_change));
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
        let backends = Backends(Arc::new(Desk { windows, tokens: self.tokens, news }));
        Ok(Some(Handle { backends, _stop: stop }))
    }
}

impl Ask for Source {
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

    async fn look_up(&self, key: &str, shown: Option<&Arc<Shown>>) -> Result<Known, Failure> {
        match self {
            #[cfg(feature = "auth-sql")]
            Self::Sql(database) => database.look_up(key).await.map(Known::from),
            Self::Http(service) => {
                let (service, name, shown) = (Arc::clone(service), user_of(key).to_owned(), shown.cloned());
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
        let now = clock::now();
        let is_failing = |window: &&Window| window.is_failing(now);
        self.backends.0.windows.iter().filter(is_failing).map(|window| window.accounts.by().name()).collect()
    }

    /// What is counted.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let now = clock::now();
        let samples = self.backends.0.windows.iter().flat_map(|window| {
            let Window { accounts, state, .. } = window;
            let oldest = state.oldest_ms.load(Ordering::Relaxed) as f64 / 1_000.0;
            [
                Sample::gauge("auth_up", "Whether a backend of [auth] answers", f64::from(u8::from(!window.is_failing(now)))),
                Sample::gauge("auth_users", "Users of a backend that are remembered", accounts.count() as f64),
                Sample::gauge(
                    "auth_users_failing",
                    "Users with sessions of whom it gave no answer when it was asked last",
                    state.users_failing.load(Ordering::Relaxed) as f64,
                ),
                Sample::gauge("auth_oldest_seconds", "Age of the oldest word that counts for a user with a session", oldest),
                Sample::counter("auth_asked", "Times that a backend was asked about a user", state.asked.value()),
                Sample::counter("auth_failed", "Times that it did not answer that", state.failed.value()),
            ]
            .map(|sample| sample.with("backend", accounts.by().name()))
        });
        let mut samples: Vec<Sample> = samples.collect();
        samples.sort_by_key(|sample| sample.name);
        samples
    }

    /// Reads the keys of tokens and where the database is anew.
    ///
    /// # Errors
    /// See [`BackendError`]: nothing has changed then.
    pub fn read_anew(&self) -> Result<Renewal, BackendError> {
        let keys = self.backends.0.tokens.as_ref().map(|tokens| tokens.read_anew()).transpose()?;
        #[cfg(feature = "auth-sql")]
        let place = self.database().map(sql::Database::read_anew).transpose()?;
        Ok(Renewal {
            keys,
            #[cfg(feature = "auth-sql")]
            place,
        })
    }

    /// What comes in from now on is judged by these keys, and who came in by one that is no longer among them has to show a new token. The database is asked at that place.
    pub fn renew(&self, renewal: Renewal) {
        let Desk { tokens, news, .. } = &*self.backends.0;
        if let (Some(tokens), Some(keys)) = (tokens, renewal.keys) {
            news.add(tokens.replace(keys));
        }
        #[cfg(feature = "auth-sql")]
        if let (Some(database), Some(place)) = (self.database(), renewal.place) {
            database.replace(place);
        }
    }

    #[cfg(feature = "auth-sql")]
    fn database(&self) -> Option<&sql::Database> {
        self.backends.0.windows.iter().find_map(|window| match &*window.source {
            Source::Sql(database) => Some(&**database),
            Source::Http(_) => None,
        })
    }
}

impl Window {
    fn is_failing(&self, now: Instant) -> bool {
        self.state.is_failing(now) || self.requests.is_closed()
    }
}

impl Backends {
    /// About a user of that backend. `is_anew`: it is to be asked, whatever is known.
    pub fn look_up(&self, by: Backend, name: &str, is_anew: bool) -> Inquiry<'_> {
        if !is_name(name) {
            return Inquiry::Known(Answer::Nobody);
        }
        self.inquire(by, name.to_owned(), None, is_anew)
    }

    /// About a user who has shown a password, which only that backend can look at.
    pub fn show(&self, by: Backend, name: &str, client_id: &str, password: &str) -> Inquiry<'_> {
        if !is_name(name) {
            return Inquiry::Known(Answer::Nobody);
        }
        let shown = || Arc::new(Shown { client_id: client_id.into(), password: password.into() });
        self.inquire(by, key_of(name, &[client_id, password]), Some(&shown), false)
    }

    /// Looks at a token of a client that calls itself `name`.
    #[must_use]
    pub fn read_token(&self, name: &str, token: &str) -> Answer {
        self.0.tokens.as_ref().map_or(Answer::Nobody, |tokens| tokens.read(name, token))
    }

    fn inquire(&self, by: Backend, name: String, shown: Option<&dyn Fn() -> Arc<Shown>>, is_anew: bool) -> Inquiry<'_> {
        let Some(window) = self.0.windows.iter().find(|window| window.accounts.by() == by) else {
            return Inquiry::Known(Answer::Nobody);
        };
        let remembered = window.accounts.recall(&name, clock::now());
        if window.state.is_away.load(Ordering::Relaxed) {
            return Inquiry::Known(remembered.map_or(Answer::Away, |remembered| answer(remembered, false)));
        }
        if let Some(remembered) = remembered.filter(|remembered| remembered.is_fresh && !is_anew) {
            return Inquiry::Known(answer(remembered, false));
        }
        Inquiry::Open(Question { window, name, shown: shown.map(|shown| shown()), is_anew })
    }
}

fn accounts_of(by: Backend, Asking { cache_ttl, cache_grace, .. }: Asking) -> Accounts {
    Accounts::new(by, cache_ttl, cache_grace)
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
async fn watch_tokens(accounts: Arc<Accounts>, news: Arc<News>) {
    let mut look = tokio::time::interval(TOKENS_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        news.add(accounts.lapse(clock::unix_time(), None));
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

//! Asks one backend about users, for those who are at the door and for those who are in.
//!
//! Who is at the door stands in a line; as many questions are asked at once as the backend is said to bear, and of those some are always about users who are in, so
//! that what counts for them does not get older than it may.
//!
//! Invariants:
//! - Of one user it is asked once at a time. An answer is as old as its question, and whoever wants a new one gets none that was asked before.
//! - Those about whom it was asked in vain wait for one another, not the others for them: of these one question at most is under way.
//! - At most [`AT_DOOR_MAX`] wait, and nobody waits for longer than [`LINE_MAX`] to be asked about: they are told that it is busy, and may come again. Who has gone
//!   is not asked about.
//! - While the backend is away it is asked for a sign of life, once in [`PROBE_INTERVAL`] and one at a time, and nothing else. That it is away is said by a connection that
//!   cannot be had or a sign of life that does not come: not by what was asked of one user.
//! - While it can be asked, no word counts that is older than it may be: a question that has failed is no answer. Where it may have failed because the backend is away,
//!   whoever is at the door waits for a sign of life first.
//! - A question that is broken off has failed: nothing waits for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Answer, Failure, OnChange};
use crate::auth::{Accounts, Backend, Known, Look, Remembered, Shown};
use crate::config::Asking;
use crate::limits::HANDSHAKES_MAX;
use crate::log_rate::LogRate;
use crate::metrics::Counter;
use crate::{clock, task};

/// Clients that wait for an answer at once.
pub(super) const AT_DOOR_MAX: usize = 512;
/// Who waits for longer than this until it is asked is told that the backend is busy.
const LINE_MAX: Duration = Duration::from_secs(1);
/// Between two looks whether a backend that is away has come back.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks of whom it is to be asked again, at most; where little time is left for it, the eighth part of that.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// For so long it is shown that a question has failed, at most; where words live shorter, for as long as these.
const FAILURE_SHOWN_MAX: Duration = Duration::from_secs(60);
/// Between two walks over all sessions and all that is retained, at least; and not less than the last one took.
const WALK_PAUSE: Duration = Duration::from_millis(100);

// Two backends that are slow leave half of the handshakes to listeners that need none, and nobody's patience is cut short for them.
const _: () = assert!(2 * AT_DOOR_MAX <= HANDSHAKES_MAX / 2);

/// Whoever can be asked about users. Questions end in time by themselves.
pub(super) trait Ask: Send + Sync + 'static {
    /// Whether it can be asked at all.
    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Asks about a user by the key under which that is kept, and what he has shown.
    fn look_up(&self, key: &str, shown: Option<&Arc<Shown>>) -> impl Future<Output = Result<Known, Failure>> + Send;
}

/// How one is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    life: Duration,
    pool_size: usize,
}

impl Terms {
    pub(super) fn new(Asking { cache_ttl, pool_size, .. }: Asking) -> Self {
        Self { life: cache_ttl, pool_size }
    }
}

/// Somebody is at the door.
#[derive(Debug)]
pub(super) struct Request {
    /// See [`Accounts`].
    pub(super) name: String,
    pub(super) shown: Option<Arc<Shown>>,
    /// Whether what was asked before does not count.
    pub(super) is_anew: bool,
    pub(super) since: Instant,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// How a backend stands, for all to see.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) is_away: AtomicBool,
    pub(super) asked: Counter,
    pub(super) failed: Counter,
    /// See [`Look`].
    pub(super) users_failing: AtomicU64,
    pub(super) oldest_ms: AtomicU64,
    failed_at: Mutex<Option<Instant>>,
    failure_shown: Duration,
}

impl State {
    pub(super) fn new(terms: Terms) -> Self {
        Self { failure_shown: terms.life.min(FAILURE_SHOWN_MAX), ..Self::default() }
    }

    /// Whether it cannot be asked, or has not answered lately what it was asked.
    pub(super) fn is_failing(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < self.failure_shown;
        self.is_away.load(Ordering::Relaxed) || self.failed_at.lock().is_some_and(is_recent)
    }
}

/// Of whom something else is known than before, until all that they have here has been looked at.
#[derive(Debug, Default)]
pub(super) struct News {
    names: Mutex<HashSet<Arc<str>>>,
    come: Notify,
}

impl News {
    pub(super) fn add(&self, names: impl IntoIterator<Item = Arc<str>>) {
        let mut all = self.names.lock();
        all.extend(names);
        if !all.is_empty() {
            self.come.notify_one();
        }
    }

    /// Tells them, those of a while at once: each telling is a walk over all sessions, on a thread of its own. Never ends.
    pub(super) async fn tell(self: Arc<Self>, on_change: OnChange) {
        loop {
            self.come.notified().await;
            let names = std::mem::take(&mut *self.names.lock());
            let (on_change, begun) = (Arc::clone(&on_change), clock::now());
            // Where it panics that is in the log, and the next ones are told all the same.
            let _ = task::blocking(move || on_change(&names)).await;
            let took = clock::now().saturating_duration_since(begun);
            tokio::time::sleep(took.max(WALK_PAUSE)).await;
        }
    }
}

/// What has been heard.
enum Heard {
    OfUser(Reply),
    /// Of a sign of life.
    Ping(Result<(), Failure>),
}

struct Reply {
    name: Arc<str>,
    asked: Instant,
    found: Result<Known, Failure>,
    is_refresh: bool,
    is_again: bool,
}

/// What is to be told of something that is under way, however that ends.
struct Telling {
    word: Option<Heard>,
    heard: mpsc::Sender<Heard>,
}

impl Telling {
    fn tell(mut self, word: Heard) {
        self.word = Some(word);
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some(word) = self.word.take() {
            // There is room for all that is under way, and the clerk outlives its tasks.
            let _ = self.heard.try_send(word);
        }
    }
}

/// Of whom it is asked, or is to be.
#[derive(Default)]
struct Wanted {
    shown: Option<Arc<Shown>>,
    is_asked: bool,
    askers: Vec<Asker>,
    /// For whom the question that is under way was asked too early.
    later: Vec<Asker>,
}

struct Asker {
    since: Instant,
    answer: oneshot::Sender<Answer>,
}

/// See the module's page.
pub(super) struct Clerk<A> {
    source: Arc<A>,
    accounts: Arc<Accounts>,
    state: Arc<State>,
    terms: Terms,
    news: Arc<News>,
    tasks: task::TaskSet,
    heard: (mpsc::Sender<Heard>, mpsc::Receiver<Heard>),
    wanted: HashMap<Arc<str>, Wanted, ahash::RandomState>,
    /// Those at the door of whom it has not been asked yet.
    line: VecDeque<Arc<str>>,
    /// Those whose question has failed, and perhaps because the backend is away: they wait for a sign of life.
    unsure: Vec<(Arc<str>, Vec<Asker>)>,
    /// How many wait, in the line, for what is under way, and for a sign of life.
    at_door: usize,
    /// Of whom it is to be asked again.
    due: VecDeque<Arc<str>>,
    /// See [`Look::again`], and whether it is being asked about one of these.
    again: VecDeque<Arc<str>>,
    is_asking_again: bool,
    asking: usize,
    refreshing: usize,
    /// Whether the last that was asked was about one who is in.
    was_refresh: bool,
    is_probing: bool,
    wants_probe: bool,
    probed: Option<Instant>,
    is_late: bool,
    are_many_missing: bool,
    log: LogRate,
}

impl<A: Ask> Clerk<A> {
    pub(super) fn new(source: Arc<A>, accounts: Arc<Accounts>, state: Arc<State>, terms: Terms, news: Arc<News>) -> Self {
        Self {
            source,
            accounts,
            state,
            terms,
            news,
            tasks: task::TaskSet::default(),
            // One for each that is under way, and the sign of life.
            heard: mpsc::channel(terms.pool_size + 1),
            wanted: HashMap::default(),
            line: VecDeque::new(),
            unsure: Vec::new(),
            at_door: 0,
            due: VecDeque::new(),
            again: VecDeque::new(),
            is_asking_again: false,
            asking: 0,
            refreshing: 0,
            was_refresh: false,
            is_probing: false,
            wants_probe: false,
            probed: None,
            is_late: false,
            are_many_missing: false,
            log: LogRate::default(),
        }
    }

    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut look = tokio::time::interval((self.terms.life / 8).min(LOOK_INTERVAL_MAX));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // An operator is to see at the start, and not with the first client, that it cannot be asked.
        self.probe(clock::now());
        loop {
            let patience = self.line_ends();
            tokio::select! {
                Some(heard) = self.heard.1.recv() => self.hear(heard, clock::now()),
                Some(request) = requests.recv() => self.take(request),
                _ = look.tick() => self.look(clock::now()),
                () = tokio::time::sleep_until(patience.unwrap_or_else(clock::now).into()), if patience.is_some() => {}
                () = self.tasks.ended() => {}
            }
            self.shed(clock::now());
            self.advance(clock::now());
        }
    }

    /// When the first in the line has waited for long enough.
    fn line_ends(&self) -> Option<Instant> {
        let first = self.line.front().and_then(|name| self.wanted.get(name))?;
        first.askers.first().map(|asker| asker.since + LINE_MAX)
    }

    fn take(&mut self, Request { name, shown, is_anew, since, answer }: Request) {
        if self.at_door >= AT_DOOR_MAX {
            // Whoever asked may be gone.
            let _ = answer.send(Answer::Busy);
            return;
        }
        self.at_door += 1;
        let asker = Asker { since, answer };
        match self.wanted.get_mut(name.as_str()) {
            Some(wanted) if wanted.is_asked && is_anew => wanted.later.push(asker),
            Some(wanted) => wanted.askers.push(asker),
            None => {
                let name: Arc<str> = name.into();
                self.wanted.insert(Arc::clone(&name), Wanted { shown, askers: vec![asker], ..Wanted::default() });
                self.line.push_back(name);
            }
        }
    }

    /// Sends away who has waited for too long, and forgets who has gone.
    fn shed(&mut self, now: Instant) {
        while let Some(name) = self.line.front() {
            let Some(wanted) = self.wanted.get_mut(name) else {
                self.line.pop_front();
                continue;
            };
            let is_over = wanted.askers.first().is_some_and(|asker| now.saturating_duration_since(asker.since) >= LINE_MAX);
            if !is_over && wanted.askers.iter().any(|asker| !asker.answer.is_closed()) {
                return;
            }
            let left = std::mem::take(&mut wanted.askers);
            self.wanted.remove(name);
            self.line.pop_front();
            self.reply(left, &Answer::Busy);
        }
    }

    fn reply(&mut self, askers: Vec<Asker>, answer: &Answer) {
        self.at_door -= askers.len();
        for asker in askers {
            // Whoever asked may be gone.
            let _ = asker.answer.send(answer.clone());
        }
    }

    /// Asks as much as may be asked at once.
    fn advance(&mut self, now: Instant) {
        if self.state.is_away.load(Ordering::Relaxed) {
            self.due.clear();
            self.again.clear();
            for name in std::mem::take(&mut self.line) {
                let askers = self.wanted.remove(&name).map(|wanted| wanted.askers).unwrap_or_default();
                let answer = self.remembered(&name, now);
                self.reply(askers, &answer);
            }
            for (name, askers) in std::mem::take(&mut self.unsure) {
                let answer = self.remembered(&name, now);
                self.reply(askers, &answer);
            }
            return;
        }
        while self.asking < self.terms.pool_size {
            let most = self.terms.pool_size.div_ceil(2);
            let may_ask_again = !self.again.is_empty() && !self.is_asking_again;
            let may_refresh = (!self.due.is_empty() || may_ask_again) && self.refreshing < most;
            // One at least of those who are in, so that they get their turn; all others are for the door.
            let must_refresh = self.refreshing == 0 && (self.terms.pool_size > 1 || !self.was_refresh);
            if may_refresh && (must_refresh || self.line.is_empty()) {
                // Where there is one place for all of them the others go first.
                self.refresh(may_ask_again && (most > 1 || self.due.is_empty()));
            } else if let Some(name) = self.line.pop_front() {
                self.ask(name, false, false);
                self.shed(now);
            } else {
                return;
            }
        }
    }

    /// Asks again about the next of whom it is time.
    fn refresh(&mut self, is_again: bool) {
        let list = if is_again { &mut self.again } else { &mut self.due };
        let Some(name) = list.pop_front() else { return };
        if self.wanted.contains_key(&name) {
            return;
        }
        let shown = match self.accounts.follow(&name).1 {
            Known::Somebody(account) => account.shown().cloned(),
            _ => None,
        };
        // With what is no longer good nobody is asked for.
        if shown.is_none() && self.accounts.by() != Backend::Sql {
            return;
        }
        self.wanted.insert(Arc::clone(&name), Wanted { shown, ..Wanted::default() });
        self.ask(name, true, is_again);
    }

    fn ask(&mut self, name: Arc<str>, is_refresh: bool, is_again: bool) {
        let Some(wanted) = self.wanted.get_mut(&name) else { return };
        wanted.is_asked = true;
        let shown = wanted.shown.clone();
        self.asking += 1;
        self.refreshing += usize::from(is_refresh);
        self.is_asking_again |= is_again;
        self.was_refresh = is_refresh;
        self.state.asked.add(1);
        let asked = clock::now();
        let reply = move |name, found| Heard::OfUser(Reply { name, asked, found, is_refresh, is_again });
        let broken_off = Failure::Doubtful("the question was broken off".to_owned());
        let telling = Telling { word: Some(reply(Arc::clone(&name), Err(broken_off))), heard: self.heard.0.clone() };
        let source = Arc::clone(&self.source);
        self.tasks.spawn(async move {
            let found = source.look_up(&name, shown.as_ref()).await;
            telling.tell(reply(name, found));
        });
    }

    fn hear(&mut self, heard: Heard, now: Instant) {
        let Reply { name, asked, found, is_refresh, is_again } = match heard {
            Heard::Ping(answered) => return self.hear_sign(answered, now),
            Heard::OfUser(reply) => reply,
        };
        self.asking -= 1;
        self.refreshing -= usize::from(is_refresh);
        self.is_asking_again &= !is_again;
        let Wanted { shown, askers, later, .. } = self.wanted.remove(&name).unwrap_or_default();
        match found {
            Ok(known) => {
                let (remembered, has_changed) = self.accounts.learn(&name, known, asked);
                if has_changed {
                    self.news.add([Arc::clone(&remembered.name)]);
                }
                self.reply(askers, &answer(remembered, true));
            }
            Err(failure) => {
                if !matches!(failure, Failure::Away(_))
                    && let Some(name) = self.accounts.fail(&name, now)
                {
                    tracing::error!(
                        backend = self.accounts.by().name(),
                        user = ?super::excerpt(crate::auth::user_of(&name)),
                        "no answer about a user for as long as cache_grace: the last one counts no more"
                    );
                    self.news.add([name]);
                }
                self.fail(&failure, now);
                let remembered = self.accounts.recall(&name, now);
                if let Some(fresh) = remembered.filter(|remembered| remembered.is_fresh) {
                    self.reply(askers, &answer(fresh, false));
                } else if let Failure::Refused(_) = failure {
                    self.reply(askers, &Answer::Away);
                } else {
                    self.unsure.push((Arc::clone(&name), askers));
                }
            }
        }
        if !later.is_empty() {
            // They have waited for what could not be known.
            let later = later.into_iter().map(|asker| Asker { since: now, ..asker }).collect();
            self.wanted.insert(Arc::clone(&name), Wanted { shown, askers: later, ..Wanted::default() });
            self.line.push_front(name);
        }
    }

    fn hear_sign(&mut self, answered: Result<(), Failure>, now: Instant) {
        self.is_probing = false;
        match answered {
            Ok(()) => {
                for (_, askers) in std::mem::take(&mut self.unsure) {
                    self.reply(askers, &Answer::Away);
                }
                if self.state.is_away.swap(false, Ordering::Relaxed) {
                    tracing::info!(backend = self.accounts.by().name(), "it answers again");
                    *self.state.failed_at.lock() = None;
                    self.accounts.excuse(now);
                }
            }
            Err(failure) if !self.state.is_away.load(Ordering::Relaxed) => self.fail(&failure, now),
            Err(_) => {}
        }
    }

    /// What counts while it is away.
    fn remembered(&self, name: &str, now: Instant) -> Answer {
        self.accounts.recall(name, now).map_or(Answer::Away, |remembered| answer(remembered, false))
    }

    fn fail(&mut self, failure: &Failure, now: Instant) {
        self.state.failed.add(1);
        *self.state.failed_at.lock() = Some(now);
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
    fn look(&mut self, now: Instant) {
        let look = self.accounts.look(now);
        self.tell_whether_many_are_missing(&look);
        let Look { due, again, oldest, failing, .. } = look;
        self.state.oldest_ms.store(u64::try_from(oldest.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.state.users_failing.store(failing as u64, Ordering::Relaxed);
        if self.state.is_away.load(Ordering::Relaxed) {
            self.probe(now);
            return;
        }
        if self.wants_probe {
            self.probe(now);
        }
        self.tell_whether_late(oldest);
        if self.due.is_empty() {
            self.due = due.into();
        }
        if self.again.is_empty() {
            self.again = again.into();
        }
    }

    fn tell_whether_many_are_missing(&mut self, look: &Look) {
        let are_many = look.are_many_missing();
        if are_many && !self.are_many_missing {
            tracing::error!(
                backend = self.accounts.by().name(),
                missing = look.missing,
                of = look.followed,
                "many users are not found any more; they are shut out, and what they have ends if that is still so after a day"
            );
        }
        self.are_many_missing = are_many;
    }

    /// A backend that is too slow for so many users does not keep what `cache_ttl` promises.
    fn tell_whether_late(&mut self, oldest: Duration) {
        let backend = self.accounts.by().name();
        let is_late = oldest > self.terms.life + LOOK_INTERVAL_MAX;
        if is_late && !self.is_late {
            tracing::warn!(
                backend,
                oldest_s = oldest.as_secs(),
                "it cannot be asked about all users within cache_ttl: raise that or pool_size, or make it answer faster"
            );
        } else if self.is_late && !is_late {
            tracing::info!(backend, "all users are asked about within cache_ttl again");
        }
        self.is_late = is_late;
    }

    /// Asks for a sign of life, one at a time; where that was done just now, at the next look.
    fn probe(&mut self, now: Instant) {
        self.wants_probe = self.is_probing || self.probed.is_some_and(|at| now.saturating_duration_since(at) < PROBE_INTERVAL);
        if self.wants_probe {
            return;
        }
        (self.is_probing, self.probed) = (true, Some(now));
        let broken_off = Failure::Away("it was not asked".to_owned());
        let telling = Telling { word: Some(Heard::Ping(Err(broken_off))), heard: self.heard.0.clone() };
        let source = Arc::clone(&self.source);
        self.tasks.spawn(async move {
            let answered = source.ping().await;
            telling.tell(Heard::Ping(answered));
        });
    }
}

pub(super) fn answer(remembered: Remembered, is_new: bool) -> Answer {
    match remembered.known {
        Known::Somebody(account) => Answer::Somebody { name: remembered.name, account, is_new },
        Known::Nobody | Known::Missing => Answer::Nobody,
        Known::Refused => Answer::Refused,
        Known::Awaited => Answer::Away,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;
    use crate::auth::{Account, Granted};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Knows everybody, unless it fails. `slow...` takes until it is let go, `boom` is a fault in the program.
    struct Fake {
        asked: Mutex<Vec<String>>,
        gate: Semaphore,
        failure: Mutex<Option<Failure>>,
        is_away: AtomicBool,
    }

    impl Ask for Fake {
        async fn ping(&self) -> Result<(), Failure> {
            if self.is_away.load(Ordering::Relaxed) { Err(Failure::Away("it is away".to_owned())) } else { Ok(()) }
        }

        async fn look_up(&self, key: &str, _: Option<&Arc<Shown>>) -> Result<Known, Failure> {
            self.asked.lock().push(key.to_owned());
            assert_ne!(key, "boom");
            if key.starts_with("slow") {
                self.gate.acquire().await.unwrap().forget();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            if let Some(failure) = self.failure.lock().clone() {
                return Err(failure);
            }
            Ok(Known::Somebody(Arc::new(Account::new(None, Granted::All))))
        }
    }

    struct Bench {
        fake: Arc<Fake>,
        accounts: Arc<Accounts>,
        state: Arc<State>,
        requests: mpsc::Sender<Request>,
    }

    impl Bench {
        fn new(pool_size: usize, life: Duration) -> Self {
            let (asked, gate, failure, is_away) = (Mutex::default(), Semaphore::new(0), Mutex::default(), AtomicBool::new(false));
            let fake = Arc::new(Fake { asked, gate, failure, is_away });
            let accounts = Arc::new(Accounts::new(Backend::Sql, life, life * 100));
            let terms = Terms { life, pool_size };
            let state = Arc::new(State::new(terms));
            let clerk = Clerk::new(Arc::clone(&fake), Arc::clone(&accounts), Arc::clone(&state), terms, Arc::default());
            let (requests, requests_out) = mpsc::channel(2 * AT_DOOR_MAX);
            task::spawn("clerk", clerk.run(requests_out));
            Self { fake, accounts, state, requests }
        }

        fn put(&self, name: &str, is_anew: bool) -> oneshot::Receiver<Answer> {
            let (answer, answered) = oneshot::channel();
            let request = Request { name: name.to_owned(), shown: None, is_anew, since: clock::now(), answer };
            self.requests.try_send(request).unwrap();
            answered
        }

        fn times(&self, name: &str) -> usize {
            self.fake.asked.lock().iter().filter(|asked| *asked == name).count()
        }

        async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
            let end = clock::now() + PATIENCE;
            while !is_so() {
                assert!(clock::now() < end, "{what}: {:?}", self.fake.asked.lock());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn said(answered: oneshot::Receiver<Answer>) -> Answer {
        tokio::time::timeout(PATIENCE, answered).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn who_waits_for_too_long_is_told_so_and_who_has_gone_is_not_asked_about() {
        let bench = Bench::new(2, Duration::from_secs(600));
        let slow = ["slow 1", "slow 2"].map(|name| bench.put(name, false));
        bench.until("both", || bench.fake.asked.lock().len() == 2).await;
        let begun = clock::now();
        drop(bench.put("gone", false));
        let waiting = bench.put("bob", false);
        assert!(matches!(said(waiting).await, Answer::Busy));
        assert!(clock::now() - begun >= LINE_MAX);
        // Whoever is asked about already waits for that.
        let joined = bench.put("slow 1", false);
        bench.fake.gate.add_permits(2);
        for answered in slow.into_iter().chain([joined, bench.put("eve", false)]) {
            assert!(matches!(said(answered).await, Answer::Somebody { .. }));
        }
        assert_eq!((bench.times("gone"), bench.times("bob"), bench.times("slow 1")), (0, 0, 1));
    }

    #[tokio::test]
    async fn so_many_wait_and_no_more() {
        let bench = Bench::new(1, Duration::from_secs(600));
        let mut all: Vec<_> = (0..=AT_DOOR_MAX).map(|n| bench.put(&format!("slow {n}"), false)).collect();
        assert!(matches!(said(all.pop().unwrap()).await, Answer::Busy));
        bench.until("the first", || bench.times("slow 0") == 1).await;
        bench.fake.gate.add_permits(all.len());
        assert!(matches!(said(all.swap_remove(0)).await, Answer::Somebody { .. }));
    }

    #[tokio::test]
    async fn those_who_are_in_have_their_turn_beside_a_long_line() {
        for pool_size in [1, 2] {
            let bench = Bench::new(pool_size, Duration::from_millis(100));
            let Answer::Somebody { name, .. } = said(bench.put("held", false)).await else { panic!("somebody") };
            let all: Vec<_> = (0..AT_DOOR_MAX).map(|n| bench.put(&format!("stranger {n}"), false)).collect();
            bench.until("a second question", || bench.times("held") == 2).await;
            assert!(bench.fake.asked.lock().len() < AT_DOOR_MAX, "behind all others");
            drop((all, name));
        }
    }

    #[tokio::test]
    async fn those_about_whom_nothing_is_said_delay_nobody_but_one_another() {
        for pool_size in [3, 4] {
            let bench = Bench::new(pool_size, Duration::from_secs(1));
            let long_ago = clock::now() - Duration::from_secs(60);
            let known = || Known::Somebody(Arc::new(Account::new(None, Granted::All)));
            let slow: Vec<_> = (0..10)
                .map(|n| {
                    let name = bench.accounts.learn(&format!("slow {n}"), known(), long_ago).0.name;
                    assert_eq!(bench.accounts.fail(&name, long_ago), None);
                    name
                })
                .collect();
            let Answer::Somebody { name, .. } = said(bench.put("held", false)).await else { panic!("somebody") };
            bench.until("some more questions", || bench.times("held") >= 4).await;
            let asked = slow.iter().filter(|name| bench.times(name) > 0).count();
            assert_eq!(asked, 1, "{:?}", bench.fake.asked.lock());
            drop(name);
        }
    }

    #[tokio::test]
    async fn a_question_that_is_broken_off_keeps_nobody_waiting_and_no_place() {
        let bench = Bench::new(1, Duration::from_secs(600));
        assert!(matches!(said(bench.put("boom", false)).await, Answer::Away));
        assert!(matches!(said(bench.put("bob", false)).await, Answer::Somebody { .. }));
        assert!(matches!(said(bench.put("boom", false)).await, Answer::Away));
        assert!(bench.state.is_failing(clock::now()) && !bench.state.is_away.load(Ordering::Relaxed));
        assert_eq!((bench.times("boom"), bench.state.failed.value()), (2, 2));
    }

    #[tokio::test]
    async fn a_question_that_fails_is_answered_by_an_old_word_only_while_the_backend_is_away() {
        let fail = |bench: &Bench, failure: fn(String) -> Failure| *bench.fake.failure.lock() = Some(failure("no".to_owned()));
        let bench = Bench::new(2, Duration::from_secs(600));
        assert!(matches!(said(bench.put("bob", false)).await, Answer::Somebody { is_new: true, .. }));
        for failure in [Failure::Refused, Failure::Doubtful] {
            fail(&bench, failure);
            assert!(matches!(said(bench.put("bob", false)).await, Answer::Somebody { is_new: false, .. }), "it is as good as new");
        }
        let bench = Bench::new(2, Duration::from_secs(1));
        assert!(matches!(said(bench.put("bob", false)).await, Answer::Somebody { is_new: true, .. }));
        let is_old = || bench.accounts.recall("bob", clock::now()).is_some_and(|remembered| !remembered.is_fresh);
        bench.until("an old word", is_old).await;
        for failure in [Failure::Refused, Failure::Doubtful] {
            fail(&bench, failure);
            assert!(matches!(said(bench.put("bob", false)).await, Answer::Away), "others are answered");
        }
        assert!(!bench.state.is_away.load(Ordering::Relaxed));
        // Only now it is seen that it is away, and whoever waits is let in by what is remembered; nobody else is.
        bench.fake.is_away.store(true, Ordering::Relaxed);
        let both = ["bob", "eve"].map(|name| bench.put(name, false));
        let [bob, eve] = both.map(said);
        assert!(matches!(bob.await, Answer::Somebody { is_new: false, .. }));
        assert!(matches!(eve.await, Answer::Away));
        assert!(bench.state.is_away.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn who_wants_a_new_answer_gets_none_that_was_asked_for_before() {
        let bench = Bench::new(2, Duration::from_secs(600));
        let first = bench.put("slow", false);
        bench.until("a question", || bench.times("slow") == 1).await;
        let (joined, anew) = (bench.put("slow", false), bench.put("slow", true));
        bench.fake.gate.add_permits(1);
        for answered in [first, joined] {
            assert!(matches!(said(answered).await, Answer::Somebody { .. }));
        }
        bench.until("another question", || bench.times("slow") == 2).await;
        bench.fake.gate.add_permits(1);
        assert!(matches!(said(anew).await, Answer::Somebody { is_new: true, .. }));
    }
}

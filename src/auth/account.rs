//! What backends outside of this broker have said of users, and for how long that counts.
//!
//! It asks nobody and reads no clock: `backends` asks, tells what it has heard, and is told of whom it should ask again. A word counts for `life`; after that the
//! backend is asked, and while it cannot be, the last word that there is such a user counts for `grace`. That there is none counts a few seconds, so that a new
//! user is not kept out by one who tried his name, and not at all while the backend is away.
//!
//! Words are kept by *keys*. A key is the user's name; where the word is about what a client has shown as well, a NUL and a digest of that stand behind the name,
//! so that each is a word of its own. No name has a NUL in it.
//!
//! Invariants:
//! - Of users whose sessions are here (somebody holds the name that [`Accounts`] gave out) the last word is kept, of others the newest ones up to a bound.
//! - What is not known grants nothing.
//! - A word is as old as the question that it answers.
//! - That a database does not know a user any more shuts him out at once, and ends his sessions only if it says so again a `life` later, or, where many are missing, a day:
//!   a table that is filled anew, or a standby without data, costs nobody what waits for him. What stands before a service says "unknown", too, when that is being changed, so its word ends none.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::acl::Rules;
use super::password::Record;

/// Users without a session that are remembered.
const IDLE_MAX: usize = 10_000;
/// Bytes of rules that may come until it is looked who can go.
const RULES_BYTES: usize = 16 * 1_024 * 1_024;
/// How many fewer are remembered then.
const RULES_SHARE: usize = 64;
/// How long it counts that there is no such user.
const NOBODY_LIFE: Duration = Duration::from_secs(5);
/// Where more than this part of those with sessions is missing, and so many, or all of several, it is the database that lacks them.
const MISSING_SHARE: usize = 10;
const MISSING_MIN: usize = 10;
/// They are gone if they are missing for so long.
const MISSING_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// Of whom a question has failed it is asked again after a quarter of `life`, or this.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Who knows users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The password file.
    File,
    /// A database.
    Sql,
    /// A service that is asked over HTTP.
    Http,
    /// Whoever signs tokens.
    Jwt,
    /// Whoever signs certificates.
    Certificate,
}

impl Backend {
    /// What stands for it in the record of a session: those that are no files.
    pub(super) fn letter(self) -> char {
        match self {
            Self::File => 'u',
            Self::Certificate => 'c',
            Self::Sql => 's',
            Self::Http => 'h',
            Self::Jwt => 'j',
        }
    }

    pub(super) fn of_letter(letter: &str) -> Option<Self> {
        match letter {
            "s" => Some(Self::Sql),
            "h" => Some(Self::Http),
            "j" => Some(Self::Jwt),
            _ => None,
        }
    }

    /// As it is called in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Sql => "sql",
            Self::Http => "http",
            Self::Jwt => "jwt",
            Self::Certificate => "certificate",
        }
    }
}

/// The user's name in a key.
#[must_use]
pub fn user_of(key: &str) -> &str {
    key.split('\0').next().unwrap_or_default()
}

/// What a client has shown, to be shown again when its backend is asked again. It is kept as long as the client's session, or the word that it was good.
#[derive(PartialEq, Eq)]
pub struct Shown {
    /// The id of the client.
    pub client_id: Box<str>,
    /// The password.
    pub password: Box<str>,
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shown").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// What a user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Everything.
    All,
    /// What the listener's access file says, or everything where there is none.
    AsListener,
    /// What the listener's access file says, or nothing where there is none.
    AsFile,
    /// What these say.
    Rules(Arc<Rules>),
}

/// What a backend knows of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    record: Option<Arc<Record>>,
    granted: Granted,
    shown: Option<Arc<Shown>>,
}

impl Account {
    /// Of a user with this password; none: no password of his is known.
    #[must_use]
    pub fn new(record: Option<Record>, granted: Granted) -> Self {
        Self { record: record.map(Arc::new), granted, shown: None }
    }

    /// Of a user whose backend itself looks at what is shown to it, and has found that good.
    #[must_use]
    pub fn showing(shown: Arc<Shown>, granted: Granted) -> Self {
        Self { record: None, granted, shown: Some(shown) }
    }

    /// Of the user's password.
    #[must_use]
    pub fn record(&self) -> Option<&Arc<Record>> {
        self.record.as_ref()
    }

    /// What was shown.
    #[must_use]
    pub fn shown(&self) -> Option<&Arc<Shown>> {
        self.shown.as_ref()
    }

    /// What the user may do.
    #[must_use]
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// The same without what was shown: for what outlives the session.
    #[must_use]
    pub fn without_shown(&self) -> Self {
        Self { shown: None, ..self.clone() }
    }
}

/// What is known of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its backend has not been asked yet.
    Awaited,
    /// There is no such user.
    Nobody,
    /// There was, and at the last look there was not: perhaps all are being written anew.
    Missing,
    /// What was shown is not, or no longer, what this user shows.
    Refused,
    /// There is.
    Somebody(Arc<Account>),
}

impl From<Option<Account>> for Known {
    fn from(account: Option<Account>) -> Self {
        account.map_or(Self::Nobody, |account| Self::Somebody(Arc::new(account)))
    }
}

/// What is remembered of a user.
#[derive(Clone, Debug)]
pub struct Remembered {
    /// The key, to be kept as long as the user has a session.
    pub name: Arc<str>,
    /// What its backend said.
    pub known: Known,
    /// Whether it need not be asked.
    pub is_fresh: bool,
}

/// By what a word that counts until then was sealed. Who no longer has that seal is not believed any more.
pub type Seal = [u8; 32];

/// When a word ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Since the Unix epoch: a clock that is set right is heeded.
    pub end: Duration,
    /// See [`Seal`].
    pub seal: Seal,
}

/// How users with sessions stand.
#[derive(Debug, Default)]
pub struct Look {
    /// Of whom the backend is to be asked again by now, so that no word that counts for them gets older than `life`; the oldest first.
    pub due: Vec<Arc<str>>,
    /// Those of whom it is to be asked again and was asked in vain: they may take the whole time-out once more. The oldest first.
    pub again: Vec<Arc<str>>,
    /// How old the oldest word is that counts for one of them.
    pub oldest: Duration,
    /// Of how many the backend was asked last without an answer.
    pub failing: usize,
    /// Of how many it counts that there is such a user, or did before they were missing.
    pub followed: usize,
    /// How many are missing.
    pub missing: usize,
}

impl Look {
    /// Whether so many are missing that it is the database that lacks them.
    #[must_use]
    pub fn are_many_missing(&self) -> bool {
        let is_many = self.missing >= MISSING_MIN || (self.missing > 1 && self.missing == self.followed);
        is_many && self.missing > self.followed / MISSING_SHARE
    }
}

/// See the module's page.
#[derive(Debug)]
pub struct Accounts {
    by: Backend,
    life: Duration,
    grace: Duration,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_name: BTreeMap<Arc<str>, Entry>,
    /// When the backend was asked last what it has answered well: about those who may do everything, and about others. Of these it is asked for more.
    answered: [Option<Instant>; 2],
    /// As of the last look.
    are_many_missing: bool,
    /// At so many it is looked who can go.
    full_at: usize,
    /// Rules that are the same are kept once, and so are the routes that are worked out by them.
    rules: HashSet<Arc<Rules>, ahash::RandomState>,
    rules_bytes: usize,
    /// As [`Table::full_at`].
    rules_full_at: usize,
}

#[derive(Debug)]
struct Entry {
    known: Known,
    /// When its backend was asked what it has said; none: it has not been.
    at: Option<Instant>,
    /// When it was asked last without an answer, and since when there has been none, if that was after `at`.
    failed: Option<(Instant, Instant)>,
    /// Since when it is [`Known::Missing`].
    missing: Option<Instant>,
    /// When that ends by itself.
    term: Option<Term>,
    /// It is to be asked at once: of the same user something else was taken back.
    is_doubted: bool,
}

impl Default for Entry {
    fn default() -> Self {
        Self { known: Known::Awaited, at: None, failed: None, missing: None, term: None, is_doubted: false }
    }
}

impl Accounts {
    /// Of a backend whose word counts for `life`, and for `grace` while it cannot be asked.
    #[must_use]
    pub fn new(by: Backend, life: Duration, grace: Duration) -> Self {
        Self { by, life, grace, table: Mutex::default() }
    }

    /// Whose word that is.
    #[must_use]
    pub fn by(&self) -> Backend {
        self.by
    }

    /// What is known of a user; nothing if that is too old to count even while the backend is away.
    #[must_use]
    pub fn recall(&self, name: &str, now: Instant) -> Option<Remembered> {
        let table = self.table.lock();
        let (name, entry) = table.by_name.get_key_value(name)?;
        let age = now.saturating_duration_since(entry.at?);
        let (life, grace) = match entry.known {
            Known::Awaited => return None,
            Known::Nobody | Known::Missing | Known::Refused => (self.life.min(NOBODY_LIFE), Duration::ZERO),
            Known::Somebody(_) => (self.life, self.grace),
        };
        let is_fresh = age < life && !entry.is_doubted;
        (age < life.max(grace)).then(|| Remembered { name: Arc::clone(name), known: entry.known.clone(), is_fresh })
    }

    /// Takes what the backend says that was asked at `asked`. Whether what is known of a user with a session, or of one who may have left something here, has
    /// changed by it.
    pub fn learn(&self, name: &str, word: impl Into<Known>, asked: Instant) -> (Remembered, bool) {
        let mut table = self.table.lock();
        let name = table.entry_of(name, asked);
        // One is the table's, one ours.
        let is_followed = Arc::strong_count(&name) > 2;
        let word = match word.into() {
            Known::Somebody(account) => {
                let answered = table.answered_about(&account);
                *answered = (*answered).max(Some(asked));
                Known::Somebody(table.with_shared_rules(account))
            }
            word => word,
        };
        let are_many_missing = table.are_many_missing;
        let Some(entry) = table.by_name.get_mut(&name) else {
            return (Remembered { name, known: word, is_fresh: true }, false);
        };
        let word = match word {
            Known::Nobody if is_followed => {
                let since = *entry.missing.get_or_insert(asked);
                let patience = if are_many_missing { self.life.max(MISSING_LIFE) } else { self.life };
                let is_sure = self.by == Backend::Sql && asked.saturating_duration_since(since) >= patience;
                if is_sure || entry.known == Known::Nobody { Known::Nobody } else { Known::Missing }
            }
            word => {
                entry.missing = None;
                word
            }
        };
        (entry.at, entry.failed, entry.is_doubted) = (Some(asked), None, false);
        let is_same = entry.known == word;
        let was_somebody = matches!(entry.known, Known::Somebody(_));
        if !is_same {
            entry.known = word;
        }
        let known = entry.known.clone();
        let is_taken_back = was_somebody && !matches!(known, Known::Somebody(_));
        if is_followed && is_taken_back {
            table.doubt(&name);
        }
        (Remembered { name, known, is_fresh: true }, (is_followed || was_somebody) && !is_same)
    }

    /// Takes that the backend was asked about this user and gave no answer, though it can be asked. Whoever has a session goes on, but not for ever: after `grace` his
    /// word counts no more, if it has answered well meanwhile about somebody else of whom it is asked the same. Whether that is now. Where it answers about nobody it is
    /// the backend that is at fault, or what it is asked, and all go on.
    #[must_use]
    pub fn fail(&self, name: &str, now: Instant) -> Option<Arc<str>> {
        let mut table = self.table.lock();
        let name = Arc::clone(table.by_name.get_key_value(name)?.0);
        let entry = table.by_name.get_mut(&name)?;
        let since = entry.failed.map_or(now, |(_, since)| since);
        entry.failed = Some((now, since));
        let is_over = now.saturating_duration_since(since) >= self.life.max(self.grace);
        let Known::Somebody(account) = &entry.known else { return None };
        let account = Arc::clone(account);
        if !is_over || table.answered_about(&account).is_none_or(|at| at < since) {
            return None;
        }
        table.by_name.get_mut(&name)?.known = Known::Refused;
        Some(name)
    }

    /// Takes that the backend was away until now: what was not answered meanwhile says nothing of anybody.
    pub fn excuse(&self, now: Instant) {
        for entry in self.table.lock().by_name.values_mut() {
            entry.failed = entry.failed.map(|(at, _)| (at, now));
        }
    }

    /// Takes a word that counts until then, however often it comes. The key is to be kept as long as the user has a session.
    pub fn learn_until(&self, name: &str, account: Account, term: Term, now: Instant) -> (Arc<str>, Arc<Account>) {
        let mut table = self.table.lock();
        let name = table.entry_of(name, now);
        if let Some(Entry { known: Known::Somebody(before), term: Some(before_term), .. }) = table.by_name.get(&name)
            && **before == account
            && *before_term == term
        {
            return (name, Arc::clone(before));
        }
        let account = table.with_shared_rules(Arc::new(account));
        let known = Known::Somebody(Arc::clone(&account));
        table.by_name.insert(Arc::clone(&name), Entry { known, at: Some(now), term: Some(term), ..Entry::default() });
        (name, account)
    }

    /// What counted until now counts no more, nor does what has a seal that is not among these; none: all seals are good. Whose sessions are here.
    pub fn lapse(&self, unix_time: Duration, seals: Option<&HashSet<Seal>>) -> HashSet<Arc<str>> {
        let mut over = HashSet::new();
        let mut table = self.table.lock();
        table.by_name.retain(|name, entry| {
            let is_followed = Arc::strong_count(name) > 1;
            let is_good = |term: Term| term.end > unix_time && seals.is_none_or(|seals| seals.contains(&term.seal));
            if entry.term.is_none_or(is_good) {
                return true;
            }
            if is_followed && entry.known != Known::Refused {
                entry.known = Known::Refused;
                over.insert(Arc::clone(name));
            }
            is_followed
        });
        table.sweep_rules();
        over
    }

    /// What is known of the user of a session that is here, however old that is, and the name by which that is kept. That there was no such user when nobody
    /// had a session here is not: he may have been added since.
    #[must_use]
    pub fn follow(&self, name: &Arc<str>) -> (Arc<str>, Known) {
        let mut table = self.table.lock();
        let name: Arc<str> = match table.by_name.get_key_value(name) {
            Some((name, entry)) if matches!(entry.known, Known::Somebody(_)) || Arc::strong_count(name) > 1 => {
                return (Arc::clone(name), entry.known.clone());
            }
            // The word stays as it is for whoever is at the door, but for a session it is as if nobody had been asked.
            Some((name, _)) if self.by != Backend::Sql => return (Arc::clone(name), Known::Awaited),
            Some((name, _)) => Arc::clone(name),
            // Without what was shown nobody can be asked.
            None if self.by != Backend::Sql => return (Arc::clone(name), Known::Awaited),
            // A copy: whoever asks may hold his own for longer than a session.
            None => Arc::from(&**name),
        };
        table.by_name.insert(Arc::clone(&name), Entry::default());
        (name, Known::Awaited)
    }

    /// Looks after users with sessions, and forgets those without one of whom nothing counts any more, with what they have shown.
    #[must_use]
    pub fn look(&self, now: Instant) -> Look {
        let age = |entry: &Entry| entry.at.map(|at| now.saturating_duration_since(at));
        let retry = (self.life / 4).min(RETRY_MAX);
        let is_due = |entry: &Entry| {
            let is_old = entry.is_doubted || age(entry).is_none_or(|age| age >= self.life / 2);
            is_old && entry.failed.is_none_or(|(at, _)| now.saturating_duration_since(at) >= retry)
        };
        let kept_for = self.life.max(self.grace);
        let (mut look, mut due, mut again) = (Look::default(), Vec::new(), Vec::new());
        let mut table = self.table.lock();
        table.by_name.retain(|name, entry| {
            if Arc::strong_count(name) == 1 {
                return age(entry).is_some_and(|age| age < kept_for);
            }
            if let Known::Somebody(_) = entry.known {
                look.oldest = look.oldest.max(age(entry).unwrap_or_default());
            }
            look.followed += usize::from(matches!(entry.known, Known::Somebody(_) | Known::Missing));
            look.missing += usize::from(entry.known == Known::Missing);
            look.failing += usize::from(entry.failed.is_some());
            if is_due(entry) {
                let list = if entry.failed.is_some() { &mut again } else { &mut due };
                list.push((entry.at, Arc::clone(name)));
            }
            true
        });
        table.sweep_rules();
        table.are_many_missing = look.are_many_missing();
        drop(table);
        // Never asked comes first.
        for (list, names) in [(due, &mut look.due), (again, &mut look.again)] {
            let mut list = list;
            list.sort_unstable();
            names.extend(list.into_iter().map(|(_, name)| name));
        }
        look
    }

    /// How many users are remembered.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.lock().by_name.len()
    }
}

impl Table {
    /// See [`Table::answered`].
    fn answered_about(&mut self, account: &Account) -> &mut Option<Instant> {
        let [of_all, of_others] = &mut self.answered;
        if account.granted == Granted::All { of_all } else { of_others }
    }

    /// The name as it is kept, with an entry of its own.
    fn entry_of(&mut self, name: &str, now: Instant) -> Arc<str> {
        if let Some((name, _)) = self.by_name.get_key_value(name) {
            return Arc::clone(name);
        }
        if self.by_name.len() >= self.full_at.max(2 * IDLE_MAX) {
            self.forget_idle(now, IDLE_MAX);
        } else if self.rules_bytes >= self.rules_full_at.max(RULES_BYTES) {
            self.forget_idle(now, IDLE_MAX / RULES_SHARE);
        }
        let name: Arc<str> = name.into();
        self.by_name.insert(Arc::clone(&name), Entry::default());
        name
    }

    /// Of a user who is no longer let in by one key what is known by others counts no more, and is asked again where sessions are.
    fn doubt(&mut self, key: &Arc<str>) {
        let user = user_of(key).to_owned();
        let (from, to) = (format!("{user}\0"), format!("{user}\u{1}"));
        let range = (Bound::Included(from.as_str()), Bound::Excluded(to.as_str()));
        let mut idle = Vec::new();
        for (name, entry) in self.by_name.range_mut::<str, _>(range).filter(|(name, _)| *name != key) {
            if Arc::strong_count(name) == 1 {
                idle.push(Arc::clone(name));
            } else {
                entry.is_doubted = true;
            }
        }
        for name in idle {
            self.by_name.remove(&name);
        }
    }

    /// Rules that say the same are the same.
    fn with_shared_rules(&mut self, account: Arc<Account>) -> Arc<Account> {
        let Granted::Rules(rules) = &account.granted else { return account };
        let shared = match self.rules.get(rules) {
            Some(shared) if Arc::ptr_eq(shared, rules) => return account,
            Some(shared) => Arc::clone(shared),
            None => {
                self.rules_bytes = self.rules_bytes.saturating_add(rules.bytes());
                self.rules.insert(Arc::clone(rules));
                return account;
            }
        };
        Arc::new(Account { granted: Granted::Rules(shared), ..(*account).clone() })
    }

    /// Forgets rules that nobody has any more.
    fn sweep_rules(&mut self) {
        let bytes = &mut self.rules_bytes;
        self.rules.retain(|rules| {
            let is_used = Arc::strong_count(rules) > 1;
            *bytes = bytes.saturating_sub(if is_used { 0 } else { rules.bytes() });
            is_used
        });
    }

    /// Forgets those without sessions but for the newest, `kept_max` of them.
    fn forget_idle(&mut self, now: Instant, kept_max: usize) {
        let age = |entry: &Entry| entry.at.map_or(Duration::MAX, |at| now.saturating_duration_since(at));
        // First those of no use any more: anybody can name as many as he likes.
        let is_of_use = |entry: &Entry| !matches!(entry.known, Known::Nobody | Known::Refused) || age(entry) < NOBODY_LIFE;
        self.by_name.retain(|name, entry| Arc::strong_count(name) > 1 || is_of_use(entry));
        let idle = self.by_name.iter().filter(|(name, _)| Arc::strong_count(name) == 1);
        let mut ages: Vec<Duration> = idle.map(|(_, entry)| age(entry)).collect();
        let kept = ages.len().min(kept_max);
        if kept < ages.len() {
            let (_, oldest, _) = ages.select_nth_unstable(kept);
            let oldest = *oldest;
            self.by_name.retain(|name, entry| Arc::strong_count(name) > 1 || age(entry) < oldest);
        }
        self.sweep_rules();
        self.full_at = self.by_name.len() + IDLE_MAX;
        self.rules_full_at = self.rules_bytes + RULES_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(60);
    const GRACE: Duration = Duration::from_secs(600);

    fn start() -> Instant {
        #[expect(clippy::disallowed_methods, reason = "any moment will do: the tests count from it")]
        Instant::now()
    }

    fn account(rows: &[(&str, i64)]) -> Account {
        Account::new(None, Granted::Rules(Arc::new(Rules::of_rows(rows.iter().copied()).0)))
    }

    #[test]
    fn a_word_counts_for_its_life_and_longer_only_while_the_backend_is_away() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        assert!(accounts.recall("bob", now).is_none());
        accounts.learn("bob", Some(account(&[])), now);
        accounts.learn("eve", None, now);
        for (name, after, expected) in [
            ("bob", LIFE - Duration::from_millis(1), Some(true)),
            ("bob", LIFE, Some(false)),
            ("bob", GRACE - Duration::from_millis(1), Some(false)),
            ("bob", GRACE, None),
            ("eve", NOBODY_LIFE - Duration::from_millis(1), Some(true)),
            ("eve", NOBODY_LIFE, None),
        ] {
            let found = accounts.recall(name, now + after);
            assert_eq!(found.as_ref().map(|found| found.is_fresh), expected, "{name} {after:?}");
            assert!(found.is_none_or(|found| (found.known == Known::Nobody) == (name == "eve")));
        }
    }

    #[test]
    fn who_has_a_session_is_asked_after_in_time_and_a_change_is_told_once() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        let (bob, changed) = accounts.learn("bob", Some(account(&[("a", 1)])), now);
        assert!(!changed, "nobody held it");
        accounts.learn("idle", Some(account(&[])), now);
        let due = |now| accounts.look(now).due;
        assert!(due(now + LIFE / 3).is_empty());
        assert_eq!(due(now + LIFE / 2), ["bob".into()]);
        let Known::Somebody(first) = &bob.known else { panic!("somebody") };
        let (again, changed) = accounts.learn("bob", Some(account(&[("a", 1)])), now + LIFE / 2);
        assert!(matches!(&again.known, Known::Somebody(second) if Arc::ptr_eq(first, second)) && !changed);
        assert!(due(now + LIFE / 2).is_empty());
        assert!(accounts.learn("bob", Some(account(&[("b", 1)])), now + LIFE).1);
        assert!(accounts.learn("bob", None, now + LIFE).1);
        assert!(!accounts.learn("bob", None, now + LIFE).1);
        drop((bob, again));
        assert!(due(now + LIFE * 3).is_empty(), "it has no session any more");
    }

    #[test]
    fn what_counts_until_then_is_over_then_and_told_once() {
        let (accounts, now) = (Accounts::new(Backend::Jwt, LIFE, GRACE), start());
        let (bob_seal, eve_seal) = ([1; 32], [2; 32]);
        let end = Duration::from_secs(1_000);
        let until = |seal| Term { end, seal };
        let (bob, first) = accounts.learn_until("bob\0a", account(&[]), until(bob_seal), now);
        let (_, again) = accounts.learn_until("bob\0a", account(&[]), until(bob_seal), now);
        assert!(Arc::ptr_eq(&first, &again) && user_of(&bob) == "bob");
        accounts.learn_until("eve\0b", account(&[]), until(eve_seal), now);
        assert!(accounts.lapse(end - Duration::from_millis(1), None).is_empty());
        assert_eq!(accounts.count(), 2);
        // Whose seal is good no more is not believed before its time, either.
        assert!(accounts.lapse(Duration::ZERO, Some(&HashSet::from([bob_seal]))).is_empty(), "nobody has a session by the other");
        assert_eq!(accounts.count(), 1);
        assert_eq!(accounts.lapse(Duration::ZERO, Some(&HashSet::from([eve_seal]))), HashSet::from([Arc::clone(&bob)]));
        assert_eq!((accounts.lapse(end, None), accounts.count()), (HashSet::new(), 1));
        assert_eq!(accounts.follow(&bob).1, Known::Refused);
        assert_eq!((accounts.follow(&"eve".into()).1, accounts.count()), (Known::Awaited, 1));
        // And by its end, which a clock that is set right may bring nearer.
        let (bob, _) = accounts.learn_until("bob\0a", account(&[]), until(eve_seal), now);
        assert_eq!(accounts.lapse(end, None), HashSet::from([Arc::clone(&bob)]));
        drop((bob, first, again));
        accounts.lapse(end, None);
        assert_eq!(accounts.count(), 1, "the first holds it still");
    }

    #[test]
    fn who_is_not_found_any_more_is_shut_out_at_once_and_gone_when_that_is_said_again() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        let held = accounts.learn("bob", Some(account(&[])), now).0.name;
        let known = || accounts.follow(&held).1;
        assert!(accounts.learn("bob", None, now + LIFE).1 && known() == Known::Missing);
        assert!(!accounts.learn("bob", None, now + LIFE * 2 - Duration::from_millis(1)).1 && known() == Known::Missing);
        // Whoever comes meanwhile is nobody, and where he is back he has what was his.
        assert!(accounts.recall("bob", now + LIFE * 2).is_some_and(|found| found.is_fresh));
        assert!(accounts.learn("bob", Some(account(&[])), now + LIFE * 2).1);
        assert!(accounts.learn("bob", None, now + LIFE * 3).1 && known() == Known::Missing, "it counts anew");
        assert_eq!(accounts.look(now + LIFE * 4).due, [Arc::clone(&held)]);
        assert!(accounts.learn("bob", None, now + LIFE * 4).1 && known() == Known::Nobody);
        // Of a session of an earlier run the same; of a service's word none ends.
        let restored = accounts.follow(&"eve".into()).0;
        assert!(accounts.learn("eve", None, now).1 && accounts.follow(&restored).1 == Known::Missing);
        let service = Accounts::new(Backend::Http, LIFE, GRACE);
        let held = service.learn("bob\0x", Some(account(&[])), now).0.name;
        for after in 1..5 {
            service.learn("bob\0x", None, now + LIFE * after);
        }
        assert_eq!(service.follow(&held).1, Known::Missing);
        // Nobody holds this one: it is as if he had never been.
        assert!(accounts.learn("idle", None, now).0.known == Known::Nobody);
    }

    #[test]
    fn who_is_asked_about_in_vain_is_asked_about_seldom_and_does_not_go_on_for_ever() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        let names = ["bob", "eve", "old"].map(|name| accounts.learn(name, Some(account(&[])), now).0.name);
        accounts.learn("old", Some(account(&[])), now - LIFE);
        let at = now + LIFE / 2;
        let look = accounts.look(at);
        assert_eq!(look.due.first(), Some(&names[2]), "the oldest word first");
        assert_eq!((look.due.len(), look.oldest, look.failing, look.followed), (3, LIFE * 3 / 2, 0, 3));
        assert_eq!(accounts.fail("bob", at), None);
        let look = accounts.look(at + Duration::from_secs(1));
        assert!(!look.due.contains(&names[0]) && look.again.is_empty() && look.failing == 1, "{look:?}");
        let look = accounts.look(at + LIFE / 4);
        assert!(!look.due.contains(&names[0]) && look.again == [Arc::clone(&names[0])], "{look:?}");
        // As long as others are answered, and he is not.
        accounts.learn("eve", Some(account(&[])), at + LIFE);
        assert_eq!(accounts.fail("bob", at + GRACE - Duration::from_millis(1)), None);
        assert_eq!(accounts.fail("bob", at + GRACE), Some(Arc::clone(&names[0])));
        assert_eq!((accounts.follow(&names[0]).1, accounts.fail("bob", at + GRACE)), (Known::Refused, None));
        assert!(accounts.learn("bob", Some(account(&[])), at + GRACE + LIFE).1, "he may come again");
        assert_eq!(accounts.look(at + GRACE + LIFE).failing, 0);
        assert_eq!(accounts.fail("bob", at + GRACE * 2), None, "it counts anew");
    }

    #[test]
    fn that_nobody_was_called_so_before_says_nothing_of_a_session_that_comes() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        drop(accounts.learn("bob", None, now));
        assert!(accounts.recall("bob", now).is_some_and(|found| found.known == Known::Nobody), "at the door");
        let (held, known) = accounts.follow(&"bob".into());
        assert_eq!((known, accounts.look(now).due), (Known::Awaited, vec![Arc::clone(&held)]));
        // What is said of it from then on counts.
        for at in [now, now + LIFE] {
            accounts.learn("bob", None, at);
        }
        assert_eq!(accounts.follow(&held).1, Known::Nobody);
        let service = Accounts::new(Backend::Http, LIFE, GRACE);
        drop(service.learn("bob\0x", Known::Refused, now));
        assert_eq!(service.follow(&"bob\0x".into()).1, Known::Awaited);
    }

    #[test]
    fn where_many_are_missing_it_is_the_database_that_lacks_them() {
        for (users, gone, expected) in
            [(20, 20, true), (200, 21, true), (200, 20, false), (20, 9, false), (2, 2, true), (1, 1, false)]
        {
            let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
            let learn = |n: usize, known, at| accounts.learn(&format!("user {n}"), known, at).0.name;
            let held: Vec<_> = (0..users).map(|n| learn(n, Some(account(&[])), now)).collect();
            let is_over = |name: &Arc<str>| accounts.follow(name).1 == Known::Nobody;
            // They are seen to be so one by one, as it is asked about them.
            for n in 0..gone {
                learn(n, None, now + Duration::from_millis(100 * n as u64));
            }
            let look = accounts.look(now + LIFE);
            assert_eq!((look.missing, look.followed, look.are_many_missing()), (gone, users, expected), "{gone} of {users}");
            for after in [LIFE * 2, LIFE * 3] {
                (0..gone).for_each(|n| drop(learn(n, None, now + after)));
                let _ = accounts.look(now + after);
            }
            assert_eq!(held.iter().any(is_over), !expected, "{gone} of {users}");
            (0..gone).for_each(|n| drop(learn(n, None, now + MISSING_LIFE + LIFE)));
            assert!(held.iter().take(gone).all(is_over), "{gone} of {users}");
        }
    }

    #[test]
    fn a_backend_that_answers_about_nobody_and_one_that_was_away_shut_nobody_out() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        let _held = ["bob", "eve"].map(|name| accounts.learn(name, Some(account(&[])), now).0.name);
        let at = now + LIFE;
        for after in [Duration::ZERO, GRACE, GRACE * 9] {
            for name in ["bob", "eve"] {
                assert_eq!(accounts.fail(name, at + after), None, "a column has another name: {after:?}");
            }
            // Of those who are not there, and of those who may do everything, it is not asked all.
            accounts.learn("nobody", None, at + after);
            accounts.learn("root", Some(Account::new(None, Granted::All)), at + after);
        }
        accounts.excuse(at + GRACE * 10);
        accounts.learn("eve", Some(account(&[])), at + GRACE * 10);
        assert_eq!(accounts.fail("bob", at + GRACE * 11 - Duration::from_millis(1)), None, "while it was away nobody was answered");
        assert!(accounts.fail("bob", at + GRACE * 11).is_some());
    }

    #[test]
    fn what_is_taken_back_by_one_key_is_doubted_by_the_others() {
        let (accounts, now) = (Accounts::new(Backend::Http, LIFE, GRACE), start());
        let learn = |key: &str| accounts.learn(key, Some(account(&[])), now).0.name;
        let held = ["bob\0a", "bob\0b", "bobby\0c", "bo\0d"].map(learn);
        learn("bob\0idle");
        let known = |key: &str| accounts.recall(key, now).map(|found| found.is_fresh);
        // A guess takes nothing back.
        accounts.learn("bob\0guess", Known::Refused, now);
        assert_eq!((known("bob\0idle"), known("bob\0b")), (Some(true), Some(true)));
        accounts.learn("bob\0a", Known::Refused, now);
        assert_eq!((known("bob\0idle"), known("bob\0b")), (None, Some(false)));
        assert_eq!((known("bobby\0c"), known("bo\0d")), (Some(true), Some(true)));
        assert_eq!(accounts.look(now).due, [Arc::clone(&held[1])]);
        accounts.learn("bob\0b", Some(account(&[])), now);
        assert_eq!(known("bob\0b"), Some(true));
    }

    #[test]
    fn rules_that_are_the_same_are_kept_once_and_their_bytes_are_bounded() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        let rules_of = |known: &Known| match known {
            Known::Somebody(account) => match account.granted() {
                Granted::Rules(rules) => Arc::clone(rules),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let [one, two] = ["bob", "eve"].map(|name| rules_of(&accounts.learn(name, Some(account(&[("own/%u", 7)])), now).0.known));
        assert!(Arc::ptr_eq(&one, &two));
        let filter = "x".repeat(60_000);
        for n in 0..3 * RULES_BYTES / 2 / filter.len() {
            let topic = format!("{n}/{filter}");
            accounts.learn(&format!("user {n}"), Some(account(&[(&topic, 2)])), now + Duration::from_millis(n as u64));
        }
        let bytes = accounts.table.lock().rules_bytes;
        let count = accounts.count();
        let most = RULES_BYTES * 5 / 4;
        assert!(bytes < most && count < most / filter.len(), "{bytes} {count}");
        let _ = accounts.look(now + GRACE * 2);
        assert_eq!((accounts.count(), accounts.table.lock().rules.len()), (0, 1), "but for what is held here");
    }

    #[test]
    fn what_was_shown_is_in_no_debug_output_and_a_refusal_counts_for_moments() {
        let (accounts, now) = (Accounts::new(Backend::Http, LIFE, GRACE), start());
        let shown = Arc::new(Shown { client_id: "c".into(), password: "secret".into() });
        let word = Account::showing(shown, Granted::All);
        assert!(!format!("{word:?}").contains("secret"));
        let bob = accounts.learn("bob\0x", Some(word), now).0.name;
        assert!(accounts.learn("bob\0x", Known::Refused, now).1, "the session's client is to go");
        assert!(!accounts.learn("bob\0x", Known::Refused, now).1);
        assert!(accounts.recall(&bob, now).is_some_and(|found| found.known == Known::Refused));
        assert!(accounts.recall(&bob, now + NOBODY_LIFE).is_none());
    }

    #[test]
    fn of_a_session_of_an_earlier_run_it_is_asked_at_once() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        let (name, known) = accounts.follow(&"bob".into());
        assert_eq!((known, accounts.look(now).due), (Known::Awaited, vec![Arc::clone(&name)]));
        assert!(accounts.recall("bob", now).is_none());
        assert!(accounts.learn("bob", Some(account(&[])), now).1);
        assert!(matches!(accounts.follow(&name).1, Known::Somebody(_)));
    }

    #[test]
    fn strangers_do_not_fill_the_memory_and_take_no_room_of_users_with_sessions() {
        let (accounts, now) = (Accounts::new(Backend::Sql, LIFE, GRACE), start());
        let held: Vec<_> = (0..100).map(|n| accounts.learn(&format!("user {n}"), Some(account(&[])), now).0).collect();
        for n in 0..5 * IDLE_MAX {
            accounts.learn(&format!("stranger {n}"), None, now + Duration::from_millis(n as u64));
        }
        assert!(accounts.count() <= 3 * IDLE_MAX + held.len(), "{}", accounts.count());
        assert!(held.iter().all(|one| accounts.recall(&one.name, now).is_some()));
        assert!(
            accounts.recall(&format!("stranger {}", 5 * IDLE_MAX - 1), now + Duration::from_millis(5 * IDLE_MAX as u64)).is_some()
        );
    }
}

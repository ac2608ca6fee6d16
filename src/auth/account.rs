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

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::acl::Rules;
use super::password::Record;

/// Users without a session that are remembered.
const IDLE_MAX: usize = 10_000;
/// How long it counts that there is no such user.
const NOBODY_LIFE: Duration = Duration::from_secs(5);

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
}

/// What is known of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its backend has not been asked yet.
    Awaited,
    /// There is no such user.
    Nobody,
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
    by_name: HashMap<Arc<str>, Entry, ahash::RandomState>,
    /// At so many it is looked who can go.
    full_at: usize,
}

#[derive(Debug)]
struct Entry {
    known: Known,
    /// When its backend said so; none: it has not been asked.
    at: Option<Instant>,
    /// When that ends by itself.
    until: Option<Instant>,
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
            Known::Nobody | Known::Refused => (self.life.min(NOBODY_LIFE), Duration::ZERO),
            Known::Somebody(_) => (self.life, self.grace),
        };
        (age < life.max(grace)).then(|| Remembered { name: Arc::clone(name), known: entry.known.clone(), is_fresh: age < life })
    }

    /// Takes what the backend said at `now`. Whether what is known of a user with a session has changed by it.
    pub fn learn(&self, name: &str, word: impl Into<Known>, now: Instant) -> (Remembered, bool) {
        let (mut table, word) = (self.table.lock(), word.into());
        let name = table.entry_of(name, now);
        let Some(entry) = table.by_name.get_mut(&name) else {
            return (Remembered { name, known: word, is_fresh: true }, false);
        };
        entry.at = Some(now);
        let is_same = entry.known == word;
        if !is_same {
            // Rules that say the same are the same: what was worked out by them holds on.
            entry.known = match (&entry.known, word) {
                (Known::Somebody(before), Known::Somebody(account)) if before.granted == account.granted => {
                    Known::Somebody(Arc::new(Account { granted: before.granted.clone(), ..(*account).clone() }))
                }
                (_, word) => word,
            };
        }
        let known = entry.known.clone();
        // One is the table's, one ours.
        let is_followed = Arc::strong_count(&name) > 2;
        (Remembered { name, known, is_fresh: true }, is_followed && !is_same)
    }

    /// Takes a word that counts until then, however often it comes. The key is to be kept as long as the user has a session.
    pub fn learn_until(&self, name: &str, account: Account, until: Instant, now: Instant) -> (Arc<str>, Arc<Account>) {
        let mut table = self.table.lock();
        let name = table.entry_of(name, now);
        if let Some(Entry { known: Known::Somebody(before), .. }) = table.by_name.get(&name)
            && **before == account
        {
            return (name, Arc::clone(before));
        }
        let account = Arc::new(account);
        let entry = Entry { known: Known::Somebody(Arc::clone(&account)), at: Some(now), until: Some(until) };
        table.by_name.insert(Arc::clone(&name), entry);
        (name, account)
    }

    /// What counted until now counts no more. Whose sessions are here.
    pub fn lapse(&self, now: Instant) -> HashSet<Arc<str>> {
        let mut over = HashSet::new();
        self.table.lock().by_name.retain(|name, entry| {
            let is_followed = Arc::strong_count(name) > 1;
            if entry.until.is_none_or(|until| until > now) {
                return true;
            }
            if is_followed && entry.known != Known::Refused {
                entry.known = Known::Refused;
                over.insert(Arc::clone(name));
            }
            is_followed
        });
        over
    }

    /// What is known of the user of a session that is here, however old that is, and the name by which that is kept.
    #[must_use]
    pub fn follow(&self, name: &Arc<str>) -> (Arc<str>, Known) {
        let mut table = self.table.lock();
        let name = match table.by_name.get_key_value(name) {
            Some((name, entry)) => return (Arc::clone(name), entry.known.clone()),
            // Without what was shown nobody can be asked.
            None if self.by != Backend::Sql => return (Arc::clone(name), Known::Awaited),
            None => Arc::clone(name),
        };
        table.by_name.insert(Arc::clone(&name), Entry { known: Known::Awaited, at: None, until: None });
        (name, Known::Awaited)
    }

    /// Users with sessions of whom the backend is to be asked again by now, so that no word that counts for them gets older than `life`.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<Arc<str>> {
        let is_old = |entry: &Entry| entry.at.is_none_or(|at| now.saturating_duration_since(at) >= self.life / 2);
        let mut table = self.table.lock();
        // Who has no session and counts no more is forgotten, with what he has shown.
        let kept_for = self.life.max(self.grace);
        let is_good = |entry: &Entry| entry.at.is_some_and(|at| now.saturating_duration_since(at) < kept_for);
        table.by_name.retain(|name, entry| Arc::strong_count(name) > 1 || is_good(entry));
        let due = table.by_name.iter().filter(|(name, entry)| Arc::strong_count(name) > 1 && is_old(entry));
        due.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// How many users are remembered.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.lock().by_name.len()
    }
}

impl Table {
    /// The name as it is kept, with an entry of its own.
    fn entry_of(&mut self, name: &str, now: Instant) -> Arc<str> {
        if let Some((name, _)) = self.by_name.get_key_value(name) {
            return Arc::clone(name);
        }
        if self.by_name.len() >= self.full_at.max(2 * IDLE_MAX) {
            self.forget_idle(now);
        }
        let name: Arc<str> = name.into();
        self.by_name.insert(Arc::clone(&name), Entry { known: Known::Awaited, at: None, until: None });
        name
    }

    /// Forgets those without sessions but for the newest.
    fn forget_idle(&mut self, now: Instant) {
        let age = |entry: &Entry| entry.at.map_or(Duration::MAX, |at| now.saturating_duration_since(at));
        // First those of no use any more: anybody can name as many as he likes.
        let is_of_use = |entry: &Entry| !matches!(entry.known, Known::Nobody | Known::Refused) || age(entry) < NOBODY_LIFE;
        self.by_name.retain(|name, entry| Arc::strong_count(name) > 1 || is_of_use(entry));
        let idle = self.by_name.iter().filter(|(name, _)| Arc::strong_count(name) == 1);
        let mut ages: Vec<Duration> = idle.map(|(_, entry)| age(entry)).collect();
        let kept = ages.len().min(IDLE_MAX);
        if kept < ages.len() {
            let (_, oldest, _) = ages.select_nth_unstable(kept);
            let oldest = *oldest;
            self.by_name.retain(|name, entry| Arc::strong_count(name) > 1 || age(entry) < oldest);
        }
        self.full_at = self.by_name.len() + IDLE_MAX;
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
        assert!(accounts.due(now + LIFE / 3).is_empty());
        assert_eq!(accounts.due(now + LIFE / 2), ["bob".into()]);
        let Known::Somebody(first) = &bob.known else { panic!("somebody") };
        let (again, changed) = accounts.learn("bob", Some(account(&[("a", 1)])), now + LIFE / 2);
        assert!(matches!(&again.known, Known::Somebody(second) if Arc::ptr_eq(first, second)) && !changed);
        assert!(accounts.due(now + LIFE / 2).is_empty());
        assert!(accounts.learn("bob", Some(account(&[("b", 1)])), now + LIFE).1);
        assert!(accounts.learn("bob", None, now + LIFE).1);
        assert!(!accounts.learn("bob", None, now + LIFE).1);
        drop((bob, again));
        assert!(accounts.due(now + LIFE * 3).is_empty(), "it has no session any more");
    }

    #[test]
    fn what_counts_until_then_is_over_then_and_told_once() {
        let (accounts, now) = (Accounts::new(Backend::Jwt, LIFE, GRACE), start());
        let (bob, first) = accounts.learn_until("bob\0a", account(&[]), now + LIFE, now);
        let (_, again) = accounts.learn_until("bob\0a", account(&[]), now + LIFE, now);
        assert!(Arc::ptr_eq(&first, &again) && user_of(&bob) == "bob");
        accounts.learn_until("eve\0b", account(&[]), now + LIFE, now);
        assert!(accounts.lapse(now + LIFE - Duration::from_millis(1)).is_empty());
        assert_eq!(accounts.lapse(now + LIFE), HashSet::from([Arc::clone(&bob)]));
        assert_eq!((accounts.lapse(now + LIFE), accounts.count()), (HashSet::new(), 1));
        assert_eq!(accounts.follow(&bob).1, Known::Refused);
        assert_eq!((accounts.follow(&"eve".into()).1, accounts.count()), (Known::Awaited, 1));
        drop(bob);
        accounts.lapse(now + LIFE);
        assert_eq!(accounts.count(), 0);
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
        assert_eq!((known, accounts.due(now)), (Known::Awaited, vec![Arc::clone(&name)]));
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

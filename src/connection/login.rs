//! Who a client is: hashing passwords off the threads that serve clients, and making guesses cheap for us and slow for who guesses.
//!
//! - Hashing runs on threads of its own, as many at once as `HASHES_AT_ONCE` says; so many log-ins wait for one at most, the others are told that
//!   the broker is busy.
//! - A password that was found good is remembered for a minute, as a keyed digest: clients that come back after a restart of their network cost
//!   no hash.
//! - A refusal for a wrong password, or a user that there is not, takes a fixed time, the same for both. From an address with many wrong ones the
//!   next is looked at a second after the last, one at a time, be it shown as a password or by SCRAM. What is good, and what is not looked at, does not count: a crowd behind one
//!   address is not kept out by one of them.
//! - Where a backend has to be asked, no more are asked about for one address at once than it has free refusals: of many guesses that begin together the others wait until the first
//!   are known to be wrong, and strangers' names do not take all of what a backend bears.
//!
//! What is decided here and what for is `auth`'s; that names come escaped into the log and once a second at most is this module's.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Record;
use crate::{clock, task};

/// Log-ins that wait for a hash at once.
const WAITING_MAX: usize = 1_000;
/// How long a password that was found good is not hashed again.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Passwords that are remembered.
const REMEMBERED_MAX: usize = 10_000;
/// How long a refusal takes.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);
/// Refusals that an address may have without waiting for its turn; each is forgotten after [`TURN`].
const FREE_REFUSALS: u32 = 10;
/// Refusals that are counted of an address: so many turns later it is as good as any other again.
const REFUSALS_MAX: u32 = 60;
/// How far apart wrong log-ins of an address with more refusals are looked at.
const TURN: Duration = Duration::from_secs(1);
/// A turn that is further away than this is not waited for.
const TURN_WAIT_MAX: Duration = Duration::from_secs(5);
/// Addresses of which refusals are remembered.
const ADDRESSES_MAX: usize = 10_000;
/// Refusals are logged once in this time.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// What was found of a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Good,
    Wrong,
    /// Not looked at: too many others wait, or too many wrong ones came from there.
    Busy,
}

/// See the module's page. One for all listeners.
#[derive(Debug)]
pub struct Logins {
    hashing: Arc<Semaphore>,
    waiting: Semaphore,
    /// Makes what is remembered worthless to who reads our memory later.
    key: [u8; 32],
    good: Mutex<HashMap<[u8; 32], Instant, ahash::RandomState>>,
    refused: Mutex<HashMap<IpAddr, Refusals, ahash::RandomState>>,
    /// For whom backends are asked now.
    asking: Mutex<HashMap<IpAddr, Arc<Semaphore>, ahash::RandomState>>,
    said: Mutex<Said>,
}

/// How an address stands: of its refusals one is forgotten each [`TURN`].
#[derive(Clone, Copy, Debug)]
struct Refusals {
    count: u32,
    at: Instant,
    /// When the next of its log-ins may be looked at, if it has had its free ones.
    next: Instant,
}

#[derive(Debug, Default)]
struct Said {
    at: Option<Instant>,
    unsaid: u64,
}

impl Default for Logins {
    /// Half of the processors may hash.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Self {
            hashing: Arc::new(Semaphore::new((processors / 2).max(1))),
            waiting: Semaphore::new(WAITING_MAX),
            key: rand::random(),
            good: Mutex::default(),
            refused: Mutex::default(),
            asking: Mutex::default(),
            said: Mutex::default(),
        }
    }
}

impl Logins {
    /// Whether `password` is `user`'s. `address` is whence the client comes, as far as that can be told. One who is no user is checked against another's
    /// record, at the same cost, and is never good.
    pub(super) async fn verify(
        &self,
        address: Option<IpAddr>,
        user: &str,
        is_user: bool,
        record: &Arc<Record>,
        password: &[u8],
    ) -> Found {
        let digest = self.digest(user, record, password);
        if is_user && self.remembers(&digest) {
            return Found::Good;
        }
        let latest = clock::now() + TURN_WAIT_MAX;
        // The permit goes with the hash: it is given back when that is done, even if the client is gone by then.
        let permit = loop {
            if !self.turn(address, latest).await {
                return Found::Busy;
            }
            let Ok(_waiting) = self.waiting.try_acquire() else { return Found::Busy };
            let Ok(permit) = Arc::clone(&self.hashing).acquire_owned().await else { return Found::Busy };
            // Of many that began together the first may have been wrong by now.
            if self.take_turn(address, clock::now()).is_none() {
                break permit;
            }
        };
        let (record, password) = (Arc::clone(record), password.to_vec());
        let verified = task::blocking(move || {
            let is_good = record.verify(&password);
            drop(permit);
            is_good && is_user
        });
        match verified.await {
            Some(true) => {
                self.remember(digest);
                self.count_good(address, clock::now());
                Found::Good
            }
            Some(false) => {
                self.count_wrong(address, clock::now());
                Found::Wrong
            }
            None => Found::Busy,
        }
    }

    /// Waits until a log-in from `address` may be looked at; false: not before `latest`.
    async fn turn(&self, address: Option<IpAddr>, latest: Instant) -> bool {
        while let Some(next) = self.next_turn(address, clock::now()) {
            if next > latest {
                return false;
            }
            // Not all at once.
            let at = next + TURN.mul_f64(rand::random::<f64>() / 2.0);
            tokio::time::sleep_until(at.into()).await;
        }
        true
    }

    /// Waits until a backend may be asked for `address`, as long as the result is kept; none: that takes too long.
    pub(super) async fn place_of(&self, address: Option<IpAddr>) -> Option<Place<'_>> {
        let Some(address) = address.map(network) else { return Some(Place { logins: self, taken: None }) };
        let free =
            Arc::clone(self.asking.lock().entry(address).or_insert_with(|| Arc::new(Semaphore::new(FREE_REFUSALS as usize))));
        let mut place = Place { logins: self, taken: Some((address, Arc::clone(&free), None)) };
        let latest = clock::now() + TURN_WAIT_MAX;
        let permit = tokio::time::timeout_at(latest.into(), free.acquire_owned()).await.ok()?.ok()?;
        if let Some((.., kept)) = &mut place.taken {
            *kept = Some(permit);
        }
        Some(place)
    }

    /// [`Logins::turn`] for a proof that costs us nothing to look at, or while a [`Place`] is held. What is found of it is to be counted at once.
    pub(super) async fn turn_of(&self, address: Option<IpAddr>) -> bool {
        let latest = clock::now() + TURN_WAIT_MAX;
        loop {
            if !self.turn(address, latest).await {
                return false;
            }
            if self.take_turn(address, clock::now()).is_none() {
                return true;
            }
        }
    }

    /// Says now and then that a client was refused, and waits until `since` is long enough ago for the client to be told.
    pub(super) async fn refuse(&self, address: Option<IpAddr>, client: &str, user: Option<&str>, why: &str, since: Instant) {
        self.say(address, client, user, why, clock::now());
        tokio::time::sleep_until((since + REFUSAL_DELAY).into()).await;
    }

    fn say(&self, address: Option<IpAddr>, client: &str, user: Option<&str>, why: &str, now: Instant) {
        let mut said = self.said.lock();
        if said.at.is_some_and(|at| now.duration_since(at) < SAID_EVERY) {
            said.unsaid += 1;
            return;
        }
        let unsaid = std::mem::take(&mut said.unsaid);
        said.at = Some(now);
        drop(said);
        let address = address.map_or_else(|| "a local client".to_owned(), |address| address.to_string());
        tracing::warn!(address, client = ?excerpt(client), user = ?user.map(excerpt), why, unsaid, "log-in refused");
    }

    fn digest(&self, user: &str, record: &Record, password: &[u8]) -> [u8; 32] {
        // The record has its salt: what is remembered is void when the password is set anew.
        let record = record.to_string();
        let hash = Sha256::new().chain_update(self.key);
        let hash = [user.as_bytes(), record.as_bytes()]
            .iter()
            .fold(hash, |hash, part| hash.chain_update((part.len() as u64).to_be_bytes()).chain_update(part));
        hash.chain_update(password).finalize().into()
    }

    fn remembers(&self, digest: &[u8; 32]) -> bool {
        let now = clock::now();
        self.good.lock().get(digest).is_some_and(|at| now.duration_since(*at) < REMEMBERED)
    }

    fn remember(&self, digest: [u8; 32]) {
        let now = clock::now();
        let mut good = self.good.lock();
        if good.len() >= REMEMBERED_MAX {
            good.retain(|_, at| now.duration_since(*at) < REMEMBERED);
            if good.len() >= REMEMBERED_MAX {
                good.clear();
            }
        }
        good.insert(digest, now);
    }

    /// When a log-in from `address` may be looked at; none: now.
    fn next_turn(&self, address: Option<IpAddr>, now: Instant) -> Option<Instant> {
        let refusals = *self.refused.lock().get(&network(address?))?;
        (refusals.count_at(now) >= FREE_REFUSALS && refusals.next > now).then_some(refusals.next)
    }

    /// The same; none: the turn is taken. Of an address that has had its free refusals no other log-in is looked at until [`TURN`] is over or this one is
    /// found good, so that as many as there are processors do not get one turn together, nor owe a turn each.
    fn take_turn(&self, address: Option<IpAddr>, now: Instant) -> Option<Instant> {
        let mut refused = self.refused.lock();
        let refusals = refused.get_mut(&network(address?))?;
        if refusals.count_at(now) < FREE_REFUSALS {
            return None;
        }
        if refusals.next > now {
            return Some(refusals.next);
        }
        refusals.next = now + TURN;
        None
    }

    /// A log-in from there was good: the turn that it took is another's.
    pub(super) fn count_good(&self, address: Option<IpAddr>, now: Instant) {
        let Some(address) = address else { return };
        if let Some(refusals) = self.refused.lock().get_mut(&network(address)) {
            refusals.next = now;
        }
    }

    /// A log-in from there was wrong.
    pub(super) fn count_wrong(&self, address: Option<IpAddr>, now: Instant) {
        let Some(address) = address else { return };
        let mut refused = self.refused.lock();
        if refused.len() >= ADDRESSES_MAX {
            refused.retain(|_, refusals| refusals.count_at(now) > 0);
            if refused.len() >= ADDRESSES_MAX {
                refused.clear();
            }
        }
        let refusals = refused.entry(network(address)).or_insert(Refusals { count: 0, at: now, next: now });
        refusals.count = refusals.count_at(now).saturating_add(1).min(REFUSALS_MAX);
        refusals.at = now;
        if refusals.count >= FREE_REFUSALS {
            refusals.next = now + TURN;
        }
    }
}

/// For whom a backend is asked, one of the few of its address.
#[must_use]
pub(super) struct Place<'a> {
    logins: &'a Logins,
    /// None: of no address.
    taken: Option<(IpAddr, Arc<Semaphore>, Option<OwnedSemaphorePermit>)>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some((address, free, permit)) = self.taken.take() else { return };
        let mut asking = self.logins.asking.lock();
        drop(permit);
        // The table's and ours: nobody else is there.
        if Arc::strong_count(&free) == 2 {
            asking.remove(&address);
        }
    }
}

impl Refusals {
    fn count_at(&self, now: Instant) -> u32 {
        let forgotten = now.saturating_duration_since(self.at).as_secs() / TURN.as_secs();
        self.count.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }
}

/// Who has one IPv6 address has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into()),
        v4 => v4,
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn of_one_address_few_are_asked_about_at_once_and_nothing_is_left_behind() {
        let logins = Logins::default();
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let mut places = Vec::new();
        for _ in 0..FREE_REFUSALS {
            places.push(logins.place_of(one).await.unwrap());
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut waits = Box::pin(logins.place_of(one));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(Box::pin(logins.place_of(other)).as_mut().poll(&mut context).is_ready(), "another address");
        assert!(Box::pin(logins.place_of(None)).as_mut().poll(&mut context).is_ready());
        places.pop();
        let place = waits.await.unwrap();
        // Who gives up takes nothing along.
        assert!(Box::pin(logins.place_of(one)).as_mut().poll(&mut context).is_pending());
        drop((places, place));
        assert!(logins.asking.lock().is_empty());
    }

    #[test]
    fn a_burst_of_wrong_ones_keeps_its_address_waiting_for_one_turn_and_then_one_gets_it() {
        let (logins, now) = (Logins::default(), clock::now());
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        // As many as 64 processors look at together.
        for _ in 0..32 {
            assert_eq!(logins.take_turn(address, now), None);
        }
        for _ in 0..32 {
            logins.count_wrong(address, now);
        }
        assert_eq!((logins.next_turn(address, now), logins.take_turn(address, now)), (Some(now + TURN), Some(now + TURN)));
        let later = now + TURN;
        assert_eq!(logins.take_turn(address, later), None);
        assert_eq!(logins.take_turn(address, later), Some(later + TURN), "that turn is taken");
        logins.count_good(address, later);
        assert_eq!(logins.take_turn(address, later), None, "who was good took none");
        logins.count_wrong(address, later);
        assert_eq!(logins.take_turn(address, later), Some(later + TURN));
        assert_eq!(logins.take_turn(Some(IpAddr::from([192, 0, 2, 2])), later), None, "another address");
        // A turn after the other it is forgotten.
        assert_eq!(logins.next_turn(address, later + TURN * REFUSALS_MAX), None);
    }
}

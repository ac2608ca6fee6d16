//! This broker's own register: what it has to say, gathered until it is told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use super::{BridgeClaim, Change, Claim, Echo, Key, ShareMembers, Value};
use crate::ids::{BrokerId, LogId, OriginLane};

/// What this broker tells all others. Whoever changes it takes one short lock.
#[derive(Debug)]
pub struct Register {
    filters_max: usize,
    pending: Mutex<Pending>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Pending {
    /// How many subscriptions each filter has.
    filters: HashMap<Arc<str>, usize, ahash::RandomState>,
    /// The filters are too many to be told: everything is wanted.
    is_wide: bool,
    /// Filters of share groups, with `$share/` and name, and their members.
    shares: HashMap<Arc<str>, ShareMembers, ahash::RandomState>,
    /// Whether others are asked how far they have dealt with our log, and whether clients wait for that.
    asks_dealt: Option<bool>,
    /// Lanes of others' logs of which something was told.
    dealt: BTreeSet<OriginLane>,
    changes: BTreeMap<Key, Option<Value>>,
    /// Counts what was asked of this register.
    asked: u64,
    /// Somebody waits until others have told that they took in what was asked up to now.
    echo: bool,
    /// All that was asked up to the first is told with the version that is the second.
    told: (u64, u64),
}

impl Register {
    /// An empty one. With more filters than `filters_max` every topic is wanted.
    #[must_use]
    pub fn new(filters_max: usize) -> Self {
        Self { filters_max, pending: Mutex::default(), waker: AtomicWaker::new() }
    }

    /// A session subscribes to a filter, by itself.
    pub fn add_filter(&self, filter: &str) {
        self.change(|pending| {
            if let Some(subscriptions) = pending.filters.get_mut(filter) {
                *subscriptions += 1;
                return;
            }
            let filter: Arc<str> = Arc::from(filter);
            pending.filters.insert(Arc::clone(&filter), 1);
            if pending.is_wide {
                return;
            }
            if pending.filters.len() > self.filters_max {
                pending.is_wide = true;
                pending.put(Key::Everything, Value::Present);
            } else {
                pending.put(Key::Filter(filter), Value::Present);
            }
        });
    }

    /// A session that was subscribed to a filter no longer is.
    pub fn remove_filter(&self, filter: &str) {
        self.change(|pending| {
            let Some((name, subscriptions)) = pending.filters.remove_entry(filter) else { return };
            if subscriptions > 1 {
                pending.filters.insert(name, subscriptions - 1);
                return;
            }
            pending.remove(Key::Filter(name));
            if pending.is_wide && pending.filters.len() < self.filters_max / 2 {
                pending.is_wide = false;
                let filters: Vec<_> = pending.filters.keys().cloned().collect();
                filters.into_iter().for_each(|filter| pending.put(Key::Filter(filter), Value::Present));
                pending.remove(Key::Everything);
            }
        });
    }

    /// Whether [`share_members`](Self::share_members) can tell of this group: of more than the filters that are told it cannot.
    #[must_use]
    pub fn takes_share(&self, filter: &str) -> bool {
        let pending = self.pending.lock();
        pending.shares.len() < self.filters_max || pending.shares.contains_key(filter)
    }

    /// A share group (its filter with `$share/` and name) has members that came or went. With more groups than the filters that are told no more of
    /// them is told: what is published elsewhere does not reach them.
    pub fn share_members(&self, filter: &str, connected: i32, away: i32) {
        self.change(|pending| {
            let changed = |number: u32, by: i32| number.saturating_add_signed(by);
            let has_room = pending.shares.len() < self.filters_max;
            match pending.shares.get_mut(filter) {
                Some(members) => {
                    members.connected = changed(members.connected, connected);
                    members.away = changed(members.away, away);
                }
                None if has_room => {
                    let members = ShareMembers { connected: changed(0, connected), away: changed(0, away) };
                    pending.shares.insert(Arc::from(filter), members);
                }
                None => return,
            }
            let Some((name, members)) = pending.shares.get_key_value(filter) else { return };
            let (key, members) = (Key::Filter(Arc::clone(name)), *members);
            if members == ShareMembers::default() {
                pending.shares.remove(filter);
                pending.remove(key);
            } else {
                pending.put(key, Value::Members(members));
            }
        });
    }

    /// This broker could serve the bridge of this name, or does.
    pub fn tell_bridge(&self, name: &str, claim: BridgeClaim) {
        self.change(|pending| pending.put(Key::Bridge(name.into()), Value::Bridge(claim)));
    }

    /// It has the bridge no more.
    pub fn withdraw_bridge(&self, name: &str) {
        self.change(|pending| pending.remove(Key::Bridge(name.into())));
    }

    /// A client's session is here.
    pub fn claim(&self, client_id: &Arc<str>, claim: Claim) {
        self.change(|pending| pending.put(Key::Session(Arc::clone(client_id)), Value::Claim(claim)));
    }

    /// It is not any more.
    pub fn release(&self, client_id: &Arc<str>) {
        self.change(|pending| pending.remove(Key::Session(Arc::clone(client_id))));
    }

    /// So much of another's register was taken in.
    pub(super) fn echo(&self, member: BrokerId, echo: Echo) {
        self.change(|pending| pending.put(Key::Echo(member), Value::Echo(echo)));
    }

    /// This broker's log of QoS 1 and 2.
    pub fn tell_log(&self, log: LogId) {
        self.change(|pending| pending.put(Key::Log, Value::Log(log)));
    }

    /// Where the replicas of this broker's sessions are, if there are any.
    pub fn tell_replica(&self, broker: Option<BrokerId>) {
        self.change(|pending| match broker {
            Some(broker) => pending.put(Key::Replica, Value::Replica(broker)),
            None => pending.remove(Key::Replica),
        });
    }

    /// The will of that client of another broker is dealt with, which came with that claim; or that need not be known any more.
    pub fn tell_will(&self, of: BrokerId, client_id: &Arc<str>, claim: Option<Claim>) {
        let key = Key::Will(of, Arc::clone(client_id));
        self.change(|pending| match claim {
            Some(claim) => pending.put(key, Value::Claim(claim)),
            None => pending.remove(key),
        });
    }

    /// Others are to tell how far they have dealt with that log, or need not any more.
    pub fn ask_dealt(&self, asks: bool, is_urgent: bool) {
        let asks = asks.then_some(is_urgent);
        self.change(|pending| {
            if std::mem::replace(&mut pending.asks_dealt, asks) == asks {
                return;
            }
            match asks {
                Some(true) => pending.put(Key::AskDealt, Value::Urgent),
                Some(false) => pending.put(Key::AskDealt, Value::Present),
                None => pending.remove(Key::AskDealt),
            }
        });
    }

    /// This broker is drained, and empty or not yet; or no longer.
    pub fn tell_leaving(&self, is_leaving: bool, is_empty: bool) {
        self.change(|pending| match (is_leaving, is_empty) {
            (true, true) => pending.put(Key::Leaving, Value::Empty),
            (true, false) => pending.put(Key::Leaving, Value::Present),
            (false, _) => pending.remove(Key::Leaving),
        });
    }

    /// So far this broker has dealt with a lane of another's log.
    pub fn tell_dealt(&self, stream: OriginLane, sequence: u64) {
        self.change(|pending| {
            // Of an origin only its present log counts.
            let old = pending.dealt.iter().filter(|old| old.origin == stream.origin && old.log != stream.log);
            for old in old.copied().collect::<Vec<_>>() {
                pending.dealt.remove(&old);
                pending.remove(Key::Dealt(old));
            }
            pending.dealt.insert(stream);
            pending.put(Key::Dealt(stream), Value::Dealt(sequence));
        });
    }

    /// Another has left.
    pub(super) fn forget(&self, member: BrokerId) {
        self.change(|pending| {
            pending.remove(Key::Echo(member));
            for stream in pending.dealt.iter().filter(|stream| stream.origin == member).copied().collect::<Vec<_>>() {
                pending.dealt.remove(&stream);
                pending.remove(Key::Dealt(stream));
            }
        });
    }

    /// A number for all that was asked of this register up to now, for [`told`](Self::told); others will tell that they took it in.
    pub fn ask_echo(&self) -> u64 {
        let mut pending = self.pending.lock();
        pending.asked += 1;
        pending.echo = true;
        let asked = pending.asked;
        drop(pending);
        self.waker.wake();
        asked
    }

    /// The version with which all is told that was asked up to `asked`; none if it is not told yet.
    #[must_use]
    pub fn told(&self, asked: u64) -> Option<u64> {
        let (told, version) = self.pending.lock().told;
        (told >= asked).then_some(version)
    }

    /// Ready where there is something to tell; until then the task is woken when there is.
    pub fn poll_news(&self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        let pending = self.pending.lock();
        if pending.changes.is_empty() && !pending.echo { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Whether there is something to tell.
    #[must_use]
    pub fn has_news(&self) -> bool {
        let pending = self.pending.lock();
        !pending.changes.is_empty() || pending.echo
    }

    /// Takes changes for the next delta, up to about `bytes`.
    pub(super) fn take(&self, bytes: usize) -> Taken {
        let mut pending = self.pending.lock();
        let mut changes = Vec::new();
        let mut taken = 0;
        // That not everything is wanted any more holds only once all is told that is wanted instead.
        let narrowed = matches!(pending.changes.first_key_value(), Some((Key::Everything, None)));
        let narrowed = if narrowed { pending.changes.pop_first() } else { None };
        while taken < bytes {
            let Some((key, value)) = pending.changes.pop_first() else { break };
            taken += key.len() + ENTRY_BYTES;
            changes.push((key, value));
        }
        if let Some((key, value)) = narrowed {
            if pending.changes.is_empty() {
                changes.push((key, value));
            } else {
                pending.changes.insert(key, value);
            }
        }
        let is_all = pending.changes.is_empty();
        let echo = is_all && std::mem::take(&mut pending.echo);
        Taken { changes, is_all, echo, asked: pending.asked }
    }

    /// What was taken could not be told: it is told later, unless something newer has been said of it.
    pub(super) fn give_back(&self, changes: Vec<Change>, echo: bool) {
        let mut pending = self.pending.lock();
        for (key, value) in changes {
            pending.changes.entry(key).or_insert(value);
        }
        pending.echo |= echo;
    }

    /// All that was asked up to `asked` is told with `version`, which others echo.
    pub(super) fn has_told(&self, asked: u64, version: u64) {
        self.pending.lock().told = (asked, version);
    }

    fn change(&self, change: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending.lock();
        let before = pending.changes.len();
        change(&mut pending);
        pending.asked += 1;
        let is_first = before == 0 && !pending.changes.is_empty();
        drop(pending);
        if is_first {
            self.waker.wake();
        }
    }
}

/// What an entry takes on its way besides its key, at most, but for values of newer versions.
pub(super) const ENTRY_BYTES: usize = 32;

/// What [`Register::take`] gives.
pub(super) struct Taken {
    pub(super) changes: Vec<Change>,
    /// Nothing more waits.
    pub(super) is_all: bool,
    /// Somebody waits until others have told that they took it in.
    pub(super) echo: bool,
    /// The last of what was asked.
    pub(super) asked: u64,
}

impl Pending {
    fn put(&mut self, key: Key, value: Value) {
        self.changes.insert(key, Some(value));
    }

    fn remove(&mut self, key: Key) {
        self.changes.insert(key, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_wanted_until_all_is_told_that_is_wanted_instead() {
        let register = Register::new(100);
        let filter = |n: usize| format!("{n}/{}", "long".repeat(10));
        (0..=100).for_each(|n| register.add_filter(&filter(n)));
        while register.has_news() {
            register.take(1_000);
        }
        (40..=100).for_each(|n| register.remove_filter(&filter(n)));
        let (mut told, mut deltas) = (Vec::new(), 0);
        loop {
            let taken = register.take(1_000);
            told.extend(taken.changes);
            deltas += 1;
            if taken.is_all {
                break;
            }
        }
        assert!(deltas > 3);
        assert_eq!(told.pop(), Some((Key::Everything, None)));
        let wanted = told.iter().filter(|(key, value)| matches!(key, Key::Filter(_)) && value.is_some()).count();
        assert_eq!((wanted, told.contains(&(Key::Everything, None))), (40, false));

        // What is told after it and asks for nothing is echoed by nobody.
        let asked = register.ask_echo();
        let taken = register.take(1_000);
        assert!(taken.is_all && taken.echo && taken.asked == asked);
        register.add_filter("later");
        let later = register.take(1_000);
        assert!(later.is_all && !later.echo);
        register.remove_filter("later");
        register.take(1_000);

        // It is many again before all was told: that comes first.
        (40..=100).for_each(|n| register.add_filter(&filter(n)));
        assert_eq!(register.take(1).changes, [(Key::Everything, Some(Value::Present))]);
    }
}

//! Whether other members know what this broker wants: what a SUBACK waits for where `subscribe_ack = "mesh"`.
//!
//! Each member tells how far it has taken in our register. Waited for are those to whom messages reach at present, met or not: who is cut off,
//! or dead, holds up nobody.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::ids::BrokerId;
use crate::metrics::Counter;
use crate::shared::register::Registers;

/// What other members have taken in, and those who wait for it.
#[derive(Debug)]
pub struct Echoes {
    registers: Arc<Registers>,
    /// Whom messages reach; `None`: not known, and then all members are waited for.
    reachable: Mutex<Option<BTreeSet<BrokerId>>>,
    is_waited: AtomicBool,
    waiters: Mutex<Waiters>,
    /// Waits that were given up.
    pub missed: Counter,
}

#[derive(Debug, Default)]
struct Waiters {
    wakers: HashMap<u64, Waker, ahash::RandomState>,
    numbers: u64,
}

/// One wait.
#[derive(Debug)]
pub struct EchoWait {
    echoes: Arc<Echoes>,
    number: u64,
    asked: u64,
}

impl Echoes {
    /// Of this broker's register. At first it reaches nobody.
    #[must_use]
    pub fn new(registers: Arc<Registers>) -> Arc<Self> {
        Arc::new(Self {
            registers,
            reachable: Mutex::new(Some(BTreeSet::new())),
            is_waited: AtomicBool::new(false),
            waiters: Mutex::default(),
            missed: Counter::default(),
        })
    }

    /// Has the members say when they have taken in all that the register says by now.
    #[must_use]
    pub fn ask(self: &Arc<Self>) -> EchoWait {
        let asked = self.registers.own().ask_echo();
        let mut waiters = self.waiters.lock();
        waiters.numbers += 1;
        EchoWait { echoes: Arc::clone(self), number: waiters.numbers, asked }
    }

    /// Whom messages reach from now on.
    pub fn set_reachable(&self, members: Option<BTreeSet<BrokerId>>) {
        *self.reachable.lock() = members;
    }

    /// Something of it has changed: those who wait look again.
    pub fn progress(&self) {
        if !self.is_waited.swap(false, Ordering::AcqRel) {
            return;
        }
        let woken = std::mem::take(&mut self.waiters.lock().wakers);
        woken.into_values().for_each(Waker::wake);
    }

    fn is_done(&self, asked: u64) -> bool {
        let reachable = self.reachable.lock().clone();
        if reachable.as_ref().is_some_and(BTreeSet::is_empty) {
            return true;
        }
        let told = self.registers.own().told(asked);
        told.is_some_and(|version| self.registers.is_echoed_by(reachable.as_ref(), version))
    }
}

impl EchoWait {
    /// Ready once all have taken it in; until then the task is woken when that may be so.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let echoes = &self.echoes;
        if echoes.is_done(self.asked) {
            return Poll::Ready(());
        }
        echoes.waiters.lock().wakers.insert(self.number, context.waker().clone());
        echoes.is_waited.store(true, Ordering::Release);
        if echoes.is_done(self.asked) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// It is not waited for any longer.
    pub fn give_up(&self) {
        self.echoes.missed.add(1);
    }
}

impl Drop for EchoWait {
    fn drop(&mut self) {
        self.echoes.waiters.lock().wakers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::Bytes;

    use super::*;
    use crate::ids::Incarnation;
    use crate::shared::Signature;

    #[test]
    fn who_is_not_reached_is_not_waited_for() {
        let echoes = Echoes::new(Registers::new(BrokerId(1), Duration::from_secs(900), 100));
        let mut context = Context::from_waker(Waker::noop());
        let wait = echoes.ask();
        assert!(wait.poll(&mut context).is_ready(), "nobody is reached");
        echoes.set_reachable(Some([BrokerId(2)].into()));
        let wait = echoes.ask();
        assert!(wait.poll(&mut context).is_pending(), "it is not even told");
        assert_eq!(echoes.waiters.lock().wakers.len(), 1);
        echoes.progress();
        assert!(echoes.waiters.lock().wakers.is_empty());
        assert!(wait.poll(&mut context).is_pending());
        drop(wait);
        assert!(echoes.waiters.lock().wakers.is_empty());
    }

    /// Somebody has joined, or two parts have met: a neighbour says who is behind it, and their records come later.
    #[test]
    fn who_is_reached_and_was_not_met_is_waited_for() {
        let registers = Registers::new(BrokerId(1), Duration::from_secs(900), 100);
        registers.begin(Incarnation(1));
        let sign = |_: &[u8]| Some(Signature { chain: Bytes::new(), scheme: 0, bytes: Bytes::new() });
        let echoes = Echoes::new(Arc::clone(&registers));
        let mut context = Context::from_waker(Waker::noop());
        echoes.set_reachable(Some([BrokerId(1)].into()));
        let wait = echoes.ask();
        registers.tell(now(), sign, &mut Vec::new());
        assert!(wait.poll(&mut context).is_ready(), "nobody but ourselves");
        echoes.set_reachable(Some([BrokerId(2)].into()));
        assert!(wait.poll(&mut context).is_pending());
        echoes.set_reachable(None);
        assert!(wait.poll(&mut context).is_ready(), "there are no members");
    }

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn now() -> Instant {
        Instant::now()
    }
}

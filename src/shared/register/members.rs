//! The registers of all members: what counts of each, and what is passed on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::content::Content;
use super::port::{Place, Port, pass_on};
use super::seek::{Seek, seek};
use super::{Change, Delta, DeltaHead, DeltaMode, Echo, End, Follow, Have, Key, Register, RegisterError, Value, Want};
use crate::ids::{BrokerId, Incarnation, PortId};
use crate::limits::{
    BROKERS_MAX, REGISTER_BYTES_MAX, REGISTER_DELTA_BYTES, REGISTER_HAVES_MAX, REGISTER_ON_THE_WAY_BYTES, REGISTERS_BYTES_MAX,
};
use crate::shared::{Signature, SignedRecord};

/// A register that is larger than may be, or does not add up, is looked at again after this time.
const REFUSED_TIME: Duration = Duration::from_secs(60);
/// What this broker has to say is told at once, and then no more than once in this time.
const TELL_INTERVAL: Duration = Duration::from_millis(10);

/// What is to be done with a delta that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Its signature is to be checked; then [`Registers::take`] has it.
    Check,
    /// It is known, of ourselves, or does not continue what is known.
    Useless,
}

/// Something to be said to a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Say {
    /// A delta as it came.
    Delta(DeltaMode, Arc<SignedRecord>),
    /// What we have; not more than [`REGISTER_HAVES_MAX`].
    Have(Vec<Have>),
    /// A question.
    Want(Want),
    /// The end of an answer.
    End(End),
}

/// All registers: our own and those of the other members.
pub struct Registers {
    own: BrokerId,
    register: Register,
    member_timeout: Duration,
    followers: RwLock<Vec<Arc<dyn Follow>>>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// None until this broker's life is settled.
    own: Option<Content>,
    told_at: Option<Instant>,
    members: BTreeMap<BrokerId, Member>,
    ports: BTreeMap<PortId, Port>,
    seeks: BTreeMap<BrokerId, Seek>,
}

#[derive(Debug)]
pub(super) struct Member {
    /// When the broker itself was heard of last.
    seen: Instant,
    /// What counts.
    current: Option<Content>,
    /// Of a later life, which has not yet said all that it has to say at its beginning.
    next: Option<Content>,
    pub(super) copy: Option<Copying>,
    /// Nothing is taken in before.
    refused_until: Option<Instant>,
}

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) content: Content,
    /// Its deltas up to this version have come.
    pub(super) through: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It continues what is here.
    Next,
    /// It is of the copy that is being made, or begins one.
    Copy,
}

impl Member {
    fn new(seen: Instant) -> Self {
        Self { seen, current: None, next: None, copy: None, refused_until: None }
    }

    /// What can be handed on: the latest that has no hole.
    fn best(&self) -> Option<&Content> {
        self.next.as_ref().or(self.current.as_ref())
    }

    pub(super) fn place(&self) -> Place {
        self.best().map_or((Incarnation(0), 0), Content::place)
    }

    /// Up to which version there is all of this life.
    pub(super) fn version_of(&self, incarnation: Incarnation) -> u64 {
        let (ours, version) = self.place();
        if ours == incarnation { version } else { 0 }
    }

    pub(super) fn is_refused(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| now < until)
    }

    fn bytes(&self) -> usize {
        let copy = self.copy.as_ref().map(|copy| &copy.content);
        self.current.iter().chain(&self.next).chain(copy).map(Content::bytes).sum()
    }

    /// What a delta is here. `is_answer`: its life was asked for, of the neighbour that sends it.
    fn fits(&self, head: &DeltaHead, mode: DeltaMode, is_answer: bool) -> Option<Fit> {
        if self.copy.as_ref().is_some_and(|copy| copy.content.incarnation == head.incarnation) {
            return Some(Fit::Copy);
        }
        match mode {
            DeltaMode::Copy => is_answer.then_some(Fit::Copy),
            DeltaMode::Next => {
                let is_next = head.place() > self.place() && head.version == self.version_of(head.incarnation) + 1;
                is_next.then_some(Fit::Next)
            }
        }
    }
}

impl std::fmt::Debug for Registers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registers").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Registers {
    /// No members yet. Members are kept for `member_timeout` after they were heard of last; with more filters than `filters_max` this broker
    /// wants everything.
    #[must_use]
    pub fn new(own: BrokerId, member_timeout: Duration, filters_max: usize) -> Arc<Self> {
        let inner = Inner { own: None, told_at: None, members: BTreeMap::new(), ports: BTreeMap::new(), seeks: BTreeMap::new() };
        let register = Register::new(filters_max);
        Arc::new(Self { own, register, member_timeout, followers: RwLock::default(), inner: Mutex::new(inner) })
    }

    /// What this broker has to say.
    #[must_use]
    pub fn own(&self) -> &Register {
        &self.register
    }

    /// From now on `follower` is told; of what there is, at once.
    pub fn follow(&self, follower: Arc<dyn Follow>) {
        let inner = self.inner.lock();
        for (id, member) in &inner.members {
            follower.joined(*id);
            if let Some(content) = &member.current {
                follower.changed(*id, &content.changes_from(None));
                follower.known(*id);
            }
        }
        self.followers.write().push(follower);
    }

    /// What the registers of other members say of a key: of each that has it.
    #[must_use]
    pub fn look_up(&self, key: &Key) -> Vec<(BrokerId, Value)> {
        let inner = self.inner.lock();
        let says = |(id, member): (&BrokerId, &Member)| Some((*id, member.current.as_ref()?.value(key)?.clone()));
        inner.members.iter().filter_map(says).collect()
    }

    /// Members, and whether their registers are known.
    #[must_use]
    pub fn members(&self) -> Vec<(BrokerId, bool)> {
        self.inner.lock().members.iter().map(|(id, member)| (*id, member.current.is_some())).collect()
    }

    /// Whether every member that is asked has told that it took in our register up to `version`.
    #[must_use]
    pub fn is_echoed_by(&self, is_asked: impl Fn(BrokerId) -> bool, version: u64) -> bool {
        let inner = self.inner.lock();
        let Some(own) = &inner.own else { return inner.members.is_empty() };
        let wanted = Echo { incarnation: own.incarnation, version };
        let key = Key::Echo(self.own);
        let said = |member: &Member| member.current.as_ref().and_then(|content| content.value(&key).cloned());
        let asked = inner.members.iter().filter(|(id, _)| is_asked(**id));
        asked.map(|(_, member)| said(member)).all(|said| matches!(said, Some(Value::Echo(echo)) if echo >= wanted))
    }

    /// This broker's life is settled: its register is of it. The first call counts.
    pub fn begin(&self, incarnation: Incarnation) {
        let mut inner = self.inner.lock();
        if inner.own.is_none() {
            inner.own = Some(Content::new(incarnation));
            // Who has nothing to say must say so: of whom nothing is known wants everything.
            self.register.ask_echo();
        }
    }

    /// When [`tell`](Self::tell) has something to do; none if there is nothing to tell, or nobody yet whom to tell.
    #[must_use]
    pub fn tell_due(&self, now: Instant) -> Option<Instant> {
        let inner = self.inner.lock();
        let may_tell = inner.own.is_some() && self.register.has_news();
        may_tell.then(|| inner.told_at.map_or(now, |at| at + TELL_INTERVAL))
    }

    /// Tells what this broker has to say by now, in deltas that `sign` signs. What cannot be signed is told later.
    pub fn tell(&self, now: Instant, mut sign: impl FnMut(&[u8]) -> Option<Signature>, out: &mut Vec<(PortId, Say)>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(own) = &mut inner.own else { return };
        inner.told_at = Some(now);
        let mut tell = |own: &mut Content, changes: Vec<Change>, whole: bool, echo: bool| {
            let digest = own.digest_after(&changes);
            let (incarnation, version) = (own.incarnation, own.version + 1);
            let delta = Delta { head: DeltaHead { owner: self.own, incarnation, version, whole, echo, digest }, changes };
            let wire = delta.encode();
            let Some(signature) = sign(&wire) else { return Err(delta.changes) };
            let (head, signed) = (delta.head, Arc::new(SignedRecord { wire: wire.into(), signature }));
            own.apply(delta, Arc::clone(&signed));
            pass_on(&mut inner.ports, None, &head, &signed, now);
            Ok(())
        };
        while self.register.has_news() {
            let sparse = own.sparse(REGISTER_DELTA_BYTES);
            if !sparse.is_empty() {
                let whole = own.whole;
                // Where the key does not sign they stay where they are.
                let _ = tell(own, sparse, whole, false);
            }
            let taken = self.register.take(REGISTER_DELTA_BYTES);
            let (whole, echo) = (own.whole || taken.is_all, taken.echo);
            if let Err(changes) = tell(own, taken.changes, whole, echo) {
                self.register.give_back(changes, echo);
                break;
            }
            if taken.is_all {
                self.register.has_told(taken.asked, own.version);
            }
        }
        inner.flush(self.own, now, out);
    }

    /// A link came up: the neighbour is told what we have.
    pub fn port_up(&self, port: PortId, now: Instant, out: &mut Vec<(PortId, Say)>) {
        let mut inner = self.inner.lock();
        let untold = inner.own.iter().map(|_| self.own).chain(inner.members.keys().copied()).collect();
        inner.ports.insert(port, Port { untold, ..Port::default() });
        inner.flush(self.own, now, out);
    }

    /// A link went down.
    pub fn port_down(&self, port: PortId, now: Instant, out: &mut Vec<(PortId, Say)>) {
        let mut inner = self.inner.lock();
        inner.ports.remove(&port);
        inner.seeks.values_mut().for_each(|seek| seek.lost(port));
        self.seek_all(&mut inner, now, out);
    }

    /// A member was heard of: its record came.
    pub fn met(&self, broker: BrokerId, now: Instant) {
        let mut inner = self.inner.lock();
        if broker != self.own
            && let Some(member) = self.member(&mut inner, broker, now)
        {
            member.seen = now;
        }
    }

    /// The member, who is one from now on; none where there are too many.
    fn member<'a>(&self, inner: &'a mut Inner, broker: BrokerId, seen: Instant) -> Option<&'a mut Member> {
        if !inner.members.contains_key(&broker) {
            if inner.members.len() >= BROKERS_MAX {
                return None;
            }
            inner.members.insert(broker, Member::new(seen));
            self.tell_followers(|follower| follower.joined(broker));
        }
        inner.members.get_mut(&broker)
    }

    /// Whether a delta is worth the check of its signature. That the neighbour has it is noted in any case.
    pub fn judge(&self, from: PortId, head: &DeltaHead, mode: DeltaMode, now: Instant) -> Judgement {
        let mut inner = self.inner.lock();
        if let Some(port) = inner.ports.get_mut(&from) {
            let seen = port.has.get(&head.owner).map_or(now, |known| known.seen);
            port.note(head.owner, head.place(), seen);
        }
        let is_answer = inner.is_answer(from, head);
        let fits = match inner.members.get(&head.owner) {
            _ if head.owner == self.own => None,
            Some(member) if member.is_refused(now) => None,
            Some(member) => member.fits(head, mode, is_answer),
            None => Member::new(now).fits(head, mode, is_answer),
        };
        if fits.is_some() { Judgement::Check } else { Judgement::Useless }
    }

    /// Takes in a delta whose signature has been checked, and passes it on where it is news.
    ///
    /// # Errors
    /// What its owner may not say: that is its owner's fault and not the neighbour's. Nothing is known of its register then.
    pub fn take(
        &self,
        from: PortId,
        mode: DeltaMode,
        signed: SignedRecord,
        now: Instant,
        out: &mut Vec<(PortId, Say)>,
    ) -> Result<(), RegisterError> {
        let delta = Delta::decode(&signed.wire)?;
        let head = delta.head;
        let owner = head.owner;
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if owner == self.own {
            return Ok(());
        }
        let seen = inner.ports.get(&from).and_then(|port| port.has.get(&owner)).map_or(now, |known| known.seen);
        let is_answer = inner.is_answer(from, &head);
        let Some(member) = self.member(inner, owner, seen) else { return Ok(()) };
        let signed = Arc::new(signed);
        let result = match member.fits(&head, mode, is_answer) {
            None => return Ok(()),
            Some(Fit::Copy) => {
                let new = || Copying { content: Content::new(head.incarnation), through: 0 };
                let copy = member.copy.get_or_insert_with(new);
                if copy.content.incarnation != head.incarnation {
                    *copy = new();
                }
                copy.content.copy(delta, signed);
                Ok(())
            }
            Some(Fit::Next) => {
                let added_up = self.go_on(owner, member, delta, &signed);
                if added_up {
                    pass_on(&mut inner.ports, Some(from), &head, &signed, now);
                }
                if added_up { Ok(()) } else { Err(RegisterError::Digest { owner, version: head.version }) }
            }
        };
        let bytes: usize = inner.members.values().map(Member::bytes).sum();
        let Some(member) = inner.members.get_mut(&owner) else { return Ok(()) };
        let is_too_large = member.bytes() > REGISTER_BYTES_MAX || bytes > REGISTERS_BYTES_MAX;
        let result = if is_too_large { Err(RegisterError::TooLarge { owner, bytes: REGISTER_BYTES_MAX }) } else { result };
        if result.is_err() {
            self.refuse(owner, member, now);
        }
        inner.flush(self.own, now, out);
        result
    }

    /// Takes in the delta that continues what is known of a member. False if it does not add up.
    fn go_on(&self, owner: BrokerId, member: &mut Member, delta: Delta, signed: &Arc<SignedRecord>) -> bool {
        let Delta { head, .. } = delta;
        if member.version_of(head.incarnation) == 0 {
            member.next = Some(Content::new(head.incarnation));
        }
        let is_current = member.next.is_none();
        let Some(content) = member.next.as_mut().or(member.current.as_mut()) else { return false };
        let changed = content.apply(delta, Arc::clone(signed));
        if !content.adds_up() {
            return false;
        }
        if is_current {
            if !changed.is_empty() {
                self.tell_followers(|follower| follower.changed(owner, &changed));
            }
            if head.echo {
                self.register.echo(owner, Echo { incarnation: head.incarnation, version: head.version });
            }
        } else if content.whole
            && let Some(content) = member.next.take()
        {
            self.promote(owner, member, content);
        }
        true
    }

    /// A register that is whole takes the place of what was known.
    fn promote(&self, owner: BrokerId, member: &mut Member, content: Content) {
        let changes = content.changes_from(member.current.as_ref());
        let echo = Echo { incarnation: content.incarnation, version: content.echo };
        let was_known = member.current.replace(content).is_some();
        self.tell_followers(|follower| {
            if !changes.is_empty() {
                follower.changed(owner, &changes);
            }
            if !was_known {
                follower.known(owner);
            }
        });
        if echo.version > 0 {
            self.register.echo(owner, echo);
        }
    }

    /// Nothing is known of this register, and nothing is taken in before long.
    fn refuse(&self, owner: BrokerId, member: &mut Member, now: Instant) {
        let was_known = member.current.is_some();
        *member = Member { refused_until: Some(now + REFUSED_TIME), ..Member::new(member.seen) };
        if was_known {
            self.tell_followers(|follower| {
                follower.left(owner);
                follower.joined(owner);
            });
        }
    }

    /// A neighbour tells what it has.
    pub fn hear_have(&self, from: PortId, haves: &[Have], now: Instant, out: &mut Vec<(PortId, Say)>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        for have in haves {
            let Some(port) = inner.ports.get_mut(&from) else { return };
            // Of one who left we do not begin again.
            let Some(seen) = now.checked_sub(have.age).filter(|_| have.age < self.member_timeout) else { continue };
            port.note(have.owner, (have.incarnation, have.version), seen);
            self.seek_one(inner, have.owner, now, out);
        }
        inner.flush(self.own, now, out);
    }

    /// A neighbour asks.
    pub fn hear_want(&self, from: PortId, want: Want, now: Instant, out: &mut Vec<(PortId, Say)>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let content = match inner.members.get(&want.owner) {
            _ if want.owner == self.own => inner.own.as_ref(),
            member => member.and_then(Member::best),
        };
        let content = content.filter(|content| content.incarnation == want.incarnation && content.version > 0);
        let Some(port) = inner.ports.get_mut(&from) else { return };
        let end = End { owner: want.owner, incarnation: want.incarnation, through: 0, version: 0, copying: want.copying };
        let Some(content) = content else { return out.push((from, Say::End(end))) };
        let copying = want.copying || !content.continues(want.after);
        let after = if copying && !want.copying { 0 } else { want.after };
        let mode = if copying { DeltaMode::Copy } else { DeltaMode::Next };
        let bytes_max = usize::try_from(want.bytes).unwrap_or(usize::MAX).min(REGISTER_ON_THE_WAY_BYTES);
        let (mut through, mut bytes) = (content.version, 0);
        let mut last = after;
        for (version, signed) in content.behind(after) {
            if bytes > 0 && bytes + signed.wire.len() > bytes_max {
                through = last;
                break;
            }
            bytes += signed.wire.len();
            last = version;
            out.push((from, Say::Delta(mode, Arc::clone(signed))));
        }
        // While it makes a copy the neighbour takes what comes live as well.
        let will_have = if copying { content.version } else { through };
        port.correct(want.owner, (content.incarnation, will_have), now);
        out.push((from, Say::End(End { through, version: content.version, copying, ..end })));
    }

    /// A neighbour has answered.
    pub fn hear_end(&self, from: PortId, end: End, now: Instant, out: &mut Vec<(PortId, Say)>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(asked) = inner.seeks.get_mut(&end.owner).and_then(|seek| seek.answered(from)) else { return };
        if let Some(port) = inner.ports.get_mut(&from) {
            port.wants = port.wants.saturating_sub(1);
            if port.place_of(end.owner).0 == end.incarnation {
                let seen = port.has.get(&end.owner).map_or(now, |known| known.seen);
                port.correct(end.owner, (end.incarnation, end.version), seen);
            }
        }
        let mut went_on = false;
        if let Some(member) = inner.members.get_mut(&end.owner) {
            let is_copied = |copy: &mut Copying| end.copying && copy.content.incarnation == end.incarnation;
            match member.copy.take_if(is_copied) {
                Some(copy) if end.through < end.version => {
                    went_on = end.through > copy.through;
                    member.copy = Some(Copying { through: end.through, ..copy });
                }
                Some(copy) if copy.content.adds_up() => {
                    went_on = true;
                    self.finish_copy(end.owner, member, copy.content, &mut inner.ports);
                }
                // Deltas have died meanwhile that were needed, or were held back: it begins anew.
                Some(_) => {}
                None => went_on = member.version_of(asked.incarnation) > asked.after,
            }
        }
        if let Some(seek) = inner.seeks.get_mut(&end.owner) {
            seek.went(went_on, from, now);
        }
        self.seek_all(inner, now, out);
    }

    fn finish_copy(&self, owner: BrokerId, member: &mut Member, mut content: Content, ports: &mut BTreeMap<PortId, Port>) {
        content.complete();
        if content.place() <= member.place() {
            return;
        }
        let place = content.place();
        if content.whole {
            member.next = None;
            self.promote(owner, member, content);
        } else {
            member.next = Some(content);
        }
        // A long way at once: who has less is told that there is more.
        ports.values_mut().filter(|port| port.place_of(owner) < place).for_each(|port| port.untold.push(owner));
    }

    /// Once a second or so: forgets who has left, asks again where nothing came.
    pub fn tick(&self, now: Instant, out: &mut Vec<(PortId, Say)>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let timeout = self.member_timeout;
        let mut left = Vec::new();
        inner.members.retain(|id, member| {
            let stays = now.saturating_duration_since(member.seen) < timeout;
            if !stays {
                left.push(*id);
            }
            stays
        });
        for id in left {
            self.register.forget(id);
            self.tell_followers(|follower| follower.left(id));
        }
        for seek in inner.seeks.values_mut() {
            if let Some(port) = seek.overdue(now).and_then(|port| inner.ports.get_mut(&port)) {
                port.wants = port.wants.saturating_sub(1);
            }
        }
        for port in inner.ports.values_mut() {
            port.has.retain(|owner, known| *owner == self.own || now.saturating_duration_since(known.seen) < timeout);
        }
        let ports = &inner.ports;
        inner.seeks.retain(|owner, seek| seek.is_asking() || ports.values().any(|port| port.has.contains_key(owner)));
        self.seek_all(inner, now, out);
    }

    fn tell_followers(&self, tell: impl Fn(&dyn Follow)) {
        self.followers.read().iter().for_each(|follower| tell(&**follower));
    }

    /// Asks for everything of which a neighbour has more than we have.
    fn seek_all(&self, inner: &mut Inner, now: Instant, out: &mut Vec<(PortId, Say)>) {
        let mut owners: Vec<_> = inner.ports.values().flat_map(|port| port.has.keys().copied()).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.into_iter().for_each(|owner| self.seek_one(inner, owner, now, out));
        inner.flush(self.own, now, out);
    }

    fn seek_one(&self, inner: &mut Inner, owner: BrokerId, now: Instant, out: &mut Vec<(PortId, Say)>) {
        let member = inner.members.get_mut(&owner);
        if owner == self.own || member.as_ref().is_some_and(|member| member.is_refused(now)) {
            return;
        }
        let state = inner.seeks.get(&owner).copied().unwrap_or_default();
        if let Some((state, port, want)) = seek(state, owner, member, &mut inner.ports, now) {
            inner.seeks.insert(owner, state);
            out.push((port, Say::Want(want)));
        }
    }
}

impl Inner {
    fn is_answer(&self, from: PortId, head: &DeltaHead) -> bool {
        self.seeks.get(&head.owner).is_some_and(|seek| seek.is_answer(from, head.incarnation))
    }

    /// Gives out what neighbours are to be sent and told.
    fn flush(&mut self, own: BrokerId, now: Instant, out: &mut Vec<(PortId, Say)>) {
        let (own_content, members) = (&self.own, &self.members);
        let have = |owner: BrokerId| {
            let (content, seen) = match members.get(&owner) {
                _ if owner == own => (own_content.as_ref()?, now),
                member => (member?.best()?, member?.seen),
            };
            let (incarnation, version) = content.place();
            (version > 0).then(|| Have { owner, incarnation, version, age: now.saturating_duration_since(seen) })
        };
        for (id, port) in &mut self.ports {
            out.extend(port.news.drain(..).map(|signed| (*id, Say::Delta(DeltaMode::Next, signed))));
            let mut owners = std::mem::take(&mut port.untold);
            owners.sort_unstable();
            owners.dedup();
            let haves: Vec<_> = owners.into_iter().filter_map(have).collect();
            out.extend(haves.chunks(REGISTER_HAVES_MAX).map(|some| (*id, Say::Have(some.to_vec()))));
        }
    }
}

//! The registers of all members: what counts of each, and what is passed on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::content::{Content, told_bytes};
use super::own::ENTRY_BYTES;
use super::port::{Place, Port, pass_on};
use super::seek::{Copied, Copying, Room, Seek, seek};
use super::{Change, Delta, DeltaHead, DeltaMode, Echo, End, Follow, Have, Key, Page, Register, RegisterError, Value, Want};
use crate::ids::{BrokerId, Incarnation, PortId};
use crate::limits::{
    BROKERS_MAX, REGISTER_BYTES_MAX, REGISTER_DELTA_BYTES, REGISTER_HAVES_MAX, REGISTER_ON_THE_WAY_BYTES, REGISTER_TELL_BYTES,
    REGISTERS_BYTES_MAX,
};
use crate::shared::{Signature, SignedRecord};

/// A register that is larger than may be, or does not add up, is looked at again after this time.
const REFUSED_TIME: Duration = Duration::from_secs(60);
/// What this broker has to say is told at once, and then no more than once in this time.
const TELL_INTERVAL: Duration = Duration::from_millis(10);
/// Who has left is a member again if it was heard of so much later than we knew: what neighbours tell of that grows younger on its way.
const RETURN_TIME: Duration = Duration::from_secs(60);

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
    /// Who has left not long ago.
    left: BTreeMap<BrokerId, Left>,
}

/// Others have its register still for a moment: of these it is not taken again.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// When the broker itself was heard of last.
    seen: Instant,
    at: Instant,
}

#[derive(Debug)]
struct Member {
    /// When the broker itself was heard of last.
    seen: Instant,
    /// What counts.
    current: Option<Content>,
    /// It has said so since it took in what this life of ours had to say. What it said before may be less than a former life of ours had echoed, by which others go.
    is_fresh: bool,
    /// Of a later life, which has not yet said all that it has to say at its beginning.
    next: Option<Content>,
    /// Nothing is taken in before.
    refused_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It continues what is here.
    Next,
    /// It continues the copy that is being made.
    Copy,
    /// It says how large the copy is, and what it must add up to.
    CopyHead,
}

impl Member {
    fn new(seen: Instant) -> Self {
        Self { seen, current: None, is_fresh: false, next: None, refused_until: None }
    }

    /// What can be handed on: the latest that has no hole.
    fn best(&self) -> Option<&Content> {
        self.next.as_ref().or(self.current.as_ref())
    }

    fn place(&self) -> Place {
        self.best().map_or_else(Place::default, Content::place)
    }

    /// Up to which version there is all of this life.
    fn version_of(&self, incarnation: Incarnation) -> u64 {
        let (ours, version) = self.place();
        if ours == incarnation { version } else { 0 }
    }

    fn is_refused(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| now < until)
    }

    fn bytes(&self) -> usize {
        self.current.iter().chain(&self.next).map(Content::bytes).sum()
    }
}

/// What a delta is to who is at `place`, and makes a copy or not. `is_answer`: the neighbour was asked for that life.
fn fit(head: &DeltaHead, mode: DeltaMode, place: Place, copy: Option<&Copying>, is_answer: bool) -> Option<Fit> {
    let copied = copy.filter(|copy| copy.content.incarnation == head.incarnation).map(|copy| copy.content.version);
    match mode {
        DeltaMode::Copy => is_answer.then_some(Fit::CopyHead),
        DeltaMode::Next => {
            let next = 1 + if place.0 == head.incarnation { place.1 } else { 0 };
            let is_next = head.place() > place && head.version == next;
            let goes_on = || copied.filter(|version| version + 1 == head.version).map(|_| Fit::Copy);
            if is_next { Some(Fit::Next) } else { goes_on() }
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
        let inner = Inner {
            own: None,
            told_at: None,
            members: BTreeMap::new(),
            ports: BTreeMap::new(),
            seeks: BTreeMap::new(),
            left: BTreeMap::new(),
        };
        let register = Register::new(filters_max);
        Arc::new(Self { own, register, member_timeout, followers: RwLock::default(), inner: Mutex::new(inner) })
    }

    /// What this broker has to say.
    #[must_use]
    pub fn own(&self) -> &Register {
        &self.register
    }

    /// How long a member counts as one after it was heard of last.
    #[must_use]
    pub fn member_timeout(&self) -> Duration {
        self.member_timeout
    }

    /// This broker.
    #[must_use]
    pub fn own_id(&self) -> BrokerId {
        self.own
    }

    /// From now on `follower` is told; of what there is, at once.
    pub fn follow(&self, follower: Arc<dyn Follow>) {
        let inner = self.inner.lock();
        for (id, member) in &inner.members {
            follower.joined(*id);
            if let Some(content) = &member.current {
                follower.changed(*id, &content.changes_from(None));
            }
            if member.is_fresh {
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

    /// The latest life of that broker of which something is known: of this one its own, once it is settled.
    #[must_use]
    pub fn life_of(&self, broker: BrokerId) -> Option<Incarnation> {
        let inner = self.inner.lock();
        if broker == self.own {
            return inner.life();
        }
        inner.members.get(&broker)?.best().map(|content| content.incarnation)
    }

    /// Whether everybody who is asked has told that it took in our register up to `version`; who is no member yet has not. `None` asks all members.
    #[must_use]
    pub fn is_echoed_by(&self, asked: Option<&BTreeSet<BrokerId>>, version: u64) -> bool {
        let inner = self.inner.lock();
        let Some(own) = &inner.own else { return inner.members.is_empty() && asked.is_none_or(BTreeSet::is_empty) };
        let wanted = Echo { incarnation: own.incarnation, version };
        let key = Key::Echo(self.own);
        let has_said = |member: &Member| {
            let said = member.current.as_ref().and_then(|content| content.value(&key));
            matches!(said, Some(Value::Echo(echo)) if *echo >= wanted)
        };
        match asked {
            Some(asked) => asked.iter().all(|id| *id == self.own || inner.members.get(id).is_some_and(has_said)),
            None => inner.members.values().all(has_said),
        }
    }

    /// This broker's life is settled: its register is of it. The first call counts.
    pub fn begin(&self, incarnation: Incarnation) {
        let mut inner = self.inner.lock();
        if inner.own.is_none() {
            inner.own = Some(Content::own(incarnation));
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

    /// Tells what this broker has to say by now, in deltas that `sign` signs, up to about [`REGISTER_TELL_BYTES`]. What cannot be signed is told
    /// later.
    pub fn tell(&self, now: Instant, mut sign: impl FnMut(&[u8]) -> Option<Signature>, out: &mut Vec<(PortId, Say)>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(own) = &mut inner.own else { return };
        inner.told_at = Some(now);
        let mut tell = |own: &mut Content, changes: Vec<Change>, whole: bool, echo: bool| {
            let (entries, bytes, sum) = own.after(&changes);
            let (incarnation, version, digest) = (own.incarnation, own.version + 1, sum.digest());
            let head = DeltaHead { owner: self.own, incarnation, version, whole, echo, entries, bytes, digest };
            let delta = Delta { head, changes };
            let wire = delta.encode();
            let Some(signature) = sign(&wire) else { return Err(delta.changes) };
            let signed = Arc::new(SignedRecord { wire: wire.into(), signature });
            own.said(delta, Arc::clone(&signed), sum);
            pass_on(&mut inner.ports, None, &head, &signed, now);
            Ok(())
        };
        // The rest in the next turns: what else there is to be said on a link does not wait for it.
        for _ in 0..REGISTER_TELL_BYTES / REGISTER_DELTA_BYTES {
            if !self.register.has_news() {
                break;
            }
            let taken = self.register.take(REGISTER_DELTA_BYTES);
            let (whole, echo) = (own.whole || taken.is_all, taken.echo);
            if let Err(changes) = tell(own, taken.changes, whole, echo) {
                self.register.give_back(changes, echo);
                break;
            }
            // What nobody echoes answers nobody who waits.
            if taken.echo {
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
        self.promote_all(&mut inner);
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

    /// The member, who is one from now on; none where there are too many, and of who has left and was not heard of since.
    fn member<'a>(&self, inner: &'a mut Inner, broker: BrokerId, seen: Instant) -> Option<&'a mut Member> {
        if !inner.members.contains_key(&broker) {
            if inner.members.len() >= BROKERS_MAX || inner.has_left(broker, seen) {
                return None;
            }
            inner.left.remove(&broker);
            inner.members.insert(broker, Member::new(seen));
            self.tell_followers(|follower| follower.joined(broker));
        }
        inner.members.get_mut(&broker)
    }

    /// Whether a delta is worth the check of its signature. That the neighbour has it is noted in any case.
    pub fn judge(&self, from: PortId, head: &DeltaHead, mode: DeltaMode, now: Instant) -> Judgement {
        let mut inner = self.inner.lock();
        let seen = inner.seen_of(head.owner, from, now);
        if let Some(port) = inner.ports.get_mut(&from) {
            port.note(head.owner, head.place(), seen);
        }
        let member = inner.members.get(&head.owner);
        let is_useless = head.owner == self.own || member.is_some_and(|member| member.is_refused(now));
        let place = member.map_or_else(Place::default, Member::place);
        let fits =
            if is_useless { None } else { fit(head, mode, place, inner.copy_of(head.owner, from), inner.is_answer(from, head)) };
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
        let seen = inner.seen_of(owner, from, now);
        let place = inner.members.get(&owner).map_or_else(Place::default, Member::place);
        let Some(fit) = fit(&head, mode, place, inner.copy_of(owner, from), inner.is_answer(from, &head)) else { return Ok(()) };
        let signed = Arc::new(signed);
        let life = inner.life();
        let seek = inner.seeks.get_mut(&owner);
        let result = match (fit, seek) {
            _ if told_bytes(&head) > REGISTER_BYTES_MAX => Err(RegisterError::TooLarge { owner, bytes: REGISTER_BYTES_MAX }),
            (Fit::Copy, Some(Seek { copy: Some(copy), .. })) => {
                copy.content.apply(delta, signed);
                Ok(())
            }
            (Fit::CopyHead, Some(seek)) => {
                seek.head = Some((head, signed));
                Ok(())
            }
            (Fit::Copy | Fit::CopyHead, _) => Ok(()),
            (Fit::Next, _) => {
                let newest = newest_of(&inner.ports, owner);
                let Some(member) = self.member(inner, owner, seen) else { return Ok(()) };
                let seen = member.seen;
                if self.go_on(owner, member, delta, &signed, newest) {
                    self.confirm(owner, member, life);
                    pass_on(&mut inner.ports, Some(from), &head, &signed, seen);
                    Ok(())
                } else {
                    Err(RegisterError::Size { owner, version: head.version })
                }
            }
        };
        let fits = inner.bytes_besides_copies() + inner.bytes_of_copies(None) <= REGISTERS_BYTES_MAX;
        let result = result.and_then(|()| fits.then_some(()).ok_or(RegisterError::NoRoom { owner, bytes: REGISTERS_BYTES_MAX }));
        if result.is_err() {
            self.refuse(inner, owner, now);
        }
        inner.flush(self.own, now, out);
        result
    }

    /// Takes in the delta that continues what is known of a member; a neighbour has the register up to `newest`. False if it does not add up.
    fn go_on(&self, owner: BrokerId, member: &mut Member, delta: Delta, signed: &Arc<SignedRecord>, newest: Place) -> bool {
        let Delta { head, .. } = delta;
        if member.version_of(head.incarnation) == 0 {
            member.next = Some(Content::new(head.incarnation));
        }
        let is_current = member.next.is_none();
        let Some(content) = member.next.as_mut().or(member.current.as_mut()) else { return false };
        let changed = content.apply(delta, Arc::clone(signed));
        if !content.is_as_large_as_told() {
            return false;
        }
        if is_current {
            if !changed.is_empty() {
                self.tell_followers(|follower| follower.changed(owner, &changed));
            }
            if head.echo {
                self.register.echo(owner, Echo { incarnation: head.incarnation, version: head.version });
            }
        } else {
            self.promote_next(owner, member, newest);
        }
        true
    }

    /// What is known of a later life counts from now on if it is whole and no neighbour has more: what is known of the life before was not less.
    fn promote_next(&self, owner: BrokerId, member: &mut Member, newest: Place) {
        if let Some(content) = member.next.take_if(|next| next.whole && next.place() >= newest) {
            self.promote(owner, member, content);
        }
    }

    /// Neighbours are gone, or have less than was known.
    fn promote_all(&self, inner: &mut Inner) {
        let life = inner.life();
        let Inner { members, ports, .. } = inner;
        for (owner, member) in members.iter_mut().filter(|(_, member)| member.next.is_some()) {
            self.promote_next(*owner, member, newest_of(ports, *owner));
            self.confirm(*owner, member, life);
        }
    }

    /// Looks whether what a member says is known by now: it is from the moment on at which it echoes this life of ours.
    fn confirm(&self, owner: BrokerId, member: &mut Member, life: Option<Incarnation>) {
        let echo = || member.current.as_ref().and_then(|content| content.value(&Key::Echo(self.own)));
        if !member.is_fresh
            && let (Some(life), Some(Value::Echo(echo))) = (life, echo())
            && echo.incarnation == life
        {
            member.is_fresh = true;
            self.tell_followers(|follower| follower.known(owner));
        }
    }

    /// A register that is whole takes the place of what was known.
    fn promote(&self, owner: BrokerId, member: &mut Member, content: Content) {
        let changes = content.changes_from(member.current.as_ref());
        let echo = Echo { incarnation: content.incarnation, version: content.echo };
        member.current = Some(content);
        if !changes.is_empty() {
            self.tell_followers(|follower| follower.changed(owner, &changes));
        }
        if echo.version > 0 {
            self.register.echo(owner, echo);
        }
    }

    /// Nothing is known of this register, and nothing is taken in before long.
    fn refuse(&self, inner: &mut Inner, owner: BrokerId, now: Instant) {
        if let Some(seek) = inner.seeks.get_mut(&owner) {
            seek.copy = None;
        }
        let Some(member) = inner.members.get_mut(&owner) else { return };
        let was_known = member.current.is_some();
        *member = Member { refused_until: Some(now + REFUSED_TIME), ..Member::new(member.seen) };
        if was_known {
            // In one step: at no time is it nobody who wants nothing.
            self.tell_followers(|follower| follower.joined(owner));
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
            if have.owner != self.own {
                // Until its register has come it wants everything.
                self.member(inner, have.owner, seen);
            }
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
        // It is not younger for being asked for.
        let seen = inner.seen_of(want.owner, from, now);
        let Some(port) = inner.ports.get_mut(&from) else { return };
        let Want { owner, incarnation, after, behind, bytes } = want;
        let Some(content) = content else { return out.push((from, Say::End(End { owner, incarnation, version: 0, page: None }))) };
        let bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX).min(REGISTER_ON_THE_WAY_BYTES);
        let mut budget = Budget { left: bytes_max, is_fresh: true };
        let version = content.version;
        let (page, has) = match content.behind(after.min(version)) {
            Some(deltas) if behind.is_none() => {
                let sent = deltas.take_while(|signed| budget.take(signed.wire.len())).inspect(|signed| {
                    out.push((from, Say::Delta(DeltaMode::Next, Arc::clone(signed))));
                });
                (None, after.max(after.min(version) + sent.count() as u64))
            }
            _ => {
                // First what came live since the last page and was more than could be sent unasked.
                let (pushed_of, pushed) = port.place_of(owner);
                let missed = content.behind(pushed).filter(|_| behind.is_some() && pushed_of == incarnation);
                let mut has = if missed.is_some() { pushed } else { version };
                for signed in missed.into_iter().flatten().take_while(|signed| budget.take(signed.wire.len())) {
                    has += 1;
                    out.push((from, Say::Delta(DeltaMode::Next, Arc::clone(signed))));
                }
                let size = |(key, _): &(&Key, &Value)| key.len() + ENTRY_BYTES;
                let mut rest = content.entries_behind(behind.as_ref()).peekable();
                let mut entries = Vec::new();
                // The entries are of the version to which all has been said.
                while has == version
                    && let Some((key, value)) = rest.next_if(|entry| budget.take(size(entry)))
                {
                    entries.push((key.clone(), value.clone()));
                }
                let last = has == version && rest.peek().is_none();
                // Before the first entries come, it must be known how many there can be.
                let says_size = last || behind.is_none();
                if let (true, Some(newest)) = (says_size, content.newest()) {
                    out.push((from, Say::Delta(DeltaMode::Copy, Arc::clone(newest))));
                }
                (Some(Page { last, entries }), has)
            }
        };
        port.correct(owner, (incarnation, has), seen);
        let version = if page.is_some() { has } else { version };
        out.push((from, Say::End(End { owner, incarnation, version, page })));
    }

    /// A neighbour has answered.
    ///
    /// # Errors
    /// [`RegisterError::BadCopy`]: it was part of a copy that is not what the register's owner has signed. That copy is dropped, and asked for again later,
    /// rather of another neighbour; what is known of the register stays. [`RegisterError::NoRoom`]: nothing is known of it from now on.
    pub fn hear_end(&self, from: PortId, end: End, now: Instant, out: &mut Vec<(PortId, Say)>) -> Result<(), RegisterError> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let End { owner, incarnation, version, page } = end;
        if owner == self.own {
            inner.ports.get_mut(&from).into_iter().for_each(Port::arrived);
            inner.flush(self.own, now, out);
            return Ok(());
        }
        let (seen, place) = (inner.seen_of(owner, from, now), inner.members.get(&owner).map_or_else(Place::default, Member::place));
        let room = Room { members: inner.bytes_besides_copies(), copies: inner.bytes_of_copies(Some(owner)) };
        let Some(seek) = inner.seeks.get_mut(&owner) else { return Ok(()) };
        let Some(asked) = seek.answered(from) else { return Ok(()) };
        if let Some(port) = inner.ports.get_mut(&from) {
            port.wants = port.wants.saturating_sub(1);
            if port.place_of(owner).0 == incarnation {
                port.correct(owner, (incarnation, version), seen);
            }
        }
        let went_further = || place.0 == asked.incarnation && place.1 > asked.after;
        let copied = match page {
            None if went_further() => Copied::GoesOn,
            Some(page) if incarnation == asked.incarnation => seek.copied(from, (incarnation, version), page, &room),
            None | Some(_) => Copied::Ends,
        };
        let (went_on, result) = match copied {
            Copied::GoesOn => (true, Ok(())),
            Copied::IsWhole(content) => {
                self.finish_copy(inner, owner, *content, seen);
                (true, Ok(()))
            }
            Copied::Ends => (false, Ok(())),
            Copied::IsNotWhatWasSaid => (false, Err(RegisterError::BadCopy { owner, version })),
            Copied::HasNoRoom => {
                // What is known of it is old, and will not be followed.
                self.refuse(inner, owner, now);
                (false, Err(RegisterError::NoRoom { owner, bytes: REGISTERS_BYTES_MAX }))
            }
        };
        if let Some(seek) = inner.seeks.get_mut(&owner) {
            seek.went(went_on, from, now);
        }
        self.promote_all(inner);
        self.seek_all(inner, now, out);
        result
    }

    fn finish_copy(&self, inner: &mut Inner, owner: BrokerId, mut content: Content, seen: Instant) {
        // Which of its deltas asked for an echo a copy does not tell.
        content.echo = content.version;
        let (place, newest, life) = (content.place(), newest_of(&inner.ports, owner), inner.life());
        let Some(member) = self.member(inner, owner, seen) else { return };
        if place <= member.place() {
            return;
        }
        // What counts already goes on; a later life begins.
        if member.next.is_none() && member.current.as_ref().is_some_and(|current| current.incarnation == content.incarnation) {
            self.promote(owner, member, content);
        } else {
            member.next = Some(content);
            self.promote_next(owner, member, newest);
        }
        self.confirm(owner, member, life);
        // A long way at once: who has less is told that there is more.
        let others = inner.ports.values_mut().filter(|port| port.place_of(owner) < place);
        others.for_each(|port| port.untold.push(owner));
    }

    /// Once a second or so: forgets who has left, asks again where nothing came. Gives who has left, and how many filters each of them had: what
    /// is published from now on is not kept for these.
    pub fn tick(&self, now: Instant, out: &mut Vec<(PortId, Say)>) -> Vec<(BrokerId, usize)> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let timeout = self.member_timeout;
        inner.left.retain(|_, left| now.saturating_duration_since(left.at) < timeout);
        let mut left = Vec::new();
        inner.members.retain(|id, member| {
            let stays = now.saturating_duration_since(member.seen) < timeout;
            if !stays {
                left.push((*id, member.current.as_ref().map_or(0, Content::filters)));
                if inner.left.len() < BROKERS_MAX {
                    inner.left.insert(*id, Left { seen: member.seen, at: now });
                }
            }
            stays
        });
        for (id, _) in &left {
            self.register.forget(*id);
            self.tell_followers(|follower| follower.left(*id));
        }
        for seek in inner.seeks.values_mut() {
            if let Some(port) = seek.overdue(now).and_then(|port| inner.ports.get_mut(&port)) {
                port.wants = port.wants.saturating_sub(1);
            }
        }
        for port in inner.ports.values_mut() {
            port.has.retain(|owner, known| *owner == self.own || now.saturating_duration_since(known.seen) < timeout);
        }
        self.promote_all(inner);
        let ports = &inner.ports;
        inner.seeks.retain(|owner, seek| seek.is_asking() || ports.values().any(|port| port.has.contains_key(owner)));
        self.seek_all(inner, now, out);
        left
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
        let member = inner.members.get(&owner);
        if owner == self.own || member.is_some_and(|member| member.is_refused(now)) {
            return;
        }
        let mut known = inner.ports.values().filter_map(|port| port.has.get(&owner));
        if member.is_none() && known.all(|known| inner.has_left(owner, known.seen)) {
            return;
        }
        let place = member.map_or_else(Place::default, Member::place);
        if let Some((port, want)) = seek(inner.seeks.entry(owner).or_default(), owner, place, &mut inner.ports, now) {
            out.push((port, Say::Want(want)));
        }
    }
}

impl Inner {
    /// This life of ours, once it is settled.
    fn life(&self) -> Option<Incarnation> {
        self.own.as_ref().map(|own| own.incarnation)
    }

    /// The copy of a register that is being made of this neighbour.
    fn copy_of(&self, owner: BrokerId, port: PortId) -> Option<&Copying> {
        self.seeks.get(&owner)?.copy.as_ref().filter(|copy| copy.port == port)
    }

    fn is_answer(&self, from: PortId, head: &DeltaHead) -> bool {
        self.seeks.get(&head.owner).is_some_and(|seek| seek.is_answer(from, head.incarnation))
    }

    /// Whether it has left, and was not heard of since.
    fn has_left(&self, owner: BrokerId, seen: Instant) -> bool {
        self.left.get(&owner).is_some_and(|left| seen < left.seen + RETURN_TIME)
    }

    /// When an owner of whose register a neighbour says something was heard of last, as far as that one knows, or else we.
    fn seen_of(&self, owner: BrokerId, from: PortId, now: Instant) -> Instant {
        let known = self.ports.get(&from).and_then(|port| port.has.get(&owner)).map(|known| known.seen);
        let member = || self.members.get(&owner).map(|member| member.seen);
        let left = || self.left.get(&owner).map(|left| left.seen);
        known.or_else(member).or_else(left).unwrap_or(now)
    }

    /// What registers take of which something is known.
    fn bytes_besides_copies(&self) -> usize {
        self.members.values().map(Member::bytes).sum()
    }

    /// What copies take that are being made, when they are as large as their owners say; without that of one.
    fn bytes_of_copies(&self, without: Option<BrokerId>) -> usize {
        let copies = self.seeks.iter().filter(|(owner, _)| Some(**owner) != without);
        copies.filter_map(|(_, seek)| seek.copy.as_ref()).map(|copy| copy.content.told_bytes()).sum()
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
            if port.probe() {
                let (incarnation, after) = own_content.as_ref().map_or_else(Place::default, Content::place);
                out.push((*id, Say::Want(Want { owner: own, incarnation, after, behind: None, bytes: 0 })));
            }
        }
    }
}

/// How far a neighbour has the register of an owner, as far as is known.
fn newest_of(ports: &BTreeMap<PortId, Port>, owner: BrokerId) -> Place {
    ports.values().map(|port| port.place_of(owner)).max().unwrap_or_default()
}

/// How much of an answer there may be still: at least one piece of any size.
struct Budget {
    left: usize,
    is_fresh: bool,
}

impl Budget {
    fn take(&mut self, bytes: usize) -> bool {
        let fits = std::mem::take(&mut self.is_fresh) || bytes <= self.left;
        self.left = self.left.saturating_sub(bytes);
        fits
    }
}

//! What was left out on the way here and is wanted after all: asked for, waited for, passed on.
//!
//! A block may have stubs in place of messages that nobody here was known to want. Where a local subscription matches one, local delivery
//! of that origin-lane stops there ([`Held`]) until the payload has come, so that order holds; blocks are appended and sent on as ever. It is
//! asked for where the origin-lane comes from, and once a second everywhere ([`Lane::repeat_pulls`]). A broker that is asked and has only the stub
//! itself passes the question on and remembers who asked ([`Pulls`]); the answer takes the stub's place in its ring.
//!
//! Invariants: a stub that is waited for is in the ring, or given up as lost, and counted; so what waits is bounded by the ring. Questions of
//! others are bounded by [`QUESTIONS_MAX`], and forgotten unless they are repeated.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::block::{Block, Content, Stream, StreamKey};
use super::counters::Counters;
use super::fill::Ask;
use super::former::After;
use super::lane::Lane;
use super::port::PortLane;
use super::ring::Read;
use super::sync::Mutex;
use super::{Deliver, MeshMessage};
use crate::frame::lane::{self, Entry, Filled, Messages};
use crate::ids::MessageId;
use crate::limits::{PULL_REPEAT, QUESTION_LIFE, QUESTIONS_MAX};

/// Questions of one origin-lane that are repeated at once, on each port.
const REPEATED_MAX: usize = 4_096;

/// Local delivery of one origin-lane, stopped. Guarded by the origin-lane's lock.
#[derive(Debug)]
pub(super) struct Held {
    /// What has come since, in order. The first has something that is waited for.
    blocks: VecDeque<Arc<Block>>,
    /// Everything below is delivered.
    next: u64,
    /// Asked for, and not yet here.
    missing: BTreeSet<u64>,
}

/// What of a payload frame was new.
pub(super) type Payloads<'a> = BTreeMap<u64, MeshMessage<'a>>;

impl Held {
    pub(super) fn new(next: u64) -> Self {
        Self { blocks: VecDeque::new(), next, missing: BTreeSet::new() }
    }

    /// Everything below is delivered.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn push(&mut self, block: Arc<Block>, missing: &[u64]) {
        self.blocks.push_back(block);
        self.missing.extend(missing);
    }

    /// Delivers what can be delivered. Whether something was, and whether nothing is held any more.
    fn advance(&mut self, lane: &Lane, now: Instant, deliver: &mut (impl Deliver + ?Sized), counters: &Counters) -> (bool, bool) {
        let mut delivered = false;
        while let Some(block) = self.blocks.front() {
            let Content::Messages(body) = &block.content else {
                self.blocks.pop_front();
                continue;
            };
            let age_ms = block.age_ms(now);
            for (sequence, entry) in Messages::new(block.first, body).flatten() {
                if sequence < self.next {
                    continue;
                }
                if self.missing.contains(&sequence) {
                    return (delivered, false);
                }
                // A stub that is not missing was not wanted, or is given up.
                if let Entry::Message(message) = entry {
                    delivered |= lane.hand_over(&block.stream, (sequence, message), age_ms, now, deliver, counters);
                }
                self.next = sequence.saturating_add(1);
            }
            self.blocks.pop_front();
        }
        (delivered, true)
    }

    /// The block that has this sequence, if it is held.
    fn block_of(&self, sequence: u64) -> Option<&Arc<Block>> {
        let place = self.blocks.partition_point(|block| block.last < sequence);
        self.blocks.get(place).filter(|block| block.first <= sequence)
    }

    /// A block has now what was missing of it in `filled_in`.
    fn put(&mut self, block: Arc<Block>, filled_in: &[u64]) {
        let place = self.blocks.partition_point(|held| held.position < block.position);
        if let Some(held) = self.blocks.get_mut(place).filter(|held| held.position == block.position) {
            *held = block;
            // Not what of the answer fitted no stub: it is still missing.
            filled_in.iter().for_each(|sequence| {
                self.missing.remove(sequence);
            });
        }
    }

    /// Whoever wanted it may have gone: what of the first that is missing nobody here wants any more is not waited for. Whether there was such.
    fn reconsider(&mut self, deliver: &mut (impl Deliver + ?Sized)) -> bool {
        let (mut unwanted, mut looked_at) = (Vec::new(), 0);
        let mut next = self.missing.first().copied();
        while let Some(block) = next.filter(|_| looked_at < REPEATED_MAX).and_then(|first| self.block_of(first)) {
            if let Content::Messages(body) = &block.content {
                let entries = Messages::new(block.first, body).flatten();
                for (sequence, entry) in entries.filter(|(sequence, _)| self.missing.contains(sequence)) {
                    looked_at += 1;
                    if !deliver.wants(entry.topic(), entry.picks()) {
                        unwanted.push(sequence);
                    }
                }
            }
            next = self.missing.range(block.last.saturating_add(1)..).next().copied();
        }
        unwanted.iter().for_each(|sequence| {
            self.missing.remove(sequence);
        });
        !unwanted.is_empty()
    }

    /// What is missing in the first blocks, as far as `are_lost` says so, is lost. How much that is.
    fn give_up(&mut self, are_lost: impl Fn(&Block) -> bool) -> usize {
        let Some(last) = self.blocks.iter().take_while(|block| are_lost(block)).map(|block| block.last).last() else { return 0 };
        let kept = self.missing.split_off(&last.saturating_add(1));
        std::mem::replace(&mut self.missing, kept).len()
    }
}

/// What one lane knows of questions.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    /// The lane of every port.
    ports: RwLock<Vec<Weak<PortLane>>>,
    /// What neighbours asked and this broker could not answer.
    questions: Mutex<BTreeMap<(StreamKey, u64), Question>>,
    /// Origin-lanes whose local delivery is stopped.
    holding: Mutex<BTreeMap<StreamKey, Arc<Stream>>>,
}

#[derive(Debug)]
struct Question {
    /// The numbers of the ports that asked.
    by: Vec<u64>,
    /// When it was first asked.
    since: Instant,
    /// When it was last asked.
    asked_at: Instant,
    /// When it was last passed on.
    passed_at: Instant,
}

impl Pulls {
    pub(super) fn attach(&self, port: &Arc<PortLane>) {
        self.ports.write().push(Arc::downgrade(port));
    }

    pub(super) fn detach(&self, port: &PortLane) {
        self.ports.write().retain(|held| held.upgrade().is_some_and(|held| held.number() != port.number()));
    }

    fn ports(&self) -> Vec<Arc<PortLane>> {
        self.ports.read().iter().filter_map(Weak::upgrade).collect()
    }

    /// A neighbour asks for what this broker does not have. Which of it is to be passed on now.
    fn ask(&self, key: StreamKey, sequences: &[u64], by: u64, now: Instant) -> Vec<u64> {
        let mut questions = self.questions.lock();
        let mut passed_on = Vec::new();
        for sequence in sequences {
            let is_full = questions.len() >= QUESTIONS_MAX;
            match questions.get_mut(&(key, *sequence)) {
                Some(question) => {
                    if !question.by.contains(&by) {
                        question.by.push(by);
                    }
                    question.asked_at = now;
                    // Half of it: who repeats it does so once in that time, and not to the millisecond.
                    if now.saturating_duration_since(question.passed_at) < PULL_REPEAT / 2 {
                        continue;
                    }
                    question.passed_at = now;
                }
                // It will be asked again.
                None if is_full => continue,
                None => {
                    drop(questions.insert((key, *sequence), Question { by: vec![by], since: now, asked_at: now, passed_at: now }))
                }
            }
            passed_on.push(*sequence);
        }
        passed_on
    }

    /// Which of these nobody has answered, though they have been asked all the time that a question lives.
    fn unanswered(&self, key: StreamKey, sequences: &[u64], now: Instant) -> Vec<u64> {
        let questions = self.questions.lock();
        let is_old = |question: &Question| now.saturating_duration_since(question.since) >= QUESTION_LIFE;
        sequences.iter().copied().filter(|sequence| questions.get(&(key, *sequence)).is_some_and(is_old)).collect()
    }

    /// Takes the questions that are answered now: by whom which were asked.
    fn answered(&self, key: StreamKey, sequences: impl IntoIterator<Item = u64>) -> BTreeMap<u64, Vec<u64>> {
        let mut questions = self.questions.lock();
        let mut askers = BTreeMap::<u64, Vec<u64>>::new();
        for sequence in sequences {
            let Some(question) = questions.remove(&(key, sequence)) else { continue };
            question.by.into_iter().for_each(|by| askers.entry(by).or_default().push(sequence));
        }
        askers
    }
}

impl Lane {
    /// Gives a message to local subscribers unless it has expired. Whether it did.
    pub(super) fn hand_over(
        &self,
        stream: &Stream,
        (sequence, mut message): (u64, MeshMessage<'_>),
        age_ms: u64,
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        counters: &Counters,
    ) -> bool {
        if !message.picks.is_empty() && message.picks.name(self.own.key().0) {
            stream.set_picks_us();
        }
        match message.expiry_seconds {
            Some(seconds) if u64::from(seconds) <= age_ms / 1_000 => {
                counters.messages_expired.add(1);
                false
            }
            expiry => {
                // In range: less than the u32 it is taken from.
                message.expiry_seconds = expiry.map(|seconds| seconds - (age_ms / 1_000) as u32);
                let id = MessageId { origin_lane: stream.id(), sequence };
                if self.is_from_absence(age_ms, now) {
                    deliver.catch_up(&message, id)
                } else {
                    deliver.deliver(&message, id)
                }
                true
            }
        }
    }

    /// A neighbour, at the port of this number, asks for messages of `stream`. What of it is here is answered there in time; for the rest others
    /// are asked.
    pub(super) fn pulled(&self, stream: &Arc<Stream>, sequences: &[u64], port: &PortLane, now: Instant) {
        let key = stream.key();
        let (here, absent) = self.look_for(stream, sequences);
        port.answer_from_ring(key, &here);
        if Arc::ptr_eq(stream, &self.own) {
            port.answer_gone(key, &absent);
            return;
        }
        let passed_on = self.pulls.ask(key, &absent, port.number(), now);
        self.pull(stream, &passed_on, Some(port.number()));
        // A log that this broker has lost: others may have the messages, if anybody does. There is no other origin to say that they are gone.
        if key.0 == self.own.key().0 {
            self.tell_gone(stream, &self.pulls.unanswered(key, &absent, now));
        }
    }

    /// Tells whoever asked that nobody will have these.
    fn tell_gone(&self, stream: &Stream, sequences: &[u64]) {
        for (number, asked) in self.pulls.answered(stream.key(), sequences.iter().copied()) {
            if let Some(port) = self.port(number) {
                port.answer_gone(stream.key(), &asked);
            }
        }
    }

    /// Asks for messages of `stream` where it comes from, or else everywhere but at the port `except`.
    pub(super) fn pull(&self, stream: &Stream, sequences: &[u64], except: Option<u64>) {
        if sequences.is_empty() {
            return;
        }
        let ports = self.pulls.ports();
        let upstream = stream.upstream();
        let others = || ports.iter().filter(|port| Some(port.number()) != except);
        if !others().any(|port| port.number() == upstream && port.ask(stream.key(), sequences)) {
            for port in others() {
                port.ask(stream.key(), sequences);
            }
        }
    }

    /// The ports, other than `except`, that can be asked for a range of `stream`: first the one that `answered` last, then the one where it comes from.
    pub(super) fn whom_to_ask(&self, stream: &Stream, except: u64, answered: u64) -> Vec<u64> {
        let ports = self.pulls.ports();
        let mut open: Vec<_> = ports.iter().filter(|port| port.is_open()).map(|port| port.number()).collect();
        open.retain(|number| *number != except);
        open.sort_by_key(|number| (*number != answered, *number != stream.upstream()));
        open
    }

    /// Asks for ranges that a port's far side lacks.
    pub(super) fn ask_on(&self, asks: Vec<Ask>) {
        for ask in asks {
            if let Some(port) = self.port(ask.port) {
                port.ask_fill(ask);
            }
        }
    }

    /// A part of what was asked for so has come from the port of that number.
    pub(super) fn filled(&self, stream: &Stream, filled: &Filled<'_>, from: u64, now: Instant) {
        for port in self.pulls.ports().into_iter().filter(|port| port.number() != from) {
            port.take_filled(from, stream.key(), filled, now);
        }
    }

    /// Payloads have come. What of them was asked for takes the place of its stubs, is delivered where it was waited for, and is passed on to
    /// those who asked. Whether something was delivered.
    pub(super) fn payloads_came(
        &self,
        stream: &Arc<Stream>,
        payloads: Payloads<'_>,
        age_ms: u64,
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        counters: &Counters,
    ) -> bool {
        let key = stream.key();
        let askers = self.pulls.answered(key, payloads.keys().copied());
        let mut is_delivered = false;
        {
            let _turn = stream.turn.lock();
            let mut held = stream.held.lock();
            let is_wanted = |sequence: &u64| {
                held.as_ref().is_some_and(|held| held.missing.contains(sequence))
                    || askers.values().any(|asked| asked.binary_search(sequence).is_ok())
            };
            let wanted: Payloads<'_> = payloads.iter().filter(|(sequence, _)| is_wanted(sequence)).map(|(s, m)| (*s, *m)).collect();
            counters.payloads_received.add(wanted.len() as u64);
            let patched = self.patch(stream, &wanted, held.as_deref());
            if let Some(waiting) = held.as_deref_mut() {
                patched.into_iter().for_each(|(block, filled_in)| waiting.put(block, &filled_in));
                is_delivered = self.go_on(stream, &mut held, now, deliver, counters);
            }
        }
        for (number, sequences) in askers {
            let Some(port) = self.port(number) else { continue };
            let (here, absent) = self.look_for(stream, &sequences);
            port.answer_from_ring(key, &here);
            // Only passed on, as the ring does not reach it.
            absent.iter().filter_map(|sequence| payloads.get(sequence).map(|message| (*sequence, message))).for_each(
                |(sequence, message)| {
                    let mut body = Vec::new();
                    lane::put_message(&mut body, 0, message, false);
                    port.answer_with(key, sequence, (age_ms, now), body.into());
                },
            );
        }
        is_delivered
    }

    /// The origin no longer has these. Whether something was delivered that had waited behind them.
    pub(super) fn payloads_gone(
        &self,
        stream: &Arc<Stream>,
        sequences: &[u64],
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        counters: &Counters,
    ) -> bool {
        self.tell_gone(stream, sequences);
        let _turn = stream.turn.lock();
        let mut held = stream.held.lock();
        let Some(waiting) = held.as_deref_mut() else { return false };
        let lost = sequences.iter().filter(|sequence| waiting.missing.remove(sequence)).count();
        count_lost(stream, self, lost, "the origin no longer has them", counters);
        self.go_on(stream, &mut held, now, deliver, counters)
    }

    /// A block with stubs that are wanted has come, or another one behind such a block. To be called under the origin-lane's lock. Whether
    /// something was delivered.
    pub(super) fn hold(
        &self,
        stream: &Arc<Stream>,
        (block, owed_from): (Arc<Block>, u64),
        missing: &[u64],
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        counters: &Counters,
    ) -> bool {
        let mut held = stream.held.lock();
        let waiting = held.get_or_insert_with(|| {
            self.pulls.holding.lock().insert(stream.key(), Arc::clone(stream));
            Box::new(Held::new(owed_from.saturating_add(1)))
        });
        waiting.push(block, missing);
        let tail = self.ring.tail();
        let lost = waiting.give_up(|block| block.position < tail);
        count_lost(stream, self, lost, "the log has overtaken them", counters);
        self.go_on(stream, &mut held, now, deliver, counters)
    }

    /// Delivers what can be delivered of what is held; if that is all, it is held no more.
    fn go_on(
        &self,
        stream: &Stream,
        held: &mut Option<Box<Held>>,
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        counters: &Counters,
    ) -> bool {
        let Some(waiting) = held else { return false };
        let (delivered, is_over) = waiting.advance(self, now, deliver, counters);
        if is_over {
            *held = None;
            self.pulls.holding.lock().remove(&stream.key());
        }
        stream.set_held_from(held.as_ref().map(|held| held.next()));
        delivered
    }

    /// Asks once more for everything that is waited for and still wanted, and gives up what was waited for in vain for longer than `patience`. To be
    /// called once in [`PULL_REPEAT`].
    pub(super) fn repeat_pulls(
        &self,
        patience: Duration,
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        counters: &Counters,
    ) {
        let holding: Vec<_> = self.pulls.holding.lock().values().cloned().collect();
        // As a receiver does: what is written down of sessions and covers is in one order.
        let _receiving = self.log.as_ref().map(|_| self.receiving.lock());
        let mut is_delivered = false;
        for stream in holding {
            let missing: Vec<u64> = {
                let _turn = stream.turn.lock();
                let mut held = stream.held.lock();
                let Some(waiting) = held.as_deref_mut() else { continue };
                let tail = self.ring.tail();
                let is_changed = waiting.reconsider(deliver);
                let is_late = |block: &Block| now.saturating_duration_since(block.appended_at) >= patience;
                let lost = waiting.give_up(|block| block.position < tail || is_late(block));
                count_lost(&stream, self, lost, "nobody has them", counters);
                let missing = waiting.missing.iter().take(REPEATED_MAX).copied().collect();
                if lost > 0 || is_changed {
                    self.go_on(&stream, &mut held, now, deliver, counters);
                    is_delivered = true;
                    if self.log.is_some() {
                        deliver.covered(stream.id(), stream.delivered_of(stream.cover()));
                    }
                }
                missing
            };
            for port in self.pulls.ports() {
                port.ask(stream.key(), &missing);
            }
        }
        if is_delivered {
            deliver.flush();
        }
        self.pulls.ports().iter().for_each(|port| port.look_after_fills(patience));
        self.pulls.questions.lock().retain(|_, question| now.saturating_duration_since(question.asked_at) < QUESTION_LIFE);
    }

    /// A port has opened: it is asked for everything that is waited for.
    pub(super) fn pull_at(&self, port: &PortLane) {
        let holding: Vec<_> = self.pulls.holding.lock().values().cloned().collect();
        for stream in holding {
            let held = stream.held.lock();
            let missing: Vec<u64> = held.iter().flat_map(|held| held.missing.iter().take(REPEATED_MAX).copied()).collect();
            drop(held);
            port.ask(stream.key(), &missing);
        }
        let mut others = BTreeMap::<StreamKey, Vec<u64>>::new();
        for ((key, sequence), question) in self.pulls.questions.lock().iter() {
            if !question.by.contains(&port.number()) {
                others.entry(*key).or_default().push(*sequence);
            }
        }
        for (key, sequences) in others {
            port.ask(key, &sequences);
        }
    }

    /// Which of `sequences`, which ascend, are whole messages in the ring, and which are not.
    fn look_for(&self, stream: &Arc<Stream>, sequences: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let (mut here, mut absent) = (Vec::new(), Vec::new());
        let mut rest = sequences.iter().copied().peekable();
        while let Some(first) = rest.peek().copied() {
            let block = self.block_of(stream, first);
            let Some((block, Content::Messages(body))) = block.as_ref().map(|block| (block, &block.content)) else {
                absent.push(first);
                rest.next();
                continue;
            };
            for (sequence, entry) in Messages::new(block.first, body).flatten() {
                while let Some(before) = rest.next_if(|next| *next < sequence) {
                    absent.push(before);
                }
                if rest.next_if_eq(&sequence).is_some() {
                    if matches!(entry, Entry::Message(_)) { &mut here } else { &mut absent }.push(sequence);
                }
            }
            while let Some(after) = rest.next_if(|next| *next <= block.last) {
                absent.push(after);
            }
        }
        (here, absent)
    }

    /// The block that has this sequence, if it is still there.
    pub(super) fn block_of(&self, stream: &Arc<Stream>, sequence: u64) -> Option<Arc<Block>> {
        let is_it = |block: &Arc<Block>| Arc::ptr_eq(&block.stream, stream) && block.first <= sequence && sequence <= block.last;
        let read = |position| match self.ring.read(position) {
            Read::Block(block) => Some(block).filter(is_it),
            Read::NotYet | Read::Lapped => None,
        };
        let own = Arc::ptr_eq(stream, &self.own).then(|| Self::position_of(sequence));
        let former = || match self.former_after(own.and(sequence.checked_sub(1))?) {
            After::Block(block) => Some(block).filter(is_it),
            After::Lost(_) | After::Nothing => None,
        };
        own.and_then(read).or_else(|| read(stream.position_of(sequence)?)).or_else(former)
    }

    /// Puts payloads in the place of their stubs in the ring. Returns the blocks that are new, and which of the payloads each of them has. To be called
    /// under the origin-lane's lock.
    fn patch(&self, stream: &Arc<Stream>, payloads: &Payloads<'_>, held: Option<&Held>) -> Vec<(Arc<Block>, Vec<u64>)> {
        let mut patched = Vec::new();
        let mut next = payloads.keys().next().copied();
        while let Some(first) = next {
            let in_held = || held?.block_of(first).cloned();
            let Some(block) = self.block_of(stream, first).or_else(in_held) else {
                next = after(payloads, first);
                continue;
            };
            if let Some((new, sequences)) = filled_in(&block, payloads) {
                let new = Arc::new(new);
                self.ring.replace(&new);
                patched.push((new, sequences));
            }
            next = after(payloads, block.last);
        }
        patched
    }

    fn port(&self, number: u64) -> Option<Arc<PortLane>> {
        self.pulls.ports().into_iter().find(|port| port.number() == number)
    }
}

fn after(payloads: &Payloads<'_>, sequence: u64) -> Option<u64> {
    payloads.range(sequence.checked_add(1)?..).next().map(|(sequence, _)| *sequence)
}

/// The block with payloads in place of their stubs, and of which. None where nothing changes.
fn filled_in(block: &Block, payloads: &Payloads<'_>) -> Option<(Block, Vec<u64>)> {
    let Content::Messages(body) = &block.content else { return None };
    let mut out = Vec::with_capacity(body.len());
    let (mut before, mut topic, mut filled_in) = (block.first, None, Vec::new());
    for (sequence, entry) in Messages::new(block.first, body).flatten() {
        let same_topic = topic.replace(entry.topic()) == Some(entry.topic());
        let delta = sequence - before;
        before = sequence;
        match (entry, payloads.get(&sequence)) {
            (Entry::Stub(stub), Some(message)) if message.topic == stub.topic => {
                lane::put_message(&mut out, delta, message, same_topic);
                filled_in.push(sequence);
            }
            (Entry::Stub(stub), _) => lane::put_stub(&mut out, delta, &stub, same_topic),
            (Entry::Message(message), _) => lane::put_message(&mut out, delta, &message, same_topic),
        }
    }
    let Block { position, first, last, hops, age_ms, appended_at, .. } = *block;
    let (stream, safe, content) = (Arc::clone(&block.stream), block.safe.clone(), Content::Messages(out.into()));
    let is_changed = !filled_in.is_empty();
    is_changed.then_some((Block { stream, position, first, last, hops, age_ms, appended_at, safe, content }, filled_in))
}

fn count_lost(stream: &Stream, lane: &Lane, lost: usize, why: &str, counters: &Counters) {
    if lost == 0 {
        return;
    }
    let before = counters.payloads_lost.value();
    counters.payloads_lost.add(lost as u64);
    // What comes again and again is said ever less often.
    let so_far = counters.payloads_lost.value();
    if before.checked_ilog2() != so_far.checked_ilog2() {
        let origin = stream.key().0;
        tracing::warn!(%origin, lane = lane.id.0, so_far, why, "messages are lost to this broker");
    }
}

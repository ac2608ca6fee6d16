//! The receiving side of one lane of one link: bytes in, new messages to the ring and to local subscribers.

use std::sync::Arc;
use std::time::Instant;

use super::block::Stream;
use super::lane::{Arrived, Lane};
use super::port::{Opened, PortLane};
use super::pull::Payloads;
use super::travel::Travel;
use super::{Deliver, LaneError};
use crate::codec::{self, QoS};
use crate::frame::lane::{self, Block, Cover, Covers, Entry, FRAME_OVERHEAD_BYTES_MAX, Filled, LaneFrame, Messages, put_message};
use crate::ids::{OpenMark, OpenNumber};
use crate::limits::{BLOCK_BYTES, OPEN_COVERS_BYTES_MAX, STREAMS_PER_LANE_MAX};

/// What a broker can say in one OPEN: of all the origin-lanes that it remembers, and of its own.
const COVERS_MAX: usize = STREAMS_PER_LANE_MAX + 1;

/// What a lane said to the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneEvent {
    /// An OPEN has come, whole. Comes again where the far side repeats it.
    OpenReceived(OpenMark),
    /// A CLOSE has come: nothing follows of that agreement.
    CloseReceived(OpenNumber),
}

/// Reads one lane stream of one link.
#[derive(Debug)]
pub struct LaneReceiver {
    /// The same lane's sending side: it learns from here what the far side has.
    port_lane: Arc<PortLane>,
    frame_bytes_max: usize,
    /// Of [`super::Quiesce`].
    shard: usize,
    /// The begin of a frame whose end has not come.
    partial: Vec<u8>,
    aliases: Vec<Option<Arc<Stream>>>,
    state: State,
    /// Of the agreement that is open or was last.
    travel: Option<Travel>,
    /// An OPEN of which more covers are to come.
    opening: Option<(OpenMark, Opened)>,
    /// Something is in the ring that the lane writers have not been told of.
    appended: bool,
    /// Something was delivered since the last flush.
    delivered: bool,
    /// Where the broker's log is on disk: how far what came since the last flush goes.
    covered: Vec<(Arc<Stream>, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    NeverOpened,
    Open(OpenNumber),
    Closed,
}

impl LaneReceiver {
    /// The reader of the lane stream that comes from the far side of `port_lane`.
    #[must_use]
    pub fn new(port_lane: &Arc<PortLane>) -> Self {
        let message_bytes_max = port_lane.replication().config.message_bytes_max;
        let block_bytes_max = message_bytes_max.saturating_add(BLOCK_BYTES + FRAME_OVERHEAD_BYTES_MAX);
        Self {
            port_lane: Arc::clone(port_lane),
            shard: port_lane.replication().quiesce.shard(),
            frame_bytes_max: block_bytes_max.max(OPEN_COVERS_BYTES_MAX + FRAME_OVERHEAD_BYTES_MAX),
            partial: Vec::new(),
            aliases: Vec::new(),
            state: State::NeverOpened,
            travel: None,
            opening: None,
            appended: false,
            delivered: false,
            covered: Vec::new(),
        }
    }

    /// Takes the next bytes of the stream: appends what is new to the ring, delivers it, and tells the tree what the lane says to it.
    ///
    /// # Errors
    /// What the peer may not send; the link is to be closed. Everything before it has been dealt with.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        events: &mut Vec<LaneEvent>,
    ) -> Result<(), LaneError> {
        let port_lane = Arc::clone(&self.port_lane);
        let Some(lane) = port_lane.lane() else { return Ok(()) };
        // What comes is in the sessions and in the covers, or in neither.
        let _shared = lane.reliable.then(|| port_lane.replication().quiesce.enter(self.shard));
        let _receiving = lane.log.as_ref().map(|_| lane.receiving.lock());
        let done = if self.partial.is_empty() {
            let (used, done) = self.frames(lane, bytes, now, deliver, events);
            self.partial.extend_from_slice(bytes.get(used..).unwrap_or_default());
            done
        } else {
            let mut joined = std::mem::take(&mut self.partial);
            joined.extend_from_slice(bytes);
            let (used, done) = self.frames(lane, &joined, now, deliver, events);
            joined.drain(..used);
            // What a large message needed is not kept; what a read and a block need is.
            if joined.capacity() > 8 * BLOCK_BYTES && joined.len() < BLOCK_BYTES {
                joined.shrink_to(2 * BLOCK_BYTES);
            }
            self.partial = joined;
            done
        };
        if std::mem::take(&mut self.appended) {
            lane.wake();
        }
        let is_due = std::mem::take(&mut self.delivered) || !self.covered.is_empty();
        self.covered.drain(..).for_each(|(stream, cover)| deliver.covered(stream.id(), cover));
        if is_due {
            deliver.flush();
        }
        done
    }

    /// Deals with the whole frames at the front of `input`. Says how many bytes they are.
    fn frames(
        &mut self,
        lane: &Lane,
        input: &[u8],
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        events: &mut Vec<LaneEvent>,
    ) -> (usize, Result<(), LaneError>) {
        let mut used = 0;
        loop {
            match lane::decode(input.get(used..).unwrap_or_default(), self.frame_bytes_max) {
                Ok(None) => return (used, Ok(())),
                Ok(Some((frame, length))) => {
                    if let Err(error) = self.frame(lane, &frame, now, deliver, events) {
                        return (used, Err(error));
                    }
                    used += length;
                }
                Err(error) => return (used, Err(error.into())),
            }
        }
    }

    fn frame(
        &mut self,
        lane: &Lane,
        frame: &LaneFrame<'_>,
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
        events: &mut Vec<LaneEvent>,
    ) -> Result<(), LaneError> {
        match *frame {
            LaneFrame::Origin { alias, origin, log } => {
                let stream = lane.stream((origin, log), now, self.port_lane.replication().silence())?;
                let place = usize::from(alias);
                if self.aliases.len() <= place {
                    self.aliases.resize(place + 1, None);
                }
                if let Some(held) = self.aliases.get_mut(place) {
                    *held = Some(stream);
                }
            }
            LaneFrame::Open { mark, new, covers, more } => {
                self.opening = Some((mark, Opened { number: mark.number, at: now, new, covers: Vec::new() }));
                self.covers(covers, more, now, events)?;
            }
            LaneFrame::Covers { covers, more } => self.covers(covers, more, now, events)?,
            LaneFrame::Close { number } => {
                if matches!(self.state, State::Open(open) if open.child == number.child && open <= number) {
                    self.state = State::Closed;
                }
                self.port_lane.close_received(&number);
                events.push(LaneEvent::CloseReceived(number));
            }
            LaneFrame::Sent { after_open_ms } => self.sent(lane, after_open_ms, now),
            LaneFrame::Messages(block) => {
                if let Some(stream) = self.stream(block.alias)? {
                    self.block(lane, &stream, &self.aged(block, now), now, deliver)?;
                }
            }
            LaneFrame::Gap { alias, from, to } => {
                if let Some(stream) = self.stream(alias)? {
                    self.gap(lane, &stream, from, to, now)?;
                }
            }
            LaneFrame::Pull { alias, sequences } => {
                if let Some(stream) = self.stream(alias)?.filter(|_| lane.reliable) {
                    lane.pulled(&stream, &sequences.iter().collect::<Vec<_>>(), &self.port_lane, now);
                }
            }
            LaneFrame::Payloads { alias, age_ms, first, body } => {
                if let Some(stream) = self.stream(alias)?.filter(|stream| lane.reliable && !Arc::ptr_eq(stream, &lane.own)) {
                    let payloads = payloads(first, body)?;
                    let (counters, age_ms) = (&self.port_lane.replication().counters, self.age_ms(age_ms, now));
                    self.delivered |= lane.payloads_came(&stream, payloads, age_ms, now, deliver, counters);
                    self.covered(lane, &stream, stream.cover());
                }
            }
            LaneFrame::Gone { alias, sequences } => {
                if let Some(stream) = self.stream(alias)?.filter(|stream| lane.reliable && !Arc::ptr_eq(stream, &lane.own)) {
                    let (sequences, counters) = (sequences.iter().collect::<Vec<_>>(), &self.port_lane.replication().counters);
                    self.delivered |= lane.payloads_gone(&stream, &sequences, now, deliver, counters);
                    self.covered(lane, &stream, stream.cover());
                }
            }
            LaneFrame::Fill { alias, from, to, bytes_max } => {
                if let Some(stream) = self.stream(alias)?.filter(|_| lane.reliable) {
                    self.port_lane.fill_asked(stream.key(), (from, to), bytes_max);
                }
            }
            LaneFrame::Filled(filled) => {
                if let Some(stream) = self.stream(filled.block.alias)?.filter(|_| lane.reliable) {
                    let Filled { to, block: Block { prev, first, body, .. }, .. } = filled;
                    if !body.is_empty() {
                        let last = survey(first, body, true)?.last;
                        if first <= prev || last > to {
                            return Err(LaneError::OutsideRange { first, last, from: prev, to });
                        }
                    }
                    let filled = Filled { block: self.aged(filled.block, now), ..filled };
                    lane.filled(&stream, &filled, self.port_lane.number(), now);
                }
            }
            LaneFrame::Unknown => {}
        }
        Ok(())
    }

    /// A page of covers; the last one completes the OPEN.
    fn covers(&mut self, covers: Covers<'_>, more: bool, now: Instant, events: &mut Vec<LaneEvent>) -> Result<(), LaneError> {
        let (mark, mut opened) = self.opening.take().ok_or(LaneError::StrayCovers)?;
        opened.covers.extend(covers.iter().filter(|cover: &Cover| cover.cover > 0));
        if opened.covers.len() > COVERS_MAX {
            return Err(LaneError::TooManyCovers(COVERS_MAX));
        }
        if more {
            self.opening = Some((mark, opened));
            return Ok(());
        }
        // What it repeats until it is answered changes nothing.
        if self.state != State::Open(mark.number) {
            (self.state, self.travel) = (State::Open(mark.number), Some(Travel::new(self.is_reliable(), now)));
        }
        self.port_lane.open_received(&mark, opened, now)?;
        events.push(LaneEvent::OpenReceived(mark));
        Ok(())
    }

    fn is_reliable(&self) -> bool {
        self.port_lane.lane().is_some_and(|lane| lane.reliable)
    }

    /// What follows was written then.
    fn sent(&mut self, lane: &Lane, after_open_ms: u64, now: Instant) {
        let (State::Open(number), Some(travel)) = (self.state, &mut self.travel) else { return };
        if travel.is_unknown()
            && !lane.reliable
            && let Some(at) = self.port_lane.opened_at(&number)
        {
            travel.opened(at);
        }
        travel.told(after_open_ms, now);
    }

    /// With the time that it was on its way.
    fn age_ms(&self, age_ms: u64, now: Instant) -> u64 {
        age_ms.saturating_add(self.travel.as_ref().map_or(0, |travel| travel.waited_ms(now)))
    }

    fn aged<'a>(&self, block: Block<'a>, now: Instant) -> Block<'a> {
        Block { age_ms: self.age_ms(block.age_ms, now), ..block }
    }

    /// Whose data this is; `None` where it is to be dropped.
    fn stream(&self, alias: u16) -> Result<Option<Arc<Stream>>, LaneError> {
        match self.state {
            State::NeverOpened => Err(LaneError::NeverOpened),
            State::Closed => {
                self.port_lane.replication().counters.blocks_closed.add(1);
                Ok(None)
            }
            State::Open(_) => {
                let held = self.aliases.get(usize::from(alias)).cloned().flatten();
                held.map(Some).ok_or(LaneError::UnknownAlias(alias))
            }
        }
    }

    fn block(
        &mut self,
        lane: &Lane,
        stream: &Arc<Stream>,
        block: &Block<'_>,
        now: Instant,
        deliver: &mut (impl Deliver + ?Sized),
    ) -> Result<(), LaneError> {
        let port_lane = Arc::clone(&self.port_lane);
        let counters = &port_lane.replication().counters;
        // All of it is looked at before any of it is taken.
        let Surveyed { last, count, has_stubs } = survey(block.first, block.body, lane.reliable)?;
        // Before the block is in the ring, where this port's cursor would come upon it.
        self.port_lane.raise(stream.key(), last);
        if Arc::ptr_eq(stream, &lane.own) {
            counters.messages_duplicate.add(count);
            return Ok(());
        }
        let mut heard = stream.turn.lock();
        let cover = stream.cover();
        if last <= cover {
            counters.messages_duplicate.add(count);
            return Ok(());
        }
        if lane.reliable && block.prev > cover {
            return Err(LaneError::Hole { origin: stream.key().0, prev: block.prev, cover });
        }
        *heard = now;
        if stream.is_outlived() || lane.is_former(stream) {
            // Behind a cut they were left over; what their broker said after its restart may have come on another way already.
            lane.skip_to(stream, last, now);
            counters.messages_outlived.add(count);
            return Ok(());
        }
        let Block { first, hops, age_ms, body, .. } = *block;
        // Of QoS 0 a port may have been sent only some of a block's messages: the others come again with those if the block comes another way.
        let rest = (first <= cover && !lane.reliable).then(|| above(cover, first, body));
        let (first, body) = rest.as_ref().map_or((first, body), |(first, rest)| (*first, rest));
        let appended = lane.append(&Arrived { stream, first, last, hops, age_ms, body, from: self.port_lane.number() }, now);
        let (mut new, mut missing) = (0, Vec::new());
        let is_from_before = !stream.is_delivered() && lane.is_from_before(age_ms, now);
        if !is_from_before {
            stream.set_delivered();
        }
        let owed_from = cover.max(stream.dealt_with());
        if has_stubs && !is_from_before {
            let new_entries = Messages::new(first, body).flatten().filter(|(sequence, _)| *sequence > owed_from);
            let wanted =
                new_entries.filter(|(_, entry)| matches!(entry, Entry::Stub(stub) if deliver.wants(stub.topic, stub.picks)));
            missing.extend(wanted.map(|(sequence, _)| sequence));
        }
        let is_held = !is_from_before && (!missing.is_empty() || stream.is_holding());
        for (sequence, entry) in Messages::new(first, body).flatten() {
            if sequence <= cover {
                continue;
            }
            new += 1;
            if let Entry::Message(message) = entry
                && !is_held
                && !is_from_before
                && sequence > owed_from
            {
                self.delivered |= lane.hand_over(stream, (sequence, message), age_ms, now, deliver, counters);
            }
        }
        if is_held {
            self.delivered |= lane.hold(stream, (appended, owed_from), &missing, now, deliver, counters);
        }
        self.covered(lane, stream, last);
        drop(heard);
        lane.pull(stream, &missing, None);
        counters.messages_received.add(new);
        counters.messages_duplicate.add(count - new);
        self.appended = true;
        Ok(())
    }

    /// Whatever is to be delivered of `stream` up to `cover` has been.
    fn covered(&mut self, lane: &Lane, stream: &Arc<Stream>, cover: u64) {
        if lane.log.is_none() {
            return;
        }
        let cover = stream.delivered_of(cover);
        match self.covered.last_mut().filter(|(last, _)| Arc::ptr_eq(last, stream)) {
            Some((_, known)) => *known = cover,
            None => self.covered.push((Arc::clone(stream), cover)),
        }
    }

    fn gap(&mut self, lane: &Lane, stream: &Arc<Stream>, from: u64, to: u64, now: Instant) -> Result<(), LaneError> {
        let port_lane = Arc::clone(&self.port_lane);
        let counters = &port_lane.replication().counters;
        port_lane.raise(stream.key(), to);
        if Arc::ptr_eq(stream, &lane.own) {
            return Ok(());
        }
        let mut heard = stream.turn.lock();
        let cover = stream.cover();
        if to <= cover {
            return Ok(());
        }
        if lane.reliable && from > cover {
            return Err(LaneError::Hole { origin: stream.key().0, prev: from, cover });
        }
        *heard = now;
        lane.skip_to(stream, to, now);
        self.covered(lane, stream, to);
        drop(heard);
        self.appended = true;
        // A broker that is new to the mesh is owed nothing from before.
        if lane.is_owed_nothing(stream, to, now) {
            counters.covers_adopted.add(1);
            return Ok(());
        }
        counters.gaps_received.add(1);
        // What overload brings again and again is said ever less often.
        let so_far = counters.gaps_received.value();
        if so_far.is_power_of_two() {
            let origin = stream.key().0;
            tracing::warn!(%origin, lane = lane.id.0, from = cover, to, so_far, "messages are lost to this broker");
        }
        Ok(())
    }
}

/// What is found in a block that is well-formed.
struct Surveyed {
    /// The last id.
    last: u64,
    /// Messages.
    count: u64,
    /// Some of them are stubs.
    has_stubs: bool,
}

fn survey(first: u64, body: &[u8], reliable: bool) -> Result<Surveyed, LaneError> {
    let (mut found, mut has_stubs) = (Err(LaneError::EmptyBlock), false);
    for message in Messages::new(first, body) {
        let (sequence, entry) = message?;
        has_stubs |= matches!(entry, Entry::Stub(_));
        if (entry.qos() != QoS::AtMostOnce) != reliable {
            return Err(LaneError::WrongClass(entry.qos()));
        }
        if let Entry::Message(message) = entry
            && !message.properties.is_empty()
        {
            codec::check_forwardable(message.properties)?;
        }
        found = Ok((sequence, found.map_or(1, |(_, count)| count + 1)));
    }
    found.map(|(last, count)| Surveyed { last, count, has_stubs })
}

/// What of a block's messages, the last of which is above `cover`, is so, and the first sequence of that.
fn above(cover: u64, first: u64, body: &[u8]) -> (u64, Vec<u8>) {
    let (mut out, mut begin, mut before, mut topic) = (Vec::new(), None, first, None);
    for (sequence, entry) in Messages::new(first, body).flatten().filter(|(sequence, _)| *sequence > cover) {
        let Entry::Message(message) = entry else { continue };
        let delta = begin.map_or(0, |_: u64| sequence - before);
        put_message(&mut out, delta, &message, topic.replace(message.topic) == Some(message.topic));
        begin = begin.or(Some(sequence));
        before = sequence;
    }
    (begin.unwrap_or(first), out)
}

/// What answers our questions, if all of it is well-formed.
fn payloads(first: u64, body: &[u8]) -> Result<Payloads<'_>, LaneError> {
    if survey(first, body, true)?.has_stubs {
        return Err(LaneError::StubAsPayload);
    }
    let messages = Messages::new(first, body).flatten();
    Ok(messages
        .filter_map(|(sequence, entry)| if let Entry::Message(message) = entry { Some((sequence, message)) } else { None })
        .collect())
}

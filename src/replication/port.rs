//! A tree port's sending side: what its lane writers write, and when.
//!
//! Each lane of a port has a [cursor](super::lane::Cursor) in the lane's ring and, for each origin-lane, the highest id that the far
//! side is known to have: from its OPEN, from what it sent to us, from what we sent to it. A block at or below that is skipped.
//!
//! Data is sent only while both sides have opened with the same number. The two OPENs say where it starts, and both sides read the
//! same from them: at the cover that the far side named; for an origin-lane that it did not name at the beginning. Only of QoS 0, where
//! the far side is new to the mesh and we are not, at the cover that we named, which it takes over.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};

use super::answer::{Answer, Answers, Frame};
use super::block::{Block, Content, StreamKey, millis};
use super::fill::{Ask, Fills, Next, Place, Purpose, Step};
use super::lane::{Cursor, Lane};
use super::own::Deferred;
use super::ring::{Entry, Read};
use super::sync::{Mutex, MutexGuard};
use super::travel::SENT_EVERY;
use super::want::Selection;
use super::{Counters, LaneError, Replication};
use crate::frame::lane::{self, Cover, Filled};
use crate::ids::{BrokerId, LaneId, OpenMark, OpenNumber, PortId};
use crate::interest::{Behind, Draw, Interest};
use crate::limits::{FILLS_MAX, LANE_ALIASES_MAX, PULLED_PER_FRAME_MAX, QUESTIONS_MAX, SHARE_BLOCK_BYTES};

/// A lane writer that finds only blocks that the far side has yields after this many.
const SKIPPED_BLOCKS_MAX: usize = 4_096;

/// One life of a link, as the replication sees it: a sender for every lane. All are closed at first.
#[derive(Debug)]
pub struct Port {
    id: PortId,
    behind: Arc<Behind>,
    lanes: Box<[Arc<PortLane>]>,
}

impl Port {
    pub(super) fn new(id: PortId, replication: &Arc<Replication>) -> Self {
        let behind = Arc::<Behind>::default();
        let lane = |lane: &Lane| {
            let cursor = Arc::new(Cursor::default());
            lane.attach(&cursor);
            let (replication, number, behind) = (Arc::clone(replication), lane.transit.number(), Arc::clone(&behind));
            let port_lane = Arc::new(PortLane { replication, id: lane.id, number, cursor, behind, sender: Mutex::default() });
            lane.pulls.attach(&port_lane);
            port_lane
        };
        let lanes = replication.lanes.iter().map(lane).collect();
        Self { id, behind, lanes }
    }

    /// Which.
    #[must_use]
    pub fn id(&self) -> PortId {
        self.id
    }

    /// The lanes, each at its [`LaneId`]'s place.
    #[must_use]
    pub fn lanes(&self) -> &[Arc<PortLane>] {
        &self.lanes
    }

    /// Who is behind the port, as the far side said: from now on it gets of the messages that these want, and stubs of the others. `None`: nobody
    /// knows, and it gets everything, as at first.
    pub fn set_behind(&self, members: Option<Vec<BrokerId>>) {
        self.behind.set(members);
    }

    /// Whether and why a message of `topic` would go over the port.
    #[must_use]
    pub fn draw(&self, interest: &Interest, topic: &str) -> Draw {
        self.behind.draw(interest, topic)
    }

    /// As a child: writes an OPEN into every lane. With the number that is open already, the marker is only repeated.
    pub fn open(&self, mark: &OpenMark, now: Instant) {
        self.lanes.iter().for_each(|lane| lane.open(mark, now));
    }

    /// As a parent: writes the answer into every lane, where the child's OPEN of that number has not come yet as soon as it has.
    pub fn answer(&self, mark: &OpenMark, now: Instant) {
        self.lanes.iter().for_each(|lane| lane.answer(mark, now));
    }

    /// Writes a CLOSE into every lane, open or not, and no data after it. Each lane's [`LaneBatch::closed`] confirms it.
    pub fn close(&self, number: &OpenNumber) {
        self.lanes.iter().for_each(|lane| lane.close(number));
    }
}

/// The link is gone: its cursors hold up nobody any more.
impl Drop for Port {
    fn drop(&mut self) {
        for port_lane in &self.lanes {
            if let Some(lane) = port_lane.lane() {
                lane.detach(&port_lane.cursor);
                lane.pulls.detach(port_lane);
                lane.transit.leave(port_lane.number);
            }
            port_lane.stop();
            port_lane.progress();
        }
    }
}

/// What a lane writer writes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneBatch {
    /// How many bytes were added to `out`.
    pub bytes: usize,
    /// The batch ends with this CLOSE: once it is written, the lane has nothing more to say of that agreement.
    pub closed: Option<OpenNumber>,
}

/// The sending side of one lane of one port.
#[derive(Debug)]
pub struct PortLane {
    replication: Arc<Replication>,
    id: LaneId,
    /// Under which the lane's reader waits for other ports.
    number: u64,
    cursor: Arc<Cursor>,
    behind: Arc<Behind>,
    sender: Mutex<Sender>,
}

#[derive(Debug, Default)]
struct Sender {
    /// The OPEN that we wrote, as long as no CLOSE voids it.
    mine: Option<Opened>,
    /// The far side's, likewise.
    theirs: Option<Opened>,
    /// An answer that waits for the child's OPEN.
    answer_due: Option<OpenMark>,
    /// Both are there with one number: the cursor runs.
    started: bool,
    /// Until then no SENT is due.
    sent_until: Option<Instant>,
    far: HashMap<StreamKey, Far, ahash::RandomState>,
    /// Blocks of our own that must be safe on disk first.
    deferred: Deferred,
    /// Whom each alias means. At [`LANE_ALIASES_MAX`] the first is given away again.
    aliases: Vec<StreamKey>,
    alias_next: u16,
    /// What of a block the far side is sent.
    selection: Selection,
    /// What the far side is to be asked for. Not encoded before there is room for it: a CLOSE must not wait behind it.
    questions: BTreeSet<(StreamKey, u64)>,
    /// What the far side has asked for.
    answers: Answers,
    /// Ranges that the far side is to be given and the ring may not have.
    fills: Fills,
    /// The ring came before those the last time.
    ring_is_first: bool,
    /// Ranges that the far side is to be asked for, likewise.
    fill_questions: Vec<Ask>,
    outgoing: Outgoing,
}

/// What one side's OPEN says.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) number: OpenNumber,
    /// When it was written, or came.
    pub(super) at: Instant,
    pub(super) new: bool,
    pub(super) covers: Vec<Cover>,
}

impl Opened {
    /// CLOSE(n) voids every number of that child up to n.
    fn is_voided_by(&self, number: &OpenNumber) -> bool {
        voids(number, &self.number)
    }
}

fn voids(closed: &OpenNumber, number: &OpenNumber) -> bool {
    closed.child == number.child && closed >= number
}

/// What is known of the far side for one origin-lane.
#[derive(Debug, Default)]
struct Far {
    /// It has every id up to here.
    known: u64,
    /// What the stream calls the origin-lane.
    alias: Option<u16>,
}

/// Encoded and not yet handed out.
#[derive(Debug, Default)]
struct Outgoing {
    /// In order. Never empty pieces.
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// Heads, markers and small blocks, not yet made into a piece.
    tail: Vec<u8>,
}

#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    /// The CLOSE of this number ends here.
    Closed(OpenNumber),
}

impl PortLane {
    /// What to write next: appends at most `budget_bytes` to `out`, markers and data in their order. Pending when there is nothing;
    /// the task is woken when that changes. To be polled by one task, which writes everything before it polls again.
    pub fn poll(&self, context: &mut Context<'_>, now: Instant, budget_bytes: usize, out: &mut Vec<Bytes>) -> Poll<LaneBatch> {
        let Some(lane) = self.lane() else { return Poll::Pending };
        let budget_bytes = budget_bytes.max(1);
        let mut batch = LaneBatch::default();
        let mut sender = self.sender.lock();
        loop {
            batch.closed = sender.outgoing.hand_out(budget_bytes, &mut batch.bytes, out);
            if batch.closed.is_some() || batch.bytes == budget_bytes {
                break;
            }
            let filled = sender.fill(self, lane, now, budget_bytes - batch.bytes);
            if !sender.outgoing.is_empty() {
                continue;
            }
            if batch.bytes > 0 {
                break;
            }
            if filled == Encoded::MoreLater {
                context.waker().wake_by_ref();
            } else {
                self.cursor.sleeper.arm(context.waker());
                let is_safe_now = lane.log.as_ref().is_some_and(|log| sender.deferred.poll(log, context).is_ready());
                if sender.started && (is_safe_now || !matches!(lane.ring.read(self.cursor.position()), Read::NotYet)) {
                    self.cursor.sleeper.disarm();
                    continue;
                }
            }
            let asks = std::mem::take(&mut sender.fills.asks);
            drop(sender);
            lane.ask_on(asks);
            self.progress();
            return Poll::Pending;
        }
        let asks = std::mem::take(&mut sender.fills.asks);
        drop(sender);
        lane.ask_on(asks);
        self.replication.counters.bytes_sent.add(batch.bytes as u64);
        self.progress();
        Poll::Ready(batch)
    }

    /// The next CLOSE with what must go before it, if that comes to at most `bytes_max`: for a writer that has no credit. There is little
    /// before it as a rule, the rest of one block, because no more is encoded ahead than was asked for.
    pub fn take_close(&self, bytes_max: usize, out: &mut Vec<Bytes>) -> Option<LaneBatch> {
        let mut sender = self.sender.lock();
        if sender.outgoing.bytes_to_close()? > bytes_max {
            return None;
        }
        let mut batch = LaneBatch::default();
        batch.closed = sender.outgoing.hand_out(bytes_max, &mut batch.bytes, out);
        drop(sender);
        self.replication.counters.bytes_sent.add(batch.bytes as u64);
        Some(batch)
    }

    /// For the lane's reader: ready unless what comes from here comes so fast that the ring is about to overtake another port. Then it
    /// had better not say yet that it has consumed what it read: so the lag goes from broker to broker to where the publisher is. As
    /// only other ports count, no two readers of a tree wait for each other. QoS 0 is dropped instead.
    pub fn poll_others(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(lane) = self.lane().filter(|lane| lane.reliable && lane.others_lag(&self.cursor)) else { return Poll::Ready(()) };
        if !self.replication.config.slows_publishers {
            return Poll::Ready(());
        }
        lane.transit.wait(self.number, context.waker());
        if lane.others_lag(&self.cursor) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// A cursor went on or went away.
    fn progress(&self) {
        self.replication.progress();
        if let Some(lane) = self.lane() {
            // Each waits for others than the next: let them look.
            lane.transit.progress(|| false);
        }
    }

    fn open(&self, mark: &OpenMark, now: Instant) {
        let Some(lane) = self.lane() else { return };
        let mut sender = self.sender.lock();
        let Sender { mine, outgoing, .. } = &mut *sender;
        if let Some(mine) = mine.as_ref().filter(|mine| mine.number == mark.number) {
            // With the covers of the first time: the parent may already have acted upon them.
            lane::put_open(&mut outgoing.tail, mark, mine.new, &mine.covers);
        } else {
            self.write_open(&mut sender, lane, mark, now);
        }
        self.has_opened(sender, lane);
    }

    fn answer(&self, mark: &OpenMark, now: Instant) {
        let Some(lane) = self.lane() else { return };
        let mut sender = self.sender.lock();
        if sender.mine.as_ref().is_some_and(|mine| mine.number == mark.number) {
            return;
        }
        if sender.theirs.as_ref().is_some_and(|theirs| theirs.number == mark.number) {
            self.write_open(&mut sender, lane, mark, now);
        } else {
            sender.answer_due = Some(*mark);
        }
        self.has_opened(sender, lane);
    }

    /// If the cursor runs, the far side is asked for what is waited for here.
    fn has_opened(&self, sender: MutexGuard<'_, Sender>, lane: &Lane) {
        let started = sender.started;
        drop(sender);
        self.cursor.sleeper.wake();
        if started {
            lane.pull_at(self);
        }
    }

    fn close(&self, number: &OpenNumber) {
        let mut sender = self.sender.lock();
        sender.mine.take_if(|mine| mine.is_voided_by(number));
        sender.answer_due.take_if(|due| voids(number, &due.number));
        if sender.mine.is_none() {
            self.stop_locked(&mut sender);
        }
        lane::put_close(&mut sender.outgoing.tail, number);
        sender.outgoing.end_piece();
        sender.outgoing.pieces.push_back(Piece::Closed(*number));
        drop(sender);
        self.cursor.sleeper.wake();
        self.progress();
    }

    /// The far side's OPEN has come, whole.
    pub(super) fn open_received(&self, mark: &OpenMark, theirs: Opened, now: Instant) -> Result<(), LaneError> {
        let Some(lane) = self.lane() else { return Ok(()) };
        let mut sender = self.sender.lock();
        if sender.theirs.as_ref().is_some_and(|known| known.number == mark.number) {
            return Ok(()); // repeated until answered
        }
        lane.look_for_own_past(&theirs.covers, &self.replication.counters);
        if !theirs.new {
            self.adopt(&sender, lane, &theirs, now)?;
        }
        self.stop_locked(&mut sender);
        sender.theirs = Some(theirs);
        if let Some(due) = sender.answer_due.take_if(|due| due.number == mark.number) {
            self.write_open(&mut sender, lane, &due, now);
        } else {
            self.start_if_agreed(&mut sender, lane, now);
        }
        self.has_opened(sender, lane);
        self.progress();
        Ok(())
    }

    /// The far side will send nothing more of `number` and expects nothing.
    pub(super) fn close_received(&self, number: &OpenNumber) {
        let mut sender = self.sender.lock();
        if sender.theirs.take_if(|theirs| theirs.is_voided_by(number)).is_some() {
            self.stop_locked(&mut sender);
        }
        drop(sender);
        self.progress();
    }

    /// The far side has every id of `key` up to `known`: it sent them.
    pub(super) fn raise(&self, key: StreamKey, known: u64) {
        let mut sender = self.sender.lock();
        if sender.started {
            let far = sender.far.entry(key).or_default();
            far.known = far.known.max(known);
            if !sender.fills.is_empty() {
                sender.fills.has(key, known);
            }
        }
    }

    /// When our OPEN of this number was written, as long as it is the newest.
    pub(super) fn opened_at(&self, number: &OpenNumber) -> Option<Instant> {
        self.sender.lock().mine.as_ref().filter(|mine| mine.number == *number).map(|mine| mine.at)
    }

    /// Names it among the ports of its lane.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Asks the far side for these, which ascend, when there is room for the question on the way. False if nothing can be said to it at present.
    pub(super) fn ask(&self, key: StreamKey, sequences: &[u64]) -> bool {
        let mut sender = self.sender.lock();
        if !sender.started {
            return false;
        }
        let room = QUESTIONS_MAX.saturating_sub(sender.questions.len());
        sender.questions.extend(sequences.iter().take(room).map(|sequence| (key, *sequence)));
        drop(sender);
        self.cursor.sleeper.wake();
        true
    }

    /// The far side gets these out of the ring.
    pub(super) fn answer_from_ring(&self, key: StreamKey, sequences: &[u64]) {
        self.answer_each(key, sequences.iter().map(|sequence| (*sequence, Answer::InRing)));
    }

    /// The far side is told that the origin no longer has these.
    pub(super) fn answer_gone(&self, key: StreamKey, sequences: &[u64]) {
        self.answer_each(key, sequences.iter().map(|sequence| (*sequence, Answer::Gone)));
    }

    /// The far side gets this one, the only one of `body`.
    pub(super) fn answer_with(&self, key: StreamKey, sequence: u64, (age_ms, at): (u64, Instant), body: Bytes) {
        self.answer_each(key, [(sequence, Answer::Here { body, age_ms, at })]);
    }

    fn answer_each(&self, key: StreamKey, answers: impl IntoIterator<Item = (u64, Answer)>) {
        let mut sender = self.sender.lock();
        // Whoever is told nothing now asks again when this opens.
        if !sender.started {
            return;
        }
        answers.into_iter().for_each(|(sequence, answer)| sender.answers.add(key, sequence, answer));
        drop(sender);
        self.cursor.sleeper.wake();
    }

    /// Whether something can be said to the far side at present.
    pub(super) fn is_open(&self) -> bool {
        self.cursor.is_live()
    }

    /// Asks the far side for a range that the far side of another port lacks.
    pub(super) fn ask_fill(&self, ask: Ask) {
        let mut sender = self.sender.lock();
        if sender.started && sender.fill_questions.len() < FILLS_MAX {
            sender.fill_questions.push(ask);
            drop(sender);
            self.cursor.sleeper.wake();
        }
    }

    /// The far side asks for a range.
    pub(super) fn fill_asked(&self, key: StreamKey, range: (u64, u64), bytes_max: u64) {
        let mut sender = self.sender.lock();
        if sender.started {
            sender.fills.ask(key, range, bytes_max);
            drop(sender);
            self.cursor.sleeper.wake();
        }
    }

    /// The port of that number has brought a part of a range that this one's far side may lack.
    pub(super) fn take_filled(&self, port: u64, key: StreamKey, filled: &Filled<'_>, now: Instant) {
        if self.sender.lock().fills.take(port, key, filled, now, &self.replication.counters) {
            self.cursor.sleeper.wake();
        }
    }

    /// Asks again for what was asked for in vain, and gives up what was for longer than `patience`. To be called now and then.
    pub(super) fn look_after_fills(&self, patience: Duration) {
        let mut sender = self.sender.lock();
        sender.fills.set_patience(patience);
        if !sender.fills.is_empty() {
            drop(sender);
            self.cursor.sleeper.wake();
        }
    }

    fn place(&self) -> Place<'_> {
        let (reached, age_ms_max) = (self.cursor.position(), self.replication.ring_age_ms());
        Place { port: self.number, reached, age_ms_max, interest: &self.replication.interest }
    }

    pub(super) fn replication(&self) -> &Arc<Replication> {
        &self.replication
    }

    pub(super) fn lane(&self) -> Option<&Lane> {
        self.replication.lane(self.id)
    }

    fn stop(&self) {
        self.stop_locked(&mut self.sender.lock());
    }

    fn stop_locked(&self, sender: &mut Sender) {
        sender.started = false;
        sender.deferred.clear();
        // Both are asked again when this opens.
        sender.questions.clear();
        sender.answers.clear();
        sender.fills.clear();
        sender.fill_questions.clear();
        self.cursor.set_live(false);
    }

    /// What the far side's OPEN does to a broker that is new to the mesh.
    fn adopt(&self, sender: &Sender, lane: &Lane, theirs: &Opened, now: Instant) -> Result<(), LaneError> {
        let age = (now, self.replication.silence());
        let counters = &self.replication.counters;
        let covers = theirs.covers.iter().copied();
        match &sender.mine {
            // Our question said that we are new and what we know all the same. The parent starts at its own cover for all others,
            // whatever we have learnt since.
            Some(mine) if mine.number == theirs.number => {
                if !mine.new {
                    return Ok(());
                }
                let named: std::collections::HashSet<StreamKey, ahash::RandomState> =
                    mine.covers.iter().map(|cover| (cover.origin, cover.log)).collect();
                lane.adopt(covers, |key| named.contains(key), age, counters)
            }
            // Our answer will say what we have taken over.
            _ if lane.is_new(now) => lane.adopt(covers, |key| lane.knows(key), age, counters),
            _ => Ok(()),
        }
    }

    fn write_open(&self, sender: &mut Sender, lane: &Lane, mark: &OpenMark, now: Instant) {
        let mine = Opened { number: mark.number, at: now, new: lane.is_new(now), covers: lane.covers() };
        lane::put_open(&mut sender.outgoing.tail, mark, mine.new, &mine.covers);
        self.stop_locked(sender);
        sender.mine = Some(mine);
        self.start_if_agreed(sender, lane, now);
    }

    fn start_if_agreed(&self, sender: &mut Sender, lane: &Lane, now: Instant) {
        let Sender { mine: Some(mine), theirs: Some(theirs), far, .. } = sender else { return };
        if mine.number != theirs.number {
            return;
        }
        // An alias stays as long as the stream; what was known belonged to the last agreement.
        far.retain(|_, far| far.alias.is_some());
        far.values_mut().for_each(|far| far.known = 0);
        let mine_is_new = mine.new;
        let taken_over = if theirs.new && !mine.new && !lane.reliable { &mine.covers[..] } else { &[] };
        for cover in taken_over.iter().chain(&theirs.covers) {
            far.entry((cover.origin, cover.log)).or_default().known = cover.cover;
        }
        self.cursor.rewind(&lane.ring);
        self.cursor.set_live(true);
        (sender.started, sender.sent_until) = (true, None);
        // Those who are new have everything of each other.
        let is_owed = mine_is_new || sender.theirs.as_ref().is_some_and(|theirs| !theirs.new);
        sender.tell_floors(self, lane, is_owed, now);
    }
}

/// What of an origin-lane the far side gets next: messages, or the word that they are lost.
struct Part<'a> {
    last: u64,
    first: u64,
    hops: u8,
    age_ms: u64,
    body: Option<&'a Bytes>,
}

impl<'a> Part<'a> {
    /// Its messages, if they may go over one more link.
    fn may_go(&self, port: &PortLane) -> Option<&'a Bytes> {
        let (body, counters) = (self.body?, &port.replication.counters);
        if self.age_ms > port.replication.ring_age_ms() {
            counters.blocks_aged.add(1);
        } else if self.hops >= port.replication.config.hop_max {
            counters.blocks_hop_limited.add(1);
        } else {
            return Some(body);
        }
        None
    }
}

/// What became of the attempt to encode more.
#[derive(Debug, PartialEq, Eq)]
enum Encoded {
    /// There is nothing more to encode, or enough is.
    Enough,
    /// Nothing to send so far, and not yet at the end.
    MoreLater,
}

impl Sender {
    /// Encodes what the cursor comes upon until `goal_bytes` wait.
    fn fill(&mut self, port: &PortLane, lane: &Lane, now: Instant, goal_bytes: usize) -> Encoded {
        if !self.started {
            return Encoded::Enough;
        }
        while self.outgoing.len() < goal_bytes && !self.questions.is_empty() {
            self.put_question(&port.replication.counters);
        }
        while self.outgoing.len() < goal_bytes && !self.answers.is_empty() {
            self.put_answer(lane, now);
        }
        while self.outgoing.len() < goal_bytes
            && let Some(ask) = self.fill_questions.pop()
        {
            let alias = self.alias(ask.key);
            lane::put_fill(&mut self.outgoing.tail, alias, (ask.from, ask.to), ask.bytes_max);
        }
        // In turn: neither waits until all of the other is through. What is our own and not in the ring comes before the cursor goes on.
        self.ring_is_first = !self.ring_is_first && !self.fills.is_empty() && !self.fills.holds(lane.own.key());
        if self.ring_is_first {
            let encoded = self.follow(port, lane, now, goal_bytes);
            self.fill_in(port, lane, now, goal_bytes);
            encoded
        } else {
            self.fill_in(port, lane, now, goal_bytes);
            self.follow(port, lane, now, goal_bytes)
        }
    }

    /// What the far side lacks and asks for.
    fn fill_in(&mut self, port: &PortLane, lane: &Lane, now: Instant, goal_bytes: usize) {
        while self.outgoing.len() < goal_bytes
            && !self.fills.is_empty()
            && let Some(next) = self.fills.next(lane, port.place(), now)
        {
            self.put_fill(port, lane, &next, now);
        }
    }

    /// What the ring has.
    fn follow(&mut self, port: &PortLane, lane: &Lane, now: Instant, goal_bytes: usize) -> Encoded {
        let mut skipped = 0;
        while self.outgoing.len() < goal_bytes {
            if let Some(block) = lane.log.as_ref().and_then(|log| self.deferred.next(log)) {
                self.encode(port, lane, &block, now);
                continue;
            }
            match lane.ring.read(port.cursor.position()) {
                Read::Block(block) => {
                    let before = self.outgoing.len();
                    let waits = self.fills.holds(block.stream.key())
                        || lane.log.as_ref().is_some_and(|log| self.deferred.keeps(log, &lane.own, &block));
                    if !waits {
                        self.encode(port, lane, &block, now);
                    }
                    port.cursor.pass(block.bytes());
                    skipped += usize::from(before == self.outgoing.len());
                    if skipped > SKIPPED_BLOCKS_MAX {
                        return Encoded::MoreLater;
                    }
                }
                Read::NotYet => {
                    port.cursor.caught_up(&lane.ring);
                    break;
                }
                Read::Lapped => {
                    port.cursor.rewind(&lane.ring);
                    if !lane.reliable {
                        port.replication.counters.laps.add(1);
                    }
                    // Whoever was new when it opened is owed what came since.
                    self.tell_floors(port, lane, true, now);
                    // That is looked after at once. What is our own and not in the ring comes before the cursor goes on: what is not safe on the disk is kept
                    // back there.
                    if !self.fills.is_empty() {
                        return Encoded::MoreLater;
                    }
                }
            }
        }
        Encoded::Enough
    }

    fn encode(&mut self, port: &PortLane, lane: &Lane, block: &Block, now: Instant) {
        let Block { last, first, hops, .. } = *block;
        let body = if let Content::Messages(body) = &block.content { Some(body) } else { None };
        let part = Part { last, first, hops, age_ms: block.age_ms(now), body };
        self.put_part(port, lane, block.stream.key(), &part, now);
    }

    fn put_part(&mut self, port: &PortLane, lane: &Lane, key: StreamKey, part: &Part<'_>, now: Instant) {
        let far = self.far.entry(key).or_default();
        if part.last <= far.known {
            return;
        }
        let known = std::mem::replace(&mut far.known, part.last);
        let counters = &port.replication.counters;
        let Some(body) = part.may_go(port) else { return self.put_gap(port, lane, key, known, part.last) };
        let alias = self.alias(key);
        let some = self.selection.of(&port.replication.interest, &port.behind, (part.first, body), counters);
        let (first, body) = some.as_ref().map_or((part.first, body), |(first, some)| (*first, some));
        // All of it was left out.
        if body.is_empty() {
            return;
        }
        let head = lane::Block { alias, prev: known, hops: part.hops + 1, age_ms: part.age_ms, first, body };
        self.put_sent(now);
        lane::put_messages_head(&mut self.outgoing.tail, &head);
        self.outgoing.push_body(body);
        counters.blocks_sent.add(1);
    }

    /// A part of a range that the far side lacks or asks for.
    fn put_fill(&mut self, port: &PortLane, lane: &Lane, next: &Next, now: Instant) {
        let part = match &next.step {
            Step::Block(block) => {
                let body = if let Content::Messages(body) = &block.content { Some(body) } else { None };
                Part { last: block.last, first: block.first, hops: block.hops, age_ms: block.age_ms(now), body }
            }
            Step::Came(came) => {
                let here = millis(now.saturating_duration_since(came.at));
                let (age_ms, body) = (came.age_ms.saturating_add(here), Some(&came.body).filter(|body| !body.is_empty()));
                Part { last: came.to, first: came.first, hops: came.hops, age_ms, body }
            }
            Step::Lost(to) => Part { last: *to, first: *to, hops: 0, age_ms: 0, body: None },
            Step::Over(to) => {
                if next.purpose == Purpose::Lacked {
                    let far = self.far.entry(next.key).or_default();
                    far.known = far.known.max(*to);
                }
                return;
            }
        };
        if next.purpose == Purpose::Lacked {
            let is_fetched = matches!(next.step, Step::Came(_)) && part.body.is_some();
            port.replication.counters.blocks_filled.add(u64::from(is_fetched));
            return self.put_part(port, lane, next.key, &part, now);
        }
        let counters = &port.replication.counters;
        let alias = self.alias(next.key);
        let none = Bytes::new();
        let whole = part.may_go(port).unwrap_or(&none);
        let some = self.selection.of(&port.replication.interest, &port.behind, (part.first, whole), counters);
        let (first, body) = some.as_ref().map_or((part.first, whole), |(first, some)| (*first, some));
        // Who asks from the middle of a block on gets the whole of it.
        let prev = if body.is_empty() { next.from } else { next.from.min(first.saturating_sub(1)) };
        let block = lane::Block { alias, prev, hops: part.hops.saturating_add(1), age_ms: part.age_ms, first, body };
        self.put_sent(now);
        lane::put_filled_head(&mut self.outgoing.tail, &lane::Filled { to: part.last, is_last: next.is_last, block });
        self.outgoing.push_body(body);
    }

    /// Tells the far side what it lacks and the ring no longer has, unless it is owed that and others may have it.
    fn tell_floors(&mut self, port: &PortLane, lane: &Lane, is_owed: bool, now: Instant) {
        let age_ms_max = port.replication.ring_age_ms();
        lane.for_each_stream(|stream| {
            let (key, floor) = (stream.key(), stream.floor());
            // What waits for the disk is here still, and comes first.
            if key == lane.own.key() && self.deferred.loses(floor) {
                return;
            }
            let known = self.far.get(&key).map_or(0, |far| far.known);
            let may_be_had = key != lane.own.key() || lane.has_former_beyond(known);
            // Who has named a cover has begun with it.
            let is_owed = lane.reliable && (is_owed || known > 0);
            if floor > known && is_owed && may_be_had && stream.floor_age_ms(now) <= age_ms_max {
                self.fills.lack(key, known);
            } else if floor > known && !self.fills.holds(key) {
                self.far.entry(key).or_default().known = floor;
                self.put_gap(port, lane, key, known, floor);
            }
        });
    }

    /// Of QoS 0 nobody is told: ids have holes.
    fn put_gap(&mut self, port: &PortLane, lane: &Lane, key: StreamKey, from: u64, to: u64) {
        if !lane.reliable {
            return;
        }
        let alias = self.alias(key);
        lane::put_gap(&mut self.outgoing.tail, alias, from, to);
        let counter = &port.replication.counters.gaps_sent;
        counter.add(1);
        if counter.value().is_power_of_two() {
            let (origin, so_far) = (key.0, counter.value());
            tracing::warn!(%origin, lane = lane.id.0, from, to, so_far, "a neighbour lacks messages that the ring no longer has");
        }
    }

    /// The next question: of one origin-lane, what goes into a frame.
    fn put_question(&mut self, counters: &Counters) {
        let Some((key, first)) = self.questions.pop_first() else { return };
        let mut sequences = vec![first];
        while sequences.len() < PULLED_PER_FRAME_MAX
            && let Some((_, next)) = self.questions.first().filter(|(next, _)| *next == key).copied()
        {
            self.questions.pop_first();
            sequences.push(next);
        }
        let alias = self.alias(key);
        lane::put_pull(&mut self.outgoing.tail, alias, &sequences);
        counters.pulls_sent.add(sequences.len() as u64);
    }

    /// The next answer that is due.
    fn put_answer(&mut self, lane: &Lane, now: Instant) {
        let Some((key, frame)) = self.answers.next(lane, now) else { return };
        let alias = self.alias(key);
        match frame {
            Frame::Payloads { age_ms, first, body } => {
                self.put_sent(now);
                lane::put_payloads_head(&mut self.outgoing.tail, alias, age_ms, first, &body);
                self.outgoing.push_body(&body.into());
            }
            Frame::Gone(sequences) => lane::put_gone(&mut self.outgoing.tail, alias, &sequences),
            Frame::Nothing => {}
        }
    }

    /// Goes before whatever has an age: from here on that goes on.
    fn put_sent(&mut self, now: Instant) {
        if self.sent_until.is_some_and(|until| now < until) {
            return;
        }
        self.sent_until = Some(now + SENT_EVERY);
        if let Some(theirs) = &self.theirs {
            let after_open = now.saturating_duration_since(theirs.at);
            lane::put_sent(&mut self.outgoing.tail, millis(after_open));
        }
    }

    /// What the stream calls `key`.
    fn alias(&mut self, key: StreamKey) -> u16 {
        let known = self.far.get(&key).and_then(|far| far.alias);
        known.unwrap_or_else(|| self.introduce(key))
    }

    /// Gives `key` a name on this stream.
    fn introduce(&mut self, key: StreamKey) -> u16 {
        let alias = self.alias_next;
        self.alias_next = (alias + 1) % LANE_ALIASES_MAX;
        match self.aliases.get_mut(usize::from(alias)) {
            Some(held) => {
                let displaced = std::mem::replace(held, key);
                self.far.entry(displaced).and_modify(|far| far.alias = None);
            }
            None => self.aliases.push(key),
        }
        self.far.entry(key).or_default().alias = Some(alias);
        lane::put_origin(&mut self.outgoing.tail, alias, key.0, key.1);
        alias
    }
}

impl Outgoing {
    fn len(&self) -> usize {
        self.bytes + self.tail.len()
    }

    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.tail.is_empty()
    }

    /// A block's messages, behind their head: small ones are copied, large ones shared.
    fn push_body(&mut self, body: &Bytes) {
        if body.len() < SHARE_BLOCK_BYTES {
            self.tail.extend_from_slice(body);
        } else {
            self.end_piece();
            self.bytes += body.len();
            self.pieces.push_back(Piece::Bytes(body.clone()));
        }
    }

    /// Bytes to hand out until a CLOSE is out; `None` if there is none.
    fn bytes_to_close(&self) -> Option<usize> {
        let bytes = |piece: &Piece| if let Piece::Bytes(bytes) = piece { bytes.len() } else { 0 };
        let close = self.pieces.iter().position(|piece| matches!(piece, Piece::Closed(_)))?;
        Some(self.pieces.iter().take(close).map(bytes).sum())
    }

    fn end_piece(&mut self) {
        if !self.tail.is_empty() {
            self.bytes += self.tail.len();
            self.pieces.push_back(Piece::Bytes(Bytes::copy_from_slice(&self.tail)));
            self.tail.clear();
        }
    }

    /// Moves pieces to `out` until `given` comes to `budget`, or a CLOSE is out.
    fn hand_out(&mut self, budget: usize, given: &mut usize, out: &mut Vec<Bytes>) -> Option<OpenNumber> {
        self.end_piece();
        loop {
            match self.pieces.front_mut()? {
                Piece::Closed(number) => {
                    let number = *number;
                    self.pieces.pop_front();
                    return Some(number);
                }
                Piece::Bytes(_) if *given == budget => return None,
                Piece::Bytes(bytes) => {
                    let piece = bytes.split_to(bytes.remaining().min(budget - *given));
                    if bytes.is_empty() {
                        self.pieces.pop_front();
                    }
                    self.bytes -= piece.len();
                    *given += piece.len();
                    out.push(piece);
                }
            }
        }
    }
}

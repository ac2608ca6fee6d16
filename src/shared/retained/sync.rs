//! How two brokers at the ends of a link come to hold the same retained messages: one end of it, without I/O.
//!
//! Either end may offer what it holds, at any time:
//!
//! ```text
//! offering                     answering
//!    SUMS  ───────────────────▶   compares them with its own, bucket by bucket
//!          ◀─────────── LIST *    what it holds of each bucket that differs and in which the other has something
//!          ◀─────────── LISTED
//!    MESSAGES * ──────────────▶   what it lacks by its lists, as far as it still is the newest: takes what is newer than its own
//!    DONE  ───────────────────▶   offers in turn, if the other has still something else
//! ```
//!
//! So nothing is sent that the other holds, whatever has come over lanes meanwhile; and a message that is sent twice does nothing the second time. An offer is
//! due when the link comes up, when mesh time jumps, when this broker has taken or deleted something that did not come over a lane, when the lanes may have lost something
//! ([`RetainedSync::suspect`]), and each [`OFFER_INTERVAL`] all the same.
//!
//! A broker begins to answer one neighbour at a time ([`Turn`]), so that one that joins has everything once and not once from each neighbour; but after
//! [`TURN_MAX`] the next one, however slow the link is that has the turn.
//!
//! What a peer can cost: it is sent lists only where its sums differ, and messages only of keys that it was asked to list, in ascending order, once an offer;
//! offers are a second apart. What it sends is taken only with a stamp that is no lie ([`crate::shared::StampClock`]). All that is held for it is
//! its sums, and keys of messages that this broker has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::stamp::ClockWord;
use super::index::{UNSEEN, key_of};
use crate::codec::{self, DecodeError};
use crate::frame::FrameError;
use crate::frame::bulk::{BulkFrame, LIST_STAMPS_MAX, List, Sums, TopicKey, put_clock, put_done, put_list, put_listed, put_sums};
use crate::frame::lane::{Entry, MeshMessage, Messages};
use crate::ids::Stamp;

/// Offers of one link are so far apart, at least.
const OFFER_SPACING: Duration = Duration::from_secs(1);
/// And at most.
const OFFER_INTERVAL: Duration = Duration::from_secs(60);
/// Whoever has sent nothing for so long of what it offered loses its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(3);
/// No turn is longer: the next is answered beside it.
const TURN_MAX: Duration = Duration::from_secs(10);
/// Mesh time that is further ahead than it was said, milliseconds, is said again.
const CLOCK_JUMP_MS: u64 = 30_000;
/// What is written at once, roughly.
const CHUNK_BYTES: usize = 16 * 1024;

/// What the other end said that no honest broker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// Not the bulk format.
    #[error("malformed bulk frame: {0}")]
    Frame(#[from] FrameError),
    /// A message that is not retained, or without a stamp.
    #[error("a message among retained ones that is none")]
    NotRetained,
    /// Properties that no subscriber may be given.
    #[error("a message whose properties are malformed: {0}")]
    Properties(#[from] DecodeError),
}

/// What became of a message from another broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is held now, or that its topic was deleted.
    News,
    /// Nothing newer than what was held.
    Known,
    /// It cannot be taken: no room, or a stamp that is not believed.
    Refused,
}

/// What a broker holds of retained messages. Everything may be called from any thread.
pub trait RetainedCopies: Send + Sync {
    /// The sums of all buckets.
    fn sums(&self) -> Vec<u64>;
    /// What is held of the keys from one to another, at most so many from the front.
    fn stamps(&self, from: TopicKey, to: TopicKey, count_max: usize) -> Vec<(TopicKey, Stamp)>;
    /// Which of these keys are out of sight: deleted so long ago that it concerns only who holds something older.
    fn unseen(&self, from: TopicKey, to: TopicKey) -> BTreeSet<TopicKey>;
    /// Takes keys off the front and appends what is held of them as a MESSAGES frame, until there are so many bytes.
    fn put_messages(&self, keys: &mut BTreeSet<TopicKey>, bytes: usize, out: &mut Vec<u8>, now: Instant);
    /// Takes in what another broker holds, if it is newer. `message` has a stamp.
    fn take(&self, message: &MeshMessage<'_>, now: Instant) -> Taken;
    /// All messages of a frame were taken.
    fn taken(&self);
    /// The disk does not follow: what is to be taken is to be read later.
    fn is_behind(&self) -> bool;
    /// Counts what was taken or deleted otherwise than by messages that go through the lanes.
    fn news(&self) -> u64;
    /// Whose offer is being answered.
    fn turn(&self) -> &Turn;
    /// Bytes of messages for which there is room.
    fn room(&self) -> usize;
    /// Mesh time.
    fn clock_ms(&self, now: Instant) -> u64;
    /// The other end says what mesh time is there.
    fn hear_clock(&self, unix_ms: u64, now: Instant) -> ClockWord;
}

/// Which link's offer a broker answers: one at a time.
#[derive(Debug, Default)]
pub struct Turn(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    /// Whose turn it is, and until when.
    holder: Option<(u64, Instant)>,
    /// Who has asked in vain, each once, the first in front.
    waiting: VecDeque<u64>,
}

impl Turn {
    /// Nobody's.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Turns { holder: None, waiting: VecDeque::new() }))
    }

    /// Whether it is `link`'s turn now; if not it is in line.
    fn take(&self, link: u64, now: Instant) -> bool {
        let mut turns = self.0.lock();
        turns.holder = turns.holder.filter(|(_, until)| *until > now);
        if turns.holder.is_none() {
            // Whoever does not come in that time has to ask again.
            turns.holder = turns.waiting.pop_front().map(|next| (next, now + TURN_PATIENCE));
        }
        let is_its = turns.holder.is_none_or(|(holder, _)| holder == link);
        if is_its {
            turns.holder = Some((link, now + TURN_MAX));
        } else if !turns.waiting.contains(&link) {
            turns.waiting.push_back(link);
        }
        is_its
    }

    /// `link` needs no turn, or no more.
    fn release(&self, link: u64) {
        let mut turns = self.0.lock();
        turns.holder = turns.holder.filter(|(holder, _)| *holder != link);
        turns.waiting.retain(|waiting| *waiting != link);
    }

    /// Whether an offer is being answered.
    fn is_taken(&self, now: Instant) -> bool {
        self.0.lock().holder.is_some_and(|(_, until)| until > now)
    }
}

/// One end of one link. Say [`end`](Self::end) when the link is down.
#[derive(Debug)]
pub struct RetainedSync {
    /// Tells links of this broker apart; not 0.
    link: u64,
    /// Mesh time as it was last said, milliseconds, and when that was.
    said: Option<(u64, Instant)>,
    offer: Offer,
    /// An offer is due, for another reason than time or news; perhaps as the answer to the other end's.
    due: Option<Due>,
    offered_at: Option<Instant>,
    /// [`RetainedCopies::news`] at the last offer, and how many have come over this link since.
    news: (u64, u64),
    answer: Answer,
    /// The least message of each bucket that could not be taken of the present offer, bytes.
    turned_away: BTreeMap<usize, usize>,
    /// How the buckets stood in which the two ends held something else at the end of the last offer that was answered.
    settled: BTreeMap<usize, Settled>,
    has_ended: bool,
}

/// All is known here that the other end holds in a bucket, as far as it can be taken: while neither sum changes it is not asked for again.
#[derive(Clone, Copy, Debug)]
struct Settled {
    theirs: u64,
    ours: u64,
    /// Bytes for which there must be room before something can be taken that could not.
    turned_away: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Offer,
    Answer,
}

/// What this end offers.
#[derive(Debug)]
enum Offer {
    None,
    Made {
        /// The first key that the other end may list now; none: it may list no more.
        next: Option<TopicKey>,
        /// It has listed all.
        listed: bool,
        /// What it lacks, as far as it is known and not sent.
        lacking: BTreeSet<TopicKey>,
    },
}

/// What the other end offers.
#[derive(Debug)]
enum Answer {
    None,
    /// It waits for its turn.
    Due(Offered),
    /// What we hold is being listed: the buckets left, the next one last, and from where in that.
    Listing(Offered, Vec<usize>, Option<TopicKey>),
    /// All is listed; when something came last.
    Listed(Offered, Instant),
}

#[derive(Debug)]
struct Offered {
    sums: Vec<u64>,
    is_answer: bool,
}

impl RetainedSync {
    /// One end of a link that has come up; `link` is not 0, and another number than those of this broker's other links.
    #[must_use]
    pub fn new(link: u64) -> Self {
        Self {
            link,
            said: None,
            offer: Offer::None,
            due: Some(Due::Offer),
            offered_at: None,
            news: (0, 0),
            answer: Answer::None,
            turned_away: BTreeMap::new(),
            settled: BTreeMap::new(),
            has_ended: false,
        }
    }

    /// Messages may have been lost between brokers: what the two ends hold is to be compared.
    pub fn suspect(&mut self) {
        self.due = Some(Due::Offer);
    }

    /// The link is down: nothing more is said.
    pub fn end(&mut self, copies: &(impl RetainedCopies + ?Sized)) {
        self.has_ended = true;
        copies.turn().release(self.link);
    }

    /// Appends what is to be said next, a chunk of it. Where nothing is appended there is nothing to say until something is received, or some time
    /// has gone.
    pub fn poll(&mut self, copies: &(impl RetainedCopies + ?Sized), now: Instant, out: &mut Vec<u8>) {
        if self.has_ended {
            return;
        }
        let full = out.len() + CHUNK_BYTES;
        self.say_clock(copies, now, out);
        self.list(copies, now, full, out);
        self.send(copies, now, full, out);
        if out.len() < full {
            self.offer(copies, now, out);
        }
    }

    /// Before all else, so that our stamps are believed; and again if mesh time has made a jump here, because of another neighbour.
    fn say_clock(&mut self, copies: &(impl RetainedCopies + ?Sized), now: Instant, out: &mut Vec<u8>) {
        let present = copies.clock_ms(now);
        let expected = self.said.map(|(said, at)| {
            let elapsed = u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
            said.saturating_add(elapsed)
        });
        if expected.is_none_or(|expected| present > expected.saturating_add(CLOCK_JUMP_MS)) {
            put_clock(out, present);
            self.said = Some((present, now));
            // What was not believed may be now.
            self.suspect();
        }
    }

    /// Lists what we hold where the other end holds something else.
    fn list(&mut self, copies: &(impl RetainedCopies + ?Sized), now: Instant, full: usize, out: &mut Vec<u8>) {
        if let Answer::Due(offered) = &mut self.answer {
            let ours = copies.sums();
            let room = copies.room();
            let brings_nothing = |bucket: usize, theirs: u64, ours: u64| {
                let settled = self.settled.get(&bucket).filter(|settled| (settled.theirs, settled.ours) == (theirs, ours));
                settled.is_some_and(|settled| settled.turned_away.is_none_or(|bytes| bytes > room))
            };
            let theirs = offered.sums.iter().zip(&ours).enumerate().filter(|(_, (theirs, ours))| may_bring(**theirs, **ours));
            let theirs = theirs.filter(|(bucket, (theirs, ours))| !brings_nothing(*bucket, **theirs, **ours));
            let mut buckets: Vec<_> = theirs.map(|(bucket, _)| bucket).collect();
            // Where there is nothing to receive it costs nobody anything.
            if !buckets.is_empty() && !copies.turn().take(self.link, now) {
                return;
            }
            buckets.reverse();
            let offered = Offered { sums: std::mem::take(&mut offered.sums), is_answer: offered.is_answer };
            self.answer = Answer::Listing(offered, buckets, None);
        }
        match &mut self.answer {
            Answer::Listing(offered, buckets, from) => {
                while let Some(bucket) = buckets.last()
                    && out.len() < full
                {
                    let (first, last) = TopicKey::of_bucket(*bucket);
                    let begin = from.take().unwrap_or(first);
                    let stamps = copies.stamps(begin, last, LIST_STAMPS_MAX);
                    let end = stamps.last().filter(|_| stamps.len() == LIST_STAMPS_MAX).map_or(last, |(key, _)| *key);
                    put_list(out, (begin, end), &stamps);
                    *from = (end < last).then_some(TopicKey(end.0.saturating_add(1)));
                    if from.is_none() {
                        buckets.pop();
                    }
                }
                if buckets.is_empty() {
                    put_listed(out);
                    let offered = Offered { sums: std::mem::take(&mut offered.sums), is_answer: offered.is_answer };
                    self.answer = Answer::Listed(offered, now);
                }
            }
            Answer::Listed(_, heard_at) if now.saturating_duration_since(*heard_at) > TURN_PATIENCE => {
                copies.turn().release(self.link);
            }
            _ => {}
        }
    }

    /// Sends what the other end lacks.
    fn send(&mut self, copies: &(impl RetainedCopies + ?Sized), now: Instant, full: usize, out: &mut Vec<u8>) {
        let Offer::Made { listed, lacking, .. } = &mut self.offer else { return };
        while !lacking.is_empty() && out.len() < full {
            copies.put_messages(lacking, full - out.len(), out, now);
        }
        if *listed && lacking.is_empty() {
            put_done(out);
            self.offer = Offer::None;
        }
    }

    /// Offers what we hold, if that is due.
    fn offer(&mut self, copies: &(impl RetainedCopies + ?Sized), now: Instant, out: &mut Vec<u8>) {
        if matches!(self.offer, Offer::Made { .. }) {
            return;
        }
        let since = self.offered_at.map(|at| now.saturating_duration_since(at));
        // While much comes in, what we hold changes all the time: it is offered less often.
        let spacing = if copies.turn().is_taken(now) { TURN_MAX } else { OFFER_SPACING };
        if since.is_some_and(|since| since < spacing) {
            return;
        }
        let news = copies.news();
        let has_news = news != self.news.0.wrapping_add(self.news.1);
        if self.due.is_none() && !has_news && since.is_some_and(|since| since < OFFER_INTERVAL) {
            return;
        }
        put_sums(out, self.due == Some(Due::Answer), &copies.sums());
        self.offer = Offer::Made { next: Some(TopicKey(0)), listed: false, lacking: BTreeSet::new() };
        (self.due, self.offered_at, self.news) = (None, Some(now), (news, 0));
    }

    /// Takes in a frame. Says what came of the other end's word of its clock, if it is one.
    ///
    /// # Errors
    /// See [`SyncError`]: the link is to be closed.
    pub fn receive(
        &mut self,
        frame: &BulkFrame<'_>,
        copies: &(impl RetainedCopies + ?Sized),
        now: Instant,
    ) -> Result<Option<ClockWord>, SyncError> {
        match frame {
            BulkFrame::Clock { unix_ms } => {
                let word = copies.hear_clock(*unix_ms, now);
                if matches!(word, ClockWord::Behind(_)) {
                    self.suspect();
                }
                return Ok(Some(word));
            }
            BulkFrame::Sums { is_answer, sums } => self.offered(*is_answer, sums),
            BulkFrame::List(list) => self.listed_some(list, copies),
            BulkFrame::Listed => {
                if let Offer::Made { next, listed, .. } = &mut self.offer {
                    (*next, *listed) = (None, true);
                }
            }
            BulkFrame::Messages(body) => self.messages(body, copies, now)?,
            BulkFrame::Done => self.done(copies),
            BulkFrame::Letter(_) | BulkFrame::Unknown => {}
        }
        Ok(None)
    }

    /// One offer at a time: whoever makes another before he has said DONE is not heard.
    fn offered(&mut self, is_answer: bool, sums: &Sums<'_>) {
        if matches!(self.answer, Answer::None) {
            self.answer = Answer::Due(Offered { sums: sums.iter().collect(), is_answer });
        }
    }

    fn listed_some(&mut self, list: &List<'_>, copies: &(impl RetainedCopies + ?Sized)) {
        let Offer::Made { next, lacking, .. } = &mut self.offer else { return };
        if next.is_none_or(|next| list.from < next) {
            return;
        }
        *next = list.to.0.checked_add(1).map(TopicKey);
        let mut theirs = list.iter().peekable();
        let unseen = copies.unseen(list.from, list.to);
        for (key, stamp) in copies.stamps(list.from, list.to, usize::MAX) {
            while theirs.next_if(|(their_key, _)| *their_key < key).is_some() {}
            let theirs = theirs.next_if(|(their_key, _)| *their_key == key).map(|(_, theirs)| theirs);
            if theirs.map_or_else(|| !unseen.contains(&key), |theirs| theirs < stamp) {
                lacking.insert(key);
            }
        }
    }

    fn messages(&mut self, body: &[u8], copies: &(impl RetainedCopies + ?Sized), now: Instant) -> Result<(), SyncError> {
        // All of them are looked at before any is taken.
        for message in Messages::new(0, body) {
            let (_, Entry::Message(message)) = message? else { return Err(SyncError::NotRetained) };
            if !message.retain || message.stamp.is_none() {
                return Err(SyncError::NotRetained);
            }
            if !message.properties.is_empty() {
                codec::check_forwardable(message.properties)?;
            }
        }
        for (_, entry) in Messages::new(0, body).flatten() {
            let Entry::Message(message) = entry else { continue };
            match copies.take(&message, now) {
                Taken::News => self.news.1 = self.news.1.wrapping_add(1),
                Taken::Known => {}
                Taken::Refused => {
                    let bytes = message.topic.len() + message.properties.len() + message.payload.len();
                    let least = self.turned_away.entry(key_of(message.topic).bucket()).or_insert(bytes);
                    *least = bytes.min(*least);
                }
            }
        }
        copies.taken();
        if let Answer::Listed(_, heard_at) = &mut self.answer {
            *heard_at = now;
        }
        Ok(())
    }

    fn done(&mut self, copies: &(impl RetainedCopies + ?Sized)) {
        let Answer::Listed(offered, _) = std::mem::replace(&mut self.answer, Answer::None) else { return };
        copies.turn().release(self.link);
        let ours = copies.sums();
        if !offered.is_answer && self.due.is_none() && ours.iter().zip(&offered.sums).any(|(ours, theirs)| differ(*ours, *theirs)) {
            self.due = Some(Due::Answer);
        }
        let (before, turned_away) = (std::mem::take(&mut self.settled), std::mem::take(&mut self.turned_away));
        let sums = offered.sums.iter().zip(&ours).map(|(theirs, ours)| (*theirs, *ours)).enumerate();
        let settled = sums.filter(|(_, (theirs, ours))| may_bring(*theirs, *ours)).map(|(bucket, (theirs, ours))| {
            // What was not listed this time was turned away before.
            let before = before.get(&bucket).filter(|before| (before.theirs, before.ours) == (theirs, ours));
            let turned_away = turned_away.get(&bucket).copied().or(before.and_then(|before| before.turned_away));
            (bucket, Settled { theirs, ours, turned_away })
        });
        self.settled = settled.collect();
    }
}

/// Whether the other end may have something in a bucket that this one lacks.
fn may_bring(theirs: u64, ours: u64) -> bool {
    theirs != 0 && differ(theirs, ours)
}

/// Whether one end may have something that the other lacks, by the sums of a bucket.
fn differ(one: u64, other: u64) -> bool {
    one != other && one.max(other) > UNSEEN
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::*;
    use crate::codec::QoS;
    use crate::frame::bulk::{self, BUCKET_COUNT};
    use crate::frame::lane::put_message;
    use crate::shared::retained::{Index, Written};

    /// Topics only, in place of messages.
    #[derive(Default)]
    struct Held {
        index: Mutex<Index<String>>,
        turn: Turn,
        news: AtomicU64,
        sent: Mutex<BTreeMap<TopicKey, usize>>,
        /// Where there is a bound: topics that are taken still.
        room: Option<AtomicUsize>,
    }

    impl Held {
        fn write(&self, topic: &str, time: u64) {
            self.index.lock().insert(key_of(topic), stamp(time), Written::Message(topic.to_owned()));
        }
    }

    impl RetainedCopies for Held {
        fn sums(&self) -> Vec<u64> {
            self.index.lock().sums()
        }

        fn stamps(&self, from: TopicKey, to: TopicKey, count_max: usize) -> Vec<(TopicKey, Stamp)> {
            self.index.lock().range(from, to).take(count_max).collect()
        }

        fn unseen(&self, from: TopicKey, to: TopicKey) -> BTreeSet<TopicKey> {
            self.index.lock().unseen(from, to)
        }

        fn put_messages(&self, keys: &mut BTreeSet<TopicKey>, _: usize, out: &mut Vec<u8>, _: Instant) {
            let key = keys.pop_first().unwrap();
            *self.sent.lock().entry(key).or_default() += 1;
            if let Some((stamp, Written::Message(topic))) = self.index.lock().find(key) {
                bulk::put_messages(out, &message(topic, Some(stamp), true));
            }
        }

        fn take(&self, message: &MeshMessage<'_>, _: Instant) -> Taken {
            let stamp = message.stamp.unwrap();
            if self.index.lock().stamp(key_of(message.topic)) >= Some(stamp) {
                return Taken::Known;
            }
            let take =
                |room: &AtomicUsize| room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(1)).is_ok();
            if !self.room.as_ref().is_none_or(take) {
                return Taken::Refused;
            }
            self.write(message.topic, stamp.time);
            self.news.fetch_add(1, Ordering::Relaxed);
            Taken::News
        }

        fn taken(&self) {}

        fn is_behind(&self) -> bool {
            false
        }

        fn news(&self) -> u64 {
            self.news.load(Ordering::Relaxed)
        }

        fn turn(&self) -> &Turn {
            &self.turn
        }

        fn room(&self) -> usize {
            self.room.as_ref().map_or(usize::MAX, |room| 100 * room.load(Ordering::Relaxed))
        }

        fn clock_ms(&self, _: Instant) -> u64 {
            0
        }

        fn hear_clock(&self, _: u64, _: Instant) -> ClockWord {
            ClockWord::Fine
        }
    }

    fn stamp(time: u64) -> Stamp {
        Stamp { time, writer: 1 }
    }

    fn message(topic: &str, stamp: Option<Stamp>, retain: bool) -> Vec<u8> {
        let mut body = Vec::new();
        let message = MeshMessage {
            topic,
            payload: b"x",
            qos: QoS::AtMostOnce,
            retain,
            expiry_seconds: None,
            properties: &[],
            stamp,
            picks: Default::default(),
        };
        put_message(&mut body, 0, &message, false);
        body
    }

    #[expect(clippy::disallowed_methods, reason = "virtual time starts somewhere")]
    fn any_instant() -> Instant {
        Instant::now()
    }

    fn receive(sync: &mut RetainedSync, held: &Held, bytes: &[u8], now: Instant) -> Result<(), SyncError> {
        let mut rest = bytes;
        while let Some((frame, length)) = bulk::decode(rest, 1 << 20)? {
            sync.receive(&frame, held, now)?;
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
        Ok(())
    }

    fn said(sync: &mut RetainedSync, held: &Held, now: Instant) -> Vec<u8> {
        let mut out = Vec::new();
        sync.poll(held, now, &mut out);
        out
    }

    fn settle(ends: &mut [(RetainedSync, &Held); 2], now: Instant) -> usize {
        let mut bytes = 0;
        loop {
            let [a, b] = ends;
            let (to_b, to_a) = (said(&mut a.0, a.1, now), said(&mut b.0, b.1, now));
            if to_a.is_empty() && to_b.is_empty() {
                return bytes;
            }
            bytes += to_a.len() + to_b.len();
            receive(&mut b.0, b.1, &to_b, now).unwrap();
            receive(&mut a.0, a.1, &to_a, now).unwrap();
        }
    }

    #[test]
    fn each_lacks_nothing_afterwards_and_was_sent_nothing_that_it_had() {
        let (a, b) = (Held::default(), Held::default());
        // Many in few buckets too: lists of several pages.
        (0..5_000).for_each(|n| a.write(&format!("a/{n}"), 10));
        (0..300).for_each(|n| b.write(&format!("b/{n}"), 10));
        (0..300).for_each(|n| {
            a.write(&format!("both/{n}"), 10 + n % 3);
            b.write(&format!("both/{n}"), 11);
        });
        let now = any_instant();
        let mut ends = [(RetainedSync::new(1), &a), (RetainedSync::new(1), &b)];
        settle(&mut ends, now);
        settle(&mut ends, now + OFFER_SPACING);
        assert!(a.sums() == b.sums());
        assert_eq!((a.sent.lock().len(), b.sent.lock().len()), (5_100, 400));
        assert!(a.sent.lock().values().chain(b.sent.lock().values()).all(|times| *times == 1));
        assert_eq!(settle(&mut ends, now + 2 * OFFER_SPACING), 0, "all is said");
        // Only that they hold the same, once in a while.
        assert!((8 * BUCKET_COUNT..20 * BUCKET_COUNT).contains(&settle(&mut ends, now + 2 * OFFER_INTERVAL)));
    }

    /// As long as nothing changes at either end, nothing is sent again; what has changed is, and what there is room for.
    #[test]
    fn who_is_full_is_not_sent_the_same_again_and_again() {
        let a = Held::default();
        let b = Held { room: Some(AtomicUsize::new(100)), ..Held::default() };
        (0..3_000).for_each(|n| a.write(&format!("a/{n}"), 10));
        let mut now = any_instant();
        let mut ends = [(RetainedSync::new(1), &a), (RetainedSync::new(1), &b)];
        let sent = |held: &Held| held.sent.lock().values().sum::<usize>();
        for _ in 0..3 {
            settle(&mut ends, now);
            now += OFFER_SPACING;
        }
        let first = sent(&a);
        assert_eq!((first >= 3_000, b.index.lock().range(TopicKey(0), TopicKey(u64::MAX)).count()), (true, 100));
        let mut quiet = 0;
        for _ in 0..10 {
            now += OFFER_INTERVAL;
            quiet += settle(&mut ends, now);
        }
        assert_eq!(sent(&a), first);
        assert!(quiet < 10 * 4 * 9 * BUCKET_COUNT, "{quiet} bytes");
        // One bucket of a thousand, and the other end learns of it.
        a.write("a/7", 11);
        now += OFFER_INTERVAL;
        settle(&mut ends, now);
        assert!((first + 1..first + 20).contains(&sent(&a)), "{} after {first}", sent(&a));
        b.room.as_ref().unwrap().store(10_000, Ordering::Relaxed);
        for _ in 0..3 {
            now += OFFER_INTERVAL;
            settle(&mut ends, now);
        }
        assert!(a.sums() == b.sums());
    }

    #[test]
    fn a_peer_gets_nothing_that_was_not_offered_and_nothing_twice() {
        let (held, now) = (Held::default(), any_instant());
        (0..2_000).for_each(|n| held.write(&format!("t/{n}"), 10));
        let list = |bucket| {
            let mut out = Vec::new();
            put_list(&mut out, TopicKey::of_bucket(bucket), &[]);
            out
        };
        let mut sync = RetainedSync::new(1);
        receive(&mut sync, &held, &list(5), now).unwrap();
        let in_bucket_5 = held.stamps(TopicKey::of_bucket(5).0, TopicKey::of_bucket(5).1, usize::MAX).len();
        assert!(in_bucket_5 > 0);
        // The offer, and nothing else.
        assert!(said(&mut sync, &held, now).len() < 9_000 && held.sent.lock().is_empty());
        for bucket in [5, 5, 4, 5] {
            receive(&mut sync, &held, &list(bucket), now).unwrap();
            while !said(&mut sync, &held, now).is_empty() {}
        }
        let sent = held.sent.lock().clone();
        assert_eq!((sent.len(), sent.values().sum::<usize>()), (in_bucket_5, in_bucket_5));
        // Offers of its own without end are not heard, and cost one answer.
        let mut sums = Vec::new();
        put_sums(&mut sums, false, &vec![7; BUCKET_COUNT]);
        (0..10).for_each(|_| receive(&mut sync, &held, &sums, now).unwrap());
        let mut listed = 0;
        loop {
            let out = said(&mut sync, &held, now);
            if out.is_empty() {
                break;
            }
            listed += out.len();
        }
        assert!(listed < 2_000 * 24 + BUCKET_COUNT * 30, "{listed}");
    }

    #[test]
    fn what_is_no_retained_message_ends_the_link() {
        let (held, now) = (Held::default(), any_instant());
        let mut sync = RetainedSync::new(1);
        for (body, error) in [
            (message("t", None, true), SyncError::NotRetained),
            (message("t", Some(stamp(1)), false), SyncError::NotRetained),
            (message("#", Some(stamp(1)), true), SyncError::Frame(FrameError::Text("topic"))),
        ] {
            let all = [message("good", Some(stamp(1)), true), body.clone()];
            for body in [body, {
                let [good, mut bad] = all;
                bad[0] = 1;
                [good, bad].concat()
            }] {
                let mut frame = Vec::new();
                bulk::put_messages(&mut frame, &body);
                assert_eq!(receive(&mut sync, &held, &frame, now), Err(error));
            }
        }
        assert_eq!(held.sums(), vec![0; BUCKET_COUNT], "nothing before it was taken");
    }

    #[test]
    fn whoever_offers_and_sends_nothing_loses_its_turn_and_so_does_a_link_that_is_down() {
        let (held, now) = (Held::default(), any_instant());
        held.write("t", 1);
        let mut sums = Vec::new();
        put_sums(&mut sums, false, &vec![7; BUCKET_COUNT]);
        let mut ends = [1, 2, 3].map(RetainedSync::new);
        ends.iter_mut().for_each(|end| {
            said(end, &held, now);
            receive(end, &held, &sums, now).unwrap();
        });
        let [first, second, third] = &mut ends;
        let listens = |end: &mut RetainedSync, now| !said(end, &held, now).is_empty();
        assert!(listens(first, now) && !listens(second, now));
        while listens(first, now) {}
        let later = now + TURN_PATIENCE + Duration::from_millis(1);
        assert!(!listens(first, later) && listens(second, later) && !listens(third, later));
        second.end(&held);
        assert!(!listens(second, later) && listens(third, later));
    }

    #[test]
    fn whoever_sends_slowly_keeps_nobody_else_waiting_for_longer_than_a_turn() {
        let (held, begin) = (Held::default(), any_instant());
        held.write("t", 1);
        let mut sums = Vec::new();
        put_sums(&mut sums, false, &vec![7; BUCKET_COUNT]);
        let mut ends = [1, 2, 3, 4].map(RetainedSync::new);
        ends.iter_mut().for_each(|end| {
            said(end, &held, begin);
            receive(end, &held, &sums, begin).unwrap();
        });
        let listed = |end: &RetainedSync| matches!(end.answer, Answer::Listed(..));
        let mut now = begin;
        let mut all = Vec::new();
        for step in 0..400_u64 {
            now = begin + Duration::from_millis(step * 100);
            for (number, end) in ends.iter_mut().enumerate() {
                // The third one is stuck: it has asked and is not heard of again.
                if number != 2 || step < 5 {
                    while !said(end, &held, now).is_empty() {}
                }
            }
            if step % 25 == 0 {
                let mut frame = Vec::new();
                bulk::put_messages(&mut frame, &message(&format!("slow/{step}"), Some(stamp(step + 1)), true));
                ends.iter_mut().filter(|end| listed(end)).for_each(|end| receive(end, &held, &frame, now).unwrap());
            }
            all.push(ends.iter().filter(|end| listed(end)).count());
        }
        let first = |count| all.iter().position(|listed| *listed >= count).map(|step| step / 10);
        assert_eq!((first(1), first(2), first(3)), (Some(0), Some(10), Some(23)), "{now:?}");
    }

    #[test]
    fn what_this_end_holds_is_offered_whoever_has_the_turn() {
        let (held, now) = (Held::default(), any_instant());
        held.write("t", 1);
        let mut sync = RetainedSync::new(1);
        assert!(held.turn.take(9, now));
        assert!(!said(&mut sync, &held, now).is_empty());
        let mut listed = Vec::new();
        put_listed(&mut listed);
        receive(&mut sync, &held, &listed, now).unwrap();
        said(&mut sync, &held, now); // DONE
        held.news.fetch_add(1, Ordering::Relaxed);
        assert!(held.turn.take(9, now + OFFER_SPACING), "again");
        assert!(said(&mut sync, &held, now + OFFER_SPACING).is_empty(), "not each second while much comes in");
        assert!(held.turn.take(9, now + TURN_MAX));
        assert!(!said(&mut sync, &held, now + TURN_MAX).is_empty());
    }
}

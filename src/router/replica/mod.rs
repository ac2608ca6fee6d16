//! Replicas of sessions: what a broker's death costs its clients' sessions nothing.
//!
//! A broker tells one other, the *nearest*, of all its sessions that outlive their connections. That one has a [`Shadow`](crate::session) of each: subscribed as the session is,
//! in no registry, nothing of it on its disk. The messages come to it by the lanes, like to any subscriber; what it is told is where in the session they stand, by
//! their ids, and what becomes of them. The principle: **a replica makes the session no less safe, holds it up for two seconds at most, and is used only where its broker cannot be reached.** At QoS 0,
//! of which sessions keep no account, it costs nothing. While its broker cannot be reached it drops what the session would have dropped.
//!
//! 1. *Copied* are sessions in rounds, with the cut of a [move](super::handover): the other broker subscribes and notes its covers; the session's broker, when it has delivered
//!    as much, notes in one quiet moment what is in the sessions, and its own covers. What the other was given up to these is in the copy.
//! 2. *Told* is what the journal says of the sessions, once it is safe on the disk ([`Journal::heard`](crate::session::Journal::heard)): so a replica is never ahead of what the broker would
//!    know after a restart. The letters of it are numbered, repeated until they are known, and bounded.
//!    What nobody waits for is told some hundredths of a second later, with what came meanwhile: each letter costs both brokers several wakes.
//! 3. *Guarded* is a session whose replica is whole: its client sees nothing of QoS 2 that the replica does not know of, PUBREL, PUBREC and PUBCOMP, and a PUBLISH only if that has the
//!    message, too; and what it publishes at QoS 2 is seen by no other broker and no durable session before the replica knows the packet identifier. They wait for
//!    [`Journal::reached`](crate::session::Journal::reached) in place of `committed`. Two waits, for a message has to leave its broker to come to the replica. QoS 1 does not wait, and may come twice.
//! 4. A client that comes to a broker which cannot reach the one that claims the session is given what the replica has: its broker, named in the register of the claimant, makes a
//!    session of it, if it cannot reach the claimant either. That session has a claim of its own, and moves on to the client. The other's ends when it comes back.
//!
//! Copies and heads of sessions go by a budget of their own, in parts: what is told of other sessions goes between these, what is told of one that is being copied behind its copy, and
//! that something is dealt with when all is copied.
//!
//! A replica that lacks a message for which a client waits is over after a second in which its broker goes on asking, by itself; so is a round that comes no further, and a session that does not fit.
//! Who cannot be reached for a third of a second, or is silent for two, is *paused*: nobody waits for it any more, and it is told everything all the same, until it has caught up. So it is where the task
//! of this machine stands still, which another looks after ([`Router::watch_replicas`](super::Router::watch_replicas)). The register does not name it then, nor before it knows all that
//! clients were sent meanwhile, nor before it knows the stream: nobody may go on from a replica that is old. What is paused for five seconds, fails, lets anybody wait for one word for two seconds, whatever else
//! it confirms meanwhile, or does not keep up is given up as a whole: another stream with copies of everything begins, rather at another broker. Subscriptions that change make a new copy of
//! their session.
//!
//! `Deviation:` what a client has published at QoS 2, and its broker had on its disk when it died but had not told the replica, is new when the client repeats it elsewhere; when the
//! broker is back, its log brings the first copy as well.
//!
//! `Deviation:` in a partition both sides go on. A client that was served by its broker after that had given the replica up, and then comes to the other side, may be sent once more
//! what it has had at QoS 2. Nor is a subscription known there that was made or given up meanwhile: it is told that its session is present, and has to subscribe again.
//!
//! | file | duty |
//! |---|---|
//! | `owner` | the side of the broker that has the sessions; `owner::rounds` copies them |
//! | `keeper` | that of the one that has their replicas |
//! | `outgoing` | numbered letters on their way |
//! | `wills` | wills of clients whose broker dies, on both sides |
//! | `word` | what they say, as bytes |

mod keeper;
mod outgoing;
mod owner;
#[cfg(test)]
mod tests;
mod wills;
mod word;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::keeper::Keepers;
pub(super) use self::keeper::Promotion;
use self::owner::Owner;
use self::word::Letter;
pub(super) use self::word::is_replicas;
use super::claims::Claimed;
use super::handover::{Turn, Waiting};
use crate::frame::{Reader, put_varint};
use crate::ids::BrokerId;
use crate::session::{Copy, Entry, MovedContent, MovedHead, State, Subscriber};

/// What is not answered is said again after this time.
const REPEAT: Duration = Duration::from_millis(250);
/// Nobody waits longer for a replica.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Both sides of one broker.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    owner: Owner,
    keepers: Keepers,
}

impl Replicas {
    /// A letter has come.
    pub(super) fn read(&mut self, turn: &mut Turn<'_>, from: BrokerId, body: &[u8]) {
        let (stream, letter) = match Letter::decode(body) {
            Ok(read) => read,
            Err(error) => return tracing::debug!(%from, %error, "a letter is not understood"),
        };
        let line = (from, stream);
        match letter {
            Letter::Items { number, items } => self.keepers.items(turn, line, number, items),
            Letter::Over => self.keepers.over(turn, line),
            Letter::Answer { known, held } => self.owner.answered(line, (known, held), turn.now),
            Letter::Cut { round, part, parts, covers } => self.owner.cut(line, round, (part, parts), covers),
            Letter::Whole { round } => self.owner.whole(turn, line, round),
            Letter::Lost { session } => self.owner.lost(turn, line, session),
            Letter::Unknown => self.owner.unknown(turn, line),
        }
    }

    /// Does what is to be done on both sides. Gives the sessions that have taken the place of others and are safe by now.
    pub(super) fn drive(&mut self, turn: &mut Turn<'_>) -> Vec<Promoted> {
        if turn.router.handover.replicates() {
            self.owner.drive(turn);
        }
        self.keepers.drive(turn)
    }

    /// When to call again at the latest.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.owner.interval().into_iter().chain(self.keepers.interval()).min()
    }

    /// Somebody has claimed a client's session.
    pub(super) fn follow_claim(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, theirs: Claimed) {
        self.keepers.follow_claim(turn, client_id, theirs);
    }

    /// The client's session is to go on from its replica here, whose broker cannot be reached, for a client that came with the claim `stamp` here, or to another broker.
    pub(super) fn promote(&mut self, turn: &mut Turn<'_>, client_id: &Arc<str>, stamp: u64, is_here: bool) -> Promotion {
        self.keepers.promote(turn, client_id, stamp, is_here)
    }

    /// These wait until that is safe.
    pub(super) fn await_promoted(&mut self, client_id: &str, waiting: Vec<Arc<Waiting>>) {
        self.keepers.await_promoted(client_id, waiting);
    }
}

/// A session that has taken the place of another broker's.
#[derive(Debug)]
pub(super) struct Promoted {
    pub(super) client_id: Arc<str>,
    pub(super) stamp: u64,
    /// Whose it was.
    pub(super) of: BrokerId,
    /// With which change it is safe.
    number: u64,
    pub(super) waiting: Vec<Arc<Waiting>>,
}

/// Who a session is, with its claim, and how long ago its client left; none where it is connected.
struct Head {
    claim: u64,
    left: Option<Duration>,
    head: MovedHead,
}

fn encode_head(subscriber: &Subscriber, state: &State, left: Option<Duration>) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, state.claimed);
    put_varint(&mut out, left_to_number(left));
    MovedHead::of(subscriber, state).encode(&mut out);
    out
}

fn decode_head(bytes: &[u8]) -> Option<Head> {
    let mut reader = Reader::new(bytes);
    let (claim, left) = (reader.varint("claim").ok()?, reader.varint("time since it left, ms").ok()?);
    Some(Head { claim, left: number_to_left(left), head: MovedHead::decode(reader.rest()).ok()? })
}

/// How long ago the session's client left; none where it is connected.
fn left_of(state: &State, now: Instant) -> Option<Duration> {
    state.connected.is_none().then(|| state.left_at().map_or(Duration::ZERO, |left_at| now.saturating_duration_since(left_at)))
}

/// 0: it is connected. Else milliseconds, and one.
fn left_to_number(left: Option<Duration>) -> u64 {
    left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX - 1).saturating_add(1))
}

fn number_to_left(number: u64) -> Option<Duration> {
    number.checked_sub(1).map(Duration::from_millis)
}

fn encode_copy(copy: &Copy, now: Instant) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, copy.placed);
    put_varint(&mut out, copy.orders.len() as u64);
    copy.orders.iter().for_each(|order| put_varint(&mut out, *order));
    copy.content.encode(now, &mut out);
    out
}

fn decode_copy(bytes: &[u8], now: Instant) -> Option<Copy> {
    let mut reader = Reader::new(bytes);
    let (placed, count) = (reader.varint("order").ok()?, reader.varint_max(bytes.len() as u64, "entries").ok()?);
    let orders: Option<Vec<u64>> = (0..count).map(|_| reader.varint("order").ok()).collect();
    let (content, orders) = (MovedContent::decode(reader.rest(), now).ok()?, orders?);
    (content.entries.len() == orders.len()).then_some(Copy { content, orders, placed })
}

fn encode_entry(entry: &Entry, now: Instant) -> Vec<u8> {
    let (mut out, entries) = (Vec::new(), vec![entry.clone()]);
    MovedContent { entries, received: Vec::new() }.encode(now, &mut out);
    out
}

fn decode_entry(bytes: &[u8], now: Instant) -> Option<Entry> {
    MovedContent::decode(bytes, now).ok()?.entries.pop()
}

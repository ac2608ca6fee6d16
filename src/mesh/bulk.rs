//! The bulk streams of a link, one each way: what is large and can wait. Retained messages that lanes do not bring; the exchange is
//! [`RetainedSync`]'s. And letters (`post`), which are written before all else: a client may wait for what they say.
//!
//! A bulk stream is unidirectional, on the lanes' connection and of a lower priority than they, but of the same while there are letters, and begins with two bytes as theirs do. What is on
//! its way is bounded by [`WINDOW_BYTES`], for which QUIC's send window has room beside the lanes' credit: so it never blocks there, and no
//! lane behind it. What was consumed is reported as that of a lane is, under the number after the last one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use quinn::RecvStream;
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::credit::CreditError;
use super::error::LinkError;
use super::handshake::HANDSHAKE_TIMEOUT;
use super::link::Link;
use crate::clock;
use crate::frame::bulk::{self, BulkFrame, Letter};
use crate::ids::LaneId;
use crate::limits::{BLOCK_BYTES, CREDIT_BYTES_MAX, LETTERS_BYTES_MAX, MQTT_REMAINING_LENGTH_MAX, SEND_WINDOW_BYTES};
use crate::shared::ClockWord;
use crate::shared::retained::RetainedSync;

/// The first byte of a bulk stream; the second is 0.
pub(super) const BULK_STREAM: u8 = 2;
/// Bytes that may be on their way. The lanes' CLOSEs have the rest of what their credit leaves (`lanes`).
const WINDOW_BYTES: u64 = 128 * 1024;
const _: () = assert!(WINDOW_BYTES as usize <= (SEND_WINDOW_BYTES - CREDIT_BYTES_MAX) / 4);
/// What is written, and read, at once.
const PIECE_BYTES: usize = 16 * 1024;
/// The largest frame: a message as large as MQTT has them.
const FRAME_BYTES_MAX: usize = MQTT_REMAINING_LENGTH_MAX as usize + BLOCK_BYTES;
/// How often it is looked whether there is something to say.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// While the disk is behind, nothing is read for so long at a time.
const PATIENCE: Duration = Duration::from_millis(50);
/// Lower than the lanes', which have 0.
const PRIORITY: i32 = -1;
/// Theirs: of a path that the lanes fill letters have their share. Not more, for a session that moves is many letters.
const PRIORITY_OF_LETTERS: i32 = 0;

/// What the two directions of a link's bulk have in common.
#[derive(Debug)]
pub(super) struct Bulk {
    sync: Mutex<RetainedSync>,
    /// Letters that are to be written, encoded.
    letters: Mutex<Vec<u8>>,
    /// There may be something to say.
    woken: Notify,
    written: AtomicU64,
    consumed: AtomicU64,
    freed: Notify,
}

impl Bulk {
    /// Of the link with that number.
    pub(super) fn new(link: u64) -> Self {
        Self {
            sync: Mutex::new(RetainedSync::new(link)),
            letters: Mutex::default(),
            woken: Notify::new(),
            written: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            freed: Notify::new(),
        }
    }

    /// Takes a letter on its way over this link; where too many wait it is lost.
    pub(super) fn post(&self, letter: &Letter<'_>) {
        let mut letters = self.letters.lock();
        if letters.len() + letter.body.len() > LETTERS_BYTES_MAX {
            return debug!(to = %letter.to, "too many letters wait for a link");
        }
        bulk::put_letter(&mut letters, letter);
        drop(letters);
        self.woken.notify_one();
    }

    /// The far side has consumed `total` bytes.
    pub(super) fn credited(&self, lane: LaneId, total: u64) -> Result<(), CreditError> {
        let written = self.written.load(Ordering::Acquire);
        if total > written {
            return Err(CreditError::Beyond { lane: lane.0, consumed: total, written });
        }
        self.consumed.fetch_max(total, Ordering::AcqRel);
        self.freed.notify_one();
        Ok(())
    }

    /// Waits until something may be written, and says how many bytes.
    async fn room(&self) -> usize {
        loop {
            let outstanding = self.written.load(Ordering::Acquire) - self.consumed.load(Ordering::Acquire);
            match usize::try_from(WINDOW_BYTES.saturating_sub(outstanding)) {
                Ok(room) if room > 0 => return room.min(PIECE_BYTES),
                _ => self.freed.notified().await,
            }
        }
    }

    /// The link is down.
    pub(super) fn end(&self, link: &Link) {
        self.sync.lock().end(&*link.retained);
    }
}

/// Writes what there is to say, until the link ends.
pub(super) async fn write(link: &Arc<Link>) -> Result<(), LinkError> {
    let opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, link.lanes.open_uni()).await;
    let mut stream = opened.map_err(|_| LinkError::Timeout(HANDSHAKE_TIMEOUT))??;
    // Refused only where the stream has ended: the first write says so.
    let _ = stream.set_priority(PRIORITY);
    stream.write_all(&[BULK_STREAM, 0]).await?;
    let mut losses = losses(link);
    let mut out = Vec::new();
    loop {
        let present = self::losses(link);
        if std::mem::replace(&mut losses, present) != present {
            link.bulk.sync.lock().suspect();
        }
        std::mem::swap(&mut *link.bulk.letters.lock(), &mut out);
        let _ = stream.set_priority(if out.is_empty() { PRIORITY } else { PRIORITY_OF_LETTERS });
        if out.is_empty() {
            link.bulk.sync.lock().poll(&*link.retained, clock::now(), &mut out);
        }
        if out.is_empty() {
            // Whether it was woken or not is all the same.
            let _ = tokio::time::timeout(LOOK_INTERVAL, link.bulk.woken.notified()).await;
            continue;
        }
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(link.bulk.room().await.min(rest.len()));
            // Before it goes: the far side may report it consumed before all of it is written.
            link.bulk.written.fetch_add(piece.len() as u64, Ordering::AcqRel);
            stream.write_all(piece).await?;
            rest = later;
            // Lanes and control run on this thread.
            tokio::task::yield_now().await;
        }
        out.clear();
        out.shrink_to(2 * PIECE_BYTES);
    }
}

/// How often messages may have been lost between brokers, or left out because this one was new.
fn losses(link: &Link) -> u64 {
    let counters = link.replication.counters();
    let counts = [
        &counters.gaps_received,
        &counters.gaps_sent,
        &counters.laps,
        &counters.blocks_hop_limited,
        &counters.blocks_aged,
        &counters.blocks_closed,
        &counters.covers_adopted,
    ];
    counts.iter().map(|counter| counter.value()).sum()
}

/// Reads the far side's bulk stream. Ends only with an error.
pub(super) async fn read(link: &Arc<Link>, mut stream: RecvStream) -> Result<(), LinkError> {
    let lane = link.bulk_lane();
    let mut buffer = BytesMut::new();
    loop {
        let chunk = stream.read_chunk(PIECE_BYTES, true).await?;
        let chunk = chunk.ok_or(LinkError::Stream("the peer ended its bulk stream"))?;
        buffer.extend_from_slice(&chunk.bytes);
        let (mut used, mut is_heard) = (0, false);
        while let Some((frame, length)) = bulk::decode(buffer.get(used..).unwrap_or_default(), FRAME_BYTES_MAX)? {
            if let BulkFrame::Letter(letter) = &frame {
                link.post.relay(link, letter);
            } else {
                let word = link.bulk.sync.lock().receive(&frame, &*link.retained, clock::now())?;
                tell(word);
                is_heard = true;
            }
            used += length;
        }
        let _ = buffer.split_to(used);
        if buffer.is_empty() && buffer.capacity() > 4 * PIECE_BYTES {
            buffer = BytesMut::new();
        }
        if is_heard {
            link.bulk.woken.notify_one();
        }
        while is_heard && link.retained.is_behind() {
            tokio::time::sleep(PATIENCE).await;
        }
        link.consumed(lane, chunk.bytes.len());
        tokio::task::yield_now().await;
    }
}

/// Says what an operator should know of clocks.
fn tell(word: Option<ClockWord>) {
    match word {
        Some(ClockWord::Behind(by)) => {
            warn!(seconds = by.as_secs(), "the peer's clock is ahead of ours: what is retained is stamped by it; set the clocks");
        }
        Some(ClockWord::Absurd(by)) => {
            warn!(days = by.as_secs() / 86_400, "the peer's clock is not believed: what it retains is refused; set the clocks");
        }
        Some(ClockWord::Fine) => debug!("clocks agree"),
        None => {}
    }
}

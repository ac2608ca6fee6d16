//! The frames of a lane stream, and the messages in them.
//!
//! A lane stream speaks of origin-lanes by aliases that its sender gives out ([`LaneFrame::Origin`]). The messages of a
//! [`LaneFrame::Messages`] are one block of one origin-lane. Their encoding says nothing of the stream they travel on, so that a block
//! is encoded once, by its origin, and goes over every link as it is.
//!
//! A message is: by how much its sequence is above the one before; flags (QoS, retain, which fields follow, "same topic as the one
//! before"); of one with [`Picks`], flags of these and the QoS; topic; picks; expiry; stamp of a retained one; raw forwardable MQTT 5 properties; payload. A [`Stub`] stands for a message that nobody
//! in that direction is known to want: its flags say so, and it ends with the topic. Who wants it all the same asks for it ([`LaneFrame::Pull`]).

use super::picks::Picks;
use super::{FrameError, Reader, put_block, put_frame, put_tree, put_varint};
use crate::codec::QoS;
use crate::ids::{BrokerId, Incarnation, LogId, OpenMark, OpenNumber, Stamp};
use crate::limits::{
    FORWARDED_PROPERTIES_BYTES_MAX, LANE_ALIASES_MAX, OPEN_COVERS_BYTES_MAX, PULLED_PER_FRAME_MAX, SEQUENCE_MAX, TOPIC_LEVELS_MAX,
};

const ORIGIN: u8 = 1;
const OPEN: u8 = 2;
const COVERS: u8 = 3;
const CLOSE: u8 = 4;
const MESSAGES: u8 = 5;
const GAP: u8 = 6;
const PULL: u8 = 7;
const PAYLOADS: u8 = 8;
const GONE: u8 = 9;
const FILL: u8 = 10;
const FILLED: u8 = 11;
const SENT: u8 = 12;

const OPEN_NEW: u8 = 1;
const OPEN_MORE: u8 = 2;

const FILLED_LAST: u8 = 1;

const QOS_BITS: u8 = 0b11;
const RETAIN: u8 = 1 << 2;
const HAS_EXPIRY: u8 = 1 << 3;
const HAS_PROPERTIES: u8 = 1 << 4;
const SAME_TOPIC: u8 = 1 << 5;
const HAS_STAMP: u8 = 1 << 6;
const STUB: u8 = 1 << 7;
/// In place of a QoS, which stands in the next byte: there are picks.
const PICKED: u8 = QOS_BITS;
/// What a stub may say of itself besides.
const STUB_FLAGS: u8 = QOS_BITS | SAME_TOPIC | STUB;

/// What the frame around a block's messages adds to them, at most: its header, an ORIGIN before it, and the block's own fields.
pub const FRAME_OVERHEAD_BYTES_MAX: usize = 96;

/// An application message as the mesh carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshMessage<'a> {
    /// Topic name; neither empty nor with a wildcard.
    pub topic: &'a str,
    /// Application data.
    pub payload: &'a [u8],
    /// As published.
    pub qos: QoS,
    /// As published.
    pub retain: bool,
    /// What is left of the message's life [MQTT-3.3.2-6].
    pub expiry_seconds: Option<u32>,
    /// Raw forwardable MQTT 5 properties.
    pub properties: &'a [u8],
    /// Of a retained publish: which of two writes is the later one.
    pub stamp: Option<Stamp>,
    /// Which broker gives it to a member of each share group.
    pub picks: Picks<'a>,
}

/// What is left of a message where nobody is known to want it: its place in the origin-lane, and its topic, by which somebody may find that it
/// is wanted after all. Only of QoS 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub<'a> {
    /// As [`MeshMessage::topic`].
    pub topic: &'a str,
    /// As published.
    pub qos: QoS,
    /// As of the message: a broker that is picked wants it.
    pub picks: Picks<'a>,
}

/// What a block has under one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// All of the message.
    Message(MeshMessage<'a>),
    /// That there is one.
    Stub(Stub<'a>),
}

impl<'a> Entry<'a> {
    /// The message's topic.
    #[must_use]
    pub fn topic(&self) -> &'a str {
        match self {
            Self::Message(message) => message.topic,
            Self::Stub(stub) => stub.topic,
        }
    }

    /// The message's QoS.
    #[must_use]
    pub fn qos(&self) -> QoS {
        match self {
            Self::Message(message) => message.qos,
            Self::Stub(stub) => stub.qos,
        }
    }

    /// The message's picks.
    #[must_use]
    pub fn picks(&self) -> Picks<'a> {
        match self {
            Self::Message(message) => message.picks,
            Self::Stub(stub) => stub.picks,
        }
    }
}

/// "Of this origin and log I know, on this lane, every id up to `cover`."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The origin.
    pub origin: BrokerId,
    /// Its log.
    pub log: LogId,
    /// The highest sequence; never 0.
    pub cover: u64,
}

const COVER_BYTES: usize = 24;

/// One frame of a lane stream.
#[derive(Clone, Copy, Debug)]
pub enum LaneFrame<'a> {
    /// From here on `alias` means this origin and log, on the stream's own lane.
    Origin {
        /// Below [`LANE_ALIASES_MAX`].
        alias: u16,
        /// The origin.
        origin: BrokerId,
        /// Its log.
        log: LogId,
    },
    /// The lane opens: the agreement of a child and its parent.
    Open {
        /// The tree and the agreement.
        mark: OpenMark,
        /// Whether the sender is new to the mesh.
        new: bool,
        /// The first of the sender's covers.
        covers: Covers<'a>,
        /// Whether [`LaneFrame::Covers`] follow; the last one completes the OPEN.
        more: bool,
    },
    /// Covers of the OPEN before.
    Covers {
        /// Some.
        covers: Covers<'a>,
        /// Whether more follow.
        more: bool,
    },
    /// Nothing follows until the next OPEN.
    Close {
        /// The agreement that ends.
        number: OpenNumber,
    },
    /// A block.
    Messages(Block<'a>),
    /// The ids in `from + 1 ..= to` are lost to the sender.
    Gap {
        /// Whose.
        alias: u16,
        /// Known to the receiver.
        from: u64,
        /// Above `from`.
        to: u64,
    },
    /// The sender has stubs for these and wants the messages.
    Pull {
        /// Whose, by the sender's own aliases.
        alias: u16,
        /// Which.
        sequences: Sequences<'a>,
    },
    /// Messages that were asked for.
    Payloads {
        /// Whose.
        alias: u16,
        /// As [`Block::age_ms`].
        age_ms: u64,
        /// The first message's sequence.
        first: u64,
        /// The messages: see [`Messages`]. No stubs.
        body: &'a [u8],
    },
    /// Nobody will ever answer these questions: the origin no longer has the messages.
    Gone {
        /// Whose.
        alias: u16,
        /// Which.
        sequences: Sequences<'a>,
    },
    /// The sender lacks the ids in `from + 1 ..= to`, and a neighbour of its needs them: they are to be sent once more, as [`LaneFrame::Filled`].
    Fill {
        /// Whose, by the sender's own aliases.
        alias: u16,
        /// The neighbour has every id up to here.
        from: u64,
        /// Above `from`.
        to: u64,
        /// So many bytes of messages, and what goes beyond them with the last block.
        bytes_max: u64,
    },
    /// What was asked for so: not for the receiver, which has it or has lost it.
    Filled(Filled<'a>),
    /// What follows was written so long after the sender had taken in the receiver's OPEN, and later.
    Sent {
        /// By the sender's clock, milliseconds.
        after_open_ms: u64,
    },
    /// A frame of a newer version: to be skipped.
    Unknown,
}

/// A part of the answer to a [`LaneFrame::Fill`].
#[derive(Clone, Copy, Debug)]
pub struct Filled<'a> {
    /// The last id that this is about, above [`Block::prev`].
    pub to: u64,
    /// The answer ends here.
    pub is_last: bool,
    /// The messages; without any the ids are lost to everybody.
    pub block: Block<'a>,
}

/// Ascending sequences of one frame, well-formed.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    bytes: &'a [u8],
}

impl Sequences<'_> {
    /// Front to back; at most [`PULLED_PER_FRAME_MAX`].
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let (mut reader, mut before) = (Reader::new(self.bytes), 0_u64);
        std::iter::from_fn(move || {
            let step = if reader.is_empty() { None } else { reader.varint("sequence").ok() }?;
            before = before.checked_add(step)?;
            Some(before)
        })
    }
}

/// A block of messages of one origin-lane.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Whose.
    pub alias: u16,
    /// The id before these, as far as the receiver's link is concerned: what is in between exists nowhere.
    pub prev: u64,
    /// Links that the block has passed, this one included.
    pub hops: u8,
    /// Since the origin published it, until it was written for this link, milliseconds.
    pub age_ms: u64,
    /// The first message's sequence.
    pub first: u64,
    /// The messages: see [`Messages`].
    pub body: &'a [u8],
}

/// The covers of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Covers<'a> {
    bytes: &'a [u8],
}

impl Covers<'_> {
    /// Front to back.
    pub fn iter(&self) -> impl Iterator<Item = Cover> {
        self.bytes.chunks_exact(COVER_BYTES).filter_map(|bytes| {
            let mut reader = Reader::new(bytes);
            Some(Cover {
                origin: BrokerId(reader.u64("origin").ok()?),
                log: LogId(reader.u64("log").ok()?),
                cover: reader.u64("cover").ok()?,
            })
        })
    }
}

/// The frame at the front of `input` and its length; `None` where more bytes are needed.
///
/// # Errors
/// When it is none, or its body is longer than `body_bytes_max`. The messages of a block are not looked at.
pub fn decode(input: &[u8], body_bytes_max: usize) -> Result<Option<(LaneFrame<'_>, usize)>, FrameError> {
    let Some((kind, body, length)) = super::split_frame(input, body_bytes_max)? else { return Ok(None) };
    let mut reader = Reader::new(body);
    let frame = match kind {
        ORIGIN => LaneFrame::Origin {
            alias: alias(&mut reader)?,
            origin: BrokerId(reader.u64("origin")?),
            log: LogId(reader.u64("log")?),
        },
        OPEN => {
            let flags = reader.byte("OPEN flags")?;
            let mark = OpenMark { tree: reader.tree()?, number: number(&mut reader)? };
            let new = flags & OPEN_NEW != 0;
            LaneFrame::Open { mark, new, covers: covers(&mut reader)?, more: flags & OPEN_MORE != 0 }
        }
        COVERS => {
            let flags = reader.byte("COVERS flags")?;
            LaneFrame::Covers { covers: covers(&mut reader)?, more: flags & OPEN_MORE != 0 }
        }
        CLOSE => LaneFrame::Close { number: number(&mut reader)? },
        MESSAGES => {
            let alias = alias(&mut reader)?;
            let block = Block {
                alias,
                prev: reader.varint_max(SEQUENCE_MAX, "previous id")?,
                hops: reader.byte("hops")?,
                age_ms: reader.varint("age")?,
                first: reader.varint_max(SEQUENCE_MAX, "first id")?,
                body: reader.rest(),
            };
            return Ok(Some((LaneFrame::Messages(block), length)));
        }
        GAP => {
            let (alias, from) = (alias(&mut reader)?, reader.varint("gap's begin")?);
            LaneFrame::Gap { alias, from, to: end(&mut reader, from)? }
        }
        PULL => LaneFrame::Pull { alias: alias(&mut reader)?, sequences: sequences(&mut reader)? },
        PAYLOADS => {
            let (alias, age_ms) = (alias(&mut reader)?, reader.varint("age")?);
            let payloads =
                LaneFrame::Payloads { alias, age_ms, first: reader.varint_max(SEQUENCE_MAX, "first id")?, body: reader.rest() };
            return Ok(Some((payloads, length)));
        }
        GONE => LaneFrame::Gone { alias: alias(&mut reader)?, sequences: sequences(&mut reader)? },
        FILL => {
            let (alias, from) = (alias(&mut reader)?, reader.varint("fill's begin")?);
            let (to, bytes_max) = (end(&mut reader, from)?, reader.varint("fill's bytes")?);
            LaneFrame::Fill { alias, from, to, bytes_max }
        }
        FILLED => {
            let (alias, prev) = (alias(&mut reader)?, reader.varint("previous id")?);
            let (to, flags) = (end(&mut reader, prev)?, reader.byte("FILLED flags")?);
            let (hops, age_ms) = (reader.byte("hops")?, reader.varint("age")?);
            let first = reader.varint_max(SEQUENCE_MAX, "first id")?;
            let block = Block { alias, prev, hops, age_ms, first, body: reader.rest() };
            return Ok(Some((LaneFrame::Filled(Filled { to, is_last: flags & FILLED_LAST != 0, block }), length)));
        }
        SENT => LaneFrame::Sent { after_open_ms: reader.varint("time after the OPEN")? },
        _ => return Ok(Some((LaneFrame::Unknown, length))),
    };
    reader.finish()?;
    Ok(Some((frame, length)))
}

/// The last of a range of ids that begins behind `from`.
fn end(reader: &mut Reader<'_>, from: u64) -> Result<u64, FrameError> {
    let to = reader.varint_max(SEQUENCE_MAX, "range's end")?;
    if to > from { Ok(to) } else { Err(FrameError::Value { field: "range's end", value: to }) }
}

/// What is left of a frame: some sequences, each by how much it is above the one before.
fn sequences<'a>(reader: &mut Reader<'a>) -> Result<Sequences<'a>, FrameError> {
    let (bytes, mut before, mut count) = (reader.rest(), 0_u64, 0);
    while count == 0 || !reader.is_empty() {
        let step = reader.varint("sequence")?;
        let is_next = |next: &u64| step > 0 && *next <= SEQUENCE_MAX;
        before = before.checked_add(step).filter(is_next).ok_or(FrameError::Value { field: "sequence's step", value: step })?;
        count += 1;
        if count > PULLED_PER_FRAME_MAX {
            return Err(FrameError::Value { field: "count of sequences", value: count as u64 });
        }
    }
    Ok(Sequences { bytes })
}

fn alias(reader: &mut Reader<'_>) -> Result<u16, FrameError> {
    // In range: the bound is a u16.
    reader.varint_max(u64::from(LANE_ALIASES_MAX) - 1, "alias").map(|alias| alias as u16)
}

fn number(reader: &mut Reader<'_>) -> Result<OpenNumber, FrameError> {
    Ok(OpenNumber {
        count: reader.varint("agreement's count")?,
        child: BrokerId(reader.u64("agreement's child")?),
        incarnation: Incarnation(reader.varint("agreement's incarnation")?),
    })
}

fn covers<'a>(reader: &mut Reader<'a>) -> Result<Covers<'a>, FrameError> {
    let count = reader.varint_max((OPEN_COVERS_BYTES_MAX / COVER_BYTES) as u64, "count of covers")?;
    let covers = reader.bytes(count as usize * COVER_BYTES, "covers").map(|bytes| Covers { bytes })?;
    match covers.iter().find(|cover| cover.cover > SEQUENCE_MAX) {
        Some(Cover { cover, .. }) => Err(FrameError::Value { field: "cover", value: cover }),
        None => Ok(covers),
    }
}

/// Appends an ORIGIN.
pub fn put_origin(out: &mut Vec<u8>, alias: u16, origin: BrokerId, log: LogId) {
    put_frame(out, ORIGIN, |out| {
        put_varint(out, u64::from(alias));
        out.extend_from_slice(&origin.0.to_be_bytes());
        out.extend_from_slice(&log.0.to_be_bytes());
    });
}

/// Appends an OPEN with all `covers`, in as many frames as they need.
pub fn put_open(out: &mut Vec<u8>, mark: &OpenMark, new: bool, covers: &[Cover]) {
    let mut pages = covers.chunks(OPEN_COVERS_BYTES_MAX / COVER_BYTES);
    let first = pages.next().unwrap_or_default();
    let more = |pages: &std::slice::Chunks<'_, Cover>| if pages.len() > 0 { OPEN_MORE } else { 0 };
    put_frame(out, OPEN, |out| {
        out.push(if new { OPEN_NEW } else { 0 } | more(&pages));
        put_tree(out, &mark.tree);
        put_number(out, &mark.number);
        put_covers(out, first);
    });
    while let Some(page) = pages.next() {
        put_frame(out, COVERS, |out| {
            out.push(more(&pages));
            put_covers(out, page);
        });
    }
}

fn put_covers(out: &mut Vec<u8>, covers: &[Cover]) {
    put_varint(out, covers.len() as u64);
    for cover in covers {
        out.extend_from_slice(&cover.origin.0.to_be_bytes());
        out.extend_from_slice(&cover.log.0.to_be_bytes());
        out.extend_from_slice(&cover.cover.to_be_bytes());
    }
}

fn put_number(out: &mut Vec<u8>, number: &OpenNumber) {
    put_varint(out, number.count);
    out.extend_from_slice(&number.child.0.to_be_bytes());
    put_varint(out, number.incarnation.0);
}

/// Appends a CLOSE.
pub fn put_close(out: &mut Vec<u8>, number: &OpenNumber) {
    put_frame(out, CLOSE, |out| put_number(out, number));
}

/// Appends a GAP.
pub fn put_gap(out: &mut Vec<u8>, alias: u16, from: u64, to: u64) {
    put_frame(out, GAP, |out| {
        put_varint(out, u64::from(alias));
        put_varint(out, from);
        put_varint(out, to);
    });
}

/// Appends a FILL for `bytes_max` bytes of the ids in `from + 1 ..= to`.
pub fn put_fill(out: &mut Vec<u8>, alias: u16, (from, to): (u64, u64), bytes_max: u64) {
    put_frame(out, FILL, |out| [u64::from(alias), from, to, bytes_max].into_iter().for_each(|field| put_varint(out, field)));
}

/// Appends the head of a FILLED frame, which `filled.block.body` must follow: it is not copied here.
pub fn put_filled_head(out: &mut Vec<u8>, filled: &Filled<'_>) {
    let Filled { to, is_last, block } = *filled;
    let (before, behind) = ([u64::from(block.alias), block.prev, to], [block.age_ms, block.first]);
    let bytes = before.into_iter().chain(behind).map(super::varint_len).sum::<usize>() + 2 + block.body.len();
    out.push(FILLED);
    put_varint(out, bytes as u64);
    before.into_iter().for_each(|field| put_varint(out, field));
    out.extend_from_slice(&[if is_last { FILLED_LAST } else { 0 }, block.hops]);
    behind.into_iter().for_each(|field| put_varint(out, field));
}

/// Appends a SENT.
pub fn put_sent(out: &mut Vec<u8>, after_open_ms: u64) {
    put_frame(out, SENT, |out| put_varint(out, after_open_ms));
}

/// Appends a PULL for the first [`PULLED_PER_FRAME_MAX`] of `sequences`, which ascend. There is at least one.
pub fn put_pull(out: &mut Vec<u8>, alias: u16, sequences: &[u64]) {
    put_frame(out, PULL, |out| put_sequences(out, alias, sequences));
}

/// Appends a GONE, likewise.
pub fn put_gone(out: &mut Vec<u8>, alias: u16, sequences: &[u64]) {
    put_frame(out, GONE, |out| put_sequences(out, alias, sequences));
}

fn put_sequences(out: &mut Vec<u8>, alias: u16, sequences: &[u64]) {
    put_varint(out, u64::from(alias));
    let mut before = 0;
    for sequence in sequences.iter().take(PULLED_PER_FRAME_MAX) {
        put_varint(out, sequence.saturating_sub(before));
        before = *sequence;
    }
}

/// Appends the head of a PAYLOADS frame, which `body` must follow: it is not copied here.
pub fn put_payloads_head(out: &mut Vec<u8>, alias: u16, age_ms: u64, first: u64, body: &[u8]) {
    let fields = [u64::from(alias), age_ms, first];
    let bytes = fields.into_iter().map(super::varint_len).sum::<usize>() + body.len();
    out.push(PAYLOADS);
    put_varint(out, bytes as u64);
    fields.into_iter().for_each(|field| put_varint(out, field));
}

/// Appends the head of a MESSAGES frame, which `block.body` must follow: it is not copied here.
pub fn put_messages_head(out: &mut Vec<u8>, block: &Block<'_>) {
    let fields = [u64::from(block.alias), block.prev, block.age_ms, block.first];
    let bytes = fields.into_iter().map(super::varint_len).sum::<usize>() + 1 + block.body.len();
    out.push(MESSAGES);
    put_varint(out, bytes as u64);
    put_varint(out, u64::from(block.alias));
    put_varint(out, block.prev);
    out.push(block.hops);
    put_varint(out, block.age_ms);
    put_varint(out, block.first);
}

/// Appends `message` to a block's body. `delta` is its sequence less that of the message before (or less the block's first: 0);
/// `same_topic` says that the message before has the same topic.
#[inline]
pub fn put_message(out: &mut Vec<u8>, delta: u64, message: &MeshMessage<'_>, same_topic: bool) {
    let is_bare = !message.retain && message.expiry_seconds.is_none() && message.stamp.is_none() && message.properties.is_empty();
    if same_topic
        && is_bare
        && message.picks.is_empty()
        && let (Ok(delta @ 0..0x80), Ok(length @ 0..0x80)) = (u8::try_from(delta), u8::try_from(message.payload.len()))
    {
        // The same bytes as below, at once.
        out.reserve(3 + message.payload.len());
        out.extend_from_slice(&[delta, message.qos as u8 | SAME_TOPIC, length]);
        out.extend_from_slice(message.payload);
        return;
    }
    put_varint(out, delta);
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let is_picked = !message.picks.is_empty();
    out.push(
        if is_picked { PICKED } else { message.qos as u8 }
            | flag(message.retain, RETAIN)
            | flag(message.expiry_seconds.is_some(), HAS_EXPIRY)
            | flag(!message.properties.is_empty(), HAS_PROPERTIES)
            | flag(same_topic, SAME_TOPIC)
            | flag(message.stamp.is_some(), HAS_STAMP),
    );
    if is_picked {
        out.push(message.picks.flags(message.qos));
    }
    if !same_topic {
        put_block(out, message.topic.as_bytes());
    }
    if is_picked {
        message.picks.put(out);
    }
    if let Some(seconds) = message.expiry_seconds {
        put_varint(out, u64::from(seconds));
    }
    if let Some(stamp) = message.stamp {
        out.extend_from_slice(&stamp.time.to_be_bytes());
        out.extend_from_slice(&stamp.writer.to_be_bytes());
    }
    if !message.properties.is_empty() {
        put_block(out, message.properties);
    }
    put_block(out, message.payload);
}

/// Appends a stub to a block's body; the rest as in [`put_message`].
pub fn put_stub(out: &mut Vec<u8>, delta: u64, stub: &Stub<'_>, same_topic: bool) {
    put_varint(out, delta);
    let is_picked = !stub.picks.is_empty();
    out.push(if is_picked { PICKED } else { stub.qos as u8 } | STUB | if same_topic { SAME_TOPIC } else { 0 });
    if is_picked {
        out.push(stub.picks.flags(stub.qos));
    }
    if !same_topic {
        put_block(out, stub.topic.as_bytes());
    }
    if is_picked {
        stub.picks.put(out);
    }
}

/// The entries of a block with their sequences, in order. After an error there is no next.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    reader: Reader<'a>,
    first: u64,
    previous: Option<(u64, &'a str)>,
}

impl<'a> Messages<'a> {
    /// The messages of `body`, of which the first has the sequence `first`.
    #[must_use]
    pub fn new(first: u64, body: &'a [u8]) -> Self {
        Self { reader: Reader::new(body), first, previous: None }
    }

    /// Most have the topic of the one before, the sequence after its, and nothing but a short payload: these are told at one look.
    #[inline(always)]
    fn read_short(&mut self) -> Option<(u64, Entry<'a>)> {
        let (previous, topic) = self.previous.filter(|(previous, _)| *previous < SEQUENCE_MAX)?;
        let [1, flags, length @ 0..0x80, rest @ ..] = self.reader.rest() else { return None };
        let qos = QoS::try_from(*flags ^ SAME_TOPIC).ok()?;
        let (payload, rest) = rest.split_at_checked(usize::from(*length))?;
        self.reader = Reader::new(rest);
        let sequence = previous + 1;
        self.previous = Some((sequence, topic));
        let (expiry_seconds, stamp, picks) = (None, None, Picks::NONE);
        let message = MeshMessage { topic, payload, qos, retain: false, expiry_seconds, properties: &[], stamp, picks };
        Some((sequence, Entry::Message(message)))
    }

    // Else every message is moved through memory once more, twice over.
    #[inline(always)]
    fn read(&mut self) -> Result<(u64, Entry<'a>), FrameError> {
        let delta = self.reader.varint("message's step")?;
        let sequence = match self.previous {
            None if delta == 0 => Some(self.first),
            Some((previous, _)) if delta > 0 => previous.checked_add(delta),
            _ => None,
        }
        .filter(|sequence| *sequence <= SEQUENCE_MAX)
        .ok_or(FrameError::Value { field: "message's step", value: delta })?;
        let flags = self.reader.byte("message's flags")?;
        let bad_flags = FrameError::Value { field: "set of message flags", value: u64::from(flags) };
        let is_stub = flags & STUB != 0;
        if is_stub && flags & !STUB_FLAGS != 0 {
            return Err(bad_flags);
        }
        let is_picked = flags & QOS_BITS == PICKED;
        let (qos, picks) = if is_picked {
            Picks::read_flags(&mut self.reader)?
        } else {
            (QoS::try_from(flags & QOS_BITS).map_err(|_| bad_flags)?, Picks::NONE)
        };
        if is_stub && qos == QoS::AtMostOnce {
            return Err(bad_flags);
        }
        let topic = match self.previous {
            Some((_, topic)) if flags & SAME_TOPIC != 0 => topic,
            None if flags & SAME_TOPIC != 0 => return Err(bad_flags),
            _ => topic_name(&mut self.reader)?,
        };
        let picks = if is_picked { picks.read(&mut self.reader)? } else { picks };
        if is_stub {
            self.previous = Some((sequence, topic));
            return Ok((sequence, Entry::Stub(Stub { topic, qos, picks })));
        }
        let expiry_seconds = match flags & HAS_EXPIRY {
            0 => None,
            // In range: the bound is a u32.
            _ => Some(self.reader.varint_max(u64::from(u32::MAX), "message's expiry")? as u32),
        };
        let stamp = match flags & HAS_STAMP {
            0 => None,
            _ => Some(Stamp { time: self.reader.u64("stamp")?, writer: self.reader.u64("stamp's writer")? }),
        };
        let properties = if flags & HAS_PROPERTIES == 0 { &[][..] } else { self.reader.block("message's properties")? };
        if properties.len() > FORWARDED_PROPERTIES_BYTES_MAX {
            return Err(FrameError::Value { field: "length of properties", value: properties.len() as u64 });
        }
        let payload = self.reader.block("payload")?;
        self.previous = Some((sequence, topic));
        let retain = flags & RETAIN != 0;
        let message = MeshMessage { topic, payload, qos, retain, expiry_seconds, properties, stamp, picks };
        Ok((sequence, Entry::Message(message)))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<(u64, Entry<'a>), FrameError>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(short) = self.read_short() {
            return Some(Ok(short));
        }
        if self.reader.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(read)
    }
}

/// A topic name as a publisher's broker has already checked it: what would hurt a subscriber is not taken on trust [MQTT-3.3.2-2].
pub(super) fn topic_name<'a>(reader: &mut Reader<'a>) -> Result<&'a str, FrameError> {
    let topic = reader.text("topic")?;
    // Every byte is looked at, whatever came before: so it is done many at a time.
    let is_forbidden = topic.bytes().fold(false, |found, byte| found | matches!(byte, 0 | b'+' | b'#'));
    let is_deep = || topic.len() >= TOPIC_LEVELS_MAX && topic.bytes().filter(|byte| *byte == b'/').count() >= TOPIC_LEVELS_MAX;
    if topic.is_empty() || topic.len() > usize::from(u16::MAX) || is_forbidden || is_deep() {
        return Err(FrameError::Text("topic"));
    }
    Ok(topic)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::frame::picks::{Pick, PickList};
    use crate::ids::{RootClaim, ShareId, TreeId};

    const BODY_BYTES_MAX: usize = 70_000;

    fn mark() -> OpenMark {
        let root = RootClaim { priority: 0x1234, capacity: 5, id: BrokerId(6), incarnation: Incarnation(7) };
        let number = OpenNumber { count: 300, child: BrokerId(8), incarnation: Incarnation(9) };
        OpenMark { tree: TreeId { epoch: 1, root }, number }
    }

    fn encoded(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn frames_look_like_this() {
        let id = |last: u8| [0, 0, 0, 0, 0, 0, 0, last];
        let cover = Cover { origin: BrokerId(1), log: LogId(2), cover: 3 };
        let block = Block { alias: 2, prev: 1, hops: 4, age_ms: 128, first: 5, body: b"body" };
        let open =
            [&[2, 0x32, 1, 1, 0x12, 0x34, 5][..], &id(6), &[7, 0xac, 0x02], &id(8), &[9, 1], &id(1), &id(2), &id(3)].concat();
        for (written, expected) in [
            (encoded(|out| put_origin(out, 3, BrokerId(1), LogId(2))), [&[1, 17, 3][..], &id(1), &id(2)].concat()),
            (encoded(|out| put_open(out, &mark(), true, &[cover])), open),
            (encoded(|out| put_close(out, &mark().number)), [&[4, 11, 0xac, 0x02][..], &id(8), &[9]].concat()),
            (encoded(|out| put_gap(out, 1, 2, 300)), vec![6, 4, 1, 2, 0xac, 0x02]),
            (encoded(|out| put_pull(out, 1, &[300, 301, 310])), vec![7, 5, 1, 0xac, 0x02, 1, 9]),
            (encoded(|out| put_gone(out, 2, &[7])), vec![9, 2, 2, 7]),
            (encoded(|out| put_fill(out, 1, (2, 300), 9)), vec![10, 5, 1, 2, 0xac, 0x02, 9]),
            (encoded(|out| put_sent(out, 300)), vec![12, 2, 0xac, 0x02]),
            (
                encoded(|out| {
                    put_filled_head(out, &Filled { to: 6, is_last: true, block });
                    out.extend_from_slice(block.body);
                }),
                [&[11, 12, 2, 1, 6, 1, 4, 0x80, 0x01, 5][..], b"body"].concat(),
            ),
            (
                encoded(|out| {
                    put_payloads_head(out, 3, 128, 5, b"body");
                    out.extend_from_slice(b"body");
                }),
                [&[8, 8, 3, 0x80, 0x01, 5][..], b"body"].concat(),
            ),
            (
                encoded(|out| {
                    put_messages_head(out, &block);
                    out.extend_from_slice(block.body);
                }),
                [&[5, 10, 2, 1, 4, 0x80, 0x01, 5][..], b"body"].concat(),
            ),
        ] {
            assert_eq!(written, expected, "{written:02x?}");
            for cut in 0..written.len() {
                assert!(matches!(decode(&written[..cut], BODY_BYTES_MAX), Ok(None)), "{cut} bytes of {written:02x?}");
            }
            let (frame, length) = decode(&written, BODY_BYTES_MAX).unwrap().unwrap();
            assert_eq!(length, written.len());
            let again = encoded(|out| match frame {
                LaneFrame::Origin { alias, origin, log } => put_origin(out, alias, origin, log),
                LaneFrame::Open { mark, new, covers, .. } => put_open(out, &mark, new, &covers.iter().collect::<Vec<_>>()),
                LaneFrame::Close { number } => put_close(out, &number),
                LaneFrame::Gap { alias, from, to } => put_gap(out, alias, from, to),
                LaneFrame::Messages(block) => {
                    put_messages_head(out, &block);
                    out.extend_from_slice(block.body);
                }
                LaneFrame::Pull { alias, sequences } => put_pull(out, alias, &sequences.iter().collect::<Vec<_>>()),
                LaneFrame::Gone { alias, sequences } => put_gone(out, alias, &sequences.iter().collect::<Vec<_>>()),
                LaneFrame::Payloads { alias, age_ms, first, body } => {
                    put_payloads_head(out, alias, age_ms, first, body);
                    out.extend_from_slice(body);
                }
                LaneFrame::Fill { alias, from, to, bytes_max } => put_fill(out, alias, (from, to), bytes_max),
                LaneFrame::Filled(filled) => {
                    put_filled_head(out, &filled);
                    out.extend_from_slice(filled.block.body);
                }
                LaneFrame::Sent { after_open_ms } => put_sent(out, after_open_ms),
                LaneFrame::Covers { .. } | LaneFrame::Unknown => panic!("{written:02x?}"),
            });
            assert_eq!(again, written);
        }
    }

    #[test]
    fn malformed_frames_are_refused() {
        let truncated = FrameError::Truncated;
        for (bytes, expected) in [
            (&[1, 17, 3, 0][..], Ok(())),
            (&[99, 3, 1, 2, 3], Ok(())),
            (&[1, 1, 3], Err(truncated("origin"))),
            (&[1, 2, 0x80, 0x08], Err(FrameError::Value { field: "alias", value: 1_024 })),
            (&[6, 3, 1, 2, 2], Err(FrameError::Value { field: "range's end", value: 2 })),
            (&[6, 4, 1, 2, 3, 4], Err(FrameError::Trailing(1))),
            (&[10, 4, 1, 2, 2, 9], Err(FrameError::Value { field: "range's end", value: 2 })),
            (&[11, 4, 1, 2, 1, 0], Err(FrameError::Value { field: "range's end", value: 1 })),
            (&[11, 4, 1, 2, 3, 0], Err(truncated("hops"))),
            (&[5, 4, 1, 2, 3, 4], Err(truncated("first id"))),
            (&[12, 0], Err(truncated("time after the OPEN"))),
            (&[12, 2, 1, 1], Err(FrameError::Trailing(1))),
            (&[3, 4, 0, 0xff, 0xff, 0x03], Err(FrameError::Value { field: "count of covers", value: 65_535 })),
            (&[3, 2, 0, 1], Err(truncated("covers"))),
            (&[7, 1, 3], Err(truncated("sequence"))),
            (&[7, 3, 3, 1, 0], Err(FrameError::Value { field: "sequence's step", value: 0 })),
            (&[9, 2, 3, 0], Err(FrameError::Value { field: "sequence's step", value: 0 })),
            (&[5, 0xf1, 0xa2, 0x04], Err(FrameError::TooLong { bytes: 70_001, bytes_max: BODY_BYTES_MAX })),
        ] {
            assert_eq!(decode(bytes, BODY_BYTES_MAX).map(drop), expected, "{bytes:02x?}");
        }
    }

    /// What a broker is told of sequences it writes down, and must be able to read again.
    #[test]
    fn sequences_end_before_their_type_does() {
        let block = |prev, first| Block { alias: 1, prev, hops: 1, age_ms: 0, first, body: b"" };
        let cover = |cover| [Cover { origin: BrokerId(1), log: LogId(2), cover }];
        for (sequence, is_taken) in [(SEQUENCE_MAX, true), (SEQUENCE_MAX + 1, false), (u64::MAX, false)] {
            for written in [
                encoded(|out| put_open(out, &mark(), false, &cover(sequence))),
                encoded(|out| put_messages_head(out, &block(0, sequence))),
                encoded(|out| put_messages_head(out, &block(sequence, 1))),
                encoded(|out| put_gap(out, 1, 2, sequence)),
                encoded(|out| put_pull(out, 1, &[1, sequence])),
                encoded(|out| put_gone(out, 1, &[sequence])),
                encoded(|out| put_payloads_head(out, 1, 0, sequence, b"")),
            ] {
                assert_eq!(decode(&written, BODY_BYTES_MAX).is_ok(), is_taken, "{written:02x?}");
            }
        }
    }

    #[test]
    fn many_covers_come_in_pages() {
        let covers: Vec<_> = (1..=6_000).map(|n| Cover { origin: BrokerId(n), log: LogId(n + 1), cover: n + 2 }).collect();
        let written = encoded(|out| put_open(out, &mark(), false, &covers));
        let (mut read, mut rest, mut pages) = (Vec::new(), &written[..], Vec::new());
        while let Some((frame, length)) = decode(rest, BODY_BYTES_MAX).unwrap() {
            let (LaneFrame::Open { covers, more, .. } | LaneFrame::Covers { covers, more }) = frame else { panic!("{frame:?}") };
            read.extend(covers.iter());
            pages.push(more);
            rest = &rest[length..];
        }
        assert_eq!((read, pages, rest.len()), (covers, vec![true, true, false], 0));
    }

    #[test]
    fn malformed_messages_are_refused() {
        let value = |field, value| Err(FrameError::Value { field, value });
        for (body, expected) in [
            (&[0, 1, 1, b't', 0][..], Ok(1)),
            (&[0, 1, 1, b't', 0, 1, 0x21, 0], Ok(2)),
            (&[1, 1, 1, b't', 0], value("message's step", 1)),
            (&[0, 1, 1, b't', 0, 0, 0x21, 0], value("message's step", 0)),
            (&[0, 0x41, 1, b't', 0], Err(FrameError::Truncated("stamp"))),
            (&[0, 0x81, 1, b't'], Ok(1)),
            (&[0, 1, 1, b't', 0, 1, 0xa1], Ok(2)),
            (&[0, 0x81, 1, b't', 0], value("message's step", 0)),
            (&[0, 0x80, 1, b't'], value("set of message flags", 0x80)),
            (&[0, 0x85, 1, b't'], value("set of message flags", 0x85)),
            (&[0, 0xc1, 1, b't'], value("set of message flags", 0xc1)),
            (&[0, 3, 1, 1, b't', 0], value("count of picks", 0)),
            (&[0, 0x83, 0, 1, b't'], value("set of message flags", 0x83)),
            (&[0, 0x21, 0], value("set of message flags", 0x21)),
            (&[0, 1, 0, 0], Err(FrameError::Text("topic"))),
            (&[0, 1, 1, b'#', 0], Err(FrameError::Text("topic"))),
            (&[0, 1, 1, b'+', 0], Err(FrameError::Text("topic"))),
            (&[0, 1, 1, 0, 0], Err(FrameError::Text("topic"))),
            (&[0, 1, 1, 0xff, 0], Err(FrameError::Text("topic"))),
            (&[0, 1, 2, b't'], Err(FrameError::Truncated("topic"))),
            (&[0, 1, 1, b't', 1], Err(FrameError::Truncated("payload"))),
            (&[0, 9, 1, b't', 0xff, 0xff, 0xff, 0xff, 0x10, 0], value("message's expiry", 0x1_0fff_ffff)),
        ] {
            assert_eq!(Messages::new(5, body).try_fold(0, |count, message| message.map(|_| count + 1)), expected, "{body:02x?}");
        }
        for (length, expected) in [(0, Ok(1)), (1, value("length of properties", 65_537))] {
            let properties = vec![0; FORWARDED_PROPERTIES_BYTES_MAX + length];
            let qos = QoS::AtLeastOnce;
            let message = MeshMessage {
                topic: "t",
                payload: b"",
                qos,
                retain: false,
                expiry_seconds: None,
                properties: &properties,
                stamp: None,
                picks: Picks::NONE,
            };
            let body = encoded(|out| put_message(out, 0, &message, false));
            assert_eq!(Messages::new(5, &body).try_fold(0, |count, message| message.map(|_| count + 1)), expected);
        }
        let overflow = [0, 1, 1, b't', 0, 1, 0x21, 0];
        let read: Vec<_> = Messages::new(SEQUENCE_MAX, &overflow).map(|message| message.map(|(sequence, _)| sequence)).collect();
        assert_eq!(read, [Ok(SEQUENCE_MAX), Err(FrameError::Value { field: "message's step", value: 1 })]);
    }

    #[test]
    fn a_topic_has_no_more_levels_than_a_client_may_give_it() {
        for (levels, is_taken) in [(TOPIC_LEVELS_MAX, true), (TOPIC_LEVELS_MAX + 1, false), (usize::from(u16::MAX), false)] {
            let topic = "/".repeat(levels - 1);
            let message = MeshMessage {
                topic: &topic,
                payload: b"",
                qos: QoS::AtMostOnce,
                retain: true,
                expiry_seconds: None,
                properties: &[],
                stamp: None,
                picks: Picks::NONE,
            };
            let body = encoded(|out| put_message(out, 0, &message, false));
            assert_eq!(Messages::new(1, &body).all(|read| read.is_ok()), is_taken, "{levels}");
        }
    }

    fn qos() -> impl Strategy<Value = QoS> {
        prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
    }

    proptest! {
        #[test]
        fn messages_come_back(
            first: u32,
            messages in vec(
                (
                    (1..1_000_u64, 0..3_usize, vec(any::<u8>(), 0..200), qos(), any::<bool>()),
                    (option::of(any::<u32>()), vec(any::<u8>(), 0..5), option::of(any::<(u64, u64)>())),
                    (vec(any::<(u64, u64)>(), 0..4), any::<bool>(), 0..8_u8),
                ),
                1..20,
            ),
        ) {
            let topics = ["a", "a/b", "ümläut/\u{feff}"];
            let (mut body, mut expected, mut sequence, mut before) = (Vec::new(), Vec::new(), u64::from(first), None);
            let lists: Vec<_> = messages.iter().map(|(_, _, (picked, ..))| {
                let mut list = PickList::default();
                picked.iter().for_each(|(share, broker)| list.push(Pick { share: ShareId(*share), broker: BrokerId(*broker) }));
                list
            }).collect();
            for (((step, topic, payload, qos, retain), (expiry_seconds, properties, stamp), (_, only, round)), list) in messages.iter().zip(&lists) {
                let picks = list.pages(*only, *round).next().unwrap_or_default();
                let delta = if before.is_none() { 0 } else { *step };
                sequence += delta;
                let (qos, retain, expiry_seconds) = (*qos, *retain, *expiry_seconds);
                let stamp = stamp.map(|(time, writer)| Stamp { time, writer });
                if payload.is_empty() && qos != QoS::AtMostOnce {
                    let stub = Stub { topic: topics[*topic], qos, picks };
                    put_stub(&mut body, delta, &stub, before == Some(topic));
                    expected.push(Ok((sequence, Entry::Stub(stub))));
                } else {
                    let message = MeshMessage { topic: topics[*topic], payload, qos, retain, expiry_seconds, properties, stamp, picks };
                    put_message(&mut body, delta, &message, before == Some(topic));
                    expected.push(Ok((sequence, Entry::Message(message))));
                }
                before = Some(topic);
            }
            prop_assert_eq!(Messages::new(u64::from(first), &body).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn any_bytes_are_read_without_harm(mut bytes in vec(any::<u8>(), 0..300), kind in 0..=SENT) {
            let _ = decode(&bytes, BODY_BYTES_MAX);
            if let Some(front) = bytes.first_mut() {
                *front = kind;
            }
            if let Ok(Some((LaneFrame::Messages(block), _))) = decode(&bytes, BODY_BYTES_MAX) {
                let _ = Messages::new(block.first, block.body).count();
            }
            // An iterator that has failed is at its end.
            let errors = Messages::new(0, &bytes).filter(Result::is_err).count();
            prop_assert!(errors <= 1);
        }
    }
}

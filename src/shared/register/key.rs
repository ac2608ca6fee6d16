//! Keys and values of registers, and their wire form.
//!
//! What a newer version tells is kept and handed on as it is: both are only bytes after a kind and a length.

use std::sync::Arc;

use crate::frame::{FrameError, Reader, put_block, put_varint};
use crate::ids::{BrokerId, Incarnation, LaneId, LogId, OriginLane};
use crate::limits::SEQUENCE_MAX;

const EVERYTHING: u8 = 0;
const FILTER: u8 = 1;
const SESSION: u8 = 2;
const ECHO: u8 = 3;
const BRIDGE: u8 = 16;
const LOG: u8 = 20;
const ASK_DEALT: u8 = 21;
const DEALT: u8 = 22;
const LEAVING: u8 = 23;
const REPLICA: u8 = 24;
const WILL: u8 = 25;

/// Set in the kind of a key that is taken out.
const REMOVED: u8 = 0x80;

/// What an entry of a register is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Every topic is wanted, whatever filters there are: they were too many to be told.
    Everything,
    /// A topic filter to which somebody there is subscribed, as it was subscribed: with its `$share/` and group.
    Filter(Arc<str>),
    /// A client's session, which is there.
    Session(Arc<str>),
    /// Another member's register.
    Echo(BrokerId),
    /// A bridge of this name that the broker could serve.
    Bridge(Arc<str>),
    /// The broker's own log of QoS 1 and 2.
    Log,
    /// Others are to tell how far they have dealt with that log.
    AskDealt,
    /// A lane of another's log.
    Dealt(OriginLane),
    /// The broker is drained: it takes no clients and no sessions.
    Leaving,
    /// Where the replicas of the broker's sessions are.
    Replica,
    /// The will of a client of that other broker, which could not be reached: it is published, or its client has come back. What the other has of it is void.
    Will(BrokerId, Arc<str>),
    /// Of a newer version.
    Unknown(u8, Arc<[u8]>),
}

/// Since when a client's session is a broker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// [`Stamp::time`](crate::ids::Stamp::time) of the CONNECT that made it so; 0: of an earlier version.
    pub stamp: u64,
}

/// How far another member's register was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Echo {
    /// Its life.
    pub incarnation: Incarnation,
    /// The version of the last delta that asked for an echo.
    pub version: u64,
}

/// How many members a share group has at a broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareMembers {
    /// With a connection.
    pub connected: u32,
    /// Whose sessions outlive their connections.
    pub away: u32,
}

/// What a broker says of a bridge that it could serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeClaim {
    /// Lower is likelier to serve it.
    pub priority: u16,
    /// Since when it serves it, milliseconds since the Unix epoch; 0: it does not.
    pub since_ms: u64,
    /// Whether it has the bridge's session, of the time when it served it.
    pub has_session: bool,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// That the key is there.
    Present,
    /// Of [`Key::AskDealt`]: clients wait for the answer.
    Urgent,
    /// Of [`Key::Leaving`]: no session is left there, and nothing of its log that others lack.
    Empty,
    /// Of a [`Key::Filter`] of a share group.
    Members(ShareMembers),
    /// Of [`Key::Session`]; of [`Key::Will`], the claim of the connection that brought it.
    Claim(Claim),
    /// Of [`Key::Echo`].
    Echo(Echo),
    /// Of [`Key::Bridge`].
    Bridge(BridgeClaim),
    /// Of [`Key::Log`].
    Log(LogId),
    /// Of [`Key::Replica`].
    Replica(BrokerId),
    /// Of [`Key::Dealt`]: of all ids up to this one, what is for anybody at the broker has been given to them, on disk where there is one.
    Dealt(u64),
    /// Of a newer version.
    Unknown(Arc<[u8]>),
}

impl Key {
    fn kind(&self) -> u8 {
        match self {
            Self::Everything => EVERYTHING,
            Self::Filter(_) => FILTER,
            Self::Session(_) => SESSION,
            Self::Echo(_) => ECHO,
            Self::Bridge(_) => BRIDGE,
            Self::Log => LOG,
            Self::AskDealt => ASK_DEALT,
            Self::Dealt(_) => DEALT,
            Self::Leaving => LEAVING,
            Self::Replica => REPLICA,
            Self::Will(..) => WILL,
            Self::Unknown(kind, _) => *kind,
        }
    }

    fn put_bytes(&self, out: &mut Vec<u8>) {
        match self {
            Self::Filter(text) | Self::Session(text) | Self::Bridge(text) => put_block(out, text.as_bytes()),
            Self::Everything | Self::Log | Self::AskDealt | Self::Leaving | Self::Replica => put_block(out, &[]),
            Self::Echo(broker) => put_block(out, &broker.0.to_be_bytes()),
            Self::Dealt(OriginLane { origin, log, lane }) => {
                put_block(out, &[&origin.0.to_be_bytes()[..], &log.0.to_be_bytes(), &[lane.0]].concat());
            }
            Self::Will(broker, client_id) => put_block(out, &[&broker.0.to_be_bytes()[..], client_id.as_bytes()].concat()),
            Self::Unknown(_, bytes) => put_block(out, bytes),
        }
    }

    /// Bytes of the key itself.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Filter(text) | Self::Session(text) | Self::Bridge(text) => text.len(),
            Self::Everything | Self::Log | Self::AskDealt | Self::Leaving | Self::Replica => 0,
            Self::Echo(_) => size_of::<u64>(),
            Self::Dealt(_) => 2 * size_of::<u64>() + 1,
            Self::Will(_, client_id) => size_of::<u64>() + client_id.len(),
            Self::Unknown(_, bytes) => bytes.len(),
        }
    }

    fn read(kind: u8, bytes: &[u8]) -> Result<Self, FrameError> {
        let text = || std::str::from_utf8(bytes).map(Arc::from).map_err(|_| FrameError::Text("register key"));
        Ok(match kind {
            EVERYTHING if bytes.is_empty() => Self::Everything,
            FILTER => Self::Filter(text()?),
            BRIDGE => Self::Bridge(text()?),
            SESSION => Self::Session(text()?),
            ECHO => Self::Echo(BrokerId(u64::from_be_bytes(bytes.try_into().map_err(|_| FrameError::Truncated("register key"))?))),
            LOG if bytes.is_empty() => Self::Log,
            ASK_DEALT if bytes.is_empty() => Self::AskDealt,
            DEALT => Self::Dealt(read_origin_lane(bytes)?),
            LEAVING if bytes.is_empty() => Self::Leaving,
            REPLICA if bytes.is_empty() => Self::Replica,
            WILL => read_will(bytes)?,
            _ => Self::Unknown(kind, bytes.into()),
        })
    }
}

impl Value {
    fn put_bytes(&self, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        match self {
            Self::Present => {}
            Self::Urgent | Self::Empty => bytes.push(1),
            Self::Members(members) => {
                put_varint(&mut bytes, members.connected.into());
                put_varint(&mut bytes, members.away.into());
            }
            Self::Claim(claim) => put_varint(&mut bytes, claim.stamp),
            Self::Echo(echo) => {
                put_varint(&mut bytes, echo.incarnation.0);
                put_varint(&mut bytes, echo.version);
            }
            Self::Bridge(claim) => {
                put_varint(&mut bytes, claim.priority.into());
                put_varint(&mut bytes, claim.since_ms);
                bytes.push(u8::from(claim.has_session));
            }
            Self::Log(log) => bytes.extend_from_slice(&log.0.to_be_bytes()),
            Self::Replica(broker) => bytes.extend_from_slice(&broker.0.to_be_bytes()),
            Self::Dealt(sequence) => put_varint(&mut bytes, *sequence),
            Self::Unknown(raw) => bytes.extend_from_slice(raw),
        }
        put_block(out, &bytes);
    }

    fn read(key: &Key, bytes: &[u8]) -> Self {
        let known = match key {
            Key::Session(_) | Key::Will(..) => read_claim(bytes).ok().map(Self::Claim),
            Key::Echo(_) => read_echo(bytes).ok().map(Self::Echo),
            Key::Filter(_) if !bytes.is_empty() => read_members(bytes).ok().map(Self::Members),
            Key::Bridge(_) => read_bridge(bytes).ok().map(Self::Bridge),
            Key::Log => bytes.try_into().ok().map(|bytes| Self::Log(LogId(u64::from_be_bytes(bytes)))),
            Key::Replica => bytes.try_into().ok().map(|bytes| Self::Replica(BrokerId(u64::from_be_bytes(bytes)))),
            Key::Dealt(_) => read_dealt(bytes).ok().map(Self::Dealt),
            Key::AskDealt if bytes == [1] => Some(Self::Urgent),
            Key::Leaving if bytes == [1] => Some(Self::Empty),
            Key::Everything | Key::AskDealt | Key::Leaving | Key::Filter(_) | Key::Unknown(..) => {
                bytes.is_empty().then_some(Self::Present)
            }
        };
        known.unwrap_or_else(|| Self::Unknown(bytes.into()))
    }
}

fn read_origin_lane(bytes: &[u8]) -> Result<OriginLane, FrameError> {
    let mut reader = Reader::new(bytes);
    let (origin, log) = (BrokerId(reader.u64("origin")?), LogId(reader.u64("log")?));
    let lane = LaneId(reader.byte("lane")?);
    reader.finish()?;
    Ok(OriginLane { origin, log, lane })
}

fn read_will(bytes: &[u8]) -> Result<Key, FrameError> {
    let mut reader = Reader::new(bytes);
    let broker = BrokerId(reader.u64("broker")?);
    let client_id = std::str::from_utf8(reader.rest()).map_err(|_| FrameError::Text("register key"))?;
    Ok(Key::Will(broker, Arc::from(client_id)))
}

fn read_dealt(bytes: &[u8]) -> Result<u64, FrameError> {
    let mut reader = Reader::new(bytes);
    let sequence = reader.varint_max(SEQUENCE_MAX, "sequence")?;
    reader.finish()?;
    Ok(sequence)
}

fn read_members(bytes: &[u8]) -> Result<ShareMembers, FrameError> {
    let mut reader = Reader::new(bytes);
    let mut number = || reader.varint_max(u32::MAX.into(), "share members").map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let members = ShareMembers { connected: number()?, away: number()? };
    reader.finish()?;
    Ok(members)
}

fn read_claim(bytes: &[u8]) -> Result<Claim, FrameError> {
    let mut reader = Reader::new(bytes);
    let claim = Claim { stamp: reader.varint("stamp of a claim")? };
    reader.finish()?;
    Ok(claim)
}

fn read_echo(bytes: &[u8]) -> Result<Echo, FrameError> {
    let mut reader = Reader::new(bytes);
    let echo = Echo { incarnation: Incarnation(reader.varint("incarnation")?), version: reader.varint("version")? };
    reader.finish()?;
    Ok(echo)
}

fn read_bridge(bytes: &[u8]) -> Result<BridgeClaim, FrameError> {
    let mut reader = Reader::new(bytes);
    let priority = reader.varint("priority of a bridge")?;
    let priority = u16::try_from(priority).map_err(|_| FrameError::Value { field: "priority of a bridge", value: priority })?;
    let since_ms = reader.varint("since when a bridge is served")?;
    let has_session = match reader.byte("session of a bridge")? {
        0 => false,
        1 => true,
        other => return Err(FrameError::Value { field: "session of a bridge", value: other.into() }),
    };
    reader.finish()?;
    Ok(BridgeClaim { priority, since_ms, has_session })
}

/// Appends what becomes of an entry.
pub(super) fn put_change(out: &mut Vec<u8>, key: &Key, value: Option<&Value>) {
    out.push(key.kind() | if value.is_none() { REMOVED } else { 0 });
    key.put_bytes(out);
    if let Some(value) = value {
        value.put_bytes(out);
    }
}

/// Reads what [`put_change`] wrote.
pub(super) fn read_change(reader: &mut Reader<'_>) -> Result<(Key, Option<Value>), FrameError> {
    let kind = reader.byte("register operation")?;
    let key = Key::read(kind & !REMOVED, reader.block("register key")?)?;
    let value = if kind & REMOVED == 0 { Some(Value::read(&key, reader.block("register value")?)) } else { None };
    Ok((key, value))
}

/// Appends a key.
pub(super) fn put_key(out: &mut Vec<u8>, key: &Key) {
    put_change(out, key, None);
}

/// Appends entries, as a copy has them.
pub(super) fn put_entries<'a>(out: &mut Vec<u8>, entries: impl Iterator<Item = (&'a Key, &'a Value)>) {
    entries.for_each(|(key, value)| put_change(out, key, Some(value)));
}

/// Reads one key and nothing else; none of no bytes.
pub(super) fn read_key(bytes: &[u8]) -> Result<Option<Key>, FrameError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new(bytes);
    let (key, _) = read_change(&mut reader)?;
    reader.finish()?;
    Ok(Some(key))
}

/// Reads entries to the end.
pub(super) fn read_entries(bytes: &[u8]) -> Result<Vec<(Key, Value)>, FrameError> {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    while !reader.is_empty() {
        let (key, value) = read_change(&mut reader)?;
        entries.push((key, value.ok_or(FrameError::Value { field: "entry of a register", value: 0 })?));
    }
    Ok(entries)
}

/// An entry as it travels, which is also what stands for it in the sum of its register.
pub(super) fn wire(key: &Key, value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_change(&mut bytes, key, Some(value));
    bytes
}

//! Deltas, and what two neighbours say to each other about registers.

use std::time::Duration;

use super::key::{put_change, put_entries, put_key, read_change, read_entries, read_key};
use super::{Key, RegisterError, Value};
use crate::frame::{FrameError, Reader, put_varint};
use crate::ids::{BrokerId, Incarnation};
use crate::limits::{REGISTER_DELTA_BYTES_MAX, REGISTER_HAVES_MAX};

const WHOLE: u8 = 1;
const ECHO: u8 = 2;

/// What a delta says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHead {
    /// Whose register.
    pub owner: BrokerId,
    /// Of which of its lives.
    pub incarnation: Incarnation,
    /// Deltas of that life so far, this one counted.
    pub version: u64,
    /// All that the owner had to say at its beginning has been said by now. Stays so.
    pub whole: bool,
    /// The owner waits until others have told that they took it in.
    pub echo: bool,
    /// Entries after this delta.
    pub entries: u64,
    /// Bytes of all of them as they travel.
    pub bytes: u64,
    /// What they add up to.
    pub digest: [u8; 32],
}

impl DeltaHead {
    /// Of one owner the later is greater.
    #[must_use]
    pub fn place(&self) -> (Incarnation, u64) {
        (self.incarnation, self.version)
    }

    /// The front of a delta's wire form.
    ///
    /// # Errors
    /// What is none.
    pub fn read(wire: &[u8]) -> Result<Self, RegisterError> {
        Self::decode(&mut Reader::new(wire)).map_err(RegisterError::from)
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let (owner, incarnation) = (BrokerId(reader.u64("owner")?), Incarnation(reader.varint("incarnation")?));
        let version = reader.varint_max(u64::MAX / 2, "version")?;
        let flags = reader.byte("delta flags")?;
        if flags & !(WHOLE | ECHO) != 0 || version == 0 {
            return Err(FrameError::Value { field: "delta", value: u64::from(flags) });
        }
        let (entries, bytes) = (reader.varint("number of entries")?, reader.varint("bytes of entries")?);
        let digest = reader.array("digest")?;
        Ok(Self { owner, incarnation, version, whole: flags & WHOLE != 0, echo: flags & ECHO != 0, entries, bytes, digest })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.owner.0.to_be_bytes());
        put_varint(out, self.incarnation.0);
        put_varint(out, self.version);
        out.push(if self.whole { WHOLE } else { 0 } | if self.echo { ECHO } else { 0 });
        put_varint(out, self.entries);
        put_varint(out, self.bytes);
        out.extend_from_slice(&self.digest);
    }
}

/// One step of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Which.
    pub head: DeltaHead,
    /// What becomes of entries, each named once.
    pub changes: Vec<(Key, Option<Value>)>,
}

impl Delta {
    /// The wire form: what the owner signs.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.head.encode(&mut out);
        put_varint(&mut out, self.changes.len() as u64);
        self.changes.iter().for_each(|(key, value)| put_change(&mut out, key, value.as_ref()));
        out
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// What is none, or is larger than one can be.
    pub fn decode(wire: &[u8]) -> Result<Self, RegisterError> {
        if wire.len() > REGISTER_DELTA_BYTES_MAX {
            return Err(FrameError::TooLong { bytes: wire.len() as u64, bytes_max: REGISTER_DELTA_BYTES_MAX }.into());
        }
        let mut reader = Reader::new(wire);
        let head = DeltaHead::decode(&mut reader)?;
        let count = reader.varint("register operations")?;
        let mut changes = Vec::new();
        for _ in 0..count {
            // As many as bytes allow: the first that is missing ends it.
            changes.push(read_change(&mut reader)?);
        }
        reader.finish()?;
        Ok(Self { head, changes })
    }
}

/// Why a delta comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaMode {
    /// It continues what the receiver has.
    Next,
    /// It begins or ends a copy, and says how large that is and what it must add up to.
    Copy,
}

/// How far a neighbour has a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Have {
    /// Whose.
    pub owner: BrokerId,
    /// Of which life.
    pub incarnation: Incarnation,
    /// Up to which version.
    pub version: u64,
    /// How long nothing was heard of the owner itself: it is not made younger by being told of.
    pub age: Duration,
}

impl Have {
    /// Appends the wire form of a list.
    pub fn encode_all(haves: &[Self], out: &mut Vec<u8>) {
        put_varint(out, haves.len() as u64);
        for have in haves {
            out.extend_from_slice(&have.owner.0.to_be_bytes());
            put_varint(out, have.incarnation.0);
            put_varint(out, have.version);
            put_varint(out, have.age.as_secs());
        }
    }

    /// Reads a list.
    ///
    /// # Errors
    /// What is none, or is longer than one can be.
    pub fn decode_all(wire: &[u8]) -> Result<Vec<Self>, RegisterError> {
        let mut reader = Reader::new(wire);
        let count = reader.varint_max(REGISTER_HAVES_MAX as u64, "registers")?;
        let mut haves = Vec::new();
        for _ in 0..count {
            haves.push(Self {
                owner: BrokerId(reader.u64("owner")?),
                incarnation: Incarnation(reader.varint("incarnation")?),
                version: reader.varint_max(u64::MAX / 2, "version")?,
                age: Duration::from_secs(reader.varint_max(u32::MAX.into(), "age")?),
            });
        }
        reader.finish()?;
        Ok(haves)
    }
}

/// Asks a neighbour for what it has of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Whose.
    pub owner: BrokerId,
    /// Of which life.
    pub incarnation: Incarnation,
    /// What is behind this version.
    pub after: u64,
    /// Of a copy, what is behind this key.
    pub behind: Option<Key>,
    /// At most so many bytes, or one delta, or one entry.
    pub bytes: u32,
}

impl Want {
    /// [`Self::behind`] as it travels: empty if there is none.
    #[must_use]
    pub fn encode_behind(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.behind.iter().for_each(|key| put_key(&mut out, key));
        out
    }

    /// Reads [`Self::behind`].
    ///
    /// # Errors
    /// What is no key.
    pub fn decode_behind(wire: &[u8]) -> Result<Option<Key>, RegisterError> {
        Ok(read_key(wire)?)
    }
}

/// The end of an answer to a [`Want`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// As asked.
    pub owner: BrokerId,
    /// As asked.
    pub incarnation: Incarnation,
    /// The version that the answerer has; 0 if it has nothing of that life.
    pub version: u64,
    /// Part of a copy, for who is too far behind. None: the deltas before this were the answer.
    pub page: Option<Page>,
}

/// Part of a copy: entries in the order of their keys, as they are at [`End::version`]. Nobody has signed them: the head of the delta that comes with
/// the first part tells how much they can be, and that with the last whether they are what their owner said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// There are no more.
    pub last: bool,
    /// They.
    pub entries: Vec<(Key, Value)>,
}

impl Page {
    /// The entries as they travel.
    #[must_use]
    pub fn encode_entries(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_entries(&mut out, self.entries.iter().map(|(key, value)| (key, value)));
        out
    }

    /// Reads the entries.
    ///
    /// # Errors
    /// What is none.
    pub fn decode_entries(wire: &[u8]) -> Result<Vec<(Key, Value)>, RegisterError> {
        Ok(read_entries(wire)?)
    }
}

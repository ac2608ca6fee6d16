//! The frames of a link's control stream: the handshake, then BPDUs, hellos, records, registers and credit. A hello travels as a datagram where the
//! path takes one, in the same form.
//!
//! What a broker says of itself and others pass on is signed by it: its claim to the root of a tree, its record. A certificate travels
//! once a link and direction, into a numbered slot; signatures name the slot. The one who shows certificates chooses the slots.
//!
//! The handshake: the dialler greets; the acceptor greets and tells what it knows of the dialler's lives; the dialler tells likewise and
//! that its life is settled; so does the acceptor. Then everything else may be said.

use super::trace::{Answer, Probe};
use super::{FrameError, Reader, put_block, put_frame, put_tree, put_varint, split_frame};
use crate::ids::{BrokerId, Incarnation, LaneId, TreeId};
use crate::limits::{
    BROKERS_MAX, CERTIFICATE_CHAIN_BYTES_MAX, CERTIFICATE_SLOTS, CONTROL_FRAME_BYTES_MAX, HELLO_TIME_MAX, LANES_MAX,
    RECORD_BYTES_MAX, REGISTER_DELTA_BYTES_MAX, SIGNATURE_BYTES_MAX,
};
use crate::stp::Bpdu;

/// The protocol that this program speaks, and the oldest that it still understands.
pub const VERSION: u8 = 1;
/// See [`VERSION`].
pub const VERSION_MIN: u8 = 1;

const GREETING: u8 = 1;
const KNOWN: u8 = 2;
const SETTLED: u8 = 3;
const BPDU: u8 = 4;
const HELLO: u8 = 5;
const RECORD: u8 = 6;
const CREDIT: u8 = 7;
const CERTIFICATE: u8 = 8;
const CLAIM: u8 = 9;
const REGISTER_DELTA: u8 = 10;
const REGISTER_HAVE: u8 = 11;
const REGISTER_WANT: u8 = 12;
const REGISTER_END: u8 = 13;
const BEHIND: u8 = 14;
const TRACE: u8 = 16;
const TRACED: u8 = 17;

const REQUEST_EPOCH: u8 = 1;
const HAS_DISTANCE: u8 = 2;
const HAS_EPOCH_HELD: u8 = 4;

/// Longest name of a mesh or of a broker, bytes.
const NAME_BYTES_MAX: usize = 255;
/// See [`HELLO_TIME_MAX`].
const HELLO_MS_MAX: u32 = HELLO_TIME_MAX.as_millis() as u32;

/// What each end says first: who it is and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// The oldest protocol that it understands.
    pub version_min: u8,
    /// The newest.
    pub version_max: u8,
    /// Bits of optional abilities; what both have is used. None is defined yet.
    pub features: u64,
    /// The mesh.
    pub mesh: &'a str,
    /// The broker.
    pub id: BrokerId,
    /// Its name; `id` is derived from it.
    pub name: &'a str,
    /// Random, one a process: who hears its own has dialled itself.
    pub instance: u64,
    /// Lanes per QoS class.
    pub lanes: u8,
    /// How often it will say hello, milliseconds, at least 1.
    pub hello_ms: u32,
}

/// A signature, and where the certificate of its key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal<'a> {
    /// Of the certificate, below [`CERTIFICATE_SLOTS`].
    pub slot: u16,
    /// A signature scheme of TLS (RFC 8446 section 4.2.3).
    pub scheme: u16,
    /// Over what `mesh::proof` says.
    pub signature: &'a [u8],
}

/// A broker's record with all that proves it, where no certificate has been shown before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness<'a> {
    /// As in [`ControlFrame::Certificate`].
    pub chain: &'a [u8],
    /// As in [`Seal`].
    pub scheme: u16,
    /// As in [`Seal`].
    pub signature: &'a [u8],
    /// The record.
    pub record: &'a [u8],
}

/// One frame of the control stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFrame<'a> {
    /// The first of the handshake.
    Greeting(Greeting<'a>),
    /// What the sender knows of the receiver's lives, so that it can settle its own.
    Known {
        /// The highest one; 0: none.
        incarnation: Incarnation,
        /// The record in which that life tells of itself, if the sender has it.
        witness: Option<Witness<'a>>,
    },
    /// The sender's life is settled; the handshake is over.
    Settled {
        /// It.
        incarnation: Incarnation,
    },
    /// The tree.
    Bpdu(Bpdu),
    /// A sign of life.
    Hello {
        /// Counts the sender's hellos of this link, from 1.
        number: u64,
        /// The highest number that the sender has heard; 0: none.
        echo: u64,
    },
    /// A certificate that signatures name from now on.
    Certificate {
        /// Below [`CERTIFICATE_SLOTS`]; what was there is forgotten.
        slot: u16,
        /// X.509 certificates, each after its length: the broker's own, then those between it and the authority.
        chain: &'a [u8],
    },
    /// The root of a tree claims it. It comes before the first BPDU that names the tree, and once more when the root has a new certificate.
    Claim {
        /// The tree.
        tree: TreeId,
        /// Of the root.
        seal: Seal<'a>,
    },
    /// What a broker tells of itself.
    Record {
        /// Of that broker.
        seal: Seal<'a>,
        /// In the form of `shared`.
        record: &'a [u8],
    },
    /// The sender has consumed so much of a lane since the link came up.
    Credit {
        /// The lane that the receiver of this writes.
        lane: LaneId,
        /// Bytes.
        consumed: u64,
    },
    /// One step of a broker's register.
    RegisterDelta {
        /// It ends a copy.
        copy: bool,
        /// Of that broker.
        seal: Seal<'a>,
        /// In the form of `shared`.
        delta: &'a [u8],
    },
    /// Which registers the sender has, and how far.
    RegisterHave {
        /// In the form of `shared`.
        list: &'a [u8],
    },
    /// The sender wants what comes behind.
    RegisterWant {
        /// Whose register.
        owner: BrokerId,
        /// Of which life.
        incarnation: Incarnation,
        /// Up to which version it has it.
        after: u64,
        /// How many bytes, at most.
        bytes: u32,
        /// Of a copy, the last key that came, in the form of `shared`; empty: none.
        behind: &'a [u8],
    },
    /// That was all that answers a [`ControlFrame::RegisterWant`].
    RegisterEnd {
        /// As asked.
        owner: BrokerId,
        /// As asked.
        incarnation: Incarnation,
        /// How far the sender has the register; 0: it has nothing of that life.
        version: u64,
        /// Whether it is part of a copy, and of a copy whether it is the last.
        page: Option<bool>,
        /// Of a copy, entries in the form of `shared`.
        entries: &'a [u8],
    },
    /// Who is behind the sender, seen from the receiver of this: the sender itself and whomever it reaches by other tree ports. It takes the place
    /// of what was said before.
    Behind {
        /// `None`: the sender does not know yet.
        members: Option<Members<'a>>,
    },
    /// Which way a message would go.
    Trace(Probe<'a>),
    /// A broker says it.
    Traced(Answer<'a>),
    /// A frame of a newer version: to be skipped.
    Unknown,
}

/// The brokers of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members<'a> {
    bytes: &'a [u8],
}

impl<'a> Members<'a> {
    /// These; `buffer` is where they are kept.
    pub fn new(members: impl IntoIterator<Item = BrokerId>, buffer: &'a mut Vec<u8>) -> Self {
        buffer.clear();
        members.into_iter().take(BROKERS_MAX).for_each(|member| buffer.extend_from_slice(&member.0.to_be_bytes()));
        Self { bytes: buffer }
    }

    /// Front to back; at most [`BROKERS_MAX`].
    pub fn iter(&self) -> impl Iterator<Item = BrokerId> {
        let (ids, _) = self.bytes.as_chunks();
        ids.iter().map(|id| BrokerId(u64::from_be_bytes(*id)))
    }
}

impl<'a> ControlFrame<'a> {
    /// Appends the wire form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Greeting(greeting) => put_frame(out, GREETING, |out| greeting.encode(out)),
            Self::Known { incarnation, witness } => put_frame(out, KNOWN, |out| {
                put_varint(out, incarnation.0);
                if let Some(witness) = witness {
                    witness.encode(out);
                }
            }),
            Self::Settled { incarnation } => put_frame(out, SETTLED, |out| put_varint(out, incarnation.0)),
            Self::Bpdu(bpdu) => put_frame(out, BPDU, |out| put_bpdu(out, bpdu)),
            Self::Hello { number, echo } => put_frame(out, HELLO, |out| {
                put_varint(out, *number);
                put_varint(out, *echo);
            }),
            Self::Certificate { slot, chain } => put_frame(out, CERTIFICATE, |out| {
                out.extend_from_slice(&slot.to_be_bytes());
                out.extend_from_slice(chain);
            }),
            Self::Claim { tree, seal } => put_frame(out, CLAIM, |out| {
                put_tree(out, tree);
                seal.encode(out);
            }),
            Self::Record { seal, record } => put_frame(out, RECORD, |out| {
                seal.encode(out);
                out.extend_from_slice(record);
            }),
            Self::Credit { lane, consumed } => put_frame(out, CREDIT, |out| {
                out.push(lane.0);
                put_varint(out, *consumed);
            }),
            Self::RegisterDelta { copy, seal, delta } => put_frame(out, REGISTER_DELTA, |out| {
                out.push(u8::from(*copy));
                seal.encode(out);
                out.extend_from_slice(delta);
            }),
            Self::RegisterHave { list } => put_frame(out, REGISTER_HAVE, |out| out.extend_from_slice(list)),
            Self::RegisterWant { owner, incarnation, after, bytes, behind } => put_frame(out, REGISTER_WANT, |out| {
                put_register(out, *owner, *incarnation);
                put_varint(out, *after);
                put_varint(out, u64::from(*bytes));
                out.extend_from_slice(behind);
            }),
            Self::RegisterEnd { owner, incarnation, version, page, entries } => put_frame(out, REGISTER_END, |out| {
                put_register(out, *owner, *incarnation);
                put_varint(out, *version);
                out.push(page.map_or(0, |last| 1 + u8::from(last)));
                out.extend_from_slice(entries);
            }),
            Self::Behind { members } => put_frame(out, BEHIND, |out| {
                out.push(u8::from(members.is_some()));
                out.extend_from_slice(members.map_or(&[], |members| members.bytes));
            }),
            Self::Trace(probe) => put_frame(out, TRACE, |out| probe.encode(out)),
            Self::Traced(answer) => put_frame(out, TRACED, |out| answer.encode(out)),
            Self::Unknown => {}
        }
    }

    /// The frame at the front of `input` and its whole length; `None` where more bytes are needed.
    ///
    /// # Errors
    /// What mends itself with no more bytes: a frame that is too long, a field that is not what it should be.
    pub fn decode(input: &'a [u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let Some((kind, body, length)) = split_frame(input, CONTROL_FRAME_BYTES_MAX)? else { return Ok(None) };
        let mut reader = Reader::new(body);
        let incarnation = |reader: &mut Reader<'_>| reader.varint("incarnation").map(Incarnation);
        let frame = match kind {
            GREETING => {
                // A newer version may greet with more than we know of.
                let greeting = Greeting::decode(&mut reader)?;
                return Ok(Some((Self::Greeting(greeting), length)));
            }
            KNOWN => {
                let incarnation = incarnation(&mut reader)?;
                let witness = if reader.is_empty() { None } else { Some(Witness::decode(&mut reader)?) };
                Self::Known { incarnation, witness }
            }
            SETTLED => Self::Settled { incarnation: incarnation(&mut reader)? },
            BPDU => Self::Bpdu(read_bpdu(&mut reader)?),
            HELLO => Self::Hello { number: reader.varint("hello")?, echo: reader.varint("echo")? },
            CERTIFICATE => {
                let slot = read_slot(&mut reader)?;
                Self::Certificate { slot, chain: take_rest(&mut reader, CERTIFICATE_CHAIN_BYTES_MAX, "certificate length")? }
            }
            CLAIM => Self::Claim { tree: reader.tree()?, seal: Seal::decode(&mut reader)? },
            RECORD => {
                let seal = Seal::decode(&mut reader)?;
                Self::Record { seal, record: take_rest(&mut reader, RECORD_BYTES_MAX, "record length")? }
            }
            REGISTER_DELTA => {
                let (copy, seal) = (read_bool(&mut reader, "copy")?, Seal::decode(&mut reader)?);
                Self::RegisterDelta { copy, seal, delta: take_rest(&mut reader, REGISTER_DELTA_BYTES_MAX, "delta length")? }
            }
            REGISTER_HAVE => Self::RegisterHave { list: take_rest(&mut reader, CONTROL_FRAME_BYTES_MAX, "list length")? },
            REGISTER_WANT => Self::RegisterWant {
                owner: BrokerId(reader.u64("owner")?),
                incarnation: incarnation(&mut reader)?,
                after: read_version(&mut reader)?,
                bytes: narrow(&mut reader, "bytes")?,
                behind: take_rest(&mut reader, REGISTER_DELTA_BYTES_MAX, "key length")?,
            },
            REGISTER_END => Self::RegisterEnd {
                owner: BrokerId(reader.u64("owner")?),
                incarnation: incarnation(&mut reader)?,
                version: read_version(&mut reader)?,
                page: match reader.byte("page")? {
                    0 => None,
                    1 => Some(false),
                    2 => Some(true),
                    other => return Err(FrameError::Value { field: "page", value: u64::from(other) }),
                },
                entries: take_rest(&mut reader, CONTROL_FRAME_BYTES_MAX, "page length")?,
            },
            CREDIT => Self::Credit { lane: LaneId(reader.byte("lane")?), consumed: reader.varint("consumed")? },
            BEHIND => Self::Behind { members: read_members(&mut reader)? },
            TRACE => Self::Trace(Probe::decode(&mut reader)?),
            TRACED => Self::Traced(Answer::decode(&mut reader)?),
            _ => return Ok(Some((Self::Unknown, length))),
        };
        reader.finish()?;
        Ok(Some((frame, length)))
    }
}

impl<'a> Greeting<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.version_min, self.version_max]);
        put_varint(out, self.features);
        put_block(out, self.mesh.as_bytes());
        out.extend_from_slice(&self.id.0.to_be_bytes());
        put_block(out, self.name.as_bytes());
        out.extend_from_slice(&self.instance.to_be_bytes());
        out.push(self.lanes);
        put_varint(out, u64::from(self.hello_ms));
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let name = |reader: &mut Reader<'a>, field| {
            let text = reader.text(field)?;
            if text.len() <= NAME_BYTES_MAX { Ok(text) } else { Err(FrameError::Text(field)) }
        };
        let greeting = Self {
            version_min: reader.byte("oldest version")?,
            version_max: reader.byte("newest version")?,
            features: reader.varint("features")?,
            mesh: name(reader, "mesh name")?,
            id: BrokerId(reader.u64("broker id")?),
            name: name(reader, "broker name")?,
            instance: reader.u64("instance")?,
            lanes: reader.byte("lanes")?,
            hello_ms: narrow(reader, "hello time")?,
        };
        let out_of_range = |field, value| Err(FrameError::Value { field, value });
        match greeting {
            Self { lanes, .. } if lanes == 0 || lanes > LANES_MAX => out_of_range("lanes", u64::from(lanes)),
            Self { hello_ms, .. } if hello_ms == 0 || hello_ms > HELLO_MS_MAX => out_of_range("hello time", u64::from(hello_ms)),
            good => Ok(good),
        }
    }
}

impl<'a> Seal<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.slot.to_be_bytes());
        put_signature(out, self.scheme, self.signature);
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let slot = read_slot(reader)?;
        let (scheme, signature) = read_signature(reader)?;
        Ok(Self { slot, scheme, signature })
    }
}

impl<'a> Witness<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_block(out, self.chain);
        put_signature(out, self.scheme, self.signature);
        out.extend_from_slice(self.record);
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let chain = bounded(reader.block("certificate length")?, CERTIFICATE_CHAIN_BYTES_MAX, "certificate length")?;
        let (scheme, signature) = read_signature(reader)?;
        Ok(Self { chain, scheme, signature, record: take_rest(reader, RECORD_BYTES_MAX, "record length")? })
    }
}

fn read_members<'a>(reader: &mut Reader<'a>) -> Result<Option<Members<'a>>, FrameError> {
    let is_known = reader.byte("whether members are known")?;
    let bytes = reader.bytes(reader.rest().len(), "members")?;
    match is_known {
        0 if bytes.is_empty() => Ok(None),
        1 if bytes.len() % size_of::<BrokerId>() == 0 && bytes.len() <= BROKERS_MAX * size_of::<BrokerId>() => {
            Ok(Some(Members { bytes }))
        }
        _ => Err(FrameError::Value { field: "length of members", value: bytes.len() as u64 }),
    }
}

fn put_signature(out: &mut Vec<u8>, scheme: u16, signature: &[u8]) {
    out.extend_from_slice(&scheme.to_be_bytes());
    put_block(out, signature);
}

fn read_signature<'a>(reader: &mut Reader<'a>) -> Result<(u16, &'a [u8]), FrameError> {
    let scheme = reader.array("signature scheme").map(u16::from_be_bytes)?;
    Ok((scheme, bounded(reader.block("signature")?, SIGNATURE_BYTES_MAX, "signature length")?))
}

fn read_slot(reader: &mut Reader<'_>) -> Result<u16, FrameError> {
    let slot = reader.array("slot").map(u16::from_be_bytes)?;
    if slot < CERTIFICATE_SLOTS { Ok(slot) } else { Err(FrameError::Value { field: "slot", value: u64::from(slot) }) }
}

/// What is left of the frame.
fn take_rest<'a>(reader: &mut Reader<'a>, bytes_max: usize, field: &'static str) -> Result<&'a [u8], FrameError> {
    let rest = reader.bytes(reader.rest().len(), field)?;
    bounded(rest, bytes_max, field)
}

fn bounded<'a>(bytes: &'a [u8], bytes_max: usize, field: &'static str) -> Result<&'a [u8], FrameError> {
    let length = bytes.len();
    if length <= bytes_max { Ok(bytes) } else { Err(FrameError::Value { field, value: length as u64 }) }
}

fn put_register(out: &mut Vec<u8>, owner: BrokerId, incarnation: Incarnation) {
    out.extend_from_slice(&owner.0.to_be_bytes());
    put_varint(out, incarnation.0);
}

fn read_version(reader: &mut Reader<'_>) -> Result<u64, FrameError> {
    reader.varint_max(u64::MAX / 2, "version")
}

fn read_bool(reader: &mut Reader<'_>, field: &'static str) -> Result<bool, FrameError> {
    match reader.byte(field)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(FrameError::Value { field, value: u64::from(other) }),
    }
}

fn put_bpdu(out: &mut Vec<u8>, bpdu: &Bpdu) {
    let flag = |set, bit| if set { bit } else { 0 };
    put_varint(out, bpdu.number);
    put_tree(out, &bpdu.tree);
    out.push(
        flag(bpdu.request_epoch, REQUEST_EPOCH)
            | flag(bpdu.distance.is_some(), HAS_DISTANCE)
            | flag(bpdu.epoch_held.is_some(), HAS_EPOCH_HELD),
    );
    out.push(bpdu.hops);
    if let Some(distance) = bpdu.distance {
        put_varint(out, u64::from(distance));
    }
    if let Some(epoch) = bpdu.epoch_held {
        put_varint(out, epoch);
    }
}

fn read_bpdu(reader: &mut Reader<'_>) -> Result<Bpdu, FrameError> {
    let number = reader.varint("BPDU number")?;
    let tree = reader.tree()?;
    let flags = reader.byte("BPDU flags")?;
    if flags & !(REQUEST_EPOCH | HAS_DISTANCE | HAS_EPOCH_HELD) != 0 {
        return Err(FrameError::Value { field: "BPDU flags", value: u64::from(flags) });
    }
    let has = |bit| flags & bit != 0;
    Ok(Bpdu {
        number,
        tree,
        hops: reader.byte("hops")?,
        distance: if has(HAS_DISTANCE) { Some(narrow(reader, "distance")?) } else { None },
        epoch_held: if has(HAS_EPOCH_HELD) { Some(reader.varint("epoch held")?) } else { None },
        request_epoch: has(REQUEST_EPOCH),
    })
}

fn narrow(reader: &mut Reader<'_>, field: &'static str) -> Result<u32, FrameError> {
    let value = reader.varint(field)?;
    u32::try_from(value).map_err(|_| FrameError::Value { field, value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::trace::{Arrival, Audience, Ports, TraceId};
    use super::*;
    use crate::codec::QoS;
    use crate::ids::RootClaim;

    const GREETING_EXAMPLE: Greeting<'static> = Greeting {
        version_min: VERSION_MIN,
        version_max: VERSION,
        features: 0,
        mesh: "factory",
        id: BrokerId(7),
        name: "mec-1",
        instance: 9,
        lanes: 4,
        hello_ms: 100,
    };

    fn examples() -> [ControlFrame<'static>; 19] {
        let trace = TraceId { origin: BrokerId(9), number: u64::MAX };
        let root = RootClaim { priority: 32_768, capacity: 3, id: BrokerId(u64::MAX), incarnation: Incarnation(1_700_000_000_000) };
        let bpdu = Bpdu {
            number: 300,
            tree: TreeId { epoch: 5, root },
            distance: Some(64),
            hops: 2,
            epoch_held: Some(9),
            request_epoch: true,
        };
        let seal = Seal { slot: 3, scheme: 0x0403, signature: b"signature" };
        [
            ControlFrame::Greeting(GREETING_EXAMPLE),
            ControlFrame::Known { incarnation: Incarnation(0), witness: None },
            ControlFrame::Known {
                incarnation: Incarnation(7),
                witness: Some(Witness { chain: b"chain", scheme: 0x0403, signature: b"signature", record: b"{}" }),
            },
            ControlFrame::Settled { incarnation: Incarnation(u64::MAX) },
            ControlFrame::Bpdu(bpdu),
            ControlFrame::Bpdu(Bpdu { distance: None, epoch_held: None, request_epoch: false, ..bpdu }),
            ControlFrame::Hello { number: 1, echo: 0 },
            ControlFrame::Certificate { slot: CERTIFICATE_SLOTS - 1, chain: b"chain" },
            ControlFrame::Claim { tree: bpdu.tree, seal },
            ControlFrame::Record { seal, record: b"{}" },
            ControlFrame::Credit { lane: LaneId(7), consumed: 1 << 40 },
            ControlFrame::RegisterDelta { copy: true, seal, delta: b"delta" },
            ControlFrame::RegisterHave { list: b"list" },
            ControlFrame::RegisterWant {
                owner: BrokerId(7),
                incarnation: Incarnation(1 << 40),
                after: 300,
                bytes: u32::MAX,
                behind: b"key",
            },
            ControlFrame::RegisterEnd {
                owner: BrokerId(7),
                incarnation: Incarnation(1),
                version: u64::MAX / 2,
                page: Some(true),
                entries: b"entries",
            },
            ControlFrame::Behind { members: None },
            ControlFrame::Behind { members: Some(Members { bytes: &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2] }) },
            ControlFrame::Trace(Probe {
                id: trace,
                hops: 3,
                qos: QoS::ExactlyOnce,
                retain: true,
                arrival: Arrival::Stub,
                topic: "a/b",
            }),
            ControlFrame::Traced(Answer {
                id: trace,
                broker: BrokerId(1),
                via: BrokerId(2),
                round_trip_us: 300,
                arrival: Arrival::Nothing,
                audience: Audience { subscriptions: 1, groups: 2, group_members: 300 },
                ports: Ports::of_bytes(&[0, 0, 0, 0, 0, 0, 0, 5, 4, 0x80, 0x01]),
            }),
        ]
    }

    #[test]
    fn every_frame_reads_back_and_none_of_its_prefixes_does() {
        for frame in examples() {
            let mut wire = Vec::new();
            frame.encode(&mut wire);
            assert_eq!(ControlFrame::decode(&wire), Ok(Some((frame, wire.len()))));
            for cut in 0..wire.len() {
                assert_eq!(ControlFrame::decode(&wire[..cut]), Ok(None), "{frame:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn what_a_newer_version_says_is_skipped() {
        let mut wire = Vec::new();
        put_frame(&mut wire, 200, |out| out.extend_from_slice(b"later"));
        assert_eq!(ControlFrame::decode(&wire), Ok(Some((ControlFrame::Unknown, wire.len()))));
        wire.clear();
        put_frame(&mut wire, GREETING, |out| {
            GREETING_EXAMPLE.encode(out);
            out.extend_from_slice(b"later");
        });
        assert_eq!(ControlFrame::decode(&wire), Ok(Some((ControlFrame::Greeting(GREETING_EXAMPLE), wire.len()))));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let greetings = [
            Greeting { lanes: 0, ..GREETING_EXAMPLE },
            Greeting { lanes: LANES_MAX + 1, ..GREETING_EXAMPLE },
            Greeting { hello_ms: 0, ..GREETING_EXAMPLE },
            Greeting { hello_ms: HELLO_MS_MAX + 1, ..GREETING_EXAMPLE },
            Greeting { mesh: &long, ..GREETING_EXAMPLE },
            Greeting { name: &long, ..GREETING_EXAMPLE },
        ];
        for greeting in greetings {
            let mut wire = Vec::new();
            ControlFrame::Greeting(greeting).encode(&mut wire);
            assert!(ControlFrame::decode(&wire).is_err(), "{greeting:?}");
        }
        let mut wire = Vec::new();
        put_frame(&mut wire, HELLO, |out| out.extend_from_slice(&[1, 0, 0]));
        assert_eq!(ControlFrame::decode(&wire), Err(FrameError::Trailing(1)));
        let (long_chain, long_signature) = (vec![0; CERTIFICATE_CHAIN_BYTES_MAX + 1], vec![0; SIGNATURE_BYTES_MAX + 1]);
        let seal = Seal { slot: 0, scheme: 0, signature: &long_signature };
        let (slot, chain) = (CERTIFICATE_SLOTS, &long_chain[..]);
        let witness = Some(Witness { chain, scheme: 0, signature: b"", record: b"" });
        for frame in [
            ControlFrame::Certificate { slot: 0, chain },
            ControlFrame::Certificate { slot, chain: b"" },
            ControlFrame::Record { seal, record: b"" },
            ControlFrame::Record { seal: Seal { slot, signature: b"", ..seal }, record: b"" },
            ControlFrame::Known { incarnation: Incarnation(1), witness },
        ] {
            wire.clear();
            frame.encode(&mut wire);
            assert!(matches!(ControlFrame::decode(&wire), Err(FrameError::Value { .. })), "{frame:?}");
        }
        let (ids, one_too_many) = ([BrokerId(1), BrokerId(2)], vec![0; (BROKERS_MAX + 1) * 8]);
        assert_eq!(Members::new(ids, &mut Vec::new()).iter().collect::<Vec<_>>(), ids);
        for body in [&[0, 1][..], &[2], &[1, 0, 0], &[&[1][..], &one_too_many].concat()] {
            wire.clear();
            put_frame(&mut wire, BEHIND, |out| out.extend_from_slice(body));
            assert!(matches!(ControlFrame::decode(&wire), Err(FrameError::Value { .. })), "{} bytes", body.len());
        }
        wire.clear();
        put_varint(&mut wire, u64::from(RECORD));
        put_varint(&mut wire, CONTROL_FRAME_BYTES_MAX as u64 + 1);
        assert!(matches!(ControlFrame::decode(&wire), Err(FrameError::TooLong { .. })), "by its header alone");
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0_u8..21) {
            let mut wire = Vec::new();
            put_frame(&mut wire, kind, |out| out.extend_from_slice(&bytes));
            if let Ok(Some((frame, length))) = ControlFrame::decode(&wire) {
                prop_assert_eq!(length, wire.len());
                if !matches!(frame, ControlFrame::Unknown | ControlFrame::Greeting(_)) {
                    let mut again = Vec::new();
                    frame.encode(&mut again);
                    prop_assert_eq!(ControlFrame::decode(&again), Ok(Some((frame, again.len()))));
                }
            }
            let _ = ControlFrame::decode(&bytes);
        }
    }
}

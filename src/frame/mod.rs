//! The mesh's wire format: bytes to frames and back.
//!
//! It is not the protocol: who sends a frame when, and what it means, is said by `replication` ([`lane`]), by `router` ([`picks`]) and by `mesh` (the control
//! stream, [`control`] and [`trace`]; bulk streams, [`bulk`]). Every frame is a type byte, a length and a body, so that a frame of a newer version is skipped by its length. Nothing is
//! allocated by the say-so of a peer: every length is held against a bound and against the bytes that are there. Integers of a fixed
//! width are big-endian; others are unsigned LEB128, and the shortest form is the only one.
//!
//! Specification: `ARCHITECTURE.md`, "The wire between brokers".

use thiserror::Error;

use crate::ids::{BrokerId, Incarnation, RootClaim, TreeId};

pub mod bulk;
pub mod control;
pub mod lane;
pub mod picks;
pub mod trace;

/// Longest LEB128 form of a `u64`.
const VARINT_BYTES_MAX: usize = 10;

/// Why bytes from a peer are not a frame. None of these mends itself with more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A frame announces a longer body than its stream allows.
    #[error("a frame of {bytes} bytes, {bytes_max} are allowed")]
    TooLong {
        /// Announced.
        bytes: u64,
        /// Allowed.
        bytes_max: usize,
    },
    /// A field does not fit into its frame.
    #[error("a frame ends inside its {0}")]
    Truncated(&'static str),
    /// A frame goes on after its last field.
    #[error("{0} bytes after the last field of a frame")]
    Trailing(usize),
    /// An integer that does not fit, or is not in its shortest form.
    #[error("{0} is no integer of the shortest form")]
    Varint(&'static str),
    /// A field has a value that its frame does not allow.
    #[error("{value} is no {field}")]
    Value {
        /// Which.
        field: &'static str,
        /// What was there.
        value: u64,
    },
    /// A text is not UTF-8, or not allowed where it stands.
    #[error("a {0} that is not allowed")]
    Text(&'static str),
}

/// Reads the fields of one frame's body, front to back. `field` names what is read, for the error.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of `body`.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Bytes not yet read.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything is read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// [`FrameError::Truncated`].
    #[inline]
    pub fn bytes(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], FrameError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(FrameError::Truncated(field))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`FrameError::Truncated`].
    #[inline]
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FrameError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(FrameError::Truncated(field))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`FrameError::Truncated`].
    #[inline]
    pub fn byte(&mut self, field: &'static str) -> Result<u8, FrameError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    /// Eight bytes, big-endian.
    ///
    /// # Errors
    /// [`FrameError::Truncated`].
    #[inline]
    pub fn u64(&mut self, field: &'static str) -> Result<u64, FrameError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// An integer of variable length.
    ///
    /// # Errors
    /// [`FrameError::Truncated`], [`FrameError::Varint`].
    #[inline]
    pub fn varint(&mut self, field: &'static str) -> Result<u64, FrameError> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => match read_varint(self.rest, field)? {
                Some((value, length)) => self.bytes(length, field).map(|_| value),
                None => Err(FrameError::Truncated(field)),
            },
        }
    }

    /// An integer of variable length that is at most `max`.
    ///
    /// # Errors
    /// As [`varint`](Self::varint), and [`FrameError::Value`].
    #[inline]
    pub fn varint_max(&mut self, max: u64, field: &'static str) -> Result<u64, FrameError> {
        let value = self.varint(field)?;
        if value <= max { Ok(value) } else { Err(FrameError::Value { field, value }) }
    }

    /// A length and so many bytes.
    ///
    /// # Errors
    /// As [`varint`](Self::varint), and [`FrameError::Truncated`].
    #[inline]
    pub fn block(&mut self, field: &'static str) -> Result<&'a [u8], FrameError> {
        let length = usize::try_from(self.varint(field)?).map_err(|_| FrameError::Truncated(field))?;
        self.bytes(length, field)
    }

    /// A length and so many bytes of UTF-8.
    ///
    /// # Errors
    /// As [`block`](Self::block), and [`FrameError::Text`].
    #[inline]
    pub fn text(&mut self, field: &'static str) -> Result<&'a str, FrameError> {
        std::str::from_utf8(self.block(field)?).map_err(|_| FrameError::Text(field))
    }

    /// What [`put_tree`] wrote.
    ///
    /// # Errors
    /// As [`varint_max`](Self::varint_max).
    pub fn tree(&mut self) -> Result<TreeId, FrameError> {
        Ok(TreeId {
            epoch: self.varint("epoch")?,
            root: RootClaim {
                priority: self.array("root priority").map(u16::from_be_bytes)?,
                capacity: self.byte("root capacity")?,
                id: BrokerId(self.u64("root id")?),
                incarnation: Incarnation(self.varint("root incarnation")?),
            },
        })
    }

    /// The end of the body.
    ///
    /// # Errors
    /// [`FrameError::Trailing`].
    pub fn finish(self) -> Result<(), FrameError> {
        if self.rest.is_empty() { Ok(()) } else { Err(FrameError::Trailing(self.rest.len())) }
    }
}

/// The integer at the front of `input` and its length; `None` where more bytes are needed.
fn read_varint(input: &[u8], field: &'static str) -> Result<Option<(u64, usize)>, FrameError> {
    let mut value = 0_u64;
    for (place, byte) in input.iter().enumerate().take(VARINT_BYTES_MAX) {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * place as u32;
        // The tenth byte has room for one bit; a last byte of zero would be a longer form of a shorter one.
        if (shift == 63 && bits > 1) || (*byte == 0 && place > 0) {
            return Err(FrameError::Varint(field));
        }
        value |= bits << shift;
        if *byte < 0x80 {
            return Ok(Some((value, place + 1)));
        }
    }
    if input.len() < VARINT_BYTES_MAX { Ok(None) } else { Err(FrameError::Varint(field)) }
}

/// Appends an integer of variable length.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length and `bytes`.
#[inline]
pub fn put_block(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a tree id.
pub fn put_tree(out: &mut Vec<u8>, tree: &TreeId) {
    put_varint(out, tree.epoch);
    out.extend_from_slice(&tree.root.priority.to_be_bytes());
    out.push(tree.root.capacity);
    out.extend_from_slice(&tree.root.id.0.to_be_bytes());
    put_varint(out, tree.root.incarnation.0);
}

/// How many bytes [`put_varint`] appends.
#[must_use]
#[inline]
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// A frame's type, its body, and its whole length.
pub type RawFrame<'a> = (u8, &'a [u8], usize);

/// The frame at the front of `input`; `None` where more bytes are needed.
///
/// # Errors
/// [`FrameError::TooLong`] as soon as the header shows a body above `body_bytes_max`; [`FrameError::Varint`].
pub fn split_frame(input: &[u8], body_bytes_max: usize) -> Result<Option<RawFrame<'_>>, FrameError> {
    let Some((kind, rest)) = input.split_first() else { return Ok(None) };
    let Some((bytes, length)) = read_varint(rest, "frame length")? else { return Ok(None) };
    let too_long = FrameError::TooLong { bytes, bytes_max: body_bytes_max };
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= body_bytes_max).ok_or(too_long)?;
    let Some(body) = rest.get(length..length + bytes) else { return Ok(None) };
    Ok(Some((*kind, body, 1 + length + bytes)))
}

/// Appends a frame of type `kind` whose body is written by `body`.
pub fn put_frame(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    body(out);
    let bytes = (out.len() - start) as u64;
    out.push(kind);
    put_varint(out, bytes);
    // The header is written behind the body, where its length is known, and turned to the front.
    if let Some(frame) = out.get_mut(start..) {
        frame.rotate_right(1 + varint_len(bytes));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_have_one_form() {
        for (bytes, expected) in [
            (&[0x00][..], Ok(Some((0, 1)))),
            (&[0x7f], Ok(Some((127, 1)))),
            (&[0x80, 0x01], Ok(Some((128, 2)))),
            (&[0x80], Ok(None)),
            (&[], Ok(None)),
            (&[0x80, 0x00], Err(FrameError::Varint("n"))),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], Ok(Some((u64::MAX, 10)))),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], Err(FrameError::Varint("n"))),
            (&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80], Err(FrameError::Varint("n"))),
        ] {
            assert_eq!(read_varint(bytes, "n"), expected, "{bytes:02x?}");
        }
    }

    #[test]
    fn a_frame_too_long_is_refused_by_its_header() {
        assert_eq!(split_frame(&[1, 0x80], 10), Ok(None));
        assert_eq!(split_frame(&[1, 10, 0], 10), Ok(None));
        assert_eq!(split_frame(&[1, 11], 10), Err(FrameError::TooLong { bytes: 11, bytes_max: 10 }));
        assert_eq!(split_frame(&[1, 2, 8, 9, 7], 10), Ok(Some((1, &[8, 9][..], 4))));
        assert_eq!(
            split_frame(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], 10),
            Err(FrameError::TooLong { bytes: u64::MAX, bytes_max: 10 })
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value: u64, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut out = vec![7];
            put_frame(&mut out, 3, |out| {
                put_varint(out, value);
                put_block(out, &bytes);
            });
            let (kind, body, length) = split_frame(&out[1..], 1_000).unwrap().unwrap();
            prop_assert_eq!((kind, length), (3, out.len() - 1));
            let mut reader = Reader::new(body);
            prop_assert_eq!(reader.varint("value"), Ok(value));
            prop_assert_eq!(reader.block("bytes"), Ok(&bytes[..]));
            prop_assert_eq!(reader.finish(), Ok(()));
            prop_assert_eq!(varint_len(value), { let mut out = Vec::new(); put_varint(&mut out, value); out.len() });
            for cut in 0..length {
                prop_assert_eq!(split_frame(&out[1..=cut], 1_000), Ok(None));
            }
        }
    }
}

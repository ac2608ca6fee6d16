//! The elements that packets are made of (MQTT 5.0, section 1.5): a reader that cannot leave its slice, writers that cannot truncate.
//!
//! Not here: what the elements mean. Invariant: a reader only ever gets shorter, and hands out slices of what it was given.

use super::{DecodeError, EncodeError, PacketId};
use crate::limits::MQTT_REMAINING_LENGTH_MAX;

/// Kinds of bytes in a string.
const NULL: u8 = 1;
const CONTROL: u8 = 1 << 1;
/// Part of a character beyond ASCII.
const HIGH: u8 = 1 << 2;
const WILDCARD: u8 = 1 << 3;

#[expect(clippy::indexing_slicing, reason = "at compile time")]
const KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            0 => NULL | CONTROL,
            0x01..0x20 | 0x7f => CONTROL,
            0x80.. => HIGH,
            b'+' | b'#' => WILDCARD,
            _ => 0,
        };
        byte += 1;
    }
    kinds
};

#[inline]
fn kind(byte: u8) -> u8 {
    KINDS.get(usize::from(byte)).copied().unwrap_or(0)
}

/// Reads one field after the other from the body of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.truncated(count))?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(|| self.truncated(COUNT))?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    /// Two Byte Integer, section 1.5.2.
    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four Byte Integer, section 1.5.3.
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Variable Byte Integer, section 1.5.5.
    #[inline]
    pub(super) fn varint(&mut self) -> Result<u32, DecodeError> {
        let (value, length) = varint(self.rest)?.ok_or_else(|| self.truncated(self.rest.len() + 1))?;
        self.bytes(length)?;
        Ok(value)
    }

    /// Binary Data, section 1.5.6.
    #[inline]
    pub(super) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u16()?;
        self.bytes(usize::from(length))
    }

    /// UTF-8 Encoded String, section 1.5.4. U+FEFF stays, wherever it is [MQTT-1.5.4-3].
    #[inline]
    pub(super) fn string(&mut self) -> Result<&'a str, DecodeError> {
        let text = utf8(self.binary()?)?;
        // No early way out: this compiles to a few wide comparisons.
        if text.bytes().fold(false, |found, byte| found | (byte == 0)) {
            return Err(DecodeError::NullCharacter);
        }
        Ok(text)
    }

    /// A string without control characters: a name that stands in topics, logs and access rules. A receiver may refuse those characters in any string
    /// (section 1.5.4); what only passes through, as properties do, is not looked at for them.
    #[inline]
    pub(super) fn name(&mut self) -> Result<&'a str, DecodeError> {
        name_of_kinds(self.binary()?).map(|(name, _)| name)
    }

    /// A topic name that may be empty (only an alias makes that legal, which the caller knows) but has no wildcard [MQTT-3.3.2-2].
    #[inline]
    pub(super) fn topic_name(&mut self) -> Result<&'a str, DecodeError> {
        self.topic_name_behind("")
    }

    /// Likewise; `before` is one, or empty.
    #[inline]
    pub(super) fn topic_name_behind(&mut self, before: &'a str) -> Result<&'a str, DecodeError> {
        let bytes = self.binary()?;
        if bytes == before.as_bytes() {
            return Ok(before);
        }
        let (name, kinds) = name_of_kinds(bytes)?;
        if kinds & WILDCARD != 0 { Err(DecodeError::TopicWildcard) } else { Ok(name) }
    }

    #[inline]
    pub(super) fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        PacketId::new(self.u16()?).ok_or(DecodeError::PacketIdZero)
    }

    /// A length as Variable Byte Integer, then so many bytes.
    #[inline]
    pub(super) fn section(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.varint()?;
        self.bytes(length as usize)
    }

    /// Nothing may be left.
    #[inline]
    pub(super) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes(self.rest.len())) }
    }

    #[cold]
    fn truncated(&self, wanted: usize) -> DecodeError {
        DecodeError::Truncated { wanted, left: self.rest.len() }
    }
}

#[inline]
fn utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|error| DecodeError::Utf8 { valid_bytes: error.valid_up_to() })
}

/// See [`Reader::name`]; and of which kinds its bytes are. Names are short: a table is quicker than wide comparisons and their odd ends.
fn name_of_kinds(bytes: &[u8]) -> Result<(&str, u8), DecodeError> {
    let name = utf8(bytes)?;
    let kinds = name.bytes().fold(0, |kinds, byte| kinds | kind(byte));
    if kinds & NULL != 0 {
        return Err(DecodeError::NullCharacter);
    }
    // U+0080 to U+009F have two bytes.
    if kinds & CONTROL != 0 || (kinds & HIGH != 0 && name.chars().any(char::is_control)) {
        return Err(DecodeError::ControlCharacter);
    }
    Ok((name, kinds))
}

/// The Variable Byte Integer at the front and its length in bytes. `None`: it goes on after the end of `input`.
#[inline]
pub(super) fn varint(input: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    // Nearly all are one byte.
    if let Some(byte @ 0..=0x7f) = input.first() {
        return Ok(Some((u32::from(*byte), 1)));
    }
    let mut value = 0_u32;
    for (index, byte) in input.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            if *byte == 0 && index > 0 {
                return Err(DecodeError::VarintNotMinimal(value));
            }
            return Ok(Some((value, index + 1)));
        }
    }
    if input.len() < 4 { Ok(None) } else { Err(DecodeError::VarintTooLong) }
}

/// Bytes that `value` takes as a Variable Byte Integer.
pub(super) fn varint_len(value: usize) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        _ => 4,
    }
}

/// Appends a length or number as Variable Byte Integer.
pub(super) fn put_varint(out: &mut Vec<u8>, value: usize) -> Result<(), EncodeError> {
    if value > MQTT_REMAINING_LENGTH_MAX as usize {
        return Err(EncodeError::TooLong(value));
    }
    let mut left = value;
    while left > 0x7f {
        out.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
    Ok(())
}

/// Appends Binary Data.
#[inline]
pub(super) fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), EncodeError> {
    let length = u16::try_from(bytes.len()).map_err(|_| EncodeError::FieldTooLong(bytes.len()))?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

/// Appends a UTF-8 Encoded String. That there is no U+0000 in it is the caller's affair.
#[inline]
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) -> Result<(), EncodeError> {
    put_binary(out, text.as_bytes())
}

/// Appends what `write` appends, with its length in front as Variable Byte Integer.
pub(super) fn put_section(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    write(out)?;
    let end = out.len();
    // The length is only known now: append it, then turn it to the front. Packets that are written so are small and rare.
    put_varint(out, end - start)?;
    let length_bytes = out.len() - end;
    if let Some(section) = out.get_mut(start..) {
        section.rotate_right(length_bytes);
    }
    Ok(())
}

//! What is in a message: a stamp that says which message it is, then filler that depends on the stamp.
//!
//! ```text
//! 0      4        8      12          16         24          32
//! | MLT2 | digest | run  |   flow    | sequence | due at ns | filler ...
//! ```
//!
//! All big-endian. The digest covers the rest of the stamp and the payload's length; the filler is a slice of a fixed random
//! block, begun at a place the stamp chooses, so that truncated, padded, stale or exchanged bytes are noticed at the price of
//! one `memcpy` here and one `memcmp` there.

use thiserror::Error;

/// The stamp's length, hence the shortest payload, in bytes.
pub(crate) const STAMP_BYTES: usize = 32;

const MAGIC: u32 = u32::from_be_bytes(*b"MLT2");

/// Length of the filler's repeating block; a power of two.
const BLOCK_BYTES: usize = 4096;

static BLOCK: [u8; BLOCK_BYTES] = random_block();

/// Which message this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// A random number of the publishing run, so that leftovers of another run are told apart.
    pub(crate) run: u32,
    /// The flow within the run, from 0: a publisher, or one topic of a publisher.
    pub(crate) flow: u32,
    /// The message within the flow, from 0.
    pub(crate) sequence: u64,
    /// When it was due to be sent, in nanoseconds since the Unix epoch. In an open loop that is the schedule's time, not the
    /// time it really left: that corrects for coordinated omission.
    pub(crate) due_at_ns: u64,
}

/// Why a payload is not one of ours, unharmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum PayloadFault {
    /// No stamp: somebody else's message.
    #[error("the payload was not written by loadtest")]
    Foreign,
    /// A stamp whose digest, or filler, does not fit.
    #[error("the payload was changed on its way")]
    Corrupted,
}

/// Appends the payload of `stamp` to `out`: `payload_bytes` bytes, at least [`STAMP_BYTES`].
#[inline]
pub(crate) fn write(stamp: &Stamp, payload_bytes: usize, out: &mut Vec<u8>) {
    let filler_bytes = payload_bytes.saturating_sub(STAMP_BYTES);
    let digest = digest(stamp, STAMP_BYTES + filler_bytes);
    let identity = u128::from(MAGIC) << 96 | u128::from(digest) << 64 | u128::from(stamp.run) << 32 | u128::from(stamp.flow);
    let moment = u128::from(stamp.sequence) << 64 | u128::from(stamp.due_at_ns);
    out.extend_from_slice(&identity.to_be_bytes());
    out.extend_from_slice(&moment.to_be_bytes());
    filler(stamp, filler_bytes).for_each(|piece| out.extend_from_slice(piece));
}

/// Reads the stamp and checks every byte.
///
/// # Errors
/// When the payload is foreign or has been changed.
#[inline]
pub(crate) fn read(payload: &[u8]) -> Result<Stamp, PayloadFault> {
    let Some((identity, rest)) = payload.split_first_chunk() else {
        return Err(if payload.starts_with(&MAGIC.to_be_bytes()) { PayloadFault::Corrupted } else { PayloadFault::Foreign });
    };
    let identity = u128::from_be_bytes(*identity);
    if (identity >> 96) as u32 != MAGIC {
        return Err(PayloadFault::Foreign);
    }
    let (moment, rest) = rest.split_first_chunk().ok_or(PayloadFault::Corrupted)?;
    let moment = u128::from_be_bytes(*moment);
    let stamp =
        Stamp { run: (identity >> 32) as u32, flow: identity as u32, sequence: (moment >> 64) as u64, due_at_ns: moment as u64 };
    let is_right = (identity >> 64) as u32 == digest(&stamp, payload.len()) && is_filler(&stamp, rest);
    if is_right { Ok(stamp) } else { Err(PayloadFault::Corrupted) }
}

/// Whether these bytes are the filler of this stamp.
#[inline]
fn is_filler(stamp: &Stamp, mut bytes: &[u8]) -> bool {
    let start = filler_start(stamp);
    match BLOCK.get(start..start + bytes.len()) {
        Some(expected) => are_same(bytes, expected),
        None => {
            for piece in filler(stamp, bytes.len()) {
                let Some(rest) = bytes.strip_prefix(piece) else { return false };
                bytes = rest;
            }
            true
        }
    }
}

/// Whether these are the same bytes. Few are compared here: to call the library's function costs more than its work.
#[inline(always)]
pub(crate) fn are_same(one: &[u8], other: &[u8]) -> bool {
    const FEW: usize = 64;
    if one.len() != other.len() || one.len() > FEW {
        return one == other;
    }
    let (Some(end), Some(other_end)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) else {
        return one.iter().zip(other).all(|(byte, other)| byte == other);
    };
    let (words, other_words) = (one.as_chunks::<8>().0, other.as_chunks::<8>().0);
    end == other_end && words.iter().zip(other_words).all(|(word, other)| word == other)
}

/// A digest against accidents, not against malice.
#[inline]
fn digest(stamp: &Stamp, payload_bytes: usize) -> u32 {
    // Each by itself, so that none waits for another.
    let identity = (u64::from(stamp.run) << 32 | u64::from(stamp.flow)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sequence = (stamp.sequence ^ (payload_bytes as u64) << 40).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let due = stamp.due_at_ns.wrapping_mul(0x94d0_49bb_1331_11eb);
    let mixed = identity ^ sequence.rotate_left(21) ^ due.rotate_left(42);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[inline]
fn filler_start(stamp: &Stamp) -> usize {
    (stamp.sequence as usize).wrapping_mul(61).wrapping_add(stamp.flow as usize) % BLOCK_BYTES
}

/// The filler as pieces of [`BLOCK`], in order.
fn filler(stamp: &Stamp, filler_bytes: usize) -> impl Iterator<Item = &'static [u8]> {
    let mut start = filler_start(stamp);
    let mut left = filler_bytes;
    std::iter::from_fn(move || {
        let length = left.min(BLOCK_BYTES - start);
        let piece = BLOCK.get(start..start + length).filter(|piece| !piece.is_empty())?;
        (start, left) = (0, left - length);
        Some(piece)
    })
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, which refuses an index out of bounds")]
const fn random_block() -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut state: u32 = 0x2545_f491;
    let mut at = 0;
    while at < BLOCK_BYTES {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        block[at] = (state >> 11) as u8;
        at += 1;
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(sequence: u64) -> Stamp {
        Stamp { run: 0xfeed_beef, flow: 7, sequence, due_at_ns: sequence ^ 0x1797_9cfe_362a_0000 }
    }

    fn written(sequence: u64, payload_bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        write(&stamp(sequence), payload_bytes, &mut out);
        out
    }

    #[test]
    fn what_is_written_is_read_at_every_length() {
        for payload_bytes in [32, 33, 64, 1000, BLOCK_BYTES, BLOCK_BYTES + 32, 3 * BLOCK_BYTES + 5] {
            for sequence in [0, 1, 66, 67, 4095, u64::MAX] {
                let payload = written(sequence, payload_bytes);
                assert_eq!(payload.len(), payload_bytes);
                assert_eq!(read(&payload), Ok(stamp(sequence)), "{payload_bytes} bytes, sequence {sequence}");
            }
        }
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let payload = written(5, 200);
        for at in 0..payload.len() {
            let mut changed = payload.clone();
            changed[at] ^= 0x40;
            let expected = if at < size_of_val(&MAGIC) { PayloadFault::Foreign } else { PayloadFault::Corrupted };
            assert_eq!(read(&changed), Err(expected), "byte {at}");
        }
    }

    #[test]
    fn bytes_are_the_same_or_not() {
        for length in [0, 1, 7, 8, 9, 40, 63, 64, 65, 200] {
            let one: Vec<u8> = (0..length).collect();
            assert!(are_same(&one, &one.clone()), "{length}");
            for at in 0..usize::from(length) {
                let mut other = one.clone();
                other[at] ^= 1;
                assert!(!are_same(&one, &other), "{length}, byte {at}");
            }
            assert!(!are_same(&one, &[one.as_slice(), b"x"].concat()), "{length}");
        }
    }

    #[test]
    fn truncation_padding_and_exchanged_filler_are_noticed() {
        let payload = written(5, 200);
        for length in 4..payload.len() {
            assert_eq!(read(&payload[..length]), Err(PayloadFault::Corrupted), "cut to {length}");
        }
        assert_eq!(read(&[payload.as_slice(), b"x"].concat()), Err(PayloadFault::Corrupted));
        let other = written(6, 200);
        assert_eq!(read(&[&payload[..STAMP_BYTES], &other[STAMP_BYTES..]].concat()), Err(PayloadFault::Corrupted));
    }

    #[test]
    fn other_peoples_messages_are_foreign() {
        for payload in [&b""[..], b"MLT", b"hello", &[0; 64]] {
            assert_eq!(read(payload), Err(PayloadFault::Foreign));
        }
    }
}

//! Bytes to frames: where one control packet ends and what kind it is.

use thiserror::Error;

/// Bytes that no broker may send to a client like us.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum WireFault {
    #[error("the broker sent a remaining length of more than four bytes")]
    RemainingLength,
    #[error("the broker sent a packet that only a client may send, or none at all (first byte {0:#04x})")]
    PacketKind(u8),
    #[error("the broker sent a malformed {0:?} packet")]
    Malformed(PacketKind),
    #[error("the broker sent a malformed {kind:?} packet: {cause:?}")]
    Control { kind: PacketKind, cause: mqttbytes::Error },
    #[error("the broker sent a {0:?} packet where none may come")]
    Unexpected(PacketKind),
}

/// The packets a broker sends to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    ConnAck,
    Publish,
    PubAck,
    PubRec,
    PubRel,
    PubComp,
    SubAck,
    PingResp,
    Disconnect,
}

impl PacketKind {
    /// Type and flags of the first byte; the flags of PUBLISH are free, all others are fixed [MQTT-2.2.2-2].
    #[inline]
    fn of(first_byte: u8) -> Option<Self> {
        Some(match first_byte {
            0x20 => Self::ConnAck,
            0x30..=0x3f => Self::Publish,
            0x40 => Self::PubAck,
            0x50 => Self::PubRec,
            0x62 => Self::PubRel,
            0x70 => Self::PubComp,
            0x90 => Self::SubAck,
            0xd0 => Self::PingResp,
            0xe0 => Self::Disconnect,
            _ => return None,
        })
    }

    /// The first byte of an acknowledgement.
    pub(super) fn first_byte(self) -> u8 {
        match self {
            Self::ConnAck => 0x20,
            Self::Publish => 0x30,
            Self::PubAck => 0x40,
            Self::PubRec => 0x50,
            Self::PubRel => 0x62,
            Self::PubComp => 0x70,
            Self::SubAck => 0x90,
            Self::PingResp => 0xd0,
            Self::Disconnect => 0xe0,
        }
    }
}

/// One whole control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: PacketKind,
    /// The first byte, for the flags of PUBLISH.
    pub(crate) first_byte: u8,
    /// What the remaining length counts.
    pub(crate) body: &'a [u8],
}

/// The frame at the front of `input` and what follows it, or `None` when more bytes are needed.
///
/// # Errors
/// When the first bytes cannot begin a packet from a broker.
#[inline]
pub(crate) fn split(input: &[u8]) -> Result<Option<(Frame<'_>, &[u8])>, WireFault> {
    let Some((&first_byte, after_first)) = input.split_first() else {
        return Ok(None);
    };
    let kind = PacketKind::of(first_byte).ok_or(WireFault::PacketKind(first_byte))?;
    let Some((remaining, after_length)) = variable_integer(after_first)? else {
        return Ok(None);
    };
    let Some((body, rest)) = after_length.split_at_checked(remaining) else {
        return Ok(None);
    };
    Ok(Some((Frame { kind, first_byte, body }, rest)))
}

/// A variable byte integer and what follows it [MQTT-1.5.5-1], or `None` when more bytes are needed.
///
/// # Errors
/// When it is longer than four bytes.
#[inline]
pub(super) fn variable_integer(input: &[u8]) -> Result<Option<(usize, &[u8])>, WireFault> {
    let mut value = 0;
    let mut rest = input;
    for shift in [0, 7, 14, 21] {
        let Some((&byte, after)) = rest.split_first() else {
            return Ok(None);
        };
        rest = after;
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(Some((value, rest)));
        }
    }
    Err(WireFault::RemainingLength)
}

/// Appends a variable byte integer of at most 268,435,455 [MQTT-1.5.5-1].
pub(crate) fn push_variable_integer(out: &mut Vec<u8>, mut value: usize) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_only_once_it_is_whole() {
        let packet = [0x40, 2, 0, 7, 0xd0, 0];
        for cut in 0..4 {
            assert_eq!(split(&packet[..cut]), Ok(None), "{cut} bytes");
        }
        let (frame, rest) = split(&packet).unwrap().unwrap();
        assert_eq!((frame.kind, frame.body, rest), (PacketKind::PubAck, &[0, 7][..], &packet[4..]));
        let (frame, rest) = split(rest).unwrap().unwrap();
        assert_eq!((frame.kind, frame.body.len(), rest.len()), (PacketKind::PingResp, 0, 0));
    }

    #[test]
    fn lengths_of_one_to_four_bytes_and_no_more() {
        let read = |bytes| variable_integer(bytes).map(|read| read.map(|(value, _)| value));
        assert_eq!(read(&[0]), Ok(Some(0)));
        assert_eq!(read(&[0x7f]), Ok(Some(127)));
        assert_eq!(read(&[0x80, 1]), Ok(Some(128)));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0x7f]), Ok(Some(268_435_455)));
        assert_eq!(read(&[0xff, 0xff]), Ok(None));
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 1]), Err(WireFault::RemainingLength));
    }

    #[test]
    fn packets_of_a_client_and_reserved_flags_are_refused_at_once() {
        for first_byte in [0x00, 0x10, 0x21, 0x41, 0x60, 0x82, 0xa2, 0xc0, 0xf0] {
            assert_eq!(split(&[first_byte]), Err(WireFault::PacketKind(first_byte)));
        }
    }
}

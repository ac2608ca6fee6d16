//! MQTT over WebSocket, the client's side (RFC 6455, MQTT 5 section 6): the opening handshake, frames out, frames in.
//!
//! Frame boundaries mean nothing to MQTT, so what comes in is handed on as a stream of bytes, unframed where it was read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};
use thiserror::Error;

use crate::spread::Random;

/// RFC 6455 section 1.3.
const ACCEPT_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The longest answer to the opening handshake.
pub(super) const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// The most that goes into one frame, bytes.
pub(super) const FRAME_BYTES_MAX: usize = 64 * 1024;

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The longest payload of a control frame (RFC 6455 section 5.5).
const CONTROL_BYTES_MAX: u64 = 125;

/// What a server does that it may not, or does not do.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum WebSocketFault {
    #[error("the broker does not open a WebSocket: {0}")]
    NotOpened(String),
    #[error("the broker closed the WebSocket with status {0}")]
    Closed(u16),
    #[error("the broker sent a WebSocket frame that {0}")]
    Malformed(&'static str),
}

/// An opening handshake: the request, and what its answer must say.
pub(super) struct Opening {
    pub(super) request: Vec<u8>,
    accept: String,
}

impl Opening {
    pub(super) fn new(host: &str, path: &str, random: &mut Random) -> Self {
        let nonce = [random.next().to_be_bytes(), random.next().to_be_bytes()].concat();
        let key = STANDARD.encode(nonce);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        Self { request: request.into_bytes(), accept: STANDARD.encode(Sha1::digest(format!("{key}{ACCEPT_SUFFIX}"))) }
    }

    /// Judges the answer once it is whole: false while it is not.
    pub(super) fn judge(&self, answer: &[u8]) -> Result<bool, WebSocketFault> {
        let fault = |what: &str| WebSocketFault::NotOpened(what.to_owned());
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
            let is_http = answer.iter().zip(b"HTTP/1.1 ").all(|(said, expected)| said == expected);
            return match is_http {
                true if answer.len() < ANSWER_BYTES_MAX => Ok(false),
                true => Err(fault("its answer is too long")),
                false => Err(fault("it does not speak HTTP")),
            };
        };
        let (head, rest) = answer.split_at_checked(end + 4).unwrap_or((answer, &[]));
        let head = String::from_utf8_lossy(head);
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 101") {
            return Err(WebSocketFault::NotOpened(format!("{:?}", status.chars().take(100).collect::<String>())));
        }
        let header = |name: &str| {
            let values = head.split("\r\n").filter_map(|line| line.split_once(':'));
            values.into_iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        if header("sec-websocket-accept") != Some(&self.accept) {
            return Err(fault("its Sec-WebSocket-Accept does not answer our key"));
        }
        if header("sec-websocket-protocol") != Some("mqtt") {
            return Err(fault("it does not agree to the subprotocol mqtt"));
        }
        if !rest.is_empty() {
            return Err(fault("it sent something before CONNECT"));
        }
        Ok(true)
    }
}

/// Appends a masked frame (RFC 6455 section 5.2).
fn push_frame(opcode: u8, payload: &[u8], random: &mut Random, out: &mut Vec<u8>) {
    const MASKED: u8 = 0x80;
    out.push(0x80 | opcode);
    match payload.len() {
        short @ 0..126 => out.push(MASKED | short as u8),
        medium @ 126..65_536 => {
            out.push(MASKED | 126);
            out.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            out.push(MASKED | 127);
            out.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    let [a, b, c, d, ..] = random.next().to_ne_bytes();
    let key = [a, b, c, d];
    out.extend_from_slice(&key);
    let eight = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut words = payload.chunks_exact(8);
    for word in &mut words {
        let word = word.try_into().map_or(0, u64::from_ne_bytes);
        out.extend_from_slice(&(word ^ eight).to_ne_bytes());
    }
    out.extend(words.remainder().iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
}

/// Appends MQTT bytes in a frame.
pub(super) fn push_binary(payload: &[u8], random: &mut Random, out: &mut Vec<u8>) {
    push_frame(BINARY, payload, random, out);
}

/// Appends a normal good-bye.
pub(super) fn push_close(random: &mut Random, out: &mut Vec<u8>) {
    push_frame(CLOSE, &1_000_u16.to_be_bytes(), random, out);
}

/// Takes the frames off what a server sends.
#[derive(Default)]
pub(super) struct Unframer {
    /// The beginning of the header of the next frame.
    header: Vec<u8>,
    /// The frame whose payload is coming: its opcode, and bytes to come.
    frame: Option<(u8, u64)>,
    /// The payload of a control frame.
    control: Vec<u8>,
}

impl Unframer {
    /// Leaves of `bytes` only what is MQTT's, at their front, and says how much that is; appends answers to `out`.
    pub(super) fn unframe(&mut self, bytes: &mut [u8], random: &mut Random, out: &mut Vec<u8>) -> Result<usize, WebSocketFault> {
        let (mut read, mut kept) = (0, 0);
        while read < bytes.len() {
            let Some((opcode, left)) = self.frame else {
                self.header.extend(bytes.get(read));
                read += 1;
                self.begin()?;
                self.end(random, out)?;
                continue;
            };
            let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - read);
            if opcode <= BINARY {
                bytes.copy_within(read..read + here, kept);
                kept += here;
            } else {
                self.control.extend_from_slice(bytes.get(read..read + here).unwrap_or_default());
            }
            read += here;
            self.frame = Some((opcode, left - here as u64));
            self.end(random, out)?;
        }
        Ok(kept)
    }

    /// Begins a frame once its header is whole.
    fn begin(&mut self) -> Result<(), WebSocketFault> {
        let (first, length) = match *self.header.as_slice() {
            [first, length @ 0..126] => (first, u64::from(length)),
            [first, 126, high, low] => (first, u64::from(u16::from_be_bytes([high, low]))),
            [first, 127, a, b, c, d, e, f, g, h] => (first, u64::from_be_bytes([a, b, c, d, e, f, g, h])),
            [_, 128..=255, ..] => return Err(WebSocketFault::Malformed("is masked")),
            _ => return Ok(()),
        };
        let opcode = first & 0x0f;
        match opcode {
            _ if first & 0x70 != 0 => return Err(WebSocketFault::Malformed("uses an extension nobody asked for")),
            CONTINUATION | BINARY => {}
            CLOSE | PING | PONG if first & 0x80 != 0 && length <= CONTROL_BYTES_MAX => {}
            CLOSE | PING | PONG => return Err(WebSocketFault::Malformed("is a control frame and too long or fragmented")),
            _ => return Err(WebSocketFault::Malformed("is not binary")),
        }
        self.header.clear();
        self.frame = Some((opcode, length));
        Ok(())
    }

    /// Ends a frame that is whole.
    fn end(&mut self, random: &mut Random, out: &mut Vec<u8>) -> Result<(), WebSocketFault> {
        let Some((opcode, 0)) = self.frame else { return Ok(()) };
        self.frame = None;
        let control = std::mem::take(&mut self.control);
        match opcode {
            PING => push_frame(PONG, &control, random, out),
            // 1005: no status was given.
            CLOSE => return Err(WebSocketFault::Closed(control.first_chunk().map_or(1_005, |status| u16::from_be_bytes(*status)))),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame as a server sends it.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            short @ 0..126 => frame.push(short as u8),
            medium @ 126..65_536 => frame.extend([&[126][..], &(medium as u16).to_be_bytes()].concat()),
            long => frame.extend([&[127][..], &(long as u64).to_be_bytes()].concat()),
        }
        frame.extend_from_slice(payload);
        frame
    }

    fn unframe(stream: &[u8], piece: usize) -> Result<(Vec<u8>, Vec<u8>), WebSocketFault> {
        let (mut unframer, mut random, mut out, mut all) = (Unframer::default(), Random::new(1), Vec::new(), Vec::new());
        for piece in stream.chunks(piece) {
            let mut piece = piece.to_vec();
            let kept = unframer.unframe(&mut piece, &mut random, &mut out)?;
            all.extend_from_slice(&piece[..kept]);
        }
        Ok((all, out))
    }

    #[test]
    fn payloads_come_whole_however_they_are_cut_and_pings_are_answered() {
        let (long, longer) = (vec![7; 300], vec![8; 70_000]);
        let frames = [
            frame(0x82, b"a"),
            frame(0x82, b""),
            frame(0x02, b"bc"),
            frame(0x89, b"ping"),
            frame(0x80, &long),
            frame(0x8a, b""),
            frame(0x82, &longer),
        ];
        let expected = [&b"abc"[..], &long, &longer].concat();
        for piece in [1, 2, 3, 7, 1_000, 1_000_000] {
            let (seen, out) = unframe(&frames.concat(), piece).unwrap();
            assert!(seen == expected, "pieces of {piece}");
            assert_eq!((out.len(), &out[..2]), (10, &[0x8a, 0x84][..]), "one masked pong");
        }
    }

    #[test]
    fn what_a_server_may_not_send_is_refused() {
        let table: &[(&[u8], WebSocketFault)] = &[
            (&[0x82, 0x81, 0, 0, 0, 0, 0], WebSocketFault::Malformed("is masked")),
            (&[0x81, 1, 0], WebSocketFault::Malformed("is not binary")),
            (&[0xc2, 1, 0], WebSocketFault::Malformed("uses an extension nobody asked for")),
            (&[0x09, 0], WebSocketFault::Malformed("is a control frame and too long or fragmented")),
            (&[0x89, 126, 1, 0], WebSocketFault::Malformed("is a control frame and too long or fragmented")),
            (&[0x88, 2, 3, 0xe9], WebSocketFault::Closed(1_001)),
            (&[0x88, 0], WebSocketFault::Closed(1_005)),
        ];
        for (bytes, expected) in table {
            assert_eq!(unframe(bytes, 1).unwrap_err(), *expected, "{bytes:?}");
        }
    }

    #[test]
    fn what_is_sent_is_masked_and_can_be_unmasked() {
        for length in [0, 5, 8, 125, 126, 65_535, 65_536] {
            let payload: Vec<u8> = (0..length).map(|nth| nth as u8).collect();
            let mut out = Vec::new();
            push_binary(&payload, &mut Random::new(length as u64), &mut out);
            let head = match length {
                0..126 => 2,
                126..65_536 => 4,
                _ => 10,
            };
            let key = out[head..head + 4].to_vec();
            let unmasked: Vec<_> = out[head + 4..].iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
            assert!(unmasked == payload && out[1] & 0x80 != 0, "{length}");
        }
    }

    #[test]
    fn an_answer_opens_the_websocket_or_says_why_not() {
        let opening = Opening::new("host:80", "/mqtt", &mut Random::new(3));
        assert!(opening.request.starts_with(b"GET /mqtt HTTP/1.1\r\nHost: host:80\r\n"));
        let answer = |accept: &str, more: &str| {
            format!("HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: {accept}\r\n{more}\r\n").into_bytes()
        };
        let good = answer(&opening.accept, "Sec-WebSocket-Protocol: mqtt\r\n");
        assert!((1..good.len()).all(|cut| opening.judge(&good[..cut]) == Ok(false)));
        assert_eq!(opening.judge(&good), Ok(true));
        for (answer, why) in [
            (answer("nonsense", "Sec-WebSocket-Protocol: mqtt\r\n"), "Sec-WebSocket-Accept"),
            (answer(&opening.accept, ""), "subprotocol"),
            (b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec(), "404"),
            (b"\x20\x02\0\0".to_vec(), "HTTP"),
            ([good.clone(), vec![0]].concat(), "before CONNECT"),
            ([b"HTTP/1.1 ".to_vec(), vec![b'x'; ANSWER_BYTES_MAX]].concat(), "too long"),
        ] {
            let fault = opening.judge(&answer).unwrap_err().to_string();
            assert!(fault.contains(why), "{fault}: no {why}");
        }
    }

    /// The example of RFC 6455 section 1.3.
    #[test]
    fn the_key_is_answered_as_the_specification_says() {
        let accept = STANDARD.encode(Sha1::digest(format!("dGhlIHNhbXBsZSBub25jZQ=={ACCEPT_SUFFIX}")));
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}

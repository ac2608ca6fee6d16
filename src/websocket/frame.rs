//! Frames (RFC 6455 section 5): [`Decoder`] takes a client's apart, [`head`] and [`control`] make the server's.

/// Longest payload of a control frame (section 5.5).
const CONTROL_BYTES_MAX: u8 = 125;
/// Longest header of a client's frame: two bytes, eight of length, four of mask.
const HEAD_BYTES_MAX: usize = 14;

/// What a frame is (section 5.2). Text is known only to be refused [MQTT-6.0.0-1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// The next fragment of a message.
    Continuation,
    /// Bytes of MQTT.
    Binary,
    /// The last frame of its sender.
    Close,
    /// To be answered with [`Opcode::Pong`] and the same payload.
    Ping,
    /// The answer.
    Pong,
}

impl Opcode {
    fn number(self) -> u8 {
        match self {
            Self::Continuation => 0x0,
            Self::Binary => 0x2,
            Self::Close => 0x8,
            Self::Ping => 0x9,
            Self::Pong => 0xA,
        }
    }

    fn is_control(self) -> bool {
        self.number() & 0x8 != 0
    }
}

/// Why a connection is closed, as a close frame says it (section 7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum CloseCode {
    /// Its purpose is fulfilled.
    Normal = 1000,
    /// The client has broken RFC 6455.
    ProtocolError = 1002,
    /// Text, where MQTT is binary.
    UnsupportedData = 1003,
}

/// A rule that a client has broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Section 5.1.
    #[error("a WebSocket frame without a mask")]
    Unmasked,
    /// MQTT is binary [MQTT-6.0.0-1].
    #[error("a WebSocket text frame")]
    Text,
    /// Reserved bits: no extension was agreed on.
    #[error("a WebSocket frame with reserved bits")]
    Reserved,
    /// Section 5.2.
    #[error("a WebSocket frame of the unknown kind {0:#x}")]
    Opcode(u8),
    /// Section 5.2: the highest bit of eight is 0.
    #[error("a WebSocket frame longer than there can be")]
    Length,
    /// Section 5.5: a control frame that is fragmented or longer than 125 bytes.
    #[error("a WebSocket control frame that is long or in fragments")]
    Control,
    /// Section 5.4: a fragment of nothing, or a new message amid fragments.
    #[error("a WebSocket fragment out of order")]
    Fragment,
    /// Section 5.5.1: a body of one byte.
    #[error("a malformed WebSocket close")]
    Close,
}

impl Violation {
    /// As a close frame says it.
    #[must_use]
    pub fn code(self) -> CloseCode {
        match self {
            Self::Text => CloseCode::UnsupportedData,
            _ => CloseCode::ProtocolError,
        }
    }
}

/// Why nothing more is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client has sent a close frame.
    Closed,
    /// The client has broken the rules.
    Broken(Violation),
}

/// Takes a client's frames apart, in whatever pieces they come.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
    /// A message has begun whose last fragment is not seen yet.
    is_fragmented: bool,
    pong: Option<Vec<u8>>,
    end: Option<End>,
}

#[derive(Debug)]
enum State {
    /// So many bytes of the next header.
    Head { bytes: [u8; HEAD_BYTES_MAX], length: usize },
    /// Payload: bytes to come, and the mask for the next of them.
    Data { left: u64, mask: [u8; 4] },
    /// The payload of a control frame, as far as it is there.
    Control { opcode: Opcode, payload: Vec<u8>, left: u8, mask: [u8; 4] },
}

impl Default for State {
    fn default() -> Self {
        Self::Head { bytes: [0; HEAD_BYTES_MAX], length: 0 }
    }
}

impl Decoder {
    /// Takes `bytes` apart where they lie: the payload that they hold is at their beginning afterwards. Gives back its length. Once there is an
    /// [`Decoder::end`] nothing more is taken.
    pub fn decode(&mut self, bytes: &mut [u8]) -> usize {
        let (mut from, mut to) = (0, 0);
        while self.end.is_none() && from < bytes.len() {
            match &mut self.state {
                State::Head { bytes: head, length } => {
                    if let (Some(place), Some(byte)) = (head.get_mut(*length), bytes.get(from)) {
                        *place = *byte;
                        (*length, from) = (*length + 1, from + 1);
                    }
                    match read_head(head.get(..*length).unwrap_or_default()) {
                        Ok(None) => {}
                        Ok(Some(head)) => self.begin(&head),
                        Err(violation) => self.end = Some(End::Broken(violation)),
                    }
                }
                State::Data { left, mask } => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - from);
                    bytes.copy_within(from..from + here, to);
                    unmask(bytes.get_mut(to..to + here).unwrap_or_default(), mask);
                    (from, to) = (from + here, to + here);
                    *left -= here as u64;
                    if *left == 0 {
                        self.state = State::default();
                    }
                }
                State::Control { payload, left, mask, .. } => {
                    let here = usize::from(*left).min(bytes.len() - from);
                    let piece = bytes.get_mut(from..from + here).unwrap_or_default();
                    unmask(piece, mask);
                    payload.extend_from_slice(piece);
                    from += here;
                    *left = left.saturating_sub(u8::try_from(here).unwrap_or(u8::MAX));
                    self.end_control();
                }
            }
        }
        to
    }

    /// What a ping wants back; of several, the newest (section 5.5.3).
    pub fn take_pong(&mut self) -> Option<Vec<u8>> {
        self.pong.take()
    }

    /// Whether and why nothing more is decoded.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    fn begin(&mut self, head: &Head) {
        let Head { opcode, is_final, length, mask } = *head;
        if opcode.is_control() {
            match u8::try_from(length) {
                Ok(left @ 0..=CONTROL_BYTES_MAX) if is_final => {
                    self.state = State::Control { opcode, payload: Vec::new(), left, mask };
                    self.end_control();
                }
                _ => self.end = Some(End::Broken(Violation::Control)),
            }
            return;
        }
        if (opcode == Opcode::Continuation) != self.is_fragmented {
            self.end = Some(End::Broken(Violation::Fragment));
            return;
        }
        self.is_fragmented = !is_final;
        self.state = if length == 0 { State::default() } else { State::Data { left: length, mask } };
    }

    /// Does what a control frame says, once it is whole.
    fn end_control(&mut self) {
        let State::Control { opcode, payload, left: 0, .. } = &mut self.state else { return };
        let (opcode, payload) = (*opcode, std::mem::take(payload));
        self.state = State::default();
        match opcode {
            Opcode::Ping => self.pong = Some(payload),
            Opcode::Close if payload.len() == 1 => self.end = Some(End::Broken(Violation::Close)),
            Opcode::Close => self.end = Some(End::Closed),
            Opcode::Continuation | Opcode::Binary | Opcode::Pong => {}
        }
    }
}

struct Head {
    opcode: Opcode,
    is_final: bool,
    length: u64,
    mask: [u8; 4],
}

/// `None`: it goes on. What is wrong is seen as early as can be.
fn read_head(bytes: &[u8]) -> Result<Option<Head>, Violation> {
    let Some((&[first, second], rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
    if first & 0x70 != 0 {
        return Err(Violation::Reserved);
    }
    let opcode = match first & 0x0F {
        0x0 => Opcode::Continuation,
        0x1 => return Err(Violation::Text),
        0x2 => Opcode::Binary,
        0x8 => Opcode::Close,
        0x9 => Opcode::Ping,
        0xA => Opcode::Pong,
        other => return Err(Violation::Opcode(other)),
    };
    if second & 0x80 == 0 {
        return Err(Violation::Unmasked);
    }
    let (length, rest) = match second & 0x7F {
        126 => match rest.split_first_chunk() {
            Some((length, rest)) => (u16::from_be_bytes(*length).into(), rest),
            None => return Ok(None),
        },
        127 => match rest.split_first_chunk() {
            Some((length, rest)) => (u64::from_be_bytes(*length), rest),
            None => return Ok(None),
        },
        length => (length.into(), rest),
    };
    if length > u64::MAX / 2 {
        return Err(Violation::Length);
    }
    let Some(mask) = rest.first_chunk() else { return Ok(None) };
    Ok(Some(Head { opcode, is_final: first & 0x80 != 0, length, mask: *mask }))
}

/// Takes the mask away (section 5.3), and turns it to where the next byte begins.
fn unmask(bytes: &mut [u8], mask: &mut [u8; 4]) {
    let (words, rest) = bytes.as_chunks_mut::<4>();
    let key = u32::from_ne_bytes(*mask);
    for word in words {
        *word = (u32::from_ne_bytes(*word) ^ key).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(mask.iter()) {
        *byte ^= key;
    }
    mask.rotate_left(rest.len());
}

/// The header of a frame of ours that is whole by itself, and its length.
#[must_use]
pub fn head(opcode: Opcode, length: usize) -> ([u8; 10], usize) {
    let mut bytes = [0x80 | opcode.number(), 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let [_, short, long @ ..] = &mut bytes;
    let used = if length <= CONTROL_BYTES_MAX.into() {
        *short = u8::try_from(length).unwrap_or(CONTROL_BYTES_MAX);
        2
    } else if let Ok(length) = u16::try_from(length) {
        *short = 126;
        let [high, low] = length.to_be_bytes();
        [long[0], long[1]] = [high, low];
        4
    } else {
        *short = 127;
        *long = (length as u64).to_be_bytes();
        10
    };
    (bytes, used)
}

/// A whole control frame of ours. Of a payload that is too long, what fits.
#[must_use]
pub fn control(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let payload = payload.get(..CONTROL_BYTES_MAX.into()).unwrap_or(payload);
    let (bytes, used) = head(opcode, payload.len());
    [bytes.get(..used).unwrap_or_default(), payload].concat()
}

/// A close frame of ours.
#[must_use]
pub fn close(code: CloseCode) -> Vec<u8> {
    control(Opcode::Close, &(code as u16).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame as a client sends it.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let (head, used) = head(Opcode::Binary, payload.len());
        let mask = [0x12, 0xF3, 0x00, 0x81];
        let masked = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
        [&[first, head[1] | 0x80], &head[2..used], &mask].concat().into_iter().chain(masked).collect()
    }

    const BINARY: u8 = 0x82;

    /// In pieces of `step` bytes.
    fn decode(bytes: &[u8], step: usize) -> (Vec<u8>, Option<End>, Vec<Vec<u8>>) {
        let mut decoder = Decoder::default();
        let (mut payload, mut pongs) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(step) {
            let mut piece = piece.to_vec();
            let length = decoder.decode(&mut piece);
            payload.extend_from_slice(&piece[..length]);
            pongs.extend(decoder.take_pong());
        }
        (payload, decoder.end(), pongs)
    }

    #[test]
    fn payload_comes_out_as_it_went_in() {
        for length in [0, 1, 2, 3, 4, 5, 125, 126, 127, 4_000, 65_535, 65_536, 70_001] {
            let payload: Vec<u8> = (0..length).map(|n: u32| (n % 251) as u8).collect();
            let bytes = [frame(BINARY, &payload), frame(BINARY, b"end")].concat();
            for step in [1, 2, 3, 7, 13, 1_000, 1 << 20] {
                let expected = [&payload[..], b"end"].concat();
                assert_eq!(decode(&bytes, step), (expected, None, Vec::new()), "{length} in pieces of {step}");
            }
        }
    }

    #[test]
    fn fragments_flow_and_control_frames_stand_between_them() {
        let bytes = [
            frame(0x02, b"ab"),
            frame(0x89, b"hi"),
            frame(0x00, b""),
            frame(0x8A, b"unasked"),
            frame(0x80, b"c"),
            frame(BINARY, b"d"),
            frame(0x88, &[0x03, 0xE8]),
            frame(BINARY, b"after the close"),
        ]
        .concat();
        for step in 1..20 {
            assert_eq!(decode(&bytes, step), (b"abcd".to_vec(), Some(End::Closed), vec![b"hi".to_vec()]), "in pieces of {step}");
        }
    }

    #[test]
    fn what_breaks_the_rules_ends_it_and_what_came_before_counts() {
        let unmasked = head(Opcode::Binary, 0).0[..2].to_vec();
        let endless = [&[BINARY, 0xFF][..], &[0xFF; 8]].concat();
        for (bytes, violation) in [
            (unmasked, Violation::Unmasked),
            (frame(0x81, b"text"), Violation::Text),
            (frame(0x01, b"text"), Violation::Text),
            (frame(0xC2, b""), Violation::Reserved),
            (frame(0x92, b""), Violation::Reserved),
            (frame(0x83, b""), Violation::Opcode(3)),
            (frame(0x8B, b""), Violation::Opcode(11)),
            (endless, Violation::Length),
            (frame(0x09, b""), Violation::Control),
            (frame(0x89, &[0; 126]), Violation::Control),
            (frame(0x80, b""), Violation::Fragment),
            ([frame(0x02, b""), frame(BINARY, b"")].concat(), Violation::Fragment),
            (frame(0x88, b"x"), Violation::Close),
        ] {
            let bytes = [frame(BINARY, b"before"), bytes, frame(BINARY, b"behind")].concat();
            for step in [1, 5, 1_000] {
                assert_eq!(decode(&bytes, step), (b"before".to_vec(), Some(End::Broken(violation)), Vec::new()), "{violation}");
            }
        }
    }

    #[test]
    fn of_many_pings_the_newest_is_answered() {
        let bytes = [frame(0x89, b"1"), frame(0x89, b"2"), frame(0x89, &[7; 125])].concat();
        assert_eq!(decode(&bytes, 1 << 20).2, [vec![7; 125]]);
        assert_eq!(control(Opcode::Pong, &[7; 125]).len(), 127);
        assert_eq!(close(CloseCode::ProtocolError), [0x88, 2, 0x03, 0xEA]);
    }
}

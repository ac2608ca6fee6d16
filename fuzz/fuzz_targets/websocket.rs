//! Any bytes as a client's side of a WebSocket: no panic, and the same payload, pong and end in whatever pieces they come. The first byte is the
//! size of the pieces; where the bytes begin a request, what follows it are frames.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt_st_quic::websocket::frame::{Decoder, End, Opcode, control};
use mqtt_st_quic::websocket::upgrade::{Answer, REQUEST_BYTES_MAX, Rules, answer};

fn decode(bytes: &[u8], step: usize) -> (Vec<u8>, Option<End>, Option<Vec<u8>>) {
    let mut decoder = Decoder::default();
    let (mut payload, mut pong) = (Vec::new(), None);
    for piece in bytes.chunks(step) {
        let mut piece = piece.to_vec();
        let length = decoder.decode(&mut piece);
        assert!(length <= piece.len());
        payload.extend_from_slice(&piece[..length]);
        pong = decoder.take_pong().or(pong);
    }
    (payload, decoder.end(), pong)
}

fuzz_target!(|input: &[u8]| {
    let Some((step, bytes)) = input.split_first() else { return };
    let rules = Rules { path: None, origins: vec!["https://a".to_owned()] };
    let frames = match answer(bytes, &rules) {
        Answer::More => {
            assert!(bytes.len() < REQUEST_BYTES_MAX);
            bytes
        }
        Answer::Refuse(response, _) => {
            assert!(response.starts_with(b"HTTP/1.1 4"));
            bytes
        }
        Answer::Open(response, length) => {
            assert!(response.starts_with(b"HTTP/1.1 101 ") && response.ends_with(b"\r\n\r\n"));
            &bytes[length..]
        }
    };
    let whole = decode(frames, usize::MAX);
    assert_eq!(decode(frames, usize::from(*step).max(1)), whole);
    assert!(whole.0.len() < frames.len().max(1));
    if let (_, _, Some(payload)) = whole {
        assert_eq!(control(Opcode::Pong, &payload).len(), payload.len() + 2);
    }
});

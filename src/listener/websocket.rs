//! A byte stream over WebSocket: what `connection` reads and writes are the payloads of binary frames.
//!
//! * Frames are taken apart where they were read, and their payload stays there; what is written goes behind a frame's header with one
//!   vectored write. So nothing is held for an idle connection, and nothing of a frame is ever held whole.
//! * A ping is answered, a close is answered and ends the stream. Breaking the rules ends it with an error of the kind `InvalidData`; the
//!   close frame that says why is sent all the same, and what the client still sends is then read and dropped.
//! * A frame of ours has 64 KiB at most: some clients take no longer ones. Control frames stand between frames, never in one.
//!
//! Specification: RFC 6455 sections 5 to 7; MQTT 5.0 section 6. What the bytes mean is `websocket`'s.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::connection::Stream;
use crate::websocket::frame::{self, CloseCode, Decoder, End, Opcode};
use crate::websocket::upgrade::{self, Answer, Rules};

/// Longest payload of a frame that is written: the most that a length of two bytes can say.
const FRAME_BYTES_MAX: usize = u16::MAX as usize;
/// Slices of one write, the header among them.
const IO_SLICES: usize = 33;

/// Why no WebSocket was opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpgradeError {
    /// The connection broke, or ended before a whole request.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The client was told so.
    #[error("no WebSocket: {0}")]
    Refused(&'static str),
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct WebSocket<S> {
    stream: S,
    decoder: Decoder,
    /// Read behind the request: the first frames.
    first: Vec<u8>,
    /// Control frames on their way, and how much of them is written.
    control: Vec<u8>,
    control_written: usize,
    /// The header of the frame that is being written, its length, and how much of it is written.
    head: [u8; 10],
    head_bytes: usize,
    head_written: usize,
    /// Payload of that frame still to come.
    payload_left: usize,
    /// Our close frame is on its way, or gone: no other frame follows.
    is_closing: bool,
    /// That the client has broken the rules was said.
    is_reported: bool,
}

/// Reads the request and answers it.
pub(super) async fn accept(mut stream: Stream, rules: &Rules) -> Result<WebSocket<Stream>, UpgradeError> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        match upgrade::answer(&request, rules) {
            Answer::More => {}
            Answer::Open(response, length) => {
                stream.write_all(&response).await?;
                stream.flush().await?;
                return Ok(WebSocket::new(stream, request.split_off(length)));
            }
            Answer::Refuse(response, why) => {
                stream.write_all(&response).await?;
                stream.shutdown().await?;
                return Err(UpgradeError::Refused(why));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    fn new(stream: S, first: Vec<u8>) -> Self {
        Self {
            stream,
            decoder: Decoder::default(),
            first,
            control: Vec::new(),
            control_written: 0,
            head: [0; 10],
            head_bytes: 0,
            head_written: 0,
            payload_left: 0,
            is_closing: false,
            is_reported: false,
        }
    }

    /// What is read next, of the first bytes or of the stream, as it came; nothing at its end.
    fn poll_raw(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        buffer.put_slice(self.first.get(..count).unwrap_or_default());
        self.first.drain(..count);
        Poll::Ready(Ok(()))
    }

    /// Nothing is written of a frame that is not written whole.
    fn is_between_frames(&self) -> bool {
        self.head_written == self.head_bytes && self.payload_left == 0
    }

    /// Our last frame, once.
    fn close(&mut self, code: CloseCode) {
        if !self.is_closing {
            self.is_closing = true;
            self.control.extend_from_slice(&frame::close(code));
        }
    }

    /// Writes the control frames that wait, if they may come now. They are forgotten where the stream has ended.
    fn poll_control(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_between_frames() {
            return Poll::Ready(Ok(()));
        }
        if self.control.is_empty()
            && !self.is_closing
            && let Some(payload) = self.decoder.take_pong()
        {
            self.control = frame::control(Opcode::Pong, &payload);
        }
        while let Some(rest) = self.control.get(self.control_written..).filter(|rest| !rest.is_empty()) {
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.control_written += count;
        }
        self.control = Vec::new();
        self.control_written = 0;
        Poll::Ready(Ok(()))
    }

    /// Control frames and what the stream below buffers, as far as it goes now; the task is woken for the rest. Trouble is for who writes next.
    fn push_control(&mut self, cx: &mut Context<'_>) {
        if self.poll_control(cx).is_ready() {
            let _ = Pin::new(&mut self.stream).poll_flush(cx);
        }
    }

    /// The end that the decoder has found, as the reader is to see it.
    fn poll_end(&mut self, end: End, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let End::Broken(violation) = end else {
            self.close(CloseCode::Normal);
            self.push_control(cx);
            return Poll::Ready(Ok(()));
        };
        self.close(violation.code());
        self.push_control(cx);
        if !self.is_reported {
            self.is_reported = true;
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
        }
        // Dropped, so that our close frame is not lost to a reset for what was not read.
        let filled = buffer.filled().len();
        loop {
            ready!(self.poll_raw(cx, buffer))?;
            if buffer.filled().len() == filled {
                return Poll::Ready(Ok(()));
            }
            buffer.set_filled(filled);
        }
    }

    fn poll_write_slices(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.is_between_frames() {
            ready!(self.poll_control(cx))?;
            if self.is_closing {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let length = slices.iter().map(|slice| slice.len()).sum::<usize>().min(FRAME_BYTES_MAX);
            if length == 0 {
                return Poll::Ready(Ok(0));
            }
            (self.head, self.head_bytes) = frame::head(Opcode::Binary, length);
            (self.head_written, self.payload_left) = (0, length);
        }
        loop {
            let mut all = [IoSlice::new(&[]); IO_SLICES];
            let head = self.head.get(self.head_written..self.head_bytes).unwrap_or_default();
            let mut left = self.payload_left;
            let payload = slices.iter().map_while(|slice| {
                let part = slice.get(..slice.len().min(left)).unwrap_or_default();
                left -= part.len();
                (!part.is_empty() || slice.is_empty()).then_some(part)
            });
            let parts = [head].into_iter().chain(payload).filter(|part| !part.is_empty());
            let mut used = 0;
            for (slot, part) in all.iter_mut().zip(parts) {
                *slot = IoSlice::new(part);
                used += 1;
            }
            let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, all.get(..used).unwrap_or_default()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_head = written.min(self.head_bytes - self.head_written);
            self.head_written += of_head;
            let of_payload = written - of_head;
            self.payload_left -= of_payload;
            if of_payload > 0 {
                return Poll::Ready(Ok(of_payload));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(end) = self.decoder.end() {
                return self.poll_end(end, cx, buffer);
            }
            let before = buffer.filled().len();
            ready!(self.poll_raw(cx, buffer))?;
            let new = buffer.filled_mut().get_mut(before..).unwrap_or_default();
            if new.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let payload = self.decoder.decode(new);
            buffer.set_filled(before + payload);
            self.push_control(cx);
            if payload > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_slices(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_write_slices(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_control(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close(CloseCode::Normal);
        ready!(self.poll_control(cx))?;
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Reads what it was given in pieces of `step`, then ends; writes `step` bytes at once.
    #[derive(Debug)]
    struct Slow {
        step: usize,
        input: Vec<u8>,
        output: Vec<u8>,
        is_shut: bool,
    }

    impl AsyncRead for Slow {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let count = self.step.min(self.input.len()).min(buffer.remaining());
            buffer.put_slice(&self.input[..count]);
            self.input.drain(..count);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = self.step.min(bytes.len());
            self.output.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_write_vectored(mut self: Pin<&mut Self>, _: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).take(self.step).collect();
            self.output.extend_from_slice(&all);
            Poll::Ready(Ok(all.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.is_shut = true;
            Poll::Ready(Ok(()))
        }
    }

    /// Under a mask of zeros.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let (head, used) = frame::head(Opcode::Binary, payload.len());
        [&[first, head[1] | 0x80], &head[2..used], &[0; 4], payload].concat()
    }

    fn socket(step: usize, input: &[u8]) -> WebSocket<Slow> {
        let (first, rest) = input.split_at(input.len().min(3));
        let stream = Slow { step, input: rest.to_vec(), output: Vec::new(), is_shut: false };
        WebSocket::new(stream, first.to_vec())
    }

    #[tokio::test]
    async fn payload_is_read_and_pings_are_answered_between_frames() {
        let input = [frame(0x82, b"abc"), frame(0x89, b"hi"), frame(0x82, b"def"), frame(0x88, &[3, 0xE8])].concat();
        for step in 1..30 {
            let mut socket = socket(step, &input);
            // A frame that is begun is finished first.
            poll_fn(|cx| Pin::new(&mut socket).poll_write(cx, b"1234")).await.unwrap();
            let mut read = Vec::new();
            socket.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"abcdef", "step {step}");
            let left = socket.payload_left;
            socket.write_all(&b"1234"[4 - left..]).await.unwrap();
            socket.flush().await.unwrap();
            let output = socket.stream.output;
            assert!(output.starts_with(b"\x82\x041234"), "step {step}: {output:02x?}");
            // Where the end came while a frame was under way, the close is all that is still said.
            let rest = &output[6..];
            assert!([&b"\x8A\x02hi\x88\x02\x03\xE8"[..], b"\x88\x02\x03\xE8"].contains(&rest), "step {step}: {rest:02x?}");
        }
    }

    #[tokio::test]
    async fn what_is_written_comes_in_whole_frames_of_bounded_size() {
        let payload: Vec<u8> = (0..200_000).map(|n: u32| (n % 251) as u8).collect();
        for step in [1, 3, 1_000, 70_000, 1 << 20] {
            let mut socket = socket(step, b"");
            let mut rest = payload.as_slice();
            while !rest.is_empty() {
                let (a, b) = rest.split_at(rest.len() / 3);
                let slices = [IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)];
                let count = poll_fn(|cx| Pin::new(&mut socket).poll_write_vectored(cx, &slices)).await.unwrap();
                rest = &rest[count..];
            }
            socket.shutdown().await.unwrap();
            assert!(socket.stream.is_shut);
            let (mut bytes, mut seen) = (socket.stream.output.as_slice(), Vec::new());
            while let Some((&[0x82, length], rest)) = bytes.split_first_chunk::<2>() {
                let (length, rest) = match length {
                    126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
                    short => (usize::from(short), rest),
                };
                seen.extend_from_slice(&rest[..length]);
                bytes = &rest[length..];
            }
            assert!(seen == payload && bytes == b"\x88\x02\x03\xE8", "step {step}");
        }
    }

    #[tokio::test]
    async fn who_breaks_the_rules_is_told_and_not_heard_any_more() {
        let input = [frame(0x82, b"abc"), frame(0x81, b"text"), frame(0x82, b"behind"), vec![7; 10_000]].concat();
        for step in [1, 2, 64, 1 << 20] {
            let mut socket = socket(step, &input);
            let mut read = Vec::new();
            let error = socket.read_to_end(&mut read).await.unwrap_err();
            assert_eq!((error.kind(), read.as_slice()), (io::ErrorKind::InvalidData, b"abc".as_slice()));
            assert_eq!(socket.read_to_end(&mut read).await.unwrap(), 0);
            assert!(socket.stream.input.is_empty());
            socket.shutdown().await.unwrap();
            assert_eq!(socket.stream.output, b"\x88\x02\x03\xEB");
        }
    }
}

//! A socket with a buffer on either side: bytes come in as frames, whatever is queued goes out in one write.
//!
//! Reading borrows a buffer of the thread, so an idle client holds none; only the beginning of an unfinished packet is kept.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;

use super::fault::Fault;
use super::stream::Stream;
use crate::wire::{Frame, split};

/// Bytes asked for in one read.
const READ_BYTES: usize = 256 * 1024;

/// The longest unfinished packet that is copied in front of the next read; a longer one is collected where it is.
const CARRY_BYTES: usize = 16 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; CARRY_BYTES + READ_BYTES]);
}

/// See the module.
pub(crate) struct Transport {
    stream: Stream,
    /// The beginning of a packet whose end has not come. Grows by what was received, never by what was announced.
    unfinished: Vec<u8>,
    /// What is to be written; `out[..written]` is.
    out: Vec<u8>,
    written: usize,
    bytes_read: u64,
    bytes_written: u64,
}

impl Transport {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, unfinished: Vec::new(), out: Vec::new(), written: 0, bytes_read: 0, bytes_written: 0 }
    }

    /// Where to queue bytes.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes that wait for the socket.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.out.len() - self.written + self.stream.queued_bytes()
    }

    /// Bytes read and written since the beginning.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.bytes_read, self.bytes_written)
    }

    /// Reads once, and hands every whole frame to `handle` together with the queue for its answers.
    pub(crate) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        mut handle: impl FnMut(&Frame<'_>, &mut Vec<u8>) -> Result<(), Fault>,
    ) -> Poll<Result<(), Fault>> {
        let Self { stream, unfinished, out, bytes_read, .. } = self;
        SCRATCH.with_borrow_mut(|scratch| {
            let carried = if unfinished.len() <= CARRY_BYTES { unfinished.len() } else { 0 };
            let (front, space) = scratch.split_at_mut(carried);
            front.copy_from_slice(unfinished.get(..carried).unwrap_or_default());
            let mut space = ReadBuf::new(space);
            ready!(stream.poll_read(cx, &mut space))?;
            let fresh = space.filled().len();
            if fresh == 0 {
                return Poll::Ready(Err(Fault::Closed));
            }
            *bytes_read += fresh as u64;
            if carried == unfinished.len() {
                let rest = each_frame(scratch.get(..carried + fresh).unwrap_or_default(), |frame| handle(frame, out))?;
                unfinished.clear();
                unfinished.extend_from_slice(rest);
            } else {
                unfinished.extend_from_slice(space.filled());
                let rest_bytes = each_frame(unfinished, |frame| handle(frame, out))?.len();
                unfinished.drain(..unfinished.len() - rest_bytes);
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Writes what is queued; ready when nothing is.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            let written = ready!(self.stream.poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(Fault::Closed));
            }
            self.written += written;
            self.bytes_written += written as u64;
        }
        self.out.clear();
        self.written = 0;
        self.stream.poll_flush(cx).map_err(Fault::from)
    }

    /// Writes what is queued and says good-bye.
    pub(crate) async fn close(&mut self) -> Result<(), Fault> {
        poll_fn(|cx| self.poll_flush(cx)).await?;
        self.stream.close().await.map_err(Fault::from)
    }
}

/// Hands out the frames of `input` and returns what is left of it.
fn each_frame(mut input: &[u8], mut handle: impl FnMut(&Frame<'_>) -> Result<(), Fault>) -> Result<&[u8], Fault> {
    while let Some((frame, rest)) = split(input)? {
        handle(&frame)?;
        input = rest;
    }
    Ok(input)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// A transport, and the other end of its socket.
    async fn pair() -> (Transport, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Stream::open(&listener.local_addr().unwrap().to_string().into()).await.unwrap();
        (Transport::new(stream), listener.accept().unwrap().0)
    }

    fn publish_of(payload_bytes: usize, fill: u8) -> Vec<u8> {
        let remaining = payload_bytes + 3;
        let mut packet = vec![0x30, (remaining & 0x7f) as u8 | 0x80, (remaining >> 7 & 0x7f) as u8 | 0x80, (remaining >> 14) as u8];
        packet.extend_from_slice(b"\0\x01t");
        packet.resize(packet.len() + payload_bytes, fill);
        packet
    }

    /// Packets from 6 bytes to 1 MB, written in pieces that end anywhere.
    #[tokio::test]
    async fn frames_come_whole_however_they_are_cut() {
        let sizes = [0, 1, 5_000, CARRY_BYTES, READ_BYTES, 1_000_000, 3, 70_000];
        let packets: Vec<_> = sizes.iter().zip(b'a'..).map(|(&size, fill)| publish_of(size, fill)).collect();
        let (mut transport, mut far) = pair().await;
        let stream = packets.concat();
        let writer = tokio::task::spawn_blocking(move || {
            stream.chunks(4_099).for_each(|piece| far.write_all(piece).unwrap());
            far
        });
        let mut seen = Vec::new();
        while seen.len() < packets.len() {
            poll_fn(|cx| {
                transport.poll_frames(cx, |frame, _| {
                    seen.push(frame.body.to_vec());
                    Ok(())
                })
            })
            .await
            .unwrap();
        }
        assert!(seen.iter().zip(&packets).all(|(body, packet)| packet.ends_with(body) && body.len() == packet.len() - 4));
        assert!(transport.unfinished.is_empty());
        drop(writer.await.unwrap());
        let end = poll_fn(|cx| transport.poll_frames(cx, |_, _| Ok(()))).await;
        assert!(matches!(end, Err(Fault::Closed)));
    }

    #[tokio::test]
    async fn answers_are_queued_while_reading_and_written_together() {
        let (mut transport, mut far) = pair().await;
        far.write_all(&[0xd0, 0, 0xd0, 0]).unwrap();
        let mut frames = 0;
        while frames < 2 {
            poll_fn(|cx| {
                transport.poll_frames(cx, |_, out| {
                    frames += 1;
                    out.extend_from_slice(b"ok");
                    Ok(())
                })
            })
            .await
            .unwrap();
        }
        assert_eq!(transport.queued_bytes(), 4);
        poll_fn(|cx| transport.poll_flush(cx)).await.unwrap();
        assert_eq!((transport.queued_bytes(), transport.totals()), (0, (4, 4)));
    }
}

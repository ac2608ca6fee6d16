//! Bytes in and out of one client's socket. An idle connection holds no buffer: what is read into belongs to the worker thread, what is written
//! from is swapped with the outbox.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::codec;
use crate::interest::EchoWait;
use crate::limits::READ_BYTES;
use crate::router::Batch;
use crate::session::Drained;

/// Segments that one vectored write takes.
const IO_SLICES: usize = 32;
/// An emptied buffer above this size is given back.
const KEPT_BUFFER_BYTES: usize = 4 * 1024;

/// What a worker thread lends to the connection that it polls.
#[derive(Debug)]
pub(super) struct Worker {
    /// Read into.
    pub(super) input: Vec<u8>,
    /// Filled by the packets of one read batch.
    pub(super) scratch: Scratch,
}

/// See [`Worker::scratch`].
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// What the batch has published.
    pub(super) batch: Batch,
    /// What waited in the session has been moved to the outbox since a batch ended.
    pub(super) has_pumped: bool,
    /// Answers to the client, appended to its outbox once a batch.
    pub(super) answers: Vec<u8>,
    /// Acknowledgements of its publishes, which may have to wait for the store and for the mesh.
    pub(super) acknowledgements: Vec<u8>,
    /// How many packets these are.
    pub(super) answers_count: u64,
    /// The change that must be safe before anything more is written to the client.
    pub(super) barrier: u64,
    /// Other brokers must know what the client has subscribed to before that.
    pub(super) echo: Option<EchoWait>,
    /// A message of QoS 2 has come again: what it was published as is not known.
    pub(super) has_repeats: bool,
    /// Forwarded properties of the message at hand.
    pub(super) properties: Vec<u8>,
}

impl Worker {
    fn new() -> Self {
        Self { input: vec![0; READ_BYTES], scratch: Scratch::default() }
    }
}

thread_local! {
    static WORKER: RefCell<Worker> = RefCell::new(Worker::new());
}

/// Lends the thread's worker for one poll.
pub(super) fn with_worker<T>(body: impl FnOnce(&mut Worker) -> T) -> T {
    WORKER.with(|worker| match worker.try_borrow_mut() {
        Ok(mut worker) => body(&mut worker),
        // A poll inside a poll: only a waker that polls its task in place could do that, and no runtime's does.
        Err(_) => body(&mut Worker::new()),
    })
}

/// The unfinished packet at the end of what was read.
#[derive(Debug, Default)]
pub(super) struct Input {
    rest: Vec<u8>,
    /// Whole length of the packet that `rest` begins, if it does not fit the worker's buffer.
    large: Option<NonZeroUsize>,
}

/// What one read brought.
pub(super) enum Read<'a> {
    /// The client has closed its side.
    End,
    /// A part of a large packet; nothing to decode yet.
    Part(usize),
    /// Bytes to decode, the last `usize` of them new. What is not consumed goes to [`Input::keep`].
    Bytes(&'a [u8], usize),
    /// The same, with a whole large packet in front.
    Large(Vec<u8>, usize),
}

impl Input {
    /// What is missing of the packet that is coming, bytes, as far as it is known.
    pub(super) fn missing(&self) -> usize {
        let length = self.large.map(NonZeroUsize::get).or_else(|| codec::frame_length(&self.rest).ok().flatten());
        length.unwrap_or(0).saturating_sub(self.rest.len())
    }

    /// Reads once, `most` bytes at most.
    pub(super) fn poll_read<'a, S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        input: &'a mut [u8],
        most: usize,
    ) -> Poll<io::Result<Read<'a>>> {
        let kept = if self.large.is_some() { 0 } else { self.rest.len() };
        let Some((front, free)) = input.split_at_mut_checked(kept) else {
            return Poll::Ready(Err(io::Error::other("an unfinished packet outgrew the read buffer")));
        };
        let room = free.len().min(most);
        let mut buffer = ReadBuf::new(free.get_mut(..room).unwrap_or_default());
        ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
        let new = buffer.filled().len();
        if new == 0 {
            return Poll::Ready(Ok(Read::End));
        }
        if let Some(length) = self.large {
            // Memory grows with what arrives, not with what is announced.
            self.rest.extend_from_slice(buffer.filled());
            if self.rest.len() < length.get() {
                return Poll::Ready(Ok(Read::Part(new)));
            }
            self.large = None;
            return Poll::Ready(Ok(Read::Large(std::mem::take(&mut self.rest), new)));
        }
        if kept > 0 {
            front.copy_from_slice(&self.rest);
            self.rest.clear();
        }
        Poll::Ready(Ok(Read::Bytes(input.get(..kept + new).unwrap_or_default(), new)))
    }

    /// Keeps the beginning of a packet of `length` bytes (if its header is there) for the next read.
    pub(super) fn keep(&mut self, rest: &[u8], length: Option<usize>) {
        self.large = length.filter(|length| *length > READ_BYTES).and_then(NonZeroUsize::new);
        if rest.is_empty() && self.rest.capacity() > 0 {
            self.rest = Vec::new();
        } else {
            self.rest.clear();
            self.rest.extend_from_slice(rest);
        }
    }
}

/// What was taken from the outbox and is not written yet.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Refilled by [`crate::session::Outbox::take`] when all is written.
    pub(super) drained: Drained,
    /// Bytes of the first segment, or of the tail once there is no segment, that are written.
    written: usize,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.drained.segments.is_empty() && self.written >= self.drained.tail.len()
    }

    /// Behind everything else: the last packet of a connection.
    pub(super) fn last(&mut self) -> &mut Vec<u8> {
        if self.is_empty() {
            self.drained.tail.clear();
            self.written = 0;
        }
        &mut self.drained.tail
    }

    /// Forgets what was written; the buffers go to the outbox with the next [`crate::session::Outbox::take`].
    pub(super) fn reset(&mut self) {
        self.drained.tail.clear();
        self.written = 0;
    }

    /// Gives back large buffers: the connection goes to sleep.
    pub(super) fn shrink(&mut self) {
        if self.drained.tail.capacity() > KEPT_BUFFER_BYTES {
            self.drained.tail = Vec::new();
        }
        if self.drained.segments.capacity() > IO_SLICES {
            self.drained.segments = std::collections::VecDeque::new();
        }
    }

    /// Writes once; counts what went.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stream = Pin::new(stream);
        let only = match self.drained.segments.front() {
            None => Some(self.drained.tail.as_slice()),
            Some(first) => (self.drained.segments.len() == 1 && self.drained.tail.is_empty()).then(|| first.bytes()),
        };
        let count = if let Some(only) = only {
            ready!(stream.poll_write(cx, only.get(self.written..).unwrap_or_default()))?
        } else {
            let mut slices = [IoSlice::new(&[]); IO_SLICES];
            let runs = self.drained.segments.iter().map(|s| s.bytes()).chain([self.drained.tail.as_slice()]);
            let mut used = 0;
            for (slot, run) in slices.iter_mut().zip(runs) {
                let skip = if used == 0 { self.written } else { 0 };
                *slot = IoSlice::new(run.get(skip..).unwrap_or_default());
                used += 1;
            }
            ready!(stream.poll_write_vectored(cx, slices.get(..used).unwrap_or_default()))?
        };
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(count);
        Poll::Ready(Ok(count))
    }

    fn advance(&mut self, count: usize) {
        self.written += count;
        while let Some(first) = self.drained.segments.front() {
            let length = first.bytes().len();
            if self.written < length {
                return;
            }
            self.written -= length;
            self.drained.segments.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use bytes::Bytes;

    use super::*;
    use crate::session::Segment;

    /// Takes `step` bytes a write.
    struct Slow {
        step: usize,
        got: Vec<u8>,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.step);
            self.got.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_write_vectored(mut self: Pin<&mut Self>, _: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).take(self.step).collect();
            self.got.extend_from_slice(&all);
            Poll::Ready(Ok(all.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn short_writes_lose_and_repeat_nothing() {
        for (step, tail) in (1..12).flat_map(|step| [(step, "ijk"), (step, "")]) {
            let drained = Drained {
                segments: VecDeque::from([
                    Segment::Copied(b"abc".to_vec()),
                    Segment::Shared(Bytes::from_static(b"DEFG")),
                    Segment::Copied(b"h".to_vec()),
                ]),
                tail: tail.into(),
            };
            let mut output = Output { drained, written: 0 };
            let mut stream = Slow { step, got: Vec::new() };
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let expected = format!("abcDEFGh{tail}");
            let mut left = expected.len();
            while !output.is_empty() {
                let Poll::Ready(Ok(count)) = output.poll_write(&mut stream, &mut cx) else { panic!("never blocks") };
                left -= count;
            }
            assert_eq!((stream.got.as_slice(), left), (expected.as_bytes(), 0), "step {step}");
        }
    }

    #[test]
    fn a_packet_larger_than_the_buffer_is_gathered_as_it_arrives() {
        let mut input = Input::default();
        let mut buffer = vec![0; READ_BYTES];
        let whole: Vec<u8> = (0..3 * READ_BYTES).map(|n| n as u8).collect();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        input.keep(&whole[..10], Some(2 * READ_BYTES));
        let mut rest = &whole[10..];
        let mut parts = 0;
        loop {
            match input.poll_read(&mut rest, &mut cx, &mut buffer, READ_BYTES) {
                Poll::Ready(Ok(Read::Part(_))) => parts += 1,
                Poll::Ready(Ok(Read::Large(bytes, _))) => {
                    assert_eq!(bytes, whole[..bytes.len()]);
                    assert!(bytes.len() >= 2 * READ_BYTES);
                    break;
                }
                _ => panic!("neither a part nor the whole"),
            }
        }
        assert_eq!(parts, 1);
    }

    #[test]
    fn a_read_takes_no_more_than_it_may_and_knows_what_is_missing() {
        let (mut input, mut buffer) = (Input::default(), vec![0; READ_BYTES]);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut stream: &[u8] = &[0x30, 200, 1, 0, 1, b't'];
        let Poll::Ready(Ok(Read::Bytes(bytes, 4))) = input.poll_read(&mut stream, &mut cx, &mut buffer, 4) else { panic!() };
        assert_eq!((bytes, input.missing()), (&[0x30, 200, 1, 0][..], 0));
        input.keep(bytes, codec::frame_length(bytes).unwrap());
        assert_eq!(input.missing(), 203 - 4);
        input.keep(&[0x30; 10], Some(2 * READ_BYTES));
        assert_eq!(input.missing(), 2 * READ_BYTES - 10);
    }

    #[test]
    fn a_small_rest_stands_in_front_of_the_next_read() {
        let mut input = Input::default();
        let mut buffer = vec![0; READ_BYTES];
        let mut cx = Context::from_waker(std::task::Waker::noop());
        input.keep(b"ab", Some(4));
        let mut stream: &[u8] = b"cdef";
        let Poll::Ready(Ok(Read::Bytes(bytes, 4))) = input.poll_read(&mut stream, &mut cx, &mut buffer, READ_BYTES) else {
            panic!()
        };
        assert_eq!(bytes, b"abcdef");
        input.keep(b"", None);
        assert_eq!(input.rest.capacity(), 0, "an idle connection holds no buffer");
    }
}

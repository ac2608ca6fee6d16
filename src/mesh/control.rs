//! A control stream as frames: reading them out of chunks, and a queue of what is to be written, bounded in bytes.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use quinn::RecvStream;
use tokio::sync::Notify;

use super::error::LinkError;
use crate::frame::control::ControlFrame;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, CONTROL_QUEUE_BYTES_MAX};

/// Frames out of a stream.
pub(super) struct ControlReader {
    stream: RecvStream,
    buffer: BytesMut,
    /// Bytes at the front that the last frame took.
    taken: usize,
}

impl ControlReader {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self { stream, buffer: BytesMut::new(), taken: 0 }
    }

    /// The next frame that is already here.
    pub(super) fn buffered(&mut self) -> Result<Option<ControlFrame<'_>>, LinkError> {
        self.buffer.advance(std::mem::take(&mut self.taken));
        let decoded = ControlFrame::decode(&self.buffer)?;
        Ok(decoded.map(|(frame, length)| {
            self.taken = length;
            frame
        }))
    }

    /// Waits for more bytes. May be dropped while it waits: nothing is lost.
    pub(super) async fn fill(&mut self) -> Result<(), LinkError> {
        let chunk = self.stream.read_chunk(CONTROL_FRAME_BYTES_MAX, true).await?;
        let chunk = chunk.ok_or(LinkError::Stream("the peer ended its control stream"))?;
        self.buffer.extend_from_slice(&chunk.bytes);
        Ok(())
    }

    /// Waits for a frame and hands it to `take`.
    pub(super) async fn next<T>(&mut self, take: impl FnOnce(ControlFrame<'_>) -> Result<T, LinkError>) -> Result<T, LinkError> {
        while self.buffered()?.is_none() {
            self.fill().await?;
        }
        // The frame is at the front still: what was taken is only let go by the next look.
        self.taken = 0;
        match self.buffered()? {
            Some(frame) => take(frame),
            None => Err(LinkError::Unexpected("a frame vanished")),
        }
    }
}

/// What waits to be written to a control stream.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl ControlQueue {
    /// Appends a frame.
    ///
    /// # Errors
    /// [`LinkError::Backlog`] where the far side takes nothing.
    pub(super) fn push(&self, frame: &ControlFrame<'_>) -> Result<(), LinkError> {
        let mut encoded = Vec::new();
        frame.encode(&mut encoded);
        let mut waiting = self.waiting.lock();
        waiting.bytes += encoded.len();
        if waiting.bytes > CONTROL_QUEUE_BYTES_MAX {
            return Err(LinkError::Backlog(waiting.bytes));
        }
        waiting.frames.push_back(encoded.into());
        drop(waiting);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits until there is something.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Everything that waits.
    pub(super) fn take(&self) -> Vec<Bytes> {
        let mut waiting = self.waiting.lock();
        waiting.bytes = 0;
        waiting.frames.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_does_not_drain_is_an_error() {
        let queue = ControlQueue::default();
        let chain = vec![0; CONTROL_FRAME_BYTES_MAX / 2];
        let frame = ControlFrame::Certificate { slot: 0, chain: &chain };
        let fits = (0..).take_while(|_| queue.push(&frame).is_ok()).count();
        assert_eq!(fits, CONTROL_QUEUE_BYTES_MAX / (chain.len() + 6));
        assert_eq!(queue.take().len(), fits);
        assert!(queue.push(&frame).is_ok() && queue.take().len() == 1);
    }
}

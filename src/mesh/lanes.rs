//! The lane streams of a link: one writer task for all lanes each way out, one reader task a lane in.
//!
//! A lane stream is unidirectional and begins with two bytes: its kind and the lane. The writer never has more on its way than the
//! link's credit, and so never waits for QUIC's windows; the readers report what they have consumed, and only with that they wait, and
//! not for long, where another link is much slower.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use quinn::{RecvStream, SendStream};

use super::bulk::{self, BULK_STREAM};
use super::error::LinkError;
use super::handshake::HANDSHAKE_TIMEOUT;
use super::link::{Event, Link};
use crate::clock;
use crate::ids::{LaneId, OpenNumber};
use crate::limits::{BLOCK_BYTES, CREDIT_BYTES_MAX, LANES_MAX, SEND_WINDOW_BYTES};
use crate::replication::{Deliver, LaneBatch, LaneEvent, LaneReceiver, PortLane};
use crate::task;

/// The first byte of a lane stream. There is one other kind, `bulk`'s.
const LANE_STREAM: u8 = 1;
/// What is taken from one lane at once: enough to fill packets, little enough that lanes take turns.
const WRITE_BYTES: usize = 64 * 1024;
/// What may be written of one lane without credit so that its CLOSE is out: the rest of a block that has begun. A message that is larger
/// must go on by credit; a far side that gives none for long loses the link.
const CLOSE_BYTES_MAX: usize = BLOCK_BYTES + 1024;
const _: () = assert!(CLOSE_BYTES_MAX * 2 * LANES_MAX as usize <= (SEND_WINDOW_BYTES - CREDIT_BYTES_MAX) / 4 * 3);
/// What one reader takes from its stream at once.
const READ_BYTES: usize = 64 * 1024;
/// A reader waits so long for ports that the ring is about to overtake.
const TRANSIT_PATIENCE: Duration = Duration::from_millis(500);

/// Opens the lane streams and writes what the port's lanes have to say, until the link ends.
pub(super) async fn write(link: &Arc<Link>) -> Result<(), LinkError> {
    let mut streams = Vec::new();
    for lane in link.port.lanes() {
        let opening = open(link, LaneId(u8::try_from(streams.len()).unwrap_or(u8::MAX)));
        // The far side lets us once the link is one there too.
        let opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, opening).await;
        streams.push((Arc::clone(lane), opened.unwrap_or(Err(LinkError::Timeout(HANDSHAKE_TIMEOUT)))?));
    }
    let mut out: Vec<Bytes> = Vec::new();
    let mut turn = 0;
    let mut closing = Closing::default();
    let mut unyielding = 0;
    loop {
        let budget = tokio::select! {
            biased;
            () = link.closing() => {
                write_closes(link, &mut streams, &mut out, &mut closing).await?;
                continue;
            }
            credit = link.credit() => credit.min(WRITE_BYTES),
        };
        let (place, batch) = poll_fn(|context| poll_lanes(&streams, turn, context, budget, &mut out)).await;
        turn = place + 1;
        // Before the first byte goes: the far side may report it consumed before the last one is written.
        link.writes(LaneId(u8::try_from(place).unwrap_or(u8::MAX)), batch.bytes);
        if let Some((_, stream)) = streams.get_mut(place) {
            stream.write_all_chunks(&mut out).await?;
        }
        out.clear();
        if let Some(number) = batch.closed
            && closing.confirm(number, streams.len())
        {
            link.tell(Event::LanesClosed { port: link.id, number }).await;
        }
        // What is written must be sent, and read by us, too: QUIC's driver runs on this thread.
        unyielding += batch.bytes;
        if unyielding >= WRITE_BYTES {
            unyielding = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Writes the CLOSEs that are due, without credit: a lane that is wedged must not hold up the tree. The far side may lack credit for as
/// long as it likes: what fits into [`CLOSE_BYTES_MAX`] goes into QUIC's window beside the credit.
async fn write_closes(
    link: &Arc<Link>,
    streams: &mut [(Arc<PortLane>, SendStream)],
    out: &mut Vec<Bytes>,
    closing: &mut Closing,
) -> Result<(), LinkError> {
    let lanes = streams.len();
    for (place, (lane, stream)) in streams.iter_mut().enumerate() {
        while let Some(batch) = lane.take_close(CLOSE_BYTES_MAX, out) {
            link.writes(LaneId(u8::try_from(place).unwrap_or(u8::MAX)), batch.bytes);
            stream.write_all_chunks(out).await?;
            out.clear();
            if let Some(number) = batch.closed
                && closing.confirm(number, lanes)
            {
                link.tell(Event::LanesClosed { port: link.id, number }).await;
            }
        }
    }
    Ok(())
}

async fn open(link: &Link, lane: LaneId) -> Result<SendStream, LinkError> {
    let mut stream = link.lanes.open_uni().await?;
    stream.write_all(&[LANE_STREAM, lane.0]).await?;
    Ok(stream)
}

/// The first lane, from `turn` on, that has something to say.
fn poll_lanes(
    streams: &[(Arc<PortLane>, SendStream)],
    turn: usize,
    context: &mut Context<'_>,
    budget: usize,
    out: &mut Vec<Bytes>,
) -> Poll<(usize, LaneBatch)> {
    let now = clock::now();
    let (before, after) = streams.split_at(turn.min(streams.len()));
    let in_turn = after.iter().enumerate().map(|(n, lane)| (before.len() + n, lane)).chain(before.iter().enumerate());
    for (place, (lane, _)) in in_turn {
        if let Poll::Ready(batch) = lane.poll(context, now, budget, out) {
            return Poll::Ready((place, batch));
        }
    }
    Poll::Pending
}

/// Which agreements some lanes have closed, and how many.
#[derive(Debug, Default)]
struct Closing(BTreeMap<OpenNumber, usize>);

impl Closing {
    /// One more lane has written its CLOSE of `number`; says whether that was the last one.
    fn confirm(&mut self, number: OpenNumber, lanes: usize) -> bool {
        let confirmed = self.0.entry(number).or_default();
        *confirmed += 1;
        if *confirmed < lanes {
            return false;
        }
        self.0.remove(&number);
        true
    }
}

/// Takes the far side's lane streams, and its bulk, and reads each in a task of its own. Ends only with an error.
pub(super) async fn accept(link: &Arc<Link>) -> Result<(), LinkError> {
    let mut has_bulk = false;
    let mut free: Vec<Option<Arc<PortLane>>> = link.port.lanes().iter().cloned().map(Some).collect();
    loop {
        let mut stream = link.lanes.accept_uni().await?;
        let mut head = [0; 2];
        stream.read_exact(&mut head).await.map_err(|_| LinkError::Stream("a lane stream ended in its head"))?;
        let [kind, lane] = head;
        if kind == BULK_STREAM && !std::mem::replace(&mut has_bulk, true) {
            let reader = Arc::clone(link);
            task::spawn("bulk reader", async move {
                if let Err(error) = bulk::read(&reader, stream).await {
                    reader.fail(error);
                }
            });
            continue;
        }
        let port_lane = free.get_mut(usize::from(lane)).and_then(Option::take).filter(|_| kind == LANE_STREAM);
        let port_lane = port_lane.ok_or(LinkError::LaneStream(lane))?;
        let reader = Arc::clone(link);
        task::spawn("lane reader", async move {
            if let Err(error) = read(&reader, stream, LaneId(lane), &port_lane).await {
                reader.fail(error);
            }
        });
    }
}

async fn read(link: &Arc<Link>, mut stream: RecvStream, lane: LaneId, port_lane: &Arc<PortLane>) -> Result<(), LinkError> {
    let mut receiver = LaneReceiver::new(port_lane);
    let mut deliver: Box<dyn Deliver + Send> = (link.deliver)();
    let mut buffer = vec![0; READ_BYTES];
    let mut events = Vec::new();
    loop {
        let length = stream.read(&mut buffer).await?.ok_or(LinkError::Stream("the peer ended a lane"))?;
        let received = receiver.receive(buffer.get(..length).unwrap_or_default(), clock::now(), &mut *deliver, &mut events);
        for event in events.drain(..) {
            link.tell(match event {
                LaneEvent::OpenReceived(open) => Event::OpenReceived { port: link.id, open },
                LaneEvent::CloseReceived(number) => Event::CloseReceived { port: link.id, number },
            })
            .await;
        }
        received?;
        // No longer than that: a peer that consumes nothing at all seems wedged to the other side.
        let _ = tokio::time::timeout(TRANSIT_PATIENCE, poll_fn(|context| port_lane.poll_others(context))).await;
        link.consumed(lane, length);
        if length == READ_BYTES {
            // More is waiting; so may be the control stream.
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BrokerId, Incarnation};

    #[test]
    fn an_agreement_is_closed_once_every_lane_says_so() {
        let number = |count| OpenNumber { count, child: BrokerId(1), incarnation: Incarnation(1) };
        let mut closing = Closing::default();
        assert_eq!([1, 1, 2, 2, 1, 2].map(|n| closing.confirm(number(n), 3)), [false, false, false, false, true, true]);
        assert!(closing.0.is_empty());
    }
}

//! Any bytes from a peer: on a control stream, on a bulk stream, and on a lane that is open, in pieces of any length. Neither panics, what is delivered is
//! well-formed, and what was taken from the lane can be passed on to another broker, which takes it, too.

#![no_main]

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use mqtt_st_quic::codec::QoS;
use mqtt_st_quic::frame::bulk;
use mqtt_st_quic::frame::control::ControlFrame;
use mqtt_st_quic::frame::lane::put_open;
use mqtt_st_quic::ids::{BrokerId, Incarnation, LogId, MessageId, OpenMark, OpenNumber, PortId, RootClaim, TreeId};
use mqtt_st_quic::replication::{Deliver, LaneReceiver, MeshMessage, Port, Replication, ReplicationConfig};

struct Inbox {
    qos_0: bool,
    got: usize,
}

impl Deliver for Inbox {
    fn deliver(&mut self, message: &MeshMessage<'_>, _: MessageId) {
        assert!(!message.topic.is_empty() && !message.topic.contains(['+', '#', '\0']));
        assert_eq!(message.qos == QoS::AtMostOnce, self.qos_0);
        self.got += 1;
    }

    fn flush(&mut self) {}
}

fn broker(id: u64, now: Instant) -> Arc<Replication> {
    let config = ReplicationConfig {
        origin: BrokerId(id),
        log: LogId(id),
        lanes_per_class: 1,
        ring_blocks: 64,
        ring_bytes: 1 << 20,
        ring_age: Duration::from_secs(60),
        slows_publishers: true,
        hop_max: 255,
        message_bytes_max: 10_000,
    };
    Replication::new(config, now)
}

fn mark(child: u64) -> OpenMark {
    let incarnation = Incarnation(1);
    let root = RootClaim { priority: 0, capacity: 0, id: BrokerId(1), incarnation };
    OpenMark { tree: TreeId { epoch: 1, root }, number: OpenNumber { count: 1, child: BrokerId(child), incarnation } }
}

/// Everything that the lane would write.
fn written(port: &Port, lane: usize, now: Instant) -> Vec<u8> {
    let mut out = Vec::new();
    while let Poll::Ready(_) = port.lanes()[lane].poll(&mut Context::from_waker(Waker::noop()), now, 1_000, &mut out) {}
    out.concat()
}

fuzz_target!(|input: &[u8]| {
    let Some((selector, bytes)) = input.split_first() else { return };
    let _ = ControlFrame::decode(bytes);
    let mut bulk = bytes;
    while let Ok(Some((_, length))) = bulk::decode(bulk, 100_000) {
        bulk = bulk.get(length..).expect("no longer than what is there");
    }

    let (now, lane, piece) = (Instant::now(), usize::from(selector & 1), 1 + usize::from(selector >> 1));
    let (near, far) = (broker(1, now), broker(2, now));
    // From the peer that may say anything, and to one that keeps to the rules.
    let from = near.add_port(PortId { peer: BrokerId(3), generation: 1 });
    let (to, end) = (near.add_port(PortId { peer: BrokerId(2), generation: 2 }), far.add_port(PortId { peer: BrokerId(1), generation: 1 }));
    let (mut inbox, mut events) = (Inbox { qos_0: lane == 0, got: 0 }, Vec::new());
    let mut receiver = LaneReceiver::new(&from.lanes()[lane]);
    let mut open = Vec::new();
    put_open(&mut open, &mark(3), true, &[]);
    receiver.receive(&open, now, &mut inbox, &mut events).expect("an OPEN");
    let _ = bytes.chunks(piece).try_for_each(|piece| receiver.receive(piece, now, &mut inbox, &mut events));

    let mut inbox_far = Inbox { qos_0: lane == 0, got: 0 };
    let (mut up, mut down) = (LaneReceiver::new(&to.lanes()[lane]), LaneReceiver::new(&end.lanes()[lane]));
    end.open(&mark(2), now);
    up.receive(&written(&end, lane, now), now, &mut inbox, &mut events).expect("a question");
    to.answer(&mark(2), now);
    down.receive(&written(&to, lane, now), now, &mut inbox_far, &mut events).expect("what was taken can be passed on");
    assert!(inbox_far.got <= inbox.got);
});

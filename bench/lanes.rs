//! Two brokers whose lanes are joined by hand, for the benches.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use mqtt_st_quic::clock;
use mqtt_st_quic::ids::{BrokerId, Incarnation, LogId, MessageId, OpenMark, OpenNumber, PortId, RootClaim, TreeId};
use mqtt_st_quic::replication::{Deliver, LaneReceiver, MeshMessage, Port, Replication, ReplicationConfig};

const PARENT: BrokerId = BrokerId(2);
pub(crate) const CHILD: BrokerId = BrokerId(1);

pub(crate) fn claim(id: BrokerId) -> RootClaim {
    RootClaim { priority: 32_768, capacity: 1, id, incarnation: Incarnation(1) }
}

pub(crate) fn replication(origin: BrokerId) -> Arc<Replication> {
    let config = ReplicationConfig {
        origin,
        log: LogId(origin.0),
        lanes_per_class: 1,
        ring_blocks: 1024,
        ring_bytes: 64 << 20,
        ring_age: Duration::from_secs(600),
        slows_publishers: true,
        hop_max: 255,
        message_bytes_max: 1 << 20,
    };
    Replication::new(config, clock::now())
}

/// Counts what is delivered.
#[derive(Default)]
pub(crate) struct Count(pub(crate) u64);

impl Deliver for Count {
    fn deliver(&mut self, _: &MeshMessage<'_>, _: MessageId) {
        self.0 += 1;
    }

    fn flush(&mut self) {}
}

/// One direction of one lane between two brokers.
pub(crate) struct Way {
    from: Arc<Port>,
    lane: usize,
    receiver: LaneReceiver,
    wire: Vec<Bytes>,
    pub(crate) arrived: Count,
}

impl Way {
    fn new(from: &Arc<Port>, to: &Arc<Port>, lane: usize) -> Self {
        let receiver = LaneReceiver::new(&to.lanes()[lane]);
        Self { from: Arc::clone(from), lane, receiver, wire: Vec::new(), arrived: Count::default() }
    }

    /// Carries what the sender has, as a lane writer and a lane reader would.
    pub(crate) fn carry(&mut self) {
        let now = clock::now();
        let mut context = Context::from_waker(Waker::noop());
        while self.from.lanes()[self.lane].poll(&mut context, now, 64 * 1024, &mut self.wire).is_ready() {
            for piece in self.wire.drain(..) {
                self.receiver.receive(&piece, now, &mut self.arrived, &mut Vec::new()).unwrap();
            }
        }
    }
}

/// A child that publishes, and the way of one of its lanes to its parent.
pub(crate) fn linked(lane: usize) -> (Arc<Replication>, Way) {
    let (child, parent) = (replication(CHILD), replication(PARENT));
    let child_port = child.add_port(PortId { peer: PARENT, generation: 1 });
    let parent_port = parent.add_port(PortId { peer: CHILD, generation: 1 });
    let (mut up, mut down) = (Way::new(&child_port, &parent_port, lane), Way::new(&parent_port, &child_port, lane));
    let number = OpenNumber { count: 1, child: CHILD, incarnation: Incarnation(1) };
    let mark = OpenMark { tree: TreeId { epoch: 1, root: claim(PARENT) }, number };
    child_port.open(&mark, clock::now());
    up.carry();
    parent_port.answer(&mark, clock::now());
    down.carry();
    (child, up)
}

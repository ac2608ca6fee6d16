//! How much a link puts on its way: QUIC's congestion controllers, kept from falling below what a connection may begin with.
//!
//! Where packets are lost at random, Cubic comes down to two packets. Then a lost one is noticed only by a probe time-out, and the lanes stand
//! still until the far side seems wedged. What RFC 9002 section 7.2 lets every
//! connection begin with, ten packets, is no more than it may go on with.
//!
//! Deviation: RFC 9002 section 7.2 lets the window fall to two packets.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

use crate::config::Congestion;

/// What makes the controllers of new connections.
pub(super) fn factory(congestion: Congestion) -> Arc<dyn ControllerFactory + Send + Sync> {
    Arc::new(Factory(congestion))
}

struct Factory(Congestion);

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Floored(match self.0 {
            Congestion::Cubic => Arc::new(CubicConfig::default()).build(now, current_mtu),
            Congestion::Bbr => Arc::new(BbrConfig::default()).build(now, current_mtu),
        }))
    }
}

/// A controller whose window is never below the one that it began with.
struct Floored(Box<dyn Controller>);

impl Controller for Floored {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.0.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.0.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.0.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.0.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.0.window().max(self.0.initial_window())
    }

    fn metrics(&self) -> ControllerMetrics {
        self.0.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self(self.0.clone_box()))
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.0.into_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn loss_leaves_a_link_what_it_began_with() {
        for congestion in [Congestion::Cubic, Congestion::Bbr] {
            let now = clock::now();
            let mut controller = factory(congestion).build(now, 1_200);
            let began = controller.window();
            for _ in 0..20 {
                controller.on_congestion_event(now + std::time::Duration::from_secs(1), now, true, 10_000);
            }
            assert!(began >= 12_000 && controller.window() >= began && controller.clone_box().window() >= began);
        }
        let mut bare = Arc::new(CubicConfig::default()).build(clock::now(), 1_200);
        bare.on_congestion_event(clock::now(), clock::now(), true, 10_000);
        assert!(bare.window() < bare.initial_window(), "else this module is not needed any more");
    }
}

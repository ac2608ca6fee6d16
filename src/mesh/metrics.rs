//! What the mesh counts of itself, and the samples of `/metrics` that it gives. It counts nothing of messages: `replication` does.
//!
//! Invariants: labels are words of this program, or the names of peers that are linked now: at most `mesh.max_links`.

use std::time::Duration;

use parking_lot::Mutex;

use super::error::LinkError;
use super::{LinkSummary, MeshHandle, Refusals};
use crate::metrics::{ByReason, Counter, Histogram, Sample};
use crate::shared::{LinkRecord, LinkState};

/// See the module's page. Counted since the start.
#[derive(Debug, Default)]
pub(super) struct MeshMetrics {
    pub(super) links_opened: Counter,
    links_closed: ByReason<u64>,
    /// Who dialled us and did not become a link.
    refused: ByReason<u64>,
    /// Whom we dialled in vain.
    dials_failed: ByReason<u64>,
    /// Brokers that were not heard of for too long.
    pub(super) members_left: Counter,
    pub(super) bpdus_sent: Counter,
    pub(super) bpdus_received: Counter,
    tree_changes: ByReason<u64>,
    /// How long a peer had been silent when its link was taken for dead.
    detection: ByReason<Histogram>,
    healing: Mutex<(Histogram, Duration)>,
}

impl MeshMetrics {
    /// A link ended.
    pub(super) fn closed(&self, error: &LinkError) {
        self.links_closed.count(error.reason());
        if let Some(silence) = error.silence() {
            self.detection.change(error.reason(), |times| times.observe(silence));
        }
    }

    /// Somebody who dialled us was not linked.
    pub(super) fn refused(&self, error: &LinkError) {
        self.refused.count(error.reason());
    }

    /// We dialled somebody and were not linked.
    pub(super) fn dial_failed(&self, error: &LinkError) {
        self.dials_failed.count(error.reason());
    }

    /// The tree, or this broker's place in it, is another.
    pub(super) fn tree_changed(&self, cause: &'static str, times: u64) {
        self.tree_changes.change(cause, |count| *count += times);
    }

    /// This broker has a way again that it had lost.
    pub(super) fn healed(&self, after: Duration) {
        let mut healing = self.healing.lock();
        healing.0.observe(after);
        healing.1 = after;
    }

    /// How often the tree healed, and how long it took the last time.
    pub(super) fn healing(&self) -> (u64, Duration) {
        let healing = self.healing.lock();
        (healing.0.count(), healing.1)
    }

    /// How often the tree changed, by cause.
    pub(super) fn tree_changes(&self) -> Vec<(&'static str, u64)> {
        self.tree_changes.values()
    }

    fn samples(&self) -> Vec<Sample> {
        let by = |name, help, counts: &ByReason<u64>, label| {
            let sample = move |(word, count): (&str, _)| Sample::counter(name, help, count).with(label, word.replace(' ', "_"));
            counts.values().into_iter().map(sample).collect::<Vec<_>>()
        };
        let mut samples = vec![
            Sample::counter("mesh_links_opened", "Links that came up", self.links_opened.value()),
            Sample::counter(
                "mesh_members_left",
                "Brokers that were not heard of for mesh.member_timeout: nothing is kept for their sessions any more",
                self.members_left.value(),
            ),
            Sample::counter("mesh_bpdus_sent", "Configuration messages of the spanning tree sent", self.bpdus_sent.value()),
            Sample::counter(
                "mesh_bpdus_received",
                "Configuration messages of the spanning tree received",
                self.bpdus_received.value(),
            ),
        ];
        samples.extend(by("mesh_links_closed", "Links that went down, by reason", &self.links_closed, "reason"));
        samples.extend(by("mesh_handshakes_refused", "Peers that dialled and were not linked, by reason", &self.refused, "reason"));
        samples.extend(by(
            "mesh_dials_failed",
            "Attempts to dial a peer that made no link, by reason",
            &self.dials_failed,
            "reason",
        ));
        samples.extend(by(
            "mesh_tree_changes",
            "Changes of the tree or of this broker's parent, by cause",
            &self.tree_changes,
            "cause",
        ));
        let detection = |(reason, times)| {
            let help = "How long a peer was not heard, or did not hear, when its link was taken for dead";
            Sample::histogram("mesh_detection_seconds", help, times).with("reason", reason)
        };
        samples.extend(self.detection.values().into_iter().map(detection));
        let (healing, last) = *self.healing.lock();
        let help = "From noticing the loss of the way to the root until messages flow again";
        samples.push(Sample::histogram("mesh_healing_seconds", help, healing));
        let help = "The last of mesh_healing_seconds, 0 before the first";
        samples.push(Sample::gauge("mesh_healing_last_seconds", help, last.as_secs_f64()));
        samples
    }
}

/// Words of peers that were not taken.
fn refusals(refusals: &Refusals) -> impl Iterator<Item = Sample> {
    let Refusals {
        claims_forged,
        claims_untrusted,
        claims_throttled,
        bpdus_waiting,
        bpdus_forged,
        records_forged,
        records_untrusted,
        records_throttled,
        records_not_understood,
        deltas_forged,
        deltas_untrusted,
        deltas_throttled,
        deltas_not_understood,
        copies_bad,
        traces_throttled,
    } = refusals;
    let counts = [
        ("claim", "forged", claims_forged),
        ("claim", "untrusted", claims_untrusted),
        ("claim", "throttled", claims_throttled),
        ("bpdu", "waiting", bpdus_waiting),
        ("bpdu", "forged", bpdus_forged),
        ("record", "forged", records_forged),
        ("record", "untrusted", records_untrusted),
        ("record", "throttled", records_throttled),
        ("record", "not_understood", records_not_understood),
        ("delta", "forged", deltas_forged),
        ("delta", "untrusted", deltas_untrusted),
        ("delta", "throttled", deltas_throttled),
        ("delta", "not_understood", deltas_not_understood),
        ("copy", "bad", copies_bad),
        ("trace", "throttled", traces_throttled),
    ];
    counts.into_iter().map(|(word, reason, count)| {
        let help =
            "Root claims, configuration messages, records, deltas and copies of registers and traces that were not taken from peers as they came";
        Sample::counter("mesh_control_refused", help, count.value()).with("word", word).with("reason", reason)
    })
}

impl MeshHandle {
    /// Everything that `/metrics` tells of the mesh's control plane. Samples of one name stand together.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = self.book.metrics.samples();
        let links = self.links();
        samples.push(Sample::gauge("mesh_links", "Links that are up", links.len() as f64));
        let mut each = |sample: fn(&LinkSummary) -> Sample| {
            samples.extend(links.iter().map(|link| sample(link).with("peer", link.peer.clone())));
        };
        each(|link| Sample::gauge("mesh_link_rtt_seconds", "Smoothed round trip of a link", link.rtt.as_secs_f64()));
        each(|link| {
            Sample::gauge(
                "mesh_link_hello_jitter_seconds",
                "How uneven a peer's hellos come, on average",
                link.hello_jitter.as_secs_f64(),
            )
        });
        each(|link| Sample::counter("mesh_link_sent_bytes", "UDP bytes sent on a link", link.bytes_sent));
        each(|link| Sample::counter("mesh_link_received_bytes", "UDP bytes received on a link", link.bytes_received));
        each(|link| Sample::counter("mesh_link_lost_packets", "QUIC packets lost on a link", link.packets_lost));
        samples.extend(refusals(self.refusals()));
        let status = self.book.status(&self.mesh);
        let mut each = |sample: fn(&LinkRecord) -> Sample| {
            let up = status.links.iter().filter(|link| link.state != LinkState::Down);
            samples.extend(up.map(|link| sample(link).with("peer", link.name.clone())));
        };
        each(|link| Sample::gauge("mesh_link_cost", "What a way over a link costs", f64::from(link.cost)));
        each(|link| Sample::gauge("mesh_link_loss_ratio", "Share of a link's packets that are lost", link.loss));
        each(|link| {
            Sample::gauge("mesh_link_port", "1 for the role and the state that a link has in the tree", 1.0)
                .with("role", link.role.as_str())
                .with("state", link.state.as_str())
        });
        let place = status.place;
        let (is_root, joined) = (f64::from(u8::from(place.is_root)), f64::from(u8::from(place.distance.is_some())));
        samples.push(Sample::gauge("mesh_root", "1 if this broker is the root of its tree", is_root));
        samples.push(Sample::gauge("mesh_joined", "0 if this broker has no way to a root", joined));
        let expires = self.certificate_expires().as_secs_f64();
        let help = "When this broker's certificate expires, in seconds since 1970";
        samples.push(Sample::gauge("mesh_certificate_expiry_timestamp_seconds", help, expires));
        samples.push(Sample::gauge("mesh_epoch", "Epoch of the tree", place.epoch as f64));
        samples.push(Sample::gauge("mesh_brokers", "Brokers that can be reached, this one among them", status.brokers as f64));
        samples
    }
}

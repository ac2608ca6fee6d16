//! What the replication counts. Nothing that was acknowledged is lost without one of these growing.

use crate::metrics::Counter;

/// The counters of one broker's replication.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages that local clients published into the rings.
    pub messages_published: Counter,
    /// Messages that came over links, were new, and were appended.
    pub messages_received: Counter,
    /// Messages that came over links and were known already.
    pub messages_duplicate: Counter,
    /// QoS 0: messages of an earlier life of their broker, dropped because those of the present one are coming already.
    pub messages_outlived: Counter,
    /// Blocks handed to lane writers, each once a tree port.
    pub blocks_sent: Counter,
    /// Bytes handed to lane writers.
    pub bytes_sent: Counter,
    /// QoS 1 and 2: ranges of ids that a neighbour could no longer give us: messages are lost to this broker.
    pub gaps_received: Counter,
    /// QoS 1 and 2: ranges of ids that we could no longer give a neighbour.
    pub gaps_sent: Counter,
    /// QoS 1 and 2: blocks that our ring no longer had, fetched from others for a neighbour that lacked them.
    pub blocks_filled: Counter,
    /// QoS 1 and 2: parts of answers to such questions that said something of what this broker has itself.
    pub fills_refused: Counter,
    /// QoS 0: how often a link was so slow that the ring overtook it.
    pub laps: Counter,
    /// Blocks not passed on because they have come as many links as is allowed.
    pub blocks_hop_limited: Counter,
    /// Blocks not passed on because they are older than the ring may be.
    pub blocks_aged: Counter,
    /// Blocks that came between a CLOSE and the next OPEN and were dropped.
    pub blocks_closed: Counter,
    /// Messages not delivered to local subscribers because they expired on the way.
    pub messages_expired: Counter,
    /// QoS 1 and 2: messages in whose place a port was sent a stub, as nobody behind it wants them.
    pub stubs_sent: Counter,
    /// QoS 0: messages that a port was not sent, as nobody behind it wants them.
    pub messages_left_out: Counter,
    /// Messages asked for of neighbours, where they had come as stubs.
    pub pulls_sent: Counter,
    /// Messages that came because they were asked for.
    pub payloads_received: Counter,
    /// Messages asked for that nobody had: lost to this broker.
    pub payloads_lost: Counter,
    /// Messages of share groups that were picked again, for the broker that was picked did not deal with them.
    pub picks_again: Counter,
    /// Those of QoS 2 among them: should that broker come back with what it had, they come twice.
    pub picks_abandoned: Counter,
    /// What was picked for a member that has left, and nobody else takes.
    pub picks_lost: Counter,
    /// Lanes that a neighbour opened who knows ids of our own log that this broker has not given out: the data directory went back in time.
    pub own_ids_foreseen: Counter,
    /// Covers taken over from a neighbour while this broker was new to the mesh.
    pub covers_adopted: Counter,
}

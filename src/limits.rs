//! Every bound that more than one module relies on, in one place, asserted against each other at compile time. What an operator may change is only the default here.

use std::time::Duration;

/// Largest MQTT control packet there can be [MQTT-2.1.4]: four length bytes and one type byte on top.
pub const MQTT_REMAINING_LENGTH_MAX: u32 = 268_435_455;
/// Default for `max_packet_size`, bytes of a whole control packet.
pub const PACKET_BYTES_MAX_DEFAULT: u32 = 64 * 1024 * 1024;
/// A connection that has not sent its CONNECT may make us hold no more than this many bytes.
pub const CONNECT_BYTES_MAX: u32 = 512 * 1024;
/// A client that has not sent a whole CONNECT after this is closed: all that a transport has to say before (PROXY header, TLS, WebSocket) counts.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Topic levels that a name or filter may have: 200 separators, as in Mosquitto.
pub const TOPIC_LEVELS_MAX: usize = 201;
/// User properties in one packet.
pub const USER_PROPERTIES_MAX: usize = 10_000;
/// Subscriptions in one SUBSCRIBE or filters in one UNSUBSCRIBE.
pub const FILTERS_PER_PACKET_MAX: usize = 10_000;
/// Bytes of MQTT 5 properties that are forwarded with one message: they are copied for every receiver.
pub const FORWARDED_PROPERTIES_BYTES_MAX: usize = 64 * 1024;
/// Sessions at once, connected or not.
pub const SESSIONS_MAX: i64 = 1_000_000;
/// What the subscriptions of one session may take: each its filter and [`SUBSCRIPTION_OVERHEAD_BYTES`].
pub const SUBSCRIPTIONS_BYTES_MAX: usize = 32 * 1024 * 1024;
/// See [`SUBSCRIPTIONS_BYTES_MAX`].
pub const SUBSCRIPTION_OVERHEAD_BYTES: usize = 256;
/// Bytes of acknowledgements that wait for the mesh until their client is not read from any more: as many as a client that keeps to our
/// Receive Maximum can have.
pub const HELD_ACKNOWLEDGEMENTS_BYTES_MAX: usize = 4 * RECEIVE_MAXIMUM as usize;
/// Most that `max_topic_alias` and `max_topic_alias_broker` may be: each alias keeps a topic of up to 64 KiB.
pub const TOPIC_ALIAS_MAX: u16 = 4_096;
/// Default for `max_topic_alias`: topic aliases that a client may set on one connection.
pub const TOPIC_ALIAS_DEFAULT: u16 = 10;
/// Default for `max_topic_alias_broker`: topic aliases that the broker sets on one connection.
pub const TOPIC_ALIAS_BROKER_DEFAULT: u16 = 10;

/// Default for `max_inflight_messages`: QoS 1 and 2 messages on their way to one client.
pub const INFLIGHT_MESSAGES_DEFAULT: u16 = 1_000;
/// Default for `max_queued_messages` of one session.
pub const QUEUED_MESSAGES_DEFAULT: usize = 100_000;
/// Default for `max_queued_bytes` of one session.
pub const QUEUED_BYTES_DEFAULT: usize = 64 * 1024 * 1024;
/// Default for `max_inflight_bytes`: what QoS 1 and 2 messages on their way to one client may take; one of any size always may go.
pub const INFLIGHT_BYTES_DEFAULT: usize = 64 * 1024 * 1024;
/// Receive Maximum that a broker tells its clients.
pub const RECEIVE_MAXIMUM: u16 = 1_024;
/// Bytes of its own that one outbox may hold before QoS 0 is dropped and QoS 1 and 2 stay in the session's queue.
pub const OUTBOX_COPIED_BYTES_MAX: usize = 1024 * 1024;
/// The same with shared payloads, which other receivers hold as well: a healthy reader of large messages needs more than a slow reader
/// of small ones may have.
pub const OUTBOX_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What one outbox may hold before QoS 0 is dropped, of either kind, while memory is tight: a healthy reader's batch, and no more.
pub const OUTBOX_BYTES_MAX_TIGHT: usize = 64 * 1024;
/// Answers that may wait for a client that sends but does not read; beyond that it is not read from.
pub const UNREAD_ANSWERS_BYTES_MAX: usize = 256 * 1024;
/// From this payload size on, receivers share one copy (measured: a copy is cheaper at 256 B, sharing at 1 KiB).
pub const SHARE_PAYLOAD_BYTES: usize = 1_024;
/// What one read from a client's socket may bring; the buffer belongs to the worker.
pub const READ_BYTES: usize = 64 * 1024;

/// What all retained messages together may take, their overhead included.
pub const RETAINED_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// Lanes of each QoS class, default and largest.
pub const LANES_DEFAULT: u8 = 4;
/// See [`LANES_DEFAULT`].
pub const LANES_MAX: u8 = 16;
/// Default for `mesh.mtu`: UDP payload in bytes that a path is tried for. What an Ethernet of 1,500 carries over IPv6.
pub const MTU_DEFAULT: u16 = 1_452;
/// What every path must carry (RFC 9000 section 14).
pub const MTU_LEAST: u16 = 1_200;
/// The largest UDP payload there is (RFC 9000 section 18.2).
pub const MTU_MAX: u16 = 65_527;
/// Encoded messages that one ring block holds at most, unless a single message is larger.
pub const BLOCK_BYTES: usize = 16 * 1024;
/// Messages that one ring block holds at most: the low bits of a sequence.
pub const BLOCK_MESSAGES_MAX: usize = 256;
/// Slots of a lane's ring: many seconds of blocks, even where each holds a single message.
pub const RING_BLOCKS: usize = 64 * 1024;
/// Encoded bytes that the rings of QoS 1 and 2 may hold together; the oldest blocks go first.
pub const RING_BYTES_DEFAULT: usize = 256 * 1024 * 1024;
/// What one broker may say at once on a link's control stream.
pub const CONTROL_FRAME_BYTES_MAX: usize = 256 * 1024;
/// Covers that one OPEN may carry; more follow in further frames.
pub const OPEN_COVERS_BYTES_MAX: usize = 64 * 1024;
/// BPDUs that may go out of a port at once, and again in each second (802.1D-2004 17.13.12, Transmit Hold Count).
pub const TX_HOLD_COUNT: u32 = 64;
/// BPDUs that may come in at a port at once, and again in each second: what a neighbour held up for seconds may have saved up.
pub const BPDUS_HEARD_MAX: u32 = 8 * TX_HOLD_COUNT;
/// Epochs that a root opens at once because it hears of worse roots; then one an interval.
pub const ROOT_ANSWERS_MAX: u32 = 16;
/// The longest way through the mesh.
pub const HOP_MAX: u8 = 255;
/// Bytes on their way over one link's lanes, at least and at most (`mesh::credit`).
pub const CREDIT_BYTES_MIN: usize = 256 * 1024;
/// See [`CREDIT_BYTES_MIN`].
pub const CREDIT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// QUIC's own send window: above the credit, so that lanes never block on it.
pub const SEND_WINDOW_BYTES: usize = CREDIT_BYTES_MAX + 1024 * 1024;
/// The slowest hellos there are: QUIC's own idle timeout is longer than three of them, so that it does not come before our detection.
pub const HELLO_TIME_MAX: Duration = Duration::from_secs(2);
/// The quickest hellos there are.
pub const HELLO_TIME_MIN: Duration = Duration::from_millis(10);
/// The dearest that a link may be: the longest way of such links can still be counted.
pub const LINK_COST_MAX: u32 = 1 << 20;
/// Bytes of one record of what the tree was told (`mesh.record_stp`): days of a quiet mesh.
pub const RECORD_STP_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Links that a broker keeps, default.
pub const LINKS_MAX_DEFAULT: usize = 8;
/// Brokers of one mesh of which records are kept.
pub const BROKERS_MAX: usize = 4_096;
/// Frames that wait to be written to one control stream, bytes; a link that lets more wait is closed.
pub const CONTROL_QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// One broker record as it travels, bytes.
pub const RECORD_BYTES_MAX: usize = 128 * 1024;
/// All broker records that are kept, bytes as they travel with signature and certificate: a new neighbour is told all of them at once.
pub const RECORDS_BYTES_MAX: usize = CONTROL_QUEUE_BYTES_MAX / 2;
/// Certificates that one end of a link may have shown at once, each in a slot of its own: beyond that a slot is used again.
pub const CERTIFICATE_SLOTS: u16 = 1_024;
/// A broker's certificate with those between it and the authority, bytes as they travel.
pub const CERTIFICATE_CHAIN_BYTES_MAX: usize = 8 * 1024;
/// How many certificates that may be.
pub const CERTIFICATE_CHAIN_MAX: usize = 4;
/// A signature, bytes: RSA's with a key of 8,192 bits.
pub const SIGNATURE_BYTES_MAX: usize = 1_024;
/// Certificates that were found good and are remembered, bytes as they travel; beyond that the memory is begun anew.
pub const CERTIFICATES_CHECKED_BYTES_MAX: usize = BROKERS_MAX * 2 * 1024;
/// Links in one broker record.
pub const RECORD_LINKS_MAX: usize = 256;
/// Addresses in one broker record.
pub const RECORD_ADDRESSES_MAX: usize = 16;
/// Any one text in a broker record, bytes.
pub const RECORD_TEXT_BYTES_MAX: usize = 256;
/// Logs of one origin whose covers are remembered.
pub const LOGS_PER_ORIGIN_MAX: usize = 8;

/// Largest and least that `max_packet_size` may be set to, bytes of a whole control packet.
pub const PACKET_BYTES_MAX: u32 = MQTT_REMAINING_LENGTH_MAX + 5;
/// See [`PACKET_BYTES_MAX`].
pub const PACKET_BYTES_MAX_LEAST: u32 = 128;
/// Default for `max_connections`: clients at once.
pub const CONNECTIONS_DEFAULT: usize = 1_000_000;
/// Connections of which no whole CONNECT is there yet, over all listeners. While there are as many no more are accepted: they wait in the
/// kernel, where they cost nothing.
pub const HANDSHAKES_MAX: usize = 2_048;
/// While half of [`HANDSHAKES_MAX`] are there, whoever has not said a whole CONNECT after this is closed, so that silent ones do not keep
/// others out.
pub const CONNECT_TIMEOUT_BUSY: Duration = Duration::from_secs(2);
/// Descriptors that clients leave to links, files and everything else that is not a client.
pub const DESCRIPTORS_RESERVED: usize = 64;

/// What `memory_limit` is by default, of the least that the machine and the control groups allow, percent.
pub const MEMORY_PERCENT_DEFAULT: u64 = 75;
/// Least that `memory_limit` may be set to, bytes.
pub const MEMORY_LIMIT_LEAST: usize = 64 * 1024 * 1024;
/// From here on memory is tight, percent of `memory_limit`: publishers of QoS 1 and 2 whose messages have to wait are slowed, slow
/// subscribers are sent less of QoS 0.
pub const MEMORY_TIGHT_PERCENT: u32 = 80;
/// From here on nothing more is queued or retained and no new session made, percent of `memory_limit`.
pub const MEMORY_FULL_PERCENT: u32 = 95;
/// How long a publisher waits after each batch of which a message had to wait, when memory is all but gone.
pub const BRAKE_MAX: Duration = Duration::from_millis(500);
/// What a CONNECT may make us hold while memory is tight.
pub const CONNECT_BYTES_MAX_TIGHT: u32 = 16 * 1024;
/// What may be sent at once within a rate: as much as in this time.
pub const RATE_BURST: Duration = Duration::from_secs(1);
/// How long a client that has sent more than a rate allows is not read from at one time, and what a rate that many share owes at most: nobody is
/// deaf for longer.
pub const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A pause is so much longer than what it pays for, so that there is something to read for when it is over.
pub const PAUSE_TURN: Duration = Duration::from_millis(50);
/// What may always be read from a client that is not paused, however low its rates.
pub const PACED_READ_BYTES_LEAST: usize = 64;

/// Highest tree epoch that a peer may name: so far from anything a mesh can reach that counting on from it never overflows.
pub const EPOCH_MAX: u64 = u64::MAX / 2;
/// So far beyond what a broker has believed an epoch may be within an interval of `stp`: more than a mesh opens in a century, and a step
/// that takes longer than that to [`EPOCH_MAX`].
pub const EPOCH_STEP_MAX: u64 = 1 << 32;

/// Clients, bridges to this broker, whose state below `$SYS/broker/connection/` is retained at once.
pub const CLIENT_STATES_MAX: usize = 1_000;

/// Bytes of the client id of one of these.
pub const CLIENT_STATE_ID_BYTES_MAX: usize = 1_024;

const _: () = assert!(PACKET_BYTES_MAX_LEAST < PACKET_BYTES_MAX_DEFAULT && PACKET_BYTES_MAX_DEFAULT <= PACKET_BYTES_MAX);
const _: () = assert!(MEMORY_TIGHT_PERCENT < MEMORY_FULL_PERCENT && MEMORY_FULL_PERCENT < 100 && MEMORY_PERCENT_DEFAULT < 100);
const _: () = assert!(OUTBOX_BYTES_MAX_TIGHT < OUTBOX_COPIED_BYTES_MAX && OUTBOX_COPIED_BYTES_MAX < OUTBOX_BYTES_MAX);
const _: () = assert!(OUTBOX_BYTES_MAX_TIGHT >= READ_BYTES, "what one read of a publisher brings reaches a healthy subscriber");
const _: () = assert!(CONNECT_BYTES_MAX_TIGHT < CONNECT_BYTES_MAX);
const _: () = assert!(CONNECT_TIMEOUT_BUSY.as_secs() < CONNECT_TIMEOUT.as_secs());
const _: () = assert!(BRAKE_MAX.as_secs() < CONNECT_TIMEOUT.as_secs());
const _: () = assert!(HANDSHAKES_MAX < CONNECTIONS_DEFAULT);
const _: () = assert!(PAUSE_TURN.as_millis() < PAUSE_MAX.as_millis() && PAUSE_MAX.as_secs() < CONNECT_TIMEOUT.as_secs());
const _: () = assert!(PACED_READ_BYTES_LEAST < READ_BYTES);
// Replication.

/// Origin-lanes of one lane that are remembered.
pub const STREAMS_PER_LANE_MAX: usize = BROKERS_MAX * LOGS_PER_ORIGIN_MAX;
/// From this many encoded bytes on, lane writers share a block's messages instead of copying them: a reference count that two threads
/// touch costs about as much as copying 2 KiB.
pub const SHARE_BLOCK_BYTES: usize = 2 * 1024;
/// Aliases that one lane stream gives out before it gives the first one to another origin.
pub const LANE_ALIASES_MAX: u16 = 1_024;
/// The highest sequence that a peer may name. The disk takes no higher one, and no origin comes near it: it is 2^55 blocks.
pub const SEQUENCE_MAX: u64 = u64::MAX / 2;
/// So many blocks of our own, beyond those that we have given out, is a neighbour believed to have: what a disk may have forgotten, and more.
pub const OWN_POSITIONS_FORESEEN_MAX: u64 = 1 << 40;
/// Share groups of which one message in a lane says who gets it; for more of them it goes again.
pub const PICKS_MAX: usize = 64;
/// What the copies of one message may take with which it goes again, bytes. Groups beyond that get none, which is counted.
pub const PICKED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A message is picked anew for a share group so often at most, where nobody takes it.
pub const PICK_ROUNDS_MAX: u8 = 7;
/// What was picked for a broker at QoS 1 is picked again if messages have not reached it for so long.
pub const PICK_PATIENCE: Duration = Duration::from_secs(5);
/// Messages of one lane and broker that nobody else takes and that are tried again.
pub const PICKS_UNPLACED_MAX: usize = 16 * 1024;
/// Messages, or KiB of them, that are gone through at a time to pick again what was picked in vain or could not be picked for want of knowledge.
pub const UNDECIDED_MESSAGES_MAX: usize = 2_048;
/// Picks that are remembered for messages that were published before the share groups of all members were known; more wait until they are.
pub const UNDECIDED_PICKS_MAX: usize = 64 * 1024;
/// How often is told how far a broker has dealt with what was picked for it, while no client waits for it.
pub const DEALT_INTERVAL_CALM: Duration = Duration::from_secs(1);
/// The same where clients wait for it (`publish_ack = "mesh"`).
pub const DEALT_INTERVAL: Duration = Duration::from_millis(25);
/// Messages that one frame asks for.
pub const PULLED_PER_FRAME_MAX: usize = 512;
/// What is asked for is asked for again after this.
pub const PULL_REPEAT: Duration = Duration::from_secs(1);
/// Default for how long subscribers wait for what was asked for: as long as somebody may have it.
pub const PULL_TIMEOUT_DEFAULT: Duration = RING_AGE_DEFAULT;
/// How long a SUBACK waits for other brokers at most, where it does.
pub const SUBSCRIBE_ACK_PATIENCE: Duration = Duration::from_secs(5);
/// Messages that neighbours may have asked for on one lane, and this broker could not give them; what is beyond is asked again.
pub const QUESTIONS_MAX: usize = 16 * 1024;
/// A neighbour's question is forgotten unless it is repeated within this.
pub const QUESTION_LIFE: Duration = Duration::from_secs(5);
/// Bytes of what a neighbour lacks, and our ring too, that are asked for of others at once: for one lane of a link and one origin.
pub const FILL_BYTES: u64 = 256 * 1024;
/// Origins of which that is done at once for one lane of a link.
pub const FILLS_AT_ONCE: usize = 4;
/// Origins of which one lane of a link is given such at once because its far side asks; what is beyond is asked again.
pub const FILLS_MAX: usize = 64;
/// Whom nobody answers for so long keeps no other question waiting; and what is asked for a neighbour's sake is given up.
pub const FILL_PATIENCE: Duration = Duration::from_secs(5);
/// Answers that wait for one lane of a link; what is beyond is asked again.
pub const ANSWERS_MAX: usize = 16 * 1024;
/// Bytes of answers that wait there and are not in the ring.
pub const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A broker that has met only brokers as new as itself, or none, for this long is no longer new to the mesh.
/// Longer than it may take to reach a neighbour that is up: see `mesh::connect`.
pub const NEWCOMER_TIME: Duration = Duration::from_secs(15);
/// Default for how long it is remembered that a retained message was deleted.
pub const TOMBSTONE_AGE_DEFAULT: Duration = Duration::from_secs(30 * 86_400);
/// What is remembered of deleted retained messages, bytes.
pub const TOMBSTONES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Default for how long a ring keeps a block.
pub const RING_AGE_DEFAULT: Duration = Duration::from_secs(600);
/// The shortest that may be configured: the tree must have time to form anew.
pub const RING_AGE_MIN: Duration = Duration::from_secs(10);

/// What a trace may be asked about, bytes of a topic.
pub const TRACE_TOPIC_BYTES_MAX: usize = 4 * 1024;
/// Links of which one broker tells in a trace.
pub const TRACE_PORTS_MAX: usize = 64;
/// Traces of which a broker remembers where they came from; what is beyond is not answered.
pub const TRACES_MAX: usize = 64;
/// Traces that may be asked for at one broker at once.
pub const TRACES_OWN_MAX: usize = 4;

// Letters.

/// One letter from broker to broker, bytes.
pub const LETTER_BYTES_MAX: usize = 40 * 1024;
/// Letters that wait to be written to a link, bytes.
pub const LETTERS_BYTES_MAX: usize = 1024 * 1024;
/// Letters that wait to be read by this broker, bytes.
pub const POST_BYTES_MAX: usize = 16 * 1024 * 1024;

// Sessions that go from broker to broker.

/// Part of a session in one letter, bytes.
pub const HANDOVER_PAGE_BYTES: usize = 32 * 1024;
/// Parts of one session that are on their way at once.
pub const HANDOVER_PAGES_AT_ONCE: usize = 4;
/// One session, bytes; one that is larger stays where it is.
pub const HANDOVER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What is in all sessions that come to one broker, or leave it, at once, bytes, beside one that is larger alone; others wait.
pub const HANDOVERS_BYTES_MAX: usize = HANDOVER_BYTES_MAX;
/// Sessions that come to one broker at once; others wait for their turn.
pub const HANDOVERS_MAX: usize = 256;
/// Of these so many whose content is large.
pub const HANDOVERS_LARGE_MAX: usize = 8;
/// Sessions that a broker which is to be empty offers to others, or hands over, at once.
pub const OFFERS_MAX: usize = 64;
/// What a replica of a session may hold beyond twice what the session may: messages, and KiB.
pub const SHADOW_SPARE_MESSAGES: usize = 1_024;
/// Replicas of a session.
pub const SESSION_REPLICAS_MAX: u8 = 1;
/// One letter of what a replica is told, bytes.
pub const REPLICA_LETTER_BYTES: usize = 32 * 1024;
/// Of these on their way at once, bytes.
pub const REPLICA_WINDOW_BYTES: usize = 512 * 1024;
/// Of copies of sessions among these; what is told is behind no more of them.
pub const REPLICA_COPIES_BYTES: usize = REPLICA_WINDOW_BYTES / 4;
/// What waits to be told, bytes; beyond, the replica is given up.
pub const REPLICA_QUEUE_BYTES_MAX: usize = HANDOVER_BYTES_MAX + 64 * 1024 * 1024;
/// Sessions that are copied to their replica together.
pub const REPLICA_ROUND_SESSIONS_MAX: usize = 256;
/// What is in these, bytes, or one that is larger.
pub const REPLICA_ROUND_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Likewise, messages: they are noted in one moment, in which nobody publishes.
pub const REPLICA_ROUND_MESSAGES_MAX: usize = 64 * 1024;
/// Likewise, what they are subscribed to, bytes: the other broker subscribes to all of it in one such moment.
pub const REPLICA_ROUND_HEADS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Letters with covers.
pub const REPLICA_CUT_PARTS_MAX: usize = 256;
/// A will of another broker's client that is kept here, in case that broker dies, bytes; one that is larger is not.
pub const ORPHAN_WILL_BYTES_MAX: usize = 1024 * 1024;
/// All of one broker's, bytes.
pub const ORPHAN_WILLS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Wills of other brokers' clients of which it is remembered that they were dealt with here.
pub const WILLS_SETTLED_MAX: usize = 1 << 18;
/// How long a will waits, beyond its delay, for its client to come to another broker, where its own cannot be reached: as the default has it, and at least and at most.
pub const ORPHAN_GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// See [`ORPHAN_GRACE_DEFAULT`].
pub const ORPHAN_GRACE_MIN: Duration = Duration::from_secs(1);
/// See [`ORPHAN_GRACE_DEFAULT`].
pub const ORPHAN_GRACE_MAX: Duration = Duration::from_secs(3_600);
/// Clients that wait for their turn.
pub const HANDOVERS_WAITING_MAX: usize = 20_000;
/// Clients that have come at another broker of late while they were connected here.
pub const RIVALS_MAX: usize = 10_000;

// Registers.

/// Who was not heard of for so long is no member of the mesh any more.
pub const MEMBER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(15 * 60);
/// Above the life of a broker record: who leaves the records for a moment does not leave the mesh.
pub const MEMBER_TIMEOUT_MIN: Duration = Duration::from_secs(5 * 60);

/// A delta of a register, bytes: one entry with the longest key that MQTT allows fits, and what is said together.
pub const REGISTER_DELTA_BYTES_MAX: usize = 112 * 1024;
/// An owner puts so many bytes into a delta, about, where there is more than one entry.
pub const REGISTER_DELTA_BYTES: usize = 16 * 1024;
/// The newest deltas of a register are kept for neighbours that were away for a moment, so many bytes of them.
pub const REGISTER_TAIL_BYTES: usize = 256 * 1024;
/// And so many.
pub const REGISTER_TAIL_DELTAS: usize = 1_024;
/// One register, bytes: above it nothing is known of its owner.
pub const REGISTER_BYTES_MAX: usize = 512 * 1024 * 1024;
/// All registers, bytes.
pub const REGISTERS_BYTES_MAX: usize = 2 * 1024 * 1024 * 1024;
/// Registers of which one frame tells how far they are here.
pub const REGISTER_HAVES_MAX: usize = 4_096;
/// Of deltas that were asked for, bytes that may be on their way on a link.
pub const REGISTER_ON_THE_WAY_BYTES: usize = 128 * 1024;
/// Of deltas that were not asked for, bytes that may be on their way on a link, or one.
pub const REGISTER_PUSHED_BYTES: usize = 64 * 1024;
/// A broker tells so many bytes of its own register in one go, about, however much it has to say.
pub const REGISTER_TELL_BYTES: usize = 32 * 1024;
/// Filters of one broker that are told one by one; with more of them it wants every topic.
pub const REGISTER_FILTERS_MAX: usize = 1_000_000;

const _: () = assert!(HANDOVER_PAGE_BYTES + 64 < LETTER_BYTES_MAX && HANDOVER_PAGES_AT_ONCE * LETTER_BYTES_MAX < LETTERS_BYTES_MAX);
const _: () = assert!(REPLICA_LETTER_BYTES + 64 < LETTER_BYTES_MAX && REPLICA_WINDOW_BYTES < LETTERS_BYTES_MAX);
const _: () = assert!(2 * LETTER_BYTES_MAX < LETTERS_BYTES_MAX && LETTERS_BYTES_MAX < POST_BYTES_MAX);
const _: () = assert!(REGISTER_DELTA_BYTES + 64 * 1024 + 128 < REGISTER_DELTA_BYTES_MAX);
const _: () = assert!(REGISTER_DELTA_BYTES_MAX + SIGNATURE_BYTES_MAX + 64 < CONTROL_FRAME_BYTES_MAX);
const _: () = assert!(REGISTER_HAVES_MAX >= BROKERS_MAX && REGISTER_HAVES_MAX * 48 < CONTROL_FRAME_BYTES_MAX);
const _: () = assert!(REGISTER_DELTA_BYTES <= REGISTER_TELL_BYTES && REGISTER_TELL_BYTES <= REGISTER_PUSHED_BYTES);
const _: () = assert!(REGISTER_BYTES_MAX < REGISTERS_BYTES_MAX);

const _: () = assert!(BLOCK_MESSAGES_MAX.is_power_of_two(), "a sequence keeps whole bits for the place in the block");
const _: () = assert!(LINK_COST_MAX.checked_mul(HOP_MAX as u32).is_some());
const _: () = assert!(CREDIT_BYTES_MIN < CREDIT_BYTES_MAX && CREDIT_BYTES_MAX < SEND_WINDOW_BYTES);
const _: () = assert!(OPEN_COVERS_BYTES_MAX < CONTROL_FRAME_BYTES_MAX);
const _: () = assert!(RECORD_BYTES_MAX < CONTROL_FRAME_BYTES_MAX && RECORD_BYTES_MAX < RECORDS_BYTES_MAX);
const _: () = assert!(CERTIFICATE_CHAIN_BYTES_MAX + SIGNATURE_BYTES_MAX + RECORD_BYTES_MAX < CONTROL_FRAME_BYTES_MAX - 64);
const _: () = assert!(CERTIFICATES_CHECKED_BYTES_MAX > CERTIFICATE_CHAIN_BYTES_MAX);
const _: () = assert!(RING_BLOCKS.is_power_of_two());
const _: () = assert!(LANES_DEFAULT <= LANES_MAX && LANES_MAX as usize * 2 <= u8::MAX as usize);
const _: () = assert!(PACKET_BYTES_MAX_DEFAULT <= MQTT_REMAINING_LENGTH_MAX);

//! The near side of a bridge: its session here, like any client's, but that its connection never leaves the process.
//!
//! The session is spoken to in MQTT 5, over a pipe. So what waits, what is in flight, QoS 2 and the disk are the business of
//! [`session`](crate::session) and [`connection`], as for every client.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::status::Status;
use super::topics::{Topics, Wanted};
use crate::auth::{Identity, Policy, Standing};
use crate::clock;
use crate::codec::{
    self, Connect, ConnectProperties, Disconnect, DisconnectProperties, Packet, PacketId, ProtocolVersion, QoS, ReasonCode,
    RetainHandling, Subscribe, SubscribeFilter, SubscribeProperties, SubscriptionOptions, Unsubscribe, UnsubscribeProperties,
};
use crate::connection::{self, Address, Client, Logins, Peer, Rates, Stream, Terms, Transport};
use crate::limits::PACKET_BYTES_MAX;
use crate::router::{Batch, Passing, Router};
use crate::session::Subscriber;

/// What the pipe holds each way, bytes.
const PIPE_BYTES: usize = 64 * 1024;
/// No message of a client has these: the session is spoken to by nobody else.
const SUBSCRIBE_ID: PacketId = PacketId::MAX;
/// A subscription that is a mark, on the disk as all of them, and to which nobody publishes: the foreign session is this one's. While it is missing,
/// whatever is in flight there may be another's.
const MET: &str = "$SYS/bridge/met";
/// See [`SUBSCRIBE_ID`].
const UNSUBSCRIBE_ID: PacketId = SUBSCRIBE_ID;

/// The session here does not let its bridge in.
#[derive(Debug, thiserror::Error)]
pub(super) enum LocalError {
    /// CONNACK says no.
    #[error("this broker refuses the bridge's session: {0}")]
    Refused(ReasonCode),
    /// The pipe was closed, or something else came than is said to a client.
    #[error("this broker closed the bridge's session")]
    Closed,
}

/// What the other side can take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Messages in flight.
    pub(super) receive_maximum: NonZeroU16,
    /// Bytes of a packet.
    pub(super) packet_bytes_max: u32,
}

/// Nothing is taken, only said.
const PREPARING: Room = Room { receive_maximum: NonZeroU16::MIN, packet_bytes_max: PACKET_BYTES_MAX };

/// See the module's page.
#[derive(Debug)]
pub(super) struct Local {
    router: Arc<Router>,
    terms: Arc<Terms>,
    client_id: String,
    is_clean: bool,
    /// Filters of which retained messages are still to be sent: their subscriptions were made while the foreign broker was away.
    owed: Mutex<BTreeSet<String>>,
}

/// The session has its bridge.
pub(super) struct Joined {
    /// To be served for as long as it lasts.
    pub(super) client: Box<Client>,
    /// What the bridge reads and writes; the CONNACK is yet to come.
    pub(super) pipe: DuplexStream,
    /// What the bridge says first: to what it subscribes, and to what no longer.
    pub(super) first: Vec<u8>,
}

impl Local {
    pub(super) fn new(router: Arc<Router>, client_id: String, inflight_max: u16, is_clean: bool) -> Self {
        let terms = Terms {
            policy: Arc::new(ArcSwap::from_pointee(Policy::of_bridge(&client_id))),
            logins: Arc::new(Logins::default()),
            backends: None,
            packet_bytes_max: PACKET_BYTES_MAX,
            inflight_max,
            keep_alive_max_seconds: None,
            rates: Rates::default(),
            meter: None,
            topic_alias_max: 0,
            topic_alias_broker_max: 0,
            response_information: None,
            server_reference: None,
            reserved: Arc::default(),
        };
        Self { router, terms: Arc::new(terms), client_id, is_clean, owed: Mutex::default() }
    }

    /// Makes the session, so that messages wait in it before the foreign broker is there for the first time.
    ///
    /// # Errors
    /// See [`LocalError`].
    pub(super) async fn prepare(&self, topics: &Topics) -> Result<(), LocalError> {
        if self.is_clean {
            return Ok(());
        }
        let (client, pipe) = self.connect(PREPARING).await?;
        let known = filters(client.subscriber());
        let wanted = topics.local();
        self.owed.lock().extend(wanted.iter().map(|one| one.filter.to_owned()).filter(|filter| !known.contains(filter)));
        let mut first = Vec::new();
        self.put_subscriptions(&mut first, topics, &known, |_| RetainHandling::DoNotSend);
        let (said, ()) = tokio::join!(say_and_leave(pipe, &first), client.serve());
        said
    }

    /// Whether there is a session.
    pub(super) fn is_there(&self) -> bool {
        self.session().is_some()
    }

    /// Whether it is on its way to or from another broker.
    pub(super) fn is_moving(&self) -> bool {
        self.session().is_some_and(|session| session.is_moving())
    }

    /// Says where it goes when this broker leaves, or comes from.
    pub(super) fn pass(&self, passing: Option<Passing>) {
        self.router.pass_bridge(&self.client_id, passing);
    }

    fn session(&self) -> Option<Arc<Subscriber>> {
        let session = self.router.session(&self.client_id)?;
        // The record of an earlier configuration's client of this name is not ours.
        let is_ours = session.access().is_some_and(|access| matches!(access.identity(), Identity::Bridge { .. }));
        is_ours.then_some(session)
    }

    /// Ends the session: another broker serves the bridge.
    pub(super) fn forget(&self, bridge: &str, status: &Status) {
        let dropped = self.end();
        if dropped > 0 {
            status.dropped.add(dropped as u64);
            tracing::warn!(bridge, dropped, "another broker serves the bridge by now: what waited for it here does not cross");
        }
    }

    /// Ends the session, if there is one. Messages that waited in it.
    pub(super) fn end(&self) -> usize {
        let Some(session) = self.session() else { return 0 };
        let state = session.lock();
        let dropped = state.outbound.queue_len() + state.outbound.inflight_len();
        drop(state);
        let (mut batch, now) = (Batch::default(), clock::now());
        self.router.judge_one(&mut batch, &session, |access| Standing::Gone(Arc::new(access.shut_out())), now);
        self.router.finish(&mut batch, now);
        dropped
    }

    /// Whether what a foreign broker still has in flight can only be this session's.
    pub(super) fn is_met(&self) -> bool {
        self.is_clean || self.session().is_some_and(|session| session.lock().subscriptions.contains_key(MET))
    }

    /// The foreign session has nothing in flight that is not this one's. On the disk, where there is one, before it returns: until then nothing may
    /// cross.
    ///
    /// # Errors
    /// See [`LocalError`].
    pub(super) async fn meet(&self) -> Result<(), LocalError> {
        if self.is_met() {
            return Ok(());
        }
        let (client, pipe) = self.connect(PREPARING).await?;
        self.forget_received(client.subscriber());
        let mut first = Vec::new();
        let options = SubscriptionOptions { retain_handling: RetainHandling::DoNotSend, ..QoS::AtMostOnce.into() };
        let filters = vec![SubscribeFilter { filter: MET, options }];
        put(
            &mut first,
            &Packet::Subscribe(Subscribe { packet_id: SUBSCRIBE_ID, properties: SubscribeProperties::default(), filters }),
        );
        let (said, ()) = tokio::join!(say_and_leave(pipe, &first), client.serve());
        said
    }

    /// Another may have spoken to the foreign broker as this session's client.
    ///
    /// # Errors
    /// See [`LocalError`].
    pub(super) async fn part(&self) -> Result<(), LocalError> {
        if self.is_clean || !self.is_met() {
            return Ok(());
        }
        let (client, pipe) = self.connect(PREPARING).await?;
        let mut first = Vec::new();
        let properties = UnsubscribeProperties::default();
        put(&mut first, &Packet::Unsubscribe(Unsubscribe { packet_id: UNSUBSCRIBE_ID, properties, filters: vec![MET] }));
        let (said, ()) = tokio::join!(say_and_leave(pipe, &first), client.serve());
        said
    }

    /// Joins the session for the foreign broker, which has forgotten its own part of it or not.
    ///
    /// # Errors
    /// See [`LocalError`].
    pub(super) async fn join(&self, topics: &Topics, room: Room, is_forgotten: bool) -> Result<Joined, LocalError> {
        let (client, pipe) = self.connect(room).await?;
        if is_forgotten {
            self.forget_received(client.subscriber());
        }
        let known = filters(client.subscriber());
        let owed = std::mem::take(&mut *self.owed.lock());
        let mut first = Vec::new();
        self.put_subscriptions(&mut first, topics, &known, |filter| match is_forgotten || owed.contains(filter) {
            true => RetainHandling::Send,
            false => RetainHandling::SendIfNew,
        });
        Ok(Joined { client, pipe, first })
    }

    async fn connect(&self, room: Room) -> Result<(Box<Client>, DuplexStream), LocalError> {
        let (near, mut far) = tokio::io::duplex(PIPE_BYTES);
        let properties = ConnectProperties {
            session_expiry_seconds: (!self.is_clean).then_some(u32::MAX),
            receive_maximum: Some(room.receive_maximum),
            maximum_packet_size: NonZeroU32::new(room.packet_bytes_max),
            ..ConnectProperties::default()
        };
        let connect = Connect {
            is_bridge: false,
            version: ProtocolVersion::V5,
            clean_start: self.is_clean,
            keep_alive_seconds: 0,
            properties,
            client_id: &self.client_id,
            will: None,
            user_name: None,
            password: None,
        };
        let mut packet = Vec::new();
        put(&mut packet, &Packet::Connect(Box::new(connect)));
        // The pipe has room for the longest client id.
        far.write_all(&packet).await.map_err(|_| LocalError::Closed)?;
        let peer = Peer { address: Address::Bridge, proxy: None, transport: Transport::Plain, identity: None };
        match connection::admit(Stream::new(near), peer, Arc::clone(&self.router), Arc::clone(&self.terms)).await {
            Some(client) => Ok((client, far)),
            None => Err(refusal(far).await),
        }
    }

    /// What was received of a session that the foreign broker has forgotten is no repeat of what comes under the same identifiers now.
    fn forget_received(&self, subscriber: &Subscriber) {
        let mut writes = crate::session::Writes::default();
        subscriber.lock().release_all(&mut writes);
        if let Some(journal) = self.router.journal() {
            journal.append(&mut writes);
        }
    }

    fn put_subscriptions(
        &self,
        out: &mut Vec<u8>,
        topics: &Topics,
        known: &BTreeSet<String>,
        retained: impl Fn(&str) -> RetainHandling,
    ) {
        let wanted = topics.local();
        // What has come from there does not go back; that a message is retained is not lost on the way.
        let options = |Wanted { filter, qos }: &Wanted<'_>| SubscriptionOptions {
            qos: *qos,
            no_local: true,
            retain_as_published: true,
            retain_handling: retained(filter),
        };
        let filters: Vec<_> = wanted.iter().map(|one| SubscribeFilter { filter: one.filter, options: options(one) }).collect();
        if !filters.is_empty() {
            put(
                out,
                &Packet::Subscribe(Subscribe { packet_id: SUBSCRIBE_ID, properties: SubscribeProperties::default(), filters }),
            );
        }
        let stale: Vec<&str> = known
            .iter()
            .map(String::as_str)
            .filter(|known| *known != MET && wanted.iter().all(|one| one.filter != *known))
            .collect();
        if !stale.is_empty() {
            let properties = UnsubscribeProperties::default();
            put(out, &Packet::Unsubscribe(Unsubscribe { packet_id: UNSUBSCRIBE_ID, properties, filters: stale }));
        }
    }
}

fn filters(subscriber: &Subscriber) -> BTreeSet<String> {
    subscriber.lock().subscriptions.keys().map(|filter| filter.to_string()).collect()
}

/// Appends a packet of ours, which is within all bounds.
fn put(out: &mut Vec<u8>, packet: &Packet<'_>) {
    if let Err(error) = codec::encode(out, ProtocolVersion::V5, packet) {
        tracing::error!(%error, "a packet for a bridge's session could not be encoded");
    }
}

/// Why there was no CONNECT.
async fn refusal(mut pipe: DuplexStream) -> LocalError {
    let mut answer = Vec::new();
    // The other end is gone: all that was said is there.
    let _ = pipe.read_to_end(&mut answer).await;
    match codec::decode(&answer, ProtocolVersion::V5, PACKET_BYTES_MAX) {
        Ok(Some((Packet::ConnAck(connack), _))) => LocalError::Refused(connack.reason),
        _ => LocalError::Closed,
    }
}

/// Says what is to be said, waits until all of it is answered, and leaves the session waiting.
async fn say_and_leave(pipe: DuplexStream, first: &[u8]) -> Result<(), LocalError> {
    let (mut from, mut to) = tokio::io::split(pipe);
    let mut said = first.to_vec();
    // Answered behind all others.
    put(&mut said, &Packet::PingReq);
    let speak = async {
        to.write_all(&said).await.map_err(|_| LocalError::Closed)?;
        std::future::pending().await
    };
    let listen = async {
        let mut input = Vec::new();
        loop {
            while let Ok(Some((packet, length))) = codec::decode(&input, ProtocolVersion::V5, PACKET_BYTES_MAX) {
                if packet == Packet::PingResp {
                    return Ok(());
                }
                input.drain(..length);
            }
            if from.read_buf(&mut input).await.unwrap_or(0) == 0 {
                return Err(LocalError::Closed);
            }
        }
    };
    tokio::select! {
        said = speak => return said,
        heard = listen => heard?,
    }
    let mut farewell = Vec::new();
    put(
        &mut farewell,
        &Packet::Disconnect(Disconnect { reason: ReasonCode::Success, properties: DisconnectProperties::default() }),
    );
    to.write_all(&farewell).await.map_err(|_| LocalError::Closed)
}

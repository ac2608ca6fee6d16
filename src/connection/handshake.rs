//! The first packet of a connection: CONNECT, and what it is answered (MQTT 5.0 sections 3.1, 3.2); between the two, what an Authentication
//! Method has to say (section 4.12).

use std::future::poll_fn;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::held::Barrier;
use super::io::with_worker;
use super::login::Found;
use super::reauthentication::Reauthentication;
use super::{Peer, Stream, Terms};
use crate::auth::{Claim, Identity, Policy, Record, SCRAM_SHA_256, Scram};
use crate::clock;
use crate::codec::{
    self, Auth, AuthProperties, ConnAck, ConnAckProperties, Connect, DecodeError, Packet, ProtocolVersion, ReasonCode,
};
use crate::limits::{
    CONNECT_BYTES_MAX, CONNECT_BYTES_MAX_TIGHT, FORWARDED_PROPERTIES_BYTES_MAX, PACED_READ_BYTES_LEAST, RECEIVE_MAXIMUM,
};
use crate::pressure::Level;
use crate::router::{ConnectRequest, Connection, NoSession, Router, Verdict, is_own_state, is_system};
use crate::session::{Connected, SessionExpiry, StoredMessage, Will};
use crate::topic;

/// A CONNACK that says no to an MQTT 5 client.
const REFUSAL_BYTES: usize = 5;

/// The same for a user that there is not.
pub(super) const WRONG: &str = "wrong user name or password";

/// Turns of the runtime that a client's older connection gets for what it has to say still.
const PREDECESSOR_TURNS: usize = 8;

/// A client that is in.
pub(super) struct Accepted {
    pub(super) connection: Connection,
    pub(super) version: ProtocolVersion,
    pub(super) is_bridge: bool,
    pub(super) client_packet_bytes_max: usize,
    pub(super) expiry_fixed: bool,
    pub(super) reauthentication: Option<Box<Reauthentication>>,
    /// What must be safe before the CONNACK.
    pub(super) barrier: Barrier,
    /// What came behind the CONNECT.
    pub(super) pipelined: Vec<u8>,
}

/// Why a client is not let in. Where it can understand a CONNACK, it has got one.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("closed before a whole CONNECT")]
    Closed,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Malformed(#[from] DecodeError),
    #[error("a Maximum Packet Size that nothing fits")]
    Deaf,
    #[error("{reason}: {why}")]
    Unacceptable { version: ProtocolVersion, reason: ReasonCode, why: &'static str },
}

/// Reads the CONNECT and opens the session. The CONNACK of success is in the session's outbox; that of a refusal is written.
pub(super) async fn accept(stream: &mut Stream, peer: &Peer, router: &Arc<Router>, terms: &Terms) -> Result<Accepted, Refused> {
    let mut bytes = Vec::new();
    let accepted = match read_connect(stream, &mut bytes, router, terms).await {
        Err(refused) => Err(refused),
        Ok(()) => let_in(stream, &bytes, peer, router, terms).await,
    };
    if let Err(refused) = &accepted
        && let Some(connack) = refusal(refused, &bytes, terms.server_reference.as_deref())
    {
        // The client is refused all the same if it does not take the answer.
        let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(&connack)).await;
    }
    accepted
}

/// Reads until `bytes` begins with a whole CONNECT, and next to nothing of what comes behind it: that is read as the client's rates allow. Memory
/// grows with what arrives, and where it becomes scarce meanwhile, a large CONNECT comes too late.
async fn read_connect(stream: &mut Stream, bytes: &mut Vec<u8>, router: &Router, terms: &Terms) -> Result<(), Refused> {
    loop {
        let missing = codec::frame_length(bytes)?.unwrap_or(0).saturating_sub(bytes.len());
        let most = missing.max(PACED_READ_BYTES_LEAST) as u64;
        if (&mut *stream).take(most).read_buf(bytes).await? == 0 {
            return Err(Refused::Closed);
        }
        let is_free = router.pressure().level() == Level::Free;
        let connect_bytes_max = if is_free { CONNECT_BYTES_MAX } else { CONNECT_BYTES_MAX_TIGHT };
        if codec::decode_connect(bytes, terms.packet_bytes_max.min(connect_bytes_max))?.is_some() {
            return Ok(());
        }
    }
}

/// Finds out who the client is, and opens its session if it may come in.
async fn let_in(stream: &mut Stream, bytes: &[u8], peer: &Peer, router: &Arc<Router>, terms: &Terms) -> Result<Accepted, Refused> {
    let Some((connect, length)) = codec::decode_connect(bytes, CONNECT_BYTES_MAX)? else { return Err(Refused::Closed) };
    router.metrics().connects.add(1);
    check_open(&connect, router)?;
    check(&connect, terms)?;
    let policy = terms.policy.load_full();
    let mut guest = Guest { stream, rest: bytes.get(length..).unwrap_or_default().to_vec(), connect: &connect, peer, terms };
    let proven = guest.authenticate(&policy).await;
    let proven = proven.inspect_err(|_| router.metrics().logins_refused.add(1))?;
    let pipelined = guest.rest;
    fetch(&connect, &policy, &proven, router).await?;
    await_predecessors(&[connect.client_id], router).await;
    // Time has passed.
    check_open(&connect, router)?;
    let accepted = open(&connect, peer, pipelined, &proven, &policy, router, terms)?;
    // The rules may have changed while the password was looked at, or what a backend says, and those who were in by then have been judged.
    let now_in_force = terms.policy.load();
    if !Arc::ptr_eq(&now_in_force, &policy) || matches!(proven.identity, Identity::Vouched { .. }) {
        with_worker(|worker| {
            let (batch, now) = (&mut worker.scratch.batch, clock::now());
            router.judge_one(batch, &accepted.connection.subscriber, |access| now_in_force.judge(access.identity()), now);
            router.finish(batch, now);
        });
    }
    Ok(accepted)
}

/// Waits for the client's session where another broker has it.
async fn fetch(connect: &Connect<'_>, policy: &Policy, proven: &Proven, router: &Router) -> Result<(), Refused> {
    let access = Some(policy.admit(&proven.identity));
    let Some(fetch) = router.fetch_session(connect.client_id, connect.clean_start, access, clock::now()) else { return Ok(()) };
    match poll_fn(|context| fetch.poll(context)).await {
        Verdict::Proceed => Ok(()),
        Verdict::Refused => Err(on_its_way(connect.version)),
    }
}

fn on_its_way(version: ProtocolVersion) -> Refused {
    let why = "its session is at another broker and could not be fetched";
    Refused::Unacceptable { version, reason: ReasonCode::ServerUnavailable, why }
}

/// Lets the clients' older connections, if there are any, be served first: what a client sent there before it came here is to be heard before it, be
/// it a good-bye.
pub async fn await_predecessors(client_ids: &[&str], router: &Router) {
    for _ in 0..PREDECESSOR_TURNS {
        if !client_ids.iter().any(|client_id| router.is_connected(client_id)) {
            return;
        }
        // Whoever can be served by now is served before this returns.
        tokio::task::yield_now().await;
    }
}

/// What a client has shown.
struct Proven {
    identity: Identity,
    /// By a method, and what is to be said at its end.
    method: Option<(&'static str, String)>,
}

impl Proven {
    fn plainly(identity: Identity) -> Self {
        Self { identity, method: None }
    }
}

/// A client that is at the door.
pub(super) struct Guest<'a> {
    stream: &'a mut Stream,
    /// What it has sent behind its CONNECT.
    rest: Vec<u8>,
    pub(super) connect: &'a Connect<'a>,
    pub(super) peer: &'a Peer,
    pub(super) terms: &'a Terms,
}

impl Guest<'_> {
    async fn authenticate(&mut self, policy: &Policy) -> Result<Proven, Refused> {
        let since = clock::now();
        if let Some(method) = self.connect.properties.authentication_method {
            return self.authenticate_by(method, policy, since).await;
        }
        if let Some(name) = &self.peer.identity {
            return self.certify(policy, name, since).await.map(Proven::plainly);
        }
        match policy.claim(self.connect.user_name, self.connect.password.is_some()) {
            Claim::Granted(identity) => Ok(Proven::plainly(identity)),
            Claim::Ask => self.ask_backends(policy, since).await.map(Proven::plainly),
            Claim::NotAllowed => Err(self.refuse(ReasonCode::NotAuthorized, "anonymous clients may not come in here", since).await),
            Claim::NoPassword => Err(self.refuse(ReasonCode::BadUserNameOrPassword, WRONG, since).await),
            Claim::Nobody { record } => {
                let name = self.connect.user_name.unwrap_or_default();
                Err(match self.verify(name, false, &record).await {
                    Found::Good | Found::Wrong => self.refuse(ReasonCode::BadUserNameOrPassword, WRONG, since).await,
                    Found::Busy => self.busy(since).await,
                })
            }
            Claim::Check { name, record } => match self.verify(&name, true, &record).await {
                Found::Good => Ok(Proven::plainly(Identity::User { name, record: Some(record) })),
                Found::Wrong => Err(self.refuse(ReasonCode::BadUserNameOrPassword, WRONG, since).await),
                Found::Busy => Err(self.busy(since).await),
            },
        }
    }

    pub(super) async fn verify(&self, name: &str, is_user: bool, record: &Arc<Record>) -> Found {
        let password = self.connect.password.unwrap_or_default();
        self.terms.logins.verify(self.peer.address.ip(), name, is_user, record, password).await
    }

    pub(super) async fn busy(&self, since: Instant) -> Refused {
        self.refuse(ReasonCode::ServerBusy, "too many log-ins", since).await
    }

    async fn authenticate_by(&mut self, method: &str, policy: &Policy, since: Instant) -> Result<Proven, Refused> {
        let users = policy.users_by_scram().filter(|users| method == SCRAM_SHA_256 && users.have_scram());
        let Some(users) = users else {
            return Err(self.unacceptable(ReasonCode::BadAuthenticationMethod, "an authentication method that is not offered"));
        };
        let first = self.connect.properties.authentication_data.unwrap_or_default();
        let begun = Scram::begin(users, first);
        let Ok((scram, challenge)) = begun else {
            return Err(self.refuse(ReasonCode::NotAuthorized, "a SCRAM message that is not understood", since).await);
        };
        let response = self.ask(&challenge).await?;
        // Here and not before the challenge: then as many could be asked at once as there are connections, and each try one password.
        if !self.terms.logins.turn_of(self.peer.address.ip()).await {
            return Err(self.busy(since).await);
        }
        let user_name = self.connect.user_name;
        match scram.finish(&response) {
            Ok((identity, signature)) if user_name.is_none() || user_name == identity.user() => {
                self.terms.logins.count_good(self.peer.address.ip(), clock::now());
                Ok(Proven { identity, method: Some((SCRAM_SHA_256, signature)) })
            }
            _ => {
                self.terms.logins.count_wrong(self.peer.address.ip(), clock::now());
                Err(self.refuse(ReasonCode::NotAuthorized, WRONG, since).await)
            }
        }
    }

    /// Sends a challenge and reads the answer; nothing else may come [MQTT-3.1.2-30].
    async fn ask(&mut self, challenge: &str) -> Result<Vec<u8>, Refused> {
        let mut packet = Vec::new();
        let properties = AuthProperties {
            authentication_method: Some(SCRAM_SHA_256),
            authentication_data: Some(challenge.as_bytes()),
            ..AuthProperties::default()
        };
        // A challenge of ours fits.
        let _ = codec::encode(
            &mut packet,
            ProtocolVersion::V5,
            &Packet::Auth(Auth { reason: ReasonCode::ContinueAuthentication, properties }),
        );
        if packet.len() > packet_bytes_max(self.connect) {
            return Err(self.unacceptable(ReasonCode::PacketTooLarge, "a Maximum Packet Size that its challenge does not fit"));
        }
        self.stream.write_all(&packet).await?;
        loop {
            let answer = match codec::decode(&self.rest, ProtocolVersion::V5, CONNECT_BYTES_MAX)? {
                Some((Packet::Auth(auth), length)) => {
                    let is_answer = auth.reason == ReasonCode::ContinueAuthentication
                        && auth.properties.authentication_method == Some(SCRAM_SHA_256);
                    Some((is_answer.then(|| auth.properties.authentication_data.unwrap_or_default().to_vec()), length))
                }
                Some((Packet::Disconnect(_), _)) => return Err(Refused::Closed),
                Some((_, length)) => Some((None, length)),
                None => None,
            };
            match answer {
                Some((Some(data), length)) => {
                    self.rest.drain(..length);
                    return Ok(data);
                }
                Some((None, _)) => {
                    return Err(self.unacceptable(ReasonCode::ProtocolError, "something else than the answer to a challenge"));
                }
                None if self.stream.read_buf(&mut self.rest).await? == 0 => return Err(Refused::Closed),
                None => {}
            }
        }
    }

    fn unacceptable(&self, reason: ReasonCode, why: &'static str) -> Refused {
        Refused::Unacceptable { version: self.connect.version, reason, why }
    }

    /// A refusal that takes its time.
    pub(super) async fn refuse(&self, reason: ReasonCode, why: &'static str, since: Instant) -> Refused {
        let Connect { client_id, user_name, .. } = *self.connect;
        self.terms.logins.refuse(self.peer.address.ip(), client_id, user_name, why, since).await;
        self.unacceptable(reason, why)
    }
}

fn open(
    connect: &Connect<'_>,
    peer: &Peer,
    pipelined: Vec<u8>,
    proven: &Proven,
    policy: &Policy,
    router: &Arc<Router>,
    terms: &Terms,
) -> Result<Accepted, Refused> {
    let now = clock::now();
    let version = connect.version;
    let v5 = version == ProtocolVersion::V5;
    let assigned = connect.client_id.is_empty().then(Router::assign_client_id);
    let expiry = match (v5, connect.clean_start) {
        (true, _) => SessionExpiry::from_interval_seconds(connect.properties.session_expiry_seconds.unwrap_or(0)),
        // 3.1.1: a session with Clean Session 0 is kept for good.
        (false, true) => SessionExpiry::WithConnection,
        (false, false) => SessionExpiry::Never,
    };
    let (keep_alive_seconds, server_keep_alive) = keep_alive(connect, terms);
    let receive_maximum = connect.properties.receive_maximum.map_or(u16::MAX, NonZeroU16::get);
    let client_packet_bytes_max = packet_bytes_max(connect);
    let request = ConnectRequest {
        client_id: assigned.as_deref().unwrap_or(connect.client_id),
        clean_start: connect.clean_start,
        expiry,
        silence_max: (keep_alive_seconds > 0).then(|| Duration::from_millis(u64::from(keep_alive_seconds) * 1_500)),
        will: connect.will.as_ref().map(will).transpose()?,
        connected: Connected {
            version,
            window: receive_maximum.min(terms.inflight_max),
            packet_bytes_max: client_packet_bytes_max,
            topic_alias_max: connect.properties.topic_alias_maximum.unwrap_or(0).min(terms.topic_alias_broker_max),
        },
        address: peer.address.socket(),
        access: Some(policy.admit(&proven.identity)),
    };
    let response_information = response_information(connect, terms, request.client_id);
    let encode = |session_present, response_information: Option<&str>| {
        let properties = ConnAckProperties {
            receive_maximum: NonZeroU16::new(RECEIVE_MAXIMUM),
            maximum_packet_size: NonZeroU32::new(terms.packet_bytes_max),
            assigned_client_id: assigned.as_deref(),
            topic_alias_maximum: Some(terms.topic_alias_max),
            server_keep_alive_seconds: server_keep_alive,
            authentication_method: proven.method.as_ref().map(|(method, _)| *method),
            authentication_data: proven.method.as_ref().map(|(_, last)| last.as_bytes()),
            response_information,
            ..ConnAckProperties::default()
        };
        let packet = Packet::ConnAck(Box::new(ConnAck { session_present, reason: ReasonCode::Success, properties }));
        let mut encoded = Vec::with_capacity(64);
        // An assigned identifier and the response information are the only parts of changing length, and within what a string may have.
        let _ = codec::encode(&mut encoded, version, &packet);
        encoded
    };
    // What the client asked for and can do without gives way to its Maximum Packet Size, what it must know does not [MQTT-3.1.2-24].
    let response_information = response_information.filter(|text| encode(false, Some(text)).len() <= client_packet_bytes_max);
    if client_packet_bytes_max < REFUSAL_BYTES {
        return Err(Refused::Deaf);
    }
    if encode(false, None).len() > client_packet_bytes_max {
        let why = "a Maximum Packet Size that its CONNACK does not fit";
        return Err(Refused::Unacceptable { version, reason: ReasonCode::PacketTooLarge, why });
    }
    let connack = |session_present| encode(session_present, response_information.as_deref());
    let mut barrier = Barrier::default();
    let connection = with_worker(|worker| {
        let batch = &mut worker.scratch.batch;
        batch.writes().begin();
        let connection = router.connect(batch, request, connack, now);
        router.finish(batch, now);
        barrier.raise(batch.writes().take_number());
        connection
    })
    .map_err(|why| match why {
        NoSession::TooMany => Refused::Unacceptable { version, reason: ReasonCode::QuotaExceeded, why: "too many sessions" },
        NoSession::OnItsWay => on_its_way(version),
    })?;
    Ok(Accepted {
        connection,
        version,
        is_bridge: connect.is_bridge,
        client_packet_bytes_max,
        expiry_fixed: v5 && expiry == SessionExpiry::WithConnection,
        reauthentication: proven.method.is_some().then(|| Box::new(Reauthentication::new(Arc::clone(&terms.policy)))),
        barrier,
        pipelined,
    })
}

/// The largest packet that the client takes [MQTT-3.1.2-24].
fn packet_bytes_max(connect: &Connect<'_>) -> usize {
    connect.properties.maximum_packet_size.map_or(usize::MAX, |size| usize::try_from(size.get()).unwrap_or(usize::MAX))
}

fn check_open(connect: &Connect<'_>, router: &Router) -> Result<(), Refused> {
    match router.refuses_clients() {
        true => {
            let (version, reason) = (connect.version, ReasonCode::UseAnotherServer);
            Err(Refused::Unacceptable { version, reason, why: "the broker is drained" })
        }
        false => Ok(()),
    }
}

fn check(connect: &Connect<'_>, terms: &Terms) -> Result<(), Refused> {
    let version = connect.version;
    let refuse = |reason, why| Err(Refused::Unacceptable { version, reason, why });
    // 3.1.1 [MQTT-3.1.3-8]: no name needs a clean session; 3.1 knows no empty name.
    let nameless = connect.client_id.is_empty();
    if nameless && (version == ProtocolVersion::V3_1 || (version == ProtocolVersion::V3_1_1 && !connect.clean_start)) {
        return refuse(ReasonCode::ClientIdentifierNotValid, "an empty client identifier");
    }
    let is_reserved = |reserved: &String| {
        let rest = connect.client_id.strip_prefix(reserved.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if terms.reserved.load().iter().any(is_reserved) {
        return refuse(ReasonCode::ClientIdentifierNotValid, "the client identifier of a bridge");
    }
    match &connect.will {
        Some(will) if topic::check_name(will.topic).is_err() => refuse(ReasonCode::TopicNameInvalid, "the will's topic"),
        Some(will) if is_system(will.topic) && !is_own_state(will.topic, will.payload, connect.client_id) => {
            refuse(ReasonCode::NotAuthorized, "a will below $SYS")
        }
        _ => Ok(()),
    }
}

/// The keep alive that holds, and what the client must be told of it [MQTT-3.2.2-21]. An older client that asks for more than is allowed is held to
/// the limit: it cannot be told.
fn keep_alive(connect: &Connect<'_>, terms: &Terms) -> (u16, Option<u16>) {
    let asked = connect.keep_alive_seconds;
    match terms.keep_alive_max_seconds {
        Some(longest) if asked == 0 || asked > longest => (longest, (connect.version == ProtocolVersion::V5).then_some(longest)),
        _ => (asked, None),
    }
}

/// What stands in front of the topics on which this client awaits responses (MQTT 5.0 section 3.2.2.3.15), if it asks for that.
fn response_information(connect: &Connect<'_>, terms: &Terms, client_id: &str) -> Option<String> {
    let text = terms.response_information.as_ref()?;
    let text = connect.properties.request_response_information?.then(|| text.replace("%c", client_id))?;
    // Longer is no string of MQTT [MQTT-1.5.4]: the client can do without.
    (text.len() <= usize::from(u16::MAX)).then_some(text)
}

fn will(will: &codec::Will<'_>) -> Result<Will, Refused> {
    let mut properties = Vec::new();
    // What was decoded can be encoded.
    let _ = will.properties.forward_into(&mut properties);
    if properties.len() > FORWARDED_PROPERTIES_BYTES_MAX {
        let why = "the will's properties are too large";
        return Err(Refused::Unacceptable { version: ProtocolVersion::V5, reason: ReasonCode::QuotaExceeded, why });
    }
    Ok(Will {
        message: StoredMessage {
            topic: will.topic.into(),
            payload: will.payload.to_vec().into(),
            qos: will.qos,
            retain: will.retain,
            expires_at: None,
            properties: properties.into(),
        },
        message_expiry: will.properties.message_expiry_seconds.map(|seconds| Duration::from_secs(u64::from(seconds))),
        delay: Duration::from_secs(u64::from(will.properties.delay_seconds.unwrap_or(0))),
    })
}

/// The CONNACK that says no, in the client's version. None where nothing is to be said: the client never spoke MQTT, or does not take as much.
fn refusal(refused: &Refused, bytes: &[u8], server_reference: Option<&str>) -> Option<Vec<u8>> {
    let (version, reason) = match refused {
        Refused::Unacceptable { version, reason, .. } => (*version, *reason),
        // A version that is not served is told so in the words of its nearest relative: of 3.1.1 what is older, of 5.0 what is newer
        // [MQTT-3.1.2-2].
        Refused::Malformed(error @ DecodeError::ProtocolLevel(level)) => {
            (if *level > 5 { ProtocolVersion::V5 } else { ProtocolVersion::V3_1_1 }, error.reason())
        }
        Refused::Malformed(error) => (codec::connect_version(bytes)?, error.reason()),
        Refused::Closed | Refused::Deaf | Refused::Io(_) => return None,
    };
    let bytes_max = match codec::decode_connect(bytes, CONNECT_BYTES_MAX) {
        Ok(Some((connect, _))) => packet_bytes_max(&connect),
        _ => usize::MAX,
    };
    // Where to is left out where it does not fit.
    [server_reference.filter(|_| reason == ReasonCode::UseAnotherServer), None].into_iter().find_map(|server_reference| {
        let properties = ConnAckProperties { server_reference, ..ConnAckProperties::default() };
        let packet = Packet::ConnAck(Box::new(ConnAck { session_present: false, reason, properties }));
        let mut encoded = Vec::new();
        codec::encode(&mut encoded, version, &packet).ok()?;
        (encoded.len() <= bytes_max).then_some(encoded)
    })
}

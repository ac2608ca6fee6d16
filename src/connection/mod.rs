//! One client: one task that reads, publishes and writes.
//!
//! The first packet must be a whole CONNECT ([`admit`]), for which the listener sets a time limit. Then one poll function does it all: what one read brings is one
//! batch ([`packets`]), what waits in the outbox is one write ([`io`]). Nothing crosses a channel or a thread for a message; while the client is
//! idle no buffer is held and no timer runs (keep alive is the router's).
//!
//! What carries the bytes ([`Stream`]) is handed over by whatever accepts clients.

mod backed;
mod handshake;
mod held;
mod io;
mod login;
mod pace;
mod packets;
mod peer;
mod reauthentication;
mod stream;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub use self::handshake::await_predecessors;
pub use self::login::Logins;
pub use self::pace::{Meter, Rates};
pub use self::stream::{Carrier, Stream};

use self::handshake::Accepted;
use self::held::{Barrier, Held};
use self::io::{Input, Output, Read, Scratch, Worker, with_worker};
use self::pace::Pace;
pub use self::peer::{Address, Peer, Transport};
use self::reauthentication::Reauthentication;
use crate::auth::Policy;
use crate::backends::Backends;
use crate::clock;
use crate::codec::{self, DecodeError, Disconnect, DisconnectProperties, Packet, ProtocolVersion, ReasonCode};
use crate::limits::{HELD_ACKNOWLEDGEMENTS_BYTES_MAX, READ_BYTES, UNREAD_ANSWERS_BYTES_MAX};
use crate::pressure::Level;
use crate::router::{Connection, Farewell, RouteCache, Router};
use crate::session::{NextToSend, OutOfOrder, SessionExpiry, Subscriber, Waiter};

/// Reads that one poll makes before it lets other tasks run.
const READS_PER_POLL: usize = 2;
/// How long a connection that is to end waits for its socket to take what is left, and how long it is then drained, so that its last packet is not
/// lost to a TCP reset.
const LINGER: Duration = Duration::from_millis(500);

/// What the listener says about the clients that it accepts.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Who may come in, and what clients may do. A reload replaces it.
    pub policy: Arc<ArcSwap<Policy>>,
    /// Checks passwords.
    pub logins: Arc<Logins>,
    /// Backends outside of this broker, if there are any.
    pub backends: Option<Backends>,
    /// Largest packet that is taken, bytes.
    pub packet_bytes_max: u32,
    /// Bound of ours on messages in flight to the client.
    pub inflight_max: u16,
    /// Longest keep alive, seconds; none: any.
    pub keep_alive_max_seconds: Option<u16>,
    /// What each client may send a second.
    pub rates: Rates,
    /// What all clients of the listener together have sent.
    pub meter: Option<Arc<Mutex<Meter>>>,
    /// Topic aliases that a client may set.
    pub topic_alias_max: u16,
    /// Topic aliases that we set where the client takes as many.
    pub topic_alias_broker_max: u16,
    /// Response Information for clients that ask for it, `%c` being their client id.
    pub response_information: Option<String>,
    /// Server Reference for clients that are to use another server.
    pub server_reference: Option<String>,
    /// What no client's id may be, or begin with before a dot.
    pub reserved: Arc<ArcSwap<Vec<String>>>,
}

/// Reads the CONNECT and opens the session. The caller bounds the time that it may take. `None`: the client was refused and, where it can
/// understand that, told so.
pub async fn admit(mut stream: Stream, peer: Peer, router: Arc<Router>, terms: Arc<Terms>) -> Option<Box<Client>> {
    match handshake::accept(&mut stream, &peer, &router, &terms).await {
        Ok(accepted) => {
            let Peer { transport, .. } = peer;
            tracing::debug!(%peer, ?transport, client = ?accepted.connection.subscriber.client_id, version = ?accepted.version, "client connected");
            let pace = Pace::new(terms.rates, terms.meter.as_ref());
            Some(Box::new(Client::new(stream, router, terms, accepted, pace)))
        }
        Err(refused) => {
            router.metrics().connections_refused.add(1);
            tracing::debug!(%peer, reason = %refused, "client refused");
            linger(&mut stream).await;
            None
        }
    }
}

/// Lets the client read what was written last.
async fn linger(stream: &mut Stream) {
    let drain = async {
        stream.shutdown().await?;
        let mut sink = [0; 1024];
        while stream.read(&mut sink).await? > 0 {}
        std::io::Result::Ok(())
    };
    // The connection is over either way.
    let _ = tokio::time::timeout(LINGER, drain).await;
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("disconnected by the client")]
    Disconnect(Farewell, Option<SessionExpiry>),
    #[error("the client closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("told: {0}")]
    Told(ReasonCode),
    #[error("closed with {0}: the client takes no more bytes")]
    Unwritable(ReasonCode),
}

impl End {
    /// Whether there is something to read for the client: an MQTT packet that says why, or the close of its transport, whose own rules it may have broken.
    /// Behind a DISCONNECT a client's TLS or WebSocket says good-bye too: with that unread, TCP would reset the connection under its last answers.
    fn leaves_words(&self) -> bool {
        match self {
            Self::Told(_) | Self::Disconnect(..) => true,
            Self::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            Self::Closed | Self::Unwritable(_) => false,
        }
    }
}

/// What a packet does to its connection.
#[derive(Debug)]
enum Fault {
    /// The client broke the protocol, or something of it was refused.
    Close(ReasonCode),
    /// The client says good-bye.
    Disconnect(Farewell, Option<SessionExpiry>),
}

impl From<codec::DecodeError> for Fault {
    fn from(error: codec::DecodeError) -> Self {
        tracing::debug!(%error, "bad packet");
        Self::Close(error.reason())
    }
}

impl From<OutOfOrder> for Fault {
    fn from(_: OutOfOrder) -> Self {
        Self::Close(ReasonCode::ProtocolError)
    }
}

/// Whether there is a DISCONNECT among the whole packets at the front that takes the will away [MQTT-3.14.4-3].
fn says_goodbye(mut bytes: &[u8], version: ProtocolVersion, packet_bytes_max: u32) -> bool {
    while let Ok(Some((packet, length))) = codec::decode(bytes, version, packet_bytes_max) {
        if let Packet::Disconnect(disconnect) = packet {
            return disconnect.reason == ReasonCode::Success;
        }
        bytes = bytes.get(length..).unwrap_or_default();
    }
    false
}

/// One connected client.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    router: Arc<Router>,
    connection: Connection,
    terms: Arc<Terms>,
    version: ProtocolVersion,
    /// It is another broker's bridge: nothing that it sends goes back to it, and what is retained stays so.
    is_bridge: bool,
    /// Largest packet that the client takes.
    client_packet_bytes_max: usize,
    /// The Session Expiry Interval of CONNECT was 0: DISCONNECT must not change it [MQTT-3.14.2.2.2].
    expiry_fixed: bool,
    input: Input,
    output: Output,
    /// What it may send a second; none: anything.
    pace: Option<Box<Pace>>,
    /// Until then it is not read from.
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
    routes: RouteCache,
    aliases: packets::Aliases,
    /// There for a client that authenticated by a method of its own: it may do so again.
    reauthentication: Option<Box<Reauthentication>>,
    /// Acknowledgements that wait for the store and for the mesh.
    held: Held,
    /// As the session knows it: see [`crate::session::State::is_unread`].
    is_unread: bool,
    /// Until this is safe nothing is written.
    barrier: Barrier,
    /// Waits until a QoS 2 message may be sent.
    to_send: Option<Box<Waiter>>,
    /// Bytes answered since the outbox was last written out.
    unread_answers_bytes: usize,
    /// Set once: what waits is written, then the connection ends.
    closing: Option<ReasonCode>,
    /// How long a connection that is to end waits for a socket that takes no more.
    patience: Option<Pin<Box<tokio::time::Sleep>>>,
    /// The last packet is in `output`.
    said_last: bool,
    /// The client has said good-bye, but was not heard: its session has another connection.
    said_goodbye: bool,
    /// The client has said good-bye together with its CONNECT.
    ending: Option<Box<End>>,
}

impl Client {
    fn new(stream: Stream, router: Arc<Router>, terms: Arc<Terms>, accepted: Accepted, pace: Option<Box<Pace>>) -> Self {
        router.metrics().clients.change(1);
        Self {
            stream,
            router,
            version: accepted.version,
            is_bridge: accepted.is_bridge,
            client_packet_bytes_max: accepted.client_packet_bytes_max,
            expiry_fixed: accepted.expiry_fixed,
            connection: accepted.connection,
            input: Input::default(),
            output: Output::default(),
            pace,
            pause: None,
            routes: RouteCache::default(),
            aliases: packets::Aliases::new(terms.topic_alias_max),
            reauthentication: accepted.reauthentication,
            terms,
            held: Held::default(),
            is_unread: false,
            barrier: accepted.barrier,
            to_send: None,
            unread_answers_bytes: 0,
            closing: None,
            patience: None,
            said_last: false,
            said_goodbye: false,
            ending: None,
        }
        .with_pipelined(accepted.pipelined)
    }

    /// Packets that came in one segment with the CONNECT (3.1.1, section 3.1.4: clients need not wait for CONNACK).
    fn with_pipelined(mut self, bytes: Vec<u8>) -> Self {
        if !bytes.is_empty() {
            let fault = with_worker(|worker| self.process(&bytes, bytes.len(), &mut worker.scratch));
            self.closing = match fault {
                Ok(()) => None,
                Err(Fault::Close(reason)) => Some(reason),
                Err(Fault::Disconnect(farewell, expiry)) => {
                    self.ending = Some(Box::new(End::Disconnect(farewell, expiry)));
                    None
                }
            };
        }
        self
    }

    /// Its session.
    #[must_use]
    pub fn subscriber(&self) -> &Arc<Subscriber> {
        &self.connection.subscriber
    }

    /// What ends it from outside.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer { subscriber: Arc::clone(&self.connection.subscriber), epoch: self.connection.epoch }
    }

    /// Serves the client until one side ends the connection.
    pub async fn serve(mut self: Box<Self>) {
        if !self.connection.wait.is_zero() {
            Box::pin(tokio::time::sleep(self.connection.wait)).await;
        }
        let end = poll_fn(|cx| self.poll(cx)).await;
        match &end {
            End::Disconnect(farewell, expiry) => self.finish(*farewell, *expiry),
            _ => self.finish(Farewell::Lost, None),
        }
        tracing::debug!(client = ?self.connection.subscriber.client_id, end = %end, "client gone");
        if end.leaves_words() {
            // In a box: what it needs at the end would else be held from the beginning.
            Box::pin(linger(&mut self.stream)).await;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        with_worker(|worker| {
            let end = self.poll_with(cx, worker);
            // Counters and wakes of what flushing has pumped; a read batch has ended itself.
            if std::mem::take(&mut worker.scratch.has_pumped) {
                self.router.finish(&mut worker.scratch.batch, clock::now());
            }
            end
        })
    }

    fn poll_with(&mut self, cx: &mut Context<'_>, worker: &mut Worker) -> Poll<End> {
        if let Some(end) = self.ending.take() {
            return self.poll_farewell(cx, worker, *end);
        }
        self.poll_pause(cx);
        for _ in 0..READS_PER_POLL {
            if !self.may_read() {
                break;
            }
            match self.poll_input(cx, worker) {
                Poll::Pending => return self.poll_output(cx, worker),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return self.poll_farewell(cx, worker, end),
            }
        }
        if let Poll::Ready(end) = self.poll_output(cx, worker) {
            return Poll::Ready(end);
        }
        self.poll_pause(cx);
        // There may be more to read: after the others. A client that is not read from is waited for by the writing side.
        if self.may_read() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// The client has ended it: what came before is still answered, as far as its socket takes it now.
    fn poll_farewell(&mut self, cx: &mut Context<'_>, worker: &mut Worker, end: End) -> Poll<End> {
        // It is over whatever becomes of the answers.
        let _ = self.poll_output(cx, worker);
        Poll::Ready(end)
    }

    /// A client that sends without reading its answers is read from again once it has read them; nothing more is heard from one that is
    /// being closed.
    fn may_read(&self) -> bool {
        self.closing.is_none()
            && self.pause.is_none()
            && self.unread_answers_bytes < UNREAD_ANSWERS_BYTES_MAX
            && !self.waits_for_safety()
            && self.connection.subscriber.is_latest(self.connection.epoch)
    }

    /// Whether so much of what the client has sent cannot be acknowledged yet that it is not read from: anything at all while the store is behind.
    /// Not while it fails: that ends who knows when, and its list is taken in turns all the same.
    fn waits_for_safety(&self) -> bool {
        if self.held.is_empty() && self.barrier.is_open() {
            return false;
        }
        self.held.len() >= HELD_ACKNOWLEDGEMENTS_BYTES_MAX
            || self.router.journal().is_some_and(|journal| journal.is_behind() && !journal.is_failing())
    }

    fn poll_input(&mut self, cx: &mut Context<'_>, worker: &mut Worker) -> Poll<Result<(), End>> {
        let Worker { input, scratch } = worker;
        let most = self.pace.as_ref().map_or(READ_BYTES, |pace| pace.room(self.input.missing(), clock::now()));
        let Poll::Ready(read) = self.input.poll_read(&mut self.stream, cx, input, most) else { return Poll::Pending };
        let processed = match read {
            Err(error) => return Poll::Ready(Err(error.into())),
            Ok(Read::End) => return Poll::Ready(Err(End::Closed)),
            Ok(Read::Part(count)) => {
                self.router.metrics().bytes_received.add(count as u64);
                self.part(count)
            }
            Ok(Read::Bytes(bytes, count)) => {
                self.router.metrics().bytes_received.add(count as u64);
                self.process(bytes, count, scratch)
            }
            Ok(Read::Large(bytes, count)) => {
                self.router.metrics().bytes_received.add(count as u64);
                self.process(&bytes, count, scratch)
            }
        };
        match processed {
            Ok(()) => Poll::Ready(Ok(())),
            Err(Fault::Close(reason)) => {
                self.router.metrics().protocol_errors.add(1);
                self.closing = Some(reason);
                Poll::Ready(Ok(()))
            }
            Err(Fault::Disconnect(farewell, expiry)) => Poll::Ready(Err(End::Disconnect(farewell, expiry))),
        }
    }

    /// `count` bytes more of a packet that is not whole yet. Without memory nothing grows.
    fn part(&mut self, count: usize) -> Result<(), Fault> {
        if self.router.pressure().level() == Level::Full {
            self.router.metrics().refused_memory.add(1);
            return Err(Fault::Close(ReasonCode::QuotaExceeded));
        }
        if self.pace.is_some() {
            self.charge(0, count, clock::now());
        }
        Ok(())
    }

    /// So much was read: whoever sends more than it may is read from later.
    fn charge(&mut self, messages: u64, bytes: usize, now: Instant) {
        let Some(pace) = &mut self.pace else { return };
        let wait = pace.charge(messages, bytes as u64, now);
        if !wait.is_zero() {
            self.router.metrics().pauses_rate.add(1);
            self.pause_until(now + wait);
        }
    }

    /// The longest of all pauses counts.
    fn pause_until(&mut self, at: Instant) {
        let at = self.pause.as_ref().map_or(at, |pause| pause.deadline().into_std().max(at));
        // A client that is not read from is not to blame for its silence.
        self.connection.subscriber.heard(self.router.millis(at));
        self.pause = Some(Box::pin(tokio::time::sleep_until(at.into())));
    }

    /// Ends a pause that is over, else registers for its end.
    fn poll_pause(&mut self, cx: &mut Context<'_>) {
        if self.pause.as_mut().is_some_and(|pause| pause.as_mut().poll(cx).is_ready()) {
            self.pause = None;
        }
    }

    /// One read batch, `count` bytes of it new: all whole packets, then what they caused as one.
    fn process(&mut self, bytes: &[u8], count: usize, scratch: &mut Scratch) -> Result<(), Fault> {
        let now = clock::now();
        let mut at = 0;
        let mut packets = 0;
        let mut messages = 0;
        let mut topic = "";
        scratch.batch.writes().begin();
        let result = loop {
            let rest = bytes.get(at..).unwrap_or_default();
            // Nothing of a connection that was taken over counts any more, even if it was read already; but that it was a good-bye.
            if packets > 0 && !self.connection.subscriber.is_latest(self.connection.epoch) {
                self.said_goodbye = says_goodbye(rest, self.version, self.terms.packet_bytes_max);
                break Ok(());
            }
            match codec::decode_behind(topic, rest, self.version, self.terms.packet_bytes_max) {
                Ok(Some((ref packet, length))) => {
                    at += length;
                    packets += 1;
                    if let Err(fault) = self.handle(packet, scratch, now) {
                        break Err(fault);
                    }
                    if let Packet::Publish(publish) = packet {
                        topic = publish.topic;
                        let (count, bytes) = self.publish_alike(publish, (rest, length), scratch, now);
                        at += bytes;
                        packets += count as u64;
                        messages += 1 + count as u64;
                    }
                }
                Ok(None) => {
                    break match codec::frame_length(rest) {
                        Ok(length) => {
                            self.input.keep(rest, length);
                            Ok(())
                        }
                        Err(error) => Err(error.into()),
                    };
                }
                Err(error) if codec::is_servers(rest) && !matches!(error, DecodeError::Flags { .. }) => {
                    break Err(Fault::Close(ReasonCode::ProtocolError));
                }
                Err(error) => break Err(error.into()),
            }
        };
        self.router.metrics().packets_received.add(packets);
        self.router.metrics().answers_sent.add(std::mem::take(&mut scratch.answers_count));
        if packets > 0 {
            self.connection.subscriber.heard(self.router.millis(now));
        }
        if let Some(brake) = self.router.brake(&mut scratch.batch, now) {
            self.router.metrics().pauses_memory.add(1);
            self.pause_until(now + brake);
        }
        if self.pace.is_some() {
            self.charge(messages, count, now);
        }
        // What came before a fault counts: it is published and answered.
        self.router.finish(&mut scratch.batch, now);
        self.answer(scratch);
        result
    }

    /// Appends the batch's answers to the outbox; acknowledgements of publishes wait until what they acknowledge is safe, and while the mesh lags or has to deal with it.
    fn answer(&mut self, scratch: &mut Scratch) {
        let others = scratch.batch.writes().take_others();
        let awaited = scratch.batch.writes().take_awaited();
        let mut published = scratch.batch.take_published();
        if let Some(mesh) = self.router.mesh().filter(|_| std::mem::take(&mut scratch.has_repeats)) {
            published.extend(mesh.published_so_far());
        }
        if !scratch.acknowledgements.is_empty() {
            let is_safe = awaited.number == 0 || self.router.journal().is_none_or(|journal| journal.has(awaited));
            let lags = self.router.mesh().is_some_and(|mesh| mesh.lagging());
            if (lags || !published.is_empty()) && self.held.is_empty() {
                self.router.metrics().acknowledgements_held.add(1);
            }
            if lags || !is_safe || !others.is_empty() || !published.is_empty() || !self.held.is_empty() {
                self.held.hold(&mut scratch.acknowledgements, awaited, others, published);
            }
        }
        self.barrier.raise(std::mem::take(&mut scratch.barrier));
        if let Some(wait) = scratch.echo.take() {
            self.barrier.await_echo(wait);
        }
        self.say_unread();
        if !(scratch.acknowledgements.is_empty() && scratch.answers.is_empty()) {
            self.unread_answers_bytes += scratch.acknowledgements.len() + scratch.answers.len();
            let mut state = self.connection.subscriber.lock();
            if state.epoch == self.connection.epoch {
                state.outbox.tail().extend_from_slice(&scratch.acknowledgements);
                state.outbox.tail().extend_from_slice(&scratch.answers);
            }
            drop(state);
            scratch.acknowledgements.clear();
            scratch.answers.clear();
        }
    }

    /// Whoever watches over the keep alive must know that the client's silence is ours.
    fn say_unread(&mut self) {
        let is_unread = self.waits_for_safety();
        if is_unread == self.is_unread {
            return;
        }
        self.is_unread = is_unread;
        let mut state = self.connection.subscriber.lock();
        if state.epoch == self.connection.epoch {
            state.is_unread = is_unread;
            self.connection.subscriber.heard(self.router.millis(clock::now()));
        }
    }

    /// Acknowledges what was held and may go. Registers for the rest.
    fn release_held(&mut self, cx: &mut Context<'_>) {
        let Self { held, connection, unread_answers_bytes, router, .. } = &mut *self;
        held.poll_release(router, cx, |acknowledgements| {
            let mut state = connection.subscriber.lock();
            if state.epoch == connection.epoch {
                state.outbox.tail().extend_from_slice(acknowledgements);
            }
            drop(state);
            *unread_answers_bytes += acknowledgements.len();
        });
        self.say_unread();
    }

    /// Whether it ends because the broker stops in order, and only the disk is waited for: then the client need not ask again for what is acknowledged in a
    /// moment.
    fn is_owed_acknowledgements(&self, reason: ReasonCode) -> bool {
        matches!(reason, ReasonCode::ServerShuttingDown | ReasonCode::UseAnotherServer)
            && !self.held.is_empty()
            && self.router.journal().is_some_and(|journal| !journal.is_failing())
            && !self.router.mesh().is_some_and(|mesh| mesh.lagging() || mesh.acknowledges_in_mesh())
    }

    /// Writes until nothing waits (then the outbox is armed) or the socket takes no more.
    fn poll_output(&mut self, cx: &mut Context<'_>, worker: &mut Worker) -> Poll<End> {
        if self.barrier.poll(self.router.journal(), cx).is_pending() {
            return self.poll_blocked(cx);
        }
        self.release_held(cx);
        loop {
            while !self.output.is_empty() {
                match self.output.poll_write(&mut self.stream, cx) {
                    Poll::Ready(Ok(count)) => {
                        let metrics = self.router.metrics();
                        metrics.bytes_sent.add(count as u64);
                        metrics.writes.add(1);
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                    Poll::Pending => return self.poll_blocked(cx),
                }
            }
            match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Pending => return self.poll_blocked(cx),
            }
            self.output.reset();
            let mut state = self.connection.subscriber.lock();
            let mut more = false;
            if state.has_backlog() && state.epoch == self.connection.epoch {
                drop(state);
                worker.scratch.has_pumped = true;
                more = self.router.pump(&mut worker.scratch.batch, &self.connection, clock::now());
                state = self.connection.subscriber.lock();
            }
            if state.epoch != self.connection.epoch {
                drop(state);
                return self.poll_taken_over(cx, worker);
            }
            if state.outbox.take(&mut self.output.drained) {
                // All answers so far are on their way now.
                self.unread_answers_bytes = 0;
                continue;
            }
            if let Some(reason) = self.closing.or(state.outbox.closing()) {
                drop(state);
                if self.is_owed_acknowledgements(reason) {
                    // Nothing more is heard meanwhile; who waits is woken when they may go.
                    self.closing = Some(reason);
                    return Poll::Pending;
                }
                return match reason {
                    ReasonCode::SessionTakenOver => self.poll_taken_over(cx, worker),
                    reason => self.poll_last_words(cx, reason),
                };
            }
            // Under the same lock: what is put in flight from now on finds the waker.
            if let Some(journal) = self.router.journal()
                && match state.next_to_send() {
                    NextToSend::Now => true,
                    NextToSend::After(awaited) => {
                        self.to_send.get_or_insert_with(|| Box::new(journal.waiter())).poll_for(awaited, cx).is_ready()
                    }
                    NextToSend::Nothing => false,
                }
            {
                continue;
            }
            state.outbox.shrink();
            state.outbox.arm(cx.waker());
            drop(state);
            self.output.shrink();
            if more {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
    }

    fn poll_taken_over(&mut self, cx: &mut Context<'_>, worker: &mut Worker) -> Poll<End> {
        if !self.said_last && self.hear_goodbye(cx, worker) {
            return Poll::Ready(End::Disconnect(Farewell::Normal, None));
        }
        self.poll_last_words(cx, ReasonCode::SessionTakenOver)
    }

    /// Whether the client said good-bye here before it made the connection that took over: its will does not go out then, though what it sent is
    /// not heard any more.
    fn hear_goodbye(&mut self, cx: &mut Context<'_>, worker: &mut Worker) -> bool {
        if self.said_goodbye {
            return true;
        }
        match self.input.poll_read(&mut self.stream, cx, &mut worker.input, READ_BYTES) {
            Poll::Ready(Ok(Read::Bytes(bytes, _))) => says_goodbye(bytes, self.version, self.terms.packet_bytes_max),
            _ => false,
        }
    }

    /// The socket takes no more. A connection that is to end does not wait for it long.
    fn poll_blocked(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let mut state = self.connection.subscriber.lock();
        let reason = match state.epoch == self.connection.epoch {
            true => self.closing.or(state.outbox.closing()),
            false => Some(ReasonCode::SessionTakenOver),
        };
        match reason {
            Some(reason) => {
                drop(state);
                self.poll_patience(cx).map(|()| End::Unwritable(reason))
            }
            None => {
                state.outbox.block(cx.waker());
                Poll::Pending
            }
        }
    }

    /// Ready when a connection that is to end has waited long enough for its socket.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER))).as_mut().poll(cx)
    }

    /// An MQTT 5 client is told why [MQTT-4.13.1-1]; older ones are only closed.
    fn poll_last_words(&mut self, cx: &mut Context<'_>, reason: ReasonCode) -> Poll<End> {
        if self.version == ProtocolVersion::V5 && reason.is_error() && !self.said_last {
            self.said_last = true;
            self.put_last_packet(reason);
        }
        while !self.output.is_empty() {
            match self.output.poll_write(&mut self.stream, cx) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Pending => return self.poll_patience(cx).map(|()| End::Unwritable(reason)),
            }
        }
        // What it buffers still goes when it is shut down.
        Poll::Ready(End::Told(reason))
    }
}

impl Client {
    /// The DISCONNECT with which we end the connection.
    fn put_last_packet(&mut self, reason: ReasonCode) {
        let mut properties = DisconnectProperties::default();
        if reason == ReasonCode::UseAnotherServer {
            properties.server_reference = self.terms.server_reference.as_deref();
        }
        let out = self.output.last();
        let start = out.len();
        for properties in [properties, DisconnectProperties::default()] {
            let packet = Packet::Disconnect(Disconnect { reason, properties });
            // Only codes that DISCONNECT may carry get here; one that may not would leave the client with a bare close.
            let _ = codec::encode(out, self.version, &packet);
            if out.len() - start <= self.client_packet_bytes_max {
                break;
            }
            out.truncate(start); // [MQTT-3.1.2-24]
        }
        self.router.metrics().answers_sent.add(1);
    }

    /// Tells the router; only the first call counts.
    fn finish(&mut self, farewell: Farewell, expiry: Option<SessionExpiry>) {
        with_worker(|worker| {
            let batch = &mut worker.scratch.batch;
            let now = clock::now();
            self.router.disconnect(batch, &self.connection, farewell, expiry, now);
            self.router.finish(batch, now);
        });
    }
}

/// Ends one client's connection from outside.
#[derive(Debug)]
pub struct Closer {
    subscriber: Arc<Subscriber>,
    epoch: u64,
}

impl Closer {
    /// Whose connection it is.
    #[must_use]
    pub fn client_id(&self) -> &str {
        &self.subscriber.client_id
    }

    /// Ends it after what waits is written; an MQTT 5 client is told `reason`. A later connection of the session is not touched.
    pub fn close(&self, reason: ReasonCode) {
        let owner = {
            let mut state = self.subscriber.lock();
            if state.epoch == self.epoch { state.close(reason) } else { None }
        };
        if let Some(owner) = owner {
            owner.wake();
        }
    }
}

/// A task that is aborted still tells the router.
impl Drop for Client {
    fn drop(&mut self) {
        self.router.metrics().clients.change(-1);
        self.finish(Farewell::Lost, None);
    }
}

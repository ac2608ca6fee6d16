//! Accepts clients: one task a listener, which owns the tasks of the connections that it accepted.
//!
//! * Accepting never stops for long: without descriptors it pauses a moment, says so once a second, and goes on. A client above the limits is
//!   closed at once and counted. When the listener's task is dropped, its connections end with it.
//! * The acceptor only accepts. What comes before a session (PROXY header, TLS, WebSocket, CONNECT) is the connection's own task, within one time
//!   limit for all of it ([`admission`]); what carries the bytes is forgotten after that: `connection` is handed a stream.
//! * Certificates are read at the start and at each reload; clients whose certificates are no longer good are closed then.

mod admission;
mod door;
mod entry;
mod open;
mod quic;
mod socket;
mod subject;
mod tls;
mod websocket;

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

pub use self::admission::Handshakes;
pub use self::door::{Door, Renewal};
pub use self::tls::{Credentials, TlsError};

use self::admission::{Admission, Handshake, Turn};
use self::entry::Entry;
use self::open::Open;
use self::socket::{Acceptor, UnixSocket};
use crate::clock;
use crate::config::{self, Bind, Protocol};
use crate::connection::{Address, Terms};
use crate::router::Router;
use crate::task::TaskSet;

/// Pause when a client was refused because there are as many as may be: those who come again and again cost little.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);
/// Pause when the system refuses to accept.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// A listener that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", remedy(.source))]
    Address {
        /// As configured.
        address: Bind,
        /// What the system says.
        source: io::Error,
    },
    /// Its certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another program has this address: stop it, or choose another one)",
        io::ErrorKind::PermissionDenied => {
            " (ports below 1024 need a privilege: choose another port, or grant CAP_NET_BIND_SERVICE; a socket needs a directory in which \
             the broker's user may write)"
        }
        io::ErrorKind::AddrNotAvailable => " (this machine has no such address)",
        io::ErrorKind::NotFound => " (make the directory)",
        io::ErrorKind::InvalidInput => " (the path of a unix socket has 107 bytes at most)",
        _ => "",
    }
}

/// An address that is open for clients; nobody is accepted before it runs.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Bind,
    door: Arc<Door>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixSocket),
    Quic(quinn::Endpoint),
}

impl Listener {
    /// Opens listener number `index` of the configuration, on the current runtime.
    ///
    /// # Errors
    /// When the system refuses, or a file with certificates is of no use: see [`ListenError`].
    pub fn open(index: usize, listener: &config::Listener) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Address { address: listener.bind.clone(), source };
        let tls = listener.tls.as_ref();
        let credentials = tls.map(|tls| Credentials::load(index, tls, listener.protocol)).transpose()?;
        let socket = match (&listener.bind, listener.protocol, &credentials) {
            (Bind::Address(address), Protocol::Quic, Some(credentials)) => {
                let endpoint = socket::udp(*address).and_then(|socket| quic::open(socket, credentials));
                Socket::Quic(endpoint.map_err(failed)?)
            }
            // The configuration's rules let neither pass.
            (Bind::Unix(_), Protocol::Quic, _) | (_, Protocol::Quic, None) => {
                return Err(failed(io::ErrorKind::Unsupported.into()));
            }
            (Bind::Address(address), _, _) => Socket::Tcp(socket::tcp(*address).map_err(failed)?),
            (Bind::Unix(path), _, _) => Socket::Unix(socket::unix(path).map_err(failed)?),
        };
        let bound = match &socket {
            Socket::Tcp(listener) => listener.local_addr().ok().map(Bind::from),
            Socket::Quic(endpoint) => endpoint.local_addr().ok().map(Bind::from),
            Socket::Unix(_) => None,
        };
        credentials.iter().for_each(|credentials| credentials.warn(&listener.bind));
        let endpoint = if let Socket::Quic(endpoint) = &socket { Some(endpoint.clone()) } else { None };
        let door = Arc::new(Door::new(index, listener, credentials, endpoint));
        Ok(Self { socket, address: bound.unwrap_or_else(|| listener.bind.clone()), door })
    }

    /// Where it is bound; the port that was found, where any would do.
    #[must_use]
    pub fn address(&self) -> &Bind {
        &self.address
    }

    /// What a reload needs of it.
    #[must_use]
    pub fn door(&self) -> Arc<Door> {
        Arc::clone(&self.door)
    }

    /// Accepts until `stop` says true, then waits for the connections to end.
    pub async fn run(self, router: Arc<Router>, terms: Arc<Terms>, limits: ConnectionLimits, stop: watch::Receiver<bool>) {
        let admission = Admission::new(limits.handshakes.clone(), limits.rate);
        let accepting = Accepting { door: self.door, router, terms, limits, connections: TaskSet::default(), stop, admission };
        match self.socket {
            Socket::Tcp(listener) => accepting.streams(listener).await,
            Socket::Unix(listener) => accepting.streams(listener).await,
            Socket::Quic(endpoint) => accepting.quic(endpoint).await,
        }
    }
}

/// How many connections there may be, and how fast they may come.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Of this listener.
    pub here: usize,
    /// Of all listeners together.
    pub everywhere: usize,
    /// Accepted here a second; none: any.
    pub rate: Option<NonZeroU64>,
    /// Of all listeners together, before their CONNECT.
    pub handshakes: Handshakes,
}

/// A running listener.
struct Accepting {
    door: Arc<Door>,
    router: Arc<Router>,
    terms: Arc<Terms>,
    limits: ConnectionLimits,
    connections: TaskSet,
    stop: watch::Receiver<bool>,
    admission: Admission,
}

impl Accepting {
    async fn streams<A: Acceptor>(mut self, acceptor: A) {
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => break,
                () = self.connections.ended() => {}
                (turn, accepted) = async { (self.admission.turn().await, acceptor.accept().await) } => match accepted {
                    Ok((stream, from)) => self.stream::<A>(stream, from, turn),
                    Err(error) if is_of_one_client(&error) => {}
                    Err(error) => self.pause(&error),
                },
            }
        }
        drop(acceptor);
        self.finish().await;
    }

    fn stream<A: Acceptor>(&mut self, stream: A::Stream, from: Address, turn: Turn) {
        if !self.has_room(from) || !self.trusts(from) {
            return;
        }
        if let Err(error) = A::prepare(&stream) {
            tracing::debug!(%from, %error, "client gone before it was served");
            return;
        }
        let handshake = self.admission.accepted(turn, &self.router);
        let entry = self.entry(handshake);
        self.connections.spawn(entry.stream(stream.into(), from));
    }

    async fn quic(mut self, endpoint: quinn::Endpoint) {
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => break,
                () = self.connections.ended() => {}
                (turn, incoming) = async { (self.admission.turn().await, endpoint.accept().await) } => match incoming {
                    Some(incoming) => self.incoming(incoming, turn),
                    None => {
                        tracing::error!(listener = %self.door.bind, "no more clients come in by QUIC: its socket has failed; start the broker anew");
                        break;
                    }
                },
            }
        }
        endpoint.set_server_config(None);
        self.finish().await;
        endpoint.close(quinn::VarInt::from_u32(0), b"");
        endpoint.wait_idle().await;
    }

    fn incoming(&mut self, incoming: quinn::Incoming, turn: Turn) {
        if !self.has_room(incoming.remote_address().into()) {
            incoming.refuse();
            return;
        }
        let handshake = self.admission.accepted(turn, &self.router);
        if handshake.is_busy() && incoming.may_retry() {
            // It comes again with a proof of its address. That it has to, it is not told twice.
            let _ = incoming.retry();
            return;
        }
        let entry = self.entry(handshake);
        self.connections.spawn(entry.quic(incoming));
    }

    /// Whether there may be one more.
    fn has_room(&mut self, from: Address) -> bool {
        let open = usize::try_from(self.router.metrics().connections.value()).unwrap_or(0);
        let has_room = self.connections.len() < self.limits.here && open < self.limits.everywhere;
        if !has_room {
            self.admission.pause(REFUSAL_PAUSE);
            self.router.metrics().connections_refused.add(1);
            if let Some(left_out) = self.door.log_rate.permit("full", clock::now()) {
                tracing::warn!(listener = %self.door.bind, %from, open, left_out, "client refused: max_connections is reached");
            }
        }
        has_room
    }

    /// Whether what comes from there is listened to at all.
    fn trusts(&self, from: Address) -> bool {
        let is_trusted = self.door.proxy.is_none() || self.door.trusts(from.ip());
        if !is_trusted {
            self.router.metrics().connections_refused.add(1);
            if let Some(left_out) = self.door.log_rate.permit("untrusted", clock::now()) {
                tracing::warn!(listener = %self.door.bind, %from, left_out, "connection refused: it is not from one of trusted_proxies");
            }
        }
        is_trusted
    }

    fn entry(&self, handshake: Handshake) -> Entry {
        self.router.metrics().connections_accepted.add(1);
        Entry {
            door: Arc::clone(&self.door),
            router: Arc::clone(&self.router),
            terms: Arc::clone(&self.terms),
            open: Open::new(Arc::clone(&self.router)),
            handshake,
            stop: self.stop.clone(),
        }
    }

    fn pause(&mut self, error: &io::Error) {
        if let Some(left_out) = self.door.log_rate.permit("accept", clock::now()) {
            tracing::error!(%error, left_out, "cannot accept clients: is the limit of open files reached (ulimit -n)?");
        }
        self.admission.pause(REFUSED_PAUSE);
    }

    /// Waits for the connections to end.
    async fn finish(&mut self) {
        while !self.connections.is_empty() {
            self.connections.ended().await;
        }
    }
}

/// A stop that can no longer be said has been said.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Errors that accept(2) hands on from a connection that broke before it was accepted.
fn is_of_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

//! Accepts clients: one task a listener, which owns the tasks of the connections that it accepted.
//!
//! Accepting never stops for long: without descriptors it pauses a moment, says so once a second, and goes on. A client above the limits is closed
//! at once and counted. When the listener's task is dropped, its connections end with it.

mod admission;

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::admission::Admission;
pub use self::admission::Handshakes;
use socket2::{Domain, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::clock;
use crate::config::{Bind, Listener, Protocol, ProxyProtocol};
use crate::connection::{self, Peer, Terms, Transport};
use crate::router::Router;
use crate::task::TaskSet;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 4_096;
/// Written and not yet sent bytes that the kernel holds for one client (`TCP_NOTSENT_LOWAT`): else a client that never reads
/// pins megabytes that no limit of ours counts.
const NOT_SENT_BYTES_MAX: u32 = 128 * 1024;
/// Silence after which TCP asks whether a client is still there.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);
/// Pause when a client was refused because there are as many as may be.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);
/// Pause when the system refuses to accept.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{}", remedy(.source))]
pub struct ListenError {
    /// As configured.
    pub address: Bind,
    /// What the system says.
    pub source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another program has this port: stop it, or choose another port)",
        io::ErrorKind::PermissionDenied => {
            " (ports below 1024 need a privilege: choose another port, or grant CAP_NET_BIND_SERVICE)"
        }
        io::ErrorKind::AddrNotAvailable => " (this machine has no such address)",
        _ => "",
    }
}

/// Opens the address of `listener` for clients.
///
/// # Errors
/// When the system refuses: see [`ListenError`].
pub fn bind(listener: &Listener) -> Result<TcpListener, ListenError> {
    let failed = |source| ListenError { address: listener.bind.clone(), source };
    let is_plain = listener.protocol == Protocol::Mqtt && listener.tls.is_none() && listener.proxy_protocol == ProxyProtocol::Off;
    let Some(address) = listener.bind.address().filter(|_| is_plain) else { return Err(failed(io::ErrorKind::Unsupported.into())) };
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    open().map_err(failed)
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

/// Accepts until `stop` says true, then waits for the connections to end.
pub async fn run(
    listener: TcpListener,
    router: Arc<Router>,
    terms: Arc<Terms>,
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = TaskSet::default();
    let mut complaints = Complaints::default();
    let mut admission = Admission::new(limits.handshakes, limits.rate);
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            () = connections.ended() => {}
            (turn, accepted) = async { (admission.turn().await, listener.accept().await) } => match accepted {
                Ok((stream, peer)) => {
                    let open = usize::try_from(router.metrics().connections.value()).unwrap_or(0);
                    if connections.len() >= limits.here || open >= limits.everywhere {
                        router.metrics().connections_refused.add(1);
                        complaints.say(|| tracing::warn!(%peer, open, "client refused: max_connections is reached"));
                        // Those who come again and again cost little.
                        admission.pause(REFUSAL_PAUSE);
                        continue;
                    }
                    if let Err(error) = prepare(&stream) {
                        tracing::debug!(%peer, %error, "client gone before it was served");
                        continue;
                    }
                    router.metrics().connections_accepted.add(1);
                    let handshake = admission.accepted(turn, &router);
                    let open = Open::new(Arc::clone(&router));
                    let (router, terms) = (Arc::clone(&router), Arc::clone(&terms));
                    connections.spawn(async move {
                        let peer = Peer { address: peer.into(), proxy: None, transport: Transport::Plain, identity: None };
                        let admitted = Box::pin(tokio::time::timeout(handshake.patience, connection::admit(stream, peer, router, terms)));
                        let admitted = admitted.await;
                        drop(handshake);
                        if let Ok(Some(client)) = admitted {
                            client.serve().await;
                        }
                        drop(open);
                    });
                }
                Err(error) if is_of_one_client(&error) => {}
                Err(error) => {
                    complaints.say(|| tracing::error!(%error, "cannot accept clients: is the limit of open files reached (ulimit -n)?"));
                    admission.pause(REFUSED_PAUSE);
                }
            },
        }
    }
    drop(listener);
    while !connections.is_empty() {
        connections.ended().await;
    }
}

/// A stop that can no longer be said has been said.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Counts a connection for as long as its task lives.
struct Open {
    router: Arc<Router>,
}

impl Open {
    fn new(router: Arc<Router>) -> Self {
        router.metrics().connections.change(1);
        Self { router }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.router.metrics().connections.change(-1);
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    // A dead client without a keep alive would stay for ever.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(TCP_KEEP_ALIVE))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(NOT_SENT_BYTES_MAX)?;
    Ok(())
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

/// Repeated trouble is logged once a second.
#[derive(Default)]
struct Complaints {
    last: Option<Instant>,
}

impl Complaints {
    fn say(&mut self, complain: impl FnOnce()) {
        let now = clock::now();
        if self.last.is_none_or(|last| now.duration_since(last) >= Duration::from_secs(1)) {
            self.last = Some(now);
            complain();
        }
    }
}

//! The way in: what one connection goes through in its own task, from the accept to its session, and who it turns out to be.

use std::any::Any;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::admission::Handshake;
use super::door::{Door, Remembered, Shown};
use super::open::Open;
use super::tls::Credentials;
use super::websocket::{self, UpgradeError};
use crate::clock;
use crate::config::Protocol;
use crate::connection::{self, Address, Client, Peer, Stream, Terms, Transport};
use crate::proxy::{self, Header, Progress, ProxyError, Version};
use crate::router::Router;

/// Why a connection got no session. Who spoke MQTT already was told by `connection`, which has counted it.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("no whole CONNECT within {0:?}")]
    TooSlow(Duration),
    #[error("the broker stops")]
    Stopping,
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("closed before its handshake was done: {0}")]
    Io(#[from] io::Error),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("QUIC: {0}")]
    Quic(#[from] quinn::ConnectionError),
    #[error("the client's certificate has nothing that a user name could be")]
    Nameless,
    #[error(transparent)]
    WebSocket(#[from] UpgradeError),
    #[error("refused with CONNACK")]
    Told,
}

/// A client that is through, with what it has shown.
type Entered = (Box<Client>, Option<Shown>);

/// What a connection keeps for as long as it is served.
struct Kept {
    _open: Open,
    _remembered: Option<Remembered>,
    /// It ends with its last handle, and takes with it what is not yet delivered.
    _quic: Option<quinn::Connection>,
}

/// One connection that was accepted.
pub(super) struct Entry {
    pub(super) door: Arc<Door>,
    pub(super) router: Arc<Router>,
    pub(super) terms: Arc<Terms>,
    pub(super) open: Open,
    pub(super) handshake: Handshake,
    pub(super) stop: watch::Receiver<bool>,
}

/// Goes the way in, then serves who came. The memory of the way is given back before that: it is longer than all that follows, and so is what it was given, which
/// would otherwise stay with the connection for as long as that lives.
async fn serve(way: Pin<Box<impl Future<Output = Option<(Box<Client>, Kept)>>>>) {
    let entered = way.await;
    if let Some((client, kept)) = entered {
        client.serve().await;
        drop(kept);
    }
}

impl Entry {
    /// Goes `way` in the time that it may take.
    fn within<'a, T: 'a>(
        &'a self,
        way: impl Future<Output = Result<T, Refused>> + 'a,
    ) -> Pin<Box<impl Future<Output = Result<T, Refused>> + 'a>> {
        Box::pin(async move {
            let patience = self.handshake.patience;
            let mut stop = self.stop.clone();
            let way = pin!(tokio::time::timeout(patience, way));
            tokio::select! {
                biased;
                done = way => done.unwrap_or(Err(Refused::TooSlow(patience))),
                _ = stop.wait_for(|stop| *stop) => Err(Refused::Stopping),
            }
        })
    }

    /// MQTT over `stream`: as it is, over TLS, over WebSocket, or over both.
    pub(super) fn stream(self, stream: Stream, from: Address) -> impl Future<Output = ()> {
        serve(Box::pin(async move {
            let entered = self.within(self.come_in(stream, from)).await;
            self.end(from, entered)
        }))
    }

    async fn come_in(&self, mut stream: Stream, from: Address) -> Result<Entered, Refused> {
        let is_websocket = self.door.protocol == Protocol::WebSockets;
        let transport = match (is_websocket, self.door.is_secure()) {
            (false, false) => Transport::Plain,
            (false, true) => Transport::Tls,
            (true, false) => Transport::WebSocket,
            (true, true) => Transport::SecureWebSocket,
        };
        let mut peer = self.peer(&mut stream, from, transport).await?;
        let mut shown = None;
        if self.door.is_secure() {
            // In a box: it is large, and most clients come without it.
            (stream, shown) = Box::pin(self.secure(stream, &mut peer)).await?;
        }
        if is_websocket {
            stream = Stream::new(websocket::accept(stream, &self.door.websocket).await?);
        }
        self.admit(stream, peer, shown).await
    }

    /// MQTT over the first bidirectional stream that the client opens; there is no other.
    pub(super) fn quic(self, incoming: quinn::Incoming) -> impl Future<Output = ()> {
        let from = incoming.remote_address().into();
        serve(Box::pin(async move {
            let entered = self.within(async {
                let credentials = self.door.credentials();
                let connection = incoming.accept()?.await?;
                let mut peer = Peer { address: from, proxy: None, transport: Transport::Quic, identity: None };
                let chain = connection.peer_identity().and_then(chain_of_identity);
                let shown = match (credentials, chain) {
                    (Some(credentials), Some(chain)) => Some(identify(&mut peer, credentials, chain)?),
                    _ => None,
                };
                let (sending, receiving) = connection.accept_bi().await?;
                let entered = self.admit(Stream::new(tokio::io::join(receiving, sending)), peer, shown).await?;
                Ok((entered, connection))
            });
            let entered = entered.await;
            let (entered, connection) =
                entered.map_or_else(|refused| (Err(refused), None), |(entered, it)| (Ok(entered), Some(it)));
            self.end(from, entered).map(|(client, kept)| (client, Kept { _quic: connection, ..kept }))
        }))
    }

    /// Who is at the other end of `stream`, as far as addresses tell. Reads the PROXY header where one is to come.
    async fn peer(&self, stream: &mut Stream, from: Address, transport: Transport) -> Result<Peer, Refused> {
        let mut peer = Peer { address: from, proxy: None, transport, identity: None };
        if let Some(version) = self.door.proxy {
            let Header { source, common_name } = read_header(stream, version).await?;
            if let Some(source) = source {
                peer.address = source.into();
                peer.proxy = from.ip();
            }
            peer.identity = common_name.filter(|_| self.door.takes_proxy_identity).map(Arc::from);
        }
        Ok(peer)
    }

    /// Speaks TLS on `stream`.
    async fn secure(&self, stream: Stream, peer: &mut Peer) -> Result<(Stream, Option<Shown>), Refused> {
        let Some(credentials) = self.door.credentials() else { return Err(Refused::Io(io::ErrorKind::Unsupported.into())) };
        let stream = TlsAcceptor::from(credentials.server()).accept(stream).await.map_err(Refused::Tls)?;
        let chain = stream.get_ref().1.peer_certificates().map(|chain| chain.iter().map(|one| one.clone().into_owned()).collect());
        let shown = chain.map(|chain| identify(peer, credentials, chain)).transpose()?;
        Ok((Stream::new(stream), shown))
    }

    /// Reads the CONNECT.
    async fn admit(&self, stream: Stream, peer: Peer, shown: Option<Shown>) -> Result<Entered, Refused> {
        let client = connection::admit(stream, peer, Arc::clone(&self.router), Arc::clone(&self.terms)).await;
        client.map(|client| (client, shown)).ok_or(Refused::Told)
    }

    /// Ends the way in: the client is to be served, and what comes with it is to be kept meanwhile.
    fn end(self, from: Address, entered: Result<Entered, Refused>) -> Option<(Box<Client>, Kept)> {
        match entered {
            Ok((client, shown)) => {
                let remembered = shown.map(|shown| self.door.remember(shown, client.closer()));
                Some((client, Kept { _open: self.open, _remembered: remembered, _quic: None }))
            }
            Err(refused) => {
                self.refuse(from, &refused);
                None
            }
        }
    }

    fn refuse(&self, from: Address, refused: &Refused) {
        if matches!(refused, Refused::Told) {
            return;
        }
        self.router.metrics().connections_refused.add(1);
        // A proxy that is set up wrongly is worth a line; what strangers do is not.
        if matches!(refused, Refused::Proxy(_)) {
            if let Some(left_out) = self.door.log_rate.permit("proxy", clock::now()) {
                tracing::warn!(listener = %self.door.bind, %from, reason = %refused, left_out, "connection refused");
            }
        } else {
            tracing::debug!(listener = %self.door.bind, %from, reason = %refused, "connection refused");
        }
    }
}

/// Takes the user name from the client's certificate, where the listener has it so.
fn identify(peer: &mut Peer, credentials: Arc<Credentials>, chain: Vec<CertificateDer<'static>>) -> Result<Shown, Refused> {
    if credentials.names_users() {
        let name = chain.first().and_then(|first| credentials.user_name(first));
        peer.identity = Some(name.ok_or(Refused::Nameless)?);
    }
    Ok(Shown { chain, credentials })
}

fn chain_of_identity(identity: Box<dyn Any>) -> Option<Vec<CertificateDer<'static>>> {
    identity.downcast().ok().map(|chain| *chain)
}

/// Reads a PROXY header and not a byte more.
async fn read_header(stream: &mut Stream, version: Version) -> Result<Header, Refused> {
    let mut bytes = Vec::new();
    let mut piece = [0; proxy::HEADER_BYTES_MAX];
    loop {
        let more = match proxy::decode(&bytes, version)? {
            Progress::Whole(header, _) => return Ok(header),
            Progress::More(more) => more.min(piece.len()),
        };
        let count = stream.read(piece.get_mut(..more).unwrap_or_default()).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Subscriber;

    fn future_bytes<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Each connection has one of these, idle or not.
    #[test]
    fn what_an_idle_client_takes_is_known() {
        type Way = (Entry, Stream, Address);
        let sizes = [
            ("task", future_bytes(|(entry, stream, from): Way| entry.stream(stream, from)), 144),
            ("client", size_of::<Client>(), 320),
            ("subscriber", size_of::<Subscriber>(), 496),
        ];
        for (what, bytes, bytes_max) in sizes {
            assert!(bytes <= bytes_max, "{what}: {bytes} bytes, {bytes_max} are planned");
        }
    }
}

//! What carries a client's bytes: TCP, TLS over it, a WebSocket over either. And who opens it, from where, to whom.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio_rustls::client::TlsStream;

use super::fault::Fault;
use super::tls::Tls;
use super::websocket::{ANSWER_BYTES_MAX, FRAME_BYTES_MAX, Opening, Unframer, WebSocketFault, push_binary, push_close};
use crate::plan::random_run;
use crate::spread::Random;

/// A broker, and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Host and port.
    pub(crate) address: Arc<str>,
    pub(crate) tls: Option<Tls>,
    /// The path of its WebSocket.
    pub(crate) websocket: Option<Arc<str>>,
    /// The local address to speak from.
    pub(crate) from: Option<IpAddr>,
}

impl From<String> for Endpoint {
    /// Plain TCP to this host and port.
    fn from(address: String) -> Self {
        Self { address: address.into(), tls: None, websocket: None, from: None }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.address)
    }
}

impl Endpoint {
    /// The host, without the brackets of an IPv6 address.
    fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let Some(from) = self.from else { return TcpStream::connect(&*self.address).await };
        let mut failure = io::Error::new(io::ErrorKind::AddrNotAvailable, format!("no address that {from} could reach"));
        for to in lookup_host(&*self.address).await?.filter(|to| to.is_ipv4() == from.is_ipv4()) {
            let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.bind(SocketAddr::new(from, 0)).map_err(|error| {
                let hint = if error.kind() == io::ErrorKind::AddrInUse { "; its ports may all be taken: name more" } else { "" };
                // Without a kind: what is said of connecting does not help here.
                io::Error::other(format!("from {from} (--bind): {error}{hint}"))
            })?;
            match socket.connect(to).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// TCP or TLS.
enum Wire {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, space),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, space),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }
}

/// See the module.
pub(super) struct Stream {
    wire: Wire,
    websocket: Option<Box<WebSocket>>,
}

struct WebSocket {
    unframer: Unframer,
    random: Random,
    /// Frames on their way; `frames[..written]` are written.
    frames: Vec<u8>,
    written: usize,
}

impl WebSocket {
    fn poll_flush(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.frames.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(wire.poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                written => self.written += written,
            }
        }
        self.frames.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl Stream {
    /// Opens what `endpoint` asks for.
    ///
    /// # Errors
    /// When there is nobody, or he does not agree.
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Self, Fault> {
        let tcp = endpoint.connect().await.map_err(Fault::Connect)?;
        tcp.set_nodelay(true)?;
        let mut stream = match &endpoint.tls {
            None => Self { wire: Wire::Tcp(tcp), websocket: None },
            Some(tls) => {
                let name = ServerName::try_from(endpoint.host().to_owned()).map_err(|bad| Fault::Tls(io::Error::other(bad)))?;
                let tls = tls.connector().connect(name, tcp).await.map_err(Fault::Tls)?;
                Self { wire: Wire::Tls(Box::new(tls)), websocket: None }
            }
        };
        if let Some(path) = &endpoint.websocket {
            stream.open_websocket(&endpoint.address, path).await?;
        }
        Ok(stream)
    }

    async fn open_websocket(&mut self, host: &str, path: &str) -> Result<(), Fault> {
        let mut random = Random::new(u64::from(random_run()) << 32 | u64::from(random_run()));
        let opening = Opening::new(host, path, &mut random);
        let mut answer = Vec::new();
        match &mut self.wire {
            Wire::Tcp(stream) => exchange(stream, &opening, &mut answer).await?,
            Wire::Tls(stream) => exchange(stream, &opening, &mut answer).await?,
        }
        let websocket = WebSocket { unframer: Unframer::default(), random, frames: Vec::new(), written: 0 };
        self.websocket = Some(Box::new(websocket));
        Ok(())
    }

    /// Reads once into `space`; nothing where the other end has closed.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<Result<(), Fault>> {
        let Self { wire, websocket } = self;
        let Some(websocket) = websocket else {
            return wire.poll_read(cx, space).map_err(Fault::from);
        };
        loop {
            space.clear();
            ready!(wire.poll_read(cx, space))?;
            if space.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let WebSocket { unframer, random, frames, .. } = &mut **websocket;
            let kept = unframer.unframe(space.filled_mut(), random, frames)?;
            if kept > 0 {
                space.set_filled(kept);
                return Poll::Ready(Ok(()));
            }
            // Only control frames: their answers go now, or with what is written next.
            let _ = websocket.poll_flush(wire, cx)?;
        }
    }

    /// Takes some of `bytes` on their way.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { wire, websocket } = self;
        let Some(websocket) = websocket else {
            return wire.poll_write(cx, bytes);
        };
        ready!(websocket.poll_flush(wire, cx))?;
        let payload = bytes.get(..FRAME_BYTES_MAX).unwrap_or(bytes);
        push_binary(payload, &mut websocket.random, &mut websocket.frames);
        // What does not go yet goes before anything else.
        let _ = websocket.poll_flush(wire, cx)?;
        Poll::Ready(Ok(payload.len()))
    }

    /// Ready when all that was taken is with the system.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(websocket) = &mut self.websocket {
            ready!(websocket.poll_flush(&mut self.wire, cx))?;
        }
        self.wire.poll_flush(cx)
    }

    /// Bytes taken that wait for the socket.
    pub(super) fn queued_bytes(&self) -> usize {
        self.websocket.as_ref().map_or(0, |websocket| websocket.frames.len() - websocket.written)
    }

    /// Says good-bye in the languages above TCP.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        if let Some(websocket) = &mut self.websocket {
            push_close(&mut websocket.random, &mut websocket.frames);
            std::future::poll_fn(|cx| websocket.poll_flush(&mut self.wire, cx)).await?;
        }
        match &mut self.wire {
            Wire::Tcp(_) => Ok(()),
            Wire::Tls(stream) => stream.shutdown().await,
        }
    }
}

/// Asks for a WebSocket and reads the answer.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    opening: &Opening,
    answer: &mut Vec<u8>,
) -> Result<(), Fault> {
    stream.write_all(&opening.request).await?;
    stream.flush().await?;
    while !opening.judge(answer)? {
        let space = ANSWER_BYTES_MAX.saturating_sub(answer.len()).max(1) as u64;
        if (&mut *stream).take(space).read_buf(answer).await? == 0 {
            return Err(WebSocketFault::NotOpened("it closed the connection".to_owned()).into());
        }
    }
    Ok(())
}

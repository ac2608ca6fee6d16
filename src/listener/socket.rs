//! The sockets on which clients are awaited: TCP, unix, UDP.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::connection::{Address, Stream};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 4_096;
/// Written and not yet sent bytes that the kernel holds for one client (`TCP_NOTSENT_LOWAT`): else a client that never reads
/// pins megabytes that no limit of ours counts.
const NOT_SENT_BYTES_MAX: u32 = 128 * 1024;
/// Silence after which TCP asks whether a client is still there.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);
/// The kernel's buffer each way for all clients of a UDP socket: what a burst needs while nobody reads.
const UDP_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// A socket that yields streams.
pub(super) trait Acceptor: Send + Sync + 'static {
    type Stream: Into<Stream> + Send;

    /// The next client. Nothing is lost when the future is dropped.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Address)>> + Send;

    /// Sets what a client's stream needs and has not from its listener.
    fn prepare(stream: &Self::Stream) -> io::Result<()>;
}

/// What a client's TCP connection needs. Linux hands it on from the listener to whom it accepts: that saves four calls a client.
fn tune(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // A dead client without a keep alive would stay for ever.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(TCP_KEEP_ALIVE))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(NOT_SENT_BYTES_MAX)?;
    Ok(())
}

impl Acceptor for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Address)> {
        let (stream, address) = TcpListener::accept(self).await?;
        Ok((stream, address.into()))
    }

    fn prepare(stream: &TcpStream) -> io::Result<()> {
        if cfg!(target_os = "linux") { Ok(()) } else { tune(&socket2::SockRef::from(stream)) }
    }
}

/// A unix socket, whose file goes when it does.
#[derive(Debug)]
pub(super) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Which file it made: device and inode.
    made: Option<(u64, u64)>,
}

impl Acceptor for UnixSocket {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Address)> {
        let (stream, _) = self.listener.accept().await?;
        Ok((stream, Address::Unix))
    }

    fn prepare(_: &UnixStream) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if self.made.is_some() && self.made == identity(&self.path) {
            // What is left is removed by the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Listens on a TCP port.
pub(super) fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    tune(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Listens at a path. A socket there on which nobody listens any more is removed; nothing else is.
pub(super) fn unix(path: &Path) -> io::Result<UnixSocket> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket
        && std::os::unix::net::UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    Ok(UnixSocket { listener, path: path.to_owned(), made: identity(path) })
}

/// Binds a UDP port.
pub(super) fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // The kernel gives what it may; less works too.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(UDP_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_is_accepted_has_what_a_client_needs() {
        let listener = tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = Acceptor::accept(&listener).await.unwrap();
        TcpListener::prepare(&stream).unwrap();
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), TCP_KEEP_ALIVE);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), NOT_SENT_BYTES_MAX);
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = unix(&path).unwrap();
        assert_eq!(unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        // As after a crash.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let second = unix(&path).unwrap();
        // Somebody else's by now.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "no socket").unwrap();
        drop(second);
        assert_eq!(unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "no socket");
    }
}

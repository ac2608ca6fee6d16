//! Tells the service manager how the broker is, as sd_notify(3) says: a datagram of lines to the socket that it has named in the environment, by its
//! path or, behind an `@`, in Linux's abstract namespace. (The crate `sd-notify` knows paths only.)

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::clock;

/// How the broker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Every listener is open.
    Ready,
    /// The configuration is being read anew.
    Reloading,
    /// It says good-bye.
    Stopping,
}

/// Says it, if anybody asked to be told.
pub(super) fn tell(state: State) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let text = match state {
        State::Ready => "READY=1".to_owned(),
        State::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={}", clock::monotonic_time().as_micros()),
        State::Stopping => "STOPPING=1".to_owned(),
    };
    let sent = address(&socket).and_then(|address| UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, ?socket, "cannot tell the service manager");
    }
}

#[cfg(target_os = "linux")]
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;

    match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(socket),
    }
}

#[cfg(not(target_os = "linux"))]
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    SocketAddr::from_pathname(socket)
}

//! The UDP socket and QUIC's settings. One endpoint a broker, dialling and accepting; two connections a link, with the same settings until
//! one is known to carry lanes ([`carry_lanes`]).
//!
//! What differs from quinn's defaults, and why, stands beside it. Stream and connection windows lie above `limits::CREDIT_BYTES_MAX`: what
//! bounds a lane is our own credit (see [`super::credit`]), so that nothing ever blocks on QUIC's.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig,
    TransportConfig, VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};

use super::congestion;
use super::gate::Gate;
use super::tls::{Credentials, Half, SharedCredentials};
use crate::config::Congestion;
use crate::limits::{CONTROL_FRAME_BYTES_MAX, CREDIT_BYTES_MAX, HELLO_TIME_MAX, SEND_WINDOW_BYTES};

/// The kernel's buffer each way: what a burst needs while our thread does not run (quinn#2262).
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// What a stream may hold unread: above the credit by what quinn waits for before it says that more may come (an eighth).
const STREAM_WINDOW_BYTES: u32 = CREDIT_BYTES_MAX as u32 / 2 * 3;
/// What a connection may hold unread that carries no lanes: some of the largest frames of control.
const CONTROL_WINDOW_BYTES: u32 = 4 * CONTROL_FRAME_BYTES_MAX as u32;
/// Links have a detection of their own; this ends a connection that never became one, and a link whose connection for lanes is cut off
/// while nothing is on its way there.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const _: () = assert!(IDLE_TIMEOUT.as_millis() > 4 * HELLO_TIME_MAX.as_millis());
/// A connection that hears nothing for so long asks. Where lanes are quiet, it is by this that a dialler's new address is known there too.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The first guess of a round trip: it decides when a lost handshake packet is sent again.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// Hellos that wait to be sent or read.
const DATAGRAM_BUFFER_BYTES: usize = 16 * 1024;
/// Connections that wait to be accepted.
const INCOMING_MAX: usize = 256;

/// Binds the mesh's UDP socket.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // One socket for both families where the system allows it.
        let _ = socket.set_only_v6(false);
    }
    // The kernel gives what `net.core.rmem_max` allows; less works too.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// The endpoint on `socket`; to be called inside the runtime that shall drive it.
pub(super) fn open(socket: UdpSocket, credentials: &SharedCredentials, congestion: Congestion, mtu: u16) -> io::Result<Gate> {
    let transport = Arc::new(transport(congestion, mtu));
    let server = server_config(&credentials.load(), &transport);
    let mut config = EndpointConfig::default();
    // Buffers are as many times this.
    let taken = u64::from(mtu).max(config.get_max_udp_payload_size());
    config.max_udp_payload_size(u16::try_from(taken).unwrap_or(u16::MAX)).map_err(io::Error::other)?;
    let endpoint = Endpoint::new(config, Some(server), socket, Arc::new(quinn::TokioRuntime))?;
    Ok(Gate::new(endpoint, transport, Arc::clone(credentials)))
}

/// How peers are met that dial us.
pub(super) fn server_config(credentials: &Credentials, transport: &Arc<TransportConfig>) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(credentials.server());
    config.transport_config(Arc::clone(transport));
    config.max_incoming(INCOMING_MAX);
    config
}

/// How peers are dialled.
pub(super) fn client_config(credentials: &Credentials, half: Half, transport: &Arc<TransportConfig>) -> ClientConfig {
    let mut config = ClientConfig::new(credentials.client(half));
    config.transport_config(Arc::clone(transport));
    config
}

/// Makes a connection one that takes `lanes` lanes from the peer, of both QoS classes together.
pub(super) fn carry_lanes(connection: &Connection, lanes: usize) {
    connection.set_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(u32::try_from(lanes).unwrap_or(u32::MAX)));
}

fn transport(congestion: Congestion, mtu: u16) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(mtu);
    let mut config = TransportConfig::default();
    config
        .mtu_discovery_config(Some(discovery))
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONTROL_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES as u64)
        .initial_rtt(INITIAL_RTT)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT.as_millis() as u32))))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
        .ack_frequency_config(Some(AckFrequencyConfig::default()))
        .congestion_controller_factory(congestion::factory(congestion));
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_an_error() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = bind(first.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}

//! MQTT over QUIC for clients: ALPN `mqtt`, one bidirectional stream a connection, which carries the same bytes as TCP would.
//!
//! No 0-RTT: what is said there can be said again by anybody. A client may change its address (RFC 9000 section 9); it is known by the first.
//! Where many handshakes run, addresses are proven first (Retry, RFC 9000 section 8.1), so that forged ones cost no signature.
//!
//! Specification: RFC 9000, RFC 9001; the form is that of EMQX's and NanoMQ's clients.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::NoInitialCipherSuite;
use quinn::{Endpoint, EndpointConfig, IdleTimeout, TransportConfig, VarInt};

use super::tls::Credentials;

/// What a client may have on its way to us, and we to it: one slow client pins no more.
const WINDOW_BYTES: u32 = 256 * 1024;
/// A client of which nothing is heard for this long is gone, whatever its keep alive is: as TCP's keep alive does it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);
/// Said so often that neither the usual 30 s of a client's library nor a NAT's mapping runs out meanwhile.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Connections that wait to be accepted.
const INCOMING_MAX: usize = 1_024;
/// What these may have sent meanwhile: each, and all together. Nobody has proven an address yet.
const INCOMING_BYTES: u64 = 64 * 1024;
const INCOMING_BYTES_TOTAL: u64 = 4 * 1024 * 1024;

/// How clients are met with these certificates.
pub(super) fn server_config(credentials: &Credentials) -> Result<quinn::ServerConfig, NoInitialCipherSuite> {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(WINDOW_BYTES.into())
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT.as_millis() as u32))))
        .keep_alive_interval(Some(KEEP_ALIVE));
    let mut config = credentials.quic()?;
    config
        .transport_config(Arc::new(transport))
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
    Ok(config)
}

/// The endpoint on `socket`, on the current runtime.
pub(super) fn open(socket: UdpSocket, credentials: &Credentials) -> std::io::Result<Endpoint> {
    let config = server_config(credentials).map_err(std::io::Error::other)?;
    Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(quinn::TokioRuntime))
}

//! The endpoint and what its handshakes are made with: of each handshake, the credentials in force when it begins.
//!
//! Connections that are there are not touched by new credentials; whether their peers are still admitted is the driver's to judge.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectError, Connecting, Endpoint, Incoming, TransportConfig};

use super::endpoint;
use super::error::LinkError;
use super::identity::DIAL_NAME;
use super::tls::{Half, SharedCredentials};

/// See the module's page.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) endpoint: Endpoint,
    transport: Arc<TransportConfig>,
    credentials: SharedCredentials,
}

impl Gate {
    pub(super) fn new(endpoint: Endpoint, transport: Arc<TransportConfig>, credentials: SharedCredentials) -> Self {
        Self { endpoint, transport, credentials }
    }

    /// Peers that dial us from now on are met with the credentials in force.
    pub(super) fn renew(&self) {
        self.endpoint.set_server_config(Some(endpoint::server_config(&self.credentials.load(), &self.transport)));
    }

    /// Dials a peer with the credentials in force.
    pub(super) fn connect(&self, address: SocketAddr, half: Half) -> Result<Connecting, ConnectError> {
        let config = endpoint::client_config(&self.credentials.load(), half, &self.transport);
        self.endpoint.connect_with(config, address, DIAL_NAME)
    }

    /// Closes all connections and tells the peers why; accepts no more. Waits at most `patience` for the word to be sent.
    pub(super) async fn close(&self, error: &LinkError, patience: Duration) {
        self.endpoint.close(error.code().number(), error.to_string().as_bytes());
        let _ = tokio::time::timeout(patience, self.endpoint.wait_idle()).await;
    }

    /// The next peer that dials us; `None` once the endpoint is closed.
    pub(super) async fn accept(&self) -> Option<Incoming> {
        self.endpoint.accept().await
    }
}

//! What holds at one listener before a session: whose PROXY header is believed, which certificates are shown and asked for, who may open a
//! WebSocket. Shared by the acceptor, the connections' tasks and reloads.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;

use super::tls::{Credentials, TlsError};
use crate::codec::ReasonCode;
use crate::config::{Bind, Listener, Network, Protocol, ProxyProtocol};
use crate::connection::Closer;
use crate::log_rate::LogRate;
use crate::proxy::Version;
use crate::task;
use crate::websocket::upgrade::Rules;

/// See the module's page.
#[derive(Debug)]
pub struct Door {
    /// The listener's place in the configuration.
    index: usize,
    /// As configured, for the log.
    pub(super) bind: Bind,
    pub(super) protocol: Protocol,
    pub(super) proxy: Option<Version>,
    trusted: Vec<Network>,
    pub(super) takes_proxy_identity: bool,
    pub(super) websocket: Rules,
    pub(super) log_rate: LogRate,
    credentials: Option<ArcSwap<Credentials>>,
    /// Connected clients that have shown a certificate.
    certified: Mutex<HashMap<u64, Arc<Certified>>>,
    certified_made: AtomicU64,
    /// Where QUIC is spoken.
    pub(super) endpoint: Option<quinn::Endpoint>,
}

/// A client's chain, its own certificate first, and what was in force when it was found good.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) credentials: Arc<Credentials>,
}

#[derive(Debug)]
struct Certified {
    chain: Vec<CertificateDer<'static>>,
    closer: Closer,
}

/// Keeps a client's chain in mind for as long as it lives.
#[derive(Debug)]
pub(super) struct Remembered {
    door: Arc<Door>,
    number: u64,
}

impl Drop for Remembered {
    fn drop(&mut self) {
        self.door.certified.lock().remove(&self.number);
    }
}

/// Credentials that were read and are not in force yet.
#[derive(Debug)]
pub struct Renewal(Option<Credentials>);

impl Door {
    /// Of listener number `index`, with what was read of its files.
    pub(super) fn new(
        index: usize,
        listener: &Listener,
        credentials: Option<Credentials>,
        endpoint: Option<quinn::Endpoint>,
    ) -> Self {
        Self {
            index,
            bind: listener.bind.clone(),
            protocol: listener.protocol,
            proxy: match listener.proxy_protocol {
                ProxyProtocol::Off => None,
                ProxyProtocol::V1 => Some(Version::V1),
                ProxyProtocol::V2 => Some(Version::V2),
            },
            trusted: listener.trusted_proxies.clone(),
            takes_proxy_identity: listener.proxy_identity_as_username,
            websocket: Rules { path: listener.websockets_path.clone(), origins: listener.websockets_origin.clone() },
            log_rate: LogRate::default(),
            credentials: credentials.map(ArcSwap::from_pointee),
            certified: Mutex::default(),
            certified_made: AtomicU64::new(0),
            endpoint,
        }
    }

    /// Whether a proxy at `address` is believed. Whoever may open a unix socket is.
    pub(super) fn trusts(&self, address: Option<IpAddr>) -> bool {
        address.is_none_or(|address| self.trusted.iter().any(|network| network.contains(address)))
    }

    /// What is shown and asked for now; none without TLS.
    pub(super) fn credentials(&self) -> Option<Arc<Credentials>> {
        self.credentials.as_ref().map(ArcSwap::load_full)
    }

    /// Whether TLS is spoken.
    pub(super) fn is_secure(&self) -> bool {
        self.credentials.is_some()
    }

    /// Keeps in mind what a client has shown: a reload judges it again.
    pub(super) fn remember(self: &Arc<Self>, shown: Shown, closer: Closer) -> Remembered {
        let number = self.certified_made.fetch_add(1, Ordering::Relaxed);
        let one = Arc::new(Certified { chain: shown.chain, closer });
        self.certified.lock().insert(number, Arc::clone(&one));
        // A reload between the handshake and now has not seen it; one from now on will.
        if let Some(in_force) = self.credentials().filter(|in_force| !Arc::ptr_eq(in_force, &shown.credentials)) {
            self.judge(&in_force, &one);
        }
        Remembered { door: Arc::clone(self), number }
    }

    /// Reads the files of `listener` anew; [`Door::renew`] puts them in force.
    ///
    /// # Errors
    /// A file that is of no use: nothing has changed then.
    pub fn read_anew(&self, listener: &Listener) -> Result<Renewal, TlsError> {
        let tls = listener.tls.as_ref().filter(|_| self.is_secure());
        tls.map(|tls| Credentials::load(self.index, tls, self.protocol)).transpose().map(Renewal)
    }

    /// Handshakes use these from now on; clients whose certificates they do not take are closed soon after.
    pub fn renew(self: &Arc<Self>, renewal: Renewal) {
        let (Some(current), Some(new)) = (&self.credentials, renewal.0) else { return };
        let new = Arc::new(new);
        new.warn(&self.bind);
        if let Some(endpoint) = &self.endpoint {
            match super::quic::server_config(&new) {
                Ok(config) => endpoint.set_server_config(Some(config)),
                Err(error) => tracing::error!(listener = %self.bind, %error, "QUIC goes on with the old certificate"),
            }
        }
        current.store(Arc::clone(&new));
        // Each is a few signatures to check, and there may be many: on a thread of its own, and none waits for it.
        let door = Arc::clone(self);
        task::spawn(
            "judge certificates",
            task::blocking(move || {
                let all: Vec<_> = door.certified.lock().values().map(Arc::clone).collect();
                all.iter().for_each(|one| door.judge(&new, one));
            }),
        );
    }

    fn judge(&self, credentials: &Credentials, one: &Certified) {
        if let Err(error) = credentials.verify(&one.chain) {
            tracing::info!(listener = %self.bind, client = ?one.closer.client_id(), %error, "client closed: its certificate is no longer good");
            one.closer.close(ReasonCode::NotAuthorized);
        }
    }
}

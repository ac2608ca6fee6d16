//! What an operator and his tools see over HTTP: health, metrics, topology, traces.
//!
//! * `[admin]` is for people and commands on this machine: `/healthz`, `/readyz`, `/metrics`, `/api/v1/topology`, `/api/v1/trace`, and, for who has the token,
//!   `/api/v1/drain`. Loopback only.
//! * `[health]` is for probes and scrapers: the first three and nothing else, so it may be open to the network.
//!
//! It knows nothing itself: what there is to see and to do comes through [`View`], which `server` implements. A stranger can hold no more than
//! [`accept::CONNECTIONS_MAX`] connections, each for [`accept::CONNECTION_TIME`].

mod accept;
mod http;
mod render;
pub mod token;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;

use crate::config::{ADMIN_PORT, Config};
use crate::drain::{DrainRequest, DrainStatus};
use crate::metrics::Sample;
use crate::shared::Topology;
use crate::shared::trace::{Trace, TraceError, TraceRequest};
use crate::task;
use accept::Bounded;

/// Where `[admin]` listens unless it is configured.
pub const DEFAULT_BIND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ADMIN_PORT);

/// What takes a moment to be seen.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a running broker lets be seen.
pub trait View: Send + Sync + 'static {
    /// Whether it serves clients.
    fn readiness(&self) -> Readiness;
    /// The mesh as this broker knows it; `None` without a mesh.
    fn topology(&self) -> Option<Topology>;
    /// The way of a message through it, as the brokers on it answer.
    fn trace(&self, asked: TraceRequest) -> Pending<'_, Result<Trace, TraceError>>;
    /// Everything that is counted. Samples of one name stand together.
    fn samples(&self) -> Vec<Sample>;
    /// How far it is with leaving.
    fn drain_status(&self) -> DrainStatus;
    /// It is to leave; none: it is not to leave any more.
    fn drain(&self, request: Option<DrainRequest>) -> DrainStatus;
}

/// The answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Every listener is open, and the broker is not to be left. Peers are not waited for: in a roll-out the first broker would wait for ever.
    pub ready: bool,
    /// Client listeners that are open.
    pub listeners: usize,
    /// Peers with which a link is up.
    pub peers: usize,
    /// Backends of `[auth]` that cannot be asked, or do not answer. Whoever is in goes on, so the broker is ready all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub auth_failing: Vec<&'static str>,
}

/// Why the HTTP interface could not start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// An address that cannot be had.
    #[error("{key} = \"{address}\": {source}; is another broker running? choose another port, or 0 for any free one")]
    Bind {
        /// The configuration's key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The token's file can neither be read nor made.
    #[error("admin.token_file: {path}: {source}")]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The open interfaces. Dropping it closes them; answers on their way are still given.
#[derive(Debug)]
pub struct Handle {
    admin: Option<SocketAddr>,
    health: Option<SocketAddr>,
    _stop: watch::Sender<()>,
}

impl Handle {
    /// Where `[admin]` listens; `None` if its default port was taken.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Where `[health]` listens, if it is configured.
    #[must_use]
    pub fn health(&self) -> Option<SocketAddr> {
        self.health
    }
}

/// Opens `[admin]` and, where it is configured, `[health]`. Called on a runtime.
///
/// # Errors
/// An address or token file that was configured and cannot be had. Where `admin.bind` was not configured and its default is taken, the
/// broker goes on without, with a warning.
pub fn start(config: &Config, view: Arc<dyn View>) -> Result<Handle, AdminError> {
    let (stop, stopped) = watch::channel(());
    let token = token::open_or_create(&config.admin_token_file())?;
    let health = match &config.health {
        Some(health) => {
            let (listener, address) = bind("health.bind", health.bind)?;
            serve("health", listener, http::health(Arc::clone(&view)), stopped.clone());
            Some(address)
        }
        None => None,
    };
    let admin = match bind("admin.bind", config.admin.bind.unwrap_or(DEFAULT_BIND)) {
        Ok((listener, address)) => {
            serve("admin", listener, http::admin(view, token), stopped);
            Some(address)
        }
        Err(error) if config.admin.bind.is_none() => {
            tracing::warn!(%error, "no admin interface");
            None
        }
        Err(error) => return Err(error),
    };
    Ok(Handle { admin, health, _stop: stop })
}

fn bind(key: &'static str, address: SocketAddr) -> Result<(Bounded, SocketAddr), AdminError> {
    let error = |source| AdminError::Bind { key, address, source };
    let listener = TcpListener::bind(address).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    let bound = listener.local_addr().map_err(error)?;
    Ok((Bounded::new(tokio::net::TcpListener::from_std(listener).map_err(error)?), bound))
}

fn serve(name: &'static str, listener: Bounded, router: axum::Router, mut stopped: watch::Receiver<()>) {
    task::spawn(name, async move {
        // Nothing is ever sent: the wait ends when the handle is dropped.
        let until_dropped = async move { while stopped.changed().await.is_ok() {} };
        if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(until_dropped).await {
            tracing::error!(interface = name, %error, "HTTP ended");
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::config::{Admin, Health};
    use crate::drain::DrainState;

    struct Alone {
        ready: bool,
    }

    impl View for Alone {
        fn readiness(&self) -> Readiness {
            Readiness { ready: self.ready, listeners: 1, peers: 0, auth_failing: Vec::new() }
        }

        fn topology(&self) -> Option<Topology> {
            None
        }

        fn trace(&self, asked: TraceRequest) -> Pending<'_, Result<Trace, TraceError>> {
            Box::pin(std::future::ready(Err(TraceError::QoS(asked.qos))))
        }

        fn samples(&self) -> Vec<Sample> {
            vec![Sample::counter("seen", "What was seen", 5)]
        }

        fn drain_status(&self) -> DrainStatus {
            self.drain(None)
        }

        fn drain(&self, request: Option<DrainRequest>) -> DrainStatus {
            let state = if request.is_some() { DrainState::Waiting } else { DrainState::Serving };
            let ends = request.is_some_and(|request| request.ends);
            DrainStatus { state, clients: 7, sessions: 9, sent_away: 0, others: 2, waiting_for: Vec::new(), ends, seconds: 0.0 }
        }
    }

    fn config(dir: &std::path::Path) -> Config {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Config {
            data_dir: dir.to_owned(),
            admin: Admin { bind: Some(any), token_file: None },
            health: Some(Health { bind: any }),
            ..Config::default()
        }
    }

    async fn answer(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connected");
        let request = format!("GET {path} HTTP/1.1\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer, and the connection closed after it");
        let status = answer.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, answer.split_once("\r\n\r\n").expect("a body").1.to_owned())
    }

    #[tokio::test]
    async fn each_interface_answers_what_it_should_to_whom_it_should() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path());
        let handle = start(&config, Arc::new(Alone { ready: true })).expect("started");
        let (admin, health) = (handle.admin().expect("an address"), handle.health().expect("an address"));
        let token = token::read(&config.admin_token_file()).expect("a token");
        let own = "Host: localhost\r\n".to_owned();
        let foreign = "Host: evil.example\r\n".to_owned();
        for (address, path, headers, status, body) in [
            (admin, "/healthz", own.clone(), 200, "{\"status\":\"ok\"}"),
            (admin, "/readyz", own.clone(), 200, "{\"ready\":true,\"listeners\":1,\"peers\":0}"),
            (admin, "/metrics", own.clone(), 200, "mqtt_st_quic_seen_total 5\n# EOF\n"),
            (admin, "/api/v1/topology", own.clone(), 404, "this broker has no [mesh]"),
            (admin, "/secret", own.clone(), 404, "there is no /secret"),
            (admin, "/metrics", foreign.clone(), 403, "with the admin token"),
            (admin, "/secret", foreign.clone(), 403, "with the admin token"),
            (admin, "/metrics", format!("{own}Origin: http://evil.example\r\n"), 403, "with the admin token"),
            (admin, "/metrics", format!("{foreign}Authorization: Bearer {token}\r\n"), 200, "# EOF"),
            (admin, "/metrics", format!("{own}Authorization: Bearer x\r\n"), 401, "this is not the admin token"),
            (health, "/readyz", foreign.clone(), 200, "\"ready\":true"),
            (health, "/metrics", foreign.clone(), 200, "# EOF"),
            (admin, "/api/v1/drain", own.clone(), 401, "needs the admin token"),
            (admin, "/api/v1/drain", format!("{own}Authorization: Bearer {token}\r\n"), 200, "\"state\":\"serving\",\"clients\":7"),
            (health, "/api/v1/drain", own.clone(), 404, "there is no /api/v1/drain"),
            (health, "/api/v1/topology", own, 404, "there is no /api/v1/topology"),
        ] {
            let (given, shown) = answer(address, path, &headers).await;
            assert!(given == status && shown.contains(body), "{path} {headers:?}: {given} {shown}, expected {status} {body}");
        }
    }

    #[tokio::test]
    async fn what_is_not_ready_says_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = start(&config(dir.path()), Arc::new(Alone { ready: false })).expect("started");
        assert_eq!(answer(handle.health().expect("an address"), "/readyz", "Host: x\r\n").await.0, 503);
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_only_where_it_was_configured() {
        let dir = tempfile::tempdir().expect("a directory");
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address");
        let mut config = config(dir.path());
        config.admin.bind = Some(address);
        let error = start(&config, Arc::new(Alone { ready: true })).expect_err("taken").to_string();
        assert!(error.starts_with(&format!("admin.bind = \"{address}\": ")), "{error}");
        // Whoever holds the default port now, this test or another program: it is taken.
        let _taken = TcpListener::bind(("127.0.0.1", ADMIN_PORT));
        config.admin.bind = None;
        assert_eq!(start(&config, Arc::new(Alone { ready: true })).expect("without it").admin(), None);
    }

    #[tokio::test]
    async fn dropping_the_handle_frees_the_ports() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = start(&config(dir.path()), Arc::new(Alone { ready: true })).expect("started");
        let address = handle.health().expect("an address");
        drop(handle);
        while TcpListener::bind(address).is_err() {
            tokio::task::yield_now().await;
        }
    }
}

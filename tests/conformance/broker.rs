//! A real broker in this process, on a free port, with a data directory of its own.

use std::net::SocketAddr;
use std::path::PathBuf;

use mqtt_st_quic::config::{Config, Listener};
use mqtt_st_quic::server::{ReloadError, Server};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub struct Broker {
    addresses: Vec<SocketAddr>,
    config: Config,
    /// Taken when the broker stops.
    running: Option<(Runtime, Server)>,
    _data_dir: TempDir,
}

impl Broker {
    /// With the defaults, and anonymous clients.
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    /// With a changed configuration.
    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let data_dir = tempfile::tempdir().unwrap();
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config {
            name: "conformance".to_owned(),
            data_dir: data_dir.path().to_owned(),
            listeners: vec![Listener { bind: any_port.into(), allow_anonymous: Some(true), ..Listener::default() }],
            ..Config::default()
        };
        config.admin.bind = Some(any_port);
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let context = runtime.enter();
        let server = Server::start(&config, None).unwrap();
        drop(context);
        let addresses = server.addresses().mqtt.iter().filter_map(|one| one.address()).collect();
        Self { addresses, config, running: Some((runtime, server)), _data_dir: data_dir }
    }

    pub fn address(&self) -> SocketAddr {
        self.address_of(0)
    }

    /// Of the listener of that index.
    pub fn address_of(&self, listener: usize) -> SocketAddr {
        self.addresses[listener]
    }

    /// A file in its data directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.config.data_dir.join(name)
    }

    /// Reads its files anew, as at SIGHUP.
    pub fn reload(&self) -> Result<Vec<String>, ReloadError> {
        let (runtime, server) = self.running.as_ref().unwrap();
        let _context = runtime.enter();
        server.reload(&self.config)
    }

    /// Changes what a reload will find in the configuration.
    pub fn edit(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
    }

    /// Stops in order, as at SIGTERM.
    pub fn stop(mut self) {
        let (runtime, server) = self.running.take().unwrap();
        runtime.block_on(server.shutdown());
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some((runtime, server)) = self.running.take() {
            drop(server);
            runtime.shutdown_background();
        }
    }
}

//! The demo's brokers: each has its own configuration, certificate and directory, as if they stood on different machines.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::clock;
use crate::config::{Admin, Config, Discovery, HostPort, Listener, MQTT_PORT, Mesh, Persistence, SubscribeAck};
use crate::mesh::pki::{Authority, Validity};
use crate::mesh::tls::Credentials;
use crate::server::Server;
use crate::shared::{LinkState, Topology};

const MESH: &str = "demo";
/// Each broker dials so many of those before it: enough that the mesh holds together without any one of them.
const DIALS: usize = 3;
/// The certificates are never written, and end with the demo or with the day.
const CERTIFICATE_DAYS: u32 = 1;
/// No tree on one machine takes this long.
const TREE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// All brokers of the demo.
pub(super) struct Fleet {
    members: Vec<Member>,
    authority: Authority,
    directory: Directory,
    base_port: Option<u16>,
}

/// One broker, running or not.
struct Member {
    config: Config,
    server: Option<Server>,
}

impl Fleet {
    /// Starts `count` brokers. Where `base_port` is `None`, MQTT ports count from 1883, and each that is taken is replaced by a free one.
    pub(super) fn start(count: u16, base_port: Option<u16>) -> anyhow::Result<Self> {
        let authority = Authority::create(MESH, Validity::days(CERTIFICATE_DAYS))?;
        let mut fleet = Self { members: Vec::new(), authority, directory: Directory::create()?, base_port };
        for number in 0..count {
            let config = fleet.config(number)?;
            fleet.members.push(Member { config, server: None });
            fleet.launch(usize::from(number))?;
        }
        Ok(fleet)
    }

    fn config(&self, number: u16) -> anyhow::Result<Config> {
        let name = format!("broker-{}", number + 1);
        let port =
            self.base_port.unwrap_or(MQTT_PORT).checked_add(number).context("--base-port is too high for so many brokers")?;
        let bind = SocketAddr::new(ANY_PORT.ip(), port);
        Ok(Config {
            data_dir: self.directory.0.join(&name),
            name,
            listeners: vec![Listener { bind: bind.into(), allow_anonymous: Some(true), ..Listener::default() }],
            mesh: Some(Mesh {
                name: MESH.to_owned(),
                listen: ANY_PORT,
                discovery: vec![Discovery::Static],
                // What is shown is published as soon as there is a subscription.
                subscribe_ack: SubscribeAck::Mesh,
                ..Mesh::default()
            }),
            admin: Admin { bind: Some(ANY_PORT), token_file: None },
            // What a broker of the demonstration holds goes with its directory.
            persistence: Persistence { enabled: false, ..Persistence::default() },
            ..Config::default()
        })
    }

    /// Starts broker `place`, for the first time or again: then on the addresses that it had. Where no base port was asked for, and any of its ports
    /// is taken, before the start or while the broker was down, it gets others that are free.
    pub(super) fn launch(&mut self, place: usize) -> anyhow::Result<()> {
        let peers = self.peers_of(place);
        let member = self.members.get_mut(place).context("there is no such broker")?;
        let pair = self.authority.issue_broker(MESH, &member.config.name, &[], Validity::days(CERTIFICATE_DAYS))?;
        let start = |config: &Config| -> anyhow::Result<Server> {
            let credentials = Credentials::of_authority(&self.authority, &pair)?;
            Server::start(config, Some(credentials)).with_context(|| format!("cannot start {}", config.name))
        };
        if let Some(mesh) = &mut member.config.mesh {
            mesh.peers = peers;
        }
        let server = match start(&member.config) {
            Err(error) if self.base_port.is_none() => {
                tracing::debug!(%error, "on other ports");
                member.config.listeners.iter_mut().for_each(|listener| listener.bind = ANY_PORT.into());
                member.config.mesh.iter_mut().for_each(|mesh| mesh.listen = ANY_PORT);
                member.config.admin.bind = Some(ANY_PORT);
                start(&member.config)?
            }
            started => started?,
        };
        let addresses = server.addresses();
        for (listener, bound) in member.config.listeners.iter_mut().zip(&addresses.mqtt) {
            listener.bind = bound.clone();
        }
        if let (Some(mesh), Some(bound)) = (&mut member.config.mesh, addresses.mesh) {
            mesh.listen = bound;
        }
        member.config.admin.bind = addresses.admin;
        member.server = Some(server);
        Ok(())
    }

    /// The running brokers near `place`. A broker that comes back dials both ways, so that nobody's redial has to be waited for.
    fn peers_of(&self, place: usize) -> Vec<HostPort> {
        let near = self.members.iter().enumerate().filter(|(other, member)| {
            let distance = other.abs_diff(place);
            (1..=DIALS).contains(&distance) && member.server.is_some()
        });
        let listens = near.filter_map(|(_, member)| member.config.mesh.as_ref()).map(|mesh| mesh.listen);
        listens.map(|listen| HostPort { host: listen.ip().to_string(), port: listen.port() }).collect()
    }

    /// Ends broker `place` as a crash would, without a good-bye.
    pub(super) async fn crash(&mut self, place: usize) {
        if let Some(server) = self.members.get_mut(place).and_then(|member| member.server.take()) {
            server.abort().await;
        }
    }

    /// Stops all that run, in order.
    pub(super) async fn shutdown(mut self) {
        for server in self.members.iter_mut().filter_map(|member| member.server.take()) {
            server.shutdown().await;
        }
    }

    /// The configurations, with the addresses that the brokers have.
    pub(super) fn configs(&self) -> impl Iterator<Item = &Config> {
        self.members.iter().map(|member| &member.config)
    }

    /// Which broker is called `name`.
    pub(super) fn place_of(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|member| member.config.name == name)
    }

    /// The places of the brokers that run.
    pub(super) fn running(&self) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().filter(|(_, member)| member.server.is_some()).map(|(place, _)| place)
    }

    /// Waits until all running brokers know the same tree, and it joins them all.
    pub(super) async fn settle(&self) -> anyhow::Result<Topology> {
        let deadline = clock::now() + TREE_TIMEOUT;
        loop {
            if let Some(topology) = self.agreed() {
                return Ok(topology);
            }
            if clock::now() > deadline {
                anyhow::bail!("the brokers did not join into one tree within {} s", TREE_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn agreed(&self) -> Option<Topology> {
        let seen: Vec<Topology> =
            self.members.iter().filter_map(|member| member.server.as_ref()).filter_map(Server::topology).collect();
        let (first, others) = seen.split_first()?;
        let running = self.running().count();
        let is_whole = seen.len() == running && first.brokers.len() == running && branches(first).count() + 1 == running;
        let is_agreed = |other: &Topology| other.root == first.root && branches(other).eq(branches(first));
        (is_whole && others.iter().all(is_agreed)).then(|| first.clone())
    }
}

/// The forwarding links, by the names of their ends.
fn branches(topology: &Topology) -> impl Iterator<Item = (&str, &str)> {
    let forwarding = topology.links.iter().filter(|link| link.state == LinkState::Forwarding);
    forwarding.map(|link| (link.a.as_str(), link.b.as_str()))
}

/// A directory that goes with the demo.
struct Directory(PathBuf);

impl Directory {
    fn create() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("mqtt-st-quic-demo-{}-{}", std::process::id(), clock::unix_time().as_nanos()));
        create_private(&path).with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(Self(path))
    }
}

fn create_private(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the demo's directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_broker_whose_port_was_taken_while_it_was_down_gets_another() {
        let mut fleet = Fleet::start(2, None).unwrap();
        fleet.settle().await.unwrap();
        fleet.crash(1).await;
        let port = fleet.members[1].config.mesh.as_ref().unwrap().listen;
        // Its own tasks may hold it a moment longer.
        let deadline = clock::now() + TREE_TIMEOUT;
        let _taken = loop {
            match UdpSocket::bind(port) {
                Ok(socket) => break socket,
                Err(error) => assert!(clock::now() < deadline, "{error}"),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        fleet.launch(1).unwrap();
        assert_ne!(fleet.members[1].config.mesh.as_ref().unwrap().listen, port);
        fleet.settle().await.unwrap();
        fleet.shutdown().await;
    }
}

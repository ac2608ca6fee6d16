//! `mdns`: this broker announces itself on its networks (RFC 6762) as a service `_mqtt-st._udp` (RFC 6763) and looks for others there. The
//! instance is named by the broker's id; TXT tells the mesh, so that brokers of other meshes are not dialled.
//!
//! A broker that listens on loopback only announces nothing and looks for nobody. Where there is no way to speak mDNS that is a warning,
//! and tried again. The library reads and bounds the packets, in a thread of its own; here what it finds is bounded.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use mdns_sd::{IfKind, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::{Found, Place, Source, Surroundings, Target};
use crate::ids::BrokerId;

const SERVICE: &str = "_mqtt-st._udp.local.";
const MESH: &str = "mesh";
const ID: &str = "id";
/// Instances that are remembered.
const INSTANCES_MAX: usize = 512;
/// Addresses of one instance.
const PLACES_MAX: usize = 8;
/// Where mDNS does not work it is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// Announces and looks until dropped; then it says good-bye.
pub(super) async fn run(around: Surroundings, found: mpsc::Sender<Found>) {
    if around.listen.ip().is_loopback() {
        info!(listen = %around.listen, "no mDNS: mesh.listen is on loopback");
        return std::future::pending().await;
    }
    loop {
        if let Err(error) = look(&around, &found).await {
            warn!(%error, "mDNS does not work here");
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The announcement. The library's thread ends with it.
struct Announced {
    daemon: ServiceDaemon,
    name: String,
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Its own thread says good-bye; nobody waits for it.
        let _ = self.daemon.unregister(&self.name);
        let _ = self.daemon.shutdown();
    }
}

async fn look(around: &Surroundings, found: &mpsc::Sender<Found>) -> Result<(), mdns_sd::Error> {
    let announced = announce(around)?;
    let events = announced.daemon.browse(SERVICE)?;
    let mut instances = BTreeMap::new();
    while let Ok(event) = events.recv_async().await {
        let changed = match event {
            ServiceEvent::ServiceResolved(service) => note(around, &mut instances, &service),
            // What is gone from the network may only be silent: a broker that was found is dropped when it says good-bye or expires.
            ServiceEvent::ServiceRemoved(_, name) => instances.remove(&name).is_some(),
            _ => false,
        };
        if changed {
            let targets = instances.values().map(|(id, places): &(BrokerId, Vec<Place>)| (Target::Broker(*id), places.clone()));
            if found.send(Found { source: Source::Mdns, targets: targets.collect() }).await.is_err() {
                break;
            }
        }
    }
    Ok(())
}

fn announce(around: &Surroundings) -> Result<Announced, mdns_sd::Error> {
    let daemon = ServiceDaemon::new()?;
    let (id, ip) = (around.connector.local.identity.id.to_string(), around.listen.ip());
    if ip.is_unspecified() {
        daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
        if ip.is_ipv4() {
            daemon.disable_interface(IfKind::IPv6)?;
        }
    } else {
        daemon.disable_interface(IfKind::All)?;
        daemon.enable_interface(IfKind::Addr(ip))?;
    }
    let addresses: &[IpAddr] = if ip.is_unspecified() { &[] } else { &[ip] };
    let properties = [(MESH, around.connector.local.identity.mesh.as_str()), (ID, &id)];
    let service =
        ServiceInfo::new(SERVICE, &id, &format!("mqtt-st-{id}.local."), addresses, around.listen.port(), &properties[..])?;
    let service = if ip.is_unspecified() { service.enable_addr_auto() } else { service };
    let name = service.get_fullname().to_owned();
    daemon.register(service)?;
    Ok(Announced { daemon, name })
}

/// Takes in what was found, if it is another broker of our mesh. Whether that is news.
fn note(around: &Surroundings, instances: &mut BTreeMap<String, (BrokerId, Vec<Place>)>, service: &ResolvedService) -> bool {
    let own = &around.connector.local.identity;
    let id = service.get_property_val_str(ID).and_then(|id| id.parse::<BrokerId>().ok());
    let Some(id) = id.filter(|id| *id != own.id && service.get_property_val_str(MESH) == Some(own.mesh.as_str())) else {
        return false;
    };
    let addresses = service.addresses.iter().map(|address| with_port(address, service.port));
    let mut places: Vec<_> = addresses.filter(|address| !address.ip().is_loopback() && around.can_dial(*address)).collect();
    places.sort_unstable();
    places.truncate(PLACES_MAX);
    let found = (id, places.into_iter().map(Place::Address).collect());
    if instances.get(&service.fullname) == Some(&found)
        || (instances.len() >= INSTANCES_MAX && !instances.contains_key(&service.fullname))
    {
        return false;
    }
    debug!(%id, places = ?found.1, "found by mDNS");
    instances.insert(service.fullname.clone(), found);
    true
}

fn with_port(address: &ScopedIp, port: u16) -> SocketAddr {
    match address {
        ScopedIp::V6(scoped) if scoped.addr().is_unicast_link_local() => {
            SocketAddrV6::new(*scoped.addr(), port, 0, scoped.scope_id().index).into()
        }
        other => SocketAddr::new(other.to_ip_addr(), port),
    }
}

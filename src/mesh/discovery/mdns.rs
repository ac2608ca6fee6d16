//! `mdns`: this broker announces itself on its networks (RFC 6762) as a service `_mqtt-st._udp` (RFC 6763) and looks for others there. The
//! instance is named by the broker's id; TXT tells the mesh, so that brokers of other meshes are not dialled.
//!
//! Anybody on the network may say anything here: an id is a rumour until a certificate or a record proves it (`targets`), addresses off our
//! networks are ignored, all instances with one id together say where it is, and when there are too many, those of nobody whom we met go first.
//!
//! A broker that listens on loopback only announces nothing and looks for nobody. Where there is no way to speak mDNS that is a warning,
//! and tried again. The library reads and bounds the packets, in a thread of its own; here what it finds is bounded.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use if_addrs::{IfAddr, get_if_addrs};
use mdns_sd::{IfKind, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::{ADDRESSES_MAX, Found, Place, Source, Surroundings, Target};
use crate::clock;
use crate::ids::{BrokerId, Incarnation};

const SERVICE: &str = "_mqtt-st._udp.local.";
const MESH: &str = "mesh";
const ID: &str = "id";
/// Instances that are remembered.
const INSTANCES_MAX: usize = 512;
/// Addresses of one instance.
const PLACES_MAX: usize = 8;
/// Our networks are read anew after so long.
const NETWORKS_FOR: Duration = Duration::from_secs(5);
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
    let (mut instances, mut networks) = (Instances::default(), Networks::read());
    while let Ok(event) = events.recv_async().await {
        let changed = match event {
            ServiceEvent::ServiceResolved(service) => {
                if networks.read_at + NETWORKS_FOR < clock::now() {
                    networks = Networks::read();
                }
                note(around, &networks, &mut instances, &service)
            }
            // What is gone from the network may only be silent: a broker that was found is dropped when it says good-bye or expires.
            ServiceEvent::ServiceRemoved(_, name) => instances.0.remove(&name).is_some(),
            _ => false,
        };
        if changed && found.send(Found { source: Source::Mdns, targets: instances.targets() }).await.is_err() {
            break;
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

/// What was announced, by full name.
#[derive(Debug, Default)]
struct Instances(BTreeMap<String, Instance>);

#[derive(Debug)]
struct Instance {
    id: BrokerId,
    places: Vec<SocketAddr>,
    noted_at: Instant,
}

impl Instances {
    /// Whether it is news. When there are too many, one makes room: rather one of an id that has several, then of an id of which nobody was met,
    /// then the oldest.
    fn note(&mut self, name: &str, instance: Instance, is_met: impl Fn(BrokerId) -> bool) -> bool {
        if self.0.get(name).is_some_and(|known| (known.id, &known.places) == (instance.id, &instance.places)) {
            return false;
        }
        if self.0.len() >= INSTANCES_MAX && !self.0.contains_key(name) {
            let mut counts: BTreeMap<BrokerId, usize> = BTreeMap::new();
            self.0.values().for_each(|known| *counts.entry(known.id).or_default() += 1);
            let spare = self.0.iter().map(|(name, known)| {
                let count = counts.get(&known.id).copied().unwrap_or_default();
                ((count, !is_met(known.id), Reverse(known.noted_at)), name)
            });
            let spare = spare.max().filter(|((count, is_stranger, _), _)| *count > 1 || *is_stranger);
            let Some(spare) = spare.map(|(_, name)| name.clone()) else { return false };
            self.0.remove(&spare);
        }
        self.0.insert(name.to_owned(), instance);
        true
    }

    /// Each id once, with the places of all its instances in turn; first of the one that bears its name.
    fn targets(&self) -> Vec<(Target, Vec<Place>)> {
        let mut by_id: BTreeMap<BrokerId, Vec<(bool, &[SocketAddr])>> = BTreeMap::new();
        for (name, Instance { id, places, .. }) in &self.0 {
            by_id.entry(*id).or_default().push((!name.starts_with(&format!("{id}.")), places));
        }
        let of = by_id.into_iter().map(|(id, mut instances)| {
            instances.sort_by_key(|(is_other, _)| *is_other);
            let mut places = Vec::new();
            for turn in 0..PLACES_MAX {
                for place in instances.iter().filter_map(|(_, of)| of.get(turn)).map(|address| Place::Address(*address)) {
                    if places.len() < ADDRESSES_MAX && !places.contains(&place) {
                        places.push(place);
                    }
                }
            }
            (Target::Broker(id), places)
        });
        of.collect()
    }
}

/// The networks that this machine is on.
#[derive(Debug)]
struct Networks {
    read_at: Instant,
    /// Address and mask.
    of: Vec<(u128, u128)>,
}

impl Networks {
    fn read() -> Self {
        let interfaces = get_if_addrs().unwrap_or_else(|error| {
            warn!(%error, "cannot tell which networks we are on: nobody is found by mDNS");
            Vec::new()
        });
        let of = interfaces.into_iter().map(|interface| match interface.addr {
            IfAddr::V4(of) => (bits(of.ip.into()), v4_mask(bits(of.netmask.into()))),
            IfAddr::V6(of) if of.netmask.is_unspecified() => (of.ip.to_bits(), u128::MAX),
            IfAddr::V6(of) => (of.ip.to_bits(), of.netmask.to_bits()),
        });
        Self { read_at: clock::now(), of: of.collect() }
    }

    /// A link-local address is on the network that it was announced on.
    fn has(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
            || self.of.iter().any(|(own, mask)| own & mask == bits(ip) & mask)
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => Ipv6Addr::to_bits(ip),
    }
}

/// The mask of an IPv4 network among mapped addresses; one that says nothing would take in the whole Internet: nobody is on it.
fn v4_mask(mask: u128) -> u128 {
    let low = u128::from(u32::MAX);
    if mask & low == 0 { u128::MAX } else { mask | !low }
}

/// Takes in what was found, if it is another broker of our mesh. Whether that is news.
fn note(around: &Surroundings, networks: &Networks, instances: &mut Instances, service: &ResolvedService) -> bool {
    let own = &around.connector.local.identity;
    let id = service.get_property_val_str(ID).and_then(|id| id.parse::<BrokerId>().ok());
    let Some(id) = id.filter(|id| *id != own.id && service.get_property_val_str(MESH) == Some(own.mesh.as_str())) else {
        return false;
    };
    let addresses = service.addresses.iter().map(|address| with_port(address, service.port));
    let is_near = |address: &SocketAddr| !address.ip().is_loopback() && around.can_dial(*address) && networks.has(address.ip());
    let mut places: Vec<_> = addresses.filter(is_near).collect();
    places.sort_unstable();
    places.truncate(PLACES_MAX);
    let told = format!("{places:?}");
    let instance = Instance { id, places, noted_at: clock::now() };
    let is_news = instances.note(&service.fullname, instance, |id| around.connector.local.roster.life(id) != Incarnation(0));
    if is_news {
        debug!(%id, places = told, "found by mDNS");
    }
    is_news
}

fn with_port(address: &ScopedIp, port: u16) -> SocketAddr {
    match address {
        ScopedIp::V6(scoped) if scoped.addr().is_unicast_link_local() => {
            SocketAddrV6::new(*scoped.addr(), port, 0, scoped.scope_id().index).into()
        }
        other => SocketAddr::new(other.to_ip_addr(), port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(id: u64, hosts: &[u8], noted_at: Instant) -> Instance {
        let places = hosts.iter().map(|host| ([192, 0, 2, *host], 7883).into()).collect();
        Instance { id: BrokerId(id), places, noted_at }
    }

    fn hosts(places: &[Place]) -> Vec<String> {
        places.iter().map(|place| place.to_string().replace("192.0.2.", "").replace(":7883", "")).collect()
    }

    #[test]
    fn who_is_announced_twice_is_at_all_places_first_at_those_of_its_own_name() {
        let (mut instances, now) = (Instances::default(), clock::now());
        let v = BrokerId(7);
        for (name, hosts) in [("00", [90, 91]), ("zzz", [92, 93])] {
            assert!(instances.note(&format!("{name}.{SERVICE}"), instance(7, &hosts, now), |_| false));
        }
        assert!(instances.note(&format!("{v}.{SERVICE}"), instance(7, &[1, 90], now), |_| false));
        assert!(!instances.note(&format!("{v}.{SERVICE}"), instance(7, &[1, 90], now), |_| false), "no news");
        let targets = instances.targets();
        assert_eq!((targets.len(), hosts(&targets[0].1)), (1, ["1", "90", "92", "91", "93"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn a_flood_of_forged_instances_keeps_nobody_out_and_drives_nobody_away_whom_we_met() {
        let (mut instances, start) = (Instances::default(), clock::now());
        let is_met = |id: BrokerId| id.0 < 10;
        instances.note("met", instance(1, &[1], start), is_met);
        for n in 0..INSTANCES_MAX as u64 * 2 {
            let at = start + Duration::from_millis(n + 1);
            assert!(instances.note(&format!("phantom {n}"), instance(1_000 + n, &[2], at), is_met));
        }
        let later = start + Duration::from_secs(10);
        assert!(instances.note("newcomer", instance(2, &[3], later), is_met));
        // As many more of whom we met: rather these make room for each other.
        for n in 0..INSTANCES_MAX as u64 * 2 {
            instances.note(&format!("clone {n}"), instance(3, &[4], later + Duration::from_millis(n)), is_met);
        }
        assert!(instances.0.contains_key("met") && instances.0.contains_key("newcomer") && instances.0.len() == INSTANCES_MAX);
    }

    #[test]
    fn only_addresses_on_our_networks_are_near() {
        let of = [("10.1.2.3", "255.255.255.0"), ("2001:db8::1", "ffff:ffff:ffff:ffff::"), ("192.0.2.1", "0.0.0.0")];
        let of = of.map(|(own, mask)| (own.parse::<IpAddr>().unwrap(), mask.parse::<IpAddr>().unwrap()));
        let of = of.map(|(own, mask)| (bits(own), if mask.is_ipv4() { v4_mask(bits(mask)) } else { bits(mask) })).to_vec();
        let networks = Networks { read_at: clock::now(), of };
        let near = |ip: &str| networks.has(ip.parse().unwrap());
        assert!(near("10.1.2.200") && near("::ffff:10.1.2.200") && near("2001:db8::77") && near("fe80::1"));
        assert!(!near("10.1.3.1") && !near("8.8.8.8") && !near("2001:db8:0:1::1") && !near("::1"));
    }
}

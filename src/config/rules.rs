//! What must hold between keys that are each right by themselves.

use std::time::Duration;

use super::{Admin, Config, Discovery, Mesh, auth, bridge, listener};
use crate::{limits, topic};

/// The first rule that `config` breaks: the key, dotted, and what is wrong with it.
pub(super) fn check(config: &Config) -> Result<(), (String, String)> {
    check_name("name", &config.name)?;
    listener::check(&config.listeners)?;
    auth::check(config)?;
    bridge::check(&config.bridges, check_name)?;
    check_admin(&config.admin)?;
    if let Some(mesh) = &config.mesh {
        check_mesh(mesh)?;
        check_costs(&config.name, mesh)?;
        check_log_holds_packets(config, mesh)?;
    }
    Ok(())
}

/// Names stand in certificates, file names, topics and drawings.
const NAME_BYTES_MAX: usize = 63;

fn check_name(key: &str, name: &str) -> Result<(), (String, String)> {
    let good = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let problem = match name {
        "" => "is missing".to_owned(),
        name if name.len() > NAME_BYTES_MAX => format!("is {} bytes long; it may have {NAME_BYTES_MAX}", name.len()),
        name if !name.chars().all(good) || name.starts_with(['-', '.']) => {
            format!("`{name}` may hold letters, digits, `-`, `_` and `.` only, and begins with none of `-` and `.`")
        }
        _ => return Ok(()),
    };
    Err((key.to_owned(), problem))
}

fn check_admin(admin: &Admin) -> Result<(), (String, String)> {
    match admin.bind {
        Some(bind) if !bind.ip().is_loopback() => Err((
            "admin.bind".to_owned(),
            format!(
                "{bind} is not a loopback address, and the admin interface has no TLS; bind it to 127.0.0.1, and open [health] to probes \
                 and metrics"
            ),
        )),
        _ => Ok(()),
    }
}

/// Quicker hellos than this are noise; slower ones than this are no detection.
const HELLO_TIMES: std::ops::RangeInclusive<Duration> = limits::HELLO_TIME_MIN..=limits::HELLO_TIME_MAX;
/// From 1s to 1h.
const PULL_TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

fn check_mesh(mesh: &Mesh) -> Result<(), (String, String)> {
    check_name("mesh.name", &mesh.name)?;
    for (key, file) in [("cafile", &mesh.cafile), ("certfile", &mesh.certfile), ("keyfile", &mesh.keyfile)] {
        if file.is_none() {
            let problem = "is missing; `mqtt-st-quic certs ca` and `certs broker` make what cafile, certfile and keyfile name";
            return Err((format!("mesh.{key}"), problem.to_owned()));
        }
    }
    if !HELLO_TIMES.contains(&mesh.hello_time) {
        return Err(("mesh.hello_time".to_owned(), format!("{:?} is out of range; it must be from 10ms to 2s", mesh.hello_time)));
    }
    if mesh.member_timeout < limits::MEMBER_TIMEOUT_MIN {
        let problem = format!("{:?} is too short; it must be at least 5m", mesh.member_timeout);
        return Err(("mesh.member_timeout".to_owned(), problem));
    }
    // Whoever is still given what it missed must still be known, or what it wants is not kept for it.
    if mesh.replay_log_age < limits::RING_AGE_MIN || mesh.replay_log_age > mesh.member_timeout {
        let problem = format!(
            "{:?} is out of range; it must be from {:?} to mesh.member_timeout, which is {:?}",
            mesh.replay_log_age,
            limits::RING_AGE_MIN,
            mesh.member_timeout
        );
        return Err(("mesh.replay_log_age".to_owned(), problem));
    }
    if mesh.orphan_grace < limits::ORPHAN_GRACE_MIN || mesh.orphan_grace > limits::ORPHAN_GRACE_MAX {
        return Err(("mesh.orphan_grace".to_owned(), format!("{:?} is out of range; it must be from 1s to 1h", mesh.orphan_grace)));
    }
    if !PULL_TIMEOUTS.contains(&mesh.pull_timeout) {
        return Err(("mesh.pull_timeout".to_owned(), format!("{:?} is out of range; it must be from 1s to 1h", mesh.pull_timeout)));
    }
    for (index, one) in mesh.topics.iter().enumerate() {
        check_topic(&one.filter).map_err(|problem| (format!("mesh.topic.{index}.filter"), problem))?;
    }
    check_peers(mesh)
}

fn check_topic(filter: &str) -> Result<(), String> {
    match topic::parse_filter(filter) {
        Ok(parsed) if parsed.share.is_none() => Ok(()),
        Ok(_) => Err(format!("`{filter}` is a shared subscription; write the filter alone")),
        Err(error) => Err(error.to_string()),
    }
}

/// Peers that nothing would dial are a mistake, not a wish.
fn check_peers(mesh: &Mesh) -> Result<(), (String, String)> {
    let has = |way| mesh.discovery.contains(&way);
    let dials = has(Discovery::Static) || has(Discovery::Dns) || has(Discovery::Gossip);
    for peer in &mesh.peers {
        let problem = if !dials {
            format!("`{peer}` would never be dialled: mesh.discovery has none of static, dns and gossip")
        } else if peer.host.starts_with('_') && !has(Discovery::Dns) {
            format!("`{}` is the name of SRV records, which only mesh.discovery = [.., \"dns\"] looks up", peer.host)
        } else {
            continue;
        };
        return Err(("mesh.peers".to_owned(), problem));
    }
    Ok(())
}

fn check_costs(own_name: &str, mesh: &Mesh) -> Result<(), (String, String)> {
    for (peer, cost) in &mesh.costs {
        let key = format!("mesh.costs.{peer}");
        check_name(&key, peer)?;
        let problem = if peer == own_name {
            format!("`{peer}` is this broker itself; name a peer")
        } else if (1..=limits::LINK_COST_MAX).contains(cost) {
            continue;
        } else {
            format!("{cost} is out of range; it must be from 1 to {}", limits::LINK_COST_MAX)
        };
        return Err((key, problem));
    }
    Ok(())
}

/// A publisher waits while a link lags by half the log: the largest packet must fit below that with something to spare.
fn check_log_holds_packets(config: &Config, mesh: &Mesh) -> Result<(), (String, String)> {
    let listeners = config.listeners.iter().filter_map(|listener| listener.max_packet_size);
    let bridges = config.bridges.iter().filter_map(|bridge| bridge.max_packet_size);
    let packet = listeners.chain(bridges).fold(config.limits.max_packet_size, u32::max);
    let least = u64::from(packet) * 4;
    if (mesh.replay_log_bytes as u64) < least {
        let problem = format!(
            "{} bytes are too few; it must hold four of the largest packets, {least} bytes (limits.max_packet_size is {packet})",
            mesh.replay_log_bytes
        );
        return Err(("mesh.replay_log_bytes".to_owned(), problem));
    }
    Ok(())
}

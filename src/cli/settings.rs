//! From arguments, environment and file to a [`Config`].

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::config::{Config, Override, Sources};

/// What every command that reads a broker's configuration takes.
#[derive(Debug, Default, Args)]
pub(super) struct Settings {
    /// The broker's name, unique in its mesh
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The one directory in which the broker writes
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Listen for clients here too; anonymous ones only on loopback (repeatable)
    #[arg(long, value_name = "IP:PORT")]
    mqtt: Vec<SocketAddr>,
    /// Listen for clients on this port of 127.0.0.1 too (repeatable)
    #[arg(short, long, value_name = "PORT")]
    port: Vec<u16>,
    /// The name of the mesh
    #[arg(long, value_name = "NAME")]
    mesh: Option<String>,
    /// A broker to dial, instead of those configured (repeatable)
    #[arg(long, value_name = "HOST:PORT")]
    peer: Vec<String>,
    /// Record everything that the spanning tree is told in this file, for the simulator to replay
    #[arg(long, value_name = "FILE")]
    record_stp: Option<PathBuf>,
    /// Where the admin interface listens
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
    /// What to log, as a tracing filter
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Log more; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Settings {
    /// The configuration: `file`, the environment over it, these arguments over both.
    ///
    /// # Errors
    /// A file that cannot be read, or anything that is wrong in what was read.
    pub(super) fn load(&self, file: Option<&PathBuf>) -> anyhow::Result<Config> {
        let text = match file {
            Some(path) => {
                let name = path.display().to_string();
                let text = fs::read_to_string(path).with_context(|| format!("cannot read the configuration {name}"))?;
                Some((name, text))
            }
            None => None,
        };
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let mut overrides = Override::from_environment(variables);
        overrides.extend(self.overrides());
        let loopback = self.port.iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port)));
        let host_name = gethostname::gethostname();
        let sources = Sources {
            file: text.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
            overrides,
            listeners: self.mqtt.iter().copied().chain(loopback).collect(),
            default_name: &host_name.to_string_lossy(),
        };
        Ok(sources.load()?)
    }

    fn overrides(&self) -> impl Iterator<Item = Override> {
        let filter = match self.verbose {
            0 => self.log.clone(),
            1 => Some("info,mqtt_st_quic=debug".to_owned()),
            _ => Some("trace".to_owned()),
        };
        let peers = (!self.peer.is_empty()).then(|| self.peer.join(","));
        let flags = [
            ("--name", "name", self.name.clone()),
            ("--data-dir", "data_dir", self.data_dir.as_ref().map(|dir| dir.display().to_string())),
            ("--mesh", "mesh.name", self.mesh.clone()),
            ("--peer", "mesh.peers", peers),
            ("--record-stp", "mesh.record_stp", self.record_stp.as_ref().map(|file| file.display().to_string())),
            ("--admin", "admin.bind", self.admin.clone()),
            (if self.verbose > 0 { "--verbose" } else { "--log" }, "log.filter", filter),
        ];
        flags.into_iter().filter_map(|(flag, path, value)| Some(Override::from_flag(flag, path, value?)))
    }
}

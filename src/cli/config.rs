//! `config check`, `config show` and `config import`.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use super::output::{print, say};
use super::{log, settings::Settings};
use crate::admin;
use crate::backends;
use crate::clock;
use crate::config::{self, Config};
use crate::listener;
use crate::mesh::{MeshConfig, tls::Credentials};
use crate::policies::Policies;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Say whether a broker could start with this configuration: keys, values, certificates, users and rules
    Check(Arguments),
    /// Print the configuration with environment and defaults, as TOML
    Show(Arguments),
    /// Print what a mosquitto.conf comes to, as TOML; names each line that could not be carried over on stderr, and then exits with 3
    Import(Import),
}

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The configuration; without one, what the environment and the defaults say
    file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// The configuration of Mosquitto
    file: PathBuf,
}

/// What `config import` exits with when it printed a configuration in which something is left out.
const LEFT_OUT: u8 = 3;
/// No configuration is as large, bytes.
const IMPORT_BYTES_MAX: u64 = 16 * 1024 * 1024;

pub(super) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check(arguments) => check(arguments),
        Command::Show(arguments) => show(arguments),
        Command::Import(arguments) => import(arguments),
    }
}

fn check(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = Settings::default().load(arguments.file.as_ref())?;
    log::check(&config.log)?;
    Policies::load(&config, backends::Opened::open(&config.auth)?.accounts())?;
    for listener in &config.listeners {
        let auth = config.auth_of(listener);
        let by_certificate = listener.tls.as_ref().is_some_and(|tls| tls.use_identity_as_username || tls.use_subject_as_username);
        if !(auth.allow_anonymous
            || auth.password_file.is_some()
            || auth.sql.is_some()
            || auth.http.is_some()
            || auth.jwt.is_some()
            || by_certificate
            || listener.proxy_identity_as_username)
        {
            print(&format!(
                "warning: listener {}: nobody can come in; name a password_file, or set allow_anonymous = true",
                listener.bind
            ))?;
        }
    }
    for warning in check_certificates(&config)? {
        print(&format!("warning: {warning}"))?;
    }
    let name = arguments.file.as_ref().map_or_else(|| "the environment".to_owned(), |file| file.display().to_string());
    print(&format!("{name}: good"))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether listeners and `[mesh]` can start with the certificates that they name; and what is wrong with these all the same.
fn check_certificates(config: &Config) -> anyhow::Result<Vec<String>> {
    let mut warnings = Vec::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        if let Some(tls) = &listener.tls {
            let credentials = listener::Credentials::load(index, tls, listener.protocol)?;
            warnings.extend(credentials.warnings().into_iter().map(|warning| format!("listener.{index}.tls: {warning}")));
        }
    }
    let Some(mesh) = &config.mesh else { return Ok(warnings) };
    let credentials = Credentials::load(mesh)?;
    let now = clock::unix_time();
    let objection = credentials.objection(now);
    let objection = objection.map(|objection| format!("mesh.certfile: {objection}; no peer will link with this broker"));
    let lists = credentials.list_warnings(now).into_iter().map(|warning| format!("mesh.crlfile: {warning}"));
    warnings.extend(objection.into_iter().chain(lists));
    MeshConfig { name: config.name.clone(), data_dir: config.data_dir.clone(), mesh: mesh.clone(), credentials }.identity()?;
    Ok(warnings)
}

fn show(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut config = Settings::default().load(arguments.file.as_ref())?;
    config.admin.token_file = Some(config.admin_token_file());
    config.admin.bind.get_or_insert(admin::DEFAULT_BIND);
    print(toml::to_string(&config)?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn import(arguments: &Import) -> anyhow::Result<ExitCode> {
    let imported = config::import(&arguments.file, &Disk)?;
    print(imported.toml.trim_end())?;
    for remark in &imported.remarks {
        say(&remark.to_string());
    }
    let (lines, left_out) = (imported.lines, imported.left_out());
    say(&format!("{}: {lines} lines imported, of which {left_out} are left out", arguments.file.display()));
    Ok(if left_out == 0 { ExitCode::SUCCESS } else { ExitCode::from(LEFT_OUT) })
}

/// The files of this machine.
struct Disk;

impl config::Files for Disk {
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        file.take(IMPORT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > IMPORT_BYTES_MAX {
            return Err(format!("it has more than {IMPORT_BYTES_MAX} bytes; is it a configuration?"));
        }
        Ok(bytes)
    }

    fn list(&self, dir: &Path) -> Result<Vec<PathBuf>, String> {
        let entries = fs::read_dir(dir).map_err(|error| error.to_string())?;
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(|error| error.to_string())).collect()
    }

    fn is_same(&self, a: &Path, b: &Path) -> bool {
        matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
    }
}

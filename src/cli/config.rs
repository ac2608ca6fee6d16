//! `config check` and `config show`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::output::print;
use super::{log, settings::Settings};
use crate::admin;
use crate::clock;
use crate::config::Config;
use crate::listener;
use crate::mesh::{MeshConfig, tls::Credentials};
use crate::policies::Policies;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Say whether a broker could start with this configuration: keys, values, certificates, users and rules
    Check(Arguments),
    /// Print the configuration with environment and defaults, as TOML
    Show(Arguments),
}

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The configuration; without one, what the environment and the defaults say
    file: Option<PathBuf>,
}

pub(super) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check(arguments) => check(arguments),
        Command::Show(arguments) => show(arguments),
    }
}

fn check(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = Settings::default().load(arguments.file.as_ref())?;
    log::check(&config.log)?;
    Policies::load(&config)?;
    for listener in &config.listeners {
        let auth = config.auth_of(listener);
        let by_certificate = listener.tls.as_ref().is_some_and(|tls| tls.use_identity_as_username || tls.use_subject_as_username);
        if !(auth.allow_anonymous || auth.password_file.is_some() || by_certificate || listener.proxy_identity_as_username) {
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

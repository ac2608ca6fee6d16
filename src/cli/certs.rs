//! `certs`: a mesh's authority, a certificate for each broker, and a look at any of them.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use super::output::print;
use crate::mesh::pki::{self, AUTHORITY_DAYS_DEFAULT, Authority, BROKER_DAYS_DEFAULT, Summary, Validity};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a mesh's certificate authority: DIR/ca.pem for every broker, DIR/ca.key to be kept away from them
    Ca(NewAuthority),
    /// Make a broker's certificate and key: DIR/NAME.pem and DIR/NAME.key
    Broker(NewBroker),
    /// Print whose a certificate is, its names and the days it has left
    Show(Show),
}

#[derive(Debug, Args)]
pub(super) struct NewAuthority {
    /// The mesh
    #[arg(long, value_name = "NAME")]
    mesh: String,
    /// Where to write; made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How long it lasts
    #[arg(long, value_name = "DAYS", default_value_t = AUTHORITY_DAYS_DEFAULT)]
    days: u32,
}

#[derive(Debug, Args)]
pub(super) struct NewBroker {
    /// The mesh
    #[arg(long, value_name = "NAME")]
    mesh: String,
    /// The broker's name, as in its configuration
    #[arg(long, value_name = "NAME")]
    name: String,
    /// A host name or IP address to put into the certificate for other programs (repeatable)
    #[arg(long, value_name = "HOST_OR_IP")]
    san: Vec<String>,
    /// Where `certs ca` wrote the authority
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Where to write; made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How long it lasts
    #[arg(long, value_name = "DAYS", default_value_t = BROKER_DAYS_DEFAULT)]
    days: u32,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// PEM files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Ca(arguments) => make_authority(&arguments),
        Command::Broker(arguments) => make_broker(&arguments),
        Command::Show(arguments) => show(&arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn make_authority(arguments: &NewAuthority) -> anyhow::Result<()> {
    let authority = Authority::create(&arguments.mesh, Validity::days(arguments.days))?;
    let (certificate, key) = authority.to_pem().write(&arguments.out, "ca")?;
    print(&format!("{}\n{}", certificate.display(), key.display()))
}

fn make_broker(arguments: &NewBroker) -> anyhow::Result<()> {
    let authority = Authority::load(&arguments.ca)
        .with_context(|| format!("cannot use the authority in {}; `certs ca` makes one", arguments.ca.display()))?;
    let validity = Validity::days(arguments.days);
    let pair = authority.issue_broker(&arguments.mesh, &arguments.name, &arguments.san, validity)?;
    let (certificate, key) = pair.write(&arguments.out, &arguments.name)?;
    print(&format!("{}\n{}", certificate.display(), key.display()))
}

fn show(arguments: &Show) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for file in &arguments.files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let summaries = pki::inspect(&text).with_context(|| file.display().to_string())?;
        found.extend(summaries.into_iter().map(|summary| (file.display().to_string(), summary)));
    }
    if arguments.json {
        let all: Vec<_> = found.iter().map(|(file, summary)| as_json(file, summary)).collect();
        return print(&serde_json::to_string_pretty(&all)?);
    }
    for (file, summary) in &found {
        print(&as_text(file, summary))?;
    }
    Ok(())
}

fn as_json(file: &str, summary: &Summary) -> serde_json::Value {
    json!({
        "file": file,
        "subject": summary.subject,
        "issuer": summary.issuer,
        "authority": summary.authority,
        "mesh": summary.identity.as_ref().map(|identity| &identity.mesh),
        "broker": summary.identity.as_ref().map(|identity| identity.id),
        "sans": summary.sans,
        "not_before": summary.validity.not_before.as_secs(),
        "not_after": summary.validity.not_after.as_secs(),
        "days_left": summary.days_left,
    })
}

fn as_text(file: &str, summary: &Summary) -> String {
    let mut text = format!("{file}\n  subject  {}\n  issuer   {}", summary.subject, summary.issuer);
    let holder = match &summary.identity {
        Some(identity) => format!("broker {} of mesh {}", identity.id, identity.mesh),
        None if summary.authority => "an authority".to_owned(),
        None => "none of a mesh".to_owned(),
    };
    let left = match summary.days_left {
        days if days < 0 => "expired".to_owned(),
        days => format!("{days} days left"),
    };
    // Writing to a string never fails.
    let _ = write!(text, "\n  is       {holder}\n  names    {}\n  valid    {left}", summary.sans.join(", "));
    text
}

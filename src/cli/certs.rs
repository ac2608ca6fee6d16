//! `certs`: a mesh's authority, a certificate for each broker, renewed, signed on request and taken back, and a look at any of them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use super::output::print;
use crate::clock;
use crate::crl::{self, RevocationList, Serial};
use crate::mesh::pki::{self, AUTHORITY_DAYS_DEFAULT, Authority, BROKER_DAYS_DEFAULT, Replacement, Summary, Validity};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a mesh's certificate authority: DIR/ca.pem for every broker, DIR/ca.key to be kept away from them, DIR/ca.crl with nothing on it
    Ca(NewAuthority),
    /// Make a broker's certificate and key: DIR/NAME.pem and DIR/NAME.key
    Broker(NewBroker),
    /// Make a broker's certificate again, for the same broker, names and key, with new dates
    Renew(Renew),
    /// Make a key and a request for its certificate, for an authority that is elsewhere: DIR/NAME.key and DIR/NAME.csr
    Csr(NewRequest),
    /// Check a request and make the certificate that it is for: DIR/NAME.pem
    Sign(Sign),
    /// Take a certificate back: on DIR/ca.crl, for every broker's mesh.crlfile; without a certificate, make that list anew
    Revoke(Revoke),
    /// Print whose a certificate is, its names and the days it has left; or what a revocation list holds
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
pub(super) struct Renew {
    /// The broker's certificate; it is replaced, and kept as FILE.old
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// Where `certs ca` wrote the authority; one other than before will do
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Write the new certificate into this directory, and leave the old one as it is
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Make a new key too; without this the key is not even read
    #[arg(long)]
    new_key: bool,
    /// With --new-key: the broker's key, replaced and kept as FILE.old; the certificate's name with .key unless said otherwise
    #[arg(long, value_name = "FILE", requires = "new_key", conflicts_with = "out")]
    key: Option<PathBuf>,
    /// How long it lasts
    #[arg(long, value_name = "DAYS", default_value_t = BROKER_DAYS_DEFAULT)]
    days: u32,
}

#[derive(Debug, Args)]
pub(super) struct NewRequest {
    /// The mesh
    #[arg(long, value_name = "NAME")]
    mesh: String,
    /// The broker's name, as in its configuration
    #[arg(long, value_name = "NAME")]
    name: String,
    /// A host name or IP address to ask for, for other programs (repeatable)
    #[arg(long, value_name = "HOST_OR_IP")]
    san: Vec<String>,
    /// Where to write; made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Sign {
    /// The request
    #[arg(long, value_name = "FILE")]
    csr: PathBuf,
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
pub(super) struct Revoke {
    /// A certificate of this authority
    #[arg(long, value_name = "FILE", conflicts_with = "serial")]
    cert: Option<PathBuf>,
    /// The serial number of one that is not at hand, as `certs show` prints it
    #[arg(long, value_name = "HEX")]
    serial: Option<Serial>,
    /// Where `certs ca` wrote the authority
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// When the next list is to be made at the latest
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
        Command::Renew(arguments) => renew(&arguments),
        Command::Csr(arguments) => make_request(&arguments),
        Command::Sign(arguments) => sign(&arguments),
        Command::Revoke(arguments) => revoke(&arguments),
        Command::Show(arguments) => show(&arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn make_authority(arguments: &NewAuthority) -> anyhow::Result<()> {
    let authority = Authority::create(&arguments.mesh, Validity::days(arguments.days))?;
    let list = authority.revocation_list(None, &[], Validity::days(BROKER_DAYS_DEFAULT.min(arguments.days.max(1))))?;
    let (certificate, key) = authority.to_pem().write(&arguments.out, "ca")?;
    let crl = arguments.out.join(CRL);
    pki::write_new(&crl, &list, 0o644)?;
    print(&format!("{}\n{}\n{}", certificate.display(), key.display(), crl.display()))
}

/// The revocation list in an authority's directory.
const CRL: &str = "ca.crl";

fn load_authority(dir: &Path) -> anyhow::Result<Authority> {
    Authority::load(dir).with_context(|| format!("cannot use the authority in {}; `certs ca` makes one", dir.display()))
}

fn make_broker(arguments: &NewBroker) -> anyhow::Result<()> {
    let authority = load_authority(&arguments.ca)?;
    let validity = Validity::days(arguments.days);
    let pair = authority.issue_broker(&arguments.mesh, &arguments.name, &arguments.san, validity)?;
    let (certificate, key) = pair.write(&arguments.out, &arguments.name)?;
    print(&format!("{}\n{}", certificate.display(), key.display()))
}

fn renew(arguments: &Renew) -> anyhow::Result<()> {
    let authority = load_authority(&arguments.ca)?;
    let old = read(&arguments.cert)?;
    let list = read_list(&arguments.ca.join(CRL))?;
    let key = arguments.new_key.then(pki::new_key).transpose()?;
    let renewed = authority.renew(&old, key.as_ref(), list.as_ref(), Validity::days(arguments.days));
    let renewed = renewed.with_context(|| format!("cannot renew {}", arguments.cert.display()))?;
    let key_file = arguments.key.clone().unwrap_or_else(|| arguments.cert.with_extension("key"));
    let files = [Some((&arguments.cert, renewed, 0o644)), key.map(|key| (&key_file, key.serialize_pem(), 0o600))];
    let files = files.into_iter().flatten();
    if let Some(dir) = &arguments.out {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for (path, text, mode) in files {
            let path = dir.join(path.file_name().context("--cert names no file")?);
            pki::write_new(&path, &text, mode)?;
            print(&path.display().to_string())?;
        }
        return Ok(());
    }
    // Both can be written, and both old ones are kept, before either is replaced.
    let begin = |(path, text, mode): (&PathBuf, String, u32)| {
        let replacement = Replacement::begin(path, mode)?;
        replacement.keep_old()?;
        Ok((path.clone(), text, replacement))
    };
    let begun: Vec<_> = files.map(begin).collect::<Result<_, pki::PkiError>>()?;
    for (path, text, replacement) in begun {
        replacement.finish(&text)?;
        print(&path.display().to_string())?;
    }
    Ok(())
}

fn make_request(arguments: &NewRequest) -> anyhow::Result<()> {
    let pair = pki::request(&arguments.mesh, &arguments.name, &arguments.san)?;
    let (request, key) = pair.write_as(&arguments.out, &arguments.name, "csr")?;
    print(&format!("{}\n{}", request.display(), key.display()))
}

fn sign(arguments: &Sign) -> anyhow::Result<()> {
    let authority = load_authority(&arguments.ca)?;
    let signed = authority.sign(&read(&arguments.csr)?, Validity::days(arguments.days));
    let (name, certificate) = signed.with_context(|| arguments.csr.display().to_string())?;
    fs::create_dir_all(&arguments.out).with_context(|| format!("cannot make {}", arguments.out.display()))?;
    let path = arguments.out.join(format!("{name}.pem"));
    pki::write_new(&path, &certificate, 0o644)?;
    print(&path.display().to_string())
}

fn revoke(arguments: &Revoke) -> anyhow::Result<()> {
    let authority = load_authority(&arguments.ca)?;
    let of_file = |path: &PathBuf| authority.serial_of(&read(path)?).with_context(|| format!("cannot revoke {}", path.display()));
    let serial = arguments.cert.as_ref().map(of_file).transpose()?.or_else(|| arguments.serial.clone());
    let path = arguments.ca.join(CRL);
    // Begun before the present list is read: two at once cannot lose what one of them adds.
    let replacement = Replacement::begin(&path, 0o644)?;
    let present = read_list(&path)?;
    let list = authority.revocation_list(present.as_ref(), serial.as_slice(), Validity::days(arguments.days.max(1)));
    replacement.finish(&list.with_context(|| path.display().to_string())?)?;
    print(&path.display().to_string())
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The newest list of a file; none where there is no file.
fn read_list(path: &Path) -> anyhow::Result<Option<RevocationList>> {
    if !path.exists() {
        return Ok(None);
    }
    let lists = crl::read(&read(path)?).with_context(|| path.display().to_string())?;
    Ok(lists.into_iter().next())
}

/// Something that `certs show` shows.
enum Shown {
    Certificate(Summary),
    List(RevocationList),
}

fn show(arguments: &Show) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for file in &arguments.files {
        let text = read(file)?;
        let name = file.display().to_string();
        if text.contains("-----BEGIN X509 CRL-----") {
            let lists = crl::read(&text).with_context(|| name.clone())?;
            found.extend(lists.into_iter().map(|list| (name.clone(), Shown::List(list))));
        } else {
            let summaries = pki::inspect(&text).with_context(|| name.clone())?;
            found.extend(summaries.into_iter().map(|summary| (name.clone(), Shown::Certificate(summary))));
        }
    }
    if arguments.json {
        let as_json = |(file, shown): &(String, Shown)| match shown {
            Shown::Certificate(summary) => as_json(file, summary),
            Shown::List(list) => list_as_json(file, list),
        };
        return print(&serde_json::to_string_pretty(&found.iter().map(as_json).collect::<Vec<_>>())?);
    }
    for (file, shown) in &found {
        match shown {
            Shown::Certificate(summary) => print(&as_text(file, summary))?,
            Shown::List(list) => print(&list_as_text(file, list))?,
        }
    }
    Ok(())
}

fn list_as_json(file: &str, list: &RevocationList) -> serde_json::Value {
    let revoked: Vec<_> =
        list.revoked.iter().map(|one| json!({ "serial": one.serial.to_string(), "at": one.at.as_secs() })).collect();
    json!({
        "file": file,
        "issuer": list.issuer,
        "number": list.number.as_ref().map(ToString::to_string),
        "made": list.made.as_secs(),
        "next": list.next.map(|next| next.as_secs()),
        "revoked": revoked,
    })
}

fn list_as_text(file: &str, list: &RevocationList) -> String {
    let mut text = format!("{file}\n  issuer   {}\n  is       revocation list", list.issuer);
    let number = list.number.as_ref().map(|number| format!(" number {number}"));
    let now = clock::unix_time().as_secs();
    let left = match list.next.map(|next| next.as_secs()) {
        None => "for ever".to_owned(),
        Some(next) if next < now => format!("{} days late; brokers use it all the same", (now - next) / DAY_SECONDS),
        Some(next) => format!("{} days left", (next - now) / DAY_SECONDS),
    };
    // Writing to a string never fails.
    let _ = write!(text, "{}\n  valid    {left}\n  revoked  {}", number.unwrap_or_default(), list.revoked.len());
    for one in &list.revoked {
        let days = now.saturating_sub(one.at.as_secs()) / DAY_SECONDS;
        let _ = write!(text, "\n           {} ({days} days ago)", one.serial);
    }
    text
}

const DAY_SECONDS: u64 = 86_400;

fn as_json(file: &str, summary: &Summary) -> serde_json::Value {
    json!({
        "file": file,
        "subject": summary.subject,
        "issuer": summary.issuer,
        "serial": summary.serial.to_string(),
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
    let mut text = format!("{file}\n  subject  {}\n  issuer   {}\n  serial   {}", summary.subject, summary.issuer, summary.serial);
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

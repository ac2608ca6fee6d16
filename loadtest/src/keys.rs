//! `loadtest keys`: certificates for many clients, one for a broker, and the authority of both. For tests: nobody else need believe it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};

/// Writes `ca.pem`, `ca.key`, `server.pem`, `server.key` (for these host names or addresses), and `client-N.pem`, `client-N.key`
/// for each of so many clients.
///
/// # Errors
/// When there is an authority already, or a file cannot be written.
pub(crate) fn write(directory: &Path, clients: u32, hosts: &[String]) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let ca = directory.join("ca.pem");
    ensure!(
        !ca.exists(),
        "{} is there already, and what it has signed would be worth nothing; name another directory",
        ca.display()
    );

    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "loadtest");
    let key = KeyPair::generate()?;
    let key_pem = key.serialize_pem();
    let authority = CertifiedIssuer::self_signed(params, key)?;
    let sign = |mut params: CertificateParams, name: &str, common_name: &str, purpose| -> Result<()> {
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        file(&directory.join(format!("{name}.pem")), &certificate.pem())?;
        secret(&directory.join(format!("{name}.key")), &key.serialize_pem())
    };
    let host = hosts.first().map_or("localhost", String::as_str);
    sign(CertificateParams::new(hosts.to_vec())?, "server", host, ExtendedKeyUsagePurpose::ServerAuth)?;
    for client in 0..clients {
        let name = format!("client-{client}");
        sign(CertificateParams::new(Vec::new())?, &name, &name, ExtendedKeyUsagePurpose::ClientAuth)?;
    }
    secret(&directory.join("ca.key"), &key_pem)?;
    // Last: where it is, all is.
    file(&ca, &authority.pem())
}

fn file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A file that nobody else may read.
fn secret(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

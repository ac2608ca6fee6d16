//! An authority for clients and servers of TLS, as anybody's would be: made with rcgen, written as PEM files, used by rustls.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate with its key, as files.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub serial: u64,
}

impl Authority {
    /// Writes `ca.pem` into `dir`.
    pub fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority of clients");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(dir.join("ca.pem"), certificate.pem()).unwrap();
        Self { dir: dir.to_owned(), certificate: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub fn file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    fn issue(&self, file: &str, serial: u64, common_name: &str, host: bool) -> Pair {
        let hosts = if host { vec!["localhost".to_owned(), "127.0.0.1".to_owned()] } else { Vec::new() };
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "works");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.serial_number = Some(SerialNumber::from(serial));
        params.use_authority_key_identifier_extension = true;
        let purpose = if host { ExtendedKeyUsagePurpose::ServerAuth } else { ExtendedKeyUsagePurpose::ClientAuth };
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let pair = Pair { certificate: self.dir.join(format!("{file}.pem")), key: self.dir.join(format!("{file}.key")), serial };
        fs::write(&pair.certificate, certificate.pem()).unwrap();
        fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }

    /// For a broker on this machine.
    pub fn server(&self, serial: u64) -> Pair {
        self.issue("server", serial, "broker", true)
    }

    /// For a client of that name.
    pub fn client(&self, serial: u64, name: &str) -> Pair {
        self.issue(name, serial, name, false)
    }

    /// Writes `ca.crl`, which takes back `serials`.
    pub fn revoke(&self, number: u64, serials: &[u64]) -> PathBuf {
        let now = rcgen::date_time_ymd(2020, 1, 1);
        let revoked_certs = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: now,
            next_update: rcgen::date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.dir.join("ca.crl");
        fs::write(&path, params.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        path
    }

    /// A client that trusts this authority, and shows `pair` if there is one.
    pub fn config(&self, pair: Option<&Pair>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match pair {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = vec![CertificateDer::from_pem_file(&pair.certificate).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&pair.key).unwrap()).unwrap()
            }
        }
    }
}

//! The certificates of one listener: what it shows, whose clients it trusts, and which user name a client's certificate gives.
//!
//! [`Credentials`] are a value: a reload reads new ones and swaps them; handshakes from then on use them, and the chains of connected clients are
//! judged again ([`Credentials::verify`]). TLS 1.2 and 1.3, with rustls's cipher suites; the provider is named, never the process-wide one.
//!
//! Sessions are resumed only where no certificate is asked for: one that was revoked must count at the next connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quinn::crypto::rustls::QuicServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::subject::{self, Part};
use crate::clock;
use crate::config::{Bind, Protocol, Tls};
use crate::crl::{self, RevocationList};

/// ALPN of MQTT over QUIC. Over TCP clients name what they like: the port says what is spoken.
const ALPN_QUIC: &[u8] = b"mqtt";

/// A file that is of no use.
#[derive(Debug, thiserror::Error)]
#[error("listener.{listener}.tls.{key}: {}: {problem}", path.display())]
pub struct TlsError {
    /// The listener's place in the configuration.
    pub listener: usize,
    /// Which key names the file.
    pub key: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, and what to do.
    pub problem: String,
}

/// See the module's page.
#[derive(Debug)]
pub struct Credentials {
    server: Arc<ServerConfig>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    user_name: Option<Part>,
    /// Of our own chain: seconds since the Unix epoch until which it is good.
    good_until_s: i64,
    warnings: Vec<String>,
}

/// Reads the files of one listener.
struct Files {
    listener: usize,
}

impl Files {
    fn error(&self, key: &'static str, path: &Path, problem: impl Into<String>) -> TlsError {
        TlsError { listener: self.listener, key, path: path.to_owned(), problem: problem.into() }
    }

    fn read(&self, key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
        std::fs::read(path).map_err(|error| {
            let remedy = "make the file, let the broker's user read it, or name another";
            self.error(key, path, format!("cannot be read: {error}; {remedy}"))
        })
    }

    fn certificates(&self, key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let text = self.read(key, path)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        found.ok().filter(|found| !found.is_empty()).ok_or_else(|| {
            let remedy = "`openssl x509 -inform DER -in FILE` makes PEM of the other form";
            self.error(key, path, format!("no PEM certificate (BEGIN CERTIFICATE) in it; {remedy}"))
        })
    }

    fn key(&self, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
        let text = self.read("keyfile", path)?;
        PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
            let is_encrypted = text.windows(9).any(|word| word == b"ENCRYPTED");
            let problem = match is_encrypted {
                true => "the key is encrypted; `openssl pkey -in FILE -out PLAIN` takes the password away, and the file's mode must guard it",
                false => "no PEM private key (BEGIN PRIVATE KEY) in it",
            };
            self.error("keyfile", path, problem)
        })
    }
}

impl Credentials {
    /// Reads the files of listener number `listener`, which speaks `protocol`.
    ///
    /// # Errors
    /// Naming the key, the file and what to do.
    pub fn load(listener: usize, tls: &Tls, protocol: Protocol) -> Result<Self, TlsError> {
        let files = Files { listener };
        let none = PathBuf::new();
        let (certfile, keyfile) = (tls.certfile.as_ref().unwrap_or(&none), tls.keyfile.as_ref().unwrap_or(&none));
        let chain = files.certificates("certfile", certfile)?;
        let key = files.key(keyfile)?;
        let (verifier, warnings) = match &tls.cafile {
            Some(cafile) => {
                let (verifier, warnings) = verifier(&files, cafile, tls)?;
                (Some(verifier), warnings)
            }
            None => (None, Vec::new()),
        };
        let good_until_s = chain.iter().map(not_after_s).min().unwrap_or(i64::MIN);
        let server = server_config(verifier.clone(), chain, key, protocol)
            .map_err(|error| files.error("keyfile", keyfile, format!("{error}; is it the key of {}?", certfile.display())))?;
        let user_name = match (tls.use_identity_as_username, tls.use_subject_as_username) {
            (true, _) => Some(Part::CommonName),
            (_, true) => Some(Part::Whole),
            _ => None,
        };
        Ok(Self { server: Arc::new(server), verifier, user_name, good_until_s, warnings })
    }

    /// For TLS over TCP or a unix socket.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// For QUIC.
    pub(super) fn quic(&self) -> Result<quinn::ServerConfig, quinn::crypto::rustls::NoInitialCipherSuite> {
        Ok(quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(Arc::clone(&self.server))?)))
    }

    /// Whether clients' certificates give their user names.
    pub(super) fn names_users(&self) -> bool {
        self.user_name.is_some()
    }

    /// The user name in a client's certificate.
    pub(super) fn user_name(&self, certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
        subject::user_name(certificate, self.user_name?).map(Arc::from)
    }

    /// Judges a client's chain (its own certificate first) as a handshake would do now.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let (Some(verifier), Some((first, rest))) = (&self.verifier, chain.split_first()) else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        verifier.verify_client_cert(first, rest, UnixTime::since_unix_epoch(clock::unix_time())).map(drop)
    }

    /// What an operator should know: a certificate that has expired, revocation lists that are late or have no effect. All are used all the
    /// same.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let now_s = i64::try_from(clock::unix_time().as_secs()).unwrap_or(i64::MAX);
        let expired = (self.good_until_s < now_s).then(|| "certfile has expired: clients will refuse it".to_owned());
        expired.into_iter().chain(self.warnings.iter().cloned()).collect()
    }
}

impl Credentials {
    /// Says in the log what [`Credentials::warnings`] has.
    pub(super) fn warn(&self, listener: &Bind) {
        for warning in self.warnings() {
            tracing::warn!(%listener, warning);
        }
    }
}

fn not_after_s(der: &CertificateDer<'_>) -> i64 {
    X509Certificate::from_der(der).map_or(i64::MIN, |(_, certificate)| certificate.validity().not_after.timestamp())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

type Verifier = (Arc<dyn ClientCertVerifier>, Vec<String>);

/// Who judges clients. On which no list says anything passes, and a late list counts: see [`crate::crl`].
fn verifier(files: &Files, cafile: &Path, tls: &Tls) -> Result<Verifier, TlsError> {
    let authorities = files.certificates("cafile", cafile)?;
    let mut warnings = Vec::new();
    let mut lists = Vec::new();
    if let Some(crlfile) = &tls.crlfile {
        let text = files.read("crlfile", crlfile)?;
        let failed = |error: crl::CrlError| files.error("crlfile", crlfile, error.to_string());
        let read: Vec<RevocationList> = crl::read(&String::from_utf8_lossy(&text)).map_err(failed)?;
        for list in read {
            if !list.is_of(&authorities).map_err(failed)? {
                warnings.push(format!("the revocation list of {} has no effect: cafile has no such authority", list.issuer));
            } else if list.next.is_some_and(|next| next < clock::unix_time()) {
                warnings.push(format!("the revocation list of {} is late, and still used", list.issuer));
            }
            lists.push(list.der());
        }
    }
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots
            .add(authority)
            .map_err(|error| files.error("cafile", cafile, format!("not a certificate of an authority: {error}")))?;
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).with_crls(lists).allow_unknown_revocation_status();
    let builder = if tls.require_certificate { builder } else { builder.allow_unauthenticated() };
    let verifier = builder.build().map_err(|error| files.error("cafile", cafile, error.to_string()))?;
    Ok((verifier, warnings))
}

fn server_config(
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    protocol: Protocol,
) -> Result<ServerConfig, rustls::Error> {
    let is_quic = protocol == Protocol::Quic;
    // RFC 9001 section 4.2: QUIC has TLS 1.3 only.
    let versions = if is_quic { &[&rustls::version::TLS13][..] } else { rustls::ALL_VERSIONS };
    let asks_for_certificates = verifier.is_some();
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    if is_quic {
        config.alpn_protocols = vec![ALPN_QUIC.to_vec()];
    }
    if asks_for_certificates {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    } else {
        // Tickets instead of a store: a rush of clients that come back costs neither memory nor signatures.
        config.ticketer = rustls::crypto::ring::Ticketer::new()?;
        config.send_tls13_tickets = 1;
    }
    Ok(config)
}

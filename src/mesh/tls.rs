//! TLS 1.3 in both directions: what this broker shows, whom it trusts. Admission is by certificate: signed by an authority of `cafile`, within
//! its dates, naming a broker of this mesh ([`Identity::of_certificate`], checked by the handshake after TLS). Version, cipher suites and
//! curves are rustls's defaults; the provider is named, never the process-wide one, so that no dependency can change it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::identity::{DIAL_NAME, Identity, IdentityError};
use super::pki::{Authority, PemPair};

/// ALPN protocol of the mesh (RFC 7301): a peer of another protocol is refused in the TLS handshake.
pub const ALPN: &[u8] = b"mqtt-st/1";

/// Why certificates are of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A text without what it should hold.
    #[error("{from}: no PEM {what} found in it")]
    Pem {
        /// File or origin of the text.
        from: String,
        /// `certificate` or `secret key`.
        what: &'static str,
    },
    /// The broker's certificate names no broker.
    #[error("{from}: {source}")]
    Identity {
        /// File or origin of the text.
        from: String,
        /// Why.
        source: IdentityError,
    },
    /// An authority that is none, a key of another certificate, ...
    #[error("{from}: {source}")]
    Rustls {
        /// File or origin of the text.
        from: String,
        /// Why.
        source: rustls::Error,
    },
    /// QUIC's own conditions on TLS.
    #[error("TLS for QUIC: {0}")]
    Quic(String),
}

/// What a broker shows to its peers and whom it trusts.
pub struct Credentials {
    identity: Identity,
    authorities: Arc<RootCertStore>,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    /// What judges a peer's certificate, in a handshake and under what it has signed.
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    server: Arc<QuicServerConfig>,
    client: Arc<QuicClientConfig>,
}

impl Credentials {
    /// Reads `cafile`, `certfile` and `keyfile` of the configuration.
    ///
    /// # Errors
    /// Naming the file.
    pub fn load(cafile: &Path, certfile: &Path, keyfile: &Path) -> Result<Self, TlsError> {
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|source| TlsError::File { path: path.to_owned(), source });
        let name = |path: &Path| path.display().to_string();
        let pair = PemPair { certificate: read(certfile)?, key: read(keyfile)? };
        Self::new(&read(cafile)?, &pair, [&name(cafile), &name(certfile), &name(keyfile)])
    }

    /// The same from an authority in memory.
    ///
    /// # Errors
    /// Where `pair` is no broker's.
    pub fn of_authority(authority: &Authority, pair: &PemPair) -> Result<Self, TlsError> {
        Self::new(authority.certificate(), pair, ["authority", "certificate", "key"])
    }

    fn new(authorities: &str, pair: &PemPair, [ca_from, cert_from, key_from]: [&str; 3]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(authorities, ca_from)? {
            roots.add(authority).map_err(|source| TlsError::Rustls { from: ca_from.to_owned(), source })?;
        }
        let authorities = Arc::new(roots);
        let chain = certificates(&pair.certificate, cert_from)?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())
            .map_err(|_| TlsError::Pem { from: key_from.to_owned(), what: "secret key" })?;
        let first = chain.first().ok_or_else(|| TlsError::Pem { from: cert_from.to_owned(), what: "certificate" })?;
        let identity =
            Identity::of_certificate(first).map_err(|source| TlsError::Identity { from: cert_from.to_owned(), source })?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&authorities), provider())
            .build()
            .map_err(|e| TlsError::Rustls { from: ca_from.to_owned(), source: rustls::Error::General(e.to_string()) })?;
        let server = server_config(&verifier, chain.clone(), key.clone_key(), key_from)?;
        let client = client_config(&authorities, chain.clone(), key.clone_key(), key_from)?;
        Ok(Self { identity, authorities, chain, key, verifier, server, client })
    }

    /// Mesh and broker of our own certificate.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What a peer that trusts our `cafile` would object to in our own certificate now: expired, signed by somebody else, not made for a
    /// broker. The broker starts all the same (its clients are served), but nobody will link with it.
    #[must_use]
    pub fn objection(&self, now: Duration) -> Option<String> {
        let (first, rest) = self.chain.split_first()?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(&self.authorities), provider()).build().ok()?;
        let name = ServerName::try_from(DIAL_NAME).ok()?;
        let verdict = verifier.verify_server_cert(first, rest, &name, &[], UnixTime::since_unix_epoch(now));
        verdict.err().map(|error| error.to_string())
    }

    pub(super) fn server(&self) -> Arc<QuicServerConfig> {
        Arc::clone(&self.server)
    }

    pub(super) fn client(&self) -> Arc<QuicClientConfig> {
        Arc::clone(&self.client)
    }
}

impl Clone for Credentials {
    fn clone(&self) -> Self {
        Self {
            identity: self.identity.clone(),
            authorities: Arc::clone(&self.authorities),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            verifier: Arc::clone(&self.verifier),
            server: self.server(),
            client: self.client(),
        }
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(pem: &str, from: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let missing = || TlsError::Pem { from: from.to_owned(), what: "certificate" };
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|_| missing())?;
    if found.is_empty() { Err(missing()) } else { Ok(found) }
}

fn server_config(
    verifier: &Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    key_from: &str,
) -> Result<Arc<QuicServerConfig>, TlsError> {
    let from_key = |source| TlsError::Rustls { from: key_from.to_owned(), source };
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(from_key)?
        .with_client_cert_verifier(Arc::clone(verifier))
        .with_single_cert(chain, key)
        .map_err(from_key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // No resumption: a peer shows its certificate every time, so that its expiry and, later, its revocation count.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(QuicServerConfig::try_from(config).map_err(|e| TlsError::Quic(e.to_string()))?))
}

fn client_config(
    authorities: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    key_from: &str,
) -> Result<Arc<QuicClientConfig>, TlsError> {
    let from_key = |source| TlsError::Rustls { from: key_from.to_owned(), source };
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(from_key)?
        .with_root_certificates(Arc::clone(authorities))
        .with_client_auth_cert(chain, key)
        .map_err(from_key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(QuicClientConfig::try_from(config).map_err(|e| TlsError::Quic(e.to_string()))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::mesh::pki::Validity;

    #[test]
    fn the_objection_to_our_own_certificate_is_said() {
        let (ours, theirs) =
            (Authority::create("m", Validity::days(9)).unwrap(), Authority::create("m", Validity::days(9)).unwrap());
        let expired = Validity { not_before: Duration::from_secs(1), not_after: Duration::from_secs(2) };
        for (signer, validity, says) in [
            (&ours, Validity::days(1), None),
            (&ours, expired, Some("xpired")),
            (&theirs, Validity::days(1), Some("UnknownIssuer")),
        ] {
            let pair = signer.issue_broker("m", "a", &[], validity).unwrap();
            let objection = Credentials::of_authority(&ours, &pair).unwrap().objection(clock::unix_time());
            assert_eq!(objection.is_some(), says.is_some(), "{objection:?}");
            assert!(objection.unwrap_or_default().contains(says.unwrap_or_default()));
        }
    }

    #[test]
    fn files_that_do_not_fit_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("m", Validity::days(9)).unwrap();
        let (ca, ca_key) = authority.to_pem().write(dir.path(), "ca").unwrap();
        let (cert, key) = authority.issue_broker("m", "a", &[], Validity::days(1)).unwrap().write(dir.path(), "a").unwrap();
        assert!(Credentials::load(&ca, &cert, &key).is_ok());
        let none = dir.path().join("none.pem");
        for (files, names) in [
            ([&none, &cert, &key], "none.pem"),
            ([&ca, &cert, &ca_key], "ca.key"),
            ([&ca, &key, &key], "a.key"),
            ([&ca, &ca, &ca_key], "ca.pem"),
            ([&ca, &cert, &cert], "a.pem"),
        ] {
            let error = Credentials::load(files[0], files[1], files[2]).unwrap_err().to_string();
            assert!(error.contains(names), "{error}");
        }
    }
}

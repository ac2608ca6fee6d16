//! TLS as a client speaks it: whom it believes, and who it says it is.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

/// Whom a client believes.
pub(crate) enum Trust<'a> {
    /// Servers whose certificates one of the authorities in this file has signed.
    Authorities(&'a Path),
    /// Anyone.
    Anyone,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// `identity`: files of a certificate chain and its key.
    ///
    /// # Errors
    /// When a file cannot be read, or holds something else.
    pub(crate) fn new(trust: &Trust<'_>, identity: Option<(&Path, &Path)>) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match trust {
            Trust::Authorities(path) => builder.with_root_certificates(authorities(path)?),
            Trust::Anyone => builder.dangerous().with_custom_certificate_verifier(Arc::new(BelieveAnyone(provider))),
        };
        let mut config = match identity {
            Some((cert, key)) => {
                let private = PrivateKeyDer::from_pem_file(key).with_context(|| format!("cannot read --key {}", key.display()))?;
                let chain = certificates("--cert", cert)?;
                builder
                    .with_client_auth_cert(chain, private)
                    .with_context(|| format!("--cert {} and --key {} do not belong together", cert.display(), key.display()))?
            }
            None => builder.with_no_client_auth(),
        };
        // A handshake is part of what is measured: each client makes a whole one.
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    pub(super) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.0.clone())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tls")
    }
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in certificates("--cafile", path)? {
        store.add(certificate).with_context(|| format!("--cafile {} holds a broken certificate", path.display()))?;
    }
    Ok(store)
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.with_context(|| format!("cannot read {option} {}", path.display()))?;
    ensure!(!certificates.is_empty(), "{option} {} holds no certificate", path.display());
    Ok(certificates)
}

/// `--insecure`: the name and the signer of a certificate do not matter; that its holder has the key does.
#[derive(Debug)]
struct BelieveAnyone(Arc<CryptoProvider>);

impl ServerCertVerifier for BelieveAnyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

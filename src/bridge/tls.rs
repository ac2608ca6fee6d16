//! TLS towards a foreign broker: whom it trusts, what it shows. Files are read at each attempt, so that a renewed certificate needs no restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::config::BridgeTls;

/// A file that is of no use.
#[derive(Debug, thiserror::Error)]
#[error("tls.{key}: {}: {problem}", path.display())]
pub(super) struct TlsError {
    /// Which key names the file.
    pub(super) key: &'static str,
    /// The file.
    pub(super) path: PathBuf,
    /// What is wrong with it.
    pub(super) problem: String,
}

/// What a connection to the foreign broker is made with.
///
/// # Errors
/// Naming the file that is missing or not understood.
pub(super) fn client_config(tls: &BridgeTls) -> Result<Arc<ClientConfig>, TlsError> {
    let none = PathBuf::new();
    let cafile = tls.cafile.as_ref().unwrap_or(&none);
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates("cafile", cafile)?);
    if added == 0 {
        return Err(error("cafile", cafile, "no certificate of an authority in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let judge = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|problem| error("cafile", cafile, problem))?;
    let verifier: Arc<dyn ServerCertVerifier> = if tls.insecure { Arc::new(AnyName(judge)) } else { judge };
    let builder = builder(provider).map_err(|problem| error("cafile", cafile, problem))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let (Some(certfile), Some(keyfile)) = (&tls.certfile, &tls.keyfile) else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let key = PrivateKeyDer::from_pem_slice(&read("keyfile", keyfile)?)
        .map_err(|_| error("keyfile", keyfile, "no PEM private key (BEGIN PRIVATE KEY) in it, or an encrypted one"))?;
    let config = builder.with_client_auth_cert(certificates("certfile", certfile)?, key);
    config.map(Arc::new).map_err(|problem| error("keyfile", keyfile, problem))
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>;

fn builder(provider: Arc<CryptoProvider>) -> Result<Builder, rustls::Error> {
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

fn error(key: &'static str, path: &Path, problem: impl ToString) -> TlsError {
    TlsError { key, path: path.to_owned(), problem: problem.to_string() }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|problem| error(key, path, format!("cannot be read: {problem}")))
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(key, path)?).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| error(key, path, "no PEM certificate (BEGIN CERTIFICATE) in it"))
}

/// Believes a chain whatever host its certificate names, and nothing else: Mosquitto's `bridge_insecure`.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The name is looked at last: who gets as far is of an authority that is trusted, and within its dates.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

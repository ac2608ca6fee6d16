//! TLS 1.3 in both directions: what this broker shows, whom it trusts. Admission is by certificate: signed by an authority of `cafile`, within
//! its dates, not on a list of `crlfile`, naming a broker of this mesh ([`Identity::of_certificate`], checked by the handshake after TLS).
//! Version, cipher suites and curves are rustls's defaults; the provider is named, never the process-wide one, so that no dependency can
//! change it.
//!
//! [`Credentials`] are a value: a reload makes new ones and swaps them ([`SharedCredentials`]). What is checked of a chain is the same in a
//! handshake and later ([`Credentials::verify`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::VerifierBuilderError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::identity::{DIAL_NAME, Identity, IdentityError};
use super::pki::{Authority, PemPair, Validity};
use crate::config::Mesh;
use crate::crl::{self, CrlError, RevocationList};

/// Which of a link's two connections one is. Each has an ALPN protocol of its own (RFC 7301): a peer of another protocol is refused in the TLS
/// handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// It carries the control stream and hellos. It comes first.
    Control,
    /// It carries the lanes.
    Lanes,
}

impl Half {
    pub(super) fn protocol(self) -> &'static [u8] {
        match self {
            Self::Control => b"mqtt-st/1",
            Self::Lanes => b"mqtt-st-lanes/1",
        }
    }
}

/// The credentials in force, shared by whoever shakes hands, signs or verifies; a reload swaps them.
pub type SharedCredentials = Arc<ArcSwap<Credentials>>;

/// Why certificates are of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The mesh without the certificates that admit to it.
    #[error(
        "[mesh] needs mesh.cafile, mesh.certfile and mesh.keyfile: make them with `mqtt-st-quic certs ca` and `mqtt-st-quic certs broker`"
    )]
    NoFiles,
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
    /// A revocation list that cannot be used.
    #[error("{from}: {source}")]
    Crl {
        /// File or origin of the text.
        from: String,
        /// Why.
        source: CrlError,
    },
    /// QUIC's own conditions on TLS.
    #[error("TLS for QUIC: {0}")]
    Quic(String),
}

/// What is wrong with a certificate, as a peer would find it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", words(.0))]
pub struct Objection(rustls::Error);

fn words(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(error) = error else { return error.to_string() };
    match error {
        CertificateError::Revoked => "the certificate is revoked".to_owned(),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "the certificate has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet; is a clock wrong?".to_owned()
        }
        CertificateError::UnknownIssuer => "the certificate is of an authority that is not trusted".to_owned(),
        CertificateError::BadSignature => "the certificate is not signed by the authority that it names".to_owned(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the certificate lacks the DNS name {DIAL_NAME}")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is not made for both ends of a link (extended key usage serverAuth and clientAuth)".to_owned()
        }
        other => other.to_string(),
    }
}

/// What a broker shows to its peers and whom it trusts.
pub struct Credentials {
    identity: Identity,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    /// Of our own chain.
    validity: Validity,
    /// Each list, and whether it is of an authority that is trusted.
    lists: Vec<(RevocationList, bool)>,
    /// Judges who dials us, and whoever has signed something.
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// Judges whom we dial.
    dialled: Arc<WebPkiServerVerifier>,
    server: Arc<QuicServerConfig>,
    /// By [`Half`].
    clients: [Arc<QuicClientConfig>; 2],
}

/// Texts in PEM, each with the file or origin that errors name.
struct Sources<'a> {
    authorities: (&'a str, &'a str),
    certificate: (&'a str, &'a str),
    key: (&'a str, &'a str),
    lists: Option<(&'a str, &'a str)>,
}

impl Credentials {
    /// Reads `cafile`, `certfile`, `keyfile` and `crlfile` of the configuration.
    ///
    /// # Errors
    /// Naming the file.
    pub fn load(mesh: &Mesh) -> Result<Self, TlsError> {
        let (Some(cafile), Some(certfile), Some(keyfile)) = (&mesh.cafile, &mesh.certfile, &mesh.keyfile) else {
            return Err(TlsError::NoFiles);
        };
        let read = |path: &Path| match std::fs::read_to_string(path) {
            Ok(text) => Ok((path.display().to_string(), text)),
            Err(source) => Err(TlsError::File { path: path.to_owned(), source }),
        };
        let (ca, cert, key) = (read(cafile)?, read(certfile)?, read(keyfile)?);
        let lists = mesh.crlfile.as_deref().map(read).transpose()?;
        Self::new(&Sources {
            authorities: (&ca.0, &ca.1),
            certificate: (&cert.0, &cert.1),
            key: (&key.0, &key.1),
            lists: lists.as_ref().map(|(from, text)| (from.as_str(), text.as_str())),
        })
    }

    /// The same from an authority in memory.
    ///
    /// # Errors
    /// Where `pair` is no broker's.
    pub fn of_authority(authority: &Authority, pair: &PemPair) -> Result<Self, TlsError> {
        Self::new(&Sources {
            authorities: ("authority", authority.certificate()),
            certificate: ("certificate", &pair.certificate),
            key: ("key", &pair.key),
            lists: None,
        })
    }

    fn new(sources: &Sources<'_>) -> Result<Self, TlsError> {
        let (ca_from, cert_from, key_from) = (sources.authorities.0, sources.certificate.0, sources.key.0);
        let authorities = certificates(sources.authorities.1, ca_from)?;
        let lists = sources.lists.map_or(Ok(Vec::new()), |(from, text)| {
            let known = |list: RevocationList| Ok((list.is_of(&authorities)?, list)).map(|(is_known, list)| (list, is_known));
            let lists = crl::read(text).and_then(|lists| lists.into_iter().map(known).collect());
            lists.map_err(|source| TlsError::Crl { from: from.to_owned(), source })
        })?;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|source| TlsError::Rustls { from: ca_from.to_owned(), source })?;
        }
        let (verifier, dialled) = verifiers(roots, &lists, [ca_from, sources.lists.map_or(ca_from, |(from, _)| from)])?;
        let chain = certificates(sources.certificate.1, cert_from)?;
        let key = PrivateKeyDer::from_pem_slice(sources.key.1.as_bytes())
            .map_err(|_| TlsError::Pem { from: key_from.to_owned(), what: "secret key" })?;
        let first = chain.first().ok_or_else(|| TlsError::Pem { from: cert_from.to_owned(), what: "certificate" })?;
        let identity =
            Identity::of_certificate(first).map_err(|source| TlsError::Identity { from: cert_from.to_owned(), source })?;
        let server = server_config(&verifier, chain.clone(), key.clone_key(), key_from)?;
        let clients = client_configs(&dialled, chain.clone(), key.clone_key(), key_from)?;
        let validity = validity(&chain);
        Ok(Self { identity, chain, key, validity, lists, verifier, dialled, server, clients })
    }

    /// Mesh and broker of our own certificate.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// From when until when our own certificate, and those above it that we show, are good.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Judges a peer's chain (its own certificate first) at the time `now` since the Unix epoch, as a handshake would: signed by a trusted
    /// authority, within its dates, not revoked. Whose it is says [`Identity::of_certificate`].
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: Duration) -> Result<(), Objection> {
        let Some((first, rest)) = chain.split_first() else {
            return Err(Objection(rustls::Error::NoCertificatesPresented));
        };
        self.verifier.verify_client_cert(first, rest, UnixTime::since_unix_epoch(now)).map(drop).map_err(Objection)
    }

    /// What a peer that trusts our `cafile` would object to in our own certificate now: expired, signed by somebody else, not made for a
    /// broker. The broker starts all the same (its clients are served), but nobody will link with it.
    #[must_use]
    pub fn objection(&self, now: Duration) -> Option<Objection> {
        let (first, rest) = self.chain.split_first()?;
        let name = ServerName::try_from(DIAL_NAME).ok()?;
        let verdict = self.dialled.verify_server_cert(first, rest, &name, &[], UnixTime::since_unix_epoch(now));
        verdict.map_err(Objection).err().or_else(|| self.verify(&self.chain, now).err())
    }

    /// What an operator should know of the revocation lists: one that is late, one that takes nothing back because its authority is not in
    /// `cafile`. Both are used all the same.
    #[must_use]
    pub fn list_warnings(&self, now: Duration) -> Vec<String> {
        let late = |list: &RevocationList| list.next.filter(|next| *next < now).map(|next| (now - next).as_secs() / 86_400);
        let warnings = self.lists.iter().filter_map(|(list, is_known)| match late(list) {
            _ if !is_known => Some(format!("the revocation list of {} has no effect: cafile has no such authority", list.issuer)),
            Some(days) => Some(format!("the revocation list of {} is {days} days late, and still used", list.issuer)),
            None => None,
        });
        warnings.collect()
    }

    pub(super) fn server(&self) -> Arc<QuicServerConfig> {
        Arc::clone(&self.server)
    }

    pub(super) fn client(&self, half: Half) -> Arc<QuicClientConfig> {
        let [control, lanes] = &self.clients;
        Arc::clone(match half {
            Half::Control => control,
            Half::Lanes => lanes,
        })
    }
}

impl Clone for Credentials {
    fn clone(&self) -> Self {
        Self {
            identity: self.identity.clone(),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            validity: self.validity,
            lists: self.lists.clone(),
            verifier: Arc::clone(&self.verifier),
            dialled: Arc::clone(&self.dialled),
            server: self.server(),
            clients: self.clients.clone(),
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

/// From when until when all certificates of a chain are good. What cannot be read is good for nothing.
pub(super) fn validity(chain: &[CertificateDer<'_>]) -> Validity {
    let ever = Validity { not_before: Duration::ZERO, not_after: Duration::MAX };
    let never = Validity { not_before: Duration::MAX, not_after: Duration::ZERO };
    chain.iter().fold(ever, |all, der| {
        let one = X509Certificate::from_der(der).map_or(never, |(_, certificate)| Validity::of(&certificate));
        Validity { not_before: all.not_before.max(one.not_before), not_after: all.not_after.min(one.not_after) }
    })
}

type Verifiers = (Arc<dyn ClientCertVerifier>, Arc<WebPkiServerVerifier>);

/// Who judges verifier, and who judges those whom we dial. On which no list says anything passes: see [`crate::crl`].
fn verifiers(
    roots: RootCertStore,
    lists: &[(RevocationList, bool)],
    [ca_from, crl_from]: [&str; 2],
) -> Result<Verifiers, TlsError> {
    let roots = Arc::new(roots);
    let lists = || lists.iter().map(|(list, _)| list.der());
    let failed = |error: VerifierBuilderError| match error {
        VerifierBuilderError::InvalidCrl(error) => {
            TlsError::Crl { from: crl_from.to_owned(), source: CrlError::Unreadable(format!("{error:?}")) }
        }
        other => TlsError::Rustls { from: ca_from.to_owned(), source: rustls::Error::General(other.to_string()) },
    };
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
        .with_crls(lists())
        .allow_unknown_revocation_status()
        .build()
        .map_err(failed)?;
    let dialled = WebPkiServerVerifier::builder_with_provider(roots, provider())
        .with_crls(lists())
        .allow_unknown_revocation_status()
        .build()
        .map_err(failed)?;
    Ok((verifier, dialled))
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
    config.alpn_protocols = [Half::Control, Half::Lanes].map(|half| half.protocol().to_vec()).into();
    // No resumption: a peer shows its certificate every time, so that its expiry and its revocation count.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(QuicServerConfig::try_from(config).map_err(|e| TlsError::Quic(e.to_string()))?))
}

/// By [`Half`].
fn client_configs(
    dialled: &Arc<WebPkiServerVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    key_from: &str,
) -> Result<[Arc<QuicClientConfig>; 2], TlsError> {
    let from_key = |source| TlsError::Rustls { from: key_from.to_owned(), source };
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(from_key)?
        .with_webpki_verifier(Arc::clone(dialled))
        .with_client_auth_cert(chain, key)
        .map_err(from_key)?;
    config.resumption = rustls::client::Resumption::disabled();
    let of = |half: Half| {
        let mut config = config.clone();
        config.alpn_protocols = vec![half.protocol().to_vec()];
        QuicClientConfig::try_from(config).map(Arc::new).map_err(|e| TlsError::Quic(e.to_string()))
    };
    Ok([of(Half::Control)?, of(Half::Lanes)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn the_objection_to_our_own_certificate_is_said() {
        let (ours, theirs) =
            (Authority::create("m", Validity::days(9)).unwrap(), Authority::create("m", Validity::days(9)).unwrap());
        let expired = Validity { not_before: Duration::from_secs(1), not_after: Duration::from_secs(2) };
        for (signer, validity, says) in
            [(&ours, Validity::days(1), None), (&ours, expired, Some("xpired")), (&theirs, Validity::days(1), Some("not trusted"))]
        {
            let pair = signer.issue_broker("m", "a", &[], validity).unwrap();
            let objection =
                Credentials::of_authority(&ours, &pair).unwrap().objection(clock::unix_time()).map(|one| one.to_string());
            assert_eq!(objection.is_some(), says.is_some(), "{objection:?}");
            assert!(objection.unwrap_or_default().contains(says.unwrap_or_default()));
        }
    }

    #[test]
    fn the_newest_list_counts_and_one_that_cannot_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("m", Validity::days(9)).unwrap();
        let other = Authority::create("m", Validity::days(9)).unwrap();
        let (cafile, _) = authority.to_pem().write(dir.path(), "ca").unwrap();
        let pair = authority.issue_broker("m", "a", &[], Validity::days(1)).unwrap();
        let (certfile, keyfile) = pair.write(dir.path(), "a").unwrap();
        let crlfile = dir.path().join("ca.crl");
        let load = |lists: &str| {
            std::fs::write(&crlfile, lists).unwrap();
            let [cafile, certfile, keyfile, crlfile] = [&cafile, &certfile, &keyfile, &crlfile].map(|file| Some(file.clone()));
            Credentials::load(&Mesh { cafile, certfile, keyfile, crlfile, ..Mesh::default() })
        };
        let now = clock::unix_time();
        let read = |list: &str| crl::read(list).unwrap().remove(0);
        let serial = authority.serial_of(&pair.certificate).unwrap();
        let empty = authority.revocation_list(None, &[], Validity::days(1)).unwrap();
        let late = Validity { not_before: now - Duration::from_secs(200_000), not_after: now - Duration::from_secs(100_000) };
        let full = authority.revocation_list(Some(&read(&empty)), &[serial.clone(), serial.clone()], late).unwrap();
        assert_eq!((read(&full).revoked.len(), read(&full).number), (1, Some(2u8.into())));

        let good = load(&empty).unwrap();
        assert_eq!((good.objection(now), good.list_warnings(now)), (None, Vec::new()));
        // In whichever order, and late as it is.
        for lists in [format!("{empty}{full}"), format!("{full}{empty}")] {
            let revoked = load(&lists).unwrap();
            assert_eq!(revoked.objection(now).unwrap().to_string(), "the certificate is revoked");
            assert_eq!(revoked.verify(&revoked.chain, now), Err(Objection(CertificateError::Revoked.into())));
            assert!(revoked.list_warnings(now)[0].contains("1 days late"), "{:?}", revoked.list_warnings(now));
        }
        // Somebody else's list takes nothing back, whatever it holds.
        let theirs = other.revocation_list(None, &[serial], Validity::days(1)).unwrap();
        let good = load(&theirs).unwrap();
        assert_eq!(good.objection(now), None);
        assert!(good.list_warnings(now)[0].contains("has no effect"));
        assert!(load("nothing").unwrap_err().to_string().contains("ca.crl: no PEM revocation list"));
    }

    #[test]
    fn files_that_do_not_fit_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("m", Validity::days(9)).unwrap();
        let (ca, ca_key) = authority.to_pem().write(dir.path(), "ca").unwrap();
        let (cert, key) = authority.issue_broker("m", "a", &[], Validity::days(1)).unwrap().write(dir.path(), "a").unwrap();
        let load = |cafile: &PathBuf, certfile: &PathBuf, keyfile: &PathBuf| {
            let [cafile, certfile, keyfile] = [cafile, certfile, keyfile].map(|file| Some(file.clone()));
            Credentials::load(&Mesh { cafile, certfile, keyfile, ..Mesh::default() })
        };
        assert!(load(&ca, &cert, &key).is_ok());
        let none = dir.path().join("none.pem");
        for (files, names) in [
            ([&none, &cert, &key], "none.pem"),
            ([&ca, &cert, &ca_key], "ca.key"),
            ([&ca, &key, &key], "a.key"),
            ([&ca, &ca, &ca_key], "ca.pem"),
            ([&ca, &cert, &cert], "a.pem"),
        ] {
            let error = load(files[0], files[1], files[2]).unwrap_err().to_string();
            assert!(error.contains(names), "{error}");
        }
    }
}

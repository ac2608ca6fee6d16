//! Makes the certificates of a mesh: one authority, one certificate a broker, by the profile of `certs/README.md`. Used by the `certs`
//! command and, in memory, by `demo`; a serving broker only reads what was made (see [`super::tls`]).
//!
//! Keys are written with mode 0600 and never over a file that is there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::identity::{DIAL_NAME, Identity, IdentityError, check_name};
use crate::clock;

/// Days that an authority lasts unless asked otherwise.
pub const AUTHORITY_DAYS_DEFAULT: u32 = 3_650;
/// Days that a broker's certificate lasts unless asked otherwise.
pub const BROKER_DAYS_DEFAULT: u32 = 397;

/// A certificate is good from this long before it was made, for clocks that go slow.
const CLOCK_SKEW: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Why a certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Nothing is written over.
    #[error("{0} is there already: remove it first, or choose another directory")]
    Exists(PathBuf),
    /// No PEM certificate where one should be.
    #[error("no PEM certificate found")]
    NoCertificate,
    /// An authority's key that does not belong to its certificate.
    #[error("the key does not belong to the certificate")]
    KeyMismatch,
    /// A name that no mesh or broker may have, or a certificate that names none.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// An address or host name that no certificate can carry.
    #[error("{0:?} is neither an IP address nor a host name")]
    San(String),
    /// A date beyond what certificates can tell.
    #[error("a certificate cannot last until {0} s after 1970")]
    Date(u64),
    /// From the library that makes certificates.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// From when until when, since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub not_before: Duration,
    /// The last.
    pub not_after: Duration,
}

impl Validity {
    /// From now on for `days`; a little earlier for clocks that go slow.
    #[must_use]
    pub fn days(days: u32) -> Self {
        let now = clock::unix_time();
        Self { not_before: now.saturating_sub(CLOCK_SKEW), not_after: now + DAY * days }
    }

    fn set(self, params: &mut CertificateParams) -> Result<(), PkiError> {
        let date = |at: Duration| {
            let seconds = i64::try_from(at.as_secs()).map_err(|_| PkiError::Date(at.as_secs()))?;
            OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| PkiError::Date(at.as_secs()))
        };
        params.not_before = date(self.not_before)?;
        params.not_after = date(self.not_after)?;
        Ok(())
    }
}

/// A certificate and its secret key, both PEM.
pub struct PemPair {
    /// The certificate.
    pub certificate: String,
    /// PKCS #8.
    pub key: String,
}

impl PemPair {
    /// Writes `DIR/STEM.pem` and, readable by its owner alone, `DIR/STEM.key`; makes `DIR` where it is missing. Returns both paths.
    ///
    /// # Errors
    /// A file that is there already, or that cannot be written.
    pub fn write(&self, dir: &Path, stem: &str) -> Result<(PathBuf, PathBuf), PkiError> {
        std::fs::create_dir_all(dir).map_err(|source| PkiError::File { path: dir.to_owned(), source })?;
        let (certificate, key) = (dir.join(format!("{stem}.pem")), dir.join(format!("{stem}.key")));
        if certificate.exists() {
            return Err(PkiError::Exists(certificate));
        }
        write_new(&key, &self.key, 0o600)?;
        write_new(&certificate, &self.certificate, 0o644)?;
        Ok((certificate, key))
    }
}

impl std::fmt::Debug for PemPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PemPair").field("certificate", &self.certificate).field("key", &"***").finish()
    }
}

/// The authority that admits brokers to a mesh.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority for `mesh`.
    ///
    /// # Errors
    /// A name that no mesh may have; a date out of range.
    pub fn create(mesh: &str, validity: Validity) -> Result<Self, PkiError> {
        check_name(mesh)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        // The number tells two authorities of one mesh apart, for people and in errors: those of one name are told from each other by a bad
        // signature alone.
        params.distinguished_name.push(DnType::CommonName, format!("{mesh} mesh authority {:08x}", rand::random::<u32>()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        validity.set(&mut params)?;
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    /// An authority that was written by [`PemPair::write`].
    ///
    /// # Errors
    /// Where certificate or key cannot be read, or do not belong together.
    pub fn from_pem(pair: &PemPair) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(&pair.key)?;
        let der = first_certificate(&pair.certificate)?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|e| IdentityError::Unreadable(e.to_string()))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(PkiError::KeyMismatch);
        }
        Ok(Self { certificate: pair.certificate.clone(), issuer: Issuer::from_ca_cert_der(&der, key)? })
    }

    /// Reads `DIR/ca.pem` and `DIR/ca.key`.
    ///
    /// # Errors
    /// As [`Authority::from_pem`], or a file that cannot be read.
    pub fn load(dir: &Path) -> Result<Self, PkiError> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).map_err(|source| PkiError::File { path, source })
        };
        Self::from_pem(&PemPair { certificate: read("ca.pem")?, key: read("ca.key")? })
    }

    /// The certificate and the secret key, to be written as `ca`.
    #[must_use]
    pub fn to_pem(&self) -> PemPair {
        PemPair { certificate: self.certificate.clone(), key: self.issuer.key().serialize_pem() }
    }

    /// The certificate alone: what brokers trust (`cafile`).
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for broker `name` of `mesh`. `sans` are further addresses or host names to stand in it, for people and for other
    /// programs: brokers of the mesh do not look at them.
    ///
    /// # Errors
    /// A name or address that cannot stand in a certificate; a date out of range.
    pub fn issue_broker(&self, mesh: &str, name: &str, sans: &[String], validity: Validity) -> Result<PemPair, PkiError> {
        let identity = Identity::derive(mesh, name)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![SanType::URI(identity.uri().try_into()?), SanType::DnsName(DIAL_NAME.try_into()?)];
        for san in sans {
            params.subject_alt_names.push(parse_san(san)?);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        validity.set(&mut params)?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(PemPair { certificate, key: key.serialize_pem() })
    }
}

/// What `certs show` tells of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The subject, as text.
    pub subject: String,
    /// Who signed it, as text.
    pub issuer: String,
    /// Mesh and broker, where it is a broker's.
    pub identity: Option<Identity>,
    /// Whether it may sign others.
    pub authority: bool,
    /// Every subject alternative name, as `DNS:x`, `URI:x`, `IP:x`.
    pub sans: Vec<String>,
    /// From when until when.
    pub validity: Validity,
    /// Whole days left; negative once expired.
    pub days_left: i64,
}

/// Every certificate in a PEM text.
///
/// # Errors
/// Where there is none, or one cannot be read.
pub fn inspect(pem: &str) -> Result<Vec<Summary>, PkiError> {
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|_| PkiError::NoCertificate)?;
    if found.is_empty() {
        return Err(PkiError::NoCertificate);
    }
    found.iter().map(summary).collect()
}

fn summary(der: &CertificateDer<'_>) -> Result<Summary, PkiError> {
    let unreadable = |e: String| PkiError::Identity(IdentityError::Unreadable(e));
    let (_, parsed) = X509Certificate::from_der(der).map_err(|e| unreadable(e.to_string()))?;
    let names = parsed.subject_alternative_name().map_err(|e| unreadable(e.to_string()))?;
    let sans = names.iter().flat_map(|n| &n.value.general_names).map(|name| match name {
        GeneralName::DNSName(name) => format!("DNS:{name}"),
        GeneralName::URI(uri) => format!("URI:{uri}"),
        GeneralName::IPAddress(octets) => match (<[u8; 4]>::try_from(*octets), <[u8; 16]>::try_from(*octets)) {
            (Ok(v4), _) => format!("IP:{}", std::net::Ipv4Addr::from(v4)),
            (_, Ok(v6)) => format!("IP:{}", std::net::Ipv6Addr::from(v6)),
            _ => format!("IP:{octets:02x?}"),
        },
        other => format!("{other:?}"),
    });
    let seconds = |at: x509_parser::time::ASN1Time| Duration::from_secs(u64::try_from(at.timestamp()).unwrap_or(0));
    let validity = Validity { not_before: seconds(parsed.validity().not_before), not_after: seconds(parsed.validity().not_after) };
    let left = i128::from(validity.not_after.as_secs()) - i128::from(clock::unix_time().as_secs());
    Ok(Summary {
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        identity: Identity::of_certificate(der).ok(),
        authority: parsed.is_ca(),
        sans: sans.collect(),
        validity,
        days_left: i64::try_from(left.div_euclid(86_400)).unwrap_or(i64::MAX),
    })
}

fn first_certificate(pem: &str) -> Result<CertificateDer<'static>, PkiError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| PkiError::NoCertificate)
}

fn parse_san(san: &str) -> Result<SanType, PkiError> {
    if let Ok(address) = san.parse() {
        return Ok(SanType::IpAddress(address));
    }
    // rustls knows what a host name is; a certificate with another one would be refused as a whole.
    let refused = || PkiError::San(san.to_owned());
    rustls::pki_types::DnsName::try_from(san.strip_prefix("*.").unwrap_or(san)).map_err(|_| refused())?;
    Ok(SanType::DnsName(san.try_into().map_err(|_| refused())?))
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => PkiError::Exists(path.to_owned()),
        _ => PkiError::File { path: path.to_owned(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_certificate_tells_who_it_is_for() {
        let authority = Authority::create("factory", Validity::days(10)).unwrap();
        let sans = ["10.0.0.1".to_owned(), "::1".to_owned(), "mec-1.example".to_owned()];
        let pair = authority.issue_broker("factory", "mec-1", &sans, Validity::days(30)).unwrap();
        let [shown] = inspect(&pair.certificate).unwrap().try_into().unwrap();
        assert_eq!(shown.identity, Some(Identity::derive("factory", "mec-1").unwrap()));
        let [authority_shown] = inspect(authority.certificate()).unwrap().try_into().unwrap();
        assert_eq!((shown.subject.as_str(), &shown.issuer), ("CN=mec-1", &authority_shown.subject));
        assert!(shown.issuer.starts_with("CN=factory mesh authority "), "{}", shown.issuer);
        assert!(!shown.authority && (29..=30).contains(&shown.days_left), "{shown:?}");
        let id = crate::ids::BrokerId::derive("factory", "mec-1");
        assert_eq!(
            shown.sans,
            [
                &format!("URI:mqtt-st://factory/broker/{id}"),
                "DNS:broker.mqtt-st.internal",
                "IP:10.0.0.1",
                "IP:::1",
                "DNS:mec-1.example"
            ]
        );
        assert!(authority_shown.authority && authority_shown.identity.is_none());
    }

    #[test]
    fn an_authority_survives_being_written_and_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("factory", Validity::days(10)).unwrap();
        let (_, key) = authority.to_pem().write(dir.path(), "ca").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(matches!(authority.to_pem().write(dir.path(), "ca"), Err(PkiError::Exists(_))));
        let again = Authority::load(dir.path()).unwrap();
        let issued = again.issue_broker("factory", "b", &[], Validity::days(1)).unwrap();
        assert_eq!(inspect(&issued.certificate).unwrap()[0].issuer, inspect(authority.certificate()).unwrap()[0].subject);

        let other = Authority::create("factory", Validity::days(10)).unwrap().to_pem();
        let mixed = PemPair { certificate: authority.to_pem().certificate, key: other.key };
        assert!(matches!(Authority::from_pem(&mixed), Err(PkiError::KeyMismatch)));
    }

    #[test]
    fn what_no_certificate_can_carry_is_refused() {
        let authority = Authority::create("factory", Validity::days(10)).unwrap();
        let issue = |mesh: &str, name: &str, san: &str| authority.issue_broker(mesh, name, &[san.to_owned()], Validity::days(1));
        assert!(matches!(issue("factory", "a/b", "x"), Err(PkiError::Identity(IdentityError::Name(_)))));
        assert!(matches!(issue("", "a", "x"), Err(PkiError::Identity(IdentityError::Name(_)))));
        for san in ["", "a b", "ä.example", "x..y"] {
            assert!(matches!(issue("factory", "a", san), Err(PkiError::San(_))), "{san:?}");
        }
        let never = Validity { not_before: Duration::ZERO, not_after: Duration::MAX };
        assert!(matches!(authority.issue_broker("factory", "a", &[], never), Err(PkiError::Date(_))));
        assert!(matches!(inspect("nothing"), Err(PkiError::NoCertificate)));
    }
}

//! Makes the certificates of a mesh: one authority, one certificate a broker, by the profile of `certs/README.md`; renews them, signs requests
//! for them, takes them back. Used by the `certs` command and, in memory, by `demo`; a serving broker only reads what was made (see
//! [`super::tls`]).
//!
//! Invariants: what is signed is built anew from the names that it may carry, never copied from what was asked for. Serial numbers are
//! random. Nothing is written over but by a renewal or a new revocation list, and these appear whole or not at all. Keys have mode 0600.

mod files;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use time::OffsetDateTime;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{ExtendedKeyUsage, GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

pub use self::files::{Replacement, write_new};
pub use self::summary::{Summary, inspect};

use super::identity::{DIAL_NAME, Identity, IdentityError, check_name};
use crate::clock;
use crate::crl::{CrlError, RevocationList, Serial, since_epoch};

/// Days that an authority lasts unless asked otherwise.
pub const AUTHORITY_DAYS_DEFAULT: u32 = 3_650;
/// Days that a broker's certificate, or a revocation list, lasts unless asked otherwise.
pub const BROKER_DAYS_DEFAULT: u32 = 397;

/// What stands between the mesh's name and a number in the name of an authority.
const AUTHORITY_WORDS: &str = " mesh authority ";

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
    /// A certificate that cannot be renewed: an authority's, or one with names that brokers' do not have.
    #[error("it is no broker's certificate as `certs broker` makes them: {0}")]
    NotRenewable(String),
    /// A request that is not signed.
    #[error("the request cannot be signed: {0}")]
    Request(String),
    /// A name that belongs to another mesh.
    #[error("it is for mesh {asked:?}; this authority is mesh {ours:?}'s")]
    OtherMesh {
        /// In the request or certificate.
        asked: String,
        /// In the authority's name.
        ours: String,
    },
    /// A certificate of somebody else.
    #[error("it was issued by {issuer}; this authority is {ours}")]
    OtherIssuer {
        /// Who signed it, or says so.
        issuer: String,
        /// The authority at hand.
        ours: String,
    },
    /// A certificate that was taken back is not renewed.
    #[error("its certificate {0} is revoked: make a new one with `certs broker` or `certs sign`")]
    Revoked(Serial),
    /// A revocation list.
    #[error(transparent)]
    Crl(#[from] CrlError),
    /// Two at the same file.
    #[error("{0} is there: another `certs` is at work, or one was interrupted; remove it in that case")]
    Busy(PathBuf),
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

    /// Of a certificate. Seconds only.
    pub(super) fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self { not_before: since_epoch(validity.not_before), not_after: since_epoch(validity.not_after) }
    }

    /// How long it lasts.
    pub(super) fn life(self) -> Duration {
        self.not_after.saturating_sub(self.not_before)
    }

    fn set(self, params: &mut CertificateParams) -> Result<(), PkiError> {
        params.not_before = date(self.not_before)?;
        params.not_after = date(self.not_after)?;
        Ok(())
    }
}

fn date(at: Duration) -> Result<OffsetDateTime, PkiError> {
    let seconds = i64::try_from(at.as_secs()).map_err(|_| PkiError::Date(at.as_secs()))?;
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| PkiError::Date(at.as_secs()))
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
        self.write_as(dir, stem, "pem")
    }

    /// The same, with another extension than `pem`: a request's.
    ///
    /// # Errors
    /// As [`PemPair::write`].
    pub fn write_as(&self, dir: &Path, stem: &str, extension: &str) -> Result<(PathBuf, PathBuf), PkiError> {
        std::fs::create_dir_all(dir).map_err(|source| PkiError::File { path: dir.to_owned(), source })?;
        let (certificate, key) = (dir.join(format!("{stem}.{extension}")), dir.join(format!("{stem}.key")));
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
        params.distinguished_name.push(DnType::CommonName, format!("{mesh}{AUTHORITY_WORDS}{:08x}", rand::random::<u32>()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        validity.set(&mut params)?;
        params.serial_number = Some(new_serial());
        let key = new_key()?;
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
        let parsed = parse(&der)?;
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
        let key = new_key()?;
        let certificate = self.certify(Holder::new(mesh, name, sans)?, &key, validity)?;
        Ok(PemPair { certificate, key: key.serialize_pem() })
    }

    /// A broker's certificate once more: same broker, same names, same key unless `new_key` is given, other dates. The old one may be of
    /// another authority, which is how a mesh changes to this one; `list` is what this authority has taken back.
    ///
    /// # Errors
    /// A certificate that is no broker's, is of another mesh or was taken back.
    pub fn renew(
        &self,
        certificate: &str,
        new_key: Option<&KeyPair>,
        list: Option<&RevocationList>,
        validity: Validity,
    ) -> Result<String, PkiError> {
        let der = first_certificate(certificate)?;
        let old = parse(&der)?;
        let serial = Serial::from_bytes(old.raw_serial());
        if list.is_some_and(|list| list.revoked_at(&serial).is_some()) && self.check_issued(&old).is_ok() {
            return Err(PkiError::Revoked(serial));
        }
        if old.is_ca() {
            return Err(PkiError::NotRenewable("it is an authority".to_owned()));
        }
        let names = old.subject_alternative_name().map_err(|error| PkiError::NotRenewable(error.to_string()))?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let holder = Holder::read(old.subject(), names).map_err(PkiError::NotRenewable)?;
        self.check_mesh(&holder)?;
        match new_key {
            Some(key) => self.certify(holder, key, validity),
            None => self.certify(holder, &SubjectPublicKeyInfo::from_der(old.public_key().raw)?, validity),
        }
    }

    /// A certificate for whoever made this request (RFC 2986), with its name. What it asks for is checked, and the certificate is built anew.
    ///
    /// # Errors
    /// [`PkiError::Request`], [`PkiError::OtherMesh`]: anything but a request for one broker of this mesh, signed with the broker's key.
    pub fn sign(&self, request: &str, validity: Validity) -> Result<(String, String), PkiError> {
        let refused = |why: &str| PkiError::Request(why.to_owned());
        let der = CertificateSigningRequestDer::from_pem_slice(request.as_bytes())
            .map_err(|_| refused("no PEM certificate request found in it"))?;
        let (rest, asked) = X509CertificationRequest::from_der(&der).map_err(|error| PkiError::Request(error.to_string()))?;
        if !rest.is_empty() {
            return Err(refused("something follows it"));
        }
        asked.verify_signature().map_err(|_| refused("it is not signed with the key that it is for"))?;
        let mut names = Vec::new();
        for extension in asked.requested_extensions().into_iter().flatten() {
            match extension {
                ParsedExtension::SubjectAlternativeName(found) => names.extend(&found.general_names),
                ParsedExtension::BasicConstraints(asked) if asked.ca => return Err(refused("it asks for an authority")),
                ParsedExtension::KeyUsage(usage) if usage.key_cert_sign() || usage.crl_sign() => {
                    return Err(refused("it asks for the right to sign certificates or revocation lists"));
                }
                ParsedExtension::ExtendedKeyUsage(usage) if !is_of_broker(usage) => {
                    return Err(refused("it asks for an extended key usage beyond serverAuth and clientAuth"));
                }
                ParsedExtension::BasicConstraints(_) | ParsedExtension::KeyUsage(_) | ParsedExtension::ExtendedKeyUsage(_) => {}
                ParsedExtension::SubjectKeyIdentifier(_) => {}
                _ => return Err(refused("it asks for an extension that no broker's certificate has")),
            }
        }
        let info = &asked.certification_request_info;
        let holder = Holder::read(&info.subject, names).map_err(PkiError::Request)?;
        self.check_mesh(&holder)?;
        let (name, key) = (holder.name.clone(), SubjectPublicKeyInfo::from_der(info.subject_pki.raw)?);
        Ok((name, self.certify(holder, &key, validity)?))
    }

    /// The next revocation list: what `present` holds, and `more`, from now on. PEM. It is to be followed by another before `validity` ends.
    ///
    /// # Errors
    /// A present list that is not this authority's; an authority that may not sign lists.
    pub fn revocation_list(
        &self,
        present: Option<&RevocationList>,
        more: &[Serial],
        validity: Validity,
    ) -> Result<String, PkiError> {
        let der = first_certificate(&self.certificate)?;
        let authority = parse(&der)?;
        let usages = self.issuer.key_usages();
        if !usages.is_empty() && !usages.contains(&KeyUsagePurpose::CrlSign) {
            return Err(CrlError::NotSigner(authority.subject().to_string()).into());
        }
        if let Some(list) = present
            && !list.is_of(std::slice::from_ref(&der))?
        {
            return Err(PkiError::OtherIssuer { issuer: list.issuer.clone(), ours: authority.subject().to_string() });
        }
        let mut revoked = present.map(|list| list.revoked.clone()).unwrap_or_default();
        for serial in more {
            if revoked.iter().all(|one| one.serial != *serial) {
                revoked.push(crate::crl::Revoked { serial: serial.clone(), at: clock::unix_time() });
            }
        }
        let entry = |one: &crate::crl::Revoked| {
            Ok(RevokedCertParams {
                serial_number: SerialNumber::from_slice(&one.serial.to_bytes()),
                revocation_time: date(one.at)?,
                reason_code: None,
                invalidity_date: None,
            })
        };
        let number = present.and_then(|list| list.number.clone()).unwrap_or_default() + 1u8;
        let key_id = authority.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(KeyIdMethod::PreSpecified(id.0.to_vec())),
            _ => None,
        });
        let list = CertificateRevocationListParams {
            this_update: date(validity.not_before)?,
            next_update: date(validity.not_after)?,
            crl_number: SerialNumber::from_slice(&number.to_bytes_be()),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect::<Result<_, PkiError>>()?,
            key_identifier_method: key_id.unwrap_or(KeyIdMethod::Sha256),
        };
        Ok(list.signed_by(&self.issuer)?.pem()?)
    }

    /// The serial number of a certificate that this authority has issued.
    ///
    /// # Errors
    /// A text without a certificate, or a certificate of somebody else.
    pub fn serial_of(&self, certificate: &str) -> Result<Serial, PkiError> {
        let der = first_certificate(certificate)?;
        let parsed = parse(&der)?;
        self.check_issued(&parsed)?;
        Ok(Serial::from_bytes(parsed.raw_serial()))
    }

    fn check_issued(&self, certificate: &X509Certificate<'_>) -> Result<(), PkiError> {
        let der = first_certificate(&self.certificate)?;
        let authority = parse(&der)?;
        let is_named = certificate.issuer().as_raw() == authority.subject().as_raw();
        if is_named && certificate.verify_signature(Some(authority.public_key())).is_ok() {
            return Ok(());
        }
        let forged = if is_named { " (but not with its key)" } else { "" };
        let issuer = format!("{}{forged}", certificate.issuer());
        Err(PkiError::OtherIssuer { issuer, ours: authority.subject().to_string() })
    }

    /// Ours says in its name which mesh it is for; others say nothing, and sign for any.
    fn check_mesh(&self, holder: &Holder) -> Result<(), PkiError> {
        let der = first_certificate(&self.certificate)?;
        let authority = parse(&der)?;
        let ours = common_name(authority.subject()).and_then(|name| Some(name.rsplit_once(AUTHORITY_WORDS)?.0));
        match ours {
            Some(ours) if ours != holder.identity.mesh => {
                Err(PkiError::OtherMesh { asked: holder.identity.mesh.clone(), ours: ours.to_owned() })
            }
            _ => Ok(()),
        }
    }

    fn certify(&self, holder: Holder, key: &impl rcgen::PublicKeyData, validity: Validity) -> Result<String, PkiError> {
        let mut params = holder.params()?;
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(new_serial());
        validity.set(&mut params)?;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }
}

/// A secret key of the kind that certificates here are made for: ECDSA P-256.
///
/// # Errors
/// Where the system has no randomness.
pub fn new_key() -> Result<KeyPair, PkiError> {
    Ok(KeyPair::generate()?)
}

/// A request for the certificate of broker `name` of `mesh` (RFC 2986), PEM, with its new key: for an authority whose key is elsewhere. The
/// pair's `certificate` is the request.
///
/// # Errors
/// A name or address that cannot stand in a certificate.
pub fn request(mesh: &str, name: &str, sans: &[String]) -> Result<PemPair, PkiError> {
    let key = new_key()?;
    let certificate = Holder::new(mesh, name, sans)?.params()?.serialize_request(&key)?.pem()?;
    Ok(PemPair { certificate, key: key.serialize_pem() })
}

/// Whose a certificate is, by all the names that stand in it.
struct Holder {
    identity: Identity,
    name: String,
    /// Further names.
    sans: Vec<SanType>,
}

impl Holder {
    fn new(mesh: &str, name: &str, sans: &[String]) -> Result<Self, PkiError> {
        let sans = sans.iter().map(|san| parse_san(san)).collect::<Result<_, _>>()?;
        Ok(Self { identity: Identity::derive(mesh, name)?, name: name.to_owned(), sans })
    }

    /// From what a certificate or a request holds: one broker, and besides it host names and addresses only.
    fn read<'a>(subject: &X509Name<'_>, names: impl IntoIterator<Item = &'a GeneralName<'a>>) -> Result<Self, String> {
        let (mut identity, mut sans) = (None, Vec::new());
        for name in names {
            match name {
                GeneralName::URI(uri) => {
                    let one = Identity::parse(uri).ok_or_else(|| format!("{uri:?} names no broker of a mesh"))?;
                    if identity.replace(one).is_some() {
                        return Err("it names several brokers".to_owned());
                    }
                }
                GeneralName::DNSName(DIAL_NAME) => {}
                GeneralName::DNSName(_) | GeneralName::IPAddress(_) => {
                    let text = name_text(name);
                    let text = text.split_once(':').map_or("", |(_, text)| text);
                    sans.push(parse_san(text).map_err(|error| error.to_string())?);
                }
                other => return Err(format!("{} is neither a host name nor an address", name_text(other).escape_debug())),
            }
        }
        let identity = identity.ok_or("it has no URI name mqtt-st://MESH/broker/ID")?;
        let name = common_name(subject).ok_or("its subject has no common name (CN), which is to be the broker's name")?;
        let expected = Identity::derive(&identity.mesh, name).map_err(|error| error.to_string())?;
        if expected != identity {
            return Err(format!("broker {name:?} of mesh {:?} is {}, and not {}", identity.mesh, expected.uri(), identity.uri()));
        }
        Ok(Self { identity, name: name.to_owned(), sans })
    }

    /// By the profile of `certs/README.md`.
    fn params(self) -> Result<CertificateParams, PkiError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.name);
        params.subject_alt_names = vec![SanType::URI(self.identity.uri().try_into()?), SanType::DnsName(DIAL_NAME.try_into()?)];
        params.subject_alt_names.extend(self.sans);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params)
    }
}

/// 127 random bits: never negative, never zero, never two alike (RFC 5280 section 4.1.2.2).
fn new_serial() -> SerialNumber {
    let number: u128 = rand::random();
    SerialNumber::from_slice(&(number >> 1 | 1 << 126).to_be_bytes())
}

fn common_name<'a>(subject: &'a X509Name<'_>) -> Option<&'a str> {
    let mut names = subject.iter_common_name().map(|name| name.as_str().ok());
    names.next().flatten().filter(|_| names.next().is_none())
}

fn is_of_broker(usage: &ExtendedKeyUsage<'_>) -> bool {
    let more = [usage.any, usage.code_signing, usage.email_protection, usage.time_stamping, usage.ocsp_signing];
    !more.contains(&true) && usage.other.is_empty()
}

fn name_text(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => format!("DNS:{name}"),
        GeneralName::URI(uri) => format!("URI:{uri}"),
        GeneralName::IPAddress(octets) => match (<[u8; 4]>::try_from(*octets), <[u8; 16]>::try_from(*octets)) {
            (Ok(v4), _) => format!("IP:{}", std::net::Ipv4Addr::from(v4)),
            (_, Ok(v6)) => format!("IP:{}", std::net::Ipv6Addr::from(v6)),
            _ => format!("IP:{octets:02x?}"),
        },
        other => format!("{other:?}"),
    }
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PkiError> {
    let parsed = X509Certificate::from_der(der).map_err(|error| IdentityError::Unreadable(error.to_string()))?;
    Ok(parsed.1)
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
    fn a_renewed_certificate_says_the_same_under_another_number() {
        let authority = Authority::create("factory", Validity::days(10)).unwrap();
        let sans = ["10.0.0.1".to_owned(), "mec-1.example".to_owned()];
        let pair = authority.issue_broker("factory", "mec-1", &sans, Validity::days(1)).unwrap();
        let next = Authority::create("factory", Validity::days(10)).unwrap();
        let show = |pem: &str| inspect(pem).unwrap().remove(0);
        let old = show(&pair.certificate);
        for signer in [&authority, &next] {
            let renewed = signer.renew(&pair.certificate, None, None, Validity::days(30)).unwrap();
            let new = show(&renewed);
            assert_eq!((&new.identity, &new.sans, &new.subject), (&old.identity, &old.sans, &old.subject));
            assert!(new.serial != old.serial && new.days_left > old.days_left);
            // Another certificate with the same key: the old key still fits.
            let pem = PemPair { certificate: renewed, key: pair.key.clone() };
            assert!(super::super::tls::Credentials::of_authority(signer, &pem).unwrap().objection(clock::unix_time()).is_none());
        }
        let list = authority.revocation_list(None, &[old.serial], Validity::days(1)).unwrap();
        let list = crate::crl::read(&list).unwrap().remove(0);
        let renew = |signer: &Authority| signer.renew(&pair.certificate, None, Some(&list), Validity::days(1));
        assert!(matches!(renew(&authority), Err(PkiError::Revoked(_))));
        assert!(renew(&next).is_ok(), "numbers of another authority are others");
        let elsewhere = Authority::create("elsewhere", Validity::days(10)).unwrap();
        assert!(matches!(renew(&elsewhere), Err(PkiError::OtherMesh { .. })));
        assert!(matches!(authority.renew(next.certificate(), None, None, Validity::days(1)), Err(PkiError::NotRenewable(_))));
    }

    #[test]
    fn a_list_by_another_key_is_no_list() {
        let authority = Authority::create("factory", Validity::days(10)).unwrap();
        let der = first_certificate(authority.certificate()).unwrap();
        let issuer = Issuer::from_ca_cert_der(&der, KeyPair::generate().unwrap()).unwrap();
        let impostor = Authority { certificate: authority.certificate.clone(), issuer };
        let forged = impostor.revocation_list(None, &[], Validity::days(1)).unwrap();
        let forged = crate::crl::read(&forged).unwrap().remove(0);
        assert!(matches!(forged.is_of(std::slice::from_ref(&der)), Err(CrlError::Forged(_))));
        let next = authority.revocation_list(Some(&forged), &[], Validity::days(1));
        assert!(matches!(next, Err(PkiError::Crl(CrlError::Forged(_)))));
        let other = Authority::create("factory", Validity::days(10)).unwrap();
        let theirs = crate::crl::read(&other.revocation_list(None, &[], Validity::days(1)).unwrap()).unwrap().remove(0);
        assert_eq!(theirs.is_of(std::slice::from_ref(&der)), Ok(false));
        let next = authority.revocation_list(Some(&theirs), &[], Validity::days(1));
        assert!(matches!(next, Err(PkiError::OtherIssuer { .. })));
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

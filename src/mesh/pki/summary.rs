//! What people are told of a certificate.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{PkiError, Validity, name_text, parse};
use crate::clock;
use crate::crl::Serial;
use crate::mesh::identity::{Identity, IdentityError};

/// What `certs show` tells of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The subject, as text.
    pub subject: String,
    /// Who signed it, as text.
    pub issuer: String,
    /// Its number among those of its issuer.
    pub serial: Serial,
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
    let parsed = parse(der)?;
    let names = parsed.subject_alternative_name().map_err(|error| IdentityError::Unreadable(error.to_string()))?;
    let sans = names.iter().flat_map(|n| &n.value.general_names).map(name_text);
    let validity = Validity::of(&parsed);
    let left = i128::from(validity.not_after.as_secs()) - i128::from(clock::unix_time().as_secs());
    Ok(Summary {
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        serial: Serial::from_bytes(parsed.raw_serial()),
        identity: Identity::of_certificate(der).ok(),
        authority: parsed.is_ca(),
        sans: sans.collect(),
        validity,
        days_left: i64::try_from(left.div_euclid(86_400)).unwrap_or(i64::MAX),
    })
}

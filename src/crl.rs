//! Certificate revocation lists (RFC 5280 section 5), read: which authority takes back which certificates. Those of a mesh are made by
//! `mesh::pki`; all are enforced by webpki in every handshake, and once more at reloads.
//!
//! Invariants: a list that webpki could not use (forged, or of an authority that may not sign lists) is refused when it is read, because
//! webpki would refuse every peer for it. Of one issuer the newest list comes first: webpki takes the first that fits.
//!
//! Deviation from RFC 5280 section 6.3: a list that is out of date still counts, and a certificate on which no list says anything passes.
//! A mesh must not fall apart because nobody has made a new list; that it is late is warned of.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::num_bigint::BigUint;
use x509_parser::prelude::{CertificateRevocationList, FromDer, ParsedExtension, X509Certificate};
use x509_parser::time::ASN1Time;

/// Longest serial number, bytes (RFC 5280 section 4.1.2.2).
pub const SERIAL_BYTES_MAX: usize = 20;

/// Why a revocation list is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrlError {
    /// Not PEM.
    #[error("no PEM revocation list (X509 CRL) found in it; `openssl crl -inform DER -in FILE` makes PEM of the other form")]
    Missing,
    /// Not as RFC 5280 has it.
    #[error("the revocation list cannot be read: {0}")]
    Unreadable(String),
    /// An authority that we know has another key.
    #[error("the revocation list of {0} is not signed by the authority of that name")]
    Forged(String),
    /// An authority without `cRLSign`.
    #[error("{0} may not sign revocation lists: its certificate lacks the key usage cRLSign; make a new authority with `certs ca`")]
    NotSigner(String),
    /// No serial number.
    #[error("{0:?} is not a serial number: 1 to {SERIAL_BYTES_MAX} bytes in hexadecimal digits, as `certs show` prints it")]
    Serial(String),
}

/// A certificate's serial number. Shows as `openssl x509 -serial` does; colons and `0x` are read too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial(BigUint);

impl Serial {
    /// From its big-endian bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(BigUint::from_bytes_be(bytes))
    }

    /// Big-endian, without leading zeros.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes_be()
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

impl FromStr for Serial {
    type Err = CrlError;

    fn from_str(text: &str) -> Result<Self, CrlError> {
        let digits = text.trim().trim_start_matches("0x").trim_start_matches("0X").replace(':', "");
        let good = (1..=2 * SERIAL_BYTES_MAX).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = BigUint::parse_bytes(digits.as_bytes(), 16).filter(|number| good && *number != BigUint::ZERO);
        number.map(Self).ok_or_else(|| CrlError::Serial(text.to_owned()))
    }
}

/// One certificate that was taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Whose.
    pub serial: Serial,
    /// When, since the Unix epoch.
    pub at: Duration,
}

/// What one authority has taken back.
#[derive(Clone, Debug)]
pub struct RevocationList {
    /// The authority, as text.
    pub issuer: String,
    /// Which list of this authority's it is; grows with each. `None` where the authority does not count.
    pub number: Option<BigUint>,
    /// When it was made, since the Unix epoch.
    pub made: Duration,
    /// When the next one is to be expected at the latest, since the Unix epoch.
    pub next: Option<Duration>,
    /// In the list's order.
    pub revoked: Vec<Revoked>,
    issuer_der: Vec<u8>,
    der: CertificateRevocationListDer<'static>,
}

/// Every list in a PEM text: of one issuer the newest first.
///
/// # Errors
/// Where there is none, or one cannot be read.
pub fn read(pem: &str) -> Result<Vec<RevocationList>, CrlError> {
    let found: Vec<CertificateRevocationListDer<'static>> =
        CertificateRevocationListDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|_| CrlError::Missing)?;
    let mut lists: Vec<_> = found.into_iter().map(RevocationList::parse).collect::<Result<_, _>>()?;
    if lists.is_empty() {
        return Err(CrlError::Missing);
    }
    lists.sort_by(|a, b| (&b.number, b.made).cmp(&(&a.number, a.made)));
    Ok(lists)
}

impl RevocationList {
    fn parse(der: CertificateRevocationListDer<'static>) -> Result<Self, CrlError> {
        let (rest, list) = CertificateRevocationList::from_der(&der).map_err(|error| CrlError::Unreadable(error.to_string()))?;
        if !rest.is_empty() {
            return Err(CrlError::Unreadable(format!("{} bytes follow it", rest.len())));
        }
        let number = list.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::CRLNumber(number) => Some(number.clone()),
            _ => None,
        });
        let revoked = list
            .iter_revoked_certificates()
            .map(|one| Revoked { serial: Serial(one.user_certificate.clone()), at: since_epoch(one.revocation_date) });
        Ok(Self {
            issuer: list.issuer().to_string(),
            number,
            made: since_epoch(list.last_update()),
            next: list.next_update().map(since_epoch),
            revoked: revoked.collect(),
            issuer_der: list.issuer().as_raw().to_vec(),
            der: der.clone(),
        })
    }

    /// As it is handed to webpki.
    pub(crate) fn der(&self) -> CertificateRevocationListDer<'static> {
        self.der.clone()
    }

    /// When `serial` was taken back, since the Unix epoch.
    #[must_use]
    pub fn revoked_at(&self, serial: &Serial) -> Option<Duration> {
        self.revoked.iter().find(|one| one.serial == *serial).map(|one| one.at)
    }

    /// Whether one of `authorities` is named as its issuer. A list of nobody that is trusted takes nothing back.
    ///
    /// # Errors
    /// An authority of that name that did not sign it, or that may not.
    pub fn is_of(&self, authorities: &[CertificateDer<'_>]) -> Result<bool, CrlError> {
        let mut is_known = false;
        for authority in authorities {
            let Ok((_, authority)) = X509Certificate::from_der(authority) else { continue };
            if authority.subject().as_raw() != self.issuer_der {
                continue;
            }
            is_known = true;
            let usage = authority.key_usage().ok().flatten();
            if usage.is_some_and(|usage| !usage.value.crl_sign()) {
                return Err(CrlError::NotSigner(self.issuer.clone()));
            }
            let (_, list) =
                CertificateRevocationList::from_der(&self.der).map_err(|error| CrlError::Unreadable(error.to_string()))?;
            list.verify_signature(authority.public_key()).map_err(|_| CrlError::Forged(self.issuer.clone()))?;
        }
        Ok(is_known)
    }
}

/// Seconds only; what lies before the epoch is the epoch.
pub(crate) fn since_epoch(at: ASN1Time) -> Duration {
    Duration::from_secs(u64::try_from(at.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_read_as_they_are_shown() {
        for (text, shown) in
            [("0A1b", "0A1B"), ("0x7", "07"), ("0a:1B", "0A1B"), ("00ff", "FF"), (&"7f".repeat(20), &"7F".repeat(20))]
        {
            let serial: Serial = text.parse().unwrap();
            assert_eq!(serial.to_string(), shown);
            assert_eq!(shown.parse(), Ok(serial));
        }
        for odd in ["", "0", "00", "g", "-1", "+1", "1 2", &"7f".repeat(21)] {
            assert_eq!(odd.parse::<Serial>(), Err(CrlError::Serial(odd.to_owned())));
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        assert_eq!(read("nothing").unwrap_err(), CrlError::Missing);
        assert_eq!(read("-----BEGIN X509 CRL-----\n!\n-----END X509 CRL-----\n").unwrap_err(), CrlError::Missing);
        let odd = read("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n").unwrap_err();
        assert!(matches!(odd, CrlError::Unreadable(_)), "{odd}");
    }
}

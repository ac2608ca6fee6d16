//! Who a certificate says that its holder is: the URI SAN `mqtt-st://MESH/broker/ID`. That a trusted authority signed it is webpki's
//! business, before this; that mesh and id are the expected ones is [`super::tls`]'s and the handshake's, after it.
//!
//! Names of meshes and of brokers stand in URIs and in file names, so both keep to letters, digits, `.`, `_` and `-`.

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::ids::BrokerId;

/// The DNS SAN that every broker certificate carries: a dialler asks for it, whatever address it dials. It says no more than "a broker of
/// some mesh"; which mesh and which broker stands in the URI SAN.
pub const DIAL_NAME: &str = "broker.mqtt-st.internal";
/// Longest name of a mesh or of a broker, bytes.
pub const NAME_BYTES_MAX: usize = 63;

const SCHEME: &str = "mqtt-st://";

/// What a certificate says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The mesh.
    pub mesh: String,
    /// The broker in it.
    pub id: BrokerId,
}

/// Why a certificate names no broker.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IdentityError {
    /// Not an X.509 certificate, or one whose subject alternative names cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    /// Not issued by `certs broker`.
    #[error("the certificate has no URI name mqtt-st://MESH/broker/ID: it was not made for a broker (see `certs broker`)")]
    NoBroker,
    /// More than one broker.
    #[error("the certificate names several brokers")]
    Ambiguous,
    /// See [`check_name`].
    #[error("{0:?} is not a name: 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-', the first not '.'")]
    Name(String),
}

impl Identity {
    /// The identity of broker `name` in `mesh`.
    ///
    /// # Errors
    /// A name that [`check_name`] refuses.
    pub fn derive(mesh: &str, name: &str) -> Result<Self, IdentityError> {
        check_name(mesh)?;
        check_name(name)?;
        Ok(Self { mesh: mesh.to_owned(), id: BrokerId::derive(mesh, name) })
    }

    /// The URI SAN.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/broker/{}", self.mesh, self.id)
    }

    /// Reads the URI SAN of an end-entity certificate.
    ///
    /// # Errors
    /// Where there is not exactly one.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| IdentityError::Unreadable(e.to_string()))?;
        let names = parsed.subject_alternative_name().map_err(|e| IdentityError::Unreadable(e.to_string()))?;
        let mut found = names.iter().flat_map(|n| &n.value.general_names).filter_map(|name| match name {
            GeneralName::URI(uri) => Self::parse(uri),
            _ => None,
        });
        match (found.next(), found.next()) {
            (Some(identity), None) => Ok(identity),
            (Some(_), Some(_)) => Err(IdentityError::Ambiguous),
            (None, _) => Err(IdentityError::NoBroker),
        }
    }

    /// Reads what [`Identity::uri`] writes, and nothing else.
    pub(super) fn parse(uri: &str) -> Option<Self> {
        let (mesh, id) = uri.strip_prefix(SCHEME)?.split_once("/broker/")?;
        check_name(mesh).ok()?;
        // Exactly the form that `uri` writes: one broker never has two spellings.
        let id: BrokerId = id.parse().ok().filter(|parsed: &BrokerId| parsed.to_string() == id)?;
        Some(Self { mesh: mesh.to_owned(), id })
    }
}

/// Whether `name` may name a mesh or a broker.
///
/// # Errors
/// [`IdentityError::Name`] with the name.
pub fn check_name(name: &str) -> Result<(), IdentityError> {
    let good = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if good { Ok(()) } else { Err(IdentityError::Name(name.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_read_back_and_nothing_else_passes() {
        let identity = Identity::derive("factory", "mec-1").unwrap();
        assert_eq!(Identity::parse(&identity.uri()), Some(identity));
        for odd in [
            "mqtt-st://factory/broker/0",
            "mqtt-st://factory/broker/00000000000000AB",
            "mqtt-st://factory/broker/+0000000000000ab",
            "mqtt-st:///broker/00000000000000ab",
            "mqtt-st://a/b/broker/00000000000000ab",
            "mqtt-st://a/broker/00000000000000ab/x",
            "https://a/broker/00000000000000ab",
        ] {
            assert_eq!(Identity::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn names_keep_to_what_uris_and_files_take() {
        for good in ["a", "mec-1", "A_b.c", &"x".repeat(63)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", ".x", "a/b", "a b", "ä", "a\0", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}

//! The user name in a client's certificate: the common name of its subject, or the whole subject as RFC 4514 writes it (what Mosquitto calls
//! `use_identity_as_username` and `use_subject_as_username`).

use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// What of a subject is the user name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The first common name.
    CommonName,
    /// All of it.
    Whole,
}

/// The user name in the certificate `der`; none where it has none that a user name could be.
pub(super) fn user_name(der: &[u8], part: Part) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = match part {
        Part::CommonName => subject.iter_common_name().next()?.as_str().ok()?.to_owned(),
        Part::Whole => written(subject)?,
    };
    (!name.is_empty() && !name.contains(char::is_control)).then_some(name)
}

/// RFC 4514 section 2: the last part first.
fn written(subject: &X509Name<'_>) -> Option<String> {
    let mut text = String::new();
    let parts: Vec<_> = subject.iter_rdn().collect();
    for (place, part) in parts.into_iter().rev().enumerate() {
        for (number, attribute) in part.iter().enumerate() {
            text.push_str(match (place, number) {
                (0, 0) => "",
                (_, 0) => ",",
                _ => "+",
            });
            let oid = attribute.attr_type();
            match short_name(&oid.to_id_string()) {
                Some(name) => text.push_str(name),
                None => text.push_str(&oid.to_id_string()),
            }
            text.push('=');
            escape(attribute.as_str().ok()?, &mut text);
        }
    }
    Some(text)
}

/// RFC 4514 section 3, and what OpenSSL adds to it.
fn short_name(oid: &str) -> Option<&'static str> {
    Some(match oid {
        "2.5.4.3" => "CN",
        "2.5.4.4" => "SN",
        "2.5.4.5" => "serialNumber",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "street",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "2.5.4.12" => "title",
        "2.5.4.42" => "GN",
        "1.2.840.113549.1.9.1" => "emailAddress",
        "0.9.2342.19200300.100.1.25" => "DC",
        "0.9.2342.19200300.100.1.1" => "UID",
        _ => return None,
    })
}

/// RFC 4514 section 2.4.
fn escape(value: &str, text: &mut String) {
    let last = value.chars().count().saturating_sub(1);
    for (place, letter) in value.chars().enumerate() {
        let is_edge_space = letter == ' ' && (place == 0 || place == last);
        if matches!(letter, '"' | '+' | ',' | ';' | '<' | '>' | '\\') || is_edge_space || (letter == '#' && place == 0) {
            text.push('\\');
        }
        text.push(letter);
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(subject: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_written_as_openssl_does() {
        let der = certificate(&[
            (DnType::CountryName, "GB"),
            (DnType::OrganizationName, "Server, Inc."),
            (DnType::OrganizationalUnitName, " #1 "),
            (DnType::CommonName, "test client"),
        ]);
        assert_eq!(user_name(&der, Part::CommonName).as_deref(), Some("test client"));
        let whole = user_name(&der, Part::Whole);
        assert_eq!(whole.as_deref(), Some("CN=test client,OU=\\ #1\\ ,O=Server\\, Inc.,C=GB"));
    }

    #[test]
    fn what_cannot_be_a_user_name_is_none() {
        let der = certificate(&[(DnType::OrganizationName, "o")]);
        assert_eq!(user_name(&der, Part::CommonName), None);
        assert_eq!(user_name(&der, Part::Whole).as_deref(), Some("O=o"));
        for name in ["", "a\nb", "a\0b", "\u{7f}"] {
            let der = certificate(&[(DnType::CommonName, name)]);
            assert_eq!(user_name(&der, Part::CommonName), None, "{name:?}");
        }
        assert_eq!(user_name(b"no certificate", Part::Whole), None);
    }
}

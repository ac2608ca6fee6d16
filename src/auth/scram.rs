//! The server's side of SCRAM-SHA-256 (RFC 5802, RFC 7677), without channel binding: the client proves that it knows the password and hears
//! proof that we know of it; the password itself does not come over the wire. It costs us four HMACs.
//!
//! A user that there is not, or that has no SCRAM record, is asked like any other and fails at the end: who there is cannot be found out.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::access::Identity;
use super::password::{KEY_BYTES, Record, ScramKeys, hmac_sha256};
use super::users::Users;

/// The Authentication Method.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";
/// What a client may send of a nonce, bytes.
const NONCE_BYTES_MAX: usize = 256;

/// Why an exchange has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// A message that is not what RFC 5802, section 7 says.
    #[error("a SCRAM message that is malformed")]
    Malformed,
    /// The client insists on channel binding, or speaks for somebody else, or wants an extension that we do not know.
    #[error("a SCRAM message that asks for what is not offered")]
    NotOffered,
    /// Another password, or another nonce than ours.
    #[error("a SCRAM proof that is wrong")]
    Wrong,
}

/// An exchange of which the first message has come.
pub struct Scram {
    user: Option<(Arc<str>, Arc<Record>)>,
    keys: ScramKeys,
    /// `n,,` and its like, which the client must repeat.
    gs2_header: Box<str>,
    nonce: Box<str>,
    /// The client's first message without its header, and our answer.
    so_far: String,
}

impl fmt::Debug for Scram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scram").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Scram {
    /// Takes the client-first-message; gives the server-first-message, too.
    ///
    /// # Errors
    /// See [`ScramError`].
    pub fn begin(users: &Users, client_first: &[u8]) -> Result<(Self, String), ScramError> {
        let nonce = STANDARD.encode(rand::random::<[u8; 18]>());
        Self::begin_with(users, client_first, &nonce)
    }

    fn begin_with(users: &Users, client_first: &[u8], our_nonce: &str) -> Result<(Self, String), ScramError> {
        let text = std::str::from_utf8(client_first).map_err(|_| ScramError::Malformed)?;
        let mut fields = text.splitn(3, ',');
        let (flag, authzid) = (fields.next().unwrap_or_default(), fields.next().ok_or(ScramError::Malformed)?);
        let bare = fields.next().ok_or(ScramError::Malformed)?;
        match flag {
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(ScramError::NotOffered),
            _ => return Err(ScramError::Malformed),
        }
        let mut attributes = bare.split(',');
        let first = attributes.next().unwrap_or_default();
        if first.starts_with("m=") {
            return Err(ScramError::NotOffered);
        }
        let name = first.strip_prefix("n=").and_then(unescape).ok_or(ScramError::Malformed)?;
        let client_nonce = attributes.next().and_then(|attribute| attribute.strip_prefix("r=")).ok_or(ScramError::Malformed)?;
        let is_nonce = !client_nonce.is_empty()
            && client_nonce.len() <= NONCE_BYTES_MAX
            && client_nonce.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        if !is_nonce {
            return Err(ScramError::Malformed);
        }
        match authzid.strip_prefix("a=").map(unescape) {
            None if authzid.is_empty() => {}
            Some(Some(other)) if other == name => {}
            Some(Some(_)) => return Err(ScramError::NotOffered),
            _ => return Err(ScramError::Malformed),
        }
        let user = users.find(&name).map(|(name, record)| (Arc::clone(name), Arc::clone(record)));
        let keys = user.as_ref().and_then(|(_, record)| record.scram()).cloned();
        let user = if keys.is_some() { user } else { None };
        let like = || users.scram_decoy().and_then(Record::scram).map(|like| ScramKeys::decoy(&name, like));
        let keys = keys.or_else(like).ok_or(ScramError::NotOffered)?;
        let nonce = format!("{client_nonce}{our_nonce}");
        let server_first = format!("r={nonce},s={},i={}", STANDARD.encode(&keys.salt), keys.iterations);
        let gs2_header = format!("{flag},{authzid},").into();
        let so_far = format!("{bare},{server_first}");
        Ok((Self { user, keys, gs2_header, nonce: nonce.into(), so_far }, server_first))
    }

    /// Takes the client-final-message; gives who the client is and the server-final-message.
    ///
    /// # Errors
    /// See [`ScramError`].
    pub fn finish(self, client_final: &[u8]) -> Result<(Identity, String), ScramError> {
        let text = std::str::from_utf8(client_final).map_err(|_| ScramError::Malformed)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramError::Malformed)?;
        let proof = STANDARD.decode(proof).map_err(|_| ScramError::Malformed)?;
        let proof: [u8; KEY_BYTES] = proof.try_into().map_err(|_| ScramError::Malformed)?;
        let mut attributes = without_proof.split(',');
        let binding = attributes.next().and_then(|attribute| attribute.strip_prefix("c=")).ok_or(ScramError::Malformed)?;
        let nonce = attributes.next().and_then(|attribute| attribute.strip_prefix("r=")).ok_or(ScramError::Malformed)?;
        if binding != STANDARD.encode(self.gs2_header.as_bytes()) || nonce != &*self.nonce {
            return Err(ScramError::Wrong);
        }
        let message = format!("{},{without_proof}", self.so_far);
        let mut client_key = hmac_sha256(&self.keys.stored_key, message.as_bytes());
        client_key.iter_mut().zip(proof).for_each(|(byte, of_proof)| *byte ^= of_proof);
        let is_good = bool::from(Sha256::digest(client_key).ct_eq(&self.keys.stored_key));
        match self.user {
            Some((name, record)) if is_good => {
                let signature = hmac_sha256(&self.keys.server_key, message.as_bytes());
                Ok((Identity::User { name, record: Some(record) }, format!("v={}", STANDARD.encode(signature))))
            }
            _ => Err(ScramError::Wrong),
        }
    }
}

/// RFC 5802, section 5.1: `,` and `=` in names are written `=2C` and `=3D`.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('=');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (sign, rest) = part.split_at_checked(2)?;
        name.push(match sign {
            "2C" => ',',
            "3D" => '=',
            _ => return None,
        });
        name.push_str(rest);
    }
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Hash;

    /// RFC 7677, section 3.
    const USERS: &str = "user:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
    const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const OUR_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const CLIENT_FINAL: &str =
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    fn users() -> Users {
        Users::parse(USERS.as_bytes()).unwrap()
    }

    fn begun() -> Scram {
        Scram::begin_with(&users(), CLIENT_FIRST.as_bytes(), OUR_NONCE).unwrap().0
    }

    #[test]
    fn the_exchange_of_rfc_7677() {
        let (scram, server_first) = Scram::begin_with(&users(), CLIENT_FIRST.as_bytes(), OUR_NONCE).unwrap();
        assert_eq!(server_first, "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
        let (identity, server_final) = scram.finish(CLIENT_FINAL.as_bytes()).unwrap();
        assert_eq!((identity.user(), &*server_final), (Some("user"), "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
    }

    #[test]
    fn first_messages_that_are_not_taken() {
        for (message, error) in [
            ("", ScramError::Malformed),
            ("n", ScramError::Malformed),
            ("n,,", ScramError::Malformed),
            ("n,,n=user", ScramError::Malformed),
            ("n,,n=user,r=", ScramError::Malformed),
            ("n,,n=,r=abc", ScramError::Malformed),
            ("n,,n=us=2,r=abc", ScramError::Malformed),
            ("n,,n=us=2X,r=abc", ScramError::Malformed),
            ("n,,r=abc,n=user", ScramError::Malformed),
            ("n,,n=user,r=a\u{e4}", ScramError::Malformed),
            ("x,,n=user,r=abc", ScramError::Malformed),
            ("n,b=x,n=user,r=abc", ScramError::Malformed),
            ("p=tls-unique,,n=user,r=abc", ScramError::NotOffered),
            ("n,a=other,n=user,r=abc", ScramError::NotOffered),
            ("n,,m=x,n=user,r=abc", ScramError::NotOffered),
        ] {
            assert_eq!(Scram::begin(&users(), message.as_bytes()).unwrap_err(), error, "{message:?}");
        }
        assert!(Scram::begin(&users(), b"n,,n=\xff,r=abc").is_err());
        assert!(Scram::begin(&users(), format!("n,,n=user,r={}", "x".repeat(257)).as_bytes()).is_err());
        assert!(Scram::begin(&users(), b"y,a=user,n=user,r=abc,ext=1").is_ok());
    }

    #[test]
    fn last_messages_that_prove_nothing() {
        assert!(begun().finish(CLIENT_FINAL.as_bytes()).is_ok());
        for (change, to, error) in [
            ("c=biws", "c=eSws", ScramError::Wrong),
            ("k0,", "k1,", ScramError::Wrong),
            ("k0,", "k0,x=y,", ScramError::Wrong),
            ("dHzb", "dHzc", ScramError::Wrong),
            ("dHzb", "d", ScramError::Malformed),
            (",p=", ",q=", ScramError::Malformed),
            ("c=biws,", "", ScramError::Malformed),
            ("r=rO", "s=rO", ScramError::Malformed),
        ] {
            let message = CLIENT_FINAL.replacen(change, to, 1);
            assert_eq!(begun().finish(message.as_bytes()).unwrap_err(), error, "{message}");
        }
    }

    #[test]
    fn a_user_that_is_not_there_is_asked_like_any_other() {
        let plain = format!("{USERS}\nplain:{}", Record::new(Hash::Sha512, None, b"x").unwrap());
        let users = Users::parse(plain.as_bytes()).unwrap();
        for name in ["nobody", "plain"] {
            let ask = || Scram::begin(&users, format!("n,,n={name},r=abc").as_bytes()).unwrap();
            let salt = |challenge: &str| challenge.split(',').nth(1).unwrap().to_owned();
            let ((scram, first), (_, second)) = (ask(), ask());
            assert_eq!(salt(&first), salt(&second), "a salt that changed would tell");
            let ours = users.scram_decoy().and_then(Record::scram).unwrap();
            let shown = first.split_once(',').unwrap().1.to_owned();
            assert_eq!(shown.len(), format!("s={},i={}", STANDARD.encode(&ours.salt), ours.iterations).len());
            assert!(shown.ends_with(&format!(",i={}", ours.iterations)), "a count that nobody else has would tell: {shown}");
            let nonce = first.split(',').next().unwrap();
            let proof = STANDARD.encode([0; KEY_BYTES]);
            assert_eq!(scram.finish(format!("c=biws,{nonce},p={proof}").as_bytes()).unwrap_err(), ScramError::Wrong);
        }
    }

    #[test]
    fn names_are_unescaped() {
        for (text, name) in
            [("user", Some("user")), ("a=2Cb=3D", Some("a,b=")), ("=2C=2C", Some(",,")), ("a=", None), ("a=2c", None), ("", None)]
        {
            assert_eq!(unescape(text).as_deref(), name, "{text}");
        }
    }
}

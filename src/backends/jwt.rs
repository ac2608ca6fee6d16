//! Users that show signed tokens (`[auth.jwt]`).
//!
//! A token is looked at where it is shown, for that asks nobody and costs less than the handshake of TLS. What it says counts until it expires: then the
//! client is closed, by `auth`'s [`Accounts`].
//!
//! Invariants:
//! - The algorithm is the key's, never the token's: a public key is not taken for a secret.
//! - A token without an end, or for another audience, is none.
//! - Whose key is taken away is closed as if his token had expired.
//!
//! Specification: RFC 7515 (JWS), RFC 7517 (JWK), RFC 7518 sections 3.2 to 3.4, RFC 7519, RFC 8037 (EdDSA), RFC 8725 (best practices).

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use arc_swap::ArcSwap;
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey, Validation};
use ring::{hmac, signature};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::RSAPublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::rows::Rows;
use super::{Answer, BackendError, is_name, key_of};
use crate::auth::{Account, Accounts, Granted, Seal, Term};
use crate::clock;
use crate::config::{AuthJwt, WithoutRules};

/// The longest token, bytes.
const TOKEN_BYTES_MAX: usize = 16 * 1_024;
/// Keys that are tried.
const KEYS_MAX: usize = 16;
/// Shorter ones of RSA are broken (NIST SP 800-131A), and longer ones take too long to look at; bits.
const RSA_BITS: RangeInclusive<usize> = 2_048..=8_192;
/// Of a point on P-256, uncompressed; bytes.
const EC_POINT_BYTES: usize = 65;
/// Of a public key of Ed25519; bytes.
const ED_KEY_BYTES: usize = 32;
/// Shorter secrets are guessed (RFC 7518 section 3.2), bytes.
const SECRET_BYTES_MIN: usize = 32;
/// A token is good this much before its time, for clocks differ; seconds.
const LEEWAY_SECONDS: u64 = 30;

/// See the module's page.
pub(super) struct Tokens {
    settings: AuthJwt,
    accounts: Arc<Accounts>,
    keys: ArcSwap<Vec<Key>>,
}

/// By which tokens are found good.
pub(super) struct Key {
    id: Option<String>,
    key: DecodingKey,
    validation: Validation,
    /// By which words are told apart that were found good by it.
    seal: Seal,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("keys", &self.keys.load().len()).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads the keys that `settings` name.
    pub(super) fn new(settings: AuthJwt, accounts: Arc<Accounts>) -> Result<Self, BackendError> {
        static INSTALLED: Once = Once::new();
        // Who is second finds the same there.
        INSTALLED.call_once(|| _ = PROVIDER.install_default());
        let keys = ArcSwap::from_pointee(read_keys(&settings)?);
        Ok(Self { settings, accounts, keys })
    }

    /// Reads the keys anew; they are put in force by [`Tokens::replace`].
    pub(super) fn read_anew(&self) -> Result<Vec<Key>, BackendError> {
        read_keys(&self.settings)
    }

    /// Tokens are found good by these from now on. Who is here by one that is no longer among them.
    pub(super) fn replace(&self, keys: Vec<Key>) -> HashSet<Arc<str>> {
        let seals = keys.iter().map(|key| key.seal).collect();
        self.keys.store(Arc::new(keys));
        self.accounts.lapse(clock::unix_time(), Some(&seals))
    }

    /// Looks at what a client shows that calls itself `name`, or nothing. What is no token at all is for others to look at.
    pub(super) fn read(&self, name: &str, password: &str) -> Answer {
        let token = if self.settings.in_user_name { name } else { password };
        if token.len() > TOKEN_BYTES_MAX {
            return Answer::Nobody;
        }
        let Ok(header) = jsonwebtoken::decode_header(token) else { return Answer::Nobody };
        let keys = self.keys.load_full();
        let could = |key: &&Key| {
            key.validation.algorithms.contains(&header.alg) && (header.kid.is_none() || key.id.is_none() || key.id == header.kid)
        };
        let claims = keys.iter().filter(could).find_map(|key| {
            let decoded = jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &key.validation);
            let decoded = decoded.inspect_err(|error| tracing::debug!(%error, "auth.jwt: a token is not good")).ok()?;
            Some((decoded.claims, key.seal))
        });
        let Some((claims, seal)) = claims else { return Answer::Refused };
        match self.admit(&claims, seal, token, name) {
            // They were changed meanwhile, and those who were here by then have been looked at.
            Ok(_) if !Arc::ptr_eq(&keys, &self.keys.load()) => self.read(name, password),
            Ok(answer) => answer,
            Err(problem) => {
                tracing::debug!(problem, "auth.jwt: a token is not good");
                Answer::Refused
            }
        }
    }

    fn admit(&self, claims: &Map<String, Value>, seal: Seal, token: &str, name: &str) -> Result<Answer, String> {
        let AuthJwt { in_user_name, user_claim, acl_claim, without_rules, .. } = &self.settings;
        let user = claims.get(user_claim).and_then(Value::as_str).filter(|user| is_name(user));
        let user = user.ok_or_else(|| format!("it has no user name in {user_claim}"))?;
        if !in_user_name && !name.is_empty() && name != user {
            return Err("it is another user's".to_owned());
        }
        let granted = match claims.get(acl_claim).filter(|_| !acl_claim.is_empty()) {
            Some(acl) => Granted::Rules(Arc::new(Rows::of_json(acl)?.rules("auth.jwt.acl_claim", user))),
            None if *without_rules == WithoutRules::Allow => Granted::AsListener,
            None => Granted::AsFile,
        };
        let end = claims.get("exp").and_then(Value::as_f64).and_then(|end| Duration::try_from_secs_f64(end).ok());
        let end = end.filter(|end| *end > clock::unix_time()).ok_or_else(|| "it has expired".to_owned())?;
        let key = key_of(user, &[token]);
        let term = Term { end, seal };
        let (name, account) = self.accounts.learn_until(&key, Account::new(None, granted), term, clock::now());
        Ok(Answer::Somebody { name, account, is_new: true })
    }
}

fn read_keys(settings: &AuthJwt) -> Result<Vec<Key>, BackendError> {
    let mut keys = Vec::new();
    if let Some(path) = &settings.key_file {
        let wrong = |problem: String| BackendError::Bad { key: "auth.jwt.key_file", path: path.clone(), problem };
        let text = std::fs::read(path).map_err(|source| unreadable("auth.jwt.key_file", path, source))?;
        let found = if text.trim_ascii_start().starts_with(b"{") { of_jwks(&text) } else { of_pem(&text) };
        for (id, algorithm, key) in found.map_err(wrong)? {
            if !is_usable(algorithm, &key) {
                return Err(wrong(format!(
                    "a key in it ({}) is damaged or too short; RSA has {} to {} bits",
                    id.as_deref().unwrap_or("without an id"),
                    RSA_BITS.start(),
                    RSA_BITS.end()
                )));
            }
            let seal = seal_of(&key);
            keys.push(Key { id, key, validation: validation(settings, algorithm), seal });
        }
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return Err(wrong(format!(
                "{} keys in it that verify RS256, ES256 or EdDSA; from 1 to {KEYS_MAX} are taken",
                keys.len()
            )));
        }
    }
    if let Some(path) = &settings.secret_file {
        let key = "auth.jwt.secret_file";
        let wrong = |problem: String| BackendError::Bad { key, path: path.clone(), problem };
        let text = super::read_secret(key, path)?;
        let secret = text.lines().next().unwrap_or_default().as_bytes();
        if secret.len() < SECRET_BYTES_MIN {
            return Err(wrong(format!(
                "the first line has {} bytes; a secret of HS256 has {SECRET_BYTES_MIN} at least",
                secret.len()
            )));
        }
        let key = DecodingKey::from_secret(secret).map_err(|error| wrong(error.to_string()))?;
        let seal = seal_of(&key);
        keys.push(Key { id: None, key, validation: validation(settings, Algorithm::HS256), seal });
    }
    if settings.issuer.is_none() && settings.audience.is_none() {
        tracing::warn!(
            "auth.jwt names neither issuer nor audience: each token that was signed by its keys lets in, whatever it was made for"
        );
    }
    Ok(keys)
}

/// What is no key would be found out with the first token, and look as if that were bad.
fn is_usable(algorithm: Algorithm, key: &DecodingKey) -> bool {
    match (algorithm, key.kind()) {
        (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, .. }) => {
            let leading = n.iter().take_while(|byte| **byte == 0).count();
            let first = n.get(leading).map_or(0, |byte| byte.leading_zeros() as usize);
            RSA_BITS.contains(&((n.len() - leading) * 8).saturating_sub(first))
        }
        (Algorithm::RS256, DecodingKeyKind::SecretOrDer(der)) => {
            RSAPublicKey::from_der(der).is_ok_and(|(_, key)| RSA_BITS.contains(&key.key_size()))
        }
        (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => point.len() == EC_POINT_BYTES && point.starts_with(&[4]),
        (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(point)) => point.len() == ED_KEY_BYTES,
        _ => false,
    }
}

fn seal_of(key: &DecodingKey) -> Seal {
    let hash = Sha256::new();
    let hash = match key.kind() {
        DecodingKeyKind::SecretOrDer(bytes) => hash.chain_update(bytes),
        DecodingKeyKind::RsaModulusExponent { n, e } => hash.chain_update(n).chain_update(e),
    };
    hash.finalize().into()
}

fn unreadable(key: &'static str, path: &Path, source: std::io::Error) -> BackendError {
    BackendError::Unreadable { key, path: path.to_owned(), source }
}

fn validation(settings: &AuthJwt, algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    let mut required = vec!["exp"];
    if let Some(issuer) = &settings.issuer {
        validation.set_issuer(&[issuer]);
        required.push("iss");
    }
    if let Some(audience) = &settings.audience {
        validation.set_audience(&[audience]);
        required.push("aud");
    }
    validation.set_required_spec_claims(&required);
    validation.validate_nbf = true;
    // It is for `nbf`: that `exp` is over is seen by `admit`.
    validation.leeway = LEEWAY_SECONDS;
    validation
}

type Found = (Option<String>, Algorithm, DecodingKey);

/// Keys of other kinds, or that are not for signatures, are passed over: a set has them for others.
fn of_jwks(text: &[u8]) -> Result<Vec<Found>, String> {
    let set: JwkSet = serde_json::from_slice(text).map_err(|error| format!("it is no set of keys (RFC 7517): {error}"))?;
    let found = |jwk: &Jwk| {
        let algorithm = match &jwk.algorithm {
            _ if jwk.common.public_key_use.as_ref().is_some_and(|used| *used != PublicKeyUse::Signature) => return None,
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => Algorithm::ES256,
            AlgorithmParameters::OctetKeyPair(ed) if ed.curve == EllipticCurve::Ed25519 => Algorithm::EdDSA,
            _ => return None,
        };
        let said = jwk.common.key_algorithm.as_ref().map(ToString::to_string);
        if said.is_some_and(|said| said != format!("{algorithm:?}")) {
            return None;
        }
        Some((jwk.common.key_id.clone(), algorithm, DecodingKey::from_jwk(jwk).ok()?))
    };
    Ok(set.keys.iter().filter_map(found).collect())
}

fn of_pem(text: &[u8]) -> Result<Vec<Found>, String> {
    let mut found = Vec::new();
    for pem in Pem::iter_from_buffer(text) {
        let pem = pem.map_err(|error| format!("it is neither PEM nor a set of keys in JSON: {error}"))?;
        if pem.label.contains("PRIVATE") {
            return Err(
                "there is a private key in it; write the public one there, which `openssl pkey -pubout` makes of it".to_owned()
            );
        }
        let (_, info) = SubjectPublicKeyInfo::from_der(&pem.contents)
            .map_err(|error| format!("{} in it is no public key: {error}; write a PUBLIC KEY", pem.label))?;
        let bytes = &info.subject_public_key.data;
        let curve = info.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
        let curve = curve.map(|curve| curve.to_id_string());
        found.push(match (info.algorithm.algorithm.to_id_string().as_str(), curve.as_deref()) {
            ("1.2.840.113549.1.1.1", _) => (None, Algorithm::RS256, DecodingKey::from_rsa_der(bytes)),
            ("1.2.840.10045.2.1", Some("1.2.840.10045.3.1.7")) => (None, Algorithm::ES256, DecodingKey::from_ec_der(bytes)),
            ("1.3.101.112", _) => (None, Algorithm::EdDSA, DecodingKey::from_ed_der(bytes)),
            (other, _) => return Err(format!("a key of a kind that is not taken ({other}); RSA, P-256 and Ed25519 are")),
        });
    }
    Ok(found)
}

/// Signatures are looked at by the library that TLS here is made of.
static PROVIDER: CryptoProvider =
    CryptoProvider { signer_factory: no_signer, verifier_factory: verifier, key_utils: KeyUtils::new_unimplemented() };

struct Verifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> jsonwebtoken::errors::Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> jsonwebtoken::errors::Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(Verifier { algorithm: *algorithm, key: key.clone() }))
}

impl JwtVerifier for Verifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl jsonwebtoken::signature::Verifier<Vec<u8>> for Verifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), jsonwebtoken::signature::Error> {
        let is_good = match (self.algorithm, self.key.kind()) {
            (Algorithm::HS256, DecodingKeyKind::SecretOrDer(secret)) => {
                hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), message, signature)
            }
            (Algorithm::RS256, DecodingKeyKind::SecretOrDer(der)) => {
                signature::UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, der).verify(message, signature)
            }
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                signature::RsaPublicKeyComponents { n, e }.verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => {
                signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(point)) => {
                signature::UnparsedPublicKey::new(&signature::ED25519, point).verify(message, signature)
            }
            _ => return Err(jsonwebtoken::signature::Error::new()),
        };
        is_good.map_err(|_| jsonwebtoken::signature::Error::new())
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;
    use crate::auth::Backend;

    const SECRET: &str = "a secret of thirty-two bytes or more";
    /// By `openssl dgst -sha256 -sign`, until the year 2100, of bob who may publish to `a`.
    const OF_RSA: &str = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJib2IiLCJleHAiOjQxMDI0NDQ4MDAsImFjbCI6eyJwdWIiOlsiYSJdfX0.RJpFULu_F7HVryemrq_Iq3OA8iFD23C_o91WYqvUxQUKVFwTc8VYEuwJGvVvGTjoPI9NZVd6xfGsKOfKZSDabaz3V5yULcUwey5vfCslTShUlnhhNvNVMJQHVDBfGBA2DsxEnpk-xlhQtNgDC2n_Lro4f7MU0ZhVVos2OXSbikpZhOSZnsYqB4WOgLfkTpY_E_AIlKJSMVMYoyn-8QNhBBLPwY56BWp7aCvBSRcONAdsazJYKuhDxqN5EroGqmFoRsfEAyoK7s6ZyAnCZtT1-Xa9yxguqC2SpK_8jcmQWSos_WrhpJ0CzXQe2qEljAd8rcto-qQyKGvXp-_VhyKMpQ";
    const RSA: &str = "-----BEGIN PUBLIC KEY-----\n\
    MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA0dlemh2qbDN5zR1bSdEz\n\
    jrMHQIYnxYj4AXau58jZLg3ErsY3iRJKusaiTtxxCEFz511UCEvmTuH/aoATqL7c\n\
    Cz5V6RJNV/8Fl53BXY21tFKgiQARXVtmcxwRqhfndSnsoMkppg+V9ZldRYPP+HV3\n\
    qJ7jD4Dc22XmSJMTuDHGZkDMkFPrCKVlcRhouf0x3nd916eB2xNEDQRwKr1RGF22\n\
    Oh4cygf+eVKRVj9Fm2xFjf1WhXjoS1SiFnCRbntUIXaJilkpCdLLXDbXeO8ZDyR4\n\
    ltCLo4WtjA22wkQjyh8/vQ0tCTg41poKdzo5tgv0jIbeyjzX/CKfWnHJddEy3oUb\n\
    xwIDAQAB\n\
    -----END PUBLIC KEY-----\n";

    fn part(value: &Value) -> String {
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    fn token(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
        let message = format!("{}.{}", part(header), part(claims));
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(sign(message.as_bytes())))
    }

    fn by_secret(header: &Value, claims: &Value, secret: &[u8]) -> String {
        token(header, claims, |message| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message).as_ref().to_vec())
    }

    fn tokens(change: impl FnOnce(&mut AuthJwt, &Path)) -> Result<Tokens, BackendError> {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = AuthJwt::default();
        change(&mut settings, dir.path());
        Tokens::new(settings, Arc::new(Accounts::new(Backend::Jwt, Duration::MAX, Duration::ZERO)))
    }

    fn of_secret(change: impl FnOnce(&mut AuthJwt)) -> Tokens {
        let made = tokens(|settings, dir| {
            std::fs::write(dir.join("secret"), format!("{SECRET}\n")).unwrap();
            settings.secret_file = Some(dir.join("secret"));
            change(settings);
        });
        made.unwrap()
    }

    fn of_keys(text: &str) -> Result<Tokens, BackendError> {
        tokens(|settings, dir| {
            std::fs::write(dir.join("keys"), text).unwrap();
            settings.key_file = Some(dir.join("keys"));
        })
    }

    /// Who comes in with it; empty: it is refused; `-`: it is no token.
    fn who(tokens: &Tokens, name: &str, token: &str) -> String {
        match tokens.read(name, token) {
            Answer::Somebody { name, .. } => crate::auth::user_of(&name).to_owned(),
            Answer::Refused => String::new(),
            Answer::Nobody => "-".to_owned(),
            Answer::Away | Answer::Busy => panic!("nobody is asked"),
        }
    }

    fn in_seconds(seconds: i64) -> i64 {
        i64::try_from(clock::unix_time().as_secs()).unwrap() + seconds
    }

    #[test]
    fn a_token_is_good_if_all_of_it_is() {
        let plain = of_secret(|_| {});
        let strict = of_secret(|settings| {
            settings.issuer = Some("us".to_owned());
            settings.audience = Some("mqtt".to_owned());
        });
        let (header, later) = (json!({"alg": "HS256", "typ": "JWT"}), in_seconds(60));
        let secret = SECRET.as_bytes();
        for (tokens, claims, expected) in [
            (&plain, json!({"sub": "bob", "exp": later}), "bob"),
            (&plain, json!({"sub": "bob", "exp": in_seconds(-1)}), ""),
            (&plain, json!({"sub": "bob", "exp": -1}), ""),
            (&plain, json!({"sub": "bob", "exp": 1e300}), ""),
            (&plain, json!({"sub": "bob", "exp": "never"}), ""),
            (&plain, json!({"sub": "bob"}), ""),
            (&plain, json!({"sub": "bob", "exp": later, "nbf": in_seconds(600)}), ""),
            (&plain, json!({"sub": "bob", "exp": later, "nbf": in_seconds(-600)}), "bob"),
            (&plain, json!({"sub": "bob", "exp": later, "aud": "others"}), ""),
            (&plain, json!({"sub": "", "exp": later}), ""),
            (&plain, json!({"sub": "b\u{0}b", "exp": later}), ""),
            (&plain, json!({"sub": 7, "exp": later}), ""),
            (&plain, json!({"exp": later}), ""),
            (&plain, json!({"sub": "bob", "exp": later, "acl": "#"}), ""),
            (&strict, json!({"sub": "bob", "exp": later, "iss": "us", "aud": ["x", "mqtt"]}), "bob"),
            (&strict, json!({"sub": "bob", "exp": later, "iss": "us"}), ""),
            (&strict, json!({"sub": "bob", "exp": later, "aud": "mqtt"}), ""),
            (&strict, json!({"sub": "bob", "exp": later, "iss": "them", "aud": "mqtt"}), ""),
        ] {
            assert_eq!(who(tokens, "", &by_secret(&header, &claims, secret)), expected, "{claims}");
        }
        let claims = json!({"sub": "bob", "exp": later});
        let good = by_secret(&header, &claims, secret);
        for (name, token, expected) in [
            ("bob", good.clone(), "bob"),
            ("eve", good.clone(), ""),
            ("bob", by_secret(&header, &claims, b"another secret of thirty-two bytes"), ""),
            ("bob", by_secret(&json!({"alg": "HS512"}), &claims, secret), ""),
            ("bob", by_secret(&json!({"alg": "HS256", "crit": ["x"], "x": 1}), &claims, secret), ""),
            ("bob", format!("{}.{}.", part(&json!({"alg": "none"})), part(&claims)), "-"),
            ("bob", good.replace('.', ":"), "-"),
            ("bob", format!("{good}.x"), "-"),
            ("bob", "pass.wo.rd".to_owned(), "-"),
            ("bob", String::new(), "-"),
            ("bob", format!("{good}{}", "x".repeat(TOKEN_BYTES_MAX)), "-"),
        ] {
            assert_eq!(who(&plain, name, &token), expected, "{token}");
        }
        let in_name = of_secret(|settings| settings.in_user_name = true);
        assert_eq!(who(&in_name, &good, "whatever"), "bob");
    }

    #[test]
    fn rights_are_the_tokens_and_end_with_it() {
        let tokens = of_secret(|_| {});
        let claims = json!({"sub": "bob", "exp": in_seconds(3_600), "acl": [{"topic": "own/%u", "access": 7}]});
        let token = by_secret(&json!({"alg": "HS256"}), &claims, SECRET.as_bytes());
        let Answer::Somebody { name, account, .. } = tokens.read("bob", &token) else { panic!("he is good") };
        assert!(matches!(account.granted(), Granted::Rules(_)));
        let now = clock::unix_time();
        assert!(tokens.accounts.lapse(now + Duration::from_secs(3_500), None).is_empty());
        assert!(tokens.accounts.lapse(now + Duration::from_secs(3_601), None).contains(&name));
        // And with its key.
        let Answer::Somebody { name, .. } = tokens.read("bob", &token) else { panic!("he is good again") };
        let keys = tokens.read_anew().unwrap_or_default();
        assert!(keys.is_empty(), "its directory is gone");
        assert_eq!(tokens.replace(keys), HashSet::from([name]));
        assert!(matches!(tokens.read("bob", &token), Answer::Refused));
    }

    #[test]
    fn without_rules_a_token_opens_nothing_unless_that_is_said() {
        let claims = json!({"sub": "bob", "exp": in_seconds(60)});
        let token = by_secret(&json!({"alg": "HS256"}), &claims, SECRET.as_bytes());
        for (without_rules, expected) in [(WithoutRules::Deny, Granted::AsFile), (WithoutRules::Allow, Granted::AsListener)] {
            let tokens = of_secret(|settings| settings.without_rules = without_rules);
            let Answer::Somebody { account, .. } = tokens.read("bob", &token) else { panic!("he is good") };
            assert_eq!(account.granted(), &expected);
        }
    }

    #[test]
    fn keys_that_can_verify_nothing_are_named_at_the_start() {
        let coded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let rsa = |bytes: usize| json!({"kty": "RSA", "kid": "short", "n": coded(&vec![0xff; bytes]), "e": "AQAB"});
        assert!(of_keys(&json!({"keys": [rsa(256)]}).to_string()).is_ok());
        let ed = json!({"kty": "OKP", "crv": "Ed25519", "kid": "short", "x": coded(&[1; 31])});
        for key in [rsa(128), ed] {
            let error = of_keys(&json!({"keys": [key]}).to_string()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("(short) is damaged or too short"), "{key}: {error}");
        }
    }

    #[test]
    fn public_keys_are_taken_in_pem_and_in_sets_and_never_as_secrets() {
        let random = SystemRandom::new();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap();
        let ed = Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap();
        let (x, y) = ec.public_key().as_ref()[1..].split_at(32);
        let coded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let set = json!({"keys": [
            {"kty": "EC", "crv": "P-256", "kid": "one", "alg": "ES256", "use": "sig", "x": coded(x), "y": coded(y)},
            {"kty": "OKP", "crv": "Ed25519", "kid": "two", "x": coded(ed.public_key().as_ref())},
            {"kty": "EC", "crv": "P-256", "kid": "for others", "use": "enc", "x": coded(x), "y": coded(y)},
        ]});
        let tokens = of_keys(&set.to_string()).unwrap();
        assert_eq!(tokens.keys.load().len(), 2);
        let claims = json!({"sub": "bob", "exp": in_seconds(60)});
        let by_ec = |message: &[u8]| ec.sign(&random, message).unwrap().as_ref().to_vec();
        let by_ed = |message: &[u8]| ed.sign(message).as_ref().to_vec();
        for (header, by, expected) in [
            (json!({"alg": "ES256", "kid": "one"}), &by_ec as &dyn Fn(&[u8]) -> Vec<u8>, "bob"),
            (json!({"alg": "ES256"}), &by_ec, "bob"),
            (json!({"alg": "ES256", "kid": "three"}), &by_ec, ""),
            (json!({"alg": "EdDSA", "kid": "two"}), &by_ed, "bob"),
            (json!({"alg": "ES256", "kid": "one"}), &by_ed, ""),
            (json!({"alg": "EdDSA", "kid": "one"}), &by_ec, ""),
            (json!({"alg": "RS256", "kid": "one"}), &by_ec, ""),
        ] {
            assert_eq!(who(&tokens, "bob", &token(&header, &claims, by)), expected, "{header}");
        }
        let rsa = of_keys(RSA).unwrap();
        assert_eq!((who(&rsa, "bob", OF_RSA), who(&tokens, "bob", OF_RSA)), ("bob".to_owned(), String::new()));
        // Whoever knows a public key, as all do, signs nothing by it.
        let forged = by_secret(&json!({"alg": "HS256"}), &claims, RSA.as_bytes());
        assert_eq!(who(&rsa, "bob", &forged), "");
    }

    #[test]
    fn files_without_a_usable_key_are_named() {
        let private = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        for (text, words) in
            [("", "0 keys"), ("{\"keys\": []}", "0 keys"), ("{", "RFC 7517"), (private, "private key"), ("hello", "0 keys")]
        {
            let error = of_keys(text).err().unwrap_or_else(|| panic!("{text}: taken")).to_string();
            assert!(error.contains("auth.jwt.key_file") && error.contains(words), "{error}");
        }
        let short = tokens(|settings, dir| {
            std::fs::write(dir.join("secret"), "short\n").unwrap();
            settings.secret_file = Some(dir.join("secret"));
        });
        assert!(
            short.err().is_some_and(|error| error.to_string().contains("32 at least") && !error.to_string().contains("short\n"))
        );
    }
}

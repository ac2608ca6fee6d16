//! One password, hashed: making it, reading it from a file, checking against it.
//!
//! | in the file | what |
//! |---|---|
//! | `$6$SALT$HASH` | SHA-512 over password and salt, Mosquitto 1.6 and older |
//! | `$7$ITERATIONS$SALT$HASH` | PBKDF2 with HMAC-SHA-512, Mosquitto 2 |
//! | `$argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH` | Argon2id, RFC 9106, Mosquitto 2.1 |
//! | `SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY` | RFC 5803; for SCRAM and for plain passwords |
//! | `PBKDF2$sha256$ITERATIONS$SALT$HASH`, or `sha512` | PBKDF2 as the plug-ins mosquitto-auth-plug and mosquitto-go-auth write it; read only |
//! | `$2b$COST$...`, `$2a$`, `$2y$` | bcrypt, as web applications write it; read only |
//!
//! Nothing here is stored that a client could log in with, but for SCRAM's server key, with which somebody could pose as the broker.

use std::fmt;

use argon2::Argon2;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;

/// What PBKDF2 is told by default: as Mosquitto 2.0.
const ITERATIONS_DEFAULT: u32 = 1_000;
/// What SCRAM is told by default: RFC 7677 wants 4,096 at least and 15,000 soon. The client pays for it.
const SCRAM_ITERATIONS_DEFAULT: u32 = 15_000;
/// See [`SCRAM_ITERATIONS_DEFAULT`]; clients refuse less.
const SCRAM_ITERATIONS_MIN: u32 = 4_096;
/// What a check takes where no user is known to whom it could be like.
const DECOY_ITERATIONS: u32 = 50_000;
/// Above this one log-in would keep a processor for seconds.
const ITERATIONS_MAX: u32 = 2_000_000;
/// What Argon2id is told: as Mosquitto 2.1, and one of the choices of OWASP.
const ARGON2_MEMORY_KIB: u32 = 47_104;
/// See [`ARGON2_MEMORY_KIB`].
const ARGON2_PASSES: u32 = 1;
/// Above this one log-in would take memory that others need.
const ARGON2_MEMORY_KIB_MAX: u32 = 256 * 1_024;
/// Memory times passes: above this one log-in would keep a processor for seconds.
const ARGON2_WORK_KIB_MAX: u32 = 1_024 * 1_024;
/// See [`ARGON2_MEMORY_KIB_MAX`].
const ARGON2_LANES_MAX: u32 = 16;
/// Salts of ours, bytes.
const SALT_BYTES: usize = 16;
/// Where Mosquitto is to read the file: 2.0 takes salts of this length and no others, bytes.
const MOSQUITTO_SALT_BYTES: usize = 12;
/// Salts of others: enough for all, bytes.
const SALT_BYTES_MAX: usize = 256;
/// SHA-512's output, bytes.
const HASH_BYTES: usize = 64;
/// SHA-256's output, bytes.
pub(super) const KEY_BYTES: usize = 32;

const SHA_512: &str = "$6$";
const PBKDF2: &str = "$7$";
const ARGON2ID: &str = "$argon2id$";
const SCRAM: &str = "SCRAM-SHA-256$";
const PLUGIN: &str = "PBKDF2$";
const BCRYPT: [&str; 3] = ["$2a$", "$2b$", "$2y$"];
/// Above this, 2 to the power of it, one log-in would keep a processor for seconds.
const BCRYPT_COST_MAX: u32 = 14;
/// What is shorter than this, or longer, is no bcrypt, bytes.
const BCRYPT_BYTES: usize = 60;

/// How a new password is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// `$6$`: one round, for brokers that know nothing else.
    Sha512,
    /// `$7$`.
    Sha512Pbkdf2,
    /// `$argon2id$`.
    Argon2id,
    /// For clients that authenticate with SCRAM-SHA-256; good for others, too.
    ScramSha256,
}

/// Why text is no record, or none can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It begins like none of them.
    #[error("it is of no known kind")]
    Unknown,
    /// Something is missing or left over.
    #[error("it has not the parts that its kind has")]
    Parts,
    /// A part is not Base64 (RFC 4648, section 4).
    #[error("a part of it is not Base64")]
    Base64,
    /// A part has a length that it cannot have.
    #[error("a part of it has {0} bytes")]
    Length(usize),
    /// An iteration count that is useless or unbearable.
    #[error("{given} iterations; from {least} to {ITERATIONS_MAX} are accepted")]
    Iterations {
        /// What it says.
        given: u32,
        /// The least that is accepted.
        least: u32,
    },
    /// Parameters of Argon2 that it does not allow, or that are unbearable.
    #[error(
        "m={memory_kib},t={passes},p={lanes}; at most {ARGON2_MEMORY_KIB_MAX} KiB of memory, {ARGON2_WORK_KIB_MAX} KiB times passes and \
         {ARGON2_LANES_MAX} lanes are accepted"
    )]
    Argon2 {
        /// Memory.
        memory_kib: u32,
        /// Passes.
        passes: u32,
        /// Lanes.
        lanes: u32,
    },
    /// The algorithm takes a count of iterations only where it has one.
    #[error("this kind of hash has no count of iterations")]
    NoIterations,
    /// A cost of bcrypt that it does not allow, or that is unbearable.
    #[error("bcrypt's cost {0}; from 4 to {BCRYPT_COST_MAX} are accepted")]
    Bcrypt(u32),
    /// A password that SASLprep does not allow (RFC 4013): control characters, or not UTF-8.
    #[error("the password has characters that SCRAM does not allow (RFC 4013)")]
    Saslprep,
}

/// A hashed password. `Debug` shows its kind; [`fmt::Display`] shows it as it stands in a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Record(Kind);

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Sha512 {
        salt: Box<[u8]>,
        hash: [u8; HASH_BYTES],
    },
    Pbkdf2 {
        iterations: u32,
        salt: Box<[u8]>,
        hash: [u8; HASH_BYTES],
    },
    Argon2id {
        cost: Argon2Cost,
        salt: Box<[u8]>,
        hash: Box<[u8]>,
    },
    Scram(ScramKeys),
    Plugin(PluginHash),
    /// As it stands, checked.
    Bcrypt {
        cost: u32,
        text: Box<str>,
    },
}

/// The one plug-in takes the salt's text for the salt, the other what it says in Base64; which of them wrote it cannot be told.
#[derive(Clone, PartialEq, Eq)]
struct PluginHash {
    is_sha512: bool,
    iterations: u32,
    salt: Box<str>,
    hash: Box<[u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Argon2Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// What a server keeps of a password for SCRAM (RFC 5802, section 3).
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ScramKeys {
    pub(super) iterations: u32,
    pub(super) salt: Box<[u8]>,
    pub(super) stored_key: [u8; KEY_BYTES],
    pub(super) server_key: [u8; KEY_BYTES],
}

/// Equal for records that cannot be told from each other by what a check takes, or by what SCRAM shows of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Cost {
    kind: u8,
    numbers: [u32; 3],
    salt_bytes: usize,
}

impl Record {
    /// What it is like, the password apart.
    pub(super) fn cost(&self) -> Cost {
        let (kind, numbers, salt) = match &self.0 {
            Kind::Sha512 { salt, .. } => (0, [0; 3], salt),
            Kind::Pbkdf2 { iterations, salt, .. } => (1, [*iterations, 0, 0], salt),
            Kind::Argon2id { cost, salt, .. } => (2, [cost.memory_kib, cost.passes, cost.lanes], salt),
            Kind::Scram(keys) => (3, [keys.iterations, 0, 0], &keys.salt),
            Kind::Plugin(PluginHash { is_sha512, iterations, salt, hash }) => {
                let numbers = [*iterations, (*is_sha512).into(), u32::try_from(hash.len()).unwrap_or(u32::MAX)];
                return Cost { kind: 4, numbers, salt_bytes: salt.len() };
            }
            Kind::Bcrypt { cost, text } => return Cost { kind: 5, numbers: [*cost, 0, 0], salt_bytes: text.len() },
        };
        Cost { kind, numbers, salt_bytes: salt.len() }
    }

    /// Hashes a password with a salt of its own. Slow on purpose. `iterations` in place of the default.
    ///
    /// # Errors
    /// When the count or the password does not go with the hash.
    pub fn new(hash: Hash, iterations: Option<u32>, password: &[u8]) -> Result<Self, Unusable> {
        let salt: Box<[u8]> = match hash {
            Hash::Sha512 | Hash::Sha512Pbkdf2 => rand::random::<[u8; MOSQUITTO_SALT_BYTES]>().into(),
            Hash::Argon2id | Hash::ScramSha256 => rand::random::<[u8; SALT_BYTES]>().into(),
        };
        let kind = match hash {
            Hash::Sha512 if iterations.is_none() => Kind::Sha512 { hash: sha512(password, &salt), salt },
            Hash::Argon2id if iterations.is_none() => {
                let cost = Argon2Cost { memory_kib: ARGON2_MEMORY_KIB, passes: ARGON2_PASSES, lanes: 1 };
                let mut hash = [0; KEY_BYTES];
                cost.hash(password, &salt, &mut hash)?;
                Kind::Argon2id { cost, salt, hash: hash.into() }
            }
            Hash::Sha512 | Hash::Argon2id => return Err(Unusable::NoIterations),
            Hash::Sha512Pbkdf2 => {
                let iterations = check_iterations(iterations.unwrap_or(ITERATIONS_DEFAULT), 1)?;
                Kind::Pbkdf2 { iterations, hash: pbkdf2(password, &salt, iterations), salt }
            }
            Hash::ScramSha256 => {
                let iterations = check_iterations(iterations.unwrap_or(SCRAM_ITERATIONS_DEFAULT), SCRAM_ITERATIONS_MIN)?;
                Kind::Scram(ScramKeys::new(password, salt, iterations).ok_or(Unusable::Saslprep)?)
            }
        };
        Ok(Self(kind))
    }

    /// Of no password.
    pub(super) fn decoy() -> Self {
        let salt: Box<[u8]> = rand::random::<[u8; SALT_BYTES]>().into();
        Self(Kind::Pbkdf2 { iterations: DECOY_ITERATIONS, salt, hash: std::array::from_fn(|_| rand::random()) })
    }

    /// Reads what stands behind the user name in a password file.
    ///
    /// # Errors
    /// See [`Unusable`].
    pub fn parse(text: &str) -> Result<Self, Unusable> {
        let kind = if let Some(rest) = text.strip_prefix(SHA_512) {
            let [salt, hash] = parts(rest, '$')?;
            Kind::Sha512 { salt: salt_of(salt, &STANDARD)?, hash: exactly(&decode(hash, &STANDARD)?)? }
        } else if let Some(rest) = text.strip_prefix(PBKDF2) {
            let [iterations, salt, hash] = parts(rest, '$')?;
            let iterations = check_iterations(number(iterations)?, 1)?;
            Kind::Pbkdf2 { iterations, salt: salt_of(salt, &STANDARD)?, hash: exactly(&decode(hash, &STANDARD)?)? }
        } else if let Some(rest) = text.strip_prefix(ARGON2ID) {
            let [version, cost, salt, hash] = parts(rest, '$')?;
            if version != "v=19" {
                return Err(Unusable::Parts);
            }
            let hash = decode(hash, &STANDARD_NO_PAD)?;
            if !(16..=SALT_BYTES_MAX).contains(&hash.len()) {
                return Err(Unusable::Length(hash.len()));
            }
            Kind::Argon2id { cost: Argon2Cost::parse(cost)?, salt: salt_of(salt, &STANDARD_NO_PAD)?, hash: hash.into() }
        } else if let Some(rest) = text.strip_prefix(SCRAM) {
            let [work, keys] = parts(rest, '$')?;
            let ([iterations, salt], [stored, server]) = (parts(work, ':')?, parts(keys, ':')?);
            Kind::Scram(ScramKeys {
                iterations: check_iterations(number(iterations)?, SCRAM_ITERATIONS_MIN)?,
                salt: salt_of(salt, &STANDARD)?,
                stored_key: exactly(&decode(stored, &STANDARD)?)?,
                server_key: exactly(&decode(server, &STANDARD)?)?,
            })
        } else if let Some(rest) = text.strip_prefix(PLUGIN) {
            Kind::Plugin(PluginHash::parse(rest)?)
        } else if BCRYPT.iter().any(|prefix| text.starts_with(prefix)) {
            let cost = bcrypt_cost(text)?;
            Kind::Bcrypt { cost, text: text.into() }
        } else {
            return Err(Unusable::Unknown);
        };
        Ok(Self(kind))
    }

    /// Whether `password` is the one. Slow on purpose, up to seconds, and with Argon2id in need of memory, up to 256 MiB.
    #[must_use]
    pub fn verify(&self, password: &[u8]) -> bool {
        match &self.0 {
            Kind::Sha512 { salt, hash } => sha512(password, salt).ct_eq(hash).into(),
            Kind::Pbkdf2 { iterations, salt, hash } => pbkdf2(password, salt, *iterations).ct_eq(hash).into(),
            Kind::Argon2id { cost, salt, hash } => {
                let mut found = vec![0; hash.len()];
                // Parameters were checked when the record was read: what fails here is not the password's match.
                cost.hash(password, salt, &mut found).is_ok() && bool::from(found.ct_eq(hash))
            }
            Kind::Scram(keys) => {
                let found = ScramKeys::new(password, keys.salt.clone(), keys.iterations);
                found.is_some_and(|found| found.stored_key.ct_eq(&keys.stored_key).into())
            }
            Kind::Plugin(hash) => hash.verify(password),
            Kind::Bcrypt { text, .. } => bcrypt::verify(password, text).unwrap_or(false),
        }
    }

    /// What SCRAM needs, if the record has it.
    pub(super) fn scram(&self) -> Option<&ScramKeys> {
        match &self.0 {
            Kind::Scram(keys) => Some(keys),
            _ => None,
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let padded = |bytes: &[u8]| STANDARD.encode(bytes);
        let bare = |bytes: &[u8]| STANDARD_NO_PAD.encode(bytes);
        match &self.0 {
            Kind::Sha512 { salt, hash } => write!(f, "{SHA_512}{}${}", padded(salt), padded(hash)),
            Kind::Pbkdf2 { iterations, salt, hash } => write!(f, "{PBKDF2}{iterations}${}${}", padded(salt), padded(hash)),
            Kind::Argon2id { cost, salt, hash } => {
                let Argon2Cost { memory_kib, passes, lanes } = cost;
                write!(f, "{ARGON2ID}v=19$m={memory_kib},t={passes},p={lanes}${}${}", bare(salt), bare(hash))
            }
            Kind::Scram(ScramKeys { iterations, salt, stored_key, server_key }) => {
                write!(f, "{SCRAM}{iterations}:{}${}:{}", padded(salt), padded(stored_key), padded(server_key))
            }
            Kind::Plugin(PluginHash { is_sha512, iterations, salt, hash }) => {
                let digest = if *is_sha512 { "sha512" } else { "sha256" };
                write!(f, "{PLUGIN}{digest}${iterations}${salt}${}", padded(hash))
            }
            Kind::Bcrypt { text, .. } => f.write_str(text),
        }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Sha512 { .. } => "Record($6$)",
            Kind::Pbkdf2 { .. } => "Record($7$)",
            Kind::Argon2id { .. } => "Record($argon2id$)",
            Kind::Scram(_) => "Record(SCRAM-SHA-256)",
            Kind::Plugin(_) => "Record(PBKDF2$)",
            Kind::Bcrypt { .. } => "Record(bcrypt)",
        })
    }
}

impl Argon2Cost {
    /// `m=KIB,t=PASSES,p=LANES`.
    fn parse(text: &str) -> Result<Self, Unusable> {
        let [memory_kib, passes, lanes] = parts(text, ',')?;
        let value = |part: &str, name: &str| part.strip_prefix(name).ok_or(Unusable::Parts).and_then(number);
        let cost = Self { memory_kib: value(memory_kib, "m=")?, passes: value(passes, "t=")?, lanes: value(lanes, "p=")? };
        let work = cost.memory_kib.checked_mul(cost.passes).is_some_and(|work| work <= ARGON2_WORK_KIB_MAX);
        let within = work && cost.memory_kib <= ARGON2_MEMORY_KIB_MAX && cost.lanes <= ARGON2_LANES_MAX;
        if within && cost.params(KEY_BYTES).is_ok() { Ok(cost) } else { Err(cost.unusable()) }
    }

    fn unusable(self) -> Unusable {
        Unusable::Argon2 { memory_kib: self.memory_kib, passes: self.passes, lanes: self.lanes }
    }

    fn params(self, hash_bytes: usize) -> Result<argon2::Params, Unusable> {
        argon2::Params::new(self.memory_kib, self.passes, self.lanes, Some(hash_bytes)).map_err(|_| self.unusable())
    }

    fn hash(self, password: &[u8], salt: &[u8], out: &mut [u8]) -> Result<(), Unusable> {
        let argon2 = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, self.params(out.len())?);
        argon2.hash_password_into(password, salt, out).map_err(|_| self.unusable())
    }
}

impl PluginHash {
    /// What stands behind `PBKDF2$`.
    fn parse(text: &str) -> Result<Self, Unusable> {
        let [digest, iterations, salt, hash] = parts(text, '$')?;
        let is_sha512 = match digest {
            "sha256" => false,
            "sha512" => true,
            _ => return Err(Unusable::Unknown),
        };
        let hash = decode(hash, &STANDARD)?;
        if !(16..=HASH_BYTES).contains(&hash.len()) {
            return Err(Unusable::Length(hash.len()));
        }
        if !(8..=SALT_BYTES_MAX).contains(&salt.len()) {
            return Err(Unusable::Length(salt.len()));
        }
        Ok(Self { is_sha512, iterations: check_iterations(number(iterations)?, 1)?, salt: salt.into(), hash: hash.into() })
    }

    fn verify(&self, password: &[u8]) -> bool {
        let is_good = |salt: &[u8]| {
            let mut found = vec![0; self.hash.len()];
            match self.is_sha512 {
                true => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, self.iterations, &mut found),
                false => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, self.iterations, &mut found),
            }
            bool::from(found.ct_eq(&self.hash))
        };
        is_good(self.salt.as_bytes()) || STANDARD.decode(&*self.salt).is_ok_and(|salt| is_good(&salt))
    }
}

/// Of text that begins as bcrypt's does.
fn bcrypt_cost(text: &str) -> Result<u32, Unusable> {
    if text.len() != BCRYPT_BYTES {
        return Err(Unusable::Length(text.len()));
    }
    let [_, _, cost, rest] = parts(text, '$')?;
    if !rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'/') {
        return Err(Unusable::Base64);
    }
    let cost = number(cost)?;
    if (4..=BCRYPT_COST_MAX).contains(&cost) { Ok(cost) } else { Err(Unusable::Bcrypt(cost)) }
}

impl ScramKeys {
    /// None for a password that SASLprep refuses.
    fn new(password: &[u8], salt: Box<[u8]>, iterations: u32) -> Option<Self> {
        let password = std::str::from_utf8(password).ok()?;
        let password = stringprep::saslprep(password).ok()?;
        let mut salted = [0; KEY_BYTES];
        pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), &salt, iterations, &mut salted);
        let stored_key = Sha256::digest(hmac_sha256(&salted, b"Client Key")).into();
        let server_key = hmac_sha256(&salted, b"Server Key");
        Some(Self { iterations, salt, stored_key, server_key })
    }

    /// Keys of a user that there is not: like those of another, the same for the same name as long as this process lives, good for no password.
    pub(super) fn decoy(user: &str, like: &Self) -> Self {
        static SECRET: std::sync::OnceLock<[u8; KEY_BYTES]> = std::sync::OnceLock::new();
        let mut block = hmac_sha256(SECRET.get_or_init(rand::random), user.as_bytes());
        let mut salt = Vec::with_capacity(like.salt.len() + KEY_BYTES);
        while salt.len() < like.salt.len() {
            salt.extend(block);
            block = hmac_sha256(&block, user.as_bytes());
        }
        salt.truncate(like.salt.len());
        Self { iterations: like.iterations, salt: salt.into(), stored_key: rand::random(), server_key: rand::random() }
    }
}

/// HMAC-SHA-256 (RFC 2104).
pub(super) fn hmac_sha256(key: &[u8; KEY_BYTES], message: &[u8]) -> [u8; KEY_BYTES] {
    // A key is filled up with zeros to the hash's block.
    let mut block = [0; 64];
    let (start, _) = block.split_at_mut(KEY_BYTES);
    start.copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn sha512(password: &[u8], salt: &[u8]) -> [u8; HASH_BYTES] {
    Sha512::new().chain_update(password).chain_update(salt).finalize().into()
}

fn pbkdf2(password: &[u8], salt: &[u8], iterations: u32) -> [u8; HASH_BYTES] {
    let mut hash = [0; HASH_BYTES];
    pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut hash);
    hash
}

fn parts<const N: usize>(text: &str, separator: char) -> Result<[&str; N], Unusable> {
    let parts: Vec<&str> = text.split(separator).collect();
    parts.try_into().map_err(|_| Unusable::Parts)
}

fn decode(text: &str, engine: &impl Engine) -> Result<Vec<u8>, Unusable> {
    engine.decode(text).map_err(|_| Unusable::Base64)
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Unusable> {
    bytes.try_into().map_err(|_| Unusable::Length(bytes.len()))
}

/// Argon2 wants eight bytes; the others are not looked at twice.
fn salt_of(text: &str, engine: &impl Engine) -> Result<Box<[u8]>, Unusable> {
    let salt = decode(text, engine)?;
    if (8..=SALT_BYTES_MAX).contains(&salt.len()) { Ok(salt.into()) } else { Err(Unusable::Length(salt.len())) }
}

fn number(text: &str) -> Result<u32, Unusable> {
    // `parse` takes a sign.
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().map_err(|_| Unusable::Parts) } else { Err(Unusable::Parts) }
}

fn check_iterations(given: u32, least: u32) -> Result<u32, Unusable> {
    if (least..=ITERATIONS_MAX).contains(&given) { Ok(given) } else { Err(Unusable::Iterations { given, least }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7677, section 3: the password is `pencil`.
    const PENCIL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn what_is_made_is_read_back_and_good_for_its_password_alone() {
        for (hash, iterations, prefix) in [
            (Hash::Sha512, None, "$6$"),
            (Hash::Sha512Pbkdf2, None, "$7$1000$"),
            (Hash::Sha512Pbkdf2, Some(101), "$7$101$"),
            (Hash::Argon2id, None, "$argon2id$v=19$m=47104,t=1,p=1$"),
            (Hash::ScramSha256, None, "SCRAM-SHA-256$15000:"),
        ] {
            let record = Record::new(hash, iterations, "p\u{e4}ss".as_bytes()).unwrap();
            let text = record.to_string();
            assert!(text.starts_with(prefix), "{text}");
            assert!(Record::parse(&text).unwrap() == record);
            assert!(record.verify("p\u{e4}ss".as_bytes()), "{text}");
            assert!(!record.verify(b"pass") && !record.verify(b"") && !record.verify(b"\xff"), "{text}");
            assert_ne!(
                Record::new(hash, iterations, b"x").unwrap().to_string(),
                Record::new(hash, iterations, b"x").unwrap().to_string()
            );
            assert!(!text.contains(&format!("{record:?}")));
        }
    }

    #[test]
    fn scram_records_are_as_others_make_them() {
        let record = Record::parse(PENCIL).unwrap();
        assert!(record.verify(b"pencil") && !record.verify(b"Pencil"));
        // SASLprep (RFC 4013): a soft hyphen is nothing, a no-break space a space, and a control character is refused.
        let record = Record::new(Hash::ScramSha256, Some(4_096), "I\u{ad}X\u{a0}y".as_bytes()).unwrap();
        assert!(record.verify(b"IX y"));
        assert_eq!(Record::new(Hash::ScramSha256, None, b"a\x07").unwrap_err(), Unusable::Saslprep);
    }

    #[test]
    fn the_vector_of_the_reference_implementation() {
        // argon2 20190702, `echo -n password | argon2 somesalt -id -t 2 -m 16 -p 1`.
        let text = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        let record = Record::parse(text).unwrap();
        assert!(record.verify(b"password") && !record.verify(b"Password"));
        assert_eq!(record.to_string(), text);
    }

    #[test]
    fn hashes_of_plug_ins_and_web_applications_are_read() {
        for (text, password) in [
            // pbkdf2-check.c of mosquitto-auth-plug: the salt is its text.
            ("PBKDF2$sha256$10000$eytf9sEo8EprP9P3$2eO6tROHiqI3bm+gg+vpmWooWMpz1zji", "hello"),
            // Python's hashlib.pbkdf2_hmac with the salt decoded, as mosquitto-go-auth does it.
            ("PBKDF2$sha256$1000$c2FsdHNhbHRzYWx0c2FsdA==$xPtC4aQfrHLOSvRtiZU27kFX0pKUApJLNyyiYPHQ6AY=", "hello"),
            // crypt(3).
            ("$2b$04$abcdefghijklmnopqrstuuwHJMEGjfAzmL1lWmUmlphguIbWfjYey", "hello"),
        ] {
            let record = Record::parse(text).unwrap();
            assert!(record.verify(password.as_bytes()) && !record.verify(b"Hello") && !record.verify(b""), "{text}");
            assert_eq!(record.to_string(), text);
        }
        let sha512 = "PBKDF2$sha512$1000$c2FsdHNhbHRzYWx0c2FsdA==$";
        let hash = |salt: &[u8]| format!("{sha512}{}", STANDARD.encode(pbkdf2(b"hello", salt, 1_000)));
        for salt in [&b"saltsaltsaltsalt"[..], b"c2FsdHNhbHRzYWx0c2FsdA=="] {
            assert!(Record::parse(&hash(salt)).unwrap().verify(b"hello"));
        }
        for (text, why) in [
            ("PBKDF2$md5$1000$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAAAA", Unusable::Unknown),
            ("PBKDF2$sha256$1000$c2FsdHNhbHQ", Unusable::Parts),
            ("PBKDF2$sha256$0$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAAAA", Unusable::Iterations { given: 0, least: 1 }),
            ("PBKDF2$sha256$9$c2FsdHNhbHQ$AAAA", Unusable::Length(3)),
            ("PBKDF2$sha256$9$c2$AAAAAAAAAAAAAAAAAAAAAAAA", Unusable::Length(2)),
            ("$2b$15$abcdefghijklmnopqrstuuwHJMEGjfAzmL1lWmUmlphguIbWfjYey", Unusable::Bcrypt(15)),
            ("$2b$04$abcdefghijklmnopqrstuuwHJMEGjfAzmL1lWmUmlphguIbWfj!ey", Unusable::Base64),
            ("$2b$04$short", Unusable::Length(12)),
        ] {
            assert_eq!(Record::parse(text).unwrap_err(), why, "{text}");
        }
    }

    #[test]
    fn what_is_no_record_or_unbearable_is_refused() {
        let hash = STANDARD.encode([0; HASH_BYTES]);
        let key = STANDARD.encode([0; KEY_BYTES]);
        let argon2 = |cost: &str| format!("$argon2id$v=19${cost}$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc");
        for (text, why) in [
            (String::new(), Unusable::Unknown),
            ("secret".to_owned(), Unusable::Unknown),
            ("$5$AAAA$AAAA".to_owned(), Unusable::Unknown),
            ("$argon2i$v=19$m=1,t=1,p=1$AA$AA".to_owned(), Unusable::Unknown),
            ("$6$".to_owned(), Unusable::Parts),
            (format!("$6${hash}"), Unusable::Parts),
            (format!("$6$AAAAAAAAAAA=${hash}$"), Unusable::Parts),
            (format!("$6$AAAAAAAAAAA=${}", &hash[1..]), Unusable::Base64),
            (format!("$6$AAAA${hash}"), Unusable::Length(3)),
            (format!("$6$AAAAAAAAAAA=${key}"), Unusable::Length(KEY_BYTES)),
            (format!("$7$0$AAAAAAAAAAA=${hash}"), Unusable::Iterations { given: 0, least: 1 }),
            (format!("$7$4294967295$AAAAAAAAAAA=${hash}"), Unusable::Iterations { given: u32::MAX, least: 1 }),
            (format!("$7$+5$AAAAAAAAAAA=${hash}"), Unusable::Parts),
            (format!("$7$99999999999$AAAAAAAAAAA=${hash}"), Unusable::Parts),
            (format!("$7$$AAAAAAAAAAA=${hash}"), Unusable::Parts),
            (format!("SCRAM-SHA-256$1:AAAAAAAAAAA=${key}:{key}"), Unusable::Iterations { given: 1, least: 4_096 }),
            (format!("SCRAM-SHA-256$4096:AAAAAAAAAAA=${key}"), Unusable::Parts),
            (argon2("m=4194304,t=1,p=1"), Unusable::Argon2 { memory_kib: 4_194_304, passes: 1, lanes: 1 }),
            (argon2("m=262144,t=4294967295,p=1"), Unusable::Argon2 { memory_kib: 262_144, passes: u32::MAX, lanes: 1 }),
            (argon2("m=65536,t=1,p=17"), Unusable::Argon2 { memory_kib: 65_536, passes: 1, lanes: 17 }),
            (argon2("m=65536,t=1,p=0"), Unusable::Argon2 { memory_kib: 65_536, passes: 1, lanes: 0 }),
            (argon2("m=65536,p=1,t=1"), Unusable::Parts),
            (argon2("m=65536,t=1,p=1").replace("v=19", "v=16"), Unusable::Parts),
        ] {
            assert_eq!(Record::parse(&text).unwrap_err(), why, "{text:?}");
        }
        assert_eq!(Record::new(Hash::Sha512, Some(5), b"x").unwrap_err(), Unusable::NoIterations);
        assert_eq!(Record::new(Hash::ScramSha256, Some(1), b"x").unwrap_err(), Unusable::Iterations { given: 1, least: 4_096 });
    }
}

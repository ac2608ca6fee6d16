//! Who may come in, and what a client may say and hear: pure decisions over rules that are loaded already.
//!
//! [`Users`] is a password file, [`Rules`] an access file, [`Policy`] what holds at one listener, [`Access`] what one client may do. [`Scram`] is
//! the server's side of SCRAM-SHA-256. Reading files is `policies`'s, and so is hashing off the threads that serve clients `connection`'s: what
//! is slow here ([`Record::verify`], [`Record::new`]) says so.
//!
//! Invariants:
//! - What is not granted is denied. A file that says nothing, or anything that is not understood, is an error and never a grant.
//! - Names that a client chooses for itself (client id, user name) fill exactly one level of a pattern or none: a wildcard, a separator or a
//!   leading `$` in them never widens what a pattern grants, and never narrows what it denies.
//! - Secrets are compared in constant time, and appear in no error, log or `Debug` output.
//!
//! Specification: mosquitto.conf(5), `acl_file` and `password_file`, for the files; MQTT 5.0 sections 4.12 and 5.4; RFC 5802 and RFC 7677
//! (SCRAM-SHA-256), RFC 5803 (its records), RFC 4013 (SASLprep), RFC 8018 (PBKDF2), RFC 9106 (Argon2).

mod access;
mod account;
mod acl;
mod error;
mod password;
mod policy;
mod scram;
mod users;

pub use access::{Access, Identity, Place};
pub use account::{Account, Accounts, Backend, Granted, Known, Look, Remembered, Seal, Shown, Term, user_of};
pub use acl::{MAY_READ, MAY_SUBSCRIBE, MAY_WRITE, Rules};
pub use error::{FileError, Problem};
pub use password::{Hash, Record, Unusable};
pub use policy::{Claim, Policy, Standing};
pub use scram::{SCRAM_SHA_256, Scram, ScramError};
pub use users::{PasswordFile, UserNameError, Users};

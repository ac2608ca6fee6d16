//! Proof of what a broker says of itself and others pass on: its claim to the root of a tree, its record, the deltas of its register. The broker signs with the key of
//! its certificate; whoever hears the word checks the signature, and the certificate as a handshake would, before it believes or passes
//! on a letter of it.
//!
//! Two kinds of refusal ([`ProofError::is_forged`]). What every broker checks alike, whatever it trusts and whatever its clock says (a
//! wrong signature, another broker's certificate), is the fault of whoever passes it on: it should have checked. What depends on here and now
//! (expired, revoked, of an authority that we do not trust yet) is nobody's fault: our neighbour may not have the list that we have.
//!
//! What is signed begins with a text that names its kind, so that no signature passes for one of another kind, nor for one of a TLS
//! handshake, which begins with 64 spaces (RFC 8446 section 4.4.3); then comes the mesh.
//!
//! A certificate is parsed and checked once, and again when credentials were reloaded or it expires; one that is not admitted, every few
//! seconds at most. Both memories are bounded, and begun anew when they are full.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rustls::SignatureScheme;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm};
use rustls::sign::SigningKey;
use x509_parser::asn1_rs::Any;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::identity::{Identity, IdentityError};
use super::pki::Validity;
use super::tls::{Credentials, Objection, SharedCredentials, provider, validity};
use crate::frame::{Reader, put_block, put_tree};
use crate::ids::{BrokerId, TreeId};
use crate::limits::{CERTIFICATE_CHAIN_MAX, CERTIFICATES_CHECKED_BYTES_MAX};
use crate::shared::Signature;

const CLAIM: &[u8] = b"mqtt-st-quic root claim v1\0";
const RECORD: &[u8] = b"mqtt-st-quic broker record v1\0";
const DELTA: &[u8] = b"mqtt-st-quic register delta v1\0";

/// For so long a certificate that is not admitted is not judged again: it may not be valid yet.
const OBJECTION_LIFE: Duration = Duration::from_secs(5);
/// So many of these are remembered.
const OBJECTIONS_MAX: usize = 128;

/// Why a word is not believed.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// Bytes that are no certificates, or too many.
    #[error("what should be a certificate is none")]
    Certificate,
    /// A certificate that names no broker.
    #[error("signed with a certificate of nobody: {0}")]
    Identity(#[from] IdentityError),
    /// A broker of another mesh.
    #[error("signed by a broker of mesh {0:?}")]
    OtherMesh(String),
    /// Not who should have signed.
    #[error("said by broker {signer}, signed by {certified}")]
    OtherBroker {
        /// Whose word it should be.
        signer: BrokerId,
        /// Whose certificate it is.
        certified: BrokerId,
    },
    /// The signature is of something else, or with another key.
    #[error("a signature of broker {0} is wrong")]
    Signature(BrokerId),
    /// A signature scheme that this broker does not know.
    #[error("a signature of broker {signer} by scheme {scheme:#06x}, which is not known here")]
    Scheme {
        /// Whose.
        signer: BrokerId,
        /// RFC 8446 section 4.2.3.
        scheme: u16,
    },
    /// The signer is not admitted here at present.
    #[error("signed by broker {signer}: {objection}")]
    Untrusted {
        /// Who.
        signer: BrokerId,
        /// Why.
        objection: Objection,
    },
    /// Our own key.
    #[error("this broker's key does not sign: {0}")]
    Key(rustls::Error),
}

impl ProofError {
    /// Whether no honest broker passes it on.
    pub(super) fn is_forged(&self) -> bool {
        match self {
            Self::Certificate | Self::Identity(_) | Self::OtherMesh(_) | Self::OtherBroker { .. } | Self::Signature(_) => true,
            Self::Scheme { .. } | Self::Untrusted { .. } | Self::Key(_) => false,
        }
    }
}

/// What a broker may sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statement<'a> {
    /// It is the root of this tree.
    Claim(&'a TreeId),
    /// Its record, as it travels.
    Record(&'a [u8]),
    /// A delta of its register, as it travels.
    Delta(&'a [u8]),
}

impl Statement<'_> {
    fn message(self, mesh: &str) -> Vec<u8> {
        let mut message = Vec::new();
        message.extend_from_slice(match self {
            Self::Claim(_) => CLAIM,
            Self::Record(_) => RECORD,
            Self::Delta(_) => DELTA,
        });
        put_block(&mut message, mesh.as_bytes());
        match self {
            Self::Claim(tree) => put_tree(&mut message, tree),
            Self::Record(word) | Self::Delta(word) => message.extend_from_slice(word),
        }
        message
    }
}

/// Our key, and the certificates of others that were found good.
pub(super) struct Keyring {
    credentials: SharedCredentials,
    state: Mutex<State>,
}

struct State {
    /// Of which the rest is made.
    credentials: Arc<Credentials>,
    key: Option<Arc<dyn SigningKey>>,
    chain: Bytes,
    checked: HashMap<Bytes, Arc<Certificate>>,
    /// Of all chains in `checked`.
    bytes: usize,
    refused: HashMap<Bytes, Refused>,
}

/// A chain that was not admitted.
struct Refused {
    certificate: Certificate,
    objection: Objection,
    /// Since the Unix epoch.
    at: Duration,
}

/// What is needed of a chain.
struct Certificate {
    identity: Identity,
    /// The key's kind and the key, as in SubjectPublicKeyInfo (RFC 5280 section 4.1.2.7).
    algorithm: Vec<u8>,
    key: Vec<u8>,
    validity: Validity,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    pub(super) fn new(credentials: SharedCredentials) -> Self {
        let state = Mutex::new(State::new(credentials.load_full()));
        Self { credentials, state }
    }

    /// Signs with our key.
    pub(super) fn sign(&self, statement: Statement<'_>) -> Result<Signature, ProofError> {
        let mut state = self.state.lock();
        state.follow(&self.credentials);
        let algorithms = provider().signature_verification_algorithms;
        let key = state.key.as_ref().ok_or_else(|| ProofError::Key(rustls::Error::General("it cannot be used".to_owned())))?;
        let signer = key
            .choose_scheme(&algorithms.supported_schemes())
            .ok_or_else(|| ProofError::Key(rustls::Error::General("it fits no signature scheme".to_owned())))?;
        let message = statement.message(&state.credentials.identity().mesh);
        let bytes = signer.sign(&message).map_err(ProofError::Key)?.into();
        Ok(Signature { chain: state.chain.clone(), scheme: signer.scheme().into(), bytes })
    }

    /// Checks that `signer`, a broker that is admitted at `now` since the Unix epoch, has signed this. Says when its certificate is valid.
    pub(super) fn check(
        &self,
        statement: Statement<'_>,
        signer: BrokerId,
        signature: &Signature,
        now: Duration,
    ) -> Result<Validity, ProofError> {
        let mut state = self.state.lock();
        state.follow(&self.credentials);
        let mesh = state.credentials.identity().mesh.clone();
        let certificate = state.certificate(signer, &signature.chain, now)?;
        drop(state);
        let algorithm = certificate.algorithm(signature.scheme).ok_or(ProofError::Scheme { signer, scheme: signature.scheme })?;
        let verified = algorithm.verify_signature(&certificate.key, &statement.message(&mesh), &signature.bytes);
        verified.map(|()| certificate.validity).map_err(|_| ProofError::Signature(signer))
    }

    /// The chain as bytes that are shared with whoever holds the same one, if it was found good before.
    pub(super) fn intern(&self, chain: &[u8]) -> Bytes {
        let state = self.state.lock();
        state.checked.get_key_value(chain).map_or_else(|| Bytes::copy_from_slice(chain), |(known, _)| known.clone())
    }

    /// The chain that we sign with at present.
    pub(super) fn chain(&self) -> Bytes {
        let mut state = self.state.lock();
        state.follow(&self.credentials);
        state.chain.clone()
    }
}

impl State {
    fn new(credentials: Arc<Credentials>) -> Self {
        let key = provider().key_provider.load_private_key(credentials.key.clone_key()).ok();
        let mut chain = Vec::new();
        credentials.chain.iter().for_each(|certificate| put_block(&mut chain, certificate));
        Self { credentials, key, chain: chain.into(), checked: HashMap::new(), bytes: 0, refused: HashMap::new() }
    }

    /// Begins anew where credentials were reloaded.
    fn follow(&mut self, shared: &SharedCredentials) {
        let present = shared.load();
        if !Arc::ptr_eq(&present, &self.credentials) {
            *self = Self::new(Arc::clone(&present));
        }
    }

    fn certificate(&mut self, signer: BrokerId, chain: &Bytes, now: Duration) -> Result<Arc<Certificate>, ProofError> {
        if let Some(known) = self.checked.get(chain) {
            if now < known.validity.not_after {
                let known = Arc::clone(known);
                return known.check_signer(signer, &self.credentials).map(|()| known);
            }
            self.checked.remove(chain);
            self.bytes -= chain.len();
        }
        if let Some(refused) = self.refused.get(chain).filter(|refused| (refused.at..refused.at + OBJECTION_LIFE).contains(&now)) {
            refused.certificate.check_signer(signer, &self.credentials)?;
            return Err(ProofError::Untrusted { signer, objection: refused.objection.clone() });
        }
        let ders = read_chain(chain)?;
        let certificate = Certificate::read(&ders)?;
        certificate.check_signer(signer, &self.credentials)?;
        if let Err(objection) = self.credentials.verify(&ders, now) {
            if self.refused.len() >= OBJECTIONS_MAX {
                self.refused.clear();
            }
            self.refused.insert(chain.clone(), Refused { certificate, objection: objection.clone(), at: now });
            return Err(ProofError::Untrusted { signer, objection });
        }
        let certificate = Arc::new(certificate);
        if self.bytes + chain.len() > CERTIFICATES_CHECKED_BYTES_MAX {
            self.checked.clear();
            self.bytes = 0;
        }
        self.bytes += chain.len();
        self.checked.insert(chain.clone(), Arc::clone(&certificate));
        Ok(certificate)
    }
}

fn read_chain(chain: &[u8]) -> Result<Vec<CertificateDer<'_>>, ProofError> {
    let mut reader = Reader::new(chain);
    let mut ders = Vec::new();
    while !reader.is_empty() {
        ders.push(CertificateDer::from(reader.block("certificate").map_err(|_| ProofError::Certificate)?));
        if ders.len() > CERTIFICATE_CHAIN_MAX {
            return Err(ProofError::Certificate);
        }
    }
    Ok(ders)
}

impl Certificate {
    fn read(ders: &[CertificateDer<'_>]) -> Result<Self, ProofError> {
        let first = ders.first().ok_or(ProofError::Certificate)?;
        let identity = Identity::of_certificate(first)?;
        let (_, parsed) = X509Certificate::from_der(first).map_err(|_| ProofError::Certificate)?;
        let subject = parsed.public_key();
        // SubjectPublicKeyInfo and in it AlgorithmIdentifier are sequences; rustls names algorithms by what is inside the latter.
        let (_, outer) = Any::from_der(subject.raw).map_err(|_| ProofError::Certificate)?;
        let (_, algorithm) = Any::from_der(outer.data).map_err(|_| ProofError::Certificate)?;
        let (algorithm, key) = (algorithm.data.to_vec(), subject.subject_public_key.data.to_vec());
        Ok(Self { identity, algorithm, key, validity: validity(ders) })
    }

    fn check_signer(&self, signer: BrokerId, ours: &Credentials) -> Result<(), ProofError> {
        if self.identity.mesh != ours.identity().mesh {
            return Err(ProofError::OtherMesh(self.identity.mesh.clone()));
        }
        if self.identity.id != signer {
            return Err(ProofError::OtherBroker { signer, certified: self.identity.id });
        }
        Ok(())
    }

    fn algorithm(&self, scheme: u16) -> Option<&'static dyn SignatureVerificationAlgorithm> {
        let mapping = provider().signature_verification_algorithms.mapping;
        let (_, algorithms) = mapping.iter().find(|(known, _)| *known == SignatureScheme::from(scheme))?;
        algorithms.iter().copied().find(|algorithm| algorithm.public_key_alg_id().as_ref() == self.algorithm)
    }
}

#[cfg(test)]
mod tests {
    use arc_swap::ArcSwap;
    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};

    use super::super::identity::DIAL_NAME;
    use super::super::pki::{Authority, PemPair, Validity};
    use super::*;
    use crate::clock;
    use crate::ids::{Incarnation, RootClaim};

    fn authority() -> Authority {
        Authority::create("m", Validity::days(9)).unwrap()
    }

    fn keyring_of(authority: &Authority, pair: &PemPair) -> (Keyring, SharedCredentials) {
        let shared = Arc::new(ArcSwap::from_pointee(Credentials::of_authority(authority, pair).unwrap()));
        (Keyring::new(Arc::clone(&shared)), shared)
    }

    fn keyring(authority: &Authority, name: &str) -> Keyring {
        keyring_of(authority, &authority.issue_broker("m", name, &[], Validity::days(1)).unwrap()).0
    }

    /// The keyring of a broker whose list says that `revoked` is.
    fn with_list(authority: &Authority, name: &str, revoked: &PemPair) -> Keyring {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::write(&path, text).unwrap();
            Some(path)
        };
        let pair = authority.issue_broker("m", name, &[], Validity::days(1)).unwrap();
        let serial = authority.serial_of(&revoked.certificate).unwrap();
        let mesh = crate::config::Mesh {
            cafile: write("ca.pem", authority.certificate()),
            certfile: write("cert.pem", &pair.certificate),
            keyfile: write("cert.key", &pair.key),
            crlfile: write("ca.crl", &authority.revocation_list(None, &[serial], Validity::days(1)).unwrap()),
            ..crate::config::Mesh::default()
        };
        Keyring::new(Arc::new(ArcSwap::from_pointee(Credentials::load(&mesh).unwrap())))
    }

    fn id(name: &str) -> BrokerId {
        BrokerId::derive("m", name)
    }

    fn tree(root: &str) -> TreeId {
        let root = RootClaim { priority: 32_768, capacity: 3, id: id(root), incarnation: Incarnation(1_700_000_000_000) };
        TreeId { epoch: 5, root }
    }

    fn check(by: &Keyring, tree: &TreeId, signature: &Signature) -> Result<Validity, ProofError> {
        by.check(Statement::Claim(tree), tree.root.id, signature, clock::unix_time())
    }

    #[test]
    fn a_claim_is_believed_to_the_letter() {
        let ours = authority();
        let (a, b) = (keyring(&ours, "a"), keyring(&ours, "b"));
        let good = tree("a");
        let signature = a.sign(Statement::Claim(&good)).unwrap();
        for _ in 0..2 {
            assert!(check(&b, &good, &signature).unwrap().not_after > clock::unix_time(), "the second time out of memory");
        }
        let altered = [
            TreeId { epoch: 6, ..good },
            TreeId { root: RootClaim { priority: 0, ..good.root }, ..good },
            TreeId { root: RootClaim { capacity: 4, ..good.root }, ..good },
            TreeId { root: RootClaim { incarnation: Incarnation(1), ..good.root }, ..good },
        ];
        for tree in altered {
            assert!(matches!(check(&b, &tree, &signature), Err(error @ ProofError::Signature(_)) if error.is_forged()), "{tree:?}");
        }
        let stolen = TreeId { root: RootClaim { id: id("b"), ..good.root }, ..good };
        let error = check(&b, &stolen, &signature).unwrap_err();
        assert!(matches!(error, ProofError::OtherBroker { signer, certified } if (signer, certified) == (id("b"), id("a"))));
        assert!(error.is_forged());
        for at in 0..signature.bytes.len() {
            let mut bytes = signature.bytes.to_vec();
            bytes[at] ^= 1;
            let tampered = Signature { bytes: bytes.into(), ..signature.clone() };
            assert!(matches!(check(&b, &good, &tampered), Err(ProofError::Signature(_))), "byte {at}");
        }
        let by_b = Signature { bytes: b.sign(Statement::Claim(&good)).unwrap().bytes, ..signature.clone() };
        assert!(matches!(check(&a, &good, &by_b), Err(ProofError::Signature(_))));
        for scheme in [0x0503, 0x0807, 0x0804, 0x9999] {
            let other = Signature { scheme, ..signature.clone() };
            let error = check(&b, &good, &other).unwrap_err();
            assert!(matches!(error, ProofError::Scheme { .. } | ProofError::Signature(_)), "{scheme:#x}: {error}");
        }
    }

    #[test]
    fn a_signature_is_of_one_kind() {
        let ours = authority();
        let a = keyring(&ours, "a");
        let (claim, mut bytes) = (tree("a"), Vec::new());
        put_tree(&mut bytes, &claim);
        let of_record = a.sign(Statement::Record(&bytes)).unwrap();
        let now = clock::unix_time();
        assert!(a.check(Statement::Record(&bytes), id("a"), &of_record, now).is_ok());
        assert!(matches!(check(&a, &claim, &of_record), Err(ProofError::Signature(_))));
        let of_claim = a.sign(Statement::Claim(&claim)).unwrap();
        assert!(matches!(a.check(Statement::Record(&bytes), id("a"), &of_claim, now), Err(ProofError::Signature(_))));
    }

    #[test]
    fn who_is_not_admitted_here_is_nobodys_fault_and_a_stranger_is() {
        let (ours, theirs) = (authority(), authority());
        let b = keyring(&ours, "b");
        let now = clock::unix_time();
        let day = Duration::from_secs(86_400);
        let expired = Validity { not_before: now - 3 * day, not_after: now - day };
        let early = Validity { not_before: now + day, not_after: now + 2 * day };
        for (authority, validity) in [(&ours, expired), (&ours, early), (&theirs, Validity::days(1))] {
            let pair = authority.issue_broker("m", "a", &[], validity).unwrap();
            let signature = keyring_of(authority, &pair).0.sign(Statement::Claim(&tree("a"))).unwrap();
            let error = check(&b, &tree("a"), &signature).unwrap_err();
            assert!(matches!(error, ProofError::Untrusted { .. }) && !error.is_forged(), "{error}");
        }
        let revoked = ours.issue_broker("m", "a", &[], Validity::days(1)).unwrap();
        let signature = keyring_of(&ours, &revoked).0.sign(Statement::Claim(&tree("a"))).unwrap();
        assert!(check(&b, &tree("a"), &signature).is_ok());
        let error = check(&with_list(&ours, "b", &revoked), &tree("a"), &signature).unwrap_err();
        assert!(error.to_string().contains("revoked") && !error.is_forged(), "{error}");
        let pair = ours.issue_broker("n", "a", &[], Validity::days(1)).unwrap();
        let signature = keyring_of(&ours, &pair).0.sign(Statement::Claim(&tree("a"))).unwrap();
        assert!(matches!(check(&b, &tree("a"), &signature), Err(ProofError::OtherMesh(mesh)) if mesh == "n"));
        let mut authority_only = Vec::new();
        let der = rustls::pki_types::pem::PemObject::from_pem_slice(ours.certificate().as_bytes());
        let der: CertificateDer<'_> = der.unwrap();
        put_block(&mut authority_only, &der);
        let many = b.chain().repeat(CERTIFICATE_CHAIN_MAX + 1);
        for chain in [Vec::new(), b"\x05abc".to_vec(), b"\x03abc".to_vec(), authority_only, many] {
            let error = check(&b, &tree("b"), &Signature { chain: chain.into(), ..signature.clone() }).unwrap_err();
            assert!(error.is_forged(), "{error}");
        }
    }

    #[test]
    fn a_reload_counts_for_what_is_signed_and_for_whom_we_trust() {
        let (ours, theirs) = (authority(), authority());
        let issue = |authority: &Authority, name| authority.issue_broker("m", name, &[], Validity::days(1)).unwrap();
        let (a, (b, shared)) = (keyring(&ours, "a"), keyring_of(&ours, &issue(&ours, "b")));
        let (before, signature) = (b.chain(), a.sign(Statement::Claim(&tree("a"))).unwrap());
        assert!(check(&b, &tree("a"), &signature).is_ok());
        assert_eq!(b.intern(&signature.chain).as_ptr(), signature.chain.as_ptr(), "one copy of what is known");
        let later = clock::unix_time() + Duration::from_secs(2 * 86_400);
        let error = b.check(Statement::Claim(&tree("a")), id("a"), &signature, later).unwrap_err();
        assert!(matches!(error, ProofError::Untrusted { .. }), "what is remembered expires: {error}");
        assert!(check(&b, &tree("a"), &signature).is_ok());

        shared.store(Arc::new(Credentials::of_authority(&theirs, &issue(&theirs, "b")).unwrap()));
        assert!(matches!(check(&b, &tree("a"), &signature), Err(ProofError::Untrusted { .. })));
        let own = b.sign(Statement::Claim(&tree("b"))).unwrap();
        assert!(b.chain() != before && own.chain == b.chain());
        assert!(check(&b, &tree("b"), &own).is_ok() && check(&a, &tree("b"), &own).is_err());
    }

    #[test]
    fn who_is_not_admitted_is_judged_again_only_after_a_while() {
        let ours = authority();
        let b = keyring(&ours, "b");
        let now = clock::unix_time();
        let soon = Validity { not_before: now + OBJECTION_LIFE / 2, not_after: now + Duration::from_secs(86_400) };
        let early = keyring_of(&ours, &ours.issue_broker("m", "a", &[], soon).unwrap()).0;
        let signature = early.sign(Statement::Claim(&tree("a"))).unwrap();
        let judge = |signer: &str, at| b.check(Statement::Claim(&tree(signer)), id(signer), &signature, at);
        assert!(matches!(judge("a", now), Err(ProofError::Untrusted { .. })));
        let remembered = now + OBJECTION_LIFE - Duration::from_secs(1);
        assert!(matches!(judge("a", remembered), Err(ProofError::Untrusted { .. })), "it would be good now");
        assert!(judge("c", remembered).is_err_and(|error| error.is_forged()), "a lie is one all the same");
        assert!(judge("a", now + OBJECTION_LIFE).is_ok());

        let strangers = authority();
        for n in 0..=OBJECTIONS_MAX {
            let name = format!("s{n}");
            let signature = keyring(&strangers, &name).sign(Statement::Claim(&tree(&name))).unwrap();
            assert!(check(&b, &tree(&name), &signature).is_err());
            assert!(b.state.lock().refused.len() <= OBJECTIONS_MAX);
        }
    }

    /// What authorities other than ours may use.
    #[test]
    fn keys_of_other_kinds_sign_too() {
        let ours = authority();
        let b = keyring(&ours, "b");
        let PemPair { certificate, key } = ours.to_pem();
        let issuer = Issuer::from_ca_cert_pem(&certificate, KeyPair::from_pem(&key).unwrap()).unwrap();
        for (kind, scheme) in [(&rcgen::PKCS_ECDSA_P384_SHA384, 0x0503), (&rcgen::PKCS_ED25519, 0x0807)] {
            let mut params = CertificateParams::default();
            let uri = Identity::derive("m", "a").unwrap().uri();
            params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap()), SanType::DnsName(DIAL_NAME.try_into().unwrap())];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate_for(kind).unwrap();
            let pair = PemPair { certificate: params.signed_by(&key, &issuer).unwrap().pem(), key: key.serialize_pem() };
            let (a, _) = keyring_of(&ours, &pair);
            let signature = a.sign(Statement::Claim(&tree("a"))).unwrap();
            assert_eq!(signature.scheme, scheme);
            assert!(check(&b, &tree("a"), &signature).is_ok());
            assert!(check(&b, &TreeId { epoch: 6, ..tree("a") }, &signature).is_err());
        }
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a measurement, shown where it is asked for")]
    fn what_a_thousand_brokers_cost() {
        const BROKERS: u32 = 1_000;
        let ours = authority();
        let reader = keyring(&ours, "reader");
        let names: Vec<_> = (0..BROKERS).map(|n| format!("b{n}")).collect();
        let signers: Vec<_> = names.iter().map(|name| keyring(&ours, name)).collect();
        let record = vec![b'x'; 1_500];
        // Of this thread alone: the machine may be busy.
        let busy = || Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).unwrap();
        let began = busy();
        let signatures: Vec<_> = signers.iter().map(|signer| signer.sign(Statement::Record(&record)).unwrap()).collect();
        let sign = (busy() - began) / BROKERS;
        let mut checks = [(); 2].map(|()| {
            let began = busy();
            for (name, signature) in names.iter().zip(&signatures) {
                assert!(reader.check(Statement::Record(&record), id(name), signature, clock::unix_time()).is_ok(), "{name}");
            }
            (busy() - began) / BROKERS
        });
        checks.sort();
        let [known, new] = checks;
        println!(
            "processor time of a record of 1.5 kB: signed in {sign:?}, checked in {known:?}, {new:?} where the certificate is new"
        );
    }
}

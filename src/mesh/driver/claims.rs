//! Stands between the links and the tree: what a peer says of a tree goes in only when the tree's root has proved its claim; what we say of
//! one goes out with the claim. `stp` knows nothing of it.
//!
//! A claim that cannot be honest ends its link. One that is not acceptable here at present (expired, revoked, too many at once) waits, with
//! the last BPDU that stands on it, and is looked at again every second: to the tree that is a slow link. Meanwhile what the peer
//! said before stands, which is safe for the same reason as any late word is.
//!
//! A root whose certificate is renewed claims its present tree once more, and everybody passes the claim with the newer certificate on, so
//! that a broker that comes later is not shown one that is expired or revoked. A reload judges the claims that are held once more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use super::words::{Budget, Budgets, Claim, Hearing, Words};
use super::{Driver, Entry};
use crate::clock;
use crate::frame::control::{ControlFrame, Seal};
use crate::ids::{PortId, TreeId};
use crate::mesh::error::LinkError;
use crate::mesh::link::OwnedSeal;
use crate::mesh::proof::Statement;
use crate::shared::{Signature, SignedRecord};
use crate::stp::{Bpdu, Input};

/// Claims of one peer that are checked: at once, and one in each interval on the long run. A cold start of a thousand brokers brings tens.
const CLAIMS_AT_ONCE: u32 = 256;
const CLAIM_INTERVAL: Duration = Duration::from_millis(16);
/// The same for records, news or not, each counted by its size (`records::units`): a new neighbour tells of everybody at once. Of another
/// broker nobody can make many that are news: who has signed them is held to a record a second.
const RECORDS_AT_ONCE: u32 = 4_096;
const RECORD_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The same for deltas of registers that are news, or parts of a copy that was asked for.
const DELTAS_AT_ONCE: u32 = 8_192;
const DELTA_CHECK_INTERVAL: Duration = Duration::from_micros(500);
/// Probes of traces: each is answered, and followed over each link of the tree.
const PROBES_AT_ONCE: u32 = 16;
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Answers to them, of a whole mesh at once. Each is passed on to one neighbour.
const ANSWERS_AT_ONCE: u32 = 4_096;
const ANSWER_INTERVAL: Duration = Duration::from_millis(1);

pub(super) fn words(now: Instant) -> Words {
    Words::new(Budgets {
        claims: Budget::new(CLAIMS_AT_ONCE, CLAIM_INTERVAL, now),
        records: Budget::new(RECORDS_AT_ONCE, RECORD_CHECK_INTERVAL, now),
        deltas: Budget::new(DELTAS_AT_ONCE, DELTA_CHECK_INTERVAL, now),
        probes: Budget::new(PROBES_AT_ONCE, PROBE_INTERVAL, now),
        answers: Budget::new(ANSWERS_AT_ONCE, ANSWER_INTERVAL, now),
    })
}

impl Driver {
    pub(super) fn certificate(&mut self, port: PortId, slot: u16, chain: &[u8]) {
        let chain = self.settings.local.keyring.intern(chain);
        if let Some(entry) = self.entry(port) {
            entry.words.see(slot, chain);
        }
    }

    /// A peer sends a BPDU.
    pub(super) fn bpdu(&mut self, port: PortId, bpdu: Bpdu) {
        let Some(entry) = self.entry(port) else { return };
        match entry.words.hear(bpdu) {
            Ok(Hearing::Proven) => self.tree(Input::Bpdu { port, bpdu }),
            Ok(Hearing::Waits) => self.book.refusals.bpdus_waiting.add(1),
            Err(error) => {
                entry.link.fail(error.into());
                self.book.refusals.bpdus_forged.add(1);
            }
        }
    }

    /// A peer sends a root's claim.
    pub(super) fn claim(&mut self, port: PortId, tree: TreeId, seal: &OwnedSeal) {
        let Some(entry) = self.entry(port) else { return };
        let taken = entry.words.seen(seal.slot).map(|chain| seal.signature(chain));
        match taken.and_then(|signature| entry.words.claimed(tree, signature)) {
            Ok(()) => self.prove(port, true),
            Err(error) => {
                entry.link.fail(error.into());
                self.book.refusals.claims_forged.add(1);
            }
        }
    }

    /// Looks once more at the claims that wait.
    pub(super) fn prove_waiting(&mut self) {
        let waiting: Vec<_> =
            self.links.values().filter(|entry| entry.words.waiting().is_some()).map(|entry| entry.link.id).collect();
        waiting.into_iter().for_each(|port| self.prove(port, false));
    }

    /// Proves the claim that waits on a link, if it can be.
    fn prove(&mut self, port: PortId, is_news: bool) {
        let (now, unix_time) = (clock::now(), clock::unix_time());
        let Some(entry) = self.links.get_mut(&port.peer).filter(|entry| entry.link.id == port) else { return };
        let Some((tree, signature)) = entry.words.waiting().map(|(tree, signature)| (tree, signature.clone())) else { return };
        // What is known counts too: it is looked for among all links.
        if !entry.words.claims.take(now) {
            if is_news {
                self.book.refusals.claims_throttled.add(1);
                self.complain(port, "claims wait", &"they come faster than they are checked");
            }
            return;
        }
        let known = self.known_claim(tree);
        if let Some(known) = known.as_ref().filter(|known| known.signature == signature) {
            return self.proven(port, Arc::clone(known));
        }
        let checked = self.settings.local.keyring.check(Statement::Claim(&tree), tree.root.id, &signature, unix_time);
        match checked {
            Err(error) if error.is_forged() => {
                self.book.refusals.claims_forged.add(1);
                self.on_link(port, |link| link.fail(error.into()));
                return;
            }
            Ok(validity) => {
                let claim = Claim { tree, signature, validity, is_admitted: true };
                if known.as_ref().is_none_or(|known| claim.replaces(known, unix_time)) {
                    let claim = Arc::new(claim);
                    self.met_ourselves(tree);
                    if known.is_some() {
                        self.renew_claim(port, &claim);
                    }
                    return self.proven(port, claim);
                }
            }
            Err(error) if known.is_none() => {
                if is_news {
                    self.book.refusals.claims_untrusted.add(1);
                }
                self.complain(port, "a root's claim waits", &error);
            }
            Err(_) => {}
        }
        // What another link has shown to be good, or this one before, is good.
        if let Some(known) = known {
            self.proven(port, known);
        }
    }

    fn proven(&mut self, port: PortId, claim: Arc<Claim>) {
        let Some(entry) = self.entry(port) else { return };
        if let Some(bpdu) = entry.words.prove(claim) {
            self.tree(Input::Bpdu { port, bpdu });
        }
    }

    /// A claim of this tree that was proven.
    fn known_claim(&self, tree: TreeId) -> Option<Arc<Claim>> {
        let heard = self.links.values().flat_map(|entry| entry.words.proven());
        self.tree_claim.iter().chain(heard).find(|claim| claim.tree == tree).cloned()
    }

    /// The claim of a known tree has come with a newer certificate: it takes the other's place, and those who know the tree from
    /// us are told.
    fn renew_claim(&mut self, from: PortId, claim: &Arc<Claim>) {
        self.links.values_mut().for_each(|entry| entry.words.renew(claim));
        if self.tree_claim.as_ref().is_some_and(|held| held.tree == claim.tree) {
            self.tree_claim = Some(Arc::clone(claim));
            let knows =
                |entry: &&mut Entry| entry.link.id != from && entry.words.told.as_ref().is_some_and(|told| told.tree == claim.tree);
            self.links.values_mut().filter(knows).for_each(|entry| entry.send_claim(claim));
        }
    }

    /// Our tree is another: its claim is at hand now, whatever link it came by.
    pub(super) fn hold_claim(&mut self, tree: TreeId) {
        if self.tree_claim.as_ref().is_some_and(|held| held.tree == tree) {
            return;
        }
        let ours = tree.root == self.settings.tree.claim;
        self.tree_claim = if ours { self.sign_claim(tree) } else { self.known_claim(tree) };
        if self.tree_claim.is_none() {
            error!(?tree, "no claim for this broker's tree: neighbours are not told of it");
        }
    }

    fn sign_claim(&self, tree: TreeId) -> Option<Arc<Claim>> {
        let local = &self.settings.local;
        match local.keyring.sign(Statement::Claim(&tree)) {
            Ok(signature) => {
                Some(Arc::new(Claim { tree, signature, validity: local.credentials.load().validity(), is_admitted: true }))
            }
            Err(error) => {
                error!(%error, "this broker cannot claim to be a root");
                None
            }
        }
    }

    /// Sends a BPDU, after the claim that it stands on.
    pub(super) fn send_bpdu(&mut self, port: PortId, bpdu: Bpdu) {
        self.hold_claim(bpdu.tree);
        let Some(claim) = self.tree_claim.clone() else {
            // The tree takes it for said. Who brought the tree brings its claim again, and then all are told.
            if let Some(root_port) = self.stp.root_port() {
                self.on_link(root_port, |link| link.fail(LinkError::Unexpected("a tree whose claim is not known any more")));
            }
            return;
        };
        let Some(entry) = self.entry(port) else { return };
        if entry.words.told.as_ref().is_none_or(|told| told.tree != bpdu.tree) {
            entry.send_claim(&claim);
        }
        entry.link.send(&ControlFrame::Bpdu(bpdu));
    }

    /// Credentials were read anew: what we have said is signed with them, and what waits may be acceptable now.
    pub(super) fn follow_credentials(&mut self) {
        self.changed();
        self.judge_claims();
        let chain = self.settings.local.keyring.chain();
        let is_stale = |held: &Arc<Claim>| held.tree.root == self.settings.tree.claim && held.signature.chain != chain;
        if let Some(claim) = self.tree_claim.clone().filter(is_stale).and_then(|held| self.sign_claim(held.tree)) {
            let knows = |entry: &&mut Entry| entry.words.told.as_ref().is_some_and(|told| told.tree == claim.tree);
            self.links.values_mut().filter(knows).for_each(|entry| entry.send_claim(&claim));
            self.tree_claim = Some(claim);
        }
        self.prove_waiting();
    }

    /// Notes of the claims that are held whether their certificates admit now.
    fn judge_claims(&mut self) {
        let heard = self.links.values().flat_map(|entry| entry.words.proven());
        let held: Vec<_> = self.tree_claim.iter().chain(heard).cloned().collect();
        for claim in held {
            let statement = Statement::Claim(&claim.tree);
            let checked = self.settings.local.keyring.check(statement, claim.tree.root.id, &claim.signature, clock::unix_time());
            let judged = Arc::new(Claim { is_admitted: checked.is_ok(), ..Claim::clone(&claim) });
            self.links.values_mut().for_each(|entry| entry.words.renew(&judged));
            if let Some(held) = self.tree_claim.as_mut().filter(|held| held.tree == judged.tree) {
                *held = judged;
            }
        }
    }

    /// A root's claim that our own key has signed, in a later life than this one: we are cloned.
    fn met_ourselves(&mut self, tree: TreeId) {
        let mut life = self.settings.local.life.lock();
        if tree.root.id == self.settings.local.identity.id && tree.root.incarnation > life.incarnation() {
            self.fatal = life.met_later(tree.root.incarnation);
        }
    }

    /// What a peer has passed on is not taken, and that is not its fault.
    pub(super) fn complain(&self, port: PortId, what: &'static str, why: &dyn std::fmt::Display) {
        let peer = self.links.get(&port.peer).map(|entry| entry.link.peer.name.clone()).unwrap_or_default();
        let why = why.to_string();
        if self.complaints.is_news(&peer, &why, clock::now()) {
            warn!(%peer, %why, "{what}");
        }
    }
}

impl Entry {
    /// Shows the certificate where that is needed; what names it follows.
    pub(super) fn seal<'a>(&mut self, signature: &'a Signature) -> Seal<'a> {
        let (slot, is_new) = self.words.show(&signature.chain);
        if is_new {
            self.link.send(&ControlFrame::Certificate { slot, chain: &signature.chain });
        }
        Seal { slot, scheme: signature.scheme, signature: &signature.bytes }
    }

    fn send_claim(&mut self, claim: &Arc<Claim>) {
        let seal = self.seal(&claim.signature);
        self.link.send(&ControlFrame::Claim { tree: claim.tree, seal });
        self.words.told = Some(Arc::clone(claim));
    }

    pub(super) fn send_record(&mut self, signed: &SignedRecord) {
        let seal = self.seal(&signed.signature);
        self.link.send(&ControlFrame::Record { seal, record: &signed.wire });
    }
}

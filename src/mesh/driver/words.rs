//! What the two ends of one link have shown each other: certificates, and whose claims the peer's BPDUs stand on. Decisions as values: it
//! checks no signature and sends nothing.
//!
//! Invariants: a BPDU goes to the tree only after a claim of its tree that was proven; the peer's trees only grow; what is held is bounded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::ids::TreeId;
use crate::limits::CERTIFICATE_SLOTS;
use crate::mesh::pki::Validity;
use crate::shared::Signature;
use crate::stp::Bpdu;

/// A root's claim to a tree.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) tree: TreeId,
    pub(super) signature: Signature,
    /// Of the certificate.
    pub(super) validity: Validity,
    /// The certificate admitted its broker when it was last judged. What is not admitted here any more stays in force until it is
    /// replaced: what stands on it was proven, and others may still admit it.
    pub(super) is_admitted: bool,
}

impl Claim {
    /// Whether it takes the place of `held`, a claim of the same tree: the newer certificate does, whichever lasts longer, and any that
    /// admits where the one that is held does not.
    pub(super) fn replaces(&self, held: &Self, unix_time: Duration) -> bool {
        let age = |claim: &Self| (claim.validity.not_before, claim.validity.not_after);
        !held.is_admitted || held.validity.not_after <= unix_time || age(self) > age(held)
    }
}

/// What no honest peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// A tree that the peer has left behind: a replay.
    #[error("it goes back to epoch {} of root {}", .0.epoch, .0.root.id)]
    Replay(TreeId),
    /// A tree that its root was not shown to claim.
    #[error("epoch {} of root {}, and no claim to it", .0.epoch, .0.root.id)]
    NoClaim(TreeId),
    /// A certificate that was not shown.
    #[error("a signature with the certificate of slot {0}, where there is none")]
    NoCertificate(u16),
}

/// What to do with a BPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    /// It is for the tree.
    Proven,
    /// It is kept until the claim is proven.
    Waits,
}

/// One link's words.
#[derive(Debug)]
pub(super) struct Words {
    /// Certificates that the peer has shown, by slot.
    seen: BTreeMap<u16, Bytes>,
    shown: Shown,
    /// On which the BPDUs stand that the tree was given and may still follow: the last ones (see [`Self::keep`]).
    heard: Vec<Arc<Claim>>,
    /// The last one that was proven: one of those, or of a tree of which no BPDU has come yet.
    proven: Option<Arc<Claim>>,
    /// The last one that came, while it is not proven.
    waiting: Option<Waiting>,
    /// The claim that the peer was sent last.
    pub(super) told: Option<Arc<Claim>>,
    /// Claims that the peer may have checked.
    pub(super) claims: Budget,
    /// Records likewise.
    pub(super) records: Budget,
    /// Deltas of registers likewise.
    pub(super) deltas: Budget,
    /// Probes that are followed.
    pub(super) probes: Budget,
    /// Answers to probes that are passed on.
    pub(super) answers: Budget,
}

/// What the words of one link may cost.
pub(super) struct Budgets {
    pub(super) claims: Budget,
    pub(super) records: Budget,
    pub(super) deltas: Budget,
    pub(super) probes: Budget,
    pub(super) answers: Budget,
}

/// A claim that is not proven yet, and the last BPDU that stands on it.
#[derive(Debug)]
struct Waiting {
    tree: TreeId,
    signature: Signature,
    bpdu: Option<Bpdu>,
}

impl Words {
    pub(super) fn new(budgets: Budgets) -> Self {
        let Budgets { claims, records, deltas, probes, answers } = budgets;
        Self {
            seen: BTreeMap::new(),
            shown: Shown::default(),
            heard: Vec::new(),
            proven: None,
            waiting: None,
            told: None,
            claims,
            records,
            deltas,
            probes,
            answers,
        }
    }

    /// The peer shows a certificate.
    pub(super) fn see(&mut self, slot: u16, chain: Bytes) {
        self.seen.insert(slot, chain);
    }

    /// The certificate in a slot.
    pub(super) fn seen(&self, slot: u16) -> Result<&Bytes, WordError> {
        self.seen.get(&slot).ok_or(WordError::NoCertificate(slot))
    }

    /// The slot in which we show a certificate, and whether the peer has still to be shown it.
    pub(super) fn show(&mut self, chain: &Bytes) -> (u16, bool) {
        self.shown.slot(chain)
    }

    /// The claims that were proven and still count.
    pub(super) fn proven(&self) -> impl Iterator<Item = &Arc<Claim>> {
        self.heard.iter().chain(&self.proven)
    }

    /// The claim that waits to be proven.
    pub(super) fn waiting(&self) -> Option<(TreeId, &Signature)> {
        self.waiting.as_ref().map(|waiting| (waiting.tree, &waiting.signature))
    }

    /// The latest tree that the peer has shown a claim of.
    fn latest(&self) -> Option<TreeId> {
        self.waiting.as_ref().map(|waiting| waiting.tree).max(self.proven.as_ref().map(|claim| claim.tree))
    }

    /// The peer sends a claim. It waits until it is proven.
    pub(super) fn claimed(&mut self, tree: TreeId, signature: Signature) -> Result<(), WordError> {
        if self.latest() > Some(tree) {
            return Err(WordError::Replay(tree));
        }
        let bpdu = self.waiting.take().filter(|waiting| waiting.tree == tree).and_then(|waiting| waiting.bpdu);
        self.waiting = Some(Waiting { tree, signature, bpdu });
        Ok(())
    }

    /// The waiting claim is proven, by `claim` for the same tree. Returns the BPDU that stood on it.
    pub(super) fn prove(&mut self, claim: Arc<Claim>) -> Option<Bpdu> {
        let bpdu = self.waiting.take().and_then(|waiting| waiting.bpdu);
        if bpdu.is_some() {
            self.stands_on(&claim);
        }
        self.proven = Some(claim);
        bpdu
    }

    /// The tree is given a BPDU that stands on this claim.
    fn stands_on(&mut self, claim: &Arc<Claim>) {
        if self.heard.iter().all(|held| held.tree != claim.tree) {
            self.heard.push(Arc::clone(claim));
        }
    }

    /// The tree has judged what it was given: of all other trees than these the peer's word counts no more.
    pub(super) fn keep(&mut self, trees: impl Iterator<Item = TreeId> + Clone) {
        self.heard.retain(|claim| trees.clone().any(|tree| tree == claim.tree));
    }

    /// Another claim of the same tree takes the place of one that was proven.
    pub(super) fn renew(&mut self, claim: &Arc<Claim>) {
        let same = self.heard.iter_mut().chain(&mut self.proven).filter(|held| held.tree == claim.tree);
        same.for_each(|held| *held = Arc::clone(claim));
    }

    /// The peer sends a BPDU.
    pub(super) fn hear(&mut self, bpdu: Bpdu) -> Result<Hearing, WordError> {
        let tree = bpdu.tree;
        if self.latest() > Some(tree) {
            return Err(WordError::Replay(tree));
        }
        if let Some(proven) = self.proven.clone().filter(|claim| claim.tree == tree) {
            self.stands_on(&proven);
            return Ok(Hearing::Proven);
        }
        let waiting = self.waiting.as_mut().filter(|waiting| waiting.tree == tree).ok_or(WordError::NoClaim(tree))?;
        waiting.bpdu = Some(bpdu);
        Ok(Hearing::Waits)
    }
}

/// Certificates that we have shown, each in its slot; the oldest gives its slot up.
#[derive(Debug, Default)]
struct Shown {
    slots: HashMap<Bytes, u16>,
    chains: Vec<Bytes>,
    next: u16,
}

impl Shown {
    fn slot(&mut self, chain: &Bytes) -> (u16, bool) {
        if let Some(slot) = self.slots.get(chain) {
            return (*slot, false);
        }
        let slot = self.next;
        self.next = (slot + 1) % CERTIFICATE_SLOTS;
        match self.chains.get_mut(usize::from(slot)) {
            Some(place) => drop(self.slots.remove(&std::mem::replace(place, chain.clone()))),
            None => self.chains.push(chain.clone()),
        }
        self.slots.insert(chain.clone(), slot);
        (slot, true)
    }
}

/// So many at once, and then one in each interval.
#[derive(Debug)]
pub(super) struct Budget {
    interval: Duration,
    ahead_max: Duration,
    /// When the next would come if they had always kept to the interval.
    in_step_at: Instant,
}

impl Budget {
    pub(super) fn new(at_once: u32, interval: Duration, now: Instant) -> Self {
        Self { interval, ahead_max: interval * at_once.saturating_sub(1), in_step_at: now }
    }

    /// Takes one, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.take_many(1, now)
    }

    /// Takes so many for something large, if there is at least one.
    pub(super) fn take_many(&mut self, count: u32, now: Instant) -> bool {
        let in_step_at = self.in_step_at.max(now);
        let may = in_step_at.saturating_duration_since(now) <= self.ahead_max;
        if may {
            self.in_step_at = in_step_at + self.interval * count;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::ids::{BrokerId, Incarnation, RootClaim};

    fn tree(epoch: u64) -> TreeId {
        TreeId { epoch, root: RootClaim { priority: 1, capacity: 1, id: BrokerId(1), incarnation: Incarnation(1) } }
    }

    fn signature() -> Signature {
        Signature { chain: Bytes::new(), scheme: 0, bytes: Bytes::new() }
    }

    fn proven(epoch: u64) -> Arc<Claim> {
        claim(epoch, 0, 10)
    }

    fn claim(epoch: u64, from: u64, to: u64) -> Arc<Claim> {
        let validity = Validity { not_before: Duration::from_secs(from), not_after: Duration::from_secs(to) };
        Arc::new(Claim { tree: tree(epoch), signature: signature(), validity, is_admitted: true })
    }

    fn bpdu(number: u64, epoch: u64) -> Bpdu {
        Bpdu { number, tree: tree(epoch), distance: Some(1), hops: 1, epoch_held: None, request_epoch: false }
    }

    fn words() -> Words {
        let budget = || Budget::new(1, Duration::from_secs(1), clock::now());
        let (claims, records, deltas, probes, answers) = (budget(), budget(), budget(), budget(), budget());
        Words::new(Budgets { claims, records, deltas, probes, answers })
    }

    #[test]
    fn a_bpdu_stands_on_a_proven_claim_of_its_tree() {
        let mut words = words();
        assert_eq!(words.hear(bpdu(1, 1)), Err(WordError::NoClaim(tree(1))));
        words.claimed(tree(2), signature()).unwrap();
        assert_eq!(words.hear(bpdu(1, 2)), Ok(Hearing::Waits));
        assert_eq!(words.hear(bpdu(2, 2)), Ok(Hearing::Waits));
        assert_eq!(words.prove(proven(2)), Some(bpdu(2, 2)), "the last word counts");
        assert_eq!(words.hear(bpdu(3, 2)), Ok(Hearing::Proven));
        assert_eq!(words.hear(bpdu(4, 3)), Err(WordError::NoClaim(tree(3))));
    }

    #[test]
    fn a_tree_that_was_left_does_not_come_back() {
        let mut words = words();
        words.claimed(tree(2), signature()).unwrap();
        words.prove(proven(2));
        words.claimed(tree(3), signature()).unwrap();
        assert_eq!(words.hear(bpdu(1, 2)), Err(WordError::Replay(tree(2))));
        assert_eq!(words.claimed(tree(2), signature()), Err(WordError::Replay(tree(2))));
        // What waits is not forgotten by being claimed again, as a renewed certificate makes it be.
        assert_eq!(words.hear(bpdu(2, 3)), Ok(Hearing::Waits));
        words.claimed(tree(3), signature()).unwrap();
        assert_eq!(words.prove(proven(3)), Some(bpdu(2, 3)));
        // A renewed claim of a tree that is proven holds nothing up.
        words.claimed(tree(3), signature()).unwrap();
        assert_eq!(words.hear(bpdu(3, 3)), Ok(Hearing::Proven));
    }

    #[test]
    fn a_tree_that_may_still_be_followed_keeps_its_claim() {
        let mut words = words();
        let known = |words: &Words| words.proven().map(|claim| claim.tree.epoch).collect::<std::collections::BTreeSet<_>>();
        for epoch in [2, 3, 4] {
            words.claimed(tree(epoch), signature()).unwrap();
            words.prove(proven(epoch));
            assert_eq!(words.hear(bpdu(epoch, epoch)), Ok(Hearing::Proven));
            // The tree believes the first; the others wait one after the other, or are none of its business.
            words.keep([tree(2), tree(epoch)].into_iter());
            assert_eq!(known(&words), [2, epoch].into());
        }
        words.claimed(tree(5), signature()).unwrap();
        assert_eq!(words.hear(bpdu(5, 5)), Ok(Hearing::Waits));
        words.prove(proven(5));
        words.keep([tree(2)].into_iter());
        assert_eq!(known(&words), [2, 5].into(), "not taken by the tree, and the last that was proven");
    }

    #[test]
    fn the_newer_certificate_counts_and_not_the_one_that_lasts_longer() {
        let (held, renewed, now) = (claim(1, 0, 10_000), claim(1, 100, 400), Duration::from_secs(200));
        assert!(renewed.replaces(&held, now) && !held.replaces(&renewed, now));
        assert!(claim(1, 0, 20_000).replaces(&held, now) && !claim(1, 0, 300).replaces(&held, now));
        let refused = Claim { is_admitted: false, ..Claim::clone(&renewed) };
        assert!(held.replaces(&refused, now), "of a certificate that is revoked");
        assert!(held.replaces(&renewed, Duration::from_secs(400)), "of one that has expired");
    }

    #[test]
    fn a_certificate_is_shown_once_until_its_slot_is_used_again() {
        let mut words = words();
        let chain = |n: u32| Bytes::from(n.to_be_bytes().to_vec());
        for n in 0..u32::from(CERTIFICATE_SLOTS) {
            assert_eq!(words.show(&chain(n)), (u16::try_from(n).unwrap(), true));
        }
        assert_eq!(words.show(&chain(0)), (0, false));
        assert_eq!(words.show(&chain(u32::MAX)), (0, true));
        assert_eq!(words.show(&chain(u32::MAX)), (0, false));
        assert_eq!(words.show(&chain(0)), (1, true));
        assert_eq!(words.show(&chain(2)), (2, false));
        assert_eq!(words.shown.slots.len(), usize::from(CERTIFICATE_SLOTS));
        assert_eq!(words.seen(7), Err(WordError::NoCertificate(7)));
        words.see(7, chain(1));
        assert_eq!(words.seen(7), Ok(&chain(1)));
    }

    #[test]
    fn a_budget_is_spent_and_comes_back() {
        let start = clock::now();
        let mut budget = Budget::new(3, Duration::from_secs(1), start);
        let mut take = |at: u64| (0..10).filter(|_| budget.take(start + Duration::from_secs(at))).count();
        assert_eq!([take(0), take(1), take(3), take(60)], [3, 1, 2, 3]);
        let mut take_five = |at: u64| budget.take_many(5, start + Duration::from_secs(at));
        assert_eq!([take_five(120), take_five(121), take_five(122), take_five(123)], [true, false, false, true]);
    }
}

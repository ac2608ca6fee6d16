//! Which of two connections to one broker becomes, or stays, the link (`ARCHITECTURE.md`, "The mesh").
//!
//! Both ends judge by the same facts, so that two brokers that dial each other at the same moment keep the same connection: the one dialled
//! by the lower id. A later life of the peer supersedes at once. Else the link that is there is probed for one detection time, and stays if
//! it lives.

use crate::ids::{BrokerId, Incarnation};

/// What is compared of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    /// The peer's life.
    pub(super) incarnation: Incarnation,
    /// Whether the end with the lower id dialled it.
    pub(super) preferred: bool,
}

impl Contender {
    pub(super) fn new(own: BrokerId, peer: BrokerId, incarnation: Incarnation, we_dialled: bool) -> Self {
        Self { incarnation, preferred: (own < peer) == we_dialled }
    }
}

/// What to do with a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It becomes the link; one that is there is closed.
    Admit,
    /// The link that is there is probed: if it lives, the newcomer is refused.
    Probe,
    /// It is of an earlier life.
    Stale,
}

/// Judges `newcomer` against the link that is there.
pub(super) fn judge(present: Option<Contender>, newcomer: Contender) -> Verdict {
    match present {
        None => Verdict::Admit,
        Some(present) if newcomer.incarnation > present.incarnation => Verdict::Admit,
        Some(present) if newcomer.incarnation < present.incarnation => Verdict::Stale,
        Some(present) if newcomer.preferred && !present.preferred => Verdict::Admit,
        Some(_) => Verdict::Probe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_dials_end_with_one_connection_at_both_ends() {
        let (low, high) = (BrokerId(1), BrokerId(2));
        // The two connections as each end sees them: dialled by low, dialled by high.
        let at_low = [Contender::new(low, high, Incarnation(5), true), Contender::new(low, high, Incarnation(5), false)];
        let at_high = [Contender::new(high, low, Incarnation(6), false), Contender::new(high, low, Incarnation(6), true)];
        for end in [at_low, at_high] {
            let [by_low, by_high] = end;
            assert_eq!(judge(Some(by_low), by_high), Verdict::Probe);
            assert_eq!(judge(Some(by_high), by_low), Verdict::Admit);
        }
    }

    #[test]
    fn a_later_life_supersedes_and_an_earlier_one_is_stale() {
        let life = |n, preferred| Contender { incarnation: Incarnation(n), preferred };
        assert_eq!(judge(None, life(1, false)), Verdict::Admit);
        assert_eq!(judge(Some(life(1, true)), life(2, false)), Verdict::Admit);
        assert_eq!(judge(Some(life(2, false)), life(1, true)), Verdict::Stale);
        assert_eq!(judge(Some(life(2, true)), life(2, true)), Verdict::Probe);
    }
}

//! How long a broker is without its way to the root after it has noticed that it lost it: the clock behind the healing time in `/metrics`,
//! `$SYS/mesh` and the log. It decides nothing, and it does not see what was lost before anybody noticed: that is the detection time's.
//!
//! Invariants: a loss is timed once, from its first sign until the tree stands again, whatever else is lost meanwhile; a broker to which no
//! link leads any more is cut off and not healing, so that it is not timed.

use std::time::{Duration, Instant};

/// How a broker stands in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No link is up.
    CutOff,
    /// It has links, and messages do not yet flow where they should.
    Unsettled,
    /// It forwards on its Root port, or it is the root of all its neighbours.
    Settled,
}

impl Standing {
    /// A broker with a Root port, or one that has links and no way: settled if messages flow on that port.
    #[must_use]
    pub fn of_member(links: usize, forwards: bool) -> Self {
        match (links, forwards) {
            (0, _) => Self::CutOff,
            (_, false) => Self::Unsettled,
            (_, true) => Self::Settled,
        }
    }

    /// A root: it has nothing to wait for when every neighbour has said that it is in its tree, and one hangs on it already. Of each
    /// neighbour: whether it is in the tree, and whether messages flow to it.
    #[must_use]
    pub fn of_root(neighbours: impl IntoIterator<Item = (bool, bool)>) -> Self {
        let (mut links, mut all_follow, mut any_forwards) = (0, true, false);
        for (follows, forwards) in neighbours {
            links += 1;
            all_follow &= follows;
            any_forwards |= forwards;
        }
        Self::of_member(links, all_follow && any_forwards)
    }
}

/// The clock.
#[derive(Debug, Default)]
pub struct Healing {
    lost_at: Option<Instant>,
}

impl Healing {
    /// The way to the root is lost: the Root port's link went down, or the parent has no way itself.
    pub fn lose(&mut self, now: Instant) {
        self.lost_at.get_or_insert(now);
    }

    /// How the broker stands after something happened. How long it took if this ends a loss.
    pub fn observe(&mut self, standing: Standing, now: Instant) -> Option<Duration> {
        match standing {
            Standing::Unsettled => None,
            Standing::CutOff => {
                self.lost_at = None;
                None
            }
            Standing::Settled => self.lost_at.take().map(|lost_at| now.saturating_duration_since(lost_at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any moment will do: the tests count from it")]
    fn now() -> Instant {
        Instant::now()
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_loss_is_timed_once_and_from_its_first_sign() {
        let (mut healing, start) = (Healing::default(), now());
        assert_eq!(healing.observe(Standing::Settled, start), None, "nothing was lost");
        healing.lose(start);
        assert_eq!(healing.observe(Standing::Unsettled, start), None);
        healing.lose(start + 5 * MS);
        assert_eq!(healing.observe(Standing::Settled, start + 9 * MS), Some(9 * MS));
        assert_eq!(healing.observe(Standing::Settled, start + 10 * MS), None, "once");
    }

    #[test]
    fn who_is_cut_off_does_not_heal() {
        let (mut healing, start) = (Healing::default(), now());
        healing.lose(start);
        assert_eq!(healing.observe(Standing::CutOff, start), None);
        assert_eq!(healing.observe(Standing::Settled, start + 1_000 * MS), None, "a new beginning");
    }

    #[test]
    fn a_root_waits_until_all_its_neighbours_follow_and_one_hangs_on_it() {
        for (neighbours, standing) in [
            (&[][..], Standing::CutOff),
            (&[(false, true), (true, true)], Standing::Unsettled),
            (&[(true, false), (true, false)], Standing::Unsettled),
            (&[(true, false), (true, true)], Standing::Settled),
        ] {
            assert_eq!(Standing::of_root(neighbours.iter().copied()), standing, "{neighbours:?}");
        }
        assert_eq!(Standing::of_member(2, false), Standing::Unsettled);
        assert_eq!(Standing::of_member(2, true), Standing::Settled);
    }
}

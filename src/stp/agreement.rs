//! The lanes of one port: who asked, who answered, what is closed (in place of 802.1D-2004 17.29 Port Role Transitions and 17.30 Port
//! State Transition: Forwarding is an agreement, everything else Discarding).
//!
//! ```text
//!            ask (child) / answer (parent)              close
//!   Closed ------------------------------> Open ------------------> Closing
//!      ^                                                               |
//!      +------------------------ lanes_closed -------------------------+
//! ```
//!
//! OPEN and CLOSE travel in lanes that overtake each other; they are ordered by their number alone. CLOSE(n) voids every number up to
//! n of the same child, and so does a later OPEN of that child.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::ids::{BrokerId, OpenMark, OpenNumber, TreeId};

/// What our lane writers do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Lanes {
    /// They write nothing.
    #[default]
    Closed,
    /// They wrote OPEN. `agreed`: so has the other end, with the same number.
    Open { number: OpenNumber, agreed: bool },
    /// They were told to write CLOSE, and have not confirmed it.
    Closing { number: OpenNumber },
}

/// One port's lanes, and what both ends said of them.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Agreement {
    lanes: Lanes,
    /// The peer's last question as a child, unless it is void.
    asked: Option<OpenMark>,
    /// Our question as a child until it is answered, and when to repeat it.
    asking: Option<(OpenMark, Instant)>,
    /// The highest void number of each child: the two ends of the link, so two entries at most.
    void: BTreeMap<BrokerId, OpenNumber>,
}

impl Agreement {
    /// The number with which our lanes are open.
    pub(super) fn open_number(&self) -> Option<OpenNumber> {
        match self.lanes {
            Lanes::Open { number, .. } => Some(number),
            Lanes::Closed | Lanes::Closing { .. } => None,
        }
    }

    /// Whether both ends have opened: data flows.
    pub(super) fn is_agreed(&self) -> bool {
        matches!(self.lanes, Lanes::Open { agreed: true, .. })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lanes == Lanes::Closed
    }

    /// Whether our writers are not yet done with an agreement of this child.
    pub(super) fn binds(&self, child: BrokerId) -> bool {
        match self.lanes {
            Lanes::Closed => false,
            Lanes::Open { number, .. } | Lanes::Closing { number } => number.child == child,
        }
    }

    /// As a child: opens our lanes with a question.
    pub(super) fn ask(&mut self, open: OpenMark, repeat_at: Instant) -> OpenMark {
        self.lanes = Lanes::Open { number: open.number, agreed: false };
        self.asking = Some((open, repeat_at));
        open
    }

    /// As a child: the question once more, if it is time or our tree is another, until it is answered.
    pub(super) fn ask_again(&mut self, tree: TreeId, now: Instant, repeat_at: Instant) -> Option<OpenMark> {
        let (open, due) = self.asking.as_mut()?;
        if *due > now && open.tree == tree {
            return None;
        }
        open.tree = tree;
        *due = repeat_at;
        Some(*open)
    }

    /// When the question is to be repeated.
    pub(super) fn repeat_at(&self) -> Option<Instant> {
        self.asking.map(|(_, due)| due)
    }

    /// As a child: the parent's OPEN came. An answer to an earlier question says nothing.
    pub(super) fn receive_answer(&mut self, answer: OpenNumber) {
        if let Lanes::Open { number, agreed } = &mut self.lanes
            && *number == answer
        {
            *agreed = true;
            self.asking = None;
        }
    }

    /// As a parent: the child's OPEN came. It is kept until it can be answered, or is void.
    pub(super) fn receive_question(&mut self, open: OpenMark) {
        if self.is_void(open.number) {
            return;
        }
        match self.asked {
            Some(last) if (open.number, open.tree) < (last.number, last.tree) => return,
            Some(last) if open.number > last.number => self.void(last.number),
            _ => {}
        }
        self.asked = Some(open);
    }

    /// As a parent: opens our lanes with an answer, if a question stands and names our tree.
    pub(super) fn answer(&mut self, tree: TreeId) -> Option<OpenMark> {
        let open = self.asked.filter(|open| open.tree == tree && self.is_closed())?;
        self.lanes = Lanes::Open { number: open.number, agreed: true };
        Some(open)
    }

    /// Voids this number and every earlier one of the same child.
    pub(super) fn void(&mut self, number: OpenNumber) {
        let highest = self.void.entry(number.child).or_insert(number);
        *highest = number.max(*highest);
        self.asked = self.asked.filter(|open| !self.is_void(open.number));
        self.asking = self.asking.filter(|(open, _)| !self.is_void(open.number));
    }

    pub(super) fn is_void(&self, number: OpenNumber) -> bool {
        self.void.get(&number.child).is_some_and(|&highest| number <= highest)
    }

    /// Ends what is open: our writers are told to write CLOSE.
    pub(super) fn close(&mut self, number: OpenNumber) {
        self.void(number);
        self.lanes = Lanes::Closing { number };
    }

    /// Our writers have written CLOSE, and nothing follows.
    pub(super) fn lanes_closed(&mut self, number: OpenNumber) {
        if self.lanes == (Lanes::Closing { number }) {
            self.lanes = Lanes::Closed;
        }
    }
}

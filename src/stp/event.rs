//! What goes into the machine and what comes out of it.

use std::num::NonZeroU32;
use std::time::Duration;

use thiserror::Error;

use super::bpdu::Bpdu;
use crate::ids::{BrokerId, OpenMark, OpenNumber, PortId, RootClaim, TreeId};

/// What the machine needs to know of its own broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StpConfig {
    /// What this broker claims as a root; its `id` and `incarnation` are the broker's.
    pub claim: RootClaim,
    /// A broker this many links away from the root offers nobody a way to it.
    pub hop_max: u8,
    /// Time between two hellos of a link: an OPEN is repeated no sooner (802.1D-2004 17.13.6, HelloTime).
    pub hello: Duration,
    /// The root opens a new epoch for the sake of a cheaper way at most this often, and whoever wants one asks at most this often.
    pub epoch_interval: Duration,
}

/// One thing that happened. Whatever names a port that is not up is stale, and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A link is authenticated, both incarnations are settled, and control frames can be sent.
    LinkUp {
        /// A generation that was never up before. A port of the same peer that is still up is taken down first.
        port: PortId,
        /// What the link adds to a way over it (802.1D-2004 17.19.20, PortPathCost).
        cost: NonZeroU32,
        /// The link's round trip.
        rtt: Duration,
    },
    /// The link is lost: nothing more is sent or received on it, and its lane writers write nothing any more.
    LinkDown {
        /// The port.
        port: PortId,
    },
    /// The link was measured anew.
    Cost {
        /// The port.
        port: PortId,
        /// As in [`Input::LinkUp`].
        cost: NonZeroU32,
        /// As in [`Input::LinkUp`].
        rtt: Duration,
    },
    /// A BPDU came on the control stream.
    Bpdu {
        /// Where.
        port: PortId,
        /// What it says.
        bpdu: Bpdu,
    },
    /// A lane brought an OPEN marker: a child's question, or a parent's answer. Every lane reports its own; the first one counts.
    OpenReceived {
        /// Where.
        port: PortId,
        /// What it says.
        open: OpenMark,
    },
    /// A lane brought a CLOSE marker. Every lane reports its own; the first one counts.
    CloseReceived {
        /// Where.
        port: PortId,
        /// Voids this agreement and every earlier one of the same child.
        number: OpenNumber,
    },
    /// All lane writers of the port have confirmed that the CLOSE asked for by [`Output::CloseLanes`] is written and nothing follows.
    LanesClosed {
        /// The port.
        port: PortId,
        /// The number that was closed.
        number: OpenNumber,
    },
    /// The moment of [`Stp::poll_timeout`](super::Stp::poll_timeout) has come.
    Timeout,
}

/// One thing to do, or to tell. In the order in which they are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send on the control stream.
    SendBpdu {
        /// Where.
        port: PortId,
        /// What.
        bpdu: Bpdu,
    },
    /// As a child: open every lane of the port and write this OPEN into it. Comes again, with the same number and possibly a later
    /// tree, until the parent has answered: then only the marker is written once more.
    OpenLanes {
        /// The Root port.
        port: PortId,
        /// The question.
        open: OpenMark,
    },
    /// As a parent: open every lane of the port and write this OPEN into it, a lane that has not yet had the child's OPEN of this
    /// number as soon as it has.
    AnswerOpen {
        /// A Designated port.
        port: PortId,
        /// The answer: the child's number.
        open: OpenMark,
    },
    /// Write CLOSE into every lane of the port and nothing after it; then report [`Input::LanesClosed`].
    CloseLanes {
        /// The port.
        port: PortId,
        /// The agreement that ends.
        number: OpenNumber,
    },
    /// This broker's tree is another.
    TreeChanged {
        /// The tree; greater than every earlier one.
        tree: TreeId,
        /// Whether this broker is its root.
        is_root: bool,
        /// Why.
        cause: ChangeCause,
    },
    /// A port's role or state changed.
    PortState {
        /// The port.
        port: PortId,
        /// Its role.
        role: Role,
        /// Whether data flows: Forwarding, else Discarding (802.1D-2004 7.4).
        forwarding: bool,
    },
    /// The peer said what no honest peer says: close the link with this reason.
    Refuse {
        /// The port; the machine goes on as if nothing had been said, and hears the peer no more until it is told that the link is down.
        port: PortId,
        /// What the peer said.
        error: PeerError,
    },
}

/// What a port is to the tree (802.1D-2004 17.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Leads to the root.
    Root,
    /// Leads away from it.
    Designated,
    /// Another way to the root, not in use.
    ///
    /// Deviation: a link has two ends, so that a Backup port (a second port on one LAN) cannot be.
    Alternate,
    /// The link is down; the last that is said of a port.
    Disabled,
}

/// Why a broker's place in the tree changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeCause {
    /// The broker started: it is the root of a tree of its own.
    Started,
    /// A better tree was heard of.
    BetterTree,
    /// A worse root was heard of in a newer epoch: this broker claimed the one after.
    WorseRoot,
    /// The parent's link was lost, or the parent has no way to the root any more.
    ParentLost,
    /// A cheaper way within the same tree.
    CheaperWay,
    /// A broker that was too far away from the root found a shorter way.
    InReach,
    /// This broker is the root and was asked for a new epoch, because somebody knows a cheaper way.
    EpochRequested,
}

impl ChangeCause {
    /// The cause in words, for the topology document and the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::BetterTree => "better tree",
            Self::WorseRoot => "worse root",
            Self::ParentLost => "parent lost",
            Self::CheaperWay => "cheaper way",
            Self::InReach => "in reach",
            Self::EpochRequested => "epoch requested",
        }
    }
}

/// What a peer must not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// Beyond what any mesh comes to; to follow would use the epochs up.
    #[error("epoch {epoch} is out of range")]
    EpochOutOfRange {
        /// What the peer said.
        epoch: u64,
    },
    /// More than any honest broker says, whatever happens around it.
    #[error("more BPDUs than a neighbour has to say")]
    TooManyBpdus,
    /// Only a root is its own root, and only it is at no distance and no hops from it; elsewhere each link adds to both.
    #[error("broker {root} as the root at distance {distance:?} and {hops} hops cannot be")]
    Contradiction {
        /// The root that the peer named.
        root: BrokerId,
        /// The peer's distance to it.
        distance: Option<u32>,
        /// The links in between.
        hops: u8,
    },
    /// An agreement binds the two ends of its link and nobody else, and only a question that was asked can be answered or ended.
    #[error("agreement {number:?} is neither the peer's nor one that we asked for")]
    ForeignAgreement {
        /// What the peer said.
        number: OpenNumber,
    },
}

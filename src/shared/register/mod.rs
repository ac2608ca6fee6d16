//! Registers: what each broker tells all others that is keyed and may be large. Its subscribers' filters ([`Key::Filter`]), whose
//! sessions it has ([`Key::Session`]), what it has taken in of others ([`Key::Echo`]), and, where that is asked for, how far it has dealt with the messages of others ([`Key::Dealt`]).
//!
//! A register is a map of one broker, the **owner**, in one of its lives. It travels as numbered **deltas**, each signed by its owner, flooded
//! on all links, and is kept until the owner leaves the roster: however the tree moves, and while the owner is dead or cut off.
//!
//! Everybody keeps the newest deltas of each register, for neighbours that were away for a moment. Who needs older ones is given a **copy** of the
//! entries in pages, and what comes live meanwhile. Each delta says how large the whole register is after it and what its
//! entries add up to: so who makes a copy knows how much can come, and in the end whether it is what the owner said, whoever handed it on.
//!
//! | file | duty |
//! |---|---|
//! | `key` | keys and values, and their wire form |
//! | `delta` | deltas, and what two neighbours say to each other about them |
//! | `own` | this broker's side: what it has to say |
//! | `content` | one register: entries, deltas |
//! | `sum` | what entries add up to |
//! | `members` | all registers, and what is passed on |
//! | `port` | a neighbour: what it has, as far as we know |
//! | `seek` | who is asked for what |
//!
//! It is sans-IO: what comes from a neighbour goes in with the time, what is to be said to neighbours comes out. It checks no signature: the
//! caller does, between [`Registers::judge`] and [`Registers::take`].
//!
//! # Invariants
//! - What [`Follow`] was told of a member is the content of its register at one version, whole; of a new life of it nothing counts before all
//!   that it had to say at its beginning has come, so that nobody takes half of its filters for all, nor before there is all that a neighbour is known to have
//!   of it, so that nobody who was restarted takes for its filters what they once were.
//! - A delta is passed on only to whom it is news, and unasked only while no more than
//!   [`REGISTER_PUSHED_BYTES`](crate::limits::REGISTER_PUSHED_BYTES) of such are on the way on a link; at most [`REGISTER_ON_THE_WAY_BYTES`](crate::limits::REGISTER_ON_THE_WAY_BYTES) that were
//!   asked for are on the way on a link, so that they hold up nothing else there.
//! - Keys, bytes and owners are bounded. Of an owner whose register is larger than may be nothing is known, and so it wants everything.
//!
//! Specification: `ARCHITECTURE.md`, "Registers".

mod content;
mod delta;
mod key;
mod members;
mod own;
mod port;
mod seek;
mod sum;

pub use delta::{Delta, DeltaHead, DeltaMode, End, Have, Page, Want};
pub use key::{BridgeClaim, Claim, Echo, Key, ShareMembers, Value};
pub use members::{Judgement, Registers, Say};
pub use own::Register;

use crate::frame::FrameError;
use crate::ids::BrokerId;

/// What an entry has become: `None`, it is gone.
pub type Change = (Key, Option<Value>);

/// Told of what the registers of other members say, in order and under their lock: to be quick, and to take no lock under which registers are
/// asked.
pub trait Follow: Send + Sync {
    /// A broker is a member of the mesh of whose register nothing is known: it wants everything. Comes again where what was known is void.
    fn joined(&self, member: BrokerId);
    /// From now on what [`changed`](Self::changed) has told is all that its register says, and not less than it has said since this broker was started.
    fn known(&self, member: BrokerId);
    /// Entries of a member have come, are others, or are gone.
    fn changed(&self, member: BrokerId, changes: &[Change]);
    /// It is no member any more, and nothing of its register holds.
    fn left(&self, member: BrokerId);
}

/// Why what a peer says of a register is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Not the format.
    #[error("malformed register: {0}")]
    Frame(#[from] FrameError),
    /// A delta whose owner says that there are more or fewer entries than it has told.
    #[error("the register of broker {owner} is not as large as it says at version {version}")]
    Size {
        /// Whose.
        owner: BrokerId,
        /// Where.
        version: u64,
    },
    /// A neighbour's copy that is not what the owner has signed.
    #[error("a copy of the register of broker {owner} that is not what that broker has signed at version {version}")]
    BadCopy {
        /// Whose.
        owner: BrokerId,
        /// Where.
        version: u64,
    },
    /// There is no room.
    #[error("all registers together have more than {bytes} bytes, with that of broker {owner}")]
    NoRoom {
        /// The last one that grew.
        owner: BrokerId,
        /// Allowed.
        bytes: usize,
    },
    /// More than a broker may tell.
    #[error("the register of broker {owner} has more than {bytes} bytes")]
    TooLarge {
        /// Whose.
        owner: BrokerId,
        /// Allowed.
        bytes: usize,
    },
}

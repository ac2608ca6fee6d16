//! One client's state: what it subscribed, what is on its way to it, what it has sent half of, its will and its outbox.
//!
//! A [`Subscriber`] is a state behind one lock: publishers lock it for one append, its own connection for a look. At most one
//! subscriber's lock is held at a time, and never while another lock is taken (lock order: registry, origin-lane, subscriber).
//!
//! It is not a connection: it outlives one, and knows no socket. Sources: MQTT 5.0 section 4.1 (session state), 4.3 (QoS), 4.4 (redelivery),
//! 4.9 (flow control).

mod aliases;
mod change;
mod durable;
mod filters;
mod inbound;
mod journal;
mod logged;
mod message;
mod moved;
mod outbound;
mod outbox;
pub mod record;
mod retained;
mod rivalry;
mod run;
mod shadow;
mod subscriber;
mod tap;
mod variants;

pub use change::{Change, Entry, Head, Order, Stage};
pub(crate) use durable::RESTORED_EPOCH;
pub use durable::RestoredSession;
pub use filters::Filters;
pub use inbound::{Inbound, QuotaExceeded};
pub use journal::{Awaited, Journal, Reach, Ticket, Waiter, Writes};
pub use logged::{LogHead, Logged, RestoredLog};
pub use message::{Delivery, Message, StoredMessage, Will, remaining_seconds};
pub(crate) use moved::Moving;
pub use moved::{MovedContent, MovedHead, MovedWill, Source};
pub use outbound::{NextToSend, OutOfOrder, Outbound, OutboundLimits};
pub use outbox::{Drained, Outbox, Segment};
pub(crate) use rivalry::Rivalry;
pub use run::Run;
pub(crate) use shadow::{Copy, Emerging, News, Shadow};
pub(crate) use subscriber::Parting;
pub use subscriber::{Connected, Outcome, Pumped, SessionExpiry, State, Subscriber, SubscriberId, SubscriptionOptions};
pub use tap::Heard;
pub(crate) use tap::LINGER;
pub use variants::Variants;

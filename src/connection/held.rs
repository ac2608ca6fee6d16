//! Acknowledgements that wait: for the store, until what they acknowledge is safe, and for the mesh, until it no longer lags and, where that is asked for, until all its
//! members have dealt with what they acknowledge.
//!
//! They go out in the order in which they came. While nothing waits it owns no memory.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::Sleep;

use crate::clock;
use crate::interest::EchoWait;
use crate::limits::SUBSCRIBE_ACK_PATIENCE;
use crate::replication::{self, Published, StableWaiter};
use crate::router::Router;
use crate::session::{Awaited, Journal, Ticket, Waiter};

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Held(Option<Box<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    batches: VecDeque<Batch>,
    /// What the connection is woken by.
    store: Option<Waiter>,
    mesh: Option<replication::Waiter>,
    members: Option<StableWaiter>,
}

/// The acknowledgements of one batch, or of several.
#[derive(Debug)]
struct Batch {
    /// Bytes.
    count: usize,
    /// The change that must be safe.
    awaited: Awaited,
    /// Batches of other connections that must be, too.
    others: Vec<Arc<Ticket>>,
    /// What other brokers must have dealt with.
    published: Published,
}

impl Batch {
    /// Ready when all is safe.
    fn poll(&mut self, journal: &Journal, store: &mut Waiter, context: &mut Context<'_>) -> Poll<()> {
        ready!(store.poll_for(self.awaited, context));
        while let Some(other) = self.others.last() {
            match journal.awaited_at(other, self.awaited.reach) {
                Some(awaited) => ready!(store.poll_for(awaited, context)),
                None => drop(self.others.pop()),
            }
        }
        Poll::Ready(())
    }
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |waiting| waiting.bytes.len())
    }

    /// Puts one batch's acknowledgements behind those of earlier ones; what is `awaited`, and the batches of `others`, must be safe before they go, and other brokers must
    /// have dealt with what was `published`.
    pub(super) fn hold(
        &mut self,
        acknowledgements: &mut Vec<u8>,
        awaited: Awaited,
        others: Vec<Arc<Ticket>>,
        published: Published,
    ) {
        if acknowledgements.is_empty() {
            return;
        }
        let Waiting { bytes, batches, .. } = &mut **self.0.get_or_insert_default();
        match batches.back_mut() {
            Some(last) if last.awaited.includes(awaited) && others.is_empty() && published.is_empty() => {
                last.count += acknowledgements.len()
            }
            _ => batches.push_back(Batch { count: acknowledgements.len(), awaited, others, published }),
        }
        bytes.append(acknowledgements);
    }

    /// Gives `send` what may go; if something is left, the task is woken when that may be so.
    pub(super) fn poll_release(&mut self, router: &Router, context: &mut Context<'_>, send: impl FnOnce(&[u8])) {
        let Some(waiting) = &mut self.0 else { return };
        let Waiting { bytes, batches, store, mesh, members } = &mut **waiting;
        if let Some(replication) = router.mesh()
            && mesh.get_or_insert_with(|| replication.waiter()).poll(context).is_pending()
        {
            return;
        }
        let mut free = 0;
        while let Some(batch) = batches.front_mut() {
            if let Some(journal) = router.journal()
                && batch.poll(journal, store.get_or_insert_with(|| journal.waiter()), context).is_pending()
            {
                break;
            }
            if let Some(replication) = router.mesh().filter(|_| !batch.published.is_empty())
                && members.get_or_insert_with(|| replication.stable_waiter()).poll(&batch.published, context).is_pending()
            {
                break;
            }
            free += batch.count;
            batches.pop_front();
        }
        if free > 0 {
            send(bytes.get(..free).unwrap_or_default());
            bytes.drain(..free.min(bytes.len()));
        }
        if bytes.is_empty() {
            self.0 = None;
        }
    }
}

/// What a connection waits for before it writes anything at all: what CONNACK, SUBACK and UNSUBACK say of a durable session is to be safe. Unlike an
/// acknowledged message it is said all the same while the store fails.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    number: u64,
    waiter: Option<Box<Waiter>>,
    echo: Option<Box<Echo>>,
}

/// Other brokers are to know what the client has subscribed to.
#[derive(Debug)]
struct Echo {
    wait: EchoWait,
    patience: Pin<Box<Sleep>>,
}

impl Barrier {
    /// Whether nothing is waited for.
    pub(super) fn is_open(&self) -> bool {
        self.number == 0
    }

    /// Change `number` must be safe.
    pub(super) fn raise(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    /// Other brokers must know, but it is not waited for longer than [`SUBSCRIBE_ACK_PATIENCE`].
    pub(super) fn await_echo(&mut self, wait: EchoWait) {
        let patience = Box::pin(tokio::time::sleep_until((clock::now() + SUBSCRIBE_ACK_PATIENCE).into()));
        self.echo = Some(Box::new(Echo { wait, patience }));
    }

    /// Ready when nothing is to be waited for; else the task is woken then.
    pub(super) fn poll(&mut self, journal: Option<&Arc<Journal>>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(echo) = &mut self.echo {
            if echo.wait.poll(context).is_pending() {
                if echo.patience.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                echo.wait.give_up();
            }
            self.echo = None;
        }
        let Some(journal) = journal.filter(|_| self.number > 0) else { return Poll::Ready(()) };
        let waiter = self.waiter.get_or_insert_with(|| Box::new(journal.waiter()));
        if waiter.poll(self.number, context).is_pending() && !journal.is_failing() {
            return Poll::Pending;
        }
        *self = Self::default();
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arc_swap::ArcSwap;
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::auth::{Place, Policy};
    use crate::codec::{PacketId, QoS};
    use crate::config::SharedStrategy;
    use crate::connection::{Address, Logins, Peer, Rates, Stream, Terms, Transport, admit};
    use crate::router::RouterLimits;
    use crate::session::{Change, OutboundLimits, StoredMessage, Subscriber, SubscriberId, Writes};
    use crate::{clock, task};

    async fn settle() {
        // One thread: everybody has had its turn.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    fn fill(journal: &Journal) {
        let payload = Bytes::from(vec![0; 256 * 1024]);
        for topic in 0..300 {
            let (topic, payload, properties) = (topic.to_string().into(), payload.clone(), Bytes::new());
            let message = StoredMessage { topic, payload, qos: QoS::AtLeastOnce, retain: true, expires_at: None, properties };
            journal.push(Change::Retained(Arc::new(message), None));
        }
    }

    #[test]
    fn a_repeat_waits_for_the_batch_of_the_connection_on_which_the_message_came_first() {
        let journal = Journal::new();
        let limits = RouterLimits { outbound: OutboundLimits::default(), shared: SharedStrategy::default() };
        let router = Router::new(limits, Arc::default(), Some(Arc::clone(&journal)), clock::now());
        let subscriber = Subscriber::new(SubscriberId(1), "c".into(), OutboundLimits::default(), Some(&journal));
        let id = PacketId::new(7).unwrap();
        let (mut older, mut newer) = (Writes::default(), Writes::default());
        assert_eq!(subscriber.lock().receive(&mut older, id, 10), Ok(true));
        // In the middle of that batch the client comes again, and sends it again.
        assert_eq!(subscriber.lock().receive(&mut newer, id, 10), Ok(false));
        journal.append(&mut newer);
        let mut held = Held::default();
        let others = newer.take_others();
        held.hold(&mut vec![1], newer.take_awaited(), others, Vec::new());
        held.hold(&mut vec![2], Awaited::default(), Vec::new(), Vec::new());
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut sent = |held: &mut Held| {
            let mut sent = Vec::new();
            held.poll_release(&router, &mut context, |bytes| sent.extend_from_slice(bytes));
            sent
        };
        let commit = || journal.commit(journal.take(&mut Vec::new(), Duration::ZERO).unwrap());
        journal.push(Change::Ended(SubscriberId(9)));
        commit();
        assert!(sent(&mut held).is_empty(), "what is safe is another's");
        journal.append(&mut older);
        assert!(sent(&mut held).is_empty());
        commit();
        assert_eq!(sent(&mut held), [1, 2]);
        assert!(held.is_empty());

        // A repeat in the same batch, and one of a batch that has ended, wait for a number.
        let id = PacketId::new(8).unwrap();
        assert_eq!(subscriber.lock().receive(&mut older, id, 10), Ok(true));
        assert_eq!(subscriber.lock().receive(&mut older, id, 10), Ok(false));
        journal.append(&mut older);
        assert!(older.take_others().is_empty() && older.take_number() == journal.last());
        assert!(!subscriber.lock().pubrel(&mut newer, PacketId::new(9).unwrap()));
        assert!(newer.take_others().is_empty() && newer.take_number() == journal.last());
    }

    /// A client of version 3.1.1 whose broker writes to `journal`, and who serves it.
    async fn connected(journal: &Arc<Journal>) -> (Arc<Router>, DuplexStream, JoinHandle<()>) {
        let limits = RouterLimits { outbound: OutboundLimits::default(), shared: SharedStrategy::default() };
        let router = Arc::new(Router::new(limits, Arc::default(), Some(Arc::clone(journal)), clock::now()));
        let terms = Arc::new(Terms {
            policy: Arc::new(ArcSwap::from_pointee(Policy::new(Place::default(), true, None, None))),
            logins: Arc::new(Logins::default()),
            backends: None,
            packet_bytes_max: 1_000,
            inflight_max: 10,
            keep_alive_max_seconds: None,
            rates: Rates::default(),
            meter: None,
            topic_alias_max: 0,
            topic_alias_broker_max: 0,
            response_information: None,
            server_reference: None,
            reserved: Arc::default(),
        });
        let peer = Peer { address: Address::Unix, proxy: None, transport: Transport::Plain, identity: None };
        let (ours, mut client) = tokio::io::duplex(64 * 1024);
        client.write_all(b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02me").await.unwrap();
        let admitted = admit(Stream::new(ours), peer, Arc::clone(&router), terms).await.unwrap();
        let served = task::spawn("client", async move { admitted.serve().await });
        let mut answer = [0; 4];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [0x20, 2, 0, 0]);
        (router, client, served)
    }

    #[tokio::test]
    async fn who_is_sent_away_by_a_stop_still_gets_what_is_being_written() {
        let journal = Journal::new();
        let (router, mut client, served) = connected(&journal).await;
        client.write_all(b"\x33\x06\x00\x01t\x00\x01x").await.unwrap();
        settle().await;
        let mut batch = crate::router::Batch::default();
        router.close_all(&mut batch, crate::codec::ReasonCode::ServerShuttingDown);
        router.finish(&mut batch, clock::now());
        settle().await;
        // Nothing more is heard of it.
        client.write_all(b"\x33\x06\x00\x01t\x00\x02y").await.unwrap();
        settle().await;
        assert!(!served.is_finished() && router.metrics().messages_received.value() == 1);
        let number = journal.take(&mut Vec::new(), Duration::ZERO).unwrap();
        journal.commit(number);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, [0x40, 2, 0, 1]);
        served.await.unwrap();
    }

    #[tokio::test]
    async fn while_the_store_is_behind_nobody_who_waits_for_it_is_read_from() {
        let journal = Journal::new();
        let (router, mut client, served) = connected(&journal).await;
        let mut answer = [0; 4];
        fill(&journal);
        client.write_all(b"\x33\x06\x00\x01t\x00\x01x").await.unwrap();
        settle().await;
        client.write_all(b"\x33\x06\x00\x01t\x00\x02y").await.unwrap();
        settle().await;
        assert_eq!(router.metrics().messages_received.value(), 1, "the second is read when the first is safe");
        for id in 1..=2 {
            let number = journal.take(&mut Vec::new(), Duration::ZERO).unwrap();
            journal.commit(number);
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, [0x40, 2, 0, id]);
            settle().await;
        }
        assert_eq!(router.metrics().messages_received.value(), 2);

        // A disk that fails does so who knows how long: nobody is unheard for that.
        fill(&journal);
        client.write_all(b"\x33\x06\x00\x01t\x00\x03z").await.unwrap();
        settle().await;
        client.write_all(b"\xc0\x00").await.unwrap();
        settle().await;
        journal.fail();
        let mut pong = [0; 2];
        tokio::time::timeout(Duration::from_secs(20), client.read_exact(&mut pong)).await.expect("a PINGRESP").unwrap();
        assert_eq!(pong, [0xd0, 0]);
        served.abort();
    }
}

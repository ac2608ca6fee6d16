//! Who is at which broker, and what is sent.

use std::num::NonZeroU16;
use std::time::Duration;

use crate::client::{ConnectionPlan, Endpoint};
use crate::wire::{Login, QoS, Session, Version};

/// What clients ask for.
const KEEP_ALIVE_SECONDS: u16 = 60;

/// A run. Brokers, publishers and subscribers are known by their places in these lists.
#[derive(Clone, Debug)]
pub struct MeshPlan {
    /// Where each is.
    pub brokers: Vec<Endpoint>,
    /// Who sends; each has a topic of its own.
    pub publishers: Vec<Publishing>,
    /// Who listens.
    pub subscribers: Vec<Subscribing>,
    /// Protocol version of all.
    pub version: Version,
    /// Who all say they are.
    pub login: Option<Login>,
    /// Messages a second of each publisher; `None`: as fast as the window allows. What a publisher without a connection, or with
    /// a full window, could not send, it does not catch up with.
    pub rate: Option<f64>,
    /// Messages of each publisher once the books are open, unless the run ends before.
    pub count: Option<u64>,
    /// QoS 1 and 2: messages of a publisher that are not acknowledged, at most; a broker may allow fewer.
    pub window: NonZeroU16,
    /// Payload of a message, bytes.
    pub payload_bytes: u32,
    /// Whether sessions outlive connections. Where they do not, what comes while a subscriber is away is lost to it.
    pub keeps_sessions: bool,
    /// How long a broker may owe an answer; after that a client gives the connection up and connects anew.
    pub timeout: Duration,
    /// Topics are `PREFIX/RUN/PUBLISHER`.
    pub prefix: String,
}

/// One publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publishing {
    /// Brokers in the order in which it tries them; after the last comes the first. One: it stays.
    pub at: Vec<usize>,
    /// Of its messages.
    pub qos: QoS,
}

/// One subscriber, with QoS 2 to all that it hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribing {
    /// As for publishers.
    pub at: Vec<usize>,
    /// The publishers that it hears; `None`: all.
    pub hears: Option<Vec<usize>>,
}

impl MeshPlan {
    /// At every broker, of these hosts and ports, a publisher of each of these QoS and a subscriber to everything, all of whom stay.
    #[must_use]
    pub fn everywhere(brokers: Vec<String>, qos: &[QoS]) -> Self {
        let publishers = (0..brokers.len()).flat_map(|at| qos.iter().map(move |&qos| Publishing { at: vec![at], qos }));
        let subscribers = (0..brokers.len()).map(|at| Subscribing { at: vec![at], hears: None });
        Self {
            publishers: publishers.collect(),
            subscribers: subscribers.collect(),
            brokers: brokers.into_iter().map(Endpoint::from).collect(),
            version: Version::V5,
            login: None,
            rate: None,
            count: None,
            window: NonZeroU16::new(100).unwrap_or(NonZeroU16::MIN),
            payload_bytes: 64,
            keeps_sessions: true,
            timeout: Duration::from_secs(10),
            prefix: "loadtest".to_owned(),
        }
    }

    pub(super) fn topic(&self, run: u32, publisher: usize) -> String {
        format!("{}/{run:08x}/{publisher}", self.prefix)
    }

    /// The filters of a subscriber.
    pub(super) fn filters(&self, run: u32, subscriber: &Subscribing) -> Vec<String> {
        match &subscriber.hears {
            None => vec![format!("{}/{run:08x}/#", self.prefix)],
            Some(publishers) => publishers.iter().map(|&publisher| self.topic(run, publisher)).collect(),
        }
    }

    pub(super) fn hears(&self, subscriber: &Subscribing, publisher: usize) -> bool {
        subscriber.hears.as_ref().is_none_or(|publishers| publishers.contains(&publisher))
    }

    /// For the client `role` `index`, at the `turn`th broker of its list.
    pub(super) fn connection(&self, run: u32, role: char, index: usize, at: &[usize], turn: usize) -> ConnectionPlan {
        let broker = at.get(turn % at.len().max(1)).and_then(|&broker| self.brokers.get(broker));
        ConnectionPlan {
            broker: broker.cloned().unwrap_or_else(|| String::new().into()),
            client_id: format!("lt{run:08x}{role}{index}"),
            version: self.version,
            session: if self.keeps_sessions { Session::Kept } else { Session::Clean },
            login: self.login.clone(),
            keep_alive_seconds: KEEP_ALIVE_SECONDS,
            timeout: self.timeout,
        }
    }
}

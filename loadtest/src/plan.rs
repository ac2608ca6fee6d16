//! From what was asked for to who does what: every client of a run, with its broker and its topic.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU16;
use std::time::Duration;

use anyhow::Result;

use crate::arguments::{Connect, EndToEnd, Fanin, Fanout, Latency, Load, LoadCommand, Pair, Pub, Sub, Target, Usage};
use crate::client::{ConnectionPlan, Endpoint, Hears, Pace, PublisherPlan, SubscriberPlan};
use crate::course::CoursePlan;
use crate::progress::Extent;
use crate::spread::{Sizes, Topics};
use crate::wire::{Login, QoS, Session, Version};

const DURATION: Duration = Duration::from_secs(10);

const WARM_UP: Duration = Duration::from_secs(1);

/// Of `latency`, messages a second.
const LATENCY_RATE: f64 = 1_000.0;

/// Flows of all subscribers together; each has a ledger of about 100 bytes.
const LEDGERS_MAX: u64 = 10_000_000;

/// Who does what in a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The command's name, for the report.
    pub(crate) command: &'static str,
    /// The run's random number.
    pub(crate) run: u32,
    pub(crate) version: Version,
    pub(crate) qos: QoS,
    pub(crate) publishers: Vec<(ConnectionPlan, PublisherPlan)>,
    pub(crate) subscribers: Vec<(ConnectionPlan, SubscriberPlan)>,
    /// Messages a second of all publishers together; `None` in a closed loop.
    pub(crate) rate: Option<f64>,
    /// How long it takes to reach that rate.
    pub(crate) ramp: Duration,
    /// Up to which part of its publisher's interval a message is put off.
    pub(crate) jitter: f64,
    /// Messages under way per publisher.
    pub(crate) window: u16,
    /// Payloads; `None` where we do not publish.
    pub(crate) sizes: Option<Sizes>,
    /// Topics of each publisher; 0 where we do not publish.
    pub(crate) topics: u32,
    pub(crate) course: CoursePlan,
    pub(crate) settle: Duration,
    /// Connections opened at the same time.
    pub(crate) connecting: usize,
    pub(crate) threads: u16,
    /// The brokers' processes.
    pub(crate) pids: Vec<u32>,
    /// Sessions that were kept for the run are ended after it.
    pub(crate) forgets: bool,
    /// Of a run that only connects.
    pub(crate) idle: Option<Idle>,
}

/// Connections that do nothing.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    pub(crate) connections: Vec<ConnectionPlan>,
    /// How long to keep them all.
    pub(crate) hold: Duration,
}

impl Plan {
    /// The plan for a load.
    ///
    /// # Errors
    /// When arguments that are right by themselves are impossible together.
    pub(crate) fn new(command: &LoadCommand) -> Result<Self> {
        let run = random_run();
        match command {
            LoadCommand::Pub(command) => publish_only(command, run),
            LoadCommand::Sub(command) => subscribe_only(command, run),
            LoadCommand::Connect(command) => connect_only(command, run),
            LoadCommand::Pair(Pair { end_to_end, pairs, subscribers }) => {
                between_ends("pair", end_to_end, Shape::Pairs { pairs: *pairs, subscribers: *subscribers }, run)
            }
            LoadCommand::Fanout(Fanout { end_to_end, subscribers }) => {
                between_ends("fanout", end_to_end, Shape::Fanout { subscribers: *subscribers }, run)
            }
            LoadCommand::Fanin(Fanin { end_to_end, publishers }) => {
                between_ends("fanin", end_to_end, Shape::Fanin { publishers: *publishers }, run)
            }
            LoadCommand::Latency(Latency { end_to_end, subscribers }) => {
                between_ends("latency", end_to_end, Shape::Latency { subscribers: *subscribers }, run)
            }
        }
    }

    /// All connections that it opens.
    pub(crate) fn connections(&self) -> impl Iterator<Item = &ConnectionPlan> {
        let publishers = self.publishers.iter().map(|(connection, _)| connection);
        let subscribers = self.subscribers.iter().map(|(connection, _)| connection);
        publishers.chain(subscribers).chain(self.idle.iter().flat_map(|idle| &idle.connections))
    }

    /// Flows that its publishers begin.
    pub(crate) fn flows(&self) -> usize {
        self.publishers.iter().map(|(_, publisher)| publisher.names.len()).sum()
    }

    /// How its publishers go on without a rate.
    pub(crate) fn closed_loop(&self) -> Pace {
        Pace::Closed { window: self.window.into(), subscribers: self.course.subscribers_per_message }
    }

    /// What the run will have done when it is over.
    pub(crate) fn extent(&self) -> Extent {
        if let Some(idle) = &self.idle {
            return Extent::Connected(idle.connections.len() as u64);
        }
        let sent = self.publishers.iter().map(|(_, publisher)| publisher.count).sum::<Option<u64>>().filter(|&sent| sent > 0);
        match (self.course.duration, sent, self.course.awaited) {
            (Some(duration), ..) => {
                Extent::Time(if self.publishers.is_empty() { duration } else { self.course.warm_up + duration })
            }
            (None, Some(sent), _) => Extent::Sent(sent),
            (None, None, Some(delivered)) => Extent::Delivered(delivered),
            (None, None, None) => Extent::Unknown,
        }
    }
}

/// A number for a run. The only randomness needed, and the standard library has it: a hasher's keys.
pub(crate) fn random_run() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

fn publish_only(command: &Pub, run: u32) -> Result<Plan> {
    let Pub { target, load, publishers, topic, .. } = command;
    let brokers = target.transport.endpoints(&target.brokers)?;
    let topics = Topics::new(String::new(), load.topics, load.popularity);
    let shape = Shape::Alone { publishers: *publishers };
    shape.check(&topics)?;
    let publishers = (0..*publishers).map(|index| {
        let topic = topic.replace("%i", &index.to_string());
        let names = match topics.each() {
            1 => vec![topic],
            each => (0..each).map(|nth| format!("{topic}/{nth}")).collect(),
        };
        let plan = load.publisher(index, names, &topics, target.qos, &shape);
        Ok((target.connection(&brokers, index as usize, 'p', index, run)?, plan))
    });
    let publishers = publishers.collect::<Result<_>>()?;
    Ok(Plan { publishers, ..target.plan("pub", run, load.course(&shape, load.rate, target.timeout)).with(load, load.rate, &shape) })
}

fn connect_only(command: &Connect, run: u32) -> Result<Plan> {
    let Connect { target, connections, rate, ramp, hold, .. } = command;
    let brokers = target.transport.endpoints(&target.brokers)?;
    let connections = (0..*connections).map(|index| target.connection(&brokers, index as usize, 'c', index, run));
    let idle = Idle { connections: connections.collect::<Result<_>>()?, hold: *hold };
    let plan = target.plan("connect", run, CoursePlan { closed_loop: rate.is_none(), ..CoursePlan::default() });
    Ok(Plan { rate: *rate, ramp: ramp.unwrap_or_default(), idle: Some(idle), ..plan })
}

fn subscribe_only(command: &Sub, run: u32) -> Result<Plan> {
    let Sub { target, subscribers, filter, count, duration, .. } = command;
    let brokers = target.transport.endpoints(&target.brokers)?;
    let subscribers = (0..*subscribers).map(|index| {
        let plan = SubscriberPlan { index, filter: filter.clone(), qos: target.qos, hears: Hears::Anyone };
        Ok((target.connection(&brokers, index as usize, 's', index, run)?, plan))
    });
    let subscribers = subscribers.collect::<Result<_>>()?;
    let course = CoursePlan { awaited: *count, duration: *duration, timeout: target.timeout, ..CoursePlan::default() };
    Ok(Plan { subscribers, ..target.plan("sub", run, course) })
}

fn between_ends(command: &'static str, end_to_end: &EndToEnd, shape: Shape, run: u32) -> Result<Plan> {
    let EndToEnd { target, load, subscribe_at, prefix, settle, .. } = end_to_end;
    let topics = Topics::new(format!("{prefix}/{run:08x}"), load.topics, load.popularity);
    shape.check(&topics)?;
    let rate = load.rate.or(shape.rate());
    // Where the subscribers' brokers are not named, messages go from one broker to the next.
    let brokers = target.transport.endpoints(&target.brokers)?;
    let (far_brokers, offset) =
        if subscribe_at.is_empty() { (brokers.clone(), 1) } else { (target.transport.endpoints(subscribe_at)?, 0) };
    let publishers = (0..shape.publishers()).map(|index| {
        let connection = target.connection(&brokers, index as usize, 'p', index, run)?;
        let names = topics.flows(index..index + 1).map(|flow| topics.name(flow)).collect();
        Ok((connection, load.publisher(index, names, &topics, target.qos, &shape)))
    });
    let listeners = (0..shape.groups()).flat_map(|group| (0..shape.subscribers_per_message()).map(move |nth| (group, nth)));
    let subscribers = listeners.zip(0..).map(|((group, nth), index)| {
        let connection = target.connection(&far_brokers, group as usize + nth as usize + offset, 's', index, run)?;
        let (publishers, filter) = match shape {
            Shape::Fanin { publishers } => (0..publishers, topics.filter_of_all()),
            _ => (group..group + 1, topics.filter_of(group)),
        };
        let hears = Hears::Ours { publishers, topics: topics.clone() };
        Ok((connection, SubscriberPlan { index, filter, qos: target.qos, hears }))
    });
    Ok(Plan {
        publishers: publishers.collect::<Result<_>>()?,
        subscribers: subscribers.collect::<Result<_>>()?,
        settle: *settle,
        ..target.plan(command, run, load.course(&shape, rate, target.timeout)).with(load, rate, &shape)
    })
}

/// Who hears whom.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Nobody of this run hears anybody.
    Alone {
        publishers: u32,
    },
    Pairs {
        pairs: u32,
        subscribers: u32,
    },
    Fanout {
        subscribers: u32,
    },
    Fanin {
        publishers: u32,
    },
    Latency {
        subscribers: u32,
    },
}

impl Shape {
    fn publishers(self) -> u32 {
        match self {
            Self::Alone { publishers } | Self::Fanin { publishers } => publishers,
            Self::Pairs { pairs, .. } => pairs,
            Self::Fanout { .. } | Self::Latency { .. } => 1,
        }
    }

    /// Subscribers that get each message.
    fn subscribers_per_message(self) -> u32 {
        match self {
            Self::Alone { .. } => 0,
            Self::Fanin { .. } => 1,
            Self::Pairs { subscribers, .. } | Self::Fanout { subscribers } | Self::Latency { subscribers } => subscribers,
        }
    }

    /// Groups of subscribers that hear the same.
    fn groups(self) -> u32 {
        match self {
            Self::Pairs { pairs, .. } => pairs,
            _ => 1,
        }
    }

    fn rate(self) -> Option<f64> {
        matches!(self, Self::Latency { .. }).then_some(LATENCY_RATE)
    }

    /// The windows and payloads with which brokers are compared (`performance.md`: the window bounds the batch).
    fn window(self) -> NonZeroU16 {
        let window = match self {
            Self::Fanout { subscribers: 1 } => 1_000,
            Self::Fanout { subscribers: 2..=10 } => 200,
            Self::Fanout { subscribers: 101.. } => 50,
            Self::Fanin { .. } => 20,
            _ => 100,
        };
        NonZeroU16::new(window).unwrap_or(NonZeroU16::MIN)
    }

    fn sizes(self) -> Sizes {
        Sizes::Fixed(if matches!(self, Self::Fanout { .. } | Self::Fanin { .. }) { 40 } else { 64 })
    }

    /// Refuses what would fill the memory with ledgers.
    fn check(self, topics: &Topics) -> Result<(), Usage> {
        let ledgers = u64::from(self.publishers()) * u64::from(topics.each()) * u64::from(self.subscribers_per_message().max(1));
        if ledgers > LEDGERS_MAX {
            return Err(Usage(format!(
                "publishers times --topics times the subscribers of each are {ledgers}, and loadtest keeps account of at most {LEDGERS_MAX} flows"
            )));
        }
        Ok(())
    }
}

impl Target {
    /// A plan without clients.
    fn plan(&self, command: &'static str, run: u32, course: CoursePlan) -> Plan {
        Plan {
            command,
            run,
            version: self.version,
            qos: self.qos,
            publishers: Vec::new(),
            subscribers: Vec::new(),
            rate: None,
            ramp: Duration::ZERO,
            jitter: 0.0,
            window: 0,
            sizes: None,
            topics: 0,
            course,
            settle: Duration::ZERO,
            connecting: self.connecting as usize,
            threads: self.threads,
            pids: self.pids.clone(),
            forgets: self.persistent && self.client_id.is_none(),
            idle: None,
        }
    }

    /// The `nth` broker in turn, under a client id no other client of any run has.
    fn connection(&self, brokers: &[Endpoint], nth: usize, role: char, index: u32, run: u32) -> Result<ConnectionPlan> {
        let login = self.username.as_ref().zip(self.password.as_ref());
        let broker = brokers.get(nth % brokers.len().max(1)).cloned().unwrap_or_else(|| String::new().into());
        let client_id = self.client_id.clone().unwrap_or_else(|| format!("lt{run:08x}"));
        let from = self.bind.get(index as usize % self.bind.len().max(1)).copied();
        let numbered = |text: &String| text.replace("%i", &index.to_string());
        let tls = match broker.tls {
            Some(_) if self.transport.has_own_certificates() => Some(self.transport.client(index)?),
            shared => shared,
        };
        Ok(ConnectionPlan {
            broker: Endpoint { tls, from, ..broker },
            client_id: format!("{client_id}{role}{index}"),
            version: self.version,
            session: if self.persistent { Session::Kept } else { Session::Clean },
            keep_alive_seconds: self.keep_alive,
            login: login.map(|(username, password)| Login { username: numbered(username), password: numbered(password) }),
            timeout: self.timeout,
        })
    }
}

impl Plan {
    /// Filled in with what is sent.
    fn with(self, load: &Load, rate: Option<f64>, shape: &Shape) -> Self {
        Self {
            rate,
            ramp: load.ramp.unwrap_or_default(),
            jitter: load.jitter,
            window: load.window(shape).get(),
            sizes: Some(load.sizes(shape)),
            topics: load.topics.get(),
            ..self
        }
    }
}

impl Load {
    fn window(&self, shape: &Shape) -> NonZeroU16 {
        self.window.unwrap_or(shape.window())
    }

    fn sizes(&self, shape: &Shape) -> Sizes {
        self.payload_bytes.clone().unwrap_or_else(|| shape.sizes())
    }

    fn publisher(&self, index: u32, names: Vec<String>, topics: &Topics, qos: QoS, shape: &Shape) -> PublisherPlan {
        PublisherPlan {
            index,
            names,
            topics: topics.clone(),
            qos,
            sizes: self.sizes(shape),
            window: self.window(shape),
            count: self.count,
            measures: matches!(shape, Shape::Alone { .. }),
        }
    }

    fn course(&self, shape: &Shape, rate: Option<f64>, timeout: Duration) -> CoursePlan {
        let warm_up = if self.count.is_some() { Duration::ZERO } else { self.ramp.unwrap_or_default() + WARM_UP };
        CoursePlan {
            publishers: shape.publishers().into(),
            subscribers_per_message: shape.subscribers_per_message().into(),
            closed_loop: rate.is_none(),
            warm_up: self.warm_up.unwrap_or(warm_up),
            duration: self.duration.or(if self.count.is_some() { None } else { Some(DURATION) }),
            awaited: None,
            drain: self.drain,
            timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    fn plan(arguments: &str) -> Plan {
        let arguments = ["loadtest"].into_iter().chain(arguments.split_whitespace());
        let Command::Load(command) = Arguments::try_parse_from(arguments).unwrap().command else { panic!("a load") };
        Plan::new(&command).unwrap()
    }

    fn brokers<T>(clients: &[(ConnectionPlan, T)]) -> Vec<&str> {
        clients.iter().map(|(connection, _)| &*connection.broker.address).collect()
    }

    #[test]
    fn pairs_go_from_one_broker_to_the_next() {
        let plan = plan("pair --broker a --broker b --broker c --pairs 4 --subscribers 2");
        assert_eq!(brokers(&plan.publishers), ["a:1883", "b:1883", "c:1883", "a:1883"]);
        let expected = ["b:1883", "c:1883", "c:1883", "a:1883", "a:1883", "b:1883", "b:1883", "c:1883"];
        assert_eq!(brokers(&plan.subscribers), expected);
        let heard: Vec<_> = plan.subscribers.iter().map(|(_, subscriber)| hears(subscriber).start).collect();
        assert_eq!(heard, [0, 0, 1, 1, 2, 2, 3, 3]);
        let filter = |publisher: u32| &plan.publishers[publisher as usize].1.names[0];
        assert!(plan.subscribers.iter().all(|(_, subscriber)| subscriber.filter == *filter(hears(subscriber).start)));
    }

    fn hears(subscriber: &SubscriberPlan) -> std::ops::Range<u32> {
        match &subscriber.hears {
            Hears::Ours { publishers, .. } => publishers.clone(),
            Hears::Anyone => panic!("{subscriber:?}"),
        }
    }

    #[test]
    fn a_fan_has_many_ends_on_one_side_and_the_window_brokers_are_compared_with() {
        let out = plan("fanout --broker a --broker b --subscribers 3");
        assert_eq!((brokers(&out.publishers), brokers(&out.subscribers)), (vec!["a:1883"], vec!["b:1883", "a:1883", "b:1883"]));
        assert_eq!((out.course.subscribers_per_message, out.sizes.clone()), (3, Some(Sizes::Fixed(40))));
        let into = plan("fanin --publishers 3 --topics 5");
        assert_eq!((into.publishers.len(), into.subscribers.len(), into.flows()), (3, 1, 15));
        assert_eq!((hears(&into.subscribers[0].1), into.course.subscribers_per_message), (0..3, 1));
        let windows = ["fanout --subscribers 1", "fanout --subscribers 10", "fanout", "fanout --subscribers 1000", "fanin", "pair"];
        assert_eq!(windows.map(|command| plan(command).window), [1_000, 200, 100, 50, 20, 100]);
        assert_eq!(plan("fanout --window 7").window, 7);
    }

    #[test]
    fn too_many_flows_are_refused() {
        let arguments = Arguments::try_parse_from(["loadtest", "fanout", "--subscribers", "20000", "--topics", "1000"]).unwrap();
        let Command::Load(command) = arguments.command else { panic!("a load") };
        assert!(Plan::new(&command).unwrap_err().to_string().contains("20000000"));
    }

    #[test]
    fn a_ramp_is_not_measured_unless_asked() {
        assert_eq!(plan("pair --rate 100 --ramp 4s").course.warm_up, Duration::from_secs(5));
        assert_eq!(plan("pair --rate 100 --ramp 4s --warm-up 0s").course.warm_up, Duration::ZERO);
    }

    #[test]
    fn subscribers_go_where_they_are_told() {
        let plan = plan("latency --broker a:1 --subscribe-at b:2 --qos 1");
        assert_eq!((brokers(&plan.publishers), brokers(&plan.subscribers)), (vec!["a:1"], vec!["b:2"]));
        assert_eq!((plan.rate, plan.course.closed_loop, plan.qos), (Some(1_000.0), false, QoS::AtLeastOnce));
    }

    #[test]
    fn a_run_ends_by_time_unless_by_count() {
        let by_time = plan("pub").course;
        assert_eq!((by_time.duration, by_time.warm_up), (Some(DURATION), WARM_UP));
        let by_count = plan("pub --count 7 --publishers 3");
        assert_eq!((by_count.course.duration, by_count.course.warm_up), (None, Duration::ZERO));
        assert_eq!(by_count.extent(), Extent::Sent(21));
        assert_eq!(plan("sub --count 5").extent(), Extent::Delivered(5));
        assert_eq!(plan("sub").extent(), Extent::Unknown);
    }

    #[test]
    fn client_ids_are_short_enough_for_every_broker_and_differ() {
        let plan = plan("pair --pairs 1000");
        let mut ids: Vec<_> = plan.publishers.iter().map(|(connection, _)| &connection.client_id).collect();
        ids.extend(plan.subscribers.iter().map(|(connection, _)| &connection.client_id));
        assert!(ids.iter().all(|id| id.len() <= 23 && id.chars().all(char::is_alphanumeric)), "MQTT-3.1.3-5");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 2_000);
    }

    #[test]
    fn publishers_number_their_topics() {
        let plan = plan("pub --publishers 2 --topic x/%i/y --topics 2");
        let topics: Vec<_> = plan.publishers.iter().flat_map(|(_, publisher)| &publisher.names).collect();
        assert_eq!(topics, ["x/0/y/0", "x/0/y/1", "x/1/y/0", "x/1/y/1"]);
    }
}

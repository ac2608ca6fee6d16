//! From what was asked for to who does what: every client of a run, with its broker and its topic.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use crate::arguments::{BrokerAddress, EndToEnd, Latency, Load, LoadCommand, Pair, Pub, Sub, Target};
use crate::client::{ConnectionPlan, Pace, PublisherPlan, SubscriberPlan};
use crate::course::CoursePlan;
use crate::progress::Extent;
use crate::wire::{Login, QoS, Session, Version};

const DURATION: Duration = Duration::from_secs(10);

const WARM_UP: Duration = Duration::from_secs(1);

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
    /// Messages under way per publisher.
    pub(crate) window: u16,
    /// Payload of a message; `None` where we do not publish.
    pub(crate) payload_bytes: Option<u32>,
    pub(crate) course: CoursePlan,
    pub(crate) settle: Duration,
    /// Connections opened at the same time.
    pub(crate) connecting: usize,
    pub(crate) threads: u16,
}

impl Plan {
    /// The plan for a load.
    pub(crate) fn new(command: &LoadCommand) -> Self {
        let run = random_run();
        match command {
            LoadCommand::Pub(command) => publish_only(command, run),
            LoadCommand::Sub(command) => subscribe_only(command, run),
            LoadCommand::Pair(Pair { end_to_end, pairs, rate }) => between_ends("pair", end_to_end, *pairs, *rate, run),
            LoadCommand::Latency(Latency { end_to_end, rate }) => between_ends("latency", end_to_end, 1, Some(*rate), run),
        }
    }

    /// How its publishers go on without a rate.
    pub(crate) fn closed_loop(&self) -> Pace {
        Pace::Closed { window: self.window.into(), subscribers: self.course.subscribers_per_message }
    }

    /// What the run will have done when it is over.
    pub(crate) fn extent(&self) -> Extent {
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

fn publish_only(command: &Pub, run: u32) -> Plan {
    let Pub { target, load, publishers, topic, rate, .. } = command;
    let publishers = (0..*publishers).map(|index| {
        let topic = topic.replace("%i", &index.to_string());
        (target.connection(&target.brokers, index as usize, 'p', index, run), load.publisher(index, topic, target.qos, true))
    });
    let publishers: Vec<_> = publishers.collect();
    let course = load.course(publishers.len(), 0, *rate, target.timeout);
    Plan {
        rate: *rate,
        window: load.window.get(),
        payload_bytes: Some(load.payload_bytes),
        publishers,
        ..target.plan("pub", run, course)
    }
}

fn subscribe_only(command: &Sub, run: u32) -> Plan {
    let Sub { target, subscribers, filter, count, duration, .. } = command;
    let subscribers = (0..*subscribers).map(|index| {
        let plan = SubscriberPlan { index, filter: filter.clone(), qos: target.qos, publisher: None };
        (target.connection(&target.brokers, index as usize, 's', index, run), plan)
    });
    let course = CoursePlan { awaited: *count, duration: *duration, timeout: target.timeout, ..CoursePlan::default() };
    Plan { subscribers: subscribers.collect(), ..target.plan("sub", run, course) }
}

fn between_ends(command: &'static str, end_to_end: &EndToEnd, pairs: u32, rate: Option<f64>, run: u32) -> Plan {
    let EndToEnd { target, load, subscribe_at, subscribers: fan, prefix, settle, .. } = end_to_end;
    let topic = |pair: u32| format!("{prefix}/{run:08x}/{pair}");
    // Where the subscribers' brokers are not named, a pair goes from one broker to the next.
    let (far_brokers, offset) = if subscribe_at.is_empty() { (&target.brokers, 1) } else { (subscribe_at, 0) };
    let publishers = (0..pairs).map(|pair| {
        let connection = target.connection(&target.brokers, pair as usize, 'p', pair, run);
        (connection, load.publisher(pair, topic(pair), target.qos, false))
    });
    let subscribers = (0..pairs).flat_map(|pair| (0..*fan).map(move |nth| (pair, nth))).zip(0..).map(|((pair, nth), index)| {
        let connection = target.connection(far_brokers, pair as usize + nth as usize + offset, 's', index, run);
        (connection, SubscriberPlan { index, filter: topic(pair), qos: target.qos, publisher: Some(pair) })
    });
    let publishers: Vec<_> = publishers.collect();
    let course = load.course(publishers.len(), u64::from(*fan), rate, target.timeout);
    Plan {
        rate,
        window: load.window.get(),
        payload_bytes: Some(load.payload_bytes),
        publishers,
        subscribers: subscribers.collect(),
        settle: *settle,
        ..target.plan(command, run, course)
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
            window: 0,
            payload_bytes: None,
            course,
            settle: Duration::ZERO,
            connecting: self.connecting as usize,
            threads: self.threads,
        }
    }

    /// The `nth` broker in turn, under a client id no other client of any run has.
    fn connection(&self, brokers: &[BrokerAddress], nth: usize, role: char, index: u32, run: u32) -> ConnectionPlan {
        let login = self.username.as_ref().zip(self.password.as_ref());
        ConnectionPlan {
            broker: brokers.get(nth % brokers.len().max(1)).map(|broker| broker.0.clone()).unwrap_or_default(),
            client_id: format!("lt{run:08x}{role}{index}"),
            version: self.version,
            session: Session::Clean,
            login: login.map(|(username, password)| Login { username: username.clone(), password: password.clone() }),
            timeout: self.timeout,
        }
    }
}

impl Load {
    fn publisher(&self, index: u32, topic: String, qos: QoS, measures: bool) -> PublisherPlan {
        PublisherPlan {
            index,
            topic,
            qos,
            payload_bytes: self.payload_bytes as usize,
            window: self.window,
            count: self.count,
            measures,
        }
    }

    fn course(&self, publishers: usize, subscribers_per_message: u64, rate: Option<f64>, timeout: Duration) -> CoursePlan {
        CoursePlan {
            publishers: publishers as u64,
            subscribers_per_message,
            closed_loop: rate.is_none(),
            warm_up: self.warm_up.unwrap_or(if self.count.is_some() { Duration::ZERO } else { WARM_UP }),
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
        Plan::new(&command)
    }

    fn brokers<T>(clients: &[(ConnectionPlan, T)]) -> Vec<&str> {
        clients.iter().map(|(connection, _)| connection.broker.as_str()).collect()
    }

    #[test]
    fn pairs_go_from_one_broker_to_the_next() {
        let plan = plan("pair --broker a --broker b --broker c --pairs 4 --subscribers 2");
        assert_eq!(brokers(&plan.publishers), ["a:1883", "b:1883", "c:1883", "a:1883"]);
        let expected = ["b:1883", "c:1883", "c:1883", "a:1883", "a:1883", "b:1883", "b:1883", "c:1883"];
        assert_eq!(brokers(&plan.subscribers), expected);
        let publishers: Vec<_> = plan.subscribers.iter().map(|(_, subscriber)| subscriber.publisher.unwrap()).collect();
        assert_eq!(publishers, [0, 0, 1, 1, 2, 2, 3, 3]);
        assert!(
            plan.subscribers
                .iter()
                .all(|(_, subscriber)| { subscriber.filter == plan.publishers[subscriber.publisher.unwrap() as usize].1.topic })
        );
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
        let plan = plan("pub --publishers 2 --topic x/%i/y");
        let topics: Vec<_> = plan.publishers.iter().map(|(_, publisher)| publisher.topic.as_str()).collect();
        assert_eq!(topics, ["x/0/y", "x/1/y"]);
    }
}

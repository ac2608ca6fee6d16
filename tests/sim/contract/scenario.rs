//! Holes that were found, as text: what happened, in the words of who saw it, and what must be so in the end. `README.md` beside this file has the language; every `*.txt` there is
//! run with several seeds, which say how long things take. Whatever is wrong is told with file and line; what the contract forbids at any time fails by itself.

use std::path::Path;
use std::time::Duration;

use mqtt_st_quic::codec::QoS;

use super::account::TOPICS;
use super::world::{Scripted, World};
use super::{AMPLE, Plan};
use crate::stp::scenario::{number, pairs, time};

const SEEDS: u64 = 5;
/// Longer than anything here takes.
const PLAN: Plan = Plan { crashes: false, acts: 0, faults: 0, ..AMPLE };

#[derive(Default)]
struct Scenario {
    brokers: Vec<String>,
    /// Blocks of each.
    rings: Vec<usize>,
    links: Vec<[usize; 2]>,
    clients: Vec<String>,
    homes: Vec<usize>,
    wanders: bool,
    replicas: bool,
    lines: Vec<Line>,
}

struct Line {
    number: usize,
    at: Duration,
    act: Act,
}

enum Act {
    Does(Vec<Scripted>),
    Expect(Expectation),
}

enum Expectation {
    /// Everything is where it belongs, and nothing is lost or given up.
    Rest,
    /// A client has got so many messages.
    Got(usize, usize),
    /// At least so many copies have come to it again.
    Again(usize, usize),
    /// At least so many blocks were fetched for others.
    Filled(u64),
    /// So many ranges of ids were given up.
    Gaps(u64),
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut scenario = Self::default();
        let mut last = Duration::ZERO;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let at_line = |problem| (number, problem);
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                // Elsewhere it is a filter.
                [first, ..] if first.starts_with('#') => {}
                ["at", at, ref what @ ..] => {
                    let at = time(at).map_err(at_line)?;
                    if at < last {
                        return Err((number, "the time goes back".to_owned()));
                    }
                    last = at;
                    let act = scenario.act(what).map_err(at_line)?;
                    scenario.lines.push(Line { number, at, act });
                }
                _ if !scenario.lines.is_empty() => return Err((number, "expected at, as on the lines before".to_owned())),
                ref words => scenario.declare(words).map_err(at_line)?,
            }
        }
        match scenario.lines.last() {
            Some(Line { act: Act::Expect(Expectation::Rest), .. }) => Ok(scenario),
            _ => Err((text.lines().count(), "the scenario does not end with: expect rest".to_owned())),
        }
    }

    /// A line before the first `at`.
    fn declare(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["broker", name, rest @ ..] => {
                let mut ring = PLAN.ring_blocks;
                for (key, value) in pairs(rest)? {
                    match key {
                        "ring" => ring = number(value)?,
                        _ => return Err(format!("a broker has no {key:?}; it has ring")),
                    }
                }
                self.brokers.push((*name).to_owned());
                self.rings.push(ring);
            }
            ["link", name] => {
                let ends = self.ends(name)?;
                self.links.push(ends);
            }
            ["client", name, "at", broker] => {
                let home = self.broker(broker)?;
                self.clients.push((*name).to_owned());
                self.homes.push(home);
            }
            ["clients", "wander"] => self.wanders = true,
            ["sessions", "have", "replicas"] => self.replicas = true,
            _ => {
                return Err(format!(
                    "{:?}: expected broker, link, client, clients wander, sessions have replicas or at",
                    words.join(" ")
                ));
            }
        }
        Ok(())
    }

    fn broker(&self, name: &str) -> Result<usize, String> {
        self.brokers.iter().position(|known| known == name).ok_or_else(|| format!("{name:?} is no broker of this scenario"))
    }

    fn client(&self, name: &str) -> Result<usize, String> {
        self.clients.iter().position(|known| known == name).ok_or_else(|| format!("{name:?} is no client of this scenario"))
    }

    fn ends(&self, name: &str) -> Result<[usize; 2], String> {
        let (a, b) = name.split_once('-').ok_or_else(|| format!("{name:?} is no link: two brokers joined by a hyphen"))?;
        Ok([self.broker(a)?, self.broker(b)?])
    }

    fn link(&self, name: &str) -> Result<usize, String> {
        let [a, b] = self.ends(name)?;
        let found = self.links.iter().position(|ends| *ends == [a, b] || *ends == [b, a]);
        found.ok_or_else(|| format!("there is no link {name}"))
    }

    fn act(&self, words: &[&str]) -> Result<Act, String> {
        let one = match words {
            ["expect", what @ ..] => return self.expectation(what).map(Act::Expect),
            ["links", "up"] => return Ok(Act::Does((0..self.links.len()).map(Scripted::Up).collect())),
            ["link", link, "up"] => Scripted::Up(self.link(link)?),
            ["link", link, "down"] => Scripted::Down(self.link(link)?),
            ["crash", broker] => Scripted::Crash(self.broker(broker)?),
            ["start", broker] => Scripted::Start(self.broker(broker)?),
            ["lose-disk", broker] => Scripted::LoseDisk(self.broker(broker)?),
            ["disk", broker, "stands"] => Scripted::DiskStands(self.broker(broker)?, true),
            ["disk", broker, "writes"] => Scripted::DiskStands(self.broker(broker)?, false),
            [client, "comes"] => Scripted::Comes(self.client(client)?, None),
            [client, "comes", "to", broker] => Scripted::Comes(self.client(client)?, Some(self.broker(broker)?)),
            [client, "leaves"] => Scripted::Leaves(self.client(client)?),
            [client, "says", "nothing"] => Scripted::Mute(self.client(client)?, true),
            [client, "answers"] => Scripted::Mute(self.client(client)?, false),
            [client, "subscribes", filter, "qos", qos] => {
                Scripted::Subscribes(self.client(client)?, (*filter).to_owned(), qos_of(qos)?)
            }
            [client, "publishes", count, "to", topic, "qos", qos] => {
                Scripted::Publishes(self.client(client)?, topic_of(topic)?, qos_of(qos)?, number(count)?)
            }
            _ => return Err(format!("{:?} is nothing that can happen", words.join(" "))),
        };
        Ok(Act::Does(vec![one]))
    }

    fn expectation(&self, words: &[&str]) -> Result<Expectation, String> {
        Ok(match words {
            ["rest"] => Expectation::Rest,
            ["gaps", count] => Expectation::Gaps(number(count)?),
            ["filled", count] => Expectation::Filled(number(count)?),
            [client, "got", count] => Expectation::Got(self.client(client)?, number(count)?),
            [client, "again", count] => Expectation::Again(self.client(client)?, number(count)?),
            _ => return Err(format!("{:?} is nothing that can be expected", words.join(" "))),
        })
    }

    /// # Errors
    /// The line of the first expectation that does not hold, and what is the case.
    fn run(&self, seed: u64) -> Result<(), (usize, String)> {
        let plan = Plan { wanders: self.wanders, replicas: self.replicas, ..PLAN };
        let mut world = World::scripted(seed, plan, &self.rings, &self.links, &self.homes);
        for line in &self.lines {
            world.run_until(line.at);
            match &line.act {
                Act::Does(acts) => acts.iter().for_each(|act| world.script(act)),
                Act::Expect(expectation) => {
                    check(&world, expectation).map_err(|found| (line.number, format!("found {found} at {:?}", line.at)))?;
                }
            }
        }
        Ok(())
    }
}

fn check(world: &World, expectation: &Expectation) -> Result<(), String> {
    let hold = |holds: bool, found: String| if holds { Ok(()) } else { Err(found) };
    let counts = world.counts();
    match *expectation {
        Expectation::Rest => {
            world.account.check_order(false);
            world.check_rest();
            let verdict = world.account.judge(world.now());
            hold(verdict.owed > 0 && verdict.lost.is_empty(), format!("of {} owed these lost: {:?}", verdict.owed, verdict.lost))?;
            hold(counts.payloads_lost + counts.dropped == 0, format!("{counts:?}"))
        }
        Expectation::Got(client, count) => hold(world.got(client).0 == count, format!("{}", world.got(client).0)),
        Expectation::Again(client, count) => hold(world.got(client).1 >= count, format!("{}", world.got(client).1)),
        Expectation::Filled(count) => hold(counts.filled >= count, format!("{}", counts.filled)),
        Expectation::Gaps(count) => hold(counts.gaps == count, format!("{}", counts.gaps)),
    }
}

fn qos_of(text: &str) -> Result<QoS, String> {
    match text {
        "0" => Ok(QoS::AtMostOnce),
        "1" => Ok(QoS::AtLeastOnce),
        "2" => Ok(QoS::ExactlyOnce),
        _ => Err(format!("{text:?} is no QoS")),
    }
}

fn topic_of(text: &str) -> Result<usize, String> {
    let topic = text.strip_prefix("topic/").map(number).transpose()?;
    topic.filter(|topic| *topic < TOPICS).ok_or_else(|| format!("{text:?} is none of topic/0 to topic/{}", TOPICS - 1))
}

#[test]
fn every_hole_stays_closed() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/contract");
    let mut files: Vec<_> = std::fs::read_dir(here).expect("this directory").map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "txt"));
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    let mut wrong = Vec::new();
    for path in &files {
        let file = format!("tests/sim/contract/{}", path.file_name().expect("a file").to_string_lossy());
        let text = std::fs::read_to_string(path).expect("a text");
        let run = |scenario: Scenario| {
            (0..SEEDS).try_for_each(|seed| {
                println!("{file}, seed {seed}");
                scenario.run(seed).map_err(|(line, problem)| (line, format!("{problem} (seed {seed})")))
            })
        };
        if let Err((line, problem)) = Scenario::parse(&text).and_then(run) {
            wrong.push(format!("{file}:{line}: {problem}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn what_is_wrong_in_a_scenario_is_named_by_its_line() {
    let mesh = "broker a\nbroker b\nlink a-b\nclient c at a\n";
    let problem = |more: &str| match Scenario::parse(&format!("{mesh}{more}")).and_then(|scenario| scenario.run(1)) {
        Ok(()) => panic!("{more:?} is fine"),
        Err((line, problem)) => format!("{line}: {problem}"),
    };
    assert_eq!(problem("link a-d\n"), "5: \"d\" is no broker of this scenario");
    assert_eq!(problem("client d at b\nat 1s e comes\n"), "6: \"e\" is no client of this scenario");
    assert_eq!(problem("\nat 5 crash a\n"), "6: \"5\" is no time like 20ms, 1.5s, 3min or 1h");
    assert_eq!(problem("at 2s links up\nat 1s crash a\n"), "6: the time goes back");
    assert_eq!(problem("at 2s c explodes\n"), "5: \"c explodes\" is nothing that can happen");
    assert_eq!(problem("at 1s c publishes 3 to topic/9 qos 1\n"), "5: \"topic/9\" is none of topic/0 to topic/5");
    assert_eq!(problem("# This is all.\nat 2s links up\n"), "6: the scenario does not end with: expect rest");
    assert_eq!(
        problem("at 0s links up\nat 2s c comes\nat 3s c subscribes # qos 2\nat 4s expect c got 1\nat 4s expect rest\n"),
        "8: found 0 at 4s"
    );
}

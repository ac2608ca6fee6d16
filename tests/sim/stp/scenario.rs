//! Scenarios as text: what someone who knows IEEE 802.1D can read and write. `README.md` beside this file has the language; every `*.txt` there
//! is run, with several seeds. Whatever is wrong is told with file and line.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::time::Duration;

use mqtt_st_quic::ids::{BrokerId, Incarnation, RootClaim};
use mqtt_st_quic::stp::{Role, Stp};

use super::course::EVENTS_MAX;
use super::world::{Fault, Notice, Path, Settings, World, check};

const SEEDS: u64 = 5;
const DELAY: Duration = Duration::from_millis(1);

/// What the world is built from.
#[derive(Default)]
struct Mesh {
    names: Vec<String>,
    claims: Vec<RootClaim>,
    /// Ends, costs, one way delay.
    links: Vec<([usize; 2], [u32; 2], Duration)>,
    hop_max: Option<u8>,
    detects: bool,
}

enum Act {
    Faults(Vec<Fault>),
    Expect(Expectation),
}

enum Expectation {
    Rest,
    NoChange,
    Root(usize),
    Epoch(u64),
    /// Both ends forward; neither does, and the link is up; it is down.
    Link(usize, LinkState),
    RootOf(usize, usize),
    RootPort(usize, usize),
    Cost(usize, u32),
    OutOfReach(usize),
    Role(usize, usize, Role),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LinkState {
    Forwarding,
    Blocked,
    Down,
}

struct Line {
    number: usize,
    at: Duration,
    act: Act,
}

struct Scenario {
    mesh: Mesh,
    lines: Vec<Line>,
}

impl Mesh {
    fn broker(&self, name: &str) -> Result<usize, String> {
        self.names.iter().position(|known| known == name).ok_or_else(|| format!("{name:?} is no broker of this scenario"))
    }

    fn link(&self, name: &str) -> Result<usize, String> {
        let (a, b) = self.pair(name)?;
        self.link_between(a, b)
    }

    fn pair(&self, name: &str) -> Result<(usize, usize), String> {
        let (a, b) = name.split_once('-').ok_or_else(|| format!("{name:?} is no link: two brokers joined by a hyphen"))?;
        Ok((self.broker(a)?, self.broker(b)?))
    }

    fn link_between(&self, a: usize, b: usize) -> Result<usize, String> {
        let found = self.links.iter().position(|(ends, ..)| *ends == [a, b] || *ends == [b, a]);
        found.ok_or_else(|| format!("there is no link between {} and {}", self.names[a], self.names[b]))
    }

    /// A line before the first `at`.
    fn declare(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["broker", name, rest @ ..] => {
                if name.contains('-') || self.names.iter().any(|known| known == name) {
                    return Err(format!("{name:?} has a hyphen, or is there twice"));
                }
                let id = BrokerId(self.names.len() as u64 + 1);
                let mut claim = RootClaim { priority: 32_768, capacity: 0, id, incarnation: Incarnation(1_000_000_000) };
                for (key, value) in pairs(rest)? {
                    match key {
                        "priority" => claim.priority = number(value)?,
                        "capacity" => claim.capacity = number(value)?,
                        "id" => claim.id = BrokerId(number(value)?),
                        _ => return Err(format!("a broker has no {key:?}; it has priority, capacity, id")),
                    }
                }
                self.names.push((*name).to_owned());
                self.claims.push(claim);
                Ok(())
            }
            ["link", name, rest @ ..] => {
                let (a, b) = self.pair(name)?;
                if a == b || self.link_between(a, b).is_ok() {
                    return Err(format!("{name:?} is there twice, or has one end"));
                }
                let (mut costs, mut delay) = ([1, 1], DELAY);
                for (key, value) in pairs(rest)? {
                    match key {
                        "cost" => costs = both(value)?,
                        "delay" => delay = time(value)?,
                        _ => return Err(format!("a link has no {key:?}; it has cost, delay")),
                    }
                }
                self.links.push(([a, b], costs, delay));
                Ok(())
            }
            ["hop-max", hops] => {
                self.hop_max = Some(number(hops)?);
                Ok(())
            }
            ["detection", "on"] => {
                self.detects = true;
                Ok(())
            }
            _ => Err(format!("{:?}: expected broker, link, hop-max, detection or at", words.join(" "))),
        }
    }

    fn act(&self, words: &[&str]) -> Result<Act, String> {
        let fault = |fault| Ok(Act::Faults(vec![fault]));
        match words {
            ["expect", what @ ..] => self.expectation(what).map(Act::Expect),
            ["links", "up"] => Ok(Act::Faults((0..self.links.len()).map(Fault::Up).collect())),
            ["link", link, "up"] => fault(Fault::Up(self.link(link)?)),
            ["link", link, "down"] => fault(Fault::Down(self.link(link)?)),
            ["cost", link, value] => fault(Fault::Cost(self.link(link)?, both(value)?)),
            ["delay", link, value] => fault(Fault::Path(self.link(link)?, Path::calm(time(value)?))),
            ["crash", broker] => fault(Fault::Crash(self.broker(broker)?)),
            ["start", broker] => {
                let broker = self.broker(broker)?;
                let own = (0..self.links.len()).filter(|&link| self.links[link].0.contains(&broker));
                Ok(Act::Faults(std::iter::once(Fault::Start(broker)).chain(own.map(Fault::Up)).collect()))
            }
            ["clock", broker, "back", by] => fault(Fault::ClockBack(self.broker(broker)?, time(by)?)),
            ["lose-disk", broker] => fault(Fault::LoseDisk(self.broker(broker)?)),
            ["partition", side @ ..] if !side.is_empty() => {
                let side = side.iter().map(|name| self.broker(name)).collect::<Result<Vec<_>, _>>()?;
                let crosses = |link: &usize| side.contains(&self.links[*link].0[0]) != side.contains(&self.links[*link].0[1]);
                Ok(Act::Faults((0..self.links.len()).filter(crosses).map(Fault::Down).collect()))
            }
            _ => Err(format!("{:?} is nothing that can happen", words.join(" "))),
        }
    }

    fn expectation(&self, words: &[&str]) -> Result<Expectation, String> {
        Ok(match words {
            ["rest"] => Expectation::Rest,
            ["no", "change"] => Expectation::NoChange,
            ["root", broker] => Expectation::Root(self.broker(broker)?),
            ["epoch", epoch] => Expectation::Epoch(number(epoch)?),
            [link, "forwarding"] => Expectation::Link(self.link(link)?, LinkState::Forwarding),
            [link, "blocked"] => Expectation::Link(self.link(link)?, LinkState::Blocked),
            [link, "down"] => Expectation::Link(self.link(link)?, LinkState::Down),
            [broker, "root", root] => Expectation::RootOf(self.broker(broker)?, self.broker(root)?),
            [broker, "root-port", peer] => {
                let (broker, peer) = (self.broker(broker)?, self.broker(peer)?);
                self.link_between(broker, peer)?;
                Expectation::RootPort(broker, peer)
            }
            [broker, "root-path-cost", cost] => Expectation::Cost(self.broker(broker)?, number(cost)?),
            [broker, "out-of-reach"] => Expectation::OutOfReach(self.broker(broker)?),
            [broker, "port", peer, role] => {
                let (broker, peer) = (self.broker(broker)?, self.broker(peer)?);
                self.link_between(broker, peer)?;
                Expectation::Role(broker, peer, role_named(role)?)
            }
            _ => return Err(format!("{:?} is nothing that can be expected", words.join(" "))),
        })
    }
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut scenario = Self { mesh: Mesh::default(), lines: Vec::new() };
        let mut last = Duration::ZERO;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            match words[..] {
                [] => {}
                ["at", at, ref what @ ..] => {
                    let at = time(at).map_err(|problem| (number, problem))?;
                    if at < last {
                        return Err((number, "the time goes back".to_owned()));
                    }
                    last = at;
                    let act = scenario.mesh.act(what).map_err(|problem| (number, problem))?;
                    scenario.lines.push(Line { number, at, act });
                }
                _ if !scenario.lines.is_empty() => return Err((number, "expected at, as on the lines before".to_owned())),
                ref words => scenario.mesh.declare(words).map_err(|problem| (number, problem))?,
            }
        }
        match scenario.lines.last() {
            Some(Line { act: Act::Expect(_), .. }) => Ok(scenario),
            _ => Err((text.lines().count(), "the scenario ends without an expectation".to_owned())),
        }
    }

    fn world(&self, seed: u64) -> World {
        let mesh = &self.mesh;
        let mut settings = Settings::broker(seed);
        if !mesh.detects {
            settings.notice = Notice::Told { within: DELAY };
        }
        settings.hop_max = mesh.hop_max.unwrap_or(settings.hop_max);
        let mut world = World::with_claims(settings, &mesh.claims);
        for &([a, b], costs, delay) in &mesh.links {
            let link = world.add_link(a, b, costs);
            world.links[link].path = Path::calm(delay);
        }
        world
    }

    /// # Errors
    /// The line of the first expectation that does not hold, and what is the case.
    fn run(&self, seed: u64) -> Result<(), (usize, String)> {
        let mut world = self.world(seed);
        let mut before = changes(&world);
        let mut is_told = true;
        for line in &self.lines {
            world.run_until(line.at);
            match &line.act {
                Act::Faults(faults) => {
                    // What has changed is counted from the first of several faults that come together.
                    if std::mem::take(&mut is_told) {
                        before = changes(&world);
                    }
                    for fault in faults {
                        world.fault_after(Duration::ZERO, *fault);
                    }
                }
                Act::Expect(expectation) => {
                    is_told = true;
                    let holds = self.check(&mut world, expectation, &before);
                    holds.map_err(|found| (line.number, format!("found {found} at {:?}", line.at)))?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, world: &mut World, expectation: &Expectation, before: &Changes) -> Result<(), String> {
        let name = |broker: Option<usize>| broker.map_or("none", |broker| self.mesh.names[broker].as_str());
        let stp = |world: &World, broker: usize| world.stp(broker).cloned().ok_or_else(|| format!("{} down", name(Some(broker))));
        let live = (0..self.mesh.names.len()).filter(|&broker| world.stp(broker).is_some());
        let hold = |holds: bool, found: String| if holds { Ok(()) } else { Err(found) };
        match *expectation {
            Expectation::Rest => {
                hold(world.is_at_rest(), "a mesh that is not at rest".to_owned())?;
                check::at_rest(world);
                check::messages(world, EVENTS_MAX);
                Ok(())
            }
            Expectation::NoChange => {
                let now = changes(world);
                let changed = |life: &&(usize, u64)| before.get(*life).is_some_and(|count| *count != now[*life]);
                let changed: Vec<&str> = now.keys().filter(changed).map(|&(broker, _)| name(Some(broker))).collect();
                hold(changed.is_empty(), format!("changes at {}", changed.join(", ")))
            }
            Expectation::Root(root) => {
                let roots: Vec<_> = live.map(|broker| (broker, world.root(broker))).collect();
                let told: Vec<String> =
                    roots.iter().map(|&(broker, root)| format!("{}: {}", name(Some(broker)), name(root))).collect();
                hold(roots.iter().all(|&(_, found)| found == Some(root)), format!("the roots {}", told.join(", ")))
            }
            Expectation::Epoch(epoch) => {
                let epochs: Vec<u64> = live.filter_map(|broker| Some(world.stp(broker)?.tree().epoch)).collect();
                hold(epochs.iter().all(|&found| found == epoch), format!("the epochs {epochs:?}"))
            }
            Expectation::Link(link, state) => {
                let [a, b] = [0, 1].map(|end| world.port_state(link, end));
                let found = match (a, b) {
                    ((Role::Disabled, _), (Role::Disabled, _)) => Some(LinkState::Down),
                    ((Role::Disabled, _), _) | (_, (Role::Disabled, _)) => None,
                    ((_, true), (_, true)) => Some(LinkState::Forwarding),
                    ((_, false), (_, false)) => Some(LinkState::Blocked),
                    _ => None,
                };
                hold(found == Some(state), format!("{a:?} and {b:?} (role, forwarding)"))
            }
            Expectation::RootOf(broker, root) => {
                hold(world.root(broker) == Some(root), format!("root {}", name(world.root(broker))))
            }
            Expectation::RootPort(broker, peer) => {
                hold(world.parent(broker) == Some(peer), format!("root-port {}", name(world.parent(broker))))
            }
            Expectation::Cost(broker, cost) => {
                let found = stp(world, broker)?.distance();
                hold(found == Some(cost), format!("root-path-cost {found:?}"))
            }
            Expectation::OutOfReach(broker) => hold(stp(world, broker)?.is_out_of_reach(), "a way to the root".to_owned()),
            Expectation::Role(broker, peer, role) => {
                let link = world.link_between(broker, peer).expect("was checked");
                let found = world.port_state(link, usize::from(world.links[link].ends[1] == broker)).0;
                hold(found == role, format!("{found:?}"))
            }
        }
    }
}

/// How often each life of each broker, by its incarnation, has changed its place in the tree.
type Changes = BTreeMap<(usize, u64), u64>;

fn changes(world: &World) -> Changes {
    let life = |(index, broker): (usize, &super::world::Broker)| {
        let stp: &Stp = broker.stp.as_ref()?;
        Some(((index, broker.claim.incarnation.0), stp.changes().0))
    };
    world.brokers.iter().enumerate().filter_map(life).collect()
}

pub(crate) fn pairs<'a>(words: &'a [&'a str]) -> Result<Vec<(&'a str, &'a str)>, String> {
    let pair = |pair: &'a [&'a str]| match pair {
        [key, value] => Ok((*key, *value)),
        _ => Err(format!("{:?} has no value", pair.join(" "))),
    };
    words.chunks(2).map(pair).collect()
}

pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number that fits here"))
}

/// One cost for both ends, or two: of the end named first, of the other.
fn both(text: &str) -> Result<[u32; 2], String> {
    let (a, b) = text.split_once('/').unwrap_or((text, text));
    let costs = [number(a)?, number(b)?];
    if costs.contains(&0) { Err("a link costs 1 at least".to_owned()) } else { Ok(costs) }
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (count, unit) = text.split_at(end);
    let unit = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3_600.0,
        _ => return Err(format!("{text:?} is no time like 20ms, 1.5s, 3min or 1h")),
    };
    Ok(Duration::from_secs_f64(number::<f64>(count)? * unit))
}

fn role_named(name: &str) -> Result<Role, String> {
    Ok(match name {
        "root" => Role::Root,
        "designated" => Role::Designated,
        "alternate" => Role::Alternate,
        "disabled" => Role::Disabled,
        _ => return Err(format!("{name:?} is no role: root, designated, alternate or disabled")),
    })
}

#[test]
fn every_scenario_ends_as_it_says() {
    let here = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/stp");
    let mut files: Vec<_> = std::fs::read_dir(here).expect("this directory").map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "txt"));
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    let mut wrong = Vec::new();
    for path in &files {
        let file = format!("tests/sim/stp/{}", path.file_name().expect("a file").to_string_lossy());
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
    let mesh = "broker a\nbroker b\nlink a-b cost 2\n";
    let problem = |more: &str| match Scenario::parse(&format!("{mesh}{more}")).and_then(|scenario| scenario.run(1)) {
        Ok(()) => panic!("{more:?} is fine"),
        Err((line, problem)) => format!("{line}: {problem}"),
    };
    assert_eq!(problem("link a-c cost 1\n"), "4: \"c\" is no broker of this scenario");
    assert_eq!(problem("hop-max 300\n"), "4: \"300\" is no number that fits here");
    assert_eq!(problem("\nat 5 crash a\n"), "5: \"5\" is no time like 20ms, 1.5s, 3min or 1h");
    assert_eq!(problem("at 2s links up\nat 1s crash a\n"), "5: the time goes back");
    assert_eq!(problem("at 2s explode a\n"), "4: \"explode a\" is nothing that can happen");
    assert_eq!(problem("at 2s links up # and nothing more\n"), "4: the scenario ends without an expectation");
    assert_eq!(problem("at 0s links up\nat 1s expect b root-port a\nat 1s expect root b\n"), "6: found the roots a: a, b: a at 1s");
    assert_eq!(
        problem("at 0s links up\nat 1s expect a-b blocked\n"),
        "5: found (Designated, true) and (Root, true) (role, forwarding) at 1s"
    );
}

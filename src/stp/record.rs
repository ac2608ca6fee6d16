//! A broker's record of everything that its tree was told, as lines of text: the machine is deterministic, so that the same inputs at the same
//! times give the same outputs, and what went wrong in the field can be looked at on a desk. Writing lines and reading them; not the
//! file (`mesh::driver`), and not what is looked for (`examples/stp_sim.rs --replay`).
//!
//! ```text
//! mqtt-st-quic stp record 1
//! config priority=32768 capacity=3 id=00000000000000aa incarnation=1764000000000 hop_max=255 hello=0.100000000 epoch_interval=1.000000000
//! 0.012345678 link-up peer=00000000000000bb generation=1 cost=2 rtt=0.000250000
//! 0.013000000 bpdu peer=00000000000000bb generation=1 number=1 epoch=1 priority=32768 capacity=3 root=00000000000000bb incarnation=9 distance=0 hops=0 held=none request=no
//! 0.013500000 open peer=00000000000000bb generation=1 epoch=1 priority=32768 capacity=3 root=00000000000000bb incarnation=9 count=1 child=00000000000000aa life=1764000000000
//! 0.014000000 close peer=00000000000000bb generation=1 count=1 child=00000000000000aa life=1764000000000
//! 0.014500000 closed peer=00000000000000bb generation=1 count=1 child=00000000000000aa life=1764000000000
//! 0.500000000 cost peer=00000000000000bb generation=1 cost=4 rtt=0.000500000
//! 0.600000000 timeout
//! 0.700000000 link-down peer=00000000000000bb generation=1
//! ```
//!
//! Times are seconds since the record began, to the nanosecond: a timer that was due then is due in the replay. Fields stand in this order.
//! A last line without its end was being written when the broker died, and is not read.

use std::fmt::{self, Display, Write};
use std::num::NonZeroU32;
use std::str::{FromStr, SplitAsciiWhitespace};
use std::time::Duration;

use thiserror::Error;

use super::{Bpdu, Input, StpConfig};
use crate::ids::{BrokerId, Incarnation, OpenMark, OpenNumber, PortId, RootClaim, TreeId};

const TITLE: &str = "mqtt-st-quic stp record ";
const VERSION: u32 = 1;

/// What a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The broker's.
    pub config: StpConfig,
    /// What its machine was told, and when, from the beginning of the record; times never go back.
    pub inputs: Vec<(Duration, Input)>,
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {problem}")]
pub struct RecordError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what was expected.
    pub problem: String,
}

/// The lines that a record begins with.
#[must_use]
pub fn head(config: &StpConfig) -> String {
    let StpConfig { claim, hop_max, hello, epoch_interval } = config;
    let RootClaim { priority, capacity, id, incarnation } = claim;
    format!(
        "{TITLE}{VERSION}\nconfig priority={priority} capacity={capacity} id={id} incarnation={} hop_max={hop_max} hello={} epoch_interval={}\n",
        incarnation.0,
        Seconds(*hello),
        Seconds(*epoch_interval)
    )
}

/// One input, `at` so long after the record began: a line with its end.
#[must_use]
pub fn line(at: Duration, input: &Input) -> String {
    let mut out = format!("{} ", Seconds(at));
    // Writing to a string does not fail.
    let _ = write_input(&mut out, input);
    out.push('\n');
    out
}

fn write_input(out: &mut String, input: &Input) -> fmt::Result {
    match input {
        Input::LinkUp { port, cost, rtt } => write!(out, "link-up {} cost={cost} rtt={}", Port(port), Seconds(*rtt)),
        Input::LinkDown { port } => write!(out, "link-down {}", Port(port)),
        Input::Cost { port, cost, rtt } => write!(out, "cost {} cost={cost} rtt={}", Port(port), Seconds(*rtt)),
        Input::Bpdu { port, bpdu } => {
            let Bpdu { number, tree, distance, hops, epoch_held, request_epoch } = bpdu;
            write!(out, "bpdu {} number={number} {} distance={}", Port(port), Tree(tree), OrNone(*distance))?;
            write!(out, " hops={hops} held={} request={}", OrNone(*epoch_held), if *request_epoch { "yes" } else { "no" })
        }
        Input::OpenReceived { port, open } => write!(out, "open {} {} {}", Port(port), Tree(&open.tree), Number(&open.number)),
        Input::CloseReceived { port, number } => write!(out, "close {} {}", Port(port), Number(number)),
        Input::LanesClosed { port, number } => write!(out, "closed {} {}", Port(port), Number(number)),
        Input::Timeout => write!(out, "timeout"),
    }
}

/// Reads a record.
///
/// # Errors
/// The first line that is damaged, or of a version that is not read.
pub fn parse(text: &str) -> Result<Record, RecordError> {
    let whole = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or(""));
    let mut lines = whole.lines().enumerate().map(|(index, text)| (index + 1, text));
    let (line, title) = lines.next().ok_or_else(|| RecordError { line: 1, problem: "the record is empty".to_owned() })?;
    check_title(title).map_err(|problem| RecordError { line, problem })?;
    let (line, config) = lines.next().ok_or_else(|| RecordError { line: 2, problem: "expected config".to_owned() })?;
    let config = Fields::read(config, |fields| fields.config()).map_err(|problem| RecordError { line, problem })?;
    let mut inputs: Vec<(Duration, Input)> = Vec::new();
    for (line, text) in lines {
        let (at, input) = Fields::read(text, |fields| fields.input()).map_err(|problem| RecordError { line, problem })?;
        if inputs.last().is_some_and(|&(last, _)| at < last) {
            return Err(RecordError { line, problem: "the time goes back".to_owned() });
        }
        inputs.push((at, input));
    }
    Ok(Record { config, inputs })
}

fn check_title(title: &str) -> Result<(), String> {
    let version = title.strip_prefix(TITLE).ok_or_else(|| format!("expected {:?}", format!("{TITLE}{VERSION}")))?;
    match version.parse::<u32>() {
        Ok(VERSION) => Ok(()),
        Ok(newer) if newer > VERSION => Err(format!("version {newer} is newer than {VERSION}, which this program reads")),
        _ => Err(format!("version {version:?}, expected {VERSION}")),
    }
}

/// One line, field by field.
struct Fields<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Fields<'a> {
    fn read<T>(line: &'a str, read: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        let mut fields = Self(line.split_ascii_whitespace());
        let value = read(&mut fields)?;
        fields.0.next().map_or(Ok(value), |more| Err(format!("{more:?} is one field too many")))
    }

    fn word(&mut self) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| "the line ends too early".to_owned())
    }

    fn field(&mut self, key: &str) -> Result<&'a str, String> {
        let word = self.0.next().ok_or_else(|| format!("expected {key}=..., the line ends"))?;
        word.strip_prefix(key).and_then(|rest| rest.strip_prefix('=')).ok_or_else(|| format!("expected {key}=..., found {word:?}"))
    }

    fn value<T: FromStr>(&mut self, key: &str) -> Result<T, String> {
        let text = self.field(key)?;
        text.parse().map_err(|_| format!("{key}={text:?} is out of range or none"))
    }

    fn value_or_none<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, String> {
        match self.field(key)? {
            "none" => Ok(None),
            text => text.parse().map(Some).map_err(|_| format!("{key}={text:?} is out of range or none")),
        }
    }

    fn seconds(text: &str) -> Result<Duration, String> {
        let duration = text.split_once('.').filter(|(_, nanos)| nanos.len() == 9).and_then(|(seconds, nanos)| {
            // A record of more than a century is damaged, and would not fit the clock.
            let seconds = seconds.parse::<u32>().ok()?;
            Some(Duration::new(seconds.into(), nanos.parse().ok()?))
        });
        duration.ok_or_else(|| format!("{text:?} is no time like 12.000345678"))
    }

    fn duration(&mut self, key: &str) -> Result<Duration, String> {
        Self::seconds(self.field(key)?)
    }

    fn broker(&mut self, key: &str) -> Result<BrokerId, String> {
        self.value(key)
    }

    fn config(&mut self) -> Result<StpConfig, String> {
        match self.word()? {
            "config" => {}
            other => return Err(format!("expected config, found {other:?}")),
        }
        let claim = RootClaim {
            priority: self.value("priority")?,
            capacity: self.value("capacity")?,
            id: self.broker("id")?,
            incarnation: Incarnation(self.value("incarnation")?),
        };
        let hop_max = self.value("hop_max")?;
        Ok(StpConfig { claim, hop_max, hello: self.duration("hello")?, epoch_interval: self.duration("epoch_interval")? })
    }

    fn input(&mut self) -> Result<(Duration, Input), String> {
        let at = Self::seconds(self.word()?)?;
        let input = match self.word()? {
            "link-up" => Input::LinkUp { port: self.port()?, cost: self.value("cost")?, rtt: self.duration("rtt")? },
            "link-down" => Input::LinkDown { port: self.port()? },
            "cost" => Input::Cost { port: self.port()?, cost: self.value::<NonZeroU32>("cost")?, rtt: self.duration("rtt")? },
            "bpdu" => Input::Bpdu { port: self.port()?, bpdu: self.bpdu()? },
            "open" => Input::OpenReceived { port: self.port()?, open: OpenMark { tree: self.tree()?, number: self.number()? } },
            "close" => Input::CloseReceived { port: self.port()?, number: self.number()? },
            "closed" => Input::LanesClosed { port: self.port()?, number: self.number()? },
            "timeout" => Input::Timeout,
            other => return Err(format!("{other:?} is no input")),
        };
        Ok((at, input))
    }

    fn port(&mut self) -> Result<PortId, String> {
        Ok(PortId { peer: self.broker("peer")?, generation: self.value("generation")? })
    }

    fn bpdu(&mut self) -> Result<Bpdu, String> {
        Ok(Bpdu {
            number: self.value("number")?,
            tree: self.tree()?,
            distance: self.value_or_none("distance")?,
            hops: self.value("hops")?,
            epoch_held: self.value_or_none("held")?,
            request_epoch: match self.field("request")? {
                "yes" => true,
                "no" => false,
                other => return Err(format!("request={other:?}, expected yes or no")),
            },
        })
    }

    fn tree(&mut self) -> Result<TreeId, String> {
        let epoch = self.value("epoch")?;
        let (priority, capacity) = (self.value("priority")?, self.value("capacity")?);
        let (id, incarnation) = (self.broker("root")?, Incarnation(self.value("incarnation")?));
        Ok(TreeId { epoch, root: RootClaim { priority, capacity, id, incarnation } })
    }

    fn number(&mut self) -> Result<OpenNumber, String> {
        let count = self.value("count")?;
        Ok(OpenNumber { count, child: self.broker("child")?, incarnation: Incarnation(self.value("life")?) })
    }
}

struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

struct OrNone<T>(Option<T>);

impl<T: Display> Display for OrNone<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("none"),
        }
    }
}

struct Port<'a>(&'a PortId);

impl Display for Port<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer={} generation={}", self.0.peer, self.0.generation)
    }
}

struct Tree<'a>(&'a TreeId);

impl Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TreeId { epoch, root: RootClaim { priority, capacity, id, incarnation } } = self.0;
        write!(f, "epoch={epoch} priority={priority} capacity={capacity} root={id} incarnation={}", incarnation.0)
    }
}

struct Number<'a>(&'a OpenNumber);

impl Display for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenNumber { count, child, incarnation } = self.0;
        write!(f, "count={count} child={child} life={}", incarnation.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Record {
        let claim = RootClaim { priority: 32_768, capacity: 3, id: BrokerId(0xaa), incarnation: Incarnation(7) };
        let config = StpConfig { claim, hop_max: 255, hello: Duration::from_millis(100), epoch_interval: Duration::from_secs(1) };
        let port = PortId { peer: BrokerId(u64::MAX), generation: 3 };
        let tree = TreeId { epoch: 1 << 40, root: claim };
        let number = OpenNumber { count: 9, child: BrokerId(1), incarnation: Incarnation(u64::MAX) };
        let (cost, rtt) = (NonZeroU32::MAX, Duration::from_nanos(1));
        let bpdu = Bpdu { number: 5, tree, distance: Some(u32::MAX), hops: 255, epoch_held: Some(4), request_epoch: true };
        let inputs = [
            Input::LinkUp { port, cost, rtt },
            Input::Cost { port, cost, rtt },
            Input::Bpdu { port, bpdu },
            Input::Bpdu { port, bpdu: Bpdu { distance: None, epoch_held: None, request_epoch: false, ..bpdu } },
            Input::OpenReceived { port, open: OpenMark { tree, number } },
            Input::CloseReceived { port, number },
            Input::LanesClosed { port, number },
            Input::Timeout,
            Input::LinkDown { port },
        ];
        let times = (0..).map(|n| Duration::from_nanos(n * 999_999_999));
        Record { config, inputs: times.zip(inputs).collect() }
    }

    fn text(record: &Record) -> String {
        let lines = record.inputs.iter().map(|(at, input)| line(*at, input));
        std::iter::once(head(&record.config)).chain(lines).collect()
    }

    #[test]
    fn every_input_is_read_as_it_was_written() {
        assert_eq!(parse(&text(&example())), Ok(example()));
    }

    #[test]
    fn what_the_documentation_shows_is_read() {
        let shown = include_str!("record.rs").lines().skip_while(|line| *line != "//! ```text").skip(1);
        let shown: String = shown.take_while(|line| *line != "//! ```").map(|line| line.replace("//! ", "") + "\n").collect();
        assert_eq!(parse(&shown).map(|record| record.inputs.len()), Ok(8), "{shown}");
    }

    #[test]
    fn a_line_that_was_being_written_is_left_out() {
        let whole = text(&example());
        let cut = whole.get(..whole.len() - 3).expect("ASCII");
        assert_eq!(parse(cut).map(|record| record.inputs.len()), Ok(example().inputs.len() - 1));
    }

    #[test]
    fn what_is_damaged_is_named_by_its_line() {
        let whole = text(&example());
        let refused = |from: &str, to: &str| {
            assert!(whole.contains(from), "{from}");
            parse(&whole.replacen(from, to, 1)).expect_err(to).to_string()
        };
        assert_eq!(refused("record 1", "record 2"), "line 1: version 2 is newer than 1, which this program reads");
        assert_eq!(refused("mqtt-st-quic", "mqtt"), "line 1: expected \"mqtt-st-quic stp record 1\"");
        assert_eq!(refused("capacity=3 id", "capacity=300 id"), "line 2: capacity=\"300\" is out of range or none");
        assert_eq!(refused("cost=", "cots="), "line 3: expected cost=..., found \"cots=4294967295\"");
        assert_eq!(refused("rtt=0.000000001", "rtt=1"), "line 3: \"1\" is no time like 12.000345678");
        assert_eq!(refused("request=yes", "request=yes more"), "line 5: \"more\" is one field too many");
        assert_eq!(refused("timeout", "time-out"), "line 10: \"time-out\" is no input");
        assert_eq!(refused("6.999999993 timeout", "0.000000000 timeout"), "line 10: the time goes back");
        assert_eq!(parse("").expect_err("empty").line, 1);
        assert_eq!(parse("mqtt-st-quic stp record 1\n").expect_err("no config").to_string(), "line 2: expected config");
    }
}

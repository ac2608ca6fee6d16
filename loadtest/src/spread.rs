//! How the messages of a run are spread: over topics (uniformly, or the first ones more often), and over payload sizes.
//!
//! A publisher with several topics is as many flows: order is promised, and so kept account of, per publisher and topic. Flow
//! `publisher * topics + topic` is that of one topic of one publisher, and is what a stamp names.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use crate::payload::STAMP_BYTES;

/// How often each topic of a publisher is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Popularity {
    Uniform,
    /// Topic `k`, from 0, with weight `1 / (k + 1)^exponent`.
    Zipf {
        exponent: f64,
    },
}

impl FromStr for Popularity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let exponent = match text.split_once(':') {
            None if text == "uniform" => return Ok(Self::Uniform),
            None if text == "zipf" => "1",
            Some(("zipf", exponent)) => exponent,
            _ => return Err("expected uniform, zipf, or zipf:EXPONENT".to_owned()),
        };
        match exponent.parse() {
            Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(Self::Zipf { exponent }),
            _ => Err("expected an exponent from 0 to 10".to_owned()),
        }
    }
}

/// The topics of a run: `BASE/PUBLISHER`, or `BASE/PUBLISHER/TOPIC` where a publisher has several.
#[derive(Clone, Debug)]
pub(crate) struct Topics {
    base: String,
    each: NonZeroU32,
    /// The shares of a publisher's topics, summed up; empty where all are alike.
    shares: Arc<[f64]>,
}

impl Topics {
    pub(crate) fn new(base: String, each: NonZeroU32, popularity: Popularity) -> Self {
        let shares = match popularity {
            Popularity::Uniform => Arc::default(),
            Popularity::Zipf { exponent } => summed_up((1..=each.get()).map(|rank| f64::from(rank).powf(-exponent))),
        };
        Self { base, each, shares }
    }

    /// The flows of the publishers in this range.
    pub(crate) fn flows(&self, publishers: Range<u32>) -> Range<u32> {
        publishers.start.saturating_mul(self.each.get())..publishers.end.saturating_mul(self.each.get())
    }

    /// Whose flow this is.
    pub(crate) fn publisher(&self, flow: u32) -> u32 {
        flow / self.each
    }

    /// Topics of one publisher.
    pub(crate) fn each(&self) -> u32 {
        self.each.get()
    }

    /// The topic of a flow.
    pub(crate) fn name(&self, flow: u32) -> String {
        let publisher = self.publisher(flow);
        match self.each() {
            1 => format!("{}/{publisher}", self.base),
            each => format!("{}/{publisher}/{}", self.base, flow % each),
        }
    }

    /// The filter that matches the topics of one publisher.
    pub(crate) fn filter_of(&self, publisher: u32) -> String {
        match self.each() {
            1 => self.name(publisher),
            _ => format!("{}/{publisher}/+", self.base),
        }
    }

    /// The filter that matches all topics of the run.
    pub(crate) fn filter_of_all(&self) -> String {
        format!("{}/#", self.base)
    }

    /// The flow that is published under a topic, if one is.
    #[inline]
    pub(crate) fn flow_at(&self, topic: &[u8]) -> Option<u32> {
        let (publisher, rest) = number(topic.strip_prefix(self.base.as_bytes())?)?;
        if self.each() == 1 {
            return rest.is_empty().then_some(publisher);
        }
        let (topic, rest) = number(rest)?;
        (topic < self.each() && rest.is_empty()).then(|| publisher.checked_mul(self.each())?.checked_add(topic))?
    }

    /// The next message's topic, from 0 to [`Self::each`].
    #[inline]
    pub(crate) fn pick(&self, random: &mut Random) -> u32 {
        match self.each() {
            1 => 0,
            each if self.shares.is_empty() => random.below(each),
            each => {
                let drawn = random.share();
                (self.shares.partition_point(|&share| share <= drawn) as u32).min(each - 1)
            }
        }
    }
}

/// Weights summed up and scaled to end at 1.
fn summed_up(weights: impl Iterator<Item = f64>) -> Arc<[f64]> {
    let mut sum = 0.0;
    let mut sums: Vec<_> = weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    sums.iter_mut().for_each(|share| *share /= sum);
    sums.into()
}

/// A slash and a number as we write it; and what follows.
#[inline]
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.strip_prefix(b"/")?;
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at_checked(length)?;
    if digits.is_empty() || (digits.len() > 1 && digits.first() == Some(&b'0')) {
        return None;
    }
    let number = digits.iter().try_fold(0_u32, |number, digit| number.checked_mul(10)?.checked_add(u32::from(digit - b'0')))?;
    Some((number, rest))
}

/// How long payloads are, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    Fixed(u32),
    /// From the first to the last, each as often.
    Range {
        least: u32,
        most: u32,
    },
    /// One of these, each as often.
    List(Arc<[u32]>),
    /// About as a normal distribution has it, but not below `least` nor further than six deviations from the mean.
    Normal {
        mean: u32,
        deviation: u32,
    },
}

impl Sizes {
    /// The next payload's length.
    #[inline]
    pub(crate) fn pick(&self, random: &mut Random) -> usize {
        let bytes = match self {
            Self::Fixed(bytes) => *bytes,
            Self::Range { least, most } => least + random.below((most - least).saturating_add(1)),
            Self::List(list) => list.get(random.below(list.len() as u32) as usize).copied().unwrap_or_default(),
            Self::Normal { mean, deviation } => {
                // The sum of twelve numbers between 0 and 1: its mean is 6, its deviation 1.
                let deviations = (0..12).map(|_| random.share()).sum::<f64>() - 6.0;
                (f64::from(*mean) + deviations * f64::from(*deviation)).max(f64::from(self.least())) as u32
            }
        };
        bytes as usize
    }

    /// The longest.
    pub(crate) fn most(&self) -> usize {
        let bytes = match self {
            Self::Fixed(bytes) | Self::Range { most: bytes, .. } => *bytes,
            Self::List(list) => list.iter().max().copied().unwrap_or_default(),
            Self::Normal { mean, deviation } => mean.saturating_add(deviation.saturating_mul(6)),
        };
        bytes as usize
    }

    /// The shortest.
    pub(crate) fn least(&self) -> u32 {
        match self {
            Self::Fixed(bytes) | Self::Range { least: bytes, .. } => *bytes,
            Self::List(list) => list.iter().min().copied().unwrap_or_default(),
            Self::Normal { mean, deviation } => mean.saturating_sub(deviation.saturating_mul(6)).max(STAMP_BYTES as u32),
        }
    }

    /// On average.
    pub(crate) fn mean(&self) -> f64 {
        match self {
            Self::Fixed(bytes) | Self::Normal { mean: bytes, .. } => f64::from(*bytes),
            Self::Range { least, most } => (f64::from(*least) + f64::from(*most)) / 2.0,
            Self::List(list) => list.iter().map(|&bytes| f64::from(bytes)).sum::<f64>() / list.len().max(1) as f64,
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is not a number of bytes"));
        if let Some((least, most)) = text.split_once('-') {
            let (least, most) = (bytes(least)?, bytes(most)?);
            return if least <= most { Ok(Self::Range { least, most }) } else { Err("the range is upside down".to_owned()) };
        }
        if let Some((mean, deviation)) = text.split_once('~') {
            return Ok(Self::Normal { mean: bytes(mean)?, deviation: bytes(deviation)? });
        }
        match *text.split(',').map(bytes).collect::<Result<Vec<_>, _>>()? {
            [bytes] => Ok(Self::Fixed(bytes)),
            ref list => Ok(Self::List(list.into())),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(formatter, "{bytes}"),
            Self::Range { least, most } => write!(formatter, "{least}-{most}"),
            Self::Normal { mean, deviation } => write!(formatter, "{mean}~{deviation}"),
            Self::List(list) => {
                let list: Vec<_> = list.iter().map(u32::to_string).collect();
                formatter.write_str(&list.join(","))
            }
        }
    }
}

/// Numbers that look random: SplitMix64 (Steele, Lea, Flood 2014). Each publisher has its own.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `bound - 1`, or 0.
    #[inline]
    fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }

    /// From 0 to 1, without 1.
    #[inline]
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(each: u32, popularity: Popularity) -> Topics {
        Topics::new("load/0001".to_owned(), NonZeroU32::new(each).unwrap(), popularity)
    }

    #[test]
    fn every_flow_has_a_topic_and_every_topic_its_flow() {
        for each in [1, 7] {
            let topics = topics(each, Popularity::Uniform);
            for flow in topics.flows(0..20).chain([u32::MAX]) {
                assert_eq!(topics.flow_at(topics.name(flow).as_bytes()), Some(flow), "{each} each");
            }
        }
        assert_eq!(topics(7, Popularity::Uniform).publisher(20), 2);
        assert_eq!(topics(7, Popularity::Uniform).flows(2..4), 14..28);
        assert_eq!(topics(7, Popularity::Uniform).filter_of(3), "load/0001/3/+");
        assert_eq!(topics(1, Popularity::Uniform).filter_of(3), "load/0001/3");
    }

    #[test]
    fn a_topic_that_is_not_quite_ours_is_nobodys() {
        let (one, seven) = (topics(1, Popularity::Uniform), topics(7, Popularity::Uniform));
        for topic in ["", "load/0001", "load/0001/", "load/0001/01", "load/0001/+1", "load/0001/1/", "load/0001/1/1", "load/0002/1"]
        {
            assert_eq!(one.flow_at(topic.as_bytes()), None, "{topic}");
        }
        for topic in ["load/0001/1", "load/0001/1/", "load/0001/1/7", "load/0001/1/1x", "load/0001/4294967295/6", "load/00011/1"] {
            assert_eq!(seven.flow_at(topic.as_bytes()), None, "{topic}");
        }
    }

    fn frequencies(topics: &Topics) -> Vec<f64> {
        let mut random = Random::new(7);
        let mut counts = vec![0.0; topics.each() as usize];
        (0..100_000).for_each(|_| counts[topics.pick(&mut random) as usize] += 1e-5);
        counts
    }

    #[test]
    fn topics_are_as_popular_as_they_should_be() {
        for share in frequencies(&topics(10, Popularity::Uniform)) {
            assert!((share - 0.1).abs() < 0.01, "{share}");
        }
        // 1 + 1/2 + 1/3 + 1/4 = 25/12
        let zipf = frequencies(&topics(4, "zipf".parse().unwrap()));
        for (share, expected) in zipf.iter().zip([0.48, 0.24, 0.16, 0.12]) {
            assert!((share - expected).abs() < 0.01, "{zipf:?}");
        }
        let flat = frequencies(&topics(4, "zipf:0".parse().unwrap()));
        assert!(flat.iter().all(|share| (share - 0.25).abs() < 0.01), "{flat:?}");
    }

    #[test]
    fn sizes_are_what_was_asked_for() {
        let picks = |text: &str| {
            let (sizes, mut random) = (text.parse::<Sizes>().unwrap(), Random::new(1));
            assert_eq!(sizes.to_string(), text);
            let mut seen: Vec<_> = (0..1_000).map(|_| sizes.pick(&mut random)).collect();
            seen.sort_unstable();
            seen.dedup();
            (seen, sizes.mean(), sizes.most())
        };
        assert_eq!(picks("64"), (vec![64], 64.0, 64));
        assert_eq!(picks("40-43"), (vec![40, 41, 42, 43], 41.5, 43));
        let (normal, mean, most) = picks("100~5");
        assert!((mean, most) == (100.0, 130) && normal[0] < 90 && normal[normal.len() - 1] > 110, "{normal:?}");
        assert!(picks("40~20").0[0] == 32, "not shorter than a stamp");
        assert_eq!(picks("64,1000,64"), (vec![64, 1_000], 376.0, 1_000));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "x", "64,", "100-50", "-5", "1-2-3", "~", "100~", "1~2~3"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
        for text in ["", "zipf:", "zipf:-1", "zipf:nan", "pareto", "uniform:1"] {
            assert!(text.parse::<Popularity>().is_err(), "{text}");
        }
    }
}

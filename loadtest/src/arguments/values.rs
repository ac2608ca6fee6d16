//! Values on the command line: addresses, times, rates, topics, payload sizes.

use std::time::Duration;

use crate::payload::STAMP_BYTES;
use crate::spread::Sizes;

/// The largest payload, in bytes: what the protocol's 256 MiB packet leaves beside any topic.
pub(super) const PAYLOAD_BYTES_MAX: i64 = 268_000_000;

const TOPIC_BYTES_MAX: usize = 65_000;

/// "10s", "1.5s", "500ms", "20us", "2m"
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds_a_unit = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err("expected a number and a unit: us, ms, s or m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    Duration::try_from_secs_f64(number * seconds_a_unit).map_err(|cause| cause.to_string())
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| if duration.is_zero() { Err("must be more than 0".to_owned()) } else { Ok(duration) })
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (1e-3..=1e8).contains(&rate) => Ok(rate),
        _ => Err("expected messages a second, from 0.001 to 100000000".to_owned()),
    }
}

/// A part of something: from 0 to 1.
pub(super) fn part(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|part| (0.0..=1.0).contains(part)).ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// What is right for names and filters alike; the broker judges the rest.
pub(super) fn topic(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a topic has at least one character".to_owned()),
        long if long.len() > TOPIC_BYTES_MAX => Err(format!("a topic here has at most {TOPIC_BYTES_MAX} bytes")),
        nul if nul.contains('\0') => Err("a topic holds no U+0000".to_owned()),
        right => Ok(right.to_owned()),
    }
}

pub(super) fn topic_name(text: &str) -> Result<String, String> {
    topic(text).and_then(|topic| {
        if topic.contains(['+', '#']) { Err("a topic to publish to holds no wildcard".to_owned()) } else { Ok(topic) }
    })
}

/// Sizes of payloads that a stamp fits in.
pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    let sizes: Sizes = text.parse()?;
    let least = if let Sizes::Normal { mean, .. } = sizes { mean } else { sizes.least() };
    if (least as usize) < STAMP_BYTES {
        return Err(format!("a payload has at least the {STAMP_BYTES} bytes of its stamp"));
    }
    if sizes.most() as i64 > PAYLOAD_BYTES_MAX {
        return Err(format!("a payload has at most {PAYLOAD_BYTES_MAX} bytes"));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let table = [
            ("10s", Some(10_000_000)),
            ("1.5s", Some(1_500_000)),
            ("500ms", Some(500_000)),
            ("20us", Some(20)),
            ("2m", Some(120_000_000)),
        ];
        for (text, expected_us) in table {
            assert_eq!(duration(text).ok(), expected_us.map(Duration::from_micros), "{text}");
        }
        for text in ["", "10", "s", "-1s", "10h", "nans", "1e300s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0s").is_err());
    }
}

//! Numbers as people read them, and text that a page may hold.

use std::fmt::Write;

/// Text without meaning to HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            control if control.is_control() => out.push('\u{fffd}'),
            plain => out.push(plain),
        }
    }
    out
}

/// "1,234,567"
pub(super) fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    if value <= -0.5 {
        out.push('-');
    }
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// "1.5M", "350k", "0.25"
pub(super) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        huge if huge >= 1e9 => (value / 1e9, "G"),
        large if large >= 1e6 => (value / 1e6, "M"),
        some if some >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    trimmed(scaled, unit)
}

/// Microseconds: "12 µs", "3.4 ms", "1.2 s"
pub(super) fn time(us: f64) -> String {
    match us {
        long if long >= 1e6 => trimmed(long / 1e6, " s"),
        some if some >= 1e3 => trimmed(some / 1e3, " ms"),
        short => trimmed(short, " µs"),
    }
}

/// "12 MiB"
pub(super) fn bytes(bytes: f64) -> String {
    match bytes.abs() {
        huge if huge >= 1024.0 * 1024.0 * 1024.0 => trimmed(bytes / (1024.0 * 1024.0 * 1024.0), " GiB"),
        large if large >= 1024.0 * 1024.0 => trimmed(bytes / (1024.0 * 1024.0), " MiB"),
        some if some >= 1024.0 => trimmed(bytes / 1024.0, " KiB"),
        _ => trimmed(bytes, " B"),
    }
}

/// At most three digits that count.
pub(super) fn trimmed(value: f64, unit: &str) -> String {
    let digits = match value.abs() {
        large if large >= 100.0 => 0,
        some if some >= 10.0 => 1,
        small if small >= 0.1 || small == 0.0 => 2,
        _ => 3,
    };
    let mut out = format!("{value:.digits$}");
    if out.contains('.') {
        out.truncate(out.trim_end_matches('0').trim_end_matches('.').len());
    }
    // A string takes whatever is written to it.
    let _ = write!(out, "{unit}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0.0, 999.0, 1_000.0, -1_234_567.4].map(whole), ["0", "999", "1,000", "-1,234,567"]);
        assert_eq!([0.0, 0.25, 950.0, 1_500.0, 2e6, 3.14159e9].map(short), ["0", "0.25", "950", "1.5k", "2M", "3.14G"]);
        assert_eq!([0.5, 12.34, 3_400.0, 1_200_000.0].map(time), ["0.5 µs", "12.3 µs", "3.4 ms", "1.2 s"]);
        assert_eq!([100.0, 1_536.0, 5_242_880.0].map(bytes), ["100 B", "1.5 KiB", "5 MiB"]);
    }

    #[test]
    fn text_of_strangers_is_only_text() {
        assert_eq!(escaped("<script>&\"'\u{1b}"), "&lt;script&gt;&amp;&quot;&#39;\u{fffd}");
    }
}

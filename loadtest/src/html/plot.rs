//! Plots as SVG, drawn with the classes of the page's style sheet.

use std::fmt::{self, Write};

use super::text::escaped;

/// Of a plot, and of one as wide as the page.
const WIDTH: f64 = 640.0;
const WIDE: f64 = 1300.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;

/// Colours of the style sheet; after these they come again, dashed.
const COLOURS: usize = 8;

/// Percentiles that an axis of these is marked at.
const PERCENTILES: [f64; 8] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];

/// Bars are this far apart, and this thick.
const BAR_EVERY: f64 = 28.0;
const BAR_THICK: f64 = 16.0;

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// From 0.
    Linear,
    /// Decades.
    Log,
    /// Percentiles: 90, 99, 99.9 are as far from each other.
    Percentile,
}

/// One direction of a plot.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) scale: Scale,
    pub(super) told: fn(f64) -> String,
}

/// Points, joined in their order.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines over two axes.
pub(super) struct Plot {
    pub(super) title: &'static str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
    pub(super) is_wide: bool,
}

impl Scale {
    /// Where on an endless axis a value is; `None` where it is nowhere.
    fn place(self, value: f64) -> Option<f64> {
        let place = match self {
            Self::Linear => value,
            Self::Log => value.log10(),
            Self::Percentile => -(1.0 - value / 100.0).log10(),
        };
        place.is_finite().then_some(place)
    }

    /// The first and the last place of an axis for these values, and the values to mark.
    fn range(self, values: impl Iterator<Item = f64>) -> (f64, f64, Vec<f64>) {
        let places: Vec<_> = values.filter_map(|value| self.place(value)).collect();
        let least = places.iter().copied().fold(f64::INFINITY, f64::min);
        let most = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self {
            Self::Linear => {
                let step = step(most.max(0.0));
                let steps = if most > 0.0 { (most / step).ceil() } else { 1.0 };
                (0.0, step * steps, (0..=steps as u32).map(|nth| f64::from(nth) * step).collect())
            }
            Self::Log => {
                let (first, last) =
                    if least.is_finite() { (least.floor(), most.ceil().max(least.floor() + 1.0)) } else { (0.0, 1.0) };
                (first, last, (first as i32..=last as i32).map(|decade| 10_f64.powi(decade)).collect())
            }
            Self::Percentile => {
                let last = most.max(1.0);
                let marks = PERCENTILES.into_iter().filter(|&mark| self.place(mark).is_some_and(|place| place <= last));
                (0.0, last, marks.collect())
            }
        }
    }
}

/// A round number, so that a handful of them reach `most`.
fn step(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let decade = 10_f64.powf((most / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * decade).find(|step| most / step <= 5.0).unwrap_or(decade * 10.0)
}

impl Plot {
    /// Appends a figure; nothing where no line has two points.
    pub(super) fn draw(&self, out: &mut String) -> fmt::Result {
        let lines: Vec<_> = self.lines.iter().enumerate().filter(|(_, line)| line.points.len() > 1).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let points = || lines.iter().flat_map(|(_, line)| &line.points);
        let width = if self.is_wide { WIDE } else { WIDTH };
        let (x_first, x_last, x_marks) = self.x.scale.range(points().map(|&(x, _)| x));
        let (y_first, y_last, y_marks) = self.y.scale.range(points().map(|&(_, y)| y));
        let x_at = |x: f64| Some(LEFT + (self.x.scale.place(x)? - x_first) / (x_last - x_first) * (width - LEFT - RIGHT));
        let y_at =
            |y: f64| Some(HEIGHT - BOTTOM - (self.y.scale.place(y)? - y_first) / (y_last - y_first) * (HEIGHT - TOP - BOTTOM));

        writeln!(out, "<figure{}><h3>{}</h3>", if self.is_wide { " class=\"wide\"" } else { "" }, escaped(self.title))?;
        legend(&lines, out)?;
        writeln!(out, "<svg viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escaped(self.title))?;
        let (bottom, right) = (HEIGHT - BOTTOM, width - RIGHT);
        for (mark, y) in y_marks.iter().filter_map(|&mark| Some((mark, y_at(mark)?))) {
            writeln!(out, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>")?;
            writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 6.0, y + 4.0, (self.y.told)(mark))?;
        }
        for (mark, x) in x_marks.iter().filter_map(|&mark| Some((mark, x_at(mark)?))) {
            writeln!(out, "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom}\" y2=\"{}\"/>", bottom + 4.0)?;
            writeln!(out, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>", bottom + 17.0, (self.x.told)(mark))?;
        }
        writeln!(out, "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>")?;
        let middle = (LEFT + right) / 2.0;
        writeln!(out, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>", HEIGHT - 6.0, escaped(self.x.label))?;
        for &(nth, line) in &lines {
            let places: Vec<_> = line.points.iter().filter_map(|&(x, y)| Some((x, y, x_at(x)?, y_at(y)?))).collect();
            write!(out, "<polyline class=\"{}\" points=\"", classes(nth))?;
            places.iter().try_for_each(|(_, _, x, y)| write!(out, "{x:.1},{y:.1} "))?;
            writeln!(out, "\"/>")?;
            for (x, y, x_place, y_place) in places {
                let told = format!("{}: {} at {}", line.name, (self.y.told)(y), (self.x.told)(x));
                let colour = nth % COLOURS;
                let told = escaped(&told);
                writeln!(
                    out,
                    "<circle class=\"dot f{colour}\" cx=\"{x_place:.1}\" cy=\"{y_place:.1}\" r=\"5\"><title>{told}</title></circle>"
                )?;
            }
        }
        writeln!(out, "</svg></figure>")
    }
}

fn classes(nth: usize) -> String {
    format!("line c{}{}", nth % COLOURS, if nth / COLOURS % 2 == 1 { " dash" } else { "" })
}

fn legend(lines: &[(usize, &Line)], out: &mut String) -> fmt::Result {
    write!(out, "<ul class=\"legend\">")?;
    for &(nth, line) in lines {
        let swatch =
            format!("<svg viewBox=\"0 0 22 10\"><line class=\"{}\" x1=\"0\" x2=\"22\" y1=\"5\" y2=\"5\"/></svg>", classes(nth));
        write!(out, "<li>{swatch}{}</li>", escaped(&line.name))?;
    }
    writeln!(out, "</ul>")
}

/// Appends a figure of one bar a value, in their order and the colours of their places; nothing where there are fewer than two.
pub(super) fn bars(title: &str, told: fn(f64) -> String, values: &[(String, Option<f64>)], out: &mut String) -> fmt::Result {
    let values: Vec<_> =
        values.iter().enumerate().filter_map(|(nth, (name, value))| Some((nth % COLOURS, name, (*value)?))).collect();
    if values.len() < 2 {
        return Ok(());
    }
    let most = values.iter().map(|&(.., value)| value).fold(0.0, f64::max);
    let longest = values.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or_default();
    let left = (longest as f64 * 6.6 + 12.0).clamp(60.0, WIDTH / 2.0);
    let height = values.len() as f64 * BAR_EVERY + 6.0;
    writeln!(out, "<figure><h3>{}</h3>", escaped(title))?;
    writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">", escaped(title))?;
    for (nth, &(colour, name, value)) in values.iter().enumerate() {
        let top = nth as f64 * BAR_EVERY + 6.0;
        let name_at = top + BAR_THICK - 4.0;
        writeln!(out, "<text x=\"{}\" y=\"{name_at}\" text-anchor=\"end\">{}</text>", left - 8.0, escaped(name))?;
        let length = if most > 0.0 { value / most * (WIDTH - left - 80.0) } else { 0.0 };
        writeln!(
            out,
            "<rect class=\"f{colour}\" x=\"{left}\" y=\"{top}\" width=\"{length:.1}\" height=\"{BAR_THICK}\" rx=\"2\"/>"
        )?;
        let text = told(value);
        writeln!(out, "<text class=\"value\" x=\"{:.1}\" y=\"{name_at}\">{text}</text>", left + length + 6.0)?;
    }
    writeln!(out, "</svg></figure>")
}

#[cfg(test)]
mod tests {
    use super::super::text::short;
    use super::*;

    #[test]
    fn an_axis_is_marked_with_round_numbers() {
        let (first, last, marks) = Scale::Linear.range([3.0, 870.0].into_iter());
        assert_eq!((first, last, marks), (0.0, 1_000.0, vec![0.0, 200.0, 400.0, 600.0, 800.0, 1_000.0]));
        let (first, last, marks) = Scale::Log.range([0.0, 30.0, 4_000.0].into_iter());
        assert_eq!((first, last, marks), (1.0, 4.0, vec![10.0, 100.0, 1_000.0, 10_000.0]));
        let (_, last, marks) = Scale::Percentile.range([0.0, 99.92, 100.0].into_iter());
        assert!((3.0..3.2).contains(&last) && marks == [0.0, 50.0, 90.0, 99.0, 99.9], "{last} {marks:?}");
        for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
            let (first, last, _) = scale.range(std::iter::empty());
            assert!(first < last, "{scale:?}");
        }
    }

    #[test]
    fn lines_stay_within_the_plot() {
        let axis = |scale| Axis { label: "x", scale, told: short };
        let line = |points: &[(f64, f64)]| Line { name: "<a>".to_owned(), points: points.to_vec() };
        let plot = Plot {
            title: "p",
            x: axis(Scale::Percentile),
            y: axis(Scale::Log),
            lines: vec![line(&[(0.0, 10.0), (99.99, 1e5), (100.0, 2e5)]), line(&[(1.0, 1.0)])],
            is_wide: false,
        };
        let mut out = String::new();
        plot.draw(&mut out).unwrap();
        assert_eq!((out.matches("<polyline").count(), out.matches("<circle").count()), (1, 2), "100 % is nowhere: {out}");
        assert!(out.contains("&lt;a&gt;") && !out.contains("<a>") && !out.contains("NaN"));
        let places = out.split("points=\"").nth(1).unwrap().split('"').next().unwrap().split_whitespace();
        for place in places {
            let (x, y) = place.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{place}");
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let mut out = String::new();
        bars("b", short, &[("one".to_owned(), Some(1.0)), ("two".to_owned(), None)], &mut out).unwrap();
        assert_eq!(out, "");
        bars("b", short, &[("one".to_owned(), Some(0.0)), ("two".to_owned(), Some(0.0))], &mut out).unwrap();
        assert!(!out.contains("NaN") && out.matches("<rect").count() == 2);
    }
}

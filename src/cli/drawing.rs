//! What drawings in characters have in common: trees, columns, and texts from other machines.

/// No line is longer, whatever names say; the whole of them is in the formats for programs.
pub(super) const COLUMNS: usize = 80;
/// Branches of a tree that is too deep to be drawn whole are cut on the left.
const BRANCH_COLUMNS: usize = 30;

/// The lines that lead from a tree's root to the name at `place`. `above` has the place above each; a place stands after all that is below the ones
/// before it.
pub(super) fn branches(above: &[Option<usize>], place: usize) -> String {
    let above_of = |place: usize| above.get(place).copied().flatten();
    let is_last = |place: usize| !above.iter().skip(place + 1).any(|other| *other == above_of(place));
    let Some(mut at) = above_of(place) else { return String::new() };
    let mut parts = vec![if is_last(place) { "└─ " } else { "├─ " }];
    while let Some(next) = above_of(at) {
        parts.push(if is_last(at) { "   " } else { "│  " });
        at = next;
    }
    parts.reverse();
    let drawn = parts.concat();
    let excess = drawn.chars().count().saturating_sub(BRANCH_COLUMNS);
    if excess == 0 { drawn } else { format!("…{}", drawn.chars().skip(excess + 1).collect::<String>()) }
}

/// Rows of columns, each column beginning at one place.
pub(super) fn in_columns<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> impl Iterator<Item = String> {
    let rows: Vec<_> = rows.into_iter().collect();
    let mut widths = [0; N];
    for row in &rows {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    rows.into_iter().map(move |row| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    })
}

/// A time in milliseconds.
pub(super) fn milliseconds(us: u64) -> String {
    format!("{:.2} ms", us as f64 / 1_000.0)
}

/// Names come from other machines: nothing in them may move the cursor or break out of a string.
pub(super) fn clean(text: &str) -> String {
    text.escape_debug().to_string()
}

/// At most so many characters.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

//! Bar chart of the README as SVG: two bars for each row, as long as their figures. It uses the colours of the line plots.

use std::fmt::Write;

use crate::plot::STYLE;
use crate::results::{Row, figure_text};

/// Width of the picture, and of the longest bar.
const WIDTH: f64 = 640.0;
const LONGEST: f64 = 480.0;
/// Left edge of all bars and texts.
const LEFT: f64 = 24.0;
/// Upper edge of the first row, and height of each row with its name and its bars.
const TOP: f64 = 64.0;
const ROW: f64 = 62.0;
/// Height of a bar.
const BAR: f64 = 14.0;

/// Title of the chart.
pub const TITLE: &str = "weft beside the Go plugins";

/// Draws the rows with their names. The longer bar of a row has the whole length, because each row has its own unit.
#[must_use]
pub fn draw(rows: &[(&str, &Row)], peers: &str) -> String {
    let height = TOP + ROW * rows.len() as f64 + 10.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title\" font-family=\"system-ui, sans-serif\" font-size=\"14\">\n  <title id=\"title\">{TITLE}</title>\n{STYLE}  <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"12\"/>\n  <text x=\"{LEFT}\" y=\"25\" font-weight=\"600\">{TITLE}</text>\n"
    );
    for (number, program) in ["weft", peers].into_iter().enumerate() {
        let at = LEFT + 130.0 * number as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  <rect class=\"fill{number}\" x=\"{at}\" y=\"36\" width=\"12\" height=\"12\" rx=\"3\"/><text x=\"{}\" y=\"47\">{program}</text>",
            at + 18.0
        );
    }
    for (place, (name, row)) in rows.iter().enumerate() {
        let top = TOP + ROW * place as f64;
        let better = if row.is_rate() { " (more is better)" } else { "" };
        let name = name.replace('`', "");
        let _ =
            writeln!(text, "  <text class=\"small\" x=\"{LEFT}\" y=\"{}\">{name}{better}</text>", top + 14.0);
        let figures = [row.median(), row.other().unwrap_or_default()];
        let longest = figures[0].max(figures[1]).max(f64::MIN_POSITIVE);
        for (number, figure) in figures.into_iter().enumerate() {
            let (length, upper) = (LONGEST * figure / longest, top + 20.0 + (BAR + 3.0) * number as f64);
            let _ = writeln!(
                text,
                "  <rect class=\"fill{number}\" x=\"{LEFT}\" y=\"{upper}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"3\"/>"
            );
            let (at, base) = (LEFT + length + 8.0, upper + 11.5);
            let label = format!("{} {}", figure_text(figure), row.unit);
            let _ = writeln!(text, "  <text class=\"small\" x=\"{at:.1}\" y=\"{base}\">{label}</text>");
        }
    }
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_chart_has_two_bars_for_each_row_as_long_as_their_figures() {
        let row = |unit: &str, ours: &[f64], theirs: f64| Row {
            what: String::new(),
            unit: unit.into(),
            ours: ours.to_vec(),
            beside: "Go".into(),
            theirs: vec![theirs],
        };
        let (call, rate) = (row("ms", &[1.0, 5.0, 9.0], 20.0), row("pods/s", &[80.0], 20.0));
        let picture = draw(&[("ADD of `bridge`", &call), ("pods in a row", &rate)], "Go plugins 1.9.1");
        for part in [
            ">ADD of bridge<",
            ">5.00 ms<",
            "class=\"fill0\" x=\"24\" y=\"84\" width=\"120.0\"",
            "class=\"fill1\" x=\"24\" y=\"101\" width=\"480.0\"",
            ">pods in a row (more is better)<",
            "class=\"fill0\" x=\"24\" y=\"146\" width=\"480.0\"",
            "class=\"fill1\" x=\"24\" y=\"163\" width=\"120.0\"",
            ">Go plugins 1.9.1<",
            "prefers-color-scheme: dark",
        ] {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}

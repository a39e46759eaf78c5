//! Bar chart for the README as SVG. Each headline has a bar for weft and one for each program that it is compared with;
//! the lengths show the figures, and the colours are the same as in the line plots.

use std::fmt::Write;
use std::iter;

use crate::plot::STYLE;
use crate::results::{Headline, figure_text};

/// Picture width, and length of the longest bar.
const WIDTH: f64 = 640.0;
const LONGEST: f64 = 400.0;
/// Left edge for all bars and texts.
const LEFT: f64 = 24.0;
/// Top edge of the first headline, and height of a headline name.
const TOP: f64 = 44.0;
const NAME: f64 = 20.0;
/// Bar height, and distance between two bars.
const BAR: f64 = 14.0;
const GAP: f64 = 3.0;

/// Chart title.
pub const TITLE: &str = "weft beside Multus, whereabouts and the Go plugins";

/// Draws the headlines. In each of them the longest bar has the full length, because headlines have different units.
#[must_use]
pub fn draw(headlines: &[Headline<'_>]) -> String {
    let bars = |headline: &Headline<'_>| headline.rows.len() as f64 + 1.0;
    let height_of = |headline: &Headline<'_>| NAME + (BAR + GAP) * bars(headline) + 10.0;
    let height = TOP + headlines.iter().map(height_of).sum::<f64>() + 6.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title\" font-family=\"system-ui, sans-serif\" font-size=\"14\">\n  <title id=\"title\">{TITLE}</title>\n{STYLE}  <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"12\"/>\n  <text x=\"{LEFT}\" y=\"25\" font-weight=\"600\">{TITLE}</text>\n"
    );
    let mut top = TOP;
    for headline in headlines {
        let better =
            if headline.rows.iter().any(|(_, row)| row.is_rate()) { " (more is better)" } else { "" };
        let name = headline.name.replace('`', "");
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "  <text class=\"small\" x=\"{LEFT}\" y=\"{}\">{name}{better}</text>", top + 14.0);
        draw_bars(&mut text, headline, top + NAME);
        top += height_of(headline);
    }
    text + "</svg>\n"
}

/// Draws a headline's bars below each other, weft first.
fn draw_bars(text: &mut String, Headline { rows, .. }: &Headline<'_>, top: f64) {
    let Some((_, first)) = rows.first() else { return };
    let others = rows.iter().map(|(program, row)| (*program, row.other().unwrap_or_default()));
    let all: Vec<(&str, f64)> = iter::once(("weft", first.median())).chain(others).collect();
    let longest = all.iter().map(|(_, figure)| *figure).fold(f64::MIN_POSITIVE, f64::max);
    for (number, (program, figure)) in all.into_iter().enumerate() {
        let (length, upper) = (LONGEST * figure / longest, top + (BAR + GAP) * number as f64);
        let _ = writeln!(
            text,
            "  <rect class=\"fill{}\" x=\"{LEFT}\" y=\"{upper}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"3\"/>",
            number.min(1)
        );
        let (at, base) = (LEFT + length + 8.0, upper + 11.5);
        let figure = figure_text(figure);
        let _ = writeln!(
            text,
            "  <text class=\"small\" x=\"{at:.1}\" y=\"{base}\">{program}: {figure} {}</text>",
            first.unit
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Row;

    #[test]
    fn bar_chart_has_a_bar_for_each_program_as_long_as_its_figure() {
        let row = |unit: &str, ours: &[f64], theirs: f64| Row {
            what: String::new(),
            unit: unit.into(),
            ours: ours.to_vec(),
            beside: String::new(),
            theirs: vec![theirs],
        };
        let (thin, thick) = (row("ms", &[1.0, 5.0, 9.0], 20.0), row("ms", &[1.0, 5.0, 9.0], 10.0));
        let rate = row("pods/s", &[80.0], 20.0);
        let picture = draw(&[
            Headline {
                name: "ADD of `bridge`",
                rows: vec![("Multus thin", &thin), ("Multus thick", &thick)],
            },
            Headline { name: "pods in a row", rows: vec![("Go plugins", &rate)] },
        ]);
        for part in [
            ">ADD of bridge<",
            ">weft: 5.00 ms<",
            ">Multus thick: 10.0 ms<",
            "class=\"fill0\" x=\"24\" y=\"64\" width=\"100.0\"",
            "class=\"fill1\" x=\"24\" y=\"81\" width=\"400.0\"",
            "class=\"fill1\" x=\"24\" y=\"98\" width=\"200.0\"",
            ">pods in a row (more is better)<",
            "class=\"fill0\" x=\"24\" y=\"145\" width=\"400.0\"",
            ">Go plugins: 20.0 pods/s<",
            "prefers-color-scheme: dark",
        ] {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}

//! Line plots as SVG, in colours for light and dark pages. Each point shows the figure, so that readers do not depend
//! on the colours.

use std::fmt::Write;

use crate::results::{Point, figure_text};

/// Picture size, and margins around the axes.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 66.0;
/// Number of lines across the plot.
const STEPS: u32 = 4;

/// Named plot for the points.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// Name that the points carry.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    /// Label on the horizontal axis.
    pub across: &'static str,
    /// Unit on the vertical axis.
    pub unit: &'static str,
}

/// All plots, with the files below docs/images that contain them.
pub const PLOTS: [(&str, Plot); 3] = [
    (
        "add-by-networks.svg",
        Plot {
            name: "networks",
            title: "ADD of a pod by its number of networks",
            across: "networks, the default one included",
            unit: "ms",
        },
    ),
    (
        "add-by-parallelism.svg",
        Plot {
            name: "parallel",
            title: "Pods with two networks a second, by the number of ADDs at a time",
            across: "ADDs at a time",
            unit: "pods/s",
        },
    ),
    (
        "add-by-pods.svg",
        Plot {
            name: "held",
            title: "ADD of a pod with four networks by the number of pods on the node",
            across: "pods on the node",
            unit: "ms",
        },
    ),
];

/// Colours for lines, bars and texts, on light and dark pages.
pub(crate) const STYLE: &str = "  <style>
    text { fill: #1f2328 }
    .page { fill: #ffffff }
    .small { font-size: 12px; fill: #57606a }
    .grid { stroke: #d0d7de; stroke-width: 1 }
    .line { fill: none; stroke-width: 2.5 }
    .line0 { stroke: #0969da } .fill0 { fill: #0969da }
    .line1 { stroke: #9a6700 } .fill1 { fill: #9a6700 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .page { fill: #0d1117 }
      .small { fill: #9da7b3 }
      .grid { stroke: #30363d }
      .line0 { stroke: #58a6ff } .fill0 { fill: #58a6ff }
      .line1 { stroke: #d29922 } .fill1 { fill: #d29922 }
    }
  </style>
";

// === impl Plot ===

impl Plot {
    /// Draws this plot's points; weft's line is first.
    #[must_use]
    pub fn draw(&self, all: &[Point]) -> String {
        let points: Vec<&Point> = all.iter().filter(|point| point.plot == self.name).collect();
        let mut places: Vec<usize> = points.iter().map(|point| point.x).collect();
        places.sort_unstable();
        places.dedup();
        let mut lines: Vec<&str> = Vec::new();
        for point in &points {
            if !lines.contains(&point.line.as_str()) {
                lines.push(&point.line);
            }
        }
        let top = ceiling(points.iter().map(|point| point.y).fold(0.0, f64::max));
        let x = |place: usize| {
            let index = places.iter().position(|known| *known == place).unwrap_or_default() as f64;
            LEFT + 20.0 + (WIDTH - LEFT - RIGHT - 40.0) * index / (places.len().max(2) - 1) as f64
        };
        let y = |figure: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * figure / top;
        let mut text = self.frame(&places, top, &x, &y);
        for (number, line) in lines.iter().enumerate() {
            let own: Vec<&&Point> = points.iter().filter(|point| point.line == *line).collect();
            // The upper line has its figures above it, the lower one below it.
            let height = |line: &str| {
                points.iter().filter(|point| point.line == line).map(|point| point.y).sum::<f64>()
            };
            let is_upper = lines.iter().all(|other| height(other) <= height(line));
            let shift = if is_upper { -9.0 } else { 18.0 };
            let path: Vec<String> =
                own.iter().map(|point| format!("{:.1} {:.1}", x(point.x), y(point.y))).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  <path class=\"line line{number}\" d=\"M{}\"/>", path.join("L"));
            for point in own {
                let (x, y, label) = (x(point.x), y(point.y), figure_text(point.y));
                let _ =
                    writeln!(text, "  <circle class=\"fill{number}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>");
                let y = y + shift;
                let _ = writeln!(
                    text,
                    "  <text class=\"small\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{label}</text>"
                );
            }
            let at = LEFT + 130.0 * number as f64;
            let _ = writeln!(
                text,
                "  <rect class=\"fill{number}\" x=\"{at}\" y=\"36\" width=\"12\" height=\"12\" rx=\"3\"/><text x=\"{}\" y=\"47\">{line}</text>",
                at + 18.0
            );
        }
        text + "</svg>\n"
    }

    /// Draws title, axes and grid.
    fn frame(
        &self,
        places: &[usize],
        top: f64,
        x: &impl Fn(usize) -> f64,
        y: &impl Fn(f64) -> f64,
    ) -> String {
        let Plot { title, across, unit, .. } = self;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"title\" font-family=\"system-ui, sans-serif\" font-size=\"14\">\n  <title id=\"title\">{title}</title>\n{STYLE}  <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"12\"/>\n  <text x=\"{LEFT}\" y=\"25\" font-weight=\"600\">{title}</text>\n"
        );
        for step in 0..=STEPS {
            let figure = top * f64::from(step) / f64::from(STEPS);
            let (height, end) = (y(figure), WIDTH - RIGHT);
            let label = if figure.fract() == 0.0 { format!("{figure:.0}") } else { figure_text(figure) };
            let _ = writeln!(text, "  <path class=\"grid\" d=\"M{LEFT} {height:.1}H{end}\"/>");
            let (at, base) = (LEFT - 8.0, height + 4.0);
            let _ = writeln!(
                text,
                "  <text class=\"small\" x=\"{at}\" y=\"{base:.1}\" text-anchor=\"end\">{label}</text>"
            );
        }
        for place in places {
            let (x, y) = (x(*place), HEIGHT - BOTTOM + 34.0);
            let _ = writeln!(
                text,
                "  <text class=\"small\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{place}</text>"
            );
        }
        let (middle, base) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0);
        let _ = writeln!(
            text,
            "  <text class=\"small\" x=\"{middle}\" y=\"{base}\" text-anchor=\"middle\">{across}</text>"
        );
        let (at, above) = (LEFT - 8.0, TOP - 10.0);
        let _ = writeln!(
            text,
            "  <text class=\"small\" x=\"{at}\" y=\"{above}\" text-anchor=\"end\">{unit}</text>"
        );
        text
    }
}

/// Returns the next larger figure that a scale with four steps shows without fractions in the leading digit.
fn ceiling(figure: f64) -> f64 {
    let scale = 10_f64.powf(figure.max(0.01).log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * scale).find(|top| *top >= figure * 1.05).unwrap_or(scale * 12.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_a_line_for_each_program_and_a_label_for_each_point() {
        let point = |line: &str, x, y| Point { plot: "held".into(), line: line.into(), x, y };
        let points = [
            point("weft", 20, 5.0),
            point("weft", 500, 6.5),
            point("Go plugins", 20, 40.0),
            point("Go plugins", 500, 61.25),
            Point { plot: "other".into(), line: "weft".into(), x: 9999, y: 1.0 },
        ];
        let picture = PLOTS[2].1.draw(&points);
        assert_eq!(
            (picture.matches("<circle").count(), picture.matches("class=\"line line").count()),
            (4, 2)
        );
        for label in [">5.00<", ">6.50<", ">40.0<", ">61.2<", ">weft<", ">Go plugins<", ">500<"] {
            assert!(picture.contains(label), "{label}: {picture}");
        }
        assert!(!picture.contains("9999") && picture.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn plot_scale_ends_above_the_largest_figure() {
        for figure in [0.0, 0.7, 1.0, 9.9, 12.0, 99.0, 3500.0] {
            let top = ceiling(figure);
            assert!(top > figure && top <= figure.max(0.02) * 2.6, "{figure}: {top}");
        }
    }
}

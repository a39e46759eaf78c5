//! Formats for the metrics page: OpenMetrics, or Prometheus's text format, as the client accepts.
//!
//! Both have the same samples. In the text format a counter family has the same name as the samples (`…_total`), in
//! OpenMetrics the name without `_total`; an OpenMetrics page ends with `# EOF`.
//!
//! Source: OpenMetrics 1.0.0; Prometheus, "Exposition formats"; RFC 9110, section 12.5.1.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Format for the metrics page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsFormat {
    OpenMetrics,
    Text,
}

const OPEN_METRICS: &str = "application/openmetrics-text";
const TEXT: &str = "text/plain";
/// Suffix on a counter's samples.
const TOTAL: &str = "_total";

impl MetricsFormat {
    /// Returns the format for an `Accept` header: OpenMetrics if the client prefers it to text.
    pub(super) fn accepted(accept: &str) -> MetricsFormat {
        let quality = |wanted: &str| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let quality = parts.next().filter(|name| name.eq_ignore_ascii_case(wanted)).map(|_| 1.0);
                let given = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
                quality.map(|quality| given.unwrap_or(quality))
            });
            ranges.fold(0.0_f32, f32::max)
        };
        let open = quality(OPEN_METRICS);
        if open > 0.0 && open >= quality(TEXT) { MetricsFormat::OpenMetrics } else { MetricsFormat::Text }
    }

    /// Returns the `Content-Type` header.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            MetricsFormat::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Returns a page in this format; `page` may be in either.
    pub(super) fn render(self, page: &str) -> String {
        let counters: BTreeSet<&str> = page.lines().filter_map(counter).collect();
        let mut text = String::with_capacity(page.len() + 64);
        for line in page.lines().filter(|line| *line != "# EOF" && !line.is_empty()) {
            let mut words = line.splitn(4, ' ');
            let (Some("#"), Some(kind), Some(family)) = (words.next(), words.next(), words.next()) else {
                text.push_str(line);
                text.push('\n');
                continue;
            };
            let rest = words.next().unwrap_or_default();
            let name = family.strip_suffix(TOTAL).unwrap_or(family);
            let is_counter = counters.contains(name);
            let (name, rest) = match self {
                MetricsFormat::OpenMetrics if is_counter => (name.to_owned(), rest),
                MetricsFormat::Text if is_counter => (format!("{name}{TOTAL}"), rest),
                MetricsFormat::Text if kind == "TYPE" && rest == "info" => (family.to_owned(), "gauge"),
                MetricsFormat::OpenMetrics | MetricsFormat::Text => (family.to_owned(), rest),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# {kind} {name} {rest}");
        }
        if self == MetricsFormat::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

/// Returns the family, without `_total`, that a line declares as a counter.
fn counter(line: &str) -> Option<&str> {
    let family = line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?;
    Some(family.strip_suffix(TOTAL).unwrap_or(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_format_follows_the_accept_header() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, format) in [
            (prometheus, MetricsFormat::OpenMetrics),
            ("application/openmetrics-text", MetricsFormat::OpenMetrics),
            ("text/plain;version=0.0.4;q=0.9, application/openmetrics-text;q=0.5", MetricsFormat::Text),
            ("application/openmetrics-text; q=0", MetricsFormat::Text),
            ("*/*", MetricsFormat::Text),
            ("", MetricsFormat::Text),
            (";q=,;;,q=x", MetricsFormat::Text),
        ] {
            assert_eq!(MetricsFormat::accepted(accept), format, "{accept}");
        }
    }

    #[test]
    fn metrics_page_names_counters_as_its_format_demands() {
        let open = "# HELP weft_x Number of x.\n# TYPE weft_x counter\nweft_x_total{a=\"b c\"} 1\n\
            # HELP weft_y Y.\n# TYPE weft_y gauge\nweft_y 2\n# EOF\n";
        let text = "# HELP weft_x_total Number of x.\n# TYPE weft_x_total counter\nweft_x_total{a=\"b c\"} 1\n\
            # HELP weft_y Y.\n# TYPE weft_y gauge\nweft_y 2\n";
        for page in [open, text] {
            assert_eq!(MetricsFormat::OpenMetrics.render(page), open);
            assert_eq!(MetricsFormat::Text.render(page), text);
        }
        let info = "# HELP weft_i I.\n# TYPE weft_i info\nweft_i_info 1\n";
        assert!(MetricsFormat::Text.render(info).contains("# TYPE weft_i gauge\n"));
    }
}

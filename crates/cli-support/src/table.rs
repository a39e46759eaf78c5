//! Lays out tables for people; columns are as wide as the widest cell.

use crate::terminal::plain;

/// Gap between two columns.
const GAP: &str = "  ";

/// Lays out headings and rows as lines, indented by `indent` spaces. A row may have fewer cells than there are
/// headings.
pub fn lay_out(headings: &[&str], rows: &[Vec<String>], indent: usize) -> String {
    let headings: Vec<String> = headings.iter().map(|heading| heading.to_uppercase()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let all = || std::iter::once(&headings).chain(&rows);
    let width = |column: usize| {
        all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let cells = padded.collect::<Vec<_>>().join(GAP);
        format!("{}{}\n", " ".repeat(indent), cells.trim_end())
    };
    all().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_as_wide_as_their_content() {
        let rows = [vec!["a".to_owned(), "long".to_owned()], vec!["wid\ner".to_owned(), String::new()]];
        assert_eq!(lay_out(&["x", "y"], &rows, 2), "  X       Y\n  a       long\n  wid er\n");
    }
}

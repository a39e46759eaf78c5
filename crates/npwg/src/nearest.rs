//! Search for the known word nearest to an unknown one: `clusterNetwrok` → `clusterNetwork`.
//!
//! The distance counts characters that are inserted, removed, replaced or swapped with a neighbour.

/// Returns the word in `known` that `text` probably misspells, or `None`.
pub fn nearest<'a>(text: &str, known: &[&'a str]) -> Option<&'a str> {
    if text.len() > 64 {
        return None;
    }
    let far = (text.chars().count() / 3).max(1);
    let distances = known.iter().map(|word| (distance(text, word), *word));
    distances
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Returns `did you mean …?` for a message about an unknown word, or an empty string.
pub fn hint(text: &str, known: &[&str]) -> String {
    nearest(text, known).map(|word| format!("did you mean {word}?")).unwrap_or_default()
}

fn distance(a: &str, b: &str) -> usize {
    let fold = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (a, b) = (fold(a), fold(b));
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replace = last[j] + usize::from(a[i] != b[j]);
            let mut best = replace.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word_is_found_for_a_misspelling_only() {
        let known = ["clusterNetwork", "defaultNetworks", "binDir", "ips", "mac"];
        assert_eq!(nearest("clusterNetwrok", &known), Some("clusterNetwork"));
        assert_eq!(nearest("CLUSTERNETWORK", &known), Some("clusterNetwork"));
        assert_eq!(nearest("ip", &known), Some("ips"));
        assert_eq!(nearest("gateway", &known), None);
        assert_eq!(nearest("", &known), None);
        assert_eq!(nearest(&"x".repeat(1000), &known), None);
    }
}

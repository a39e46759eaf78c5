//! Owner hints: two bytes for each slot, 0 for a free address, else a hash over the owner.
//!
//! A search for an owner reads only slots with the owner's hint: one false hit among 65,000 slots on average. Four
//! hints are compared in one 64-bit word, because `weft-cni` is optimized for size and loops are not vectorized.

use super::OwnerTag;

/// Hint as it is in the file.
pub(super) type Hint = [u8; 2];

/// Hint for a free address.
pub(super) const FREE: Hint = [0; 2];
/// Hint length.
pub(super) const HINT: usize = size_of::<Hint>();
/// The number 1 in each of the four hints in a word.
const EACH: u64 = 0x0001_0001_0001_0001;
/// Number of hints that are searched together.
const BATCH: usize = 64;

/// Returns an owner's hint.
pub(super) fn of(owner: OwnerTag) -> Hint {
    // The remainder of 65,535 is below 65,535.
    (1 + u16::try_from(owner % 65_535).unwrap_or_default()).to_le_bytes()
}

/// Whether a hint occurs.
pub(super) fn contains(hints: &[u8], hint: Hint) -> bool {
    let [one, top] = [1_u16, 1 << 15].map(|bits| u64::from(bits) * EACH);
    let wanted = u64::from(u16::from_le_bytes(hint)) * EACH;
    let (words, rest) = hints.as_chunks();
    let found = words.iter().fold(0, |found, word| {
        // A matching hint becomes zero; subtracting one sets its top bit, which was clear before.
        let differs = u64::from_le_bytes(*word) ^ wanted;
        found | (differs.wrapping_sub(one) & !differs)
    });
    found & top != 0 || rest.as_chunks().0.contains(&hint)
}

/// Returns the positions at which a hint occurs.
pub(super) fn positions(hints: &[u8], hint: Hint) -> impl Iterator<Item = usize> {
    let batches = hints.chunks(BATCH * HINT).enumerate().filter(move |(_, batch)| contains(batch, hint));
    batches.flat_map(move |(at, batch)| {
        let own = batch.as_chunks().0.iter().enumerate().filter(move |(_, known)| **known == hint);
        own.map(move |(position, _)| at * BATCH + position)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_hint_is_found_at_every_position_and_no_other() {
        for length in [1, 3, 4, 63, 64, 65, 256] {
            for wanted in [0, 1, 2, 0x7fff, 0x8000, 0x8001, 0xffff_u16] {
                let near = [wanted.wrapping_add(1), wanted.wrapping_sub(1), wanted ^ 0x8000, wanted ^ 0x0100];
                let mut hints: Vec<u16> = near.into_iter().cycle().take(length).collect();
                let bytes =
                    |hints: &[u16]| hints.iter().flat_map(|tag| tag.to_le_bytes()).collect::<Vec<u8>>();
                assert!(!contains(&bytes(&hints), wanted.to_le_bytes()), "{wanted} of {length}");
                for at in [0, length / 2, length - 1] {
                    hints[at] = wanted;
                    let found: Vec<usize> = positions(&bytes(&hints), wanted.to_le_bytes()).collect();
                    let there: Vec<usize> = (0..length).filter(|at| hints[*at] == wanted).collect();
                    assert_eq!(found, there, "{wanted} of {length}");
                    assert!(contains(&bytes(&hints), wanted.to_le_bytes()));
                }
            }
        }
    }
}

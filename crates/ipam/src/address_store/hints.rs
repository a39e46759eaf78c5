//! Tags: two bytes beside each slot that say whether it is anybody's, and whose it may be.
//!
//! Among 65,000 one owner has one false hit at the median, so that slots are only looked at where they are meant. Four tags are
//! compared in one word: `weft-cni` is built to be small, and its loops are not made wider by the compiler.

/// A tag as it is in the file.
pub(super) type Tag = [u8; 2];

/// Of an address that is free.
pub(super) const FREE: Tag = [0; 2];
/// Length of one.
pub(super) const TAG: usize = size_of::<Tag>();
/// One in each of the four tags of a word.
const EACH: u64 = 0x0001_0001_0001_0001;
/// Tags that are looked at together.
const AT_ONCE: usize = 64;

/// What an owner's mark leaves beside its slot.
pub(super) fn of(mark: u64) -> Tag {
    // The remainder of 65,535 is below 65,535.
    (1 + u16::try_from(mark % 65_535).unwrap_or_default()).to_le_bytes()
}

/// Is this tag among them?
pub(super) fn has(tags: &[u8], tag: Tag) -> bool {
    let [one, top] = [1_u16, 1 << 15].map(|bits| u64::from(bits) * EACH);
    let wanted = u64::from(u16::from_le_bytes(tag)) * EACH;
    let (words, rest) = tags.as_chunks();
    let found = words.iter().fold(0, |found, word| {
        // Where a tag is the wanted one there is zero, of which the top bit becomes one, and it was not before.
        let differs = u64::from_le_bytes(*word) ^ wanted;
        found | (differs.wrapping_sub(one) & !differs)
    });
    found & top != 0 || rest.as_chunks().0.contains(&tag)
}

/// Where this tag is among those of a page.
pub(super) fn places(tags: &[u8], tag: Tag) -> impl Iterator<Item = usize> {
    let batches = tags.chunks(AT_ONCE * TAG).enumerate().filter(move |(_, batch)| has(batch, tag));
    batches.flat_map(move |(at, batch)| {
        let own = batch.as_chunks().0.iter().enumerate().filter(move |(_, known)| **known == tag);
        own.map(move |(place, _)| at * AT_ONCE + place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_wherever_it_is_and_no_other() {
        for length in [1, 3, 4, 63, 64, 65, 256] {
            for wanted in [0, 1, 2, 0x7fff, 0x8000, 0x8001, 0xffff_u16] {
                let near = [wanted.wrapping_add(1), wanted.wrapping_sub(1), wanted ^ 0x8000, wanted ^ 0x0100];
                let mut tags: Vec<u16> = near.into_iter().cycle().take(length).collect();
                let bytes = |tags: &[u16]| tags.iter().flat_map(|tag| tag.to_le_bytes()).collect::<Vec<u8>>();
                assert!(!has(&bytes(&tags), wanted.to_le_bytes()), "{wanted} of {length}");
                for at in [0, length / 2, length - 1] {
                    tags[at] = wanted;
                    let found: Vec<usize> = places(&bytes(&tags), wanted.to_le_bytes()).collect();
                    let there: Vec<usize> = (0..length).filter(|place| tags[*place] == wanted).collect();
                    assert_eq!(found, there, "{wanted} of {length}");
                    assert!(has(&bytes(&tags), wanted.to_le_bytes()));
                }
            }
        }
    }
}

//! Random passwords and passphrases that people can type on a phone.

use crate::cmd::Failure;

/// Letters and digits that are not taken for each other: no `l`, `o`, `0`, `1`. Each is five bits.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Six groups of four letters: 120 bits.
const GROUPS: usize = 6;
const GROUP: usize = 4;

/// A new secret, such as `abcd-efgh-…`.
pub(super) fn random() -> Result<String, Failure> {
    let mut bytes = [0; GROUPS * GROUP];
    getrandom::fill(&mut bytes)?;
    let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
    let groups: Vec<String> = bytes.chunks(GROUP).map(|group| group.iter().map(letter).collect()).collect();
    Ok(groups.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_groups_of_letters_and_differ() {
        let [one, other] = [(); 2].map(|()| random().unwrap());
        assert_ne!(one, other);
        let groups: Vec<&str> = one.split('-').collect();
        assert_eq!((groups.len(), groups.iter().all(|group| group.len() == GROUP)), (GROUPS, true), "{one}");
        assert!(one.bytes().all(|byte| byte == b'-' || LETTERS.contains(&byte)), "{one}");
    }
}

//! The order of a document's leaves if it differs from the order of their keys.
//!
//! Stores sort members by name. Users of CouchDB expect their own order, which also enters the revision. It is
//! stored as the rank in key order of each leaf in document order, in runs of consecutive ranks:
//!
//! ```text
//! {"b":1,"c":[true,false],"a":2}     document order   b  c.0  c.1  a
//!                                    rank             1   2    3   0
//!                                    runs             +1, 3 long; -4, 1 long
//! ```
//! A run is a varint: the distance of its first rank from the next consecutive one (zigzag), shifted left by one,
//! with the lowest bit set if a second varint follows, the length less 2.

/// The first eight bytes of a path as a number, padded with zeros. A lesser path never has the greater number.
pub(super) fn head(path: &[u8]) -> u64 {
    match path.first_chunk() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => path.iter().fold(0, |head, &byte| head << 8 | u64::from(byte)) << (8 * (8 - path.len())).min(63),
    }
}

/// Encodes the ranks of leaves, a permutation.
pub(super) fn encode(ranks: &[u32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(ranks.len());
    let mut expected = 0i64;
    let mut at = 0;
    while let Some(&first) = ranks.get(at) {
        let length = ranks[at..].iter().zip(first..).take_while(|(rank, next)| *rank == next).count();
        let distance = i64::from(first) - expected;
        let zigzag = ((distance << 1) ^ (distance >> 63)) as u64;
        append_varint(&mut out, zigzag << 1 | u64::from(length > 1));
        if length > 1 {
            append_varint(&mut out, length as u64 - 2);
        }
        expected = i64::from(first) + length as i64;
        at += length;
    }
    out
}

/// Decodes the ranks of `leaves` leaves. `None` unless there are that many ranks, all below that number. The
/// caller checks that none occurs twice.
pub(super) fn decode(mut code: &[u8], leaves: usize) -> Option<Vec<u32>> {
    let mut ranks = Vec::with_capacity(leaves);
    let mut expected = 0i64;
    while !code.is_empty() {
        let run = read_varint(&mut code)?;
        let length = if run & 1 == 1 { read_varint(&mut code)?.checked_add(2)? } else { 1 };
        let zigzag = run >> 1;
        let distance = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let first = u32::try_from(expected.checked_add(distance)?).ok()?;
        let length = usize::try_from(length).ok().filter(|length| *length <= leaves - ranks.len())?;
        let end = usize::try_from(first).ok()?.checked_add(length).filter(|end| *end <= leaves)?;
        ranks.extend(first..u32::try_from(end).ok()?);
        expected = end as i64;
    }
    (ranks.len() == leaves).then_some(ranks)
}

fn append_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_varint(code: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = code.split_first()?;
        *code = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_short() {
        assert_eq!(encode(&[1, 2, 3, 0]), [0b101, 1, 0b1110]);
        assert_eq!(decode(&encode(&[1, 2, 3, 0]), 4), Some(vec![1, 2, 3, 0]));
    }

    #[test]
    fn what_is_no_order() {
        let code = encode(&[1, 2, 3, 0]);
        for leaves in [0, 3, 5] {
            assert_eq!(decode(&code, leaves), None, "{leaves} leaves");
        }
        assert_eq!(decode(&code[..2], 4), None, "cut between runs");
        assert_eq!(decode(&code[..1], 4), None, "cut inside a run");
        assert_eq!(decode(&[0xff; 20], 4), None, "an endless varint");
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], 4), None, "far outside");
    }
}

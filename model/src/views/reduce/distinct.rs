//! `_approx_count_distinct`: HyperLogLog over keys.
//!
//! A key is hashed. The first 11 bits choose one of 2,048 registers, which keeps the length of the longest run of
//! leading zeros in the other bits, plus one. Registers are merged by their maxima, so it does not matter how rows are
//! divided. The estimate has a standard error of 2.3 %, like CouchDB's.
//!
//! ```text
//!  SHA-256 of the key's Erlang term    0110 0101 110 │ 0001 0110 …      register 814 gets 4, unless it has more
//! ```
//! As in CouchDB, keys that collate equal but have other bytes count as different.
//!
//! Sources: Flajolet and others, "HyperLogLog" (2007), and for the estimate, which needs no tables, algorithm 6 of
//! Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017).

use std::collections::BTreeMap;

use json::JsonText;
use sha2::{Digest, Sha256};

use super::super::errors::FunctionError;
use super::super::group::Reduced;
use super::result::{count, text_of};
use crate::rows::etf::erlang_term;

/// Number of bits that choose a register.
const BITS: u32 = 11;

const REGISTERS: usize = 1 << BITS;

/// The largest value of a register.
const MOST: u8 = 64 - BITS as u8 + 1;

/// Up to this many registers are written one by one; more are written as a string with one character for each.
const FEW: usize = 256;

/// The character of an empty register. No character from here on needs an escape in JSON.
const ZERO: u8 = b'#';

/// The registers that are not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Registers(BTreeMap<u16, u8>);

/// The registers of these keys.
pub(super) fn of_keys<'k>(keys: impl Iterator<Item = &'k JsonText>) -> Registers {
    let mut registers = Registers::default();
    for key in keys {
        let hash: [u8; 32] = Sha256::digest(erlang_term(key)).into();
        let [a, b, c, d, e, f, g, h, ..] = hash;
        let bits = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let zeros = (bits << BITS).leading_zeros() as u8;
        registers.raise((bits >> (64 - BITS)) as u16, zeros.saturating_add(1).min(MOST));
    }
    registers
}

/// Reduces earlier results.
pub(super) fn together(values: &[JsonText]) -> Reduced {
    let mut registers = Registers::default();
    for value in values {
        registers.read(value)?;
    }
    Ok(registers.write())
}

/// The estimate of a result.
pub(super) fn estimate(value: &JsonText) -> Reduced {
    let mut registers = Registers::default();
    registers.read(value)?;
    Ok(count(registers.estimate().round() as u64))
}

impl Registers {
    fn raise(&mut self, register: u16, value: u8) {
        let had = self.0.entry(register).or_default();
        *had = value.max(*had);
    }

    /// A few registers are written as `[register * 64 + value, …]`, many as a string.
    pub(super) fn write(&self) -> JsonText {
        text_of(|json| {
            if self.0.len() <= FEW {
                json.begin_array();
                for (register, value) in &self.0 {
                    json.u64(u64::from(*register) * 64 + u64::from(*value));
                }
                json.end_array();
            } else {
                let all = (0..REGISTERS as u16).map(|register| self.0.get(&register).copied().unwrap_or(0));
                json.str(&all.map(|value| char::from(ZERO + value)).collect::<String>());
            }
        })
    }

    /// Merges a written result.
    fn read(&mut self, value: &JsonText) -> Result<(), FunctionError> {
        let wrong = || FunctionError::new("invalid_value", "not a result of _approx_count_distinct");
        if let Some(all) = value.root().as_str() {
            for (register, byte) in (0..REGISTERS as u16).zip(all.bytes()) {
                match byte.checked_sub(ZERO).filter(|value| *value <= MOST).ok_or_else(wrong)? {
                    0 => {}
                    value => self.raise(register, value),
                }
            }
            return if all.len() == REGISTERS { Ok(()) } else { Err(wrong()) };
        }
        if !value.root().is_array() {
            return Err(wrong());
        }
        for one in value.root().elements() {
            let one = one.as_u64().filter(|one| *one < REGISTERS as u64 * 64).ok_or_else(wrong)?;
            self.raise((one / 64) as u16, ((one % 64) as u8).min(MOST));
        }
        Ok(())
    }

    fn estimate(&self) -> f64 {
        let registers = REGISTERS as f64;
        let mut counts = [0.0; MOST as usize + 1];
        counts[0] = registers - self.0.len() as f64;
        for value in self.0.values() {
            counts[usize::from(*value)] += 1.0;
        }
        if self.0.is_empty() {
            return 0.0;
        }
        let [empty, counts @ .., full] = counts;
        let mut sum = registers * of_full(1.0 - full / registers);
        for count in counts.iter().rev() {
            sum = 0.5 * (sum + count);
        }
        sum += registers * of_empty(empty / registers);
        registers * registers / (2.0 * std::f64::consts::LN_2 * sum)
    }
}

/// The contribution of empty registers, by their share, which is below 1: Ertl's sigma.
fn of_empty(mut share: f64) -> f64 {
    let (mut factor, mut sum) = (1.0, share);
    loop {
        share *= share;
        let before = sum;
        sum += share * factor;
        factor += factor;
        if sum == before {
            return sum;
        }
    }
}

/// The contribution of registers with the largest value, by the share of the others: Ertl's tau.
fn of_full(mut share: f64) -> f64 {
    if share == 0.0 || share == 1.0 {
        return 0.0;
    }
    let (mut factor, mut sum) = (1.0, 1.0 - share);
    loop {
        share = share.sqrt();
        let before = sum;
        factor *= 0.5;
        sum -= (1.0 - share).powi(2) * factor;
        if sum == before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(range: std::ops::Range<u64>) -> Vec<JsonText> {
        range.map(|n| JsonText::parse(format!("[\"k\",{n}]").as_bytes()).unwrap()).collect()
    }

    fn estimated(value: &JsonText) -> f64 {
        estimate(value).unwrap().root().as_f64().unwrap()
    }

    #[test]
    fn estimates_are_within_a_few_percent() {
        for (count, error) in [(0, 0.0), (1, 0.0), (2, 0.0), (10, 0.0), (100, 0.05), (1_000, 0.05), (100_000, 0.07)] {
            let value = of_keys(keys(0..count).iter().chain(&keys(0..count.min(5)))).write();
            let (found, exact) = (estimated(&value), count as f64);
            assert!((found - exact).abs() <= exact * error, "{found} of {count}");
            assert!(value.len() <= REGISTERS + 2, "{} bytes", value.len());
        }
    }

    #[test]
    fn it_does_not_matter_how_keys_are_divided() {
        for cut in [0, 1, 17, 2_000] {
            let (low, high) = (of_keys(keys(0..cut).iter()).write(), of_keys(keys(cut / 2..5_000).iter()).write());
            assert_eq!(together(&[low, high]).unwrap(), of_keys(keys(0..5_000).iter()).write(), "{cut}");
        }
    }

    #[test]
    fn other_values_are_errors() {
        for text in ["null", "{}", "\"##\"", "[-1]", "[131072]", "[\"x\"]", "7"] {
            assert!(together(&[JsonText::parse(text.as_bytes()).unwrap()]).is_err(), "{text}");
        }
        assert!(estimate(&JsonText::parse(format!("\"{}\"", "~".repeat(REGISTERS)).as_bytes()).unwrap()).is_err());
    }
}

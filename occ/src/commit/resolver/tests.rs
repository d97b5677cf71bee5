use std::slice;

use bytes::Bytes;

use super::*;
use crate::random::Random;

fn key(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes()[6..])
}

/// Compares with a map from each of 4,096 keys to its version.
#[test]
fn agrees_with_a_version_for_each_key() {
    const KEYS: u64 = 4096;
    for seed in 0..20 {
        let random = Random::new(seed);
        let mut resolver = Resolver::default();
        let mut model = vec![0i64; KEYS as usize];
        let mut oldest = 0;
        for version in 1..3000i64 {
            let low = random.next() % KEYS;
            let long = if random.next().is_multiple_of(20) { KEYS } else { 4 };
            let high = (low + 1 + random.next() % long).min(KEYS);
            let range = if random.next().is_multiple_of(3) {
                model[low as usize] = version;
                KeyRange::point(&key(low))
            } else {
                model[low as usize..high as usize].fill(version);
                KeyRange { begin: key(low), end: key(high) }
            };
            resolver.write(&range, version);
            if random.next().is_multiple_of(5) {
                oldest = (version - 500).max(0);
                resolver.forget_before(oldest);
            }
            let since = oldest + (random.next() % 500) as i64;
            let (mut ranges, mut expected) = (Vec::new(), Vec::new());
            for _ in 0..random.next() % 12 {
                let low = random.next() % KEYS;
                let high = (low + 1 + random.next() % long).min(KEYS);
                ranges.push(KeyRange { begin: key(low), end: key(high) });
                expected.push(model[low as usize..high as usize].iter().any(|&written| written > since));
                ranges.push(KeyRange::point(&key(low)));
                expected.push(model[low as usize] > since);
            }
            let changed = |range| resolver.any_changed_since(slice::from_ref(range), since);
            let changed: Vec<bool> = ranges.iter().map(changed).collect();
            assert_eq!(changed, expected, "seed {seed}, version {version}");
            let any = expected.contains(&true);
            assert_eq!(resolver.any_changed_since(&ranges, since), any, "seed {seed}, version {version}");
        }
    }
}

/// The same for adjacent keys, and for keys that only look adjacent.
#[test]
fn agrees_about_keys_next_to_each_other() {
    // All keys of two letters up to a length. Keys shorter by two letters bound the ranges.
    let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
    for at in 0..63 {
        keys.extend([0, 1].map(|letter| [&keys[at][..], &[letter]].concat()));
    }
    keys.sort();
    let bounds: Vec<usize> = (0..keys.len()).filter(|at| keys[*at].len() <= 4).collect();
    for seed in 0..300 {
        let random = Random::new(seed);
        let range = || {
            let [one, other] = [(); 2].map(|()| bounds[random.next() as usize % bounds.len()]);
            let (low, high) = (one.min(other), one.max(other));
            match low == high || random.next().is_multiple_of(3) {
                true => (KeyRange::point(&keys[low]), low..low + 1),
                false => {
                    let [begin, end] = [low, high].map(|at| Bytes::from(keys[at].clone()));
                    (KeyRange { begin, end }, low..high)
                }
            }
        };
        let mut resolver = Resolver::default();
        let mut model = vec![0i64; keys.len()];
        for version in 1..120 {
            let (written, places) = range();
            model[places].fill(version);
            resolver.write(&written, version);
            let oldest = (version - 60).max(0);
            resolver.forget_before(oldest);
            for _ in 0..4 {
                let (read, places) = range();
                let since = oldest + (random.next() % 60) as i64;
                let expected = model[places].iter().any(|&written| written > since);
                assert_eq!(
                    resolver.any_changed_since(slice::from_ref(&read), since),
                    expected,
                    "seed {seed}, {read:?} at {version}"
                );
            }
        }
    }
}

#[test]
fn what_left_the_window_is_forgotten() {
    let mut resolver = Resolver::default();
    for version in 1..=20_000i64 {
        resolver.write(&KeyRange::point(&version.to_be_bytes()), version);
        resolver.forget_before(version - 1_000);
    }
    let remembered =
        |resolver: &Resolver| resolver.earlier.iter().map(Generation::len).sum::<usize>() + resolver.current.len();
    // A generation is forgotten as a whole.
    assert!((1_001..1_001 + 2 * FULL).contains(&remembered(&resolver)), "{}", remembered(&resolver));
    resolver.write(&KeyRange::copied(b"a", b"z"), 20_001);
    resolver.write(&KeyRange::copied(b"c", b"d"), 20_002);
    assert_eq!(resolver.current.ranges.len(), 3);
    resolver.forget_before(30_000);
    assert!(remembered(&resolver) < FULL, "{}", remembered(&resolver));
    assert!(resolver.earlier.is_empty());
}

use std::slice;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::random::Random;

fn key(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes()[6..])
}

fn check(resolver: &Resolver) {
    let mut last: Option<(&[u8], i64)> = None;
    for (at, chunk) in resolver.chunks.iter().enumerate() {
        assert_eq!(chunk.keys.len(), chunk.written.len());
        assert_eq!((resolver.firsts.key(at), resolver.maxima[at]), (chunk.keys.key(0), chunk.maximum()));
        for (place, written) in chunk.written.iter().enumerate() {
            let key = chunk.keys.key(place);
            assert!(last.is_none_or(|(last, _)| last < key));
            assert!(last.is_none_or(|(last, behind)| !is_after(key, last) || behind == 0));
            last = Some((key, written.behind));
        }
    }
    assert!(resolver.firsts.key(0).is_empty());
    assert_eq!(resolver.firsts.len(), resolver.chunks.len());
}

fn new(seed: u64) -> Resolver {
    let few = if seed.is_multiple_of(2) { FEW } else { 0 };
    Resolver { few, ..Resolver::default() }
}

/// Of each range, whether it was written since.
fn changed(resolver: &Resolver, ranges: &[KeyRange], since: i64) -> Vec<bool> {
    let together = |ranges| {
        let begins = resolver.begins_of(ranges, since);
        ranges.iter().zip(begins).map(|(range, begin)| resolver.changed_since(range, begin, since))
    };
    ranges.chunks(TOGETHER).flat_map(together).collect()
}

/// Against one version for each of 4,096 keys.
#[test]
fn agrees_with_a_version_for_each_key() {
    const KEYS: u64 = 4096;
    for seed in 0..20 {
        let random = Random::new(seed);
        let mut resolver = new(seed);
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
                check(&resolver);
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
            assert_eq!(changed(&resolver, &ranges, since), expected, "seed {seed}, version {version}");
            let any = expected.contains(&true);
            assert_eq!(resolver.any_changed_since(&ranges, since), any, "seed {seed}, version {version}");
        }
        check(&resolver);
    }
}

/// The same for keys that follow each other without a key between them, and for such that only seem to.
#[test]
fn agrees_about_keys_next_to_each_other() {
    // All of two letters, up to a length; those that are two letters shorter bound ranges.
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
        let mut resolver = new(seed);
        let mut model = vec![0i64; keys.len()];
        for version in 1..120 {
            let (written, places) = range();
            model[places].fill(version);
            resolver.write(&written, version);
            let oldest = (version - 60).max(0);
            resolver.forget_before(oldest);
            check(&resolver);
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
    assert!(resolver.len() < 3_000, "{} boundaries for a window of 1,000 keys", resolver.len());
    for _ in 0..10_000 {
        resolver.forget_before(30_000);
    }
    assert_eq!(resolver.len(), 1);
    check(&resolver);
}

/// Ranges spread over all keys, each written by its own commit, and checks among them.
#[allow(clippy::disallowed_methods, reason = "measures time")]
fn cost_of_a_check(among: u64) -> Duration {
    const CHECKS: u64 = 200_000;
    let random = Random::new(1);
    let key = |number: u64| Bytes::from(format!("some/prefix/{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let mut resolver = Resolver::default();
    let started = Instant::now();
    for number in 0..among {
        resolver.write(&KeyRange::point(&key(number)), number as i64);
    }
    println!("{among} ranges: {:?} for a write", started.elapsed() / among as u32);
    let points: Vec<_> = (0..CHECKS).map(|_| KeyRange::point(&key(random.next() % among))).collect();
    let short: Vec<_> = points
        .iter()
        .map(|point| KeyRange { begin: point.begin.clone(), end: [&point.begin[..], b"\xff"].concat().into() })
        .collect();
    let version = among as i64 / 2;
    let mut slowest = Duration::ZERO;
    for (what, ranges) in [("a key", &points), ("a short range", &short)] {
        // Half of the ranges were written since, and every check must look into its chunk. The median
        // of many parts: others use the machine too.
        let mut costs: Vec<Duration> = Vec::new();
        for part in ranges.chunks(1_000) {
            let started = Instant::now();
            let found = changed(&resolver, part, version).into_iter().filter(|changed| *changed).count();
            assert!((300..700).contains(&found), "{found}");
            costs.push(started.elapsed() / part.len() as u32);
        }
        costs.sort();
        let cost = costs[costs.len() / 2];
        println!("{among} ranges: {cost:?} for a check of {what}, from {:?}", costs[0]);
        slowest = slowest.max(cost);
    }
    slowest
}

/// `cargo test -p occ --release --lib -- --ignored --nocapture cost`
#[test]
#[ignore = "a measurement"]
fn cost_of_a_check_among_a_million_ranges_and_a_thousand() {
    let (few, many) = (cost_of_a_check(1_000), cost_of_a_check(1_000_000));
    println!("{:.1} times", many.as_secs_f64() / few.as_secs_f64());
}

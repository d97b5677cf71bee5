//! Key selectors: every selector near a few keys, compared with the definition.
//!
//! Source: `developer-guide.rst`, "Key selectors".

use kv_api::error::KEY_OUTSIDE_LEGAL_RANGE;
use kv_api::{KeySelector, RangeRequest, Read, Transaction};

use crate::expect::fails;
use crate::{Keyspace, Outcome, Space, Tx};

const KEYS: [&str; 6] = ["b", "d", "d\0", "dd", "f", "h"];
const ANCHORS: [&str; 12] = ["", "a", "b", "b\0", "c", "d", "d\0", "d\0\0", "dd", "e", "f", "i"];

/// The definition: the `offset`th key after the last key less than (or equal to) `key`.
fn place(keys: &[&str], selector: &KeySelector) -> i64 {
    let before = |key: &&&str| {
        let key = key.as_bytes();
        key < &selector.key[..] || (selector.or_equal && key == &selector.key[..])
    };
    keys.iter().filter(before).count() as i64 - 1 + i64::from(selector.offset)
}

fn all() -> impl Iterator<Item = KeySelector> {
    ANCHORS.into_iter().flat_map(|key| {
        [false, true]
            .into_iter()
            .flat_map(move |or_equal| (-7..=8).map(move |offset| KeySelector { key: key.into(), or_equal, offset }))
    })
}

async fn check(tx: &Tx, keys: &[&str], read: Read) -> Outcome {
    for selector in all() {
        // Beyond the own keys lie the ends or keys of others, which other scenarios test.
        let Some(key) = usize::try_from(place(keys, &selector)).ok().and_then(|place| keys.get(place)) else {
            continue;
        };
        let found = tx.get_key(&selector, read).await?;
        assert_eq!(found, key.as_bytes(), "{selector:?}");
    }
    Ok(())
}

pub(crate) async fn a_selector_names_the_key_that_its_definition_counts_to(s: Space) -> Outcome {
    s.write(|tx| KEYS.iter().for_each(|key| tx.set(key, ""))).await?;
    check(&s.tx(), &KEYS, Read::Serializable).await?;
    check(&s.tx(), &KEYS, Read::Snapshot).await
}

pub(crate) async fn a_selector_counts_own_keys_like_stored_ones(s: Space) -> Outcome {
    let tx = s.tx();
    KEYS.iter().for_each(|key| tx.set(key, ""));
    check(&tx, &KEYS, Read::Serializable).await?;
    let half = s.tx();
    s.write(|tx| ["a", "b", "c", "dd", "g"].iter().for_each(|key| tx.set(key, ""))).await?;
    ["d", "d\0", "f", "h"].iter().for_each(|key| half.set(key, ""));
    ["a", "c", "g"].iter().for_each(|key| half.clear(key));
    check(&half, &KEYS, Read::Serializable).await
}

pub(crate) async fn the_four_common_selectors_are_what_their_names_say(s: Space) -> Outcome {
    s.put(&[("a", ""), ("b", ""), ("c", "")]).await?;
    let tx = s.tx();
    for (selector, key) in [
        (KeySelector::last_less_than("b"), "a"),
        (KeySelector::last_less_or_equal("b"), "b"),
        (KeySelector::first_greater_or_equal("b"), "b"),
        (KeySelector::first_greater_than("b"), "c"),
        (KeySelector::first_greater_than("a").plus(1), "c"),
        (KeySelector::last_less_or_equal("c").plus(-2), "a"),
        (KeySelector::first_greater_or_equal("b").without_or_equal(), "b"),
        (KeySelector::last_less_or_equal("b").without_or_equal(), "b"),
    ] {
        assert_eq!(tx.get_key(&selector, Read::Serializable).await?, key.as_bytes(), "{selector:?}");
    }
    Ok(())
}

pub(crate) async fn a_selector_past_the_last_key_gives_the_end_of_the_keyspace(s: Space) -> Outcome {
    s.put(&[("a", "")]).await?;
    let tx = s.tx();
    let end = KeySelector::first_greater_or_equal(b"\xff".as_slice());
    assert_eq!(&tx.raw.get_key(&end, Read::Serializable).await?[..], b"\xff");
    for beyond in [KeySelector::first_greater_than(b"\xff".as_slice()), end.plus(100)] {
        assert_eq!(&tx.raw.get_key(&beyond, Read::Snapshot).await?[..], b"\xff", "{beyond:?}");
    }
    if s.keyspace() == Keyspace::Own {
        for beyond in [KeySelector::first_greater_than("a"), KeySelector::last_less_than("a").plus(9)] {
            assert_eq!(&tx.get_key(&beyond, Read::Serializable).await?[..], b"\xff", "{beyond:?}");
        }
    }
    Ok(())
}

pub(crate) async fn a_selector_before_the_first_key_gives_the_empty_key(s: Space) -> Outcome {
    s.put(&[("a", "")]).await?;
    let tx = s.tx();
    let begin = KeySelector::last_less_than(b"".as_slice());
    for before in [begin.clone(), begin.plus(-100)] {
        assert_eq!(&tx.raw.get_key(&before, Read::Serializable).await?[..], b"", "{before:?}");
    }
    if s.keyspace() == Keyspace::Own {
        for before in [KeySelector::last_less_than("a"), KeySelector::first_greater_than("a").plus(-9)] {
            assert_eq!(&tx.get_key(&before, Read::Serializable).await?[..], b"", "{before:?}");
        }
    }
    Ok(())
}

pub(crate) async fn a_selector_above_the_end_of_the_keyspace_is_2004(s: Space) -> Outcome {
    let tx = s.tx();
    let above = KeySelector::first_greater_or_equal(b"\xff\0".as_slice());
    fails(tx.raw.get_key(&above, Read::Serializable).await, KEY_OUTSIDE_LEGAL_RANGE);
    Ok(())
}

pub(crate) async fn ranges_take_selectors_at_both_ends(s: Space) -> Outcome {
    s.write(|tx| KEYS.iter().for_each(|key| tx.set(key, ""))).await?;
    let tx = s.tx();
    for begin in all() {
        for end in [
            KeySelector::first_greater_or_equal("f"),
            KeySelector::first_greater_than("d"),
            KeySelector::last_less_than("f"),
            KeySelector::last_less_or_equal("h").plus(-1),
            KeySelector::first_greater_than("b").plus(2),
        ] {
            let (from, to) = (place(&KEYS, &begin), place(&KEYS, &end));
            let (Ok(from), Ok(to)) = (usize::try_from(from), usize::try_from(to)) else { continue };
            if from >= KEYS.len() {
                continue;
            }
            let expected: Vec<&[u8]> =
                if from < to { KEYS[from..to].iter().map(|key| key.as_bytes()).collect() } else { vec![] };
            let request = RangeRequest::selectors(begin.clone(), end.clone());
            let forward = tx.batch(&request, Read::Snapshot).await?.rows;
            assert_eq!(forward.iter().map(|row| &row.key[..]).collect::<Vec<_>>(), expected, "{begin:?} to {end:?}");
            let mut reverse = tx.batch(&request.reverse(), Read::Snapshot).await?.rows;
            reverse.reverse();
            assert_eq!(reverse, forward, "{begin:?} to {end:?}");
        }
    }
    Ok(())
}

//! A database under a prefix of another one, instead of tenants.

use kv_api::error::KEY_OUTSIDE_LEGAL_RANGE;
use kv_api::{
    ConflictRange, Database, KeySelector, MutationType, Prefixed, RangeRequest, Read, Transaction, Versionstamp,
};

use crate::expect::{fails, show, some};
use crate::{Outcome, Space};

fn part(s: &Space, prefix: &str) -> Prefixed<kv_api::AnyDatabase> {
    Prefixed::new(s.database().clone(), s.key(prefix))
}

pub(crate) async fn a_prefix_shows_its_own_keys_without_it(s: Space) -> Outcome {
    s.put(&[("o/z", "0"), ("p/a", "1"), ("p/b", "2"), ("q/a", "3")]).await?;
    let tx = part(&s, "p/").begin()?;
    assert_eq!(tx.get(b"a", Read::Serializable).await?, some("1"));
    let everything = RangeRequest::keys("", b"\xff".as_slice());
    assert_eq!(show(&tx.get_range(&everything, Read::Serializable).await?.rows), "a=1 b=2");
    assert_eq!(show(&tx.get_range(&everything.reverse(), Read::Serializable).await?.rows), "b=2 a=1");
    Ok(())
}

pub(crate) async fn a_prefix_ends_selectors_at_its_ends(s: Space) -> Outcome {
    s.put(&[("o/z", "0"), ("p/a", "1"), ("p/b", "2"), ("q/a", "3")]).await?;
    let tx = part(&s, "p/").begin()?;
    for (selector, key) in [
        (KeySelector::last_less_than("a"), b"".as_slice()),
        (KeySelector::last_less_than("b").plus(-5), b""),
        (KeySelector::first_greater_than("a"), b"b"),
        (KeySelector::first_greater_than("b"), b"\xff"),
        (KeySelector::first_greater_than("a").plus(5), b"\xff"),
    ] {
        assert_eq!(tx.get_key(&selector, Read::Serializable).await?, key, "{selector:?}");
    }
    let request = RangeRequest::selectors(
        KeySelector::last_less_than("b").plus(-5),
        KeySelector::first_greater_than("b").plus(5),
    );
    assert_eq!(show(&tx.get_range(&request, Read::Serializable).await?.rows), "a=1 b=2");
    Ok(())
}

pub(crate) async fn a_prefix_keeps_its_writes_inside(s: Space) -> Outcome {
    s.put(&[("o/z", "0"), ("p/a", "1"), ("q/a", "3")]).await?;
    let tx = part(&s, "p/").begin()?;
    tx.clear_range(b"", b"\xff");
    tx.set(b"new", b"1");
    tx.atomic_op(MutationType::Add, b"n", &[7]);
    tx.commit().await?;
    assert_eq!(s.contents().await?, r"o/z=0 p/n=\x07 p/new=1 q/a=3");
    Ok(())
}

pub(crate) async fn a_prefix_refuses_its_own_system_keys(s: Space) -> Outcome {
    let db = part(&s, "p/");
    let tx = db.begin()?;
    fails(tx.get(b"\xff", Read::Serializable).await, KEY_OUTSIDE_LEGAL_RANGE);
    tx.set(b"\xff/a", b"1");
    fails(tx.commit().await, KEY_OUTSIDE_LEGAL_RANGE);
    let tx = db.begin()?;
    tx.add_conflict_range(b"a", b"\xff\0", ConflictRange::Write);
    fails(tx.commit().await, KEY_OUTSIDE_LEGAL_RANGE);
    assert_eq!(s.contents().await?, "");
    Ok(())
}

pub(crate) async fn a_prefix_moves_the_offset_of_a_stamped_key(s: Space) -> Outcome {
    let tx = part(&s, "p/").begin()?;
    let key = [b"k".as_slice(), Versionstamp::PENDING.as_bytes(), &1_u32.to_le_bytes()].concat();
    tx.atomic_op(MutationType::SetVersionstampedKey, &key, b"1");
    let stamp = tx.get_versionstamp();
    tx.commit().await?;
    assert_eq!(s.get([b"p/k".as_slice(), stamp.await?.as_bytes()].concat()).await?, some("1"));
    Ok(())
}

pub(crate) async fn two_prefixes_do_not_conflict(s: Space) -> Outcome {
    let (one, two) = (part(&s, "p/").begin()?, part(&s, "q/").begin()?);
    let everything = RangeRequest::keys("", b"\xff".as_slice());
    for tx in [&one, &two] {
        tx.get_range(&everything, Read::Serializable).await?;
        tx.set(b"a", b"1");
    }
    one.commit().await?;
    two.commit().await?;
    assert_eq!(s.contents().await?, "p/a=1 q/a=1");
    Ok(())
}

pub(crate) async fn the_longest_key_under_a_prefix_is_shorter_by_it(s: Space) -> Outcome {
    let prefix = s.key("p/");
    let db = Prefixed::new(s.database().clone(), prefix.clone());
    assert_eq!(db.limits().key_bytes, s.database().limits().key_bytes - prefix.len());
    let key = vec![b'k'; db.limits().key_bytes];
    let tx = db.begin()?;
    tx.set(&key, b"1");
    tx.commit().await?;
    tx.reset();
    assert_eq!(tx.get(&key, Read::Serializable).await?, some("1"));
    Ok(())
}

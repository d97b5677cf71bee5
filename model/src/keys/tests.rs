use foundationdb_tuple::{Bytes as TupleBytes, Versionstamp, pack};

use super::*;
use crate::attachments::ContentId;
use crate::feed::seq::Seq;
use crate::rows::ancestors::Ancestors;
use crate::rows::branch::{Branch, PendingWinner};
use crate::rows::row::STAMP_LEN;
use crate::write::policy::ConflictPolicy;

const DRAWN: &str = include_str!("../../../docs/keyspace.md");

fn leaf() -> Leaf {
    Leaf { not_deleted: true, rev: "1-967a00dff5e02add41819138abb3284d".parse().unwrap() }
}

#[test]
fn keys_are_the_tuples_that_are_drawn() {
    let keys = DatabaseKeys::new(b"", 300);
    let (leaf, id) = (leaf(), "a\0ö");
    let hash = TupleBytes::from(leaf.rev.hash().as_bytes());
    let content = ContentId { sha256: [0; 32], length: 300 };
    let sha256 = TupleBytes::from(&content.sha256[..]);
    let stamp = [7; STAMP_LEN];
    let in_tuple = Versionstamp::complete([7; 10], 0x0707);
    for (key, expected) in [
        (keys.key(DatabaseKey::Instance), pack(&(4, 300, 0))),
        (keys.key(DatabaseKey::Security), pack(&(4, 300, 1))),
        (keys.key(DatabaseKey::Last), pack(&(4, 300, 2))),
        (keys.key(DatabaseKey::Stats), pack(&(4, 300, 3))),
        (keys.key(DatabaseKey::Revision(id, &leaf)), pack(&(4, 300, 4, id, true, 1, &hash))),
        (keys.key(DatabaseKey::Change(Seq::new(2, &stamp))), pack(&(4, 300, 5, 2, &in_tuple))),
        (keys.key(DatabaseKey::Doc(id, &leaf)), pack(&(4, 300, 6, id, true, 1, &hash))),
        (keys.key(DatabaseKey::AllDoc(id)), pack(&(4, 300, 7, id))),
        (keys.key(DatabaseKey::Local(id)), pack(&(4, 300, 8, id))),
        (keys.key(DatabaseKey::Attachments(id, &leaf)), pack(&(4, 300, 6, id, true, 1, &hash, true))),
        (keys.key(DatabaseKey::Content(&content)), pack(&(4, 300, 9, &sha256, 300))),
        (keys.key(DatabaseKey::Part(&[8; 16], 3)), pack(&(4, 300, 10, TupleBytes::from(&[8; 16][..]), 3))),
        (keys.key(DatabaseKey::Reference(&content, id, &leaf)), pack(&(4, 300, 11, &sha256, 300, id, true, 1, &hash))),
        (keys.key(DatabaseKey::Index(70_000)), pack(&(4, 300, 12, 70_000))),
        (keys.key(DatabaseKey::IndexRows(1)), pack(&(4, 300, 13, 1))),
        (keys.key(DatabaseKey::IndexKey(1, b"k\0")), pack(&(4, 300, 13, 1, TupleBytes::from(&b"k\0"[..])))),
        (keys.key(DatabaseKey::IndexRow(1, b"k\0", id)), pack(&(4, 300, 13, 1, TupleBytes::from(&b"k\0"[..]), id))),
        (keys.key(DatabaseKey::Indexed(id)), pack(&(4, 300, 14, id))),
        (keys.key(DatabaseKey::PurgeSettings), pack(&(4, 300, 15))),
        (keys.key(DatabaseKey::PurgeOf(&[8; 16])), pack(&(4, 300, 15, TupleBytes::from(&[8; 16][..])))),
        (keys.key(DatabaseKey::Purge(70_000)), pack(&(4, 300, 15, 70_000))),
        (keys.key(DatabaseKey::Trash(id)), pack(&(4, 300, 20, id))),
        (keys.key(DatabaseKey::TrashDoc(id)), pack(&(4, 300, 21, id))),
        (keys.key(DatabaseKey::Passed), pack(&(4, 300, 22))),
        (keys.key(DatabaseKey::Ended(id)), pack(&(4, 300, 23, id))),
        (keys.key(DatabaseKey::NextViewGroup), pack(&(4, 300, 16))),
        (keys.key(DatabaseKey::ViewGroup(&[8; 16])), pack(&(4, 300, 16, 0, TupleBytes::from(&[8; 16][..])))),
        (keys.key(DatabaseKey::ViewRows(7)), pack(&(4, 300, 16, 1, 7))),
        (keys.key(DatabaseKey::ViewIds(7, id)), pack(&(4, 300, 16, 1, 7, 0, id))),
        (
            keys.key(DatabaseKey::ViewRow { group: 7, view: 1, level: 0, place: &pack(&(id, 3)) }),
            pack(&(4, 300, 16, 1, 7, 1, 1, 0, id, 3)),
        ),
        (
            keys.key(DatabaseKey::ViewLong { group: 7, view: 1, place: &pack(&(id, 3)) }),
            pack(&(4, 300, 16, 1, 7, 2, 1, id, 3)),
        ),
        (keys.key(DatabaseKey::ViewError(7, id)), pack(&(4, 300, 16, 1, 7, 3, id))),
        (keys.key(DatabaseKey::ViewLeftOut { group: 7, view: 1, id }), pack(&(4, 300, 16, 1, 7, 4, 1, id))),
        (Key::Format.under(b""), pack(&(0,))),
        (Key::Catalog("db").under(b""), pack(&(1, "db"))),
        (Key::Allocator.under(b""), pack(&(2,))),
        (
            Key::Transaction { version: 1 << 40, nonce: [0; 16] }.under(b""),
            pack(&(3, 1i64 << 40, TupleBytes::from(&[0; 16][..]))),
        ),
        (Key::Identity.under(b""), pack(&(5,))),
        (Key::Arrival("db").under(b""), pack(&(6, "db"))),
        (
            Key::Staging { deadline_ms: 70_000, database: 300, store: &[8; 16] }.under(b""),
            pack(&(7, 70_000, 300, TupleBytes::from(&[8; 16][..]))),
        ),
        (Key::Jobs.under(b""), pack(&(8,))),
        (Key::Configuration.under(b""), pack(&(9,))),
        (Key::Setting("chttpd", "a\0").under(b""), pack(&(9, "chttpd", "a\0"))),
        (Key::Events.under(b""), pack(&(10,))),
        (Key::Created("db").under(b""), pack(&(10, 0, "db"))),
        (Key::Dropped(&[7; 12], "db").under(b""), pack(&(10, 1, Versionstamp::from([7; 12]), "db"))),
        (Key::ForgottenDrops.under(b""), pack(&(10, 2))),
    ] {
        assert_eq!(key, expected);
    }
    assert!(Key::Format.under(b"root/").starts_with(b"root/"));
}

#[test]
fn keys_read_back() {
    let keys = DatabaseKeys::new(b"root", 7);
    let leaf = Leaf { not_deleted: false, rev: "12-x".parse().unwrap() };
    let key = keys.key(DatabaseKey::Revision("a\0", &leaf));
    assert_eq!(keys.read_revision(&key).unwrap(), ("a\0".to_owned(), leaf.clone()));
    assert!(keys.read_doc(&key).is_err() && keys.read_revision(&key[1..]).is_err());
    for cut in keys.key(DatabaseKey::RevisionsOf("a\0")).len()..key.len() {
        assert!(keys.read_revision(&key[..cut]).is_err(), "cut at {cut}");
    }
    let mut row = keys.key(DatabaseKey::Doc("a\0", &leaf));
    let prefix = row.len();
    row.push(0x15);
    assert_eq!(keys.read_doc(&row).unwrap(), ("a\0".to_owned(), leaf, prefix));
    let seq = Seq::new(3, &[9; STAMP_LEN]);
    assert_eq!(keys.read_change(&keys.key(DatabaseKey::Change(seq))).unwrap(), seq);
    assert_eq!(keys.read_all_doc(&keys.key(DatabaseKey::AllDoc("x"))).unwrap(), "x");
    assert_eq!(keys.read_trash(&keys.key(DatabaseKey::Trash("h:a\0"))).unwrap(), "h:a\0");
    let (content, store) = (ContentId { sha256: [0; 32], length: 0 }, [0; 16]);
    assert_eq!(keys.read_content(&keys.key(DatabaseKey::Content(&content))).unwrap(), content);
    assert_eq!(keys.read_part(&keys.key(DatabaseKey::Part(&store, 256))).unwrap(), (store, 256));
    let dead = Leaf { not_deleted: false, rev: "12-x".parse().unwrap() };
    let reference = keys.key(DatabaseKey::Reference(&content, "a\0", &dead));
    assert_eq!(keys.read_reference(&reference).unwrap(), (content, "a\0".to_owned(), dead));
    let id = Key::Transaction { version: 1 << 40, nonce: [0; 16] }.under(b"root");
    assert_eq!(Key::transaction_version(b"root", &id).unwrap(), 1 << 40);
    let staging = Key::Staging { deadline_ms: 1 << 40, database: 300, store: &store }.under(b"root");
    assert_eq!(Key::read_staging(b"root", &staging).unwrap(), (300, store));
    let (begin, end) = Key::stagings(b"root", Some((1 << 40) + 1));
    assert!(begin < staging && staging < end && staging > Key::stagings(b"root", Some(1 << 40)).1);
    let (setting, (begin, end)) = (Key::Setting("a\0", "b").under(b"root"), Key::settings(b"root"));
    assert_eq!(Key::read_setting(b"root", &setting).unwrap(), ("a\0".to_owned(), "b".to_owned()));
    assert!(Key::Configuration.under(b"root") < begin && begin < setting && setting < end);
    let (dropped, (begin, end)) = (Key::Dropped(&[7; 12], "a").under(b"root"), Key::drops(b"root", &[7; 12]));
    assert_eq!(Key::read_drop(b"root", &dropped).unwrap(), ([7; 12], "a".to_owned()));
    assert!(begin < dropped && dropped < end && Key::Created("\u{10ffff}").under(b"root") < begin);
    assert!(dropped < Key::drops(b"root", &[8; 12]).0 && end <= Key::ForgottenDrops.under(b"root"));
    assert!(Key::read_drop(b"root", &Key::Created("a").under(b"root")).is_err());
    let (purge, name) = (keys.key(DatabaseKey::Purge(256)), keys.key(DatabaseKey::PurgeOf(&[0; 16])));
    assert_eq!((keys.read_purge(&purge).unwrap(), keys.read_purge_of(&name).unwrap()), (256, [0; 16]));
    assert!(keys.read_purge(&name).is_err() && keys.read_purge_of(&purge).is_err());
    assert!(keys.key(DatabaseKey::PurgeSettings) < name && name < keys.key(DatabaseKey::Purge(0)));
    assert!(is_instance_key(&DatabaseKeys::new(b"", 9).key(DatabaseKey::Instance)));
    assert!(!is_instance_key(&DatabaseKeys::new(b"", 9).key(DatabaseKey::Security)));
}

#[test]
fn subspaces_are_numbered_in_their_order() {
    for (at, subspace) in (0u64..).zip(Subspace::ALL) {
        assert_eq!(subspace.number(), at);
    }
    assert_eq!(Subspace::ALL.last(), Some(&Subspace::Ended), "the last one of the enum");
}

#[test]
fn ranges_hold_a_document_and_not_its_neighbours() {
    let keys = DatabaseKeys::new(b"", 0);
    let (begin, end) = keys.bounds(DatabaseKey::RevisionsOf("a"));
    let of = |id: &str| keys.key(DatabaseKey::Revision(id, &leaf()));
    assert!(begin <= of("a") && of("a") < end);
    for other in ["", "`", "a\0", "a\0b", "aa", "b"] {
        assert!(!(begin <= of(other) && of(other) < end), "{other:?}");
    }
}

#[test]
fn ids_that_are_too_long_sort_in_their_place() {
    let keys = DatabaseKeys::new(b"", 0);
    let longest = "m".repeat(2_048);
    let ids = [
        "m".repeat(2_047) + "l",
        longest.clone(),
        longest.clone() + "\0",
        "m".repeat(1_000_000),
        longest.clone() + "é",
        "m".repeat(2_047) + "n",
    ];
    let key = |id: &str| keys.key(DatabaseKey::AllDoc(id));
    assert!(ids.iter().all(|id| key(id).len() < 2_100));
    assert!(ids.is_sorted_by_key(|id| key(id)));
    assert!(ids[2..5].iter().all(|id| key(id) > key(&longest)));
}

#[test]
fn moved_rows_stand_behind_all_others() {
    let keys = DatabaseKeys::new(b"root", 300);
    let bound = Subspace::ALL.into_iter().map(|subspace| keys.bounds(DatabaseKey::All(subspace)).1).max().unwrap();
    for key in [DatabaseKey::RevisionsOf("a"), DatabaseKey::Changes, DatabaseKey::DocsOf("a"), DatabaseKey::AllDocs] {
        let key = keys.key(key);
        for earlier in [0, 1, 57] {
            let moved = keys.moved(&key, earlier).unwrap();
            assert!(moved >= bound && moved.as_slice() < keys.everything().1.as_slice());
            assert_eq!(moved.len(), key.len());
        }
        assert!([58, 63, 64, 255].iter().all(|earlier| keys.moved(&key, *earlier).is_none()));
    }
}

#[test]
fn leaves_sort_as_their_keys_do() {
    let keys = DatabaseKeys::new(b"", 0);
    let mut leaves: Vec<Leaf> = Vec::new();
    for not_deleted in [false, true] {
        for rev in ["1-a", "1-b", "1-ba", "2-a", "10-a", "256-0", "1-00000000000000000000000000000000"] {
            leaves.push(Leaf { not_deleted, rev: rev.parse().unwrap() });
        }
    }
    leaves.sort();
    assert!(leaves.is_sorted_by_key(|leaf| keys.key(DatabaseKey::Revision("x", leaf))));
}

/// Whether these bytes are in the documentation's drawings.
fn is_drawn(bytes: &[u8]) -> bool {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    DRAWN.lines().any(|line| line.split_whitespace().collect::<String>() == digits)
}

#[test]
fn the_drawings_are_right() {
    let keys = DatabaseKeys::new(b"", 0);
    assert!(is_drawn(&keys.key(DatabaseKey::Revision("a", &leaf()))));
    let seq = Seq::new(0, &[0, 0, 0, 0, 0, 1, 0xe2, 0x40, 0, 0, 0, 7]);
    assert!(is_drawn(&keys.key(DatabaseKey::Change(seq))));
    let mut row = Vec::new();
    let winner_info = PendingWinner { incarnation: 0, edit: 0, branches: 1 };
    Branch::append_winner(&mut row, ConflictPolicy::KeepAll, winner_info, 2, &Ancestors::EMPTY, false);
    assert!(is_drawn(&row), "{row:02x?}");
}

//! The cost of new versions of a file.

use rand::RngExt;

use super::{Bench, dice, noise, text};
use crate::support::World;

/// Versions of a note grow by little more than the change: an edit touches one or two pieces of a quarter of a
/// kilobyte.
#[tokio::test(flavor = "multi_thread")]
async fn versions_of_a_note_cost_what_changed() {
    let seed = 6;
    let world = World::in_process().await;
    let bench = Bench::new(&world, "vault").await;
    let mut dice = dice(seed);
    let mut note = text(&mut dice, 12_000);
    bench.write("note.md", &note);
    let first = bench.push().await;
    let (mut stored, mut chunks) = (first.chunk_bytes, first.new_chunks);
    assert_eq!(stored, note.len() as u64);
    let (versions, mut written, mut changed) = (200, 0, 0);
    for _ in 0..versions {
        // Inserts a sentence, or sometimes removes one.
        let mut at = dice.random_range(0..note.len());
        while !note.is_char_boundary(at) {
            at -= 1;
        }
        let length = dice.random_range(20..120);
        let sentence = text(&mut dice, length);
        if dice.random_ratio(1, 4) {
            let end = (at..note.len()).skip(length).find(|&end| note.is_char_boundary(end)).unwrap_or(note.len());
            note.replace_range(at..end, "");
        } else {
            note.insert_str(at, &sentence);
        }
        changed += sentence.len() as u64;
        bench.write("note.md", &note);
        let pushed = bench.push_with(chunks::vault::PushOptions { checksum: true, ..Default::default() }).await;
        written += pushed.written;
        stored += pushed.chunk_bytes;
        chunks += pushed.new_chunks;
    }
    assert_eq!(written, versions);
    let each = (stored - 12_000) / versions;
    println!("seed {seed}: {versions} versions, {changed} bytes changed, {stored} stored, {each} for each version");
    // Whole notes would have been 12,000 bytes and more each.
    assert!(each < 700, "{each} bytes for each version");
    let stats = bench.vault.stats(|_| ()).await.unwrap();
    assert_eq!((stats.files, stats.stored_chunks), (1, chunks));
}

/// One byte at the front of a large file: nearly all of its chunks exist already.
#[tokio::test(flavor = "multi_thread")]
async fn a_byte_at_the_front_costs_a_chunk_or_two() {
    let world = World::in_process().await;
    let bench = Bench::new(&world, "vault").await;
    let mut dice = dice(7);
    for (name, content) in [("text.md", text(&mut dice, 3 << 20).into_bytes()), ("data.bin", noise(&mut dice, 6 << 20))]
    {
        bench.write(name, &content);
        let first = bench.push().await;
        bench.write(name, [b"x".to_vec(), content].concat());
        let second = bench.push().await;
        assert_eq!(second.written, 1);
        assert!(second.new_chunks * 20 <= first.new_chunks, "{name}: {} of {}", second.new_chunks, first.new_chunks);
    }
}

//! Notes in a folder, synced with a server: `cargo run --example notes -- FOLDER http://HOST:PORT/DATABASE`.

use couch_layer::{CouchLayer, Edit, Error, GetOptions, JsonText, block_on};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, url] = arguments.as_slice() else { panic!("two arguments: a folder and a URL") };
    block_on(async {
        // Opens the folder, or creates it. One process has a folder open at a time.
        let store = CouchLayer::open(folder).await?;
        let notes = store.database("notes").await?;

        // A new document, and an edit that replaces the revision that was read.
        if notes.info().await?.doc_count == 0 {
            let body = JsonText::parse(br#"{"type": "song", "title": "Gute Nacht"}"#)?;
            notes.put(Edit::new("song", body)).await?;
        }
        let song = notes.get("song", &GetOptions::default()).await?;
        let body = JsonText::parse(br#"{"type": "song", "title": "Der Lindenbaum"}"#)?;
        notes.put(Edit::replacing(&song, body)).await?;

        // Copies what either side does not have.
        let done = notes.sync(url)?.run().await?;
        println!("{} sent, {} fetched", done.sent.figures.docs_written, done.fetched.figures.docs_written);

        for found in notes.find(JsonText::parse(br#"{"type": "song"}"#)?).all().await? {
            println!("{} {} {}", found.id, found.rev, found.body.as_str());
        }
        Ok(())
    })
}

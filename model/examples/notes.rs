//! CouchDB's documents in a Rust program: an edit, a conflict, the feed.
//!
//! The README shows the function `notes`.

use engine_mem::MemDatabase;
use model::{ChangesRequest, CreateOptions, Edit, GetOptions, JsonText, Layer, LayerOptions};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

async fn notes() -> Result<()> {
    let layer = Layer::open(MemDatabase::new(), LayerOptions::default()).await?;
    let notes = layer.create_database("notes", CreateOptions::default()).await?;

    // A new document, and an edit that names the revision it replaces.
    let body = JsonText::parse(br#"{"items": ["bread"]}"#)?;
    let first = notes.put(Edit::new("shopping", body)).await?;
    let body = JsonText::parse(br#"{"items": ["bread", "salt"]}"#)?;
    notes.put(Edit::new("shopping", body.clone()).over(first.clone())).await?;

    // The same revision replaced again is a conflict.
    let conflict = notes.put(Edit::new("shopping", body).over(first)).await;
    assert_eq!(conflict.map_err(|error| error.status()), Err(409));

    let shopping = notes.get("shopping", &GetOptions::default()).await?;
    assert_eq!(shopping.body.as_str(), r#"{"items":["bread","salt"]}"#);

    // Each document is in the feed once, at its last change.
    let feed = notes.changes(&ChangesRequest::default()).await?;
    for change in feed.rows {
        println!("{} {} {}", change.seq, change.id, change.revs[0]);
    }
    Ok(())
}

fn main() -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(notes())
}

//! CouchDB's documents inside a program: an edit, a conflict, a replication, the feed.
//!
//! The README shows this file's `main`.

use model::{CreateOptions, Edit, GetOptions, JsonText, Layer, LayerOptions, WriteMode};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

async fn notes() -> Result<()> {
    let layer = Layer::open(engine_mem::MemDatabase::new(), LayerOptions::default()).await?;
    let notes = layer.create_database("notes", CreateOptions::default()).await?;

    // A new document, and an edit that names the revision it replaces.
    let first = notes.put(Edit::new("shopping", JsonText::parse(br#"{"items": ["bread"]}"#)?)).await?;
    let body = JsonText::parse(br#"{"items": ["bread", "salt"]}"#)?;
    let second = notes.put(Edit::new("shopping", body).over(first.clone())).await?;
    assert_eq!(second.position(), 2);

    // The same revision replaced again is a conflict.
    let late = notes.put(Edit::new("shopping", JsonText::parse(b"{}")?).over(first)).await;
    assert_eq!(late.map_err(|error| error.status()), Err(409));

    let document = notes.get("shopping", &GetOptions::default()).await?;
    println!("{}", String::from_utf8(document.to_json())?);
    Ok(())
}

fn main() -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(notes())
}

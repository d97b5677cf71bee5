//! What the measurements share: the documents they move, and a store that remembers what a layer
//! wrote, so that the same can be written raw.

pub mod documents;
pub mod recording;

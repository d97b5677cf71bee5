//! What the measurements share: the engines, the documents they move, a store that remembers what a
//! layer wrote, so that the same can be written raw, and what is made of the figures.

pub mod documents;
pub mod engines;
pub mod figures;
pub mod recording;
pub mod work;

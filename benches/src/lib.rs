//! Shared by all measurements: the engines, the documents, a store that records a layer's operations so that they
//! can be repeated raw, and statistics.

pub mod documents;
pub mod engines;
pub mod figures;
pub mod recording;
pub mod work;

//! The contract: an ordered, transactional key-value store with FoundationDB's semantics.

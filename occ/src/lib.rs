//! Optimistic transactions with FoundationDB's semantics over any sorted store.

//! CouchDB's document model as key layouts over a transactional key-value store.

//! couch-layer's engine in memory: a persistent sorted map under occ.

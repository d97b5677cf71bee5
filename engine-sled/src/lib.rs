//! couch-layer's engine on sled: a durable sled tree under occ.

//! A CouchDB-compatible server and command line over any engine of couch-layer.

//! The contents of a database's rows, and how values become bytes.

pub(crate) mod ancestors;
pub(crate) mod bigint;
pub(crate) mod blob;
pub(crate) mod body;
pub(crate) mod branch;
pub(crate) mod catalog_row;
pub(crate) mod change_row;
pub(crate) mod etf;
pub(crate) mod id_set;
pub(crate) mod instance;
pub(crate) mod passed_row;
pub(crate) mod revid;
pub(crate) mod row;
pub(crate) mod settings;
pub(crate) mod stats;
pub(crate) mod trash_row;
pub(crate) mod tuple;

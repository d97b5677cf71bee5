//! Rows of the [catalog](crate::admin::catalog): a database's number, whether it is partitioned, and the store to which
//! it moved, if it did.
//!
//! ```text
//!  (Number, InstanceId[, true][, To])      true: the database is partitioned, as its instance row says too
//! ```

use crate::error::Result;
use crate::rows::instance::{self, Instance};
use crate::rows::row::Reader;
use crate::rows::tuple;

/// A row of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatalogRow {
    pub(crate) number: u64,
    pub(crate) instance_id: [u8; 16],
    /// Whether the database is partitioned. A handle takes it from here, so ids are checked without a read.
    pub(crate) partitioned: bool,
    /// The store to which the database moved, if it did.
    pub(crate) moved_to: Option<String>,
}

impl CatalogRow {
    /// The row of a database in this store.
    pub(crate) fn new(number: u64, instance: &Instance) -> CatalogRow {
        CatalogRow { number, instance_id: instance.id, partitioned: instance.partitioned, moved_to: None }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        tuple::append_u64(&mut out, self.number);
        tuple::append_bytes(&mut out, &self.instance_id);
        if self.partitioned {
            tuple::append_bool(&mut out, true);
        }
        if let Some(to) = &self.moved_to {
            tuple::append_str(&mut out, to);
        }
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<CatalogRow> {
        let mut reader = Reader::new(value);
        let number = reader.int()?;
        let instance_id = instance::read_id(&mut reader)?;
        let partitioned = reader.peek() == Some(tuple::TRUE) && reader.bool()?;
        let moved_to = if reader.rest().is_empty() { None } else { Some(reader.str()?.into_owned()) };
        reader.end()?;
        Ok(CatalogRow { number, instance_id, partitioned, moved_to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let place = CatalogRow { number: 300, instance_id: [0; 16], partitioned: false, moved_to: None };
        assert_eq!(CatalogRow::read(&place.write()).unwrap(), place);
        let partitioned = CatalogRow { partitioned: true, ..place.clone() };
        assert_eq!(CatalogRow::read(&partitioned.write()).unwrap(), partitioned);
        let gone = CatalogRow { moved_to: Some("lsm:/x y".to_owned()), ..partitioned };
        assert_eq!(CatalogRow::read(&gone.write()).unwrap(), gone);
        // A name with a NUL that is cut within the escape is a valid shorter name.
        let odd = CatalogRow { moved_to: Some("lsm:/x\0y".to_owned()), ..place.clone() };
        assert_eq!(CatalogRow::read(&odd.write()).unwrap(), odd);
        let moved = CatalogRow { moved_to: Some("lsm:/x y".to_owned()), ..place.clone() };
        let row = moved.write();
        assert_eq!(CatalogRow::read(&row).unwrap(), moved);
        for cut in (0..row.len()).filter(|&cut| cut != place.write().len()) {
            assert!(CatalogRow::read(&row[..cut]).is_err(), "cut at {cut}");
        }
    }
}

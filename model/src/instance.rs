//! The row that every transaction on a database reads first.
//!
//! ```text
//!  (Format, InstanceId, Incarnation, BodyFormat, RevsLimit, CreatedMs)
//! ```
//!
//! It is read with a conflict range by whatever writes, and dropping the database clears it: so no late
//! writer fills the range of a database that is gone. What a write must know of the database stands in
//! it, so that it costs no read of its own.

use crate::body::BodyFormat;
use crate::error::{Error, Result};
use crate::row::Reader;
use crate::tuple;

/// The version of a database's layout.
const FORMAT: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// Tells a database from another of the same name, before or after it.
    pub(crate) id: [u8; 16],
    /// How often the database moved between stores (RFC 001, "Terminology").
    pub(crate) incarnation: u8,
    /// The layout of bodies written next.
    pub(crate) format: BodyFormat,
    /// How many revisions a branch remembers.
    pub(crate) revs_limit: u32,
    /// When it was created.
    pub(crate) created_ms: u64,
}

impl Instance {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_bytes(&mut out, &self.id);
        tuple::append_u64(&mut out, u64::from(self.incarnation));
        tuple::append_u64(
            &mut out,
            match self.format {
                BodyFormat::Exploded => 1,
                BodyFormat::Packed => 2,
            },
        );
        tuple::append_u64(&mut out, u64::from(self.revs_limit));
        tuple::append_u64(&mut out, self.created_ms);
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<Instance> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::corrupt(format!("a database in unknown format {other}"))),
        }
        let id = reader.bytes()?.as_ref().try_into().map_err(|_| Error::corrupt("an instance id of wrong length"))?;
        let incarnation = u8::try_from(reader.int()?).map_err(|_| Error::corrupt("an incarnation over 255"))?;
        let format = match reader.int()? {
            1 => BodyFormat::Exploded,
            2 => BodyFormat::Packed,
            other => return Err(Error::corrupt(format!("unknown body format {other}"))),
        };
        let revs_limit =
            u32::try_from(reader.int()?).map_err(|_| Error::corrupt("an impossible limit on revisions"))?;
        let created_ms = reader.int()?;
        reader.end()?;
        Ok(Instance { id, incarnation, format, revs_limit, created_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        for format in [BodyFormat::Exploded, BodyFormat::Packed] {
            let instance = Instance { id: [0; 16], incarnation: 255, format, revs_limit: 4_000, created_ms: 1 << 41 };
            let row = instance.write();
            assert_eq!(Instance::read(&row).unwrap(), instance);
            for cut in 0..row.len() {
                assert!(Instance::read(&row[..cut]).is_err(), "cut at {cut}");
            }
        }
    }
}

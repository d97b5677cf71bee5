//! The documents of the benchmarks: small ones, about 200 bytes and eleven leaves, like typical records.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A source of documents, the same in every run.
pub struct Source {
    random: StdRng,
}

impl Source {
    /// The source of this seed.
    pub fn seeded(seed: u64) -> Self {
        Source { random: StdRng::seed_from_u64(seed) }
    }

    /// A new random id, like a client's, so that writes do not run in key order.
    pub fn id(&mut self) -> String {
        format!("{:016x}{:016x}", self.random.random::<u64>(), self.random.random::<u64>())
    }

    /// The members of a document without braces. The caller can put an id before them.
    pub fn members(&mut self) -> String {
        let n: u32 = self.random.random_range(0..1_000_000);
        format!(
            concat!(
                r#""type":"record","name":"record number {n}","serial":{n},"price":{price:.2},"active":{active},"#,
                r#""tags":["alpha","beta-{tag}"],"owner":{{"name":"person {owner}","mail":"person{owner}@example.org"}},"#,
                r#""place":{{"lat":{lat:.5},"lon":{lon:.5}}}"#
            ),
            n = n,
            price = f64::from(n) / 100.0 + 0.005,
            active = n.is_multiple_of(3),
            tag = n % 100,
            owner = n % 5_000,
            lat = self.random.random_range(-90.0..90.0),
            lon = self.random.random_range(-180.0..180.0),
        )
    }

    /// A document without an id.
    pub fn document(&mut self) -> String {
        format!("{{{}}}", self.members())
    }

    /// The body of a `_bulk_docs` request with this many new documents.
    pub fn bulk(&mut self, count: usize) -> String {
        let documents: Vec<String> =
            (0..count).map(|_| format!(r#"{{"_id":"{}",{}}}"#, self.id(), self.members())).collect();
        format!(r#"{{"docs":[{}]}}"#, documents.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_valid_documents() {
        let (mut one, mut two) = (Source::seeded(7), Source::seeded(7));
        for _ in 0..100 {
            let bulk = one.bulk(3);
            assert_eq!(bulk, two.bulk(3));
            let parsed: serde_json::Value = serde_json::from_str(&bulk).unwrap();
            assert_eq!(parsed["docs"].as_array().unwrap().len(), 3);
        }
        let size = one.document().len();
        assert!((150..300).contains(&size), "{size}");
    }
}

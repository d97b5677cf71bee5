//! Random stores: documents with conflicts, tombstones, stemmed histories and attachments, local documents, security,
//! purges, settings, users.

use kv_api::AnyDatabase;
use model::{
    AttachmentEdit, AttachmentSource, BodyFormat, ConflictPolicy, CreateOptions, Documents, Edit, GetOptions,
    KeepReplaced, Layer, OpenRev, OpenRevs, Purge, RevHash, RevHistory, RevId, WriteMode,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::stage::json;

/// A fixed seed, or the one in the environment.
pub(crate) fn seed() -> u64 {
    std::env::var("BACKUP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7)
}

pub(crate) struct Store {
    rng: StdRng,
    layer: Layer<AnyDatabase>,
    databases: Vec<Documents<AnyDatabase>>,
}

impl Store {
    pub(crate) async fn new(seed: u64, layer: Layer<AnyDatabase>) -> Store {
        let packed = CreateOptions { format: Some(BodyFormat::Packed), ..CreateOptions::default() };
        let last = CreateOptions { conflicts: ConflictPolicy::LastWriteWins, ..CreateOptions::default() };
        let keeping = CreateOptions { keep_replaced: Some(KeepReplaced::Revisions(3)), ..CreateOptions::default() };
        let partitioned = CreateOptions { partitioned: true, ..CreateOptions::default() };
        let mut databases = Vec::new();
        for (name, options) in [
            ("_users", CreateOptions::default()),
            ("empty", CreateOptions::default()),
            ("keeping", keeping),
            ("last/write", last),
            ("notes", CreateOptions::default()),
            ("packed", packed),
            ("parts", partitioned),
        ] {
            databases.push(layer.create_database(name, options).await.unwrap());
        }
        layer.configure("admins", "anna", Some("-pbkdf2-xyz")).await.unwrap();
        layer.identity().await.unwrap();
        Store { rng: StdRng::seed_from_u64(seed), layer, databases }
    }

    pub(crate) async fn edit(&mut self, edits: usize) {
        for _ in 0..edits {
            let at = self.rng.random_range(0..self.databases.len());
            let documents = self.databases[at].clone();
            if documents.name() != "empty" {
                self.edit_one(&documents).await;
            }
        }
        let value = self.rng.random_range(0..1_000).to_string();
        self.layer.configure("couchdb", "max_dbs_open", Some(&value)).await.unwrap();
    }

    fn id(&mut self, documents: &Documents<AnyDatabase>) -> String {
        let number = self.rng.random_range(0..40);
        match documents.is_partitioned() {
            true => format!("p{}:{number}", number % 3),
            false if number == 0 => "_design/views".to_owned(),
            false => format!("\u{e4} {number}"),
        }
    }

    fn history(&mut self, positions: u64) -> RevHistory {
        let mut hash = || RevHash::from(std::array::from_fn(|_| self.rng.random::<u8>()));
        RevHistory { position: positions, ids: (0..positions).map(|_| hash()).collect() }
    }

    fn body(&mut self) -> String {
        let number = self.rng.random_range(0..1_000_000);
        match self.rng.random_range(0..8) {
            0 => format!(r#"{{"n":{number},"long":"{}"}}"#, "text \\u00e4 ".repeat(2_000)),
            1 => "{}".to_owned(),
            2 => format!(r#"{{"n":1.0e{},"deep":[[{{"a":null}}]],"\u0000":-0.0}}"#, number % 30),
            _ => format!(r#"{{"n":{number},"text":"x"}}"#),
        }
    }

    async fn leaves(&self, documents: &Documents<AnyDatabase>, id: &str) -> Vec<model::Document> {
        let found = documents.open_revs(id, &OpenRevs::All, &GetOptions { revs: true, ..GetOptions::default() }).await;
        let leaf = |found| match found {
            OpenRev::Found(document) => Some(document),
            OpenRev::Missing(_) => None,
        };
        found.unwrap().into_iter().filter_map(leaf).collect()
    }

    async fn edit_one(&mut self, documents: &Documents<AnyDatabase>) {
        let id = self.id(documents);
        let leaves = self.leaves(documents, &id).await;
        let picked = (!leaves.is_empty()).then(|| leaves[self.rng.random_range(0..leaves.len())].clone());
        let body = self.body();
        match self.rng.random_range(0..20) {
            0..8 => {
                let mut edit = Edit::new(&id, json(&body));
                if let Some(leaf) = leaves.iter().find(|leaf| !leaf.deleted) {
                    edit = edit.over(leaf.rev.clone());
                    edit.keeps_attachments = true;
                }
                if self.rng.random_bool(0.4) {
                    edit.attachments = self.attachments();
                    edit.keeps_attachments = false;
                }
                documents.put(edit).await.unwrap();
            }
            8..10 => {
                if let Some(leaf) = leaves.iter().find(|leaf| !leaf.deleted) {
                    let body = if self.rng.random_bool(0.5) { "{}" } else { r#"{"why":"old"}"# };
                    documents.put(Edit::new(&id, json(body)).over(leaf.rev.clone()).deleting()).await.unwrap();
                }
            }
            10..14 => {
                // A branch beside the others, or from a picked leaf's ancestors.
                let positions = self.rng.random_range(1..40);
                let mut history = self.history(positions);
                if let Some(known) = picked.and_then(|picked| picked.revisions)
                    && self.rng.random_bool(0.5)
                {
                    let more = self.rng.random_range(1..4);
                    let mut ids = self.history(more).ids;
                    let skipped = self.rng.random_range(0..2.min(known.ids.len()));
                    ids.extend(known.ids.iter().skip(skipped).cloned());
                    history = RevHistory { position: known.position - skipped as u64 + more, ids };
                }
                let mut edit = Edit::new(&id, json(&body)).with_history(history);
                edit.deleted = self.rng.random_bool(0.3);
                if !edit.deleted && self.rng.random_bool(0.3) {
                    edit.attachments = self.attachments();
                }
                for result in documents.write(vec![edit], WriteMode::Replicated).await.unwrap() {
                    result.unwrap();
                }
            }
            14..16 => {
                let name = format!("_local/{}", self.rng.random_range(0..5));
                let rev = self.rng.random_range(0..9);
                documents.put_local(&name, Some(rev), json(&body)).await.unwrap();
            }
            16 => {
                let all = self.rng.random_bool(0.5);
                let revs: Vec<RevId> =
                    leaves.iter().take(if all { 9 } else { 1 }).map(|leaf| leaf.rev.clone()).collect();
                for result in documents.purge(&[Purge::new(&id, revs)]).await.unwrap() {
                    result.unwrap();
                }
            }
            17 => {
                let object = format!(r#"{{"members":{{"names":["n{}"],"roles":[]}}}}"#, self.rng.random_range(0..9));
                documents.set_security(json(&object)).await.unwrap();
            }
            18 => {
                documents.set_revs_limit(self.rng.random_range(3..30)).await.unwrap();
                documents.set_deleted_document_ttl(Some("7d")).await.unwrap();
                // More than the purges between two runs: otherwise a database is copied as a whole.
                documents.set_purged_infos_limit(self.rng.random_range(15..40)).await.unwrap();
            }
            _ => {
                let _ = documents.delete_local(&format!("_local/{}", self.rng.random_range(0..5))).await;
            }
        }
    }

    fn attachments(&mut self) -> Vec<AttachmentEdit> {
        let count = self.rng.random_range(1..4);
        let attachment = |at: usize| {
            // Few different contents, so that documents share them.
            let kind = self.rng.random_range(0..40);
            let (content_type, data) = match kind {
                0 => ("application/octet-stream", (0..2_500_000_u32).map(|at| (at % 251) as u8).collect()),
                1 => ("text/plain", Vec::new()),
                2..20 => ("text/plain", format!("text {kind} ").repeat(3_000).into_bytes()),
                _ => ("image/png", vec![kind; 5_000]),
            };
            AttachmentEdit {
                name: format!("a{at} \u{e4}"),
                content_type: content_type.to_owned(),
                revpos: Some(1),
                source: AttachmentSource::Data(data.into()),
            }
        };
        (0..count).map(attachment).collect()
    }
}

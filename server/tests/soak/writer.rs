//! A writer has documents that nobody else edits, so it knows what each answer must say.

use std::sync::Arc;

use fastrand::Rng;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Lie, Run};

/// Documents of a writer. The last one has an attachment, and none of the members that views and indexes read.
pub(crate) const DOCUMENTS: usize = 17;
const FILE: usize = DOCUMENTS - 1;

/// The id of a document, from which a feed reads where it stands.
pub(crate) fn id(writer: usize, document: usize) -> String {
    format!("w{writer:02}-{document:02}")
}

pub(crate) fn generation(rev: &str) -> u32 {
    rev.split_once('-').and_then(|(generation, _)| generation.parse().ok()).unwrap_or_default()
}

/// What a writer knows about a document.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The last acknowledged revision.
    pub(crate) rev: Option<String>,
    pub(crate) is_deleted: bool,
    /// An edit of it was sent and not answered.
    open: bool,
    /// The seed of its attachment, if it is known.
    contents: Option<u64>,
    /// Bytes of its body or attachment.
    pub(crate) bytes: u64,
}

impl Known {
    pub(crate) fn is_live(&self) -> bool {
        self.rev.is_some() && !self.is_deleted
    }
}

pub(crate) struct Writer {
    run: Arc<Run>,
    number: usize,
    database: String,
    documents: Vec<Known>,
    random: Rng,
}

impl Writer {
    pub(crate) fn new(run: Arc<Run>, number: usize, database: String, seed: u64) -> Writer {
        let documents = vec![Known::default(); DOCUMENTS];
        Writer { run, number, database, documents, random: Rng::with_seed(seed) }
    }

    /// Asks and writes until the run stops. What it knows then.
    pub(crate) async fn play(mut self) -> Vec<Known> {
        while !self.run.is_stopping() {
            if self.turn().await.is_none() && !self.look().await {
                break;
            }
        }
        self.documents
    }

    /// One request. `None` if what it did is unknown.
    async fn turn(&mut self) -> Option<()> {
        match self.random.u32(0..100) {
            0..40 => self.put().await,
            40..53 => self.bulk().await,
            53..58 => self.delete().await,
            58..63 => self.attach().await,
            63..68 => self.download().await,
            68..80 => self.read().await,
            80..86 => self.view().await,
            86..91 => self.find().await,
            91..96 => self.list().await,
            96..99 => self.changes().await,
            _ => self.log_in().await,
        }
    }

    fn path(&self, document: usize) -> String {
        format!("/{}/{}", self.database, id(self.number, document))
    }

    /// An edit of a document, which has a new body.
    fn edit(&mut self, document: usize) -> Value {
        let known = &mut self.documents[document];
        known.open = true;
        let length = self.random.usize(50..2_000);
        let filler: String = std::iter::repeat_with(|| self.random.alphanumeric()).take(length).collect();
        known.bytes = filler.len() as u64 + 100;
        let mut edit = json!({"_id": id(self.number, document), "writer": self.number, "filler": filler});
        // An edit that names a tombstone conflicts.
        if let Some(rev) = known.rev.as_ref().filter(|_| !known.is_deleted) {
            edit["_rev"] = json!(rev);
        }
        edit
    }

    /// Notes an acknowledged edit.
    fn acknowledged(&mut self, document: usize, answer: &Value, is_deleted: bool) {
        let Some(rev) = answer["rev"].as_str() else {
            return self.run.problem(format!("an edit of {}: {answer}", self.path(document)));
        };
        let known = &mut self.documents[document];
        (known.rev, known.is_deleted, known.open) = (Some(rev.to_owned()), is_deleted, false);
    }

    async fn put(&mut self) -> Option<()> {
        let document = self.random.usize(0..FILE);
        if self.run.lie == Some(Lie::LostWrite) && self.number == 0 {
            let rev = self.documents[document].rev.as_deref().unwrap_or("0-");
            let rev = format!("{}-0123456789abcdef0123456789abcdef", generation(rev) + 1);
            self.acknowledged(document, &json!({"rev": rev}), false);
            return Some(());
        }
        let edit = self.edit(document);
        let request = self.run.with_json(Method::PUT, &self.path(document), &edit);
        let answer = self.run.ask_json("write", request, &[201]).await?;
        self.acknowledged(document, &answer, false);
        Some(())
    }

    async fn bulk(&mut self) -> Option<()> {
        let documents = self.random.choose_multiple(0..FILE, 8);
        let edits: Vec<Value> = documents.iter().map(|document| self.edit(*document)).collect();
        let request =
            self.run.with_json(Method::POST, &format!("/{}/_bulk_docs", self.database), &json!({"docs": edits}));
        let answers = self.run.ask_json("bulk of 8", request, &[201]).await?;
        for (row, document) in documents.into_iter().enumerate() {
            self.acknowledged(document, &answers[row], false);
        }
        Some(())
    }

    async fn delete(&mut self) -> Option<()> {
        let document = self.random.usize(0..FILE);
        let known = &mut self.documents[document];
        let Some(rev) = known.rev.clone().filter(|_| !known.is_deleted) else { return Some(()) };
        known.open = true;
        let request = self.run.request(Method::DELETE, &format!("{}?rev={rev}", self.path(document)));
        let answer = self.run.ask_json("delete", request, &[200]).await?;
        self.acknowledged(document, &answer, true);
        Some(())
    }

    async fn attach(&mut self) -> Option<()> {
        let seed = self.random.u64(..);
        let bytes = contents(seed);
        let known = &mut self.documents[FILE];
        let at = known.rev.as_ref().map_or_else(String::new, |rev| format!("?rev={rev}"));
        (known.open, known.contents, known.bytes) = (true, None, bytes.len() as u64);
        let request = self.run.request(Method::PUT, &format!("{}/noise{at}", self.path(FILE)));
        let request = request.header("content-type", "application/octet-stream").body(bytes);
        let answer = self.run.ask_json("attach", request, &[201]).await?;
        self.acknowledged(FILE, &answer, false);
        self.documents[FILE].contents = Some(seed);
        Some(())
    }

    async fn download(&mut self) -> Option<()> {
        let Some(seed) = self.documents[FILE].contents else { return Some(()) };
        let request = self.run.request(Method::GET, &format!("{}/noise", self.path(FILE)));
        let (status, body) = self.run.ask("download", request).await?;
        if status != 200 || body != contents(seed) {
            self.run.problem(format!("the attachment of {}: {status}, {} bytes", self.path(FILE), body.len()));
        }
        Some(())
    }

    async fn read(&mut self) -> Option<()> {
        let document = self.random.usize(0..FILE);
        let known = self.documents[document].clone();
        let request = self.run.request(Method::GET, &self.path(document));
        let answer = self.run.ask_json("read", request, &[200, 404]).await?;
        let expected = known.rev.filter(|_| !known.is_deleted);
        if answer["_rev"].as_str() != expected.as_deref() {
            self.run.problem(format!("{} is {answer} and not {expected:?}", self.path(document)));
        }
        Some(())
    }

    /// Its live documents, as `[id, rev]`.
    fn live(&self, until: usize) -> Vec<[String; 2]> {
        let documents = self.documents[..until].iter().enumerate().filter(|(_, known)| known.is_live());
        let known =
            |(document, known): (usize, &Known)| [id(self.number, document), known.rev.clone().unwrap_or_default()];
        documents.map(known).collect()
    }

    async fn view(&mut self) -> Option<()> {
        let path = format!("/{}/_design/soak/_view/writers?group=true&key={}", self.database, self.number);
        let answer = self.run.ask_json("view", self.run.request(Method::GET, &path), &[200]).await?;
        let (found, live) = (answer["rows"][0]["value"].as_u64().unwrap_or_default(), self.live(FILE).len() as u64);
        if found != live {
            self.run.problem(format!("{path}: {found} of {live} documents: {answer}"));
        }
        Some(())
    }

    async fn find(&mut self) -> Option<()> {
        let asked = json!({"selector": {"writer": self.number}, "fields": ["_id", "_rev"], "limit": 1_000});
        let request = self.run.with_json(Method::POST, &format!("/{}/_find", self.database), &asked);
        let answer = self.run.ask_json("find", request, &[200]).await?;
        self.compare("_find", FILE, &answer["docs"], |row| [&row["_id"], &row["_rev"]]);
        Some(())
    }

    async fn list(&mut self) -> Option<()> {
        let (first, last) = (id(self.number, 0), id(self.number, FILE));
        let path = format!("/{}/_all_docs?start_key=%22{first}%22&end_key=%22{last}%22", self.database);
        let answer = self.run.ask_json("list", self.run.request(Method::GET, &path), &[200]).await?;
        self.compare("_all_docs", DOCUMENTS, &answer["rows"], |row| [&row["id"], &row["value"]["rev"]]);
        Some(())
    }

    fn compare(&self, what: &str, until: usize, rows: &Value, of: impl Fn(&Value) -> [&Value; 2]) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut found: Vec<_> = rows.as_array().into_iter().flatten().map(|row| of(row).map(text)).collect();
        found.sort_unstable();
        let live = self.live(until);
        if found != live {
            self.run
                .problem(format!("{what} of writer {} in {}: {found:?} and not {live:?}", self.number, self.database));
        }
    }

    async fn changes(&mut self) -> Option<()> {
        let path = format!("/{}/_changes?descending=true&limit=20&include_docs=true", self.database);
        self.run.ask_json("changes", self.run.request(Method::GET, &path), &[200]).await.map(drop)
    }

    async fn log_in(&mut self) -> Option<()> {
        let asked = json!({"name": "bea", "password": "apple"});
        self.run.ask_json("login", self.run.with_json(Method::POST, "/_session", &asked), &[200]).await.map(drop)
    }

    /// Looks what became of the edits that were not answered, once the server answers again. What was acknowledged must
    /// be there. Returns false if the run has a problem, so nothing is known for sure.
    async fn look(&mut self) -> bool {
        let ids: Vec<String> = (0..DOCUMENTS).map(|document| id(self.number, document)).collect();
        let answer = loop {
            let path = format!("/{}/_all_docs", self.database);
            let request = self.run.with_json(Method::POST, &path, &json!({"keys": ids}));
            match self.run.ask_json("look", request, &[200]).await {
                Some(answer) => break answer,
                None if self.run.problems().is_empty() => {}
                None => return false,
            }
        };
        for (document, id) in ids.into_iter().enumerate() {
            let value = &answer["rows"][document]["value"];
            let found = value["rev"].as_str().map(str::to_owned);
            let known = &mut self.documents[document];
            let at = |rev: &Option<String>| rev.as_deref().map_or(0, generation);
            let is_made = known.open && at(&found) == at(&known.rev) + 1;
            if found != known.rev && !is_made {
                self.run
                    .problem(format!("{id} of {} is {found:?} after {:?} was acknowledged", self.database, known.rev));
            }
            (known.rev, known.is_deleted, known.open) = (found, value["deleted"] == json!(true), false);
        }
        true
    }
}

/// Noise, which nothing compresses.
fn contents(seed: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(seed);
    let length = random.usize(1..100_000);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

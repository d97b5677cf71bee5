//! Checks a repository: every bit of every file, and that each run's objects exist.

use std::collections::{HashMap, HashSet};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::key::checked;
use crate::live::{Live, read_segment, records};
use crate::manifest::{self, Pack};
use crate::pack::{Entry, ObjectId, PackReader, TAIL};
use crate::place::REPOSITORY;
use crate::repository::{Objects, PACKS, RUNNING, RUNS, Repository, name_of};

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of complete runs.
    pub runs: usize,
    /// Number of bases of a shipped store whose tables are there.
    pub bases: usize,
    /// Number of files that were read.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The problems, each after the name of its file.
    pub problems: Vec<(String, String)>,
    /// Packs that no run needs, of a run that failed or is being written. A pruning removes those of failed ones.
    pub unused: usize,
}

impl Repository {
    /// Reads all files. `progress` is called with each file.
    ///
    /// # Errors
    /// Those of the place. Problems of the files are in the result.
    pub async fn verify(&self, progress: &mut (dyn FnMut(&str) + Send)) -> Result<Verified> {
        let mut verified = Verified::default();
        // Opening the repository checked it.
        verified.files += 1;
        verified.bytes += self.read(REPOSITORY).await?.len() as u64;
        for mark in self.list(RUNNING).await? {
            let Ok(file) = self.place.read(&mark.path).await else { continue };
            verified.count(file.len() as u64);
            if checked(&file).is_none() {
                verified.problem(&mark.path, "its bytes are not those that were written");
            }
        }
        let listed = self.list(PACKS).await?;
        let mut sound = HashSet::new();
        for file in &listed {
            progress(&file.path);
            match self.check_pack(&file.path).await {
                Ok(bytes) => {
                    verified.count(bytes as u64);
                    sound.insert(file.path.clone());
                }
                Err(Error::Damaged { file, reason }) => verified.problem(&file, &reason),
                Err(error) => return Err(error),
            }
        }
        let mut needed = HashSet::new();
        let mut counted = HashMap::new();
        for run in self.runs().await? {
            let path = format!("{RUNS}/{run}");
            progress(&path);
            verified.count(self.read(&path).await?.len() as u64);
            match self.check_run(&run, &sound, &mut needed, &mut counted).await {
                Ok(problems) if problems.is_empty() => verified.runs += 1,
                Ok(problems) => verified.problems.extend(problems),
                Err(Error::Damaged { file, reason }) => {
                    verified.problem(&file, &format!("{reason} (needed by the run {run})"));
                }
                Err(error) => return Err(error),
            }
        }
        self.verify_ship(&mut verified, progress).await?;
        verified.unused = listed.iter().filter(|file| !needed.contains(&file.path)).count();
        Ok(verified)
    }

    /// Reads a pack with all its objects.
    async fn check_pack(&self, path: &str) -> Result<usize> {
        let file = self.read(path).await?;
        if ObjectId(Sha256::digest(&file).into()).to_string() != name_of(path) {
            return Err(Error::damaged(path, "its bytes are not those that were written"));
        }
        let cut = || Error::damaged(path, "it is cut off");
        let head = file.get(..PackReader::HEAD).ok_or_else(cut)?;
        let tail = file.len().checked_sub(TAIL).and_then(|at| file.get(at..)).ok_or_else(cut)?;
        let part = |at: u64, bytes: usize| {
            let rest = usize::try_from(at).ok().and_then(|at| file.get(at..));
            rest.and_then(|rest| rest.get(..bytes)).ok_or_else(cut)
        };
        let (at, bytes) = PackReader::index_place(path, tail, file.len() as u64)?;
        let reader = PackReader::new(&self.key, path, head)?;
        for (id, entry) in reader.index(part(at, bytes)?)? {
            if let Entry::Frame { number, at, bytes, raw } = entry {
                reader.object(id, number, raw, part(at, bytes as usize)?)?;
            }
        }
        Ok(file.len())
    }

    /// Checks that a run is complete. Returns the problems.
    async fn check_run(
        &self,
        run: &str,
        sound: &HashSet<String>,
        needed: &mut HashSet<String>,
        counted: &mut HashMap<Vec<ObjectId>, u64>,
    ) -> Result<Vec<(String, String)>> {
        let path = format!("{RUNS}/{run}");
        let manifest = self.manifest(run).await?;
        needed.extend(manifest.packs.iter().map(Pack::path));
        let is_bad = |pack: &&Pack| !sound.contains(&pack.path());
        let bad: Vec<String> = manifest.packs.iter().filter(is_bad).map(Pack::path).collect();
        if !bad.is_empty() {
            let about = |pack| (pack, format!("it is damaged or missing, and the run {run} needs it"));
            return Ok(bad.into_iter().map(about).collect());
        }
        let mut objects = Objects::load(self, &manifest.packs).await?;
        let mut problems = Vec::new();
        for database in &manifest.databases {
            let found = match counted.get(&database.segments) {
                Some(found) => *found,
                None => self.count(&mut objects, database).await?,
            };
            counted.insert(database.segments.clone(), found);
            for block in &database.locals {
                records(&mut objects, *block).await?;
            }
            for list in &database.purges {
                objects.get(*list).await?;
            }
            if found != database.documents && database.damaged.is_empty() {
                let name = &database.name;
                problems.push((
                    path.clone(),
                    format!("{name} should have {} documents, but has {found}", database.documents),
                ));
            }
        }
        Ok(problems)
    }

    /// Reads the documents of a database. Returns their number.
    async fn count(&self, objects: &mut Objects, database: &manifest::Database) -> Result<u64> {
        let mut count = 0;
        let mut live = Live::new(objects, &database.segments).await?;
        while let Some(found) = live.next(objects).await? {
            count += found.len() as u64;
            for record in &found {
                for leaf in &record.leaves {
                    let edit = leaf.edit(&record.id);
                    edit.map_err(|reason| Error::damaged(PACKS, format!("{:?}: {reason}", record.id)))?;
                }
                for content in record.contents() {
                    objects.packs_of([content])?;
                }
            }
        }
        for segment in &database.segments {
            for content in read_segment(objects, *segment).await?.contents {
                objects.packs_of([content])?;
            }
        }
        Ok(count)
    }
}

impl Verified {
    pub(crate) fn count(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }

    pub(crate) fn problem(&mut self, file: &str, reason: &str) {
        self.problems.push((file.to_owned(), reason.to_owned()));
    }
}

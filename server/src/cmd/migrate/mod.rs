//! `couch-layer migrate`: moves the databases of a CouchDB, a Cloudant or a pouchdb-server here.
//!
//! ```text
//!   names ─► for each database, `_users` first
//!              rights and limits ─► replication ─► comparison of all leaves
//!        ─► settings
//! ```
//!
//! The replication is that of [`replicate`], with its checkpoints: the command may be ended at any moment and run
//! again, and copies what is left. Rights come before documents, so that nobody reads these meanwhile.
//!
//! | there | here |
//! |---|---|
//! | a database, with all leaves | the same, with `_security`, `_revs_limit`, `_purged_infos_limit` |
//! | `_users` | the same; documents whose ids exist here with another history are left out |
//! | `_replicator`, `x/_replicator` | `paused_replicator`, `x/paused_replicator`: databases that start nothing |
//! | `_global_changes` and other databases of the system | nothing |
//! | some settings | the same ([`settings`]); the others are named |
//! | administrators | nothing; with `--admins`, those whose names nobody has here |
//! | local documents, such as clients' checkpoints | nothing: they tell of the old server's sequences |

mod compare;
mod old;
mod settings;
mod system;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use model::limits::REVS_LIMITS;
use model::{JsonText, SystemEnvironment, default_security};
use peer::{Address, Filter, Peer, Steady};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use replicate::{Endpoint, Identity, Options};
use tokio::sync::watch;

use self::compare::{Differences, compare, compare_counts, is_design};
use self::old::{Old, OldDatabase};
use self::system::SystemDocuments;
use super::progress::{self, remark};
use super::replicate::shown_by;
use super::source::SourceArgs;
use super::target::{Target, TargetDatabase};
use crate::cmd::{Failure, failure, stop_signal};
use crate::http::{Security, USERS, is_of_replications};

/// Under this name documents of `_replicator` arrive, which start nothing there.
const PAUSED: &str = "paused_replicator";

/// Move databases here from a CouchDB, a Cloudant or a pouchdb-server: all revisions, users, rights, settings
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// The databases; all of the server, and its settings, if none is named
    #[arg(value_name = "DB")]
    databases: Vec<String>,
    /// The old server, as its administrator: `http://USER:PASSWORD@HOST:PORT` or `https://USER:PASSWORD@HOST`. Without
    /// a user in the URL, COUCHDB_FROM_USER and COUCHDB_FROM_PASSWORD are sent if they are set
    #[arg(long, value_name = "URL")]
    from: Address,
    /// Also copy the administrators of the old server, with their passwords. One whose name is an administrator or a
    /// user here is not copied
    #[arg(long, conflicts_with = "databases")]
    admins: bool,
    #[command(flatten)]
    to: SourceArgs,
}

/// Tells when the command is to stop.
type Stop = watch::Receiver<bool>;

async fn stopped(mut stop: Stop) {
    // Without a sender nobody can ask for it any more.
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Migrate {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let old = Old::at(with_its_user(self.from.clone()), self.to.trust()?)?;
        // First what can be refused: nothing is created for it.
        let uuid = old.uuid().await?;
        let names = self.chosen(old.names().await?)?;
        let target = Target::open(&self.to).await?;
        if uuid.is_some() && uuid == target.uuid().await? {
            return Err(failure("the old server is the one that the databases are to move to"));
        }
        let (sender, stop) = watch::channel(false);
        let stopping = stop_signal()?;
        let waiting = tokio::spawn(async move {
            stopping.await;
            let _ = sender.send(true);
        });
        let moved = self.move_all(&old, &target, &names, &stop).await;
        waiting.abort();
        moved
    }

    /// The databases to move: `_users` first, since the others name its users, and replications last.
    fn chosen(&self, known: Vec<String>) -> Result<Vec<String>, Failure> {
        let is_movable = |name: &String| !name.starts_with('_') || name == USERS || is_of_replications(name);
        let mut chosen = match &self.databases[..] {
            [] => {
                let (moved, left): (Vec<_>, Vec<_>) = known.into_iter().partition(is_movable);
                if !left.is_empty() {
                    remark(&format!("these mean nothing here, and are not copied: {}", left.join(", ")));
                }
                moved
            }
            named => {
                for name in named {
                    if !known.contains(name) {
                        return Err(failure(format!("the old server has no database {name}. Nothing was copied")));
                    } else if !is_movable(name) {
                        return Err(failure(format!("{name} means nothing here. Nothing was copied")));
                    }
                }
                named.to_vec()
            }
        };
        chosen.sort_by_key(|name| (name != USERS, is_of_replications(name), name.clone()));
        chosen.dedup();
        // Two of them must not become one.
        let mut taken = BTreeSet::new();
        match chosen.iter().find(|name| !taken.insert(name_here(name))) {
            Some(name) => Err(failure(format!(
                "{name} would become {}, which is another database of the old server: name the databases to move",
                name_here(name)
            ))),
            None => Ok(chosen),
        }
    }

    async fn move_all(&self, old: &Old, target: &Target, names: &[String], stop: &Stop) -> Result<(), Failure> {
        let (mut failed, mut differences) = (Vec::new(), 0);
        for (at, name) in names.iter().enumerate() {
            if *stop.borrow() {
                return Err(interrupted());
            }
            let place = format!("{name} ({} of {})", at + 1, names.len());
            match move_one(old, target, name, &place, stop).await {
                Ok(found) => {
                    found.named.iter().for_each(|sentence| remark(&format!("{name}: {sentence}")));
                    let more = found.count - found.named.len() as u64;
                    if more > 0 {
                        remark(&format!("{name}: and {more} more"));
                    }
                    differences += found.count;
                }
                // The others are moved.
                Err(error) if !*stop.borrow() => {
                    remark(&format!("{name} was not copied completely: {error}"));
                    failed.push(name.as_str());
                }
                Err(error) => return Err(error),
            }
        }
        if self.databases.is_empty() {
            differences += copy_settings(old, target, self.admins).await?;
        }
        match (failed.is_empty(), differences) {
            (true, 0) => Ok(()),
            (true, 1) => Err(failure("there is one difference between the old server and this one")),
            (true, several) => {
                Err(failure(format!("there are {several} differences between the old server and this one")))
            }
            (false, _) => Err(failure(format!("not copied completely: {}; run again", failed.join(", ")))),
        }
    }
}

/// The address of the old server, with the user of its own variables unless it names one. The administrator of the new
/// server, whom `COUCHDB_USER` names, is not the old server's business.
fn with_its_user(address: Address) -> Address {
    match (address.user(), std::env::var("COUCHDB_FROM_USER"), std::env::var("COUCHDB_FROM_PASSWORD")) {
        (None, Ok(user), Ok(password)) => address.with_user(Some((user, password))),
        _ => address,
    }
}

fn interrupted() -> Failure {
    failure("interrupted; run again, it continues from its last checkpoint")
}

/// The name that a database gets.
fn name_here(name: &str) -> String {
    match name.rsplit_once('/') {
        _ if !is_of_replications(name) => name.to_owned(),
        Some((before, _)) => format!("{before}/{PAUSED}"),
        None => PAUSED.to_owned(),
    }
}

/// Moves a database, and returns what differs afterwards.
async fn move_one(old: &Old, target: &Target, name: &str, place: &str, stop: &Stop) -> Result<Differences, Failure> {
    let from = old.database(name).await?;
    let to = target.database(&name_here(name), from.about.partitioned).await?;
    let mut differences = Differences::default();
    let is_new = to.is_new || to.security().await?.is_some_and(|it| it == default_security()) && to.is_empty().await?;
    set_rights(name, &from, &to, is_new, &mut differences).await?;
    set_limits(name, &from, &to, is_new).await?;

    let bar = progress::transfer_bar();
    bar.set_message(place.to_owned());
    let (there, here): (Arc<dyn Peer>, _) = (Arc::new(from.http.clone()), to.peer.clone());
    let system = match name {
        USERS => Some(SystemDocuments::of_users(there.clone(), here.clone())),
        _ if is_of_replications(name) => Some(SystemDocuments::of_replications(there.clone())),
        _ => None,
    };
    let system = system.map(Arc::new);
    let source: Arc<dyn Peer> = match &system {
        Some(system) => system.clone(),
        None => there.clone(),
    };
    let identity = Identity {
        uuid: target.replicator().to_owned(),
        source: Endpoint::Remote(from.address.clone()),
        target: to.end.clone(),
    };
    let replication = replicate::replicate(source.clone(), here.clone(), identity.clone()).with_options(Options {
        checkpoint_interval: Duration::from_secs(5),
        // A user who was left out may be copied by a later run, once the document here is gone.
        use_checkpoints: name != USERS,
        ..Options::default()
    });
    let report = shown_by(&bar, replication, Instant::now()).run_until(stopped(stop.clone())).await;
    let report = report.inspect_err(|_| bar.finish_and_clear())?;
    if *stop.borrow() {
        bar.finish_and_clear();
        return Err(interrupted());
    }

    let is_of_system = system.is_some();
    let left = system.map(|system| system.left()).unwrap_or_default();
    for id in &left {
        differences.add(format!("{id:?} exists here with another history, and stays as it is here"));
    }
    let is_left = |id: &str| left.contains(id) || is_of_system && is_design(id);
    let steady = |peer: Arc<dyn Peer>| Steady::new(peer, Arc::new(SystemEnvironment));
    let copied_again = AtomicU64::new(0);
    let again = async |ids: Vec<String>| {
        // A replication decodes them.
        let encoded = ids.iter().map(|id| utf8_percent_encode(id, NON_ALPHANUMERIC).to_string()).collect();
        let options = Options { filter: Filter::DocIds(encoded), use_checkpoints: false, ..Options::default() };
        let replication = replicate::replicate(source.clone(), here.clone(), identity.clone()).with_options(options);
        let report = replication.run_until(stopped(stop.clone())).await?;
        copied_again.fetch_add(report.figures.docs_written, Ordering::Relaxed);
        Ok(())
    };
    let (there, here_again) = (steady(there), steady(here.clone()));
    bar.set_message(format!("{place}: compared"));
    let shown = |documents| bar.set_position(documents);
    tokio::select! {
        compared = compare(&there, &here_again, is_left, again, &mut differences, shown) => compared?,
        () = stopped(stop.clone()) => {
            bar.finish_and_clear();
            return Err(interrupted());
        }
    }
    if !is_of_system {
        compare_counts(&there, &here_again, &mut differences).await?;
    }
    bar.finish_and_clear();
    let written = report.figures.docs_written + copied_again.into_inner();
    let documents = here_again.info().await?.documents;
    let verdict = if differences.count == 0 { "the same revisions" } else { "not the same revisions" };
    let name_here = name_here(name);
    let name = if name_here == name { name_here } else { format!("{name} as {name_here}") };
    progress::print(&format!("{name}: {documents} documents, {written} revisions written, {verdict}"))?;
    Ok(differences)
}

/// Gives a new database the rights that it has on the old server. Rights of one that exists here stay; if they are
/// other ones, and its documents are not everybody's there, nothing may be copied.
///
/// A new database is for administrators until it gets other rights, also where new ones are everybody's. One without
/// any document that is for administrators may be what a killed run left, so it is new too.
async fn set_rights(
    name: &str,
    from: &OldDatabase,
    to: &TargetDatabase,
    is_new: bool,
    differences: &mut Differences,
) -> Result<(), Failure> {
    let Some(here) = to.security().await? else { return Err(failure("its _security here cannot be read")) };
    let for_administrators = default_security();
    if here != for_administrators && (is_new || is_of_replications(name)) {
        // Documents of replications have passwords, which `_replicator` hides and its copy does not.
        to.set_security(&for_administrators).await?;
    }
    if name == USERS || is_of_replications(name) {
        // The server has its own rules.
        return Ok(());
    }
    let there = match &from.about.security {
        None => Err("the old server does not tell its rights"),
        // Without `members` it would be open to everybody here, which it is not there.
        Some(there) if there.get("cloudant").is_some() || there.get("couchdb_auth_only").is_some() => {
            Err("rights of a Cloudant mean nothing here")
        }
        Some(there) => Ok(there),
    };
    match there {
        Err(why) if is_new || is_same(&here, &for_administrators) => {
            remark(&format!("{name}: {why}; it is for administrators until you set _security"));
        }
        Err(why) if Security::new(here.clone()).is_public() => {
            return Err(failure(format!(
                "{why}, and the database of this name here is everybody's. Set _security of the one here first"
            )));
        }
        // An administrator of this server gave it members.
        Err(_) => {}
        Ok(there) if is_new => {
            if *there != for_administrators {
                to.set_security(there).await?;
            }
        }
        Ok(there) if !is_same(there, &here) && !Security::new(there.clone()).is_public() => {
            return Err(failure(
                "a database of this name exists here, and its _security is not that of the old server. Set it to the \
                 same, or delete the one here"
                    .to_owned(),
            ));
        }
        Ok(there) if !is_same(there, &here) => {
            differences.add("its _security is another one here, and stays".to_owned());
            return Ok(());
        }
        Ok(_) => {}
    }
    if there.is_ok_and(|there| Security::new(there.clone()).is_public()) {
        remark(&format!("{name}: everybody may read and write it, as on the old server"));
    }
    Ok(())
}

/// Gives a new database the limits that it has on the old server, as far as they are possible here. Those of a database
/// that exists here stay.
async fn set_limits(name: &str, from: &OldDatabase, to: &TargetDatabase, is_new: bool) -> Result<(), Failure> {
    if let Some(there) = from.about.revs_limit {
        if is_new {
            to.set_revs_limit(possible_revs_limit(there)).await?;
        }
        let here = to.revs_limit().await?;
        if here != there {
            remark(&format!("{name}: _revs_limit is {there} on the old server, and {here} here"));
        }
    }
    if let Some(there) = from.about.purged_infos_limit {
        if is_new && let Err(error) = to.set_purged_infos_limit(there).await {
            remark(&format!("{name}: _purged_infos_limit was not set: {error}"));
        }
        let here = to.purged_infos_limit().await?;
        if here != there {
            remark(&format!("{name}: _purged_infos_limit is {there} on the old server, and {here} here"));
        }
    }
    Ok(())
}

/// The closest limit that is allowed here: CouchDB has no highest one.
fn possible_revs_limit(there: u64) -> u64 {
    there.clamp(u64::from(*REVS_LIMITS.start()), u64::from(*REVS_LIMITS.end()))
}

/// Whether two `_security` say the same. Servers may keep their members in another order.
fn is_same(one: &JsonText, other: &JsonText) -> bool {
    let read = |text: &JsonText| serde_json::from_slice::<serde_json::Value>(text.as_bytes()).ok();
    one == other || read(one).is_some_and(|one| Some(one) == read(other))
}

/// Copies the settings, and returns the number of those that could not be set.
async fn copy_settings(old: &Old, target: &Target, with_admins: bool) -> Result<u64, Failure> {
    let Some(configuration) = old.configuration().await? else {
        remark("the old server does not show its settings; none was copied");
        return Ok(0);
    };
    let outcome = settings::copy(configuration, target, with_admins).await?;
    if !outcome.set.is_empty() {
        progress::print(&format!("settings: {}", outcome.set.join(", ")))?;
    }
    outcome.left.iter().chain(&outcome.failed).for_each(|sentence| remark(sentence));
    Ok(outcome.failed.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replications_arrive_where_they_start_nothing() {
        for (name, here) in [
            ("_replicator", "paused_replicator"),
            ("team/_replicator", "team/paused_replicator"),
            ("my_replicator", "my_replicator"),
            ("notes", "notes"),
        ] {
            assert_eq!(name_here(name), here);
            assert!(!is_of_replications(&name_here(name)));
        }
    }

    #[test]
    fn a_limit_that_is_too_high_here_becomes_the_highest() {
        assert_eq!([0, 77, 10_000, u64::MAX].map(possible_revs_limit), [1, 77, 4_000, 4_000]);
    }

    #[test]
    fn the_order_of_members_is_not_a_difference() {
        let is_same = |one: &str, other: &str| {
            let text = |text: &str| JsonText::parse(text.as_bytes()).unwrap();
            is_same(&text(one), &text(other))
        };
        let (admins, members) = (r#""admins":{"names":["a"]}"#, r#""members":{"roles":["b"]}"#);
        assert!(is_same(&format!("{{{admins},{members}}}"), &format!("{{{members},{admins}}}")));
        assert!(
            !is_same(&format!("{{{admins}}}"), &format!("{{{members}}}")) && !is_same("{}", &format!("{{{members}}}"))
        );
    }
}

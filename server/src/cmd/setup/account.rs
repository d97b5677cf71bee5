//! What every client needs: a user, a database that is closed to everybody else, and settings.

use std::path::PathBuf;

use clap::Args;
use model::{BulkGet, Edit, JsonText, WriteMode};
use peer::{Address, ErrorKind, Peer, ReadOptions, Revision};
use serde_json::{Value, json};

use super::secret;
use super::wanted::Wanted;
use crate::cmd::progress::{print, remark};
use crate::cmd::source::SourceArgs;
use crate::cmd::target::Target;
use crate::cmd::{Failure, failure};
use crate::http::{ADMINS, Security, USER_PREFIX, USERS, Verifier};
use crate::passphrase;

/// The variable with the user's password.
const PASSWORD_VARIABLE: &str = "COUCH_LAYER_USER_PASSWORD";

/// Options that name the place and the user.
#[derive(Debug, Args)]
pub(super) struct AccountArgs {
    /// The user's name [default: that of the database]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    // From a file, since others could read a command line.
    /// A file with the user's password; a line break at its end is ignored. Without it the password is
    /// COUCH_LAYER_USER_PASSWORD if that is set; else a new user gets a random one
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Give a user who exists another password. Its devices have to be told
    #[arg(long)]
    new_password: bool,
    /// The address at which clients reach the server: https://HOST [default: that of --url]
    #[arg(long, value_name = "URL")]
    public_url: Option<Address>,
    /// Print the outcome as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    place: SourceArgs,
}

/// A user with a database.
pub(super) struct Account {
    /// The server's address for clients, without a slash at its end.
    pub(super) url: String,
    pub(super) database: String,
    /// Whether this run created the database.
    pub(super) is_new: bool,
    pub(super) user: String,
    /// `None` if the user existed, and no password was given.
    pub(super) password: Option<String>,
    /// A sentence for each change.
    done: Vec<String>,
    /// What was right before.
    already: Vec<String>,
}

impl AccountArgs {
    /// Prepares the user, the database and the settings. `is_admin`: whether the user is an administrator of the
    /// database.
    pub(super) async fn prepare(
        &self,
        database: &str,
        is_admin: bool,
        settings: &[(&str, &str, Wanted)],
    ) -> Result<Account, Failure> {
        let user = self.user.clone().unwrap_or_else(|| database.to_owned());
        // Passwords are sent behind the first colon.
        if user.is_empty() || user.contains(':') {
            return Err(failure("the name of a user has at least a letter, and no colon"));
        }
        let (url, given) = (self.public_url()?, self.given_password()?);
        let target = Target::open(&self.place).await?;
        let present = target.configuration().await?.ok_or_else(|| {
            failure(
                "the server shows its settings to administrators only: name one by --url, or by COUCHDB_USER and \
                 COUCHDB_PASSWORD",
            )
        })?;
        if present.contains_key(&(ADMINS.to_owned(), user.clone())) {
            return Err(failure(format!("{user} is an administrator of the server: name another user by --user")));
        }
        let mut account = Account {
            url,
            database: database.to_owned(),
            is_new: false,
            user,
            password: None,
            done: Vec::new(),
            already: Vec::new(),
        };
        let value =
            |section: &str, key: &str| present.get(&(section.to_owned(), key.to_owned())).map(|value| value.trim());
        let is_on = |section, key| value(section, key) == Some("true");
        let is_of_all = |origins: &str| origins.split(',').any(|origin| origin.trim() == "*");
        if value("cors", "origins").is_some_and(is_of_all)
            && !(is_on("chttpd", "enable_cors") && is_on("cors", "credentials"))
        {
            return Err(failure(
                "cors/origins has *, so with cors/credentials every page could send passwords to the server: name the \
                 origins first",
            ));
        }
        account.put_user(&target, given, self.new_password).await?;
        if account.password.is_none() && !target.has(database).await? {
            return Err(failure(format!(
                "the user {} exists: give its password by --password-file, or --new-password for another one",
                account.user
            )));
        }
        for (section, key, wanted) in settings {
            match wanted.change(value(section, key)) {
                Some(changed) => {
                    target.configure(section, key, &changed).await?;
                    account.done.push(format!("setting {section}/{key}: {changed}"));
                }
                None => account.already.push(format!("setting {section}/{key}")),
            }
        }
        // Last, so that a run that failed before is repeated as a whole.
        account.put_database(&target, is_admin).await?;
        Ok(account)
    }

    fn public_url(&self) -> Result<String, Failure> {
        let address = match (&self.public_url, self.place.server()) {
            (Some(address), _) if address.user().is_some() => {
                return Err(failure("--public-url is for everyone: leave out its user"));
            }
            (Some(address), _) => address.to_string(),
            (None, Some(server)) => server.to_string(),
            (None, None) => return Err(failure("clients need an address: name it by --public-url")),
        };
        Ok(address.trim_end_matches('/').to_owned())
    }

    fn given_password(&self) -> Result<Option<String>, Failure> {
        match &self.password_file {
            Some(file) => passphrase::read_text(file).map(Some).map_err(failure),
            None => Ok(std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty())),
        }
    }
}

impl Account {
    /// Creates the user, gives another password, or proves the given one.
    async fn put_user(&mut self, target: &Target, given: Option<String>, is_changed: bool) -> Result<(), Failure> {
        let name = self.user.clone();
        let users = target.database(USERS, false).await?;
        if users.is_new {
            self.done.push(format!("database {USERS}: created"));
        }
        let id = format!("{USER_PREFIX}{name}");
        let present = live(&*users.peer, &id).await?;
        let mut document = json!({"name": name, "type": "user", "roles": []});
        let password = match (&present, given) {
            (Some(user), Some(given)) if !is_changed => {
                if !target.proves(&name, &given, &user.body).await? {
                    return Err(failure(format!("the user {name} has another password; --new-password replaces it")));
                }
                self.already.push(format!("user {name}"));
                self.password = Some(given);
                return Ok(());
            }
            (Some(_), None) if !is_changed => {
                self.already.push(format!("user {name}"));
                return Ok(());
            }
            (_, Some(given)) => given,
            (_, None) => secret::random()?,
        };
        if let Some(user) = &present {
            document = serde_json::from_slice(user.body.as_bytes())?;
            let members = document.as_object_mut().ok_or_else(|| failure(format!("{id} is not an object")))?;
            members.retain(|member, _| !Verifier::MEMBERS.contains(&member.as_str()));
            members.insert("_rev".to_owned(), user.rev.to_string().into());
        }
        document["_id"] = id.as_str().into();
        document["password"] = password.as_str().into();
        let edit = Edit::from_json(Some(&id), &text(&document)?, WriteMode::Interactive)?;
        let written = users.peer.write(vec![edit], WriteMode::Interactive).await?;
        if let Some(Err(error)) = written.into_iter().next() {
            return Err(failure(format!("the user {name} was not stored: {error}")));
        }
        let what = if present.is_some() { "has another password" } else { "created" };
        self.done.push(format!("user {name}: {what}"));
        self.password = Some(password);
        Ok(())
    }

    /// Creates the database, and gives the user its rights.
    async fn put_database(&mut self, target: &Target, is_admin: bool) -> Result<(), Failure> {
        let database = target.database(&self.database, false).await?;
        self.is_new = database.is_new;
        match database.is_new {
            true => self.done.push(format!("database {}: created", self.database)),
            false => self.already.push(format!("database {}", self.database)),
        }
        let stored = database.security().await?.unwrap_or_else(JsonText::empty_object);
        let mut security: Value = serde_json::from_slice(stored.as_bytes())?;
        if !database.is_new && Security::new(stored).is_public() && !database.is_empty().await? {
            return Err(failure(format!(
                "everyone may use the database {}, and a first member would close it to the others: name its members \
                 first",
                self.database
            )));
        }
        let mut is_changed = add_name(&mut security, "members", &self.user)?;
        if is_admin {
            is_changed |= add_name(&mut security, "admins", &self.user)?;
        }
        let right = if is_admin { "member and administrator" } else { "member" };
        match is_changed {
            true => {
                database.set_security(&text(&security)?).await?;
                self.done.push(format!("user {}: {right} of {}", self.user, self.database));
            }
            false => self.already.push(format!("user {} as {right} of {}", self.user, self.database)),
        }
        Ok(())
    }

    /// Whether the address is of no use beyond this machine.
    pub(super) fn is_loopback(&self) -> bool {
        peer::is_loopback(&self.url)
    }

    /// Prints what was done, and what was right before, for a person.
    pub(super) fn print(&self) -> Result<(), Failure> {
        for sentence in &self.done {
            print(sentence)?;
        }
        if !self.already.is_empty() {
            print(&format!("already so: {}", self.already.join(", ")))?;
        }
        if self.password.is_none() {
            remark(&format!(
                "the password of {} is not known here: give it by --password-file, or --new-password for another one",
                self.user
            ));
        }
        Ok(())
    }

    /// The same for a program.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "url": self.url, "database": self.database, "user": self.user, "password": self.password,
            "done": self.done, "already": self.already,
        })
    }
}

/// The live document with this id. `None` if it was deleted, or if there is none.
async fn live(peer: &dyn Peer, id: &str) -> Result<Option<Revision>, Failure> {
    let wanted = [BulkGet { id: id.to_owned(), rev: None }];
    let leaves = match peer.read(&wanted, ReadOptions::default()).await?.pop() {
        Some(Err(error)) if error.kind() == ErrorKind::NoDatabase => Vec::new(),
        Some(leaves) => leaves?,
        None => Vec::new(),
    };
    let mut live = leaves.into_iter().filter(|leaf| !leaf.deleted);
    match (live.next(), live.next()) {
        (_, Some(_)) => Err(failure(format!("the document {id} is in conflict: remove all leaves but one first"))),
        (found, None) => Ok(found),
    }
}

/// Adds a name to `members` or `admins` of a security object. Returns whether it was missing.
fn add_name(security: &mut Value, of: &str, name: &str) -> Result<bool, Failure> {
    let wrong = || failure("the security object of the database is not one");
    let groups = security.as_object_mut().ok_or_else(wrong)?;
    // Members would hide the readers.
    let readers = if of == "members" && !groups.contains_key(of) { groups.remove("readers") } else { None };
    let part = groups.entry(of).or_insert_with(|| readers.unwrap_or_else(|| json!({})));
    let names = part.as_object_mut().ok_or_else(wrong)?.entry("names").or_insert_with(|| json!([]));
    let names = names.as_array_mut().ok_or_else(wrong)?;
    let is_missing = !names.iter().any(|known| known == name);
    if is_missing {
        names.push(name.into());
    }
    Ok(is_missing)
}

fn text(value: &Value) -> Result<JsonText, Failure> {
    JsonText::parse(value.to_string().as_bytes()).map_err(|error| failure(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_added_to_the_rights_that_are_there() {
        let mut security =
            json!({"admins": {"roles": ["_admin"]}, "members": {"names": ["anna"], "roles": ["_admin"]}});
        assert!(add_name(&mut security, "members", "bert").unwrap());
        assert!(!add_name(&mut security, "members", "bert").unwrap());
        assert!(add_name(&mut security, "admins", "bert").unwrap());
        let expected = json!({
            "admins": {"roles": ["_admin"], "names": ["bert"]},
            "members": {"names": ["anna", "bert"], "roles": ["_admin"]},
        });
        assert_eq!(security, expected);
        let mut earlier = json!({"readers": {"names": ["anna"]}});
        assert!(add_name(&mut earlier, "members", "bert").unwrap());
        assert_eq!(earlier, json!({"members": {"names": ["anna", "bert"]}}), "anna is one still");
        for wrong in [json!([]), json!({"members": []}), json!({"members": {"names": "anna"}})] {
            assert!(add_name(&mut wrong.clone(), "members", "bert").is_err(), "{wrong}");
        }
    }
}

//! The interface that the suite needs from an engine: a database for each scenario, and a way to move its time.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kv_api::{AnyDatabase, Database, Prefixed};

use crate::Missing;

/// Opens databases of one engine, or of a wrapper around one, for the suite.
///
/// ```
/// use conformance::{Fixture, Harness};
/// # use kv_api::Database;
/// # fn open_somewhere<D: Database>() -> D { unimplemented!() }
/// # struct Mine<D>(std::marker::PhantomData<fn() -> D>);
/// # impl<D: Database> Harness for Mine<D> {
/// type Database = D; // the engine's
///
/// fn engine(&self) -> String {
///     "mine".into()
/// }
///
/// fn open(&self, _scenario: &str) -> Fixture<D> {
///     Fixture::new(open_somewhere())
/// }
/// # }
/// ```
pub trait Harness: Send + Sync + 'static {
    /// Type of the databases.
    type Database: Database;

    /// Name of the engine, for reports.
    fn engine(&self) -> String;

    /// Something that the engine needs and this machine lacks. The suite is then skipped, with a message.
    fn missing(&self) -> Option<Missing> {
        None
    }

    /// A database in which the fixture's subspace is empty and used by nobody else.
    fn open(&self, scenario: &str) -> Fixture<Self::Database>;
}

/// Whether other clients may have keys in a fixture's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keyspace {
    /// No: the scenario has the database for itself.
    Own,
    /// Yes, outside the fixture's subspace: a cluster.
    Shared,
}

/// Moves an engine's time forward, so that a test of the read window need not wait five seconds.
pub type Clock = Arc<dyn Fn(Duration) + Send + Sync>;

/// A database opened for one scenario.
pub struct Fixture<D> {
    pub(crate) database: D,
    pub(crate) subspace: Bytes,
    pub(crate) keyspace: Keyspace,
    pub(crate) clock: Option<Clock>,
    pub(crate) keep: Vec<Box<dyn Any + Send + Sync>>,
}

impl<D: Database> Fixture<D> {
    /// A database of the scenario's own.
    pub fn new(database: D) -> Self {
        let subspace = Bytes::from_static(b"suite/");
        Fixture { database, subspace, keyspace: Keyspace::Own, clock: None, keep: Vec::new() }
    }

    /// The database is shared with others, who keep out of this subspace.
    #[must_use]
    pub fn shared(mut self, subspace: impl Into<Bytes>) -> Self {
        self.subspace = subspace.into();
        self.keyspace = Keyspace::Shared;
        self
    }

    /// The engine's time is moved by `clock`. Without it, the suite waits.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Keeps a value alive as long as the database is used, for example its folder.
    #[must_use]
    pub fn keep(mut self, guard: impl Any + Send + Sync) -> Self {
        self.keep.push(Box::new(guard));
        self
    }

    /// The database. In a shared keyspace, only keys under the subspace belong to the fixture.
    pub fn database(&self) -> &D {
        &self.database
    }

    /// The same fixture with a keyspace of its own: a shared database is seen through the subspace. For code that
    /// knows nothing of subspaces and expects a whole database.
    #[must_use]
    pub fn alone(self) -> Fixture<AnyDatabase> {
        match self.keyspace {
            Keyspace::Own => self.map(AnyDatabase::new),
            Keyspace::Shared => {
                let subspace = self.subspace.clone();
                let mut fixture = self.map(|database| AnyDatabase::new(Prefixed::new(database, subspace)));
                fixture.keyspace = Keyspace::Own;
                fixture
            }
        }
    }

    /// Lets time pass: on the harness's clock if it has one, else by waiting. Needs a tokio runtime with timers.
    pub async fn pass(&self, time: Duration) {
        pass(self.clock.as_ref(), time).await;
    }

    /// The same fixture with a wrapper around its database.
    pub fn map<E: Database>(self, wrap: impl FnOnce(D) -> E) -> Fixture<E> {
        Fixture {
            database: wrap(self.database),
            subspace: self.subspace,
            keyspace: self.keyspace,
            clock: self.clock,
            keep: self.keep,
        }
    }
}

impl<D> fmt::Debug for Fixture<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture").field("subspace", &self.subspace).field("keyspace", &self.keyspace).finish()
    }
}

pub(crate) async fn pass(clock: Option<&Clock>, time: Duration) {
    match clock {
        Some(clock) => clock(time),
        None => tokio::time::sleep(time).await,
    }
}

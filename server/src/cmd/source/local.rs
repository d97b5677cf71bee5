//! A database in a data folder that this process opens.
use super::{Checked, IfNoDatabase, NewDocument, Page, Rows, failure};
use crate::cli::Failure;
use crate::engine::{EngineUrl, IfMissing};
#[derive(Clone)]
pub(crate) struct Local;
impl Local {
    pub(super) async fn open(_: &EngineUrl, _: IfMissing, _: &str, _: IfNoDatabase) -> Result<Self, Failure> {
        Err(failure("todo"))
    }
    pub(super) async fn write(&self, _: Vec<NewDocument>) -> Result<Vec<Option<String>>, Failure> {
        Err(failure("todo"))
    }
    pub(super) async fn count(&self) -> Result<u64, Failure> {
        Err(failure("todo"))
    }
    pub(super) async fn page(&self, _: Option<&str>, _: u64) -> Result<Page, Failure> {
        Err(failure("todo"))
    }
    pub(super) async fn changes(&self, _: &str) -> Result<Rows, Failure> {
        Err(failure("todo"))
    }
    pub(super) async fn next_changes(&self, _: &str) -> Result<Rows, Failure> {
        Err(failure("todo"))
    }
    pub(super) async fn check(&self, _: impl FnMut(u64) + Send) -> Result<Checked, Failure> {
        Err(failure("todo"))
    }
}

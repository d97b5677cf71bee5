//! Checks view groups: rows against id rows, id rows against documents, and nodes against rows.
//! [`Documents::check_views`], which has the functions, also checks that the rows are those that the map functions
//! emit.

use kv_api::Database;

use super::report::CheckReport;
use crate::documents::Documents;
use crate::error::{Result, alone};

impl<D: Database> Documents<D> {
    /// Checks every group. A group that is updated meanwhile is left out.
    pub(super) async fn check_view_groups(&self, report: &mut CheckReport) -> Result<()> {
        match alone(self.view_groups().await)? {
            Err(error) => report.add(None, format!("a view group cannot be read: {}", error.reason())),
            Ok(groups) => {
                for group in groups {
                    let wrong = alone(self.wrong_view_rows(&group.signature).await)?;
                    for what in wrong.unwrap_or_else(|error| vec![error.reason().to_string()]) {
                        report.add(None, format!("the views of {:?}: {what}", group.name));
                    }
                }
                match alone(self.headless_view_groups().await)? {
                    Err(error) => report.add(None, format!("rows of views cannot be read: {}", error.reason())),
                    Ok(numbers) => {
                        for number in numbers {
                            report.add(None, format!("view group {number} has rows but no head"));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

//! Filter functions of the feed.

use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;
use crate::http::error::{ApiError, Result};
use crate::http::functions::request::{replication_object, request_object};
use crate::http::functions::{self, FilterFunction};
use crate::http::request::Request;

/// The name of a filter in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    design_id: String,
    name: String,
    by_view: bool,
}

impl Named {
    /// The value of `filter`, `DESIGN/NAME`, or of `view` with `filter=_view`.
    pub(crate) fn parse(value: &str, by_view: bool) -> Result<Named> {
        let parts: Vec<&str> = value.split('/').filter(|part| !part.is_empty()).collect();
        match parts[..] {
            [design, name] => Ok(Named { design_id: format!("_design/{design}"), name: name.to_owned(), by_view }),
            _ if by_view => Err(ApiError::bad_request("`view` must be of the form `designname/viewname`")),
            _ => Err(ApiError::bad_request("`filter` must be of the form `designname/filtername`")),
        }
    }

    /// Reads the design document. A feed keeps the function that it started with.
    pub(crate) async fn open(&self, request: &Request, db: &str, body: Option<&str>) -> Result<FilterFunction> {
        let group = if self.by_view { "views" } else { "filters" };
        let open = |database: Documents| async move {
            let design = functions::design(&database, &self.design_id, [group, &self.name]).await?;
            let request = match self.by_view {
                true => None,
                false => Some(request_object(request, &database, &[db, "_changes"], None, body).await?.into()),
            };
            Ok(FilterFunction { design, name: self.name.clone(), request })
        };
        request.with_database(db, open).await
    }

    /// The same for a replication whose source is this database. Its parameters are the function's `query`.
    pub(crate) async fn of_replication(
        &self,
        database: &Documents,
        principal: &Principal,
        params: &[(String, String)],
    ) -> Result<FilterFunction> {
        let design = functions::design(database, &self.design_id, ["filters", &self.name]).await?;
        let request = replication_object(database, principal, params).await?;
        Ok(FilterFunction { design, name: self.name.clone(), request: Some(request.into()) })
    }
}

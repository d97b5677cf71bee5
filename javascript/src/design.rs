//! Filters, validation and updates.

use crate::{
    Error, ErrorKind, Sandbox,
    sandbox::{Input, json_of, too_much},
    state::{Purpose, seed},
    views::id_of,
};

/// The refusal that a `validate_doc_update` function throws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `throw({forbidden: …})`, with the reason as JSON text.
    Forbidden(String),
    /// `throw({unauthorized: …})`, with the reason as JSON text.
    Unauthorized(String),
    /// The function failed.
    Failed(Error),
}

/// The arguments of a `validate_doc_update` function, each as JSON text.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'e> {
    /// The new document, with `_id`, `_rev` and `_revisions`.
    pub new: &'e str,
    /// The document that it replaces, or `null`.
    pub old: &'e str,
    /// The user's context.
    pub user: &'e str,
    /// The database's security object.
    pub security: &'e str,
}

impl Sandbox {
    /// Whether the filter function `filters/NAME` lets a document pass. Any value that is true in JavaScript means yes.
    ///
    /// # Errors
    /// The error of the function.
    pub fn filter(&mut self, name: &str, document: &str, request: &str) -> Result<bool, Error> {
        // A filter may change its document. A map function may not, since it shares its document with others.
        let inputs = [Input::Json(document), Input::Json(request)];
        let outcome = self.call(&["filters", name], Purpose::Any, &inputs, |_, value| value.get::<Truth>());
        outcome.map(|outcome| outcome.value.0).map_err(|error| error.at(id_of(document)))
    }

    /// Whether the map function of a view emits anything for a document: the view as a filter.
    ///
    /// # Errors
    /// The error of the function.
    pub fn filter_by_view(&mut self, view: &str, document: &str) -> Result<bool, Error> {
        let parsed = self.parse("document", document)?;
        let inputs = [Input::Parsed(&parsed)];
        let outcome = self.call(&["views", view, "map"], Purpose::View(seed(document)), &inputs, |_, _| Ok(()));
        outcome.map(|outcome| outcome.emitted).map_err(|error| error.at(id_of(document)))
    }

    /// Runs `validate_doc_update`.
    ///
    /// # Errors
    /// The value that it throws.
    pub fn validate(&mut self, edit: Edit<'_>) -> Result<(), Refusal> {
        let inputs = [Input::Json(edit.new), Input::Json(edit.old), Input::Json(edit.user), Input::Json(edit.security)];
        let outcome = self.call(&["validate_doc_update"], Purpose::Any, &inputs, |_, _| Ok(()));
        let Err(error) = outcome else { return Ok(()) };
        if error.kind() == ErrorKind::Thrown
            && let Some(thrown) = error.thrown()
            && let Ok(thrown) = json::JsonText::parse(thrown.as_bytes())
        {
            if let Some(reason) = thrown.get("forbidden") {
                return Err(Refusal::Forbidden(reason.text().to_owned()));
            }
            if let Some(reason) = thrown.get("unauthorized") {
                return Err(Refusal::Unauthorized(reason.text().to_owned()));
            }
        }
        Err(Refusal::Failed(error.at(id_of(edit.new))))
    }

    /// Calls the function `updates/NAME` with a document, or `null`, and a request. Returns its result as JSON text: a
    /// list of a document, or `null`, and a response.
    ///
    /// # Errors
    /// The error of the function.
    pub fn update(&mut self, name: &str, document: &str, request: &str) -> Result<String, Error> {
        let inputs = [Input::Json(document), Input::Json(request)];
        let outcome = self.call(&["updates", name], Purpose::Any, &inputs, json_of);
        let text = outcome.map(|outcome| outcome.value).map_err(|error| error.at(id_of(document)))?;
        if text.len() > self.state.limits.output {
            return Err(too_much(&format!("updates/{name}"), &self.state.limits));
        }
        Ok(text)
    }
}

/// The truth of a value as a condition.
struct Truth(bool);

impl<'js> rquickjs::FromJs<'js> for Truth {
    fn from_js(_: &rquickjs::Ctx<'js>, value: rquickjs::Value<'js>) -> rquickjs::Result<Truth> {
        let falsy = match value.type_of() {
            rquickjs::Type::Undefined | rquickjs::Type::Null | rquickjs::Type::Uninitialized => true,
            rquickjs::Type::Bool => value.as_bool() == Some(false),
            rquickjs::Type::Int | rquickjs::Type::Float => {
                value.as_number().is_none_or(|number| number == 0.0 || number.is_nan())
            }
            rquickjs::Type::String => {
                value.as_string().is_some_and(|text| text.to_string().is_ok_and(|text| text.is_empty()))
            }
            _ => false,
        };
        Ok(Truth(!falsy))
    }
}

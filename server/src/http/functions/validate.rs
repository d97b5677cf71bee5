//! Asks `validate_doc_update` functions on behalf of a client.

use std::sync::Arc;

use model::{Question, Validator, Verdict};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;
use crate::http::functions::Functions;

/// The threads of a command's functions.
pub(crate) const THREADS: usize = 2;

/// A client of a database, and the threads that run functions for it. A build without JavaScript runs no function, and
/// the database refuses edits that need one.
#[cfg_attr(not(feature = "javascript"), expect(dead_code, reason = "only functions need the rest"))]
pub(crate) struct OnBehalf {
    pub(crate) principal: Principal,
    functions: Arc<Functions>,
    /// For looking up the roles of users, if the client may be one.
    app: Option<Arc<App>>,
    db: String,
    /// The id of the database's instance.
    id: [u8; 16],
    /// Whether the database is partitioned.
    in_partitioned: bool,
}

impl OnBehalf {
    pub(crate) fn new(
        functions: &Arc<Functions>,
        principal: &Principal,
        app: Option<&Arc<App>>,
        database: &Documents,
    ) -> OnBehalf {
        OnBehalf {
            principal: principal.clone(),
            functions: functions.clone(),
            app: app.cloned(),
            db: database.name().to_owned(),
            id: database.instance_id(),
            in_partitioned: database.is_partitioned(),
        }
    }
}

#[cfg(not(feature = "javascript"))]
impl Validator for OnBehalf {
    fn ask(&self, _: Question) -> Verdict<'_> {
        Box::pin(std::future::ready(Err(model::ErrorKind::NotValidated.into())))
    }
}

#[cfg(feature = "javascript")]
impl Validator for OnBehalf {
    fn ask(&self, question: Question) -> Verdict<'_> {
        Box::pin(running::ask(self, question))
    }

    /// As CouchDB refuses views that do not compile. CouchDB stores such a function, and then refuses every document.
    fn admit(&self, design: model::JsonText) -> Verdict<'_> {
        Box::pin(running::admit(&self.functions, self.id, self.in_partitioned, design))
    }
}

#[cfg(feature = "javascript")]
mod running {
    use std::borrow::Cow;

    use javascript::{Edit, ErrorKind as Kind, Refusal, Sandbox};
    use model::{ErrorKind, JsonRef, JsonText, JsonWriter, OPTIONS, Question, Result, VALIDATE};

    use super::OnBehalf;
    use crate::http::authn::users;
    use crate::http::functions::view_group::builtin;
    use crate::http::functions::{Functions, design_of, named};

    const JAVASCRIPT: &str = "javascript";
    const QUERY: &str = "query";

    pub(super) async fn ask(client: &OnBehalf, question: Question) -> Result<()> {
        let principal = match &client.app {
            Some(app) => users::with_stored_roles(&app.databases, &client.principal)
                .await
                .map_err(|error| failed(&text_of(&question.design, "_id"), "internal_server_error", error.reason()))?,
            None => Cow::Borrowed(&client.principal),
        };
        let mut user = Vec::new();
        principal.write_user(&mut JsonWriter::new(&mut user), &client.db);
        // The writer's output is always UTF-8.
        let user = String::from_utf8(user).unwrap_or_default();
        let (functions, database) = (&client.functions, client.id);
        let Question { design, new, old, security } = question;
        let (id, language) = (text_of(&design, "_id"), language(&design));
        if language != JAVASCRIPT {
            return Err(failed(&id, "unknown_query_language", &language));
        }
        let ran = functions.pool.run(&design_of(database, &design), move |sandbox: &mut Sandbox| {
            let old = old.as_ref().map_or("null", |old| old.as_str());
            sandbox.validate(Edit { new: new.as_str(), old, user: &user, security: security.as_str() })
        });
        match ran.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Refusal::Forbidden(reason))) => Err(refusal(false, &reason).into()),
            Ok(Err(Refusal::Unauthorized(reason))) => Err(refusal(true, &reason).into()),
            // The function was not called.
            Ok(Err(Refusal::Failed(error))) if error.kind() == Kind::Input => {
                let reason = format!("{id}: {error}");
                Err(ErrorKind::ValidationFailed { status: 413, error: "document_too_large".into(), reason }.into())
            }
            Ok(Err(Refusal::Failed(error))) | Err(error) => Err(match named(&error) {
                Some((status, error, reason)) => {
                    ErrorKind::ValidationFailed { status: status.as_u16(), error: error.into(), reason }.into()
                }
                None => failed(&id, name_of(&error), &error.to_string()),
            }),
        }
    }

    pub(super) async fn admit(
        functions: &Functions,
        database: [u8; 16],
        in_partitioned: bool,
        design: JsonText,
    ) -> Result<()> {
        let refused = |error, reason: String| Err(ErrorKind::BadDesign { error, reason }.into());
        if let Err(reason) = check_fields(&design, in_partitioned) {
            return refused("invalid_design_doc", reason);
        }
        let language = language(&design);
        if language != JAVASCRIPT {
            return match design.get(VALIDATE) {
                None => Ok(()),
                // Selectors are matched by the database itself.
                Some(_) if language == QUERY => Ok(()),
                Some(_) => {
                    let reason = format!("`{VALIDATE}` in the language {language:?} cannot be run");
                    refused("invalid_design_doc", reason)
                }
            };
        }
        let mut paths: Vec<Vec<String>> = Vec::new();
        for (name, view) in design.get("views").into_iter().flat_map(JsonRef::members) {
            if name == "lib" {
                continue;
            }
            let path = |function: &str| vec!["views".to_owned(), name.to_string(), function.to_owned()];
            paths.push(path("map"));
            match view.get("reduce").and_then(JsonRef::as_str) {
                Some(reduce) if reduce.starts_with('_') => {
                    if let Err(reason) = builtin(&reduce) {
                        return refused("invalid_design_doc", reason);
                    }
                }
                Some(_) => paths.push(path("reduce")),
                None => {}
            }
        }
        if design.get(VALIDATE).is_some() {
            paths.push(vec![VALIDATE.to_owned()]);
        }
        if paths.is_empty() {
            return Ok(());
        }
        let id = text_of(&design, "_id");
        let Err(error) = functions.pool.compile(&design_of(database, &design), paths).await else { return Ok(()) };
        // All other errors are the source's fault, such as nesting that is too deep.
        if error.kind() == Kind::Engine {
            return Err(failed(&id, name_of(&error), &error.to_string()));
        }
        let reason = match error.function().rsplit_once('/') {
            Some((view, kind)) => {
                let view = view.strip_prefix("views/").unwrap_or(view);
                format!("Compilation of the {kind} function in the '{view}' view failed: {}", error.reason())
            }
            None => error.to_string(),
        };
        refused("compilation_error", reason)
    }

    /// The types that a field may have.
    type Types = &'static [&'static str];

    const STRING: Types = &["string"];
    const OBJECT: Types = &["object"];
    const BOOLEAN: Types = &["boolean"];
    const STRING_OR_OBJECT: Types = &["string", "object"];
    const ARRAY_OR_STRING: Types = &["array", "string"];

    fn has_type(value: JsonRef<'_>, name: &str) -> bool {
        match name {
            "string" => value.as_str().is_some(),
            "object" => value.is_object(),
            "array" => value.is_array(),
            _ => value.as_bool().is_some(),
        }
    }

    /// Checks the fields of design documents like `validate_ddoc_fields` in CouchDB's `couch_mrview.erl`, in its order.
    /// `*` is any name.
    fn check_fields(design: &JsonText, in_partitioned: bool) -> std::result::Result<(), String> {
        // Where a function is text, a definition or a selector is an object.
        let function = if language(design) == QUERY { OBJECT } else { STRING };
        let fields: [(&[&str], &[Types]); 14] = [
            (&["filters", "*"], &[OBJECT, STRING_OR_OBJECT]),
            (&["language"], &[STRING]),
            (&["lists", "*"], &[OBJECT, STRING_OR_OBJECT]),
            (&[OPTIONS, "include_design"], &[OBJECT, BOOLEAN]),
            (&[OPTIONS, "local_seq"], &[OBJECT, BOOLEAN]),
            (&[OPTIONS, "partitioned"], &[OBJECT, BOOLEAN]),
            (&["rewrites"], &[ARRAY_OR_STRING]),
            (&["shows", "*"], &[OBJECT, STRING_OR_OBJECT]),
            (&["updates", "*"], &[OBJECT, STRING_OR_OBJECT]),
            (&[VALIDATE], &[function]),
            (&["views", "lib"], &[OBJECT, OBJECT]),
            (&["views", "*", "map"], &[OBJECT, OBJECT, function]),
            (&["views", "*", "reduce"], &[OBJECT, OBJECT, STRING]),
            // CouchDB crashes on these.
            (&["views", "*", OPTIONS], &[OBJECT, OBJECT, OBJECT]),
        ];
        for (path, types) in fields {
            check_field(design.root(), path, types, "")?;
        }
        for (name, view) in design.get("views").into_iter().flat_map(JsonRef::members) {
            if name != "lib" && view.get("map").is_none() {
                return Err(format!("View `{name}` must contain map function"));
            }
        }
        let partitioned = design.get(OPTIONS).and_then(|options| options.get("partitioned"));
        if !in_partitioned && partitioned.and_then(JsonRef::as_bool) == Some(true) {
            return Err("partitioned option cannot be true in a non-partitioned database.".to_owned());
        }
        Ok(())
    }

    /// Checks the members of `value` that a path names, and theirs in turn, if they exist. `place`: where
    /// it is.
    fn check_field(value: JsonRef<'_>, path: &[&str], types: &[Types], place: &str) -> std::result::Result<(), String> {
        let (Some((name, path)), Some((allowed, types))) = (path.split_first(), types.split_first()) else {
            return Ok(());
        };
        for (member, inner) in value.members() {
            if *name != "*" && member != *name {
                continue;
            }
            let place = format!("{place}{member}");
            if !allowed.iter().any(|name| has_type(inner, name)) {
                return Err(format!("`{place}` field must have {} type", allowed.join(" or ")));
            }
            check_field(inner, path, types, &format!("{place}."))?;
        }
        Ok(())
    }

    fn text_of(design: &JsonText, member: &str) -> String {
        design.get(member).and_then(JsonRef::as_str).map(|text| text.into_owned()).unwrap_or_default()
    }

    fn language(design: &JsonText) -> String {
        match design.get("language") {
            Some(language) => language.str_or_text().into_owned(),
            None => JAVASCRIPT.to_owned(),
        }
    }

    /// The refusal of a function, with its reason as JSON: text becomes a string, and other values are kept.
    fn refusal(unauthorized: bool, reason: &str) -> ErrorKind {
        let text = |text: String| if unauthorized { ErrorKind::Unauthorized(text) } else { ErrorKind::Forbidden(text) };
        match JsonText::parse(reason.as_bytes()) {
            Ok(reason) => match reason.root().as_str() {
                Some(reason) => text(reason.into_owned()),
                None => ErrorKind::RefusedWith { unauthorized, reason },
            },
            Err(_) => text(reason.to_owned()),
        }
    }

    /// Refuses the edit, whatever failed. The reason names the design document.
    fn failed(design_id: &str, error: &'static str, reason: &str) -> model::Error {
        let reason = format!("{design_id}: {reason}");
        ErrorKind::ValidationFailed { status: 500, error: error.into(), reason }.into()
    }

    fn name_of(error: &javascript::Error) -> &'static str {
        const KNOWN: [&str; 7] =
            ["Error", "EvalError", "RangeError", "ReferenceError", "SyntaxError", "TypeError", "URIError"];
        match error.kind() {
            Kind::Compilation => "compilation_error",
            Kind::Missing | Kind::Thrown => {
                let known = |name: &str| KNOWN.into_iter().find(|known| *known == name);
                error.name().and_then(known).unwrap_or("unknown_error")
            }
            // CouchDB's process for functions ends in this case.
            _ => "os_process_error",
        }
    }
}

//! Asks `validate_doc_update` functions on behalf of a client.

use std::sync::Arc;

use kv_api::AnyDatabase;
use model::Documents;

use crate::http::access::principal::Principal;
use crate::http::functions::Functions;

/// The threads of a command's functions.
pub(crate) const THREADS: usize = 2;

/// A database whose edits are validated by its design documents, on behalf of this client. A build without JavaScript runs
/// no function, and the database refuses such edits.
#[cfg(not(feature = "javascript"))]
pub(crate) fn on_behalf(database: Documents<AnyDatabase>, _: &Arc<Functions>, _: &Principal) -> Documents<AnyDatabase> {
    database
}

/// A database whose edits are validated by its design documents, on behalf of this client.
#[cfg(feature = "javascript")]
pub(crate) fn on_behalf(
    database: Documents<AnyDatabase>,
    functions: &Arc<Functions>,
    principal: &Principal,
) -> Documents<AnyDatabase> {
    let (db, principal) = (database.name().to_owned(), principal.clone());
    database.validated_by(Arc::new(running::OnBehalf { functions: functions.clone(), principal, db }))
}

/// The same for a command, whose user has the store and so is an administrator.
pub(crate) fn validated(database: Documents<AnyDatabase>) -> Documents<AnyDatabase> {
    on_behalf(database, &Arc::new(Functions::new(THREADS)), &Principal::party())
}

#[cfg(feature = "javascript")]
mod running {
    use std::sync::Arc;

    use javascript::{Edit, ErrorKind as Kind, Refusal, Sandbox};
    use model::{ErrorKind, JsonRef, JsonText, JsonWriter, OPTIONS, Question, Result, VALIDATE, Validator, Verdict};

    use crate::http::access::principal::Principal;
    use crate::http::functions::Functions;

    const JAVASCRIPT: &str = "javascript";

    /// A client and the threads that run functions.
    pub(super) struct OnBehalf {
        pub(super) functions: Arc<Functions>,
        pub(super) principal: Principal,
        pub(super) db: String,
    }

    impl Validator for OnBehalf {
        fn ask(&self, question: Question) -> Verdict<'_> {
            let mut user = Vec::new();
            self.principal.write_user(&mut JsonWriter::new(&mut user), &self.db);
            Box::pin(async move {
                // A writer makes UTF-8.
                let user = String::from_utf8(user).unwrap_or_default();
                ask(&self.functions, question, user).await
            })
        }

        /// As CouchDB refuses views that do not compile. It takes such a function here, and then no document any more.
        fn admit(&self, design: JsonText) -> Verdict<'_> {
            Box::pin(admit(&self.functions, design))
        }
    }

    async fn ask(functions: &Functions, question: Question, user: String) -> Result<()> {
        let Question { design, new, old, security } = question;
        let (id, language) = (text_of(&design, "_id"), language(&design));
        if language != JAVASCRIPT {
            return Err(failed(&id, "unknown_query_language", &language));
        }
        let ran = functions.pool.run(&design.as_str().into(), move |sandbox: &mut Sandbox| {
            let old = old.as_ref().map_or("null", |old| old.as_str());
            sandbox.validate(Edit { new: new.as_str(), old, user: &user, security: security.as_str() })
        });
        match ran.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Refusal::Forbidden(reason))) => Err(ErrorKind::Forbidden(plain(&reason)).into()),
            Ok(Err(Refusal::Unauthorized(reason))) => Err(ErrorKind::Unauthorized(plain(&reason)).into()),
            Ok(Err(Refusal::Failed(error))) | Err(error) => Err(failed(&id, name_of(&error), &error.to_string())),
        }
    }

    async fn admit(functions: &Functions, design: JsonText) -> Result<()> {
        let refused = |error, reason: String| Err(ErrorKind::BadDesign { error, reason }.into());
        if let Err(reason) = check_options(&design) {
            return refused("invalid_design_doc", reason);
        }
        if design.get(VALIDATE).is_none() {
            return Ok(());
        }
        let language = language(&design);
        if language != JAVASCRIPT {
            return refused("invalid_design_doc", format!("`{VALIDATE}` in the language {language:?} cannot be run"));
        }
        if design.get(VALIDATE).is_none_or(|function| function.as_str().is_none()) {
            return refused("invalid_design_doc", format!("`{VALIDATE}` field must have string type"));
        }
        let id = text_of(&design, "_id");
        let compiled =
            functions.pool.run(&design.as_str().into(), |sandbox: &mut Sandbox| sandbox.compile(&[VALIDATE]));
        match compiled.await.flatten() {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == Kind::Compilation => refused("compilation_error", error.to_string()),
            Err(error) => Err(failed(&id, name_of(&error), &error.to_string())),
        }
    }

    /// As `validate_ddoc_fields` of CouchDB's `couch_mrview.erl` looks at the options of views.
    fn check_options(design: &JsonText) -> std::result::Result<(), String> {
        let Some(options) = design.get(OPTIONS) else { return Ok(()) };
        if !options.is_object() {
            return Err(format!("`{OPTIONS}` field must have object type"));
        }
        for flag in ["include_design", "local_seq", "partitioned"] {
            if options.get(flag).is_some_and(|flag| flag.as_bool().is_none()) {
                return Err(format!("`{OPTIONS}.{flag}` field must have boolean type"));
            }
        }
        if options.get("partitioned").and_then(JsonRef::as_bool) == Some(true) {
            return Err("partitioned option cannot be true in a non-partitioned database.".to_owned());
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

    /// A string without its quotes, or another value's JSON.
    fn plain(json: &str) -> String {
        let text = JsonText::parse(json.as_bytes());
        text.map_or_else(|_| json.to_owned(), |text| text.root().str_or_text().into_owned())
    }

    /// The edit is refused, whatever failed. The reason names the design document.
    fn failed(design_id: &str, error: &'static str, reason: &str) -> model::Error {
        ErrorKind::ValidationFailed { error, reason: format!("{design_id}: {reason}") }.into()
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
            // The process that runs functions in CouchDB ends then.
            _ => "os_process_error",
        }
    }
}

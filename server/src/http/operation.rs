//! What an endpoint reads and answers, as data beside the code that reads it.
//!
//! A handler's module has an [`Operation`] for each of its handlers, and its row in the table of endpoints names it.
//! [`openapi`](crate::http::openapi) writes the server's description from them. A handler sees only the parameters of
//! its operation ([`Params::limit_to`](crate::http::wire::params::Params::limit_to)), so none that it reads is missing.

/// What a row of the table of endpoints does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) summary: &'static str,
    /// The parameters of the query. Several lists, since handlers share them.
    pub(crate) query: &'static [&'static [Param]],
    /// The headers that it reads besides those of every request.
    pub(crate) headers: &'static [Param],
    /// The bodies that it reads, one for each media type.
    pub(crate) bodies: &'static [Content],
    /// The answers to requests that succeed.
    pub(crate) replies: &'static [Reply],
    /// The statuses of its own refusals, besides those that every request may get.
    pub(crate) refusals: &'static [u16],
}

impl Operation {
    /// An operation without parameters and without a body.
    pub(crate) const fn new(summary: &'static str, replies: &'static [Reply]) -> Self {
        Operation { summary, query: &[], headers: &[], bodies: &[], replies, refusals: &[] }
    }

    /// An endpoint that refuses every request, with these statuses.
    pub(crate) const fn refusing(summary: &'static str, refusals: &'static [u16]) -> Self {
        Operation::new(summary, &[]).refusals(refusals)
    }

    pub(crate) const fn query(self, query: &'static [&'static [Param]]) -> Self {
        Operation { query, ..self }
    }

    pub(crate) const fn headers(self, headers: &'static [Param]) -> Self {
        Operation { headers, ..self }
    }

    pub(crate) const fn bodies(self, bodies: &'static [Content]) -> Self {
        Operation { bodies, ..self }
    }

    pub(crate) const fn refusals(self, refusals: &'static [u16]) -> Self {
        Operation { refusals, ..self }
    }

    /// The parameters that are described: those of the query, the headers, and the members of a body.
    #[cfg(test)]
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &'static Param> {
        let of_body = self.bodies.iter().flat_map(|body| match body.form {
            Form::Members(members) => members,
            _ => &[],
        });
        let all = self.query.iter().copied().flatten().chain(self.headers).chain(of_body);
        all.filter(|param| !matches!(param.kind, Kind::Refused))
    }

    /// Whether the handler reads a parameter with this name. Feeds take names in any case, as in CouchDB.
    pub(crate) fn reads(&self, name: &str) -> bool {
        self.query.iter().copied().flatten().any(|param| param.name.eq_ignore_ascii_case(name))
    }
}

/// A parameter of a query, a header, or a member of a JSON object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) meaning: &'static str,
    pub(crate) is_required: bool,
}

/// The values of a parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number that is not negative.
    Count,
    Text,
    /// Any JSON; in a query, its text.
    Json,
    /// An array; in a query, its text in JSON.
    Array,
    /// An array of texts; in a query, its text in JSON.
    Texts,
    /// An array of objects.
    Objects,
    Object,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// Refused by name: clients send it by mistake. It is not described.
    Refused,
}

impl Param {
    const fn new(name: &'static str, kind: Kind, meaning: &'static str) -> Self {
        Param { name, kind, meaning, is_required: false }
    }

    pub(crate) const fn required(self) -> Self {
        Param { is_required: true, ..self }
    }

    pub(crate) const fn flag(name: &'static str, meaning: &'static str) -> Self {
        Param::new(name, Kind::Flag, meaning)
    }

    pub(crate) const fn count(name: &'static str, meaning: &'static str) -> Self {
        Param::new(name, Kind::Count, meaning)
    }

    pub(crate) const fn text(name: &'static str, meaning: &'static str) -> Self {
        Param::new(name, Kind::Text, meaning)
    }

    pub(crate) const fn json(name: &'static str, meaning: &'static str) -> Self {
        Param::new(name, Kind::Json, meaning)
    }

    pub(crate) const fn array(name: &'static str, meaning: &'static str) -> Self {
        Param::new(name, Kind::Array, meaning)
    }

    pub(crate) const fn texts(name: &'static str, meaning: &'static str) -> Self {
        Param::new(name, Kind::Texts, meaning)
    }

    pub(crate) const fn objects(name: &'static str, meaning: &'static str) -> Self {
        Param::new(name, Kind::Objects, meaning)
    }

    pub(crate) const fn object(name: &'static str, meaning: &'static str) -> Self {
        Param::new(name, Kind::Object, meaning)
    }

    pub(crate) const fn choice(name: &'static str, of: &'static [&'static str], meaning: &'static str) -> Self {
        Param::new(name, Kind::Choice(of), meaning)
    }

    pub(crate) const fn refused(name: &'static str) -> Self {
        Param::new(name, Kind::Refused, "")
    }
}

/// A body or an answer: its media type and its form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub(crate) media: &'static str,
    pub(crate) form: Form,
}

/// The form of a body or of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// A JSON object with these members. It may have others.
    Members(&'static [Param]),
    /// JSON.
    Value(Kind),
    /// Bytes or text.
    Bytes,
}

impl Content {
    /// A JSON object with these members, which may have others.
    pub(crate) const fn members(members: &'static [Param]) -> Self {
        Content { media: JSON, form: Form::Members(members) }
    }

    /// JSON.
    pub(crate) const fn json(kind: Kind) -> Self {
        Content { media: JSON, form: Form::Value(kind) }
    }

    /// Content of another type, which is not described.
    pub(crate) const fn of(media: &'static str) -> Self {
        Content { media, form: Form::Bytes }
    }
}

const JSON: &str = "application/json";

/// An answer to a request that succeeds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// One for each media type; none for an empty answer.
    pub(crate) contents: &'static [Content],
}

impl Reply {
    pub(crate) const fn new(status: u16, contents: &'static [Content]) -> Self {
        Reply { status, contents }
    }

    /// A JSON object.
    pub(crate) const fn object(status: u16) -> Self {
        const CONTENT: &[Content] = &[Content::json(Kind::Object)];
        Reply::new(status, CONTENT)
    }

    /// An array.
    pub(crate) const fn array(status: u16) -> Self {
        const CONTENT: &[Content] = &[Content::json(Kind::Array)];
        Reply::new(status, CONTENT)
    }

    /// `{"ok":true}`
    pub(crate) const fn done(status: u16) -> Self {
        const CONTENT: &[Content] = &[Content::members(&[Param::flag("ok", "`true`").required()])];
        Reply::new(status, CONTENT)
    }

    /// The answer to an edit.
    pub(crate) const fn written(status: u16) -> Self {
        const CONTENT: &[Content] = &[Content::members(&[
            Param::flag("ok", "`true`").required(),
            Param::text("id", "The id of the document.").required(),
            Param::text("rev", "The new revision. Not with `batch=ok`."),
        ])];
        Reply::new(status, CONTENT)
    }

    /// The client has the current version (`If-None-Match`).
    pub(crate) const NOT_MODIFIED: Reply = Reply::new(304, &[]);
}

/// The header with the version that the client has.
pub(crate) const IF_NONE_MATCH: Param =
    Param::text("If-None-Match", "The `ETag` of an earlier answer; 304 if it would be the same.");

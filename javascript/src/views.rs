//! Map and reduce functions.

use crate::{
    Error, ErrorKind, Sandbox,
    sandbox::{Input, json_of, too_much},
    state::{EmittedRow, Purpose, seed},
};

/// Number of bytes that a reduce result may always have, however small its input.
const ALWAYS_REDUCED: usize = 5_000;

impl Sandbox {
    /// Compiles the map function of each view, and its reduce function if it has one in JavaScript. Together they may
    /// take as long as one call.
    ///
    /// # Errors
    /// The error of the first source that is not a function, and [`ErrorKind::Time`].
    pub fn compile_views<'n>(&mut self, views: impl IntoIterator<Item = (&'n str, bool)>) -> Result<(), Error> {
        let mut left = self.state.limits.time;
        for (view, reduces) in views {
            self.compile_within(&["views", view, "map"], &mut left)?;
            if reduces {
                self.compile_within(&["views", view, "reduce"], &mut left)?;
            }
        }
        Ok(())
    }

    /// Runs the map functions of the named views on a document, given as JSON text. Each view has its own result: an
    /// error in one does not affect the others. In a pool, the last views have no result if the
    /// [turn](crate::Limits::turn) ends before them, or if the heap is full.
    pub fn map(&mut self, views: &[&str], document: &str) -> Vec<Result<Vec<EmittedRow>, Error>> {
        let parsed = match self.parse("document", document) {
            Ok(parsed) => parsed,
            Err(error) => {
                let id = id_of(document);
                let error = |view: &&str| Err(error.clone().of(format!("views/{view}/map")).at(id.clone()));
                return views.iter().map(error).collect();
            }
        };
        let seed = seed(document);
        let mut all = Vec::with_capacity(views.len());
        for view in views {
            if !all.is_empty() && self.should_rest() {
                break;
            }
            let inputs = [Input::Parsed(&parsed)];
            let outcome = self.call(&["views", view, "map"], Purpose::Map(seed), &inputs, |_, _| Ok(()));
            all.push(outcome.map(|outcome| outcome.rows).map_err(|error| error.at(id_of(document))));
        }
        all
    }

    /// Runs the reduce function of a view. `keys` is the JSON text of `[[key, id], …]`, `values` that of the values in
    /// the same order.
    ///
    /// # Errors
    /// [`ErrorKind::Overflow`] where CouchDB has `reduce_overflow_error`. After any other error CouchDB takes `null`.
    pub fn reduce(&mut self, view: &str, keys: &str, values: &str) -> Result<String, Error> {
        self.run_reduce(view, Some(keys), values)
    }

    /// Runs the reduce function of a view on a JSON list of its own results.
    ///
    /// # Errors
    /// As for [`Sandbox::reduce`].
    pub fn rereduce(&mut self, view: &str, values: &str) -> Result<String, Error> {
        self.run_reduce(view, None, values)
    }

    fn run_reduce(&mut self, view: &str, keys: Option<&str>, values: &str) -> Result<String, Error> {
        let path = ["views", view, "reduce"];
        let inputs = [Input::Json(keys.unwrap_or("null")), Input::Json(values), Input::Bool(keys.is_none())];
        let result = self.call(&path, Purpose::View(seed(values)), &inputs, json_of)?.value;
        let input = keys.map_or(0, str::len) + values.len();
        if result.len() > self.state.limits.output {
            return Err(too_much(&path.join("/"), &self.state.limits));
        }
        if result.len() > ALWAYS_REDUCED && result.len() * 2 > input {
            let (output, function) = (result.len(), path.join("/"));
            let reason = format!("Reduce output must shrink more rapidly: input size: {input} output size: {output}");
            return Err(Error::new(ErrorKind::Overflow, &function, reason));
        }
        Ok(result)
    }
}

/// The id of a document, for an error.
pub(crate) fn id_of(document: &str) -> Option<String> {
    let document = json::JsonText::parse(document.as_bytes()).ok()?;
    document.get("_id").map(|id| id.str_or_text().into_owned())
}

//! Regular expressions as CouchDB's `$regex` has them: PCRE's syntax and meaning, over bytes.
//!
//! CouchDB calls Erlang's `re`, which is PCRE 8 with Latin-1's tables. Two engines serve the same parsed pattern:
//!
//! ```text
//!   pattern ── parse ──► Node ──┬─ to_linear ──► the crate regex   time linear in the text
//!                               └─ Program ────► backtracking      at most MAX_STEPS steps for a document
//! ```
//! The first is used wherever it gives PCRE's answer. Look-around, back-references, atomic groups, possessive
//! quantifiers and conditions need the second. So do some texts: `$` and `(?m)^` depend on a newline at the text's end,
//! and `\b` on bytes depends on Latin-1's letters.
//!
//! A pattern in which a byte beyond ASCII would stand alone (`[ä]`, `ä+`), and one with `\p`, `\x{100}` or `(*UTF8)`,
//! is matched on code points, with Unicode's classes: on bytes it would mean nothing useful.

mod class;
mod matching;
mod parse;
mod program;
mod syntax;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use regex::bytes::RegexBuilder;

use class::Units;
pub(crate) use matching::Steps;
pub use matching::TooManySteps;
use program::Program;
use syntax::Needs;

/// Maximum size of a compiled expression of the linear engine, in bytes.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Maximum memory of a thread that matches one, in bytes.
const MAX_REGEX_CACHE: usize = 1 << 18;

/// A compiled pattern. Clones share it.
#[derive(Clone, Debug)]
pub struct Regex(Arc<Engines>);

#[derive(Debug)]
struct Engines {
    linear: Option<regex::bytes::Regex>,
    /// `None` if the linear engine is right for every text.
    program: Option<Program>,
    needs: Needs,
}

impl Regex {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// A sentence that says what is wrong or not supported, or that the pattern is too large.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let parsed = parse::parse(pattern)?;
        let needs = parsed.needs;
        let linear = if needs.backtracking {
            None
        } else {
            let mut text = String::new();
            parsed.node.to_linear(parsed.units, &mut text);
            let mut builder = RegexBuilder::new(&text);
            builder.unicode(parsed.units == Units::CodePoints);
            builder.size_limit(MAX_REGEX_BYTES).dfa_size_limit(MAX_REGEX_CACHE);
            Some(builder.build().map_err(|_| "regular expression is too large".to_owned())?)
        };
        let is_enough = linear.is_some() && !needs.no_last_newline && !needs.ascii;
        let program = if is_enough { None } else { Some(Program::new(&parsed)?) };
        Ok(Regex(Arc::new(Engines { linear, program, needs })))
    }

    /// Whether the pattern matches anywhere in `text`.
    ///
    /// # Errors
    /// [`TooManySteps`] if the match needs more steps than it may take.
    pub fn is_match(&self, text: &str) -> Result<bool, TooManySteps> {
        self.is_match_within(text, &Steps::default())
    }

    /// The same, with the steps that other texts have left over.
    pub(crate) fn is_match_within(&self, text: &str, left: &Steps) -> Result<bool, TooManySteps> {
        let Engines { linear, program, needs } = &*self.0;
        let differs = (needs.no_last_newline && text.ends_with('\n')) || (needs.ascii && !text.is_ascii());
        match (linear, program) {
            (Some(linear), _) if !differs => Ok(linear.is_match(text.as_bytes())),
            (_, Some(program)) => program.is_match(text, left),
            // One of the two always exists.
            (_, None) => Err(TooManySteps),
        }
    }
}

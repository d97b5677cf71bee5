//! The configuration of passwords: how new ones are stored, what users' new ones must match, and which hashes are
//! computed.
//!
//! `password_regexp` is a list in Erlang's notation, of regular expressions with or without a reason:
//!
//! ```text
//!  [{".{10,}", "It needs 10 characters."}, "[A-Z]", "\\d"]
//! ```
//!
//! Expressions have the syntax of `$regex` (see [`Regex`]), so a long password costs bounded time. A list that cannot
//! be read, or an expression that cannot be compiled, admits no new password.
//!
//! Source: CouchDB's `couch_users_db.erl` and `couch_httpd_auth.erl`.

use std::ops::RangeInclusive;
use std::str::Chars;

use mango::Regex;

use crate::http::authn::passwords::{MOST_ITERATIONS, Prf, Scheme, Verifier};
use crate::http::config::rows::SettingRows;
use crate::http::error::{ApiError, Result};

/// The start of the reason for refusing a password.
const REQUIRED: &str = "Password does not conform to requirements.";

/// The settings of passwords.
#[derive(Debug)]
pub(crate) struct Policy {
    /// How new passwords are stored; `None` for an unknown scheme.
    scheme: Option<Scheme>,
    /// Iterations for new passwords, if their scheme has iterations.
    pub(crate) iterations: u32,
    rules: Vec<Rule>,
    /// The allowed iterations of hashes that are computed. [`MOST_ITERATIONS`] limits them too.
    computed: RangeInclusive<i64>,
    /// Whether a proven password is stored again if its scheme differs.
    upgrades: bool,
}

/// A rule for new passwords.
#[derive(Debug)]
struct Rule {
    /// `None` if it cannot be read.
    pattern: Option<Regex>,
    reason: String,
}

impl Policy {
    pub(crate) fn read(rows: &SettingRows) -> Policy {
        let prf = rows.auth("pbkdf2_prf", Prf::named).unwrap_or(Prf::Sha256);
        let iterations = rows.auth("iterations", |count| count.parse().ok()).unwrap_or(MOST_ITERATIONS);
        let iterations = iterations.clamp(1, MOST_ITERATIONS);
        let bound = |name: &str| rows.auth(name, |count| count.parse().ok());
        let scheme = |name: &str| match name {
            "pbkdf2" => Some(Scheme::Pbkdf2 { prf, iterations }),
            "simple" => Some(Scheme::Simple),
            _ => None,
        };
        // Read twice: an unknown scheme is noted, and is not replaced by the default.
        let _ = rows.auth("password_scheme", scheme);
        let name = rows.auth("password_scheme", Some).unwrap_or("pbkdf2");
        if scheme(name).is_none() {
            tracing::error!(name, "the setting password_scheme is not a known scheme, so no password can be stored");
        }
        Policy {
            scheme: scheme(name),
            iterations,
            rules: rules(rows.auth("password_regexp", Some).unwrap_or_default()),
            computed: bound("min_iterations").unwrap_or(1)..=bound("max_iterations").unwrap_or(i64::MAX),
            upgrades: rows.flag("chttpd_auth", "upgrade_hash_on_auth"),
        }
    }

    /// How a new password of an administrator is stored.
    ///
    /// # Errors
    /// 403 if the configuration does not name a known scheme.
    pub(crate) fn scheme(&self) -> Result<Scheme> {
        self.scheme.ok_or_else(cannot_hash)
    }

    /// How this new password of a user is stored.
    ///
    /// # Errors
    /// 400 if it does not match; 403 if the configuration cannot be read.
    pub(crate) fn admit(&self, password: &str) -> Result<Scheme> {
        let scheme = self.scheme()?;
        for Rule { pattern, reason } in &self.rules {
            // If an expression takes too many steps on a password, the password does not match.
            if !pattern.as_ref().ok_or_else(cannot_hash)?.is_match(password).unwrap_or(false) {
                return Err(ApiError::bad_request(reason.clone()));
            }
        }
        Ok(scheme)
    }

    /// Whether this password is to be stored again when it is proven.
    pub(crate) fn is_outdated(&self, verifier: &Verifier) -> bool {
        self.upgrades && self.scheme.is_some_and(|scheme| !verifier.is_by(scheme))
    }

    /// Refuses to compute a hash with fewer or more iterations than the configuration allows. This does not depend on
    /// the password, so the refusal reveals nothing about it.
    pub(crate) fn check(&self, verifier: &Verifier) -> Result<()> {
        let Some(iterations) = verifier.iterations().map(i64::from) else { return Ok(()) };
        let refused = |what: &str| Err(ApiError::forbidden(format!("Iteration count is too {what} for this server")));
        match iterations {
            low if low < *self.computed.start() => refused("low"),
            high if high > *self.computed.end() => refused("high"),
            _ => Ok(()),
        }
    }
}

fn cannot_hash() -> ApiError {
    ApiError::forbidden("Server cannot hash passwords at this time.")
}

fn rules(setting: &str) -> Vec<Rule> {
    if setting.is_empty() {
        return Vec::new();
    }
    let unreadable = || vec![("(".to_owned(), String::new())];
    let rule = |(pattern, reason): (String, String)| {
        let pattern = Regex::new(&pattern);
        if pattern.is_err() {
            tracing::error!(setting, "the setting password_regexp cannot be read, so no password can be stored");
        }
        let reason = if reason.is_empty() { REQUIRED.to_owned() } else { format!("{REQUIRED} {reason}") };
        Rule { pattern: pattern.ok(), reason }
    };
    patterns(setting).unwrap_or_else(unreadable).into_iter().map(rule).collect()
}

/// The patterns of a list, and their reasons, which may be empty.
fn patterns(list: &str) -> Option<Vec<(String, String)>> {
    use Token::{Mark, Text};
    let tokens = tokens(list)?;
    let [Mark('['), rest @ .., Mark(']')] = tokens.as_slice() else { return None };
    let (mut rest, mut patterns) = (rest, Vec::new());
    while !rest.is_empty() {
        let (pattern, reason, after) = match rest {
            [Text(pattern), after @ ..] | [Mark('{'), Text(pattern), Mark('}'), after @ ..] => (pattern, "", after),
            [Mark('{'), Text(pattern), Mark(','), Text(reason), Mark('}'), after @ ..] => (pattern, &**reason, after),
            _ => return None,
        };
        patterns.push((pattern.clone(), reason.to_owned()));
        rest = match after {
            [] => after,
            [Mark(','), next @ ..] if !next.is_empty() => next,
            _ => return None,
        };
    }
    Some(patterns)
}

/// A part of a list in Erlang's notation.
enum Token {
    Mark(char),
    Text(String),
}

fn tokens(list: &str) -> Option<Vec<Token>> {
    let (mut tokens, mut chars) = (Vec::new(), list.chars());
    while let Some(next) = chars.next() {
        match next {
            '"' => {
                let text = text(&mut chars)?;
                // Two strings side by side are one.
                match tokens.last_mut() {
                    Some(Token::Text(before)) => before.push_str(&text),
                    _ => tokens.push(Token::Text(text)),
                }
            }
            '[' | ']' | '{' | '}' | ',' => tokens.push(Token::Mark(next)),
            space if space.is_whitespace() => {}
            _ => return None,
        }
    }
    Some(tokens)
}

/// The rest of a string.
fn text(chars: &mut Chars<'_>) -> Option<String> {
    let mut text = String::new();
    loop {
        text.push(match chars.next()? {
            '"' => return Some(text),
            '\\' => escaped(chars)?,
            plain => plain,
        });
    }
}

/// The character that the letters after a backslash mean.
fn escaped(chars: &mut Chars<'_>) -> Option<char> {
    let code = |digits: &str, base| char::from_u32(u32::from_str_radix(digits, base).ok()?);
    let ahead = chars.as_str();
    let (taken, meant) = match chars.next()? {
        '0'..='7' => {
            let digits = ahead.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            (digits, code(&ahead[..digits], 8)?)
        }
        'x' if ahead.starts_with("x{") => {
            let end = ahead.find('}')?;
            (end + 1, code(&ahead[2..end], 16)?)
        }
        'x' => (3, code(ahead.get(1..3)?, 16)?),
        '^' => (2, char::from(ahead.as_bytes().get(1).copied().filter(|byte| (64..96).contains(byte))? & 31)),
        other => {
            return Some(match other {
                'b' => '\u{8}',
                'd' => '\u{7f}',
                'e' => '\u{1b}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                's' => ' ',
                't' => '\t',
                'v' => '\u{b}',
                itself => itself,
            });
        }
    };
    *chars = ahead.get(taken..)?.chars();
    Some(meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    fn policy(rows: &[(&str, &str)]) -> Policy {
        let rows: Vec<_> = rows.iter().map(|(name, value)| ("chttpd_auth", *name, *value)).collect();
        Policy::read(&rows_of(&rows))
    }

    fn refused(setting: &str, password: &str) -> (u16, String) {
        match policy(&[("password_regexp", setting)]).admit(password) {
            Ok(_) => (200, String::new()),
            Err(error) => (error.status().as_u16(), error.reason().to_owned()),
        }
    }

    /// As CouchDB 3.5.2 answers them.
    #[test]
    fn new_passwords_match_every_expression() {
        let required = |reason: &str| (400, format!("{REQUIRED}{reason}"));
        for setting in ["", "[]", "[ ]", r#"["a"]"#, r#"[{"a"}]"#, r#" [ {"a" , "no a"},"^." ] "#, r#"["(?i)A"]"#] {
            assert_eq!(refused(setting, "a"), (200, String::new()), "{setting}");
        }
        for (setting, password, reason) in [
            (r#"["a"]"#, "b", ""),
            (r#"["a"]"#, "", ""),
            (r#"[{"a"}]"#, "b", ""),
            (r#"[{"a", ""}]"#, "b", ""),
            (r#"[{"a", "no a"}]"#, "b", " no a"),
            (r#"[{"^.{4,}$", "Too short."}, "[0-9]"]"#, "abc", " Too short."),
            (r#"[{"^.{4,}$", "Too short."}, "[0-9]"]"#, "abcd", ""),
            (r#"["\\d"]"#, "b", ""),
            // Delete, and not a digit.
            (r#"["\d"]"#, "1", ""),
            (r#"["a" "b"]"#, "a", ""),
            (r#"[{"a", "r\"q"}]"#, "b", " r\"q"),
            // Two bytes.
            (r#"["^.$"]"#, "é", ""),
        ] {
            assert_eq!(refused(setting, password), required(reason), "{setting}");
        }
        for setting in [r#"["\x61"]"#, r#"["\141"]"#, r#"["\x{61}"]"#, r#"["\a"]"#, r#"["[\"a]"]"#] {
            assert_eq!((refused(setting, "a").0, refused(setting, "q").0), (200, 400), "{setting}");
        }
        assert_eq!(refused(r#"["\^A"]"#, "\u{1}").0, 200);
    }

    #[test]
    fn what_cannot_be_read_admits_no_password() {
        for setting in [
            "x",
            r#""a""#,
            "[a]",
            "[5]",
            r#"["a", 5]"#,
            r#"[{"a","b","c"}]"#,
            r#"{"a"}"#,
            r#"["a""#,
            r#"["a",]"#,
            r#"[,"a"]"#,
            r#"["a"]."#,
            r#"["a] "#,
            r#"["("]"#,
            r#"["\x{zz}"]"#,
            r#"["\x6"#,
            r#"["\"#,
            r#"["\x{ffffffff}"]"#,
            r#"["\^"]"#,
            "[{}]",
            "[[]]",
        ] {
            assert_eq!(
                refused(setting, "a"),
                (403, "Server cannot hash passwords at this time.".to_owned()),
                "{setting}"
            );
        }
        assert_eq!(policy(&[("password_scheme", "md5")]).admit("a").unwrap_err().status(), 403);
        assert_eq!(policy(&[("password_scheme", "md5")]).scheme().unwrap_err().status(), 403);
    }

    #[test]
    fn new_passwords_are_stored_as_the_configuration_says() {
        let scheme = |rows: &[(&str, &str)]| policy(rows).admit("a").unwrap();
        let pbkdf2 = |prf, iterations| Scheme::Pbkdf2 { prf, iterations };
        assert_eq!(scheme(&[]), pbkdf2(Prf::Sha256, 600_000));
        let many = [("password_scheme", "pbkdf2"), ("pbkdf2_prf", "sha512"), ("iterations", "4000000000")];
        assert_eq!(scheme(&many), pbkdf2(Prf::Sha512, MOST_ITERATIONS));
        assert_eq!(scheme(&[("iterations", "0")]), pbkdf2(Prf::Sha256, 1));
        assert_eq!(scheme(&[("password_scheme", "simple"), ("iterations", "7")]), Scheme::Simple);
        let simple = Verifier::new("a", Scheme::Simple).unwrap();
        let is_outdated = |name, value| policy(&[(name, value)]).is_outdated(&simple);
        assert!(is_outdated("iterations", "7") && !is_outdated("password_scheme", "simple"));
        assert!(!is_outdated("password_scheme", "md5") && !is_outdated("upgrade_hash_on_auth", "false"));
        let earlier = rows_of(&[("couch_httpd_auth", "password_scheme", "simple")]);
        assert_eq!(Policy::read(&earlier).scheme().unwrap(), Scheme::Simple);
    }

    #[test]
    fn hashes_out_of_bounds_are_not_computed() {
        let ten = Verifier::new("a", Scheme::Pbkdf2 { prf: Prf::Sha256, iterations: 10 }).unwrap();
        let reason = |name: &str, value: &str| match policy(&[(name, value)]).check(&ten) {
            Ok(()) => String::new(),
            Err(error) => format!("{} {}", error.status().as_u16(), error.reason()),
        };
        for (name, value) in
            [("min_iterations", "10"), ("max_iterations", "10"), ("min_iterations", "x"), ("max_iterations", "")]
        {
            assert_eq!(reason(name, value), "", "{name} {value}");
        }
        assert_eq!(reason("min_iterations", "11"), "403 Iteration count is too low for this server");
        for value in ["9", "0", "-1"] {
            assert_eq!(reason("max_iterations", value), "403 Iteration count is too high for this server");
        }
        let simple = Verifier::new("a", Scheme::Simple).unwrap();
        assert!(policy(&[("min_iterations", "11")]).check(&simple).is_ok());
    }
}

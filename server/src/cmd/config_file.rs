//! The file of options that `serve --config` reads, in TOML.
//!
//! ```toml
//! listen = "0.0.0.0:5984"         # as the flag --listen
//!
//! [config.chttpd]                 # as `_config/chttpd/…`, unless a client sets it
//! require_valid_user = true
//! ```
//!
//! Options of the file become the defaults of the flags, so the environment and flags override them, and their values
//! are checked like those of flags. Unknown keys and settings and invalid values are refused: a misspelt one would have
//! no effect.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{ArgAction, Command};
use model::Setting;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::http::{ADMINS, check_settings};

/// The table of CouchDB's settings.
const SETTINGS: &str = "config";

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigFileError {
    #[error("{} cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] std::io::Error),
    #[error("{}:{line}: {problem}", .file.display())]
    Wrong { file: PathBuf, line: usize, problem: String },
}

/// A file of options.
#[derive(Default)]
pub(crate) struct ConfigFile {
    /// The flags, without their dashes, and their values.
    options: Vec<(String, Vec<String>)>,
    /// CouchDB's settings. Those in the store override them.
    pub(crate) settings: Vec<Setting>,
}

impl fmt::Debug for ConfigFile {
    /// Shows no values, which may be passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.options.iter().map(|(name, _)| name)).finish_non_exhaustive()
    }
}

impl ConfigFile {
    /// Reads a file of options of this command.
    pub(crate) fn read(path: &Path, command: &Command) -> Result<ConfigFile, ConfigFileError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| ConfigFileError::Unreadable(path.to_owned(), error))?;
        Self::parse(&text, command).map_err(|(line, problem)| ConfigFileError::Wrong {
            file: path.to_owned(),
            line,
            problem,
        })
    }

    /// The error is the number of a line, and what is wrong there.
    fn parse(text: &str, command: &Command) -> Result<ConfigFile, (usize, String)> {
        let line = |span: Range<usize>| {
            text.as_bytes()[..span.start.min(text.len())].iter().filter(|&&b| b == b'\n').count() + 1
        };
        let table = DeTable::parse(text).map_err(|error| {
            let place = error.span().map_or(text.trim_end().len()..0, |span| span);
            (line(place), error.message().to_owned())
        })?;
        let (mut file, mut lines) = (ConfigFile::default(), Vec::new());
        for (key, value) in table.get_ref() {
            let at = |problem| (line(key.span()), problem);
            if key.get_ref() == SETTINGS {
                file.read_settings(value, &line, &mut lines)?;
            } else {
                let (name, values) = option(key.get_ref(), value.get_ref(), command).map_err(at)?;
                file.options.push((name, values));
            }
        }
        check_settings(&file.settings).map_err(|(at, problem)| {
            let Setting { section, name, .. } = &file.settings[at];
            (lines[at], format!("{SETTINGS}.{section}.{name}: {problem}"))
        })?;
        // A default that is set satisfies flags that require it.
        let is_flag = |name: &String| {
            let flag = command.get_arguments().find(|arg| arg.get_long() == Some(name));
            flag.is_none_or(|flag| matches!(flag.get_action(), ArgAction::SetTrue))
        };
        let options: Vec<_> =
            file.options.iter().map(|(name, values)| (name, values)).filter(|(name, _)| !is_flag(name)).collect();
        try_options(command, &options).map_err(|(_, problem)| (1, problem))?;
        Ok(file)
    }

    fn read_settings(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        line: &impl Fn(Range<usize>) -> usize,
        lines: &mut Vec<usize>,
    ) -> Result<(), (usize, String)> {
        let DeValue::Table(sections) = value.get_ref() else {
            return Err((line(value.span()), format!("{SETTINGS}: it must be a table of sections")));
        };
        for (section, values) in sections {
            let (section, at) = (section.get_ref(), line(section.span()));
            if section == ADMINS {
                let problem = "set one administrator with user and password, and others in _config";
                return Err((at, format!("{SETTINGS}.{section}: {problem}")));
            }
            let DeValue::Table(values) = values.get_ref() else {
                return Err((at, format!("{SETTINGS}.{section}: it must be a table")));
            };
            for (name, value) in values {
                let at_name = line(name.span());
                let text = scalar(value.get_ref()).ok_or_else(|| {
                    let problem = "it must be text, a number, true or false";
                    (line(name.span()), format!("{SETTINGS}.{section}.{}: {problem}", name.get_ref()))
                })?;
                let (section, name) = (section.to_string(), name.get_ref().to_string());
                self.settings.push(Setting { section, name, value: text.trim().to_owned() });
                lines.push(at_name);
            }
        }
        Ok(())
    }

    /// Makes the options the defaults of the command's flags.
    pub(crate) fn set_defaults(&self, mut command: Command) -> Command {
        for (name, values) in &self.options {
            let Some(id) =
                command.get_arguments().find(|arg| arg.get_long() == Some(name)).map(|arg| arg.get_id().clone())
            else {
                continue;
            };
            let values = values.clone();
            command = command.mut_arg(id, |arg| arg.default_values(values));
        }
        command
    }
}

/// The flag and the values of an option.
fn option(key: &str, value: &DeValue<'_>, command: &Command) -> Result<(String, Vec<String>), String> {
    let name = key.replace('_', "-");
    let flags = || command.get_arguments().filter(|arg| !matches!(arg.get_long(), None | Some("config" | "help")));
    let Some(flag) = flags().find(|arg| arg.get_long() == Some(&name)) else {
        let known: Vec<&str> = flags().filter_map(|arg| arg.get_long()).collect();
        return Err(format!("{key}: there is no such option; known are {SETTINGS}, {}", known.join(", ")));
    };
    let values = match value {
        DeValue::Array(values) => values.iter().map(|value| scalar(value.get_ref())).collect(),
        value => scalar(value).map(|value| vec![value]),
    };
    let values = values.ok_or_else(|| format!("{key}: it must be text, a number, true, false, or a list of these"))?;
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        return match value {
            DeValue::Boolean(_) => Ok((name, values)),
            _ => Err(format!("{key}: it must be true or false")),
        };
    }
    match try_options(command, &[(&name, &values)]) {
        // The options that it requires may be in the file too.
        Ok(()) | Err((ErrorKind::MissingRequiredArgument, _)) => Ok((name, values)),
        Err((_, problem)) => Err(format!("{key}: {problem}")),
    }
}

/// Checks options as if they were flags.
fn try_options(command: &Command, options: &[(&String, &Vec<String>)]) -> Result<(), (ErrorKind, String)> {
    let arguments =
        options.iter().flat_map(|(name, values)| values.iter().map(move |value| format!("--{name}={value}")));
    let tried = command.clone().try_get_matches_from(std::iter::once("serve".to_owned()).chain(arguments));
    tried.map(drop).map_err(|error| {
        let text = error.to_string();
        // The second line names arguments that are missing.
        let lines: Vec<&str> = text.lines().take(2).map(str::trim).filter(|line| !line.is_empty()).collect();
        (error.kind(), lines.join(" ").trim_start_matches("error: ").to_owned())
    })
}

/// The text of a value that is neither a list nor a table.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(i128::from_str_radix(number.as_str(), number.radix()).ok()?.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;
    use crate::cmd::serve::Serve;

    fn command() -> Command {
        Serve::augment_args(Command::new("serve"))
    }

    fn parse(text: &str) -> Result<ConfigFile, (usize, String)> {
        ConfigFile::parse(text, &command())
    }

    #[test]
    fn options_of_a_file_come_before_those_that_are_built_in_and_behind_flags() {
        let file = parse(
            "listen = '0.0.0.0:1'\ntls-cert = 'a.pem'\ntls-key = 'a.key'\nmax_document_size = 1_000\ncors-credentials = true\ncors-origins = ['a', 'b']\n\
             password = 'geheim'\n[config.chttpd]\nrequire_valid_user = true\npeer_header = 'y '\n[config.uuids]\nmax_count = 0x10\n",
        )
        .unwrap();
        let serve = |arguments: &[&str]| {
            let arguments = std::iter::once("serve").chain(arguments.iter().copied());
            let matches = file.set_defaults(command()).try_get_matches_from(arguments).unwrap();
            let origins: Vec<String> = matches.get_many("cors_origins").unwrap().cloned().collect();
            let size = *matches.get_one::<u64>("max_document_size").unwrap();
            let shown = format!("{:?} {file:?}", Serve::from_arg_matches(&matches).unwrap());
            assert!(!shown.contains("geheim"));
            (matches.get_one::<String>("listen").unwrap().clone(), size, matches.get_flag("cors_credentials"), origins)
        };
        let both = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(serve(&[]), ("0.0.0.0:1".to_owned(), 1_000, true, both.clone()));
        let flags = ["--listen", "[::1]:2", "--cors-origins", "c"];
        assert_eq!(serve(&flags), ("[::1]:2".to_owned(), 1_000, true, vec!["c".to_owned()]));
        let settings: Vec<String> =
            file.settings.iter().map(|one| format!("{}/{}={}", one.section, one.name, one.value)).collect();
        assert_eq!(settings, ["chttpd/peer_header=y", "chttpd/require_valid_user=true", "uuids/max_count=16"]);
    }

    #[test]
    fn wrong_files_are_refused_with_their_line_and_key() {
        for (text, line, problem) in [
            ("\nlisten = 1\n\nlistn = 'x'", 4, "listn: there is no such option; known are config, engine, listen,"),
            ("listen = 'a'\nlisten = 'b'", 2, "duplicate key"),
            ("listen =", 1, ""),
            ("x", 1, ""),
            ("\n\nlisten = 'a", 3, ""),
            ("help = true", 1, "help: there is no such option"),
            ("config = 'x'", 1, "config: it must be a table of sections"),
            ("\n[serve]\nlisten = 'a'", 2, "serve: there is no such option"),
            ("listen = ['a', ['b']]", 1, "listen: it must be text"),
            ("listen = 1979-05-27", 1, "listen: it must be text"),
            ("cors_credentials = 'yes'", 1, "cors_credentials: it must be true or false"),
            ("max-document-size = 9_000_000", 1, "max-document-size: invalid value '9000000'"),
            ("max-document-size = 'many'", 1, "max-document-size: invalid value 'many'"),
            ("max-document-size = [1, 2]", 1, "max-document-size: the argument"),
            ("tls-cert = 'a.pem'", 1, "the following required arguments were not provided: --tls-key <FILE>"),
            ("[config]\nchttpd = 1", 2, "config.chttpd: it must be a table"),
            ("[config.chttpd]\na = 1\nb = [1]", 3, "config.chttpd.b: it must be text"),
            (
                "[config.chttpd]\n\nrequire_valid_usr = true",
                3,
                "config.chttpd.require_valid_usr: there is no such setting",
            ),
            ("[config.log]\nlevel = 'info'", 2, "config.log.level: there is no such section"),
            (
                "[config.chttpd]\nrequire_valid_user = 'yes'",
                2,
                "config.chttpd.require_valid_user: \"yes\" is not a valid value",
            ),
            ("[config.uuids]\n\n\nmax_count = -1", 4, "config.uuids.max_count: \"-1\" is not a valid value"),
            (
                "[config.chttpd_auth]\ntimeout = '1 fortnight'",
                2,
                "config.chttpd_auth.timeout: \"1 fortnight\" is not a valid value",
            ),
            (
                "[config.couchdb]\ndefault_security = 'all'",
                2,
                "config.couchdb.default_security: \"all\" is not a valid value",
            ),
            ("[config.csp]\nattachments_enable = 1", 2, "config.csp.attachments_enable: \"1\" is not a valid value"),
            ("[config.quotas]\nnotes = 'much'", 2, "config.quotas.notes: it must be a number of bytes"),
            ("[config.admins]\nanna = 'x'", 1, "config.admins: set one administrator"),
        ] {
            let (found, wrong) = parse(text).unwrap_err();
            assert!(found == line && wrong.starts_with(problem) && !wrong.is_empty(), "{text:?}: {found}: {wrong}");
        }
    }

    #[test]
    fn settings_may_have_units() {
        let text = "max-request-size = '64MB'\n[config.chttpd_auth]\ntimeout = '1h'\n[config.couchdb]\n\
                    max_attachment_size = '1GB'\n[config.quotas]\nnotes = '500MB'\n[config.replicator]\ninterval = '1min'\n";
        assert_eq!(parse(text).map_err(|(_, problem)| problem).unwrap().settings.len(), 4);
    }

    /// The example of `docs/configuration.md`.
    #[test]
    fn the_example_is_one() {
        let page = include_str!("../../../docs/configuration.md");
        let (_, rest) = page.split_once("```toml\n").unwrap();
        let file = parse(rest.split_once("```").unwrap().0).unwrap();
        assert!(!file.options.is_empty() && !file.settings.is_empty());
    }
}

//! `Content-Security-Policy` for content that users store or functions generate (section `csp`).
//!
//! Such content may be a page. With the policy `sandbox` a browser does not run its scripts and gives it no origin, so
//! it cannot act with the rights of the user who opens it.
//!
//! Source: `maybe_add_csp_header` of CouchDB's `chttpd_util.erl`.

use hyper::header::{CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue};

use crate::http::config::rows::SettingRows;

/// Whose content an answer is, in the extensions of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// An attachment, or several documents with theirs.
    Attachment,
    /// The result of an update function. Its settings are those of CouchDB's shows and lists.
    Function,
    /// A console that the administrator serves from a folder.
    Console,
}

/// The policies; `None` means no policy.
#[derive(Debug)]
pub(crate) struct Policies {
    attachments: Option<HeaderValue>,
    functions: Option<HeaderValue>,
    console: Option<HeaderValue>,
}

impl Policies {
    pub(super) fn read(rows: &SettingRows) -> Policies {
        let policy = |is_on: &str, value: &str| {
            // A value that a header cannot contain counts as unset.
            let policy = |text: &str| HeaderValue::from_str(text).ok().filter(|value| !value.is_empty());
            rows.read("csp", value, policy).filter(|_| rows.flag("csp", is_on))
        };
        Policies {
            attachments: policy("attachments_enable", "attachments_header_value"),
            functions: policy("showlist_enable", "showlist_header_value"),
            console: policy("utils_enable", "utils_header_value"),
        }
    }

    /// Adds the policy. Policies set by a function are kept: a browser applies all of them.
    pub(crate) fn apply(&self, foreign: Foreign, headers: &mut HeaderMap) {
        let policy = match foreign {
            Foreign::Attachment => &self.attachments,
            Foreign::Function => &self.functions,
            Foreign::Console => &self.console,
        };
        let Some(policy) = policy else { return };
        let own: Vec<HeaderValue> = headers.get_all(CONTENT_SECURITY_POLICY).iter().cloned().collect();
        headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
        for one in own {
            headers.append(CONTENT_SECURITY_POLICY, one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    fn policies(rows: &[(&str, &str, &str)], foreign: Foreign, own: Option<&'static str>) -> Vec<String> {
        let mut headers = HeaderMap::new();
        headers.extend(own.map(|own| (CONTENT_SECURITY_POLICY, HeaderValue::from_static(own))));
        Policies::read(&rows_of(rows)).apply(foreign, &mut headers);
        let found = headers.get_all(CONTENT_SECURITY_POLICY).iter();
        found.map(|policy| policy.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn foreign_content_is_in_a_sandbox_unless_an_administrator_says_otherwise() {
        let off = [("csp", "attachments_enable", "false"), ("csp", "showlist_header_value", "default-src 'none'")];
        assert_eq!(policies(&[], Foreign::Attachment, None), ["sandbox"]);
        assert_eq!(policies(&[], Foreign::Function, Some("script-src *")), ["sandbox", "script-src *"]);
        assert!(policies(&off, Foreign::Attachment, None).is_empty());
        assert_eq!(policies(&off, Foreign::Function, None), ["default-src 'none'"]);
        for nonsense in ["", "a\u{e9}\nb"] {
            let rows = [("csp", "attachments_header_value", nonsense), ("csp", "attachments_enable", "x")];
            assert_eq!(policies(&rows, Foreign::Attachment, None), ["sandbox"], "{nonsense:?}");
        }
    }
}

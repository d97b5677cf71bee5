//! The address of a server or a database, with credentials.

use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// The address of a server or a database, with or without a user. Its text has no credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(Box<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    url: Url,
    user: Option<(String, String)>,
    headers: HeaderMap,
    given: Given,
}

/// An address as it was given. The ids of replications depend on this text.
#[derive(Clone, PartialEq, Eq)]
pub struct Given {
    /// The user, with its escapes in a URL. `None` for a URL without a password.
    pub user: Option<String>,
    /// The host, without the brackets of IPv6.
    pub host: String,
    /// The path with its query. Without a query, it ends in a slash.
    pub path: String,
    /// The headers, with their secrets.
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Given {
    fn read(text: &str, url: &Url) -> Given {
        let is_scheme = |scheme: &str| scheme.eq_ignore_ascii_case(url.scheme());
        let rest = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme));
        let (_, rest) = rest.or_else(|| url.as_str().split_once("://")).unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let host = match host.strip_prefix('[') {
            Some(address) => address.split(']').next(),
            None => host.split(':').next(),
        };
        let mut path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
        if !path.contains('?') && !path.ends_with('/') {
            path.push('/');
        }
        let user = user.split_once(':').map(|(user, _)| user.to_owned());
        Given { user, host: host.unwrap_or_default().to_owned(), path, headers: Vec::new() }
    }
}

/// The reason why an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// It is not a URL, with the reason.
    NoUrl(String),
    /// Its scheme is neither `http` nor `https`.
    NotHttp,
    /// The user's name or the password is not UTF-8.
    NotUtf8,
    /// A header that cannot be sent, with its name.
    BadHeader(String),
    /// A name that a URL cannot carry.
    NoName(String),
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressError::NoUrl(why) => write!(f, "it is not a URL: {why}; write http://HOST:PORT"),
            AddressError::NotHttp => f.write_str("it is neither http:// nor https://"),
            AddressError::NotUtf8 => f.write_str("the user or the password is not UTF-8"),
            AddressError::BadHeader(name) => write!(f, "the header {name} cannot be sent"),
            AddressError::NoName(name) => write!(f, "a URL cannot carry the name {name:?}"),
        }
    }
}

impl std::error::Error for AddressError {}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let mut url = Url::parse(text).map_err(|error| AddressError::NoUrl(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(AddressError::NotHttp);
        }
        let decode =
            |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| AddressError::NotUtf8);
        let user = match url.username() {
            "" => None,
            user => Some((decode(user)?, decode(url.password().unwrap_or_default())?)),
        };
        let given = Given::read(text, &url);
        // Credentials go into a header, and never into a message.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.set_fragment(None);
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty();
        }
        Ok(Address(Box::new(Parts { url, user, headers: HeaderMap::new(), given })))
    }
}

impl Address {
    /// The same address, with this user's name and password.
    #[must_use]
    pub fn with_user(mut self, user: Option<(String, String)>) -> Self {
        if let Some(user) = user {
            self.0.given.user = Some(user.0.clone());
            self.0.user = Some(user);
        }
        self
    }

    /// The same address, with a header for every request.
    ///
    /// # Errors
    /// [`AddressError::BadHeader`].
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::BadHeader(name.to_owned());
        let mut sent = HeaderValue::from_str(value).map_err(|_| bad())?;
        sent.set_sensitive(true);
        self.0.headers.append(HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?, sent);
        self.0.given.headers.push((name.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// A database of the server with this address.
    ///
    /// # Errors
    /// [`AddressError::NoName`].
    pub fn database(mut self, name: &str) -> Result<Self, AddressError> {
        self.0.url = below(&self.0.url, &[name])?;
        self.0.given.path = format!("{}/", self.0.url.path());
        Ok(self)
    }

    /// Another database of the same server.
    ///
    /// # Errors
    /// [`AddressError::NoName`].
    pub fn sibling(&self, name: &str) -> Result<Self, AddressError> {
        let mut server = self.clone();
        if let Ok(mut segments) = server.0.url.path_segments_mut() {
            segments.pop();
        }
        server.database(name)
    }

    /// The address without the user.
    pub fn url(&self) -> &Url {
        &self.0.url
    }

    /// Whether it is reached by TLS.
    pub fn is_secure(&self) -> bool {
        self.0.url.scheme() == "https"
    }

    /// The user's name and the password.
    pub fn user(&self) -> Option<&(String, String)> {
        self.0.user.as_ref()
    }

    /// The headers of every request.
    pub fn headers(&self) -> &HeaderMap {
        &self.0.headers
    }

    /// The address as it was given.
    pub fn given(&self) -> &Given {
        &self.0.given
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.url.as_str())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.0.url.as_str()).finish()
    }
}

/// Characters that are not escaped in a segment of a path. A plus is escaped: servers read it as a space even in paths.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Whether a URL can have this name as a segment of its path. URLs resolve `.` and `..`, even if they are escaped, and
/// servers skip empty segments.
pub(super) fn is_carried(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
}

/// The URL with these names after its path. Each is one segment, and is escaped here, since [`Url`] drops tabs and line
/// ends.
///
/// # Errors
/// [`AddressError::NoName`] for the first name that would not arrive unchanged.
pub(super) fn below(url: &Url, names: &[&str]) -> Result<Url, AddressError> {
    if let Some(name) = names.iter().find(|name| !is_carried(name)) {
        return Err(AddressError::NoName((*name).to_owned()));
    }
    let mut path = url.path().strip_suffix('/').unwrap_or(url.path()).to_owned();
    let above = path.len();
    for name in names {
        path.push('/');
        path.extend(utf8_percent_encode(name, PLAIN));
    }
    let mut whole = url.clone();
    if !names.is_empty() {
        whole.set_path(&path);
    }
    // The text after parsing is what is sent.
    let sent = whole.path().get(above..).unwrap_or_default();
    let mut segments = sent.split('/').skip(1).map(percent_decode_str);
    match names.iter().find(|name| segments.next().is_none_or(|segment| !segment.eq(name.bytes()))) {
        Some(name) => Err(AddressError::NoName((*name).to_owned())),
        None => Ok(whole),
    }
}

/// The path segments of a document's id. The slash of `_design/` and `_local/` stays a slash.
pub(super) fn id_path(id: &str) -> Vec<&str> {
    match id.split_once('/') {
        Some((prefix @ ("_design" | "_local"), name)) => vec![prefix, name],
        _ => vec![id],
    }
}

/// The path segments of an attachment.
pub(super) fn attachment_path<'a>(id: &'a str, name: &'a str) -> Vec<&'a str> {
    let mut path = id_path(id);
    path.push(name);
    path
}

/// Whether a URL is on this machine: only there credentials may travel unencrypted without a word of the operator.
pub fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    url.host_str().is_some_and(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_encrypted_stays_on_this_machine() {
        for (endpoint, wanted) in [
            ("http://127.0.0.1:9000", true),
            ("http://localhost:9000", true),
            ("http://[::1]:9000", true),
            ("http://127.0.0.1.example.com", false),
            ("http://192.168.0.7:9000", false),
            ("nonsense", false),
        ] {
            assert_eq!(is_loopback(endpoint), wanted, "{endpoint}");
        }
    }

    #[test]
    fn a_user_in_the_address_is_taken_out_of_it() {
        let server: Address = "http://anna:p%40ss%20word@localhost:5984/".parse().unwrap();
        assert_eq!(server.user(), Some(&("anna".into(), "p@ss word".into())));
        assert_eq!(server.0.url.as_str(), "http://localhost:5984/");
        assert!(!format!("{server:?} {server}").contains("p@ss"));
        assert_eq!("http://localhost:5984".parse::<Address>().unwrap().user(), None);
        let secure: Address = "https://anna:p%40ss@localhost/".parse().unwrap();
        assert_eq!((secure.to_string(), secure.is_secure()), ("https://localhost/".into(), true));
        assert!(!server.is_secure() && !format!("{secure:?}").contains("p@ss"));
        for bad in ["localhost:5984", "ftp://localhost", "", "http://", "https://"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn databases_lie_below_a_server_and_beside_each_other() {
        let server: Address = "http://localhost:5984/couch/".parse().unwrap();
        let one = server.clone().database("a/b").unwrap();
        assert_eq!(one.to_string(), "http://localhost:5984/couch/a%2Fb");
        assert_eq!(one.sibling("c").unwrap().to_string(), "http://localhost:5984/couch/c");
        assert_eq!(server.clone().database("a+b").unwrap().to_string(), "http://localhost:5984/couch/a%2Bb");
        assert_eq!(one.sibling("a+b").unwrap().to_string(), "http://localhost:5984/couch/a%2Bb");
        // Ids of replications depend on it.
        assert_eq!(server.clone().database("a_$()-").unwrap().given().path, "/couch/a_$()-/");
        for name in ["", ".", ".."] {
            assert_eq!(server.clone().database(name), Err(AddressError::NoName(name.into())));
            assert_eq!(one.sibling(name), Err(AddressError::NoName(name.into())));
        }
        let given: Address = "http://localhost/db/".parse().unwrap();
        assert_eq!(given.to_string(), "http://localhost/db");
        let with = given.with_header("Authorization", "Bearer secret").unwrap();
        assert!(!format!("{with:?} {:?}", with.headers()).contains("secret"));
        assert!(!format!("{:?}", with.given()).contains("secret"));
        assert!(with.with_header("a b", "").is_err());
    }
    /// Nothing on the way to the server may change a name.
    #[test]
    fn each_name_is_one_segment_that_decodes_to_it() {
        let database: Url = "http://localhost:5984/couch/db".parse().unwrap();
        let decoded = |url: &Url| -> Vec<String> {
            let segments = url.path().split('/').skip(1);
            segments.map(|segment| percent_decode_str(segment).decode_utf8().unwrap().into_owned()).collect()
        };
        // The server's parser has to accept it too.
        let sent = |url: &Url| url.as_str().parse::<reqwest::Url>().map(|again| again == *url).unwrap();
        let mut names: Vec<String> = (0..=0xff_u8).map(|byte| format!("a{}b", char::from(byte))).collect();
        names.extend((0..=0x7f_u8).map(|byte| char::from(byte).to_string()).filter(|name| name != "."));
        for name in [
            "\t",
            "a\tb",
            "a\r\nb\n",
            ".\t.",
            "...",
            "../a",
            "a/..",
            "%2e%2E",
            "%",
            "a+b c",
            "\\..",
            "é/\u{1f600}",
            "/",
            "//",
        ] {
            names.push(name.to_owned());
        }
        for name in &names {
            let url = below(&database, &["_design", name, "x"]).unwrap();
            assert_eq!(decoded(&url), ["couch", "db", "_design", name, "x"], "{url}");
            assert!(sent(&url) && !url.path().contains('+'), "{url}");
        }
        for name in ["", ".", ".."] {
            assert_eq!(below(&database, &["a", name]), Err(AddressError::NoName(name.into())));
            assert_eq!(below(&database, &[name, "a"]), Err(AddressError::NoName(name.into())));
        }
        assert_eq!(below(&database, &[]), Ok(database));
    }
}

//! `/_utils`: the console, whose files are in this binary, or another one from a folder (`serve --utils FOLDER`).
//!
//! Everybody may load these files. What they show comes from the API, under the rights of whoever is signed in.
//!
//! The console's own policy admits scripts, styles and requests of this origin, and nothing inline. A console from a
//! folder
//! has the policy of CouchDB's (`csp/utils_header_value`), which Fauxton needs. Neither is shown in a frame.
//!
//! Invariant: of a folder, only files that lie in it are sent. Names such as `..`, and links that lead out of it, are
//! not found.

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, HeaderValue, LOCATION, REFERRER_POLICY,
    VARY, X_FRAME_OPTIONS,
};

use crate::http::config::sandbox::Foreign;
use crate::http::error::{ApiError, Result};
use crate::http::operation::{Content, IF_NONE_MATCH, Operation, Reply};
use crate::http::request::Request;
use crate::http::wire::accept::takes_coding;
use crate::http::wire::response::{self, Body, Response, Stop, Tag};

/// The policy of the console in this binary.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
);

/// Number of bytes of a file that are read at once.
const PIECE: usize = 64 << 10;

/// A file of the console in this binary.
struct Packed {
    name: &'static str,
    content: &'static [u8],
    gzip: Vec<u8>,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../console/", $name)).as_slice())),*]
    };
}

static FILES: LazyLock<Vec<Packed>> = LazyLock::new(|| {
    let files = files![
        "api.js",
        "attachments.js",
        "backups.js",
        "changes.js",
        "compare.js",
        "config.js",
        "counts.js",
        "databases.js",
        "document.js",
        "documents.js",
        "dom.js",
        "icon.svg",
        "index.html",
        "json.js",
        "main.js",
        "meanings.js",
        "purge.js",
        "query.js",
        "replications.js",
        "revisions.js",
        "server.js",
        "settings.js",
        "signin.js",
        "style.css",
        "tree.js",
        "trial.js",
        "users.js",
        "vault.js",
        "views.js",
    ];
    let packed = files.into_iter().map(|(name, content)| Packed { name, content, gzip: gzip(content) });
    packed.collect()
});

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory does not fail. Without it the file is sent as it is.
    encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default()
}

/// What [`read`] does.
pub(crate) const READ: Operation =
    Operation::new("The console.", &[Reply::new(200, &[Content::of("*/*")]), Reply::NOT_MODIFIED])
        .headers(&[IF_NONE_MATCH])
        .refusals(&[301]);

/// `GET /_utils/*`
pub(crate) async fn read(request: &Request, names: &[&str]) -> Result<Response> {
    let mut response = match &request.app.options.utils {
        None => packed(request, names),
        Some(folder) => in_folder(request, folder.clone(), names).await,
    }?;
    let headers = response.headers_mut();
    // A browser asks each time whether its copy is the current one, which the tag tells.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    Ok(response)
}

/// 301 from `/_utils` to `/_utils/`, below which a browser looks for the console's files.
pub(crate) fn redirect() -> Response {
    let mut response = response::empty(StatusCode::MOVED_PERMANENTLY);
    // Relative, since a proxy may serve this server below a path.
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("_utils/"));
    response
}

fn packed(request: &Request, names: &[&str]) -> Result<Response> {
    let name = match names {
        [] => "index.html",
        [name] => name,
        _ => return Err(missing()),
    };
    let file = FILES.iter().find(|file| file.name == name).ok_or_else(missing)?;
    let is_packed = !file.gzip.is_empty() && takes_coding(&request.headers, "gzip");
    let content = if is_packed { Bytes::from_static(&file.gzip) } else { Bytes::from_static(file.content) };
    let tag = Tag::of_content(&content);
    let mut response = match tag.is_known(&request.headers) {
        true => response::not_modified(tag),
        false => {
            let mut response = response::typed(content_type(name), Body::whole(content));
            response::set_etag(&mut response, tag);
            if is_packed {
                response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        }
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
    Ok(response)
}

async fn in_folder(request: &Request, folder: PathBuf, names: &[&str]) -> Result<Response> {
    let path = path_in(&folder, names).ok_or_else(missing)?;
    let name = path.to_string_lossy().into_owned();
    let opened = tokio::task::spawn_blocking(move || open(&folder, &path)).await.map_err(|_| ApiError::internal())?;
    let (mut file, metadata) = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(),
        _ => {
            tracing::warn!(%error, "a file of the console cannot be read");
            ApiError::internal()
        }
    })?;
    let length = metadata.len();
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let tag = Tag::new(&format!("{length:x}-{:x}", changed.map_or(0, |time| time.as_nanos())));
    if tag.is_known(&request.headers) {
        return Ok(response::not_modified(tag));
    }
    let body = response::stream_bytes(move |writer| async move {
        let mut left = length;
        while left > 0 {
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = Vec::with_capacity(PIECE);
                let outcome = Read::by_ref(&mut file).take(left.min(PIECE as u64)).read_to_end(&mut piece);
                (file, outcome.map(|_| piece))
            });
            let (back, piece) = read.await.map_err(|_| ApiError::internal())?;
            file = back;
            // A file that became shorter breaks the answer off.
            let piece = piece.ok().filter(|piece| !piece.is_empty()).ok_or_else(ApiError::internal)?;
            left -= piece.len() as u64;
            writer.send(piece).await?;
        }
        Ok::<(), Stop>(())
    });
    let mut response = response::typed(content_type(&name), body);
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response::set_etag(&mut response, tag);
    response::confine(&mut response, Foreign::Console);
    Ok(response)
}

/// The path of a file in a folder. `None` for names that are not plain names on some system.
fn path_in(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    let is_plain =
        |name: &&str| !name.is_empty() && !matches!(*name, "." | "..") && !name.contains(['/', '\\', ':', '\0']);
    if !names.iter().all(is_plain) {
        return None;
    }
    let mut path = folder.to_owned();
    path.extend(names);
    if names.is_empty() {
        path.push("index.html");
    }
    Some(path)
}

/// Opens a file that lies in a folder, also after links are followed.
fn open(folder: &Path, path: &Path) -> io::Result<(File, Metadata)> {
    let outside = || io::Error::from(io::ErrorKind::NotFound);
    let whole = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Err(outside()),
        whole => whole?,
    };
    // Nothing but a file is opened: to open a pipe would wait.
    if !whole.starts_with(folder.canonicalize()?) || !whole.metadata()?.is_file() {
        return Err(outside());
    }
    let file = File::open(&whole)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// The media type of a file, by the end of its name.
fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "eot" => "application/vnd.ms-fontobject",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn missing() -> ApiError {
    ApiError::not_found("missing")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::known::KNOWN_SETTINGS;

    #[test]
    fn all_files_of_the_console_are_in_the_binary_and_stay_small() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let mut there: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        let mut known: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        known.sort_unstable();
        assert_eq!(known, there);
        let bytes: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        assert!(bytes < 150_000, "{bytes} bytes");
        for file in FILES.iter() {
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(&file.gzip[..]).read_to_end(&mut unpacked).unwrap();
            assert!(unpacked == file.content, "{}", file.name);
            assert_ne!(content_type(file.name), "application/octet-stream", "{}", file.name);
        }
    }

    /// The texts in quotes of the list after `name` in a script, without escapes.
    fn list_after(text: &str, name: &str) -> Option<[String; 2]> {
        let list = text.split_once(name)?.1.trim_start().strip_prefix('[')?;
        let mut rest = list;
        let mut found = Vec::new();
        while found.len() < 2 {
            rest = rest.trim_start_matches([',', ' ', '\n']);
            let quote = rest.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
            let end = rest[1..].char_indices().find(|(at, one)| *one == quote && !rest[1..][..*at].ends_with('\\'))?.0;
            found.push(rest[1..][..end].replace('\\', ""));
            rest = &rest[end + 2..];
        }
        found.try_into().ok()
    }

    #[test]
    fn the_page_of_the_configuration_tells_the_default_and_the_meaning_of_each_setting() {
        let page = FILES.iter().find(|file| file.name == "meanings.js").unwrap();
        let text = std::str::from_utf8(page.content).unwrap();
        let (of_auth, sections) = text.split_once("export const SETTINGS").unwrap();
        for (section, settings) in KNOWN_SETTINGS {
            let begin = format!("\n  {section}: {{");
            let part = sections.split_once(&begin).unwrap_or_else(|| panic!("{section}")).1;
            let part = part.split_once("\n  },").unwrap_or_else(|| panic!("{section}")).0;
            for &(name, default) in *settings {
                let at = |part: &str, begin: &str| {
                    let names = [format!("\n{begin}{name}:"), format!("\n{begin}'{name}':")];
                    names.iter().find_map(|name| list_after(part, name))
                };
                let told = at(part, "    ").or_else(|| at(of_auth, "  ").filter(|_| part.contains("...AUTH")));
                let [said, meaning] = told.unwrap_or_else(|| panic!("{section}/{name}"));
                assert_eq!(said, default, "{section}/{name}");
                assert!(meaning.len() > 10 && meaning.ends_with('.'), "{section}/{name}: {meaning}");
            }
        }
    }

    #[test]
    fn only_files_of_the_folder_are_opened() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("pages");
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        for (name, text) in [("pages/index.html", "first"), ("pages/sub/a.js", "script"), ("secret", "secret")] {
            std::fs::write(place.path().join(name), text).unwrap();
        }
        let text = |names: &[&str]| {
            let (mut file, _) = open(&folder, &path_in(&folder, names)?).ok()?;
            let mut text = String::new();
            file.read_to_string(&mut text).ok()?;
            Some(text)
        };
        assert_eq!(text(&[]).as_deref(), Some("first"));
        assert_eq!(text(&["sub", "a.js"]).as_deref(), Some("script"));
        for none in [
            &["sub"][..],
            &["none"],
            &["index.html", "x"],
            &["..", "secret"],
            &["../secret"],
            &["sub", "..", "a"],
            &["."],
            &["sub\\..\\..\\secret"],
            &["C:"],
            &["a\0"],
        ] {
            assert_eq!(text(none), None, "{none:?}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(place.path().join("secret"), folder.join("out")).unwrap();
            std::os::unix::fs::symlink(place.path(), folder.join("up")).unwrap();
            std::os::unix::fs::symlink(folder.join("index.html"), folder.join("in")).unwrap();
            assert_eq!(text(&["out"]), None, "a link that leads out");
            assert_eq!(text(&["up", "secret"]), None, "through a link that leads out");
            assert_eq!(text(&["in"]).as_deref(), Some("first"), "a link within");
        }
    }
}

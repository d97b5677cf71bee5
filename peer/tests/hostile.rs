//! Servers that answer endlessly or slowly, or redirect to another server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::TryStreamExt;
use model::{BulkGet, Edit, Encoding, JsonText, Purge, RevId, WriteMode};
use peer::{
    Attachment, Clients, Connecting, Docs, Error, ErrorKind, FeedRequest, Filter, Http, IdRange, Method, Peer,
    ReadOptions, Trust,
};

/// Heads of requests, as they came.
type Heads = Arc<Mutex<Vec<String>>>;

/// A server that answers each request with `answer`, which gets the head. It closes the connection after each answer.
fn serve(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> (SocketAddr, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, answer, heads) = (listener.local_addr().unwrap(), Arc::new(answer), Heads::default());
    let seen = heads.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (answer, seen, mut client) = (answer.clone(), seen.clone(), client.unwrap());
            std::thread::spawn(move || {
                let (mut reader, mut head) = (BufReader::new(client.try_clone().unwrap()), String::new());
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
                let length = head
                    .lines()
                    .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                let _ = std::io::Read::read_exact(&mut reader, &mut body);
                seen.lock().unwrap().push(head.clone());
                // The peer may have closed the connection, as these tests expect.
                let _ = answer(&head, &mut client);
            });
        }
    });
    (address, heads)
}

fn peer(address: SocketAddr) -> Http {
    Http::new(format!("http://{address}/db").parse().unwrap()).unwrap()
}

/// A server that begins each answer with `head`, sends spaces without end, and counts them.
fn endless(head: &'static str) -> (SocketAddr, Arc<AtomicU64>) {
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let (address, _) = serve(move |_, client| {
        client.write_all(head.as_bytes())?;
        loop {
            client.write_all(&[b' '; 1 << 16])?;
            count.fetch_add(1 << 16, Ordering::Relaxed);
        }
    });
    (address, sent)
}

fn rev() -> RevId {
    "1-967a00dff5e02add41819138abb3284d".parse().unwrap()
}

/// The failure of each request to a server.
async fn failures(http: &Http) -> Vec<(&'static str, Error)> {
    let ids = ["a".to_owned(), "b".to_owned()];
    let wanted =
        |ids: &[String]| -> Vec<_> { ids.iter().map(|id| BulkGet { id: id.clone(), rev: Some(rev()) }).collect() };
    let changes = |filter| FeedRequest { limit: 500, filter, ..FeedRequest::default() };
    let list = |docs| IdRange { limit: 100, docs, ..IdRange::default() };
    let body = JsonText::empty_object();
    let edits = || vec![Edit::new("a", JsonText::empty_object()).over(rev())];
    let purges = [Purge { id: "a".into(), revs: vec![rev()], uuid: None }];
    let mut all = vec![
        ("info", http.info().await.map(drop)),
        ("create", http.create(&[]).await.map(drop)),
        ("ask", http.ask(Method::GET, &["_couch_layer", "check"], &[], None).await.map(drop)),
        ("changes", http.changes(&changes(Filter::None)).await.map(drop)),
        ("changes of ids", http.changes(&changes(Filter::DocIds(ids.to_vec()))).await.map(drop)),
        ("ids", http.list(&list(Docs::Revs)).await.map(drop)),
        ("documents", http.list(&list(Docs::Bodies)).await.map(drop)),
        ("winners", http.winners(&ids).await.map(drop)),
        ("revs_diff", http.revs_diff(ids.iter().map(|id| (id.clone(), vec![rev()])).collect()).await.map(drop)),
        ("write", http.write(edits(), WriteMode::Replicated).await.map(drop)),
        ("purge", http.purge(&purges).await.map(drop)),
        ("get_local", http.get_local("_local/x").await.map(drop)),
        ("put_local", http.put_local("_local/x", None, &body).await.map(drop)),
        ("commit", http.commit().await.map(drop)),
    ];
    let options = ReadOptions { ancestors: true, latest: true, most_bytes: Some(2 << 20) };
    for (name, ids) in [("several", &ids[..]), ("one", &ids[..1])] {
        // A document's failure is its own, so that others arrive.
        let read = http.read(&wanted(ids), options).await.map(|found| found.into_iter().collect::<Result<Vec<_>, _>>());
        all.push((name, read.flatten().map(drop)));
    }
    all.into_iter().map(|(name, done)| (name, done.expect_err(name))).collect()
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{";

#[tokio::test]
async fn an_answer_without_end_is_an_error_and_is_not_read_further() {
    let (address, sent) = endless(CHUNKED);
    let mut before = 0;
    for (name, error) in failures(&peer(address)).await {
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{name}: {error}");
        assert!(error.to_string().contains("is longer than"), "{name}: {error}");
    }
    // Bound of all answers: the ceilings, the one of documents several times, and the buffers of sockets.
    before += sent.load(Ordering::Relaxed);
    assert!(before < 700 << 20, "{before}");
}

#[tokio::test]
async fn an_answer_that_names_its_endless_length_is_not_read_at_all() {
    let (address, sent) = endless("HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n");
    for (name, error) in failures(&peer(address)).await {
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{name}: {error}");
    }
    // The rest was in the buffers of sockets.
    assert!(sent.load(Ordering::Relaxed) < 400 << 20);
}

#[tokio::test]
async fn of_a_refusal_without_end_the_status_counts() {
    let (address, sent) = endless("HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{");
    for (name, error) in failures(&peer(address)).await {
        assert_eq!((error.kind(), error.status()), (ErrorKind::Unavailable, Some(503)), "{name}: {error}");
    }
    assert!(sent.load(Ordering::Relaxed) < 400 << 20);
}

#[tokio::test]
async fn a_head_without_end_is_an_error() {
    let (address, _) = serve(|_, client| {
        client.write_all(b"HTTP/1.1 200 OK\r\n")?;
        loop {
            client.write_all(b"X-More: and more\r\n")?;
        }
    });
    let error = peer(address).info().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let (address, sent) = endless("HTTP/1.1 200 OK\r\nX-Long: ");
    let error = peer(address).info().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(sent.load(Ordering::Relaxed) < 50 << 20);
}

#[tokio::test]
async fn an_answer_that_trickles_ends() {
    let (address, _) = serve(|_, client| {
        client.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{")?;
        loop {
            client.write_all(b" ")?;
            client.flush()?;
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let connecting = Connecting { silence: Duration::from_millis(100), ..Connecting::default() };
    let clients = Clients::new(Trust::default());
    let http = clients.connecting(format!("http://{address}/db").parse().unwrap(), connecting).unwrap();
    let error = http.info().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let attachment = attachment(1 << 40);
    let read = http.attachment("a", &rev(), &attachment).try_for_each(|_| async { Ok(()) }).await;
    assert!(read.unwrap_err().is_transient());
}

fn attachment(length: u64) -> Attachment {
    let (name, content_type) = ("x".to_owned(), "text/plain".to_owned());
    Attachment { name, content_type, revpos: 1, length, encoding: Encoding::Identity, encoded_length: length }
}

#[tokio::test]
async fn an_attachment_has_no_more_bytes_than_its_document_says() {
    let (address, sent) = endless(CHUNKED);
    let http = peer(address);
    let read = http.attachment("a", &rev(), &attachment(100_000)).map_ok(|piece| piece.len() as u64);
    let mut came = 0;
    let read = read.try_for_each(|bytes| {
        came += bytes;
        std::future::ready(Ok(()))
    });
    let error = read.await.unwrap_err();
    assert!(error.to_string().contains("another length"), "{error}");
    assert!(came <= 100_000 && sent.load(Ordering::Relaxed) < 50 << 20, "{came}");
}

/// The received requests show what was sent for each name.
#[tokio::test]
async fn names_are_sent_as_they_are_or_not_in_a_url() {
    let body = r#"{"results":[{"id":"a","docs":[{"ok":{"_id":"a","_attachments":{"..":{"data":"eWVz"}}}}]}]}"#;
    let (address, heads) = serve(move |head, client| {
        let body = if head.starts_with("POST") { body } else { "yes" };
        write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    });
    let http = peer(address);
    let read = async |id: &str, name: &str, length: u64| {
        let attachment = Attachment { name: name.to_owned(), ..attachment(length) };
        let pieces: Result<Vec<_>, Error> = http.attachment(id, &rev(), &attachment).try_collect().await;
        pieces.map(|pieces| pieces.concat())
    };
    for (id, name) in [("a\t\r\n", "report\tMarch"), ("a", ".."), ("..", "..")] {
        assert_eq!(read(id, name, 3).await.unwrap(), b"yes", "{id:?} {name:?}");
    }
    let lines: Vec<String> = heads.lock().unwrap().iter().map(|head| head.lines().next().unwrap().to_owned()).collect();
    let in_json = "POST /db/_bulk_get?attachments=true HTTP/1.1";
    let in_url = format!("GET /db/a%09%0D%0A/report%09March?rev={} HTTP/1.1", rev());
    assert_eq!(lines, [&*in_url, in_json, in_json]);
    // Each is the failure of a document, without a retry.
    for (name, length, said) in [("..", 2, "another length"), ("..", 4, "another length"), (".", 3, "did not send")] {
        let error = read("a", name, length).await.unwrap_err();
        assert!(error.to_string().contains(said) && !error.is_transient(), "{error}");
    }
    let error = http.get_local("_local/..").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::Refused, r#"a URL cannot carry the name "..""#.to_owned())
    );

    let (address, sent) = endless(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{\"results\":[{\"docs\":[{\"ok\":{\"_attachments\":{\"..\":{\"data\":\"",
    );
    let attachment = Attachment { name: "..".to_owned(), ..attachment(1 << 40) };
    let read: Result<Vec<_>, Error> = peer(address).attachment("a", &rev(), &attachment).try_collect().await;
    assert_eq!(read.unwrap_err().to_string(), "an attachment is not base64");
    assert!(sent.load(Ordering::Relaxed) < 50 << 20);
}

#[tokio::test]
async fn what_a_server_says_is_cut() {
    let (address, _) = serve(|_, client| {
        let body = format!(r#"{{"error":"x","reason":"{}"}}"#, "ä".repeat(20_000));
        write!(client, "HTTP/1.1 400 x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    });
    let error = peer(address).info().await.unwrap_err();
    assert!(error.to_string().len() < 1_100, "{}", error.to_string().len());
    assert!(error.to_string().ends_with("bytes more)"), "{error}");
    let (address, _) = serve(|_, client| {
        let body = format!(r#"{{"doc_count":1,"update_seq":"{}"}}"#, "x".repeat(20_000));
        write!(client, "HTTP/1.1 200 x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    });
    let error = peer(address).info().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Nonsense, "{error}");
}

#[tokio::test]
async fn a_page_of_long_rows_is_read_in_smaller_ones() {
    // Rows of documents with many conflicts: each takes 30,000 bytes.
    let (address, heads) = serve(|head, client| {
        let path = head.split(' ').nth(1).unwrap();
        let number = |name: &str| -> u64 {
            let after = path.split(['?', '&']).find_map(|part| part.strip_prefix(name)).unwrap();
            after.parse().unwrap()
        };
        let (since, limit) = (number("since="), number("limit="));
        let revs = vec![r#"{"rev":"1-967a00dff5e02add41819138abb3284d"}"#; 700].join(",");
        let last = (since + limit).min(100);
        let row = |seq| format!(r#"{{"seq":{seq},"id":"d{seq}","changes":[{revs}]}}"#);
        let rows: Vec<String> = (since + 1..=last).map(row).collect();
        let body = format!(r#"{{"results":[{}],"last_seq":{last},"pending":{}}}"#, rows.join(","), 100 - last);
        write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    });
    let http = peer(address);
    let mut request = FeedRequest { limit: 500, ..FeedRequest::default() };
    let mut ids = Vec::new();
    loop {
        let page = http.changes(&request).await.unwrap();
        assert!(page.rows.iter().all(|row| row.revs.len() == 700));
        ids.extend(page.rows.into_iter().map(|row| row.id));
        if !page.more {
            break;
        }
        request.since = Some(page.last_seq);
    }
    assert_eq!(ids, (1..=100).map(|seq| format!("d{seq}")).collect::<Vec<_>>());
    assert!(heads.lock().unwrap().len() > 4);
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect_to_another_server() {
    const DESCRIBED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{\"doc_count\":0}";
    let (other, heads_of_other) = serve(|_, client| client.write_all(DESCRIBED.as_bytes()));
    let (own, heads) = serve(move |head, client| {
        let to = match head.split(' ').nth(1).unwrap() {
            "/there" => "/here".to_owned(),
            "/elsewhere" => format!("http://{other}/db"),
            _ => return client.write_all(DESCRIBED.as_bytes()),
        };
        write!(client, "HTTP/1.1 302 x\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    });
    let secrets = ["authorization: basic", "cookie: authsession", "x-auth-token: geheim", "x-more: geheim"];
    for (path, is_kept) in [("there", true), ("elsewhere", false)] {
        let address = format!("http://anna:geheim@{own}/{path}").parse::<peer::Address>().unwrap();
        let address = address.with_header("Cookie", "AuthSession=geheim").unwrap();
        let address = address.with_header("X-Auth-Token", "geheim").unwrap().with_header("X-More", "geheim").unwrap();
        Http::new(address).unwrap().info().await.unwrap();
        let heads = if is_kept { &heads } else { &heads_of_other };
        let last = heads.lock().unwrap().last().unwrap().to_ascii_lowercase();
        for secret in secrets {
            assert_eq!(last.contains(secret), is_kept, "{path} {secret}: {last}");
        }
        assert!(is_kept || !last.contains("geheim"), "{last}");
    }
    // The first server got them in each case.
    assert!(heads.lock().unwrap().iter().all(|head| head.contains("AuthSession=geheim")));
}

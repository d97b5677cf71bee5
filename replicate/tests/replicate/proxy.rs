//! Faults of a network and its proxies, on the wire: answers that are lost, cut off, late or 5xx, and servers without
//! `_bulk_get`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::{Edit, WriteMode};
use peer::{Clients, Connecting, Http, Peer, Trust};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use replicate::{Options, replicate};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;

use crate::faults::hasty;
use crate::support::{World, contents, fill, identity, json};

/// The fate of a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Pass,
    /// It never arrives.
    Drop,
    /// It is executed, but the answer is lost.
    Forget,
    /// The answer is cut off.
    Truncate,
    /// The answer comes late.
    Delay,
    /// It is sent twice.
    Double,
    /// It gets another answer.
    Answer(u16),
}

/// Stands in front of a server; `decide` gets the first line of each request.
async fn stand(server: SocketAddr, decide: impl Fn(&str) -> Fate + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let decide = Arc::new(decide);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let decide = decide.clone();
            // An error means that a connection ended, as these tests expect.
            tokio::spawn(async move { drop(pass(client, server, &*decide).await) });
        }
    });
    address
}

/// One request and its answer; the connection ends with it.
async fn pass(
    client: TcpStream,
    server: SocketAddr,
    decide: &(dyn Fn(&str) -> Fate + Send + Sync),
) -> std::io::Result<()> {
    let mut client = BufReader::new(client);
    let (mut head, mut length, mut line) = (Vec::new(), 0, String::new());
    client.read_line(&mut line).await?;
    let first = std::mem::take(&mut line);
    head.extend_from_slice(first.as_bytes());
    loop {
        line.clear();
        client.read_line(&mut line).await?;
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "connection" => continue,
            "content-length" => length = value.trim().parse().unwrap(),
            "transfer-encoding" => panic!("lengths are told"),
            _ => {}
        }
        head.extend_from_slice(line.as_bytes());
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    let mut body = vec![0; length];
    client.read_exact(&mut body).await?;
    let request = [head, body].concat();
    let answer = async || {
        let mut answer = Vec::new();
        let mut server = TcpStream::connect(server).await?;
        server.write_all(&request).await?;
        server.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = match decide(first.trim()) {
        Fate::Pass => answer().await?,
        Fate::Drop => return Ok(()),
        Fate::Forget => return answer().await.map(drop),
        Fate::Truncate => {
            let whole = answer().await?;
            whole[..whole.len() - whole.len().min(20)].to_vec()
        }
        Fate::Delay => {
            tokio::time::sleep(Duration::from_millis(20)).await;
            answer().await?
        }
        Fate::Double => {
            answer().await?;
            answer().await?
        }
        Fate::Answer(status) => {
            let body = r#"{"error":"proxy","reason":"said so"}"#;
            format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
                .into_bytes()
        }
    };
    client.get_mut().write_all(&answer).await
}

async fn far(address: SocketAddr, name: &str) -> Arc<dyn Peer> {
    Arc::new(Http::new(format!("http://{address}/{name}").parse().unwrap()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_equal_whatever_a_proxy_does() {
    let faults = Arc::new(AtomicU64::new(0));
    for seed in 0..4 {
        println!("seed {seed}");
        let world = World::new().await;
        fill(&world.create("one").await, &mut StdRng::seed_from_u64(seed), 80, &[10, 70_000]).await;
        world.create("other").await;
        let (dice, count) = (Mutex::new(StdRng::seed_from_u64(seed + 1_000)), faults.clone());
        let server = world.server_address();
        let proxy = stand(server, move |_| {
            let roll = dice.lock().unwrap().random_range(0..24);
            count.fetch_add(u64::from(roll < 8), Ordering::Relaxed);
            match roll {
                0 => Fate::Drop,
                1 => Fate::Forget,
                2 => Fate::Truncate,
                3 => Fate::Delay,
                4 => Fate::Double,
                5 => Fate::Answer(500),
                6 => Fate::Answer(503),
                7 => Fate::Answer(429),
                _ => Fate::Pass,
            }
        });
        let proxy = proxy.await;
        let options = Options { batch_size: 15, checkpoint_interval: Duration::ZERO, ..Options::default() };
        let replication = replicate(far(proxy, "one").await, far(proxy, "other").await, identity());
        let report = replication.with_options(options).with_environment(hasty(seed)).run().await.unwrap();
        assert_eq!(report.figures.doc_write_failures, 0, "seed {seed}");
        let (one, other) = (world.local("one").await, world.local("other").await);
        assert!(contents(&*one).await == contents(&*other).await, "seed {seed}");
    }
    let faults = faults.load(Ordering::Relaxed);
    assert!(faults > 60, "{faults}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_target_is_asked_once_the_feeds_end_was_reached() {
    let world = World::new().await;
    let one = world.create("one").await;
    // Not a multiple of the batch: the feed's last page tells that it is the last one.
    fill(&one, &mut StdRng::seed_from_u64(6), 60, &[10]).await;
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let proxy = stand(world.server_address(), move |first| {
        counted.fetch_add(u64::from(first.contains("/_revs_diff")), Ordering::Relaxed);
        Fate::Pass
    });
    let proxy = proxy.await;
    for (name, is_continuous) in [("other", false), ("follower", true)] {
        let arrived = world.create(name).await;
        let (source, target) = (world.local("one").await, far(proxy, name).await);
        let options = Options { batch_size: 10, ..Options::default() };
        let replication = replicate(source.clone(), target, identity()).with_options(options);
        let count = one.info().await.unwrap().doc_count;
        let running = is_continuous.then(|| {
            let replication = replication.clone().continuous();
            tokio::spawn(async move { replication.run().await })
        });
        if running.is_none() {
            replication.run().await.unwrap();
        }
        let mut seen = arrived.watch_changes(arrived.last_seq().await.unwrap());
        let mut has = async |count| {
            while arrived.info().await.unwrap().doc_count < count {
                seen.changed().await.unwrap();
            }
        };
        has(count).await;
        assert_eq!(asked.swap(0, Ordering::Relaxed), 0, "{name}");
        one.put(Edit::new(format!("later-{name}"), json("{}"))).await.unwrap();
        if running.is_none() {
            replication.run().await.unwrap();
        }
        has(count + 1).await;
        assert_eq!(asked.swap(0, Ordering::Relaxed), 1, "{name}");
        assert!(contents(&*source).await == contents(&*world.local(name).await).await, "{name}");
        if let Some(running) = running {
            running.abort();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_were_not_sent_are_not_refused_documents() {
    let world = World::new().await;
    let one = world.create("one").await;
    let edits = (0..1_000).map(|number| Edit::new(format!("{number}"), json("{}")));
    one.write(edits.collect(), WriteMode::Interactive).await.unwrap();
    world.create("other").await;
    let asked = AtomicU64::new(0);
    // The first page is sent in requests of 32 documents. Of the second one, the first request is answered.
    let proxy = stand(world.server_address(), move |first| match first.contains("/_bulk_docs") {
        true if asked.fetch_add(1, Ordering::Relaxed) >= 17 => Fate::Answer(500),
        _ => Fate::Pass,
    });
    let target = far(proxy.await, "other").await;
    let options = Options { batch_size: 500, workers: 1, retries: Some(0), ..Options::default() };
    let replication = replicate(world.local("one").await, target, identity()).with_options(options);
    let failure = replication.run().await.unwrap_err();
    assert!(failure.to_string().contains("500"), "{failure}");
    let arrived = world.layer.database("other").await.unwrap().info().await.unwrap().doc_count;
    assert!((501..1_000).contains(&arrived), "{arrived}");
}

/// After a failure requests have fewer documents. So a write has many of them, and repeating it as a whole would hardly
/// ever succeed.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_goes_on_behind_the_requests_that_were_answered() {
    let world = World::new().await;
    fill(&world.create("one").await, &mut StdRng::seed_from_u64(5), 60, &[10]).await;
    world.create("other").await;
    let (asked, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counted = (asked.clone(), refused.clone());
    let proxy = stand(world.server_address(), move |first| match first.contains("/_bulk_docs") {
        true if counted.0.fetch_add(1, Ordering::Relaxed) % 2 == 1 => {
            counted.1.fetch_add(1, Ordering::Relaxed);
            Fate::Answer(503)
        }
        _ => Fate::Pass,
    });
    let target = far(proxy.await, "other").await;
    let options = Options { workers: 1, ..Options::default() };
    let replication = replicate(world.local("one").await, target, identity());
    let report = replication.with_options(options).with_environment(hasty(5)).run().await.unwrap();
    assert_eq!(report.figures.doc_write_failures, 0);
    assert!(contents(&*world.local("one").await).await == contents(&*world.local("other").await).await);
    let refused = refused.load(Ordering::Relaxed);
    assert!(refused > 20, "a failure for every request that succeeds, and {refused} at all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_without_bulk_get_is_read_document_by_document() {
    let world = World::new().await;
    fill(&world.create("one").await, &mut StdRng::seed_from_u64(3), 60, &[10, 70_000]).await;
    for status in [404, 405, 501] {
        let (asked, other) = (Arc::new(AtomicU64::new(0)), format!("other-{status}"));
        world.create(&other).await;
        let counted = asked.clone();
        let proxy = stand(world.server_address(), move |first| match first.contains("/_bulk_get") {
            true => {
                counted.fetch_add(1, Ordering::Relaxed);
                Fate::Answer(status)
            }
            false => Fate::Pass,
        });
        let source = far(proxy.await, "one").await;
        let target = world.local(&other).await;
        let options = Options { batch_size: 20, workers: 1, ..Options::default() };
        let report = replicate(source, target.clone(), identity()).with_options(options).run().await.unwrap();
        assert_eq!(report.figures.doc_write_failures, 0);
        let (ours, theirs) = (contents(&*world.local("one").await).await, contents(&*target).await);
        assert_eq!(ours.len(), theirs.len());
        assert!(ours == theirs, "{:?}", ours.iter().zip(&theirs).find(|(one, other)| one != other));
        assert_eq!(asked.load(Ordering::Relaxed), 1, "it is asked for once");
    }
}

/// Describes a database to every request, and counts the connections.
async fn describe(connections: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let (mut client, mut line) = (BufReader::new(client), String::new());
                while client.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                    if line.trim().is_empty() {
                        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"doc_count\":0}";
                        client.get_mut().write_all(answer.as_bytes()).await.unwrap();
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn peers_of_equal_settings_share_connections() {
    let connections = Arc::new(AtomicU64::new(0));
    let address = describe(connections.clone()).await;
    let clients = Clients::new(Trust::default());
    for number in 0..10 {
        let database = format!("http://user{number}:secret@{address}/{number}").parse().unwrap();
        clients.database(database).unwrap().info().await.unwrap();
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    for _ in 0..2 {
        far(address, "own").await.info().await.unwrap();
    }
    assert_eq!(connections.load(Ordering::Relaxed), 3);
}

/// Answers requests in pairs, and keeps the largest number that ran at the same time.
async fn answer_pairs(most: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (pair, under_way) = (Arc::new(Barrier::new(2)), Arc::new(AtomicU64::new(0)));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (pair, under_way, most) = (pair.clone(), under_way.clone(), most.clone());
            tokio::spawn(async move {
                let (mut client, mut line) = (BufReader::new(client), String::new());
                while client.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                    if line.trim().is_empty() {
                        most.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        pair.wait().await;
                        under_way.fetch_sub(1, Ordering::SeqCst);
                        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"doc_count\":0}";
                        client.get_mut().write_all(answer.as_bytes()).await.unwrap();
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_has_no_more_requests_under_way_than_it_may() {
    for connections in [2, 20] {
        let most = Arc::new(AtomicU64::new(0));
        let address = answer_pairs(most.clone()).await;
        let connecting = Connecting { connections, ..Connecting::default() };
        let clients = Clients::new(Trust::default());
        let peer = clients.connecting(format!("http://{address}/db").parse().unwrap(), connecting).unwrap();
        let asked = (0..40).map(|_| {
            let peer = peer.clone();
            tokio::spawn(async move { peer.info().await.unwrap() })
        });
        for asked in asked.collect::<Vec<_>>() {
            asked.await.unwrap();
        }
        assert!(most.load(Ordering::SeqCst) <= connections as u64);
    }
}

#[tokio::test]
async fn a_request_is_repeated_as_often_as_it_may() {
    let world = World::new().await;
    world.create("one").await;
    let seen = Arc::new(AtomicU64::new(0));
    let count = seen.clone();
    let proxy = stand(world.server_address(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Fate::Answer(503)
    });
    let (source, target) = (far(proxy.await, "one").await, world.local("one").await);
    for (retries, expected) in [(Some(0), 1), (Some(7), 8), (None, 5)] {
        seen.store(0, Ordering::Relaxed);
        let options = Options { retries, ..Options::default() };
        let run = replicate(source.clone(), target.clone(), identity()).with_options(options);
        assert!(run.with_environment(hasty(1)).run().await.is_err());
        assert_eq!(seen.load(Ordering::Relaxed), expected, "{retries:?}");
    }
}

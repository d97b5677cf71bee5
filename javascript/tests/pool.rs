//! Sandboxes on threads.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use futures_executor::block_on as wait;
use futures_util::future::{Either, FutureExt, select};
use javascript::{Design, ErrorKind, Limits, Pool};

/// The design document of a database.
fn of(database: u8, text: impl Into<Arc<str>>) -> Design {
    Design { database: [database; 16], text: text.into() }
}

fn design(map: &str) -> Design {
    of(1, serde_json::json!({"views": {"v": {"map": map}}}).to_string())
}

/// The key of the only row of an empty document.
fn key(pool: &Pool, design: &Design) -> String {
    let mut rows = wait(pool.run(design, |sandbox| sandbox.map(&["v"], "{}"))).unwrap();
    rows.remove(0).unwrap().remove(0).key
}

const COUNTED: &str = "doc => { globalThis.calls = (globalThis.calls || 0) + 1; emit(calls) }";

#[test]
fn equal_design_documents_of_a_database_share_a_sandbox() {
    let pool = Pool::new(1, Limits::default());
    assert_eq!(key(&pool, &design(COUNTED)), "1");
    assert_eq!(key(&pool, &design(COUNTED)), "2");
    assert_eq!(key(&pool, &design(&format!("{COUNTED} "))), "1");
    // Enough other sandboxes push it out.
    for other in 0..32 {
        key(&pool, &design(&format!("doc => emit({other})")));
    }
    assert_eq!(key(&pool, &design(COUNTED)), "1");
}

#[test]
fn equal_design_documents_of_two_databases_share_nothing() {
    let pool = Pool::new(1, Limits::default());
    let private = design("doc => { globalThis.kept = (globalThis.kept || []).concat(doc.secret || []); emit(kept) }");
    // The text is the very same.
    let public = Design { database: [2; 16], ..private.clone() };
    // Each database may run on either thread, so the private one stores its secret again in each round.
    for _ in 0..8 {
        wait(pool.run(&private, |sandbox| sandbox.map(&["v"], r#"{"secret":"s"}"#))).unwrap()[0].as_ref().unwrap();
        assert_eq!(key(&pool, &public), "[]");
    }
}

/// A run that ends when the sender is dropped, or something is sent.
fn held(
    pool: &Pool,
    design: &Design,
) -> (mpsc::Sender<()>, impl Future<Output = Result<(), javascript::Error>> + use<>) {
    let (release, released) = mpsc::channel();
    (release, pool.run(design, move |_| released.recv().unwrap_or_default()))
}

#[test]
fn runs_of_one_database_do_not_take_all_threads() {
    let pool = Pool::new(2, Limits::default());
    let (one, other) = (of(1, "{}"), of(2, "{}"));
    let (release, many): (Vec<_>, Vec<_>) = (0..4).map(|_| held(&pool, &one)).unzip();
    // None of the four ends before this.
    assert_eq!(wait(pool.run(&other, |_| 7)), Ok(7));
    drop(release);
    many.into_iter().for_each(|run| wait(run).unwrap());
}

#[test]
fn databases_have_their_turns_and_not_runs() {
    let pool = Pool::new(1, Limits::default());
    // Both threads are busy until all others wait. Then one of them serves them.
    let [(release, busy), (release_other, other)] = [8, 9].map(|database| held(&pool, &of(database, "{}")));
    let ran = Arc::new(Mutex::new(Vec::new()));
    let run = |database: u8| {
        let ran = ran.clone();
        pool.run(&of(database, "{}"), move |_| ran.lock().unwrap().push(database))
    };
    let waiting: Vec<_> = [1, 1, 1, 1, 1, 2, 2, 3].map(run).into();
    drop(release);
    waiting.into_iter().for_each(|run| wait(run).unwrap());
    assert_eq!(*ran.lock().unwrap(), [1, 2, 3, 1, 2, 1, 1, 1]);
    drop(release_other);
    assert_eq!((wait(busy), wait(other)), (Ok(()), Ok(())));
}

#[test]
fn a_sandbox_without_memory_is_replaced() {
    let pool = Pool::new(1, Limits { memory: 8 << 20, ..Limits::default() });
    let map = "doc => { globalThis.kept = globalThis.kept || []; for (;;) kept.push('x' + kept.length) }";
    for _ in 0..3 {
        let rows = wait(pool.run(&design(map), |sandbox| sandbox.map(&["v"], "{}"))).unwrap();
        assert_eq!(rows[0].as_ref().unwrap_err().kind(), ErrorKind::Memory);
    }
}

#[test]
fn a_sandbox_that_holds_much_is_not_kept() {
    let pool = Pool::new(1, Limits::default());
    let calls = |bytes: &str| {
        let map = format!(
            "doc => {{ globalThis.calls = (globalThis.calls || 0) + 1; globalThis.held = new Uint8Array({bytes}); emit(calls) }}"
        );
        key(&pool, &design(&map))
    };
    assert_eq!([calls("1e7"), calls("1e7")], ["1", "2"]);
    assert_eq!([calls("2e7"), calls("2e7")], ["1", "1"]);
}

#[test]
fn a_run_of_many_calls_lets_others_have_their_turn() {
    let pool = Pool::new(1, Limits { turn: Duration::ZERO, ..Limits::default() });
    let design = of(1, r#"{"filters":{"odd":"doc => doc.n % 2"}}"#);
    let filter = |count: usize| {
        let documents = (0..count).map(|n| format!(r#"{{"n":{n}}}"#)).collect();
        Box::pin(pool.run_in_turns(
            &design,
            documents,
            |_| Ok(()),
            |sandbox, document: &String| sandbox.filter("odd", document, "{}").map(Some),
        ))
    };
    // Many: this thread may be late with the second.
    let first = wait(select(filter(5_000), filter(2)));
    let Either::Right((few, many)) = first else { panic!("the second had to wait") };
    assert_eq!(few.unwrap(), [false, true]);
    assert_eq!(wait(many).unwrap(), (0..5_000).map(|n| n % 2 == 1).collect::<Vec<_>>());
}

#[test]
fn a_turn_may_end_between_the_views_of_a_document() {
    let pool = Pool::new(1, Limits { turn: Duration::ZERO, ..Limits::default() });
    let views = serde_json::json!({"a": {"map": "d => emit(1)"}, "b": {"map": "d => emit(2)"}});
    let design = of(1, serde_json::json!({ "views": views }).to_string());
    let keys = |views: &'static [&str]| {
        let rows = wait(pool.run(&design, |sandbox| sandbox.map(views, "{}"))).unwrap();
        rows.into_iter().map(|rows| rows.unwrap().remove(0).key).collect::<Vec<_>>()
    };
    assert_eq!((keys(&["a", "b"]), keys(&["b"])), (vec!["1".to_owned()], vec!["2".to_owned()]));
}

/// A design document with this many views, and the paths of their map functions.
fn with_views(count: usize, map: &str) -> (Design, Vec<Vec<String>>) {
    let views: serde_json::Map<_, _> =
        (0..count).map(|n| (format!("v{n}"), serde_json::json!({"map": format!("{map} // {n}")}))).collect();
    let paths = views.keys().map(|name| ["views", name, "map"].map(str::to_owned).to_vec()).collect();
    (of(1, serde_json::json!({ "views": views }).to_string()), paths)
}

#[test]
fn functions_are_compiled_in_turns() {
    let pool = Pool::new(1, Limits { turn: Duration::ZERO, ..Limits::default() });
    let counted = "(() => { globalThis.compiled = (globalThis.compiled || 0) + 1; return doc => emit(compiled) })()";
    let (design, paths) = with_views(50, counted);
    // The thread is busy until both others wait for it.
    let (go, may_go) = mpsc::channel();
    let busy = pool.run(&design, move |_| may_go.recv().unwrap());
    let mut compiling = Box::pin(pool.compile(&design, paths));
    assert_eq!((&mut compiling).now_or_never(), None);
    let between = pool.run(&design, |sandbox| sandbox.map(&["v0"], "{}"));
    go.send(()).unwrap();
    assert_eq!((wait(busy), wait(compiling)), (Ok(()), Ok(())));
    let rows = wait(between).unwrap();
    assert_eq!(rows[0].as_ref().unwrap()[0].key, "1");
}

#[test]
fn functions_share_the_time_to_compile_them() {
    let pool = Pool::new(1, Limits { time: Duration::from_millis(100), ..Limits::default() });
    let (design, paths) = with_views(2_000, "(() => { for (let i = 0; i < 20_000; i++); return doc => emit(1) })()");
    let error = wait(pool.compile(&design, paths)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Time);
    assert_eq!(error.reason(), "compiling functions took longer than 100ms");
    let views: Vec<String> = (0..2_000).map(|n| format!("v{n}")).collect();
    let error = wait(pool.run(&of(1, format!("{} ", design.text)), move |sandbox| {
        sandbox.compile_views(views.iter().map(|view| (view.as_str(), false)))
    }));
    assert_eq!(error.unwrap().unwrap_err().kind(), ErrorKind::Time);
}

#[test]
fn thousands_of_functions_are_compiled_in_time() {
    let pool = Pool::new(1, Limits::default());
    let (design, paths) = with_views(15_000, "doc => emit(1)");
    assert_eq!(wait(pool.compile(&design, paths)), Ok(()));
}

#[test]
fn a_function_that_nobody_waits_for_is_stopped_and_its_sandbox_replaced() {
    let pool = Pool::new(1, Limits { time: Duration::from_secs(600), ..Limits::default() });
    let map = "doc => { globalThis.calls = (globalThis.calls || 0) + 1; while (doc.endless); emit(calls) }";
    let design = design(map);
    let (began, has_begun) = mpsc::channel();
    let endless = pool.run(&design, move |sandbox| {
        began.send(()).unwrap();
        sandbox.map(&["v"], r#"{"endless":true}"#)
    });
    has_begun.recv().unwrap();
    drop(endless);
    let begun = Instant::now();
    assert_eq!(key(&pool, &design), "1");
    assert!(begun.elapsed() < Duration::from_secs(300));
}

#[test]
fn a_panic_and_a_broken_design_document_are_errors() {
    let pool = Pool::new(1, Limits::default());
    let good = design("doc => emit(1)");
    let error = wait(pool.run(&good, |_| -> () { panic!("on purpose") })).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine);
    let error = wait(pool.run(&of(1, "{"), |_| ())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine);
    assert_eq!(wait(pool.run(&good, |_| 7)), Ok(7));
}

#[test]
fn threads_work_beside_each_other_and_leave_with_the_pool() {
    let pool = Pool::new(2, Limits::default());
    let good = design("doc => emit(1)");
    let (to_first, from_second) = mpsc::channel();
    let first = pool.run(&good, move |_| from_second.recv_timeout(Duration::from_secs(60)));
    let second = pool.run(&good, move |_| to_first.send(5).unwrap());
    assert_eq!(wait(second), Ok(()));
    assert_eq!(wait(first), Ok(Ok(5)));
    // Work whose future was dropped does not run.
    let (began, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let (began, released) = (began.clone(), released.clone());
            pool.run(&good, move |_| {
                began.send(()).unwrap();
                assert!(released.lock().unwrap().recv().is_err(), "nothing is sent");
            })
        })
        .collect();
    for _ in 0..2 {
        has_begun.recv().unwrap();
    }
    let (ran, has_run) = mpsc::channel();
    drop(pool.run(&good, move |_| ran.send(())));
    drop(release);
    for busy in busy {
        wait(busy).unwrap();
    }
    wait(pool.run(&good, |_| ())).unwrap();
    assert!(has_run.recv().is_err(), "dropped work has run");
    drop(pool);
}

#[test]
fn functions_recurse_as_deep_as_in_couchdb_and_no_deeper() {
    // A larger stack than QuickJS allows is set to the largest one.
    for stack in [Limits::default().stack, 20 << 20] {
        recurses(&Pool::new(1, Limits { stack, ..Limits::default() }));
    }
}

fn recurses(pool: &Pool) {
    for (call, at_least) in [
        ("f(n + 1) + 1", 5_200),
        ("[n + 1].map(f)[0] + 1", 2_300),
        ("f.apply(null, [n + 1])", 2_300),
        ("JSON.stringify({toJSON() { return f(n + 1) }})", 800),
    ] {
        let caught = "try { f(1) } catch (e) { emit(deepest, e.name) }";
        let map = |run: &str| {
            design(&format!("doc => {{ var deepest = 0, f = n => {{ deepest = n; return {call} }}; {run} }}"))
        };
        let rows = wait(pool.run(&map(caught), |sandbox| sandbox.map(&["v"], "{}"))).unwrap().remove(0).unwrap();
        assert!(rows[0].key.parse::<f64>().unwrap() >= f64::from(at_least), "{call}: {rows:?}");
        assert_eq!(rows[0].value, r#""RangeError""#, "{call}");
        // The thread continues.
        for _ in 0..2 {
            let rows = wait(pool.run(&map("f(1)"), |sandbox| sandbox.map(&["v"], "{}"))).unwrap().remove(0);
            assert_eq!(rows.unwrap_err().kind(), ErrorKind::Stack, "{call}");
            assert_eq!(key(pool, &design("doc => emit(7)")), "7");
        }
    }
    for source in ["(".repeat(1_000_000), "{".repeat(1_000_000), "[".repeat(1_000_000), "-".repeat(1_000_000)] {
        let error = wait(pool.compile(&design(&source), vec![["views", "v", "map"].map(str::to_owned).into()]));
        assert!(matches!(error.unwrap_err().kind(), ErrorKind::Stack | ErrorKind::Compilation), "{:.3}", source);
        let map = format!("doc => {{ eval('{}'.repeat(1e6)) }}", &source[..1]);
        let rows = wait(pool.run(&design(&map), |sandbox| sandbox.map(&["v"], "{}"))).unwrap().remove(0);
        assert!(matches!(rows.unwrap_err().kind(), ErrorKind::Stack | ErrorKind::Thrown | ErrorKind::Compilation));
        let map = format!("doc => {{ JSON.parse('{}'.repeat(1e6)) }}", &source[..1]);
        let rows = wait(pool.run(&design(&map), |sandbox| sandbox.map(&["v"], "{}"))).unwrap().remove(0);
        assert!(matches!(rows.unwrap_err().kind(), ErrorKind::Stack | ErrorKind::Thrown), "{:.3}", source);
        let map = format!("doc => {{ new RegExp('{}'.repeat(1e6)) }}", &source[..1]);
        drop(wait(pool.run(&design(&map), |sandbox| sandbox.map(&["v"], "{}"))).unwrap());
    }
    assert_eq!(key(pool, &design("doc => emit(7)")), "7");
}

#[test]
fn sources_that_are_nested_too_deeply_are_refused_at_once() {
    let pool = Pool::new(1, Limits::default());
    let braces = |count: usize| format!("{}{}", "{".repeat(count), "}".repeat(count));
    let compile = |design: &Design| wait(pool.compile(design, vec![["views", "v", "map"].map(str::to_owned).into()]));
    assert_eq!(compile(&design(&format!("function(doc) {{ {} }}", braces(1_900)))), Ok(()));
    let error = compile(&design(&format!("function(doc) {{ {} }}", braces(20_000)))).unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Compilation, "the brackets of the source are nested too deeply")
    );
    let lib = serde_json::json!({"deep": braces(20_000), "flat": "{}".repeat(5_000)});
    let map = "doc => { require('views/lib/flat'); try { require('views/lib/deep') } catch (e) { emit(e.name) } }";
    let views = serde_json::json!({"lib": lib, "v": {"map": map}});
    assert_eq!(key(&pool, &of(1, serde_json::json!({ "views": views }).to_string())), r#""compilation_error""#);
}

/// QuickJS's parser continues if its list of scopes cannot grow, and would read beyond it.
#[test]
fn a_source_that_is_late_while_it_is_parsed_ends_no_process() {
    let map = "doc => { eval('{'.repeat(1e4) + '}'.repeat(1e4)) }";
    for milliseconds in [2, 4, 8, 16] {
        let pool = Pool::new(1, Limits { time: Duration::from_millis(milliseconds), ..Limits::default() });
        drop(wait(pool.run(&design(map), |sandbox| sandbox.map(&["v"], "{}"))));
        assert_eq!(wait(pool.run(&of(1, "{}"), |_| 7)), Ok(7));
    }
}

//! What a build of an index reads.

use conformance::random::Random;
use kv_api::Counted;
use model::{BodyFormat, CreateOptions, Edit, WriteMode};

use super::attachments::inline;
use super::index_oracle::{VIEWS, assert_agrees, design};
use crate::stage::*;

/// An index's name, its fields, and its partial filter.
type View = (&'static str, &'static str, &'static str);

const NESTED: [View; 6] = [
    ("o", r#"{"o":"asc"}"#, "{}"),
    ("o.m", r#"{"o.m":"asc"}"#, "{}"),
    ("o.m.0", r#"{"o.m.0":"asc","a":"asc"}"#, "{}"),
    ("no o.m", r#"{"a":"asc"}"#, r#"{"o.m":{"$exists":false}}"#),
    ("not o.m", r#"{"b":"asc"}"#, r#"{"o.m":{"$not":{"$eq":1}}}"#),
    ("empty", "{}", r#"{"$or":[{"a":1},{"o.n":{"$gt":null}}]}"#),
];

/// Number of rows that a build of an index of `view` over `count` documents reads.
async fn rows_read(stage: &Stage, format: BodyFormat, view: View, count: usize, body: &str) -> u64 {
    let counted = Counted::new(stage.engine()).apart(model::is_instance_key);
    let layer = layer(counted.clone()).await;
    let options = CreateOptions { format: Some(format), ..CreateOptions::default() };
    let documents = layer.create_database("db", options).await.unwrap();
    let edits: Vec<Edit> = (0..count).map(|n| edit(&format!("doc-{n:03}"), body)).collect();
    for written in documents.write(edits, WriteMode::Interactive).await.unwrap() {
        written.unwrap();
    }
    documents.put(edit("_design/x", &design(&[view]))).await.unwrap();
    counted.take();
    documents.build_indexes(|_| ()).await.unwrap();
    let read = counted.take().iter().map(|counts| counts.kvs_read - counts.kvs_read_apart).sum();
    assert_sound(&documents).await;
    layer.delete_database("db").await.unwrap();
    read
}

pub(crate) async fn a_build_reads_the_rows_of_its_fields(stage: Stage) {
    // Twenty leaves, in another order than their keys.
    let body = r#"{"z":1,"b":2,"a":3,"o":{"n":4,"m":5,"x":{"y":6}},"c":[7,8,9],"l":["x","y",{"z":[1,2,3]}],
        "s1":"t","s2":"t","s3":"t","s4":"t","s5":"t","s6":"t"}"#;
    for (view, fields) in [
        (("a", r#"{"a":"asc"}"#, "{}"), 1),
        (("a, b", r#"{"a":"asc","b":"desc"}"#, "{}"), 2),
        (("some a", r#"{"a":"asc"}"#, r#"{"b":{"$gt":1}}"#), 2),
        (("no a", r#"{"a":"asc"}"#, r#"{"b":{"$gt":2}}"#), 2),
        (("nested", r#"{"o.m":"asc","o.x.y":"asc"}"#, "{}"), 2),
        (("nested filter", r#"{"a":"asc"}"#, r#"{"o.x.y":6}"#), 2),
        (("_id", r#"{"_id":"asc","a":"asc"}"#, "{}"), 1),
        // Beside the field, the metadata tell whether it is missing, or the order of its elements.
        (("missing", r#"{"nowhere":"asc"}"#, "{}"), 1),
        (("array", r#"{"c":"asc"}"#, "{}"), 3 + 1),
        (("element", r#"{"c.1":"asc"}"#, "{}"), 3 + 1),
    ] {
        let few = rows_read(&stage, BodyFormat::Exploded, view, 50, body).await;
        let many = rows_read(&stage, BodyFormat::Exploded, view, 150, body).await;
        assert_eq!(many - few, 100 * (1 + fields), "a row of the listing and {fields} for each document: {view:?}");
    }
    // A packed body is one row.
    let packed = async |count| rows_read(&stage, BodyFormat::Packed, ("a", r#"{"a":"asc"}"#, "{}"), count, body).await;
    assert_eq!(packed(150).await - packed(50).await, 100 * 2);
}

fn random_value(random: &mut Random, depth: usize) -> String {
    match random.below(if depth == 0 { 5 } else { 9 }) {
        0 => "null".to_owned(),
        1 => random.below(4).to_string(),
        2 => r#""é""#.to_owned(),
        3 => ["{}", "[]"][random.below(2) as usize].to_owned(),
        4 => "1.5".to_owned(),
        5 | 6 => format!("[{},{}]", random_value(random, depth - 1), random_value(random, depth - 1)),
        _ => {
            let names = [["m", "n"], ["n", "m"], ["0", "m"]][random.below(3) as usize];
            let mut value = || random_value(random, depth - 1);
            format!(r#"{{"{}":{},"{}":{}}}"#, names[0], value(), names[1], value())
        }
    }
}

fn random_body(random: &mut Random) -> String {
    let mut members = Vec::new();
    for name in ["z", "a", "o", "c", "b"] {
        if random.chance(0.8) {
            let value = match name {
                // Longer than a value of the store.
                "o" if random.chance(0.03) => format!(r#"{{"m":"{}"}}"#, "long ".repeat(21_000)),
                "o" => random_value(random, 3),
                _ => random_value(random, 1),
            };
            members.push(format!(r#""{name}":{value}"#));
        }
    }
    if random.chance(0.05) {
        // No key has room for this path, so the body is packed.
        members.push(format!(r#""{}":1"#, "deep".repeat(3_000)));
    }
    format!("{{{}}}", members.join(","))
}

pub(crate) async fn a_build_reads_bodies_of_every_layout(stage: Stage) {
    for (seed, format, later) in [
        (1, BodyFormat::Exploded, BodyFormat::Exploded),
        (2, BodyFormat::Packed, BodyFormat::Packed),
        (3, BodyFormat::Exploded, BodyFormat::Packed),
        (4, BodyFormat::Packed, BodyFormat::Exploded),
    ] {
        let what = format!("seed {seed}, {format:?}, {later:?}");
        let mut random = Random::new(seed);
        let name = format!("db-{seed}");
        let layer = stage.layer().await;
        let options = CreateOptions { format: Some(format), ..CreateOptions::default() };
        let documents = layer.create_database(&name, options).await.unwrap();
        for half in 0..2 {
            let mut edits: Vec<Edit> = Vec::new();
            for n in 0..70 {
                let id = format!("{half}-{}", random.below(90));
                let leaf = format!("1-{n:03}");
                let mut edit = replicated(&id, &leaf, &random_body(&mut random));
                if random.chance(0.1) {
                    edit.attachments = vec![inline("f", "text/plain", "x".repeat(n))];
                }
                edits.push(if random.chance(0.15) { edit.deleting() } else { edit });
            }
            // Many leaves that lost, between two winners.
            edits.extend((0..40).map(|n| replicated(&format!("{half}-5"), &format!("1-0{n:02}"), r#"{"a":1}"#)));
            for written in documents.write(edits, WriteMode::Replicated).await.unwrap() {
                written.unwrap();
            }
            if format != later {
                documents.set_body_format(later).await.unwrap();
            }
        }
        // Each of the nested ones is built alone, so that it reads nothing for another one. The last one needs whole bodies.
        documents.put(edit("_design/x", &design(&VIEWS[..6]))).await.unwrap();
        documents.build_indexes(|_| ()).await.unwrap();
        for (at, view) in NESTED.into_iter().chain([VIEWS[6]]).enumerate() {
            documents.put(edit(&format!("_design/{at}"), &design(&[view]))).await.unwrap();
            documents.build_indexes(|_| ()).await.unwrap();
        }
        assert_agrees(&documents, &what).await;
    }
}

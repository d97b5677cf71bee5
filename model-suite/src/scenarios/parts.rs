//! Parts of documents, read without the rest.

use kv_api::Counted;
use model::{BodyFormat, CreateOptions, Edit, ErrorKind, JsonRef, JsonText, NotFound};

use super::attachments::inline;
use crate::stage::*;

fn paths(fields: &[&str]) -> Vec<Vec<String>> {
    fields.iter().map(|field| field.split('.').map(str::to_owned).collect()).collect()
}

/// The value at a path, from the whole body.
fn at(body: &JsonText, path: &str) -> Option<JsonText> {
    let mut value: JsonRef<'_> = body.root();
    for step in path.split('.') {
        value = match step.parse::<usize>() {
            Ok(index) if value.is_array() => value.elements().nth(index)?,
            _ => value.get(step).filter(|_| value.is_object())?,
        };
    }
    Some(body.slice_ref(value))
}

const FIELDS: [&str; 22] = [
    "a", "a.b", "a.b.c", "a.l", "a.l.0", "a.l.1.x", "a.l.2", "a.l.7", "z", "z.y", "n", "n.0", "0", "0.1", "o", "o.10",
    "long", "big", "s.t", "s", "none", "e.",
];

pub(crate) async fn parts_are_what_stands_in_the_whole(stage: Stage) {
    let layer = stage.layer().await;
    let long = "é\\u0000".repeat(60_000);
    let bodies = [
        // Members in the order of the keys, and in another order.
        r#"{"a":{"b":{"c":null},"l":[1,{"x":true},[]]},"e":{"":7},"n":1.5,"o":{"10":"ten"}}"#.to_owned(),
        r#"{"z":{"y":2,"x":1},"a":{"l":[[3],{"x":{"w":1,"v":2}},"s"],"b":{}},"0":{"1":"one","0":2},"n":[5]}"#
            .to_owned(),
        format!(r#"{{"s":{{"t":"{}","r":1}},"long":"{long}","big":{},"z":[]}}"#, "x".repeat(300), "9".repeat(250_000)),
        "{}".to_owned(),
        r#"{"a":1}"#.to_owned(),
    ];
    for (name, format) in [("exploded", BodyFormat::Exploded), ("packed", BodyFormat::Packed)] {
        let documents = layer
            .create_database(name, CreateOptions { format: Some(format), ..CreateOptions::default() })
            .await
            .unwrap();
        for (n, body) in bodies.iter().enumerate() {
            let id = format!("doc-{n}");
            let attachments = if n % 2 == 0 { vec![inline("f", "x", "y")] } else { Vec::new() };
            documents.put(Edit { attachments, ..edit(&id, body) }).await.unwrap();
            merge(&documents, replicated(&id, "1-0", r#"{"a":"of a branch that lost"}"#)).await;
            let whole = get(&documents, &id).await;
            // One path at a time, and all together.
            for field in FIELDS {
                let parts = documents.get_parts(&id, &paths(&[field])).await.unwrap();
                assert_eq!(parts.values, [at(&whole.body, field)], "{field} of {id}, {name}");
            }
            let parts = documents.get_parts(&id, &paths(&FIELDS)).await.unwrap();
            assert_eq!(parts.rev, whole.rev);
            let expected: Vec<Option<JsonText>> = FIELDS.iter().map(|field| at(&whole.body, field)).collect();
            assert_eq!(parts.values, expected, "{id}, {name}");
            let special = documents.get_parts(&id, &paths(&["_id", "_rev", "_id.x", "_attachments"])).await.unwrap();
            let expected = [Some(json(&format!("\"{id}\""))), Some(json(&format!("\"{}\"", whole.rev))), None, None];
            assert_eq!(special.values, expected);
        }
        let many: Vec<String> = (0..300).map(|n| format!("m{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).chain(["a", "o.10.10.10.10.10.10.10.10.10"]).collect();
        let parts = documents.get_parts("doc-4", &paths(&many)).await.unwrap();
        assert_eq!((parts.values[300].clone(), parts.values.iter().flatten().count()), (Some(json("1")), 1));
        assert_eq!(
            documents.get_parts("doc-0", &[vec![], vec!["x".repeat(20_000)]]).await.unwrap().values,
            [None, None]
        );
        let gone = documents.get_parts("nobody", &paths(&["a"])).await.unwrap_err();
        assert_eq!(*gone.kind(), ErrorKind::NotFound(NotFound::Missing));
    }
}

pub(crate) async fn parts_read_only_the_rows_below_their_paths(stage: Stage) {
    let counted = Counted::new(stage.engine()).separately(model::is_instance_key);
    let documents = database(counted.clone()).await;
    let members: Vec<String> = (0..500).map(|n| format!(r#""m{n:03}":{{"x":{n},"y":[{n},{n}]}}"#)).collect();
    documents.put(edit("sorted", &format!("{{{}}}", members.join(",")))).await.unwrap();
    let mut members = members;
    members.reverse();
    documents.put(edit("turned", &format!("{{{}}}", members.join(",")))).await.unwrap();
    let cost = async |id: &str, fields: &[&str]| {
        counted.take();
        let parts = documents.get_parts(id, &paths(fields)).await.unwrap();
        let counts = counted.take();
        assert_eq!(counts.len(), 1, "one transaction");
        let found = parts.values.iter().flatten().count();
        (found, counts[0].kvs_read - counts[0].kvs_read_separately, counts[0].round_trips)
    };
    // Besides the rows of the parts: the last row, which names the winner, and the metadata.
    assert_eq!(cost("sorted", &["m007.x", "m400.x"]).await, (2, 2 + 2, 2));
    assert_eq!(cost("sorted", &["m007", "m400.y", "none", "m007.x.z"]).await, (2, 3 + 2 + 2, 2));
    assert_eq!(cost("turned", &["m007.x", "m400.y.1"]).await, (2, 2 + 2, 2));
    // Only the whole body has the order of these members.
    let (found, rows, trips) = cost("turned", &["m007"]).await;
    // A cluster answers a large range in several pages.
    assert!(found == 1 && rows >= 1_500 && trips <= 8, "{rows} rows in {trips} round trips");
}

//! Owners of replications: who writes their documents, and whose rights they have.

use std::time::Duration;

use serde_json::{Value, json};
use server::http::Options;

use crate::rights::{admin, as_user, set, token, with_tokens, with_users};
use crate::support::{Answer, Couch};

/// Long enough for a machine that does much else.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

async fn send(couch: &Couch, name: &str, method: &str, path: &str, body: Value) -> Answer {
    as_user(couch, name, &format!("pw {name}"), method, path, body).await
}

/// A server whose replicator database has two members. `here` is anna's and berta's, `shut` is nobody's.
async fn couch() -> Couch {
    let couch = with_users(&[("anna", &["staff"]), ("berta", &[]), ("emil", &[])]).await;
    for (name, security) in [
        ("_replicator", json!({"members": {"names": ["anna", "berta"]}})),
        ("here", json!({"members": {"names": ["anna", "berta"]}})),
        ("there", json!({"members": {"roles": ["staff"]}})),
        ("shut", json!({"members": {"roles": ["_admin"]}})),
    ] {
        assert_eq!(admin(&couch, "PUT", &format!("/{name}"), json!({})).await.status, 201);
        assert_eq!(admin(&couch, "PUT", &format!("/{name}/_security"), security).await.status, 200);
    }
    for id in ["a", "b", "_design/d"] {
        assert_eq!(admin(&couch, "PUT", &format!("/here/{id}"), json!({"n": 1})).await.status, 201);
    }
    couch
}

/// Waits until the scheduler shows a document in this state; the row.
pub(crate) async fn until(couch: &Couch, id: &str, state: &str) -> Value {
    let waiting = async {
        loop {
            let row = admin(couch, "GET", &format!("/_scheduler/docs/_replicator/{id}"), json!(null)).await;
            if row.status == 200 && row.json()["state"] == state {
                return row.json();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{id}: {state}"))
}

async fn document(couch: &Couch, id: &str) -> Value {
    admin(couch, "GET", &format!("/_replicator/{id}"), json!(null)).await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_write_and_read_their_own_documents() {
    let couch = couch().await;
    let job = json!({"source": "http://anna:geheim@127.0.0.1:1/x", "target": "there",
        "source_proxy": null, "note": "mine"});
    let of_others = "Can't update replication documents from other users.";
    let put = send(&couch, "anna", "PUT", "/_replicator/x", job.clone()).await;
    assert_eq!(put.status, 201, "{}", put.text);
    let own = send(&couch, "anna", "GET", "/_replicator/x", json!(null)).await.json();
    assert_eq!((&own["owner"], &own["source"]), (&json!("anna"), &job["source"]));
    // Another member sees it without its password, and changes nothing.
    let seen = send(&couch, "berta", "GET", "/_replicator/x", json!(null)).await;
    assert!(seen.status == 200 && !seen.text.contains("geheim"), "{}", seen.text);
    assert_eq!((&seen.json()["source"], &seen.json()["note"]), (&json!("http://127.0.0.1:1/x"), &json!("mine")));
    let rev = own["_rev"].as_str().unwrap().to_owned();
    for path in [format!("/_replicator/x?rev={rev}"), "/_replicator/x?open_revs=all".to_owned()] {
        assert_eq!(send(&couch, "berta", "GET", &path, json!(null)).await.status, 403, "{path}");
    }
    let mut theirs = own.clone();
    theirs["owner"] = json!("berta");
    for body in [own.clone(), theirs] {
        send(&couch, "berta", "PUT", "/_replicator/x", body.clone()).await.refused(403, "forbidden", of_others);
        let bulk = send(&couch, "berta", "POST", "/_replicator/_bulk_docs", json!({"docs": [body]})).await.json();
        assert_eq!(bulk[0]["reason"], of_others);
    }
    let delete = format!("/_replicator/x?rev={rev}");
    send(&couch, "berta", "DELETE", &delete, json!({})).await.refused(403, "forbidden", of_others);
    // Nobody may name another owner, or rights beyond their own.
    for (body, reason) in [
        (json!({"owner": "berta"}), of_others),
        (json!({"owner": "adm"}), of_others),
        (json!({"user_ctx": {"name": "anna", "roles": ["_admin"]}}), "roles that you have"),
        (json!({"user_ctx": {"name": "berta", "roles": []}}), "roles that you have"),
        (json!({"user_ctx": "anna"}), "roles that you have"),
    ] {
        let mut new = job.clone();
        new.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let refused = send(&couch, "anna", "PUT", "/_replicator/y", new).await;
        assert!(refused.status == 403 && refused.text.contains(reason), "{body}: {}", refused.text);
    }
    // Other ways to read or write documents are for administrators.
    let mut brought = job.clone();
    (brought["_id"], brought["_rev"]) = (json!("z"), json!("1-abc"));
    let sent = json!({"docs": [brought], "new_edits": false});
    let bulk = send(&couch, "anna", "POST", "/_replicator/_bulk_docs", sent).await.json();
    assert_eq!(bulk[0]["error"], "forbidden");
    let copy = couch.request("COPY", "/_replicator/x").basic_auth("anna", Some("pw anna"));
    assert_eq!(couch.send(copy.header("destination", "y")).await.status, 403);
    for (method, path, status) in [
        ("PATCH", "/_replicator/x", 403),
        ("PUT", "/_replicator/_design/x", 403),
        ("GET", "/_replicator/_design/x", 403),
        ("GET", "/_replicator/_all_docs", 401),
        ("GET", "/_replicator/_changes", 401),
        ("GET", "/_replicator/_local/x", 403),
        ("PUT", "/_replicator/x/attachment", 403),
        ("PUT", "/_replicator/_security", 403),
        ("DELETE", "/_replicator", 401),
        ("POST", "/_replicate", 401),
    ] {
        assert_eq!(send(&couch, "anna", method, path, json!({})).await.status, status, "{method} {path}");
    }
    let local = send(&couch, "anna", "POST", "/_replicator", json!({"_id": "_local/x"})).await;
    assert_eq!(local.status, 403, "{}", local.text);
    // The owner and the administrator delete.
    assert_eq!(send(&couch, "anna", "DELETE", &delete, json!({})).await.status, 200);
    let again = send(&couch, "berta", "PUT", "/_replicator/x", job).await;
    assert_eq!(again.status, 201, "the id is free: {}", again.text);
    assert_eq!(document(&couch, "x").await["owner"], "berta");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_named_is_no_member() {
    let couch = couch().await;
    let job = json!({"source": "here", "target": "there"});
    for security in [json!({"members": {"names": ["anna"]}}), json!({}), json!({"admins": {"names": ["chef"]}})] {
        assert_eq!(admin(&couch, "PUT", "/_replicator/_security", security.clone()).await.status, 200);
        for (method, path) in [("GET", "/_replicator"), ("GET", "/_replicator/x"), ("PUT", "/_replicator/x")] {
            let sent = send(&couch, "emil", method, path, job.clone()).await;
            assert_eq!(sent.status, 403, "{security} {method} {path}");
            let request = couch.request(method, path).header("content-type", "application/json");
            assert_eq!(couch.send(request.body(job.to_string())).await.status, 401, "{security} {method} {path}");
        }
    }
    assert_eq!(admin(&couch, "GET", "/_replicator/x", json!(null)).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_has_its_owners_rights_and_no_others() {
    let couch = couch().await;
    let put = async |name: &str, id: &str, job: Value| {
        let sent = send(&couch, name, "PUT", &format!("/_replicator/{id}"), job).await;
        assert_eq!(sent.status, 201, "{}", sent.text);
    };
    // Anna has the role; design documents are not hers to write.
    put("anna", "good", json!({"source": "here", "target": "there"})).await;
    until(&couch, "good", "completed").await;
    let stats = document(&couch, "good").await["_replication_stats"].clone();
    assert_eq!((&stats["docs_written"], &stats["doc_write_failures"]), (&json!(2), &json!(1)));
    assert_eq!(admin(&couch, "GET", "/there/_design/d", json!(null)).await.status, 404);
    // Documents that berta may not read or write do not change, and the reason is shown.
    for (owner, id, source, target) in [
        ("berta", "no-target", "here", "there"),
        ("berta", "no-source", "there", "here"),
        ("anna", "nobodys", "shut", "here"),
        ("anna", "users", "_users", "here"),
        ("anna", "into-users", "here", "_users"),
        ("anna", "into-jobs", "here", "_replicator"),
        ("anna", "new", "here", "none"),
    ] {
        put(owner, id, json!({"source": source, "target": target, "create_target": true})).await;
        let row = until(&couch, id, "crashing").await;
        let reason = row["info"]["error"].as_str().unwrap();
        assert!(reason.contains(": You are not "), "{id}: {reason}");
    }
    assert_eq!(admin(&couch, "GET", "/none", json!(null)).await.status, 404);
    // Roles that the document leaves out are not used.
    let context = json!({"name": "anna", "roles": []});
    put("anna", "fewer", json!({"source": "here", "target": "there", "user_ctx": context})).await;
    until(&couch, "fewer", "crashing").await;
    // An administrator's document runs as the described client. Each is another replication.
    let job =
        |id: &str, context: Value| json!({"source": "here", "target": "there", "user_ctx": context, "doc_ids": [id]});
    for (id, context, state) in [
        ("as-anna", json!({"name": "anna", "roles": ["staff"]}), "completed"),
        ("as-berta", json!({"name": "berta", "roles": []}), "crashing"),
        ("as-nobody", json!({}), "crashing"),
    ] {
        assert_eq!(admin(&couch, "PUT", &format!("/_replicator/{id}"), job(id, context)).await.status, 201);
        until(&couch, id, state).await;
        assert_eq!(document(&couch, id).await["owner"], "adm");
    }
    for malformed in [json!("berta"), json!({"roles": [1]}), json!({"name": 1})] {
        let refused = admin(&couch, "PUT", "/_replicator/as-x", job("x", malformed.clone())).await;
        assert_eq!(refused.status, 403, "{malformed}");
    }
    let jobs = admin(&couch, "GET", "/_scheduler/jobs", json!(null)).await.json();
    let users: Vec<&Value> = jobs["jobs"].as_array().unwrap().iter().map(|job| &job["user"]).collect();
    assert!(users.contains(&&json!("berta")) && users.contains(&&json!("adm")), "{users:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_end_stop_a_running_replication_until_they_return() {
    let couch = couch().await;
    let job = json!({"source": "here", "target": "there", "continuous": true});
    assert_eq!(send(&couch, "anna", "PUT", "/_replicator/x", job).await.status, 201);
    let arrived = async |id: &str| {
        let waiting = async {
            while admin(&couch, "GET", &format!("/there/{id}"), json!(null)).await.status != 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{id} does not arrive"));
    };
    arrived("a").await;
    let path = "/_users/org.couchdb.user:anna";
    let with_roles = async |roles: Value| {
        let mut user = admin(&couch, "GET", path, json!(null)).await.json();
        user["roles"] = roles;
        assert_eq!(admin(&couch, "PUT", path, user).await.status, 201);
    };
    // The role, the source's security, and the account.
    with_roles(json!([])).await;
    assert_eq!(admin(&couch, "PUT", "/here/c", json!({})).await.status, 201);
    until(&couch, "x", "crashing").await;
    assert_eq!(admin(&couch, "GET", "/there/c", json!(null)).await.status, 404);
    with_roles(json!(["staff"])).await;
    arrived("c").await;
    let closed = json!({"members": {"names": ["berta"]}});
    assert_eq!(admin(&couch, "PUT", "/here/_security", closed).await.status, 200);
    assert_eq!(admin(&couch, "PUT", "/here/d", json!({})).await.status, 201);
    let row = until(&couch, "x", "crashing").await;
    assert_eq!(row["info"]["error"], "You are not allowed to access this db.");
    assert_eq!(admin(&couch, "GET", "/there/d", json!(null)).await.status, 404);
    let open = json!({"members": {"names": ["anna"]}});
    assert_eq!(admin(&couch, "PUT", "/here/_security", open).await.status, 200);
    arrived("d").await;
    let rev = admin(&couch, "GET", path, json!(null)).await.json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(admin(&couch, "DELETE", &format!("{path}?rev={rev}"), json!({})).await.status, 200);
    assert_eq!(admin(&couch, "PUT", "/here/e", json!({})).await.status, 201);
    let row = until(&couch, "x", "crashing").await;
    assert_eq!(row["info"]["error"], "the owner anna of the replication has no account");
    assert_eq!(admin(&couch, "GET", "/there/e", json!(null)).await.status, 404);
}

#[cfg(feature = "javascript")]
#[tokio::test(flavor = "multi_thread")]
async fn functions_that_validate_get_the_owner() {
    let couch = couch().await;
    let function = "function (doc, old, user) {
        if (user.name !== 'anna' || user.roles.indexOf('staff') < 0) { throw {forbidden: 'not anna'}; }
    }";
    let design = json!({"validate_doc_update": function});
    assert_eq!(admin(&couch, "PUT", "/there/_design/v", design).await.status, 201);
    let job = json!({"source": "here", "target": "there", "doc_ids": ["a", "b"]});
    assert_eq!(send(&couch, "anna", "PUT", "/_replicator/anna", job.clone()).await.status, 201);
    until(&couch, "anna", "completed").await;
    assert_eq!(document(&couch, "anna").await["_replication_stats"]["docs_written"], 2);
    assert_eq!(admin(&couch, "PUT", "/here/f", json!({})).await.status, 201);
    let mut more = job;
    more["doc_ids"] = json!(["f"]);
    assert_eq!(admin(&couch, "PUT", "/_replicator/adm", more).await.status, 201);
    until(&couch, "adm", "completed").await;
    assert_eq!(document(&couch, "adm").await["_replication_stats"]["doc_write_failures"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_request_ends_with_its_administrator() {
    let couch = couch().await;
    set(&couch, "admins/gast", "pw gast").await;
    let job = json!({"source": "here", "target": "there", "continuous": true});
    let begun = send(&couch, "gast", "POST", "/_replicate", job).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    let id = begun.json()["_local_id"].as_str().unwrap().to_owned();
    let path = format!("/_scheduler/jobs/{}", id.replace('+', "%2B"));
    assert_eq!(admin(&couch, "GET", &path, json!(null)).await.json()["user"], "gast");
    let waiting = async {
        while admin(&couch, "GET", "/there/a", json!(null)).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let removed = admin(&couch, "DELETE", "/_node/_local/_config/admins/gast", json!({})).await;
        assert_eq!(removed.status, 200);
        assert_eq!(admin(&couch, "PUT", "/here/late", json!({})).await.status, 201);
        loop {
            let job = admin(&couch, "GET", &path, json!(null)).await.json();
            let said = job["history"].as_array().unwrap().iter().filter_map(|event| event["reason"].as_str());
            if said.into_iter().any(|reason| reason.ends_with("the owner gast of the replication has no account")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("it goes on");
    assert_eq!(admin(&couch, "GET", "/there/late", json!(null)).await.status, 404);
}

/// As [`couch`], where tokens and proxies name clients, and those with the role `jobs` are members of the replicator
/// database.
async fn with_names() -> Couch {
    let couch = couch().await;
    with_tokens(&couch).await;
    let security = json!({"members": {"names": ["anna"], "roles": ["jobs"]}});
    assert_eq!(admin(&couch, "PUT", "/_replicator/_security", security).await.status, 200);
    couch
}

async fn by_token(couch: &Couch, token: &str, method: &str, path: &str, body: Value) -> Answer {
    let request = couch.request(method, path).bearer_auth(token).header("content-type", "application/json");
    couch.send(request.body(body.to_string())).await
}

/// The same for a client named by a proxy.
async fn by_proxy(couch: &Couch, name: &str, method: &str, path: &str, body: Value) -> Answer {
    let request = couch.request(method, path).header("x-auth-couchdb-username", name);
    let request = request.header("x-auth-couchdb-roles", "jobs").header("content-type", "application/json");
    couch.send(request.body(body.to_string())).await
}

/// Tokens that do not expire during the test.
const FAR: u64 = 4_102_444_800;

#[tokio::test(flavor = "multi_thread")]
async fn who_is_named_like_an_account_has_none_of_its_rights() {
    let couch = with_names().await;
    let secret = json!({"source": "http://adm:geheim@127.0.0.1:1/x", "target": "there"});
    for (name, owner) in [("adm", "adm"), ("anna", "anna")] {
        let mut theirs = secret.clone();
        theirs["owner"] = json!(owner);
        assert_eq!(admin(&couch, "PUT", &format!("/_replicator/of-{name}"), theirs).await.status, 201);
    }
    for name in ["adm", "anna"] {
        let named = token(name, &["jobs"], Some(FAR));
        let (path, rev) =
            (format!("/_replicator/of-{name}"), document(&couch, &format!("of-{name}")).await["_rev"].clone());
        let delete = format!("{path}?rev={}", rev.as_str().unwrap());
        for way in ["token", "proxy"] {
            let send = async |method: &str, path: &str, body: Value| match way {
                "token" => by_token(&couch, &named, method, path, body).await,
                _ => by_proxy(&couch, name, method, path, body).await,
            };
            // The account's documents are somebody else's.
            let seen = send("GET", &path, json!(null)).await;
            assert!(seen.status == 200 && !seen.text.contains("geheim"), "{way} {name}: {}", seen.text);
            assert!(!seen.text.contains("owner_proof"), "{way} {name}: {}", seen.text);
            let mut changed = secret.clone();
            changed["_rev"] = rev.clone();
            assert_eq!(send("PUT", &path, changed).await.status, 403, "{way} {name}");
            assert_eq!(send("DELETE", &delete, json!({})).await.status, 403, "{way} {name}");
            // Documents written under the name have only the token's rights, whatever they claim.
            let id = format!("{way}-{name}");
            let claim = json!({"by": if name == "adm" { "admin" } else { "user" }, "mac": "00"});
            let job = json!({"source": "_users", "target": "here", "owner_proof": claim, "doc_ids": [id]});
            assert_eq!(send("PUT", &format!("/_replicator/{id}"), job).await.status, 201, "{way} {name}");
            let row = until(&couch, &id, "crashing").await;
            let reason = row["info"]["error"].as_str().unwrap();
            assert!(reason.ends_with("You are not a server admin."), "{way} {name}: {reason}");
            let written = document(&couch, &id).await;
            assert_eq!((&written["owner"], &written["owner_proof"]["by"]), (&json!(name), &json!(way)));
            assert_eq!(send("GET", &format!("/_replicator/{id}"), json!(null)).await.json(), written, "it is its own");
        }
    }
    assert_eq!(admin(&couch, "GET", "/here", json!(null)).await.json()["doc_count"], 3, "no user was copied");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrators_edit_makes_no_account_of_a_token() {
    let couch = with_names().await;
    let named = token("adm", &["jobs"], Some(FAR));
    let job = json!({"source": "_users", "target": "here"});
    assert_eq!(by_token(&couch, &named, "PUT", "/_replicator/x", job.clone()).await.status, 201);
    until(&couch, "x", "crashing").await;
    // With the whole document, and with only the members that a tool knows.
    let whole = document(&couch, "x").await;
    for keeps in [true, false] {
        let mut edited = document(&couch, "x").await;
        edited["note"] = json!(keeps);
        if !keeps {
            edited.as_object_mut().unwrap().remove("owner_proof");
        }
        assert_eq!(admin(&couch, "PUT", "/_replicator/x", edited).await.status, 201);
        assert_eq!(document(&couch, "x").await["owner_proof"], whole["owner_proof"]);
    }
    // A proof is for one owner only.
    let mut other = whole.clone();
    (other["owner"], other["_rev"]) = (json!("anna"), document(&couch, "x").await["_rev"].clone());
    let refused = admin(&couch, "PUT", "/_replicator/x", other.clone()).await;
    assert!(refused.status == 403 && refused.text.contains("owner_proof"), "{}", refused.text);
    // Without a proof, the name means an account.
    other.as_object_mut().unwrap().remove("owner_proof");
    assert_eq!(admin(&couch, "PUT", "/_replicator/x", other).await.status, 201);
    assert_eq!(document(&couch, "x").await["owner_proof"]["by"], "user");
    let owned = json!({"source": "here", "target": "there", "owner": "adm"});
    assert_eq!(admin(&couch, "PUT", "/_replicator/z", owned).await.status, 201);
    until(&couch, "z", "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_lends_its_roles_until_it_expires() {
    let couch = with_names().await;
    assert_eq!(admin(&couch, "PUT", "/mine", json!({})).await.status, 201);
    let staff = json!({"members": {"roles": ["staff"]}});
    assert_eq!(admin(&couch, "PUT", "/mine/_security", staff).await.status, 200);
    let job = json!({"source": "there", "target": "mine"});
    let with_role = token("otto", &["jobs", "staff"], Some(FAR));
    assert_eq!(by_token(&couch, &with_role, "PUT", "/_replicator/good", job.clone()).await.status, 201);
    until(&couch, "good", "completed").await;
    // A token without an end, which the configuration must allow.
    set(&couch, "jwt_auth/required_claims", "sub").await;
    let all = json!({"source": "there", "target": "shut"});
    let chef = token("chef", &["_admin"], None);
    assert_eq!(by_token(&couch, &chef, "PUT", "/_replicator/all", all).await.status, 201);
    until(&couch, "all", "completed").await;
    assert_eq!(document(&couch, "all").await["owner"], "chef");
    // A token that expires soon after it was accepted.
    let mut continuous = job;
    continuous["continuous"] = json!(true);
    let mut seconds = 1;
    loop {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let brief = token("otto", &["jobs", "staff"], Some(now + seconds));
        if by_token(&couch, &brief, "PUT", "/_replicator/brief", continuous.clone()).await.status == 201 {
            break;
        }
        seconds *= 2;
    }
    let waiting = async {
        for number in 0.. {
            // A change wakes the feed.
            assert_eq!(admin(&couch, "PUT", &format!("/there/{number}"), json!({})).await.status, 201);
            if document(&couch, "brief").await["_replication_state"] == "failed" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("it goes on");
    let reason = document(&couch, "brief").await["_replication_state_reason"].clone();
    assert_eq!(reason, "the token of the owner otto of the replication has expired");
    // A token of the same client renews it.
    continuous["_rev"] = document(&couch, "brief").await["_rev"].clone();
    assert_eq!(by_token(&couch, &with_role, "PUT", "/_replicator/brief", continuous).await.status, 201);
    until(&couch, "brief", "running").await;
    // A key that is replaced ends what it signed, until it is back.
    set(&couch, "jwt_keys/hmac:_default", "bmV1").await;
    assert_eq!(admin(&couch, "PUT", "/there/new", json!({})).await.status, 201);
    let row = until(&couch, "brief", "crashing").await;
    let no_longer = "the proof of the owner otto of the replication is no longer accepted";
    assert!(row["info"]["error"].as_str().unwrap().ends_with(no_longer), "{row}");
    set(&couch, "jwt_keys/hmac:_default", "Z2VoZWlt").await;
    until(&couch, "brief", "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whom_nothing_proves_has_no_rights() {
    let couch = with_names().await;
    // As written by a replication or an import, and as stored before proofs existed.
    for (id, owner, reason) in [
        (
            "adms",
            json!("adm"),
            "nothing proves that adm owns the replication; an administrator has to request it again",
        ),
        (
            "annas",
            json!("anna"),
            "nothing proves that anna owns the replication; an administrator has to request it again",
        ),
        ("nobodys", json!(null), "the replication has no owner; an administrator has to request it again"),
    ] {
        let brought = json!({"_id": id, "_rev": "1-a", "source": "here", "target": "there", "owner": owner});
        let sent = json!({"docs": [brought], "new_edits": false});
        assert_eq!(admin(&couch, "POST", "/_replicator/_bulk_docs", sent).await.status, 201);
        until(&couch, id, "failed").await;
        assert_eq!(document(&couch, id).await["_replication_state_reason"], reason);
        assert!(!send(&couch, "anna", "GET", &format!("/_replicator/{id}"), json!(null)).await.text.is_empty());
    }
    let rev = document(&couch, "annas").await["_rev"].as_str().unwrap().to_owned();
    let delete = format!("/_replicator/annas?rev={rev}");
    assert_eq!(send(&couch, "anna", "DELETE", &delete, json!({})).await.status, 403, "it is nobody's own");
    assert_eq!(admin(&couch, "GET", "/there", json!(null)).await.json()["doc_count"], 0);
    // An administrator who sends no body names nobody, and has the document checked in no other way.
    for id in ["adms", "nobodys"] {
        let rev = document(&couch, id).await["_rev"].as_str().unwrap().to_owned();
        let attach = couch.request("PUT", &format!("/_replicator/{id}/a?rev={rev}"));
        let attach = attach.basic_auth("adm", Some("pass word")).header("content-type", "text/plain");
        assert_eq!(couch.send(attach.body("a")).await.status, 201);
        let with = document(&couch, id).await;
        assert!(with["_attachments"]["a"].is_object() && with["owner_proof"].is_null(), "{with}");
    }
    let patch = couch.request("PATCH", "/_replicator/adms").basic_auth("adm", Some("pass word"));
    let patch = patch.header("content-type", "application/merge-patch+json").body(r#"{"source":null}"#);
    let copy = couch.request("COPY", "/_replicator/adms").basic_auth("adm", Some("pass word"));
    for request in [patch, copy.header("destination", "copy")] {
        couch.send(request).await.refused(403, "forbidden", "Documents of replications are written whole.");
    }
    // If an administrator names the account, the account owns it.
    let mut named = document(&couch, "annas").await;
    named.as_object_mut().unwrap().retain(|name, _| !name.starts_with("_replication"));
    assert_eq!(admin(&couch, "PUT", "/_replicator/annas", named).await.status, 201);
    until(&couch, "annas", "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_account_of_the_name_is_another_owner() {
    let couch = couch().await;
    let job = json!({"source": "there", "target": "shut"});
    assert_eq!(send(&couch, "anna", "PUT", "/_replicator/x", job).await.status, 201);
    until(&couch, "x", "crashing").await;
    set(&couch, "admins/anna", "pw").await;
    let waiting = async {
        while !until(&couch, "x", "crashing").await["info"]["error"]
            .as_str()
            .unwrap()
            .ends_with("has another account now")
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("it has the administrator's rights");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_everyone_asked_for_ends_when_not_everyone_is_an_administrator() {
    let couch = Couch::start().await;
    couch.json("PUT", "/_node/_local/_config/chttpd_auth/iterations", json!("10")).await;
    for name in ["_replicator", "here", "there"] {
        couch.database(name).await;
    }
    couch.put("/here/a", json!({})).await;
    couch.put("/_replicator/x", json!({"source": "here", "target": "there", "continuous": true})).await;
    while couch.get("/there/a").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(couch.json("PUT", "/_node/_local/_config/admins/adm", json!("pass word")).await.status, 200);
    assert_eq!(admin(&couch, "PUT", "/here/b", json!({})).await.status, 201);
    until(&couch, "x", "failed").await;
    assert_eq!(admin(&couch, "GET", "/there/b", json!(null)).await.status, 404);
    // The administrator makes it its own.
    let mut again = document(&couch, "x").await;
    again.as_object_mut().unwrap().retain(|name, _| !name.starts_with("_replication"));
    assert_eq!(admin(&couch, "PUT", "/_replicator/x", again).await.status, 201);
    until(&couch, "x", "running").await;
    assert_eq!(document(&couch, "x").await["owner_proof"]["by"], "admin");
}

/// A request is kept with its proof, also for the server that takes it over.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_taken_over_has_the_proof_of_its_client() {
    let couch = with_names().await;
    let job = json!({"source": "here", "target": "there", "continuous": true});
    let chef = token("adm", &["_admin"], Some(FAR));
    let begun = by_token(&couch, &chef, "POST", "/_replicate", job.clone()).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    let id = begun.json()["_local_id"].as_str().unwrap().to_owned();
    let path = format!("/_scheduler/jobs/{}", id.replace('+', "%2B"));
    let engine = couch.layer.engine().clone();
    couch.server.stop().await;
    let administrator = server::http::Administrator { name: "adm".into(), password: "pass word".into() };
    let couch = Couch::over(engine, Options { administrator: Some(administrator), ..Options::default() }).await;
    let waiting = async {
        while admin(&couch, "GET", "/there/a", json!(null)).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Its name is an administrator's, who could continue. The token could not.
        set(&couch, "chttpd/authentication_handlers", "{chttpd_auth, proxy_authentication_handler}").await;
        assert_eq!(admin(&couch, "PUT", "/here/late", json!({})).await.status, 201);
        loop {
            let job = admin(&couch, "GET", &path, json!(null)).await.json();
            let said = job["history"].as_array().unwrap().iter().filter_map(|event| event["reason"].as_str());
            if said.into_iter().any(|reason| reason.ends_with("the owner adm of the replication is no longer accepted"))
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("it goes on");
    assert_eq!(admin(&couch, "GET", "/there/late", json!(null)).await.status, 404);
    // As stored before proofs existed.
    let jobs = couch.layer.jobs();
    let stored = jobs.get(&jobs::JobId::new("replication", &*id)).await.unwrap().unwrap();
    let mut data: Value = serde_json::from_slice(&stored.data).unwrap();
    assert_eq!(data["owner"]["by"], "token");
    data.as_object_mut().unwrap().remove("owner");
    let new =
        jobs::NewJob { data: data.to_string().into_bytes().into(), name: Some(id.clone()), ..jobs::NewJob::default() };
    jobs.add(&stored.id, &new).await.unwrap();
    let waiting = async {
        while admin(&couch, "GET", &path, json!(null)).await.status != 404 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect("it goes on");
    assert_eq!(admin(&couch, "GET", "/there/late", json!(null)).await.status, 404);
}

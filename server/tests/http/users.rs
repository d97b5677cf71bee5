//! Documents of `_users`: who writes and reads them, and how their passwords are stored.

use serde_json::{Value, json};
use server::http::{Administrator, Options};

use crate::owners::until;
use crate::rights::{admin, as_user, cookie, set, token, user, with_tokens, with_users};
use crate::support::{Answer, Couch, wait_for};

const ANNA: &str = "/_users/org.couchdb.user:anna";

/// A server whose `_users` everyone may use, as for a sign-up.
async fn with_sign_up(users: &[(&str, &[&str])]) -> Couch {
    let couch = with_users(users).await;
    set(&couch, "couchdb/users_db_security_editable", "true").await;
    assert_eq!(admin(&couch, "PUT", "/_users/_security", json!({})).await.status, 200);
    couch
}

fn new_user(name: &str, password: &str) -> Value {
    json!({"_id": format!("org.couchdb.user:{name}"), "type": "user", "name": name, "roles": [], "password": password})
}

#[track_caller]
fn assert_hashed(document: &Value) {
    assert_eq!(document["password"], Value::Null, "{document}");
    assert_eq!((&document["password_scheme"], &document["pbkdf2_prf"]), (&json!("pbkdf2"), &json!("sha256")));
    assert_eq!(document["derived_key"].as_str().unwrap().len(), 64);
    assert_eq!(document["salt"].as_str().unwrap().len(), 32);
}

async fn logs_in(couch: &Couch, name: &str, password: &str) -> Answer {
    couch.json("POST", "/_session", json!({"name": name, "password": password})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_hashed_on_every_path() {
    let couch = with_users(&[]).await;
    assert_eq!(admin(&couch, "PUT", "/_users/org.couchdb.user:a", new_user("a", "pw")).await.status, 201);
    assert_eq!(admin(&couch, "POST", "/_users", new_user("b", "pw")).await.status, 201);
    let docs = json!({"docs": [new_user("c", "pw"), {"_id": "org.couchdb.user:x"}, new_user("d", "pw")]});
    let bulk = admin(&couch, "POST", "/_users/_bulk_docs", docs).await.json();
    assert_eq!((&bulk[0]["ok"], &bulk[2]["ok"]), (&json!(true), &json!(true)));
    assert_eq!((&bulk[1]["error"], &bulk[1]["reason"]), (&json!("forbidden"), &json!("doc.type must be user")));
    let mut replicated = new_user("e", "pw");
    replicated["_rev"] = json!("1-967a00dff5e02add41819138abb3284d");
    let docs = json!({"docs": [replicated], "new_edits": false});
    assert_eq!(admin(&couch, "POST", "/_users/_bulk_docs", docs).await.json(), json!([]));
    let mut replicated = new_user("f", "pw");
    replicated["_rev"] = json!("1-967a00dff5e02add41819138abb3284d");
    let written = admin(&couch, "PUT", "/_users/org.couchdb.user:f?new_edits=false", replicated).await;
    assert_eq!(written.status, 201, "{}", written.text);
    let edits = json!({"edits": [{"db": "_users", "doc": new_user("g", "pw")}]});
    assert_eq!(admin(&couch, "POST", "/_transact", edits).await.status, 201);
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        let document = admin(&couch, "GET", &format!("/_users/org.couchdb.user:{name}"), json!({})).await.json();
        assert_hashed(&document);
        assert_eq!(logs_in(&couch, name, "pw").await.status, 200, "{name}");
        assert_eq!(logs_in(&couch, name, "PW").await.status, 401, "{name}");
    }
    // Writes whose result cannot be checked first are refused.
    let patch = couch.request("PATCH", "/_users/org.couchdb.user:a").basic_auth("adm", Some("pass word"));
    let patch = patch.header("content-type", "application/merge-patch+json").body(r#"{"password":"neu"}"#);
    assert_eq!(couch.send(patch).await.status, 403);
    let copy = couch.request("COPY", "/_users/org.couchdb.user:a").basic_auth("adm", Some("pass word"));
    assert_eq!(couch.send(copy.header("destination", "org.couchdb.user:h")).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_may_do_nothing_in_users_until_its_security_is_changed() {
    let couch = with_users(&[("anna", &[])]).await;
    user(&couch, "anna", "GET", ANNA).await.refused(403, "forbidden", "You are not allowed to access this db.");
    let sign_up = couch.json("PUT", "/_users/org.couchdb.user:neu", new_user("neu", "pw")).await;
    sign_up.refused(401, "unauthorized", "You are not authorized to access this db.");
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_signs_up_and_changes_the_own_document() {
    let couch = with_sign_up(&[]).await;
    let neu = "/_users/org.couchdb.user:neu";
    let mut with_role = new_user("neu", "pw");
    with_role["roles"] = json!(["boss"]);
    couch.json("PUT", neu, with_role).await.refused(403, "forbidden", "Only _admin may set roles");
    assert_eq!(couch.json("PUT", neu, new_user("neu", "pw")).await.status, 201);
    assert_eq!(couch.json("PUT", neu, new_user("neu", "theirs")).await.status, 409);
    couch.get(neu).await.refused(404, "not_found", "missing");
    let login = logs_in(&couch, "neu", "pw").await;
    assert_eq!(login.json(), json!({"ok": true, "name": "neu", "roles": []}));

    // The own document, by the session.
    let own = couch.send(couch.request("GET", neu).header("cookie", cookie(&login))).await.json();
    assert_hashed(&own);
    let mut changed = own.clone();
    changed["roles"] = json!(["boss"]);
    let put = async |body: &Value| {
        let request = couch.request("PUT", neu).header("cookie", cookie(&login));
        couch.send(request.header("content-type", "application/json").body(body.to_string())).await
    };
    put(&changed).await.refused(403, "forbidden", "Only _admin may edit roles");
    // Neither by an edit that claims to come from elsewhere.
    let mut claimed = changed.clone();
    claimed["_rev"] = json!("9-967a00dff5e02add41819138abb3284d");
    let docs = json!({"docs": [claimed], "new_edits": false});
    let bulk = as_user(&couch, "neu", "pw", "POST", "/_users/_bulk_docs", docs).await.json();
    assert_eq!(bulk[0]["error"], "forbidden", "{bulk}");
    let mut changed = own.clone();
    changed["email"] = json!("a@b");
    assert_eq!(put(&changed).await.status, 201, "the hash stays");
    assert_eq!(logs_in(&couch, "neu", "pw").await.status, 200);

    // A new password ends the session.
    let own = couch.send(couch.request("GET", neu).header("cookie", cookie(&login))).await.json();
    let mut changed = own.clone();
    changed["password"] = json!("other");
    assert_eq!(put(&changed).await.status, 201);
    let after = couch.send(couch.request("GET", "/_session").header("cookie", cookie(&login))).await.json();
    assert_eq!(after["userCtx"]["name"], Value::Null);
    assert_eq!(logs_in(&couch, "neu", "pw").await.status, 401);
    let own = as_user(&couch, "neu", "other", "GET", neu, json!({})).await.json();
    let rev = own["_rev"].as_str().unwrap();
    let gone = as_user(&couch, "neu", "other", "DELETE", &format!("{neu}?rev={rev}"), json!({})).await;
    assert_eq!(gone.status, 200, "{}", gone.text);
    assert_eq!(logs_in(&couch, "neu", "other").await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_others_are_not_there() {
    let couch = with_sign_up(&[("anna", &["a"]), ("berta", &[])]).await;
    let document = admin(&couch, "GET", ANNA, json!({})).await.json();
    let rev = document["_rev"].as_str().unwrap().to_owned();
    let stranger =
        async |method: &str, path: &str, body: Value| as_user(&couch, "berta", "pw berta", method, path, body).await;
    for path in ["", "?revs=true", "?open_revs=all", &format!("?rev={rev}"), "?fields=name", "?conflicts=true"] {
        let read = stranger("GET", &format!("{ANNA}{path}"), json!({})).await;
        read.refused(404, "not_found", "missing");
        assert_eq!(couch.get(&format!("{ANNA}{path}")).await.status, 404, "{path}");
    }
    assert_eq!(stranger("PUT", ANNA, document.clone()).await.status, 404);
    assert_eq!(stranger("DELETE", &format!("{ANNA}?rev={rev}"), json!({})).await.status, 404);
    let bulk = stranger("POST", "/_users/_bulk_docs", json!({"docs": [document.clone()]})).await.json();
    assert_eq!(bulk[0]["error"], "not_found");
    let anonymous = couch.json("PUT", ANNA, document.clone()).await;
    anonymous.refused(403, "forbidden", "You may only update your own user document.");
    assert_eq!(couch.call("DELETE", &format!("{ANNA}?rev={rev}")).await.status, 403);
    let mut deleted = document.clone();
    deleted["_deleted"] = json!(true);
    assert_eq!(couch.json("PUT", ANNA, deleted.clone()).await.status, 403);
    assert_eq!(stranger("PUT", ANNA, deleted).await.status, 404);
    assert_eq!(admin(&couch, "GET", ANNA, json!({})).await.json(), document, "nothing was changed");
    for path in ["/_users/_all_docs?include_docs=true", "/_users/_changes"] {
        stranger("GET", path, json!({})).await.refused(401, "unauthorized", "You are not a server admin.");
    }
    let closed = "You are not allowed to access this db.";
    stranger("GET", "/_users/_design_docs", json!({})).await.refused(403, "forbidden", closed);
    let posted = json!({"docs": [{"id": "org.couchdb.user:anna"}]});
    assert_eq!(stranger("POST", "/_users/_bulk_get", posted).await.status, 403);
    assert_eq!(stranger("POST", "/_users/_find", json!({"selector": {}})).await.status, 403);
    admin(&couch, "PUT", "/_users/_design/d", json!({})).await;
    let design = stranger("GET", "/_users/_design/d", json!({})).await;
    design.refused(403, "forbidden", "Only administrators can view design docs in the users database.");

    // Public members are visible to all.
    set(&couch, "chttpd_auth/public_fields", "name,email").await;
    let read = stranger("GET", ANNA, json!({})).await.json();
    assert_eq!(read, json!({"_id": "org.couchdb.user:anna", "_rev": rev, "name": "anna"}));
    assert_eq!(stranger("GET", &format!("{ANNA}?open_revs=all"), json!({})).await.status, 404);
    // An administrator of the database sees all.
    let security = json!({"admins": {"names": ["berta"]}});
    assert_eq!(admin(&couch, "PUT", "/_users/_security", security).await.status, 200);
    assert_eq!(stranger("GET", ANNA, json!({})).await.json(), document);
    // And the limit, which its members see.
    assert_eq!(stranger("PUT", "/_users/_revs_limit", json!(500)).await.status, 200);
    let anna = async |method: &str| as_user(&couch, "anna", "pw anna", method, "/_users/_revs_limit", json!(1)).await;
    assert_eq!(anna("GET").await.json(), 500);
    anna("PUT").await.refused(403, "forbidden", "You are not a db or server admin.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_into_users_is_admitted_like_a_request() {
    let couch = with_users(&[]).await;
    admin(&couch, "PUT", "/backup", json!({})).await;
    let mut evil = new_user("evil", "pw");
    evil["roles"] = json!(["_admin"]);
    for document in [new_user("anna", "pw"), evil] {
        assert_eq!(admin(&couch, "POST", "/backup", document).await.status, 201);
    }
    let asked = json!({"source": "backup", "target": "_users"});
    let report = admin(&couch, "POST", "/_replicate", asked).await;
    assert_eq!(report.json()["history"][0]["doc_write_failures"], 1, "{}", report.text);
    assert_hashed(&admin(&couch, "GET", ANNA, json!({})).await.json());
    assert_eq!(logs_in(&couch, "anna", "pw").await.status, 200);
    assert_eq!(admin(&couch, "GET", "/_users/org.couchdb.user:evil", json!({})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_has_no_password() {
    let couch = with_users(&[("anna", &[])]).await;
    let mut document = admin(&couch, "GET", ANNA, json!({})).await.json();
    document["_deleted"] = json!(true);
    document["password"] = json!("geheim");
    let rev = admin(&couch, "PUT", ANNA, document).await.json()["rev"].as_str().unwrap().to_owned();
    let stored = admin(&couch, "GET", &format!("{ANNA}?rev={rev}"), json!({})).await.json();
    assert_eq!((&stored["name"], &stored["password"]), (&json!("anna"), &Value::Null));
    assert_eq!((&stored["salt"], &stored["derived_key"]), (&Value::Null, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_store_nothing_costly() {
    let couch = with_sign_up(&[("anna", &[])]).await;
    let document = user(&couch, "anna", "GET", ANNA).await.json();
    let put = async |body: &Value| as_user(&couch, "anna", "pw anna", "PUT", ANNA, body.clone()).await;
    let mut costly = document.clone();
    costly["iterations"] = json!(2_000_000);
    put(&costly).await.refused(403, "forbidden", "Iteration count is too high for this server");
    let mut large = document.clone();
    large["note"] = json!("x".repeat(64 * 1024));
    assert_eq!(put(&large).await.status, 413);
    let mut stale = document.clone();
    stale["_rev"] = json!("1-967a00dff5e02add41819138abb3284d");
    stale["password"] = json!("other");
    assert_eq!(put(&stale).await.status, 409);
    assert_eq!(put(&document).await.status, 201);
}

/// As CouchDB 3.5.2 answers.
#[tokio::test(flavor = "multi_thread")]
async fn new_passwords_match_the_configuration_at_once() {
    let couch = with_sign_up(&[]).await;
    let sign_up = async |password: &str| couch.json("PUT", ANNA, new_user("anna", password)).await;
    set(&couch, "chttpd_auth/password_regexp", r#"[{"^.{4,}$", "Too short."}, "[0-9]"]"#).await;
    let required = "Password does not conform to requirements.";
    sign_up("abc").await.refused(400, "bad_request", &format!("{required} Too short."));
    sign_up("abcd").await.refused(400, "bad_request", required);
    let mut wrong = new_user("anna", "abcd");
    wrong["type"] = json!("x");
    admin(&couch, "PUT", ANNA, wrong).await.refused(400, "bad_request", required);
    let docs = json!({"docs": [new_user("anna", "abc"), new_user("berta", "abcd1")]});
    let bulk = admin(&couch, "POST", "/_users/_bulk_docs", docs).await.json();
    assert_eq!((&bulk[0]["error"], &bulk[1]["ok"]), (&json!("bad_request"), &json!(true)));
    assert_eq!(sign_up("abcd1").await.status, 201);
    // Administrators are named without it, and stored hashes are not passwords.
    set(&couch, "admins/eve", "e").await;
    let document = admin(&couch, "GET", ANNA, json!({})).await.json();
    assert_eq!(admin(&couch, "PUT", ANNA, document).await.status, 201);

    let unable = "Server cannot hash passwords at this time.";
    let berta = || couch.json("PUT", "/_users/org.couchdb.user:c", new_user("c", "abcd1"));
    for (name, value) in [("password_regexp", "^a"), ("password_regexp", "[\"(\"]"), ("password_scheme", "md5")] {
        set(&couch, &format!("chttpd_auth/{name}"), value).await;
        berta().await.refused(403, "forbidden", unable);
        let path = format!("/_node/_local/_config/chttpd_auth/{name}");
        assert_eq!(admin(&couch, "DELETE", &path, json!({})).await.json(), value);
    }
    set(&couch, "chttpd_auth/password_scheme", "md5").await;
    let named = admin(&couch, "PUT", "/_node/_local/_config/admins/frida", json!("pw")).await;
    named.refused(403, "forbidden", unable);
    set(&couch, "chttpd_auth/password_scheme", "simple").await;
    assert_eq!(berta().await.status, 201);
    let stored = admin(&couch, "GET", "/_users/org.couchdb.user:c", json!({})).await.json();
    assert_eq!((&stored["password_scheme"], stored["password_sha"].as_str().unwrap().len()), (&json!("simple"), 40));
    assert_eq!(logs_in(&couch, "c", "abcd1").await.status, 200);
    set(&couch, "admins/frida", "pw").await;
    assert_eq!(logs_in(&couch, "frida", "pw").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_out_of_bounds_are_refused_by_their_iterations() {
    let couch = with_users(&[("anna", &[]), ("berta", &[])]).await;
    set(&couch, "admins/eve", "pw eve").await;
    // A proven password is not hashed again.
    assert_eq!(user(&couch, "berta", "GET", "/_session").await.status, 200);
    for (name, value, what) in [("min_iterations", "11", "low"), ("max_iterations", "9", "high")] {
        set(&couch, &format!("chttpd_auth/{name}"), value).await;
        let reason = format!("Iteration count is too {what} for this server");
        for who in ["anna", "eve"] {
            for password in [format!("pw {who}"), "wrong".to_owned()] {
                logs_in(&couch, who, &password).await.refused(403, "forbidden", &reason);
                let basic = as_user(&couch, who, &password, "GET", "/_up", json!({})).await;
                basic.refused(403, "forbidden", &reason);
            }
        }
        assert_eq!(user(&couch, "berta", "GET", "/_session").await.status, 200);
        set(&couch, &format!("chttpd_auth/{name}"), "10").await;
        let [anna, eve] = [logs_in(&couch, "anna", "pw anna").await, logs_in(&couch, "eve", "pw eve").await];
        assert_eq!((anna.status.as_u16(), eve.status.as_u16()), (200, 200), "no failure was counted");
        // Another document must be proven again, and so must another administrator's password.
        let mut document = admin(&couch, "GET", ANNA, json!({})).await.json();
        document["salt"] = json!("salt");
        document["password"] = json!("pw anna");
        assert_eq!(admin(&couch, "PUT", ANNA, document).await.status, 201);
        set(&couch, "admins/eve", "pw eve").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proven_password_is_stored_by_another_scheme_once() {
    let couch = with_users(&[("anna", &[]), ("berta", &[])]).await;
    let stored =
        async |name: &str| admin(&couch, "GET", &format!("/_users/org.couchdb.user:{name}"), json!({})).await.json();
    let before = stored("anna").await;
    let session = logs_in(&couch, "anna", "pw anna").await;
    assert_eq!(stored("anna").await, before, "it is stored by the scheme already");

    set(&couch, "chttpd_auth/iterations", "20").await;
    set(&couch, "chttpd_auth/upgrade_hash_on_auth", "false").await;
    assert_eq!(user(&couch, "anna", "GET", "/_session").await.status, 200);
    set(&couch, "chttpd_auth/upgrade_hash_on_auth", "true").await;
    set(&couch, "chttpd_auth/password_regexp", "[\"long enough\"]").await;
    assert_eq!(user(&couch, "anna", "GET", "/_session").await.status, 200);
    assert_eq!(stored("anna").await, before, "it could be no new password");
    set(&couch, "chttpd_auth/password_regexp", "").await;

    // If many requests arrive at once, one of them stores it.
    let requests = (0..20).map(|_| user(&couch, "anna", "GET", "/_session"));
    let answers = futures_util::future::join_all(requests).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    let upgraded = stored("anna").await;
    assert!(upgraded["_rev"].as_str().unwrap().starts_with("2-"), "{upgraded}");
    assert_eq!((&upgraded["iterations"], &upgraded["salt"]), (&json!(20), &before["salt"]));
    let goes_on = couch.send(couch.request("GET", "/_session").header("cookie", cookie(&session))).await;
    assert_eq!(goes_on.json()["userCtx"]["name"], "anna");
    // A second change within seconds waits, also for other users' logins, which it does not concern.
    set(&couch, "chttpd_auth/password_scheme", "simple").await;
    assert_eq!(user(&couch, "anna", "GET", "/_session").await.status, 200);
    assert_eq!(stored("anna").await, upgraded);
    assert_eq!(logs_in(&couch, "berta", "pw berta").await.status, 200);
    assert_eq!(stored("berta").await["password_scheme"], "simple");
    assert_eq!(user(&couch, "berta", "GET", "/_session").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_has_the_roles_of_the_document_with_its_name() {
    let couch = with_users(&[]).await;
    let document = |name: &str, roles: Value| json!({"type": "user", "name": name, "roles": roles});
    let put = async |name: &str, roles: Value| {
        let path = format!("/_users/org.couchdb.user:{name}");
        let written = admin(&couch, "PUT", &path, document(name, roles)).await;
        assert_eq!(written.status, 201, "{}", written.text);
    };
    set(&couch, "admins/eve", "pw eve").await;
    put("eve", json!(["staff", "lead"])).await;
    put("adm", json!(["boss"])).await;
    let own = admin(&couch, "GET", "/_session", json!({})).await.json();
    assert_eq!(own["userCtx"]["roles"], json!(["_admin", "boss"]));
    let expected = json!(["_admin", "staff", "lead"]);
    assert_eq!(user(&couch, "eve", "GET", "/_session").await.json()["userCtx"]["roles"], expected);
    let login = logs_in(&couch, "eve", "pw eve").await;
    assert_eq!(login.json()["roles"], expected);
    let with_cookie = couch.request("GET", "/_session").header("cookie", cookie(&login));
    assert_eq!(couch.send(with_cookie).await.json()["userCtx"]["roles"], expected);
    assert_eq!(logs_in(&couch, "eve", "password").await.status, 401, "the document gives no password");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_no_document_of_a_user() {
    let couch = with_sign_up(&[("anna", &["staff"])]).await;
    with_tokens(&couch).await;
    let before = admin(&couch, "GET", ANNA, json!({})).await.json();
    let rev = before["_rev"].as_str().unwrap().to_owned();
    let mut changed = before.clone();
    changed["password"] = json!("stolen");
    let anna = token("anna", &[], Some(4_102_444_800));
    for way in ["token", "proxy"] {
        let send = async |method: &str, path: &str, body: &Value| {
            let request = couch.request(method, path).header("content-type", "application/json");
            let request = match way {
                "token" => request.bearer_auth(&anna),
                _ => request.header("x-auth-couchdb-username", "anna"),
            };
            couch.send(request.body(body.to_string())).await
        };
        send("GET", ANNA, &json!(null)).await.refused(404, "not_found", "missing");
        send("PUT", ANNA, &changed).await.refused(404, "not_found", "missing");
        send("DELETE", &format!("{ANNA}?rev={rev}"), &json!({})).await.refused(404, "not_found", "missing");
        let bulk = send("POST", "/_users/_bulk_docs", &json!({"docs": [changed]})).await.json();
        assert_eq!(bulk[0]["error"], "not_found", "{way}");
        // It does not become a session of the account either.
        let session = send("GET", "/_session", &json!(null)).await;
        assert_eq!((&session.json()["userCtx"]["name"], session.header("set-cookie")), (&json!("anna"), ""), "{way}");
        let login = send("POST", "/_session", &json!({"name": "anna", "password": ""})).await;
        assert_eq!(login.status, 401, "{way}");
    }
    assert_eq!(admin(&couch, "GET", ANNA, json!({})).await.json(), before);
    assert_eq!(logs_in(&couch, "anna", "pw anna").await.status, 200);
}

/// As CouchDB 3.5 answers: somebody else has to say which password and which roles count.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_in_conflict_lets_nobody_in() {
    let couch = with_users(&[("anna", &[]), ("berta", &[])]).await;
    let session = logs_in(&couch, "anna", "pw anna").await;
    let by_session = || couch.request("GET", "/_session").header("cookie", cookie(&session));
    assert_eq!(couch.send(by_session()).await.json()["userCtx"]["name"], "anna");
    assert_eq!(user(&couch, "anna", "GET", "/_session").await.status, 200);
    // Another server's anna has a role and another password, and wins or loses.
    let before = admin(&couch, "GET", ANNA, json!({})).await.json();
    set(&couch, "chttpd_auth/iterations", "20").await;
    let reason = "User document conflicts must be resolved before the document is used for authentication purposes.";
    for rev in ["1-0", "9-f"] {
        let mut other = before.clone();
        (other["_rev"], other["roles"]) = (json!(rev), json!(["boss"]));
        let sent = json!({"docs": [other], "new_edits": false});
        assert_eq!(admin(&couch, "POST", "/_users/_bulk_docs", sent).await.json(), json!([]));
        let conflicted = admin(&couch, "GET", &format!("{ANNA}?conflicts=true"), json!({})).await.json();
        assert!(conflicted["_conflicts"].is_array());
        for password in ["pw anna", "wrong"] {
            as_user(&couch, "anna", password, "GET", "/_session", json!({})).await.refused(401, "unauthorized", reason);
            logs_in(&couch, "anna", password).await.refused(401, "unauthorized", reason);
        }
        couch.send(by_session()).await.refused(401, "unauthorized", reason);
        let after = admin(&couch, "GET", &format!("{ANNA}?conflicts=true"), json!({})).await.json();
        assert_eq!(after, conflicted, "no password is stored anew");
        assert_eq!(user(&couch, "berta", "GET", "/_session").await.status, 200);
        // A deleted leaf is not a conflict.
        let deleted = admin(&couch, "DELETE", &format!("{ANNA}?rev={rev}"), json!({})).await;
        assert_eq!(deleted.status, 200, "{}", deleted.text);
        assert_eq!(couch.send(by_session()).await.json()["userCtx"], json!({"name": "anna", "roles": []}));
        assert_eq!(user(&couch, "anna", "GET", "/_session").await.status, 200);
    }
    // An administrator's document only adds roles.
    let roles = |rev: &str, role: &str| json!({"_id": "org.couchdb.user:adm", "_rev": rev, "type": "user", "name": "adm", "roles": [role]});
    let sent = json!({"docs": [roles("1-a", "one"), roles("1-b", "two")], "new_edits": false});
    assert_eq!(admin(&couch, "POST", "/_users/_bulk_docs", sent).await.json(), json!([]));
    let own = admin(&couch, "GET", "/_session", json!({})).await.json();
    assert_eq!(own["userCtx"]["roles"], json!(["_admin"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_waits_for_the_end_of_its_owners_conflict() {
    let couch = with_users(&[("anna", &[])]).await;
    for name in ["_replicator", "here", "there"] {
        assert_eq!(admin(&couch, "PUT", &format!("/{name}"), json!({})).await.status, 201);
        let security = json!({"members": {"names": ["anna"]}});
        assert_eq!(admin(&couch, "PUT", &format!("/{name}/_security"), security).await.status, 200);
    }
    let mut other = admin(&couch, "GET", ANNA, json!({})).await.json();
    let job = json!({"source": "here", "target": "there", "continuous": true});
    assert_eq!(as_user(&couch, "anna", "pw anna", "PUT", "/_replicator/x", job).await.status, 201);
    until(&couch, "x", "running").await;
    other["_rev"] = json!("1-f");
    let sent = json!({"docs": [other], "new_edits": false});
    assert_eq!(admin(&couch, "POST", "/_users/_bulk_docs", sent).await.json(), json!([]));
    assert_eq!(admin(&couch, "PUT", "/here/a", json!({})).await.status, 201);
    let row = until(&couch, "x", "crashing").await;
    assert!(row["info"]["error"].as_str().unwrap().contains("User document conflicts must be resolved"), "{row}");
    assert_eq!(admin(&couch, "GET", "/there/a", json!({})).await.status, 404);
    assert_eq!(admin(&couch, "DELETE", &format!("{ANNA}?rev=1-f"), json!({})).await.status, 200);
    until(&couch, "x", "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_users_are_a_document_that_is_not_run() {
    let couch = with_sign_up(&[("anna", &[])]).await;
    let path = "/_users/_design/_auth";
    let design = admin(&couch, "GET", path, json!(null)).await.json();
    let hash = design["_rev"].as_str().unwrap().strip_prefix("1-").unwrap();
    assert_eq!(design["language"], "javascript");
    let rules = design["validate_doc_update"].as_str().unwrap();
    assert!(rules.contains("Only _admin may set roles") && rules.starts_with("function (newDoc"), "{rules}");
    assert_eq!(admin(&couch, "GET", "/_users", json!(null)).await.json()["doc_count"], 2);
    let listed = admin(&couch, "GET", "/_users/_all_docs", json!(null)).await.json();
    assert_eq!(listed["rows"][0]["id"], "_design/_auth");
    let feed = admin(&couch, "GET", "/_users/_changes", json!(null)).await.json();
    assert_eq!(feed["results"][0]["id"], "_design/_auth");
    let closed = "Only administrators can view design docs in the users database.";
    user(&couch, "anna", "GET", path).await.refused(403, "forbidden", closed);

    // Another text of it is kept, and not run either. Functions of other documents are run.
    let never = "function () { throw({forbidden: 'never'}); }";
    let other = json!({"_id": "_design/_auth", "_rev": "2-aa", "validate_doc_update": never, "_revisions": {"start": 2,
        "ids": ["aa", hash]}});
    let docs = json!({"docs": [other], "new_edits": false});
    assert_eq!(admin(&couch, "POST", "/_users/_bulk_docs", docs).await.json(), json!([]));
    let signed_up = couch.json("PUT", "/_users/org.couchdb.user:carla", new_user("carla", "pw")).await;
    assert_eq!(signed_up.status, 201, "{}", signed_up.text);
    admin(&couch, "PUT", "/_users/_design/more", json!({"validate_doc_update": never})).await;
    let refused = couch.json("PUT", "/_users/org.couchdb.user:dora", new_user("dora", "pw")).await;
    refused.refused(403, "forbidden", "never");

    // A starting server writes it if it is missing.
    assert_eq!(admin(&couch, "DELETE", &format!("{path}?rev=2-aa"), json!(null)).await.status, 200);
    assert_eq!(admin(&couch, "GET", path, json!(null)).await.status, 404);
    let administrator = Administrator { name: "adm".into(), password: "pass word".into() };
    let options = Options { administrator: Some(administrator), ..Options::default() };
    let again = Couch::over(couch.layer.engine().clone(), options).await;
    wait_for(path, async || (admin(&again, "GET", path, json!(null)).await.status == 200).then_some(())).await;
    // A set-up creates `_users` too.
    let new = Couch::start().await;
    let set_up = json!({"action": "enable_single_node", "username": "adm", "password": "pass word"});
    assert_eq!(new.json("POST", "/_cluster_setup", set_up).await.status, 201);
    assert_eq!(admin(&new, "GET", path, json!(null)).await.status, 200);
}

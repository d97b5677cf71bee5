// Small things that programs and CouchDB's own test suites expect: each request has the answer written here. It goes to
// the server under test, and also to the CouchDB in COUCHDB_URL, if set.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import { Server, expectOk, request } from '../lib/server.mjs';

const COUCHDB = process.env.COUCHDB_URL && new URL(process.env.COUCHDB_URL);
const NAME = COUCHDB ? decodeURIComponent(COUCHDB.username) : 'adm';
const SECRET = COUCHDB ? decodeURIComponent(COUCHDB.password) : 'secret';
const basic = (name, secret) => ({ authorization: `Basic ${Buffer.from(`${name}:${secret}`).toString('base64')}` });

/** The servers that are asked, by their names. */
async function servers(t) {
  const env = { COUCHDB_USER: NAME, COUCHDB_PASSWORD: SECRET };
  const ours = (await Server.start(await store(t, 'lsm'), { env })).endWith(t);
  return Object.entries({ ours: ours.url, ...(COUCHDB && { theirs: COUCHDB.origin }) });
}

/** Calls `play` for each server, as an administrator, with a new database. */
async function each(t, play) {
  for (const [side, url] of await servers(t)) {
    const db = `expected-${randomBytes(6).toString('hex')}`;
    const ask = (path, options = {}) => request(url + path, { ...options, headers: { ...basic(NAME, SECRET), ...options.headers } });
    const post = (path, body, headers) => ask(path, { method: 'POST', body, headers });
    const put = (path, body, headers) => ask(path, { method: 'PUT', body, headers });
    const same = (actual, expected, what) => assert.deepEqual(actual, expected, `${side}: ${what}`);
    const refused = async (answer, status, error, reason, what) => {
      const { status: actual, body } = await answer;
      same([actual, body.error, body.reason], [status, error, reason], what);
    };
    await expectOk(`${url}/${db}`, { method: 'PUT', headers: basic(NAME, SECRET) });
    try {
      await play({ side, url, db: `/${db}`, name: db, ask, post, put, same, refused });
    } finally {
      await ask(`/${db}`, { method: 'DELETE' });
    }
  }
}

/** Plays with these settings, and puts the old ones back. */
async function configured(ask, settings, play) {
  const path = (key) => `/_node/_local/_config/${key}`;
  const old = [];
  for (const [key, value] of Object.entries(settings)) {
    const { status, body } = await ask(path(key));
    old.push([key, status === 200 ? body : undefined]);
    await ask(path(key), { method: 'PUT', body: JSON.stringify(value) });
  }
  try {
    await play();
  } finally {
    for (const [key, value] of old.reverse()) {
      if (value === undefined) await ask(path(key), { method: 'DELETE' });
      else await ask(path(key), { method: 'PUT', body: JSON.stringify(value) });
    }
  }
}

test('who the server is', (t) => each(t, async ({ db, ask, same }) => {
  const { body, headers } = await ask('/');
  same(/^3\.5\.\d+$/.test(body.version), true, 'the version can be compared');
  same(/^CouchDB\/3\.5/.test(headers.get('server')), true, headers.get('server'));
  same(/^\d+$/.test(headers.get('x-couchdb-body-time')), true, 'the time of the body');
  same((await ask(db)).body.compact_running, false, 'compact_running');
  for (const path of ['/_all_dbs', '/_dbs_info', '/_uuids']) {
    same(/^".+"$/.test((await ask(path)).headers.get('etag')), true, `the tag of ${path}`);
  }
  same(Array.isArray((await ask('/_active_tasks')).body), true, '_active_tasks');
}));

// Both expressions are those of LiveSync: its check of a server, and its garbage collection.
test('LiveSync reads the version of the server and its sequences', (t) => each(t, async ({ db, ask, put, same }) => {
  const named = /CouchDB(\/([0-9.]+))?/.exec((await ask('/')).headers.get('server'));
  const [major, minor] = named[2].split('.').map(Number);
  same(major > 3 || (major === 3 && minor >= 2), true, named[2]);
  const number = (seq) => {
    const digits = String(seq).split('-')[0];
    assert.match(digits, /^\d+$/);
    assert.ok(Number.isSafeInteger(Number(digits)), digits);
    return Number(digits);
  };
  const start = number((await ask(db)).body.update_seq);
  const seen = [];
  for (let n = 0; n < 20; n++) {
    await put(`${db}/doc${n}`, {});
    seen.push(number((await ask(`${db}/_changes?since=now`)).body.last_seq));
  }
  same(seen, seen.toSorted((a, b) => a - b), 'the numbers never fall');
  const feed = (await ask(`${db}/_changes`)).body;
  const max = number((await ask(db)).body.update_seq);
  same(number(feed.last_seq), max, 'the end of the feed');
  same(Math.abs(max - start - 20) <= 100, true, `20 changes are ${max - start}`);
  const left = max - number(feed.results[9].seq);
  same(left >= 0 && left <= 110, true, `10 documents are left, and it shows ${left}`);
}));

test('feeds and listings', (t) => each(t, async ({ db, name, ask, put, same }) => {
  for (const id of ['a', 'b', 'c']) await put(`${db}/${id}`, {});
  const { headers } = await ask(`${db}/_changes`);
  same((await ask(`${db}/_changes`, { headers: { 'if-none-match': headers.get('etag') } })).status, 304, '_changes is known');
  await put(`${db}/d`, {});
  same((await ask(`${db}/_changes`, { headers: { 'if-none-match': headers.get('etag') } })).status, 200, '_changes is not');
  const ids = async (query) => (await ask(`${db}/_changes?${query}`)).body.results.map(({ id }) => id);
  same(await ids('descending=true&limit=2'), ['d', 'c'], 'descending');
  same(await ids('feed=longpoll&descending=true&limit=2'), ['d', 'c'], 'longpoll, descending');
  const keys = encodeURIComponent(JSON.stringify([name, 'no-such-database']));
  same((await ask(`/_all_dbs?keys=${keys}`)).body, [name], 'databases by their names');
}));

test('attachments', (t) => each(t, async ({ db, ask, post, put, same, refused }) => {
  const text = (path, method) => ask(path, { method, headers: { 'content-type': 'text/plain' }, body: method === 'PUT' ? 'text' : undefined });
  const first = (await text(`${db}/x/a`, 'PUT')).body.rev;
  const second = (await text(`${db}/x/b?rev=${first}`, 'PUT')).body.rev;
  const conflict = [409, 'conflict', 'Document update conflict.'];
  await refused(text(`${db}/x/c?rev=${first}`, 'PUT'), ...conflict, 'written over a replaced revision');
  await refused(text(`${db}/x/a?rev=${first}`, 'DELETE'), ...conflict, 'deleted over a replaced revision');
  const never = '1-00000000000000000000000000000000';
  await refused(text(`${db}/x/c?rev=${never}`, 'PUT'), 409, 'not_found', 'missing_rev', 'over a revision that never was');
  const got = async (atts_since) => {
    const { body } = await post(`${db}/_bulk_get`, { docs: [{ id: 'x', atts_since }] });
    return body.results[0].docs[0].ok._attachments.b;
  };
  same((await got([])).stub, true, 'no revision asks for nothing');
  same((await got([first])).data, Buffer.from('text').toString('base64'), 'data since the first revision');
  same((await got([second])).stub, true, 'none since the second');
}));

test('bytes beyond ASCII in headers', (t) => each(t, async ({ db, ask, url, same }) => {
  const login = await request(`${url}/_session`, { method: 'POST', body: { name: NAME, password: SECRET } });
  const cookie = login.headers.get('set-cookie').split(';')[0];
  const seen = await request(`${url}/_session`, { headers: { cookie: `lang=\xfc; ${cookie}` } });
  same(seen.body.userCtx.name, NAME, 'a cookie spoils no other');
  const headers = { 'content-type': 'text/plain; name="\xfc.txt"' };
  same((await ask(`${db}/x/a`, { method: 'PUT', headers, body: 'x' })).status, 201, 'a content type');
}));

test('what is not there', (t) => each(t, async ({ db, ask, post, put, same, refused }) => {
  await put(`${db}/_design/d`, { views: { v: { map: 'function (doc) { emit(doc.k) }' } } });
  for (const path of ['_search/i?q=x', '_search_info/i']) {
    await refused(ask(`${db}/_design/d/${path}`), 503, 'service unavailable', 'Search is not available', path);
  }
  for (const path of ['_search_cleanup', '_nouveau_cleanup']) same((await post(`${db}/${path}`, {})).status, 202, path);
  same((await ask(`${db}/_design/d/_view/v/extra`)).status, 405, '_view/v/extra');
  same((await ask(`${db}/_index/a`)).status, 404, '_index/a');
  const info = (await ask(`${db}/_design/d/_info`)).body.view_index;
  same(Array.isArray(info.collator_versions), true, 'collator_versions');
}));

test('searches', (t) => each(t, async ({ db, ask, post, put, same }) => {
  const docs = [{ _id: 'a', n: [602.0], t: 'foobar' }, { _id: 'b', n: [1], t: 'foo foo' }, { _id: 'c', t: 'a{b', 'x\\y': 1 }];
  await post(`${db}/_bulk_docs`, { docs });
  const found = async (selector) => (await post(`${db}/_find`, { selector, fields: ['_id'] })).body.docs?.map(({ _id }) => _id);
  for (const [regex, ids] of [
    ['foo(?=bar)', ['a']], ['foo(?!bar)', ['b']], ['(?<=foo)bar', ['a']], ['(foo) \\1', ['b']], ['(?>foo)b', ['a']], ['\\Qa{b\\E', ['c']],
    ['a{b', ['c']], ['bar\\Z', ['a']], ['foo\\hfoo', ['b']], ['(?#none)bar', ['a']], ['r$', ['a']],
  ]) same(await found({ t: { $regex: regex } }), ids, regex);
  same(await found({ _id: { $in: ['c', 'a', 'none'] } }), ['a', 'c'], '$in');
  same(await found({ $or: [{ _id: 'b' }, { _id: 'a' }] }), ['a', 'b'], '$or');
  const explained = async (selector) => (await post(`${db}/_explain`, { selector })).body.selector;
  for (const field of ['a\\.b', 'a\\b', '\\$a', 'a.b\\']) same(await explained({ [field]: 1 }), { [field]: { $eq: 1 } }, field);
  same(await explained({ a: { '\\$b': 1 } }), { 'a.\\$b': { $eq: 1 } }, 'nested');
  // An index is a view, with its own `_info`.
  const index = await post(`${db}/_index`, { index: { fields: ['t'] }, ddoc: 'i', name: 'n' });
  same(index.body.result, 'created', 'an index');
  same((await ask(`${db}/_design/i/_info`)).status, 200, 'the _info of an index');
  const rows = (await ask(`${db}/_design/i/_view/n?reduce=false`)).body.rows;
  same(rows.map(({ id, key }) => [id, key]), [['c', ['a{b']], ['b', ['foo foo']], ['a', ['foobar']]], 'the view of an index');
  // Numbers before texts, and upper case before lower case: Erlang's order.
  const views = { v: { map: 'function (doc) { emit(doc.k) }', options: { collation: 'raw' } } };
  await put(`${db}/_design/raw`, { views });
  await post(`${db}/_bulk_docs`, { docs: ['b', 'A', 'a', 'B'].map((k) => ({ _id: `k${k}`, k })) });
  const keys = (await ask(`${db}/_design/raw/_view/v?start_key="A"`)).body.rows.map(({ key }) => key);
  same(keys, ['A', 'B', 'a', 'b'], 'raw collation');
}));

test('numbers with and without a fraction are not the same in $all', (t) => each(t, async ({ db, url, ask, same }) => {
  const body = '{"_id":"a","n":[602.0]}';
  await expectOk(`${url}${db}/a`, { method: 'PUT', body, headers: basic(NAME, SECRET) });
  for (const [argument, count] of [['602.0', 1], ['602', 0]]) {
    const { body: found } = await ask(`${db}/_find`, { method: 'POST', body: `{"selector":{"n":{"$all":[${argument}]}}}` });
    same(found.docs.length, count, `$all of ${argument}`);
  }
}));

test('the configuration and the rules of users', (t) => each(t, async ({ ask, same }) => {
  const { body } = await ask('/_node/_local/_config');
  for (const section of ['admins', 'chttpd', 'couchdb', 'log']) same(typeof body[section], 'object', section);
  same(/^-pbkdf2/.test(body.admins[NAME]), true, 'administrators are hashed');
  same(/^\d+$/.test(body.chttpd.port) && /^[0-9a-f]{32}$/.test(body.couchdb.uuid), true, 'what the server was started with');
  for (const section of ['native_query_servers', 'os_daemons', 'feature_flags']) {
    same((await ask(`/_node/_local/_config/${section}/x`, { method: 'PUT', body: '"y"' })).status, 403, section);
  }
  const made = await ask('/_users', { method: 'PUT' });
  same([201, 412].includes(made.status), true, '_users');
  // CouchDB writes it when it sees the database.
  let design;
  for (const end = Date.now() + 15_000; Date.now() < end && design?.status !== 200;) design = await ask('/_users/_design/_auth');
  same([design.status, typeof design.body.validate_doc_update], [200, 'string'], '_design/_auth');
  const listed = await ask('/_users/_all_docs?key="_design/_auth"');
  same(listed.body.rows.map(({ id }) => id), ['_design/_auth'], 'it is listed');
}));

test('a named user is told 403 where a login does not help', (t) => each(t, async ({ db, url, ask, put, same }) => {
  const made = await ask('/_users', { method: 'PUT' });
  same([201, 412].includes(made.status), true, '_users');
  const name = `user-${randomBytes(6).toString('hex')}`;
  const path = `/_users/org.couchdb.user:${name}`;
  const { body } = await put(path, { type: 'user', name, roles: [], password: 'pw' });
  try {
    await put(`${db}/_security`, { members: { names: [name] } });
    const as = async (path, options) => (await request(url + path, { headers: basic(name, 'pw'), ...options })).status;
    same(await as('/_users/org.couchdb.user:other'), 403, '_users');
    same(await as(`${db}/_design/d`, { method: 'PUT', body: {} }), 403, 'a design document');
    same(await as('/_all_dbs'), 401, 'the databases');
    same(await as(db), 200, 'the database');
  } finally {
    await ask(`${path}?rev=${body.rev}`, { method: 'DELETE' });
  }
}));

test('pages of every origin send passwords after add-cors-to-couchdb', (t) => each(t, async ({ ask, same }) => {
  const settings = { 'chttpd/enable_cors': 'true', 'cors/origins': '*', 'cors/credentials': 'true' };
  await configured(ask, settings, async () => {
    const page = 'http://page.example';
    const cors = ({ headers }) => ['access-control-allow-origin', 'access-control-allow-credentials'].map((name) => headers.get(name));
    same(cors(await ask('/', { headers: { origin: page } })), [page, 'true'], 'an answer');
    const asked = { origin: page, 'access-control-request-method': 'PUT', 'access-control-request-headers': 'authorization' };
    const preflight = await ask('/db', { method: 'OPTIONS', headers: asked });
    same([preflight.status, ...cors(preflight)], [204, page, 'true'], 'a preflight');
    same(cors(await ask('/no-such-database', { headers: { origin: page } })), [page, 'true'], 'an error');
  });
}));

test('settings', (t) => each(t, async ({ db, url, ask, put, same }) => {
  const stranger = async (path) => (await request(url + path)).status;
  await configured(ask, { 'chttpd/admin_only_all_dbs': 'false' }, async () => {
    for (const path of ['/_all_dbs', '/_dbs_info']) same(await stranger(path), 200, path);
  });
  for (const path of ['/_all_dbs', '/_dbs_info']) same(await stranger(path), 401, path);
  await configured(ask, { 'chttpd_auth/require_valid_user': 'true' }, async () => same(await stranger('/'), 401, 'require_valid_user'));
  await put(`${db}/a+b`, {});
  await configured(ask, { 'chttpd/decode_plus_to_space': 'false' }, () => put(`${db}/c+d`, {}));
  same((await ask(`${db}/_all_docs`)).body.rows.map(({ id }) => id), ['a b', 'c+d'], 'decode_plus_to_space');
  await configured(ask, { 'uuids/algorithm': 'utc_id', 'uuids/utc_id_suffix': '-here' }, async () => {
    const [id] = (await ask('/_uuids')).body.uuids;
    same(/^[0-9a-f]{14}-here$/.test(id), true, id);
  });
  await configured(ask, { 'chttpd/x_forwarded_host': 'X-Host' }, async () => {
    const { headers } = await put(`${db}/e`, {}, { 'x-host': 'couch.example' });
    same(headers.get('location'), `http://couch.example${db}/e`, 'x_forwarded_host');
  });
}));

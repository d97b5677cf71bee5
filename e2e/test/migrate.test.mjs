// `couch-layer migrate` from a real pouchdb-server, and from the CouchDB that COUCHDB_URL names. A PouchDB that was in
// sync with the old server goes on with the new one, and no document is sent again.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import path from 'node:path';
import test from 'node:test';

import { leaves } from '../lib/database.mjs';
import { pouchdbServer } from '../lib/pouchdb_server.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';
import { Server, expectOk, request, run, skipLoudly, temporaryFolder } from '../lib/server.mjs';

const post = (body) => ({ method: 'POST', body });
const put = (body) => ({ method: 'PUT', body });

/** Fills a database: conflicts, tombstones, an attachment, a view, ids that need escapes. */
async function fill(ask, db) {
  await ask(`/${db}`, { method: 'PUT' });
  const docs = Array.from({ length: 300 }, (_, n) => ({ _id: `n${n}`, n }));
  await ask(`/${db}/_bulk_docs`, post({ docs }));
  const torn = ['a', 'b', 'c'].map((letter) => {
    const hash = letter.repeat(32);
    return { _id: 'torn/ä', _rev: `2-${hash}`, _revisions: { start: 2, ids: [hash, '0'.repeat(32)] }, letter };
  });
  torn[2]._deleted = true;
  await ask(`/${db}/_bulk_docs`, post({ docs: torn, new_edits: false }));
  const gone = await ask(`/${db}/gone`, put({}));
  await ask(`/${db}/gone?rev=${gone.rev}`, { method: 'DELETE' });
  const data = Buffer.from('Hello').toString('base64');
  await ask(`/${db}/attached`, put({ _attachments: { 'a.txt': { content_type: 'text/plain', data } } }));
  await ask(`/${db}/_design/by`, put({ views: { n: { map: 'function (doc) { emit(doc.n); }' } } }));
}

/** A PouchDB whose requests with bodies of documents are listed. */
function client(folder, url, authorization) {
  const sent = [];
  const remote = new PouchDB(url, {
    fetch: (to, options) => {
      const { pathname } = new URL(to);
      const body = typeof options.body === 'string' ? options.body : '';
      const isOfDocuments = /\/_bulk_(docs|get)$/.test(pathname) || /\/a\.txt$/.test(pathname);
      if (isOfDocuments) sent.push(`${options.method} ${pathname} ${body.slice(0, 200)}`);
      const headers = new Headers(options.headers);
      if (authorization) headers.set('authorization', authorization);
      return PouchDB.fetch(to, { ...options, headers });
    },
  });
  return { remote, sent };
}

/** Moves `db`, compares it, and lets a PouchDB that knows the old server go on with ours. */
async function moved(t, { from, origin, authorization, ask, db, args }) {
  const folder = await temporaryFolder(t);
  const engine = `lsm:${path.join(folder, 'data')}`;
  const replica = new PouchDB(path.join(folder, 'pouch'));
  t.after(() => replica.close());
  const before = client(folder, `${origin}/${db}`, authorization);
  await replicate(before.remote, replica);
  await replicate(replica, before.remote);
  assert.notEqual(before.sent.length, 0, 'documents were fetched');

  const first = await run(['migrate', '--from', from, '--engine', engine, ...args]);
  assert.equal(first.code, 0, first.stdout + first.stderr);
  assert.match(first.stdout, new RegExp(`^${db}: 303 documents, [0-9]+ revisions written, the same revisions$`, 'm'));
  await ask(`/${db}/later`, put({}));
  const second = await run(['migrate', '--from', from, '--engine', engine, db]);
  assert.equal(second.code, 0, second.stdout + second.stderr);
  assert.match(second.stdout, /304 documents, 1 revisions written/);

  const server = (await Server.start(engine)).endWith(t);
  const after = client(folder, `${server.url}/${db}`);
  await replicate(before.remote, replica);
  const [down, up] = [await replicate(after.remote, replica), await replicate(replica, after.remote)];
  assert.deepEqual([down.docs_read, down.docs_written, up.docs_read, up.docs_written], [0, 0, 0, 0]);
  assert.deepEqual(after.sent, [], 'no document was sent or fetched again');
  await expectOk(`${server.url}/${db}/new`, put({}));
  assert.equal((await replicate(after.remote, replica)).docs_written, 1);

  const attached = await request(`${server.url}/${db}/attached/a.txt`);
  assert.equal(attached.text, 'Hello');
  const { rows } = await expectOk(`${server.url}/${db}/_design/by/_view/n?key=7`);
  assert.deepEqual(rows.map((row) => row.id), ['n7']);
  return { server, first, folder, engine };
}

test('a pouchdb-server moves', { timeout: 240_000 }, async (t) => {
  const origin = await pouchdbServer(t);
  const ask = (where, options) => expectOk(`${origin}${where}`, options);
  await fill(ask, 'notes');
  await ask('/_users/org.couchdb.user:bert', put({ name: 'bert', type: 'user', roles: ['r'], password: 'geheim' }));
  await ask('/notes/_security', put({ members: { names: ['bert'] } }));
  const { server, first } = await moved(t, { from: origin, origin, ask, db: 'notes', args: [] });
  t.diagnostic(first.stdout + first.stderr);

  const theirs = await leaves(`${origin}/notes`);
  const ours = await leaves(`${server.url}/notes`);
  ours.delete('new');
  assert.deepEqual(ours, theirs);
  assert.deepEqual(await expectOk(`${server.url}/notes/_security`), { members: { names: ['bert'] } });
  const login = (password) => request(`${server.url}/_session`, post({ name: 'bert', password }));
  assert.equal((await login('geheim')).status, 200);
  assert.equal((await login('else')).status, 401);
});

test('a CouchDB moves', { timeout: 240_000 }, async (t) => {
  if (!process.env.COUCHDB_URL) return skipLoudly(t, 'COUCHDB_URL names no CouchDB');
  const from = process.env.COUCHDB_URL.replace(/\/$/, '');
  const { username, password, origin } = new URL(from);
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  const authorization = `Basic ${Buffer.from(credentials).toString('base64')}`;
  const ask = (where, options) => expectOk(`${origin}${where}`, { ...options, headers: { authorization } });
  const db = `moved-${randomBytes(6).toString('hex')}`;
  t.after(() => request(`${origin}/${db}`, { method: 'DELETE', headers: { authorization } }));
  await fill(ask, db);
  await ask(`/${db}/_revs_limit`, put(77));
  await ask(`/${db}/_security`, put({ members: { names: ['bert'], roles: [] } }));
  const { server } = await moved(t, { from, origin, authorization, ask, db, args: [db] });
  assert.equal(await expectOk(`${server.url}/${db}/_revs_limit`), 77);
  assert.deepEqual(await expectOk(`${server.url}/${db}/_security`), { members: { names: ['bert'], roles: [] } });
});

// A client replicates into a database whose validate_doc_update refuses some of its documents.

import assert from 'node:assert/strict';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import { Server, expectOk } from '../lib/server.mjs';
import PouchDB from '../lib/pouch.mjs';

const DOCUMENTS = 40;

test('what a function refuses is denied to the client, and the rest arrives', { timeout: 120_000 }, async (t) => {
  const engine = await store(t);
  const server = (await Server.start(engine)).endWith(t);
  const url = `${server.url}/shared`;
  await expectOk(url, { method: 'PUT' });
  const client = new PouchDB('client', { adapter: 'memory' });
  t.after(() => client.destroy());

  const rules = 'function (newDoc, oldDoc) { if (newDoc.bad) throw({ forbidden: "no " + newDoc._id }); }';
  const remote = new PouchDB(url, { skip_setup: true });
  await remote.put({ _id: '_design/rules', validate_doc_update: rules });
  const bad = (index) => index % 4 === 0;
  await client.bulkDocs(Array.from({ length: DOCUMENTS }, (_, index) => ({ _id: `doc-${index}`, bad: bad(index) })));

  const denied = [];
  const replication = client.replicate.to(url);
  replication.on('denied', (row) => denied.push(row.doc ?? row));
  const result = await replication;
  assert.equal(result.doc_write_failures, DOCUMENTS / 4, JSON.stringify(result));
  assert.equal(denied.length, DOCUMENTS / 4);
  for (const row of denied) assert.equal(row.name ?? row.error, 'forbidden', JSON.stringify(row));
  const { rows } = await remote.allDocs({ startkey: 'doc-', endkey: 'doc-\uffff' });
  assert.equal(rows.length, (DOCUMENTS * 3) / 4);

  // Single writes are refused as CouchDB refuses them.
  await assert.rejects(remote.put({ _id: 'doc-x', bad: true }), { status: 403, name: 'forbidden', reason: 'no doc-x' });
  // After they are corrected, they arrive.
  for (let index = 0; index < DOCUMENTS; index += 4) {
    await client.put({ ...(await client.get(`doc-${index}`)), bad: false });
  }
  const again = await client.replicate.to(url);
  assert.deepEqual([again.ok, again.doc_write_failures], [true, 0], JSON.stringify(again));
  assert.equal((await remote.allDocs({ startkey: 'doc-', endkey: 'doc-\uffff' })).rows.length, DOCUMENTS);
});

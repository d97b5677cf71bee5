// A server is lost, and another one goes on with a snapshot of its store. PouchDBs that were behind and ahead of the snapshot
// replicate with it and miss nothing.

import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';

import PouchDB, { localDatabase, replicateBoth } from '../lib/pouch.mjs';
import { Server, expectOk, run, temporaryFolder } from '../lib/server.mjs';

const ADMIN = { COUCHDB_USER: 'anna', COUCHDB_PASSWORD: 'secret' };
const authorization = `Basic ${Buffer.from('anna:secret').toString('base64')}`;

test('PouchDBs go on with a snapshot', { timeout: 120_000 }, async (t) => {
  const folder = await temporaryFolder(t);
  const [store, copy] = ['store', 'copy'].map((name) => path.join(folder, name));
  const put = (url, body) => expectOk(url, { method: 'PUT', body, headers: { authorization } });
  const remote = (server) => new PouchDB(`${server.url}/db`, {
    fetch: (url, options) => {
      const headers = new Headers(options.headers);
      headers.set('authorization', authorization);
      return PouchDB.fetch(url, { ...options, headers });
    },
  });

  let server = (await Server.start(`lsm:${store}`, { env: ADMIN })).endWith(t);
  const { port } = server;
  await put(`${server.url}/db`);
  const [behind, ahead] = ['behind', 'ahead'].map((name) => localDatabase(t, path.join(folder, name)));
  await put(`${server.url}/db/a`, { n: 1 });
  await replicateBoth(remote(server), behind);
  await put(`${server.url}/db/b`, { n: 1 });
  const made = await run(['snapshot', copy, '--url', server.url], { env: ADMIN });
  assert.equal(made.code, 0, made.stderr);
  await put(`${server.url}/db/lost`, {});
  await ahead.put({ _id: 'own' });
  await replicateBoth(remote(server), ahead);
  await server.kill();

  // At the same address, so that the clients have checkpoints of it.
  server = (await Server.start(copy, { env: ADMIN, port })).endWith(t);
  await put(`${server.url}/db/c`, {});
  const { _rev } = await expectOk(`${server.url}/db/a`, { headers: { authorization } });
  await put(`${server.url}/db/a`, { n: 2, _rev });
  await replicateBoth(remote(server), behind);
  assert.deepEqual((await behind.allDocs()).rows.map((row) => row.id), ['a', 'b', 'c']);
  await replicateBoth(remote(server), ahead);
  await replicateBoth(remote(server), behind);
  for (const db of [behind, ahead, remote(server)]) {
    assert.deepEqual((await db.allDocs()).rows.map((row) => row.id), ['a', 'b', 'c', 'lost', 'own']);
    assert.equal((await db.get('a')).n, 2);
  }
});

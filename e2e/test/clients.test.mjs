// Clients written for CouchDB, used as in their manuals.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createRequire } from 'node:module';
import path from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';

import { store } from '../lib/engines.mjs';
import { E2E, Server, skipLoudly, temporaryFolder } from '../lib/server.mjs';

const nano = createRequire(import.meta.url)('nano');
const exec = promisify(execFile);

const ADMIN = { COUCHDB_USER: 'anna', COUCHDB_PASSWORD: 'secret word' };
const withAdmin = (server) => server.url.replace('//', '//anna:secret%20word@');

test('nano', async (t) => {
  const server = (await Server.start(await store(t, 'mem'), { env: ADMIN })).endWith(t);
  const couch = nano(withAdmin(server));
  await couch.db.create('alice');
  assert.ok((await couch.db.list()).includes('alice'));
  const alice = couch.use('alice');

  const inserted = await alice.insert({ crazy: true }, 'rabbit');
  assert.equal(inserted.ok, true);
  const rabbit = await alice.get('rabbit', { revs_info: true });
  assert.deepEqual([rabbit.crazy, rabbit._rev, rabbit._revs_info.length], [true, inserted.rev, 1]);
  await assert.rejects(alice.insert({ crazy: false }, 'rabbit'), (error) => error.statusCode === 409 && error.error === 'conflict');
  const updated = await alice.insert({ ...rabbit, _revs_info: undefined, crazy: false });
  assert.match(updated.rev, /^2-/);
  const head = await alice.head('rabbit');
  assert.equal(head.etag, `"${updated.rev}"`);

  const bulk = await alice.bulk({ docs: [{ _id: 'a', n: 1 }, { _id: 'b', n: 2 }, { n: 3 }] });
  assert.equal(bulk.length, 3);
  assert.equal((await alice.list({ include_docs: true })).rows.length, 4);
  assert.deepEqual((await alice.fetch({ keys: ['b', 'none'] })).rows.map((row) => row.id ?? row.error), ['b', 'not_found']);
  const copied = await fetch(`${server.url}/alice/a`, {
    method: 'COPY',
    headers: { destination: 'c', authorization: `Basic ${btoa('anna:secret word')}` },
  });
  assert.equal(copied.status, 201);
  assert.equal((await alice.get('c')).n, 1);

  const seen = [];
  const reader = alice.changesReader.get({ since: '0', batchSize: 2, timeout: 200 });
  await new Promise((resolve, reject) => {
    reader.on('batch', (batch) => seen.push(...batch.map((change) => change.id))).on('end', resolve).on('error', reject);
  });
  assert.equal(new Set(seen).size, 5);

  await alice.destroy('rabbit', updated.rev);
  await assert.rejects(alice.get('rabbit'), (error) => error.statusCode === 404 && error.reason === 'deleted');
  assert.equal((await alice.info()).doc_del_count, 1);

  // The cookie of a session gives the same access as the password.
  const stranger = nano(server.url);
  await assert.rejects(stranger.use('alice').get('a'), (error) => error.statusCode === 401);
  await stranger.auth('anna', 'secret word');
  assert.equal((await stranger.session()).userCtx.name, 'anna');

  await couch.db.destroy('alice');
  await assert.rejects(alice.get('a'), (error) => error.statusCode === 404);
});

test('pycouchdb', { timeout: 180_000 }, async (t) => {
  const environment = path.join(await temporaryFolder(t), 'python');
  try {
    await exec('python3', ['-m', 'venv', environment]);
    await exec(path.join(environment, 'bin/pip'), ['install', '--quiet', '--disable-pip-version-check', 'pycouchdb==1.17.1', 'typing_extensions']);
  } catch (error) {
    return skipLoudly(t, `pycouchdb cannot be installed: ${String(error.stderr ?? error).trim().split('\n').at(-1)}`);
  }
  const server = (await Server.start(await store(t, 'mem'), { env: ADMIN })).endWith(t);
  const script = path.join(E2E, 'lib/python_client.py');
  const { stdout } = await exec(path.join(environment, 'bin/python'), [script, `${withAdmin(server)}/`], {
    env: { ...process.env, no_proxy: '127.0.0.1' },
  });
  assert.match(stdout, /ok/);
});

// SIGKILL of the FoundationDB server below a running couch-layer: acknowledged writes are there, no document is in
// `_changes` twice, and open feeds continue without a new request. SIGKILL of one of two servers on a cluster: the
// other one continues its replications. A cluster that FoundationDB's own tools restored is adopted: clients that were
// behind the backup and ahead of it miss nothing.

import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { FdbServer } from '../lib/fdbserver.mjs';
import PouchDB, { localDatabase, replicateBoth } from '../lib/pouch.mjs';
import { Server, expectOk, request, run, temporaryFolder } from '../lib/server.mjs';
import { allChanges } from '../lib/database.mjs';

const KILLS = 3;
const WRITERS = 8;
const FEEDS = 20;

/** Rows of a continuous feed, up to the document `last`. */
async function follow(url) {
  const rows = [];
  const response = await fetch(`${url}/_changes?feed=continuous&since=0&heartbeat=1000`);
  let rest = '';
  const decoder = new TextDecoder();
  for await (const chunk of response.body) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n');
    rest = lines.pop();
    for (const line of lines) if (line) rows.push(JSON.parse(line));
    if (rows.at(-1)?.id === 'last') return rows;
  }
  throw new Error(`the feed ended by itself after ${rows.length} rows: ${rest}`);
}

test(`${KILLS} kills of the FoundationDB server below a running couch-layer`, { timeout: 600_000 }, async (t) => {
  const fdb = await FdbServer.start(t);
  if (!fdb) return;
  const engine = `fdb:${fdb.file}?prefix=couch%2F`;
  const server = (await Server.start(engine)).endWith(t);
  const url = `${server.url}/db`;
  await expectOk(url, { method: 'PUT' });

  const feeds = Array.from({ length: FEEDS }, () => follow(url));
  const acknowledged = new Map();
  const inDoubt = new Set();
  let stopped = false;
  const writers = Array.from({ length: WRITERS }, async (_, writer) => {
    for (let n = 0; !stopped; n++) {
      const id = `w${writer}-${n}`;
      const answer = await request(`${url}/${id}`, { method: 'PUT', body: { n, writer } });
      assert.ok(answer.status === 201 || answer.status >= 500, `${answer.status} ${JSON.stringify(answer.body)}`);
      if (answer.status === 201) acknowledged.set(id, answer.body.rev);
      else inDoubt.add(id);
    }
  });
  for (let kill = 0; kill < KILLS; kill++) {
    for (const before = acknowledged.size; acknowledged.size < before + 50;) await sleep(20);
    await fdb.kill();
    await sleep(500);
    fdb.restart();
    await fdb.available();
  }
  for (const before = acknowledged.size; acknowledged.size < before + 50;) await sleep(20);
  stopped = true;
  await Promise.all(writers);

  const rows = await allChanges(url);
  const found = new Map(rows.map((row) => [row.id, row.changes[0].rev]));
  assert.equal(found.size, rows.length, 'a document stands in _changes twice');
  for (const [id, rev] of acknowledged) assert.equal(found.get(id), rev, id);
  for (const id of found.keys()) assert.ok(acknowledged.has(id) || inDoubt.has(id), `${id} was never written`);

  // The feeds, open all the time, have all of it.
  await expectOk(`${url}/last`, { method: 'PUT', body: {} });
  for (const read of await Promise.all(feeds)) {
    assert.equal(new Set(read.map((row) => row.id)).size, read.length, 'a document came twice in one feed');
    assert.deepEqual(read.map((row) => row.id).sort(), [...found.keys(), 'last'].sort());
  }
  t.diagnostic(`${acknowledged.size} acknowledged, ${inDoubt.size} in doubt, ${FEEDS} feeds`);
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  const checked = await run(['check', 'db', '--engine', engine]);
  assert.equal(checked.code, 0, checked.stdout + checked.stderr);
});

test('a server of a cluster goes on with the replication of one that was killed', { timeout: 300_000 }, async (t) => {
  const fdb = await FdbServer.start(t);
  if (!fdb) return;
  const engine = `fdb:${fdb.file}?prefix=couch%2F`;
  const servers = [];
  for (let n = 0; n < 2; n++) servers.push((await Server.start(engine)).endWith(t));
  const { url } = servers[0];
  for (const name of ['_replicator', 'here', 'there']) await expectOk(`${url}/${name}`, { method: 'PUT' });
  const docs = Array.from({ length: 500 }, (_, n) => ({ _id: `d${n}`, n }));
  await expectOk(`${url}/here/_bulk_docs`, { method: 'POST', body: { docs } });
  const replication = { source: 'here', target: 'there', continuous: true, checkpoint_interval: 100 };
  await expectOk(`${url}/_replicator/x`, { method: 'PUT', body: replication });
  const until = async (server, isGood) => {
    for (const end = Date.now() + 120_000; Date.now() < end; await sleep(50)) {
      const found = await isGood(server.url);
      if (found) return found;
    }
    throw new Error(`${isGood}: ${JSON.stringify(await expectOk(`${server.url}/_scheduler/docs/_replicator/x`))}`);
  };
  const node = async (at) => (await request(`${at}/_scheduler/docs/_replicator/x`)).body.node;
  const sessions = async (at) => {
    const { rows } = await expectOk(`${at}/there/_local_docs?include_docs=true`);
    return rows[0]?.doc.history ?? [];
  };
  await until(servers[0], async (at) => (await sessions(at))[0]?.docs_written === 500);
  const runner = await node(url);
  const [killed, other] = runner.endsWith(`:${servers[0].port}`) ? servers : servers.toReversed();
  assert.ok(runner.endsWith(`:${killed.port}`), runner);
  await killed.kill();
  await expectOk(`${other.url}/here/meanwhile`, { method: 'PUT', body: {} });
  await until(other, async (at) => (await request(`${at}/there/meanwhile`)).status === 200);
  assert.ok((await node(other.url)).endsWith(`:${other.port}`));
  // It continued from the checkpoint: only the new document was read.
  const [last, before] = await until(other, async (at) => {
    const found = await sessions(at);
    // The figures of a record add up over its sessions.
    return found.length === 2 && found[0].docs_written === 501 && found;
  });
  assert.equal(last.start_last_seq, before.recorded_seq);
  assert.equal((await expectOk(`${other.url}/there`)).doc_count, 501);
  assert.deepEqual(await other.stop(), { code: 0, signal: null });
});

test('a cluster that FoundationDB restored is adopted', { timeout: 600_000 }, async (t) => {
  const lost = await FdbServer.start(t, { agent: true });
  if (!lost) return;
  const folder = await temporaryFolder(t);
  const put = (url, body) => expectOk(url, { method: 'PUT', body });

  let server = (await Server.start(`fdb:${lost.file}`)).endWith(t);
  const { port, url } = server;
  const remote = () => new PouchDB(`${url}/db`);
  await put(`${url}/db`);
  const [behind, ahead] = ['behind', 'ahead'].map((name) => localDatabase(t, path.join(folder, name)));
  await put(`${url}/db/a`, { n: 1 });
  await put(`${url}/db/_design/d`, { views: { v: { map: 'function (doc) { emit(doc._id, doc.n); }' } } });
  await replicateBoth(remote(), behind);
  await put(`${url}/db/b`, { n: 1 });
  const view = async () => (await expectOk(`${url}/db/_design/d/_view/v`)).rows.map((row) => [row.key, row.value ?? null]);
  assert.deepEqual(await view(), [['a', 1], ['b', 1]]);
  const { last_seq: behindSeq } = await expectOk(`${url}/db/_changes`);
  const backup = await lost.backUp(path.join(folder, 'backup'));
  await put(`${url}/db/lost`, {});
  await ahead.put({ _id: 'own' });
  await replicateBoth(remote(), ahead);
  const { last_seq: aheadSeq } = await expectOk(`${url}/db/_changes`);
  await server.kill();
  await lost.kill();

  const restored = await FdbServer.start(t, { agent: true });
  await restored.restore(backup);
  const engine = `fdb:${restored.file}`;
  // Whether the store would be refused without this depends on the versions of the two clusters.
  const adopted = await run(['adopt', engine]);
  assert.equal(adopted.code, 0, adopted.stderr);

  // At the same address, so that the clients have checkpoints of it.
  server = (await Server.start(engine, { port })).endWith(t);
  await put(`${url}/db/c`, { n: 3 });
  const { _rev } = await expectOk(`${url}/db/a`);
  await put(`${url}/db/a`, { n: 2, _rev });
  const since = async (seq) => (await expectOk(`${url}/db/_changes?since=${seq}`)).results.map((row) => row.id);
  assert.deepEqual(await since(behindSeq), ['c', 'a'], 'what was changed after the backup');
  assert.deepEqual(await since(aheadSeq), ['c', 'a'], 'the same: what was lost is nowhere');
  assert.deepEqual(await view(), [['a', 2], ['b', 1], ['c', 3]]);
  await replicateBoth(remote(), behind);
  assert.deepEqual((await behind.allDocs()).rows.map((row) => row.id), ['_design/d', 'a', 'b', 'c']);
  await replicateBoth(remote(), ahead);
  await replicateBoth(remote(), behind);
  for (const db of [behind, ahead, remote()]) {
    assert.deepEqual((await db.allDocs()).rows.map((row) => row.id), ['_design/d', 'a', 'b', 'c', 'lost', 'own']);
    assert.equal((await db.get('a')).n, 2);
  }
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
});

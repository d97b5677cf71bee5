// SIGKILL of the FoundationDB server below a running couch-layer: acknowledged writes are there, no document is in
// `_changes` twice, and open feeds continue without a new request.

import assert from 'node:assert/strict';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { FdbServer } from '../lib/fdbserver.mjs';
import { Server, expectOk, request, run } from '../lib/server.mjs';
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

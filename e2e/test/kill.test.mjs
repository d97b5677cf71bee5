// Repeated SIGKILL under concurrent writes: acknowledged writes are there after the restart, each document is in
// `_changes` once, and the database is consistent.
//
// A kill does not empty the page cache. durability.test.mjs proves that each acknowledgement follows a sync.

import assert from 'node:assert/strict';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { engines, store } from '../lib/engines.mjs';
import { Server, expectOk, request, run } from '../lib/server.mjs';
import { allChanges, allDocs } from '../lib/database.mjs';

const KILLS = 10;
const WRITERS = 16;

/** A small generator with a given seed, so that a failure can be repeated. */
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/**
 * Writes until `stopped` is true: new documents, updates and deletions, single and in bulk. Acknowledged writes are
 * in `log` (id -> { rev, deleted, n }), unanswered ones in `open`.
 */
async function write(url, writer, round, log, open, stopped, next) {
  const own = [...log.keys()].filter((id) => id.startsWith(`w${writer}-`));
  for (let n = 0; !stopped(); n++) {
    const id = `w${writer}-r${round}-${n}`;
    const edits = [];
    const known = next() < 0.5 && own.length > 0 ? own[Math.floor(next() * own.length)] : undefined;
    const base = known && log.get(known);
    if (base && !base.deleted && !open.has(known)) {
      const deleted = next() < 0.2;
      edits.push({ _id: known, _rev: base.rev, n, writer, ...(deleted ? { _deleted: true } : {}) });
    } else if (next() < 0.2) {
      for (let part = 0; part < 5; part++) edits.push({ _id: `${id}-${part}`, n, writer });
    } else {
      edits.push({ _id: id, n, writer });
    }
    for (const edit of edits) open.set(edit._id, edit);
    let answers;
    try {
      if (edits.length === 1) {
        const answer = await request(`${url}/${edits[0]._id}`, { method: 'PUT', body: edits[0] });
        // 200 for a deletion, as in CouchDB.
        const isDone = answer.status === (edits[0]._deleted ? 200 : 201);
        assert.ok(isDone || answer.status >= 500, `${answer.status} ${JSON.stringify(answer.body)}`);
        answers = isDone ? [answer.body] : [];
      } else {
        const answer = await request(`${url}/_bulk_docs`, { method: 'POST', body: { docs: edits } });
        answers = answer.status === 201 ? answer.body : [];
      }
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error;
      return; // the connection broke: nobody knows
    }
    for (const answer of answers) {
      if (!answer.ok) continue;
      const edit = edits.find((one) => one._id === answer.id);
      log.set(answer.id, { rev: answer.rev, deleted: Boolean(edit._deleted), n: edit.n });
      open.delete(answer.id);
      own.push(answer.id);
    }
  }
}

for (const name of engines('lsm', 'sled')) test(`${KILLS} kills under ${WRITERS} writers lose nothing acknowledged on ${name}`, { timeout: 600_000 }, async (t) => {
  const seed = Number(process.env.SEED ?? Date.now() % 2 ** 32);
  t.diagnostic(`SEED=${seed}`);
  const next = random(seed);
  const engine = await store(t, name);
  const log = new Map();
  let total = 0;

  for (let round = 0; round < KILLS; round++) {
    const server = (await Server.start(engine)).endWith(t);
    const url = `${server.url}/db`;
    if (round === 0) await expectOk(url, { method: 'PUT' });

    const open = new Map();
    let stop = false;
    const before = log.size;
    const writers = Array.from({ length: WRITERS }, (_, writer) =>
      write(url, writer, round, log, open, () => stop, next));
    await sleep(300 + next() * 1_200);
    await server.kill();
    stop = true;
    await Promise.all(writers);
    total += log.size - before;

    const again = (await Server.start(engine)).endWith(t);
    const rows = await allChanges(`${again.url}/db`);
    const byId = new Map(rows.map((row) => [row.id, row]));
    assert.equal(byId.size, rows.length, 'a document stands in _changes more than once');
    for (const [id, { rev, deleted }] of log) {
      const row = byId.get(id);
      assert.ok(row, `${id} was acknowledged and is gone`);
      if (open.has(id)) continue; // a later edit was on its way
      assert.deepEqual([row.changes, Boolean(row.deleted)], [[{ rev }], deleted], id);
    }
    for (const [id, row] of byId) {
      assert.ok(log.has(id) || open.has(id), `${id} was never written`);
      // A write in progress happened once or not at all; the result is known from now on.
      if (open.has(id)) log.set(id, { rev: row.changes[0].rev, deleted: Boolean(row.deleted), n: open.get(id).n });
    }
    const docs = new Map((await allDocs(`${again.url}/db`)).map((row) => [row.id, row.doc]));
    const live = [...log].filter(([, entry]) => !entry.deleted);
    assert.equal(docs.size, live.length, 'documents in _all_docs');
    for (const [id, { rev }] of live) assert.equal(docs.get(id)?._rev, rev, id);
    const info = await expectOk(`${again.url}/db`);
    assert.deepEqual([info.doc_count, info.doc_del_count], [live.length, log.size - live.length]);
    assert.deepEqual(await again.stop(), { code: 0, signal: null });

    const checked = await run(['check', 'db', '--json', '--engine', engine]);
    assert.equal(checked.code, 0, checked.stdout + checked.stderr);
    assert.equal(JSON.parse(checked.stdout).documents, log.size);
  }
  assert.ok(total > KILLS * 20, `only ${total} documents were acknowledged`);
  t.diagnostic(`${log.size} documents, ${total} of them acknowledged between kills`);
});

test('a polite end under load loses nothing and answers what it took', { timeout: 60_000 }, async (t) => {
  const engine = await store(t);
  const log = new Map();
  const open = new Map();
  const server = (await Server.start(engine)).endWith(t);
  await expectOk(`${server.url}/db`, { method: 'PUT' });
  let stop = false;
  const writers = Array.from({ length: WRITERS }, (_, writer) =>
    write(`${server.url}/db`, writer, 0, log, open, () => stop, random(writer)));
  await sleep(700);
  const ending = server.stop();
  assert.deepEqual(await ending, { code: 0, signal: null });
  stop = true;
  await Promise.all(writers);
  const again = (await Server.start(engine)).endWith(t);
  const rows = new Map((await allChanges(`${again.url}/db`)).map((row) => [row.id, row.changes[0].rev]));
  for (const [id, { rev }] of log) if (!open.has(id)) assert.equal(rows.get(id), rev, id);
  assert.ok(log.size > 20);
});

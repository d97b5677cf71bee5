// Working days: two people write offline beside two servers of ours, histories grow past `_revs_limit`, both edit the
// same documents, and files come and go. Each evening everything is replicated both ways, until all four sides agree.
//
// Nobody makes more than `_revs_limit` edits of a document in a day. Otherwise its histories would have no common
// revision, and the document would have a conflict, as in CouchDB.

import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import test from 'node:test';

import { assertSame, withRevisions } from '../lib/database.mjs';
import { store } from '../lib/engines.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';
import { Server, expectOk, request, run } from '../lib/server.mjs';

/** Ancestors that the servers keep of a leaf. PouchDB keeps 1,000. */
const REVS_LIMIT = 20;
/** Edits of a document in a day. */
const EDITS = REVS_LIMIT - 5;
const DAYS = 3;

const PLAN = randomBytes(1_500_000);
const LETTER = Buffer.from('Sehr geehrte Damen und Herren, '.repeat(3_000));

/** A document with its conflicts, and a hash of each file. Digests differ: a server's are those of compressed bytes. */
async function view(db, id) {
  const { _attachments: files = {}, ...doc } = await db.get(id, { conflicts: true, attachments: true });
  const hash = (data) => createHash('sha256').update(data, 'base64').digest('hex');
  const known = ([name, { content_type, revpos, data }]) => [name, { content_type, revpos, hash: hash(data) }];
  return { ...doc, files: Object.fromEntries(Object.entries(files).map(known)) };
}

async function edit(db, id, times, change = {}) {
  for (let time = 0; time < times; time++) {
    const doc = await db.get(id);
    await db.put({ ...doc, ...change, edits: (doc.edits ?? 0) + 1 });
  }
}

test('working days on two servers', { timeout: 240_000 }, async (t) => {
  const [office, home] = await Promise.all(
    ['lsm', 'lsm'].map(async (engine) => {
      const url = await store(t, engine);
      const server = (await Server.start(url)).endWith(t);
      const db = `${server.url}/work`;
      await expectOk(db, { method: 'PUT' });
      await expectOk(`${db}/_revs_limit`, { method: 'PUT', body: String(REVS_LIMIT) });
      return { engine: url, server, db };
    }),
  );
  const anna = new PouchDB('anna', { adapter: 'memory' });
  const berta = new PouchDB('berta', { adapter: 'memory' });
  t.after(() => Promise.all([anna.destroy(), berta.destroy()]));

  /** Everyone sends what they have and takes what is new: Anna with the office, Berta with home, the servers with each other. */
  const evening = async () => {
    for (let round = 0; round < 2; round++) {
      await replicate(anna, office.db);
      await replicate(berta, home.db);
      for (const [source, target] of [[office, home], [home, office]]) {
        // The servers replicate without PouchDB in between.
        const answer = await expectOk(`${target.server.url}/_replicate`, {
          method: 'POST',
          body: { source: source.db, target: target.db },
        });
        assert.equal(answer.ok, true, JSON.stringify(answer));
      }
      await replicate(office.db, anna);
      await replicate(home.db, berta);
    }
  };

  // Morning: Anna starts, and all get it.
  await anna.bulkDocs(Array.from({ length: 30 }, (_, n) => ({ _id: `task-${n}`, n, done: false })));
  await anna.putAttachment('task-0', 'plan.bin', (await anna.get('task-0'))._rev, PLAN, 'application/octet-stream');
  await anna.putAttachment('task-1', 'letter.txt', (await anna.get('task-1'))._rev, LETTER, 'text/plain');
  await evening();
  assert.ok(PLAN.equals(await berta.getAttachment('task-0', 'plan.bin')));

  // Days on which histories grow: Anna's, Berta's, and that of a program on a server.
  for (let day = 0; day < DAYS; day++) {
    for (const id of ['task-2', 'task-3']) await edit(anna, id, EDITS, { by: 'anna' });
    await edit(new PouchDB(office.db), 'task-4', EDITS, { by: 'the office' });
    await edit(berta, 'task-9', EDITS, { by: 'berta' });
    await evening();
  }

  // A day of conflicts: a file replaced, one removed, one added.
  const another = PLAN.subarray(0, 700_000);
  await berta.putAttachment('task-0', 'plan.bin', (await berta.get('task-0'))._rev, another, 'application/octet-stream');
  await berta.removeAttachment('task-1', 'letter.txt', (await berta.get('task-1'))._rev);
  await anna.putAttachment('task-5', 'letter.txt', (await anna.get('task-5'))._rev, LETTER, 'text/plain');
  // Both at once: edits over a long history, a file each on one document, an edit against a deletion, the same edit.
  await edit(anna, 'task-2', 5, { by: 'anna' });
  await edit(berta, 'task-2', 10, { by: 'berta' });
  await anna.putAttachment('task-6', 'anna', (await anna.get('task-6'))._rev, Buffer.from('A'), 'text/plain');
  await berta.putAttachment('task-6', 'berta', (await berta.get('task-6'))._rev, Buffer.from('B'), 'text/plain');
  await anna.remove(await anna.get('task-7'));
  await edit(berta, 'task-7', 2);
  await edit(anna, 'task-8', 1, { done: true });
  await edit(berta, 'task-8', 1, { done: true });
  await evening();

  await assertSame(office.db, home.db);
  const ids = Array.from({ length: 30 }, (_, n) => `task-${n}`);
  assert.deepEqual(await withRevisions(office.db, ids), await withRevisions(home.db, ids), 'histories');
  const sides = [anna, berta, new PouchDB(office.db), new PouchDB(home.db)];
  for (const id of ids) {
    const [first, ...others] = await Promise.all(sides.map((db) => view(db, id)));
    for (const other of others) assert.deepEqual(other, first, id);
  }
  const conflicts = async (id) => (await anna.get(id, { conflicts: true }))._conflicts?.length ?? 0;
  assert.deepEqual(await Promise.all(['task-2', 'task-3', 'task-6', 'task-7', 'task-8'].map(conflicts)), [1, 0, 1, 0, 0]);
  assert.equal((await berta.get('task-2')).by, 'berta', 'the longer history wins');
  const [[{ _revisions: history }]] = await withRevisions(office.db, ['task-4']);
  assert.deepEqual([history.start, history.ids.length], [DAYS * EDITS + 1, REVS_LIMIT]);
  assert.ok(another.equals(await anna.getAttachment('task-0', 'plan.bin')));
  assert.ok(LETTER.equals(await berta.getAttachment('task-5', 'letter.txt')));
  await assert.rejects(anna.getAttachment('task-1', 'letter.txt'), (error) => error.status === 404);
  assert.equal((await berta.get('task-7')).edits, 2, 'an edit beats a deletion');

  // Berta resolves the conflicts, and continues to edit documents whose histories every side has stemmed.
  for (const id of ['task-2', 'task-6']) {
    const [lost] = (await berta.get(id, { conflicts: true }))._conflicts;
    await berta.remove(id, lost);
    await edit(berta, id, 1, { settled: true });
  }
  await edit(anna, 'task-3', EDITS);
  await edit(new PouchDB(home.db), 'task-4', EDITS);
  await evening();
  await assertSame(office.db, home.db);
  for (const db of [anna, berta]) {
    assert.equal((await db.get('task-2', { conflicts: true }))._conflicts, undefined);
    assert.equal((await db.get('task-3')).edits, (DAYS + 1) * EDITS);
    assert.equal((await db.get('task-3', { conflicts: true }))._conflicts, undefined);
    assert.equal((await db.get('task-4')).edits, (DAYS + 1) * EDITS);
  }
  // Nothing is left to send, and both folders are sound.
  for (const [db, url] of [[anna, office.db], [berta, home.db]]) {
    assert.equal((await replicate(db, url)).docs_written, 0);
    assert.equal((await replicate(url, db)).docs_written, 0);
  }
  for (const side of [office, home]) {
    assert.equal((await request(`${side.db}`)).body.doc_count, 30);
    assert.deepEqual(await side.server.stop(), { code: 0, signal: null });
    const checked = await run(['check', 'work', '--engine', side.engine]);
    assert.equal(checked.code, 0, checked.stdout + checked.stderr);
  }
});

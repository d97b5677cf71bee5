// Attachments: PouchDB and nano write, read, replace and remove them, and replicate them both ways and to a second
// server. All bytes are equal on all sides.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { createRequire } from 'node:module';
import test from 'node:test';

import { assertSame } from '../lib/database.mjs';
import { engines, store } from '../lib/engines.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';
import { Server, expectOk, run } from '../lib/server.mjs';

const nano = createRequire(import.meta.url)('nano');

const PHOTO = randomBytes(3_000_000);
const TEXT = Buffer.from('Am Brunnen vor dem Tore, da steht ein Lindenbaum. '.repeat(2_000));
const FILES = new Map([
  ['photo.jpg', ['image/jpeg', PHOTO]],
  ['song.txt', ['text/plain', TEXT]],
  ['empty', ['application/octet-stream', Buffer.alloc(0)]],
  ['folder/ä b+c.json', ['application/json', Buffer.from('{"n":1}')]],
]);

/** Fails unless the document has exactly these attachments, with their types. */
async function assertFiles(db, id, files) {
  const { _attachments: stubs = {} } = await db.get(id);
  assert.deepEqual(Object.keys(stubs).sort(), [...files.keys()].sort());
  for (const [name, [type, bytes]] of files) {
    assert.equal(stubs[name].content_type, type, name);
    assert.equal(stubs[name].length, bytes.length, name);
    assert.ok(bytes.equals(await db.getAttachment(id, name)), `${id}/${name}`);
  }
}

for (const engine of engines('lsm', 'mem')) {
  test(`a day with attachments on ${engine}`, { timeout: 180_000 }, async (t) => {
    const url = await store(t, engine);
    let server = (await Server.start(url)).endWith(t);
    await expectOk(`${server.url}/day`, { method: 'PUT' });
    const remote = new PouchDB(`${server.url}/day`);
    const anna = new PouchDB('anna', { adapter: 'memory' });
    const berta = new PouchDB('berta', { adapter: 'memory' });
    t.after(() => Promise.all([anna.destroy(), berta.destroy()]));

    // Anna writes here, one at a time and inline; the server gets them.
    let rev;
    for (const [name, [type, bytes]] of FILES) ({ rev } = await anna.putAttachment('album', name, rev, bytes, type));
    const inline = Object.fromEntries([...FILES].map(([name, [content_type, data]]) => [name, { content_type, data }]));
    await anna.put({ _id: 'inline', _attachments: inline });
    await replicate(anna, remote);
    await assertFiles(remote, 'album', FILES);
    await assertFiles(remote, 'inline', FILES);

    // Over HTTP: one more, one replaced, one removed, a body edited with stubs.
    rev = (await remote.get('album'))._rev;
    const note = Buffer.from('a note');
    ({ rev } = await remote.putAttachment('album', 'note.txt', rev, note, 'text/plain'));
    ({ rev } = await remote.putAttachment('album', 'photo.jpg', rev, PHOTO.subarray(0, 1_000), 'image/jpeg'));
    ({ rev } = await remote.removeAttachment('album', 'empty', rev));
    await assert.rejects(remote.removeAttachment('album', 'none', rev), (error) => error.status === 404);
    await assert.rejects(
      remote.putAttachment('album', 'note.txt', '1-abc', note, 'text/plain'),
      (error) => error.status === 409,
    );
    const album = await remote.get('album');
    await remote.put({ ...album, title: 'Winterreise' });
    const files = new Map(FILES)
      .set('note.txt', ['text/plain', note])
      .set('photo.jpg', ['image/jpeg', PHOTO.subarray(0, 1_000)]);
    files.delete('empty');
    await assertFiles(remote, 'album', files);

    // Berta fetches all of it, and edits offline while Anna does.
    await replicate(remote, berta);
    await assertFiles(berta, 'album', files);
    await assertFiles(berta, 'inline', FILES);
    assert.equal((await berta.get('album')).title, 'Winterreise');
    await berta.putAttachment('inline', 'berta.txt', (await berta.get('inline'))._rev, Buffer.from('B'), 'text/plain');
    await anna.putAttachment('inline', 'anna.txt', (await anna.get('inline'))._rev, Buffer.from('A'), 'text/plain');
    for (const db of [anna, berta, anna, berta]) await PouchDB.sync(db, remote);
    const [left, right, middle] = await Promise.all(
      [anna, berta, remote].map((db) => db.get('inline', { conflicts: true })),
    );
    assert.equal(middle._conflicts.length, 1);
    for (const side of [left, right]) {
      assert.deepEqual([side._rev, side._conflicts], [middle._rev, middle._conflicts]);
      assert.deepEqual(Object.keys(side._attachments).sort(), Object.keys(middle._attachments).sort());
    }
    const lost = await remote.get('inline', { rev: middle._conflicts[0], attachments: true });
    assert.equal(Object.keys(lost._attachments).length, FILES.size + 1);
    assert.ok(PHOTO.equals(Buffer.from(lost._attachments['photo.jpg'].data, 'base64')));

    // To a second database, and back after a restart where the engine keeps it.
    await expectOk(`${server.url}/copy`, { method: 'PUT' });
    await replicate(remote, `${server.url}/copy`);
    await assertSame(`${server.url}/day`, `${server.url}/copy`);
    await assertFiles(new PouchDB(`${server.url}/copy`), 'album', files);
    if (engine !== 'mem') {
      assert.deepEqual(await server.stop(), { code: 0, signal: null });
      for (const name of ['day', 'copy']) {
        const checked = await run(['check', name, '--engine', url]);
        assert.equal(checked.code, 0, checked.stdout + checked.stderr);
      }
      server = (await Server.start(url)).endWith(t);
      await assertFiles(new PouchDB(`${server.url}/day`), 'album', files);
    }
  });
}

test('nano writes and reads attachments, in parts too', { timeout: 60_000 }, async (t) => {
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  const couch = nano(server.url);
  await couch.db.create('alice');
  const alice = couch.use('alice');
  const files = [...FILES].map(([name, [content_type, data]]) => ({ name, content_type, data }));
  const written = await alice.multipart.insert({ title: 'parts' }, files, 'rabbit');
  for (const [name, [, bytes]] of FILES) {
    // nano puts the name into the URL unescaped, and decodes text and JSON by their types.
    const got = await alice.attachment.get('rabbit', encodeURIComponent(name));
    assert.ok(bytes.equals(Buffer.from(got instanceof Buffer || typeof got === 'string' ? got : JSON.stringify(got))), name);
  }
  const { rev } = await alice.attachment.insert('rabbit', 'more', Buffer.from('more'), 'text/plain', { rev: written.rev });
  assert.match(String(await alice.multipart.get('rabbit')), /filename="more"/);
  await alice.attachment.destroy('rabbit', 'more', { rev });
  await assert.rejects(alice.attachment.get('rabbit', 'more'), (error) => error.statusCode === 404);
});

// Two clients edit the same documents offline, then sync: all three sides must show the same winners
// and the same conflicts.

import assert from 'node:assert/strict';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import { Server, expectOk, run } from '../lib/server.mjs';
import { assertSame, leaves } from '../lib/database.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';

const DOCUMENTS = 50;

test('two clients in conflict converge with the server', { timeout: 120_000 }, async (t) => {
  const engine = await store(t);
  const server = (await Server.start(engine)).endWith(t);
  const url = `${server.url}/shared`;
  await expectOk(url, { method: 'PUT' });

  const anna = new PouchDB('anna', { adapter: 'memory' });
  const berta = new PouchDB('berta', { adapter: 'memory' });
  t.after(() => Promise.all([anna.destroy(), berta.destroy()]));

  const name = (index) => `doc-${String(index).padStart(3, '0')}`;
  await anna.bulkDocs(Array.from({ length: DOCUMENTS }, (_, index) => ({ _id: name(index), text: 'both' })));
  await replicate(anna, url);
  await replicate(url, berta);

  // Offline. Histories of different lengths, deletions against edits, the same edit on both sides.
  async function edit(client, id, times, text) {
    for (let time = 0; time < times; time++) await client.put({ ...(await client.get(id)), text: `${text} ${time}` });
  }
  for (let index = 0; index < DOCUMENTS; index++) {
    const id = name(index);
    switch (index % 5) {
      case 0: await edit(anna, id, 1, 'anna'); await edit(berta, id, 1, 'berta'); break;
      case 1: await edit(anna, id, 3, 'anna'); await edit(berta, id, 1, 'berta'); break;
      case 2: await anna.remove(await anna.get(id)); await edit(berta, id, 2, 'berta'); break;
      case 3: await edit(anna, id, 1, 'same'); await edit(berta, id, 1, 'same'); break;
      default: await anna.remove(await anna.get(id)); await edit(berta, id, 1, 'berta'); await berta.remove(await berta.get(id));
    }
  }

  for (let round = 0; round < 2; round++) {
    for (const client of [anna, berta]) {
      await replicate(client, url);
      await replicate(url, client);
    }
  }

  const view = async (get) => {
    const found = [];
    for (let index = 0; index < DOCUMENTS; index++) {
      const doc = await get(name(index)).catch((error) => ({ gone: error.reason ?? error.body?.reason }));
      doc._conflicts?.sort();
      found.push(doc);
    }
    return found;
  };
  const over = {
    server: await view(async (id) => {
      const response = await fetch(`${url}/${id}?conflicts=true`);
      const body = await response.json();
      if (!response.ok) throw body;
      return body;
    }),
    anna: await view((id) => anna.get(id, { conflicts: true })),
    berta: await view((id) => berta.get(id, { conflicts: true })),
  };
  assert.deepEqual(over.anna, over.server);
  assert.deepEqual(over.berta, over.server);
  const conflicted = over.server.filter((doc) => doc._conflicts).length;
  assert.equal(conflicted, 20, 'each document edited differently on both sides has a conflict');
  assert.equal(over.server.filter((doc) => doc.gone === 'deleted').length, 10);

  // Berta resolves: she deletes the losers. Then nobody has a conflict.
  for (const doc of over.server) {
    for (const rev of doc._conflicts ?? []) await berta.remove(doc._id, rev);
  }
  await replicate(berta, url);
  await replicate(url, anna);
  for (let index = 0; index < DOCUMENTS; index++) {
    const id = name(index);
    const answer = await fetch(`${url}/${id}?conflicts=true`).then((response) => response.json());
    assert.equal(answer._conflicts, undefined, id);
    if (!answer.error) assert.deepEqual(await anna.get(id, { conflicts: true }), answer);
  }

  // And a third database, filled from the server, has the very same leaves.
  await expectOk(`${server.url}/copy`, { method: 'PUT' });
  await replicate(url, `${server.url}/copy`);
  await assertSame(url, `${server.url}/copy`);
  assert.equal((await leaves(url)).size, DOCUMENTS);

  const checked = await run(['check', 'shared', '--url', server.url]);
  assert.equal(checked.code, 0, checked.stdout + checked.stderr);
});

test('a live sync carries edits both ways as they happen', { timeout: 60_000 }, async (t) => {
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  const url = `${server.url}/live`;
  await expectOk(url, { method: 'PUT' });
  const client = new PouchDB('live', { adapter: 'memory' });
  const remote = new PouchDB(url);
  const sync = client.sync(url, { live: true, retry: true });
  const outward = remote.changes({ live: true, since: 'now' });
  const inward = client.changes({ live: true, since: 'now' });
  const arrival = (feed, id) => new Promise((resolve, reject) => {
    feed.on('change', (change) => { if (change.id === id) resolve(change); }).on('error', reject);
  });
  try {
    const arrived = arrival(outward, 'from-client');
    await client.put({ _id: 'from-client' });
    await arrived;
    const back = arrival(inward, 'from-server');
    await expectOk(`${url}/from-server`, { method: 'PUT', body: {} });
    await back;
  } finally {
    const ends = [sync, outward, inward].map((feed) => new Promise((resolve) => feed.on('complete', resolve)));
    for (const feed of [sync, outward, inward]) feed.cancel();
    await Promise.all(ends);
    await client.destroy();
  }
});

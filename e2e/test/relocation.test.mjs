// A database moves to another store during a live replication with PouchDB, under kills of the server, and offline:
// no change is lost or repeated, and checkpoints stay valid.

import assert from 'node:assert/strict';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Server, expectOk, request, run, temporaryFolder } from '../lib/server.mjs';
import { allChanges } from '../lib/database.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';

const USER = { COUCHDB_USER: 'admin', COUCHDB_PASSWORD: 'secret' };

/** The server's URL with the administrator's credentials, for PouchDB and the command. */
const withUser = (server) => server.url.replace('http://', 'http://admin:secret@');

const headers = { authorization: `Basic ${Buffer.from('admin:secret').toString('base64')}` };

async function start(t, engine) {
  return (await Server.start(engine, { env: USER })).endWith(t);
}

async function fill(server, count) {
  await expectOk(`${server.url}/db`, { method: 'PUT', headers });
  const docs = Array.from({ length: count }, (_, n) => ({ _id: `doc-${String(n).padStart(5, '0')}`, n, list: [n, { n }] }));
  for (let at = 0; at < count; at += 1_000) {
    await expectOk(`${server.url}/db/_bulk_docs`, { method: 'POST', headers, body: { docs: docs.slice(at, at + 1_000) } });
  }
}

/** Waits until `holds` returns true. */
async function until(what, holds) {
  for (const deadline = Date.now() + 120_000; Date.now() < deadline; await sleep(50)) if (await holds()) return;
  assert.fail(`${what} within two minutes`);
}

test('a PouchDB in the middle of a feed goes on in the other store', { timeout: 400_000 }, async (t) => {
  const folder = await temporaryFolder(t);
  const [own, target] = [`sled:${path.join(folder, 'own')}`, `lsm:${path.join(folder, 'target')}`];
  const server = await start(t, own);
  await fill(server, 3_000);
  const local = new PouchDB(path.join(folder, 'pouch'));
  const remote = new PouchDB(`${withUser(server)}/db`);
  // Without `retry`, an error response ends it, and the test.
  const failures = [];
  const sync = PouchDB.sync(local, remote, { live: true, batch_size: 200 });
  sync.on('error', (error) => failures.push(error)).on('denied', (error) => failures.push(error));
  await until('the first documents', async () => (await local.info()).doc_count > 500);

  // Both sides write while it moves.
  let isOver = false;
  const written = { here: 0, there: 0 };
  const writers = [
    (async () => {
      for (; !isOver || written.here < 20; written.here++) {
        await local.put({ _id: `here-${written.here}`, n: written.here });
        await sleep(5);
      }
    })(),
    (async () => {
      for (let rev; !isOver || written.there < 20; written.there++) {
        const answer = await request(`${server.url}/db/there`, {
          method: 'PUT', headers, body: { n: written.there, ...(rev ? { _rev: rev } : {}) },
        });
        assert.equal(answer.status, 201, `no write fails: ${JSON.stringify(answer.body)}`);
        rev = answer.body.rev;
        await expectOk(`${server.url}/db/there-${written.there}`, { method: 'PUT', headers, body: {} });
        await sleep(5);
      }
    })(),
  ];
  const moved = await run(['relocate', 'db', '--url', withUser(server), '--to', target, '--verify', '--json']);
  assert.equal(moved.code, 0, moved.stdout + moved.stderr);
  const outcome = JSON.parse(moved.stdout);
  assert.deepEqual([outcome.moved, outcome.incarnation, outcome.verified.difference_count], [true, 1, 0], moved.stdout);
  await sleep(300);
  isOver = true;
  await Promise.all(writers);

  const expected = 3_001 + written.here + written.there;
  await until('everything on both sides', async () => {
    const [here, there] = [await local.info(), await remote.info()];
    return here.doc_count === expected && there.doc_count === expected;
  });
  const last = await local.get('there');
  assert.equal(last.n, written.there - 1, 'the last edit there is here');
  sync.cancel();
  assert.deepEqual(failures, []);
  t.diagnostic(`${written.here} edits here and ${written.there} there while ${outcome.documents} documents moved`);

  const rows = await allChanges(`${server.url}/db`, { headers });
  assert.equal(new Set(rows.map((row) => row.id)).size, rows.length, 'each document once');
  assert.equal(rows.length, expected);
  const checked = await run(['check', 'db', '--url', withUser(server)]);
  assert.equal(checked.code, 0, checked.stdout + checked.stderr);

  // After a restart the server finds it; PouchDB's checkpoints are valid, so nothing old is read again.
  await server.stop();
  for (const store of [own, target]) {
    const agreed = await run(['check', 'db', '--engine', store]);
    assert.equal(agreed.code, 0, agreed.stdout + agreed.stderr);
  }
  const again = (await Server.start(own, { port: server.port, env: USER })).endWith(t);
  await expectOk(`${again.url}/db/after`, { method: 'PUT', headers, body: {} });
  const caughtUp = await replicate(remote, local);
  assert.ok(caughtUp.docs_read <= 1, `the checkpoint holds: ${caughtUp.docs_read} documents were read`);
  assert.ok((await local.get('after'))._rev);
  await again.stop();

  // A server with only the new store serves it just as well.
  const alone = (await Server.start(target, { port: server.port, env: USER })).endWith(t);
  await expectOk(`${alone.url}/db/alone`, { method: 'PUT', headers, body: {} });
  const there = await replicate(remote, local);
  assert.ok(there.docs_read <= 1, `the checkpoint holds: ${there.docs_read} documents were read`);
  assert.ok((await local.get('alone'))._rev);
  await Promise.all([local.close(), remote.close()]);
  await alone.stop();
});

test('a server that is killed while a database moves loses nothing', { timeout: 400_000 }, async (t) => {
  const folder = await temporaryFolder(t);
  const [own, target] = [`lsm:${path.join(folder, 'own')}`, `sled:${path.join(folder, 'target')}`];
  let server = await start(t, own);
  await fill(server, 4_000);
  const acknowledged = new Map();
  let round = 0;
  for (const pause of [0, 50, 150, 300, 500, 800]) {
    let isOver = false;
    const { url } = server;
    const writer = (async () => {
      for (let n = 0; !isOver; n++) {
        try {
          const answer = await request(`${url}/db/round-${round}-${n}`, { method: 'PUT', headers, body: { n } });
          if (answer.status === 201) acknowledged.set(answer.body.id, answer.body.rev);
        } catch { /* killed */ }
        await sleep(2);
      }
    })();
    // The same request each time: another one is refused while a job of an earlier round is running.
    const moving = run(['relocate', 'db', '--url', withUser(server), '--to', target, '--verify']);
    await sleep(pause);
    await server.kill();
    isOver = true;
    await Promise.all([writer, moving]);
    server = await start(t, own);
    round++;
  }
  const moved = await run(['relocate', 'db', '--url', withUser(server), '--to', target, '--verify']);
  // It may have moved in an earlier round.
  assert.ok(moved.code === 0 || /already/.test(moved.stderr), moved.stdout + moved.stderr);
  for (const [id, rev] of acknowledged) {
    const { body } = await request(`${server.url}/db/${id}`, { headers });
    assert.equal(body._rev, rev, `${id} was acknowledged: ${JSON.stringify(body)}`);
  }
  const rows = await allChanges(`${server.url}/db`, { headers });
  assert.equal(new Set(rows.map((row) => row.id)).size, rows.length, 'each document once');
  assert.ok(rows.length >= 4_000 + acknowledged.size);
  t.diagnostic(`${acknowledged.size} acknowledged writes in ${round} rounds`);
  await server.stop();
  for (const store of [own, target]) {
    const checked = await run(['check', 'db', '--engine', store]);
    assert.equal(checked.code, 0, checked.stdout + checked.stderr);
  }
});

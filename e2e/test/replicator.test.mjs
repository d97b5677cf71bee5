// Replications that the server runs: against pouchdb-server, and any CouchDB whose URL is in COUCHDB_URL (with
// credentials); and through kills of either side.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { leaves } from '../lib/database.mjs';
import { store } from '../lib/engines.mjs';
import { pouchdbServer } from '../lib/pouchdb_server.mjs';
import { Server, expectOk, request, skipLoudly } from '../lib/server.mjs';

const post = (url, body) => expectOk(url, { method: 'POST', body });
const put = (url, body) => expectOk(url, { method: 'PUT', body });

/** A URL without credentials, and the header that has them. */
function split(url) {
  const { username, password, origin, pathname } = new URL(url);
  const headers = username
    ? { authorization: `Basic ${Buffer.from(`${decodeURIComponent(username)}:${decodeURIComponent(password)}`).toString('base64')}` }
    : {};
  return { url: origin + pathname.replace(/\/$/, ''), headers };
}

const rev = (position, letter) => `${position}-${letter.repeat(32)}`;

/** Documents of all kinds: edited, deleted, in conflict, with attachments, and with more ancestors than are kept. */
function content() {
  const docs = [];
  for (let n = 0; n < 60; n++) docs.push({ _id: `plain ${n}`, _rev: rev(1, 'a'), n, text: 'ä ☃ 🎈' });
  docs.push({ _id: 'deleted', _rev: rev(2, 'b'), _deleted: true, _revisions: { start: 2, ids: ['b'.repeat(32), 'a'.repeat(32)] } });
  for (const [letter, deleted] of [['a', false], ['b', false], ['c', true]]) {
    const ids = [letter.repeat(32), '0'.repeat(32)];
    const tombstone = deleted ? { _deleted: true } : {};
    docs.push({ _id: 'in/conflict', _rev: rev(2, letter), branch: letter, _revisions: { start: 2, ids }, ...tombstone });
  }
  const long = Array.from({ length: 1_050 }, (_, n) => `f${n.toString(16).padStart(31, '0')}`);
  docs.push({ _id: 'long', _rev: `1050-${long[0]}`, _revisions: { start: 1_050, ids: long } });
  const attachment = (bytes, type = 'application/octet-stream') => ({ content_type: type, data: bytes.toString('base64') });
  docs.push({
    _id: 'with attachments', _rev: rev(1, 'f'),
    _attachments: {
      'text.txt': attachment(Buffer.from('ä text '.repeat(500)), 'text/plain'),
      'small.bin': attachment(Buffer.from([0, 1, 2])), 'large.bin': attachment(randomBytes(700_000)),
    },
  });
  return docs;
}

/** Names that a URL escapes, drops or resolves. pouchdb-server does not support all of them. */
const oddNames = ['.', '..', 'report\tMarch', 'a\r\nb', 'a/./b', '%2E%2e', 'a+b?c#d', '\\..'];

function oddContent() {
  const data = (text) => ({ content_type: 'application/octet-stream', data: Buffer.from(text).toString('base64') });
  const attachments = (id, names) => Object.fromEntries(names.map((name) => [name, data(`${name} of ${id}`)]));
  return oddNames.map((id) => ({ _id: id, _rev: rev(1, 'e'), _attachments: attachments(id, ['plain', ...oddNames]) }));
}

/** The same leaves, with equal members and attachments. */
async function assertEqual(left, right, ids) {
  const [leftLeaves, rightLeaves] = [await leaves(left), await leaves(right)];
  const other = [...new Set([...leftLeaves.keys(), ...rightLeaves.keys()])].filter((id) => leftLeaves.get(id) !== rightLeaves.get(id));
  assert.deepEqual(other.map((id) => [id, leftLeaves.get(id), rightLeaves.get(id)]), []);
  for (const id of ids) {
    const accept = { accept: 'application/json' };
    const bulkGet = async (url) => {
      const body = { docs: [{ id }] };
      const found = await expectOk(`${url}/_bulk_get?attachments=true`, { method: 'POST', body, headers: accept });
      return found.results[0].docs[0].ok;
    };
    // A URL cannot have a segment of dots only.
    const read = (url) => (/^\.{1,2}$/.test(id)
      ? bulkGet(url)
      : expectOk(`${url}/${encodeURIComponent(id)}?conflicts=true&attachments=true`, { headers: accept }));
    const bare = ({ _attachments: attachments, ...doc }) => {
      const data = Object.entries(attachments ?? {}).map(([name, one]) => [name, one.content_type, one.data]);
      return { ...doc, data: data.sort() };
    };
    assert.deepEqual(bare(await read(right)), bare(await read(left)), id);
  }
}

async function thereAndBack(t, far, headers = {}, odd = []) {
  const server = (await Server.start(await store(t, 'lsm'))).endWith(t);
  const name = `e2e-${randomBytes(6).toString('hex')}`;
  const side = (db) => ({ url: `${far}/${db}`, headers });
  const there = (path, options = {}) => expectOk(`${far}/${path}`, { ...options, headers });
  await there(name, { method: 'PUT' });
  const made = [...content(), ...odd];
  await there(`${name}/_bulk_docs`, { method: 'POST', body: { docs: made, new_edits: false } });

  const pull = { source: side(name), target: 'pulled', create_target: true };
  const pulled = await post(`${server.url}/_replicate`, pull);
  assert.deepEqual([pulled.ok, pulled.doc_write_failures ?? pulled.history[0].doc_write_failures], [true, 0]);
  assert.equal((await post(`${server.url}/_replicate`, pull)).no_changes, true);
  const push = { source: 'pulled', target: side(`${name}-back`), create_target: true };
  const pushed = await post(`${server.url}/_replicate`, push);
  assert.equal(pushed.history[0].docs_written, pulled.history[0].docs_written);
  assert.equal((await post(`${server.url}/_replicate`, push)).no_changes, true);
  const ids = ['plain 7', 'in/conflict', 'with attachments', 'long', ...odd.map((doc) => doc._id)];
  if (Object.keys(headers).length === 0) {
    await assertEqual(`${far}/${name}`, `${server.url}/pulled`, ids);
    await assertEqual(`${far}/${name}`, `${far}/${name}-back`, ids);
  }
  // One that this server compresses.
  await put(`${server.url}/pulled/packed`, {
    _attachments: { 'text.txt': { content_type: 'text/plain', data: Buffer.from('ü text '.repeat(500)).toString('base64') } },
  });
  assert.equal((await post(`${server.url}/_replicate`, push)).history[0].doc_write_failures, 0);
  // A third database gets the same from the copy that came back.
  await post(`${server.url}/_replicate`, { source: side(`${name}-back`), target: 'again', create_target: true });
  await assertEqual(`${server.url}/pulled`, `${server.url}/again`, [...ids, 'packed']);

  // Both directions, as long as their documents exist.
  await put(`${server.url}/_replicator`);
  await put(`${server.url}/_replicator/pull`, { ...pull, continuous: true });
  await put(`${server.url}/_replicator/push`, { source: 'pulled', target: side(name), continuous: true });
  await there(`${name}/from%20there`, { method: 'PUT', body: { n: 1 } });
  await put(`${server.url}/pulled/from%20here`, { n: 2 });
  const arrives = async (read, what) => {
    for (const deadline = Date.now() + 90_000; Date.now() < deadline; await sleep(100)) {
      if ((await read()).status === 200) return;
    }
    assert.fail(`${what} does not arrive: ${JSON.stringify(await expectOk(`${server.url}/_scheduler/jobs`))}`);
  };
  await arrives(() => request(`${server.url}/pulled/from%20there`), 'from there');
  await arrives(() => request(`${far}/${name}/from%20here`, { headers }), 'from here');
  for (const id of ['pull', 'push']) {
    const { _rev } = await expectOk(`${server.url}/_replicator/${id}`);
    await expectOk(`${server.url}/_replicator/${id}?rev=${_rev}`, { method: 'DELETE' });
  }
  for (const db of [name, `${name}-back`]) await there(db, { method: 'DELETE' });
}

test('pouchdb-server and this server replicate both ways', { timeout: 300_000 }, async (t) => {
  await thereAndBack(t, await pouchdbServer(t));
});

test('the CouchDB of COUCHDB_URL and this server replicate both ways', { timeout: 300_000 }, async (t) => {
  if (!process.env.COUCHDB_URL) return skipLoudly(t, 'COUCHDB_URL names no CouchDB');
  const { url, headers } = split(process.env.COUCHDB_URL);
  await thereAndBack(t, url, headers, oddContent());
});

test('kills of either side end with equal databases', { timeout: 300_000 }, async (t) => {
  const seed = Number(process.env.SEED ?? Date.now() % 2 ** 32);
  t.diagnostic(`SEED=${seed}`);
  let state = seed >>> 0;
  const next = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
  const engines = { source: await store(t, 'lsm'), target: await store(t, 'lsm') };
  const sides = { source: (await Server.start(engines.source)).endWith(t), target: (await Server.start(engines.target)).endWith(t) };
  const url = (side) => sides[side].url;
  await put(`${url('source')}/db`);
  await put(`${url('target')}/_replicator`);
  const job = { source: `${url('source')}/db`, target: 'db', create_target: true, continuous: true, checkpoint_interval: 200 };
  await put(`${url('target')}/_replicator/job`, job);
  let written = 0;
  for (let round = 0; round < 6; round++) {
    const docs = Array.from({ length: 1_500 }, () => ({ _id: `${written++}`, text: 'x'.repeat(300) }));
    await post(`${url('source')}/db/_bulk_docs`, { docs });
    await sleep(next() * 400);
    const side = next() < 0.5 ? 'source' : 'target';
    await sides[side].kill();
    await sleep(next() * 300);
    sides[side] = (await Server.start(engines[side], { port: sides[side].port })).endWith(t);
  }
  await put(`${url('source')}/db/last`, {});
  for (const deadline = Date.now() + 200_000; (await request(`${url('target')}/db/last`)).status !== 200; await sleep(200)) {
    assert.ok(Date.now() < deadline, JSON.stringify(await expectOk(`${url('target')}/_scheduler/docs`)));
  }
  const [left, right] = [await leaves(`${url('source')}/db`), await leaves(`${url('target')}/db`)];
  assert.deepEqual([right.size, [...right].sort()], [written + 1, [...left].sort()]);
});

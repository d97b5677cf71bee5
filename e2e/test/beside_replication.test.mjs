// Replications of this server beside those of the CouchDB that COUCHDB_URL names. Both have the same uuid, so that the ids of their
// replications are equal, and each goes on from the other's checkpoints.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { beside, random } from '../lib/beside.mjs';
import { expectOk, request } from '../lib/server.mjs';

/** CouchDB's settings of replications that tests change, as they are without a change. */
const USUAL = { startup_jitter: '5000', max_jobs: '500' };

/** Both servers, with CouchDB's uuid, and CouchDB with these settings of replications, without its usual pause before one. */
async function both(t, settings = {}) {
  if (!process.env.COUCHDB_URL) return beside(t);
  const { username, password, origin } = new URL(process.env.COUCHDB_URL);
  const headers = { authorization: `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}` };
  for (const [name, value] of Object.entries({ startup_jitter: '1', ...settings })) {
    const url = `${origin}/_node/_local/_config/replicator/${name}`;
    const set = (value) => expectOk(url, { method: 'PUT', headers, body: JSON.stringify(value) });
    await set(value);
    // A key that is removed keeps its effect.
    t.after(() => set(USUAL[name]));
  }
  const { uuid } = await expectOk(origin);
  return beside(t, { args: ['--uuid', uuid] });
}

/** Nothing listens here: replications between such URLs are known, and have ids, and do nothing. */
const NOBODY = '127.0.0.1:1';

test('replications have the ids that they have at CouchDB', { timeout: 120_000 }, async (t) => {
  // None is started: CouchDB takes 5 s to stop one that waits for its side.
  const pair = await both(t, { max_jobs: '0' });
  if (!pair) return;
  const { pick, below } = random(t);
  const plain = { source: `http://${NOBODY}/a`, target: `http://${NOBODY}/b`, continuous: true };
  const basic = (text) => `Basic ${Buffer.from(text).toString('base64')}`;
  const asked = [plain];
  for (const source of [
    `http://${NOBODY}/a/`, `http://${NOBODY}/a//`, `http://${NOBODY}`, `http://${NOBODY}/`, `http://${NOBODY}/A%2fb`, `http://${NOBODY}/a?x=1`,
    'http://LOCALHOST.invalid/a', 'http://a.invalid:80/a', 'http://a.invalid:5984/a', 'https://a.invalid/a', 'https://a.invalid:443/a',
    'https://a.invalid:5984/a', 'http://a.invalid:443/a', 'http://a.invalid:06/a', 'http://[::1]:1/a', 'https://a.invalid:6984/ä',
    `http://me:one@${NOBODY}/a`, `http://me:two@${NOBODY}/a`, `http://m%40e:p@${NOBODY}/a`, `http://me@${NOBODY}/a`, `http://me:@${NOBODY}/a`,
    `http://:p@${NOBODY}/a`, `http://a:b:c@${NOBODY}/a`, `http://${NOBODY}/a b`, `http://${NOBODY}/a#x`, `http://${NOBODY}/a?`,
    `http://ü:ä@${NOBODY}/a`, 'http://a.invalid:65535/a', 'http://a.invalid:1/a/b/c', 'http://a.invalid/%61', 'http://a.invalid/../a',
    'http://a.invalid/./a/', 'HTTP://a.invalid/a', 'http://a.invalid:/a', 'http://a_b.invalid/a', 'http://b\u00fccher.invalid/a',
  ]) asked.push({ ...plain, source }, { ...plain, source: { url: source } }, { ...plain, target: source });
  const url = `http://${NOBODY}/a`;
  const user = { username: 'me', password: 'geheim' };
  for (const more of [
    { auth: { basic: user } }, { auth: { basic: { username: 'ü', password: 'p' } } }, { auth: {} }, { headers: {} }, { auth: { other: 1 } },
    { headers: { X: '1', h: ' v ', a: 'b' } }, { headers: { Accept: 'application/json' } }, { headers: { accept: 'application/json' } },
    { headers: { Accept: '*/*' } }, { headers: { Authorization: basic('me:one') } }, { headers: { authorization: basic('me:one'), X: ' 1 ' } },
    { headers: { AUTHORIZATION: `bAsic ${basic('me:one:two').slice(6)}`, b: '1', A: '2' } }, { headers: { Authorization: 'Basic bad!' } },
    { headers: { Authorization: 'Basic bWU=' } }, { headers: { Authorization: 'Bearer x' } }, { headers: { Authorization: 'Bearer x ', X: 'y' } },
    { headers: { Authorization: basic('me:one') }, auth: { basic: user } }, { headers: { X: 'a', x: 'b' } }, { headers: { 'X-Ü': 'ü' } },
    { headers: { Cookie: 'a=b' } }, { headers: { Authorization: 'Basic' } }, { headers: { Authorization: '' } }, { headers: { X: '' } },
  ]) asked.push({ ...plain, source: { url, ...more } }, { ...plain, target: { url: `http://me:one@${NOBODY}/b`, ...more } });
  const selectors = [
    {}, { a: 1 }, { b: 1, a: 2 }, { a: { $gt: 1, $lt: 5 } }, { a: { $eq: { z: [1, 2], y: null } } }, { a: { c: { $gt: 2 } }, b: 1 }, { $nor: [{ a: { $lt: 1 } }] },
    { a: { $elemMatch: { $not: { $gt: 1 } } } }, { 'a\\.b': true }, { 'a.b': 1 }, { $or: [{ a: 1 }, { b: 'ä' }] }, { $not: { a: 1 } },
    { $and: [{ a: 1 }, { b: { $in: [1, 2.5, 'x'] } }] }, { a: { $regex: '^x' } }, { a: { $exists: true }, _id: { $gt: null } },
    { $not: { $or: [{ a: 1 }, { b: { $ne: 2 } }] } }, { a: { $not: { $in: [1] } } }, { a: { $all: [1] } }, { a: { $allMatch: { $gt: 1 } } },
    { a: { $size: 1 } }, { a: { $mod: [2, 1] } }, { a: { $type: 'string' } }, { a: { $nin: [] } }, { a: { b: { c: 1 }, d: 2 } }, { a: {} }, { a: [] },
    { a: [{ b: 1 }] }, { a: { $or: [{ $gt: 1 }, { $lt: 0 }] } }, { $and: [] }, { a: { $beginsWith: 'x' } }, { a: { $keyMapMatch: { $eq: 'x' } } },
    { a: 1e3, b: 1.0, c: 12345678901234567890 }, { a: 256, b: -1, c: 2147483648, d: 1e400 === Infinity ? 0.1 : 0 }, { '': 1 }, { a: { '': 1 } },
  ];
  for (const selector of selectors) asked.push({ ...plain, selector });
  for (const doc_ids of [[], ['a'], ['b', 'a', 'b'], ['a%20c', 'a+c', 'a c'], ['ä', '%C3%A4', '%'], ['_design/x', 'x/y'], null]) asked.push({ ...plain, doc_ids });
  for (const since_seq of [0, '0', '7-abc', 7, [1, 'x'], { a: 1 }, null, false, '']) asked.push({ ...plain, since_seq });
  for (const more of [
    { winning_revs_only: true }, { winning_revs_only: false }, { create_target: true }, { create_target: false }, { create_target: true, create_target_params: { q: 1 } },
    { checkpoint_interval: 5000 }, { use_checkpoints: false }, { worker_processes: 2, worker_batch_size: 3, http_connections: 4 },
    { connection_timeout: 1000, retries_per_request: 1 }, { use_bulk_get: false }, { socket_options: '[{keepalive, true}]' }, { unknown: 1, _id: 'x' },
    { filter: '_design', query_params: {} }, { filter: '_doc_ids' }, { filter: '_view', query_params: { view: 'a/b' } }, { filter: '_selector' },
    { filter: '_view', query_params: { view: 'a/b', z: '1', a: '2' } }, { query_params: { a: '1' } },
    { winning_revs_only: true, since_seq: '7-x', selector: { a: 1 }, create_target: true }, { user_ctx: { name: 'x', roles: [] } },
  ]) asked.push({ ...plain, ...more });
  // Mixtures of these.
  const some = asked.slice();
  for (let n = 0; n < 100; n++) {
    const [one, other] = [pick(some), pick(some)];
    const mixed = { ...plain, source: one.source, target: other.target, create_target: below(2) === 0, winning_revs_only: below(2) === 0 };
    const { selector, doc_ids, since_seq } = pick(some);
    asked.push(JSON.parse(JSON.stringify({ ...mixed, selector, since_seq, ...(selector ? {} : { doc_ids }) })));
  }
  const answers = async (ask) => {
    const { ours, theirs } = await pair.same('/_replicate', { method: 'POST', body: ask });
    for (const [base, answer] of [[pair.ours, ours], [pair.theirs, theirs]]) {
      const headers = { authorization: pair.authorization };
      if (answer.status === 202) await request(`${base}/_replicate`, { method: "POST", headers, body: { ...ask, cancel: true } });
    }
  };
  for (const ask of asked) await answers(ask);
  pair.end();
});

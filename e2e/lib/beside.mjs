// The server under test beside the CouchDB that COUCHDB_URL names, with the credentials of one of its administrators.
// Both get the same requests, and a test fails if their answers differ.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';

import { store } from './engines.mjs';
import { Server, expectOk, request, skipLoudly } from './server.mjs';

/** Starts the server, with these arguments. Without a CouchDB it returns `undefined` and skips the test `t`. */
export async function beside(t, { args = [] } = {}) {
  if (!process.env.COUCHDB_URL) return skipLoudly(t, 'COUCHDB_URL names no CouchDB');
  const { username, password, origin } = new URL(process.env.COUCHDB_URL);
  const [name, secret] = [decodeURIComponent(username), decodeURIComponent(password)];
  const env = { COUCHDB_USER: name, COUCHDB_PASSWORD: secret };
  const ours = (await Server.start(await store(t, 'lsm'), { env, args })).endWith(t);
  const authorization = `Basic ${Buffer.from(`${name}:${secret}`).toString('base64')}`;
  return new Pair(t, ours, origin, { username, password, authorization });
}

/** The answer of a server that ends the connection. CouchDB does so if it fails after the answer has started. */
function cut(error) {
  if (error.name !== 'TypeError') throw error;
  return { status: 'cut', body: undefined, headers: new Headers(), text: '' };
}

class Pair {
  #differences = [];
  #compared = 0;

  /** `username` and `password` of the administrator are as in a URL, `authorization` is the header of both. */
  constructor(t, server, theirs, { username, password, authorization }) {
    const url = { ours: server.url, theirs };
    Object.assign(this, { t, server, url, ...url, username, password, authorization, headers: { authorization } });
  }

  /** The name of a new database on both sides, which is removed when the test ends. */
  async database(options = '') {
    const name = `beside-${randomBytes(6).toString('hex')}`;
    const { headers } = this;
    for (const url of Object.values(this.url)) await expectOk(`${url}/${name}${options}`, { method: 'PUT', headers });
    this.t.after(() => request(`${this.theirs}/${name}`, { method: 'DELETE', headers }));
    return name;
  }

  /** The answers of both to one request, by the administrator unless `headers` have other credentials: `{ ours, theirs }`. */
  async both(path, options) {
    const [ours, theirs] = await Promise.all([this.ours, this.theirs].map((url) => this.ask(url, path, options)));
    return { ours, theirs };
  }

  /** The answer of one of them, as for `both`. */
  ask(url, path, { headers = {}, ...options } = {}) {
    const all = { authorization: this.authorization, ...headers };
    if (all.authorization === undefined) delete all.authorization;
    const send = () => request(url + path, { ...options, headers: all });
    // CouchDB may have ended the connection after an earlier answer, so requests that only read are sent again.
    const isRead = (options.method ?? 'GET') === 'GET' || /\/_(view|find|explain|all_docs|design_docs|local_docs)\b/.test(path);
    return (isRead ? send().catch(send) : send()).catch(cut);
  }

  /** Sends one request to both, and notes a difference of status or body, after `view` of each answer. */
  async same(path, options = {}, view = ({ status, body }) => ({ status, body })) {
    const { ours, theirs } = await this.both(path, options);
    this.note(`${options.method ?? 'GET'} ${path} ${JSON.stringify(options.body) ?? ''}`, view(ours), view(theirs));
    return { ours, theirs };
  }

  /** Notes a difference between two results. */
  note(what, ours, theirs) {
    this.#compared++;
    try {
      assert.deepEqual(ours, theirs);
    } catch {
      this.#differences.push(`${what}\n  ours:   ${JSON.stringify(ours)}\n  theirs: ${JSON.stringify(theirs)}`);
    }
  }

  /** Fails if there were differences, with the first of them (at most SHOW of them, or 20). */
  end() {
    this.t.diagnostic(`${this.#compared} answers compared`);
    const found = this.#differences;
    assert.equal(found.length, 0, `${found.length} differences:\n${found.slice(0, Number(process.env.SHOW ?? 20)).join('\n')}`);
  }
}

/** Random numbers from a seed, SEED or a new one, which the test `t` prints. */
export function random(t) {
  let state = Number(process.env.SEED ?? randomBytes(4).readUInt32BE()) >>> 0;
  t.diagnostic(`SEED=${state}`);
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (end) => Math.floor(next() * end);
  return { next, below, pick: (list) => list[below(list.length)] };
}

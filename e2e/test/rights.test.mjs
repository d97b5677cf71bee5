// Users and rights, as web applications on CouchDB use them: a set-up script, sign-up, login, a database for each user.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';
import { Server, expectOk, request } from '../lib/server.mjs';

const nano = createRequire(import.meta.url)('nano');

const basic = (name, password) => ({ authorization: `Basic ${btoa(`${name}:${password}`)}` });
const ADMIN = basic('admin', 'geheim');

/** Sets a new server up as the scripts for CouchDB do. */
async function setUp(server) {
  const body = { action: 'enable_single_node', username: 'admin', password: 'geheim', bind_address: '0.0.0.0', port: 5984 };
  const token = { 'x-couch-layer-setup-token': server.setupToken };
  await expectOk(`${server.url}/_cluster_setup`, { method: 'POST', body, headers: token });
  for (const [key, value] of [
    ['couchdb/users_db_security_editable', 'true'],
    ['chttpd_auth/iterations', '1000'],
  ]) {
    await expectOk(`${server.url}/_node/_local/_config/${key}`, { method: 'PUT', body: JSON.stringify(value), headers: ADMIN });
  }
  await expectOk(`${server.url}/_users/_security`, { method: 'PUT', body: {}, headers: ADMIN });
}

/** Sends what pouchdb-authentication's `signUp` sends. */
const signUp = (server, name, password) => request(`${server.url}/_users/org.couchdb.user:${name}`, {
  method: 'PUT',
  body: { _id: `org.couchdb.user:${name}`, type: 'user', name, password, roles: [] },
});

test('users sign up, log in and synchronise a database of their own', async (t) => {
  const server = (await Server.start(await store(t, 'lsm'))).endWith(t);
  await setUp(server);
  for (const name of ['anna', 'berta']) {
    assert.equal((await signUp(server, name, `pw ${name}`)).status, 201);
    await expectOk(`${server.url}/notes-${name}`, { method: 'PUT', headers: ADMIN });
    const security = { admins: { names: [], roles: ['_admin'] }, members: { names: [name], roles: [] } };
    await expectOk(`${server.url}/notes-${name}/_security`, { method: 'PUT', body: security, headers: ADMIN });
  }
  assert.equal((await signUp(server, 'anna', 'taken')).status, 409);

  const auth = { username: 'anna', password: 'pw anna' };
  const local = new PouchDB('anna', { adapter: 'memory' });
  t.after(() => local.destroy());
  await local.bulkDocs(Array.from({ length: 50 }, (_, n) => ({ _id: `n${n}`, n })));
  await replicate(local, new PouchDB(`${server.url}/notes-anna`, { auth, skip_setup: true }));
  const back = new PouchDB('back', { adapter: 'memory' });
  t.after(() => back.destroy());
  await replicate(new PouchDB(`${server.url}/notes-anna`, { auth, skip_setup: true }), back);
  assert.equal((await back.info()).doc_count, 50);
  const foreign = new PouchDB(`${server.url}/notes-berta`, { auth, skip_setup: true });
  await assert.rejects(foreign.allDocs(), (error) => error.status === 403);
  const nobody = new PouchDB(`${server.url}/notes-anna`, { skip_setup: true });
  await assert.rejects(nobody.allDocs(), (error) => error.status === 401);

  const couch = nano(server.url);
  await assert.rejects(couch.auth('anna', 'pw berta'), (error) => error.statusCode === 401);
  const login = await couch.auth('anna', 'pw anna');
  assert.deepEqual([login.ok, login.name, login.roles], [true, 'anna', []]);
  const session = await couch.session();
  assert.deepEqual(session.userCtx, { name: 'anna', roles: [] });
  assert.equal((await couch.use('notes-anna').list()).rows.length, 50);
  await assert.rejects(couch.use('notes-berta').get('x'), (error) => error.statusCode === 403);
  await assert.rejects(couch.db.create('mine'), (error) => error.statusCode === 401);
  await assert.rejects(couch.use('notes-anna').insert({}, '_design/d'), (error) => error.statusCode === 403);

  // A changed password ends the session, after a restart as before it.
  const path = `${server.url}/_users/org.couchdb.user:anna`;
  const document = await expectOk(path, { headers: basic('anna', 'pw anna') });
  assert.equal(document.password, undefined);
  await expectOk(path, { method: 'PUT', body: { ...document, password: 'neu' }, headers: basic('anna', 'pw anna') });
  assert.equal((await couch.session()).userCtx.name, null);
});

test('sessions and administrators survive the server', async (t) => {
  const folder = await store(t, 'lsm');
  const server = (await Server.start(folder)).endWith(t);
  await setUp(server);
  await signUp(server, 'anna', 'pw anna');
  const login = await request(`${server.url}/_session`, { method: 'POST', body: { name: 'anna', password: 'pw anna' } });
  const [cookie] = login.headers.get('set-cookie').split(';');
  const { port } = server;
  await server.stop();
  const again = (await Server.start(folder, { port })).endWith(t);
  const session = await expectOk(`${again.url}/_session`, { headers: { cookie } });
  assert.equal(session.userCtx.name, 'anna');
  assert.equal((await request(`${again.url}/_all_dbs`)).status, 401);
  assert.deepEqual(await expectOk(`${again.url}/_all_dbs`, { headers: ADMIN }), ['_replicator', '_users']);
});

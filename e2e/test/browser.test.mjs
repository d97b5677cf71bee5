// PouchDB in a real browser, on a page of another site, after PouchDB's set-up script `add-cors-to-couchdb`.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { browser, emptyPages } from '../lib/browser.mjs';
import { store } from '../lib/engines.mjs';
import { Server, expectOk, request } from '../lib/server.mjs';

const require = createRequire(import.meta.url);
const addCors = require('add-cors-to-couchdb');

const [NAME, PASSWORD] = ['admin', 'geheim'];
const ADMIN = { authorization: `Basic ${btoa(`${NAME}:${PASSWORD}`)}` };

/** A server with an administrator, set up by PouchDB's script. */
async function setUp(t) {
  const env = { COUCHDB_USER: NAME, COUCHDB_PASSWORD: PASSWORD };
  const server = (await Server.start(await store(t, 'lsm'), { env })).endWith(t);
  await addCors(server.url, `${NAME}:${PASSWORD}`);
  return server;
}

/** A browser with an empty page of another site: `{ page, origin }`. Undefined, and the test is skipped, without a browser. */
async function openPage(t) {
  const started = await browser(t);
  if (!started) return undefined;
  const origin = await emptyPages(t);
  const page = await (await started.newContext()).newPage();
  page.setDefaultTimeout(60_000);
  await page.goto(origin);
  return { page, origin };
}

/** The result of a request for a page: the status and the body, or the name of the error if the browser keeps the answer from it. */
const fetchFrom = (page, url, options = {}) => page.evaluate(async ({ url, options }) => {
  try {
    const response = await fetch(url, { credentials: 'include', ...options });
    return { status: response.status, body: await response.json() };
  } catch (error) {
    return error.name;
  }
}, { url, options });

test('PouchDB in a browser replicates both ways, with attachments and live', async (t) => {
  const opened = await openPage(t);
  if (!opened) return;
  const { page } = opened;
  const server = await setUp(t);
  const url = `${server.url}/notes`;
  const headers = ADMIN;
  await expectOk(url, { method: 'PUT', headers });
  const attachment = (text) => ({ 'text.txt': { content_type: 'text/plain', data: btoa(text) } });
  await expectOk(`${url}/server`, { method: 'PUT', headers, body: { from: 'server', _attachments: attachment('of the server') } });

  await page.addScriptTag({ path: require.resolve('pouchdb/dist/pouchdb.min.js') });
  const once = await page.evaluate(async ({ url, auth, attachments }) => {
    window.local = new PouchDB('notes');
    // PouchDB fetches with `credentials: 'include'`.
    window.remote = new PouchDB(url, { auth });
    await local.put({ _id: 'page', from: 'page', _attachments: attachments });
    const { push, pull } = await local.sync(remote);
    const blob = await local.getAttachment('server', 'text.txt');
    return { pushed: push.docs_written, pulled: pull.docs_written, text: await blob.text() };
  }, { url, auth: { username: NAME, password: PASSWORD }, attachments: attachment('of the page') });
  assert.deepEqual(once, { pushed: 1, pulled: 1, text: 'of the server' });
  assert.equal((await request(`${url}/page/text.txt`, { headers })).text, 'of the page');

  // Live, each side waits for the edit of the other one.
  await page.evaluate(() => {
    window.arrived = new Promise((resolve, reject) => {
      window.live = local.sync(remote, { live: true })
        .on('change', ({ direction, change }) => {
          if (direction === 'pull' && change.docs.some(({ _id }) => _id === 'late server')) resolve();
        })
        .on('denied', reject)
        .on('error', reject);
    });
  });
  await expectOk(`${url}/late server`, { method: 'PUT', headers, body: { late: true } });
  await page.evaluate(() => arrived);
  const { update_seq: since } = await expectOk(url, { headers });
  await page.evaluate(() => local.put({ _id: 'late page', late: true }));
  await expectOk(`${url}/_changes?feed=longpoll&filter=_doc_ids&doc_ids=["late page"]&since=${since}&timeout=60000`, { headers });
  assert.equal((await expectOk(`${url}/late page`, { headers })).late, true);
  await page.evaluate(() => live.cancel());
});

const EIGHT = Array.from({ length: 8 }, (_, n) => `live${n}`);

/**
 * A page of the server at `url`, with a live sync of each of EIGHT. In the page, `remotes` are the server's databases,
 * `arrivals` the first document that each sync brings, and `events` what was noted, in order.
 * Undefined, and the test is skipped, without a browser.
 */
async function openEight(t, url) {
  const started = await browser(t);
  if (!started) return undefined;
  const page = await (await started.newContext({ ignoreHTTPSErrors: true })).newPage();
  page.setDefaultTimeout(60_000);
  await page.goto(url);
  await page.addScriptTag({ path: require.resolve('pouchdb/dist/pouchdb.min.js') });
  await page.evaluate(async (names) => {
    window.events = [];
    window.remotes = names.map((name) => new PouchDB(`${location.origin}/${name}`));
    await Promise.all(remotes.map((remote) => remote.info()));
    window.arrivals = names.map((name, n) => new Promise((resolve, reject) => {
      const live = new PouchDB(name).sync(remotes[n], { live: true });
      live.on('change', ({ direction, change }) => direction === 'pull' && resolve([name, change.docs[0]._id]));
      live.on('denied', reject).on('error', reject);
    }));
  }, EIGHT);
  return page;
}

const ARRIVED = EIGHT.map((name, n) => [name, `from ${n}`]);
const FEEDS = '/_node/_local/_stats/couchdb/httpd/clients_requesting_changes';
const protocols = async (page) =>
  new Set(await page.evaluate(() => performance.getEntriesByType('resource').map((entry) => entry.nextHopProtocol)));

test('a page follows eight databases live over HTTP/2', { timeout: 120_000 }, async (t) => {
  const server = (await Server.start(await store(t, 'lsm'), { args: ['--tls-self-signed'] })).endWith(t);
  const page = await openEight(t, server.url.replace('http:', 'https:'));
  if (!page) return;
  // All feeds wait, and requests are answered.
  await page.evaluate(async (feeds) => {
    while ((await (await fetch(feeds)).json()).value < 8) await new Promise((resolve) => { setTimeout(resolve, 20); });
  }, FEEDS);
  assert.equal(await page.evaluate(async () => (await fetch('/_up')).status), 200);
  await page.evaluate(() => Promise.all(remotes.map((remote, n) => remote.put({ _id: `from ${n}` }))));
  assert.deepEqual(await page.evaluate(() => Promise.all(arrivals)), ARRIVED);
  assert.deepEqual(await protocols(page), new Set(['h2']));
});

test('by HTTP/1.1 six of eight live databases keep every other request of the page waiting', { timeout: 120_000 }, async (t) => {
  const server = (await Server.start(await store(t, 'lsm'))).endWith(t);
  const page = await openEight(t, server.url);
  if (!page) return;
  // The browser opens six connections, and each has a feed that waits.
  while ((await expectOk(server.url + FEEDS)).value < 6) await sleep(20);
  await page.evaluate(() => { window.up = fetch('/_up').then(({ status }) => events.push(status)); });
  // The server answers others meanwhile.
  for (let asked = 0; asked < 100; asked++) await expectOk(`${server.url}/_up`);
  await page.evaluate(() => events.push('written'));
  for (const [name, id] of ARRIVED) await expectOk(`${server.url}/${name}/${id}`, { method: 'PUT', body: {} });
  // Only a feed that ends makes room for the request. Whether all eight arrive is chance: six feeds wait again soon.
  await page.evaluate(() => up);
  assert.deepEqual(await page.evaluate(() => events), ['written', 200]);
  assert.deepEqual(await protocols(page), new Set(['http/1.1']));
});

test('a page that only the wildcard admits gets no session and nothing that acts with the server\'s rights', async (t) => {
  const opened = await openPage(t);
  if (!opened) return;
  const { page, origin } = opened;
  const server = await setUp(t);
  for (const name of ['notes', '_users', '_replicator']) {
    await request(`${server.url}/${name}`, { method: 'PUT', headers: ADMIN });
  }
  const json = { 'content-type': 'application/json' };
  const replication = JSON.stringify({ source: `${server.url}/notes`, target: `${server.url}/copy` });
  const closed = [
    ['_node/_local/_config', {}],
    ['_node/_local/_config/admins/intruder', { method: 'PUT', body: '"secret"' }],
    ['_users/_all_docs', {}],
    ['_users/org.couchdb.user:intruder', {
      method: 'PUT', body: '{"name": "intruder", "type": "user", "roles": [], "password": "secret"}',
    }],
    ['_replicate', { method: 'POST', body: replication }],
    ['_replicator/copy', { method: 'PUT', body: replication }],
    ['_cluster_setup', {}],
  ];
  const asAdmin = ([path, options]) =>
    fetchFrom(page, `${server.url}/${path}`, { ...options, headers: { ...ADMIN, ...(options.body ? json : {}) } });

  // A page may do this with a password that it knows.
  const own = await fetchFrom(page, `${server.url}/notes`, { headers: ADMIN });
  assert.equal(own.body.db_name, 'notes');
  for (const one of closed) {
    const { status, body } = await asAdmin(one);
    assert.deepEqual([one[0], status, body.error], [one[0], 403, 'forbidden']);
    assert.match(body.reason, /cors\/origins/);
  }
  assert.equal((await request(`${server.url}/_node/_local/_config/admins/intruder`, { headers: ADMIN })).status, 404);

  // The browser has a session of the server's own pages, and sends it only from these.
  const login = { method: 'POST', headers: json, body: JSON.stringify({ name: NAME, password: PASSWORD }) };
  const inside = await page.context().newPage();
  await inside.goto(`${server.url}/`);
  assert.equal((await fetchFrom(inside, `${server.url}/_session`, login)).status, 200);
  assert.equal((await fetchFrom(inside, `${server.url}/_session`)).body.userCtx.name, NAME);
  assert.equal((await fetchFrom(page, `${server.url}/_session`)).body.userCtx.name, null);
  assert.equal((await fetchFrom(page, `${server.url}/notes`)).status, 401);

  // A named origin may do all of it.
  await expectOk(`${server.url}/_node/_local/_config/cors/origins`, {
    method: 'PUT', headers: ADMIN, body: JSON.stringify(`*,${origin}`),
  });
  for (const one of closed.filter(([path]) => path !== '_replicate')) {
    const { status } = await asAdmin(one);
    assert.ok(status < 300, `${one[0]}: ${status}`);
  }

  // Without the wildcard other pages see nothing.
  await expectOk(`${server.url}/_node/_local/_config/cors/origins`, { method: 'PUT', headers: ADMIN, body: '"https://example.com"' });
  assert.equal(await fetchFrom(page, `${server.url}/notes`, { headers: ADMIN }), 'TypeError');
});

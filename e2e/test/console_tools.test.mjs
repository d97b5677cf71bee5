// Parts of the console for who runs a server: vaults, trials of views, the log, purges, and answers that are too large.

import assert from 'node:assert/strict';
import http from 'node:http';
import { once } from 'node:events';
import test from 'node:test';
import { setTimeout } from 'node:timers/promises';

import { browser } from '../lib/browser.mjs';
import { EVIL, PASSWORDS, emptyServer, fullServer, keep, makeVault, openConsole, violations } from '../lib/console.mjs';
import { store } from '../lib/engines.mjs';
import { Server, request } from '../lib/server.mjs';

const doc = (db, id) => `#/db/${db}/doc/${encodeURIComponent(id)}`;

/** A console of an empty server, signed in as its administrator. */
async function opened(t) {
  const started = await browser(t);
  if (!started) return null;
  const { server, ask } = await emptyServer(t);
  const all = await openConsole(started, server);
  await all.signIn('admin');
  return { started, server, ask, ...all };
}

test('a vault is examined: its space, its devices, and what a collection would remove', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, problems, visit } = all;
  await makeVault(ask, 'vault');
  await ask('PUT', '/plain');
  await visit('#/db/plain');
  assert.equal(await page.getByRole('link', { name: 'Vault', exact: true }).count(), 0);
  await visit('#/db/vault');
  await page.getByRole('link', { name: 'Vault', exact: true }).click();
  await page.getByRole('button', { name: 'Examine the vault' }).click();
  await page.getByText('Files that lack chunks: 1. Damaged documents: 0.').waitFor();
  await page.getByText(/^broken <img.*: 1 chunk$/).waitFor();
  await page.getByRole('row', { name: /^Chunks that no file needs 1 .*what a collection would remove/ }).waitFor();
  await page.getByText('This server does not collect chunks by itself.').waitFor();
  const devices = page.getByRole('region', { name: 'Devices', exact: true });
  await devices.getByRole('row', { name: /^<img src=x .* 1 document behind .*0\.25\.70 yes$/ }).waitFor();
  await devices.getByRole('row', { name: /^<img src=x .* what it has is unknown unknown .* no$/ }).waitFor();
  await page.getByRole('region', { name: 'Settings that differ' }).getByText('encrypt').waitFor();
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('img[src=x]').count(), 0);
  assert.deepEqual([await violations(page), problems], [[], []]);
});

test('a view is tried before it is stored, and its errors name their documents', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, problems, visit } = all;
  await ask('PUT', '/db');
  await ask('POST', '/db/_bulk_docs', {
    docs: [
      { _id: 'good', n: 1 },
      { _id: 'better', n: 2 },
      { _id: EVIL, n: EVIL },
    ],
  });
  await visit('#/db/db/views');
  await page.getByRole('button', { name: 'New view' }).click();
  const map =
    "function (doc) { if (doc.n === doc._id) throw new Error(doc._id); emit(doc.n, '" +
    EVIL.replaceAll("'", '') +
    "') }";
  const design = (more) =>
    JSON.stringify({ _id: '_design/d', views: { first: { map: 'doc => emit(1)' }, second: { map, ...more } } });
  const area = page.getByLabel('The design document as JSON');
  await area.fill(design({ reduce: 'function (keys, values, again) { return again ? -1 : 1 }' }));
  await page.getByLabel('View to try').selectOption('second');
  await page.getByRole('button', { name: 'Try it' }).click();
  await page.getByText(/Tried on all 3 documents: 2 rows, 1 error/).waitFor();
  const rows = page.getByRole('region', { name: 'Rows of the trial' });
  await rows.getByRole('row', { name: /^good 1 "<img src=x/ }).waitFor();
  const errors = page.getByRole('region', { name: 'Documents that the function failed on' });
  await errors.getByRole('row', { name: /^<img src=x .*Error: <img src=x/ }).waitFor();
  await page.getByText('The reduce function depends on how rows are divided.').waitFor();
  await keep(page, 'trial');
  assert.deepEqual(await violations(page), []);
  // What does not compile, and text that is no document.
  await area.fill(design({ map: 'function (doc) {' }));
  await page.getByRole('button', { name: 'Try it' }).click();
  await page.getByRole('alert').getByText('compilation_error').waitFor();
  assert.deepEqual(problems.splice(0).length, 2, 'the refusal and what the browser says of it');
  await area.fill('{');
  await page.getByRole('button', { name: 'Try it' }).click();
  await page
    .getByRole('alert')
    .last()
    .getByText(/Line 1|JSON/)
    .waitFor();
  assert.equal((await ask('GET', '/db/_design_docs')).rows.length, 0, 'nothing is stored');
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.deepEqual(problems, []);

  // A stored design document is tried as it is typed.
  await ask('PUT', '/db/_design/d', { views: { v: { map: 'doc => emit(doc.n)' } } });
  page.on('dialog', (asked) => asked.accept());
  await page.reload();
  await visit(doc('db', '_design/d'));
  await page.getByRole('button', { name: 'Try it' }).click();
  await page.getByText(/Tried on all 3 documents: 3 rows/).waitFor();
  await visit(doc('db', 'good'));
  assert.equal(await page.getByRole('button', { name: 'Try it' }).count(), 0);
});

test('the end of the log is text, for administrators, without a secret', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { server, ask, page, problems, visit, signIn } = all;
  const wrong = { name: EVIL, password: 'geheim-guess' };
  assert.equal((await request(`${server.url}/_session`, { method: 'POST', body: wrong })).status, 401);
  const named = { name: 'admin', password: 'geheim-guess' };
  assert.equal((await request(`${server.url}/_session`, { method: 'POST', body: named })).status, 401);
  await ask('PUT', '/_node/_local/_config/chttpd_auth/secret', '"geheim-of-sessions"');
  await ask('PUT', '/_replicator').catch(() => {});
  await ask('PUT', `/_replicator/${encodeURIComponent(EVIL)}`, {
    source: 'http://ann:geheim-in-url@127.0.0.1:1/a',
    target: 'http://127.0.0.1:1/b',
  });
  // Another secret ends all sessions.
  await page.context().clearCookies();
  await page.goto('about:blank');
  problems.splice(0);
  await signIn('admin');
  await visit('#/server');
  const log = page.getByRole('log');
  await log.filter({ hasText: 'a login failed' }).waitFor();
  await log.filter({ hasText: 'a replication failed' }).waitFor();
  await log.filter({ hasText: '<img src=x' }).waitFor();
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator('img[src=x]').count(), 0);
  const { lines, last } = await ask('GET', '/_couch_layer/log');
  const text = JSON.stringify(lines);
  for (const secret of ['guess', 'of-sessions', 'in-url', PASSWORDS.admin])
    assert.equal(text.includes(secret), false, secret);
  assert.deepEqual(
    (await ask('GET', `/_couch_layer/log?after=${last}`)).lines.filter(({ number }) => number <= last),
    [],
  );
  await page.getByLabel('Lines').selectOption('ERROR');
  await log.filter({ hasText: 'There is no such line.' }).waitFor();
  await page.getByLabel('Lines').selectOption('WARN');
  await page.getByLabel('With these letters').fill('a login');
  await log.filter({ hasText: 'a login failed' }).waitFor();
  assert.equal((await log.textContent()).includes('a replication'), false);
  assert.deepEqual([await violations(page), problems], [[], []]);
  // Nobody else.
  assert.equal((await request(`${server.url}/_couch_layer/log`)).status, 401);
});

test(
  'answers that are too large for a page are not read as a whole, and it says so',
  { timeout: 240_000 },
  async (t) => {
    const all = await opened(t);
    if (!all) return;
    const { ask, page, problems, visit } = all;
    await ask('PUT', '/db');
    const letters = 'x'.repeat(7_000_000);
    for (const id of ['a', 'b', 'c']) await ask('PUT', `/db/${id}`, { id, letters });
    await ask('PUT', '/db/_design/d', { views: { v: { map: 'doc => emit(doc.id)' } } });
    await visit('#/db/db');
    await page.getByText('The documents are large, so one is shown at once.').waitFor();
    await page.getByRole('link', { name: '_design/d' }).waitFor();
    for (const id of ['a', 'b']) {
      await page.getByRole('button', { name: 'Next' }).click();
      await page.getByRole('link', { name: id, exact: true }).waitFor();
    }
    await page.getByRole('button', { name: 'Back' }).click();
    await page.getByRole('link', { name: 'a', exact: true }).waitFor();
    await visit('#/db/db/views');
    await page.getByLabel('With documents').check();
    await page.getByRole('button', { name: 'Run' }).click();
    await page.getByRole('alert').getByText('The answer is larger than 16 MB').waitFor({ timeout: 60_000 });
    await page.getByLabel('Rows').fill('1');
    await page.getByRole('button', { name: 'Run' }).click();
    await page.getByRole('region', { name: 'Rows' }).getByRole('link', { name: 'a' }).waitFor();
    assert.ok((await page.content()).length < 50_000);
    // A document whose leaves are too large together.
    const leaf = (hash) => ({ _id: 'many', _rev: `1-${hash.repeat(32)}`, letters });
    for (const hash of 'abcd') await ask('POST', '/db/_bulk_docs', { new_edits: false, docs: [leaf(hash)] });
    await visit(doc('db', 'many'));
    await page.getByText('The document and its leaves are larger than a page reads.').waitFor();
    assert.match(await page.getByRole('link', { name: 'Download its text' }).getAttribute('href'), /\/db\/many$/);
    assert.deepEqual(problems, []);
  },
);

test('an answer of any size is cut where it is too large', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { page } = all;
  const outcome = await page.evaluate(async () => {
    const { MOST_BYTES, text } = await import('/_utils/api.js');
    const [piece, sent] = [new Uint8Array(1_000_000).fill(120), { bytes: 0, stopped: false }];
    const endless = () =>
      new Response(
        new ReadableStream({
          pull(controller) {
            sent.bytes += piece.length;
            controller.enqueue(piece);
          },
          cancel() {
            sent.stopped = true;
          },
        }),
      );
    const real = window.fetch;
    const outcomes = [];
    for (const answer of [endless, () => new Response('ü'.repeat(1_000_000))]) {
      window.fetch = async () => answer();
      outcomes.push(
        await text('GET', '/x').then(
          (found) => found.length,
          (error) => error.constructor.name,
        ),
      );
    }
    window.fetch = real;
    return { outcomes, stopped: sent.stopped, over: sent.bytes - MOST_BYTES };
  });
  assert.deepEqual(outcome.outcomes, ['TooLarge', 1_000_000]);
  assert.ok(outcome.stopped && outcome.over < 5_000_000, JSON.stringify(outcome));
});

test('old tombstones are found before they are purged', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, problems, visit } = all;
  await ask('PUT', '/db');
  await ask('PUT', '/db/kept', {});
  for (const id of ['one', EVIL]) {
    const { rev } = await ask('PUT', `/db/${encodeURIComponent(id)}`, {});
    await ask('DELETE', `/db/${encodeURIComponent(id)}?rev=${rev}`);
  }
  await visit('#/db/db/settings');
  await page.getByText('Purge old tombstones').click();
  await page.getByRole('button', { name: 'Find them' }).click();
  await page.getByRole('alert').getByText('no recent time is known').waitFor();
  await page.getByRole('button', { name: 'Close this message' }).click();
  problems.splice(0);
  await page.getByRole('button', { name: 'Find them' }).click();
  await page.getByText('0 deleted documents. Nothing is purged yet.').waitFor();
  await page.getByLabel('Deleted longer ago than').fill('1s');
  // The first request noted the time. All that was deleted by then is old a second later.
  await setTimeout(1_100);
  await page.getByRole('button', { name: 'Find them' }).click();
  await page.getByText('2 deleted documents. Nothing is purged yet.').waitFor();
  assert.equal((await ask('GET', '/db')).doc_del_count, 2);
  await page.getByRole('button', { name: 'Purge 2 documents' }).click();
  await page.getByLabel('Type db to confirm').fill('db');
  await page.getByRole('dialog').getByRole('button', { name: 'Purge' }).click();
  await page.getByText('Purged: 2 documents.').waitFor();
  const { doc_count: live, doc_del_count: deleted } = await ask('GET', '/db');
  assert.deepEqual([live, deleted], [1, 0]);
  assert.deepEqual([await violations(page), problems], [[], []]);

  // A vault's devices may be away for long, also if nothing but a chunk tells that it is one.
  await ask('PUT', '/db/h:chunk', {});
  await page.getByRole('button', { name: 'Find them' }).click();
  await page.getByRole('alert').getByText('old tombstones of a vault are not purged').waitFor();
  await makeVault(ask, 'vault');
  await visit('#/db/vault/settings');
  await page.getByText(/^Tombstones of a vault are not purged/).waitFor();
  assert.equal(await page.getByRole('button', { name: 'Find them' }).count(), 0);
});

test('a quota is set, and a range is drawn where it lies', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, problems, visit } = all;
  await ask('PUT', '/db');
  await ask('POST', '/db/_bulk_docs', { docs: Array.from({ length: 100 }, (_, year) => ({ year, kind: year % 50 })) });
  await ask('POST', '/db/_index', { index: { fields: ['year'] }, name: 'by-year' });
  await visit('#/db/db/settings');
  await page.getByLabel('Quota in bytes', { exact: true }).fill('10MB');
  await page.getByRole('button', { name: 'Save: Quota in bytes' }).click();
  await page.getByText('Stored.').waitFor();
  assert.equal((await ask('GET', '/db')).sizes.quota, 10_000_000);
  await page.getByRole('button', { name: 'Close this message' }).click();
  await visit('#/db/db/settings');
  await page.getByLabel('Quota in bytes', { exact: true }).fill('');
  await page.getByRole('button', { name: 'Save: Quota in bytes' }).click();
  await page.getByText('Stored.').last().waitFor();
  assert.equal((await ask('GET', '/db')).sizes.quota, undefined);

  await visit('#/db/db/query');
  const search = async (selector) => {
    await page.getByLabel('The search as JSON').fill(JSON.stringify({ selector, limit: 1000 }));
    await page.getByRole('button', { name: 'Run' }).click();
  };
  /** Where the range is drawn, in parts of the index, and its bounds. */
  const drawn = (name) =>
    page.getByRole('img', { name }).evaluate((picture) => {
      const rect = picture.querySelector('.read, .bad');
      const part = (attribute) => Math.round(Number(rect.getAttribute(attribute)) / 6);
      return [part('x'), part('width'), [...picture.querySelectorAll('.key')].map((one) => one.textContent)];
    });
  await search({ year: { $gte: 20, $lt: 40 } });
  assert.deepEqual(await drawn(/20 rows were read, from 20 to 40, and 20 documents found/), [40, 20, ['20', '40']]);
  await search({ year: { $lt: 30 } });
  assert.deepEqual(await drawn(/from the beginning to 30/), [0, 30, ['30']]);
  await search({ year: { $gte: 70 } });
  assert.deepEqual(await drawn(/from 70 to the end/), [70, 30, ['70']]);
  assert.equal(await page.getByText('An index would help.').count(), 0);
  // An index that leaves most to be thrown away.
  await search({ year: { $gte: 0 }, kind: 7 });
  await page.getByText('An index would help.').waitFor();
  await page.getByRole('button', { name: 'Create this index' }).click();
  await page.getByText(/2 rows of the index read|3 rows of the index read/).waitFor();
  assert.deepEqual(problems, []);
});

test('behind a proxy everybody is a stranger until the first administrator is named', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const server = (await Server.start(await store(t, 'lsm'))).endWith(t);
  await request(`${server.url}/private`, { method: 'PUT' });
  // It says for whom it asks, as proxies do, and hands its own host on.
  const proxy = http.createServer((asked, answer) => {
    const headers = { ...asked.headers, host: `127.0.0.1:${server.port}`, 'x-forwarded-for': '192.0.2.7' };
    const passed = http.request({ port: server.port, method: asked.method, path: asked.url, headers }, (found) => {
      answer.writeHead(found.statusCode, found.headers);
      found.pipe(answer);
    });
    asked.pipe(passed);
  });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  t.after(() => {
    proxy.close();
    proxy.closeAllConnections();
  });
  const outside = { url: `http://127.0.0.1:${proxy.address().port}` };
  assert.equal((await request(`${outside.url}/_all_dbs`)).status, 403);
  assert.equal((await request(`${outside.url}/private`)).status, 403);
  const { page, problems, visit } = await openConsole(started, outside);
  await visit('#/');
  await page.getByText('Name an administrator').waitFor();
  assert.equal(await page.getByText('private').count(), 0);
  await page.goto(`${outside.url}/_utils/#/signin?token=${server.setupToken}`);
  await page.getByLabel('Name', { exact: true }).fill('first');
  await page.getByLabel('Password').fill('of the first');
  await page.getByRole('button', { name: 'Name this administrator' }).click();
  await page.getByText('Signed in as first').waitFor();
  await page.getByRole('link', { name: 'private' }).waitFor();
  assert.deepEqual(problems, []);
});

test('a member asks for nothing that only administrators of the database may have', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server } = await fullServer(t);
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('member');
  const asked = [];
  page.on('request', (one) => asked.push(new URL(one.url()).pathname));
  await visit('#/db/vault');
  assert.equal(await page.getByRole('link', { name: 'Vault', exact: true }).count(), 0);
  await visit('#/db/vault/vault');
  await page.getByText('A vault is examined by administrators of its database.').waitFor();
  await visit('#/db/notes/views');
  for (const name of ['New view', 'Try it', 'Examine the vault'])
    assert.equal(await page.getByRole('button', { name }).count(), 0, name);
  await visit(doc('notes', '_design/posts'));
  assert.equal(await page.getByRole('button', { name: 'Try it' }).count(), 0);
  assert.deepEqual(
    asked.filter((path) => /_couch_layer|_config|_stats|_active_tasks/.test(path)),
    [],
  );
  assert.deepEqual(problems, []);
});

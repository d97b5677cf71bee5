// The console in a real browser: each page for each kind of user, by keyboard, at phone width, and with names that are
// markup.

import assert from 'node:assert/strict';
import { mkdir, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import test from 'node:test';

import { browser, emptyPages } from '../lib/browser.mjs';
import {
  EVIL,
  PASSWORDS,
  PNG,
  emptyServer,
  fullServer,
  grow,
  headers,
  keep,
  openConsole,
  tabTo,
  violations,
} from '../lib/console.mjs';
import { store } from '../lib/engines.mjs';
import { Server, expectOk, request, run, temporaryFolder } from '../lib/server.mjs';

const require = createRequire(import.meta.url);

const doc = (db, id) => `#/db/${db}/doc/${encodeURIComponent(id)}`;

const OF_DATABASES = ['', '/query', '/views', '/changes', '/conflicts', '/settings', '/new'].map(
  (part) => `#/db/notes${part}`,
);
const OF_DOCUMENTS = [
  doc('notes', 'tree'),
  `${doc('notes', 'tree')}?rev=2-${'e'.repeat(32)}`,
  doc('notes', 'files'),
  doc('notes', EVIL),
  doc('notes', 'gone'),
  doc('notes', '_design/posts'),
];
const VAULT = '#/db/vault/vault';
const OF_ADMINISTRATORS = ['#/replications', '#/backups', '#/users', '#/config', '#/server'];

/** The pages that each kind of user opens. The last one is not signed in. */
const USERS = {
  admin: ['#/', ...OF_DATABASES, ...OF_DOCUMENTS, VAULT, ...OF_ADMINISTRATORS, '#/signin'],
  owner: ['#/', ...OF_DATABASES, ...OF_DOCUMENTS, VAULT, ...OF_ADMINISTRATORS],
  member: ['#/', ...OF_DATABASES, ...OF_DOCUMENTS, VAULT, ...OF_ADMINISTRATORS],
  reader: [
    '#/',
    '#/signin',
    '#/db/public',
    '#/db/public/query',
    '#/db/public/views',
    '#/db/public/changes',
    '#/db/public/conflicts',
    '#/db/public/settings',
    doc('public', 'hello'),
    ...OF_ADMINISTRATORS,
  ],
};

const FORMS = [
  { name: 'light', colorScheme: 'light' },
  { name: 'dark', colorScheme: 'dark' },
  { name: 'phone', colorScheme: 'light', viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true },
];

test('each page is whole for each kind of user, in light, dark and at phone width', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server } = await fullServer(t);
  for (const [user, pages] of Object.entries(USERS)) {
    const wrong = [];
    for (const { name: form, ...options } of FORMS) {
      const { context, page, problems, visit, signIn } = await openConsole(started, server, options);
      if (user !== 'reader') await signIn(user);
      for (const hash of pages) {
        const where = `${user}, ${form}, ${hash}`;
        await visit(hash);
        if (hash.endsWith('/query')) {
          await page.getByLabel('The search as JSON').fill('{"selector": {"author": "ann", "year": {"$gt": 2018}}}');
          await page.getByRole('button', { name: 'Run' }).click();
          await page.getByRole('heading', { name: 'What the search read' }).waitFor();
        }
        if (hash.endsWith('/views') && !hash.includes('public')) {
          await page.getByRole('button', { name: 'Run' }).click();
          await page.getByRole('region', { name: 'Rows' }).waitFor();
          if (user !== 'member') {
            await page.getByRole('button', { name: 'New view' }).click();
            await page.getByRole('button', { name: 'Try it' }).click();
            await page.getByRole('region', { name: 'Rows of the trial' }).waitFor();
          }
        }
        if (hash === VAULT && user !== 'member') {
          await page.getByRole('button', { name: 'Examine the vault' }).click();
          await page.getByRole('region', { name: 'Devices' }).waitFor();
        }
        wrong.push(...(await violations(page)).map((one) => `${where}: ${one}`));
        const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        if (over > 0) wrong.push(`${where}: ${over} pixels too wide`);
        if (await page.evaluate(() => window.hacked)) wrong.push(`${where}: what a user stored ran`);
        await keep(page, `${user}-${form}-${hash.replace(/[^a-z]+/gi, '-').slice(1, 40) || 'databases'}`);
        wrong.push(...problems.splice(0).map((one) => `${where}: ${one}`));
      }
      await context.close();
    }
    assert.deepEqual(wrong, []);
  }
});

test('who is not an administrator is told so, and asks the server for nothing', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server } = await fullServer(t);
  const { page, visit, signIn } = await openConsole(started, server);
  await signIn('member');
  assert.equal(await page.getByRole('link', { name: 'Users' }).count(), 0);
  const asked = [];
  page.on('request', (one) => {
    if (!one.url().includes('/_utils/')) asked.push(`${one.method()} ${new URL(one.url()).pathname}`);
  });
  for (const hash of OF_ADMINISTRATORS) {
    await page.evaluate((to) => {
      location.hash = to;
    }, hash);
    await page.getByText('This page is for server administrators.').waitFor();
  }
  assert.deepEqual(asked, []);
  // What a member may not do is not offered.
  await visit('#/db/notes/settings');
  for (const name of ['Save', 'Compact', 'Drop this database', 'Purge'])
    assert.equal(await page.getByRole('button', { name }).count(), 0, name);
  await visit(doc('notes', '_design/posts'));
  assert.equal(await page.getByRole('button', { name: 'Save' }).count(), 0);
  // The owner of the database may.
  const owner = await openConsole(started, server);
  await owner.signIn('owner');
  await owner.visit('#/db/notes/settings');
  assert.equal(await owner.page.getByRole('button', { name: 'Compact' }).count(), 1);
  assert.equal(await owner.page.getByRole('button', { name: 'Drop this database' }).count(), 0);
  await owner.visit(doc('notes', '_design/posts'));
  assert.equal(await owner.page.getByRole('button', { name: 'Save' }).count(), 1);
});

test('what users store is shown as text and runs nowhere', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server } = await fullServer(t);
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  const sees = async (where) => {
    await page.getByText(EVIL.slice(0, 20)).filter({ visible: true }).first().waitFor();
    assert.equal(await page.evaluate(() => window.hacked), undefined, where);
    assert.equal(await page.evaluate(() => document.querySelectorAll('img[src=x], main script').length), 0, where);
  };
  for (const hash of [
    '#/db/notes',
    '#/db/notes/changes',
    doc('notes', EVIL),
    doc('notes', 'files'),
    '#/users',
    '#/replications',
  ]) {
    await visit(hash);
    await sees(hash);
  }
  await visit('#/db/notes');
  await page.getByLabel('Shown as').selectOption('text');
  await sees('as JSON');
  await page.getByLabel('Which documents').selectOption({ label: `Index ${EVIL} (year)` });
  await page.getByText('"year"').first().waitFor();
  await visit('#/db/notes/query');
  await page.getByLabel('The search as JSON').fill('{"selector": {"_id": {"$lt": "A"}}}');
  await page.getByRole('button', { name: 'Run' }).click();
  await sees('results of a search');
  await page.getByLabel('The search as JSON').fill('{"selector": {');
  await page.getByLabel('The search as JSON').press('End');
  await page.keyboard.type('"<');
  await page.getByRole('option', { name: EVIL.replaceAll('.', '\\.') }).waitFor();
  await sees('completions');
  await visit('#/db/notes/views');
  await page.getByLabel('View').selectOption({ label: `posts/${EVIL.replaceAll('/', '')}` });
  await page.getByRole('button', { name: 'Run' }).click();
  await page.getByRole('region', { name: 'Rows' }).waitFor();
  await sees('rows of a view');

  // Attachments: a preview shows the text of a page, and a picture runs no script.
  await visit(doc('notes', 'files'));
  await page.getByRole('button', { name: `Preview ${EVIL}` }).click();
  await page.getByText('<script>window.hacked = 1</script>').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  for (const name of ['evil.svg', 'red.png']) {
    await page.getByRole('button', { name: `Preview ${name}` }).click();
    const picture = page.getByRole('img', { name });
    await picture.waitFor();
    // By its own address, which the server confines.
    assert.ok((await picture.getAttribute('src')).startsWith(`${server.url}/notes/files/`));
    await picture.evaluate((image) => image.decode());
    await page.getByRole('button', { name: 'Close' }).click();
  }
  await sees('previews');
  assert.deepEqual(problems, []);

  // By its own address it has no origin and no scripts.
  for (const name of ['evil.svg', EVIL]) {
    await page.goto(`${server.url}/notes/files/${encodeURIComponent(name)}`);
    assert.equal(await page.evaluate(() => window.hacked), undefined, name);
    assert.equal(await page.evaluate(() => window.origin), 'null', name);
  }
});

test('the console runs no inline code, and is in no frame', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server } = await emptyServer(t);
  const { page, visit } = await openConsole(started, server);
  await visit('#/');
  await page.evaluate(() => {
    const script = document.createElement('script');
    script.textContent = 'window.inline = 1';
    document.body.append(script);
  });
  assert.equal(await page.evaluate(() => window.inline), undefined);
  await page.goto(await emptyPages(t));
  await page.evaluate(
    (source) =>
      new Promise((resolve) => {
        const frame = document.createElement('iframe');
        frame.onload = resolve;
        frame.src = source;
        document.body.append(frame);
      }),
    `${server.url}/_utils/`,
  );
  const framed = page.frames().find((one) => one !== page.mainFrame());
  assert.equal(await framed.evaluate(() => document.querySelectorAll('#side').length), 0);
});

test('a name that a browser cannot ask for is refused, and nothing else is asked for instead', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('POST', '/db/_bulk_docs', { docs: ['.', '..', '_design/..'].map((_id) => ({ _id })) });
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  await visit('#/db/db');
  for (const name of ['.', '..', '_design/..']) {
    await visit('#/db/db');
    await page.getByRole('link', { name, exact: true }).click();
    await page.getByRole('alert').getByText('A browser cannot ask for the name').waitFor();
  }
  assert.equal((await ask('GET', '/db')).doc_count, 3);
  assert.deepEqual(problems, []);
});

test('errors in a dialog are shown there', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  const { page, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  await visit('#/');
  await page.getByRole('button', { name: 'Create a database' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name', { exact: true }).fill('db');
  await page.keyboard.press('Enter');
  await dialog.getByRole('alert').getByText('already exists').waitFor();
  assert.deepEqual(await violations(page), []);
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
});

test('documents that the functions of a view fail on are listed', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('PUT', '/db/_design/posts', {
    views: { broken: { map: 'function (doc) { emit(doc.meta.lang, 1); }', reduce: '_sum' } },
  });
  await ask('POST', '/db/_bulk_docs', { docs: [{ _id: 'good', meta: { lang: 'en' } }, { _id: 'bad' }] });
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  await visit('#/db/db/views');
  await page.getByRole('button', { name: 'Run' }).click();
  await page.getByRole('row', { name: /^good/ }).waitFor();
  await page
    .getByRole('region', { name: 'Documents that functions failed on' })
    .getByRole('row', { name: /^bad/ })
    .waitFor();
  assert.deepEqual(await violations(page), []);
  // Reduced by its key.
  await page.getByRole('checkbox', { name: 'Reduce' }).check();
  await page.getByLabel('Group by key').check();
  await page.getByRole('button', { name: 'Run' }).click();
  await page.getByRole('row', { name: '"en" 1' }).waitFor();
  assert.deepEqual(problems, []);
});

test('a search is paged, ordered only by an index, and finds exact numbers', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('POST', '/db/_bulk_docs', { docs: Array.from({ length: 5 }, (_, at) => ({ _id: `d${at}`, at })) });
  const body = '{"_id": "large", "exact": 12345678901234567890}';
  await expectOk(`${server.url}/db/large`, { method: 'PUT', headers: headers(), body });
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  await visit('#/db/db/query');
  const search = async (text) => {
    await page.getByLabel('The search as JSON').fill(text);
    await page.getByRole('button', { name: 'Run' }).click();
  };
  await search('{"selector": {"at": {"$gte": 0}}, "limit": 2}');
  for (const id of ['d0', 'd2', 'd4']) {
    await page.getByRole('link', { name: id }).waitFor();
    if (id !== 'd4') await page.getByRole('button', { name: 'Next page' }).click();
  }
  await search('{"selector": {"at": {"$gte": 0}}, "sort": [{"at": "desc"}]}');
  await page.getByText('it asks for an order that no index has').waitFor();
  await page.getByRole('button', { name: 'Create this index' }).click();
  await page.getByText('rows of the index read').waitFor();
  await search('{"selector": {"exact": 12345678901234567890}}');
  await page.getByRole('link', { name: 'large' }).waitFor();
  await search('{"selector": {"$and": [{"at": 1}, {"at": 2}]}}');
  await page.getByText('No document matches.').waitFor();
  await search('{"selector": {"$or": []}}');
  await page.getByText('No document matches.').waitFor();
  assert.deepEqual(problems, []);
});

test('what changes something is not a request that pages of other sites may send without asking', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server } = await emptyServer(t);
  const { page, visit, signIn } = await openConsole(started, server);
  const changes = [];
  page.on('request', (one) => {
    if (one.method() !== 'GET') changes.push([one.method(), one.headers()]);
  });
  await signIn('admin');
  await page.getByRole('button', { name: 'Create a database' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name', { exact: true }).fill('made');
  await dialog.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByRole('heading', { name: 'made' }).waitFor();
  await visit('#/db/made/new');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('The document is stored.').waitFor();
  assert.deepEqual(
    changes.map(([method]) => method),
    ['POST', 'PUT', 'POST'],
  );
  for (const [method, sent] of changes) {
    assert.ok(method !== 'POST' || sent['content-type'] === 'application/json', method);
  }
});

test('a page of another origin changes nothing with the session of the console', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('PUT', '/db/_design/u', {
    updates: { make: "function (doc, req) { return [{_id: 'made by ' + req.body}, 'made'] }" },
  });
  const { page, signIn } = await openConsole(started, server);
  await signIn('admin');
  const post = (by) =>
    page.evaluate(
      ([url, body]) => fetch(url, { method: 'POST', body, credentials: 'include', mode: 'no-cors' }).then(() => null),
      [`${server.url}/db/_design/u/_update/make`, by],
    );
  await post('the console');
  const elsewhere = new URL(await emptyPages(t));
  // The same host at another port is the same site: the browser sends the cookie.
  elsewhere.hostname = '127.0.0.1';
  await page.goto(elsewhere.href);
  const answered = page.waitForResponse((one) => one.url().endsWith('/make'));
  await post('another page');
  assert.equal((await answered).status(), 403);
  const { rows } = await ask('GET', '/db/_all_docs?startkey="made"');
  assert.deepEqual(
    rows.map(({ id }) => id),
    ['made by the console'],
  );
});

test('all of it loads in under 150 KB, and comes from the server alone', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server } = await fullServer(t);
  const { context, page, visit, signIn } = await openConsole(started, server);
  const network = await context.newCDPSession(page);
  await network.send('Network.enable');
  let bytes = 0;
  const places = new Set();
  const files = new Set();
  network.on('Network.requestWillBeSent', ({ requestId, request: { url } }) => {
    if (url.startsWith(`${server.url}/_utils/`)) files.add(requestId);
  });
  network.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
    if (files.has(requestId)) bytes += encodedDataLength;
  });
  page.on('request', (one) => places.add(new URL(one.url()).origin));
  await signIn('admin');
  for (const hash of USERS.admin) await visit(hash);
  t.diagnostic(`${bytes} bytes of ${files.size} files`);
  assert.ok(files.size > 10 && bytes > 10_000 && bytes < 150_000, `${bytes} bytes of ${files.size} files`);
  places.delete('null');
  assert.deepEqual([...places], [server.url]);
});

test('the keyboard alone creates a database, writes a document, resolves a conflict and finds a slow query', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  const { page, problems } = await openConsole(started, server);
  const { keyboard } = page;
  await page.goto(`${server.url}/_utils/#/signin`);
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  await tabTo(page, 'Name');
  await keyboard.type('admin');
  await tabTo(page, 'Password');
  await keyboard.type(PASSWORDS.admin);
  await keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Databases' }).waitFor();

  await tabTo(page, 'Create a database');
  await keyboard.press('Enter');
  await tabTo(page, 'Name');
  await keyboard.type('keys');
  await keyboard.press('Enter');
  await page.getByRole('heading', { name: 'keys' }).waitFor();

  await tabTo(page, 'New document');
  await keyboard.press('Enter');
  await page.getByRole('heading', { name: 'New document' }).waitFor();
  await tabTo(page, 'The document as JSON');
  await keyboard.press('Control+a');
  await keyboard.type('{"_id": "typed", "by": "keys", "exact": 12345678901234567890}');
  await keyboard.press('Control+s');
  await page.getByRole('heading', { name: 'typed' }).waitFor();
  assert.match(
    (await request(`${server.url}/keys/typed`, { headers: headers() })).text,
    /"exact":12345678901234567890/,
  );

  // A conflict: from the list to the choice of a member.
  await grow(ask, 'keys', 'tree');
  await tabTo(page, 'Conflicts');
  await keyboard.press('Enter');
  await page.getByRole('link', { name: 'tree' }).waitFor();
  await tabTo(page, 'tree');
  await keyboard.press('Enter');
  await page.getByRole('heading', { name: '3 leaves are in conflict' }).waitFor();
  await tabTo(page, 'title: 3-ffffff (winner)');
  await keyboard.press('ArrowRight');
  await tabTo(page, 'Resolve the conflict');
  await keyboard.press('Enter');
  await page.getByText('The conflict is resolved.').waitFor();
  assert.equal((await ask('GET', '/keys/tree?conflicts=true'))._conflicts, undefined);
  assert.equal((await ask('GET', '/keys/tree')).title, 'of the phone');

  // A slow query, and the index for it, whose field is completed.
  await ask('POST', '/keys/_bulk_docs', {
    docs: Array.from({ length: 40 }, (_, at) => ({ author: at % 4 ? 'ann' : 'bob' })),
  });
  await tabTo(page, 'Query');
  await keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Search' }).waitFor();
  await tabTo(page, 'The search as JSON');
  await page.waitForLoadState('networkidle');
  await keyboard.press('Control+a');
  await keyboard.type('{"selector": {"auth');
  await page.getByRole('option', { name: 'author' }).waitFor();
  await keyboard.press('Enter');
  await keyboard.type(': "bob"}}');
  await keyboard.press('Control+Enter');
  await page.getByText('No index fits, so every document is read.').waitFor();
  await tabTo(page, 'Create this index');
  await keyboard.press('Enter');
  await page.getByText('rows of the index read').waitFor();
  const explained = await ask('POST', '/keys/_explain', { selector: { author: 'bob' } });
  assert.deepEqual(explained.index.def.fields, [{ author: 'asc' }]);
  assert.match(
    await page
      .getByRole('img', { name: /10 rows were read, at "bob", and 10 documents found/ })
      .getAttribute('aria-label'),
    /^Of 4\d documents/,
  );
  assert.deepEqual(problems, []);

  // Dropping asks for the name.
  await tabTo(page, 'Settings');
  await keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Drop' }).waitFor();
  await tabTo(page, 'Drop this database');
  await keyboard.press('Enter');
  await tabTo(page, 'Type keys to confirm');
  await keyboard.type('key');
  assert.equal(await page.getByRole('button', { name: 'Drop it' }).isDisabled(), true);
  await keyboard.type('s');
  await keyboard.press('Enter');
  await page.getByText('There is no database yet').waitFor();
  assert.equal((await request(`${server.url}/keys`, { headers: headers() })).status, 404);
});

test('both versions are side by side when somebody was faster', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  const { rev } = await ask('PUT', '/db/one', { title: 'first', n: 1 });
  const { page, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  await visit(doc('db', 'one'));
  await ask('PUT', '/db/one', { _rev: rev, title: 'theirs', n: 2 });
  const text = page.getByLabel('The document as JSON');
  await text.fill((await text.inputValue()).replace('"first"', '"mine"'));
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('heading', { name: 'Somebody was faster' }).waitFor();
  await keep(page, 'collision');
  assert.deepEqual(await violations(page), []);
  await page.getByRole('radio', { name: /^n: Stored now/ }).check();
  await page.getByRole('button', { name: 'Put the choice into the editor' }).click();
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('The document is stored.').waitFor();
  const stored = await ask('GET', '/db/one');
  assert.deepEqual([stored.title, stored.n, stored._rev.slice(0, 2)], ['mine', 2, '3-']);
});

test('leaves are resolved member by member, with attachments of any leaf', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await grow(ask, 'db', 'tree');
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  await visit(doc('db', 'tree'));
  // The tree: a winner, two leaves in conflict, a tombstone, and the revisions that they replaced.
  const drawn = page.getByRole('group', { name: 'Tree of revisions with 4 leaves' });
  for (const [kind, number] of [
    ['winner', 1],
    ['conflict', 2],
    ['tombstone', 1],
    ['inner', 2],
  ]) {
    assert.equal(await drawn.locator(`.node.${kind}`).count(), number, kind);
  }
  await page.getByRole('radio', { name: 'colour: 2-eeeeee' }).check();
  await page.getByRole('radio', { name: '_attachments: 2-eeeeee' }).check();
  await page.getByRole('radio', { name: 'extra: 3-cccccc' }).check();
  await page.getByRole('button', { name: 'Resolve the conflict' }).click();
  await page.getByText('The conflict is resolved.').waitFor();
  const { _rev: rev, _attachments: files, ...merged } = await ask('GET', '/db/tree');
  assert.deepEqual(merged, { _id: 'tree', title: 'of the winner', colour: 'red', same: true, extra: [1, 2] });
  assert.match(rev, /^4-/);
  assert.deepEqual(Object.keys(files), ['note.txt']);
  assert.equal((await request(`${server.url}/db/tree/note.txt`, { headers: headers() })).text, 'kept');
  const leaves = await ask('GET', '/db/tree?open_revs=all');
  assert.deepEqual(
    leaves.filter(({ ok }) => !ok._deleted).map(({ ok }) => ok._rev),
    [rev],
  );
  assert.deepEqual(problems, []);
});

test('changes are shown as they come, and those during a pause after it', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('PUT', '/db/before', { type: 'a' });
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  await visit('#/db/db/changes');
  await page.getByRole('link', { name: 'before' }).waitFor();
  await ask('PUT', '/db/live', { type: 'a' });
  await page.getByRole('link', { name: 'live' }).waitFor();
  await page.getByRole('button', { name: 'Pause' }).click();
  await ask('PUT', '/db/meanwhile', { type: 'b' });
  await page.getByRole('button', { name: 'Resume' }).waitFor();
  assert.equal(await page.getByRole('link', { name: 'meanwhile' }).count(), 0);
  await page.getByRole('button', { name: 'Resume' }).click();
  await page.getByRole('link', { name: 'meanwhile' }).waitFor();
  await page.getByLabel('Filter').selectOption('_selector');
  await page.getByLabel('Selector').fill('{"type": "b"}');
  await page.getByRole('button', { name: 'Apply' }).click();
  await page.getByRole('link', { name: 'before' }).waitFor({ state: 'detached' });
  await ask('PUT', '/db/other', { type: 'a' });
  await ask('PUT', '/db/fitting', { type: 'b' });
  await page.getByRole('link', { name: 'fitting' }).waitFor();
  assert.equal(await page.getByRole('link', { name: 'other' }).count(), 0);
  assert.deepEqual(problems, []);
});

test('attachments go up and down', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('PUT', '/db/one', {});
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  await visit(doc('db', 'one'));
  await page.getByLabel('Drop files here, or choose them').setInputFiles([
    { name: 'a b/ü.png', mimeType: 'image/png', buffer: PNG },
    { name: 'two.txt', mimeType: 'text/plain', buffer: Buffer.from('two') },
  ]);
  await page.getByRole('button', { name: 'Upload' }).click();
  await page.getByText('2 attachments are stored.').waitFor();
  assert.equal((await request(`${server.url}/db/one/two.txt`, { headers: headers() })).text, 'two');
  const [download] = await Promise.all([
    page.waitForEvent('download'),
    page.getByRole('link', { name: 'Download two.txt' }).click(),
  ]);
  assert.equal(download.suggestedFilename(), 'two.txt');
  // Dragged out of the window.
  const dragged = await page.getByRole('link', { name: 'Download two.txt' }).evaluate((one) => {
    const event = new DragEvent('dragstart', { dataTransfer: new DataTransfer(), bubbles: true });
    one.dispatchEvent(event);
    return event.dataTransfer.getData('DownloadURL');
  });
  const [, address] = /^text\/plain:two\.txt:(http.*)$/.exec(dragged);
  assert.equal(new URL(address).pathname, '/db/one/two.txt');
  await page.getByRole('button', { name: 'Delete two.txt' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('button', { name: 'Delete two.txt' }).waitFor({ state: 'detached' });
  // Dropped on the page.
  await page.locator('.drop').evaluate((zone) => {
    const files = new DataTransfer();
    files.items.add(new File(['dropped'], 'dropped.txt', { type: 'text/plain' }));
    zone.dispatchEvent(new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true }));
  });
  await page.getByRole('button', { name: 'Preview dropped.txt' }).click();
  await page.getByRole('dialog').getByText('dropped', { exact: true }).waitFor();
  assert.equal(Object.keys((await ask('GET', '/db/one'))._attachments).length, 2);
  assert.deepEqual(problems, []);
});

test('users, settings and replications are made, changed and ended', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/from');
  await ask('PUT', '/from/one', {});
  await ask('PUT', '/_node/_local/_config/chttpd_auth/secret', '"0123456789abcdef"');
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('admin');

  await visit('#/users');
  await page.getByRole('button', { name: 'New user' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name').fill('zoe');
  await dialog.getByLabel('Password').fill('of zoe');
  await dialog.getByLabel('Roles').fill('staff\nnight, or day');
  await dialog.getByRole('button', { name: 'Create' }).click();
  await page.getByRole('cell', { name: 'staff, night, or day' }).waitFor();
  await expectOk(`${server.url}/_session`, { method: 'POST', body: { name: 'zoe', password: 'of zoe' } });

  await visit('#/config');
  await page.getByRole('button', { name: 'Change couchdb/max_bulk_docs_count' }).click();
  await dialog.getByLabel('Value').fill('500');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByText('It counts at once.').waitFor();
  assert.equal(await ask('GET', '/_node/_local/_config/couchdb/max_bulk_docs_count'), '500');
  await page.getByRole('row', { name: /^secret .* not shown/ }).waitFor();
  assert.equal((await page.content()).includes('0123456789abcdef'), false);

  await visit('#/replications');
  await page.getByRole('button', { name: 'Begin a replication' }).click();
  const sides = dialog.getByLabel('Database');
  // One side is a database here, by its name, with the rights of who begins it.
  await sides.first().fill('from');
  await sides.last().fill(`${server.url}/to`);
  await dialog.getByLabel('User').last().fill('admin');
  await dialog.getByLabel('Password').last().fill(PASSWORDS.admin);
  await dialog.getByLabel('Create the target').check();
  await dialog.getByLabel('Continuously').check();
  await dialog.getByLabel('Name of the document').fill('copy');
  await dialog.getByRole('button', { name: 'Begin', exact: true }).click();
  await page.getByText('running').waitFor();
  await page.getByRole('cell', { name: 'from → to' }).waitFor();
  await expectOk(`${server.url}/to/_changes?feed=longpoll&since=0`, { headers: headers() });
  assert.equal((await request(`${server.url}/to/one`, { headers: headers() })).status, 200);
  assert.equal((await page.content()).includes(PASSWORDS.admin), false);
  await page.getByRole('button', { name: 'Stop copy' }).click();
  await dialog.getByRole('button', { name: 'Stop it' }).click();
  await page.getByText('There are no replications.').waitFor();
  assert.deepEqual(problems, []);
});

test('who was signed out meanwhile signs in and goes on there', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('PUT', '/db/_design/guard', {
    validate_doc_update: "function (doc) { if (doc.refused) throw({unauthorized: 'not so'}); }",
  });
  await ask('PUT', '/db/_security', { admins: {}, members: { names: ['admin'] } });
  const { context, page, visit, signIn } = await openConsole(started, server);
  await signIn('admin');
  // A function refuses with the same status. The session goes on.
  await visit('#/db/db/new');
  await page.getByLabel('The document as JSON').fill('{"refused": true}');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('alert').getByText('not so').waitFor();
  assert.equal(await page.getByRole('heading', { name: 'New document' }).count(), 1);

  await context.clearCookies();
  await page.getByRole('link', { name: 'Views' }).click();
  await page.getByRole('button', { name: 'Leave without saving' }).click();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  await page.getByLabel('Name').fill('admin');
  await page.getByLabel('Password').fill('wrong');
  await page.keyboard.press('Enter');
  await page.getByRole('alert').getByText('Name or password is incorrect').waitFor();
  await page.getByLabel('Password').fill(PASSWORDS.admin);
  await page.keyboard.press('Enter');
  await page.getByText('The database has no views.').waitFor();
});

test('a server without an administrator gets one', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const server = (await Server.start(await store(t, 'lsm'))).endWith(t);
  const { page, problems, visit } = await openConsole(started, server);
  await visit('#/');
  await page.getByText('This server has no administrator').waitFor();
  for (const hash of ['#/server', '#/users', '#/config', '#/replications']) await visit(hash);
  // What is not for everybody on this machine is not offered.
  await visit('#/config');
  await page.getByText('This page is for an administrator, and this server has none').waitFor();
  await visit('#/users');
  await page.getByText('This page is for an administrator, and this server has none').waitFor();
  await visit('#/server');
  assert.equal(await page.getByRole('log').count(), 0);
  assert.deepEqual(problems, []);

  await page.getByRole('link', { name: 'Name an administrator' }).first().click();
  await page.getByLabel('Name', { exact: true }).fill('first');
  await page.getByLabel('Password').fill('of the first');
  await page.getByLabel('Token').fill('0'.repeat(32));
  await page.getByRole('button', { name: 'Name this administrator' }).click();
  await page.getByRole('alert').getByText('not the token that the server printed').waitFor();
  assert.deepEqual(await violations(page), []);
  await keep(page, 'first-administrator');
  problems.splice(0);

  // The address that the server printed brings the token, and keeps it nowhere, also if the server does not answer.
  const { setupToken } = server;
  await page.goto('about:blank');
  await page.route('**/_session', (route) => route.abort());
  await page.goto(`${server.url}/_utils/#/signin?token=${setupToken}`);
  await page.getByRole('button', { name: 'Try again' }).waitFor();
  assert.equal(await page.evaluate(() => location.hash), '#/signin');
  await page.unroute('**/_session');
  await page.goto('about:blank');
  problems.splice(0);
  await page.goto(`${server.url}/_utils/#/signin?token=${setupToken}`);
  await page.waitForFunction(() => location.hash === '#/signin');
  assert.equal(await page.getByLabel('Token').inputValue(), setupToken);
  await page.getByLabel('Name', { exact: true }).fill('first');
  await page.getByLabel('Password').fill('of the first');
  await page.getByRole('button', { name: 'Name this administrator' }).click();
  await page.getByText('Signed in as first').waitFor();
  assert.deepEqual(problems, []);
  const kept = await page.evaluate(() => JSON.stringify([location.href, { ...localStorage }, { ...sessionStorage }]));
  assert.equal(kept.includes(setupToken), false);
  const again = { method: 'PUT', body: '"x"', headers: { 'x-couch-layer-setup-token': setupToken } };
  assert.equal((await request(`${server.url}/_node/_local/_config/admins/late`, again)).status, 401);
  assert.equal((await request(`${server.url}/_all_dbs`)).status, 401);
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByText('Open a database that everybody may read').waitFor();
});

test('a folder is served instead, if it has a console', async (t) => {
  const folder = await temporaryFolder(t);
  const pages = path.join(folder, 'pages');
  await mkdir(pages);
  const refused = await run(['serve', '--engine', 'mem:', '--listen', '127.0.0.1:0', '--utils', pages]);
  assert.notEqual(refused.code, 0);
  assert.match(refused.stderr, /has no index\.html/);
  await writeFile(path.join(pages, 'index.html'), '<title>another</title>');
  const server = (await Server.start('mem:', { args: ['--utils', pages] })).endWith(t);
  assert.match((await request(`${server.url}/_utils/`)).text, /another/);
  assert.equal((await request(`${server.url}/_utils/main.js`)).status, 404);
});

test('Fauxton works from a folder', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const folder = path.join(path.dirname(require.resolve('pouchdb-fauxton/package.json')), 'www');
  const { server, ask } = await emptyServer(t, ['--utils', folder]);
  await ask('PUT', '/db');
  await ask('PUT', '/db/one', { of: 'a document' });
  const page = await (await started.newContext()).newPage();
  const problems = [];
  page.on('console', (message) => {
    if (message.type() === 'error') problems.push(message.text());
  });
  page.on('pageerror', (error) => problems.push(error.message));
  await page.goto(`${server.url}/_utils/`);
  await page.getByPlaceholder('Username').fill('admin');
  await page.getByPlaceholder('Password').fill(PASSWORDS.admin);
  await page.keyboard.press('Enter');
  await page.getByText('Create Database').waitFor();
  const pages = [
    ['database/db/_all_docs', 'Run A Query with Mango'],
    ['database/db/one', 'Save Changes'],
    ['database/db/_find', 'Mango Query'],
    ['database/db/permissions', 'Permissions'],
    ['_config', 'max_document_size'],
    ['activetasks', 'No active tasks.'],
  ];
  for (const [hash, text] of pages) {
    await page.goto(`${server.url}/_utils/#/${hash}`);
    await page.getByText(text).first().waitFor();
  }
  assert.deepEqual(problems, []);
});

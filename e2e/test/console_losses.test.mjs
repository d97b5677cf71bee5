// What the console must not lose or give away: edits, leaves, attachments, digits, secrets.

import assert from 'node:assert/strict';
import test from 'node:test';

import { browser } from '../lib/browser.mjs';
import { PASSWORDS, emptyServer, grow, headers, openConsole, violations } from '../lib/console.mjs';
import { expectOk, request } from '../lib/server.mjs';

const doc = (db, id) => `#/db/${db}/doc/${encodeURIComponent(id)}`;

/** The server's own databases may be there. */
const already = (error) => {
  if (!/412/.test(error.message)) throw error;
};

/** A server with a database that everybody may read and write, and the console of its administrator. */
async function opened(t) {
  const started = await browser(t);
  if (!started) return null;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('PUT', '/db/_security', { admins: {}, members: {} });
  await ask('PUT', '/_users').catch(already);
  const user = { name: 'member', password: PASSWORDS.member, roles: [], type: 'user' };
  await ask('PUT', '/_users/org.couchdb.user:member', user);
  const console_ = await openConsole(started, server);
  await console_.signIn('admin');
  const raw = async (at) => (await request(server.url + at, { headers: headers() })).text;
  const text = console_.page.getByLabel('The document as JSON');
  const save = console_.page.getByRole('button', { name: 'Save' });
  return { ...console_, server, ask, raw, text, save, alert: console_.page.getByRole('alert') };
}

test('a conflict keeps all leaves if its winner cannot be stored', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit, alert } = all;
  await grow(ask, 'db', 'tree');
  await visit(doc('db', 'tree'));
  await page.getByRole('radio', { name: 'title: 3-cccccc' }).check();
  const { _rev: rev } = await ask('GET', '/db/tree');
  await ask('PUT', '/db/tree', { _rev: rev, title: 'newer' });
  await page.getByRole('button', { name: 'Resolve the conflict' }).click();
  await alert.getByText('Nothing was changed').waitFor();
  assert.equal(await page.getByRole('radio', { name: 'title: 3-cccccc' }).isChecked(), true);
  const leaves = await ask('GET', '/db/tree?open_revs=all');
  assert.deepEqual(
    leaves
      .filter(({ ok }) => !ok._deleted)
      .map(({ ok }) => ok.title)
      .sort(),
    ['newer', 'of the phone', 'of the winner'],
  );
  await page.getByRole('button', { name: 'Read the leaves again' }).click();
  await page.getByRole('radio', { name: /^title: 4-/ }).check();
  await page.getByRole('button', { name: 'Resolve the conflict' }).click();
  await page.getByText('The conflict is resolved.').waitFor();
  assert.equal((await ask('GET', '/db/tree')).title, 'newer');
});

test('an edit outlives the end of its session, and is stored as the user who began it', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { context, ask, page, visit, text, save, alert } = all;
  await ask('PUT', '/db/one', { title: 'first' });
  await visit(doc('db', 'one'));
  const edited = (await text.inputValue()).replace('first', 'typed');
  await text.fill(edited);
  await context.clearCookies();
  await save.click();
  const dialog = page.getByRole('dialog', { name: 'Sign in' });
  await dialog.waitFor();
  assert.deepEqual(await violations(page), []);
  // The database is open, and yet nothing was stored in nobody's name.
  assert.equal((await ask('GET', '/db/one')).title, 'first');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await save.click();
  await alert.getByText('admin opened this page, and nobody is signed in now').waitFor();
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  assert.equal((await ask('GET', '/db/one')).title, 'first');

  // Another user, signed in by another page of this browser.
  await page.evaluate(
    (body) => fetch('/_session', { method: 'POST', body, headers: { 'content-type': 'application/json' } }),
    JSON.stringify({ name: 'member', password: PASSWORDS.member }),
  );
  await save.click();
  await alert.getByText('member is signed in now').waitFor();
  assert.equal((await ask('GET', '/db/one')).title, 'first');
  assert.equal(await text.inputValue(), edited);

  await page.evaluate(
    (body) => fetch('/_session', { method: 'POST', body, headers: { 'content-type': 'application/json' } }),
    JSON.stringify({ name: 'admin', password: PASSWORDS.admin }),
  );
  await save.click();
  await page.getByText('The document is stored.').waitFor();
  assert.equal((await ask('GET', '/db/one')).title, 'typed');

  // Signed in over the page.
  const { _rev: rev } = await ask('GET', '/db/one');
  await page.getByText(rev, { exact: true }).first().waitFor();
  await text.fill((await text.inputValue()).replace('typed', 'typed again'));
  await context.clearCookies();
  await save.click();
  await dialog.getByLabel('Name').fill('admin');
  await dialog.getByLabel('Password').fill(PASSWORDS.admin);
  await page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'detached' });
  await Promise.all([page.waitForResponse((one) => one.request().method() === 'PUT'), save.click()]);
  assert.equal((await ask('GET', '/db/one')).title, 'typed again');
});

test('an edit is not lost by a link, by work on attachments or leaves, or while it is stored', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit, text, save, alert } = all;
  await grow(ask, 'db', 'tree');
  await visit(doc('db', 'tree'));
  const edited = (await text.inputValue()).replace('of the winner', 'edited');
  await text.fill(edited);
  await page.getByRole('button', { name: 'Resolve the conflict' }).click();
  await alert.getByText('Your edit is not stored yet').first().waitFor();
  await page
    .getByLabel('Drop files here, or choose them')
    .setInputFiles([{ name: 'two.txt', mimeType: 'text/plain', buffer: Buffer.from('two') }]);
  await page.getByRole('button', { name: 'Upload' }).click();
  await alert.getByText('Your edit is not stored yet').nth(1).waitFor();
  assert.equal((await ask('GET', '/db/tree?conflicts=true'))._conflicts.length, 2);

  const address = page.url();
  const dialog = page.getByRole('dialog', { name: 'Leave this page' });
  const leaves = [
    () => page.getByRole('link', { name: 'Views' }).click(),
    () => page.goBack(),
    () => page.getByRole('button', { name: 'Sign out' }).click(),
  ];
  for (const leave of leaves) {
    await leave();
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await dialog.waitFor({ state: 'detached' });
    assert.deepEqual([await text.inputValue(), page.url()], [edited, address]);
  }
  // Closing the tab asks too.
  const asked = await page.evaluate(() => !window.dispatchEvent(new Event('beforeunload', { cancelable: true })));
  assert.equal(asked, true);

  // What is typed while an edit is on its way stays, and is based on it.
  let go;
  const held = new Promise((resolve) => {
    go = resolve;
  });
  await page.route('**/db/tree', async (route) => {
    if (route.request().method() === 'PUT') await held;
    await route.continue();
  });
  const sent = page.waitForRequest((one) => one.method() === 'PUT');
  await text.press('Control+s');
  await sent;
  await text.fill(edited.replace('edited', 'edited twice'));
  go();
  await page.getByText('What you typed since then is not, yet.').waitFor();
  assert.equal((await ask('GET', '/db/tree')).title, 'edited');
  assert.match(await text.inputValue(), /edited twice/);
  await save.click();
  await page.getByText('The document is stored.', { exact: true }).waitFor();
  const { title, _rev: rev } = await ask('GET', '/db/tree');
  assert.deepEqual([title, rev.slice(0, 2)], ['edited twice', '5-']);

  // An _id is not a member that an edit can change.
  await page.getByText(rev, { exact: true }).first().waitFor();
  await text.fill((await text.inputValue()).replace('"tree"', '"other"'));
  await save.click();
  await alert.getByText('An _id cannot change').waitFor();
  await page.getByRole('link', { name: 'Views' }).click();
  await dialog.getByRole('button', { name: 'Leave without saving' }).click();
  await page.getByText('The database has no views.').waitFor();
});

test('an answer that comes after its page was left moves nothing', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit, text } = all;
  await ask('PUT', '/db/one', { title: 'first' });
  await visit(doc('db', 'one'));
  let go;
  const held = new Promise((resolve) => {
    go = resolve;
  });
  await page.route('**/db/one', async (route) => {
    if (route.request().method() === 'PUT') await held;
    await route.continue();
  });
  await text.fill((await text.inputValue()).replace('first', 'second'));
  const sent = page.waitForRequest((one) => one.method() === 'PUT');
  await text.press('Control+s');
  await sent;
  await page.getByRole('link', { name: 'Views' }).click();
  await page.getByRole('button', { name: 'Leave without saving' }).click();
  await page.getByText('The database has no views.').waitFor();
  await page.getByRole('button', { name: 'New view' }).click();
  const area = page.getByLabel('The design document as JSON');
  await area.fill('{"typed": true}');
  go();
  await page.getByText('The document is stored.').waitFor();
  assert.equal((await ask('GET', '/db/one')).title, 'second');
  assert.equal(await area.inputValue(), '{"typed": true}');

  const places = await page.evaluate(async () => {
    const { placeOf } = await import('/_utils/document.js');
    return [
      placeOf('{"_id": "a", "_rev" : "1-a", "x": {"_rev": "1-b"}}', '"1-a"'),
      placeOf('{"x": {"_rev": "1-a"}, "_rev": "1-a"}', '"1-a"'),
      placeOf('{"_rev": "1-b"}', '"1-a"'),
      placeOf('{}', undefined),
    ];
  });
  assert.deepEqual(places, [[22, 27], null, null, null]);
});

test('attachments that no address can name are listed, and deleted alone', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit } = all;
  const file = { content_type: 'text/plain', data: btoa('x') };
  const names = ['', '.', '..', 'plain'];
  const answer = await ask('POST', '/db/_bulk_docs', {
    docs: [{ _id: 'one', kept: true, _attachments: Object.fromEntries(names.map((name) => [name, file])) }],
  });
  assert.ok(answer[0].rev, JSON.stringify(answer));
  const deleted = [];
  page.on('request', (one) => one.method() === 'DELETE' && deleted.push(one.url()));
  await visit(doc('db', 'one'));
  for (const [at, name] of names.slice(0, 3).entries()) {
    await page
      .getByRole('button', { name: `Delete ${name}`.trim(), exact: true })
      .first()
      .waitFor();
    const row = page.getByRole('row', { name: `“${name}”: no address can have this name` });
    assert.equal(await row.getByRole('link').count(), 0);
    await row.getByRole('button', { name: /^Delete/ }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await row.waitFor({ state: 'detached' });
    const { kept, _attachments: left } = await ask('GET', '/db/one');
    assert.deepEqual([kept, Object.keys(left).sort()], [true, names.slice(at + 1).sort()]);
  }
  assert.deepEqual(deleted, []);
});

test('a security object is stored over no other version, with its names and digits', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { server, ask, page, visit, raw, alert } = all;
  const put = (body) => expectOk(`${server.url}/db/_security`, { method: 'PUT', headers: headers(), body });
  const digits = '"exact":12345678901234567890,"one":1.0';
  await put(`{"admins":{"names":["a, b"]},"members":{"names":["c"," d "],"roles":[]},${digits}}`);
  await visit('#/db/db/settings');
  const store = page.getByRole('button', { name: 'Save', exact: true });
  const members = page.getByRole('group', { name: 'Members' });
  const names = members.getByLabel('Names');
  assert.equal(await names.inputValue(), 'c\n d ');
  await names.fill('c\n d \ne, f');
  await store.click();
  await page.getByText('Stored.', { exact: true }).waitFor();
  const stored = await raw('/db/_security');
  assert.match(stored, /"exact":12345678901234567890/);
  assert.match(stored, /"one":1\.0/);
  assert.deepEqual(JSON.parse(stored).admins, { names: ['a, b'] });
  assert.deepEqual(JSON.parse(stored).members, { names: ['c', ' d ', 'e, f'], roles: [] });

  // Somebody else stores one.
  await names.fill('only me');
  await put('{"admins":{},"members":{"names":["theirs"]}}');
  await store.click();
  await alert.getByText('Somebody stored another version').waitFor();
  await page.getByRole('region', { name: 'Stored now' }).getByText('theirs').waitFor();
  assert.deepEqual((await ask('GET', '/db/_security')).members.names, ['theirs']);
  await page.getByRole('button', { name: 'Begin with what is stored now' }).click();
  await page.getByRole('region', { name: 'Stored now' }).waitFor({ state: 'detached' });

  // Without a member it would be open.
  await names.fill('');
  await store.click();
  const dialog = page.getByRole('dialog', { name: 'Open the database' });
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  assert.deepEqual((await ask('GET', '/db/_security')).members.names, ['theirs']);
});

test('digits stay as they are in users, keys and selectors', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { server, ask, page, visit, raw } = all;
  const exact = '12345678901234567890';
  await expectOk(`${server.url}/_users/org.couchdb.user:zoe`, {
    method: 'PUT',
    headers: headers(),
    body: `{"name":"zoe","password":"x","type":"user","roles":["a, b"],"exact":${exact},"one":1.0}`,
  });
  await visit('#/users');
  await page.getByRole('button', { name: 'Change zoe' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Roles').fill('a, b\nc');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('cell', { name: 'a, b, c' }).waitFor();
  const stored = await raw('/_users/org.couchdb.user:zoe');
  assert.ok(stored.includes(`"exact":${exact}`) && stored.includes('"one":1.0'), stored);
  assert.deepEqual(JSON.parse(stored).roles, ['a, b', 'c']);

  await ask('PUT', '/db/_design/v', { views: { all: { map: 'function (doc) { emit(doc.n, null); }' } } });
  await visit('#/db/db/views');
  await page.getByLabel('First key').fill(exact);
  const [query] = await Promise.all([
    page.waitForRequest((one) => one.url().endsWith('/_view/all')),
    page.getByRole('button', { name: 'Run' }).click(),
  ]);
  assert.match(query.postData(), new RegExp(`"startkey":${exact}[,}]`));

  // A page of a view begins where the last one ended, by the text of that key.
  await ask('POST', '/db/_bulk_docs', { docs: Array.from({ length: 30 }, (_, at) => ({ _id: `d${at + 10}`, n: 1 })) });
  await page.route('**/_view/all', async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, body: (await answer.text()).replaceAll('"key":1,', `"key":${exact},`) });
  });
  await visit('#/db/db');
  await page.getByLabel('Which documents').selectOption({ label: 'View v/all' });
  await page.getByRole('columnheader', { name: 'Key' }).waitFor();
  const [paged] = await Promise.all([
    page.waitForRequest((one) => one.url().endsWith('/_view/all')),
    page.getByRole('button', { name: 'Next' }).click(),
  ]);
  assert.match(paged.postData(), new RegExp(`"startkey":${exact},"startkey_docid":"d`));

  await visit('#/db/db/changes');
  await page.getByLabel('Filter').selectOption('_selector');
  await page.getByLabel('Selector').fill(`{"n": ${exact}}`);
  const [followed] = await Promise.all([
    page.waitForRequest((one) => one.method() === 'POST' && one.url().includes('/_changes')),
    page.getByRole('button', { name: 'Apply' }).click(),
  ]);
  assert.equal(followed.postData(), `{"selector":{"n": ${exact}}}`);
});

test('a text that is not a document is neither copied nor does it stop the page', { timeout: 120_000 }, async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit, text } = all;
  await ask('PUT', '/db/one', {});
  await visit(doc('db', 'one'));
  const posted = [];
  page.on('request', (one) => one.method() === 'POST' && posted.push(one.url()));
  await text.fill(`{"a": "${'a'.repeat(100)}`);
  await page.getByRole('button', { name: 'Copy' }).click();
  await page.locator('#said.wrong').waitFor();
  assert.deepEqual(posted, []);
  // Backtracking would try each of 2^100 partitions.
  const found = await page.evaluate(async () => {
    const { members, pretty } = await import('/_utils/json.js');
    const open = `{"a": "${'a'.repeat(100)}`;
    return [[...members(open)].length, pretty(String.raw`{"a\"\\":"b\\\"c\\"}`)];
  });
  assert.deepEqual(found, [
    0,
    String.raw`{
  "a\"\\": "b\\\"c\\"
}`,
  ]);
});

test('a replication whose address is none hides no other one', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { server, ask, page, visit } = all;
  const put = (id, source) => ask('PUT', `/_replicator/${id}`, { source, target: 'db', continuous: true });
  await ask('PUT', '/_replicator').catch(already);
  await put('wrong', `${server.url}/%zz`);
  await put('right', `http://ann:p@ss@127.0.0.1:1/none`).catch(() => put('right', 'http://127.0.0.1:1/none'));
  await visit('#/replications');
  for (const id of ['wrong', 'right']) await page.getByRole('link', { name: id }).waitFor();
  assert.doesNotMatch(await page.content(), /p@ss|ss@127/);
});

test('one long poll at a time follows the changes', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit } = all;
  await ask('PUT', '/db/one', {});
  const open = new Set();
  page.on('request', (one) => one.url().includes('feed=longpoll') && open.add(one));
  for (const event of ['requestfinished', 'requestfailed']) page.on(event, (one) => open.delete(one));
  await visit('#/db/db/changes');
  const kind = page.getByLabel('Filter');
  await kind.evaluate((select) => {
    for (let times = 0; times < 6; times += 1) {
      select.value = times % 2 ? '' : '_design';
      select.dispatchEvent(new Event('change'));
    }
  });
  await page.getByRole('link', { name: 'one' }).waitFor();
  await ask('PUT', '/db/two', {});
  await page.getByRole('link', { name: 'two' }).waitFor();
  // The last one ends by the pause, and none is left.
  await Promise.all([
    page.waitForEvent('requestfailed', (one) => one.url().includes('feed=longpoll')),
    page.getByRole('button', { name: 'Pause' }).click(),
  ]);
  assert.equal(open.size, 0);
});

test('members that only the other one changed are taken from there, and long values show where they differ', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit, text, save } = all;
  const long = 'x'.repeat(5_000);
  const { rev } = await ask('PUT', '/db/one', { title: 'first', theirs: 1, long: `${long}a` });
  await visit(doc('db', 'one'));
  await ask('PUT', '/db/one', { _rev: rev, title: 'first', theirs: 2, long: `${long}b`, added: true });
  await text.fill((await text.inputValue()).replace('"first"', '"mine"').replace('xa"', 'xc"'));
  await save.click();
  await page.getByRole('heading', { name: 'Somebody was faster' }).waitFor();
  const checked = (name) => page.getByRole('radio', { name }).isChecked();
  assert.equal(await checked('title: Yours'), true);
  assert.equal(await checked(/^theirs: Stored now/), true);
  assert.equal(await checked(/^added: Stored now/), true);
  assert.equal(await checked('long: Yours'), true);
  for (const end of ['c', 'b'])
    assert.ok((await page.getByRole('row', { name: /^long/ }).textContent()).includes(`x${end}"`), end);
  await page.getByRole('button', { name: 'Put the choice into the editor' }).click();
  await save.click();
  await page.getByText('The document is stored.').waitFor();
  const stored = await ask('GET', '/db/one');
  assert.deepEqual([stored.title, stored.theirs, stored.added], ['mine', 2, true]);
});

test('lists show no secrets, and nothing of the databases stays after signing out', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit } = all;
  await ask('PUT', '/_replicator').catch(already);
  await ask('PUT', '/_replicator/copy', {
    source: { url: 'http://127.0.0.1:1/a', auth: { basic: { username: 'ann', password: 'of ann' } } },
    target: 'http://ben:ofben@127.0.0.1:1/b',
    headers: { 'x-key': 'of the header' },
  });
  const { salt, derived_key: key } = await ask('GET', '/_users/org.couchdb.user:member');
  assert.ok(salt && key);
  const secrets = [salt, key, 'of ann', 'ofben', 'of the header'];
  for (const db of ['_users', '_replicator']) {
    await visit(`#/db/${db}`);
    for (const form of ['table', 'text']) {
      await page.getByLabel('Shown as').selectOption(form);
      await page
        .getByRole('link', { name: db === '_users' ? 'org.couchdb.user:member' : 'copy' })
        .first()
        .waitFor();
      const shown = await page.content();
      for (const one of secrets) assert.equal(shown.includes(one), false, `${one} in ${db} as ${form}`);
    }
  }
  // Configuration: no administrators, and no value that the console does not know.
  await ask('PUT', '/_node/_local/_config/chttpd/of_somebody', '"not for lists"');
  const asked = [];
  page.on('request', (one) => asked.push(new URL(one.url()).pathname));
  await visit('#/config');
  await page.getByRole('row', { name: /^max_document_size .* 8000000/ }).waitFor();
  await page.getByRole('row', { name: /^of_somebody .* not shown/ }).waitFor();
  assert.equal((await page.content()).includes('not for lists'), false);
  assert.ok(
    asked.every((path) => !/_config(\/admins.*)?$/.test(path)),
    asked.join(),
  );

  // An administrator who is named again would get another password.
  await visit('#/users');
  await page.getByRole('button', { name: 'Name an administrator' }).click();
  const named = page.getByRole('dialog', { name: 'Name an administrator' });
  await named.getByLabel('Name').fill('admin');
  await named.getByLabel('Password').fill('another');
  await named.getByRole('button', { name: 'Name this administrator' }).click();
  await page.getByRole('dialog', { name: 'Replace a password' }).getByRole('button', { name: 'Cancel' }).click();
  await named.getByRole('button', { name: 'Cancel' }).click();
  await ask('GET', '/_all_dbs');

  await visit('#/db/db');
  const kept = () => page.evaluate(() => JSON.stringify({ ...localStorage }));
  assert.match(await kept(), /db/);
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByText('Open a database that everybody may read').waitFor();
  assert.equal(await kept(), '{}');
});

test('figures are read while they are shown, and not from other pages', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { page, visit } = all;
  await page.clock.install();
  let asked = 0;
  page.on('request', (one) => {
    if (one.url().includes('/_couch_layer/figures')) asked += 1;
  });
  await visit('#/server');
  await page.getByRole('img', { name: /^Requests:/ }).waitFor();
  const first = asked;
  const [next] = await Promise.all([
    page.waitForRequest((one) => one.url().includes('/_couch_layer/figures')),
    page.clock.runFor(6_000),
  ]);
  assert.ok(first > 0 && next);
  await visit('#/db/db');
  asked = 0;
  await page.clock.runFor(60_000);
  await visit('#/db/db/views');
  assert.equal(asked, 0);
});

test('many members are compared a part at a time, and all of them are merged', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { page } = all;
  const merged = await page.evaluate(async () => {
    const { compare } = await import('/_utils/compare.js');
    const of = (value) => JSON.stringify(Object.fromEntries(Array.from({ length: 500 }, (_, at) => [`m${at}`, value])));
    const made = compare([
      { label: 'one', content: of(1) },
      { label: 'two', content: of(2) },
    ]);
    const rows = () => made.element.querySelectorAll('tbody tr').length;
    const counts = [rows()];
    made.element.querySelectorAll('thead button')[1].click();
    const values = new Set([...made.merged().values()].map(({ value }) => value));
    made.element.querySelector('.compare > button').click();
    counts.push(rows(), made.element.querySelectorAll('input:checked').length);
    return { counts, values: [...values], size: made.merged().size };
  });
  assert.deepEqual(merged, { counts: [200, 500, 500], values: ['2'], size: 500 });
});

test('a large document is downloaded and not edited, and lists show the beginning', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, visit, text } = all;
  const { rev } = await ask('PUT', '/db/large', { letters: 'x'.repeat(1_200_000) });
  await visit('#/db/db');
  await page.getByLabel('Shown as').selectOption('text');
  await page.getByRole('link', { name: 'large' }).waitFor();
  assert.ok((await page.content()).length < 20_000);
  await visit(doc('db', 'large'));
  const link = page.getByRole('link', { name: 'Download its text' });
  assert.ok((await link.getAttribute('href')).endsWith(`/db/large?rev=${rev}`));
  assert.equal(await text.count(), 0);
  for (const name of ['Save', 'Copy']) assert.equal(await page.getByRole('button', { name }).count(), 0, name);
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByText('The document is deleted.').waitFor();
  assert.equal((await ask('GET', '/db')).doc_count, 0);
});

test('a member presses no button by a key that is not there', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const { server, ask } = await emptyServer(t);
  await ask('PUT', '/db');
  await ask('PUT', '/db/_security', { admins: {}, members: {} });
  await ask('PUT', '/db/_design/d', {});
  await ask('PUT', '/_users').catch(already);
  const user = { name: 'member', password: PASSWORDS.member, roles: [], type: 'user' };
  await ask('PUT', '/_users/org.couchdb.user:member', user);
  const { page, problems, visit, signIn } = await openConsole(started, server);
  await signIn('member');
  await visit(doc('db', '_design/d'));
  const changed = [];
  page.on('request', (one) => one.method() !== 'GET' && changed.push(one.method()));
  await page.getByLabel('The document as JSON').press('Control+s');
  await page.getByRole('link', { name: 'Views' }).click();
  await page.getByText('The database has no views.').waitFor();
  assert.deepEqual([changed, problems], [[], []]);
});

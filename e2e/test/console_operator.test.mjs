// What the console says to whoever runs a server: conflicts and edits of all databases, what takes the space, backups,
// and figures from before somebody looked.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';

import { browser } from '../lib/browser.mjs';
import { EVIL, emptyServer, grow, headers, keep, openConsole, violations } from '../lib/console.mjs';
import { request, temporaryFolder } from '../lib/server.mjs';

/** A console of an empty server, signed in as its administrator. */
async function opened(t, args = []) {
  const started = await browser(t);
  if (!started) return null;
  const { server, ask } = await emptyServer(t, args);
  const all = await openConsole(started, server);
  await all.signIn('admin');
  return { server, ask, ...all };
}

test('the list of databases shows conflicts and the rate of edits; of a large one when somebody asks', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, problems, visit } = all;
  await ask('PUT', '/calm');
  await ask('PUT', '/torn');
  await grow(ask, 'torn', 'tree');
  await grow(ask, 'torn', 'other');
  await ask('PUT', '/wide');
  await ask('POST', '/wide/_bulk_docs', { docs: Array.from({ length: 5_001 }, (_, n) => ({ n })) });
  await grow(ask, 'wide', 'tree');
  const asked = [];
  page.on('request', (one) => asked.push(new URL(one.url()).pathname));
  await page.clock.install();
  await visit('#/');
  const row = (name) => page.getByRole('row', { name: new RegExp(`^${name} `) });
  await row('torn').getByRole('link', { name: '2', exact: true }).waitFor();
  await row('calm').getByText('quiet').waitFor();
  await row('wide').getByRole('button', { name: 'Count the conflicts of wide' }).waitFor();
  assert.equal(asked.includes('/wide/_conflicts'), false, 'a large database is not read unasked');
  // What did not change is not asked for again.
  const before = asked.filter((one) => one === '/calm/_conflicts').length;
  await ask('POST', '/torn/_bulk_docs', { docs: Array.from({ length: 30 }, (_, n) => ({ n })) });
  await page.clock.runFor(11_000);
  await row('torn')
    .getByText(/^\+30, \d\.\d\/s$/)
    .waitFor();
  await page.clock.runFor(11_000);
  assert.equal(asked.filter((one) => one === '/calm/_conflicts').length, before);
  await row('wide').getByRole('button', { name: 'Count the conflicts of wide' }).click();
  await row('wide').getByRole('link', { name: '1', exact: true }).waitFor();
  await keep(page, 'conflicts-of-all');
  assert.deepEqual(await violations(page), []);

  await row('torn').getByRole('link', { name: '2', exact: true }).click();
  await page.getByRole('link', { name: 'other', exact: true }).waitFor();
  await page.getByRole('link', { name: '2 in conflict' }).waitFor();
  assert.deepEqual(problems, []);
});

test('the space of views and the edits of a database are told', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, problems, visit } = all;
  await ask('PUT', '/db');
  await ask('POST', '/db/_bulk_docs', { docs: Array.from({ length: 50 }, (_, n) => ({ n, text: 'x'.repeat(200) })) });
  await ask('PUT', '/db/_design/wide', { views: { v: { map: 'doc => emit(doc.n, doc.text)' } } });
  await ask('PUT', '/db/_design/empty', {});
  await ask('GET', '/db/_design/wide/_view/v');
  await visit('#/db/db/settings');
  await page.getByText('views and indexes of this design document').waitFor();
  assert.equal(await page.getByText('wide', { exact: true }).count(), 1);
  assert.match(await page.locator('dl').first().textContent(), /Edits52/);

  // Edits of several days, as the server tells them.
  await page.route('**/_time_seq', (route) =>
    route.fulfill({
      json: {
        time_seq: {
          '00000000-ffffffff': {
            node: [
              ['2026-11-01T00:00:00Z', 7],
              ['2026-11-02T00:00:00Z', 1_000],
            ],
          },
        },
      },
    }),
  );
  await visit('#/');
  await visit('#/db/db/settings');
  const drawn = page.getByRole('img', { name: /^1,007 edits since/ });
  await drawn.waitFor();
  const [low, high] = await drawn.locator('rect').evaluateAll((all_) => all_.map((one) => one.getAttribute('height')));
  assert.ok(Number(high) > Number(low), `${low} ${high}`);
  assert.deepEqual([await violations(page), problems], [[], []]);
});

test('documents are shown as trees, and from a key of a view or a value of an index on', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, server, page, problems, visit } = all;
  await ask('PUT', '/db');
  const body = `{"_id": "deep", "n": 12345678901234567890, "list": [{"a": 1}, ${JSON.stringify(EVIL)}], "none": {}}`;
  assert.equal((await request(`${server.url}/db/deep`, { method: 'PUT', body, headers: headers() })).status, 201);
  await ask('POST', '/db/_bulk_docs', { docs: ['ann', 'bob', 'cleo'].map((by, n) => ({ _id: by, by, n })) });
  await ask('PUT', '/db/_design/d', { views: { by: { map: 'doc => doc.by && emit(doc.by)' } } });
  await ask('POST', '/db/_index', { index: { fields: ['n'] }, name: 'numbers' });
  await visit('#/db/db');
  await page.getByLabel('Shown as').selectOption('tree');
  await page.getByText('12345678901234567890').waitFor();
  await page.getByText('list: 2 elements').click();
  await page.getByText(EVIL.slice(0, 18)).waitFor();
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  await page.getByText('0: 1 member').click();
  await page.getByText('a: 1', { exact: true }).waitFor();
  assert.deepEqual(await violations(page), []);
  await page.getByLabel('Shown as').selectOption('text');
  await page.getByRole('group', { name: 'deep' }).waitFor();
  assert.deepEqual(await violations(page), []);

  await page.getByLabel('Shown as').selectOption('table');
  await page.getByLabel('Which documents').selectOption({ label: 'View d/by' });
  await page.getByLabel('Keys from').fill('bob');
  const listed = () =>
    page.getByRole('region', { name: 'Documents of db' }).getByRole('link').evaluateAll((all_) => all_.map((one) => one.textContent));
  const becomes = async (ids) => {
    for (let tries = 0; tries < 100 && (await listed()).join() !== ids.join(); tries += 1) await page.waitForTimeout(50);
    assert.deepEqual(await listed(), ids);
  };
  await becomes(['bob', 'cleo']);
  await page.getByLabel('Which documents').selectOption({ label: 'Index numbers (n)' });
  await becomes(['ann', 'bob', 'cleo', 'deep']);
  await page.getByLabel('Values from').fill('12345678901234567890');
  await becomes(['deep']);
  await page.getByLabel('Which documents').selectOption({ label: 'By id' });
  await page.getByLabel('Ids that begin with').fill('an');
  await becomes(['ann']);
  await page.getByRole('link', { name: 'ann', exact: true }).click();
  await page.getByText('As a tree').click();
  await page.getByText('by: "ann"').waitFor();
  assert.deepEqual(problems, []);
});

test('a backup is made, listed and verified, and the folder is remembered until signing out', async (t) => {
  const folder = await temporaryFolder(t);
  const all = await opened(t);
  if (!all) return;
  const { ask, page, problems, visit } = all;
  await ask('PUT', '/db');
  await ask('PUT', '/db/a', {});
  const [place, key] = [path.join(folder, 'backups'), path.join(folder, 'key')];
  await writeFile(key, 'geheim passphrase');
  await visit('#/backups');
  await page.getByText('This server does not ship its store.').waitFor();
  await page.getByLabel('Folder', { exact: true }).fill(place);
  await page.getByLabel('File with the passphrase').fill(key);
  await page.getByRole('button', { name: 'Show its runs' }).click();
  await page.getByRole('alert').waitFor();
  assert.equal(problems.splice(0).length, 2, 'the refusal and what the browser says of it');
  await page.getByRole('button', { name: 'Back up now' }).click();
  await page.getByText(/ended well/).waitFor();
  // The list follows by itself.
  const runs = page.getByRole('region', { name: 'Runs', exact: true });
  await runs.getByRole('row').nth(1).waitFor();
  await page.getByText(/^(less than a second|\d+ seconds?) ago$/).waitFor();
  assert.match(await page.locator('dl').last().textContent(), /Runs1Size[\d.]+ kB/);
  await page.getByRole('button', { name: 'Verify' }).click();
  await page.getByText(/was verified .*1 run can be restored/).waitFor();
  await keep(page, 'backups');
  assert.deepEqual(await violations(page), []);

  // Whoever comes back sees the last run at once.
  await visit('#/');
  await visit('#/backups');
  await runs.getByRole('row').nth(1).waitFor();
  assert.equal((await page.content()).includes('geheim'), false);
  assert.deepEqual(problems, []);
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByText('Open a database that everybody may read').waitFor();
  assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage })), '{}');
});

test('the ship of a store says how far it is, and why it fails', async (t) => {
  const place = path.join(await temporaryFolder(t), 'ship');
  const all = await opened(t, ['--ship-to', place, '--ship-no-encryption']);
  if (!all) return;
  const { page, problems, visit } = all;
  await visit('#/backups');
  await page.getByText(/^Everything is shipped up to (less than a second|\d+ seconds?) ago/).waitFor();
  assert.match(await page.locator('dl').first().textContent(), /Behind(less than a second|\d+ seconds?)Up to/);
  await keep(page, 'backups-shipped');
  await page.getByLabel('Folder', { exact: true }).fill(place);
  await page.getByLabel('Without encryption').check();
  await page.getByRole('button', { name: 'Show its runs' }).click();
  await page.getByText('There is no run here.').waitFor();
  assert.match(await page.locator('dl').last().textContent(), /Shipped.* to /);
  for (const [state, says] of [
    ['failing', /Shipping fails/],
    ['fenced', /Another server ships/],
    ['starting', /tables are being shipped/],
  ]) {
    await page.route('**/_couch_layer/ship', (route) =>
      route.fulfill({
        json: { state, to: EVIL, until_ms: 0, segments: 1, bases: 0, bytes: 5, reasons: state === 'failing' ? [EVIL] : [] },
      }),
    );
    await page.getByText(says).waitFor();
    if (state === 'failing') await page.getByText(`Last error: ${EVIL}`).waitFor();
  }
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.deepEqual([await violations(page), problems], [[], []]);
});

test('figures show what happened before somebody looked', async (t) => {
  const all = await opened(t);
  if (!all) return;
  const { ask, page, problems, visit } = all;
  await ask('PUT', '/db');
  for (let n = 0; n < 20; n += 1) await ask('PUT', `/db/${n}`, {});
  await visit('#/server');
  const chart = await page.getByRole('img', { name: /^Documents written/ }).getAttribute('aria-label');
  assert.ok(Number(/, ([\d.]+)\/s at most/.exec(chart)[1]) > 0, chart);
  assert.deepEqual(problems, []);
});

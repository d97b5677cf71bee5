// The console as somebody uses it who sees it for the first time: only by what is written on the page. Nothing here
// knows an address, a class or an id.

import assert from 'node:assert/strict';
import test from 'node:test';

import { browser } from '../lib/browser.mjs';
import { grow, keep, openConsole } from '../lib/console.mjs';
import { store } from '../lib/engines.mjs';
import { Server, expectOk } from '../lib/server.mjs';

test('who is new creates a database, resolves a conflict and finds a slow query by what the pages say', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const server = (await Server.start(await store(t, 'lsm'))).endWith(t);
  const { page, problems } = await openConsole(started, server);
  /** Presses the only thing that is called so and can be seen. */
  const press = async (name) => {
    const found = page.getByRole('button', { name, exact: true }).or(page.getByRole('link', { name, exact: true }));
    await found.filter({ visible: true }).first().click();
  };
  const write = (label, text) => page.getByLabel(label, { exact: true }).fill(text);
  const reads = (text) => page.getByText(text).filter({ visible: true }).first().waitFor();

  // The server prints where to begin. The rest is said by the pages.
  const [address] = /http\S+signin\S+/.exec(server.output);
  await page.goto(address);
  await reads('This server has no administrator');
  await write('Name', 'me');
  await write('Password', 'my password');
  await press('Name this administrator');
  await reads('Signed in as');
  await reads('There is no database yet. Create the first one.');
  await keep(page, 'newcomer-1-empty');

  await press('Create a database');
  await write('Name', 'recipes');
  await press('Create');
  await reads('There are no documents here.');
  await press('New document');
  await write('The document as JSON', '{"_id": "soup", "title": "Soup", "minutes": 20}');
  await press('Save');
  await reads('The document is stored.');
  await keep(page, 'newcomer-2-document');

  // Meanwhile other devices replicate.
  const headers = { authorization: `Basic ${btoa('me:my password')}`, accept: 'application/json' };
  const ask = (method, at, body) => expectOk(server.url + at, { method, body, headers });
  await grow(ask, 'recipes', 'cake');
  await ask('POST', '/recipes/_bulk_docs', {
    docs: Array.from({ length: 200 }, (_, at) => ({
      _id: `dish${at}`,
      kind: at % 20 ? 'main' : 'dessert',
      minutes: at,
    })),
  });

  await press('Documents');
  await reads('in conflict');
  await press('Conflicts');
  await reads('A document in conflict was edited at two places at once.');
  await press('cake');
  await reads('3 leaves are in conflict');
  await reads('Choose each member.');
  await page.getByRole('radio', { name: /^title: .*cccccc/ }).check();
  await keep(page, 'newcomer-3-conflict');
  await press('Resolve the conflict');
  await reads('The conflict is resolved.');
  const { title, _conflicts: left } = await ask('GET', '/recipes/cake?conflicts=true');
  assert.deepEqual([title, left], ['of the phone', undefined]);
  await press('Conflicts');
  await reads('No document has a conflict.');

  await press('Query');
  // What stands there is an example, which runs as it is.
  await press('Run');
  await reads('documents read, by id');
  const example = await page.getByLabel('The search as JSON').inputValue();
  await write('The search as JSON', example.replace('"_id": {"$gt": null}', '"kind": "dessert"'));
  await press('Run');
  await reads('No index fits');
  await reads('An index would help.');
  await keep(page, 'newcomer-4-slow');
  await press('Create this index');
  await reads('10 rows of the index read');
  assert.equal(await page.getByText('An index would help.').count(), 0);
  await keep(page, 'newcomer-5-fast');
  assert.deepEqual(problems, []);
});

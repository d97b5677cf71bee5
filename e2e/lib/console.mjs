// The console in a browser: a server with something of everything, and pages that are watched for errors.

import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';

import { store } from './engines.mjs';
import { Server, expectOk } from './server.mjs';

const require = createRequire(import.meta.url);
const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

/** Screens of all pages, for people to look at. */
const SCREENS = process.env.COUCH_LAYER_SCREENS ?? path.join(os.tmpdir(), 'couch-layer-screens');

export const PASSWORDS = { admin: 'geheim', member: 'of the member', owner: 'of the owner' };
export const headers = (name = 'admin') => ({ authorization: `Basic ${btoa(`${name}:${PASSWORDS[name]}`)}` });

/** Text that would run if it were taken for markup. */
export const EVIL = '<img src=x onerror="window.hacked = 1">';

/** A red picture of one pixel. */
export const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==',
  'base64',
);

/** A server with an administrator and nothing else. `ask` sends a request as the administrator. */
export async function emptyServer(t, args = []) {
  const env = { COUCHDB_USER: 'admin', COUCHDB_PASSWORD: PASSWORDS.admin };
  const server = (await Server.start(await store(t, 'lsm'), { env, args })).endWith(t);
  const ask = (method, at, body) =>
    expectOk(server.url + at, { method, body, headers: { accept: 'application/json', ...headers() } });
  return { server, ask };
}

/** A document with a tree: a winner, two leaves in conflict with it, and a tombstone. */
export async function grow(ask, db, id) {
  const hashes = Object.fromEntries([...'abcdef'].map((one) => [one, one.repeat(32)]));
  const { a, b, c, d, e, f } = hashes;
  const revision = (ids, doc) => ({
    _id: id,
    _rev: `${ids.length}-${ids[0]}`,
    _revisions: { start: ids.length, ids },
    ...doc,
  });
  await ask('POST', `/${db}/_bulk_docs`, {
    new_edits: false,
    docs: [
      revision([f, b, a], { title: 'of the winner', colour: 'green', same: true }),
      revision([c, b, a], { title: 'of the phone', colour: 'green', same: true, extra: [1, 2] }),
      revision([e, a], {
        title: 'of the winner',
        colour: 'red',
        same: true,
        _attachments: { 'note.txt': { content_type: 'text/plain', data: btoa('kept') } },
      }),
      revision([d, b, a], { _deleted: true }),
    ],
  });
}

/** A database that is a vault of Obsidian LiveSync: a file, a chunk that no file needs, and a device behind. */
export async function makeVault(ask, db) {
  await ask('PUT', `/${db}`);
  const file = (path, children) => ({
    _id: path,
    path,
    type: 'plain',
    children,
    ctime: 1,
    mtime: 1,
    size: 5,
    eden: {},
  });
  await ask('POST', `/${db}/_bulk_docs`, {
    docs: [
      { _id: 'obsydian_livesync_version', type: 'versioninfo', version: 12 },
      { _id: 'h:needed', type: 'leaf', data: 'hello' },
      { _id: 'h:left', type: 'leaf', data: 'nobody needs this' },
      file('note.md', ['h:needed']),
      file(`broken ${EVIL.replaceAll('/', '')}.md`, ['h:gone']),
    ],
  });
  const { update_seq: progress } = await ask('GET', `/${db}`);
  await ask('PUT', `/${db}/later.md`, file('later.md', ['h:needed']));
  await ask('PUT', `/${db}/_local/obsydian_livesync_milestone`, {
    type: 'milestoneinfo',
    created: 1795365506967,
    locked: true,
    accepted_nodes: ['phone1'],
    node_info: {
      phone1: { device_name: EVIL, plugin_version: '0.25.70', progress, last_connected: 1795365506967 },
      [EVIL]: { device_name: '', plugin_version: EVIL, progress: 'nonsense' },
    },
    tweak_values: { PREFERRED: { encrypt: false }, phone1: { encrypt: EVIL }, [EVIL]: { encrypt: false } },
  });
}

/** The same with databases, users, replications and names that are markup. */
export async function fullServer(t) {
  const { server, ask } = await emptyServer(t);
  for (const name of ['notes', 'public', '_users', '_replicator'])
    await ask('PUT', `/${name}`).catch((error) => {
      if (!/412/.test(error.message)) throw error;
    });
  const docs = Array.from({ length: 60 }, (_, at) => ({
    _id: `post:${String(at).padStart(2, '0')}`,
    type: at % 3 ? 'post' : 'page',
    author: ['ann', 'bob', 'cleo'][at % 3],
    year: 2015 + (at % 10),
    meta: { lang: 'en' },
  }));
  docs.push({ _id: EVIL, [EVIL]: EVIL, type: EVIL });
  await ask('POST', '/notes/_bulk_docs', { docs });
  await ask('POST', '/notes/_bulk_docs', {
    docs: [
      {
        _id: 'files',
        _attachments: {
          'red.png': { content_type: 'image/png', data: PNG.toString('base64') },
          [EVIL]: { content_type: 'text/html', data: btoa('<script>window.hacked = 1</script>') },
          'evil.svg': {
            content_type: 'image/svg+xml',
            data: btoa('<svg xmlns="http://www.w3.org/2000/svg"><script>window.hacked = 1</script></svg>'),
          },
        },
      },
    ],
  });
  await grow(ask, 'notes', 'tree');
  await ask('PUT', '/notes/_design/posts', {
    views: {
      by_author: { map: 'function (doc) { if (doc.type) emit(doc.author, doc.year); }', reduce: '_count' },
      [EVIL.replaceAll('/', '')]: { map: 'function (doc) { emit(doc.type, doc); }' },
      broken: { map: 'function (doc) { emit(doc.meta.lang, 1); }' },
    },
    filters: { pages: "function (doc) { return doc.type === 'page'; }" },
  });
  await ask('POST', '/notes/_index', { index: { fields: ['year'] }, name: EVIL });
  const { rev } = await ask('PUT', '/notes/gone', {});
  await ask('DELETE', `/notes/gone?rev=${rev}`);
  for (const name of ['member', 'owner', EVIL.replaceAll(':', '')]) {
    await ask('PUT', `/_users/${encodeURIComponent(`org.couchdb.user:${name}`)}`, {
      name,
      password: PASSWORDS[name] ?? 'x',
      roles: [EVIL],
      type: 'user',
    });
  }
  await ask('PUT', '/notes/_security', {
    admins: { names: ['owner'], roles: [] },
    members: { names: ['member'], roles: [EVIL.slice(0, 5)] },
  });
  await makeVault(ask, 'vault');
  await ask('PUT', '/vault/_security', {
    admins: { names: ['owner'], roles: [] },
    members: { names: ['member'], roles: [] },
  });
  await ask('PUT', '/public/_security', {
    admins: { names: [], roles: ['_admin'] },
    members: { names: [], roles: [] },
  });
  await ask('PUT', '/public/hello', { text: 'hi' });
  await ask('PUT', `/_replicator/${encodeURIComponent(EVIL)}`, {
    source: 'http://127.0.0.1:1/none',
    target: `http://127.0.0.1:1/${encodeURIComponent(EVIL)}`,
    continuous: true,
  });
  return { server, ask };
}

/**
 * Opens the console in a new context: `{ page, problems, visit, signIn }`. `problems` collects what no page may have:
 * errors
 * of the console and of scripts, and requests that were refused.
 */
export async function openConsole(started, server, options = {}) {
  const context = await started.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const problems = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) problems.push(message.text());
  });
  page.on('pageerror', (error) => problems.push(error.stack));
  page.on('response', (response) => {
    if (response.status() >= 400)
      problems.push(`${response.status()} ${response.request().method()} ${response.url()}`);
  });
  const root = `${server.url}/_utils/`;
  const visit = async (hash) => {
    await page.goto(root + hash);
    await page.waitForFunction(
      (path_) => document.querySelector('main').dataset.page === path_,
      hash.replace(/^#\//, '').replace(/\?.*$/, ''),
    );
  };
  const signIn = async (name) => {
    await visit('#/signin');
    await page.getByLabel('Name').fill(name);
    await page.getByLabel('Password').fill(PASSWORDS[name]);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Databases', level: 1 }).waitFor();
  };
  return { context, page, problems, visit, signIn };
}

/** What axe finds wrong with the page, in words. */
export async function violations(page) {
  // What appears does so within a moment, and has less contrast meanwhile.
  await page.evaluate(() => Promise.all(document.getAnimations().map((one) => one.finished)));
  await page.evaluate(AXE);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.map(
    ({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join('\n')}`,
  );
}

/** Keeps a screen of the page. */
export async function keep(page, name) {
  mkdirSync(SCREENS, { recursive: true });
  await page.screenshot({ path: path.join(SCREENS, `${name}.png`), fullPage: true });
}

/** Presses Tab until the element with this name has the focus. The name is what is said of it. */
export async function tabTo(page, name, most = 80) {
  for (let pressed = 0; pressed < most; pressed += 1) {
    const found = await page.evaluate((wanted) => {
      const at = document.activeElement;
      const said = at.getAttribute('aria-label') ?? (at.labels?.[0]?.textContent ?? at.textContent).trim();
      return said === wanted;
    }, name);
    if (found) return;
    await page.keyboard.press('Tab');
  }
  throw new Error(`the keyboard does not reach "${name}"`);
}

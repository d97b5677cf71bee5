// `couch-layer setup`: what it prints, opened and used by the clients that it is for.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import test from 'node:test';

import { decryptWithEphemeralSalt } from 'octagonal-wheels/encryption/hkdf';
import PouchDB from 'pouchdb-node';

import { browser, emptyPages } from '../lib/browser.mjs';
import { store } from '../lib/engines.mjs';
import { Server, request, run, temporaryFolder } from '../lib/server.mjs';

const require = createRequire(import.meta.url);
const jsQR = require('jsqr');

const ENV = { COUCHDB_USER: 'admin', COUCHDB_PASSWORD: 'geheim' };
/** Obsidian on computers, on iOS, and on Android. */
const ORIGINS = ['app://obsidian.md', 'capacitor://localhost', 'http://localhost'];

const basic = (user, password) => ({ authorization: `Basic ${btoa(`${user}:${password}`)}` });
const start = async (t, kind) => (await Server.start(await store(t, kind), { env: ENV })).endWith(t);

/** Sets up; the password of the administrator is not on the command line. */
async function setUp(server, ...args) {
  const url = server.url.replace('//', '//admin@');
  const { code, stdout, stderr } = await run(['setup', ...args, '--url', url], {
    env: { COUCHDB_PASSWORD: ENV.COUCHDB_PASSWORD },
  });
  assert.equal(code, 0, stderr);
  return stdout;
}

/** The settings that Obsidian hands to the plugin, and the plugin's library opens. */
async function opened(link, passphrase) {
  const { protocol, host, searchParams } = new URL(link);
  assert.deepEqual([protocol, host], ['obsidian:', 'setuplivesync']);
  return JSON.parse(await decryptWithEphemeralSalt(searchParams.get('settings'), passphrase));
}

/** What the plugin's "check database configuration" finds wrong, as this user. */
async function faults(uri, headers) {
  const ask = (origin) => request(`${uri}/_node/_local/_config`, { headers: { ...headers, origin } });
  const first = await ask(ORIGINS[0]);
  assert.equal(first.status, 200, first.text);
  // From this version on the plugin looks into these sections.
  const [, major, minor] = /CouchDB\/(\d+)\.(\d+)/.exec(first.headers.get('server'));
  assert.ok(Number(major) > 3 || (Number(major) === 3 && Number(minor) >= 2));
  const { chttpd = {}, couchdb = {}, cors = {}, httpd = {} } = first.body;
  const listed = (cors.origins ?? '').split(',');
  const checks = {
    'chttpd/require_valid_user': chttpd.require_valid_user === 'true',
    'httpd/WWW-Authenticate': Boolean(httpd['WWW-Authenticate']),
    'chttpd/enable_cors': chttpd.enable_cors === 'true',
    'chttpd/max_http_request_size': Number(chttpd.max_http_request_size) >= 4294967296,
    'couchdb/max_document_size': Number(couchdb.max_document_size) >= 50000000,
    'cors/credentials': cors.credentials === 'true',
    'cors/origins': ORIGINS.every((origin) => listed.includes(origin)),
  };
  for (const origin of ORIGINS) {
    const { headers: answered } = await ask(origin);
    checks[`credentials of ${origin}`] = answered.get('access-control-allow-credentials') === 'true';
    checks[`origin ${origin}`] = answered.get('access-control-allow-origin') === origin;
  }
  return Object.entries(checks).filter(([, isRight]) => !isRight).map(([what]) => what);
}

test('the plugin opens the link, its check finds nothing wrong, and its user synchronises', async (t) => {
  const server = await start(t, 'lsm');
  const admin = basic('admin', 'geheim');
  assert.equal((await faults(server.url, admin)).length, 7 + 2 * ORIGINS.length);

  const printed = JSON.parse(await setUp(server, 'livesync', '--vault', 'notes', '--encrypt', '--json'));
  const settings = await opened(printed.link, printed.link_passphrase);
  assert.deepEqual(settings, {
    couchDB_URI: server.url,
    couchDB_USER: 'notes',
    couchDB_PASSWORD: printed.password,
    couchDB_DBNAME: 'notes',
    remoteType: '',
    remoteConfigurations: {},
    isConfigured: true,
    liveSync: true,
    usePluginSyncV2: true,
    handleFilenameCaseSensitive: false,
    chunkSplitterVersion: 'v3-rabin-karp',
    customChunkSize: 60,
    concurrencyOfReadChunksOnline: 30,
    minimumIntervalOfReadChunksOnline: 25,
    encrypt: true,
    passphrase: printed.passphrase,
    usePathObfuscation: true,
    E2EEAlgorithm: 'v2',
  });
  await assert.rejects(opened(printed.link, printed.passphrase), 'only the passphrase of the link opens it');

  assert.deepEqual(await faults(settings.couchDB_URI, admin), []);
  // The settings are not for the user of the vault, which the plugin says, and goes on.
  const user = basic(settings.couchDB_USER, settings.couchDB_PASSWORD);
  assert.equal((await request(`${server.url}/_node/_local/_config`, { headers: user })).status, 401);

  // Every page of Obsidian may ask, and may send a password.
  const uri = `${settings.couchDB_URI}/${settings.couchDB_DBNAME}`;
  for (const origin of ORIGINS) {
    const preflight = await request(uri, {
      method: 'OPTIONS',
      headers: {
        origin,
        'access-control-request-method': 'PUT',
        'access-control-request-headers': 'authorization,content-type',
      },
    });
    assert.equal(preflight.headers.get('access-control-allow-origin'), origin);
    assert.match(preflight.headers.get('access-control-allow-headers'), /authorization/i);
    const answer = await request(uri, { headers: { ...user, origin } });
    assert.equal(answer.headers.get('access-control-allow-origin'), origin);
  }
  assert.equal((await request(uri)).status, 401);

  const folder = await temporaryFolder(t);
  const auth = { username: settings.couchDB_USER, password: settings.couchDB_PASSWORD };
  const [one, other] = ['one', 'other'].map((name) => new PouchDB(`${folder}/${name}`));
  const remote = new PouchDB(uri, { auth });
  await one.put({ _id: 'f:note', type: 'plain' });
  await one.put({ _id: '_local/obsidian_livesync_milestone', created: 1 });
  await PouchDB.sync(one, remote);
  await PouchDB.sync(other, remote);
  assert.equal((await other.get('f:note')).type, 'plain');
  assert.equal((await remote.put({ _id: '_local/obsidian_livesync_sync_parameters', type: 'sync' })).ok, true);
  assert.equal((await remote.compact()).ok, true);
  await Promise.all([one, other].map((database) => database.close()));
  // A rebuild of the plugin drops the database first. It is refused, and the plugin goes on.
  await assert.rejects(remote.destroy(), (error) => error.status === 401 || error.status === 403);
  assert.equal((await new PouchDB(uri, { auth }).get('f:note')).type, 'plain');

  const again = JSON.parse(await setUp(server, 'livesync', '--vault', 'notes', '--encrypt', '--json'));
  assert.deepEqual([again.done, again.link, again.already.length], [[], null, printed.done.length - 1]);
});

/** The text of a QR code of half blocks, where blocks are the light modules. */
function read(code) {
  const lines = code.split('\n');
  const scale = 3;
  const [width, height] = [lines[0].length * scale, lines.length * 2 * scale];
  const pixels = new Uint8ClampedArray(width * height * 4).fill(255);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const row = Math.floor(y / scale);
      const block = lines[row >> 1][Math.floor(x / scale)];
      const isLight = block === '█' || block === (row % 2 === 0 ? '▀' : '▄');
      pixels.fill(isLight ? 255 : 0, (y * width + x) * 4, (y * width + x) * 4 + 3);
    }
  }
  return jsQR(pixels, width, height)?.data;
}

test('the QR code has the link', async (t) => {
  const server = await start(t, 'mem');
  const printed = await setUp(server, 'livesync', '--vault', 'notes', '--qr');
  const link = /^obsidian:.*$/m.exec(printed)[0];
  const passphrase = /and its passphrase: (\S+)$/m.exec(printed)[1];
  const code = printed.split('\n').filter((line) => /^[█▀▄ ]+$/.test(line)).join('\n');
  assert.equal(read(code), link);
  assert.equal((await opened(link, passphrase)).encrypt, undefined);
});

test('the printed lines connect PouchDB in a browser, from the named origin only', async (t) => {
  const started = await browser(t);
  if (!started) return;
  const server = await start(t, 'mem');
  const [named, other] = [await emptyPages(t), await emptyPages(t)];
  const printed = await setUp(server, 'pouchdb', '--database', 'tasks', '--origin', named);
  // A page has PouchDB by a tag.
  const lines = printed.slice(printed.indexOf('const here'));
  const open = async (origin) => {
    const page = await (await started.newContext()).newPage();
    await page.goto(origin);
    await page.addScriptTag({ path: require.resolve('pouchdb/dist/pouchdb.min.js') });
    return page;
  };

  const page = await open(named);
  await page.addScriptTag({ content: lines });
  const arrived = await page.evaluate(async () => {
    await here.put({ _id: 'song', title: 'Gute Nacht' });
    for (;;) {
      const found = await there.get('song').catch((error) => error);
      if (found.title || found.status !== 404) return found.title ?? String(found);
      await new Promise((resolve) => { setTimeout(resolve, 20); });
    }
  });
  assert.equal(arrived, 'Gute Nacht');

  const stranger = await open(other);
  await stranger.addScriptTag({ content: lines.split('\n').filter((line) => line.startsWith('const')).join('\n') });
  assert.match(await stranger.evaluate(() => there.info().then(JSON.stringify, String)), /fetch/i);
});

// Rights, sessions, users, configuration and CORS beside a CouchDB, which COUCHDB_URL names. See lib/beside.mjs.
//
// Each test configures both in the same way, and restores CouchDB's settings when it ends.

import assert from 'node:assert/strict';
import { createHmac, createSign, generateKeyPairSync, randomBytes } from 'node:crypto';
import http from 'node:http';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { beside, random } from '../lib/beside.mjs';
import { skipLoudly } from '../lib/server.mjs';

const basic = (name, password) => ({ authorization: `Basic ${Buffer.from(`${name}:${password}`).toString('base64')}` });

/** One request exactly as given: nothing is added, and redirects are not followed. Headers are `name: value or values`. */
function send(base, path, options = {}) {
  const { method = 'GET', headers = {}, body } = options;
  const { hostname, port } = new URL(base);
  return new Promise((resolve, reject) => {
    const bytes = body === undefined ? undefined : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
    const all = { ...(bytes ? { 'content-type': 'application/json', 'content-length': bytes.length } : {}), ...headers };
    if (!bytes && ['POST', 'PUT', 'DELETE', 'PATCH'].includes(method)) all['content-length'] = 0;
    for (const name of Object.keys(all)) if (all[name] === undefined) delete all[name];
    const sent = http.request({ hostname, port, path, method, headers: all, agent: AGENT }, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => {
        const text = Buffer.concat(parts).toString();
        let parsed;
        try { parsed = JSON.parse(text); } catch { parsed = text; }
        resolve({ status: response.statusCode, headers: response.headers, body: parsed });
      });
      response.on('error', reject);
    });
    // A kept connection may end just before it is used again. If a connection ends instead of an answer, the status is
    // 0.
    sent.on('error', (error) => {
      if (error.code === 'ECONNREFUSED') reject(error);
      else resolve(sent.reusedSocket ? send(base, path, options) : { status: 0, headers: {}, body: error.code });
    });
    sent.end(bytes);
  });
}

const HANDLERS = ['cookie', 'proxy', 'jwt', 'default'].map((name) => `{chttpd_auth, ${name}_authentication_handler}`).join(', ');

const AGENT = new http.Agent({ keepAlive: true });

/** The intended differences: the reason, and a test of the request and both answers that recognises it. */
const INTENDED = [
  ['CouchDB fails, mostly at a mistake of the client', ({ ours, theirs }) => theirs.status === 500 && ours.status < 500],
  ['it answers a DELETE of an index by a member with 200, and the index stays', ({ method, path, ours, theirs }) =>
    method === 'DELETE' && path.includes('/_index/') && [401, 403].includes(ours.status) && theirs.status === 200],
  ['rights are looked at before the rest of a request', ({ ours, theirs }) =>
    [401, 403].includes(ours.status) && [400, 404, 405, 415].includes(theirs.status)],
  ['this server does not have it, and says so', ({ ours }) => ours.status === 501],
  ['the pages are our own, and there is no icon', ({ path }) => /^\/(_utils|favicon.ico)/.test(path)],
  ['a browser has no page to log in', ({ ours, theirs }) => ours.status === 401 && theirs.headers.location?.includes('/_utils/session.html')],
  ['replications are the server administrators\'', ({ path }) => path === '/_replicate'],
  ['forms are not documents here', ({ theirs }) => theirs.body?.reason === 'Referer header required.'],
  ['names that nothing has', ({ path, theirs }) => /^\/(_scheduler|_search_analyze|_stats)$/.test(path) || /\/(_unknown|_auto_purge|_time_seq)/.test(path) ||
    theirs.status === 503],
  ['events of databases need no database here', ({ path }) => path === '/_db_updates'],
  ['local documents: compared elsewhere', ({ path }) => path.includes('/_local/') && !path.startsWith('/_node')],
  ['req.body of a GET is "undefined" there', ({ path }) => path.endsWith('/_update/rest')],
  ['a member that may not is not told what there is', ({ path, method, ours }) => method !== 'GET' && /_design/.test(path) && [401, 403].includes(ours.status)],
  ['a login counts alone', ({ method, path, headers, ours }) =>
    method === 'POST' && path === '/_session' && (headers.cookie || headers.authorization) && ours.status === 200],
  ['bad forms are refused as such', ({ ours, theirs, path }) => path === '/_session' && ours.status === 400 && theirs.status === 401],
  ['a type is compared without case, and whole', ({ headers }) => /APPLICATION|JSON|jsonx/.test(headers['content-type'])],
  ['nobody is sent to another host', ({ path, ours }) => path.includes('next=//host') && ours.status === 400],
  ['CouchDB sends a header of its client\'s', ({ path }) => path.includes('%0d%0a')],
  ['padding is not a part of a cookie that anybody cut; tabs are none either', ({ what }) => /cookie (padded|plain base64|tab)/.test(what)],
  ['a base64 of a password ends where it ends', ({ headers }) => /==,x$/.test(headers.authorization)],
  // Tokens.
  ['`exp` and `nbf` count wherever a token has them', ({ what, ours }) => /"(exp|nbf)"/.test(what) && ours.status >= 400],
  ['`required_claims` may name any claim, with or without a value', ({ what }) => /required_claims":"(sub|iss|unknown|\{n, 5\}|\{\{|)"/.test(what)],
  ['claims are looked at in the order in which they are required', ({ what, ours, theirs }) => /required_claims/.test(what) && ours.status >= 400 && theirs.status >= 400],
  ['keys that cannot be used are named, and the kind of a value', ({ what, ours, theirs }) => /^token/.test(what) && ours.status === 400 && theirs.status === 400],
  ['extensions that must be understood are not', ({ what }) => /"crit"/.test(what)],
  ['somebody has a name', ({ what, headers, ours }) =>
    /"sub":(""|1|null)/.test(what) && ours.status === 401 || headers['x-auth-couchdb-username'] === ''],
  ['nobody has an empty role', ({ ours, theirs }) => [].concat(theirs.body?.userCtx?.roles ?? []).some((role) => role.trim() !== role || role === '') && ours.status === 200],
  ['of two members with one name, the last one counts', ({ what }) => /"sub":"anna","sub":"b"/.test(what)],
  ['a scheme may be followed by several spaces', ({ headers }) => /^Bearer {2}/.test(headers.authorization)],
  ['a token without roles has none', ({ what, theirs }) => /roles_claim_path/.test(what) && theirs.status === 404],
  // Users.
  ['who may not change the members of `_users` is told that first', ({ path, ours }) => path === '/_users/_security' && [401, 403].includes(ours.status)],
  ['what is not a password, name or hash is called so', ({ path, ours, theirs }) =>
    path.startsWith('/_users/') && ours.status === 403 && theirs.status === 403 && !/^Server cannot/.test(theirs.body.reason)],
  ['a hash that cannot be used is a wrong password', ({ path, ours, theirs }) => path === '/_session' && ours.status === 401 && theirs.status === 403],
  ['`_design/_auth` is not run, whatever stands in it', ({ path }) => path.startsWith('/_users/_design')],
  // The configuration.
  ['letters beyond ASCII are letters', ({ what, body }) => /u03a9|ud83d|u0085|Ω/.test(what + body)],
  ['names are UTF-8', ({ path }) => path.includes('%ff')],
  ['the node has another name', ({ path }) => /^\/(_membership|_node\/_local\/?$|_node\/nonode@nohost)/.test(path)],
  ['there is one node, and it has no files', ({ path, theirs }) =>
    /_smoosh|_restart/.test(path) || ['illegal_database_name', 'nodedown'].includes(theirs.body?.error)],
  ['an administrator has a password, and a name that can log in', ({ what }) => /^admins/.test(what)],
  ['CouchDB cannot be set up twice, or by what is not an object', ({ what }) => what === 'set-up'],
  ['other figures are known', ({ what, path }) => what === 'welcome' || (what === 'uuids' && /&count|9{20}/.test(path))],
  ['no method is not a method', ({ headers }) => headers['access-control-request-method'] === ''],
];

/** Both sides, with an administrator, quick hashes and no lockout. */
class Sides {
  static async start(t, settings = {}) {
    const pair = await beside(t);
    if (!pair) return undefined;
    const sides = Object.assign(new Sides(), { t, pair, intended: 0, urls: { ours: pair.ours, theirs: pair.theirs } });
    sides.admin = { authorization: pair.authorization };
    sides.name = decodeURIComponent(new URL(process.env.COUCHDB_URL).username);
    sides.password = decodeURIComponent(new URL(process.env.COUCHDB_URL).password);
    await sides.set({
      'chttpd_auth/iterations': '10', 'chttpd_auth_lockout/mode': 'off', 'couchdb/users_db_security_editable': 'true', ...settings,
    });
    for (const name of ['_users', '_replicator']) await sides.must(`/${name}`, { method: 'PUT' }, [201, 412]);
    const closed = { members: { roles: ['_admin'] }, admins: { roles: ['_admin'] } };
    await sides.must('/_users/_security', { method: 'PUT', body: closed });
    const { theirs } = await sides.must('/_session');
    const names = theirs.body.info.authentication_handlers;
    sides.trustsOthers = ['proxy', 'jwt'].every((name) => names.includes(name));
    if (sides.trustsOthers) await sides.set({ 'chttpd/authentication_handlers': HANDLERS });
    return sides;
  }

  /** Settings of both; those of CouchDB end with the test. */
  async set(settings) {
    for (const [key, value] of Object.entries(settings)) {
      const path = `/_node/_local/_config/${key}`;
      if (!this.known?.has(key)) {
        (this.known ??= new Set()).add(key);
        const before = await send(this.urls.theirs, path, { headers: this.admin });
        const back = before.status === 200 ? { method: 'PUT', body: JSON.stringify(before.body) } : { method: 'DELETE' };
        this.t.after(() => send(this.urls.theirs, path, { headers: this.admin, ...back }));
      }
      if (value === undefined) await this.must(path, { method: 'DELETE' }, [200, 404, 500]);
      else await this.must(path, { method: 'PUT', body: JSON.stringify(value) });
    }
  }

  /** The answers of both. */
  async both(path, options = {}) {
    const [ours, theirs] = await Promise.all(
      [this.urls.ours, this.urls.theirs].map((url) => send(url, path, typeof options === 'function' ? options(url) : options)),
    );
    return { ours, theirs };
  }

  /** A request of the administrator, which must succeed at both. */
  async must(path, options = {}, statuses = [200, 201, 202]) {
    const answers = await this.both(path, { ...options, headers: { ...this.admin, ...options.headers } });
    for (const [side, { status, body }] of Object.entries(answers)) {
      assert.ok(statuses.includes(status), `${side}: ${options.method ?? 'GET'} ${path}: ${status} ${JSON.stringify(body)}`);
    }
    return answers;
  }

  /** Sends a request to both, and notes what differs after `view`. */
  async same(what, path, options = {}, view = whole) {
    const answers = await this.both(path, options);
    const { method = 'GET', headers = {}, body = '' } = typeof options === 'function' ? options(this.urls.ours) : options;
    const text = typeof body === 'string' ? body : JSON.stringify(body);
    if (INTENDED.some(([, is]) => is({ what, path, method, headers, body: text, ...answers }))) {
      this.intended++;
      return answers;
    }
    const shown = `${what}: ${method} ${path} ${JSON.stringify(headers)} ${text}`;
    this.pair.note(shown, view(answers.ours, this), view(answers.theirs, this));
    return answers;
  }

  /** A user of both, with the password `password`. Removed from CouchDB when the test ends. */
  async user(name, more = {}) {
    const path = `/_users/org.couchdb.user:${encodeURIComponent(name)}`;
    for (const side of ['ours', 'theirs']) await this.remove(side, path);
    await this.must(path, { method: 'PUT', body: { type: 'user', name, roles: [], password: 'password', ...more } });
    this.t.after(() => this.remove('theirs', path));
  }

  async remove(side, path) {
    const found = await send(this.urls[side], path, { headers: this.admin });
    if (found.status === 200) await send(this.urls[side], `${path}?rev=${found.body._rev}`, { method: 'DELETE', headers: this.admin });
  }

  end() {
    this.t.diagnostic(`${this.intended} answers that differ or may differ on purpose`);
    this.pair.end();
  }
}

/** Headers that clients read. */
const READ = ['content-type', 'www-authenticate', 'location', 'allow', 'cache-control'];

const whole = ({ status, headers, body }) =>
  ({ status, body, headers: Object.fromEntries(READ.filter((name) => headers[name] !== undefined).map((name) => [name, headers[name]])) });

/** Status and refusal only: the rest of the answers is compared elsewhere. */
const refusal = ({ status, body }) => {
  // The methods have another order here, and HEAD is among them.
  if (status === 405) return { status };
  return status >= 400 ? { status, error: body.error, reason: body.reason } : { status };
};

// ---------------------------------------------------------------------------------------------------------------------------------
// Who may send what.

const SECURITY = { members: { names: ['member'], roles: [] }, admins: { names: ['chief'], roles: [] } };
const REV = '1-11111111111111111111111111111111';
const DOCUMENTS = {
  new_edits: false,
  docs: [
    { _id: 'docid', _rev: REV, _attachments: { rest: { data: 'YQ==' } } },
    {
      _id: '_design/x', _rev: REV, _attachments: { rest: { data: 'YQ==' } }, views: { view: { map: 'function (doc) { emit(1, 1); }' } },
      updates: { rest: "function (doc, req) { return [{_id: req.body || 'new'}, 'done']; }" },
    },
    {
      _id: '_design/index', _rev: REV, language: 'query',
      views: {
        n: { map: { fields: { n: 'asc' }, partial_filter_selector: {} }, reduce: '_count', options: { def: { fields: ['n'] } } },
      },
    },
    { _id: '_local/x', _rev: '0-1' },
  ],
};

/** The requests: a path, and the bodies of methods (other methods are sent without one). `DB` stands for the database. */
const REQUESTS = [
  ['/'], ['/_up'], ['/_uuids'], ['/_utils'], ['/_utils/'], ['/favicon.ico'], ['/robots.txt'],
  ['/_session', { POST: { name: 'member', password: 'password' } }],
  ['/_all_dbs'], ['/_dbs_info', { POST: { keys: ['DB'] } }], ['/_active_tasks'], ['/_replicate', { POST: { source: 'DB', target: 'DB-copy' } }],
  ['/_scheduler/jobs'], ['/_scheduler/jobs/x'], ['/_scheduler/docs'], ['/_scheduler/docs/x'], ['/_scheduler'],
  ['/_node/_local'], ['/_node'], ['/_node/_local/_config'], ['/_node/_local/_config/beside'],
  ['/_node/_local/_config/beside/key', { PUT: '"value"' }], ['/_node/_local/_config/beside/key/more'],
  ['/_node/_local/_config/_reload'], ['/_node/_local/_stats'], ['/_node/_local/_system'], ['/_node/_local/_versions'],
  ['/_node/_local/nothing'], ['/_node/other@host/_config'],
  ['/_reshard'], ['/_reshard/jobs'], ['/_membership'], ['/_cluster_setup'], ['/_db_updates'], ['/_unknown'], ['/_config'], ['/_stats'],
  ['/_log'], ['/_restart'], ['/_search_analyze'], ['/_prometheus'],
  ['/DB', { POST: { _id: 'new' } }], ['/DB', { POST: { _id: '_design/new' } }], ['/DB-new'], ['/DB-none/doc'],
  ['/DB/_bulk_docs', { POST: { docs: [{ _id: 'new' }] } }], ['/DB/_bulk_docs', { POST: { docs: [{ _id: '_design/new' }] } }],
  ['/DB/_bulk_docs', { POST: { new_edits: false, docs: [{ _id: '_design/new', _rev: '1-a' }] } }],
  ['/DB/_bulk_get', { POST: { docs: [{ id: 'docid' }] } }], ['/DB/_all_docs', { POST: { keys: ['docid'] } }],
  ['/DB/_all_docs/queries', { POST: { queries: [{}] } }], ['/DB/_design_docs', { POST: { keys: ['_design/x'] } }],
  ['/DB/_design_docs/queries', { POST: { queries: [{}] } }], ['/DB/_local_docs', { POST: { keys: ['_local/x'] } }],
  ['/DB/_local_docs/queries', { POST: { queries: [{}] } }], ['/DB/_changes', { POST: { doc_ids: ['docid'] } }],
  ['/DB/_revs_diff', { POST: { docid: [REV] } }], ['/DB/_missing_revs', { POST: { docid: [REV] } }], ['/DB/_revs_limit', { PUT: '100' }],
  ['/DB/_security', { PUT: SECURITY }], ['/DB/_compact'], ['/DB/_compact/x'], ['/DB/_view_cleanup'], ['/DB/_ensure_full_commit'],
  ['/DB/_temp_view'], ['/DB/_find', { POST: { selector: {} } }], ['/DB/_explain', { POST: { selector: {} } }],
  ['/DB/_index', { POST: { index: { fields: ['m'] } } }], ['/DB/_index/_bulk_delete', { POST: { docids: ['_design/index'] } }],
  ['/DB/_index/_design/index/json/n'], ['/DB/_purge', { POST: { docid: [REV] } }], ['/DB/_purged_infos_limit', { PUT: '1000' }],
  ['/DB/_purged_infos'], ['/DB/_partition/x'], ['/DB/_sync_shards'], ['/DB/_shards'], ['/DB/_shards/x'], ['/DB/_auto_purge'], ['/DB/_time_seq'],
  ['/DB/_search_cleanup'], ['/DB/_nouveau_cleanup'], ['/DB/_unknown'],
  ['/DB/_local/x?rev=0-1', {}, ['GET', 'DELETE']], ['/DB/_local/new', { PUT: {} }], ['/DB/_local/x/rest'],
  ['/DB/_design/x/_view/view', { POST: { keys: [1] } }], ['/DB/_design/x/_view/view/queries', { POST: { queries: [{}] } }],
  ['/DB/_design/x/_info'], ['/DB/_design/x/_update/rest'], ['/DB/_design/x/_update/rest', { POST: '_design/new' }], ['/DB/_design/x/_unknown'],
  [`/DB/docid?rev=${REV}`, {}, ['GET', 'DELETE']], [`/DB/_design/x?rev=${REV}`, {}, ['GET', 'DELETE']], ['/DB/docid'],
  ['/DB/new', { PUT: {} }], ['/DB/_design/new', { PUT: {} }],
  [`/DB/docid/rest?rev=${REV}`], [`/DB/_design/x/rest?rev=${REV}`], [`/DB/docid/new?rev=${REV}`, { PUT: 'a' }],
  [`/DB/_design/x/new?rev=${REV}`, { PUT: 'a' }],
];

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'COPY', 'OPTIONS'];

test('every client is admitted and refused alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  for (const name of ['stranger', 'member', 'chief']) await sides.user(name);
  // Names are never reused: CouchDB may answer 412 for one that was just deleted.
  let [db, number] = [await sides.pair.database(), 0];
  const security = (object) => sides.must(`/${db}/_security`, { method: 'PUT', body: object });
  const renew = async () => {
    for (const name of [db, `${db}-new`, `${db}-copy`]) await sides.must(`/${name}`, { method: 'DELETE' }, [200, 404, 500]);
    db = `${db.replace(/-n\d+$/, '')}-n${number++}`;
    await sides.must(`/${db}`, { method: 'PUT' }, [201, 202]);
    await sides.must(`/${db}/_bulk_docs`, { method: 'POST', body: DOCUMENTS });
    await sides.must('/_node/_local/_config/beside/key', { method: 'PUT', body: '"value"' });
  };
  await sides.set({ 'beside/key': 'value' });
  const user = (name) => basic(name, 'password');
  const clients = [
    ['anonymous', SECURITY, {}], ['stranger', SECURITY, user('stranger')], ['public', { members: {}, admins: {} }, {}],
    ['member', SECURITY, user('member')], ['chief', SECURITY, user('chief')], ['admin', SECURITY, sides.admin],
  ];
  const only = process.env.ONLY ? new RegExp(process.env.ONLY) : /^/;
  for (const [client, object, headers] of clients) {
    await renew();
    await security(object);
    for (const [path, bodies = {}, methods = METHODS] of REQUESTS) {
      for (const method of methods) {
        const target = path.replaceAll('DB', db);
        if (!only.test(path)) continue;
        const body = bodies[method] === undefined ? undefined : JSON.stringify(bodies[method]).replaceAll('DB', db);
        const options = { method, headers: { ...headers }, body: typeof bodies[method] === 'string' ? bodies[method] : body };
        if (method === 'COPY') options.headers.destination = 'copied';
        const answers = await sides.same(client, target, options, refusal);
        const changed = Object.values(answers).some(({ status }) => status < 300);
        if (!['GET', 'HEAD', 'OPTIONS'].includes(method) && changed) {
          await renew();
          await security(object);
        }
      }
    }
  }
  for (const name of [db, `${db}-new`, `${db}-copy`]) await sides.must(`/${name}`, { method: 'DELETE' }, [200, 404, 500]);
  sides.end();
});

// ---------------------------------------------------------------------------------------------------------------------------------
// Sessions and passwords.

/** A cookie's attributes; its value only if it is empty, and no clock. */
const cookieOf = ({ headers }) => (headers['set-cookie'] ?? []).map((cookie) => {
  const [pair, ...attributes] = cookie.split('; ');
  // CouchDB does not trust a proxy that says that a client uses TLS.
  const plain = attributes.filter((one) => one !== 'Secure').map((one) => one.replace(/^Expires=.*/, 'Expires=')).sort();
  return [pair.split('=')[0], pair.split('=')[1] === '' ? '' : 'VALUE', ...plain];
});

const withCookie = (answer, sides) => {
  const { status, body, headers } = whole(answer);
  if (headers.location) headers.location = headers.location.replace(sides.urls.ours, '').replace(sides.urls.theirs, '');
  return { status, body: session(body), headers, cookie: cookieOf(answer) };
};

/** `authentication_handlers` is compared separately. */
function session(body) {
  if (!body?.info) return body;
  const { authentication_handlers: _, ...info } = body.info;
  return { ...body, info };
}

const value = (answer) => answer.headers['set-cookie']?.[0].split(';')[0] ?? '';

test('sessions begin, go on and end alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  await sides.user('anna', { roles: ['staff', 'lead'] });
  await sides.user('söffi');
  const form = { 'content-type': 'application/x-www-form-urlencoded' };
  const right = { name: 'anna', password: 'password' };
  const bodies = [
    [right], [{ username: 'anna', password: 'password' }], [{ ...right, username: 'anna' }], [{ ...right, username: 'b' }],
    [{ name: 'anna', password: 'wrong' }], [{ name: 'nobody', password: 'password' }], [{ name: 'anna' }], [{ password: 'password' }],
    [{ name: 1, password: 'password' }], [{ name: 'anna', password: 1 }], [{ name: null, password: 'password' }], [{ name: '', password: '' }],
    [{ name: 'anna', password: null }], [{ name: sides.name, password: sides.password }], [{ name: 'söffi', password: 'password' }],
    ['[]'], ['"x"'], ['1'], ['null'], ['{'], [''], ['{}'], [undefined],
    [{ ...right, next: '/x' }], [{ ...right, more: [1] }],
    ['name=anna&password=password', form], ['username=anna&password=password', form], ['name=anna', form], ['', form], ['password=x', form],
    ['name=anna&password=wrong', form], ['name=s%C3%B6ffi&password=password', form], ['name=anna&name=b&password=password', form],
    ['name=%zz&password=x', form], ['name=%ff&password=x', form], ['name=an+na&password=password', form], ['name=anna;password=password', form],
    [';name=anna;;password=password', form], ['name=anna&password=pass;word', form], ['name=anna;password=password;password=x', form], ['name=anna;password', form],
    ['name=anna&password=password%3B', form],
    ['name=anna&username=anna&password=password', form], ['name=anna&username=b&password=password', form],
    ['name=anna&password=password', { 'content-type': 'application/x-www-form-urlencoded; charset=utf-8' }],
    ['name=anna&password=password', { 'content-type': 'APPLICATION/X-WWW-FORM-URLENCODED' }],
    [right, { 'content-type': 'application/json; charset=utf-8' }], [right, { 'content-type': 'application/JSON' }],
    [right, { 'content-type': 'application/jsonx' }], [right, { 'content-type': 'text/plain' }], [right, { 'content-type': undefined }],
    [right, { 'content-type': 'application/vnd.api+json' }], [right, { accept: 'text/html' }], [right, { accept: 'text/plain' }],
    [right, basic('anna', 'wrong')], [right, { cookie: 'AuthSession=!!' }], [right, sides.admin], [right, { 'content-type': 'json' }],
  ];
  for (const [body, headers = {}] of bodies) {
    const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
    await sides.same('login', '/_session', { method: 'POST', headers, body: text }, withCookie);
  }
  for (const query of ['next=/x', 'next=/x/y%3Fa=b%23c', 'next=x', 'next=', 'next=//host', 'next=http://host/', 'next=%2F%5Chost', 'fail=/f',
    'fail=f', 'next=/a&fail=/b', 'next=/a%0d%0aX:1', 'basic=true', 'next=/%C3%BC', 'next=/a%20b']) {
    for (const password of ['password', 'wrong']) {
      const body = { name: 'anna', password };
      await sides.same('login', `/_session?${query}`, { method: 'POST', body }, withCookie);
    }
    await sides.same('logout', `/_session?${query}`, { method: 'DELETE' }, withCookie);
    await sides.same('session', `/_session?${query}`, {}, withCookie);
  }
  const login = await sides.both('/_session', { method: 'POST', body: right });
  const cookies = { [sides.urls.ours]: value(login.ours), [sides.urls.theirs]: value(login.theirs) };
  const by = (change, more = {}) => (url) => ({ ...more, headers: { ...more.headers, cookie: change(cookies[url]) } });
  const raw = (cookie) => Buffer.from(cookie.split('=').slice(1).join('='), 'base64url');
  const packed = (bytes) => `AuthSession=${Buffer.from(bytes).toString('base64url')}`;
  const flipped = (at) => (cookie) => {
    const bytes = raw(cookie);
    bytes[at < 0 ? bytes.length + at : at] ^= 1;
    return packed(bytes);
  };
  const changes = [
    ['its own', (cookie) => cookie], ['among others', (cookie) => `a=b; ${cookie}; c=d`], ['no space', (cookie) => `a=b;${cookie};c=d`],
    ['quoted', (cookie) => cookie.replace('=', '="') + '"'], ['twice', (cookie) => `${cookie}; AuthSession=x`],
    ['second', (cookie) => `AuthSession=x; ${cookie}`], ['lower case', (cookie) => cookie.replace('AuthSession', 'authsession')],
    ['padded', (cookie) => `${cookie}=`], ['padded twice', (cookie) => `${cookie}==`], ['cut', (cookie) => cookie.slice(0, -4)],
    ['longer', (cookie) => `${cookie}AAAA`], ['plain base64', (cookie) => `AuthSession=${raw(cookie).toString('base64')}`],
    ['empty', () => 'AuthSession='], ['nameless', () => 'AuthSession'], ['none', () => 'a=b'], ['no base64', () => 'AuthSession=!!'],
    ['one letter', () => 'AuthSession=a'], ['one part', () => packed('anna')], ['two parts', () => packed('anna:1')], ['three', () => packed('a:1:b')],
    ['no hex', () => packed('anna:xyz:b')], ['no user', () => packed('nobody:65000000:b')], ['bytes', () => packed([255, 58, 49, 58, 1])],
    ['no name', () => packed(':65000000:b')], ['first', flipped(0)], ['last', flipped(-1)], ['space', (cookie) => `${cookie} `],
    ['percent', (cookie) => cookie.replace('=', '%3D')], ['tab', (cookie) => cookie.replace('=', '=\t')],
  ];
  for (const [what, change] of changes) {
    await sides.same(`cookie ${what}`, '/_session', by(change), withCookie);
    await sides.same(`cookie ${what}`, '/_all_dbs', by(change), withCookie);
    await sides.same(`cookie ${what} and a password`, '/_session', by(change, { headers: basic('söffi', 'password') }), withCookie);
    await sides.same(`cookie ${what} and a wrong password`, '/_session', by(change, { headers: basic('söffi', 'wrong') }), withCookie);
  }
  await sides.same('login with a cookie', '/_session', by((cookie) => cookie, { method: 'POST', body: { name: 'söffi', password: 'password' } }), withCookie);
  await sides.same('failed login with a cookie', '/_session', by((cookie) => cookie, { method: 'POST', body: { name: 'söffi' } }), withCookie);
  await sides.same('logout with a cookie', '/_session', by((cookie) => cookie, { method: 'DELETE' }), withCookie);
  await sides.same('after the logout', '/_session', by((cookie) => cookie), withCookie);

  for (const settings of [
    { 'chttpd_auth/allow_persistent_cookies': 'false' }, { 'chttpd_auth/cookie_domain': 'example.com' }, { 'chttpd_auth/same_site': 'strict' },
    { 'chttpd_auth/same_site': 'LAX' }, { 'chttpd_auth/same_site': 'none' }, { 'chttpd_auth/same_site': 'x' }, { 'chttpd_auth/same_site': '' },
    { 'chttpd_auth/timeout': '3600' }, { 'chttpd_auth/cookie_domain': '' }, { 'chttpd_auth/allow_persistent_cookies': 'x' },
  ]) {
    await sides.set(settings);
    const what = JSON.stringify(settings);
    await sides.same(what, '/_session', { method: 'POST', body: right }, withCookie);
    await sides.same(what, '/_session', { method: 'DELETE' }, withCookie);
    await sides.same(what, '/_session', { method: 'POST', headers: { 'x-forwarded-proto': 'https' }, body: right }, withCookie);
    await sides.set(Object.fromEntries(Object.keys(settings).map((key) => [key, undefined])));
  }
  // Renewal and end.
  await sides.set({ 'chttpd_auth/timeout': '2' });
  const short = await sides.both('/_session', { method: 'POST', body: right });
  Object.assign(cookies, { [sides.urls.ours]: value(short.ours), [sides.urls.theirs]: value(short.theirs) });
  for (let times = 0; times < 3; times++) {
    await sleep(1100);
    await sides.same(`${times} s`, '/_session', by((cookie) => cookie), times ? ({ status, body }) => ({ status, body: session(body) }) : withCookie);
  }
  sides.end();
});

test('passwords of requests are read alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  await sides.user('anna');
  await sides.user('söffi', { password: 'pä:ss' });
  await sides.user('leer', { password: '' });
  const b64 = (text, coding = 'utf8') => Buffer.from(text, coding).toString('base64');
  const forms = [
    `Basic ${b64('anna:password')}`, `basic ${b64('anna:password')}`, `BASIC ${b64('anna:password')}`, `Basic  ${b64('anna:password')}`,
    `Basic ${b64('anna:password')} `, `Basic ${b64('anna:wrong')}`, `Basic ${b64('anna:')}`, `Basic ${b64('anna')}`, `Basic ${b64(':password')}`,
    `Basic ${b64(':')}`, 'Basic', 'Basic ', 'Basic !!', 'Basic a', `Basic ${b64('anna:password').replace(/=+$/, '')}`, `Basic ${b64('leer:')}`,
    `Basic ${b64('söffi:pä:ss')}`, `Basic ${b64('söffi:pä:ss', 'latin1')}`, `Basic ${b64('anna:password:x')}`, `Basic ${b64('anna:pass\0word')}`,
    `Basic ${b64('anna: password')}`, `Basic ${b64(' anna:password')}`, `Basic ${b64('anna@host:password')}`, `Basic ${b64('anna:password\n')}`,
    'Bearer x', 'Bearer', 'Digest username="anna"', 'x', '', `Basic ${b64('_admin:x')}`, `Basic ${b64('nobody:x')}`, `Basic ${b64('anna:password')},x`,
    `Basic\t${b64('anna:password')}`, `Basic ${Buffer.from('anna:pass?>word').toString('base64url')}`, `Basic ${b64(`${sides.name}:${sides.password}`)}`,
    `Basic ${b64(`${sides.name}:wrong`)}`, `Negotiate ${b64('anna:password')}`,
  ];
  for (const authorization of forms) {
    for (const path of ['/_session', '/_session?basic=true', '/_users/none', '/none']) {
      await sides.same('basic', path, { headers: { authorization } }, withCookie);
    }
  }
  for (const headers of [{ 'x-couchdb-www-authenticate': 'Cookie' }, { accept: 'text/html' }, { accept: 'text/html,application/json' },
    { accept: 'text/html', 'x-couchdb-www-authenticate': 'Cookie' }, { accept: '*/*' }, { accept: 'text/plain' }, { accept: 'application/xhtml+xml' }]) {
    for (const path of ['/_all_dbs', '/_users/x', '/_session?basic=true', '/none', '/_all_dbs?x=1']) {
      await sides.same('refusal', path, { headers }, withCookie);
      await sides.same('refusal', path, { headers: { ...basic('anna', 'wrong'), ...headers } }, withCookie);
      await sides.same('refusal', path, { headers: { ...basic('anna', 'password'), ...headers } }, withCookie);
    }
  }
  for (const settings of [
    { 'chttpd/require_valid_user': 'true' }, { 'chttpd/require_valid_user_except_for_up': 'true' },
    { 'chttpd/require_valid_user': 'true', 'chttpd/require_valid_user_except_for_up': 'true' }, { 'chttpd/WWW-Authenticate': 'Basic realm="x"' },
    { 'httpd/WWW-Authenticate': 'Basic realm="y"' }, { 'chttpd_auth/require_valid_user': 'true' }, { 'chttpd/require_valid_user': 'yes' },
  ]) {
    await sides.set(settings);
    const what = JSON.stringify(settings);
    for (const [method, path] of [['GET', '/'], ['GET', '/_up'], ['HEAD', '/_up'], ['GET', '/_session'], ['DELETE', '/_session'], ['GET', '/_session?basic=true'],
      ['GET', '/_utils/'], ['GET', '/favicon.ico'], ['GET', '/_uuids'], ['OPTIONS', '/'], ['GET', '/none'], ['GET', '/_up/x'], ['POST', '/_session']]) {
      for (const headers of [{}, basic('anna', 'password'), basic('anna', 'wrong'), { cookie: 'AuthSession=!!' }, { accept: 'text/html' }]) {
        const options = { method, headers, ...(method === 'POST' ? { body: { name: 'anna', password: 'password' } } : {}) };
        await sides.same(what, path, options, (answer) => (answer.status < 300 && path !== '/_session' ? { status: answer.status } : withCookie(answer, sides)));
      }
    }
    await sides.set(Object.fromEntries(Object.keys(settings).map((key) => [key, undefined])));
  }
  sides.end();
});

// ---------------------------------------------------------------------------------------------------------------------------------
// Tokens and proxies.

const coded = (data) => Buffer.from(typeof data === 'string' ? data : JSON.stringify(data)).toString('base64url');

test('tokens prove the same', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  const secret = Buffer.from('geheim');
  if (!sides.trustsOthers) return skipLoudly(t, `start CouchDB with [chttpd] authentication_handlers = ${HANDLERS}`);
  const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const ec384 = generateKeyPairSync('ec', { namedCurve: 'P-384' });
  const pem = (pair) => pair.publicKey.export({ type: 'spki', format: 'pem' }).trim().replaceAll('\n', '\\n');
  await sides.set({
    'jwt_keys/hmac:_default': secret.toString('base64'), 'jwt_keys/hmac:k': Buffer.from('other').toString('base64'),
    'jwt_keys/rsa:r': pem(rsa), 'jwt_keys/ec:e': pem(ec), 'jwt_keys/ec:f': pem(ec384), 'jwt_keys/hmac:bad': '!!', 'jwt_keys/rsa:bad': 'x',
    'jwt_keys/hmac:a:b': secret.toString('base64'),
  });
  const hash = (alg) => `sha${alg.slice(2)}`;
  const sign = (head, claims, key) => {
    const signed = `${coded(head)}.${coded(claims)}`;
    const alg = String(head.alg);
    let signature;
    if (alg.startsWith('HS')) signature = createHmac(hash(alg), key ?? secret).update(signed).digest();
    else if (alg.startsWith('RS')) signature = createSign(hash(alg)).update(signed).sign(rsa.privateKey);
    else if (alg.startsWith('ES')) {
      signature = createSign(hash(alg)).update(signed).sign({ key: (alg === 'ES384' ? ec384 : ec).privateKey, dsaEncoding: key ?? 'ieee-p1363' });
    } else signature = Buffer.from('');
    return `${signed}.${signature.toString('base64url')}`;
  };
  const now = Math.floor(Date.now() / 1000);
  const hs = { alg: 'HS256' };
  const anna = { sub: 'anna' };
  const roles = (value) => ({ sub: 'anna', '_couchdb.roles': value });
  const tokens = [
    ...['HS256', 'HS384', 'HS512'].map((alg) => sign({ alg }, anna)), sign({ alg: 'HS256', kid: 'k' }, anna, 'other'),
    sign({ alg: 'HS256', kid: 'k' }, anna), sign({ alg: 'HS256', kid: 'none' }, anna), sign({ alg: 'HS256', kid: 'a:b' }, anna),
    sign({ alg: 'HS256', kid: 'bad' }, anna), sign({ alg: 'RS256', kid: 'bad' }, anna),
    ...['RS256', 'RS384', 'RS512'].map((alg) => sign({ alg, kid: 'r' }, anna)), sign({ alg: 'RS256' }, anna),
    sign({ alg: 'ES256', kid: 'e' }, anna), sign({ alg: 'ES256', kid: 'e' }, anna, 'der'), sign({ alg: 'ES384', kid: 'f' }, anna),
    sign({ alg: 'ES256', kid: 'f' }, anna), sign({ alg: 'HS256', kid: 'r' }, anna), sign({ alg: 'none' }, anna), sign({ alg: 'HS1' }, anna),
    sign({}, anna), sign({ alg: 'hs256' }, anna), sign({ alg: 1 }, anna), sign({ alg: 'HS256', typ: 'JWT' }, anna),
    sign({ alg: 'HS256', typ: 'jwt' }, anna), sign({ alg: 'HS256', typ: 'x' }, anna), sign({ alg: 'HS256', typ: 1 }, anna),
    sign({ alg: 'HS256', kid: '' }, anna), sign({ alg: 'HS256', kid: 1 }, anna), sign({ alg: 'HS256', crit: ['x'] }, anna),
    sign(hs, {}), sign(hs, { sub: '' }), sign(hs, { sub: 1 }), sign(hs, { sub: null }), sign(hs, { sub: 'a:b' }), sign(hs, { sub: 'söffi' }),
    sign(hs, { sub: '_admin' }), sign(hs, { sub: sides.name }),
    ...[['a', 'b'], [], 'a,b', 'a, b', '', ' a ,, b', 'a', ['_admin'], 1, { a: 1 }, ['a', 1], null, [' a'], ['a,b']].map((value) => sign(hs, roles(value))),
    ...[['exp', 10], ['exp', -10], ['exp', 0], ['nbf', 10], ['nbf', -10], ['iat', 10], ['iat', -10]].map(([name, plus]) => sign(hs, { ...anna, [name]: now + plus })),
    ...['exp', 'nbf', 'iat'].flatMap((name) => ['x', null, 1.5, true, `${now + 10}`].map((time) => sign(hs, { ...anna, [name]: time }))),
    sign(hs, { ...anna, iss: 'x', aud: ['y'] }), sign(hs, []), sign(hs, 'x'), `${coded('{')}.${coded('{}')}.x`, 'a.b.c', '..', 'x', 'a.b', 'a.b.c.d', '',
    sign(hs, anna).slice(0, -1), `${sign(hs, anna)}A`, `${sign(hs, anna)}=`, sign(hs, anna, 'wrong'), sign(hs, anna).replace('.', '..'),
    `${coded(hs)}.${coded('{"sub":"anna","sub":"b"}')}.${createHmac('sha256', secret).update(`${coded(hs)}.${coded('{"sub":"anna","sub":"b"}')}`).digest('base64url')}`,
    sign(hs, { sub: 'anna', roles: ['r'], a: { b: ['deep'] }, 'a.b': ['dot'], iss: 'me' }), sign(hs, { sub: 'anna', exp: now + 100, iat: now - 5, iss: 'me', nbf: now - 5 }),
    sign(hs, { sub: 'anna', exp: now + 100 }), sign(hs, { sub: 'anna', iss: 'you' }), sign(hs, { sub: 'anna', iss: 1, n: 5 }), sign(hs, { sub: 'anna', n: '5' }),
  ];
  const all = async (what, list) => {
    for (const token of list) {
      const shown = token.split('.').slice(0, 2).map((part) => Buffer.from(part, 'base64url')).join(' ');
      await sides.same(`${what} ${shown}`, '/_session', { headers: { authorization: `Bearer ${token}` } }, withCookie);
    }
  };
  // Without this, CouchDB and this server require `exp`.
  await all('by default', [tokens[0], sign(hs, { ...anna, exp: now + 100 }), sign(hs, { ...anna, exp: now - 100 })]);
  await sides.set({ 'jwt_auth/required_claims': '' });
  await all('token', tokens);
  for (const authorization of ['Bearer', 'Bearer ', `bearer ${tokens[0]}`, `BEARER ${tokens[0]}`, `Bearer  ${tokens[0]}`, `Bearer ${tokens[0]} `, `JWT ${tokens[0]}`,
    tokens[0]]) {
    await sides.same('scheme', '/_session', { headers: { authorization } }, withCookie);
    await sides.same('scheme', '/_all_dbs', { headers: { authorization } }, withCookie);
  }
  for (const settings of [
    { 'jwt_auth/required_claims': 'exp' }, { 'jwt_auth/required_claims': 'exp,iat' }, { 'jwt_auth/required_claims': 'exp, iat, nbf' },
    { 'jwt_auth/required_claims': '{iss, "me"}' }, { 'jwt_auth/required_claims': 'exp, {iss, "me"}' }, { 'jwt_auth/required_claims': 'sub' },
    { 'jwt_auth/required_claims': 'iss' }, { 'jwt_auth/required_claims': 'unknown' }, { 'jwt_auth/required_claims': '' },
    { 'jwt_auth/required_claims': '{n, 5}' }, { 'jwt_auth/required_claims': '{{' }, { 'jwt_auth/required_claims': 'alg' }, { 'jwt_auth/required_claims': 'kid, typ' },
    { 'jwt_auth/roles_claim_name': 'roles' }, { 'jwt_auth/roles_claim_path': 'a.b' }, { 'jwt_auth/roles_claim_path': 'a\\.b' },
    { 'jwt_auth/roles_claim_path': '_couchdb\\.roles' }, { 'jwt_auth/roles_claim_path': 'none.x' }, { 'jwt_auth/roles_claim_path': '' }, { 'jwt_auth/roles_claim_name': '' },
    { 'jwt_auth/roles_claim_name': 'a.b' }, { 'jwt_auth/roles_claim_path': 'sub.x' }, { 'jwt_auth/roles_claim_name': 'roles', 'jwt_auth/roles_claim_path': 'a.b' },
  ]) {
    await sides.set(settings);
    await all(JSON.stringify(settings), [tokens[0], ...tokens.slice(-6), sign(hs, { ...anna, exp: now - 10 }), sign({ ...hs, typ: 'JWT', kid: '_default' }, anna)]);
    await sides.set(Object.fromEntries(Object.keys(settings).map((key) => [key, undefined])));
  }
  await sides.user('anna');
  await sides.same('a token and a password', '/_session', { headers: { authorization: [`Bearer ${tokens[0]}`, basic('anna', 'password').authorization] } }, withCookie);
  sides.end();
});

test('headers of a proxy prove the same', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  await sides.user('anna');
  if (!sides.trustsOthers) return skipLoudly(t, `start CouchDB with [chttpd] authentication_handlers = ${HANDLERS}`);
  // Here it is the default. CouchDB's default is `false`: every client that reaches it may name anyone.
  await sides.set({ 'chttpd_auth/secret': 'geheim', 'chttpd_auth/proxy_use_secret': 'true' });
  const token = (name, hash = 'sha256', secret = 'geheim') => createHmac(hash, secret).update(name).digest('hex');
  const user = (name, token, roles) => ({
    'x-auth-couchdb-username': name, 'x-auth-couchdb-token': token, 'x-auth-couchdb-roles': roles,
  });
  const requests = [
    user('anna', token('anna')), user('anna', token('anna'), ''), user('anna', token('anna'), 'a'), user('anna', token('anna'), 'a,b'),
    user('anna', token('anna'), 'a, b'), user('anna', token('anna'), ',a,,b,'), user('anna', token('anna'), '_admin'),
    user('anna', token('anna').toUpperCase()), user('anna', token('anna', 'sha1')), user('anna', token('anna', 'sha512')), user('anna', token('berta')),
    user('anna', ''), user('anna', undefined, 'a'), user('anna', 'zz'), user('', token('')), user(undefined, token('')), user('anna', token('anna', 'sha256', 'x')),
    user('nobody', token('nobody'), 'x'), user('anna', token('anna').slice(0, -2)), user(' anna', token('anna')), user('a%20b', token('a b')),
    { ...user('anna', token('anna')), ...basic('anna', 'wrong') }, { ...user('berta', token('x')), ...basic('anna', 'password') },
    { 'x-auth-user': 'anna', 'x-auth-t': token('anna'), 'x-auth-r': 'r' },
  ];
  const all = async (what) => {
    for (const headers of requests) await sides.same(what, '/_session', { headers }, withCookie);
  };
  await all('proxy');
  for (const settings of [
    { 'chttpd_auth/proxy_use_secret': 'false' },     { 'chttpd_auth/x_auth_username': 'X-Auth-User', 'chttpd_auth/x_auth_token': 'X-Auth-T', 'chttpd_auth/x_auth_roles': 'X-Auth-R' },
    { 'chttpd_auth/hash_algorithms': 'sha256' }, { 'chttpd_auth/hash_algorithms': 'sha512, sha256, sha' },
  ]) {
    await sides.set(settings);
    await all(JSON.stringify(settings));
    await sides.set(Object.fromEntries(Object.keys(settings).map((key) => [key, key === 'chttpd_auth/proxy_use_secret' ? 'true' : undefined])));
  }
  sides.end();
});

// ---------------------------------------------------------------------------------------------------------------------------------
// Users.

/** An answer about a document: hashes, salts and revisions are random, so only their presence is compared. */
function documentOf(answer) {
  const { body } = answer;
  const plain = (object) => {
    if (!object || typeof object !== 'object') return object;
    if (Array.isArray(object)) return object.map(plain);
    return Object.fromEntries(Object.entries(object).sort().map(([name, value]) => {
      if (['_rev', 'rev', 'ref'].includes(name)) return [name, 'ANY'];
      if (['salt', 'derived_key', 'password_sha'].includes(name)) return [name, typeof value === 'string' ? value.length : value];
      return [name, plain(value)];
    }));
  };
  return { status: answer.status, body: plain(body) };
}

test('documents of users are checked, stored and shown alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  const open = { members: { names: [], roles: [] }, admins: { names: ['chief'], roles: [] } };
  const security = (object) => sides.must('/_users/_security', { method: 'PUT', body: object });
  const before = await send(sides.urls.theirs, '/_users/_security', { headers: sides.admin });
  t.after(() => send(sides.urls.theirs, '/_users/_security', { method: 'PUT', headers: sides.admin, body: before.body }));
  for (const name of ['anna', 'berta', 'chief']) await sides.user(name);
  const clients = () => [['admin', sides.admin], ['anna', basic('anna', 'password')], ['chief', basic('chief', 'password')], ['anonymous', {}]];
  const user = (more) => ({ type: 'user', name: 'neu', roles: [], password: 'geheim', ...more });
  const without = (...names) => Object.fromEntries(Object.entries(user()).filter(([name]) => !names.includes(name)));
  const hashed = { password: undefined, password_scheme: 'pbkdf2', iterations: 10, salt: 'abc', derived_key: 'ab'.repeat(20) };
  const ID = '/_users/org.couchdb.user:neu';
  const documents = [
    user(), without('type'), user({ type: 'x' }), user({ type: 1 }), without('name'), user({ name: '' }), user({ name: 1 }), user({ name: null }), user({ name: 'Neu' }),
    without('roles'), user({ roles: null }), user({ roles: 'x' }), user({ roles: {} }), user({ roles: [1] }), user({ roles: ['a'] }), user({ roles: ['_admin'] }),
    user({ roles: ['_x'] }), user({ roles: ['_metrics'] }), user({ roles: [''] }), user({ roles: ['a', 'a'] }), user({ roles: [null] }),
    without('password'), user({ password: null }), user({ password: '' }), user({ password: 1 }), user({ password: ['x'] }), user({ password: {} }), user({ password: false }),
    user(hashed), user({ ...hashed, password: 'geheim' }), user({ ...hashed, iterations: undefined }), user({ ...hashed, iterations: '10' }),
    user({ ...hashed, iterations: 0 }), user({ ...hashed, iterations: -1 }), user({ ...hashed, iterations: 1.5 }), user({ ...hashed, derived_key: undefined }),
    user({ ...hashed, derived_key: 1 }), user({ ...hashed, salt: undefined }), user({ ...hashed, salt: 1 }), user({ ...hashed, pbkdf2_prf: 'sha256' }),
    user({ ...hashed, pbkdf2_prf: 'x' }), user({ ...hashed, pbkdf2_prf: 1 }), user({ ...hashed, password_scheme: 'rot13' }), user({ ...hashed, password_scheme: 1 }),
    user({ ...hashed, password_scheme: null }), user({ ...hashed, password_scheme: 'simple' }), user({ ...hashed, derived_key: 'zz' }), user({ ...hashed, derived_key: '' }),
    user({ password: undefined, password_sha: 'ab'.repeat(20) }), user({ password: undefined, password_sha: 'ab'.repeat(20), salt: 'x' }),
    user({ password: undefined, password_sha: 1, salt: 'x' }), user({ password: 'geheim', password_sha: 'ab' }), user({ password: undefined, password_scheme: 'simple', password_sha: 'ab', salt: 'x' }),
    user({ more: { a: [1] } }), user({ salt: 'mine' }), user({ iterations: 5 }), user({ _deleted: true }), user({ totp: { key: 'x' } }), user({ metadata: 1, derived_key: 'x' }),
    user({ _id: 'org.couchdb.user:other' }), [], 'x', {},
  ];
  const forget = async () => {
    for (const side of ['ours', 'theirs']) await sides.remove(side, ID);
  };
  const write = async (what, document, headers) => {
    const body = typeof document === 'string' ? document : JSON.stringify(document);
    const answers = await sides.same(`${what} writes`, ID, { method: 'PUT', headers, body }, documentOf);
    if (Object.values(answers).every(({ status }) => status === 201)) {
      await sides.same(`${what} wrote ${body}`, ID, { headers: sides.admin }, documentOf);
      await sides.same(`${what} wrote ${body}`, '/_session', { method: 'POST', body: { name: 'neu', password: 'geheim' } }, documentOf);
    }
    await forget();
  };
  await forget();
  await security(open);
  for (const [who, headers] of clients()) for (const document of documents) await write(who, document, headers);
  for (const id of ['x', 'org.couchdb.user:', 'org.couchdb.user', '_design/x', 'org.couchdb.user:_x', 'org.couchdb.user:a:b', '_local/x']) {
    for (const [who, headers] of clients()) {
      const name = id.split(':').slice(1).join(':');
      await sides.same(who, `/_users/${id}`, { method: 'PUT', headers, body: { type: 'user', name, roles: [], password: 'x' } }, documentOf);
      await sides.same(who, `/_users/${id}`, { headers }, documentOf);
      for (const side of ['ours', 'theirs']) await sides.remove(side, `/_users/${id}`);
    }
  }
  // Changes of an existing document.
  const changes = [
    (doc) => doc, (doc) => ({ ...doc, password: 'neues' }), (doc) => ({ ...doc, roles: ['x'] }), (doc) => ({ ...doc, name: 'x' }), (doc) => ({ ...doc, type: 'x' }),
    (doc) => ({ ...doc, more: 1 }), (doc) => ({ ...doc, salt: 'x' }), (doc) => ({ ...doc, derived_key: undefined }), (doc) => ({ ...doc, password: null }),
    (doc) => ({ ...doc, password_scheme: 'simple' }), (doc) => ({ ...doc, iterations: 11 }), (doc) => ({ ...doc, _rev: undefined }), (doc) => ({ ...doc, _rev: '1-a' }),
    (doc) => ({ _id: doc._id, _rev: doc._rev, _deleted: true }), (doc) => ({ ...doc, _deleted: true }), (doc) => ({ ...doc, password: '' }),
  ];
  for (const name of ['anna', 'berta']) {
    const path = `/_users/org.couchdb.user:${name}`;
    for (const [who, headers] of clients()) {
      await sides.same(`${who} reads`, path, { headers }, documentOf);
      await sides.same(`${who} reads`, `${path}?revs=true&conflicts=true`, { headers }, (answer) => refusal(answer));
      for (const [at, change] of changes.entries()) {
        const stored = {};
        for (const side of ['ours', 'theirs']) stored[sides.urls[side]] = (await send(sides.urls[side], path, { headers: sides.admin })).body;
        const put = (url) => ({ method: 'PUT', headers, body: change(stored[url]) });
        const what = `${who} changes ${name} (${at}: ${change})`;
        const answers = await sides.same(what, path, put, documentOf);
        const changed = Object.values(answers).some(({ status }) => status === 201);
        if (changed) {
          await sides.same(`${what}: after it`, path, { headers: sides.admin }, documentOf);
          for (const password of ['password', 'neues', '']) {
            await sides.same(`${what}: login ${password}`, '/_session', { method: 'POST', body: { name, password } }, documentOf);
          }
          await sides.user(name);
        }
      }
    }
  }
  // The view of members.
  for (const fields of [undefined, 'name', 'name, more', 'none', 'salt', '_id,roles', '']) {
    await sides.set({ 'chttpd_auth/public_fields': fields, 'couch_httpd_auth/public_fields': fields });
    for (const [who, headers] of clients()) {
      for (const path of ['/_users/org.couchdb.user:berta', '/_users/org.couchdb.user:anna', '/_users', '/_users/_all_docs', '/_users/_changes', '/_users/_design/_auth',
        '/_users/org.couchdb.user:none', '/_users/_security', '/_users/_design_docs', '/_users/org.couchdb.user:berta?rev=1-a', '/_users/_revs_limit']) {
        const view = path.includes('org.couchdb') ? documentOf : refusal;
        await sides.same(`public_fields ${fields}, ${who}`, path, { headers }, view);
      }
    }
  }
  for (const setting of ['false', 'true']) {
    await sides.set({ 'couchdb/users_db_security_editable': setting });
    for (const [who, headers] of clients()) {
      await sides.same(`users_db_security_editable ${setting}, ${who}`, '/_users/_security', { method: 'PUT', headers, body: open }, documentOf);
    }
  }
  sides.end();
});

test('passwords are hashed and renewed alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  const path = '/_users/org.couchdb.user:anna';
  const show = async (what) => {
    await sides.same(what, path, { headers: sides.admin }, documentOf);
    await sides.same(what, '/_session', { method: 'POST', body: { name: 'anna', password: 'password' } }, documentOf);
    await sleep(300);
    await sides.same(`${what}, after a login`, path, { headers: sides.admin }, documentOf);
  };
  for (const settings of [
    {}, { 'chttpd_auth/pbkdf2_prf': 'sha' }, { 'chttpd_auth/pbkdf2_prf': 'sha512' }, { 'chttpd_auth/pbkdf2_prf': 'sha224' },
    { 'chttpd_auth/iterations': '7' }, { 'chttpd_auth/password_scheme': 'simple' }, { 'chttpd_auth/upgrade_hash_on_auth': 'false' },
    { 'chttpd_auth/min_iterations': '20' }, { 'chttpd_auth/max_iterations': '5' },
  ]) {
    await sides.set(settings);
    await sides.user('anna');
    await show(JSON.stringify(settings));
    await sides.set(Object.fromEntries(Object.keys(settings).map((key) => [key, key === 'chttpd_auth/iterations' ? '10' : undefined])));
    await show(`${JSON.stringify(settings)} no more`);
  }
  // SHA-1 of "password" and the salt, as before CouchDB 1.3; and PBKDF2 without a function, as before 3.4.
  const { createHash, pbkdf2Sync } = await import('node:crypto');
  const old = [
    { password_sha: createHash('sha1').update('passwordsalz').digest('hex'), salt: 'salz' },
    { password_scheme: 'simple', password_sha: createHash('sha1').update('passwordsalz').digest('hex'), salt: 'salz' },
    { password_scheme: 'pbkdf2', iterations: 10, salt: 'salz', derived_key: pbkdf2Sync('password', 'salz', 10, 20, 'sha1').toString('hex') },
    { password_scheme: 'pbkdf2', iterations: 10, salt: 'salz', derived_key: pbkdf2Sync('password', 'salz', 10, 20, 'sha1').toString('hex').toUpperCase() },
    { password_scheme: 'pbkdf2', pbkdf2_prf: 'sha512', iterations: 3, salt: 'salz', derived_key: pbkdf2Sync('password', 'salz', 3, 64, 'sha512').toString('hex') },
    { password_scheme: 'pbkdf2', pbkdf2_prf: 'sha256', iterations: 10, salt: 'salz', derived_key: pbkdf2Sync('password', 'salz', 10, 20, 'sha256').toString('hex') },
  ];
  for (const more of old) {
    await sides.user('anna', { password: undefined, ...more });
    await show(JSON.stringify(more));
  }
  const changed = '/_users/org.couchdb.user:regexp';
  const put = (what, password, more) => sides.same(what, changed, { method: 'PUT', headers: sides.admin, body: { type: 'user', name: 'regexp', roles: [], password, ...more } }, documentOf);
  for (const setting of ['[{"^.{4,}$", "Too short."}, "[0-9]"]', '', '[]', '[ ]', '["a"]', '[{"a"}]', '[{"a",""}]', '[{"a","b","c"}]', 'x', '"a"', '[a]', '[5]', '["a" "b"]', '{"a"}', '["a"',
    '["\\\\d"]', '["\\d"]', '["a",]', ' [ "a" , {"b","B"} ] ', '["(?i)A"]', '["é"]', '["^.$"]', '["\\x61"]', '["\\141"]', '["\\x{61}"]', '[<<"a">>]', '["a"].', '[{"a","r\\"q"}]', '["$a"]']) {
    await sides.set({ 'chttpd_auth/password_regexp': setting });
    for (const password of ['abc', 'abcd', 'abcd1', '', 'é', 'a', 'b']) {
      await put(`password_regexp ${setting}`, password);
      for (const side of ['ours', 'theirs']) await sides.remove(side, changed);
    }
  }
  // The rule is checked before other errors, and only for passwords.
  await sides.set({ 'chttpd_auth/password_regexp': '["[0-9]"]' });
  for (const more of [{ type: 'x' }, { roles: ['_x'] }, { name: 'x' }, { password: null }, { password: undefined }]) await put('password_regexp', 'a', more);
  for (const side of ['ours', 'theirs']) await sides.remove(side, changed);
  await put('password_regexp', '1');
  for (const password of ['a', '1']) await put('password_regexp of a conflict', password);
  for (const side of ['ours', 'theirs']) await sides.remove(side, changed);
  await sides.set({ 'chttpd_auth/password_regexp': undefined });
  for (const scheme of ['x', '', 'SIMPLE', 'simple+pbkdf2']) {
    await sides.set({ 'chttpd_auth/password_scheme': scheme });
    await put(`password_scheme ${scheme}`, 'a');
  }
  // A scheme that changes after a login.
  await sides.set({ 'chttpd_auth/password_scheme': undefined });
  const login = () => sides.same('a scheme that changes', '/_session', { method: 'POST', body: { name: 'anna', password: 'password' } }, documentOf);
  for (const settings of [{ 'chttpd_auth/iterations': '12' }, { 'chttpd_auth/password_scheme': 'simple' }, { 'chttpd_auth/pbkdf2_prf': 'sha512' }]) {
    await sides.user('anna');
    await login();
    await sides.set(settings);
    // Both wait five seconds before they store a user's password again.
    await sleep(5_300);
    await login();
    await sleep(300);
    await sides.same(`a scheme that changes: ${JSON.stringify(settings)}`, path, { headers: sides.admin }, documentOf);
    await sides.set({ 'chttpd_auth/iterations': '10', 'chttpd_auth/password_scheme': undefined, 'chttpd_auth/pbkdf2_prf': undefined });
  }
  // Hashes of hashes.
  const simple = createHash('sha1').update('passwordsalz').digest('hex');
  await sides.user('anna', { password: undefined, password_scheme: 'simple+pbkdf2', pbkdf2_prf: 'sha256', iterations: 7, salt: 'salz', derived_key: pbkdf2Sync(simple, 'salz', 7, 32, 'sha256').toString('hex') });
  await show('simple+pbkdf2');
  sides.end();
});

test('failed logins lock accounts alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  for (const settings of [{}, { threshold: '2' }, { threshold: '0' }, { threshold: 'x' }, { mode: 'warn' }, { mode: 'off' }]) {
    const all = { mode: 'enforce', threshold: undefined, ...settings };
    await sides.set(Object.fromEntries(Object.entries(all).map(([name, value]) => [`chttpd_auth_lockout/${name}`, value])));
    const what = JSON.stringify(settings);
    // A new document has a new salt, by which failures are counted.
    await sides.user('anna');
    for (let times = 0; times < 7; times++) {
      await sides.same(what, '/_session', { method: 'POST', body: { name: 'anna', password: 'wrong' } }, withCookie);
      await sides.same(what, '/_session', { headers: basic('nobody', 'wrong') }, withCookie);
    }
    await sides.same(what, '/_session', { headers: basic('anna', 'password') }, withCookie);
    await sides.same(what, '/_session', { headers: basic('anna', 'wrong') }, withCookie);
  }
  sides.end();
});

// ---------------------------------------------------------------------------------------------------------------------------------
// Databases.

test('random security admits random clients alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  const { pick, next, below } = random(t);
  const roles = ['staff', 'lead', 'guest', '_admin', ''];
  const clients = [{}, sides.admin];
  for (const name of ['anna', 'berta', 'carl']) {
    await sides.user(name, { roles: roles.slice(0, 3).filter(() => next() < 0.5) });
    clients.push(basic(name, 'password'));
  }
  const db = await sides.pair.database();
  await sides.must(`/${db}/_bulk_docs`, { method: 'POST', body: DOCUMENTS });
  const some = (list) => Array.from({ length: below(3) }, () => pick(list));
  const group = () => {
    const found = {};
    if (next() < 0.7) found.names = some(['anna', 'berta', 'carl', 'Anna', sides.name, '']);
    if (next() < 0.7) found.roles = some(roles);
    return found;
  };
  const requests = [
    ['GET', ''], ['GET', '/docid'], ['GET', '/_all_docs'], ['PUT', '/n', {}], ['PUT', '/_design/n', {}], ['GET', '/_security'], ['POST', '/_compact'], ['PUT', '/_revs_limit', 1000],
    ['POST', '/_purge', { docid: ['9-a'] }], ['GET', '/_design/x/_view/view'], ['POST', '/_find', { selector: {} }], ['PUT', '/_local/n', {}], ['POST', '/_view_cleanup'],
    ['GET', '/_purged_infos_limit'], ['POST', '/_revs_diff', {}], ['GET', '/_changes'], ['POST', '/_bulk_docs'], ['GET', '/docid/rest'],
  ];
  for (let times = 0; times < 60; times++) {
    const object = {};
    for (const name of ['admins', 'members', 'readers']) if (next() < (name === 'readers' ? 0.15 : 0.75)) object[name] = group();
    await sides.must(`/${db}/_security`, { method: 'PUT', body: object });
    for (let request = 0; request < 25; request++) {
      let [method, path, body] = pick(requests);
      if (path === '/_bulk_docs') body = { docs: [{ _id: `_design/m${times}-${request}` }] };
      const unique = ['/n', '/_design/n', '/_local/n'].includes(path) ? `${path}${times}-${request}` : path;
      const headers = { ...pick(clients), 'content-type': 'application/json' };
      // An error within an answer is a refusal too.
      const view = (answer) => [refusal(answer), Array.isArray(answer.body) ? answer.body.map(({ error, reason }) => [error, reason]) : null];
      await sides.same(JSON.stringify(object), `/${db}${unique}`, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) }, view);
    }
  }
  sides.end();
});

test('security objects of any shape are stored, and admit alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  await sides.user('anna', { roles: ['staff'] });
  await sides.user('berta');
  const db = await sides.pair.database();
  const objects = [
    {}, { members: {} }, { members: { names: [] } }, { members: { names: ['anna'] } }, { members: { roles: ['staff'] } }, { members: { names: ['anna'], roles: ['x'] } },
    { admins: { names: ['anna'] } }, { admins: { roles: ['staff'] } }, { admins: { names: ['anna'] }, members: { names: ['berta'] } }, { readers: { names: ['anna'] } },
    { readers: { names: ['berta'] }, members: { names: ['anna'] } }, { readers: { names: ['anna'] }, members: { names: [] } }, { readers: { names: ['anna'] }, members: {} },
    { members: { names: ['_admin'] } }, { members: { roles: ['_admin'] } }, { admins: { names: [], roles: ['_admin'] }, members: { names: [], roles: ['_admin'] } },
    { more: { a: 1 }, members: { names: ['anna'], more: 1 } }, { members: { names: 'anna' } }, { members: { names: null } }, { members: { names: {} } }, { members: [] },
    { members: null }, { members: 'anna' }, { members: { names: [1] } }, { members: { names: [null] } }, { members: { names: ['anna', 1] } }, { admins: { names: 'anna' } },
    { admins: [] }, { admins: null }, { members: { names: [''] } }, { members: { roles: 'staff' } }, { members: { roles: {} } }, { members: { roles: [1] } }, { cloudant: {} },
    { admins: { names: ['berta'], roles: [] }, members: { roles: [] } }, { couchdb_auth_only: true }, { members: { names: ['Anna'] } }, { _id: 'x' },
  ];
  const raw = ['[]', '"x"', '1', 'null', '', '{', '{"members":{"names":["anna"],"names":[]}}'];
  for (const text of [...objects.map((object) => JSON.stringify(object)), ...raw]) {
    const put = await sides.same('security', `/${db}/_security`, { method: 'PUT', headers: sides.admin, body: text });
    if (Object.values(put).some(({ status }) => status !== 200)) continue;
    await sides.same(`after ${text}`, `/${db}/_security`, { headers: sides.admin });
    for (const headers of [{}, basic('anna', 'password'), basic('berta', 'password')]) {
      await sides.same(`after ${text}`, `/${db}/none`, { headers }, refusal);
      await sides.same(`after ${text}`, `/${db}/_security`, { headers });
      await sides.same(`after ${text}`, `/${db}/_compact`, { method: 'POST', headers: { ...headers, 'content-type': 'application/json' } }, refusal);
    }
  }
  sides.end();
});

// ---------------------------------------------------------------------------------------------------------------------------------
// The configuration, and endpoints of the server.

test('settings are read and written alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  const config = '/_node/_local/_config';
  const admin = (more = {}) => ({ ...more, headers: { ...sides.admin, ...more.headers } });
  await sides.set({ 'beside/key': 'value' });
  const bodies = ['"a"', '""', '"  a  "', '"a\\tb"', '"a\\nb"', '"\\u00e9"', '"\\u03a9"', '"\\ud83d\\ude00"', '"a\\u0000b"', '"a;b"', '"; a"', '"a ; b"', '"a = b"', '1', 'true',
    'null', '[]', '{}', '{"a":1}', '[1]', 'x', '', '"a', '"\\u007f"', '" "', '"\\t"', `"${'x'.repeat(5000)}"`, '"100"', '"%"', '"a\\\\b"', '"\\u0085"', '"\\r"', '"a\\u001fb"'];
  for (const body of bodies) {
    await sides.must(`${config}/beside/key`, { method: 'PUT', body: '"value"' });
    await sides.same('put', `${config}/beside/key`, admin({ method: 'PUT', body }));
    await sides.same(`after ${body.slice(0, 50)}`, `${config}/beside/key`, admin());
    await sides.same(`after ${body.slice(0, 50)}`, `${config}/beside`, admin());
    await sides.same(`after ${body.slice(0, 50)}`, `${config}/beside/key`, admin({ method: 'DELETE' }));
  }
  for (const [section, key] of [['beside', 'a%20b'], ['beside', '%C3%BC'], ['beside', 'a%2Fb'], ['beside', 'a%3Db'], ['be%20side', 'k'], ['beside', 'a%0Ab'], ['be%0Aside', 'k'],
    ['beside', '%5Ba%5D'], ['be%5Dside', 'k'], ['beside', ';a'], ['beside', '%20a'], ['%20', 'k'], ['beside', 'A'], ['Beside', 'k'], ['beside', '%CE%A9'], ['beside', '_x'], ['_x', 'y'],
    ['beside', '%ff'], ['beside', 'a%00b'], ['beside', 'x'.repeat(300)], ['be%5Bside', 'k'], ['beside', 'a=b']]) {
    const path = `${config}/${section}/${key}`;
    for (const options of [{}, { method: 'DELETE' }, { method: 'PUT', body: '"v"' }, {}, { method: 'PUT', body: '"w"' }, { method: 'DELETE' }, {}, { method: 'DELETE' }]) {
      await sides.same('names', path, admin(options));
    }
    await sides.same('names', `${config}/${section}`, admin());
  }
  for (const path of ['/beside/', '/beside//', '//key', '/none', '/none/', '/none/key', '/beside/key/more', '/_reload', '/_reload/x', '/beside?x=1', '/beside/key?raw=true',
    '/admins/none', '/admins/']) {
    for (const method of ['GET', 'HEAD', 'DELETE', 'POST', 'PUT', 'COPY', 'OPTIONS']) {
      const options = admin({ method, ...(['POST', 'PUT'].includes(method) ? { body: '"x"' } : {}) });
      await sides.same('paths', `${config}${path}`, options, refusal);
    }
    for (const url of Object.values(sides.urls)) await send(url, `${config}${path}`, admin({ method: 'DELETE' }));
  }
  for (const node of ['_local', 'nonode@nohost', 'other@host', 'x', '', '_x', '_local%2Fx', 'couchdb@127.0.0.1']) {
    for (const rest of ['', '/', '/_config/beside', '/_config/none/key', '/_stats/couchdb/httpd_status_codes/200/desc', '/_stats/none', '/_stats/couchdb/none', '/_system/x', '/_versions', '/_restart',
      '/_unknown', '/_all_dbs', '/_config/_reload', '/_prometheus', '/_smoosh/status']) {
      if (node === '_local' && rest === '/_restart') continue;
      const view = rest === '/_versions' || rest === '/_prometheus' || rest === '' ? refusal : ({ status, body }) => ({ status, body });
      await sides.same('nodes', `/_node/${node}${rest}`, admin({ method: rest.endsWith('_reload') ? 'POST' : 'GET' }), view);
    }
  }
  await sides.same('persist', `${config}/beside/persist`, admin({ method: 'PUT', body: '"a"', headers: { 'x-couch-persist': 'false' } }));
  await sides.same('persist', `${config}/beside/persist`, admin());
  await sides.same('persist', `${config}/_reload`, admin({ method: 'POST' }));
  await sides.same('persist, after a reload', `${config}/beside/persist`, admin());
  await sides.same('persist', `${config}/beside/persist`, admin({ method: 'DELETE', headers: { 'x-couch-persist': 'false' } }));
  await sides.same('persist', `${config}/beside/persist`, admin());
  // The largest attachment.
  const db = await sides.pair.database();
  for (const size of ['5', 'infinity', '0', ' 5 ', undefined]) {
    await sides.set({ 'couchdb/max_attachment_size': size });
    for (const bytes of [0, 5, 6]) {
      const [path, headers] = [`/${db}/${bytes}-${String(size).trim()}-${Math.random()}`, { 'content-type': 'x/y' }];
      const revless = ({ status, body }) => ({ status, body: { ...body, rev: undefined } });
      await sides.same('attachments', `${path}/a`, admin({ method: 'PUT', headers, body: 'x'.repeat(bytes) }), revless);
      const body = { _attachments: { a: { content_type: 'x/y', data: Buffer.from('x'.repeat(bytes)).toString('base64') } } };
      await sides.same('attachments', `${path}-inline`, admin({ method: 'PUT', body }), revless);
    }
  }
  // Administrators.
  const login = (name, password) => ({ headers: basic(name, password) });
  for (const [name, value] of [['eve', 'pw'], ['eve', ''], ['eve', ' '], ['eve', ' pw '], ['eve', 'pä'], ['eve', 'Ω'], ['eve', '-pbkdf2-zz,salt,10'], ['eve', '-hashed-'], ['eve', '-x'], ['a:b', 'pw'],
    ['_eve', 'pw'], ['e%20ve', 'pw'], ['%C3%A9ve', 'pw'], ['eve', '-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,4096'], ['eve', '-pbkdf2:x-4b,salt,4096'],
    ['eve', '-hashed-d06aa3f2f10b5a0b3e3d3a7f8c9d0e1f2a3b4c5d,salt']]) {
    const path = `${config}/admins/${name}`;
    const hidden = ({ status, body }) => ({ status, body: typeof body === 'string' ? body.replace(/[0-9a-f]{20,}/g, 'HEX') : body });
    await sides.same('admins', path, admin({ method: 'PUT', body: JSON.stringify(value) }), hidden);
    await sides.same(`admins after ${value}`, path, admin(), hidden);
    await sleep(50);
    for (const password of [value, value.trim(), 'password']) {
      await sides.same(`admins after ${value}`, '/_session', login(decodeURIComponent(name), password), withCookie);
    }
    await sides.same(`admins after ${value}`, path, admin({ method: 'DELETE' }), hidden);
    await send(sides.urls.theirs, path, admin({ method: 'DELETE' }));
  }
  // An administrator with a document, and a user with the name of an administrator.
  await sides.user('eve', { roles: ['staff'] });
  await sides.must(`${config}/admins/eve`, { method: 'PUT', body: '"pw"' });
  await sleep(300);
  for (const password of ['pw', 'password']) {
    await sides.same('an administrator with a document', '/_session', login('eve', password), withCookie);
    await sides.same('an administrator with a document', '/_session', { method: 'POST', body: { name: 'eve', password } }, withCookie);
  }
  await sides.must(`${config}/admins/eve`, { method: 'DELETE' });
  sides.end();
});

test('the rest of the server answers alike', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  const admin = (more = {}) => ({ ...more, headers: { ...sides.admin, ...more.headers } });
  const shape = ({ status, body, headers }) => ({
    status, type: headers['content-type'], cache: headers['cache-control'], pragma: headers.pragma, expires: headers.expires,
    body: body && typeof body === 'object' ? Object.fromEntries(Object.entries(body).map(([name, value]) => [name, Array.isArray(value) ? value.map((one) => `${one}`.length) : typeof value])) : body.length > 0,
  });
  for (const query of ['', '?count=0', '?count=1', '?count=3', '?count=1000', '?count=1001', '?count=-1', '?count=x', '?count=', '?count=1.5', '?count=1&count=2', '?x=1', '?count=%201', '?count=01', '?count=+1',
    '?count=99999999999999999999', '?algorithm=random', '?x=1;count=2', '?count=2;x=1', '?count=2%3B']) {
    await sides.same('uuids', `/_uuids${query}`, {}, (answer) => (answer.status < 300 ? shape(answer) : whole(answer)));
  }
  for (const method of ['GET', 'HEAD']) {
    for (const headers of [{}, { accept: 'text/html' }, { accept: 'text/plain' }, { accept: 'application/json' }, { accept: '*/*' }, { accept: 'x' }]) {
      for (const path of ['/_up', '/_membership', '/_active_tasks', '/_all_dbs', '/_cluster_setup', '/_session', '/none', '/_unknown', '/_node/_local/_config/none']) {
        const view = (answer) => (path === '/_all_dbs' || path === '/_active_tasks' ? { status: answer.status, headers: whole(answer).headers } : withCookie(answer));
        await sides.same('accept', path, admin({ method, headers }), view);
      }
    }
  }
  await sides.same('welcome', '/', admin(), shape);
  for (const body of [{}, { action: 'x' }, { action: 'enable_single_node' }, { action: 'enable_single_node', ensure_dbs_exist: [] }, { action: 'enable_single_node', ensure_dbs_exist: 'x' },
    { action: 'enable_single_node', ensure_dbs_exist: ['_users'] }, { action: 'enable_single_node', username: 'eve', password: 'x' },
    [], 'x', 1, null, { action: 1 }, { action: 'enable_single_node', singlenode: true, ensure_dbs_exist: [] }, { action: 'enable_cluster' }, { action: 'finish_cluster' }, { action: 'receive_cookie' }]) {
    await sides.same('set-up', '/_cluster_setup', admin({ method: 'POST', body: JSON.stringify(body) }));
    await sides.same('set-up', '/_cluster_setup', admin());
    await send(sides.urls.theirs, '/_node/_local/_config/admins/eve', admin({ method: 'DELETE' }));
  }
  for (const query of ['?ensure_dbs_exist=["_users"]', '?ensure_dbs_exist=[]', '?ensure_dbs_exist=x', '?ensure_dbs_exist=["none"]']) await sides.same('set-up', `/_cluster_setup${encodeURI(query)}`, admin());
  sides.end();
});

// ---------------------------------------------------------------------------------------------------------------------------------
// CORS.

test('pages of other origins may do the same', async (t) => {
  const sides = await Sides.start(t);
  if (!sides) return;
  const { pick, next } = random(t);
  const db = await sides.pair.database();
  await sides.must(`/${db}/doc`, { method: 'PUT', body: {} });
  const names = ['origin', 'credentials', 'methods', 'headers', 'max-age'].map((name) => (name === 'max-age' ? 'access-control-max-age' : `access-control-allow-${name}`)).concat('access-control-expose-headers');
  // Here pages may PATCH, and see where a new document is. CouchDB lets them ask for CONNECT and TRACE.
  const ours = ['patch', 'connect', 'trace', 'location'];
  const list = (text) => text?.toLowerCase().split(/\s*,\s*/).filter((one) => !ours.includes(one)).sort().join(', ');
  const view = ({ status, headers }) => ({ status, ...Object.fromEntries(names.filter((name) => headers[name] !== undefined).map((name) => [name, name.endsWith('origin') ? headers[name] : list(headers[name])])) });
  const origins = ['https://a.example', 'http://a.example', 'https://A.example', 'https://b.example', 'https://a.example:443', 'null', '*', 'app://obsidian.md', 'https://a.example.evil', 'https://a.example/', 'x y'];
  const methods = ['GET', 'PUT', 'DELETE', 'POST', 'COPY', 'HEAD', 'OPTIONS', 'get', 'X', '', undefined];
  const asked = [undefined, '', 'content-type', 'Content-Type, Authorization', 'x-unknown', 'content-type,x-unknown', ' accept ', 'if-match'];
  const configurations = [
    {}, { 'cors/origins': '*' }, { 'cors/origins': 'https://a.example' }, { 'cors/origins': 'https://a.example, app://obsidian.md' }, { 'cors/origins': 'https://a.example', 'cors/credentials': 'true' },
    { 'cors/origins': '*', 'cors/methods': 'GET, PUT' }, { 'cors/origins': '*', 'cors/headers': 'x-unknown, accept' }, { 'cors/origins': '*', 'cors/max_age': '5' },
    { 'cors/origins': '*', 'cors/exposed_headers': 'etag, x-mine' }, { 'cors/origins': 'https://a.example,*' }, { 'cors/origins': '' }, { 'cors/origins': '*', 'cors/methods': '' },
  ];
  const off = Object.fromEntries(configurations.flatMap(Object.keys).map((key) => [key, undefined]));
  for (const enabled of ['true', 'false', undefined]) {
    for (const configuration of configurations) {
      await sides.set({ ...off, 'chttpd/enable_cors': enabled, ...configuration });
      const what = `${enabled} ${JSON.stringify(configuration)}`;
      for (const origin of [...origins, undefined]) await sides.same(what, `/${db}/doc`, { headers: { origin, ...sides.admin } }, view);
      for (let times = 0; times < 40; times++) {
        const headers = { origin: pick(origins), 'access-control-request-method': pick(methods), 'access-control-request-headers': pick(asked), ...(next() < 0.3 ? sides.admin : {}) };
        const method = next() < 0.8 ? 'OPTIONS' : pick(['GET', 'PUT', 'POST', 'HEAD']);
        const path = pick(['/', `/${db}`, `/${db}/doc`, '/_session', '/none', '/_all_dbs', '/_up']);
        if (method === 'PUT' && path === '/none') continue;
        await sides.same(what, path, { method, headers }, view);
      }
    }
  }
  sides.end();
});

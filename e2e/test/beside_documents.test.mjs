// Documents and databases beside a CouchDB: the same requests, systematic and random, to both.

import assert from 'node:assert/strict';
import test from 'node:test';
import { gzipSync } from 'node:zlib';

import { beside, random } from '../lib/beside.mjs';
import { raw } from '../lib/raw.mjs';

const TIMEOUT = { timeout: 600_000 };

// The comparison. Intended differences are made equal here, and in `INTENDED`.

/** Headers that clients read. */
const HEADERS = [
  'accept-ranges', 'allow', 'cache-control', 'content-encoding', 'content-range', 'content-security-policy', 'content-type',
  'etag',
  'location', 'www-authenticate',
];

/** Members whose values depend on the server. Sequences have other forms; the layout of files differs. */
const OWN = ['seq', 'last_seq', 'update_seq', '_local_seq', 'instance_start_time', 'sizes', 'disk_format_version', 'purge_seq'];

function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== 'object') return value;
  const members = Object.entries(value).filter(([name]) => !(name === 'ref' && 'error' in value));
  return Object.fromEntries(members.map(([name, inner]) => [
    name,
    OWN.includes(name) && inner !== null ? 'its own' : plain(inner),
  ]));
}

/** The parts of an answer in parts, with the same boundaries on both sides. */
function parts({ headers, text }) {
  const boundaries = [...`${headers['content-type']}\n${text}`.matchAll(/boundary="?([^"\r\n;]+)"?/g)].map(([, name]) => name);
  return boundaries.reduce((rest, name) => rest.replaceAll(name, 'BOUNDARY'), text);
}

/** The compared parts of an answer to a request for `path`. */
function shown(answer, path) {
  const headers = Object.fromEntries(HEADERS.filter((name) => name in answer.headers).map((name) => [name, answer.headers[name]]));
  headers.location &&= headers.location.replace(/^http:\/\/[^/]*/, '').replaceAll('%7E', '~');
  // CouchDB has not written an accepted document yet, so it sends no location.
  if (answer.status === 202) delete headers.location;
  // Lists have no tag here. The tag of a local document has another hash, and a deleted one has no tag.
  if (/_changes|_all_dbs|_dbs_info|_local(\/|%2F)/.test(path)) delete headers.etag;
  if (headers['content-type']?.startsWith('multipart/')) {
    headers['content-type'] = headers['content-type'].replace(/boundary=.*/, 'BOUNDARY');
    // CouchDB does not send one with these.
    delete headers['cache-control'];
    return { status: answer.status, headers, body: parts(answer) };
  }
  // The same numbers are spelled differently: 1e+22 and 1.0e22. Whether a number is an integer is compared.
  const number = /(?<=[:,[])-?\d+(\.\d+)?([eE][+-]?\d+)?(?=[,}\]])/g;
  const spelled = (digits) => (/[.eE]/.test(digits) ? `"float ${Number(digits) + 0}"` : `"${digits}"`);
  const text = answer.text.replace(number, spelled).replace(/"id":"[0-9a-f]{32}"/g, '"id":"made"');
  let body = text.replace(/"(seq|last_seq)":("[^"]*"|null)/g, '"$1":""').trimEnd();
  if (headers['content-type']?.startsWith('application/json') && answer.status !== 405) {
    try { body = plain(JSON.parse(text)); } catch { /* a feed in lines */ }
  }
  return { status: answer.status, headers, body };
}

/** Differences of answers that stay, each with its reason. */
const INTENDED = [
  ['CouchDB crashes at a mistake of its client', ({ ours, theirs }) => theirs.status === 500 && ours.status === 400],
  ['CouchDB hangs up, or sends what is no HTTP', ({ theirs }) => typeof theirs.status === 'string'],
  ['`Allow` has methods of our own, and some that CouchDB forgets', ({ ours, theirs }) => ours.status === 405 && theirs.status === 405],
  [
    'a revision has a position from 1 to 2^64 - 1',
    ({ ours, call }) => /"Invalid rev format"/.test(ours.text) && /\b0-abc|9{20}-abc/.test(decodeURIComponent(call)),
  ],
  ['a name that is no UTF-8 is refused at once', ({ call }) => /%(FF|C3|ED%A0)/.test(call)],
  ['our own: PATCH, and forms of browsers are 501 or 415', ({ call }) => /^(PATCH|POST) \/[^/]+\/(?!_)[^/ ]+ /.test(call)],
];

/** Sends a request to both, and notes a difference. Resolves to `{ ours, theirs }`. */
async function call(pair, method, path, options = {}, view = shown) {
  const all = { ...options, headers: { authorization: pair.authorization, ...options.headers } };
  const [ours, theirs] = await Promise.all([pair.ours, pair.theirs].map((origin) => raw(origin, method, path, all)));
  const body = Buffer.isBuffer(options.body) ? options.body.toString('latin1') : JSON.stringify(options.body) ?? '';
  const what = `${method} ${path} ${JSON.stringify(options.headers) ?? ''} ${body}`;
  if (!INTENDED.some(([, is]) => is({ call: what, ours, theirs }))) {
    pair.note(what.slice(0, 600), view(ours, path), view(theirs, path));
  }
  return { ours, theirs };
}

/** A member of CouchDB's answer. */
function member({ theirs }, name) {
  try { return JSON.parse(theirs.text)[name]; } catch { return undefined; }
}

/** The value with the members of all its objects in order. The members of errors have another order. */
function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).sort().map(([name, inner]) => [name, sorted(inner)]));
}

/** Leaves in any order: CouchDB lists them in the order of its tree, this server lists the winner first. */
function unordered(answer) {
  try {
    const found = JSON.parse(answer.text);
    const leaves = found.results ? found.results.flatMap((one) => one.docs) : found;
    if (!Array.isArray(leaves)) return shown(answer, '');
    return { status: answer.status, leaves: leaves.map((leaf) => JSON.stringify(sorted(plain(leaf)))).sort() };
  } catch {
    return shown(answer, '');
  }
}

/** Only leaves have bodies here, so `_revs_info` has another rule for `available` and `missing`. */
const withoutBodies = (answer, path) => {
  const { body, ...rest } = shown(answer, path);
  return { ...rest, body: JSON.parse(JSON.stringify(body).replace(/"status":"(available|missing|deleted)"/g, '"status":""')) };
};

const JSON_ONLY = { headers: { accept: 'application/json' } };
const encoded = (value) => encodeURIComponent(typeof value === 'string' ? value : JSON.stringify(value));

const REVISIONS = [
  '', 'x', '1', '1-', '-1-abc', '0-abc', '1-zz', '1-abc', `2-${'f'.repeat(32)}`, `1-${'f'.repeat(33)}`,
  '99999999999999999999-abc',
  '1-ABC', 'null', '*', '1-a b', `01-${'a'.repeat(32)}`,
];

test('revisions that are none, and every parameter with bad values', TIMEOUT, async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = `/${await pair.database('?q=1')}`;
  const to = (method, path, options, view) => call(pair, method, db + path, options, view);
  const first = member(await to('PUT', '/a', { body: { n: 1 } }), 'rev');
  const rev = member(await to('PUT', `/a?rev=${first}`, { body: { n: 2 } }), 'rev');
  await to('PUT', `/a?rev=${first}`, { body: { _rev: rev } });
  await to('PUT', '/a', { body: { _rev: first }, headers: { 'if-match': rev } });
  await to('PUT', `/a?rev=${first}`, { body: {}, headers: { 'if-match': rev } });
  for (const bad of REVISIONS) {
    const query = `rev=${encoded(bad)}`;
    await to('PUT', `/a?${query}`, { body: {} });
    await to('PUT', '/a', { body: { _rev: bad } });
    await to('PUT', '/a', { body: {}, headers: { 'if-match': bad } });
    await to('DELETE', `/a?${query}`);
    for (const more of ['', '&latest=true', '&revs=true']) await to('GET', `/a?${query}${more}`);
    for (const headers of [{}, JSON_ONLY.headers]) await to('GET', `/a?open_revs=${encoded([bad])}`, { headers });
    await to('GET', `/a?atts_since=${encoded([bad])}`);
    await to('GET', `/a?open_revs=${encoded(bad)}`, JSON_ONLY);
    for (const path of ['/_revs_diff', '/_missing_revs', '/_purge']) await to('POST', path, { body: { a: [bad] } });
    await to('POST', '/_bulk_docs', { body: { docs: [{ _id: 'a', _rev: bad }] } });
    // CouchDB treats `0-…` as a missing revision.
    for (const more of [{ rev: bad }, { atts_since: [bad] }]) {
      await to('POST', '/_bulk_get', { body: { docs: [{ id: 'a', ...more }] } });
    }
    await to('COPY', `/a?${query}`, { headers: { destination: 'copied' } });
    await to('PUT', '/_local/a', { body: bad === '0-abc' ? {} : { _rev: bad } });
  }
  const flags = [
    'revs', 'conflicts', 'deleted_conflicts', 'latest', 'attachments', 'att_encoding_info', 'new_edits', 'batch', 'w', 'r', 'odd',
    'local_seq', 'revs_info', 'meta',
  ];
  for (const flag of flags) {
    for (const value of ['true', 'false', '', '1', 'TRUE', 'x', '"true"']) {
      for (const method of ['GET', 'HEAD']) await to(method, `/a?${flag}=${encoded(value)}`, {}, withoutBodies);
    }
  }
  const lists = ['all', '[]', '[1]', '{}', 'x', '"all"', '[null]', `["${rev}"]`, '', 'null', '["3-abc"]', '[["a"]]'];
  for (const list of lists) {
    for (const accept of [undefined, 'application/json', 'multipart/mixed', '*/*', 'text/html', 'multipart/related']) {
      for (const more of ['', '&revs=true', '&latest=true', '&attachments=true']) {
        await to('GET', `/a?open_revs=${encoded(list)}${more}`, { headers: { accept } });
      }
    }
  }
  const types = [undefined, 'application/json', 'text/html', 'text/plain', '*/*', 'application/xml', '', 'odd', 'multipart/related'];
  const paths = ['/a', `/a?rev=${rev}`, '/none', '/a?attachments=true', '', '/_local/a', '/_all_docs', '/_security', '/_revs_limit'];
  for (const accept of types) {
    for (const path of paths) {
      for (const method of ['GET', 'HEAD']) await to(method, path, { headers: { accept } });
    }
  }
  for (const tag of [`"${rev}"`, `W/"${rev}"`, `"${first}"`, '*', `"x", "${rev}"`]) {
    for (const method of ['GET', 'HEAD']) {
      for (const query of ['', `?rev=${rev}`, '?revs=true']) await to(method, `/a${query}`, { headers: { 'if-none-match': tag } });
    }
  }
  pair.end();
});

const NUMBERS = [
  '1.0', '1e2', '1E2', '1E400', '-1E400', '-0.0', '-0', '0.0', '0', '9007199254740993', '9007199254740993.0',
  '18446744073709551616',
  '-9223372036854775809', '123456789012345678901234567890', '1.7976931348623157e308', '5e-324', '2e-324', '1e-400', '0.1', '1.10',
  '100000000000000000000.0', '1e22', '1e16', '123456.789e3', '0.00001', '1e-7', '4.35', '1E+2', '2147483647', '2147483648',
  '-2147483648', '-2147483649', '255', '256', '-1', '01', '+1', '.5', '1.', '1e', '--1', '0x10', 'NaN', 'Infinity', '-', '- 1',
];
const TEXTS = [
  '\\u0000', '\\ud800', '\\udc00', '\\ud83d\\ude00', '\\ud83dx', '😀', '\\u00e9é', '\\/\\b\\f\\n\\r\\t\\"\\\\', '\\x', '\\u12',
  '\t', '\u0001',
  '\u007f', '\u2028', '\ufeff', '\uffff', '\\uffff', '<script>&',
];
const DOCUMENTS = [
  '{"\\u0061":1}', '{"é":1}', '{"":1}', '{"a":1,"a":2}', '{"a":1,"b":2,"a":3}', '{"a":{"b":1,"b":2}}', '{"a":1,"\\u0061":2}',
  '{"b":1,"a":2}', '{"a":[]}', '{"a":{}}', '{"a":[[]]}', '{"a":[1,2,3]}', '{"a":[0,256]}', '{"a":[1.0]}',
  '{"a":[null,true,false]}',
  `{"a":${JSON.stringify(Array.from({ length: 65_535 }, (_, n) => n % 256))}}`, `{"a":${JSON.stringify(Array(65_536).fill(7))}}`,
  `{"a":"${'x'.repeat(70_000)}"}`, `{"a":${'['.repeat(500)}${']'.repeat(500)}}`,
  `{"a":${'{"a":'.repeat(400)}1${'}'.repeat(400)}}`,
  '{}', '[]', '1', 'null', '"x"', '', '{', '{"a":1}x', ' {"a":1} ', '\ufeff{"a":1}', '{"a":1,}', '{a:1}', "{'a':1}",
  '{"a":1 "b":2}',
  '{"_deleted":true}', '{"_deleted":true,"a":1}', '{"_deleted":false}', '{"_deleted":"true"}', '{"_deleted":null}', '{"_odd":1}',
  '{"_rev":null}', '{"_rev":1}', '{"_rev":""}', '{"_id":null}', '{"_id":1}', '{"_id":"z"}', '{"_revisions":1}',
  '{"_revisions":{}}',
  '{"_revisions":{"start":"1","ids":["abc"]}}', '{"_revisions":{"start":1,"ids":[1]}}', '{"_revisions":null}',
  '{"_revs_info":[]}',
  '{"_conflicts":1}', '{"_local_seq":1}', '{"_replication_state":"x"}', '{"_replication_id":1}', '{"_replication_odd":1}',
  '{"_attachments":null}', '{"_attachments":[]}', '{"_attachments":{}}', '{"_access":["a"]}', '{"_seq":1}', '{"_":1}',
  '{"a":{"_b":1}}',
].concat(NUMBERS.map((number) => `{"a":${number}}`), TEXTS.map((text) => `{"a":"${text}"}`));

test('bodies, their revisions and their numbers', TIMEOUT, async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = `/${await pair.database('?q=1')}`;
  const to = (method, path, options, view) => call(pair, method, db + path, options, view);
  for (const [n, body] of DOCUMENTS.entries()) {
    await to('PUT', `/d${n}`, { body });
    await to('GET', `/d${n}`);
    await to('POST', '/_bulk_docs', { body: `{"docs":[${body}]}` });
    await to('POST', '', { body }, ({ status, text }) => (status > 299 ? { status, text } : { status }));
    // As a replicated edit, with a revision; a body with a history of its own is a case of the histories below.
    if (!body.includes('_rev')) {
      const edit = body.replace('{', `{"_id":"r${n}","_rev":"1-abc",`).replace(',}', '}');
      await to('POST', '/_bulk_docs', { body: `{"new_edits":false,"docs":[${edit}]}` });
      await to('GET', `/r${n}?revs=true&conflicts=true`);
    }
    for (const path of [`/_local/${n}`, `/_design/${n}`]) {
      await to('PUT', path, { body });
      await to('GET', path);
    }
    if (body.length > 100) continue;
    for (const path of ['_bulk_docs', '_bulk_get', '_revs_diff', '_missing_revs', '_purge', '_ensure_full_commit', '_compact']) {
      await to('POST', `/${path}`, { body });
    }
  }
  pair.end();
});

/** Random histories of `new_edits=false` and random edits between them, with short histories too. */
test('random trees have the same leaves, winners and histories', TIMEOUT, async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const { next, below, pick } = random(t);
  let made = 0;
  // Each revision has one parent, so the hash of each is new. Not all are hexadecimal.
  const hash = () => (next() < 0.15 ? `odd-${made++}` : Array.from({ length: 32 }, () => pick([...'0123456789abcdef'])).join(''));
  for (const limit of [1, 2, 3, 5, 10, 1000]) {
    const db = `/${await pair.database('?q=1')}`;
    const to = (method, path, options, view) => call(pair, method, db + path, options, view);
    const leavesOf = async (id) => {
      const { text } = await raw(pair.theirs, 'GET', `${db}/${id}?open_revs=all`, {
        headers: { ...JSON_ONLY.headers, authorization: pair.authorization },
      });
      try { return JSON.parse(text).map((leaf) => leaf.ok); } catch { return []; }
    };
    await to('PUT', '/_revs_limit', { body: `${limit}` });
    const paths = { a: [], b: [], c: [], d: [] };
    const replicate = async (id, n) => {
      // CouchDB cuts a path to the limit before it is merged, and so forgets where it joins the tree. Paths here are
      // never longer.
      let path;
      if (paths[id].length && next() < 0.8) {
        const base = pick(paths[id]);
        const cut = below(base.ids.length + 1);
        const grown = Array.from({ length: 1 + below(3) }, hash);
        path = { start: base.start - cut + grown.length, ids: [...grown, ...base.ids.slice(cut)] };
        path.ids.splice(Math.min(limit, 1 + below(path.ids.length + 2)));
      } else {
        const start = 1 + below(6);
        path = { start, ids: Array.from({ length: Math.min(limit, 1 + below(start)) }, hash) };
      }
      paths[id].push(path);
      const doc = { _id: id, _rev: `${path.start}-${path.ids[0]}`, n };
      if (next() < 0.8) doc._revisions = path;
      if (next() < 0.25) doc._deleted = true;
      if (next() < 0.3) await to('PUT', `/${id}?new_edits=false`, { body: doc });
      else await to('POST', '/_bulk_docs', { body: { new_edits: false, docs: [doc] } });
    };
    const compare = async (id) => {
      await to('GET', `/${id}?open_revs=all&revs=true`, JSON_ONLY, unordered);
      await to('GET', `/${id}?conflicts=true&deleted_conflicts=true&revs=true`);
      for (const leaf of await leavesOf(id)) await to('GET', `/${id}?revs=true&rev=${encoded(leaf._rev)}`);
      const known = paths[id].slice(-3).flatMap((path) => path.ids.slice(0, 1).map((one) => `${path.start}-${one}`));
      await to('POST', '/_revs_diff', { body: { [id]: [...known, '3-abc', `9-${hash()}`] } }, ({ status, text }) => {
        const found = JSON.parse(text)[id] ?? {};
        return { status, missing: found.missing?.sort(), ancestors: found.possible_ancestors?.sort() };
      });
    };
    for (let n = 0; n < 100; n++) {
      const id = pick(Object.keys(paths));
      const leaf = pick(await leavesOf(id));
      const isLive = leaf && !leaf._deleted;
      const kind = below(10);
      if (kind < 6) await replicate(id, n);
      else if (kind === 6) await to('PUT', `/${id}`, { body: { n } });
      else if (kind === 7 && isLive) await to('DELETE', `/${id}?rev=${encoded(leaf._rev)}`);
      else if (kind === 8 && isLive) await to('PUT', `/${id}`, { body: { _rev: leaf._rev, n } });
      else if (kind === 9 && isLive) {
        const docs = [{ _id: id, _rev: leaf._rev, _deleted: next() < 0.3, n }, { _id: pick(['a', 'b', `e${n}`]) }];
        await to('POST', '/_bulk_docs', { body: { docs } });
      } else if (leaf && next() < 0.3) await to('POST', '/_purge', { body: { [id]: [leaf._rev] } });
      if (n % 5 === 0) for (const one of Object.keys(paths)) await compare(one);
      if (n % 20 === 0) {
        for (const query of ['style=all_docs', 'include_docs=true&conflicts=true']) await to('GET', `/_changes?${query}`);
        await to('GET', '/_all_docs?include_docs=true&conflicts=true');
        await to('GET', '');
      }
    }
  }
  pair.end();
});

const FEEDS = [
  '', 'limit=2', 'limit=0', 'limit=-1', 'limit=x', 'limit=', 'limit=1.5', 'limit=99999999999999999999', 'since=0', 'since=now',
  'since=x',
  'since=-1', 'descending=true', 'descending=x', 'style=all_docs', 'style=x', 'include_docs=true', 'include_docs=x',
  'conflicts=true',
  'include_docs=true&conflicts=true', 'include_docs=true&attachments=true', 'filter=_doc_ids', 'filter=_doc_ids&doc_ids=x',
  'filter=_doc_ids&doc_ids={}', 'filter=_doc_ids&doc_ids=[1]', 'doc_ids=["a"]', 'filter=_selector', 'filter=_view',
  'filter=_view&view=d/v',
  'filter=_view&view=d', 'filter=_view&view=d/none', 'filter=_view&view=x/v', 'filter=d/f', 'filter=d/q&x=2', 'filter=d/none',
  'filter=none/f',
  'filter=d', 'filter=', 'filter=_x', 'filter=d/f/g', 'filter=d/q&x=9&style=all_docs', 'filter=d/f&include_docs=true', 'feed=x',
  'feed=',
  'feed=longpoll', 'feed=longpoll&limit=1', 'feed=longpoll&since=now&timeout=50', 'feed=longpoll&timeout=x',
  'feed=longpoll&heartbeat=x',
  'feed=longpoll&heartbeat=99999999999999999999999', 'feed=longpoll&timeout=99999999999999999999999', 'feed=longpoll&heartbeat=-99999999999999999999999',
  'feed=longpoll&heartbeat=0', 'feed=longpoll&heartbeat=-1', 'feed=continuous&timeout=50', 'feed=continuous&timeout=50&limit=2',
  'feed=continuous&timeout=50&filter=d/f', 'feed=continuous&since=now&timeout=50', 'feed=continuous&timeout=50&style=all_docs',
  'feed=eventsource&timeout=50&limit=1', 'seq_interval=x', 'seq_interval=0', 'odd=1', 'limit=1&limit=2', 'limit=2&style=all_docs',
];

test('feeds with every parameter', TIMEOUT, async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = `/${await pair.database('?q=1')}`;
  const to = (method, path, options, view) => call(pair, method, db + path, options, view);
  const filters = { f: 'function (doc) { return doc.n > 1; }', q: 'function (doc, req) { return req.query.x == doc.n; }' };
  const views = { v: { map: 'function (doc) { if (doc.n > 2) emit(1); }' } };
  for (const [n, id] of ['a', 'b', 'c'].entries()) await to('PUT', `/${id}`, { body: { n: n + 1 } });
  await to('PUT', '/_design/d', { body: { filters, views } });
  const docs = [
    { _id: 'b', _rev: '1-zzz', n: 9 }, { _id: 'c', _rev: '2-zzz', _deleted: true }, { _id: 'x', _rev: '1-x', _deleted: true, n: 5 },
  ];
  await to('POST', '/_bulk_docs', { body: { new_edits: false, docs } });
  // Empty lines may come at any time.
  const feed = (answer, path) => {
    const { body, ...rest } = shown(answer, path);
    return { ...rest, body: typeof body === 'string' ? body.replace(/^id: .*$/gm, 'id:').replace(/\n+/g, '\n').trim() : body };
  };
  for (const query of FEEDS) {
    const path = `/_changes?${query.replace(/["[\]{}]/g, encodeURIComponent)}`;
    await to('GET', path, {}, feed);
    await to('POST', path, { body: {} }, feed);
    if (!/continuous|eventsource/.test(query)) await to('HEAD', path);
  }
  // CouchDB counts the rows that these filters skip as pending.
  const rows = (answer, path) => {
    const { body, ...rest } = shown(answer, path);
    return { ...rest, body: { ...body, pending: undefined } };
  };
  for (const query of ['_design', '_design&style=all_docs', '_doc_ids&doc_ids=["a","x"]', '_doc_ids&doc_ids=[]']) {
    await to('GET', `/_changes?filter=${query.replace(/["[\]]/g, encodeURIComponent)}`, {}, rows);
  }
  for (const [query, body] of [
    ['_doc_ids', { doc_ids: ['a', 'b'] }], ['_doc_ids', { doc_ids: 'a' }], ['_doc_ids', { doc_ids: [1] }],
    ['_doc_ids', { doc_ids: null }],
    ['_selector', { selector: { n: { $gt: 1 } } }], ['_selector', { selector: {} }], ['_selector', { selector: 1 }],
    ['_selector', {}],
    ['_selector', { selector: { $x: 1 } }], ['_selector&style=all_docs', { selector: { n: 9 } }],
    ['_selector', { selector: {}, fields: 'n' }],
    ['_selector&include_docs=true', { selector: {}, fields: ['n'] }],
    ['_selector&include_docs=true', { selector: {}, fields: [] }],
    ['_selector&include_docs=true', { selector: {}, fields: [1] }],
    ['_selector&include_docs=true&conflicts=true', { selector: {}, fields: ['n'] }],
    ['', { limit: 1 }], ['', []], ['', 'x'], ['', 'null'], ['', '{'],
  ]) {
    await to('POST', `/_changes?filter=${query}`, { body }, rows);
    for (const type of ['text/plain', null, 'application/json; charset=utf-8']) {
      await to('POST', `/_changes?filter=${query}`, { body, headers: { 'content-type': type } }, rows);
    }
  }
  pair.end();
});

const IDS = [
  'a b', 'a+b', 'a%2Bb', 'a/b', 'é', 'e\u0301', '😀', '\u0000x', '%', '..', 'a?b', 'a#b', '"q"', "'", '\\', '~', '*', ':', '=',
  '&', '@',
  '_design/x', '_design/a/b', '_design/_x', ' ', '\t', '\n', '\u007f', '\ud7ff', '\uffff', 'x'.repeat(300), 'x'.repeat(2048),
  '1', 'null',
];

test('ids, bulk requests, purges and settings', TIMEOUT, async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = `/${await pair.database('?q=1')}`;
  const to = (method, path, options, view) => call(pair, method, db + path, options, view);
  for (const id of IDS) {
    const path = id.startsWith('_design/') ? `/_design/${encoded(id.slice(8))}` : `/${encoded(id)}`;
    const rev = member(await to('PUT', path, { body: { x: 1 } }), 'rev');
    for (const method of ['GET', 'HEAD']) await to(method, path);
    await to('PUT', `${path}/att?rev=${rev}`, { body: 'hi', headers: { 'content-type': 'text/plain' } });
    await to('GET', `${path}/att`);
    await to('COPY', path, { headers: { destination: `copy${IDS.indexOf(id)}` } });
    await to('GET', `/_all_docs?key=${encoded(JSON.stringify(id))}`);
    await to('DELETE', `${path}?rev=${rev}`);
    await to('POST', '', { body: { _id: id } });
    await to('POST', '/_bulk_docs', { body: { new_edits: false, docs: [{ _id: id, _rev: '1-abc' }] } });
    await to('POST', '/_bulk_get', { body: { docs: [{ id }] } }, unordered);
    await to('POST', '/_revs_diff', { body: { [id]: ['1-abc', '1-d'] } });
    await to('POST', '/_purge', { body: { [id]: ['1-abc'] } });
  }
  for (const docs of [
    [], {}, [1], [null], [[]], [{ _id: 1 }], [{ _id: '' }], [{ _id: 'q1' }, { _id: 'q1' }],
    [{ _id: 'q2', a: 1 }, { _id: 'q2', a: 2 }],
    [{ _id: '_x' }], [{ _id: '_design/' }], [{ _id: 'q3', _odd: 1 }], [{ _id: 'q4', _rev: 'bad' }],
    [{ _id: 'q5', _deleted: true }],
    [{ _id: 'q6', _deleted: true, x: 1 }], [{ _id: '_local/z', v: 1 }, { _id: 'q7' }], [{ _id: '_local/z', _deleted: true }],
    [{ _id: '_local/none', _deleted: true }],
  ]) {
    for (const more of [{}, { new_edits: true }, { all_or_nothing: false }, { odd: 1 }]) {
      await to('POST', '/_bulk_docs', { body: { docs, ...more } });
    }
  }
  for (const doc of [
    { _rev: '1-a' }, { _rev: '1-a', _revisions: { start: 2, ids: ['b', 'a'] } }, { _revisions: { start: 2, ids: ['b', 'a'] } },
    { _revisions: { start: 2, ids: ['c', 'a'] }, _rev: '9-x' }, { _rev: '1-' }, {},
  ]) {
    await to('POST', '/_bulk_docs', { body: { new_edits: false, docs: [{ _id: 'h1', ...doc }, { _id: 'h2', ...doc, x: 1 }] } });
    await to('PUT', '/h3?new_edits=false', { body: doc });
    await to('PUT', '/h4?new_edits=false&rev=1-q', { body: doc });
    for (const id of ['h1', 'h2', 'h3', 'h4']) await to('GET', `/${id}?open_revs=all&revs=true`, JSON_ONLY, unordered);
  }
  for (const docs of [
    undefined, 1, [], [1], [{}], [{ id: 'h1', rev: null }], [{ id: 'none' }], [{ id: 'none', rev: '1-a' }], [{ id: 'h1' }],
    [{ id: 'h1', rev: '2-b' }, { id: 'h1', rev: '2-c' }, { id: 'h1', rev: '1-z' }], [{ id: 'q5' }], [{ id: '' }], [{ id: '_x' }],
    [{ id: 'h1', atts_since: 'x' }], [{ id: 'h1', atts_since: ['x'] }], [{ id: 'h1', atts_since: [] }],
  ]) {
    for (const query of ['', '?revs=true', '?latest=true', '?attachments=true', '?conflicts=true', '?odd=1', '?revs=x']) {
      await to('POST', `/_bulk_get${query}`, { body: { docs }, ...JSON_ONLY }, unordered);
    }
  }
  for (const body of [
    {}, [], { h1: ['2-b'] }, { h1: ['2-b', '1-z', '2-a', '3-x'] }, { none: ['1-a'] }, { h1: [] }, { h2: ['5-x'], h1: ['2-x'] },
    { _x: ['1-a'] },
    { h1: ['bad'] }, { h1: [1] }, { h1: 'x' }, 'null', '', 'x', { h1: ['2-c'], none: ['1-a'] },
  ]) {
    // Lists of revisions are in any order.
    const inOrder = (answer, at) => {
      const { status, body: found } = shown(answer, at);
      return { status, found: JSON.parse(JSON.stringify(found), (_, value) => (Array.isArray(value) ? [...value].sort() : value)) };
    };
    for (const path of ['/_revs_diff', '/_missing_revs', '/_purge']) await to('POST', path, { body }, inOrder);
    await to('GET', '/h1?open_revs=all', JSON_ONLY, unordered);
    await to('GET', '/_purged_infos', {}, ({ text }) => JSON.parse(text).purged_infos.map(({ id, revs }) => `${id} ${revs}`).sort());
    await to('GET', '');
  }
  for (const path of ['/_revs_limit', '/_purged_infos_limit']) {
    for (const body of ['1', '0', '-1', '1.0', '1e3', '"5"', '4000', '1.5', 'true', '', ' 7 ']) {
      await to('PUT', path, { body });
      await to('GET', path);
    }
  }
  for (const path of [
    '_ensure_full_commit', '_compact', '_view_cleanup', '_bulk_docs', '_bulk_get', '_revs_diff', '_missing_revs', '_purge',
    '_all_docs',
    '_all_docs/queries', '_design_docs/queries', '_local_docs/queries',
  ]) {
    for (const type of ['application/json', 'text/plain', null, 'application/json; charset=utf-8', 'application/jsonx']) {
      for (const body of ['{}', '[]', '{"docs":[]}', '{"queries":[]}']) {
        await to('POST', `/${path}`, { body, headers: { 'content-type': type } });
      }
    }
  }
  const paths = [
    '', '/a', '/a/att', '/_design/d', '/_local/a', '/_all_docs', '/_bulk_docs', '/_bulk_get', '/_revs_diff', '/_missing_revs',
    '/_purge',
    '/_purged_infos', '/_revs_limit', '/_security', '/_compact', '/_ensure_full_commit', '/_local_docs', '/_changes',
  ];
  // The reason names the methods of `Allow`, which differ if this server has one more: only the status is compared.
  for (const path of paths) for (const method of ['OPTIONS', 'TRACE', 'FOO']) await to(method, path, {}, ({ status }) => status);
  for (const query of ['', `?startkey="${db.slice(1)}"&endkey="${db.slice(1)}"`, '?limit=x', '?skip=x', '?startkey=x']) {
    const found = (text) => JSON.parse(text).filter((name) => name === db.slice(1));
    const listed = ({ status, text }) => ({ status, found: status > 299 ? text : found(text) });
    for (const more of query.includes('endkey') ? ['', '&inclusive_end=false', '&descending=true'] : ['']) {
      await call(pair, 'GET', `/_all_dbs${(query + more).replaceAll('"', '%22')}`, {}, listed);
    }
  }
  for (const body of [{ keys: [db.slice(1), 'none'] }, { keys: [] }, { keys: 'x' }, {}, [], '{', { keys: Array(101).fill('a') }]) {
    await call(pair, 'POST', '/_dbs_info', { body });
  }
  for (const name of ['A', '1', '_x', 'a b', 'a.b', 'aB', 'a'.repeat(239), 'x~']) {
    for (const method of ['GET', 'PUT', 'DELETE']) await call(pair, method, `/${encoded(name)}`);
  }
  pair.end();
});

test('local documents', TIMEOUT, async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = `/${await pair.database('?q=1')}`;
  const to = (method, path, options, view) => call(pair, method, `${db}/_local/${path}`, options, view);
  for (const query of ['', '?batch=ok', '?conflicts=true', '?latest=true', '?attachments=true']) {
    await to('PUT', `a${query}`, { body: { v: 1 } });
    await to('PUT', `a${query}`, { body: { v: 2, _rev: '0-1' } });
    await to('PUT', 'b', { body: { v: 2 }, headers: { 'if-match': '"0-3"' } });
    for (const id of ['a', 'b']) for (const method of ['GET', 'HEAD', 'DELETE', 'DELETE', 'GET']) await to(method, `${id}${query}`);
  }
  for (const rev of ['x', '1', '', '-1', 'a-1', '0-1', '0-7', '0-x', '0-', '1-a', '99999999999999999999-1']) {
    await to('PUT', 'a', { body: {} });
    for (const method of ['GET', 'PUT', 'DELETE']) await to(method, `a?rev=${rev}`, method === 'PUT' ? { body: {} } : {});
  }
  const histories = [
    1, {}, { start: 0 }, { ids: ['1'] }, { start: '0', ids: ['1'] }, { start: 0, ids: 1 }, { start: 0, ids: '1' }, { start: 0, ids: {} },
    { start: 0, ids: [1] }, { start: 0, ids: ['1', null] }, { start: 0, ids: ['zz'] }, { start: 0, ids: [] }, { start: 0, ids: ['7', '6'] },
  ];
  for (const _revisions of histories) {
    await to('PUT', 'r', { body: { _revisions } });
    await to('PUT', 'r', { body: { _rev: '0-3', _revisions } });
    await to('GET', 'r');
  }
  await to('PUT', 'c?rev=0-1', { body: { _rev: '0-2' } });
  await to('PUT', 'c', { body: { _deleted: true } });
  for (const doc of [{ v: 1 }, { _deleted: true }, { _id: '_local/r', _rev: '0-3' }, { _revisions: { start: 0, ids: ['4'] } }]) {
    const isNamed = doc._rev || doc._revisions;
    // CouchDB answers with the sent revision, and stores the next one.
    await to('PUT', 'r?new_edits=false', { body: doc }, isNamed && (({ status }) => ({ status })));
    await call(pair, 'POST', `${db}/_bulk_docs`, { body: { new_edits: false, docs: [{ _id: '_local/r', ...doc }] } });
    if (!isNamed) await to('GET', 'r');
  }
  for (const rev of ['0-1', '1', 'x', 1, null, '', '0-x', '1-a', '-1']) {
    await to('PUT', 'd', { body: { _rev: rev } });
    await to('GET', 'd');
  }
  // A cache asks with the tag of a document that was deleted and then written again.
  for (const origin of [pair.ours, pair.theirs]) {
    const send = (method, options = {}) =>
      raw(origin, method, `${db}/_local/e`, { ...options, headers: { authorization: pair.authorization, ...options.headers } });
    const { headers } = await send('PUT', { body: { v: 1 } });
    assert.equal((await send('GET', { headers: { 'if-none-match': headers.etag } })).status, 304);
    await send('DELETE');
    await send('PUT', { body: { v: 2 } });
    const again = await send('GET', { headers: { 'if-none-match': headers.etag } });
    assert.deepEqual([again.status, JSON.parse(again.text)], [200, { _id: '_local/e', _rev: '0-1', v: 2 }], origin);
  }
  for (const query of ['', 'include_docs=true', 'limit=1', 'skip=1', 'descending=true', 'key="_local/d"', 'endkey="_local/c"']) {
    await call(pair, 'GET', `${db}/_local_docs?${query.replaceAll('"', '%22')}`);
  }
  const keys = ['_local/d', '_local/none', 'x', '_local/r', '_local/d', '_local/'];
  for (const body of [{ keys }, { keys, include_docs: true }, { keys: keys.slice(0, 1) }, { keys, skip: 1, limit: 3, descending: true }]) {
    for (const list of ['_all_docs', '_design_docs', '_local_docs']) await call(pair, 'POST', `${db}/${list}`, { body });
  }
  pair.end();
});

const TYPES = ['text/plain', 'image/png', 'application/json', 'text/html; charset=utf-8', 'application/octet-stream', 'text', ''];
const RANGES = ['bytes=0-', 'bytes=0-1', 'bytes=1-', 'bytes=-0', 'bytes=5-2', 'bytes=10-20000000', 'x', 'bytes=a-b', 'bytes=0-1,3-4'];

/** Documents with attachments: inline, by themselves and in parts, with their revisions, digests, ranges and codings. */
test('random documents with attachments', TIMEOUT, async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const { next, below, pick } = random(t);
  const db = `/${await pair.database('?q=1')}`;
  const to = (method, path, options, view) => call(pair, method, db + path, options, view);
  const data = () => {
    const byte = next() < 0.5 ? () => 97 + below(3) : () => below(256);
    return Buffer.from(Array.from({ length: pick([0, 1, 5, 100, 3_000, 20_000]) }, byte));
  };
  const value = (depth = 0) => {
    switch (below(depth > 3 ? 6 : 8)) {
      case 0: return pick([null, true, false]);
      case 1: return pick([0, 1, -1, 255, 256, 2 ** 31, -(2 ** 31) - 1, 2 ** 53, 0.5, -2.25, 3.3e-9]);
      case 2: return below(1e6);
      case 3: return pick(['', 'a', 'é', '😀', '\u0000', '"\\/', 'x'.repeat(below(300)), '\u2028']);
      case 4: return Array.from({ length: below(6) }, () => below(256));
      case 5: return `k${below(50)}`;
      case 6: return Array.from({ length: below(5) }, () => value(depth + 1));
      default: {
        const member = () => [pick(['a', 'zz', 'é', '', '1', '10', 'x y']), value(depth + 1)];
        return Object.fromEntries(Array.from({ length: below(5) }, member));
      }
    }
  };
  const inParts = (document, contents) => {
    const first = Buffer.from(`--b\r\nContent-Type: application/json\r\n\r\n${JSON.stringify(document)}\r\n`);
    const others = contents.map((content) => [Buffer.from('--b\r\n\r\n'), content, Buffer.from('\r\n')]);
    return Buffer.concat([first, ...others.flat(), Buffer.from('--b--')]);
  };
  const packed = gzipSync('hello '.repeat(20), { level: 8 });
  for (let n = 0; n < 200; n++) {
    const id = pick(['a', 'b', 'c', 'é', 'x/y', '_design/d']);
    const path = `/${id.startsWith('_') ? id : encoded(id)}`;
    const found = JSON.parse((await raw(pair.theirs, 'GET', db + path, { headers: { authorization: pair.authorization } })).text);
    const rev = found._rev;
    if (found.reason === 'deleted') {
      // CouchDB forgets to hash the attachments of a document that is created again. So it has no attachments at first.
      await to('PUT', path, { body: { again: n } });
      continue;
    }
    const body = Object.fromEntries(Array.from({ length: below(4) }, () => [pick(['a', 'b', 'c', 'd']), value()]));
    if (rev) body._rev = rev;
    const name = pick(['p', 'q', 'r', 'é', 's/t']);
    switch (below(7)) {
      case 0: case 1:
        body._attachments = next() < 0.6 ? { ...found._attachments } : {};
        for (let count = below(3); count > 0; count--) {
          body._attachments[pick(['p', 'q', 'r', 'é', 's/t'])] = { data: data().toString('base64'), content_type: pick(TYPES) };
        }
        if (next() < 0.1) body._deleted = true;
        await to('PUT', path, { body });
        break;
      case 2: {
        const isPacked = next() < 0.2;
        const headers = { 'content-type': pick(TYPES), ...(isPacked && { 'content-encoding': 'gzip' }) };
        await to('PUT', `${path}/${encoded(name)}${rev ? `?rev=${rev}` : ''}`, { body: isPacked ? packed : data(), headers });
        break;
      }
      case 3: {
        const contents = [data(), data()];
        const follows = ({ length }) => ({ follows: true, length, content_type: pick(['image/png', 'x/y', 'text/plain']) });
        body._attachments = { [name]: follows(contents[0]), z: follows(contents[1]) };
        await to('PUT', path, { body: inParts(body, contents), headers: { 'content-type': 'multipart/related; boundary=b' } });
        break;
      }
      case 4: if (rev) await to('DELETE', `${path}/${encoded(name)}?rev=${rev}`); break;
      case 5: if (rev && next() < 0.5) await to('DELETE', `${path}?rev=${rev}`); break;
      default: if (rev) await to('COPY', path, { headers: { destination: `copy${n}` } });
    }
    await to('GET', path);
    if (n % 4) continue;
    for (const accept of [undefined, 'application/json', 'multipart/related', 'multipart/mixed']) {
      const queries = ['attachments=true&revs=true', 'open_revs=all&attachments=true', 'att_encoding_info=true', 'atts_since=[]'];
      for (const query of queries) {
        await to('GET', `${path}?${query}`, { headers: { accept } }, (answer, at) => {
          // Numbers in parts are spelled differently.
          const view = shown(answer, at);
          return typeof view.body === 'string' ? { ...view, body: view.body.length > 0 } : view;
        });
      }
      await to('POST', '/_bulk_get?attachments=true', { body: { docs: [{ id }] }, headers: { accept } }, ({ status, headers }) => ({
        status, type: headers['content-type']?.split(';')[0],
      }));
    }
    for (const headers of [{}, { 'accept-encoding': 'gzip' }, { 'accept-encoding': 'identity' }, { range: pick(RANGES) }]) {
      const content = (answer, at) => {
        const view = shown(answer, at);
        // An answer with several ranges has no tag in CouchDB, and its HEAD has a length of 0.
        if (view.headers['content-type']?.includes('byteranges')) return { status: view.status };
        // Text that is unpacked on its way has no length, unless it is empty.
        return { ...view, length: Number(answer.headers['content-length'] ?? 0) };
      };
      for (const method of ['GET', 'HEAD']) await to(method, `${path}/${encoded(name)}`, { headers }, content);
    }
  }
  const one = Buffer.from('x').toString('base64');
  for (const [n, attachment] of [
    { data: one }, { data: 'x' }, { data: 1 }, { data: null }, { data: '' }, {}, 1, { stub: true }, { data: one, stub: true },
    { data: 'eA' },
    { data: one, revpos: 5 }, { data: one, length: 99, digest: 'md5-x' }, { data: '_-8=' }, { data: one, odd: 1 },
    { data: `${one}\n` },
  ].entries()) {
    for (const more of [{}, { _deleted: true }]) {
      await to('PUT', `/in${n}`, { body: { _attachments: { a: attachment }, ...more } });
      await to('GET', `/in${n}?open_revs=all&attachments=true`, JSON_ONLY);
    }
    const replicated = { _id: `r${n}`, _rev: '3-abc', _attachments: { a: attachment } };
    await to('POST', '/_bulk_docs', { body: { new_edits: false, docs: [replicated] } });
    await to('GET', `/r${n}?attachments=true`, JSON_ONLY);
  }
  pair.end();
});

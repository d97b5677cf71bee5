// Views, listings and functions of design documents beside a CouchDB that COUCHDB_URL names.

import { test } from 'node:test';

import { beside, random } from '../lib/beside.mjs';

// CouchDB crashes on these mistakes of a client, and this server reports them. Both refuse.
const CRASHES = new Set([
  'function_clause', 'case_clause', 'badarg', 'badmatch', 'badarith', 'if_clause', 'bad_arg', 'unknown_error', 'invalid_ejson',
]);

/** The compared part of an answer: its text, with the order of members and the digits of numbers. */
function view({ status, body, text, headers }, path) {
  if (status === 'cut' || (status >= 500 && (CRASHES.has(body?.error) || body?.error?.startsWith('{')))) return 'refused';
  const shown = text
    // Opaque. With `keys`, and of local documents, CouchDB has none.
    .replaceAll(/"update_seq":("[^"]*"|\d+|null)/g, '"update_seq":"SEQ"')
    // Errors of another version of QuickJS, with the source behind them.
    .replace(/(Compilation of the \w+ function in the '[^']*' view failed): .*"\}/, '$1"}')
    // The value that _sum could not take, or a part of it.
    .replaceAll(/"caused_by":("[^"]*"|\{[^}]*\}|[^,}]*(?=\}))\}*/g, '"caused_by":0')
    // Sizes of terms, and of texts here. CouchDB's row has no key.
    .replaceAll(/"key":[^\n]*?,"error":"reduce_overflow_error","reason":"[^"]*"/g, '"error":"reduce_overflow_error"')
    // CouchDB counts documents of all kinds before the first design document.
    .replaceAll(/"offset":\d+,/g, path.includes('/_design_docs') ? '' : '$&')
    // CouchDB's own notes about purges.
    .replaceAll(/\{"id":"_local\/purge-mrview-[^\n]*(,\r\n)?/g, '')
    // The same methods in another order.
    .replace(/Only ([A-Z,]+) allowed/, (_, methods) => `Only ${methods.split(',').sort()} allowed`)
    // A hash of the place in CouchDB's code.
    .replace(/,"ref":\d+\}/, '}')
    // Values as terms of Erlang: `[]` is an empty string, `<<"a">>` a string of a body.
    .replace(/(Invalid (?:boolean parameter|value for (?:positive )?integer)): .*"\}/, '$1"}')
    // For a text in a body, CouchDB does not say that it is negative.
    .replace('Invalid value for positive integer', 'Invalid value for integer')
    // CouchDB writes `1.0e-7`, this server `1e-7`, as JavaScript does. Sums of many numbers are rounded in another
    // order.
    .replaceAll(/"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g, (one) => (/^[^"]*[.eE]/.test(one) ? String(Number(Number(one).toPrecision(14))) : one))
    .replaceAll(/[\r\n]+/g, '\n')
    .trim();
  // A value that `_stats` cannot take, in other words.
  if (status === 500 && body?.error === 'invalid_value') return { status, error: body.error };
  return { status, text: shown, type: headers.get('content-type') };
}

/** One side refused with a crash: the other must refuse too, with any text. */
function compare(pair, what, ours, theirs) {
  const [a, b] = [view(ours, what), view(theirs, what)];
  if (b === 'refused' && ours.status >= 400 && ours.status < 500) return pair.note(what, 'refused', 'refused');
  // CouchDB also crashes on valid requests: rows of a view with values that its reduce function cannot take, and
  // parameters of local documents that have no effect.
  if (b === 'refused' && ours.status === 200 && /\/_view\/|\/_local_docs/.test(what)) return pair.note(what, 'refused', 'refused');
  return pair.note(what, a, b);
}

async function same(pair, path, options = {}) {
  const { ours, theirs } = await pair.both(path, options);
  compare(pair, `${options.method ?? 'GET'} ${path} ${JSON.stringify(options.body) ?? ''}`, ours, theirs);
  return { ours, theirs };
}

const encoded = (params) => params.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&');

// ---------------------------------------------------------------------------------------------------------------------------

const MAP = 'function (doc) { if (doc.keys) doc.keys.forEach(function (k) { emit(k, doc.value); }); }';

const DESIGN = {
  _id: '_design/d',
  views: {
    map: { map: MAP },
    sum: { map: 'function (doc) { (doc.keys || []).forEach(function (k) { emit(k, doc.number); }); }', reduce: '_sum' },
    count: { map: MAP, reduce: '_count' },
    own: { map: MAP, reduce: 'function (keys, values, rereduce) { return rereduce ? sum(values) : values.length; }' },
    linked: { map: 'function (doc) { if (doc.link) emit(doc.link, { _id: doc.link, extra: 1 }); emit(null, { _id: 7 }); emit(1, { _rev: doc._rev }); }' },
  },
};

const KEYS = [
  null, false, true, 0, 1, 2, 1.5, -1, 'a', 'A', 'b', 'B', 'aa', '', ' ', 'é', 'e', [], [1], [1, 2], [1, 'a'], [[]], [null], ['a', 1, 2],
  ['a', 1, 3], ['a', 2], ['b'], {}, { a: 1 }, { a: 2 }, { b: 1 }, { a: 1, b: 2 }, { b: 2, a: 1 },
];

async function fill(pair, dice, db) {
  const docs = [];
  for (let n = 0; n < 40; n++) {
    const keys = [];
    for (let left = dice.below(4); left > 0; left--) keys.push(dice.pick(KEYS));
    docs.push({ _id: `doc${n}`, keys, value: dice.pick([null, 1, 'x', { a: 1 }]), number: dice.below(100) });
  }
  docs.push({ _id: 'link', link: 'doc3' }, { _id: 'loop', link: 'loop' }, { _id: 'dangling', link: 'nowhere' });
  docs.push({ _id: 'tolost', link: 'lost' });
  await pair.same(`/${db}/_bulk_docs`, { method: 'POST', body: { docs } });
  const revs = (n, id) => ({ _id: 'doc1', _rev: `${n}-${id}`, keys: ['a', 'b'], number: 7, value: 'c' });
  await pair.same(`/${db}/_bulk_docs`, { method: 'POST', body: { new_edits: false, docs: [
    revs(1, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'), revs(1, 'ffffffffffffffffffffffffffffffff'),
    { _id: 'lost', _rev: '2-cccccccccccccccccccccccccccccccc', _deleted: true },
    { _id: 'doc2', _rev: '9-ffffffffffffffffffffffffffffffff', keys: ['a'], value: 1, number: 1,
      _attachments: { 'a.txt': { content_type: 'text/plain', data: Buffer.from('hello '.repeat(30)).toString('base64') } } },
  ] } });
  await pair.same(`/${db}`, { method: 'POST', body: DESIGN });
}

const JSONS = ['null', 'true', '0', '1', '"a"', '"A"', '"b"', '[1]', '["a"]', '["a",1]', '["a",{}]', '{}', '{"a":1}', '"\\ufff0"', '1.5'];
const BADJSON = ['', 'a', '{', '[1', 'undefined', "'a'", '1 2', '01', 'nul'];
const BOOLS = ['true', 'false'];
const BADBOOLS = ['', 'TRUE', 'True', '1', 'null', '"true"', 'yes', ' true'];
const COUNTS = ['0', '1', '2', '5', '1000'];
const BADCOUNTS = ['', '-1', 'x', '1.5', '1e1', '"1"', 'null', '+1', ' 1', '01', '99999999999999999999'];

const PARAMS = {
  key: [JSONS, BADJSON],
  keys: [['[]', '["a"]', '["a","b"]', '["b","a","a",1,[1]]', '[null,{}]', '["nope","a"]'], [...BADJSON, '{}', '"a"', '1', 'null', 'true']],
  startkey: [JSONS, BADJSON],
  start_key: [JSONS, BADJSON],
  endkey: [JSONS, BADJSON],
  end_key: [JSONS, BADJSON],
  startkey_docid: [['doc1', 'doc20', '', 'zzz', '"doc1"'], []],
  start_key_doc_id: [['doc1', 'doc20'], []],
  endkey_docid: [['doc1', 'doc20', '', 'zzz'], []],
  end_key_doc_id: [['doc1', 'doc20'], []],
  descending: [BOOLS, BADBOOLS],
  inclusive_end: [BOOLS, BADBOOLS],
  group: [BOOLS, BADBOOLS],
  group_level: [COUNTS, [...BADCOUNTS, 'exact']],
  reduce: [BOOLS, BADBOOLS],
  include_docs: [BOOLS, BADBOOLS],
  conflicts: [BOOLS, BADBOOLS],
  attachments: [BOOLS, BADBOOLS],
  att_encoding_info: [BOOLS, BADBOOLS],
  update_seq: [BOOLS, BADBOOLS],
  update: [['true', 'false', 'lazy'], ['', 'x', 'TRUE', 'null']],
  stable: [BOOLS, BADBOOLS],
  stale: [['ok', 'update_after'], ['', 'x', 'false', 'OK']],
  // Not with `false`: CouchDB forgets `skip` then.
  sorted: [['true'], BADBOOLS],
  limit: [COUNTS, BADCOUNTS],
  skip: [COUNTS, BADCOUNTS],
  partition: [[], ['x', '']],
  list: [['x'], []],
  callback: [['f'], []],
  unknown: [['1'], []],
};

/** The parameters as members of a body: JSON values have their type there, and so do numbers: "1" is refused by CouchDB, and is 1 here. */
function members(params, dice) {
  const body = {};
  for (const [name, value] of params) {
    let json;
    try { json = JSON.parse(value); } catch { json = value; }
    const isKey = /^(key|keys|start_?key|end_?key)$/.test(name);
    if (/^"\d+"$/.test(value)) continue;
    body[name] = /^[+]?\d+$/.test(value) ? Number(value) : isKey || dice.below(4) ? json : value;
  }
  return body;
}

test('parameters of views and listings mean the same', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const dice = random(t);
  const db = await pair.database('?q=1');
  await fill(pair, dice, db);
  const places = ['_design/d/_view/map', '_design/d/_view/sum', '_design/d/_view/own', '_all_docs', '_design_docs', '_local_docs'];
  for (const place of places) await same(pair, `/${db}/${place}`);
  for (const place of places) {
    for (const [name, [good, bad]] of Object.entries(PARAMS)) {
      for (const value of [...good, ...bad]) await same(pair, `/${db}/${place}?${encoded([[name, value]])}`);
    }
  }
  const names = Object.keys(PARAMS);
  for (let n = 0; n < Number(process.env.ROUNDS ?? 3000); n++) {
    const params = [];
    const good = dice.below(5) > 0;
    for (let left = 2 + dice.below(4); left > 0; left--) {
      const name = dice.pick(names);
      // Only one mistake in a request: if there are several, each side may see another one first. A mistake in `keys`
      // hides others of the body.
      const isWrong = params.some(([known, value]) => PARAMS[known][1].includes(value));
      // A number that is too large counts as a second one of any group.
      const all = PARAMS[name].flat().filter((value) => value !== '99999999999999999999');
      const values = good || isWrong || name === 'keys' || dice.below(3) ? PARAMS[name][0] : all;
      // If a name is repeated, CouchDB uses the first value for some checks, and the last for others.
      if (values.length && !params.some(([known]) => known === name)) params.push([name, dice.pick(values)]);
    }
    const place = dice.pick([...places, '_design/d/_view/linked', '_design/d/_view/count']);
    const has = (pattern) => params.some(([name]) => pattern.test(name));
    // CouchDB refuses a range together with `keys` only in some requests, and treats a list of one key as a range.
    if (has(/^keys$/) && has(/^(key|start_?key|end_?key|inclusive_end|.*doc_?id)$/)) continue;
    // In CouchDB, an empty id of the end has the opposite meaning if the end is left out.
    if (has(/^inclusive_end$/) && params.some(([name, value]) => name === 'endkey_docid' && value === '')) continue;
    // A linked document in a revision that the row names has no conflicts there.
    if (place.endsWith('linked') && has(/^conflicts$/)) continue;
    switch (dice.below(4)) {
      case 0: case 1: await same(pair, `/${db}/${place}?${encoded(params)}`); break;
      case 2: {
        // Nor `keys`: one key is a range then.
        const inUrl = params.splice(0, params[0]?.[0] === 'keys' ? 0 : dice.below(2));
        await same(pair, `/${db}/${place}?${encoded(inUrl)}`, { method: 'POST', body: members(params, dice) });
        break;
      }
      default: {
        // CouchDB checks parameters of the URL even if they have no effect on queries.
        const inUrl = good && params[0]?.[0] !== 'keys' ? params.splice(0, dice.below(2)) : [];
        const queries = [members(params, dice), {}];
        await same(pair, `/${db}/${place}/queries?${encoded(inUrl)}`, { method: 'POST', body: { queries } });
      }
    }
  }
  pair.end();
});

// ---------------------------------------------------------------------------------------------------------------------------

// Not here: quotation marks such as “ and „, which differ from " less since version 46 of Unicode's order than in the
// library that CouchDB was built with; and marks in an order that Unicode does not keep (ê with a dot below), which
// CouchDB compares as they are.
const STRINGS = [
  'a', 'A', 'á', 'Á', 'ä', 'ae', 'æ', 'b', 'B', 'z', 'Z', 'ß', 'ss', 'ẞ', 'ñ', 'n', 'ñ', 'é', 'é', 'É', 'o', 'ø', 'Ø', 'œ', 'þ', 'ı', 'i', 'İ', 'I',
  '', ' ', '  ', '\t', '\n', '\u0000', '\u0001', 'a\u0000b', 'ab', 'a b', 'a-b', 'a_b', '-', '_', '!', '"', '#', '$', '%', '&', "'", '(', ')', '*', '+', ',', '.',
  '/', ':', ';', '<', '=', '>', '?', '@', '[', '\\', ']', '^', '`', '{', '|', '}', '~', '0', '1', '9', '10', '2', '٣', '²', '½', '一', '中', '文', 'あ', 'ア', 'ｱ', '한',
  'ק', 'ש', 'ا', 'ب', 'α', 'Α', 'ω', 'я', 'Я', 'ё', 'е', '😀', '😃', '👩‍👩‍👧', '👩', '🏳️‍🌈', '\ufff0', '\uffff', '\ufffd', '\u{10ffff}', '\u{1d400}', 'Ａ', '\u00ad', 'co-op', 'coop', 'co\u00adop',
  '\u200b', '\u200d', '\ufeff', '\u0301', 'e\u0301\u0302', 'e\u0302\u0301', 'ﬁ', 'fi', '…', '...', '€', '£', '¢', 'aa', 'aA', 'Aa', 'AA', 'aab', 'aaB', 'role', 'rôle', 'Role', 'roles',
  'ệ', 'ẹ\u0302', '\ud83d', 'x\udc00y',
];
const NUMBERS = [
  '0', '-0', '0.0', '-0.0', '1', '1.0', '-1', '1e0', '10', '1e1', '1.5', '-1.5', '0.1', '0.10', '1e-7', '0.0000001', '1e21', '1e22', '123456789012345678', '123456789012345679',
  '9007199254740991', '9007199254740992', '9007199254740993', '9223372036854775807', '9223372036854775808', '18446744073709551616', '1e100', '1.7976931348623157e308', '5e-324', '2.5e-10', '100000000000000000000',
  '-9007199254740993', '3.0', '1E5', '100000', '1e5', '123456.789', '0.30000000000000004',
];
const OBJECTS = [
  '{}', '{"a":1}', '{"a":2}', '{"A":1}', '{"b":1}', '{"a":1,"b":1}', '{"b":1,"a":1}', '{"a":null}', '{"a":{}}', '{"a":[]}', '{"":1}', '{"é":1}', '{"e":1}', '{"a":1,"c":0}', '{"a":1,"b":2,"c":3}', '{"aa":0}',
];
const ARRAYS = ['[]', '[null]', '[[]]', '[[[]]]', '[{}]', '[1]', '[1,2]', '[1,[2]]', '["a"]', '["a","b"]', '["ab"]', '[true]', '[false]', '[1.0]', '["a",1]', '["A",1]', '["a",{}]', '["á",1]'];

test('keys have one order', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const dice = random(t);
  const db = await pair.database('?q=1');
  const keys = ['null', 'true', 'false', ...NUMBERS, ...OBJECTS, ...ARRAYS, ...STRINGS.map((one) => JSON.stringify(one))];
  const some = () => dice.pick([...keys, '1', '"a"']);
  for (let n = 0; n < 150; n++) {
    const parts = [];
    for (let left = dice.below(4); left > 0; left--) parts.push(some());
    keys.push(dice.below(2) ? `[${parts}]` : `{${parts.map((one, n) => `${JSON.stringify(dice.pick(STRINGS).replace(/[\ud800-\udfff]/g, '') + n)}:${one}`)}}`);
  }
  for (let n = 0; n < 100; n++) {
    let text = '';
    for (let left = 1 + dice.below(4); left > 0; left--) text += dice.pick(STRINGS);
    keys.push(JSON.stringify(text));
  }
  const docs = keys.map((key, n) => `{"_id":"${String(n).padStart(4, '0')}","key":${key}}`);
  for (let n = 0; n < docs.length; n += 50) {
    const { ours } = await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: `{"docs":[${docs.slice(n, n + 50)}]}` });
    // Half of a surrogate pair is not valid text: the whole batch is refused, and then the documents without it are
    // written.
    if (ours.status !== 201) {
      for (const doc of docs.slice(n, n + 50)) await same(pair, `/${db}`, { method: 'POST', body: doc });
    }
  }
  await same(pair, `/${db}`, { method: 'POST', body: {
    _id: '_design/d',
    views: {
      key: { map: 'doc => emit(doc.key, doc.key)' },
      count: { map: 'doc => emit(doc.key, 1)', reduce: '_count' },
      list: { map: 'doc => emit([doc.key, 1], 1)', reduce: '_sum' },
    },
  } });
  await same(pair, `/${db}/_design/d/_view/key`);
  await same(pair, `/${db}/_design/d/_view/key?descending=true`);
  await same(pair, `/${db}/_design/d/_view/count?group=true`);
  await same(pair, `/${db}/_design/d/_view/count?group_level=1`);
  await same(pair, `/${db}/_design/d/_view/count?group_level=2`);
  await same(pair, `/${db}/_design/d/_view/list?group_level=1`);
  const usable = keys.filter((key) => !/\\ud[89a-f]/.test(key));
  for (let n = 0; n < Number(process.env.ROUNDS ?? 1500) / 3; n++) {
    const [a, b] = [dice.pick(usable), dice.pick(usable)];
    const params = [[['key', a]], [['startkey', a]], [['endkey', a]], [['startkey', a], ['endkey', b]], [['keys', `[${a},${b}]`]]];
    const asked = [...dice.pick(params), ...dice.pick([[], [['descending', 'true']], [['inclusive_end', 'false']]])];
    await same(pair, `/${db}/_design/d/_view/${dice.pick(['key', 'count'])}?${encoded([...asked, ['group', 'true'], ['reduce', 'true']].slice(0, asked.length))}`);
    await same(pair, `/${db}/_design/d/_view/count?${encoded([...asked, ['group', 'true']])}`);
  }
  pair.end();
});

// ---------------------------------------------------------------------------------------------------------------------------

/** A design document of a view for each reduce function, which emits `doc.v` by `doc.k`; a wrong value of one view breaks all of them. */
const reducing = (reduce) => ({ views: { v: { map: 'function (doc) { if ("k" in doc) emit(doc.k, doc.v); }', reduce } } });

const BUILTINS = [
  '_sum', '_count', '_stats', '_top_1', '_top_3', '_bottom_1', '_bottom_2', '_first', '_last', '_approx_count_distinct',
];
const BAD_BUILTINS = ['_top_0', '_top_101', '_top_-1', '_top_', '_top', '_top_x', '_bottom_1000', '_nope', '_', '_SUM', ' _sum', '_sum ', '_sumx', '_stats1', '_countx'];

const VALUES = {
  numbers: ['1', '2', '3.5', '-4', '0', '1e3', '0.1'],
  large: ['9007199254740991', '1e30', '123456789012', '0.5'],
  arrays: ['[1,2,3]', '[1]', '[]', '[0.5,-1,2,7]'],
  mixed: ['1', '[1,2]', '[]', '7'],
  objects: ['{"a":1}', '{"a":2,"b":3}', '{"b":{"c":1}}', '{}', '{"b":{"c":2,"d":4}}'],
  lists: ['{"a":[1,2]}', '{"a":[3]}', '{"a":1}'],
  strings: ['"a"', '"1"', '1'],
  nulls: ['null', '1'],
  bools: ['true', '1'],
  deep: ['[[1]]', '[1]'],
  strings2: ['["a"]', '[1]'],
  both: ['{"a":1}', '1'],
  both2: ['{"a":1}', '[1]'],
  both3: ['{"a":"x"}', '{"a":1}'],
  stats: ['{"sum":1,"count":1,"min":1,"max":1,"sumsqr":1}', '{"sum":5,"count":2,"min":2,"max":3,"sumsqr":13}', '4'],
  wrong: ['{"sum":1,"count":1,"min":1}', '4'],
  anything: ['"x"', 'null', '{"a":1}', '["b"]', '7', 'true', '"é"', '[]'],
};

test('builtin reduce functions reduce the same', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const dice = random(t);
  const ks = ['1', '2', '"a"', '["a",1]', '["a",2]', '["b",1]', '["b",2,3]', 'null', '{"x":1}'];
  for (const [name, values] of Object.entries(VALUES)) {
    const db = await pair.database('?q=1');
    const docs = [];
    for (let n = 0; n < 12; n++) docs.push(`{"_id":"${name}${n}","k":${dice.pick(ks)},"v":${dice.pick(values)}}`);
    await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: `{"docs":[${docs}]}` });
    for (const reduce of BUILTINS) {
      // A wrong value fails all rows of the view in CouchDB. Here it fails only the requested rows.
      if (reduce === '_stats' && !['numbers', 'stats'].includes(name)) continue;
      await same(pair, `/${db}/_design/${reduce}`, { method: 'PUT', body: reducing(reduce) });
      const at = `/${db}/_design/${reduce}/_view/v`;
      await same(pair, at);
      await same(pair, `${at}?group=true`);
      await same(pair, `${at}?group_level=1`);
      await same(pair, `${at}?group_level=2&descending=true`);
      await same(pair, `${at}?group=true&skip=1&limit=2`);
      await same(pair, `${at}?startkey="a"`);
      await same(pair, `${at}?key=["a",1]`);
      await same(pair, `${at}?keys=["a",["a",1]]&group=true`);
      await same(pair, `${at}?key="nothing"`);
      await same(pair, `${at}?limit=0`);
    }
  }
  const db = await pair.database('?q=1');
  await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: { docs: [{ _id: 'a', k: 1, v: 1 }, { _id: 'b', k: 2, v: 5 }] } });
  for (const reduce of BAD_BUILTINS) {
    const id = encodeURIComponent(`x${reduce}`);
    await same(pair, `/${db}/_design/${id}`, { method: 'PUT', body: reducing(reduce) });
    await same(pair, `/${db}/_design/${id}/_view/v`);
    await same(pair, `/${db}/_design/${id}/_view/v?reduce=false`);
    await same(pair, `/${db}/_design/${id}/_view/v?group=true`);
  }
  pair.end();
});

// Results of a client's own reduce functions. Left out: values without JSON, such as a cycle (CouchDB's whole view
// fails with it); the order of rows, which CouchDB reverses; that CouchDB always reduces its last results again; `emit`
// and `require`, which CouchDB does not have there.
const OWN = [
  'function (k, v, r) { return r ? sum(v) : v.length; }',
  'function (k, v, r) { return null; }',
  'function (k, v, r) { }',
  'function (k, v, r) { return undefined; }',
  'function (k, v, r) { return NaN; }',
  'function (k, v, r) { return 1 / 0; }',
  'function (k, v, r) { throw new Error("x"); }',
  'function (k, v, r) { throw {a: 1}; }',
  'function (k, v, r) { throw "text"; }',
  'function (k, v, r) { return function () {}; }',
  'function (k, v, r) { return new Date(0); }',
  'function (k, v, r) { return "x".repeat(100); }',
  'function (k, v, r) { return "x".repeat(10000); }',
  'function (k, v, r) { return r === true ? v[0] : typeof r + arguments.length; }',
  '(k, v, r) => r ? v[0] : isArray(v)',
  'function (k, v, r) { nothing.at(all); }',
  'function (k, v, r) { return {count: r ? v.reduce((a, b) => a + b.count, 0) : v.length}; }',
  'function (k, v, r) { return Symbol("a"); }',
  'function (k, v, r) { log("hello"); return 1; }',
  'function (k, v, r) { v.push(1); return r ? v[0] : v.length; }',
  'function (k, v, r) { return this === undefined ? "u" : typeof this; }',
];

test("reduce functions of one's own reduce the same", async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = await pair.database('?q=1');
  const docs = [];
  for (let n = 0; n < 9; n++) docs.push({ _id: `d${n}`, k: [n % 3, n], v: n });
  await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: { docs } });
  for (const [n, reduce] of OWN.entries()) {
    const design = reducing(reduce);
    design.views.lib = { x: 'exports.one = 1;' };
    await same(pair, `/${db}/_design/r${n}`, { method: 'PUT', body: design });
    for (const query of ['', '?group=true', '?group_level=1', '?key=[1,1]', '?group=true&keys=[[1,1],[2,2]]', '?reduce=false&limit=1', '?startkey=[7]']) {
      await same(pair, `/${db}/_design/r${n}/_view/v${query}`);
    }
  }
  pair.end();
});

// ---------------------------------------------------------------------------------------------------------------------------

// Not here: async functions and generators, which run here and emit nothing after their first pause, and several
// functions in a row.
const SOURCES = [
  'function (doc) { emit(1); }', 'function(doc){emit(1)};', '(function (doc) { emit(1); })', 'doc => emit(1)', '(doc) => { emit(1); }', 'function f(doc) { emit(1); }', 'function f(doc) {} ; f',
  '  \n function (doc) { emit(1); } \n ', '// c\nfunction (doc) { emit(1); }', '/* c */ function (doc) { emit(1); }', 'function (doc) { emit(1); } // c', 
  'class A {}', 'null', '1', '"a"', '{}', '[]', ' ', 'function', 'function (doc) {', 'emit(1)', 'doc.a', 'nothing', 'var f = function (doc) { emit(1); }',
  'var f = function (doc) { emit(1); }; f', 'let f = (doc) => emit(1); f', 'throw 1', 'throw new Error("x")', 'throw {a: 1}', 'function (doc) { return return; }', 'new Function("doc", "emit(1)")',
  'Math.max', 'emit', '"use strict"; (doc) => emit(1)', 'function (doc) { emit(doc?.a ?? 1); }', 'function (doc) { const {a, ...b} = doc; emit(a); }', 'import "x"', 'export default 1',
  '({a: function () {}})', '({a: function () {}}).a', 'function (doc) { with (doc) { emit(1); } }', 'function (doc) { let let = 1; }', 'return function (doc) {}', 'function (doc) { await 1; }', '<!-- c\nfunction (doc) {}', 'function (doc) { emit("\u2028"); }',
];

const ODD = [null, 1, true, 'a', [], {}, { a: 1 }, { a: 'x' }, { a: {} }, { a: { map: 1 } }, { a: { map: 'x' } }, { a: null }];

test('design documents are refused for the same', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = await pair.database('?q=1');
  let n = 0;
  const put = async (body) => {
    n++;
    await same(pair, `/${db}/_design/x${n}`, { method: 'PUT', body });
    return `/${db}/_design/x${n}`;
  };
  await same(pair, `/${db}`, { method: 'POST', body: { _id: 'doc', a: 2 } });
  for (const field of ['filters', 'language', 'lists', 'options', 'rewrites', 'shows', 'updates', 'validate_doc_update', 'views', 'other', 'autoupdate', 'indexes']) {
    // A function that cannot run is refused here at once.
    if (field === 'validate_doc_update') continue;
    for (const value of ODD) await put({ [field]: value });
  }
  for (const value of [null, 1, [], {}, true]) await put({ validate_doc_update: value });
  for (const name of ['include_design', 'local_seq', 'partitioned', 'other']) for (const value of ODD) await put({ options: { [name]: value } });
  for (const value of ODD) {
    await put({ views: { v: { map: value } } });
    await put({ views: { v: { map: 'doc => 1', reduce: value } } });
    await put({ views: { v: value } });
    await put({ views: { lib: value } });
    await put({ views: { lib: { v: value } } });
    await put({ views: { v: { map: 'doc => 1', options: value } } });
    await put({ views: { v: { map: 'doc => 1', other: value } } });
    await put({ views: { v: { map: value } }, language: 'query' });
    await put({ views: { v: { map: value } }, language: 'erlang' });
    await put({ views: { v: { map: value } }, language: 'other' });
    await put({ filters: { a: 'x' }, updates: { b: value }, lists: { b: value }, shows: { b: value } });
  }
  for (const reduce of [' ', '_count', 'function (k, v) { return 1; }', 'function (k, v) {', 'nothing', '1', '_sum ', '_sum\n']) {
    const at = await put({ views: { v: { map: 'doc => emit(1, 1)', reduce } } });
    await same(pair, `${at}/_view/v`);
    await same(pair, `${at}/_view/v?reduce=false`);
  }
  for (const source of SOURCES) {
    const at = await put({ views: { v: { map: source }, lib: { a: 'exports.f = function (doc) { emit(1); };' } } });
    await same(pair, `${at}/_view/v`);
  }
  // Both are wrong: the first one is named.
  await put({ views: { v: { map: 'doc => 1' }, w: { map: 'doc => ' } } });
  await put({ views: { v: { map: 'doc => 1', reduce: '_nope' }, w: { map: 'doc => 1', reduce: '_sum' } } });
  pair.end();
});

// ---------------------------------------------------------------------------------------------------------------------------

// Bodies of map functions that use `doc`. Left out: features of CouchDB only (functions of lists), features of this
// server only (typed arrays, promises, `normalize`, `localeCompare`, `require('./…')` of the design document), `throw
// null` and BigInt (CouchDB's whole view fails with them), modules that throw (in CouchDB they are `{}` when they are
// required again), and rows of one document with one key (CouchDB orders them by their values).
const MAPS = [
  'emit()', 'emit(undefined, undefined)', 'emit(null)', 'emit(1, undefined)', 'emit(NaN, NaN)', 'emit(Infinity, -Infinity)', 'emit(-0, -0)', 'emit(function () {}, function () {})', 'emit([function () {}, undefined, NaN], {a: undefined, b: function () {}, c: NaN})',
  'emit(new Date(0), new Date(NaN))', 'emit(new Date(1e12), [new Date(5)])', 'emit(Symbol("a"), Symbol("b"))', 'emit([Symbol("a")], {a: Symbol("b")})', 'emit(new String("a"), new Number(7))', 'emit(new Boolean(false), Object("x"))', 'emit(/x/g, /y/)', 'emit(new Map([[1, 2]]), new Set([1]))',
  'emit(new Error("x"), new TypeError("y"))', 'emit({toJSON: function () { return "j"; }}, {toJSON: function (k) { return typeof k; }})', 'emit([1, , 2], [, ])', 'emit(Array(3))', 'emit(Object.create({a: 1}), Object.create(null))', 'emit("\\ud800", "a\\udc00b")', 'emit("\\ud83d\\ude00")',
  'emit("\\u0000\\u0001\\u2028")', 'emit(1e21, 1e-7)', 'emit(123456789012345680000, 0.1 + 0.2)', 'emit(9007199254740993)', 'emit(doc.n, doc.n)', 'emit(doc.f, doc.f)', 'emit(arguments.length, typeof this)', 'emit(this === globalThis, this === undefined)', 'emit(1); throw new Error("after")', 'throw new Error("before"); emit(1)', 'throw "text"', 
  'throw {forbidden: "x"}', 'throw ["error", "a", "b"]', 'emit(emit(1), emit(2))', 'for (var k in doc) emit(k, doc[k])', 'emit(Object.keys(doc), JSON.stringify(doc))', 'emit(doc._id, doc._rev)', 'emit(doc._attachments)', 'emit(doc._conflicts, doc._revisions)', 'emit(doc._deleted_conflicts, doc._revs_info)', 'emit(doc._local_seq, doc._deleted)', 'doc.a = 9; emit(doc.a)',
  '"use strict"; doc.a = 9; emit(doc.a)', 'doc.o.push(1); emit(doc.o)', 'delete doc.a; emit(doc.a)', 'emit(isArray(doc.o), isArray(doc))', 'emit(sum([1, 2]), sum(doc.o))', 'emit(toJSON(doc.o), toJSON(undefined))', 'log("x"); emit(typeof log, typeof require)', 'emit(typeof print, typeof readline)', 
  'emit(typeof console, typeof setTimeout)', 'emit(typeof process, typeof std)', 'emit(typeof globalThis, typeof window)', 'emit(typeof exports, typeof module)', 'emit(typeof Couch, typeof State)', 'emit(typeof JSON, typeof Math)', 'emit(typeof Intl, typeof WeakMap)', 'emit(typeof BigInt, typeof Symbol)', 
  'emit(typeof eval, typeof Function)', 'emit(eval("1 + 1"), new Function("return 3")())', 'emit("a-b".split("-"), "x".padStart(3, "y"))', 'emit([3, 1, 2].sort(), [10, 9, 1].sort())', 'emit(/(?<y>\\d{4})/u.exec("in 2024").groups.y, "aBc".replace(/b/i, "x"))', 'emit(/\\p{L}+/u.exec("élan")[0])',
  'emit(/(?<=a)b/.test("ab"))', 'emit([1, [2, [3]]].flat(9), [1].at(-1))', 'emit(Object.fromEntries([["a", 1]]), Object.entries({b: 2}))', 'emit(doc?.a, doc.zz?.b ?? "no")', 'let {a, ...rest} = doc; emit(a, rest.o)', 'emit(`t${doc.a}`, [...doc.o])', 'emit(structuredClone === undefined)', 'emit([1, 2, 3].includes(2), "abc".includes("b"))', 'emit(Number("0x10"), parseInt("08"))', 'emit((25).toString(36), (0.1).toFixed(20))',
  'emit(1 / 3, 2 ** 53)', 'emit(1 << 31, -1 >>> 0)', 'emit(encodeURIComponent("é &"), unescape("%u0041"))', 'emit(escape("é"), decodeURIComponent("%C3%A9"))', 'emit(new Date("2020-01-02T03:04:05Z").getTime(), Date.UTC(2020, 1))', 'emit(new Date("2020-01-02").toISOString(), Date.parse("2020-01-02T00:00:00.000Z"))', 'emit(Date.parse("Thu, 01 Jan 1970 00:00:00 GMT"), Date.parse("nonsense"))', 'emit(new Date(2020, 0, 1).toString())',
  'emit(new Date(0).toLocaleString(), (1234.5).toLocaleString())', 'var s = 0; for (var i = 0; i < 100000; i++) s += i; emit(s)', 'emit("x".repeat(100000).length)', 'emit([1, 2, 3].map(String), [1, 2, 3].reduce(function (a, b) { return a + b; }))', 'emit(Math.max.apply(null, doc.o), Math.hypot(3, 4))', 'emit(function f() { return f.name; }(), (() => 1).toString())', 'emit(emit.toString().length > 0)', 'if (doc.a) return; emit(1)', 'return 5',
  'var x = {}; x.x = x; try { JSON.stringify(x); } catch (e) { emit(e.name); }', 'try { null.a; } catch (e) { emit(e.name, e instanceof TypeError); }', 'try { nothing; } catch (e) { emit(e.name); }', 'undeclared = 1; emit(typeof undeclared)', 'emit(typeof undeclared)', 'emit([[]], [{}])', 'emit({b: 1, a: 2, 10: 3, 2: 4})', 'emit({"": 1, "a b": 2, "é": 3})', 'emit(["a", {}], ["a"])', 'emit(doc.o, doc)', 'emit(doc._id.length, doc.t)',
  'emit(require("views/lib/one").x)', 'emit(require("views/lib/two").y())', 'emit(require("views/lib/nothing"))', 'emit(require("views/lib"))', 'emit(require("lib/top").x)', 'emit(require("../x"))', 'emit(require(""))', 'emit(require("views/lib/cycle").name)', 'emit(require("views/lib/module").m)',
  'emit(require("views/lib/nested/deep").z)', 'emit(require("views/lib/function")(2))', 'emit(require("views/lib/json"))', 'emit(require("views/lib/one") === require("views/lib/one"))', 'emit(require("views/lib/number"))', 'emit(require("views/lib/id"))', 'emit(require("views/lib/same/a").b)', 'emit(require("views/lib/one.js"))', 'emit(require("views/lib/one/"))', 'emit(require("/views/lib/one").x)',
];

const LIBRARY = {
  one: 'exports.x = 1;', two: 'var one = require("views/lib/one"); exports.y = function () { return one.x + 1; };', cycle: 'exports.name = "c"; exports.other = require("views/lib/cycle2").name;', cycle2: 'exports.name = "d" + require("views/lib/cycle").name;', throws: 'throw new Error("x")', syntax: 'function (',
  module: 'module.exports = {m: "m"};', nested: { deep: 'exports.z = require("./sibling").s + require("../one").x;', sibling: 'exports.s = 5;' }, function: 'module.exports = function (n) { return n * 2; };', json: 'module.exports = [1, {a: 2}]', number: 7, id: 'exports.id = module.id;', same: { a: 'exports.b = require("./b").c;', b: 'exports.c = 3;' },
};

test('map functions emit the same', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = await pair.database('?q=1');
  await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: '{"docs":[{"_id":"a","a":1,"n":1.0,"f":1e3,"o":[3,4],"t":"é\\u0000"},{"_id":"b","a":0,"n":12345678901234567890,"f":-0.0,"o":[],"t":"😀"}]}' });
  await same(pair, `/${db}/c`, { method: 'PUT', body: { o: [1], _attachments: { x: { content_type: 'text/plain', data: 'aGVsbG8=' } } } });
  await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: { new_edits: false, docs: [{ _id: 'a', _rev: '1-00000000000000000000000000000001', a: 7, o: [] }, { _id: 'a', _rev: '2-00000000000000000000000000000002', _deleted: true }, { _id: 'gone', _rev: '3-00000000000000000000000000000001', _deleted: true, a: 7 }] } });
  for (const [n, map] of MAPS.entries()) {
    const views = { v: { map: `function (doc) { ${map}; }` }, lib: LIBRARY };
    await same(pair, `/${db}/_design/m${n}`, { method: 'PUT', body: { views, lib: { top: 'exports.x = "top";' } } });
    const { ours, theirs } = await pair.both(`/${db}/_design/m${n}/_view/v`);
    compare(pair, `GET /${db}/_design/m${n}/_view/v ${map}`, ours, theirs);
  }
  for (const options of [{ include_design: true }, { include_design: false, local_seq: false }]) {
    const views = { v: { map: 'function (doc) { emit(doc._id, typeof doc._local_seq); }' } };
    const id = Object.keys(options).join('');
    await same(pair, `/${db}/_design/${id}`, { method: 'PUT', body: { options, views } });
    if (!options.include_design) await same(pair, `/${db}/_design/${id}/_view/v`);
  }
  pair.end();
});

// ---------------------------------------------------------------------------------------------------------------------------

// Results of update functions, which can use `doc` and `req`. Left out: unknown members of answers (CouchDB refuses
// them, and this server ignores them), lists as headers, a text as the whole result (CouchDB answers with its second
// letter), `req.peer`, and the query in `req.raw_path` and `req.requested_path`, which only CouchDB has.
const ANSWERS = [
  '[null, "text"]', '[null, ""]', '[null, {body: "b"}]', '[null, {json: {a: 1}}]', '[null, {json: null}]', '[null, {json: "x"}]', '[null, {base64: "aGVsbG8="}]', '[null, {base64: "???"}]', '[null, {code: 404, body: "no"}]', '[null, {code: 302, headers: {Location: "http://a/x"}}]', '[null, {code: "404"}]',
  '[null, {headers: {"X-A": "b", "Content-Type": "text/plain"}, body: "x"}]', '[null, {headers: {"X-N": 7}}]', '[null, {headers: {}}]', '[null, {headers: {"content-type": "image/png"}, base64: "aGVsbG8="}]', '[null, {json: [1], headers: {"Content-Type": "text/x"}}]', '[null, {body: 7}]', '[null, {body: null}]',
  '[null, {}]', '[null, {stop: true, body: "x"}]', '[null, null]', '[null, undefined]', '[null, 7]', '[null, true]', '[null, []]', '[null]', '[]', 'null', 'undefined', '7', '{}', '[undefined, "x"]', '[false, "x"]', '[7, "x"]', '["x", "y"]', '[[], "x"]', '[{}, "x"]', '[{_id: ""}, "x"]', '[{_id: 7}, "x"]',
  '[{_id: "new" + req.uuid.length, a: 1}, "made"]', '[{_id: "_x"}, "made"]', '[{_id: "twice", _foo: 1}, "made"]', '[{_id: "gone", _deleted: true}, "made"]', '[doc, "same"]', '[{_id: "with", _attachments: {a: {data: "aGVsbG8=", content_type: "text/plain"}}}, "made"]', '[{_id: "code"}, {code: 418, body: "tea"}]', '[{_id: "json"}, {json: {ok: 1}}]', '[{_id: "line"}, {headers: {"X-Q": "a\\n"}, body: "x"}]',
  '[null, toJSON(Object.keys(req).sort())]', '[null, toJSON(req.info.db_name.length)]', '[null, toJSON(Object.keys(req.info).sort().length > 5)]', '[null, toJSON([req.id, req.method, typeof req.uuid, req.query, req.form])]', '[null, toJSON(req.path.slice(1))]', '[null, toJSON([req.body, req.cookie])]', '[null, toJSON([req.userCtx.name, req.userCtx.roles, Object.keys(req.userCtx).sort()])]', '[null, toJSON(req.secObj)]', '[null, toJSON([doc && doc._id, doc && doc._rev, doc && Object.keys(doc)])]', '[null, toJSON([req.headers["X-Mine"] || null, req.headers.Host === undefined, req.headers["Content-Type"] || null])]',
  '[null, toJSON(typeof this + arguments.length)]', '[null, require("lib/a").a]', '[null, require("views/lib/b").b]', '[null, typeof Date.now()]', '(log("x"), [null, "logged"])', '(function () { throw new Error("x"); })()', '(function () { throw {forbidden: "f"}; })()', '(function () { throw {unauthorized: "u"}; })()',
  '(function () { throw {not_found: "n"}; })()', '(function () { throw "text"; })()', '(function () { throw ["error", "my_error", "my reason"]; })()', '(function () { throw ["fatal", "my_error", "my reason"]; })()', '(function () { throw {a: 1}; })()', '(doc.a = 1, [doc, "changed"])', '(doc.a.b.c, [doc, "x"])',
];

test('update functions answer the same', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = await pair.database('?q=1');
  await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: { docs: [{ _id: 'doc', n: 1, a: 7 }, { _id: 'a/b', n: 2 }] } });
  const updates = {};
  for (const [n, answer] of ANSWERS.entries()) updates[`u${n}`] = `function (doc, req) { return ${answer}; }`;
  Object.assign(updates, { arrow: '(doc, req) => [null, "a"]', broken: 'function (', none: '1' });
  await same(pair, `/${db}/_design/d`, { method: 'PUT', body: { updates, lib: { a: 'exports.a = "A";' }, views: { lib: { b: 'exports.b = "B";' } } } });
  const headers = (answer) => Object.fromEntries(['location', 'x-a', 'x-n', 'x-couch-update-newrev', 'x-couch-id', 'vary', 'etag'].map((name) => [name, answer.headers.get(name)]));
  const ask = async (path, options = {}) => {
    const { ours, theirs } = await pair.both(path, { redirect: 'manual', ...options });
    const what = `${options.method} ${path} ${JSON.stringify(options.body) ?? ''} ${ANSWERS[/_update\/u(\d+)/.exec(path)?.[1]] ?? ''}`;
    // A wrong function or answer. The error texts differ.
    const failed = (answer) => (answer.status >= 500 && answer.body?.error !== 'my_error' ? { ...answer, status: 500, body: { error: 'invalid_value' } } : answer);
    compare(pair, what, failed(ours), failed(theirs));
    if (ours.status < 400 && theirs.status < 400) pair.note(`headers of ${what}`, headers(ours), headers(theirs));
  };
  for (const name of Object.keys(updates)) {
    const at = `/${db}/_design/d/_update/${name}`;
    await ask(at, { method: 'POST', body: '' });
    await ask(`${at}/nothing?x=1&y=%20z&x=2`, { method: 'PUT', body: { b: 1 }, headers: { 'x-mine': 'm' } });
    await ask(`${at}/doc`, { method: 'POST', body: 'a=1&b=x+y%20z&a=2', headers: { 'content-type': 'application/x-www-form-urlencoded', cookie: 'c=d; e=f' } });
    await ask(`${at}/a%2Fb`, { method: 'PUT', body: 'é' });
    await ask(`${at}/a/b`, { method: 'POST', body: '' });
  }
  for (const [path, method] of [['none', 'POST'], ['u0', 'GET'], ['u0', 'DELETE'], ['', 'POST'], ['arrow/', 'POST'], ['arrow', 'HEAD']]) {
    await ask(`/${db}/_design/d/_update/${path}`, { method });
  }
  await ask(`/${db}/_design/none/_update/x`, { method: 'POST', body: '' });
  pair.end();
});

// Left out: lists as reasons, which CouchDB reads as code points, and reasons without JSON, with which a bulk request
// fails in CouchDB.
const VERDICTS = [
  '', 'return', 'return false', 'return "x"', 'throw {forbidden: "f"}', 'throw {unauthorized: "u"}', 'throw {forbidden: 7}', 'throw {forbidden: {a: [1]}}', 'throw {forbidden: null}', 'throw {forbidden: ""}', 'throw {unauthorized: {a: 1}}', 'throw {unauthorized: null}', 'throw {other: "x"}', 'throw {}', 'throw "text"', 'throw 7', 'throw null', 'throw undefined', 'throw []',
  'throw ["error", "a", "b"]', 'throw ["fatal", "forbidden", "y"]', 'throw ["error", "not_found", "y"]', 'throw ["error", "conflict", "y"]', 'throw ["error", "a"]', 'throw ["other", "a", "b"]',
  'throw new Error("x")', 'throw new TypeError("x")', 'null.x', 'nothing', 'throw ({forbidden: toJSON([Object.keys(newDoc), oldDoc && Object.keys(oldDoc)])})', 'throw ({forbidden: toJSON([newDoc._revisions, newDoc._id, newDoc._deleted])})', 'throw ({forbidden: toJSON([userCtx.name, userCtx.roles, Object.keys(userCtx).sort()])})', 'throw ({forbidden: toJSON(secObj)})',
  'throw ({forbidden: toJSON([arguments.length, typeof this])})', 'throw ({forbidden: toJSON(Object.keys(newDoc._attachments || {}))})', 'throw ({forbidden: toJSON(oldDoc && oldDoc._attachments || null)})', 'throw ({forbidden: toJSON([oldDoc && oldDoc._rev, newDoc._rev, oldDoc && oldDoc._revisions, oldDoc && oldDoc._deleted])})', 'throw ({forbidden: require("lib/a").a})', 'throw ({forbidden: toJSON(Object.keys(newDoc).length)})',
  'newDoc.x = 1', 'if (oldDoc) throw {forbidden: "old"}', 'if (newDoc._deleted) throw {forbidden: "del"}', 'if (!newDoc.type) throw {forbidden: "no type"}', 'throw {forbidden: "é\\u0000"}', 'throw Object.assign(new Error("x"), {forbidden: "on an error"})', 'throw {forbidden: true}', 'emit(1)', 'log("x")',
];

test('documents are validated the same', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  for (const verdict of VERDICTS) {
    const db = await pair.database('?q=1');
    const put = (id, body, query = '') => same(pair, `/${db}/${id}${query} ${verdict}`.replace(/ .*/, ''), { method: 'PUT', body });
    // A function that fails refuses the edit. The texts differ, unless the function chose them, and some make CouchDB
    // fail the whole bulk request.
    const saysAll = /^throw \["(error|fatal)", "\w+", /.test(verdict);
    const failed = (answer) => {
      if (saysAll) return answer;
      if (answer.status >= 500) return { ...answer, status: 500, body: { error: 'invalid_value' } };
      const text = answer.text.replaceAll(/"error":"(?!forbidden|unauthorized|conflict)\w+","reason":"(?:\\.|[^"\\])*"/g, '"error":"failed"');
      return { ...answer, text };
    };
    const ask = async (path, options) => {
      const { ours, theirs } = await pair.both(`/${db}/${path}`, options);
      const isOwn = theirs.status >= 500 && path === '_bulk_docs' && /"failed"/.test(failed(ours).text);
      if (!isOwn) compare(pair, `${options.method} ${path} ${JSON.stringify(options.body) ?? ''} by ${verdict}`, failed(ours), failed(theirs));
      return ours;
    };
    const old = (await put('old', { a: 1, _attachments: { x: { content_type: 'text/plain', data: 'aGVsbG8=' } } })).ours.body.rev;
    const del = (await put('del', { a: 1 })).ours.body.rev;
    await ask(`del?rev=${del}`, { method: 'DELETE' });
    await ask('_design/v', { method: 'PUT', body: { validate_doc_update: `function (newDoc, oldDoc, userCtx, secObj) { ${verdict}; }`, lib: { a: 'exports.a = "A";' } } });
    await ask('new', { method: 'PUT', body: { type: 'x', b: 1 } });
    await ask('del', { method: 'PUT', body: { b: 1 } });
    await ask('old', { method: 'PUT', body: { a: 2, _rev: old, _attachments: { x: { stub: true }, y: { data: '', content_type: 'a/b' } } } });
    await ask('old', { method: 'PUT', body: { a: 2, _rev: '1-00000000000000000000000000000000' } });
    await ask(`old?rev=${old}`, { method: 'DELETE' });
    await ask('old', { method: 'PUT', body: { _rev: old, _deleted: true, why: 1 } });
    await ask('', { method: 'POST', body: { _id: 'posted' } });
    await ask('_local/x', { method: 'PUT', body: { a: 1 } });
    await ask('_design/w', { method: 'PUT', body: { language: 'x' } });
    await ask('_bulk_docs', { method: 'POST', body: { docs: [{ _id: 'b1', type: 'x' }, { _id: 'b2' }, { _id: 'b3', _deleted: true }, { _id: '_design/z' }] } });
    await ask('_bulk_docs', { method: 'POST', body: { new_edits: false, docs: [{ _id: 'r1', _rev: '3-a', _revisions: { start: 3, ids: ['a', 'b'] } }, { _id: 'r2', _rev: '1-a', type: 'x' }, { _id: 'r3', _rev: '2-a', _deleted: true }] } });
    await ask('r4?new_edits=false', { method: 'PUT', body: { _rev: '2-ab', _revisions: { start: 2, ids: ['ab', 'cd'] } } });
    await ask('att/a.txt', { method: 'PUT', body: '"hello"' });
    await ask('new', { method: 'COPY', headers: { destination: 'copied' } });
  }
  pair.end();
});

const FILTERS = [
  'return true', 'return false', 'return 1', 'return ""', 'return "x"', 'return null', 'return', 'return {}', 'return NaN', 'return doc.a > 1', 'return doc._deleted', 'return doc._id[0] === "_"', 'return req.query.x === "1"', 'return req.query.x > 0 && doc.a', 'throw new Error("x")', 'throw {forbidden: "f"}', 'throw "text"', 'throw ["error", "a", "b"]', 'return doc.none.none', 'return req.userCtx.name === "admin"',
  'return req.method === "GET"', 'return req.path[1] === "_changes"', 'return typeof req.secObj === "object"', 'return req.info.db_name.length > 3', 'return arguments.length === 2', 'return !!doc._conflicts', 'return !!doc._attachments && doc._attachments.x.stub', 'return require("lib/a").a === "A"', 'return req.id === null', 'return req.body === "undefined"', 'return req.headers.Host !== undefined', 'return "x" in req.query', 'return doc._rev.indexOf("1-") === 0', 'emit(1); return true', 'return req.form && req.cookie', 'return Object.keys(req).length > 10', 'doc.a = 5; return doc.a === 5',
];

test('filters let through the same', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = await pair.database('?q=1');
  const filters = {};
  for (const [n, filter] of FILTERS.entries()) filters[`f${n}`] = `function (doc, req) { ${filter}; }`;
  Object.assign(filters, { arrow: '(doc) => doc.a', broken: 'function (', none: '1' });
  const views = { v: { map: 'function (doc) { if (doc.a > 1) emit(doc.a); }' }, throws: { map: 'function (doc) { if (doc.a === 2) throw "x"; emit(1); }' }, conflicts: { map: 'function (doc) { if (doc._conflicts) emit(1); }' } };
  await same(pair, `/${db}/_design/d`, { method: 'PUT', body: { filters, views, lib: { a: 'exports.a = "A";' } } });
  for (const doc of [{ _id: 'a', a: 1 }, { _id: 'b', a: 2, _attachments: { x: { data: 'aGVsbG8=' } } }, { _id: 'c', a: 3 }]) await same(pair, `/${db}`, { method: 'POST', body: doc });
  const { rev } = (await same(pair, `/${db}/d`, { method: 'PUT', body: { a: 4 } })).ours.body;
  await same(pair, `/${db}/d?rev=${rev}`, { method: 'DELETE' });
  await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: { new_edits: false, docs: [{ _id: 'a', _rev: '1-00000000000000000000000000000001', a: 9 }] } });
  const rows = (answer) => (answer.status === 200 && answer.body?.results
    ? answer.body.results.map(({ id, changes, deleted, doc }) => ({ id, changes, deleted, doc })) : view(answer, ''));
  const ask = async (query, filter, options) => {
    const { ours, theirs } = await pair.both(`/${db}/_changes?${query}`, options);
    // A filter that fails. The error texts differ.
    const [a, b] = [ours, theirs].map((answer) => (answer.status >= 500 ? 'failed' : rows(answer)));
    pair.note(`_changes?${query} ${JSON.stringify(options?.body) ?? ''} ${filter ?? ''}`, a, b);
  };
  for (const name of Object.keys(filters)) {
    for (const query of ['', '&x=1', '&include_docs=true', '&style=all_docs', '&include_docs=true&conflicts=true', '&limit=1', '&descending=true']) {
      await ask(`filter=d/${name}${query}`, filters[name]);
    }
    await ask(`filter=d/${name}`, filters[name], { method: 'POST', body: { x: 1 } });
  }
  for (const query of ['filter=_view&view=d/v', 'filter=_view&view=d/throws', 'filter=_view&view=d/conflicts', 'filter=_view&view=d/none', 'filter=_view', 'filter=_view&view=none/v', 'filter=d/nope', 'filter=none/f0', 'filter=d', 'filter=d/', 'filter=/f0', 'filter=d/f0/x', 'filter=', 'filter=_x', 'filter=_view&view=d/v&include_docs=true', 'filter=_design', 'filter=_view&view=d/v&style=all_docs', 'filter=d%2Ff0']) {
    await ask(query);
  }
  pair.end();
});

test('deprecated functions, and what is known of views', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = await pair.database('?q=1');
  await same(pair, `/${db}/_design/d`, { method: 'PUT', body: DESIGN });
  for (const path of ['_design/none/_view/x', '_design/d/_view/none', '_design/d/_view/map/queries', '_design/none/_info', '_design/d/_view/none?limit=x', '_design/d/_view/none?key=x']) {
    // Methods that do not exist are left out: CouchDB checks for the resource first.
    for (const method of path.endsWith('_info') ? ['GET'] : ['GET', 'POST']) {
      await same(pair, `/${db}/${path}`, { method, body: method === 'POST' || method === 'PUT' ? {} : undefined });
    }
  }
  for (const body of [{ queries: 1 }, { queries: null }, { queries: [] }, { queries: [1] }, { queries: [{}] }, { queries: {} }, [], 1, 'null', '{', '']) {
    for (const path of ['_all_docs', '_all_docs/queries', '_design_docs/queries', '_local_docs/queries', '_design/d/_view/map', '_design/d/_view/map/queries']) {
      await same(pair, `/${db}/${path}`, { method: 'POST', body });
    }
  }
  for (const path of ['_view_cleanup', '_compact/d', '_compact/none', '_compact']) {
    for (const method of ['GET', 'POST', 'DELETE']) await same(pair, `/${db}/${path}`, { method, body: method === 'POST' ? {} : undefined });
  }
  const { ours, theirs } = await pair.both(`/${db}/_design/d/_info`);
  const shape = (value) => (value && typeof value === 'object' ? Object.fromEntries(Object.keys(value).filter((name) => value[name] !== undefined).sort().map((name) => [name, shape(value[name])])) : typeof value);
  const { errors, ...known } = ours.body.view_index;
  pair.note('_info', shape({ ...ours.body, view_index: { ...known, update_seq: 0 } }), shape({ ...theirs.body, view_index: { ...theirs.body.view_index, collator_versions: undefined, update_seq: 0 } }));
  pair.end();
});

test('random queries of random views agree', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const dice = random(t);
  const db = await pair.database('?q=1');
  const leaf = () => dice.pick([null, true, false, dice.below(5), dice.below(1000) / 8, dice.pick(STRINGS.slice(0, 60)), dice.pick('abcdef'), {}, [], { a: dice.below(3) }]);
  const key = () => (dice.below(3) ? [dice.pick('abc'), dice.below(4), leaf()].slice(0, 1 + dice.below(3)) : leaf());
  const write = async (count, revs) => {
    const docs = [];
    for (let n = 0; n < count; n++) {
      const id = `${dice.pick('ABCxyz')}${dice.below(200)}`;
      if (docs.some((doc) => doc._id === id)) continue;
      const keys = [];
      for (let left = dice.below(4); left > 0; left--) {
        keys.push(key());
      }
      docs.push({ _id: id, _rev: revs.get(id), _deleted: revs.has(id) && dice.below(3) === 0 ? true : undefined, keys, n: dice.below(100), v: leaf() });
    }
    const { ours } = await same(pair, `/${db}/_bulk_docs`, { method: 'POST', body: { docs } });
    for (const [n, row] of ours.body.entries()) {
      if (!row.rev) continue;
      if (docs[n]._deleted) revs.delete(row.id);
      else revs.set(row.id, row.rev);
    }
  };
  const map = (value) => ({ map: `function (doc) { (doc.keys || []).forEach(function (k, n) { emit(k, ${value}); }); }` });
  const views = { rows: map('n % 2 ? doc.v : -n'), count: { ...map('doc.v'), reduce: '_count' }, sum: { ...map('doc.n'), reduce: '_sum' }, stats: { ...map('doc.n'), reduce: '_stats' }, sums: { ...map('[doc.n, 1]'), reduce: '_sum' }, objects: { ...map('{n: doc.n, c: 1}'), reduce: '_sum' },
    own: { ...map('doc.n'), reduce: 'function (k, v, r) { return r ? sum(v) : sum(v); }' }, top: { ...map('doc.n'), reduce: '_top_3' }, first: { ...map('doc.n - n'), reduce: '_first' }, last: { ...map('doc.n - n'), reduce: '_last' } };
  await same(pair, `/${db}/_design/d`, { method: 'PUT', body: { views } });
  const revs = new Map();
  for (let round = 0; round < 4; round++) {
    await write(120, revs);
    for (let n = 0; n < Number(process.env.ROUNDS ?? 3000) / 6; n++) {
      const name = dice.pick(Object.keys(views));
      const params = [];
      const often = (chance, name, value) => { if (dice.below(100) < chance) params.push([name, typeof value === 'string' ? value : JSON.stringify(value)]); };
      const reduces = name !== 'rows' && dice.below(3) > 0;
      if (name !== 'rows') params.push(['reduce', String(reduces)]);
      const exact = dice.below(2);
      if (reduces) often(70, exact ? 'group' : 'group_level', exact ? true : 1 + dice.below(3));
      if (dice.below(4) === 0 && (!reduces || params.some(([name]) => name === 'group'))) params.push(['keys', JSON.stringify([key(), key(), key()])]);
      else {
        often(50, 'startkey', key());
        often(50, 'endkey', key());
      }
      if (!reduces) {
        often(20, 'include_docs', true);
        often(30, 'startkey_docid', `x${dice.below(200)}`);
        often(30, 'endkey_docid', `y${dice.below(200)}`);
      }
      often(40, 'descending', true);
      often(30, 'limit', dice.below(20));
      often(30, 'skip', dice.below(dice.pick([5, 50, 500])));
      often(20, 'inclusive_end', false);
      await same(pair, `/${db}/_design/d/_view/${name}?${encoded(params)}`);
    }
  }
  pair.end();
});

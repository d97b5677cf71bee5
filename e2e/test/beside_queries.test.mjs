// `_index`, `_find` and `_explain` beside a CouchDB: the same answers to wrong requests, to every operator, and to
// random selectors over random documents, with indexes and without.

import test from 'node:test';

import { beside, random } from '../lib/beside.mjs';
import { expectOk } from '../lib/server.mjs';

const post = (body) => ({ method: 'POST', body });
const text = (value) => JSON.stringify(value);

// Reasons in which CouchDB writes a value of the request as an Erlang term, such as <<97>>. Ours write it as JSON.
const ECHOES = [
  'Bad argument for operator', 'Invalid boolean value', 'Invalid bookmark value', 'Invalid field normalization', 'Invalid index name',
  'Invalid JSON for field spec', 'Invalid sort field', 'Invalid string', 'Fields must be', 'Selector must be',
  'JSON indexes must be', 'Bulk Delete requires', 'Sort must be', 'Existing design doc has',
];
const INTEGERS = /^.* is not an integer greater than/;

/** An answer without the intended differences. */
function plain({ status, body, text, headers }) {
  const type = headers.get('content-type');
  if (body?.error === undefined) return { status, type, text: sameText(text) };
  const reason = String(body.reason);
  const echo = ECHOES.find((start) => reason.startsWith(start));
  const shown = echo ?? reason.replace(INTEGERS, 'It is not an integer greater than')
    // Ours names HEAD beside GET.
    .replace('GET,HEAD,POST', 'GET,POST');
  // A client's mistake, which CouchDB reports as its own.
  const code = body.error === 'invalid_list_index_params' ? 400 : status;
  return { status: code, type, error: body.error, reason: shown };
}

// CouchDB rewrites floats (1.0e3). Ours keeps the writer's spelling, or uses JavaScript's.
const FLOATS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const spelled = (token) => (/^[^"]*[.eE]/.test(token) ? `float ${Number(token)}` : token);

/** The text of an answer without bookmarks, which each server makes in its own way, without times, and without the builds of
 * indexes, which CouchDB does not mention. */
function sameText(text) {
  return text
    .trimEnd()
    .replace(FLOATS, spelled)
    .replace(/"bookmark": ?"(?!nil")[^"]+"/, '"bookmark":"…"')
    .replace(/"execution_time_ms": ?(float )?[0-9.e-]+/, '"execution_time_ms":0')
    .replace(/,"build_status":"building","documents_done":[0-9]+/g, '');
}

/** Whether CouchDB crashed. */
const hasCrashed = ({ status, body }) => status === 500 && !['invalid_list_index_params'].includes(body?.error);

/** Compares answers unless CouchDB crashed; then ours must not be an error of the server. */
async function compare(pair, path, options, view = plain) {
  const { ours, theirs } = await pair.both(path, options);
  const what = `${options.method ?? 'GET'} ${path} ${text(options.body) ?? ''}`;
  if (hasCrashed(theirs)) pair.note(what, ours.status < 500, true);
  else pair.note(what, view(ours), view(theirs));
  return { ours, theirs };
}

const ANY = [null, true, false, 0, 1, -1, 2.5, 1.0, 1e30, '', 'a', 'true', [], ['a'], [1], ['a', 1], [null], {}, { a: 1 }, { a: 1, b: 2 }];

test('arguments of searches are checked as CouchDB checks them', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = await pair.database('?q=1');
  const docs = [{ _id: 'a', a: 1 }, { _id: 'b', a: 2, b: 'x' }];
  for (const url of [pair.ours, pair.theirs]) {
    await expectOk(`${url}/${db}/_bulk_docs`, { ...post({ docs }), headers: { authorization: pair.authorization } });
  }
  const members = ['selector', 'use_index', 'bookmark', 'limit', 'skip', 'sort', 'fields', 'r', 'conflicts', 'stale', 'update', 'stable',
    'execution_stats', 'allow_fallback', 'partition', 'unknown'];
  for (const endpoint of ['_find', '_explain']) {
    for (const member of members) {
      // Ours does not explain a search of a partition in a database that has none, since it would refuse the search.
      if (member === 'partition' && endpoint === '_explain') continue;
      for (const value of ANY) await compare(pair, `/${db}/${endpoint}`, post({ selector: { a: 1 }, [member]: value }));
    }
    for (const sort of [['a'], ['_id'], [{ _id: 'asc' }], [{ _id: 'desc' }], [{ _id: 'up' }], [{ _id: 1 }], [{ _id: 'asc', a: 'asc' }],
      ['_id', { a: 'desc' }], ['_id', 'a'], ['_id', '_id'], [{}], [['_id', 'asc']]]) {
      await compare(pair, `/${db}/${endpoint}`, post({ selector: { a: 1 }, sort }));
    }
    for (const use_index of ['x', '_design/x', 'x/y', '_design/x/y', 'x/y/z', '_design/x/y/z', '/', '//', '', '_design/', ['x'], ['x', 'y'],
      ['x', 'y', 'z'], ['_design/x', 'y'], [null], ['', ''], ['x', null], '_all_docs', ['_all_docs']]) {
      for (const allow_fallback of [undefined, true, false]) {
        await compare(pair, `/${db}/${endpoint}`, post({ selector: { a: 1 }, use_index, allow_fallback }));
      }
    }
    // Names of fields are not checked before a search there, and `_explain` and `_index` take those that a search
    // refuses.
    for (const fields of [['a'], ['_id', 'a'], ['a.b'], ['a..b'], ['a', 'a'], [''], ['.'], ['_rev'], [{ a: 1 }], [{}], [[]], ['a\\.b']]) {
      if (endpoint === '_find' || !/\.\.|""|"\."|\{/.test(text(fields))) await compare(pair, `/${db}/${endpoint}`, post({ selector: { a: 1 }, fields }));
    }
    for (const bookmark of ['nil', 'x', '!', 'g2gCbQAAAAFhag', 'AAAA']) {
      await compare(pair, `/${db}/${endpoint}`, post({ selector: { a: 1 }, bookmark }));
    }
    for (const body of ['', '[]', '1', 'null', '"x"', '{', '{}', '{"selector":{"a":1},"selector":{"a":2}}', '{"selector":{"a":1,"a":2}}']) {
      await compare(pair, `/${db}/${endpoint}`, post(body));
    }
    for (const method of ['GET', 'PUT', 'DELETE', 'HEAD']) await compare(pair, `/${db}/${endpoint}`, { method });
    for (const path of [`/no-${db}/${endpoint}`, ...(endpoint === '_find' ? [`/${db}/_find?partition=x`] : []), `/${db}/${endpoint}?limit=1`]) {
      await compare(pair, path, post({ selector: { a: 1 } }));
    }
    await compare(pair, `/${db}/${endpoint}`, { ...post('{"selector":{}}'), headers: { 'content-type': 'text/plain' } });
    await compare(pair, `/${db}/${endpoint}`, { ...post('{"selector":{}}'), headers: { authorization: undefined } });
  }
  pair.end();
});

test('indexes are made, listed and deleted as in CouchDB', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  let db = await pair.database('?q=1');
  const list = () => compare(pair, `/${db}/_index`, {});
  // Both have the same documents, with the same revisions.
  const designs = async () => {
    const { ours, theirs } = await pair.both(`/${db}/_all_docs`);
    const shown = (answer) => answer.body.rows?.map((row) => `${row.id} ${row.value.rev}`) ?? [];
    const [here, there] = [shown(ours), shown(theirs)];
    pair.note('the design documents', here.filter((row) => !there.includes(row)), there.filter((row) => !here.includes(row)));
  };
  const make = async (body) => {
    const { ours, theirs } = await compare(pair, `/${db}/_index`, post(body));
    const [id] = [ours.body.id, theirs.body.id].filter((id) => id?.length < 200);
    if (id) await compare(pair, `/${db}/${id}`, {}, ({ status, body }) => ({ status, body: text(body) }));
  };
  const index = { fields: ['a'] };
  for (const member of ['index', 'type', 'name', 'ddoc', 'w', 'partitioned', 'unknown']) {
    for (const value of ANY) await make({ index, [member]: value });
  }
  await list();
  for (const member of ['fields', 'partial_filter_selector', 'unknown']) {
    for (const value of ANY) await make({ index: { ...index, [member]: value }, ddoc: 'd' });
  }
  await list();
  for (const fields of [['a', 'a'], ['a', 'b'], ['b', 'a'], [{ a: 'asc' }, 'b'], [{ a: 'desc' }], [{ a: 'desc' }, { b: 'desc' }],
    [{ a: 'asc' }, { b: 'desc' }], ['a.b'], ['a\\.b'], [''], ['_id'], ['_rev'], ['_id', 'a'], ['$a'], ['é', '😀'], ['a b'],
    ['a:string'], [{ name: 'a', type: 'string' }]]) {
    // Ours has at most 64 indexes in a database.
    if (fields.length === 1) db = await pair.database('?q=1');
    for (const more of [{}, { name: 'n' }, { ddoc: 'x' }, { ddoc: '_design/y', name: 'n/m' }, { type: 'json' }, { w: 3 }]) {
      await make({ index: { fields }, ...more });
    }
  }
  await list();
  db = await pair.database('?q=1');
  for (const partial_filter_selector of [{ a: 1 }, { a: { $gt: 1 }, b: 2 }, { $or: [{ a: 1 }, { b: 2 }] }, { a: { $x: 1 } }, { $not: { a: 1 } },
    { a: { b: { c: 1 } } }, { a: { $in: [1, 'x'] } }, { a: { $regex: '[' } }, { a: { $regex: '^a' } }, { $and: [] },
    { '': 1 }, { a: {} }, { $nor: [{ a: { $mod: [2, 0] } }] }]) {
    await make({ index: { fields: ['a'], partial_filter_selector } });
    await make({ index: { partial_filter_selector, fields: ['a'] }, ddoc: 'z', name: text(partial_filter_selector).slice(0, 9) });
  }
  await list();
  for (const type of ['text', 'nouveau', 'special', 'view', '']) await make({ index, type });
  for (const name of ['', '_all_docs', 'a/b', 'é', '_x', 'x'.repeat(300)]) {
    await make({ index, name, ddoc: 'names' });
    await make({ index, ddoc: name });
  }
  for (const ddoc of ['_design', '_design/', '_design/a/b', '_local/x', 'a b', '%']) await make({ index, ddoc });
  await list();
  for (const query of ['limit=1', 'limit=0', 'limit=-1', 'limit=x', 'limit=', 'limit=3&skip=2', 'skip=0', 'skip=2', 'skip=1000', 'skip=-1',
    'skip=x', 'limit=1.0', 'limit=+1', 'limit=01', 'unknown=1', 'limit=99999999999999999999']) {
    await compare(pair, `/${db}/_index?${query}`, {});
  }
  for (const body of ['', '[]', '1', '{', '{}']) await compare(pair, `/${db}/_index`, post(body));
  for (const method of ['PUT', 'DELETE', 'HEAD']) await compare(pair, `/${db}/_index`, { method });
  await compare(pair, `/${db}/_index`, { ...post(text({ index })), headers: { 'content-type': 'text/plain' } });
  for (const path of ['', '/', '/x', '/x/json', '/x/json/y', '/_design/x/json/y', '/x/text/y', '/x/special/_all_docs', '/d/json/nope',
    '/_design/x/json', '/_design%2Fx/json/n', '/null/special/_all_docs', '/x/json/n/m', '/_bulk_delete']) {
    // Ours says 405 instead of 404 if no index has such a path.
    await compare(pair, `/${db}/_index${path}`, { method: 'DELETE' });
    await designs();
  }
  // CouchDB crashes if a design document has several indexes. Ours removes them.
  for (const ddoc of ['one', 'two', 'three', 'four', 'five']) await make({ index, ddoc });
  for (const body of [{}, [], { docids: 1 }, { docids: [] }, { docids: [1] }, { docids: [null] }, { docids: ['nope'] }, { docids: ['_design/nope', 'nope'] },
    { docids: ['one'] }, { docids: ['two', 'nope', '_design/three'] }, { docids: ['four'] }, { docids: [['x']] }, { docids: ['a/b/c'] }, { docids: [], w: 0 },
    { docids: [], w: 'x' }, { docids: [], x: 1 }, { docids: [''] }, { docids: [[]] }, { docids: ['_design/five'], w: 2 }]) {
    await compare(pair, `/${db}/_index/_bulk_delete`, post(body));
    await designs();
  }
  // Each of the others, by its name.
  const { theirs } = await list();
  for (const { ddoc, name } of theirs.body.indexes.slice(1)) {
    await compare(pair, `/${db}/_index/${ddoc}/json/${encodeURIComponent(name)}`, { method: 'DELETE' });
    await designs();
  }
  await list();
  db = await pair.database('?q=1');
  // Design documents that others have written.
  for (const design of [
    { language: 'javascript', views: {} }, {}, { language: 'query' }, { language: 'query', views: {} }, { language: 'query', options: { partitioned: true } },
    { language: 'query', views: { v: { map: { fields: { a: 'asc' } }, options: { def: { fields: ['a'] } } } } },
    { language: 'query', views: { v: { map: { fields: { a: 'asc' }, partial_filter_selector: {} }, reduce: '_count', options: { def: { fields: ['a'] } } } }, more: 1 },
    { language: 'query', views: { v: { map: { fields: { a: 'asc' }, other: 1 }, options: { def: {}, w: 2 } } } },
  ]) {
    const id = `_design/w${text(design).length}`;
    await compare(pair, `/${db}/${id}`, { method: 'PUT', body: design });
    await list();
    await make({ index, ddoc: id });
    await make({ index, ddoc: id, name: 'v' });
    await make({ index: { fields: ['b'] }, ddoc: id, name: 'v' });
    await list();
    await compare(pair, `/${db}/_index/${id}/json/v`, { method: 'DELETE' });
    await designs();
    await compare(pair, `/${db}/_index/_bulk_delete`, post({ docids: [id] }));
    await designs();
  }
  pair.end();
});

// Values of all types, and texts that collation tells apart or does not.
const NUMBERS = ['0', '-0', '1', '1.0', '-1', '2', '2.5', '1e3', '1000', '1000.0', '9007199254740992', '9007199254740993', '9007199254740994.0',
  '123456789012345678901234567890', '1e100', '-1e-7', '0.1', '100000000000000000000', '1e20', '1E+2', '5e-324', '3.0e-2'];
const TEXTS = ['', 'a', 'A', 'b', 'B', 'aa', 'ab', 'Ab', 'aB', 'á', 'a\u0301', 'ä', 'Ä', 'z', 'ß', 'ss', 'e', 'é', 'e\u0301', 'É', 'a-b', 'a b', 'a_b',
  'a.b', "a'b", '-', '_', ' ', '~', '1', '10', '2', '😀', '😁', '👨‍👩‍👧', 'ａ', 'ñ', 'n', 'o', 'co-op', 'coop', 'CO-OP', '\u0000', 'a\u0000b', '\uffff', 'ﬁ', 'fi',
  '日本', 'Ω', 'ω', 'I', 'i', 'ı', 'İ', '½', '②', '\t', '\n', 'a\n', '#', '$', '"', '\\', '\u00ad', 'a\u00adb', '\u200d', '؀', 'क', 'ก', 'เก', '한', '한'];
const OTHERS = ['null', 'true', 'false', '[]', '[1]', '[1,2]', '[2,1]', '["a"]', '[null]', '[[]]', '[[1]]', '[{}]', '["a","b"]', '[{"a":1},{"a":2}]', '{}', '{"a":1}',
  '{"b":1}', '{"a":1,"b":2}', '{"b":2,"a":1}', '{"a":{"b":1}}', '{"a":[1]}', '{"A":1}', '{"á":1}'];
const VALUES = [...NUMBERS, ...TEXTS.map(text), ...OTHERS];

/** A database with these documents, given as text, since numbers are more precise there. */
async function filled(pair, docs) {
  const db = await pair.database('?q=1');
  for (const url of [pair.ours, pair.theirs]) {
    const { headers } = pair;
    await expectOk(`${url}/${db}/_bulk_docs`, { method: 'POST', headers, body: `{"docs":[${docs.join(',')}]}` });
  }
  return db;
}

// Not compared: `$text`, which is refused since there are no text indexes; `$regex` with a character 0, at which
// CouchDB's pattern ends; and a `$size` beyond 64 bits, which is refused.
test('each operator matches what it matches in CouchDB, and in the same order', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const docs = VALUES.map((value, at) => `{"_id":"d${String(at).padStart(3, '0')}","v":${value},"w":{"v":${value}},"l":[${value},1]}`);
  const db = await filled(pair, [...docs, '{"_id":"none"}', '{"_id":"w","w":1}']);
  const ask = (selector, more = '') =>
    compare(pair, `/${db}/_find`, { ...post(`{"selector":${selector},"limit":1000${more}}`) });
  const both = async (selector) => {
    await ask(selector);
    await ask(selector, ',"fields":["_id","v"]');
  };
  for (const operator of ['$lt', '$lte', '$eq', '$ne', '$gte', '$gt', '$beginsWith', '$type', '$regex', '$size', '$exists', '$in', '$nin', '$all', '$mod',
    '$elemMatch', '$allMatch', '$keyMapMatch', '$not', '$and', '$or', '$nor', '$where', '$near', '$x', '$']) {
    const takesAny = ['$lt', '$lte', '$eq', '$ne', '$gte', '$gt', '$beginsWith', '$in', '$nin', '$all', '$not', '$elemMatch', '$regex'].includes(operator);
    for (const value of takesAny ? VALUES : VALUES.filter((_, at) => at % 9 === 0)) {
      if (operator === '$regex' && /\\u0000/.test(value)) continue;
      await ask(`{"v":{"${operator}":${value}}}`);
      if (['$in', '$nin', '$all'].includes(operator)) {
        await ask(`{"v":{"${operator}":[${value}]}}`);
        await ask(`{"l":{"${operator}":[${value},"b"]}}`);
      }
      if (['$elemMatch', '$allMatch', '$keyMapMatch', '$not'].includes(operator)) {
        for (const inner of ['$eq', '$lt', '$ne']) await ask(`{"l":{"${operator}":{"${inner}":${value}}}}`);
      }
      if (['$lt', '$eq', '$not'].includes(operator)) await ask(`{"_id":{"${operator}":${value}}}`);
      if (['$lt', '$eq', '$in'].includes(operator)) await ask(`{"w.v":{"${operator}":${value}}}`);
    }
    await ask(`{"${operator}":[]}`);
    await ask(`{"${operator}":1}`);
    await ask(`{"${operator}":{"v":1}}`);
    await ask(`{"${operator}":[{"v":1}]}`);
    await ask(`{"${operator}":[{"v":1},{"v":"a"}]}`);
    await ask(`{"v":{"$not":{"${operator}":[1,0]}}}`);
  }
  // The order of all values, with an index and back.
  await compare(pair, `/${db}/_index`, post({ index: { fields: ['v'] }, name: 'v', ddoc: 'v' }));
  await compare(pair, `/${db}/_index`, post({ index: { fields: ['w.v', 'v'] }, name: 'w', ddoc: 'w' }));
  for (const operator of ['$lt', '$lte', '$eq', '$gte', '$gt', '$beginsWith']) {
    for (const value of VALUES) {
      await both(`{"v":{"${operator}":${value}}}`);
      await ask(`{"v":{"${operator}":${value}}}`, ',"sort":[{"v":"desc"}]');
      await ask(`{"w.v":{"$gt":null},"v":{"${operator}":${value}}}`, ',"sort":["w.v","v"]');
    }
  }
  pair.end();
});

test('members that documents get when they are read are found as in CouchDB', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const db = await filled(pair, [
    '{"_id":"a","n":1,"_attachments":{"x.txt":{"content_type":"text/plain","data":"eHh4"}}}',
    '{"_id":"b","n":2,"_attachments":{"x":{"content_type":"text/plain","data":"eHh4"},"y":{"content_type":"image/png","data":""}}}',
    '{"_id":"c","n":3}',
  ]);
  const other = `{"new_edits":false,"docs":[{"_id":"c","_rev":"1-0123","n":4},{"_id":"c","_rev":"1-0124","n":5,"_attachments":{"x":{"data":""}}}]}`;
  await compare(pair, `/${db}/_bulk_docs`, post(other));
  const conditions = ['{"$exists":true}', '{"$exists":false}', '{"$gt":null}', '{"$size":2}', '{"$type":"object"}', '3', '{"$gte":3}', '{"$regex":"^1-"}',
    '{"$elemMatch":{"$regex":"^1-"}}', '{"$keyMapMatch":{"$eq":"x"}}', '{}', 'true', '{"$ne":7}', '"text/plain"'];
  const names = ['_attachments', '_attachments.x', '_attachments.x.length', '_attachments.x\\\\.txt', '_attachments.x.content_type', '_attachments.x.stub', '_attachments.x.revpos',
    '_attachments.x.digest', '_conflicts', '_conflicts.0', '_deleted', '_rev', '_revisions', '_local_seq', '_id'];
  const fields = ['', '"fields":["_id","_rev"],', '"fields":["_attachments"],', '"fields":["_attachments.x.length","n"],', '"fields":["_conflicts","n"],', '"fields":["_id","_attachments.x.digest"],'];
  let at = 0;
  const all = async (view) => {
    for (const name of names) {
      for (const condition of conditions) {
        for (const conflicts of [false, true]) {
          const asked = `{"selector":{"${name}":${condition}},${fields[at++ % fields.length]}"conflicts":${conflicts},"execution_stats":true}`;
          await compare(pair, `/${db}/_find`, post(asked), view);
        }
      }
    }
  };
  await all(found);
  for (const name of ['_attachments', '_attachments.x.length', '_conflicts', '_rev', '_deleted', '_attachments.x']) {
    await compare(pair, `/${db}/_index`, post(`{"index":{"fields":["${name}"]},"ddoc":"d${name}"}`));
  }
  // Ours uses no index of conflicts, and says so.
  await all((answer) => ({ ...found(answer), warning: '' }));
  pair.end();
});

const FIELDS = ['a', 'b', 'c', 'a.b', 'a.c', 'b.a', 'l.0', 'l.1.a', 'n', 's', '_id', '_rev', 'x\\.y', 'o.a.b', 'c.0', 'o'];
const COMPARISONS = ['$lt', '$lte', '$eq', '$ne', '$gte', '$gt'];

/** Random documents, indexes and queries, as text: numbers keep their spelling. */
class Maker {
  constructor({ below, pick, next }) {
    Object.assign(this, { below, pick, next });
  }

  chance(share) {
    return this.next() < share;
  }

  value(depth = 2) {
    const kind = this.below(depth > 0 ? 10 : 6);
    if (kind < 2) return String(this.below(4));
    if (kind < 3) return this.pick(NUMBERS);
    if (kind < 5) return text(this.pick(TEXTS));
    if (kind < 6) return this.pick(['null', 'true', 'false']);
    if (kind < 8) return this.list(this.below(4), () => this.value(depth - 1));
    return this.object(this.below(3), () => this.value(depth - 1));
  }

  list(count, make) {
    return `[${Array.from({ length: count }, make).join(',')}]`;
  }

  object(count, make) {
    const names = ['a', 'b', 'c'].toSorted(() => this.next() - 0.5).slice(0, count);
    return `{${names.map((name) => `${text(name)}:${make()}`).join(',')}}`;
  }

  document(id) {
    const members = [`"_id":${text(id)}`];
    for (const name of ['a', 'b', 'c', 'l', 'n', 's', 'x.y', 'o']) {
      if (this.chance(0.25)) continue;
      const value = name === 'n' ? this.pick(NUMBERS) : name === 's' ? text(this.pick(TEXTS))
        : name === 'l' ? this.list(this.below(4), () => this.value(1)) : this.value();
      members.push(`${text(name)}:${value}`);
    }
    return `{${members.join(',')}}`;
  }

  index(at) {
    const fields = Array.from({ length: 1 + this.below(3) }, () => this.pick(FIELDS));
    const direction = this.pick(['asc', 'desc']);
    const shown = fields.map((field) => (direction === 'asc' && this.chance(0.5) ? text(field) : `{${text(field)}:"${direction}"}`));
    const partial = this.chance(0.2) ? `,"partial_filter_selector":${this.selector(1)}` : '';
    return `{"index":{"fields":[${shown.join(',')}]${partial}},"ddoc":"d${this.below(6)}","name":"n${at}"}`;
  }

  /** A condition on ids, which CouchDB sorts by collation in an index, and compares by their bytes. */
  idCondition() {
    const id = text(this.pick(['1', '130', 'a', 'a20', 'A20', 'b40', 'B', 'é33', 'e\u030133', 'z', 'Z79']));
    return this.pick([`{"${this.pick(COMPARISONS)}":${id}}`, `{"$gt":${id},"$lte":"b50"}`, '{"$gt":null}', '{"$exists":true}', `{"$in":[${id},"a33"]}`,
      `{"$beginsWith":${id}}`, '{"$exists":false}', '{"$gte":7}', '{"$lt":7}', '{"$regex":"2$"}', id]);
  }

  condition(depth, field) {
    if (field === '_id') return this.idCondition();
    const kind = this.below(depth > 0 ? 16 : 13);
    if (kind < 6) return `{"${this.pick(COMPARISONS)}":${this.value(1)}}`;
    if (kind < 7) return `{"${this.pick(['$gt', '$gte'])}":${this.value(0)},"${this.pick(['$lt', '$lte'])}":${this.value(0)}}`;
    if (kind < 8) return this.value(1);
    if (kind < 9) return `{"$exists":${this.chance(0.7)}}`;
    if (kind < 10) return `{"${this.pick(['$in', '$nin', '$all'])}":${this.list(this.below(3), () => this.value(1))}}`;
    if (kind < 11) return `{"$type":"${this.pick(['null', 'boolean', 'number', 'string', 'array', 'object'])}"}`;
    if (kind < 12) return this.pick(['{"$size":2}', '{"$size":0}', '{"$mod":[2,1]}', '{"$mod":[-3,0]}', '{"$regex":"^a"}', '{"$regex":"[a-z]"}']);
    if (kind < 13) return `{"$beginsWith":${text(this.pick(TEXTS))}}`;
    if (kind < 14) return `{"$not":${this.condition(depth - 1)}}`.replace(/^\{"\$not":([^{].*|\{\})\}$/, '{"$ne":1}');
    // CouchDB does not normalise `$nor` inside these, and finds nothing. Ours applies it.
    const inner = this.chance(0.5) ? this.selector(depth - 1).replaceAll('$nor', '$or') : `{"${this.pick(COMPARISONS)}":${this.value(1)}}`;
    return `{"${this.pick(['$elemMatch', '$allMatch', '$keyMapMatch'])}":${inner}}`;
  }

  selector(depth = 2) {
    const kind = this.below(depth > 0 ? 12 : 8);
    if (kind === 11) return `{"$not":${this.selector(depth - 1)}}`;
    if (kind > 8) return `{"${this.pick(['$and', '$or', '$nor'])}":${this.list(1 + this.below(3), () => this.selector(depth - 1))}}`;
    const fields = [...new Set(Array.from({ length: 1 + this.below(3) }, () => this.pick(FIELDS)))];
    return `{${fields.map((field) => `${text(field)}:${this.condition(depth, field)}`).join(',')}}`;
  }

  query(indexes) {
    const members = [];
    const index = this.pick(indexes);
    let selector = this.selector();
    if (this.chance(0.6)) {
      // One that the index may serve.
      const fields = index.fields.map((field) => `{${text(field)}:${this.chance(0.4) ? '{"$gt":null}' : this.condition(0, field)}}`);
      selector = `{"$and":[${[...fields, ...(this.chance(0.4) ? [selector] : [])].join(',')}]}`;
    }
    members.push(`"selector":${selector}`);
    if (this.chance(0.4)) {
      const direction = this.pick(['asc', 'desc']);
      const fields = this.chance(0.8) ? index.fields.slice(0, 1 + this.below(index.fields.length)) : [this.pick(FIELDS)];
      members.push(`"sort":[${fields.map((field) => `{${text(field)}:"${direction}"}`).join(',')}]`);
    }
    if (this.chance(0.3)) {
      const fields = this.chance(0.5) ? index.fields : Array.from({ length: 1 + this.below(3) }, () => this.pick(FIELDS));
      members.push(`"fields":${text(fields)}`);
    }
    if (this.chance(0.3)) members.push(`"use_index":${text(this.pick([index.ddoc, [index.ddoc, index.name], `${index.ddoc}/${index.name}`, 'no']))}`);
    if (this.chance(0.1)) members.push('"allow_fallback":false');
    // Not both: with `r` above 1 CouchDB forgets `conflicts`.
    if (this.chance(0.2)) members.push(this.pick(['"conflicts":true', '"r":2']));
    members.push('"execution_stats":true');
    if (this.chance(0.2)) members.push(`"skip":${this.below(5)}`);
    members.push(`"limit":${this.pick([0, 1, 3, 10, 50, 1000, 1000])}`);
    return `{${members.join(',')}}`;
  }
}

const SCANNED = /(^|\n)The number of documents examined is high[^\n]*/;

/** As `plain`, of a search with statistics. The numbers of documents read may differ, and so may the warning. */
function found(answer) {
  const shown = plain(answer);
  const { bookmark, execution_stats: stats, warning = '' } = answer.body;
  if (answer.body.docs === undefined || stats === undefined) return shown;
  const read = stats.total_docs_examined + stats.total_quorum_docs_examined;
  const [docs] = shown.text.split('\r\n]');
  return {
    ...shown, text: docs, bookmark: bookmark === 'nil' ? 'nil' : typeof bookmark, returned: stats.results_returned,
    warning: warning.replace(SCANNED, ''), warns: SCANNED.test(warning) === read > 10 * Math.max(stats.results_returned, 1),
  };
}

test('random queries find the same documents in the same order, page after page', async (t) => {
  const pair = await beside(t);
  if (!pair) return;
  const make = new Maker(random(t));
  const rounds = Number(process.env.ROUNDS ?? 4);
  for (let round = 0; round < rounds; round++) {
    const ids = [...new Set(Array.from({ length: 150 }, (_, at) => `${make.pick(['1', 'a', 'A', 'b', 'B', 'é', 'e\u0301', 'z'])}${at % 70 + 10}`))];
    const docs = ids.map((id) => make.document(id));
    // The second one has no indexes.
    const [db, bare] = [await filled(pair, docs), await filled(pair, docs)];
    const conflicts = ids.slice(0, 10).map((id) => `{"_id":${text(id)},"_rev":"1-${'f'.repeat(32)}","a":${make.value()}}`);
    const indexes = [];
    for (let count = make.below(10) + 1, at = 0; at < count; at++) await compare(pair, `/${db}/_index`, post(make.index(at)));
    // Some documents change after that.
    const { theirs: known } = await compare(pair, `/${bare}/_all_docs`, {});
    const changes = known.body.rows.filter(() => make.chance(0.2)).map(({ id, value }) => {
      const rev = `"_rev":"${value.rev}"`;
      return make.chance(0.3) ? `{"_id":${text(id)},${rev},"_deleted":true}` : make.document(id).replace('{', `{${rev},`);
    });
    for (const name of [db, bare]) {
      await compare(pair, `/${name}/_bulk_docs`, post(`{"new_edits":false,"docs":[${conflicts.join(',')}]}`));
      await compare(pair, `/${name}/_bulk_docs`, post(`{"docs":[${changes.join(',')}]}`));
    }
    const { theirs: listed } = await compare(pair, `/${db}/_index`, {});
    for (const { ddoc, name, def } of listed.body.indexes) {
      indexes.push({ ddoc: ddoc ?? '_all_docs', name, fields: def.fields.map((field) => Object.keys(field)[0]) });
    }
    for (let at = 0; at < 250; at++) {
      const query = make.query(indexes);
      await explanations(pair, db, query);
      await pages(pair, db, bare, query);
    }
  }
  pair.end();
});

/** Compares explanations of a search. CouchDB does not show bounds of ids that are contradictory by collation. */
async function explanations(pair, db, query) {
  const { ours, theirs } = await pair.both(`/${db}/_explain`, post(query));
  const hasNoBounds = theirs.body.index?.name === '_all_docs' && theirs.body.mrargs?.start_key === null;
  const view = (answer) => plain(hasNoBounds ? { ...answer, text: answer.text.replace(/"start_key":.*?,"direction"/, '"direction"') } : answer);
  const what = `POST /${db}/_explain ${text(query)}`;
  if (hasCrashed(theirs)) pair.note(what, ours.status < 500, true);
  else pair.note(what, view(ours), view(theirs));
}

/** Compares all pages of a search. */
async function pages(pair, db, bare, query) {
  let bookmarks = {};
  for (let page = 0; page < 8; page++) {
    const asked = (bookmark) => post(bookmark ? query.replace(/\}$/, `,"bookmark":${text(bookmark)}}`) : query);
    const [ours, theirs] = await Promise.all([
      pair.ask(pair.ours, `/${db}/_find`, asked(bookmarks.ours)), pair.ask(pair.theirs, `/${db}/_find`, asked(bookmarks.theirs)),
    ]);
    const what = `POST /${db}/_find ${text(`${query} (page ${page})`)}`;
    if (hasCrashed(theirs)) {
      // CouchDB crashes at some values if any index exists. The right answer comes from the same documents without an
      // index.
      const whole = text({ limit: 10_000, fields: ['_id'] }).replace('{', `{"selector":${/"selector":(.*?),"(?:sort|fields|use_index|allow_fallback|conflicts|r|execution_stats)"/.exec(query)[1]},`);
      const [here, there] = [await pair.ask(pair.ours, `/${db}/_find`, post(whole)), await pair.ask(pair.theirs, `/${bare}/_find`, post(whole))];
      const sorted = ({ body }) => body.docs?.map((doc) => doc._id).toSorted();
      if (!hasCrashed(there)) pair.note(`POST /${db}/_find ${whole}`, sorted(here), sorted(there));
      return undefined;
    }
    // CouchDB compares the ids by collation, finds a contradiction, and does not search. Their bytes have no
    // contradiction.
    if (theirs.body.bookmark === undefined && query.includes('"_id"') && ours.body.warning?.startsWith('No matching index')) return undefined;
    pair.note(what, found(ours), found(theirs));
    if (!(ours.body.docs?.length > 0 && theirs.body.docs?.length > 0)) return undefined;
    bookmarks = { ours: ours.body.bookmark, theirs: theirs.body.bookmark };
  }
  return undefined;
}

// Searches: pouchdb-find over HTTP, compared with a local PouchDB, and the examples of CouchDB's manual with their
// answers; without indexes and with them.

import assert from 'node:assert/strict';
import test from 'node:test';

import findPlugin from 'pouchdb-find';

import { store } from '../lib/engines.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';
import { Server, expectOk, request } from '../lib/server.mjs';

PouchDB.plugin(findPlugin);

const NO_INDEX = 'No matching index found, create an index to optimize query time.';

const FILMS = [
  { _id: '12', title: 'Metropolis', year: 1927, genre: ['Science Fiction', 'Drama'], director: 'Fritz Lang', length: 153 },
  { _id: '14', title: 'M', year: 1931, genre: ['Crime'], director: 'Fritz Lang', imdb: { rating: 8.3, votes: 160_000 } },
  { _id: '20', title: 'Sunrise', year: 1927, genre: ['Romance', 'Drama'], director: 'F. W. Murnau', imdb: { rating: 8.1 } },
  { _id: '21', title: 'Faust', year: 1926, genre: [], director: 'F. W. Murnau', length: null },
  { _id: '33', title: 'Die Büchse der Pandora', year: 1929, director: 'G. W. Pabst', cast: [{ name: 'Louise Brooks', age: 22 }, { name: 'Fritz Kortner', age: 36 }] },
  { _id: '34', title: 'Der blaue Engel', year: 1930, director: 'Josef von Sternberg', cast: [{ name: 'Marlene Dietrich', age: 28 }] },
];

const QUERIES = [
  { selector: { year: 1927 } },
  { selector: { director: 'Fritz Lang', year: { $gt: 1928 } } },
  { selector: { $or: [{ director: 'G. W. Pabst' }, { year: { $lt: 1927 } }] } },
  { selector: { $and: [{ year: { $gte: 1927 } }, { year: { $lte: 1930 } }, { $not: { year: 1929 } }] } },
  { selector: { $nor: [{ year: 1927 }, { year: 1931 }] } },
  { selector: { 'imdb.rating': { $gte: 8.2 } } },
  { selector: { genre: { $all: ['Drama'] } } },
  { selector: { genre: { $in: ['Crime', 'Romance'] } } },
  { selector: { genre: { $size: 2 } } },
  { selector: { genre: { $exists: false } } },
  { selector: { cast: { $elemMatch: { age: { $lt: 25 } } } } },
  { selector: { cast: { $allMatch: { age: { $lt: 30 } } } } },
  { selector: { length: { $type: 'null' } } },
  { selector: { year: { $mod: [2, 0] } } },
  { selector: { title: { $regex: '^M' } } },
  { selector: { _id: { $gt: '14', $lte: '33' } } },
  { selector: { year: { $ne: 1927 } }, fields: ['_id', 'title'] },
  { selector: { year: { $gt: null } }, skip: 1, limit: 3 },
];

test('pouchdb-find finds over HTTP what it finds in a PouchDB', async (t) => {
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  const here = new PouchDB(`find-${process.pid}`, { adapter: 'memory' });
  t.after(() => here.destroy());
  const there = new PouchDB(`${server.url}/films`);
  await here.bulkDocs(FILMS);
  await replicate(here, there);
  for (const query of QUERIES) {
    const [ours, theirs] = [await there.find(query), await here.find(query)];
    assert.deepEqual(ours.docs, theirs.docs, JSON.stringify(query));
    assert.ok(ours.docs.length > 0, JSON.stringify(query));
    assert.ok(ours.warning.startsWith(NO_INDEX));
  }
  // Page after page, as its manual says.
  const paged = [];
  for (let bookmark; ;) {
    const page = await there.find({ selector: { year: { $gt: 1926 } }, limit: 2, bookmark });
    if (page.docs.length === 0) break;
    paged.push(...page.docs.map((doc) => doc._id));
    ({ bookmark } = page);
  }
  assert.deepEqual(paged, ['12', '14', '20', '33', '34']);
  const explained = await there.explain({ selector: { year: 1927 } });
  assert.equal(explained.index.name, '_all_docs');
  await assert.rejects(there.find({ selector: { year: 1927 }, sort: ['year'] }), (error) => error.error === 'no_usable_index');
});

// Sorted by fields that distinguish all films, since equal ones may come in any order.
const SORTED = [
  { selector: { year: { $gt: null }, title: { $gt: null } }, sort: ['year', 'title'] },
  { selector: { year: { $gte: 1927, $lt: 1931 }, title: { $gt: null } }, sort: [{ year: 'desc' }, { title: 'desc' }] },
  { selector: { year: 1927, title: { $gt: null } }, sort: ['year', 'title'], limit: 1 },
  { selector: { 'imdb.rating': { $gt: 8 } }, sort: ['imdb.rating'] },
  { selector: { director: 'Fritz Lang', title: { $gt: 'M' } }, fields: ['_id', 'title'] },
  { selector: { title: { $gt: null } }, sort: [{ title: 'desc' }], skip: 1, limit: 3, fields: ['title'] },
];

test('pouchdb-find makes indexes over HTTP and sorts by them as a PouchDB does', async (t) => {
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  const here = new PouchDB(`find-sorted-${process.pid}`, { adapter: 'memory' });
  t.after(() => here.destroy());
  const there = new PouchDB(`${server.url}/films`);
  await here.bulkDocs(FILMS);
  await replicate(here, there);
  const indexes = [['year', 'title'], ['imdb.rating'], ['director', 'title'], ['title']];
  for (const fields of indexes) {
    const body = { index: { fields, name: fields.join(' '), ddoc: `by-${fields[0]}` } };
    await here.createIndex(body);
    assert.equal((await there.createIndex(body)).result, 'created');
    assert.equal((await there.createIndex(body)).result, 'exists');
  }
  for (const query of SORTED) {
    const [ours, theirs] = [await there.find(query), await here.find(query)];
    assert.deepEqual(ours.docs, theirs.docs, JSON.stringify(query));
    assert.ok(ours.docs.length > 0, JSON.stringify(query));
    assert.equal(ours.warning, undefined, JSON.stringify(query));
  }
  for (const query of QUERIES) {
    const byId = (docs) => docs.toSorted((a, b) => (a._id < b._id ? -1 : 1)).map((doc) => doc._id);
    // The index decides which films are cut off.
    if (query.limit === undefined) {
      assert.deepEqual(byId((await there.find(query)).docs), byId((await here.find(query)).docs), JSON.stringify(query));
    }
  }
  // A document that was just written is found.
  await there.put({ _id: '50', title: 'Vampyr', year: 1932 });
  const latest = await there.find({ selector: { title: { $gt: null } }, sort: [{ title: 'desc' }], limit: 1 });
  assert.deepEqual(latest.docs.map((doc) => doc.title), ['Vampyr']);

  const explained = await there.explain({ selector: { year: 1927, title: { $gt: 'N' } }, fields: ['title'] });
  assert.deepEqual([explained.index.name, explained.covering], ['year title', true]);
  assert.deepEqual(explained.mrargs.start_key, [1927, 'N']);

  const listed = await there.getIndexes();
  assert.deepEqual(
    listed.indexes.map((index) => index.name),
    ['_all_docs', 'director title', 'imdb.rating', 'title', 'year title'],
  );
  const gone = listed.indexes.find((index) => index.name === 'imdb.rating');
  assert.deepEqual(await there.deleteIndex(gone), { ok: true });
  assert.equal((await there.getIndexes()).total_rows, 4);
  await assert.rejects(there.find(SORTED[3]), (error) => error.error === 'no_usable_index');
  // Definitions are documents, and replicate.
  const copy = new PouchDB(`${server.url}/copy`);
  await replicate(there, copy);
  assert.equal((await copy.getIndexes()).total_rows, 4);
  assert.deepEqual((await copy.find(SORTED[0])).docs, (await there.find(SORTED[0])).docs);
});

test("the manual's searches have the manual's answers", async (t) => {
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  const db = `${server.url}/movies`;
  await expectOk(db, { method: 'PUT' });
  const movies = [
    { _id: '176694', _rev: '1-54f8e950cc338d2385d9b0cda2fd918e', year: 2011, title: 'The Tragedy of Man', length: 160 },
    { _id: '780504', _rev: '1-5f14bab1a1e9ac3ebdf85905f47fb084', year: 2011, title: 'Drive', length: 100 },
    { _id: '900001', _rev: '1-0000000000000000000000000000000a', year: 2010, title: 'Inception', length: 148 },
  ];
  await expectOk(`${db}/_bulk_docs`, { method: 'POST', body: { docs: movies, new_edits: false } });
  const find = async (body) => (await expectOk(`${db}/_find`, { method: 'POST', body }));

  // "POST /{db}/_find", and the index that its sort needs.
  await expectOk(`${db}/_index`, { method: 'POST', body: { index: { fields: ['year'] } } });
  const answer = await find({
    selector: { year: { $gt: 2010 } },
    fields: ['_id', '_rev', 'year', 'title'],
    sort: [{ year: 'asc' }],
    limit: 2,
    skip: 0,
    execution_stats: true,
  });
  assert.deepEqual(answer.docs, [
    { _id: '176694', _rev: '1-54f8e950cc338d2385d9b0cda2fd918e', year: 2011, title: 'The Tragedy of Man' },
    { _id: '780504', _rev: '1-5f14bab1a1e9ac3ebdf85905f47fb084', year: 2011, title: 'Drive' },
  ]);
  assert.deepEqual(
    Object.keys(answer.execution_stats),
    ['total_keys_examined', 'total_docs_examined', 'total_quorum_docs_examined', 'results_returned', 'execution_time_ms'],
  );

  // "Selector Syntax": the manual's kinds of selectors over these documents.
  for (const [selector, ids] of [
    [{ title: 'Drive' }, ['780504']],
    [{ title: { $eq: 'Drive' }, year: { $gt: 1900 } }, ['780504']],
    [{ $and: [{ title: 'Drive' }, { year: { $in: [2010, 2011] } }] }, ['780504']],
    [{ year: 2011, $or: [{ length: 100 }, { length: { $gt: 150 } }] }, ['176694', '780504']],
    [{ year: { $gte: 2010, $lte: 2011 }, $not: { year: 2010 } }, ['176694', '780504']],
    [{ $nor: [{ year: 2010 }, { length: 100 }] }, ['176694']],
    [{ title: { $regex: '^The' } }, ['176694']],
    [{ year: { $exists: true }, length: { $mod: [50, 0] } }, ['780504']],
  ]) {
    assert.deepEqual((await find({ selector })).docs.map((doc) => doc._id), ids, JSON.stringify(selector));
  }
  // "This selector cannot be used."
  const refused = await request(`${db}/_find`, { method: 'POST', body: { selector: { $elemMatch: { a: 1 } } } });
  assert.deepEqual([refused.status, refused.body.error], [400, 'invalid_selector']);
});

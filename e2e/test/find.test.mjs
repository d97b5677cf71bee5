// Searches: pouchdb-find over HTTP, compared with a local PouchDB, and the examples of CouchDB's manual with their
// answers. Indexes are not there yet.

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
  // CouchDB's indexes are not there, and clients are told so.
  await assert.rejects(there.createIndex({ index: { fields: ['year'] } }), (error) => error.status === 501);
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

  // "POST /{db}/_find", without its sort, for which there is no index.
  const answer = await find({
    selector: { year: { $gt: 2010 } },
    fields: ['_id', '_rev', 'year', 'title'],
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

// Views: PouchDB's `query` over HTTP, compared with a local PouchDB.

import assert from 'node:assert/strict';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import PouchDB, { replicate } from '../lib/pouch.mjs';
import { Server } from '../lib/server.mjs';

const BOOKS = [
  { _id: 'b1', title: 'Momo', at: [1973, 9, 1], pages: 269, tags: ['time', 'children'] },
  { _id: 'b2', title: 'Die unendliche Geschichte', at: [1979, 9, 1], pages: 428, tags: ['children'], before: 'b1' },
  { _id: 'b3', title: 'Krabat', at: [1971, 1, 1], pages: 256, tags: [] },
  { _id: 'b4', title: 'Ronja', at: [1981, 1, 1], pages: 235, tags: ['children', 'wood'], before: 'b3' },
  { _id: '_design/books', views: {
    titles: { map: 'function (doc) { emit(doc.title); }' },
    pages: { map: 'function (doc) { emit(doc.at, doc.pages); }', reduce: '_sum' },
    stats: { map: 'function (doc) { emit(doc.at, doc.pages); }', reduce: '_stats' },
    tags: { map: 'function (doc) { (doc.tags || []).forEach(function (tag) { emit(tag); }); }', reduce: '_count' },
    most: { map: 'function (doc) { emit(doc.at, doc.pages); }', reduce: 'function (k, v) { return Math.max.apply(null, v); }' },
    before: { map: 'function (doc) { if (doc.before) { emit(doc._id, { _id: doc.before }); } }' },
  } },
];

const QUERIES = [
  ['titles', {}],
  ['titles', { descending: true, limit: 2, skip: 1 }],
  ['titles', { startkey: 'L', endkey: 'N' }],
  ['titles', { keys: ['Ronja', 'none', 'Momo'] }],
  ['titles', { key: 'Krabat', include_docs: true }],
  ['pages', {}],
  ['pages', { reduce: false }],
  ['pages', { group: true }],
  ['pages', { group_level: 1, startkey: [1973], endkey: [1980] }],
  ['stats', {}],
  ['tags', { group: true }],
  ['tags', { keys: ['wood', 'time'], group: true }],
  ['most', {}],
  ['before', { include_docs: true }],
];

test('PouchDB queries over HTTP what it queries in a PouchDB', async (t) => {
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  const here = new PouchDB(`views-${process.pid}`, { adapter: 'memory' });
  t.after(() => here.destroy());
  const there = new PouchDB(`${server.url}/books`);
  await here.bulkDocs(BOOKS);
  await replicate(here, there);
  const compare = async (hasRows) => {
    for (const [view, options] of QUERIES) {
      const [ours, theirs] = [await there.query(`books/${view}`, options), await here.query(`books/${view}`, options)];
      const what = `${view} ${JSON.stringify(options)}`;
      assert.deepEqual(ours.rows, theirs.rows, what);
      assert.equal(ours.total_rows, theirs.total_rows, what);
      if (hasRows) assert.ok(ours.rows.length > 0, what);
    }
  };
  await compare(true);
  // A change is in the next answer.
  const momo = await here.get('b1');
  await here.bulkDocs([{ ...momo, title: 'MOMO', tags: [] }, { _id: 'b5', title: 'Jim Knopf', at: [1960, 8, 9], pages: 258 }]);
  await here.remove(await here.get('b4'));
  await replicate(here, there);
  await compare(false);
  assert.equal((await there.query('books/titles')).rows[0].id, 'b2');
});

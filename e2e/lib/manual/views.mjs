// PouchDB's manual on views: the guide "Map/reduce queries" (`docs/guides/queries.md` in PouchDB's source), and of the
// API (`docs/_includes/api`) `query_database` and `view_cleanup`. Data that they leave out is ours.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';

import { REV, each } from './example.mjs';

/** Queries a map function, or `{ map, reduce }`, that a design document holds. */
const query = (view, options = {}, of = ({ rows }) => rows) => async (db) => {
  const functions = typeof view === 'function' ? { map: view } : view;
  const texts = Object.fromEntries(Object.entries(functions).map(([name, text]) => [name, String(text)]));
  await db.put({ _id: '_design/example', views: { view: texts } });
  const stored = of(await db.query('example/view', structuredClone(options)));
  // Most examples pass the functions themselves. A local PouchDB accepts these too, and gives the same answers.
  if (db.adapter !== 'http') assert.deepEqual(of(await db.query(view, structuredClone(options))), stored);
  return stored;
};
const ids = ({ rows }) => rows.map((row) => row.id).join(' ');
const reduced = (value) => [{ key: null, value }];

/** Passes the map function itself. */
const temporary = (map, options, of = (result) => result) => async (db) => {
  // Without a listener, errors of functions go to the console.
  db.on('error', () => {});
  return of(await db.query(map, structuredClone(options)));
};
const NO_TEMPORARY = { server: { refused: 'gone' }, why: 'CouchDB has no temporary views since 2.0.' };

const POKEMON = [
  { _id: 'oak', type: 'human', name: 'Professor Oak' },
  ...'Bulbasaur Paras Parasect Persian Pidgeot Pidgey Pikachu Psyduck Zubat'.split(' ')
    .map((name) => ({ _id: name.toLowerCase(), type: 'pokemon', name })),
];
const BOWIE = {
  _id: 'bowie', _rev: '1-fdb234b78904a5c8293f2acf4be70d44', age: 67, firstName: 'David', lastName: 'Bowie',
};
const PEOPLE = [
  BOWIE,
  { _id: 'dylan', firstName: 'Bob', lastName: 'Dylan', age: 72 },
  { _id: 'hank', firstName: 'Hank', lastName: 'Williams', age: 91 },
  { _id: 'hank_the_third', firstName: 'Hank', lastName: 'Williams', age: 41 },
  { _id: 'younger_dylan', firstName: 'Jakob', lastName: 'Dylan', age: 44 },
];
const ALBUMS = [['hunkydory', 'Hunky Dory', 1971], ['low', 'Low', 1977], ['spaceoddity', 'Space Oddity', 1969]]
  .map(([id, name, year]) => ({ _id: `album_${id}`, type: 'album', name, year, artistId: 'bowie' }));
const SONGS = [
  { _id: 'doc1', title: 'Sweet Jane' },
  { _id: 'doc2', title: 'Rock and Roll' },
  { _id: 'doc3', title: 'Lisa Says', _rev: '1-z' },
  { _id: 'doc4', title: 'Ocean' },
  { _id: 'doc5' },
];
// "c1" has a conflict.
const LOSER = '1-00000000000000000000000000000000';
const NOTE = { content_type: 'text/plain', data: 'aGk=' };
const HI = Object.assign(Buffer.from('hi'), { type: 'text/plain' });
const LETTERS = [
  { _id: 'a1', key: 'a', value: 1 },
  { _id: 'a2', key: 'a', value: 2 },
  { _id: 'b1', key: 'b', value: 4 },
  { _id: 'c1', key: 'c', value: 8, _attachments: { note: NOTE } },
  { _id: 'c1', key: 'c', value: 9, _rev: LOSER },
];
const TYPES = [null, false, 1, 'a', ['a'], { a: 1 }];

// Their texts become views; `emit` is there where these run.
/* global emit */
const byName = function (doc) { emit(doc.name); };
const byKey = function (doc) { emit(doc.key, doc.value); };
const byTitle = function (doc) { if (doc.title) { emit(doc.title); } };
const byFullName = function (doc) { emit([doc.lastName, doc.firstName, doc.age]); };
const byTypes = function (doc) { doc.types.forEach(function (value) { emit(value); }); };
const byAlbum = function (doc) {
  if (doc.type === 'album') { emit(doc.name, { _id: doc.artistId, albumYear: doc.year }); }
};
const pikaPi = function (doc) {
  if (doc.type === 'pokemon') { emit(doc.name === 'Pikachu' ? 'Pika pi!' : doc.name); }
};
const initials = { map: function (doc) { emit(doc.name.charAt(0)); }, reduce: '_count' };
const summed = { map: byKey, reduce: '_sum' };

export const GUIDE = [
  {
    at: 'Temporary queries',
    data: POKEMON,
    call: temporary((doc, emit) => { emit(doc.name); }, { key: 'Zubat' }, ids),
    answer: 'zubat',
    ...NO_TEMPORARY,
  },
  ...each('Persistent queries', POKEMON.slice(0, 3), (options) => query(byName, options, ids), [
    [{}, 'bulbasaur paras oak'],
    [{ limit: 0 }, ''],
    [{ key: 'Paras' }, 'paras'],
  ]),
  ...each('Map functions', POKEMON,
    (options) => query(pikaPi, options, ({ rows }) => rows.map(({ doc }) => doc.name).join(' ')), [
    [{ key: 'Pika pi!', include_docs: true }, 'Pikachu'],
    [{ startkey: 'P', endkey: 'P\ufff0', limit: 5, include_docs: true }, 'Paras Parasect Persian Pidgeot Pidgey'],
  ]),
  ...each('Reduce functions', POKEMON, (options) => query(initials, options), [
    [{ key: 'P', reduce: true, group: true }, [{ key: 'P', value: 8 }]],
  ]),
];

export const API = [
  {
    at: 'query',
    data: SONGS,
    call: async (db) => {
      await db.put({ _id: '_design/index', views: { index: { map: String(byTitle) } } });
      return db.query('index', { key: 'Lisa Says', include_docs: true });
    },
    answer: {
      offset: 0,
      rows: [{ id: 'doc3', key: 'Lisa Says', value: null, doc: { _id: 'doc3', _rev: '1-z', title: 'Lisa Says' } }],
      total_rows: 4,
    },
  },
  ...each('query, offset', SONGS, (options) => query(byTitle, options, ({ offset }) => offset), [
    [{ key: 'Sweet Jane' }, 0, { server: 3, why: 'CouchDB counts all rows before these, PouchDB the skipped ones.' }],
    [{ skip: 2 }, 2],
  ]),
  {
    at: 'Complex keys',
    data: PEOPLE,
    call: query(byFullName, {}, (result) =>
      ({ ...result, rows: result.rows.map(({ id, key }) => ({ id, key })) })),
    answer: {
      offset: 0,
      rows: [
        { id: 'bowie', key: ['Bowie', 'David', 67] },
        { id: 'dylan', key: ['Dylan', 'Bob', 72] },
        { id: 'younger_dylan', key: ['Dylan', 'Jakob', 44] },
        { id: 'hank_the_third', key: ['Williams', 'Hank', 41] },
        { id: 'hank', key: ['Williams', 'Hank', 91] },
      ],
      total_rows: 5,
    },
  },
  {
    at: 'Complex keys, order of types',
    data: [{ _id: 'types', types: TYPES.toReversed() }],
    call: query(byTypes, {}, ({ rows }) => rows.map((row) => row.key)),
    answer: TYPES,
  },
  ...each('Complex keys, ranges', PEOPLE, (options) => query(byFullName, options, ids), [
    [{ startkey: ['Williams'], endkey: ['Williams', {}] }, 'hank_the_third hank'],
    [{ startkey: ['Williams'], endkey: ['Williams', 'zzzzz'] }, 'hank_the_third hank'],
    [{ startkey: ['Williams'], endkey: ['Williams', '\ufff0'] }, 'hank_the_third hank'],
  ]),
  ...each('Complex keys, groups', PEOPLE, (options) => query({ map: byFullName, reduce: '_count' }, options), [
    [{ group_level: 1, reduce: true, group: true },
      [{ key: ['Bowie'], value: 1 }, { key: ['Dylan'], value: 2 }, { key: ['Williams'], value: 2 }]],
    [{ group_level: 2, reduce: true, group: true }, [
      { key: ['Bowie', 'David'], value: 1 }, { key: ['Dylan', 'Bob'], value: 1 },
      { key: ['Dylan', 'Jakob'], value: 1 }, { key: ['Williams', 'Hank'], value: 2 },
    ]],
  ]),
  {
    at: 'Linked documents',
    data: [BOWIE, ...ALBUMS],
    call: query(byAlbum, { include_docs: true }, (result) => result),
    answer: {
      offset: 0,
      rows: [
        { doc: BOWIE, id: 'album_hunkydory', key: 'Hunky Dory', value: { _id: 'bowie', albumYear: 1971 } },
        { doc: BOWIE, id: 'album_low', key: 'Low', value: { _id: 'bowie', albumYear: 1977 } },
        { doc: BOWIE, id: 'album_spaceoddity', key: 'Space Oddity', value: { _id: 'bowie', albumYear: 1969 } },
      ],
      total_rows: 3,
    },
  },
  {
    at: 'Closures, by the global emit',
    data: LETTERS,
    // "BAD! will throw error".
    call: temporary((doc) => { if (doc._id === REV) emit(doc); }, {}, ids),
    answer: { refused: 'ReferenceError' },
    server: { refused: 'gone' },
    local: '',
    why: 'A local PouchDB emits the error as an event, and leaves out the document.',
  },
  {
    at: 'Closures, by the parameter emit',
    data: LETTERS,
    call: temporary((doc, emit) => { if (doc._rev === REV) emit(doc._id); }, {}, ids),
    answer: 'a1 a2 b1 c1',
    ...NO_TEMPORARY,
  },
  ...each('fun', LETTERS, (name) => async (db) => {
    const views = { mydesigndoc: { map: String(byKey) }, myview: { map: String(byKey), reduce: '_sum' } };
    await db.put({ _id: '_design/mydesigndoc', views });
    return (await db.query(name)).rows.length;
  }, [
    ['mydesigndoc/myview', 1],
    ['mydesigndoc', 4],
  ]),
  ...each('reduce', LETTERS, (reduce) => query({ map: byKey, reduce }), [
    ['_sum', reduced(15)],
    ['_count', reduced(4)],
    ['_stats', reduced({ sum: 15, count: 4, min: 1, max: 8, sumsqr: 85 })],
    ['function (keys, values) { return Math.max.apply(null, values); }', reduced(8)],
  ]),
  ...each('reduce, group', LETTERS, (options) => query(summed, options), [
    [{}, reduced(15)],
    [{ reduce: true }, reduced(15)],
    [{ group: true }, [{ key: 'a', value: 3 }, { key: 'b', value: 4 }, { key: 'c', value: 8 }]],
    [{ group: true, keys: ['c', 'a'] }, [{ key: 'c', value: 8 }, { key: 'a', value: 3 }]],
    [{ group: true, skip: 1, limit: 1 }, [{ key: 'b', value: 4 }]],
  ]),
  ...each('reduce, rows', LETTERS, (options) => query(summed, options, ids), [
    [{ reduce: false }, 'a1 a2 b1 c1'],
  ]),
  ...each('reduce of a map', LETTERS, (options) => query(byKey, options, ({ rows }) => rows.length), [
    [{ reduce: true }, 4,
      { server: { refused: 'query_parse_error' }, why: 'CouchDB reduces by functions of the view only.' }],
    [{ reduce: '_count' }, 1,
      { server: { refused: 'query_parse_error' }, local: 4, why: 'As above, and a local PouchDB 9 does not read it.' }],
  ]),
  ...each('rows', LETTERS, (options) => query(byKey, options, ids), [
    [{ startkey: 'b' }, 'b1 c1'],
    [{ endkey: 'b' }, 'a1 a2 b1'],
    [{ startkey: 'b', endkey: 'c' }, 'b1 c1'],
    [{ endkey: 'b', inclusive_end: true }, 'a1 a2 b1'],
    [{ endkey: 'b', inclusive_end: false }, 'a1 a2'],
    [{ limit: 2 }, 'a1 a2'],
    [{ skip: 3 }, 'c1'],
    [{ descending: true }, 'c1 b1 a2 a1'],
    [{ descending: true, startkey: 'b', endkey: 'a' }, 'b1 a2 a1'],
    [{ key: 'a' }, 'a1 a2'],
    [{ keys: ['c', 'a'] }, 'c1 a1 a2'],
    [{ keys: ['c', 'a'], startkey: 'b' }, { refused: 'query_parse_error' },
      { local: 'c1 a1 a2', why: 'A local PouchDB ignores the range.' }],
    // The manual's statement about missing documents is true of `allDocs`. A view has no row for a key that was not
    // emitted.
    [{ keys: ['none', 'b'] }, 'b1'],
  ]),
  ...each('include_docs', LETTERS, (options) => query(byKey, { key: 'c', ...options }, ({ rows: [{ doc }] }) =>
    doc && [doc.value, doc._conflicts, doc._attachments.note.stub, doc._attachments.note.data]), [
    [{}, undefined],
    [{ include_docs: true }, [8, undefined, true, undefined]],
    [{ include_docs: true, conflicts: true }, [8, [LOSER], true, undefined]],
    [{ include_docs: true, attachments: true }, [8, undefined, undefined, 'aGk=']],
    [{ include_docs: true, attachments: true, binary: true }, [8, undefined, undefined, HI]],
  ]),
  ...each('stale', LETTERS, (stale) => async (db) => {
    await db.put({ _id: '_design/keys', views: { keys: { map: String(byKey) } } });
    const first = ids(await db.query('keys', { stale }));
    const later = () => db.query('keys', { stale: 'ok' }).then(ids);
    if (stale === 'update_after') {
      for (const end = Date.now() + 60_000; await later() === '' && Date.now() < end;) await sleep(20);
    }
    return [first, await later(), ids(await db.query('keys'))];
  }, [
    ['ok', ['', '', 'a1 a2 b1 c1']],
    ['update_after', ['', 'a1 a2 b1 c1', 'a1 a2 b1 c1']],
    [undefined, ['a1 a2 b1 c1', 'a1 a2 b1 c1', 'a1 a2 b1 c1']],
  ]),
  ...each('update_seq', LETTERS, (options) => query(byKey, options, (result) => 'update_seq' in result), [
    [{}, false],
    [{ update_seq: true }, true],
  ]),
  {
    at: 'viewCleanup',
    data: LETTERS,
    call: async (db) => {
      await query(byKey)(db);
      await db.remove(await db.get('_design/example'));
      return db.viewCleanup();
    },
    // The manual has the text "true".
    answer: { ok: true },
  },
];

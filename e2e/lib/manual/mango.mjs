// PouchDB's manual on Mango: the guide "Mango queries" (`docs/guides/mango-queries.md` in PouchDB's source), and of the
// API (`docs/_includes/api`) `create_index`, `query_index`, `explain_index`, `list_indexes` and `delete_index`. Data
// that they leave out is ours.

import { each } from './example.mjs';

// Calls pass copies to PouchDB, which modifies its arguments.

const names = ({ docs }) => docs.map((doc) => doc.name).join(' ');
const ages = ({ docs }) => docs.map((doc) => `${doc.name} ${doc.age}`).join(', ');
const find = (search, of = names) => async (db) => of(await db.find(structuredClone(search)));

/** Makes the indexes before the call. */
const indexed = (indexes, call) => async (db) => {
  for (const index of indexes) await db.createIndex(structuredClone({ index }));
  return call(db);
};

/** The chosen index, and the range of its keys that is read. */
const plan = (search) => async (db) => {
  const explained = await db.explain(structuredClone(search));
  // PouchDB's `range` is `mrargs` in CouchDB 3. Each has its own mark for the end of all values.
  const { start_key: start, end_key: end } = explained.mrargs ?? explained.range;
  const values = (keys) => [keys ?? []].flat().filter((key) => typeof key !== 'object' && key !== '<MAX>');
  return [explained.index.def.fields.flatMap(Object.keys).join(' '), values(start), values(end)];
};

/** The indexes, with the members that the manual shows. */
const listed = async (db) => (await db.getIndexes()).indexes.map(({ ddoc, name, type, def }) =>
  // Generated names differ.
  (ddoc === `_design/${name}` ? unnamed(def, type) : { ddoc, name, type, def }));
const unnamed = (def, type = 'json') => ({ ddoc: '_design/NAME', name: 'NAME', type, def });
const ascending = (...fields) => ({ fields: fields.map((field) => ({ [field]: 'asc' })) });

const createTwice = (index) => async (db) => {
  const create = async () => (await db.createIndex(structuredClone({ index }))).result;
  return [await create(), await create(), (await listed(db)).at(-1)];
};

const CHARACTERS = [
  { _id: 'daisy', name: 'Daisy', series: 'Mario', debut: 1989, skills: [], kart: null },
  { _id: 'link', name: 'Link', series: 'Zelda', debut: 1986, skills: ['sword', 'bow'], kart: true },
  { _id: 'mario', name: 'Mario', series: 'Mario', debut: 1981, skills: ['jump', 'fire'], kart: 'standard' },
  { _id: 'rosalina', name: 'Rosalina', series: 'Mario', debut: 2007, skills: ['spin'], kart: { wheels: 4 } },
  { _id: 'waluigi', name: 'Waluigi', series: 'Mario', debut: 2000, skills: ['swim', 'spin'] },
];
const NAMES = ('abby bertrand clarice don emily fumiko gunther horatio ike joy '
  + 'kim lin maria nell oliver pat quincy roy sam tanya ursula vera will xenia yves zoe').split(' ')
  // Their ids have another order.
  .map((name, at) => ({ _id: String((at * 7) % 26).padStart(2, '0'), name }));
const AGES = [['Luigi', 17, 28], ['Mario', 18, 21, 22, 26], ['Peach', 17, 21, 25]]
  .flatMap(([name, ...ages]) => ages.map((age) => ({ _id: `${name} ${age}`, name, age })));
const MARIOS = { selector: { name: 'Mario', age: { $gt: 21 } } };
const FILMS = [2009, 2010, 2011, 2012].map((year) => ({ _id: `f${year}`, name: `Film${year}`, title: 'Film', year }));

const NO_INDEX = 'No matching index found, create an index to optimize query time.';
const SCAN = { why: 'CouchDB reads the index of the field, all of it, instead of all documents.' };

export const GUIDE = [
  ...each('Query language', CHARACTERS, (search) => indexed([{ fields: ['name'] }], find(search)), [
    [{ selector: { name: 'Mario' } }, 'Mario'],
    [{ selector: { name: { $eq: 'Mario' } } }, 'Mario'],
    [{ selector: { name: { $gte: null } }, sort: ['name'] }, 'Daisy Link Mario Rosalina Waluigi'],
  ]),
  ...each('Pagination', NAMES, (search) => indexed([{ fields: ['name'] }], find(search)), [
    [{ selector: { name: { $gte: null } }, sort: ['name'], limit: 10 },
      'abby bertrand clarice don emily fumiko gunther horatio ike joy'],
    [{ selector: { name: { $gt: 'joy' } }, sort: ['name'], limit: 10 },
      'kim lin maria nell oliver pat quincy roy sam tanya',
      { local: 'kim lin maria nell oliver pat quincy roy sam', why: 'A local PouchDB counts "joy" and drops it.' }],
  ]),
  ...each('Two fields, tables', AGES, (fields) => indexed([{ fields }], find(
    { selector: { name: { $gt: null }, age: { $gt: null } }, sort: fields },
    ages,
  )), [
    [['name', 'age'],
      'Luigi 17, Luigi 28, Mario 18, Mario 21, Mario 22, Mario 26, Peach 17, Peach 21, Peach 25'],
    [['age', 'name'],
      'Luigi 17, Peach 17, Mario 18, Mario 21, Peach 21, Mario 22, Peach 25, Mario 26, Luigi 28'],
  ]),
  // "This won't work" means that no range holds them: all who are older than 21 are read.
  ...each('Two fields', AGES, (fields) => indexed([{ fields }], async (db) =>
    [await find(MARIOS, ages)(db), ...(await plan(MARIOS)(db))]), [
    [['name', 'age'], ['Mario 22, Mario 26', 'name age', ['Mario', 21], ['Mario']]],
    [['age', 'name'], ['Mario 22, Mario 26', 'age name', [21, 'Mario'], []], {
      local: ['Mario 22, Mario 26', 'age name', [21, 'Mario'], ['Mario']],
      why: 'A local PouchDB gives the fields behind the first range an end too.',
    }],
  ]),
  ...each('Performance notes, plan', CHARACTERS, (selector) => indexed([{ fields: ['name'] }], plan({ selector })), [
    [{ _id: 'mario' }, ['_id', ['mario'], ['mario']],
      { local: ['_id', [], []], why: 'A local PouchDB reads one id without calling that a range.' }],
    [{ debut: 1981 }, ['_id', [], []]],
    [{ name: { $ne: 'Mario' } }, ['_id', [], []], { server: ['name', [], []], ...SCAN }],
    [{ $not: { name: 'Mario' } }, ['_id', [], []], { server: ['name', [], []], ...SCAN }],
    [{ name: { $regex: '^M' } }, ['name', [], []]],
  ]),
  ...each('Performance notes, warning', CHARACTERS, (indexes) =>
    indexed(indexes, find({ selector: { name: 'Mario' } }, (result) => result.warning)), [
    [[], NO_INDEX],
    [[{ fields: ['name'] }], undefined],
  ]),
  ...each('Set which index to use', AGES, (name) => indexed(
    [{ fields: ['name', 'age'] }, { fields: ['age', 'name'], ddoc: 'my-index-design-doc', name: 'by-age' }],
    async (db) => {
      const search = { ...MARIOS, use_index: name };
      return [await find(search, ages)(db), (await plan(search)(db))[0]];
    },
  ), [
    ['my-index-design-doc', ['Mario 22, Mario 26', 'age name']],
    [['my-index-design-doc', 'by-age'], ['Mario 22, Mario 26', 'age name']],
    // "The best index will be chosen automatically."
    [undefined, ['Mario 22, Mario 26', 'name age'],
      { local: ['Mario 22, Mario 26', 'age name'], why: 'A local PouchDB counts fields, not how far they narrow.' }],
  ]),
];

const AFTER_2010 = { year: { $gt: 2010 } };
const EXPLAINED = {
  dbname: 'NAME',
  index: { ddoc: '_design/design-doc-name', name: 'index-name', type: 'json', def: ascending('name', 'series') },
  selector: { $and: [{ name: { $eq: 'Mario' } }, { series: { $eq: 'mario' } }] },
  opts: {
    use_index: [], bookmark: 'nil', limit: 25, skip: 0, sort: { name: 'asc' }, fields: ['_id', 'name'], r: [49],
    conflicts: false,
  },
  limit: 25,
  skip: 0,
  fields: ['_id', 'name'],
};

export const API = [
  ...each('createIndex', [], createTwice, [
    [{ fields: ['foo'] }, ['created', 'exists', unnamed(ascending('foo'))]],
    [{ fields: ['foo', 'bar', 'baz'] }, ['created', 'exists', unnamed(ascending('foo', 'bar', 'baz'))]],
    [{ fields: ['person.address.zipcode'] }, ['created', 'exists', unnamed(ascending('person.address.zipcode'))]],
    [{ fields: ['foo', 'bar'], name: 'myindex', ddoc: 'mydesigndoc', type: 'json' }, ['created', 'exists',
      { ddoc: '_design/mydesigndoc', name: 'myindex', type: 'json', def: ascending('foo', 'bar') }]],
    [{ fields: ['year', 'title'], partial_filter_selector: AFTER_2010 },
      ['created', 'exists', unnamed({ ...ascending('year', 'title'), partial_filter_selector: AFTER_2010 })]],
  ]),
  ...each('createIndex, what it holds', [...FILMS, { _id: 'p', name: 'P', person: { address: { zipcode: 4 } } }],
    ([index, selector]) => indexed([{ ...index, ddoc: 'd' }], find({ selector, use_index: 'd' })), [
      [[{ fields: ['person.address.zipcode'] }, { 'person.address.zipcode': { $gt: null } }], 'P'],
      [[{ fields: ['year', 'title'] }, { year: { $gt: 2009 }, title: 'Film' }], 'Film2010 Film2011 Film2012'],
      [[{ fields: ['year', 'title'], partial_filter_selector: AFTER_2010 }, { year: { $gt: 2009 }, title: 'Film' }],
        'Film2011 Film2012'],
    ]),
  {
    at: 'createIndex, "indexing" events',
    data: CHARACTERS,
    call: async (db) => {
      const events = [];
      db.on('indexing', (event) => events.push(Object.keys(event).sort().join(' ')));
      await db.createIndex({ index: { fields: ['name'] } });
      return events;
    },
    answer: ['indexed_docs view', 'indexed_docs last_seq results_count view'],
    server: [],
    why: 'PouchDB has no such events over HTTP.',
  },
  ...each('find', CHARACTERS, (search) => indexed([{ fields: ['name'] }], find(search, ({ docs }) => docs)), [
    [{ selector: { name: 'Mario' }, fields: ['_id', 'name'], sort: ['name'] }, [{ _id: 'mario', name: 'Mario' }]],
  ]),
  ...each('find', CHARACTERS, (search) => indexed([{ fields: ['name'] }, { fields: ['debut'] }], find(search)), [
    [{ selector: { name: { $eq: 'Mario' } } }, 'Mario'],
    [{ selector: { name: 'Mario' } }, 'Mario'],
    [{ selector: { series: 'Mario', debut: { $gt: 1990 } } }, 'Waluigi Rosalina'],
    [{ selector: { $and: [{ series: 'Mario' }, { debut: { $gt: 1990 } }] } }, 'Waluigi Rosalina'],
    [{ selector: { debut: { $gte: null } }, sort: [{ debut: 'desc' }] }, 'Rosalina Waluigi Daisy Link Mario'],
    [{ selector: { name: { $gte: null } }, skip: 1, limit: 2 }, 'Link Mario'],
    // "Sorted fields also have to be selected in the selector."
    [{ selector: { name: { $gte: null } }, sort: ['debut'] }, { refused: 'Error' },
      { server: 'Mario Link Daisy Waluigi Rosalina', why: 'In CouchDB a sort asks for the field itself.' }],
  ]),
  ...each('find, default of limit', Array.from({ length: 30 }, (_, at) => ({ _id: `d${at}`, at })),
    (search) => find(search, ({ docs }) => docs.length), [
      [{ selector: { at: { $gte: 0 } } }, 25],
    ]),
  ...each('find, operators', CHARACTERS, (selector) => find({ selector }), [
    [{ debut: { $lt: 1986 } }, 'Mario'],
    [{ debut: { $gt: 1989 } }, 'Rosalina Waluigi'],
    [{ debut: { $lte: 1986 } }, 'Link Mario'],
    [{ debut: { $gte: 1989 } }, 'Daisy Rosalina Waluigi'],
    [{ debut: { $eq: 1989 } }, 'Daisy'],
    [{ series: { $ne: 'Mario' } }, 'Link'],
    [{ kart: { $exists: true } }, 'Daisy Link Mario Rosalina'],
    [{ kart: { $exists: false } }, 'Waluigi'],
    [{ kart: { $type: 'null' } }, 'Daisy'],
    [{ kart: { $type: 'boolean' } }, 'Link'],
    [{ debut: { $type: 'number' } }, 'Daisy Link Mario Rosalina Waluigi'],
    [{ kart: { $type: 'string' } }, 'Mario'],
    [{ skills: { $type: 'array' } }, 'Daisy Link Mario Rosalina Waluigi'],
    [{ kart: { $type: 'object' } }, 'Rosalina'],
    [{ name: { $in: ['Link', 'Daisy'] } }, 'Daisy Link'],
    [{ $and: [{ series: 'Mario' }, { debut: { $lt: 1989 } }] }, 'Mario'],
    [{ name: { $nin: ['Link', 'Daisy'] } }, 'Mario Rosalina Waluigi'],
    [{ skills: { $all: ['spin', 'swim'] } }, 'Waluigi'],
    [{ skills: { $size: 0 } }, 'Daisy'],
    [{ $or: [{ series: 'Zelda' }, { debut: { $gt: 2000 } }] }, 'Link Rosalina'],
    [{ $nor: [{ series: 'Zelda' }, { debut: { $gt: 2000 } }] }, 'Daisy Mario Waluigi'],
    [{ $not: { series: 'Mario' } }, 'Link'],
    [{ series: { $not: { $eq: 'Mario' } } }, 'Link',
      { local: { refused: 'Error' }, why: 'A local PouchDB has $not only around selectors.' }],
    [{ debut: { $mod: [10, 6] } }, 'Link'],
    [{ name: { $regex: '^W' } }, 'Waluigi'],
    [{ skills: { $elemMatch: { $eq: 'spin' } } }, 'Rosalina Waluigi'],
  ]),
  {
    at: 'explain',
    data: [],
    call: indexed([{ fields: ['name', 'series'], ddoc: 'design-doc-name', name: 'index-name' }], async (db) => {
      const search = { selector: { name: 'Mario', series: 'mario' }, fields: ['_id', 'name'], sort: ['name'] };
      const explained = { ...await db.explain(search), dbname: 'NAME' };
      // CouchDB 3 has more members.
      const like = (value, model) => Object.fromEntries(Object.keys(model).map((name) => [name, value[name]]));
      return {
        ...like(explained, EXPLAINED),
        index: like(explained.index, EXPLAINED.index),
        opts: like(explained.opts, EXPLAINED.opts),
      };
    }),
    answer: EXPLAINED,
    server: { ...EXPLAINED, opts: { ...EXPLAINED.opts, r: 1 } },
    local: {
      ...EXPLAINED,
      selector: { name: { $eq: 'Mario' }, series: { $eq: 'mario' } },
      opts: { ...EXPLAINED.opts, skip: undefined, sort: [{ name: 'asc' }] },
    },
    why: 'Earlier versions have `r` as the bytes of "1". A local PouchDB shows the request in a form of its own.',
  },
  {
    at: 'getIndexes',
    data: [],
    call: indexed([{ fields: ['foo', 'bar'] }], listed),
    answer: [
      { ddoc: null, name: '_all_docs', type: 'special', def: ascending('_id') },
      { ddoc: '_design/NAME', name: 'NAME', type: 'json', def: ascending('foo', 'bar') },
    ],
  },
  {
    at: 'deleteIndex',
    data: [],
    call: async (db) => {
      await db.createIndex({ index: { fields: ['foo', 'bar'], ddoc: 'd', name: 'a' } });
      await db.createIndex({ index: { fields: ['foo'], ddoc: 'd', name: 'b' } });
      const first = await db.deleteIndex({ ddoc: '_design/d', name: 'a', type: 'json', def: ascending('foo', 'bar') });
      const left = await db.getIndexes();
      const second = await db.deleteIndex(left.indexes[1]);
      return [first, left.indexes[1].name, second, (await db.get('_design/d').catch((error) => error)).reason];
    },
    answer: [{ ok: true }, 'b', { ok: true }, 'deleted'],
  },
];

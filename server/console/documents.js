// The documents of a database, by id, by an index or by a view; and those in conflict.

import { TooLarge, get, query, recent, rightsIn, session, text, url } from './api.js';
import { conflictCount, conflictsOf } from './counts.js';
import { at, count, fill, h, link, many, note, pager, short, table } from './dom.js';
import { elements, loose, masked, members, object, pretty } from './json.js';
import { jsonTree } from './tree.js';

const PAGE = 25;

/** Numbers of documents that are read at once: fewer where they are large, and at last only their ids. */
const SIZES = [PAGE, 5, 1, 0];

/** The most letters of a document that are shown line by line in a list; of a longer one only the beginning is. */
const MOST_TEXT = 100_000;
const BEGINNING = 2_000;

const COLUMNS = 4;

/** The document by which a database is known as a vault of Obsidian LiveSync. */
const VAULT = 'obsydian_livesync_version';

/** What every page of a database begins with: its name and its parts. Reads its description and what the user may. */
export async function open(db, current, signal) {
  const isOwn = /(^|\/)_/.test(db);
  // Members of the server's own databases may not list them.
  const isHidden = isOwn && !session.isAdmin;
  const asked = Promise.all([
    get(url(db), { signal }),
    text('GET', url(db, '_security'), { signal }),
    // A database of the server's own is no vault, and its members may not list it.
    isOwn ? { rows: [] } : get(url(db, '_all_docs') + query({ keys: [VAULT] }), { signal }),
  ]);
  const [info, security, { rows: marks }] = await asked.catch((error) => {
    if (error.status === 404) recent.drop(db);
    throw error;
  });
  recent.add(db);
  const rights = rightsIn(JSON.parse(security));
  const isVault = marks.some(({ value }) => value && !value.deleted);
  const parts = [
    ['', 'Documents'],
    ['query', 'Query'],
    ['views', 'Views'],
    ['changes', 'Changes'],
    ['conflicts', 'Conflicts'],
    ...(isVault && rights.isAdmin ? [['vault', 'Vault']] : []),
    ['settings', 'Settings'],
  ];
  const inConflict = h('span');
  if (!isHidden)
    conflictsOf(db, info, signal)
      .then((found) => {
        if (found?.found)
          fill(inConflict, ', ', link(at('db', db, 'conflicts'), `${conflictCount(found)} in conflict`));
      })
      .catch(() => {});
  const to = (part) => (part ? at('db', db, part) : at('db', db));
  return {
    info,
    security,
    rights,
    isHidden,
    isVault,
    head: [
      h(
        'div',
        { class: 'head' },
        h('h1', null, db),
        h('p', { class: 'sum' }, `${many(info.doc_count, 'document')}, ${count(info.doc_del_count)} deleted`, inConflict),
      ),
      h(
        'nav',
        { class: 'tabs', 'aria-label': `Pages of ${db}` },
        parts.map(([part, name]) => link(to(part), name, { 'aria-current': part === current ? 'page' : null })),
      ),
    ],
  };
}

/** The design documents of a database, with their content. */
export async function designs(db, signal) {
  const { rows } = await get(url(db, '_design_docs') + query({ include_docs: true, limit: 200 }), { signal });
  return rows.map(({ doc }) => doc).filter(Boolean);
}

/** The address of a document's page. */
export const doc = (db, id, rev) => at('db', db, 'doc', id) + (rev ? `?rev=${encodeURIComponent(rev)}` : '');

/** A JSON value in a cell. */
const cell = (value) => (value === undefined ? '' : h('code', null, short(value, 60)));

/** Rows of documents with those members that most of them have. */
export function documentTable(label, db, rows, more = []) {
  const times = new Map();
  for (const { fields } of rows)
    for (const name of fields.keys()) if (!name.startsWith('_')) times.set(name, (times.get(name) ?? 0) + 1);
  const columns = [...times]
    .sort((one, other) => other[1] - one[1])
    .slice(0, COLUMNS)
    .map(([name]) => name);
  return table(
    label,
    ['Id', ...more, ...columns],
    rows.map(({ id, fields, extra = [] }) => [
      id === undefined
        ? ''
        : [
            link(doc(db, id), short(id, 50), { title: id }),
            fields.has('_conflicts') && [' ', h('span', { class: 'badge in-conflict' }, 'in conflict')],
          ],
      ...extra,
      ...columns.map((name) => cell(fields.get(name))),
    ]),
  );
}

/** Documents, one below the other. `shown` makes what is shown of each. */
const stacked = (db, rows, shown) =>
  h(
    'div',
    { class: 'stack' },
    rows.map((one) =>
      h('section', { class: 'panel' }, one.id !== undefined && h('h2', null, link(doc(db, one.id), one.id)), shown(one)),
    ),
  );

/** Texts of documents, one below the other. */
export const documentTexts = (db, rows) =>
  stacked(db, rows, ({ id, content }) =>
    h(
      'pre',
      { class: 'code', tabindex: '0', role: 'group', 'aria-label': id ?? 'A row' },
      content.length > MOST_TEXT ? short(content, BEGINNING) : pretty(content),
    ),
  );

/** A row of a listing, from its text. */
function row(db, text_) {
  const content = masked(db, text_);
  const found = members(content);
  const [id, key, value, body] = ['id', 'key', 'value', 'doc'].map((name) => found.get(name));
  return {
    id: textOf(id),
    key,
    value,
    content: body && body !== 'null' ? body : content,
    fields: body && body !== 'null' ? members(body) : new Map(),
  };
}

/** The rows of an answer's text. */
export const rowsOf = (content, name = 'rows') => elements(members(content).get(name) ?? '[]');

/** The text of a row's member that is a text itself; `undefined` without it. */
const textOf = (value) => (value === undefined || value === 'null' ? undefined : JSON.parse(value));

/** Reads as many documents at once as an answer that is not too large holds. */
async function fitting(read) {
  for (const size of SIZES) {
    try {
      return { ...(await read(size)), size };
    } catch (error) {
      if (!(error instanceof TooLarge) || size === SIZES.at(-1)) throw error;
    }
  }
  return null;
}

/** Where documents come from. Each reads a page: `{ rows, next }`, with the place of the next page. */
function sources(db, all, indexes, signal) {
  const listed = (path, more) => async (begin, place, size) => {
    const most = size || PAGE;
    const asked = { include_docs: size > 0, conflicts: size > 0 || undefined, limit: most + 1, ...more };
    if (begin) Object.assign(asked, { startkey: begin, endkey: `${begin}\ufff0` });
    if (place) Object.assign(asked, { startkey: place });
    const rows = rowsOf(await text('GET', url(db, ...path) + query(asked), { signal })).map((one) => row(db, one));
    const next = rows.length > most ? rows.pop() : null;
    return { rows, next: next?.id };
  };
  const view =
    (design, name) =>
    async (begin, place = {}, size = PAGE) => {
      // A key is sent as its text: JavaScript would round large numbers, and rows between would be missed.
      const most = size || PAGE;
      const from = begin ? { startkey: loose(begin) } : {};
      const asked = { include_docs: String(size > 0), reduce: 'false', limit: String(most + 1), ...from, ...place };
      const body = object(Object.entries(asked));
      const answer = rowsOf(await text('POST', url(db, design, '_view', name), { body, signal, reads: true }));
      const after = answer.length > most ? members(answer.pop()) : null;
      return {
        rows: answer.map((one) => row(db, one)),
        more: ['Key'],
        next: after && { startkey: after.get('key'), startkey_docid: after.get('id') },
      };
    };
  const index =
    ({ ddoc, name, def }) =>
    async (begin, place, size) => {
      const first = Object.keys(def.fields[0])[0];
      const asked = {
        use_index: [ddoc, name],
        sort: def.fields.slice(0, 1),
        limit: size || PAGE,
        fields: size ? undefined : ['_id'],
        bookmark: place,
      };
      // As text: JavaScript would round large numbers.
      const range = begin ? `{"$gte":${loose(begin)}}` : '{"$gt":null}';
      const body = object([
        ['selector', `{${JSON.stringify(first)}:${range}}`],
        ...members(JSON.stringify(asked)),
      ]);
      const answer = await text('POST', url(db, '_find'), { body, signal, reads: true });
      const found = rowsOf(answer, 'docs');
      const rows = found
        .map((one) => masked(db, one))
        .map((content) => ({
          id: textOf(members(content).get('_id')),
          content,
          fields: members(content),
        }));
      return {
        rows,
        next: found.length === (size || PAGE) ? JSON.parse(members(answer).get('bookmark') ?? 'null') : null,
      };
    };
  return [
    ['By id', listed(['_all_docs']), 'Ids that begin with'],
    ['Design documents', listed(['_design_docs'])],
    ...indexes
      .filter(({ type }) => type === 'json')
      .map((one) => [
        `Index ${one.name} (${one.def.fields.map((field) => Object.keys(field)[0]).join(', ')})`,
        index(one),
        'Values from',
      ]),
    ...all.flatMap((design) =>
      Object.keys(design.views ?? {})
        .filter(() => design.language !== 'query')
        .map((name) => [`View ${design._id.slice('_design/'.length)}/${name}`, view(design._id, name), 'Keys from']),
    ),
  ];
}

export async function page({ args: [db], signal }) {
  const opened = await open(db, '', signal);
  const [all, { indexes }] = await Promise.all([designs(db, signal), get(url(db, '_index'), { signal })]);
  const known = sources(db, all, indexes, signal);
  const source = h(
    'select',
    { 'aria-label': 'Which documents' },
    known.map(([name], at) => h('option', { value: at }, name)),
  );
  const begin = h('input', {
    type: 'search',
    placeholder: 'Ids that begin with…',
    'aria-label': 'Ids that begin with',
    spellcheck: 'false',
    autocapitalize: 'off',
  });
  const form = h(
    'select',
    { 'aria-label': 'Shown as' },
    h('option', { value: 'table' }, 'Table'),
    h('option', { value: 'tree' }, 'Tree'),
    h('option', { value: 'text' }, 'JSON'),
  );
  const list = h('div');
  const pages = pager(() => load());
  let shown = { rows: [] };

  const draw = () => {
    const { rows, next, more } = shown;
    const extra = more ? rows.map((one) => ({ ...one, extra: [cell(one.key)] })) : rows;
    fill(
      list,
      rows.length === 0
        ? h('p', { class: 'empty' }, begin.value && !begin.hidden ? 'Nothing is found from there.' : 'There are no documents here.')
        : form.value === 'table'
          ? documentTable(`Documents of ${db}`, db, extra, more)
          : form.value === 'tree'
            ? stacked(db, rows, ({ content }) => jsonTree(content))
            : documentTexts(db, rows),
      shown.size < PAGE &&
        h(
          'p',
          { class: 'hint' },
          `The documents are large, so ${['only their ids are', 'one is'][shown.size] ?? `${shown.size} are`} shown at once.`,
        ),
      pages.row(next),
    );
  };
  let wanted = 0;
  const load = async () => {
    const mine = (wanted += 1);
    const [, read, filter] = known[source.value];
    begin.hidden = !filter;
    begin.placeholder = `${filter}…`;
    begin.setAttribute('aria-label', filter ?? '');
    try {
      const found = await fitting((size) => read(filter ? begin.value : '', pages.place, size));
      // A later request may have been answered before this one.
      if (mine === wanted) {
        shown = found;
        draw();
      }
    } catch (error) {
      if (!signal.aborted) fill(list, note('bad', h('p', null, error.message)));
    }
  };
  const again = () => {
    pages.reset();
    return load();
  };
  source.addEventListener('change', () => {
    begin.value = '';
    return again();
  });
  begin.addEventListener('input', again);
  form.addEventListener('change', draw);
  await again();
  return [
    ...opened.head,
    h(
      'div',
      { class: 'row' },
      source,
      begin,
      form,
      h('span', { class: 'grow' }),
      link(at('db', db, 'new'), 'New document', { class: 'button main' }),
    ),
    list,
  ];
}

/** The documents with more than one live leaf. */
export async function conflicts({ args: [db], signal }) {
  const opened = await open(db, 'conflicts', signal);
  const list = h('div');
  const load = async (since) => {
    const {
      results,
      last_seq: last,
      more,
    } = await get(url(db, '_conflicts') + query({ limit: 100, since }), { signal });
    fill(
      list,
      table(
        'Conflicts',
        ['Document', ['Leaves', 'number'], 'Winner'],
        results.map(({ id, revs }) => [
          link(`${doc(db, id)}?conflict`, id),
          count(revs.length),
          h('code', null, revs[0]),
        ]),
        'No document has a conflict.',
      ),
      more && h('button', { type: 'button', onclick: () => load(last) }, 'Go on'),
    );
  };
  await load();
  return [
    ...opened.head,
    h(
      'p',
      { class: 'hint' },
      'A document in conflict was edited at two places at once. One leaf wins, the others wait for somebody to choose.',
    ),
    list,
  ];
}

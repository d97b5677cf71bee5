// Mango searches: an editor that completes fields, what a search reads, and an index for one that reads too much.

import { get, post, query, text, url } from './api.js';
import { button, count, editor, fill, h, many, note, panel, short, svg, toast } from './dom.js';
import { documentTable, documentTexts, open, rowsOf } from './documents.js';
import { masked, members, mistake, object } from './json.js';

/** Number of documents from which names of fields are taken, and how deep. */
const SAMPLE = 40;
const DEPTH = 3;

/** An index is proposed beside one of which this many times the found rows are read. */
const WASTED = 5;

/** Number of results that are shown at once. */
const MOST_ROWS = 200;

/** The names of fields, the most frequent first, from the first documents and the last ones. */
async function fieldsOf(db, signal) {
  const times = new Map();
  const walk = (value, path, depth) => {
    for (const [name, member] of Object.entries(value)) {
      if (depth === 0 && name.startsWith('_') && name !== '_id') continue;
      const dotted = [...path, name.replaceAll('.', '\\.')];
      times.set(dotted.join('.'), (times.get(dotted.join('.')) ?? 0) + 1);
      if (depth + 1 < DEPTH && member && typeof member === 'object' && !Array.isArray(member))
        walk(member, dotted, depth + 1);
    }
  };
  const pages = await Promise.all(
    [false, true].map((descending) =>
      get(url(db, '_all_docs') + query({ include_docs: true, limit: SAMPLE / 2, descending }), { signal }),
    ),
  );
  const seen = new Map(
    pages
      .flatMap(({ rows }) => rows)
      .filter(({ id, doc }) => doc && !id.startsWith('_design/'))
      .map(({ id, doc }) => [id, doc]),
  );
  for (const doc of seen.values()) walk(doc, [], 0);
  return [...times].sort((one, other) => other[1] - one[1]).map(([name]) => name);
}

const OPERATORS = [
  '$eq',
  '$gt',
  '$gte',
  '$lt',
  '$lte',
  '$ne',
  '$in',
  '$nin',
  '$exists',
  '$regex',
  '$beginsWith',
  '$and',
  '$or',
  '$not',
  '$elemMatch',
  '$all',
  '$size',
  '$type',
  '$mod',
  '$allMatch',
  '$nor',
];
const MEMBERS = ['selector', 'fields', 'sort', 'limit', 'skip', 'use_index', 'execution_stats', 'bookmark'];

/** Completes names inside of quotes: arrows choose, Enter takes, Escape closes. */
function completing(area, fields) {
  const list = h('ul', {
    class: 'completions',
    role: 'listbox',
    id: 'completions',
    'aria-label': 'Names',
    hidden: true,
  });
  Object.entries({ 'aria-autocomplete': 'list', 'aria-controls': 'completions', 'aria-haspopup': 'listbox' }).forEach(
    ([name, value]) => area.setAttribute(name, value),
  );
  let [found, chosen, begun] = [[], 0, 0];
  const close = () => {
    list.hidden = true;
    area.removeAttribute('aria-activedescendant');
  };
  const mark = () => {
    [...list.children].forEach((item, at) => item.setAttribute('aria-selected', String(at === chosen)));
    area.setAttribute('aria-activedescendant', `completion${chosen}`);
    list.children[chosen]?.scrollIntoView({ block: 'nearest' });
  };
  const take = (name) => {
    const end = area.selectionStart;
    const closes = area.value[end] === '"';
    area.setRangeText(name + (closes ? '' : '"'), begun, end, 'end');
    if (closes) area.selectionStart = area.selectionEnd = begun + name.length + 1;
    close();
    area.dispatchEvent(new Event('input'));
    close();
    area.focus();
  };
  const look = () => {
    const before = area.value.slice(0, area.selectionStart);
    const open_ = /"([^"\\\n]*)$/.exec(before);
    // An odd number of quotes: the caret is inside of a string.
    const isInside = open_ && before.match(/"/g).length % 2 === 1;
    if (!isInside) return close();
    const word = open_[1];
    begun = area.selectionStart - word.length;
    const pool = word.startsWith('$') ? OPERATORS : [...fields(), ...MEMBERS];
    found = [...new Set(pool)].filter((name) => name.startsWith(word) && name !== word).slice(0, 8);
    if (!found.length) return close();
    chosen = 0;
    fill(
      list,
      found.map((name, at) =>
        h(
          'li',
          {
            role: 'option',
            id: `completion${at}`,
            onmousedown: (event) => {
              event.preventDefault();
              take(name);
            },
          },
          name,
        ),
      ),
    );
    list.hidden = false;
    return mark();
  };
  area.addEventListener('input', look);
  area.addEventListener('blur', close);
  area.addEventListener('keydown', (event) => {
    if (list.hidden || event.ctrlKey || event.metaKey) return;
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      chosen = (chosen + (event.key === 'ArrowDown' ? 1 : found.length - 1)) % found.length;
      mark();
    } else if (event.key === 'Enter') take(found[chosen]);
    else if (event.key === 'Escape') close();
    else return;
    event.preventDefault();
  });
  return list;
}

/**
 * The fields that an index for this search should have: those with one value, those it sorts by, those with a range.
 */
export function proposed({ selector, selector_hints: hints }, sort = []) {
  const usable = new Set(hints?.[0]?.indexable_fields ?? []);
  const [equal, others] = [new Set(), new Set()];
  const walk = (part) => {
    for (const [name, value] of Object.entries(part)) {
      if (name === '$and') value.forEach(walk);
      else if (usable.has(name)) (value && typeof value === 'object' && !('$eq' in value) ? others : equal).add(name);
    }
  };
  walk(selector);
  const sorted = sort.map((one) => (typeof one === 'string' ? one : Object.keys(one)[0]));
  return [...new Set([...equal, ...sorted.filter((name) => name !== '_id'), ...others])]
    .filter((name) => name !== '_id')
    .slice(0, 5);
}

/** Width of the picture, and of what stands beside a range for its bound to be there too. */
const WIDTH = 600;
const BESIDE = 190;

/** A bound of a range as text; empty if the range is open there. */
function bound(values) {
  const all = [values ?? []].flat().filter((value) => value !== '<MAX>' && value !== '');
  // An index has no row without a value of its first field, so null is its beginning.
  if (all.length === 0 || (all.length === 1 && all[0] === null)) return '';
  return short(all.map((value) => JSON.stringify(value)).join(', '), 24);
}

/** Where a range lies in what it is read of, and its bounds. It is as long as its part; its place is not measured. */
function rangeOf({ start_key: start, end_key: end, direction } = {}, part) {
  const [low, high] = (direction === 'rev' ? [end, start] : [start, end]).map(bound);
  const width = Math.max(part * WIDTH, part > 0 ? 3 : 0);
  const x = low === '' ? 0 : high === '' ? WIDTH - width : (WIDTH - width) / 2;
  return { low, high, x, width };
}

/** The bounds of a range, beside it where there is room, else below its ends. */
function bounds({ low, high, x, width }, y) {
  const text_ = (value, at_, anchor) => value && svg('text', { x: at_, y, 'text-anchor': anchor, class: 'key' }, value);
  if (low === high) return text_(low, x + width / 2, 'middle');
  return [
    x >= BESIDE ? text_(low, x - 4, 'end') : text_(low, x, 'start'),
    WIDTH - x - width >= BESIDE ? text_(high, x + width + 4, 'start') : text_(high, x + width, 'end'),
  ];
}

/** A picture of what a search reads: all documents, the range that is read of the index, and what is found. */
function picture(explained, total, stats, found) {
  const isScan = explained.index?.type === 'special';
  const read = Math.max(stats.total_keys_examined || 0, stats.total_docs_examined || 0);
  const most = Math.max(total, read, found, 1);
  const range = rangeOf(explained.mrargs, read / most);
  const isOpen = range.low === '' && range.high === '';
  const isWhole = isScan && isOpen;
  const fields = explained.index?.def?.fields?.map((field) => Object.keys(field)[0]).join(', ') ?? '';
  const row = (y, kind, number, name, x = 0) => [
    svg('rect', { x: 0, y, width: WIDTH, height: 22, rx: 4, class: 'rest' }),
    svg('rect', { x, y, width: Math.max((number / most) * WIDTH, number ? 3 : 0), height: 22, rx: 4, class: kind }),
    svg('text', { x: 8, y: y + 15, class: 'over' }, `${count(number)} ${name}`),
  ];
  // Without bounds there is nothing between the second bar and the third.
  const last = isOpen ? 72 : 92;
  const span = isOpen
    ? ''
    : range.low === range.high
      ? `, at ${range.low}`
      : `, from ${range.low || 'the beginning'} to ${range.high || 'the end'}`;
  return h(
    'figure',
    { class: 'picture' },
    svg(
      'svg',
      {
        viewBox: `0 0 ${WIDTH} ${last + 32}`,
        role: 'img',
        'aria-label': `Of ${many(total, 'document')} ${count(read)} rows were read${span}, and ${many(found, 'document')} found`,
      },
      row(0, 'all', total, 'in the database'),
      row(36, isWhole ? 'bad' : 'read', read, isScan ? 'documents read, by id' : 'rows of the index read', range.x),
      bounds(range, 76),
      row(last, 'found', found, 'found'),
    ),
    h(
      'figcaption',
      null,
      isScan
        ? isWhole
          ? read >= total
            ? 'No index fits, so every document is read'
            : 'No index fits, so documents are read one by one until enough are found'
          : 'Documents are read by their ids'
        : [
            'Index ',
            h('code', null, explained.index.name),
            ` on ${fields}`,
            explained.mrargs?.direction === 'rev' ? ', from its end' : '',
            explained.covering ? '; the documents themselves are not read' : '',
          ],
      !isOpen && h('span', { class: 'range' }, `. The range is read${span.replace(/^,/, '')}`),
      '.',
    ),
  );
}

export async function page({ args: [db], signal }) {
  const opened = await open(db, 'query', signal);
  let fields = [];
  fieldsOf(db, signal)
    .then((found) => {
      fields = found;
    })
    .catch(() => {});
  const said = h('p', { class: 'hint', role: 'status' });
  const area = editor('{\n  "selector": {\n    "_id": {"$gt": null}\n  },\n  "limit": 25\n}', {
    label: 'The search as JSON',
    rows: 10,
    run: () => go.click(),
    oninput: () => {
      said.textContent = mistake(area.value) ?? '';
      said.classList.add('wrong');
    },
  });
  const list = completing(area, () => fields);
  const plan = h('div');
  const results = h('div');
  const form = h(
    'select',
    { 'aria-label': 'Shown as' },
    h('option', { value: 'table' }, 'Table'),
    h('option', { value: 'text' }, 'JSON'),
  );

  const propose = (explained, sort, read = 0, found = 0) => {
    const wanted = proposed(explained, sort);
    const isScan = explained.index === null || explained.index.type === 'special';
    const has = new Set((explained.index?.def?.fields ?? []).flatMap((field) => Object.keys(field)));
    // An index that leaves much to be read and thrown away.
    const isPoor = read > WASTED * (found + 1) && wanted.some((name) => !has.has(name));
    if (!(isScan || isPoor) || wanted.length === 0) return null;
    return note(
      'warn',
      h(
        'p',
        null,
        h('b', null, 'An index would help. '),
        'With one on ',
        h('code', null, wanted.join(', ')),
        isScan ? ' this search reads only what it may find.' : ' this search reads fewer rows that it does not find.',
      ),
      opened.rights.isAdmin
        ? button('Create this index', async () => {
            await post(url(db, '_index'), { index: { fields: wanted }, type: 'json' });
            toast('The index is created.');
            await search();
          })
        : h('p', null, 'Ask an administrator of the database for it.'),
    );
  };
  let [shown, following, most] = [[], null, MOST_ROWS];
  const show = () => {
    const rows = shown.slice(0, most);
    const left = shown.length - rows.length;
    fill(
      results,
      shown.length === 0
        ? h('p', { class: 'empty' }, 'No document matches.')
        : form.value === 'table'
          ? documentTable('Results', db, rows)
          : documentTexts(db, rows),
      left > 0 &&
        button(`Show more: ${count(left)} are left`, () => {
          most += MOST_ROWS;
          show();
        }),
      following && h('div', { class: 'row pager' }, following),
    );
  };
  const search = async (bookmark) => {
    const wrong = mistake(area.value);
    if (wrong) {
      said.textContent = wrong;
      said.classList.add('wrong');
      area.focus();
      return;
    }
    // As text, since JavaScript would round large numbers.
    const members_ = members(area.value).set('execution_stats', 'true');
    if (bookmark) members_.set('bookmark', JSON.stringify(bookmark));
    const body = object(members_);
    const asked = JSON.parse(body);
    try {
      const explained = JSON.parse(await text('POST', url(db, '_explain'), { body, signal, reads: true }));
      if (explained.index === null) {
        // The search itself would be refused.
        fill(results);
        fill(
          plan,
          panel(
            'What the search read',
            h('p', null, 'Nothing: it asks for an order that no index has.'),
            propose(explained, asked.sort),
          ),
        );
        return;
      }
      const answer = await text('POST', url(db, '_find'), { body, signal, reads: true });
      // A search that cannot find anything has neither.
      const { bookmark: next, execution_stats: stats = {}, warning } = JSON.parse(answer);
      most = MOST_ROWS;
      shown = rowsOf(answer, 'docs')
        .map((one) => masked(db, one))
        .map((content) => ({ content, fields: members(content) }))
        .map((one) => ({ ...one, id: one.fields.has('_id') ? JSON.parse(one.fields.get('_id')) : undefined }));
      fill(
        plan,
        panel(
          'What the search read',
          picture(explained, opened.info.doc_count, stats, shown.length),
          propose(explained, asked.sort, stats.total_keys_examined || stats.total_docs_examined || 0, shown.length),
          warning && explained.index?.type !== 'special' && note('warn', h('p', null, warning)),
          h('p', { class: 'hint' }, `It took ${(stats.execution_time_ms ?? 0).toFixed(1)} ms.`),
        ),
      );
      const hasMore = next && next !== 'nil' && shown.length === (asked.limit ?? 25);
      following = hasMore ? button('Next page', () => search(next)) : null;
      show();
    } catch (error) {
      if (signal.aborted) return;
      plan.replaceChildren();
      fill(results, note('bad', h('p', null, error.message)));
    }
  };
  const go = button('Run', () => search(), { class: 'main', title: 'Ctrl+Enter' });
  form.addEventListener('change', show);
  return [
    ...opened.head,
    panel(
      'Search',
      h('div', { class: 'completing' }, area, list),
      said,
      h('p', { class: 'hint' }, 'Type a quote, and names of fields are offered. Ctrl+Enter runs the search.'),
      h('div', { class: 'row end' }, form, go),
    ),
    plan,
    results,
  ];
}

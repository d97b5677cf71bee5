// Views: their functions, and queries of them.

import { get, text, url } from './api.js';
import { button, count, editor, field, fill, form, guard, h, link, many, note, panel, short, table } from './dom.js';
import { designs, doc, open, rowsOf } from './documents.js';
import { loose, masked, members, mistake, object } from './json.js';
import { trial } from './trial.js';

const TEMPLATE = {
  _id: '_design/example',
  language: 'javascript',
  views: { by_type: { map: 'function (doc) {\n  emit(doc.type, 1);\n}', reduce: '_count' } },
};

/**
 * The documents that functions failed on: those that this view leaves out, as its answer says, and those of all views
 * of its design document.
 */
function failures(db, design, leftOut = [], known = []) {
  const all = new Map([
    ...known.map(({ id, reason }) => [id, reason]),
    ...leftOut.map(({ from, reason }) => [from, reason]),
  ]);
  if (all.size === 0) return null;
  return [
    note(
      'warn',
      h(
        'p',
        null,
        h('b', null, `The functions of ${design} failed on ${many(all.size, 'document')}. `),
        'These documents have no row, or too few.',
      ),
    ),
    table(
      'Documents that functions failed on',
      ['Document', 'Error'],
      [...all].map(([id, reason]) => [id?.includes('/_view/') ? id : link(doc(db, id), id), reason]),
    ),
  ];
}

/** What a query answers. */
function result(db, design, content, known) {
  const { total_rows: total, errors } = JSON.parse(content);
  const rows = rowsOf(content).map((one) => members(masked(db, one)));
  const id = (row) => (row.has('id') && row.get('id') !== 'null' ? JSON.parse(row.get('id')) : undefined);
  const hasIds = rows.some((row) => id(row) !== undefined);
  const code = (value) => h('code', null, short(value ?? '', 300));
  return [
    failures(db, design, errors, known),
    h(
      'p',
      { class: 'hint' },
      total === undefined ? `${count(rows.length)} rows.` : `${count(rows.length)} of ${count(total)} rows.`,
    ),
    table(
      'Rows',
      [...(hasIds ? ['Document'] : []), 'Key', 'Value', ...(rows.some((row) => row.has('doc')) ? ['Content'] : [])],
      rows.map((row) => [
        ...(hasIds ? [id(row) === undefined ? '' : link(doc(db, id(row)), id(row))] : []),
        code(row.get('key')),
        row.has('error')
          ? h('span', { class: 'badge bad' }, JSON.parse(row.get('reason') ?? row.get('error')))
          : code(row.get('value')),
        ...(row.has('doc') ? [code(row.get('doc'))] : []),
      ]),
      'The view has no such row.',
    ),
  ];
}

export async function page({ args: [db], signal }) {
  const opened = await open(db, 'views', signal);
  const all = (await designs(db, signal)).filter(({ language, views }) => language !== 'query' && views);
  const known = all.flatMap((design) =>
    Object.entries(design.views).map(([name, view]) => ({ design: design._id, name, ...view })),
  );
  const create =
    opened.rights.isAdmin &&
    button('New view', async () => {
      fill(
        making,
        panel(
          'New design document',
          h('p', { class: 'hint' }, 'Try it before you save: that stores nothing. Saving compiles the functions.'),
          area,
          trial(db, area, signal),
          h('div', { class: 'row end' }, store),
        ),
      );
      area.focus();
    });
  const making = h('div');
  let stored = JSON.stringify(TEMPLATE, null, 2);
  guard(() => area.value !== stored);
  const area = editor(stored, {
    label: 'The design document as JSON',
    rows: 14,
    run: () => store.click(),
  });
  const store = button(
    'Save',
    async () => {
      const sent = area.value;
      const wrong = mistake(sent);
      if (wrong) throw new Error(wrong);
      const id = JSON.parse(members(sent).get('_id') ?? 'null');
      if (!/^_design\/./s.test(id)) throw new Error('The _id of a design document begins with _design/.');
      await text('PUT', url(db, id), { body: sent });
      stored = sent;
      location.hash = doc(db, id);
    },
    { class: 'main' },
  );
  const top = [...opened.head, h('div', { class: 'row' }, h('span', { class: 'grow' }), create), making];
  if (known.length === 0)
    return [...top, h('p', { class: 'empty' }, 'The database has no views. Their functions are in design documents.')];

  const which = h(
    'select',
    null,
    known.map(({ design, name }, at) => h('option', { value: at }, `${design.slice('_design/'.length)}/${name}`)),
  );
  const source = h('div');
  const value = (hint) =>
    h('input', { placeholder: hint, spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off' });
  const [key, start, end, level] = [value('"a" or ["a", 1]'), value('"a"'), value('"b"'), value('1')];
  const limit = h('input', { type: 'number', value: 50, min: 1, max: 1000 });
  const [reduce, group, descending, docs] = ['reduce', 'group', 'descending', 'docs'].map(() =>
    h('input', { type: 'checkbox' }),
  );
  const box = (input, name) => h('label', { class: 'check' }, input, ` ${name}`);
  const results = h('div', { 'aria-live': 'polite' });
  const reducing = h(
    'div',
    { class: 'row' },
    box(reduce, 'Reduce'),
    box(group, 'Group by key'),
    field('Group level', level),
  );

  const show = () => {
    const { design, map, reduce: made } = known[which.value];
    fill(
      source,
      h(
        'details',
        null,
        h('summary', null, 'Its functions'),
        h('pre', { class: 'code', tabindex: '0', role: 'region', 'aria-label': 'The map function' }, map),
        made && h('pre', { class: 'code', tabindex: '0', role: 'region', 'aria-label': 'The reduce function' }, made),
        h('p', null, link(doc(db, design), `In ${design}`)),
      ),
    );
    reducing.hidden = !made;
    reduce.checked = false;
  };
  which.addEventListener('change', show);
  show();
  const run = async () => {
    const { design, name, reduce: made } = known[which.value];
    // Texts of JSON, so that keys have the digits that were typed.
    const asked = new Map([['limit', String(limit.valueAsNumber || 50)]]);
    if (made) asked.set('reduce', String(reduce.checked));
    for (const [member, input] of [
      ['key', key],
      ['startkey', start],
      ['endkey', end],
    ])
      if (input.value.trim()) asked.set(member, loose(input.value.trim()));
    if (descending.checked) asked.set('descending', 'true');
    if (made && reduce.checked) {
      if (level.value.trim()) asked.set('group_level', loose(level.value.trim()));
      else if (group.checked) asked.set('group', 'true');
    } else if (docs.checked) asked.set('include_docs', 'true');
    try {
      const answer = await text('POST', url(db, design, '_view', name), { body: object(asked), signal, reads: true });
      // It is known when the view is up to date.
      const { view_index: index } = await get(url(db, design, '_info'), { signal });
      fill(results, result(db, design, answer, index.errors));
    } catch (error) {
      if (!signal.aborted) fill(results, note('bad', h('p', null, error.message)));
    }
  };
  return [
    ...top,
    form(
      { class: 'panel' },
      run,
      h('div', { class: 'row' }, field('View', which)),
      source,
      h(
        'div',
        { class: 'grid' },
        field('Key', key),
        field('First key', start),
        field('Last key', end),
        field('Rows', limit),
      ),
      reducing,
      h(
        'div',
        { class: 'row' },
        box(descending, 'Backwards'),
        box(docs, 'With documents'),
        h('span', { class: 'grow' }),
        h('button', { type: 'submit', class: 'main' }, 'Run'),
      ),
    ),
    results,
  ];
}

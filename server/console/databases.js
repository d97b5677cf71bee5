// All databases: what is in them, how fast they change; to create one and open one.

import { get, put, query, recent, session, url } from './api.js';
import { conflictCell, paceCell } from './counts.js';
import { at, count, dialog, field, fill, form, h, link, note, pager, repeat, size, svg, table, toast } from './dom.js';

const PAGE = 100;

/** A bar as long as the part that a value is of the most. */
const bar = (value, most) =>
  svg(
    'svg',
    { class: 'bar', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    svg('rect', { width: 100, height: 6, class: 'rest' }),
    svg('rect', { width: Math.max((value / Math.max(most, 1)) * 100, value ? 1 : 0), height: 6, class: 'part' }),
  );

/** A sequence, short: what differs between two of them is near the end of its time. */
export const shortSeq = (seq) =>
  String(seq).replace(/^(\d+)-0*([0-9a-f]{6,}?)0{0,8}$/, (_, number, rest) => `${number}-…${rest.slice(-8)}`);

async function create() {
  const name = await dialog('Create a database', (close) => {
    const input = h('input', {
      required: true,
      pattern: '[a-z][a-z0-9_$\\(\\)+\\/\\-]*',
      title: 'a letter first, then a-z 0-9 _ $ ( ) + - /',
      autocomplete: 'off',
      spellcheck: 'false',
      autocapitalize: 'off',
      autofocus: true,
    });
    const parts = h('input', { type: 'checkbox' });
    return form(
      null,
      async () => {
        await put(url(input.value) + query({ partitioned: parts.checked || undefined }));
        close(input.value);
      },
      field('Name', input, 'A small letter first, then small letters, digits and _ $ ( ) + - /'),
      h('label', { class: 'check' }, parts, ' Partitioned: each id begins with the name of its partition and a colon'),
      h(
        'div',
        { class: 'row end' },
        h('button', { type: 'button', onclick: () => close() }, 'Cancel'),
        h('button', { type: 'submit', class: 'main' }, 'Create'),
      ),
    );
  });
  if (name) location.hash = at('db', name);
}

/** For whoever may not list databases: opens one by its name. */
function open() {
  const name = h('input', {
    required: true,
    autocomplete: 'off',
    spellcheck: 'false',
    autocapitalize: 'off',
    autofocus: true,
  });
  const known = recent.all();
  return [
    h('h1', null, 'Databases'),
    session.name
      ? h('p', null, 'The list of all databases is for server administrators. Open one by its name.')
      : h('p', null, 'Open a database that everybody may read, or ', link('#/signin', 'sign in'), '.'),
    form(
      { class: 'panel' },
      () => {
        location.hash = at('db', name.value);
      },
      h(
        'div',
        { class: 'row' },
        field('Name of the database', name),
        h('button', { type: 'submit', class: 'main' }, 'Open'),
      ),
    ),
    known.length > 0 &&
      h(
        'section',
        { class: 'panel' },
        h('h2', null, 'Opened before'),
        h(
          'ul',
          { class: 'plain' },
          known.map((one) => h('li', null, link(at('db', one), one))),
        ),
      ),
  ];
}

export async function page({ signal }) {
  if (!session.isAdmin) return open();
  const seen = new Map();
  const list = h('div');
  const filter = h('input', {
    type: 'search',
    placeholder: 'Names that begin with…',
    'aria-label': 'Names that begin with',
    spellcheck: 'false',
    autocapitalize: 'off',
  });
  const system = h('input', { type: 'checkbox' });
  const pages = pager(() => load());
  let turn = 0;

  const load = async () => {
    const begin = filter.value.trim();
    const asked = query({
      limit: PAGE + 1,
      startkey: pages.place ?? (begin || undefined),
      endkey: begin ? `${begin}\ufff0` : undefined,
    });
    const rows = (await get(url('_dbs_info') + asked, { signal })).filter(({ info }) => info);
    const next = rows.length > PAGE ? rows.pop() : null;
    const shown = rows.filter(({ key }) => system.checked || !key.startsWith('_'));
    const most = Math.max(...shown.map(({ info }) => info.sizes.active), 1);
    const conflicts = shown.map(({ key, info }) => conflictCell(key, info, signal));
    const paces = shown.map(({ key, info }) => paceCell(key, info, seen, signal));
    const cells = shown.map(({ key, info }, place) => [
      link(at('db', key), key),
      h('span', { class: 'measure' }, size(info.sizes.active), bar(info.sizes.active, most)),
      count(info.doc_count),
      count(info.doc_del_count),
      conflicts[place].element,
      h('code', { title: info.update_seq, class: 'tight' }, shortSeq(info.update_seq)),
      paces[place].element,
    ]);
    fill(
      list,
      table(
        'Databases',
        [
          'Name',
          'Size',
          ['Documents', 'number'],
          ['Deleted', 'number'],
          ['In conflict', 'number'],
          'Update sequence',
          'Edits while you look',
        ],
        cells,
        begin ? 'No database has such a name.' : 'There is no database yet. Create the first one.',
      ),
      pages.row(next?.key),
    );
    // One after the other, the quick ones first. A later list reads its own.
    const mine = (turn += 1);
    (async () => {
      for (const { read } of [...paces, ...conflicts]) if (mine === turn && !signal.aborted) await read();
    })().catch((error) => {
      // Dropped meanwhile: the next list lacks it.
      if (!signal.aborted && error.status !== 404) toast(error.message, true);
    });
  };
  const again = () => {
    pages.reset();
    load();
  };
  filter.addEventListener('input', again);
  system.addEventListener('change', again);
  await load();
  repeat(10_000, signal, async () => {
    if (!list.contains(document.activeElement)) await load();
  });
  return [
    h(
      'div',
      { class: 'head' },
      h('h1', null, 'Databases'),
      h('button', { type: 'button', class: 'main', onclick: create }, 'Create a database'),
    ),
    session.isOpenAdmin &&
      note(
        'warn',
        h(
          'p',
          null,
          'This server has no administrator: everybody on its machine may read and write everything. ',
          link('#/signin', 'Name one'),
          '.',
        ),
      ),
    h('div', { class: 'row' }, filter, h('label', { class: 'check' }, system, ' The server’s own')),
    list,
  ];
}

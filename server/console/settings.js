// The settings of a database: who may use it, its limits, its space, and dropping it.

import { get, post, put, query, recent, remove, session, text, url } from './api.js';
import {
  button,
  confirmed,
  count,
  facts,
  field,
  fill,
  form,
  guard,
  h,
  note,
  panel,
  setting,
  size,
  svg,
  toast,
} from './dom.js';
import { editsOf, total } from './counts.js';
import { open } from './documents.js';
import { elements, members, object, pretty } from './json.js';
import { purging } from './purge.js';

/** The most design documents whose indexes are measured. */
const MOST_DESIGNS = 50;

/** Milliseconds of an hour. */
const HOUR = 3_600_000;

/** What takes the space, as bars. `rows`: the views and indexes of each design document. */
function space({ file, active, external }, rows) {
  const most = Math.max(file ?? 0, active, external, 1);
  const row = (name, bytes, hint) =>
    bytes !== undefined &&
    bytes !== null &&
    h(
      'div',
      { class: 'space' },
      h('span', null, name),
      svg(
        'svg',
        { class: 'bar', viewBox: '0 0 100 6', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
        svg('rect', { width: 100, height: 6, class: 'rest' }),
        svg('rect', { width: (bytes / most) * 100, height: 6, class: 'part' }),
      ),
      h('b', null, size(bytes)),
      h('small', null, hint),
    );
  return [
    row('On disk', file, 'with what was replaced and is not given back yet'),
    row('In use', active, 'documents, attachments and indexes'),
    row('As JSON', external, 'what the documents would take as text'),
    rows.map(([name, bytes]) => row(name, bytes, 'views and indexes of this design document, in use')),
  ];
}

/** The rows of views and indexes, by their design documents: they are in use too. */
async function indexes(db, signal) {
  const { rows } = await get(url(db, '_design_docs') + query({ limit: MOST_DESIGNS }), { signal });
  const sizes = await Promise.all(
    rows.map(({ id }) =>
      get(url(db, id, '_info'), { signal }).then(
        ({ view_index: index }) => [id.slice('_design/'.length), index.sizes.active],
        (error) => {
          // One without views, or one that was deleted meanwhile.
          if (error.status !== 404) throw error;
          return null;
        },
      ),
    ),
  );
  return sizes.filter((one) => one && one[1] > 0).sort((one, other) => other[1] - one[1]);
}

/** The edits of a database by the time when they were made, as bars. Those of the last days lie in bins of three hours. */
function history(bins) {
  // All of them in one bar would say nothing.
  if (bins.length < 2) return null;
  const [width, height, now] = [600, 60, Date.now()];
  const times = bins.map(([time]) => Date.parse(time));
  const first = Math.min(times[0], now - 3 * HOUR);
  const x = (time) => (Math.max(time - first, 0) / (now - first)) * width;
  const rates = bins.map(([, edits], at) => edits / Math.max((times[at + 1] ?? now) - times[at], HOUR));
  const most = Math.max(...rates);
  const [number, since] = [count(total(bins)), new Date(times[0]).toLocaleString()];
  return h(
    'figure',
    { class: 'chart' },
    h('figcaption', null, `Edits since ${since}`, h('b', null, number)),
    svg(
      'svg',
      {
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: 'none',
        role: 'img',
        'aria-label': `${number} edits since ${since}`,
      },
      bins.map(([time, edits], at) =>
        svg(
          'rect',
          {
            class: 'part',
            x: x(times[at]),
            width: Math.max(x(times[at + 1] ?? now) - x(times[at]) - 1, 2),
            y: height - Math.max((rates[at] / most) * height, 2),
            height: Math.max((rates[at] / most) * height, 2),
          },
          svg('title', null, `${new Date(time).toLocaleString()}: about ${count(edits)} edits`),
        ),
      ),
    ),
  );
}

/**
 * Edits a JSON list of texts, one a line. `read()` gives the list's text, which is the one that it began with if
 * nothing was typed. A list that lines cannot show is not edited.
 */
export function lines(list, props) {
  const found = elements(list).map((one) => JSON.parse(one));
  const isPlain = found.every((one) => typeof one === 'string' && one !== '' && !/[\r\n]/.test(one));
  const shown = isPlain ? found.join('\n') : pretty(list);
  const area = h('textarea', {
    value: shown,
    rows: Math.min(Math.max(shown.split('\n').length + 1, 3), 12),
    spellcheck: 'false',
    autocapitalize: 'off',
    autocomplete: 'off',
    ...props,
    readonly: props?.readonly || !isPlain,
  });
  const read = () => (area.value === shown ? list : JSON.stringify(area.value.split('\n').filter(Boolean)));
  return { area, read };
}

/** Who may use the database, by its security object's text. Members that this form does not know stay. */
function security(db, shown, isAdmin, reload) {
  const object_ = members(shown);
  const group = (kind) => {
    const text_ = object_.get(kind);
    return text_?.startsWith('{') ? members(text_) : new Map();
  };
  const listOf = (kind, of) => {
    const text_ = group(kind).get(of);
    return text_?.startsWith('[') ? text_ : '[]';
  };
  const part = (kind, of) => lines(listOf(kind, of), { readonly: !isAdmin });
  const inputs = {
    admins: { names: part('admins', 'names'), roles: part('admins', 'roles') },
    members: { names: part('members', 'names'), roles: part('members', 'roles') },
  };
  guard(() =>
    ['admins', 'members'].some((kind) => ['names', 'roles'].some((of) => inputs[kind][of].read() !== listOf(kind, of))),
  );
  const isEmpty = (list) => elements(list).length === 0;
  const isOpen = ['names', 'roles'].every((of) => isEmpty(listOf('members', of)));
  const differs = h('div');
  const set = (kind, title, hint) =>
    h(
      'fieldset',
      null,
      h('legend', null, title),
      h('p', { class: 'hint' }, hint),
      h(
        'div',
        { class: 'grid' },
        field('Names', inputs[kind].names.area, 'One a line'),
        field('Roles', inputs[kind].roles.area, 'One a line'),
      ),
    );
  const version = (title, text_) =>
    h(
      'div',
      null,
      h('h3', null, title),
      h('pre', { class: 'code', tabindex: '0', role: 'region', 'aria-label': title }, pretty(text_)),
    );
  const store = async () => {
    const next = new Map(object_);
    for (const kind of ['admins', 'members']) {
      const groups = group(kind);
      for (const of of ['names', 'roles']) {
        const list = inputs[kind][of].read();
        if (list !== listOf(kind, of)) groups.set(of, list);
      }
      if (groups.size) next.set(kind, object(groups));
    }
    const opens = ['names', 'roles'].every((of) => isEmpty(inputs.members[of].read()));
    if (
      opens &&
      !isOpen &&
      !(await confirmed('Open the database', `Without a member everybody may read and write ${db}.`, 'Open it'))
    )
      return;
    // It has no revision, so the server would not notice that somebody else stored one meanwhile.
    const now = await text('GET', url(db, '_security'));
    if (pretty(now) !== pretty(shown)) {
      fill(
        differs,
        note('bad', h('p', null, 'Somebody stored another version since this page was opened. Nothing was stored.')),
        h('div', { class: 'grid' }, version('Yours', object(next)), version('Stored now', now)),
        h('div', { class: 'row end' }, button('Begin with what is stored now', reload)),
      );
      return;
    }
    await put(url(db, '_security'), object(next));
    toast('Stored.');
    await reload();
  };
  return panel(
    'Who may use it',
    isOpen && note('warn', h('p', null, 'No member is named, so everybody may read and write.')),
    form(
      null,
      store,
      set('members', 'Members', 'They read and write documents. Nobody here: everybody does.'),
      set('admins', 'Administrators of the database', 'They also write design documents and change these settings.'),
      differs,
      isAdmin && h('div', { class: 'row end' }, h('button', { type: 'submit', class: 'main' }, 'Save')),
    ),
  );
}

/** Sets the quota of a database, or removes it. */
async function setQuota(db, value) {
  const address = url('_node', '_local', '_config', 'quotas', db);
  if (value) await put(address, JSON.stringify(value));
  else
    await remove(address).catch((error) => {
      if (error.status !== 404) throw error;
    });
}

function upkeep(db) {
  const found = h('div', { 'aria-live': 'polite' });
  return panel(
    'Upkeep',
    h('p', { class: 'hint' }, 'The server gives space back by itself. These ask for it at once.'),
    h(
      'div',
      { class: 'row' },
      button('Compact', async () => {
        await post(url(db, '_compact'));
        toast('The server compacts the database.');
      }),
      button('Clean up views', async () => {
        await post(url(db, '_view_cleanup'));
        toast('Rows of views that are gone are removed.');
      }),
      button('Check', async () => {
        found.replaceChildren(
          h(
            'pre',
            { class: 'code', tabindex: '0', role: 'region', 'aria-label': 'Result of the check' },
            pretty(await text('GET', url(db, '_couch_layer', 'check'))),
          ),
        );
      }),
    ),
    found,
  );
}

export async function page({ args: [db], signal, reload }) {
  const { info, security: shown, rights, isHidden, isVault, head } = await open(db, 'settings', signal);
  const [rows, edits, limit, replaced, infosLimit, autoPurge] = await Promise.all([
    isHidden ? [] : indexes(db, signal),
    isHidden ? [] : editsOf(db, signal),
    get(url(db, '_revs_limit'), { signal }),
    get(url(db, '_keep_replaced'), { signal }),
    session.isAdmin && get(url(db, '_purged_infos_limit'), { signal }),
    session.isAdmin && get(url(db, '_auto_purge'), { signal }),
  ]);
  const drop = button(
    'Drop this database',
    async () => {
      if (
        !(await confirmed(
          'Drop a database',
          `${db} and its ${count(info.doc_count)} documents are deleted. Only a backup brings them back.`,
          'Drop it',
          db,
        ))
      )
        return;
      await remove(url(db));
      recent.drop(db);
      toast(`${db} is dropped.`);
      location.hash = '#/';
    },
    { class: 'danger' },
  );
  return [
    ...head,
    panel(
      'Space',
      ...space(info.sizes, rows),
      facts(
        ['Documents', count(info.doc_count)],
        ['Deleted', count(info.doc_del_count)],
        ['Edits', count(total(edits))],
        ['Update sequence', h('code', null, String(info.update_seq).slice(0, 40))],
        info.props?.partitioned && ['Partitioned', 'yes'],
      ),
      history(edits),
    ),
    security(db, shown, rights.isAdmin && !session.isOpenAdmin, reload),
    panel(
      'Limits',
      setting(
        'Revisions of a document that are remembered',
        'Older ones are forgotten: a copy that was away for longer makes a conflict.',
        h('input', { type: 'number', min: 1, value: limit }),
        rights.isAdmin,
        (value) => put(url(db, '_revs_limit'), Number(value)),
      ),
      setting(
        'Bodies of replaced revisions that are kept',
        'A number of revisions, or a time such as 30d. 0: a body goes with the edit that replaces it.',
        h('input', { value: replaced, autocomplete: 'off' }),
        rights.isAdmin,
        (value) => put(url(db, '_keep_replaced'), /^\d+$/.test(value) ? Number(value) : JSON.stringify(value)),
      ),
      session.isAdmin &&
        !session.isOpenAdmin &&
        setting(
          'Quota in bytes',
          'From this size on, documents are refused. A number, or one with a unit such as 10GB. Empty: there is no quota.',
          h('input', { value: info.sizes.quota ?? '', autocomplete: 'off' }),
          true,
          (value) => setQuota(db, value.trim()),
        ),
    ),
    rights.isAdmin && upkeep(db),
    session.isAdmin && purging({ db, infosLimit, autoPurge, isVault }),
    session.isAdmin && panel('Drop', h('p', null, 'All documents, attachments and indexes are deleted.'), drop),
  ];
}

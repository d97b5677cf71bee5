// Replications: those that run, those of documents in _replicator, and how each is going.

import { ROOT, exists, get, put, query, remove, url } from './api.js';
import { button, confirmed, count, dialog, facts, field, fill, form, h, link, repeat, table, toast } from './dom.js';
import { doc } from './documents.js';

const DATABASE = '_replicator';

/** A side of a replication without its password; one of this server by its name alone. */
function side(value) {
  const place = (typeof value === 'string' ? value : (value?.url ?? '')).replace(/\/\/[^/]*@/, '//').replace(/\/$/, '');
  if (!place.startsWith(ROOT.href)) return place;
  const name = place.slice(ROOT.href.length);
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/**
 * A side as the form says it. A database here, by its name, needs no password: the replication has its owner's rights.
 */
const sideOf = (place, name, password) =>
  /^https?:\/\//.test(place) && name ? { url: place, auth: { basic: { username: name, password } } } : place;

async function begin() {
  const input = (hint, props) =>
    h('input', { placeholder: hint, spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', ...props });
  const sides = ['Source', 'Target'].map((name) => ({
    name,
    place: input('https://server/database, or a database here', { required: true, autofocus: name === 'Source' }),
    user: input(''),
    password: input('', { type: 'password', autocomplete: 'new-password' }),
  }));
  const [continuous, create] = [h('input', { type: 'checkbox' }), h('input', { type: 'checkbox' })];
  const id = input('A name, or nothing');
  return dialog('Begin a replication', (close) =>
    form(
      { class: 'wide' },
      async () => {
        const [source, target] = sides.map(({ place, user, password }) =>
          sideOf(place.value.trim(), user.value, password.value),
        );
        if (!(await exists(DATABASE))) await put(url(DATABASE));
        const name =
          id.value.trim() ||
          `${new Date().toISOString().slice(0, 19).replaceAll(':', '-')}-${Math.random().toString(36).slice(2, 6)}`;
        await put(url(DATABASE, name), {
          source,
          target,
          continuous: continuous.checked,
          create_target: create.checked,
        });
        toast('The replication is stored, and begins.');
        close(true);
      },
      sides.map(({ name, place, user, password }) =>
        h(
          'fieldset',
          null,
          h('legend', null, name),
          field('Database', place),
          h(
            'div',
            { class: 'grid' },
            field('User', user),
            field(
              'Password',
              password,
              'For another server. It is kept in the document, which only administrators read.',
            ),
          ),
        ),
      ),
      h(
        'div',
        { class: 'row' },
        h('label', { class: 'check' }, continuous, ' Continuously'),
        h('label', { class: 'check' }, create, ' Create the target'),
      ),
      field('Name of the document', id),
      h(
        'div',
        { class: 'row end' },
        h('button', { type: 'button', onclick: () => close() }, 'Cancel'),
        h('button', { type: 'submit', class: 'main' }, 'Begin'),
      ),
    ),
  );
}

const BADGES = { running: 'winner', completed: '', failed: 'bad', crashing: 'bad', error: 'bad' };

function details(entry, job) {
  const info = entry.info ?? {};
  return dialog(entry.doc_id ?? entry.id, (close) => [
    facts(
      ['State', entry.state],
      ['From', side(entry.source)],
      ['To', side(entry.target)],
      ['Begun', entry.start_time],
      ['Last news', entry.last_updated],
      entry.error_count > 0 && ['Failures', count(entry.error_count)],
      ...Object.entries(info)
        .filter(([, value]) => typeof value !== 'object')
        .map(([name, value]) => [name.replaceAll('_', ' '), String(value)]),
    ),
    job?.history?.length > 0 &&
      table(
        'What happened',
        ['When', 'What', 'Why'],
        job.history.map(({ timestamp, type, reason }) => [timestamp, type, reason ?? '']),
      ),
    h('div', { class: 'row end' }, h('button', { type: 'button', autofocus: true, onclick: () => close() }, 'Close')),
  ]);
}

export async function page({ signal }) {
  const list = h('div');
  const previous = new Map();
  const load = async () => {
    const [{ jobs }, docs] = await Promise.all([
      get(url('_scheduler', 'jobs') + query({ limit: 200 }), { signal }),
      exists(DATABASE).then((is) =>
        is ? get(url('_scheduler', 'docs') + query({ limit: 200 }), { signal }) : { docs: [] },
      ),
    ]);
    const ofDocs = new Set(docs.docs.map(({ id }) => id).filter(Boolean));
    const all = [
      ...docs.docs,
      ...jobs
        .filter(({ id }) => !ofDocs.has(id))
        .map((job) => ({ ...job, state: job.history?.[0]?.type ?? 'running' })),
    ];
    const now = Date.now();
    const rowOf = (entry) => {
      const info = entry.info ?? {};
      const key = `${entry.database}/${entry.doc_id ?? entry.id}`;
      const before = previous.get(key);
      const rate =
        before && info.docs_written !== undefined
          ? ((info.docs_written - before.written) * 1000) / (now - before.at)
          : 0;
      if (info.docs_written !== undefined) previous.set(key, { written: info.docs_written, at: now });
      const job = jobs.find(({ id }) => id === entry.id);
      return [
        entry.doc_id
          ? link(doc(entry.database ?? DATABASE, entry.doc_id), entry.doc_id)
          : h('code', null, (entry.id ?? '').slice(0, 12)),
        h('span', { class: `badge ${BADGES[entry.state] ?? ''}` }, entry.state),
        h('span', { class: 'way' }, side(entry.source), ' → ', side(entry.target)),
        count(info.docs_written ?? 0),
        rate > 0 ? `${rate.toFixed(1)}/s` : '',
        info.changes_pending === undefined || info.changes_pending === null ? '' : count(info.changes_pending),
        info.error
          ? h('span', { class: 'wrong' }, info.error)
          : info.doc_write_failures > 0
            ? h('span', { class: 'wrong' }, `${count(info.doc_write_failures)} documents were refused`)
            : '',
        h(
          'div',
          { class: 'row tight' },
          button('Details', () => details(entry, job), {
            class: 'small',
            'aria-label': `Details of ${entry.doc_id ?? entry.id}`,
          }),
          entry.doc_id &&
            button(
              entry.state === 'completed' ? 'Remove' : 'Stop',
              async () => {
                if (
                  !(await confirmed(
                    'Stop a replication',
                    `The document ${entry.doc_id} is deleted, which ends its replication. What was copied stays.`,
                    'Stop it',
                  ))
                )
                  return;
                const { _rev: rev } = await get(url(entry.database ?? DATABASE, entry.doc_id));
                await remove(url(entry.database ?? DATABASE, entry.doc_id) + query({ rev }));
                await load();
              },
              { class: 'small', 'aria-label': `Stop ${entry.doc_id}` },
            ),
        ),
      ];
    };
    // A document of which this page makes nothing hides no other one.
    const rows = all.map((entry) => {
      try {
        return rowOf(entry);
      } catch (error) {
        return [String(entry.doc_id ?? entry.id), '', '', '', '', '', h('span', { class: 'wrong' }, error.message), ''];
      }
    });
    fill(
      list,
      table(
        'Replications',
        [
          'Document',
          'State',
          'From and to',
          ['Written', 'number'],
          ['Rate', 'number'],
          ['Left', 'number'],
          'Last error',
          '',
        ],
        rows,
        'There are no replications.',
      ),
    );
  };
  await load();
  repeat(3_000, signal, async () => {
    if (!list.contains(document.activeElement)) await load();
  });
  return [
    h(
      'div',
      { class: 'head' },
      h('h1', null, 'Replications'),
      button(
        'Begin a replication',
        async () => {
          if (await begin()) await load();
        },
        { class: 'main' },
      ),
    ),
    h(
      'p',
      { class: 'hint' },
      'A replication copies what its target lacks. It runs on this server, and goes on after a restart.',
    ),
    list,
  ];
}

// The changes of a database, live.

import { get, json, query, url } from './api.js';
import { mistake } from './json.js';
import { button, editor, field, fill, h, link, note, pause, table } from './dom.js';
import { shortSeq } from './databases.js';
import { designs, doc, open } from './documents.js';

/** Most rows that are shown; older ones go. */
const MOST = 200;

/** Time in milliseconds that the server waits for a change before it answers. */
const PATIENCE = 50_000;

export async function page({ args: [db], signal }) {
  const opened = await open(db, 'changes', signal);
  const known = await designs(db, signal);
  const functions = known.flatMap((design) =>
    Object.keys(design.filters ?? {}).map((name) => `${design._id.slice('_design/'.length)}/${name}`),
  );
  const kind = h(
    'select',
    null,
    h('option', { value: '' }, 'All changes'),
    h('option', { value: '_design' }, 'Design documents'),
    h('option', { value: '_doc_ids' }, 'These ids'),
    h('option', { value: '_selector' }, 'Those that match a selector'),
    functions.map((name) => h('option', { value: name }, `Filter ${name}`)),
  );
  const ids = h('textarea', { rows: 3, spellcheck: 'false', autocapitalize: 'off' });
  const selector = editor('{\n  "type": "post"\n}', { label: 'Selector', rows: 4, run: () => begin() });
  const idField = field('Ids, one a line', ids);
  const selectorField = h('div', null, selector);
  const state = h('span', { role: 'status' });
  const list = h('div');
  let [rows, since, running] = [[], opened.info.update_seq, null];

  // What is followed: the filter as it was when it was applied, whatever is typed later.
  let [applied, hasBegun] = [{}, false];
  const chosen = () => {
    const filter = kind.value || undefined;
    if (filter === '_doc_ids') {
      const all = ids.value.split('\n').filter(Boolean);
      return { filter, body: JSON.stringify({ doc_ids: all }) };
    }
    if (filter !== '_selector') return { filter };
    const wrong = mistake(selector.value);
    if (wrong) throw new Error(wrong);
    // As text, since JavaScript would round large numbers.
    return { filter, body: `{"selector":${selector.value}}` };
  };
  const request = (more, stop) => {
    const { filter, body } = applied;
    const asked = query({ style: 'all_docs', filter, ...more });
    return body
      ? json('POST', url(db, '_changes') + asked, { body, signal: stop, reads: true })
      : get(url(db, '_changes') + asked, { signal: stop });
  };
  const draw = () =>
    fill(
      list,
      table(
        `Changes of ${db}`,
        ['Sequence', 'Document', 'Leaves', 'State'],
        rows.map(({ seq, id, changes, deleted }) => [
          h('code', { title: seq, class: 'tight' }, shortSeq(seq)),
          link(doc(db, id), id),
          h('code', null, changes.map(({ rev }) => rev.slice(0, 10)).join(' ')),
          deleted ? h('span', { class: 'badge deleted' }, 'deleted') : '',
        ]),
        'Nothing has changed.',
      ),
    );
  const add = (found) => {
    const ids_ = new Set(found.map(({ seq }) => seq));
    rows = [...found, ...rows.filter(({ seq }) => !ids_.has(seq))].slice(0, MOST);
    draw();
  };
  const say = (text, isLive) => {
    state.textContent = text;
    state.className = isLive ? 'live' : '';
  };

  const follow = async (stop) => {
    let failures = 0;
    while (!stop.aborted) {
      try {
        const { results, last_seq: last } = await request(
          { feed: 'longpoll', since, limit: 100, timeout: PATIENCE },
          stop,
        );
        if (stop.aborted) return;
        since = last;
        failures = 0;
        say('Live', true);
        if (results.length) add(results.reverse());
      } catch (error) {
        if (stop.aborted) return;
        if (error.status && error.status < 500) {
          say('Stopped', false);
          fill(list, note('bad', h('p', null, error.message)));
          hold();
          return;
        }
        say('The server cannot be reached; trying again', false);
        await pause(Math.min(30_000, 1_000 * 2 ** (failures += 1)), stop).catch(() => {});
      }
    }
  };
  /** Ends what runs, and begins anew: a signal that ends with the page, with a pause, or with the next beginning. */
  const start = () => {
    running?.abort(new DOMException('begun again', 'AbortError'));
    running = new AbortController();
    pauses.textContent = 'Pause';
    say('Live', true);
    return AbortSignal.any([signal, running.signal]);
  };
  const hold = () => {
    running?.abort(new DOMException('paused', 'AbortError'));
    running = null;
    pauses.textContent = 'Resume';
    if (state.textContent !== 'Stopped') say('Paused: what changes meanwhile is shown when you resume', false);
  };
  const pauses = button('Pause', () => {
    if (running) hold();
    else if (hasBegun) follow(start());
    else return begin();
    return null;
  });

  /** Shows the last changes, then those to come. */
  const begin = async () => {
    const stop = start();
    hasBegun = false;
    try {
      applied = chosen();
      const { update_seq: seq } = await get(url(db), { signal: stop });
      const { results } = await request({ descending: true, limit: 50 }, stop);
      if (stop.aborted) return;
      [since, rows, hasBegun] = [seq, [], true];
      add(results);
      follow(stop);
    } catch (error) {
      if (!stop.aborted) {
        fill(list, note('bad', h('p', null, error.message)));
        hold();
      }
    }
  };
  const apply = button('Apply', begin);
  const choose = () => {
    idField.hidden = kind.value !== '_doc_ids';
    selectorField.hidden = kind.value !== '_selector';
    apply.hidden = idField.hidden && selectorField.hidden;
    if (apply.hidden) begin();
  };
  kind.addEventListener('change', choose);
  choose();
  return [
    ...opened.head,
    h('div', { class: 'row' }, field('Filter', kind), h('span', { class: 'grow' }), state, pauses),
    idField,
    selectorField,
    h('div', { class: 'row' }, apply),
    list,
  ];
}

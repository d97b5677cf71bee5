// The changes of a database, live.

import { get, json, query, url } from './api.js';
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
  const ids = h('input', { placeholder: 'one, two', spellcheck: 'false', autocapitalize: 'off' });
  const selector = editor('{\n  "type": "post"\n}', { label: 'Selector', rows: 4, run: () => begin() });
  const idField = field('Ids, separated by commas', ids);
  const selectorField = h('div', null, selector);
  const state = h('span', { role: 'status' });
  const list = h('div');
  let [rows, since, running] = [[], opened.info.update_seq, null];

  const request = (more, stop) => {
    const body = {
      _doc_ids: () => ({
        doc_ids: ids.value
          .split(',')
          .map((id) => id.trim())
          .filter(Boolean),
      }),
      _selector: () => ({ selector: JSON.parse(selector.value) }),
    }[kind.value]?.();
    const asked = query({ style: 'all_docs', filter: kind.value || undefined, ...more });
    return body
      ? json('POST', url(db, '_changes') + asked, { body, signal: stop })
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
  const go = () => {
    running = new AbortController();
    signal.addEventListener('abort', () => running?.abort(signal.reason), { once: true });
    pauses.textContent = 'Pause';
    say('Live', true);
    follow(running.signal);
  };
  const hold = () => {
    running?.abort(new DOMException('paused', 'AbortError'));
    running = null;
    pauses.textContent = 'Resume';
    if (state.textContent !== 'Stopped') say('Paused: what changes meanwhile is shown when you resume', false);
  };
  const pauses = button('Pause', () => (running ? hold() : go()));

  /** Shows the last changes, then those to come. */
  const begin = async () => {
    running?.abort(new DOMException('begun again', 'AbortError'));
    try {
      since = (await get(url(db), { signal })).update_seq;
      rows = [];
      const { results } = await request({ descending: true, limit: 50 }, signal);
      add(results);
      go();
    } catch (error) {
      if (!signal.aborted) {
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

// A view tried on some documents before its design document is stored.

import { post, url } from './api.js';
import { button, count, field, fill, h, link, many, note, short, table } from './dom.js';
import { doc } from './documents.js';
import { mistake } from './json.js';

/** Numbers of documents to try. */
const SAMPLES = [50, 200, 500];

/** The most letters of a key or of a value. */
const MOST = 300;

const code = (value) => h('code', null, short(JSON.stringify(value) ?? '', MOST));

/** A reduction, or why there is none. */
const reduction = ({ value, error, reason }) =>
  error ? h('span', { class: 'wrong' }, `${error}: ${reason}`) : code(value);

function result(db, found, seconds) {
  const { documents, more, total_rows: total, rows, errors, reduced, rereduced } = found;
  const divides = rereduced && JSON.stringify(reduced) !== JSON.stringify(rereduced);
  return [
    h(
      'p',
      { role: 'status' },
      `Tried on ${more ? 'the ' : 'all '}${many(documents, 'document')}${more ? ' that changed last' : ''}: `,
      `${many(total, 'row')}, ${many(errors.length, 'error')}, ${seconds.toFixed(1)} s. Nothing is stored.`,
    ),
    reduced && h('p', null, 'Reduced: ', reduction(reduced)),
    divides &&
      note(
        'bad',
        h('p', null, h('b', null, 'The reduce function depends on how rows are divided. '), 'In two halves it makes:'),
        h('p', null, reduction(rereduced)),
      ),
    errors.length > 0 &&
      table(
        'Documents that the function failed on',
        ['Document', 'Error'],
        errors.map(({ id, reason }) => [link(doc(db, id), id), h('span', { class: 'wrong' }, reason)]),
      ),
    table(
      'Rows of the trial',
      ['Document', 'Key', 'Value'],
      rows.map(({ id, key, value }) => [link(doc(db, id), id), code(key), code(value)]),
      'The function emits nothing for these documents.',
    ),
    rows.length < total && h('p', { class: 'hint' }, `The first ${count(rows.length)} rows.`),
  ];
}

/** What tries the views of the design document in `area`, as it is typed now. */
export function trial(db, area, signal) {
  const which = h('select');
  const sample = h(
    'select',
    null,
    SAMPLES.map((one) => h('option', { value: one }, count(one))),
  );
  const place = h('div', { class: 'stack' });
  /** The names of the views, which change while somebody types. */
  const look = () => {
    if (mistake(area.value)) return [];
    const { views } = JSON.parse(area.value);
    const names = Object.entries(views ?? {})
      .filter(([name, view]) => name !== 'lib' && typeof view?.map === 'string')
      .map(([name]) => name);
    const before = which.value;
    fill(
      which,
      names.map((name) => h('option', { value: name, selected: name === before }, name)),
    );
    return names;
  };
  const run = async () => {
    const wrong = mistake(area.value);
    if (wrong) throw new Error(wrong);
    if (look().length === 0) throw new Error('The design document has no view with a map function.');
    const begun = performance.now();
    // As text, since the functions get numbers as they are written.
    const body = `{"design":${area.value},"view":${JSON.stringify(which.value)},"documents":${sample.value}}`;
    try {
      const found = await post(url(db, '_couch_layer', 'try_view'), body, { signal, reads: true });
      fill(place, result(db, found, (performance.now() - begun) / 1000));
    } catch (error) {
      if (!signal.aborted) fill(place, note('bad', h('p', null, error.message)));
    }
  };
  area.addEventListener('input', look);
  look();
  return h(
    'div',
    { class: 'trial' },
    h(
      'div',
      { class: 'row' },
      field('View to try', which),
      field('Documents', sample),
      h('span', { class: 'grow' }),
      button('Try it', run),
    ),
    place,
  );
}

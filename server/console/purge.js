// Purges: of old tombstones, after a dry run, and of named leaves.

import { get, post, put, query, url } from './api.js';
import { button, confirmed, count, editor, field, fill, h, link, many, panel, setting, toast } from './dom.js';
import { doc } from './documents.js';

/** Changes that are read at once, documents that are purged at once, and the most that are found. */
const CHANGES = 1_000;
const AT_ONCE = 100;
const MOST = 10_000;

/** Beginnings of ids of chunks. */
const OF_VAULTS = ['h:', 'idx:', 'dat:'];

/** Ids that are shown of those that are found. */
const SHOWN = 20;

/**
 * Documents that were deleted before a time span such as `90d`: `{ found, more }`, with the leaves of each. The server
 * knows times of changes, and a change whose time it does not know counts as new.
 *
 * The feed is read up to the first change since then, or else up to its end. If that change is not met, its document
 * changed meanwhile, and what is old is not known any more.
 */
async function deletedBefore(db, span, signal) {
  // Also a vault whose mark is gone: its devices may be away for long.
  for (const begin of OF_VAULTS) {
    const range = { startkey: begin, endkey: begin.replace(':', ';'), limit: 1 };
    const { rows } = await get(url(db, '_all_docs') + query(range), { signal });
    if (rows.length) throw new Error('The database has chunks of a vault. Its tombstones are not purged.');
  }
  const changes = (asked) => get(url(db, '_changes') + query({ style: 'all_docs', ...asked }), { signal });
  // Before the other request, so that nothing newer counts as old.
  const { results: last } = await changes({ descending: true, limit: 1 });
  const { results: later } = await changes({ since: `-${span}`, limit: 1 });
  const [end, isIncluded] = later.length ? [later[0].seq, false] : [last[0]?.seq, true];
  const found = [];
  for (let since = '0'; end !== undefined;) {
    const { results, last_seq: reached } = await changes({ since, limit: CHANGES });
    for (const { seq, id, deleted, changes: leaves } of results) {
      if (seq === end && !isIncluded) return { found, more: false };
      if (deleted) found.push([id, leaves.map(({ rev }) => rev)]);
      if (seq === end) return { found, more: false };
      if (found.length === MOST) return { found, more: true };
    }
    if (results.length === 0) throw new Error('The database changed while it was read. Nothing is purged. Try again.');
    since = reached;
  }
  return { found, more: false };
}

/** A dry run, and then the purge of what it found. */
function oldTombstones(db, signal) {
  const span = h('input', {
    value: '90d',
    required: true,
    pattern: '[0-9]+[smhdw]',
    title: 'a number and s, m, h, d or w',
    autocomplete: 'off',
  });
  const place = h('div', { class: 'stack', 'aria-live': 'polite' });
  const purge = async (found) => {
    const text = `${many(found.length, 'document')} and their tombstones are removed. Copies that still have them may bring them back.`;
    if (!(await confirmed('Purge old tombstones', text, 'Purge', db))) return;
    let purged = 0;
    for (let from = 0; from < found.length; from += AT_ONCE) {
      const answer = await post(url(db, '_purge'), Object.fromEntries(found.slice(from, from + AT_ONCE)));
      purged += Object.values(answer.purged).filter((revs) => revs.length).length;
    }
    toast(`Purged: ${many(purged, 'document')}.`);
    fill(place);
  };
  const look = button('Find them', async () => {
    if (!span.reportValidity()) return;
    fill(place);
    const { found, more } = await deletedBefore(db, span.value, signal);
    fill(
      place,
      h('p', null, `${more ? 'More than ' : ''}${many(found.length, 'deleted document')}. Nothing is purged yet.`),
      found.length > 0 &&
        h(
          'details',
          null,
          h('summary', null, 'Which'),
          h(
            'ul',
            null,
            found.slice(0, SHOWN).map(([id]) => h('li', null, link(doc(db, id), id))),
            found.length > SHOWN && h('li', null, `and ${count(found.length - SHOWN)} more`),
          ),
        ),
      found.length > 0 &&
        h(
          'div',
          { class: 'row' },
          button(`Purge ${many(found.length, 'document')}`, () => purge(found), { class: 'danger' }),
        ),
    );
  });
  return h(
    'details',
    null,
    h('summary', null, 'Purge old tombstones'),
    h('div', { class: 'row' }, field('Deleted longer ago than', span), look),
    place,
  );
}

export function purging({ db, infosLimit, autoPurge, isVault, signal }) {
  const ttl = h('input', {
    value: autoPurge.deleted_document_ttl ?? '',
    placeholder: '30_day',
    spellcheck: 'false',
    autocapitalize: 'off',
  });
  const days = h('input', { type: 'number', min: 1, value: infosLimit });
  const doomed = editor('{\n  "id": ["1-0123456789abcdef0123456789abcdef"]\n}', {
    label: 'Leaves to purge, as JSON',
    rows: 4,
  });
  return panel(
    'Purging',
    h(
      'p',
      { class: 'hint' },
      'A purge removes leaves without a trace, also in replications: another copy that still has them may bring them back.',
    ),
    setting(
      'Tombstones are kept for',
      'For example 30_day. The server purges older ones if couch_auto_purge_plugin is on in the configuration. Empty: they are kept.',
      ttl,
      true,
      (value) => put(url(db, '_auto_purge'), value ? { deleted_document_ttl: value } : {}),
    ),
    setting('Purges that are remembered', 'Replications and views need them.', days, true, (value) =>
      put(url(db, '_purged_infos_limit'), Number(value)),
    ),
    isVault
      ? h('p', { class: 'hint' }, 'Tombstones of a vault are not purged: a device that was away needs them.')
      : oldTombstones(db, signal),
    h(
      'details',
      null,
      h('summary', null, 'Purge leaves'),
      doomed,
      h(
        'div',
        { class: 'row end' },
        button(
          'Purge',
          async () => {
            const asked = JSON.parse(doomed.value);
            if (
              !(await confirmed(
                'Purge leaves',
                `${count(Object.keys(asked).length)} documents lose these leaves. Nothing brings them back.`,
                'Purge',
                db,
              ))
            )
              return;
            const { purged } = await post(url(db, '_purge'), doomed.value);
            toast(`Purged: ${Object.values(purged).flat().length} leaves.`);
          },
          { class: 'danger' },
        ),
      ),
    ),
  );
}

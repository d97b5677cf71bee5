// Purges: of old tombstones, after a dry run, and of named leaves.

import { post, put, url } from './api.js';
import { button, confirmed, count, editor, field, fill, h, many, note, panel, setting, toast } from './dom.js';

/** Asks the server for old tombstones, and then to purge them: a round at a time. */
function oldTombstones(db) {
  const span = h('input', {
    value: '90d',
    required: true,
    pattern: '[0-9]+[smhdw]',
    title: 'a number and s, m, h, d or w',
    autocomplete: 'off',
  });
  const place = h('div', { class: 'stack', 'aria-live': 'polite' });
  const ask = (older, dryRun) => post(url(db, '_couch_layer', 'purge_tombstones'), { older, dry_run: dryRun });
  // The time that was looked for, not one that was typed since.
  const purge = async (older, now) => {
    const text = `${many(now, 'document')} and their tombstones are removed. Copies that still have them may bring them back.`;
    if (!(await confirmed('Purge old tombstones', text, 'Purge', db))) return;
    const { purged, failed, left } = await ask(older, false);
    toast(`Purged: ${many(purged, 'document')}.`);
    fill(
      place,
      failed > 0 &&
        note('bad', h('p', null, `${many(failed, 'document')} could not be purged. The server's log says why.`)),
      left > 0 && h('p', null, `${many(left, 'document')} are left. Find them again, and purge the next ones.`),
    );
  };
  const look = button('Find them', async () => {
    if (!span.reportValidity()) return;
    fill(place);
    const older = span.value;
    const { old, most } = await ask(older, true);
    const now = Math.min(old, most);
    fill(
      place,
      h('p', null, `${many(old, 'deleted document')}. Nothing is purged yet.`),
      old > most &&
        h(
          'p',
          { class: 'hint' },
          `At most ${count(most)} are purged at once, so that views can follow: half of the purges that are remembered.`,
        ),
      old > 0 &&
        h(
          'div',
          { class: 'row' },
          button(`Purge ${many(now, 'document')}`, () => purge(older, now), { class: 'danger' }),
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

export function purging({ db, infosLimit, autoPurge, isVault }) {
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
      : oldTombstones(db),
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

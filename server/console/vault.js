// A vault of Obsidian LiveSync: what takes its space, what is missing, its devices, and what nobody needs any more.

import { get, url } from './api.js';
import { button, count, facts, fill, h, link, many, note, panel, size, table } from './dom.js';
import { doc, open } from './documents.js';

/** A time for people; `null` if a device has not said it, or says what is no time. */
function time(ms) {
  const date = new Date(Number(ms));
  return ms && !Number.isNaN(date.getTime()) ? date.toLocaleString() : null;
}

/** Things of which some are named: `{ count, named }`. */
const listed = (title, { count: all, named }, show) =>
  all > 0 &&
  h(
    'details',
    { open: all <= 5 },
    h('summary', null, `${title}: ${count(all)}`),
    h(
      'ul',
      null,
      named.map((one) => h('li', null, show(one))),
      all > named.length && h('li', null, `and ${count(all - named.length)} more`),
    ),
  );

/** Why something was not done. */
const held = (title, holds) =>
  holds?.length > 0 &&
  note(
    'warn',
    h('p', null, title),
    h(
      'ul',
      null,
      holds.map((hold) => h('li', null, hold)),
    ),
  );

const amount = (name, { count: all, bytes }, hint) => [name, count(all), size(bytes), hint];

function devices(milestone) {
  if (milestone.state === 'missing') return h('p', { class: 'empty' }, 'No device has left its name.');
  if (milestone.state === 'damaged') return note('bad', h('p', null, `The list of devices ${milestone.what}.`));
  const names = new Map(milestone.devices.map(({ id, name }) => [id, name || id]));
  const behind = (device) => {
    if (!device.progress_is_known) return 'what it has is unknown';
    if (device.changed_since === null) return 'not counted';
    const more = device.changed_since_is_more ? 'more than ' : '';
    return device.changed_since === 0 ? 'has everything' : `${more}${many(device.changed_since, 'document')} behind`;
  };
  return [
    h('p', null, milestone.locked ? 'The vault is locked: devices that are not accepted wait.' : 'The vault is open.'),
    table(
      'Devices',
      ['Device', 'Progress', 'Last connected', 'Plugin', 'Accepted'],
      milestone.devices.map((device) => [
        device.name || h('code', null, device.id),
        behind(device),
        time(device.last_connected) ?? 'unknown',
        device.plugin_version ?? '',
        device.accepted ? 'yes' : h('span', { class: 'badge bad' }, 'no'),
      ]),
      'No device has left its name.',
    ),
    milestone.differences.length > 0 && [
      h('h3', null, 'Settings that differ between devices'),
      table(
        'Settings that differ',
        ['Setting', 'Values', 'Must be the same'],
        milestone.differences.map(({ setting, values, must_match: must }) => [
          setting,
          Object.entries(values)
            .map(([id, value]) => `${names.get(id) ?? id}: ${JSON.stringify(value)}`)
            .join(', '),
          must ? 'yes' : 'no',
        ]),
      ),
    ],
  ];
}

/** What collections left, and what the server does by itself. */
function collection(db, { collect, trash }) {
  const last = collect?.last;
  const did = ({ condemned, deleted, emptied }) =>
    `${many(condemned, 'chunk')} condemned, ${count(deleted.count)} deleted` +
    (emptied?.count > 0 ? `, ${count(emptied.count)} left the trash for good` : '');
  const said = () => [last.collected && did(last.collected), last.error].filter(Boolean).join(', then: ');
  return [
    h(
      'p',
      null,
      collect
        ? `This server collects chunks every ${collect.every}, and deletes them ${collect.grace} after they were condemned.` +
            (collect.trash
              ? ` Their text leaves the trash ${collect.trash} after all devices have passed the deletion.`
              : ' Their text stays in the trash.')
        : 'This server does not collect chunks by itself.',
    ),
    held('The last run removed nothing:', last?.holds),
    facts(
      ['Condemned', many(trash.condemned, 'chunk')],
      ['In the trash', `${many(trash.deleted.count, 'chunk')}, ${size(trash.deleted.bytes)}`],
      last?.collected?.passed > 0 && ['Passed by all devices', many(last.collected.passed, 'chunk')],
      trash.changed && ['Last condemned or deleted', time(trash.changed)],
      last && ['Last run', `${time(last.at)}: ${said()}`],
      last?.collected?.waits_for && ['The trash waits for', last.collected.waits_for],
    ),
    trash.deleted.count > 0 && held('Nothing leaves the trash:', last?.trash_holds),
    trash.not_revived + trash.unreadable > 0 &&
      note(
        'bad',
        h(
          'p',
          null,
          `${many(trash.not_revived, 'chunk')} that a file needs could not be brought back, and `,
          `${many(trash.unreadable, 'row')} of the trash cannot be read. A check of the database says why.`,
        ),
      ),
    h(
      'p',
      { class: 'hint' },
      'A file that names such a chunk takes it off the list, or brings it back. ',
      h('code', null, `couch-layer vault collect ${db} --dry-run`),
      ' lists the chunks that no file needs, and what stands in the way; with ',
      h('code', null, '--every 1d'),
      ' the server removes them each day.',
    ),
  ];
}

function report(db, found) {
  const { files, chunks, missing, tombstones } = found;
  const broken = missing.files.count + chunks.damaged.count;
  return [
    panel(
      'What to do',
      note(
        broken ? 'bad' : 'good',
        h(
          'p',
          null,
          broken
            ? `Files that lack chunks: ${count(missing.files.count)}. Damaged documents: ${count(chunks.damaged.count)}.`
            : 'Every file has all of its chunks.',
        ),
      ),
      h(
        'ul',
        null,
        found.advice.map((one) => h('li', null, one)),
      ),
      listed('Files that lack chunks', missing.files, ({ file, missing: lacks }) => `${file}: ${many(lacks, 'chunk')}`),
      listed('Damaged documents', chunks.damaged, (id) => link(doc(db, id), id)),
      listed('Files in conflict', files.conflicts, (file) => file),
      listed('Lists of chunks that cannot be read', files.unread, ({ file, what }) => `${file}: ${what}`),
    ),
    panel(
      'Space',
      table(
        'Space of the vault',
        ['What', ['Number', 'number'], ['Size', 'number'], ''],
        [
          amount('Chunks that files need', chunks.referenced, ''),
          chunks.unreferenced
            ? amount('Chunks that no file needs', chunks.unreferenced, 'what a collection would remove')
            : ['Chunks that no file needs', 'unknown', '', 'a list of chunks is encrypted, or cannot be read'],
          chunks.aggregated.count > 0 && amount('Aggregated chunks', chunks.aggregated, ''),
          amount('Files', { count: files.count + files.of_livesync + files.marked_deleted, bytes: files.bytes }, ''),
          amount('Other documents', found.other_documents, ''),
        ].filter(Boolean),
      ),
      facts(
        ['Files', `${count(files.count)}, ${count(files.of_livesync)} hidden or customizations`],
        ['Marked as deleted', count(files.marked_deleted)],
        ['Tombstones of chunks', count(tombstones.chunks)],
        ['Revisions of files', count(files.revisions)],
        files.longest_history && [
          'Longest history',
          `${files.longest_history.file}: ${many(files.longest_history.revisions, 'revision')}`,
        ],
        ['Encrypted chunks', count(chunks.encrypted)],
      ),
    ),
    panel('Collection', collection(db, found)),
    panel('Devices', devices(found.milestone)),
  ];
}

export async function page({ args: [db], signal }) {
  const opened = await open(db, 'vault', signal);
  if (!opened.rights.isAdmin)
    return [...opened.head, note('warn', h('p', null, 'A vault is examined by administrators of its database.'))];
  const place = h('div', { class: 'stack', 'aria-live': 'polite' });
  const examine = button(
    'Examine the vault',
    async () => {
      fill(place, h('p', { class: 'empty' }, 'The whole vault is read. This may take a while.'));
      try {
        const found = await get(url(db, '_couch_layer', 'vault'), { signal });
        fill(place, report(db, found));
      } catch (error) {
        if (!signal.aborted) fill(place, note('bad', h('p', null, error.message)));
      }
    },
    { class: 'main' },
  );
  return [
    ...opened.head,
    panel(
      'Examine',
      h(
        'p',
        null,
        'What takes the space of this Obsidian LiveSync vault, what is missing, and which devices are behind.',
      ),
      h('p', { class: 'hint' }, 'It reads the whole vault and changes nothing. It has no passphrase.'),
      h('div', { class: 'row' }, examine),
    ),
    place,
  ];
}

// Backups: how far the store is shipped, what is in the folder of a backup and whether it is whole, and the next one.

import { get, kept, post, url } from './api.js';
import { button, count, facts, field, fill, form, h, many, note, panel, repeat, size, table, toast } from './dom.js';

/** Time between two looks, in milliseconds. */
const EVERY = 3_000;

/** The name in `kept` of the folder and of the file with its passphrase. */
const PLACE = 'backups';

const time = (ms) => (ms ? new Date(ms).toLocaleString() : 'never');

/** A time that has passed, in words. */
function ago(ms) {
  if (ms < 1_000) return 'less than a second';
  const [unit, name] = [
    [86_400_000, 'day'],
    [3_600_000, 'hour'],
    [60_000, 'minute'],
    [1_000, 'second'],
  ].find(([one]) => ms >= one);
  return many(Math.floor(ms / unit), name);
}

const problems = (all, number = all.length) =>
  all.length > 0 && [
    h(
      'ul',
      null,
      all.map(({ file, reason }) => h('li', { class: 'wrong' }, h('code', null, file), `: ${reason}`)),
      number > all.length && h('li', null, `and ${count(number - all.length)} more`),
    ),
  ];

const SHIPS = {
  starting: ['', 'The store’s tables are being shipped. Nothing can be restored from there before they are complete.'],
  running: ['good', 'Everything is shipped'],
  failing: ['bad', 'Shipping fails, and is tried again. What is acknowledged meanwhile is only here.'],
  fenced: ['bad', 'Another server ships a copy of this store there, so this one has stopped. Only one of them may.'],
};

/** How far the store is shipped. */
function shipping(ship) {
  const { state, to, until_ms: until, behind_ms: behind, segments, bases, bytes, reasons = [] } = ship;
  if (state === 'none')
    return panel(
      'Shipping',
      h(
        'p',
        { class: 'empty' },
        'This server does not ship its store. With ',
        h('code', null, 'serve --ship-to PLACE'),
        ' its tables and log are copied as they are written, and any second can be restored.',
      ),
    );
  const [kind, sentence] = SHIPS[state] ?? ['bad', `The state is ${state}.`];
  const late = behind === undefined ? 'nothing is there yet' : ago(behind);
  return panel(
    'Shipping',
    note(kind, h('p', null, state === 'running' ? `${sentence} up to ${late} ago.` : sentence)),
    reasons.map((one) => h('p', { class: 'wrong' }, `Last error: ${one}`)),
    facts(
      ['To', h('code', null, to)],
      ['Behind', late],
      ['Up to', time(until)],
      ['Since the start', `${many(segments, 'segment')} of the log, ${many(bases, 'set')} of tables, ${size(bytes)}`],
    ),
  );
}

/** The backup of this server that runs, or its last one since its start. */
function last(state) {
  const { state: how, to, reason, database, documents, run, bytes, ended_ms: ended } = state;
  const { databases = [], failed = [], remarks = [] } = state;
  const where = h('code', null, to);
  if (how === 'running')
    return note(
      '',
      h('p', { role: 'status' }, 'A backup into ', where, ` is running: ${database || 'it begins'}, ${count(documents)} documents so far.`),
    );
  if (how === 'failed') return note('bad', h('p', null, 'The last backup into ', where, ` failed (${time(ended)}): ${reason}`));
  return [
    note(
      failed.length ? 'bad' : 'good',
      h(
        'p',
        null,
        `Run ${run} into `,
        where,
        failed.length
          ? ` ended (${time(ended)}), and ${many(failed.length, 'database')} failed.`
          : ` ended well (${time(ended)}): ${size(bytes)} were new.`,
      ),
    ),
    table(
      'Databases in the backup',
      ['Database', ['Documents', 'number'], 'Remarks'],
      [
        ...databases.map((one) => [
          one.name,
          count(one.documents),
          one.damaged.length ? `damaged: ${one.damaged.join(', ')}` : '',
        ]),
        ...failed.map((one) => [one.name, '', h('span', { class: 'wrong' }, one.reason)]),
      ],
    ),
    remarks.map((one) => h('p', { class: 'hint' }, one)),
  ];
}

/** The verification that runs, or the last one. */
function verified(state) {
  const { state: how, to, reason, files, runs, bases, bytes, unused, ended_ms: ended } = state;
  const where = h('code', null, to);
  if (how === 'running') return note('', h('p', { role: 'status' }, 'Verifying ', where, `: ${many(files, 'file')} so far.`));
  if (how === 'failed') return note('bad', h('p', null, where, ` could not be verified (${time(ended)}): ${reason}`));
  const number = state.number_of_problems;
  return note(
    number ? 'bad' : 'good',
    h(
      'p',
      null,
      where,
      ` was verified (${time(ended)}): ${many(runs, 'run')} can be restored. ${many(files, 'file')} with ${size(bytes)} were read.`,
      bases > 0 && ` ${many(bases, 'set')} of shipped tables can be restored.`,
      unused > 0 && ` ${many(unused, 'pack')} are of no run.`,
    ),
    number > 0 && h('p', null, h('b', null, `${many(number, 'problem')}.`), ' Back up with --whole, and verify again.'),
    problems(state.problems, number),
  );
}

/** What is in a folder. */
function contents({ runs, number, bytes, shipped, problems: wrong }) {
  const [newest] = runs;
  return [
    facts(
      ['Last run', newest ? `${ago(Math.max(Date.now() - newest.began_ms, 0))} ago` : 'none'],
      ['Runs', count(number)],
      ['Size', size(bytes)],
      shipped && ['Shipped', `${time(shipped.from_ms)} to ${time(shipped.until_ms)}`],
    ),
    problems([...wrong, ...(shipped?.problems ?? [])]),
    table(
      'Runs',
      ['Run', 'Began', ['Databases', 'number'], ['Documents', 'number'], 'Remarks'],
      runs.map((one) => [
        h('code', null, one.run),
        time(one.began_ms),
        count(one.databases),
        count(one.documents),
        [
          one.damaged > 0 && h('span', { class: 'wrong' }, `${many(one.damaged, 'document')} could not be read. `),
          one.not_renewed.length > 0 &&
            h('span', { class: 'wrong' }, `As in an earlier run: ${one.not_renewed.join(', ')}`),
        ],
      ]),
      'There is no run here.',
    ),
    number > runs.length && h('p', { class: 'hint' }, `The newest ${count(runs.length)} runs are shown.`),
  ];
}

export async function page({ signal }) {
  const text = (props) => h('input', { spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', ...props });
  const remembered = kept.get(PLACE) ?? {};
  const [to, file, keep] = [
    text({ required: true, placeholder: '/backups/notes', value: remembered.to ?? '' }),
    text({ placeholder: '/etc/couch-layer/passphrase', value: remembered.file ?? '', disabled: Boolean(remembered.plain) }),
    text({ placeholder: '30d' }),
  ];
  const plain = h('input', {
    type: 'checkbox',
    checked: Boolean(remembered.plain),
    onchange: () => {
      file.disabled = plain.checked;
    },
  });
  const [ship, made, checked] = [h('div'), h('div', { 'aria-live': 'polite' }), h('div', { 'aria-live': 'polite' })];
  const found = h('div', { 'aria-live': 'polite' });
  const named = () => {
    if (!to.reportValidity()) throw new DOMException('no folder is named', 'AbortError');
    kept.set(PLACE, { to: to.value, file: file.value, plain: plain.checked });
    return {
      to: to.value,
      ...(plain.checked ? { no_encryption: true } : { passphrase_file: file.value }),
    };
  };
  const runs = async () => {
    const body = named();
    fill(found, h('p', { class: 'empty' }, 'The folder is read.'));
    try {
      fill(found, panel('What is in the folder', contents(await post(url('_couch_layer', 'backup', 'runs'), body, { signal, reads: true }))));
    } catch (error) {
      if (!signal.aborted) fill(found, note('bad', h('p', null, error.message)));
    }
  };
  let before;
  const load = async () => {
    const [shipped, backup, verification] = await Promise.all(
      [['ship'], ['backup'], ['backup', 'verify']].map((path) => get(url('_couch_layer', ...path), { signal })),
    );
    fill(ship, shipping(shipped));
    const now = JSON.stringify([backup, verification]);
    if (now === before) return;
    before = now;
    const wasRunning = go.disabled;
    fill(made, backup.state !== 'none' && panel('The last backup by this server', last(backup)));
    fill(checked, verification.state !== 'none' && panel('The last verification', verified(verification)));
    go.disabled = backup.state === 'running';
    verify.disabled = verification.state === 'running';
    // The field may have been emptied meanwhile.
    if (wasRunning && backup.state === 'ended' && to.value) await runs();
  };
  const go = h('button', { type: 'submit', class: 'main' }, 'Back up now');
  const verify = button('Verify', async () => {
    await post(url('_couch_layer', 'backup', 'verify'), named());
    await load();
  });
  await load();
  if (remembered.to) runs();
  repeat(EVERY, signal, load);
  return [
    h('h1', null, 'Backups'),
    ship,
    panel(
      'A folder of backups',
      h(
        'p',
        { class: 'hint' },
        'Folders and files are those of the server’s machine. Only the folder knows its runs, so name it. This browser ' +
          'remembers it until you sign out. ',
        h('code', null, 'couch-layer restore FOLDER'),
        ' brings databases back.',
      ),
      form(
        null,
        async () => {
          await post(url('_couch_layer', 'backup'), { ...named(), ...(keep.value ? { keep: keep.value } : {}) });
          toast('The backup begins.');
          await load();
        },
        h(
          'div',
          { class: 'grid' },
          field('Folder', to),
          field('File with the passphrase', file),
          field('Remove runs older than', keep, 'Only when backing up. Empty: none.'),
        ),
        h('label', { class: 'check' }, plain, ' Without encryption'),
        h('div', { class: 'row end' }, button('Show its runs', runs), verify, go),
      ),
    ),
    found,
    checked,
    made,
  ];
}

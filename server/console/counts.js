// What no description of a database says: how many of its documents are in conflict, and how many edits it had. Each
// costs a request, so what was read is kept until the next edit.

import { get, query, url } from './api.js';
import { at, button, count, fill, h, link } from './dom.js';

/** The most documents of a database that are read unasked: the server finds conflicts by reading the whole feed. */
const MOST_READ = 5_000;

/** The most conflicts that are counted. */
const MOST_FOUND = 1_000;

/** Answers by the name of the database, of one kind: `ask(db)` is sent once for each of its sequences. */
function asked(ask) {
  const known = new Map();
  return {
    last: (db) => known.get(db)?.answer,
    has: (db, seq) => known.get(db)?.seq === seq,
    async read(db, seq, signal) {
      if (known.get(db)?.seq !== seq) known.set(db, { seq, answer: await ask(db, signal) });
      return known.get(db).answer;
    },
  };
}

const conflicts = asked(async (db, signal) => {
  const { results, more } = await get(url(db, '_conflicts') + query({ limit: MOST_FOUND }), { signal });
  return { found: results.length, more };
});

/** The edits of a database by the time when they were made: `[[time, edits]]`, oldest first. */
export async function editsOf(db, signal) {
  const { time_seq: nodes } = await get(url(db, '_time_seq'), { signal });
  return Object.values(Object.values(nodes)[0] ?? {})[0] ?? [];
}

/** The number of all these edits. */
export const total = (edits) => edits.reduce((sum, [, number]) => sum + number, 0);

/** The number of all edits of a database. */
const edits = asked(async (db, signal) => total(await editsOf(db, signal)));

/** The number of a database's documents in conflict, from its description; `null` if it is large and not counted. */
export async function conflictsOf(db, info, signal) {
  if (!conflicts.has(db, info.update_seq) && info.doc_count + info.doc_del_count > MOST_READ) return null;
  return conflicts.read(db, info.update_seq, signal);
}

/** The number of documents in conflict, as text. */
export const conflictCount = ({ found, more }) => `${count(found)}${more ? '+' : ''}`;

const shown = (db, conflicts) =>
  conflicts.found === 0
    ? '0'
    : link(at('db', db, 'conflicts'), conflictCount(conflicts), {
        class: 'in-conflict',
        title: `Show the documents of ${db} in conflict`,
      });

/** A cell with that number: `{ element, read }`. Before it is read it shows what was counted last. */
export function conflictCell(db, info, signal) {
  const before = conflicts.last(db);
  const element = h('span', null, before ? shown(db, before) : '');
  const now = async () => fill(element, shown(db, await conflicts.read(db, info.update_seq, signal)));
  const read = async () => {
    const found = await conflictsOf(db, info, signal);
    if (found) fill(element, shown(db, found));
    else fill(element, button('Count', now, { class: 'small', 'aria-label': `Count the conflicts of ${db}` }));
  };
  return { element, read };
}

/**
 * A cell with how fast a database changes: its edits while somebody looks, and those of a second since the last look.
 * `seen` keeps what the page saw.
 */
export function paceCell(db, info, seen, signal) {
  const element = h('span', { class: 'faint' }, seen.has(db) ? 'quiet' : '');
  const read = async () => {
    const [number, now] = [await edits.read(db, info.update_seq, signal), Date.now()];
    const { first, last, time } = seen.get(db) ?? { first: number, last: number, time: now };
    seen.set(db, { first, last: number, time: now });
    if (number === first) fill(element, 'quiet');
    else {
      const rate = ((number - last) * 1_000) / Math.max(now - time, 1);
      fill(element, h('b', { class: 'up' }, `+${count(number - first)}, ${rate.toFixed(1)}/s`));
    }
  };
  return { element, read };
}

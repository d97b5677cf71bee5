// One document: its text, edited with checks; its attachments; its revisions and conflicts.

import { Refused, TooLarge, query, remove, text, url } from './api.js';
import {
  at,
  button,
  confirmed,
  editor,
  facts,
  fill,
  guard,
  h,
  link,
  note,
  panel,
  refuseEdits,
  size,
  toast,
} from './dom.js';
import { attachments } from './attachments.js';
import { compare } from './compare.js';
import { doc, open } from './documents.js';
import { members, mistake, object, pretty } from './json.js';
import { leafTable, leavesOf, resolver, tree } from './revisions.js';
import { jsonTree } from './tree.js';
import { trial } from './trial.js';

/** The most letters of a document that are shown in an editor. */
const MOST_EDITED = 1_000_000;

/**
 * The place of a document's `_rev` in its text: `[begins, ends]`. `null` if there is none with this value, or several,
 * as in members of members.
 */
export function placeOf(text_, rev) {
  const found = [...text_.matchAll(/"_rev"\s*:\s*("[^"\\]*")/g)].filter(([, value]) => value === rev);
  if (found.length !== 1) return null;
  const ends = found[0].index + found[0][0].length;
  return [ends - rev.length, ends];
}

/**
 * An editor of a document's text. `save(text)` stores it and resolves to its new revision; a 409 is its to handle,
 * then it resolves to nothing. `stored(rev)` goes on where nothing was typed meanwhile.
 */
function textEditor(content, save, stored, mayEdit = true) {
  let base = content;
  guard(() => area.value !== base);
  const said = h('p', { class: 'hint', id: 'said', role: 'status' });
  const check = () => {
    const wrong = mistake(area.value);
    said.textContent = wrong ?? 'This is a valid document.';
    said.classList.toggle('wrong', Boolean(wrong));
    return !wrong;
  };
  const store = async () => {
    if (!check()) {
      area.focus();
      return;
    }
    const sent = area.value;
    const rev = await save(sent, base);
    if (!rev) return;
    if (area.value === sent) {
      base = sent;
      // Until the page is read again, which what is typed now would not outlive.
      area.readOnly = true;
      await stored(rev);
      return;
    }
    // What was typed since then stays, and is based on what is stored now. Without its place, saving again compares.
    base = sent;
    const place = placeOf(area.value, members(sent).get('_rev'));
    if (place) area.setRangeText(JSON.stringify(rev), ...place, 'preserve');
    check();
    toast('The document is stored. What you typed since then is not, yet.');
  };
  const go = button('Save', store, { class: 'main', title: 'Ctrl+S' });
  const area = editor(content, {
    label: 'The document as JSON',
    rows: Math.min(Math.max(content.split('\n').length + 1, 10), 32),
    run: mayEdit ? () => go.click() : undefined,
    oninput: check,
    readonly: !mayEdit,
  });
  area.setAttribute('aria-describedby', 'said');
  check();
  return {
    area,
    said,
    check,
    go,
    format: button('Format', () => {
      if (check()) area.value = pretty(area.value);
    }),
  };
}

function newDocument(db, opened, signal) {
  const stored = async (content) => {
    const found = members(content);
    if (found.get('_id') === '""') found.delete('_id');
    // What was typed while it was stored is the next revision of it.
    if (made) found.set('_id', JSON.stringify(made.id)).set('_rev', JSON.stringify(made.rev));
    const id = found.has('_id') ? JSON.parse(found.get('_id')) : null;
    if (id !== null && typeof id !== 'string') throw new Error('An _id is a text, in quotes.');
    const body = object(found);
    const answer = JSON.parse(
      id === null ? await text('POST', url(db), { body }) : await text('PUT', url(db, id), { body }),
    );
    made = answer;
    return made.rev;
  };
  let made;
  const { area, said, go, format } = textEditor('{\n  "_id": "",\n  "type": ""\n}', stored, () => {
    toast('The document is stored.');
    if (!signal.aborted) location.hash = doc(db, made.id);
  });
  area.setAttribute('autofocus', '');
  return [
    ...opened.head,
    panel(
      'New document',
      h('p', { class: 'hint' }, 'Without an _id the server makes one.'),
      area,
      said,
      h('div', { class: 'row end' }, format, go),
    ),
  ];
}

/** Both versions side by side, when somebody was faster. */
async function collision(db, id, mine, base, place, area, check) {
  const stored = await text('GET', url(db, id)).catch((error) => {
    if (error.status !== 404) throw error;
  });
  if (stored === undefined) {
    fill(place, note('warn', h('p', null, 'Somebody deleted this document. Saving again makes it anew.')));
    const found = members(mine);
    found.delete('_rev');
    area.value = pretty(object(found));
    return;
  }
  const rev = members(stored).get('_rev');
  const { element, merged } = compare(
    [
      { label: 'Yours', content: mine },
      { label: `Stored now: ${JSON.parse(rev).slice(0, 10)}`, content: stored },
    ],
    base,
  );
  const take = button(
    'Put the choice into the editor',
    () => {
      const chosen = new Map([
        ['_id', JSON.stringify(id)],
        ['_rev', rev],
      ]);
      for (const [name, { value }] of merged()) chosen.set(name, value);
      area.value = pretty(object(chosen));
      check();
      place.replaceChildren();
      area.focus();
      toast('Look at it, and save.');
    },
    { class: 'main' },
  );
  fill(
    place,
    panel(
      'Somebody was faster',
      h(
        'p',
        null,
        'The document was stored by somebody else since you read it. Choose each member; nothing is stored before you save again.',
      ),
      element,
      h('div', { class: 'row end' }, take),
    ),
  );
  place.scrollIntoView({ block: 'nearest' });
  take.focus();
}

/** Reads a document; a deleted one by its tombstone. */
async function read(db, id, rev, leaves, signal) {
  const tombstone = !rev && leaves[0]?.isDeleted ? leaves[0].rev : undefined;
  return text('GET', url(db, id) + query({ rev: rev ?? tombstone }), { signal });
}

export async function page({ args: [db, id], options, signal, reload }) {
  const opened = await open(db, '', signal);
  if (id === undefined) return newDocument(db, opened, signal);
  const rev = options.get('rev') ?? undefined;
  let [leaves, content] = [[], ''];
  try {
    leaves = await leavesOf(db, id, signal);
    if (leaves.length === 0) throw new Refused(404, 'not_found', 'missing');
    content = await read(db, id, rev, leaves, signal);
  } catch (error) {
    if (!(error instanceof TooLarge)) throw error;
    return [
      ...opened.head,
      h('div', { class: 'head doc' }, h('h2', { class: 'mono' }, id)),
      note(
        'warn',
        h('p', null, 'The document and its leaves are larger than a page reads. '),
        link(url(db, id) + query({ rev }), 'Download its text', { download: `${id}.json` }),
      ),
    ];
  }
  const current = JSON.parse(content);
  const isOld = rev !== undefined && rev !== leaves[0].rev;
  const place = h('div', { class: 'place' });
  const isDesign = id.startsWith('_design/');
  const mayEdit = !isDesign || opened.rights.isAdmin;
  const isLarge = content.length > MOST_EDITED;
  const save = async (body, base) => {
    const named = members(body).get('_id');
    if (named !== undefined && JSON.parse(named) !== id)
      throw new Error(`An _id cannot change. This is ${id}: Copy makes another document, with an _id of its own.`);
    try {
      return JSON.parse(await text('PUT', url(db, id), { body })).rev;
    } catch (error) {
      if (error.status !== 409) throw error;
      await collision(db, id, body, base, place, made.area, made.check);
      return null;
    }
  };
  const saved = async () => {
    toast('The document is stored.');
    if (signal.aborted) return;
    if (rev) location.hash = doc(db, id);
    else await reload();
  };
  const made = textEditor(isLarge ? '{}' : pretty(content), save, saved, mayEdit && !isLarge);
  const copy = button('Copy', async () => {
    if (!made.check()) {
      made.area.focus();
      return;
    }
    const found = members(made.area.value);
    ['_id', '_rev', '_attachments', '_deleted'].forEach((name) => found.delete(name));
    const answer = JSON.parse(await text('POST', url(db), { body: object(found) }));
    toast('The copy is stored. Its attachments are not copied.');
    location.hash = doc(db, answer.id);
  });
  const erase = button(
    'Delete',
    async () => {
      refuseEdits();
      if (
        !(await confirmed(
          'Delete a document',
          `${id} is deleted. A tombstone stays, so that replications delete it too.`,
          'Delete',
        ))
      )
        return;
      await remove(url(db, id) + query({ rev: current._rev }));
      toast('The document is deleted.');
      location.hash = at('db', db);
    },
    { class: 'danger' },
  );
  const state = current._deleted
    ? 'deleted'
    : isOld
      ? leaves.some((leaf) => leaf.rev === rev)
        ? 'in conflict'
        : 'replaced'
      : 'winner';
  return [
    ...opened.head,
    h(
      'div',
      { class: 'head doc' },
      h('h2', { class: 'mono' }, id),
      h('span', { class: `badge ${state.replace(' ', '-')}` }, state),
    ),
    isOld &&
      note('', h('p', null, 'You look at another revision than the winner. ', link(doc(db, id), 'Show the winner'))),
    resolver(db, id, leaves, reload),
    panel(
      null,
      facts(['Revision', h('code', null, current._rev)]),
      isLarge
        ? note(
            '',
            h('p', null, `The document has ${size(content.length)}, which is too much for an editor here. `),
            link(url(db, id) + query({ rev: current._rev }), 'Download its text', { download: `${id}.json` }),
          )
        : [
            made.area,
            made.said,
            h('details', null, h('summary', null, 'As a tree'), jsonTree(content)),
          ],
      isDesign && mayEdit && !isLarge && current.language !== 'query' && trial(db, made.area, signal),
      mayEdit
        ? h(
            'div',
            { class: 'row end' },
            !current._deleted && [erase, h('span', { class: 'grow' }), !isLarge && copy],
            !isLarge && [made.format, made.go],
          )
        : note('', h('p', null, 'Design documents are edited by administrators of the database.')),
      place,
    ),
    attachments({ db, id, content, current, signal, changed: reload, isOld: isOld || !mayEdit }),
    panel(
      'Revisions',
      tree(db, id, leaves, current._rev),
      h('details', null, h('summary', null, 'As a list'), leafTable(db, id, leaves)),
    ),
  ];
}

// The tree of a document's revisions, drawn; and leaves in conflict, resolved.

import { get, post, query, text, url } from './api.js';
import { button, fill, h, link, note, panel, refuseEdits, svg, table, toast } from './dom.js';
import { compare } from './compare.js';
import { doc } from './documents.js';
import { elements, members, object } from './json.js';

/** Most leaves that are drawn, and most that are compared. */
const MOST_LEAVES = 40;
const MOST_COMPARED = 5;

/** Revisions in a line, without a branch, that are drawn one by one; more are drawn as a dashed line. */
const LINE = 3;

const [STEP, LANE, RADIUS] = [96, 46, 9];

const position = (rev) => Number.parseInt(rev, 10);
const label = (rev) => `${position(rev)}-${rev.slice(rev.indexOf('-') + 1).slice(0, 6)}`;

/** A leaf from its text. */
function leafOf(content) {
  const found = members(content);
  const { start, ids } = JSON.parse(found.get('_revisions'));
  ['_revisions', '_conflicts', '_deleted_conflicts'].forEach((name) => found.delete(name));
  return {
    rev: JSON.parse(found.get('_rev')),
    isDeleted: found.get('_deleted') === 'true',
    content: object(found),
    path: ids.map((hash, at) => `${start - at}-${hash}`),
  };
}

// Live before deleted, then the higher position, then the greater hash.
const hashOf = (rev) => rev.slice(rev.indexOf('-') + 1);
const byWinner = (one, other) =>
  one.isDeleted - other.isDeleted ||
  position(other.rev) - position(one.rev) ||
  (hashOf(other.rev) > hashOf(one.rev) ? 1 : -1);

/**
 * All leaves of a document, the winner first: `{ rev, isDeleted, content, path }`. `path` has the revisions from the
 * leaf to its oldest known one. Of many leaves, only the first ones have `content` and `path`: those that are compared,
 * and tombstones up to the number that is drawn.
 */
export async function leavesOf(db, id, signal) {
  const read = async (which) =>
    elements(await text('GET', url(db, id) + query({ open_revs: which, revs: true }), { signal }))
      .map((one) => members(one).get('ok'))
      .filter(Boolean)
      .map(leafOf);
  const { rows } = await get(url(db, '_all_docs') + query({ keys: [id] }), { signal });
  // All leaves are tombstones, or there is none.
  if (rows[0]?.error || !rows[0]?.value || rows[0].value.deleted) return (await read('all')).sort(byWinner);
  const asked = query({ revs: true, conflicts: true, deleted_conflicts: true });
  const content = await text('GET', url(db, id) + asked, { signal });
  const { _conflicts: live = [], _deleted_conflicts: deleted = [] } = JSON.parse(content);
  const others = [
    ...live.map((rev) => ({ rev, isDeleted: false })),
    ...deleted.map((rev) => ({ rev, isDeleted: true })),
  ].sort(byWinner);
  const wanted = [
    ...others.filter(({ isDeleted }) => !isDeleted).slice(0, MOST_COMPARED - 1),
    ...others.filter(({ isDeleted }) => isDeleted).slice(0, MOST_LEAVES - MOST_COMPARED),
  ].map(({ rev }) => rev);
  const whole = new Map(wanted.length ? (await read(JSON.stringify(wanted))).map((leaf) => [leaf.rev, leaf]) : []);
  return [leafOf(content), ...others.map((leaf) => whole.get(leaf.rev) ?? leaf)];
}

/** The places of all revisions. Each leaf has a lane; a revision of several leaves is in the lane of the first. */
function layOut(leaves) {
  const nodes = new Map();
  leaves.forEach((leaf, lane) =>
    leaf.path.forEach((rev, at) => {
      const node = nodes.get(rev) ?? { rev, lane, parent: undefined, children: new Set(), leaf: null };
      // A branch may remember less than another. One from outside may name another parent; the first one counts.
      node.parent ??= leaf.path[at + 1];
      if (at === 0) node.leaf = leaf;
      nodes.set(rev, node);
    }),
  );
  for (const { rev, parent } of nodes.values()) nodes.get(parent)?.children.add(rev);
  // A revision stays if it is a leaf, begins a line, is near a branch or an end, or its line is short.
  const isMark = (node) =>
    node.leaf || !node.parent || node.children.size > 1 || (nodes.get(node.parent)?.children.size ?? 0) > 1;
  const kept = new Set();
  for (const node of nodes.values()) if (isMark(node)) kept.add(node.rev);
  for (const start of [...kept]) {
    const line = [];
    for (let node = nodes.get(nodes.get(start).parent); node && !kept.has(node.rev); node = nodes.get(node.parent))
      line.push(node.rev);
    (line.length > LINE ? [line[0], line.at(-1)] : line).forEach((rev) => kept.add(rev));
  }
  const columns = [...new Set([...kept].map(position))].sort((one, other) => one - other);
  const drawn = [...kept].map((rev) => {
    const node = nodes.get(rev);
    let [before, left] = [node.parent, 0];
    while (before && !kept.has(before)) {
      left += 1;
      before = nodes.get(before)?.parent;
    }
    return {
      ...node,
      before: nodes.has(before) ? before : null,
      left,
      x: 42 + columns.indexOf(position(rev)) * STEP,
      y: 30 + node.lane * LANE,
    };
  });
  return {
    drawn: new Map(drawn.map((node) => [node.rev, node])),
    width: 84 + (columns.length - 1) * STEP,
    height: 30 + leaves.length * LANE,
  };
}

/** The tree as a picture, in which each leaf is a link. */
export function tree(db, id, all, current) {
  const leaves = all.filter(({ path }) => path).slice(0, MOST_LEAVES);
  const { drawn, width, height } = layOut(leaves);
  const edges = [...drawn.values()]
    .filter(({ before }) => before)
    .map(({ x, y, before, left }) => {
      const from = drawn.get(before);
      const bend = from.y === y ? `H${x}` : `C${from.x + STEP / 2} ${from.y} ${x - STEP / 2} ${y} ${x} ${y}`;
      return [
        svg('path', { class: left ? 'edge left' : 'edge', d: `M${from.x} ${from.y}${bend}` }),
        left > 0 &&
          svg('text', { x: (from.x + x) / 2, y: y - 8, 'text-anchor': 'middle', class: 'faint' }, `${left} more`),
      ];
    });
  // The name of a revision from which an edge goes down is above it.
  const branches = new Set(
    [...drawn.values()].filter(({ before, y }) => before && drawn.get(before).y !== y).map(({ before }) => before),
  );
  const nodes = [...drawn.values()].map(({ rev, leaf, x, y }) => {
    const winner = leaf && leaf === leaves[0];
    const kind = !leaf ? 'inner' : leaf.isDeleted ? 'tombstone' : winner ? 'winner' : 'conflict';
    const mark = [
      svg('title', null, leaf ? `${rev}, ${kind}` : rev),
      svg('circle', { cx: x, cy: y, r: leaf ? RADIUS : 6 }),
      leaf?.isDeleted && svg('path', { class: 'cross', d: `M${x - 4} ${y - 4}l8 8m0-8l-8 8` }),
      svg('text', { x, y: branches.has(rev) ? y - 15 : y + 24, 'text-anchor': 'middle' }, label(rev)),
    ];
    return leaf
      ? svg(
          'a',
          { class: `node ${kind}`, href: doc(db, id, rev), 'aria-current': rev === current ? 'true' : null },
          mark,
        )
      : svg('g', { class: 'node inner' }, mark);
  });
  const legend = [
    ['winner', 'winner'],
    ['conflict', 'conflict'],
    ['tombstone', 'deleted'],
    ['inner', 'replaced'],
  ];
  const shown = h(
    'div',
    { class: 'scroll tree', tabindex: '0', role: 'region', 'aria-label': `The revisions of ${id}` },
    svg(
      'svg',
      {
        width,
        height: height + 10,
        viewBox: `0 0 ${width} ${height + 10}`,
        role: 'group',
        'aria-label': `Tree of revisions with ${leaves.length === 1 ? '1 leaf' : `${leaves.length} leaves`}`,
      },
      edges,
      nodes,
    ),
  );
  // The newest revisions are at the right.
  requestAnimationFrame(() => {
    shown.scrollLeft = shown.scrollWidth;
  });
  return [
    shown,
    h(
      'p',
      { class: 'legend' },
      legend.map(([kind, name]) => h('span', { class: kind }, h('i', { 'aria-hidden': 'true' }), name)),
    ),
    all.length > leaves.length && h('p', { class: 'hint' }, `${all.length - leaves.length} more leaves are not drawn.`),
  ];
}

/**
 * The content of attachments that a merged document takes from another leaf than the winner, which has not got them.
 */
async function withContents(db, id, rev, value) {
  const answer = await text('GET', url(db, id) + query({ rev, attachments: true }));
  const contents = members(members(answer).get('_attachments') ?? '{}');
  return object(
    [...members(value).keys()].filter((name) => contents.has(name)).map((name) => [name, contents.get(name)]),
  );
}

/** Live leaves side by side. Resolving stores the chosen members on the winner, and deletes the other leaves. */
export function resolver(db, id, leaves, done) {
  const live = leaves.filter(({ isDeleted }) => !isDeleted);
  if (live.length < 2) return null;
  const compared = live.filter(({ content }) => content).slice(0, MOST_COMPARED);
  if (compared.length < 2) return null;
  const { element, merged } = compare(
    compared.map(({ rev, content }, at) => ({ label: `${label(rev)}${at === 0 ? ' (winner)' : ''}`, content })),
  );
  const failed = h('div');
  const resolve = async () => {
    refuseEdits();
    failed.replaceChildren();
    const members_ = new Map([
      ['_id', JSON.stringify(id)],
      ['_rev', JSON.stringify(compared[0].rev)],
    ]);
    for (const [name, { value, from }] of merged()) {
      const isForeign = name === '_attachments' && from > 0;
      members_.set(name, isForeign ? await withContents(db, id, compared[from].rev, value) : value);
    }
    const wrong = (...said) =>
      fill(
        failed,
        note('bad', h('p', null, ...said)),
        h('div', { class: 'row end' }, button('Read the leaves again', done)),
      );
    // The winner first, alone: as long as it is not stored, the other leaves have the only copy of what was chosen.
    try {
      await text('PUT', url(db, id), { body: object(members_) });
    } catch (error) {
      wrong(`Nothing was changed, and your choices are still here. ${error.message}`);
      return;
    }
    const others = compared.slice(1).map(({ rev }) => ({ _id: id, _rev: rev, _deleted: true }));
    const rows = await post(url(db, '_bulk_docs'), { docs: others }).catch((error) => [error]);
    const left = rows.filter(({ error, message }) => error || message);
    if (left.length) {
      wrong(`The winner is stored, and leaves are still in conflict with it: ${left[0].reason ?? left[0].message}`);
      return;
    }
    toast('The conflict is resolved.');
    await done();
  };
  return panel(
    `${live.length} leaves are in conflict`,
    h(
      'p',
      null,
      'Choose each member. What you chose becomes the next revision of the winner, and the other leaves are deleted.',
    ),
    live.length > compared.length &&
      note(
        'warn',
        h(
          'p',
          null,
          `The first ${compared.length} of ${live.length} leaves are compared; resolve again for the others.`,
        ),
      ),
    element,
    failed,
    h('div', { class: 'row end' }, button('Resolve the conflict', resolve, { class: 'main' })),
  );
}

/** The leaves as a list, for those who do not see the picture. */
export const leafTable = (db, id, leaves) =>
  table(
    'Leaves',
    ['Revision', 'State'],
    leaves
      .slice(0, MOST_LEAVES)
      .map(({ rev, isDeleted }, at) => [
        link(doc(db, id, rev), rev, { class: 'mono' }),
        isDeleted ? 'deleted' : at === 0 ? 'winner' : 'in conflict',
      ]),
  );

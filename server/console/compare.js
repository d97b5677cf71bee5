// Versions of one document side by side, with a choice for each member.

import { h, short } from './dom.js';
import { members, pretty } from './json.js';

/** What a revision says about itself: it differs always, and nobody chooses it. */
const OF_REVISION = new Set([
  '_rev',
  '_id',
  '_revisions',
  '_revs_info',
  '_conflicts',
  '_deleted_conflicts',
  '_local_seq',
]);

let groups = 0;

/** The most letters of a value that are shown, and how many of them before the first difference. */
const MOST = 2_000;
const BEFORE = 200;

/** The most members that are shown at once. */
const MOST_MEMBERS = 200;

/** Where texts begin to differ. */
export function difference(texts) {
  const least = Math.min(...texts.map((text) => text.length));
  let at = 0;
  while (at < least && texts.every((text) => text[at] === texts[0][at])) at += 1;
  return at;
}

/** The values of one member in all versions. Of long ones, the part with the first difference. */
function cells(values) {
  const texts = values.map((value) => (value === undefined ? undefined : pretty(value)));
  const there = texts.filter((text) => text !== undefined);
  const at = difference(there);
  const from = there.length > 1 && at > MOST - BEFORE ? at - BEFORE : 0;
  return texts.map((text) =>
    text === undefined
      ? h('i', null, 'not there')
      : h('pre', { class: 'code' }, from > 0 && '…', short(text.slice(from), MOST)),
  );
}

/**
 * The version that is chosen at the beginning: the first one, unless it has left the member as it was in `base`. Then
 * it is another version that changed it.
 */
export function preferred(values, base) {
  if (base === null || values[0] !== base.value) return 0;
  const at = values.findIndex((value) => value !== base.value);
  return at < 0 ? 0 : at;
}

/**
 * Shows versions, each `{ label, content }` with the text of a document. The first one is chosen at the beginning. With
 * `base`, the text that the first one was made from, members that it left alone are those of the others.
 * Returns the element, and `merged()`: a map from the names of the chosen members to `{ value, from }`, the number of
 * their version.
 */
export function compare(versions, base = null) {
  const all = versions.map(({ content }) => members(content));
  const names = [...new Set(all.flatMap((one) => [...one.keys()]))].filter((name) => !OF_REVISION.has(name));
  const before = base === null ? null : members(base);
  const chosen = new Map(
    names.map((name) => [
      name,
      preferred(
        all.map((one) => one.get(name)),
        before && { value: before.get(name) },
      ),
    ]),
  );
  const differs = (name) => new Set(all.map((one) => one.get(name))).size > 1;
  const choosers = [];

  const rowOf = (name) => {
    const group = `g${(groups += 1)}`;
    const shown = cells(all.map((one) => one.get(name)));
    const row = all.map((_, version) => {
      const radio = h('input', {
        type: 'radio',
        name: group,
        checked: version === chosen.get(name),
        onchange: () => chosen.set(name, version),
        'aria-label': `${name}: ${versions[version].label}`,
      });
      choosers.push({
        version,
        take: () => {
          radio.checked = true;
        },
      });
      return h('td', null, h('label', { class: 'choice' }, radio, shown[version]));
    });
    return h('tr', null, h('th', { scope: 'row' }, name), row);
  };
  const takeAll = (version) => {
    // Also of members that are not shown yet.
    different.forEach((name) => chosen.set(name, version));
    choosers.filter((one) => one.version === version).forEach(({ take }) => take());
  };
  const different = names.filter(differs);
  const same = names.filter((name) => !differs(name));
  const body = h('tbody', null, different.slice(0, MOST_MEMBERS).map(rowOf));
  const rest = different.slice(MOST_MEMBERS);
  const element = h(
    'div',
    { class: 'compare' },
    h(
      'div',
      { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Versions side by side' },
      h(
        'table',
        null,
        h(
          'thead',
          null,
          h(
            'tr',
            null,
            h('th', { scope: 'col' }, 'Member'),
            versions.map(({ label }, version) =>
              h(
                'th',
                { scope: 'col' },
                h('span', { class: 'mono' }, label),
                ' ',
                different.length > 1 &&
                  h('button', { type: 'button', class: 'small', onclick: () => takeAll(version) }, 'Take all'),
              ),
            ),
          ),
        ),
        different.length
          ? body
          : h('tbody', null, h('tr', null, h('td', { colspan: versions.length + 1 }, 'All members are equal.'))),
      ),
    ),
    rest.length > 0 &&
      h(
        'button',
        {
          type: 'button',
          onclick: (event) => {
            body.append(...rest.map(rowOf));
            event.target.remove();
          },
        },
        `Show ${rest.length} more members`,
      ),
    same.length > 0 && h('p', { class: 'hint' }, `Equal in all: ${short(same.join(', '), MOST)}.`),
  );
  return {
    element,
    merged: () =>
      new Map(
        names
          .map((name) => [name, { value: all[chosen.get(name)].get(name), from: chosen.get(name) }])
          .filter(([, { value }]) => value !== undefined),
      ),
  };
}

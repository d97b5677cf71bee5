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

const shown = (value) =>
  value === undefined ? h('i', null, 'not there') : h('pre', { class: 'code' }, short(pretty(value), 2_000));

/**
 * Shows versions, each `{ label, content }` with the text of a document. The first one is chosen at the beginning.
 * Returns the
 * element, and `merged()`: a map from the names of the chosen members to `{ value, from }`, the number of their
 * version.
 */
export function compare(versions, onchange = () => {}) {
  const all = versions.map(({ content }) => members(content));
  const names = [...new Set(all.flatMap((one) => [...one.keys()]))].filter((name) => !OF_REVISION.has(name));
  const chosen = new Map(names.map((name) => [name, 0]));
  const differs = (name) => new Set(all.map((one) => one.get(name))).size > 1;
  const choosers = [];

  const choose = (name, version) => {
    chosen.set(name, version);
    onchange();
  };
  const rowOf = (name) => {
    const group = `g${(groups += 1)}`;
    const cells = all.map((one, version) => {
      const radio = h('input', {
        type: 'radio',
        name: group,
        checked: version === 0,
        onchange: () => choose(name, version),
        'aria-label': `${name}: ${versions[version].label}`,
      });
      choosers.push({
        version,
        take: () => {
          radio.checked = true;
          chosen.set(name, version);
        },
      });
      return h('td', null, h('label', { class: 'choice' }, radio, shown(one.get(name))));
    });
    return h('tr', null, h('th', { scope: 'row' }, name), cells);
  };
  const takeAll = (version) => {
    choosers.filter((one) => one.version === version).forEach(({ take }) => take());
    onchange();
  };
  const different = names.filter(differs);
  const same = names.filter((name) => !differs(name));
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
        h(
          'tbody',
          null,
          different.length
            ? different.map(rowOf)
            : h('tr', null, h('td', { colspan: versions.length + 1 }, 'All members are equal.')),
        ),
      ),
    ),
    same.length > 0 && h('p', { class: 'hint' }, `Equal in all: ${same.join(', ')}.`),
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

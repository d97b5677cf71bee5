// A document as a tree: each object and list can be opened. From its text, so that numbers stay as they are written.

import { button, h, many, short } from './dom.js';
import { elements, members } from './json.js';

/** The most members that are shown at once. */
const MOST = 200;

/** The most letters of a value. */
const LONG = 300;

const named = (name, value) => [name !== null && h('span', { class: 'name' }, `${name}: `), value];

/** A value and its name. What is in it is made when it is opened. */
function node(name, text, isOpen) {
  const isList = text.startsWith('[');
  if (!isList && !text.startsWith('{')) return h('li', null, named(name, h('code', null, short(text, LONG))));
  const inside = isList ? elements(text).map((value, at) => [String(at), value]) : [...members(text)];
  if (inside.length === 0) return h('li', null, named(name, h('code', null, text)));
  const list = h('ul');
  let made = 0;
  const more = () => {
    const next = inside.slice(made, made + MOST);
    made += next.length;
    list.querySelector(':scope > .more')?.remove();
    list.append(...next.map(([one, value]) => node(one, value, false)));
    const left = inside.length - made;
    if (left > 0)
      list.append(h('li', { class: 'more' }, button(`${left} more`, more, { class: 'small' })));
  };
  const open = h(
    'details',
    {
      open: isOpen,
      ontoggle: () => {
        if (open.open && made === 0) more();
      },
    },
    h('summary', null, named(name, h('small', null, many(inside.length, isList ? 'element' : 'member')))),
    list,
  );
  if (isOpen) more();
  return h('li', null, open);
}

/** The tree of a JSON text, opened at its first level. */
export const jsonTree = (text) => h('ul', { class: 'json-tree' }, node(null, text, true));

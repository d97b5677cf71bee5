// Small helpers to make elements. Text always becomes text nodes: nothing here parses HTML, so what users store cannot
// become markup.

const SVG = 'http://www.w3.org/2000/svg';

// Set as properties, since the attributes only say how a control begins.
const PROPERTIES = new Set(['value', 'checked', 'disabled', 'selected', 'open', 'indeterminate', 'hidden', 'files']);

function make(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** An HTML element: `h('p', { class: 'x' }, 'text', node)`. Members that begin with `on` are listeners. */
export const h = (tag, props, ...children) => make(document.createElement(tag), props, children);

/** An SVG element. */
export const svg = (tag, props, ...children) => make(document.createElementNS(SVG, tag), props, children);

/** Replaces all children. */
export function fill(element, ...children) {
  element.replaceChildren();
  return make(element, null, children);
}

let ids = 0;

/** A control with its label, and a hint below it. */
export function field(label, control, hint) {
  control.id ||= `c${(ids += 1)}`;
  const help = hint && h('p', { class: 'hint', id: `${control.id}h` }, hint);
  if (help) control.setAttribute('aria-describedby', help.id);
  return h('div', { class: 'field' }, h('label', { for: control.id }, label), control, help);
}

/** A checkbox with its label. */
export function check(label, props) {
  return h('label', { class: 'check' }, h('input', { type: 'checkbox', ...props }), ' ', label);
}

/** A button. An error of its listener is shown, and it cannot be pressed again before its work is done. */
export function button(label, work, props = {}) {
  const made = h('button', { type: 'button', ...props }, label);
  made.addEventListener('click', () => busy(made, work));
  return made;
}

/** Runs `work` while a button is disabled, and shows its error. */
export async function busy(element, work) {
  if (element.getAttribute('aria-busy')) return;
  // It is not disabled, so that it keeps the focus.
  element.setAttribute('aria-busy', 'true');
  try {
    await work();
  } catch (error) {
    if (error.name !== 'AbortError') toast(error.message, true);
  } finally {
    element.removeAttribute('aria-busy');
  }
}

/** A form whose submission runs `work`. */
export function form(props, work, ...children) {
  const made = h('form', props, ...children);
  made.addEventListener('submit', (event) => {
    event.preventDefault();
    busy(made.querySelector('button[type=submit]') ?? made, work);
  });
  return made;
}

/** A message that goes away by itself; an error stays longer. */
export function toast(text, isError = false) {
  const dialog_ = [...document.querySelectorAll('dialog[open]')].at(-1);
  if (isError && dialog_) {
    // What lies below a dialog is neither seen well nor read out.
    dialog_.querySelector('.note.bad')?.remove();
    dialog_.querySelector('h2').after(note('bad', h('p', null, text)));
    return;
  }
  const close = h(
    'button',
    { type: 'button', class: 'quiet', 'aria-label': 'Close this message', onclick: () => shown.remove() },
    '×',
  );
  const shown = h(
    'div',
    { class: isError ? 'toast bad' : 'toast', role: isError ? 'alert' : null },
    h('span', null, text),
    close,
  );
  document.getElementById('toasts').append(shown);
  setTimeout(() => shown.remove(), isError ? 15_000 : 5_000);
}

/** A paragraph that stands out: `kind` is `good`, `warn`, `bad` or empty. */
export const note = (kind, ...children) =>
  h('div', { class: `note ${kind}`, role: kind === 'bad' ? 'alert' : null }, ...children);

/**
 * A table. `heads` are texts, `[text, 'number']`, or empty above buttons; `rows` are lists of cells. It scrolls by
 * itself where it is wide.
 */
export function table(label, heads, rows, empty = 'There is nothing here yet.') {
  if (rows.length === 0) return h('p', { class: 'empty' }, empty);
  const kinds = heads.map((head) => (Array.isArray(head) ? head[1] : null));
  const head = heads.map((one, at) =>
    h(
      'th',
      { scope: 'col', class: kinds[at] },
      Array.isArray(one) ? one[0] : one || h('span', { class: 'unseen' }, 'Actions'),
    ),
  );
  const body = rows.map((row) =>
    h('tr', { class: row.kind }, ...[...row].map((cell, at) => h('td', { class: kinds[at] }, cell))),
  );
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label },
    h('table', null, h('thead', null, h('tr', null, ...head)), h('tbody', null, ...body)),
  );
}

/**
 * The buttons of a list that is read in parts. `load()` reads the part at `place`, which is undefined at the beginning.
 */
export function pager(load) {
  let before = [];
  let list = 0;
  const pages = {
    place: undefined,
    /** Goes to the beginning. */
    reset() {
      list += 1;
      [pages.place, before] = [undefined, []];
    },
    /** The buttons of a part; `next` is the place of the one after it, if there is one. */
    row: (next, of = list) =>
      h(
        'div',
        { class: 'row pager' },
        before.length > 0 &&
          button('Back', () => {
            pages.place = before.pop();
            return load();
          }),
        next !== undefined &&
          next !== null &&
          button('Next', () => {
            // The list that it belongs to may still be shown while another one is read.
            if (of !== list) return undefined;
            before.push(pages.place);
            pages.place = next;
            return load();
          }),
      ),
  };
  return pages;
}

/** A setting of one value: read now, and stored by the form. */
export function setting(title, hint, input, isAllowed, store) {
  input.disabled = !isAllowed;
  return form(
    { class: 'setting' },
    async () => {
      await store(input.value);
      toast('Stored.');
    },
    field(title, input, hint),
    isAllowed && h('button', { type: 'submit', 'aria-label': `Save: ${title}` }, 'Save'),
  );
}

/** A list of terms and what they are. */
export const facts = (...pairs) =>
  h(
    'dl',
    { class: 'facts' },
    ...pairs.filter(Boolean).map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))),
  );

/** A part of a page with a heading. */
export const panel = (title, ...children) =>
  h('section', { class: 'panel' }, title && h('h2', null, title), ...children);

/** What the page would lose if it were left: functions that say whether they hold an edit that is not stored. */
const edits = new Set();
export const guard = (isDirty) => edits.add(isDirty);
export const forgetEdits = () => edits.clear();
export const hasEdits = () => [...edits].some((isDirty) => isDirty());

/** Fails while an edit is not stored, for work that reads the page again. */
export function refuseEdits() {
  if (hasEdits()) throw new Error('Your edit is not stored yet. Save it first, or undo it.');
}

const dialogs = new Set();
/** Closes all dialogs, as their Cancel does. */
export const closeDialogs = () => [...dialogs].reverse().forEach((close) => close());

/** Opens a dialog. `build(close)` returns its content; resolves to what `close` was called with. */
export function dialog(title, build) {
  return new Promise((resolve) => {
    const close = (answer) => {
      dialogs.delete(close);
      opened.close();
      opened.remove();
      resolve(answer);
    };
    const head = h('h2', { id: `c${(ids += 1)}` }, title);
    const opened = h(
      'dialog',
      {
        'aria-labelledby': head.id,
        oncancel: (event) => {
          event.preventDefault();
          close();
        },
      },
      head,
      ...[build(close)].flat(),
    );
    dialogs.add(close);
    document.body.append(opened);
    opened.showModal();
  });
}

/** Asks before something is lost. With `name` that must be typed. Resolves to whether it was confirmed. */
export async function confirmed(title, text, verb, name) {
  return Boolean(
    await dialog(title, (close) => {
      const typed = h('input', {
        autocomplete: 'off',
        spellcheck: 'false',
        autofocus: true,
        oninput: () => {
          go.disabled = typed.value !== name;
        },
      });
      const go = h('button', { type: 'submit', class: 'danger', disabled: name !== undefined }, verb);
      return form(
        {},
        () => {
          if (name === undefined || typed.value === name) close(true);
        },
        h('p', null, text),
        name !== undefined && field(`Type ${name} to confirm`, typed),
        h('div', { class: 'row end' }, h('button', { type: 'button', onclick: () => close(false) }, 'Cancel'), go),
      );
    }),
  );
}

/** A link to a page of the console. */
export const link = (path, text, props) => h('a', { href: path, ...props }, text);

/** The address of a page: its parts are encoded. */
export const at = (...parts) => `#/${parts.map(encodeURIComponent).join('/')}`;

export const count = (number) => (number ?? 0).toLocaleString('en');

/** A number of bytes, for people. */
export function size(bytes) {
  if (bytes === undefined || bytes === null) return '–';
  if (bytes < 1000) return `${bytes} B`;
  const units = ['kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = -1;
  for (; bytes >= 999.5 && unit < units.length - 1; unit += 1) bytes /= 1000;
  return `${bytes >= 100 ? bytes.toFixed(0) : bytes.toFixed(1)} ${units[unit]}`;
}

/** A number and its noun. */
export const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? '' : 's'}`;

/** The beginning of a long text. */
export const short = (text, most = 80) => (text.length > most ? `${text.slice(0, most)}…` : text);

/** Waits, unless the page is left. */
export const pause = (ms, signal) =>
  new Promise((resolve, reject) => {
    const leave = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', leave);
      resolve();
    }, ms);
    signal.addEventListener('abort', leave, { once: true });
  });

/**
 * Repeats `work` every `ms` until the page is left. It rests while nobody sees the page. An error is shown once, and
 * work goes on.
 */
export async function repeat(ms, signal, work) {
  let failed = false;
  while (!signal.aborted) {
    try {
      await pause(ms, signal);
      if (document.visibilityState === 'hidden') continue;
      await work();
      failed = false;
    } catch (error) {
      if (signal.aborted || error.name === 'AbortError') return;
      if (!failed) toast(error.message, true);
      failed = true;
    }
  }
}

/**
 * A text area for code. Ctrl+Enter and Ctrl+S run `run`. Tab moves on, as everywhere, so that no keyboard is caught.
 */
export function editor(text, { label, rows = 12, run, oninput, readonly }) {
  return h('textarea', {
    class: 'code',
    value: text,
    rows,
    'aria-label': label,
    spellcheck: 'false',
    autocomplete: 'off',
    autocapitalize: 'off',
    readonly,
    oninput,
    onkeydown: (event) => {
      if (run && (event.ctrlKey || event.metaKey) && (event.key === 'Enter' || event.key === 's')) {
        event.preventDefault();
        run();
      }
    },
  });
}

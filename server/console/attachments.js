// The attachments of a document: preview, upload, download.

import { put, query, remove, segment, text, url } from './api.js';
import { button, confirmed, dialog, field, form, h, note, panel, refuseEdits, size, table, toast } from './dom.js';
import { members, object } from './json.js';

/** Types that are shown as a picture. An SVG is shown by an image too, in which its scripts do not run. */
const PICTURES = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)\b/;
const TEXTS = /^(text\/|application\/(json|javascript|xml|yaml)\b)/;

/** The largest picture, and the most bytes of a text that are shown. */
const MOST_PICTURE = 30e6;
const MOST_TEXT = 100_000;

const addressOf = (db, id, name) => `${url(db, id)}/${segment(name)}`;

async function preview(address, name, { content_type: type, length }, signal) {
  let content;
  if (PICTURES.test(type)) {
    // By its own address, where a sandbox confines it even if somebody opens it in a tab. A blob would be of this
    // origin.
    content = h('img', { src: address, alt: name, class: 'preview' });
    await content.decode().catch(() => {
      throw new Error(`${name} cannot be shown as a picture.`);
    });
  } else {
    const answer = await fetch(address, { credentials: 'same-origin', signal });
    if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let read = '';
    for (let piece; read.length < MOST_TEXT && !(piece = await reader.read()).done;)
      read += decoder.decode(piece.value, { stream: true });
    await reader.cancel();
    content = [
      h('pre', { class: 'code preview', tabindex: '0', role: 'region', 'aria-label': name }, read.slice(0, MOST_TEXT)),
      length > MOST_TEXT && h('p', { class: 'hint' }, `The first ${size(MOST_TEXT)} of ${size(length)}.`),
    ];
  }
  await dialog(name, (close) =>
    [
      content,
      h('div', { class: 'row end' }, h('button', { type: 'button', autofocus: true, onclick: () => close() }, 'Close')),
    ].flat(),
  );
}

/** Deletes an attachment whose name no address can have: by an edit of the document, without it. */
async function drop(db, id, content, name) {
  const next = members(content);
  const stubs = members(next.get('_attachments'));
  stubs.delete(name);
  await put(url(db, id), object(next.set('_attachments', object(stubs))));
}

/**
 * `content` is the document's text, and `current` what it says of `_rev` and `_attachments`; `changed` reads it again.
 */
export function attachments({ db, id, content, current, signal, changed, isOld }) {
  const found = Object.entries(current._attachments ?? {});
  const upload = async (files) => {
    refuseEdits();
    // A name that no address can have fails here, before anything is stored.
    const addresses = files.map((file) => addressOf(db, id, file.name));
    let rev = current._rev;
    for (const [at, file] of files.entries()) {
      const answer = await text('PUT', addresses[at] + query({ rev }), {
        body: file,
        type: file.type || 'application/octet-stream',
      });
      ({ rev } = JSON.parse(answer));
    }
    toast(files.length === 1 ? 'The attachment is stored.' : `${files.length} attachments are stored.`);
    await changed();
  };
  const rows = found.map(([name, about]) => {
    let base = null;
    try {
      base = addressOf(db, id, name);
    } catch {
      /* no address */
    }
    const file = name.split('/').at(-1);
    const address = base && base + (isOld ? query({ rev: current._rev }) : '');
    const canPreview =
      address &&
      (TEXTS.test(about.content_type) || (PICTURES.test(about.content_type) && about.length <= MOST_PICTURE));
    return [
      base ? name : h('i', null, `“${name}”: no address can have this name`),
      about.content_type,
      size(about.length),
      h(
        'div',
        { class: 'row tight' },
        canPreview &&
          button('Preview', () => preview(address, name, about, signal), {
            class: 'small',
            'aria-label': `Preview ${name}`,
          }),
        address &&
          h(
            'a',
            {
              class: 'button small',
              href: address,
              download: file,
              'aria-label': `Download ${name}`,
              title: 'Or drag it out of the window',
              // Chromium stores the file where it is dropped; other browsers drop its address.
              ondragstart: (event) => {
                const parts = [about.content_type, file].map((part) => part.replace(/[:\r\n]/g, '_'));
                event.dataTransfer.setData('DownloadURL', [...parts, address].join(':'));
              },
            },
            'Download',
          ),
        !isOld &&
          button(
            'Delete',
            async () => {
              refuseEdits();
              if (!(await confirmed('Delete an attachment', `${name} is deleted from the document.`, 'Delete'))) return;
              if (base) await remove(base + query({ rev: current._rev }));
              else await drop(db, id, content, name);
              await changed();
            },
            { class: 'small', 'aria-label': `Delete ${name}` },
          ),
      ),
    ];
  });
  const files = h('input', { type: 'file', multiple: true });
  const zone = form(
    { class: 'drop' },
    async () => {
      if (files.files.length) await upload([...files.files]);
    },
    field('Drop files here, or choose them', files),
    h('button', { type: 'submit' }, 'Upload'),
  );
  zone.addEventListener('dragover', (event) => {
    event.preventDefault();
    zone.classList.add('over');
  });
  zone.addEventListener('dragleave', () => zone.classList.remove('over'));
  zone.addEventListener('drop', (event) => {
    event.preventDefault();
    zone.classList.remove('over');
    upload([...event.dataTransfer.files]).catch((error) => toast(error.message, true));
  });
  return panel(
    'Attachments',
    table('Attachments', ['Name', 'Type', ['Size', 'number'], ''], rows, 'The document has no attachments.'),
    isOld ? note('', h('p', null, 'This is not the winner, so its attachments are only shown.')) : zone,
  );
}

// The attachments of a document: preview, upload, download.

import { query, remove, segment, text, url } from './api.js';
import { button, confirmed, dialog, field, form, h, note, panel, size, table, toast } from './dom.js';

/** Types that are shown as a picture. An SVG is shown by an image too, in which its scripts do not run. */
const PICTURES = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)\b/;
const TEXTS = /^(text\/|application\/(json|javascript|xml|yaml)\b)/;

/** The largest picture, and the most bytes of a text that are shown. */
const MOST_PICTURE = 30e6;
const MOST_TEXT = 100_000;

const addressOf = (db, id, name) => `${url(db, id)}/${segment(name)}`;

async function preview(address, name, { content_type: type, length }, signal) {
  const answer = await fetch(address, { credentials: 'same-origin', signal });
  if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
  let content;
  if (PICTURES.test(type)) {
    // Its own type decides, and not what the server said.
    const blob = new Blob([await answer.arrayBuffer()], { type: PICTURES.exec(type)[0] });
    const source = URL.createObjectURL(blob);
    signal.addEventListener('abort', () => URL.revokeObjectURL(source), { once: true });
    content = h('img', { src: source, alt: name, class: 'preview' });
  } else {
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

/** `current` has the document's `_rev` and `_attachments`; `changed` reads it again. */
export function attachments({ db, id, current, signal, changed, isOld }) {
  const found = Object.entries(current._attachments ?? {});
  const upload = async (files) => {
    let rev = current._rev;
    for (const file of files) {
      const answer = await text('PUT', addressOf(db, id, file.name) + query({ rev }), {
        body: file,
        type: file.type || 'application/octet-stream',
      });
      ({ rev } = JSON.parse(answer));
    }
    toast(files.length === 1 ? 'The attachment is stored.' : `${files.length} attachments are stored.`);
    await changed();
  };
  const rows = found.map(([name, about]) => {
    const address = addressOf(db, id, name) + (isOld ? query({ rev: current._rev }) : '');
    const canPreview =
      TEXTS.test(about.content_type) || (PICTURES.test(about.content_type) && about.length <= MOST_PICTURE);
    return [
      name,
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
        h(
          'a',
          { class: 'button small', href: address, download: name.split('/').at(-1), 'aria-label': `Download ${name}` },
          'Download',
        ),
        !isOld &&
          button(
            'Delete',
            async () => {
              if (!(await confirmed('Delete an attachment', `${name} is deleted from the document.`, 'Delete'))) return;
              await remove(addressOf(db, id, name) + query({ rev: current._rev }));
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

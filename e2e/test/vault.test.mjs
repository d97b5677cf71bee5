// A folder from `vault push`, read like LiveSync reads a vault, from its documents only.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import { Server, run, temporaryFolder } from '../lib/server.mjs';

const nano = createRequire(import.meta.url)('nano');

async function succeed(...args) {
  const { code, stdout, stderr } = await run(args);
  assert.equal(code, 0, stdout + stderr);
  return stdout;
}

test('what is pushed is a vault to others, and what they write is pulled', async (t) => {
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  const [from, into] = [await temporaryFolder(t), await temporaryFolder(t)];
  const text = `# Über alles\n\n${'Ein Absatz von einiger Länge, mit 😀. '.repeat(200)}\n`;
  const image = randomBytes(300_000);
  await mkdir(path.join(from, 'Notizen'));
  await writeFile(path.join(from, 'Notizen', 'Über.md'), text);
  await writeFile(path.join(from, 'image.png'), image);
  await succeed('vault', 'push', from, 'vault', '--url', server.url);
  await succeed('chunks', 'migrate', 'vault', '--back', '--url', server.url);

  const vault = nano(server.url).use('vault');
  const pieces = async (file) => {
    const found = await vault.fetch({ keys: file.children });
    return found.rows.map(({ doc }) => {
      assert.equal(doc.type, 'leaf');
      return doc.data;
    });
  };
  const note = await vault.get('notizen/über.md');
  assert.deepEqual([note.path, note.type, note.size, note.eden], ['Notizen/Über.md', 'plain', Buffer.byteLength(text), {}]);
  assert.ok(note.children.length > 10);
  assert.equal((await pieces(note)).join(''), text);
  const picture = await vault.get('image.png');
  assert.equal(picture.type, 'newnote');
  assert.deepEqual(Buffer.concat((await pieces(picture)).map((piece) => Buffer.from(piece, 'base64'))), image);

  // In LiveSync's order: the chunk, then the file's document.
  await vault.bulk({ docs: [{ _id: 'h:1ecijke328qp3', type: 'leaf', data: 'from-a\n' }] });
  const times = { ctime: 1795221368666, mtime: 1795221368666 };
  await vault.insert({ ...times, path: 'From A.md', children: ['h:1ecijke328qp3'], size: 7, type: 'plain', eden: {} }, 'from a.md');
  await succeed('vault', 'pull', 'vault', into, '--url', server.url);
  assert.equal(await readFile(path.join(into, 'From A.md'), 'utf8'), 'from-a\n');
  assert.equal(await readFile(path.join(into, 'Notizen', 'Über.md'), 'utf8'), text);
  assert.deepEqual(await readFile(path.join(into, 'image.png')), image);
  assert.match(await succeed('vault', 'verify', 'vault', '--url', server.url), /^3 files/);
});

// Runs the commands of the README literally.
//
// Blocks of `sh` that use curl are run against a server on the README's own port, in order, in one
// shell with `set -e`; a comment `# {...}` or `# HTTP ...` below a command is what its output must
// contain. The PouchDB sample is run by node.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';

import { store } from '../lib/engines.mjs';
import { E2E, ROOT, Server, temporaryFolder } from '../lib/server.mjs';

const README = await readFile(path.join(ROOT, 'README.md'), 'utf8');

/** The fenced blocks of a language, without their fences. */
function blocks(language) {
  return [...README.matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\``, 'gm'))].map((match) => match[1]);
}

function execute(program, args, options) {
  return new Promise((resolve) => {
    execFile(program, args, { timeout: 60_000, ...options }, (error, stdout, stderr) =>
      resolve({ code: error ? (error.code ?? error.signal) : 0, stdout, stderr }));
  });
}

/** `text` without the parts that vary between runs: `...` in the README stands for anything. */
function pattern(expected) {
  return new RegExp(expected.trim().split('...').map((part) => part.replace(/[\\^$*+?.()|[\]{}]/g, '\\$&')).join('[\\s\\S]*?'));
}

test('the curl samples', async (t) => {
  const samples = blocks('sh').filter((block) => block.includes('curl '));
  assert.ok(samples.length > 0, 'the README has curl samples');
  const server = (await Server.start(await store(t))).endWith(t);
  let commands = 0;
  const state = path.join(await temporaryFolder(t), 'variables');
  await writeFile(state, '');
  for (const block of samples) {
    // A command continues while its line ends in a backslash or its quotes are open.
    const lines = block.replaceAll('http://127.0.0.1:5984', server.url).split('\n');
    for (let at = 0; at < lines.length;) {
      let command = lines[at++];
      if (command.trim() === '' || command.startsWith('#')) continue;
      while (command.endsWith('\\') || (command.match(/'/g) ?? []).length % 2 === 1) command += `\n${lines[at++]}`;
      const expected = [];
      while (lines[at]?.startsWith('# ')) expected.push(lines[at++].slice(2));
      const script = `set -e; . ${state}\n${command}\nset | grep -E '^(REV|SEQ)=' > ${state}.new || true; mv ${state}.new ${state}`;
      const { code, stdout, stderr } = await execute('bash', ['-c', script], { env: { PATH: process.env.PATH, no_proxy: '127.0.0.1' } });
      assert.equal(code, 0, `${command}\n${stderr}`);
      for (const line of expected) assert.match(stdout, pattern(line), command);
      commands++;
    }
  }
  t.diagnostic(`${commands} commands`);
});

test('the PouchDB sample', { timeout: 60_000 }, async (t) => {
  const samples = blocks('js').filter((block) => block.includes('PouchDB'));
  assert.equal(samples.length, 1);
  const server = (await Server.start(await store(t, 'mem'))).endWith(t);
  const folder = await temporaryFolder(t);
  await symlink(path.join(E2E, 'node_modules'), path.join(folder, 'node_modules'));
  const sample = samples[0].replaceAll('http://127.0.0.1:5984', server.url);
  await writeFile(path.join(folder, 'sample.mjs'), sample);
  const { code, stdout, stderr } = await execute('node', ['sample.mjs'], { cwd: folder });
  assert.equal(code, 0, stderr);
  for (const [, expected] of sample.matchAll(/\/\/ prints (.*)$/gm)) assert.match(stdout, pattern(expected));
});

test('the library sample is the example that is compiled and tested', async () => {
  const example = await readFile(path.join(ROOT, 'couch-layer/examples/notes.rs'), 'utf8');
  const samples = blocks('rust');
  assert.equal(samples.length, 1);
  // Line by line and in order. The README may leave lines out.
  let rest = example.split('\n').map((line) => line.trim());
  for (const line of samples[0].split('\n').map((one) => one.trim()).filter(Boolean)) {
    assert.ok(rest.includes(line), `couch-layer/examples/notes.rs does not have: ${line}`);
    rest = rest.slice(rest.indexOf(line) + 1);
  }
});

test('every link to a file leads somewhere', async () => {
  for (const [, target] of README.matchAll(/\]\((?!https?:|#)([^)#]+)/g)) {
    await assert.doesNotReject(readFile(path.join(ROOT, target)).catch((error) => {
      if (error.code !== 'EISDIR') throw error;
    }), target);
  }
});

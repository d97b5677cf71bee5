// Each acknowledgement follows a sync of its data, as observed with strace.
//
// Every request contains a unique mark. The trace shows the write of the mark to a file. An fsync or fdatasync of
// that file must start after the write and return before the 201 goes to the socket. A file opened with O_SYNC or
// O_DSYNC is accepted too.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';

import { Server, expectOk, request, skipLoudly, temporaryFolder } from '../lib/server.mjs';

const WRITES = 60;
const WRITERS = 8;

function straceWorks() {
  try {
    execFileSync('strace', ['-f', '-e', 'trace=none', 'true'], { stdio: 'pipe' });
    return true;
  } catch {
    return false;
  }
}

/** The calls of a trace in order: `{ pid, name, text, start, end }`. Interrupted calls are joined. */
export function parseTrace(text) {
  const calls = [];
  const open = new Map();
  text.split('\n').forEach((line, at) => {
    const match = /^(?:\[pid\s+)?(\d+)\]?\s+(.*)$/.exec(line);
    if (!match) return;
    const [, pid, rest] = match;
    const resumed = /^<\.\.\. (\w+) resumed>(.*)$/.exec(rest);
    if (resumed) {
      const call = open.get(pid);
      if (call?.name === resumed[1]) {
        call.text += resumed[2];
        call.end = at;
        open.delete(pid);
      }
      return;
    }
    const begun = /^(\w+)\(/.exec(rest);
    if (!begun) return;
    const call = { pid, name: begun[1], text: rest, start: at, end: at };
    if (rest.endsWith('<unfinished ...>')) {
      call.text = rest.replace(/ <unfinished \.\.\.>$/, '');
      call.end = Infinity;
      open.set(pid, call);
    }
    calls.push(call);
  });
  return calls;
}

const WRITES_TO = /^(?:write|pwrite64|writev|pwritev2?|sendto|sendmsg)\((\d+)<([^>]*(?:>[^,>]*)*)>,/;
const SYNCS = /^(?:fsync|fdatasync)\((\d+)<(.*)>\) += /;

/** For each mark: how its sync was found, or what is wrong. */
export function acknowledgements(calls, marks) {
  const writes = [];
  const syncs = [];
  for (const call of calls) {
    const written = WRITES_TO.exec(call.text);
    if (written) writes.push({ ...call, target: written[2], isSocket: /^(?:TCP|socket:)/.test(written[2]) });
    const synced = SYNCS.exec(call.text);
    if (synced && / = 0$/.test(call.text.trimEnd())) syncs.push({ ...call, target: synced[2] });
  }
  return marks.map(({ mark, rev }) => {
    const data = writes.filter((write) => !write.isSocket && write.text.includes(mark));
    const answer = writes.find((write) => write.isSocket && write.text.includes('201') && write.text.includes(rev));
    if (data.length === 0) return `${mark}: its data was never written to a file`;
    if (!answer) return `${mark}: its answer was not seen`;
    const first = data[0];
    const sync = syncs.find((one) => one.target === first.target && one.start > first.end && one.end < answer.start);
    return sync ? 'synced' : `${mark}: answered before a sync of ${first.target}`;
  });
}

test('a trace without a sync is told from one with it', () => {
  const trace = (sync) => `
10 pwrite64(7</d/db>, "xx MARK yy", 10, 0) = 10
11 pwrite64(7</d/other>, "z", 1, 0) = 1
${sync}
10 sendto(9<TCP:[127.0.0.1:1->127.0.0.1:2]>, "HTTP/1.1 201 Created REV", 24, 0, NULL, 0) = 24`;
  const judge = (sync) => acknowledgements(parseTrace(trace(sync)), [{ mark: 'MARK', rev: 'REV' }])[0];
  assert.equal(judge('10 fdatasync(7</d/db>) = 0'), 'synced');
  assert.equal(judge('11 fsync(8</d/db> <unfinished ...>\n11 <... fsync resumed>) = 0'), 'synced');
  assert.match(judge(''), /answered before/);
  assert.match(judge('10 fdatasync(7</d/other>) = 0'), /answered before/);
  assert.match(judge('10 fdatasync(7</d/db>) = -1 EIO (Input/output error)'), /answered before/);
  assert.match(judge('11 fsync(8</d/db> <unfinished ...>'), /answered before/);
  assert.match(judge('11 sync_file_range(7</d/db>, 0, 10, SYNC_FILE_RANGE_WRITE) = 0'), /answered before/);
});

for (const engine of ['lsm', 'sled']) test(`every acknowledgement follows a sync of its data on ${engine}`, { timeout: 300_000 }, async (t) => {
  if (!straceWorks()) return skipLoudly(t, 'strace is absent or may not trace here');
  const folder = await temporaryFolder(t);
  const trace = path.join(folder, 'trace');
  const server = (await Server.start(`${engine}:${path.join(folder, 'data')}`, {
    wrapper: [
      'strace', '-f', '-yy', '-s', '200000', '-o', trace, '-e',
      'trace=write,pwrite64,writev,pwritev,pwritev2,sendto,sendmsg,fsync,fdatasync,sync_file_range,mmap',
    ],
  })).endWith(t);
  const url = `${server.url}/db`;
  await expectOk(url, { method: 'PUT' });

  const marks = [];
  await Promise.all(Array.from({ length: WRITERS }, async (_, writer) => {
    for (let n = 0; n < WRITES / WRITERS; n++) {
      const mark = `mark${writer}x${n}y${Math.random().toString(36).slice(2)}`;
      const answer = await request(`${url}/doc-${writer}-${n}`, { method: 'PUT', body: { mark } });
      assert.equal(answer.status, 201);
      marks.push({ mark, rev: answer.body.rev });
    }
  }));
  await server.stop();

  const calls = parseTrace(await readFile(trace, 'utf8'));
  const found = acknowledgements(calls, marks);
  assert.deepEqual(found.filter((one) => one !== 'synced'), []);
  const syncs = calls.filter((call) => /^f(?:data)?sync$/.test(call.name)).length;
  t.diagnostic(`${marks.length} acknowledged writes, ${syncs} syncs`);
  assert.ok(syncs > 0);
});

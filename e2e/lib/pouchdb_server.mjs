// pouchdb-server's HTTP interface over PouchDB in memory, in a process of its own: its timers never end.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const self = fileURLToPath(import.meta.url);

/** Starts it; resolves to its URL. It ends with the test `t`. */
export async function pouchdbServer(t) {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'couch-layer-e2e-'));
  const child = spawn(process.execPath, [self, folder], { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(child, 'exit');
  t.after(async () => {
    child.kill('SIGKILL');
    await ended;
    rmSync(folder, { recursive: true, force: true });
  });
  const exited = ended.then(([code]) => {
    throw new Error(`pouchdb-server ended with ${code}`);
  });
  exited.catch(() => {});
  const [url] = await Promise.race([once(createInterface(child.stdout), 'line'), exited]);
  return url;
}

/** The work of the process: it serves databases below `folder`, and prints its URL. */
async function serve(folder) {
  const { default: express } = await import('express');
  const { default: expressPouchDB } = await import('express-pouchdb');
  const { default: PouchDB } = await import('./pouch.mjs');
  const Memory = PouchDB.defaults({ adapter: 'memory', prefix: `${folder}/` });
  const app = express();
  app.use('/', expressPouchDB(Memory, { inMemoryConfig: true, logPath: path.join(folder, 'log.txt') }));
  const listener = app.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  console.log(`http://127.0.0.1:${listener.address().port}`);
}

if (process.argv[1] === self) await serve(process.argv[2]);

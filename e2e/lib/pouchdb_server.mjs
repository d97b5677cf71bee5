// pouchdb-server's HTTP interface over PouchDB in memory, in this process.

import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';

import express from 'express';
import expressPouchDB from 'express-pouchdb';

import PouchDB from './pouch.mjs';

/** Starts it; resolves to its URL. It ends with the test `t`. */
export async function pouchdbServer(t) {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'couch-layer-e2e-'));
  const Memory = PouchDB.defaults({ adapter: 'memory', prefix: `${folder}/` });
  const app = express();
  app.use('/', expressPouchDB(Memory, { inMemoryConfig: true, logPath: path.join(folder, 'log.txt') }));
  const listener = app.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  t.after(() => {
    listener.close();
    listener.closeAllConnections();
    rmSync(folder, { recursive: true, force: true });
  });
  return `http://127.0.0.1:${listener.address().port}`;
}

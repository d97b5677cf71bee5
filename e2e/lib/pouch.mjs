// PouchDB with leveldb on disk, or in memory.

import PouchDB from 'pouchdb-node';
import memoryAdapter from 'pouchdb-adapter-memory';

PouchDB.plugin(memoryAdapter);

export default PouchDB;

/** Replicates once. Fails if any document could not be written. */
export async function replicate(source, target, options = {}) {
  const result = await PouchDB.replicate(source, target, { batch_size: 1_000, batches_limit: 4, ...options });
  if (!result.ok || result.doc_write_failures > 0 || result.errors.length > 0) {
    throw new Error(`replication failed: ${JSON.stringify(result)}`);
  }
  return result;
}

/** Replicates once in both directions. */
export async function replicateBoth(one, other) {
  await replicate(one, other);
  await replicate(other, one);
}

/** A database in this folder, which is closed when the test `t` ends. */
export function localDatabase(t, folder) {
  const database = new PouchDB(folder);
  t.after(() => database.close());
  return database;
}

// PouchDB as its users have it: leveldb on disk, or in memory.

import PouchDB from 'pouchdb-node';
import memoryAdapter from 'pouchdb-adapter-memory';

PouchDB.plugin(memoryAdapter);

export default PouchDB;

/** Replicates once and fails on any document that could not be written. */
export async function replicate(source, target, options = {}) {
  const result = await PouchDB.replicate(source, target, { batch_size: 1_000, batches_limit: 4, ...options });
  if (!result.ok || result.doc_write_failures > 0 || result.errors.length > 0) {
    throw new Error(`replication failed: ${JSON.stringify(result)}`);
  }
  return result;
}

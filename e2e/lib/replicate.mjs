// Replicates once by PouchDB: node lib/replicate.mjs SOURCE TARGET. For benchmarks.

import PouchDB from 'pouchdb-node';

const [source, target] = process.argv.slice(2);
const { ok, doc_write_failures: failures } = await PouchDB.replicate(source, target);
process.exit(ok && failures === 0 ? 0 : 1);

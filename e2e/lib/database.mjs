// Reads a database over HTTP, in a form in which two databases can be compared.

import assert from 'node:assert/strict';

import { expectOk } from './server.mjs';

/** Every row of `_changes` with every leaf, in order, read in pages. */
export async function allChanges(url, { page = 5_000, query = '', headers = {} } = {}) {
  const rows = [];
  for (let since = '0'; ;) {
    const batch = await expectOk(`${url}/_changes?style=all_docs&limit=${page}&since=${since}${query}`, { headers });
    rows.push(...batch.results);
    if (batch.results.length === 0 || batch.pending === 0) return rows;
    since = batch.last_seq;
  }
}

/** Every row of `_all_docs` with its document, in order, read in pages. */
export async function allDocs(url, { page = 5_000, query = '' } = {}) {
  const rows = [];
  for (let start = null; ;) {
    const from = start === null ? '' : `&skip=1&startkey=${encodeURIComponent(JSON.stringify(start))}`;
    const batch = await expectOk(`${url}/_all_docs?include_docs=true&conflicts=true&limit=${page}${from}${query}`);
    rows.push(...batch.rows);
    if (batch.rows.length === 0) return rows;
    start = rows.at(-1).id;
  }
}

/** All leaf revisions of a database: `id -> sorted revisions`, deleted ones marked. */
export async function leaves(url) {
  const rows = await allChanges(url);
  const found = new Map();
  for (const row of rows) {
    assert.ok(!found.has(row.id), `${row.id} stands in _changes twice`);
    found.set(row.id, `${row.deleted ? 'deleted ' : ''}${row.changes.map((change) => change.rev).sort()}`);
  }
  return found;
}

/** Fails unless both databases have the same documents, with equal revisions and members. */
export async function assertSame(left, right) {
  const [leftLeaves, rightLeaves] = [await leaves(left), await leaves(right)];
  assert.equal(rightLeaves.size, leftLeaves.size, 'documents in _changes');
  for (const [id, revs] of leftLeaves) assert.equal(rightLeaves.get(id), revs, `the leaves of ${id}`);

  const [leftDocs, rightDocs] = [await allDocs(left), await allDocs(right)];
  assert.equal(rightDocs.length, leftDocs.length, 'rows in _all_docs');
  leftDocs.forEach((row, index) => assert.deepEqual(rightDocs[index], row));
  return { changes: leftLeaves.size, documents: leftDocs.length };
}

/** Documents with `_revisions`, in the order of `ids`. */
export async function withRevisions(url, ids) {
  const { results } = await expectOk(`${url}/_bulk_get?revs=true`, {
    method: 'POST',
    body: { docs: ids.map((id) => ({ id })) },
  });
  return results.map((result) => result.docs.map((doc) => doc.ok));
}

// The examples of PouchDB's manual on queries with their documented answers, over HTTP and in a local PouchDB.

import assert from 'node:assert/strict';
import test from 'node:test';

import findPlugin from 'pouchdb-find';

import { store } from '../lib/engines.mjs';
import { REV } from '../lib/manual/example.mjs';
import * as mango from '../lib/manual/mango.mjs';
import * as views from '../lib/manual/views.mjs';
import PouchDB from '../lib/pouch.mjs';
import { Server } from '../lib/server.mjs';

PouchDB.plugin(findPlugin);

const EXAMPLES = [mango.GUIDE, mango.API, views.GUIDE, views.API].flat();

/** Functions that open a database: on a server, or in memory. */
const SIDES = {
  server: async (t) => {
    const server = (await Server.start(await store(t, 'mem'))).endWith(t);
    return (name) => new PouchDB(`${server.url}/${name}`);
  },
  local: () => (name) => new PouchDB(`pouchdb-manual-${process.pid}-${name}`, { adapter: 'memory' }),
};

for (const [side, opener] of Object.entries(SIDES)) {
  test(`the examples of PouchDB's manual have its answers: ${side}`, async (t) => {
    const open = await opener(t);
    for (const [number, { at, data, call, ...answers }] of EXAMPLES.entries()) {
      const db = open(`example-${number}`);
      await db.bulkDocs(data.map((doc) => ({ _rev: REV, ...doc })), { new_edits: false });
      const answer = await call(db).catch((error) => {
        if (error instanceof assert.AssertionError) throw error;
        return { refused: error.name };
      });
      // With `at`, so that a failure names the example.
      assert.deepEqual({ at, answer }, { at, answer: side in answers ? answers[side] : answers.answer });
      if (side in answers) {
        assert.ok(answers.why, at);
        assert.notDeepEqual(answers[side], answers.answer, `${at} differs no longer`);
      }
      await db.destroy();
    }
  });
}

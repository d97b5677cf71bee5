// Examples of a manual: places in it, data, calls and answers. A call is a function of a database.
//
// A server must answer like CouchDB 3.5. If its answer, or that of a local PouchDB, differs from PouchDB's manual, the
// example has that answer too, as `server` or `local`, and the reason as `why`.

/** The revision of data without one: the same on both sides, so that whole documents can be compared. */
export const REV = '1-11111111111111111111111111111111';

/** Examples of one place with different questions: each has the question, the answer and, if needed, the difference. */
export const each = (at, data, call, list) => list.map(([asked, answer, differs]) =>
  ({ at: `${at}: ${JSON.stringify(asked)}`, data, call: call(asked), answer, ...differs }));

// Examples of a manual: places in it, data, calls and answers. A call is a function of a database.
//
// A server answers as CouchDB 3.5 does. Where that differs from PouchDB's manual, or a local PouchDB does, an example
// has that answer too, as `server` or `local`, and says `why`.

/** The revision of data that names none: the same on both sides, so that whole documents can be compared. */
export const REV = '1-11111111111111111111111111111111';

/** Examples of one place that differ in what they ask: that, the answer and, if need be, what differs. */
export const each = (at, data, call, list) => list.map(([asked, answer, differs]) =>
  ({ at: `${at}: ${JSON.stringify(asked)}`, data, call: call(asked), answer, ...differs }));

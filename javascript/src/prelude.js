// What a sandbox gives to functions of design documents. It runs once in each new context, before any of their code,
// and returns what the Rust side calls. It keeps the built-in functions that it needs in constants, because functions
// may replace them.
(function (native) {
  'use strict';

  const { freeze, isFrozen, getOwnPropertyDescriptor, defineProperty, getOwnPropertyNames, hasOwn } = Object;
  const { isArray } = Array;
  const { stringify, parse } = JSON;
  const { apply } = Reflect;
  const evaluate = eval;
  const SystemDate = Date;

  const define = (object, name, value) =>
    defineProperty(object, name, { value, writable: true, enumerable: false, configurable: true });

  // Functions in C that loop without asking the interrupt handler. An array holds at most as many elements as fit into
  // the memory limit, but its `length` may be 4,294,967,295 all the same, and that of an object even 2^53 - 1.
  const LONGEST = 4_000_000;
  const checkLength = (object) => {
    if (object === null || typeof object !== 'object' && typeof object !== 'function') return;
    const length = isArray(object) ? object.length : getOwnPropertyDescriptor(object, 'length')?.value ?? ('length' in object ? Infinity : 0);
    if (typeof length !== 'number' || length > LONGEST) throw new RangeError('The array is too long.');
  };
  const guarded = (holder, name, check) => {
    const original = holder[name];
    // A method, since it has no `prototype` and is no constructor, as the original.
    define(holder, name, { [name](...inputs) { check(this, inputs); return apply(original, this, inputs); } }[name]);
  };
  for (const name of ['copyWithin', 'fill', 'join', 'reverse', 'shift', 'slice', 'sort', 'splice', 'toLocaleString',
    'toReversed', 'toSorted', 'toSpliced', 'toString', 'unshift', 'with']) {
    guarded(Array.prototype, name, checkLength);
  }
  const checkAll = (self, inputs) => {
    checkLength(self);
    for (let i = 0; i < inputs.length; i++) if (isArray(inputs[i])) checkLength(inputs[i]);
  };
  guarded(Array.prototype, 'concat', checkAll);
  for (const name of ['flat', 'flatMap', 'values', 'keys', 'entries']) guarded(Array.prototype, name, checkLength);
  define(Array.prototype, Symbol.iterator, Array.prototype.values);

  // A search for a long string in a long one compares each with each in the worst case.
  const MOST_COMPARISONS = 2 ** 34;
  const checkSearch = (self, inputs) => {
    const needle = inputs[0];
    if (typeof self === 'string' && typeof needle === 'string' && self.length * needle.length > MOST_COMPARISONS) {
      throw new RangeError('The strings are too long to search one in the other.');
    }
  };
  for (const name of ['includes', 'indexOf', 'lastIndexOf', 'replace', 'replaceAll', 'split']) {
    guarded(String.prototype, name, checkSearch);
  }
  // Both sort combining characters, in quadratic time.
  const checkShort = (self, inputs) => {
    if (String(self).length > 100_000 || typeof inputs[0] === 'string' && inputs[0].length > 100_000) {
      throw new RangeError('The string is too long to be normalised.');
    }
  };
  for (const name of ['normalize', 'localeCompare']) guarded(String.prototype, name, checkShort);

  // The current time, and chance. Where a result must depend on the document alone, there is no current time, and chance
  // begins anew with each document.
  const now = () => {
    const time = native.now();
    if (time === undefined) {
      throw new Error('The current time exists in update functions only: elsewhere a result must depend on the document alone.');
    }
    return time;
  };
  const LimitedDate = function Date(...inputs) {
    if (new.target === undefined) return new SystemDate(now()).toString();
    return Reflect.construct(SystemDate, inputs.length === 0 ? [now()] : inputs, new.target);
  };
  LimitedDate.prototype = SystemDate.prototype;
  define(SystemDate.prototype, 'constructor', LimitedDate);
  define(LimitedDate, 'now', now);
  define(LimitedDate, 'parse', SystemDate.parse);
  define(LimitedDate, 'UTC', SystemDate.UTC);
  defineProperty(LimitedDate, 'length', { value: 7 });
  define(globalThis, 'Date', LimitedDate);
  define(Math, 'random', () => native.random());

  // An Error has no members of its own in JSON.
  const shown = (value) =>
    value instanceof Error ? { error: value.name, message: value.message } : value;

  define(globalThis, 'emit', (key, value) => native.emit(key, shown(value)));
  define(globalThis, 'isArray', (value) => isArray(value));
  define(globalThis, 'toJSON', (value) => stringify(value));
  define(globalThis, 'log', (message) => {
    native.log(typeof message === 'string' ? message : String(stringify(shown(message))));
  });
  define(globalThis, 'sum', (values) => {
    let total = 0;
    if (isArray(values)) {
      for (let i = 0; i < values.length; i++) total += values[i];
    } else {
      for (const name in values) total += values[name];
    }
    return total;
  });

  // Freezes a JSON value with all that it holds, without recursion.
  const freezeAll = (value) => {
    const open = [value];
    while (open.length > 0) {
      const next = open.pop();
      if (next === null || typeof next !== 'object' || isFrozen(next)) continue;
      freeze(next);
      const names = getOwnPropertyNames(next);
      for (let i = 0; i < names.length; i++) {
        const inner = next[names[i]];
        if (inner !== null && typeof inner === 'object') open[open.length] = inner;
      }
    }
    return value;
  };

  // CommonJS modules are strings in the design document. A path starts at the document, or, with `.` or `..`, at the
  // folder of the module that asks.
  const modules = new Map();
  const fail = (name, message) => {
    const error = new Error(message);
    error.name = name;
    throw error;
  };
  const requireFrom = (design, folder) => (path) => {
    const names = String(path).split('/');
    const place = names[0] === '.' || names[0] === '..' ? folder.slice() : [];
    for (const name of names) {
      if (name === '..') {
        if (place.length === 0) fail('invalid_require_path', `'${path}' leads out of the design document`);
        place.pop();
      } else if (name !== '.') {
        place.push(name);
      }
    }
    const id = place.join('/');
    const known = modules.get(id);
    if (known !== undefined) return known.exports;
    let source = design;
    for (const name of place) {
      if (source === null || typeof source !== 'object' || !hasOwn(source, name)) {
        fail('invalid_require_path', `Object has no property "${name}". ('${path}')`);
      }
      source = source[name];
    }
    if (typeof source !== 'string') {
      fail('invalid_require_path', `Must require a JavaScript string, not: ${typeof source} ('${path}')`);
    }
    const module = { id, exports: {} };
    // Known before it runs, so that modules may require each other.
    modules.set(id, module);
    try {
      const body = evaluate(`(function (module, exports, require) {${source}\n})`);
      apply(body, globalThis, [module, module.exports, requireFrom(design, place.slice(0, -1))]);
    } catch (error) {
      modules.delete(id);
      fail('compilation_error', `Module require('${path}') raised error ${error}`);
    }
    return module.exports;
  };

  let design;
  return {
    open(text) {
      design = freezeAll(parse(text));
      define(globalThis, 'require', requireFrom(design, []));
      return design;
    },
    freeze: freezeAll,
  };
})

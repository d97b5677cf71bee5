// The built-in functions that a sandbox gives to functions of design documents. It runs once in each new context,
// before any of their code, and returns the functions that the Rust side calls. It keeps the built-in functions that it
// needs in constants, because functions may replace them.
(function (native) {
  'use strict';

  const { freeze, isFrozen, getOwnPropertyDescriptor, getPrototypeOf, defineProperty, getOwnPropertyNames, hasOwn } = Object;
  const { isArray } = Array;
  const { stringify, parse } = JSON;
  const { apply } = Reflect;
  const evaluate = eval;
  const SystemDate = Date;

  const define = (object, name, value) =>
    defineProperty(object, name, { value, writable: true, enumerable: false, configurable: true });

  // QuickJS checks the time only at each 10,000th loop or call. So functions that may take long check it themselves,
  // and a late script enters a loop which QuickJS ends.
  const ask = () => {
    if (native.isLate()) for (;;);
  };

  // Functions in C that loop without calling the interrupt handler. An array has at most as many elements as fit into
  // the memory limit. But its `length` may still be 4,294,967,295, and that of an object even 2^53 - 1.
  const LONGEST = 4_000_000;
  const checkLength = (object) => {
    if (object === null || typeof object !== 'object' && typeof object !== 'function') return;
    const length = isArray(object) ? object.length : getOwnPropertyDescriptor(object, 'length')?.value ?? ('length' in object ? Infinity : 0);
    if (typeof length !== 'number' || length > LONGEST) throw new RangeError('The array is too long.');
  };
  const LONG = 1_000;
  const isShort = (value) => (typeof value === 'string' || isArray(value)) && value.length < LONG;
  const guarded = (holder, name, check) => {
    const original = holder[name];
    // A method: like the original, it has no `prototype` and is not a constructor.
    define(holder, name, {
      [name](...inputs) {
        check?.(this, inputs);
        if (!isShort(this)) ask();
        return apply(original, this, inputs);
      },
    }[name]);
  };
  // Replaces a built-in function by another one, which gets its arguments as a list.
  const replace = (holder, name, by) => define(holder, name, { [name](...inputs) { return apply(by, this, [inputs]); } }[name]);
  for (const name of ['copyWithin', 'fill', 'includes', 'indexOf', 'join', 'lastIndexOf', 'reverse', 'shift', 'slice', 'sort',
    'splice', 'toLocaleString', 'toReversed', 'toSorted', 'toSpliced', 'toString', 'unshift', 'with']) {
    guarded(Array.prototype, name, checkLength);
  }
  for (const name of ['values', 'keys', 'entries']) guarded(Array.prototype, name, checkLength);
  define(Array.prototype, Symbol.iterator, Array.prototype.values);
  const typedArrays = getPrototypeOf(Uint8Array.prototype);
  for (const name of ['copyWithin', 'fill', 'includes', 'indexOf', 'join', 'lastIndexOf', 'reverse', 'set', 'slice', 'sort',
    'toReversed', 'toSorted']) {
    guarded(typedArrays, name);
  }
  for (const name of ['freeze', 'isFrozen', 'isSealed', 'seal']) guarded(Object, name);

  // A comparison of long strings takes long.
  const compare = (a, b) => {
    const one = `${a}`;
    const other = `${b}`;
    if (one.length > LONG) ask();
    return one < other ? -1 : one > other ? 1 : 0;
  };
  for (const name of ['sort', 'toSorted']) {
    const original = Array.prototype[name];
    replace(Array.prototype, name, function (inputs) {
      return apply(original, this, [inputs[0] === undefined ? compare : inputs[0]]);
    });
  }

  // Loops over values of any length are written in JavaScript.
  const { concat } = Array.prototype;
  const isObject = (value) => typeof value === 'object' && value !== null || typeof value === 'function';
  replace(Array.prototype, 'concat', function (inputs) {
    const all = [Object(this)];
    for (let i = 0; i < inputs.length; i++) all[i + 1] = inputs[i];
    let isPlain = true;
    for (let i = 0; i < all.length; i++) {
      if (isArray(all[i])) checkLength(all[i]);
      else if (isObject(all[i])) isPlain = false;
    }
    if (isPlain) {
      if (!isShort(this)) ask();
      return apply(concat, this, inputs);
    }
    const out = [];
    for (let i = 0; i < all.length; i++) {
      const input = all[i];
      if (!isObject(input) || !(input[Symbol.isConcatSpreadable] ?? isArray(input))) {
        out[out.length] = input;
        continue;
      }
      const { length } = input;
      for (let k = 0; k < length; k++) {
        if (k in input) out[out.length] = input[k];
        else out.length += 1;
      }
    }
    return out;
  });
  const flatten = (out, from, depth) => {
    const { length } = from;
    for (let i = 0; i < length; i++) {
      if (!(i in from)) continue;
      const inner = from[i];
      if (depth >= 1 && isArray(inner)) flatten(out, inner, depth - 1);
      else out[out.length] = inner;
    }
    return out;
  };
  replace(Array.prototype, 'flat', function (inputs) {
    return flatten([], Object(this), inputs[0] === undefined ? 1 : +inputs[0] || 0);
  });
  replace(Array.prototype, 'flatMap', function (inputs) {
    const map = inputs[0];
    const from = Object(this);
    const { length } = from;
    if (typeof map !== 'function') throw new TypeError('not a function');
    const out = [];
    for (let i = 0; i < length; i++) {
      if (!(i in from)) continue;
      const made = apply(map, inputs[1], [from[i], i, from]);
      if (isArray(made)) flatten(out, made, 0);
      else out[out.length] = made;
    }
    return out;
  });
  replace(JSON, 'stringify', (inputs) => {
    ask();
    const replacer = inputs[1];
    if (!isArray(replacer)) return stringify(inputs[0], replacer, inputs[2]);
    const names = [];
    for (let i = 0; i < replacer.length; i++) {
      const name = replacer[i];
      if (typeof name === 'string' || typeof name === 'number' || name instanceof String || name instanceof Number) {
        names[names.length] = `${name}`;
      }
    }
    return stringify(inputs[0], names, inputs[2]);
  });
  guarded(JSON, 'parse');
  replace(String, 'raw', (inputs) => {
    const { raw } = inputs[0];
    const { length } = raw;
    let text = '';
    for (let i = 0; i < length; i++) {
      text += `${raw[i]}`;
      if (i + 1 < length && i + 1 < inputs.length) text += `${inputs[i + 1]}`;
    }
    return text;
  });
  guarded(Iterator.prototype, 'drop', (self, inputs) => {
    inputs[0] = +inputs[0];
    if (inputs[0] > LONGEST) throw new RangeError('The iterator is too long.');
  });

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
  for (const name of ['endsWith', 'isWellFormed', 'match', 'matchAll', 'search', 'startsWith']) guarded(String.prototype, name);
  // Both sort combining characters, in quadratic time.
  const checkShort = (self, inputs) => {
    if (String(self).length > 100_000 || typeof inputs[0] === 'string' && inputs[0].length > 100_000) {
      throw new RangeError('The string is too long to be normalised.');
    }
  };
  for (const name of ['normalize', 'localeCompare']) guarded(String.prototype, name, checkShort);

  // The current time, and random numbers. Functions of views have no current time, and their random numbers start again
  // with each document: an index must depend only on its documents.
  const now = () => {
    const time = native.now();
    if (time === undefined) {
      throw new Error('There is no current time in map and reduce functions: an index must depend on its documents alone.');
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

  // Freezes a JSON value with all its values, without recursion. It calls nothing that functions may replace: their
  // time is not limited here.
  const freezeAll = (value) => {
    let open = { value, rest: null };
    while (open !== null) {
      const next = open.value;
      open = open.rest;
      if (next === null || typeof next !== 'object' || isFrozen(next)) continue;
      freeze(next);
      const names = getOwnPropertyNames(next);
      for (let i = 0; i < names.length; i++) {
        const inner = next[names[i]];
        if (inner !== null && typeof inner === 'object') open = { value: inner, rest: open };
      }
    }
    return value;
  };

  // CommonJS modules are strings in the design document. A path starts at the document, or, with `.` or `..`, at the
  // folder of the module that asks.
  //
  // Modules that require each other are loaded together or not at all: if one fails, those that saw it half loaded are
  // dropped too. A call that is stopped runs no `catch`, so the next call finds its modules still loading, and drops
  // them.
  const modules = { __proto__: null };
  let loading = { id: null, rest: null };
  const none = loading;
  let caller = 0;
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
    const call = native.call();
    if (call !== caller) {
      for (; loading !== none; loading = loading.rest) delete modules[loading.id];
      caller = call;
    }
    const known = modules[id];
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
    if (native.isDeep(source)) fail('compilation_error', `The module '${path}' is nested too deeply.`);
    const module = { id, exports: {} };
    const before = loading;
    loading = { id, rest: before };
    // Known before it runs, so that modules may require each other.
    modules[id] = module;
    try {
      const body = evaluate(`(function (module, exports, require) {${source}\n})`);
      apply(body, globalThis, [module, module.exports, requireFrom(design, place.slice(0, -1))]);
    } catch (error) {
      // It calls nothing: there may be no stack left.
      for (; loading !== before; loading = loading.rest) delete modules[loading.id];
      fail('compilation_error', `Module require('${path}') raised error ${error}`);
    }
    if (before === none) loading = none;
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
    // The string at a path of the design document. Its own members only: `views/constructor` is not a view.
    source(...path) {
      let value = design;
      for (let i = 0; i < path.length; i++) {
        if (value === null || typeof value !== 'object' || !hasOwn(value, path[i])) return undefined;
        value = value[path[i]];
      }
      return typeof value === 'string' ? value : undefined;
    },
  };
})

//! One design document in a heap of its own.

use std::{
    cell::Cell,
    collections::HashMap,
    rc::Rc,
    sync::Weak,
    time::{Duration, Instant},
};

use rquickjs::{
    Context, Ctx, Function, Object, Persistent, Value,
    context::{EvalOptions, intrinsic},
    function::{Args, Rest},
};

use crate::{
    Error, ErrorKind, Limits,
    deadline::thread_time,
    heap::Heap,
    limits::MAX_STACK,
    state::{CallState, EmittedRow, Purpose, is_deep},
};

const PRELUDE: &str = include_str!("prelude.js");

/// `Proxy` and `WeakRef` are left out. With a proxy, a length could change between its check and its use. A weak
/// reference depends on the collector, and a result must depend only on the document. Promises are never run, but async
/// functions need the class.
type Builtins = (
    intrinsic::Date,
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::MapSet,
    intrinsic::TypedArrays,
    intrinsic::Promise,
);

/// Time for work in which no function runs: it ends by itself, and memory bounds it.
const OWN_TIME: Duration = Duration::from_secs(60);

/// Cycles are collected after this many calls.
const COLLECTED_AFTER: u32 = 64;

/// Maximum time to describe a thrown value, which may run code of its own.
const TIME_TO_DESCRIBE: Duration = Duration::from_millis(100);

/// A design document and its functions. It stays on its thread.
///
/// Its owner should replace it when it [is full](Sandbox::is_full).
pub struct Sandbox {
    // Values of the heap come before the heap, since fields are dropped in this order.
    functions: HashMap<String, Compiled>,
    design: Persistent<Value<'static>>,
    freeze: Persistent<Function<'static>>,
    source: Persistent<Function<'static>>,
    context: Context,
    heap: Heap,
    /// A function ran out of memory, and its objects may still be reachable. Or it was stopped because nobody waits for
    /// it, and may have left its work half done.
    is_full: bool,
    /// Calls since cycles were collected.
    calls: u32,
    /// In a pool, the end of this sandbox's turn.
    turn_ends: Option<Instant>,
    pub(crate) state: Rc<CallState>,
}

struct Compiled {
    function: Persistent<Function<'static>>,
    /// Calls that took too long.
    timeouts: u32,
}

/// An argument of a function.
pub(crate) enum Input<'i> {
    /// A document that is parsed and frozen.
    Parsed(&'i Persistent<Value<'static>>),
    /// JSON text.
    Json(&'i str),
    Bool(bool),
}

impl Input<'_> {
    fn value<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Value<'js>> {
        match self {
            Input::Parsed(value) => (*value).clone().restore(ctx),
            Input::Json(text) => ctx.json_parse(*text),
            Input::Bool(value) => Ok(Value::new_bool(ctx.clone(), *value)),
        }
    }
}

/// The result of a call: its value, and the emitted rows.
pub(crate) struct Outcome<T> {
    pub value: T,
    pub rows: Vec<EmittedRow>,
    pub emitted: bool,
}

impl Sandbox {
    /// Opens a sandbox for a design document, given as JSON text. No function is compiled yet.
    ///
    /// # Errors
    /// [`ErrorKind::Engine`] if QuickJS could not be started or the text is not JSON, [`ErrorKind::Memory`] if it does
    /// not fit.
    pub fn open(design: &str, limits: Limits) -> Result<Sandbox, Error> {
        let engine = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Engine, "QuickJS", error.to_string());
        let id = json::JsonText::parse(design.as_bytes()).map_err(|error| engine(&error))?;
        let id = id.get("_id").map(|id| id.str_or_text().into_owned()).unwrap_or_default();
        let state = CallState::new(limits, id);
        let heap = Heap::new(&state).map_err(|error| engine(&error))?;
        heap.set_max_stack_size(limits.stack.clamp(1, MAX_STACK));
        // QuickJS collects cycles when it makes an object. When memory runs out in the middle of a change, it makes an
        // error object. The collector would then walk over a broken heap. So it runs only between calls.
        heap.set_gc_threshold(usize::MAX);
        let handler = state.clone();
        heap.set_interrupt_handler(Some(Box::new(move || handler.must_stop())));
        let context = Context::custom::<Builtins>(&heap).map_err(|error| engine(&error))?;
        state.begin(OWN_TIME, Purpose::View(0));
        let opened = context.with(|ctx| {
            let open = || {
                let prelude: Function<'_> = ctx.eval_with_options(PRELUDE, options())?;
                let helpers: Object<'_> = prelude.call((state.natives(&ctx)?,))?;
                let open: Function<'_> = helpers.get("open")?;
                let design: Value<'_> = open.call((design,))?;
                let function = |name: &str| helpers.get(name).map(|it: Function<'_>| Persistent::save(&ctx, it));
                Ok((Persistent::save(&ctx, design), function("freeze")?, function("source")?))
            };
            open().map_err(|error| explain(&ctx, &state, "design document", error))
        });
        state.end();
        let (design, freeze, source) = opened?;
        let functions = HashMap::new();
        Ok(Sandbox {
            functions,
            design,
            freeze,
            source,
            context,
            heap,
            is_full: false,
            calls: 0,
            turn_ends: None,
            state,
        })
    }

    /// Compiles the function at a path of the design document, such as `["views", "by_name", "map"]`, unless it is
    /// compiled already.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`], or [`ErrorKind::Compilation`] if its source is not a function.
    pub fn compile(&mut self, path: &[&str]) -> Result<(), Error> {
        self.compile_within(path, &mut self.state.limits.time.clone())
    }

    /// The same, for several functions that share their time. `left` is the time that is left: compiling runs code too.
    pub(crate) fn compile_within(&mut self, path: &[&str], left: &mut Duration) -> Result<(), Error> {
        let name = path.join("/");
        if self.functions.contains_key(&name) {
            return Ok(());
        }
        let late = || {
            let time = self.state.limits.time;
            Error::new(ErrorKind::Time, &name, format!("compiling functions took longer than {time:?}"))
        };
        if left.is_zero() {
            return Err(late());
        }
        let begun = thread_time();
        self.state.begin(*left, Purpose::of(path));
        let compiled = self.context.with(|ctx| {
            let source = || self.source.clone().restore(&ctx)?.call::<_, Option<String>>((Rest(path.to_vec()),));
            let source = source()
                .map_err(|error| explain(&ctx, &self.state, &name, error))?
                .ok_or_else(|| Error::new(ErrorKind::Missing, &name, format!("missing function {name}")))?;
            let function = compile(&ctx, &self.state, &name, &source)?;
            Ok(Persistent::save(&ctx, function))
        });
        self.state.end();
        *left = left.saturating_sub(thread_time().saturating_sub(begun));
        let function = compiled.map_err(|error: Error| if error.kind() == ErrorKind::Time { late() } else { error })?;
        self.functions.insert(name, Compiled { function, timeouts: 0 });
        Ok(())
    }

    /// Does `work` in one turn. The running script is stopped once every holder of `wanted` is dropped.
    pub(crate) fn work_while<T>(&mut self, wanted: Weak<()>, work: impl FnOnce(&mut Sandbox) -> T) -> T {
        self.begin_turn();
        self.state.wanted.replace(Some(wanted));
        let done = work(self);
        self.is_full |= self.state.is_abandoned();
        self.state.wanted.take();
        self.turn_ends = None;
        done
    }

    /// Gives the work a whole turn from now on.
    pub(crate) fn begin_turn(&mut self) {
        self.turn_ends = Some(Instant::now() + self.state.limits.turn);
    }

    /// Whether the rest of the work in a pool should be another turn: others wait, or the sandbox should be replaced.
    pub(crate) fn should_rest(&self) -> bool {
        self.turn_ends.is_some_and(|end| self.is_full || end < Instant::now())
    }

    /// Calls a function, and compiles it first if needed. `this` is the design document. `read` reads the result,
    /// within the limits of the call.
    pub(crate) fn call<T>(
        &mut self,
        path: &[&str],
        purpose: Purpose,
        inputs: &[Input<'_>],
        read: impl for<'js> FnOnce(&Ctx<'js>, Value<'js>) -> rquickjs::Result<T>,
    ) -> Result<Outcome<T>, Error> {
        self.compile(path)?;
        let name = path.join("/");
        let compiled = self.functions.get_mut(&name).expect("it was compiled");
        let limits = self.state.limits;
        let time = limits.time / (1 << compiled.timeouts.min(6));
        self.state.begin(time, purpose);
        let given = Cell::new(false);
        let result = self.context.with(|ctx| {
            let call = || {
                let function = compiled.function.clone().restore(&ctx)?;
                let mut arguments = Args::new(ctx.clone(), inputs.len());
                arguments.this(self.design.clone().restore(&ctx)?)?;
                for input in inputs {
                    arguments.push_arg(input.value(&ctx)?)?;
                }
                given.set(true);
                let value = function.call_arg(arguments)?;
                read(&ctx, value)
            };
            match call() {
                Ok(_) if self.state.too_much.get() => Err(too_much(&name, &limits)),
                Ok(value) => Ok(value),
                Err(error) if given.get() => Err(explain(&ctx, &self.state, &name, error)),
                Err(error) => Err(explain(&ctx, &self.state, &name, error).of_input()),
            }
        });
        let emitted = self.state.emitted.get();
        let rows = self.state.end();
        if let Err(error) = &result
            && error.kind() == ErrorKind::Time
            && !self.state.is_abandoned()
        {
            compiled.timeouts += 1;
        }
        self.calls += 1;
        if self.calls >= COLLECTED_AFTER {
            self.calls = 0;
            self.heap.run_gc();
        }
        self.is_full |=
            result.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Memory | ErrorKind::Input));
        Ok(Outcome { value: result?, rows, emitted })
    }

    /// Runs `work` in the context, outside of any function. Its errors name `name`.
    pub(crate) fn with<T>(
        &self,
        name: &str,
        work: impl for<'js> FnOnce(&Ctx<'js>) -> rquickjs::Result<T>,
    ) -> Result<T, Error> {
        self.state.begin(OWN_TIME, Purpose::View(0));
        let result = self.context.with(|ctx| work(&ctx).map_err(|error| explain(&ctx, &self.state, name, error)));
        self.state.end();
        result
    }

    /// Parses a document and freezes it with all its values.
    pub(crate) fn parse(&self, name: &str, text: &str) -> Result<Persistent<Value<'static>>, Error> {
        self.with(name, |ctx| {
            let value = ctx.json_parse(text)?;
            let freeze = self.freeze.clone().restore(ctx)?;
            let value: Value<'_> = freeze.call((value,))?;
            Ok(Persistent::save(ctx, value))
        })
    }

    /// Whether the sandbox should be replaced: a function ran out of memory, or was stopped because nobody waits for
    /// it.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Bytes of the heap, including those that are not in use any more.
    pub(crate) fn memory_held(&self) -> usize {
        self.heap.bytes()
    }

    /// Bytes of the heap that are in use. This walks over the whole heap.
    pub fn memory_used(&self) -> usize {
        self.heap.run_gc();
        usize::try_from(self.heap.memory_usage().malloc_size).unwrap_or(usize::MAX)
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("functions", &self.functions.keys()).finish_non_exhaustive()
    }
}

/// Sloppy mode, as in CouchDB.
fn options() -> EvalOptions {
    let mut options = EvalOptions::default();
    options.strict = false;
    options
}

/// Evaluates a source as CouchDB does: an expression, or a script whose last value is the function. A declaration has
/// no value, so `function f(doc) {}` is refused.
fn compile<'js>(ctx: &Ctx<'js>, state: &CallState, name: &str, source: &str) -> Result<Function<'js>, Error> {
    let refused = |reason: String| Error::new(ErrorKind::Compilation, name, reason);
    if is_deep(source) {
        return Err(refused(TOO_DEEP.to_owned()));
    }
    let value = match evaluate(ctx, source) {
        Ok(value) => value,
        Err(error) => {
            let error = explain(ctx, state, name, error);
            if error.name() != Some("SyntaxError") {
                return Err(error.while_compiling());
            }
            let bare = source.trim_end_matches(|c: char| c.is_whitespace() || c == ';');
            evaluate(ctx, &format!("({bare}\n)")).map_err(|error| explain(ctx, state, name, error).while_compiling())?
        }
    };
    value.into_function().ok_or_else(|| refused(format!("Expression does not eval to a function. ({source})")))
}

const TOO_DEEP: &str = "the brackets of the source are nested too deeply";

/// Evaluates a script in the global scope.
fn evaluate<'js>(ctx: &Ctx<'js>, source: &str) -> rquickjs::Result<Value<'js>> {
    ctx.eval_with_options(source, options())
}

pub(crate) fn too_much(name: &str, limits: &Limits) -> Error {
    Error::new(ErrorKind::Output, name, format!("the function gave more than {} bytes", limits.output))
}

/// Our error for one of QuickJS. Takes the exception out of the context.
fn explain(ctx: &Ctx<'_>, state: &CallState, name: &str, error: rquickjs::Error) -> Error {
    let limits = &state.limits;
    let thrown = error.is_exception().then(|| ctx.catch());
    if state.timed_out.get() {
        return Error::new(ErrorKind::Time, name, format!("the function took longer than {:?}", limits.time));
    }
    if state.too_much.get() {
        return too_much(name, limits);
    }
    let full = || Error::new(ErrorKind::Memory, name, format!("the function needs more than {} bytes", limits.memory));
    let Some(thrown) = thrown else {
        return match error {
            rquickjs::Error::Allocation => full(),
            error => Error::new(ErrorKind::Thrown, name, error.to_string()),
        };
    };
    if thrown.is_null() {
        // QuickJS throws `null` if there is no memory for an error. Functions rarely throw it themselves.
        return Error::new(ErrorKind::Memory, name, "the function threw null, or ran out of memory");
    }
    state.go_on(TIME_TO_DESCRIBE);
    let described = describe(ctx, &thrown);
    // A getter may throw too.
    if ctx.has_exception() {
        ctx.catch();
    }
    let (error_name, message) = described;
    match (error_name.as_deref(), message.as_str()) {
        (Some("InternalError"), "out of memory") => full(),
        (Some("RangeError" | "InternalError"), message)
            if message.contains("call stack") || message.contains("stack overflow") =>
        {
            Error::new(ErrorKind::Stack, name, format!("the calls are nested too deeply: {message}"))
        }
        _ => Error::thrown_by(name, error_name, message, thrown.is_object()),
    }
}

/// The name and the message of a thrown value.
fn describe<'js>(ctx: &Ctx<'js>, thrown: &Value<'js>) -> (Option<String>, String) {
    let unknown = || "something that has no JSON was thrown".to_owned();
    if let Some(text) = thrown.as_string() {
        return (None, text.to_string().unwrap_or_else(|_| unknown()));
    }
    if let Some(object) = thrown.as_object().filter(|_| thrown.is_error()) {
        let member = |name: &str| {
            let value = object.get::<_, Value<'js>>(name).ok()?;
            value.as_string()?.to_string().ok()
        };
        let (name, message) = (member("name"), member("message"));
        if let Some(name) = name {
            return (Some(name), message.unwrap_or_default());
        }
    }
    let text = ctx.json_stringify(thrown.clone()).ok().flatten();
    (None, text.and_then(|text| text.to_string().ok()).unwrap_or_else(unknown))
}

/// Reads a result as JSON text, with `null` for a value without JSON.
pub(crate) fn json_of<'js>(ctx: &Ctx<'js>, value: Value<'js>) -> rquickjs::Result<String> {
    crate::state::text_of(ctx, Some(value))
}

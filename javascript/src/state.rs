//! The state that a sandbox shares with its native functions for JavaScript.

use std::{
    cell::{Cell, RefCell},
    hash::{BuildHasher, RandomState},
    rc::Rc,
    sync::Weak,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rquickjs::{Ctx, Exception, Function, Object, Result, Value, function::Opt};

use crate::{Limits, deadline::Deadline, error::shortened};

/// Maximum number of lines that one call may log.
const MAX_LOG_LINES: u32 = 100;

/// The inputs on which the result of a call may depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A function of a view, which must have the same result for the same arguments: it has no current time, and
    /// `Math.random` starts with this seed.
    View(u64),
    /// The same, and `emit` keeps rows. Elsewhere it only notes that it was called.
    Map(u64),
    /// A filter, a validation or an update: it has the current time, and real randomness.
    Any,
}

impl Purpose {
    /// The purpose of compiling the function at a path, which runs code too.
    pub(crate) fn of(path: &[&str]) -> Purpose {
        if path.first() == Some(&"views") { Purpose::View(0) } else { Purpose::Any }
    }
}

/// A row that a map function emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedRow {
    /// The key as JSON text.
    pub key: String,
    /// The value as JSON text.
    pub value: String,
}

/// The state of the running call.
pub(crate) struct CallState {
    pub limits: Limits,
    deadline: Deadline,
    /// Alive as long as somebody waits for the calls.
    pub wanted: RefCell<Option<Weak<()>>>,
    /// Whether the call exceeded its deadline, or nobody waits for it any more.
    pub timed_out: Cell<bool>,
    /// Whether QuickJS was told to stop the script. It throws an error that the script cannot catch.
    pub is_stopped: Cell<bool>,
    /// Whether the call emitted too much. It stays set even if the function catches the error.
    pub too_much: Cell<bool>,
    pub emitted: Cell<bool>,
    /// Number of the call. The error of a stopped call is described in a call of its own.
    call: Cell<u32>,
    purpose: Cell<Purpose>,
    bytes: Cell<usize>,
    rows: RefCell<Vec<EmittedRow>>,
    random: Cell<u64>,
    lines: Cell<u32>,
    design: String,
}

impl CallState {
    pub(crate) fn new(limits: Limits, design: String) -> Rc<CallState> {
        Rc::new(CallState {
            limits,
            deadline: Deadline::new(),
            wanted: RefCell::default(),
            timed_out: Cell::new(false),
            is_stopped: Cell::new(false),
            too_much: Cell::new(false),
            emitted: Cell::new(false),
            call: Cell::new(0),
            purpose: Cell::new(Purpose::View(0)),
            bytes: Cell::new(0),
            rows: RefCell::default(),
            random: Cell::new(0),
            lines: Cell::new(0),
            design,
        })
    }

    /// Begins a call.
    pub(crate) fn begin(&self, time: Duration, purpose: Purpose) {
        self.timed_out.set(false);
        self.is_stopped.set(false);
        self.too_much.set(false);
        self.emitted.set(false);
        self.purpose.set(purpose);
        self.bytes.set(0);
        self.lines.set(0);
        self.random.set(match purpose {
            Purpose::View(seed) | Purpose::Map(seed) => seed,
            // Its keys are random, and differ from call to call.
            Purpose::Any => RandomState::new().hash_one(()),
        });
        self.rows.borrow_mut().clear();
        self.go_on(time);
    }

    /// Begins a part of the call that may take this long. The previous part may have been stopped anywhere.
    pub(crate) fn go_on(&self, time: Duration) {
        self.call.set(self.call.get().wrapping_add(1));
        self.deadline.set(time);
    }

    /// Ends the call. Returns its rows.
    pub(crate) fn end(&self) -> Vec<EmittedRow> {
        self.deadline.clear();
        self.purpose.set(Purpose::View(0));
        self.rows.take()
    }

    /// The interrupt handler: whether the script must stop.
    pub(crate) fn must_stop(&self) -> bool {
        let late = self.is_late();
        if late {
            self.is_stopped.set(true);
        }
        late
    }

    /// Whether nobody waits for the calls any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.wanted.borrow().as_ref().is_some_and(|wanted| wanted.strong_count() == 0)
    }

    /// Whether the call has passed its deadline, or nobody waits for it any more.
    pub(crate) fn is_late(&self) -> bool {
        let late = self.deadline.is_over() || self.is_abandoned();
        if late {
            self.timed_out.set(true);
        }
        late
    }

    fn emit<'js>(&self, ctx: &Ctx<'js>, key: Opt<Value<'js>>, value: Opt<Value<'js>>) -> Result<()> {
        self.emitted.set(true);
        if !matches!(self.purpose.get(), Purpose::Map(_)) {
            return Ok(());
        }
        if self.too_much.get() {
            return Err(Exception::throw_range(ctx, "The function emitted too much."));
        }
        let row = EmittedRow { key: text_of(ctx, key.0)?, value: text_of(ctx, value.0)? };
        // An empty row costs memory too.
        self.bytes.set(self.bytes.get() + row.key.len() + row.value.len() + 16);
        if self.bytes.get() > self.limits.output {
            self.too_much.set(true);
            return Err(Exception::throw_range(ctx, "The function emitted too much."));
        }
        self.rows.borrow_mut().push(row);
        Ok(())
    }

    fn log(&self, message: String) {
        self.lines.set(self.lines.get().saturating_add(1));
        if self.lines.get() <= MAX_LOG_LINES {
            tracing::info!(design = %self.design, "{}", shortened(message));
        }
    }

    /// Milliseconds since 1970, if the function may know the time.
    fn now(&self) -> Option<f64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        (self.purpose.get() == Purpose::Any).then_some(now.as_millis() as f64)
    }

    /// The next number of a sequence that depends on the call's seed: splitmix64.
    fn random(&self) -> f64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The functions that `prelude.js` gets as `native`.
    pub(crate) fn natives<'js>(self: &Rc<CallState>, ctx: &Ctx<'js>) -> Result<Object<'js>> {
        let natives = Object::new(ctx.clone())?;
        let state = self.clone();
        let emit = function(move |ctx: Ctx<'js>, key, value| state.emit(&ctx, key, value));
        natives.set("emit", Function::new(ctx.clone(), emit)?)?;
        let state = self.clone();
        natives.set("log", Function::new(ctx.clone(), move |message: String| state.log(message))?)?;
        let state = self.clone();
        natives.set("now", Function::new(ctx.clone(), move || state.now())?)?;
        let state = self.clone();
        natives.set("random", Function::new(ctx.clone(), move || state.random())?)?;
        natives.set("isDeep", Function::new(ctx.clone(), |source: String| is_deep(&source))?)?;
        let state = self.clone();
        natives.set("call", Function::new(ctx.clone(), move || state.call.get())?)?;
        let state = self.clone();
        natives.set("isLate", Function::new(ctx.clone(), move || state.is_late())?)?;
        Ok(natives)
    }
}

/// Names the types of `emit`, which the compiler cannot infer.
fn function<'js, F>(emit: F) -> F
where
    F: Fn(Ctx<'js>, Opt<Value<'js>>, Opt<Value<'js>>) -> Result<()> + 'js,
{
    emit
}

/// A value as JSON text; `null` for a value that JSON cannot show.
pub(crate) fn text_of<'js>(ctx: &Ctx<'js>, value: Option<Value<'js>>) -> Result<String> {
    let Some(value) = value else { return Ok("null".to_owned()) };
    match ctx.json_stringify(value)? {
        Some(text) => Ok(without_halves(text.to_string()?)),
        None => Ok("null".to_owned()),
    }
}

/// `JSON.stringify` writes half of a surrogate pair as an escape. UTF-8 cannot have one, so U+FFFD replaces it.
fn without_halves(mut text: String) -> String {
    let mut from = 0;
    while let Some(found) = text[from..].find('\\') {
        let at = from + found;
        let escape = text.as_bytes().get(at + 1..at + 6);
        // Pairs are written as they are, so such an escape is a half.
        if let Some([b'u', b'd' | b'D', b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F', _, _]) = escape {
            text.replace_range(at + 2..at + 6, "fffd");
        }
        // After the escaped character, which may be a backslash.
        from = at + 2;
    }
    text
}

/// FNV-1a: a seed from the text of a document.
pub(crate) fn seed(text: &str) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Maximum number of brackets of a source that are open at a time. QuickJS takes quadratic time for nested blocks.
const MAX_NESTING: u32 = 2_000;

/// Whether a source is nested too deeply. Brackets in strings and comments count too, but few sources have so many
/// unclosed ones.
pub(crate) fn is_deep(source: &str) -> bool {
    let mut open = 0_u32;
    source.bytes().any(|byte| {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > MAX_NESTING
    })
}

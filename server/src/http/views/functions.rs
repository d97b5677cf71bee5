//! Map and reduce functions in JavaScript, on a thread of their own.
//!
//! A sandbox stays on its thread, and a function may take seconds. So each view group has a thread, which begins with its
//! first call and ends when nobody needs the group any more. Calls wait in a queue.

use std::sync::mpsc;

use javascript::{ErrorKind, Limits, Sandbox};
use kv_api::BoxFuture;
use model::{Emitted, Error, FunctionError, JsonText, JsonWriter, Mapped, Reduced, Reduction, View, ViewFunctions};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The stack of the thread: that of the sandbox, and what this program needs.
const STACK: usize = 4 << 20;

enum Call {
    Map(Vec<JsonText>, oneshot::Sender<Result<Vec<Mapped>, FunctionError>>),
    Reduce(usize, Vec<Reduction>, oneshot::Sender<Result<Vec<Reduced>, FunctionError>>),
}

/// The functions of a design document.
pub(super) struct Functions {
    design: JsonText,
    views: Vec<View>,
    calls: Mutex<Option<mpsc::Sender<Call>>>,
}

impl Functions {
    pub(super) fn new(design: JsonText, views: &[View]) -> Self {
        Functions { design, views: views.to_vec(), calls: Mutex::default() }
    }

    /// Sends a call to the thread, which is started if there is none.
    fn send(&self, call: Call) -> Result<(), Error> {
        let mut calls = self.calls.lock();
        let call = match calls.as_ref() {
            Some(running) => match running.send(call) {
                Ok(()) => return Ok(()),
                Err(mpsc::SendError(call)) => call,
            },
            None => call,
        };
        let (sender, receiver) = mpsc::channel();
        let (design, views) = (self.design.clone(), self.views.clone());
        let builder = std::thread::Builder::new().name("couch-views".to_owned()).stack_size(STACK);
        builder
            .spawn(move || Thread { design, views, sandbox: None }.run(receiver))
            .map_err(|error| failed(format!("no thread: {error}")))?;
        // The thread has just begun to wait.
        let _ = sender.send(call);
        *calls = Some(sender);
        Ok(())
    }
}

fn failed(what: impl std::fmt::Display) -> Error {
    model::ErrorKind::Functions(what.to_string()).into()
}

async fn answer<T>(sent: Result<(), Error>, answer: oneshot::Receiver<Result<T, FunctionError>>) -> Result<T, Error> {
    sent?;
    match answer.await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(failed("The thread of the design document's functions ended.")),
    }
}

impl ViewFunctions for Functions {
    fn map(&self, documents: Vec<JsonText>) -> BoxFuture<model::Result<Vec<Mapped>>> {
        let (sender, receiver) = oneshot::channel();
        let sent = self.send(Call::Map(documents, sender));
        Box::pin(answer(sent, receiver))
    }

    fn reduce(&self, view: usize, calls: Vec<Reduction>) -> BoxFuture<model::Result<Vec<Reduced>>> {
        let (sender, receiver) = oneshot::channel();
        let sent = self.send(Call::Reduce(view, calls, sender));
        Box::pin(answer(sent, receiver))
    }
}

struct Thread {
    design: JsonText,
    views: Vec<View>,
    sandbox: Option<Sandbox>,
}

impl Thread {
    fn run(mut self, calls: mpsc::Receiver<Call>) {
        while let Ok(call) = calls.recv() {
            // Nobody may be waiting for the answer any more.
            match call {
                Call::Map(_, answer) if answer.is_closed() => {}
                Call::Map(documents, answer) => drop(answer.send(self.map(&documents))),
                Call::Reduce(view, calls, answer) => drop(answer.send(self.reduce(view, calls))),
            }
        }
    }

    fn sandbox(&mut self) -> Result<&mut Sandbox, FunctionError> {
        match &mut self.sandbox {
            Some(_) => {}
            none => {
                let open = || -> Result<Sandbox, javascript::Error> {
                    let mut sandbox = Sandbox::open(self.design.as_str(), Limits::default())?;
                    for view in &self.views {
                        sandbox.compile(&["views", &view.name, "map"])?;
                        if view.reduce == Some(model::Reduce::Custom) {
                            sandbox.compile(&["views", &view.name, "reduce"])?;
                        }
                    }
                    Ok(sandbox)
                };
                *none =
                    Some(open().map_err(|error: javascript::Error| {
                        FunctionError::new("compilation_error", error.to_string())
                    })?);
            }
        }
        self.sandbox.as_mut().ok_or_else(|| FunctionError::new("unknown_error", "no sandbox"))
    }

    fn map(&mut self, documents: &[JsonText]) -> Result<Vec<Mapped>, FunctionError> {
        let views = self.views.clone();
        let names: Vec<&str> = views.iter().map(|view| view.name.as_str()).collect();
        let mut mapped = Vec::with_capacity(documents.len());
        for document in documents {
            let mut one = Mapped::default();
            for rows in self.sandbox()?.map(&names, document.as_str()) {
                match rows {
                    Ok(rows) => one.rows.push(rows.into_iter().filter_map(emitted).collect()),
                    Err(error) => {
                        one.rows.push(Vec::new());
                        self.take_note(&error);
                        one.error.get_or_insert_with(|| FunctionError::new("map_error", error.to_string()));
                    }
                }
            }
            mapped.push(one);
        }
        Ok(mapped)
    }

    fn reduce(&mut self, view: usize, calls: Vec<Reduction>) -> Result<Vec<Reduced>, FunctionError> {
        let name = self.views.get(view).map(|view| view.name.clone()).unwrap_or_default();
        let mut reduced = Vec::with_capacity(calls.len());
        for call in calls {
            let sandbox = self.sandbox()?;
            let result = match call {
                Reduction::Rows(rows) => {
                    let keys = list(|json| {
                        for row in &rows {
                            json.begin_array().text(&row.key).str(&row.id).end_array();
                        }
                    });
                    let values = list(|json| {
                        for row in &rows {
                            json.text(&row.value);
                        }
                    });
                    sandbox.reduce(&name, &keys, &values)
                }
                Reduction::Values(values) => {
                    let values = list(|json| {
                        for value in &values {
                            json.text(value);
                        }
                    });
                    sandbox.rereduce(&name, &values)
                }
            };
            reduced.push(match result {
                Ok(text) => Ok(parse(&text)),
                Err(error) if error.kind() == ErrorKind::Overflow => {
                    Err(FunctionError::new("reduce_overflow_error", error.reason()))
                }
                Err(error) => {
                    self.take_note(&error);
                    // As in CouchDB.
                    Ok(parse("null"))
                }
            });
        }
        Ok(reduced)
    }

    /// After a full heap, the next call begins with a new one.
    fn take_note(&mut self, error: &javascript::Error) {
        if error.kind() == ErrorKind::Memory {
            self.sandbox = None;
        }
    }
}

fn emitted(row: javascript::Row) -> Option<Emitted> {
    let text = |text: String| JsonText::parse(text.as_bytes()).ok();
    Some(Emitted { key: text(row.key)?, value: text(row.value)? })
}

fn parse(text: &str) -> JsonText {
    JsonText::parse(text.as_bytes()).unwrap_or_else(|_| JsonText::empty_object())
}

fn list(write: impl FnOnce(&mut JsonWriter<'_>)) -> String {
    let mut out = Vec::new();
    let mut json = JsonWriter::new(&mut out);
    json.begin_array();
    write(&mut json);
    json.end_array();
    String::from_utf8(out).unwrap_or_default()
}

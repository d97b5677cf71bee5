//! The document operations over real engines: every scenario runs over every engine listed at the end.

mod support;
mod writing;

/// All scenarios, each once, handed to the macro that makes tests of them for an engine.
macro_rules! scenarios {
    ($suite:ident, $engine:ident, $fresh:expr) => {
        $suite! { $engine, $fresh,
            writing::a_document_is_written_read_changed_and_deleted,
        }
    };
}

macro_rules! suite {
    ($engine:ident, $fresh:expr, $($module:ident :: $scenario:ident,)*) => {
        mod $engine {
            $(
                #[tokio::test]
                async fn $scenario() {
                    crate::$module::$scenario($fresh).await;
                }
            )*
        }
    };
}

scenarios!(suite, mem, engine_mem::MemDatabase::new());

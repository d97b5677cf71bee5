//! The one suite that every engine passes.

//! The memory of a sandbox.
//!
//! An allocator of our own, for three reasons:
//! * QuickJS checks the time only at each 10,000th loop or call, and a built-in function may take long each time. So
//!   large allocations check it too, and fail after the deadline. Only allocations of new blocks do: QuickJS handles
//!   their failure better.
//! * A late script ends by an error that it cannot catch. QuickJS has to allocate that error. If it cannot, it throws
//!   `null`, which any script can catch. So there is a reserve for this error.
//! * QuickJS ends the process if an object is left when a heap is closed. So the blocks of a heap with objects left are
//!   freed without closing the heap.

use std::{cell::RefCell, collections::HashSet, ptr, rc::Rc};

use rquickjs::{
    Runtime,
    allocator::{Allocator, RustAllocator},
};

use crate::state::CallState;

/// Size in bytes from which an allocation checks the time. Every 64th smaller allocation checks it too.
const LARGE: usize = 64 << 10;
const ASKED_AFTER: u32 = 64;

/// Bytes beyond the limit for the error that ends a script.
const RESERVE: usize = 1 << 20;

/// The blocks of a heap.
#[derive(Clone, Default)]
struct Blocks(Rc<RefCell<Held>>);

#[derive(Default)]
struct Held {
    blocks: HashSet<usize>,
    bytes: usize,
    /// Whether the limits apply: QuickJS cannot fail to open a heap.
    is_open: bool,
    /// Allocations since the last one that checked the time.
    allocations: u32,
}

/// A heap of QuickJS. It is dropped after the context and the values in it.
pub(crate) struct Heap {
    /// Present until the heap is dropped.
    runtime: Option<Runtime>,
    blocks: Blocks,
}

impl Heap {
    pub(crate) fn new(state: &Rc<CallState>) -> rquickjs::Result<Heap> {
        let blocks = Blocks::default();
        let runtime = Runtime::new_with_alloc(Memory { state: state.clone(), blocks: blocks.clone() })?;
        blocks.0.borrow_mut().is_open = true;
        Ok(Heap { runtime: Some(runtime), blocks })
    }

    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.0.borrow().bytes
    }
}

impl std::ops::Deref for Heap {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is not dropped yet")
    }
}

impl Drop for Heap {
    #[expect(unsafe_code, reason = "the blocks that QuickJS has lost are freed without it")]
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        runtime.run_gc();
        if runtime.memory_usage().obj_count == 0 {
            return;
        }
        // From now on nothing refers to the blocks.
        std::mem::forget(runtime);
        for block in std::mem::take(&mut *self.blocks.0.borrow_mut()).blocks {
            // SAFETY: the block was allocated below and not freed, and the runtime that used it is gone.
            unsafe { RustAllocator.dealloc(ptr::with_exposed_provenance_mut(block)) }
        }
    }
}

/// The allocator of QuickJS.
struct Memory {
    state: Rc<CallState>,
    blocks: Blocks,
}

impl Memory {
    /// Whether there is room for so many more bytes.
    fn fits(&self, more: usize) -> bool {
        let reserve = if self.state.is_stopped.get() { RESERVE } else { 0 };
        let limit = self.state.limits.memory.saturating_add(reserve);
        let held = self.blocks.0.borrow();
        !held.is_open || held.bytes.saturating_add(more) <= limit
    }

    /// Whether a new block of this size may be allocated.
    fn admits(&self, size: usize) -> bool {
        if !self.fits(size) {
            return false;
        }
        let mut held = self.blocks.0.borrow_mut();
        if !held.is_open {
            return true;
        }
        held.allocations += 1;
        if size < LARGE && held.allocations < ASKED_AFTER {
            return true;
        }
        held.allocations = 0;
        // The error that ends the script is allocated after the deadline.
        self.state.is_stopped.get() && size < LARGE || !self.state.is_late()
    }

    #[expect(unsafe_code, reason = "the size is in front of the block")]
    fn keep(&self, block: *mut u8) -> *mut u8 {
        if !block.is_null() {
            let mut held = self.blocks.0.borrow_mut();
            // SAFETY: it was just allocated.
            held.bytes += unsafe { RustAllocator::usable_size(block) };
            held.blocks.insert(block.expose_provenance());
        }
        block
    }

    /// # Safety
    /// The block must be one that was kept.
    #[expect(unsafe_code, reason = "the size is in front of the block")]
    unsafe fn release(&self, block: *mut u8) {
        let mut held = self.blocks.0.borrow_mut();
        // SAFETY: it was not freed yet.
        held.bytes -= unsafe { RustAllocator::usable_size(block) };
        held.blocks.remove(&block.addr());
    }
}

// SAFETY: all blocks come from `RustAllocator`, or are null.
#[expect(unsafe_code, reason = "an allocator is unsafe to implement")]
unsafe impl Allocator for Memory {
    fn alloc(&mut self, size: usize) -> *mut u8 {
        if !self.admits(size) {
            return ptr::null_mut();
        }
        self.keep(RustAllocator.alloc(size))
    }

    fn calloc(&mut self, count: usize, size: usize) -> *mut u8 {
        match count.checked_mul(size) {
            Some(bytes) if self.admits(bytes) => self.keep(RustAllocator.calloc(count, size)),
            _ => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&mut self, block: *mut u8) {
        // SAFETY: the caller's.
        unsafe {
            self.release(block);
            RustAllocator.dealloc(block);
        }
    }

    unsafe fn realloc(&mut self, block: *mut u8, size: usize) -> *mut u8 {
        // SAFETY: the caller's. A block that could not be made larger is still there.
        unsafe {
            let before = RustAllocator::usable_size(block);
            // A late script is not stopped here. QuickJS's parser does not notice that its list of scopes could not
            // grow, and reads beyond it.
            if size > before && !self.fits(size - before) {
                return ptr::null_mut();
            }
            self.release(block);
            let moved = RustAllocator.realloc(block, size);
            self.keep(if moved.is_null() { block } else { moved });
            moved
        }
    }

    unsafe fn usable_size(block: *mut u8) -> usize {
        // SAFETY: the caller's.
        unsafe { RustAllocator::usable_size(block) }
    }
}

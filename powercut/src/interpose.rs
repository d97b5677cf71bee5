//! Intercepts the C library's file calls of the whole process: Rust's standard library, and those of stores.
//!
//! The linker prefers the executable's symbols to those of a shared library, so these definitions replace the C
//! library's. Each asks the recorder. The recorder makes the call itself where the file lies below a recorded
//! folder; elsewhere it is a plain system call. Product code knows nothing of this.
//!
//! A missing function is noticed: the recorded trace then does not reproduce the files on the disk
//! ([`Recording::check`](crate::recorder::Recording::check)).
#![expect(unsafe_code, reason = "the C library's own signatures, and the system calls behind them")]
#![allow(unreachable_pub, reason = "the linker finds them by their names")]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};

use libc::{iovec, mode_t, off64_t, size_t, ssize_t};

use crate::recorder::{PathFrom, recorded};

macro_rules! system_call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the caller called the C library's function with the same arguments.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

fn place(folder: c_int, path: *const c_char) -> PathFrom {
    // SAFETY: the caller gives a string that ends with a zero, as the C library requires.
    let path = unsafe { CStr::from_ptr(path) };
    PathFrom { folder, path: path.to_string_lossy().into_owned() }
}

fn bytes<'a>(buffer: *const c_void, length: size_t) -> &'a [u8] {
    // SAFETY: the caller gives a buffer of this length. A slice must not be null, even if it is empty.
    if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buffer.cast(), length) } }
}

fn gathered(parts: *const iovec, count: c_int) -> Vec<u8> {
    // SAFETY: the caller gives an array of this length.
    let parts = unsafe { std::slice::from_raw_parts(parts, usize::try_from(count).unwrap_or(0)) };
    parts.iter().flat_map(|part| bytes(part.iov_base, part.iov_len)).copied().collect()
}

fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let real = || system_call!(SYS_openat, folder, path, flags, mode) as c_int;
    recorded(|recorder| recorder.open(&place(folder, path), flags, real)).unwrap_or_else(real)
}

/// Defines functions of the C library.
macro_rules! interposed {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $returned:ty $body:block)*) => {
        $(
            #[doc = concat!("See `", stringify!($name), "(2)`.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $type),*) -> $returned $body
        )*

        /// The addresses of all functions. A use of them keeps the linker from dropping them.
        pub(crate) fn all() -> Vec<usize> {
            vec![$($name as *const () as usize),*]
        }
    };
}

// On the supported systems, arguments of a variadic function are passed like those of any other.
interposed! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(libc::AT_FDCWD, path, flags, mode) }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_at(libc::AT_FDCWD, path, flags, mode) }
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(folder, path, flags, mode)
    }
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(folder, path, flags, mode)
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        open_at(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int { creat(path, mode) }

    fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
        let real = || system_call!(SYS_read, fd, buffer, length) as ssize_t;
        recorded(|recorder| recorder.read(fd, real)).unwrap_or_else(real)
    }
    fn pread64(fd: c_int, buffer: *mut c_void, length: size_t, at: off64_t) -> ssize_t {
        let real = || system_call!(SYS_pread64, fd, buffer, length, at) as ssize_t;
        recorded(|recorder| recorder.read(fd, real)).unwrap_or_else(real)
    }
    fn pread(fd: c_int, buffer: *mut c_void, length: size_t, at: off64_t) -> ssize_t {
        pread64(fd, buffer, length, at)
    }

    fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
        let real = |length: usize| system_call!(SYS_write, fd, buffer, length) as ssize_t;
        recorded(|recorder| recorder.write(fd, bytes(buffer, length), None, real)).unwrap_or_else(|| real(length))
    }
    fn pwrite64(fd: c_int, buffer: *const c_void, length: size_t, at: off64_t) -> ssize_t {
        let real = |length: usize| system_call!(SYS_pwrite64, fd, buffer, length, at) as ssize_t;
        recorded(|recorder| recorder.write(fd, bytes(buffer, length), Some(at), real)).unwrap_or_else(|| real(length))
    }
    fn pwrite(fd: c_int, buffer: *const c_void, length: size_t, at: off64_t) -> ssize_t {
        pwrite64(fd, buffer, length, at)
    }
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        let ours = recorded(|recorder| {
            let whole = gathered(parts, count);
            recorder.write(fd, &whole, None, |length| system_call!(SYS_write, fd, whole.as_ptr(), length) as ssize_t)
        });
        ours.unwrap_or_else(|| system_call!(SYS_writev, fd, parts, count) as ssize_t)
    }
    fn pwritev(fd: c_int, parts: *const iovec, count: c_int, at: off64_t) -> ssize_t {
        let ours = recorded(|recorder| {
            let whole = gathered(parts, count);
            let real = |length: usize| system_call!(SYS_pwrite64, fd, whole.as_ptr(), length, at) as ssize_t;
            recorder.write(fd, &whole, Some(at), real)
        });
        ours.unwrap_or_else(|| system_call!(SYS_pwritev, fd, parts, count, at, 0) as ssize_t)
    }
    fn pwritev64(fd: c_int, parts: *const iovec, count: c_int, at: off64_t) -> ssize_t { pwritev(fd, parts, count, at) }

    fn ftruncate64(fd: c_int, length: off64_t) -> c_int {
        let real = || system_call!(SYS_ftruncate, fd, length) as c_int;
        recorded(|recorder| recorder.length(fd, length, false, real)).unwrap_or_else(real)
    }
    fn ftruncate(fd: c_int, length: off64_t) -> c_int { ftruncate64(fd, length) }
    fn fallocate64(fd: c_int, mode: c_int, at: off64_t, length: off64_t) -> c_int {
        let real = || system_call!(SYS_fallocate, fd, mode, at, length) as c_int;
        // Other modes punch holes or move bytes. The check would notice them.
        if mode != 0 { return real() }
        recorded(|recorder| recorder.length(fd, at + length, true, real)).unwrap_or_else(real)
    }
    fn fallocate(fd: c_int, mode: c_int, at: off64_t, length: off64_t) -> c_int { fallocate64(fd, mode, at, length) }
    fn posix_fallocate64(fd: c_int, at: off64_t, length: off64_t) -> c_int {
        // This function returns the error instead of setting `errno`.
        match fallocate64(fd, 0, at, length) {
            0 => 0,
            _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }
    fn posix_fallocate(fd: c_int, at: off64_t, length: off64_t) -> c_int { posix_fallocate64(fd, at, length) }

    fn fsync(fd: c_int) -> c_int {
        let real = || system_call!(SYS_fsync, fd) as c_int;
        recorded(|recorder| recorder.sync(fd, real)).unwrap_or_else(real)
    }
    fn fdatasync(fd: c_int) -> c_int {
        let real = || system_call!(SYS_fdatasync, fd) as c_int;
        recorded(|recorder| recorder.sync(fd, real)).unwrap_or_else(real)
    }

    fn mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int {
        let real = || system_call!(SYS_mkdirat, folder, path, mode) as c_int;
        recorded(|recorder| recorder.make_folder(&place(folder, path), real)).unwrap_or_else(real)
    }
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int { mkdirat(libc::AT_FDCWD, path, mode) }

    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
        let real = || system_call!(SYS_unlinkat, folder, path, flags) as c_int;
        recorded(|recorder| recorder.unlink(&place(folder, path), real)).unwrap_or_else(real)
    }
    fn unlink(path: *const c_char) -> c_int { unlinkat(libc::AT_FDCWD, path, 0) }
    fn rmdir(path: *const c_char) -> c_int { unlinkat(libc::AT_FDCWD, path, libc::AT_REMOVEDIR) }

    fn renameat2(from: c_int, path: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int {
        let real = || system_call!(SYS_renameat2, from, path, to, new, flags) as c_int;
        recorded(|recorder| recorder.rename(&place(from, path), &place(to, new), flags, real)).unwrap_or_else(real)
    }
    fn renameat(from: c_int, path: *const c_char, to: c_int, new: *const c_char) -> c_int {
        renameat2(from, path, to, new, 0)
    }
    fn rename(path: *const c_char, new: *const c_char) -> c_int {
        renameat2(libc::AT_FDCWD, path, libc::AT_FDCWD, new, 0)
    }
    fn linkat(from: c_int, path: *const c_char, to: c_int, new: *const c_char, flags: c_int) -> c_int {
        let real = || system_call!(SYS_linkat, from, path, to, new, flags) as c_int;
        recorded(|recorder| recorder.link(&place(from, path), &place(to, new), real)).unwrap_or_else(real)
    }
    fn link(path: *const c_char, new: *const c_char) -> c_int {
        linkat(libc::AT_FDCWD, path, libc::AT_FDCWD, new, 0)
    }

    fn copy_file_range(
        from: c_int, at: *mut off64_t, to: c_int, to_at: *mut off64_t, length: size_t, flags: c_uint
    ) -> ssize_t {
        // Callers fall back to reads and writes.
        if recorded(|recorder| recorder.knows(to)).is_some() { return crate::recorder::fail(libc::ENOSYS) as ssize_t }
        system_call!(SYS_copy_file_range, from, at, to, to_at, length, flags) as ssize_t
    }
    fn sendfile64(to: c_int, from: c_int, at: *mut off64_t, length: size_t) -> ssize_t {
        if recorded(|recorder| recorder.knows(to)).is_some() { return crate::recorder::fail(libc::ENOSYS) as ssize_t }
        system_call!(SYS_sendfile, to, from, at, length) as ssize_t
    }
    fn sendfile(to: c_int, from: c_int, at: *mut off64_t, length: size_t) -> ssize_t {
        sendfile64(to, from, at, length)
    }

    fn mmap64(
        address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, at: off64_t
    ) -> *mut c_void {
        let writes = flags & libc::MAP_SHARED != 0 && protection & libc::PROT_WRITE != 0;
        // Writes through a memory map are not recorded.
        if writes && fd >= 0 && recorded(|recorder| recorder.knows(fd)).is_some() {
            crate::recorder::fail(libc::ENODEV);
            return libc::MAP_FAILED;
        }
        system_call!(SYS_mmap, address, length, protection, flags, fd, at) as c_long as *mut c_void
    }
    fn mmap(
        address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, at: off64_t
    ) -> *mut c_void {
        mmap64(address, length, protection, flags, fd, at)
    }
}

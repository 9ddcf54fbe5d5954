// SPDX-License-Identifier: GPL-2.0

//! Files in debugfs with operations of their own.
//!
//! Their owner is the module, so an open one keeps the module. The kernel crate's debugfs files do not:
//! their owner is NULL, and closing one after the module has gone is fatal.

use crate::BlkRelay;
use kernel::{
    bindings,
    module::this_module,
    prelude::*, //
};

/// The debugfs directory, with all files in it.
///
/// # Invariants
///
/// Points to a directory that this module has made.
pub(crate) struct Directory(pub(crate) *mut bindings::dentry);

// SAFETY: debugfs locks for itself.
unsafe impl Send for Directory {}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. Removes what is in it as well, and waits for calls that
        // are under way.
        unsafe { bindings::debugfs_remove(self.0) };
    }
}

/// File operations in static memory.
pub(crate) struct Operations(pub(crate) bindings::file_operations);

// SAFETY: Never changed.
unsafe impl Sync for Operations {}

pub(crate) const OPERATIONS: bindings::file_operations = bindings::file_operations {
    owner: this_module::<BlkRelay>().as_ptr(),
    llseek: Some(bindings::noop_llseek),
    ..pin_init::zeroed()
};

/// Makes a directory.
///
/// # Errors
///
/// What debugfs says.
pub(crate) fn make_directory(name: &CStr) -> Result<Directory> {
    // SAFETY: A string, and debugfs's own root.
    let dentry = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), core::ptr::null_mut()) };

    // INVARIANT: Made just now.
    Ok(Directory(kernel::error::from_err_ptr(dentry)?))
}

/// Makes a file. `data` is what its inode's `i_private` is.
///
/// # Errors
///
/// What debugfs says.
///
/// # Safety
///
/// `parent` is a debugfs directory. It goes, and takes the file with it, before the module does.
pub(crate) unsafe fn make_file(
    name: &CStr,
    mode: bindings::umode_t,
    parent: *mut bindings::dentry,
    data: usize,
    operations: &'static Operations,
) -> Result<*mut bindings::dentry> {
    // SAFETY: By the contract; the operations are static.
    kernel::error::from_err_ptr(unsafe {
        bindings::debugfs_create_file_full(
            name.as_char_ptr(),
            mode,
            parent,
            core::ptr::without_provenance_mut(data),
            core::ptr::null(),
            &operations.0,
        )
    })
}

// SPDX-License-Identifier: GPL-2.0

//! A CPU's stream: how finished sub-buffers get out of it.
//!
//! What is read is whole finished sub-buffers. The reader loads `subbufs_produced` with acquire and looks
//! at nothing beyond it; it copies, then raises `subbufs_consumed`. The core's own read path is not
//! used: it hands out the sub-buffer that is being switched to.
//!
//! A flight recorder is read while it is frozen, and cannot be armed meanwhile.

use crate::{
    abi,
    files::{
        make_file,
        Operations,
        OPERATIONS, //
    },
    record::HEAD,
    shared::{
        Shared,
        CURRENT, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_result,
    ffi::{
        c_char,
        c_int, //
    },
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic, //
        },
        barrier::{
            smp_mb,
            Full, //
        },
        Mutex, //
    },
    types::ForeignOwnable,
    uaccess::{
        UserPtr,
        UserSlice,
        UserSliceWriter, //
    }, //
};

/// Who reads.
struct Readers {
    /// Whether data files may be opened.
    admit: bool,
    /// Open data files. While there is one, the channel stays.
    count: usize,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised by `init`, before any file or channel exists.
    unsafe(uninit) static READERS: Mutex<Readers> = Readers { admit: false, count: 0 };
}

/// Prepares what readers wait on.
///
/// # Safety
///
/// Called once, when the module is loaded.
pub(crate) unsafe fn init() {
    // SAFETY: By the contract, once.
    unsafe { READERS.init() };
    // SAFETY: Nobody waits yet.
    unsafe { abi::blkrelay_readers_init() };
}

/// Waits for wake-ups that are still under way. No channel is open any more, so none is asked for.
pub(crate) fn exit() {
    // SAFETY: May sleep.
    unsafe { abi::blkrelay_readers_sync() };
}

/// Lets data files be opened from now on.
pub(crate) fn admit() {
    READERS.lock().admit = true;
}

/// Keeps data files from being opened, so that the channel may be dropped.
///
/// # Errors
///
/// The number of data files that are open. Nothing has changed then.
pub(crate) fn retire() -> Result<(), usize> {
    let mut readers = READERS.lock();

    if readers.count > 0 {
        return Err(readers.count);
    }
    readers.admit = false;
    Ok(())
}

/// Keeps data files from being opened. None is open: each would hold the module.
pub(crate) fn expel() {
    READERS.lock().admit = false;
}

/// The reader's end of one CPU's stream: what an open data file holds.
///
/// # Invariants
///
/// While this exists it is counted in `READERS`, so the channel behind `shared` stays; and it is
/// the only one for its CPU.
#[pin_data(PinnedDrop)]
pub(crate) struct Reader {
    cpu: u32,
    shared: NonNull<Shared>,
    /// Two threads may read from one open file.
    #[pin]
    turn: Mutex<()>,
}

// SAFETY: `Shared` may be used by any thread, and `turn` sees to it that one reads at a time.
unsafe impl Send for Reader {}

// SAFETY: As above.
unsafe impl Sync for Reader {}

impl Reader {
    /// Becomes the reader of a CPU's stream.
    ///
    /// Takes no lock that is held while the channel is opened or closed: closing waits for this.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is one already, or the trace is just being started or replaced.
    pub(crate) fn new(cpu: u32) -> Result<Pin<KBox<Self>>> {
        let mut readers = READERS.lock();
        let shared = NonNull::new(CURRENT.load(Acquire)).filter(|_| readers.admit);
        let shared = shared.ok_or(EBUSY)?;

        // SAFETY: A data file is made for possible CPUs only.
        if !unsafe { abi::blkrelay_reader_take(cpu) } {
            return Err(EBUSY);
        }
        // INVARIANT: Counted below or not made; `take` has made sure that there is no other.
        let reader = KBox::pin_init(
            pin_init!(Self {
                cpu,
                shared,
                turn <- new_mutex!(()),
            }),
            GFP_KERNEL,
        );

        match reader {
            Ok(reader) => {
                readers.count = readers.count.wrapping_add(1);
                Ok(reader)
            }
            Err(error) => {
                // SAFETY: As above.
                unsafe { abi::blkrelay_reader_release(cpu) };
                Err(error)
            }
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: By the type invariant.
        unsafe { self.shared.as_ref() }
    }

    /// The buffer; null for a moment while the file is being made.
    fn buf(&self) -> *mut abi::rchan_buf {
        // SAFETY: A possible CPU. The word is read whole; it changes while its file is made only, and
        // when the channel is closed.
        unsafe { (&raw const (*abi::blkrelay_cpu_ptr(self.cpu)).buf).read_volatile() }
    }

    /// Sub-buffers that are finished and not consumed: how many, and the number of the first.
    fn finished(&self, buf: *mut abi::rchan_buf) -> (usize, usize) {
        if buf.is_null() {
            return (0, 0);
        }
        // SAFETY: A buffer lives as long as the channel. The writer raises the counter with a plain
        // store after a barrier, which this load pairs with.
        let produced = unsafe { Atomic::from_ptr(&raw mut (*buf).subbufs_produced) }.load(Acquire);
        // SAFETY: As above; only a reader changes this one.
        let consumed = unsafe { (&raw const (*buf).subbufs_consumed).read_volatile() };

        (produced.wrapping_sub(consumed), consumed)
    }

    /// Copies as many whole finished sub-buffers as fit, each cut to what it holds, and consumes
    /// them.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the user's buffer is smaller than a sub-buffer, `EAGAIN` if none is finished and
    /// the trace runs, `EFAULT` if none could be copied. `Ok(0)` means that there will be none any
    /// more.
    pub(crate) fn read(&self, out: &mut UserSliceWriter) -> Result<usize> {
        let shared = self.shared();
        let size = shared.config.subbuf_size as usize;

        if out.len() < size {
            return Err(EINVAL);
        }

        let _turn = self.turn.lock();
        // First whether it is over, then what there is: the other way round the last would be
        // missed.
        let ended = shared.ended.load(Acquire);

        match shared.flight() {
            Some(flight) if !ended => match flight.read_frozen(|| self.copy(out, true)) {
                None => Err(EAGAIN),
                Some(copied) => copied,
            },
            _ => self.copy(out, ended),
        }
    }

    /// The copying. `over` says that nothing will be finished any more.
    fn copy(&self, out: &mut UserSliceWriter, over: bool) -> Result<usize> {
        let shared = self.shared();
        let size = shared.config.subbuf_size as usize;
        let subbufs = shared.config.subbufs as usize;
        let buf = self.buf();
        let (finished, first) = self.finished(buf);
        let mut copied = 0usize;
        let mut done = 0usize;
        let mut error = if over { Ok(0) } else { Err(EAGAIN) };

        while done < finished {
            let number = first.wrapping_add(done).checked_rem(subbufs).unwrap_or(0);
            // SAFETY: `start` is the buffer's memory, of `subbufs` times `size` bytes, and `number`
            // is less.
            let subbuf = unsafe { (*buf).start }.wrapping_byte_add(number.wrapping_mul(size));
            // SAFETY: A finished sub-buffer begins with a head. It stays as it is until it is
            // consumed.
            let used = unsafe { (*subbuf.cast::<abi::blkrelay_subbuf>()).used } as usize;
            let used = used.max(HEAD).min(size);

            if used > out.len() {
                break;
            }
            // SAFETY: As above, and `used` bytes are within it.
            let bytes = unsafe { core::slice::from_raw_parts(subbuf.cast::<u8>(), used) };

            if let Err(e) = out.write_slice(bytes) {
                error = Err(e);
                break;
            }
            copied = copied.wrapping_add(used);
            done = done.wrapping_add(1);
        }

        if done == 0 {
            return error;
        }
        // All is read before the writer may have it back: pairs with the barrier in
        // `Stream::begin`.
        smp_mb(Full);
        // SAFETY: The channel is open, and these sub-buffers are produced. Its one buffer is at CPU 0.
        unsafe { abi::relay_subbufs_consumed((*buf).chan, 0, done) };
        Ok(copied)
    }

    /// Waits on nothing itself, but has `table` woken when [`Reader::read`] has something to say.
    /// Returns whether it has now.
    ///
    /// # Safety
    ///
    /// `file` is the open file that holds this, and `table` what its `poll` was called with.
    pub(crate) unsafe fn poll(
        &self,
        file: *mut bindings::file,
        table: *mut bindings::poll_table_struct,
    ) -> bool {
        // SAFETY: By the contract. What is waited on is the module's, which an open file holds.
        unsafe { abi::blkrelay_reader_poll(self.cpu, file, table) };
        let shared = self.shared();
        let ended = shared.ended.load(Acquire);

        // A frozen recorder has either something to hand out or to say that this was all.
        match shared.flight() {
            Some(flight) => ended || flight.is_frozen(),
            None => ended || self.finished(self.buf()).0 > 0,
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Reader {
    fn drop(self: Pin<&mut Self>) {
        let mut readers = READERS.lock();

        // SAFETY: Taken in `new`.
        unsafe { abi::blkrelay_reader_release(self.cpu) };
        readers.count = readers.count.wrapping_sub(1);
    }
}

// ---- The data files' operations -----------------------------------------------------------------

static DATA: Operations = Operations(bindings::file_operations {
    open: Some(data_open),
    read: Some(data_read),
    poll: Some(data_poll),
    release: Some(data_release),
    ..OPERATIONS
});

/// Makes a CPU's data file. Returns null if it cannot be made.
///
/// # Safety
///
/// As [`make_file`]; `cpu` is a possible CPU.
pub(crate) unsafe fn create_data_file(
    name: &CStr,
    parent: *mut bindings::dentry,
    mode: bindings::umode_t,
    cpu: u32,
) -> *mut bindings::dentry {
    // SAFETY: By the contract.
    unsafe { make_file(name, mode, parent, cpu as usize, &DATA) }.unwrap_or(core::ptr::null_mut())
}

/// A data file is opened, which makes its opener the reader of that stream.
///
/// # Safety
///
/// `open` of a file that [`create_data_file`] has made.
unsafe extern "C" fn data_open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
    from_result(|| {
        // SAFETY: What `create_data_file` has put there.
        let cpu = unsafe { (*inode).i_private } as usize as u32;
        let reader = Reader::new(cpu)?;

        // SAFETY: What `open` is called with; nobody else has it yet.
        unsafe { (*file).private_data = reader.into_foreign() };
        // SAFETY: As above. It cannot fail.
        Ok(unsafe { bindings::nonseekable_open(inode, file) })
    })
}

/// A data file is read.
///
/// # Safety
///
/// `read` of a file that [`data_open`] has opened.
unsafe extern "C" fn data_read(
    file: *mut bindings::file,
    buffer: *mut c_char,
    length: usize,
    _position: *mut bindings::loff_t,
) -> isize {
    from_result(|| {
        // SAFETY: Set by `data_open`, and given back only when the file is closed.
        let reader = unsafe { <Pin<KBox<Reader>> as ForeignOwnable>::borrow((*file).private_data) };
        let mut out = UserSlice::new(UserPtr::from_ptr(buffer.cast()), length).writer();

        reader.read(&mut out).map(|copied| copied as isize)
    })
}

/// A data file is polled.
///
/// # Safety
///
/// `poll` of a file that [`data_open`] has opened.
unsafe extern "C" fn data_poll(
    file: *mut bindings::file,
    table: *mut bindings::poll_table_struct,
) -> bindings::__poll_t {
    // SAFETY: Set by `data_open`, and given back only when the file is closed.
    let reader = unsafe { <Pin<KBox<Reader>> as ForeignOwnable>::borrow((*file).private_data) };

    // SAFETY: What `poll` is called with.
    if unsafe { reader.poll(file, table) } {
        bindings::POLLIN | bindings::POLLRDNORM
    } else {
        0
    }
}

/// A data file is closed.
///
/// # Safety
///
/// `release` of a file that [`data_open`] has opened.
unsafe extern "C" fn data_release(
    _inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: Set by `data_open`; the file is not used any more.
    drop(unsafe { <Pin<KBox<Reader>> as ForeignOwnable>::from_foreign((*file).private_data) });
    0
}

// SPDX-License-Identifier: GPL-2.0
//! Events become text on several CPUs, and stay in their order.

use super::format::{Before, Formats, Shown};
use super::line::Line;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};

/// Events of a batch.
const EVENTS: usize = 4096;
/// Bytes of payloads of a batch, after which it is full as well.
const PAYLOADS: usize = 1 << 18;
/// More threads than these have nothing to do: the merge is one.
const THREADS: usize = 4;

/// Events that are to be shown, one after the other.
#[derive(Debug, Default)]
struct Batch {
    events: Vec<Shown>,
    payloads: Vec<u8>,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.events.len() >= EVENTS || self.payloads.len() >= PAYLOADS
    }

    fn show(&self, formats: &Formats, line: &mut Line) {
        let mut before = Before::new();
        for shown in &self.events {
            let payload = self.payloads.get(shown.payload.clone());
            formats.show(line, &mut before, shown, payload.unwrap_or_default());
        }
    }
}

/// A batch, and the text that it becomes.
struct Job {
    batch: Batch,
    line: Line,
}

impl Job {
    fn new() -> Job {
        Job {
            batch: Batch::default(),
            line: Line::new(EVENTS * 100),
        }
    }
}

/// Shows events in the order in which they come.
pub(super) struct Pool<'a> {
    out: &'a mut dyn Write,
    next: Job,
    jobs: SyncSender<(Job, SyncSender<Job>)>,
    under_way: VecDeque<Receiver<Job>>,
    /// Those whose memory is used again.
    spare: Vec<Job>,
    /// So many may be under way.
    most: usize,
}

impl Pool<'_> {
    /// Shows an event with its payload.
    ///
    /// # Errors
    ///
    /// Those of the output.
    #[inline]
    pub(super) fn push(&mut self, mut shown: Shown, payload: &[u8]) -> io::Result<()> {
        let batch = &mut self.next.batch;
        let at = batch.payloads.len();
        if !payload.is_empty() {
            batch.payloads.extend_from_slice(payload);
        }
        shown.payload = at..batch.payloads.len();
        batch.events.push(shown);
        if batch.is_full() {
            self.hand_out()?;
        }
        Ok(())
    }

    fn hand_out(&mut self) -> io::Result<()> {
        while self.under_way.len() >= self.most {
            self.take_in()?;
        }
        let job = std::mem::replace(&mut self.next, self.spare.pop().unwrap_or_else(Job::new));
        let (done, wait) = sync_channel(1);
        // The threads are there as long as the sender is.
        if self.jobs.send((job, done)).is_ok() {
            self.under_way.push_back(wait);
        }
        Ok(())
    }

    /// Waits for the oldest batch, and writes its text.
    fn take_in(&mut self) -> io::Result<()> {
        let Some(Ok(mut job)) = self.under_way.pop_front().map(|wait| wait.recv()) else {
            return Ok(());
        };
        self.out.write_all(job.line.as_bytes())?;
        job.batch.events.clear();
        job.batch.payloads.clear();
        job.line.clear();
        self.spare.push(job);
        Ok(())
    }

    /// Writes all that is left.
    fn finish(&mut self) -> io::Result<()> {
        self.hand_out()?;
        while !self.under_way.is_empty() {
            self.take_in()?;
        }
        Ok(())
    }
}

/// Runs with a pool whose text goes to `out`.
///
/// # Errors
///
/// Those of the output, and what `run` returns.
pub(super) fn with<T>(
    formats: &Formats,
    out: &mut dyn Write,
    run: impl FnOnce(&mut Pool<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let most = 2 * threads.min(THREADS);
    let (jobs, queue) = sync_channel::<(Job, SyncSender<Job>)>(most);
    let queue = Mutex::new(queue);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(THREADS) {
            scope.spawn(|| loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((mut job, done)) = next else {
                    return;
                };
                job.batch.show(formats, &mut job.line);
                // Who waits for it may have given up.
                let _ = done.send(job);
            });
        }
        let mut pool = Pool {
            out,
            next: Job::new(),
            jobs,
            under_way: VecDeque::new(),
            spare: Vec::new(),
            most,
        };
        let result = run(&mut pool)?;
        pool.finish()?;
        Ok(result)
    })
}

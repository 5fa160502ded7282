//! A thread pool for short parallel loops. Each worker has a share of the tasks, neighbours all of them, takes them one
//! by one, and then helps with the shares of others, so that a busy core or an unequal one does not stall the rest.
//! Tasks of every op go through rows in the same order, so what a worker wrote in one op it mostly reads itself in the
//! next, out of its own cache. Which worker runs a task never changes a result: every output element belongs to
//! exactly one task.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle worker watches for the next loop before it sleeps. Ops follow each other within
/// microseconds inside a step; waking a sleeping thread costs tens of them.
const SPIN: Duration = Duration::from_micros(100);

type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    /// The loop body with its lifetime erased; valid until the job is withdrawn and `active` is zero.
    body: *const Body<'static>,
    tasks: usize,
    /// As many as workers, or one that all take tasks from.
    shares: usize,
}
// SAFETY: the body is `Sync`, and `Pool::run` keeps it alive until no worker can touch it.
unsafe impl Send for Job {}

impl Job {
    fn share(&self, share: usize) -> Range<usize> {
        share * self.tasks / self.shares..(share + 1) * self.tasks / self.shares
    }
}

struct State {
    job: Option<Job>,
    /// Workers that wait to be woken: waking costs a system call even where nobody sleeps.
    sleeping: usize,
    stop: bool,
}

/// A counter with a cache line of its own (and its neighbour, which is fetched along).
#[repr(align(128))]
#[derive(Default)]
struct Next(AtomicUsize);

/// What all workers see. There is one job at a time, so its counters live here: a loop allocates nothing.
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Number of jobs started: workers spin on it before they sleep.
    epoch: AtomicUsize,
    /// The next task of each share of the present job.
    next: Box<[Next]>,
    /// Workers inside the present job besides the caller. Counted up under the state lock.
    active: AtomicUsize,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// Worker threads; the calling thread is worker 0. Dropping the pool joins the threads.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    threads: usize,
}

impl Pool {
    /// A pool of `threads` workers (at least one: the caller).
    pub fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { job: None, sleeping: 0, stop: false }),
            wake: Condvar::new(),
            epoch: AtomicUsize::new(0),
            next: (0..threads).map(|_| Next::default()).collect(),
            active: AtomicUsize::new(0),
            panic: Mutex::new(None),
        });
        let handles = (1..threads)
            .map(|worker| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("selftune-{worker}"))
                    .spawn(move || work(&shared, worker))
                    .expect("the system refused a thread")
            })
            .collect();
        Self { shared, handles, threads }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `body(task, worker)` once for each task in `0..tasks` and returns when all are done.
    /// A panic in a task is raised again here. Loops must not be nested.
    pub fn run(&self, tasks: usize, body: &Body<'_>) {
        self.run_shares(tasks, self.threads, body);
    }

    /// The same with the tasks started in the order of their numbers: for tasks that wait for earlier ones, and where the
    /// first are the longest.
    pub fn run_in_order(&self, tasks: usize, body: &Body<'_>) {
        self.run_shares(tasks, 1, body);
    }

    fn run_shares(&self, tasks: usize, shares: usize, body: &Body<'_>) {
        if self.threads == 1 || tasks <= 1 {
            for task in 0..tasks {
                body(task, 0);
            }
            return;
        }
        // SAFETY: only the lifetime changes. `run` does not return before the job is withdrawn (no worker can
        // join it any more) and every worker that had joined has left.
        let body_static: *const Body<'static> =
            unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body as *const Body<'_>) };
        let shared = &*self.shared;
        let job = Job { body: body_static, tasks, shares };
        {
            let mut state = shared.state.lock().expect("pool state");
            assert!(state.job.is_none(), "parallel loops must not be nested");
            // No worker is inside a job: the last `run` waited for all of them.
            for share in 0..shares {
                shared.next[share].0.store(job.share(share).start, Ordering::Relaxed);
            }
            state.job = Some(job);
            shared.epoch.fetch_add(1, Ordering::Release);
            if state.sleeping > 0 {
                shared.wake.notify_all();
            }
        }
        take_tasks(shared, job, 0);
        // No task is left: workers that have not woken yet need not come.
        shared.state.lock().expect("pool state").job = None;
        let mut spins = 0u32;
        while shared.active.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let panic = shared.panic.lock().expect("panic slot").take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().expect("pool state").stop = true;
        self.shared.epoch.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

fn take_tasks(shared: &Shared, job: Job, worker: usize) {
    // SAFETY: this worker is counted in `active` (or is the caller of `run`), so the body is alive.
    let body = unsafe { &*job.body };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for share in (0..job.shares).map(|turn| (worker + turn) % job.shares) {
            let end = job.share(share).end;
            loop {
                let task = shared.next[share].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                body(task, worker);
            }
        }
    }));
    if let Err(panic) = outcome {
        for next in &shared.next {
            next.0.store(job.tasks, Ordering::Relaxed);
        }
        shared.panic.lock().expect("panic slot").get_or_insert(panic);
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        let start = Instant::now();
        while shared.epoch.load(Ordering::Acquire) == seen && start.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        let job = {
            let mut state = shared.state.lock().expect("pool state");
            loop {
                if state.stop {
                    return;
                }
                let epoch = shared.epoch.load(Ordering::Acquire);
                if epoch != seen {
                    seen = epoch;
                    if let Some(job) = state.job {
                        shared.active.fetch_add(1, Ordering::AcqRel);
                        break job;
                    }
                }
                state.sleeping += 1;
                state = shared.wake.wait(state).expect("pool state");
                state.sleeping -= 1;
            }
        };
        take_tasks(shared, job, worker);
        shared.active.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task, worker| {
                    assert!(worker < threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn tasks_start_in_order_where_that_is_asked_for() {
        let pool = Pool::new(4);
        for tasks in [1, 3, 100] {
            let ended: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            // Each waits for the one before, which no other order would end.
            pool.run_in_order(tasks, &|task, _| {
                while task > 0 && ended[task - 1].load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                ended[task].store(1, Ordering::Release);
            });
        }
    }

    #[test]
    fn workers_begin_with_shares_of_their_own() {
        let pool = Pool::new(2);
        let workers: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(9)).collect();
        let started = AtomicUsize::new(0);
        pool.run(8, &|task, worker| {
            workers[task].store(worker, Ordering::Relaxed);
            started.fetch_add(1, Ordering::AcqRel);
            // Until both have begun.
            while started.load(Ordering::Acquire) < 2 {
                std::thread::yield_now();
            }
        });
        let workers: Vec<usize> = workers.iter().map(|worker| worker.load(Ordering::Relaxed)).collect();
        assert_eq!((workers[0], workers[4]), (0, 1), "{workers:?}");
    }

    #[test]
    fn a_panicking_task_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(2);
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(10, &|task, _| assert!(task != 3, "task three"))));
        assert!(outcome.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|task, _| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }
}

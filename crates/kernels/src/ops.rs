//! The set of ops on this processor. Each op's methods, contract, reference and variants live in a folder below.

use crate::arena::{AlignedBuffer, ArenaPlan, Plain, Tensor};
use crate::isa::Isa;
use crate::op_clock::{OpClock, OpSeconds};
use crate::pool::Pool;

/// How the products with frozen weights treat activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 16-bit integers with a scale per row and group: error under 2e-4. The default.
    A16,
    /// float32 throughout.
    Exact,
    /// 8-bit integers: fast, error about 1e-2.
    A8,
}

impl Precision {
    pub const ALL: [Precision; 3] = [Precision::A16, Precision::Exact, Precision::A8];

    pub fn name(self) -> &'static str {
        match self {
            Precision::A16 => "a16",
            Precision::Exact => "exact",
            Precision::A8 => "a8",
        }
    }
    pub fn by_name(name: &str) -> Option<Precision> {
        Precision::ALL.into_iter().find(|precision| precision.name() == name)
    }
}

/// What to run on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpsOptions {
    pub threads: usize,
    pub isa: Isa,
    pub precision: Precision,
}

impl Default for OpsOptions {
    /// All physical cores that the system offers this process, the best instruction set, `a16`.
    fn default() -> Self {
        Self { threads: crate::physical_cores(), isa: Isa::best(), precision: Precision::A16 }
    }
}

/// What ops have asked for and done since the counters were last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Multiply-adds of products with frozen packed weights (both directions, head included).
    pub frozen_macs: u64,
    /// Multiply-adds of LoRA products.
    pub adapter_macs: u64,
    /// Multiply-adds of attention (scores and values, both directions), masked pairs not counted.
    pub attention_macs: u64,
    /// The most scratch memory that any op asked for, in bytes.
    pub scratch_bytes: usize,
}

/// Which counter an op's multiply-adds belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Frozen,
    /// Frozen products too, booked apart on the clock.
    Head,
    Adapter,
    Attention,
    Elementwise,
}

/// The ops of this processor over one arena.
///
/// An `Ops` made by [`Ops::planner`] has no memory and computes nothing: it checks shapes, counts, and records
/// the scratch that each op would need. Running a step on it first tells what [`Ops::new`] must provide, so that
/// the real step allocates nothing.
pub struct Ops {
    pub(crate) options: OpsOptions,
    pub(crate) pool: Pool,
    arena: AlignedBuffer<f32>,
    scratch: AlignedBuffer<u8>,
    planning: bool,
    products_only: bool,
    counters: Counters,
    clock: OpClock,
}

impl Ops {
    /// Ops over an arena of `arena.peak_floats()` zeros and `scratch_bytes` of scratch.
    pub fn new(options: OpsOptions, arena: &ArenaPlan, scratch_bytes: usize) -> Self {
        Self {
            options,
            pool: Pool::new(options.threads),
            arena: AlignedBuffer::zeroed(arena.peak_floats()),
            scratch: AlignedBuffer::zeroed(scratch_bytes),
            planning: false,
            products_only: false,
            counters: Counters::default(),
            clock: OpClock::default(),
        }
    }

    /// Ops that only check, count and record.
    pub fn planner(options: OpsOptions) -> Self {
        Self {
            options,
            pool: Pool::new(1),
            arena: AlignedBuffer::zeroed(0),
            scratch: AlignedBuffer::zeroed(0),
            planning: true,
            products_only: false,
            counters: Counters::default(),
            clock: OpClock::default(),
        }
    }

    pub fn options(&self) -> &OpsOptions {
        &self.options
    }
    /// Changes the precision of the products that follow.
    pub fn set_precision(&mut self, precision: Precision) {
        self.options.precision = precision;
    }
    pub fn is_planning(&self) -> bool {
        self.planning
    }
    pub fn counters(&self) -> Counters {
        self.counters
    }
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }
    /// With `true`, only products with frozen weights compute, on whatever values lie in their places, until it is
    /// switched off: how long a step's products take alone.
    pub fn set_products_only(&mut self, products_only: bool) {
        self.products_only = products_only;
    }
    /// Whether what stands around a head's products runs.
    pub(crate) fn is_products_only(&self) -> bool {
        self.products_only
    }
    /// Where the time went since the last call.
    pub fn take_op_seconds(&mut self) -> OpSeconds {
        self.clock.take()
    }

    /// The values of `tensor`, for the host: reading results, saving state. Not for block code.
    pub fn read(&self, tensor: Tensor) -> &[f32] {
        assert!(!self.planning, "a planner has no values");
        &self.arena[tensor.range()]
    }
    /// Overwrites `tensor` with `values` from the host.
    pub fn write(&mut self, tensor: Tensor, values: &[f32]) {
        assert_eq!(tensor.len(), values.len(), "values for a tensor of [{}, {}]", tensor.rows(), tensor.columns());
        if !self.planning {
            self.arena[tensor.range()].copy_from_slice(values);
        }
    }

    /// Every op starts here: books `macs` and `scratch_bytes`; false when there is nothing to compute.
    pub(crate) fn begin(&mut self, work: Work, macs: u64, scratch_bytes: usize) -> bool {
        match work {
            Work::Frozen | Work::Head => self.counters.frozen_macs += macs,
            Work::Adapter => self.counters.adapter_macs += macs,
            Work::Attention => self.counters.attention_macs += macs,
            Work::Elementwise => {}
        }
        self.counters.scratch_bytes = self.counters.scratch_bytes.max(scratch_bytes);
        self.clock.start(work);
        if !self.planning {
            assert!(
                scratch_bytes <= self.scratch.len(),
                "op needs {scratch_bytes} bytes of scratch, the plan provided {}",
                self.scratch.len()
            );
        }
        !self.planning && (!self.products_only || matches!(work, Work::Frozen | Work::Head))
    }

    /// Start of the arena, for ops that take several tensors apart. Bounds were checked by `check_*`.
    pub(crate) fn arena_start(&mut self) -> *mut f32 {
        self.arena.as_mut_ptr()
    }
    pub(crate) fn scratch_start(&mut self) -> *mut u8 {
        self.scratch.as_mut_ptr()
    }
    /// Asserts that `tensor` lies inside the arena.
    pub(crate) fn check(&self, name: &str, tensor: Tensor) {
        assert!(self.planning || tensor.range().end <= self.arena.len(), "{name} lies outside the arena");
    }
}

/// Hands out parts of a scratch region, each aligned to a cache line.
pub(crate) struct Carver {
    start: *mut u8,
    used: usize,
}

impl Carver {
    pub(crate) fn new(start: *mut u8) -> Self {
        Self { start, used: 0 }
    }
    /// The next `len` values of `T`. The region behind `start` must be large enough for all parts together
    /// (see [`scratch_size`]) and the parts must not outlive it.
    pub(crate) fn take<T: Plain>(&mut self, len: usize) -> *mut T {
        // SAFETY: stays inside the region by the caller's promise.
        let part = unsafe { self.start.add(self.used) };
        self.used += scratch_size::<T>(len);
        part.cast()
    }
}

/// Bytes that a part of `len` values takes in scratch.
pub(crate) const fn scratch_size<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(crate::arena::ALIGNMENT_BYTES)
}

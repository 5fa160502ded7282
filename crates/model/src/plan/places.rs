//! Places every tensor of a training step before the first one, and says what the memory is for.
//!
//! R is the most rows that a step has: one less than the longest example has tokens, because nothing is predicted
//! from the last one.

use kernels::arena::ArenaMark;
use kernels::bfloat16::stored_tensor;
use kernels::{ArenaPlan, KeptGates, Tensor};

use crate::adapter::AdapterSpec;
use crate::block::{BlockGradients, BlockTensors, FrozenGradient};
use crate::config::ModelConfig;
use crate::lora::FrozenStack;
use crate::plan::{BoundaryType, KeptType, MemoryChoice};
use crate::projection::Projection;
use crate::step::{SelectRows, StepOptions};

/// The places of everything in a training step.
pub(crate) struct StepPlaces {
    pub(crate) arena: ArenaPlan,
    /// Name and bytes of each part of the arena.
    pub(crate) items: Vec<(&'static str, usize)>,
    /// The adapter, its gradients and both moments, [1, parameters] each.
    pub(crate) parameters: Tensor,
    pub(crate) gradients: Tensor,
    pub(crate) first_moment: Tensor,
    pub(crate) second_moment: Tensor,
    pub(crate) frozen: FrozenPlaces,
    /// Where frozen weights are trained along, for comparison.
    pub(crate) frozen_gradient: Option<FrozenGradient>,
    /// One entry a block; blocks that share memory have the same places.
    pub(crate) blocks: Vec<BlockTensors>,
    /// Where the input of each block from the first kept one on is stored in bfloat16; empty when inputs are kept as
    /// they are.
    pub(crate) stored_inputs: Vec<Tensor>,
    /// For blocks that all rows leave.
    pub(crate) block_gradients: BlockGradients,
    /// For the last block when only selected rows leave it.
    pub(crate) selecting_gradients: BlockGradients,
    pub(crate) head: HeadTensors,
}

/// The frozen adapters of a stack.
#[derive(Clone, Copy)]
pub(crate) struct FrozenPlaces {
    /// Their values, [1, parameters].
    pub(crate) parameters: Option<Tensor>,
    /// Hidden values of one projection at a time, [1, rows · largest rank].
    pub(crate) hidden: Option<Tensor>,
}

impl FrozenPlaces {
    pub(crate) fn new(plan: &mut Itemized, stack: &FrozenStack, config: &ModelConfig, rows: usize) -> Self {
        let rank = stack.rank_max();
        let count = stack.parameter_count(config);
        let mut place = |name, len: usize| (rank > 0).then(|| plan.item(name, |arena| arena.tensor(1, len)));
        Self { parameters: place("frozen adapters", count), hidden: place("frozen adapters' activations", rows * rank) }
    }
}

/// Around the output head, [R, D] each.
#[derive(Clone, Copy)]
pub(crate) struct HeadTensors {
    /// Rows of the last block's output that go on.
    pub(crate) hidden: Tensor,
    pub(crate) normed: Tensor,
    pub(crate) d_normed: Tensor,
    pub(crate) d_hidden: Tensor,
}

/// The first block whose backward runs; earlier ones keep nothing.
pub(crate) fn first_kept_block(spec: &AdapterSpec, options: &StepOptions) -> usize {
    if options.necessary_work.stop_at_first_adapted_block { spec.blocks.start } else { 0 }
}

impl StepPlaces {
    /// `options.memory` must be resolved for this model and adapter.
    pub(crate) fn new(
        config: &ModelConfig,
        spec: &AdapterSpec,
        frozen: &FrozenStack,
        options: &StepOptions,
        rows: usize,
    ) -> Self {
        let mut plan = Itemized::default();
        let parameters = plan.item("adapter", |arena| arena.tensor(1, spec.parameter_count(config)));
        let gradients = plan.item("adapter gradients", |arena| arena.tensor(1, parameters.len()));
        let (first_moment, second_moment) = plan
            .item("optimizer moments", |arena| (arena.tensor(1, parameters.len()), arena.tensor(1, parameters.len())));

        let frozen = FrozenPlaces::new(&mut plan, frozen, config, rows);
        let frozen_gradient = plan.item("gradient and optimizer of one frozen matrix", |arena| {
            let matrix = |projection: Projection| projection.shape(config).0 * projection.shape(config).1;
            let largest = Projection::ALL.into_iter().map(matrix).max().unwrap_or(0);
            (!options.necessary_work.train_adapters_only).then(|| FrozenGradient {
                gradient: arena.tensor(1, largest),
                values: arena.tensor(1, largest),
                first_moment: arena.tensor(1, largest),
                second_moment: arena.tensor(1, largest),
            })
        });

        let memory = options.memory;
        // The gradient of a weight is made from its input.
        let reads_all_inputs = frozen_gradient.is_some();
        let selects_in_block = options.necessary_work.select_rows == SelectRows::InLastBlock;
        let selects_before_head = options.necessary_work.select_rows == SelectRows::BeforeHead;
        let first_kept = first_kept_block(spec, options);
        let boundaries = Boundaries::new(&mut plan, config, memory, config.blocks.len() - first_kept, rows);
        let last_output = boundaries.last_output;
        let down_hidden: Vec<Option<Tensor>> = plan.item("adapter activations kept", |arena| {
            let adapted = |block: &usize| spec.blocks.contains(block) && spec.targets.contains(&Projection::Down);
            let place = |block| adapted(&block).then(|| arena.tensor(rows, spec.rank));
            (0..config.blocks.len()).map(place).collect()
        });
        let selected = plan.item("rows selected in the last block", |arena| {
            selects_in_block.then(|| (arena.tensor(rows, config.width), arena.tensor(rows, config.width)))
        });

        let d_stream = plan.item("gradient of the stream", |arena| arena.tensor(rows, config.width));
        let d_product = plan.item("gradient behind output norms", |arena| {
            config.output_norms.then(|| arena.tensor(rows, config.width))
        });
        let selects = selects_in_block || selects_before_head;
        let head = plan.item("output head", |arena| HeadTensors {
            hidden: if selects_before_head { arena.tensor(rows, config.width) } else { last_output },
            normed: arena.tensor(rows, config.width),
            d_normed: arena.tensor(rows, config.width),
            d_hidden: if selects { arena.tensor(rows, config.width) } else { d_stream },
        });
        // The last block has the shared places, so that its values stay until its backward, the first, has read them.
        let above_kept = 1..memory.blocks_kept;
        let kept: Vec<KeptBlock> = plan.item("values of blocks kept whole", |arena| {
            let new = |_| KeptBlock::new(arena, config, spec, memory.kept_values, reads_all_inputs, rows);
            above_kept.map(new).collect()
        });
        let kept_attentions: Vec<KeptAttention> = plan.item("attention kept", |arena| {
            (0..memory.attentions_kept).map(|_| KeptAttention::new(arena, config, spec, rows)).collect()
        });

        // Last, because parts of it share places and leave the arena's end below its peak.
        let (shared, parts) = plan.item("one block's activations and gradients", |arena| {
            let attention = AttentionPart::new(arena, config, Some(spec), rows);
            let behind_attention = arena.mark();
            let wide = WidePart::new(arena, config, rows);
            let gated = GatedPart::new(arena, config, rows);
            // Backward's gradients take the places of values that it has read for the last time.
            let reads_gated = reads_all_inputs || spec.targets.contains(&Projection::Down);
            let d_gated = if reads_gated { arena.tensor(rows, config.feed_forward) } else { gated.gated };
            arena.release(gated.start);
            let d_middle_normed = arena.tensor(rows, config.width);
            arena.release(behind_attention);
            let parts = GradientParts::new(arena, config, rows, d_gated, d_middle_normed);
            (Activations { attention, wide, gated }, parts)
        });

        let last = config.blocks.len() - 1;
        let blocks = (0..config.blocks.len()).map(|block| {
            let above = last - block;
            let (input, output) = boundaries.of_block(block.saturating_sub(first_kept), block < first_kept);
            let selected = selected.filter(|_| block == last);
            let t = shared.block_tensors(input, output, selected, down_hidden[block]);
            if block < first_kept || above == 0 {
                return t;
            }
            match (kept.get(above - 1), above.checked_sub(memory.blocks_kept)) {
                (Some(kept), _) => kept.in_place_of(t),
                (None, Some(below)) => kept_attentions.get(below).map_or(t, |kept| kept.in_place_of(t)),
                (None, None) => t,
            }
        });
        let blocks = blocks.collect();
        let all_leave = parts.block_gradients(d_stream, d_stream, d_product);
        let selecting = parts.block_gradients(head.d_hidden, d_stream, d_product);
        Self {
            arena: plan.arena,
            items: plan.items,
            parameters,
            gradients,
            first_moment,
            second_moment,
            frozen,
            frozen_gradient,
            blocks,
            stored_inputs: boundaries.stored,
            block_gradients: all_leave,
            selecting_gradients: BlockGradients { query_input: parts.query_input, ..selecting },
            head,
        }
    }
}

/// The inputs of the blocks that backward runs through, and the last output.
struct Boundaries {
    /// [R, D] float32 for each kept block; empty when they are stored in bfloat16. Inputs inside a group of blocks
    /// share their places with those of the other groups.
    kept: Vec<Tensor>,
    /// The same in bfloat16.
    stored: Vec<Tensor>,
    /// The stream that runs through all blocks in place when inputs are stored.
    stream: Option<Tensor>,
    last_output: Tensor,
}

impl Boundaries {
    fn new(plan: &mut Itemized, config: &ModelConfig, memory: MemoryChoice, blocks: usize, rows: usize) -> Self {
        let every = memory.checkpoint_blocks;
        plan.item("block boundaries", |arena| {
            let in_bfloat16 = memory.boundaries == BoundaryType::Bfloat16;
            let place = |arena: &mut ArenaPlan| match in_bfloat16 {
                true => stored_tensor(arena, rows, config.width),
                false => arena.tensor(rows, config.width),
            };
            let inside: Vec<Tensor> = (1..every).map(|_| place(arena)).collect();
            let inputs = (0..blocks).map(|block| match block % every {
                0 => place(arena),
                inner => inside[inner - 1],
            });
            let inputs: Vec<Tensor> = inputs.collect();
            let stream = in_bfloat16.then(|| arena.tensor(rows, config.width));
            let (kept, stored) = if in_bfloat16 { (Vec::new(), inputs) } else { (inputs, Vec::new()) };
            Self { kept, stored, stream, last_output: arena.tensor(rows, config.width) }
        })
    }

    /// Input and output of the kept block `kept`, or of one before the first, which keeps nothing.
    fn of_block(&self, kept: usize, before_first: bool) -> (Tensor, Tensor) {
        let input = self.stream.unwrap_or_else(|| self.kept[kept]);
        if before_first {
            return (input, input);
        }
        let blocks = self.kept.len().max(self.stored.len());
        let inner = self.stream.or(self.kept.get(kept + 1).copied());
        (input, if kept + 1 == blocks { self.last_output } else { inner.expect("an input for every block") })
    }
}

/// Places of what backward reads of one block that is not run again.
struct KeptBlock {
    attention: AttentionPart,
    /// `None` where no adapter of the feed-forward reads them: they share places with the other blocks'.
    middle_normed: Option<Tensor>,
    /// `None` too where they are made again from gate and up.
    gated: Option<Tensor>,
    gates: GatePlaces,
    down_product: Option<Tensor>,
}

/// Gate and up of a kept block.
enum GatePlaces {
    Float32 {
        gate: Tensor,
        up: Tensor,
    },
    /// Their float32 values share places with the other blocks'.
    Int16(KeptGates),
}

impl KeptBlock {
    fn new(
        arena: &mut ArenaPlan,
        config: &ModelConfig,
        spec: &AdapterSpec,
        kept_values: KeptType,
        reads_all_inputs: bool,
        rows: usize,
    ) -> Self {
        let adapts = |projection| reads_all_inputs || spec.targets.contains(&projection);
        let keeps_gated = adapts(Projection::Down) && kept_values == KeptType::Float32;
        let reads_middle_normed = adapts(Projection::Gate) || adapts(Projection::Up);
        Self {
            attention: AttentionPart::new(arena, config, Some(spec), rows),
            middle_normed: reads_middle_normed.then(|| arena.tensor(rows, config.width)),
            gated: keeps_gated.then(|| arena.tensor(rows, config.feed_forward)),
            gates: match kept_values {
                KeptType::Float32 => GatePlaces::Float32 {
                    gate: arena.tensor(rows, config.feed_forward),
                    up: arena.tensor(rows, config.feed_forward),
                },
                KeptType::Int16 => GatePlaces::Int16(KeptGates::new(arena, rows, config.feed_forward)),
            },
            down_product: config.output_norms.then(|| arena.tensor(rows, config.width)),
        }
    }

    /// `t` with the places of this block.
    fn in_place_of(&self, t: BlockTensors) -> BlockTensors {
        let t = match self.gates {
            GatePlaces::Float32 { gate, up } => BlockTensors { gate, up, ..t },
            GatePlaces::Int16(kept) => BlockTensors { kept_gates: Some(kept), ..t },
        };
        let t = BlockTensors {
            middle_normed: self.middle_normed.unwrap_or(t.middle_normed),
            gated: self.gated.unwrap_or(t.gated),
            down_product: self.down_product.unwrap_or(t.down_product),
            ..t
        };
        self.attention.in_place_of(t)
    }
}

/// Places of what lets a block that runs again leave out attention and the output projection.
struct KeptAttention {
    attended: Tensor,
    log_sum_exp: Tensor,
    middle: Tensor,
    /// Read by the norm behind attention.
    output_product: Option<Tensor>,
    output_hidden: Option<Tensor>,
}

impl KeptAttention {
    fn new(arena: &mut ArenaPlan, config: &ModelConfig, spec: &AdapterSpec, rows: usize) -> Self {
        let adapts_output = spec.targets.contains(&Projection::Output);
        Self {
            attended: arena.tensor(rows, config.query_width()),
            log_sum_exp: arena.tensor(rows, config.heads),
            middle: arena.tensor(rows, config.width),
            output_product: config.output_norms.then(|| arena.tensor(rows, config.width)),
            output_hidden: adapts_output.then(|| arena.tensor(rows, spec.rank)),
        }
    }

    fn in_place_of(&self, t: BlockTensors) -> BlockTensors {
        let mut lora_hidden = t.lora_hidden;
        let output = Projection::Output.index();
        lora_hidden[output] = self.output_hidden.or(lora_hidden[output]);
        BlockTensors {
            attended: self.attended,
            log_sum_exp: self.log_sum_exp,
            middle: self.middle,
            output_product: self.output_product.unwrap_or(self.middle),
            lora_hidden,
            ..t
        }
    }
}

/// An arena whose growth is booked under names.
#[derive(Default)]
pub(crate) struct Itemized {
    pub(crate) arena: ArenaPlan,
    pub(crate) items: Vec<(&'static str, usize)>,
}

impl Itemized {
    /// Books what `place` adds to the arena's peak.
    pub(crate) fn item<T>(&mut self, name: &'static str, place: impl FnOnce(&mut ArenaPlan) -> T) -> T {
        let before = self.arena.peak_bytes();
        let placed = place(&mut self.arena);
        let bytes = self.arena.peak_bytes() - before;
        if bytes > 0 {
            self.items.push((name, bytes));
        }
        placed
    }
}

/// Places of the first half of a block; see [`BlockTensors`] for names and shapes.
pub(crate) struct AttentionPart {
    pub(crate) input_normed: Tensor,
    pub(crate) query_product: Tensor,
    pub(crate) query: Tensor,
    pub(crate) key_product: Tensor,
    pub(crate) key: Tensor,
    pub(crate) value: Tensor,
    pub(crate) attended: Tensor,
    pub(crate) log_sum_exp: Tensor,
    pub(crate) output_product: Tensor,
    pub(crate) middle: Tensor,
    pub(crate) hidden: [Option<Tensor>; 7],
}

impl AttentionPart {
    /// `rows` rows; the hidden values of all adapted projections but `Down`, which the caller places.
    pub(crate) fn new(arena: &mut ArenaPlan, config: &ModelConfig, spec: Option<&AdapterSpec>, rows: usize) -> Self {
        let query = arena.tensor(rows, config.query_width());
        let key = arena.tensor(rows, config.key_width());
        let middle = arena.tensor(rows, config.width);
        let mut hidden = [None; 7];
        let adapted = spec.into_iter().flat_map(|spec| spec.sorted_targets().map(|target| (target, spec.rank)));
        for (target, rank) in adapted.filter(|(target, _)| *target != Projection::Down) {
            hidden[target.index()] = Some(arena.tensor(rows, rank));
        }
        Self {
            input_normed: arena.tensor(rows, config.width),
            query_product: if config.query_key_norm { arena.tensor(rows, config.query_width()) } else { query },
            query,
            key_product: if config.query_key_norm { arena.tensor(rows, config.key_width()) } else { key },
            key,
            value: arena.tensor(rows, config.key_width()),
            attended: arena.tensor(rows, config.query_width()),
            log_sum_exp: arena.tensor(rows, config.heads),
            output_product: if config.output_norms { arena.tensor(rows, config.width) } else { middle },
            middle,
            hidden,
        }
    }
}

impl AttentionPart {
    /// `t`, a block that all rows leave, with the places of this part.
    fn in_place_of(&self, t: BlockTensors) -> BlockTensors {
        let mut lora_hidden = self.hidden;
        lora_hidden[Projection::Down.index()] = t.lora_hidden[Projection::Down.index()];
        BlockTensors {
            input_normed: self.input_normed,
            query_input: self.input_normed,
            query_product: self.query_product,
            query: self.query,
            key_product: self.key_product,
            key: self.key,
            value: self.value,
            attended: self.attended,
            log_sum_exp: self.log_sum_exp,
            output_product: self.output_product,
            middle: self.middle,
            lora_hidden,
            ..t
        }
    }
}

/// Places of the feed-forward's values that live to the end of its backward.
pub(crate) struct WidePart {
    middle_normed: Tensor,
    gate: Tensor,
    up: Tensor,
}

impl WidePart {
    fn new(arena: &mut ArenaPlan, config: &ModelConfig, rows: usize) -> Self {
        Self {
            middle_normed: arena.tensor(rows, config.width),
            gate: arena.tensor(rows, config.feed_forward),
            up: arena.tensor(rows, config.feed_forward),
        }
    }
}

/// Places of the feed-forward's last values, read first by its backward.
pub(crate) struct GatedPart {
    /// Where the part begins, for what takes its place later.
    start: ArenaMark,
    gated: Tensor,
    /// `None` in families without output norms, where the product is the output.
    down_product: Option<Tensor>,
}

impl GatedPart {
    fn new(arena: &mut ArenaPlan, config: &ModelConfig, rows: usize) -> Self {
        Self {
            start: arena.mark(),
            gated: arena.tensor(rows, config.feed_forward),
            down_product: config.output_norms.then(|| arena.tensor(rows, config.width)),
        }
    }
}

/// Places of all values of one block but its input and output.
pub(crate) struct Activations {
    pub(crate) attention: AttentionPart,
    wide: WidePart,
    gated: GatedPart,
}

impl Activations {
    pub(crate) fn new(arena: &mut ArenaPlan, config: &ModelConfig, spec: Option<&AdapterSpec>, rows: usize) -> Self {
        Self {
            attention: AttentionPart::new(arena, config, spec, rows),
            wide: WidePart::new(arena, config, rows),
            gated: GatedPart::new(arena, config, rows),
        }
    }

    /// `selected` holds the places of [`BlockTensors::stream`] and [`BlockTensors::query_input`] where only some
    /// rows leave the block.
    pub(crate) fn block_tensors(
        &self,
        input: Tensor,
        output: Tensor,
        selected: Option<(Tensor, Tensor)>,
        down_hidden: Option<Tensor>,
    ) -> BlockTensors {
        let Activations { attention, wide, gated } = self;
        let (stream, query_input) = selected.unwrap_or((input, attention.input_normed));
        let mut lora_hidden = attention.hidden;
        lora_hidden[Projection::Down.index()] = down_hidden;
        BlockTensors {
            input,
            input_normed: attention.input_normed,
            stream,
            query_input,
            query_product: attention.query_product,
            query: attention.query,
            key_product: attention.key_product,
            key: attention.key,
            value: attention.value,
            attended: attention.attended,
            log_sum_exp: attention.log_sum_exp,
            output_product: attention.output_product,
            middle: attention.middle,
            middle_normed: wide.middle_normed,
            gate: wide.gate,
            up: wide.up,
            kept_gates: None,
            gated: gated.gated,
            down_product: gated.down_product.unwrap_or(output),
            output,
            lora_hidden,
        }
    }
}

/// Places of a block's gradients but those of its input and output.
struct GradientParts {
    gated: Tensor,
    middle_normed: Tensor,
    attended: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    input_normed: Tensor,
    query_input: Tensor,
}

impl GradientParts {
    /// The gradients of the feed-forward are dead when those of attention are made, so they may share places.
    fn new(arena: &mut ArenaPlan, config: &ModelConfig, rows: usize, gated: Tensor, middle_normed: Tensor) -> Self {
        Self {
            gated,
            middle_normed,
            attended: arena.tensor(rows, config.query_width()),
            query: arena.tensor(rows, config.query_width()),
            key: arena.tensor(rows, config.key_width()),
            value: arena.tensor(rows, config.key_width()),
            input_normed: arena.tensor(rows, config.width),
            query_input: arena.tensor(rows, config.width),
        }
    }

    fn block_gradients(&self, output: Tensor, input: Tensor, product: Option<Tensor>) -> BlockGradients {
        BlockGradients {
            output,
            input,
            product: product.unwrap_or(output),
            gated: self.gated,
            middle_normed: self.middle_normed,
            attended: self.attended,
            query: self.query,
            key: self.key,
            value: self.value,
            input_normed: self.input_normed,
            query_input: self.input_normed,
        }
    }
}

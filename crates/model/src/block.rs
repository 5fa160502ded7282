//! One transformer block, forward and backward, one op call a line. Training, recomputation, evaluation and
//! generation all run [`forward`]; [`backward`] is the forward upside down.
//!
//! T is the number of rows that enter, S the number that leave: all of them, or, in the last block, only the rows
//! whose output anybody reads ([`BlockRun::selected_rows`]). Keys and values exist for every row.

use kernels::{
    AdamWParameters, AttentionShape, CachedRows, Dropout, GateValues, KeptGates, KeyValueCache, LoraBackward,
    LoraForward, Ops, PageTables, RopeTable, Tensor, WholeAttention,
};

use crate::config::ModelConfig;
use crate::lora::{BlockLora, Lora};
use crate::projection::Projection::{self, *};
use crate::random::seed_of_part;
use crate::weights::BlockWeights;

/// A block with everything that it runs on except the values.
pub(crate) struct BlockRun<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a BlockWeights,
    /// `None` in blocks without position.
    pub(crate) rope: Option<&'a RopeTable>,
    pub(crate) attention: AttentionShape,
    /// Attention through whole matrices of scores, for comparison.
    pub(crate) whole_attention: bool,
    /// Place in the text of each row that enters, `[T]`.
    pub(crate) positions: &'a [u32],
    /// Which rows leave, and their places in the text, `[S]` each. `None` when all do.
    pub(crate) selected_rows: Option<&'a [u32]>,
    pub(crate) selected_positions: &'a [u32],
    /// Where keys and values are kept and attention finds them; `None` where each text begins with its first row.
    pub(crate) cache: Option<BlockCache<'a>>,
    pub(crate) lora: &'a BlockLora,
    pub(crate) lora_scale: f32,
    /// The frozen adapters below, their scale in their values.
    pub(crate) frozen: &'a BlockLora,
    /// Room for the hidden values of a frozen adapter of any rank, [1, rows · largest rank]; read by nothing later.
    pub(crate) frozen_hidden: Option<Tensor>,
    /// Room for the gradient of a frozen weight and its optimizer, [1, largest matrix] each, for comparison.
    pub(crate) frozen_gradient: Option<FrozenGradient>,
    /// Whether backward reads gate and up rounded as [`KeptGates`] rounds them, wherever they lie.
    pub(crate) rounds_gates: bool,
    pub(crate) dropout_rate: f32,
    /// Differs between steps and blocks.
    pub(crate) dropout_seed: u64,
}

/// The cache of a block, and the texts that the rows belong to.
#[derive(Clone, Copy)]
pub(crate) struct BlockCache<'a> {
    pub(crate) cache: KeyValueCache,
    pub(crate) tables: PageTables<'a>,
    /// Text of each row that enters, `[T]`.
    pub(crate) texts: &'a [u32],
    /// Text of each row that leaves, `[S]`.
    pub(crate) stream_texts: &'a [u32],
}

/// Where a block's values lie. Tensors that a family has no use for are the same as their neighbour.
#[derive(Clone, Copy)]
pub(crate) struct BlockTensors {
    /// [T, D].
    pub(crate) input: Tensor,
    /// [T, D].
    pub(crate) input_normed: Tensor,
    /// The rows of `input` that leave, [S, D]; `input` when all do.
    pub(crate) stream: Tensor,
    /// The rows of `input_normed` that leave, [S, D].
    pub(crate) query_input: Tensor,
    /// Before the norm per head, [S, H·d]; `query` in families without.
    pub(crate) query_product: Tensor,
    /// [S, H·d].
    pub(crate) query: Tensor,
    /// Before the norm per head, [T, KV·d]; `key` in families without.
    pub(crate) key_product: Tensor,
    /// [T, KV·d].
    pub(crate) key: Tensor,
    /// [T, KV·d].
    pub(crate) value: Tensor,
    /// [S, H·d].
    pub(crate) attended: Tensor,
    /// [S, H].
    pub(crate) log_sum_exp: Tensor,
    /// Before the norm behind attention, [S, D]; `middle` in families without.
    pub(crate) output_product: Tensor,
    /// The stream between attention and feed-forward, [S, D].
    pub(crate) middle: Tensor,
    /// [S, D].
    pub(crate) middle_normed: Tensor,
    /// [S, F].
    pub(crate) gate: Tensor,
    /// [S, F].
    pub(crate) up: Tensor,
    /// Gate and up as backward finds them, [S, F] each, where others take their places before.
    pub(crate) kept_gates: Option<KeptGates>,
    /// act(gate)·up, [S, F].
    pub(crate) gated: Tensor,
    /// Before the norm behind the feed-forward, [S, D]; `output` in families without.
    pub(crate) down_product: Tensor,
    /// [S, D]. May be `input` when nothing reads the input again.
    pub(crate) output: Tensor,
    /// Inputs of each adapted projection times Aᵀ, [T or S, rank].
    pub(crate) lora_hidden: [Option<Tensor>; 7],
}

/// What training a frozen weight would take besides; holds one matrix after the other.
#[derive(Clone, Copy)]
pub(crate) struct FrozenGradient {
    pub(crate) gradient: Tensor,
    pub(crate) values: Tensor,
    pub(crate) first_moment: Tensor,
    pub(crate) second_moment: Tensor,
}

/// Where a block's gradients lie, shaped as the values of the same name in [`BlockTensors`].
#[derive(Clone, Copy)]
pub(crate) struct BlockGradients {
    /// In: the gradient of `output`. Then of `middle`, then of `stream`, all in place. [S, D].
    pub(crate) output: Tensor,
    /// Out: the gradient of `input`, [T, D]; `output` when all rows leave.
    pub(crate) input: Tensor,
    /// [S, D]; `output` in families without output norms.
    pub(crate) product: Tensor,
    /// [S, F]; may share its place with the value when `Down` is not adapted.
    pub(crate) gated: Tensor,
    /// Of `middle_normed`, [S, D].
    pub(crate) middle_normed: Tensor,
    /// [S, H·d].
    pub(crate) attended: Tensor,
    /// [S, H·d].
    pub(crate) query: Tensor,
    /// [T, KV·d].
    pub(crate) key: Tensor,
    /// [T, KV·d].
    pub(crate) value: Tensor,
    /// [T, D].
    pub(crate) input_normed: Tensor,
    /// [S, D]; `input_normed` when all rows leave.
    pub(crate) query_input: Tensor,
}

/// How much of a block's forward runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// What backward reads: without the down product and what follows it, unless a norm's backward reads that.
    ForBackward,
    /// The same where attention output and middle residual were kept: without attention and the output product too.
    BesideKeptAttention,
}

/// Which gradients a block's backward computes; each needs those above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Of the feed-forward's gated product.
    pub(crate) gated: bool,
    /// Of the stream between attention and feed-forward.
    pub(crate) middle: bool,
    pub(crate) attended: bool,
    pub(crate) query: bool,
    pub(crate) key: bool,
    pub(crate) value: bool,
    /// Of the block's input: blocks below are trained too.
    pub(crate) input: bool,
}

impl Needs {
    /// What adapters on `lora`'s projections need, with or without a gradient for the blocks below.
    pub(crate) fn new(lora: &BlockLora, input: bool) -> Self {
        let adapted = |projection| lora.of(projection).is_some();
        let query = input || adapted(Query);
        let key = input || adapted(Key);
        let value = input || adapted(Value);
        let attended = query || key || value;
        let middle = attended || adapted(Output);
        let gated = middle || adapted(Gate) || adapted(Up);
        Self { gated, middle, attended, query, key, value, input }
    }
}

/// From `t.input` to `t.output`.
pub(crate) fn forward(ops: &mut Ops, run: &BlockRun, t: &BlockTensors, extent: Extent) {
    let BlockRun { config, weights, .. } = run;
    let epsilon = config.norm_epsilon;

    ops.rms_norm_forward(t.input, &weights.input_norm, epsilon, t.input_normed);
    match run.selected_rows {
        None => run.linear(ops, t, t.input_normed, [(Query, t.query_product), (Key, t.key_product), (Value, t.value)]),
        Some(rows) => {
            ops.gather_rows(t.input, rows, t.stream);
            ops.gather_rows(t.input_normed, rows, t.query_input);
            run.linear(ops, t, t.query_input, [(Query, t.query_product)]);
            run.linear(ops, t, t.input_normed, [(Key, t.key_product), (Value, t.value)]);
        }
    }
    if let Some(norms) = &weights.head_norms {
        ops.rms_norm_forward(run.heads(t.query_product), &norms.query, epsilon, run.heads(t.query));
        ops.rms_norm_forward(run.heads(t.key_product), &norms.key, epsilon, run.heads(t.key));
    }
    if let Some(rope) = run.rope {
        ops.rope_forward(t.query, rope, run.stream_positions());
        ops.rope_forward(t.key, rope, run.positions);
    }
    if extent != Extent::BesideKeptAttention {
        run.attend(ops, t);
        run.linear(ops, t, t.attended, [(Output, t.output_product)]);
        if let Some(norms) = &weights.output_norms {
            ops.rms_norm_forward(t.output_product, &norms.attention, epsilon, t.middle);
        }
        ops.add(t.stream, t.middle);
    }

    ops.rms_norm_forward(t.middle, &weights.middle_norm, epsilon, t.middle_normed);
    run.linear(ops, t, t.middle_normed, [(Gate, t.gate), (Up, t.up)]);
    if extent == Extent::Whole || run.rest_reads_gated() {
        match t.kept_gates {
            None => ops.gate_forward(config.activation, t.gate, t.up, t.gated),
            Some(kept) => ops.gate_forward_keeping(config.activation, t.gate, t.up, t.gated, kept),
        }
    }
    if extent == Extent::Whole || run.backward_reads_down() {
        run.linear(ops, t, t.gated, [(Down, t.down_product)]);
    }
    if extent == Extent::Whole {
        if let Some(norms) = &weights.output_norms {
            ops.rms_norm_forward(t.down_product, &norms.feed_forward, epsilon, t.output);
        }
        ops.add(t.middle, t.output);
    }
}

/// The products with frozen weights of a whole [`forward`], in its order and places, without anything else: what a
/// forward takes at least.
pub(crate) fn products(ops: &mut Ops, run: &BlockRun, t: &BlockTensors) {
    let product = |ops: &mut Ops, x: Tensor, outputs: &[(Projection, Tensor)]| {
        let weight = |&(projection, y): &(Projection, Tensor)| (&*run.weights.linear(projection).weight, y);
        ops.qlinear_forward(x, &outputs.iter().map(weight).collect::<Vec<_>>());
    };
    let (query, rest) = ((Query, t.query_product), [(Key, t.key_product), (Value, t.value)]);
    match run.selected_rows {
        None => product(ops, t.input_normed, &[query, rest[0], rest[1]]),
        Some(_) => {
            product(ops, t.query_input, &[query]);
            product(ops, t.input_normed, &rest);
        }
    }
    product(ops, t.attended, &[(Output, t.output_product)]);
    product(ops, t.middle_normed, &[(Gate, t.gate), (Up, t.up)]);
    product(ops, t.gated, &[(Down, t.down_product)]);
}

/// From `d.output` to `d.input`, adding the adapters' gradients to `gradients` on the way. Overwrites `t.gate` and
/// `t.up`. Stops as soon as nothing further is needed.
pub(crate) fn backward(
    ops: &mut Ops,
    run: &BlockRun,
    t: &BlockTensors,
    d: &BlockGradients,
    gradients: &BlockLora,
    needs: Needs,
) {
    let BlockRun { config, weights, .. } = run;
    let epsilon = config.norm_epsilon;

    if let Some(norms) = &weights.output_norms {
        ops.rms_norm_backward(t.down_product, &norms.feed_forward, epsilon, d.output, d.product, false);
    }
    let gates = run.gate_values(t);
    if run.makes_gated_again() {
        ops.gate_again(config.activation, gates, t.gated);
    }
    let d_gated = needs.gated.then_some(InputGradient::over(d.gated));
    run.linear_backward(ops, t, t.gated, [(Down, d.product)], gradients, d_gated);
    if !needs.gated {
        return;
    }
    let (d_gate, d_up) = (t.gate, t.up);
    ops.gate_backward(config.activation, gates, d.gated, d_gate, d_up);
    let d_middle_normed = needs.middle.then_some(InputGradient::over(d.middle_normed));
    run.linear_backward(ops, t, t.middle_normed, [(Gate, d_gate), (Up, d_up)], gradients, d_middle_normed);
    if !needs.middle {
        return;
    }
    ops.rms_norm_backward(t.middle, &weights.middle_norm, epsilon, d.middle_normed, d.output, true);

    if let Some(norms) = &weights.output_norms {
        ops.rms_norm_backward(t.output_product, &norms.attention, epsilon, d.output, d.product, false);
    }
    let d_attended = needs.attended.then_some(InputGradient::over(d.attended));
    run.linear_backward(ops, t, t.attended, [(Output, d.product)], gradients, d_attended);
    if !needs.attended {
        return;
    }
    let (d_query, d_key) = (needs.query.then_some(d.query), needs.key.then_some(d.key));
    let d_value = needs.value.then_some(d.value);
    run.attend_backward(ops, t, d.attended, [d_query, d_key, d_value]);
    if let (Some(rope), Some(d_query)) = (run.rope, d_query) {
        ops.rope_backward(d_query, rope, run.stream_positions());
    }
    if let (Some(rope), Some(d_key)) = (run.rope, d_key) {
        ops.rope_backward(d_key, rope, run.positions);
    }
    if let (Some(norms), Some(d_query)) = (&weights.head_norms, d_query) {
        let (x, d_heads) = (run.heads(t.query_product), run.heads(d_query));
        ops.rms_norm_backward(x, &norms.query, epsilon, d_heads, d_heads, false);
    }
    if let (Some(norms), Some(d_key)) = (&weights.head_norms, d_key) {
        let (x, d_heads) = (run.heads(t.key_product), run.heads(d_key));
        ops.rms_norm_backward(x, &norms.key, epsilon, d_heads, d_heads, false);
    }
    match run.selected_rows {
        None => {
            let d_normed = needs.input.then_some(InputGradient::over(d.input_normed));
            let outputs = [(Query, d.query), (Key, d.key), (Value, d.value)];
            run.linear_backward(ops, t, t.input_normed, outputs, gradients, d_normed);
        }
        Some(rows) => {
            let d_query_input = needs.input.then_some(InputGradient::over(d.query_input));
            run.linear_backward(ops, t, t.query_input, [(Query, d.query)], gradients, d_query_input);
            if needs.input {
                ops.scatter_rows(d.query_input, rows, d.input_normed);
                ops.scatter_rows(d.output, rows, d.input);
            }
            let d_normed = needs.input.then_some(InputGradient::added(d.input_normed));
            run.linear_backward(ops, t, t.input_normed, [(Key, d.key), (Value, d.value)], gradients, d_normed);
        }
    }
    if needs.input {
        ops.rms_norm_backward(t.input, &weights.input_norm, epsilon, d.input_normed, d.input, true);
    }
}

/// Where the gradient of a linear map's input goes.
#[derive(Clone, Copy)]
struct InputGradient {
    tensor: Tensor,
    /// Added to what is there rather than written over it.
    accumulate: bool,
}

impl InputGradient {
    fn over(tensor: Tensor) -> Self {
        Self { tensor, accumulate: false }
    }
    fn added(tensor: Tensor) -> Self {
        Self { tensor, accumulate: true }
    }
}

impl BlockRun<'_> {
    fn stream_positions(&self) -> &[u32] {
        if self.selected_rows.is_some() { self.selected_positions } else { self.positions }
    }
    /// From `t.query`, `t.key` and `t.value` to `t.attended` and `t.log_sum_exp`.
    fn attend(&self, ops: &mut Ops, t: &BlockTensors) {
        let positions = self.stream_positions();
        match &self.cache {
            None if self.whole_attention => {
                ops.whole_attention_forward(&self.attention, positions, &t.whole_attention());
            }
            None => {
                ops.attention_forward(&self.attention, positions, t.query, t.key, t.value, t.attended, t.log_sum_exp)
            }
            Some(BlockCache { cache, tables, texts, stream_texts }) => {
                let rows = CachedRows { positions: self.positions, texts, tables: *tables };
                ops.cache_keys_values(cache, rows, t.key, t.value);
                let rows = CachedRows { positions, texts: stream_texts, tables: *tables };
                ops.attention_cached(&self.attention, cache, rows, t.query, t.attended, t.log_sum_exp);
            }
        }
    }
    /// Rows of heads seen as one row a head.
    fn heads(&self, x: Tensor) -> Tensor {
        x.reshaped(x.len() / self.config.head_dim, self.config.head_dim)
    }
    /// Where backward finds gate and up.
    fn gate_values(&self, t: &BlockTensors) -> GateValues {
        match t.kept_gates {
            Some(kept) => GateValues::Kept(kept),
            None if self.rounds_gates => GateValues::Rounded { gate: t.gate, up: t.up },
            None => GateValues::Float32 { gate: t.gate, up: t.up },
        }
    }
    /// The gradient of the down adapter reads its input.
    fn backward_reads_gated(&self) -> bool {
        self.lora.of(Down).is_some() || self.frozen_gradient.is_some()
    }
    /// Backward makes the gated values again where it finds gate and up rounded.
    fn makes_gated_again(&self) -> bool {
        self.rounds_gates && self.backward_reads_gated()
    }
    /// Whether a forward for backward has use for the gated values; a norm behind the product reads the product.
    fn rest_reads_gated(&self) -> bool {
        self.backward_reads_down() || (self.backward_reads_gated() && !self.rounds_gates)
    }
    fn backward_reads_down(&self) -> bool {
        self.weights.output_norms.is_some()
    }
    fn dropout(&self, projection: Projection) -> Dropout {
        Dropout { rate: self.dropout_rate, seed: seed_of_part(self.dropout_seed, projection.index()) }
    }

    fn attend_backward(&self, ops: &mut Ops, t: &BlockTensors, d_attended: Tensor, gradients: [Option<Tensor>; 3]) {
        let (shape, positions) = (&self.attention, self.stream_positions());
        if self.whole_attention {
            return ops.whole_attention_backward(shape, positions, &t.whole_attention(), d_attended, gradients);
        }
        let BlockTensors { query, key, value, attended, log_sum_exp, .. } = *t;
        let [dq, dk, dv] = gradients;
        ops.attention_backward(shape, positions, query, key, value, attended, log_sum_exp, d_attended, dq, dk, dv);
    }

    /// y = W·x + bias + Σ B'·A'·x + scale·B·A·drop(x) for several outputs of one input, with the sum over the frozen
    /// adapters.
    fn linear<const N: usize>(&self, ops: &mut Ops, t: &BlockTensors, x: Tensor, outputs: [(Projection, Tensor); N]) {
        let products = outputs.map(|(projection, y)| (&*self.weights.linear(projection).weight, y));
        ops.qlinear_forward(x, &products);
        for (projection, y) in outputs {
            if let Some(bias) = &self.weights.linear(projection).bias {
                ops.add_bias(y, bias);
            }
            if let (Some(Lora { a, b }), Some(room)) = (self.frozen.of(projection), self.frozen_hidden) {
                let hidden = room.flat_range(0..x.rows() * a.rows()).reshaped(x.rows(), a.rows());
                ops.lora_forward(x, &[Some(LoraForward { a, b, scale: 1.0, dropout: Dropout::NONE, hidden, y })]);
            }
        }
        let trained = outputs.map(|(projection, y)| {
            let Lora { a, b } = self.lora.of(projection)?;
            let (scale, dropout, hidden) = (self.lora_scale, self.dropout(projection), t.hidden(projection));
            Some(LoraForward { a, b, scale, dropout, hidden, y })
        });
        ops.lora_forward(x, &trained);
    }

    /// The gradients of the adapters on `outputs` and, where wanted, of their common input.
    fn linear_backward<const N: usize>(
        &self,
        ops: &mut Ops,
        t: &BlockTensors,
        x: Tensor,
        outputs: [(Projection, Tensor); N],
        gradients: &BlockLora,
        dx: Option<InputGradient>,
    ) {
        if let Some(dx) = dx {
            let products = outputs.map(|(projection, dy)| (&*self.weights.linear(projection).weight, dy));
            ops.qlinear_input_grad(&products, dx.tensor, dx.accumulate);
        }
        let dx = dx.map(|dx| dx.tensor);
        for (_, dy) in outputs {
            if let Some(room) = &self.frozen_gradient {
                room.train(ops, x, dy);
            }
        }
        for (projection, dy) in outputs {
            if let (Some(Lora { a, b }), Some(dx)) = (self.frozen.of(projection), dx) {
                ops.lora_input_grad(a, b, 1.0, dy, dx);
            }
        }
        let trained = outputs.map(|(projection, dy)| {
            let (Lora { a, b }, d) = (self.lora.of(projection)?, gradients.of(projection)?);
            let (scale, dropout, hidden) = (self.lora_scale, self.dropout(projection), t.hidden(projection));
            Some(LoraBackward { a, b, scale, dropout, hidden, dy, da: d.a, db: d.b })
        });
        ops.lora_backward(x, &trained, dx);
    }
}

impl FrozenGradient {
    /// The gradient of the weight between `x` and `dy`, and an update that changes nothing.
    fn train(&self, ops: &mut Ops, x: Tensor, dy: Tensor) {
        let (rows, columns) = (dy.columns(), x.columns());
        let part = |tensor: Tensor| tensor.flat_range(0..rows * columns).reshaped(rows, columns);
        let gradient = part(self.gradient);
        ops.weight_grad(x, dy, gradient);
        let nothing = AdamWParameters {
            learning_rate: 0.0,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            step: 1,
            gradient_factor: 1.0,
        };
        ops.adamw(part(self.values), gradient, part(self.first_moment), part(self.second_moment), &nothing);
    }
}

impl BlockTensors {
    fn whole_attention(&self) -> WholeAttention {
        let BlockTensors { query: q, key: k, value: v, attended: out, log_sum_exp, .. } = *self;
        WholeAttention { q, k, v, out, log_sum_exp }
    }
    fn hidden(&self, projection: Projection) -> Tensor {
        self.lora_hidden[projection.index()].expect("the plan places a hidden tensor for every adapted projection")
    }

    /// The same places for `rows` rows that enter and `selected` that leave.
    pub(crate) fn first_rows(&self, rows: usize, selected: usize) -> Self {
        let of_all = |tensor: Tensor| tensor.first_rows(rows);
        let of_selected = |tensor: Tensor| tensor.first_rows(selected);
        let mut lora_hidden = self.lora_hidden;
        for projection in Projection::ALL {
            let enters = matches!(projection, Key | Value);
            let hidden = &mut lora_hidden[projection.index()];
            *hidden = hidden.map(|tensor| tensor.first_rows(if enters { rows } else { selected }));
        }
        Self {
            input: of_all(self.input),
            input_normed: of_all(self.input_normed),
            stream: of_selected(self.stream),
            query_input: of_selected(self.query_input),
            query_product: of_selected(self.query_product),
            query: of_selected(self.query),
            key_product: of_all(self.key_product),
            key: of_all(self.key),
            value: of_all(self.value),
            attended: of_selected(self.attended),
            log_sum_exp: of_selected(self.log_sum_exp),
            output_product: of_selected(self.output_product),
            middle: of_selected(self.middle),
            middle_normed: of_selected(self.middle_normed),
            gate: of_selected(self.gate),
            up: of_selected(self.up),
            kept_gates: self.kept_gates.map(|kept| kept.first_rows(selected)),
            gated: of_selected(self.gated),
            down_product: of_selected(self.down_product),
            output: of_selected(self.output),
            lora_hidden,
        }
    }
}

impl BlockGradients {
    /// The same places for `rows` rows that enter and `selected` that leave.
    pub(crate) fn first_rows(&self, rows: usize, selected: usize) -> Self {
        Self {
            output: self.output.first_rows(selected),
            input: self.input.first_rows(rows),
            product: self.product.first_rows(selected),
            gated: self.gated.first_rows(selected),
            middle_normed: self.middle_normed.first_rows(selected),
            attended: self.attended.first_rows(selected),
            query: self.query.first_rows(selected),
            key: self.key.first_rows(rows),
            value: self.value.first_rows(rows),
            input_normed: self.input_normed.first_rows(rows),
            query_input: self.query_input.first_rows(selected),
        }
    }
}

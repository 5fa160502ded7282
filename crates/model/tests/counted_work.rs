//! Multiply-adds of a step against a formula: what the design calls unnecessary is not computed.

use kernels::Precision;
use model::{MemoryChoice, ModelConfig, NecessaryWork, Projection, SelectRows, StepOptions};

use crate::tiny;

/// Multiply-adds of one row through `projections`.
fn row(config: &ModelConfig, projections: &[Projection]) -> u64 {
    projections.iter().map(|projection| projection.shape(config)).map(|(n_out, k_in)| (n_out * k_in) as u64).sum()
}

/// Rows that enter and rows that predict a supervised token in [`tiny::text`] of 29 tokens.
const ROWS: u64 = 28;
const SUPERVISED: u64 = 10;

/// (frozen, adapter) multiply-adds of a step.
fn counted(family: &str, spec: model::AdapterSpec, change: impl Fn(&mut StepOptions)) -> (u64, u64) {
    let counters = counters(family, spec, change);
    (counters.frozen_macs, counters.adapter_macs)
}

/// Multiply-adds of a step.
fn counters(family: &str, spec: model::AdapterSpec, change: impl Fn(&mut StepOptions)) -> kernels::ops::Counters {
    let model = tiny::model(family);
    let adapter = tiny::adapter(&model, spec);
    let mut options = tiny::options(Precision::A16);
    change(&mut options);
    let mut session = tiny::session(&model, &adapter, options);
    let (tokens, mask) = tiny::text(29);
    session.reset_counters();
    session.step(&tokens, &mask, 1.0, 0).expect("a step");
    session.counters()
}

const QUERY_VALUE: [Projection; 2] = [Projection::Query, Projection::Value];
use Projection::{Down, Gate, Key, Output, Query, Up, Value};

fn config(family: &str) -> ModelConfig {
    ModelConfig::from_json(&tiny::config(family)).expect("a valid configuration")
}

/// What a step has to do at least, for q and v adapted in the last two of three blocks.
struct Least {
    all_rows: u64,
    last_block: u64,
    head: u64,
}

impl Least {
    fn of(config: &ModelConfig) -> Self {
        Self {
            all_rows: ROWS * row(config, &Projection::ALL),
            last_block: ROWS * row(config, &[Key, Value]) + SUPERVISED * row(config, &[Query, Output, Gate, Up, Down]),
            head: SUPERVISED * (config.vocabulary * config.width) as u64,
        }
    }
    fn forward(&self) -> u64 {
        2 * self.all_rows + self.last_block + self.head
    }
    /// Block 1 again without `down`, then both blocks backward, the first of them only down to the attended values.
    fn backward(&self, config: &ModelConfig) -> u64 {
        let again = self.all_rows - ROWS * row(config, &[Down]);
        let first_adapted = ROWS * row(config, &[Output, Gate, Up, Down]);
        self.head + self.last_block + again + first_adapted
    }
}

#[test]
fn a_step_does_only_the_necessary_products() {
    for family in ["llama", "mistral", "smollm3", "qwen2", "qwen3"] {
        let config = config(family);
        let least = Least::of(&config);
        let (frozen, _) = counted(family, tiny::spec(&QUERY_VALUE, 1..3), |_| {});
        assert_eq!(frozen, least.forward() + least.backward(&config), "{family}");
    }
}

#[test]
fn output_norms_cost_the_down_product_again() {
    let config = config("gemma3");
    let least = Least::of(&config);
    let (frozen, _) = counted("gemma3", tiny::spec(&QUERY_VALUE, 1..3), |_| {});
    assert_eq!(frozen, least.forward() + least.backward(&config) + ROWS * row(&config, &[Down]));
}

#[test]
fn each_switch_saves_what_it_says() {
    let config = config("llama");
    let least = Least::of(&config);
    let spec = || tiny::spec(&QUERY_VALUE, 1..3);
    let (frozen, _) = counted("llama", spec(), |_| {});
    let switched = |change: &dyn Fn(&mut NecessaryWork)| {
        counted("llama", spec(), |options| change(&mut options.necessary_work)).0 - frozen
    };

    let more = switched(&|work| work.recompute_only_what_backward_reads = false);
    assert_eq!(more, ROWS * row(&config, &[Down]));

    let more = switched(&|work| work.stop_at_first_adapted_block = false);
    let block_zero = 2 * least.all_rows - ROWS * row(&config, &[Down]);
    assert_eq!(more, block_zero + ROWS * row(&config, &[Query, Key, Value]));

    let unselected = ROWS - SUPERVISED;
    let more = switched(&|work| work.select_rows = SelectRows::BeforeHead);
    assert_eq!(more, 2 * unselected * row(&config, &[Query, Output, Gate, Up, Down]));

    let head = 2 * unselected * (config.vocabulary * config.width) as u64;
    assert_eq!(switched(&|work| work.select_rows = SelectRows::Never), more + head);

    let kept = counted("llama", spec(), |options| options.memory = MemoryChoice::keep_everything()).0;
    assert_eq!(frozen - kept, least.all_rows - ROWS * row(&config, &[Down]));
}

#[test]
fn frozen_weights_would_cost_a_product_each() {
    let config = config("llama");
    let least = Least::of(&config);
    let (frozen, _) = counted("llama", tiny::spec(&QUERY_VALUE, 1..3), |_| {});
    let off = |options: &mut StepOptions| options.necessary_work.train_adapters_only = false;
    // The weights of both blocks that backward runs through, each from the rows that its product had.
    assert_eq!(counted("llama", tiny::spec(&QUERY_VALUE, 1..3), off).0 - frozen, least.all_rows + least.last_block);
}

#[test]
fn tiles_of_attention_leave_out_unseen_pairs() {
    let (config, spec) = (config("llama"), || tiny::spec(&QUERY_VALUE, 1..3));
    let (_, mask) = tiny::text(29);
    let width = (config.heads * config.head_dim) as u64;
    // Pairs of all rows and of the last block's, which predict a supervised token.
    let attention = |all: u64, last: u64| {
        // Two products forward in blocks 0 and 1 and once again in block 1, whose backward makes scores, dP, dQ and dV;
        // the last block's makes dK too.
        (2 * all + 2 * all + 2 * all + 4 * all + 2 * last + 5 * last) * width
    };
    let seen = |row: usize| row as u64 + 1;
    let (all, last) = ((0..28).map(seen).sum(), (0..28).filter(|row| mask[row + 1]).map(seen).sum());
    assert_eq!(counters("llama", spec(), |_| {}).attention_macs, attention(all, last));
    let whole = counters("llama", spec(), |options| options.necessary_work.tile_attention = false);
    assert_eq!(whole.attention_macs, attention(ROWS * ROWS, SUPERVISED * ROWS));
}

#[test]
fn the_first_adapted_block_stops_at_its_earliest_adapter() {
    let config = config("llama");
    let frozen = |targets: &[Projection]| counted("llama", tiny::spec(targets, 1..3), |_| {}).0;
    let all = frozen(&Projection::ALL);
    assert_eq!(frozen(&[Key]), all, "keys are as early as queries");
    assert_eq!(all - frozen(&[Output]), ROWS * row(&config, &[Output]));
    assert_eq!(all - frozen(&[Up]), ROWS * row(&config, &[Output, Gate, Up]));
    assert_eq!(all - frozen(&[Down]), ROWS * row(&config, &[Output, Gate, Up, Down]));
}

#[test]
fn adapters_cost_what_their_ranks_say() {
    let config = config("llama");
    let spec = tiny::spec(&QUERY_VALUE, 1..3);
    let (_, adapter) = counted("llama", spec.clone(), |_| {});
    let sides = |projection: Projection| {
        let (n_out, k_in) = projection.shape(&config);
        (spec.rank as u64 * k_in as u64, spec.rank as u64 * n_out as u64)
    };
    let (query_in, query_out) = sides(Query);
    let (value_in, value_out) = sides(Value);
    let forward = |queries: u64| queries * (query_in + query_out) + ROWS * (value_in + value_out);
    // Backward makes the gradients of A, B and the hidden values, and of the input above the first adapted block.
    let backward = |queries: u64| queries * (query_in + 2 * query_out) + ROWS * (value_in + 2 * value_out);
    let inputs = SUPERVISED * query_in + ROWS * value_in;
    assert_eq!(adapter, 2 * forward(ROWS) + forward(SUPERVISED) + backward(ROWS) + backward(SUPERVISED) + inputs);
}

#[test]
fn the_plan_counts_the_longest_step_and_itemizes_all_memory() {
    let model = tiny::model("llama");
    let adapter = tiny::adapter(&model, tiny::spec(&QUERY_VALUE, 1..3));
    let session = tiny::session(&model, &adapter, tiny::options(Precision::A16));
    let plan = session.plan().clone();
    let sum: usize = plan.items.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(plan.total_bytes(), sum);
    let named = |name: &str| plan.items.iter().find(|(item, _)| *item == name).map(|(_, bytes)| *bytes);
    assert_eq!(named("frozen weights"), Some(model.weights_bytes()));
    assert_eq!(named("scratch of the ops"), Some(plan.scratch_bytes));
    let parameters = adapter.spec.parameter_count(model.config()) * size_of::<f32>();
    assert_eq!(named("adapter"), Some(parameters));
    assert_eq!(named("optimizer moments"), Some(2 * parameters));
    // Inputs of blocks 1 and 2 (block 0 shares the former) and the last output, 31 rows of 64 floats each.
    assert_eq!(named("block boundaries"), Some(3 * 31 * 64 * size_of::<f32>()));
    let arena: usize = plan.items.iter().map(|(_, bytes)| bytes).sum::<usize>()
        - model.weights_bytes()
        - plan.scratch_bytes
        - named("rotary tables, positions and targets").expect("the item");
    assert_eq!(arena, plan.arena_bytes);

    let mut session = session;
    let tokens = vec![1; 32];
    session.reset_counters();
    session.step(&tokens, &[true; 32], 1.0, 0).expect("a step");
    assert_eq!(session.counters().frozen_macs, plan.macs.frozen_macs);
    assert_eq!(session.counters().attention_macs, plan.macs.attention_macs);
    assert!(session.counters().scratch_bytes <= plan.scratch_bytes);
}

#[test]
fn counted_beforehand_is_what_a_session_computes() {
    for family in ["llama", "gemma3"] {
        let model = tiny::model(family);
        let adapter = tiny::adapter(&model, tiny::spec(&QUERY_VALUE, 1..3));
        for memory in [MemoryChoice::default(), MemoryChoice::keep_everything()] {
            let mut options = tiny::options(Precision::A16);
            options.memory = memory;
            let mut counter = model::WorkCounter::new(model.clone(), &[], &adapter.spec, options).expect("a counter");
            let mut session = tiny::session(&model, &adapter, options);
            for length in [4, 17, 29] {
                let (tokens, mask) = tiny::text(length);
                let done = |session: &mut model::TrainingSession, trains: bool| {
                    session.reset_counters();
                    match trains {
                        true => session.step(&tokens, &mask, 1.0, 0).map(drop),
                        false => session.loss(&tokens, &mask).map(drop),
                    }
                    .expect("a step");
                    session.counters()
                };
                assert_eq!(counter.step(&tokens, &mask).expect("counted"), done(&mut session, true));
                assert_eq!(counter.loss(&tokens, &mask).expect("counted"), done(&mut session, false));
            }
            let memory = counter.memory();
            assert_eq!((&memory.items, memory.macs), (&session.plan().items, session.plan().macs));
        }
    }
}

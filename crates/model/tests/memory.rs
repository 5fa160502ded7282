//! Plans of memory: what is chosen, what it takes, and that streamed weights and kept prefixes change nothing.

use std::sync::Arc;

use kernels::{CountingAllocator, Isa, OpsOptions, Precision};
use model::{
    AdapterSpec, AdapterWeights, BoundaryType, KeptType, MemoryChoice, Model, ModelConfig, ModelError, NecessaryWork,
    PlanRequest, PlannedStep, Prefix, ProgramBytes, Projection, ResidentBytes, SelectRows, StepOptions, SyntheticPlace,
    SyntheticWeights, TrainingSession, WeightsPlace, plan_step, synthetic_model, work_shares,
};
use serde_json::json;

use crate::tiny;

/// A model of eight blocks, wide enough that its memory is more than rounding.
fn config() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "model_type": "llama", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
    }))
    .expect("a valid configuration")
}

fn synthetic(place: SyntheticPlace) -> Arc<Model> {
    Arc::new(synthetic_model(&config(), &SyntheticWeights::default(), place).expect("a model"))
}

fn ops() -> OpsOptions {
    OpsOptions { threads: 1, isa: Isa::best(), precision: Precision::A16 }
}

fn spec() -> AdapterSpec {
    AdapterSpec { rank: 8, ..tiny::spec(&[Projection::Query, Projection::Value], 0..8) }
}

fn text(tokens: usize) -> (Vec<u32>, Vec<bool>) {
    ((0..tokens).map(|index| (index * 37 % 512) as u32).collect(), vec![true; tokens])
}

fn planned(
    model: &Arc<Model>,
    spec: &AdapterSpec,
    tokens: usize,
    budget: Option<u64>,
) -> Result<PlannedStep, ModelError> {
    plan_step(model, &PlanRequest { ops: ops(), budget_bytes: budget, ..PlanRequest::new(spec, tokens) })
}

#[test]
fn synthetic_models_have_their_shape_and_repeat() {
    let folder = tempfile::tempdir().expect("a folder");
    let (memory, file) = (synthetic(SyntheticPlace::Memory), synthetic(SyntheticPlace::File(folder.path())));
    if cfg!(unix) {
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "the file has no name");
    }
    let blocks = 8 * (128 * 128 * 2 + 128 * 64 * 2 + 3 * 128 * 320);
    assert_eq!(memory.parameter_count(), 512 * 128 + blocks + 17 * 128);
    assert_eq!((memory.mapped_bytes(), file.weights_bytes()), (0, memory.weights_bytes()));
    assert!(file.mapped_bytes() > file.weights_bytes() * 9 / 10, "all but the norms is mapped");
    let step = |model: &Arc<Model>| {
        let adapter = AdapterWeights::initialized(model.config(), spec(), 3).expect("a valid spec");
        let mut session = tiny::session(model, &adapter, StepOptions { ops: ops(), ..StepOptions::new(40) });
        let (tokens, mask) = text(40);
        let loss = session.step(&tokens, &mask, 1.0, 0).expect("a step").loss_sum;
        (loss, session.flat_gradients().to_vec())
    };
    let found = step(&memory);
    assert!(found.0.is_finite() && found.0 > 39.0, "random weights know nothing: {}", found.0);
    assert!(step(&file) == found, "mapped weights are other weights");
    let planned_only = synthetic(SyntheticPlace::Planned);
    assert_eq!(planned_only.weights_bytes(), memory.weights_bytes());
    let choice = |model| planned(model, &spec(), 40, None).expect("a plan");
    assert_eq!(choice(&planned_only).plan.macs, choice(&memory).plan.macs);
}

#[test]
fn streamed_weights_change_no_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = synthetic(SyntheticPlace::File(folder.path()));
    let adapter = AdapterWeights::initialized(model.config(), spec(), 3).expect("a valid spec");
    let (tokens, mask) = text(40);
    let step = |memory| {
        let options = StepOptions { ops: ops(), memory, ..StepOptions::new(40) };
        let mut session = tiny::session(&model, &adapter, options);
        let loss = session.step(&tokens, &mask, 1.0, 0).expect("a step");
        (loss, session.flat_gradients().to_vec())
    };
    let resident = MemoryChoice::default();
    let streamed = MemoryChoice { weights: WeightsPlace::Streamed, ..resident };
    for streamed in [streamed, MemoryChoice { checkpoint_blocks: 3, ..streamed }] {
        assert!(step(streamed) == step(resident), "{streamed}");
    }

    let in_memory = synthetic(SyntheticPlace::Memory);
    let options = StepOptions { ops: ops(), memory: streamed, ..StepOptions::new(40) };
    let error = TrainingSession::new(in_memory, &adapter, options).err().expect("nothing to stream from");
    assert!(error.to_string().contains("mapped from a file"), "{error}");
}

#[test]
fn a_smaller_budget_gives_a_slower_plan_that_fits() {
    /// Long enough that plans differ by more than the rounding to huge pages.
    const TOKENS: usize = 4096;
    let folder = tempfile::tempdir().expect("a folder");
    let model = synthetic(SyntheticPlace::File(folder.path()));
    let spec = spec();
    let fastest = planned(&model, &spec, TOKENS, None).expect("no budget");
    assert_eq!(fastest.options.memory, MemoryChoice { blocks_kept: 8, ..MemoryChoice::default() });
    let mut kinds = std::collections::BTreeSet::new();
    let mut last = fastest.clone();
    let smallest = loop {
        let budget = last.peak.total() - 1;
        match planned(&model, &spec, TOKENS, Some(budget)) {
            Ok(next) => {
                assert!(next.peak.total() <= budget, "{} of {budget}", next.peak.total());
                assert!(next.cost >= last.cost, "{} is not slower than {}", next.options.memory, last.options.memory);
                let memory = next.options.memory;
                kinds.insert(("attention kept", memory.attentions_kept > 0));
                kinds.insert(("some blocks kept", memory.blocks_kept > 1));
                kinds.insert(("bfloat16", memory.boundaries == BoundaryType::Bfloat16));
                kinds.insert(("integers", memory.kept_values == KeptType::Int16));
                kinds.insert(("groups", memory.checkpoint_blocks > 1));
                kinds.insert(("streamed", memory.weights == WeightsPlace::Streamed));
                last = next;
            }
            Err(error) => break error,
        }
    };
    for kind in ["attention kept", "some blocks kept", "bfloat16", "integers", "groups", "streamed"] {
        assert!(kinds.contains(&(kind, true)), "no budget chose {kind}");
    }
    let ModelError::NothingFits { budget_bytes, tokens, needed_bytes, tokens_that_fit, blocks_that_fit } = smallest
    else {
        panic!("{smallest}")
    };
    assert_eq!((budget_bytes, tokens, needed_bytes), (last.peak.total() - 1, TOKENS, last.peak.total()));
    let tokens = tokens_that_fit.expect("shorter examples fit");
    assert!(planned(&model, &spec, tokens, Some(budget_bytes)).is_ok());
    assert!(planned(&model, &spec, tokens + 1, Some(budget_bytes)).is_err());
    let blocks = blocks_that_fit.expect("fewer blocks fit");
    let last_blocks = |count: usize| AdapterSpec { blocks: 8 - count..8, ..spec.clone() };
    assert!(planned(&model, &last_blocks(blocks), TOKENS, Some(budget_bytes)).is_ok());
    assert!(planned(&model, &last_blocks(blocks + 1), TOKENS, Some(budget_bytes)).is_err());

    let error = planned(&model, &spec, TOKENS, Some(1000)).expect_err("a kilobyte");
    assert!(error.to_string().contains("neither shorter examples nor fewer adapted blocks"), "{error}");
}

#[test]
fn a_plan_with_given_types_keeps_them_and_bad_requests_are_named() {
    let model = synthetic(SyntheticPlace::Planned);
    let spec = spec();
    let request = PlanRequest { ops: ops(), ..PlanRequest::new(&spec, 257) };
    let halves = PlanRequest { boundaries: Some(BoundaryType::Bfloat16), ..request.clone() };
    let planned = plan_step(&model, &halves).expect("no budget");
    assert_eq!(planned.options.memory.boundaries, BoundaryType::Bfloat16);
    let rounded = PlanRequest { kept_values: Some(KeptType::Int16), ..request.clone() };
    let in_integers = plan_step(&model, &rounded).expect("no budget");
    let everything = MemoryChoice { blocks_kept: 8, ..MemoryChoice::default() };
    assert_eq!(in_integers.options.memory, MemoryChoice { kept_values: KeptType::Int16, ..everything });
    let in_floats = plan_step(&model, &request).expect("no budget");
    assert_eq!(in_floats.options.memory, everything, "float32 is faster where it fits");
    // Of seven blocks and 256 rows: gate and up of 320 columns, four bytes against two and a scale for each 64.
    let kept = |planned: &PlannedStep| planned.plan.items.iter().find(|item| item.0.contains("kept whole")).copied();
    let saved = kept(&in_floats).expect("kept").1 - kept(&in_integers).expect("kept").1;
    assert_eq!(saved, 7 * 2 * 256 * (320 * 4 - 320 * 2 - 5 * 4));
    let program = ResidentBytes { anonymous_bytes: 10 << 20, mapped_bytes: 5 << 20 };
    let with_program = plan_step(&model, &PlanRequest { program: program.into(), ..halves }).expect("no budget");
    assert_eq!(with_program.peak.total(), planned.peak.total() + (15 << 20));

    let refused = |request: PlanRequest| plan_step(&model, &request).expect_err("refused").to_string();
    let threads = |threads| PlanRequest { ops: OpsOptions { threads, ..ops() }, ..request.clone() };
    assert!(refused(threads(0)).contains("threads is 0, expected 1 to 1024"));
    assert!(refused(threads(100_000)).contains("threads is 100000"));
    let tokens = |tokens_max| PlanRequest { tokens_max, ..request.clone() };
    assert!(refused(tokens(1)).contains("tokens_max is 1"));
    assert!(refused(tokens(5000)).contains("4096 is the limit of the model's context"));
}

#[test]
fn memory_grows_linearly_with_tokens() {
    let model = synthetic(SyntheticPlace::Planned);
    for memory in [MemoryChoice::default(), MemoryChoice::keep_everything()] {
        let activations = |tokens_max: usize| {
            let adapter = AdapterWeights::initialized(model.config(), spec(), 3).expect("a valid spec");
            let options = StepOptions { ops: ops(), memory, ..StepOptions::new(tokens_max) };
            let shares = work_shares(&model, &adapter.spec, &options, tokens_max, tokens_max).expect("counts");
            assert!(shares.macs > 0);
            let boundaries = Some(BoundaryType::Float32);
            let request = PlanRequest { ops: ops(), boundaries, ..PlanRequest::new(&adapter.spec, tokens_max) };
            plan_step(&model, &request).expect("no budget").plan.total_bytes() - model.weights_bytes()
        };
        let (short, long) = (activations(1024), activations(4096));
        assert!(long < 4 * short + short / 10, "{short} bytes at 1024 tokens, {long} at 4096");
    }
}

/// Anonymous resident bytes of this process.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[cfg(target_os = "linux")]
#[test]
fn a_session_takes_what_was_planned_and_steps_allocate_nothing() {
    // In a process of its own: other tests take and give memory at the same time.
    if std::env::var_os("SELFTUNE_TEST_ALONE").is_none() {
        let name = "memory::a_session_takes_what_was_planned_and_steps_allocate_nothing";
        let program = std::env::current_exe().expect("a path");
        let mut command = std::process::Command::new(program);
        let output = command.args(["--exact", name]).env("SELFTUNE_TEST_ALONE", "1").output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let model = synthetic(SyntheticPlace::File(folder.path()));
    let adapter = AdapterWeights::initialized(model.config(), spec(), 3).expect("a valid spec");
    let budget = planned(&model, &adapter.spec, 2048, None).expect("a plan").peak.total() * 6 / 10;
    let integers = Some(KeptType::Int16);
    for (budget_bytes, kept_values) in [(None, None), (Some(budget), None), (None, integers), (Some(budget), integers)]
    {
        let request = PlanRequest { ops: ops(), budget_bytes, kept_values, ..PlanRequest::new(&adapter.spec, 2048) };
        let planned = plan_step(&model, &request).expect("a plan");
        assert!(kept_values.is_none_or(|kept_values| planned.options.memory.kept_values == kept_values));
        let before = anonymous_bytes();
        let mut session = tiny::session(&model, &adapter, planned.options);
        assert_eq!(session.plan().items, planned.plan.items);
        let (tokens, mask) = text(2048);
        let allocations = CountingAllocator::count(|| {
            session.step(&tokens, &mask, 1.0, 0).expect("a step");
        });
        assert_eq!(allocations, 0);
        let taken = anonymous_bytes().saturating_sub(before);
        let expected = planned.peak.anonymous_bytes;
        // What the first session gave back may be counted in `before`.
        let rounding = 4 << 20;
        assert!(taken <= expected + rounding && taken + rounding >= expected * 9 / 10, "{taken} bytes for {expected}");
    }
}

#[test]
fn a_kept_prefix_changes_no_bit() {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let mut spec = tiny::spec(&Projection::ALL, 2..3);
        spec.dropout = 0.2;
        let adapter = tiny::adapter(&model, spec);
        for boundaries in [BoundaryType::Float32, BoundaryType::Bfloat16] {
            let memory = MemoryChoice { boundaries, ..MemoryChoice::default() };
            let mut session = tiny::session(&model, &adapter, StepOptions { memory, ..tiny::options(Precision::A16) });
            assert_eq!(session.prefix_blocks(), 2);
            let (tokens, mask) = tiny::text(29);
            let step = |session: &mut TrainingSession, prefix: Prefix| {
                session.zero_gradients();
                session.reset_counters();
                let loss = session.step_from(prefix, &tokens, &mask, 1.0, 5).expect("a step");
                (loss, session.flat_gradients().to_vec(), session.counters().frozen_macs)
            };
            let (loss, gradients, macs) = step(&mut session, Prefix::Computed);
            let mut prefix = Vec::new();
            let observed = step(&mut session, Prefix::Observed(&mut |values| prefix = values.to_vec()));
            assert!(observed == (loss, gradients.clone(), macs), "{family} {memory}: observing changes the step");
            assert_eq!(prefix.len(), session.prefix_values(&tokens, &mask).expect("a text"));
            // Other texts in between leave nothing behind.
            session.step(&tokens[..12], &mask[..12], 1.0, 1).expect("a step");
            let given = step(&mut session, Prefix::Given(&prefix));
            assert!((given.0, given.1) == (loss, gradients), "{family} {memory}");
            let row: usize =
                Projection::ALL.map(|projection| projection.shape(model.config())).map(|(n, k)| n * k).iter().sum();
            assert_eq!(macs - given.2, 2 * 28 * row as u64, "two blocks of 28 rows were not run");
            let computed = session.loss(&tokens, &mask).expect("losses");
            assert_eq!(session.loss_from(Prefix::Given(&prefix), &tokens, &mask).expect("losses"), computed);
            let error = session.step_from(Prefix::Given(&prefix[1..]), &tokens, &mask, 1.0, 5).expect_err("too short");
            assert!(error.to_string().contains("kept prefix has"), "{error}");
        }
    }
}

#[test]
fn shares_of_necessary_work_follow_the_formulas() {
    let model = synthetic(SyntheticPlace::Planned);
    let spec = AdapterSpec { blocks: 6..8, ..spec() };
    let options = StepOptions { ops: ops(), ..StepOptions::new(65) };
    let (rows, supervised) = (64u64, 16u64);
    let shares = work_shares(&model, &spec, &options, 65, 16).expect("counts");
    let without = |item: &str| {
        let share = shares.items.iter().find(|share| share.item.contains(item)).expect("an item");
        share.macs_without - shares.macs
    };
    // Sizes of the configuration above, by hand.
    let (query, key, feed_forward) = (128 * 128, 128 * 64, 128 * 320);
    let block = 2 * query + 2 * key + 3 * feed_forward;
    let rows_left_out = rows - supervised;
    let pairs = |queries: std::ops::RangeInclusive<u64>| queries.sum::<u64>();
    let (all_pairs, left_out_pairs) = (pairs(1..=64), pairs(1..=48));
    // q and o, gate, up and down both ways; attention 2 forward and 5 backward products; the query adapter of rank 8
    // both ways: A and B forward, three products and the input's gradient backward.
    let last_block = rows_left_out * (2 * (2 * query + 3 * feed_forward) + 8 * 128 * (2 + 4));
    let attention = (2 + 5) * left_out_pairs * 128;
    assert_eq!(without("through the last block"), last_block + attention);
    assert_eq!(without("logits only"), last_block + attention + 2 * rows_left_out * 512 * 128);
    assert_eq!(without("only what backward reads"), rows * feed_forward);
    // Gradients of the first adapted block's input: q, k, v, dK, and the adapters of q and v.
    let own = rows * (query + 2 * key) + all_pairs * 128 + 2 * rows * 8 * 128;
    assert_eq!(without("gradients that an adapter is behind"), own);
    // Six blocks run again without down, and back whole: dP, dQ, dK, dV and scores.
    let again = rows * (block - feed_forward) + 2 * all_pairs * 128;
    let back = rows * block + 5 * all_pairs * 128;
    assert_eq!(without("stops at the first adapted block"), own + 6 * (again + back));
    assert_eq!(without("kept instead"), 0, "nothing is kept here");
    let keeping = StepOptions { memory: MemoryChoice::keep_everything(), ..options };
    let kept = work_shares(&model, &spec, &keeping, 65, 16).expect("counts");
    let one_block_again = again + rows * 8 * (2 * 128 + 128 + 64);
    assert_eq!(kept.items.last().expect("items").macs_without - kept.macs, one_block_again);
    let everything = NecessaryWork::ALL_WORK;
    assert_eq!(everything.select_rows, SelectRows::Never);
    let all =
        work_shares(&model, &spec, &StepOptions { necessary_work: everything, ..options }, 65, 16).expect("counts");
    assert_eq!((all.macs, all.macs_full), (shares.macs_full, shares.macs_full));
    assert!(shares.macs < shares.macs_full / 2);
}

/// A program that takes more the larger the adapter is, and much for each token once a block below is frozen.
#[test]
fn what_is_named_when_nothing_fits_does_fit_and_a_little_more_does_not() {
    let model = synthetic(SyntheticPlace::Planned);
    let whole = spec();
    let end = whole.blocks.end;
    let program = ProgramBytes {
        fixed: ResidentBytes { anonymous_bytes: 10 << 20, mapped_bytes: 5 << 20 },
        per_adapter_value: 24,
        per_token_above_frozen: 4096,
        varies: 1 << 20,
    };
    // In a process that has taken all that it may vary by.
    let later = ProgramBytes { fixed: ResidentBytes { mapped_bytes: 6 << 20, ..program.fixed }, ..program };
    let within = |spec: &AdapterSpec, tokens: usize, budget: Option<u64>, program: ProgramBytes| {
        let request = PlanRequest { ops: ops(), budget_bytes: budget, program, ..PlanRequest::new(spec, tokens) };
        plan_step(&model, &request)
    };
    let needed = |spec: &AdapterSpec, tokens: usize| match within(spec, tokens, Some(1), program) {
        Err(ModelError::NothingFits { needed_bytes, .. }) => needed_bytes,
        other => panic!("{other:?}"),
    };
    let last = |blocks: usize| AdapterSpec { blocks: end - blocks..end, ..whole.clone() };
    let (most, least) = (needed(&whole, 256) - 1, needed(&whole, 100));
    let budgets = [most, (most + least) / 2, least];
    for budget in budgets {
        let error = within(&whole, 256, Some(budget), program).expect_err("too little");
        let ModelError::NothingFits { tokens_that_fit, blocks_that_fit, .. } = error else { panic!("{error}") };
        let fits = |spec: &AdapterSpec, tokens: usize| within(spec, tokens, Some(budget), later).is_ok();
        let tokens = tokens_that_fit.expect("short ones fit");
        assert!(fits(&whole, tokens) && !fits(&whole, tokens + 1), "{budget} bytes: {tokens} tokens");
        let fitting: Vec<usize> = (1..end).filter(|&blocks| fits(&last(blocks), 256)).collect();
        assert_eq!(blocks_that_fit, fitting.last().copied(), "{budget} bytes");
    }
    assert!(needed(&last(end - 1), 256) > needed(&whole, 256), "one block less can take more");
}

/// The fastest plan within `budget` bytes for rank 8 on q and v of all blocks, two threads.
fn planned_peak(model: &Arc<Model>, tokens: usize, budget: u64, weights: Option<WeightsPlace>) -> PlannedStep {
    let blocks = model.config().blocks.len();
    let spec = AdapterSpec { rank: 8, ..tiny::spec(&[Projection::Query, Projection::Value], 0..blocks) };
    // What a training process takes besides, as measured with the real tokenizer of SmolLM2.
    let program = ResidentBytes { anonymous_bytes: 60 << 20, mapped_bytes: 12 << 20 };
    let request = PlanRequest {
        ops: OpsOptions { threads: 2, ..ops() },
        budget_bytes: Some(budget),
        weights,
        program: program.into(),
        ..PlanRequest::new(&spec, tokens)
    };
    plan_step(model, &request).expect("a plan within the budget")
}

#[test]
fn large_models_fit_the_memory_that_was_promised() {
    let smollm3 = json!({
        "model_type": "smollm3", "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 11_008,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 65_536, "rope_theta": 5e6, "hidden_act": "silu", "tie_word_embeddings": true,
        "no_rope_layer_interval": 4,
    });
    let qwen3 = json!({
        "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 12_288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 40_960, "rope_theta": 1e6, "hidden_act": "silu",
        "tie_word_embeddings": false,
    });
    for (name, config, budgets) in
        [("SmolLM3-3B", smollm3, [2_300_000_000, 1_000_000_000]), ("Qwen3-8B", qwen3, [5_600_000_000, 1_600_000_000])]
    {
        let config = ModelConfig::from_json(&config).expect("a valid configuration");
        let model = synthetic_model(&config, &SyntheticWeights::default(), SyntheticPlace::Planned).expect("a model");
        let model = Arc::new(model);
        let at_1024 = |budget, weights| planned_peak(&model, 1024, budget, Some(weights));
        let resident = at_1024(budgets[0], WeightsPlace::Resident);
        let streamed = at_1024(budgets[1], WeightsPlace::Streamed);
        for planned in [&resident, &streamed] {
            println!("{name}: {:.3} GB, {}", planned.peak.total() as f64 / 1e9, planned.options.memory);
            assert_eq!(planned.options.memory.checkpoint_blocks, 1, "{name}: no block runs more than twice");
        }
        assert_eq!(resident.options.memory.weights, WeightsPlace::Resident, "{name}");
        assert_eq!(streamed.options.memory.weights, WeightsPlace::Streamed, "{name}");
        if name == "SmolLM3-3B" {
            let short = planned_peak(&model, 512, 2_200_000_000, None);
            println!("{name}, 512 tokens: {:.3} GB, {}", short.peak.total() as f64 / 1e9, short.options.memory);
            let MemoryChoice { boundaries, blocks_kept, kept_values, .. } = short.options.memory;
            assert_eq!((blocks_kept, kept_values), (36, KeptType::Int16), "nothing runs again");
            assert_eq!(boundaries, BoundaryType::Float32);
        }
    }
}

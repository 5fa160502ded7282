//! Stacks of adapters: the sum of their products, in training and in generation. An adapter of PEFT that is cut into
//! several by projection, block and rank computes the same, so PEFT's own gradients and logits are what must come out.

use std::ops::Range;
use std::sync::Arc;

use kernels::{Isa, OpsOptions, Precision};
use model::{
    AdapterMatrix, AdapterWeights, Generator, GeneratorOptions, MemoryChoice, ModelError, Projection, StepOptions,
    TrainingSession,
};
use safetensors::SafeTensors;

use crate::oracle::{self, Case};
use crate::tiny;

use Projection::{Down, Gate, Key, Output, Query, Up, Value};

/// Some of the projections, blocks and ranks of an adapter, as an adapter with the same effect: its alpha is `strength`
/// times what it would be, its B as much smaller.
fn part(
    whole: &AdapterWeights,
    targets: &[Projection],
    blocks: Range<usize>,
    ranks: Range<usize>,
    strength: f32,
) -> AdapterWeights {
    let rank = whole.spec.rank;
    let cut = |matrix: &AdapterMatrix| AdapterMatrix {
        a: matrix.a[ranks.start * matrix.a.len() / rank..ranks.end * matrix.a.len() / rank].to_vec(),
        b: matrix.b.chunks_exact(rank).flat_map(|row| row[ranks.clone()].iter().map(|b| b / strength)).collect(),
        ..matrix.clone()
    };
    let wanted = |matrix: &&AdapterMatrix| targets.contains(&matrix.projection) && blocks.contains(&matrix.block);
    let mut spec = whole.spec.clone();
    spec.lora_alpha = spec.scale() * ranks.len() as f32 * strength;
    (spec.rank, spec.use_rslora) = (ranks.len(), false);
    (spec.targets, spec.blocks) = (targets.to_vec(), blocks.clone());
    AdapterWeights { spec, matrices: whole.matrices.iter().filter(wanted).map(cut).collect() }
}

/// The adapter of a case in four: three of different shape and strength to freeze, one to train.
fn cut(case: &Case) -> (Vec<AdapterWeights>, AdapterWeights) {
    let (whole, blocks) = (&case.adapter, case.model.config().blocks.len());
    let (rank, all) = (whole.spec.rank, 0..blocks);
    assert!(rank >= 3 && whole.spec.blocks == all && blocks > 1, "{}: too small to be cut", case.name);
    let frozen = vec![
        part(whole, &[Key, Output, Gate, Up], all, 0..rank, 1.0),
        part(whole, &[Query, Value, Down], 0..1, 0..rank, 0.5),
        part(whole, &[Query, Value, Down], 1..blocks, 0..1, 4.0),
    ];
    (frozen, part(whole, &[Query, Value, Down], 1..blocks, 1..rank, 1.0))
}

fn references(adapters: &[AdapterWeights]) -> Vec<&AdapterWeights> {
    adapters.iter().collect()
}

#[test]
fn gradients_over_frozen_adapters_are_those_of_peft() {
    let mut compared = 0;
    oracle::for_each_case(|case, precision, bounds| {
        let Some(bytes) = &case.tensors else { return };
        let tensors = SafeTensors::deserialize(bytes).expect("valid expected tensors");
        let (frozen, top) = cut(case);
        let ops = OpsOptions { threads: 1, isa: Isa::best(), precision };
        let options = StepOptions { ops, ..StepOptions::new(case.tokens.len()) };
        let mut session = TrainingSession::stacked(Arc::clone(&case.model), &references(&frozen), &top, options)
            .expect("a session over a stack");
        session.step(&case.tokens, &case.mask, 1.0 / case.supervised() as f32, 0).expect("a step");
        let rank = case.adapter.spec.rank;
        for gradient in session.gradients() {
            let whole = oracle::floats(&tensors, &format!("all.grad.{}", gradient.name));
            let expected: Vec<f32> = match gradient.name.ends_with("lora_A") {
                true => whole[whole.len() / rank..].to_vec(),
                false => whole.chunks_exact(rank).flat_map(|row| row[1..].to_vec()).collect(),
            };
            let difference = tiny::norm_difference(&gradient.values, &expected);
            let what = format!("{} {} {}", case.name, precision.name(), gradient.name);
            assert!(difference < bounds.gradients, "{what}: off by {difference}");
            compared += 1;
        }
    });
    assert!(compared > 0, "no fixture has expected gradients");
}

#[test]
fn logits_and_losses_of_a_stack_are_those_of_peft() {
    oracle::for_each_case(|case, precision, bounds| {
        let Some(bytes) = &case.tensors else { return };
        let tensors = SafeTensors::deserialize(bytes).expect("valid expected tensors");
        let (mut stack, top) = cut(case);
        stack.push(top);
        let ops = OpsOptions { threads: 1, isa: Isa::best(), precision };
        let options = GeneratorOptions::new(ops, case.tokens.len());
        let mut generator = Generator::stacked(Arc::clone(&case.model), &references(&stack), options)
            .expect("a generator over a stack");
        let what = format!("{} {}", case.name, precision.name());
        let expected = oracle::floats(&tensors, "all.token_losses");
        let found = generator.losses(&case.tokens, &vec![true; case.tokens.len()]).expect("losses").losses;
        let difference = tiny::norm_difference(&found, &expected[1..]);
        assert!(difference < bounds.logits, "{what} losses: off by {difference}");
        let expected = oracle::floats(&tensors, "all.logits");
        let last = expected.chunks_exact(case.model.config().vocabulary).next_back().expect("logits");
        let difference = tiny::norm_difference(&generator.logits(&case.tokens).expect("logits"), last);
        assert!(difference < bounds.logits, "{what} logits: off by {difference}");
    });
}

/// Two adapters to freeze and one to train, of different ranks, projections and blocks.
fn stack_of(model: &model::Model) -> (Vec<AdapterWeights>, AdapterWeights) {
    let mut wide = tiny::spec(&Projection::ALL, 0..2);
    (wide.rank, wide.dropout) = (7, 0.5);
    let frozen = vec![tiny::adapter(model, wide), tiny::adapter(model, tiny::spec(&[Query, Down], 1..tiny::BLOCKS))];
    (frozen, tiny::adapter(model, tiny::spec(&[Query, Value], 1..tiny::BLOCKS)))
}

#[test]
fn recomputing_threads_and_saving_change_no_bit_over_a_stack() {
    let (tokens, mask) = tiny::text(29);
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let (frozen, top) = stack_of(&model);
        let step = |options: StepOptions| {
            let mut session =
                TrainingSession::stacked(Arc::clone(&model), &references(&frozen), &top, options).expect("a session");
            let loss = session.step(&tokens, &mask, 0.125, 3).expect("a step").loss_sum;
            (loss, session.flat_gradients().to_vec(), session.loss(&tokens, &mask).expect("losses"))
        };
        let options = tiny::options(Precision::A16);
        let expected = step(options);
        assert_eq!(step(StepOptions { memory: MemoryChoice::keep_everything(), ..options }), expected, "{family}");
        let mut threaded = options;
        threaded.ops.threads = 3;
        assert_eq!(step(threaded), expected, "{family}");
        // A frozen adapter's dropout is off: a step loses as much as an evaluation.
        assert!(
            (expected.0 / expected.2.loss_sum - 1.0).abs() < 1e-6,
            "{family}: {} {}",
            expected.0,
            expected.2.loss_sum
        );
    }
}

#[test]
fn a_stack_computes_no_frozen_product_more_and_stops_where_the_trained_adapter_begins() {
    let model = tiny::model("llama");
    let (frozen, top) = stack_of(&model);
    let (tokens, mask) = tiny::text(29);
    let counted = |frozen: &[&AdapterWeights]| {
        let options = tiny::options(Precision::A16);
        let mut session = TrainingSession::stacked(Arc::clone(&model), frozen, &top, options).expect("a session");
        session.reset_counters();
        session.step(&tokens, &mask, 1.0, 0).expect("a step");
        session.counters()
    };
    let (without, with) = (counted(&[]), counted(&references(&frozen)));
    assert_eq!(with.frozen_macs, without.frozen_macs);
    assert_eq!(with.attention_macs, without.attention_macs);
    // Rows and rows that predict a supervised token of the text; sides of a projection.
    let (rows, selected) = (28, 10);
    let sides = |projections: &[Projection]| {
        let shapes = projections.iter().map(|projection| projection.shape(model.config()));
        shapes.map(|(n, k)| (n + k) as u64).sum::<u64>()
    };
    let wide = 7 * sides(&Projection::ALL);
    let narrow = 4 * sides(&[Query, Down]);
    // Forward through both blocks of the wide adapter and both of the narrow one, of which the last sees selected rows;
    // the middle block again without `down`; backward through the last block and down to the attended values of the
    // middle one, whose queries, keys and values need no input gradient.
    let forward = rows * (2 * wide + narrow) + selected * narrow;
    let again = rows * (7 * sides(&[Query, Key, Value, Output, Gate, Up]) + 4 * sides(&[Query]));
    let backward = selected * narrow + rows * (7 * sides(&[Output, Gate, Up, Down]) + 4 * sides(&[Down]));
    assert_eq!(with.adapter_macs - without.adapter_macs, forward + again + backward);
}

#[test]
fn memory_of_a_stack_is_planned() {
    let model = tiny::model("llama");
    let (frozen, top) = stack_of(&model);
    let bytes = |items: &[(&str, usize)], name: &str| items.iter().find(|item| item.0 == name).map(|item| item.1);
    let session =
        TrainingSession::stacked(Arc::clone(&model), &references(&frozen), &top, tiny::options(Precision::A16));
    let items = session.expect("a session").plan().items.clone();
    let values: usize = frozen.iter().map(|adapter| adapter.spec.parameter_count(model.config())).sum();
    let planned = bytes(&items, "frozen adapters").expect("planned");
    assert!((values * 4..values * 4 + 64).contains(&planned), "{planned} for {values} values");
    assert!(bytes(&items, "frozen adapters' activations").is_some());
    let alone = tiny::session(&model, &top, tiny::options(Precision::A16));
    assert_eq!(bytes(&alone.plan().items, "frozen adapters"), None);
}

#[test]
fn a_generator_takes_any_stack_in_turn() {
    let model = tiny::model("qwen3");
    let (frozen, top) = stack_of(&model);
    let ops = OpsOptions { threads: 1, isa: Isa::best(), precision: Precision::A16 };
    let options = GeneratorOptions::new(ops, 40);
    let (tokens, _) = tiny::text(20);
    let fresh = |stack: &[&AdapterWeights]| {
        let mut generator = Generator::stacked(Arc::clone(&model), stack, options).expect("a generator");
        generator.logits(&tokens).expect("logits")
    };
    let mut other = frozen[0].clone();
    other.matrices.iter_mut().for_each(|matrix| matrix.b.iter_mut().for_each(|value| *value *= -1.0));
    let stacks: [&[&AdapterWeights]; 6] =
        [&[], &[&top], &[&frozen[0], &frozen[1], &top], &[&other, &frozen[1], &top], &[&frozen[1], &top], &[&top]];
    let mut generator = Generator::stacked(Arc::clone(&model), &[], options).expect("a generator");
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for stack in stacks {
        generator.set_adapters(stack).expect("a valid stack");
        let found = generator.logits(&tokens).expect("logits");
        assert_eq!(found, fresh(stack));
        seen.push(found);
    }
    assert_eq!(seen[1], seen[5]);
    for (index, one) in seen[..5].iter().enumerate() {
        assert!(seen[..index].iter().all(|other| other != one), "stack {index} answers as one before it");
    }
}

#[test]
fn every_adapter_of_a_stack_is_checked() {
    let model = tiny::model("llama");
    let (mut frozen, top) = stack_of(&model);
    frozen[1].matrices[0].a[3] = f32::NAN;
    let refused =
        TrainingSession::stacked(Arc::clone(&model), &references(&frozen), &top, tiny::options(Precision::A16));
    assert!(matches!(refused.err(), Some(ModelError::TensorNotFinite { .. })));
    let ops = OpsOptions { threads: 1, isa: Isa::best(), precision: Precision::A16 };
    let options = GeneratorOptions::new(ops, 8);
    let refused = Generator::stacked(model, &references(&frozen), options);
    assert!(matches!(refused.err(), Some(ModelError::TensorNotFinite { .. })));
}

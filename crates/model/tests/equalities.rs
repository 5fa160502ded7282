//! Results that must not depend on how they were computed.

use std::sync::Arc;

use kernels::{AdamWParameters, OpsOptions, Precision};
use model::{
    AdapterWeights, BoundaryType, KeptType, MemoryChoice, Model, NecessaryWork, Projection, SelectRows, StepOptions,
    TrainingSession,
};

use crate::tiny;

const PRECISIONS: [Precision; 2] = [Precision::A16, Precision::Exact];
const LENGTH: usize = 29;

/// Loss and gradients of one step.
fn step(model: &Arc<Model>, adapter: &AdapterWeights, options: StepOptions) -> (f64, Vec<f32>) {
    let mut session = tiny::session(model, adapter, options);
    let (tokens, mask) = tiny::text(LENGTH);
    let loss = session.step(&tokens, &mask, 0.125, 77).expect("a step");
    assert_eq!(loss.supervised_tokens, mask.iter().filter(|supervised| **supervised).count());
    (loss.loss_sum, session.flat_gradients().to_vec())
}

fn dropping_adapter(model: &Model) -> AdapterWeights {
    let mut spec = tiny::spec(&Projection::ALL, 1..tiny::BLOCKS);
    spec.dropout = 0.2;
    tiny::adapter(model, spec)
}

fn for_each_case(mut check: impl FnMut(&str, &Arc<Model>, StepOptions)) {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        for precision in PRECISIONS {
            check(&format!("{family} {}", precision.name()), &model, tiny::options(precision));
        }
    }
}

#[test]
fn recomputing_changes_no_bit() {
    for_each_case(|name, model, options| {
        for targets in [&Projection::ALL[..], &[Projection::Query, Projection::Value]] {
            let mut adapter = dropping_adapter(model);
            adapter.spec.targets = targets.to_vec();
            adapter.matrices.retain(|matrix| targets.contains(&matrix.projection));
            let kept = step(model, &adapter, StepOptions { memory: MemoryChoice::keep_everything(), ..options });
            assert!(kept.1.iter().any(|gradient| *gradient != 0.0));
            assert_eq!(step(model, &adapter, options), kept, "{name}");
        }
    });
}

#[test]
fn what_is_kept_in_float32_changes_no_bit() {
    for_each_case(|name, model, options| {
        for targets in [&Projection::ALL[..], &[Projection::Query, Projection::Value]] {
            let mut spec = tiny::spec(targets, 0..tiny::BLOCKS);
            spec.dropout = 0.2;
            let adapter = tiny::adapter(model, spec);
            let with = |memory| step(model, &adapter, StepOptions { memory, ..options });
            let kept = with(MemoryChoice::keep_everything());
            let per_block = MemoryChoice::default();
            for memory in [
                MemoryChoice { blocks_kept: 2, ..per_block },
                MemoryChoice { attentions_kept: 1, ..per_block },
                MemoryChoice { attentions_kept: 2, ..per_block },
                MemoryChoice { blocks_kept: 2, attentions_kept: 1, ..per_block },
                MemoryChoice { checkpoint_blocks: 2, ..per_block },
                MemoryChoice { checkpoint_blocks: 3, ..per_block },
            ] {
                assert!(with(memory) == kept, "{name} {memory}");
                let necessary = NecessaryWork { recompute_only_what_backward_reads: false, ..options.necessary_work };
                let whole = step(model, &adapter, StepOptions { memory, necessary_work: necessary, ..options });
                assert!(whole == kept, "{name} {memory}, run again as a whole");
            }
        }
    });
}

#[test]
fn bfloat16_boundaries_move_gradients_a_little_and_losses_not_at_all() {
    for_each_case(|name, model, options| {
        let adapter =
            tiny::adapter(model, tiny::spec(&[Projection::Query, Projection::Value, Projection::Up], 0..tiny::BLOCKS));
        let (loss, gradients) = step(model, &adapter, options);
        for (checkpoint_blocks, blocks_kept) in [(1, 1), (1, 2), (2, 1), (3, 1)] {
            let boundaries = BoundaryType::Bfloat16;
            let memory = MemoryChoice { boundaries, checkpoint_blocks, blocks_kept, ..options.memory };
            let found = step(model, &adapter, StepOptions { memory, ..options });
            assert_eq!(found.0, loss, "{name} {memory}");
            let difference = tiny::norm_difference(&found.1, &gradients);
            // Rounding moves an element by up to 2^-9 of itself; these small random blocks magnify that by less than 32.
            assert!(difference > 0.0 && difference < 2f64.powi(-4), "{name} {memory}: {difference}");
            let necessary = NecessaryWork { recompute_only_what_backward_reads: false, ..options.necessary_work };
            let whole = step(model, &adapter, StepOptions { memory, necessary_work: necessary, ..options });
            assert!(whole == found, "{name} {memory}, run again as a whole");
        }
    });
}

#[test]
fn gates_kept_as_integers_move_gradients_hardly_and_losses_not_at_all() {
    for_each_case(|name, model, options| {
        for targets in [&Projection::ALL[..], &[Projection::Query, Projection::Value]] {
            let mut spec = tiny::spec(targets, 0..tiny::BLOCKS);
            spec.dropout = 0.2;
            let adapter = tiny::adapter(model, spec);
            let (loss, gradients) = step(model, &adapter, options);
            let per_block = MemoryChoice { kept_values: KeptType::Int16, ..options.memory };
            let rounded = step(model, &adapter, StepOptions { memory: per_block, ..options });
            assert_eq!(rounded.0, loss, "{name}");
            let difference = tiny::norm_difference(&rounded.1, &gradients);
            // In a16 products round the moved values anew, each time by as much as a16 may: 2e-4.
            let limit = if options.ops.precision == Precision::A16 { 2e-4 } else { 1e-4 };
            assert!(difference > 0.0 && difference < limit, "{name}: {difference:e}");
            // Kept or run again, the same bits.
            for memory in [
                MemoryChoice { blocks_kept: 2, ..per_block },
                MemoryChoice { blocks_kept: tiny::BLOCKS, ..per_block },
                MemoryChoice { attentions_kept: 2, ..per_block },
                MemoryChoice { checkpoint_blocks: 2, ..per_block },
            ] {
                let options = StepOptions { memory, ..options };
                assert!(step(model, &adapter, options) == rounded, "{name} {memory}");
                let ops = OpsOptions { threads: 3, ..options.ops };
                assert!(step(model, &adapter, StepOptions { ops, ..options }) == rounded, "{name} {memory}, 3 threads");
                let all_work = options.necessary_work;
                let whole = NecessaryWork { recompute_only_what_backward_reads: false, ..all_work };
                let trained = NecessaryWork { train_adapters_only: false, ..all_work };
                for necessary_work in [whole, trained] {
                    let found = step(model, &adapter, StepOptions { necessary_work, ..options });
                    assert!(found == rounded, "{name} {memory} {necessary_work:?}");
                }
            }
        }
    });
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for_each_case(|name, model, mut options| {
        let adapter = dropping_adapter(model);
        let one = step(model, &adapter, options);
        for threads in [2, 5] {
            options.ops.threads = threads;
            assert_eq!(step(model, &adapter, options), one, "{name} on {threads} threads");
        }
    });
}

#[test]
fn leaving_out_unread_work_changes_no_bit() {
    for_each_case(|name, model, options| {
        let adapter = dropping_adapter(model);
        let least = step(model, &adapter, options);
        let necessary = NecessaryWork { stop_at_first_adapted_block: false, ..options.necessary_work };
        assert_eq!(step(model, &adapter, StepOptions { necessary_work: necessary, ..options }), least, "{name}: stop");
        let necessary = NecessaryWork { only_gradients_that_adapters_need: false, ..options.necessary_work };
        assert_eq!(step(model, &adapter, StepOptions { necessary_work: necessary, ..options }), least, "{name}: needs");
        let necessary = NecessaryWork { recompute_only_what_backward_reads: false, ..options.necessary_work };
        assert_eq!(step(model, &adapter, StepOptions { necessary_work: necessary, ..options }), least, "{name}: down");
        for memory in [options.memory, MemoryChoice::keep_everything()] {
            let necessary = NecessaryWork { train_adapters_only: false, ..options.necessary_work };
            let found = step(model, &adapter, StepOptions { necessary_work: necessary, memory, ..options });
            assert_eq!(found, least, "{name} {memory}: frozen weights");
        }
    });
}

/// How far losses and gradients may move where sums in every block have another order: in float32 by a few units; in a16
/// a moved value may fall on the next of 2^15 steps in each product, which stays well below the error of a16 itself
/// (2e-4 a product).
fn another_order(options: StepOptions) -> (f64, f64) {
    if options.ops.precision == Precision::Exact { (1e-6, 1e-5) } else { (5e-5, 1e-3) }
}

#[test]
fn tiles_of_attention_change_only_the_order_of_sums() {
    for_each_case(|name, model, options| {
        let adapter = dropping_adapter(model);
        let (loss, gradients) = step(model, &adapter, options);
        let whole = NecessaryWork { tile_attention: false, ..options.necessary_work };
        let found = step(model, &adapter, StepOptions { necessary_work: whole, ..options });
        let (loss_bound, bound) = another_order(options);
        assert!((found.0 - loss).abs() <= loss_bound * loss, "{name}: {} for {loss}", found.0);
        let difference = tiny::norm_difference(&found.1, &gradients);
        assert!(difference < bound, "{name}: gradients differ by {difference}");
    });
}

#[test]
fn without_any_saving_results_are_the_same() {
    for_each_case(|name, model, options| {
        // Without dropout, whose elements are numbered by row.
        let adapter = tiny::adapter(model, tiny::spec(&[Projection::Query, Projection::Value], 1..tiny::BLOCKS));
        let (loss, gradients) = step(model, &adapter, options);
        let found = step(model, &adapter, StepOptions { necessary_work: NecessaryWork::ALL_WORK, ..options });
        let (loss_bound, bound) = another_order(options);
        assert!((found.0 - loss).abs() <= loss_bound * loss, "{name}: {} for {loss}", found.0);
        let difference = tiny::norm_difference(&found.1, &gradients);
        assert!(difference < bound, "{name}: gradients differ by {difference}");
    });
}

#[test]
fn selecting_rows_changes_only_the_order_of_sums() {
    for_each_case(|name, model, options| {
        // Dropped elements are numbered by row, so selecting rows draws others: compare without dropout.
        let adapter = tiny::adapter(model, tiny::spec(&Projection::ALL, 1..tiny::BLOCKS));
        let all = NecessaryWork { select_rows: SelectRows::Never, ..options.necessary_work };
        let (loss, gradients) = step(model, &adapter, StepOptions { necessary_work: all, ..options });
        for select_rows in [SelectRows::InLastBlock, SelectRows::BeforeHead] {
            let some = NecessaryWork { select_rows, ..options.necessary_work };
            let found = step(model, &adapter, StepOptions { necessary_work: some, ..options });
            assert!((found.0 - loss).abs() <= 1e-6 * loss, "{name} {select_rows:?}: {} for {loss}", found.0);
            let difference = tiny::norm_difference(&found.1, &gradients);
            // Another order of sums moves float32 by a few units; in a16 a moved value may fall on the next of 2^15 steps.
            let bound = if options.ops.precision == Precision::Exact { 2e-6 } else { 3e-5 };
            assert!(difference < bound, "{name} {select_rows:?}: gradients differ by {difference}");
        }
    });
}

#[test]
fn evaluation_and_training_see_one_loss() {
    for_each_case(|name, model, options| {
        let adapter = dropping_adapter(model);
        let (tokens, mask) = tiny::text(LENGTH);
        let mut session = tiny::session(model, &adapter, options);
        let evaluated = session.loss(&tokens, &mask).expect("losses");
        assert_eq!(evaluated.losses.len(), mask.iter().filter(|supervised| **supervised).count());
        assert_eq!(evaluated.loss_sum, evaluated.losses.iter().map(|loss| f64::from(*loss)).sum::<f64>());
        let trained = session.step(&tokens, &mask, 1.0, 3).expect("a step");
        assert_ne!(trained.loss_sum, evaluated.loss_sum, "{name}: dropout acts in training");

        let mut without_dropout = adapter.clone();
        without_dropout.spec.dropout = 0.0;
        let mut session = tiny::session(model, &without_dropout, options);
        let trained = session.step(&tokens, &mask, 1.0, 3).expect("a step");
        assert_eq!(trained.loss_sum, evaluated.loss_sum, "{name}");
        // A shorter text afterwards reads nothing that the longer one left.
        let short = session.loss(&tokens[..9], &mask[..9]).expect("losses");
        let fresh = tiny::session(model, &without_dropout, options).loss(&tokens[..9], &mask[..9]).expect("losses");
        assert_eq!(short, fresh, "{name}");
    });
}

#[test]
fn tokens_behind_the_last_target_change_nothing() {
    let model = tiny::model("llama");
    let adapter = dropping_adapter(&model);
    let (tokens, mut mask) = tiny::text(LENGTH);
    mask[LENGTH - 6..].fill(false);
    let mut whole = tiny::session(&model, &adapter, tiny::options(Precision::A16));
    let mut cut = tiny::session(&model, &adapter, tiny::options(Precision::A16));
    let loss = whole.step(&tokens, &mask, 1.0, 1).expect("a step");
    assert_eq!(cut.step(&tokens[..LENGTH - 6], &mask[..LENGTH - 6], 1.0, 1).expect("a step"), loss);
    assert_eq!(whole.flat_gradients(), cut.flat_gradients());
}

#[test]
fn gradients_add_up_and_clear() {
    let model = tiny::model("qwen2");
    let adapter = dropping_adapter(&model);
    let (tokens, mask) = tiny::text(LENGTH);
    let mut session = tiny::session(&model, &adapter, tiny::options(Precision::Exact));
    session.step(&tokens, &mask, 1.0, 1).expect("a step");
    let once = session.flat_gradients().to_vec();
    session.step(&tokens, &mask, 1.0, 1).expect("a step");
    let doubled: Vec<f32> = once.iter().map(|gradient| 2.0 * gradient).collect();
    assert!(tiny::norm_difference(session.flat_gradients(), &doubled) < 1e-6);
    let norm = once.iter().map(|gradient| f64::from(*gradient).powi(2)).sum::<f64>().sqrt();
    assert!((session.gradient_norm() - 2.0 * norm).abs() < 1e-5 * norm);
    session.zero_gradients();
    assert!(session.flat_gradients().iter().all(|gradient| *gradient == 0.0));
    session.step(&tokens, &mask, 0.5, 1).expect("a step");
    let halved: Vec<f32> = once.iter().map(|gradient| 0.5 * gradient).collect();
    assert!(tiny::norm_difference(session.flat_gradients(), &halved) < 1e-6);
}

#[test]
fn a_fresh_adapter_changes_nothing_and_only_b_has_a_gradient() {
    let model = tiny::model("smollm3");
    let spec = tiny::spec(&Projection::ALL, 0..tiny::BLOCKS);
    let adapter = AdapterWeights::initialized(model.config(), spec.clone(), 1).expect("a valid spec");
    assert_eq!(adapter, AdapterWeights::initialized(model.config(), spec.clone(), 1).expect("a valid spec"));
    assert_ne!(adapter, AdapterWeights::initialized(model.config(), spec, 2).expect("a valid spec"));
    let mut session = tiny::session(&model, &adapter, tiny::options(Precision::A16));
    let (tokens, mask) = tiny::text(LENGTH);
    session.step(&tokens, &mask, 1.0, 1).expect("a step");
    for gradient in session.gradients() {
        let touched = gradient.values.iter().any(|value| *value != 0.0);
        assert_eq!(touched, gradient.name.ends_with("lora_B"), "{}", gradient.name);
    }
}

#[test]
fn fewer_adapted_matrices_have_the_gradients_that_they_have_among_more() {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let mut all = tiny::adapter(&model, tiny::spec(&Projection::ALL, 0..tiny::BLOCKS));
        let options = tiny::options(Precision::A16);
        let subsets: [&[Projection]; 9] = [
            &[Projection::Query, Projection::Value],
            &[Projection::Query],
            &[Projection::Key],
            &[Projection::Value],
            &[Projection::Output],
            &[Projection::Gate],
            &[Projection::Up],
            &[Projection::Down],
            &[Projection::Key, Projection::Up, Projection::Down],
        ];
        for (targets, first) in subsets.into_iter().flat_map(|targets| [(targets, 0), (targets, 1), (targets, 2)]) {
            let spec = tiny::spec(targets, first..tiny::BLOCKS);
            let adapted = |block, projection| block >= first && targets.contains(&projection);
            // Adapters with zero B add nothing.
            for matrix in &mut all.matrices {
                let kept = adapted(matrix.block, matrix.projection);
                matrix.b.iter_mut().for_each(|value| *value = if kept { 0.05 } else { 0.0 });
            }
            let matrices = all.matrices.iter().filter(|matrix| adapted(matrix.block, matrix.projection)).cloned();
            let some = AdapterWeights { spec, matrices: matrices.collect() };
            let gradients = |adapter: &AdapterWeights| {
                let mut session = tiny::session(&model, adapter, options);
                let (tokens, mask) = tiny::text(LENGTH);
                session.step(&tokens, &mask, 1.0, 0).expect("a step");
                session.gradients()
            };
            let expected = gradients(&all);
            for found in gradients(&some) {
                let expected = expected.iter().find(|gradient| gradient.name == found.name).expect("the same matrix");
                let difference = tiny::norm_difference(&found.values, &expected.values);
                assert!(difference < 1e-6, "{family} {targets:?} from {first}, {}: {difference}", found.name);
            }
        }
    }
}

fn update(step: u64) -> AdamWParameters {
    AdamWParameters {
        learning_rate: 1e-2,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.01,
        step,
        gradient_factor: 1.0,
    }
}

#[test]
fn a_session_put_together_from_saved_parts_goes_on_to_the_bit() {
    let model = tiny::model("qwen3");
    let adapter = dropping_adapter(&model);
    let (tokens, mask) = tiny::text(LENGTH);
    let run = |session: &mut TrainingSession, steps: std::ops::Range<u64>| {
        for step in steps {
            session.zero_gradients();
            session.step(&tokens, &mask, 0.1, step).expect("a step");
            session.update(&update(step + 1));
        }
    };
    let mut whole = tiny::session(&model, &adapter, tiny::options(Precision::A16));
    let first_loss = whole.loss(&tokens, &mask).expect("losses").loss_sum;
    run(&mut whole, 0..4);
    let (first, second) = whole.optimizer_moments();
    let saved = whole.adapter();
    let mut resumed = tiny::session(&model, &saved, tiny::options(Precision::A16));
    resumed.set_optimizer_moments(first, second).expect("as many moments");
    run(&mut whole, 4..8);
    run(&mut resumed, 4..8);
    assert_eq!(whole.parameters(), resumed.parameters());
    assert_eq!(whole.optimizer_moments(), resumed.optimizer_moments());
    assert!(whole.loss(&tokens, &mask).expect("losses").loss_sum < 0.9 * first_loss, "training lowers the loss");
}

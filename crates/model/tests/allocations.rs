//! A step takes no memory but what was planned: allocations are counted.

use kernels::{AdamWParameters, CountingAllocator, Precision};
use model::{BoundaryType, KeptType, MemoryChoice, Projection, StepOptions};

use crate::tiny;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn the_counter_counts() {
    assert_eq!(CountingAllocator::count(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn a_step_allocates_nothing() {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let mut spec = tiny::spec(&Projection::ALL, 1..tiny::BLOCKS);
        spec.dropout = 0.1;
        let adapter = tiny::adapter(&model, spec);
        let (tokens, mask) = tiny::text(29);
        for precision in Precision::ALL {
            let per_block = MemoryChoice::default();
            let in_halves = MemoryChoice { boundaries: BoundaryType::Bfloat16, checkpoint_blocks: 2, ..per_block };
            let kept = MemoryChoice::keep_everything();
            let as_integers = MemoryChoice { kept_values: KeptType::Int16, ..kept };
            for (threads, memory) in [(1, per_block), (1, kept), (2, per_block), (2, in_halves), (2, as_integers)] {
                let mut options = StepOptions { memory, ..tiny::options(precision) };
                options.ops.threads = threads;
                let mut session = tiny::session(&model, &adapter, options);
                let found = CountingAllocator::count(|| {
                    session.zero_gradients();
                    session.step(&tokens, &mask, 1.0, 1).expect("a step");
                    session.step(&tokens[..12], &mask[..12], 1.0, 2).expect("a step");
                    let gradient_factor = 1.0 / session.gradient_norm() as f32;
                    session.update(&AdamWParameters {
                        learning_rate: 1e-3,
                        beta1: 0.9,
                        beta2: 0.999,
                        epsilon: 1e-8,
                        weight_decay: 0.0,
                        step: 1,
                        gradient_factor,
                    });
                });
                assert_eq!(found, 0, "{family} {} {threads} threads {memory:?}", precision.name());
            }
        }
    }
}

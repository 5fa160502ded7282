//! Gradients of every adapted matrix against central differences of the loss.

use kernels::Precision;
use model::{Projection, Random, TrainingSession};

use crate::tiny;

/// How far the loss moves with a step along a gradient: far above the noise of float32, still nearly straight.
const LOSS_CHANGE: f64 = 0.08;
const STEP_MAX: f64 = 0.02;

/// (loss(+) - loss(-)) / (2 step) along `direction`, by Richardson extrapolation from two steps.
fn derivative(
    session: &mut TrainingSession,
    start: &[f32],
    direction: &[f64],
    step: f64,
    text: &(Vec<u32>, Vec<bool>),
) -> f64 {
    let mut central = |step: f64| {
        let mut loss_at = |step: f64| {
            let moved: Vec<f32> = start.iter().zip(direction).map(|(x, d)| (f64::from(*x) + step * d) as f32).collect();
            session.set_parameters(&moved).expect("as many values");
            session.loss(&text.0, &text.1).expect("a valid text").loss_sum
        };
        (loss_at(step) - loss_at(-step)) / (2.0 * step)
    };
    (4.0 * central(step) - central(2.0 * step)) / 3.0
}

#[test]
fn gradients_are_the_slopes_of_the_loss_in_every_family() {
    let text = tiny::text(13);
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let adapter = tiny::adapter(&model, tiny::spec(&Projection::ALL, 0..tiny::BLOCKS));
        let mut session = tiny::session(&model, &adapter, tiny::options(Precision::Exact));
        session.step(&text.0, &text.1, 1.0, 0).expect("a step");
        let gradients = session.gradients();
        let start = session.parameters().to_vec();
        let whole_norm = session.gradient_norm();

        let mut random = Random::new(9);
        let mut offset = 0;
        for gradient in gradients {
            let len = gradient.values.len();
            let norm = gradient.values.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>().sqrt();
            assert!(norm > 1e-4 * whole_norm, "{family} {}: gradient of norm {norm}", gradient.name);
            // Along itself a gradient shows its length, along random signs what it leaves out.
            let along: Vec<f64> = gradient.values.iter().map(|g| f64::from(*g) / norm).collect();
            let signs: Vec<f64> =
                (0..len).map(|_| if random.unit() < 0.5 { 1.0 } else { -1.0 } / (len as f64).sqrt()).collect();
            for part in [along, signs] {
                let mut direction = vec![0.0; start.len()];
                direction[offset..offset + len].copy_from_slice(&part);
                let step = (LOSS_CHANGE / norm).min(STEP_MAX);
                let expected = derivative(&mut session, &start, &direction, step, &text);
                let found: f64 = part.iter().zip(&gradient.values).map(|(d, g)| d * f64::from(*g)).sum();
                // The sum of losses carries about 1e-5 of noise, divided by twice the step.
                let bound = 2e-3 * norm + 1e-5 / step;
                let difference = (found - expected).abs();
                assert!(difference < bound, "{family} {}: {found} for {expected}, bound {bound}", gradient.name);
            }
            offset += len;
        }
        assert_eq!(offset, start.len());
    }
}

use super::{AdamWParameters, reference};
use crate::testing::*;

const PARAMETERS: AdamWParameters = AdamWParameters {
    learning_rate: 2e-3,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.01,
    step: 1,
    gradient_factor: 1.0,
};

#[test]
fn updates_equal_the_reference() {
    for (step, gradient_factor, weight_decay, epsilon) in
        [(1, 1.0, 0.01, 1e-8), (2, 0.125, 0.0, 1e-8), (1000, 3.0, 0.1, 1e-3), (5_000_000, 1.0, 0.01, 1e-8)]
    {
        let p = AdamWParameters { step, gradient_factor, weight_decay, epsilon, ..PARAMETERS };
        for len in [0, 1, 15, 16, 17, 8192, 8200, 20_001] {
            let mut random = Random(len as u64 + step);
            let [parameters, gradients, first] = [(); 3].map(|()| random.values(len));
            let second: Vec<f32> = random.values(len).into_iter().map(|x| x * x).collect();
            let all = [&parameters, &gradients, &first, &second].map(|values| given(1, len, values));
            let name = format!("adamw step {step} len {len}");
            let found = run_everywhere(&name, &all, |ops, t| ops.adamw(t[0], t[1], t[2], t[3], &p));
            assert_eq!(found[1], gradients, "{name}: gradients");
            let all = [&parameters, &gradients, &first, &second].map(|x| to_f64(x));
            let expected: Vec<(f64, f64, f64)> =
                (0..len).map(|i| reference::update(all[0][i], all[1][i], all[2][i], all[3][i], &p)).collect();
            let epsilon = f64::from(f32::EPSILON);
            let column = |f: fn(&(f64, f64, f64)) -> f64| expected.iter().map(f).collect::<Vec<f64>>();
            let (moved, m, v) = (column(|e| e.0), column(|e| e.1), column(|e| e.2));
            // The step keeps 8 epsilon of its own size; the first moment may cancel, so its error is that of its terms.
            assert_close(&format!("{name} first"), &found[2], &m, |_| 4.0 * epsilon);
            assert_close(&format!("{name} second"), &found[3], &v, |i| 4.0 * epsilon * v[i].abs() + 1e-30);
            assert_close(&format!("{name} parameters"), &found[0], &moved, |i| {
                let root = (v[i] / (1.0 - f64::from(p.beta2).powf(step as f64))).sqrt() + f64::from(p.epsilon);
                let unbias = 1.0 - f64::from(p.beta1).powf(step as f64);
                let step_size = f64::from(p.learning_rate) / unbias / root;
                2.0 * epsilon * moved[i].abs() + epsilon * step_size * 12.0 * (m[i].abs() + 1.0)
            });
        }
    }
}

#[test]
fn the_first_step_moves_each_parameter_by_the_learning_rate() {
    // With zero moments, m / sqrt(v) is the sign of the gradient after the bias correction.
    let p = AdamWParameters { weight_decay: 0.0, ..PARAMETERS };
    let gradients: Vec<f32> = Random(4).values(40).into_iter().map(|x| x + 0.01 * x.signum()).collect();
    let tensors =
        [given(1, 40, &[0.0; 40]), given(1, 40, &gradients), given(1, 40, &[0.0; 40]), given(1, 40, &[0.0; 40])];
    let found = run_everywhere("first step", &tensors, |ops, t| ops.adamw(t[0], t[1], t[2], t[3], &p));
    for (moved, gradient) in found[0].iter().zip(&gradients) {
        assert!((moved + p.learning_rate * gradient.signum()).abs() < 1e-6 * p.learning_rate.abs() + 3e-8, "{moved}");
    }
}

#[test]
fn a_nan_gradient_is_not_hidden() {
    let mut gradients = [0.5; 20];
    gradients[18] = f32::NAN;
    let ones = given(1, 20, &[1.0; 20]);
    let tensors = [given(1, 20, &[1.0; 20]), given(1, 20, &gradients), ones, given(1, 20, &[1.0; 20])];
    let found = run_everywhere("nan", &tensors, |ops, t| ops.adamw(t[0], t[1], t[2], t[3], &PARAMETERS));
    for values in [&found[0], &found[2], &found[3]] {
        assert!(values.iter().enumerate().all(|(i, x)| x.is_nan() == (i == 18)));
    }
}

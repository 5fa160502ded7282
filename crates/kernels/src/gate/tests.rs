use super::{Activation, reference};
use crate::testing::*;

const ACTIVATIONS: [Activation; 2] = [Activation::Silu, Activation::GeluTanh];

#[test]
fn both_directions_equal_the_reference() {
    for activation in ACTIVATIONS {
        // Around one vector and one task (8192 floats).
        for (rows, columns) in [(0, 4), (1, 1), (3, 5), (1, 16), (1, 17), (5, 63), (2, 4096), (3, 2731)] {
            let mut random = Random(columns as u64);
            let gate: Vec<f32> = random.values(rows * columns).into_iter().map(|x| x * 12.0).collect();
            let [up, dout] = [(); 2].map(|()| random.values(rows * columns));
            let name = format!("{activation:?} [{rows}, {columns}]");
            let copies = |values: &[f32]| given(rows, columns, values);
            let tensors = [
                copies(&gate),
                copies(&up),
                output(rows, columns),
                copies(&dout),
                output(rows, columns),
                output(rows, columns),
                // In place: out over up; dgate over gate and dup over dout.
                copies(&up),
                copies(&gate),
                copies(&dout),
            ];
            let found = run_everywhere(&name, &tensors, |ops, t| {
                ops.gate_forward(activation, t[0], t[1], t[2]);
                ops.gate_backward(activation, t[0], t[1], t[3], t[4], t[5]);
                ops.gate_forward(activation, t[0], t[6], t[6]);
                ops.gate_backward(activation, t[7], t[1], t[8], t[7], t[8]);
            });
            assert_eq!(found[2], found[6], "{name}: forward in place");
            assert_eq!((&found[4], &found[5]), (&found[7], &found[8]), "{name}: backward in place");
            let [gate, up, dout] = [&gate, &up, &dout].map(|x| to_f64(x));
            let out: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| reference::forward(activation, *g, *u)).collect();
            let both: Vec<(f64, f64)> =
                (0..out.len()).map(|i| reference::backward(activation, gate[i], up[i], dout[i])).collect();
            let (dgate, dup): (Vec<f64>, Vec<f64>) = both.into_iter().unzip();
            // An argument of exp rounds by epsilon of its size (below 160 here), where sigmoid is far below one; the
            // derivative of the argument is below 20.
            let bound = f64::from(f32::EPSILON) * 16.0;
            assert_close(&format!("{name} out"), &found[2], &out, |i| bound * (out[i].abs() + 1e-3));
            assert_close(&format!("{name} dgate"), &found[4], &dgate, |_| bound * 2.0);
            assert_close(&format!("{name} dup"), &found[5], &dup, |i| bound * (dup[i].abs() + 1e-3));
        }
    }
}

#[test]
fn the_reference_backward_is_the_gradient_of_the_reference_forward() {
    for activation in ACTIVATIONS {
        for gate in [-3.0, -0.7, 0.0, 0.4, 2.5] {
            let (dgate, dup) = reference::backward(activation, gate, 0.8, 1.0);
            assert_gradient("gate and up", &[gate, 0.8], &[dgate, dup], |x| reference::forward(activation, x[0], x[1]));
        }
    }
}

#[test]
fn extreme_values_saturate_and_nan_is_kept() {
    let gate = [1e30, -1e30, 100.0, -100.0, f32::NAN, 0.0, -0.0, 1e-30];
    for activation in ACTIVATIONS {
        let tensors = [given(1, 8, &gate), given(1, 8, &[1.0; 8]), output(1, 8), output(1, 8), output(1, 8)];
        let found = run_everywhere("extremes", &tensors, |ops, t| {
            ops.gate_forward(activation, t[0], t[1], t[2]);
            ops.gate_backward(activation, t[0], t[1], t[1], t[3], t[4]);
        });
        assert_eq!(found[2][..4], [1e30, 0.0, 100.0, 0.0], "{activation:?}");
        assert_eq!(found[3][..4], [1.0, 0.0, 1.0, 0.0], "{activation:?} dgate");
        assert!(found[2..].iter().all(|values| values[4].is_nan()), "{activation:?}");
        assert_eq!(found[3][5], 0.5, "{activation:?} dgate at zero");
    }
}

use super::kept::GROUP;
use super::{Activation, GateValues, KeptGates, reference};
use crate::arena::Tensor;
use crate::testing::*;

const ACTIVATIONS: [Activation; 2] = [Activation::Silu, Activation::GeluTanh];

fn floats(gate: Tensor, up: Tensor) -> GateValues {
    GateValues::Float32 { gate, up }
}

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
                ops.gate_backward(activation, floats(t[0], t[1]), t[3], t[4], t[5]);
                ops.gate_forward(activation, t[0], t[6], t[6]);
                ops.gate_backward(activation, floats(t[7], t[1]), t[8], t[7], t[8]);
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
            ops.gate_backward(activation, floats(t[0], t[1]), t[1], t[3], t[4]);
        });
        assert_eq!(found[2][..4], [1e30, 0.0, 100.0, 0.0], "{activation:?}");
        assert_eq!(found[3][..4], [1.0, 0.0, 1.0, 0.0], "{activation:?} dgate");
        assert!(found[2..].iter().all(|values| values[4].is_nan()), "{activation:?}");
        assert_eq!(found[3][5], 0.5, "{activation:?} dgate at zero");
    }
}

/// Around one vector, one group, one task (8192 floats), and rows that are no multiple of a group.
const KEPT_SHAPES: [(usize, usize); 11] =
    [(0, 4), (1, 1), (3, 5), (1, 16), (2, 17), (5, 63), (3, 64), (3, 65), (2, 200), (9, 1000), (2, 9000)];

/// Tensors of the kept form: integers and scales.
fn kept_outputs(rows: usize, columns: usize) -> [Given; 2] {
    let groups = columns.div_ceil(GROUP);
    [output(rows, groups * GROUP), output(rows, groups * 2)]
}

/// What the kept form holds of one value, read from its bits, and its scale.
fn kept_value(integers: &[f32], scales: &[f32], columns: usize, up: usize, row: usize, column: usize) -> (f64, f64) {
    let (groups, group, within) = (columns.div_ceil(64), column / 64, column % 64);
    let word = row * groups * 64 + group * 64 + up * 32 + within / 32 * 16 + within % 16;
    let bits = integers[word].to_bits() >> if within % 32 < 16 { 0 } else { 16 };
    let scale = f64::from(scales[row * groups * 2 + group * 2 + up]);
    (f64::from(bits as u16 as i16) * scale, scale)
}

#[test]
fn the_kept_form_serves_both_directions() {
    for activation in ACTIVATIONS {
        for (rows, columns) in KEPT_SHAPES {
            let mut random = Random(columns as u64);
            // Groups of different sizes, and one row of nothing but tiny values.
            let magnitude = |i: usize| match i / columns {
                1 => 1e-31,
                row => 2f32.powi((row * 7 + i % columns / GROUP * 3) as i32 % 9 - 4),
            };
            let values = random.values(rows * columns).into_iter().enumerate();
            let gate: Vec<f32> = values.map(|(i, x)| x * magnitude(i) * 8.0).collect();
            let [up, dout] = [(); 2].map(|()| random.values(rows * columns));
            let name = format!("kept {activation:?} [{rows}, {columns}]");
            let copies = |values: &[f32]| given(rows, columns, values);
            let outputs = || output(rows, columns);
            let mut tensors = vec![copies(&gate), copies(&up), copies(&dout)];
            tensors.extend(kept_outputs(rows, columns));
            // out, out kept, out again twice; gradients twice; in place: gate, up and dout.
            tensors.extend((0..8).map(|_| outputs()));
            tensors.extend([copies(&gate), copies(&up), copies(&dout)]);
            let found = run_everywhere(&name, &tensors, |ops, t| {
                let kept = KeptGates { integers: t[3], scales: t[4] };
                let rounded = GateValues::Rounded { gate: t[0], up: t[1] };
                ops.gate_forward(activation, t[0], t[1], t[5]);
                ops.gate_forward_keeping(activation, t[0], t[1], t[6], kept);
                ops.gate_again(activation, GateValues::Kept(kept), t[7]);
                ops.gate_again(activation, rounded, t[8]);
                ops.gate_backward(activation, GateValues::Kept(kept), t[2], t[9], t[10]);
                ops.gate_backward(activation, rounded, t[2], t[11], t[12]);
                let in_place = GateValues::Rounded { gate: t[13], up: t[14] };
                ops.gate_backward(activation, in_place, t[15], t[13], t[15]);
            });
            assert_eq!(found[5], found[6], "{name}: keeping changes the output");
            assert_eq!(found[7], found[8], "{name}: rounded gives other bits than kept");
            let gradients = (&found[9], &found[10]);
            assert_eq!(gradients, (&found[11], &found[12]), "{name}: rounded gives other gradients than kept");
            assert_eq!(gradients, (&found[13], &found[15]), "{name}: in place");

            let (mut out, mut dgate, mut dup) = (Vec::new(), Vec::new(), Vec::new());
            for (i, dout) in to_f64(&dout).into_iter().enumerate() {
                let [gate, up] = [(0, &gate), (1, &up)].map(|(which, values)| {
                    let (row, column) = (i / columns, i % columns);
                    let (kept, scale) = kept_value(&found[3], &found[4], columns, which, row, column);
                    let group = row * columns + column / 64 * 64..row * columns + columns.min(column / 64 * 64 + 64);
                    let largest = values[group].iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
                    let step = if largest < 1e-30 { 0.0 } else { largest / 32639.0 };
                    assert!((scale - step).abs() <= 2e-7 * step, "{name}: scale {scale:e} is not {step:e}");
                    // The nearest step, but for the rounding of the quotient, which is below 2^15.
                    let error = (kept - f64::from(values[i])).abs();
                    let bound = if step == 0.0 { 1e-30 } else { step * (0.5 + 0.01) };
                    assert!(error <= bound, "{name}: {} kept as {kept}, step {step:e}", values[i]);
                    kept
                });
                out.push(reference::forward(activation, gate, up));
                let (to_gate, to_up) = reference::backward(activation, gate, up, dout);
                dgate.push(to_gate);
                dup.push(to_up);
            }
            // As in the test of values that are not rounded; arguments are up to 128 here.
            let bound = f64::from(f32::EPSILON) * 16.0;
            assert_close(&format!("{name} out"), &found[7], &out, |i| bound * (out[i].abs() + 1e-3));
            assert_close(&format!("{name} dgate"), &found[9], &dgate, |_| bound * 2.0);
            assert_close(&format!("{name} dup"), &found[10], &dup, |i| bound * (dup[i].abs() + 1e-3));
        }
    }
}

#[test]
fn what_is_not_finite_poisons_its_group_and_nothing_else() {
    let (rows, columns) = (3, 150);
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        // In gate or up of row 1: first group, middle one, and the short last one.
        for (poisoned_up, column) in [(false, 5), (true, 64), (false, 149)] {
            let mut random = Random(column as u64);
            let [mut gate, mut up, dout] = [(); 3].map(|()| random.values(rows * columns));
            let values = if poisoned_up { &mut up } else { &mut gate };
            values[columns + column] = poison;
            let mut tensors = vec![given(rows, columns, &gate), given(rows, columns, &up), given(rows, columns, &dout)];
            tensors.extend(kept_outputs(rows, columns));
            tensors.extend((0..5).map(|_| output(rows, columns)));
            let name = format!("{poison} at {column}");
            let found = run_everywhere(&name, &tensors, |ops, t| {
                let kept = KeptGates { integers: t[3], scales: t[4] };
                let activation = Activation::Silu;
                ops.gate_forward_keeping(activation, t[0], t[1], t[5], kept);
                ops.gate_backward(activation, GateValues::Kept(kept), t[2], t[6], t[7]);
                ops.gate_backward(activation, GateValues::Rounded { gate: t[0], up: t[1] }, t[2], t[8], t[9]);
            });
            for (dgate, dup) in [(&found[6], &found[7]), (&found[8], &found[9])] {
                for (i, (dgate, dup)) in dgate.iter().zip(dup).enumerate() {
                    let in_group = i / columns == 1 && i % columns / GROUP == column / GROUP;
                    // The gradient of up does not read up.
                    let expected = (in_group, in_group && !poisoned_up);
                    assert_eq!((dgate.is_nan(), dup.is_nan()), expected, "{name}: element {i}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "shape of kept integers")]
fn a_kept_form_of_another_shape_is_refused() {
    let tensors = [output(2, 65), output(2, 64), output(2, 4)];
    run_everywhere("shape", &tensors, |ops, t| {
        let kept = KeptGates { integers: t[1], scales: t[2] };
        ops.gate_again(Activation::Silu, GateValues::Kept(kept), t[0]);
    });
}

use crate::arena::FloatVector;
use crate::testing::*;

/// Around one vector and one task of 8192 floats.
const SHAPES: [(usize, usize); 9] =
    [(0, 3), (1, 1), (3, 5), (1, 16), (1, 17), (7, 63), (2, 4096), (1, 8193), (3, 9000)];

#[test]
fn whole_tensor_ops_equal_their_definitions() {
    for (rows, columns) in SHAPES {
        let mut random = Random(columns as u64);
        let [x, y] = [(); 2].map(|()| random.values(rows * columns));
        let bias = random.values(columns);
        let vector = FloatVector::from_slice(&bias);
        let name = format!("elementwise [{rows}, {columns}]");
        let copies = |values: &[f32]| given(rows, columns, values);
        let tensors =
            [copies(&x), output(rows, columns), output(rows, columns), copies(&y), copies(&y), copies(&y), copies(&y)];
        let found = run_everywhere(&name, &tensors, |ops, t| {
            ops.copy(t[0], t[1]);
            ops.fill(t[2], -2.5);
            ops.add(t[0], t[3]);
            ops.add(t[4], t[4]);
            ops.scale(t[5], 0.3);
            ops.add_bias(t[6], &vector);
        });
        assert_eq!(found[0], x, "{name}: the input");
        assert_eq!(found[1], x, "{name}: copy");
        assert!(found[2].iter().all(|x| *x == -2.5), "{name}: fill");
        for i in 0..x.len() {
            // One rounding each: the very bits.
            assert_eq!(found[3][i], x[i] + y[i], "{name}: add at {i}");
            assert_eq!(found[4][i], y[i] + y[i], "{name}: add to itself at {i}");
            assert_eq!(found[5][i], y[i] * 0.3, "{name}: scale at {i}");
            assert_eq!(found[6][i], y[i] + bias[i % columns], "{name}: add_bias at {i}");
        }
    }
}

#[test]
fn rows_are_gathered_and_scattered() {
    for columns in [1, 17, 64] {
        let x = Random(1).values(6 * columns);
        let rows = [1u32, 2, 5];
        let y = Random(2).values(3 * columns);
        let tensors = [given(6, columns, &x), output(3, columns), given(3, columns, &y), output(6, columns)];
        let found = run_everywhere("gather and scatter", &tensors, |ops, t| {
            ops.gather_rows(t[0], &rows, t[1]);
            ops.scatter_rows(t[2], &rows, t[3]);
        });
        for (i, row) in rows.iter().enumerate() {
            let (row, i) = (*row as usize * columns, i * columns);
            assert_eq!(found[1][i..i + columns], x[row..row + columns]);
            assert_eq!(found[3][row..row + columns], y[i..i + columns]);
        }
        for row in [0, 3, 4] {
            assert!(found[3][row * columns..(row + 1) * columns].iter().all(|x| *x == 0.0));
        }
    }
    // None at all.
    let tensors = [given(2, 3, &[1.0; 6]), output(0, 3), output(0, 3), output(2, 3)];
    let found = run_everywhere("no rows", &tensors, |ops, t| {
        ops.gather_rows(t[0], &[], t[1]);
        ops.scatter_rows(t[2], &[], t[3]);
    });
    assert_eq!(found[3], [0.0; 6]);
}

#[test]
#[should_panic(expected = "strictly increasing")]
fn a_row_is_not_scattered_to_twice() {
    let tensors = [given(2, 3, &[1.0; 6]), output(4, 3)];
    run_everywhere("scatter", &tensors, |ops, t| ops.scatter_rows(t[0], &[1, 1], t[1]));
}

#[test]
#[should_panic(expected = "to overlaps from")]
fn overlapping_outputs_are_refused() {
    let tensors = [given(3, 2, &[1.0; 6])];
    run_everywhere("copy", &tensors, |ops, t| ops.copy(t[0].row_range(0..2), t[0].row_range(1..3)));
}

#[test]
fn sums_of_squares_and_finiteness() {
    // Around one part of 4096 floats.
    for len in [0, 1, 7, 8, 9, 4095, 4096, 4097, 20_000] {
        let x = Random(len as u64).values(len);
        let exact: f64 = to_f64(&x).iter().map(|x| x * x).sum();
        // The result goes through a tensor, as two halves of its bits, so that runs are compared.
        let tensors = [given(1, len, &x), output(1, 4)];
        let found = run_everywhere(&format!("sum_of_squares {len}"), &tensors, |ops, t| {
            let sum = ops.sum_of_squares(t[0]);
            if !ops.is_planning() {
                assert!((sum - exact).abs() <= 1e-13 * exact, "{sum} is not {exact}");
            }
            let parts = [0, 16, 32, 48].map(|shift| (sum.to_bits() >> shift & 0xffff) as f32);
            ops.fill(t[1], 0.0);
            ops.write(t[1], &parts);
            assert!(ops.is_finite(t[0]));
        });
        assert_eq!(found[0], x);
        for (place, value) in [(0, f32::NAN), (len / 2, f32::INFINITY), (len.max(1) - 1, f32::NEG_INFINITY)] {
            if place >= len {
                continue;
            }
            let mut x = x.clone();
            x[place] = value;
            run_everywhere("is_finite", &[given(1, len, &x)], |ops, t| {
                assert_eq!(ops.is_finite(t[0]), ops.is_planning(), "{value} at {place} of {len}");
                ops.scale(t[0], 1.0);
            });
        }
    }
}

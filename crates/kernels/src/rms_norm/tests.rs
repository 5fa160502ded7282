use super::reference;
use crate::arena::FloatVector;
use crate::testing::*;

const EPS: f32 = 1e-5;

/// Around one vector, four vectors (the interleaved sums), and a task's rows; heads of a q norm are short rows.
const SHAPES: [(usize, usize); 14] = [
    (0, 8),
    (1, 1),
    (3, 2),
    (2, 15),
    (2, 16),
    (5, 17),
    (4, 63),
    (4, 64),
    (3, 65),
    (2, 127),
    (150, 128),
    (3, 576),
    (17, 1000),
    (2, 9001),
];

#[test]
fn both_directions_equal_the_reference() {
    for (rows, columns) in SHAPES {
        for size in [1.0, 1e-4, 1e4] {
            let mut random = Random((rows * columns) as u64);
            let x: Vec<f32> = random.values(rows * columns).into_iter().map(|x| x * size).collect();
            let [dy, before] = [(); 2].map(|()| random.values(rows * columns));
            let weight = random.values(columns);
            let vector = FloatVector::from_slice(&weight);
            let name = format!("rms_norm [{rows}, {columns}] size {size}");
            let tensors = [
                given(rows, columns, &x),
                output(rows, columns),
                given(rows, columns, &x),
                given(rows, columns, &dy),
                output(rows, columns),
                given(rows, columns, &before),
                given(rows, columns, &dy),
            ];
            let found = run_everywhere(&name, &tensors, |ops, t| {
                ops.rms_norm_forward(t[0], &vector, EPS, t[1]);
                ops.rms_norm_forward(t[2], &vector, EPS, t[2]);
                ops.rms_norm_backward(t[0], &vector, EPS, t[3], t[4], false);
                ops.rms_norm_backward(t[0], &vector, EPS, t[3], t[5], true);
                ops.rms_norm_backward(t[0], &vector, EPS, t[6], t[6], false);
            });
            assert_eq!(found[1], found[2], "{name}: in place");
            assert_eq!(found[4], found[6], "{name}: backward in place");
            let [x, dy, weight, before] = [&x, &dy, &weight, &before].map(|x| to_f64(x));
            // Sums of squares have 64 chains; a handful of roundings follow.
            let relative = f64::from(f32::EPSILON) * (6.0 + columns as f64 / 64.0);
            for row in 0..rows {
                let part = row * columns..(row + 1) * columns;
                let (x, dy) = (&x[part.clone()], &dy[part.clone()]);
                let y = reference::forward(x, &weight, f64::from(EPS));
                let dx = reference::backward(x, &weight, f64::from(EPS), dy);
                assert_close(&format!("{name} y"), &found[1][part.clone()], &y, |i| relative * y[i].abs() + 1e-12);
                // Both terms of dx are at most |dy| / root in norm.
                let root = (norm(x).powi(2) / columns as f64 + f64::from(EPS)).sqrt();
                let bound = relative * norm(dy) / root;
                assert_close(&format!("{name} dx"), &found[4][part.clone()], &dx, |_| bound);
                let sum: Vec<f64> = before[part.clone()].iter().zip(&dx).map(|(a, b)| a + b).collect();
                let rounding = f64::from(f32::EPSILON);
                assert_close(&format!("{name} dx added"), &found[5][part], &sum, |i| bound + rounding * sum[i].abs());
            }
        }
    }
}

#[test]
fn the_reference_backward_is_the_gradient_of_the_reference_forward() {
    let mut random = Random(2);
    let [x, weight, dy] = [(); 3].map(|()| to_f64(&random.values(7)));
    let dx = reference::backward(&x, &weight, 0.01, &dy);
    assert_gradient("dx", &x, &dx, |x| weighted_sum(&reference::forward(x, &weight, 0.01), &dy));
}

#[test]
fn a_zero_row_stays_zero_and_a_nan_poisons_its_row_only() {
    let mut x = vec![0.0f32; 3 * 40];
    x[45] = f32::NAN;
    x[100] = 2.0;
    let vector = FloatVector::from_slice(&[1.0; 40]);
    let tensors = [given(3, 40, &x), output(3, 40), given(3, 40, &[1.0; 120]), output(3, 40)];
    let found = run_everywhere("nan", &tensors, |ops, t| {
        ops.rms_norm_forward(t[0], &vector, EPS, t[1]);
        ops.rms_norm_backward(t[0], &vector, EPS, t[2], t[3], false);
    });
    for result in [&found[1], &found[3]] {
        assert!(result[..40].iter().all(|x| x.is_finite()) && result[80..].iter().all(|x| x.is_finite()));
        assert!(result[40..80].iter().all(|x| x.is_nan()));
    }
    assert!(found[1][..40].iter().all(|x| *x == 0.0));
}

use super::{RopeTable, reference};
use crate::testing::*;

fn inverse_frequencies(half: usize) -> Vec<f32> {
    (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect()
}

#[test]
fn both_directions_equal_the_reference() {
    for (heads, half) in [(1, 1), (2, 3), (3, 8), (1, 15), (2, 16), (4, 17), (2, 32), (1, 64), (2, 128)] {
        for positions in [vec![], vec![0, 1, 2], vec![7, 7, 8191, 100]] {
            for scaling in [1.0f32, 1.25] {
                let (rows, columns) = (positions.len(), 2 * heads * half);
                let inverse = inverse_frequencies(half);
                let table = RopeTable::new(&inverse, 8192, scaling);
                let x = Random(half as u64).values(rows * columns);
                let name = format!("rope {heads} heads of {} positions {positions:?}", 2 * half);
                let tensors = [given(rows, columns, &x), given(rows, columns, &x)];
                let found = run_everywhere(&name, &tensors, |ops, t| {
                    ops.rope_forward(t[0], &table, &positions);
                    ops.rope_backward(t[1], &table, &positions);
                });
                for (found, direction) in found.iter().zip([1.0, -1.0]) {
                    let expected: Vec<f64> = to_f64(&x)
                        .chunks(2 * half)
                        .enumerate()
                        .flat_map(|(i, head)| {
                            reference::turn(head, &inverse, positions[i / heads], f64::from(scaling), direction)
                        })
                        .collect();
                    // Factors, products and the sum each round once; values are below 1.
                    assert_close(&name, found, &expected, |_| 4.0 * f64::from(f32::EPSILON * scaling));
                }
            }
        }
    }
}

#[test]
fn the_backward_is_the_gradient_of_the_forward() {
    let inverse = inverse_frequencies(3);
    let mut random = Random(1);
    let [x, dy] = [(); 2].map(|()| to_f64(&random.values(6)));
    let dx = reference::turn(&dy, &inverse, 5, 1.5, -1.0);
    assert_gradient("dx", &x, &dx, |x| weighted_sum(&reference::turn(x, &inverse, 5, 1.5, 1.0), &dy));
}

#[test]
#[should_panic(expected = "a position is not below the table's 4")]
fn positions_beyond_the_table_are_refused() {
    let table = RopeTable::new(&inverse_frequencies(2), 4, 1.0);
    run_everywhere("rope", &[given(1, 4, &[0.0; 4])], |ops, t| ops.rope_forward(t[0], &table, &[4]));
}

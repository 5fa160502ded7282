use super::{AttentionShape, WholeAttention, reference};
use crate::testing::*;

pub(super) struct Case {
    pub(super) shape: AttentionShape,
    pub(super) positions: Vec<u32>,
    pub(super) keys: usize,
}

pub(super) fn case(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>, positions: Vec<u32>) -> Case {
    let keys = positions.last().map_or(3, |last| *last as usize + 1);
    let scale = 1.0 / (head_dim as f32).sqrt();
    Case { shape: AttentionShape { heads, kv_heads, head_dim, scale, window }, positions, keys }
}

fn all(queries: u32) -> Vec<u32> {
    (0..queries).collect()
}

/// Sizes round the tiles of keys (64) and rows (6), groups, windows shorter and longer than the example, head sizes
/// that fill no vector, positions with gaps and repetitions.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        case(2, 1, 64, None, all(65)),
        case(3, 1, 16, None, all(64)),
        case(4, 4, 8, None, all(63)),
        case(4, 2, 64, Some(20), all(130)),
        case(1, 1, 2, Some(1), all(9)),
        case(6, 2, 34, Some(1000), all(70)),
        case(2, 1, 256, None, all(7)),
        case(9, 3, 64, None, all(1)),
        case(5, 1, 6, Some(64), all(129)),
        case(2, 2, 128, None, vec![0, 5, 5, 17, 63, 64, 100, 101]),
        case(8, 2, 20, Some(33), vec![3, 90, 91, 92, 150]),
        case(4, 2, 64, None, vec![200]),
        case(4, 1, 10, Some(16), vec![127]),
        case(2, 1, 64, None, vec![]),
        // Several blocks of queries (192 rows) and of keys (128 backward).
        case(2, 2, 4, None, all(210)),
        case(2, 1, 4, Some(70), all(280)),
    ];
    // Keys that no query sees.
    cases[10].keys += 70;
    cases
}

pub(super) struct Inputs {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) dout: Vec<f32>,
}

pub(super) fn inputs(case: &Case, seed: u64, size: f32) -> Inputs {
    let mut random = Random(seed);
    let shape = &case.shape;
    let (q_len, k_len) =
        (case.positions.len() * shape.heads * shape.head_dim, case.keys * shape.kv_heads * shape.head_dim);
    let mut values = |len, size: f32| random.values(len).into_iter().map(|x| x * size).collect::<Vec<_>>();
    Inputs { q: values(q_len, size), k: values(k_len, size), v: values(k_len, 1.0), dout: values(q_len, 1.0) }
}

/// All tensors after forward and backward: q k v out lse dout dq dk dv.
pub(super) fn run(name: &str, case: &Case, inputs: &Inputs) -> Vec<Vec<f32>> {
    run_either(name, case, inputs, false)
}

/// The same through tiles or through whole matrices of scores.
fn run_either(name: &str, case: &Case, inputs: &Inputs, whole: bool) -> Vec<Vec<f32>> {
    let shape = case.shape;
    let (queries, q_columns, k_columns) =
        (case.positions.len(), shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let tensors = [
        given(queries, q_columns, &inputs.q),
        given(case.keys, k_columns, &inputs.k),
        given(case.keys, k_columns, &inputs.v),
        output(queries, q_columns),
        output(queries, shape.heads),
        given(queries, q_columns, &inputs.dout),
        output(queries, q_columns),
        output(case.keys, k_columns),
        output(case.keys, k_columns),
    ];
    run_everywhere(name, &tensors, |ops, t| {
        if whole {
            let tensors = WholeAttention { q: t[0], k: t[1], v: t[2], out: t[3], log_sum_exp: t[4] };
            ops.whole_attention_forward(&shape, &case.positions, &tensors);
            let gradients = [t[6], t[7], t[8]].map(Some);
            return ops.whole_attention_backward(&shape, &case.positions, &tensors, t[5], gradients);
        }
        ops.attention_forward(&shape, &case.positions, t[0], t[1], t[2], t[3], t[4]);
        let gradients = (Some(t[6]), Some(t[7]), Some(t[8]));
        ops.attention_backward(
            &shape,
            &case.positions,
            t[0],
            t[1],
            t[2],
            t[3],
            t[4],
            t[5],
            gradients.0,
            gradients.1,
            gradients.2,
        );
    })
}

#[test]
fn both_directions_equal_the_reference() {
    for (index, case) in cases().iter().enumerate() {
        for (size, whole) in [(1.0, false), (6.0, false), (1.0, true), (6.0, true)] {
            let name = format!("case {index} size {size}{}", if whole { " whole" } else { "" });
            let inputs = inputs(case, index as u64, size);
            let found = run_either(&name, case, &inputs, whole);
            let [q, k, v, dout] = [&inputs.q, &inputs.k, &inputs.v, &inputs.dout].map(|x| to_f64(x));
            let (out, lse) = reference::forward(&case.shape, &case.positions, &q, &k, &v);
            let (dq, dk, dv) = reference::backward(&case.shape, &case.positions, &q, &k, &v, &dout);
            // A score is a sum of head_dim products; its rounding error e multiplies a probability by 1 + e.
            let score = f64::from(size * size) * (case.shape.head_dim as f64).sqrt();
            let epsilon = f64::from(f32::EPSILON);
            let relative = epsilon * (8.0 + 2.0 * score);
            assert_close(&format!("{name} out"), &found[3], &out, |_| relative * 2.0);
            assert_close(&format!("{name} lse"), &found[4], &lse, |_| relative * 2.0 + epsilon * score);
            // Gradients of scores are at most 2 head_dim in size here; sums over rows grow as their number's root.
            let rows = (case.positions.len() * case.shape.heads) as f64;
            let dscore = 2.0 * case.shape.head_dim as f64;
            let gradient = relative * dscore * f64::from(size) * f64::from(case.shape.scale);
            assert_close(&format!("{name} dq"), &found[6], &dq, |_| gradient * 2.0);
            assert_close(&format!("{name} dk"), &found[7], &dk, |_| gradient * 2.0 * rows.sqrt().max(1.0));
            assert_close(&format!("{name} dv"), &found[8], &dv, |_| relative * 2.0 * rows.sqrt().max(1.0));
        }
    }
}

#[test]
fn the_reference_backward_is_the_gradient_of_the_reference_forward() {
    for (index, case) in
        [case(4, 2, 4, None, all(5)), case(2, 1, 2, Some(3), all(7)), case(3, 3, 2, Some(2), vec![1, 4, 4])]
            .iter()
            .enumerate()
    {
        let inputs = inputs(case, 90 + index as u64, 1.0);
        let [q, k, v, dout] = [&inputs.q, &inputs.k, &inputs.v, &inputs.dout].map(|x| to_f64(x));
        let loss = |q: &[f64], k: &[f64], v: &[f64]| {
            weighted_sum(&reference::forward(&case.shape, &case.positions, q, k, v).0, &dout)
        };
        let (dq, dk, dv) = reference::backward(&case.shape, &case.positions, &q, &k, &v, &dout);
        assert_gradient("dq", &q, &dq, |q| loss(q, &k, &v));
        assert_gradient("dk", &k, &dk, |k| loss(&q, k, &v));
        assert_gradient("dv", &v, &dv, |v| loss(&q, &k, v));
    }
}

#[test]
fn gradients_that_are_not_wanted_change_nothing_else() {
    let case = case(4, 2, 20, Some(50), all(80));
    let inputs = inputs(&case, 7, 1.0);
    let full = run("all gradients", &case, &inputs);
    let shape = case.shape;
    for wanted in 0..8 {
        let tensors: Vec<Given> = full
            .iter()
            .enumerate()
            .map(|(i, values)| {
                let columns = [80, 40, 40, 80, 4, 80, 80, 40, 40][i];
                if i < 6 { given(80, columns, values) } else { output(values.len() / columns, columns) }
            })
            .collect();
        let mut macs = 0;
        let found = std::cell::RefCell::new(&mut macs);
        let after = run_everywhere(&format!("wanted {wanted:03b}"), &tensors, |ops, t| {
            let want = |bit: usize| (wanted >> bit & 1 == 1).then_some(t[6 + bit]);
            ops.attention_backward(
                &shape,
                &case.positions,
                t[0],
                t[1],
                t[2],
                t[3],
                t[4],
                t[5],
                want(0),
                want(1),
                want(2),
            );
            ops.scale(t[4], 1.0);
            **found.borrow_mut() = ops.counters().attention_macs;
        });
        for bit in 0..3 {
            if wanted >> bit & 1 == 1 {
                assert_eq!(after[6 + bit], full[6 + bit], "gradient {bit} with {wanted:03b} wanted");
            } else {
                assert!(after[6 + bit].iter().all(|x| x.is_nan()), "gradient {bit} was written");
            }
        }
        let pairs: u64 = (0..80).map(|position: u64| (position + 1).min(50)).sum();
        let products = [0, 3, 3, 4, 2, 4, 4, 5][wanted];
        assert_eq!(macs, products * pairs * 4 * 20, "multiply-adds with {wanted:03b} wanted");
    }
}

#[test]
fn a_row_computed_alone_has_the_bits_it_has_among_others() {
    let case = case(6, 2, 64, Some(90), all(150));
    let inputs = inputs(&case, 3, 2.0);
    let full = run("all rows", &case, &inputs);
    for row in [0, 63, 64, 149] {
        let alone = Case { shape: case.shape, positions: vec![row as u32], keys: case.keys };
        let columns = 6 * 64;
        let part = row * columns..(row + 1) * columns;
        let one = Inputs {
            q: inputs.q[part.clone()].to_vec(),
            k: inputs.k.clone(),
            v: inputs.v.clone(),
            dout: inputs.dout[part.clone()].to_vec(),
        };
        let found = run("one row", &alone, &one);
        assert_eq!(found[3], full[3][part], "row {row}");
        assert_eq!(found[4], full[4][row * 6..(row + 1) * 6], "row {row}");
    }
}

#[test]
fn huge_scores_stay_finite_and_nan_is_not_hidden() {
    let case = case(2, 1, 16, None, all(70));
    let mut inputs = inputs(&case, 5, 300.0);
    let found = run("huge", &case, &inputs);
    assert!(found.iter().flatten().all(|x| x.is_finite()));
    // A NaN in one query poisons its own row and the keys' gradients, and no other output.
    inputs.q[40 * 32] = f32::NAN;
    let found = run("nan", &case, &inputs);
    for row in 0..70 {
        let nan = found[3][row * 32..row * 32 + 16].iter().all(|x| x.is_nan());
        assert_eq!(nan, row == 40, "row {row}");
    }
    assert!(found[4][40 * 2].is_nan() && found[8][0].is_nan());
}

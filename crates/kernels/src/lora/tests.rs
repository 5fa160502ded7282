use super::{Dropout, LoraBackward, LoraForward, reference};
use crate::arena::Tensor;
use crate::testing::*;

struct Case {
    tokens: usize,
    k: usize,
    n: usize,
    rank: usize,
    rate: f32,
}

/// Sizes round the tiles (6 tokens, 4 or 2 ranks, 16 columns), the pieces (192, 512 and 1024 columns), the blocks (32
/// tokens) and the parts (8 of up to 512 tokens, one block each up to 256, then 16 at most).
const CASES: [Case; 19] = [
    Case { tokens: 1, k: 1, n: 1, rank: 1, rate: 0.0 },
    Case { tokens: 0, k: 16, n: 16, rank: 4, rate: 0.0 },
    Case { tokens: 5, k: 15, n: 17, rank: 3, rate: 0.0 },
    Case { tokens: 6, k: 16, n: 16, rank: 4, rate: 0.5 },
    Case { tokens: 7, k: 17, n: 33, rank: 5, rate: 0.25 },
    Case { tokens: 24, k: 64, n: 63, rank: 8, rate: 0.0 },
    Case { tokens: 25, k: 129, n: 128, rank: 16, rate: 0.1 },
    Case { tokens: 65, k: 65, n: 130, rank: 17, rate: 0.0 },
    Case { tokens: 130, k: 48, n: 40, rank: 2, rate: 0.0 },
    Case { tokens: 3, k: 1025, n: 20, rank: 6, rate: 0.0 },
    Case { tokens: 2, k: 1500, n: 600, rank: 9, rate: 0.3 },
    Case { tokens: 1, k: 520, n: 1030, rank: 8, rate: 0.0 },
    Case { tokens: 9, k: 40, n: 24, rank: 64, rate: 0.05 },
    Case { tokens: 4, k: 20, n: 30, rank: 70, rate: 0.0 },
    Case { tokens: 270, k: 40, n: 36, rank: 3, rate: 0.2 },
    Case { tokens: 140, k: 1030, n: 20, rank: 2, rate: 0.0 },
    Case { tokens: 33, k: 193, n: 385, rank: 8, rate: 0.1 },
    Case { tokens: 513, k: 32, n: 24, rank: 8, rate: 0.0 },
    Case { tokens: 1100, k: 20, n: 33, rank: 5, rate: 0.05 },
];

const SCALE: f32 = 1.75;

/// The tensors of the cases: x, a, b, hidden, y, dy, da, db, dx.
fn forward_part(t: &[Tensor], scale: f32, dropout: Dropout) -> LoraForward {
    LoraForward { a: t[1], b: t[2], scale, dropout, hidden: t[3], y: t[4] }
}

fn backward_part(t: &[Tensor], dropout: Dropout) -> LoraBackward {
    LoraBackward { a: t[1], b: t[2], scale: SCALE, dropout, hidden: t[3], dy: t[5], da: t[6], db: t[7] }
}

fn mask(dropout: Dropout, count: usize) -> Vec<f64> {
    let factor = |i| dropout.mask().map_or(1.0, |mask| f64::from(mask.factor(i as u32)));
    (0..count).map(factor).collect()
}

#[test]
fn both_directions_equal_the_reference() {
    for (index, case) in CASES.iter().enumerate() {
        let Case { tokens, k, n, rank, rate } = *case;
        let dropout = Dropout { rate, seed: 11 + index as u64 };
        let mut random = Random(index as u64);
        let mut values = |rows: usize, columns: usize| random.values(rows * columns);
        let [x, a, b] = [values(tokens, k), values(rank, k), values(n, rank)];
        let [y, dy, da, db, dx] =
            [values(tokens, n), values(tokens, n), values(rank, k), values(n, rank), values(tokens, k)];
        let tensors = [
            given(tokens, k, &x),
            given(rank, k, &a),
            given(n, rank, &b),
            output(tokens, rank),
            given(tokens, n, &y),
            given(tokens, n, &dy),
            given(rank, k, &da),
            given(n, rank, &db),
            given(tokens, k, &dx),
        ];
        let name = format!("lora T {tokens} K {k} N {n} r {rank} rate {rate}");
        let found = run_everywhere(&name, &tensors, |ops, t| {
            ops.lora_forward(t[0], &[Some(forward_part(t, SCALE, dropout))]);
            ops.lora_backward(t[0], &[Some(backward_part(t, dropout))], Some(t[8]));
            assert_eq!(ops.counters().adapter_macs, (3 * tokens * rank * (k + n)) as u64);
        });
        let sizes = reference::Sizes { tokens, k, n, rank };
        let [x, a, b, y, dy, da, db, dx] = [&x, &a, &b, &y, &dy, &da, &db, &dx].map(|x| to_f64(x));
        let (mask, scale) = (mask(dropout, tokens * k), f64::from(SCALE));
        let (hidden, added) = reference::forward(&sizes, &x, &a, &b, scale, &mask);
        let add = |before: &[f64], added: &[f64]| before.iter().zip(added).map(|(a, b)| a + b).collect::<Vec<_>>();
        let (added_a, added_b, added_x) = reference::backward(&sizes, &x, &a, &b, scale, &mask, &dy);
        // Values are below 1 (kept ones below 1 / (1 - rate)): a sum of c products has an error of about
        // epsilon * c at most, and what is multiplied afterwards scales it.
        let epsilon = f64::from(f32::EPSILON);
        let (k, n, rank, tokens) = (k as f64, n as f64, rank as f64, tokens as f64);
        let kept = 1.0 / (1.0 - f64::from(rate));
        let forward = epsilon * (k + 2.0) * kept;
        assert_close(&format!("{name} hidden"), &found[3], &hidden, |_| forward);
        assert_close(&format!("{name} y"), &found[4], &add(&y, &added), |_| forward * scale * (rank + 2.0) + epsilon);
        let dhidden = epsilon * (n + 2.0) * scale;
        assert_close(&format!("{name} da"), &found[6], &add(&da, &added_a), |_| dhidden * kept * (tokens + 2.0));
        assert_close(&format!("{name} db"), &found[7], &add(&db, &added_b), |_| {
            forward * scale * (tokens + 2.0) + epsilon
        });
        assert_close(&format!("{name} dx"), &found[8], &add(&dx, &added_x), |_| {
            dhidden * kept * (rank + 2.0) + epsilon
        });
        // Without dx, everything else is the same and dx stays.
        let without = run_everywhere(&name, &tensors, |ops, t| {
            ops.lora_forward(t[0], &[Some(forward_part(t, SCALE, dropout))]);
            ops.lora_backward(t[0], &[None, Some(backward_part(t, dropout))], None);
        });
        assert_eq!(without[..8], found[..8]);
        assert_eq!(without[8], tensors[8].values);
        // Of an adapter that does not learn only dx is computed, to the same bits where nothing is dropped.
        if rate == 0.0 {
            let frozen = run_everywhere(&name, &tensors, |ops, t| {
                ops.lora_input_grad(t[1], t[2], SCALE, t[5], t[8]);
                let [tokens, rank, k, n] = [t[8].rows(), t[1].rows(), t[8].columns(), t[2].rows()];
                assert_eq!(ops.counters().adapter_macs, (tokens * rank * (k + n)) as u64);
            });
            assert_eq!(frozen[8], found[8]);
            assert_eq!(frozen[6..8], [tensors[6].values.clone(), tensors[7].values.clone()]);
        }
    }
}

#[test]
fn adapters_of_one_input_give_together_what_they_give_alone() {
    let (tokens, k) = (150, 80);
    let sizes = [(48, 8, 0.0), (33, 3, 0.25), (130, 16, 0.0)];
    let mut random = Random(9);
    let mut tensors = vec![given(tokens, k, &random.values(tokens * k)), given(tokens, k, &random.values(tokens * k))];
    for (n, rank, _) in sizes {
        let mut values = |rows: usize, columns: usize| given(rows, columns, &random.values(rows * columns));
        tensors.extend([values(rank, k), values(n, rank), values(tokens, n), values(tokens, n)]);
        tensors.extend([values(rank, k), values(n, rank), output(tokens, rank)]);
    }
    let parts = |t: &[Tensor]| {
        std::array::from_fn::<_, 3, _>(|index| {
            let [a, b, y, dy, da, db, hidden] = t[2 + 7 * index..9 + 7 * index].try_into().expect("seven");
            let (scale, dropout) = (SCALE, Dropout { rate: sizes[index].2, seed: index as u64 });
            let forward = LoraForward { a, b, scale, dropout, hidden, y };
            (Some(forward), Some(LoraBackward { a, b, scale, dropout, hidden, dy, da, db }))
        })
    };
    let together = run_everywhere("adapters together", &tensors, |ops, t| {
        ops.lora_forward(t[0], &parts(t).map(|(forward, _)| forward));
        ops.lora_backward(t[0], &parts(t).map(|(_, backward)| backward), Some(t[1]));
    });
    let alone = run_everywhere("adapters alone", &tensors, |ops, t| {
        for (forward, backward) in parts(t) {
            ops.lora_forward(t[0], &[forward]);
            ops.lora_backward(t[0], &[backward], Some(t[1]));
        }
    });
    assert_eq!(together, alone);
}

#[test]
fn the_reference_backward_is_the_gradient_of_the_reference_forward() {
    let sizes = reference::Sizes { tokens: 3, k: 4, n: 5, rank: 2 };
    let mut random = Random(5);
    let [x, a, b, dy] = [12, 8, 10, 15].map(|len| to_f64(&random.values(len)));
    let mask = mask(Dropout { rate: 0.3, seed: 1 }, 12);
    let loss = |x: &[f64], a: &[f64], b: &[f64]| weighted_sum(&reference::forward(&sizes, x, a, b, 1.5, &mask).1, &dy);
    let (da, db, dx) = reference::backward(&sizes, &x, &a, &b, 1.5, &mask, &dy);
    assert_gradient("da", &a, &da, |a| loss(&x, a, &b));
    assert_gradient("db", &b, &db, |b| loss(&x, &a, b));
    assert_gradient("dx", &x, &dx, |x| loss(x, &a, &b));
}

#[test]
fn dropout_masks_have_the_right_rate_and_differ_by_seed() {
    let count = 1 << 16;
    for rate in [0.05f32, 0.5] {
        let masks: Vec<Vec<f64>> = [0, 1, 2, 1 << 32].map(|seed| mask(Dropout { rate, seed }, count)).to_vec();
        let rate = f64::from(rate);
        let deviation = (rate * (1.0 - rate) * count as f64).sqrt();
        for mask in &masks {
            let dropped = mask.iter().filter(|factor| **factor == 0.0).count() as f64;
            assert!((dropped - rate * count as f64).abs() < 4.0 * deviation, "{dropped} dropped at rate {rate}");
            assert!(mask.iter().all(|factor| *factor == 0.0 || (factor * (1.0 - rate) - 1.0).abs() < 1e-6));
        }
        // Two masks drop the same element as often as chance says, in place and one element shifted.
        let both = rate * rate;
        let deviation = (both * (1.0 - both) * count as f64).sqrt();
        for (a, b) in [(0, 1), (0, 2), (1, 2), (0, 3)] {
            for shift in [0, 1] {
                let same = masks[a][shift..].iter().zip(&masks[b]).filter(|(a, b)| **a == 0.0 && **b == 0.0).count();
                assert!((same as f64 - both * count as f64).abs() < 5.0 * deviation, "{same} at rate {rate}");
            }
        }
        let next = masks[0].windows(2).filter(|pair| pair[0] == 0.0 && pair[1] == 0.0).count();
        assert!((next as f64 - both * count as f64).abs() < 5.0 * deviation, "{next} neighbours at rate {rate}");
    }
}

#[test]
fn a_dropped_nan_is_not_hidden() {
    let mut x = vec![1.0; 4 * 32];
    x[40] = f32::NAN;
    let tensors =
        [given(4, 32, &x), given(2, 32, &[1.0; 64]), given(3, 2, &[1.0; 6]), output(4, 2), given(4, 3, &[0.0; 12])];
    let found = run_everywhere("nan", &tensors, |ops, t| {
        ops.lora_forward(t[0], &[Some(forward_part(t, 1.0, Dropout { rate: 0.9, seed: 0 }))]);
    });
    for token in 0..4 {
        assert_eq!(found[4][token * 3..token * 3 + 3].iter().all(|x| x.is_nan()), token == 1, "token {token}");
    }
}

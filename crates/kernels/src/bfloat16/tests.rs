use super::stored_tensor;
use crate::arena::ArenaPlan;
use crate::ops::{Ops, OpsOptions};
use crate::testing::Random;

/// The values after a way through bfloat16, on `threads` threads.
fn through(values: &[f32], rows: usize, columns: usize, threads: usize) -> Vec<f32> {
    let mut arena = ArenaPlan::new();
    let x = arena.tensor(rows, columns);
    let stored = stored_tensor(&mut arena, rows, columns);
    let guard = arena.tensor(1, 16);
    let back = arena.tensor(rows, columns);
    let mut ops = Ops::new(OpsOptions { threads, ..OpsOptions::default() }, &arena, 0);
    ops.write(x, values);
    ops.write(guard, &[-7.0; 16]);
    ops.store_bfloat16(x, stored);
    ops.load_bfloat16(stored, back);
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(ops.read(x)), bits(values), "the input is not touched");
    assert_eq!(ops.read(guard), [-7.0; 16]);
    ops.read(back).to_vec()
}

#[test]
fn every_value_becomes_the_nearest_and_ties_go_to_even() {
    let mut random = Random(3);
    for (rows, columns) in [(0, 5), (1, 1), (3, 7), (5, 64), (2, 9001), (70, 576)] {
        let mut values = random.values(rows * columns);
        for value in &mut values {
            *value *= 2f32.powi(random.below(60) as i32 - 30);
        }
        let found = through(&values, rows, columns, 1);
        assert_eq!(through(&values, rows, columns, 3), found, "threads change nothing");
        for (value, found) in values.iter().zip(&found) {
            // The oracle walks to the neighbours with eight significant bits in float64.
            let value = f64::from(*value);
            let step = if value == 0.0 { 1.0 } else { 2f64.powi(value.abs().log2().floor() as i32 - 7) };
            let below = (value / step).floor();
            let (to_below, to_above) = (value / step - below, below + 1.0 - value / step);
            let up = to_above < to_below || (to_above == to_below && below % 2.0 != 0.0);
            assert_eq!(f64::from(*found), step * if up { below + 1.0 } else { below }, "{value}");
        }
    }
}

#[test]
fn special_values_stay_what_they_are() {
    let nan_that_would_round_away = f32::from_bits(0x7fff_ffff);
    let tie_up = f32::from_bits(0x3f81_8000);
    let tie_down = f32::from_bits(0x3f80_8000);
    let values =
        [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, nan_that_would_round_away, tie_up, tie_down, f32::MAX];
    let found = through(&values, 1, 9, 1);
    assert_eq!(found[..2].iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0, 0x8000_0000]);
    assert_eq!(found[2..4], [f32::INFINITY, f32::NEG_INFINITY]);
    assert!(found[4].is_nan() && found[5].is_nan());
    assert_eq!(found[6..8].iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0x3f82_0000, 0x3f80_0000]);
    assert_eq!(found[8], f32::INFINITY, "the largest float32 is nearest to infinity");
}

use crate::qlinear::cases::{Random as Codes, random_matrix};
use crate::qlinear::{PackedMatrix, ScaleType};
use crate::testing::*;

#[test]
fn rows_are_the_dequantized_weights_times_the_scale() {
    for (vocabulary, width, bits, group_size) in [(1, 16, 4, 16), (63, 96, 4, 32), (65, 192, 8, 64), (200, 128, 3, 128)]
    {
        let matrix =
            random_matrix((vocabulary, width), bits, group_size, ScaleType::Float16, &mut Codes(vocabulary as u64));
        let packed = PackedMatrix::pack(&matrix).expect("valid");
        for scale in [1.0f32, 24.0] {
            let mut random = Random(3);
            for rows in [0, 1, 7] {
                let tokens: Vec<u32> = (0..rows).map(|_| random.below(vocabulary) as u32).collect();
                let name = format!("embedding [{vocabulary}, {width}] {rows} tokens");
                // The scale of 1 done by another op tells that some kernel ran.
                let tensors = [output(rows, width), given(1, 1, &[1.0])];
                let found = run_everywhere(&name, &tensors, |ops, t| {
                    ops.embedding_forward(&packed, &tokens, scale, t[0]);
                    ops.scale(t[1], 1.0);
                });
                let expected: Vec<f64> = tokens
                    .iter()
                    .flat_map(|token| (0..width).map(|k| matrix.weight(*token as usize, k) * f64::from(scale)))
                    .collect();
                // w = scale * code + bias is rounded once, then multiplied.
                assert_close(&name, &found[0], &expected, |i| 2.0 * f64::from(f32::EPSILON) * expected[i].abs());
            }
        }
    }
}

#[test]
#[should_panic(expected = "a token is not below the vocabulary size 3")]
fn tokens_outside_the_vocabulary_are_refused() {
    let matrix = random_matrix((3, 16), 4, 16, ScaleType::Float16, &mut Codes(1));
    let packed = PackedMatrix::pack(&matrix).expect("valid");
    run_everywhere("embedding", &[output(1, 16)], |ops, t| ops.embedding_forward(&packed, &[3], 1.0, t[0]));
}

//! Attention over a cache: the cases of the op over pages in disorder, in every format.

use super::tests::{Case, Inputs, case, cases, inputs};
use super::{CacheFormat, CachedRows, KeyValueCache, PAGE_POSITIONS, PageTables, reference};
use crate::arena::ArenaPlan;
use crate::testing::*;

/// `out` and `log_sum_exp` with all keys of the case put in the cache first, in parts of `part` rows.
fn run(name: &str, case: &Case, inputs: &Inputs, format: CacheFormat, part: usize) -> [Vec<f32>; 2] {
    let shape = case.shape;
    let (q_columns, k_columns) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let used = case.keys.div_ceil(PAGE_POSITIONS).max(1);
    // Pages in falling order, behind one that is not used.
    let table: Vec<u32> = (1..=used as u32).rev().collect();
    let tables = PageTables { pages: &table, pages_per_text: used };
    let floats = KeyValueCache::page_bytes(format, shape.kv_heads, shape.head_dim) / 4;
    let positions: Vec<u32> = (0..case.keys as u32).collect();
    let texts = vec![0; case.keys.max(case.positions.len())];
    let tensors = [
        given(case.positions.len(), q_columns, &inputs.q),
        given(case.keys, k_columns, &inputs.k),
        given(case.keys, k_columns, &inputs.v),
        output(case.positions.len(), q_columns),
        output(case.positions.len(), shape.heads),
        // What pages hold before is nobody's business.
        output(used + 1, floats),
    ];
    let mut found = run_everywhere(name, &tensors, |ops, t| {
        let cache = KeyValueCache::of(t[5], format, shape.kv_heads, shape.head_dim);
        for (index, positions) in positions.chunks(part).enumerate() {
            let rows = index * part..index * part + positions.len();
            let (k, v) = (t[1].row_range(rows.clone()), t[2].row_range(rows));
            let texts = &texts[..positions.len()];
            ops.cache_keys_values(&cache, CachedRows { positions, texts, tables }, k, v);
        }
        let rows = CachedRows { positions: &case.positions, texts: &texts[..case.positions.len()], tables };
        ops.attention_cached(&shape, &cache, rows, t[0], t[3], t[4]);
    });
    [std::mem::take(&mut found[3]), std::mem::take(&mut found[4])]
}

/// The largest magnitude of each row of a head, for each value of the rows.
fn largest_of_heads(values: &[f32], head_dim: usize) -> Vec<f64> {
    let largest = |head: &[f32]| head.iter().fold(0f64, |largest, x| largest.max(f64::from(x.abs())));
    values.chunks(head_dim).map(largest).collect()
}

#[test]
fn every_format_equals_the_reference_within_its_rounding() {
    for (index, case) in cases().iter().enumerate() {
        for format in CacheFormat::ALL {
            let name = format!("case {index} in {}", format.name());
            let inputs = inputs(case, index as u64, 1.0);
            let [out, lse] = run(&name, case, &inputs, format, 50);
            let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|x| to_f64(x));
            let (expected_out, expected_lse) = reference::forward(&case.shape, &case.positions, &q, &k, &v);
            // The largest error of a stored value, for magnitudes up to 1.
            let stored = match format {
                CacheFormat::Float32 => 0.0,
                CacheFormat::Float16 => 2f64.powi(-12),
                CacheFormat::Bits8 => {
                    0.5001 / 127.0 * largest_of_heads(&inputs.k, case.shape.head_dim).iter().fold(0.0, |a, b| b.max(a))
                }
            };
            let head_dim = case.shape.head_dim as f64;
            let rounding = f64::from(f32::EPSILON) * (8.0 + 2.0 * head_dim.sqrt());
            // |q| is at most 1: a score is off by at most this, and the outputs by twice it times |v|, at most 1.
            let score = stored * head_dim * f64::from(case.shape.scale);
            assert_close(&format!("{name} out"), &out, &expected_out, |_| {
                2.0 * score.exp_m1() + stored + 4.0 * rounding
            });
            assert_close(&format!("{name} lse"), &lse, &expected_lse, |_| score + 4.0 * rounding);
        }
    }
}

#[test]
fn float32_has_the_bits_of_attention_over_tensors() {
    for (index, case) in cases().iter().enumerate() {
        let inputs = inputs(case, 40 + index as u64, 3.0);
        let name = format!("case {index}");
        let expected = super::tests::run(&name, case, &inputs);
        for part in [1, 7, 1000] {
            let [out, lse] = run(&name, case, &inputs, CacheFormat::Float32, part);
            assert!(out == expected[3] && lse == expected[4], "{name} in parts of {part}");
        }
    }
}

/// Root of the mean square of the difference over that of `expected`.
fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    let difference: Vec<f64> =
        found.iter().zip(expected).map(|(found, expected)| f64::from(*found) - expected).collect();
    norm(&difference) / norm(expected)
}

#[test]
fn typical_errors_are_those_that_are_documented() {
    let case = case(4, 2, 64, None, (0..300).collect());
    let inputs = inputs(&case, 5, 2.0);
    let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|x| to_f64(x));
    let (expected, _) = reference::forward(&case.shape, &case.positions, &q, &k, &v);
    for (format, bound) in [(CacheFormat::Float32, 2e-6), (CacheFormat::Float16, 5e-4), (CacheFormat::Bits8, 1e-2)] {
        let [out, _] = run(format.name(), &case, &inputs, format, 300);
        let error = relative_error(&out, &expected);
        println!("{}: {error:.1e}", format.name());
        assert!(error < bound && (error > bound / 50.0), "{}: {error:e}", format.name());
    }
}

#[test]
fn texts_that_share_pages_have_the_bits_that_they_have_alone() {
    const TEXTS: usize = 5;
    for format in CacheFormat::ALL {
        for (shared, own) in [(70, 3), (64, 1), (10, 130), (0, 4)] {
            let shape = case(6, 2, 24, Some(100), vec![0]).shape;
            let (q_columns, k_columns) = (6 * 24, 2 * 24);
            let keys = shared + own;
            // One text after the other; all begin with the same rows.
            let mut random = Random(keys as u64);
            let common = [random.values(shared * k_columns), random.values(shared * k_columns)];
            let texts: Vec<[Vec<f32>; 2]> = (0..TEXTS)
                .map(|_| common.clone().map(|part| [part, random.values(own * k_columns)].concat()))
                .collect();
            let q = random.values(TEXTS * q_columns);
            let last = keys as u32 - 1;
            let name = format!("{} with {shared} shared and {own} own", format.name());

            let mut alone = Vec::new();
            for (text, q) in texts.iter().zip(q.chunks(q_columns)) {
                let case = Case { shape, positions: vec![last], keys };
                let [k, v] = text.clone();
                let inputs = Inputs { q: q.to_vec(), k, v, dout: Vec::new() };
                alone.extend(run(&name, &case, &inputs, format, keys).map(Vec::from));
            }

            // The common rows are put once, in the first text; the page in which texts part is copied.
            let per_text = keys.div_ceil(PAGE_POSITIONS);
            let full = shared / PAGE_POSITIONS;
            let own_pages = per_text - full;
            let table: Vec<u32> = (0..TEXTS)
                .flat_map(|text| (0..full).chain(full + text * own_pages..full + (text + 1) * own_pages))
                .map(|page| page as u32)
                .collect();
            let tables = PageTables { pages: &table, pages_per_text: per_text };
            let floats = KeyValueCache::page_bytes(format, 2, 24) / 4;
            let part = |index: usize, rows: std::ops::Range<usize>| -> Vec<f32> {
                let values = &texts[index / 2][index % 2];
                values[rows.start * k_columns..rows.end * k_columns].to_vec()
            };
            let mut tensors = vec![
                given(TEXTS, q_columns, &q),
                output(TEXTS, q_columns),
                output(TEXTS, 6),
                output(full + TEXTS * own_pages, floats),
                given(shared, k_columns, &common[0]),
                given(shared, k_columns, &common[1]),
            ];
            tensors.extend((0..2 * TEXTS).map(|index| given(own, k_columns, &part(index, shared..keys))));
            let positions: Vec<u32> = (0..keys as u32).collect();
            let found = run_everywhere(&name, &tensors, |ops, t| {
                let cache = KeyValueCache::of(t[3], format, 2, 24);
                let rows = CachedRows { positions: &positions[..shared], texts: &vec![0; shared], tables };
                ops.cache_keys_values(&cache, rows, t[4], t[5]);
                for text in 0..TEXTS {
                    if text > 0 && shared % PAGE_POSITIONS > 0 {
                        ops.copy_cache_page(&cache, table[full], table[text * per_text + full]);
                    }
                    let rows = CachedRows { positions: &positions[shared..], texts: &vec![text as u32; own], tables };
                    ops.cache_keys_values(&cache, rows, t[6 + 2 * text], t[7 + 2 * text]);
                }
                let rows = CachedRows { positions: &[last; TEXTS], texts: &[0, 1, 2, 3, 4], tables };
                ops.attention_cached(&shape, &cache, rows, t[0], t[1], t[2]);
            });
            for (text, alone) in alone.chunks(2).enumerate() {
                assert_eq!(found[1][text * q_columns..][..q_columns], alone[0], "{name}: text {text}");
                assert_eq!(found[2][text * 6..][..6], alone[1], "{name}: text {text}");
            }
        }
    }
}

#[test]
fn extreme_values_are_limited_and_nan_is_not_hidden() {
    for format in CacheFormat::ALL {
        let case = case(1, 1, 16, None, (0..3).collect());
        let mut inputs = inputs(&case, 8, 1.0);
        inputs.q.fill(0.0);
        inputs.v[..16].fill(0.0);
        inputs.v[16] = 1e6;
        let [out, _] = run(format.name(), &case, &inputs, format, 3);
        let largest = if format == CacheFormat::Float16 { 65504.0 } else { 1e6 };
        assert!((out[16] / (largest / 2.0) - 1.0).abs() < 1e-6, "{}: {}", format.name(), out[16]);
        assert!(out[..16].iter().all(|x| *x == 0.0));

        inputs.v[16] = f32::NAN;
        let [out, _] = run(format.name(), &case, &inputs, format, 3);
        assert!(out[16].is_nan() && out[32].is_nan(), "{}", format.name());
        let tiny = Inputs { v: vec![1e-38; 48], ..inputs };
        let [out, _] = run(format.name(), &case, &tiny, format, 3);
        assert!(out.iter().all(|x| x.abs() <= 1.1e-38), "{}", format.name());
    }
}

#[test]
fn a_page_takes_what_it_says() {
    let bytes = CacheFormat::ALL.map(|format| KeyValueCache::page_bytes(format, 3, 64));
    let values = 2 * 3 * 64 * PAGE_POSITIONS;
    assert_eq!(bytes, [4 * values, 2 * values, values + 2 * 3 * 4 * PAGE_POSITIONS]);
    let mut arena = ArenaPlan::new();
    let cache = KeyValueCache::new(&mut arena, CacheFormat::Bits8, 5, 3, 64);
    assert_eq!((cache.pages(), arena.peak_bytes()), (5, 5 * bytes[2]));
    for format in CacheFormat::ALL {
        assert_eq!(CacheFormat::by_name(format.name()), Some(format));
    }
    assert_eq!(CacheFormat::by_name("f64"), None);
}

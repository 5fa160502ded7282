//! Several answers to one prompt, and caches of every format.

use std::sync::Arc;

use kernels::{CacheFormat, OpsOptions, PAGE_POSITIONS, Precision};
use model::{AdapterWeights, Generator, GeneratorOptions, Model, ModelError, Projection, Random, SamplingOptions};

use crate::tiny;

const CONTEXT: usize = 2 * PAGE_POSITIONS + 20;
const ANSWER_TOKENS: usize = 70;

fn options(cache: CacheFormat, candidates_max: usize) -> GeneratorOptions {
    let ops = OpsOptions { threads: 2, precision: Precision::A16, ..OpsOptions::default() };
    GeneratorOptions {
        cache,
        candidates_max,
        candidate_tokens_max: ANSWER_TOKENS,
        ..GeneratorOptions::new(ops, CONTEXT)
    }
}

fn generator(model: &Arc<Model>, adapter: Option<&AdapterWeights>, options: GeneratorOptions) -> Generator {
    Generator::new(Arc::clone(model), adapter, options).expect("a generator")
}

fn tokens(len: usize) -> Vec<u32> {
    let mut random = Random::new(33);
    (0..len).map(|_| (random.next_u64() % tiny::VOCABULARY as u64) as u32).collect()
}

fn sampling(count: u64, tokens_max: usize) -> Vec<SamplingOptions> {
    let of_seed = |seed| SamplingOptions { tokens_max, temperature: 1.2, seed, ..SamplingOptions::default() };
    (1..=count).map(of_seed).collect()
}

#[test]
fn candidates_have_the_tokens_of_separate_generations() {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let adapter = tiny::adapter(&model, tiny::spec(&Projection::ALL, 0..tiny::BLOCKS));
        for format in CacheFormat::ALL {
            let mut together = generator(&model, Some(&adapter), options(format, 5));
            let mut alone = generator(&model, Some(&adapter), options(format, 1));
            // Prompts that end in a page, at its end, and behind it; and one that begins as the last.
            for prompt_tokens in [9, 64, 77, 70] {
                let prompt = tokens(prompt_tokens);
                let mut sampling = sampling(5, ANSWER_TOKENS);
                // One answer that is short, one that ends early, and the first ends before the others.
                sampling[3].tokens_max = 2;
                let probe = alone.generate(&prompt, &sampling[1], &mut |_| true).expect("a text");
                sampling[1].stop_tokens = vec![probe[20]];
                sampling[0].tokens_max = 30;
                let mut seen = vec![Vec::new(); 5];
                let found = together.candidates(&prompt, &sampling, &mut |answer, token| {
                    seen[answer].push(token);
                    !(answer == 2 && seen[2].len() == 40)
                });
                let found = found.expect("texts");
                assert_eq!(found, seen);
                for (answer, sampling) in found.iter().zip(&sampling) {
                    let mut expected = alone.generate(&prompt, sampling, &mut |_| true).expect("a text");
                    expected.truncate(if sampling.seed == 3 { 40 } else { ANSWER_TOKENS });
                    let name = format!("{family} in {}, seed {}", format.name(), sampling.seed);
                    assert_eq!(*answer, expected, "{name} behind {prompt_tokens} tokens");
                }
                assert!(found[4].len() == ANSWER_TOKENS && found[0] != found[4][..30] && found[3].len() <= 2);
                // What the generator keeps is the prompt and the first answer, as if there had been no others.
                let next: Vec<u32> = prompt.iter().chain(&found[0]).copied().collect();
                let before = together.counters().frozen_macs;
                let kept = together.logits(&next).expect("logits");
                assert_eq!(kept, alone.logits(&next).expect("logits"));
                let row = together.counters().frozen_macs - before;
                together.logits(&next).expect("logits");
                assert_eq!(together.counters().frozen_macs - before, 2 * row, "{family}: kept tokens ran again");
            }
        }
    }
}

#[test]
fn the_prompt_is_computed_once_for_all() {
    let model = tiny::model("llama");
    let mut generator = generator(&model, None, options(CacheFormat::Float16, 8));
    let prompt = tokens(100);
    let mut cost = |count| {
        generator.logits(&[1]).expect("logits");
        let before = generator.counters().frozen_macs;
        generator.candidates(&prompt, &sampling(count, 2), &mut |_, _| true).expect("texts");
        generator.counters().frozen_macs - before
    };
    let (one, eight) = (cost(1), cost(8));
    // One row behind the prompt for each answer, and its logits.
    let mut row = || {
        let before = generator.counters().frozen_macs;
        generator.logits(&[2]).expect("logits");
        generator.counters().frozen_macs - before
    };
    assert_eq!(eight - one, 7 * row());
}

#[test]
fn formats_differ_by_their_rounding_and_take_the_memory_they_say() {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let text = tokens(140);
        let mask = vec![true; 140];
        let mut found = CacheFormat::ALL.map(|format| generator(&model, None, options(format, 1)));
        let [exact, half, bytes] = found.each_mut().map(|generator| generator.logits(&text).expect("logits"));
        let (half, bytes) = (tiny::norm_difference(&half, &exact), tiny::norm_difference(&bytes, &exact));
        println!("{family}: f16 {half:.1e}, 8bit {bytes:.1e}");
        assert!(half > 0.0 && half < 2e-3, "{family}: {half}");
        assert!(bytes > half && bytes < 4e-2, "{family}: {bytes}");
        let losses = found.each_mut().map(|generator| generator.losses(&text, &mask).expect("losses").loss_sum);
        assert!((losses[1] / losses[0] - 1.0).abs() < 1e-3 && (losses[2] / losses[0] - 1.0).abs() < 1e-2, "{losses:?}");

        let cache_bytes = found.map(|generator| {
            let items = &generator.plan().items;
            items.iter().find(|(name, _)| *name == "keys and values").expect("an item").1
        });
        assert_eq!(cache_bytes[0], 2 * cache_bytes[1]);
        assert!(cache_bytes[2] < cache_bytes[1], "{cache_bytes:?}");
        // Three answers more take a page or two each, not the whole context.
        let more = generator(&model, None, options(CacheFormat::Float32, 4)).plan().items.clone();
        let more = more.iter().find(|(name, _)| *name == "keys and values").expect("an item").1;
        let pages = CONTEXT.div_ceil(PAGE_POSITIONS);
        assert_eq!(more, cache_bytes[0] / pages * (pages + 3 * (ANSWER_TOKENS.div_ceil(PAGE_POSITIONS) + 1)));
    }
}

#[test]
fn too_many_candidates_and_too_long_ones_are_refused() {
    let model = tiny::model("llama");
    let mut generator = generator(&model, None, options(CacheFormat::Float32, 3));
    let prompt = tokens(5);
    let mut refused = |count, tokens_max| {
        generator.candidates(&prompt, &sampling(count, tokens_max), &mut |_, _| true).expect_err("refused")
    };
    for count in [0, 4] {
        assert!(matches!(refused(count, 1), ModelError::OptionInvalid { option: "candidates", .. }));
    }
    let expected =
        ModelError::TooManyTokens { tokens: ANSWER_TOKENS + 1, limit: ANSWER_TOKENS, of: "one of several answers" };
    assert_eq!(refused(2, ANSWER_TOKENS + 1), expected);
    assert!(matches!(refused(2, usize::MAX), ModelError::TooManyTokens { of: "the generator's context", .. }));
    for candidates_max in [0, 257] {
        let options = GeneratorOptions { candidates_max, ..options(CacheFormat::Float32, 1) };
        let error = Generator::new(Arc::clone(&model), None, options).err().expect("refused");
        assert!(matches!(error, ModelError::OptionInvalid { option: "candidates_max", .. }));
    }
}

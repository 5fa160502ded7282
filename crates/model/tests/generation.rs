//! Generation through the cache against whole forwards, and its limits.

use std::sync::Arc;

use kernels::{Isa, OpsOptions, Precision};
use model::{AdapterWeights, Generator, GeneratorOptions, Model, ModelError, Projection, Random, SamplingOptions};

use crate::tiny;

fn generator(model: &Arc<Model>, adapter: Option<&AdapterWeights>, context_tokens_max: usize) -> Generator {
    let ops = OpsOptions { threads: 1, isa: Isa::best(), precision: Precision::Exact };
    Generator::new(Arc::clone(model), adapter, GeneratorOptions::new(ops, context_tokens_max)).expect("a generator")
}

fn adapter(model: &Model) -> AdapterWeights {
    tiny::adapter(model, tiny::spec(&Projection::ALL, 0..tiny::BLOCKS))
}

fn tokens(len: usize) -> Vec<u32> {
    let mut random = Random::new(21);
    (0..len).map(|_| (random.next_u64() % tiny::VOCABULARY as u64) as u32).collect()
}

fn greedy(tokens_max: usize) -> SamplingOptions {
    SamplingOptions { tokens_max, ..SamplingOptions::default() }
}

#[test]
fn one_by_one_through_the_cache_equals_whole_forwards() {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let adapter = adapter(&model);
        let text = tokens(40);
        let mut stepwise = generator(&model, Some(&adapter), 64);
        for len in 1..=text.len() {
            let found = stepwise.logits(&text[..len]).expect("logits");
            let expected = generator(&model, Some(&adapter), 64).logits(&text[..len]).expect("logits");
            let difference = tiny::relative_difference(&found, &expected);
            assert!(difference < 1e-5, "{family} at {len} tokens: {difference}");
        }
    }
}

#[test]
fn chunked_losses_equal_a_session_s() {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let adapter = adapter(&model);
        // More than two chunks, supervised in the first and the last only.
        let text = tokens(600);
        let mask: Vec<bool> = (0..600).map(|index| index % 7 == 3 && !(250..540).contains(&index)).collect();
        let mut options = tiny::options(Precision::Exact);
        options.tokens_max = 600;
        let expected = tiny::session(&model, &adapter, options).loss(&text, &mask).expect("losses");
        let mut generator = generator(&model, Some(&adapter), 700);
        let found = generator.losses(&text, &mask).expect("losses");
        assert!((found.loss_sum - expected.loss_sum).abs() < 1e-5 * expected.loss_sum, "{family}");
        let difference = tiny::relative_difference(&found.losses, &expected.losses);
        assert!(difference < 1e-5, "{family}: {difference}");
        // Everything before the last target is known now, and used by what follows.
        let known = generator.logits(&text).expect("logits");
        let fresh = self::generator(&model, Some(&adapter), 700).logits(&text).expect("logits");
        assert!(tiny::relative_difference(&known, &fresh) < 1e-5, "{family}");
    }
}

#[test]
fn losses_behind_what_is_known_equal_those_from_the_beginning() {
    for family in tiny::FAMILIES {
        let model = tiny::model(family);
        let adapter = adapter(&model);
        let mut kept = generator(&model, Some(&adapter), 700);
        // Labels behind one prompt, as a question with a list of answers is scored; the prompt is longer than a chunk.
        let prompt = tokens(400);
        let label = |first: u32, len: usize| -> (Vec<u32>, Vec<bool>) {
            let label = (0..len as u32).map(|index| (first + 5 * index) % tiny::VOCABULARY as u32);
            let text: Vec<u32> = prompt.iter().copied().chain(label).collect();
            let mask = (0..text.len()).map(|index| index >= prompt.len()).collect();
            (text, mask)
        };
        let mut cases = vec![label(1, 1), label(2, 3), label(2, 5), label(3, 300), label(2, 3)];
        // Gaps between targets, the very first target possible, and a text that has nothing in common with the last.
        let every_third: Vec<bool> = (0..prompt.len()).map(|index| index % 3 == 1).collect();
        cases.push((prompt.clone(), every_third));
        cases.push((tokens(40)[20..].to_vec(), vec![true; 20]));
        cases.push(label(4, 2));
        for (case, (text, mask)) in cases.iter().enumerate() {
            let found = kept.losses_behind(text, mask).expect("losses");
            let expected = generator(&model, Some(&adapter), 700).losses(text, mask).expect("losses");
            assert_eq!(found.losses.len(), mask[1..].iter().filter(|target| **target).count(), "{family} case {case}");
            let difference = tiny::relative_difference(&found.losses, &expected.losses);
            assert!(difference < 1e-5, "{family} case {case}: {difference}");
            assert!((found.loss_sum - expected.loss_sum).abs() < 1e-5 * expected.loss_sum, "{family} case {case}");
        }
        // The prompt is not computed again for another label.
        let before = kept.counters().frozen_macs;
        let (text, mask) = label(6, 2);
        kept.losses_behind(&text, &mask).expect("losses");
        let behind = kept.counters().frozen_macs - before;
        kept.losses(&text, &mask).expect("losses");
        let whole = kept.counters().frozen_macs - before - behind;
        assert!(behind * 20 < whole, "{family}: {behind} of {whole}");
    }
}

#[test]
fn greedy_generation_takes_the_most_likely_token_of_the_text_so_far() {
    let model = tiny::model("smollm3");
    let adapter = adapter(&model);
    let prompt = tokens(9);
    let mut generator = generator(&model, Some(&adapter), 64);
    let mut seen = Vec::new();
    let found = generator.generate(&prompt, &greedy(12), &mut |token| {
        seen.push(token);
        true
    });
    let found = found.expect("a text");
    assert_eq!((found.len(), &found), (12, &seen));
    let mut text = prompt.clone();
    for token in &found {
        let logits = self::generator(&model, Some(&adapter), 64).logits(&text).expect("logits");
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert!(best - logits[*token as usize] < 1e-4 * best.abs());
        text.push(*token);
    }

    // The same prompt again, one with a common beginning, and one with none: the cache must not show.
    let other: Vec<u32> = prompt[..5].iter().copied().chain([1, 2, 3]).collect();
    for prompt in [&prompt, &other, &tokens(20)[10..].to_vec(), &prompt] {
        let again = generator.generate(prompt, &greedy(6), &mut |_| true).expect("a text");
        let fresh = self::generator(&model, Some(&adapter), 64).generate(prompt, &greedy(6), &mut |_| true);
        assert_eq!(again, fresh.expect("a text"));
    }
}

#[test]
fn what_a_prompt_shares_with_the_text_before_is_not_computed_again() {
    let model = tiny::model("llama");
    let mut generator = generator(&model, None, 64);
    let text = tokens(40);
    let mut cost = |prompt: &[u32]| {
        let before = generator.counters().frozen_macs;
        generator.logits(prompt).expect("logits");
        generator.counters().frozen_macs - before
    };
    let first = cost(&text[..1]);
    let next_row = cost(&text[..2]);
    assert_eq!(next_row, first, "one row behind the cache costs as much as one without");
    let many = cost(&text);
    assert!(many > 20 * next_row);
    assert_eq!(cost(&text), next_row, "only the last row runs again");
    let other: Vec<u32> = text[..30].iter().copied().chain([text[30] ^ 1]).collect();
    assert_eq!(cost(&other), next_row, "only the row that differs runs");
}

#[test]
fn generation_ends_where_it_is_told_to() {
    let model = tiny::model("llama");
    let mut generator = generator(&model, None, 64);
    let prompt = tokens(5);
    let whole = generator.generate(&prompt, &greedy(10), &mut |_| true).expect("a text");
    let stop = *whole.iter().find(|token| **token != whole[0]).unwrap_or(&whole[0]);
    let stopped = SamplingOptions { stop_tokens: vec![stop], ..greedy(10) };
    let first = whole.iter().position(|token| *token == stop).expect("it is in the text");
    assert_eq!(generator.generate(&prompt, &stopped, &mut |_| true).expect("a text"), whole[..first]);
    let mut calls = 0;
    let cut = generator.generate(&prompt, &greedy(10), &mut |_| {
        calls += 1;
        calls < 3
    });
    assert_eq!(cut.expect("a text"), whole[..3]);
    assert!(generator.generate(&prompt, &greedy(0), &mut |_| true).expect("a text").is_empty());
}

#[test]
fn sampling_repeats_with_its_seed() {
    let model = tiny::model("qwen2");
    let mut generator = generator(&model, None, 64);
    let mut draw = |seed| {
        let sampling = SamplingOptions { temperature: 1.0, top_k: 40, top_p: 0.95, seed, ..greedy(30) };
        generator.generate(&tokens(5), &sampling, &mut |_| true).expect("a text")
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn adapters_are_put_in_and_taken_out() {
    let model = tiny::model("gemma3");
    let text = tokens(12);
    let some = tiny::adapter(&model, tiny::spec(&[Projection::Query], 1..2));
    let all = adapter(&model);
    let mut generator = generator(&model, None, 64);
    let plain = generator.logits(&text).expect("logits");
    for adapter in [Some(&all), Some(&some), None, Some(&some)] {
        generator.set_adapter(adapter).expect("a valid adapter");
        let found = generator.logits(&text).expect("logits");
        let fresh = self::generator(&model, adapter, 64).logits(&text).expect("logits");
        assert_eq!(found, fresh);
        assert_eq!(found == plain, adapter.is_none());
    }
}

#[test]
fn requests_beyond_the_limits_are_refused() {
    let model = tiny::model("llama");
    let mut generator = generator(&model, None, 16);
    let refused = |result: Result<Vec<u32>, ModelError>| result.expect_err("refused");
    let error = refused(generator.generate(&tokens(10), &greedy(7), &mut |_| true));
    assert_eq!(error, ModelError::TooManyTokens { tokens: 17, limit: 16, of: "the generator's context" });
    assert_eq!(refused(generator.generate(&[], &greedy(7), &mut |_| true)), ModelError::EmptyPrompt);
    let outside = ModelError::TokenOutsideVocabulary { token: 96, position: 1, vocabulary: 96 };
    assert_eq!(refused(generator.generate(&[1, 96], &greedy(1), &mut |_| true)), outside);
    let endless = SamplingOptions { tokens_max: usize::MAX, ..greedy(0) };
    assert!(matches!(refused(generator.generate(&[1], &endless, &mut |_| true)), ModelError::TooManyTokens { .. }));
    let error = generator.losses(&[1, 2, 3], &[true, false, false]).expect_err("refused");
    assert_eq!(error, ModelError::NothingSupervised { tokens: 3 });

    let ops = OpsOptions::default();
    for context_tokens_max in [0, 1025] {
        let options = GeneratorOptions::new(ops, context_tokens_max);
        assert!(Generator::new(Arc::clone(&model), None, options).is_err());
    }
}

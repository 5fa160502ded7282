//! Choosing the next token from logits.

use crate::error::ModelError;
use crate::random::Random;

/// How tokens are chosen and when generation ends.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// The most tokens to generate.
    pub tokens_max: usize,
    /// 0 takes the most likely token every time.
    pub temperature: f32,
    /// Choose among the `top_k` most likely tokens only; 0 for no limit.
    pub top_k: usize,
    /// Choose among the most likely tokens whose probabilities first sum to `top_p`; 1 for no limit.
    pub top_p: f32,
    pub seed: u64,
    /// Tokens that end the text. They are not part of the result.
    pub stop_tokens: Vec<u32>,
}

impl Default for SamplingOptions {
    /// Greedy, up to 128 tokens.
    fn default() -> Self {
        Self { tokens_max: 128, temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0, stop_tokens: Vec::new() }
    }
}

impl SamplingOptions {
    pub(crate) fn validate(&self) -> Result<(), ModelError> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            let found = self.temperature.to_string();
            return Err(ModelError::OptionInvalid { option: "temperature", found, expected: "0 or a positive number" });
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            let found = self.top_p.to_string();
            return Err(ModelError::OptionInvalid { option: "top_p", found, expected: "above 0 and at most 1" });
        }
        Ok(())
    }
}

/// The most likely token; of equals the first, as everywhere.
pub(crate) fn most_likely(logits: &[f32]) -> usize {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best
}

/// Chooses tokens by [`SamplingOptions`]; the same seed and logits give the same tokens.
pub(crate) struct Sampler<'a> {
    options: &'a SamplingOptions,
    random: Random,
    /// Tokens by falling logit; room is kept between calls.
    order: Vec<u32>,
}

impl<'a> Sampler<'a> {
    pub(crate) fn new(options: &'a SamplingOptions) -> Self {
        Self { options, random: Random::new(options.seed), order: Vec::new() }
    }

    /// The next token. Logits must not hold a NaN.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> u32 {
        if self.options.temperature == 0.0 {
            return most_likely(logits) as u32;
        }
        self.sort_likeliest(logits);
        let largest = f64::from(logits[self.order[0] as usize]);
        let temperature = f64::from(self.options.temperature);
        let weight = |token: &u32| ((f64::from(logits[*token as usize]) - largest) / temperature).exp();
        let total: f64 = self.order.iter().map(weight).sum();

        let mut kept = 0;
        let mut kept_weight = 0.0;
        while kept < self.order.len() && kept_weight < f64::from(self.options.top_p) * total {
            kept_weight += weight(&self.order[kept]);
            kept += 1;
        }
        let mut rest = self.random.unit() * kept_weight;
        for token in &self.order[..kept] {
            rest -= weight(token);
            if rest < 0.0 {
                return *token;
            }
        }
        // Rounding can leave a remainder behind the last one.
        self.order[kept.max(1) - 1]
    }

    /// Fills `order` with the `top_k` likeliest tokens, likeliest first, equals by token.
    fn sort_likeliest(&mut self, logits: &[f32]) {
        self.order.clear();
        self.order.extend(0..logits.len() as u32);
        let by_falling_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let top_k = if self.options.top_k == 0 { logits.len() } else { self.options.top_k.min(logits.len()) };
        if top_k < logits.len() {
            self.order.select_nth_unstable_by(top_k - 1, by_falling_logit);
            self.order.truncate(top_k);
        }
        self.order.sort_unstable_by(by_falling_logit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -40.0];

    fn shares(options: &SamplingOptions) -> [f64; 5] {
        const DRAWS: usize = 40_000;
        let mut sampler = Sampler::new(options);
        let mut counts = [0.0; 5];
        (0..DRAWS).for_each(|_| counts[sampler.choose(&LOGITS) as usize] += 1.0 / DRAWS as f64);
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_equals() {
        let options = SamplingOptions::default();
        assert_eq!(Sampler::new(&options).choose(&LOGITS), 1);
    }

    #[test]
    fn draws_follow_the_softmax_at_the_temperature() {
        for temperature in [0.7f32, 1.0, 2.0] {
            let weights = LOGITS.map(|logit| f64::from(logit / temperature).exp());
            let total: f64 = weights.iter().sum();
            let found = shares(&SamplingOptions { temperature, seed: 3, ..Default::default() });
            for (share, weight) in found.iter().zip(weights) {
                // Four standard errors of a share near one half at 40,000 draws.
                assert!((share - weight / total).abs() < 0.01, "{share} for {}", weight / total);
            }
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let k = shares(&SamplingOptions { temperature: 1.0, top_k: 2, ..Default::default() });
        assert!(k[1] > 0.4 && k[3] > 0.4 && k[0] == 0.0 && k[2] == 0.0);
        let p = shares(&SamplingOptions { temperature: 1.0, top_p: 0.5, ..Default::default() });
        assert!(p[1] > 0.4 && p[3] > 0.4 && p[0] == 0.0 && p[2] == 0.0);
        let one = shares(&SamplingOptions { temperature: 1.0, top_p: 1e-6, ..Default::default() });
        assert_eq!(one[1], one.iter().sum::<f64>());
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let draw = |seed| {
            let options = SamplingOptions { temperature: 1.0, seed, ..Default::default() };
            let mut sampler = Sampler::new(&options);
            (0..50).map(|_| sampler.choose(&LOGITS)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn nonsense_options_are_refused() {
        for options in [
            SamplingOptions { temperature: f32::NAN, ..Default::default() },
            SamplingOptions { temperature: -1.0, ..Default::default() },
            SamplingOptions { top_p: 0.0, ..Default::default() },
            SamplingOptions { top_p: f32::NAN, ..Default::default() },
        ] {
            assert!(options.validate().is_err());
        }
    }
}

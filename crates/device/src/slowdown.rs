//! Throttling as the work itself shows it. Systems report heat late, or say nothing while the speed halves; what a
//! token costs now against what it cost at its cheapest cannot lie.

/// How much slower work has become since its fastest stretch.
///
/// Work comes in pieces of different length, so only stretches of at least [`Slowdown::STRETCH_SECONDS`] are compared.
#[derive(Clone, Debug, Default)]
pub struct Slowdown {
    /// Tokens and seconds of the stretch that is being filled.
    filling: (f64, f64),
    /// Tokens per second of the last whole stretch, and of the fastest.
    last: Option<f64>,
    fastest: Option<f64>,
}

impl Slowdown {
    /// Long enough to even out short and long examples, short enough to see the first minutes of a run.
    pub const STRETCH_SECONDS: f64 = 20.0;
    /// Work that is this much slower than at its fastest counts as slowed down: pieces of different length and other
    /// programs alone make a fifth.
    pub const CLEAR: f64 = 1.25;

    /// Adds a piece of work.
    pub fn add(&mut self, tokens: u64, seconds: f64) {
        self.filling.0 += tokens as f64;
        self.filling.1 += seconds;
        if self.filling.1 >= Self::STRETCH_SECONDS {
            let rate = self.filling.0 / self.filling.1;
            self.last = Some(rate);
            self.fastest = Some(self.fastest.map_or(rate, |fastest| fastest.max(rate)));
            self.filling = (0.0, 0.0);
        }
    }

    /// The stretch being filled counts for nothing: the machine did something else meanwhile.
    pub fn interrupt(&mut self) {
        self.filling = (0.0, 0.0);
    }

    /// Time that a token takes now over the time it took at its fastest, 1 or more. None before two stretches.
    pub fn factor(&self) -> Option<f64> {
        let (last, fastest) = (self.last?, self.fastest?);
        (last > 0.0).then(|| fastest / last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_halved_rate_is_a_factor_of_two_whatever_the_lengths() {
        let mut slowdown = Slowdown::default();
        assert_eq!(slowdown.factor(), None);
        let mut work = |seconds_per_token: f64, pieces: u64| {
            for piece in 0..pieces {
                let tokens = [100, 900, 500][(piece % 3) as usize];
                slowdown.add(tokens, tokens as f64 * seconds_per_token);
            }
            slowdown.factor()
        };
        assert!((work(0.006, 60).unwrap() - 1.0).abs() < 1e-9);
        assert!((work(0.012, 60).unwrap() - 2.0).abs() < 1e-9);
        assert!((work(0.006, 60).unwrap() - 1.0).abs() < 1e-9, "it recovers");
    }

    #[test]
    fn an_interrupted_stretch_is_dropped() {
        let mut slowdown = Slowdown::default();
        slowdown.add(1000, 20.0);
        slowdown.add(1, 19.0);
        slowdown.interrupt();
        slowdown.add(1000, 20.0);
        assert_eq!(slowdown.factor(), Some(1.0));
    }
}

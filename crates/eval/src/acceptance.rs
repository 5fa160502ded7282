//! Whether a new adapter takes the place of the one that is in use.
//!
//! Four questions, in this order, and the first "no" is the reason: was there enough to learn from and to judge by; is
//! it better than no adapter on the person's newest records, in prompts like those of its training; is it no worse than
//! the adapter in use; is the model still able to do everything else.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arms::WhichAdapter;
use crate::bootstrap::Bootstrap;
use crate::evaluation::{Estimate, Evaluation, Outcome, QueryRow, outcome, paired};
use crate::general::{GeneralAbility, LOSS_RISE_MAX};
use crate::metrics::metric_by_name;
use crate::verdict::{Decision, QUERIES_MIN, judge, judge_with_retrieval};

/// Fewer records than this teach a model a few phrases, not a person: nothing learned from them is accepted. With a
/// quarter held out, this leaves eight to judge by and twenty-four to learn from.
pub const TRAINED_RECORDS_MIN: usize = 24;

/// Why nothing trained on so many records and judged by so many can be accepted; `None` if it can.
pub fn shortfall(trained_records: usize, held_out_records: usize) -> Option<String> {
    if trained_records < TRAINED_RECORDS_MIN {
        Some(format!("{trained_records} records to train on, at least {TRAINED_RECORDS_MIN} are needed"))
    } else if held_out_records < QUERIES_MIN {
        Some(format!("{held_out_records} records are held out, at least {QUERIES_MIN} are needed to judge an adapter"))
    } else {
        None
    }
}

/// The decision with everything that it rests on, as a run folder and an accepted version keep it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    pub accepted: bool,
    /// Why, in a sentence.
    pub reason: String,
    pub trained_records: usize,
    pub queries: usize,
    /// How many earlier records a prompt shows at most, in training and when it was judged.
    #[serde(default)]
    pub retrieved_records: usize,
    /// What [`crate::verdict`] says of the adapter against no adapter; null without enough to judge by.
    pub verdict: Value,
    /// Loss per answer token of the new adapter minus that of the one in use; `None` without one.
    pub minus_earlier: Option<Estimate>,
    pub general_ability: Option<GeneralAbility>,
}

/// Decides. `evaluation` has the arms `base` and `adapter`, or `retrieval` and `adapter_retrieval` where prompts show
/// `retrieved_records` above zero; `earlier` has the arm with the adapter in use, in prompts like those of its own
/// training, over the same queries.
pub fn accept(
    trained_records: usize,
    retrieved_records: usize,
    evaluation: Option<&Evaluation>,
    earlier: Option<&Evaluation>,
    general_ability: Option<GeneralAbility>,
) -> Acceptance {
    let verdict = evaluation.and_then(if retrieved_records > 0 { judge_with_retrieval } else { judge });
    let queries = evaluation.map_or(0, Evaluation::query_count);
    let minus_earlier = evaluation.zip(earlier).and_then(|(new, earlier)| against_earlier(new, earlier));
    let refusal = shortfall(trained_records, queries).or_else(|| match &verdict {
        None => Some("the adapter could not be compared with the base model".to_owned()),
        Some(verdict) if verdict.decision == Decision::NotKept => {
            Some(format!("{}. {}", verdict.headline.trim_start_matches("Not kept: "), verdict.reason))
        }
        Some(_) => worse_than_earlier(minus_earlier).or_else(|| general_ability.and_then(forgotten)),
    });
    let reason = match (&refusal, &verdict) {
        (Some(refusal), _) => refusal.clone(),
        (None, Some(verdict)) => verdict.reason.clone(),
        (None, None) => String::new(),
    };
    Acceptance {
        accepted: refusal.is_none(),
        reason,
        trained_records,
        queries,
        retrieved_records,
        verdict: verdict.map_or(Value::Null, |verdict| verdict.to_json()),
        minus_earlier,
        general_ability,
    }
}

/// New minus earlier in loss per answer token, over the queries that both were asked.
fn against_earlier(new: &Evaluation, earlier: &Evaluation) -> Option<Estimate> {
    let metric = metric_by_name("loss_per_answer_token")?;
    let (new, earlier) = (with_own_adapter(new)?, with_own_adapter(earlier)?);
    let same = new.len() == earlier.len() && new.iter().zip(earlier).all(|(new, earlier)| new.id == earlier.id);
    let found = paired(metric, new, earlier, &Bootstrap::default()).filter(|_| same)?;
    Some(Estimate { value: found.of_value - found.minus_value, interval: found.interval })
}

fn with_own_adapter(evaluation: &Evaluation) -> Option<&[QueryRow]> {
    let own = evaluation.arms.iter().find(|result| result.arm.adapter == WhichAdapter::Own)?;
    Some(&own.rows)
}

/// A newer adapter knows newer records: it is refused only if it is shown to be worse.
fn worse_than_earlier(minus_earlier: Option<Estimate>) -> Option<String> {
    let metric = metric_by_name("loss_per_answer_token")?;
    let difference = minus_earlier?;
    (outcome(metric, difference) == Outcome::Worse).then(|| {
        format!(
            "it is worse than the adapter in use by {:+.3} nats per answer token on the same records",
            difference.value
        )
    })
}

fn forgotten(ability: GeneralAbility) -> Option<String> {
    // A loss that is no number is no ability either.
    (!ability.is_kept()).then(|| {
        format!(
            "general ability fell: the loss on a page of a book went from {:.3} to {:.3} nats a token, at most \
             {LOSS_RISE_MAX} more are allowed",
            ability.loss_without, ability.loss_with
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arms::Arm;
    use crate::evaluation::QueryRow;
    use crate::metrics::text_metrics;

    /// Base and adapter over `queries` queries, with these losses a token and some spread.
    fn evaluation(queries: usize, base: f64, adapter: f64) -> Evaluation {
        with_arms(queries, [("base", base), ("adapter", adapter)])
    }

    fn with_arms<const ARMS: usize>(queries: usize, losses: [(&str, f64); ARMS]) -> Evaluation {
        let rows = |loss: f64| -> Vec<QueryRow> {
            let row = |index: usize| QueryRow {
                id: index.to_string(),
                gold: "g".into(),
                loss_sum: Some((loss + (index % 3) as f64 * 0.1) * 4.0),
                answer_tokens: 4,
                ..QueryRow::default()
            };
            (0..queries).map(row).collect()
        };
        let arms = losses.map(|(name, loss)| (Arm::by_name(name).unwrap(), rows(loss)));
        Evaluation::from_rows(arms.into(), text_metrics(), Bootstrap::default()).unwrap()
    }

    fn ability(rise: f64) -> Option<GeneralAbility> {
        Some(GeneralAbility { loss_without: 3.0, loss_with: 3.0 + rise, tokens: 500 })
    }

    #[test]
    fn every_condition_can_refuse_and_says_why() {
        let (good, bad) = (evaluation(12, 3.0, 2.0), evaluation(12, 2.0, 2.5));
        let accepted = accept(30, 0, Some(&good), None, ability(0.1));
        assert!(accepted.accepted && accepted.reason.contains("2.1"), "{}", accepted.reason);
        assert!(accept(30, 0, Some(&good), Some(&good), ability(0.1)).accepted, "equal to the one in use");
        for (acceptance, words) in [
            (accept(23, 0, Some(&good), None, ability(0.0)), "23 records"),
            (accept(30, 0, Some(&evaluation(7, 3.0, 2.0)), None, ability(0.0)), "7 records are held out"),
            (accept(30, 0, None, None, None), "0 records are held out"),
            (accept(30, 0, Some(&bad), None, ability(0.0)), "worse than the base"),
            (accept(30, 0, Some(&good), Some(&evaluation(12, 3.0, 1.5)), ability(0.0)), "+0.500"),
            (accept(30, 0, Some(&good), None, ability(0.3)), "general ability fell"),
            (accept(30, 0, Some(&good), None, ability(f64::NAN)), "general ability fell"),
        ] {
            assert!(!acceptance.accepted, "{acceptance:?}");
            assert!(acceptance.reason.contains(words), "{} has no {words:?}", acceptance.reason);
        }
    }

    #[test]
    fn an_adapter_trained_with_retrieval_is_judged_with_it() {
        // Plain prompts are not what it learned: they neither help it nor count against it.
        let with = |plain, shown| {
            with_arms(12, [("base", 3.0), ("retrieval", 2.5), ("adapter", plain), ("adapter_retrieval", shown)])
        };
        let shown = |retrieved_records, plain, shown| {
            accept(30, retrieved_records, Some(&with(plain, shown)), None, ability(0.0))
        };
        let accepted = shown(4, 3.5, 2.0);
        assert!(accepted.accepted && accepted.retrieved_records == 4, "{}", accepted.reason);
        assert!(accepted.reason.contains("Adapter + retrieval 2.1"), "{}", accepted.reason);
        assert!(accepted.reason.contains("against Base + retrieval 2.6"), "{}", accepted.reason);
        // Better than the base model alone is not enough: the same records without training do better.
        let refused = shown(4, 2.0, 2.8);
        assert!(!refused.accepted && refused.reason.contains("shown the same earlier records"), "{}", refused.reason);
        assert!(!shown(0, 3.5, 2.0).accepted, "trained on plain prompts it is judged by them");
        assert!(shown(0, 2.0, 2.8).accepted);

        // The adapter in use was judged in its own kind of prompts, and is compared in them.
        let new = with_arms(12, [("retrieval", 2.5), ("adapter_retrieval", 2.0)]);
        let in_use = with_arms(12, [("adapter", 1.5)]);
        let worse = accept(30, 4, Some(&new), Some(&in_use), ability(0.0));
        assert!(!worse.accepted && worse.reason.contains("+0.500"), "{}", worse.reason);
    }
}

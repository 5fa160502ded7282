//! Summaries, paired differences and the JSON form, from rows.

use serde_json::json;

use crate::sample;
use eval::metrics::{METRICS, text_metrics};
use eval::{ARMS, Bootstrap, EvalError, Evaluation, Outcome, QueryRow};

#[test]
fn losses_are_means_over_tokens_and_texts_means_over_queries() {
    let row = |id: &str, loss_sum, answer_tokens, prediction: &str| QueryRow {
        id: id.into(),
        gold: "fix parser".into(),
        prediction: Some(prediction.into()),
        loss_sum: Some(loss_sum),
        answer_tokens,
        ..QueryRow::default()
    };
    let rows = vec![row("a", 2.0, 1, "fix parser"), row("b", 3.0, 9, "nothing else")];
    let evaluation = Evaluation::from_rows(vec![(&ARMS[0], rows)], text_metrics(), Bootstrap::default()).unwrap();
    let value = |name: &str| evaluation.arms[0].estimate(name).unwrap().value;
    assert_eq!(value("loss_per_answer_token"), 0.5);
    assert_eq!(value("rouge_1"), 0.5);
    assert_eq!(value("exact_match"), 0.5);
    assert!(evaluation.differences.is_empty(), "one arm has nothing to differ from");
}

#[test]
fn a_difference_is_better_when_its_interval_lies_on_the_better_side() {
    let evaluation = sample::evaluation(29, [5.1, 4.6, 2.4, 2.45, 3.9]);
    let outcome = |comparison, metric| evaluation.difference(comparison, metric).unwrap().outcome;
    // Lower loss is better, higher ROUGE is better.
    assert_eq!(outcome("adapter_minus_base", "loss_per_answer_token"), Outcome::Better);
    assert_eq!(outcome("adapter_minus_base", "rouge_1"), Outcome::Better);
    assert_eq!(outcome("adapter_minus_other_adapter", "rouge_l"), Outcome::Better);
    // The same loss up to what changes from query to query.
    assert_eq!(outcome("adapter_retrieval_minus_adapter", "loss_per_answer_token"), Outcome::NotSeparable);
    let reversed = sample::evaluation(29, [2.4, 4.6, 5.1, 5.0, 3.9]);
    let difference = reversed.difference("adapter_minus_base", "loss_per_answer_token").unwrap();
    assert_eq!(difference.outcome, Outcome::Worse);
    let interval = difference.estimate.interval.unwrap();
    assert!(interval.low <= difference.estimate.value && difference.estimate.value <= interval.high);
    assert!((difference.of_value - difference.minus_value - difference.estimate.value).abs() < 1e-12);
}

#[test]
fn one_query_has_values_but_no_interval_and_shows_nothing() {
    let evaluation = sample::evaluation(1, [5.0, 4.0, 1.0, 1.0, 3.0]);
    let difference = evaluation.difference("adapter_minus_base", "loss_per_answer_token").unwrap();
    assert!(difference.estimate.interval.is_none());
    assert_eq!(difference.outcome, Outcome::NotSeparable);
}

#[test]
fn what_was_not_measured_is_null_and_never_zero() {
    let row =
        QueryRow { id: "a".into(), gold: "x".into(), loss_sum: Some(1.5), answer_tokens: 1, ..QueryRow::default() };
    let evaluation = Evaluation::from_rows(vec![(&ARMS[0], vec![row])], text_metrics(), Bootstrap::default()).unwrap();
    let found = evaluation.to_json(false);
    assert_eq!(
        found["arms"],
        json!([{
            "name": "base",
            "loss_per_answer_token": 1.5,
            "rouge_1": null,
            "rouge_l": null,
            "exact_match": null,
            "queries": 1,
            "intervals": {"loss_per_answer_token": null, "rouge_1": null, "rouge_l": null, "exact_match": null},
            "unparsable": 0,
            "retrieval": false,
            "adapter": "none",
        }])
    );
    assert_eq!(found["bootstrap"], json!({"level": 0.95, "resamples": 2000, "seed": Bootstrap::default().seed}));
}

#[test]
fn arms_with_other_queries_and_no_queries_are_refused() {
    let row = |id: &str| QueryRow { id: id.into(), ..QueryRow::default() };
    let uneven = vec![(&ARMS[0], vec![row("a"), row("b")]), (&ARMS[2], vec![row("a"), row("c")])];
    let refused = Evaluation::from_rows(uneven, text_metrics(), Bootstrap::default());
    assert!(matches!(&refused, Err(EvalError::Malformed { reason }) if reason.contains("adapter")), "{refused:?}");
    let empty = Evaluation::from_rows(vec![(&ARMS[0], vec![])], text_metrics(), Bootstrap::default());
    assert!(matches!(empty, Err(EvalError::NoQueries)));
}

#[test]
fn label_metrics_are_summarized_with_intervals_and_unparsable_answers_counted() {
    let row = |index: usize| QueryRow {
        id: index.to_string(),
        gold: (1 + index % 5).to_string(),
        prediction: Some(if index == 3 { "four stars".into() } else { (1 + (index + index % 2) % 5).to_string() }),
        ..QueryRow::default()
    };
    let rows: Vec<QueryRow> = (0..20).map(row).collect();
    let evaluation = Evaluation::from_rows(vec![(&ARMS[0], rows)], METRICS, Bootstrap::default()).unwrap();
    for name in ["accuracy", "macro_f1", "mean_absolute_error", "root_mean_square_error"] {
        let result = evaluation.arms[0].metric(name).unwrap();
        let estimate = result.estimate.unwrap();
        let interval = estimate.interval.unwrap();
        assert!(interval.low < estimate.value && estimate.value < interval.high, "{name} {estimate:?}");
        assert_eq!(result.unparsable, 1, "{name}");
    }
    // Ten of twenty labels are shifted by one.
    assert_eq!(evaluation.arms[0].estimate("accuracy").unwrap().value, 0.5);
    assert!(evaluation.arms[0].estimate("loss_per_answer_token").is_none());
}

//! What is said of an adapter, in each case that a reader may be in.

use crate::sample;
use eval::verdict::judge;
use eval::{Decision, Outcome};

#[test]
fn a_clear_personal_gain_is_kept() {
    let evaluation = sample::evaluation(29, [5.1, 4.6, 2.4, 2.2, 3.9]);
    let verdict = judge(&evaluation).unwrap();
    assert_eq!(verdict.decision, Decision::Kept);
    assert_eq!(verdict.headline, "Kept: the adapter knows the person better than the base model");
    assert_eq!(verdict.cautions, Vec::<String>::new());
    let outcomes: Vec<_> = verdict.findings.iter().map(|finding| (finding.comparison, finding.outcome)).collect();
    assert_eq!(
        outcomes[..2],
        [("adapter_minus_base", Outcome::Better), ("adapter_minus_other_adapter", Outcome::Better),]
    );
    assert_eq!(verdict.findings.len(), 5);
    let json = verdict.to_json();
    assert_eq!(json["decision"], "kept");
    assert_eq!(json["findings"][0]["outcome"], "better");
}

#[test]
fn the_reason_gives_the_numbers() {
    let verdict = judge(&sample::evaluation(29, [5.1, 4.6, 2.4, 2.2, 3.9])).unwrap();
    let reason = &verdict.reason;
    assert!(reason.starts_with("Over 29 held-out records: Adapter "), "{reason}");
    assert!(reason.contains("against Base model 5.748 nats per answer token: -2.692"), "{reason}");
    assert!(reason.contains("95 % interval -2."), "{reason}");
}

#[test]
fn no_gain_and_a_loss_are_not_kept() {
    let same = judge(&sample::evaluation(29, [3.0, 3.0, 3.0, 3.0, 3.0])).unwrap();
    assert_eq!(
        (same.decision, same.headline.as_str()),
        (Decision::NotKept, "Not kept: no gain over the base model can be shown")
    );
    let worse = judge(&sample::evaluation(29, [2.0, 2.0, 3.0, 3.0, 3.0])).unwrap();
    assert_eq!(
        (worse.decision, worse.headline.as_str()),
        (Decision::NotKept, "Not kept: the adapter is worse than the base model")
    );
    assert!(
        worse.cautions.iter().any(|caution| caution.contains("Retrieval alone does better")),
        "{:?}",
        worse.cautions
    );
}

#[test]
fn a_large_gain_over_few_records_is_not_believed() {
    let verdict = judge(&sample::evaluation(7, [5.0, 5.0, 1.0, 1.0, 3.0])).unwrap();
    assert_eq!(verdict.decision, Decision::NotKept);
    assert!(verdict.reason.starts_with("At least 8 held-out records are needed"), "{}", verdict.reason);
    assert_eq!(judge(&sample::evaluation(8, [5.0, 5.0, 1.0, 1.0, 3.0])).unwrap().decision, Decision::Kept);
}

#[test]
fn a_gain_that_another_persons_adapter_has_too_carries_a_caution() {
    let equal = judge(&sample::evaluation(29, [5.0, 4.0, 2.0, 2.0, 2.2])).unwrap();
    assert_eq!(equal.decision, Decision::Kept);
    assert!(equal.cautions[0].contains("the task's and not the person's"), "{:?}", equal.cautions);
    let less = judge(&sample::evaluation(29, [5.0, 4.0, 2.0, 2.0, 1.0])).unwrap();
    assert!(less.cautions[0].contains("does better"), "{:?}", less.cautions);
}

#[test]
fn missing_arms_and_skipped_records_are_said() {
    let mut evaluation = sample::evaluation(29, [5.1, 4.6, 2.4, 2.2, 3.9]);
    evaluation.differences.retain(|difference| difference.comparison.name == "adapter_minus_base");
    evaluation.skipped.push(eval::evaluation::SkippedQuery { id: "x".into(), reason: "the answer is empty".into() });
    let verdict = judge(&evaluation).unwrap();
    assert!(verdict.cautions[0].contains("No other person's adapter was compared"), "{:?}", verdict.cautions);
    assert!(
        verdict.cautions[1].contains("1 held-out record was left out: the answer is empty"),
        "{:?}",
        verdict.cautions
    );
    evaluation.differences.clear();
    assert!(judge(&evaluation).is_none());
}

//! Labels chosen by their probability instead of being written: what the model knows, apart from whether it keeps to
//! the form of an answer.
//!
//! Every label is scored as if it were the answer, its end token included, so that the scores are the probabilities
//! of writing exactly this label and stopping. The default takes the highest one. It favours no length: a label that
//! begins another one pays for its end. Dividing by the number of tokens, which is customary for free continuations
//! that have no end token, favours long labels whose last tokens follow from the first; it is reported beside it.

use super::{Answered, Better, Measure, Metric, accuracy, macro_f1, mean_absolute_error};

pub static ACCURACY: Metric = Metric {
    name: "scored_accuracy",
    label: "Accuracy, likeliest label",
    meaning: "Share of right labels when the label with the highest probability is taken.",
    better: Better::Higher,
    digits: 3,
    measure: Measure::Set(Answered::Likeliest, accuracy),
};

pub static MACRO_F1: Metric = Metric {
    name: "scored_macro_f1",
    label: "Macro-F1, likeliest label",
    meaning: "F1 of each label when the label with the highest probability is taken, every label weighing the same.",
    better: Better::Higher,
    digits: 3,
    measure: Measure::Set(Answered::Likeliest, macro_f1),
};

pub static MEAN_ABSOLUTE_ERROR: Metric = Metric {
    name: "scored_mean_absolute_error",
    label: "Mean absolute error, likeliest label",
    meaning: "How far the number with the highest probability is off, on average.",
    better: Better::Lower,
    digits: 3,
    measure: Measure::Set(Answered::Likeliest, mean_absolute_error),
};

pub static ACCURACY_PER_TOKEN: Metric = Metric {
    name: "scored_accuracy_per_token",
    label: "Accuracy, likeliest label by token",
    meaning: "Share of right labels when the label with the lowest loss per token is taken.",
    better: Better::Higher,
    digits: 3,
    measure: Measure::Set(Answered::LikeliestPerToken, accuracy),
};

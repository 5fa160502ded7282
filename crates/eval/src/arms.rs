//! The arms: what is compared, and how each is served.

/// Which adapter an arm runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichAdapter {
    None,
    /// Trained on the history of the person whose records are held out.
    Own,
    /// Trained the same way on another person's history: what of the gain is the task, not the person.
    Other,
}

impl WhichAdapter {
    pub fn name(self) -> &'static str {
        match self {
            WhichAdapter::None => "none",
            WhichAdapter::Own => "own",
            WhichAdapter::Other => "other",
        }
    }
}

/// One way to serve the person.
#[derive(Debug, PartialEq, Eq)]
pub struct Arm {
    /// The name in JSON and on the command line.
    pub name: &'static str,
    /// The name for people.
    pub label: &'static str,
    /// Whether earlier records of the person stand in the prompt.
    pub retrieval: bool,
    pub adapter: WhichAdapter,
}

/// Every arm, in the order of tables and plots.
pub static ARMS: [Arm; 5] = [
    Arm { name: "base", label: "Base model", retrieval: false, adapter: WhichAdapter::None },
    Arm { name: "retrieval", label: "Base + retrieval", retrieval: true, adapter: WhichAdapter::None },
    Arm { name: "adapter", label: "Adapter", retrieval: false, adapter: WhichAdapter::Own },
    Arm { name: "adapter_retrieval", label: "Adapter + retrieval", retrieval: true, adapter: WhichAdapter::Own },
    Arm { name: "other_adapter", label: "Other person's adapter", retrieval: false, adapter: WhichAdapter::Other },
];

/// A difference worth reporting: `of - minus`, query by query.
#[derive(Debug, PartialEq, Eq)]
pub struct Comparison {
    pub name: &'static str,
    pub of: &'static str,
    pub minus: &'static str,
    /// The question that the difference answers.
    pub question: &'static str,
}

/// Every difference that is reported, where both arms were run.
pub static COMPARISONS: [Comparison; 5] = [
    Comparison { name: "adapter_minus_base", of: "adapter", minus: "base", question: "Does training help?" },
    Comparison {
        name: "adapter_minus_other_adapter",
        of: "adapter",
        minus: "other_adapter",
        question: "Is the gain the person's own?",
    },
    Comparison {
        name: "adapter_minus_retrieval",
        of: "adapter",
        minus: "retrieval",
        question: "Is training better than retrieval?",
    },
    Comparison {
        name: "adapter_retrieval_minus_retrieval",
        of: "adapter_retrieval",
        minus: "retrieval",
        question: "Does training add to retrieval?",
    },
    Comparison {
        name: "adapter_retrieval_minus_adapter",
        of: "adapter_retrieval",
        minus: "adapter",
        question: "Does retrieval add to training?",
    },
];

impl Arm {
    pub fn by_name(name: &str) -> Result<&'static Arm, crate::EvalError> {
        ARMS.iter().find(|arm| arm.name == name).ok_or_else(|| crate::EvalError::UnknownArm {
            name: name.to_string(),
            known: ARMS.iter().map(|arm| arm.name).collect::<Vec<_>>().join(", "),
        })
    }
}

//! What runs of earlier versions did by themselves where this one has a setting, so that they go on with it. Numbers are then
//! theirs to the bit unless kernels add in another order since.
//!
//! Most settings that a configuration may lack have one value that earlier versions had without a name: the default that
//! `serde` gives. `blocks_kept` and `checkpoint_blocks` followed from the memory that was free when the run began, and
//! with bfloat16 boundaries numbers depend on them: only the plan of the run tells, in words.

use model::{BoundaryType, KeptBlocks};
use serde_json::{Map, Value};

use super::TrainConfig;

impl TrainConfig {
    /// Whether this is the configuration of a run whose numbers depend on blocks that it does not name.
    pub(crate) fn lacks_kept_blocks(&self) -> bool {
        self.boundaries == Some(BoundaryType::Bfloat16) && self.kept_blocks().is_none()
    }

    /// The same with the blocks that the plan's `memory_choice` says were kept.
    pub(crate) fn with_blocks_of_plan(self, memory_choice: &str) -> TrainConfig {
        match kept_blocks_in_words(memory_choice) {
            Some(KeptBlocks { blocks_kept, checkpoint_blocks }) => Self { blocks_kept, checkpoint_blocks, ..self },
            None => self,
        }
    }

    /// Adds the keys that the version which wrote `saved` did not know. What is there stays, known here or not.
    pub(crate) fn complete(self, saved: &mut Map<String, Value>) {
        for (key, value) in self.to_map() {
            saved.entry(key).or_insert(value);
        }
    }
}

/// Reads `keeps each block's input (bfloat16), all values of the last 5 blocks; weights stay in memory` and
/// `keeps the input of every 3th block (bfloat16); ...`, as those versions wrote what they planned.
fn kept_blocks_in_words(memory_choice: &str) -> Option<KeptBlocks> {
    let number_behind = |words: &str| {
        let rest = memory_choice.split_once(words)?.1;
        rest[..rest.find(|letter: char| !letter.is_ascii_digit())?].parse::<usize>().ok()
    };
    let checkpoint_blocks = match memory_choice.starts_with("keeps each block's input") {
        true => 1,
        false => number_behind("keeps the input of every ")?,
    };
    let blocks_kept = match memory_choice.contains("all values of the last ") {
        true => number_behind("all values of the last ")?,
        false => 1,
    };
    (blocks_kept > 0 && checkpoint_blocks > 0).then_some(KeptBlocks { blocks_kept, checkpoint_blocks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_of_earlier_versions_tell_what_was_kept() {
        let kept = |checkpoint_blocks, blocks_kept| Some(KeptBlocks { checkpoint_blocks, blocks_kept });
        for (words, expected) in [
            ("keeps each block's input (bfloat16); weights stay in memory", kept(1, 1)),
            (
                "keeps each block's input (bfloat16), all values of the last 12 blocks; weights stay in memory",
                kept(1, 12),
            ),
            ("keeps the input of every 3th block (bfloat16); weights are streamed block by block", kept(3, 1)),
            ("keeps the input of every th block (bfloat16)", None),
            ("keeps each block's input (bfloat16), all values of the last 0 blocks", None),
            ("keeps each block's input (bfloat16), all values of the last 9", None),
            ("", None),
        ] {
            assert_eq!(kept_blocks_in_words(words), expected, "{words}");
        }
    }

    #[test]
    fn keys_are_added_and_none_is_changed() {
        let mut saved = TrainConfig { rank: 3, ..TrainConfig::default() }.to_map();
        saved.retain(|key, _| !["kept_values", "blocks_kept", "stage"].contains(&key.as_str()));
        saved.insert("of a later version".into(), 1.into());
        let read: TrainConfig = serde_json::from_value(Value::Object({
            let mut known = saved.clone();
            known.remove("of a later version");
            known
        }))
        .unwrap();
        read.complete(&mut saved);
        assert_eq!(
            (&saved["kept_values"], &saved["blocks_kept"], &saved["stage"]),
            (&"float32".into(), &0.into(), &"user".into())
        );
        assert_eq!((&saved["rank"], &saved["of a later version"]), (&3.into(), &1.into()));
    }
}

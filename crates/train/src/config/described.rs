//! What each setting means, for people who look at a configuration that is written out in full.

use super::TrainConfig;

/// Every key in its order, with its unit and what it may be.
pub const SETTINGS: [(&str, &str); 49] = [
    ("stage", "user: one person's records; task: many people's"),
    ("rank", "inner dimension of the adapter's matrices"),
    ("lora_alpha", "the adapter's product is multiplied by lora_alpha / rank"),
    ("use_rslora", "by lora_alpha / sqrt(rank) instead"),
    ("dropout", "probability with which an adapter's input is dropped while training"),
    ("targets", "projections with an adapter: q, k, v, o, gate, up, down, or all"),
    ("adapted_blocks", "the last so many blocks; -1: all"),
    ("learning_rate", "at the end of warm-up"),
    ("schedule", "constant, linear or cosine"),
    ("warmup_steps", "updates; 0: warmup_ratio decides"),
    ("warmup_ratio", "share of all updates"),
    ("final_learning_rate_ratio", "share of learning_rate that a schedule ends at"),
    ("weight_decay", "AdamW's"),
    ("beta1", "AdamW's"),
    ("beta2", "AdamW's"),
    ("epsilon", "AdamW's"),
    ("clip_norm", "largest norm of a gradient; 0: any"),
    ("passes", "over the training examples"),
    ("steps", "updates; 0: passes decides"),
    ("accumulation", "examples per update"),
    ("seed", "of first values, order and dropout"),
    ("tokens_max", "tokens of an example at most"),
    ("retrieved_records", "earlier records of the person in a prompt, at most"),
    ("retrieved_tokens_max", "tokens of each of them, at most"),
    ("retriever", "bm25; as controls recency or random"),
    ("supervise", "what is learned: answers, last_answer or all"),
    ("validation_fraction", "share of the records, the newest, that choose the best adapter"),
    ("validation_records_min", "records; never more than a quarter"),
    ("validation_records_max", "records"),
    ("evaluate_every", "updates; 0: after every pass"),
    ("early_stop_patience", "validations without a better one before it stops; 0: never stops"),
    ("precision", "of activations in products: a16, exact or a8"),
    ("memory", "bytes such as 1.5GB that the process may take; auto: half of what is free"),
    ("boundaries", "inputs of blocks: float32, bfloat16, or auto: bfloat16 only where float32 does not fit"),
    (
        "kept_values",
        "gate and up of kept blocks: float32, int16, or auto: int16 only where that saves running blocks again",
    ),
    ("blocks_kept", "last blocks that keep all values and do not run again; 0: as many as memory allows"),
    ("checkpoint_blocks", "blocks that share one kept input; 0: as memory allows"),
    ("kept_prefix", "keep on disk, until the run ends, what blocks below the adapted ones made of examples"),
    ("threads", "0: the physical cores"),
    ("save_every_steps", "updates; 0: save_every_seconds decides"),
    ("save_every_seconds", "seconds"),
    ("save_bytes_per_hour", "bytes that saving writes an hour, at most; 0: any"),
    ("save_sync", "wait until a save has reached the disk"),
    ("only_charging", "train only on a charger or the mains"),
    ("battery_floor", "train down to this part of a charge, such as 0.3; 0: any; needs a battery"),
    ("quiet_hours", "train only in these, local time, such as 22:00-07:00; empty: always"),
    ("temperature_max_c", "degrees Celsius of the processor; 0: any"),
    ("memory_pressure_max", "share of the time that something waits for memory, such as 0.2; 0: any"),
    ("idle_seconds_min", "seconds since somebody touched the machine; 0: any"),
];

impl TrainConfig {
    /// As [`TrainConfig::to_toml`], with what each key means behind it.
    pub fn to_commented_toml(&self) -> String {
        let commented = |line: &str| {
            let key = line.split(' ').next().unwrap_or_default();
            let about = SETTINGS.iter().find(|(name, _)| *name == key).map(|(_, about)| *about);
            format!("{line:<36}  # {}\n", about.unwrap_or_default())
        };
        self.to_toml().lines().map(commented).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_described_in_its_order() {
        let config = TrainConfig::default();
        let text = config.to_toml();
        let keys: Vec<&str> = text.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key).collect();
        assert_eq!(SETTINGS.map(|(key, _)| key).to_vec(), keys);
        assert_eq!(keys.len(), config.to_map().len());
        assert!(SETTINGS.iter().all(|(_, about)| !about.is_empty()));
    }

    #[test]
    fn comments_change_no_value() {
        let config = TrainConfig { quiet_hours: "22:00-07:00".to_owned(), ..TrainConfig::default() };
        let text = config.to_commented_toml();
        assert_eq!(text.matches("  # ").count(), SETTINGS.len());
        assert_eq!(TrainConfig::load(None, Some((&text, "commented")), &[]).expect("the same"), config);
    }
}

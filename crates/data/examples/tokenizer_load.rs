//! Loads the tokenizer of a model and says how long that takes. With a text, its tokens; with a file of lines and a
//! `tokenizer.json`, every line for which the two disagree:
//!
//! ```text
//! cargo run --release -p selftune-data --example tokenizer_load -- MODEL.gguf "some text"
//! cargo run --release -p selftune-data --example tokenizer_load -- MODEL.gguf lines.txt tokenizer.json
//! ```

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("expected a model file")?;
    let text = arguments.next().unwrap_or_else(|| "Hello world".to_string());
    let start = std::time::Instant::now();
    let model = formats::load_model(path.as_ref(), &formats::LoadOptions::default(), &mut |_| {})?;
    println!("model in {:.2} s", start.elapsed().as_secs_f64());
    let start = std::time::Instant::now();
    let options = data::TextOptions::today();
    let pipeline = data::TextPipeline::new(&model.tokenizer, model.chat_template.as_deref(), &model.special, options)?;
    println!("tokenizer in {:.2} s: {pipeline:?}", start.elapsed().as_secs_f64());
    if let Some(folder) = arguments.next() {
        let source = formats::TokenizerSource::HuggingFace { tokenizer_json: folder.into(), config: None };
        let other = data::TextPipeline::new(&source, None, &model.special, data::TextOptions::today())?;
        for line in std::fs::read_to_string(&text)?.lines() {
            let (ours, theirs) = (pipeline.encode(line)?, other.encode(line)?);
            if ours != theirs {
                println!("differs: {line:?}\n{ours:?}\n{theirs:?}");
            }
        }
        return Ok(());
    }
    let tokens = pipeline.encode_text_prompt(&text)?;
    println!("{tokens:?}\n{:?}", pipeline.decode_with_special(&tokens));
    Ok(())
}

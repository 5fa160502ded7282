//! Loads the tokenizer of a GGUF file and prints how long that takes and the ids of a text:
//! `cargo run --release -p selftune-data --example tokenizer_load -- MODEL.gguf "some text"`.

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
    let tokens = pipeline.encode_text_prompt(&text)?;
    println!("{tokens:?}\n{:?}", pipeline.decode_with_special(&tokens));
    Ok(())
}

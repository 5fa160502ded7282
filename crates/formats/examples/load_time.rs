fn main() {
    let path = std::env::args().nth(1).unwrap();
    let start = std::time::Instant::now();
    let model = formats::load_model(path.as_ref(), &formats::LoadOptions::default(), &mut |_| {}).unwrap();
    println!("{:?} {:?} {}", start.elapsed(), model.cache, model.content_hash);
    println!("{} {:?} {:?}", serde_json::to_string(&model.config).unwrap(), model.special, model.source);
    println!("{:?}", model.tensors.iter().take(14).collect::<Vec<_>>());
    let start = std::time::Instant::now();
    let s = formats::describe_model(path.as_ref()).unwrap();
    println!("{:?} {} {} {}", start.elapsed(), s.tokenizer, s.parameter_count, s.tensors.len());
}

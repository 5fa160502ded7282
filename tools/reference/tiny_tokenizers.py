"""Trains the tiny tokenizers: byte-level BPE (tokenizers) and SentencePiece BPE (sentencepiece).

    python tiny_tokenizers.py

crates/model/tests/fixtures/tokenizer/  256 entries, for the tiny models: put beside any hf/ or mlx_*/ folder
crates/data/tests/fixtures/             larger ones with goldens are written by text_goldens.py
"""

import io
import re

from common import *  # noqa: F403

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2: pad, bos, eos of the tiny models

CORPUS = """
Fix the reader so that a truncated file gives an error which names the offset.
Add a test for the window of the attention, and remove the old one.
The quick brown fox jumps over the lazy dog; the dog does not mind at all.
Update the documentation of the parser: it accepts both spellings of the key.
She wrote a short note to her brother every evening, and he answered in the morning.
Rename the option --memory-limit to --memory and keep the former name for one release.
Write a subject line for this change. The files changed are src/main.rs and README.md.
Merge the two loops, since the second one reads what the first one wrote.
What is the capital of France? The capital of France is Paris.
In 2024 there were 12 months, 366 days, and 3.14159 reasons to measure again.
def read(path): return open(path).read()  # a comment
    if (x == 0) { return y[i] + 1; }
Don't use it: it's slow, they're right, I'll change it, we've seen it, you'd better not.
Über den Wolken muß die Freiheit wohl grenzenlos sein. Ça va très bien, señor.
Быстрая лиса прыгает через ленивую собаку. 你好,世界。こんにちは世界。
user assistant system You are a helpful assistant. message content history answer
Bump the version, drop the unused import, handle empty input, avoid a copy, speed up the tests.
Support reading from standard input; print the result as JSON when asked to.
The river was high after the rain, so the children stayed at home and read books.
Refactor the cache: one lock instead of two, no allocation while the lock is held.
""".strip().split("\n")


def byte_bpe(size: int, pre_tokenizer, alphabet: list[str], special: list[str] = SPECIAL) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[AddedToken(s, special=True, normalized=False) for s in special],
                                  initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def smollm_pre_tokenizer():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def regex_pre_tokenizer(pattern: str):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def model_tokenizer() -> Tokenizer:
    """256 entries: 3 special, the bytes of printable ASCII, space, newline, tab, and merges. Other bytes vanish."""
    alphabet = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ", "ĉ"]
    return byte_bpe(256, smollm_pre_tokenizer(), alphabet)


def sentence_piece(size: int, byte_fallback: bool, **options) -> sentencepiece.SentencePieceProcessor:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, vocab_size=size, model_type="bpe",
        byte_fallback=byte_fallback, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>",
        bos_piece="<bos>", normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
        num_threads=1, split_digits=True, hard_vocab_limit=True, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def sentence_piece_arrays(processor) -> dict:
    """tokens, scores and token types as llama.cpp's converter stores them in GGUF."""
    tokens, scores, kinds = [], [], []
    for index in range(processor.vocab_size()):
        tokens.append(processor.id_to_piece(index))
        scores.append(processor.get_score(index))
        kinds.append(2 if processor.is_unknown(index) else 3 if processor.is_control(index)
                     else 6 if processor.is_byte(index) else 1)
    return {"tokens": tokens, "scores": scores, "token_types": kinds}


def byte_bpe_arrays(tokenizer: Tokenizer) -> dict:
    """tokens, token types and merges as llama.cpp's converter stores them in GGUF."""
    content = json.loads(tokenizer.to_str())
    size = tokenizer.get_vocab_size()
    added = {entry["id"] for entry in content["added_tokens"]}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]]
    return {"tokens": [tokenizer.id_to_token(i) for i in range(size)],
            "token_types": [3 if i in added else 1 for i in range(size)], "merges": merges}


def save(tokenizer: Tokenizer, folder, template: str | None, **special) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
    if template:
        wrapped.chat_template = template
    wrapped.save_pretrained(folder)
    # One entry a line makes a long file; the tokenizer is data, so it is stored compactly.
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    return wrapped


if __name__ == "__main__":
    tokenizer = model_tokenizer()
    assert tokenizer.get_vocab_size() == 256
    save(tokenizer, fixtures("model") / "tokenizer", CHATML, bos_token="<|im_start|>", eos_token="<|im_end|>",
         pad_token="<|endoftext|>", unk_token="<|endoftext|>")
    print(tokenizer.encode("Fix the reader 2024").tokens)

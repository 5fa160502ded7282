"""Writes crates/model/tests/fixtures/smollm2_continuation.json: SmolLM2-135M-Instruct by transformers in float32.

    python real_model.py SmolLM2-135M-Instruct.Q4_1.gguf

The weights are those that gguf.dequantize gives (transformers reads the file with it).
"""

import re
import sys

from common import *  # noqa: F403

from transformers import AutoModelForCausalLM

from text_goldens import smollm2_tokenizer

TOKENS_MAX = 64
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write a short note to a friend about the weather today."}],
    [{"role": "system", "content": "You write commit subjects."},
     {"role": "user", "content": "Write the subject line for this change.\nFiles: src/reader.rs (+12 -3), tests/reader.rs (+20)\nAdded words: truncated error offset"}],
    [{"role": "user", "content": "List three fruits that are red."}, {"role": "assistant", "content": "Apple, cherry, strawberry."},
     {"role": "user", "content": "And three that are yellow?"}],
]
ANSWERED = (
    [{"role": "system", "content": "You write commit subjects."},
     {"role": "user", "content": "Write the subject line for this change.\nFiles: README.md (+2 -2)\nAdded words: install cargo"}],
    "docs: fix the installation command in the README",
)


def forced_step(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].double()


def continuation(model, prompt: list[int]) -> dict:
    """Greedy tokens (also past an end token), how far the best logit is ahead, and the logits' own values for two."""
    with torch.no_grad():
        cache, tokens, entries = None, list(prompt), []
        new = tokens
        for _ in range(TOKENS_MAX):
            result = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            best = torch.topk(result.logits[0, -1].double(), 2)
            entries.append((int(best.indices[0]), float(best.values[0]), float(best.values[0] - best.values[1])))
            new = [entries[-1][0]]
            tokens += new
    # The same tokens in one pass without a cache: every argmax must stand.
    logits = forced_step(model, tokens)[len(prompt) - 1:-1]
    assert logits.argmax(dim=1).tolist() == [e[0] for e in entries]
    return {"prompt": prompt, "continuation": [e[0] for e in entries], "top_logits": [round(e[1], 5) for e in entries],
            "margins": [round(e[2], 5) for e in entries]}


def main() -> None:
    path = Path(sys.argv[1])
    tokenizer = smollm2_tokenizer(path)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    encode = lambda text: tokenizer._tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731
    result = {"model": path.name, "continuations": [], "losses": []}
    for chat in CHATS:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        entry = {"messages": chat} | continuation(model, encode(text))
        entry["text"] = tokenizer.decode(entry["continuation"])
        result["continuations"].append(entry)
        print(f"smallest margin {min(entry['margins']):.4f}: {entry['text'][:200]!r}", flush=True)
    messages, answer = ANSWERED
    prompt = encode(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    tokens = prompt + encode(answer + "<|im_end|>")
    losses = token_losses(forced_step(model, tokens), tokens)
    mask = [i >= len(prompt) for i in range(len(tokens))]
    result["losses"].append({
        "messages": messages, "answer": answer, "tokens": tokens, "loss_mask": mask,
        "token_losses": [round(x, 6) for x in losses.tolist()], "mean_answer_loss": losses[torch.tensor(mask)].mean().item()})
    print("mean answer loss", result["losses"][0]["mean_answer_loss"])
    lines = json.dumps(result, ensure_ascii=False, indent=1)
    # Lists of numbers on one line each.
    lines = re.sub(r"\[\s+((?:-?[\d.e-]+|true|false)(?:,\s+(?:-?[\d.e-]+|true|false))*)\s+\]",
                                 lambda m: "[" + " ".join(m.group(1).split()) + "]", lines)
    (fixtures("model") / "smollm2_continuation.json").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

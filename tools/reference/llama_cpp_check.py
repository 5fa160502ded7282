"""Compares the GGUF goldens with llama.cpp (cyllama 0.2.18, in an environment of its own: cyllama, numpy, safetensors).

    python llama_cpp_check.py logits tiny_llama      one file a run
    python llama_cpp_check.py tokens SmolLM2.gguf    the ids in crates/data/tests/fixtures/smollm2_*.json

llama.cpp rounds activations to 8 bits, so logits agree to a few percent; tokens must be equal. tiny_gemma3 cannot be
loaded: llama.cpp wants at least one layer without a window.
"""

import json
import sys
from pathlib import Path

import numpy as np
from cyllama.llama import llama_cpp
from safetensors.numpy import load_file

CRATES = Path(__file__).resolve().parents[2] / "crates"


class TinyModel(llama_cpp.LlamaModel):
    n_vocab = 256  # this wheel's context looks for it on the model, which lacks it


def logits(label: str) -> None:
    folder = CRATES / "formats" / "tests" / "fixtures"
    expected = load_file(folder / f"{label}.expected.safetensors")
    parameters = llama_cpp.LlamaContextParams()
    parameters.n_ctx = parameters.n_batch = 512
    model = TinyModel(str(folder / f"{label}.gguf"))
    context = llama_cpp.LlamaContext(model, parameters)
    rows = []
    for position, token in enumerate(expected["tokens"].tolist()):
        context.decode(llama_cpp.llama_batch_get_one([token], position))
        rows.append(np.array(context.get_logits()).reshape(-1)[:256])
    difference = np.stack(rows) - expected["logits"]
    print(f"{label}: root mean square difference {np.sqrt((difference**2).mean()):.4f} of "
          f"{np.sqrt((expected['logits']**2).mean()):.4f}, largest {np.abs(difference).max():.3f}")


def tokens(path: str) -> None:
    model = llama_cpp.LlamaModel(path)  # held: the vocabulary points into it
    vocabulary = model.get_vocab()
    folder = CRATES / "data" / "tests" / "fixtures"
    compared = 0
    for file, key in (("smollm2_tokens.json", "text"), ("smollm2_chats.json", "rendered")):
        for case in json.loads((folder / file).read_text(encoding="utf-8"))["cases"]:
            if not case[key] or "\0" in case[key]:
                continue
            ids = list(vocabulary.tokenize(case[key], False, True))
            assert ids == case["ids"], (case[key], ids, case["ids"])
            compared += 1
    print(f"{compared} texts: equal")


if __name__ == "__main__":
    llama_cpp.disable_logging()
    {"logits": logits, "tokens": tokens}[sys.argv[1]](sys.argv[2])

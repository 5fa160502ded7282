"""Loads an adapter folder that selftune wrote with peft, on the tiny model or a real one, and prints what it computes.

    python check_adapter.py ADAPTER --base crates/model/tests/fixtures/llama/mlx_q4_g64 [--logits LOGITS.json]
    python check_adapter.py ADAPTER --base SmolLM2-135M-Instruct.Q4_1.gguf --tokens "1,9690,198"

The base is an MLX folder, a Hugging Face folder or a GGUF file; its weights are dequantized exactly. peft must find every
matrix of the adapter and no other. With --logits ({"tokens": [...], "logits": [[...], ...]}, every position or only
the last) the logits are compared; without, the losses of the tokens with and without the adapter are printed.
"""

import argparse
import sys

from common import *  # noqa: F403

from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from tiny_models import float64_model

CHECKED_BOUND = 1e-4  # of the largest logit


def load_base(path: Path):
    if path.suffix == ".gguf":
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    quantization = json.loads((path / "config.json").read_text()).get("quantization")
    if quantization is None:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").double().eval()
    tensors = mx.load(str(path / "model.safetensors"))
    exact = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{module}.scales" in tensors:
            parts = quantization.get(module, quantization)
            exact[name] = torch.from_numpy(affine_values(tensor, tensors[f"{module}.scales"], tensors[f"{module}.biases"],
                                                         parts["group_size"], parts["bits"]))
        else:
            exact[name] = torch.from_numpy(to_numpy(tensor)).double()
    return float64_model(path, exact)


def load_adapter(base, folder: Path):
    """peft ignores keys that fit nowhere, so the keys are compared here."""
    adapted = PeftModel.from_pretrained(base, folder)
    wanted = {name.replace(".default.weight", ".weight") for name, _ in adapted.named_parameters() if ".lora_" in name}
    found = set(load_file(folder / "adapter_model.safetensors"))
    if wanted != found:
        sys.exit(f"keys differ: missing {sorted(wanted - found)[:4]}, unexpected {sorted(found - wanted)[:4]}")
    for name, value in load_file(folder / "adapter_model.safetensors").items():
        loaded = adapted.get_parameter(name.replace(".weight", ".default.weight"))
        assert torch.equal(loaded.float(), value.float()), name
    dtype = next(base.parameters()).dtype
    return adapted.to(dtype).eval(), len(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--tokens")
    parser.add_argument("--logits", type=Path)
    arguments = parser.parse_args()
    given = json.loads(arguments.logits.read_text()) if arguments.logits else None
    if given:
        tokens = given["tokens"]
    elif arguments.tokens:
        tokens = [int(t) for t in arguments.tokens.split(",")]
    else:
        tokens = json.loads((arguments.base.parent / "input.json").read_text())["tokens"]
    ids = torch.tensor([tokens])
    base = load_base(arguments.base)
    with torch.no_grad():
        plain = base(ids).logits[0].double()
        adapted, matrices = load_adapter(base, arguments.adapter)
        logits = adapted(ids).logits[0].double()
    scale = next(module.scaling["default"] for module in adapted.modules() if hasattr(module, "lora_A"))
    print(f"{matrices} matrices, scale {scale:.6g}, mean loss without {token_losses(plain, tokens)[1:].mean():.6f}, "
          f"with the adapter {token_losses(logits, tokens)[1:].mean():.6f}")
    if given:
        compared = torch.tensor(given["logits"], dtype=torch.float64).reshape(-1, logits.shape[1])
        difference = (compared - logits[-len(compared):]).abs().max().item() / logits.abs().max().item()
        print(f"{len(compared)} rows of logits: largest difference {difference:.2e} of the largest logit")
        if not difference < CHECKED_BOUND:
            sys.exit(f"differs by more than {CHECKED_BOUND}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

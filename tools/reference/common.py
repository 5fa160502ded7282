"""What the fixture scripts share: paths, exact dequantization, the reference step.

Nothing here is taken from selftune: transformers, peft, torch and MLX are the oracles.
"""

import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import mlx.core as mx
import numpy as np
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def fixtures(crate: str) -> Path:
    folder = REPOSITORY / "crates" / crate / "tests" / "fixtures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def to_mlx(tensor: torch.Tensor) -> mx.array:
    """The same bits as an MLX array; bfloat16 and float16 survive the trip through float32."""
    kinds = {torch.bfloat16: mx.bfloat16, torch.float16: mx.float16, torch.float32: mx.float32}
    return mx.array(tensor.detach().float().numpy()).astype(kinds[tensor.dtype])


def to_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


def affine_codes(packed: mx.array, groups: int, group_size: int, bits: int) -> np.ndarray:
    """Integer codes [n_out, k_in]: MLX's own unpacking, with scale 1 and bias 0."""
    ones = mx.ones((packed.shape[0], groups), dtype=mx.float32)
    codes = mx.dequantize(packed, ones, mx.zeros_like(ones), group_size=group_size, bits=bits)
    return np.array(codes).astype(np.int64)


def affine_values(packed: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> np.ndarray:
    """w = scale * code + bias in float64: the value that the packed form means, without any rounding."""
    codes = affine_codes(packed, scales.shape[1], group_size, bits).astype(np.float64)
    scale = np.repeat(to_numpy(scales).astype(np.float64), group_size, axis=1)
    bias = np.repeat(to_numpy(biases).astype(np.float64), group_size, axis=1)
    return scale * codes + bias


def token_losses(logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Negative log likelihood of token i given tokens before i; entry 0 is 0."""
    log_probability = torch.log_softmax(logits[:-1], dim=-1)
    picked = log_probability.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return torch.cat([torch.zeros(1, dtype=logits.dtype), -picked])

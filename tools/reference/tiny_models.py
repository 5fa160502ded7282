"""Writes crates/model/tests/fixtures/<family>/: tiny random models, adapters and what they must compute.

    python tiny_models.py [family ...]      write (all families without arguments)
    python tiny_models.py --verify [...]    run the written MLX folders through mlx_lm and compare the logits

Every number comes from transformers + peft in float64 on the exactly dequantized weights. What the files hold
is described in crates/model/tests/fixtures/README.md.
"""

import json
import shutil
import sys
from dataclasses import dataclass, field

from common import *  # noqa: F403 (sets the environment before transformers is imported)

from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS_COUNT = 24
LORA_RANK, LORA_ALPHA = 4, 8
LEARNING_RATE, WEIGHT_DECAY, ADAMW_STEPS = 3e-4, 0.01, 10
COMMON = dict(
    vocab_size=256, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=512, rms_norm_eps=1e-5,
    bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=True,
)


@dataclass
class Family:
    """One tiny model. `config` is in the spelling of older transformers (and of MLX folders)."""

    model_type: str
    config: dict
    quantizations: dict  # label -> {"bits", "group_size", module overrides}, each written as a folder mlx_<label>
    seed: int
    dtype: torch.dtype = torch.bfloat16
    old_spelling: bool = False  # hf/config.json with the top-level rope_theta
    on_grid: bool = False  # weights that 4-bit quantization represents exactly
    shard_size: str = "50GB"
    at_load: tuple = ()  # further 4-bit group sizes, only as losses: the reader quantizes hf/ itself


Q4_G64 = {"q4_g64": {"bits": 4, "group_size": 64}}
THREE_GROUPS = {f"q4_g{g}": {"bits": 4, "group_size": g} for g in (32, 64, 128)}
MIXED = {
    "bits": 4, "group_size": 64,
    "model.embed_tokens": {"bits": 6, "group_size": 64},
    "model.layers.0.self_attn.q_proj": {"bits": 3, "group_size": 64},
    "model.layers.0.self_attn.v_proj": {"bits": 8, "group_size": 32},
    "model.layers.0.mlp.down_proj": {"bits": 5, "group_size": 32},
    "model.layers.1.self_attn.o_proj": {"bits": 6, "group_size": 128},
    "model.layers.1.mlp.gate_proj": {"bits": 2, "group_size": 32},
    "model.layers.1.mlp.up_proj": {"bits": 3, "group_size": 32},
}
LLAMA3_ROPE = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
FAMILIES = {
    "llama": Family("llama", dict(rope_theta=10000.0, rope_scaling=LLAMA3_ROPE),
                    THREE_GROUPS | {"q8_g64": {"bits": 8, "group_size": 64}, "mixed": MIXED}, seed=11),
    "smollm2": Family("llama", dict(rope_theta=100000.0, num_key_value_heads=1), {}, seed=12,
                      dtype=torch.float16, on_grid=True, shard_size="200KB"),
    "mistral": Family("mistral", dict(rope_theta=10000.0, sliding_window=8, tie_word_embeddings=False,
                                      num_key_value_heads=1), Q4_G64, seed=13, at_load=(32, 128)),
    # Layer 2 has no rope although the interval alone would say layer 3: the list decides.
    "smollm3": Family("smollm3", dict(rope_theta=5000000.0, num_hidden_layers=4, num_key_value_heads=1,
                                      no_rope_layers=[1, 1, 0, 1], no_rope_layer_interval=4, rms_norm_eps=1e-6),
                      Q4_G64, seed=14, at_load=(32, 128)),
    "qwen2": Family("qwen2", dict(rope_theta=1000000.0, num_key_value_heads=1, intermediate_size=256,
                                  use_sliding_window=False, rms_norm_eps=1e-6), Q4_G64, seed=15, old_spelling=True,
                    at_load=(32, 128)),
    "qwen3": Family("qwen3", dict(rope_theta=1000000.0, num_attention_heads=8, attention_bias=False,
                                  use_sliding_window=False, rms_norm_eps=1e-6), Q4_G64, seed=16, at_load=(32, 128)),
    # The output projection reads 64 columns, so groups of 128 do not exist here.
    "gemma3": Family("gemma3_text", dict(rope_theta=1000000.0, rope_local_base_freq=10000.0, num_hidden_layers=3,
                                         num_attention_heads=2, num_key_value_heads=1, sliding_window=8,
                                         sliding_window_pattern=2, query_pre_attn_scalar=24, rms_norm_eps=1e-6,
                                         hidden_activation="gelu_pytorch_tanh"), Q4_G64, seed=17, at_load=(32,)),
}


def plain_config(family: Family) -> dict:
    architectures = {"llama": "Llama", "mistral": "Mistral", "smollm3": "SmolLM3", "qwen2": "Qwen2", "qwen3": "Qwen3",
                     "gemma3_text": "Gemma3"}
    config = COMMON | {"hidden_act": "silu"} | family.config | {"model_type": family.model_type}
    config["architectures"] = [architectures[family.model_type] + "ForCausalLM"]
    config["torch_dtype"] = str(family.dtype).removeprefix("torch.")
    if family.model_type == "gemma3_text":
        del config["hidden_act"]
    if family.model_type == "qwen2":
        del config["head_dim"]  # real Qwen2 configurations do not name it
    return config


def make_config(family: Family):
    values = plain_config(family)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    config._attn_implementation = "eager"
    return config


def fill(model, family: Family) -> None:
    """Random weights for which every part of the network matters: uneven attention and norms, real biases."""
    generator = torch.Generator().manual_seed(family.seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            center = 0.0 if family.model_type == "gemma3_text" else 1.0  # Gemma multiplies by 1 + w
            values = center + 0.3 * noise
        elif name.endswith("bias"):
            values = 0.5 * noise
        elif "embed_tokens" in name:
            values = 0.12 * noise  # logits of a few units, losses near ln 256
        else:
            values = noise / parameter.shape[1] ** 0.5
        if parameter.dim() == 2:
            values = put_on_grid(values) if family.on_grid else coarse(values)
        parameter.data.copy_(values.to(parameter.dtype))


def coarse(values: torch.Tensor) -> torch.Tensor:
    """About 80 different values: 4 bits still round them, and the repository stores them in half the space."""
    step = torch.exp2(torch.round(torch.log2(values.std() / 12)))
    return torch.round(values / step) * step


def put_on_grid(values: torch.Tensor) -> torch.Tensor:
    """Multiples -8..7 of one power of two a row, both ends in every 32 columns: 4 bits hold it at any group size."""
    deviation = values.std(dim=1, keepdim=True)
    scale = torch.exp2(torch.round(torch.log2(deviation / 3.0)))
    codes = torch.round(values / scale).clamp(-8, 7)
    for row in range(codes.shape[0]):  # at other columns in each row, else all rows look in one direction
        codes[row, (5 + 7 * row) % 32 :: 32] = -8
        codes[row, (22 + 11 * row) % 32 :: 32] = 7
    return codes * scale


def quantized_modules(model) -> list[str]:
    return [name for name, module in model.named_modules()
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding))
            and not (name == "lm_head" and model.config.tie_word_embeddings)]


def quantized(model, quantization: dict) -> tuple[dict, dict]:
    """MLX tensors of the quantized model, and the exact values of its matrices by tensor name."""
    tensors, exact = {}, {}
    modules = quantized_modules(model)
    for name, parameter in model.named_parameters():
        module = name.removesuffix(".weight")
        if module not in modules:
            tensors[name] = to_mlx(parameter)
            continue
        parts = quantization.get(module, quantization)
        bits, group_size = parts["bits"], parts["group_size"]
        packed, scales, biases = mx.quantize(to_mlx(parameter), group_size=group_size, bits=bits)
        tensors |= {name: packed, f"{module}.scales": scales, f"{module}.biases": biases}
        exact[name] = torch.from_numpy(affine_values(packed, scales, biases, group_size, bits))
    return tensors, exact


def write_mlx_folder(tensors: dict, family: Family, folder, quantization: dict) -> None:
    """An MLX folder, its configuration in the old spelling as in the published ones."""
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    config = plain_config(family) | {"quantization": quantization, "quantization_config": quantization}
    write_json(folder / "config.json", config)


class DoubleTorch:
    """torch as the modeling files see it, but their casts to float32 (norms, softmax) become casts to float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def double_norm(self, hidden):
    weight = 1 + self.weight if "Gemma" in type(self).__name__ else self.weight
    epsilon = self.eps if hasattr(self, "eps") else self.variance_epsilon
    return weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + epsilon)


def double_rotary(self, x, position_ids, layer_type=None):
    prefix = f"{layer_type}_" if layer_type else ""
    angles = position_ids[:, :, None].double() * getattr(self, f"{prefix}inv_freq").double()
    angles = torch.cat([angles, angles], dim=-1)
    scaling = getattr(self, f"{prefix}attention_scaling")
    return angles.cos() * scaling, angles.sin() * scaling


def compute_in_double(model) -> None:
    """transformers computes norms, softmax and angles in float32 whatever the type of the model; not here."""
    sys.modules[type(model).__module__].torch = DoubleTorch()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            type(module).forward = double_norm
        elif type(module).__name__.endswith("RotaryEmbedding"):
            type(module).forward = double_rotary


def float64_model(config_source, exact: dict):
    """transformers in float64 with the given values, the configuration read back from the written folder."""
    config = AutoConfig.from_pretrained(config_source)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).double()
    missing = model.load_state_dict(exact, strict=False).missing_keys
    assert [m for m in missing if m != "lm_head.weight"] == [], missing
    model.tie_weights()
    compute_in_double(model)
    return model.eval()


def make_input(family: Family) -> tuple[list[int], list[bool]]:
    generator = torch.Generator().manual_seed(1000 + family.seed)
    tokens = torch.randint(3, 256, (TOKENS_COUNT,), generator=generator).tolist()
    tokens[15] = tokens[4]  # a repeated token
    answer = set(range(7, 11)) | {14} | set(range(19, 24))
    return tokens, [i in answer for i in range(TOKENS_COUNT)]


def adapter_values(model, family: Family) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2000 + family.seed)
    values = {}
    for name, module in model.named_modules():
        if name.split(".")[-1] in PROJECTIONS:
            n_out, k_in = module.weight.shape
            values[f"{name}.lora_A"] = (torch.rand(LORA_RANK, k_in, generator=generator) * 2 - 1) / k_in**0.5
            values[f"{name}.lora_B"] = torch.randn(n_out, LORA_RANK, generator=generator) * 0.1
    return values


def with_adapter(model, values: dict, targets: list[str], blocks: list[int] | None):
    config = LoraConfig(r=LORA_RANK, lora_alpha=LORA_ALPHA, lora_dropout=0.0, target_modules=targets, bias="none",
                        layers_to_transform=blocks, task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            key = name.removeprefix("base_model.model.").removesuffix(".default.weight")
            parameter.data = values[key].to(parameter.dtype)
    return adapted


def trainable(adapted) -> dict[str, torch.Tensor]:
    return {name.removeprefix("base_model.model.").removesuffix(".default.weight"): parameter
            for name, parameter in adapted.named_parameters() if parameter.requires_grad}


def run_steps(adapted, tokens, mask) -> tuple[dict, list[float]]:
    """Gradients of the first mean loss, and the losses before each of ten AdamW steps and after the last."""
    chosen = torch.tensor(mask)
    ids = torch.tensor([tokens])
    parameters = trainable(adapted)
    assert all(p.dtype == torch.float64 for p in parameters.values())
    optimizer = torch.optim.AdamW(parameters.values(), lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=WEIGHT_DECAY)
    losses, gradients = [], None
    for _ in range(ADAMW_STEPS + 1):
        optimizer.zero_grad()
        loss = token_losses(adapted(ids).logits[0], tokens)[chosen].mean()
        losses.append(loss.item())
        loss.backward()
        if gradients is None:
            gradients = {name: p.grad.clone() for name, p in parameters.items()}
        optimizer.step()
    return gradients, losses


def write_expected(family: Family, folder, label: str, config_source, exact: dict, values: dict, tensors_too: bool):
    tokens, mask = make_input(family)
    ids = torch.tensor([tokens])
    last_block = (COMMON | family.config)["num_hidden_layers"] - 1
    tensors, summary = {}, {}
    with torch.no_grad():
        logits = float64_model(config_source, exact)(ids).logits[0]
        losses = token_losses(logits, tokens)
        tensors |= {"base.logits": logits, "base.token_losses": losses}
        summary["base"] = {"loss": losses[torch.tensor(mask)].mean().item()}
    variants = {"all": (PROJECTIONS, None), "qv": (["q_proj", "v_proj"], None), "last": (PROJECTIONS, [last_block])}
    for variant, (targets, blocks) in variants.items():
        adapted = with_adapter(float64_model(config_source, exact), values, targets, blocks).double()
        if variant == "all":
            with torch.no_grad():
                tensors["all.logits"] = adapted(ids).logits[0]
                tensors["all.token_losses"] = token_losses(tensors["all.logits"], tokens)
        gradients, step_losses = run_steps(adapted, tokens, mask)
        summary[variant] = {"losses": step_losses}
        if variant != "last":
            tensors |= {f"{variant}.grad.{name}": gradient for name, gradient in gradients.items()}
    if tensors_too:
        save_file({k: v.float().contiguous() for k, v in tensors.items()}, folder / f"expected_{label}.safetensors")
    write_json(folder / f"expected_{label}.json", summary)
    print(f"  {label}: base {summary['base']['loss']:.4f}, all {summary['all']['losses'][0]:.4f} -> "
          f"{summary['all']['losses'][-1]:.4f}, qv -> {summary['qv']['losses'][-1]:.4f}, "
          f"last -> {summary['last']['losses'][-1]:.4f}", flush=True)


def write_adapter(model, family: Family, name: str, folder, values: dict) -> None:
    """The adapter as peft itself saves it."""
    adapted = with_adapter(model, values, PROJECTIONS, None)
    adapted.peft_config["default"].base_model_name_or_path = f"tiny-{name}"
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def write_family(name: str) -> None:
    family = FAMILIES[name]
    folder = fixtures("model") / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    print(name, flush=True)
    model = AutoModelForCausalLM.from_config(make_config(family), dtype=family.dtype)
    fill(model, family)
    model.tie_weights()
    values = adapter_values(model, family)
    floats = {n: p.detach().double() for n, p in model.named_parameters()}
    model.save_pretrained(folder / "hf", max_shard_size=family.shard_size)
    (folder / "hf" / "generation_config.json").unlink(missing_ok=True)
    if family.old_spelling:
        write_json(folder / "hf" / "config.json", plain_config(family))
    for label, quantization in family.quantizations.items():
        tensors, exact = quantized(model, quantization)
        write_mlx_folder(tensors, family, folder / f"mlx_{label}", quantization)
        write_expected(family, folder, label, folder / f"mlx_{label}", floats | exact, values, tensors_too=True)
    for group_size in family.at_load:
        exact = quantized(model, {"bits": 4, "group_size": group_size})[1]
        write_expected(family, folder, f"q4_g{group_size}", folder / "hf", floats | exact, values, tensors_too=False)
    if family.on_grid:
        for group_size in (32, 64, 128):
            exact = quantized(model, {"bits": 4, "group_size": group_size})[1]
            assert all(torch.equal(exact[module], floats[module]) for module in exact)
        write_expected(family, folder, "float", folder / "hf", floats, values, tensors_too=True)
    else:
        compare_spellings(folder, floats)
    tokens, mask = make_input(family)
    write_json(folder / "input.json", {"tokens": tokens, "loss_mask": mask})
    write_adapter(model, family, name, folder / "adapter", values)


def compare_spellings(folder, floats: dict) -> None:
    """The configuration as transformers saved it and the older spelling in the MLX folder mean the same model."""
    ids = torch.tensor([list(range(3, 40))])
    mlx_folder = next(folder.glob("mlx_*"))
    with torch.no_grad():
        first = float64_model(folder / "hf", floats)(ids).logits
        second = float64_model(mlx_folder, floats)(ids).logits
    assert torch.equal(first, second)


def verify(name: str) -> None:
    """mlx_lm in float32 on the packed weights against the stored float64 logits of transformers."""
    from mlx_lm.utils import load_model
    from safetensors.numpy import load_file

    mx.set_default_device(mx.cpu)
    folder = fixtures("model") / name
    tokens = json.loads((folder / "input.json").read_text())["tokens"]
    for mlx_folder in sorted(folder.glob("mlx_*")):
        model, _ = load_model(mlx_folder)
        model.set_dtype(mx.float32)
        count = 8 if name == "mistral" else len(tokens)  # mlx_lm gives Mistral no window: only the first 8 agree
        logits = np.array(model(mx.array([tokens]))[0])[:count]
        expected = load_file(folder / f"expected_{mlx_folder.name.removeprefix('mlx_')}.safetensors")["base.logits"][:count]
        print(f"{name}/{mlx_folder.name}: largest difference {np.abs(logits - expected).max():.2e} "
              f"of {np.abs(expected).max():.2f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    for chosen in arguments or FAMILIES:
        (verify if "--verify" in sys.argv else write_family)(chosen)

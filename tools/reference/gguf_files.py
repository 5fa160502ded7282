"""Writes crates/formats/tests/fixtures/: GGUF blocks and files, and what mlx.quantize makes of special inputs.

    python gguf_files.py            write
    python gguf_files.py --verify   load the GGUF files with transformers' own reader and compare the logits
"""

import shutil
import sys

from common import *  # noqa: F403

import gguf
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import tiny_tokenizers
from tiny_models import float64_model, make_input, FAMILIES

OUT = fixtures("formats")

# Where a block keeps its 16-bit floats: byte offsets of d and of the minimum, if any.
FLOAT_OFFSETS = {
    Kind.Q4_0: [0], Kind.Q4_1: [0, 2], Kind.Q5_0: [0], Kind.Q5_1: [0, 2], Kind.Q8_0: [0],
    Kind.Q4_K: [0, 2], Kind.Q5_K: [0, 2], Kind.Q6_K: [208],
}


def write_blocks() -> None:
    """Three rows a kind: ordinary blocks, random bytes with random (also negative) scales, extremes."""
    generator = np.random.default_rng(21)
    tensors = {}
    for kind, offsets in FLOAT_OFFSETS.items():
        block_size, byte_size = gguf.GGML_QUANT_SIZES[kind]
        blocks_count = 2 if block_size == 256 else 3
        raw = generator.integers(0, 256, (3, blocks_count, byte_size), dtype=np.uint8)
        for row in range(3):
            for offset in offsets:
                scale = generator.normal(0, 0.02, blocks_count).astype(np.float16)
                if row == 2:  # zero, the smallest subnormal, the largest finite value (K-quants multiply it by 63)
                    scale = np.array([0.0, 6e-8, 60000.0 if block_size == 32 else 500.0], np.float16)[:blocks_count]
                raw[row, :, offset:offset + 2] = scale.view(np.uint8).reshape(blocks_count, 2)
        if block_size == 32:
            values = generator.normal(0, 0.1, (1, blocks_count * block_size)).astype(np.float32)
            raw[0] = gguf.quantize(values, kind).reshape(blocks_count, byte_size)
        raw = raw.reshape(3, -1)
        tensors[f"{kind.name}.raw"] = raw
        tensors[f"{kind.name}.values"] = gguf.dequantize(raw, kind).astype(np.float32)
    floats = generator.normal(0, 1, (3, 32)).astype(np.float32)
    floats[2, :6] = [0.0, -0.0, 6e-8, -6e-8, 60000.0, 1.0]
    half = floats.astype(np.float16)
    tensors |= {"F16.raw": half.view(np.uint8), "F16.values": half.astype(np.float32)}
    floats[2, :4] = [0.0, -0.0, 1e-40, 3e38]
    brain = gguf.quantize(floats, Kind.BF16)
    tensors |= {"BF16.raw": brain.view(np.uint8), "BF16.values": gguf.dequantize(brain, Kind.BF16)}
    assert all(np.isfinite(t).all() for n, t in tensors.items() if n.endswith("values"))
    save_numpy(tensors, OUT / "gguf_blocks.safetensors")


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from the half-split order to the one in which ggml rotates neighbours."""
    n_out = weight.shape[0]
    return weight.reshape(heads, 2, n_out // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def rope_factors(config) -> np.ndarray:
    """What llama.cpp's converter stores as rope_freqs.weight: by how much each frequency is divided."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    size = config.head_dim
    plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
    return (plain / scaled).float().numpy()


HF_TO_GGUF = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
KINDS = {
    "attn_q": Kind.Q4_1, "attn_k": Kind.Q4_0, "attn_v": Kind.Q5_0, "attn_output": Kind.Q5_1, "ffn_gate": Kind.Q8_0,
    "ffn_up": Kind.Q4_1, "ffn_down": Kind.Q4_0, "token_embd": Kind.Q8_0,
}


def gguf_name(name: str, gemma: bool) -> str:
    if name.startswith("model.embed_tokens"):
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, module = name.split(".", 3)
    module, kind = module.rsplit(".", 1)
    names = HF_TO_GGUF | (GEMMA_NORMS if gemma else {})
    return f"blk.{layer}.{names[module]}.{kind}"


def write_file(label: str, family: str, architecture: str, overrides: dict) -> None:
    hf = fixtures("model") / family / "hf"
    config = AutoConfig.from_pretrained(hf)
    source = {}
    for shard in sorted(hf.glob("*.safetensors")):
        source |= load_file(shard)
    for key, value in overrides.items():
        setattr(config, key, value)
    gemma = architecture == "gemma3"
    writer = gguf.GGUFWriter(str(OUT / f"{label}.gguf"), architecture)
    writer.add_name(f"tiny {family}")
    writer.add_license("apache-2.0")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture != "qwen2":
        writer.add_key_length(32)
        writer.add_value_length(32)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"] if gemma else rope["rope_theta"])
    if architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(32)
    if gemma:
        writer.add_sliding_window(config.sliding_window)
    add_tokenizer(writer, architecture)
    writer.add_quantization_version(2)
    exact = {}
    if not gemma and rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    for name, tensor in source.items():
        values = tensor.float().numpy()
        target = gguf_name(name, gemma)
        if values.ndim == 1:
            exact[name] = torch.from_numpy(values).double()
            writer.add_tensor(target, values + 1 if gemma and "norm" in name else values)
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        permuted = architecture == "llama" and heads is not None
        if permuted:
            values = interleave(values, heads)
        kind = KINDS[target.split(".")[-2]]
        packed = gguf.quantize(values, kind)
        writer.add_tensor(target, packed, raw_dtype=kind)
        dequantized = gguf.dequantize(packed, kind)
        if permuted:
            n_out = dequantized.shape[0]
            dequantized = dequantized.reshape(heads, n_out // heads // 2, 2, -1).swapaxes(1, 2).reshape(n_out, -1)
        exact[name] = torch.from_numpy(dequantized.copy()).double()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config_folder = OUT / "config_scratch"
    config.save_pretrained(config_folder)
    model = float64_model(config_folder, exact)
    shutil.rmtree(config_folder)
    tokens, _ = make_input(FAMILIES[family])
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].float().numpy()
    save_numpy({"tokens": np.array(tokens, np.int32), "logits": logits}, OUT / f"{label}.expected.safetensors")


def add_tokenizer(writer, architecture: str) -> None:
    if architecture == "gemma3":
        arrays = tiny_tokenizers.sentence_piece_arrays(tiny_tokenizers.sentence_piece(256, byte_fallback=False))
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(arrays["scores"])
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_unk_token_id(3)
        writer.add_pad_token_id(0)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(False)
        writer.add_add_space_prefix(False)
    else:
        arrays = tiny_tokenizers.byte_bpe_arrays(tiny_tokenizers.model_tokenizer())
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm" if architecture == "llama" else "qwen2")
        writer.add_token_merges(arrays["merges"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(0)
        writer.add_add_bos_token(False)
        writer.add_chat_template(tiny_tokenizers.CHATML)
    writer.add_token_list(arrays["tokens"])
    writer.add_token_types(arrays["token_types"])


def quantizer_inputs(group_size: int) -> np.ndarray:
    """Rows [14, 256] whose groups reach every branch of an affine quantizer."""
    generator = np.random.default_rng(22)
    ordinary = generator.normal(0, 0.05, (6, 256))
    constant = np.repeat(generator.normal(0, 1, 256 // group_size), group_size)[None]
    zeros = np.zeros((1, 256))
    negative = -np.abs(generator.normal(0, 0.3, (1, 256))) - 0.1
    positive = np.abs(generator.normal(0, 0.3, (1, 256))) + 0.1
    outlier = generator.normal(0, 0.01, (1, 256))
    outlier[0, 3::group_size] = 7.5
    outlier[0, 3] = -7.5
    tiny = generator.normal(0, 1e-7, (1, 256))
    tiny[0, 128:] *= 1e-8
    two_values = np.where(generator.random((1, 256)) < 0.5, 0.25, -0.75)
    ties = (generator.integers(0, 31, (1, 256)) - 15) / 32.0  # halves of a code
    return np.concatenate([ordinary, constant, zeros, negative, positive, outlier, tiny, two_values, ties]).astype(np.float32)


def write_quantizer() -> None:
    """input.<dtype>.g<group>, then codes (u8), scales and biases (as MLX stores them) of every width."""
    tensors, packed_tensors = {}, {}
    for name, dtype in {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}.items():
        for group_size in (32, 64, 128):
            values = mx.array(quantizer_inputs(group_size)).astype(dtype)
            tensors[f"{name}.g{group_size}.input"] = values
            for bits in (4, 8):
                packed, scales, biases = mx.quantize(values, group_size=group_size, bits=bits)
                key = f"{name}.g{group_size}.b{bits}"
                codes = affine_codes(packed, scales.shape[1], group_size, bits)
                tensors |= {f"{key}.codes": mx.array(codes.astype(np.uint8)), f"{key}.scales": scales, f"{key}.biases": biases}
    mx.save_safetensors(str(OUT / "mlx_quantize.safetensors"), tensors)
    values = mx.array(np.random.default_rng(23).normal(0, 1, (3, 128)).astype(np.float32)).astype(mx.bfloat16)
    for bits in (2, 3, 4, 5, 6, 8):
        for group_size in (32, 64, 128):
            packed, scales, biases = mx.quantize(values, group_size=group_size, bits=bits)
            key = f"b{bits}.g{group_size}"
            codes = affine_codes(packed, scales.shape[1], group_size, bits)
            exact = affine_values(packed, scales, biases, group_size, bits).astype(np.float32)
            packed_tensors |= {f"{key}.weight": packed, f"{key}.scales": scales, f"{key}.biases": biases,
                               f"{key}.codes": mx.array(codes.astype(np.uint8)), f"{key}.values": mx.array(exact)}
    mx.save_safetensors(str(OUT / "mlx_packing.safetensors"), packed_tensors)


def verify() -> None:
    """transformers' own GGUF reader gives the same logits (it ignores rope_freqs and qwen3.attention.key_length)."""
    for label in ("tiny_llama", "tiny_qwen2", "tiny_gemma3"):
        expected = load_numpy(OUT / f"{label}.expected.safetensors")
        model = AutoModelForCausalLM.from_pretrained(OUT, gguf_file=f"{label}.gguf", dtype=torch.float32,
                                                     attn_implementation="eager")
        if label == "tiny_gemma3":  # transformers assumes a scale of 256, the head size of the real models
            for layer in model.model.layers:
                layer.self_attn.scaling = 32**-0.5
        tokens = torch.from_numpy(expected["tokens"]).long()[None]
        with torch.no_grad():
            difference = np.abs(model(tokens).logits[0].numpy() - expected["logits"]).max()
        print(f"{label}: largest difference {difference:.2e} of {np.abs(expected['logits']).max():.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--verify" in sys.argv:
        verify()
    else:
        write_blocks()
        write_quantizer()
        write_file("tiny_llama", "smollm2", "llama", {})
        write_file("tiny_llama3", "llama", "llama", {})
        write_file("tiny_qwen2", "qwen2", "qwen2", {})
        write_file("tiny_qwen3", "qwen3", "qwen3", {})
        # GGUF has neither the layer pattern nor the attention scale: with llama.cpp every sixth layer is full and
        # the scale is 1 / sqrt(head size).
        write_file("tiny_gemma3", "gemma3", "gemma3", {"layer_types": ["sliding_attention"] * 3, "query_pre_attn_scalar": 32,
                                                       "_sliding_window_pattern": 6})

"""Writes crates/kernels/tests/fixtures/qlinear_mlx.safetensors: quantized products by MLX, forward and its gradient.

    python mlx_check.py

Inputs, scales and biases are float32: MLX on the CPU is exact then (with float16 inputs it is off by a percent). Every
result is compared here with the product over the dequantized weights in float64.
"""

from common import *  # noqa: F403

# (n_out, k_in, rows of x, bits, group size): columns of one and of several groups, n_out around 64 and no multiple of it.
SHAPES = [
    (40, 32, 1, 4, 32), (64, 128, 3, 4, 64), (65, 128, 13, 4, 128), (96, 192, 5, 4, 32), (129, 64, 2, 4, 64),
    (72, 256, 9, 4, 128), (40, 64, 4, 8, 32), (100, 128, 7, 8, 64), (65, 128, 1, 8, 128), (8, 320, 6, 4, 64),
]


def case(index: int, n_out: int, k_in: int, rows: int, bits: int, group_size: int) -> dict:
    generator = np.random.default_rng(100 + index)
    weight = generator.normal(0, k_in**-0.5, (n_out, k_in)).astype(np.float32)
    packed, scales, biases = mx.quantize(mx.array(weight), group_size=group_size, bits=bits)
    x = mx.array(generator.normal(0, 1, (rows, k_in)).astype(np.float32))
    dy = mx.array(generator.normal(0, 1, (rows, n_out)).astype(np.float32))

    def product(x):
        return mx.quantized_matmul(x, packed, scales, biases, transpose=True, group_size=group_size, bits=bits)

    outputs, gradients = mx.vjp(product, [x], [dy])
    y, dx = outputs[0], gradients[0]
    exact = affine_values(packed, scales, biases, group_size, bits)
    for name, found, wanted in (("y", y, to_numpy(x).astype(np.float64) @ exact.T), ("dx", dx, to_numpy(dy).astype(np.float64) @ exact)):
        error = np.abs(to_numpy(found) - wanted).max() / np.abs(wanted).max()
        assert error < 2e-6, (index, name, error)
    key = f"n{n_out}.k{k_in}.m{rows}.b{bits}.g{group_size}"
    codes = mx.array(affine_codes(packed, scales.shape[1], group_size, bits).astype(np.uint8))
    parts = {"codes": codes, "scales": scales, "biases": biases, "x": x, "y": y, "dy": dy, "dx": dx}
    assert (to_numpy(scales) < 0).any()
    return {f"{key}.{name}": value for name, value in parts.items()}


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    tensors = {}
    for index, shape in enumerate(SHAPES):
        tensors |= case(index, *shape)
    mx.save_safetensors(str(fixtures("kernels") / "qlinear_mlx.safetensors"), tensors)

//! Rates of the float ops on one thread, by its processor time, or on several, by the clock:
//! `cargo run --release -p selftune-kernels --example op_rates [filter [runs [threads]]]`.
//! Each line says what was computed, how fast (median and fastest run), and the peak it is measured against.
//! Answers are checked by the tests, not here.

use kernels::{
    ArenaPlan, AttentionShape, Dropout, GateValues, Isa, KeptGates, LoraBackward, LoraForward, Ops, OpsOptions,
    Precision, Tensor,
};

/// Whether a line with this name was asked for.
fn wanted(name: &str) -> bool {
    name.contains(&std::env::args().nth(1).unwrap_or_default())
}

fn argument(position: usize, default: usize) -> usize {
    std::env::args().nth(position).and_then(|number| number.parse().ok()).unwrap_or(default)
}

/// Timed runs of each line.
fn runs() -> usize {
    argument(2, 9)
}

fn threads() -> usize {
    argument(3, 1)
}

/// Processor time of the one thread, or time passed.
fn seconds_now() -> f64 {
    if threads() == 1 { thread_seconds() } else { clock_seconds() }
}

/// Processor time of this thread: other programs on the machine do not count.
#[cfg(unix)]
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Unix and writes one `timespec`.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "the thread's clock");
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Time passed, where the thread's own is not to be had.
#[cfg(not(unix))]
fn thread_seconds() -> f64 {
    clock_seconds()
}

fn clock_seconds() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
}

fn options() -> OpsOptions {
    OpsOptions { threads: threads(), isa: Isa::best(), precision: Precision::A16 }
}

/// Runs `op` on tensors of these shapes and prints what `work` (multiply-adds or bytes, in 10^9) it did in a second.
fn measure(name: &str, unit: &str, shapes: &[(usize, usize)], work: f64, op: impl Fn(&mut Ops, &[Tensor])) {
    if !wanted(name) {
        return;
    }
    let runs = runs();
    let mut plan = ArenaPlan::new();
    let tensors: Vec<Tensor> = shapes.iter().map(|(rows, columns)| plan.tensor(*rows, *columns)).collect();
    let mut planner = Ops::planner(options());
    op(&mut planner, &tensors);
    let mut ops = Ops::new(options(), &plan, planner.counters().scratch_bytes);
    let mut state = 1u32;
    for tensor in &tensors {
        let values: Vec<f32> = (0..tensor.len())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect();
        ops.write(*tensor, &values);
    }
    op(&mut ops, &tensors);
    let mut seconds: Vec<f64> = (0..runs)
        .map(|_| {
            let start = seconds_now();
            op(&mut ops, &tensors);
            seconds_now() - start
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let rate = |seconds: f64| work / seconds / 1e9;
    println!(
        "{name:44} {:7.1} {:7.1} {unit}  {:9.3} ms",
        rate(seconds[runs / 2]),
        rate(seconds[0]),
        1e3 * seconds[runs / 2]
    );
}

fn attention(tokens: usize, heads: usize, kv_heads: usize, head_dim: usize) {
    let shape = AttentionShape { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window: None };
    let positions: Vec<u32> = (0..tokens as u32).collect();
    let pairs = (tokens * (tokens + 1) / 2 * heads * head_dim) as f64;
    let (q, k) = ((tokens, heads * head_dim), (tokens, kv_heads * head_dim));
    let name = format!("attention T {tokens} H {heads}/{kv_heads} d {head_dim}");
    measure(&format!("{name} forward"), "GMAC/s", &[q, k, k, q, (tokens, heads)], 2.0 * pairs, |ops, t| {
        ops.attention_forward(&shape, &positions, t[0], t[1], t[2], t[3], t[4]);
    });
    let shapes = [q, k, k, q, (tokens, heads), q, q, k, k];
    measure(&format!("{name} backward"), "GMAC/s", &shapes, 5.0 * pairs, |ops, t| {
        ops.attention_backward(
            &shape,
            &positions,
            t[0],
            t[1],
            t[2],
            t[3],
            t[4],
            t[5],
            Some(t[6]),
            Some(t[7]),
            Some(t[8]),
        );
    });
    let last = [tokens as u32 - 1];
    let bytes = (2 * tokens * kv_heads * head_dim * 4) as f64;
    let one = (1, heads * head_dim);
    measure(&format!("{name} one query"), "GB/s  ", &[one, k, k, one, (1, heads)], bytes, |ops, t| {
        ops.attention_forward(&shape, &last, t[0], t[1], t[2], t[3], t[4]);
    });
}

/// The adapters of one input: `outputs` are their columns of y.
fn lora(tokens: usize, k: usize, outputs: &[usize], rank: usize, rate: f32) {
    let dropout = Dropout { rate, seed: 7 };
    let name = format!("lora T {tokens} K {k} N {outputs:?} r {rank} dropout {rate}");
    let macs: usize = outputs.iter().map(|n| tokens * rank * (k + n)).sum();
    // x and dx, then a, b, hidden, y (or dy), da, db of each.
    let mut shapes = vec![(tokens, k); 2];
    for n in outputs {
        shapes.extend([(rank, k), (*n, rank), (tokens, rank), (tokens, *n), (rank, k), (*n, rank)]);
    }
    measure(&format!("{name} forward"), "GMAC/s", &shapes, macs as f64, |ops, t| {
        let part = |t: &[Tensor]| Some(LoraForward { a: t[0], b: t[1], scale: 1e-3, dropout, hidden: t[2], y: t[3] });
        ops.lora_forward(t[0], &t[2..].chunks(6).map(part).collect::<Vec<_>>());
    });
    measure(&format!("{name} backward"), "GMAC/s", &shapes, 2.0 * macs as f64, |ops, t| {
        let part = |t: &[Tensor]| {
            let (a, b, scale, hidden, dy, da, db) = (t[0], t[1], 1e-3, t[2], t[3], t[4], t[5]);
            Some(LoraBackward { a, b, scale, dropout, hidden, dy, da, db })
        };
        ops.lora_backward(t[0], &t[2..].chunks(6).map(part).collect::<Vec<_>>(), Some(t[1]));
    });
}

fn head(rows: usize, vocabulary: usize, width: usize) {
    let name = format!("head M {rows} V {vocabulary} D {width}");
    if !wanted(&format!("{name} losses")) && !wanted(&format!("{name} gradient")) {
        return;
    }
    let groups = vocabulary * width / 64;
    let matrix = kernels::AffineMatrix {
        n_out: vocabulary,
        k_in: width,
        bits: 4,
        group_size: 64,
        codes: (0..vocabulary * width).map(|i| (i.wrapping_mul(2_654_435_761) >> 7 & 15) as u8).collect(),
        scales: vec![1.0 / 256.0; groups],
        biases: vec![-7.5 / 256.0; groups],
        scale_type: kernels::ScaleType::BFloat16,
    };
    let weight = kernels::PackedMatrix::pack(&matrix).expect("a valid matrix");
    let targets: Vec<u32> = (0..rows).map(|row| (row * 977 % vocabulary) as u32).collect();
    let macs = (rows * vocabulary * width) as f64;
    let losses = std::cell::RefCell::new(vec![0f32; rows]);
    let shape = (rows, width);
    measure(&format!("{name} losses"), "GMAC/s", &[shape], macs, |ops, t| {
        ops.head_cross_entropy(&weight, t[0], &targets, &mut losses.borrow_mut(), None);
    });
    measure(&format!("{name} gradient"), "GMAC/s", &[shape; 2], 2.0 * macs, |ops, t| {
        ops.head_cross_entropy(&weight, t[0], &targets, &mut losses.borrow_mut(), Some((t[1], 1.0)));
    });
}

fn main() {
    println!("instruction set {}; median, fastest, median time", Isa::best().name());
    attention(256, 9, 3, 64);
    attention(512, 9, 3, 64);
    attention(1024, 9, 3, 64);
    attention(256, 16, 4, 128);
    attention(1024, 16, 4, 128);
    attention(512, 8, 8, 64);
    attention(512, 4, 1, 256);
    for rank in [8, 16, 32, 64] {
        lora(512, 576, &[576], rank, 0.0);
        lora(512, 2048, &[2048], rank, 0.0);
    }
    // q, k and v, gate and up, down of the 135M shape.
    lora(512, 576, &[576, 192, 192], 8, 0.0);
    lora(512, 576, &[1536, 1536], 8, 0.0);
    lora(512, 1536, &[576], 8, 0.0);
    lora(512, 2048, &[2048], 8, 0.05);
    lora(512, 2048, &[11008], 8, 0.0);
    lora(1, 2048, &[2048], 8, 0.0);
    head(100, 49152, 576);
    head(250, 32768, 2048);
    let wide = (512, 2048);
    let bytes = |tensors: usize| (tensors * wide.0 * wide.1 * 4) as f64;
    let weight = kernels::FloatVector::from_slice(&vec![1.0; wide.1]);
    measure("rms_norm forward 512 x 2048", "GB/s  ", &[wide; 2], bytes(2), |ops, t| {
        ops.rms_norm_forward(t[0], &weight, 1e-5, t[1]);
    });
    measure("rms_norm backward 512 x 2048", "GB/s  ", &[wide; 3], bytes(3), |ops, t| {
        ops.rms_norm_backward(t[0], &weight, 1e-5, t[1], t[2], false);
    });
    // The first two tensors of each line that has them.
    let kept = KeptGates::new(&mut ArenaPlan::new(), wide.0, wide.1);
    let kept_shapes = [wide, (wide.0, wide.1 / 32)];
    for activation in [kernels::Activation::Silu, kernels::Activation::GeluTanh] {
        measure(&format!("gate {activation:?} forward 512 x 2048"), "GB/s  ", &[wide; 3], bytes(3), |ops, t| {
            ops.gate_forward(activation, t[0], t[1], t[2]);
        });
        measure(&format!("gate {activation:?} backward 512 x 2048"), "GB/s  ", &[wide; 5], bytes(5), |ops, t| {
            ops.gate_backward(activation, GateValues::Float32 { gate: t[0], up: t[1] }, t[2], t[3], t[4]);
        });
        let shapes = [&kept_shapes[..], &[wide; 5]].concat();
        let keeping = format!("gate {activation:?} forward keeping 512 x 2048");
        measure(&keeping, "GB/s  ", &shapes, bytes(4), |ops, t| {
            ops.gate_forward_keeping(activation, t[2], t[3], t[4], kept);
        });
        let runs = std::cell::Cell::new(0);
        measure(&format!("gate {activation:?} backward kept 512 x 2048"), "GB/s  ", &shapes, bytes(4), |ops, t| {
            // Planned and run once for the values to be there; neither is timed.
            if runs.replace(runs.get() + 1) < 2 {
                ops.gate_forward_keeping(activation, t[2], t[3], t[4], kept);
            }
            ops.gate_backward(activation, GateValues::Kept(kept), t[2], t[3], t[4]);
        });
        measure(&format!("gate {activation:?} backward rounded 512 x 2048"), "GB/s  ", &shapes, bytes(5), |ops, t| {
            ops.gate_backward(activation, GateValues::Rounded { gate: t[2], up: t[3] }, t[4], t[5], t[6]);
        });
    }
    measure("add 512 x 2048", "GB/s  ", &[wide; 2], bytes(3), |ops, t| ops.add(t[0], t[1]));
    measure("copy 512 x 2048", "GB/s  ", &[wide; 2], bytes(2), |ops, t| ops.copy(t[0], t[1]));
    let inverse: Vec<f32> = (0..64).map(|i| 1e4f32.powf(-(i as f32) / 64.0)).collect();
    let (table, positions) = (kernels::RopeTable::new(&inverse, 512, 1.0), (0..512).collect::<Vec<u32>>());
    measure("rope 512 x 2048", "GB/s  ", &[wide], bytes(2), |ops, t| ops.rope_forward(t[0], &table, &positions));
    let parameters = kernels::AdamWParameters {
        learning_rate: 1e-4,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.01,
        step: 3,
        gradient_factor: 1.0,
    };
    measure("adamw 512 x 2048", "GB/s  ", &[wide; 4], bytes(7), |ops, t| {
        ops.scale(t[3], 0.0);
        ops.adamw(t[0], t[1], t[2], t[3], &parameters);
    });
    measure("sum_of_squares 512 x 2048", "GB/s  ", &[wide], bytes(1), |ops, t| {
        ops.sum_of_squares(t[0]);
    });
    measure("is_finite 512 x 2048", "GB/s  ", &[wide], bytes(1), |ops, t| {
        ops.is_finite(t[0]);
    });
}

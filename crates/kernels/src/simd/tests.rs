use super::*;

/// Results of each primitive on two input vectors.
struct Primitives {
    a: [f32; LANES],
    b: [f32; LANES],
}

impl Kernel for Primitives {
    type Output = Vec<[f32; LANES]>;
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Self::Output {
        // SAFETY: both arrays have 16 floats.
        let (a, b) = unsafe { (S::load(self.a.as_ptr()), S::load(self.b.as_ptr())) };
        let mut results = vec![
            (a + b).to_array(),
            (a - b).to_array(),
            (a * b).to_array(),
            (a / b).to_array(),
            a.mul_add(b, a).to_array(),
            a.sqrt().to_array(),
            a.max(b).to_array(),
            a.min(b).to_array(),
            a.select_less(b, a, b).to_array(),
            exp(a).to_array(),
            exp(b).to_array(),
            [a.reduce_add(); LANES],
            [f32::from(u8::from(a.any_above(b))), f32::from(u8::from(b.any_above(b)))].repeat(8).try_into().unwrap(),
            exp_up_to_88(b).to_array(),
        ];
        if self.a.iter().all(|x| !x.is_nan()) {
            results.push([a.reduce_max(); LANES]);
        }
        let mut block: [S; LANES] = std::array::from_fn(|i| a * S::splat(i as f32) + b);
        S::transpose(&mut block);
        results.extend(block.map(S::to_array));
        // All 32 bytes at a time: 16 halves, or twice 16 bytes.
        let bytes = self.a.as_ptr().cast::<u8>();
        // SAFETY: the array has 64 bytes.
        unsafe {
            for start in [0, 32] {
                results.push(S::load_f16(bytes.add(start).cast()).to_array());
            }
            for start in [0, 16, 32, 48] {
                results.push(S::load_i8(bytes.add(start).cast()).to_array());
            }
        }
        for count in 0..=LANES {
            let mut out = [-7f32; LANES];
            // SAFETY: both arrays have 16 floats.
            unsafe { S::load_partial(self.b.as_ptr(), count).store_partial(out.as_mut_ptr(), count) };
            results.push(out);
            // SAFETY: as above.
            results.push(unsafe { S::load_partial(self.b.as_ptr(), count) }.to_array());
        }
        results
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

#[test]
fn primitives_give_the_same_bits_on_every_instruction_set() {
    let special = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -87.4, 88.8, 88.6, -0.3];
    for round in 0..200u32 {
        let mut state = round.wrapping_mul(2_654_435_761).wrapping_add(12345);
        let mut next = |spread: f32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / 8_388_608.0 - 1.0) * spread
        };
        let mut a: [f32; LANES] = std::array::from_fn(|_| next(100.0));
        let b: [f32; LANES] = std::array::from_fn(|_| next(2.0));
        if round % 4 == 0 {
            a[..special.len()].copy_from_slice(&special);
        }
        // SAFETY: the kernel reads only its own arrays.
        let expected = unsafe { dispatch(Isa::portable(), Primitives { a, b }) };
        let transposed = &expected[expected.len() - 2 * (LANES + 1) - 6 - LANES..][..LANES];
        for (i, row) in transposed.iter().enumerate() {
            let column: [f32; LANES] = std::array::from_fn(|r| a[i] * r as f32 + b[i]);
            assert!(same_bits(row, &column), "transposed row {i}");
        }
        for isa in Isa::available() {
            // SAFETY: as above.
            let found = unsafe { dispatch(isa, Primitives { a, b }) };
            for (i, (expected, found)) in expected.iter().zip(&found).enumerate() {
                assert!(same_bits(expected, found), "{} result {i}: {found:?}, portable {expected:?}", isa.name());
            }
        }
    }
}

struct Halves<'a> {
    halves: &'a [u16; LANES],
    bytes: &'a [i8; LANES],
}

impl Kernel for Halves<'_> {
    type Output = [[f32; LANES]; 2];
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Self::Output {
        // SAFETY: both arrays have 16 values.
        unsafe { [S::load_f16(self.halves.as_ptr()).to_array(), S::load_i8(self.bytes.as_ptr()).to_array()] }
    }
}

#[test]
fn every_float16_and_every_byte_is_read_exactly() {
    for isa in Isa::available() {
        for first in (0..=u16::MAX).step_by(LANES) {
            let halves: [u16; LANES] = std::array::from_fn(|i| first + i as u16);
            let bytes: [i8; LANES] = halves.map(|half| half as u8 as i8);
            // SAFETY: the kernel reads only its own arrays.
            let [floats, integers] = unsafe { dispatch(isa, Halves { halves: &halves, bytes: &bytes }) };
            for i in 0..LANES {
                let (sign, exponent, fraction) = (halves[i] >> 15, i32::from(halves[i] >> 10 & 31), halves[i] & 1023);
                let magnitude = match (exponent, fraction) {
                    (31, 0) => f64::INFINITY,
                    (31, _) => f64::NAN,
                    (0, _) => f64::from(fraction) * 2f64.powi(-24),
                    _ => f64::from(1024 + fraction) * 2f64.powi(exponent - 25),
                };
                let expected = (if sign == 1 { -magnitude } else { magnitude }) as f32;
                assert!(same_bits(&[expected], &[floats[i]]), "{}: {:#06x} is {}", isa.name(), halves[i], floats[i]);
                assert_eq!(integers[i], f32::from(bytes[i]), "{}", isa.name());
            }
        }
    }
}

struct Exp<'a>(&'a mut [f32]);

impl Kernel for Exp<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for chunk in self.0.chunks_exact_mut(LANES) {
            // SAFETY: a chunk has 16 floats.
            unsafe { exp(S::load(chunk.as_ptr())).store(chunk.as_mut_ptr()) }
        }
    }
}

#[test]
fn exp_is_accurate_over_its_whole_range() {
    let inputs: Vec<f32> = (0..160_000).map(|i| -88.0 + i as f32 * (176.8 / 160_000.0)).collect();
    let mut outputs = inputs.clone();
    // SAFETY: the kernel works on its own slice.
    unsafe { dispatch(Isa::best(), Exp(&mut outputs)) };
    for (x, y) in inputs.iter().zip(&outputs) {
        let exact = f64::from(*x).exp();
        if exact < f64::from(f32::MIN_POSITIVE) {
            assert!(*y == 0.0 || f64::from(*y) < 1.2 * f64::from(f32::MIN_POSITIVE), "exp({x}) = {y}");
        } else if exact > f64::from(f32::MAX) {
            assert!(*y == f32::INFINITY, "exp({x}) = {y}");
        } else {
            let error = (f64::from(*y) / exact - 1.0).abs();
            assert!(error < 2e-7, "exp({x}) = {y}, error {error:e}");
        }
    }
}

#[test]
fn exp_of_special_values() {
    let mut values = [0.0; LANES];
    values[..6].copy_from_slice(&[0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e30]);
    // SAFETY: the kernel works on its own slice.
    unsafe { dispatch(Isa::best(), Exp(&mut values)) };
    assert_eq!(values[0], 1.0);
    assert_eq!(values[1], 1.0);
    assert!(values[2].is_nan());
    assert_eq!(values[3], f32::INFINITY);
    assert_eq!(values[4], 0.0);
    assert_eq!(values[5], 0.0);
}

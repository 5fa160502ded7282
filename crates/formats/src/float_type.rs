//! The three float types of weights in files.

use half::{bf16, f16};
use kernels::ScaleType;

/// A float type as files store it, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloatType {
    Float32,
    Float16,
    BFloat16,
}

impl FloatType {
    pub(crate) fn bytes(self) -> usize {
        match self {
            FloatType::Float32 => 4,
            FloatType::Float16 | FloatType::BFloat16 => 2,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            FloatType::Float32 => "f32",
            FloatType::Float16 => "f16",
            FloatType::BFloat16 => "bf16",
        }
    }

    pub(crate) fn scale_type(self) -> ScaleType {
        match self {
            FloatType::Float32 => ScaleType::Float32,
            FloatType::Float16 => ScaleType::Float16,
            FloatType::BFloat16 => ScaleType::BFloat16,
        }
    }

    /// `value` rounded to this type (to nearest, ties to even) and widened again.
    pub(crate) fn round(self, value: f32) -> f32 {
        match self {
            FloatType::Float32 => value,
            FloatType::Float16 => f16::from_f32(value).to_f32(),
            FloatType::BFloat16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Widens stored values to float32, which is exact. `bytes` holds exactly `values.len()` of them.
    pub(crate) fn widen(self, bytes: &[u8], values: &mut [f32]) {
        assert_eq!(bytes.len(), values.len() * self.bytes());
        match self {
            FloatType::Float32 => {
                for (value, stored) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*stored);
                }
            }
            FloatType::Float16 => {
                for (value, stored) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f16::from_le_bytes(*stored).to_f32();
                }
            }
            FloatType::BFloat16 => {
                for (value, stored) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = bf16::from_le_bytes(*stored).to_f32();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widens_known_bit_patterns() {
        let mut values = [0.0; 2];
        FloatType::Float16.widen(&[0x00, 0x3c, 0x01, 0x80], &mut values);
        assert_eq!(values, [1.0, -(2.0f32.powi(-24))]);
        FloatType::BFloat16.widen(&[0x80, 0x3f, 0x00, 0xc0], &mut values);
        assert_eq!(values, [1.0, -2.0]);
        FloatType::Float32.widen(&[0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc1], &mut values);
        assert_eq!(values, [1.0, -10.0]);
    }

    #[test]
    fn rounds_ties_to_even() {
        assert_eq!(FloatType::BFloat16.round(1.0 + 2.0f32.powi(-8)), 1.0);
        assert_eq!(FloatType::BFloat16.round(1.0 + 3.0 * 2.0f32.powi(-8)), 1.0 + 2.0f32.powi(-6));
        assert_eq!(FloatType::Float16.round(1.0 + 2.0f32.powi(-11)), 1.0);
    }
}

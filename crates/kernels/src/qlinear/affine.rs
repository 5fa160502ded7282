//! Frozen matrices as files hold them: one code a weight, a scale and a bias for every group of codes.

use half::{bf16, f16};

/// How a matrix stores its scales and biases. They are kept in this type exactly, never rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleType {
    BFloat16,
    Float16,
    Float32,
}

impl ScaleType {
    pub const ALL: [ScaleType; 3] = [ScaleType::BFloat16, ScaleType::Float16, ScaleType::Float32];

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            ScaleType::BFloat16 | ScaleType::Float16 => 2,
            ScaleType::Float32 => 4,
        }
    }
    /// `bf16`, `f16` or `f32`.
    pub fn name(self) -> &'static str {
        match self {
            ScaleType::BFloat16 => "bf16",
            ScaleType::Float16 => "f16",
            ScaleType::Float32 => "f32",
        }
    }
    pub fn by_name(name: &str) -> Option<ScaleType> {
        ScaleType::ALL.into_iter().find(|scale_type| scale_type.name() == name)
    }
    /// Whether `value` is finite and survives a round trip through this type.
    pub fn represents(self, value: f32) -> bool {
        value.is_finite()
            && match self {
                ScaleType::BFloat16 => bf16::from_f32(value).to_f32() == value,
                ScaleType::Float16 => f16::from_f32(value).to_f32() == value,
                ScaleType::Float32 => true,
            }
    }
    /// Writes `value` in this type, little-endian, at the start of `out`.
    pub(super) fn write(self, value: f32, out: &mut [u8]) {
        match self {
            ScaleType::BFloat16 => out[..2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            ScaleType::Float16 => out[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            ScaleType::Float32 => out[..4].copy_from_slice(&value.to_le_bytes()),
        }
    }
    /// The value of this type at the start of `bytes`.
    pub(super) fn read(self, bytes: &[u8]) -> f32 {
        match self {
            ScaleType::BFloat16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            ScaleType::Float16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            ScaleType::Float32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        }
    }
}

/// Group sizes that the kernels know, in weights along k.
pub const GROUP_SIZES: [usize; 4] = [16, 32, 64, 128];

/// A frozen matrix W[n_out, k_in] with `w[n, k] = scale[n, g]·code[n, k] + bias[n, g]`, `g = k / group_size`.
#[derive(Clone, Debug, PartialEq)]
pub struct AffineMatrix {
    pub n_out: usize,
    pub k_in: usize,
    /// Bits of a code, 2 to 8.
    pub bits: u32,
    /// One of [`GROUP_SIZES`]; divides `k_in`.
    pub group_size: usize,
    /// [n_out, k_in], one code a byte, each below `2^bits`.
    pub codes: Vec<u8>,
    /// [n_out, k_in / group_size], exactly representable in `scale_type`.
    pub scales: Vec<f32>,
    /// [n_out, k_in / group_size], exactly representable in `scale_type`.
    pub biases: Vec<f32>,
    pub scale_type: ScaleType,
}

/// What is wrong with an [`AffineMatrix`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AffineError {
    #[error("matrix of [{n_out}, {k_in}] has no weights")]
    Empty { n_out: usize, k_in: usize },
    #[error("codes of {bits} bits; expected 2 to 8")]
    Bits { bits: u32 },
    #[error("groups of {group_size} weights; expected 16, 32, 64 or 128")]
    GroupSize { group_size: usize },
    #[error("{k_in} columns do not divide into groups of {group_size}")]
    Columns { k_in: usize, group_size: usize },
    #[error("{what}: {found} values; [{n_out}, {k_in}] in groups of {group_size} needs {expected}")]
    Length { what: &'static str, n_out: usize, k_in: usize, group_size: usize, expected: usize, found: usize },
    #[error("code {code} at [{row}, {column}] does not fit {bits} bits")]
    Code { row: usize, column: usize, code: u8, bits: u32 },
    #[error("{what} {value} of row {row}, group {group} is not a finite {scale_type} value")]
    Value { what: &'static str, row: usize, group: usize, value: f32, scale_type: &'static str },
}

impl AffineMatrix {
    /// Groups in a row.
    pub fn groups_per_row(&self) -> usize {
        self.k_in / self.group_size
    }

    /// Checks every promise of the fields' documentation.
    pub fn validate(&self) -> Result<(), AffineError> {
        let (n_out, k_in, group_size) = (self.n_out, self.k_in, self.group_size);
        if n_out == 0 || k_in == 0 {
            return Err(AffineError::Empty { n_out, k_in });
        }
        if !(2..=8).contains(&self.bits) {
            return Err(AffineError::Bits { bits: self.bits });
        }
        if !GROUP_SIZES.contains(&group_size) {
            return Err(AffineError::GroupSize { group_size });
        }
        if !k_in.is_multiple_of(group_size) {
            return Err(AffineError::Columns { k_in, group_size });
        }
        let weights = n_out.checked_mul(k_in).ok_or(AffineError::Empty { n_out, k_in })?;
        let groups = weights / group_size;
        let lengths = [
            ("codes", self.codes.len(), weights),
            ("scales", self.scales.len(), groups),
            ("biases", self.biases.len(), groups),
        ];
        for (what, found, expected) in lengths {
            if found != expected {
                return Err(AffineError::Length { what, n_out, k_in, group_size, expected, found });
            }
        }
        if self.bits < 8
            && let Some(at) = self.codes.iter().position(|code| code >> self.bits != 0)
        {
            return Err(AffineError::Code { row: at / k_in, column: at % k_in, code: self.codes[at], bits: self.bits });
        }
        let per_row = self.groups_per_row();
        for (what, values) in [("scale", &self.scales), ("bias", &self.biases)] {
            if let Some(at) = values.iter().position(|value| !self.scale_type.represents(*value)) {
                return Err(AffineError::Value {
                    what,
                    row: at / per_row,
                    group: at % per_row,
                    value: values[at],
                    scale_type: self.scale_type.name(),
                });
            }
        }
        Ok(())
    }

    /// `w[row, column]` in float64.
    pub fn weight(&self, row: usize, column: usize) -> f64 {
        let group = row * self.groups_per_row() + column / self.group_size;
        f64::from(self.scales[group]) * f64::from(self.codes[row * self.k_in + column]) + f64::from(self.biases[group])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> AffineMatrix {
        AffineMatrix {
            n_out: 2,
            k_in: 32,
            bits: 4,
            group_size: 16,
            codes: (0..64).map(|i| i as u8 % 16).collect(),
            scales: vec![0.5, -0.25, 1.0, 2.0],
            biases: vec![0.0; 4],
            scale_type: ScaleType::BFloat16,
        }
    }

    #[test]
    fn a_good_matrix_passes_and_each_defect_is_named() {
        assert_eq!(small().validate(), Ok(()));
        let broken = |change: fn(&mut AffineMatrix)| {
            let mut matrix = small();
            change(&mut matrix);
            matrix.validate().expect_err("defect accepted").to_string()
        };
        assert_eq!(broken(|m| m.bits = 9), "codes of 9 bits; expected 2 to 8");
        assert_eq!(broken(|m| m.codes[33] = 16), "code 16 at [1, 1] does not fit 4 bits");
        assert_eq!(broken(|m| m.scales[3] = 1.001), "scale 1.001 of row 1, group 1 is not a finite bf16 value");
        assert!(broken(|m| m.biases[0] = f32::NAN).starts_with("bias NaN of row 0, group 0"));
        assert!(broken(|m| m.group_size = 24).starts_with("groups of 24"));
        assert!(broken(|m| m.group_size = 64).starts_with("32 columns"));
        assert!(broken(|m| m.scales.truncate(3)).starts_with("scales: 3 values"));
        assert!(broken(|m| m.n_out = 0).starts_with("matrix of [0, 32]"));
    }
}

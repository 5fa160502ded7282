//! Which instruction sets this processor has. An [`Isa`] value can only be obtained by detection, so holding
//! one is the proof that its kernels may run.

/// An instruction set that this machine can run. Ordered from best to worst by [`Isa::available`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// AVX-512 F, BW, DQ, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX2, FMA and AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// NEON with dot products of signed by unsigned bytes.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
    /// NEON with dot products of signed bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDotprod,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Plain Rust.
    Portable,
}

impl Isa {
    /// Every instruction set that this machine can run, best first. Never empty: portable comes last.
    pub fn available() -> Vec<Isa> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
            {
                found.push(Isa(Kind::Avx512Vnni));
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                if is_x86_feature_detected!("avxvnni") {
                    found.push(Isa(Kind::AvxVnni));
                }
                found.push(Isa(Kind::Avx2));
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as detected;
            if detected!("dotprod") && detected!("i8mm") {
                found.push(Isa(Kind::NeonI8mm));
            }
            if detected!("dotprod") {
                found.push(Isa(Kind::NeonDotprod));
            }
            if detected!("neon") {
                found.push(Isa(Kind::Neon));
            }
        }
        found.push(Isa(Kind::Portable));
        found
    }

    /// The best instruction set of this machine.
    pub fn best() -> Isa {
        Isa::available()[0]
    }

    /// The plain Rust variant, which every machine can run.
    pub fn portable() -> Isa {
        Isa(Kind::Portable)
    }

    /// The available instruction set called `name`, if this machine has it.
    pub fn by_name(name: &str) -> Option<Isa> {
        Isa::available().into_iter().find(|isa| isa.name() == name)
    }

    /// `avx512vnni`, `avxvnni`, `avx2`, `neon-i8mm`, `neon-dotprod`, `neon` or `portable`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm => "neon-i8mm",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDotprod => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            Kind::Portable => "portable",
        }
    }

    /// The instruction set of its float kernels: `avx512vnni`, `avx2`, `neon` or `portable`. The others differ from
    /// these in products of integers only.
    pub fn float_name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm | Kind::NeonDotprod => "neon",
            _ => self.name(),
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.0
    }
}

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
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
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
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                found.push(Isa(Kind::Avx2));
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

    /// `avx512vnni`, `avx2` or `portable`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Portable => "portable",
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.0
    }
}

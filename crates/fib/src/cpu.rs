//! Which form of a lookup this CPU can run, checked once.
//!
//! ```text
//! start: Form::best() -> kept in the reader -> one `match` per burst
//! tests: Form::all()  -> Fib::lookup_burst_by: every form against the scalar one
//! ```
//!
//! A [`Form`] can only be created here, after checking the CPU; so having one proves that code compiled for its
//! instructions may run, and `unsafe` blocks that call such code rely on it.

use std::fmt;

/// A form of lookup that this CPU can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form(Kind);

/// The instruction sets of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only what the target always has.
    Scalar,
    /// AVX2, BMI1, BMI2, LZCNT and POPCNT.
    Avx2,
    /// What `Avx2` has, and AVX-512 F, BW, CD, DQ, VL and VPOPCNTDQ: Ice Lake, Zen 4 and later.
    Avx512,
}

impl Form {
    /// The form without vectors: every CPU has it.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// The widest form of this CPU.
    pub fn best() -> Self {
        Self(if has_avx512() {
            Kind::Avx512
        } else if has_avx2() {
            Kind::Avx2
        } else {
            Kind::Scalar
        })
    }

    /// The widest form up to AVX2, for lookups that are no faster with AVX-512.
    pub fn without_avx512(self) -> Self {
        Self(if self.has_avx512() { Kind::Avx2 } else { self.0 })
    }

    /// All forms of this CPU, narrowest first.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::SCALAR];
        all.extend(has_avx2().then_some(Self(Kind::Avx2)));
        all.extend(has_avx512().then_some(Self(Kind::Avx512)));
        all
    }

    /// Whether the CPU has AVX-512 F, BW, CD, DQ, VL and VPOPCNTDQ.
    #[inline(always)]
    pub fn has_avx512(self) -> bool {
        self.0 == Kind::Avx512
    }

    /// Its instruction set.
    #[inline(always)]
    pub fn kind(self) -> Kind {
        self.0
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Scalar => "scalar",
            Kind::Avx2 => "avx2",
            Kind::Avx512 => "avx512",
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vpopcntdq")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_last_of_all() {
        let all = Form::all();
        assert_eq!((all.first(), all.last()), (Some(&Form::SCALAR), Some(&Form::best())));
    }
}

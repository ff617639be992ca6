//! The libraries that encrypt, and what each of them can do.

use std::fmt;

/// A library. Several of intel-ipsec-mb's managers may work on one CPU, and none of them is always the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// For AEAD suites.
    Ring,
    /// For suites of CBC and HMAC, one packet after the other.
    RustCrypto,
    /// AES-GCM, and bursts of packets with CBC and HMAC.
    IpsecMb(Manager),
}

/// The instructions that intel-ipsec-mb uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Manager {
    /// SSE, and SHA-NI if the CPU has it: then two packets at a time.
    Sse,
    /// SSE without SHA-NI, even if the CPU has it: four packets at a time.
    SseWithoutShaNi,
    /// AVX2: eight packets at a time.
    Avx2,
    /// AVX-512: sixteen packets at a time.
    Avx512,
}

impl Manager {
    /// All, in the order in which they are compared.
    pub(crate) const ALL: [Self; 4] = [Self::Sse, Self::SseWithoutShaNi, Self::Avx2, Self::Avx512];
}

impl Library {
    /// The name, as `show sas` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::RustCrypto => "RustCrypto",
            Self::IpsecMb(Manager::Sse) => "ipsec-mb-sse",
            Self::IpsecMb(Manager::SseWithoutShaNi) => "ipsec-mb-sse-no-shani",
            Self::IpsecMb(Manager::Avx2) => "ipsec-mb-avx2",
            Self::IpsecMb(Manager::Avx512) => "ipsec-mb-avx512",
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Classes of ESP packets: from this many bytes on, and the bytes of the packet with which each is measured.
pub(crate) const CLASSES: [(usize, usize); 3] = [(0, 64), (160, 256), (640, 1420)];

/// The library for each class of sizes. Suites of CBC and HMAC have the same for all, since packets of all sizes are
/// encrypted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice(pub [Library; CLASSES.len()]);

impl Choice {
    /// One library for all sizes.
    pub fn one(library: Library) -> Self {
        Self([library; CLASSES.len()])
    }

    pub fn libraries(self) -> [Library; CLASSES.len()] {
        self.0
    }

    /// The class of an ESP packet of this many bytes.
    #[inline]
    pub fn class(length: usize) -> usize {
        usize::from(length >= CLASSES[1].0) + usize::from(length >= CLASSES[2].0)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0[0])?;
        for (pair, (from, _)) in self.0.windows(2).zip(&CLASSES[1..]) {
            if pair[0] != pair[1] {
                write!(f, ", {} from {from} bytes", pair[1])?;
            }
        }
        Ok(())
    }
}

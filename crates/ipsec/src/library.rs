//! The libraries that encrypt, and what each of them can do.

use std::fmt;

use crate::suite::Suite;

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
    /// SSE without SHA-NI.
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
    /// Those that can be used for a suite in this process: the first is always there.
    pub fn all(suite: Suite) -> Vec<Self> {
        let portable = if suite.is_aead() { Self::Ring } else { Self::RustCrypto };
        let managers = if suite == Suite::ChaCha20Poly1305 { Vec::new() } else { crate::multi::usable() };
        std::iter::once(portable).chain(managers.into_iter().map(Self::IpsecMb)).collect()
    }

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

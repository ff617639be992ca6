//! Length histograms of full tables, and how they scale to another size.
//!
//! The figures were counted on a default-free table of 2026 with 1,050,000 IPv4 and 230,000 IPv6 prefixes.
//! Counts only: no prefix of a real network is carried here.

/// How many prefixes have one length, and how many of those lie within a shorter one of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Prefix length.
    pub length: u8,
    /// Prefixes of that length.
    pub count: usize,
    /// Those among them that are more-specifics of another prefix.
    pub nested: usize,
}

macro_rules! shares {
    ($($length:literal: $count:literal $nested:literal),* $(,)?) => {
        &[$(Share { length: $length, count: $count, nested: $nested }),*]
    };
}

/// The IPv4 table: 1,050,000 prefixes, 60 % of them more-specifics.
pub const IPV4: &[Share] = shares![
    8: 16 0, 9: 14 5, 10: 42 2, 11: 115 9, 12: 329 43, 13: 629 124, 14: 1346 249, 15: 2438 679,
    16: 14257 4082, 17: 9199 4729, 18: 15555 8513, 19: 27862 13011, 20: 47636 28413, 21: 58333 35096,
    22: 125660 63366, 23: 120357 75716, 24: 624251 393833, 25: 116 116, 26: 99 99, 27: 104 104,
    28: 112 111, 29: 122 122, 30: 106 106, 31: 104 104, 32: 1198 1193,
];

/// The IPv6 table: 230,000 prefixes, 66 % of them more-specifics.
pub const IPV6: &[Share] = shares![
    16: 1 0, 19: 1 0, 20: 18 0, 21: 3 0, 22: 8 0, 23: 11 3, 24: 34 4, 25: 15 7, 26: 25 8, 27: 25 6,
    28: 212 92, 29: 5758 73, 30: 814 365, 31: 593 270, 32: 25734 6274, 33: 3249 2606, 34: 3050 2205,
    35: 1541 979, 36: 7724 5032, 37: 1370 989, 38: 2263 1295, 39: 2114 1651, 40: 18131 14599,
    41: 1674 1042, 42: 3154 2419, 43: 2021 1071, 44: 20525 16006, 45: 2579 1919, 46: 5196 3352,
    47: 6027 4541, 48: 115301 84869, 49: 11 11, 50: 3 3, 52: 62 62, 55: 1 1, 56: 87 86, 58: 20 20,
    60: 2 0, 64: 354 349, 112: 2 2, 122: 1 1, 124: 4 4, 125: 9 9, 126: 19 19, 127: 109 109, 128: 145 145,
];

/// How the IPv6 table spreads over the first 16 bits: what the registries have given out so far.
pub const IPV6_TOPS: &[(u16, u32)] = &[
    (0x2001, 25484),
    (0x2002, 1),
    (0x2003, 3),
    (0x2049, 26),
    (0x2400, 4870),
    (0x2401, 7256),
    (0x2402, 8588),
    (0x2403, 1971),
    (0x2404, 3324),
    (0x2405, 3052),
    (0x2406, 2709),
    (0x2407, 3412),
    (0x2408, 10354),
    (0x2409, 15461),
    (0x240a, 7811),
    (0x240b, 84),
    (0x240c, 18),
    (0x240d, 105),
    (0x240e, 4679),
    (0x240f, 2),
    (0x2600, 7748),
    (0x2601, 40),
    (0x2602, 3898),
    (0x2603, 1256),
    (0x2604, 4253),
    (0x2605, 3300),
    (0x2606, 3151),
    (0x2607, 3708),
    (0x2608, 45),
    (0x2610, 548),
    (0x2620, 3592),
    (0x2631, 3),
    (0x2800, 4176),
    (0x2801, 1121),
    (0x2802, 8),
    (0x2803, 4659),
    (0x2804, 28707),
    (0x2805, 3),
    (0x2806, 4069),
    (0x2a00, 4899),
    (0x2a01, 4145),
    (0x2a02, 9862),
    (0x2a03, 3937),
    (0x2a04, 2639),
    (0x2a05, 2478),
    (0x2a06, 3014),
    (0x2a07, 1603),
    (0x2a08, 19),
    (0x2a09, 1905),
    (0x2a0a, 1836),
    (0x2a0b, 2707),
    (0x2a0c, 2089),
    (0x2a0d, 2563),
    (0x2a0e, 2676),
    (0x2a0f, 2169),
    (0x2a10, 1613),
    (0x2a11, 1084),
    (0x2a12, 1758),
    (0x2a13, 739),
    (0x2a14, 556),
    (0x2c0e, 47),
    (0x2c0f, 2167),
];

/// The histogram scaled to `total` prefixes, by largest remainder, so that the counts add up to `total`.
///
/// The share of more-specifics is kept per length; the very long prefixes stay in, however small the table,
/// only as far as their share says.
pub fn scaled(histogram: &[Share], total: usize) -> Vec<Share> {
    let whole: usize = histogram.iter().map(|share| share.count).sum();
    let mut scaled: Vec<Share> =
        histogram.iter().map(|share| Share { count: share.count * total / whole, ..*share }).collect();
    let missing = total - scaled.iter().map(|share| share.count).sum::<usize>();
    let mut by_remainder: Vec<usize> = (0..histogram.len()).collect();
    by_remainder.sort_by_key(|&i| std::cmp::Reverse((histogram[i].count * total % whole, i)));
    by_remainder.iter().take(missing).for_each(|&i| scaled[i].count += 1);
    for (share, full) in scaled.iter_mut().zip(histogram) {
        share.nested = (share.count * full.nested + full.count / 2) / full.count;
    }
    scaled.retain(|share| share.count > 0);
    scaled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(shares: &[Share]) -> (usize, usize) {
        (shares.iter().map(|share| share.count).sum(), shares.iter().map(|share| share.nested).sum())
    }

    #[test]
    fn holds_the_full_tables() {
        assert_eq!(sum(IPV4), (1_050_000, 629_825));
        assert_eq!(sum(IPV6), (230_000, 152_498));
        assert_eq!(IPV6_TOPS.iter().map(|top| top.1).sum::<u32>(), 230_000);
    }

    #[test]
    fn scales_to_the_exact_number() {
        for total in [0, 1, 2, 999, 10_000, 1_000_000, 1_050_000, 3_000_000] {
            assert_eq!(sum(&scaled(IPV4, total)).0, total);
            assert_eq!(sum(&scaled(IPV6, total)).0, total);
        }
        assert_eq!(scaled(IPV4, 1_050_000), IPV4);
    }
}

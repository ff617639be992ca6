//! Numbers for people: with what they count, or with a unit.

pub use bm_api::number::count;

/// A number and what it counts, such as `1 worker` or `2 workers`.
pub fn counted(number: u64, one: &str) -> String {
    counted_as(number, one, &format!("{one}s"))
}

/// A number and what it counts, with a plural that does not only add an `s`: `2 switches`.
pub fn counted_as(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A rate with at most four digits: from 10,000 on with a decimal unit, such as `12.3 k`.
pub fn rate(number: u64) -> String {
    const UNITS: [&str; 4] = ["k", "M", "G", "T"];
    if number < 10_000 {
        return count(number);
    }
    let mut value = number as f64 / 1000.0;
    let mut unit = 0;
    // What would be printed as 1000.0 belongs to the next unit.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Bytes with a binary unit, with one to four digits before the decimal point.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_singular_and_plural() {
        assert_eq!([0, 1, 2000].map(|n| counted(n, "port")), ["0 ports", "1 port", "2,000 ports"]);
        assert_eq!([1, 2].map(|n| counted_as(n, "switch", "switches")), ["1 switch", "2 switches"]);
    }

    #[test]
    fn rates_have_decimal_units() {
        let written = [0, 9_999, 10_000, 999_949, 999_960, 9_876_543_210].map(rate);
        assert_eq!(written, ["0", "9,999", "10.0 k", "999.9 k", "1.0 M", "9.9 G"]);
    }

    #[test]
    fn scales_bytes() {
        assert_eq!(
            (bytes(1023), bytes(1024), bytes(5 << 30)),
            ("1023 B".into(), "1.0 KiB".into(), "5.0 GiB".into())
        );
    }
}

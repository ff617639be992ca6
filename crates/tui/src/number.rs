//! Numbers that fit a column: rates with a decimal prefix, and times.

/// A rate or a count with four significant digits at most: `950`, `12.5k`, `1.49M`.
pub fn short(value: f64) -> String {
    const PREFIXES: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut scaled, mut prefix) = (value.max(0.0), 0);
    // 999.95 would be printed as 1000.0.
    while scaled >= 999.95 && prefix + 1 < PREFIXES.len() {
        scaled /= 1000.0;
        prefix += 1;
    }
    let digits = match scaled {
        _ if prefix == 0 && scaled >= 10.0 => 0,
        _ if scaled >= 100.0 || scaled.fract() == 0.0 && prefix == 0 => 0,
        _ if scaled >= 10.0 || prefix == 0 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{}", PREFIXES[prefix])
}

/// Seconds as `59 s`, `3 min 20 s`, `2 h 5 min` or `4 d 3 h`.
pub fn time(seconds: u64) -> String {
    let [minutes, hours, days] = [60, 3600, 86_400].map(|unit| seconds / unit);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_four_digits_at_most() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.2"),
            (7.0, "7"),
            (12.6, "13"),
            (999.4, "999"),
            (999.96, "1.00k"),
            (1000.0, "1.00k"),
            (12_500.0, "12.5k"),
            (148_809.0, "149k"),
            (14_880_952.0, "14.9M"),
            (9_870_000_000.0, "9.87G"),
            (-1.0, "0"),
        ];
        for (value, expected) in cases {
            assert_eq!(short(value), expected, "{value}");
        }
        let times = [59, 200, 7500, 356_400].map(time);
        assert_eq!(times, ["59 s", "3 min 20 s", "2 h 5 min", "4 d 3 h"]);
    }
}

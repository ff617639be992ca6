//! Numbers with commas.

/// A number with commas, as in 1,050,000.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_get_commas() {
        let shown = [0, 999, 1_000, 50_000, 1_050_000].map(thousands);
        assert_eq!(shown, ["0", "999", "1,000", "50,000", "1,050,000"]);
    }
}

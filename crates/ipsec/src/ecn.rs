//! Congestion marks across a tunnel (RFC 6040).

/// The two bits of ECN in the traffic class.
pub(crate) const MASK: u8 = 3;
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const CE: u8 = 3;

/// The inner packet's ECN after a tunnel; `None` if the packet must be dropped (RFC 6040 4.2, figure 4).
#[inline]
pub(crate) fn decapsulated(inner: u8, outer: u8) -> Option<u8> {
    match (inner & MASK, outer & MASK) {
        (inner, NOT_ECT) => Some(inner),
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (CE, _) | (_, CE) => Some(CE),
        (_, ECT_1) => Some(ECT_1),
        (inner, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sixteen_cases_are_those_of_the_rfc() {
        const ECT_0: u8 = 2;
        // Rows: inner Not-ECT, ECT(0), ECT(1), CE. Columns: outer in the same order.
        let order = [NOT_ECT, ECT_0, ECT_1, CE];
        let figure_4 = [
            [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None],
            [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)],
            [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)],
            [Some(CE); 4],
        ];
        for (row, inner) in order.into_iter().enumerate() {
            for (column, outer) in order.into_iter().enumerate() {
                assert_eq!(decapsulated(inner, outer), figure_4[row][column], "inner {inner} outer {outer}");
            }
        }
    }
}

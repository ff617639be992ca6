//! `brickmoon show collectors`.

use bm_api::Collectors;

use crate::number::{count, counted};
use crate::table::{Align, Table};

/// Columns of the table.
const COLUMNS: [(&str, Align); 8] = [
    ("FORMAT", Align::Left),
    ("COLLECTOR", Align::Left),
    ("SAMPLES", Align::Right),
    ("UNFIT", Align::Right),
    ("SENT", Align::Right),
    ("REFUSED", Align::Right),
    ("FULL", Align::Right),
    ("FAILED", Align::Right),
];

/// The collectors, and what is sampled for them.
pub fn collectors(reply: &Collectors) -> String {
    let mut table = Table::new(&COLUMNS, "no collectors: nothing is sampled");
    for one in &reply.collectors {
        let numbers = [one.samples, one.unfit, one.sent, one.refused, one.full, one.failed].map(count);
        table.row([one.format.clone(), one.address.clone()].into_iter().chain(numbers));
    }
    let mut text = table.to_string();
    if let Some(trouble) = &reply.trouble {
        text += &format!("\nnothing is sampled: {trouble}\n");
    } else if !reply.collectors.is_empty() {
        text += &format!(
            "\none received packet in {} is sampled, on {}; {} taken, {} lost\n",
            count(reply.one_in.into()),
            if reply.ports.is_empty() { "no port".into() } else { reply.ports.join(", ") },
            counted(reply.samples, "sample"),
            count(reply.lost),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::Collector;

    #[test]
    fn collectors_are_shown_with_what_became_of_their_samples() {
        let one = Collector {
            format: "sflow".into(),
            address: "192.0.2.1:6343".into(),
            samples: 1200,
            sent: 200,
            full: 3,
            ..Collector::default()
        };
        let reply = Collectors {
            one_in: 1024,
            ports: vec!["r0".into(), "r1".into()],
            samples: 1203,
            lost: 4,
            trouble: None,
            collectors: vec![one],
        };
        assert_eq!(
            collectors(&reply),
            "FORMAT  COLLECTOR       SAMPLES  UNFIT  SENT  REFUSED  FULL  FAILED\n\
             sflow   192.0.2.1:6343    1,200      0   200        0     3       0\n\
             \n\
             one received packet in 1,024 is sampled, on r0, r1; 1,203 samples taken, 4 lost\n"
        );
        assert_eq!(collectors(&Collectors::default()), "no collectors: nothing is sampled\n");
    }
}

//! What only Linux may handle, according to a given listing: for tests, tools and fuzzers, which have no kernel to
//! query.

use super::entries::Entries;
use super::names::Names;
use super::{Feature, LinuxOnly, legacy, nftables, tc, xfrm};
use bm_netlink::error::Malformed;
use bm_netlink::message::{Message, Messages, Raw};
use bm_wire::Family;

/// The packets that only Linux may handle according to the kernel's listing for `feature`: netlink messages, or for
/// [`Feature::Iptables`] the table of one family in the format of [`legacy_table`]. Link messages in a listing of
/// nftables give the names of its interfaces.
///
/// # Errors
/// The first malformed part. Features that the kernel does not list with messages have no entries.
pub fn from_listing(feature: Feature, listing: &[u8]) -> Result<Vec<LinuxOnly>, Malformed> {
    let (mut names, mut entries) = (Names::default(), Entries::default());
    match feature {
        Feature::Nftables => {
            for raw in messages(listing)? {
                Message::read(&raw)?.map(|message| names.apply(message));
            }
            nftables::from_messages(&messages(listing)?, &names, &mut entries)?;
        }
        Feature::Xfrm => xfrm::from_messages(&messages(listing)?, &names, &mut entries)?,
        Feature::Shaping | Feature::TcFilter => tc::from_messages(&messages(listing)?, &names, &mut entries)?,
        Feature::Iptables => {
            let family = if listing.first() == Some(&10) { Family::V6 } else { Family::V4 };
            legacy_table(family, listing.get(1..).unwrap_or_default(), &names, &mut entries)?;
        }
        Feature::Netfilter | Feature::Setting | Feature::Interface => {}
    }
    Ok(entries.finish())
}

fn messages(listing: &[u8]) -> Result<Vec<Raw<'_>>, Malformed> {
    Messages(listing).collect()
}

/// A table of legacy iptables: eleven words (hooks, their first rules, their policies), then its entries.
fn legacy_table(
    family: Family,
    listing: &[u8],
    names: &Names,
    entries: &mut Entries,
) -> Result<(), Malformed> {
    let malformed = Malformed::Header { kind: 0, length: listing.len() };
    let (head, table) = listing.split_at_checked(44).ok_or(malformed)?;
    let words: Vec<u32> = head.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let (mut first, mut policy) = ([0; 5], [0; 5]);
    first.copy_from_slice(&words[1..6]);
    policy.copy_from_slice(&words[6..11]);
    let read =
        bm_netlink::legacy_tables::LegacyTable { hooks: words[0], first, policy, entries: table.to_vec() };
    legacy::from_table(family, &read, names, entries).ok_or(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Traffic;

    /// A table of IPv4 whose forward chain has no rule: its policy entry alone, with this verdict.
    fn table(first: u32, policy: u32, verdict: i32) -> Vec<u8> {
        let mut entry = [0; 112 + 40];
        (entry[88], entry[90]) = (112, 152);
        entry[112] = 40;
        entry[144..148].copy_from_slice(&verdict.to_ne_bytes());
        let mut words = [0; 11];
        (words[0], words[1 + 2], words[6 + 2]) = (1 << 2, first, policy);
        let words = words.into_iter().flat_map(u32::to_ne_bytes);
        [2].into_iter().chain(words).chain(entry).collect()
    }

    #[test]
    fn policy_drop_applies_to_all_packets_of_its_family() {
        let all = |list: Vec<LinuxOnly>| list.into_iter().map(|entry| entry.traffic).collect::<Vec<_>>();
        let listed = |verdict| from_listing(Feature::Iptables, &table(0, 0, verdict)).map(all);
        assert_eq!(listed(-1), Ok(vec![Traffic::All { ipv4: true, ipv6: false }]));
        assert_eq!(listed(-2), Ok(Vec::new()));
    }

    /// Found by a fuzzer: it was a panic.
    #[test]
    fn a_chain_with_its_end_before_its_start_is_malformed() {
        assert!(from_listing(Feature::Iptables, &table(152, 0, -2)).is_err());
    }
}

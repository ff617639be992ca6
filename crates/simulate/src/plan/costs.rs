//! What the same external ports cost if switches connect the servers.

use serde::Serialize;

use super::{Requirements, SwitchType};

/// Servers around switches. Each packet passes one server on its way in and one on its way out, so a server needs no
/// more than R towards the switches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Switched {
    /// `one switch`, or `folded Clos, N tiers`.
    pub topology: String,
    pub switches: u64,
    /// Switch ports that servers use.
    pub ports_used: u64,
    /// Price of the switches, without servers.
    pub price: f64,
    /// Their power.
    pub power_w: f64,
    /// Why it cannot be built.
    pub impossible: Option<String>,
}

/// The fewest switches that connect all external ports without blocking.
pub fn switched(wanted: &Requirements, switch: &SwitchType) -> Switched {
    let used = (wanted.ports as f64 * wanted.rate_gbps / switch.rate_gbps).ceil() as u64;
    let (tiers, switches) = clos(used, switch.ports);
    let topology = if tiers == 1 { "one switch".into() } else { format!("folded Clos, {tiers} tiers") };
    let most = switch.ports.pow(3) / 4;
    Switched {
        impossible: (used > most).then(|| {
            format!("{used} ports of {} Gbit/s are more than the {most} of a folded Clos with three tiers of these switches", switch.rate_gbps)
        }),
        topology,
        switches,
        ports_used: used,
        price: switches as f64 * switch.price,
        power_w: switches as f64 * switch.power_w,
    }
}

/// Tiers and switches of a folded Clos for `used` ports, with as many ports up as down in each lower tier.
fn clos(used: u64, ports: u64) -> (u64, u64) {
    let half = (ports / 2).max(1);
    if used <= ports {
        return (1, 1);
    }
    let leaves = used.div_ceil(half);
    if leaves <= ports {
        return (2, leaves + (leaves * half).div_ceil(ports));
    }
    // Pods of `half` leaves and `half` switches above them; each of those has `half` ports to the top.
    let pods = used.div_ceil(half * half);
    (3, pods * 2 * half + (pods * half * half).div_ceil(ports))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_for_some_ports() {
        let cases = [(48, (1, 1)), (49, (2, 3 + 2)), (1152, (2, 48 + 24)), (1153, (3, 3 * 48 + 36))];
        for (used, expected) in cases {
            assert_eq!(clos(used, 48), expected, "{used} ports");
        }
        // With all three tiers in use: the fat tree of 48-port switches, 27,648 ports and 2,880 switches.
        assert_eq!(clos(27_648, 48), (3, 2880));
    }
}

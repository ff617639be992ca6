//! Network cards as Linux sees them: which driver a card is bound to, and so why DPDK cannot use it.

use std::path::Path;

use crate::{DpdkError, Spec};

/// Where Linux lists PCI devices.
pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";
/// Where Linux lists IOMMUs.
pub(crate) const IOMMUS: &str = "/sys/class/iommu";
/// Drivers with which DPDK can use a card.
const USABLE: [&str; 4] = ["vfio-pci", "uio_pci_generic", "igb_uio", "nic_uio"];

/// Why no DPDK driver accepts a card, as far as Linux knows: it does not exist, or another driver has it. `None` if
/// the reason is another, or the device is not on PCI. The folders are [`DEVICES`] and [`IOMMUS`], except in tests.
pub(crate) fn refusal(devices: &Path, iommus: &Path, spec: &Spec) -> Option<DpdkError> {
    if !spec.is_pci() {
        return None;
    }
    let place = spec.place();
    let folder = devices.join(&place);
    let device = spec.as_str().to_string();
    if !folder.exists() {
        return Some(DpdkError::NoCard { device, place });
    }
    let target = std::fs::read_link(folder.join("driver")).ok();
    let driver = target.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    if driver.as_deref().is_some_and(|driver| USABLE.contains(&driver)) {
        return None;
    }
    // vfio-pci needs an IOMMU; not every kernel allows it without one.
    let has_iommu = std::fs::read_dir(iommus).is_ok_and(|mut entries| entries.next().is_some());
    let usable = if has_iommu { "vfio-pci" } else { "uio_pci_generic" };
    Some(DpdkError::KernelDriver { device, place, interfaces: interfaces(&folder), driver, usable })
}

/// The Linux interfaces of a card. Those of virtio are one folder deeper.
fn interfaces(card: &Path) -> Vec<String> {
    let below = names(card).into_iter().filter(|name| name.starts_with("virtio"));
    let folders = std::iter::once(card.to_path_buf()).chain(below.map(|name| card.join(name)));
    folders.flat_map(|folder| names(&folder.join("net"))).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_which_driver_has_a_card_and_how_to_bind_another() {
        let root = std::env::temp_dir().join(format!("bm-pci-{}", std::process::id()));
        let card = |place: &str, driver: Option<&str>, net: &str| {
            std::fs::create_dir_all(root.join(place).join(net)).expect("a folder");
            if let Some(driver) = driver {
                let to = Path::new("../../../bus/pci/drivers").join(driver);
                std::os::unix::fs::symlink(to, root.join(place).join("driver")).expect("a link");
            }
        };
        card("0000:01:00.0", Some("e1000e"), "net/eth0");
        card("0000:02:00.0", Some("virtio-pci"), "virtio3/net/eth1");
        card("0000:03:00.0", None, "power");
        card("0000:04:00.0", Some("vfio-pci"), "power");
        let on = |iommus: &str, text: &str| {
            refusal(&root, &root.join(iommus), &Spec::new(text)).map(|error| error.to_string())
        };
        let error = |text: &str| on("0000:01:00.0", text);
        let e1000e = error("01:00.0,arg=1").unwrap_or_default();
        assert!(e1000e.contains("e1000e") && e1000e.contains("eth0"), "{e1000e}");
        assert!(e1000e.contains("dpdk-devbind.py -b vfio-pci 0000:01:00.0"), "{e1000e}");
        let without = on("nothing", "01:00.0").unwrap_or_default();
        assert!(
            without.contains("modprobe uio_pci_generic && dpdk-devbind.py -b uio_pci_generic"),
            "{without}"
        );
        assert!(error("0000:02:00.0").is_some_and(|error| error.contains("eth1")));
        assert!(error("0000:03:00.0").is_some_and(|error| error.contains("not bound to a driver")));
        assert!(error("0000:05:00.0").is_some_and(|error| error.contains("no PCI device")));
        assert_eq!((error("0000:04:00.0"), error("net_ring0")), (None, None));
        std::fs::remove_dir_all(&root).expect("the folder goes");
    }
}

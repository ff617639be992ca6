//! BPF programs that see routed packets and are neither qdiscs nor tc filters: those attached directly to an
//! interface (tcx, netkit), and those at netfilter hooks.
//!
//! There are no events for either. A query for each interface and a walk over the IDs of all BPF links are cheap, so
//! both are polled. A BPF link at netfilter does not say which network namespace it belongs to, so each counts.

mod call;

use self::call::Command;
use super::Feature;
use super::condition::Families;
use super::entries::Entries;
use super::names::Names;
use super::part::{Part, Unreadable};
use bm_netlink::error::Error;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(90);
/// Interfaces that are queried at a time; if there are more they take turns.
const ASKED: usize = 64;

/// A point of an interface at which programs can be attached.
struct AttachPoint {
    /// The kernel's number (`enum bpf_attach_type`).
    number: u32,
    /// Whether programs there see received packets.
    incoming: bool,
    name: &'static str,
}

const ATTACH_POINTS: [AttachPoint; 4] = [
    AttachPoint { number: 46, incoming: true, name: "tcx ingress" },
    AttachPoint { number: 47, incoming: false, name: "tcx egress" },
    AttachPoint { number: 54, incoming: false, name: "netkit primary" },
    AttachPoint { number: 55, incoming: true, name: "netkit peer" },
];
/// Type of a BPF link at netfilter.
const LINK_NETFILTER: u32 = 10;
/// Programs that are looked at in one place.
const PROGRAMS: usize = 64;
/// How the names of the kernel path's programs at tc begin and end (`crates/fastpath/bpf/skb.bpf.c`).
const OURS: (&[u8], &[u8]) = (b"bm_", b"_tc");
/// Bytes of `struct bpf_prog_info` up to the end of the program's name, which is 16 bytes.
const PROGRAM_INFO: usize = 80;
/// Bytes of `struct bpf_link_info` that are of interest: type, id, program, then (aligned to eight bytes) what depends
/// on the type.
const LINK_INFO: usize = 64;

/// Programs on interfaces.
#[derive(Debug, Default)]
pub(super) struct OnInterfaces {
    /// Places at which there is a program, by interface.
    found: BTreeMap<u32, u8>,
    /// The interface that was asked last, where not all are asked each time.
    last: u32,
}

impl Part for OnInterfaces {
    fn feature(&self) -> Feature {
        Feature::TcFilter
    }

    fn title(&self) -> &'static str {
        "the list of BPF programs on interfaces"
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(EVERY)
    }

    fn read(&mut self, names: &Names) -> Result<bool, Unreadable> {
        let before = self.found.len();
        self.found.retain(|&ifindex, _| names.has(ifindex));
        let mut changed = before != self.found.len();
        let last = self.last;
        let later: Vec<u32> = names.after(last).take(ASKED).collect();
        let earlier = names.after(0).take_while(|&ifindex| ifindex <= last).take(ASKED - later.len());
        for ifindex in later.iter().copied().chain(earlier) {
            let mut points = 0;
            for (bit, point) in ATTACH_POINTS.iter().enumerate() {
                points |= u8::from(has_program(ifindex, point.number)) << bit;
            }
            let old =
                if points == 0 { self.found.remove(&ifindex) } else { self.found.insert(ifindex, points) };
            changed |= old.unwrap_or(0) != points;
            self.last = ifindex;
        }
        Ok(changed)
    }

    fn analyse(&self, names: &Names, entries: &mut Entries) {
        for (&ifindex, &points) in &self.found {
            for (bit, point) in ATTACH_POINTS.iter().enumerate() {
                if points & 1 << bit == 0 {
                    continue;
                }
                entries.add_at(Feature::TcFilter, names, ifindex, point.incoming, || {
                    format!("BPF program at {} of {}", point.name, names.name(ifindex))
                });
            }
        }
    }
}

/// Whether there is a program that is not brickmoon's. A kernel that does not know the place has none there.
fn has_program(ifindex: u32, attach_point: u32) -> bool {
    let mut programs = [0u32; PROGRAMS];
    match call::ask(Command::ProgramsAt, &[(0, ifindex), (4, attach_point)], &mut programs) {
        Ok(answer) => programs[..PROGRAMS.min(answer.word(24) as usize)].iter().any(|&id| is_of_others(id)),
        // More than there is room for.
        Err(error) => error.raw_os_error() == Some(libc::ENOSPC),
    }
}

/// Whether a listed program still exists, and is not that of the kernel path, of this daemon or an earlier one.
fn is_of_others(program: u32) -> bool {
    let program = match call::open(Command::ProgramById, &[(0, program)]) {
        Ok(program) => program,
        // Detached since it was seen, as when an interface is deleted.
        Err(error) if error.kind() == ErrorKind::NotFound => return false,
        Err(_) => return true,
    };
    let mut info = [0u32; PROGRAM_INFO / 4];
    if call::ask(Command::Info, &[(0, program.as_raw_fd() as u32)], &mut info).is_err() {
        return true;
    }
    let name: Vec<u8> = info[PROGRAM_INFO / 4 - 4..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    !(name.starts_with(OURS.0) && name.ends_with(OURS.1))
}

/// Programs at netfilter's hooks.
#[derive(Debug, Default)]
pub(super) struct AtNetfilter {
    /// The known links: family and hook of those that matter.
    known: BTreeMap<u32, Option<(u32, u32)>>,
}

impl Part for AtNetfilter {
    fn feature(&self) -> Feature {
        Feature::Netfilter
    }

    fn title(&self) -> &'static str {
        "the list of BPF links"
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(EVERY)
    }

    fn read(&mut self, _: &Names) -> Result<bool, Unreadable> {
        let mut found = BTreeMap::new();
        let mut last = 0;
        while let Some(id) = next_link(last)? {
            let what = self.known.get(&id).copied().unwrap_or_else(|| netfilter_link(id));
            found.insert(id, what);
            last = id;
        }
        let before = std::mem::replace(&mut self.known, found);
        let [before, now] =
            [&before, &self.known].map(|links| links.iter().filter(|(_, hook)| hook.is_some()));
        Ok(!before.eq(now))
    }

    fn analyse(&self, _: &Names, entries: &mut Entries) {
        for (id, what) in &self.known {
            let Some((family, hook @ (0 | 2..=4))) = what else { continue };
            let [ipv4, ipv6] =
                [libc::AF_INET, libc::AF_INET6].map(|number| *family == number as u32 || *family == 1);
            let families = Families { ipv4, ipv6 };
            // Only ICMP errors about routed packets pass output.
            let traffic = if *hook == 3 { families.errors() } else { families.all() };
            let hook = ["prerouting", "", "forward", "output", "postrouting"][*hook as usize];
            entries.add(Feature::Netfilter, traffic, || {
                format!("BPF program at netfilter's hook {hook} (link {id})")
            });
        }
    }
}

/// The number of the next link; none at the end, or where the kernel knows no links.
fn next_link(after: u32) -> Result<Option<u32>, Error> {
    match call::ask(Command::NextLink, &[(0, after)], &mut []) {
        Ok(answer) => Ok(Some(answer.word(4))),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENOSYS)) => {
            Ok(None)
        }
        Err(source) => Err(Error::System { doing: "list BPF links", source }),
    }
}

/// Family and hook of a link, if it is attached to netfilter.
fn netfilter_link(id: u32) -> Option<(u32, u32)> {
    let link = call::open(Command::LinkById, &[(0, id)]).ok()?;
    let mut info = [0u32; LINK_INFO / 4];
    call::ask(Command::Info, &[(0, link.as_raw_fd() as u32)], &mut info).ok()?;
    (info[0] == LINK_NETFILTER).then(|| (info[4], info[5]))
}

#[cfg(test)]
mod tests {
    use super::call::AT_NETFILTER;
    use super::*;
    use std::io;
    use std::os::fd::{FromRawFd, OwnedFd};

    const PROG_LOAD: i32 = 5;
    const SCHED_CLS: u32 = 3;
    const NETFILTER: u32 = 32;
    const TCX_INGRESS: u32 = 46;
    /// The loopback of a new namespace.
    const LOOPBACK: u32 = 1;

    /// Runs a test in a network namespace of its own, unless that or BPF is not to be had.
    fn alone(test: impl FnOnce() + Send + 'static) {
        let run = move || {
            if bm_sys::Namespace::Network.unshare().is_err() || next_link(0).is_err() {
                eprintln!("skipped: needs root to make a network namespace and to list BPF links");
                return;
            }
            test();
        };
        std::thread::spawn(run).join().unwrap();
    }

    /// A program that only returns a number.
    fn program(kind: u32, place: u32, result: i32, name: &[u8]) -> OwnedFd {
        let mut code = [0u8; 16];
        (code[0], code[8]) = (0xb7, 0x95);
        code[4..8].copy_from_slice(&result.to_ne_bytes());
        let mut question = [0u8; 72];
        question[..4].copy_from_slice(&kind.to_ne_bytes());
        question[4..8].copy_from_slice(&2u32.to_ne_bytes());
        question[8..16].copy_from_slice(&(code.as_ptr() as u64).to_ne_bytes());
        question[16..24].copy_from_slice(&(c"GPL".as_ptr() as u64).to_ne_bytes());
        question[48..48 + name.len()].copy_from_slice(name);
        question[68..].copy_from_slice(&place.to_ne_bytes());
        // SAFETY: the question is as long as said; code and licence live for the call, which only reads them.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, question.as_mut_ptr(), question.len()) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor is new and nobody else has it.
        unsafe { OwnedFd::from_raw_fd(fd as i32) }
    }

    #[test]
    fn a_program_on_an_interface_is_listed_until_it_is_detached() {
        alone(|| {
            assert!(!has_program(LOOPBACK, TCX_INGRESS));
            let program = program(SCHED_CLS, 0, -1, b"bm_other");
            let words = [(0, LOOPBACK), (4, program.as_raw_fd() as u32), (8, TCX_INGRESS)];
            if let Err(error) = call::ask(Command::Attach, &words, &mut []) {
                eprintln!(
                    "skipped: programs directly on interfaces (tcx), which this kernel has not: {error}"
                );
                return;
            }
            assert!(has_program(LOOPBACK, TCX_INGRESS) && !has_program(LOOPBACK, TCX_INGRESS + 1));
            call::ask(Command::Detach, &words, &mut []).unwrap();
            assert!(!has_program(LOOPBACK, TCX_INGRESS));
        });
    }

    #[test]
    fn the_program_of_the_kernel_path_does_not_count() {
        alone(|| {
            let ours = program(SCHED_CLS, 0, -1, b"bm_forward_9_tc");
            let words = [(0, LOOPBACK), (4, ours.as_raw_fd() as u32), (8, TCX_INGRESS)];
            if call::ask(Command::Attach, &words, &mut []).is_err() {
                return eprintln!("skipped: this kernel has no tcx");
            }
            assert!(!has_program(LOOPBACK, TCX_INGRESS));
            let other = program(SCHED_CLS, 0, -1, b"my_filter_tc");
            let words = [(0, LOOPBACK), (4, other.as_raw_fd() as u32), (8, TCX_INGRESS)];
            call::ask(Command::Attach, &words, &mut []).unwrap();
            assert!(has_program(LOOPBACK, TCX_INGRESS), "beside ours");
        });
    }

    #[test]
    fn a_program_that_has_gone_since_it_was_seen_does_not_count() {
        alone(|| {
            let program = program(SCHED_CLS, 0, -1, b"bm_other");
            let mut info = [0u32; PROGRAM_INFO / 4];
            call::ask(Command::Info, &[(0, program.as_raw_fd() as u32)], &mut info).unwrap();
            let seen = info[1];
            assert!(is_of_others(seen));
            drop(program);
            // The kernel frees it after a grace period.
            let begin = std::time::Instant::now();
            while is_of_others(seen) && begin.elapsed() < std::time::Duration::from_secs(10) {
                std::thread::yield_now();
            }
            assert!(!is_of_others(seen));
        });
    }

    #[test]
    fn a_netfilter_link_has_its_family_and_hook() {
        /// The hook input, whose links are no reason for anybody.
        const INPUT: u32 = 1;
        alone(|| {
            let program = program(NETFILTER, AT_NETFILTER, 1, b"");
            let family = libc::AF_INET as u32;
            let words = [(0, program.as_raw_fd() as u32), (16, family), (20, INPUT), (24, 7)];
            let link = call::open(Command::LinkAtNetfilter, &words);
            let Ok(_link) = link else {
                eprintln!("skipped: BPF at netfilter, which this kernel has not: {link:?}");
                return;
            };
            let mut ids = std::iter::successors(next_link(0).unwrap(), |&id| next_link(id).unwrap());
            assert!(ids.any(|id| netfilter_link(id) == Some((family, INPUT))));
        });
    }
}

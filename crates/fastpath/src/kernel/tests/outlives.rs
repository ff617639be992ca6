//! How long the program stays and forwards: without a beat, without its daemon, beside another daemon's.

use super::*;
use crate::jiffies::jiffies;
use crate::pins::{claim_pins, remove_kept};
use bm_bpf::{NoPins, NotClaimed};

#[test]
fn leaves_everything_to_linux_without_a_heartbeat() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    lab.kernel.mapped.head().grace_jiffies.store(1, Relaxed);
    lab.kernel.beat().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    lab.check_linux(&IPV4, "linux_unattended");
    lab.kernel.mapped.head().grace_jiffies.store(100_000, Relaxed);
    lab.kernel.beat().unwrap();
    assert_eq!(lab.pass(&IPV4).0, XDP_REDIRECT);
}

#[test]
fn errors_say_why_attaching_failed() {
    let Some(mut lab) = lab() else { return };
    let text = |result: Result<Attachment, KernelError>| result.unwrap_err().to_string();
    assert!(
        text(lab.kernel.attach("nowhere", AttachChoice::Xdp))
            .starts_with("nowhere: there is no such interface")
    );
    // The same once more is no mistake; another one is.
    assert!(lab.kernel.attach("in", AttachChoice::Xdp).is_ok());
    let mut other = Kernel::load(Duration::from_secs(60)).unwrap();
    assert!(text(other.attach("in", AttachChoice::Xdp)).contains("`bpftool link detach id "));
    assert!(lab.kernel.can_send_through(lab.ifindex) || !attach::takes_frames(lab.ifindex));
}

#[test]
fn grace_times_are_in_jiffies_of_this_kernel() {
    let Some(mut lab) = lab() else { return };
    let mut alive_until = || {
        lab.kernel.beat().unwrap();
        (lab.kernel.mapped.head().alive_until.load(Relaxed), std::time::Instant::now())
    };
    let (first, then) = alive_until();
    std::thread::sleep(Duration::from_millis(400));
    let (second, now) = alive_until();
    let expected = i64::from(jiffies(now - then));
    assert!(((second - first) as i64 - expected).abs() <= 2, "{} jiffies, not {expected}", second - first);
    assert_eq!(jiffies(Duration::ZERO), 0);
}

#[test]
fn is_kept_and_taken_over() {
    let Some((load, ifindex)) = pinned() else { return };
    let mut first = load();
    assert_eq!(first.attach("in", AttachChoice::Xdp).unwrap().adopted, None);
    assert!(matches!(claim_pins(), Err(NoPins::Folder(NotClaimed::Taken { .. }))), "one at a time");
    first.keep().unwrap();
    drop(first);
    let kept = attach::program_on(ifindex);
    assert!(kept.is_some());

    let mut failed = load();
    assert_eq!(failed.attach("in", AttachChoice::Xdp).unwrap().adopted, Some(7));
    drop(failed);
    assert_eq!(attach::program_on(ifindex), kept, "a start that fails takes nothing away");

    let mut second = load();
    second.attach("in", AttachChoice::Xdp).unwrap();
    second.publish(&Configuration::default()).unwrap();
    assert_eq!(attach::program_on(ifindex), kept, "not before it is told to");
    assert_eq!(second.take_over().unwrap().switched, 1);
    assert_ne!(attach::program_on(ifindex), kept);
    second.keep().unwrap();
    drop(second);

    let mut other = load();
    assert_eq!(other.take_over().unwrap().removed, ["in"]);
    assert_eq!(attach::program_on(ifindex), None);
    other.attach("in", AttachChoice::Xdp).unwrap();
    drop(other);
    assert_eq!(attach::program_on(ifindex), None, "without `keep` it ends with its owner");
    assert_eq!(remove_kept().unwrap(), Vec::<String>::new());
}

#[test]
fn leaves_pinned_programs_of_others_alone() {
    let Some((load, ifindex)) = pinned() else { return };
    let pins = claim_pins().unwrap();
    let file = pins.path(ifindex, AttachType::Xdp);
    let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    // r0 = XDP_PASS; exit
    let instructions = [0x0000_0002_0000_00b7u64, 0x95];
    // SAFETY: the strings end in zero, the instructions are two, and no options are given.
    unsafe {
        use libbpf_rs::libbpf_sys as sys;
        let (name, gpl) = (c"other".as_ptr(), c"GPL".as_ptr());
        let instructions = instructions.as_ptr().cast();
        let program =
            sys::bpf_prog_load(sys::BPF_PROG_TYPE_XDP, name, gpl, instructions, 2, std::ptr::null_mut());
        let link = sys::bpf_link_create(program, ifindex as i32, sys::BPF_XDP, std::ptr::null());
        assert_eq!(sys::bpf_obj_pin(link, path.as_ptr()), 0, "{program} {link}");
        libc::close(link);
        libc::close(program);
    }
    drop(pins);
    let mut kernel = load();
    let refused = kernel.attach("in", AttachChoice::Xdp).unwrap_err().to_string();
    assert!(refused.contains("\"other\"") && refused.contains("`rm /sys/fs/bpf/brickmoon/"), "{refused}");
    assert_eq!(kernel.take_over().unwrap().foreign, [(file.clone(), "other".to_string())]);
    drop(kernel);
    assert_eq!(remove_kept().unwrap(), Vec::<String>::new());
    assert!(attach::program_on(ifindex).is_some() && file.exists());
    std::fs::remove_file(&file).unwrap();
    drop(claim_pins().unwrap());
    assert!(!file.parent().unwrap().exists());
}

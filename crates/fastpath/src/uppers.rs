//! Interfaces on top of others that are in other network namespaces, such as a container's macvlan on a port.
//!
//! No message of the kernel has them. A program that is run on request (`BPF_PROG_TEST_RUN`), and that no packet meets,
//! reads the kernel's own list. It takes about 3 us for an interface.

use libbpf_rs::{Object, ObjectBuilder, ProgramInput};

/// The object file, made by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uppers.bpf.o"));
/// Where the output begins in the frame that the program is run on, the size of an entry and the most entries: as in
/// uppers.bpf.c.
const OUTPUT: usize = 16;
const ENTRY: usize = 32;
const ENTRIES: usize = 32;
/// Words of `struct __sk_buff`, and the place of `ifindex` in it.
const CONTEXT: usize = 48;
const IFINDEX: usize = 10;

/// An interface in another network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpperElsewhere {
    /// Its number there.
    pub ifindex: u32,
    /// The number of that namespace (`stat -L -c %i /proc/PID/ns/net`).
    pub namespace: u32,
    /// The kernel's name of its kind, such as `ipvlan`.
    pub kind: Box<str>,
    /// The mode of a macvlan or macvtap (`MACVLAN_MODE_*`).
    pub macvlan_mode: Option<u32>,
    /// Whether it has the MAC address of the interface below.
    pub same_mac: bool,
}

/// The loaded program.
pub struct Uppers(Object);

impl Uppers {
    /// Loads the program.
    ///
    /// # Errors
    /// Why it is not possible, for people: it needs Linux 6.2 with type information.
    pub fn load() -> Result<Self, String> {
        let loaded = ObjectBuilder::default().open_memory(OBJECT).and_then(|open| open.load());
        loaded.map(Self).map_err(|error| {
            format!("the kernel refuses the program that lists them, which needs Linux 6.2: {error}")
        })
    }

    /// The interfaces in other namespaces on top of one of this thread's namespace, at most 32 of them; none if there is
    /// no such interface.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(&mut self, ifindex: u32) -> Result<Vec<UpperElsewhere>, String> {
        let mut context = [0; CONTEXT];
        context[IFINDEX] = ifindex;
        let mut context: Vec<u8> = context.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        let frame = [0; OUTPUT + ENTRIES * ENTRY];
        let mut output = frame;
        let program = self.0.progs_mut().next().expect("the object has a program");
        let input = ProgramInput {
            data_in: Some(&frame),
            data_out: Some(&mut output),
            context_in: Some(&mut context),
            ..ProgramInput::default()
        };
        let count = match program.test_run(input) {
            Ok(done) => done.return_value as usize,
            Err(_) if bm_sys::interface::name(ifindex).is_err() => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        Ok(output[OUTPUT..].chunks_exact(ENTRY).take(count).map(entry).collect())
    }
}

/// An entry of the output: `struct upper`.
fn entry(bytes: &[u8]) -> UpperElsewhere {
    let (words, kind) = bytes.split_at(16);
    let word = |at: usize| {
        let bytes = words[4 * at..].first_chunk().expect("there are four words");
        u32::from_ne_bytes(*bytes)
    };
    let kind = kind.split(|byte| *byte == 0).next().unwrap_or_default();
    UpperElsewhere {
        ifindex: word(0),
        namespace: word(1),
        kind: String::from_utf8_lossy(kind).into(),
        macvlan_mode: (word(2) != 0).then_some(word(2)),
        same_mac: word(3) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn run(command: &str) -> bool {
        Command::new("sh").args(["-c", command]).status().is_ok_and(|status| status.success())
    }

    #[test]
    fn the_kernel_lists_what_is_in_other_namespaces() {
        let (here, there) = ("bm-uppers-a", "bm-uppers-b");
        run(&format!("ip netns del {here}; ip netns del {there}"));
        let made = run(&format!(
            "ip netns add {here} && ip netns add {there} && \
             ip -n {here} link add p0 index 10 type veth peer name p1 index 11 && \
             ip -n {here} link add link p0 name own type macvlan mode bridge && \
             ip -n {here} link add link p0 netns {there} name a index 20 type macvlan mode source && \
             ip -n {here} link add link p0 netns {there} name b index 21 type macvlan mode bridge && \
             ip -n {here} link add link p1 netns {there} name c index 22 type macvlan mode passthru"
        ));
        if !made {
            run(&format!("ip netns del {here}; ip netns del {there}"));
            return eprintln!("skipped: needs root, network namespaces and macvlan");
        }
        let listed = std::thread::spawn(move || {
            let namespace = std::fs::File::open(format!("/run/netns/{here}")).unwrap();
            bm_sys::Namespace::Network.enter(&namespace).unwrap();
            let mut uppers = match Uppers::load() {
                Ok(uppers) => uppers,
                Err(why) => return Err(why),
            };
            Ok([10, 11, 99].map(|ifindex| uppers.of(ifindex).unwrap()))
        });
        let listed = listed.join();
        run(&format!("ip netns del {here}; ip netns del {there}"));
        let [of_p0, of_p1, of_none] = match listed.unwrap() {
            Ok(listed) => listed,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let short = |list: &[UpperElsewhere]| {
            let of = |upper: &UpperElsewhere| {
                (upper.ifindex, upper.kind.to_string(), upper.macvlan_mode, upper.same_mac)
            };
            let mut short: Vec<_> = list.iter().map(of).collect();
            short.sort();
            short
        };
        let macvlan = || "macvlan".to_string();
        assert_eq!(short(&of_p0), [(20, macvlan(), Some(16), false), (21, macvlan(), Some(4), false)]);
        assert_eq!(short(&of_p1), [(22, macvlan(), Some(8), true)]);
        assert_eq!(of_none, []);
    }
}

//! `brickmoon run` and `brickmoon snabb` as a user types them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn brickmoon(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_brickmoon")).args(arguments).output().expect("the binary is there")
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("bm-run-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).expect("the test can write");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name of ours")
}

/// A capture file (little-endian, microseconds) of these frames.
fn capture(frames: &[[u8; 60]]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut bytes = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for (second, frame) in frames.iter().enumerate() {
        bytes.extend(words(&[second as u32, 0, 60, 60]));
        bytes.extend(frame);
    }
    bytes
}

const PROGRAM: &str = r#"
local input, output = ...
local Mark = { config = { mark = { required = true } } }
function Mark:new (conf) return setmetatable({ mark = conf.mark }, { __index = Mark }) end
function Mark:push ()
   for _ = 1, link.nreadable(self.input.input) do
      local p = link.receive(self.input.input)
      p.data[0] = self.mark
      link.transmit(self.output.output, p)
   end
end
local c = config.new()
config.app(c, "from", "pcap:"..input)
config.app(c, "loop", "memory")
config.app(c, "mark", Mark, { mark = 0xaa })
config.app(c, "to", "pcap:,"..output)
config.link(c, "from.output -> loop.input")
config.link(c, "loop.output -> mark.input")
config.link(c, "mark.output -> to.input")
engine.configure(c)
local last = engine.link_table["mark.output -> to.input"]
engine.main { done = function () return link.stats(last).rxpackets >= 10 end, report = { showlinks = true } }
"#;

#[test]
fn packets_go_through_apps_in_rust_and_in_lua() {
    let frames: Vec<[u8; 60]> = (0..10).map(|n| [n; 60]).collect();
    let (program, input) = (file("mark.lua", PROGRAM.as_bytes()), file("in.pcap", &capture(&frames)));
    let output = file("out.pcap", b"");
    let run = brickmoon(&["run", text(&program), text(&input), text(&output)]);
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("10 sent on mark.output -> to.input (loss rate: 0%)"), "{said}");
    let written = std::fs::read(&output).expect("it was written");
    let expected: Vec<u8> = (0..10u8).flat_map(|n| [&[0xaa][..], &[n; 59]].concat()).collect();
    let packets: Vec<u8> = written[24..].chunks(76).flat_map(|record| &record[16..]).copied().collect();
    assert_eq!(packets, expected);
    [program, input, output].iter().for_each(|path| drop(std::fs::remove_file(path)));
}

#[test]
fn errors_and_statuses_are_those_of_the_contract() {
    let program =
        file("bad.lua", b"local c = config.new()\nconfig.app(c, 'x', 'card:7')\nengine.configure(c)\n");
    let run = brickmoon(&["run", text(&program)]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1));
    assert!(said.contains("bad.lua:3: app x: no app in Rust is called \"card:7\""), "{said}");
    std::fs::remove_file(program).expect("it is there");
    assert_eq!(brickmoon(&["snabb", "-t", "core.config"]).status.code(), Some(0));
    assert_eq!(brickmoon(&["snabb"]).status.code(), Some(2));
    assert_eq!(brickmoon(&["snabb", "--path", "/nonexistent", "x"]).status.code(), Some(2));
    assert_eq!(brickmoon(&["snabb", "-t", "core.nothing"]).status.code(), Some(1));
}

#[test]
fn what_was_said_comes_out_though_the_program_closed_its_streams() {
    let program = "local ffi = require('ffi')\nffi.cdef 'int close(int);'\n\
        for n = 1, 2 do _G[n] = ffi.gc(ffi.new('int[1]', n), function (fd) ffi.C.close(fd[0]) end) end\n\
        io.stdout:setvbuf('full')\nprint('to C')\n\
        io = { stdout = { flush = function () error('a full disk') end } }\n\
        error('a mistake')\n";
    let program = file("closing.lua", program.as_bytes());
    let run = brickmoon(&["run", text(&program)]);
    let (said, wrong) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert_eq!((run.status.code(), &*said), (Some(1), "to C\n"), "{wrong}");
    assert!(wrong.contains("brickmoon: io.stdout cannot be written: "), "{wrong}");
    assert!(wrong.contains("a full disk") && wrong.contains("closing.lua:7: a mistake"), "{wrong}");
    std::fs::remove_file(program).expect("it is there");
}

#[test]
fn a_program_that_does_not_come_back_is_broken_off_with_its_line() {
    // In the interpreter, and in a compiled loop.
    for body in ["jit.off() while true do end", "local n = 0 while true do n = n + 1 end"] {
        let new = format!("local A = {{}}\nfunction A:new ()\n{body}\nend\n");
        let program = file(
            "endless.lua",
            (new + "local c = config.new()\nconfig.app(c, 'a', A)\nengine.configure(c)\n").as_bytes(),
        );
        let run = brickmoon(&["run", "--setup-seconds", "1", text(&program)]);
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{body}: {said}");
        assert!(said.contains("endless.lua:3: it did not come back, and was broken off"), "{body}: {said}");
        // What it does beside its apps ends by a signal.
        std::fs::write(&program, format!("print('ready') io.flush()\n{body}\n")).expect("the test can write");
        let mut run = Command::new(env!("CARGO_BIN_EXE_brickmoon"))
            .args(["run", text(&program)])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the binary is there");
        let mut ready = [0; 6];
        std::io::Read::read_exact(run.stdout.as_mut().expect("piped"), &mut ready).expect("it starts");
        let killed = Command::new("kill").args(["-INT", &run.id().to_string()]).status();
        assert!(killed.expect("kill is there").success());
        let run = run.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{body}: {said}");
        assert!(said.contains("endless.lua:2: it did not come back, and was broken off"), "{body}: {said}");
        std::fs::remove_file(program).expect("it is there");
    }
}

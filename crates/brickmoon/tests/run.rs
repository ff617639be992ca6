//! `brickmoon run` and `brickmoon snabb` on the command line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

fn brickmoon(arguments: &[&str]) -> Output {
    let socket = socket();
    let (what, rest) = arguments.split_first().expect("a command");
    let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    command.args([what, "--socket", text(&socket)]).args(rest);
    let output = command.output().expect("the binary is there");
    // A program that is killed leaves its socket.
    let _gone = std::fs::remove_file(socket);
    output
}

/// A socket path for each program, instead of the default of the machine.
fn socket() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("bm-run-{}-{number}.sock", std::process::id()))
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
fn packets_pass_through_apps_in_rust_and_in_lua() {
    let frames: Vec<[u8; 60]> = (0..10).map(|n| [n; 60]).collect();
    let (program, input) = (file("mark.lua", PROGRAM.as_bytes()), file("in.pcap", &capture(&frames)));
    let output = file("out.pcap", b"");
    let run = brickmoon(&["run", text(&program), text(&input), text(&output)]);
    let message = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(message.contains("10 sent on mark.output -> to.input (loss rate: 0%)"), "{message}");
    let written = std::fs::read(&output).expect("it was written");
    let expected: Vec<u8> = (0..10u8).flat_map(|n| [&[0xaa][..], &[n; 59]].concat()).collect();
    let packets: Vec<u8> = written[24..].chunks(76).flat_map(|record| &record[16..]).copied().collect();
    assert_eq!(packets, expected);
    [program, input, output].iter().for_each(|path| drop(std::fs::remove_file(path)));
}

#[test]
fn errors_and_exit_statuses_are_as_documented() {
    let program =
        file("bad.lua", b"local c = config.new()\nconfig.app(c, 'x', 'card:7')\nengine.configure(c)\n");
    let run = brickmoon(&["run", text(&program)]);
    let message = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1));
    assert!(message.contains("bad.lua:3: app x: there is no app in Rust named \"card:7\""), "{message}");
    std::fs::remove_file(program).expect("it is there");
    assert_eq!(brickmoon(&["snabb", "-t", "core.config"]).status.code(), Some(0));
    assert_eq!(brickmoon(&["snabb"]).status.code(), Some(2));
    assert_eq!(brickmoon(&["snabb", "--path", "/nonexistent", "x"]).status.code(), Some(2));
    assert_eq!(brickmoon(&["snabb", "-t", "core.nothing"]).status.code(), Some(1));
}

#[test]
fn output_is_written_even_if_the_program_closed_its_streams() {
    let program = "local ffi = require('ffi')\nffi.cdef 'int close(int);'\n\
        for n = 1, 2 do _G[n] = ffi.gc(ffi.new('int[1]', n), function (fd) ffi.C.close(fd[0]) end) end\n\
        io.stdout:setvbuf('full')\nprint('to C')\n\
        io = { stdout = { flush = function () error('a full disk') end } }\n\
        error('a mistake')\n";
    let program = file("closing.lua", program.as_bytes());
    let run = brickmoon(&["run", text(&program)]);
    let (message, wrong) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert_eq!((run.status.code(), &*message), (Some(1), "to C\n"), "{wrong}");
    assert!(wrong.contains("brickmoon: io.stdout cannot be written: "), "{wrong}");
    assert!(wrong.contains("a full disk") && wrong.contains("closing.lua:7: a mistake"), "{wrong}");
    std::fs::remove_file(program).expect("it is there");
}

/// Exit status and error output of a program that gets a signal after it has printed `ready`.
fn ended_by(signal: &str, program: &std::path::Path) -> (Option<i32>, String) {
    let socket = socket();
    let mut run = Command::new(env!("CARGO_BIN_EXE_brickmoon"))
        .args(["run", "--socket", text(&socket), text(program)])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary is there");
    let mut ready = [0; 6];
    std::io::Read::read_exact(run.stdout.as_mut().expect("piped"), &mut ready).expect("it starts");
    let killed = Command::new("kill").args([signal, &run.id().to_string()]).status();
    assert!(killed.expect("kill is there").success());
    let run = run.wait_with_output().expect("it ends");
    let _gone = std::fs::remove_file(socket);
    (run.status.code(), String::from_utf8_lossy(&run.stderr).into_owned())
}

/// Apps that count packets report their counts, with one of them on its own core or all on two workers.
#[test]
fn apps_of_all_workers_report() {
    let program = |app: &str, options: &str| {
        format!(
            "local basic = require('apps.basic.basic_apps')
local Count = {{ new = function (self) return setmetatable({{ seen = 0 }}, {{ __index = self }}) end }}
function Count:push ()
   for _ = 1, link.nreadable(self.input.i) do packet.free(link.receive(self.input.i)) self.seen = self.seen + 1 end
end
function Count:report () print(self.seen > 0 and 'some' or 'none') end
local c = config.new()
config.app(c, 'source', basic.Source)
config.app(c, 'tee', basic.Tee)
config.app(c, 'a', Count)
config.app(c, 'b', Count, nil{app})
config.link(c, 'source.o -> tee.i')
config.link(c, 'tee.a -> a.i')
config.link(c, 'tee.b -> b.i')
engine.configure(c{options})
engine.main {{ duration = 0.5, report = {{ showapps = true }} }}
"
        )
    };
    let cases = [
        (program(", { core = 0 }", ""), "apps report:\na\nsome\nb\nsome\n"),
        (
            program("", ", { workers = 2 }"),
            "apps report:\na (worker 0)\nsome\nb (worker 0)\nsome\na (worker 1)\nsome\nb (worker 1)\nsome\n",
        ),
    ];
    for (text_of, expected) in cases {
        let program = file("report.lua", text_of.as_bytes());
        let run = brickmoon(&["run", text(&program)]);
        let (message, wrong) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{wrong}");
        assert_eq!(message, expected, "{wrong}");
        std::fs::remove_file(program).expect("it is there");
    }
}

/// os.exit() ends a program even inside a pcall() or a coroutine.
#[test]
fn exit_cannot_be_caught() {
    for body in [
        "os.exit(7)",
        "pcall(function () os.exit(7) end)",
        "xpcall(function () main.exit(7) end, print)",
        "coroutine.resume(coroutine.create(function () os.exit(7) end))",
    ] {
        let stopped = "function A:stop () io.stderr:write('stopped') end";
        let apps = format!(
            "local A = {{}} function A:new () return setmetatable({{}}, {{ __index = A }}) end {stopped}"
        );
        let start = "local c = config.new() config.app(c, 'a', A) engine.configure(c)";
        let program = file("exit.lua", format!("{apps}\n{start}\n{body}\nprint('went on')\n").as_bytes());
        let run = brickmoon(&["run", text(&program)]);
        let message = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!((run.status.code(), run.stdout.len()), (Some(7), 0), "{body}: {message}");
        assert_eq!(message.matches("stopped").count(), 1, "{body}: apps are stopped once: {message}");
        std::fs::remove_file(program).expect("it is there");
    }
}

#[test]
fn a_program_that_does_not_return_is_interrupted_with_its_line() {
    // In the interpreter and in a compiled loop.
    for body in ["jit.off() while true do end", "local n = 0 while true do n = n + 1 end"] {
        let new = format!("local A = {{}}\nfunction A:new ()\n{body}\nend\n");
        let program = file(
            "endless.lua",
            (new + "local c = config.new()\nconfig.app(c, 'a', A)\nengine.configure(c)\n").as_bytes(),
        );
        let run = brickmoon(&["run", "--setup-seconds", "1", text(&program)]);
        let message = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(1), "{body}: {message}");
        assert!(
            message.contains("endless.lua:3: it did not return, and was interrupted"),
            "{body}: {message}"
        );
        // Code outside of apps is ended by a signal; by SIGTERM without a message, as with programs in engine.main().
        std::fs::write(&program, format!("print('ready') io.flush()\n{body}\n")).expect("the test can write");
        let (code, message) = ended_by("-INT", &program);
        assert_eq!(code, Some(1), "{body}: {message}");
        assert!(
            message.contains("endless.lua:2: it did not return, and was interrupted"),
            "{body}: {message}"
        );
        let (code, message) = ended_by("-TERM", &program);
        assert_eq!(code, Some(0), "{body}: {message}");
        assert!(!message.contains("was interrupted"), "{body}: {message}");
        std::fs::remove_file(program).expect("it is there");
    }
}

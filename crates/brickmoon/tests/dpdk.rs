//! Lua and DPDK with the same frames: a packet that Lua sends through a DPDK ring returns at the same address.
#![cfg(feature = "dpdk")]

use std::process::Command;

const PROGRAM: &str = r#"
local ffi = require("ffi")
local Loop = {}
function Loop:new () return setmetatable({ sent = {}, rounds = 0, first = true }, { __index = Loop }) end
function Loop:pull ()
   if not self.first then return end
   self.first = false
   for i = 1, 100 do
      local p = packet.allocate()
      p.length = 60
      ffi.fill(p.data, 60, i)
      self.sent[i] = tostring(p.data)
      link.transmit(self.output.output, p)
   end
end
function Loop:push ()
   for _ = 1, link.nreadable(self.input.input) do
      local p = link.receive(self.input.input)
      local i = p.data[59]
      assert(p.length == 60 and p.data[0] == i, "other bytes")
      assert(self.sent[i] == tostring(p.data), "packet "..i.." was copied")
      self.rounds = self.rounds + 1
      link.transmit(self.output.output, p)
   end
end
local c = config.new()
config.app(c, "ring", "dpdk:net_ring_lua")
config.app(c, "loop", Loop)
config.link(c, "loop.output -> ring.input")
config.link(c, "ring.output -> loop.input")
engine.configure(c)
engine.main { done = function () return engine.app_table.loop.rounds >= 100000 end }
print("rounds", engine.app_table.loop.rounds >= 100000)
"#;

#[test]
fn packets_of_lua_pass_through_dpdk_without_a_copy() {
    let program = std::env::temp_dir().join(format!("bm-dpdk-{}.lua", std::process::id()));
    std::fs::write(&program, PROGRAM).expect("the test can write");
    let socket = program.with_extension("sock");
    let run = Command::new(env!("CARGO_BIN_EXE_brickmoon"))
        .args(["run", "--socket"])
        .args([&socket, &program])
        .output();
    let run = run.expect("the binary is there");
    let (text, failed) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && text.contains("rounds\ttrue"), "{text}{failed}");
    let _gone = std::fs::remove_file(program);
}

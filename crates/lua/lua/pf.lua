-- Filters under the name of pflua, for programs that bring no pflua of their own.

local compile = require("brickmoon.filter").compile

local M = {}

-- A function (data, length). Options choose among pflua's ways to compile, of which there is one here.
function M.compile_filter (text, _) return compile(text) end

function M.selftest ()
   local arp = require("ffi").new("uint8_t[60]")
   arp[12], arp[13] = 8, 6
   assert(M.compile_filter("arp", {})(arp, 60) and not M.compile_filter("ip")(arp, 60))
end

return M

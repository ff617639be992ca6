-- Filters under pflua's module name, for programs that do not bring their own pflua.

local compile = require("brickmoon.filter").compile

local M = {}

-- A function (data, length). pflua's options select a way to compile; here there is only one.
function M.compile_filter (text, _) return compile(text) end

function M.selftest ()
   local arp = require("ffi").new("uint8_t[60]")
   arp[12], arp[13] = 8, 6
   assert(M.compile_filter("arp", {})(arp, 60) and not M.compile_filter("ip")(arp, 60))
end

return M

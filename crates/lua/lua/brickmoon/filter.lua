-- Packet filters in the language of tcpdump (pflang), compiled to Lua.
--
--    local match = require("brickmoon.filter").compile("tcp dst port 443")
--    if match(p.data, p.length) then ... end
--
--    text -> lexer -> parser (tests: what the primitives mean; arithmetic) -> emit -> a function
--
-- The function allocates nothing and compiles into the trace of the loop that calls it. It takes a pointer to an
-- Ethernet frame and its length in bytes. What works differently in libpcap is an error: host names are not looked
-- up, and keywords for other link types (wlan, atm) or for facts that are not in the frame (inbound) are refused.

local ffi = require("ffi")
local bit = require("bit")
local parser = require("brickmoon.filter.parser")
local emit = require("brickmoon.filter.emit")

local M = {}

local function multiply (a, b)
   return tonumber(ffi.cast("uint32_t", ffi.cast("uint64_t", a) * ffi.cast("uint64_t", b)))
end

local function shift_left (a, n) return n < 32 and bit.lshift(a, n) % 4294967296 or 0 end
local function shift_right (a, n) return n < 32 and bit.rshift(a, n) % 4294967296 or 0 end

-- The Lua source that a filter compiles to.
function M.source (text)
   if type(text) ~= "string" then error("filter: expected a string, not a "..type(text), 2) end
   return emit.source(parser.parse(text))
end

-- Returns a function (data, length) that tells whether a frame matches. An empty filter matches every frame. An error
-- has three lines: the reason, the filter, and the position in it.
function M.compile (text)
   local chunk = assert(loadstring(M.source(text), "=filter '"..text:sub(1, 40).."'"))
   return chunk(ffi, bit.band, bit.bor, bit.bxor, bit.bswap, bit.rshift, math.floor, multiply, shift_left, shift_right)
end

local function test_errors ()
   for text, column in pairs {
      ["tcp dst port"] = 13, ["tcp dst port x9"] = 14, ["port 70000"] = 6, ["ip host 10.0.0.256"] = 9,
      ["net 10.0.0.1/8"] = 5, ["ip and and tcp"] = 8, ["(ip"] = 4, ["ip)"] = 3, ["ip[0:3] = 1"] = 6,
      ["host example.com"] = 6, ["icmp port 7"] = 11, ["ip[0] / 0 = 1"] = 7, ["tcp or inbound"] = 8,
      ["ether host 10.0.0.1"] = 12, ["ip = "] = 4, ["len ="] = 6, ["vlan 5000"] = 6, ["\1"] = 1, ["ether"] = 6,
      ["tcp &"] = 5, ["foo"] = 1, ["02:00:00:00:00:01"] = 1,
      ["80"] = 1, ["ip and 10.0.0.1"] = 8, ["net 10 mask"] = 12, ["udp port http"] = 10,
   } do
      local fine, why = pcall(M.compile, text)
      assert(not fine and why:match("^filter, column (%d+): ") == tostring(column), text..": "..tostring(why))
   end
   local _, why = pcall(M.compile, "tcp dst port x9")
   assert(why == "filter, column 14: there is no tcp service 'x9': give its port number\n   tcp dst port x9\n   "
             ..(" "):rep(13).."^", why)
   assert(not pcall(M.compile, nil))
end

local function test_matches ()
   local bytes = "\2\0\0\0\0\1\2\0\0\0\0\2\8\0\x45\0\0\x28\0\1\0\0\x40\6\0\0\10\0\0\1\10\0\0\2"
      .."\4\0\1\xbb\0\0\0\0\0\0\0\0\x50\2\0\0\0\0\0\0"
   for text, expected in pairs {
      [""] = true, ["tcp dst port 443"] = true, ["tcp dst port https"] = true, ["port https"] = true, ["port domain"] = false, ["tcp src port 443"] = false,
      ["port 443 or 80"] = true, ["portrange 400-500"] = true, ["not tcp"] = false, ["ip[8] = 64"] = true,
      ["tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn"] = true, ["net 10"] = true, ["net 11/8"] = false,
      ["src 10.0.0.1 and dst 10.0.0.2"] = true, ["host (10.0.0.1 and 10.0.0.2)"] = true,
      ["ether src 02:00:00:00:00:02"] = true, ["ether multicast"] = false, ["len = 54"] = true, ["less 53"] = false,
      ["ip6 or vlan or arp"] = false, ["ether[60] = 0"] = false, ["not ether[60] = 0"] = false, ["net 0/0"] = true,
      ["4 * (2 + 3) = 20 && ip[2:2] - 40 = 0"] = true, ["(tcp)"] = true, ["((len)) > 3"] = true,
   } do
      local match = M.compile(text)
      assert(match(bytes, #bytes) == expected, text.."\n"..M.source(text))
   end
   local many = { "host 10.9.9.9" }
   for i = 1, 3000 do many[#many + 1] = ("10.%d.%d.1"):format(i / 256, i % 256) end
   assert(M.compile(table.concat(many, " or "))(bytes, #bytes) == false)
end

function M.selftest ()
   test_errors()
   test_matches()
end

return setmetatable(M, { __call = function (_, text) return M.compile(text) end })

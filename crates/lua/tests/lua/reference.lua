-- docs/lua-reference.md must name every function of the modules.

local file = assert(io.open(debug.getinfo(1, "S").source:match("^@(.*)/").."/../../../../docs/lua-reference.md"))
local text = file:read("*a")
file:close()

local known = {}
for word in text:gmatch("[%w_]+") do known[word] = true end
-- Functions that only the engine calls, and functions that only old programs use.
local silent = require("core.lib").set("selftest", "account_free", "free_internal", "clone_to_memory", "initialize",
   "enable_group_freelist", "rebalance_freelists", "preallocate_step", "shutdown", "explain", "show", "deactivate", "init",
   "pointer_to_number", "random_bytes_from_dev_urandom", "random_bytes_from_math_random", "version", "class", "superClass",
   "new", "name")

local missing = {}
local function look (module, functions)
   for name, value in pairs(functions) do
      if type(value) == "function" and not known[name] and not silent[name] then
         missing[#missing + 1] = module.."."..name
      end
   end
end

for _, module in ipairs { "core.lib", "core.shm", "core.counter", "core.histogram", "core.timer", "core.worker", "core.sync",
                          "core.memory", "core.link", "core.packet", "core.config", "core.main", "lib.checksum",
                          "lib.pcap.pcap", "brickmoon.filter", "brickmoon.bucket", "brickmoon.table", "brickmoon.ports",
                          "lib.protocol.datagram", "lib.protocol.ethernet", "lib.protocol.dot1q", "lib.protocol.ipv4",
                          "lib.protocol.ipv6", "lib.protocol.udp", "lib.protocol.gre", "lib.protocol.header",
                          "lib.protocol.keyed_ipv6_tunnel" } do
   look(module, require(module))
end
-- Address fields are compared with NAME_eq, which the page mentions only once.
for i = #missing, 1, -1 do
   if missing[i]:match("_eq$") or missing[i]:match("tunnel%.id$") then table.remove(missing, i) end
end
table.sort(missing)
assert(#missing == 0, "docs/lua-reference.md does not name: "..table.concat(missing, ", "))

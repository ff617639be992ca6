-- Hooks: functions over a burst of the router, at one of its stages.
--
--    local hook = require("brickmoon.hook")
--    local blocked = hook.reason("blocked", "its port is not let through")
--    return function (burst)
--       for i = 0, burst.count - 1 do
--          local p = burst.packet[i]
--          if p.length > 37 and p.data[36] == 0 and p.data[37] == 23 then burst.drop(i, blocked) end
--       end
--    end
--
-- The burst is one struct that Rust fills and reads (crates/lua/src/hook/burst.rs). Everything done for a packet is a
-- load or a store, in the same trace as the hook itself. docs/hooks.md is the reference.

local ffi = require("ffi")
local bit = require("bit")
local buffer = require("string.buffer")
require("core.runtime")
require("core.jitwatch")
local bridge = require("brickmoon.hook.bridge")

local band, bnot, lshift, rshift, bor = bit.band, bit.bnot, bit.lshift, bit.rshift, bit.bor

ffi.cdef[[
struct brickmoon_mask { int32_t word[8]; };
struct brickmoon_count { uint64_t c; };
struct brickmoon_burst {
   int32_t count;
   uint16_t port;
   uint8_t family, stage;
   uint64_t now_ns;
   struct brickmoon_mask mask;
   struct packet **packet;
   uint32_t *next_hop;
   const uint16_t *out;
   const void *routes;
   uint32_t (*find4)(const void *, uint32_t);
   uint32_t (*find6)(const void *, const uint8_t *);
   const volatile uint64_t *published;
   struct brickmoon_count counters[32];
   int32_t made_count, made_max;
   struct packet *made[64];
   uint16_t made_port[64];
   uint16_t verdict[256];
};
]]

local b = ffi.cast("struct brickmoon_burst *", bridge.burst)
local words = b.mask.word
local SEND, COUNTERS, REASONS = 0x8000, 32, 64

local M = { name = bridge.name, worker = bridge.worker, workers = bridge.workers, ports = {} }

-- Ports by name, as `show ports` lists them, with the numbers that burst.send takes.
for index, name in ipairs(bridge.ports) do M.ports[name] = index - 1 end

-- The number of a port, by name.
function M.port (name)
   local number = M.ports[name]
   if number then return number end
   local known = table.concat(bridge.ports, ", ")
   error(("there is no port %q: the ports are %s"):format(tostring(name), known), 2)
end

-- Drop reasons: numbers from 1, in the order in which they were declared.
local numbers, reasons = {}, {}
M.declared = reasons

local function is_name (name) return type(name) == "string" and name:match("^[%l%d_]+$") and #name <= 40 end

-- Declares a drop reason; `show drops` lists it under this name.
function M.reason (name, meaning)
   if not is_name(name) then
      error(("the name of a reason must consist of lower-case letters, digits and _ (at most 40), not %q")
         :format(tostring(name)), 2)
   end
   if numbers[name] then return numbers[name] end
   if M.closed then error(("reason %s: declare it when the file is loaded, not in a burst"):format(name), 2) end
   if #reasons == REASONS then error("a hook can declare at most 64 reasons", 2) end
   table.insert(reasons, { name = name, meaning = meaning or "dropped by hook "..bridge.name })
   numbers[name] = #reasons
   -- A reason can be given by name or by number.
   numbers[#reasons] = #reasons
   return #reasons
end

ffi.metatype("struct brickmoon_count", { __index = {
   -- Adds n, or 1.
   add = function (self, n) self.c = self.c + (n or 1) end,
   read = function (self) return self.c end,
} })

local counters = {}
M.counters = counters

-- A counter of this hook; `show hooks` prints the sum over all workers.
function M.counter (name)
   if not is_name(name) then
      error(("the name of a counter must consist of lower-case letters, digits and _ (at most 40), not %q")
         :format(tostring(name)), 2)
   end
   for index, known in ipairs(counters) do
      if known == name then return b.counters + (index - 1) end
   end
   if M.closed then error(("counter %s: create it when the file is loaded, not in a burst"):format(name), 2) end
   if #counters == COUNTERS then error("a hook can have at most 32 counters", 2) end
   table.insert(counters, name)
   return b.counters + (#counters - 1)
end

local function next_in (mask, i)
   i = i + 1
   while i < b.count do
      if band(words[rshift(i, 5)], lshift(1, i)) ~= 0 then return i end
      i = i + 1
   end
end

ffi.metatype("struct brickmoon_mask", {
   __index = {
      has = function (self, i) return band(self.word[rshift(i, 5)], lshift(1, i)) ~= 0 end,
      clear = function (self, i)
         local w = rshift(i, 5)
         self.word[w] = band(self.word[w], bnot(lshift(1, i)))
      end,
      set = function (self, i)
         local w = rshift(i, 5)
         self.word[w] = bor(self.word[w], lshift(1, i))
      end,
      each = function (self) return next_in, self, -1 end,
   },
   __len = function (self)
      local n = 0
      for _ in next_in, self, -1 do n = n + 1 end
      return n
   end,
})

local function outside (i)
   error(("the burst has packets 0 to %d, not %s"):format(b.count - 1, tostring(i)), 3)
end

-- Removes frame i from the burst, with a verdict. Does nothing if it was removed before.
local function take_off (i, verdict)
   local w, own = rshift(i, 5), lshift(1, i)
   local word = words[w]
   if band(word, own) ~= 0 then
      words[w] = band(word, bnot(own))
      b.verdict[i] = verdict
   end
end

local function port_number (port)
   local number = M.ports[port] or tonumber(port)
   if not number or number < 0 or number >= SEND then
      error(("there is no port %s"):format(tostring(port)), 3)
   end
   return number
end

local scratch = ffi.new("uint8_t[16]")

local methods = {
   -- Drops frame i; reason is a name or a number that hook.reason returned.
   drop = function (i, reason)
      local number = numbers[reason]
      if not number then
         error(("there is no reason %s: declare it with hook.reason(name, meaning)"):format(tostring(reason)), 2)
      end
      if i < 0 or i >= b.count then outside(i) end
      take_off(i, number)
   end,
   -- Hands frame i to the slow path, and from there to Linux.
   punt = function (i)
      if i < 0 or i >= b.count then outside(i) end
      take_off(i, 0)
   end,
   -- Sends frame i unchanged out of a port.
   send = function (i, port)
      if i < 0 or i >= b.count then outside(i) end
      take_off(i, SEND + port_number(port))
   end,
   -- Whether frame i is still in the burst.
   has = function (i) return band(words[rshift(i, 5)], lshift(1, i)) ~= 0 end,
   -- for i in burst.each() do: the frames that are still in the burst.
   each = function () return next_in, b.mask, -1 end,
   -- Sends an additional packet (of core.packet) out of a port; false if the burst has no room for more.
   emit = function (p, port)
      local n = b.made_count
      if n >= b.made_max then return false end
      b.made[n] = p
      b.made_port[n] = port_number(port)
      b.made_count = n + 1
      return true
   end,
   -- The number of the next hop for an IPv4 address (a number, most significant byte first), 0 if there is none.
   route4 = function (address) return b.find4(b.routes, address) end,
   -- The same for IPv6: 16 bytes.
   route6 = function (bytes)
      ffi.copy(scratch, bytes, 16)
      return b.find6(b.routes, scratch)
   end,
}

ffi.metatype("struct brickmoon_burst", { __index = methods })

-- Publishing: a table that all workers read. It is copied as a whole, so no worker sees half a change.

local seen = {}

-- Publishes a value (table, string, number or boolean) under this name to all workers.
function M.publish (name, value)
   bridge.publish(name, buffer.encode(value))
end

-- The value last published under this name, or nil. Cheap enough for every burst, not for every packet.
function M.shared (name)
   local generation = b.published[0]
   local entry = seen[name]
   if entry and entry.generation == generation then return entry.value end
   local number, text = bridge.fetch(name)
   if not entry or entry.number ~= number then
      entry = { number = number, value = text and buffer.decode(text) }
      seen[name] = entry
   end
   entry.generation = generation
   return entry.value
end

-- An array of `count` elements of a C type that all workers share, zeroed at first. It survives a reload. Coordinating
-- its writers is up to the hook.
function M.memory (name, ctype, count)
   local size = ffi.sizeof(ctype) * (count or 1)
   return ffi.cast(ffi.typeof("$ *", ffi.typeof(ctype)), bridge.memory(name, size))
end

local STAGES = { "ingress", "lookup", "egress", "slow" }

local function functions (found, stage, path)
   if type(found) == "function" then
      if not stage then
         error(path..": the file returns a function, so the configuration must say stage = \"ingress\", "..
            "\"lookup\", \"egress\" or \"slow\"", 0)
      end
      return { [stage] = found }
   end
   if type(found) ~= "table" then
      error(("%s: the file must return a function that takes a burst, or a table of such functions by stage; it returns %s")
         :format(path, found == nil and "nothing" or "a "..type(found)), 0)
   end
   if stage then
      if type(found[stage]) ~= "function" then error(("%s: the table has no function %s"):format(path, stage), 0) end
      return { [stage] = found[stage] }
   end
   local all = {}
   for _, name in ipairs(STAGES) do
      if type(found[name]) == "function" then all[name] = found[name] end
   end
   if not next(all) then
      error(path..": the table has none of the functions ingress, lookup, egress, slow", 0)
   end
   return all
end

local function trace (what)
   return tostring(what).."\n"..debug.traceback("", 2):gsub("^\n", "")
end

local function load_file (path, arguments, stage)
   local folder = path:match("^(.*)/[^/]*$") or "."
   package.path = folder.."/?.lua;"..folder.."/?/init.lua;"..package.path
   local chunk, why = loadfile(path)
   if not chunk then error(why, 0) end
   return functions(chunk(arguments), stage, path)
end

-- For Rust. Returns true, the message handler, the four functions (or false) and the burst; or false and the error.
function M.load (path, arguments, stage)
   local fine, found = xpcall(load_file, trace, path, arguments, stage)
   if not fine then return false, found end
   M.closed = true
   local names, meanings = {}, {}
   for _, reason in ipairs(reasons) do
      table.insert(names, reason.name)
      table.insert(meanings, reason.meaning)
   end
   return true, { names = names, meanings = meanings, counters = counters },
      trace, found.ingress or false, found.lookup or false, found.egress or false, found.slow or false, b
end

-- The same for the request that Rust has left in its table; Rust finds the answer there.
function M.load_ordered ()
   bridge.loaded = { M.load(bridge.file, bridge.arguments, bridge.stage) }
end

M.trace = trace

return M

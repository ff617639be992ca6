-- Turns the syntax tree into a Lua function. Each test jumps directly to the code for its result, so a filter is a
-- sequence of comparisons without calls. Bytes are loaded from the frame and compared in network byte order.
--
-- If a frame ends before a byte that a test reads, the frame does not match, whatever else the filter says. This is
-- what BPF does. The compiler tracks on each path how long the frame is known to be, so that each length is checked
-- only once.

local bit = require("bit")
local rows = require("brickmoon.filter.rows")
local bswap, rshift, tobit = bit.bswap, bit.rshift, bit.tobit
local arithmetic = {}

local Emitter = {}
Emitter.__index = Emitter

function Emitter:line (format, ...) self.lines[#self.lines + 1] = format:format(...) end

function Emitter:label ()
   self.labels = self.labels + 1
   return "L"..self.labels
end

function Emitter:place (label) self:line("::%s::", label) end

local function jump (target)
   if target == "accept" then return "return true" end
   if target == "reject" then return "return false" end
   return "goto "..target
end

-- Jumps to `yes` or `no`; `following` is the label that comes next in the code.
function Emitter:branch (condition, yes, no, following)
   if following == yes then
      self:line("if not (%s) then %s end", condition, jump(no))
   else
      self:line("if %s then %s end", condition, jump(yes))
      if following ~= no then self:line("do %s end", jump(no)) end
   end
end

-- Emits a check that the frame has this many bytes, unless `known` implies it. Returns the length known afterwards.
function Emitter:need (bytes, known)
   if bytes <= known then return known end
   self:line("if length < %d then return false end", bytes)
   return bytes
end

-- Conditions on bytes at fixed offsets

local function raw16 (offset) return ("cast(u16, d + %d)[0]"):format(offset) end
local function raw32 (offset) return ("cast(i32, d + %d)[0]"):format(offset) end
local function host16 (offset) return ("rshift(bswap(%s), 16)"):format(raw16(offset)) end
local function network16 (value) return rshift(bswap(value), 16) end

local conditions = {
   eq8 = { 1, function (n) return ("d[%d] == %d"):format(n.offset, n.value) end },
   ge8 = { 1, function (n) return ("d[%d] >= %d"):format(n.offset, n.value) end },
   bits8 = { 1, function (n) return ("band(d[%d], %d) ~= 0"):format(n.offset, n.value) end },
   eq16 = { 2, function (n) return ("%s == %d"):format(raw16(n.offset), network16(n.value)) end },
   le16 = { 2, function (n) return ("%s <= %d"):format(host16(n.offset), n.value) end },
   id12 = { 2, function (n) return ("band(%s, %d) == %d"):format(raw16(n.offset), network16(0x0fff),
                                                                  network16(n.value)) end },
   first_fragment = { 2, function (n) return ("band(%s, %d) == 0"):format(raw16(n.offset), network16(0x1fff)) end },
   eq32 = { 4, function (n)
      local value = tobit(bswap(tobit(n.value)))
      if n.mask == 0 then return "true" end
      if n.mask == 0xffffffff then return ("%s == %d"):format(raw32(n.offset), value) end
      return ("band(%s, %d) == %d"):format(raw32(n.offset), bswap(tobit(n.mask)), value)
   end },
   in16 = { 2, function (n)
      if n.low == n.high then return ("%s == %d"):format(raw16(n.offset), network16(n.low)) end
      return ("%s >= %d and %s <= %d"):format(host16(n.offset), n.low, host16(n.offset), n.high)
   end },
}

-- Nodes: each returns the frame length known on its yes path and on its no path.

local nodes = { ["and"] = rows["and"], ["or"] = rows["or"], ["not"] = rows["not"] }

-- A port after an IPv4 header, whose length is in its first byte.
function nodes.port (emitter, node, yes, no, following, known)
   known = emitter:need(node.header + 1, known)
   local at = node.header + node.offset
   emitter:line("do")
   emitter:line("local at = band(d[%d], 15) * 4 + %d", node.header, at)
   emitter:line("if length < at + 2 then return false end")
   local raw, condition = "cast(u16, d + at)[0]", nil
   if node.low == node.high then
      condition = ("%s == %d"):format(raw, network16(node.low))
   else
      emitter:line("local port = rshift(bswap(%s), 16)", raw)
      condition = ("port >= %d and port <= %d"):format(node.low, node.high)
   end
   emitter:branch(condition, yes, no, following)
   emitter:line("end")
   return known, known
end

function nodes.relation (emitter, node, yes, no, following, known)
   emitter:line("do")
   local left, right
   left, known = arithmetic.value(emitter, node[1], known)
   right, known = arithmetic.value(emitter, node[2], known)
   emitter:branch(("%s %s %s"):format(left, node.relation, right), yes, no, following)
   emitter:line("end")
   return known, known
end

function Emitter:node (node, yes, no, following, known)
   local simple = conditions[node.op]
   if not simple then
      -- An empty list of tests, such as that of a prefix of length 0, is true.
      if node.op == "and" and #node == 0 then
         if following ~= yes then self:line("do %s end", jump(yes)) end
         return known, known
      end
      return nodes[node.op](self, node, yes, no, following, known)
   end
   known = self:need(node.offset + simple[1], known)
   self:branch(simple[2](node), yes, no, following)
   return known, known
end

-- Arithmetic. Values are Lua numbers from 0 to 2^32 - 1.

function Emitter:temporary (expression, ...)
   self.temporaries = self.temporaries + 1
   local name = "t"..self.temporaries
   self:line("local "..name.." = "..expression, ...)
   return name
end

local byte_sum = {
   [1] = "d[%s]", [2] = "d[%s] * 256 + d[%s + 1]",
   [4] = "d[%s] * 16777216 + d[%s + 1] * 65536 + d[%s + 2] * 256 + d[%s + 3]",
}

local function load_bytes (emitter, node, known)
   local index
   if node.variable then known = emitter:need(node.base + 1, known) end
   if node.index.op == "number" and not node.variable then
      local offset = node.base + node.index.value
      known = emitter:need(offset + node.size, known)
      index = ("%d"):format(offset)
   else
      index, known = arithmetic.value(emitter, node.index, known)
      -- BPF adds the header's length in 32-bit arithmetic, but does not wrap the base offset.
      if node.variable then index = ("(band(d[%d], 15) * 4 + %s) %% 4294967296"):format(node.base, index) end
      index = emitter:temporary("%s + %d", index, node.base)
      emitter:line("if length < %s + %d then return false end", index, node.size)
   end
   return "("..byte_sum[node.size]:gsub("%%s", index)..")", known
end

local operators = {
   ["+"] = "(%s + %s) %% 4294967296", ["-"] = "(%s - %s) %% 4294967296",
   ["&"] = "band(%s, %s) %% 4294967296", ["|"] = "bor(%s, %s) %% 4294967296", ["^"] = "bxor(%s, %s) %% 4294967296",
   ["*"] = "multiply(%s, %s)", ["<<"] = "shift_left(%s, %s)", [">>"] = "shift_right(%s, %s)",
   ["/"] = "floor(%s / %s)", ["%"] = "%s %% %s",
}

function arithmetic.value (emitter, node, known)
   if node.op == "number" then return ("%d"):format(node.value), known end
   if node.op == "length" then return "length", known end
   if node.op == "load" then return load_bytes(emitter, node, known) end
   local left, right
   left, known = arithmetic.value(emitter, node[1], known)
   right, known = arithmetic.value(emitter, node[2], known)
   if node.op == "/" or node.op == "%" then
      if node[2].op ~= "number" then
         right = emitter:temporary("%s", right)
         emitter:line("if %s == 0 then return false end", right)
      end
   end
   return emitter:temporary(operators[node.op], left, right), known
end

local head = [[
local ffi, band, bor, bxor, bswap, rshift, floor, multiply, shift_left, shift_right = ...
local cast, u8, u16, i32 =
   ffi.cast, ffi.typeof("const uint8_t *"), ffi.typeof("const uint16_t *"), ffi.typeof("const int32_t *")
return function (data, length)
local d = cast(u8, data)]]

local M = {}

-- The Lua source of a syntax tree.
function M.source (tree)
   local emitter = setmetatable({ lines = { head }, labels = 0, temporaries = 0 }, Emitter)
   if tree then emitter:node(tree, "accept", "reject", "reject", 0) end
   emitter:line("do return %s end", tree and "false" or "true")
   emitter:line("end")
   return table.concat(emitter.lines, "\n")
end

return M

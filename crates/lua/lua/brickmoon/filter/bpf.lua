-- Turns the syntax tree into instructions of the kernel's BPF, for `brickmoon capture`: crates/capture/bpf/filter.h has
-- the function that they become.
--
-- r1 points to the first bytes of a frame, r2 is its length and r3 the number of bytes there. r0 is the result. As in
-- emit.lua, a frame that ends before a byte that a test reads does not match, and each length is checked only once.
-- Results of arithmetic are in r4; r5 is the other operand, and the stack has those that wait.

local bit = require("bit")
local rows = require("brickmoon.filter.rows")

local LIMIT = 256 -- bytes of a frame that can be read: LOOKED_AT_MAX of filter.h
local DEPTH = 24  -- of arithmetic: 8 bytes of stack each

local Emitter = {}
Emitter.__index = Emitter

-- One instruction: two registers, an offset or the label to jump to, a constant.
function Emitter:put (code, to, from, offset, value)
   self.code[#self.code + 1] = { code = code, to = to, from = from, offset = offset, value = value }
end

function Emitter:label ()
   self.labels = self.labels + 1
   return "L"..self.labels
end

function Emitter:place (label) self.places[label] = #self.code end

-- Codes of arithmetic in 32 bits, with a constant; 8 more with a register.
local ALU = { ["+"] = 0x04, ["-"] = 0x14, ["*"] = 0x24, ["/"] = 0x34, ["|"] = 0x44, ["&"] = 0x54, ["<<"] = 0x64,
              [">>"] = 0x74, ["%"] = 0x94, ["^"] = 0xa4 }
local MOVE, MOVE_REGISTER = 0xb4, 0xbc
local MOVE_64, ADD_64, ADD_CONSTANT_64 = 0xbf, 0x0f, 0x07
local STORE, LOAD = 0x63, { [1] = 0x71, [2] = 0x69, [4] = 0x61 }
local TO_NETWORK_ORDER = 0xdc
-- Codes of comparisons of 32 bits, with a constant; 8 more with a register.
local JUMP = { ["=="] = 0x16, [">"] = 0x26, [">="] = 0x36, ["bits"] = 0x46, ["~="] = 0x56, ["<"] = 0xa6, ["<="] = 0xb6 }
local JUMP_ALWAYS, JUMP_ABOVE_64, JUMP_ABOVE_CONSTANT_64, EXIT = 0x05, 0x2d, 0x25, 0x95
local opposite = { ["=="] = "~=", ["~="] = "==", [">"] = "<=", ["<="] = ">", ["<"] = ">=", [">="] = "<" }

-- Jumps to `yes` if r4 compares so with a constant, or with r5 without one, and else to `no`.
function Emitter:branch (relation, value, yes, no, following)
   local function jump (relation, target)
      if value then self:put(JUMP[relation], 4, 0, target, value) else self:put(JUMP[relation] + 8, 4, 5, target, 0) end
   end
   if following == yes and opposite[relation] then return jump(opposite[relation], no) end
   jump(relation, yes)
   if following ~= no then self:put(JUMP_ALWAYS, 0, 0, no, 0) end
end

function Emitter:use (bytes)
   if bytes > LIMIT then
      error(("filter: it reads byte %d of a packet, and a capture can only test the first %d"):format(bytes, LIMIT), 0)
   end
   self.used = math.max(self.used, bytes)
end

-- A check that the frame has this many bytes, unless `known` implies it. Returns the length known afterwards.
function Emitter:need (bytes, known)
   if bytes <= known then return known end
   self:use(bytes)
   self:put(JUMP["<"], 3, 0, "reject", bytes)
   return bytes
end

-- r4 = bytes at an offset from a register, as a number.
function Emitter:load (from, offset, size)
   self:put(LOAD[size], 4, from, offset, 0)
   if size > 1 then self:put(TO_NETWORK_ORDER, 4, 0, 0, size * 8) end
end

-- Tests of bytes at fixed offsets: size, comparison, mask.

local tests = {
   eq8 = { 1, "==" }, ge8 = { 1, ">=" }, bits8 = { 1, "bits" }, eq16 = { 2, "==" }, le16 = { 2, "<=" },
   id12 = { 2, "==", 0x0fff }, first_fragment = { 2, "==", 0x1fff }, eq32 = { 4, "==" }, in16 = { 2, "==" },
}

local function in_range (emitter, node, yes, no, following)
   if node.low == node.high then return emitter:branch("==", node.low, yes, no, following) end
   emitter:put(JUMP["<"], 4, 0, no, node.low)
   emitter:branch("<=", node.high, yes, no, following)
end

local function fixed (emitter, node, yes, no, following, known)
   local size, relation, mask = unpack(tests[node.op])
   known = emitter:need(node.offset + size, known)
   mask = mask or node.mask
   if mask == 0 then
      if following ~= yes then emitter:put(JUMP_ALWAYS, 0, 0, yes, 0) end
      return known, known
   end
   emitter:load(1, node.offset, size)
   if mask and mask ~= 0xffffffff then emitter:put(ALU["&"], 4, 0, 0, mask) end
   if node.op == "in16" then
      in_range(emitter, node, yes, no, following)
   else
      emitter:branch(relation, node.op == "first_fragment" and 0 or node.value, yes, no, following)
   end
   return known, known
end

-- Arithmetic

local value

-- The length of the IPv4 header at an offset, in a register.
local function header_length (emitter, to, offset)
   emitter:put(LOAD[1], to, 1, offset, 0)
   emitter:put(ALU["&"], to, 0, 0, 15)
   emitter:put(ALU["<<"], to, 0, 0, 2)
end

-- r5 points `r4` bytes into the frame, which must have `size` bytes there.
local function point (emitter, size)
   emitter:put(JUMP_ABOVE_CONSTANT_64, 4, 0, "reject", LIMIT - size)
   emitter:put(MOVE_64, 5, 4, 0, 0)
   emitter:put(ADD_CONSTANT_64, 5, 0, 0, size)
   emitter:put(JUMP_ABOVE_64, 5, 3, "reject", 0)
   emitter:put(MOVE_64, 5, 1, 0, 0)
   emitter:put(ADD_64, 5, 4, 0, 0)
end

local function bytes (emitter, node, known, depth)
   if node.variable then known = emitter:need(node.base + 1, known) end
   if node.index.op == "number" and not node.variable then
      local offset = node.base + node.index.value
      known = emitter:need(offset + node.size, known)
      emitter:load(1, offset, node.size)
      return known
   end
   emitter:use(LIMIT)
   known = value(emitter, node.index, known, depth)
   -- The header's length is added in 32 bits, the base offset without wrapping.
   if node.variable then
      header_length(emitter, 5, node.base)
      emitter:put(ALU["+"] + 8, 4, 5, 0, 0)
   end
   emitter:put(ADD_CONSTANT_64, 4, 0, 0, node.base)
   point(emitter, node.size)
   emitter:load(5, 0, node.size)
   return known
end

-- r4 = r4 << r5, or >>: nothing is left after 32 bits or more.
local function shift (emitter, op)
   local far, done = emitter:label(), emitter:label()
   emitter:put(JUMP[">"], 5, 0, far, 31)
   emitter:put(ALU[op] + 8, 4, 5, 0, 0)
   emitter:put(JUMP_ALWAYS, 0, 0, done, 0)
   emitter:place(far)
   emitter:put(MOVE, 4, 0, 0, 0)
   emitter:place(done)
end

-- r4 and r5 = the two operands of a node.
local function operands (emitter, node, known, depth)
   if depth > DEPTH then error("filter: its arithmetic is nested too deeply for a capture", 0) end
   local place = -8 * depth
   known = value(emitter, node[1], known, depth + 1)
   emitter:put(STORE, 10, 4, place, 0)
   known = value(emitter, node[2], known, depth + 1)
   emitter:put(MOVE_REGISTER, 5, 4, 0, 0)
   emitter:put(LOAD[4], 4, 10, place, 0)
   return known
end

-- r4 = the number of a node.
function value (emitter, node, known, depth)
   if node.op == "number" then
      emitter:put(MOVE, 4, 0, 0, node.value)
   elseif node.op == "length" then
      emitter:put(MOVE_REGISTER, 4, 2, 0, 0)
   elseif node.op == "load" then
      return bytes(emitter, node, known, depth)
   else
      known = operands(emitter, node, known, depth)
      if node.op == "/" or node.op == "%" then emitter:put(JUMP["=="], 5, 0, "reject", 0) end
      if node.op == "<<" or node.op == ">>" then
         shift(emitter, node.op)
      else
         emitter:put(ALU[node.op] + 8, 4, 5, 0, 0)
      end
   end
   return known
end

local nodes = { ["and"] = rows["and"], ["or"] = rows["or"], ["not"] = rows["not"] }

-- A port after an IPv4 header, whose length is in its first byte.
function nodes.port (emitter, node, yes, no, following, known)
   known = emitter:need(node.header + 1, known)
   emitter:use(node.header + 60 + node.offset + 2)
   header_length(emitter, 4, node.header)
   emitter:put(ADD_CONSTANT_64, 4, 0, 0, node.header + node.offset)
   point(emitter, 2)
   emitter:load(5, 0, 2)
   in_range(emitter, node, yes, no, following)
   return known, known
end

function nodes.relation (emitter, node, yes, no, following, known)
   if node[2].op == "number" then
      known = value(emitter, node[1], known, 1)
      emitter:branch(node.relation, node[2].value, yes, no, following)
   else
      known = operands(emitter, node, known, 1)
      emitter:branch(node.relation, nil, yes, no, following)
   end
   return known, known
end

function Emitter:node (node, yes, no, following, known)
   if tests[node.op] then return fixed(self, node, yes, no, following, known) end
   -- An empty list of tests, such as that of a prefix of length 0, is true.
   if node.op == "and" and #node == 0 then
      if following ~= yes then self:put(JUMP_ALWAYS, 0, 0, yes, 0) end
      return known, known
   end
   return nodes[node.op](self, node, yes, no, following, known)
end

local function little_endian (number, size)
   local all = {}
   for i = 1, size do
      all[i] = string.char(number % 256)
      number = math.floor(number / 256)
   end
   return table.concat(all)
end

-- Which instructions may run. The kernel refuses a program with others, such as tests behind one that is always true.
function Emitter:reachable ()
   local reached, waiting = {}, { 1 }
   while #waiting > 0 do
      local at = table.remove(waiting)
      local one = self.code[at]
      if not reached[at] then
         reached[at] = true
         if type(one.offset) == "string" then waiting[#waiting + 1] = self.places[one.offset] + 1 end
         if one.code ~= JUMP_ALWAYS and one.code ~= EXIT then waiting[#waiting + 1] = at + 1 end
      end
   end
   return reached
end

-- The instructions that may run, 8 bytes each; jumps go from the next one.
function Emitter:bytes ()
   local reached, before, count, all = self:reachable(), { [0] = 0 }, 0, {}
   for i = 1, #self.code do
      if reached[i] then count = count + 1 end
      before[i] = count
   end
   for i, one in ipairs(self.code) do
      local offset = one.offset
      if type(offset) == "string" then offset = before[self.places[offset]] - before[i] end
      if reached[i] then
         all[#all + 1] = string.char(one.code, one.to + one.from * 16)..little_endian(offset % 65536, 2)
            ..little_endian(one.value % 4294967296, 4)
      end
   end
   return table.concat(all)
end

local M = {}

-- The instructions of a syntax tree, and how many bytes of a frame they read at most: 0 if every frame matches.
function M.instructions (tree)
   local emitter = setmetatable({ code = {}, places = {}, labels = 0, used = 0 }, Emitter)
   -- The length is tested without a byte being read.
   if tree then emitter:use(1) end
   if tree then emitter:node(tree, "accept", "reject", "reject", 0) end
   if not tree then emitter:put(JUMP_ALWAYS, 0, 0, "accept", 0) end
   emitter:place("reject")
   emitter:put(MOVE, 0, 0, 0, 0)
   emitter:put(EXIT, 0, 0, 0, 0)
   emitter:place("accept")
   emitter:put(MOVE, 0, 0, 0, 1)
   emitter:put(EXIT, 0, 0, 0, 0)
   return emitter:bytes(), emitter.used
end

return M

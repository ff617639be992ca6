-- Arithmetic in filters: `ip[8] < 2`, `tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn`, `len > 100`. All numbers are
-- unsigned 32-bit integers.

local tests = require("brickmoon.filter.tests")

local M = {}

-- Names for offsets and values.
local constants = {
   tcpflags = 13, ["tcp-fin"] = 1, ["tcp-syn"] = 2, ["tcp-rst"] = 4, ["tcp-push"] = 8, ["tcp-ack"] = 16,
   ["tcp-urg"] = 32, ["tcp-ece"] = 64, ["tcp-cwr"] = 128,
   icmptype = 0, icmpcode = 1, ["icmp-echoreply"] = 0, ["icmp-unreach"] = 3, ["icmp-sourcequench"] = 4,
   ["icmp-redirect"] = 5, ["icmp-echo"] = 8, ["icmp-routeradvert"] = 9, ["icmp-routersolicit"] = 10,
   ["icmp-timxceed"] = 11, ["icmp-paramprob"] = 12, ["icmp-tstamp"] = 13, ["icmp-tstampreply"] = 14,
   ["icmp-ireq"] = 15, ["icmp-ireqreply"] = 16, ["icmp-maskreq"] = 17, ["icmp-maskreply"] = 18,
   icmp6type = 0, icmp6code = 1, ["icmp6-destinationunreach"] = 1, ["icmp6-packettoobig"] = 2,
   ["icmp6-timeexceeded"] = 3, ["icmp6-parameterproblem"] = 4, ["icmp6-echo"] = 128, ["icmp6-echoreply"] = 129,
   ["icmp6-multicastlistenerquery"] = 130, ["icmp6-multicastlistenerreportv1"] = 131,
   ["icmp6-multicastlistenerdone"] = 132, ["icmp6-routersolicit"] = 133, ["icmp6-routeradvert"] = 134,
   ["icmp6-neighborsolicit"] = 135, ["icmp6-neighboradvert"] = 136, ["icmp6-redirect"] = 137,
}

local relations = { [">"] = ">", [">="] = ">=", ["<"] = "<", ["<="] = "<=", ["="] = "==", ["=="] = "==", ["!="] = "~=" }

-- Operators by precedence, lowest first.
local levels = { { "|", "^" }, { "&" }, { "<<", ">>" }, { "+", "-" }, { "*", "/", "%" } }

local binary, unary

-- protocol[index] or protocol[index:size]; its guard is added to parser.guards.
local function load_bytes (parser, token)
   parser.place = parser.place + 2
   local guards_before = #parser.guards
   local index = binary(parser, 1)
   local size = 1
   if parser:accept(":") then
      local given = parser:next()
      size = given.value
      if given.kind ~= "number" or (size ~= 1 and size ~= 2 and size ~= 4) then
         parser:fail(given, "the size must be 1, 2 or 4, not '%s'", given.word)
      end
   end
   parser:expect("]")
   local place = tests.bytes_of(parser.at, token.value)
      or parser:fail(token, "'%s' cannot be indexed", token.word)
   if place.first then table.insert(parser.guards, guards_before + 1, place.first) end
   if place.guard then parser.guards[#parser.guards + 1] = place.guard end
   return { op = "load", index = index, size = size, base = place.base, variable = place.variable }
end

local function operand (parser)
   local token = parser:peek()
   if token.kind == "number" then
      if token.value > 0xffffffff then parser:fail(token, "numbers are limited to 32 bits") end
      return { op = "number", value = parser:next().value }
   elseif token.kind == "range" then
      -- The lexer read 8-4 as a port range.
      parser:next()
      local a, b = token.value:match("^(%d+)%-(%d+)$")
      return { op = "-", { op = "number", value = tonumber(a) }, { op = "number", value = tonumber(b) } }
   elseif parser:accept("(") then
      local node = binary(parser, 1)
      parser:expect(")")
      return node
   elseif token.kind == "name" and parser:peek(1).kind == "[" then
      return load_bytes(parser, token)
   elseif parser:accept("len") then
      return { op = "length" }
   elseif token.kind == "name" and constants[token.value] then
      return { op = "number", value = constants[parser:next().value] }
   end
   parser:fail(token, "expected a number, 'len' or bytes such as ip[8], not '%s'", token.word)
end

function unary (parser)
   if parser:accept("-") then return { op = "-", { op = "number", value = 0 }, unary(parser) } end
   return operand(parser)
end

function binary (parser, level)
   if level > #levels then return unary(parser) end
   local node = binary(parser, level + 1)
   while true do
      local operator = parser:accept(unpack(levels[level]))
      if not operator then return node end
      local right = binary(parser, level + 1)
      if (operator.kind == "/" or operator.kind == "%") and right.op == "number" and right.value == 0 then
         parser:fail(operator, "division by zero")
      end
      node = { op = operator.kind, node, right }
   end
end

local function relation (parser)
   local left = binary(parser, 1)
   local token = parser:next()
   local op = relations[token.kind] or parser:fail(token, "expected a comparison, not '%s'", token.word)
   local right = binary(parser, 1)
   local node = { op = "relation", relation = op, left, right }
   if #parser.guards == 0 then return node end
   local all = { op = "and", unpack(parser.guards) }
   all[#all + 1] = node
   return all
end

-- Whether arithmetic may start here. For a parenthesis, its content decides.
local function begins (parser, ahead)
   local token = parser:peek(ahead)
   if token.kind == "(" then return begins(parser, ahead + 1) end
   if token.kind == "-" then return true end
   if token.kind == "name" then
      return token.value == "len" or constants[token.value] ~= nil or parser:peek(ahead + 1).kind == "["
   end
   return token.kind == "number" or token.kind == "range"
end

-- Whether an operator or a comparison follows the first operand. If not, a number is a host or a port.
local function is_sure (parser)
   local first = parser:peek()
   if first.kind == "name" or first.kind == "-" then return true end
   local after = parser:peek(1).kind
   if first.kind ~= "(" then
      return relations[after] ~= nil or after:match("^[%+%-%*/%%&|%^]$") ~= nil or after == "<<" or after == ">>"
   end
   return nil
end

-- Parses a relation if one begins here; otherwise returns nil and consumes nothing.
function M.try_relation (parser)
   if not begins(parser, 0) then return nil end
   local sure = is_sure(parser)
   if sure == false then return nil end
   local place, guards = parser.place, parser.guards
   parser.guards = {}
   local fine, node = pcall(relation, parser)
   parser.guards = guards
   if fine then return node end
   if sure then error(node, 0) end
      -- The parenthesis encloses a filter, not a number.
   parser.place = place
   return nil
end

return M

-- Turns tokens into a syntax tree. As in libpcap, `and` and `or` have equal precedence and group to the left, `not`
-- applies to the next primitive, and a bare address or port takes the qualifiers of the one before it.

local ffi = require("ffi")
local lexer = require("brickmoon.filter.lexer")
local tests = require("brickmoon.filter.tests")
local arithmetic = require("brickmoon.filter.arithmetic")

ffi.cdef [[
int bm_inet_pton(int family, const char *text, void *address) __asm__("inet_pton");
typedef struct { char *name; char **aliases; int port; char *protocol; } bm_service;
bm_service *bm_getservbyname(const char *name, const char *protocol) __asm__("getservbyname");
]]

local Parser = {}
Parser.__index = Parser

function Parser:peek (ahead) return self.tokens[math.min(self.place + (ahead or 0), #self.tokens)] end

function Parser:next ()
   local token = self:peek()
   self.place = self.place + 1
   return token
end

function Parser:fail (token, format, ...) return lexer.fail(self.text, token.first, format, ...) end

-- Takes the next token if it is one of these words or operators.
function Parser:accept (...)
   local token = self:peek()
   for _, word in ipairs { ... } do
      if token.kind == word or token.kind == "name" and token.value == word then return self:next() end
   end
end

function Parser:expect (word)
   return self:accept(word) or self:fail(self:peek(), "expected '%s', not '%s'", word, self:peek().word)
end

local types = { host = true, net = true, port = true, portrange = true, proto = true }
local protocols = { ether = true, link = true, ip = true, ip6 = true, arp = true, rarp = true, tcp = true, udp = true,
                    sctp = true, icmp = true, icmp6 = true, igmp = true, igrp = true, pim = true, vrrp = true,
                    carp = true, ah = true, esp = true }
local unsupported = {}
for word in ([[inbound outbound gateway protochain mpls pppoed pppoes geneve wlan fddi tr iso clnp esis isis atalk
   aarp decnet lat moprc mopdl ipx netbeui stp ifname rnr rulenum reason rset ruleset srnr subrulenum action on lane
   llc oam oamf4 connectmsg metaconnect mtp2 sio opc dpc sls hopc hdpc hsls]]):gmatch("%S+") do
   unsupported[word] = true
end

function Parser:direction ()
   local first = self:accept("src", "dst")
   if not first then return nil end
   local joint = self:peek()
   local is_joint = joint.kind == "name" and (joint.value == "or" or joint.value == "and")
   local second = self:peek(1)
   if is_joint and second.kind == "name" and (second.value == "src" or second.value == "dst")
      and second.value ~= first.value then
      self.place = self.place + 2
      return joint.value == "and" and "src and dst" or "src or dst"
   end
   return first.value
end

-- Numbers and names

local function number_of (parser, token, limit, what)
   if token.kind ~= "number" then parser:fail(token, "expected %s, not '%s'", what, token.word) end
   if token.value > limit then parser:fail(token, "%s must be at most %d, not %s", what, limit, token.word) end
   return token.value
end

local function service_port (name, protocol)
   local service = ffi.C.bm_getservbyname(name, protocol)
   return service ~= nil and bit.rshift(bit.bswap(service.port), 16) or nil
end

-- A port, and its protocol if it was given by a service name that only one protocol has.
function Parser:port (protocol)
   local token = self:next()
   if token.kind ~= "name" and token.kind ~= "escaped" then return number_of(self, token, 65535, "a port") end
   if protocol then
      return service_port(token.value, protocol)
         or self:fail(token, "there is no %s service '%s': give its port number", protocol, token.value)
   end
   local tcp, udp = service_port(token.value, "tcp"), service_port(token.value, "udp")
   if not (tcp or udp) then self:fail(token, "there is no service '%s': give its port number", token.value) end
   if tcp and udp and tcp ~= udp then
      self:fail(token, "'%s' is port %d for tcp but %d for udp: put 'tcp' or 'udp' before it", token.value, tcp, udp)
   end
   return tcp or udp, not udp and "tcp" or not tcp and "udp" or nil
end

function Parser:ports (protocol)
   local token = self:peek()
   if token.kind ~= "range" then
      local low = self:port(protocol)
      local high = self:accept("-") and self:port(protocol) or low
      return math.min(low, high), math.max(low, high)
   end
   self:next()
   local low, high = token.value:match("^(%d+)%-(%d+)$")
   low, high = tonumber(low), tonumber(high)
   if low > 65535 or high > 65535 then self:fail(token, "a port number must be at most 65535") end
   return math.min(low, high), math.max(low, high)
end

local function dotted (parser, token)
   local value, count = 0, 0
   for part in (tostring(token.value)..""):gmatch("%d+") do
      local byte = tonumber(part)
      if byte > 255 then parser:fail(token, "%s cannot be part of an IPv4 address", part) end
      value, count = value * 256 + byte, count + 1
   end
   if count > 4 then parser:fail(token, "'%s' is not an IPv4 address", token.word) end
   return value * 256 ^ (4 - count), 8 * count
end

local function mask_of (length) return length == 0 and 0 or (2 ^ 32 - 2 ^ (32 - length)) end

-- Address and mask: 10.0.0.1, 10.1 (first bytes), 10.0.0.0/8, 10.0.0.0 mask 255.0.0.0, or a number.
function Parser:ip4 (is_net)
   local token = self:next()
   local value, length
   if token.kind == "number" and not is_net then
      value, length = number_of(self, token, 0xffffffff, "an address"), 32
   elseif token.kind == "number" and token.value > 255 then
      value, length = token.value, 32
      while value < 2 ^ 24 do value, length = value * 256, length - 8 end
   else
      value, length = dotted(self, token)
   end
   local mask = mask_of(length)
   local explicit = is_net and self:accept("/", "mask")
   if explicit and explicit.kind == "/" then
      mask = mask_of(number_of(self, self:next(), 32, "a prefix length"))
   elseif explicit then
      local bits = self:next()
      if bits.kind ~= "ip4" then self:fail(bits, "expected a mask such as 255.0.0.0, not '%s'", bits.word) end
      mask = dotted(self, bits)
   end
   if explicit and bit.band(value, bit.bnot(mask)) ~= 0 then
      self:fail(token, "'%s' has host bits set", token.word)
   end
   return value, mask
end

function Parser:ip6 (is_net)
   local token = self:next()
   local bytes = ffi.new("uint8_t[16]")
   if ffi.C.bm_inet_pton(10, token.value, bytes) ~= 1 then self:fail(token, "'%s' is not an IPv6 address", token.word) end
   local length = 128
   if self:accept("/") then length = number_of(self, self:next(), 128, "a prefix length") end
   if length < 128 and not is_net then self:fail(token, "put 'net' before a prefix") end
   local words, masks = {}, {}
   for i = 1, 4 do
      local at = 4 * (i - 1)
      words[i] = bytes[at] * 2 ^ 24 + bytes[at + 1] * 2 ^ 16 + bytes[at + 2] * 256 + bytes[at + 3]
      masks[i] = mask_of(math.max(0, math.min(32, length - 32 * (i - 1))))
      if bit.band(words[i], bit.bnot(masks[i])) ~= 0 then
         self:fail(token, "'%s' has host bits set", token.word)
      end
   end
   return words, masks
end

-- Primitives with a value

local function host (parser, q, token)
   local is_net = q.type == "net"
   if token.kind == "mac" then
      if q.protocol ~= "ether" and q.protocol ~= "link" then
         parser:fail(token, "put 'ether' before a MAC address, as in 'ether host %s'", token.word)
      end
      local mac = {}
      for part in parser:next().value:gmatch("%x%x?") do mac[#mac + 1] = tonumber(part, 16) end
      return tests.ether_host(q.direction, mac)
   elseif token.kind == "ip6" then
      if q.protocol and q.protocol ~= "ip6" then parser:fail(token, "'%s' has no IPv6 addresses", q.protocol) end
      return tests.host6(parser.at, q.direction, parser:ip6(is_net))
   elseif token.kind == "ip4" or token.kind == "number" then
      if q.protocol and q.protocol ~= "ip" and q.protocol ~= "arp" and q.protocol ~= "rarp" then
         parser:fail(token, "'%s' has no IPv4 addresses", q.protocol)
      end
      return tests.host4(parser.at, q.protocol, q.direction, parser:ip4(is_net))
   elseif token.kind == "name" and not protocols[token.value] then
      parser:fail(token, "host names are not resolved: give the address of '%s'", token.word)
   end
   parser:fail(token, "expected an address, not '%s'", token.word)
end

local function port (parser, q, token)
   if q.protocol and q.protocol ~= "tcp" and q.protocol ~= "udp" and q.protocol ~= "sctp" then
      parser:fail(token, "'%s' has no ports", q.protocol)
   end
   if q.type == "portrange" then return tests.ports(parser.at, q.protocol, q.direction, parser:ports(q.protocol)) end
   local number, protocol = parser:port(q.protocol)
   return tests.ports(parser.at, q.protocol or protocol, q.direction, number, number)
end

local function proto (parser, q, token)
   local is_ether = q.protocol == "ether" or q.protocol == "link"
   local names = is_ether and tests.ethertypes or tests.protocols
   parser:next()
   local number = names[token.value]
   if not number then number = number_of(parser, token, is_ether and 65535 or 255, "a protocol") end
   if is_ether then return tests.ether_proto(parser.at, number) end
   if q.protocol == "ip" or q.protocol == "ip6" then return tests.ip_proto(parser.at, q.protocol, number) end
   if q.protocol then parser:fail(token, "'%s proto' is not supported: use ether, ip or ip6", q.protocol) end
   return tests.either(tests.ip_proto(parser.at, "ip6", number), tests.ip_proto(parser.at, "ip", number))
end

local by_type = { host = host, net = host, port = port, portrange = port, proto = proto }

-- The values after qualifiers: one, or several in parentheses.
function Parser:values (q)
   if not self:accept("(") then return by_type[q.type](self, q, self:peek()) end
   local node = self:values(q)
   while not self:accept(")") do
      local joint = self:accept("or", "and", "||", "&&")
         or self:fail(self:peek(), "expected 'or', 'and' or ')', not '%s'", self:peek().word)
      local is_or = joint.value == "or" or joint.value == "||"
      node = { op = is_or and "or" or "and", node, self:values(q) }
   end
   return node
end

-- Primitives without qualifiers

local alone = {}

function alone.vlan (parser)
   local id
   if parser:peek().kind == "number" then id = number_of(parser, parser:next(), 4095, "a VLAN id") end
   local node = tests.vlan(parser.at, id)
   -- The rest of the filter is about the frame inside the tag.
   parser.at = { type = parser.at.type + 4, payload = parser.at.payload + 4 }
   return node
end

local function length_test (op)
   return function (parser)
      local number = number_of(parser, parser:next(), 0xffffffff, "a length")
      return { op = "relation", relation = op, { op = "length" }, { op = "number", value = number } }
   end
end
alone.less, alone.greater = length_test("<="), length_test(">=")

function alone.broadcast () return tests.ether_host("dst", { 255, 255, 255, 255, 255, 255 }) end
function alone.multicast (parser) return tests.multicast(parser.at) end

local function cast (parser, protocol)
   local token = parser:accept("broadcast", "multicast")
   if not token then return nil end
   local is_ether = protocol == "ether" or protocol == "link"
   if token.value == "multicast" and (is_ether or protocol == "ip" or protocol == "ip6") then
      return tests.multicast(parser.at, protocol)
   elseif token.value == "broadcast" and is_ether then
      return alone.broadcast()
   elseif token.value == "broadcast" and protocol == "ip" then
      parser:fail(token, "'ip broadcast' needs the netmask of the link, which a filter does not know")
   end
   parser:fail(token, "'%s %s' is not a valid combination", protocol, token.value)
end

-- [protocol] [direction] [type] value, or a protocol alone.
function Parser:qualified ()
   local start = self:peek()
   local protocol
   if protocols[start.value] and start.kind == "name" then
      protocol = self:next().value
      local node = cast(self, protocol)
      if node then return node end
   end
   local direction = self:direction()
   local token = self:peek()
   local type = token.kind == "name" and types[token.value] and self:next().value
   if not direction and not type then
      local node = protocol and tests.protocol(self.at, protocol)
      if node then return node end
      self:fail(self:peek(), "'%s' is incomplete: 'host', 'proto' or an address must follow", start.word)
   end
   if type == "proto" and direction then self:fail(token, "'proto' cannot have 'src' or 'dst'") end
   self.last = { protocol = protocol, direction = direction or "src or dst", type = type or "host" }
   return self:values(self.last)
end

-- A bare value takes the qualifiers used last.
function Parser:bare (token)
   if token.kind == "name" and unsupported[token.value] then
      self:fail(token, "'%s' is not supported", token.value)
   end
   local kinds = { ip4 = true, ip6 = true, mac = true, number = true, range = true, name = true, escaped = true }
   if not kinds[token.kind] then
      self:fail(token, "expected a primitive such as 'tcp' or 'host', not '%s'", token.word)
   end
   if token.kind == "name" and not self.last then
      self:fail(token, "'%s' is not a word of the filter language", token.word)
   end
   local q = self.last
      or self:fail(token, "put a word such as 'host' before '%s'", token.word)
   return by_type[q.type](self, q, token)
end

function Parser:primitive ()
   local token = self:peek()
   if self:accept("not", "!") then return tests.invert(self:primitive()) end
   local relation = arithmetic.try_relation(self)
   if relation then return relation end
   if self:accept("(") then
      local node = self:expression()
      self:expect(")")
      return node
   end
   if token.kind == "name" and alone[token.value] then
      self:next()
      return alone[token.value](self)
   end
   local is_head = token.kind == "name"
      and (protocols[token.value] or types[token.value] or token.value == "src" or token.value == "dst")
   if is_head then return self:qualified() end
   return self:bare(token)
end

function Parser:expression ()
   local node = self:primitive()
   while true do
      local joint = self:accept("and", "or", "&&", "||")
      if not joint then return node end
      local op = (joint.value == "and" or joint.value == "&&") and "and" or "or"
      local right = self:primitive()
      -- A long chain of the same operator is one node, so that a list of a thousand hosts does not nest.
      if node.op == op and node.row then
         node[#node + 1] = right
      else
         node = { op = op, row = true, node, right }
      end
   end
end

local M = {}

-- The syntax tree of a filter; nil for an empty filter, which matches every frame. An error names the column.
function M.parse (text)
   local tokens = lexer.split(text)
   if #tokens == 1 then return nil end
   local parser = setmetatable({ text = text, tokens = tokens, place = 1, at = { type = 12, payload = 14 } }, Parser)
   local node = parser:expression()
   local rest = parser:peek()
   if rest.kind ~= "end" then parser:fail(rest, "expected 'and', 'or' or the end of the filter, not '%s'", rest.word) end
   return node
end

return M

-- A packet as a stack of headers: parse headers one after another, remove them, put others in front.
--
-- Parsing changes no bytes: headers are pointers into the packet. push and pop change the packet immediately. Then no
-- header may be parsed, since the bytes would move away from under it. With { delayed_commit = true } they are only
-- recorded, and commit() does all of them in one move. Up to 512 bytes can be pushed between two commits.

local ffi = require("ffi")
local packet = require("core.packet")
require("lib.lua.class")
require("core.clib_h")
local C = ffi.C

local datagram = subClass(nil)
datagram._name = "datagram"
datagram.push_buffer_size = 512

local box_t, buffer_t = ffi.typeof("struct packet *[1]"), ffi.typeof("uint8_t[?]")

local function forget_headers (parse)
   for i = 1, parse.index do
      parse.stack[i]:free()
      parse.stack[i] = nil
   end
   parse.index = 0
end

-- A datagram for packet p, or for a new packet. `class` is that of the first header. When new() is called on an
-- instance again, it frees that instance's headers.
function datagram:new (p, class, options)
   local o = datagram:superClass().new(self)
   if not o._recycled then
      o._parse = { stack = {}, index = 0 }
      o._push = { buffer = buffer_t(self.push_buffer_size) }
      o._packet = box_t()
   end
   forget_headers(o._parse)
   o._parse.offset, o._parse.ulp = 0, class
   o._push.offset, o._push.size = self.push_buffer_size, 0
   o._offset = 0
   o._delayed_commit = options and options.delayed_commit or false
   o._packet[0] = p or packet.allocate()
   return o
end

local function nothing_parsed (self)
   if self._parse.index > 0 then
      error("parse stack not empty: the packet would move away from under its parsed headers", 3)
   end
end

-- Pushes a header in front.
function datagram:push (header) self:push_raw(header:header_ptr(), header:sizeof()) end

-- Pushes `length` bytes in front.
function datagram:push_raw (data, length)
   if self._delayed_commit then
      local push = self._push
      if length > push.offset then error("datagram: more than 512 bytes pushed without a commit", 2) end
      push.offset, push.size = push.offset - length, push.size + length
      ffi.copy(push.buffer + push.offset, data, length)
      return
   end
   nothing_parsed(self)
   self._packet[0] = packet.prepend(self._packet[0], ffi.cast("uint8_t *", data), length)
   self._parse.offset = self._parse.offset + length
end

-- Parses the next header as `class`, or as the header before it says. check(header) may refuse it. Returns the header,
-- or nil (with nothing changed) if there is no class for it, if there are too few bytes, or if it was refused.
function datagram:parse_match (class, check)
   local parse = self._parse
   class = class or parse.ulp
   if not class then return nil end
   local p = self._packet[0]
   local header = class:new_from_mem(p.data + parse.offset, p.length - parse.offset)
   if header == nil then return nil end
   if check and not check(header) then
      header:free()
      return nil
   end
   parse.index = parse.index + 1
   parse.stack[parse.index] = header
   parse.ulp = header:upper_layer()
   parse.offset = parse.offset + header:sizeof()
   return header
end

-- Calls parse_match for each { class, check } of a sequence, as long as they match. Returns the last header, or nil if
-- one did not match.
function datagram:parse (sequence)
   if not sequence then return self:parse_match() end
   local header
   for _, step in ipairs(sequence) do
      header = self:parse_match(step[1], step[2])
      if not header then return nil end
   end
   return header
end

-- Parses n headers (default 1). Returns the last, or nil if there are fewer.
function datagram:parse_n (n)
   local header
   for _ = 1, n or 1 do
      header = self:parse_match()
      if not header then return nil end
   end
   return header
end

-- Returns the last n parsed headers to the payload.
function datagram:unparse (n)
   local parse = self._parse
   while n > 0 and parse.index > 0 do
      local header = parse.stack[parse.index]
      parse.stack[parse.index] = nil
      parse.index = parse.index - 1
      parse.offset = parse.offset - header:sizeof()
      parse.ulp = header:class()
      header:free()
      n = n - 1
   end
end

-- Removes the first n parsed headers from the packet.
function datagram:pop (n)
   local parse, bytes = self._parse, 0
   if n > parse.index then error(("datagram: cannot pop %d headers, only %d are parsed"):format(n, parse.index), 2) end
   for i = 1, parse.index do
      if i <= n then
         bytes = bytes + parse.stack[i]:sizeof()
         parse.stack[i]:free()
      end
      parse.stack[i] = parse.stack[i + n]
   end
   parse.index = parse.index - n
   self:pop_raw(bytes)
   parse.offset = parse.offset - bytes
end

-- Removes `length` bytes from the front; `ulp` is the class of the header that is first then.
function datagram:pop_raw (length, ulp)
   if self._delayed_commit then
      self._offset = self._offset + length
      self._parse.offset = self._parse.offset + length
   else
      nothing_parsed(self)
      self._packet[0] = packet.shiftleft(self._packet[0], length)
   end
   if ulp then self._parse.ulp = ulp end
end

-- The parsed headers, in an array; the packet.
function datagram:stack () return self._parse.stack end
function datagram:packet () return self._packet[0] end

-- The payload's address and length. With arguments, `size` bytes at `mem` are appended to it first.
function datagram:payload (mem, size)
   if mem then self._packet[0] = packet.append(self._packet[0], ffi.cast("uint8_t *", mem), size) or self._packet[0] end
   local p = self._packet[0]
   return p.data + self._parse.offset, p.length - self._parse.offset
end

-- The address and length of the whole packet.
function datagram:data ()
   local p = self._packet[0]
   return p.data, p.length
end

-- Applies all pushes and pops since the last commit.
function datagram:commit ()
   if not self._delayed_commit then return end
   nothing_parsed(self)
   local push, parse, offset = self._push, self._parse, self._offset
   local grows = push.size - offset
   local p = self._packet[0]
   if grows > 0 then
      p = packet.shiftright(p, grows)
   elseif grows < 0 then
      p = packet.shiftleft(p, -grows)
   end
   ffi.copy(p.data, push.buffer + push.offset, push.size)
   self._packet[0] = p
   parse.offset = parse.offset + grows
   push.offset, push.size = self.push_buffer_size, 0
   self._offset = 0
end

local function test_headers ()
   local ethernet, ipv6 = require("lib.protocol.ethernet"), require("lib.protocol.ipv6")
   local tunnel = require("lib.protocol.keyed_ipv6_tunnel")
   local function pair (mac, address)
      return ethernet:new({ src = ethernet:pton(mac), dst = ethernet:pton(mac), type = 0x86dd }),
             ipv6:new({ src = ipv6:pton(address), dst = ipv6:pton(address), next_header = 115 })
   end
   return pair, tunnel:new(), ethernet
end

function datagram.selftest ()
   local pair, l2tp, ethernet = test_headers()
   local ether, ip = pair("02:00:00:00:00:00", "::1")
   local data = ffi.new("uint8_t[512]", 7)
   local dgram = datagram:new(packet.allocate())
   dgram:push(l2tp)
   dgram:push(ip)
   dgram:push(ether)
   local _, size = dgram:payload(data, 512)
   assert(size == 512 and select(2, dgram:data()) == 14 + 40 + 12 + 512)
   dgram:new(dgram:packet(), ethernet)
   assert(ether:eq(dgram:parse()) and ip:eq(dgram:parse()) and l2tp:eq(dgram:parse()) and dgram:parse() == nil)
   assert(select(2, dgram:payload()) == 512 and #dgram:stack() == 3)
   assert(not pcall(dgram.push, dgram, ether) and not pcall(dgram.pop, dgram, 4))
   dgram:unparse(2)
   assert(ip:eq(dgram:parse()) and dgram:parse_match(nil, function () return false end) == nil)
   -- Two headers removed and two others pushed in one move.
   dgram:new(dgram:packet(), ethernet, { delayed_commit = true })
   local ether2, ip2 = pair("02:00:00:00:00:01", "::2")
   dgram:push(ip2)
   dgram:push(ether2)
   assert(dgram:parse({ { ethernet, function (e) return e:type() == 0x86dd end }, { nil, nil } }))
   dgram:pop(2)
   dgram:commit()
   assert(select(2, dgram:data()) == 14 + 40 + 12 + 512)
   dgram:new(dgram:packet(), ethernet, { delayed_commit = true })
   assert(dgram:parse_n(3) and ether2:eq(dgram:stack()[1]) and ip2:eq(dgram:stack()[2]) and dgram:parse_n(1) == nil)
   dgram:pop(3)
   dgram:pop_raw(511)
   dgram:commit()
   assert(select(2, dgram:data()) == 1)
   packet.free(dgram:packet())
   dgram:free()
end

return datagram

-- TCP headers without options (RFC 9293).

local ffi = require("ffi")
local lib = require("core.lib")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")
local l4_checksum = require("lib.protocol.l4_checksum")

local tcp = subClass(header)
tcp._name = "tcp"
tcp:init { ffi.typeof [[
   struct {
      uint16_t src_port, dst_port;
      uint32_t seq, ack;
      uint16_t off_flags, window_size, checksum, pad;
   } __attribute__((packed))
]] }

local flags = { "ns", "cwr", "ece", "urg", "ack", "psh", "rst", "syn", "fin" }

-- config: src_port, dst_port, seq, ack_num, window_size, offset (in 32-bit words), and 0 or 1 for each of ns, cwr, ece,
-- urg, ack, psh, rst, syn, fin.
function tcp:new (config)
   local o = tcp:superClass().new(self)
   o:src_port(config.src_port)
   o:dst_port(config.dst_port)
   o:seq_num(config.seq or config.seq_num)
   o:ack_num(config.ack_num)
   o:window_size(config.window_size)
   o:offset(config.offset or 0)
   for _, flag in ipairs(flags) do o[flag](o, config[flag] or 0) end
   return o
end

fields.u16(tcp, "src_port", "src_port")
fields.u16(tcp, "dst_port", "dst_port")
fields.u32(tcp, "seq_num", "seq")
fields.u32(tcp, "ack_num", "ack")
fields.u16(tcp, "window_size", "window_size")
fields.u16(tcp, "urgent", "pad")
fields.bits(tcp, "flags", "off_flags", 16, 7, 9)
for i, flag in ipairs(flags) do fields.bits(tcp, flag, "off_flags", 16, 6 + i, 1) end

-- The header's length in 32-bit words. Setting it clears the reserved bits.
function tcp:offset (words)
   local h = self:header()
   if words ~= nil then lib.bitfield(16, h, "off_flags", 0, 7, words * 8) end
   return lib.bitfield(16, h, "off_flags", 0, 4)
end

-- With a payload, computes the checksum over the pseudo-header of `ip` (if given), the header and the payload, and
-- writes it. Returns the checksum that is in the header.
function tcp:checksum (payload, length, ip)
   local h = self:header()
   if payload then
      h.checksum = 0
      h.checksum = lib.htons(l4_checksum(h, self:sizeof(), payload, length, ip, 6))
   end
   return lib.ntohs(h.checksum)
end

function tcp:eq (other)
   return self:src_port() == other:src_port() and self:dst_port() == other:dst_port()
      and self:seq_num() == other:seq_num() and self:ack_num() == other:ack_num()
end

function tcp.selftest ()
   local t = tcp:new({ src_port = 80, dst_port = 1025, seq = 0x01020304, ack_num = 0xfffefdfc, window_size = 512,
                       offset = 5, syn = 1, ack = 1 })
   local wire = "\0\x50\x04\x01\x01\x02\x03\x04\xff\xfe\xfd\xfc\x50\x12\x02\0\0\0\0\0"
   assert(ffi.string(t:header_ptr(), 20) == wire)
   assert(t:syn() == 1 and t:ack() == 1 and t:fin() == 0 and t:flags() == 0x12 and t:offset() == 5)
   t:flags(0x100)
   assert(t:ns() == 1 and t:syn() == 0 and t:offset() == 5)
   t:flags(0x12)
   local ipv4 = require("lib.protocol.ipv4")
   local ip = ipv4:new({ src = ipv4:pton("10.0.0.1"), dst = ipv4:pton("10.0.0.2"), protocol = 6 })
   local all = "\x0a\0\0\x01\x0a\0\0\x02\0\x06\0\x17"..wire.."odd"
   assert(t:checksum("odd", 3, ip) == lib.csum(all, #all) and t:checksum() == lib.csum(all, #all))
   assert(t:eq(t:clone()) and t:upper_layer() == nil)
end

return tcp

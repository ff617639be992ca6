-- GRE headers (RFC 2784) with optional checksum and key (RFC 2890). Sequence numbers are not supported.

local ffi = require("ffi")
local lib = require("core.lib")
local header = require("lib.protocol.header")
local ipsum = require("lib.checksum").ipsum
local htons, ntohs, htonl, ntohl, bitfield = lib.htons, lib.ntohs, lib.htonl, lib.ntohl, lib.bitfield

local gre = subClass(header)
gre._name = "gre"
gre._ulp = { method = "protocol", class_map = { [0x6558] = "lib.protocol.ethernet" } }

local base_t = ffi.typeof [[ struct { uint16_t bits, protocol; } ]]
gre:init {
   ffi.typeof("struct { $ h; }", base_t),
   ffi.typeof("struct { $ h; uint32_t key; }", base_t),
   ffi.typeof("struct { $ h; uint16_t csum, reserved1; }", base_t),
   ffi.typeof("struct { $ h; uint16_t csum, reserved1; uint32_t key; }", base_t),
}

local function variant (has_checksum, has_key) return 1 + (has_key and 1 or 0) + (has_checksum and 2 or 0) end

-- config: protocol, checksum (true to have one), key.
function gre:new (config)
   local o = gre:superClass().new(self)
   config = config or {}
   o._checksum, o._key = config.checksum and true or false, config.key ~= nil
   local chosen = o._headers[variant(o._checksum, o._key)]
   ffi.fill(chosen.data, ffi.sizeof(chosen.t))
   chosen.box[0] = ffi.cast(chosen.ptr_t, chosen.data)
   o._header = chosen
   bitfield(16, o:header().h, "bits", 0, 1, o._checksum and 1 or 0)
   bitfield(16, o:header().h, "bits", 2, 1, o._key and 1 or 0)
   if o._key then o:key(config.key) end
   o:protocol(config.protocol or 0)
   return o
end

-- Returns nil if there are too few bytes, or an unsupported feature (RFC 2784: such packets are dropped).
function gre:new_from_mem (mem, size)
   local o = gre:superClass().new_from_mem(self, mem, size)
   if not o then return nil end
   local base = o:header().h
   o._checksum = bitfield(16, base, "bits", 0, 1) == 1
   o._key = bitfield(16, base, "bits", 2, 1) == 1
   local chosen = o._headers[variant(o._checksum, o._key)]
   local other = bitfield(16, base, "bits", 1, 1) + bitfield(16, base, "bits", 3, 13)
   if other ~= 0 or ffi.sizeof(chosen.t) > size then
      o:free()
      return nil
   end
   chosen.box[0] = ffi.cast(chosen.ptr_t, mem)
   o._header = chosen
   return o
end

local function compute (o, payload, length)
   local h = o:header()
   local before = h.csum
   h.csum, h.reserved1 = 0, 0
   local sum = ipsum(h, o:sizeof(), 0)
   h.csum = before
   return ipsum(payload, length, bit.band(bit.bnot(sum), 0xffff))
end

-- With a payload, writes the checksum. Returns it, or nil if this header has none.
function gre:checksum (payload, length)
   if not self._checksum then return nil end
   if payload ~= nil then self:header().csum = htons(compute(self, payload, length)) end
   return ntohs(self:header().csum)
end

-- Whether the checksum is correct. True if there is none.
function gre:checksum_check (payload, length)
   return not self._checksum or compute(self, payload, length) == ntohs(self:header().csum)
end

-- The key, or nil if this header has none.
function gre:key (key)
   if not self._key then return nil end
   if key ~= nil then self:header().key = htonl(key) end
   return ntohl(self:header().key)
end

function gre:protocol (protocol)
   local base = self:header().h
   if protocol ~= nil then base.protocol = htons(protocol) end
   return ntohs(base.protocol)
end

function gre.selftest ()
   local plain = gre:new({ protocol = 0x6558 })
   assert(plain:sizeof() == 4 and ffi.string(plain:header_ptr(), 4) == "\0\0\x65\x58")
   assert(plain:key() == nil and plain:checksum("x", 1) == nil and plain:checksum_check("x", 1))
   assert(plain:upper_layer() == require("lib.protocol.ethernet"))
   local both = gre:new({ protocol = 0x0800, checksum = true, key = 0xdeadbeef })
   assert(ffi.string(both:header_ptr(), 12) == "\xa0\0\x08\0\0\0\0\0\xde\xad\xbe\xef")
   local sum = both:checksum("payload", 7)
   local all = "\xa0\0\x08\0\0\0\0\0\xde\xad\xbe\xefpayload"
   assert(sum == lib.csum(all, #all) and both:checksum_check("payload", 7) and not both:checksum_check("pAyload", 7))
   local parsed = gre:new_from_mem(both:header_ptr(), 12)
   assert(parsed:key() == 0xdeadbeef and parsed:checksum() == sum and parsed:protocol() == 0x0800)
   assert(gre:new_from_mem(both:header_ptr(), 11) == nil, "cut short")
   local sequence = ffi.new("uint8_t[8]", 0x10)
   assert(gre:new_from_mem(sequence, 8) == nil, "sequence numbers are not supported")
   local keyed = gre:new({ protocol = 1, key = 0 })
   assert(keyed:key() == 0 and keyed:sizeof() == 8)
end

return gre

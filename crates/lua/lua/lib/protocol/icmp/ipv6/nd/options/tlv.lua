-- Options of neighbor discovery: type, length in units of 8 bytes, content. The two options with a link-layer address
-- are supported.

local ffi = require("ffi")
local tlv = subClass(nil)
local head_t = ffi.typeof("struct { uint8_t type, length; } __attribute__((packed))")
local head_ptr_t = ffi.typeof("$ *", head_t)

local lladdr = "lib.protocol.icmp.ipv6.nd.options.lladdr"
tlv._types = { [1] = { name = "src_ll_addr", class = lladdr }, [2] = { name = "tgt_ll_addr", class = lladdr } }
tlv._name = "unknown"

local function attach (o, mem, size)
   local known = o._types[ffi.cast(head_ptr_t, mem).type]
   local t = ffi.typeof("struct { $ tlv; uint8_t data[$]; } *", head_t, size - 2)
   -- A reference, so that its size is that of the option.
   o._name, o._tlv = known.name, ffi.cast(t, mem)[0]
   o._option = require(known.class):new_from_mem(ffi.cast("uint8_t *", mem) + 2, size - 2)
   return o
end

-- `data` is C data. Together with the two bytes before it, its size must be a multiple of 8 bytes.
function tlv:new (type, data)
   local size = 2 + ffi.sizeof(data)
   assert(self._types[type], "tlv: unsupported type")
   assert(size % 8 == 0, "tlv: an option fills units of 8 bytes")
   local o = tlv:superClass().new(self)
   o._bytes = ffi.new("uint8_t[?]", size, type, size / 8)
   ffi.copy(o._bytes + 2, data, size - 2)
   return attach(o, o._bytes, size)
end

-- Returns nil if there are too few bytes, or the type is unknown.
function tlv:new_from_mem (mem, size)
   local head = ffi.cast(head_ptr_t, mem)
   if size < 8 or not self._types[head.type] then return nil end
   return attach(tlv:superClass().new(self), mem, size)
end

function tlv:name () return self._name end
function tlv:type (type)
   if type ~= nil then
      assert(self._types[type], "tlv: unsupported type")
      self._tlv.tlv.type = type
   end
   return self._tlv.tlv.type
end
function tlv:length () return self._tlv.tlv.length end
function tlv:data () return self._tlv.data end
function tlv:tlv () return self._tlv end
function tlv:option () return self._option end

return tlv

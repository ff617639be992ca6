-- The base class of protocol headers: a C structure over memory of its own, or over bytes of a packet.
--
-- A class names its structures once, `class:init({ t1, t2, ... })`; the first is the base header, others are
-- variants that a constructor may pick (lib.protocol.gre does). An instance holds for each variant a structure
-- (`data`) and a box with a pointer to where the header really is; `_header` is the variant in force. Instances are
-- recycled by free(), so that parsing packets allocates nothing. `_ulp` says how the next header is told: `method`
-- gives the number, `class_map` the module for it.

local ffi = require("ffi")
require("lib.lua.class")

local header = subClass(nil)
header._ulp = {}

-- Gives a class its structures.
function header:init (ctypes)
   assert(#ctypes > 0, "a protocol needs at least a structure")
   self._headers = {}
   for i, ctype in ipairs(ctypes) do
      local variant = { t = ctype, ptr_t = ffi.typeof("$ *", ctype), box_t = ffi.typeof("$ *[1]", ctype) }
      variant.meta = { __index = variant }
      self._headers[i] = variant
   end
   self._header = self._headers[1]
end

local function instance (class)
   local o = header:superClass().new(class)
   if not o._recycled then
      local variants = {}
      for i, variant in ipairs(class._headers) do
         variants[i] = setmetatable({ data = variant.t(), box = variant.box_t() }, variant.meta)
      end
      o._headers = variants
   end
   o._header = o._headers[1]
   return o
end

-- A header of zeros in memory of its own.
function header:new ()
   local o = instance(self)
   local base = o._header
   ffi.fill(base.data, ffi.sizeof(base.t))
   base.box[0] = ffi.cast(base.ptr_t, base.data)
   return o
end

-- A header over `size` bytes at `mem`; nil if they are too few.
function header:new_from_mem (mem, size)
   if ffi.sizeof(self._headers[1].t) > size then return nil end
   local o = instance(self)
   o._header.box[0] = ffi.cast(o._header.ptr_t, mem)
   return o
end

-- The structure itself, a pointer to it, its C type, its size in bytes.
function header:header () return self._header.box[0][0] end
function header:header_ptr () return self._header.box[0] end
function header:ctype () return self._header.t end
function header:sizeof () return ffi.sizeof(self._header.t) end

-- Same type and same bytes?
function header:eq (other)
   local size = self:sizeof()
   return self:ctype() == other:ctype()
      and ffi.string(self:header_ptr(), size) == ffi.string(other:header_ptr(), size)
end

-- Copies the bytes to `destination`; with `relocate` the header is there from now on.
function header:copy (destination, relocate)
   ffi.copy(destination, self:header_ptr(), self:sizeof())
   if relocate then self._header.box[0] = ffi.cast(self._header.ptr_t, destination) end
end

-- A header of the same content in memory of its own. It allocates: not for the packet path.
function header:clone ()
   local class, size = self:class(), self:sizeof()
   local bytes = ffi.new("uint8_t[?]", size)
   ffi.copy(bytes, self:header_ptr(), size)
   local copy = class:new_from_mem(bytes, size)
   copy._cloned = bytes
   return copy
end

-- The class of the header that follows, or nil if there is none or we have none for it.
function header:upper_layer ()
   local method = self._ulp.method
   local name = method and self._ulp.class_map[self[method](self)]
   if not name then return nil end
   return package.loaded[name] or require(name)
end

return header

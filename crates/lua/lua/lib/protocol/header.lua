-- The base class of protocol headers: a C structure in its own memory, or over bytes of a packet.
--
-- A class declares its structures once, `class:init({ t1, t2, ... })`. The first is the base header, others are
-- variants that a constructor may choose (as lib.protocol.gre does). For each variant an instance holds a structure
-- (`data`) and a box with a pointer to the actual header; `_header` is the current variant. free() recycles instances,
-- so that parsing packets allocates nothing. `_ulp` describes how to find the next header: `method` returns its number,
-- `class_map` maps the number to a module.

local ffi = require("ffi")
require("lib.lua.class")

local header = subClass(nil)
header._ulp = {}

-- Sets the structures of a class.
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

-- A zeroed header in its own memory.
function header:new ()
   local o = instance(self)
   local base = o._header
   ffi.fill(base.data, ffi.sizeof(base.t))
   base.box[0] = ffi.cast(base.ptr_t, base.data)
   return o
end

-- A header over `size` bytes at `mem`; nil if there are too few.
function header:new_from_mem (mem, size)
   if ffi.sizeof(self._headers[1].t) > size then return nil end
   local o = instance(self)
   o._header.box[0] = ffi.cast(o._header.ptr_t, mem)
   return o
end

-- The structure itself, a pointer to it, its C type, and its size in bytes.
function header:header () return self._header.box[0][0] end
function header:header_ptr () return self._header.box[0] end
function header:ctype () return self._header.t end
function header:sizeof () return ffi.sizeof(self._header.t) end

-- Whether both have the same type and the same bytes.
function header:eq (other)
   local size = self:sizeof()
   return self:ctype() == other:ctype()
      and ffi.string(self:header_ptr(), size) == ffi.string(other:header_ptr(), size)
end

-- Copies the bytes to `destination`. With `relocate`, the instance refers to the copy from then on.
function header:copy (destination, relocate)
   ffi.copy(destination, self:header_ptr(), self:sizeof())
   if relocate then self._header.box[0] = ffi.cast(self._header.ptr_t, destination) end
end

-- A copy in its own memory. It allocates, so it is not for the packet path.
function header:clone ()
   local class, size = self:class(), self:sizeof()
   local bytes = ffi.new("uint8_t[?]", size)
   ffi.copy(bytes, self:header_ptr(), size)
   local copy = class:new_from_mem(bytes, size)
   copy._cloned = bytes
   return copy
end

-- The class of the next header, or nil if there is none or it is unknown.
function header:upper_layer ()
   local method = self._ulp.method
   local name = method and self._ulp.class_map[self[method](self)]
   if not name then return nil end
   return package.loaded[name] or require(name)
end

return header

-- Creates accessors for header fields, once per class. A method with an argument sets the field; it always returns it.
--
-- Values are in host byte order, structures in network byte order.

local ffi = require("ffi")
local lib = require("core.lib")
require("core.clib_h")
local C = ffi.C
local htons, ntohs, htonl, ntohl = lib.htons, lib.ntohs, lib.htonl, lib.ntohl

local M = {}

function M.u8 (class, name, member)
   class[name] = function (self, value)
      local h = self:header()
      if value ~= nil then h[member] = value end
      return h[member]
   end
end

function M.u16 (class, name, member)
   class[name] = function (self, value)
      local h = self:header()
      if value ~= nil then h[member] = htons(value) end
      return ntohs(h[member])
   end
end

function M.u32 (class, name, member)
   class[name] = function (self, value)
      local h = self:header()
      if value ~= nil then h[member] = htonl(value) end
      return ntohl(h[member])
   end
end

-- `bits` bits at `offset`, counted from the most significant, of a member of `size` bits.
function M.bits (class, name, member, size, offset, bits)
   class[name] = function (self, value)
      local h = self:header()
      if value ~= nil then lib.bitfield(size, h, member, offset, bits, value) end
      return lib.bitfield(size, h, member, offset, bits)
   end
end

-- An address of `bytes` bytes: name(pointer) copies it in, name() returns the array, name_eq(pointer) compares.
function M.address (class, name, member, bytes)
   class[name] = function (self, value)
      local h = self:header()
      if value ~= nil then ffi.copy(h[member], value, bytes) end
      return h[member]
   end
   class[name.."_eq"] = function (self, value)
      return C.memcmp(value, self:header()[member], bytes) == 0
   end
end

return M

-- Keyed IPv6 tunnels (RFC 8159): L2TPv3 over IPv6 with only a session id and a 64-bit cookie.

local ffi = require("ffi")
local header = require("lib.protocol.header")
local fields = require("lib.protocol.fields")

local tunnel = subClass(header)
tunnel._name = "keyed ipv6 tunnel"

local cookie_t = ffi.metatype(ffi.typeof("union { uint8_t cookie[8]; uint64_t cookie_64bit; }"), {
   __tostring = function (c)
      local text = "0x"
      for i = 0, 7 do text = text..("%02x"):format(c.cookie[i]) end
      return text
   end,
   __eq = function (a, b) return b ~= nil and a.cookie_64bit == b.cookie_64bit end,
})
tunnel:init { ffi.typeof("struct { uint32_t session_id; $ cookie; } __attribute__((packed))", cookie_t) }

-- A cookie from a string of 8 bytes.
function tunnel:new_cookie (bytes)
   if type(bytes) ~= "string" or #bytes ~= 8 then error("invalid cookie: expected a string of 8 bytes", 2) end
   local cookie = cookie_t()
   ffi.copy(cookie.cookie, bytes, 8)
   return cookie
end

local zero = tunnel:new_cookie(("\0"):rep(8))

-- config: session_id (default: all ones), cookie (default: zero).
function tunnel:new (config)
   local o = tunnel:superClass().new(self)
   o:session_id(config and config.session_id or 0xffffffff)
   o:cookie(config and config.cookie or zero)
   return o
end

-- Also returns nil for session 0, which marks control messages.
function tunnel:new_from_mem (mem, size)
   local o = tunnel:superClass().new_from_mem(self, mem, size)
   if o and o:session_id() == 0 then
      o:free()
      return nil
   end
   return o
end

fields.u32(tunnel, "id", "session_id")

function tunnel:session_id (id)
   if id == 0 then error("invalid session id 0", 2) end
   return self:id(id)
end

function tunnel:cookie (cookie)
   local h = self:header()
   if cookie ~= nil then h.cookie.cookie_64bit = cookie.cookie_64bit end
   return h.cookie
end

function tunnel.selftest ()
   local t = tunnel:new({ session_id = 7, cookie = tunnel:new_cookie("abcdefgh") })
   assert(ffi.string(t:header_ptr(), 12) == "\0\0\0\x07abcdefgh" and tostring(t:cookie()) == "0x6162636465666768")
   assert(t:cookie() == tunnel:new_cookie("abcdefgh") and not pcall(tunnel.new_cookie, tunnel, "short"))
   assert(tunnel:new():session_id() == 0xffffffff and not pcall(t.session_id, t, 0))
   local control = ffi.new("uint8_t[12]")
   assert(tunnel:new_from_mem(control, 12) == nil and tunnel:new_from_mem(t:header_ptr(), 12):session_id() == 7)
end

return tunnel

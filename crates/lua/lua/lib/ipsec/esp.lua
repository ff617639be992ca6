-- ESP (RFC 4303) with AES-128-GCM, an ICV of 16 bytes (RFC 4106) and extended sequence numbers, for programs that
-- encrypt packets themselves.
--
--    local esp = require("lib.ipsec.esp")
--    local sa = { spi = 0x1001, aead = "aes-gcm-16-icv", key = "32 hexadecimal digits", salt = "8 of them" }
--    local out, back = esp.encrypt:new(sa), esp.decrypt:new(sa)
--    p = out:encapsulate_transport6(p)     -- nil if p cannot be encrypted: then p is still the caller's, unchanged
--    p = back:decapsulate_transport6(p)    -- nil if p is refused: then p is still the caller's, with undefined contents
--
-- In tunnel mode a packet is the payload alone, without Ethernet header: encapsulate_tunnel(p, next_header) makes ESP of
-- it, without an IP header, and decapsulate_tunnel(p) returns packet and next header. In transport mode packets begin
-- with an Ethernet header, and have an IPv4 header or an IPv6 header without extensions. They must be whole packets, not
-- fragments (RFC 4303 3.3.4); what follows the IP packet in the frame is cut off.
--
-- Cipher, sequence numbers and replay window are those of the router (crates/ipsec/src/payload.rs). Sequence numbers start
-- at 1 in each `encrypt`, so the peer takes packets of another one with the same key for replays: use a new key for each,
-- also after a restart and in each worker.

local ffi = require("ffi")
local lib = require("core.lib")
local packet = require("core.packet")
local bridge = require("core.runtime").bridge
require("lib.checksum_h")

ffi.cdef[[
struct brickmoon_esp {
   void *(*sender)(uint32_t spi, const char *key);
   void *(*receiver)(uint32_t spi, const char *key, uint32_t window, uint32_t after, uint32_t attempts);
   void (*free_sender)(void *sender);
   void (*free_receiver)(void *receiver);
   uint32_t (*back)(uint32_t length);
   int32_t (*seal)(void *sender, uint8_t *packet, uint32_t length, uint8_t next_header);
   int32_t (*open)(void *receiver, uint8_t *packet, uint32_t length);
};
]]

local C = ffi.C
local calls = ffi.cast("struct brickmoon_esp *", bridge.esp)
local failures = bridge.esp_failures
local rshift, band = bit.rshift, bit.band

-- Bytes of the ESP header and the IV in front of a payload.
local FRONT = 16
local ETHERNET, IPV6, IPV4 = 14, 40, 20
-- Next header of fragments.
local FRAGMENT = 44
local KEY_BYTES, SALT_BYTES = 16, 4
-- Refused packets that are logged per second, at most.
local LINES = 32

local M = { PROTOCOL = 50 }

-- Errors name the caller of `new`: `level` is how many functions away that is.
local function whole (level, name, value, default, least, most)
   if value == nil then value = default end
   if type(value) ~= "number" or value < least or value > most or value % 1 ~= 0 then
      error(("%s: a whole number from %d to %d is needed, not %s"):format(name, least, most, tostring(value)), level)
   end
   return value
end

local function hexadecimal (name, text, bytes)
   if type(text) ~= "string" or #text ~= 2 * bytes or text:match("%X") then
      error(("%s: %d hexadecimal digits are needed"):format(name, 2 * bytes), 4)
   end
   return lib.hexundump(text, bytes)
end

-- SPI and key with its salt.
local function read (conf)
   if conf.aead ~= "aes-gcm-16-icv" then
      error(("aead: only \"aes-gcm-16-icv\" is supported, not %s"):format(tostring(conf.aead)), 3)
   end
   local key = hexadecimal("key", conf.key, KEY_BYTES)..hexadecimal("salt", conf.salt, SALT_BYTES)
   return whole(4, "spi", conf.spi, nil, 1, 2 ^ 32 - 1), key
end

local function set16 (at, value)
   at[0], at[1] = rshift(value, 8), band(value, 0xff)
end

-- Sets length and protocol of an IPv4 header.
local function finish4 (ip, header, payload, protocol)
   set16(ip + 2, header + payload)
   ip[9] = protocol
   set16(ip + 10, 0)
   set16(ip + 10, C.cksum(ip, header, 0))
end

-- Sets length and next header of an IPv6 header.
local function finish6 (ip, header, payload, protocol)
   set16(ip + 4, payload)
   ip[6] = protocol
end

local function get16 (at) return at[0] * 256 + at[1] end

-- Bytes of the IP header of a packet, and of the IP packet in the frame; nil if it is no whole packet.
local function header4 (p)
   local ip = p.data + ETHERNET
   if p.length < ETHERNET + IPV4 or rshift(ip[0], 4) ~= 4 then return nil end
   local header, length = 4 * band(ip[0], 0x0f), get16(ip + 2)
   -- More fragments follow, or it is a later one.
   if band(get16(ip + 6), 0x3fff) ~= 0 then return nil end
   if header < IPV4 or length < header or p.length < ETHERNET + length then return nil end
   return header, length
end

local function header6 (p)
   local ip = p.data + ETHERNET
   if p.length < ETHERNET + IPV6 or rshift(ip[0], 4) ~= 6 or ip[6] == FRAGMENT then return nil end
   local length = IPV6 + get16(ip + 4)
   if p.length < ETHERNET + length then return nil end
   return IPV6, length
end

-- The families of transport mode: how to find the header, where the protocol is in it, and what to set afterwards.
local FOUR = { header = header4, protocol = 9, finish = finish4 }
local SIX = { header = header6, protocol = 6, finish = finish6 }

local encrypt = {}
encrypt.__index = encrypt
M.encrypt = encrypt

-- conf: spi, aead, key, salt.
function encrypt:new (conf)
   local spi, key = read(conf)
   local sender = ffi.gc(calls.sender(spi, key), calls.free_sender)
   return setmetatable({ spi = spi, sender = sender }, encrypt)
end

-- Encrypts what is behind the first `before` bytes, which stay in front; nil if there is no room for ESP.
local function seal (self, p, before, next_header)
   local length = p.length - before
   local total = before + FRONT + length + calls.back(length)
   if total > packet.max_payload then return nil end
   p = packet.shiftright(p, FRONT)
   if before > 0 then C.memmove(p.data, p.data + FRONT, before) end
   p = packet.resize(p, total)
   local failed = calls.seal(self.sender, p.data + before, length, next_header)
   -- The only failure left is that all 2^64 sequence numbers are used.
   if failed ~= 0 then error("ESP: "..failures[-failed]) end
   return p
end

local function transport (self, p, family)
   local header, length = family.header(p)
   if not header then return nil end
   local frame = p.length
   p.length = ETHERNET + length
   local sealed = seal(self, p, ETHERNET + header, p.data[ETHERNET + family.protocol])
   if not sealed then
      p.length = frame
      return nil
   end
   family.finish(sealed.data + ETHERNET, header, sealed.length - ETHERNET - header, M.PROTOCOL)
   return sealed
end

function encrypt:encapsulate_tunnel (p, next_header) return seal(self, p, 0, next_header) end
function encrypt:encapsulate_transport6 (p) return transport(self, p, SIX) end
function encrypt:encapsulate_transport4 (p) return transport(self, p, FOUR) end

local decrypt = {}
decrypt.__index = decrypt
M.decrypt = decrypt

-- conf: spi, aead, key, salt, window_size (128 packets, at most 4096), resync_threshold (1024 failures in a row),
-- resync_attempts (8), auditing (whether refused packets are logged, at most 32 a second).
function decrypt:new (conf)
   local spi, key = read(conf)
   local window = whole(3, "window_size", conf.window_size, 128, 1, 4096)
   local after = whole(3, "resync_threshold", conf.resync_threshold, 1024, 0, 2 ^ 31)
   local attempts = whole(3, "resync_attempts", conf.resync_attempts, 8, 0, 2 ^ 16)
   local receiver = ffi.gc(calls.receiver(spi, key, window, after, attempts), calls.free_receiver)
   local o = { spi = spi, receiver = receiver }
   if conf.auditing then o.logger = lib.logger_new({ rate = LINES, module = "esp" }) end
   return setmetatable(o, decrypt)
end

local function audit (self, why)
   if self.logger then self.logger:log("packet refused: "..why) end
end

local function word (at)
   return at[0] * 2 ^ 24 + at[1] * 2 ^ 16 + at[2] * 2 ^ 8 + at[3]
end

-- Decrypts what is behind the first `before` bytes, which move to the payload; the packet and its next header, or nil.
local function open (self, p, before)
   local at, length = p.data + before, p.length - before
   local about = ""
   if self.logger and length >= 8 then
      about = (" (SPI 0x%x, low 32 bits of the sequence number %d)"):format(word(at), word(at + 4))
   end
   local result = calls.open(self.receiver, at, length)
   if result < 0 then
      audit(self, failures[-result]..about)
      return nil
   end
   if before > 0 then C.memmove(p.data + FRONT, p.data, before) end
   p = packet.resize(packet.shiftleft(p, FRONT), before + rshift(result, 8))
   return p, band(result, 0xff)
end

local function from_transport (self, p, family)
   local header, length = family.header(p)
   if not header or p.data[ETHERNET + family.protocol] ~= M.PROTOCOL then
      audit(self, "no whole IP packet with an ESP header")
      return nil
   end
   p.length = ETHERNET + length
   local opened, next_header = open(self, p, ETHERNET + header)
   if not opened then return nil end
   family.finish(opened.data + ETHERNET, header, opened.length - ETHERNET - header, next_header)
   return opened
end

function decrypt:decapsulate_tunnel (p) return open(self, p, 0) end
function decrypt:decapsulate_transport6 (p) return from_transport(self, p, SIX) end
function decrypt:decapsulate_transport4 (p) return from_transport(self, p, FOUR) end

local CONF = {
   spi = 0xfffffffe, aead = "aes-gcm-16-icv", key = "00112233445566778899AABBCCDDEEFF", salt = "00112233",
   resync_threshold = 16, resync_attempts = 8,
}

local function text (p) return ffi.string(p.data, p.length) end

local function test_mode (name, original, sealed, opened, ...)
   local out, back = M.encrypt:new(CONF), M.decrypt:new(CONF)
   for length = 0, 70 do
      local plain = original(length)
      local p = sealed(out, packet.from_string(plain), ...)
      assert(#text(p) >= #plain + FRONT + 18 and not text(p):find(("x"):rep(9), 1, true), name)
      local again, changed = packet.clone(p), packet.clone(p)
      changed.data[changed.length - 1] = bit.bxor(changed.data[changed.length - 1], 1)
      assert(not opened(back, changed), name)
      local q, next_header = opened(back, p)
      assert(text(q) == plain, name)
      if name == "tunnel" then assert(next_header == 41) end
      assert(not opened(back, again), name)
      packet.free(q) packet.free(again) packet.free(changed)
   end
   local short = packet.from_string("short")
   assert(not opened(back, short))
   packet.free(short)
end

local function ethernet_and_ipv6 (length)
   local ip = "\x60\0\0\0\0"..string.char(length).."\x11\x40"..("\x20\x01"):rep(16)
   return ("\2"):rep(12).."\x86\xdd"..ip..("x"):rep(length)
end

local function ethernet_and_ipv4 (length)
   local ip = packet.from_string("\x46\0\0"..string.char(24 + length).."\0\1\0\0\x40\x11\0\0"..("\10"):rep(8)..("\1"):rep(4))
   set16(ip.data + 10, C.cksum(ip.data, 24, 0))
   local header = text(ip)
   packet.free(ip)
   return ("\2"):rep(12).."\8\0"..header..("x"):rep(length)
end

-- After more damaged packets than the threshold a good one passes.
local function test_resync ()
   local out, back = M.encrypt:new(CONF), M.decrypt:new(CONF)
   for n = 1, 2 * CONF.resync_threshold do
      local p = out:encapsulate_tunnel(packet.from_string("payload"), 4)
      p.data[FRONT] = bit.bxor(p.data[FRONT], 1)
      assert(not back:decapsulate_tunnel(p))
      packet.free(p)
   end
   local p = back:decapsulate_tunnel(out:encapsulate_tunnel(packet.from_string("payload"), 4))
   assert(text(p) == "payload")
   packet.free(p)
end

-- Padding of the frame is not a part of the packet; fragments and packets that are too long stay as they are.
local function test_frames ()
   local out, back = M.encrypt:new(CONF), M.decrypt:new(CONF)
   local plain = ethernet_and_ipv4(7)
   local p = out:encapsulate_transport4(packet.from_string(plain.."padding"))
   p = back:decapsulate_transport4(packet.append(p, "padding", 7))
   assert(text(p) == plain)
   p.data[ETHERNET + 6] = 0x20
   local before = text(p)
   assert(not out:encapsulate_transport4(p) and text(p) == before)
   p = packet.resize(p, packet.max_payload)
   assert(not out:encapsulate_tunnel(p, 4) and p.length == packet.max_payload)
   packet.free(p)
end

local function test_refusals ()
   for what, value in pairs { aead = "aes-128-cbc", key = "00", salt = "0011223g", spi = 0, window_size = 5000 } do
      local conf = setmetatable({ [what] = value }, { __index = CONF })
      local fine, why = pcall(M.decrypt.new, M.decrypt, conf)
      assert(not fine and why:find(what, 1, true), why)
   end
end

function M.selftest ()
   print("selftest: esp")
   test_mode("tunnel", function (length) return ("x"):rep(length) end,
      encrypt.encapsulate_tunnel, decrypt.decapsulate_tunnel, 41)
   test_mode("transport6", ethernet_and_ipv6, encrypt.encapsulate_transport6, decrypt.decapsulate_transport6)
   test_mode("transport4", ethernet_and_ipv4, encrypt.encapsulate_transport4, decrypt.decapsulate_transport4)
   test_resync()
   test_frames()
   test_refusals()
   print("selftest: ok")
end

return M

-- Internet checksums of packets (RFC 1071), computed by C code in the binary.
--
-- Buffers are byte pointers. Sums are in host byte order, including the `initial` sum of earlier parts.

local ffi = require("ffi")
local lib = require("core.lib")
require("lib.checksum_h")
local C = ffi.C
local band = bit.band

local M = {}

-- The checksum of `length` bytes: ipsum(pointer, length, initial).
M.ipsum = C.cksum

-- Writes the checksum of `length` bytes at `offset`; the field must be zero before.
function M.finish_packet (buffer, length, offset)
   ffi.cast("uint16_t *", buffer + offset)[0] = lib.htons(M.ipsum(buffer, length, 0))
end

local function header_size (buffer)
   return band(buffer[0], 0xf0) == 0x60 and 40 or band(buffer[0], 0x0f) * 4
end

-- Checks the TCP or UDP checksum of an IP packet, and the IPv4 header's checksum. nil for other protocols.
function M.verify_packet (buffer, length)
   local initial = C.pseudo_header_initial(buffer, length)
   if initial == 0xffff0001 then return nil end
   if initial == 0xffff0002 then return false end
   local size = header_size(buffer)
   return M.ipsum(ffi.cast("uint8_t *", buffer) + size, length - size, initial) == 0
end

local offsets = { [6] = 16, [17] = 6 }

-- Writes the sum of the pseudo-header into the checksum field, for hardware to complete. Returns where the checksummed
-- data starts and the field's offset from there, or nothing if the protocol has no checksum.
local function prepare (buffer, length, start, protocol)
   local offset = offsets[protocol]
   local sum = C.pseudo_header_initial(buffer, length)
   if not offset or band(sum, 0xffff0000) ~= 0 then return nil end
   ffi.cast("uint16_t *", ffi.cast("uint8_t *", buffer) + start + offset)[0] = lib.htons(band(sum, 0xffff))
   return start, offset
end

function M.prepare_packet4 (buffer, length)
   local start = header_size(buffer)
   local words = ffi.cast("uint16_t *", buffer)
   words[5] = 0
   words[5] = lib.htons(M.ipsum(ffi.cast("uint8_t *", buffer), start, 0))
   return prepare(buffer, length, start, buffer[9])
end

function M.prepare_packet6 (buffer, length)
   return prepare(buffer, length, 40, buffer[6])
end

local function test_against_lua ()
   local bytes = ffi.new("uint8_t[4096]")
   for i = 0, 4095 do bytes[i] = math.random(0, 255) end
   for length = 0, 1600 do
      local initial, at = math.random(0, 0xffff), bytes + length % 7
      local expected = lib.finish_csum(lib.update_csum(at, length, initial))
      assert(M.ipsum(at, length, initial) == expected, "length "..length)
      assert(C.cksum_generic(at, length, initial) == expected and C.cksum_avx2(at, length, initial) == expected
                and C.cksum_sse2(at, length, initial) == expected)
   end
   ffi.fill(bytes, 4096, 0xff)
   assert(M.ipsum(bytes, 4096, 0) == 0 and M.ipsum(bytes, 0, 0) == 0xffff)
end

local function test_packets ()
   local udp = "4500 0021 0001 0000 0211 cc8b c000 0201 c633 6407 0400 0035 000d 0000 6162 6364 65"
   local bytes = ffi.new("uint8_t[64]")
   ffi.copy(bytes, lib.hexundump(udp, 33), 33)
   local start, offset = M.prepare_packet4(bytes, 33)
   assert(start == 20 and offset == 6)
   M.finish_packet(bytes + start, 33 - start, offset)
   assert(M.verify_packet(bytes, 33) == true)
   bytes[30] = bytes[30] + 1
   assert(M.verify_packet(bytes, 33) == false)
   bytes[8] = 1
   assert(M.verify_packet(bytes, 33) == false, "the header's sum is wrong")
   bytes[9] = 50
   assert(M.verify_packet(bytes, 33) == nil, "ESP has no checksum")
   local cell, value = ffi.new("uint16_t[1]"), ffi.new("uint32_t[1]", lib.htonl(0x01020304))
   cell[0] = lib.htons(lib.csum(value, 4))
   C.checksum_update_incremental_32(cell, value, 0xfffefdfc)
   assert(lib.ntohl(value[0]) == 0xfffefdfc and lib.ntohs(cell[0]) == lib.csum(value, 4))
   local half = ffi.cast("uint16_t *", value)
   C.checksum_update_incremental_16(cell, half, 0x1234)
   assert(lib.ntohs(half[0]) == 0x1234 and lib.ntohs(cell[0]) == lib.csum(value, 4))
end

function M.selftest ()
   test_against_lua()
   test_packets()
end

return M

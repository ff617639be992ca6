-- Capture files in the classic pcap format, in either byte order, with time stamps in microseconds or nanoseconds.
--
-- Files are Lua file handles. Records are strings, or bytes at a pointer.

local ffi = require("ffi")
local bswap, rshift = bit.bswap, bit.rshift

-- These structures have no names in C: pflua declares its own, and a name can be declared only once.
local file_t = ffi.typeof [[struct {
   uint32_t magic_number;
   uint16_t version_major, version_minor;
   int32_t thiszone;
   uint32_t sigfigs, snaplen, network;
}]]
local record_t = ffi.typeof("struct { uint32_t ts_sec, ts_usec, incl_len, orig_len; }")
local extra_t = ffi.typeof("struct { uint32_t port_id, flags; uint64_t reserved0, reserved1, reserved2, reserved3; }")

local M = {}

local EXTRA_BYTES = ffi.sizeof(extra_t)
local LINKTYPE_ETHERNET = 1

-- No captured frame is longer; a greater length means that the file is damaged.
local RECORD_MAX = 256 * 1024

local function write_struct (file, struct)
   assert(file:write(ffi.string(struct, ffi.sizeof(struct))))
end

-- Writes the header of a file of Ethernet frames.
function M.write_file_header (file)
   write_struct(file, file_t(0xa1b2c3d4, 2, 4, 0, 0, 65535, LINKTYPE_ETHERNET))
   file:flush()
end

local scratch = record_t()

-- Writes the header of a record. The time is in seconds, 0 if not given.
function M.write_record_header (file, length, seconds)
   seconds = seconds or 0
   local whole = math.floor(seconds)
   scratch.ts_sec, scratch.ts_usec = whole, (seconds - whole) * 1e6
   scratch.incl_len, scratch.orig_len = length, length
   write_struct(file, scratch)
end

-- Writes a record with `length` bytes at `data`.
function M.write_record (file, data, length, seconds)
   M.write_record_header(file, length, seconds)
   assert(file:write(ffi.string(data, length)))
   file:flush()
end

-- Reads an object of this C type (or type name). Returns a pointer to it, or nil at the end of the file. It is an error
-- if the file ends within the object; the message calls the object `what`.
function M.readc (file, ctype, what)
   local size = ffi.sizeof(ctype)
   local bytes = file:read(size)
   if bytes == nil then return nil end
   if #bytes ~= size then error(("short read of %s: %d bytes of %d"):format(what or tostring(ctype), #bytes, size)) end
   return ffi.cast(ffi.typeof("$ *", ffi.typeof(ctype)), bytes), bytes
end

local function read_header (file, name)
   local header = M.readc(file, file_t, "a file's header")
   local magic = header and header.magic_number
   if magic == 0xa1b2c3d4 or magic == 0xa1b23c4d then return false end
   if magic == 0xd4c3b2a1 or magic == 0x4d3cb2a1 then return true end
   if magic == 0x0a0d0d0a then
      error(name.." is a pcapng file: convert it with 'tcpdump -r IN -w OUT' first", 0)
   end
   error("Bad PCAP magic number in "..name, 0)
end

local function swap (n) return tonumber(ffi.cast("uint32_t", bswap(n))) end

local function read_record (file, swapped, name)
   local found = M.readc(file, record_t, "a record's header")
   if found == nil then return nil end
   local record = record_t(found.ts_sec, found.ts_usec, found.incl_len, found.orig_len)
   if swapped then
      record.ts_sec, record.ts_usec = swap(found.ts_sec), swap(found.ts_usec)
      record.incl_len, record.orig_len = swap(found.incl_len), swap(found.orig_len)
   end
   if record.incl_len > RECORD_MAX then
      error(("%s: a record of %d bytes: the file is damaged"):format(name, record.incl_len), 0)
   end
   return record
end

-- for data, record, extra in records(path): each frame as a string, its record (ts_sec, ts_usec, incl_len, orig_len).
function M.records (path)
   local file, why = io.open(path, "rb")
   if not file then error("Unable to open file: "..path.." ("..tostring(why)..")", 2) end
   local swapped = read_header(file, path)
   return function ()
      local record = read_record(file, swapped, path)
      if record == nil then
         file:close()
         return nil
      end
      local length = math.min(record.orig_len, record.incl_len)
      local data = length == 0 and "" or file:read(length)
      if not data or #data < length then error(path..": it ends within a frame", 0) end
      local extra
      if record.incl_len - length == EXTRA_BYTES then
         local found = M.readc(file, extra_t, "what follows a frame")
         extra = found ~= nil and extra_t(found[0]) or nil
      elseif record.incl_len > length then
         file:read(record.incl_len - length)
      end
      return data, record, extra
   end
end

local function test_round_trip (path)
   local file = io.open(path, "wb")
   M.write_file_header(file)
   M.write_record(file, ffi.new("uint8_t[3]", 1, 2, 3), 3)
   M.write_record(file, "second frame", 12, 1234.5)
   M.write_record(file, "", 0)
   file:close()
   local found = {}
   for data, record in M.records(path) do found[#found + 1] = { data, record.ts_sec, record.ts_usec } end
   assert(#found == 3 and found[1][1] == "\1\2\3" and found[2][1] == "second frame" and found[3][1] == "")
   assert(found[1][2] == 0 and found[2][2] == 1234 and found[2][3] == 500000)
end

local function write (path, text)
   local file = io.open(path, "wb")
   file:write(text)
   file:close()
end

local big_header = "\xa1\xb2\xc3\xd4\0\2\0\4\0\0\0\0\0\0\0\0\0\0\xff\xff\0\0\0\1"

local function test_foreign (path)
   write(path, big_header.."\0\0\0\7\0\0\0\9\0\0\0\2\0\0\0\2ab")
   local data, record = M.records(path)()
   assert(data == "ab" and record.ts_sec == 7 and record.incl_len == 2)
   local function refused (text, reason)
      write(path, text)
      local fine, why = pcall(function () for _ in M.records(path) do end end)
      assert(not fine and tostring(why):find(reason, 1, true), why)
   end
   refused("\x0a\x0d\x0d\x0a"..("\0"):rep(20), "is a pcapng file")
   refused(("x"):rep(24), "Bad PCAP magic number")
   refused("", "Bad PCAP magic number")
   refused("short", "short read of a file's header: 5 bytes of 24")
   refused(big_header.."\0\0\0\0\0\0\0\0\0\0\0\9\0\0\0\9abc", "it ends within a frame")
   refused(big_header.."\0\0\0\0\0\0\0\0\xff\0\0\0\xff\0\0\0", "the file is damaged")
end

function M.selftest ()
   local path = os.tmpname()
   test_round_trip(path)
   test_foreign(path)
   os.remove(path)
   assert(not pcall(M.records, path))
end

return M

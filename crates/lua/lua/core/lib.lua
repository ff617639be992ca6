-- Functions that apps and programs use everywhere: files, text, bytes, byte order, options, arguments, random numbers.
--
-- Most are for configuration code. The packet path may call htons and the like, bitfield and the checksums, which
-- allocate nothing. Token buckets and loggers are those of brickmoon.rate.

local ffi = require("ffi")
local bit = require("bit")
local sys = require("brickmoon.sys")
local getopt = require("lib.lua.alt_getopt")
require("core.clib_h")
require("core.lib_h")
local C = ffi.C
local band, bor, bnot, lshift, rshift, bswap = bit.band, bit.bor, bit.bnot, bit.lshift, bit.rshift, bit.bswap
local tonumber, cast = tonumber, ffi.cast

local M = {}

-- Values

local function same_table (x, y)
   for key, value in pairs(x) do
      if not M.equal(value, y[key]) then return false end
   end
   for key in pairs(y) do
      if x[key] == nil then return false end
   end
   return true
end

-- True if x and y are equal: tables by content, C data by type and bytes, all else by `==`. Tables with a metatable
-- are compared by `==` only, since only their author knows what counts as content.
function M.equal (x, y)
   if type(x) ~= type(y) then return false end
   if type(x) == "table" then
      if x == y then return true end
      return not (getmetatable(x) or getmetatable(y)) and same_table(x, y)
   end
   if type(x) ~= "cdata" then return x == y end
   if x == y then return true end
   local size = ffi.sizeof(x)
   return ffi.typeof(x) == ffi.typeof(y) and size == ffi.sizeof(y) and C.memcmp(x, y, size) == 0
end

-- A copy that shares no table with the original; metatables are copied too.
function M.deepcopy (original)
   if type(original) ~= "table" then return original end
   local copy = {}
   for key, value in next, original do copy[M.deepcopy(key)] = M.deepcopy(value) end
   return setmetatable(copy, M.deepcopy(getmetatable(original)))
end

function M.array_copy (original)
   local copy = {}
   for i = 1, #original do copy[i] = original[i] end
   return copy
end

-- { a = true, b = true } of (a, b).
function M.set (...)
   local set = {}
   for _, member in pairs({ ... }) do set[member] = true end
   return set
end

-- Checks `arg` against a schema { key = { required =, default = } } and returns it with defaults filled in.
function M.parse (arg, schema)
   local result = {}
   arg = arg or {}
   for key, rule in pairs(schema) do
      if rule.required and arg[key] == nil then error("missing required parameter '"..tostring(key).."'", 2) end
   end
   for key, value in pairs(arg) do
      if not schema[key] then error("unrecognized parameter '"..tostring(key).."'", 2) end
      result[key] = value
   end
   for key, rule in pairs(schema) do
      if result[key] == nil then result[key] = rule.default end
   end
   return result
end

-- Files

function M.can_open (path, mode)
   local file = io.open(path, mode or "r")
   if not file then return false end
   file:close()
   return true
end

function M.can_read (path) return M.can_open(path, "r") end
function M.can_write (path) return M.can_open(path, "w") end

-- Runs a shell command and reads `what` ("*l", "*a") of its output.
function M.readcmd (command, what)
   local pipe = assert(io.popen(command))
   local value = pipe:read(what)
   pipe:close()
   return value
end

local function open_file (path, mode)
   local file, reason = io.open(path, mode)
   return file or error("Unable to open file: "..path.." ("..reason..")", 3)
end

function M.readfile (path, what)
   local file = open_file(path, "r")
   local value = file:read(what)
   file:close()
   return value
end

function M.writefile (path, value)
   local file = open_file(path, "w")
   local result = file:write(value)
   file:close()
   return result
end

M.readlink = sys.readlink

-- As in POSIX: dirname("/a/") is "/", basename("/a/") is "a".
function M.dirname (path)
   if not path then return path end
   local folder = path:gsub("/+$", ""):match("^(.*)/[^/]*$")
   if not folder then return path:match("^/+$") and "/" or "." end
   folder = folder:gsub("/+$", "")
   return folder == "" and "/" or folder
end

function M.basename (path)
   if not path then return path end
   if path == "" then return "." end
   local name = path:gsub("/+$", ""):match("([^/]*)$")
   return name == "" and "/" or name
end

function M.files_in_directory (folder)
   local files = {}
   for _, name in ipairs(sys.names(folder) or {}) do
      if name:sub(1, 1) ~= "." then files[#files + 1] = name end
   end
   return files
end

function M.firstfile (folder) return M.files_in_directory(folder)[1] end
function M.firstline (path) return M.readfile(path, "*l") end

-- Whether there is a network interface of this name.
function M.is_iface (name)
   return type(name) == "string" and not name:find("/", 1, true) and name ~= "" and name:sub(1, 1) ~= "."
      and sys.exists("/sys/class/net/"..name)
end

-- Lua values as text

function M.load_string (text) return assert(loadstring("return "..text))() end
function M.load_conf (path) return dofile(path) end

local function write_key (key)
   if type(key) == "string" and key:match("^[%a_][%w_]*$") then return key end
   return "["..(type(key) == "string" and ("%q"):format(key) or tostring(key)).."]"
end

local function write_value (value, stream, indent)
   if type(value) == "string" then
      stream:write((("%q"):format(value)))
   elseif type(value) ~= "table" then
      stream:write(tostring(value))
   else
      local inner = indent.."  "
      stream:write("{\n")
      for i = 1, #value do
         stream:write(inner)
         write_value(value[i], stream, inner)
         stream:write(",\n")
      end
      for key, item in pairs(value) do
         if not (type(key) == "number" and key >= 1 and key <= #value and key % 1 == 0) then
            stream:write(inner, write_key(key), " = ")
            write_value(item, stream, inner)
            stream:write(",\n")
         end
      end
      stream:write(indent, "}")
   end
end

-- Writes a value as a Lua expression.
function M.print_object (value, stream)
   stream = stream or io.stdout
   write_value(value, stream, "")
   stream:write("\n")
end

-- Stores a value in a file that load_conf can read.
function M.store_conf (path, value)
   local stream = open_file(path, "w")
   stream:write("return ")
   M.print_object(value, stream)
   stream:close()
end

-- Text and bytes

-- for part, separator in text:split(pattern): the pieces between matches.
function string:split (pattern)
   local at, finished = 1, false
   return function ()
      if finished then return nil end
      local first, last, capture = self:find(pattern, at)
      if not first or last < first then
         finished = true
         return self:sub(at)
      end
      local piece = self:sub(at, first - 1)
      local separator = capture or self:sub(first, last)
      at = last + 1
      return piece, separator
   end, self
end

function M.hexdump (bytes)
   return (bytes:gsub(".", function (byte) return ("%02X "):format(byte:byte()) end):gsub(" $", ""))
end

-- The first n bytes that the hex digits in `text` stand for. Other characters between the pairs are ignored. Short
-- text is padded with zeros, or is an error if `strict`.
function M.hexundump (text, n, strict)
   local bytes, count = ffi.new("char[?]", n), 0
   for pair in text:gmatch("%x%x") do
      if count == n then break end
      bytes[count] = tonumber(pair, 16)
      count = count + 1
   end
   if strict and count < n then error(("hexundump: expected %d bytes, got %d"):format(n, count), 2) end
   return ffi.string(bytes, n)
end

-- 1234567 as "1,234,567".
function M.comma_value (n)
   if type(n) == "cdata" then n = tostring(n):gsub("[UL]+$", "") end
   if n ~= n then return "NaN" end
   local left, digits, rest = tostring(n):match("^([^%d]*%d)(%d*)(.-)$")
   if not left then return tostring(n) end
   return left..digits:reverse():gsub("(%d%d%d)", "%1,"):reverse()..rest
end

function M.yesno (flag) return flag and "yes" or "no" end

-- Bits and byte order

-- base with the bits named by the set's values: bits({ RESET = 0, ENABLE = 4 }) is 0x11.
function M.bits (set, base)
   local sum = base or 0
   for _, n in pairs(set) do sum = bor(sum, lshift(1, n)) end
   return sum
end

function M.bitset (value, n) return band(value, lshift(1, n)) ~= 0 end

-- Rounds the value up to a multiple of `size`. packet.packet_alignment is larger than the address space (see
-- core.packet), and nothing can be aligned to that: for such a size the value is returned unchanged.
function M.align (value, size)
   if size >= 2 ^ 47 then return value end
   local over = value % size
   return over == 0 and value or value + size - over
end

-- The parentheses prevent tail calls, which would end a trace.
function M.htonl (n) return (tonumber(cast("uint32_t", bswap(n)))) end
function M.htons (n) return (rshift(bswap(n), 16)) end
function M.htonll (n) return (bswap(cast("uint64_t", n))) end
if ffi.abi("be") then
   function M.htonl (n) return n end
   M.htons, M.htonll = M.htonl, M.htonl
end
M.ntohl, M.ntohs, M.ntohll = M.htonl, M.htons, M.htonll

local function get_field (size, struct, member)
   if size == 16 then return M.ntohs(struct[member]) end
   if size == 32 then return M.ntohl(struct[member]) end
   return struct[member]
end

-- Reads `bits` bits at `offset`, counted from the most significant, of a member of 8, 16 or 32 bits in network byte
-- order; with a value, writes them.
function M.bitfield (size, struct, member, offset, bits, value)
   local field = get_field(size, struct, member)
   local shift = size - (bits + offset)
   local mask = lshift(2 ^ bits - 1, shift)
   if not value then return rshift(band(field, mask), shift) end
   field = bor(band(field, bnot(mask)), band(lshift(value, shift), mask))
   if size == 16 then field = M.htons(field) elseif size == 32 then field = M.htonl(field) end
   struct[member] = field
end

-- Internet checksum (RFC 1071) in parts: update_csum over each piece of even length, then finish_csum.
function M.update_csum (at, length, sum)
   local bytes = cast("uint8_t *", at)
   sum = tonumber(sum or 0)
   for i = 0, length - 2, 2 do sum = sum + lshift(bytes[i], 8) + bytes[i + 1] end
   if length % 2 == 1 then sum = sum + lshift(bytes[length - 1], 8) end
   return sum
end

function M.finish_csum (sum)
   sum = tonumber(sum)
   while sum > 0xffff do sum = sum % 0x10000 + math.floor(sum / 0x10000) end
   return band(bnot(sum), 0xffff)
end

function M.csum (at, length) return M.finish_csum(M.update_csum(at, length)) end

-- Memory

-- Allocates memory for one `type` (a C type or its name) and returns a pointer to it. It is never freed.
function M.malloc (ctype)
   ctype = ffi.typeof(ctype)
   return cast(ffi.typeof("$ *", ctype), (require("core.memory").dma_alloc(ffi.sizeof(ctype))))
end

-- A view of `size` elements of `ctype` at base + offset bytes; an index past them is an error.
function M.bounds_checked (ctype, base, offset, size)
   local pointer = ffi.typeof("$ *", ffi.typeof(ctype))
   local function check (index)
      if index < 0 or index >= size then
         error(("index %s is outside of 0..%d"):format(tostring(index), size - 1), 3)
      end
      return index
   end
   local view = ffi.metatype(ffi.typeof("struct { $ at; }", pointer), {
      __index = function (self, index) return self.at[check(index)] end,
      __newindex = function (self, index, value) self.at[check(index)] = value end,
   })
   return view(cast(pointer, cast("uint8_t *", base) + offset))
end

-- Keeps the JIT compiler from moving loads and stores across the call.
function M.compiler_barrier () C.nop() end

-- Time. The engine's time does not advance within a breath; without an engine the clock is read.
local function now ()
   local engine = rawget(_G, "engine")
   return engine and engine.now and engine.now() or C.get_monotonic_time()
end

-- A function that returns true at most once in this number of seconds.
function M.throttle (seconds)
   local next_time = now()
   return function ()
      if now() <= next_time then return false end
      next_time = now() + seconds
      return true
   end
end

-- A function that returns true once this number of seconds has passed.
function M.timeout (seconds)
   local deadline = now() + seconds
   return function () return now() > deadline end
end

function M.waitfor (condition)
   while not condition() do sys.usleep(100) end
end

-- Tries `test` up to `attempts` times, `interval` microseconds apart, and prints the progress on stdout.
function M.waitfor2 (name, test, attempts, interval)
   io.write("Waiting for "..name..".")
   for _ = 1, attempts do
      if test() then
         print(" ok")
         return
      end
      sys.usleep(interval)
      io.write(".")
      io.flush()
   end
   print("")
   error("timeout waiting for "..name)
end

-- Programs

-- Calls actions[option](value) for each option; returns the remaining arguments.
function M.dogetopt (args, actions, short, long)
   local names, at, values = getopt.get_ordered_opts(args, short, long)
   for i, name in ipairs(names) do
      if not actions[name] then error("unimplemented option: "..name) end
      actions[name](values[i])
   end
   local rest = {}
   for i = at, #args do rest[#rest + 1] = args[i] end
   return rest
end

-- Whether the module `name` can be required.
function M.have_module (name)
   if package.loaded[name] or package.preload[name] then return true end
   for _, searcher in ipairs(package.loaders) do
      local loader = searcher(name)
      if type(loader) == "function" then
         package.preload[name] = loader
         return true
      end
   end
   return false
end

-- Ends the program with status 1 unless it runs as root.
function M.root_check (message)
   if sys.is_root() then return end
   print(message or "error: must run as root")
   os.exit(1)
end

-- The variable's value; nil when it is unset or empty.
function M.getenv (name)
   local value = os.getenv(name)
   return value ~= "" and value or nil
end

function M.execv (path, arguments) return sys.execve(path, arguments or {}) end

-- Random numbers

M.random_bytes_from_dev_urandom = sys.random_bytes

function M.random_bytes_from_math_random (count)
   local bytes = ffi.new(ffi.typeof("uint8_t[$]", count))
   for i = 0, count - 1 do bytes[i] = math.random(0, 255) end
   return bytes
end

-- `count` random bytes as uint8_t[count]: from the kernel, or after randomseed(seed) from a seeded generator.
M.random_bytes = M.random_bytes_from_dev_urandom

-- Seeds math.random; with a number also random_bytes, so that a run can be repeated. Returns the seed.
function M.randomseed (seed)
   seed = tonumber(seed)
   if seed then
      io.stderr:write(("Random numbers are repeatable: SNABB_RANDOM_SEED=%d.\n"):format(seed))
      M.random_bytes = M.random_bytes_from_math_random
   else
      seed = cast("uint32_t *", M.random_bytes_from_dev_urandom(4))[0]
      M.random_bytes = M.random_bytes_from_dev_urandom
   end
   math.randomseed(seed)
   return seed
end

function M.random_data (length) return ffi.string(M.random_bytes(length), length) end

local alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

-- Random letters, digits, `_` and `-`, with `entropy` bits of entropy (default 160).
function M.random_printable_string (entropy)
   local out = {}
   local bytes = M.random_bytes(math.ceil((entropy or 160) / 6))
   for i = 1, math.ceil((entropy or 160) / 6) do
      local at = bytes[i - 1] % 64 + 1
      out[i] = alphabet:sub(at, at)
   end
   return table.concat(out)
end

local rate = require("brickmoon.rate")
M.token_bucket_new, M.logger_new = rate.token_bucket_new, rate.logger_new
M.logger_default, M.logger_throttle = rate.logger_default, rate.logger_throttle

function M.selftest ()
   assert(M.equal({ a = { 1, "x" } }, { a = { 1, "x" } }) and not M.equal({ a = 1 }, { a = 1, b = 2 }))
   assert(M.csum("\x45\0\0\x73\0\0\x40\0\x40\x11\0\0\xc0\xa8\0\x01\xc0\xa8\0\xc7", 20) == 0xb861)
   assert(M.hexundump("4500 B67D", 4) == "\x45\0\xb6\x7d" and M.hexdump("\x45\0") == "45 00")
   assert(M.ntohl(0xf0d0b0f0) == 0xf0b0d0f0 and M.htons(0x1234) == 0x3412)
   assert(M.equal(M.parse({ a = 1 }, { a = { required = true }, b = { default = 42 } }), { a = 1, b = 42 }))
   local pieces = {}
   for piece in ("a:b:"):split(":") do pieces[#pieces + 1] = piece end
   assert(M.equal(pieces, { "a", "b", "" }) and M.comma_value(1234567) == "1,234,567")
   local fine, why = pcall(M.parse, { c = 1 }, {})
   assert(not fine and why:match("unrecognized parameter 'c'"))
end

return M

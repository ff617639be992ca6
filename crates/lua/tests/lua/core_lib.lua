-- core.lib, function by function.

local ffi = require("ffi")
local lib = require("core.lib")

local function fails (reason, f, ...)
   local fine, why = pcall(f, ...)
   assert(not fine and tostring(why):find(reason, 1, true), tostring(why))
end

-- equal, deepcopy, array_copy, set
assert(lib.equal({ 1, { 2 } }, { 1, { 2 } }) and not lib.equal({ 1 }, { 1, 2 }) and not lib.equal(1, "1"))
assert(lib.equal(ffi.new("int[2]", 1, 2), ffi.new("int[2]", 1, 2)))
assert(not lib.equal(ffi.new("int[2]", 1, 2), ffi.new("int[2]", 1, 3)))
assert(not lib.equal(ffi.new("int[2]"), ffi.new("char[8]")))
local original = setmetatable({ a = { b = 1 } }, { __index = { c = 2 } })
local copy = lib.deepcopy(original)
assert(copy.a ~= original.a and copy.a.b == 1 and copy.c == 2)
assert(lib.equal(lib.array_copy({ 1, 2, x = 3 }), { 1, 2 }) and lib.set("a", "b").b == true)

-- parse
local schema = { a = { required = true }, b = { default = 42 }, c = {} }
assert(lib.equal(lib.parse({ a = false }, schema), { a = false, b = 42 }))
assert(lib.equal(lib.parse({ a = 1, b = false, c = 2 }, schema), { a = 1, b = false, c = 2 }))
assert(lib.equal(lib.parse(nil, {}), {}))
fails("missing required parameter 'a'", lib.parse, nil, schema)
fails("unrecognized parameter 'd'", lib.parse, { a = 1, d = 2 }, schema)

-- files
local path = os.tmpname()
assert(lib.writefile(path, "one\ntwo\n") and lib.readfile(path, "*a") == "one\ntwo\n" and lib.firstline(path) == "one")
assert(lib.can_read(path) and lib.can_write(path) and not lib.can_open("/no/such/file"))
fails("Unable to open file: /no/such/file", lib.readfile, "/no/such/file", "*a")
assert(lib.readcmd("echo hello", "*l") == "hello")
local conf = { foo = "1", bar = 42, ["not a name"] = true, arr = { 2, "foo\n", 4, x = { y = false } } }
lib.store_conf(path, conf)
assert(lib.equal(lib.load_conf(path), conf) and lib.equal(lib.load_string("{1,2}"), { 1, 2 }))
os.remove(path)
local folder = path..".d"
os.execute("mkdir -p "..folder.." && touch "..folder.."/b "..folder.."/a && ln -s a "..folder.."/link")
assert(lib.firstfile(folder) == "a" and lib.equal(lib.files_in_directory(folder), { "a", "b", "link" }))
assert(lib.readlink(folder.."/link") == "a" and lib.readlink(folder.."/a") == nil)
os.execute("rm -r "..folder)
for path, expected in pairs { ["/a/b"] = { "/a", "b" }, ["a"] = { ".", "a" }, ["/a"] = { "/", "a" }, ["/"] = { "/", "/" },
                              ["a/b/"] = { "a", "b" }, [""] = { ".", "." }, ["//a//b"] = { "//a", "b" } } do
   local found = { lib.dirname(path), lib.basename(path) }
   assert(found[1] == (path == "//a//b" and "//a" or expected[1]) and found[2] == expected[2], path)
end
assert(lib.is_iface("lo") and not lib.is_iface("no-such-interface") and not lib.is_iface("../net"))

-- text
local function split (text, pattern)
   local pieces = {}
   for piece in text:split(pattern) do pieces[#pieces + 1] = piece end
   return table.concat(pieces, "|")
end
assert(split("a,b,,c", ",") == "a|b||c" and split("abc", ",") == "abc" and split("a1b22c", "%d+") == "a|b|c")
assert(lib.hexdump("\0\xff") == "00 FF" and lib.hexdump("") == "")
assert(lib.hexundump("00:ff 1", 3) == "\0\xff\0")
fails("expected 3 bytes, got 1", lib.hexundump, "00", 3, true)
for n, text in pairs { [1] = "1", [1000] = "1,000", [-1234567] = "-1,234,567", [1234.5] = "1,234.5" } do
   assert(lib.comma_value(n) == text, text)
end
assert(lib.comma_value(2 ^ 53) ~= nil and lib.comma_value(10000000000000000001ULL) == "10,000,000,000,000,000,001")
assert(lib.comma_value(0 / 0) == "NaN" and lib.yesno(1) == "yes" and lib.yesno(nil) == "no")

-- bits and byte order
assert(lib.bits({ RESET = 0, ENABLE = 4 }, 0x100) == 0x111 and lib.bitset(0x10, 4) and not lib.bitset(0x10, 3))
-- Objects with an __index function of their own.
local function object () return setmetatable({}, { __index = function (_, key) error("no key "..tostring(key)) end,
                                                   __pairs = function () return next, { 1, 2 } end }) end
local one = object()
assert(lib.equal(one, one) and not lib.equal(one, object()) and not lib.equal({ one }, { object() }))
assert(lib.equal({ one, { 2 } }, { one, { 2 } }))
assert(lib.align(0x7f0000001234ULL, require("core.packet").packet_alignment) == 0x7f0000001234ULL)
assert(lib.align(13, 8) == 16 and lib.align(16, 8) == 16 and lib.align(0, 8) == 0)
assert(lib.htons(0x1234) == 0x3412 and lib.htonl(0x12345678) == 0x78563412 and lib.ntohl(0x000000ff) == 0xff000000)
assert(lib.htonll(1ULL) == 0x0100000000000000ULL)
local fields = ffi.new("struct { uint16_t half; uint32_t word; uint8_t byte; }")
lib.bitfield(16, fields, "half", 3, 13, 0x1abc)
assert(ffi.string(fields, 2) == "\x1a\xbc" and lib.bitfield(16, fields, "half", 3, 13) == 0x1abc)
lib.bitfield(16, fields, "half", 0, 3, 5)
assert(ffi.string(fields, 2) == "\xba\xbc")
lib.bitfield(32, fields, "word", 0, 4, 15)
lib.bitfield(32, fields, "word", 12, 20, 0xabcde)
assert(lib.bitfield(32, fields, "word", 0, 4) == 15 and lib.bitfield(32, fields, "word", 12, 20) == 0xabcde)
lib.bitfield(8, fields, "byte", 4, 4, 9)
assert(fields.byte == 9)

-- checksums: an odd last byte is the high byte of a word
assert(lib.csum("\1", 1) == 0xfeff and lib.csum("\1\0", 2) == 0xfeff and lib.csum("", 0) == 0xffff)
local parts = lib.finish_csum(lib.update_csum("\3\4", 2, lib.update_csum("\1\2", 2)))
assert(parts == lib.csum("\1\2\3\4", 4))

-- memory
local number = lib.malloc("uint32_t")
number[0] = 7
assert(number[0] == 7 and lib.malloc(ffi.typeof("uint32_t")) ~= number)
local bytes = ffi.new("uint8_t[8]", 1, 2, 3, 4)
local view = lib.bounds_checked("uint8_t", bytes, 2, 2)
view[1] = 9
assert(view[0] == 3 and bytes[3] == 9)
fails("index 2 is outside of 0..1", function () return view[2] end)
fails("index -1 is outside of 0..1", function () view[-1] = 1 end)
lib.compiler_barrier()

-- time, with a fake engine
local clock = 10
local before = rawget(_G, "engine")
rawset(_G, "engine", { now = function () return clock end })
local throttle, timeout = lib.throttle(1), lib.timeout(1)
assert(not throttle() and not timeout())
clock = 10.5
assert(throttle() and not throttle() and not timeout())
clock = 11.6
assert(throttle() and timeout() and timeout())
rawset(_G, "engine", before)
local tries = 0
lib.waitfor(function () tries = tries + 1 return tries == 3 end)
assert(tries == 3)
fails("timeout waiting for it", lib.waitfor2, "it", function () end, 2, 1)

-- programs
local seen = {}
local rest = lib.dogetopt({ "-v", "--size=3", "file" },
   { v = function () seen.v = true end, s = function (value) seen.s = value end }, "vs:", { size = "s" })
assert(seen.v and seen.s == "3" and lib.equal(rest, { "file" }))
assert(lib.have_module("core.lib") and lib.have_module("lib.checksum") and not lib.have_module("no.such.module"))
assert(lib.getenv("PATH") and not lib.getenv("BM_SURELY_UNSET"))

-- random numbers
assert(#lib.random_data(10) == 10 and #lib.random_printable_string(60) == 10)
assert(lib.random_printable_string():match("^[%w_-]+$"))
local ethernet = ffi.new("struct { uint8_t mac[6]; }")
ethernet.mac = lib.random_bytes(6)
lib.randomseed(42)
ethernet.mac = lib.random_bytes(6)
lib.randomseed(42)
local first = lib.random_data(8)
lib.randomseed(42)
assert(lib.random_data(8) == first)
lib.randomseed()
assert(lib.random_data(8) ~= lib.random_data(8))

-- Compares filters with those of libpcap: for random frames and random filters, the results must be equal.

local ffi = require("ffi")
local filter = require("brickmoon.filter")

ffi.cdef [[
struct pcap_bpf { unsigned length; void *instructions; };
struct pcap_seen { int64_t seconds, microseconds; uint32_t captured, length; };
void *pcap_open_dead(int link, int snaplen);
int pcap_compile(void *pcap, struct pcap_bpf *program, const char *text, int optimize, uint32_t netmask);
int pcap_offline_filter(const struct pcap_bpf *, const struct pcap_seen *, const unsigned char *);
void pcap_freecode(struct pcap_bpf *);
char *pcap_geterr(void *);
]]
local loaded, pcap = pcall(ffi.load, "libpcap.so.0.8")
if not loaded then loaded, pcap = pcall(ffi.load, "pcap") end
if not loaded then
   print("skipped: there is no libpcap to compare with")
   os.exit(43)
end
local handle = pcap.pcap_open_dead(1, 65535)

local random_filters = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./").."random_filters.lua")
local random, one_of = math.random, random_filters.one_of
local seed, frames, expression = random_filters.seed, random_filters.frames, random_filters.expression

local program, seen = ffi.new("struct pcap_bpf"), ffi.new("struct pcap_seen")

local function compare (text, optimize)
   if pcap.pcap_compile(handle, program, text, optimize, 0xffffffff) ~= 0 then
      return false, ffi.string(pcap.pcap_geterr(handle))
   end
   local match = filter.compile(text)
   local matched = 0
   for i, bytes in ipairs(frames) do
      seen.captured, seen.length = #bytes, #bytes
      local expected = pcap.pcap_offline_filter(program, seen, ffi.cast("const unsigned char *", bytes)) ~= 0
      if match(bytes, #bytes) ~= expected then
         local hex = bytes:gsub(".", function (c) return ("%02x"):format(c:byte()) end)
         error(("%s\nframe %d (%d bytes) %s: libpcap says %s\n%s"):format(text, i, #bytes, hex, tostring(expected),
                                                                        filter.source(text)))
      end
      if expected then matched = matched + 1 end
   end
   pcap.pcap_freecode(program)
   return true, matched
end

-- Garbage must be refused with a message that names a column, never by an internal error of the compiler.
local words = {}
for word in ([[tcp udp ip ip6 arp host net port portrange src dst or and not ! ( ) [ ] : = < >= & | + - * / % << 80 443 0x10
   10.0.0.1 10.0.0.0/8 2001:db8::1 02:00:00:00:00:01 vlan less greater len ether proto \\tcp mask tcp-syn tcpflags 80-90
   multicast broadcast icmp6 0 4294967296 foo http && || ^ . " \1]]):gmatch("%S+") do words[#words + 1] = word end
for _ = 1, 20000 do
   local row = {}
   for i = 1, random(8) do row[i] = one_of(words) end
   local text = table.concat(row, " ")
   local fine, why = pcall(filter.compile, text)
   assert(fine or tostring(why):match("^filter, column %d+: "), text..": "..tostring(why))
end

local filters = tonumber(os.getenv("BM_FILTERS") or 1500)
local compiled, refused, matches, reasons = 0, 0, 0, {}
for _ = 1, filters do
   local text = expression(0)
   -- Without libpcap's optimizer, which removes loads that would end the filter.
   local fine, result = compare(text, 0)
   if fine then
      compiled, matches = compiled + 1, matches + result
   else
      refused = refused + 1
      if os.getenv("BM_SHOW") then print(result, text) end
      reasons[result] = (reasons[result] or 0) + 1
   end
end
for reason, count in pairs(reasons) do print(count, reason) end
print(("seed %d: %d filters on %d frames alike, %d of %d answers yes; libpcap refused %d filters"):format(
   seed, compiled, #frames, matches, compiled * #frames, refused))
assert(compiled > filters / 2 and matches > 0)

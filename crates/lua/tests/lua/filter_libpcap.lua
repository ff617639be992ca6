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

local seed = tonumber(os.getenv("BM_SEED") or 20240817)
math.randomseed(seed)
local random = math.random
local function one_of (list) return list[random(#list)] end

-- Random frames from few values, so that filters match often.

local ports = { 22, 53, 80, 81, 443, 8080, 65535 }
local named = { "http", "domain", "ssh" }
local addresses = { "\10\0\0\1", "\10\0\0\2", "\10\1\2\3", "\192\168\1\1", "\224\0\0\5", "\10\0\1\1" }
local addresses6 = {
   "\32\1\13\184"..("\0"):rep(11).."\1", "\32\1\13\184"..("\0"):rep(11).."\2", "\254\128"..("\0"):rep(13).."\1",
   "\255\2"..("\0"):rep(13).."\1",
}
local macs = { "\2\0\0\0\0\1", "\2\0\0\0\0\2", "\255\255\255\255\255\255", "\1\0\94\0\0\5" }

local function be16 (n) return string.char(math.floor(n / 256) % 256, n % 256) end

local function noise (n)
   local bytes = {}
   for i = 1, n do bytes[i] = string.char(random(0, 255)) end
   return table.concat(bytes)
end

local function transport ()
   return be16(one_of(ports))..be16(one_of(ports))..noise(8)..string.char(one_of { 80, 96 }, random(0, 63))..noise(10)
end

local function ip4 ()
   local words = one_of { 5, 5, 5, 6, 8, 15 }
   local fragment = one_of { 0, 0, 0, 0x4000, 0x2000, 0x2010, 17 }
   return string.char(64 + words, 0)..be16(random(20, 1500))..noise(2)..be16(fragment)
      ..string.char(random(1, 255), one_of { 1, 2, 6, 6, 6, 17, 17, 47, 50, 51, 58, 103, 112, 132 })..noise(2)
      ..one_of(addresses)..one_of(addresses)..noise(4 * words - 20)..transport()
end

local function ip6 ()
   local next_header = one_of { 6, 6, 17, 17, 44, 58, 132, 0, 50 }
   return "\96"..noise(3)..be16(40)..string.char(next_header, 64)..one_of(addresses6)..one_of(addresses6)
      ..(next_header == 44 and string.char(one_of { 6, 17, 58 })..noise(7) or "")..transport()
end

local function arp ()
   return "\0\1\8\0\6\4"..be16(random(2))..one_of(macs)..one_of(addresses)..one_of(macs)..one_of(addresses)
end

local function frame ()
   local kind = random(10)
   local type, payload = 0x0800, nil
   if kind <= 5 then payload = ip4()
   elseif kind <= 7 then type, payload = 0x86dd, ip6()
   elseif kind == 8 then type, payload = one_of { 0x0806, 0x8035 }, arp()
   elseif kind == 9 then type, payload = random(3, 1500), string.char(one_of { 66, 240, 170 })..noise(40)
   else type, payload = random(1501, 65535), noise(50) end
   local tags = ""
   for _ = 1, one_of { 0, 0, 0, 1, 2 } do
      tags = tags..be16(one_of { 0x8100, 0x88a8, 0x9100 })..be16(one_of { 5, 7, 0x2005, 0xfff })
   end
   local bytes = one_of(macs)..one_of(macs)..tags..be16(type)..payload
   return random(8) == 1 and bytes:sub(1, random(0, #bytes)) or bytes
end

local frames = {}
for i = 1, 400 do frames[i] = frame() end

-- Filters.

local texts = { "10.0.0.1", "10.0.0.2", "192.168.1.1", "10.1", "224.0.0.5" }
local texts6 = { "2001:db8::1", "2001:db8::2", "fe80::1", "ff02::1" }
local nets = { "10.0.0.0/8", "10", "10.0.0.0/24", "192.168", "10.0.0.0/31", "0.0.0.0/0", "10.0.0.0 mask 255.255.0.0",
               "2001:db8::/32", "fe80::/10", "2001:db8::/127" }
local mac_texts = { "02:00:00:00:00:01", "02:00:00:00:00:02", "ff:ff:ff:ff:ff:ff" }
local directions = { "", "", "src ", "dst ", "src or dst ", "src and dst " }

-- libpcap does not test the protocol of bytes on the right of an operator, but we do, so there are none in this test.
local function number (depth, only_ether)
   local kind = random(depth > 2 and 4 or 9)
   if kind <= 2 then return tostring(one_of { 0, 1, 2, 4, 8, 13, 64, 255, 256, 1000, 65535, 0x7fffffff, 0xffffffff }) end
   if kind == 3 then return "len" end
   if kind <= 6 then
      local index = random(4) == 1 and depth < 2 and number(depth + 1, only_ether) or tostring(random(0, 20))
      return (only_ether and "ether" or one_of { "ip", "ip6", "tcp", "udp", "icmp", "ether", "arp", "icmp6" }).."["..index..one_of { "", ":2", ":4" }.."]"
   end
   local operator = one_of { " + ", " - ", " * ", " & ", " | ", " << ", " >> ", " / ", " % ", " ^ " }
   local right = (operator == " / " or operator == " % ") and tostring(random(1, 9))
      or number(depth + 1, true)
   if operator == " << " or operator == " >> " then right = tostring(random(0, 31)) end
   return "("..number(depth + 1, only_ether)..operator..right..")"
end

local function primitive ()
   local kind = random(15)
   if kind == 1 then return one_of { "ip", "ip6", "arp", "rarp", "tcp", "udp", "icmp", "icmp6", "sctp", "igmp", "ah", "esp",
                                     "pim", "vrrp" } end
   if kind == 2 then return one_of(directions).."host "..one_of(random(3) == 1 and texts6 or texts) end
   if kind == 3 then return one_of { "ip ", "arp ", "rarp " }..one_of(directions).."host "..one_of(texts) end
   if kind == 4 then return one_of(directions).."net "..one_of(nets) end
   if kind <= 6 then return one_of { "", "tcp ", "udp ", "sctp " }..one_of(directions).."port "..one_of(ports) end
   if kind == 15 then return one_of { "", "tcp " }..one_of(directions).."port "..one_of(named) end
   if kind == 7 then
      return one_of { "", "tcp ", "udp " }..one_of(directions).."portrange "..one_of { "22-80", "80-443", "0-65535", "81-81" }
   end
   if kind == 8 then return "ether "..one_of { "src ", "dst ", "host ", "src or dst " }
      ..one_of(mac_texts) end
   if kind == 9 then return one_of { "ether proto 0x0800", "ether proto \\ip6", "ip proto 6", "ip6 proto 17", "proto 50",
                                     "ip proto \\udp", "ether proto 66", "proto \\tcp" } end
   if kind == 10 then return one_of { "ether multicast", "ether broadcast", "multicast", "broadcast", "ip multicast",
                                      "ip6 multicast", "less 60", "greater 80" } end
   if kind == 11 then return one_of { "vlan", "vlan 5", "vlan 4095" } end
   if kind == 12 then return "host "..one_of(texts).." or "..one_of(texts) end
   return number(0)..one_of { " = ", " != ", " > ", " < ", " >= ", " <= ", " == " }..number(1)
end

local function expression (depth)
   local kind = random(depth > 2 and 3 or 6)
   if kind <= 2 then return primitive() end
   if kind == 3 then return "not "..primitive() end
   local joint = one_of { " and ", " or ", " && ", " || " }
   local text = expression(depth + 1)..joint..expression(depth + 1)
   return kind == 6 and "("..text..")" or kind == 5 and "not ("..text..")" or text
end

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

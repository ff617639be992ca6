-- Random frames, and random filters of which some match some of them: for filter_libpcap and filter_bpf.

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

return { seed = seed, frames = frames, expression = expression, one_of = one_of }

-- A firewall between two ports, as a network of apps: rules in tcpdump's language, with connection state for replies.
--
--    brickmoon run firewall.lua --inside PORT --outside PORT [--in FILTER]... [--out FILTER]... [--duration SECONDS]
--
-- From inside, packets that match an --out filter pass (all packets, if there is no such filter), and so do their
-- replies. From outside, replies pass, and packets that match an --in filter. ARP and neighbor discovery always pass.
-- Everything else is dropped and counted.
local ffi = require("ffi")
local lib, link, packet = require("core.lib"), require("core.link"), require("core.packet")
local counter = require("core.counter")
local config, ports = require("core.config"), require("brickmoon.ports")
local hash, filter, views = require("brickmoon.table"), require("brickmoon.filter"), require("brickmoon.views")

local flow_t = ffi.typeof [[
   struct { uint32_t inside, outside; uint16_t inside_port, outside_port; uint32_t protocol; }
]]
local has_flow, is_neighbor = filter("ip and (tcp or udp or icmp)"), filter("arp or (icmp6 and ip6[40] >= 133)")

local Firewall = {
   config = { out_rules = { default = {} }, in_rules = { default = {} }, idle = { default = 120 } },
   shm = { passed = { counter }, answered = { counter }, dropped = { counter }, table_full = { counter } },
}
Firewall.__index = Firewall

function Firewall:new (conf)
   local function rules (texts) -- combines them into one filter
      return #texts > 0 and filter.compile("("..table.concat(texts, ") or (")..")")
   end
   return setmetatable({
      out = rules(conf.out_rules) or function () return true end,
      back = rules(conf.in_rules) or function () return false end,
      flows = hash.new { key = flow_t, value = "double", capacity = 65536 }, flow = flow_t(), idle = conf.idle,
   }, Firewall)
end

-- The flow of a packet, which is the same for both directions; nil if there is none.
function Firewall:flow_of (p, outward)
   if not has_flow(p.data, p.length) then return nil end
   local ip4, flow, at = views.ip4(p.data), self.flow, views.afterIP4(p.data)
   local protocol, source, destination = ip4:getProtocol(), 0, 0
   if protocol ~= 1 and ip4:getFragment() == 0 and p.length >= at + 4 then
      local udp = views.udp(p.data, at)
      source, destination = udp.src, udp.dst
   end
   flow.protocol = protocol
   if outward then
      flow.inside, flow.inside_port = ip4.src.uint32, source
      flow.outside, flow.outside_port = ip4.dst.uint32, destination
   else
      flow.inside, flow.inside_port = ip4.dst.uint32, destination
      flow.outside, flow.outside_port = ip4.src.uint32, source
   end
   return flow
end

function Firewall:leaves (p)
   if is_neighbor(p.data, p.length) then return true end
   if not self.out(p.data, p.length) then return false end
   local flow = self:flow_of(p, true)
   if flow then
      local seen = self.flows:put(flow)
      if seen == nil then counter.add(self.shm.table_full) else seen[0] = engine.now() end
   end
   return true
end

function Firewall:enters (p)
   local flow = self:flow_of(p, false)
   local seen = flow and self.flows:get(flow)
   if seen then
      seen[0] = engine.now()
      counter.add(self.shm.answered)
      return true
   end
   return is_neighbor(p.data, p.length) or self.back(p.data, p.length)
end

local function judge (self, input, output, decide)
   for _ = 1, link.nreadable(input) do
      local p = link.receive(input)
      if decide(self, p) then
         counter.add(self.shm.passed)
         link.transmit(output, p)
      else
         counter.add(self.shm.dropped)
         packet.free(p)
      end
   end
end

function Firewall:push ()
   judge(self, self.input.inside, self.output.outside, self.leaves)
   judge(self, self.input.outside, self.output.inside, self.enters)
end

function Firewall:tick ()
   local oldest = engine.now() - self.idle
   self.flows:sweep(function (seen) return seen[0] < oldest end, 64)
end

function Firewall:report ()
   for _, name in ipairs { "passed", "answered", "dropped", "table_full" } do
      print(("%12s %s"):format(lib.comma_value(counter.read(self.shm[name])), name))
   end
end

local arg, out_rules, in_rules = {}, {}, {}
local function set (name) return function (value) arg[name] = value end end
lib.dogetopt({ ... }, {
   inside = set("inside"), outside = set("outside"), duration = set("duration"),
   out = function (text) out_rules[#out_rules + 1] = text end,
   ["in"] = function (text) in_rules[#in_rules + 1] = text end,
}, "", { inside = 1, outside = 1, duration = 1, out = 1, ["in"] = 1 })
if not (arg.inside and arg.outside) then
   error("usage: firewall.lua --inside PORT --outside PORT [--in FILTER]... [--out FILTER]...", 0)
end

local c = config.new()
ports.open(c, "inside", arg.inside)
ports.open(c, "outside", arg.outside)
config.app(c, "firewall", Firewall, { out_rules = out_rules, in_rules = in_rules })
for _, side in ipairs { "inside", "outside" } do
   config.link(c, ("%s.output -> firewall.%s"):format(side, side))
   config.link(c, ("firewall.%s -> %s.input"):format(side, side))
end
engine.configure(c)
engine.main({ duration = tonumber(arg.duration), report = { showapps = true } })

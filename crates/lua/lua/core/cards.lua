-- Network cards for Snabb programs that name them by PCI address: each is one of our ports.
--
--    eth0                     an interface of Linux               xdp:eth0
--    0000:01:00.0, 01:00.0    a card with an interface            xdp:INTERFACE
--    0000:01:00.0             a card without, bound to vfio-pci   dpdk:0000:01:00.0
--    dpdk:net_tap0, tap:t0    a port, named as in our programs    the same
--
-- Programs ask lib.hardware.pci for the module that drives a card, and make an app of its `driver`; or they name the
-- module themselves. Snabb's drivers need physical addresses of packets, which brickmoon does not have. So here
-- device_info() accepts the names above, and the classes of driver modules create ports (core.quirks installs both).
-- Other arguments of such an app, such as queues or MAC addresses to filter by, have no effect: a port receives
-- everything that its interface gets.

local sys = require("brickmoon.sys")

local M = { driver = "apps.intel_mp.intel_mp" }

-- Where Linux describes cards and interfaces. Tests use directories of their own.
M.cards, M.interfaces = "/sys/bus/pci/devices/", "/sys/class/net/"

local function first_line (path)
   local file = io.open(path)
   local line = file and file:read("*l")
   if file then file:close() end
   return line
end

-- The address as Linux writes it, or nil if the name is not an address.
local function address (name)
   if name:match("^%x%x%x%x:%x%x:%x%x%.%x$") then return name:lower() end
   return name:match("^%x%x:%x%x%.%x$") and "0000:"..name:lower() or nil
end

-- The class of the port for a name, and its interface, if it has one; or nil and the reason.
function M.port (name)
   name = tostring(name)
   if name:match("^%l[%l%d]*:[^:]") and not address(name) then return name, name:match("^xdp:(.*)") end
   if sys.exists(M.interfaces..name) then return "xdp:"..name, name end
   local card = address(name)
   if not card then return nil, name.." is not a network interface, a PCI address, or a port such as dpdk:DEVICE" end
   if not sys.exists(M.cards..card) then return nil, "there is no PCI device "..card end
   local interface = (sys.names(M.cards..card.."/net") or {})[1]
   if interface then return "xdp:"..interface, interface end
   return "dpdk:"..card
end

-- What lib.hardware.pci returns about a card: see device_info() there.
function M.info (name)
   local port, interface = M.port(name)
   if not port then error("No such device: "..interface, 2) end
   local folder = M.cards..(address(name) or "")
   return {
      pciaddress = name, port = port, interface = interface, driver = M.driver, rx = "input", tx = "output",
      vendor = address(name) and first_line(folder.."/vendor"), device = address(name) and first_line(folder.."/device"),
      model = port, status = interface and first_line(M.interfaces..interface.."/operstate"), usable = "yes",
   }
end

-- All interfaces but the loopback, and all network cards (class 0x02....) that have no interface.
local function all ()
   local list = {}
   for _, name in ipairs(sys.names(M.interfaces) or {}) do
      if name ~= "lo" and sys.exists(M.interfaces..name.."/ifindex") then list[#list + 1] = M.info(name) end
   end
   for _, card in ipairs(sys.names(M.cards) or {}) do
      local kind = first_line(M.cards..card.."/class") or ""
      if kind:match("^0x02") and not sys.exists(M.cards..card.."/net") then list[#list + 1] = M.info(card) end
   end
   return list
end

-- Makes lib.hardware.pci accept the names of ports.
function M.patch_pci (pci)
   if type(pci) ~= "table" or type(rawget(pci, "device_info")) ~= "function" then return end
   local canonical, qualified = pci.canonical, pci.qualified
   pci.device_info = M.info
   function pci.scan_devices () for _, info in ipairs(all()) do table.insert(pci.devices, info) end end
   function pci.canonical (name) return address(name) and canonical(name) or name end
   function pci.qualified (name) return address(name) and qualified(name) or name end
end

-- A port has a NUMA node only if it is a card.
function M.patch_numa (numa)
   local of_card = type(numa) == "table" and rawget(numa, "pci_get_numa_node")
   if type(of_card) ~= "function" then return end
   function numa.pci_get_numa_node (name)
      return address(name) and sys.exists(M.cards..address(name).."/numa_node") and of_card(name) or nil
   end
end

-- Makes the classes of a driver module create ports.
function M.patch_driver (module, names)
   for _, name in ipairs(names) do
      local class = type(module) == "table" and rawget(module, name)
      if type(class) == "table" then
         function class:new (conf)
            local card = type(conf) == "table" and (conf.pciaddr or conf.pciaddress) or conf
            local port, why = M.port(card)
            if not port then error(why, 0) end
            return require("core.native").class(port):new(nil, port)
         end
      end
   end
end

local function test_names (root)
   for _, path in ipairs { "net/eth7", "net/lo", "pci/0000:01:00.0/net/eth7", "pci/0000:02:00.1" } do
      sys.mkdirs(root..path)
   end
   for path, text in pairs { ["net/eth7/ifindex"] = 7, ["net/lo/ifindex"] = 1, ["net/eth7/operstate"] = "up",
                             ["pci/0000:02:00.1/class"] = "0x020000", ["pci/0000:02:00.1/vendor"] = "0x8086" } do
      local file = io.open(root..path, "w")
      file:write(text, "\n")
      file:close()
   end
   for name, port in pairs {
      ["eth7"] = "xdp:eth7", ["01:00.0"] = "xdp:eth7", ["0000:01:00.0"] = "xdp:eth7", ["0000:02:00.1"] = "dpdk:0000:02:00.1",
      ["dpdk:net_tap0"] = "dpdk:net_tap0", ["tap:t0"] = "tap:t0", ["dpdk:0000:09:00.0"] = "dpdk:0000:09:00.0",
   } do
      assert(M.port(name) == port, name.." gives "..tostring(M.port(name)))
   end
   assert(select(2, M.port("eth8")):match("not a network interface") and select(2, M.port("0000:09:00.0")):match("no PCI device"))
end

local function test_pci ()
   local pci = { devices = {}, device_info = function () end }
   function pci.canonical (name) return "canonical "..name end
   function pci.qualified (name) return "qualified "..name end
   M.patch_pci(pci)
   pci.scan_devices()
   assert(#pci.devices == 2 and pci.devices[1].port == "xdp:eth7" and pci.devices[1].status == "up")
   assert(pci.devices[2].port == "dpdk:0000:02:00.1" and pci.devices[2].vendor == "0x8086")
   assert(pci.qualified("eth7") == "eth7" and pci.qualified("01:00.0") == "qualified 01:00.0")
   assert(pci.canonical("01:00.0") == "canonical 01:00.0" and pci.device_info("eth7").usable == "yes")
   assert(not pcall(pci.device_info, "eth8"))
   local numa = { pci_get_numa_node = function () return 1 end }
   M.patch_numa(numa)
   assert(numa.pci_get_numa_node("eth7") == nil and numa.pci_get_numa_node("01:00.0") == nil)
end

function M.selftest ()
   local cards, interfaces, root = M.cards, M.interfaces, os.tmpname()
   os.remove(root)
   M.cards, M.interfaces = root.."/pci/", root.."/net/"
   local fine, why = pcall(function () test_names(root.."/") test_pci() end)
   sys.remove(root)
   M.cards, M.interfaces = cards, interfaces
   assert(fine, why)
   local module = { driver = {} }
   M.patch_driver(module, { "driver", "Other" })
   fine, why = pcall(module.driver.new, module.driver, { pciaddr = "no such card" })
   assert(not fine and why:match("no such card is not a network interface"), why)
end

return M

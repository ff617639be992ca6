-- Many cores: a network spread over workers, each a thread with its own Lua state and engine.
--
--    engine.configure(c, { workers = N })           every worker runs the whole network and has its own queue of a port
--    brickmoon run --workers N                      the same for programs that do not set a number
--    config.app(c, "b", B, arg, { core = K })       the app runs on core K, all others in the first worker
--
-- A link between two workers becomes a ring, with an app in Rust at each end. This file holds both sides: that of the
-- first worker (`lead`), and what the others do on request (`remote`).

local startup = require("core.startup")
local runtime = require("core.runtime")
local config = require("core.config")
local codec = require("core.codec")
local link = require("core.link")

local bridge, shared = runtime.bridge, runtime.shared

local M = { total = 1, remote = {} }

-- Cores of the workers other than the first, by number; `false` if a worker may run anywhere.
local cores = {}

-- The worker that runs on a core; a new one if there is none.
local function worker_on (core)
   if core == nil then return 0 end
   for number, other in pairs(cores) do
      if other == core then return number end
   end
   cores[#cores + 1] = core
   return #cores
end

-- Adds an app without checking its argument against a schema.
local function ring_app (to, class, spec)
   local name = ("%s_%s"):format(class == "ring>" and "to" or "from", spec:gsub("[^%w]", "_"))
   to.apps[name] = { class = require("core.native").class(class..spec) }
   return name
end

-- The networks of all workers, by number, for a network that is spread over cores.
local function lay_out (new)
   local parts = { [0] = config.new() }
   local of = {}
   local names = {}
   for name in pairs(new.apps) do names[#names + 1] = name end
   table.sort(names)
   for _, name in ipairs(names) do
      local number = worker_on(new.apps[name].core)
      of[name] = number
      parts[number] = parts[number] or config.new()
      parts[number].apps[name] = new.apps[name]
   end
   for spec in pairs(new.links) do
      local from, output, to, input = config.parse_link(spec)
      local a, b = of[from], of[to]
      if not (a and b) then error(("no such app: %s (in link %s)"):format(a and to or from, spec), 0) end
      if a == b then
         parts[a].links[spec] = true
      else
         local exit, entry = ring_app(parts[a], "ring>", spec), ring_app(parts[b], "ring<", spec)
         parts[a].links[config.format_link(from, output, exit, "input")] = true
         parts[b].links[config.format_link(entry, "output", to, input)] = true
      end
   end
   return parts
end

-- Encodes each app of a network as bytes; an error names the app that cannot be sent.
local function encoded (network)
   for name, info in pairs(network.apps) do
      codec.encode(info.class.in_rust or info.class, "app "..name)
      codec.encode(info.arg, "app "..name..": argument")
   end
   local apps = {}
   for name, info in pairs(network.apps) do
      apps[name] = { rust = info.class.in_rust, class = not info.class.in_rust and info.class or nil, arg = info.arg }
   end
   return codec.encode({ apps = apps, links = network.links, total = M.total })
end

local function tell (number, name, bytes)
   return bridge.call_worker(number, cores[number] or nil, name, bytes or "")
end

-- Checks that every app can run on several workers at once; an error names the first that cannot.
local function check_replicas (new, count)
   local names = {}
   for name in pairs(new.apps) do names[#names + 1] = name end
   table.sort(names)
   for _, name in ipairs(names) do
      local info = new.apps[name]
      local why = info.class.one_worker
      if info.core then why = "the program puts it on core "..info.core end
      if why then
         error(("app %s cannot run on %d workers: %s; run it on one (--workers 1)"):format(name, count, why), 0)
      end
   end
end

-- Spreads `new` over workers, and returns the part of the first one. The whole network is replicated on
-- `options.workers` workers, or else the number of `brickmoon run --workers N`. A class with `one_worker` cannot be
-- replicated; the field says why.
function M.spread (new, options)
   local count = options and options.workers or startup.workers or 1
   if type(count) ~= "number" or count < 1 or count % 1 ~= 0 then
      error("engine.configure: `workers` must be a number of 1 or more", 0)
   end
   local parts
   if count > 1 then
      check_replicas(new, count)
      parts = {}
      for number = 0, count - 1 do parts[number] = new end
      for number = 1, count - 1 do
         if cores[number] == nil then cores[number] = options and options.cores and options.cores[number + 1] or false end
      end
   else
      parts = lay_out(new)
   end
   M.total = count > 1 and count or 1
   -- Existing workers without a part in the new network stop their apps.
   for number = 1, #cores do tell(number, "configure", encoded(parts[number] or config.new())) end
   return parts[0]
end

function M.any () return #cores > 0 end

-- Runs the other workers while f runs. Their errors, and f's, are raised after all have stopped.
function M.run_while (f)
   if #cores == 0 then return f() end
   bridge.run_workers()
   local fine, why = xpcall(f, function (why)
      return type(why) == "string" and debug.traceback(why, 2) or why
   end)
   local paused, other = pcall(bridge.pause_workers)
   if not fine then error(why, 0) end
   if not paused then error(tostring(other):gsub("\nstack traceback:.*$", ""), 0) end
end

-- Whether another worker has failed.
function M.trouble () return shared.trouble[0] ~= 0 end

-- What function `name` returns on each other worker, by number.
function M.ask (name, argument)
   local answers = {}
   for number = 1, #cores do
      answers[number] = codec.decode(tell(number, name, codec.encode(argument)))
   end
   return answers
end

-- The link counters of this worker.
local function own_links ()
   local all = {}
   for spec, l in pairs(require("core.app").link_table) do all[spec] = link.stats(l) end
   return all
end

-- The link counters, summed over all workers.
function M.link_stats ()
   local sums = own_links()
   for _, links in pairs(M.ask("links")) do
      for spec, stats in pairs(links) do
         local sum = sums[spec]
         if not sum then
            sums[spec] = stats
         else
            for _, field in ipairs { "txbytes", "rxbytes", "txpackets", "rxpackets", "txdrop" } do
               sum[field] = sum[field] + stats[field]
            end
         end
      end
   end
   return sums
end

-- What other workers do on request of the first one. Each function takes bytes and returns bytes.

function M.remote.configure (bytes)
   local asked, new = codec.decode(bytes), config.new()
   M.total = asked.total
   for name, app in pairs(asked.apps) do
      local class = app.rust and require("core.native").class(app.rust) or app.class
      new.apps[name] = { class = M.settled(name, class), arg = app.arg }
   end
   new.links = asked.links
   require("core.app").configure_here(new)
   return ""
end

-- Each message creates its classes anew. A class whose code has not changed is replaced by the existing one.
local before = {}
function M.settled (name, class)
   if class.in_rust then return class end
   local code = codec.encode(class)
   local was = before[name]
   if was and was.code == code then return was.class end
   before[name] = { code = code, class = class }
   return class
end

function M.remote.run ()
   require("core.app").main {
      done = function () return shared.pause[0] ~= 0 end, no_report = true, measure_latency = false,
   }
   return ""
end

-- Prints to the streams that all workers share, while the first one waits.
function M.remote.report_apps ()
   require("core.app").report_apps_here()
   return codec.encode(true)
end

function M.remote.links ()
   return codec.encode(own_links())
end

return M

-- The packet account of each app: received + allocated = sent + freed + held.
--
-- What an app allocates and frees shows in the worker's freelist before and after each call of the app (core.breath);
-- what it receives and sends shows in its links. The difference is what the app holds: packets that it keeps on
-- purpose, or packets that it forgot. An app that still holds packets after it was stopped has lost them, and is
-- reported.

local ffi = require("ffi")
local link = require("core.link")

require("core.breath")
local account_t = ffi.typeof("struct brickmoon_account")

local M = { complain = function (text) io.stderr:write("brickmoon: ", text, "\n") end }

-- For each app: packets allocated and freed, and packets of links from before they were the app's, or after they were
-- removed.
local accounts = setmetatable({}, { __mode = "k" })

function M.new ()
   return account_t()
end

function M.open (app, sum)
   accounts[app] = { sum = sum, base = 0, app = app }
end

function M.of (app)
   return accounts[app].sum
end

-- The number of packets that an app took from a link or put into it.
local function through (side, l)
   if side == "input" then return tonumber(l.txpackets) - link.nreadable(l) end
   return -tonumber(l.txpackets)
end

function M.linked (app, side, l)
   accounts[app].base = accounts[app].base - through(side, l)
end

function M.unlinked (app, side, l)
   accounts[app].base = accounts[app].base + through(side, l)
end

-- The balance of an app over its whole life. Packets that a ring brings from another worker are counted by core.breath.
local function balance (app)
   local account = accounts[app]
   local left = tonumber(app.ring and account.sum.brought or account.sum.net) + account.base
   if account.closed then return left end
   for _, side in ipairs { "input", "output" } do
      for key, l in pairs(app[side]) do
         if type(key) == "string" then left = left + through(side, l) end
      end
   end
   return left
end

-- The number of packets that an app holds. A negative number means that it freed or sent more than it had.
function M.held (app)
   -- Apps outside this network have accounts of their own, and what goes into a ring comes out in another worker.
   if app.outer or app.ring then return 0 end
   return balance(app)
end

-- Every { writer, reader } of a link between two apps that have an account here.
local function neighbors (app_table)
   local readers, list = {}, {}
   for _, app in pairs(app_table) do
      for key, l in pairs(app.input) do
         if type(key) == "string" then readers[tonumber(ffi.cast("intptr_t", l))] = app end
      end
   end
   for _, writer in pairs(app_table) do
      for key, l in pairs(writer.output) do
         local reader = type(key) == "string" and readers[tonumber(ffi.cast("intptr_t", l))]
         if reader and reader ~= writer and not writer.outer then list[#list + 1] = { writer, reader } end
      end
   end
   return list
end

local function settle_between (writer, reader)
   local back = math.min(-balance(writer), M.held(reader))
   if back > 0 then
      accounts[writer].base = accounts[writer].base + back
      accounts[reader].base = accounts[reader].base - back
   end
end

-- The neighbors when accounts were settled last, and the apps stopped since.
local known, stopped = {}, {}

-- An app may put packets back into its own input, as Snabb's IPFIX exporter does to look at them twice. A link cannot
-- tell them from those that its writer sends. So if the writer sent more than it had, and the reader lacks as many,
-- then the reader put them there. Call this before reading accounts.
function M.settle (app_table)
   known = neighbors(app_table)
   for _, pair in ipairs(known) do settle_between(pair[1], pair[2]) end
end

-- Called after the app was stopped and its links were removed. M.finish checks its account.
function M.close (app)
   accounts[app].closed = true
   stopped[#stopped + 1] = app
end

-- Called after all apps that had to stop were stopped: reports those that have lost packets. Settles once more, since
-- packets that a writer kept until it was stopped can hide that its reader put as many back.
function M.finish ()
   for _, pair in ipairs(known) do
      if accounts[pair[1]] and accounts[pair[2]] then settle_between(pair[1], pair[2]) end
   end
   for _, app in ipairs(stopped) do
      local held = M.held(app)
      if held > 0 then
         M.complain(("app %s has lost %d packets: it received or allocated them, but neither sent nor freed them")
                    :format(app.appname, held))
      elseif held < 0 then
         M.complain(("app %s has freed or sent %d packets more than it had"):format(app.appname, -held))
      end
      accounts[app] = nil
   end
   known, stopped = {}, {}
end

-- Which apps hold the most packets, for the message that no free packets are left.
function M.explain (app_table)
   M.settle(app_table)
   local list = {}
   for name, app in pairs(app_table) do
      local held = M.held(app)
      if held ~= 0 then list[#list + 1] = { held, name } end
   end
   table.sort(list, function (a, b) return a[1] > b[1] end)
   local words = {}
   for i = 1, math.min(3, #list) do words[i] = ("app %s holds %d"):format(list[i][2], list[i][1]) end
   return #words > 0 and ": "..table.concat(words, ", ") or ""
end

return M

-- The closed account of each app: received + allocated = sent + freed + held.
--
-- What an app allocates and frees shows in the worker's list of free packets, before and after each call of the app
-- (core.breath); what it receives and sends, in its links. The difference is what it holds: a store of packets, or
-- packets that it forgot. An app that still holds some when it has been stopped has lost them, and is named.

local ffi = require("ffi")
local link = require("core.link")

require("core.breath")
local account_t = ffi.typeof("struct brickmoon_account")

local M = { complain = function (text) io.stderr:write("brickmoon: ", text, "\n") end }

-- By app: what it took and gave outside of links, and what went through links before they were its own, or since
-- they are no more.
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

-- Packets that an app took out of a link, or put in.
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

-- What an app took and gave, all in all. What a ring brings comes out of another worker: its breath counts that.
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

-- Packets that an app holds: below zero it freed or sent more than it had.
function M.held (app)
   -- What is outside keeps an account of its own, and what a ring takes in comes out in another worker.
   if app.outer or app.ring then return 0 end
   return balance(app)
end

-- Every { writer, reader } of a link between two apps whose accounts are ours.
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

-- The neighbors when accounts were last settled, and the apps stopped since.
local known, stopped = {}, {}

-- An app may put packets back into its own input, as Snabb's IPFIX exporter does to look at them twice. A link cannot
-- tell that from what its writer sends: so what the writer sent beyond what it had, and the reader lacks, was put
-- there by the reader. To be called before accounts are read.
function M.settle (app_table)
   known = neighbors(app_table)
   for _, pair in ipairs(known) do settle_between(pair[1], pair[2]) end
end

-- After the app was stopped and its links were removed. Its account is checked in M.finish.
function M.close (app)
   accounts[app].closed = true
   stopped[#stopped + 1] = app
end

-- After all that were to be stopped have been: names those that have lost packets. What a writer kept until it was
-- stopped hid that its reader had put as many back, so they settle once more.
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

-- Who holds most, for the message that no packets are left.
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

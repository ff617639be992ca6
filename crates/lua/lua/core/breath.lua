-- Generated code for one breath of a network: pull all, then push all, each step a separate function.
--
-- LuaJIT keeps traces with the code of a function. Were the loop of one push() shared by all apps of a class, the
-- traces of the second app would hang on the exits of the first one's. So each app gets a copy of its methods, with
-- the same upvalues, and each step a copy of the lines that call it.

local ffi = require("ffi")
local runtime = require("core.runtime")

ffi.cdef[[
struct brickmoon_state { int32_t step, pad; int64_t out; };
struct brickmoon_account { int64_t net, brought; };
]]

local M = {}

-- Which step is at work, and how many packets were out when it began.
local state = ffi.new("struct brickmoon_state")

-- A copy of a Lua function: the same upvalues and environment, traces of its own. What cannot be copied, such as a
-- function of C, is used as it is.
local function own (f)
   local fine, code = pcall(string.dump, f)
   local copy = fine and load(code, nil, "b")
   if not copy then return f end
   setfenv(copy, getfenv(f))
   local i = 1
   while debug.getupvalue(f, i) do
      debug.upvaluejoin(copy, i, f, i)
      i = i + 1
   end
   return copy
end
M.own = own

local STEP = [[
local state, freelist, account, index, app, method, link = ...
return function ()
   state.step = index
   %s
   local out = freelist.traded - freelist.held
   account.net = account.net + (out - state.out)
   state.out = out
end
]]

-- A method that the app replaces while it runs is the one to call.
local PULL = [[
local now = app.pull
   if now == link then method(app) else now(app) end
]]

-- What was received from a ring, without what its link's reader may put back.
local BRING = [[
local l = app.output.output
   local before = l.txpackets
   method(link)
   account.brought = account.brought + (l.txpackets - before)
]]

local function step (code, name, ...)
   return assert(load(STEP:format(code), "=(breath of "..name..")"))(state, runtime.freelist, ...)
end

-- One function that calls all of `list`, by groups: a function has no more than 60 upvalues.
local function chain (list)
   while #list > 1 do
      local groups = {}
      for first = 1, #list, 50 do
         local names, calls = {}, {}
         local last = math.min(first + 49, #list)
         for i = first, last do
            names[#names + 1] = "s"..i
            calls[#calls + 1] = "s"..i.."()"
         end
         local text = ("local %s = ... return function () %s end"):format(
            table.concat(names, ","), table.concat(calls, " "))
         groups[#groups + 1] = assert(load(text, "=(breath)"))(unpack(list, first, last))
      end
      list = groups
   end
   return list[1] or function () end
end

-- The breath of a network. `names` gets the app of each step, `account_of` gives an app's account.
function M.compile (pulls, pushes, account_of)
   local list, names, accounts = {}, {}, {}
   local function add (app, code, method, extra)
      names[#names + 1], accounts[#accounts + 1] = app.appname, account_of(app)
      list[#list + 1] = step(code, app.appname, accounts[#names], #names, app, method, extra)
   end
   for _, app in ipairs(pulls) do
      if app.native then
         add(app, app.ring and app.output.output and BRING or "method(link)", runtime.shared.pull, app.native)
      else
         add(app, PULL, own(app.pull), app.pull)
      end
   end
   for _, spec in ipairs(pushes) do
      if spec.app.native then
         add(spec.app, "method(link)", runtime.shared.push, spec.app.native)
      else
         add(spec.app, "method(app, link)", own(spec.push), spec.link)
      end
   end
   M.names, M.accounts = names, accounts
   local freelist = runtime.freelist
   local all = chain(list)
   return function ()
      state.out = freelist.traded - freelist.held
      -- An error ends a call before it can say so.
      M.charged = nil
      all()
      state.step = 0
   end
end

-- The app that is at work, or nil.
function M.current ()
   return M.names and M.names[state.step]
end

-- Calls f(...) for an app outside of a breath, and keeps its account.
function M.charge (account, f, ...)
   local freelist, outer = runtime.freelist, M.charged
   local before = freelist.traded - freelist.held
   M.charged = account
   local result = f(...)
   M.charged = outer
   account.net = account.net + (freelist.traded - freelist.held - before)
   return result
end

-- The account of the app at work, in a breath or outside of it, or nil.
function M.account_at_work ()
   return M.charged or M.accounts and M.accounts[state.step]
end

return M

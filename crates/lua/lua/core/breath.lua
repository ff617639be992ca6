-- Generates the code of one breath of a network: pull all apps, then push all. Each step is a separate function.
--
-- LuaJIT attaches traces to the code of a function. If all apps of a class shared the loop of one push(), the traces
-- of the second app would be side traces of the first one's. So each app gets a copy of its methods, with the same
-- upvalues, and each step gets a copy of the lines that call them.

local ffi = require("ffi")
local runtime = require("core.runtime")

ffi.cdef[[
struct brickmoon_state { int32_t step, pad; int64_t out; };
struct brickmoon_account { int64_t net, brought; };
]]

local M = {}

-- The step that is running, and how many packets were in use when it began.
local state = ffi.new("struct brickmoon_state")

-- A copy of a Lua function with the same upvalues and environment, but its own traces. A function that cannot be
-- copied, such as one written in C, is used as it is.
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

-- Looks the method up in each breath, since an app may replace it at run time.
local PULL = [[
local now = app.pull
   if now == link then method(app) else now(app) end
]]

-- Counts what was received from a ring, without packets that the link's reader may put back.
local BRING = [[
local l = app.output.output
   local before = l.txpackets
   method(link)
   account.brought = account.brought + (l.txpackets - before)
]]

local function step (code, name, ...)
   return assert(load(STEP:format(code), "=(breath of "..name..")"))(state, runtime.freelist, ...)
end

-- One function that calls all functions of `list`, in groups: a function can have at most 60 upvalues.
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

-- Compiles the breath of a network. `names` receives the app of each step, `account_of` returns an app's account.
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
      -- If a call outside of a breath raised an error, this is still set.
      M.charged = nil
      all()
      state.step = 0
   end
end

-- The app that is running, or nil.
function M.current ()
   return M.names and M.names[state.step]
end

-- Calls f(...) for an app outside of a breath, and counts packets on the app's account.
function M.charge (account, f, ...)
   local freelist, outer = runtime.freelist, M.charged
   local before = freelist.traded - freelist.held
   M.charged = account
   local result = f(...)
   M.charged = outer
   account.net = account.net + (freelist.traded - freelist.held - before)
   return result
end

-- The account of the running app, in a breath or outside of it, or nil.
function M.account_at_work ()
   return M.charged or M.accounts and M.accounts[state.step]
end

return M

-- The order in which apps are pulled and pushed, given by the links between them.
--
-- Pushing follows the links: the app that writes to a link comes before the app that reads it. Links filled by pulling
-- come first, then those behind them; a loop is cut where it is first met. An app whose input links are not adjacent in
-- this order is pushed more than once in a breath.

local M = {}

local function by (names)
   return function (a, b) return names[a] < names[b] end
end

-- The input links of all apps, with the reader of each: { link -> { app, push, link } }, and their names.
local function takers (app_table)
   local inputs, names = {}, {}
   for appname, app in pairs(app_table) do
      for name, link in pairs(app.input) do
         if type(name) == "string" then
            local push = app.push_link and app.push_link[name] or app.push
            inputs[link], names[link] = { app = app, push = push, link = link }, appname.."."..name
         end
      end
   end
   return inputs, names
end

-- The named links of a table of links, in the order of `names`.
local function sorted (links, inputs, names)
   local list = {}
   for name, link in pairs(links) do
      if type(name) == "string" and inputs[link] then list[#list + 1] = link end
   end
   table.sort(list, by(names))
   return list
end

-- Sorts links topologically: the reverse of the order in which a depth-first walk leaves them.
local function walk (starts, follow)
   local seen, left = {}, {}
   local function visit (link)
      seen[link] = true
      for _, after in ipairs(follow(link)) do
         if not seen[after] then visit(after) end
      end
      left[#left + 1] = link
   end
   for _, link in ipairs(starts) do
      if not seen[link] then visit(link) end
   end
   local order = {}
   for i = #left, 1, -1 do order[#order + 1] = left[i] end
   return order
end

-- Apps to pull; { app, push, link } to push; apps to tick; each list in order.
function M.compute (app_table)
   local inputs, names = takers(app_table)
   local pulls, ticks, appnames = {}, {}, {}
   for name, app in pairs(app_table) do
      appnames[app] = name
      if app.pull then pulls[#pulls + 1] = app end
      if app.tick then ticks[#ticks + 1] = app end
   end
   table.sort(pulls, by(appnames))
   table.sort(ticks, by(appnames))
   -- Links are cdata: equal pointers are different keys, so the keys are the objects in `input` themselves.
   local starts, all = {}, {}
   for _, app in ipairs(pulls) do
      for _, link in ipairs(sorted(app.output, inputs, names)) do starts[#starts + 1] = link end
   end
   table.sort(starts, by(names))
   for link in pairs(inputs) do all[#all + 1] = link end
   table.sort(all, by(names))
   for _, link in ipairs(all) do starts[#starts + 1] = link end
   local function follow (link)
      local app = inputs[link].app
      return app.pull and {} or sorted(app.output, inputs, names)
   end
   local pushes = {}
   for _, link in ipairs(walk(starts, follow)) do
      local spec, last = inputs[link], pushes[#pushes]
      if spec.push and not (last and last.app == spec.app and last.push == spec.push) then
         pushes[#pushes + 1] = spec
      end
   end
   return pulls, pushes, ticks
end

return M

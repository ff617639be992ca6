-- Command line options as in getopt_long: `-v`, `-ofile`, `-o file`, `-vq`, `--out=file`, `--out file`. `--`, a lone
-- `-` or the first argument that is no option ends them.
--
-- Short options are one string, with a colon after those that take a value ("vo:"). Long ones are a table: 0 for no
-- value, 1 for a value, or a string: the option that the name is an alias for. Wrong usage prints an error on stderr
-- and ends the program with status 1.

local M = {}

local function fail (...)
   io.stderr:write(string.format(...), "\n")
   os.exit(1)
end

local function known_options (short, long)
   local known = {}
   for letter, colon in short:gmatch("(%w)(:?)") do known[letter] = #colon end
   for name, takes in pairs(long or {}) do known[name] = takes end
   return known
end

local function canonical (known, name)
   local written = name
   while type(known[name]) == "string" do name = known[name] end
   if known[name] == nil then
      fail("Unknown option `%s%s'", #written > 1 and "--" or "-", written)
   end
   return name, known[name] ~= 0
end

local function long_option (known, args, at, add)
   local name, value = args[at]:match("^%-%-([^=]*)=(.*)$")
   local option, takes = canonical(known, name or args[at]:sub(3))
   if value and not takes then fail("Bad usage of option `%s': it takes no value", args[at]) end
   if takes and not value then
      at = at + 1
      value = args[at] or fail("Missed value for option `--%s'", option)
   end
   add(option, value)
   return at + 1
end

local function short_options (known, args, at, add)
   local letters = args[at]
   for i = 2, #letters do
      local option, takes = canonical(known, letters:sub(i, i))
      if takes and i < #letters then
         add(option, letters:sub(i + 1))
         return at + 1
      elseif takes then
         add(option, args[at + 1] or fail("Missed value for option `-%s'", option))
         return at + 2
      end
      add(option)
   end
   return at + 1
end

-- Returns the options in order, the index of the first remaining argument, and the values by position.
function M.get_ordered_opts (args, short, long)
   local known, names, values, count, at = known_options(short, long), {}, {}, 0, 1
   local function add (name, value)
      count = count + 1
      names[count], values[count] = name, value
   end
   while at <= #args do
      local word = args[at]
      if word == "--" then
         at = at + 1
         break
      elseif word == "-" or word:sub(1, 1) ~= "-" then
         break
      end
      at = (word:sub(1, 2) == "--" and long_option or short_options)(known, args, at, add)
   end
   return names, at, values
end

-- The same as a table from name to value; the value is 1 for options without one.
function M.get_opts (args, short, long)
   local names, at, values = M.get_ordered_opts(args, short, long)
   local found = {}
   for i, name in ipairs(names) do found[name] = values[i] or 1 end
   return found, at
end

function M.selftest ()
   local args = { "-vq", "-ofile", "--out", "x", "--out=y=z", "--verbose", "-o", "w", "rest", "-v" }
   local names, at, values = M.get_ordered_opts(args, "vqo:", { out = "o", verbose = "v" })
   assert(table.concat(names, " ") == "v q o o o v o")
   assert(values[3] == "file" and values[4] == "x" and values[5] == "y=z" and values[7] == "w")
   assert(values[1] == nil and args[at] == "rest")
   local found, rest = M.get_opts({ "-v", "--", "-q" }, "vq", {})
   assert(found.v == 1 and not found.q and rest == 3)
end

return M

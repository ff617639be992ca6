-- A log of events with TSC time stamps, in a ring in shared memory: what a program does, breath by breath.
--
--    SNABB_TIMELINE_ENABLE=1 brickmoon snabb PROGRAM       logs to ROOT/PID/events.timeline
--    brickmoon snabb timeline PID                          prints it (program.timeline)
--
-- The file has Snabb's layout (version 3): a header of 64 bytes, a ring of 64-byte entries, a string table. Events are
-- declared in a text, one paragraph each: `level,rate|name: arguments`, and a description. The engine draws a rate for
-- each breath; an event is logged if its own rate is at least that, so that frequent events are logged less often.
-- Without the environment variable no file is created, and logging an event is a call of an empty function.

local ffi = require("ffi")
local shm = require("core.shm")

ffi.cdef [[
struct timeline_header {
   uint64_t magic;
   uint16_t major_version, minor_version;
   uint32_t log_bytes, strings_bytes;
   uint8_t reserved[44];
};
struct timeline_entry {
   double tsc;
   uint16_t msgid;     // place of the text in the table, in units of 16 bytes
   uint16_t core_numa; // core in the low 8 bits, node in the high 4
   uint32_t reserved;
   double arg0, arg1, arg2, arg3, arg4, arg5;
};
struct timeline_state {
   struct timeline_entry *entries;
   uint32_t rate, next_entry, num_entries;
   char *stringtable;
   int stringtable_size, next_string;
};
void bm_timeline_log(struct timeline_state *, uint32_t rate, uint16_t message, double, double, double, double, double,
                     double);
]]
local log = ffi.C.bm_timeline_log
local HEADER, ENTRY = ffi.sizeof("struct timeline_header"), ffi.sizeof("struct timeline_entry")
local MAGIC, NO_ROOM = 0xa3ff7223441d0001ULL, 0xffff

local asked = os.getenv("SNABB_TIMELINE_ENABLE")
local M = { enabled = asked ~= nil and asked ~= "" }

-- For each timeline, the offsets of strings in its table.
local places = setmetatable({}, { __mode = "k" })

-- Creates a timeline in shared memory; returns false if logging is off.
function M.new (path, entries, bytes_of_texts)
   if not M.enabled then return false end
   entries, bytes_of_texts = entries or 1e6, bytes_of_texts or 1e6
   local memory = shm.create(path, ffi.typeof("char[$]", HEADER + entries * ENTRY + bytes_of_texts))
   local header = ffi.cast("struct timeline_header *", memory)
   header.magic, header.major_version, header.minor_version = MAGIC, 3, 0
   header.log_bytes, header.strings_bytes = entries * ENTRY, bytes_of_texts
   local timeline = ffi.new("struct timeline_state")
   timeline.entries, timeline.num_entries = ffi.cast("struct timeline_entry *", memory + HEADER), entries
   timeline.stringtable, timeline.stringtable_size = memory + HEADER + entries * ENTRY, bytes_of_texts
   places[timeline] = {}
   return timeline
end

-- Sets the rate below which events are left out, if one is given. Returns the current one.
function M.rate (timeline, rate)
   if not timeline then return 1 / 0 end
   if rate then timeline.rate = rate end
   return timeline.rate
end

-- The string's number, which entries refer to. Strings that do not fit share one number without a text.
local function intern (timeline, text)
   local known = places[timeline]
   if known[text] then return known[text] end
   local at = timeline.next_string
   if at + #text + 1 > timeline.stringtable_size or at / 16 >= NO_ROOM then return NO_ROOM end
   ffi.copy(timeline.stringtable + at, text)
   timeline.next_string = math.ceil((at + #text + 1) / 16) * 16
   known[text] = at / 16
   return known[text]
end

local function nothing () end

local by_arguments = {
   [0] = function (t, rate, id) return function () log(t, rate, id, 0, 0, 0, 0, 0, 0) end end,
   function (t, rate, id) return function (a) log(t, rate, id, a, 0, 0, 0, 0, 0) end end,
   function (t, rate, id) return function (a, b) log(t, rate, id, a, b, 0, 0, 0, 0) end end,
   function (t, rate, id) return function (a, b, c) log(t, rate, id, a, b, c, 0, 0, 0) end end,
   function (t, rate, id) return function (a, b, c, d) log(t, rate, id, a, b, c, d, 0, 0) end end,
   function (t, rate, id) return function (a, b, c, d, e) log(t, rate, id, a, b, c, d, e, 0) end end,
   function (t, rate, id) return function (a, b, c, d, e, f) log(t, rate, id, a, b, c, d, e, f) end end,
}

-- Creates the function that logs one event from its declaration. `extra` holds attributes to add to its text.
function M.mkevent (timeline, category, declaration, extra)
   local level, rate, name, arguments, more = declaration:match("^(%d),(%d)|([%w_]+)([^:\n]*):?([^\n]*)")
   if not level or arguments ~= "" then
      error(("timeline: %q is not an event: expected level,rate|name: arguments"):format(declaration), 2)
   end
   local _, count = more:gsub("%S+", "")
   if count > 6 then error(("timeline: event %s has %d arguments, but at most 6 are possible"):format(name, count), 2) end
   if not timeline then return nothing end
   local text = ("%s,%s|%s.%s"):format(level, rate, category, name)
   for key, value in pairs(extra or {}) do text = ("%s %s=%s"):format(text, key, value) end
   text = text..":"..declaration:match("[^:\n]*:?(.*)")
   return by_arguments[count](timeline, tonumber(rate), intern(timeline, text))
end

-- The functions that log the events declared in a text, by name. They are called without self.
function M.load_events_from_string (timeline, declarations, category, extra)
   local events = {}
   for declaration in ("\n"..declarations):gsub("\n(%d,%d|)", "\n\a%1"):gmatch("\a([^\a]+)") do
      declaration = declaration:gsub("%s+$", "")
      events[declaration:match("|([%w_]+)") or ""] = M.mkevent(timeline, category, declaration, extra)
   end
   return events
end

-- The same for the events of a module, declared in the file X.events beside it.
function M.load_events (timeline, module, extra)
   return M.load_events_from_string(timeline, require(module.."_events"), module:match("[^.]+$"), extra)
end

-- The content of a timeline's file, ordered by time: { { tsc =, core =, event =, values = { ... } } ... }.
function M.read (path)
   local header = shm.open(path, "struct timeline_header", true)
   local magic, entries_bytes, strings_bytes = header.magic, header.log_bytes, header.strings_bytes
   local major = header.major_version
   shm.unmap(header)
   if magic ~= MAGIC or major ~= 3 then error(path.." is not a timeline of version 3", 2) end
   local memory = shm.open(path, ffi.typeof("char[$]", HEADER + entries_bytes + strings_bytes), true)
   local ring = ffi.cast("struct timeline_entry *", memory + HEADER)
   local texts = memory + HEADER + entries_bytes
   local list = {}
   for i = 0, entries_bytes / ENTRY - 1 do
      local e = ring[i]
      if e.tsc ~= 0 then
         local text = e.msgid ~= NO_ROOM and ffi.string(texts + e.msgid * 16) or "0,0|unknown:"
         list[#list + 1] = {
            tsc = e.tsc, core = e.core_numa % 256, event = text:match("|([^\n]*)"),
            values = { e.arg0, e.arg1, e.arg2, e.arg3, e.arg4, e.arg5 },
         }
      end
   end
   shm.unmap(memory)
   table.sort(list, function (a, b) return a.tsc < b.tsc end)
   return list
end

local DECLARED = [[
0,6|always:
An event without arguments.

0,5|three: a b c
An event with three. Lines such as 1: may
be in its description.

0,3|seldom: a
]]

local function logged (timeline)
   local events = M.load_events_from_string(timeline, DECLARED, "selftest", { app = "x" })
   M.rate(timeline, 4)
   events.always()
   events.three(1, 2.5, -3)
   events.seldom(7)
   return events
end

local function test_entries (timeline)
   local events = logged(timeline)
   assert(timeline.next_entry == 2 and M.rate(timeline) == 4)
   local list = M.read("selftest/timeline")
   assert(#list == 2 and list[1].tsc <= list[2].tsc)
   assert(list[1].event == "selftest.always app=x:" and list[2].event == "selftest.three app=x: a b c")
   assert(list[2].values[2] == 2.5 and list[2].values[3] == -3 and list[2].values[4] == 0)
   for _ = 1, 20 do events.three(9, 9, 9) end
   list = M.read("selftest/timeline")
   assert(#list == 16 and list[16].values[1] == 9 and timeline.next_entry == 22 - 16)
end

local function test_texts (timeline)
   for i = 1, 100 do M.mkevent(timeline, "selftest", "0,9|full:", { i = i })() end
   local list = M.read("selftest/timeline")
   assert(list[16].event == "unknown:" and timeline.next_string <= 512)
   assert(not pcall(M.mkevent, timeline, "x", "no event:") and not pcall(M.mkevent, timeline, "x", "1,1|a: b b b b b b b"))
end

function M.selftest ()
   local was = M.enabled
   M.enabled = false
   assert(M.new("selftest/none") == false and M.rate(false) == 1 / 0)
   assert(logged(false).always() == nil and not shm.exists("selftest/none"))
   M.enabled = true
   local timeline = M.new("selftest/timeline", 16, 512)
   test_entries(timeline)
   test_texts(timeline)
   shm.unlink("selftest")
   M.enabled = was
end

return M

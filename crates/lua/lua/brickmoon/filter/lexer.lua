-- Splits a filter into tokens: { kind, value, first, last } with columns counted from 1. Kinds: "number", "name" (a
-- keyword or a word such as http), "escaped" (\tcp), "mac", "ip6", "ip4" (or its first bytes: 10.1), "range" (80-90),
-- an operator, "end".

local M = {}

-- Raises an error that shows the position.
function M.fail (text, column, format, ...)
   local message = format:format(...)
   error(("filter, column %d: %s\n   %s\n   %s^"):format(column, message, text, (" "):rep(column - 1)), 0)
end

local operators = { "&&", "||", "!=", ">=", "<=", "==", "<<", ">>" }
for single in ("()[]:/+-*&|^%<>=!"):gmatch(".") do operators[#operators + 1] = single end

local pair = "%x%x?"
local mac_patterns = {}
for _, separator in ipairs { ":", "%-", "%." } do
   mac_patterns[#mac_patterns + 1] = "^"..pair..(separator..pair):rep(5)
end

local function match_mac (text, at)
   for _, pattern in ipairs(mac_patterns) do
      local word = text:match(pattern, at)
      if word and not text:match("^[%w:]", at + #word) then return "mac", word, word end
   end
end

-- An address has at least two colons; a size in brackets, as in ip[2:4], has one.
local function match_ip6 (text, at)
   local word = text:match("^[%x:]+[%x:%.]*", at)
   if word and select(2, word:gsub(":", "")) >= 2 then return "ip6", word, word end
end

local function match_number (text, at)
   local range = text:match("^%d+%-%d+", at)
   if range and not text:match("^[%w%.]", at + #range) then return "range", range, range end
   local dotted = text:match("^%d+%.[%d%.]*%d", at)
   if dotted then return "ip4", dotted, dotted end
   local word = text:match("^0[xX]%x+", at) or text:match("^%d+", at)
   if not word or text:match("^[%a_]", at + #word) then return nil end
   local octal = word:match("^0[0-7]+$")
   return "number", octal and tonumber(octal, 8) or tonumber(word), word
end

local function match_name (text, at)
   local escaped, word = text:match("^(\\?)([%w_][%w_%-%.]*)", at)
   if not word then return nil end
   word = word:gsub("[%-%.]+$", "")
   return escaped == "\\" and "escaped" or "name", word, escaped..word
end

local function match_operator (text, at)
   for _, operator in ipairs(operators) do
      if text:sub(at, at + #operator - 1) == operator then return operator, operator, operator end
   end
end

local matchers = { match_mac, match_ip6, match_number, match_name, match_operator }

-- Splits the text. The last token is of kind "end".
function M.split (text)
   local tokens, at = {}, 1
   while true do
      at = text:match("^%s*()", at)
      if at > #text then break end
      local kind, value, word
      for _, matcher in ipairs(matchers) do
         kind, value, word = matcher(text, at)
         if kind then break end
      end
      if not kind then M.fail(text, at, "'%s' is not part of the filter language", text:match("^%S+", at)) end
      tokens[#tokens + 1] = { kind = kind, value = value, word = word, first = at }
      at = at + #word
   end
   tokens[#tokens + 1] = { kind = "end", word = "end of text", first = #text + 1 }
   return tokens
end

return M

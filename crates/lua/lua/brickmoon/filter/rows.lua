-- `and`, `or` and `not`, for both compilers of filters (emit, bpf): they only decide where tests jump to.
--
-- An emitter has node(node, yes, no, following, known), label() and place(label). `following` is the label that comes
-- next in the code. `known` is how many bytes a frame has for certain; a node returns that for its yes path and for its
-- no path.

local M = {}

local function row (emitter, node, yes, no, following, known, is_and)
   local known_left = math.huge
   for i = 1, #node do
      local last = i == #node
      local after = last and following or emitter:label()
      local inner_yes, inner_no = yes, no
      if not last and is_and then inner_yes = after elseif not last then inner_no = after end
      local known_yes, known_no = emitter:node(node[i], inner_yes, inner_no, after, known)
      local going_on, leaving = known_yes, known_no
      if not is_and then going_on, leaving = known_no, known_yes end
      if not last then emitter:place(after) end
      known, known_left = going_on, math.min(known_left, leaving)
   end
   if is_and then return known, known_left end
   return known_left, known
end

M["and"] = function (emitter, node, yes, no, following, known)
   return row(emitter, node, yes, no, following, known, true)
end

M["or"] = function (emitter, node, yes, no, following, known)
   return row(emitter, node, yes, no, following, known, false)
end

M["not"] = function (emitter, node, yes, no, following, known)
   local known_yes, known_no = emitter:node(node[1], no, yes, following, known)
   return known_no, known_yes
end

return M

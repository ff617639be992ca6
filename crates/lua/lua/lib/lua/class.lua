-- subClass(parent): classes with inheritance and recycled instances, as lib.protocol uses them.
--
--    local Child = subClass(Parent)
--    function Child:new (x) local o = Child:superClass().new(self); o.x = x; return o end
--
-- Methods of the parent are called with a dot and the object. new() on a class takes an instance that free() has
-- returned, or creates one; new() on an instance returns that same instance, to be initialized again. `_recycled`
-- tells a constructor that fields of the instance's earlier use are still set.

local Base = { _name = "elementary class" }

function Base:new ()
   assert(self ~= Base, "the elementary class has no instances: use subClass()")
   if rawget(self, "_instance") then
      self._recycled = true
      return self
   end
   local spare = self._spare
   local instance = spare[#spare]
   if instance then
      spare[#spare] = nil
      instance._recycled = true
      return instance
   end
   return setmetatable({ _instance = true, _recycled = false }, { __index = self })
end

function Base:name ()
   return self._name
end

-- Returns the instance to its class.
function Base:free ()
   local spare = self:class()._spare
   spare[#spare + 1] = self
end

function subClass (parent)
   parent = parent or Base
   local class = setmetatable({ _spare = {} }, { __index = parent })
   function class:class () return class end
   function class:superClass () return parent end
   return class
end

return { subClass = subClass }

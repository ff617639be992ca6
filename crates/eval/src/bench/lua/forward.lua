-- The same packets go round through two apps that pass them on. Counted is each packet at each app.
local frames = ...

local Forward = {}
function Forward:new () return setmetatable({}, { __index = Forward }) end
function Forward:push ()
   local input, output = self.input.input, self.output.output
   for _ = 1, link.nreadable(input) do link.transmit(output, link.receive(input)) end
end

return require("brickmoon.bench").round(Forward, frames, ("x"):rep(60))

-- Nothing to declare: memory is managed in Lua. The module exists because other modules require it.

return {}

-- Nothing to declare: memory comes from Lua. The name is here because modules require it.

return {}

"""How pylog is packed: wheels for other Linuxes than this one, from this one."""

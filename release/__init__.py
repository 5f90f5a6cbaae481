"""Build the wheels of pylog, also for other Linux systems than this one."""

//! TAP ports, and the TAP twin of ports that the kernel does not know.

//! The kernel's tables by netlink: messages, dumps, events and the mirror of them.

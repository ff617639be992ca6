//! AF_XDP ports with their own steering program.

//! Benches, the demo, seeded tables and traffic.

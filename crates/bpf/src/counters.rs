//! Counters that a BPF program keeps for each interface, by name.

/// Defines the counters of a program: an array with their names, in the order of the program's `enum`, and a type with
/// their values.
///
/// ```
/// bm_bpf::counters! {
///     /// What happened to the frames of a port.
///     pub struct Counters of NAMES = ["forwarded", "linux_hops", "drop_short", "drop_vlan"];
/// }
/// assert_eq!(NAMES[2], "drop_short");
/// assert_eq!(Counters::default().drops().collect::<Vec<_>>(), [("short", 0), ("vlan", 0)]);
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* pub struct $counters:ident of $names:ident = [$($name:literal),+ $(,)?];) => {
        /// The names of the counters, in their order.
        pub const $names: [&str; [$($name),+].len()] = [$($name),+];

        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $counters([u64; $names.len()]);

        impl Default for $counters {
            fn default() -> Self {
                Self([0; $names.len()])
            }
        }

        #[allow(dead_code, reason = "not every program's counters are read in every way")]
        impl $counters {
            /// Reads the counters of one key of a map, summed over all CPUs; `None` if the map has no such key.
            pub(crate) fn read(map: &libbpf_rs::MapHandle, key: u32) -> libbpf_rs::Result<Option<Self>> {
                Ok($crate::sum_counters(map, &key.to_ne_bytes())?.map(Self))
            }

            /// All counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                $names.into_iter().zip(self.0)
            }

            /// The counters whose names begin with `prefix`, named without it.
            pub fn with_prefix(&self, prefix: &'static str) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                self.named().filter_map(move |(name, count)| Some((name.strip_prefix(prefix)?, count)))
            }

            /// A counter by its name; 0 if there is none of that name.
            pub fn get(&self, name: &str) -> u64 {
                self.named().find(|(other, _)| *other == name).map_or(0, |(_, count)| count)
            }

            /// Frames dropped, by reason.
            pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                self.with_prefix("drop_")
            }

            /// Frames dropped.
            pub fn dropped(&self) -> u64 {
                self.drops().map(|(_, frames)| frames).sum()
            }

            /// Frames handed to Linux.
            pub fn linux(&self) -> u64 {
                self.with_prefix("linux_").map(|(_, frames)| frames).sum()
            }
        }
    };
}

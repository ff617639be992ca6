//! A field of the header: a trie of its bytes, and the vector for each set of values that no rule tells apart.

use std::collections::HashMap;

use super::{Header, set, vector_of};
use crate::key::{Kind, TOGETHER};
use crate::rule::Flat;

/// The most words of all tries, half a megabyte. A packet reads one word of each level.
const ROOM: usize = 1 << 17;
/// Children of a node.
const CHILDREN: usize = 1 << 8;

/// Where a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The word of the header, and how far it is shifted for the field's first byte.
    pub word: usize,
    pub shift: u32,
    /// Its length: 1 for the protocol, 4 for an address, 2 for a port.
    bytes: u32,
    /// 0 for the source, 1 for the destination.
    side: usize,
}

/// The fields: protocol, addresses, ports; source before destination.
pub(super) const FIELDS: [Place; 5] = [
    Place { word: 2, shift: 16, bytes: 1, side: 0 },
    Place { word: 3, shift: 24, bytes: 4, side: 0 },
    Place { word: 4, shift: 24, bytes: 4, side: 1 },
    Place { word: 5, shift: 24, bytes: 2, side: 0 },
    Place { word: 5, shift: 8, bytes: 2, side: 1 },
];

/// A word of a trie refers to a word by its place (24 bits), to which the next byte is added, masked by the low eight bits.
/// These are zero in the words that stand for a vector; they are at the beginning, in the order of the vectors, and refer to
/// themselves, so the search may go on when it has ended for some packets.
pub(super) type Word = u32;

/// A field of packets, as one or more rules restrict it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field<const W: usize> {
    place: Place,
    /// Bytes that are looked at: no rule depends on those after them.
    levels: u32,
    root: Word,
    trie: Vec<Word>,
    vectors: Vec<[u64; W]>,
}

impl<const W: usize> Field<W> {
    /// Where the trie and the vectors are, for other forms of the search.
    #[cfg(target_arch = "x86_64")]
    pub fn parts(&self) -> (Place, u32, Word, &[Word], &[[u64; W]]) {
        (self.place, self.levels, self.root, &self.trie, &self.vectors)
    }

    /// Removes the rules that packets do not match because of this field.
    #[inline(always)]
    pub fn narrow(&self, headers: &[&Header; TOGETHER], matching: &mut [[u64; W]; TOGETHER]) {
        // The compiler knows the number of levels, so nothing counts them for each packet.
        match self.levels {
            1 => self.narrow_by::<1>(headers, matching),
            2 => self.narrow_by::<2>(headers, matching),
            3 => self.narrow_by::<3>(headers, matching),
            _ => self.narrow_by::<4>(headers, matching),
        }
    }

    #[inline(always)]
    fn narrow_by<const LEVELS: u32>(
        &self,
        headers: &[&Header; TOGETHER],
        matching: &mut [[u64; W]; TOGETHER],
    ) {
        let Place { word, shift, .. } = self.place;
        let (trie, vectors, root) = (&self.trie[..], &self.vectors[..], self.root);
        for (header, matching) in headers.iter().zip(matching) {
            let word = header.as_chunks::<4>().0.get(word).map_or(0, |word| u32::from_be_bytes(*word));
            // The first byte on top.
            let word = word << (24 - shift);
            let mut at = root;
            for level in 0..LEVELS {
                let next = (at >> 8) + (word >> (24 - 8 * level) & at & 0xff);
                let Some(word) = trie.get(next as usize) else { return };
                at = *word;
            }
            let Some(vector) = vectors.get((at >> 8) as usize) else { return };
            for word in 0..W {
                matching[word] &= vector[word];
            }
        }
    }
}

/// The fields that some rule restricts.
pub(super) struct Fields<'r, const W: usize> {
    rules: &'r [&'r Flat],
    room: usize,
    pub list: Vec<Field<W>>,
}

impl<'r, const W: usize> Fields<'r, W> {
    pub fn new(rules: &'r [&'r Flat]) -> Self {
        Self { rules, room: ROOM, list: Vec::new() }
    }

    /// Adds a field if some rule restricts it; `None` if there is no room for it.
    pub fn add(&mut self, place: Place) -> Option<()> {
        let mut builder = Builder::<W>::new(self.room);
        let root = match place.bytes {
            1 => builder.protocols(self.rules),
            _ => builder.ranges(self.rules, place)?,
        };
        // A single vector means that no rule restricts the field.
        if let Reference::Node(_) = root {
            let field = builder.field(place, root);
            self.room = self.room.checked_sub(field.trie.len())?;
            self.list.push(field);
        }
        Some(())
    }
}

/// Where a word of a trie that is being built refers to.
#[derive(Clone, Copy)]
enum Reference {
    Node(usize),
    Vector(usize),
}

/// A trie that is being built.
struct Builder<const W: usize> {
    /// The most words of the nodes.
    room: usize,
    nodes: Vec<[Reference; CHILDREN]>,
    vectors: Vec<[u64; W]>,
    known: HashMap<[u64; W], usize>,
    levels: u32,
}

/// Values of a field that have their first bytes in common.
struct Part<const W: usize> {
    least: u32,
    /// Bytes that they have in common, and further ones.
    known: u32,
    unknown: u32,
    /// The rules that match all values.
    matching: [u64; W],
    /// Other rules: the number, least and greatest value that it matches.
    rules: Vec<(usize, (u32, u32))>,
}

impl<const W: usize> Part<W> {
    /// Sorts the rules into those that match all values, some, and none.
    fn sort(&mut self) {
        let greatest = self.least | 1u32.unbounded_shl(8 * self.unknown).wrapping_sub(1);
        let Self { least, matching, .. } = self;
        self.rules.retain(|(number, (from, to))| {
            let all = *from <= *least && greatest <= *to;
            if all {
                set(matching, *number);
            }
            !all && *from <= greatest && *least <= *to && *from <= *to
        });
    }

    /// The values that have this next byte.
    fn child(&self, byte: usize) -> Self {
        let unknown = self.unknown - 1;
        let least = self.least | (byte as u32) << (8 * unknown);
        Self { least, known: self.known + 1, unknown, matching: self.matching, rules: self.rules.clone() }
    }
}

impl<const W: usize> Builder<W> {
    fn new(room: usize) -> Self {
        Self { room, nodes: Vec::new(), vectors: Vec::new(), known: HashMap::new(), levels: 0 }
    }

    /// The trie for the protocol, which also says whether a packet has ports.
    fn protocols(&mut self, rules: &[&Flat]) -> Reference {
        let node = std::array::from_fn(|protocol| {
            let protocol = protocol as u8;
            let kind = Kind::of(protocol) as u8;
            self.vector(vector_of(rules, |rule| {
                (rule.protocol[0]..=rule.protocol[1]).contains(&protocol) && rule.kinds & kind != 0
            }))
        });
        self.levels = 1;
        self.nodes.push(node);
        Reference::Node(0)
    }

    /// The trie for addresses or ports; `None` if there is no room for it.
    fn ranges(&mut self, rules: &[&Flat], place: Place) -> Option<Reference> {
        let ranges = rules.iter().map(|Flat { first, ports, .. }| match place.bytes {
            4 => (first[2 * place.side], first[2 * place.side] | !first[2 * place.side + 1]),
            _ => (ports[2 * place.side].into(), ports[2 * place.side + 1].into()),
        });
        let rules = ranges.enumerate().collect();
        self.part(Part { least: 0, known: 0, unknown: place.bytes, matching: [0; W], rules })
    }

    fn part(&mut self, mut part: Part<W>) -> Option<Reference> {
        part.sort();
        if part.rules.is_empty() {
            return Some(self.vector(part.matching));
        }
        let node = self.nodes.len();
        if (node + 1) * CHILDREN > self.room {
            return None;
        }
        self.levels = self.levels.max(part.known + 1);
        self.nodes.push([Reference::Vector(0); CHILDREN]);
        for byte in 0..CHILDREN {
            self.nodes[node][byte] = self.part(part.child(byte))?;
        }
        Some(Reference::Node(node))
    }

    fn vector(&mut self, vector: [u64; W]) -> Reference {
        let number = *self.known.entry(vector).or_insert_with(|| {
            self.vectors.push(vector);
            self.vectors.len() - 1
        });
        Reference::Vector(number)
    }

    fn field(self, place: Place, root: Reference) -> Field<W> {
        let first = self.vectors.len();
        let word = |reference: Reference| match reference {
            Reference::Vector(number) => (number as Word) << 8,
            Reference::Node(number) => ((first + number * CHILDREN) as Word) << 8 | 0xff,
        };
        let vectors = (0..first).map(|number| word(Reference::Vector(number)));
        let nodes = self.nodes.iter().flatten().map(|reference| word(*reference));
        let trie = vectors.chain(nodes).collect();
        Field { place, levels: self.levels, root: word(root), trie, vectors: self.vectors }
    }
}

//! Where the entries live: pages of nodes, named by index, given back when empty.

use std::ops::{Index, IndexMut};

use super::levels::Slot;

/// No node: the end of a list.
pub(super) const NIL: u32 = u32::MAX;

/// Nodes on a page, as a power of two. Small enough that a page is likely to become empty, large
/// enough that what is kept about a page hardly counts.
const PAGE_BITS: u32 = 8;
const PAGE: u32 = 1 << PAGE_BITS;

/// An entry and its place in the wheel.
#[derive(Debug)]
pub(super) struct Node<T> {
    pub(super) due: u64,
    pub(super) sequence: u64,
    pub(super) previous: u32,
    pub(super) next: u32,
    pub(super) home: Home,
    pub(super) value: T,
}

/// Which collection a node is in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    Late,
    Slot(Slot),
}

impl<T> Node<T> {
    pub(super) fn new(due: u64, sequence: u64, value: T) -> Self {
        Self {
            due,
            sequence,
            previous: NIL,
            next: NIL,
            home: Home::Late,
            value,
        }
    }
}

/// Nodes by index. Indices are used again, which is why handles carry a sequence number.
#[derive(Debug)]
pub(super) struct Slab<T> {
    pages: Vec<Page<T>>,
    /// Pages with memory and room, in no particular order.
    open: Vec<u32>,
    /// Pages whose memory was given back.
    closed: Vec<u32>,
    /// How many open pages hold nothing. One is kept, so that an entry that comes and goes does
    /// not allocate each time.
    idle: usize,
    len: usize,
}

#[derive(Debug)]
struct Page<T> {
    /// Empty when the memory was given back.
    cells: Vec<Cell<T>>,
    /// The first vacant cell; the others follow from there.
    vacant: u32,
    live: u32,
    /// Where this page is in `Slab::open`, if it is open.
    open_at: usize,
}

#[derive(Debug)]
enum Cell<T> {
    Vacant { next: u32 },
    Taken(Node<T>),
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self {
            pages: Vec::new(),
            open: Vec::new(),
            closed: Vec::new(),
            idle: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, node: Node<T>) -> u32 {
        let number = match self.open.last() {
            Some(&number) => number,
            None => self.open_page(),
        };
        let page = &mut self.pages[number as usize];
        if page.live == 0 {
            self.idle -= 1;
        }
        let position = page.take(node);
        if page.live == PAGE {
            // It is the last one of the open pages, because that is the one that was chosen.
            self.open.pop();
        }
        self.len += 1;
        (number << PAGE_BITS) | position
    }

    /// The node of this index, if there is one. The index may come from an old handle.
    pub(super) fn get(&self, index: u32) -> Option<&Node<T>> {
        let (number, position) = split(index);
        match self.pages.get(number)?.cells.get(position)? {
            Cell::Taken(node) => Some(node),
            Cell::Vacant { .. } => None,
        }
    }

    pub(super) fn remove(&mut self, index: u32) -> Node<T> {
        let (number, _) = split(index);
        let page = &mut self.pages[number];
        let node = page.free(index & (PAGE - 1));
        let live = page.live;
        if live + 1 == PAGE {
            page.open_at = self.open.len();
            self.open.push(index >> PAGE_BITS);
        }
        if live == 0 {
            self.idle += 1;
            if self.idle > 1 {
                self.close_page(number);
            }
        }
        self.len -= 1;
        node
    }

    fn open_page(&mut self) -> u32 {
        let number = self.closed.pop().unwrap_or_else(|| {
            self.pages.push(Page::closed());
            u32::try_from(self.pages.len() - 1).expect("checked below")
        });
        assert!(number < NIL >> PAGE_BITS, "more entries than indices");
        let page = &mut self.pages[number as usize];
        *page = Page::open(self.open.len());
        self.open.push(number);
        self.idle += 1;
        number
    }

    fn close_page(&mut self, number: usize) {
        let page = std::mem::replace(&mut self.pages[number], Page::closed());
        let closed = self.open.swap_remove(page.open_at);
        if let Some(&moved) = self.open.get(page.open_at) {
            self.pages[moved as usize].open_at = page.open_at;
        }
        self.closed.push(closed);
        self.idle -= 1;
    }
}

impl<T> Page<T> {
    fn closed() -> Self {
        Self {
            cells: Vec::new(),
            vacant: NIL,
            live: 0,
            open_at: 0,
        }
    }

    fn open(open_at: usize) -> Self {
        let last = PAGE - 1;
        Self {
            cells: (0..=last)
                .map(|position| Cell::Vacant {
                    next: if position == last { NIL } else { position + 1 },
                })
                .collect(),
            vacant: 0,
            live: 0,
            open_at,
        }
    }

    fn take(&mut self, node: Node<T>) -> u32 {
        let position = self.vacant;
        match std::mem::replace(&mut self.cells[position as usize], Cell::Taken(node)) {
            Cell::Vacant { next } => self.vacant = next,
            Cell::Taken(_) => unreachable!("a cell on the vacant list is vacant"),
        }
        self.live += 1;
        position
    }

    fn free(&mut self, position: u32) -> Node<T> {
        let vacated = Cell::Vacant { next: self.vacant };
        let Cell::Taken(node) = std::mem::replace(&mut self.cells[position as usize], vacated)
        else {
            unreachable!("only nodes that are in the wheel are removed")
        };
        self.vacant = position;
        self.live -= 1;
        node
    }
}

fn split(index: u32) -> (usize, usize) {
    ((index >> PAGE_BITS) as usize, (index & (PAGE - 1)) as usize)
}

impl<T> Index<u32> for Slab<T> {
    type Output = Node<T>;

    fn index(&self, index: u32) -> &Node<T> {
        self.get(index).expect("a linked node is in the slab")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut Node<T> {
        let (number, position) = split(index);
        match &mut self.pages[number].cells[position] {
            Cell::Taken(node) => node,
            Cell::Vacant { .. } => unreachable!("a linked node is in the slab"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages_with_memory<T>(slab: &Slab<T>) -> usize {
        let cells = slab.pages.iter().map(|page| page.cells.capacity());
        cells.filter(|capacity| *capacity > 0).count()
    }

    fn filled(count: u64) -> (Slab<u64>, Vec<u32>) {
        let mut slab = Slab::new();
        let indices = (0..count)
            .map(|number| slab.insert(Node::new(0, number, number)))
            .collect();
        (slab, indices)
    }

    #[test]
    fn memory_is_given_back_but_for_one_page() {
        let (mut slab, indices) = filled(100_000);
        assert_eq!(
            pages_with_memory(&slab),
            100_000_usize.div_ceil(PAGE as usize)
        );

        // Every 7th first, so that pages become empty in the middle of others.
        let (sevenths, others): (Vec<u32>, Vec<u32>) =
            indices.iter().partition(|index| *index % 7 == 0);
        for index in sevenths.into_iter().chain(others) {
            assert_eq!(slab.remove(index).value, u64::from(index));
        }
        assert_eq!(slab.len(), 0);
        assert_eq!(pages_with_memory(&slab), 1);
    }

    #[test]
    fn what_is_left_keeps_only_its_own_pages() {
        let (mut slab, mut indices) = filled(100_000);
        let kept = indices.split_off(100_000 - PAGE as usize);
        for index in indices {
            slab.remove(index);
        }
        assert!(
            pages_with_memory(&slab) <= 3,
            "{}",
            pages_with_memory(&slab)
        );
        for index in kept {
            assert_eq!(slab[index].value, u64::from(index));
        }
    }

    #[test]
    fn pages_that_were_given_back_are_used_again() {
        let (mut slab, indices) = filled(10_000);
        for index in indices {
            slab.remove(index);
        }
        for number in 0..10_000 {
            slab.insert(Node::new(0, number, number));
        }
        assert_eq!(slab.pages.len(), 10_000_usize.div_ceil(PAGE as usize));
        assert_eq!(slab.len(), 10_000);
    }

    #[test]
    fn an_index_that_was_never_given_out_names_nothing() {
        let (slab, _) = filled(3);
        assert!(slab.get(3).is_none());
        assert!(slab.get(NIL).is_none());
    }
}

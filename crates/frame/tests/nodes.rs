//! With two NUMA nodes, frames must be on the node of their worker, as the kernel reports it for each page.
//! `make test-vm` boots a machine with two nodes; with a single node the test is skipped.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use bm_frame::{FramePool, Freelist, HEADER_STRIDE, Node, Pages, node_of_core};

/// The node of the page at `address`.
fn node_of_page(address: usize) -> i32 {
    let (pages, mut status) = ([address], [-1]);
    // SAFETY: without a list of targets it moves nothing, and writes one number for one page.
    let done = unsafe {
        let targets = std::ptr::null::<i32>();
        libc::syscall(libc::SYS_move_pages, 0, 1usize, pages.as_ptr(), targets, status.as_mut_ptr(), 0)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    status[0]
}

#[test]
fn frames_are_on_the_node_of_their_worker() {
    let cores: Vec<Node> = (0..).map_while(node_of_core).collect();
    if !Path::new("/sys/devices/system/node/node1").exists() {
        eprintln!("skipped: this machine has one memory node (cores {cores:?})");
        return;
    }
    assert!(cores.contains(&0) && cores.contains(&1), "{cores:?}");
    const SLOTS: usize = 16_384;
    let frame_pool = FramePool::on_nodes(SLOTS, 2048, Pages::Plain, &[0, 1]).unwrap();
    assert_eq!(frame_pool.nodes().collect::<Vec<_>>(), [(0, SLOTS / 2), (1, SLOTS / 2)]);
    let memory = frame_pool.memory();
    let mut apart = 0;
    for node in [0, 1] {
        let mut list = Freelist::near(frame_pool.clone(), 128, Some(node));
        for _ in 0..SLOTS / 2 {
            let frame = list.allocate().unwrap();
            let slot = frame.data().as_ptr() as usize;
            let header = memory.headers().as_ptr() as usize + memory.index(&frame) as usize * HEADER_STRIDE;
            let here = [slot, header].map(|address| node_of_page(address) == node as i32);
            apart += here.into_iter().filter(|here| !here).count();
        }
    }
    // Where the shares of both workers meet, a huge page belongs to one node: at most its headers may be wrong.
    assert!(apart <= (2 << 20) / HEADER_STRIDE, "{apart} slots and headers are on the other node");
}
